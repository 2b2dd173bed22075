"""A front of one group whose members it knows by name: clients are cut loose from a member that leads no more, and from no other."""

from __future__ import annotations

import asyncio
import io
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import cast

from unit.frontend.harness import World
from unit.runtime.test_front_mover import Served
from unit.runtime.test_wiring_feed import SECRET, Main, eventually, in_loop

from tidemark.config import load
from tidemark.frontend.services import PeerInfo
from tidemark.runtime.front_server import FrontServer
from tidemark.runtime.log import Log
from tidemark.wire.amqp091.frames import PROTOCOL_HEADER
from tidemark.wire.amqp091.methods import (
    ConnectionClose,
    ConnectionOpen,
    ConnectionStartOk,
    ConnectionTuneOk,
    encode_method,
)
from tidemark.wire.peer.handshake import Client
from tidemark.wire.stream.frames import MAGIC, PREAMBLE, Kind, encode_frame


class Streaming(asyncio.Protocol):
    """Lets any client of the stream protocol in, and says no more."""

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = cast(asyncio.Transport, transport)
        self._transport.writelines(encode_frame(Kind.ANSWER, 1, {"node": "a"}, last=True))


class Either(asyncio.Protocol):
    """A client that was passed on, in the protocol that its first bytes say."""

    def __init__(self, world: World, client: Client) -> None:
        self._world, self._client = world, client

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = cast(asyncio.Transport, transport)

    def data_received(self, data: bytes) -> None:
        chosen: asyncio.Protocol = Streaming()
        if not data.startswith(MAGIC):
            chosen = Served(self._world, PeerInfo(self._client.host, self._client.port))
        self._transport.set_protocol(chosen)
        chosen.connection_made(self._transport)
        if isinstance(chosen, Served):
            chosen.data_received(data)


class Member(Main):
    """One that serves clients that are passed on, if it leads."""

    def __init__(self, name: str) -> None:
        super().__init__(name)
        self.world = World()
        self.peers.relayed = self._relayed

    def leads(self) -> None:
        self.broker = self.world.broker

    def _relayed(self, _: str, client: Client) -> asyncio.BaseProtocol | str:
        return Either(self.world, client) if self.broker is not None else f"{self.name} does not lead"


@asynccontextmanager
async def a_front(place: Path, *members: Member) -> AsyncIterator[FrontServer]:
    for member in members:
        await member.listen()
    (place / "secret").touch(0o600)
    (place / "secret").write_bytes(SECRET)
    flags = {
        "node.name": "front",
        "cluster.name": "shop",
        "cluster.secret_file": str(place / "secret"),
        "listen.amqp": "127.0.0.1:0",
        "front.groups": "main=" + ",".join(f"{one.name}@{one.address}" for one in members),
    }
    front = FrontServer(load(flags), Log("debug", stream=io.StringIO()))
    await front.start()
    try:
        yield front
    finally:
        front.stop()
        await front.run_until_stopped()
        for member in members:
            member.feeds.cut("the test is over")
            await member.peers.close()


class Talking:
    """A client of the front, and all that it has heard."""

    def __init__(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self.heard, self.ended = b"", False
        self.writer = writer
        self._task = asyncio.create_task(self._listen(reader))

    async def _listen(self, reader: asyncio.StreamReader) -> None:
        while data := await reader.read(4096):
            self.heard += data
        self.ended = True


async def talking(front: FrontServer, *words: bytes) -> Talking:
    where = front.addresses["amqp"]
    found = Talking(*await asyncio.open_connection(where.host, where.port))
    for said in words:
        before = len(found.heard)
        found.writer.write(said)
        await eventually(lambda before=before: len(found.heard) > before)  # type: ignore[misc]
    return found


OPENING = (
    PROTOCOL_HEADER,
    encode_method(0, ConnectionStartOk({}, "PLAIN", b"\0guest\0guest", "en_US")),
    encode_method(0, ConnectionTuneOk(0, 131072, 0)) + encode_method(0, ConnectionOpen("/")),
)
HELLO = PREAMBLE + b"".join(
    encode_frame(Kind.REQUEST, 1, {"op": "hello", "user": "guest", "password": "guest"})
)
CLOSED = encode_method(0, ConnectionClose(320, ""))[7:13]


@in_loop
async def test_clients_are_cut_loose_from_a_leader_when_another_leads_and_not_before(tmp_path: Path) -> None:
    a, b = Member("a"), Member("b")
    a.leads()
    async with a_front(tmp_path, a, b) as front:
        await eventually(lambda: len(a.feeds.links) == 1)
        amqp, streams = await talking(front, *OPENING), await talking(front, HELLO)

        a.feeds.cut("the link breaks, and the same one leads")
        await eventually(lambda: len(a.feeds.links) == 1)
        assert CLOSED not in amqp.heard and not streams.ended

        a.broker = None  # it hangs: nobody at it hears a word
        b.leads()
        a.feeds.cut("it hangs")
        await eventually(lambda: CLOSED in amqp.heard and streams.ended)

        assert b"b leads now; connect again" in amqp.heard
        await talking(front, *OPENING)
        assert len(b.world.clients) == 1


@in_loop
async def test_a_front_that_knows_no_names_does_not_ask_who_leads() -> None:
    front = FrontServer(
        load({"front.groups": "main=127.0.0.1:1", "listen.amqp": "127.0.0.1:0"}),
        Log("debug", stream=io.StringIO()),
    )
    assert front._feeds == {}
