"""One connection to the leader of a group, for one client: the client's side of AMQP 0-9-1.

    DIALLING ──a socket──► OPENING ──Open-Ok──► OPEN ──we say Close──► CLOSING ──Close-Ok──► CLOSED
        ▲                     │                  │ the leader says Close, or is gone             ▲
        └──a member that does─┘                  └───────────────────────────────────────────────┘
           not lead, or goes

The handshake is made in the client's name. Its password is for main only, if other groups take a front's word. What
the link hears on channel 0 that is not its own business, and all that it hears on other channels, it gives to its
`Owner`. What is sent before the link is open waits, and so does the Close behind it when the client is done.

Invariant: nothing of a client is sent before the leader has let the client in, and in the order it was given.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from enum import Enum, auto
from typing import Protocol

from tidemark.errors import RemoteProtocolError
from tidemark.frontend.services import PeerInfo
from tidemark.model.wiring import LIVES
from tidemark.router.wiring import MAIN
from tidemark.wire.amqp091.cutter import HEARTBEAT, Cutter, Piece
from tidemark.wire.amqp091.frames import HEARTBEAT_FRAME, METHOD, PROTOCOL_HEADER
from tidemark.wire.amqp091.methods import (
    ConnectionClose,
    ConnectionCloseOk,
    ConnectionOpen,
    ConnectionOpenOk,
    ConnectionSecure,
    ConnectionSecureOk,
    ConnectionStart,
    ConnectionStartOk,
    ConnectionTune,
    ConnectionTuneOk,
    Method,
    decode_method,
    encode_method,
)
from tidemark.wire.amqp091.tables import Table

FRAME_START = 7


class State(Enum):
    DIALLING = auto()
    OPENING = auto()
    OPEN = auto()
    CLOSING = auto()
    CLOSED = auto()


@dataclass(slots=True)
class Terms:
    """What a link tells the leader about its client. The limits are known when the client has agreed to them."""

    client_properties: Table = field(default_factory=dict)
    mechanism: str = ""
    user: bytes = b""
    password: bytes = field(default=b"", repr=False)
    vhost: str = ""
    channel_max: int = 0
    frame_max: int = 0
    heartbeat: int = 0
    tuned: bool = False
    """The limits are agreed on."""
    admitted: bool = False
    """The virtual host is known."""

    def response_for(self, group: str) -> bytes:
        """Groups other than main take a front's word for who the client is, and do not see its password."""
        return b"\x00%b\x00%b" % (self.user, self.password if group == MAIN else b"")


class Owner(Protocol):
    """The client's side of the front, as its links see it."""

    peer: PeerInfo
    """The client."""

    @property
    def now_ms(self) -> int: ...

    def link_touched(self, link: Link) -> None:
        """It has output or is closed."""

    def link_drained(self, link: Link) -> None:
        """What waited to be sent is on its way."""

    def link_tuned(self, link: Link, offer: ConnectionTune) -> None:
        """The leader has taken the login, and offers these limits."""

    def link_opened(self, link: Link) -> None: ...

    def link_refused(self, link: Link, close: ConnectionClose) -> None:
        """The leader said Close, before or after the link was open; that is answered already."""

    def link_lost(self, link: Link, why: str) -> None:
        """The leader has gone without a word, or talks nonsense."""

    def link_closed(self, link: Link) -> None:
        """Our Close is answered."""

    def link_heard(self, link: Link, piece: Piece) -> None:
        """A piece of any channel but 0."""

    def link_told(self, link: Link, method: Method) -> None:
        """Something about the connection that is not about closing it."""

    def room(self) -> bool:
        """Whether the client may be sent more."""


class Link:
    def __init__(self, owner: Owner, group: str, terms: Terms, *, frame_max: int, whole: bool) -> None:
        self.owner = owner
        self.group = group
        self.terms = terms
        self.state = State.DIALLING
        self.closed = False
        """Send `output()`, then close the socket."""
        self.tries = 0
        """How many members it has had a socket to."""
        self.knows_lives = False
        """The leader knows incarnations of queues (`broker/incarnations.py`)."""
        self.opened = False
        """It has been open: what the client sent may have reached the leader."""
        self.writable_ = True
        self.waiting_bytes = 0
        """What waits to be sent, to the socket or for the link to open."""
        self.bytes_in = self.bytes_out = 0
        self._offered: Table = {}
        """What the leader has said of itself."""
        self.began_ms = owner.now_ms
        self._frame_max = frame_max
        self._whole = whole
        self._cutter = Cutter(frame_max, whole=whole)
        self._out: list[bytes] = []
        self._later: list[tuple[bytes, bytes]] = []
        """For when the link is open; the second is for a leader that does not know lives."""
        self._finishing = False
        """The client has said all: Close follows what waits."""
        self._tuned = self._asked = False
        self._heard_ms = self._sent_ms = owner.now_ms

    # What comes in ---------------------------------------------------------------------------------

    def connected(self) -> None:
        """There is a socket: begin, or begin anew at another member."""
        self.state = State.OPENING
        self.tries += 1
        self._cutter = Cutter(self._frame_max, whole=self._whole)
        self._tuned = self._asked = False
        self._heard_ms = self._sent_ms = self.owner.now_ms
        self._out = []
        self._say(PROTOCOL_HEADER)

    def receive(self, data: memoryview) -> int:
        self._heard_ms = self.owner.now_ms
        if self.closed:
            return len(data)
        if self.state is State.OPENING and bytes(data[:4]) == b"AMQP":
            self.lose("it does not speak AMQP 0-9-1")
            return len(data)
        pieces, used = self._cutter.feed(data)
        self.bytes_in += used
        try:
            for piece in pieces:
                if piece[0]:
                    if self.state is State.OPEN or self.state is State.CLOSING:
                        self.owner.link_heard(self, piece)
                elif piece[1] != HEARTBEAT:
                    self._take(method_of(piece))
                if self.closed or self.state is State.DIALLING:
                    return len(data)
        except RemoteProtocolError as error:
            self.lose(f"it sent what makes no sense: {error}")
            return len(data)
        if self._cutter.fault is not None:
            self.lose(f"it sent what makes no sense: {self._cutter.fault}")
        return used

    def _take(self, method: Method) -> None:
        match method:
            case ConnectionClose():
                self._say(encode_method(0, ConnectionCloseOk()))
                self._end()
                self.owner.link_refused(self, method)
            case ConnectionCloseOk():
                self._end()
                self.owner.link_closed(self)
            case ConnectionStart(server_properties=offered):
                terms, self._offered = self.terms, offered
                self.knows_lives = self.capable_of(LIVES)
                start_ok = ConnectionStartOk(
                    terms.client_properties, terms.mechanism, terms.response_for(self.group), "en_US"
                )
                self._say(encode_method(0, start_ok))
            case ConnectionSecure():
                self._say(encode_method(0, ConnectionSecureOk(self.terms.response_for(self.group))))
            case ConnectionTune():
                self.owner.link_tuned(self, method)
                self.go_on()
            case ConnectionOpenOk() if self.state is State.OPENING:
                self.state = State.OPEN
                self.opened = True
                self.waiting_bytes -= sum(len(data) for data, _ in self._later)
                later, self._later = self._later, []
                for data, plain in later:
                    self._say(data if self.knows_lives else plain)
                self.owner.link_touched(self)
                self.owner.link_opened(self)
                if self._finishing:
                    self.close()
            case _:
                self.owner.link_told(self, method)

    def capable_of(self, name: str) -> bool:
        """Whether the leader claims a capability."""
        capabilities = self._offered.get("capabilities")
        return isinstance(capabilities, dict) and capabilities.get(name) is True

    def go_on(self) -> None:
        """More of the terms is known, or the leader has made its offer."""
        terms = self.terms
        if self.state is not State.OPENING:
            return
        if terms.tuned and not self._tuned:
            self._tuned = True
            self._cutter.frame_max = terms.frame_max
            self._say(encode_method(0, ConnectionTuneOk(terms.channel_max, terms.frame_max, terms.heartbeat)))
        if terms.admitted and self._tuned and not self._asked:
            self._asked = True
            self._say(encode_method(0, ConnectionOpen(terms.vhost)))

    def receive_eof(self) -> None:
        if not self.closed:
            self.lose("it closed the connection")

    def tick(self, now_ms: int) -> None:
        beat_ms = self.terms.heartbeat * 1000
        if self.closed or not beat_ms or self.state is State.DIALLING:
            return
        if not self.wants_read():
            self._heard_ms = now_ms
        elif now_ms - self._heard_ms > 2 * beat_ms:
            self.lose("it has been silent for too long")
        elif self.state is State.OPEN and not self._out and now_ms - self._sent_ms >= beat_ms // 2:
            self._say(HEARTBEAT_FRAME)

    # What goes out ---------------------------------------------------------------------------------

    def send(self, data: bytes, plain: bytes | None = None) -> None:
        """Frames of the client, when the link is open; `plain` in their place if the leader does not know lives."""
        plain = data if plain is None else plain
        if self.state is State.OPEN:
            self._say(data if self.knows_lives else plain)
        elif self.state in (State.DIALLING, State.OPENING):
            self._later.append((data, plain))
            self.waiting_bytes += len(data)

    def _say(self, data: bytes) -> None:
        if not self._out:
            self.owner.link_touched(self)
        self._out.append(data)
        self.waiting_bytes += len(data)

    def output(self) -> list[bytes]:
        if not self.writable_ and not self.closed:
            return []
        out, self._out = self._out, []
        if out:
            size = sum(map(len, out))
            self.waiting_bytes -= size
            self.bytes_out += size
            self._sent_ms = self.owner.now_ms
            self.owner.link_drained(self)
        return out

    def writable(self, yes: bool) -> None:
        self.writable_ = yes
        self.owner.link_touched(self)

    def wants_read(self) -> bool:
        return self.state is not State.OPEN or self.owner.room()

    # The end ---------------------------------------------------------------------------------------

    def finish(self) -> None:
        """The client has said all: close when the leader has what waits for it."""
        if self._later:
            self._finishing = True
        else:
            self.close()

    def close(self, code: int = 200, text: str = "") -> None:
        """The client goes: tell the leader and wait for its answer, if there is one to wait for."""
        if self.state is State.OPEN:
            self.state = State.CLOSING
            self._say(encode_method(0, ConnectionClose(code, text)))
        elif self.state is not State.CLOSING:
            self._end()

    def drop(self) -> None:
        """Hang up."""
        if not self.closed:
            self._end()

    def lose(self, why: str) -> None:
        """The leader is of no use any more."""
        self._end()
        self.owner.link_lost(self, why)

    def again(self) -> None:
        """It is dialled once more: another member, or the same one, may take the client."""
        self.state = State.DIALLING
        self.closed = False
        self.writable_ = True
        self._out = []
        self.waiting_bytes = sum(len(data) for data, _ in self._later)

    def _end(self) -> None:
        self.state = State.CLOSED
        self.closed = True
        self.owner.link_touched(self)


def method_of(piece: Piece) -> Method:
    """The method at the beginning of a piece."""
    frames = piece[3]
    assert frames[0] == METHOD
    return decode_method(frames[FRAME_START : FRAME_START + int.from_bytes(frames[3:7], "big")])
