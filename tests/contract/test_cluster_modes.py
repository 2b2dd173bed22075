"""What every cluster mode promises, whoever reads from whom. A new mode is one more line in `SETUPS`."""

from __future__ import annotations

from dataclasses import dataclass

import pytest
from unit.cluster.world import World

from tidemark.model.peers import Log


@dataclass(frozen=True)
class Setup:
    mode: str
    members: int
    copies: int
    """On how many disks a record is when it is complete and all are ready."""


SETUPS = {
    "standby alone": Setup("standby", 1, 1),
    "standby": Setup("standby", 3, 3),
    "chain": Setup("chain", 3, 3),
    "long chain": Setup("chain", 5, 5),
}


@pytest.mark.parametrize("seed", range(5))
@pytest.mark.parametrize("setup", SETUPS.values(), ids=SETUPS.keys())
def test_a_completed_record_is_on_as_many_disks_as_the_mode_promises(setup: Setup, seed: int) -> None:
    """X-8, X-11: complete means the same in every mode: on the disks of all current ready members."""
    world = World(seed, setup.mode, setup.members, rude=False)
    assert world.run(20_000, world.is_well)
    ready_from = {log: len(done) for log, done in world.committed.items()}

    copies = []
    check = world.check_ready

    def count() -> None:
        check()
        for log, done in world.committed.items():
            if len(done) > ready_from[log]:
                holders = [m for m in world.machines.values() if m.store.logs[log].holds(done, durable=True)]
                copies.append(len(holders))

    world.check_ready = count  # type: ignore[method-assign]
    world.run(world.now + 5000)
    assert min(copies) == setup.copies


@pytest.mark.parametrize("setup", SETUPS.values(), ids=SETUPS.keys())
def test_every_member_shows_the_same_records_in_the_same_order_in_the_end(setup: Setup) -> None:
    world = World(1, setup.mode, setup.members, rude=False)
    assert world.run(20_000, world.is_well)
    world._work = lambda: None  # type: ignore[method-assign]
    world.run(world.now + 3000)
    [records] = {tuple(machine.store.logs[Log.JOURNAL].records) for machine in world.machines.values()}
    assert list(records) == world.committed[Log.JOURNAL]
