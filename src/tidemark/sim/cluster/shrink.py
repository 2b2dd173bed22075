"""Makes a run that breaks a promise shorter: takes steps out of its plan for as long as it still breaks one.

First the work that came after the problem goes, then halves, quarters and so on of what is left, then single steps
(the way of delta debugging). The seed stays the same: what chance decides elsewhere changes as little as it can.
Any broken promise counts, not only the same one; the shortest story that ends badly is the one to read first.

Invariant: what is returned breaks a promise.
"""

from __future__ import annotations

from collections.abc import Sequence

from tidemark.sim.cluster.run import STEPS, Step, new_run, run_seed
from tidemark.sim.cluster.world import ETCD
from tidemark.sim.store import BrokenPromise

RUNS_MAX = 200


def plan_of(
    seed: int,
    mode: str,
    nodes: int,
    steps: int = STEPS,
    work: Sequence[str] = (),
    about: Sequence[str] = (),
    provider: str = ETCD,
) -> list[Step]:
    return new_run(seed, mode, nodes, steps, work=work, about=about, provider=provider).plan


def shrink(
    seed: int,
    mode: str,
    nodes: int = 3,
    steps: int = STEPS,
    runs_max: int = RUNS_MAX,
    work: Sequence[str] = (),
    about: Sequence[str] = (),
    provider: str = ETCD,
    replay: str = "",
) -> tuple[list[Step], BrokenPromise]:
    """The shortest plan that was found, and what it breaks.

    Raises:
        ValueError: the run breaks nothing.
    """

    def breaks(plan: Sequence[Step]) -> BrokenPromise | None:
        try:
            run_seed(seed, mode, nodes, steps, None, plan, work, about, provider, replay)
        except BrokenPromise as problem:
            return problem
        return None

    plan = plan_of(seed, mode, nodes, steps, work, about, provider)
    problem = breaks(plan)
    if problem is None:
        raise ValueError(f"seed {seed} breaks no promise")
    runs, size = 1, max(1, len(plan) // 2)
    while size and runs < runs_max:
        at, smaller = 0, False
        while at < len(plan) and runs < runs_max:
            left = plan[:at] + plan[at + size :]
            found = breaks(left)
            runs += 1
            if found is not None:
                plan, problem, smaller = left, found, True
            else:
                at += size
        if size == 1 and not smaller:
            break
        size = max(1, size // 2) if size > 1 else (1 if smaller else 0)
    return plan, problem
