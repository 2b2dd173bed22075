"""Server side of the AMQP 0-9-1 opening handshake.

Read `TRANSITIONS` first: it is the whole machine. The docs draw their diagram from the same table,
and the unit test walks every (state, event) pair of it.

The machine holds no socket and no clock. The caller feeds it decoded methods and sends the reply
it returns. Who may come in is decided outside: the machine waits in `AWAIT_VERDICT` (a login) and
in `AWAIT_ADMISSION` (a virtual host) until it is told with `accept` or `refuse`. Connection.Close,
which may come at any time, is the caller's business.

Invariant: a step that is refused with an error leaves the state, and what was agreed, as it was.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from enum import Enum, auto
from typing import Any, TypeAlias

from tidemark.errors import CommandInvalid, FrameError, LoginRefused, NotAllowed
from tidemark.wire.amqp091.frames import FRAME_MAX_FLOOR, PROTOCOL_HEADER
from tidemark.wire.amqp091.methods import (
    ConnectionClose,
    ConnectionOpen,
    ConnectionOpenOk,
    ConnectionSecure,
    ConnectionSecureOk,
    ConnectionStart,
    ConnectionStartOk,
    ConnectionTune,
    ConnectionTuneOk,
    ids_of,
)
from tidemark.wire.amqp091.sasl import MECHANISMS, Credentials, needs_challenge, read_response
from tidemark.wire.amqp091.tables import Table


class State(Enum):
    AWAIT_HEADER = auto()
    AWAIT_START_OK = auto()
    AWAIT_SECURE_OK = auto()
    AWAIT_VERDICT = auto()
    AWAIT_TUNE_OK = auto()
    AWAIT_OPEN = auto()
    AWAIT_ADMISSION = auto()
    OPEN = auto()
    REFUSED = auto()


# What comes in: the peer's steps are methods, these are the others ------------------------------


@dataclass(frozen=True, slots=True)
class ProtocolHeader:
    """The first eight bytes of a connection."""

    raw: bytes


@dataclass(frozen=True, slots=True)
class Accepted:
    """The login is good, or the virtual host may be used. `user` is the name to act as."""

    user: str


@dataclass(frozen=True, slots=True)
class Refused:
    reason: str


Event: TypeAlias = (
    ProtocolHeader
    | ConnectionStartOk
    | ConnectionSecureOk
    | ConnectionTuneOk
    | ConnectionOpen
    | Accepted
    | Refused
)
Reply: TypeAlias = ConnectionStart | ConnectionSecure | ConnectionTune | ConnectionOpenOk | ConnectionClose

# A login needs one more round when the client waits to be asked: hence two next states.
TRANSITIONS: dict[tuple[State, type[Event]], tuple[State, ...]] = {
    (State.AWAIT_HEADER, ProtocolHeader): (State.AWAIT_START_OK,),
    (State.AWAIT_START_OK, ConnectionStartOk): (State.AWAIT_VERDICT, State.AWAIT_SECURE_OK),
    (State.AWAIT_SECURE_OK, ConnectionSecureOk): (State.AWAIT_VERDICT,),
    (State.AWAIT_VERDICT, Accepted): (State.AWAIT_TUNE_OK,),
    (State.AWAIT_VERDICT, Refused): (State.REFUSED,),
    (State.AWAIT_TUNE_OK, ConnectionTuneOk): (State.AWAIT_OPEN,),
    (State.AWAIT_OPEN, ConnectionOpen): (State.AWAIT_ADMISSION,),
    (State.AWAIT_ADMISSION, Accepted): (State.OPEN,),
    (State.AWAIT_ADMISSION, Refused): (State.REFUSED,),
}


@dataclass(slots=True)
class Agreed:
    """What the two sides have settled so far."""

    client_properties: Table = field(default_factory=dict)
    mechanism: str = ""
    credentials: Credentials | None = None
    user: str = ""
    channel_max: int = 0
    frame_max: int = 0
    heartbeat: int = 0
    virtual_host: str = ""

    def capable_of(self, name: str) -> bool:
        """Whether the client claims a capability, such as `consumer_cancel_notify`."""
        capabilities = self.client_properties.get("capabilities")
        return isinstance(capabilities, dict) and capabilities.get(name) is True


def header_fits(start: bytes | memoryview) -> bool | None:
    """Whether a connection starts as AMQP 0-9-1; None while that cannot be said yet.

    On False the caller answers with `PROTOCOL_HEADER` and closes.
    """
    given = bytes(start[: len(PROTOCOL_HEADER)])
    if given != PROTOCOL_HEADER[: len(given)]:
        return False
    return True if len(given) == len(PROTOCOL_HEADER) else None


class Handshake:
    """One per connection, thrown away when `state` is `OPEN` or `REFUSED`.

    `agreed` has what the handshake settled: the credentials from `AWAIT_VERDICT` on, the limits from
    `AWAIT_OPEN` on, the virtual host from `AWAIT_ADMISSION` on.
    """

    def __init__(
        self,
        offer: ConnectionTune,
        server_properties: Mapping[str, Any],
        mechanisms: tuple[str, ...] = MECHANISMS,
    ) -> None:
        self.state = State.AWAIT_HEADER
        self.agreed = Agreed()
        self.offer = offer
        """What the client is offered when its login is good; until then it may be changed."""
        self._server_properties = dict(server_properties)
        self._mechanisms = mechanisms

    def receive(self, event: Event) -> Reply | None:
        """Take the next step and return our answer, if it has one.

        Raises:
            RemoteProtocolError: the step is out of order, malformed or asks for more than we
                offered. The state is unchanged, so the caller can still report it.
        """
        next_states = TRANSITIONS.get((self.state, type(event)))
        if next_states is None:
            raise CommandInvalid(reason=f"{type(event).__name__} is not expected in {self.state.name}")
        reply = self._answer(event)
        challenged = isinstance(reply, ConnectionSecure)
        self.state = next_states[1 if challenged else 0]
        return reply

    def accept(self, user: str = "") -> Reply | None:
        """The login is good, and from now on the client acts as `user`; or its host is."""
        return self.receive(Accepted(user))

    def refuse(self, reason: str) -> Reply | None:
        """The login or the virtual host is refused.

        Returns:
            The Close to send; None when the client would not understand one, so that its
            connection just ends.
        """
        return self.receive(Refused(reason))

    def _answer(self, event: Event) -> Reply | None:
        agreed = self.agreed
        match event:
            case ProtocolHeader(raw):
                return self._start(raw)
            case ConnectionStartOk(client_properties=properties, mechanism=mechanism):
                if mechanism not in self._mechanisms:
                    raise CommandInvalid(reason=f"SASL mechanism {mechanism!r} was not offered")
                reply = self._login(mechanism, event.response)
                agreed.client_properties, agreed.mechanism = properties, mechanism
                return reply
            case ConnectionSecureOk(response):
                agreed.credentials = read_response(agreed.mechanism, response)
                return None
            case Accepted(user) if self.state is State.AWAIT_VERDICT:
                agreed.user = user
                return self.offer
            case Refused(reason) if self.state is State.AWAIT_VERDICT:
                if agreed.capable_of("authentication_failure_close"):
                    return ConnectionClose(LoginRefused.amqp091, reason)
                return None
            case ConnectionTuneOk():
                self._tune(event)
                return None
            case ConnectionOpen(virtual_host=virtual_host):
                agreed.virtual_host = virtual_host
                return None
            case Accepted():
                return ConnectionOpenOk()
            case Refused(reason):
                class_id, method_id = ids_of(ConnectionOpen)
                return ConnectionClose(NotAllowed.amqp091, reason, class_id, method_id)

    def _start(self, header: bytes) -> ConnectionStart:
        if header != PROTOCOL_HEADER:
            raise FrameError(reason=f"a connection that starts with {header!r} is not AMQP 0-9-1")
        return ConnectionStart(
            server_properties=self._server_properties,
            mechanisms=" ".join(self._mechanisms).encode(),
            locales=b"en_US",
        )

    def _login(self, mechanism: str, response: bytes) -> ConnectionSecure | None:
        if needs_challenge(mechanism, response):
            return ConnectionSecure()
        self.agreed.credentials = read_response(mechanism, response)
        return None

    def _tune(self, wish: ConnectionTuneOk) -> None:
        """Settle the limits: the client may lower ours; 0 means that it has none of its own."""
        offer = self.offer
        frame_max = _lower("frame_max", wish.frame_max, offer.frame_max)
        if wish.frame_max and wish.frame_max < FRAME_MAX_FLOOR:
            raise NotAllowed(
                reason=f"frame_max {wish.frame_max} is under the {FRAME_MAX_FLOOR} that every peer takes"
            )
        self.agreed.channel_max = _lower("channel_max", wish.channel_max, offer.channel_max)
        self.agreed.frame_max = frame_max
        self.agreed.heartbeat = wish.heartbeat


def _lower(name: str, wish: int, offer: int) -> int:
    if offer and wish > offer:
        raise NotAllowed(reason=f"{name} {wish} is over the {offer} that was offered")
    return wish or offer
