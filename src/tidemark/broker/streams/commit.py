"""One batch, all or nothing: rows of several streams, messages to queues, marks, and that a producer sent it.

A commit first finds out all that could be in its way: who may write, whether the columns hold together, whether
each key is at the sequence that its row expects, where messages go and whether a queue would refuse them. Then the
journal is asked for room for everything in one frame. Only then is something changed, and nothing of that can fail.
One frame is durable whole or not at all, and snapshots are taken at the ends of frames: readers see all of it or
nothing.

A row may expect its key at a sequence (or not to be there). That is compared with the newest state, shown or not,
and with what earlier rows of the same batch make of the key.

Invariant: an error of `commit` means that nothing has changed.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

from tidemark.broker.placing import raw, run_of_one
from tidemark.broker.publishing import Planned, Publishing, record_bytes_max
from tidemark.broker.streams.core import put_rows, rows_bytes
from tidemark.broker.streams.marks import Move as PlannedMove
from tidemark.broker.streams.marks import mark_bytes_max
from tidemark.broker.streams.positions import Position
from tidemark.broker.streams.stream import Stream
from tidemark.errors import Conflict, ContentTooLarge, NotFound, PreconditionFailed
from tidemark.model.rows import ANY, RowBatch
from tidemark.model.runs import BODY, PERSISTENT, PublishRun

if TYPE_CHECKING:
    from tidemark.broker.broker import Broker


@dataclass(frozen=True, slots=True)
class Put:
    stream: str
    rows: RowBatch


@dataclass(frozen=True, slots=True)
class Publish:
    """A message to an exchange, persistent. One that no queue wants is refused unless `mandatory` is off."""

    exchange: str
    key: str
    properties: bytes
    body: bytes
    mandatory: bool = True


@dataclass(frozen=True, slots=True)
class Move:
    """The mark of a consumer moves with the batch."""

    stream: str
    consumer: str
    seq: int
    shard: int | None = None
    history: bytes | None = None
    """None: the present one."""
    snapshot_end: int = 0
    of: int | None = None
    """`shard` is one of so many: what the stream had when the reading began. None: what it has now."""


Operation = Put | Publish | Move


@dataclass(frozen=True, slots=True)
class Batch:
    operations: Sequence[Operation]
    producer: str | None = None
    sequence: int | None = None
    """The producer's own number of this batch, higher than that of the one before."""


@dataclass(frozen=True, slots=True)
class Committed:
    history: bytes
    first_seq: int
    last_seq: int
    """The rows of the batch; both 0 when it had none."""
    duplicate: bool
    """It had been stored before. The numbers are those of the producer's last batch."""
    safe_at: int
    """What must be durable before anybody is told."""


class Commit:
    """One batch on its way. `streams` are those that it names, checked by the session."""

    def __init__(
        self, broker: Broker, vhost: str, batch: Batch, streams: dict[str, Stream], publishing: Publishing
    ) -> None:
        self._broker = broker
        self._vhost = vhost
        self._batch = batch
        self._streams = streams
        self._publishing = publishing
        self._published: dict[int, tuple[PublishRun, Planned]] = {}
        """Messages by the index of their operation."""
        self._moves: dict[tuple[Stream, str], PlannedMove] = {}

    def commit(self, now_ms: int) -> Committed:
        """Do all of it.

        Raises:
            Conflict: a key is not where its row expects it.
            LostBranch, StreamReset: a mark is to go where it cannot.
            ContentTooLarge: more than `broker.batch_bytes_max`.
            NotFound, AccessRefused, PreconditionFailed: an operation that cannot be done.
            StoreError: the journal takes nothing now.
        """
        streams, batch = self._broker.streams, self._batch
        if (batch.producer is None) != (batch.sequence is None):
            raise PreconditionFailed(reason="a producer numbers its batches: give both, or neither")
        if batch.producer is not None and batch.sequence is not None:
            safe_at = streams.producers.duplicate(self._vhost, batch.producer, batch.sequence)
            if safe_at is not None:
                known = streams.producers.known(self._vhost, batch.producer)
                assert known is not None
                return Committed(known.history, known.first_seq, known.last_seq, True, safe_at)
        need = self._plan()
        if need > self._broker.config.batch_bytes_max:
            raise ContentTooLarge(
                reason=f"the batch takes {need} bytes of the journal; broker.batch_bytes_max is "
                f"{self._broker.config.batch_bytes_max}. Send it in parts"
            )
        streams.journal.ensure(need)
        return self._do(now_ms)

    # Plan: nothing changes -------------------------------------------------------------------

    def _plan(self) -> int:
        """How many bytes of the journal all of it takes at most."""
        producers, batch = self._broker.streams.producers, self._batch
        need = 0
        touched: dict[Stream, dict[bytes, bool]] = {
            self._streams[each.stream]: {}
            for each in batch.operations
            if isinstance(each, Put) and each.rows.expected is not None
        }
        for index, operation in enumerate(batch.operations):
            match operation:
                case Put():
                    need += self._plan_put(operation, touched)
                case Publish():
                    need += self._plan_publish(index, operation)
                case Move():
                    self._plan_move(operation)
        self._check_room_in_queues()
        for (_, consumer), move in self._moves.items():
            need += mark_bytes_max(consumer, len(move.points))
        if batch.producer is not None:
            need += producers.bytes_max(self._vhost, batch.producer)
        return need

    def _plan_put(self, put: Put, touched: dict[Stream, dict[bytes, bool]]) -> int:
        stream = self._streams[put.stream]
        try:
            put.rows.check()
        except ValueError as problem:
            raise PreconditionFailed(
                reason=f"rows for stream '{stream.name}' that cannot be: {problem}"
            ) from None
        if stream in touched:
            _check_expected(stream, put.rows, touched[stream])
        return rows_bytes(put.rows, b"")

    def _plan_publish(self, index: int, message: Publish) -> int:
        flags, priority, ttl_ms = self._broker.content.describe(message.properties)
        run = run_of_one(
            raw(message.exchange),
            raw(message.key),
            message.properties,
            message.body,
            flags=flags | PERSISTENT,
            priority=priority,
            ttl_ms=ttl_ms,
        )
        planned = self._publishing.plan(run, 0)
        if not planned.queues and message.mandatory:
            raise NotFound(
                reason=f"no queue gets messages of exchange '{message.exchange}' in vhost '{self._vhost}' with "
                f"the key '{message.key}'; nothing of the batch was stored"
            )
        self._published[index] = run, planned
        return record_bytes_max(run, 0, planned) + self._publishing.producer_bytes_max(planned)

    def _check_room_in_queues(self) -> None:
        coming: dict[object, tuple[int, int]] = {}
        for run, planned in self._published.values():
            size = run.number(0, BODY + 1)
            for queue in planned.queues:
                if queue.guarded:
                    count, before = coming.get(queue, (0, 0))
                    coming[queue] = count + 1, before + size
                    if queue.refuses(before + size, count + 1):
                        raise PreconditionFailed(
                            reason=f"queue '{queue.name}' in vhost '{queue.spec.vhost}' is full: "
                            "nothing of the batch was stored"
                        )

    def _plan_move(self, move: Move) -> None:
        stream = self._streams[move.stream]
        history = self._broker.streams.history if move.history is None else move.history
        key = stream, move.consumer
        position = Position(history, move.seq, move.snapshot_end)
        self._moves[key] = stream.marks.planned(
            move.consumer, position, move.shard, self._moves.get(key), move.of
        )

    # Do: nothing fails -----------------------------------------------------------------------

    def _do(self, now_ms: int) -> Committed:
        streams, batch, journal = self._broker.streams, self._batch, self._broker.journal
        first = last = 0
        for index, operation in enumerate(batch.operations):
            if isinstance(operation, Put) and operation.rows.count:
                at, last = put_rows(self._streams[operation.stream], journal, operation.rows, now_ms, b"")
                first = first or at
            elif isinstance(operation, Publish):
                result = self._publishing.publish(self._published[index][0], now_ms)
                assert result.error is None and not result.refused
        marks = [stream.marks.made(move, now_ms) for (stream, _), move in self._moves.items()]
        if marks:
            safe_at = streams.state.put_all([mark.encoded() for mark in marks], now_ms)
            for mark in marks:
                mark.safe_at = safe_at
                mark.marks.unwritten.pop(mark, None)
        if batch.producer is not None and batch.sequence is not None:
            streams.producers.note(self._vhost, batch.producer, batch.sequence, first, now_ms, last)
        return Committed(streams.history, first, last, False, journal.last_seq)


def _check_expected(stream: Stream, rows: RowBatch, touched: dict[bytes, bool]) -> None:
    """That every key is where its row expects it. `touched` are keys of earlier rows, and whether they are there now.

    Raises:
        Conflict: one is not.
    """
    for row in rows:
        if row.key is None:
            if row.expected != ANY and row.expected != 0:
                raise Conflict(stream=stream.name, key=b"", expected=row.expected, current=0)
            continue
        if row.expected != ANY:
            if row.key in touched:
                # Its sequence is not given yet, so nobody can expect that.
                seq, is_there = stream.arena.next_seq, touched[row.key]
            else:
                found = stream.current(row.key)
                seq, is_there = (0, False) if found is None else (found[0], not found[2])
            fits = not is_there if row.expected == 0 else row.expected == seq and row.key not in touched
            if not fits:
                raise Conflict(
                    stream=stream.name, key=row.key, expected=row.expected, current=seq if is_there else 0
                )
        touched[row.key] = not row.tombstone
