"""What a front end may ask of the node, and the small values that pass between them.

A front end is a machine: it takes bytes and calls, and keeps what must be sent until the shell
asks for it. Everything it needs from outside it asks of `Services`; nothing here waits. An answer
that takes time (a password check, a sync of the disk) comes back as a call on the front end.

Invariant: `Services` never calls the front end from inside one of these methods.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any, Protocol

from tidemark.broker.broker import Broker
from tidemark.broker.consumer import ConsumerStatistics
from tidemark.frontend.amqp091.config import Amqp091Config
from tidemark.frontend.stream.config import StreamConfig
from tidemark.frontend.stream.pace import Pace
from tidemark.model.arena import Arena


@dataclass(frozen=True, slots=True)
class PeerInfo:
    """Who is at the other end of a socket."""

    host: str
    port: int
    local_host: str = ""
    local_port: int = 0
    tls: bool = False
    certificate_name: str | None = None
    """The common name of the client's certificate, when TLS has checked one: the user of EXTERNAL."""
    front: str = ""
    """The front of this cluster whose words these are, on behalf of that peer; empty: they are the peer's own."""
    own: bool = False
    """No client stands behind that front: it has proven who it is, needs no password, and may do everything."""

    def __str__(self) -> str:
        return f"{self.host}:{self.port} -> {self.local_host}:{self.local_port}"


@dataclass(frozen=True, slots=True)
class Login:
    """What a peer says to prove who it is; `peer` decides whether guest may come from there."""

    mechanism: str
    user: str
    password: str = field(repr=False)
    peer: PeerInfo


@dataclass(frozen=True, slots=True)
class Verdict:
    """The answer to a `Login`."""

    user: str | None
    """The name the peer goes by from now on; None when it is refused."""
    reason: str = ""
    """Why not, for the log; the peer is told only that it was refused."""
    retry_s: float = 0
    """It was not even looked at; it may be tried again after so long."""


@dataclass(slots=True)
class ChannelCounts:
    """What went through one channel, by the names that RabbitMQ has for it. Added once a run or batch."""

    publish: int = 0
    confirm: int = 0
    return_unroutable: int = 0
    deliver: int = 0
    deliver_no_ack: int = 0
    get: int = 0
    get_no_ack: int = 0
    get_empty: int = 0
    ack: int = 0


@dataclass(frozen=True, slots=True)
class ChannelStatistics:
    number: int
    state: str
    confirming: bool
    transactional: bool
    unacked: int
    unconfirmed: int
    prefetch: int
    global_prefetch: int
    published: int
    consumers: tuple[ConsumerStatistics, ...]


@dataclass(frozen=True, slots=True)
class ConnectionStatistics:
    name: str
    user: str
    vhost: str
    state: str
    peer: PeerInfo
    protocol: str
    client_properties: dict[str, Any]
    connected_ms: int
    channel_max: int
    frame_max: int
    heartbeat_s: int
    bytes_in: int
    bytes_out: int
    channels: tuple[ChannelStatistics, ...]


@dataclass(frozen=True, slots=True)
class MemberInfo:
    """One member of the cluster, as clients see it."""

    name: str
    state: str
    """What it is: "active", "ready" …, or "away" when it is not there."""
    role: str
    """What it is for: "leader", "backup"; in a chain "head", "middle", "tail"; "joining" while it is not ready."""
    amqp: str = ""
    """Where clients reach it, HOST:PORT; empty if not known."""
    amqps: str = ""
    """The same, over TLS."""


@dataclass(frozen=True, slots=True)
class Topology:
    """Who is in the cluster and what each is for. A node that stands alone has no members and epoch 0."""

    mode: str = "alone"
    epoch: int = 0
    leader: str = ""
    """Empty while nobody leads."""
    members: tuple[MemberInfo, ...] = ()
    """The leader first, then in the order of the chain; last those that are not ready."""


ALONE = Topology()


class FrontEnd(Protocol):
    """What the node and the shell call, whatever protocol the peer speaks."""

    peer: PeerInfo
    closed: bool
    """Send `output()`, then close the socket."""
    bytes_in: int
    bytes_out: int

    def receive(self, data: memoryview) -> int:
        """Bytes that arrived; returns how many were used. The rest comes again, before what follows it."""

    def receive_eof(self) -> None:
        """The socket is gone. What its consumers held goes back to the queues."""

    def durable(self) -> None:
        """More is on the disk than before."""

    def store_failed(self, reason: str) -> None:
        """The journal has stopped for good: what waits for it will never be safe."""

    def tick(self, now_ms: int) -> None:
        """Called about once a second."""

    def output(self) -> list[Any]:
        """What is to be sent, once: bytes, or anything that lies in memory like them."""

    def wants_read(self) -> bool:
        """False while nothing more must be read from the socket. Ask after every turn."""

    def writable(self, yes: bool) -> None:
        """The socket's own buffer is full, or has room again."""

    def verdict(self, verdict: Verdict) -> None:
        """The answer to `Services.authenticate`."""

    def block(self, reason: str | None) -> None:
        """Publishers must wait, for this reason; or need wait no more."""

    def shutdown(self, code: int, text: str) -> None:
        """Close the connection from our side."""

    def statistics(self) -> ConnectionStatistics: ...


class Services(Protocol):
    """What a front end may ask of the node."""

    @property
    def broker(self) -> Broker: ...

    @property
    def arena(self) -> Arena: ...

    @property
    def name(self) -> str:
        """What this node calls itself."""

    @property
    def config(self) -> Amqp091Config: ...

    @property
    def stream_config(self) -> StreamConfig: ...

    @property
    def pace(self) -> Pace:
        """Whose turn it is to be given rows."""

    @property
    def now_ms(self) -> int:
        """Wall-clock milliseconds of this turn."""

    @property
    def topology(self) -> Callable[[], Topology]:
        """The cluster, as it is now."""

    @property
    def tails_only(self) -> bool:
        """In a chain: rows of streams are shown by its tails and nobody else (`frontend/tails.py`)."""

    def journal_durable(self) -> int:
        """Every record of the journal up to this sequence is on the disk."""

    def catalog_durable(self) -> int:
        """The same for the log of the wiring."""

    def journal_settlements(self) -> int:
        """Put every settlement made so far into the journal (`broker.look`) and return the journal's last
        sequence: when that is durable, so are they."""

    def become(self, old: FrontEnd, new: FrontEnd) -> None:
        """`new` takes the place of `old`: what comes from its socket goes to `new` from now on."""

    def authenticate(self, front_end: FrontEnd, login: Login) -> None:
        """Check a login; `front_end.verdict` is called in a later turn, unless its socket has gone."""

    def touched(self, front_end: FrontEnd) -> None:
        """It has output, is closed, or made a queue dirty outside `receive`: a turn is due."""

    def waiting(self, front_end: FrontEnd) -> None:
        """Something waits for the disk: call `durable` when either log has moved. Said again after each call
        of `durable` for as long as it is true."""

    def note(self, level: str, event: str, **facts: object) -> None:
        """A line for the log: "info", "warning" or "error", what happened, facts. `error=` may be an exception."""
