"""Works that give rows: a scan of a snapshot, and a subscription that goes from snapshot to snapshot.

Each slice is one batch: taken from the index, gathered into columns, encoded, sent as one DATA frame. A feed with
credit rests when it has used it up; the batch that does so may go over it.

Invariant: the marker at the end of a scan, and of each snapshot of a subscription, is about exactly the rows
that were sent since the one before.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from tidemark.broker.streams.core import gather, select_keys
from tidemark.broker.streams.reader import Reader
from tidemark.broker.streams.snapshots import Marker, Snapshot
from tidemark.broker.streams.stream import Stream
from tidemark.errors import NotFound
from tidemark.frontend.stream.batches import FLAGS, Encoder
from tidemark.frontend.stream.work import Link, Work
from tidemark.model.rows import KEYLESS, TOMBSTONE, RowBatch, rows_digest
from tidemark.model.runs import Taken

DIGEST_MASK = (1 << 128) - 1


@dataclass(slots=True)
class Shape:
    """How rows are to leave: encoding, columns and sizes."""

    encoder: Encoder
    columns: int
    rows_max: int
    batch_bytes: int


class Tally:
    """What was sent since the last marker."""

    def __init__(self, hashed: bool) -> None:
        self._hashed = hashed
        self._count = self._tombstones = self._digest = 0

    def add(self, stream: Stream, taken: Taken, batch: RowBatch) -> None:
        flags = bytes(batch.flags or b"")
        tombstones = flags.count(TOMBSTONE) + flags.count(TOMBSTONE | KEYLESS)
        self._count += batch.count - tombstones
        self._tombstones += tombstones
        if self._hashed:
            whole = batch.keys is not None and batch.values is not None and batch.sequences is not None
            # What was just gathered is at hand; the records must be looked up.
            digest = rows_digest(batch) if whole else stream.digest(taken)
            self._digest = (self._digest + digest) & DIGEST_MASK

    def is_empty(self) -> bool:
        return not self._count and not self._tombstones

    def marker(self, history: bytes, after: int, to: int) -> dict[str, Any]:
        """The marker of what was sent, as it stands in a header. It starts again from here."""
        told = {
            "history": history.hex(),
            "from": after,
            "to": to,
            "count": self._count,
            "tombstones": self._tombstones,
            "hash": f"{self._digest:032x}" if self._hashed else None,
        }
        self._count = self._tombstones = self._digest = 0
        return told


class Feed(Work):
    """What both kinds have in common: credit, and sending a batch."""

    def __init__(
        self,
        link: Link,
        request: int,
        stream: Stream,
        shape: Shape,
        credit: int | None,
        hashed: bool,
    ) -> None:
        super().__init__(link, request)
        self.stream = stream
        self.tally = Tally(hashed)
        self._shape = shape
        self._credit = credit
        """Bytes that the peer still takes; None is any number."""

    def grant(self, credit: int) -> None:
        if self._credit is not None:
            starved = self._credit <= 0
            self._credit += credit
            if starved and self._credit > 0:
                self.link.wake(self)

    def run(self, bytes_max: int) -> bool:
        if self.stream.deleted:
            raise NotFound(reason=f"stream '{self.stream.name}' was deleted while it was read")
        if self._credit is not None and self._credit <= 0:
            return False
        return self.step(min(bytes_max, self._shape.batch_bytes))

    def step(self, bytes_max: int) -> bool:
        """One batch or marker. True: there is more."""
        raise NotImplementedError

    def send(self, taken: Taken, position: int, history: bytes | None = None) -> None:
        batch = gather(self.stream, taken, self._shape.columns | FLAGS)
        self.tally.add(self.stream, taken, batch)
        header, payload = self._shape.encoder.encode(batch)
        header["position"] = position
        if history is not None:
            header["history"] = history.hex()
        self.link.data(self.request, header, payload)
        self.link.services.broker.counts.stream.delivered += len(taken)
        if self._credit is not None:
            self._credit -= sum(len(part) for part in payload)


@dataclass(slots=True)
class Range:
    """The part of a snapshot that a scan is about."""

    after: int
    until: int | None = None
    shards: tuple[int, ...] | None = None
    key_from: bytes | None = None
    key_to: bytes | None = None

    @property
    def by_key(self) -> bool:
        return self.key_from is not None or self.key_to is not None


class Scan(Feed):
    """A range of a snapshot, once, then its marker."""

    def __init__(
        self,
        link: Link,
        request: int,
        snapshot: Snapshot,
        shape: Shape,
        part: Range,
        credit: int | None,
        hashed: bool,
        *,
        keep: bool,
        conclude: Callable[[dict[str, Any]], dict[str, Any]],
    ) -> None:
        super().__init__(link, request, snapshot.stream, shape, credit, hashed)
        self.snapshot = snapshot
        self._part = part
        self._after = part.after
        self._keep = keep
        """The snapshot is somebody else's to close."""
        self._conclude = conclude

    def step(self, bytes_max: int) -> bool:
        snapshot, part, shape = self.snapshot, self._part, self._shape
        taken = snapshot.take(
            shape.rows_max, bytes_max, after=self._after, until=part.until, shards=part.shards
        )
        if taken is None:
            ending = shape.encoder.empty() if self.tally.is_empty() else []
            to = snapshot.seq if part.until is None else min(part.until, snapshot.seq)
            marker = self.tally.marker(snapshot.history, part.after, to)
            self.link.answer(self.request, self._conclude(marker), ending)
            return False
        self._after = snapshot.position
        if part.by_key:
            taken = select_keys(self.stream, taken, part.key_from or b"", part.key_to)
        if len(taken):
            self.send(taken, self._after)
        return True

    def close(self) -> None:
        if not self._keep:
            self.snapshot.close()


class Follow(Feed):
    """What comes, from snapshot to snapshot, with the marker of each, until the peer has had enough."""

    def __init__(
        self,
        link: Link,
        request: int,
        reader: Reader,
        shape: Shape,
        credit: int | None,
        hashed: bool,
        *,
        resumes: bool,
    ) -> None:
        super().__init__(link, request, reader.stream, shape, credit, hashed)
        self._reader = reader
        self.stream.watch(self)
        start = {"history": reader.history.hex(), "after": reader.after, "shards": reader.shards}
        link.data(request, start, shape.encoder.empty())
        if resumes and reader.after >= self.stream.boundary:
            # All is there, but who was cut off in front of the last marker does not know.
            marker = self.tally.marker(reader.history, reader.after, reader.after)
            link.data(request, {"marker": marker}, ())

    def stirred(self, stream: Stream) -> None:  # noqa: ARG002
        """There is news, or the end of the stream."""
        self.link.wake(self)

    def step(self, bytes_max: int) -> bool:
        found = self._reader.next(self._shape.rows_max, bytes_max)
        if found is None:
            return False
        if isinstance(found, Marker):
            marker = self.tally.marker(found.history, found.from_, found.to)
            self.link.data(self.request, {"marker": marker}, ())
        else:
            # Somebody else may have begun to lead since the reader came, though its connection is the same.
            self.send(found, self._reader.after, self._reader.history)
        return True

    def close(self) -> None:
        self.stream.unwatch(self)
        self._reader.close()
