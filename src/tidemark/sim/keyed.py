"""A stream for the simulated store: keys that are revised and deleted, pins, purged tombstones, and their model.

The real stream index runs beside the queues, over the same journal. As in the broker, what must survive about
the stream (which snapshots are pinned, which tombstones were purged and when) is kept under keys of a second
stream, the state. The model is a list of versions: what a snapshot must show follows from it alone.

A purge is remembered with the sequence at which it happened: what the disk still holds of the purged tombstones
is put into the index again by a restart and must end again at that same point, because a snapshot that was
pinned after it never showed them.

Invariant: the model never asks the store anything.
"""

from __future__ import annotations

import json
from dataclasses import dataclass, field

from tidemark.broker.core import FLAG_DURABLE, NEVER
from tidemark.broker.streams.core import StreamCore
from tidemark.model import records
from tidemark.model.arena import Arena
from tidemark.model.keys import ROUTING_KEY
from tidemark.model.wiring import STATE_NUMBER
from tidemark.store.journal import Journal

STREAM = 4
KEYS = tuple(b"key %d" % number for number in range(60))
SECRET = bytes(range(16))

Row = tuple[int, bytes, bytes | None]
"""Sequence, key, and the body; None for a tombstone."""


@dataclass(slots=True)
class StreamModel:
    """All that was put into the stream, in order."""

    versions: list[Row] = field(default_factory=list)
    pins: list[tuple[int, str, int | None]] = field(default_factory=list)
    """(sequence of the record, name, the pinned snapshot or None when it was released)"""
    purges: list[tuple[int, int]] = field(default_factory=list)
    """(sequence of the record, tombstones up to which sequence)"""

    def visible(self, at: int, upto: int) -> list[Row]:
        """What the snapshot at this sequence shows, if the journal ends at `upto`."""
        newest = {row[1]: row for row in self.versions if row[0] <= min(at, upto)}
        purged = max((last for record, last in self.purges if record <= min(at, upto)), default=0)
        return sorted(row for row in newest.values() if row[2] is not None or row[0] > purged)

    def pinned(self, upto: int) -> dict[str, int]:
        """The pins that the records up to this sequence leave."""
        found = {name: at for record, name, at in self.pins if record <= upto}
        return {name: at for name, at in found.items() if at is not None}

    def cut(self, upto: int) -> None:
        """What came later did not survive."""
        self.versions = [row for row in self.versions if row[0] <= upto]
        self.pins = [pin for pin in self.pins if pin[0] <= upto]
        self.purges = [purge for purge in self.purges if purge[0] <= upto]


class KeyedSide:
    """The stream and its state in one life of the process."""

    def __init__(self, arena: Arena, journal: Journal) -> None:
        self.arena = arena
        self.journal = journal
        dirty: list[object] = []
        self.stream = StreamCore(arena, STREAM, ROUTING_KEY, b"", SECRET, dirty)
        self.state = StreamCore(arena, STATE_NUMBER, ROUTING_KEY, b"", SECRET, dirty)
        self.pins: dict[str, int] = {}
        self.purges: list[tuple[int, int]] = []

    @property
    def targets(self) -> dict[int, StreamCore]:
        return {STREAM: self.stream, STATE_NUMBER: self.state}

    def recovered(self) -> None:
        """The journal was read: do again what the state says."""
        for _, key, body in rows(self.state, self.journal.durable_seq):
            if body is None:
                continue
            value = json.loads(body)
            if key == b"purges":
                self.purges = [(by, upto) for by, upto in value]
                for by, upto in self.purges:
                    self.stream.end_tombstones(upto, by)
            else:
                self.pins[key.decode()] = value
                self.stream.hold(value)

    def release(self) -> None:
        """More is durable than before: what is superseded and not pinned leaves the index."""
        durable = self.journal.durable_seq
        self.stream.release(durable)
        self.state.end_tombstones(durable, durable)
        self.state.release(durable)

    def buried_seq(self) -> int:
        return min(self.stream.buried_seq, self.state.buried_seq)

    def put(self, key: bytes, body: bytes | None, now_ms: int, queue: int | None = None) -> tuple[int, int]:
        """A message for the stream, and if so asked for a queue, too. Returns its first sequence and its place."""
        targets = (STREAM,) if queue is None else (queue, STREAM)
        return self._put(self.stream, targets, key, body, now_ms)

    def pin(self, name: str, at: int | None, now_ms: int) -> int:
        """Hold the snapshot at this sequence, or with None let it go. Returns the sequence of the record."""
        value = None if at is None else b"%d" % at
        seq, _ = self._put(self.state, (STATE_NUMBER,), name.encode(), value, now_ms)
        if at is None:
            self.stream.unhold(self.pins.pop(name))
        else:
            self.stream.hold(at)
            self.pins[name] = at
        return seq

    def purge(self, upto: int, now_ms: int) -> int:
        """The tombstones up to this sequence go. Returns the sequence of the record."""
        purges = [*self.purges, (self.arena.next_seq, upto)]
        value = json.dumps(purges).encode()
        seq, _ = self._put(self.state, (STATE_NUMBER,), b"purges", value, now_ms)
        self.purges = purges
        self.stream.end_tombstones(upto, seq)
        return seq

    def _put(
        self, core: StreamCore, targets: tuple[int, ...], key: bytes, body: bytes | None, now_ms: int
    ) -> tuple[int, int]:
        seq = self.arena.next_seq
        self.arena.next_seq += len(targets)
        flags = records.KEYED | (records.TOMBSTONE if body is None else 0)
        loc = self.journal.append(
            records.encode_message(
                seq, targets, now_ms, None, 0, True, b"", b"", b"", body or b"", key, flags
            )
        )
        core.put(seq + len(targets) - 1, loc, len(body or b""), 0, NEVER, FLAG_DURABLE)
        return seq, loc


def rows(core: StreamCore, at: int) -> list[Row]:
    """What the snapshot at this sequence shows, in order."""
    found: list[Row] = []
    after = 0
    while (taken := core.take(at, after, at, 7, 1 << 40)) is not None:
        for _, seq, loc, *_ in taken:
            message = core.arena.message(loc)
            assert message.keyed is not None
            found.append((seq, message.keyed, None if message.tombstone else message.body))
        after = core.position
    return found
