"""A reader goes from snapshot to snapshot: fair, in order, each key once a snapshot."""

from __future__ import annotations

from typing import Any

import pytest
from unit.broker.streams.world import StreamWorld

from tidemark.broker.streams.positions import AtTime, Position
from tidemark.broker.streams.reader import Reader
from tidemark.broker.streams.snapshots import Marker
from tidemark.errors import PinExpired, StreamReset


def step(world: StreamWorld, reader: Reader, count: int = 100) -> Any:
    found = reader.next(count, 1 << 20)
    if found is None or isinstance(found, Marker):
        return found
    return [(key, value) for _, key, value in world.described(world.stream(), found)]


def test_a_snapshot_is_read_to_its_end_then_comes_its_marker_then_the_newest_one() -> None:
    """K-18, K-32: changes after the start of a snapshot go to the next, collapsed to the latest."""
    world = StreamWorld()
    world.declare()
    world.put((b"a", b"1"), (b"b", b"1"), (b"c", b"1"))
    end = world.stream().boundary
    reader = world.session.reader("s", "first", markers=True)
    assert step(world, reader, 2) == [(b"a", b"1"), (b"b", b"1")]
    for number in range(2, 6):
        world.put((b"a", b"%d" % number), (b"c", b"%d" % number))

    assert step(world, reader) == [(b"c", b"1")]
    marker = step(world, reader)
    assert (marker.from_, marker.to, marker.count) == (0, end, 3) and marker.digest
    assert (reader.after, reader.boundary) == (end, end)
    assert step(world, reader) == [(b"a", b"5"), (b"c", b"5")]
    assert isinstance(step(world, reader), Marker)
    assert step(world, reader) is None


def test_a_cold_key_is_in_the_next_snapshot_however_hot_another_one_is() -> None:
    """K-31: nothing is delayed past one snapshot."""
    world = StreamWorld()
    world.declare()
    world.put(*((b"k%d" % number, b"v") for number in range(20)))
    reader = world.session.reader("s", "first")
    markers, cold_put, cold_seen = 0, None, None
    for turn in range(80):
        world.put((b"hot", b"%d" % turn))
        if turn == 30:
            world.put((b"cold", b"v"))
            cold_put = markers
        found = step(world, reader, 3)
        markers += isinstance(found, Marker)
        if isinstance(found, list) and (b"cold", b"v") in found:
            cold_seen = markers
    assert cold_put is not None and cold_seen is not None
    assert cold_seen - cold_put <= 1


def test_a_reader_with_little_room_sees_every_snapshot_whole() -> None:
    world = StreamWorld()
    world.declare()
    world.put(*((b"k%d" % number, b"v") for number in range(7)))
    reader = world.session.reader("s", "first")
    seen = []
    while not isinstance(found := step(world, reader, 1), Marker):
        seen += found
    assert seen == [(b"k%d" % number, b"v") for number in range(7)]


def test_the_end_of_a_snapshot_can_be_asked_for_with_its_last_rows() -> None:
    world = StreamWorld()
    world.declare()
    world.put((b"a", b"1"), (b"b", b"1"))
    reader = world.session.reader("s", "first")
    step(world, reader, 1)
    assert reader.ended() is None
    assert reader.snapshot_end == world.stream().boundary and reader.boundary == 0
    step(world, reader, 1)
    marker = reader.ended()
    assert marker is not None and marker.to == reader.boundary
    assert reader.ended() is None and step(world, reader) is None


def test_where_a_reader_begins() -> None:
    world = StreamWorld()
    world.declare()
    world.put((b"a", b"1"))
    world.rest(10_000)
    middle = world.put((b"b", b"1")).last_seq
    at = world.now_ms
    world.rest(10_000)
    world.put((b"c", b"1"))

    def first(offset: Any) -> Any:
        reader = world.session.reader("s", offset)
        found = step(world, reader)
        reader.close()
        return [key for key, _ in found] if isinstance(found, list) else found

    assert first("first") == [b"a", b"b", b"c"]
    assert first("last") == [b"c"]
    assert first("next") is None
    assert first(middle) == [b"b", b"c"]
    assert first(0) == [b"a", b"b", b"c"]
    assert first(AtTime(at)) == [b"b", b"c"]
    assert first(AtTime(at + 1)) == [b"c"]
    assert first(AtTime(0)) == [b"a", b"b", b"c"]
    assert first(1 << 40) is None
    assert first(Position(world.streams.history, middle)) == [b"c"]
    with pytest.raises(StreamReset):
        first(Position(b"?" * 16, middle))


def test_the_last_message_is_found_behind_records_of_retention() -> None:
    world = StreamWorld()
    world.declare(key="none", max_length_bytes=10)
    world.put((None, b"1" * 10))
    world.put((None, b"2" * 10))
    world.rest(1_000)
    assert world.stream().boundary > world.stream().last_seq
    for again in (world, world.crash()):
        assert step(again, again.session.reader("s", "last")) == [(None, b"2" * 10)]


def test_readers_do_not_wait_for_one_another_and_a_closed_one_holds_nothing() -> None:
    """K-23."""
    world = StreamWorld()
    stream = world.declare()
    world.put((b"a", b"1"))
    stopped = world.session.reader("s", "first")
    step(world, stopped)
    going = world.session.reader("s", "first")
    for number in range(2, 5):
        world.put((b"a", b"%d" % number))
        while (found := step(world, going)) is not None:
            last = found
    assert isinstance(last, Marker)
    assert stream.held == 1
    stopped.close()
    stopped.close()
    assert stream.held == 0


def test_a_reader_whose_snapshot_was_taken_from_it_is_told_and_can_go_on() -> None:
    world = StreamWorld()
    world.declare(pin_bytes_max=10)
    world.put((b"a", b"1" * 100), (b"b", b"1"))
    reader = world.session.reader("s", "first")
    step(world, reader, 1)
    world.put((b"a", b"2" * 100))
    world.rest(1_000)

    with pytest.raises(PinExpired):
        reader.next(1, 1)
    assert step(world, reader) == [(b"b", b"1"), (b"a", b"2" * 100)]


def test_a_reader_that_fell_behind_forgotten_deletes_is_reset() -> None:
    """K-88: not even a live one misses a delete silently."""
    world = StreamWorld()
    world.declare(tombstone_lease=1000)
    world.put((b"a", b"1"))
    reader = world.session.reader("s", "first")
    while step(world, reader) is not None:
        pass
    world.put((b"a", None))
    world.rest(2_000)
    with pytest.raises(StreamReset):
        reader.next(1, 1)


def test_a_reader_of_some_shards_sees_their_rows_and_every_boundary() -> None:
    world = StreamWorld()
    world.declare(shards=16)
    world.put(*((b"k%d" % number, b"v") for number in range(50)))
    parts = []
    for shard in range(16):
        reader = world.session.reader("s", "first", shards=shard)
        while not isinstance(found := step(world, reader, 2), Marker):
            parts += found
        assert found.to == world.stream().boundary
    assert sorted(parts) == sorted((b"k%d" % number, b"v") for number in range(50))
