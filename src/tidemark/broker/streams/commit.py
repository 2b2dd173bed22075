"""One batch, all or nothing: rows of several streams, messages to queues and from them, marks, and who sent it.

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

from array import array
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import accumulate
from typing import TYPE_CHECKING

from tidemark.broker.deadletter import settled_bytes
from tidemark.broker.placing import raw, run_of_one, text
from tidemark.broker.publishing import Planned, Publishing, record_bytes_max
from tidemark.broker.streams.core import put_rows, rows_bytes
from tidemark.broker.streams.marks import Move as PlannedMove
from tidemark.broker.streams.marks import mark_bytes_max
from tidemark.broker.streams.positions import Position
from tidemark.broker.streams.stream import Stream
from tidemark.errors import Conflict, ContentTooLarge, NotFound, PreconditionFailed
from tidemark.model.records import Reason
from tidemark.model.rows import ANY, RowBatch
from tidemark.model.runs import BODY, DIRECT_REPLY, FLAGS, KEY, PERSISTENT, PublishRun

if TYPE_CHECKING:
    from tidemark.broker.broker import Broker
    from tidemark.broker.queue import Queue


PLAIN = b"\x10\x00\x02"
"""AMQP properties of a message that says nothing: persistent."""
KEY_BYTES_MAX = 255


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
class PublishMany:
    """The same for many at once. Of the rows, keys are routing keys, values bodies; without properties: none."""

    exchange: str
    rows: RowBatch
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


@dataclass(frozen=True, slots=True)
class Copy:
    """Rows of another stream, by their sequences, as if they were put. `copies.Copier` makes puts of it."""

    stream: str
    ranges: Sequence[tuple[int, int]]
    """First and last sequence of each."""
    into: str
    history: bytes | None = None
    """Of which history these sequences are; None: the present one."""


@dataclass(frozen=True, slots=True)
class Take:
    """Up to `limit` ready messages of a queue go into a stream. `takes.Taker` makes a put and a settle of it."""

    queue: str
    into: str
    limit: int


@dataclass(frozen=True, slots=True)
class Settle:
    """Messages that somebody has acquired are settled with the batch, which empties `places`."""

    queue: Queue
    places: list[tuple[int, int]]
    """(lane, index) of each."""


Operation = Put | Publish | PublishMany | Move | Copy | Take | Settle


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
        self._published: dict[int, tuple[PublishRun, list[Planned]]] = {}
        """Messages by the index of their operation, and where each goes."""
        self._moves: dict[tuple[Stream, str], PlannedMove] = {}
        self._expecting: set[object] = {
            streams[each.stream]
            for each in batch.operations
            if isinstance(each, Put) and each.rows.expected is not None
        }
        """Streams of which the batch expects keys to be somewhere."""

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
        known = known_batch(self._broker, self._vhost, batch)
        if known is not None:
            return known
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
        touched: dict[object, dict[bytes, bool]] = {stream: {} for stream in self._expecting}
        for index, operation in enumerate(batch.operations):
            match operation:
                case Put():
                    need += self._plan_put(operation, touched)
                case Publish():
                    need += self._plan_publish(index, operation)
                case PublishMany():
                    need += self._plan_publishes(index, operation)
                case Move():
                    self._plan_move(operation)
                case Settle():
                    need += self._plan_settle(operation)
                case Copy() | Take():
                    raise AssertionError("what is copied or taken must be read first, by a Copier")
        self._check_room_in_queues()
        for (_, consumer), move in self._moves.items():
            need += mark_bytes_max(consumer, len(move.points))
        if batch.producer is not None:
            need += producers.bytes_max(self._vhost, batch.producer)
        return need

    def _plan_put(self, put: Put, touched: dict[object, dict[bytes, bool]]) -> int:
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
        return self._plan_run(index, run, message.exchange, message.mandatory)

    def _plan_publishes(self, index: int, messages: PublishMany) -> int:
        rows = messages.rows
        try:
            rows.check()
        except ValueError as problem:
            raise PreconditionFailed(
                reason=f"messages for exchange '{messages.exchange}' that cannot be: {problem}"
            ) from None
        return self._plan_run(index, self._run_of(messages), messages.exchange, messages.mandatory)

    def _run_of(self, messages: PublishMany) -> PublishRun:
        """All of the messages as one run over one copy of their bytes."""
        rows, exchange = messages.rows, raw(messages.exchange)
        assert rows.values is not None
        plain = self._broker.content.describe(PLAIN)
        nothing = bytes(4 * (rows.count + 1)), b""
        columns = [rows.keys or nothing, rows.properties or nothing, rows.values]
        parts = [exchange, PLAIN, *(bytes(data) for _, data in columns)]
        starts = list(accumulate(map(len, parts), initial=0))
        run = PublishRun(0, b"".join(parts))
        keys, properties, bodies = (
            [start + offset for offset in array("i", bytes(offsets))]
            for start, (offsets, _) in zip(starts[2:], columns, strict=False)
        )
        for row in range(rows.count):
            told, length = properties[row], properties[row + 1] - properties[row]
            flags, priority, ttl_ms = plain
            if length:
                flags, priority, ttl_ms = self._broker.content.describe(bytes(run.data[told : told + length]))
            else:
                told, length = starts[1], len(PLAIN)
            run.add(
                (0, len(exchange)),
                (keys[row], keys[row + 1] - keys[row]),
                (told, length),
                (bodies[row], bodies[row + 1] - bodies[row]),
                flags | PERSISTENT,
                priority,
                ttl_ms,
            )
        return run

    def _plan_run(self, index: int, run: PublishRun, exchange: str, mandatory: bool) -> int:
        """Where each message of a run goes.

        Raises:
            NotFound: no queue wants one of them.
            PreconditionFailed: it has a property that cannot be.
        """
        need, found = 0, []
        for row in range(len(run)):
            key_size = run.number(row, KEY + 1)
            if key_size > KEY_BYTES_MAX:
                raise PreconditionFailed(
                    reason=f"a routing key has at most {KEY_BYTES_MAX} bytes, this one {key_size}"
                )
            if run.number(row, FLAGS) & DIRECT_REPLY:
                raise PreconditionFailed(
                    reason="a message of a batch cannot be answered directly; name a queue in reply-to"
                )
            planned = self._publishing.plan(run, row)
            for queue in planned.queues:
                if queue in self._expecting:
                    raise PreconditionFailed(
                        reason=f"the batch expects keys of stream '{queue.name}' somewhere and publishes to it through an "
                        "exchange; put these rows into the stream itself"
                    )
            if not planned.queues and mandatory:
                raise NotFound(
                    reason=f"no queue gets messages of exchange '{exchange}' in vhost '{self._vhost}' with "
                    f"the key '{text(run.part(row, KEY))}'; nothing of the batch was stored"
                )
            need += record_bytes_max(run, row, planned) + self._publishing.producer_bytes_max(planned)
            found.append(planned)
        self._published[index] = run, found
        return need

    def _plan_settle(self, settle: Settle) -> int:
        queue = settle.queue
        if queue.deleted:
            raise NotFound(reason=f"queue '{queue.name}' was deleted; nothing of the batch was stored")
        # What an earlier turn found no room for goes first: it must not push ours into another frame.
        queue.flush_all()
        return settled_bytes(len(settle.places)) if queue.durable else 0

    def _check_room_in_queues(self) -> None:
        coming: dict[object, tuple[int, int]] = {}
        messages = (
            (run.number(row, BODY + 1), planned.queues)
            for run, each in self._published.values()
            for row, planned in enumerate(each)
        )
        for size, queues in messages:
            for queue in queues:
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
        self._broker.arena.batch_seq = self._broker.arena.next_seq
        try:
            return self._write(now_ms)
        finally:
            self._broker.arena.batch_seq = 0

    def _write(self, now_ms: int) -> Committed:
        streams, batch, journal = self._broker.streams, self._batch, self._broker.journal
        first = last = 0
        for index, operation in enumerate(batch.operations):
            if isinstance(operation, Put) and operation.rows.count:
                at, last = put_rows(self._streams[operation.stream], journal, operation.rows, now_ms, b"")
                first = first or at
            elif isinstance(operation, Publish | PublishMany):
                result = self._publishing.publish(self._published[index][0], now_ms)
                assert result.error is None and not result.refused
            elif isinstance(operation, Settle):
                queue = operation.queue
                for lane, index in operation.places:
                    queue.settle(lane, index)
                queue.delivered += len(operation.places)
                queue.flush(Reason.ACCEPTED)
                operation.places.clear()
        marks = [stream.marks.made(move, now_ms) for (stream, _), move in self._moves.items()]
        if marks:
            safe_at = streams.state.put_all([mark.encoded() for mark in marks], now_ms)
            for mark in marks:
                mark.safe_at = safe_at
                mark.marks.unwritten.pop(mark, None)
        if batch.producer is not None and batch.sequence is not None:
            streams.producers.note(self._vhost, batch.producer, batch.sequence, first, now_ms, last)
        return Committed(streams.history, first, last, False, journal.last_seq)


def known_batch(broker: Broker, vhost: str, batch: Batch) -> Committed | None:
    """What was answered to the batch with this number; None: it is new, or has no number.

    Raises:
        PreconditionFailed: a number that cannot be.
    """
    if batch.producer is None or batch.sequence is None:
        return None
    producers = broker.streams.producers
    safe_at = producers.duplicate(vhost, batch.producer, batch.sequence)
    if safe_at is None:
        return None
    known = producers.known(vhost, batch.producer)
    assert known is not None
    return Committed(known.history, known.first_seq, known.last_seq, True, safe_at)


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
