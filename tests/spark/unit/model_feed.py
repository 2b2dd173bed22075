"""A stream as a plain model: what `Feed` promises, in a few lines, without a broker.

A row is (sequence, key, value, deleted). A pin is a copy of the newest row of each key. Time stands still: leases end
when a test says so.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, NamedTuple

from tidemark.client.values import Cut
from tidemark.errors import LostBranch, NotFound, StreamReset
from tidemark_spark.broker import Head, Identity, Move, Pin, Turned
from tidemark_spark.errors import StreamMissing
from tidemark_spark.planning import Slice, shard_of


class Row(NamedTuple):
    sequence: int
    key: str
    value: str
    deleted: bool


class ModelFeed:
    def __init__(self, stream: str = "orders", shards: int = 1) -> None:
        self.stream = stream
        self.url = "tidemark://h/"
        self.shards = shards
        self.number = 1
        self.history = "h1"
        self.sequence = 0
        self.exists = True
        self.rows: dict[str, Row] = {}
        self.held: dict[str, tuple[Pin, tuple[Row, ...]]] = {}
        self.marks: dict[str, tuple[str, int, int | None]] = {}
        self.registered: set[str] = set()
        self.lost_from: int | None = None
        """Positions behind this were taken back."""
        self.floor = 0
        self.purged = 0
        self.tombstone_lease_s = 7 * 86400.0
        self.has_deletes = True
        self.asked: list[str] = []
        """What was called, by name."""

    # What happens to the stream --------------------------------------------------------------------

    def put(self, key: str, value: str) -> int:
        self.sequence += 3  # the node's other streams use numbers too
        self.rows[key] = Row(self.sequence, key, value, False)
        return self.sequence

    def delete(self, key: str) -> int:
        self.sequence += 1
        self.rows[key] = Row(self.sequence, key, "", True)
        return self.sequence

    def state(self) -> dict[str, str]:
        return {row.key: row.value for row in self.rows.values() if not row.deleted}

    def recreate(self) -> None:
        self.number += 1
        self.rows, self.held, self.marks, self.registered = {}, {}, {}, set()

    def expire(self, pin: str) -> None:
        del self.held[pin]

    def truncate(self, upto: int) -> None:
        """Rows up to there end, as by retention."""
        ended = [row for row in self.rows.values() if row.sequence <= upto]
        for row in ended:
            del self.rows[row.key]
        self.floor = max(self.floor, max((row.sequence for row in ended), default=-1) + 1)

    def purge(self) -> None:
        """Everything ends, and nobody is told of deletes before."""
        self.truncate(self.sequence)
        self.sequence += 1
        self.purged = self.sequence

    def restore(self, sequence: int) -> None:
        """The broker starts again in an older state."""
        self.rows = {key: row for key, row in self.rows.items() if row.sequence <= sequence}
        self.history, self.lost_from, self.sequence = self.history + "'", sequence, sequence
        self.held = {name: held for name, held in self.held.items() if held[0].sequence <= sequence}

    def read(self, pin: str, part: Slice) -> list[Row]:
        if pin not in self.held:
            raise NotFound(reason=f"stream {self.stream!r} has no pin {pin!r}")
        snapshot, rows = self.held[pin]
        return [
            row
            for row in rows
            if part.after < row.sequence <= part.until
            and (part.shards is None or shard_of(row.key.encode(), snapshot.shards) in part.shards)
        ]

    # Feed --------------------------------------------------------------------------------------------

    def identify(self) -> Identity:
        self._called("identify")
        return Identity(self.number, self.tombstone_lease_s, self.has_deletes)

    def head(self, after: int | None = None, wait_s: float = 0.0) -> Head:
        self._called("head")
        return Head(self.history, self.sequence, self.shards, self.floor, self.purged, self.number)

    def check(self, history: str, sequence: int) -> None:
        self._called("check")
        if self.lost_from is not None and sequence > self.lost_from and history != self.history:
            raise LostBranch(stream=self.stream, seq=sequence, rewind_to=self.lost_from)
        if 0 < sequence < self.purged:
            raise StreamReset(stream=self.stream, seq=sequence, purged=self.purged)

    def sequence_at(self, ms: int) -> tuple[str, int]:
        return self.history, ms

    def lag(self, after: int) -> int:
        return sum(row.sequence > after for row in self.rows.values())

    def pin(self, name: str, lease_s: float, at: Any = None) -> Pin:
        self._called("pin")
        if name not in self.held:
            pin = Pin(name, self.history, self.sequence, self.shards, self.floor, self.purged)
            self.held[name] = pin, tuple(sorted(self.rows.values()))
        return self.held[name][0]

    def pinned(self, name: str, lease_s: float) -> Pin | None:
        self._called("pinned")
        return self.held[name][0] if name in self.held else None

    def renew(self, name: str, lease_s: float) -> bool:
        self._called("renew")
        return name in self.held

    def release(self, name: str) -> bool:
        self._called("release")
        return self.held.pop(name, None) is not None

    def turn(self, *, pin: str | None, lease_s: float, release: Sequence[str], mark: Move | None) -> Turned:
        self._called("turn")
        absent = [name for name in release if self.held.pop(name, None) is None]
        if mark is not None:
            self.move_mark(*mark)
        made = None if pin is None else self.pin(pin, lease_s)
        return Turned(made, absent, "")

    def pins(self, prefix: str) -> list[str]:
        self._called("pins")
        return [name for name in self.held if name.startswith(prefix)]

    def cut(
        self,
        pin: str,
        part: Slice,
        *,
        rows: int | None = None,
        bytes: int | None = None,
        parts: int | None = None,
        limit: int | None = None,
    ) -> Sequence[Cut]:
        self._called("cut")
        return cut(self.read(pin, part), part, rows=rows, bytes=bytes, parts=parts, limit=limit)

    def register(self, group: str) -> None:
        self._called("register")
        self.registered.add(group)

    def mark(self, group: str) -> tuple[str, int] | None:
        return self.marks[group][:2] if group in self.marks else None

    def forget(self, group: str) -> None:
        self._called("forget")
        self.marks.pop(group, None)
        self.registered.discard(group)

    def move_mark(self, group: str, history: str, sequence: int, end: int | None) -> None:
        if sequence >= self.marks.get(group, ("", 0, None))[1]:
            self.marks[group] = history, sequence, end

    def _called(self, what: str) -> None:
        self.asked.append(what)
        if not self.exists:
            raise StreamMissing(stream=self.stream, url="here")


def cut(
    rows_of: Sequence[Any],
    part: Slice,
    *,
    rows: int | None = None,
    bytes: int | None = None,
    parts: int | None = None,
    limit: int | None = None,
) -> list[Cut]:
    """Rows with `sequence` and `value`, cut as the broker does it."""
    if parts is not None:
        rows = -(-len(rows_of) // parts) or None
    pieces = [Cut(part.until, 0, 0)]
    for row in rows_of:
        _, count, size = pieces[-1]
        full = (rows is not None and count >= rows) or (bytes is not None and size + len(row.value) > bytes)
        if full and count:
            count = size = 0
            pieces.append(Cut(part.until, 0, 0))
        pieces[-1] = Cut(row.sequence, count + 1, size + len(row.value))
    pieces[-1] = pieces[-1]._replace(until=part.until)
    return pieces if limit is None else pieces[:limit]
