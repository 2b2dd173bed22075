"""One channel of an AMQP 0-9-1 connection.

What may come next is in `TAKEN` and `OTHERWISE`; read these first. A method that is taken has its
handler in `HANDLERS`. A run of publishes or acks is one call.

    CLOSED ──Open──► OPEN ──a reply must wait for the disk──► WAITING
      ▲               │ ▲────────────safe, or room again───────┘ │
      │            an error                       the wait was Close-Ok's
      │               ▼                                          │
      └──Close-Ok── CLOSING            CLOSED ◄──────────────────┘

A reply that promises something durable (Declare-Ok, Commit-Ok, the Close-Ok after acks) is held
back until it is on the disk. Meanwhile the channel is WAITING: what the peer sends is kept, in
order, and taken when the reply has gone out. The connection stops reading when too much is kept.

To the broker the channel is a `Sink`: where the deliveries of its consumers go.

A consumer that holds a message for too long loses its channel (`check_timeout`). When a message was delivered is
not noted for each: the newest tag is, now and then, and every tag up to it was given out by then.

Invariant: a delivery tag is outstanding exactly until it is settled or the channel ends, and then
its message is gone or back in its queue. Replies go out in the order of the methods they answer.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable
from enum import Enum, auto
from typing import TYPE_CHECKING, Any, Protocol

from tidemark.broker import settlement
from tidemark.broker.audience import StreamConsumer
from tidemark.broker.consumer import Consumer
from tidemark.broker.core import Holder, QueueCore, Unacked
from tidemark.broker.publishing import Publishing
from tidemark.broker.session import Session
from tidemark.broker.streams.stream import Stream
from tidemark.broker.transaction import Transaction
from tidemark.errors import (
    ChannelFault,
    CommandInvalid,
    NotAllowed,
    NotFound,
    NotImplementedHere,
    PreconditionFailed,
    RemoteProtocolError,
    TidemarkError,
)
from tidemark.frontend import tails
from tidemark.frontend.amqp091.confirms import Confirms
from tidemark.frontend.amqp091.replies import reply_text
from tidemark.frontend.services import ChannelCounts, ChannelStatistics, Services
from tidemark.model.runs import BODY, EXCHANGE, KEY, PROPERTIES, PublishRun, Taken
from tidemark.wire.amqp091.deliveries import (
    encode_deliveries,
    encode_get_ok,
    encode_marker,
    encode_return,
    encode_stream_deliveries,
)
from tidemark.wire.amqp091.events import AckRun, MethodFrame, Oversized
from tidemark.wire.amqp091.methods import (
    AccessRequest,
    AccessRequestOk,
    BasicAck,
    BasicCancel,
    BasicCancelOk,
    BasicConsume,
    BasicConsumeOk,
    BasicGet,
    BasicGetEmpty,
    BasicNack,
    BasicQos,
    BasicQosOk,
    BasicRecover,
    BasicRecoverAsync,
    BasicRecoverOk,
    BasicReject,
    ChannelClose,
    ChannelCloseOk,
    ChannelFlow,
    ChannelFlowOk,
    ChannelOpen,
    ConfirmSelect,
    ConfirmSelectOk,
    ExchangeBind,
    ExchangeBindOk,
    ExchangeDeclare,
    ExchangeDeclareOk,
    ExchangeDelete,
    ExchangeDeleteOk,
    ExchangeUnbind,
    ExchangeUnbindOk,
    Method,
    QueueBind,
    QueueBindOk,
    QueueDeclare,
    QueueDeclareOk,
    QueueDelete,
    QueueDeleteOk,
    QueueEnd,
    QueueEndOk,
    QueueMake,
    QueueMakeOk,
    QueuePurge,
    QueuePurgeOk,
    QueueRenew,
    QueueRenewOk,
    QueueUnbind,
    QueueUnbindOk,
    TxCommit,
    TxCommitOk,
    TxRollback,
    TxRollbackOk,
    TxSelect,
    TxSelectOk,
    encode_method,
)

if TYPE_CHECKING:
    from tidemark.broker.streams.snapshots import Marker

PLENTY = 1 << 30
"""Room without a limit."""
EVENT_BYTES = 256
"""What a kept event costs besides the bytes of its messages, roughly."""

TIMEOUT_STEPS = 32
"""The newest tag is noted about so often in the shortest time that a consumer may hold a message."""

ALL = -1
"""As the first of a range in a transaction: all that was outstanding, be it none."""

Event = PublishRun | AckRun | MethodFrame | Oversized
"""What a channel takes."""


class State(Enum):
    CLOSED = auto()
    OPEN = auto()
    WAITING = auto()
    CLOSING = auto()


class Answer(Enum):
    """What a state has to say to a method."""

    TAKE = auto()
    KEEP = auto()
    IGNORE = auto()
    REFUSE = auto()


OTHERWISE: dict[State, Answer] = {
    State.CLOSED: Answer.REFUSE,
    State.OPEN: Answer.REFUSE,
    State.WAITING: Answer.KEEP,
    State.CLOSING: Answer.IGNORE,
}
"""The answer to a method that is not in `TAKEN`."""


class Wait(Enum):
    """What a waiting channel waits for."""

    CATALOG = auto()
    JOURNAL = auto()
    ROOM = auto()


class Link(Protocol):
    """The connection, as its channels see it."""

    services: Services
    session: Session
    frame_max: int
    full: bool
    """Too much waits to be sent: no deliveries now."""
    starved: bool
    """Somebody was refused room because of `full`, and wants to be touched when it is over."""
    kept_bytes: int

    def send(self, data: bytes) -> None: ...

    def capable_of(self, capability: str) -> bool: ...

    def pause(self, channel: Channel) -> None:
        """It is WAITING: ask `due` when something has changed, then `proceed`."""

    def confirming(self, channel: Channel) -> None:
        """It has unconfirmed publishes: call `send_confirms` at the end of the turn and as the disk goes on."""

    def forget(self, channel: Channel) -> None:
        """It is CLOSED."""

    def rest(self) -> None:
        """No deliveries until the end of the next turn: whoever waits for room goes on then."""

    def doom(self, error: Exception) -> None:
        """Something went wrong inside a call of the broker: close the connection after the turn."""


class Channel:
    """One open channel. The connection makes it on Channel.Open, with that already answered."""

    def __init__(self, link: Link, number: int) -> None:
        self.number = number
        self.state = State.OPEN
        self.kept: deque[tuple[Event, int]] = deque()
        """What came while WAITING, each with what it costs to keep."""
        self._link = link
        self._services = link.services
        self._arena = link.services.arena
        self._session = link.session
        self._unacked = Unacked()
        self._consumers: dict[str, Consumer | StreamConsumer] = {}
        self._getters: dict[int, Holder] = {}
        """By queue number: who holds what was fetched with Basic.Get."""
        self._publishing: Publishing | None = None
        self.counts = ChannelCounts()
        self._confirms: Confirms | None = None
        self._unconfirmed = 0
        """How many of its publishes are counted as waiting for an answer."""
        self._transaction: Transaction | None = None
        self._transaction_bytes = 0
        self._transaction_settled: list[tuple[int, int, str]] = []
        self._queue = ""
        self._prefetch = 0
        self._global_prefetch = 0
        self._settled = False
        """Something was settled by this channel: its Close-Ok waits until that is on the disk."""
        self._seen: deque[tuple[int, int]] = deque()
        """(when, the newest tag then), for the tags that may be outstanding; oldest first."""
        self._wait = Wait.ROOM
        self._until = 0
        self._then: Callable[[], None] | None = None

    # What comes in ---------------------------------------------------------------------------------

    def receive(self, event: Event) -> None:
        """Take, keep or ignore one event of this channel.

        Raises:
            ChannelError: the channel must be closed with it (`fail`).
            RemoteProtocolError: so must the connection.
        """
        if self.state is State.OPEN:
            kind = type(event)
            if kind is PublishRun:
                self._publish(event)  # type: ignore[arg-type]
            elif kind is AckRun:
                self._accept(event.ranges)  # type: ignore[union-attr]
            elif isinstance(event, MethodFrame):
                handler = HANDLERS.get(type(event.method))
                if handler is None:
                    raise refusal(self.state, self.number, event.method)
                handler(self, event.method)
            elif isinstance(event, Oversized):
                raise PreconditionFailed(
                    reason=f"message size {event.size} is larger than configured max size "
                    f"{self._services.config.message_bytes_max}"
                )
        elif self.state is State.WAITING:
            self._keep(event)
        elif isinstance(event, MethodFrame) and answer_to(self.state, type(event.method)) is Answer.TAKE:
            self._close_step(event.method)

    def _keep(self, event: Event) -> None:
        cost = EVENT_BYTES
        if isinstance(event, PublishRun):
            event = event.detached()
            cost += len(event.data)
        self.kept.append((event, cost))
        self._link.kept_bytes += cost

    def next_kept(self) -> Event | None:
        """The oldest event that was kept, if the channel need not wait; it is the caller's now."""
        if self.state is State.WAITING or not self.kept:
            return None
        event, cost = self.kept.popleft()
        self._link.kept_bytes -= cost
        return event

    # Replies and waiting -----------------------------------------------------------------------------

    def _reply(self, method: Method) -> None:
        self._link.send(encode_method(self.number, method))

    def _reply_when_safe(self, method: Method, no_wait: bool, safe_at: int) -> None:
        """Answer a change of the wiring, when the change is on the disk."""
        if no_wait:
            return
        if safe_at <= self._services.catalog_durable():
            self._reply(method)
        else:
            self._pause(Wait.CATALOG, safe_at, lambda: self._reply(method))

    def _when_journalled(self, sequence: int, then: Callable[[], None]) -> None:
        if sequence <= self._services.journal_durable():
            then()
        else:
            self._pause(Wait.JOURNAL, sequence, then)

    def _pause(self, wait: Wait, until: int, then: Callable[[], None] | None) -> None:
        self.state, self._wait, self._until, self._then = State.WAITING, wait, until, then
        self._link.pause(self)

    def due(self) -> bool:
        """Whether what a WAITING channel waits for has happened."""
        if self._wait is Wait.ROOM:
            return not self._link.full
        services = self._services
        durable = services.catalog_durable() if self._wait is Wait.CATALOG else services.journal_durable()
        return self._until <= durable

    def proceed(self) -> None:
        """The wait is over."""
        assert self.state is State.WAITING
        self.state = State.OPEN
        then, self._then = self._then, None
        if then is not None:
            then()

    # The end -----------------------------------------------------------------------------------------

    def fail(self, error: TidemarkError, ids: tuple[int, int]) -> None:
        """A command failed: tell the peer, and wait for it to say that it heard."""
        self.release()
        self.state = State.CLOSING
        self._reply(
            ChannelClose(
                reply_code=error.amqp091, reply_text=reply_text(error), class_id=ids[0], method_id=ids[1]
            )
        )

    def _close(self, _: ChannelClose) -> None:
        self.release()
        self._when_journalled(self.journal_end(), self._say_close_ok)

    def _say_close_ok(self) -> None:
        self.send_confirms(self._services.journal_durable())
        self._close_step(ChannelCloseOk())

    def _close_step(self, method: Method) -> None:
        """Close when we are closing already, or Close-Ok, theirs or ours."""
        if self.state is not State.CLOSING or isinstance(method, ChannelClose):
            self._reply(ChannelCloseOk())
        if isinstance(method, ChannelCloseOk):
            self.state = State.CLOSED
            self._link.forget(self)

    def release(self) -> None:
        """Consumers go, what they held returns to the queues, what was not committed is forgotten."""
        for consumer in self._consumers.values():
            self._session.cancel(consumer)
        self._consumers.clear()
        self._transaction = None
        self._transaction_settled.clear()
        held = self._unacked.pop(0, 0)
        if held:
            settlement.requeue(held)
        if self._publishing is not None:
            self._publishing = None
            self._session.counts.publishers -= 1
        self._count_unconfirmed(0)

    def check_timeout(self, now_ms: int) -> PreconditionFailed | None:
        """Why the channel must be closed, if the oldest message that is out has been out for too long.

        As in RabbitMQ it is the oldest one that counts, and the queue that it came from.
        """
        oldest = self._unacked.oldest()
        if oldest is None:
            self._seen.clear()
            return None
        seen, tag = self._seen, oldest[0]
        while seen and seen[0][1] < tag:
            seen.popleft()
        timeout_ms = self._services.broker.timeout_ms(oldest[1].queue)
        if timeout_ms and seen and self.state is State.OPEN and now_ms - seen[0][0] > timeout_ms:
            return PreconditionFailed(
                reason=f"delivery acknowledgement on channel {self.number} timed out. Timeout value used: "
                f"{timeout_ms} ms. This timeout value can be configured, see consumers doc guide to learn more"
            )
        if not seen or seen[-1][1] < self._unacked.last_tag:
            seen.append((now_ms, self._unacked.last_tag))
            if len(seen) > 2 * TIMEOUT_STEPS:
                del seen[1]  # the clock was set, or the time is longer now: be coarser
        return None

    def drop_kept(self) -> None:
        """Nobody will take what was kept."""
        while self.kept:
            self._link.kept_bytes -= self.kept.pop()[1]

    def journal_end(self) -> int:
        """The journal sequence that must be durable before the peer is told that this channel is closed:
        that of its acks, and of the publishes that it still waits to have confirmed."""
        waits = self._settled and self._services.config.accept == "durable"
        settled = self._services.journal_settlements() if waits else 0
        return settled if self._confirms is None else max(settled, self._confirms.sequence)

    # Publishing ----------------------------------------------------------------------------------------

    def _publish(self, run: PublishRun) -> None:
        self.counts.publish += len(run)
        if self._transaction is not None:
            self._publish_later(run, self._transaction)
            return
        publishing = self._publishing or self._begin_publishing()
        published = publishing.publish(run, self._services.now_ms)
        for row, code, text in published.returned:
            self._return(run, row, code, text)
        if published.error is not None:
            raise published.error
        if self._confirms is not None:
            self._confirms.add(len(run), published.last_seq, published.refused)
            self._session.counts.received_confirm += len(run)
            self._count_unconfirmed(len(self._confirms))
            self._link.confirming(self)

    def _begin_publishing(self) -> Publishing:
        self._publishing = self._session.publishing(self)
        self._session.counts.publishers += 1
        return self._publishing

    def _publish_later(self, run: PublishRun, transaction: Transaction) -> None:
        self._transaction_bytes += sum(
            EVENT_BYTES + run.number(row, PROPERTIES + 1) + run.number(row, BODY + 1)
            for row in range(len(run))
        )
        limit = self._services.config.transaction_bytes_max
        if self._transaction_bytes > limit:
            raise PreconditionFailed(reason=f"a transaction may hold {limit} bytes: commit more often")
        transaction.publish(run)

    def _return(self, run: PublishRun, row: int, code: int, text: str) -> None:
        self.counts.return_unroutable += 1
        self._link.send(
            encode_return(
                self.number,
                code,
                text,
                run.part(row, EXCHANGE),
                run.part(row, KEY),
                run.part(row, PROPERTIES),
                run.part(row, BODY),
                self._link.frame_max,
            )
        )

    def send_confirms(self, durable: int) -> bool:
        """Confirm what may be confirmed now. Returns whether something still waits."""
        confirms = self._confirms
        if confirms is None or self.state is State.CLOSING:
            return False
        before = confirms.accepted
        for answer in confirms.take(durable):
            self._reply(answer)
        self.counts.confirm = confirms.accepted
        self._session.counts.confirmed += confirms.accepted - before
        self._count_unconfirmed(len(confirms))
        return len(confirms) > 0

    def refuse_confirms(self) -> None:
        """The journal has stopped: nack all that waits."""
        if self._confirms is not None and self.state is not State.CLOSING:
            for answer in self._confirms.fail():
                self._reply(answer)
            self._count_unconfirmed(0)

    def _count_unconfirmed(self, now: int) -> None:
        """So many publishes of this channel wait for an answer."""
        self._session.counts.unconfirmed += now - self._unconfirmed
        self._unconfirmed = now

    def _confirm_select(self, method: ConfirmSelect) -> None:
        if self._transaction is not None:
            raise PreconditionFailed(reason="cannot switch from tx to confirm mode")
        if self._confirms is None:
            self._confirms = Confirms()
        if not method.no_wait:
            self._reply(ConfirmSelectOk())

    # Deliveries: the sink of this channel's consumers ----------------------------------------------------

    def room(self) -> int:
        link = self._link
        if link.full:
            link.starved = True
            return 0
        if self._global_prefetch:
            fetched = sum(getter.unacked for getter in self._getters.values())
            return max(0, self._global_prefetch - (self._unacked.count - fetched))
        return PLENTY

    def deliver(self, consumer: Consumer | StreamConsumer, taken: Taken) -> bool:
        unacked = self._unacked
        first = unacked.skip(len(taken)) if consumer.no_ack else unacked.add(consumer, taken)
        try:
            if consumer.window is not None:
                self._send_of_stream(consumer, taken, first)  # type: ignore[arg-type]
                return True
            data = encode_deliveries(
                self._arena,
                taken,
                self.number,
                _raw(consumer.tag),
                first,
                self._link.frame_max,
                consumer.count_header,
            )
        except Exception as error:
            # The bytes could not be brought back from the disk. The broker is in the middle of its turn:
            # the connection ends after it, and what the consumer held is requeued then.
            self._link.doom(error)
            return False
        if consumer.no_ack:
            self.counts.deliver_no_ack += len(taken)
        else:
            self.counts.deliver += len(taken)
        self._link.send(data)
        return True

    def _send_of_stream(self, consumer: StreamConsumer, taken: Taken, first: int) -> None:
        self.counts.deliver += len(taken)
        self._link.send(
            encode_stream_deliveries(
                self._arena,
                consumer.queue,
                taken,
                self.number,
                _raw(consumer.tag),
                first,
                self._link.frame_max,
                self._services.broker.streams.history,
            )
        )

    def deliver_marker(self, consumer: StreamConsumer, marker: Marker) -> None:
        headers = {
            "x-stream-marker": True,
            "x-stream-history": marker.history.hex(),
            "x-stream-from": marker.from_,
            "x-stream-to": marker.to,
            "x-stream-count": marker.count,
            "x-stream-tombstones": marker.tombstones,
            "x-stream-hash": f"{marker.digest:032x}",
        }
        self._send_marker(consumer, marker.to, headers)

    def deliver_reset(self, consumer: StreamConsumer, seq: int) -> None:
        history = self._services.broker.streams.history.hex()
        self._send_marker(consumer, seq, {"x-stream-reset": True, "x-stream-history": history})

    def _send_marker(self, consumer: StreamConsumer, seq: int, headers: dict[str, Any]) -> None:
        tag = self._unacked.add_boundary(consumer, seq)
        self._link.send(
            encode_marker(
                self.number,
                _raw(consumer.tag),
                tag,
                _raw(consumer.queue.name),
                headers,
                self._link.frame_max,
            )
        )

    def cancelled(self, consumer: Consumer | StreamConsumer) -> None:
        self._consumers.pop(consumer.tag, None)
        if self._link.capable_of("consumer_cancel_notify"):
            self._reply(BasicCancel(consumer_tag=consumer.tag, no_wait=True))

    def touch_queues(self) -> None:
        """There may be room again: let the broker look at the queues of all consumers."""
        for consumer in self._consumers.values():
            consumer.stir()

    # Settling ----------------------------------------------------------------------------------------------

    def _accept(self, ranges: list[tuple[int, int]]) -> None:
        if self._transaction is not None:
            for first, last in ranges:
                self._settle_later(first, last, "accept")
            return
        unacked = self._unacked
        self._settled = True
        for first, last in ranges:
            if not first and last > unacked.last_tag:
                raise _unknown_tag(last)
            settled = unacked.accept(first, last)
            self.counts.ack += settled
            _check_settled(first, last, settled)
        if self._global_prefetch:
            self.touch_queues()

    def _ack(self, method: BasicAck) -> None:
        # All other acks come as an AckRun.
        self._accept([_range_of(method.delivery_tag, method.multiple)])

    def _nack(self, method: BasicNack) -> None:
        first, last = _range_of(method.delivery_tag, method.multiple)
        self._give_up(first, last, "requeue" if method.requeue else "reject")

    def _reject(self, method: BasicReject) -> None:
        first, last = _range_of(method.delivery_tag, False)
        self._give_up(first, last, "requeue" if method.requeue else "reject")

    def _give_up(self, first: int, last: int, outcome: str) -> None:
        if self._transaction is not None:
            self._settle_later(first, last, outcome)
            return
        if last > self._unacked.last_tag:
            raise _unknown_tag(last)
        self._settled = True
        popped = self._unacked.pop(first, last)
        if outcome == "requeue":
            settlement.requeue(popped)
        else:
            settlement.reject(popped, self._services.now_ms)
        _check_settled(first, last, len(popped))
        _check_no_stream(popped, "basic.nack and basic.reject")
        if self._global_prefetch:
            self.touch_queues()

    def _recover(self, method: BasicRecover | BasicRecoverAsync) -> None:
        if not method.requeue:
            raise NotImplementedHere(reason="recover with requeue=false is not offered")
        popped = self._unacked.pop(0, 0)
        settlement.requeue(popped)
        _check_no_stream(popped, "basic.recover")
        if self._global_prefetch:
            self.touch_queues()
        if isinstance(method, BasicRecover):
            self._reply(BasicRecoverOk())

    # Transactions ------------------------------------------------------------------------------------------

    def _tx_select(self, _: TxSelect) -> None:
        if self._confirms is not None:
            raise PreconditionFailed(reason="cannot switch from confirm to tx mode")
        if self._transaction is None:
            self._begin()
        self._reply(TxSelectOk())

    def _begin(self) -> None:
        self._transaction = Transaction(self._publishing or self._begin_publishing())
        self._transaction_bytes = 0
        self._transaction_settled.clear()

    def _settle_later(self, first: int, last: int, outcome: str) -> None:
        if last > self._unacked.last_tag:
            raise _unknown_tag(last)
        if last:
            self._transaction_settled.append((first, last, outcome))
        elif self._unacked.count:
            # "All" is what the peer had been given when it said so, not at the commit.
            self._transaction_settled.append((ALL, self._unacked.last_tag, outcome))

    def _tx_commit(self, _: TxCommit) -> None:
        transaction = self._open_transaction()
        settled = [
            (first, last, self._unacked.pop(max(first, 0), last), outcome)
            for first, last, outcome in self._transaction_settled
        ]
        try:
            for first, last, popped, outcome in settled:
                _check_settled(first, last, len(popped))
                if outcome != "accept":
                    _check_no_stream(popped, "basic.nack and basic.reject")
        except (PreconditionFailed, NotImplementedHere):
            for _first, _last, popped, _outcome in settled:
                settlement.requeue(popped)
            raise
        for _first, _last, popped, outcome in settled:
            transaction.settle(popped, outcome)
        published = transaction.commit(self._services.now_ms)
        self._begin()
        if self._global_prefetch:
            self.touch_queues()
        if published.error is not None:
            raise published.error
        for run, row, code, text in transaction.returned:
            self._return(run, row, code, text)
        self._when_journalled(published.last_seq, lambda: self._reply(TxCommitOk()))

    def _tx_rollback(self, _: TxRollback) -> None:
        self._open_transaction()
        self._begin()
        self._reply(TxRollbackOk())

    def _open_transaction(self) -> Transaction:
        if self._transaction is None:
            raise PreconditionFailed(reason="channel is not transactional")
        return self._transaction

    # Consuming ---------------------------------------------------------------------------------------------

    def _qos(self, method: BasicQos) -> None:
        if method.prefetch_size:
            raise NotImplementedHere(reason=f"prefetch_size!=0 ({method.prefetch_size})")
        if method.global_:
            self._global_prefetch = method.prefetch_count
            self.touch_queues()
        else:
            self._prefetch = method.prefetch_count
        self._reply(BasicQosOk())

    def _consume(self, method: BasicConsume) -> None:
        queue = self._queue_named(method.queue)
        self._check_shown(queue)
        tag = method.consumer_tag or self._session.new_tag()
        if tag in self._consumers:
            raise NotAllowed(reason=f"attempt to reuse consumer tag '{tag}'")
        if len(self._consumers) >= self._services.config.consumers_max:
            raise NotAllowed(reason=f"reached maximum ({len(self._consumers)}) of consumers per channel")
        self._consumers[tag] = self._session.consume(
            self,
            queue,
            tag,
            no_ack=method.no_ack,
            exclusive=method.exclusive,
            arguments=method.arguments,
            prefetch=self._prefetch,
        )
        if not method.no_wait:
            self._reply(BasicConsumeOk(consumer_tag=tag))

    def _check_shown(self, queue: str) -> None:
        """Raises NotATail: it is a stream, and other members show it."""
        if self._services.tails_only and isinstance(self._session.queue(queue, "read"), Stream):
            refusal = tails.refusal(self._services, queue)
            if refusal is not None:
                raise refusal

    def _cancel(self, method: BasicCancel) -> None:
        consumer = self._consumers.pop(method.consumer_tag, None)
        if consumer is not None:
            self._session.cancel(consumer)
        if not method.no_wait:
            self._reply(BasicCancelOk(consumer_tag=method.consumer_tag))

    def _get(self, method: BasicGet) -> None:
        link = self._link
        if link.full:
            # A peer that asks without reading the answers waits like a consumer that does not read.
            self._again(method)
            link.starved = True
            self._pause(Wait.ROOM, 0, None)
            return
        name = self._queue_named(method.queue)
        queue, taken, remaining = self._session.get(name)
        if taken is None:
            if queue.waits_for and not queue.locked:
                # The next message is on its way to the disk: the answer waits for it.
                self._again(method)
                self._pause(Wait.JOURNAL, queue.waits_for, None)
            elif queue.overdue and not queue.locked:
                # It is behind so many that are too old that they have not all ended: the answer waits for the next turn.
                self._again(method)
                self._pause(Wait.ROOM, 0, None)
                link.rest()
            else:
                self.counts.get_empty += 1
                self._reply(BasicGetEmpty())
            return
        unacked = self._unacked
        tag = unacked.skip(1) if method.no_ack else unacked.add(self._getter(queue), taken)
        try:
            data = encode_get_ok(
                self._arena, taken, self.number, tag, remaining, link.frame_max, queue.count_header
            )
        except Exception:
            if method.no_ack:  # else it is outstanding, and goes back with its channel
                queue.requeue(taken.lane, taken.entry(0)[0], False)
            raise
        if method.no_ack:
            queue.got_no_ack += 1
            self.counts.get_no_ack += 1
            queue.settle_taken(taken)
        else:
            self.counts.get += 1
        link.send(data)

    def _again(self, method: Method) -> None:
        """Take this method once more when the wait is over."""
        self.kept.appendleft((MethodFrame(self.number, method), EVENT_BYTES))
        self._link.kept_bytes += EVENT_BYTES

    def _getter(self, queue: QueueCore) -> Holder:
        getter = self._getters.get(queue.number)
        if getter is None:
            if len(self._getters) >= 64:
                self._getters = {number: each for number, each in self._getters.items() if each.unacked}
            getter = self._getters[queue.number] = Holder(queue)
        return getter

    # Wiring ------------------------------------------------------------------------------------------------

    def _exchange_declare(self, method: ExchangeDeclare) -> None:
        safe_at = self._session.declare_exchange(
            method.exchange,
            method.type,
            passive=method.passive,
            durable=method.durable,
            auto_delete=method.auto_delete,
            internal=method.internal,
            arguments=method.arguments,
        )
        self._reply_when_safe(ExchangeDeclareOk(), method.no_wait, safe_at)

    def _exchange_delete(self, method: ExchangeDelete) -> None:
        safe_at = self._session.delete_exchange(method.exchange, if_unused=method.if_unused)
        self._reply_when_safe(ExchangeDeleteOk(), method.no_wait, safe_at)

    def _exchange_bind(self, method: ExchangeBind) -> None:
        safe_at = self._session.bind_exchange(
            method.destination, method.source, method.routing_key, method.arguments
        )
        self._reply_when_safe(ExchangeBindOk(), method.no_wait, safe_at)

    def _exchange_unbind(self, method: ExchangeUnbind) -> None:
        safe_at = self._session.unbind_exchange(
            method.destination, method.source, method.routing_key, method.arguments
        )
        self._reply_when_safe(ExchangeUnbindOk(), method.no_wait, safe_at)

    def _queue_declare(self, method: QueueDeclare) -> None:
        declared = self._session.declare_queue(
            method.queue,
            passive=method.passive,
            durable=method.durable,
            exclusive=method.exclusive,
            auto_delete=method.auto_delete,
            arguments=method.arguments,
        )
        self._queue = declared.name
        reply = QueueDeclareOk(
            queue=declared.name, message_count=declared.messages, consumer_count=declared.consumers
        )
        self._reply_when_safe(reply, method.no_wait, declared.safe_at)

    def _queue_bind(self, method: QueueBind) -> None:
        safe_at = self._session.bind_queue(
            self._queue_named(method.queue), method.exchange, self._key_of(method), method.arguments
        )
        self._reply_when_safe(QueueBindOk(), method.no_wait, safe_at)

    def _queue_unbind(self, method: QueueUnbind) -> None:
        safe_at = self._session.unbind_queue(
            self._queue_named(method.queue), method.exchange, self._key_of(method), method.arguments
        )
        self._reply_when_safe(QueueUnbindOk(), False, safe_at)

    def _queue_purge(self, method: QueuePurge) -> None:
        declared = self._session.purge_queue(self._queue_named(method.queue))
        if not method.no_wait:
            reply = QueuePurgeOk(message_count=declared.messages)
            self._when_journalled(self._services.journal_settlements(), lambda: self._reply(reply))

    def _queue_delete(self, method: QueueDelete) -> None:
        declared = self._session.delete_queue(
            self._queue_named(method.queue), if_unused=method.if_unused, if_empty=method.if_empty
        )
        self._reply_when_safe(
            QueueDeleteOk(message_count=declared.messages), method.no_wait, declared.safe_at
        )

    def _queue_make(self, method: QueueMake) -> None:
        self._check_front(method)
        made = self._session.make_queue(
            method.queue, method.incarnation, durable=method.durable, arguments=method.arguments
        )
        reply = QueueMakeOk(made.name, made.messages, made.consumers, made.gone)
        self._reply_when_safe(reply, False, made.safe_at)

    def _queue_end(self, method: QueueEnd) -> None:
        self._check_front(method)
        ended = self._session.end_queue(
            method.queue, method.incarnation, if_unused=method.if_unused, if_empty=method.if_empty
        )
        self._reply_when_safe(QueueEndOk(ended.messages, ended.other), False, ended.safe_at)

    def _queue_renew(self, method: QueueRenew) -> None:
        self._check_front(method)
        safe_at = self._session.renew_queue(method.queue, method.incarnation, method.above)
        self._reply_when_safe(QueueRenewOk(), False, safe_at)

    def _check_front(self, method: Method) -> None:
        """Raises CommandInvalid when these are not the words of a front."""
        if not self._session.by_front:
            raise refusal(State.OPEN, self.number, method)

    def _queue_named(self, name: str) -> str:
        """An empty name means the queue that this channel declared last."""
        if name or self._queue:
            return name or self._queue
        raise NotFound(reason="no previously declared queue")

    def _key_of(self, method: QueueBind | QueueUnbind) -> str:
        """Where queue and key are both left out, the key is the queue's name too."""
        return self._queue if not method.queue and not method.routing_key else method.routing_key

    # The rest ----------------------------------------------------------------------------------------------

    def _flow(self, method: ChannelFlow) -> None:
        if not method.active:
            raise NotImplementedHere(reason="active=false: use prefetch or cancel to stop deliveries")
        self._reply(ChannelFlowOk(active=True))

    def _access_request(self, _: AccessRequest) -> None:
        self._reply(AccessRequestOk(ticket=1))

    def statistics(self) -> ChannelStatistics:
        return ChannelStatistics(
            number=self.number,
            state=self.state.name.lower(),
            confirming=self._confirms is not None,
            transactional=self._transaction is not None,
            unacked=self._unacked.count,
            unconfirmed=0 if self._confirms is None else len(self._confirms),
            prefetch=self._prefetch,
            global_prefetch=self._global_prefetch,
            published=self.counts.publish,
            consumers=tuple(consumer.statistics() for consumer in self._consumers.values()),
        )


HANDLERS: dict[type[Method], Callable[[Channel, Any], None]] = {
    ChannelClose: Channel._close,
    ChannelFlow: Channel._flow,
    AccessRequest: Channel._access_request,
    ExchangeDeclare: Channel._exchange_declare,
    ExchangeDelete: Channel._exchange_delete,
    ExchangeBind: Channel._exchange_bind,
    ExchangeUnbind: Channel._exchange_unbind,
    QueueDeclare: Channel._queue_declare,
    QueueBind: Channel._queue_bind,
    QueueUnbind: Channel._queue_unbind,
    QueuePurge: Channel._queue_purge,
    QueueDelete: Channel._queue_delete,
    QueueMake: Channel._queue_make,
    QueueEnd: Channel._queue_end,
    QueueRenew: Channel._queue_renew,
    BasicQos: Channel._qos,
    BasicConsume: Channel._consume,
    BasicCancel: Channel._cancel,
    BasicGet: Channel._get,
    BasicAck: Channel._ack,
    BasicNack: Channel._nack,
    BasicReject: Channel._reject,
    BasicRecover: Channel._recover,
    BasicRecoverAsync: Channel._recover,
    ConfirmSelect: Channel._confirm_select,
    TxSelect: Channel._tx_select,
    TxCommit: Channel._tx_commit,
    TxRollback: Channel._tx_rollback,
}

TAKEN: dict[State, frozenset[type[Method]]] = {
    State.CLOSED: frozenset({ChannelOpen}),
    State.OPEN: frozenset(HANDLERS),
    State.WAITING: frozenset(),
    State.CLOSING: frozenset({ChannelClose, ChannelCloseOk}),
}
"""The methods that mean something in a state. Publishes come as runs: they are taken when OPEN."""


def answer_to(state: State, kind: type[Method]) -> Answer:
    """The table as one question."""
    return Answer.TAKE if kind in TAKEN[state] else OTHERWISE[state]


def refusal(state: State, number: int, method: Method) -> RemoteProtocolError:
    """Why a state will not have this method."""
    if state is State.CLOSED:
        return ChannelFault(reason=f"channel {number} is not open: expected 'channel.open'")
    if isinstance(method, ChannelOpen):
        return ChannelFault(reason="second 'channel.open' seen")
    return CommandInvalid(reason=f"{type(method).__name__} is not expected on an open channel")


def _range_of(tag: int, multiple: bool) -> tuple[int, int]:
    if not tag and not multiple:
        raise _unknown_tag(0)
    return (0 if multiple else tag), tag


def _check_settled(first: int, last: int, count: int) -> None:
    """Whether the tags of a range were outstanding, as a peer must know; "all there are" may be none."""
    if first > 0:
        if count < last - first + 1:
            raise (
                _unknown_tag(last)
                if first == last
                else PreconditionFailed(reason=f"unknown delivery tag among {first} to {last}")
            )
    elif first == 0 and last and not count:
        raise _unknown_tag(last)


def _check_no_stream(popped: list[tuple[Holder, int, int]], method: str) -> None:
    """A consumer of a stream cannot give messages back, for it would wait in vain to be given them again.

    One that has ended may: it has not acknowledged them, and finds them behind its mark. Clients do so when they
    stop with messages that they have not looked at.
    """
    for consumer in settlement.of_streams(popped):
        if not consumer.ended:
            stream = consumer.queue
            raise NotImplementedHere(
                reason=f"{method} not supported by stream queues queue '{stream.name}' "
                f"in vhost '{stream.spec.vhost}'"
            )


def _raw(name: str) -> bytes:
    return name.encode("utf-8", "surrogateescape")


def _unknown_tag(tag: int) -> PreconditionFailed:
    return PreconditionFailed(reason=f"unknown delivery tag {tag}")
