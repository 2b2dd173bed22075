"""A client of a member that does not lead is passed on to the leader, byte by byte.

    client ──► Near (its socket here) ──► Far (a link to the leader's peer port) ──► the leader's front end

What the client says first decides: one that only reads (`READER_PREAMBLE`) is served here if this member is ready.
Of the others the leader is told who the client is, so that its checks and its list of connections are about the client and not about
us. A side that does not read stops the other side's reading. Of a client that nobody has taken yet one read is held and no
more is read, so it may still be served here, if this member leads meanwhile, or be told in its own protocol why not
(`door.py`), at once where clients are not passed on (`cluster.client_access`).

Invariant: bytes of a client go to one leader only; when another leads, the connection is cut.
"""

from __future__ import annotations

import asyncio
import contextlib
import os
from typing import TYPE_CHECKING, cast

from tidemark.errors import PeerFault, PeerRefused
from tidemark.frontend.services import PeerInfo
from tidemark.model.peers import Name
from tidemark.runtime.authenticator import is_loopback
from tidemark.runtime.connection import peer_info
from tidemark.runtime.peer_tls import PeerTls, not_opened, unheard
from tidemark.runtime.peers import OPENING_S, UNPROVEN, Peers, no_delay
from tidemark.wire.peer.handshake import NONCE_BYTES, Client, Dialler
from tidemark.wire.stream.frames import MAGIC, PREAMBLE, READER_PREAMBLE

if TYPE_CHECKING:
    from tidemark.runtime.member_server import MemberServer

WAIT_S = 1.0
"""How long a client waits for a leader before it is told that there is none."""
RETRY_S = 0.05
LINGER_S = 5.0


class NotTaken(Exception):
    """The leader could not be reached, or does not serve clients."""


class Replaced(Exception):
    """Somebody else leads since: one that hangs would not have answered for long."""


class Near(asyncio.Protocol):
    """The client's side."""

    def __init__(self, server: MemberServer) -> None:
        self.leader: Name | None = None
        """Where its bytes go."""
        self.transport: asyncio.Transport
        self._server = server
        self.far: Far | None = None
        """The leader that has taken the client."""
        self._task: asyncio.Task[None] | None = None
        self._dial: asyncio.Task[Far] | None = None
        """The link to this leader that is being made."""
        self._dialling: Name | None = None
        self._silent: asyncio.TimerHandle
        """Until it has said something."""
        self._held = b""
        """What came before somebody had taken the client."""
        self.closed = False

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self.transport = cast(asyncio.Transport, transport)
        self.transport.set_write_buffer_limits(self._server.config.limits.write_buffer_bytes)
        no_delay(transport)
        self._server.relays.add(self)
        patience_s = self._server.config.amqp091.handshake_s_max
        self._silent = asyncio.get_running_loop().call_later(patience_s, self.cut)

    def data_received(self, data: bytes) -> None:
        if self.far is not None:
            self.far.transport.write(data)
            return
        self._held += data
        if self._task is not None:
            self.transport.pause_reading()
        elif not self._held.startswith(MAGIC[: len(self._held)]) or len(self._held) >= len(PREAMBLE):
            self._decide()

    def _decide(self) -> None:
        """It has said enough: it is served here, passed on, or shown the door."""
        server = self._server
        self._silent.cancel()
        self.transport.pause_reading()
        reads = self._held.startswith(READER_PREAMBLE) and server.readable
        if not reads and server.config.cluster.client_access == "relay":
            self._task = asyncio.get_running_loop().create_task(self._find_leader())
        else:
            server.relays.discard(self)
            server.take(self.transport, peer_info(self.transport), self._held, reads=reads)

    def pause_writing(self) -> None:
        if self.far is not None:
            self.far.transport.pause_reading()

    def resume_writing(self) -> None:
        if self.far is not None and not self.far.closed:
            self.far.transport.resume_reading()

    def connection_lost(self, exc: Exception | None) -> None:  # noqa: ARG002
        self.closed = True
        self._silent.cancel()
        self._server.relays.discard(self)
        if self._task is not None:
            self._task.cancel()
        if self.far is not None:
            self.far.end()

    def write(self, data: bytes) -> None:
        if not self.closed:
            self.transport.write(data)

    def end(self) -> None:
        """The leader has closed: so do we, when all is sent."""
        if not self.closed:
            self.closed = True
            self.transport.close()
            asyncio.get_running_loop().call_later(LINGER_S, self.transport.abort)

    def turn_to(self, leader: Name | None) -> None:
        """This one leads now: what another has heard cannot be said again, what nobody has heard can."""
        if self.leader is not None and self.leader != leader:
            self.cut()
        elif self._dial is not None and self._dialling != leader:
            self._dialling = None
            self._dial.cancel()

    def cut(self) -> None:
        self.closed = True
        self.transport.abort()

    async def _find_leader(self) -> None:
        server, loop = self._server, asyncio.get_running_loop()
        deadline_s = loop.time() + WAIT_S
        client = peer_info(self.transport)
        problem = "no member leads"
        while not self.closed and not server.serving and loop.time() < deadline_s:
            leader = server.elsewhere()
            if leader is not None:
                try:
                    self._taken(leader, await self._link_to(leader, client))
                    return
                except NotTaken as refusal:
                    problem = str(refusal)
                except Replaced:
                    deadline_s = loop.time() + WAIT_S
                    continue
            with contextlib.suppress(TimeoutError):
                await asyncio.wait_for(server.role_changed.wait(), RETRY_S)
        if self.closed:
            return
        if not server.serving:
            server.log.warning("client not passed on", client=str(client), problem=problem)
        self._server.relays.discard(self)
        self._task = None
        server.take(self.transport, client, self._held)

    async def _link_to(self, leader: Name, client: PeerInfo) -> Far:
        """Raises NotTaken, Replaced."""
        self._dialling = leader
        self._dial = asyncio.get_running_loop().create_task(dialled(self._server.peers, leader, client, self))
        dial = self._dial
        try:
            return await dial
        except asyncio.CancelledError:
            if dial.done() and not dial.cancelled() and dial.exception() is None:
                dial.result().transport.abort()
            if self._dialling is not None or self.closed:
                raise  # the client has gone
            raise Replaced from None
        finally:
            self._dial = self._dialling = None

    def _taken(self, leader: Name, far: Far) -> None:
        """Raises NotTaken, Replaced."""
        if self.closed or self._server.elsewhere() != leader:
            far.transport.abort()
            raise Replaced
        if far.closed:
            raise NotTaken("the leader closed the connection")
        self.leader, self.far = leader, far
        if self._held:
            far.transport.write(self._held)
            self._held = b""
        far.transport.resume_reading()
        self.transport.resume_reading()


class Far(asyncio.Protocol):
    """The leader's side."""

    def __init__(self, handshake: Dialler, near: Near, write_buffer_bytes: int, tls: PeerTls | None) -> None:
        self.transport: asyncio.Transport
        self.closed = False
        self.taken: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self._handshake: Dialler | None = handshake
        self._near = near
        self._tls = tls
        self._write_buffer_bytes = write_buffer_bytes

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        assert self._handshake is not None
        self.transport = cast(asyncio.Transport, transport)
        self.transport.set_write_buffer_limits(self._write_buffer_bytes)
        no_delay(transport)
        self.transport.write(self._handshake.output())

    def data_received(self, data: bytes) -> None:
        if self._handshake is not None:
            data = self._shake_hands(self._handshake, data)
        if data:
            self._near.write(data)

    def pause_writing(self) -> None:
        if not self._near.closed:
            self._near.transport.pause_reading()

    def resume_writing(self) -> None:
        if not self._near.closed:
            self._near.transport.resume_reading()

    def connection_lost(self, exc: Exception | None) -> None:
        self.closed = True
        if not self.taken.done():
            self.taken.set_exception(NotTaken(self._why_lost(exc)))
        elif self._near.far is self:
            self._near.end()

    def end(self) -> None:
        """The client has gone."""
        if not self.closed:
            self.closed = True
            self.transport.close()

    def _why_lost(self, exc: Exception | None) -> str:
        if self._handshake is not None and self._handshake.unanswered:
            return unheard(self._tls)
        return str(exc or "the leader closed the connection").lower()

    def _shake_hands(self, handshake: Dialler, data: bytes) -> bytes:
        try:
            used = handshake.receive(data)
        except (PeerFault, PeerRefused) as problem:
            if not self.taken.done():
                self.taken.set_exception(NotTaken(str(problem)))
            self.transport.abort()
            return b""
        out = handshake.output()
        if out:
            self.transport.write(out)
        if handshake.done:
            self._handshake = None
            # Until the client's side is ready for it.
            self.transport.pause_reading()
            if not self.taken.done():
                self.taken.set_result(None)
        return data[used:]


async def dialled(peers: Peers, leader: Name, client: PeerInfo, near: Near) -> Far:
    """A link to the leader that has been welcome, and is not read yet.

    Raises:
        NotTaken: why not.
    """
    address = peers.addresses.get(leader)
    if address is None:
        raise NotTaken(f"the address of {leader} is not known")
    if peers.open_to_strangers and not is_loopback(address.host):
        raise NotTaken(f"{address} {UNPROVEN}")
    who = Client(
        client.host, client.port, client.local_host, client.local_port, client.tls, client.certificate_name
    )
    handshake = Dialler(peers.me, peers.cluster, peers.secret, os.urandom(NONCE_BYTES), leader, who)
    try:
        async with asyncio.timeout(OPENING_S):
            _, far = await peers.loop.create_connection(
                lambda: Far(handshake, near, near.transport.get_write_buffer_limits()[1], peers.tls),
                address.host,
                address.port,
                ssl=peers.tls.dialling if peers.tls else None,
            )
            try:
                await far.taken
            except BaseException:
                far.transport.abort()
                raise
    except TimeoutError:
        raise NotTaken(f"{leader} does not answer at {address}") from None
    except OSError as problem:
        raise NotTaken(f"{leader} at {address}: {not_opened(problem)}") from None
    return far
