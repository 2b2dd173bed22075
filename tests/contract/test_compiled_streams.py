"""The compiled stream index, keys and rows give the same answers as their plain references."""

from __future__ import annotations

import array
import random
import struct
from types import SimpleNamespace
from typing import Any

import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from tidemark.broker import _publisher_c, _publisher_py, _queue_c, _queue_py, _restorer_c, _restorer_py
from tidemark.broker.streams import _core_c, _core_py, _rows_c, _rows_py
from tidemark.model import _arena_c, _arena_py, _keys_c, _keys_py, _runs_c, _runs_py, records
from tidemark.model import _rows_c as _batch_c
from tidemark.model import _rows_py as _batch_py
from tidemark.model.keys import HEADER, LOG, MESSAGE_ID, NO_KEY, ROUTING_KEY
from tidemark.model.rows import ANY, Row, RowBatch
from tidemark.wire.amqp091.properties import Properties, encode_properties

TWINS = {
    "reference": SimpleNamespace(
        arena=_arena_py,
        core=_core_py,
        rows=_rows_py,
        runs=_runs_py,
        queue=_queue_py,
        publisher=_publisher_py,
        restorer=_restorer_py,
    ),
    "compiled": SimpleNamespace(
        arena=_arena_c,
        core=_core_c,
        rows=_rows_c,
        runs=_runs_c,
        queue=_queue_c,
        publisher=_publisher_c,
        restorer=_restorer_c,
    ),
}

SECRET = b"0123456789abcdef"
STREAM = 5
EVERY_COLUMN = 127


class World:
    """One stream over one arena, built from one set of twins. Every method answers what can be compared."""

    def __init__(self, kind: str, key_kind: int = ROUTING_KEY) -> None:
        self.twins = TWINS[kind]
        self.key_kind = key_kind
        self.arena = self.twins.arena.Arena()
        self.journal = self.twins.arena.Writer(self.arena, _arena_py.JOURNAL, 4096)
        self.dirty: list[Any] = []
        self.stream = self.make()
        self.now_ms = 1000
        self.snapshots: list[int] = []
        self.by = 0

    def make(self) -> Any:
        return self.twins.core.StreamCore(self.arena, STREAM, self.key_kind, b"x-key", SECRET, self.dirty)

    @property
    def newest(self) -> int:
        return self.arena.next_seq - 1

    def seq(self, part: float) -> int:
        """A sequence somewhere between 0 and the newest."""
        return int(part * (self.newest + 1))

    # Steps ---------------------------------------------------------------------------------

    def rows(self, rows: list[tuple[int, int, int]]) -> Any:
        self.now_ms += 10
        batch = RowBatch.build(
            Row(
                None if kind == 1 else b"key-%d" % key,
                b"" if kind == 2 else b"v" * (size % 700),
                tombstone=kind == 2,
            )
            for key, size, kind in rows
        )
        return self.twins.rows.put_rows(self.stream, self.journal, batch, self.now_ms, b"rk")

    def many(self, keys: int, count: int) -> Any:
        """Enough of them that chunks fill up, are packed and freed."""
        dice = random.Random(count * 7919 + keys)
        return self.rows(
            [(dice.randrange(keys), dice.randrange(5), dice.choice((0, 0, 0, 1, 2))) for _ in range(count)]
        )

    def message(self, key: int, size: int) -> Any:
        """As a publish over AMQP: two targets, no explicit key, an own header."""
        self.now_ms += 10
        properties = encode_properties(
            Properties(
                headers={"x-key": f"key-{key}", "x-tombstone": size % 3 == 0},
                message_id=f"key-{key}",
            )
        )
        body = b"" if size % 3 == 0 else b"w" * size
        seq, loc = self.journal.put(
            (1, STREAM), self.now_ms, None, 0, True, b"", b"key-%d" % key, properties, body
        )
        self.stream.put(seq + 1, loc, len(body), 0, 0, 2)
        flags = bytes(self.arena.record(loc))[5]
        self.stream.put(seq + 1, loc, len(body), 0, 0, 2)  # a second time changes nothing
        return seq, flags

    def conflict(self, key: int, part: float) -> Any:
        expected = random.Random(part).choice(
            [ANY, 0, self.seq(part), (self.stream.current(b"key-%d" % key) or (0,))[0]]
        )
        batch = RowBatch.build([Row(b"other", b""), Row(b"key-%d" % key, b"", expected=expected)])
        return self.twins.rows.conflict(self.stream, batch)

    def hold(self, part: float) -> None:
        seq = max(self.seq(part), self.stream.complete_from)
        self.snapshots.append(seq)
        self.stream.hold(seq)

    def unhold(self, part: float) -> None:
        if self.snapshots:
            self.stream.unhold(self.snapshots.pop(int(part * len(self.snapshots) * 0.999)))

    def release(self, part: float, count_max: int) -> Any:
        return self.stream.release(self.seq(part), count_max)

    def end_below(self, part: float) -> Any:
        self.by = self.arena.next_seq
        self.arena.next_seq += 1
        return self.stream.end_below(self.seq(part), self.by)

    def end_late(self, part: float, by: float) -> Any:
        return self.stream.end_below(self.seq(part), self.seq(max(part, by)) + 1)

    def end_tombstones(self, part: float) -> Any:
        self.by = self.arena.next_seq
        self.arena.next_seq += 1
        return self.stream.end_tombstones(self.seq(part), self.by)

    def take(self, snapshot: float, after: float, until: float, count: int, slots: int) -> Any:
        seen, position = [], self.seq(after)
        while True:
            taken = self.stream.take(
                self.seq(snapshot), position, self.seq(until), count, 2000, slots * 8192, 65536 - slots * 4096
            )
            position = self.stream.position
            seen.append(position)
            if taken is None:
                break
            chosen = self.twins.rows.select_keys(self.stream, taken, b"key-1", b"key-5")
            seen += (
                facts(taken),
                facts(chosen),
                self.stream.digest(taken) if len(taken) < 50 else None,  # slow in plain Python
                columns(self.twins.rows.gather(self.stream, taken, EVERY_COLUMN)),
            )
        return seen, self.stream.tally(
            self.seq(snapshot), self.seq(after), self.seq(until), slots * 8192, 60000
        )

    def cut(self, snapshot: float, after: float, until: float, rows: int, size: int, look: int) -> Any:
        """In steps of `look` entries, over all slots, over a range of them, and over every other one."""
        every_other = bytes((1, 0)) * 32768
        seen = []
        for slots in ((), (8192, 60000), (0, 65536, every_other)):
            position, end, open_piece = self.seq(after), min(self.seq(until), self.seq(snapshot)), (0, 0)
            while position < end:
                pieces, *open_piece = self.stream.cut(
                    self.seq(snapshot), position, end, rows, size, *open_piece, 5, look, *slots
                )
                position = self.stream.position
                seen.append((position, pieces, open_piece))
        return seen

    def find(self, key: int, part: float) -> Any:
        name = b"key-%d" % key
        found = self.stream.find(name, self.seq(part))
        at = None if found is None else self.stream.key_at(found[1])
        return found, at, self.stream.current(name)

    def kept(self, part: float) -> Any:
        return self.stream.kept(self.seq(part))

    def seq_at(self, ms: int) -> Any:
        return self.stream.seq_at(1000 + ms)

    def relocate(self, part: float) -> Any:
        """As compaction does: the record lies elsewhere, byte for byte."""
        seq = self.seq(part)
        if not self.stream.holds(seq):
            return self.stream.relocate(seq, 1 << 32)
        record = bytes(self.arena.record(self.stream.place(seq)))
        loc = self.journal.append(record)
        return self.stream.relocate(seq, loc), self.stream.place(seq)

    def checkpoint(self, tail: float) -> Any:
        """A new process: what was dumped is loaded, then the end of the journal is replayed over it."""
        parts = [bytearray(bytes(part)) for part in self.stream.dump()]
        holds, self.snapshots = self.snapshots, []
        before, self.stream = self.stream, self.make()
        self.stream.load(parts if tail < 0.5 else [bytes(part) for part in parts])
        for seq in holds:
            self.stream.hold(seq)
            self.snapshots.append(seq)
        before.clear()
        return before.entries

    def missing(self, part: float) -> Any:
        extents = [number for number in self.arena.extents() if number != self.journal.number]
        gone = set(extents[: int(part * len(extents) / 4)])
        return self.stream.drop_missing(gone)

    def picture(self) -> Any:
        s = self.stream
        extents = {
            number: (info.live, info.live_bytes)
            for number in self.arena.extents()
            for info in [self.arena.extent(number)]
        }
        return (
            (s.live, s.live_bytes, s.tombstones, s.entries, s.held, s.held_bytes, s.census()),
            (s.first_seq, s.last_seq, s.complete_from, s.loose, s.oldest_tombstone()),
            (s.published, s.buried_seq, s.is_dirty, len(self.dirty)),
            extents,
            sorted(self.arena.emptied),
        )


def facts(taken: Any) -> list[Any]:
    """What was taken, without the ordinals: a twin may leave some out."""
    return [entry[1:] for entry in taken]


def columns(batch: RowBatch) -> Any:
    def plain(value: Any) -> Any:
        return tuple(bytes(part) for part in value) if isinstance(value, tuple) else value and bytes(value)

    names = ("keys", "values", "properties", "flags", "expected", "sequences", "timestamps", "slots")
    return batch.count, [plain(getattr(batch, name)) for name in names]


PART = st.floats(0, 1)
ROW = st.tuples(st.integers(0, 9), st.integers(0, 2000), st.sampled_from([0, 0, 0, 1, 2]))
STEPS = st.lists(
    st.one_of(
        st.tuples(st.just("rows"), st.lists(ROW, min_size=1, max_size=40)),
        st.tuples(st.just("many"), st.sampled_from([1, 3, 500, 4000]), st.sampled_from([100, 1024, 1500])),
        st.tuples(st.just("message"), st.integers(0, 9), st.integers(0, 20)),
        st.tuples(st.just("conflict"), st.integers(0, 9), PART),
        st.tuples(st.just("hold"), PART),
        st.tuples(st.just("unhold"), PART),
        st.tuples(
            st.just("release"), st.sampled_from([0.5, 0.9, 1, 1]), st.sampled_from([3, 1 << 40, 1 << 40])
        ),
        st.tuples(st.just("end_below"), PART),
        st.tuples(st.just("end_late"), PART, PART),
        st.tuples(st.just("end_tombstones"), PART),
        st.tuples(
            st.just("take"), PART, PART, PART, st.sampled_from([1, 7, 1000]), st.sampled_from([0, 0, 1, 3])
        ),
        st.tuples(
            st.just("cut"),
            PART,
            PART,
            PART,
            st.sampled_from([1, 7, 1 << 62]),
            st.sampled_from([1, 500, 1 << 62]),
            st.sampled_from([10, 1000]),
        ),
        st.tuples(st.just("find"), st.integers(0, 9), PART),
        st.tuples(st.just("kept"), PART),
        st.tuples(st.just("seq_at"), st.integers(-5, 500)),
        st.tuples(st.just("relocate"), PART),
        st.tuples(st.just("checkpoint"), PART),
        st.tuples(st.just("missing"), PART),
    ),
    max_size=30,
)


@given(STEPS, st.sampled_from([NO_KEY, LOG, ROUTING_KEY, MESSAGE_ID, HEADER]))
@settings(max_examples=80, deadline=None)
def test_whatever_happens_to_a_stream_both_twins_tell_the_same(steps: list[Any], key_kind: int) -> None:
    reference, compiled = World("reference", key_kind), World("compiled", key_kind)
    for name, *arguments in steps:
        expected = getattr(reference, name)(*arguments)
        assert getattr(compiled, name)(*arguments) == expected, (name, arguments)
        assert compiled.picture() == reference.picture(), (name, arguments)


@given(st.integers(0, 1 << 32), st.sampled_from([50, 1000, 10000]))
@settings(max_examples=5, deadline=None)
def test_long_lives_of_many_keys_are_told_the_same(seed: int, keys: int) -> None:
    """Thousands of keys for some time: tables grow and split, chunks are packed again and again."""
    dice = random.Random(seed)
    reference, compiled = World("reference"), World("compiled")
    for turn in range(20):
        steps = [("many", keys, dice.randrange(200, 2000)), ("release", dice.choice([0.8, 1.0]), 1 << 40)]
        if dice.random() < 0.2:
            steps.append(("hold", 1.0))
        if dice.random() < 0.2:
            steps.append(("unhold", dice.random()))
        if dice.random() < 0.2:
            steps.append((dice.choice(["end_below", "end_tombstones"]), dice.random() * 0.7))
        if dice.random() < 0.15:
            steps.append(("checkpoint", dice.random()))
        if turn % 10 == 9:
            steps.append(("take", 1.0, 0.0, 1.0, 1000, 0))
        for name, *arguments in steps:
            expected = getattr(reference, name)(*arguments)
            assert getattr(compiled, name)(*arguments) == expected, (turn, name, arguments)
        assert compiled.picture() == reference.picture()
    for key in range(0, keys, 1 + keys // 20):
        assert compiled.find(key, 1.0) == reference.find(key, 1.0)


@pytest.mark.parametrize("kind", TWINS)
def test_recovery_replays_the_journal_into_the_same_stream(kind: str) -> None:
    world = World(kind)
    world.many(50, 600)
    world.message(3, 6)
    world.message(4, 5)
    world.stream.release(world.newest)
    expected = world.take(1.0, 0.0, 1.0, 1000, 0)

    fresh = World(kind)
    restorer = world.twins.restorer.Restorer(fresh.arena, {STREAM: fresh.stream})
    for number in world.arena.extents():
        used = world.journal.used if number == world.journal.number else world.arena.extent(number).used
        place = fresh.arena.open_extent(_arena_py.JOURNAL, used)
        fresh.arena.extent_bytes(place, 0, used)[:] = world.arena.extent_bytes(number, 0, used)
        restorer.frame(place, 0, used)
        restorer.frame(place, 0, used)  # what is known already changes nothing
    fresh.arena.next_seq = world.arena.next_seq
    fresh.stream.release(fresh.newest)
    assert fresh.stream.published == 0

    def told(answer: Any) -> Any:
        return [
            part if not isinstance(part, list) else [e[:1] + e[2:] for e in part] for part in answer[0]
        ], answer[1]

    assert told(fresh.take(1.0, 0.0, 1.0, 1000, 0)) == told(expected)


@pytest.mark.parametrize("kind", TWINS)
def test_records_that_a_checkpoint_has_only_tell_their_place(kind: str) -> None:
    world = World(kind)
    queue = world.twins.queue.QueueCore(world.arena, 1, True, 0, [])
    seq, loc = world.journal.put((1, STREAM), 1000, None, 0, True, b"", b"k", b"\0\0", b"body")
    queue.put(seq, loc, 4, 0, _queue_py.NEVER, 2)
    world.stream.put(seq + 1, loc, 4, 0, 0, 2)
    record = bytes(world.arena.record(loc))
    moved = world.journal.append(record)
    end = (moved & 0xFFFFFFFF) + len(record)
    restorer = world.twins.restorer.Restorer(world.arena, {1: queue, STREAM: world.stream})
    restorer.frame(moved >> 32, moved & 0xFFFFFFFF, end, seq)
    assert (world.stream.place(seq + 1), world.stream.entries) == (moved, 1)
    assert (queue.take(10, 1000).entry(0)[2], queue.ready + queue.acquired) == (moved, 1)
    assert restorer.messages == 0


@pytest.mark.parametrize("kind", TWINS)
def test_a_message_for_a_stream_goes_to_the_journal_whatever_it_says(kind: str) -> None:
    world = World(kind)
    twins = world.twins
    memory = twins.arena.Writer(world.arena, _arena_py.MEMORY, 4096)
    queue = twins.queue.QueueCore(world.arena, 1, False, 0, [])
    route = twins.publisher.Route((queue, world.stream), True)
    publisher = twins.publisher.Publisher(world.arena, memory, world.journal, lambda *_: route)
    run = twins.runs.PublishRun(1, b"key\0\0body")
    run.add((0, 0), (0, 3), (3, 2), (5, 4))
    assert publisher.publish(run, 0, 1000) == 1
    assert route.keeps and publisher.last_seq == 2
    assert world.stream.current(b"key") == (2, world.stream.place(2), False)
    assert world.arena.extent(world.stream.place(2) >> 32).kind == _arena_py.JOURNAL


@pytest.mark.parametrize("kind", TWINS)
@given(
    st.lists(st.tuples(st.integers(0, 2), st.integers(0, 300), st.booleans()), max_size=200),
    st.integers(0, 300),
)
@settings(max_examples=30, deadline=None)
def test_a_queue_that_is_loaded_has_what_was_dumped_all_of_it_ready(
    kind: str, messages: list[tuple[int, int, bool]], taken: int
) -> None:
    world = World(kind)
    queue, again = (world.twins.queue.QueueCore(world.arena, 1, True, 2, []) for _ in range(2))
    expected: list[list[Any]] = [[], [], []]
    for priority, size, durable in messages:
        seq, loc = world.journal.put((1,), 1000, None, priority, True, b"", b"", b"\0\0", b"x" * size)
        queue.put(seq, loc, size, priority, 5000 + seq, 2 if durable else 0, 3)
        if durable:
            expected[priority].append((seq, loc, size, 1, 3))
    if taken:
        queue.take(taken, 1 << 40, hidden=True)
    again.load([bytes(part) for part in queue.dump()])
    assert again.ready == sum(map(len, expected)) and again.acquired == again.published == 0
    for priority in (2, 1, 0):
        got = again.take(1000, 1 << 40, hidden=True) if expected[priority] else None
        assert ([] if got is None else facts(got)) == expected[priority]
    again.load([])
    assert again.ready == again.acquired == 0
    again.load([bytes(part) for part in queue.dump()])
    assert again.drop_missing(set(world.arena.extents())) == sum(map(len, expected))
    queue.clear()
    assert all(world.arena.extent(number).live == 0 for number in world.arena.extents())


# Keys ------------------------------------------------------------------------------------------

VALUES = st.one_of(
    st.text(max_size=10),
    st.binary(max_size=10),
    st.booleans(),
    st.integers(-(1 << 63), (1 << 63) - 1),
    st.none(),
    st.floats(allow_nan=False),
    st.just({"a": 1}),
    st.just([1, "b"]),
)


def record_of(properties: bytes, body: bytes = b"", keyed: bytes = b"", flags: int = 0) -> bytes:
    return records.encode_message(
        9, (1, 2), 5, None, 0, True, b"ex", b"routing", properties, body, keyed, flags
    )


@given(
    st.builds(
        Properties,
        content_type=st.none() | st.text(max_size=5),
        headers=st.none() | st.dictionaries(st.sampled_from(["x-key", "x-tombstone", "other"]), VALUES),
        delivery_mode=st.none() | st.just(2),
        correlation_id=st.none() | st.text(max_size=5),
        message_id=st.none() | st.text(max_size=5),
        app_id=st.none() | st.text(max_size=5),
    ),
    st.sampled_from([b"", b"body"]),
    st.sampled_from([0, records.TOMBSTONE, records.KEYED, records.KEYLESS]),
    st.data(),
)
@settings(deadline=None, max_examples=300)
def test_both_twins_find_the_same_key_however_broken_the_properties_are(
    properties: Properties, body: bytes, flags: int, data: Any
) -> None:
    raw = bytearray(encode_properties(properties))
    for _ in range(data.draw(st.integers(0, 2))):
        raw[data.draw(st.integers(0, len(raw) - 1))] = data.draw(st.integers(0, 255))
    cut = data.draw(st.sampled_from([None, None, len(raw) // 2, 1]))
    record = record_of(bytes(raw[:cut]), body, b"keyed" if flags & records.KEYED else b"", flags)
    for kind in (NO_KEY, ROUTING_KEY, MESSAGE_ID, HEADER):
        assert _keys_c.key_of(record, kind, b"x-key") == _keys_py.key_of(record, kind, b"x-key")
    assert _keys_c.says_tombstone(record) == _keys_py.says_tombstone(record)


@given(
    st.binary(max_size=100),
    st.binary(min_size=16, max_size=16),
    st.none() | st.binary(max_size=30),
    st.integers(0, (1 << 64) - 1),
)
@settings(deadline=None)
def test_hashes_and_slots_are_the_same(data: bytes, secret: bytes, key: bytes | None, seq: int) -> None:
    assert _keys_c.sip128(secret, data) == _keys_py.sip128(secret, data)
    assert _keys_c.slot_of(data) == _keys_py.slot_of(data)
    assert _keys_c.slot_of_seq(seq) == _keys_py.slot_of_seq(seq)
    assert _keys_c.row_digest(seq, bool(seq & 1), key, data) == _keys_py.row_digest(
        seq, bool(seq & 1), key, data
    )


# Rows ------------------------------------------------------------------------------------------


def outcome(call: Any, *arguments: Any) -> Any:
    try:
        return call(*arguments)
    except ValueError as error:
        return str(error)


@given(
    st.lists(st.integers(-3, 12) | st.sampled_from([-(1 << 31), (1 << 31) - 1]), max_size=6),
    st.integers(0, 6),
    st.binary(max_size=10),
    st.integers(0, 6),
    st.integers(0, 7),
)
@example([0, 4, 2], 2, b"12345678", 10, 0)
@settings(deadline=None, max_examples=300)
def test_offsets_that_do_not_hold_together_are_refused_alike(
    offsets: list[int], count: int, data: bytes, each_max: int, shift: int
) -> None:
    # Not every buffer begins where numbers like to begin.
    raw = memoryview(bytes(shift) + struct.pack(f"<{len(offsets)}i", *offsets))[shift:]
    for column in ((raw, data), (array.array("i", offsets), bytearray(data))):
        expected = outcome(_batch_py.check_column, "keys", column, count, each_max)
        assert outcome(_batch_c.check_column, "keys", column, count, each_max) == expected
        if len(offsets) != count + 1 or any(o < 0 or o > len(data) for o in offsets):
            assert expected is not None


@given(st.lists(st.tuples(st.sampled_from([0, 1, 2, 3, 9]), st.booleans()), max_size=5), st.booleans())
@settings(deadline=None)
def test_flags_are_judged_alike(rows: list[tuple[int, bool]], keyed: bool) -> None:
    batch = RowBatch.build(Row(b"k" if keyed else None, b"v" if value else b"") for _, value in rows)
    flags = bytes(flag for flag, _ in rows)
    arguments = (flags, batch.keys, batch.values, batch.count)
    assert outcome(_batch_c.check_flags, *arguments) == outcome(_batch_py.check_flags, *arguments)


@given(
    st.lists(
        st.tuples(st.none() | st.binary(max_size=9), st.binary(max_size=30), st.integers(1, 1 << 60)),
        max_size=9,
    )
)
@settings(deadline=None)
def test_the_digest_of_a_batch_is_the_sum_of_its_rows(rows: list[tuple[bytes | None, bytes, int]]) -> None:
    batch = RowBatch.build(Row(key, value, seq=seq) for key, value, seq in rows)
    if not rows:
        batch.sequences = b""
    expected = sum(_keys_py.row_digest(seq, False, key, value) for key, value, seq in rows) % (1 << 128)
    assert _batch_py.rows_digest(batch) == _batch_c.rows_digest(batch) == expected


@pytest.mark.parametrize(
    "sizes", [(100,), (0, 1, 7, 8, 9, 100, 101), (0, 900, 1002, 1003, 1010, 1011, 1024, 5000)]
)
@pytest.mark.parametrize("count", range(1, 14))
def test_the_digest_does_not_depend_on_which_rows_are_hashed_together(
    sizes: tuple[int, ...], count: int
) -> None:
    dice = random.Random(count)
    rows = [
        (
            dice.choice([None, b"", b"key", dice.randbytes(8)]),
            dice.randbytes(dice.choice(sizes)),
            dice.getrandbits(60),
        )
        for _ in range(count)
    ]
    batch = RowBatch.build(Row(key, value, seq=seq) for key, value, seq in rows)
    expected = sum(_keys_py.row_digest(seq, False, key, value) for key, value, seq in rows) % (1 << 128)
    assert _batch_c.rows_digest(batch) == expected


@pytest.mark.parametrize("kind", TWINS)
def test_a_batch_that_does_not_hold_together_puts_nothing(kind: str) -> None:
    world = World(kind)
    good = RowBatch.build([Row(b"k", b"v")])
    broken = [
        RowBatch(1, keys=good.keys),
        RowBatch(2, keys=good.keys, values=good.values),
        RowBatch(1, keys=(struct.pack("<ii", 0, 9), b"k"), values=good.values),
        RowBatch(1, keys=good.keys, values=good.values, flags=b"\1\0"),
        RowBatch(1, keys=good.keys, values=good.values, flags=b"\1"),
        RowBatch(1, values=(struct.pack("<ii", 0, 0), b""), flags=b"\1"),
        RowBatch(1, keys=good.keys, values=good.values, expected=b"1234"),
        RowBatch(-1, values=good.values),
        RowBatch(0, values=(struct.pack("<i", 0), b"")),
        RowBatch.build([Row(b"k" * 65536, b"v")]),
    ]
    for batch in broken:
        with pytest.raises(ValueError, match=r"values|keys|flags|expected|rows"):
            world.twins.rows.put_rows(world.stream, world.journal, batch, 1, b"")
    with pytest.raises(ValueError, match="routing key"):
        world.twins.rows.put_rows(world.stream, world.journal, good, 1, b"r" * 256)
    assert (world.stream.entries, world.newest) == (0, 0)


@pytest.mark.parametrize("kind", TWINS)
def test_what_is_no_checkpoint_is_refused_and_leaves_the_stream_empty(kind: str) -> None:
    world = World(kind)
    world.many(20, 50)
    parts = [bytes(part) for part in world.stream.dump()]
    fresh = World(kind)
    if kind == "compiled":
        for wrong in (parts[:-1], [b"x" * len(parts[0]), *parts[1:]], [*parts[:6], b"", *parts[7:]]):
            with pytest.raises((ValueError, struct.error)):
                fresh.stream.load(wrong)
        with pytest.raises(ValueError, match="extent"):
            fresh.stream.load(parts)  # its records are nowhere in this arena
    assert fresh.stream.entries == fresh.stream.first_seq == 0
    fresh.many(20, 50)
    assert fresh.stream.entries == world.stream.entries
