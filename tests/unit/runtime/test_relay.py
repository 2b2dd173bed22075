"""The way of a client to the leader, when the client goes or the leader changes while it is being made."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Any

import pytest

from tidemark.runtime import relay
from tidemark.runtime.relay import Near


class Transport:
    def __init__(self) -> None:
        self.aborted = False
        self.written: list[bytes] = []

    def abort(self) -> None:
        self.aborted = True

    def write(self, data: bytes) -> None:
        self.written.append(data)

    def resume_reading(self) -> None: ...


class Linked:
    """A leader that has taken the client."""

    closed = False

    def __init__(self) -> None:
        self.transport = Transport()

    def end(self) -> None:
        self.transport.abort()


class Server:
    peers = None

    def __init__(self, leader: str) -> None:
        self.leader: str | None = leader
        self.serving = False
        self.relays: set[Near] = set()
        self.role_changed = asyncio.Event()
        self.taken: list[Any] = []

    def elsewhere(self) -> str | None:
        return self.leader

    def take(self, transport: Any, *_: object) -> None:
        self.taken.append(transport)

    def lead(self, leader: str | None, near: Near) -> None:
        self.leader, self.serving = leader, leader is None
        near.turn_to(leader)


class Way:
    """A client that waits for a leader; `hangs` never answers, any other one does when it is let."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.server = Server("hangs")
        self.linked: list[Linked] = []
        self.gate = asyncio.Event()
        self.near = near = Near(self.server)  # type: ignore[arg-type]
        near.transport = Transport()  # type: ignore[assignment]
        near._silent = asyncio.get_running_loop().call_later(9, lambda: None)
        near._held = b"AMQP"

        async def dialled(_peers: object, leader: str, *_: object) -> Linked:
            if leader == "hangs":
                try:
                    await asyncio.sleep(60)
                finally:
                    await asyncio.sleep(0)
            await self.gate.wait()
            self.linked.append(Linked())
            return self.linked[-1]

        monkeypatch.setattr(relay, "dialled", dialled)
        monkeypatch.setattr(relay, "peer_info", lambda _: "client")
        near._task = asyncio.get_running_loop().create_task(near._find_leader())


def played(story: Callable[[Way], Any], monkeypatch: pytest.MonkeyPatch) -> Way:
    async def play() -> Way:
        way = Way(monkeypatch)
        await asyncio.sleep(0.01)
        await story(way)
        await asyncio.sleep(0.2)
        return way

    return asyncio.run(play())


def test_what_nobody_has_heard_is_said_to_the_next_leader(monkeypatch: pytest.MonkeyPatch) -> None:
    async def story(way: Way) -> None:
        way.server.lead("next", way.near)
        way.gate.set()

    way = played(story, monkeypatch)
    [link] = way.linked
    assert link.transport.written == [b"AMQP"] and way.near.far is link  # type: ignore[comparison-overlap]


def test_a_client_is_served_here_when_this_member_leads(monkeypatch: pytest.MonkeyPatch) -> None:
    async def story(way: Way) -> None:
        way.server.lead(None, way.near)

    way = played(story, monkeypatch)
    assert way.server.taken == [way.near.transport]


def test_a_client_that_goes_while_the_leader_changes_is_led_nowhere(monkeypatch: pytest.MonkeyPatch) -> None:
    for leader in ("next", None):

        async def story(way: Way, leader: str | None = leader) -> None:
            way.server.lead(leader, way.near)
            way.near.connection_lost(None)
            way.gate.set()

        way = played(story, monkeypatch)
        assert way.server.taken == [] and all(link.transport.aborted for link in way.linked)


def test_a_client_that_goes_as_the_leader_takes_it_leaves_no_link(monkeypatch: pytest.MonkeyPatch) -> None:
    async def story(way: Way) -> None:
        way.server.lead("next", way.near)
        await asyncio.sleep(0.01)
        way.gate.set()
        while not way.linked:
            await asyncio.sleep(0)
        way.near.connection_lost(None)

    way = played(story, monkeypatch)
    [link] = way.linked
    assert link.transport.aborted
