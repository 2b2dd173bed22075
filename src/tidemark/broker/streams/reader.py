"""A reader: a cursor that goes through a stream from snapshot to snapshot, for ever.

It takes a snapshot, reads it to its end, gives its marker and takes the newest one then. Whatever is written
while it reads is in the next snapshot, each key once and in its newest version. So nothing waits longer than
one snapshot, however hot another key is, and the memory of a reader is one number.

Invariant: `after` never goes back; `boundary` is the end of the last snapshot that was read whole (at first where
the reader began), and all rows up to it have been given.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Literal

from tidemark.broker.streams.positions import AtTime, FromMark, Position
from tidemark.broker.streams.snapshots import Marker, Slots, Snapshot
from tidemark.errors import PreconditionFailed
from tidemark.model.runs import Taken

if TYPE_CHECKING:
    from tidemark.broker.streams.stream import Stream


Offset = Literal["first", "last", "next"] | int | AtTime | Position | FromMark
"""Where to begin: a word, the first sequence that is wanted, a moment, behind a position, or at a consumer's mark."""


class Reader:
    """Without `markers` its markers are only boundaries: nothing was counted or hashed."""

    def __init__(
        self,
        stream: Stream,
        after: int,
        *,
        shards: Sequence[int] | int | None = None,
        markers: bool = False,
    ) -> None:
        self.stream = stream
        self.after = after
        self.boundary = after
        self.markers = markers
        self.shards = stream.policy.shards
        """How many shards it counts by, also when the stream has grown since."""
        self._slots = Slots.of(shards, self.shards, stream.name)
        self._snapshot: Snapshot | None = None

    @property
    def snapshot_end(self) -> int:
        """The end of the snapshot that is being read; between two, of the last one."""
        return self._snapshot.seq if self._snapshot is not None else self.boundary

    @property
    def history(self) -> bytes:
        return self.stream.broker.streams.history

    def next(self, count: int, bytes_max: int) -> Taken | Marker | None:
        """The next rows, or the marker behind the last of a snapshot. None: nothing more is shown.

        Raises:
            PinExpired: the snapshot was closed by us (it kept too much, or was not read for too long). The
                reader goes on with the newest one when it is asked again; what it gave since `boundary` was
                not whole.
            StreamReset: deletes that this reader was not told of are forgotten.
        """
        snapshot = self._snapshot
        if snapshot is None:
            newest = self.stream.caught_up()
            if newest <= self.after:
                return None
            self.stream.check_deletes(self.after)
            snapshot = self._snapshot = Snapshot(self.stream, newest, self.after)
        if snapshot.closed and not self.stream.deleted:
            self._snapshot = None
        taken = snapshot.take(count, bytes_max, after=self.after, slots=self._slots)
        if taken is None:
            return self._end(snapshot)
        self.after = snapshot.position
        if self.markers:
            snapshot.feed(taken)
        return taken

    def ended(self) -> Marker | None:
        """The marker that `next` would give now, if the snapshot has no more rows. It counts as given."""
        snapshot = self._snapshot
        if snapshot is None or snapshot.closed:
            return None
        if snapshot.take(1, 1, after=self.after, slots=self._slots) is not None:
            return None
        return self._end(snapshot)

    def _end(self, snapshot: Snapshot) -> Marker:
        self.after = self.boundary = snapshot.seq
        self._snapshot = None
        snapshot.close()
        return snapshot.marker(digest=self.markers)

    def close(self) -> None:
        if self._snapshot is not None:
            self._snapshot.close()
            self._snapshot = None


# Where a reader begins ------------------------------------------------------------------------------


def open_reader(
    stream: Stream, offset: Offset, *, shards: Sequence[int] | int | None = None, markers: bool = False
) -> Reader:
    """A reader that begins there. No permissions are asked here.

    Raises:
        LostBranch, StreamReset: the position or mark is no place to go on from.
        NotFound: there is no such mark.
        PreconditionFailed: a shard or an offset that cannot be.
    """
    return Reader(stream, start_of(stream, offset, shards), shards=shards, markers=markers)


def start_of(stream: Stream, offset: Offset, shards: Sequence[int] | int | None = None) -> int:
    """The sequence behind which a reader with this offset begins."""
    boundary = stream.caught_up()
    match offset:
        case "first":
            return 0
        case "next":
            return boundary
        case "last":
            return max(0, stream.last_shown - 1)
        case AtTime(ms):
            return min(stream.seq_at(ms - 1), boundary)
        case FromMark(consumer):
            return _resumed(stream, consumer, shards)
        case Position():
            return checked_after(stream, offset)
        case int():
            return checked_after(stream, max(0, offset - 1))
    raise PreconditionFailed(reason=f"{offset!r} is no place in a stream")


def _resumed(stream: Stream, consumer: str, shards: Sequence[int] | int | None) -> int:
    mark = stream.marks.get(consumer)
    if shards is None:
        return checked_after(stream, mark.position())
    chosen = [shards] if isinstance(shards, int) else list(shards)
    count = stream.policy.shards
    return min(checked_after(stream, mark.position(shard, count)) for shard in chosen)


def checked_after(stream: Stream, after: int | Position) -> int:
    """Where to go on from, when nothing that came behind it was forgotten.

    Raises:
        LostBranch, StreamReset
    """
    if isinstance(after, Position):
        after = stream.check_position(after)
    stream.check_deletes(after)
    return after
