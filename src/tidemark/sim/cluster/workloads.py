"""What clients do in a run: kinds of work that are mixed by the seed.

A workload makes its clients, names actions (with how often each is chosen), says what it still waits for when the
faults are over, and checks at the end what its clients were told against what the members hold.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from random import Random
from typing import Any

from tidemark.sim.cluster.work_far import Far
from tidemark.sim.cluster.work_loose import Loose
from tidemark.sim.cluster.work_queues import Queues, Transactions
from tidemark.sim.cluster.work_streams import Bank, Keyed
from tidemark.sim.cluster.work_wiring import Wiring
from tidemark.sim.cluster.world import World

WORKLOADS: dict[str, Callable[[World, int], Any]] = {
    "queues": Queues,
    "transactions": Transactions,
    "wiring": Wiring,
    "keyed": Keyed,
    "bank": Bank,
}
ASKED_FOR: dict[str, Callable[[World, int], Any]] = {"far": Far, "loose": Loose}
"""In a run only when it is asked for."""


def choose(world: World, only: Sequence[str] = ()) -> dict[str, Any]:
    """One, two or three kinds of work, or `only` these, with the size of their messages."""
    dice = Random(f"{world.seed} work")
    count = dice.choice((1, 2, 2, 3))
    names = sorted(dice.sample(sorted(WORKLOADS), count))
    names = sorted(only) or names
    size = dice.choice((20, 200, 200, 3000))
    known = WORKLOADS | ASKED_FOR
    return {name: known[name](world, size) for name in names}
