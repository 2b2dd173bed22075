"""Members that tell one another views, over real sockets and real files: which view holds, and what a stranger can do."""

from __future__ import annotations

import asyncio
import io
import json
import socket
import struct
import time
from collections.abc import AsyncIterator, Callable, Coroutine
from contextlib import asynccontextmanager
from dataclasses import replace
from functools import wraps
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tidemark.config import Address
from tidemark.member.facts import MemberFacts
from tidemark.member.telling import Told, decode_told, encode_told
from tidemark.member.views import VIEW, read_view
from tidemark.model.peers import Ends, Message, Unit, View
from tidemark.runtime.disk import FileDisk
from tidemark.runtime.log import Log
from tidemark.runtime.membership.external import ExternalMembership
from tidemark.runtime.peers import Peers

SECRET = b"a secret of these tests"
CLUSTER = "c0" * 16


def in_loop(story: Callable[..., Coroutine[Any, Any, None]]) -> Callable[..., None]:
    @wraps(story)
    def run(*arguments: Any, **named: Any) -> None:
        asyncio.run(asyncio.wait_for(story(*arguments, **named), 30))

    return run


async def eventually(true: Callable[[], object], within_s: float = 10.0) -> None:
    deadline = time.monotonic() + within_s
    while not true():
        assert time.monotonic() < deadline, "it did not come true"
        await asyncio.sleep(0.01)


def a_view(leader: str, ready: str, epoch: int = 1, revision: int = 0, history: str = "") -> View:
    return View(CLUSTER, epoch, leader, tuple(ready), history or f"{epoch:032x}", revision)


class Side:
    """One member without a broker: its links, its file, and what it was told."""

    def __init__(self, name: str, directory: Path, cluster: str = "") -> None:
        self.name = name
        self.directory = directory / name
        self.cluster = cluster
        self.views: list[View | None] = []
        self.failed: list[View] = []
        self.here: dict[str, MemberFacts] = {}
        self.gone: list[str] = []
        self.log = io.StringIO()

    async def start(self, addresses: dict[str, Address], *, knows: str = "abc") -> None:
        self.disk = FileDisk(self.directory)
        lines = Log("debug", "text", self.log)
        listener = socket.create_server((addresses[self.name].host, addresses[self.name].port))
        self.peers = Peers(self.name, "shop", SECRET, self, lambda *_: "no relays here", lines)
        self.address = addresses[self.name]
        others = [name for name in knows if name != self.name]
        for name in others:
            self.peers.known(name, addresses[name])
        await self.peers.listen(listener)
        self.membership = ExternalMembership(self.peers, others, self.facts, self, lines, self.disk, 0.3)
        self.membership.start()

    async def stop(self) -> None:
        await self.membership.close()
        await self.peers.close()
        self.disk.close()

    def facts(self) -> MemberFacts:
        return MemberFacts(self.name, str(self.address), cluster=self.cluster, durable=Ends(1, 2))

    @property
    def view(self) -> View | None:
        return self.views[-1] if self.views else None

    async def propose(self, view: View) -> None:
        before = len(self.views) + len(self.failed)
        self.membership.propose(view)
        await eventually(lambda: len(self.views) + len(self.failed) > before)

    # What it is told

    def view_changed(self, view: View | None) -> None:
        self.views.append(view)

    def proposal_failed(self, view: View) -> None:
        self.failed.append(view)

    def member_here(self, facts: MemberFacts) -> None:
        self.here[facts.name] = facts
        if facts.name != self.name:
            host, _, port = facts.peer.rpartition(":")
            self.peers.known(facts.name, Address(host, int(port)))

    def member_gone(self, name: str) -> None:
        self.gone.append(name)

    def lease(self, until_ticks_ms: int) -> None: ...

    def peer_up(self, peer: str, dialled: bool) -> None: ...

    def peer_down(self, peer: str, dialled: bool, gone: bool = False) -> None: ...

    def peer_said(self, peer: str, message: Message) -> None: ...

    def given(self, peer: str, epoch: int, unit: Unit) -> None: ...


@pytest.fixture
def addresses() -> dict[str, Address]:
    probes = {name: socket.create_server(("127.0.0.1", 0)) for name in "abcd"}
    found = {name: Address("127.0.0.1", probe.getsockname()[1]) for name, probe in probes.items()}
    for probe in probes.values():
        probe.close()
    return found


@asynccontextmanager
async def running(addresses: dict[str, Address], *sides: Side, knows: str = "abc") -> AsyncIterator[None]:
    for side in sides:
        await side.start(addresses, knows=knows)
    try:
        yield
    finally:
        for side in sides:
            await side.stop()


@in_loop
async def test_a_view_that_one_member_proposes_is_known_to_all_and_kept(
    tmp_path: Path, addresses: dict[str, Address]
) -> None:
    """X-9: as from the other provider of membership."""
    a, b, c = (Side(name, tmp_path) for name in "abc")
    async with running(addresses, a, b, c):
        await a.propose(a_view("a", "a"))
        founded = a.view
        assert founded is not None and founded.revision == 1 << 32 | 1
        await a.propose(replace(founded, ready=("a", "b")))
        await eventually(lambda: b.view == c.view == a.view and a.view != founded)
    for side in (a, b, c):
        disk = FileDisk(side.directory)
        kept = read_view(disk)
        disk.close()
        assert kept == a.view and kept is not None and kept.revision == 1 << 32 | 2


@in_loop
async def test_a_view_that_was_derived_from_an_older_one_is_not_taken(
    tmp_path: Path, addresses: dict[str, Address]
) -> None:
    """What another member knows is asked for first, so a stale leader finds out before it goes on alone."""
    a, b = Side("a", tmp_path), Side("b", tmp_path)
    async with running(addresses, a):
        await a.propose(a_view("a", "ab"))
        old = a.view
        assert old is not None
        async with running(addresses, b):
            await eventually(lambda: b.view == old)
        # While they do not hear of one another b is promoted.
        a.membership.views.names.clear()
        a.membership.views.known.clear()
        b2 = Side("b", tmp_path)
        async with running({**addresses, "a": addresses["d"]}, b2, knows="b"):
            await b2.propose(replace(old, epoch=2, leader="b", ready=("b",), history="02" * 16))
            promoted = b2.view
        b3 = Side("b", tmp_path)
        async with running(addresses, b3, knows="b"):
            a.peers.known("b", addresses["b"])
            a.membership.views.names.add("b")
            await a.propose(old.without("b"))
            await eventually(lambda: a.failed)
            assert a.failed == [old.without("b")]
            assert a.view == promoted


@in_loop
async def test_of_two_that_were_promoted_at_once_all_choose_the_same(
    tmp_path: Path, addresses: dict[str, Address]
) -> None:
    a, b, c = (Side(name, tmp_path) for name in "abc")
    base = a_view("a", "abc", revision=1 << 32 | 1)
    for name, leader, history in (("b", "b", "0b"), ("c", "c", "0c")):
        other = Side(name, tmp_path)
        async with running(addresses, other, knows=name):
            await other.propose(replace(base, epoch=1, revision=0))
            mine = other.view
            assert mine is not None
            await other.propose(replace(mine, epoch=2, leader=leader, ready=("b", "c"), history=history * 16))
    async with running(addresses, a, b, c):
        await eventually(lambda: {one.view.leader for one in (a, b, c) if one.view is not None} == {"c"})
        assert a.view == b.view == c.view
        assert "two members were promoted at once" in b.log.getvalue() + c.log.getvalue() + a.log.getvalue()


@in_loop
async def test_a_view_of_another_cluster_is_ignored_and_said(
    tmp_path: Path, addresses: dict[str, Address]
) -> None:
    a, b = Side("a", tmp_path), Side("b", tmp_path, cluster="ff" * 16)
    async with running(addresses, a, b):
        await a.propose(a_view("a", "a"))
        await eventually(lambda: "member of another cluster" in b.log.getvalue())
        assert b.view is None


@in_loop
async def test_a_member_that_knows_one_is_known_by_all(tmp_path: Path, addresses: dict[str, Address]) -> None:
    a, b, d = Side("a", tmp_path), Side("b", tmp_path), Side("d", tmp_path)
    async with running(addresses, a, b, knows="ab"), running(addresses, d, knows="bd"):
        await eventually(lambda: "d" in a.here and "a" in d.here)
    assert d.here["a"].peer == str(addresses["a"])


@in_loop
async def test_who_is_not_reached_is_named_and_then_gone(
    tmp_path: Path, addresses: dict[str, Address]
) -> None:
    a, b = Side("a", tmp_path), Side("b", tmp_path)
    async with running(addresses, a):
        async with running(addresses, b):
            await eventually(lambda: "b" in a.here and "b" not in a.membership.views.unseen)
            await a.propose(a_view("a", "ab"))
            await eventually(lambda: a.membership.views.untold == ["c"])
        await a.propose(replace(a.view, ready=("a",)))  # type: ignore[type-var]
        await eventually(lambda: "b" in a.gone)
        assert set(a.membership.views.unseen) == {"b", "c"}
        await eventually(lambda: "left out and not told  member=b" in a.log.getvalue())
        assert a.membership.views.untold == ["b", "c"]


@in_loop
async def test_a_file_that_has_rotted_is_no_view(tmp_path: Path, addresses: dict[str, Address]) -> None:
    a = Side("a", tmp_path)
    async with running(addresses, a, knows="a"):
        await a.propose(a_view("a", "a"))
    file = tmp_path / "a" / VIEW
    file.write_bytes(file.read_bytes().replace(b'"a"', b'"b"'))

    again = Side("a", tmp_path)
    async with running(addresses, again, knows="a"):
        assert again.views == [None]
    assert "view not understood" in again.log.getvalue()


@in_loop
async def test_bytes_that_no_member_tells_end_the_link_and_nothing_else(
    tmp_path: Path, addresses: dict[str, Address]
) -> None:
    a, b = Side("a", tmp_path), Side("b", tmp_path)
    async with running(addresses, a, b):
        await eventually(lambda: "b" in a.here)
        for body in (b"", b"[]", b"{}", b'{"name": "c"}', b"\xff" * 40, b'{"name":"b","member":{},"view":7}'):
            protocol: Any = b.membership.compared("a")
            transport = FakeTransport()
            protocol.connection_made(transport)
            protocol.data_received(struct.pack("<I", len(body)) + body)
            assert transport.ended == "aborted", body
            protocol.connection_lost(None)
        protocol = b.membership.compared("a")
        transport = FakeTransport()
        protocol.connection_made(transport)
        protocol.data_received(struct.pack("<I", 1 << 30))
        assert transport.ended == "aborted"
        protocol.connection_lost(None)
        await a.propose(a_view("a", "a"))
        await eventually(lambda: b.view == a.view)


class FakeTransport:
    """What is left of a socket when only its end matters."""

    ended = ""

    def write(self, data: bytes) -> None:
        raise AssertionError(f"nothing is to be answered, and {data!r} is")

    def abort(self) -> None:
        self.ended = "aborted"


names = st.text("abcdefgh-1", min_size=1, max_size=8)
sequences = st.integers(0, 1 << 62)
members = st.builds(
    MemberFacts, names, names, names, names, names, st.builds(Ends, sequences, sequences), sequences, names
)


@given(members, st.lists(members, max_size=4, unique_by=lambda one: one.name), st.booleans())
def test_what_is_told_is_heard(member: MemberFacts, others: list[MemberFacts], with_view: bool) -> None:
    view = a_view("a", "ab", epoch=3, revision=3 << 32 | 7) if with_view else None
    frame = encode_told(Told(member, view, tuple(others)))
    heard = decode_told(frame[4:])
    assert heard == Told(member, view, tuple(others))
    assert view is None or (heard.view is not None and heard.view.revision == view.revision)


@given(st.recursive(st.none() | st.booleans() | st.integers() | st.text(max_size=5), lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.sampled_from(["name", "member", "view", "others", "epoch", "ready"]), inner, max_size=4)))  # fmt: skip
def test_whatever_else_is_told_is_a_value_error(words: Any) -> None:
    with pytest.raises(ValueError):  # noqa: PT011 - any reason will do
        decode_told(json.dumps({"others": 1, "x": words}).encode())
    with pytest.raises(ValueError):  # noqa: PT011
        decode_told(json.dumps(words).encode())


class Muddled(Side):
    """It was told the addresses of all, its own too."""

    async def start(self, addresses: dict[str, Address], *, knows: str = "abc") -> None:
        await super().start(addresses, knows="")
        await self.membership.close()
        for name in knows:
            self.peers.known(name, addresses[name])
        lines = Log("debug", "text", self.log)
        self.membership = ExternalMembership(self.peers, knows, self.facts, self, lines, self.disk, 0.3)
        self.membership.start()


@in_loop
async def test_a_member_that_is_told_its_own_address_does_not_dial_itself(
    tmp_path: Path, addresses: dict[str, Address]
) -> None:
    """Q-7: the list of members has its own address, under its name and under another: no loop, and it is shown as what it is."""
    a, b = Muddled("a", tmp_path), Muddled("b", tmp_path)
    async with running({**addresses, "x": addresses["a"]}, a, b, knows="abx"):
        await eventually(lambda: "b" in a.here and "a" in b.here and "x" in a.membership.views.unseen)
        await a.propose(a_view("a", "ab"))
        await eventually(lambda: b.view == a.view)
        await asyncio.sleep(0.1)
        assert set(a.membership.views.unseen) == set(b.membership.views.unseen) == {"x"}
        assert "this is 'a', not 'x'" in b.membership.views.unseen["x"]
        assert "'a'" in a.membership.views.unseen["x"]
    assert a.here["a"].peer == b.here["a"].peer == str(addresses["a"])
    assert set(a.here) == set(b.here) == {"a", "b"}
    assert a.log.getvalue().count("member=x") == 1
