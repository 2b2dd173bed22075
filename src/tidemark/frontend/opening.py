"""The front end of a connection that has not said yet what it speaks.

The first bytes decide: what begins like a preamble of the stream protocol becomes a `StreamConnection`, anything else
an `Amqp091`, which has its own answer to bytes that are not AMQP. Which of the two preambles it is makes no
difference here: it is for those who decide where a connection belongs (`runtime/relay.py`). The new front end takes
this one's place at the node and in the shell (`Services.become`), so nothing stands between a read and its protocol
afterwards.

Invariant: it never has anything to send, except our version to a peer that speaks another one of ours.
"""

from __future__ import annotations

from tidemark.frontend.amqp091.connection import Amqp091
from tidemark.frontend.services import ConnectionStatistics, FrontEnd, PeerInfo, Services, Verdict
from tidemark.frontend.stream.connection import StreamConnection
from tidemark.wire.stream.frames import MAGIC, PREAMBLE, READER_PREAMBLE


class Opening:
    """A `FrontEnd` that becomes another one."""

    def __init__(self, services: Services, peer: PeerInfo) -> None:
        self.peer = peer
        self.closed = False
        self.bytes_in = self.bytes_out = 0
        self._services = services
        self._connected_ms = services.now_ms
        self._blocked: str | None = None
        self._out: list[bytes] = []

    def receive(self, data: memoryview) -> int:
        start = bytes(data[: len(PREAMBLE)])
        if not start.startswith(MAGIC[: len(start)]):
            return self._become(Amqp091(self._services, self.peer), data)
        if len(start) < len(PREAMBLE):
            return 0
        if start not in (PREAMBLE, READER_PREAMBLE):
            self._out.append(PREAMBLE)
            self._services.touched(self)
            self._end("another version of the stream protocol")
            return len(data)
        used = len(PREAMBLE)
        return used + self._become(StreamConnection(self._services, self.peer), data[used:])

    def _become(self, front_end: FrontEnd, data: memoryview) -> int:
        if self.closed:
            return len(data)
        self._services.become(self, front_end)
        if self._blocked is not None:
            front_end.block(self._blocked)
        return front_end.receive(data)

    def receive_eof(self) -> None:
        self._end("the peer closed the socket")

    def durable(self) -> None:
        pass

    def store_failed(self, reason: str) -> None:
        self._end(reason)

    def tick(self, now_ms: int) -> None:
        if now_ms - self._connected_ms > self._services.config.handshake_s_max * 1000:
            self._end("the handshake took too long")

    def output(self) -> list[bytes]:
        out, self._out = self._out, []
        return out

    def wants_read(self) -> bool:
        return True

    def writable(self, yes: bool) -> None:
        pass

    def verdict(self, verdict: Verdict) -> None:
        pass

    def block(self, reason: str | None) -> None:
        self._blocked = reason

    def shutdown(self, code: int, text: str) -> None:  # noqa: ARG002
        self._end(text)

    def _end(self, why: str) -> None:
        if not self.closed:
            self.closed = True
            self._services.touched(self)
            self._services.note("info", "connection closed", connection=str(self.peer), why=why)

    def statistics(self) -> ConnectionStatistics:
        return ConnectionStatistics(
            name=str(self.peer),
            user="",
            vhost="",
            state="closed" if self.closed else "opening",
            peer=self.peer,
            protocol="not known yet",
            client_properties={},
            connected_ms=self._connected_ms,
            channel_max=0,
            frame_max=0,
            heartbeat_s=0,
            bytes_in=0,
            bytes_out=0,
            channels=(),
        )
