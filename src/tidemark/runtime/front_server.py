"""A front as a process: sockets and timers around one `Router` a client.

A turn runs at the end of a loop iteration in which something happened. It writes what routers and links have
ready, and reads on, or not, as they say. A link is dialled by a task of its own: members of the group one after
the other, the one that answered last first, or the one that a member named as the one that leads.

Where the members' names are known they are dialled where they listen for peers. The front proves that it belongs to the
cluster and says who the client is, so that checks and lists of connections are about the client; and where there are several
groups a broker takes its word for where messages go (`LinkKind.FRONT`). What a client itself says in AMQP is never carried by such
a link: with one group it is a relay. What a client of the stream protocol says is, behind the front's own word for who it is (`router/streams.py`). With several, the front also comes for itself (`LinkKind.OWN`), to move on what lies in stand-ins
and outboxes (`router/mover.py`); the leader of each group tells it where, on a link like that of the wiring. With one group such a link only
says who leads (`LinkKind.LEADER`): when that one hangs, and another is found, clients are cut loose from it.

Invariant: routers and links are only ever called from the loop's thread, and a link has at most one socket.
"""

from __future__ import annotations

import asyncio
import contextlib
import os
import re
import resource
import socket
from dataclasses import dataclass, replace
from functools import partial
from typing import Any, Literal, TypeAlias, cast

from tidemark.config import Address, Config, parse_address
from tidemark.errors import ConfigError, PeerFault, PeerRefused
from tidemark.frontend.services import PeerInfo
from tidemark.model.peers import Name
from tidemark.router.connection import Router
from tidemark.router.link import Link
from tidemark.router.mover import Mover
from tidemark.router.streams import StreamLink, StreamRouter
from tidemark.router.wiring import MAIN, OneGroup, Wiring
from tidemark.runtime.authenticator import is_loopback
from tidemark.runtime.clock import Clock
from tidemark.runtime.connection import LINGER_S, peer_info
from tidemark.runtime.listening import bound
from tidemark.runtime.log import Log
from tidemark.runtime.peer_tls import not_opened, peer_tls_of, unheard
from tidemark.runtime.peers import UNPROVEN, read_secret
from tidemark.runtime.server import GOODBYE_S, READ_BYTES, TICK_S, connections_for
from tidemark.runtime.throttle import Rates, Throttle
from tidemark.runtime.tls import server_context
from tidemark.runtime.wiring_link import WiringLink
from tidemark.wire.amqp091.content import Amqp091Content
from tidemark.wire.peer.handshake import NONCE_BYTES, Client, Dialler, LinkKind
from tidemark.wire.stream.frames import MAGIC

TRY_S = 2.0
"""How long one member is given to accept a connection."""
RETRY_S = 0.1
NAMED = re.compile(r"connect to \S+ at (\S+:\d+)")
"""How a member that does not lead says who does."""


@dataclass(frozen=True, slots=True)
class Member:
    """Somebody to dial."""

    address: Address
    name: Name = ""
    """Its name, if this is where it listens for peers."""

    def __str__(self) -> str:
        return f"{self.name} at {self.address}" if self.name else str(self.address)


Speaker: TypeAlias = Router | StreamRouter
"""A client, in the protocol that it speaks."""
Leader: TypeAlias = Link | StreamLink
"""A way to the leader of a group, for one client."""


class NotTaken(OSError):
    """A member does not want the link."""


class Socket(asyncio.BufferedProtocol):
    """Carries bytes between one socket and one router or link. It decides nothing."""

    def __init__(
        self, server: FrontServer, link: Leader | None = None, handshake: Dialler | None = None
    ) -> None:
        """`link`: it is dialled for that, and begins with a handshake of peers; else a client has connected."""
        self.machine: Speaker | Leader
        if link is not None:
            self.machine = link
        self.taken: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        """Whether the member has taken the link."""
        self.member: Name = "" if handshake is None else handshake.peer
        """At the other end, if that has proven who it is."""
        self._handshake = handshake
        if handshake is None:
            self.taken.set_result(None)
        self._accepted = link is None
        self._server = server
        self._buffer = server.read_buffer
        self._rest = b""
        """The beginning of a frame whose end has not come yet."""
        self._transport: asyncio.Transport
        self._reading = True
        self.closing = False

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = transport = cast(asyncio.Transport, transport)
        transport.set_write_buffer_limits(self._server.config_of_all.limits.write_buffer_bytes)
        raw: Any = transport.get_extra_info("socket")
        if raw is not None:
            with contextlib.suppress(OSError):
                raw.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
                # A peer that has vanished is found even when its protocol lets it be silent.
                raw.setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)
        if self._accepted:
            self.machine = self._server.accepted(self, peer_info(transport))
        elif self._handshake is not None:
            transport.write(self._handshake.output())

    def get_buffer(self, sizehint: int) -> memoryview:  # noqa: ARG002
        rest = self._rest
        if rest:
            self._buffer[: len(rest)] = rest
            return self._buffer[len(rest) :]
        return self._buffer

    def buffer_updated(self, nbytes: int) -> None:
        if self.closing:
            return
        end = len(self._rest) + nbytes
        if self._handshake is not None:
            used = self._shake_hands(self._handshake, bytes(self._buffer[:end]))
        else:
            used = self._server.received(self, self._buffer[:end])
        self._rest = b"" if used == end else bytes(self._buffer[used:end])

    def _shake_hands(self, handshake: Dialler, data: bytes) -> int:
        """Nothing of the broker follows before the link has said something: all of it is the handshake's."""
        try:
            used = handshake.receive(data)
        except (PeerFault, PeerRefused) as problem:
            if not self.taken.done():
                self.taken.set_exception(NotTaken(str(problem)))
            self.abort()
            return len(data)
        out = handshake.output()
        if out:
            self._transport.write(out)
        if handshake.done:
            self._handshake = None
            if not self.taken.done():
                self.taken.set_result(None)
        return used

    def eof_received(self) -> bool:
        return False

    def connection_lost(self, exc: Exception | None) -> None:  # noqa: ARG002
        self.closing = True
        if not self.taken.done():
            silent = self._handshake is not None and self._handshake.unanswered
            words = unheard(self._server.peer_tls) if silent else "the member closed the link"
            self.taken.set_exception(NotTaken(words))
        self._server.disconnected(self)

    def pause_writing(self) -> None:
        self.machine.writable(False)

    def resume_writing(self) -> None:
        self.machine.writable(True)

    def flush(self) -> None:
        """Send what is ready, then read on, or not, or close."""
        if self.closing:
            return
        output = self.machine.output()
        if len(output) == 1:
            self._transport.write(output[0])
        elif output:
            self._transport.writelines(output)
        if self.machine.closed:
            self.close()
        else:
            self.check_reading()

    def check_reading(self) -> None:
        wants = self.machine.wants_read()
        if wants == self._reading or self.closing:
            return
        self._reading = wants
        if wants:
            self._server.paused.pop(self, None)
            self._transport.resume_reading()
        else:
            self._server.paused[self] = None
            self._transport.pause_reading()

    def close(self) -> None:
        """Close when all is sent; a peer that does not read is cut off after a while."""
        if not self.closing:
            self.closing = True
            self._transport.close()
            asyncio.get_running_loop().call_later(LINGER_S, self._transport.abort)

    def abort(self) -> None:
        self.closing = True
        self._transport.abort()


class FrontServer:
    """Fits `router.connection.Outside`."""

    def __init__(self, config: Config, log: Log) -> None:
        """Raises ConfigError: there is no group to speak with."""
        self.config_of_all = config
        self.config = config.amqp091
        self.dial_s_max = config.front.dial_s_max
        self.log = log
        self.members = {
            group: [Member(parse_address("front.groups", place.address), place.member) for place in places]
            for group, places in config.front.places().items()
        }
        if not self.members:
            problem = f"must not be empty: give --group {MAIN}=HOST:PORT"
            raise ConfigError(key="front.groups", problem=problem)
        cluster = config.cluster
        self._secret, self.peer_tls = read_secret(cluster.secret_file, log), peer_tls_of(cluster)
        self.through = len(self.members) == 1
        kind: Literal[LinkKind.WIRING, LinkKind.LEADER] = LinkKind.LEADER if self.through else LinkKind.WIRING
        self._feeds = {
            group: self._wiring_link(group, kind) for group, places in self.members.items() if places[0].name
        }
        self._leaders: dict[str, Name] = {}
        """Who leads each group, as far as is known; of members without names nothing is."""
        self.wiring: Wiring = OneGroup() if self.through else self._feeds[MAIN].copy
        self.addresses: dict[str, Address] = {}
        """Where it really listens, by the name of the setting."""
        self.paused: dict[Socket, None] = {}
        self.read_buffer = memoryview(bytearray(max(READ_BYTES, config.amqp091.frame_bytes_max + (64 << 10))))
        self.stopping = asyncio.Event()
        self.exit_code = 0
        self._clock = Clock()
        self.now_ms = self._clock.now_ms()
        self._loop = asyncio.get_running_loop()
        self._mover = Mover(self, config.node.name)
        for group, feed in self._feeds.items():
            feed.waits = partial(self._waits, group)
            feed.led = partial(self._led, group)
        self._servers: list[asyncio.Server] = []
        self._sockets: dict[Speaker | Leader, Socket] = {}
        self._routers: dict[Speaker, None] = {}
        self._dials: dict[Leader, asyncio.Task[None]] = {}
        self._touched: dict[Speaker | Leader, None] = {}
        self._read_from: dict[Socket, None] = {}
        self._turn_due = False
        self._timer: asyncio.TimerHandle | None = None
        limits = config.limits
        self._throttle = Throttle(limits.login_failures_max, limits.login_wait_s_max)
        self._rates = Rates(limits.connections_per_s_max, limits.address_connections_per_s_max)
        files, _ = resource.getrlimit(resource.RLIMIT_NOFILE)
        self.connections_max = min(
            limits.connections_max, max(1, connections_for(files) // (1 + len(self.members)))
        )
        """A client takes a socket of its own and one for each group."""
        self._refused = 0

    def _wiring_link(self, group: str, kind: Literal[LinkKind.WIRING, LinkKind.LEADER]) -> WiringLink:
        members = {member.name: member.address for member in self.members[group]}
        return WiringLink(
            self.config_of_all.node.name,
            self._identity(group),
            self._secret,
            members,
            Amqp091Content(),
            self.log,
            self.peer_tls,
            group,
            kind,
        )

    def _identity(self, group: str) -> str:
        """What members of this group say that they belong to."""
        return replace(self.config_of_all.cluster, group=group, groups=()).identity

    def _waits(self, group: str, vhost: str, queue: str) -> None:
        self._at()
        self._mover.told(group, vhost, queue)

    def _led(self, group: str, leader: Name) -> None:
        """This member leads a group. One that led before may hang: nobody is left with it, or on the way to it."""
        self._at()
        before = self._leaders.get(group, leader)
        self._leaders[group] = leader
        for link, one in list(self._sockets.items()):
            if (
                isinstance(link, Link | StreamLink)
                and link.group == group
                # Whom we were sent to has not said its name: it is the one that led then.
                and (one.member or before) != leader
                and not link.closed
            ):
                link.lose(f"{leader} leads now")
        self.members[group].sort(key=lambda member: member.name != leader)
        for link, task in list(self._dials.items()):
            if link.group == group:
                task.cancel()
                self._dials[link] = self._loop.create_task(self._dial(link, None, False))

    # Start and stop ------------------------------------------------------------------------

    async def start(self) -> None:
        """Listen.

        Raises:
            ConfigError: an address cannot be used.
        """
        self._loop.set_exception_handler(self._unexpected)
        for feed in self._feeds.values():
            feed.start()
        wanted = self.config_of_all.limits.connections_max
        if self.connections_max < wanted:
            self.log.warning(
                "connections limited by open files",
                connections_max=self.connections_max,
                wanted=wanted,
                open_files=resource.getrlimit(resource.RLIMIT_NOFILE)[0],
            )
        listen = self.config_of_all.listen
        for name in ("amqp", "amqps"):
            text = getattr(listen, name)
            if not text:
                continue
            context = server_context(self.config_of_all.tls) if name == "amqps" else None
            listener, self.addresses[name] = bound(name, text, listen.backlog)
            server = await self._loop.create_server(
                lambda: Socket(self),
                sock=listener,
                ssl=context,
                ssl_handshake_timeout=self.config.handshake_s_max if context else None,
                backlog=listen.backlog,
            )
            self._servers.append(server)
            self.log.info("listening", on=name, address=self.addresses[name])
        self._tick()

    def stop(self, code: int = 0) -> None:
        """Ask for the end; `run_until_stopped` returns soon."""
        self.exit_code = max(self.exit_code, code)
        self.stopping.set()

    async def run_until_stopped(self) -> int:
        """Serve until `stop`; then say goodbye to clients. Returns the exit code."""
        await self.stopping.wait()
        for server in self._servers:
            server.close()
        self._at()
        for router in list(self._routers):
            router.shutdown(320, "the front is shutting down")
        self._mover.stop()
        self._due()
        deadline = self._loop.time() + GOODBYE_S
        while self._sockets and self._loop.time() < deadline:
            await asyncio.sleep(0.01)
        for one in list(self._sockets.values()):
            one.abort()
        for task in list(self._dials.values()):
            task.cancel()
        await asyncio.sleep(0)
        if self._timer is not None:
            self._timer.cancel()
        for feed in self._feeds.values():
            await feed.close()
        self.log.info("stopped", code=self.exit_code)
        return self.exit_code

    # A turn ----------------------------------------------------------------------------------

    def _at(self) -> None:
        self.now_ms = self._clock.now_ms()

    def _due(self) -> None:
        if not self._turn_due:
            self._turn_due = True
            self._loop.call_soon(self._turn)

    def _turn(self) -> None:
        self._turn_due = False
        touched, self._touched = self._touched, {}
        for one in touched:
            found = self._sockets.get(one)
            if found is not None:
                found.flush()
            elif isinstance(one, Link | StreamLink) and one.closed:
                self._give_up(one)
        read_from, self._read_from = self._read_from, {}
        for each in read_from:
            each.check_reading()
        if self.paused:
            for each in list(self.paused):
                each.check_reading()

    def _tick(self) -> None:
        self._timer = self._loop.call_later(TICK_S, self._tick)
        self._at()
        for router in list(self._routers):
            router.tick(self.now_ms)
        self._mover.tick(self.now_ms)
        if self._refused:
            self.log.warning("connections refused", count=self._refused, limit=self.connections_max)
            self._refused = 0

    # Sockets -----------------------------------------------------------------------------------

    def accepted(self, one: Socket, peer: PeerInfo) -> Router:
        """A client has connected."""
        self._at()
        router = Router(self, peer)
        self._routers[router] = None
        self._sockets[router] = one
        if len(self._routers) > self.connections_max or self.stopping.is_set():
            self._refused += 1
            router.shutdown(320, f"this front takes {self.connections_max} connections and has them")
        elif (why := self._rates.refusal(peer.host, self.now_ms)) is not None:
            self._refused += 1
            router.shutdown(320, why)
        return router

    def received(self, one: Socket, data: memoryview) -> int:
        self._at()
        self._read_from[one] = None
        self._due()
        machine = one.machine
        if isinstance(machine, Router) and machine.unheard:
            start = bytes(data[: len(MAGIC)])
            if start == MAGIC:
                machine = self.speaks_streams(one, machine)
            elif MAGIC.startswith(start):
                return 0
        return machine.receive(data)

    def speaks_streams(self, one: Socket, router: Router) -> StreamRouter:
        """The client does not speak AMQP, but the stream protocol."""
        found = StreamRouter(self, router.peer)
        del self._routers[router], self._sockets[router]
        self._touched.pop(router, None)
        self._routers[found] = None
        self._sockets[found] = one
        one.machine = found
        return found

    def disconnected(self, one: Socket) -> None:
        self.paused.pop(one, None)
        self._read_from.pop(one, None)
        machine = one.machine
        if self._sockets.get(machine) is not one:
            return  # another has taken its place
        del self._sockets[machine]
        self._at()
        if isinstance(machine, Router | StreamRouter):
            self._routers.pop(machine, None)
        machine.receive_eof()

    # What routers ask ----------------------------------------------------------------------------

    def may_come(self, user: str, peer: PeerInfo) -> str | None:
        if user in self.config_of_all.broker.loopback_users and not is_loopback(peer.host):
            return (
                f"user '{user}' may only come from this machine; create another one, "
                "or take this one out of broker.loopback_users"
            )
        wait_s = self._throttle.wait_s(peer.host, user, self.now_ms)
        if wait_s:
            return f"too many failed logins of user '{user}' or from {peer.host}: wait {wait_s:.0f} s"
        return None

    def came(self, user: str, peer: PeerInfo, good: bool) -> None:
        (self._throttle.passed if good else self._throttle.failed)(peer.host, user, self.now_ms)

    def touched(self, one: Speaker | Leader) -> None:
        self._touched[one] = None
        self._due()

    def note(self, level: str, event: str, **facts: object) -> None:
        self.log.write(level, event, **facts)

    def dial(self, link: Leader, refusal: str) -> None:
        before = self._sockets.pop(link, None)
        if before is not None:
            before.abort()
        members = self.members.get(link.group, [])
        again = link.tries > 0
        if again and len(members) > 1:
            # Whoever was asked does not lead, or is gone: ask another first, for all clients that follow.
            members.append(members.pop(0))
        # With several groups a link is proven, and speaks of queues as nobody else may: it goes to members that were named to us only.
        named = NAMED.search(refusal) if self.through else None
        first = Member(parse_address("redirect", named[1])) if named else None
        self._dials[link] = self._loop.create_task(self._dial(link, first, again))

    async def _dial(self, link: Leader, first: Member | None, again: bool) -> None:
        deadline_s = self._loop.time() + self.dial_s_max
        problem = "front.groups does not name a member of it"
        if again and first is None:
            await asyncio.sleep(RETRY_S)
        while self._loop.time() < deadline_s:
            members = self.members.get(link.group, [])
            for member in [*([first] if first else []), *members]:
                try:
                    one = await self._connected(member, link)
                except OSError as failure:
                    silent = isinstance(failure, TimeoutError)
                    words = "no answer" if silent else not_opened(failure)
                    problem = f"{member}: {words}"
                    continue
                if member in members:
                    members.remove(member)
                    members.insert(0, member)
                self._dials.pop(link, None)
                if link.closed:
                    one.abort()
                    return
                self._sockets[link] = one
                self._at()
                link.connected()
                return
            first = None
            await asyncio.sleep(RETRY_S)
        self._dials.pop(link, None)
        self._at()
        link.lose(problem)

    async def _connected(self, member: Member, link: Leader) -> Socket:
        """A socket to a member that has taken the link.

        Raises:
            OSError: why there is none.
        """
        handshake = self._handshake(member, link)
        async with asyncio.timeout(TRY_S):
            _, one = await self._loop.create_connection(
                lambda: Socket(self, link, handshake),
                member.address.host,
                member.address.port,
                ssl=self.peer_tls.dialling if self.peer_tls and handshake else None,
            )
            try:
                await one.taken
            except BaseException:
                one.abort()
                raise
        return one

    def _handshake(self, member: Member, link: Leader) -> Dialler | None:
        if not member.name:
            return None
        if not self._secret and self.peer_tls is None and not is_loopback(member.address.host):
            raise NotTaken(f"{member.address} {UNPROVEN}")
        peer = link.owner.peer
        client = Client(
            peer.host, peer.port, peer.local_host, peer.local_port, peer.tls, peer.certificate_name
        )
        return Dialler(
            self.config_of_all.node.name,
            self._identity(link.group),
            self._secret,
            os.urandom(NONCE_BYTES),
            member.name,
            client,
            LinkKind.OWN if peer.own else LinkKind.RELAY if self.through else LinkKind.FRONT,
        )

    def _give_up(self, link: Leader) -> None:
        """Its client has gone before anybody answered."""
        task = self._dials.pop(link, None)
        if task is not None:
            task.cancel()

    def _unexpected(self, _loop: asyncio.AbstractEventLoop, context: dict[str, Any]) -> None:
        """An exception that nobody caught: say so and go on."""
        facts = {"error": context["exception"]} if "exception" in context else {}
        self.log.error("unexpected", what=context.get("message", ""), **facts)
