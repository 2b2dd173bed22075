"""`make test`: all stages, two lanes.

What needs the machine's attention (real processes, time-outs, Spark) runs one stage after the other in front. What only
needs CPU (machines, simulation, plain twins, permissions, packaging, fuzzing) runs beside it at the lowest priority, on whatever the front leaves idle;
its output is shown when a stage is done. Every stage is run, whatever fails before it, and the end says which failed and
with which command to run one alone.

    python tools/test.py              all
    python tools/test.py unit sim     these stages
    python tools/test.py --list
"""

from __future__ import annotations

import argparse
import os
import subprocess
import sys
import threading
import time
from dataclasses import dataclass, field
from pathlib import Path

PYTHON = sys.executable
PYTEST = (PYTHON, "-m", "pytest")
TWO = ("-n", "2")
FILES = (*TWO, "--dist", "loadfile")
BEHIND = ("-o", "timeout=900")
"""At the lowest priority a test may take long without being stuck."""


@dataclass(frozen=True, slots=True)
class Stage:
    name: str
    command: tuple[str, ...]
    words: str
    behind: bool = False
    """Runs in the lane behind."""
    variables: dict[str, str] = field(default_factory=dict)

    def line(self) -> str:
        head = [f"{name}={value}" for name, value in self.variables.items()]
        command = [".venv/bin/python" if part == PYTHON else part for part in self.command]
        return " ".join([*head, *command])


PACKAGING = "tests/system/test_packaging.py"
CLUSTER = "tests/system/cluster"
TWINS = ("broker", "frontend", "member", "model", "node", "runtime", "store", "wire")
"""Parts with compiled modules, or that stand on them."""
FUZZ_S = os.environ.get("TIDEMARK_FUZZ_SECONDS", "60")
STAGES = (
    Stage(
        "unit",
        (*PYTEST, "tests/unit", "tests/contract", "tests/arch", *TWO, *BEHIND),
        "machines, and all that implement an interface",
        behind=True,
    ),
    Stage("interop", (*PYTEST, "tests/interop", "tests/client", *FILES), "ordinary clients, and ours"),
    Stage("web", (*PYTEST, "tests/web"), "the page, in a real browser"),
    Stage(
        "system",
        (*PYTEST, "tests/system", f"--ignore={PACKAGING}", f"--ignore={CLUSTER}", *FILES),
        "real brokers, killed, filled up and asked too much",
    ),
    Stage("cluster", (*PYTEST, CLUSTER), "real clusters: members killed, frozen and cut off"),
    Stage("bench", (*PYTEST, "bench/tests", *TWO), "the benchmarks' own tests"),
    Stage("sinks", (*PYTEST, "tests/spark/unit", "tests/spark/sinks", *FILES), "the connector without Spark; sinks"),
    Stage(
        "spark",
        (*PYTEST, "tests/spark/connector", "tests/spark/pipeline", "tests/spark/examples", "tests/spark/cluster"),
        "the connector and pipelines with Spark",
    ),
    Stage("crash", (*PYTEST, "tests/spark/crash"), "pipelines whose processes are killed"),
    Stage("sim", (*PYTEST, "tests/sim", *TWO, *BEHIND), "stores, nodes and clusters on virtual time", behind=True),
    Stage(
        "pure",
        (*PYTEST, *(f"tests/unit/{each}" for each in TWINS), *TWO, *BEHIND),
        "the plain Python twins",
        behind=True,
        variables={"TIDEMARK_PURE": "1"},
    ),
    Stage(
        "security",
        (*PYTEST, "tests/security", *FILES, *BEHIND),
        "every endpoint, by whom it must not be used",
        behind=True,
    ),
    Stage("packaging", (*PYTEST, PACKAGING, *BEHIND), "wheel and sdist, installed and run", behind=True),
    Stage("fuzz", (PYTHON, "tests/fuzz/fuzz_wire.py", "--seconds", FUZZ_S), "the parsers", behind=True),
)  # fmt: skip


@dataclass(slots=True)
class Outcome:
    stage: Stage
    code: int
    seconds: float


def run(stage: Stage, log: Path | None, lock: threading.Lock) -> Outcome:
    """One stage; its output goes to the terminal, or first into a file and then there."""
    began = time.monotonic()
    environment = os.environ | stage.variables
    if log is None:
        with lock:
            print(f"\n== {stage.name}: {stage.line()}", flush=True)
        code = subprocess.run(stage.command, env=environment, check=False).returncode
        return Outcome(stage, code, time.monotonic() - began)
    with log.open("wb") as out:
        code = subprocess.run(
            ("nice", "-n", "19", *stage.command),
            env=environment,
            check=False,
            stdout=out,
            stderr=subprocess.STDOUT,
        ).returncode
    done = Outcome(stage, code, time.monotonic() - began)
    with lock:
        print(f"\n== {stage.name} (beside): {stage.line()}\n{log.read_text(errors='replace')}", flush=True)
    return done


def chosen(names: list[str]) -> list[Stage]:
    known = {stage.name: stage for stage in STAGES}
    unknown = [name for name in names if name not in known]
    if unknown:
        raise SystemExit(f"no stage {', '.join(unknown)}; there are {', '.join(known)}")
    return [known[name] for name in names] or list(STAGES)


def main() -> int:
    parser = argparse.ArgumentParser(description="Run the tests.")
    parser.add_argument("stages", nargs="*", help="which; all unless told")
    parser.add_argument("--list", action="store_true", help="name the stages and stop")
    asked = parser.parse_args()
    if asked.list:
        for stage in STAGES:
            print(f"{stage.name:10} {stage.words}{' (beside the others)' if stage.behind else ''}")
        return 0
    stages = chosen(asked.stages)
    logs = Path("build/test-logs")
    logs.mkdir(parents=True, exist_ok=True)
    outcomes: list[Outcome] = []
    lock = threading.Lock()

    def behind() -> None:
        for stage in stages:
            if stage.behind:
                outcomes.append(run(stage, logs / f"{stage.name}.log", lock))

    lane = threading.Thread(target=behind, daemon=True)
    lane.start()
    for stage in stages:
        if not stage.behind:
            outcomes.append(run(stage, None, lock))
    lane.join()
    print()
    for one in sorted(outcomes, key=lambda one: stages.index(one.stage)):
        words = "passed" if one.code == 0 else f"FAILED ({one.code}); alone: {one.stage.line()}"
        print(f"{one.stage.name:10} {one.seconds:6.0f} s  {words}")
    return 1 if any(one.code for one in outcomes) else 0


if __name__ == "__main__":
    sys.exit(main())
