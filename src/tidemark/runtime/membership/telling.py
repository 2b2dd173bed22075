"""What one member tells another about itself over a short link of its own kind: one question, one answer.

    VIEW      without etcd: members and views, both ways (`external.py`)
    SURVEY    with etcd: how far a member's store goes, asked before it is given up or passed over (`cluster/loss.py`)

Both sides say the same kind of thing, as JSON behind its length. Whoever dials is the one who waits, and not for long. A
process that takes the connection and says nothing is there all the same: it reads its store, stands still, or is busy.

Invariant: what `encode_told` writes `decode_told` reads; anything else is a `ValueError`.
"""

from __future__ import annotations

import asyncio
import json
import os
import struct
from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Any, cast

from tidemark.errors import PeerFault, PeerRefused
from tidemark.model.peers import Name, View
from tidemark.runtime.authenticator import is_loopback
from tidemark.runtime.log import Log
from tidemark.runtime.membership.facts import (
    MemberFacts,
    decode_member,
    decode_view,
    encode_member,
    encode_view,
)
from tidemark.runtime.peers import Peers
from tidemark.wire.peer.handshake import NONCE_BYTES, Dialler, LinkKind

ANSWER_S = 0.5
"""Longest that one member is waited for: so much longer takes a promotion, or going on without a member that hangs."""
COUNTER_BITS = 32
TOLD_BYTES_MAX = 1 << 18
MEMBERS_MAX = 256
HEAD = struct.Struct("<I")


class NotAnswered(Exception):
    """A member could not be asked, or did not answer."""

    def __init__(self, why: str, *, there: bool) -> None:
        """`there`: its process is."""
        super().__init__(why)
        self.there = there


@dataclass(frozen=True, slots=True)
class Told:
    """What one member tells another."""

    member: MemberFacts
    view: View | None
    others: tuple[MemberFacts, ...] = ()
    """Members that it has heard of, so that a new one needs to know only one. Not what their stores hold."""


def encode_told(told: Told) -> bytes:
    words = {
        "name": told.member.name,
        "member": json.loads(encode_member(told.member)),
        "view": None if told.view is None else view_facts(told.view),
        "others": {
            one.name: json.loads(encode_member(replace(one, table=()))) for one in told.others[:MEMBERS_MAX]
        },
    }
    body = json.dumps(words).encode()
    return HEAD.pack(len(body)) + body


def decode_told(body: bytes) -> Told:
    """Raises ValueError: this is not what a member tells."""
    try:
        found = json.loads(body)
    except RecursionError:
        raise ValueError("it is nested too deeply") from None
    if not isinstance(found, dict):
        raise ValueError("it must be an object")
    name, others = found.get("name"), found.get("others", {})
    if not isinstance(name, str) or not isinstance(others, dict) or len(others) > MEMBERS_MAX:
        raise ValueError("it must have a name and other members")
    view = found.get("view")
    return Told(
        decode_member(name, json.dumps(found.get("member"))),
        None if view is None else view_of(view),
        tuple(decode_member(other, json.dumps(facts)) for other, facts in others.items()),
    )


def view_facts(view: View) -> dict[str, Any]:
    facts: dict[str, Any] = json.loads(encode_view(view))
    return facts | {"revision": view.revision}


def view_of(facts: Any) -> View:
    view = decode_view(json.dumps(facts), 0)
    revision = facts.get("revision")
    if type(revision) is not int or revision >> COUNTER_BITS != view.epoch:
        raise ValueError(f"revision {revision!r} is not of epoch {view.epoch}")
    return replace(view, revision=revision)


async def exchange(peers: Peers, name: Name, kind: LinkKind, told: Told) -> Told:
    """Tell one member this and hear what it tells.

    Raises:
        NotAnswered: it could not be asked, or did not answer in time.
    """
    connected = False
    try:
        async with asyncio.timeout(ANSWER_S):
            address = peers.addresses.get(name)
            if address is None:
                raise ValueError("its address is not known: see cluster.peers")
            if peers.open_to_strangers and not is_loopback(address.host):
                raise ValueError(f"{address} is not on this machine: set cluster.secret_file on every member")
            reader, writer = await asyncio.open_connection(address.host, address.port)
            connected = True
            try:
                return await _exchange(peers, name, kind, told, reader, writer)
            finally:
                writer.transport.abort()
    except (OSError, PeerFault, PeerRefused, ValueError, asyncio.IncompleteReadError) as error:
        raise NotAnswered(_why_not(error), there=connected and not _is_another(error, name)) from error


async def _exchange(
    peers: Peers,
    name: Name,
    kind: LinkKind,
    told: Told,
    reader: asyncio.StreamReader,
    writer: asyncio.StreamWriter,
) -> Told:
    if peers.tls:
        await writer.start_tls(peers.tls.dialling)
    nonce = os.urandom(NONCE_BYTES)
    handshake = Dialler(peers.me, peers.cluster, peers.secret, nonce, name, kind=kind)
    writer.write(handshake.output())
    while not handshake.done:
        data = await reader.read(4096)
        if not data:
            raise ValueError("it closed the link")
        if handshake.receive(data) < len(data):
            raise ValueError("it spoke before it was asked")
        writer.write(handshake.output())
    writer.write(encode_told(told))
    [length] = HEAD.unpack(await reader.readexactly(HEAD.size))
    if length > TOLD_BYTES_MAX:
        raise ValueError(f"it tells {length} bytes, which is too much")
    heard = decode_told(await reader.readexactly(length))
    if heard.member.name != name:
        raise ValueError(f"'{name}' calls itself '{heard.member.name}'")
    return heard


def _is_another(error: BaseException, name: Name) -> bool:
    """Whether something else than this member has its address now: another member, or no member at all."""
    if isinstance(error, PeerRefused):
        return error.reason.startswith("this is '") and error.reason.endswith(f"', not '{name}'")
    return isinstance(error, PeerFault)


def _why_not(error: BaseException) -> str:
    if isinstance(error, TimeoutError):
        return f"no answer in {ANSWER_S} s"
    if isinstance(error, asyncio.IncompleteReadError):
        return "it closed the link"
    if isinstance(error, OSError):
        return (error.strerror or str(error)).lower()
    return str(error)


class Listening(asyncio.Protocol):
    """A link over which a member tells us what it knows: one question, one answer."""

    def __init__(self, peer: Name, heard: Callable[[Name, Told], Told], log: Log) -> None:
        """`heard` takes what the peer tells and says what it is told; it may raise ValueError."""
        self._peer = peer
        self._heard = heard
        self._log = log
        self._transport: asyncio.Transport
        self._data = b""

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = cast(asyncio.Transport, transport)
        self._limit = asyncio.get_running_loop().call_later(2 * ANSWER_S, self._transport.abort)

    def connection_lost(self, exc: Exception | None) -> None:  # noqa: ARG002
        self._limit.cancel()

    def data_received(self, data: bytes) -> None:
        self._data += data
        if len(self._data) < HEAD.size:
            return
        [length] = HEAD.unpack_from(self._data)
        if length > TOLD_BYTES_MAX or len(self._data) > HEAD.size + length:
            self._refuse(f"it tells {length} bytes, or more than it says")
        elif len(self._data) == HEAD.size + length:
            try:
                answer = encode_told(self._heard(self._peer, decode_told(self._data[HEAD.size :])))
            except ValueError as problem:
                self._refuse(str(problem))
                return
            self._transport.write(answer)
            self._transport.close()

    def _refuse(self, problem: str) -> None:
        self._log.warning("member not understood", member=self._peer, problem=problem)
        self._transport.abort()
