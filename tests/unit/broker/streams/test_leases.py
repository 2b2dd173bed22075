"""When leases end, and that nothing is kept of those that ended otherwise."""

from __future__ import annotations

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from unit.broker.streams.world import DAY_MS, StreamWorld

from tidemark.broker.streams.leases import Leases
from tidemark.errors import StoreError

YEARS_MS = 1 << 41


class Lease:
    """A holder that remembers when it was told."""

    def __init__(self, until_ms: int) -> None:
        self.until_ms = until_ms
        self.ended_ms: int | None = None
        self.released = False
        self.refuses = False

    def leased(self) -> bool:
        return self.ended_ms is None and not self.released

    def lease_ended(self, now_ms: int) -> None:
        if self.refuses:
            raise StoreError
        self.ended_ms = now_ms


@settings(max_examples=30, deadline=None)
@given(st.data())
def test_every_lease_ends_in_its_time_however_many_come_and_go(data: st.DataObject) -> None:
    leases, now_ms = Leases(), 0
    holders: list[Lease] = []
    for _ in range(data.draw(st.integers(1, 30))):
        for until_ms in data.draw(st.lists(st.integers(1, 50), max_size=5)):
            holders.append(Lease(now_ms + until_ms))
            leases.add(holders[-1])
        passing = Lease(now_ms + YEARS_MS)
        for _ in range(data.draw(st.sampled_from((0, 700, 3000)))):
            leases.add(passing)
        passing.released = True
        alive = [holder for holder in holders if holder.leased()]
        for holder in data.draw(st.lists(st.sampled_from(alive), max_size=4)) if alive else []:
            match data.draw(st.sampled_from(("release", "renew", "shorten"))):
                case "release":
                    holder.released = True
                case "renew":
                    holder.until_ms += 10
                case "shorten" if holder.until_ms > now_ms + 1:
                    holder.until_ms -= 1
                    leases.add(holder)
        now_ms += data.draw(st.integers(0, 20))
        leases.tick(now_ms)
        for holder in holders:
            if not holder.released:
                assert (holder.ended_ms is not None) == (holder.until_ms <= now_ms)
    assert len(leases) <= 2 * len(holders) + 1025


def test_an_end_that_cannot_be_written_down_is_tried_again() -> None:
    leases = Leases()
    holders = [Lease(10), Lease(20)]
    for holder in holders:
        leases.add(holder)
    holders[0].refuses = True
    with pytest.raises(StoreError):
        leases.tick(30)
    holders[0].refuses = False
    leases.tick(40)
    assert [holder.ended_ms for holder in holders] == [40, 40]
    assert len(leases) == 0


def test_pins_and_consumers_that_let_go_leave_nothing_behind() -> None:
    world = StreamWorld()
    world.declare()
    world.put((b"a", b"1"))
    kept, _ = world.session.pin("s", "kept", DAY_MS)
    for number in range(3000):
        snapshot, _ = world.session.pin("s", "p", YEARS_MS)
        snapshot.close()
        world.session.release("s", "p")
        world.session.register("s", "c", YEARS_MS)
        world.session.unregister("s", "c")
        world.session.register("s", "shorter", YEARS_MS - number)
        if not number % 100:
            world.turn()
    assert len(world.streams.leases) < 1100

    world.rest(DAY_MS + 1000)
    assert "kept" not in world.stream().pins.by_name
    assert world.session.mark("s", "shorter") is not None and not kept.stream.deleted
