"""What the broker asks of the store, and what the store asks of the broker."""

from __future__ import annotations

from typing import Protocol


class Journal(Protocol):
    """Where persistent records go. It is also a `Writer` (`append`, `put`, `put_row`) that the compiled loops fill."""

    durable_seq: int
    """Every record up to this sequence that was put into the journal is on the disk."""
    last_seq: int
    """The highest sequence that was put into the journal."""

    def settled(self, queue: int, reason: int, packed: bytes, ranges: bool, now_ms: int) -> int:
        """Messages of one queue are gone (`QueueCore.drain_gone` packs them). Returns the record's sequence."""

    def counted(self, queue: int, counts: list[tuple[int, int]], now_ms: int) -> int:
        """Delivery counts to remember. Returns the record's sequence."""

    def ensure(self, need: int) -> None:
        """The next `need` bytes of records go into one frame: all of them survive, or none."""

    def flush(self, now_ms: int) -> None:
        """The end of a turn: close the frame and hand it to the disk."""


class CatalogLog(Protocol):
    """The log of the wiring: durable exchanges, queues, bindings, users, policies."""

    durable_seq: int
    last_seq: int

    def append(self, change: bytes, now_ms: int) -> int:
        """Log one change (JSON). Returns its sequence; it is safe when `durable_seq` has reached it."""


class Recovered(Protocol):
    """Takes the records of the journal at start, frame by frame, in the order they were written."""

    def frame(self, extent: int, start: int, end: int, after_seq: int = 0) -> None:
        """Apply the records in these bytes; of those up to `after_seq` only their places, the rest is known."""


class Residents(Protocol):
    """Whom compaction asks which messages are still needed. A target is a queue or a stream."""

    def holds(self, queue: int, seq: int) -> bool: ...

    def buries(self, number: int) -> bool:
        """Whether this is a stream: a newer message with the same key supersedes an older one."""

    def buried_seq(self) -> int:
        """Everything that was superseded at or before this sequence, in whatever stream, has left its index."""

    def relocate(self, queue: int, seq: int, loc: int) -> bool:
        """The record of this entry lies elsewhere now. False if the entry is gone."""

    def queue_name(self, queue: int) -> str | None: ...
