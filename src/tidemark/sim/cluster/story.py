"""A run as a story: what happened to whom, in order, with the time."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from tidemark.sim.cluster.run import STEPS, Run, Step, run_seed
from tidemark.sim.cluster.world import ETCD, STANDBY
from tidemark.sim.store import BrokenPromise


class Story:
    """Keeps the lines of a run, or prints them as they come."""

    def __init__(self, out: Callable[[str], None] | None = None) -> None:
        self.lines: list[str] = []
        self._out = out or self.lines.append

    def tell(self, now_us: int, who: str, what: str) -> None:
        self._out(f"{now_us / 1e6:10.6f}  {who:<7} {what}")


def told(
    seed: int,
    out: Callable[[str], None],
    plan: Sequence[Step] | None = None,
    mode: str = STANDBY,
    nodes: int = 3,
    steps: int = STEPS,
    work: Sequence[str] = (),
    about: Sequence[str] = (),
    provider: str = ETCD,
    replay: str = "",
) -> tuple[Run | None, BrokenPromise | None]:
    """Run it and print everything. Returns the run, or the promise that it broke."""
    story = Story(out)
    try:
        return run_seed(seed, mode, nodes, steps, story.tell, plan, work, about, provider, replay), None
    except BrokenPromise as problem:
        return None, problem
