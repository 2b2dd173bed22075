"""What streams let go of: by age, by size, deletes that all have seen, and never silently."""

from __future__ import annotations

import pytest
from unit.broker.streams.world import DAY_MS, StreamWorld

from tidemark.broker.streams.positions import FromMark
from tidemark.broker.streams.retention import Timeline
from tidemark.errors import StreamReset


def test_messages_older_than_the_age_end_and_stay_so() -> None:
    """K-82."""
    world = StreamWorld()
    world.declare(max_age="1h")
    world.put((b"a", b"1"), (b"b", b"1"))
    world.rest(1_800_000)
    world.put((b"b", b"2"), (b"c", b"1"))
    world.rest(1_000)
    assert len(world.now()) == 3
    world.rest(1_900_000)

    for again in (world, world.crash()):
        assert again.now() == [(b"b", b"2"), (b"c", b"1")]
        assert again.session.get("s", b"a") is None
    floor = world.session.describe("s").floor
    assert floor > 0
    world.rest(3_600_000)
    assert world.now() == [] and world.stream().entries == 0


def test_over_its_size_a_stream_ends_the_oldest_messages() -> None:
    world = StreamWorld()
    stream = world.declare(key="none", max_length_bytes=1000)
    for number in range(20):
        world.put((None, b"%02d" % number * 50))
    world.rest(1_000)

    assert stream.live_bytes == 1000
    for again in (world, world.crash()):
        assert [value[:2] for _, value in again.now() if value] == [
            b"%02d" % number for number in range(10, 20)
        ]


def test_what_nobody_has_seen_yet_is_not_evicted() -> None:
    world = StreamWorld()
    stream = world.declare(key="none", max_length_bytes=10)
    with world.world.slow_disk():
        world.put((None, b"x" * 100), turn=False)
        world.world.node.turn(world.now_ms)
        world.world.node.tick(world.now_ms)
        assert stream.live == 1
    world.turn()
    world.rest(1_000)
    assert stream.live == 0


def test_retention_ends_by_a_record_so_one_that_was_lost_did_not_happen() -> None:
    world = StreamWorld()
    world.declare(max_age="10s")
    world.put((b"a", b"1"))
    snapshot, _ = world.session.pin("s", "p", DAY_MS)
    world.turn()
    world.world.now_ms += 20_000
    world.world.node.turn(world.now_ms)
    world.world.node.tick(world.now_ms)
    assert world.stream().live == 0

    after = world.crash()

    assert after.now() == [(b"a", b"1")]
    assert after.content(after.session.pinned("s", "p")) == world.content(snapshot)


def test_a_tombstone_stays_until_every_registered_consumer_has_passed_it() -> None:
    """K-83: and each of them sees the delete."""
    world = StreamWorld()
    stream = world.declare()
    world.put((b"a", b"1"))
    for name in ("fast", "slow"):
        world.session.register("s", name)
        world.session.move("s", name, None, stream.boundary)
    deleted = world.put((b"a", None)).last_seq
    world.rest(1_000)
    world.session.move("s", "fast", None, deleted)
    world.rest(1_000)
    assert stream.tombstones == 1
    world = world.crash()
    world.rest(1_000)
    assert world.stream().tombstones == 1
    reader = world.session.reader("s", FromMark("slow"))
    taken = reader.next(10, 1000)
    assert world.described(world.stream(), taken) == [(deleted, b"a", None)]  # type: ignore[arg-type]
    world.session.move("s", "slow", None, deleted)
    world.rest(1_000)

    for again in (world, world.crash()):
        assert again.stream().tombstones == 0 and again.now() == []
        again.session.reader("s", FromMark("fast"))
        again.session.reader("s", FromMark("slow"))


def test_without_a_registered_consumer_a_tombstone_stays_for_its_lease() -> None:
    world = StreamWorld()
    stream = world.declare(tombstone_lease=60_000)
    world.put((b"a", b"1"))
    world.put((b"a", None))
    world.session.move("s", "unregistered", None, stream.boundary)
    world.rest(59_000)
    assert stream.tombstones == 1
    world.rest(2_000)
    assert stream.tombstones == 0
    assert world.crash().stream().entries == 0


def test_a_consumer_whose_lease_ended_keeps_nothing_and_is_reset_when_it_comes_back() -> None:
    """K-88: an explicit reset, never ghosts."""
    world = StreamWorld()
    stream = world.declare(tombstone_lease=DAY_MS)
    seen = world.put((b"a", b"1"), (b"b", b"1")).last_seq
    world.session.register("s", "away", lease_ms=10_000)
    world.session.register("s", "here", lease_ms=DAY_MS)
    for name in ("away", "here"):
        world.session.move("s", name, None, seen)
    world.put((b"a", None))
    world.session.move("s", "here", None, stream.boundary)
    world.rest(5_000)
    assert stream.tombstones == 1
    world.rest(6_000)
    assert stream.tombstones == 0

    for again in (world, world.crash()):
        with pytest.raises(StreamReset, match="Forget what you have of it and read from the first message"):
            again.session.reader("s", FromMark("away"))
        mark = again.session.mark("s", "away")
        assert mark is not None and mark.expired
    world.session.reset_mark("s", "away")
    assert world.session.reader("s", FromMark("away")).next(10, 1000) is not None


def test_moving_renews_the_lease_and_registers_an_expired_consumer_again() -> None:
    world = StreamWorld()
    stream = world.declare()
    world.put((b"a", b"1"))
    world.session.register("s", "c", lease_ms=10_000)
    for _ in range(5):
        world.rest(8_000)
        world.session.move("s", "c", None, stream.boundary)
    mark = world.session.mark("s", "c")
    assert mark is not None and not mark.expired
    world.rest(11_000)
    assert mark.expired and stream.marks.lowest() is None

    world.session.move("s", "c", None, stream.boundary)
    world.turn()

    assert stream.marks.lowest() == stream.boundary
    assert world.crash().stream().marks.lowest() == stream.boundary
    world.rest(11_000)
    assert mark.expired


def test_a_move_soon_after_a_start_does_not_shorten_the_time_that_the_start_gave() -> None:
    world = StreamWorld()
    world.declare()
    world.put((b"a", b"1"))
    world.session.register("s", "c", lease_ms=1_000)
    world.turn()
    after = world.crash()
    after.session.move("s", "c", None, after.stream().boundary)
    after.rest(50_000)
    mark = after.session.mark("s", "c")
    assert mark is not None and not mark.expired
    after.rest(15_000)
    assert mark.expired


def test_a_floor_that_ends_tombstones_resets_those_who_have_not_seen_them() -> None:
    world = StreamWorld()
    world.declare(max_age="10s")
    seen = world.put((b"a", b"1")).last_seq
    deleted = world.put((b"a", None)).last_seq
    world.rest(20_000)
    with pytest.raises(StreamReset):
        world.session.snapshot("s", after=seen)
    world.session.snapshot("s", after=deleted).close()


def test_a_purged_tombstone_does_not_come_back_and_neither_does_what_it_buried() -> None:
    """Compaction with the key's old versions and its tombstone in different segments, then restarts."""
    world = StreamWorld()
    stream = world.declare(tombstone_lease=1000)
    for _ in range(3):
        world.put(*((b"k%d" % key, b"v" * 3000) for key in range(40)))
    world.put(*((b"k%d" % key, None) for key in range(0, 40, 2)))
    world.put(*((b"filler%d" % key, b"v" * 3000) for key in range(60)))
    world.rest(5_000)
    assert stream.tombstones == 0
    expected = sorted(world.now(), key=str)
    assert len(expected) == 80

    for _ in range(3):
        world.compact()
        world = world.crash()
        assert sorted(world.now(), key=str) == expected
    world.put(*((b"filler%d" % key, None) for key in range(60)))
    world.rest(5_000)
    world.compact()
    assert len(world.crash().now()) == 20


def test_an_idle_stream_is_not_looked_at() -> None:
    world = StreamWorld()
    for number in range(5):
        world.declare(f"s{number}")
        world.put((b"a", b"1"), to=f"s{number}")
    world.rest(1_000)
    assert not world.streams.kept and not world.streams.hidden and not world.streams.read


def test_a_timeline_knows_what_had_been_given_by_when() -> None:
    timeline = Timeline()
    assert timeline.seq_at(1 << 50) == 0
    for second in range(300_000):
        timeline.note(second * 1000, second * 10)
    assert timeline.seq_at(-1) == 0
    for second in (100, 1_000, 250_000, 299_999):
        assert (second - 40) * 10 <= timeline.seq_at(second * 1000) <= second * 10
    assert len(timeline._ms) <= 1 << 14
