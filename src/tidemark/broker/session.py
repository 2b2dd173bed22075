"""What one connection does in its virtual host, with all checks.

Every command is checked in RabbitMQ's order (reserved names, permissions, existence, exclusive owners,
equality with what is there), so that a client that does two things wrong gets the same answer as there.
Nothing has changed when a method raises.

Methods that change the wiring answer with `safe_at`: the sequence of the catalog log that must be durable
before the client may be told; 0 when nothing needs to be waited for. Declaring again what another
connection has just declared waits for the same record, since the reply promises the same.

Invariant: `owned` are the exclusive queues of this session; they go with it.
"""

from __future__ import annotations

from contextlib import suppress
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Protocol

from tidemark.broker import replyto
from tidemark.broker.access import Permission, allowed_by, check_patterns
from tidemark.broker.arguments import (
    StreamReading,
    check_equivalent,
    check_queue_arguments,
    check_replicate,
    check_stream_reading,
    is_stream,
    type_name,
)
from tidemark.broker.audience import MoveMark, StreamConsumer
from tidemark.broker.consumer import Consumer
from tidemark.broker.core import Route
from tidemark.broker.counts import ProtocolCounts
from tidemark.broker.exchanges import check_exchange, check_same_exchange, inequivalent
from tidemark.broker.groups import OUTBOX, stands_in
from tidemark.broker.placing import route_for
from tidemark.broker.publishing import Publishing
from tidemark.broker.streams.policy import check_stream_arguments, checked_name
from tidemark.broker.streams.positions import AtTime, FromMark, Position
from tidemark.broker.streams.reader import Reader, open_reader
from tidemark.broker.tracing import TracedPublishing, TracedSink
from tidemark.errors import (
    AccessRefused,
    LostBranch,
    NotFound,
    NotImplementedHere,
    PreconditionFailed,
    ResourceLocked,
    StoreError,
    StreamElsewhere,
    StreamReset,
)
from tidemark.model.runs import Taken
from tidemark.model.wiring import (
    MAIN,
    NUMBER_ARGUMENT,
    Arguments,
    BindingSpec,
    ExchangeSpec,
    PermissionSpec,
    QueueSpec,
)
from tidemark.ports import Sink, StreamSink

if TYPE_CHECKING:
    from tidemark.broker.broker import Broker
    from tidemark.broker.queue import Queue
    from tidemark.broker.streams.stream import Stream
    from tidemark.broker.vhost import VirtualHost

CONNECTION_FORCED = 320


class ConnectionSink(Protocol):
    """The connection of a session, seen from the broker."""

    def shutdown(self, code: int, text: str) -> None:
        """End the connection from our side; `Session.close` follows when it is gone."""


@dataclass(frozen=True, slots=True)
class Declared:
    """The answer to queue methods. `messages` of a delete or purge are those that went."""

    name: str
    messages: int
    consumers: int
    safe_at: int


@dataclass(frozen=True, slots=True)
class Made(Declared):
    gone: int = 0
    """It was not made, for this life of it is known and the one that was wanted is over; 0: it is there."""


@dataclass(frozen=True, slots=True)
class Ended(Declared):
    other: int = 0
    """It was not deleted, for it is in this life; 0: it is gone."""


class Session:
    def __init__(
        self,
        broker: Broker,
        vhost: VirtualHost,
        user: str,
        sink: ConnectionSink | None,
        name: str,
        counts: ProtocolCounts,
        by_front: bool = False,
        own: bool = False,
        patterns: PermissionSpec | None = None,
        turns: bool = False,
    ) -> None:
        self.broker = broker
        self.vhost = vhost
        self.user = user
        self.name = name
        self.counts = counts
        """Of its protocol."""
        self.by_front = by_front
        """It came over a link of a front, which has routed what it publishes and asked whether the user may."""
        self.own = own
        """There is no user behind that front: it may do everything, and limits are not for it."""
        self.turns = own and turns
        """That front says in which turn it has taken what it moves on, and is told so."""
        self._vouched = by_front and broker.group != MAIN
        """Permissions are main's, and the front has asked them."""
        self.patterns = patterns
        """What main lets this user do, as a front says; its words are the client's own. None: it is asked here."""
        self.owned: dict[Queue, None] = {}
        self._sink = sink

    # Exchanges --------------------------------------------------------------------------

    def declare_exchange(
        self,
        name: str,
        type: str,
        *,
        passive: bool = False,
        durable: bool = False,
        auto_delete: bool = False,
        internal: bool = False,
        arguments: Arguments | None = None,
    ) -> int:
        """Make the exchange, or see that it is there as described; with `passive`, that it is there at all.

        Raises:
            CommandInvalid, AccessRefused, NotFound, PreconditionFailed
        """
        name = _without_line_breaks(name)
        spec = ExchangeSpec(self.vhost.name, name, type, durable, auto_delete, internal, arguments or {})
        if passive:
            _check_not_default(name)
            self.vhost.exchange(name)
            return self._all_logged()
        check_exchange(spec)
        _check_not_default(name)
        self._check("configure", "exchange", name)
        current = self.vhost.exchanges.get(name)
        if current is not None:
            check_same_exchange(current.spec, spec)
            return self._all_logged()
        _check_name("exchange", name)
        if "alternate-exchange" in spec.arguments:
            self._check("read", "exchange", name)
            self._check("write", "exchange", spec.arguments["alternate-exchange"])
        return self.broker.put(spec, durable=durable)

    def delete_exchange(self, name: str, *, if_unused: bool = False) -> int:
        """Delete the exchange; one that is not there is no error.

        Raises:
            AccessRefused, PreconditionFailed
        """
        name = _without_line_breaks(name)
        _check_not_default(name)
        if name.startswith("amq."):
            raise AccessRefused(
                reason=f"deletion of system exchange '{name}' in vhost '{self.vhost.name}' not allowed"
            )
        self._check("configure", "exchange", name)
        exchange = self.vhost.exchanges.get(name)
        if exchange is None:
            return self._all_logged()
        if if_unused and exchange.bindings:
            raise PreconditionFailed(reason=f"exchange '{name}' in vhost '{self.vhost.name}' in use")
        return self.broker.delete_exchange(exchange)

    def bind_exchange(
        self, destination: str, source: str, key: str, arguments: Arguments | None = None
    ) -> int:
        """Let `destination` get what `source` has for this key. Raises AccessRefused, NotFound, PreconditionFailed."""
        return self._bind(self._binding(destination, False, source, key, arguments))

    def unbind_exchange(
        self, destination: str, source: str, key: str, arguments: Arguments | None = None
    ) -> int:
        """End that; a binding that is not there is no error. Raises AccessRefused."""
        return self._unbind(self._binding(destination, False, source, key, arguments))

    # Queues -----------------------------------------------------------------------------

    def declare_queue(
        self,
        name: str,
        *,
        passive: bool = False,
        durable: bool = False,
        exclusive: bool = False,
        auto_delete: bool = False,
        arguments: Arguments | None = None,
        incarnation: int = 0,
    ) -> Declared:
        """Make the queue, or see that it is there as described; with `passive`, that it is there at all.

        An empty name asks for one that nobody else has. An exclusive queue is this session's alone and goes
        with it, so it is never durable. A new one is in the life that `incarnation` says.

        Raises:
            AccessRefused, NotFound, ResourceLocked, PreconditionFailed
        """
        arguments = arguments or {}
        name = _without_line_breaks(name)
        if name.startswith(replyto.NAME):
            if name != replyto.NAME and not self.broker.replies.exists(name):
                raise NotFound(reason=f"no queue '{name}' in vhost '{self.vhost.name}'")
            return Declared(name, 0, 1, 0)
        if passive:
            return self._declared(self.queue(name))
        self.broker.counts.queues_declared += 1
        if is_stream(arguments):
            return self._declare_stream(name, durable, exclusive, auto_delete, arguments, incarnation)
        durable = durable and not exclusive
        if name:
            _check_name("queue", name)
        else:
            name = self.broker.generated_name("amq.gen-")
        self._check("configure", "queue", name)
        current = self.vhost.queues.get(name)
        if current is not None:
            self._check_same_queue(current, durable, exclusive, auto_delete, arguments)
            current.renew()
            return self._declared(current)
        self._check_queue_limit(name)
        if "x-dead-letter-exchange" in arguments:
            self._check_dead_letter_exchange(name, arguments["x-dead-letter-exchange"])
        check_queue_arguments(name, self.vhost.name, arguments, durable, exclusive)
        queue, seq = self.broker.create_queue(
            QueueSpec(
                self.vhost.name, name, durable, exclusive, auto_delete, arguments, incarnation=incarnation
            )
        )
        if exclusive:
            self.owned[queue] = None
        return Declared(name, 0, 0, seq)

    def _declare_stream(
        self,
        name: str,
        durable: bool,
        exclusive: bool,
        auto_delete: bool,
        arguments: Arguments,
        incarnation: int,
    ) -> Declared:
        """Make the stream, or see that it is there as described; with more shards than it has, it grows."""
        if not name:
            raise PreconditionFailed(
                reason="Cannot declare a server-named queue for type rabbit_stream_queue"
            )
        _check_name("queue", name)
        self._check("configure", "queue", name)
        check_replicate(name, self.vhost.name, arguments, durable, exclusive)
        current: Any = self.vhost.queues.get(name)
        if current is None:
            self._check_queue_limit(name)
            check_stream_arguments(name, self.vhost.name, arguments, durable, exclusive, auto_delete)
            _, seq = self.broker.create_queue(
                QueueSpec(
                    self.vhost.name, name, durable, exclusive, auto_delete, arguments, incarnation=incarnation
                )
            )
            return Declared(name, 0, 0, seq)
        self._check_same_queue(current, durable, exclusive, auto_delete, arguments)
        policy = check_stream_arguments(name, self.vhost.name, arguments, durable, exclusive, auto_delete)
        if "x-stream-shards" in arguments and current.keeps:
            self.broker.streams.grow(current, policy.shards)
        return self._declared(current)

    def delete_queue(self, name: str, *, if_unused: bool = False, if_empty: bool = False) -> Declared:
        """Delete the queue; one that is not there is no error.

        Raises:
            AccessRefused, ResourceLocked, PreconditionFailed
        """
        name = _without_line_breaks(name)
        self._check("configure", "queue", name)
        if name not in self.vhost.queues:
            return Declared(name, 0, 0, self._all_logged())
        queue = self._deletable(name, if_unused, if_empty)
        group = self.broker.lives_elsewhere(queue)
        if group and not self.by_front:
            raise PreconditionFailed(
                reason=f"queue '{name}' in vhost '{self.vhost.name}' lives in group '{group}': delete it through a front; here "
                "only its name would go, and its messages would be there again when it is declared again"
            )
        messages = queue.ready
        self.owned.pop(queue, None)
        return Declared(name, messages, 0, self.broker.delete_queue(queue))

    def _deletable(self, name: str, if_unused: bool, if_empty: bool) -> Queue:
        """The queue, if nothing is against deleting it. Raises ResourceLocked, PreconditionFailed."""
        queue = self.queue(name)
        queue.refresh()
        if if_unused and queue.consumers:
            raise PreconditionFailed(reason=f"queue '{name}' in vhost '{self.vhost.name}' in use")
        # What a front has taken from a stand-in has not got to its queue yet.
        if if_empty and (queue.ready or (queue.acquired and self.broker.lives_elsewhere(queue))):
            raise PreconditionFailed(reason=f"queue '{name}' in vhost '{self.vhost.name}' not empty")
        return queue

    # Queues of another group than main, as fronts speak of them; see `incarnations.py` ----------------

    def make_queue(self, name: str, incarnation: int, *, durable: bool, arguments: Arguments) -> Made:
        """In its group: see that the queue is there as described, in this life, unless that is over.

        Raises:
            AccessRefused, ResourceLocked, PreconditionFailed
        """
        broker, vhost = self.broker, self.vhost.name
        queue: Any = self.vhost.queues.get(name)
        here, over = (queue.spec.incarnation if queue is not None else 0), broker.gone.last(vhost, name)
        if incarnation <= over or incarnation < here:
            return Made(name, 0, 0, self._all_logged(), max(here, over))
        made = self.declare_queue(name, durable=durable, arguments=arguments, incarnation=incarnation)
        safe_at = made.safe_at
        if queue is not None and here < incarnation:
            safe_at = broker.incarnate(queue, incarnation)
        return Made(name, made.messages, made.consumers, safe_at)

    def end_queue(
        self, name: str, incarnation: int, *, if_unused: bool = False, if_empty: bool = False
    ) -> Ended:
        """Delete the queue, or in main its name, if it is in this life; one that is not there is no error.

        In main 0 means a queue that lives there.

        Raises:
            AccessRefused, ResourceLocked, PreconditionFailed
        """
        name = _without_line_breaks(name)
        self._check("configure", "queue", name)
        broker = self.broker
        found: Any = self.vhost.queues.get(name)
        if found is None:
            spec, safe_at = (
                QueueSpec(self.vhost.name, name, durable=True, incarnation=incarnation),
                self._all_logged(),
            )
            if broker.group != MAIN and broker.gone.last(spec.vhost, name) < incarnation:
                safe_at = broker.remember_gone(spec)
            return Ended(name, 0, 0, safe_at)
        if broker.group == MAIN:
            meant = {found.spec.life if found.spec.group else 0}
            if not broker.lives_elsewhere(found):
                meant.add(0)  # its group is gone from the cluster: the name is all there is, and is main's
            other = found.spec.life if incarnation not in meant else 0
        else:
            other = found.spec.incarnation if found.spec.incarnation > incarnation else 0
        if other:
            return Ended(name, 0, 0, self._all_logged(), other)
        queue = self._deletable(name, if_unused, if_empty)
        if queue.spec.incarnation < incarnation and not queue.spec.group:
            broker.incarnate(queue, incarnation)
        messages = queue.ready
        self.owned.pop(queue, None)
        return Ended(name, messages, 0, broker.delete_queue(queue))

    def renew_queue(self, name: str, incarnation: int, above: int) -> int:
        """In main: the queue begins a new life, behind `above`, if it is in this one. Raises AccessRefused."""
        self._check("configure", "queue", name)
        queue = self.vhost.queues.get(name)
        if queue is None or not queue.spec.group or queue.spec.life != incarnation:
            return self._all_logged()
        return self.broker.renew(queue, above)

    def purge_queue(self, name: str) -> Declared:
        """End all messages that are ready. Raises AccessRefused, NotFound, ResourceLocked."""
        name = _without_line_breaks(name)
        queue = self._taken_from(name)
        return Declared(name, queue.purge(), len(queue.consumers), 0)

    def bind_queue(self, queue: str, exchange: str, key: str, arguments: Arguments | None = None) -> int:
        """Let the queue get what the exchange has for this key.

        Raises:
            AccessRefused, NotFound, ResourceLocked, PreconditionFailed
        """
        return self._bind(self._binding(queue, True, exchange, key, arguments))

    def unbind_queue(self, queue: str, exchange: str, key: str, arguments: Arguments | None = None) -> int:
        """End that; a binding that is not there is no error. Raises AccessRefused, ResourceLocked."""
        return self._unbind(self._binding(queue, True, exchange, key, arguments))

    def queue(self, name: str, permission: Permission | None = None) -> Queue:
        """The queue, if this session may have to do with it.

        Raises:
            AccessRefused: the user does not have this permission for the name.
            NotFound: there is no such queue.
            ResourceLocked: it is another session's.
        """
        if permission is not None:
            self._check(permission, "queue", name)
        queue = self.vhost.queue(name)
        if queue.spec.exclusive and queue not in self.owned:
            raise self._locked(name)
        return queue

    def _taken_from(self, name: str) -> Queue:
        """The queue, if this session may take messages from it.

        Raises:
            StreamElsewhere: it is the stand-in of a stream. What waits there has not got to the stream yet, where messages stay
                when they are read: only a front takes it, and brings it there.
            AccessRefused, NotFound, ResourceLocked
        """
        queue = self.queue(name, "read")
        if stands_in(queue) and not self.own:
            raise StreamElsewhere(stream=name, group=queue.spec.group, number=queue.spec.life)
        return queue

    # Messages ---------------------------------------------------------------------------

    def publishing(self, channel_sink: Sink) -> Publishing:
        """The publishing side of one channel."""
        traces = self.broker.traces
        if traces is not None and traces.picks():
            return TracedPublishing(self, channel_sink, traces)
        return Publishing(self, channel_sink)

    def resolve(self, exchange: bytes, key: bytes) -> Route:
        """Where this session's messages to the exchange with this key go.

        Raises:
            AccessRefused: the user may not publish there, or nobody may.
            NotFound: there is no such exchange.
        """
        if self.patterns is not None:
            raise NotImplementedHere(
                reason=f"exchanges are of the group '{MAIN}'; publish on a connection to that group, or with AMQP"
            )
        return route_for(self.broker.access, self.user, self.vhost, exchange, key)

    def new_tag(self) -> str:
        """A tag for a consumer that comes without one, about to subscribe. To a front it says its turn."""
        if self.turns:
            return self.broker.turns.next().tag
        return self.broker.generated_name("amq.ctag-")

    def consume(
        self,
        sink: Sink,
        queue: str,
        tag: str,
        *,
        no_ack: bool = False,
        exclusive: bool = False,
        arguments: Arguments | None = None,
        prefetch: int = 0,
    ) -> Consumer | StreamConsumer:
        """Subscribe to a queue; messages follow at the end of the turn.

        Raises:
            AccessRefused, NotFound, ResourceLocked, PreconditionFailed
        """
        if queue == replyto.NAME:
            return self.broker.replies.open(self.vhost.name, sink, tag, no_ack=no_ack, arguments=arguments)
        found = self._taken_from(queue)
        if self.own and (arguments or {}).get(NUMBER_ARGUMENT, found.number) != found.number:
            raise NotFound(reason=f"no queue '{queue}' of that number in vhost '{self.vhost.name}'")
        if self.broker.traces is not None:
            sink = TracedSink(sink, self.broker.traces, self.name)
        if found.keeps:
            stream: Any = found
            return self._read_stream(stream, sink, tag, no_ack, exclusive, arguments or {}, prefetch)  # type: ignore[arg-type]
        consumer = Consumer(
            found, sink, tag, no_ack=no_ack, exclusive=exclusive, arguments=arguments, prefetch=prefetch
        )
        found.add_consumer(consumer)
        return consumer

    def _read_stream(
        self,
        stream: Stream,
        sink: StreamSink,
        tag: str,
        no_ack: bool,
        exclusive: bool,
        arguments: Arguments,
        prefetch: int,
    ) -> StreamConsumer:
        where = f"queue '{stream.name}' in vhost '{self.vhost.name}'"
        if not prefetch:
            raise PreconditionFailed(reason=f"consumer prefetch count is not set for '{where}'")
        if no_ack:
            raise NotImplementedHere(
                reason=f"automatic acknowledgement not supported by stream queues {where}"
            )
        reading = check_stream_reading(stream.name, self.vhost.name, tag, arguments, self.broker.now_ms)
        reader, was_reset = self._reader(stream, reading)
        if reading.consumer is not None:
            # Without room on the disk deletes are not kept for it; that must not keep it from reading.
            with suppress(StoreError):
                stream.marks.register(reading.consumer, None, self.broker.now_ms)
        consumer = StreamConsumer(
            stream,
            sink,
            tag,
            reading,
            reader,
            self._mark_mover(stream, reading, reader.shards),
            prefetch=prefetch,
            exclusive=exclusive,
            arguments=arguments,
            was_reset=was_reset,
        )
        stream.audience.add(consumer)
        return consumer

    def _reader(self, stream: Stream, reading: StreamReading) -> tuple[Reader, bool]:
        """The cursor that a consumer asks for, and whether it had to begin again."""
        offset: Any = reading.offset
        if reading.from_seq is not None:
            offset = reading.from_seq
        elif reading.from_ms is not None:
            offset = AtTime(reading.from_ms)
        elif offset == "mark":
            assert reading.consumer is not None
            known = reading.consumer in stream.marks.by_name
            offset = FromMark(reading.consumer) if known else "first"
        try:
            return open_reader(stream, offset, shards=reading.shards, markers=reading.markers), False
        except (StreamReset, LostBranch) as error:
            if not reading.restart:
                raise PreconditionFailed(
                    reason=f"{error}; consume with x-stream-offset 'first' to begin again, or with "
                    "x-stream-on-reset 'restart' to do so whenever that happens"
                ) from None
        return open_reader(stream, "first", shards=reading.shards, markers=reading.markers), True

    def _mark_mover(self, stream: Stream, reading: StreamReading, of: int) -> MoveMark:
        """Moves the mark in the shards that a consumer reads, of so many as there are for its reader."""
        marks, shards = stream.marks, reading.shards or (None,)
        consumer = reading.consumer

        def move(seq: int, end: int, wait: bool) -> int:
            assert consumer is not None
            position, now_ms = Position(self.broker.streams.history, seq, end), self.broker.now_ms
            return max(marks.move(consumer, position, shard, wait, now_ms, of) for shard in shards)

        return move

    def get(self, queue: str) -> tuple[Queue, Taken | None, int]:
        """Acquire the next message of a queue: the queue, the message, and how many are left.

        The caller settles it, or has it acknowledged. Without a message the queue is empty, or (`waits_for`)
        its next one is on its way to the disk.

        Raises:
            AccessRefused, NotFound, ResourceLocked
        """
        found = self._taken_from(queue)
        taken = found.get()
        return found, taken, found.ready

    def cancel(self, consumer: Consumer | StreamConsumer) -> None:
        """End the subscription. An auto-delete queue goes with its last one."""
        if isinstance(consumer, StreamConsumer):
            consumer.queue.audience.remove(consumer)
            return
        queue = consumer.queue
        queue.remove_consumer(consumer)
        if queue.spec.auto_delete and queue.used and not queue.consumers and self._is_here(queue):
            self.owned.pop(queue, None)
            self.broker.delete_queue(queue)

    # The end ----------------------------------------------------------------------------

    def close(self) -> None:
        """The connection is gone; its channels have cancelled their consumers. Exclusive queues go."""
        if self in self.broker.sessions:
            del self.broker.sessions[self]
            self.broker.counts.connections_closed += self._sink is not None
            if self._sink is not None and not self.own:
                self.broker.usage.connected(self.vhost.name, self.user, -1)
        owned, self.owned = list(self.owned), {}
        for queue in owned:
            if self._is_here(queue):
                self.broker.delete_queue(queue)

    def end(self, reason: str) -> None:
        """Close the connection from our side."""
        if self._sink is not None:
            self._sink.shutdown(CONNECTION_FORCED, f"CONNECTION_FORCED - {reason}")

    # Checks -----------------------------------------------------------------------------

    def check_queue_name(self, name: str) -> None:
        """Raises AccessRefused, PreconditionFailed unless this user may declare and delete a queue of this name."""
        _check_name("queue", name)
        self._check("configure", "queue", name)

    def check_configure(self, exchange: str) -> None:
        """Raises AccessRefused unless this user may declare and delete the exchange."""
        self._check("configure", "exchange", exchange)

    def check_write(self, exchange: str) -> None:
        """Raises AccessRefused unless this user may publish to the exchange."""
        self._check("write", "exchange", exchange)

    def check_exchange(self, name: str, type: str, arguments: Arguments) -> None:
        """That this durable exchange could be declared. Raises AccessRefused, PreconditionFailed."""
        _check_name("exchange", name)
        self.check_configure(name)
        spec = ExchangeSpec(self.vhost.name, name, type, True, arguments=arguments)
        check_exchange(spec)
        current = self.vhost.exchanges.get(name)
        if current is not None:
            check_same_exchange(current.spec, spec)

    def check_binding(self, queue: str, exchange: str) -> None:
        """That the queue could be bound there. Raises AccessRefused."""
        self._check("write", "queue", queue)
        self._check("read", "exchange", exchange)

    def check_room_for(self, name: str, queues: int) -> None:
        """That so many queues more may be declared. Raises what the limit of the virtual host says."""
        if queues:
            self.broker.usage.check_queue(self.vhost.name, name, len(self.vhost.queues) + queues - 1)

    def may_read(self, queue: str) -> bool:
        """Whether this user may read from the queue."""
        if self.patterns is not None:
            return allowed_by(self.patterns, "read", queue)
        return self.own or self.broker.access.allows(self.user, self.vhost.name, "read", queue)

    def _check(self, permission: Permission, kind: Any, name: str) -> None:
        if self.own:
            return
        if self.patterns is not None:
            check_patterns(self.patterns, permission, kind, name)
        elif not self._vouched:
            self.broker.access.check(self.user, self.vhost.name, permission, kind, name)
        if kind == "queue" and name == OUTBOX:
            # What is in there is routed without asking whether its sender may, and belongs to whoever that reaches: only
            # the broker puts things in, and only fronts, for themselves, take them out.
            raise AccessRefused(reason=f"queue '{name}' in vhost '{self.vhost.name}' is the broker's own")

    def _check_queue_limit(self, name: str) -> None:
        if not self.own:
            self.broker.usage.check_queue(self.vhost.name, name, len(self.vhost.queues))

    def _check_topic(self, permission: Any, exchange: str, key: str) -> None:
        if not (self.own or self._vouched):
            self.broker.access.check_topic(self.user, self.vhost.name, permission, exchange, key)

    def _check_dead_letter_exchange(self, queue: str, exchange: Any) -> None:
        if not isinstance(exchange, str):
            raise PreconditionFailed(
                reason=f"invalid type '{type_name(exchange)}' for arg 'x-dead-letter-exchange' "
                f"in queue '{queue}' in vhost '{self.vhost.name}'"
            )
        self._check("read", "queue", queue)
        self._check("write", "exchange", exchange)

    def _check_same_queue(
        self, current: Queue, durable: bool, exclusive: bool, auto_delete: bool, arguments: Arguments
    ) -> None:
        spec = current.spec
        if spec.exclusive != exclusive or (exclusive and current not in self.owned):
            raise self._locked(spec.name)
        for name, received in (("durable", durable), ("auto_delete", auto_delete)):
            is_now = getattr(spec, name)
            if is_now != received:
                raise inequivalent(
                    name, "queue", spec, f"'{str(received).lower()}'", f"'{str(is_now).lower()}'"
                )
        check_equivalent(spec.name, spec.vhost, spec.arguments, arguments)

    def _locked(self, name: str) -> ResourceLocked:
        return ResourceLocked(
            reason=f"cannot obtain exclusive access to locked queue '{name}' in vhost '{self.vhost.name}'. "
            "It could be originally declared on another connection or the exclusive property value does not "
            "match that of the original declaration."
        )

    def _binding(
        self, destination: str, to_queue: bool, source: str, key: str, arguments: Arguments | None
    ) -> BindingSpec:
        """The binding that is asked for, when it may be made or ended by this user."""
        destination, source = _without_line_breaks(destination), _without_line_breaks(source)
        self._check("write", "queue" if to_queue else "exchange", destination)
        if not to_queue:
            _check_not_default(destination)
        _check_not_default(source)
        self._check("read", "exchange", source)
        exchange = self.vhost.exchanges.get(source)
        if exchange is not None and exchange.type == "topic":
            self._check_topic("read", source, key)
        return BindingSpec(self.vhost.name, source, destination, to_queue, key, arguments or {})

    def _bind(self, spec: BindingSpec) -> int:
        exchange = self.vhost.exchange(spec.source)
        if spec.to_queue:
            self.queue(spec.destination)
        else:
            self.vhost.exchange(spec.destination)
        exchange.check_binding(spec.arguments)
        return self.broker.bind(spec)

    def _unbind(self, spec: BindingSpec) -> int:
        if spec.to_queue and spec.destination in self.vhost.queues:
            self.queue(spec.destination)
        return self.broker.unbind(spec)

    def _declared(self, queue: Queue) -> Declared:
        queue.refresh()
        return Declared(queue.name, queue.ready, len(queue.consumers), self._all_logged())

    def _all_logged(self) -> int:
        """What to wait for when we report on something that may just have been declared."""
        return self.broker.catalog.last_seq

    def _is_here(self, queue: Queue) -> bool:
        return self.broker.queues.get(queue.number) is queue


def _without_line_breaks(name: str) -> str:
    return name.replace("\r", "").replace("\n", "")


def _check_not_default(exchange: str) -> None:
    if exchange == "":
        raise AccessRefused(reason="operation not permitted on the default exchange")


def _check_name(kind: str, name: str) -> None:
    """Raises AccessRefused, PreconditionFailed unless a new one may have this name."""
    checked_name("an exchange" if kind == "exchange" else "a queue", name)
    if name.startswith("amq."):
        raise AccessRefused(reason=f"{kind} name '{name}' contains reserved prefix 'amq.*'")
