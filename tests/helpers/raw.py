"""A bare AMQP 0-9-1 socket: what client libraries hide, a test can send and see here.

`RawConnection` writes exactly the frames it is given and hands back the frames it reads. It
corrects nothing, answers nothing by itself and knows only as much of the protocol as it takes
to say what arrived. `Writer` and `Reader` are the primitive types of the protocol.

Invariant: a byte is sent only when a test asks for it.
"""

from __future__ import annotations

import socket
import struct
from dataclasses import dataclass
from typing import Any, Self

from helpers.broker import Address

METHOD, HEADER, BODY, HEARTBEAT = 1, 2, 3, 8
PROTOCOL_HEADER = b"AMQP\x00\x00\x09\x01"
FRAME_END = b"\xce"
EMPTY_TABLE = b"\x00\x00\x00\x00"

# (class, method) of what the tests name.
START, START_OK = (10, 10), (10, 11)
TUNE, TUNE_OK = (10, 30), (10, 31)
OPEN, OPEN_OK = (10, 40), (10, 41)
CLOSE, CLOSE_OK = (10, 50), (10, 51)
BLOCKED, UNBLOCKED = (10, 60), (10, 61)
UPDATE_SECRET, UPDATE_SECRET_OK = (10, 70), (10, 71)
CHANNEL_OPEN, CHANNEL_OPEN_OK = (20, 10), (20, 11)
CHANNEL_FLOW, CHANNEL_FLOW_OK = (20, 20), (20, 21)
CHANNEL_CLOSE, CHANNEL_CLOSE_OK = (20, 40), (20, 41)
EXCHANGE_DECLARE, EXCHANGE_DECLARE_OK = (40, 10), (40, 11)
QUEUE_DECLARE, QUEUE_DECLARE_OK = (50, 10), (50, 11)
QUEUE_BIND, QUEUE_BIND_OK = (50, 20), (50, 21)
QOS, QOS_OK = (60, 10), (60, 11)
CONSUME, CONSUME_OK = (60, 20), (60, 21)
CANCEL, CANCEL_OK = (60, 30), (60, 31)
PUBLISH, RETURN, DELIVER = (60, 40), (60, 50), (60, 60)
GET, GET_OK, GET_EMPTY = (60, 70), (60, 71), (60, 72)
ACK, REJECT, NACK = (60, 80), (60, 90), (60, 120)
CONFIRM_SELECT, CONFIRM_SELECT_OK = (85, 10), (85, 11)
TX_SELECT, TX_SELECT_OK = (90, 10), (90, 11)
TX_COMMIT, TX_COMMIT_OK = (90, 20), (90, 21)
TX_ROLLBACK, TX_ROLLBACK_OK = (90, 30), (90, 31)


def octet(value: int) -> bytes:
    return struct.pack(">B", value)


def short(value: int) -> bytes:
    return struct.pack(">H", value)


def long(value: int) -> bytes:
    return struct.pack(">I", value)


def longlong(value: int) -> bytes:
    return struct.pack(">Q", value)


def shortstr(text: str | bytes) -> bytes:
    data = text.encode() if isinstance(text, str) else text
    return octet(len(data)) + data


def longstr(text: str | bytes) -> bytes:
    data = text.encode() if isinstance(text, str) else text
    return long(len(data)) + data


def table(entries: dict[str, bytes]) -> bytes:
    """A field table; every value comes with its type letter in front: `b"I" + long(5)`."""
    return longstr(b"".join(shortstr(name) + value for name, value in entries.items()))


class Reader:
    """Takes primitive types off the front of a payload."""

    def __init__(self, data: bytes) -> None:
        self._data = data
        self._at = 0

    def take(self, size: int) -> bytes:
        piece = self._data[self._at : self._at + size]
        assert len(piece) == size, f"the payload is cut short: {self._data!r}"
        self._at += size
        return piece

    def octet(self) -> int:
        return self.take(1)[0]

    def short(self) -> int:
        return int(struct.unpack(">H", self.take(2))[0])

    def long(self) -> int:
        return int(struct.unpack(">I", self.take(4))[0])

    def longlong(self) -> int:
        return int(struct.unpack(">Q", self.take(8))[0])

    def shortstr(self) -> str:
        return self.take(self.octet()).decode()

    def longstr(self) -> bytes:
        return self.take(self.long())

    def table(self) -> dict[str, Any]:
        """Tables of the kinds that servers put into connection.start: strings, bits, tables."""
        inner, entries = Reader(self.longstr()), dict[str, Any]()
        while inner._at < len(inner._data):
            name, kind = inner.shortstr(), inner.take(1)
            match kind:
                case b"S":
                    entries[name] = inner.longstr()
                case b"t":
                    entries[name] = inner.octet() != 0
                case b"F":
                    entries[name] = inner.table()
                case b"I":
                    entries[name] = inner.long()
                case _:
                    raise AssertionError(f"a field of kind {kind!r} in the server's table")
        return entries


@dataclass(frozen=True, slots=True)
class Frame:
    kind: int
    channel: int
    payload: bytes

    @property
    def method(self) -> tuple[int, int]:
        """(class, method), or (0, 0) when it is not a method frame."""
        if self.kind != METHOD:
            return (0, 0)
        class_id, method_id = struct.unpack_from(">HH", self.payload)
        return int(class_id), int(method_id)

    @property
    def arguments(self) -> Reader:
        return Reader(self.payload[4:])


@dataclass(frozen=True, slots=True)
class Closed:
    """What connection.close and channel.close say."""

    code: int
    text: str
    method: tuple[int, int]

    @classmethod
    def read(cls, frame: Frame) -> Self:
        arguments = frame.arguments
        code, text = arguments.short(), arguments.shortstr()
        return cls(code, text, (arguments.short(), arguments.short()))


class ConnectionEnded(ConnectionError):
    """The server closed the socket."""


def encode_frame(kind: int, channel: int, payload: bytes) -> bytes:
    return struct.pack(">BHI", kind, channel, len(payload)) + payload + FRAME_END


def encode_method(channel: int, method: tuple[int, int], arguments: bytes = b"") -> bytes:
    return encode_frame(METHOD, channel, struct.pack(">HH", *method) + arguments)


def encode_publish(
    channel: int,
    exchange: str,
    routing_key: str,
    body: bytes,
    properties: bytes = b"\x00\x00",
    *,
    bits: int = 0,
    frame_max: int = 131072,
) -> bytes:
    """basic.publish with its header and body frames; `properties` starts with the flags."""
    arguments = short(0) + shortstr(exchange) + shortstr(routing_key) + octet(bits)
    pieces = [
        encode_method(channel, PUBLISH, arguments),
        encode_frame(HEADER, channel, short(60) + short(0) + longlong(len(body)) + properties),
    ]
    room = frame_max - 8
    for at in range(0, len(body), room):
        pieces.append(encode_frame(BODY, channel, body[at : at + room]))
    return b"".join(pieces)


class RawConnection:
    """A TCP connection to a broker, before or after the handshake."""

    def __init__(self, address: Address, timeout_s: float = 10.0) -> None:
        self.address = address
        self._socket = socket.create_connection((address.host, address.port), timeout_s)
        self._socket.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        self._timeout_s = timeout_s
        self._received = bytearray()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def close(self) -> None:
        self._socket.close()

    # Sending ----------------------------------------------------------------------------

    def send(self, data: bytes) -> None:
        self._socket.sendall(data)

    def send_frame(self, kind: int, channel: int, payload: bytes) -> None:
        self.send(encode_frame(kind, channel, payload))

    def send_method(self, channel: int, method: tuple[int, int], arguments: bytes = b"") -> None:
        self.send(encode_method(channel, method, arguments))

    def publish(
        self,
        channel: int,
        exchange: str,
        routing_key: str,
        body: bytes,
        properties: bytes = b"\x00\x00",
        bits: int = 0,
    ) -> None:
        self.send(encode_publish(channel, exchange, routing_key, body, properties, bits=bits))

    # Receiving --------------------------------------------------------------------------

    def read_bytes(self, size: int, timeout_s: float | None = None) -> bytes:
        """Exactly `size` bytes.

        Raises:
            ConnectionEnded: the server closed the socket first.
            TimeoutError: they did not come in time.
        """
        self._socket.settimeout(self._timeout_s if timeout_s is None else timeout_s)
        while len(self._received) < size:
            try:
                piece = self._socket.recv(262144)
            except ConnectionResetError:
                piece = b""
            if not piece:
                raise ConnectionEnded(f"closed by the server after {bytes(self._received)!r}")
            self._received += piece
        data = bytes(self._received[:size])
        del self._received[:size]
        return data

    def read_frame(self, timeout_s: float | None = None) -> Frame:
        """The next frame, heartbeats included."""
        self._fill(7, timeout_s)
        kind, channel, size = struct.unpack_from(">BHI", self._received)
        self._fill(7 + size + 1, timeout_s)
        data = self.read_bytes(7 + size + 1)
        assert data[-1:] == FRAME_END, f"the frame does not end with 0xCE: {data!r}"
        return Frame(kind, channel, data[7:-1])

    def frame_waiting(self) -> bool:
        """A whole frame has been received already, so reading it cannot wait."""
        if len(self._received) < 7:
            return False
        return len(self._received) >= 8 + int(struct.unpack_from(">I", self._received, 3)[0])

    def _fill(self, size: int, timeout_s: float | None) -> None:
        missing = size - len(self._received)
        if missing > 0:
            self._received[:0] = self.read_bytes(size, timeout_s)

    def expect(self, method: tuple[int, int], timeout_s: float | None = None) -> Frame:
        """The next frame that is no heartbeat, which must be this method."""
        frame = self.read_frame(timeout_s)
        while frame.kind == HEARTBEAT:
            frame = self.read_frame(timeout_s)
        if frame.method != method:
            detail = Closed.read(frame) if frame.method in (CLOSE, CHANNEL_CLOSE) else frame
            raise AssertionError(f"expected method {method}, got {detail}")
        return frame

    def expect_content(self, method: tuple[int, int]) -> tuple[Frame, bytes, bytes]:
        """A method with content: the method, its properties from the flags on, its body."""
        frame = self.expect(method)
        header = self.read_frame()
        assert header.kind == HEADER
        size = Reader(header.payload[4:12]).longlong()
        body = bytearray()
        while len(body) < size:
            piece = self.read_frame()
            assert piece.kind == BODY
            body += piece.payload
        return frame, header.payload[12:], bytes(body)

    def ended(self, timeout_s: float = 5.0) -> bool:
        """The server closes the socket within the time, after whatever it still sends."""
        try:
            while True:
                self.read_bytes(1, timeout_s)
        except ConnectionEnded:
            return True
        except TimeoutError:
            return False

    def last_words(self, timeout_s: float = 10.0) -> Closed | None:
        """What connection.close says, or None when the socket ends without one.

        Raises:
            TimeoutError: neither happens in time.
        """
        try:
            while True:
                frame = self.read_frame(timeout_s)
                if frame.method == CLOSE:
                    return Closed.read(frame)
        except ConnectionEnded:
            return None

    # Usual openings ---------------------------------------------------------------------

    def start(self) -> dict[str, Any]:
        """Send our protocol header; the server's properties from connection.start."""
        self.send(PROTOCOL_HEADER)
        arguments = self.expect(START).arguments
        assert (arguments.octet(), arguments.octet()) == (0, 9)
        properties = arguments.table()
        properties["mechanisms"] = arguments.longstr().decode().split()
        return properties

    def start_ok(
        self,
        *,
        mechanism: str = "PLAIN",
        response: bytes | None = None,
        capabilities: tuple[str, ...] = (),
    ) -> None:
        if response is None:
            response = f"\0{self.address.user}\0{self.address.password}".encode()
        offered = {
            "capabilities": b"F" + table(dict.fromkeys(capabilities, b"t\x01")),
            "product": b"S" + longstr("raw"),
        }
        self.send_method(
            0, START_OK, table(offered) + shortstr(mechanism) + longstr(response) + shortstr("en_US")
        )

    def tune_ok(self, channel_max: int = 2047, frame_max: int = 131072, heartbeat: int = 0) -> None:
        self.send_method(0, TUNE_OK, short(channel_max) + long(frame_max) + short(heartbeat))

    def open_vhost(self, vhost: str = "/") -> None:
        self.send_method(0, OPEN, shortstr(vhost) + shortstr("") + octet(0))

    def handshake(
        self,
        *,
        channel_max: int = 2047,
        frame_max: int = 131072,
        heartbeat: int = 0,
        capabilities: tuple[str, ...] = (),
        channels: int = 1,
    ) -> Self:
        """Log in, open the virtual host / and channels 1 to `channels`."""
        self.start()
        self.start_ok(capabilities=capabilities)
        self.expect(TUNE)
        self.tune_ok(channel_max, frame_max, heartbeat)
        self.open_vhost()
        self.expect(OPEN_OK)
        for channel in range(1, channels + 1):
            self.open_channel(channel)
        return self

    def open_channel(self, channel: int) -> None:
        self.send_method(channel, CHANNEL_OPEN, shortstr(""))
        self.expect(CHANNEL_OPEN_OK)

    def closing(self, timeout_s: float | None = None) -> Closed:
        """The connection.close that the server sends now."""
        return Closed.read(self.expect(CLOSE, timeout_s))

    def channel_closing(self) -> Closed:
        return Closed.read(self.expect(CHANNEL_CLOSE))

    # Usual requests, on one channel -------------------------------------------------------

    def declare_queue(
        self, channel: int, queue: str, *, bits: int = 0, arguments: bytes = EMPTY_TABLE
    ) -> str:
        """`bits`: 1 passive, 2 durable, 4 exclusive, 8 auto-delete, 16 no-wait."""
        self.send_method(channel, QUEUE_DECLARE, short(0) + shortstr(queue) + octet(bits) + arguments)
        return self.expect(QUEUE_DECLARE_OK).arguments.shortstr()

    def bind_queue(self, channel: int, queue: str, exchange: str, routing_key: str = "") -> None:
        self.send_method(
            channel,
            QUEUE_BIND,
            short(0) + shortstr(queue) + shortstr(exchange) + shortstr(routing_key)
            + octet(0) + EMPTY_TABLE,
        )  # fmt: skip
        self.expect(QUEUE_BIND_OK)

    def declare_exchange(self, channel: int, exchange: str, kind: str, *, bits: int = 0) -> None:
        """`bits`: 1 passive, 2 durable, 4 auto-delete, 8 internal, 16 no-wait."""
        self.send_method(
            channel,
            EXCHANGE_DECLARE,
            short(0) + shortstr(exchange) + shortstr(kind) + octet(bits) + EMPTY_TABLE,
        )
        self.expect(EXCHANGE_DECLARE_OK)

    def qos(self, channel: int, prefetch: int) -> None:
        self.send_method(channel, QOS, long(0) + short(prefetch) + octet(0))
        self.expect(QOS_OK)

    def consume(self, channel: int, queue: str, tag: str = "", *, bits: int = 0) -> None:
        """`bits`: 1 no-local, 2 no-ack, 4 exclusive, 8 no-wait."""
        self.send_method(
            channel,
            CONSUME,
            short(0) + shortstr(queue) + shortstr(tag) + octet(bits) + EMPTY_TABLE,
        )
        self.expect(CONSUME_OK)

    def get(self, channel: int, queue: str, *, no_ack: bool = True) -> None:
        self.send_method(channel, GET, short(0) + shortstr(queue) + octet(no_ack))

    def ack(self, channel: int, tag: int, *, multiple: bool = False) -> None:
        self.send_method(channel, ACK, longlong(tag) + octet(multiple))

    def nack(self, channel: int, tag: int, *, multiple: bool = False, requeue: bool = True) -> None:
        self.send_method(channel, NACK, longlong(tag) + octet(multiple | requeue << 1))

    def close_channel(self, channel: int) -> None:
        """Send channel.close; the caller reads on until channel.close-ok."""
        self.send_method(channel, CHANNEL_CLOSE, short(200) + shortstr("done") + short(0) + short(0))
