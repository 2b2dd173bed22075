"""A broker that makes mistakes on purpose, to see whether the load generator notices.

It speaks as much AMQP 0-9-1 as the generator needs, one thread a connection, and keeps no queue:
what a publish leads to is asked from `Script`, which a test overrides.
"""

from __future__ import annotations

import socket
import struct
import threading
from collections.abc import Iterator
from contextlib import contextmanager, suppress

_ANSWERS = {  # method -> the answer's method and arguments
    (10, 11): (10, 30, struct.pack(">HIH", 2047, 131072, 0)),
    (10, 40): (10, 41, b"\x00"),
    (10, 50): (10, 51, b""),
    (20, 10): (20, 11, bytes(4)),
    (50, 10): (50, 11, b"\x01q" + bytes(8)),
    (50, 40): (50, 41, bytes(4)),
    (60, 10): (60, 11, b""),
    (60, 20): (60, 21, b"\x01c"),
    (85, 10): (85, 11, b""),
}


def frame(kind: int, channel: int, payload: bytes) -> bytes:
    return struct.pack(">BHI", kind, channel, len(payload)) + payload + b"\xce"


def method(channel: int, class_id: int, method_id: int, arguments: bytes) -> bytes:
    return frame(1, channel, struct.pack(">HH", class_id, method_id) + arguments)


def confirm(tag: int, *, multiple: bool = False, ack: bool = True) -> bytes:
    return method(1, 60, 80 if ack else 120, struct.pack(">QB", tag, multiple))


class Script:
    """What a broker without faults does. `content` is a header frame and its body frames."""

    def hears(self, which: tuple[int, ...], arguments: bytes) -> None:
        """Every method that comes."""

    def deliveries(self, number: int, content: bytes) -> list[bytes]:
        """What the consumer is sent after publish `number` of a producer, counted from 1."""
        return [self.deliver(number, content)]

    def confirms(self, number: int) -> list[bytes]:
        return [confirm(number)]

    def deliver(self, tag: int, content: bytes, *, redelivered: bool = False) -> bytes:
        arguments = b"\x01c" + struct.pack(">QB", tag, redelivered) + b"\x00\x01q"
        return method(1, 60, 60, arguments) + content


class _Broker:
    def __init__(self, script: Script) -> None:
        self.script = script
        self.consumer: socket.socket | None = None

    def serve(self, connection: socket.socket) -> None:
        with connection, suppress(ConnectionError, EOFError), connection.makefile("rb") as stream:
            stream.read(8)
            connection.sendall(method(0, 10, 10, b"\x00\x09" + bytes(4) + _long(b"PLAIN") * 2))
            client = _Client(self, connection)
            for kind, channel, payload in _frames(stream):
                client.on_frame(kind, channel, payload)


class _Client:
    """One connection; a producer's publishes are counted here, as its confirms are."""

    def __init__(self, broker: _Broker, connection: socket.socket) -> None:
        self._broker = broker
        self._connection = connection
        self._published = 0
        self._confirming = False
        self._content, self._left = b"", 0

    def on_frame(self, kind: int, channel: int, payload: bytes) -> None:
        if kind == 1:
            self._on_method(channel, payload)
        elif kind == 2:
            self._content, self._left = frame(kind, channel, payload), struct.unpack_from(">Q", payload, 4)[0]
        elif kind == 3:
            self._content += frame(kind, channel, payload)
            self._left -= len(payload)
            if self._left == 0:
                self._on_message()

    def _on_method(self, channel: int, payload: bytes) -> None:
        which = struct.unpack_from(">HH", payload)
        if which == (60, 20):
            self._broker.consumer = self._connection
        self._broker.script.hears(which, payload[4:])
        self._confirming |= which == (85, 10)
        if which in _ANSWERS:
            class_id, method_id, arguments = _ANSWERS[which]
            self._connection.sendall(method(channel, class_id, method_id, arguments))

    def _on_message(self) -> None:
        self._published += 1
        for data in self._broker.script.deliveries(self._published, self._content):
            assert self._broker.consumer is not None
            self._broker.consumer.sendall(data)
        if self._confirming:
            self._connection.sendall(b"".join(self._broker.script.confirms(self._published)))


def _long(text: bytes) -> bytes:
    return struct.pack(">I", len(text)) + text


def _frames(stream: object) -> Iterator[tuple[int, int, bytes]]:
    read = stream.read  # type: ignore[attr-defined]
    while len(head := read(7)) == 7:
        kind, channel, size = struct.unpack(">BHI", head)
        yield kind, channel, read(size)
        read(1)


@contextmanager
def faulty_broker(script: Script) -> Iterator[int]:
    """A port on loopback where a broker follows the script."""
    broker = _Broker(script)
    with socket.create_server(("127.0.0.1", 0)) as listener:

        def accept() -> None:
            with suppress(OSError):
                while True:
                    connection, _ = listener.accept()
                    threading.Thread(target=broker.serve, args=(connection,), daemon=True).start()

        threading.Thread(target=accept, daemon=True).start()
        yield int(listener.getsockname()[1])
