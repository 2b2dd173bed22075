"""Carries bytes between one socket and one front end. It decides nothing.

All connections of a loop read into one large buffer: what is not yet a whole frame is put aside and stands in
front of the next read. Writing happens at the end of a turn, by `flush`.

Invariant: between `get_buffer` and `buffer_updated` nobody else uses the shared buffer; the loop guarantees it.
"""

from __future__ import annotations

import asyncio
import contextlib
import socket
from typing import TYPE_CHECKING, Any, cast

from tidemark.frontend.services import FrontEnd, PeerInfo

if TYPE_CHECKING:
    from tidemark.runtime.server import Server

LINGER_S = 5.0
"""How long a peer may take to read our last words before it is cut off."""
FULL_MAX = 4
"""So many full buffers are read from one socket between two turns; the loop by itself would read 32."""


class ConnectionShell(asyncio.BufferedProtocol):
    def __init__(self, server: Server, peer: PeerInfo | None = None) -> None:
        """`peer` is who is really there, when another member of the cluster passes the bytes on."""
        self.front_end: FrontEnd
        self._server = server
        self._peer = peer
        self._buffer = server.read_buffer
        self._rest = b""
        """The beginning of a frame whose end has not come yet."""
        self._transport: asyncio.Transport
        self._reading = True
        self._full = 0
        """How often the whole buffer was filled since the last turn."""
        self._closing = False
        self._frozen = False

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        # uvloop's transports do what asyncio.Transport does without deriving from it.
        self._transport = transport = cast(asyncio.Transport, transport)
        transport.set_write_buffer_limits(self._server.config.limits.write_buffer_bytes)
        raw: Any = transport.get_extra_info("socket")
        if raw is not None:
            with contextlib.suppress(OSError):
                raw.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
                # A peer that has vanished is found even when its protocol lets it be silent.
                raw.setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)
        self.front_end = self._server.connected(self, self._peer or peer_info(transport))

    def get_buffer(self, sizehint: int) -> memoryview:  # noqa: ARG002
        rest = self._rest
        if rest:
            self._buffer[: len(rest)] = rest
            return self._buffer[len(rest) :]
        return self._buffer

    def buffer_updated(self, nbytes: int) -> None:
        if self._closing:
            return
        end = len(self._rest) + nbytes
        used = self._server.received(self, self._buffer[:end])
        self._rest = b"" if used == end else bytes(self._buffer[used:end])
        if end == len(self._buffer):
            self._full += 1
            if self._full == FULL_MAX and self._reading and not self._closing:
                # There is more, and the loop would read on. Others come first, and what makes publishers wait is seen in a turn.
                self._pause()

    def eof_received(self) -> bool:
        return False

    def connection_lost(self, exc: Exception | None) -> None:  # noqa: ARG002
        self._closing = True
        self._server.disconnected(self)

    def pause_writing(self) -> None:
        self.front_end.writable(False)

    def resume_writing(self) -> None:
        self.front_end.writable(True)
        self._server.node.touched(self.front_end)

    def flush(self) -> None:
        """Send what the front end has ready, then read on, or not, or close, as it says."""
        if self._frozen:
            return
        output = self.front_end.output()
        if output and not self._closing:
            if len(output) == 1:
                self._transport.write(output[0])
            else:
                self._transport.writelines(output)
        if self.front_end.closed:
            self.close()
        else:
            self.check_reading()

    def check_reading(self) -> None:
        self._full = 0
        wants = self.front_end.wants_read() and not self._frozen
        if wants == self._reading or self._closing:
            return
        if wants:
            self._reading = True
            self._server.paused.pop(self, None)
            self._transport.resume_reading()
        else:
            self._pause()

    def _pause(self) -> None:
        """Read on in a turn, if the front end wants to."""
        self._reading = False
        self._server.paused[self] = None
        self._transport.pause_reading()

    def freeze(self, yes: bool) -> None:
        """Neither send nor read anything, for as long as what this broker knows may be out of date."""
        self._frozen = yes
        if yes:
            self.check_reading()
        else:
            self.flush()

    def close(self) -> None:
        """Close when all is sent; a peer that does not read is cut off after a while."""
        if not self._closing:
            self._closing = True
            self._transport.close()
            asyncio.get_running_loop().call_later(LINGER_S, self._transport.abort)

    def abort(self) -> None:
        self._closing = True
        self._transport.abort()


def peer_info(transport: asyncio.Transport) -> PeerInfo:
    """Who is at the other end."""
    far = transport.get_extra_info("peername") or ("", 0)
    near = transport.get_extra_info("sockname") or ("", 0)
    certificate = transport.get_extra_info("peercert") or {}
    name = next(
        (value for part in certificate.get("subject", ()) for field, value in part if field == "commonName"),
        None,
    )
    tls = transport.get_extra_info("ssl_object") is not None
    return PeerInfo(str(far[0]), int(far[1]), str(near[0]), int(near[1]), tls, name)
