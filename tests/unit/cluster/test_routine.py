"""Failing over is routine: again and again, and publishers hardly notice."""

from __future__ import annotations

from itertools import pairwise

import pytest
from unit.cluster.world import World

from tidemark.model.peers import Log

ROUND_MS = 10_000
ROUNDS = 30
"""In each of the two modes: ten minutes in all."""


@pytest.mark.parametrize("mode", ["standby", "chain"])
def test_a_failover_every_ten_seconds_for_minutes_is_hardly_noticed(mode: str) -> None:
    """K-60: 1 failover per 10 s for 10 min: nothing complete is lost, and the p99 of the time between two confirms is bounded.

    The world itself checks at every step that what is complete stays so.
    """
    world = World(60, mode, rude=False, wipes=False)
    assert world.run(20_000, world.is_well)
    times = [world.now]
    check, done = world.check_ready, world.committed[Log.JOURNAL]
    seen = len(done)

    def note() -> None:
        nonlocal seen
        check()
        if len(done) > seen:
            seen = len(done)
            times.append(world.now)

    world.check_ready = note  # type: ignore[method-assign]
    began, first = world.now, len(world.leaders)
    for number in range(1, ROUNDS + 1):
        [leader] = [machine for machine in world.machines.values() if machine.leads and not machine.fenced]
        world.crash(leader)
        world.after(3000, lambda one=leader: world.start(one))  # type: ignore[misc]
        world.run(began + number * ROUND_MS)
        assert world.is_well(), world.states()

    assert len(world.leaders) - first >= ROUNDS
    gaps = sorted(after - before for before, after in pairwise(times))
    assert len(gaps) > 1000
    assert gaps[len(gaps) * 99 // 100] < 1500
    assert gaps[-1] < 3000
    world._work = lambda: None  # type: ignore[method-assign]
    world.run(world.now + 3000)
    [records] = {tuple(machine.store.logs[Log.JOURNAL].records) for machine in world.machines.values()}
    assert list(records) == done
