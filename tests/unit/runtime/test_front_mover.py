"""A front process moves messages between groups over real sockets: it is told where they wait, and comes for itself."""

from __future__ import annotations

import asyncio
import io
import socket
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import cast

import pytest
from unit.frontend.harness import PERSISTENT, World
from unit.runtime.test_wiring_feed import SECRET, eventually, in_loop

from tidemark.broker.groups import OUTBOX
from tidemark.config import Address, load
from tidemark.errors import PeerRefused
from tidemark.frontend.amqp091.connection import Amqp091
from tidemark.frontend.services import PeerInfo
from tidemark.model.peers import Message, Unit
from tidemark.model.wiring import FRONT_USER, MAIN
from tidemark.router.link import State
from tidemark.router.mover import Source
from tidemark.runtime.front_server import FrontServer
from tidemark.runtime.log import Log
from tidemark.runtime.peers import Peers
from tidemark.runtime.wiring_feed import Feeds
from tidemark.wire.amqp091 import methods
from tidemark.wire.peer.handshake import Client, Dialler, LinkKind
from tidemark.wire.peer.wiring import Greeting


class Served(asyncio.Protocol):
    """The socket of one connection to a broker in memory."""

    def __init__(self, world: World, peer: PeerInfo) -> None:
        self._world = world
        self._front_end = Amqp091(world, peer)
        self._pending = b""
        world.clients[self._front_end] = self  # type: ignore[assignment]

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = cast(asyncio.Transport, transport)

    def data_received(self, data: bytes) -> None:
        self._pending += data
        used = self._front_end.receive(memoryview(self._pending))
        self._pending = self._pending[used:]
        self._world.turn()

    def hear(self, data: bytes) -> None:
        self._transport.write(data)
        if self._front_end.closed:
            self._transport.close()

    def connection_lost(self, exc: Exception | None) -> None:
        self._front_end.receive_eof()
        self._world.turn()


class Leader:
    """The only member of a group."""

    def __init__(self, group: str, secret: bytes = SECRET) -> None:
        self.world = World()
        self.broker = self.world.broker
        self.broker.group = group
        self.broker.other_groups = {"fast": "chain"} if group == MAIN else {}
        log = Log("debug", stream=io.StringIO())
        identity = "shop" if group == MAIN else f"shop/groups/{group}"
        self.peers = Peers(group, identity, secret, self, lambda _, __: "no relays", log)
        self.peers.fronted = self.peers.owned = self._owned
        self.peers.fed = self._fed
        self.feeds = Feeds(log, lambda: True, lambda: self.broker.catalog.last_seq)
        self.address: Address

    async def listen(self) -> Leader:
        listener = socket.socket()
        listener.bind(("127.0.0.1", 0))
        listener.listen()
        listener.setblocking(False)
        self.address = Address(*listener.getsockname())
        await self.peers.listen(listener)
        return self

    def _owned(self, peer: str, client: Client) -> asyncio.BaseProtocol | str:
        return Served(self.world, PeerInfo(client.host, client.port, front=peer, own=True))

    def _fed(self, front: str) -> asyncio.BaseProtocol | str:
        return self.feeds.link(front, Greeting(self.peers.me, 7, self.broker.groups), self.broker)

    def users(self) -> set[str]:
        return {session.user for session in self.broker.sessions}

    # What `Peers` tells
    def peer_up(self, peer: str, dialled: bool) -> None: ...
    def peer_down(self, peer: str, dialled: bool, gone: bool = False) -> None: ...
    def peer_said(self, peer: str, message: Message) -> None: ...
    def given(self, peer: str, epoch: int, unit: Unit) -> None: ...


@asynccontextmanager
async def standing(place: Path) -> AsyncIterator[tuple[Leader, Leader, io.StringIO]]:
    """Two groups and a front, with its log."""
    async with a_front(place) as (_, main, fast, lines):
        yield main, fast, lines


@asynccontextmanager
async def a_front(place: Path) -> AsyncIterator[tuple[FrontServer, Leader, Leader, io.StringIO]]:
    main, fast = await Leader(MAIN).listen(), await Leader("fast").listen()
    secret = place / "secret"
    secret.touch(0o600)
    secret.write_bytes(SECRET)
    config = load(
        {
            "node.name": "front",
            "cluster.name": "shop",
            "cluster.secret_file": str(secret),
            "listen.amqp": "127.0.0.1:0",
            "front.groups": f"main=main@{main.address},fast=fast@{fast.address}",
        }
    )
    lines = io.StringIO()
    front = FrontServer(config, Log("debug", stream=lines))
    await front.start()
    try:
        yield front, main, fast, lines
    finally:
        front.stop()
        await front.run_until_stopped()
        for leader in (main, fast):
            leader.feeds.cut("the test is over")
            await leader.peers.close()


@in_loop
async def test_what_waits_in_main_and_in_the_outbox_of_a_group_is_moved(tmp_path: Path) -> None:
    async with standing(tmp_path) as (main, fast, _):
        here = main.world.open()
        here.declare("there", durable=True, arguments={"x-group": "fast"})
        here.declare("here", durable=True)
        here.ask(1, methods.ExchangeDeclare(exchange="dead", type="fanout"))
        here.ask(1, methods.QueueBind(queue="here", exchange="dead"))
        there = fast.world.open()
        there.declare("there", durable=True)
        letters = {"x-dead-letter-exchange": "dead", "x-message-ttl": 0}
        there.declare("dying", durable=True, arguments=letters)

        here.publish(1, "there", *(b"%d" % number for number in range(200)), properties=PERSISTENT)
        there.publish(1, "dying", b"last words", properties=PERSISTENT)
        await eventually(lambda: fast.world.ready("there") == 200)
        await eventually(lambda: main.world.ready("here") == 1)
        await eventually(lambda: main.broker.vhosts["/"].queues["there"].acquired == 0)
        await eventually(lambda: fast.broker.vhosts["/"].queues[OUTBOX].acquired == 0)
        assert main.world.ready("there") == fast.world.ready(OUTBOX) == 0
        assert main.users() == fast.users() == {"guest", FRONT_USER}


@in_loop
async def test_a_queue_that_its_group_does_not_have_is_made_there(tmp_path: Path) -> None:
    async with standing(tmp_path) as (main, fast, lines):
        here = main.world.open()
        here.declare("there", durable=True, arguments={"x-group": "fast"})
        here.publish(1, "there", b"x", properties=PERSISTENT)
        await eventually(lambda: "there" in fast.broker.vhosts["/"].queues and fast.world.ready("there") == 1)
        assert "queue made again" in lines.getvalue()


async def shake_hands(handshake: Dialler, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
    while not handshake.done:
        writer.write(handshake.output())
        data = await reader.read(1)
        assert handshake.receive(data) == len(data) == 1


@pytest.mark.parametrize("kind", [LinkKind.FRONT, LinkKind.OWN])
@in_loop
async def test_without_a_secret_or_certificates_nobody_is_taken_for_a_front(kind: LinkKind) -> None:
    leader = await Leader(MAIN, secret=b"").listen()
    reader, writer = await asyncio.open_connection(leader.address.host, leader.address.port)
    try:
        handshake = Dialler("anybody", "shop", b"", bytes(32), MAIN, Client("127.0.0.1", 4711), kind)
        with pytest.raises(PeerRefused, match=r"cluster\.secret_file, or cluster\.peer_certificate"):
            await shake_hands(handshake, reader, writer)
    finally:
        writer.close()
        await leader.peers.close()
    assert not leader.broker.sessions and not leader.world.clients


@in_loop
async def test_with_several_groups_nobody_sends_a_link_elsewhere(tmp_path: Path) -> None:
    """Whoever it was sent to would be told the names of queues without a proof that he belongs to the cluster."""
    strangers = []
    trap = await asyncio.start_server(lambda _, writer: strangers.append(writer), "127.0.0.1", 0)
    host, port = trap.sockets[0].getsockname()
    async with a_front(tmp_path) as (front, main, _, _):
        link = Source(front._mover, (MAIN, "/")).dialled()
        await eventually(lambda: link.state is State.OPEN)
        front.dial(link, f"CONNECTION_FORCED - n1 does not lead; connect to n2 at {host}:{port}")
        before = len(main.world.clients)
        await eventually(lambda: strangers or len(main.world.clients) > before)
        assert not strangers
    trap.close()
