"""What one connection does with streams, with all checks: the way in of the stream protocol and of tools.

Permissions are those of queues: write to put, read for snapshots, marks and pins, configure to declare and delete.
A stream is named like a queue of the session's virtual host.

Methods that change something answer with the sequence of the journal (or, for `declare` and `delete`, of the
catalog) that must be durable before the client may be told.

Invariant: nothing has changed when a method raises.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING, Any

from tidemark.broker.access import Permission
from tidemark.broker.arguments import check_equivalent, is_stream
from tidemark.broker.exchanges import PartitionExchange
from tidemark.broker.groups import stands_in
from tidemark.broker.publishing import Publishing
from tidemark.broker.streams.commit import Batch, Commit, Committed, Copy, Move, Put, known_batch
from tidemark.broker.streams.copies import Copier
from tidemark.broker.streams.core import FLAGS, KEY, PROPERTIES, SEQUENCE, TIMESTAMP, VALUE, gather
from tidemark.broker.streams.marks import Mark
from tidemark.broker.streams.pins import PinStatistics
from tidemark.broker.streams.policy import check_stream_arguments
from tidemark.broker.streams.positions import Position
from tidemark.broker.streams.producers import scoped
from tidemark.broker.streams.reader import Offset, Reader, checked_after, open_reader
from tidemark.broker.streams.snapshots import Snapshot
from tidemark.broker.streams.stream import Stream, StreamStatistics
from tidemark.broker.streams.truncation import Truncation
from tidemark.errors import (
    HistoryGone,
    NotAStream,
    NotFound,
    PreconditionFailed,
    StreamElsewhere,
    TidemarkError,
)
from tidemark.model.rows import Row
from tidemark.model.runs import Taken

if TYPE_CHECKING:
    from tidemark.broker.queue import Queue
    from tidemark.broker.session import Session

ROWS_MAX = 1 << 30
At = int | Position | str | None
"""A snapshot of when: now (None), at a sequence or position, or "time:<ms since 1970>"."""


class StreamSession:
    def __init__(self, session: Session, *, by_front: bool = False) -> None:
        """`by_front`: it came through a front, so it reaches streams of other groups, too."""
        self.session = session
        self.by_front = by_front
        self.broker = session.broker
        self.streams = session.broker.streams
        self._publishing: Publishing | None = None

    # Streams -------------------------------------------------------------------------------------

    def stream(self, name: str, permission: Permission | None) -> Stream:
        """The stream, if this user may do that with it.

        Raises:
            AccessRefused, NotFound, NotAStream
        """
        try:
            found: Any = self.session.queue(name, permission)
        except NotFound:
            raise NotFound(
                reason=f"no stream '{name}' in vhost '{self.session.vhost.name}'; declare it first (the client: "
                "stream(..., create=True))"
            ) from None
        if not found.keeps:
            raise self._no_stream(found)
        stream: Stream = found
        return stream

    def _no_stream(self, queue: Any) -> TidemarkError:
        """Why this queue is not read or written here as a stream."""
        if stands_in(queue):
            return StreamElsewhere(stream=queue.name, group=queue.spec.group, number=queue.spec.life)
        return NotAStream(stream=queue.name)

    def declare(self, name: str, arguments: Mapping[str, Any] | None = None) -> int:
        """Make the stream, or see that it is there as described; with more shards than it has it grows.

        Of a stream that is there, arguments that are left out are not compared.

        Raises:
            AccessRefused, PreconditionFailed
        """
        arguments = {"x-queue-type": "stream", **(arguments or {})}
        found = self.check_declare(name, arguments)
        if found is None:
            # A client does not say which life it means, but none that is over.
            life = self.broker.gone.next(self.session.vhost.name, name)
            made = self.session.declare_queue(name, durable=True, arguments=arguments, incarnation=life)
            return made.safe_at
        if not found.keeps:
            return self.broker.catalog.last_seq
        return self.streams.grow(found, arguments.get("x-stream-shards", found.policy.shards))

    def check_declare(self, name: str, arguments: Mapping[str, Any]) -> Any:
        """That the stream could be declared so; the stream, or stand-in, that is there already.

        Raises:
            AccessRefused, NotAStream, PreconditionFailed
        """
        session = self.session
        arguments = {"x-queue-type": "stream", **arguments}
        if not is_stream(arguments):
            raise NotAStream(stream=name)
        session.check_queue_name(name)
        found: Any = session.vhost.queues.get(name)
        if found is None and isinstance(session.vhost.exchanges.get(name), PartitionExchange):
            raise PreconditionFailed(
                reason=f"'{name}' in vhost '{session.vhost.name}' is a partitioned stream; name this one otherwise"
            )
        if found is None:
            check_stream_arguments(name, session.vhost.name, arguments, True, False, False)
            return None
        session.queue(name)
        if not found.keeps and not stands_in(found):
            raise NotAStream(stream=name)
        if arguments.get("x-group") == (found.spec.group or self.broker.group):
            del arguments["x-group"]  # it lives there, whether it has asked for that or not
        check_equivalent(name, found.spec.vhost, found.spec.arguments, {**found.spec.arguments, **arguments})
        return found

    def elsewhere(self, name: str) -> str:
        """The group that a stream lives in, if that is another one than ours; else empty. Raises NotFound."""
        found = self.session.queue(name)
        return found.spec.group if stands_in(found) else ""

    def delete(self, name: str, *, stand_in: bool = False, number: int = 0) -> int:
        """Delete the stream with all that is in it, its marks and its pins.

        Of a stream that lives elsewhere only the name is here; with `stand_in` that goes, if its number is still this one (0: whichever).

        Raises:
            PreconditionFailed: it lives elsewhere, and this session cannot have deleted it there; or the number is another.
            AccessRefused, NotFound, NotAStream, StreamElsewhere
        """
        if stand_in and self.elsewhere(name):
            return self._delete_stand_in(self.session.queue(name, "configure"), number)
        return self.broker.delete_queue(self.stream(name, "configure"))  # type: ignore[arg-type]

    def _delete_stand_in(self, queue: Queue, number: int) -> int:
        where, group = (
            f"stream '{queue.name}' in vhost '{queue.spec.vhost}'",
            self.broker.lives_elsewhere(queue),
        )
        if group and not self.by_front:
            raise PreconditionFailed(
                reason=f"{where} lives in group '{group}': delete it through a front; here only its name would go, and its "
                "messages would be there again when it is declared again"
            )
        if number not in (0, queue.spec.life):
            raise PreconditionFailed(
                reason=f"{where} was deleted and made again since it had the number {number}; now it has {queue.spec.life}. "
                "Delete it again if that one is meant, too"
            )
        return self.broker.delete_queue(queue)

    def purge(self, name: str) -> tuple[int, int]:
        """End all that is in the stream. Returns how many messages there were, and the sequence to wait for.

        Raises:
            AccessRefused, NotFound, NotAStream, StoreError
        """
        stream = self.stream(name, "read")
        return stream.purge(), stream.ends.last.by

    def truncation(self, name: str, upto: int | Position | None, *, tell: bool = False) -> Truncation:
        """Ends all up to a sequence, or all that is there, step by step. See `Truncation`.

        Raises:
            LostBranch, StreamReset: that position is not on our branch.
            AccessRefused, NotFound, NotAStream, PreconditionFailed
        """
        stream = self.stream(name, "read")
        return Truncation(
            stream, stream.check_position(upto) if isinstance(upto, Position) else upto, tell=tell
        )

    def names(self) -> list[str]:
        """The streams of the virtual host that this user may read, wherever they live."""
        queues = self.session.vhost.queues.items()
        return [
            name
            for name, queue in queues
            if (queue.keeps or stands_in(queue)) and self.session.may_read(name)
        ]

    def describe(self, name: str) -> StreamStatistics:
        """Raises AccessRefused, NotFound, NotAStream."""
        stream = self.stream(name, "read")
        stream.caught_up()
        return stream.stream()

    # Writing -------------------------------------------------------------------------------------

    def commit(self, batch: Batch) -> Committed:
        """Store all of the batch, or nothing.

        Raises:
            AccessRefused, NotFound, NotAStream: a stream that the user may not write to, or that is none.
            what `Commit.commit` raises
        """
        streams: dict[str, Stream] = {}
        allowed = set()
        for operation in batch.operations:
            if not isinstance(operation, Put | Move):
                continue
            permission: Permission = "write" if isinstance(operation, Put) else "read"
            if (operation.stream, permission) not in allowed:
                streams[operation.stream] = self.stream(operation.stream, permission)
                allowed.add((operation.stream, permission))
        if self._publishing is None:
            self._publishing = self.session.publishing(None)  # type: ignore[arg-type]
        batch, vhost = self._scoped(batch), self.session.vhost.name
        return Commit(self.broker, vhost, batch, streams, self._publishing).commit(self.broker.now_ms)

    def _scoped(self, batch: Batch) -> Batch:
        """The batch with the name of its producer as it is known here."""
        if batch.producer is None:
            return batch
        if not batch.operations:
            raise PreconditionFailed(
                reason="an empty batch has no number; put something, or name no producer"
            )
        return replace(batch, producer=scoped(self.session.user, batch.producer))

    def known(self, batch: Batch) -> Committed | None:
        """What was answered to the batch with this number; None: it is new, or has no number.

        Raises:
            PreconditionFailed: a number or a name that cannot be.
        """
        return known_batch(self.broker, self.session.vhost.name, self._scoped(batch))

    def copier(self, batch: Batch, rows_max: int = ROWS_MAX, taken_max: int = ROWS_MAX) -> Copier:
        """Reads what the batch copies and takes, step by step; then its `batch` can be committed.

        Raises:
            AccessRefused, NotFound, NotAStream: a stream that the user may not read, or not write to.
            what `Copier` raises
        """
        for name in {operation.into for operation in batch.operations if isinstance(operation, Copy)}:
            self.stream(name, "write")
        return Copier(self, batch, rows_max, taken_max)

    def producer_last(self, producer: str) -> int:
        """The number of the last batch of a producer of this user; 0 when it is not known."""
        return self.producer(producer)[0]

    def producer(self, producer: str) -> tuple[int, int]:
        """The same, and the sequence of the journal that must be durable before the client may be told.

        Raises:
            PreconditionFailed: a name that cannot be.
        """
        known = self.streams.producers.known(self.session.vhost.name, scoped(self.session.user, producer))
        return (0, 0) if known is None else (known.last, known.safe_at)

    def forget_producer(self, producer: str) -> int:
        """A producer of this user is done for good. Returns the sequence to wait for.

        Raises:
            PreconditionFailed: a name that cannot be.
            StoreError: the journal takes nothing now.
        """
        name = scoped(self.session.user, producer)
        # Of one that is not there nothing is written; but that it went may not be on the disk yet.
        return (
            self.streams.producers.forget(self.session.vhost.name, name, self.broker.now_ms)
            or self.broker.journal.last_seq
        )

    # Reading -------------------------------------------------------------------------------------

    def get(self, name: str, key: bytes) -> Row | None:
        """The newest version of a key that is shown; None: it has none, or was deleted."""
        stream = self.stream(name, "read")
        found = stream.find(key, stream.caught_up())
        if found is None or found[2]:
            return None
        seq, loc, _ = found
        taken = Taken(0)
        taken.add(0, seq, loc, 0, 0, 0)
        columns = KEY | VALUE | PROPERTIES | SEQUENCE | TIMESTAMP | FLAGS
        return next(iter(gather(stream, taken, columns)))

    def snapshot(self, name: str, *, after: int | Position = 0, at: At = None) -> Snapshot:
        """A frozen view of what came behind `after`, now or in the past.

        Raises:
            HistoryGone: the past that is asked for is not kept.
            LostBranch, StreamReset: `after` is no place to go on from.
            AccessRefused, NotFound, NotAStream, PreconditionFailed
        """
        stream = self.stream(name, "read")
        return Snapshot(stream, self._seq_at(stream, at), checked_after(stream, after))

    def _seq_at(self, stream: Stream, at: At) -> int:
        boundary = stream.caught_up()
        if at is None:
            return boundary
        if isinstance(at, str):
            word, _, ms = at.partition(":")
            if word != "time" or not ms.lstrip("-").isdecimal():
                raise PreconditionFailed(
                    reason=f"{at!r} is no moment; write 'time:<milliseconds since 1970>'"
                )
            return self._seq_at_time(stream, int(ms))
        if isinstance(at, Position):
            at = stream.check_position(at)
        if not 0 <= at <= boundary:
            raise PreconditionFailed(
                reason=f"stream '{stream.name}' is at sequence {boundary}; it cannot be shown at {at}"
            )
        at = stream.whole_at(at)
        if not stream.can_show(at):
            raise HistoryGone(stream=stream.name, seq=at, oldest=stream.oldest_snapshot)
        return at

    def _seq_at_time(self, stream: Stream, ms: int) -> int:
        if ms >= self.broker.now_ms:
            return stream.boundary
        # Of messages that have gone nobody knows the time any more; what had been shown by then is known, roughly.
        at = min(max(stream.seq_at(ms), self.streams.timeline.seq_at(ms)), stream.boundary)
        # What is pinned tells nothing here: there may have been something newer at that time, which has gone.
        if at < stream.oldest_snapshot:
            raise HistoryGone(stream=stream.name, seq=at, oldest=stream.oldest_snapshot)
        return at

    def lagging(self, name: str) -> Snapshot:
        """What is shown now, to be counted (`cuts.Cutter`) from anywhere: whether that can be read is not asked.

        Raises:
            AccessRefused, NotFound, NotAStream
        """
        stream = self.stream(name, "read")
        return Snapshot(stream, stream.caught_up())

    def diff(self, name: str, a: int | Position, b: At = None) -> Snapshot:
        """What changed between two points: rows changed, and tombstones of keys that were deleted.

        Raises:
            StreamReset: deletes in between are no longer known.
            HistoryGone, LostBranch, AccessRefused, NotFound, NotAStream, PreconditionFailed
        """
        return self.snapshot(name, after=a, at=b)

    def reader(
        self,
        name: str,
        offset: Offset,
        *,
        shards: Sequence[int] | int | None = None,
        markers: bool = False,
    ) -> Reader:
        """A cursor that begins at `offset` and goes on for ever.

        Raises:
            LostBranch, StreamReset: the mark is no place to go on from.
            AccessRefused, NotFound, NotAStream, PreconditionFailed
        """
        return open_reader(self.stream(name, "read"), offset, shards=shards, markers=markers)

    # Pins ----------------------------------------------------------------------------------------

    def pin(self, name: str, pin: str, lease_ms: int, *, at: At = None) -> tuple[Snapshot, int]:
        """Hold a snapshot under a name. The same name again renews its lease and gives the same snapshot.

        Raises:
            HistoryGone, AccessRefused, NotFound, NotAStream, PreconditionFailed, StoreError
        """
        stream = self.stream(name, "read")
        held = stream.pins.pin(pin, self._seq_at(stream, at), lease_ms, self.broker.now_ms)
        return Snapshot(stream, held.seq, pin=held), held.safe_at

    def pinned(self, name: str, pin: str) -> Snapshot:
        """Raises PinExpired, AccessRefused, NotFound, NotAStream."""
        stream = self.stream(name, "read")
        held = stream.pins.get(pin)
        return Snapshot(stream, held.seq, pin=held)

    def renew(self, name: str, pin: str, lease_ms: int) -> int:
        """Let the lease of a pin begin again. Raises PinExpired, AccessRefused, NotFound, NotAStream, StoreError."""
        stream = self.stream(name, "read")
        held = stream.pins.get(pin)
        return stream.pins.pin(pin, held.seq, lease_ms, self.broker.now_ms).safe_at

    def release(self, name: str, pin: str) -> int:
        """Let go of a pin; open snapshots of it stay good. Raises PinExpired, AccessRefused, NotFound, NotAStream."""
        return self.stream(name, "read").pins.release(pin, self.broker.now_ms)

    def pins(self, name: str) -> list[PinStatistics]:
        """Raises AccessRefused, NotFound, NotAStream."""
        return self.stream(name, "read").pins.statistics()

    # Marks ---------------------------------------------------------------------------------------

    def register(
        self, name: str, consumer: str, lease_ms: int | None = None, *, passing: bool = False
    ) -> int:
        """Keep deletes for this consumer until it has passed them, or its lease ends without a move.

        Without `lease_ms` it keeps the lease that it has; a new one gets the stream's. With `passing` its mark goes
        with the lease, else it stays.

        Raises:
            AccessRefused, NotFound, NotAStream, PreconditionFailed, StoreError
        """
        marks = self.stream(name, "read").marks
        known = marks.by_name.get(consumer)
        if lease_ms is None and known is not None and known.lease_ms:
            lease_ms = known.lease_ms
        return marks.register(consumer, lease_ms, self.broker.now_ms, passing)

    def unregister(self, name: str, consumer: str) -> int:
        """Forget a consumer and its mark. Raises AccessRefused, NotFound, NotAStream, StoreError."""
        stream = self.stream(name, "read")
        # Of one that is not there nothing is written; but that it went may not be on the disk yet.
        return stream.marks.unregister(consumer, self.broker.now_ms) or self.broker.journal.last_seq

    def move(
        self,
        name: str,
        consumer: str,
        history: bytes | None,
        seq: int,
        *,
        shard: int | None = None,
        of: int | None = None,
        snapshot_end: int | None = None,
        wait: bool = True,
    ) -> int:
        """Move the mark of a consumer on; one that is further already stays. `shard` None: in the whole stream.

        `shard` is one `of` as many as the stream had when the reading began, by default as many as now.
        `history` None is the present one. Without `wait` the move is written some milliseconds later, together
        with others, and the answer is 0.

        Raises:
            LostBranch, StreamReset: that position is not on our branch.
            AccessRefused, NotFound, NotAStream, PreconditionFailed, StoreError
        """
        stream = self.stream(name, "read")
        position = Position(self.streams.history if history is None else history, seq, snapshot_end or 0)
        return stream.marks.move(consumer, position, shard, wait, self.broker.now_ms, of)

    def mark(self, name: str, consumer: str) -> Mark | None:
        """Raises AccessRefused, NotFound, NotAStream."""
        return self.stream(name, "read").marks.by_name.get(consumer)

    def marks(self, name: str) -> list[Mark]:
        """Raises AccessRefused, NotFound, NotAStream."""
        return list(self.stream(name, "read").marks.by_name.values())

    def reset_mark(self, name: str, consumer: str, seq: int = 0) -> int:
        """Put a mark anywhere, back too. Raises AccessRefused, NotFound, NotAStream, PreconditionFailed, StoreError."""
        return self.stream(name, "read").marks.reset(consumer, seq, self.broker.now_ms)
