"""Asking a member how far its store goes: what counts as an answer, and whether its process is there if there is none."""

from __future__ import annotations

import asyncio
import io
import json
import socket
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from helpers.certificates import Authority
from unit.runtime.test_external import SECRET, in_loop

from tidemark.config import Address
from tidemark.member.facts import (
    MemberFacts,
    decode_member,
    decode_view,
    encode_member,
    encode_view,
)
from tidemark.member.telling import NotAnswered, Told
from tidemark.model.peers import Ends, Takeover, View
from tidemark.runtime.log import Log
from tidemark.runtime.membership.telling import Listening, exchange
from tidemark.runtime.peer_tls import PeerTls, peer_tls
from tidemark.runtime.peers import Peers
from tidemark.wire.peer.handshake import LinkKind

FACTS = MemberFacts(
    "b",
    "127.0.0.1:5680",
    cluster="c0" * 16,
    durable=Ends(2, 80),
    epoch=4,
    table=(Takeover("2" * 32, Ends(2, 40)), Takeover("1" * 32, Ends(1, 1))),
)


def peers_of(name: str, tls: PeerTls | None = None) -> Peers:
    lines = Log("debug", "text", io.StringIO())
    return Peers(name, "shop", SECRET, None, lambda *_: "no relays here", lines, tls)  # type: ignore[arg-type]


@asynccontextmanager
async def listening(peers: Peers, facts: MemberFacts | None) -> AsyncIterator[Address]:
    """A member that answers with these facts; None: it does not want to be asked."""
    if facts is not None:
        lines = Log("debug", "text", io.StringIO())
        peers.surveyed = lambda peer: Listening(peer, lambda *_: Told(facts, None), lines)
    listener = socket.create_server(("127.0.0.1", 0))
    address = Address(*listener.getsockname())
    await peers.listen(listener)
    try:
        yield address
    finally:
        await peers.close()


async def asked(address: Address, tls: PeerTls | None = None) -> MemberFacts | NotAnswered:
    """What a hears when it asks b, which should be there."""
    peers = peers_of("a", tls)
    peers.known("b", address)
    try:
        own = Told(MemberFacts("a", "127.0.0.1:5681"), None)
        return (await exchange(peers, "b", LinkKind.SURVEY, own)).member
    except NotAnswered as problem:
        return problem
    finally:
        await peers.close()


@in_loop
async def test_a_member_tells_how_far_its_store_goes_and_which_histories_it_holds() -> None:
    async with listening(peers_of("b"), FACTS) as address:
        assert await asked(address) == FACTS


@in_loop
async def test_where_nothing_listens_nobody_is_there() -> None:
    with socket.create_server(("127.0.0.1", 0)) as probe:
        address = Address(*probe.getsockname())
    problem = await asked(address)
    assert isinstance(problem, NotAnswered) and not problem.there
    assert "refused" in str(problem) or "connect call failed" in str(problem)


@pytest.mark.parametrize("with_tls", [False, True], ids=["plain", "TLS"])
@in_loop
async def test_a_process_that_takes_the_connection_and_says_nothing_is_there(
    tmp_path: Path, with_tls: bool
) -> None:
    """It reads its store, or stands still: the system takes connections for it."""
    tls = a_tls(tmp_path) if with_tls else None
    with socket.create_server(("127.0.0.1", 0)) as listener:
        problem = await asked(Address(*listener.getsockname()), tls)
    assert isinstance(problem, NotAnswered) and problem.there
    assert str(problem) == "no answer in 0.5 s"


@in_loop
async def test_a_process_that_does_not_want_to_be_asked_is_there() -> None:
    """It is of an older version, or has other settings."""
    async with listening(peers_of("b"), None) as address:
        problem = await asked(address)
    assert isinstance(problem, NotAnswered) and problem.there
    assert "nobody is asked here what its store holds" in str(problem)


@in_loop
async def test_when_another_member_has_the_address_now_the_one_that_is_meant_is_not_there() -> None:
    async with listening(peers_of("x"), FACTS) as address:
        problem = await asked(address)
    assert isinstance(problem, NotAnswered) and not problem.there
    assert "this is 'x', not 'b'" in str(problem)


@in_loop
async def test_what_is_no_member_at_all_is_not_the_one_that_is_meant() -> None:
    async def greet(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        writer.write(b"220 mail.example.org ESMTP\r\n")
        await reader.read()
        writer.close()

    server = await asyncio.start_server(greet, "127.0.0.1", 0)
    async with server:
        problem = await asked(Address(*server.sockets[0].getsockname()))
    assert isinstance(problem, NotAnswered) and not problem.there


@in_loop
async def test_what_a_member_says_in_the_name_of_another_is_no_answer() -> None:
    async with listening(peers_of("b"), replace(FACTS, name="c")) as address:
        problem = await asked(address)
    assert isinstance(problem, NotAnswered) and problem.there
    assert str(problem) == "'b' calls itself 'c'"


@in_loop
async def test_over_tls_an_answer_is_an_answer(tmp_path: Path) -> None:
    tls = a_tls(tmp_path)
    async with listening(peers_of("b", tls), FACTS) as address:
        assert await asked(address, tls) == FACTS


@in_loop
async def test_of_one_who_shows_no_certificate_of_ours_the_process_is_there_and_its_log_has_the_rest(
    tmp_path: Path,
) -> None:
    """Q-56: it is not taken for gone because it may not be asked."""
    ours, another = a_tls(tmp_path / "ours"), a_tls(tmp_path / "another")
    async with listening(peers_of("b", ours), FACTS) as address:
        unknown, plain = await asked(address, another), await asked(address)
    async with listening(peers_of("b"), FACTS) as address:
        encrypted = await asked(address, ours)
    for problem, words in (
        (unknown, "its certificate is not signed by an authority in cluster.peer_authorities"),
        (plain, "if its links have certificates, set cluster.peer_certificate here; its log says why"),
        (encrypted, "it does not speak TLS: set cluster.peer_certificate there, or take it out here"),
    ):
        assert isinstance(problem, NotAnswered) and problem.there
        assert words in str(problem)


def a_tls(directory: Path) -> PeerTls:
    """Whoever has it trusts whoever has it."""
    ours = Authority.create(directory)
    return peer_tls(ours.issue("members"), None, ours.certificate)


# What is kept ------------------------------------------------------------------------------------------------------


VIEW = View("c0" * 16, 5, "b", ("b",), "5" * 32, 50, accepted=5, settled=4)


@pytest.mark.parametrize("unknown", ["accepted", "settled"])
def test_a_view_of_a_member_that_knows_of_no_such_epoch_has_none(unknown: str) -> None:
    old = {key: value for key, value in json.loads(encode_view(VIEW)).items() if key != unknown}
    assert decode_view(json.dumps(old), 50) == replace(VIEW, **{unknown: 0})  # type: ignore[arg-type]
    assert decode_view(encode_view(VIEW), 50) == VIEW


@pytest.mark.parametrize("key", ["accepted", "settled"])
@pytest.mark.parametrize("epoch", [-1, 6, "5", True, None, 5.0])
def test_what_was_in_no_epoch_of_the_view_is_an_error(key: str, epoch: Any) -> None:
    words = json.loads(encode_view(VIEW)) | {key: epoch}
    with pytest.raises(ValueError, match=f"{key} must be one of its epochs"):
        decode_view(json.dumps(words), 50)


def test_a_member_that_does_not_tell_its_histories_holds_none_that_are_known() -> None:
    words = json.loads(encode_member(FACTS))
    assert decode_member("b", json.dumps(words)) == FACTS
    old = {key: value for key, value in words.items() if key not in ("table", "failed")}
    assert decode_member("b", json.dumps(old)) == replace(FACTS, table=())


@pytest.mark.parametrize(
    "wrong", [{"table": 7}, {"table": [["2", 1]]}, {"table": [[2, 1, 1]]}, {"table": ["x"]}, {"failed": 1}]
)
def test_histories_that_are_none_are_an_error(wrong: dict[str, Any]) -> None:
    words = json.loads(encode_member(FACTS)) | wrong
    with pytest.raises(ValueError, match=r"a member.s (table|failed) must"):
        decode_member("b", json.dumps(words))
