"""How two members open a link: each says who it is and proves that it knows the cluster's secret.

    dialler                                                     listener
      INTRODUCTION  version, cluster, my name, your name, nonce,
                    kind of link, whom it is for  ─────────────►
      ◄───────────────────────────────  CHALLENGE  version, cluster, my name, nonce
      PROOF  HMAC-SHA256(secret, "dialler" + all that was said)  ─►
      ◄────────────  WELCOME  HMAC-SHA256(secret, "listener" + all that was said)
      ◄─ ─ ─ ─ ─ ─   or REFUSED, at any point: why, for the log

Both proofs cover the introduction and the challenge byte by byte, so neither side's words can be changed or used again
on another link. The dialler proves first: a stranger who connects learns nothing that he could try secrets against. What
follows on a link of kind REPLICA is frames of `codec.py`; on one of kind RELAY, the bytes of one client's connection, whose
address the dialler vouches for; on one of kind VIEW, what either side knows about members (`runtime/membership/telling.py`); on
one of kind WIRING, frames of `wiring.py`. A link of kind FRONT is like a relay, but what goes over it are a front's own words on
behalf of a client, not the client's: it may say what clients may not. On one of kind OWN no client stands behind it: the front comes
for itself, without a password, and may do everything (`router/mover.py`). On one of kind SURVEY members say what their stores hold
(`runtime/membership/telling.py`).

Frames of the handshake, little-endian: length (u32, of what follows), step (u8), fields as in `codec.py`.

The machine holds no socket, clock or dice; the caller gives it a nonce. Invariant: `done` is True only after the other
side's proof was checked; a fault leaves it False for good.
"""

from __future__ import annotations

import hashlib
import hmac
import struct
from dataclasses import dataclass
from enum import Enum, IntEnum, auto
from typing import Final

from tidemark.errors import PeerFault, PeerRefused
from tidemark.model.peers import Name
from tidemark.wire.peer.codec import COUNT, REASON_BYTES_MAX, Buffer, Fields, name

MAGIC: Final = b"TMPR"
VERSION: Final = 1
NONCE_BYTES: Final = 32
PROOF_BYTES: Final = 32
STEP_BYTES_MAX: Final = 8192
HEAD: Final = struct.Struct("<IB")
PORTS: Final = struct.Struct("<HH")
TLS: Final = b"\x16\x03"
"""How one begins that wants an encrypted link."""


class Step(IntEnum):
    INTRODUCTION = 1
    CHALLENGE = 2
    PROOF = 3
    WELCOME = 4
    REFUSED = 5


class LinkKind(IntEnum):
    REPLICA = 1
    RELAY = 2
    VIEW = 3
    WIRING = 4
    FRONT = 5
    OWN = 6
    SURVEY = 7
    LEADER = 8


KINDS: Final = frozenset(LinkKind)
OF_CLIENTS: Final = frozenset({LinkKind.RELAY, LinkKind.FRONT, LinkKind.OWN})
"""Links that carry one connection each; the introduction says whose."""


class State(Enum):
    AWAIT_INTRODUCTION = auto()
    AWAIT_CHALLENGE = auto()
    AWAIT_PROOF = auto()
    PROVEN = auto()
    """The listener knows who it is; it says `welcome` or `refuse`."""
    AWAIT_WELCOME = auto()
    DONE = auto()
    FAILED = auto()


EXPECTED: dict[State, Step] = {
    State.AWAIT_INTRODUCTION: Step.INTRODUCTION,
    State.AWAIT_CHALLENGE: Step.CHALLENGE,
    State.AWAIT_PROOF: Step.PROOF,
    State.AWAIT_WELCOME: Step.WELCOME,
}
"""What may come in which state, besides REFUSED. In the others nothing may."""


@dataclass(frozen=True, slots=True)
class Client:
    """Whose connection a relay or a front carries, as whoever took it sees it."""

    host: str
    port: int
    local_host: str = ""
    local_port: int = 0
    tls: bool = False
    certificate_name: str | None = None


class Handshake:
    """One side of one link: `Dialler` or `Listener`. Thrown away when it is `done`."""

    def __init__(self, me: Name, cluster: str, secret: bytes, nonce: bytes, state: State) -> None:
        assert len(nonce) == NONCE_BYTES
        self.state = state
        self.peer: Name = ""
        """Who the other side says it is; proven once `state` is PROVEN or DONE."""
        self._me = me
        self._cluster = cluster
        self._secret = secret
        self._nonce = nonce
        self._said = b""
        """Introduction and challenge, as they went over the wire."""
        self._partial = bytearray()
        self._out: list[bytes] = []

    @property
    def done(self) -> bool:
        return self.state is State.DONE

    def output(self) -> bytes:
        """What must be sent, once."""
        out, self._out = b"".join(self._out), []
        return out

    def receive(self, data: Buffer) -> int:
        """Bytes that arrived; returns how many belong to the handshake. The rest is the first of what follows it.

        Raises:
            PeerFault: this is no member of our cluster. `output` may have a last word for it.
            PeerRefused: it does not want this link, and says why.
        """
        view, at = memoryview(data), 0
        while self.state in EXPECTED:
            missing = self._missing()
            if not missing:
                step, body = self._partial[4], bytes(self._partial[HEAD.size :])
                whole = bytes(self._partial)
                self._partial.clear()
                self._take(step, body, whole)
                continue
            if at == len(view):
                break
            self._partial += view[at : at + missing]
            at = min(len(view), at + missing)
        return at

    def refuse(self, reason: str) -> None:
        """Say why not; `output` has it, then the link is to be closed."""
        self.state = State.FAILED
        raw = reason.encode("utf-8", "replace")[:REASON_BYTES_MAX].decode("utf-8", "ignore").encode()
        self._send(Step.REFUSED, COUNT.pack(len(raw)) + raw)

    def _missing(self) -> int:
        """How many bytes of the next part of a frame have not come."""
        partial = self._partial
        if len(partial) < HEAD.size:
            return HEAD.size - len(partial)
        length, step = HEAD.unpack_from(partial)
        if partial.startswith(TLS):
            raise self._fault(
                "it speaks TLS, and there is no cluster.peer_certificate here: set it, or take it out there"
            )
        if step not in (EXPECTED[self.state], Step.REFUSED) or not 1 <= length <= STEP_BYTES_MAX:
            raise self._fault(f"step {step} of {length} bytes is not expected: is this a member's peer port?")
        return int(length + 4 - len(partial))

    def _take(self, step: int, body: bytes, whole: bytes) -> None:
        fields = Fields(body)
        try:
            if step == Step.REFUSED:
                reason = fields.text()
                self.state = State.FAILED
                raise PeerRefused(member=self.peer, reason=reason)
            self._step(fields, whole)
            fields.finish()
        except PeerFault as fault:
            if self.state is not State.FAILED:
                raise self._fault(fault.reason) from None
            raise

    def _step(self, fields: Fields, whole: bytes) -> None:
        raise NotImplementedError

    def _fault(self, reason: str) -> PeerFault:
        self.refuse(reason)
        return PeerFault(reason=reason)

    def _send(self, step: Step, body: bytes) -> bytes:
        frame = HEAD.pack(1 + len(body), step) + body
        self._out.append(frame)
        return frame

    def _proof(self, side: bytes) -> bytes:
        return hmac.new(self._secret, side + b"\0" + self._said, hashlib.sha256).digest()

    def _check_proof(self, fields: Fields, side: bytes) -> None:
        if not hmac.compare_digest(bytes(fields.take(PROOF_BYTES)), self._proof(side)):
            raise PeerFault(reason=f"'{self.peer}' does not know the secret of cluster '{self._cluster}'")

    def _check_version(self, fields: Fields) -> None:
        if bytes(fields.take(4)) != MAGIC:
            raise PeerFault(reason="this is not the peer port of a Tidemark member")
        version = fields.byte()
        if version != VERSION:
            raise PeerFault(reason=f"version {version} of the peer protocol is not spoken here, {VERSION} is")

    def _check_names(self, cluster: str, peer: Name) -> None:
        self.peer = peer
        if cluster != self._cluster:
            raise PeerFault(reason=f"'{peer}' is of cluster '{cluster}', '{self._me}' of '{self._cluster}'")
        if not peer or not peer.isprintable() or " " in peer:
            raise PeerFault(reason=f"{peer!r} is no name of a member")


class Dialler(Handshake):
    def __init__(
        self,
        me: Name,
        cluster: str,
        secret: bytes,
        nonce: bytes,
        peer: Name,
        client: Client | None = None,
        kind: LinkKind = LinkKind.REPLICA,
    ) -> None:
        """`client`: this link is for it, a relay unless the kind is FRONT or OWN."""
        super().__init__(me, cluster, secret, nonce, State.AWAIT_CHALLENGE)
        self.peer = peer
        if client is not None and kind not in OF_CLIENTS:
            kind = LinkKind.RELAY
        words = [MAGIC, bytes([VERSION, kind]), name(cluster), name(me), name(peer), nonce]
        if client is not None:
            words += [
                PORTS.pack(client.port, client.local_port),
                bytes([client.tls, client.certificate_name is not None]),
                name(client.host),
                name(client.local_host),
                name(client.certificate_name or ""),
            ]
        self._said = self._send(Step.INTRODUCTION, b"".join(words))

    @property
    def unanswered(self) -> bool:
        """The listener has not said who it is."""
        return self.state is State.AWAIT_CHALLENGE

    def _step(self, fields: Fields, whole: bytes) -> None:
        if self.state is State.AWAIT_CHALLENGE:
            self._check_version(fields)
            wanted = self.peer
            self._check_names(fields.name(), fields.name())
            if self.peer != wanted:
                found, self.peer = self.peer, wanted
                raise PeerFault(reason=f"this is '{found}', not '{wanted}'")
            fields.take(NONCE_BYTES)
            fields.finish()
            self._said += whole
            self._send(Step.PROOF, self._proof(b"dialler"))
            self.state = State.AWAIT_WELCOME
        else:
            self._check_proof(fields, b"listener")
            self.state = State.DONE


class Listener(Handshake):
    def __init__(self, me: Name, cluster: str, secret: bytes, nonce: bytes) -> None:
        super().__init__(me, cluster, secret, nonce, State.AWAIT_INTRODUCTION)
        self.kind = LinkKind.REPLICA
        self.client: Client | None = None
        """Of a relay, or whom a front speaks for: a client, or itself."""

    def welcome(self) -> None:
        """Take the link of a member that is PROVEN."""
        assert self.state is State.PROVEN
        self._send(Step.WELCOME, self._proof(b"listener"))
        self.state = State.DONE

    def _step(self, fields: Fields, whole: bytes) -> None:
        if self.state is State.AWAIT_INTRODUCTION:
            self._check_version(fields)
            kind = fields.byte()
            if kind not in KINDS:
                raise PeerFault(reason=f"links of kind {kind} are unknown here")
            self.kind = LinkKind(kind)
            self._check_names(fields.name(), fields.name())
            wanted = fields.name()
            if wanted != self._me:
                raise PeerFault(reason=f"this is '{self._me}', not '{wanted}'")
            if self.peer == self._me:
                raise PeerFault(reason=f"two members call themselves '{self._me}'; set node.name of one")
            fields.take(NONCE_BYTES)
            if self.kind in OF_CLIENTS:
                self.client = _client(fields)
            fields.finish()
            body = MAGIC + bytes([VERSION]) + name(self._cluster) + name(self._me) + self._nonce
            self._said = whole + self._send(Step.CHALLENGE, body)
            self.state = State.AWAIT_PROOF
        else:
            self._check_proof(fields, b"dialler")
            self.state = State.PROVEN


def _client(fields: Fields) -> Client:
    port, local_port = PORTS.unpack(fields.take(PORTS.size))
    tls, named = fields.flag(), fields.flag()
    host, local_host, certificate = fields.name(), fields.name(), fields.name()
    return Client(host, port, local_host, local_port, tls, certificate if named else None)
