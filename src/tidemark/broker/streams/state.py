"""The state stream: what the broker itself must remember about streams, as keyed entries in the same journal.

    stream/<number>                floors and purged tombstones (`retention`)
    mark/<number>/<consumer>       where a consumer is (`marks`)
    pin/<number>/<name>            a snapshot that stays (`pins`)
    producer/<vhost>/<user>/<id>   the last batch of a producer (`producers`)
    fence/<number>/<group>/<queue> the last turn in which messages were moved on from there (`fences`); of any queue

It is an ordinary keyed stream with a reserved number and no name: the newest entry buries the older ones,
compaction and recovery know nothing of it. Bodies are JSON, so that a later version can add to them. A change
that goes with messages is put into the same frame as these, so both survive or neither does.

Bodies are kept in memory beside the index and go into checkpoints: the marks of consumers that moved at different
times lie all over the journal, and a start must not read all of it to find them.

Invariant: what is in memory (marks, pins, …) equals the newest entries here, but for moves of marks that
nobody waits for yet; `_bodies` has the body of every entry that is current, once `items` was read.
"""

from __future__ import annotations

import json
import struct
from collections.abc import Iterable, Iterator, Sequence
from typing import Any

from tidemark.broker.core import FLAG_DURABLE, NEVER
from tidemark.broker.streams.core import KEY, ROW_TOMBSTONE, VALUE, StreamCore, gather
from tidemark.model import keys
from tidemark.model.arena import Arena
from tidemark.model.records import HEAD_BYTES, padded
from tidemark.model.wiring import STATE_NUMBER

Change = tuple[bytes, bytes | None]
"""A key and its new body as it is written; None: it goes. See `change`."""

NO_PROPERTIES = b"\0\0"
TOGETHER_MAX = 10_000
"""How many changes at most are asked into one frame when nothing else goes with them."""
READ_AT_ONCE = 4096

KEPT = struct.Struct("<QII")
"""Before a key and its body in a checkpoint: sequence, and the length of each."""

_ENCODER = json.JSONEncoder(separators=(",", ":"))


def key(*parts: str | int) -> bytes:
    """`key("mark", 7, "billing")`; the last part may hold anything, slashes too."""
    return "/".join(map(str, parts)).encode("utf-8", "surrogateescape")


def change(name: bytes, body: dict[str, Any] | None) -> Change:
    return name, None if body is None else _ENCODER.encode(body).encode("ascii")


def record_bytes(key_bytes: int, body_bytes: int) -> int:
    """What the journal needs for one change."""
    return padded(HEAD_BYTES + 4 + key_bytes + len(NO_PROPERTIES) + body_bytes)


def need(changes: Iterable[Change]) -> int:
    """How many bytes of the journal these changes take."""
    return sum(record_bytes(len(name), len(body or b"")) for name, body in changes)


class State(StreamCore):
    """The state stream of a broker."""

    LAYOUT = b"st1" + StreamCore.LAYOUT

    def __init__(self, arena: Arena, journal: Any, secret: bytes) -> None:
        # Nobody consumes from it: that it changed is told to no one.
        super().__init__(arena, STATE_NUMBER, keys.NO_KEY, b"", secret, [])
        self._journal = journal
        self._bodies: dict[bytes, tuple[int, bytes]] = {}
        """Of each key: its sequence and body."""
        self._read: int | None = None
        """`news` was told up to here."""

    def history(self) -> bytes:
        """The history that what is written now belongs to."""
        known: bytes = self._journal.histories[0][0]
        return known

    # Writing ------------------------------------------------------------------------------

    def put_all(self, changes: Iterable[Change], now_ms: int) -> int:
        """Write the changes into the frame that is open. The caller has asked the journal for room (`need`).

        Returns the sequence of the last.
        """
        journal, seq = self._journal, 0
        for name, body in changes:
            seq, loc = journal.put_keyed(
                self.number, now_ms, name, body is None, b"", NO_PROPERTIES, body or b""
            )
            self.put(seq, loc, len(body or b""), 0, NEVER, FLAG_DURABLE)
            if body is None:
                self._bodies.pop(name, None)
            else:
                self._bodies[name] = seq, body
        return seq

    def write(self, changes: list[Change], now_ms: int) -> int:
        """Write changes that belong together, or (when there are very many) some thousands at a time.

        Returns the sequence of the last, to wait for.

        Raises:
            StoreError: the journal takes nothing now; of up to TOGETHER_MAX changes none was made.
        """
        seq = 0
        for at in range(0, len(changes), TOGETHER_MAX):
            some = changes[at : at + TOGETHER_MAX]
            self._journal.ensure(need(some))
            seq = self.put_all(some, now_ms)
        return seq

    # Reading ------------------------------------------------------------------------------

    def items(self) -> Iterator[tuple[bytes, int, dict[str, Any]]]:
        """(key, sequence, body) of everything that is there, when the journal was read.

        Raises:
            CorruptRecord: one of them is damaged on the disk.
        """
        for _ in self.news(self.arena.next_seq - 1):
            pass
        for name, (seq, body) in self._bodies.items():
            yield name, seq, json.loads(body)

    def news(self, upto: int) -> Iterator[tuple[bytes, int, bytes | None]]:
        """What the journal has up to `upto` and was not told yet: (key, sequence, body), None for what is gone.

        Raises:
            CorruptRecord: one of them is damaged on the disk.
        """
        if self._read is None:
            self._read = self._forget_superseded()
            for name, (seq, body) in self._bodies.items():
                yield name, seq, body
        while (taken := self.take(upto, self._read, upto, READ_AT_ONCE, 1 << 20)) is not None:
            self._read = self.position
            for entry, row in zip(taken, gather(self, taken, KEY | VALUE), strict=True):
                if row.key is None:
                    continue
                name, seq = bytes(row.key), entry[1]
                if entry[4] & ROW_TOMBSTONE:
                    self._bodies.pop(name, None)
                    yield name, seq, None
                else:
                    self._bodies[name] = seq, bytes(row.value)
                    yield name, seq, bytes(row.value)
            self._journal.pager.trim(self._journal.completed_ticket)
        self._read = max(self._read, upto)

    def _forget_superseded(self) -> int:
        """Of the bodies that came from a checkpoint, keep the current ones. Returns up to where it knew all of them."""
        known, self._bodies = self._bodies, {}
        after = 0
        for name, (seq, body) in known.items():
            after = max(after, seq)
            current = self.current(name)
            if current is not None and current[0] == seq:
                self._bodies[name] = seq, body
        return after

    # Checkpoints ------------------------------------------------------------------------------

    def dump(self) -> list[Any]:
        kept: list[bytes] = []
        for name, (seq, body) in self._bodies.items():
            kept += (KEPT.pack(seq, len(name), len(body)), name, body)
        return [b"".join(kept), *super().dump()]

    def load(self, parts: Sequence[Any]) -> None:
        self._bodies.clear()
        super().load(parts[1:])
        kept, at = memoryview(parts[0]) if parts else memoryview(b""), 0
        while len(kept) - at >= KEPT.size:
            seq, key_len, body_len = KEPT.unpack_from(kept, at)
            at += KEPT.size
            name, body = kept[at : at + key_len], kept[at + key_len : at + key_len + body_len]
            self._bodies[bytes(name)] = seq, bytes(body)
            at += key_len + body_len

    # Housekeeping -----------------------------------------------------------------------------

    def tidy(self, shown_seq: int) -> None:
        """What was superseded or deleted and is durably so leaves the index; nobody reads the past of this stream."""
        if self.tombstones:
            self.end_tombstones(shown_seq - 1, shown_seq)
        if self.held:
            self.release(shown_seq)
