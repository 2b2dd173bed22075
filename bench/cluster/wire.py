"""Clients with nothing in them but what a failover needs: publish numbers with confirms, and read them all back.

`AmqpLink` speaks AMQP 0-9-1 to Tidemark and RabbitMQ, `NatsLink` JetStream's protocol; both are one connection to one
node, publish numbers in the first bytes of their bodies, and say which numbers were confirmed. Every step of opening has
a time limit, because a frozen node accepts connections and says nothing.

Invariant: `confirmed` returns a number only if the server answered that very message.
"""

from __future__ import annotations

import json
import re
import secrets
import socket
import struct
from collections.abc import Iterable, Mapping
from types import TracebackType
from typing import Protocol, Self

from bench.proc import HOST

OPEN_S = 0.5
"""Longest that one step of opening a connection may take."""
BODY_BYTES = 100
_RECEIVE_BYTES = 1 << 18


class LinkEnded(ConnectionError):
    """The server closed the connection, refused something, or is silent."""


class Link(Protocol):
    """One connection to one node."""

    socket: socket.socket

    def publish(self, numbers: Iterable[int]) -> None: ...

    def confirmed(self) -> list[int]:
        """Reads once what has come; the numbers that were confirmed by it.

        Raises:
            LinkEnded: the server closed the connection.
        """
        ...

    def close(self) -> None: ...


class _Connection:
    socket: socket.socket

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        self.close()

    def close(self) -> None:
        self.socket.close()

    def _connect(self, port: int, timeout_s: float) -> None:
        self.socket = socket.create_connection((HOST, port), timeout_s)
        self.socket.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)

    def _send(self, data: bytes) -> None:
        try:
            self.socket.sendall(data)
        except OSError as gone:
            raise LinkEnded(str(gone)) from gone

    def _receive(self) -> bytes:
        try:
            data = self.socket.recv(_RECEIVE_BYTES)
        except OSError as gone:
            raise LinkEnded(str(gone)) from gone
        if not data:
            raise LinkEnded("closed by the server")
        return data


# AMQP 0-9-1 ------------------------------------------------------------------------------------------

_METHOD, _HEADER, _BODY = 1, 2, 3
_HEAD = struct.Struct(">BHI")
_ACK = struct.Struct(">IQB")
START, START_OK, TUNE, TUNE_OK, OPEN, OPEN_OK = ((10 << 16) | method for method in (10, 11, 30, 31, 40, 41))
CLOSE, CHANNEL_OPEN, CHANNEL_OPEN_OK, CHANNEL_CLOSE = (
    (10 << 16) | 50,
    (20 << 16) | 10,
    (20 << 16) | 11,
    (20 << 16) | 40,
)
EXCHANGE_DECLARE, EXCHANGE_DECLARE_OK = (40 << 16) | 10, (40 << 16) | 11
DECLARE, DECLARE_OK, BIND, BIND_OK = ((50 << 16) | method for method in (10, 11, 20, 21))
CONSUME, CONSUME_OK, PUBLISH, DELIVER, ACK, NACK = (
    (60 << 16) | method for method in (20, 21, 40, 60, 80, 120)
)
SELECT, SELECT_OK = (85 << 16) | 10, (85 << 16) | 11


def _frame(kind: int, channel: int, payload: bytes) -> bytes:
    return _HEAD.pack(kind, channel, len(payload)) + payload + b"\xce"


def _method(channel: int, method: int, arguments: bytes) -> bytes:
    return _frame(_METHOD, channel, struct.pack(">I", method) + arguments)


def _short(text: str) -> bytes:
    return bytes([len(text)]) + text.encode()


def _table(entries: Mapping[str, str | int]) -> bytes:
    fields = b""
    for key, value in entries.items():
        if isinstance(value, str):
            fields += _short(key) + b"S" + struct.pack(">I", len(value)) + value.encode()
        else:
            fields += _short(key) + b"I" + struct.pack(">i", value)
    return struct.pack(">I", len(fields)) + fields


class AmqpLink(_Connection):
    """A connection with one channel in confirm mode."""

    def __init__(self, port: int, vhost: str = "/", queue: str = "", timeout_s: float = OPEN_S) -> None:
        self._rest = b""
        self._tag = 0
        self._open_tags: dict[int, int] = {}
        """Numbers that are not confirmed, by delivery tag and in its order."""
        self._queue = queue
        self._connect(port, timeout_s)
        try:
            self._greet(vhost)
        except BaseException:
            self.close()
            raise

    def _greet(self, vhost: str) -> None:
        self._send(b"AMQP\x00\x00\x09\x01")
        self.wait_for(START)
        login = b"\x00guest\x00guest"
        self._send(
            _method(
                0,
                START_OK,
                _table({}) + _short("PLAIN") + struct.pack(">I", len(login)) + login + _short("C"),
            )
        )
        tune = self.wait_for(TUNE)
        self._send(
            _method(0, TUNE_OK, tune[:6] + struct.pack(">H", 0))
            + _method(0, OPEN, _short(vhost) + b"\x00\x00")
            + _method(1, CHANNEL_OPEN, b"\x00")
            + _method(1, SELECT, b"\x00")
        )
        self.wait_for(SELECT_OK)

    def wait_for(self, wanted: int) -> bytes:
        """The arguments of the next method of this kind; what comes before it is dropped."""
        while True:
            for kind, payload in self._frames():
                if kind == _METHOD and struct.unpack_from(">I", payload)[0] == wanted:
                    return payload[4:]
            self._feed(self._receive())

    def declare(self, queue: str, arguments: Mapping[str, str | int] | None = None) -> None:
        """Declare a durable queue."""
        self.socket.settimeout(30)
        self._send(_method(1, DECLARE, b"\x00\x00" + _short(queue) + b"\x02" + _table(arguments or {})))
        self.wait_for(DECLARE_OK)

    def declare_exchange(
        self, exchange: str, kind: str, arguments: Mapping[str, str | int] | None = None
    ) -> None:
        """Declare a durable exchange."""
        words = _short(exchange) + _short(kind) + b"\x02"
        self._send(_method(1, EXCHANGE_DECLARE, b"\x00\x00" + words + _table(arguments or {})))
        self.wait_for(EXCHANGE_DECLARE_OK)

    def bind(self, queue: str, exchange: str, key: str) -> None:
        words = _short(queue) + _short(exchange) + _short(key) + b"\x00"
        self._send(_method(1, BIND, b"\x00\x00" + words + _table({})))
        self.wait_for(BIND_OK)

    def queue_length(self) -> int:
        """How many messages are ready in the queue."""
        self._send(_method(1, DECLARE, b"\x00\x00" + _short(self._queue) + b"\x01" + _table({})))
        found = self.wait_for(DECLARE_OK)
        return int(struct.unpack_from(">I", found, 1 + found[0])[0])

    def publish(self, numbers: Iterable[int]) -> None:
        parts = []
        head = _method(1, PUBLISH, b"\x00\x00" + _short("") + _short(self._queue) + b"\x00")
        head += _frame(_HEADER, 1, struct.pack(">HHQHB", 60, 0, BODY_BYTES, 0x1000, 2))
        for number in numbers:
            self._tag += 1
            self._open_tags[self._tag] = number
            parts.append(head + _frame(_BODY, 1, number.to_bytes(8, "big").ljust(BODY_BYTES, b"x")))
        self._send(b"".join(parts))

    def confirmed(self) -> list[int]:
        self._feed(self._receive())
        found: list[int] = []
        for kind, payload in self._frames():
            if kind != _METHOD:
                continue
            method = struct.unpack_from(">I", payload)[0]
            if method == ACK:
                _, tag, multiple = _ACK.unpack_from(payload)
                tags = [each for each in self._open_tags if each <= tag] if multiple & 1 else [tag]
                found += [self._open_tags.pop(each) for each in tags]
            elif method == NACK:
                # Not stored: it stays unconfirmed, and the client sends it again on a new connection.
                raise LinkEnded("the server refused a message (nack)")
        return found

    def drain(self, count: int, silence_s: float) -> list[int]:
        """Numbers out of a queue, until so many have come or nothing comes any more."""
        self.socket.settimeout(silence_s)
        self._send(
            _method(1, CONSUME, b"\x00\x00" + _short(self._queue) + _short("c") + b"\x02" + _table({}))
        )
        found: list[int] = []
        while len(found) < count:
            try:
                self._feed(self._receive())
            except LinkEnded as ended:
                if isinstance(ended.__cause__, TimeoutError):
                    break
                raise
            found += [int.from_bytes(payload[:8], "big") for kind, payload in self._frames() if kind == _BODY]
        return found

    def _feed(self, data: bytes) -> None:
        self._rest += data

    def _frames(self) -> Iterable[tuple[int, bytes]]:
        """Whole frames that have come.

        Raises:
            LinkEnded: one of them says that the server closes.
        """
        data, at = self._rest, 0
        try:
            while len(data) - at >= _HEAD.size:
                kind, _, size = _HEAD.unpack_from(data, at)
                if len(data) - at < _HEAD.size + size + 1:
                    break
                payload = data[at + _HEAD.size : at + _HEAD.size + size]
                at += _HEAD.size + size + 1
                if kind == _METHOD and struct.unpack_from(">I", payload)[0] in (CLOSE, CHANNEL_CLOSE):
                    text = payload[7 : 7 + payload[6]].decode(errors="replace")
                    raise LinkEnded(f"the server closed: {text}")
                yield kind, payload
        finally:
            self._rest = data[at:]


# NATS ------------------------------------------------------------------------------------------------

_ANSWER = re.compile(rb"H?MSG _R\w+\.(\d+) \S+(?: \d+)? \d+\r\n(NATS/1\.0[^\r]*|\{[^\r]*\})")
_ANSWER_MAX = 1 << 10


class NatsLink(_Connection):
    """A connection that publishes to a stream; the answer to number N comes to subject `_Rx.N`, x its own."""

    def __init__(self, port: int, subject: str, size: int = BODY_BYTES, timeout_s: float = OPEN_S) -> None:
        self._subject = subject.encode()
        self._inbox = f"_R{secrets.token_hex(8)}".encode()
        self._size = size
        self._filler = b"x" * (size - 8)
        self._rest = b""
        self.refused = 0
        """Messages that were answered by an error, such as: nobody leads the stream."""
        self._connect(port, timeout_s)
        try:
            self._receive()  # INFO
            options = {"verbose": False, "pedantic": False, "headers": True, "no_responders": True}
            self._send(b"CONNECT %s\r\nSUB %s.* 1\r\nPING\r\n" % (json.dumps(options).encode(), self._inbox))
            heard = b""
            while b"PONG" not in heard:
                heard += self._receive()
        except BaseException:
            self.close()
            raise

    def publish(self, numbers: Iterable[int]) -> None:
        head, filler = (
            b"PUB %s %s.%%d %d\r\n" % (self._subject, self._inbox, self._size),
            self._filler + b"\r\n",
        )
        self._send(b"".join(head % number + b"%08d" % number + filler for number in numbers))

    def confirmed(self) -> list[int]:
        data = self._rest + self._receive()
        if b"\r\nPING\r\n" in data or data.startswith(b"PING\r\n"):
            self._send(b"PONG\r\n")
        found, upto = [], 0
        for answer in _ANSWER.finditer(data):
            upto = answer.end()
            if answer[2].startswith(b"{") and b'"error"' not in answer[2]:
                found.append(int(answer[1]))
            else:
                self.refused += 1
        self._rest = data[max(upto, len(data) - _ANSWER_MAX) :]
        return found
