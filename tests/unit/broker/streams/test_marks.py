"""Marks: where consumers are, over restarts, shards and a hundred thousand of them."""

from __future__ import annotations

import gc
import tracemalloc

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from unit.broker.streams.world import DAY_MS, StreamWorld

from tidemark.broker.streams.commit import Batch, Move
from tidemark.broker.streams.leases import GRACE_MS
from tidemark.broker.streams.marks import Mark, Marks, Point
from tidemark.broker.streams.policy import SLOTS, shard_slots
from tidemark.broker.streams.positions import FromMark, Position
from tidemark.errors import LostBranch, NotFound, PreconditionFailed, StreamReset
from tidemark.model.runs import Taken
from tidemark.speed import PURE


def read_to(world: StreamWorld, consumer: str, **how: object) -> list[tuple[bytes | None, bytes | None]]:
    """What a consumer that resumes at its mark is given."""
    reader = world.session.reader("s", FromMark(consumer), **how)  # type: ignore[arg-type]
    found = []
    while (taken := reader.next(100, 1 << 20)) is not None:
        if not hasattr(taken, "digest"):
            found += [(key, value) for _, key, value in world.described(world.stream(), taken)]  # type: ignore[arg-type]
    return found


def move(world: StreamWorld, seq: int, *, shard: int, of: int | None) -> None:
    world.session.commit(Batch([Move("s", "c", seq, shard, of=of)]))


def points(world: StreamWorld) -> list[int]:
    mark = world.session.mark("s", "c")
    assert mark is not None
    return [point.seq for point in mark.points]


def test_a_consumer_resumes_at_its_mark_after_client_and_node_restart() -> None:
    """K-27: one mark is the whole position."""
    world = StreamWorld()
    world.declare()
    seen = world.put((b"a", b"1"), (b"b", b"1")).last_seq
    world.session.move("s", "c", world.streams.history, seen)
    world.put((b"a", b"2"))

    for again in (world, world.crash()):
        assert read_to(again, "c") == [(b"a", b"2")]
        mark = again.session.mark("s", "c")
        assert mark is not None and (mark.seq, mark.history) == (seen, again.streams.history)


def test_a_mark_is_durable_when_the_sequence_of_its_move_is() -> None:
    world = StreamWorld()
    world.declare()
    seen = world.put((b"a", b"1")).last_seq
    safe_at = world.session.move("s", "c", None, seen)
    assert safe_at > world.world.node.journal.durable_seq
    assert world.crash().session.mark("s", "c") is None
    world.turn()
    assert safe_at <= world.world.node.journal.durable_seq
    assert world.crash().session.mark("s", "c") is not None


def test_moves_that_nobody_waits_for_are_merged_and_written_soon() -> None:
    world = StreamWorld()
    world.declare()
    receipts = [world.put((b"k%d" % number, b"v")) for number in range(20)]
    before = world.world.node.journal.statistics().records
    for receipt in receipts:
        assert world.session.move("s", "c", None, receipt.last_seq, wait=False) == 0
        world.turn()
    assert world.world.node.journal.statistics().records == before

    assert world.broker.next_wake_ms() == world.now_ms + 10
    world.rest(10)

    assert world.world.node.journal.statistics().records == before + 1
    mark = world.crash().session.mark("s", "c")
    assert mark is not None and mark.seq == receipts[-1].last_seq


def test_a_mark_moves_at_a_boundary_or_anywhere_as_the_consumer_likes() -> None:
    """K-28: after a crash the one resumes at the start of the snapshot, the other in the middle."""
    world = StreamWorld()
    world.declare()
    world.put((b"a", b"1"))
    start = world.stream().boundary
    world.put(*((b"k%d" % number, b"v") for number in range(10)))
    end, middle = world.stream().boundary, start + 5
    world.session.move("s", "causal", None, start)
    world.session.move("s", "eventual", None, start)
    world.session.move("s", "eventual", None, middle, snapshot_end=end)
    world.turn()

    after = world.crash()
    assert len(read_to(after, "causal")) == 10
    assert len(read_to(after, "eventual")) == 5
    mark = after.session.mark("s", "eventual")
    assert mark is not None and mark.points == (Point(middle, end, start),)


def test_a_mark_never_goes_back_unless_it_is_reset() -> None:
    world = StreamWorld()
    world.declare()
    low = world.put((b"a", b"1")).last_seq
    high = world.put((b"b", b"1")).last_seq
    world.session.move("s", "c", None, high)
    world.session.move("s", "c", None, low)
    mark = world.session.mark("s", "c")
    assert mark is not None and mark.seq == high

    world.session.reset_mark("s", "c", low)
    world.turn()

    after = world.crash()
    assert read_to(after, "c") == [(b"b", b"1")]
    with pytest.raises(PreconditionFailed, match="is no place for a mark"):
        after.session.reset_mark("s", "c", 1 << 40)


def test_a_move_to_another_branch_is_judged_and_changes_nothing() -> None:
    """K-84: a number of an unknown history, or ahead of what is shown."""
    world = StreamWorld()
    world.declare()
    seen = world.put((b"a", b"1")).last_seq
    world.session.move("s", "c", None, seen)
    with pytest.raises(StreamReset):
        world.session.move("s", "c", b"?" * 16, seen)
    with pytest.raises(LostBranch) as caught:
        world.session.move("s", "c", None, seen + 1000)
    assert caught.value.rewind_to < seen + 1000
    mark = world.session.mark("s", "c")
    assert mark is not None and mark.seq == seen


def test_a_consumer_without_a_mark_is_told_what_to_do() -> None:
    world = StreamWorld()
    world.declare()
    with pytest.raises(NotFound, match="no mark 'c'; move it once, or begin at 'first' or 'next'"):
        world.session.reader("s", FromMark("c"))


@pytest.mark.parametrize("name", ["", "x" * 256])
def test_a_name_that_cannot_be_is_refused(name: str) -> None:
    world = StreamWorld()
    world.declare()
    with pytest.raises(PreconditionFailed, match="1 to 255 bytes"):
        world.session.move("s", name, None, 0)
    assert world.session.marks("s") == []


def test_names_may_hold_anything() -> None:
    world = StreamWorld()
    world.declare()
    seen = world.put((b"a", b"1")).last_seq
    names = ["a/b", "mark/1/x", "ü ☃", "\n", "a" * 255]
    for name in names:
        world.session.move("s", name, None, seen)
        world.session.pin("s", name, DAY_MS)
    world.turn()
    after = world.crash()
    assert {mark.consumer for mark in after.session.marks("s")} == set(names)
    assert {pin.name for pin in after.session.pins("s")} == set(names)


def test_registering_again_and_again_costs_nothing() -> None:
    world = StreamWorld()
    stream = world.declare()
    for _ in range(50):
        world.session.register("s", "c")
        world.session.pin("s", "p", DAY_MS)[0].close()
    assert len(world.streams.leases) == 2 and stream.marks.registered == 1
    world.session.register("s", "c", lease_ms=5_000)
    world.rest(6_000)
    mark = world.session.mark("s", "c")
    assert mark is not None and mark.expired and stream.marks.registered == 0


def test_a_clean_stop_writes_the_moves_that_nobody_waited_for() -> None:
    world = StreamWorld()
    world.declare()
    seen = world.put((b"a", b"1")).last_seq
    world.session.move("s", "c", None, seen, wait=False)
    node = world.world.node
    node.close(world.now_ms)
    while not node.closed():
        node.completed(world.now_ms)
    mark = world.crash().session.mark("s", "c")
    assert mark is not None and mark.seq == seen


def test_an_unregistered_consumer_is_forgotten() -> None:
    world = StreamWorld()
    world.declare()
    world.session.register("s", "c")
    world.session.unregister("s", "c")
    world.session.unregister("s", "nobody")
    world.turn()
    assert world.session.marks("s") == [] == world.crash().session.marks("s")


# Shards -----------------------------------------------------------------------------------------


def test_each_shard_has_a_point_of_its_own() -> None:
    world = StreamWorld()
    world.declare(shards=4)
    world.put(*((b"k%d" % number, b"v") for number in range(40)))
    seen = world.stream().boundary
    world.session.move("s", "c", None, seen, shard=2)
    world.turn()

    after = world.crash()
    assert read_to(after, "c", shards=2) == []
    assert len(read_to(after, "c", shards=1)) > 0
    assert len(read_to(after, "c")) == 40
    with pytest.raises(PreconditionFailed, match="has 4 shards, none is number 4"):
        after.session.move("s", "c", None, seen, shard=4)


def test_growing_the_shards_skips_nothing_of_what_a_consumer_had_not_read() -> None:
    """Shard 1 of 2 is not shard 1 of 3: a new shard resumes at the lowest point of those it has slots from."""
    world = StreamWorld()
    world.declare(shards=2)
    world.put(*((b"k%d" % number, b"v") for number in range(60)))
    world.session.move("s", "c", None, world.stream().boundary, shard=1)
    unread = world.session.snapshot("s")
    expected = {key for _, key, _ in world.content(unread, shards=0)}

    world.session.declare("s", {"x-stream-shards": 3})

    resumed = [read_to(world, "c", shards=shard) for shard in range(3)]
    assert resumed[2] == []
    assert expected <= {key for part in resumed for key, _ in part}


def test_who_began_to_read_before_the_growth_moves_only_what_he_has_read() -> None:
    """Shard 1 of 2 is what shards 2 and 3 of 4 are, and not shard 1, which somebody else has not read yet."""
    world = StreamWorld()
    world.declare(shards=2)
    world.put(*((b"k%d" % number, b"v") for number in range(400)))
    readers = [world.session.reader("s", "first", shards=shard) for shard in range(2)]
    some = readers[0].next(3, 1 << 20)
    assert isinstance(some, Taken)
    move(world, [row[1] for row in some][-1], shard=0, of=readers[0].shards)
    world.session.declare("s", {"x-stream-shards": 4})
    rest = readers[1].next(1000, 1 << 20)
    assert isinstance(rest, Taken)
    move(world, [row[1] for row in rest][-1], shard=1, of=readers[1].shards)

    given = {row[1] for taken in (some, rest) for row in taken}
    resumed = [world.session.reader("s", FromMark("c"), shards=shard) for shard in range(4)]
    for reader in resumed:
        while isinstance(taken := reader.next(1000, 1 << 20), Taken):
            again = {row[1] for row in taken}
            assert reader in resumed[:2] or not again
            given |= again

    with world.session.snapshot("s") as snapshot:
        assert given == {seq for seq, _, _ in world.content(snapshot)}


def test_a_point_moves_when_its_shard_lies_wholly_in_what_was_read() -> None:
    """Somebody reads by 3 already: of those shard 1 has slots of both of the 2 from before."""
    world = StreamWorld()
    world.declare(shards=2)
    low = world.put((b"a", b"1")).last_seq
    high = world.put((b"b", b"1")).last_seq
    world.session.declare("s", {"x-stream-shards": 3})
    move(world, low, shard=2, of=3)
    for shard in range(2):
        move(world, high, shard=shard, of=2)
    assert points(world) == [high, 0, high]
    move(world, high, shard=1, of=3)
    assert points(world) == [high, high, high]


def test_while_all_count_by_the_shards_from_before_the_growth_their_mark_is_exact() -> None:
    world = StreamWorld()
    world.declare(shards=2)
    seen = world.put((b"a", b"1")).last_seq
    world.session.declare("s", {"x-stream-shards": 3})
    for shard in range(2):
        move(world, seen, shard=shard, of=2)
    world.turn()
    assert points(world) == [seen, seen] == points(world.crash())


@pytest.mark.parametrize(
    ("shard", "of", "problem"),
    [
        (2, 2, "has 2 shards, none is number 2"),
        (0, 0, "never had 0 shards; it has 4 now"),
        (0, 5, "never had 5 shards; it has 4 now"),
        (1, None, "grown from 2 shards, by which 'c' is marked, to 4: say of how many"),
    ],
)
def test_a_shard_that_is_none_or_not_clear_is_refused(shard: int, of: int | None, problem: str) -> None:
    world = StreamWorld()
    world.declare(shards=2)
    seen = world.put((b"a", b"1")).last_seq
    move(world, seen, shard=0, of=2)
    world.session.declare("s", {"x-stream-shards": 4})
    with pytest.raises(PreconditionFailed, match=problem):
        move(world, seen, shard=shard, of=of)
    assert points(world) == [seen, 0]


@settings(max_examples=200, deadline=None)
@given(st.data())
def test_however_the_shards_grow_no_slot_is_marked_further_than_it_was_read(data: st.DataObject) -> None:
    world = StreamWorld()
    shards = data.draw(st.integers(2, 5))
    world.declare(shards=shards)
    seqs = [world.put((b"k", b"v"), turn=False).last_seq for _ in range(6)]
    world.turn()
    read = [0] * SLOTS
    for _ in range(data.draw(st.integers(1, 5))):
        of = data.draw(st.integers(2, shards))
        shard, seq = data.draw(st.integers(0, of - 1)), data.draw(st.sampled_from(seqs))
        move(world, seq, shard=shard, of=of)
        low, end = shard_slots(shard, of)
        read[low:end] = [max(before, seq) for before in read[low:end]]
        if data.draw(st.booleans()):
            shards += data.draw(st.integers(1, 3))
            world.session.declare("s", {"x-stream-shards": shards})
    mark = world.session.mark("s", "c")
    assert mark is not None
    for shard in range(shards):
        low, end = shard_slots(shard, shards)
        assert mark.point(shard, shards).seq <= min(read[low:end])


def test_a_late_move_with_an_older_history_leaves_the_other_shards_good() -> None:
    world = StreamWorld()
    world.declare(shards=2)
    before = world.put((b"a", b"1"))
    world = world.crash()
    newest = world.put((b"a", b"2")).last_seq
    world.session.move("s", "c", None, newest, shard=1)
    world.session.move("s", "c", before.history, before.last_seq, shard=0)
    world.turn()
    for again in (world, world.crash()):
        starts = [again.session.reader("s", FromMark("c"), shards=shard).after for shard in range(2)]
        assert starts == [before.last_seq, newest]


@settings(max_examples=50, deadline=None)
@given(st.lists(st.integers(0, 100), min_size=1, max_size=9), st.integers(1, 12))
def test_however_shards_are_cut_no_slot_resumes_behind_where_it_was(points: list[int], shards: int) -> None:
    mark = Mark(object.__new__(Marks), "c")
    mark.points = tuple(Point(seq, seq, 0) for seq in points)
    for shard in range(shards):
        low, end = shard_slots(shard, shards)
        for old, seq in enumerate(points):
            first, last = shard_slots(old, len(points))
            if low < last and first < end:
                assert mark.point(shard, shards).seq <= seq


def test_a_move_of_the_whole_stream_takes_all_shards_along_and_none_back() -> None:
    world = StreamWorld()
    world.declare(shards=2)
    low = world.put((b"a", b"1")).last_seq
    high = world.put((b"b", b"1")).last_seq
    world.session.move("s", "c", None, high, shard=1)
    world.session.move("s", "c", None, low)
    mark = world.session.mark("s", "c")
    assert mark is not None and [point.seq for point in mark.points] == [low, high]
    world.session.move("s", "c", None, high)
    assert [point.seq for point in mark.points] == [high, high] or mark.shards == 1


# Very many --------------------------------------------------------------------------------------


def test_a_hundred_thousand_idle_consumers_cost_less_than_a_kilobyte_each_and_nothing_per_tick() -> None:
    """K-24, K-30: they are their marks."""
    world = StreamWorld()
    stream = world.declare()
    world.put((b"k", b"1"))
    world.put((b"k", None))
    for number in range(100):
        world.session.register("s", f"real-{number:06}")
    state = world.streams.state
    index = 100 if PURE else state.memory_bytes / state.entries  # the plain twin is not meant to be small
    [body] = [body for name, _, body in state.items() if name.endswith(b"real-000000")]
    count = 100_000
    gc.collect()
    tracemalloc.start()
    for number in range(count):
        stream.marks.restored(f"consumer-{number:06}", {**body, "u": body["u"] + number}, number)
    size, _ = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    assert size / count + index < 1000

    asked: list[Mark] = []
    original = Mark.leased
    Mark.leased = lambda mark: bool(asked.append(mark)) or original(mark)  # type: ignore[method-assign, func-returns-value]
    try:
        for _ in range(10):
            world.rest(1_000)
    finally:
        Mark.leased = original  # type: ignore[method-assign]
    assert len(asked) < 100
    assert stream.tombstones == 1


def test_the_lowest_mark_is_known_without_looking_at_all_of_them() -> None:
    world = StreamWorld()
    stream = world.declare()
    sequences = [world.put((b"k%d" % number, b"v")).last_seq for number in range(5)]
    assert stream.marks.lowest() is None
    for number in range(5):
        world.session.register("s", f"c{number}")
        world.session.move("s", f"c{number}", None, sequences[number])
    assert stream.marks.lowest() == sequences[0]
    world.session.move("s", "c0", None, sequences[4])
    assert stream.marks.lowest() == sequences[1]
    world.session.unregister("s", "c1")
    assert stream.marks.lowest() == sequences[2]
    world.session.reset_mark("s", "c4", sequences[0])
    assert stream.marks.lowest() == sequences[0]
    world.turn()
    assert world.crash().stream().marks.lowest() == sequences[0]


def test_a_position_may_be_given_in_the_history_that_it_was_read_in() -> None:
    world = StreamWorld()
    world.declare()
    seen = Position(world.streams.history, world.put((b"a", b"1")).last_seq)
    after = world.crash()
    after.session.move("s", "c", seen.history, seen.seq)
    after.put((b"b", b"1"))
    assert read_to(after, "c") == [(b"b", b"1")]


def test_the_mark_of_a_passing_consumer_goes_with_its_lease() -> None:
    """Names that are made up for one run must not pile up."""
    world = StreamWorld()
    stream = world.declare()
    receipt = world.put((b"a", b"1"))
    world.session.register("s", "stays", lease_ms=10_000)
    world.session.register("s", "passes", lease_ms=10_000, passing=True)
    world.turn()
    world.rest(8_000)
    world.session.move("s", "passes", None, receipt.last_seq)
    world.turn()
    world.rest(8_000)
    assert set(stream.marks.by_name) == {"stays", "passes"}, "each move lets its lease begin again"
    assert stream.marks.registered == 1
    after = world.crash()
    world.rest(4_000)
    after.rest(GRACE_MS + 1_000)
    assert set(after.stream().marks.by_name) == {"stays"}, "a start remembers that it is passing"

    for again in (world, world.crash()):
        assert set(again.stream().marks.by_name) == {"stays"}
        assert again.stream().marks.registered == 0
    assert len(world.streams.leases) == 0
    world.session.register("s", "passes")
    assert not world.stream().marks.by_name["passes"].passing
