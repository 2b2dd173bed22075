"""Links between members over real sockets: who comes in, what arrives, and how soon an end is noticed."""

from __future__ import annotations

import asyncio
import io
import os
import signal
import socket
import subprocess
import sys
import time
from collections.abc import AsyncIterator, Awaitable, Callable, Coroutine
from contextlib import asynccontextmanager
from functools import wraps
from pathlib import Path
from random import Random
from types import SimpleNamespace
from typing import Any

import pytest
import uvloop
from helpers.certificates import SERVERS_ONLY, Authority

from tidemark.config import Address
from tidemark.model.peers import Acked, Completed, Ends, Hello, Log, Message, Offer, Outdated, Unit
from tidemark.runtime import peers
from tidemark.runtime.log import Log as LogLines
from tidemark.runtime.peer_tls import PeerTls, peer_tls
from tidemark.runtime.peers import Peers
from tidemark.wire.peer.codec import encode
from tidemark.wire.peer.handshake import Client

SECRET = b"a secret of these tests"


def in_loop(story: Callable[..., Coroutine[Any, Any, None]]) -> Callable[..., None]:
    """Run the test in the loop that brokers use."""

    @wraps(story)
    def run(*arguments: Any, **named: Any) -> None:
        with asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:
            runner.run(asyncio.wait_for(story(*arguments, **named), 30))

    return run


async def eventually(true: Callable[[], object], within_s: float = 5.0) -> None:
    deadline = time.monotonic() + within_s
    while not true():
        assert time.monotonic() < deadline, "it did not come true"
        await asyncio.sleep(0.005)


class Side:
    """One member's links, and what it was told."""

    def __init__(
        self, name: str, secret: bytes = SECRET, cluster: str = "shop", tls: PeerTls | None = None
    ) -> None:
        self.name = name
        self.story: list[tuple[Any, ...]] = []
        self.units: list[tuple[int, Unit, bytes]] = []
        self.lines = io.StringIO()
        self.taken: list[tuple[str, Client, Echo]] = []
        self.taking = ""
        self.peers = Peers(
            name, cluster, secret, self, self._relayed, LogLines("debug", stream=self.lines), tls
        )
        self.address: Address

    async def listen(self, port: int = 0) -> Side:
        listener = socket.socket()
        listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        listener.bind(("127.0.0.1", port))
        listener.listen()
        listener.setblocking(False)
        self.address = Address(*listener.getsockname())
        await self.peers.listen(listener)
        return self

    def said(self, *kinds: str) -> list[tuple[Any, ...]]:
        return [one for one in self.story if one[0] in kinds]

    # What `Peers` tells
    def peer_up(self, peer: str, dialled: bool) -> None:
        self.story.append(("up", peer, dialled))

    def peer_down(self, peer: str, dialled: bool, gone: bool = False) -> None:
        self.story.append(("down", peer, dialled, gone))

    def peer_said(self, peer: str, message: Message) -> None:
        self.story.append(("said", peer, message))

    def given(self, peer: str, epoch: int, unit: Unit) -> None:
        self.units.append((epoch, unit, bytes(unit.payload)))

    def _relayed(self, peer: str, client: Client) -> asyncio.BaseProtocol | str:
        if self.taking:
            return self.taking
        echo = Echo()
        self.taken.append((peer, client, echo))
        return echo


class Echo(asyncio.Protocol):
    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self.transport = transport

    def data_received(self, data: bytes) -> None:
        self.transport.write(data)  # type: ignore[attr-defined]


Make = Callable[..., Awaitable[Side]]


@asynccontextmanager
async def sides() -> AsyncIterator[Make]:
    made: list[Side] = []

    async def make(name: str, **options: Any) -> Side:
        side = await Side(name, **options).listen()
        for other in made:
            other.peers.known(name, side.address)
            side.peers.known(other.name, other.address)
        made.append(side)
        return side

    yield make
    for side in made:
        await side.peers.close()


async def linked(make: Make) -> tuple[Side, Side]:
    """`b` reads from `a`."""
    a, b = await make("a"), await make("b")
    b.peers.dial("a")
    await eventually(lambda: a.story and b.story)
    assert b.story == [("up", "a", True)]
    assert a.story == [("up", "b", False)]
    return a, b


@in_loop
async def test_messages_go_both_ways_on_the_link_that_they_belong_to() -> None:
    async with sides() as make:
        a, b = await linked(make)
        up = (Hello("b", 3, "", Ends(1, 2), ()), Acked(3, Ends(4, 5)), Outdated(4))
        down = (Offer(3, "resume"), Completed(3, Ends(4, 5), 6, 7))
        for message in up:
            b.peers.tell("a", message)
        for message in down:
            a.peers.tell("b", message)
        await eventually(lambda: len(a.said("said")) == 3 and len(b.said("said")) == 2)

        assert [message for _, _, message in a.said("said")] == list(up)
        assert [message for _, _, message in b.said("said")] == list(down)


@in_loop
async def test_what_is_complete_travels_with_what_is_sent_next_or_soon_and_only_the_newest() -> None:
    async with sides() as make:
        a, b = await linked(make)
        for number in range(1, 4):
            a.peers.tell("b", Completed(3, Ends(number, number)))
        a.peers.ship("b", 3, Unit(Log.JOURNAL, 0, 1, 1, memoryview(b"x" * 8)))
        await eventually(lambda: b.units)
        assert [message for _, _, message in b.said("said")] == [Completed(3, Ends(3, 3))]

        a.peers.tell("b", Completed(3, Ends(4, 4)))
        await eventually(lambda: len(b.said("said")) == 2)


@in_loop
async def test_what_is_complete_and_a_unit_are_one_write_and_a_link_in_use_has_no_other(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """A write is a call of the system here, and wakes the member there up."""
    monkeypatch.setattr(peers, "NEWS_S", 0.3)
    async with sides() as make:
        a, b = await linked(make)
        link = a.peers._links["b", False]
        sizes: list[int] = []
        real = link.transport
        link.transport = SimpleNamespace(write=lambda data: (sizes.append(len(data)), real.write(data)))  # type: ignore[assignment]
        for number in range(1, 9):
            a.peers.tell("b", Completed(3, Ends(0, number)))
            await asyncio.sleep(0.05)
            a.peers.ship("b", 3, Unit(Log.JOURNAL, number, number + 1, number + 1, memoryview(b"x" * 8)))
        link.transport = real
        await eventually(lambda: len(b.units) == 8)

        assert len(b.said("said")) == 8
        assert len(sizes) == 8


@in_loop
async def test_units_of_any_size_arrive_in_order_with_the_epoch_they_were_sent_in() -> None:
    async with sides() as make:
        a, b = await linked(make)
        sizes = [1, 100, 1 << 16, 3_000_000, 5, 12_000_000, 17]
        for number, size in enumerate(sizes, 1):
            payload = bytearray(bytes([number]) * size)
            a.peers.ship(
                "b", 9, Unit(Log.JOURNAL, number * 10 - 1, number * 10, number * 10 + 5, memoryview(payload))
            )
            payload[:] = b"\xee" * size  # the store uses its place again
        assert a.peers.backlog("b") > 1_000_000
        await eventually(lambda: len(b.units) == len(sizes))

        assert [(epoch, unit.first, payload) for epoch, unit, payload in b.units] == [
            (9, number * 10, bytes([number]) * size) for number, size in enumerate(sizes, 1)
        ]
        assert a.peers.backlog("b") == 0


@in_loop
async def test_a_wrong_secret_opens_nothing_and_both_logs_say_why() -> None:
    async with sides() as make:
        a, b = await make("a"), await make("b", secret=b"a secret of somebody else")
        b.peers.dial("a")
        await eventually(lambda: b.said("down"))

        assert a.story == []
        assert b.said("up") == []
        assert set(b.story) == {("down", "a", True, False)}
        words = "'b' does not know the secret of cluster 'shop'"
        assert words in a.lines.getvalue()
        assert words in b.lines.getvalue()


@in_loop
async def test_a_member_of_another_cluster_or_name_is_refused() -> None:
    async with sides() as make:
        a, b = await make("a"), await make("b", cluster="bank")
        c = await make("c")
        b.peers.dial("a")
        c.peers.known("x", a.address)
        c.peers.dial("x")
        await eventually(lambda: b.said("down") and c.said("down"))

        assert a.story == []
        assert "'b' is of cluster 'bank', 'a' of 'shop'" in b.lines.getvalue()
        assert "this is 'a', not 'x'" in c.lines.getvalue()


@in_loop
async def test_a_source_whose_process_has_ended_is_gone_at_once() -> None:
    async with sides() as make:
        a, b = await linked(make)
        began_s = time.monotonic()
        await a.peers.close()
        await eventually(lambda: ("down", "a", True, True) in b.story)

        assert time.monotonic() - began_s < 0.5
        assert b.story[:3] == [("up", "a", True), ("down", "a", True, False), ("down", "a", True, True)]


@in_loop
async def test_a_source_that_comes_back_is_dialled_again_at_its_new_address() -> None:
    async with sides() as make:
        a, b = await linked(make)
        await a.peers.close()
        await eventually(lambda: ("down", "a", True, True) in b.story)
        again = await Side("a").listen()
        b.peers.known("a", again.address)
        await eventually(lambda: b.story[-1] == ("up", "a", True))

        assert again.story == [("up", "b", False)]
        await again.peers.close()


@in_loop
async def test_a_second_link_of_a_member_replaces_the_first() -> None:
    async with sides() as make:
        a, b = await linked(make)
        twin = Side("b")
        twin.peers.known("a", a.address)
        b.peers.known("a", None)  # it does not fight for its place
        twin.peers.dial("a")
        await eventually(lambda: twin.said("up") and b.said("down"))

        assert a.story == [("up", "b", False), ("down", "b", False, False), ("up", "b", False)]
        a.peers.tell("b", Offer(1, "resume"))
        await eventually(lambda: twin.said("said"))
        assert b.said("said") == []
        await twin.peers.close()


@in_loop
async def test_another_source_ends_the_link_to_the_one_before() -> None:
    async with sides() as make:
        a, b = await linked(make)
        c = await make("c")
        b.peers.dial("c")
        assert b.story == [("up", "a", True)], "nothing is reported from inside a call"
        await eventually(lambda: ("up", "c", True) in b.story and ("down", "b", False, False) in a.story)

        assert b.story == [("up", "a", True), ("down", "a", True, False), ("up", "c", True)]
        assert c.story == [("up", "b", False)]


@in_loop
async def test_a_dropped_source_is_dialled_again_and_a_dropped_reader_is_not() -> None:
    async with sides() as make:
        a, b = await linked(make)
        b.peers.drop("a")
        await eventually(lambda: len(b.said("up")) == 2)
        assert b.story == [("up", "a", True), ("down", "a", True, False), ("up", "a", True)]

        b.peers.dial(None)
        await eventually(lambda: b.story[-1][0] == "down")
        await asyncio.sleep(0.1)
        assert a.story[-1] == ("down", "b", False, False)


@in_loop
async def test_what_was_said_before_a_drop_still_arrives() -> None:
    async with sides() as make:
        a, b = await linked(make)
        a.peers.tell("b", Offer(1, "refuse", reason="another cluster's store"))
        a.peers.drop("b")
        await eventually(lambda: b.said("said"))

        assert b.said("said")[0][2].reason == "another cluster's store"


@in_loop
async def test_an_idle_link_stays_up() -> None:
    async with sides() as make:
        a, b = await linked(make)
        await asyncio.sleep(2.7)
        assert a.story == [("up", "b", False)]
        assert b.story == [("up", "a", True)]


FROZEN = """
import asyncio, io, sys
from tidemark.config import Address
from tidemark.runtime.log import Log
from tidemark.runtime.peers import Peers

class Quiet:
    def peer_up(self, peer, dialled): print("up", flush=True)
    def peer_down(self, peer, dialled, gone=False): pass
    def peer_said(self, peer, message): pass
    def given(self, peer, epoch, unit): pass

async def main():
    peers = Peers("b", "shop", sys.argv[2].encode(), Quiet(), lambda *_: "no", Log())
    peers.known("a", Address("127.0.0.1", int(sys.argv[1])))
    peers.dial("a")
    await asyncio.sleep(60)

asyncio.run(main())
"""


@in_loop
async def test_a_frozen_member_is_given_up_within_three_seconds_and_comes_back_when_it_thaws() -> None:
    async with sides() as make:
        a = await make("a")
        command = [sys.executable, "-c", FROZEN, str(a.address.port), SECRET.decode()]
        process = subprocess.Popen(command, stdout=subprocess.PIPE, env=os.environ | {"PYTHONPATH": "src"})
        try:
            await eventually(lambda: a.said("up"), 10)
            os.kill(process.pid, signal.SIGSTOP)
            began_s = time.monotonic()
            await eventually(lambda: a.said("down"))
            assert 1 < time.monotonic() - began_s < 3
            os.kill(process.pid, signal.SIGCONT)
            await eventually(lambda: len(a.said("up")) == 2)
        finally:
            process.kill()
            process.wait()


@in_loop
async def test_one_who_slept_does_not_take_its_peers_for_dead() -> None:
    async with sides() as make:
        a, b = await linked(make)
        time.sleep(2.5)
        await asyncio.sleep(0.8)
        assert a.story == [("up", "b", False)]
        assert b.story == [("up", "a", True)]


# Strangers -----------------------------------------------------------------------------------------------------------


@in_loop
@pytest.mark.parametrize(
    "bytes_",
    [b"GET / HTTP/1.1\r\n\r\n", b"AMQP\x00\x00\x09\x01", encode(Outdated(1)), Random(1).randbytes(100)],
)
async def test_a_stranger_at_the_port_is_shown_out(bytes_: bytes) -> None:
    async with sides() as make:
        a = await make("a")
        reader, writer = await asyncio.open_connection(a.address.host, a.address.port)
        writer.write(bytes_)
        await asyncio.wait_for(reader.read(), 2)
        writer.close()

        assert a.story == []


@in_loop
async def test_one_who_says_nothing_is_shown_out_after_a_while(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("tidemark.runtime.peers.OPENING_S", 0.3)
    async with sides() as make:
        a = await make("a")
        reader, writer = await asyncio.open_connection(a.address.host, a.address.port)
        assert await asyncio.wait_for(reader.read(), 2) == b""
        writer.close()
        assert "the handshake took too long" in a.lines.getvalue()


@in_loop
async def test_a_member_that_breaks_the_protocol_loses_its_link_only() -> None:
    async with sides() as make:
        a, b = await linked(make)
        link = b.peers._links["a", True]
        link.transport.write(b"\xff" * 40)
        await eventually(lambda: ("down", "b", False, False) in a.story)
        await eventually(lambda: len(a.said("up")) == 2)

        assert "is not the beginning of a frame" in a.lines.getvalue()


@in_loop
async def test_without_a_secret_only_this_machines_addresses_are_dialled() -> None:
    async with sides() as make:
        b = await make("b", secret=b"")
        b.peers.known("a", Address("192.0.2.1", 7000))
        b.peers.dial("a")
        await eventually(lambda: b.said("down"))
        assert "set cluster.secret_file, or cluster.peer_certificate" in b.lines.getvalue()


# Certificates ---------------------------------------------------------------------------------------------------------


def trusting(one: Authority, certificate: Path) -> PeerTls:
    """This certificate is shown, and what others show must be signed by this authority."""
    return peer_tls(certificate, None, one.certificate)


SIGNED = "its certificate is not signed by an authority in cluster.peer_authorities"
ASK = "it closed the link before it said anything: does it trust cluster.peer_certificate? its log says why"
STRANGERS = {
    # What it shows, whom it trusts: what is said where it dials, and what it says itself.
    ("of another", "another"): ("", SIGNED),
    ("of another", "ours"): (SIGNED, ASK),
    ("ours", "another"): ("", SIGNED),
    ("expired", "ours"): ("its certificate has expired: give it a new one and start it again", ASK),
    ("for servers", "ours"): ("its extended key usage must allow server and client authentication", ASK),
    ("nothing", ""): (
        "it does not speak TLS: if it is a member, set cluster.peer_certificate there",
        "if its links have certificates, set cluster.peer_certificate here; its log says why",
    ),
}


@in_loop
@pytest.mark.parametrize(("shows", "trusts"), STRANGERS)
async def test_who_shows_no_certificate_of_ours_stays_outside_and_is_told_of(
    tmp_path: Path, shows: str, trusts: str
) -> None:
    """Q-56, S-22: certificates are all that members know one another by."""
    here, there = STRANGERS[shows, trusts]
    ours, another = Authority.create(tmp_path / "ours"), Authority.create(tmp_path / "another", "another")
    shown = {
        "ours": ours.issue("c"),
        "of another": another.issue("c"),
        "expired": ours.issue("expired", days=-1),
        "for servers": ours.issue("for servers", usage=SERVERS_ONLY),
    }
    authorities = {"ours": ours, "another": another}
    async with sides() as make:
        a, b = [await make(name, secret=b"", tls=trusting(ours, ours.issue(name))) for name in "ab"]
        tls = trusting(authorities[trusts], shown[shows]) if trusts else None
        c = await make("c", secret=b"", tls=tls)
        b.peers.dial("a")
        c.peers.dial("a")
        await eventually(lambda: b.said("up") and c.said("down"))
        a.peers.ship("b", 1, Unit(Log.CATALOG, 0, 1, 2, memoryview(b"x" * 200_000)))
        await eventually(lambda: b.units and here in a.lines.getvalue())

        assert a.story == [("up", "b", False)]
        assert c.said("up") == []
        assert there in c.lines.getvalue()
        assert c.peers.trouble.startswith("no link to a: ") and b.peers.trouble == ""


@in_loop
async def test_while_the_authority_is_replaced_members_trust_both(tmp_path: Path) -> None:
    old, new = Authority.create(tmp_path / "old", "old"), Authority.create(tmp_path / "new", "new")
    both = tmp_path / "both.pem"
    both.write_bytes(old.certificate.read_bytes() + new.certificate.read_bytes())
    async with sides() as make:
        a = await make("a", secret=b"", tls=peer_tls(old.issue("a"), None, both))
        b = await make("b", secret=b"", tls=peer_tls(new.issue("b"), None, both))
        a.peers.dial("b")
        b.peers.dial("a")
        await eventually(lambda: len(a.said("up")) == len(b.said("up")) == 2)


@in_loop
async def test_one_with_certificates_does_not_come_in_where_there_are_none(tmp_path: Path) -> None:
    ours = Authority.create(tmp_path)
    async with sides() as make:
        a = await make("a")
        b = await make("b", tls=trusting(ours, ours.issue("b")))
        b.peers.dial("a")
        await eventually(lambda: b.said("down"))

        assert a.story == []
        assert "it speaks TLS, and there is no cluster.peer_certificate here" in a.lines.getvalue()
        assert "it does not speak TLS: set cluster.peer_certificate there" in b.lines.getvalue()


@in_loop
async def test_with_certificates_a_secret_still_counts(tmp_path: Path) -> None:
    ours = Authority.create(tmp_path)
    async with sides() as make:
        a = await make("a", tls=trusting(ours, ours.issue("a")))
        b = await make("b", tls=trusting(ours, ours.issue("b")), secret=b"a secret of somebody else")
        b.peers.dial("a")
        await eventually(lambda: b.said("down"))

        assert a.story == []
        assert "'b' does not know the secret of cluster 'shop'" in b.lines.getvalue()


def open_files() -> int:
    return len(list(Path("/proc/self/fd").iterdir()))


@in_loop
async def test_strangers_at_a_port_with_certificates_leave_nothing_behind(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """One who says nothing, one who leaves, one who speaks something else, more than there is room for: members still come in."""
    monkeypatch.setattr(peers, "OPENING_S", 0.3)
    monkeypatch.setattr(peers, "OPENING_MAX", 20)
    ours = Authority.create(tmp_path)
    async with sides() as make:
        a = await make("a", secret=b"", tls=trusting(ours, ours.issue("a")))
        before = open_files()
        for words in (b"", b"GET / HTTP/1.1\r\n\r\n", encode(Outdated(1)), Random(1).randbytes(100)):
            for _ in range(10):
                with socket.create_connection((a.address.host, a.address.port)) as one:
                    one.sendall(words)
                    await asyncio.sleep(0)
        silent = [socket.create_connection((a.address.host, a.address.port)) for _ in range(30)]
        await eventually(lambda: "too many connections that have not said who they are" in a.lines.getvalue())
        await eventually(lambda: "ssl handshake is taking longer than 0.3 seconds" in a.lines.getvalue())
        for one in silent:
            one.close()
        await eventually(lambda: open_files() <= before + 2)

        b = await make("b", secret=b"", tls=trusting(ours, ours.issue("b")))
        b.peers.dial("a")
        await eventually(lambda: b.said("up"))
        assert a.story == [("up", "b", False)]


@in_loop
async def test_a_source_with_certificates_that_has_ended_is_gone_at_once(tmp_path: Path) -> None:
    ours = Authority.create(tmp_path)
    async with sides() as make:
        a = await make("a", secret=b"", tls=trusting(ours, ours.issue("a")))
        b = await make("b", secret=b"", tls=trusting(ours, ours.issue("b")))
        b.peers.dial("a")
        await eventually(lambda: b.said("up"))
        began_s = time.monotonic()
        await a.peers.close()
        await eventually(lambda: ("down", "a", True, True) in b.story)

        assert time.monotonic() - began_s < 0.5
