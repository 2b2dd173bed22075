"""A front's side of the link over which the leader of a group tells it the wiring, if it is main, and where messages wait; or, to a
front of one group, no more than that it leads and does not hang.

It dials the members of the group one after the other until one of them leads; one that does not says who does. Whoever was
silent is asked last, and not for long: it may hang while another leads. What comes is put into `copy` (`broker/wiring_copy.py`), which says when it is new enough. A link that ends is dialled again, at once if it had
been up, then with growing pauses; whoever waits for the copy waits meanwhile.

Invariant: `copy` is told of one link at a time, and of its end before the next.
"""

from __future__ import annotations

import asyncio
import os
from collections.abc import Callable, Mapping
from contextlib import suppress
from typing import Literal, cast

from tidemark.broker.wiring_copy import FreshCopy
from tidemark.config import Address, parse_address
from tidemark.errors import ConfigError, PeerFault, PeerRefused, StoreForeign
from tidemark.model.peers import Name
from tidemark.model.wiring import MAIN
from tidemark.ports import Content
from tidemark.runtime.authenticator import is_loopback
from tidemark.runtime.log import Log
from tidemark.runtime.peer_tls import PeerTls, not_opened, unheard
from tidemark.runtime.peers import (
    BEAT_S,
    IDLE_S,
    OPENING_S,
    PAUSE_S_MAX,
    PAUSE_S_MIN,
    SILENT_S,
    UNPROVEN,
    no_delay,
)
from tidemark.wire.peer.handshake import NONCE_BYTES, Dialler, LinkKind
from tidemark.wire.peer.wiring import (
    Change,
    Decoder,
    Echo,
    Elsewhere,
    Greeting,
    Message,
    Ping,
    Waiting,
    Whole,
    encode,
)

PING = encode(Ping())
AGAIN_S = 0.5
"""Longest handshake with a member that has just been silent, at first."""


class WiringLink:
    """Keeps a link to whoever leads a group."""

    def __init__(
        self,
        front: Name,
        cluster: str,
        secret: bytes,
        members: Mapping[Name, Address],
        content: Content,
        log: Log,
        tls: PeerTls | None = None,
        group: str = MAIN,
        kind: Literal[LinkKind.WIRING, LinkKind.LEADER] = LinkKind.WIRING,
    ) -> None:
        """`members` are those of the group, with the addresses at which they listen for peers; `cluster` is its identity.

        Of a link of the kind LEADER no wiring comes, and `copy` stays empty: it says who leads.
        """
        self.copy = FreshCopy(content, self._ask, self._fresh_failed)
        self.leader: Name = ""
        """Who tells us the wiring; empty while nobody does."""
        self.waits: Callable[[str, str], None] = lambda _vhost, _queue: None
        """Told of queues in which messages wait."""
        self.led: Callable[[Name], None] = lambda _member: None
        """Told who leads the group, whenever we have found out."""
        self._group = group
        self._kind = kind
        self._front = front
        self._cluster = cluster
        self._secret = secret
        self._members = dict(members)
        self._log = log
        self.tls = tls
        self._link: _Link | None = None
        self._problem = ""
        self._task: asyncio.Task[None] | None = None

    def start(self) -> None:
        self._task = asyncio.get_running_loop().create_task(self._run())

    async def close(self) -> None:
        if self._task is not None:
            self._task.cancel()
            with suppress(asyncio.CancelledError):
                await self._task

    def _ask(self, number: int) -> None:
        assert self._link is not None
        self._link.write(encode(Echo(number)))

    def _fresh_failed(self, error: Exception) -> None:
        self._log.error("unexpected exception", where="fresh wiring", error=error)

    async def _run(self) -> None:
        pause_s, again_s = PAUSE_S_MIN, AGAIN_S
        told: Elsewhere | None = None
        silent: Name = ""
        while True:
            names = sorted(self._members, key=lambda name: name == silent)
            if told is not None:
                self._note_address(told)
                names = [told.leader, *(name for name in names if name != told.leader)]
                told = None
            for name in names:
                link = await self._try(name, again_s if name == silent else OPENING_S)
                if link is not None and link.silent:
                    silent = name
                if link is not None and link.was_up:
                    pause_s, again_s = PAUSE_S_MIN, AGAIN_S
                    break
                if (
                    link is not None
                    and link.elsewhere is not None
                    and link.elsewhere.leader not in ("", silent)
                ):
                    told = link.elsewhere
                    break
            else:
                # Nobody knew better: it gets more time, and in the end as much as any.
                again_s *= 2
                if again_s >= OPENING_S:
                    silent, again_s = "", AGAIN_S
            await asyncio.sleep(pause_s)
            pause_s = min(PAUSE_S_MAX, 2 * pause_s)

    def _note_address(self, told: Elsewhere) -> None:
        """What we were told to dial is what we know; of a member that is new to us, what its peer says."""
        if told.leader not in self._members and told.address:
            with suppress(ConfigError):
                self._members[told.leader] = parse_address("peer", told.address)

    async def _try(self, name: Name, opening_s: float) -> _Link | None:
        """One link from its beginning to its end; None: nobody was there."""
        address = self._members.get(name)
        if address is None:
            self._failed(name, "its address is not known")
            return None
        if not self._secret and self.tls is None and not is_loopback(address.host):
            self._failed(name, f"{address} {UNPROVEN}")
            return None
        handshake = Dialler(
            self._front, self._cluster, self._secret, os.urandom(NONCE_BYTES), name, kind=self._kind
        )
        try:
            async with asyncio.timeout(opening_s):
                _, link = await asyncio.get_running_loop().create_connection(
                    lambda: _Link(self, handshake, opening_s),
                    address.host,
                    address.port,
                    ssl=self.tls.dialling if self.tls else None,
                )
        except TimeoutError:
            self._failed(name, f"no answer in {opening_s} s")
            return None
        except OSError as error:
            self._failed(name, not_opened(error))
            return None
        try:
            await link.over.wait()
        finally:
            link.transport.abort()
            self.ended(link)
        if link.elsewhere is None or not link.elsewhere.leader:
            self._failed(name, link.why)
        return link

    def _failed(self, name: Name, problem: str) -> None:
        if f"{name}: {problem}" != self._problem:
            self._problem = f"{name}: {problem}"
            if self._group == MAIN:
                self._log.warning("main not reached", member=name, problem=problem)
            else:
                self._log.warning("group not reached", group=self._group, member=name, problem=problem)

    # What the link says ------------------------------------------------------------------------------------------

    def began(self, link: _Link, greeting: Greeting) -> None:
        self._link = link
        self.copy.greeted(greeting.groups)

    def whole(self, member: Name) -> None:
        self.leader, self._problem = member, ""
        if self._group == MAIN:
            self._log.info("main reached", member=member, changes=self._taken())
        else:
            self._log.info("group reached", group=self._group, member=member)
        self.copy.whole()
        self.led(member)

    def ended(self, link: _Link) -> None:
        if self._link is link:
            self._link, self.leader = None, ""
            self.copy.lost()

    def _taken(self) -> int:
        coming = self.copy.coming
        return 0 if coming is None else coming.taken


class _Link(asyncio.Protocol):
    """One socket to a member of the group."""

    def __init__(self, owner: WiringLink, handshake: Dialler, opening_s: float) -> None:
        self.transport: asyncio.Transport
        self.over = asyncio.Event()
        self.why = "the member closed the link"
        self.elsewhere: Elsewhere | None = None
        self.was_up = False
        """The whole wiring has come by it."""
        self.silent = False
        """The member did not say what it should have by now."""
        self._opening_s = opening_s
        self._owner = owner
        self._handshake: Dialler | None = handshake
        self._member = handshake.peer
        self._decoder = Decoder()
        self._greeted = False
        self._loop = asyncio.get_running_loop()
        self._made_s = self._heard_s = self._sent_s = self._looked_s = self._loop.time()
        self._timer: asyncio.TimerHandle | None = None

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        assert self._handshake is not None
        self.transport = cast(asyncio.Transport, transport)
        no_delay(transport)
        self.transport.write(self._handshake.output())
        self._timer = self._loop.call_later(BEAT_S, self._look)

    def data_received(self, data: bytes) -> None:
        if self.over.is_set():
            return
        self._heard_s = self._loop.time()
        try:
            if self._handshake is not None:
                data = data[self._handshake.receive(data) :]
                self.transport.write(self._handshake.output())
                if not self._handshake.done:
                    return
                self._handshake = None
            for message in self._decoder.feed(data):
                self._take(message)
                if self.over.is_set():
                    return
        except (PeerFault, PeerRefused, StoreForeign) as problem:
            self._end(str(problem))

    def connection_lost(self, exc: Exception | None) -> None:
        if self._handshake is not None and self._handshake.unanswered and not self.over.is_set():
            self.why = unheard(self._owner.tls)
        elif exc is not None and not self.over.is_set():
            self.why = str(exc).lower() or type(exc).__name__
        if self._timer is not None:
            self._timer.cancel()
        self._owner.ended(self)
        self.over.set()

    def write(self, data: bytes) -> None:
        self._sent_s = self._loop.time()
        self.transport.write(data)

    def _take(self, message: Message) -> None:
        owner = self._owner
        match message:
            case Elsewhere() if not self._greeted:
                self.elsewhere = message
                self._end(f"{self._member} does not lead, and nobody else does now")
            case Greeting() if not self._greeted:
                self._greeted = True
                owner.began(self, message)
            case Change(raw) if self._greeted:
                owner.copy.changed(raw)
            case Whole() if self._greeted and not self.was_up:
                self.was_up = True
                owner.whole(self._member)
            case Echo(number) if self.was_up:
                owner.copy.echoed(number)
            case Waiting(vhost, queue) if self.was_up:
                owner.waits(vhost, queue)
            case Ping():
                pass
            case _:
                raise PeerFault(reason=f"{type(message).__name__} is not expected now")

    def _look(self) -> None:
        now_s = self._loop.time()
        if now_s - self._looked_s > BEAT_S + IDLE_S:
            self._heard_s = now_s  # it was we who slept
        self._looked_s = now_s
        if self._handshake is not None and now_s - self._made_s > self._opening_s:
            self.silent = True
            self._end("the handshake took too long")
        elif now_s - self._heard_s > SILENT_S:
            self.silent = True
            self._end(f"nothing was heard for {SILENT_S} s")
        else:
            self._timer = self._loop.call_later(BEAT_S, self._look)
            if self._handshake is None and now_s - self._sent_s >= IDLE_S:
                self.write(PING)

    def _end(self, why: str) -> None:
        self.why = why
        self.over.set()
        self.transport.abort()
