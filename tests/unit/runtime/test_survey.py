"""What a member asks the others before it is promoted: a real server without an etcd, and others that are made up."""

from __future__ import annotations

import asyncio
import io
import socket
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import pytest
from unit.runtime.test_external import in_loop

from tidemark.cluster.mode import Survey, Unasked
from tidemark.config import load
from tidemark.member.facts import MemberFacts
from tidemark.member.telling import NotAnswered
from tidemark.model.peers import Ends, View
from tidemark.runtime.log import Log
from tidemark.runtime.member_server import MemberServer


@asynccontextmanager
async def a_server(directory: Path, **peers: int) -> AsyncIterator[MemberServer]:
    """It knows members at these ports."""
    flags = {
        "node.name": "n1",
        "node.data": str(directory / "data"),
        "listen.amqp": "127.0.0.1:0",
        "listen.admin": "127.0.0.1:0",
        "listen.peer": "127.0.0.1:0",
        "cluster.name": "shop",
        "cluster.provider": "external",
        "cluster.peers": ",".join(f"{name}=127.0.0.1:{port}" for name, port in peers.items()),
        "store.segment_bytes": "1MiB",
        "store.extent_bytes": "64KiB",
    }
    server = MemberServer(load(flags), Log(stream=io.StringIO()))
    await server.start()
    try:
        yield server
    finally:
        server.stop()
        await server.run_until_stopped()


def heard(server: MemberServer, monkeypatch: pytest.MonkeyPatch) -> list[Survey | None]:
    """What the member is given when it is asked something."""
    found: list[Survey | None] = []
    ask = server.member.ask

    def listen(*words: Any, **more: Any) -> Any:
        found.append(more["survey"])
        return ask(*words, **more)

    monkeypatch.setattr(server.member, "ask", listen)
    return found


@in_loop
async def test_who_is_there_and_who_is_not_is_told_by_name(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with socket.create_server(("127.0.0.1", 0)) as silent, socket.create_server(("127.0.0.1", 0)) as gone:
        ports = silent.getsockname()[1], gone.getsockname()[1]
        gone.close()
        async with a_server(tmp_path, n2=ports[0], n3=ports[1]) as server:
            surveys = heard(server, monkeypatch)
            await server.ask("promote")
    [survey] = surveys
    assert survey is not None and survey.answers == ()
    assert [(one.member, one.there) for one in survey.unasked] == [("n2", True), ("n3", False)]


@in_loop
async def test_only_those_count_as_answers_that_were_asked_themselves(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """n2 answers, and speaks of n3 every time; n3 is not asked before that, and then does not answer."""
    rounds: list[set[str]] = []
    n2, n3 = (MemberFacts(name, "127.0.0.1:1", durable=Ends(2, 9), epoch=1) for name in ("n2", "n3"))
    async with a_server(tmp_path, n2=1) as server:
        external = server._external
        assert external is not None

        async def compare() -> dict[str, MemberFacts | NotAnswered]:
            asked = external.views.others()
            rounds.append(asked)
            external.views.known |= {"n2": n2, "n3": n3}
            no = NotAnswered("connection refused", there=False)
            return {name: n2 if name == "n2" else no for name in sorted(asked)}

        monkeypatch.setattr(external, "compare", compare)
        survey = await server._survey()
        assert rounds == [{"n2"}, {"n2", "n3"}]
        monkeypatch.undo()
    assert [one.member for one in survey.answers] == ["n2"]
    assert survey.unasked == (Unasked("n3", "connection refused"),)


@in_loop
async def test_when_the_view_changes_while_others_are_asked_they_are_asked_again(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    views = [View("c0" * 16, 1, "n2", ("n2",), "1" * 32, 1 << 32 | at) for at in range(1, 9)]
    async with a_server(tmp_path, n2=1) as server:
        asked = 0

        async def ask_all(_: set[str]) -> dict[str, MemberFacts | NotAnswered]:
            nonlocal asked
            asked += 1
            server.member.view = views[min(asked, changes)]
            await asyncio.sleep(0)
            return {"n2": NotAnswered("connection refused", there=False)}

        monkeypatch.setattr(server, "_ask_all", ask_all)
        for changes, times in ((0, 1), (1, 2), (7, 3)):
            asked, server.member.view = 0, views[0]
            survey = await server._survey()
            assert asked == times
            now = server.member.view.revision
            assert (survey.revision == now) == (changes < 7), "else the member refuses"
