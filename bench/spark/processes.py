"""Whose CPU a run took: Spark's JVM, its Python workers, the broker, the driver's own Python.

The JVM is a child of this process, and starts all Python workers: they are its descendants. A worker that has ended is
counted by whoever waited for it, so the JVM's own time is told apart from that of children it has waited for.
"""

from __future__ import annotations

import os
import time
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path

from bench import proc
from bench.measure import Figures

_TICKS_PER_S = os.sysconf("SC_CLK_TCK")
Clock = Callable[[], float]
"""CPU seconds until now."""


def _ticks(pid: int) -> tuple[int, int]:
    """Of the process itself, and of the children it has waited for; nothing of one that is gone."""
    try:
        fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    except OSError:
        return 0, 0
    return int(fields[11]) + int(fields[12]), int(fields[13]) + int(fields[14])


def spark_clocks(jvm: int) -> dict[str, Clock]:
    def own() -> float:
        return _ticks(jvm)[0] / _TICKS_PER_S

    def workers() -> float:
        below = (sum(_ticks(pid)) for pid in proc.family(jvm) if pid != jvm)
        return (_ticks(jvm)[1] + sum(below)) / _TICKS_PER_S

    return {"jvm": own, "python": workers, "driver": time.process_time}


def family_clock(pid: int) -> Clock:
    """Of a server and everything it has started."""
    return lambda: proc.cpu_seconds(proc.family(pid))


class Reading(dict[str, float]):
    """Seconds of wall time (`seconds`), and of CPU by whose it was (`cpu_…_s`)."""

    def per_million(self, rows: int) -> Figures:
        """CPU seconds per million rows: in all, and by whose they were."""
        shares = {
            f"{name[:-2]}_s_per_million": value / rows * 1e6
            for name, value in self.items()
            if name.startswith("cpu_")
        }
        return {"cpu_s_per_million": sum(shares.values()), **shares}


@contextmanager
def measured(clocks: Mapping[str, Clock]) -> Iterator[Reading]:
    """What happens inside, as a reading that is filled when it ends."""
    reading = Reading()
    before = {name: clock() for name, clock in clocks.items()}
    began = time.perf_counter()
    yield reading
    reading["seconds"] = time.perf_counter() - began
    for name, clock in clocks.items():
        reading[f"cpu_{name}_s"] = clock() - before[name]


def in_turn(contestants: Iterable[str], rounds: int) -> Iterator[tuple[int, str]]:
    """Everybody once a round; every other round the other way round, so that nobody is always the first."""
    names = list(contestants)
    for number in range(rounds):
        yield from ((number, name) for name in (names if number % 2 == 0 else reversed(names)))
