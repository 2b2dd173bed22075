"""One channel of a client whose queues live in several groups.

    client's channel 7 ──► channel 7 at main           always: it has the exchanges, and decides what is allowed
                      └──► channel 7 at each group     opened when the channel first needs the group

A method that is answered is a small generator (`HANDLERS`): it yields what it must know, `Fresh` or `Ask`, and
returns the reply for the client. Until then the channel waits and what the client sends is kept, in order.
Publishes and settlements are not answered; a publish waits only until the copy of the wiring is fresh.

What groups say unasked (deliveries, confirms, cancels) is passed on at once: `Tags` and `Confirms` make one row of
numbers of theirs. An error of any group is the channel's error: the others' channels are closed.

Invariant: replies go out in the order of the methods that they answer, and what a method changes at one group
is confirmed before the next group is asked.
"""

from __future__ import annotations

import struct
from collections import deque
from collections.abc import Callable, Generator, Mapping, Sequence
from dataclasses import dataclass, replace
from enum import Enum, auto
from typing import TYPE_CHECKING, Any, TypeAlias

from tidemark.errors import (
    AccessRefused,
    ChannelError,
    ChannelFault,
    CommandInvalid,
    NotAllowed,
    NotImplementedHere,
    PreconditionFailed,
    TidemarkError,
)
from tidemark.frontend.amqp091.replies import reply_text
from tidemark.model.runs import (
    BODY,
    EXCHANGE,
    FLAGS,
    HAS_EXPIRATION,
    HAS_HEADERS,
    HAS_USER_ID,
    IMMEDIATE,
    KEY,
    PROPERTIES,
    TTL,
    PublishRun,
)
from tidemark.model.wiring import EXCHANGE_HEADER, KEY_HEADER
from tidemark.router import naming
from tidemark.router.confirms import Answer, Confirms
from tidemark.router.link import method_of
from tidemark.router.tags import Tags
from tidemark.router.wiring import MAIN, Permission
from tidemark.wire.amqp091.cutter import DELIVER, GET_OK, RETURN, Piece, retag
from tidemark.wire.amqp091.events import AckRun, MethodFrame, Oversized
from tidemark.wire.amqp091.frames import (
    CONTENT_START,
    ENVELOPE_BYTES,
    FRAME_END,
    FRAME_START,
    HEADER,
    METHOD,
    encode_content,
)
from tidemark.wire.amqp091.methods import (
    AccessRequest,
    BasicAck,
    BasicCancel,
    BasicConsume,
    BasicConsumeOk,
    BasicGet,
    BasicNack,
    BasicQos,
    BasicRecover,
    BasicRecoverAsync,
    BasicReject,
    BasicReturn,
    ChannelClose,
    ChannelCloseOk,
    ChannelFlow,
    ChannelOpen,
    ConfirmSelect,
    ExchangeBind,
    ExchangeDeclare,
    ExchangeDelete,
    ExchangeUnbind,
    Method,
    QueueBind,
    QueueDeclare,
    QueueDeclareOk,
    QueueDelete,
    QueueDeleteOk,
    QueueEnd,
    QueueEndOk,
    QueueMake,
    QueueMakeOk,
    QueuePurge,
    QueueRenew,
    QueueUnbind,
    TxCommit,
    TxRollback,
    TxSelect,
    encode_method,
    ids_of,
)
from tidemark.wire.amqp091.publishes import encode_publishes, publish_frame, stretch, with_entries

if TYPE_CHECKING:
    from tidemark.router.channels import Channels

EVENT_BYTES = 256
"""What a kept event costs besides the bytes of its messages, roughly."""

LOOKED_AT = HAS_HEADERS | HAS_USER_ID | HAS_EXPIRATION | IMMEDIATE
"""Flags of messages whose way may depend on more than exchange and key."""

Event: TypeAlias = PublishRun | AckRun | MethodFrame | Oversized

LARGE = 1 << 17
HEADER_BYTES = ENVELOPE_BYTES + CONTENT_START.size
NOT_FOUND = 404
"""The code of a return for a queue that was named and is not there; the text is its name."""

_DELIVERY_TAG = struct.Struct(">Q")
_ACK_FRAME = struct.Struct(">BHIHHQBB")
ACK, NACK = 60 << 16 | 80, 60 << 16 | 120
CANCEL = 60 << 16 | 30
CLOSE, CLOSE_OK = 20 << 16 | 40, 20 << 16 | 41
OURS = {ids_of(QueueMake), ids_of(QueueEnd), ids_of(QueueRenew)}
"""What no client has asked."""


class State(Enum):
    OPEN = auto()
    WAITING = auto()
    """A method of the client is being answered."""
    CLOSING = auto()
    """We told the client that its channel is closed, and wait for it to say that it heard."""


# What a handler asks for -------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class Fresh:
    """The copy of the wiring, at least as new as what the client has said."""


@dataclass(frozen=True, slots=True)
class Room:
    """No more waits for any link than may."""


@dataclass(frozen=True, slots=True)
class Ask:
    """The same question to these groups; all their answers, in this order."""

    groups: tuple[str, ...]
    method: Method
    then: Callable[[str], None] | None = None
    """Called with each group when it answers, before what it says next is taken."""
    plain: Method | None = None
    """What a leader is asked in its place that does not know lives of queues."""


Handler: TypeAlias = Generator[Fresh | Room | Ask, list[Piece], bytes | None]
"""Returns what the client is sent."""


@dataclass(slots=True)
class _Way:
    """How messages of one exchange and key get to the queues of one group."""

    group: str
    head: bytes = b""
    """The method frame; an empty one is the client's own."""
    entries: bytes = b""
    """What is added to the headers."""


class Channel:
    def __init__(self, channels: Channels, number: int) -> None:
        self.number = number
        self.state = State.OPEN
        self.kept: deque[tuple[Event, int]] = deque()
        """What came while the channel was waiting, each with what it costs to keep."""
        self._channels = channels
        self._router = channels.router
        self._wiring = channels.router.wiring
        self._handler: Handler | None = None
        self.asked: tuple[int, int] = (0, 0)
        """Class and method that is being answered."""
        self._expected: dict[str, deque[Callable[[Piece], None]]] = {}
        """By group whose channel is open: who takes its next reply."""
        self._covered = 0
        """So many of the events that are kept came before the copy was known to be fresh."""
        self._is_covered = False
        """The event that is being taken did."""
        self.asks_since_ms = 0
        """Since when it has waited for a fresh copy; 0: it does not."""
        self._leaving = False
        """The client closes the channel."""
        self._queue = ""
        self._qos: dict[bool, BasicQos] = {}
        self._consumers: dict[str, tuple[str, bool]] = {}
        """Group, and whether its deliveries are settled, by consumer tag."""
        self._tags = Tags()
        self._confirms: Confirms | None = None
        self._in_transactions = False
        self._transaction_group: str | None = None
        self._transaction_settled: list[tuple[int, int]] = []
        self._given_to_main = False
        """Main has got messages of a transaction that is made in another group."""

    # What the client says ------------------------------------------------------------------------------

    def receive(self, event: Event) -> None:
        """Take, keep or ignore one event of this channel.

        Raises:
            ChannelError: the channel must be closed with it (`fail`).
            RemoteProtocolError: so must the connection.
        """
        if self.state is State.OPEN:
            self._is_covered = False
            self._take(event.detached() if isinstance(event, PublishRun) else event)
        elif self.state is State.WAITING:
            self._keep(event)
        elif isinstance(event, MethodFrame):
            self._take_closing(event.method)

    def _take(self, event: Event) -> None:
        """Take an event that is ours to keep for as long as it takes."""
        if isinstance(event, PublishRun):
            self._begin((60, 40), self._publish(event))
        elif isinstance(event, AckRun):
            for first, last in event.ranges:
                self._settle(first, last, _acks)
        elif isinstance(event, Oversized):
            limit = self._router.outside.config.message_bytes_max
            raise PreconditionFailed(
                reason=f"message size {event.size} is larger than configured max size {limit}"
            )
        else:
            self._take_method(event.method)

    def _take_method(self, method: Method) -> None:
        match method:
            case BasicAck(delivery_tag=tag, multiple=multiple):
                self._settle(*_range_of(tag, multiple), _acks)
            case BasicNack(delivery_tag=tag, multiple=multiple, requeue=requeue):
                self._settle(*_range_of(tag, multiple), _nacks(requeue))
            case BasicReject(delivery_tag=tag, requeue=requeue):
                self._settle(*_range_of(tag, False), _nacks(requeue))
            case BasicRecoverAsync():
                for group in self._groups():
                    self._say(group, encode_method(self.number, method))
                self._tags.clear()
            case ChannelOpen():
                raise ChannelFault(reason="second 'channel.open' seen")
            case _:
                handler = HANDLERS.get(type(method))
                if handler is None:
                    raise CommandInvalid(reason=f"{type(method).__name__} is not expected on an open channel")
                self._begin(ids_of(method), handler(self, method))

    def _take_closing(self, method: Method) -> None:
        if isinstance(method, ChannelClose):
            self._tell(ChannelCloseOk())
        elif isinstance(method, ChannelCloseOk):
            self._channels.forget(self)

    def wait(self) -> None:
        """The number is still known to a group: keep what comes until `open`."""
        self.state = State.WAITING
        self._channels.pause(self)

    def open(self) -> None:
        """The client has opened the channel: so do we, at main."""
        self._begin(ids_of(ChannelOpen), self._open())

    # Waiting -------------------------------------------------------------------------------------------

    def _keep(self, event: Event) -> None:
        cost = EVENT_BYTES
        if isinstance(event, PublishRun):
            event = event.detached()
            cost += len(event.data)
        self.kept.append((event, cost))
        self._channels.kept_bytes += cost

    def drop_kept(self) -> None:
        while self.kept:
            self._channels.kept_bytes -= self.kept.pop()[1]

    def _begin(self, ids: tuple[int, int], handler: Handler) -> None:
        self.state = State.WAITING
        self._handler, self.asked = handler, ids
        self._channels.pause(self)
        self._step(None)

    def _step(self, answers: list[Piece] | None) -> None:
        """Let the handler go on until it has to wait again; when it is done, so is the wait.

        Raises:
            ChannelError, RemoteProtocolError: as `receive`.
        """
        handler = self._handler
        while True:
            assert handler is not None
            try:
                wanted = handler.send(answers)  # type: ignore[arg-type]
            except StopIteration as done:
                self._done(done.value)
                return
            if isinstance(wanted, Ask):
                # What it changes must be seen by what follows.
                self._covered = 0
                self._is_covered = False
                self._ask(wanted)
                return
            if isinstance(wanted, Room):
                if not self._router.links_have_room():
                    self._wait_for_room(handler)
                    return
            elif not self._is_covered and not self._is_fresh(handler):
                return
            answers = []

    def _is_fresh(self, handler: Handler) -> bool:
        """Ask for a fresh copy. Returns whether it is there at once; if not, the handler goes on later."""
        covered, waited, there = len(self.kept), False, False

        def then() -> None:
            nonlocal there
            there = True
            if waited and self._handler is handler:
                self.asks_since_ms = 0
                self._covered = covered
                self._channels.guarded(self, lambda: self._step([]))

        self._wiring.fresh(then)
        waited = True
        self.asks_since_ms = 0 if there else self._router.now_ms
        return there

    def _wait_for_room(self, handler: Handler) -> None:
        def then() -> None:
            if self._handler is handler:
                self._channels.guarded(self, lambda: self._step([]))

        self._channels.when_there_is_room(then)

    def _done(self, reply: bytes | None) -> None:
        self._handler = None
        if self.state is not State.WAITING:
            return
        self.state = State.OPEN
        if reply:
            self._router.send(reply)
        self._channels.resume(self)

    def next_kept(self) -> Event | None:
        """The oldest event that was kept, if the channel need not wait; it is the caller's now."""
        if self.state is not State.OPEN or not self.kept:
            return None
        event, cost = self.kept.popleft()
        self._channels.kept_bytes -= cost
        return event

    def take_kept(self, event: Event) -> None:
        """Take an event from `next_kept`; raises as `receive`."""
        self._is_covered = self._covered > 0
        self._covered = max(0, self._covered - 1)
        self._take(event)

    # Groups --------------------------------------------------------------------------------------------

    def _ask(self, ask: Ask) -> None:
        answers: dict[str, Piece] = {}

        def taking(group: str) -> Callable[[Piece], None]:
            def take(piece: Piece) -> None:
                answers[group] = piece
                if ask.then is not None:
                    ask.then(group)
                if len(answers) == len(ask.groups):
                    self._step([answers[each] for each in ask.groups])

            return take

        data = encode_method(self.number, ask.method)
        plain = None if ask.plain is None else encode_method(self.number, ask.plain)
        for group in ask.groups:
            self._say(group, data, plain)
            self._expected[group].append(taking(group))

    def _say(self, group: str, data: bytes, plain: bytes | None = None) -> None:
        """Send to a group, on a channel that is opened there if it is not yet."""
        link = self._router.link_to(group)
        if group not in self._expected:
            expected = self._expected[group] = deque()
            if group != MAIN:
                first: list[Method] = [ChannelOpen(), *self._qos.values()]
                if self._confirms is not None:
                    first.append(ConfirmSelect())
                if self._in_transactions:
                    first.append(TxSelect())
                link.send(b"".join(encode_method(self.number, method) for method in first))
                expected.extend([_swallow] * len(first))
        link.send(data, plain)

    def heard(self, group: str, piece: Piece) -> None:
        """A group says something on its channel.

        Raises:
            ChannelError, RemoteProtocolError: as `receive`.
        """
        if self.state is State.CLOSING or group not in self._expected:
            return
        code = piece[1]
        if code == DELIVER:
            self._deliver(group, piece)
        elif code in (ACK, NACK):
            answer = method_of(piece)
            assert isinstance(answer, BasicAck | BasicNack)
            self._confirmed(group, answer)
        elif code == RETURN:
            self._returned(group, piece)
        elif code == CANCEL:
            cancel = method_of(piece)
            assert isinstance(cancel, BasicCancel)
            self._consumers.pop(cancel.consumer_tag, None)
            self._router.send(piece[3])
        elif code == CLOSE:
            self._closed_by(group, piece)
        elif self._expected[group]:
            self._expected[group].popleft()(piece)
        else:
            self._router.links[group].lose("it answered what was not asked")

    def _deliver(self, group: str, piece: Piece) -> None:
        frames = piece[3]
        size = frames[11]
        consumer = self._consumers.get(str(frames[12 : 12 + size], "utf-8", "surrogateescape"))
        (first,) = _DELIVERY_TAG.unpack_from(frames, 12 + size)
        new = self._tags.add(group, first, piece[2], consumer is None or consumer[1])
        self._router.send(frames if new == first else retag(frames, new))

    def _closed_by(self, group: str, piece: Piece) -> None:
        """A group has closed its channel: so is the client's, with the same words."""
        self._router.links[group].send(encode_method(self.number, ChannelCloseOk()))
        if self._leaving:
            return
        close = method_of(piece)
        assert isinstance(close, ChannelClose)
        if (close.class_id, close.method_id) in OURS:
            close.class_id, close.method_id = self.asked
        del self._expected[group]
        self._shut()
        self._tell(close)

    # The end -------------------------------------------------------------------------------------------

    def fail(self, error: TidemarkError, ids: tuple[int, int]) -> None:
        """What the client asked for cannot be: tell it, and wait for it to say that it heard."""
        if self.state is State.CLOSING:
            return
        ids = self.asked if self.state is State.WAITING else ids
        self._shut()
        self._tell(ChannelClose(error.amqp091, reply_text(error), *ids))

    def _shut(self) -> None:
        """Close the channel wherever it is open, and wait for the client's Close-Ok only."""
        self.release()
        self.state = State.CLOSING
        close = encode_method(self.number, ChannelClose(200, ""))
        for group in self._expected:
            self._router.links[group].send(close)
            self._channels.drain(group, self.number)
        self._expected.clear()
        self._channels.resume(self)

    def release(self) -> None:
        """Nobody will take what was kept, or answer what was asked."""
        self.drop_kept()
        self._handler = None

    def _tell(self, method: Method) -> None:
        self._router.send(encode_method(self.number, method))

    # Publishing ----------------------------------------------------------------------------------------

    def _publish(self, run: PublishRun) -> Handler:
        yield Fresh()
        row = 0
        while row < len(run):
            yield Room()
            row, refused = self._route(run, row)
            if refused:
                # Main says why, behind all that it has to say about what came before. If it has changed its mind, go on.
                yield Ask((MAIN,), ChannelFlow(True))
        return None

    def _route(self, run: PublishRun, row: int) -> tuple[int, bool]:
        """Send the publishes of a run, from this row on, to the groups that they belong to.

        What groups are sent may be much more than what the client sent, so it ends when that is as much as may wait.

        Returns:
            The row behind the last one, and whether that one is refused.
        """
        router, wiring = self._router, self._wiring
        out: dict[str, list[bytes]] = {}
        known: dict[tuple[bytes, bytes], tuple[object, list[_Way]]] = {}
        refused, left = False, router.outside.config.kept_bytes_max
        try:
            while row < len(run) and not refused and left > 0:
                exchange, key = run.part(row, EXCHANGE), run.part(row, KEY)
                properties, seen = run.part(row, PROPERTIES), (run.number(row, FLAGS), run.number(row, TTL))
                if seen[0] & IMMEDIATE:
                    raise NotImplementedHere(reason="immediate=true")
                try:
                    routes = wiring.routes(
                        router.vhost, exchange, key, properties, user=router.user, seen=seen
                    )
                except ChannelError:
                    if not (exchange or key):
                        raise
                    ways, refused = [_Way(MAIN)], True
                else:
                    before, ways = known.get((exchange, key), (None, []))
                    if before is not routes:
                        ways = self._ways(exchange, key, routes)
                        known[exchange, key] = routes, ways
                # Groups number what they are given: all of one message goes before any of the next, unless each is one
                # publish to each group.
                alike = not refused and _is_one_each(ways)
                end = stretch(run, row, LOOKED_AT) if alike else row + 1
                end = min(end, row + 1 + left // (1 + sum(len(way.entries) for way in ways)))
                left -= self._send(out, ways, run, row, end)
                row = end
        finally:
            for group, frames in out.items():
                self._say(group, b"".join(frames))
        return row, refused

    def _send(
        self, out: dict[str, list[bytes]], ways: list[_Way], run: PublishRun, first: int, last: int
    ) -> int:
        """Add the rows from `first` to before `last`, which all go these ways, to what groups are sent.

        Returns how many bytes that are.
        """
        frame_max = self._router.frame_max
        parts, size = [], 0
        for way in ways:
            if self._in_transactions:
                self._stay_in(way.group)
            if way.entries:
                if run.number(first, FLAGS) & HAS_HEADERS:
                    run, first, last = _without_names(run, first)
                self._check_room(run, first, last, way.entries)
            frames = out.setdefault(way.group, [])
            frames.append(encode_publishes(run, first, last, way.head, way.entries, frame_max))
            size += len(frames[-1])
            parts.append((way.group, 1))
        if self._confirms is not None:
            self._confirms.add(parts, last - first)
        return size

    def _check_room(self, run: PublishRun, first: int, last: int, entries: bytes) -> None:
        """Raises PreconditionFailed when the header of a message is larger than a frame."""
        limit = self._router.frame_max
        size = max(run.number(row, PROPERTIES + 1) for row in range(first, last)) + 4 + len(entries)
        if limit and size + HEADER_BYTES > limit:
            raise PreconditionFailed(
                reason=f"properties and the names of queues take {size} bytes, and a frame has {limit}"
            )

    def _ways(self, exchange: bytes, key: bytes, routes: Mapping[str, Sequence[str]]) -> list[_Way]:
        """How a message gets to its queues, group by group.

        What goes to queues of main only, or to none, is main's to route: it says what is wrong with it, too. Only what
        looks like a front's own words (`naming`) is not passed on as a client says it.
        """
        if not routes or (len(routes) == 1 and MAIN in routes):
            if exchange or key:
                return [_Way(MAIN)]
            return [_Way(MAIN, entries=naming.entries(routes.get(MAIN, ()), exchange, key))]
        head, size = publish_frame(self.number, b"", b"", 0), (self._router.frame_max or LARGE) // 2
        return [
            _Way(group, head, naming.entries(some, exchange, key))
            for group, queues in routes.items()
            if queues
            for some in naming.parted(queues, size)
        ]

    def _confirmed(self, group: str, answer: Answer) -> None:
        if self._confirms is not None:
            accepted = isinstance(answer, BasicAck)
            for each in self._confirms.take(group, answer.delivery_tag, accepted):
                self._tell(each)

    def _returned(self, group: str, piece: Piece) -> None:
        """A message found no queue.

        What main had to route is the client's to know. Another group was given it for a queue that main knows of and
        it does not have, because somebody died between declaring it there and here: main's own queue of that name
        takes the message, and whoever moves messages on brings it to the group. A queue that main has lost, too, was
        deleted meanwhile.
        """
        returned = method_of(piece)
        assert isinstance(returned, BasicReturn)
        if returned.exchange or returned.routing_key:
            self._router.send(piece[3])
        elif returned.reply_code != NOT_FOUND:
            self._return_as_sent(piece, returned)
        elif group != MAIN:
            self._give_to_main(group, returned.reply_text, piece)

    def _give_to_main(self, group: str, queue: str, piece: Piece) -> None:
        properties, body = _content_of(piece)
        properties, said = naming.without_entries(properties)
        exchange, key = (_raw(said.get(name, "")) for name in (EXCHANGE_HEADER, KEY_HEADER))
        properties = with_entries(properties, naming.entries([queue], exchange, key))
        if self._confirms is not None:
            self._confirms.also(group, MAIN)
        self._given_to_main = self._in_transactions
        content = encode_content(self.number, properties, body, self._router.frame_max)
        self._say(MAIN, publish_frame(self.number, b"", b"", 0) + content)

    def _return_as_sent(self, piece: Piece, returned: BasicReturn) -> None:
        """Main returns what it was given by a list of queues: the client sees it without that."""
        properties, body = _content_of(piece)
        properties, _ = naming.without_entries(properties)
        content = encode_content(self.number, properties, body, self._router.frame_max)
        self._router.send(encode_method(self.number, returned) + content)

    # Settling ------------------------------------------------------------------------------------------

    def _settle(self, first: int, last: int, encode: Callable[[int, int, int], bytes]) -> None:
        planned = self._tags.plan(first, last)
        if self._in_transactions:
            for group, _, _ in planned:
                self._stay_in(group)
            # "All" is what the client has been given when it says so, not at the commit.
            self._transaction_settled.append((first, last or self._tags.last))
        else:
            self._tags.settle(first, last)
        for group, lowest, highest in planned:
            self._say(group, encode(self.number, lowest, highest))

    # Transactions --------------------------------------------------------------------------------------

    def _stay_in(self, group: str) -> None:
        """Raises NotImplementedHere when a transaction would span groups."""
        if self._transaction_group not in (None, group):
            raise NotImplementedHere(
                reason=f"a transaction stays in one group; this one has messages of group "
                f"'{self._transaction_group}' and of group '{group}'"
            )
        self._transaction_group = group

    def _select_transactions(self, method: TxSelect) -> Handler:
        pieces = yield Ask(self._groups(), method)
        self._in_transactions = True
        return pieces[0][3]

    def _commit(self, method: TxCommit | TxRollback) -> Handler:
        (piece,) = yield Ask((self._transaction_group or MAIN,), method)
        if self._given_to_main:
            yield Ask((MAIN,), TxCommit())
            self._given_to_main = False
        self._transaction_group = None
        settled, self._transaction_settled = self._transaction_settled, []
        if isinstance(method, TxCommit):
            for first, last in settled:
                self._tags.settle(first, last)
        return piece[3]

    # Methods that are answered -------------------------------------------------------------------------

    def _groups(self) -> tuple[str, ...]:
        """Where the channel is open."""
        return tuple(self._expected) or (MAIN,)

    def _open(self) -> Handler:
        (piece,) = yield Ask((MAIN,), ChannelOpen())
        return piece[3]

    def _close(self, method: ChannelClose) -> Handler:
        self._leaving = True
        pieces = yield Ask(self._groups(), method)
        self._channels.forget(self)
        return pieces[0][3]

    def _pass_to_main(self, method: Method) -> Handler:
        (piece,) = yield Ask((MAIN,), _waited_for(method))
        return None if _is_no_wait(method) else piece[3]

    def _recover(self, method: BasicRecover) -> Handler:
        # A group that has answered delivers anew while others are still asked.
        pieces = yield Ask(self._groups(), method, self._tags.forget)
        return pieces[0][3]

    def _pass_to_all(self, method: ConfirmSelect | BasicQos) -> Handler:
        pieces = yield Ask(self._groups(), _waited_for(method))
        match method:
            case ConfirmSelect() if self._confirms is None:
                self._confirms = Confirms()
            case BasicQos(global_=global_):
                self._qos[global_] = method
        return None if _is_no_wait(method) else pieces[0][3]

    def _declare_queue(self, method: QueueDeclare) -> Handler:
        yield Fresh()
        group = self._placed(method)
        (piece,) = yield Ask((MAIN,), _waited_for(method))
        if group != MAIN and method.passive:
            yield from self._ready(group, method.queue, None)
            (piece,) = yield Ask((group,), _waited_for(method))
        declared = method_of(piece)
        if group != MAIN and not method.passive:
            declared = yield from self._make(method)
        assert isinstance(declared, QueueDeclareOk)
        self._queue = declared.queue
        return None if method.no_wait else encode_method(self.number, declared)

    def _make(self, method: QueueDeclare) -> Generator[Fresh | Room | Ask, list[Piece], QueueDeclareOk]:
        """Main has been told that the queue is declared: declare it in its group, in the life that main has it in."""
        while True:
            yield Fresh()
            made = yield from self._made(method)
            if made is not None:
                return made
            (piece,) = yield Ask((MAIN,), _waited_for(method))
            if self._wiring.group_of(self._router.vhost, method.queue) == MAIN:
                declared = method_of(piece)
                assert isinstance(declared, QueueDeclareOk)
                return declared

    def _made(
        self, method: QueueDeclare
    ) -> Generator[Fresh | Room | Ask, list[Piece], QueueDeclareOk | None]:
        """See that the queue is in its group, in the life that main has it in. None: main has it no more, or keeps it itself.

        A life that is over is not begun again: main begins the next. Somebody may be about to delete the queue from main, and
        will find that it is another; or has died.
        """
        router, queue = self._router, method.queue
        while True:
            spec = self._wiring.spec_of(router.vhost, queue)
            if spec is None or not spec.group:
                return None
            wanted: Method = _waited_for(method)
            plain = None
            if spec.incarnation:
                plain, wanted = wanted, QueueMake(queue, spec.incarnation, method.durable, method.arguments)
            (piece,) = yield Ask((spec.group,), wanted, plain=plain)
            made = method_of(piece)
            if not isinstance(made, QueueMakeOk):
                assert isinstance(made, QueueDeclareOk)
                return made
            if not made.gone:
                return QueueDeclareOk(queue, made.message_count, made.consumer_count)
            yield Ask((MAIN,), QueueRenew(queue, spec.incarnation, made.gone), plain=ChannelFlow(True))
            yield Fresh()

    def _placed(self, method: QueueDeclare) -> str:
        vhost = self._router.vhost
        if method.passive or not method.queue:
            return (method.queue and self._wiring.group_of(vhost, method.queue)) or MAIN
        return self._wiring.place(
            vhost, method.queue, method.durable, method.exclusive, method.auto_delete, method.arguments
        )

    def _ready(
        self, group: str, queue: str, permission: Permission | None
    ) -> Generator[Fresh | Room | Ask, list[Piece], None]:
        """Before a queue of another group is used there: main has the last word about who may.

        A queue that main has and the group may not, because somebody died between the two, is made by whoever uses it
        next, if that user could have declared it. It is asked once a connection and queue: what is there stays as it is.
        """
        if group == MAIN:
            return
        router, wiring = self._router, self._wiring
        if permission is not None:
            wiring.check(router.vhost, router.user, permission, queue)
        spec = wiring.spec_of(router.vhost, queue)
        if spec is None or (queue, spec.life) in router.seen:
            return
        try:
            wiring.check(router.vhost, router.user, "configure", queue)
        except AccessRefused:
            return
        # A stream may have got more shards since: that is only known where it lives.
        arguments = {name: value for name, value in spec.arguments.items() if name != "x-stream-shards"}
        yield from self._made(QueueDeclare(queue=queue, durable=spec.durable, arguments=arguments))
        spec = wiring.spec_of(router.vhost, queue)
        if spec is not None:
            router.seen.add((queue, spec.life))

    def _delete_queue(self, method: QueueDelete) -> Handler:
        yield Fresh()
        group, name = self._home(method.queue)
        no_wait = method.no_wait
        method = _waited_for(replace(method, queue=name))
        while group == MAIN:
            # If we have stood still it may be another queue by now, which lives elsewhere: main leaves that alone.
            end = QueueEnd(name, 0, method.if_unused, method.if_empty) if name else method
            (piece,) = yield Ask((MAIN,), end, plain=method)
            ended = method_of(piece)
            assert isinstance(ended, QueueEndOk | QueueDeleteOk)
            if not getattr(ended, "other", 0):
                deleted = QueueDeleteOk(ended.message_count)
                break
            yield Fresh()
            group, _ = self._home(name)
        else:
            self._wiring.check(self._router.vhost, self._router.user, "configure", name)
            deleted = yield from self._end(group, method)
        return None if no_wait else encode_method(self.number, deleted)

    def _end(
        self, group: str, method: QueueDelete
    ) -> Generator[Fresh | Room | Ask, list[Piece], QueueDeleteOk]:
        """Delete a queue in its group, and then its name in main, if it is in the same life there.

        If it is not, somebody has used it meanwhile: it is deleted in that life, too, as long as it is the same queue. Main's queue of
        that name may hold messages that nobody has moved on yet. If it stays for them, it is in a new life when they are.
        """
        router, wiring, name = self._router, self._wiring, method.queue
        spec = first = wiring.spec_of(router.vhost, name)
        count, in_main = 0, QueueDelete(queue=name, if_empty=method.if_empty)
        while spec is not None and first is not None and spec.number == first.number:
            router.seen.discard((name, spec.life))
            life = spec.incarnation
            end = QueueEnd(name, life, method.if_unused, method.if_empty) if life else method
            (piece,) = yield Ask((group,), end, plain=method)
            ended = method_of(piece)
            assert isinstance(ended, QueueEndOk | QueueDeleteOk)
            count += ended.message_count
            other = getattr(ended, "other", 0)
            if other:
                # Main may be older than the group. If not, this changes nothing.
                yield Ask((MAIN,), QueueRenew(name, life, other), plain=ChannelFlow(True))
            else:
                wanted = QueueEnd(name, life, if_empty=method.if_empty) if life else in_main
                (piece,) = yield Ask((MAIN,), wanted, plain=in_main)
                if not getattr(method_of(piece), "other", 0):
                    break
            yield Fresh()
            spec = wiring.spec_of(router.vhost, name)
        return QueueDeleteOk(count)

    def _purge_queue(self, method: QueuePurge) -> Handler:
        yield Fresh()
        group, name = self._home(method.queue)
        yield from self._ready(group, name, "read")
        (piece,) = yield Ask((group,), _waited_for(replace(method, queue=name)))
        return None if method.no_wait else piece[3]

    def _consume(self, method: BasicConsume) -> Handler:
        yield Fresh()
        group, name = self._home(method.queue)
        if method.consumer_tag in self._consumers:
            raise NotAllowed(reason=f"attempt to reuse consumer tag '{method.consumer_tag}'")
        yield from self._ready(group, name, "read")
        if method.consumer_tag:
            self._consumers[method.consumer_tag] = group, not method.no_ack
        (piece,) = yield Ask((group,), _waited_for(replace(method, queue=name)))
        consumed = method_of(piece)
        assert isinstance(consumed, BasicConsumeOk)
        self._consumers[consumed.consumer_tag] = group, not method.no_ack
        return None if method.no_wait else piece[3]

    def _cancel(self, method: BasicCancel) -> Handler:
        group, _ = self._consumers.get(method.consumer_tag, (MAIN, True))
        (piece,) = yield Ask((group,), _waited_for(method))
        # Until now it may have been sent more.
        self._consumers.pop(method.consumer_tag, None)
        return None if method.no_wait else piece[3]

    def _get(self, method: BasicGet) -> Handler:
        yield Fresh()
        group, name = self._home(method.queue)
        yield from self._ready(group, name, "read")
        (piece,) = yield Ask((group,), replace(method, queue=name))
        if piece[1] != GET_OK:
            return piece[3]
        frames = bytearray(piece[3])
        (tag,) = _DELIVERY_TAG.unpack_from(frames, 11)
        _DELIVERY_TAG.pack_into(frames, 11, self._tags.add(group, tag, 1, not method.no_ack))
        return bytes(frames)

    def _home(self, queue: str) -> tuple[str, str]:
        """The group that a queue is in, and its name; an empty name is the queue that was declared last.

        Of a queue that nobody knows main says so.
        """
        name = queue or self._queue
        return (name and self._wiring.group_of(self._router.vhost, name)) or MAIN, name


HANDLERS: dict[type[Method], Callable[[Channel, Any], Handler]] = {
    ChannelClose: Channel._close,
    ChannelFlow: Channel._pass_to_main,
    AccessRequest: Channel._pass_to_main,
    ExchangeDeclare: Channel._pass_to_main,
    ExchangeDelete: Channel._pass_to_main,
    ExchangeBind: Channel._pass_to_main,
    ExchangeUnbind: Channel._pass_to_main,
    QueueDeclare: Channel._declare_queue,
    QueueBind: Channel._pass_to_main,
    QueueUnbind: Channel._pass_to_main,
    QueuePurge: Channel._purge_queue,
    QueueDelete: Channel._delete_queue,
    BasicQos: Channel._pass_to_all,
    BasicConsume: Channel._consume,
    BasicCancel: Channel._cancel,
    BasicGet: Channel._get,
    BasicRecover: Channel._recover,
    ConfirmSelect: Channel._pass_to_all,
    TxSelect: Channel._select_transactions,
    TxCommit: Channel._commit,
    TxRollback: Channel._commit,
}


def _is_one_each(ways: Sequence[_Way]) -> bool:
    """Whether no group gets a message in more than one publish."""
    return len({way.group for way in ways}) == len(ways)


def _swallow(_: Piece) -> None:
    """The answer to what the client has not asked."""


def _waited_for(method: Any) -> Any:
    """The same method, to be answered."""
    return replace(method, no_wait=False) if _is_no_wait(method) else method


def _is_no_wait(method: Method) -> bool:
    return getattr(method, "no_wait", False)


def _range_of(tag: int, multiple: bool) -> tuple[int, int]:
    if not tag and not multiple:
        raise PreconditionFailed(reason="unknown delivery tag 0")
    return (0 if multiple else tag), tag


def _acks(channel: int, first: int, last: int) -> bytes:
    if not first:
        return encode_method(channel, BasicAck(last, True))
    pack = _ACK_FRAME.pack
    return b"".join([pack(METHOD, channel, 13, 60, 80, tag, 0, FRAME_END) for tag in range(first, last + 1)])


def _nacks(requeue: bool) -> Callable[[int, int, int], bytes]:
    def encode(channel: int, first: int, last: int) -> bytes:
        if not first:
            return encode_method(channel, BasicNack(last, True, requeue))
        return b"".join(
            encode_method(channel, BasicNack(tag, False, requeue)) for tag in range(first, last + 1)
        )

    return encode


def _content_of(piece: Piece) -> tuple[bytes, bytes]:
    """Properties and body of the message in a piece."""
    frames = piece[3]
    at = ENVELOPE_BYTES + int.from_bytes(frames[3:7], "big")
    properties, body = b"", []
    while at < len(frames):
        kind, _, size = FRAME_START.unpack_from(frames, at)
        start = at + FRAME_START.size
        if kind == HEADER:
            properties = frames[start + CONTENT_START.size : start + size]
        else:
            body.append(frames[start : start + size])
        at += size + ENVELOPE_BYTES
    return properties, b"".join(body)


def _raw(value: Any) -> bytes:
    return value if isinstance(value, bytes) else str(value).encode("utf-8", "surrogateescape")


def _without_names(run: PublishRun, row: int) -> tuple[PublishRun, int, int]:
    """A message that says nothing in a front's own headers, as a run of one: the same, or a copy without them."""
    properties = run.part(row, PROPERTIES)
    if not naming.are_in(properties):
        return run, row, row + 1
    properties, _ = naming.without_entries(properties)
    parts = run.part(row, EXCHANGE), run.part(row, KEY), properties, run.part(row, BODY)
    copy = PublishRun(run.channel, b"".join(parts))
    places, at = [], 0
    for part in parts:
        places.append((at, len(part)))
        at += len(part)
    copy.add(places[0], places[1], places[2], places[3], run.number(row, FLAGS))
    return copy, 0, 1
