"""Links between members: the listener, the dialler of our source, and what goes over each link.

    Peers ─dial(source)─► Link (dialled)  ─ Hello, Acked ─►        it sends us its logs
          ◄─ listener ─── Link (accepted) ─ Offer, units, Completed ─►   a reader of ours

At most one link of each kind exists with a member; a newer one replaces the older. A dialled link that ends is dialled
again: at once if it had been up, then with growing pauses. Each side says something at least twice a second, and a link on
which nothing was heard for two seconds is closed. A refused connection means that nobody listens at that address:
the process there has ended, which is known at once and not only when its lease ends.

What is complete is told with whatever is sent next, or a moment later: nobody but readers of a follower waits for it, and a
write of its own for every group of publishes and peer would cost the leader a tenth of its time.

The bytes of a relay arrive here too, because it is this port whose callers prove who they are; when they have, the socket
is handed on (`relayed`). So is that of a member that wants to compare views (`compared`), of a front that speaks for a
client (`fronted`) or for itself (`owned`), and of one that wants to have a copy of the wiring (`fed`).

Invariant: `events.peer_up` and `peer_down` of one kind of link with one member alternate, except that an attempt that
failed is a `peer_down` of its own. Nothing is called back from inside `dial`, `drop`, `tell` or `ship`.
"""

from __future__ import annotations

import asyncio
import contextlib
import errno
import os
import socket
from collections.abc import Callable
from pathlib import Path
from typing import Any, Protocol, cast

from tidemark.config import Address
from tidemark.errors import ConfigError, PeerFault, PeerRefused
from tidemark.model.peers import Acked, Completed, Hello, Message, Name, Outdated, Unit
from tidemark.runtime.authenticator import is_loopback
from tidemark.runtime.log import Log
from tidemark.runtime.peer_tls import PeerTls, TlsDoor, not_opened, unheard
from tidemark.wire.peer.codec import PING, Decoder, encode, encode_unit
from tidemark.wire.peer.handshake import NONCE_BYTES, Client, Dialler, LinkKind, Listener, State

READ_BYTES = 1 << 20
BEAT_S = 0.25
"""How often links are looked at."""
IDLE_S = 0.5
"""After so long without a word of ours a ping is sent."""
SILENT_S = 2.0
"""A link on which nothing was heard for so long is closed."""
OPENING_S = 3.0
"""Longest from a connection to the end of its handshake."""
OPENING_MAX = 256
"""Connections that have not proven yet who they are."""
LINGER_S = 1.0
NEWS_S = 0.002
"""Longest that what is complete waits for something to travel with."""
CLOCK_S = 0.001
"""What the loop's timers count in."""
JOINED_BYTES_MAX = 64 << 10
"""Larger writes are not worth a copy."""
PAUSE_S_MIN = 0.02
PAUSE_S_MAX = 1.0
SECRET_BYTES_MIN = 16
UNPROVEN = (
    "is not on this machine: set cluster.secret_file, or cluster.peer_certificate, on every member and front"
)
ENCODED_BYTES_MAX = 2 << 20
"""How much of what was sent last is kept for other readers."""


class PeerEvents(Protocol):
    """Who is told: a `Member`."""

    def peer_up(self, peer: Name, dialled: bool) -> None: ...

    def peer_down(self, peer: Name, dialled: bool, gone: bool = False) -> None: ...

    def peer_said(self, peer: Name, message: Message) -> None: ...

    def given(self, peer: Name, epoch: int, unit: Unit) -> None: ...


Relayed = Callable[[Name, Client], "asyncio.BaseProtocol | str"]
"""Asked about a relay of a client: the protocol that takes its socket, or why not."""


Compared = Callable[[Name], "asyncio.BaseProtocol | str"]
"""Asked about a link over which a member wants to compare views: the protocol that takes its socket, or why not."""


Fed = Callable[[Name], "asyncio.BaseProtocol | str"]
"""Asked about a link over which a front wants to have the wiring: the protocol that takes its socket, or why not."""


def read_secret(path: Path | None, log: Log) -> bytes:
    """What all members of the cluster know and nobody else; empty without a file.

    Raises:
        ConfigError: it cannot be read, or is too short to be one.
    """
    if path is None:
        return b""
    try:
        secret = path.read_bytes().strip()
        open_to_all = path.stat().st_mode & 0o077
    except OSError as problem:
        words = f"{path} cannot be read: {(problem.strerror or str(problem)).lower()}"
        raise ConfigError(key="cluster.secret_file", problem=words) from None
    if len(secret) < SECRET_BYTES_MIN:
        words = f"{path} must hold at least {SECRET_BYTES_MIN} bytes; 'openssl rand -hex 32' makes a good one"
        raise ConfigError(key="cluster.secret_file", problem=words)
    if open_to_all:
        log.warning("secret readable by others", file=str(path), hint="chmod 600")
    return secret


class Peers:
    """All links of one member."""

    def __init__(
        self,
        me: Name,
        cluster: str,
        secret: bytes,
        events: PeerEvents,
        relayed: Relayed,
        log: Log,
        tls: PeerTls | None = None,
    ) -> None:
        self.me = me
        self.cluster = cluster
        self.secret = secret
        self.events = events
        self.relayed = relayed
        self.compared: Compared = lambda _: "views are kept in etcd here, not told: see cluster.provider"
        self.surveyed: Compared = lambda _: "nobody is asked here what its store holds"
        self.fronted: Relayed = lambda _, __: "fronts are not served here"
        self.owned: Relayed = self.fronted
        self.fed: Fed = lambda _: "there is no wiring to be had here"
        self.watched: Fed = self.fed
        self.log = log
        self.tls = tls
        self.addresses: dict[Name, Address] = {}
        """Where members listen, as they say themselves. See `known`."""
        self.read_buffer = memoryview(bytearray(READ_BYTES))
        self.loop = asyncio.get_running_loop()
        self._links: dict[tuple[Name, bool], Link] = {}
        """Those that are open, by member and by who dialled."""
        self._every: set[Link] = set()
        self._ended: dict[tuple[Name, bool], Link] = {}
        """Closed by us and not reported yet."""
        self._encoded: dict[tuple[int, int, int, int], bytes] = {}
        """Units as they were sent last, for readers that get the same."""
        self._encoded_bytes = 0
        self._heard_last: dict[Name, Link] = {}
        self._source: Source | None = None
        self._server: asyncio.Server | None = None
        self._door: TlsDoor | None = None
        """Listens in place of the server, with certificates."""
        self._beat_due_s = self.loop.time() + BEAT_S
        self._beat = self.loop.call_later(BEAT_S, self._look)
        self._news_due: asyncio.TimerHandle | None = None
        self._news_of: Completed | None = None
        self._news = b""
        """What is complete, as it was told to somebody last: mostly others are told the same."""

    @property
    def open_to_strangers(self) -> bool:
        """Neither a secret nor certificates: only this machine's own addresses may be used."""
        return not self.secret and self.tls is None

    async def listen(self, listener: socket.socket) -> None:
        if self.tls is None:
            self._server = await self.loop.create_server(self._accepted, sock=listener)
        else:
            self._door = TlsDoor(listener, self.tls, self._accepted, self._shown_out, OPENING_S, OPENING_MAX)

    async def close(self) -> None:
        """Close every link; nobody is told."""
        self._beat.cancel()
        if self._news_due is not None:
            self._news_due.cancel()
        if self._server is not None:
            self._server.close()
        self.dial(None)
        for link in list(self._every):
            link.told = True
            link.transport.abort()
        if self._door is not None:
            await self._door.close()
        await asyncio.sleep(0)

    # What the member asks --------------------------------------------------------------------------------------

    def known(self, peer: Name, address: Address | None) -> None:
        """Where this member listens now; None: it is not known any more."""
        if address is None:
            self.addresses.pop(peer, None)
        else:
            self.addresses[peer] = address
        if self._source is not None and self._source.peer == peer:
            self._source.hurry()

    def dial(self, peer: Name | None) -> None:
        """Keep a link to this member, our source, and to no other."""
        if self._source is not None:
            if self._source.peer == peer:
                return
            self._source.stop()
            self._close((self._source.peer, True))
            self._source = None
        if peer is not None:
            self._source = Source(self, peer)

    def drop(self, peer: Name) -> None:
        """Close the links with it. A source is dialled again."""
        self._close((peer, True))
        self._close((peer, False))

    def tell(self, peer: Name, message: Message) -> None:
        link = self._link_for(peer, message)
        if link is None:
            return
        if isinstance(message, Completed):
            if not link.news:
                link.news_s = self.loop.time()
            if message is not self._news_of:
                self._news_of, self._news = message, encode(message)
            link.news = self._news  # it says all that an earlier one said
            if self._news_due is None:
                self._news_due = self.loop.call_later(NEWS_S, self._tell_news)
        else:
            link.write(encode(message))

    def _tell_news(self) -> None:
        """Send what has found nothing to travel with. What is younger has a while yet: mostly something comes."""
        self._news_due = None
        due_s, left_s = self.loop.time() - NEWS_S + CLOCK_S, []
        for link in self._links.values():
            if link.news and link.news_s <= due_s:
                link.write(b"")
            elif link.news:
                left_s.append(link.news_s - due_s + CLOCK_S)
        if left_s:
            self._news_due = self.loop.call_later(min(left_s), self._tell_news)

    def ship(self, peer: Name, epoch: int, unit: Unit) -> None:
        """Send a unit to a reader of ours. Its bytes are copied, once for all readers that are equally far and are given it
        together: the store may use their place again, and compaction may put something else under the same numbers."""
        link = self._links.get((peer, False))
        if link is None:
            return
        which = epoch, unit.log, unit.previous, unit.last
        encoded = self._encoded.get(which)
        if encoded is None:
            encoded = b"".join(encode_unit(epoch, unit))
            if self._encoded_bytes > ENCODED_BYTES_MAX:
                self._encoded.clear()
                self._encoded_bytes = 0
            self._encoded[which] = encoded
            self._encoded_bytes += len(encoded)
        link.write(encoded)

    def shipped(self) -> None:
        """Other bytes may come under the same numbers from now on."""
        if self._encoded:
            self._encoded.clear()
            self._encoded_bytes = 0

    @property
    def reading(self) -> bool:
        """Whether our link to a source is open."""
        return self._source is not None and (self._source.peer, True) in self._links

    @property
    def trouble(self) -> str:
        """Why there is no link to our source; empty if there is one, or if none is wanted or has been tried yet."""
        source = self._source
        if source is None or self.reading or not source.problem:
            return ""
        return f"no link to {source.peer}: {source.problem}"

    def backlog(self, peer: Name) -> int:
        """Bytes for a reader of ours that its socket has not taken yet."""
        link = self._links.get((peer, False))
        return 0 if link is None else link.transport.get_write_buffer_size()

    def _link_for(self, peer: Name, message: Message) -> Link | None:
        if isinstance(message, Outdated):
            last = self._heard_last.get(peer)
            if last is not None:
                return last
        dialled = isinstance(message, Hello | Acked)
        link = self._links.get((peer, dialled))
        if link is None and isinstance(message, Outdated):
            link = self._links.get((peer, True))
        return link

    # What links say ----------------------------------------------------------------------------------------------

    def made(self, link: Link) -> None:
        self._every.add(link)

    @property
    def opening(self) -> int:
        return sum(1 for link in self._every if not link.up)

    def opened(self, link: Link) -> None:
        """Its other side has proven who it is."""
        key = (link.peer, link.dialled)
        before = self._links.pop(key, None)
        if before is not None:
            self.log.info("link replaced", peer=link.peer, dialled=link.dialled)
            before.end("replaced by a newer link")
        self.over(before or self._ended.get(key))
        self._links[key] = link
        self.log.info("link opened", peer=link.peer, dialled=link.dialled, address=link.far)
        self.events.peer_up(link.peer, link.dialled)

    def heard(self, link: Link) -> None:
        self._heard_last[link.peer] = link

    def lost(self, link: Link) -> None:
        """Its socket is gone."""
        self._every.discard(link)
        key = (link.peer, link.dialled)
        if self._links.get(key) is link:
            del self._links[key]
        self.over(link)

    def over(self, link: Link | None) -> None:
        """Report the end of a link that was up, once."""
        if link is None or link.told or not link.up:
            return
        link.told = True
        key = (link.peer, link.dialled)
        if self._ended.get(key) is link:
            del self._ended[key]
        if self._heard_last.get(link.peer) is link:
            del self._heard_last[link.peer]
        self.log.info("link closed", peer=link.peer, dialled=link.dialled, why=link.why)
        self.events.peer_down(link.peer, link.dialled)

    def ended(self, link: Link) -> None:
        """We close it ourselves: to be reported, but not from inside the call that wants it."""
        key = (link.peer, link.dialled)
        if self._links.get(key) is link:
            del self._links[key]
        if self._heard_last.get(link.peer) is link:
            del self._heard_last[link.peer]
        if link.up and not link.told:
            self._ended[key] = link
            self.loop.call_soon(self.over, link)

    def _close(self, key: tuple[Name, bool]) -> None:
        link = self._links.get(key)
        if link is not None:
            link.end("closed by us")

    def _accepted(self) -> Link:
        return Link(
            self, Listener(self.me, self.cluster, self.secret, os.urandom(NONCE_BYTES)), dialled=False
        )

    def _shown_out(self, far: str, why: str) -> None:
        """Its certificate was not one of ours."""
        self.log.warning("link failed", peer="", address=far, why=why)

    def _look(self) -> None:
        """Keep idle links alive and end silent ones."""
        now_s = self.loop.time()
        late_s = now_s - self._beat_due_s
        self._beat_due_s = now_s + BEAT_S
        self._beat = self.loop.call_later(BEAT_S, self._look)
        for link in list(self._every):
            if late_s > IDLE_S:
                # It was we who slept: what peers said meanwhile has not been read yet.
                link.heard_s = now_s
            link.look(now_s)


class Source:
    """Keeps a link to one member, for as long as it is our source."""

    def __init__(self, peers: Peers, peer: Name) -> None:
        self.peer = peer
        self._peers = peers
        self._hurry = asyncio.Event()
        self._stopped = False
        self.problem = ""
        """Why the last attempt failed."""
        self._task = peers.loop.create_task(self._run())

    def hurry(self) -> None:
        """Something about it is news: try again now."""
        self._hurry.set()

    def stop(self) -> None:
        self._stopped = True
        self._task.cancel()

    async def _run(self) -> None:
        pause_s = PAUSE_S_MIN
        while not self._stopped:
            if await self._try():
                pause_s = PAUSE_S_MIN
                continue  # it was up: whether somebody is still there is the question now
            self._hurry.clear()
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(pause_s):
                    await self._hurry.wait()
            pause_s = min(PAUSE_S_MAX, 2 * pause_s)

    async def _try(self) -> bool:
        """One link from its beginning to its end; False if it never was up."""
        peers, peer = self._peers, self.peer
        address = peers.addresses.get(peer)
        gone = False
        if address is None:
            problem = "its address is not known yet"
        elif peers.open_to_strangers and not is_loopback(address.host):
            problem = f"its address {UNPROVEN}"
        else:
            try:
                link = await self._connect(address)
            except TimeoutError:
                problem = f"no answer in {OPENING_S} s"
            except OSError as error:
                gone = error.errno == errno.ECONNREFUSED
                problem = not_opened(error)
            else:
                await link.over.wait()
                if link.up:
                    self.problem = ""
                    return True
                problem = link.why
        if problem != self.problem:
            self.problem = problem
            peers.log.warning("no link to source", peer=peer, address=address, problem=problem)
        peers.events.peer_down(peer, True, gone)
        return False

    async def _connect(self, address: Address) -> Link:
        peers = self._peers
        handshake = Dialler(peers.me, peers.cluster, peers.secret, os.urandom(NONCE_BYTES), self.peer)
        # Not `wait_for`: it loses a cancel that comes in the moment in which the connection is there.
        async with asyncio.timeout(OPENING_S):
            _, link = await peers.loop.create_connection(
                lambda: Link(peers, handshake, dialled=True),
                address.host,
                address.port,
                ssl=peers.tls.dialling if peers.tls else None,
            )
        return link


class Link(asyncio.BufferedProtocol):
    """One socket to another member, from its handshake on."""

    def __init__(self, peers: Peers, handshake: Dialler | Listener, *, dialled: bool) -> None:
        self.peer: Name = handshake.peer
        self.dialled = dialled
        self.up = False
        """The handshake is over."""
        self.told = False
        """Its end was reported, or needs not be."""
        self.why = "the other side closed it"
        self.far = ""
        self.over = asyncio.Event()
        self.news = b""
        """What is to be sent with, and before, whatever is sent next."""
        self.news_s = 0.0
        """Since when it waits."""
        self.transport: asyncio.Transport
        self.heard_s = self.sent_s = self._made_s = peers.loop.time()
        self._peers = peers
        self._handshake: Dialler | Listener | None = handshake
        self._decoder = Decoder()
        self._closing = False

    # The socket ------------------------------------------------------------------------------------------------

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        # uvloop's transports do what asyncio.Transport does without deriving from it.
        self.transport = cast(asyncio.Transport, transport)
        no_delay(transport)
        where = transport.get_extra_info("peername") or ("", 0)
        self.far = f"{where[0]}:{where[1]}"
        self._peers.made(self)
        if not self.dialled and self._peers.open_to_strangers and not is_loopback(str(where[0])):
            self.fail(f"its address {UNPROVEN}")
        elif not self.dialled and self._peers.opening > OPENING_MAX:
            self.fail("too many connections that have not said who they are")
        else:
            self._send_handshake()

    def get_buffer(self, sizehint: int) -> memoryview:  # noqa: ARG002
        return self._peers.read_buffer

    def buffer_updated(self, nbytes: int) -> None:
        if self._closing:
            return
        self.heard_s = self._peers.loop.time()
        data = self._peers.read_buffer[:nbytes]
        try:
            if self._handshake is not None:
                data = data[self._shake_hands(data) :]
            if data and self.up:
                self._take(data)
        except PeerRefused as refusal:
            self.fail(str(refusal))
        except PeerFault as fault:
            if self._handshake is not None:
                self._send_handshake()
            self.fail(fault.reason)

    def eof_received(self) -> bool:
        return False

    def connection_lost(self, exc: Exception | None) -> None:
        if not self._closing:
            if isinstance(self._handshake, Dialler) and self._handshake.unanswered:
                self.why = unheard(self._peers.tls)
            elif exc is not None:
                self.why = str(exc).lower() or type(exc).__name__
        self._closing = True
        self._peers.lost(self)
        self.over.set()

    # What comes and goes -------------------------------------------------------------------------------------

    def write(self, data: bytes) -> None:
        if not self._closing:
            self.sent_s = self._peers.loop.time()
            if self.news:
                # In one piece: the loop makes a call of every write, and the other side would wake up for each.
                news, self.news = self.news, b""
                if len(data) <= JOINED_BYTES_MAX:
                    data = news + data
                else:
                    self.transport.write(news)
            if data:
                self.transport.write(data)

    def look(self, now_s: float) -> None:
        """Called several times a second."""
        if self._closing:
            return
        if not self.up:
            if now_s - self._made_s > OPENING_S:
                self.fail("the handshake took too long")
        elif now_s - self.heard_s > SILENT_S:
            self.fail(f"nothing was heard for {SILENT_S} s")
        elif now_s - self.sent_s >= IDLE_S:
            self.write(PING)

    def end(self, why: str) -> None:
        """Close it when all is sent."""
        if not self._closing:
            self.write(b"")
            self.why = why
            self._closing = True
            self.transport.close()
            self._peers.loop.call_later(LINGER_S, self.transport.abort)
            self._peers.ended(self)

    def fail(self, why: str) -> None:
        """Something is wrong with it, or with who is there."""
        level = "warning" if self.up or not self.dialled else "debug"
        self._peers.log.write(level, "link failed", peer=self.peer, address=self.far, why=why)
        if self.up:
            self.why = why
            self._closing = True
            self.transport.abort()
            self._peers.ended(self)
        else:
            self.end(why)

    def _take(self, data: memoryview) -> None:
        peers = self._peers
        events, peer = peers.events, self.peer
        for one in self._decoder.feed(data):
            if self._closing:
                return  # what came before has ended this link
            peers.heard(self)
            if isinstance(one, tuple):
                events.given(peer, *one)
            else:
                events.peer_said(peer, one)

    # The handshake ---------------------------------------------------------------------------------------------

    def _shake_hands(self, data: memoryview) -> int:
        handshake = self._handshake
        assert handshake is not None
        used = handshake.receive(data)
        self.peer = handshake.peer
        if isinstance(handshake, Listener) and handshake.state is State.PROVEN:
            if handshake.kind is not LinkKind.REPLICA:
                if used < len(data):
                    raise PeerFault(reason="bytes came before the link was welcome")
                self._hand_on(handshake)
                return used
            handshake.welcome()
        self._send_handshake()
        if handshake.done:
            self._handshake = None
            self.up = True
            self._peers.opened(self)
        return used

    def _send_handshake(self) -> None:
        assert self._handshake is not None
        out = self._handshake.output()
        if out:
            self.write(out)

    def _hand_on(self, handshake: Listener) -> None:
        """It is not for replication: its socket belongs to somebody else from now on."""
        peers, peer, client = self._peers, handshake.peer, handshake.client
        if client is not None:
            ask = {LinkKind.FRONT: peers.fronted, LinkKind.OWN: peers.owned}.get(handshake.kind)
            if ask is None:
                taker = peers.relayed(peer, client)
            elif peers.open_to_strangers:
                # Its word is taken for who a client is and what he may, so it must have proven who it is.
                taker = "links of fronts need cluster.secret_file, or cluster.peer_certificate, on every member and front"
            else:
                taker = ask(peer, client)
        else:
            kinds = {
                LinkKind.WIRING: peers.fed,
                LinkKind.LEADER: peers.watched,
                LinkKind.SURVEY: peers.surveyed,
            }
            taker = kinds.get(handshake.kind, peers.compared)(peer)
        if isinstance(taker, str):
            handshake.refuse(taker)
            self._send_handshake()
            self.end(taker)
            return
        handshake.welcome()
        self._send_handshake()
        self._closing = True
        self._peers.lost(self)
        self.transport.set_protocol(taker)
        taker.connection_made(self.transport)


def no_delay(transport: asyncio.BaseTransport) -> None:
    raw: Any = transport.get_extra_info("socket")
    if raw is not None:
        with contextlib.suppress(OSError):
            raw.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
