"""The index of a stream against a plain list of everything that was ever put: snapshots, ends, releases."""

from __future__ import annotations

from dataclasses import dataclass

import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, precondition, rule

from tidemark.broker.streams.core import ROW_TOMBSTONE, StreamCore, conflict, gather, put_rows
from tidemark.model.arena import JOURNAL, Arena, Writer
from tidemark.model.keys import NO_KEY, ROUTING_KEY, row_digest, slot_of, slot_of_seq
from tidemark.model.rows import Row, RowBatch

SECRET = b"0123456789abcdef"
KEY, VALUE, PROPERTIES, SEQUENCE, TIMESTAMP, FLAGS, SLOT = (1 << i for i in (0, 1, 2, 3, 4, 5, 6))
FOR_EVER = 1 << 64


@dataclass
class Version:
    """A row as the model remembers it, for ever."""

    seq: int
    key: bytes | None
    value: bytes
    tombstone: bool
    ms: int
    sup: int = FOR_EVER

    def seen_by(self, snapshot: int) -> bool:
        return self.seq <= snapshot < self.sup

    @property
    def slot(self) -> int:
        return slot_of_seq(self.seq) if self.key is None else slot_of(self.key)


class StreamAgainstList(RuleBasedStateMachine):
    """A stream does what a list of versions does, and forgets only what nobody can ask for any more."""

    def __init__(self) -> None:
        super().__init__()
        self.arena = Arena()
        self.writer = Writer(self.arena, JOURNAL, 2048)
        self.stream = self._make()
        self.versions: list[Version] = []
        self.held: list[int] = []
        self.released = 0
        self.now_ms = 0

    def _make(self) -> StreamCore:
        return StreamCore(self.arena, 7, ROUTING_KEY, b"", SECRET, [])

    @property
    def newest(self) -> int:
        return self.arena.next_seq - 1

    def _somewhere(self, part: float) -> int:
        return int(part * (self.newest + 1))

    def _current(self, key: bytes) -> Version | None:
        return next((v for v in self.versions if v.key == key and v.sup == FOR_EVER), None)

    @rule(
        rows=st.lists(
            st.tuples(
                st.none() | st.sampled_from([b"", b"a", b"b", b"c" * 300]),
                st.binary(max_size=20),
                st.booleans(),
            ),
            min_size=1,
            max_size=12,
        )
    )
    def put(self, rows: list[tuple[bytes | None, bytes, bool]]) -> None:
        self.now_ms += 5
        batch = [
            Row(key, b"" if delete and key is not None else value, tombstone=delete and key is not None)
            for key, value, delete in rows
        ]
        first, last = put_rows(self.stream, self.writer, RowBatch.build(batch), self.now_ms, b"name")
        assert last - first + 1 == len(rows)
        for seq, row in enumerate(batch, first):
            before = None if row.key is None else self._current(row.key)
            if before is not None:
                before.sup = seq
            self.versions.append(Version(seq, row.key, row.value, row.tombstone, self.now_ms))

    @rule(part=st.floats(0, 1))
    def hold(self, part: float) -> None:
        seq = max(self._somewhere(part), self.stream.complete_from)
        self.held.append(seq)
        self.stream.hold(seq)

    @precondition(lambda self: self.held)
    @rule(part=st.floats(0, 0.99))
    def unhold(self, part: float) -> None:
        self.stream.unhold(self.held.pop(int(part * len(self.held))))

    @rule(part=st.floats(0, 1))
    def release(self, part: float) -> None:
        upto = self._somewhere(part)
        self.stream.release(upto)
        self.released = max(self.released, upto)

    @rule(part=st.floats(0, 1), tombstones=st.booleans())
    def end(self, part: float, tombstones: bool) -> None:
        seq, by = self._somewhere(part), self.arena.next_seq
        self.arena.next_seq += 1
        if tombstones:
            ending = [v for v in self.versions if v.sup == FOR_EVER and v.tombstone and v.seq <= seq]
            assert self.stream.end_tombstones(seq, by) == len(ending)
        else:
            ending = [v for v in self.versions if v.sup == FOR_EVER and v.seq < seq]
            assert self.stream.end_below(seq, by) == len(ending)
        for version in ending:
            version.sup = by

    @rule(part=st.floats(0, 1))
    def move(self, part: float) -> None:
        for version in self.versions[int(part * len(self.versions)) :][:5]:
            if self.stream.holds(version.seq):
                record = bytes(self.arena.record(self.stream.place(version.seq)))
                assert self.stream.relocate(version.seq, self.writer.append(record))

    @rule(in_place=st.booleans())
    def restart(self, in_place: bool) -> None:
        parts = [bytearray(bytes(part)) if in_place else bytes(part) for part in self.stream.dump()]
        before, self.stream = self.stream, self._make()
        self.stream.load(parts)
        for seq in self.held:
            self.stream.hold(seq)
        before.clear()

    @rule(
        at=st.floats(0, 1),
        after=st.floats(0, 1),
        until=st.floats(0, 1),
        count=st.integers(1, 9),
        low=st.integers(0, 40000),
        end=st.integers(20000, 65536),
    )
    def read(self, at: float, after: float, until: float, count: int, low: int, end: int) -> None:
        """Any snapshot that is held or not older than what was removed, in any range."""
        snapshot = max(self._somewhere(at), self.stream.complete_from)
        if self.held and at < 0.5:
            snapshot = self.held[int(at * 2 * 0.99 * len(self.held))]
        start, until_seq = self._somewhere(after), self._somewhere(until)
        wanted = [
            v
            for v in self.versions
            if start < v.seq <= until_seq and v.seen_by(snapshot) and low <= v.slot < end
        ]
        values = [v for v in wanted if not v.tombstone]
        assert self.stream.tally(snapshot, start, until_seq, low, end) == (
            len(values),
            len(wanted) - len(values),
            sum(len(v.value) for v in wanted),
        )
        position = start
        while True:
            taken = self.stream.take(snapshot, position, until_seq, count, 50, low, end)
            position = self.stream.position
            if taken is None:
                break
            assert 0 < len(taken) <= count
            these, wanted = wanted[: len(taken)], wanted[len(taken) :]
            batch = gather(self.stream, taken, KEY | VALUE | PROPERTIES | SEQUENCE | TIMESTAMP | FLAGS | SLOT)
            assert [(r.seq, r.key, r.value, r.tombstone, r.ms) for r in batch] == [
                (v.seq, v.key, v.value, v.tombstone, v.ms) for v in these
            ]
            assert [(row[1], row[3], row[4], row[5]) for row in taken] == [
                (v.seq, len(v.value), ROW_TOMBSTONE if v.tombstone else 0, v.slot) for v in these
            ]
            digest = sum(row_digest(v.seq, v.tombstone, v.key, v.value) for v in these) % (1 << 128)
            assert self.stream.digest(taken) == digest
        assert not wanted and position == max(start, min(until_seq, snapshot))
        for key in (b"", b"a", b"b", b"never"):
            found = self.stream.find(key, snapshot)
            seen = [v for v in self.versions if v.key == key and v.seen_by(snapshot)]
            assert (found and (found[0], found[2])) == ((seen and (seen[0].seq, seen[0].tombstone)) or None)

    @rule(ms=st.integers(-1, 200))
    def ask_for_a_time(self, ms: int) -> None:
        """Exact whenever a snapshot there could be opened."""
        found = self.stream.seq_at(ms)
        expected = max((v.seq for v in self.versions if v.ms <= ms), default=0)
        assert found <= expected
        if found >= self.stream.complete_from and self.stream.complete_from <= expected:
            alive = [v.seq for v in self.versions if v.ms <= ms and self.stream.holds(v.seq)]
            assert found == max(alive, default=0)

    @rule(key=st.sampled_from([b"a", b"b", b"c" * 300]), offset=st.integers(-2, 1))
    def expect(self, key: bytes, offset: int) -> None:
        current = self._current(key)
        seq = 0 if current is None else current.seq
        gone = current is None or current.tombstone
        expected = max(seq + offset, -1)
        batch = RowBatch.build([Row(b"x", b""), Row(key, b"", expected=expected)])
        fits = expected in (-1, seq) or (expected == 0 and gone)
        assert conflict(self.stream, batch) == (-1 if fits else 1)

    @invariant()
    def counts_are_right(self) -> None:
        current = [v for v in self.versions if v.sup == FOR_EVER]
        values = [v for v in current if not v.tombstone]
        held = [v for v in self.versions if v.sup != FOR_EVER and self.stream.holds(v.seq)]
        s = self.stream
        assert (s.live, s.live_bytes) == (len(values), sum(len(v.value) for v in values))
        assert s.tombstones == len(current) - len(values)
        assert (s.held, s.held_bytes) == (len(held), sum(len(v.value) for v in held))
        assert s.entries == s.live + s.tombstones + s.held
        assert all(s.holds(v.seq) for v in current)
        assert sum(self.arena.extent(n).live for n in self.arena.extents()) == s.entries
        oldest = next((v.seq for v in current if v.tombstone), None)
        found = s.oldest_tombstone()
        assert (found and found[0]) == oldest
        for key in (b"", b"a"):
            version, known = self._current(key), s.current(key)
            assert (known and (known[0], known[2])) == (version and (version.seq, version.tombstone))

    @invariant()
    def nothing_that_a_held_snapshot_sees_is_gone(self) -> None:
        for seq in self.held:
            seen = [v for v in self.versions if v.seen_by(seq)]
            assert all(self.stream.holds(v.seq) for v in seen)
            kept = [v for v in seen if v.sup != FOR_EVER]
            assert self.stream.kept(seq) == (len(kept), sum(len(v.value) for v in kept))

    @invariant()
    def what_is_called_buried_is_gone(self) -> None:
        buried = self.stream.buried_seq
        assert not any(v.sup <= buried and self.stream.holds(v.seq) for v in self.versions)

    @invariant()
    def what_could_be_released_is(self) -> None:
        for version in self.versions:
            if version.sup != FOR_EVER and not self.stream.holds(version.seq):
                assert version.sup <= self.stream.complete_from


StreamAgainstList.TestCase.settings = settings(max_examples=60, stateful_step_count=40, deadline=None)
test_a_stream_does_what_a_list_of_versions_does = StreamAgainstList.TestCase


def make(kind: int = ROUTING_KEY) -> tuple[Arena, Writer, StreamCore]:
    arena = Arena()
    return arena, Writer(arena, JOURNAL, 4096), StreamCore(arena, 7, kind, b"", SECRET, [])


def test_a_key_that_is_rewritten_a_million_times_takes_no_room() -> None:
    arena, writer, stream = make()
    batch = RowBatch.build(Row(b"key", b"%d" % i) for i in range(1000))
    rounds = 1000 if type(stream).__module__.endswith("_c") else 5
    for _ in range(rounds):
        _, last = put_rows(stream, writer, batch, 1, b"")
        stream.release(last)
        for number in arena.emptied:
            arena.free_extent(number)
        arena.emptied.clear()
    assert (stream.live, stream.entries, stream.current(b"key")) == (1, 1, (last, stream.place(last), False))
    assert len(arena.extents()) < 5 and stream.memory_bytes < 200_000


def test_a_pin_keeps_each_version_it_sees_once_however_often_keys_are_rewritten() -> None:
    _, writer, stream = make()
    _, last = put_rows(stream, writer, RowBatch.build(Row(b"%d" % i, b"old") for i in range(100)), 1, b"")
    stream.hold(last)
    for _ in range(20):
        _, newest = put_rows(
            stream, writer, RowBatch.build(Row(b"%d" % i, b"new") for i in range(100)), 1, b""
        )
        stream.release(newest)
    assert (stream.live, stream.held, stream.kept(last)) == (100, 100, (100, 300))
    taken = stream.take(last, 0, last, 1000, 1 << 30)
    assert taken is not None and {row.value for row in gather(stream, taken, VALUE)} == {b"old"}
    stream.unhold(last)
    assert stream.held == 0


def test_a_snapshot_of_very_many_entries_is_let_go_in_pieces() -> None:
    _, writer, stream = make()
    if not type(stream).__module__.endswith("_c"):
        pytest.skip("too slow in plain Python")
    many = [Row(b"%d" % i, b"") for i in range(100_000)]
    _, last = put_rows(stream, writer, RowBatch.build(many), 1, b"")
    stream.hold(last)
    _, newest = put_rows(stream, writer, RowBatch.build(many), 1, b"")
    stream.release(newest)
    assert stream.held == 100_000
    stream.unhold(last)
    assert stream.held == stream.loose == 100_000 - 65_536 and stream.buried_seq <= last
    stream.release(newest)
    assert stream.held == stream.loose == 0


def test_messages_without_a_key_are_never_buried_and_explicit_keys_count_without_a_rule() -> None:
    _, writer, stream = make(NO_KEY)
    rows = [
        Row(None, b"1"),
        Row(None, b"2"),
        Row(b"k", b"3"),
        Row(b"k", b"4"),
        Row(b"", b"5"),
        Row(b"", b"6"),
    ]
    put_rows(stream, writer, RowBatch.build(rows), 1, b"name")
    taken = stream.take(100, 0, 100, 100, 1000)
    assert taken is not None
    assert [(r.key, r.value) for r in gather(stream, taken, KEY | VALUE)] == [
        (None, b"1"),
        (None, b"2"),
        (b"k", b"4"),
        (b"", b"6"),
    ]


def test_a_row_that_was_released_since_it_was_taken_is_an_error_not_other_bytes() -> None:
    _, writer, stream = make()
    put_rows(stream, writer, RowBatch.build([Row(b"k", b"1")]), 1, b"")
    taken = stream.take(1, 0, 1, 1, 1)
    assert taken is not None
    put_rows(stream, writer, RowBatch.build([Row(b"k", b"2")]), 1, b"")
    stream.release(2)
    with pytest.raises(KeyError):
        gather(stream, taken, VALUE)


def test_what_nobody_holds_cannot_be_let_go() -> None:
    _, _, stream = make()
    with pytest.raises(KeyError):
        stream.unhold(3)


def test_unique_keys_that_expire_leave_no_slots_behind() -> None:
    """A log of unique ids with retention: slots of what ended are dropped when their tables grow."""
    arena, writer, stream = make()
    if not type(stream).__module__.endswith("_c"):
        pytest.skip("the plain twin has no slots")
    for turn in range(60):
        batch = RowBatch.build(Row(b"%d-%d" % (turn, i), b"") for i in range(2000))
        first, last = put_rows(stream, writer, batch, 1, b"")
        arena.next_seq += 1
        stream.end_below(first, last + 1)
        stream.release(last + 1)
    assert stream.entries == 2000
    assert stream.memory_bytes < 2_000_000
    assert stream.current(b"59-7") is not None and stream.current(b"3-7") is None
