"""Members in a hostile model world: nothing complete is lost, and all get well again.

A failing seed is told with its story. TIDEMARK_SEEDS=2000 makes that many runs of each kind; CI of a release does.
"""

from __future__ import annotations

import os
from itertools import count

import pytest
from unit.cluster.planted import PLANTED, Plant
from unit.cluster.toys import Broken
from unit.cluster.world import World, run

from tidemark.cluster.mode import Asked, State
from tidemark.cluster.replica import Replica
from tidemark.model.peers import Log

SEEDS = int(os.environ.get("TIDEMARK_SEEDS", "40"))
KINDS = [
    pytest.param({"mode": "standby"}, 1.0, id="standby"),
    pytest.param({"mode": "chain"}, 1.0, id="chain"),
    pytest.param({"mode": "standby", "members": 2}, 0.5, id="standby of two"),
    pytest.param({"mode": "chain", "members": 5, "chain_tails": 2}, 0.25, id="chain of five with two tails"),
]
SEEDS_TO_FIND = 40
"""A planted bug is found within so many seeds from the one that is named with it."""


@pytest.mark.slow
@pytest.mark.parametrize("part", range(4))
@pytest.mark.parametrize(("kind", "share"), KINDS)
@pytest.mark.timeout(0 if SEEDS > 100 else 300)
def test_whatever_happens_nothing_complete_is_lost_and_all_get_well(
    kind: dict[str, object], share: float, part: int
) -> None:
    """X-8: every mode is on the same views with an epoch, and what is complete in one is in all later ones."""
    seeds = int(SEEDS * share)
    for seed in range(seeds * part // 4, seeds * (part + 1) // 4):
        try:
            run(seed, **kind)  # type: ignore[arg-type]
        except Broken as error:
            error.add_note(f"run({seed}, **{kind})")
            raise


@pytest.mark.slow
@pytest.mark.parametrize(("kind", "share"), KINDS)
@pytest.mark.timeout(0 if SEEDS > 100 else 300)
def test_when_a_loss_is_accepted_nothing_else_is_lost_and_all_get_well(
    kind: dict[str, object], share: float
) -> None:
    """All that were ready go, some for good, and one of the others leads; the lost come back empty, with all they had, or thawed."""
    losses = 0
    for seed in range(int(SEEDS * share)):
        try:
            losses += len(run(seed, ms=15_000, losses=True, **kind).given_up)  # type: ignore[arg-type]
        except Broken as error:
            error.add_note(f"run({seed}, ms=15_000, losses=True, **{kind})")
            raise
    assert losses > SEEDS * share / 2


def test_what_was_given_up_is_back_when_one_that_holds_it_leads_after_a_second_loss() -> None:
    """An empty member led meanwhile: the one that leads now, and its followers, know that its records were complete."""
    run(91094, ms=15_000, losses=True)


@pytest.mark.slow
@pytest.mark.timeout(300)
def test_a_member_that_takes_for_complete_what_was_given_up_is_found(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(Replica, "_disown", lambda *_: None)

    def look() -> None:
        for seed in range(SEEDS_TO_FIND):
            run(seed, ms=15_000, losses=True)

    with pytest.raises(Broken):
        look()


@pytest.mark.slow
@pytest.mark.timeout(300)
def test_a_member_that_empties_its_store_by_the_view_that_it_knows_is_found(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """The leader may have asked for a newer one, in which it is ready."""
    consider = Replica._consider_leading

    def hasty(self: Replica) -> int | None:
        if self._refilling and self.view is not None and self.me not in self.view.ready:
            self._begin_refill()
        return consider(self)

    monkeypatch.setattr(Replica, "_consider_leading", hasty)

    def look() -> None:
        for seed in range(460, 460 + SEEDS_TO_FIND):
            run(seed, "chain", members=5, chain_tails=2)

    with pytest.raises(Broken):
        look()


@pytest.mark.slow
@pytest.mark.parametrize("plant", PLANTED, ids=lambda plant: plant.__name__)
@pytest.mark.timeout(300)
def test_every_planted_bug_is_found(plant: Plant, monkeypatch: pytest.MonkeyPatch) -> None:
    mode, first = PLANTED[plant]
    plant(monkeypatch)

    def look() -> None:
        for seed in range(first, first + SEEDS_TO_FIND):
            run(seed, mode)

    with pytest.raises(Broken):
        look()


def test_the_runs_do_what_they_are_for() -> None:
    """Worlds in which nothing happens would find nothing."""
    stories = [line for seed in range(8) for line in run(seed, "standby").story]
    for what, least in (
        ("leads in", 16),
        ("rewinds to", 2),
        ("starts over", 2),
        ("is fenced", 2),
        ("without", 8),
    ):
        assert sum(what in line for line in stories) >= least, what


def test_the_same_seed_replays_the_same_run() -> None:
    assert run(7, "chain").story == run(7, "chain").story


def test_in_peace_nothing_happens_but_work() -> None:
    """H-1, H-6: one leader, no failover, everything completes."""
    for mode in ("standby", "chain"):
        world = World(3, mode, rude=False)
        world.run(30_000)
        assert world.is_well() and list(world.leaders) == [1]
        assert len(world.committed[Log.JOURNAL]) > 100


@pytest.mark.parametrize("mode", ["standby", "chain"])
def test_a_hundred_failovers_leave_one_leader_an_epoch_and_lose_nothing(mode: str) -> None:
    """H-1, H-5, H-53"""
    world = World(11, mode, rude=False)
    world.run(2000)
    for _ in range(100):
        leader = next(machine for machine in world.machines.values() if machine.leads)
        before = len(world.committed[Log.JOURNAL])
        world.crash(leader)
        world.run(world.now + 10_000, lambda n=before: len(world.committed[Log.JOURNAL]) > n)  # type: ignore[misc]
        assert len(world.committed[Log.JOURNAL]) > before
        world.start(leader)
        assert world.run(world.now + 60_000, world.is_well)
    assert sorted(world.leaders) == list(range(1, len(world.leaders) + 1))


@pytest.mark.parametrize("mode", ["standby", "chain"])
def test_a_cluster_that_was_shut_down_holds_the_same_everywhere_and_starts_by_itself(mode: str) -> None:
    """H-54..H-57"""
    world = World(5, mode, rude=False)
    assert world.run(20_000, world.is_well)
    leader = next(machine for machine in world.machines.values() if machine.leads)
    world.give(leader, Asked("shutdown"))
    assert leader.drained
    assert world.run(world.now + 20_000, lambda: not any(one.up for one in world.machines.values()))
    assert len({machine.store.durable for machine in world.machines.values()}) == 1

    for machine in world.machines.values():
        world.start(machine)
    assert world.run(world.now + 20_000, world.is_well)


@pytest.mark.parametrize("missing", ["a", "b", "c"])
def test_after_a_total_crash_any_two_of_three_go_on(missing: str) -> None:
    """H-64, Q-75, X-7: never a silent hang, whoever does not come back."""
    for seed in count(20):
        world = World(seed, "standby", rude=False)
        if world.run(10_000, world.is_well):
            break
    for machine in world.machines.values():
        world.crash(machine)
    world.run(world.now + 5000)
    for machine in world.machines.values():
        if machine.name != missing:
            world.start(machine)
    two = sorted([State.ACTIVE, State.READY, "down"])
    assert world.run(world.now + 30_000, lambda: sorted(world.states().values()) == two)
