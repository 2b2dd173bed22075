"""Fronts are told the wiring over real sockets: all of it, every change behind it, and by nobody who does not lead."""

from __future__ import annotations

import asyncio
import io
import socket
import time
from collections.abc import AsyncIterator, Callable, Coroutine
from contextlib import asynccontextmanager
from functools import partial, wraps
from typing import Any, Literal

import pytest
import uvloop
from builders import a_broker, a_session
from unit.broker.channel import a_channel

from tidemark.broker.broker import Broker
from tidemark.config import Address
from tidemark.model.peers import Message, Unit
from tidemark.model.wiring import QueueSpec
from tidemark.runtime import wiring_feed, wiring_link
from tidemark.runtime.log import Log
from tidemark.runtime.peers import Peers
from tidemark.runtime.wiring_feed import FeedLink, Feeds, TurnedAway
from tidemark.runtime.wiring_link import WiringLink
from tidemark.wire.amqp091.content import Amqp091Content
from tidemark.wire.amqp091.properties import Properties, encode_properties
from tidemark.wire.peer.handshake import Dialler, LinkKind
from tidemark.wire.peer.wiring import Decoder, Echo, Elsewhere, Greeting, Whole, encode

SECRET = b"a secret of these tests"
PLAIN = encode_properties(Properties())


def in_loop(story: Callable[..., Coroutine[Any, Any, None]]) -> Callable[..., None]:
    @wraps(story)
    def run(*arguments: Any, **named: Any) -> None:
        with asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:
            runner.run(asyncio.wait_for(story(*arguments, **named), 30))

    return run


async def eventually(true: Callable[[], object], within_s: float = 10.0) -> None:
    deadline = time.monotonic() + within_s
    while not true():
        assert time.monotonic() < deadline, "it did not come true"
        await asyncio.sleep(0.005)


class Main:
    """A member of main as fronts see it: its peer port, and a broker if it leads."""

    def __init__(self, name: str, broker: Broker | None = None) -> None:
        self.name = name
        self.broker = broker
        self.proven = True
        self.complete: int | None = None
        """Up to where its catalog is complete; None: always all of it."""
        self.elsewhere = Elsewhere("")
        self.lines = io.StringIO()
        log = Log("debug", stream=self.lines)
        self.peers = Peers(name, "shop", SECRET, self, lambda _, __: "no relays", log)
        self.peers.fed, self.peers.watched = self._fed, partial(self._fed, wiring=False)
        self.feeds = Feeds(log, lambda: self.proven and self.broker is not None, self._complete)
        self.address: Address

    async def listen(self) -> Main:
        listener = socket.socket()
        listener.bind(("127.0.0.1", 0))
        listener.listen()
        listener.setblocking(False)
        self.address = Address(*listener.getsockname())
        await self.peers.listen(listener)
        return self

    def _fed(self, front: str, *, wiring: bool = True) -> asyncio.BaseProtocol | str:
        if self.broker is None:
            return TurnedAway(self.elsewhere)
        greeting = Greeting(self.name, 7, self.broker.groups)
        return self.feeds.link(front, greeting, self.broker, wiring=wiring)

    def _complete(self) -> int:
        assert self.broker is not None
        return self.broker.catalog.last_seq if self.complete is None else self.complete

    def steps_down(self) -> None:
        self.broker = None
        self.feeds.cut("this member does not lead any more")

    # What `Peers` tells
    def peer_up(self, peer: str, dialled: bool) -> None: ...
    def peer_down(self, peer: str, dialled: bool, gone: bool = False) -> None: ...
    def peer_said(self, peer: str, message: Message) -> None: ...
    def given(self, peer: str, epoch: int, unit: Unit) -> None: ...


@asynccontextmanager
async def standing(*brokers: Broker | None) -> AsyncIterator[list[Main]]:
    """Members a, b, ... of main, and whoever leads has a broker."""
    mains = [await Main(name, broker).listen() for name, broker in zip("abc", brokers, strict=False)]
    try:
        yield mains
    finally:
        for main in mains:
            main.feeds.cut("the test is over")
            await main.peers.close()


@asynccontextmanager
async def a_front(
    *mains: Main,
    secret: bytes = SECRET,
    kind: Literal[LinkKind.WIRING, LinkKind.LEADER] = LinkKind.WIRING,
) -> AsyncIterator[WiringLink]:
    members = {main.name: main.address for main in mains}
    log = Log("debug", stream=io.StringIO())
    front = WiringLink("front", "shop", secret, members, Amqp091Content(), log, kind=kind)
    front.start()
    try:
        yield front
    finally:
        await front.close()


async def fresh(front: WiringLink) -> None:
    answered = asyncio.Event()
    front.copy.fresh(answered.set)
    await answered.wait()


def a_main(**groups: str) -> Broker:
    broker = a_broker()
    broker.mode, broker.other_groups = "standby", groups
    return broker


def queues(front: WiringLink) -> set[str]:
    assert front.copy.copy is not None
    return set(front.copy.copy.vhosts["/"].queues)


async def raw_front(main: Main, read_bytes: int = 0) -> socket.socket:
    """A socket that has proven that it is a front's and does nothing by itself."""
    connection = socket.socket()
    if read_bytes:
        connection.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, read_bytes)
    connection.setblocking(False)
    loop = asyncio.get_running_loop()
    await loop.sock_connect(connection, (main.address.host, main.address.port))
    handshake = Dialler("front", "shop", SECRET, bytes(32), main.name, kind=LinkKind.WIRING)
    while not handshake.done:
        out = handshake.output()
        if out:
            await loop.sock_sendall(connection, out)
        data = await loop.sock_recv(connection, 1)
        assert handshake.receive(data) == len(data)
    return connection


# What is told -----------------------------------------------------------------------------------------------------


@in_loop
async def test_a_front_has_the_wiring_and_each_change_as_soon_as_it_asks() -> None:
    broker = a_main(fast="chain")
    session = a_session(broker)
    session.declare_queue("before", durable=True, arguments={"x-group": "fast"})
    async with standing(broker) as [main], a_front(main) as front:
        await fresh(front)
        copy = front.copy.copy
        assert (
            copy is not None and front.leader == "a" and copy.groups == {"main": "standby", "fast": "chain"}
        )
        assert copy.group_of("/", "before") == "fast"
        for n in range(50):
            session.declare_queue(f"q{n}", exclusive=bool(n % 2))
            await fresh(front)
            assert copy.group_of("/", f"q{n}") == "main"
            session.delete_queue(f"q{n}")
        await fresh(front)
        assert queues(front) == {"before"}


@in_loop
async def test_a_name_that_cannot_be_told_costs_neither_the_link_nor_the_turn() -> None:
    broker = a_main(fast="chain")
    long = "q" * 256
    for name in (long, "told"):
        broker.create_queue(QueueSpec("/", name, durable=True, arguments={"x-group": "fast"}))
        a_session(broker).bind_queue(name, "amq.fanout", "")
    channel = a_channel(broker)
    async with standing(broker) as [main], a_front(main) as before:
        told: list[str] = []
        before.waits = lambda _, queue: told.append(queue)
        await fresh(before)
        channel.publish("", b"x", exchange="amq.fanout")
        channel.turn(1)
        await eventually(lambda: told == ["told"])
        async with a_front(main) as behind:
            await fresh(behind)
            assert queues(behind) == {long, "told"}
        assert main.lines.getvalue().count("unexpected exception") == 2, "once for each front"


@in_loop
async def test_changes_made_while_the_image_is_on_its_way_come_behind_it() -> None:
    broker = a_main()
    session = a_session(broker)
    for n in range(3000):
        session.declare_queue(f"q{n}")
        session.bind_queue(f"q{n}", "amq.fanout", "")
    async with standing(broker) as [main], a_front(main) as front:
        await eventually(lambda: main.feeds.links)
        assert not front.copy.up
        for n in range(0, 3000, 3):
            session.delete_queue(f"q{n}")
        session.declare_queue("q0")
        await fresh(front)
        assert front.copy.copy is not None
        found = front.copy.copy.routes("/", b"amq.fanout", b"", PLAIN, user="guest")
        assert found == {"main": [f"q{n}" for n in range(3000) if n % 3]}
        assert queues(front) == set(broker.vhosts["/"].queues)


@in_loop
async def test_a_large_image_is_written_in_slices(monkeypatch: pytest.MonkeyPatch) -> None:
    broker = a_main()
    session = a_session(broker)
    for n in range(20_000):
        session.declare_queue(f"q{n}")
    sizes: list[int] = []
    pump = FeedLink._write

    def noting(link: FeedLink, data: bytes) -> None:
        sizes.append(len(data))
        pump(link, data)

    monkeypatch.setattr(FeedLink, "_write", noting)
    async with standing(broker) as [main]:
        connection = await raw_front(main)
        decoder, loop, found = Decoder(), asyncio.get_running_loop(), 0
        while True:
            messages = decoder.feed(await loop.sock_recv(connection, 4096))
            found += len(messages)
            if Whole() in messages:
                break
        connection.close()
    assert found > 20_000
    assert sum(sizes) > 2_000_000 and max(sizes) < wiring_feed.SLICE_BYTES + 1000


@in_loop
async def test_several_fronts_are_told_the_same_and_one_that_goes_is_forgotten() -> None:
    broker = a_main()
    session = a_session(broker)
    async with standing(broker) as [main]:
        async with a_front(main) as one, a_front(main) as other:
            await fresh(one)
            await fresh(other)
            session.declare_queue("q")
            await fresh(one)
            await fresh(other)
            assert queues(one) == queues(other) == {"q"} and len(main.feeds.links) == 2
        await eventually(lambda: not main.feeds.links)
        assert broker.feed is None


# Who tells --------------------------------------------------------------------------------------------------------


@in_loop
async def test_a_member_that_does_not_lead_says_who_does() -> None:
    async with standing(None, a_main()) as [follower, leader]:
        follower.elsewhere = Elsewhere("b", str(leader.address))
        async with a_front(follower) as front:
            await fresh(front)
            assert front.leader == "b"


@in_loop
async def test_while_nobody_leads_a_front_asks_again_and_again() -> None:
    async with standing(None, None) as [one, other], a_front(one, other) as front:
        await asyncio.sleep(0.2)
        assert not front.copy.up
        one.broker = a_main()
        await fresh(front)
        assert front.leader == "a"


@in_loop
async def test_when_another_leads_the_front_has_its_wiring_and_whoever_waited_gets_an_answer() -> None:
    old, new = a_main(), a_main()
    a_session(old).declare_queue("never confirmed")
    a_session(new).declare_queue("confirmed")
    async with standing(old, None) as [a, b], a_front(a, b) as front:
        await fresh(front)
        a.proven = False
        waiting = asyncio.create_task(fresh(front))
        await asyncio.sleep(0.1)
        assert not waiting.done()
        a.steps_down()
        a.elsewhere, b.broker = Elsewhere("b", str(b.address)), new
        await waiting
        assert front.leader == "b" and queues(front) == {"confirmed"}
        assert old.feed is None


@in_loop
async def test_a_front_of_one_group_is_told_who_leads_and_nothing_of_the_wiring() -> None:
    broker = a_main()
    a_session(broker).declare_queue("q", durable=True)
    led: list[str] = []
    async with standing(broker, None) as (a, b), a_front(a, b, kind=LinkKind.LEADER) as front:
        front.led = led.append
        await eventually(lambda: led == ["a"])
        a_session(broker).declare_queue("r", durable=True)
        await fresh(front)
        assert front.copy.copy is not None and not front.copy.copy.vhosts
        assert broker.feed is None, "the broker tells nobody of changes"

        a.steps_down()
        b.broker = a_main()
        await eventually(lambda: led == ["a", "b"])


@in_loop
async def test_a_leader_that_says_nothing_is_left_for_whoever_leads_now(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(wiring_link, "SILENT_S", 0.5)
    led: list[str] = []
    async with standing(a_main(), None) as (a, b), a_front(a, b, kind=LinkKind.LEADER) as front:
        front.led = led.append
        await eventually(lambda: led == ["a"])
        [link] = a.feeds.links
        assert link._timer is not None
        link._timer.cancel()  # it hangs

        b.broker = a_main()
        await eventually(lambda: led == ["a", "b"])


@in_loop
async def test_a_leader_that_cannot_prove_it_holds_its_answers_until_it_can() -> None:
    async with standing(a_main()) as [main], a_front(main) as front:
        await fresh(front)
        main.proven = False
        waiting = asyncio.create_task(fresh(front))
        await asyncio.sleep(0.2)
        assert not waiting.done()
        main.proven = True
        main.feeds.proven()
        await waiting


@in_loop
async def test_one_who_fails_when_he_is_answered_does_not_cost_the_link() -> None:
    async with standing(a_main()) as [main], a_front(main) as front:
        await fresh(front)
        front.copy.fresh(lambda: [][0])
        await fresh(front)
        await fresh(front)
        assert front.copy.up and main.lines.getvalue().count("front listens") == 1


@in_loop
async def test_a_change_that_is_not_complete_is_not_told_and_an_echo_behind_it_waits() -> None:
    broker = a_main()
    session = a_session(broker)
    session.declare_queue("q", durable=True)
    async with standing(broker) as [main], a_front(main) as front:
        await fresh(front)
        main.complete = broker.catalog.last_seq
        await fresh(front)  # nothing is on its way: no wait
        session.delete_queue("q")
        asked = asyncio.create_task(fresh(front))
        await asyncio.sleep(0.05)
        session.declare_queue("later", durable=True)
        await asyncio.sleep(0.05)
        main.feeds.completed()
        await asyncio.sleep(0.05)
        assert queues(front) == {"q"} and not asked.done()
        main.complete += 1
        main.feeds.completed()
        await asked
        assert queues(front) == set()
        main.complete += 1
        main.feeds.completed()
        await fresh(front)
        assert queues(front) == {"later"}


@in_loop
async def test_what_is_complete_is_still_not_promised_by_who_cannot_prove_that_he_leads() -> None:
    broker = a_main()
    async with standing(broker) as [main], a_front(main) as front:
        await fresh(front)
        main.complete = broker.catalog.last_seq
        a_session(broker).declare_queue("q", durable=True)
        asked = asyncio.create_task(fresh(front))
        await asyncio.sleep(0.05)
        main.proven, main.complete = False, None
        main.feeds.completed()
        await eventually(lambda: queues(front) == {"q"})
        await asyncio.sleep(0.05)
        assert not asked.done()
        main.proven = True
        main.feeds.proven()
        await asked


@in_loop
async def test_an_image_is_whole_when_what_is_in_it_is_complete() -> None:
    broker = a_main()
    a_session(broker).declare_queue("q", durable=True)
    async with standing(broker) as [main]:
        main.complete = broker.catalog.last_seq - 1
        async with a_front(main) as front:
            await eventually(lambda: front.copy.coming is not None)
            await asyncio.sleep(0.05)
            assert not front.copy.up
            main.complete += 1
            main.feeds.completed()
            await fresh(front)
            assert queues(front) == {"q"}


@in_loop
async def test_without_the_secret_there_is_no_wiring() -> None:
    async with standing(a_main()) as [main], a_front(main, secret=b"some other secret") as front:
        await eventually(lambda: "does not know the secret" in main.lines.getvalue())
        assert not front.copy.up and not main.feeds.links


# Who is cut off ---------------------------------------------------------------------------------------------------


@in_loop
async def test_a_front_that_does_not_read_is_cut_off_and_nobody_else_notices(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(wiring_feed, "PENDING_BYTES_MAX", 200_000)
    monkeypatch.setattr(wiring_feed, "BUFFER_BYTES", 10_000)
    broker = a_main()
    session = a_session(broker)
    async with standing(broker) as [main], a_front(main) as good:
        await fresh(good)
        connection = await raw_front(main, read_bytes=4096)
        await eventually(lambda: len(main.feeds.links) == 2)
        arguments = {"filler": "x" * 50_000}
        for n in range(400):
            session.declare_queue(f"q{n}", arguments=arguments)
            await fresh(good)
            if len(main.feeds.links) == 1:
                break
        assert "front cut off" in main.lines.getvalue() and "does not read" in main.lines.getvalue()
        await fresh(good)
        assert queues(good) == set(broker.vhosts["/"].queues)
        connection.close()


@in_loop
async def test_a_front_whose_socket_takes_nothing_for_a_while_is_cut_off(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(wiring_feed, "STALLED_S", 0.3)
    monkeypatch.setattr(wiring_feed, "BUFFER_BYTES", 10_000)
    broker = a_main()
    session = a_session(broker)
    for n in range(200):
        session.declare_queue(f"q{n}", arguments={"filler": "x" * 50_000})
    async with standing(broker) as [main]:
        connection = await raw_front(main, read_bytes=4096)
        await eventually(lambda: "has read nothing" in main.lines.getvalue())
        assert not main.feeds.links and broker.feed is None
        connection.close()


@in_loop
async def test_a_front_that_says_nothing_is_cut_off() -> None:
    async with standing(a_main()) as [main]:
        connection = await raw_front(main)
        await eventually(lambda: "nothing was heard" in main.lines.getvalue())
        assert not main.feeds.links
        connection.close()


@pytest.mark.parametrize("said", [b"\0" * 8, encode(Whole()), encode(Greeting("x", 1))])
def test_a_front_that_says_what_no_front_says_is_cut_off(said: bytes) -> None:
    @in_loop
    async def story() -> None:
        async with standing(a_main()) as [main]:
            connection = await raw_front(main)
            await asyncio.get_running_loop().sock_sendall(connection, said)
            await eventually(lambda: "front cut off" in main.lines.getvalue())
            connection.close()

    story()


@in_loop
async def test_echoes_without_end_from_a_front_are_not_all_kept(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(wiring_feed, "HELD_MAX", 10)
    async with standing(a_main()) as [main]:
        main.proven = False
        connection = await raw_front(main)
        await asyncio.get_running_loop().sock_sendall(
            connection, b"".join(encode(Echo(n)) for n in range(11))
        )
        await eventually(lambda: "echoes wait" in main.lines.getvalue())
        connection.close()
