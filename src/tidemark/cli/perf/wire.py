"""The two ends of `tidemark perf`: a publisher and a consumer, each on a connection of its own with one channel.

The codec is `tidemark.wire.amqp091`. What is done for every message is written out here instead: a message is three
pieces that are joined, of which only the middle one changes; a delivery whose frames have come whole is read with
three looks. What is in a message:

    0      4           6        14              22
    +------+-----------+--------+---------------+---------+
    | run  | publisher | number | sent at (ns)  | padding |
    +------+-----------+--------+---------------+---------+

Invariant: a publisher never has more than its window of messages that are not confirmed.
"""

from __future__ import annotations

import asyncio
import struct
import time
from collections import deque
from collections.abc import Iterator
from dataclasses import dataclass
from typing import TypeVar, cast

from tidemark.cli.perf.tally import Book, Latencies
from tidemark.errors import TidemarkError
from tidemark.wire.amqp091 import methods as m
from tidemark.wire.amqp091.frames import (
    BASIC,
    BODY,
    CONTENT_START,
    ENVELOPE_BYTES,
    FRAME_END,
    FRAME_START,
    HEADER,
    METHOD,
    PROTOCOL_HEADER,
    encode_frame,
)
from tidemark.wire.amqp091.properties import Properties, encode_properties

STAMP = struct.Struct(">IHQQ")
"""Run, publisher, number, time."""
SIZE_MIN = STAMP.size
TAG = "p"
"""Consumer tag; one letter, so that what follows it has its place."""

_ACK = struct.Struct(">BHIHHQB")
_DELIVER = struct.Struct(">BHIHHBsQB")
_HEADER = struct.Struct(">BHIHHQ")
_BODY = struct.Struct(">BHIIHQQ")
ACK_ID, NACK_ID, DELIVER_ID = 80, 120, 60
BATCH = 256
"""Most messages that are handed to the system at a time."""
FRAME_MAX = 131_072
UNKNOWN = -1

M = TypeVar("M", bound=m.Method)


class PeerError(Exception):
    """The broker refused something, or the connection has ended."""


@dataclass(frozen=True, slots=True)
class Login:
    user: str
    password: str
    vhost: str


class Peer(asyncio.Protocol):
    """One connection with channel 1, as a client."""

    def __init__(self, login: Login) -> None:
        self.login = login
        self.blocked = False
        """The broker has asked its publishers to wait."""
        self.failed: PeerError | None = None
        self.frame_max = FRAME_MAX
        self.transport: asyncio.Transport
        self.closing = False
        self._rest = b""
        self._waiting: tuple[type[m.Method], asyncio.Future[m.Method]] | None = None
        self._writable = True

    # Called by the loop ---------------------------------------------------------------------------

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self.transport = cast(asyncio.Transport, transport)

    def connection_lost(self, exc: Exception | None) -> None:
        if not self.closing:
            self._fail(f"the broker closed the connection{f': {exc}' if exc else ''}")

    def pause_writing(self) -> None:
        self._writable = False

    def resume_writing(self) -> None:
        self._writable = True

    def data_received(self, data: bytes) -> None:
        if self._rest:
            data = self._rest + data
        position, size = 0, len(data)
        while size - position >= ENVELOPE_BYTES:
            used = self.quickly(data, position, size)
            if used:
                position = used
                continue
            kind, _channel, length = FRAME_START.unpack_from(data, position)
            end = position + FRAME_START.size + length
            if end >= size:
                break
            if data[end] != FRAME_END:
                self._fail("what the broker sends is not AMQP 0-9-1")
                return
            self._frame(kind, data[position + FRAME_START.size : end])
            position = end + 1
        self._rest = data[position:]
        self.settled()

    # What the two ends do with it ---------------------------------------------------------------

    def quickly(self, data: bytes, position: int, size: int) -> int:  # noqa: ARG002
        """Deal with what is usual at `position`; where it ends, or 0 to have it done at leisure."""
        return 0

    def content(self, kind: int, payload: bytes) -> None:
        """A header or body frame that was not dealt with quickly."""

    def settled(self) -> None:
        """All that has come was dealt with."""

    def other(self, method: m.Method) -> None:
        """A method that nobody waits for."""

    # Asking -----------------------------------------------------------------------------------------

    async def ask(self, method: m.Method, answer: type[M]) -> M:
        """Send a method and wait for its answer."""
        if self.failed is not None:
            raise self.failed
        future: asyncio.Future[m.Method] = asyncio.get_running_loop().create_future()
        self._waiting = (answer, future)
        channel = 0 if m.ids_of(method)[0] == 10 else 1
        self.transport.write(m.encode_method(channel, method))
        found = await future
        assert isinstance(found, answer)
        return found

    async def open(self) -> None:
        """Log in and open the channel."""
        future: asyncio.Future[m.Method] = asyncio.get_running_loop().create_future()
        self._waiting = (m.ConnectionStart, future)
        self.transport.write(PROTOCOL_HEADER)
        await future
        secret = f"\0{self.login.user}\0{self.login.password}".encode()
        told = {
            "product": "tidemark perf",
            "capabilities": {
                "basic.nack": True,
                "connection.blocked": True,
                "publisher_confirms": True,
                "authentication_failure_close": True,
            },
        }
        tune = await self.ask(m.ConnectionStartOk(told, "PLAIN", secret, "en_US"), m.ConnectionTune)
        self.frame_max = min(tune.frame_max or FRAME_MAX, FRAME_MAX)
        self.transport.write(m.encode_method(0, m.ConnectionTuneOk(1, self.frame_max, 0)))
        await self.ask(m.ConnectionOpen(self.login.vhost), m.ConnectionOpenOk)
        await self.ask(m.ChannelOpen(), m.ChannelOpenOk)

    async def close(self) -> None:
        self.closing = True
        if self.failed is None:
            try:
                async with asyncio.timeout(2):
                    await self.ask(m.ConnectionClose(200, "done"), m.ConnectionCloseOk)
            except (TimeoutError, PeerError):
                pass
        self.transport.close()

    # -----------------------------------------------------------------------------------------------

    def _frame(self, kind: int, payload: bytes) -> None:
        if kind == METHOD:
            try:
                self._method(m.decode_method(payload))
            except TidemarkError as problem:
                self._fail(f"what the broker sends is not AMQP 0-9-1: {problem}")
        elif kind in (HEADER, BODY):
            self.content(kind, payload)

    def _method(self, method: m.Method) -> None:
        if self._waiting is not None and isinstance(method, self._waiting[0]):
            _, future = self._waiting
            self._waiting = None
            if not future.done():
                future.set_result(method)
            return
        match method:
            case m.ConnectionClose(reply_code=code, reply_text=text):
                self.transport.write(m.encode_method(0, m.ConnectionCloseOk()))
                self._fail(f"the broker refused: {code} {text}")
            case m.ChannelClose(reply_code=code, reply_text=text):
                self.transport.write(m.encode_method(1, m.ChannelCloseOk()))
                self._fail(f"the broker refused: {code} {text}")
            case m.ConnectionBlocked():
                self.blocked = True
            case m.ConnectionUnblocked():
                self.blocked = False
            case m.BasicCancel():
                self._fail("the broker cancelled the consumer: its queue is gone")
            case _:
                self.other(method)

    def _fail(self, sentence: str) -> None:
        if self.failed is None:
            self.failed = PeerError(sentence)
        if self._waiting is not None:
            _, future = self._waiting
            self._waiting = None
            if not future.done():
                future.set_exception(self.failed)


@dataclass(slots=True)
class _Sent:
    """Messages that were sent at the same time and are not confirmed."""

    first: int
    last: int
    at_ns: int


@dataclass(frozen=True, slots=True)
class Form:
    """What every message of a publisher is like."""

    exchange: str
    routing_key: str
    size: int
    persistent: bool
    keys: tuple[str, ...] = ()
    """Message ids, used in turn; none: messages have no id."""


class Publisher(Peer):
    """Publishes numbered messages, as fast as its window and its rate let it."""

    def __init__(self, login: Login, run: int, index: int, form: Form, *, window: int, rate: float) -> None:
        super().__init__(login)
        self.run, self.index, self.form = run, index, form
        self.window, self.rate = window, rate
        self.latencies = Latencies()
        self.published = 0
        self.confirmed = 0
        self.count_max: int | None = None
        """Stop after so many."""
        self.active = False
        self.nacked: set[int] = set()
        self._unconfirmed: deque[_Sent] = deque()
        self._early: set[int] = set()
        """Confirmed while an older one was not."""
        self._began_s = 0.0
        self._heads: list[bytes] = []
        self._tail = b""

    @property
    def outstanding(self) -> int:
        return self.published - self.confirmed - len(self.nacked) if self.window else 0

    @property
    def finished(self) -> bool:
        return self.count_max is not None and self.published >= self.count_max

    def confirmed_numbers(self) -> Iterator[int]:
        """All messages that the broker has confirmed."""
        if not self.window:
            yield from range(1, self.published + 1)
            return
        low = self._unconfirmed[0].first if self._unconfirmed else self.published + 1
        yield from (number for number in range(1, low) if number not in self.nacked)
        yield from sorted(self._early - self.nacked)

    def newest_of_keys(self) -> list[int]:
        """The newest confirmed message of each key: what a keyed stream must hold."""
        newest: dict[int, int] = {}
        for number in self.confirmed_numbers():
            newest[number % len(self.form.keys)] = number
        return list(newest.values())

    async def begin(self) -> None:
        if self.window:
            await self.ask(m.ConfirmSelect(), m.ConfirmSelectOk)
        self._prepare()
        self._began_s = time.monotonic()
        self.active = True
        self.pump()

    def _prepare(self) -> None:
        form = self.form
        method = m.encode_method(1, m.BasicPublish(0, form.exchange, form.routing_key))
        room = self.frame_max - ENVELOPE_BYTES
        first = min(form.size, room)
        for key in form.keys or (None,):
            properties = encode_properties(
                Properties(
                    content_type="application/octet-stream",
                    delivery_mode=2 if form.persistent else 1,
                    message_id=key,
                )
            )
            start = CONTENT_START.pack(BASIC, 0, form.size) + properties
            head = method + encode_frame(HEADER, 1, start) + FRAME_START.pack(BODY, 1, first)
            self._heads.append(head)
        tail = [bytes(first - SIZE_MIN), bytes([FRAME_END])]
        for at in range(first, form.size, room):
            tail.append(encode_frame(BODY, 1, bytes(min(room, form.size - at))))
        self._tail = b"".join(tail)

    def pump(self) -> None:
        """Send what may be sent now."""
        while self.active and self._writable and not self.blocked and self.failed is None:
            count = BATCH
            if self.window:
                count = min(count, self.window - self.outstanding)
            if self.rate:
                due = int((time.monotonic() - self._began_s) * self.rate) - self.published
                count = min(count, due)
            if self.count_max is not None:
                count = min(count, self.count_max - self.published)
            if count <= 0:
                return
            self._send(count)

    def _send(self, count: int) -> None:
        first, now_ns = self.published + 1, time.time_ns()
        run, index, tail, heads = self.run, self.index, self._tail, self._heads
        parts: list[bytes] = []
        put, pack = parts.append, STAMP.pack
        if len(heads) == 1:
            head = heads[0]
            for number in range(first, first + count):
                put(head)
                put(pack(run, index, number, now_ns))
                put(tail)
        else:
            different = len(heads)
            for number in range(first, first + count):
                put(heads[number % different])
                put(pack(run, index, number, now_ns))
                put(tail)
        self.published += count
        if self.window:
            self._unconfirmed.append(_Sent(first, self.published, now_ns))
        self.transport.write(b"".join(parts))

    def resume_writing(self) -> None:
        super().resume_writing()
        self.pump()

    def quickly(self, data: bytes, position: int, size: int) -> int:
        end = position + _ACK.size + 1
        if end > size:
            return 0
        kind, channel, _length, class_id, method_id, tag, bits = _ACK.unpack_from(data, position)
        if kind != METHOD or channel != 1 or class_id != BASIC or method_id not in (ACK_ID, NACK_ID):
            return 0
        self._answered(tag, multiple=bool(bits & 1), taken=method_id == ACK_ID)
        return end

    def _answered(self, tag: int, *, multiple: bool, taken: bool) -> None:
        """A confirm, or a refusal, of one message or of all up to it."""
        waiting, now_ns = self._unconfirmed, time.time_ns()
        if not waiting:
            return
        if not multiple and tag != waiting[0].first:
            sent = next((one for one in waiting if one.first <= tag <= one.last), None)
            if sent is not None and tag not in self._early:
                self._early.add(tag)
                self._note(1, (now_ns - sent.at_ns) // 1000, [tag], taken=taken)
            return
        while waiting and waiting[0].first <= tag:
            sent = waiting[0]
            last = min(sent.last, tag)
            numbers = range(sent.first, last + 1)
            fresh = len(numbers)
            if self._early:
                early = self._early.intersection(numbers)
                self._early -= early
                fresh -= len(early)
                new: range | list[int] = [one for one in numbers if one not in early] if early else numbers
            else:
                new = numbers
            if fresh:
                self._note(fresh, (now_ns - sent.at_ns) // 1000, new, taken=taken)
            if last == sent.last:
                waiting.popleft()
            else:
                sent.first = last + 1

    def _note(self, count: int, us: int, numbers: range | list[int], *, taken: bool) -> None:
        self.latencies.add(us, count)
        if taken:
            self.confirmed += count
        else:
            self.nacked.update(numbers)

    def settled(self) -> None:
        # Many confirms come one by one; a message sent for each of them would be a packet each.
        if (self.active and (not self.window or self.window - self.outstanding >= min(self.window, 64))) or (
            self.active and not self._unconfirmed
        ):
            self.pump()


class Consumer(Peer):
    """Takes messages, and acknowledges all that came together at once."""

    def __init__(self, login: Login, run: int, book: Book, *, no_ack: bool) -> None:
        super().__init__(login)
        self.run, self.book, self.no_ack = run, book, no_ack
        self.latencies = Latencies()
        self.consumed = 0
        self.redelivered = 0
        self.foreign = 0
        """Messages of another run."""
        self._last_tag = 0
        self._acked_tag = 0
        self._left = 0
        """Bytes of a body that came in pieces which are still to come, or UNKNOWN until its header says."""
        self._begun = False
        """The first piece of that body was read."""
        self._again = False

    async def begin(self, queue: str, prefetch: int, arguments: dict[str, object]) -> None:
        if not self.no_ack:
            await self.ask(m.BasicQos(0, prefetch), m.BasicQosOk)
        consume = m.BasicConsume(queue=queue, consumer_tag=TAG, no_ack=self.no_ack, arguments=dict(arguments))
        await self.ask(consume, m.BasicConsumeOk)

    def quickly(self, data: bytes, position: int, size: int) -> int:
        if size - position < _DELIVER.size:
            return 0
        kind, _channel, length, class_id, method_id, _, _, tag, again = _DELIVER.unpack_from(data, position)
        if kind != METHOD or class_id != BASIC or method_id != DELIVER_ID:
            return 0
        header = position + ENVELOPE_BYTES + length
        if size - header < _HEADER.size:
            return 0
        kind, _channel, length, _, _, body_size = _HEADER.unpack_from(data, header)
        body = header + ENVELOPE_BYTES + length
        if kind != HEADER or size - body < _BODY.size or body_size < SIZE_MIN:
            return 0
        kind, _channel, length, run, publisher, number, sent_ns = _BODY.unpack_from(data, body)
        end: int = body + ENVELOPE_BYTES + length
        if kind != BODY or length != body_size or end > size:
            return 0
        self._last_tag = tag
        self._seen(run, publisher, number, sent_ns, bool(again & 1))
        return end

    def other(self, method: m.Method) -> None:
        if isinstance(method, m.BasicDeliver):
            self._last_tag, self._again = method.delivery_tag, method.redelivered
            self._left = UNKNOWN

    def content(self, kind: int, payload: bytes) -> None:
        if kind == HEADER:
            self._left, self._begun = CONTENT_START.unpack_from(payload)[2], False
            if not self._left:
                self.foreign += 1
            return
        if not self._begun:
            self._begun = True
            if len(payload) >= SIZE_MIN:
                run, publisher, number, sent_ns = STAMP.unpack_from(payload)
                self._seen(run, publisher, number, sent_ns, self._again)
            else:
                self.foreign += 1
        self._left -= len(payload)

    def _seen(self, run: int, publisher: int, number: int, sent_ns: int, again: bool) -> None:
        self.consumed += 1
        if run != self.run:
            self.foreign += 1
            return
        if again:
            self.redelivered += 1
        self.book.note(publisher, number)
        self.latencies.add((time.time_ns() - sent_ns) // 1000)

    def settled(self) -> None:
        if self._last_tag != self._acked_tag and not self._left:
            self._acked_tag = self._last_tag
            if not self.no_ack:
                self.transport.write(m.encode_method(1, m.BasicAck(self._last_tag, True)))
