"""One client of a front: a server of AMQP 0-9-1 to the client, a client of it to the leaders of groups.

    client ──► Router ──► Link to main        always, as soon as the client has said who it is
                    └───► Link to a group     when the client first needs it

The handshake with the client is the wire's; main decides who comes in, because the router hands it the client's
credentials and passes on what it says. Heartbeats are the router's own on either side. Channel 0 means the same
on either side of a front; what comes on other channels is given to main as it is where main is the only group
(`_through`), else to `Channels`.

    OPENING ──main has opened the host──► OPEN ──Close from the client──► FINISHING ──all have answered──► LEAVING
       │                                   │                                                the client hangs up
       └─────────────an error, or a leader is lost──► CLOSING (we sent Close) ──Close-Ok, or too late──► CLOSED

Back-pressure: the client is not read while a leader does not read, or while too much is kept for channels that
wait; leaders are not read while the client does not read. So alarms of a broker reach publishers as they do
without a front.

Invariant: once `closed` is True there is no link that is not closed, or closing.
"""

from __future__ import annotations

from collections import deque
from enum import Enum, auto
from typing import TYPE_CHECKING, Any, Protocol

from tidemark.errors import CommandInvalid, InternalError, LoginRefused, TidemarkError
from tidemark.frontend.amqp091.config import Amqp091Config
from tidemark.frontend.amqp091.opening import TRUSTED, UNREAD_FACTOR, login_refused, server_handshake
from tidemark.frontend.amqp091.replies import NAMES, reply_text
from tidemark.frontend.services import PeerInfo
from tidemark.router.channels import Channels
from tidemark.router.link import Link, Terms, method_of
from tidemark.router.wiring import MAIN, Wiring
from tidemark.wire.amqp091.cutter import HEARTBEAT, PASSED, Cutter, Piece
from tidemark.wire.amqp091.frames import HEARTBEAT_FRAME, PROTOCOL_HEADER
from tidemark.wire.amqp091.handshake import ProtocolHeader, header_fits
from tidemark.wire.amqp091.handshake import State as Step
from tidemark.wire.amqp091.methods import (
    ConnectionBlocked,
    ConnectionClose,
    ConnectionCloseOk,
    ConnectionOpen,
    ConnectionSecureOk,
    ConnectionStartOk,
    ConnectionTune,
    ConnectionTuneOk,
    ConnectionUnblocked,
    ConnectionUpdateSecret,
    ConnectionUpdateSecretOk,
    Method,
    encode_method,
)
from tidemark.wire.amqp091.sasl import AMQPLAIN, PLAIN, Credentials

if TYPE_CHECKING:
    from tidemark.router.streams import StreamLink, StreamRouter

CONNECTION_FORCED = 320


class State(Enum):
    OPENING = auto()
    OPEN = auto()
    FINISHING = auto()
    LEAVING = auto()
    CLOSING = auto()
    CLOSED = auto()


LIVE = (State.OPENING, State.OPEN, State.FINISHING)
"""States in which an error has consequences."""
WAITING = (Step.AWAIT_VERDICT, Step.AWAIT_ADMISSION)
"""Steps of the handshake in which main is asked, and nothing more is read."""


class Outside(Protocol):
    """What a router asks of its process."""

    @property
    def config(self) -> Amqp091Config: ...

    @property
    def wiring(self) -> Wiring: ...

    @property
    def through(self) -> bool:
        """Main is the only group: what clients say on their channels is passed on as it is. Else links are known to be a
        front's: it may name the queues of a message, and say who its client is."""

    @property
    def now_ms(self) -> int:
        """Wall-clock milliseconds of this turn."""

    @property
    def dial_s_max(self) -> int:
        """How long a leader of a group is looked for."""

    def may_come(self, user: str, peer: PeerInfo) -> str | None:
        """Why this user must not log in from there; None if main may decide."""

    def came(self, user: str, peer: PeerInfo, good: bool) -> None:
        """Main has let this user in, or not."""

    def dial(self, link: Link | StreamLink, refusal: str) -> None:
        """Find a member of the link's group, `link.connected` when there is a socket; `link.lose` when there is none
        in time. `refusal` is what the last member said, which may name the one that leads."""

    def touched(self, one: Router | Link | StreamRouter | StreamLink) -> None:
        """It has output, or is closed: a turn is due."""

    def note(self, level: str, event: str, **facts: object) -> None: ...


class Router:
    def __init__(self, outside: Outside, peer: PeerInfo) -> None:
        config = outside.config
        self.outside = outside
        self.wiring = outside.wiring
        self.peer = peer
        self.closed = False
        """Send `output()`, then close the socket."""
        self.state = State.OPENING
        self.links: dict[str, Link] = {}
        self.bytes_in = self.bytes_out = 0
        self.vhost = self.user = ""
        self.seen: set[tuple[str, int]] = set()
        """Queues of other groups, by name and life, that are known to be there."""
        self._config = config
        self._through = outside.through
        self._channels = Channels(self)
        self._cutter = Cutter(config.frame_bytes_max)
        self._handshake = server_handshake(config, config.frame_bytes_max, (PLAIN, AMQPLAIN))
        self._early: deque[Piece] = deque()
        """What the client said while main was asked."""
        self._terms = Terms()
        self._no_main = ""
        """Why there is no main for this client; it is told when it opens its virtual host."""
        self._blocked: dict[str, str] = {}
        """Why publishers must wait, by group."""
        self._out: list[bytes] = []
        self._out_bytes = 0
        self._writable = True
        self._heartbeat_ms = 0
        self._began_ms = self._heard_ms = self._sent_ms = self._closing_ms = outside.now_ms

    @property
    def unheard(self) -> bool:
        """The client has not said yet what it speaks."""
        return self.state is State.OPENING and self._handshake.state is Step.AWAIT_HEADER

    @property
    def now_ms(self) -> int:
        return self.outside.now_ms

    @property
    def is_open(self) -> bool:
        return self.state is State.OPEN

    @property
    def frame_max(self) -> int:
        return self._terms.frame_max

    # What the client says ----------------------------------------------------------------------------

    def receive(self, data: memoryview) -> int:
        self._heard_ms = self.now_ms
        used = 0
        if self.state is State.OPENING and self._handshake.state is Step.AWAIT_HEADER:
            used = self._receive_header(data)
            if not used:
                return 0
            data = data[used:]
        if self.closed:
            return used + len(data)
        if self.state is State.OPENING or self._through:
            pieces, cut = self._cutter.feed(data)
            for piece in pieces:
                self._take_piece(piece)
            if self._cutter.fault is not None:
                fault = self._cutter.fault
                # The frames behind it may make sense, as long as we wait for Close-Ok.
                self._cutter = Cutter(self._cutter.frame_max)
                self._fail(fault)
        else:
            cut = self._channels.receive(data)
        self.bytes_in += used + cut
        return used + cut

    def _receive_header(self, data: memoryview) -> int:
        fits = header_fits(data)
        if fits is None:
            return 0
        if not fits:
            self.send(PROTOCOL_HEADER)
            self._end("not AMQP 0-9-1")
            return len(data)
        reply = self._handshake.receive(ProtocolHeader(PROTOCOL_HEADER))
        assert reply is not None
        self._reply(reply)
        return len(PROTOCOL_HEADER)

    def _take_piece(self, piece: Piece) -> None:
        code = piece[1]
        if code == PASSED and self.state is State.OPEN and self._through:
            self.links[MAIN].send(piece[3])
        elif code == HEARTBEAT:
            return
        elif self.state is State.OPENING and (self._early or self._handshake.state in WAITING):
            self._early.append(piece)
        elif code != PASSED:
            try:
                method = method_of(piece)
            except TidemarkError as error:
                self._fail(error)
            else:
                self.take_method(method)
        elif self.state is State.OPEN:
            self._channels.receive(memoryview(piece[3]))
        elif self.state is State.OPENING:
            self._fail(CommandInvalid(reason="a channel is used before the connection is open"))

    def take_method(self, method: Method) -> None:
        """A method on channel 0."""
        try:
            self._take_method(method)
        except TidemarkError as error:
            self._fail(error)

    def _take_method(self, method: Method) -> None:
        match method:
            case ConnectionClose() if self.state in (State.OPENING, State.OPEN, State.CLOSING):
                self._client_closes()
            case ConnectionCloseOk() if self.state is State.CLOSING:
                self._end("closed by us")
            case ConnectionUpdateSecret() if self.state is State.OPEN:
                # Passwords do not expire: whoever is in stays in.
                self._reply(ConnectionUpdateSecretOk())
            case ConnectionStartOk() | ConnectionSecureOk() | ConnectionTuneOk() | ConnectionOpen() if (
                self.state is State.OPENING
            ):
                self._shake_hands(method)
            case _ if self.state in (State.OPENING, State.OPEN):
                raise CommandInvalid(reason=f"{type(method).__name__} is not expected on channel 0 now")

    # The handshake -------------------------------------------------------------------------------------

    def _shake_hands(
        self, method: ConnectionStartOk | ConnectionSecureOk | ConnectionTuneOk | ConnectionOpen
    ) -> None:
        handshake, terms = self._handshake, self._terms
        reply = handshake.receive(method)
        if reply is not None:
            self._reply(reply)
        agreed = handshake.agreed
        if handshake.state is Step.AWAIT_VERDICT:
            assert agreed.credentials is not None
            self._log_in(agreed.credentials)
        elif handshake.state is Step.AWAIT_OPEN:
            terms.channel_max, terms.frame_max = agreed.channel_max, agreed.frame_max
            terms.heartbeat = self._config.heartbeat_s
            terms.tuned = True
            self._cutter.frame_max = agreed.frame_max
            self._heartbeat_ms = agreed.heartbeat * 1000
            self._main_goes_on()
        elif handshake.state is Step.AWAIT_ADMISSION:
            terms.vhost = self.vhost = agreed.virtual_host
            terms.admitted = True
            self._main_goes_on()

    def _log_in(self, credentials: Credentials) -> None:
        agreed = self._handshake.agreed
        refusal = self.outside.may_come(credentials.user, self.peer)
        if refusal is not None:
            self._refuse_login(refusal)
            return
        self.user = credentials.user
        terms = self._terms
        capabilities = agreed.client_properties.get("capabilities")
        terms.client_properties = agreed.client_properties | {
            "capabilities": (capabilities if isinstance(capabilities, dict) else {})
            | {"authentication_failure_close": True}
        }
        terms.mechanism = PLAIN
        terms.user, terms.password = credentials.user.encode(), credentials.password
        self.link_to(MAIN)

    def _refuse_login(self, why: str) -> None:
        mechanism = self._handshake.agreed.mechanism
        self.outside.note(
            "warning", "login refused", connection=str(self.peer), mechanism=mechanism, reason=why
        )
        close = self._handshake.refuse(login_refused(mechanism))
        if close is not None:
            self._reply(close)
        self._end("login refused")

    def _main_goes_on(self) -> None:
        if self._no_main:
            if self._handshake.state is Step.AWAIT_ADMISSION:
                self._say_close(CONNECTION_FORCED, self._no_main)
        else:
            self.links[MAIN].go_on()

    def _accept_login(self) -> None:
        reply = self._handshake.accept(self.user)
        assert reply is not None
        self._reply(reply)
        self._take_early()

    def _take_early(self) -> None:
        early, self._early = self._early, deque()
        while early and not (self.state is State.OPENING and self._handshake.state in WAITING):
            self._take_piece(early.popleft())
        self._early = early

    # What links say: their owner -----------------------------------------------------------------------

    def link_to(self, group: str) -> Link:
        """The link to a group, dialled if there is none yet."""
        link = self.links.get(group)
        if link is None:
            frame_max = self._terms.frame_max or self._config.frame_bytes_max
            link = self.links[group] = Link(
                self, group, self._terms, frame_max=frame_max, whole=not self._through
            )
            self.outside.dial(link, "")
        return link

    def link_touched(self, link: Link) -> None:
        self.outside.touched(link)

    def link_drained(self, link: Link) -> None:  # noqa: ARG002
        self._channels.drained()

    def links_have_room(self) -> bool:
        """Whether links may be given more: no more waits for any of them than may."""
        return all(link.waiting_bytes <= self._config.kept_bytes_max for link in self.links.values())

    def link_tuned(self, link: Link, offer: ConnectionTune) -> None:
        terms, handshake = self._terms, self._handshake
        if not terms.tuned:
            if handshake.state is Step.AWAIT_VERDICT:
                config = self._config
                handshake.offer = ConnectionTune(
                    _smaller(config.channels_max, offer.channel_max),
                    _smaller(config.frame_bytes_max, offer.frame_max),
                    config.heartbeat_s,
                )
                self.outside.came(self.user, self.peer, True)
                self._accept_login()
            return
        for name in ("channel_max", "frame_max"):
            theirs, ours = getattr(offer, name), getattr(terms, name)
            if theirs and theirs < ours:
                link.lose(f"it offers a {name} of {theirs}, and {ours} are agreed on with the client")
                return

    def link_opened(self, link: Link) -> None:
        if link.group != MAIN or self.state is not State.OPENING:
            return
        reply = self._handshake.accept()
        assert reply is not None
        self._reply(reply)
        self.state = State.OPEN
        self._channels.begin(self._terms.channel_max, self._terms.frame_max)
        self.outside.note(
            "info", "connection opened", connection=str(self.peer), user=self.user, vhost=self.vhost
        )
        self._take_early()

    def link_refused(self, link: Link, close: ConnectionClose) -> None:
        handshake = self._handshake
        if close.reply_code == CONNECTION_FORCED and self._may_try_again(link):
            link.again()
            self.outside.dial(link, close.reply_text)
        elif self.state is State.OPENING and handshake.state is Step.AWAIT_VERDICT:
            if close.reply_code == LoginRefused.amqp091:
                self.outside.came(self.user, self.peer, False)
            told = handshake.refuse(close.reply_text)
            if told is not None:
                assert isinstance(told, ConnectionClose)
                told.reply_code = close.reply_code
                self._reply(told)
            self._end("login refused")
        elif self.state is State.FINISHING:
            # It may not have taken all that the client did: Close-Ok would say that it has.
            self._lose(link, close.reply_text)
        else:
            self._pass_on_close(close)

    def link_lost(self, link: Link, why: str) -> None:
        if self.state not in LIVE:
            return
        if self._may_try_again(link):
            link.again()
            self.outside.dial(link, "")
            return
        self._lose(link, why)

    def _lose(self, link: Link, why: str) -> None:
        sentence = f"the leader of group '{link.group}' cannot be reached: {why}"
        self.outside.note("warning", "leader lost", connection=str(self.peer), group=link.group, why=why)
        if self.state is State.OPENING:
            self._no_main = f"{sentence}; try again"
            if self._handshake.state is Step.AWAIT_VERDICT:
                # Nothing is behind this login: the client is told where it would open its virtual host.
                self._accept_login()
            else:
                self._main_goes_on()
        elif self.state is State.FINISHING:
            self._end(sentence)
        else:
            self._say_close(CONNECTION_FORCED, f"{sentence}; connect again")

    def _may_try_again(self, link: Link) -> bool:
        """Whether nothing of the client can have reached the member that is gone."""
        return (
            not link.opened
            and self.state in LIVE
            and self.now_ms - link.began_ms < self.outside.dial_s_max * 1000
        )

    def link_closed(self, link: Link) -> None:  # noqa: ARG002
        if self.state is State.FINISHING:
            self._finish()

    def link_heard(self, link: Link, piece: Piece) -> None:
        if self._through:
            if self.state is State.OPEN or self.state is State.FINISHING:
                self.send(piece[3])
        else:
            self._channels.heard(link, piece)

    def link_told(self, link: Link, method: Method) -> None:
        if self.state is not State.OPEN:
            return
        before = bool(self._blocked)
        if isinstance(method, ConnectionBlocked):
            self._blocked[link.group] = method.reason
            if not before:
                self._reply(ConnectionBlocked(method.reason))
        elif isinstance(method, ConnectionUnblocked):
            self._blocked.pop(link.group, None)
            if before and not self._blocked:
                self._reply(ConnectionUnblocked())

    def room(self) -> bool:
        return self._writable and self._out_bytes < self._config.output_bytes_max

    # What the shell says -----------------------------------------------------------------------------------

    def receive_eof(self) -> None:
        done = self.state is State.LEAVING
        self._end("closed by the peer" if done else "the peer closed the socket")

    def tick(self, now_ms: int) -> None:
        match self.state:
            case State.OPENING:
                if now_ms - self._began_ms > self._config.handshake_s_max * 1000:
                    self._end("the handshake took too long")
            case State.CLOSING | State.FINISHING | State.LEAVING:
                if now_ms - self._closing_ms > self._config.close_s_max * 1000:
                    self._end("the peer did not hang up in time")
            case State.OPEN:
                if self._heartbeat_ms:
                    self._beat(now_ms)
                if now_ms - self._channels.asks_since_ms(now_ms) > self.outside.dial_s_max * 1000:
                    self._say_close(
                        CONNECTION_FORCED, "this front has not heard of main's wiring; connect again"
                    )
        for link in list(self.links.values()):
            link.tick(now_ms)

    def _beat(self, now_ms: int) -> None:
        if not self.wants_read():
            self._heard_ms = now_ms  # it may speak, but we do not listen
        elif now_ms - self._heard_ms > 2 * self._heartbeat_ms:
            self._end("missed heartbeats from the client", "warning")
            return
        if self._writable and not self._out and now_ms - self._sent_ms >= self._heartbeat_ms // 2:
            self.send(HEARTBEAT_FRAME)

    def output(self) -> list[bytes]:
        if not self._writable and not self.closed:
            return []
        out, self._out = self._out, []
        if out:
            self.bytes_out += self._out_bytes
            self._out_bytes = 0
            self._sent_ms = self.now_ms
        return out

    def wants_read(self) -> bool:
        config = self._config
        if self.state is State.OPENING:
            return not self._early
        return (
            self._out_bytes <= UNREAD_FACTOR * config.output_bytes_max
            and self._channels.kept_bytes <= config.kept_bytes_max
            and self.links_have_room()
            and all(link.writable_ for link in self.links.values())
        )

    def writable(self, yes: bool) -> None:
        self._writable = yes
        self.outside.touched(self)

    def shutdown(self, code: int, text: str) -> None:
        """Close the connection from our side."""
        if self.state in (State.OPENING, State.LEAVING):
            self._end(text)
        elif self.state in LIVE:
            self._say_close(code, text)

    # The end -----------------------------------------------------------------------------------------------

    def fail(self, error: TidemarkError, ids: tuple[int, int]) -> None:
        """The client did what it must not: close the connection with this error, about this method."""
        self._fail(error, ids)

    def unexpected(self, error: Exception) -> InternalError:
        self.outside.note("error", "unexpected exception", connection=str(self.peer), error=error)
        return InternalError(reason="the front failed; its log has the details")

    def _fail(self, error: TidemarkError, ids: tuple[int, int] = (0, 0)) -> None:
        if self.state not in LIVE:
            return
        self.outside.note("warning", "connection failed", connection=str(self.peer), error=error)
        close = ConnectionClose(error.amqp091, reply_text(error), *ids)
        if self.state is State.OPENING and self._handshake.state not in TRUSTED:
            self._reply(close)
            self._end("the handshake failed")
        else:
            self._pass_on_close(close)

    def _say_close(self, code: int, text: str) -> None:
        name = NAMES.get(code, NAMES[CONNECTION_FORCED])
        self._pass_on_close(ConnectionClose(code, text if text.startswith(name) else f"{name} - {text}"))

    def _pass_on_close(self, close: ConnectionClose) -> None:
        if self.state not in LIVE:
            return
        self.state = State.CLOSING
        self._closing_ms = self.now_ms
        self._release(close.reply_code, close.reply_text)
        self._reply(close)

    def _client_closes(self) -> None:
        if self.state is not State.OPEN:
            self._leave()
            return
        self.state = State.FINISHING
        self._closing_ms = self.now_ms
        self.finish()

    def finish(self) -> None:
        """Close the links when every channel has done what was asked of it; a channel says so, too."""
        if self.state is State.FINISHING and not self._channels.waiting:
            for group, link in self.links.items():
                if group != MAIN:
                    link.finish()
            self._finish()

    def _finish(self) -> None:
        """Answer the client's Close when every leader has answered ours: what it did is safe then.

        Main is the last, because it gets what other groups have no queue for.
        """
        if all(link.closed for group, link in self.links.items() if group != MAIN):
            self.links[MAIN].finish()
            if self.links[MAIN].closed:
                self._leave()

    def _leave(self) -> None:
        self.state = State.LEAVING
        self._closing_ms = self.now_ms
        self._release(200, "")
        self._reply(ConnectionCloseOk())

    def _release(self, code: int, text: str) -> None:
        self._channels.clear()
        self._early.clear()
        for link in list(self.links.values()):
            if not link.closed:
                link.close(code, text)

    def _end(self, why: str, level: str = "info") -> None:
        if self.closed:
            return
        self.state = State.CLOSED
        self.closed = True
        self._channels.clear()
        self._early.clear()
        for link in list(self.links.values()):
            link.drop()
        self.outside.touched(self)
        self.outside.note(level, "connection closed", connection=str(self.peer), why=why)

    def capable_of(self, capability: str) -> bool:
        return self._handshake.agreed.capable_of(capability)

    def send(self, data: bytes) -> None:
        """Frames for the client."""
        if not self._out:
            self.outside.touched(self)
        self._out.append(data)
        self._out_bytes += len(data)

    def _reply(self, method: Method) -> None:
        self.send(encode_method(0, method))

    def statistics(self) -> dict[str, Any]:
        return {
            "peer": str(self.peer),
            "protocol": "AMQP 0-9-1",
            "user": self.user,
            "vhost": self.vhost,
            "state": self.state.name.lower(),
            "bytes_in": self.bytes_in,
            "bytes_out": self.bytes_out,
            "links": {group: link.state.name.lower() for group, link in self.links.items()},
        }


def _smaller(ours: int, theirs: int) -> int:
    """The smaller of two limits, of which 0 is none."""
    return min(ours, theirs) if ours and theirs else ours or theirs
