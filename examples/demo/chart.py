"""A chart for the terminal: events that were confirmed and rows that the sinks took, second by second."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any

BARS = " ▁▂▃▄▅▆▇█"
WIDTH = 70


def chart(sent: Sequence[tuple[float, int]], reports: Iterable[dict[str, Any]], began: float) -> str:
    """One line of bars for the feed and one for each sink, over the same time."""
    lines = {"events confirmed": _steps(sent)}
    taken: dict[str, list[tuple[float, int]]] = {}
    for report in reports:
        if "sink" in report and "seen" in report:
            taken.setdefault(report["sink"], []).append((report["seen"], report["rows"]))
    for sink, points in taken.items():
        lines[f"rows into {sink}"] = _steps(points)
    end = max((when for steps in lines.values() for when, _ in steps), default=began + 1)
    width = max(1.0, (end - began) / WIDTH)
    drawn = [_bars(name, steps, began, width) for name, steps in lines.items()]
    return "\n".join([*drawn, f"{'':>22}└ 0 s{'':>{WIDTH - 12}}{end - began:5.0f} s"])


def _steps(points: Sequence[tuple[float, int]]) -> list[tuple[float, int]]:
    """How much was added when. A count that falls is that of a process that started anew."""
    steps = []
    before = 0
    for when, count in points:
        added = count - before if count >= before else count
        if added:
            steps.append((when, added))
        before = count
    return steps


def _bars(name: str, steps: Sequence[tuple[float, int]], began: float, width: float) -> str:
    sums = [0] * (WIDTH + 1)
    for when, added in steps:
        sums[min(WIDTH, max(0, int((when - began) / width)))] += added
    top = max(sums) or 1
    bars = "".join(BARS[-(-count * (len(BARS) - 1) // top)] for count in sums)
    return f"{name:>21} │{bars}│ {sum(sums):,}"
