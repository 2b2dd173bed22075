"""What one member tells another about itself over a short link of its own kind: one question, one answer.

    VIEW      without etcd: members and views, both ways (`member/views.py`)
    SURVEY    with etcd: how far a member's store goes, asked before it is given up or passed over (`cluster/loss.py`)

Both sides say the same kind of thing (`member/telling.py`). Whoever dials is the one who waits, and not for long. A
process that takes the connection and says nothing is there all the same: it reads its store, stands still, or is busy.
"""

from __future__ import annotations

import asyncio
import os
from collections.abc import Callable
from typing import cast

from tidemark.errors import PeerFault, PeerRefused
from tidemark.member.telling import (
    ANSWER_S,
    HEAD,
    TOLD_BYTES_MAX,
    NotAnswered,
    Told,
    decode_told,
    encode_told,
)
from tidemark.model.peers import Name
from tidemark.runtime.authenticator import is_loopback
from tidemark.runtime.log import Log
from tidemark.runtime.peer_tls import not_opened, unheard
from tidemark.runtime.peers import UNPROVEN, Peers
from tidemark.wire.peer.handshake import NONCE_BYTES, Dialler, LinkKind


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
                raise ValueError(f"{address} {UNPROVEN}")
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
            raise ValueError(unheard(peers.tls) if handshake.unanswered else "it closed the link")
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
        return not_opened(error)
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
