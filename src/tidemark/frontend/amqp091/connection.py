"""One AMQP 0-9-1 connection: from the first byte to the last, without a socket.

`receive` takes the bytes of a socket read, finds runs and methods in them with one call of the
scanner, and gives each to its channel. What must be sent is gathered and handed out once a turn by
`output`. `TAKEN` and `OTHERWISE` say which methods mean something on channel 0 in which state:

    OPENING ──handshake done──► OPEN ──Close from the peer──► FINISHING ──all is on disk──► LEAVING
       │                         │                                                  the peer hangs up
       │                         │                                                  or is too late │
       └────────an error─────────┴──► CLOSING (we sent Close) ──Close-Ok, or too late──► CLOSED ◄──┘

Errors close what they are about: a `ChannelError` its channel, a `RemoteProtocolError` the
connection. An exception that nobody expected closes the connection with 541 and is noted for the
log; it never reaches other connections. After our Close-Ok the peer may still be writing, so it is
the peer that hangs up.

Back-pressure: consumers are given no more while `output_bytes_max` wait to be sent or the socket
is full; the socket is not read while the peer publishes against an alarm, while too much is kept
for waiting channels, or while the peer does not read what we answer.

Invariant: once `closed` is True the connection holds nothing of the broker: no session, no
consumer, no message.
"""

from __future__ import annotations

from collections.abc import Mapping
from enum import Enum, auto

from tidemark.broker.session import Session
from tidemark.errors import (
    ChannelError,
    CommandInvalid,
    InternalError,
    NotAllowed,
    TidemarkError,
)
from tidemark.frontend.amqp091 import channel as channels
from tidemark.frontend.amqp091.channel import Answer, Channel
from tidemark.frontend.amqp091.config import OWN_BYTES
from tidemark.frontend.amqp091.opening import TRUSTED, UNREAD_FACTOR, login_refused, server_handshake
from tidemark.frontend.amqp091.replies import NAMES, reply_text
from tidemark.frontend.services import ConnectionStatistics, Login, PeerInfo, Services, Verdict
from tidemark.model.runs import PublishRun
from tidemark.model.turns import CAPABILITY as TURNS
from tidemark.model.wiring import FRONT_USER, LIVES, MAIN
from tidemark.wire.amqp091.frames import HEARTBEAT_FRAME, PROTOCOL_HEADER
from tidemark.wire.amqp091.handshake import ProtocolHeader, header_fits
from tidemark.wire.amqp091.handshake import State as Step
from tidemark.wire.amqp091.methods import (
    BasicAck,
    BasicPublish,
    ChannelOpen,
    ChannelOpenOk,
    ConnectionBlocked,
    ConnectionClose,
    ConnectionCloseOk,
    ConnectionOpen,
    ConnectionSecureOk,
    ConnectionStartOk,
    ConnectionTuneOk,
    ConnectionUnblocked,
    ConnectionUpdateSecret,
    ConnectionUpdateSecretOk,
    Method,
    encode_method,
    ids_of,
)
from tidemark.wire.amqp091.sasl import AMQPLAIN, EXTERNAL, PLAIN
from tidemark.wire.amqp091.scanner import AckRun, Event, Fault, Heartbeat, MethodFrame, Oversized, Scanner


class State(Enum):
    OPENING = auto()
    OPEN = auto()
    FINISHING = auto()
    LEAVING = auto()
    CLOSING = auto()
    CLOSED = auto()


TAKEN: dict[State, frozenset[type[Method]]] = {
    State.OPENING: frozenset(
        {ConnectionStartOk, ConnectionSecureOk, ConnectionTuneOk, ConnectionOpen, ConnectionClose}
    ),
    State.OPEN: frozenset({ConnectionClose, ConnectionUpdateSecret}),
    State.FINISHING: frozenset(),
    State.LEAVING: frozenset(),
    State.CLOSING: frozenset({ConnectionClose, ConnectionCloseOk}),
    State.CLOSED: frozenset(),
}
"""The methods that mean something on channel 0. The order of the handshake is the wire's `Handshake`."""

OTHERWISE: dict[State, Answer] = {
    State.OPENING: Answer.REFUSE,
    State.OPEN: Answer.REFUSE,
    State.FINISHING: Answer.IGNORE,
    State.LEAVING: Answer.IGNORE,
    State.CLOSING: Answer.IGNORE,
    State.CLOSED: Answer.IGNORE,
}


def answer_to(state: State, kind: type[Method]) -> Answer:
    """What a connection in this state has to say to a method on channel 0."""
    return Answer.TAKE if kind in TAKEN[state] else OTHERWISE[state]


LIVE = (State.OPENING, State.OPEN, State.FINISHING)
"""States in which an error of the peer has consequences."""


class Amqp091:
    """A `FrontEnd`, and the `Link` of its channels."""

    session: Session

    def __init__(self, services: Services, peer: PeerInfo) -> None:
        config = services.config
        self.services = services
        self.peer = peer
        self.closed = False
        self.state = State.OPENING
        self.frame_max = config.frame_bytes_max + (OWN_BYTES if peer.own else 0)
        self.full = False
        self.starved = False
        self.kept_bytes = 0
        self._config = config
        self._connected_ms = services.now_ms
        self._scanner = Scanner(self.frame_max, config.message_bytes_max, 0)
        known = (PLAIN, AMQPLAIN) if peer.certificate_name is None else (PLAIN, AMQPLAIN, EXTERNAL)
        more = (LIVES,) * bool(peer.front) + (TURNS,) * peer.own
        self._handshake = server_handshake(config, self.frame_max, known, more)
        self._has_session = False
        self._channels: dict[int, Channel] = {}
        self._paused: dict[Channel, None] = {}
        self._unconfirmed: dict[Channel, None] = {}
        self._finish_at = -1
        """FINISHING: the journal sequence that Close-Ok waits for; -1 while channels still have work to do."""
        self._doomed: Exception | None = None
        self._out: list[bytes] = []
        self._giving = False
        """The shell takes what there is at this moment: nobody has to be told that there is something."""
        self._out_bytes = 0
        self._writable = True
        self._blocked: str | None = None
        self._told_blocked = False
        self._published_blocked = False
        self._heartbeat_ms = 0
        self._timeouts_ms = self._connected_ms
        """When messages that consumers hold too long are looked for next."""
        self._second_ms = self._opened = 0
        """When the second began in which so many channels were opened."""
        self._heard_ms = self._sent_ms = self._closing_ms = self._connected_ms
        self.bytes_in = self.bytes_out = 0

    # What comes in ---------------------------------------------------------------------------------

    def receive(self, data: memoryview) -> int:
        self._heard_ms = self.services.now_ms
        used = 0
        if self.state is State.OPENING and self._handshake.state is Step.AWAIT_HEADER:
            used = self._receive_header(data)
            if not used:
                return 0
        if self.closed:
            return len(data)
        events, scanned = self._scanner.feed(data[used:] if used else data)
        for event in events:
            if self.state is State.FINISHING:
                break  # nothing counts after the peer's Close
            self._take(event)
        self.bytes_in += used + scanned
        unfinished, limit = self._scanner.assembling_bytes, self._config.unfinished_bytes_max
        if unfinished > limit:
            self._fail(
                NotAllowed(reason=f"unfinished messages hold {unfinished} bytes, over {limit}"), (0, 0)
            )
        elif unfinished and self._blocked is not None:
            self._publish_against_alarm()
        return used + scanned

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

    def _take(self, event: Event) -> None:
        """Give an event to whom it concerns, and close what its error is about."""
        kind = type(event)
        if kind is Heartbeat:
            return
        if kind is Fault:
            self._take_fault(event)  # type: ignore[arg-type]
            return
        number: int = event.channel  # type: ignore[union-attr]
        channel = self._channels.get(number)
        try:
            if channel is not None:
                if kind is PublishRun and self._blocked is not None:
                    self._publish_against_alarm()
                channel.receive(event)  # type: ignore[arg-type]
            elif number:
                self._open_channel(event)  # type: ignore[arg-type]
            elif kind is MethodFrame:
                self._take_method(event.method)  # type: ignore[union-attr]
            elif self.state in LIVE:
                raise CommandInvalid(reason="messages and acks do not belong on channel 0")
        except ChannelError as error:
            if channel is None:
                self._fail(error, _ids(event))
            else:
                self._scanner.discard(number)
                channel.fail(error, _ids(event))
        except TidemarkError as error:
            self._fail(error, _ids(event))
        except Exception as error:
            self._fail(self._unexpected(error), _ids(event))

    def _take_fault(self, fault: Fault) -> None:
        """The bytes make no sense. The frames behind them may, as long as we wait for Close-Ok."""
        scanner = self._scanner
        self._scanner = Scanner(scanner.frame_max, 0, scanner.channel_max)
        self._fail(fault.error, (fault.class_id, fault.method_id))

    def _unexpected(self, error: Exception) -> InternalError:
        self.services.note("error", "unexpected exception", connection=str(self.peer), error=error)
        return InternalError(reason="the broker failed; its log has the details")

    def _open_channel(self, event: PublishRun | AckRun | MethodFrame | Oversized) -> None:
        if self.state is State.OPENING:
            raise CommandInvalid(reason=f"channel {event.channel} is used before the connection is open")
        if self.state not in LIVE:
            return
        number = event.channel
        if not (isinstance(event, MethodFrame) and isinstance(event.method, ChannelOpen)):
            method = event.method if isinstance(event, MethodFrame) else BasicPublish()
            raise channels.refusal(channels.State.CLOSED, number, method)
        channel_max = self._handshake.agreed.channel_max
        if number > channel_max:
            raise NotAllowed(reason=f"channel {number} is over the agreed maximum, {channel_max}")
        usage = self.services.broker.usage
        usage.check_channel(self.session.user)
        self._check_channel_rate()
        self._channels[number] = Channel(self, number)
        usage.channels(self.session.user, 1)
        self.services.broker.counts.channels_opened += 1
        self.send(encode_method(number, ChannelOpenOk()))

    def _check_channel_rate(self) -> None:
        """Raises NotAllowed when this connection opens channels faster than it may."""
        limit, now_ms = self._config.channels_per_s_max, self.services.now_ms
        if not limit:
            return
        if now_ms - self._second_ms >= 1000 or now_ms < self._second_ms:
            self._second_ms, self._opened = now_ms, 0
        self._opened += 1
        if self._opened > limit:
            raise NotAllowed(
                reason=f"channels are opened too fast: this broker takes {limit} a second of one connection"
            )

    # Channel 0 ---------------------------------------------------------------------------------------

    def _take_method(self, method: Method) -> None:
        answer = answer_to(self.state, type(method))
        if answer is Answer.REFUSE:
            raise CommandInvalid(reason=f"{type(method).__name__} is not expected on channel 0 now")
        if answer is Answer.IGNORE:
            return
        match method:
            case ConnectionClose():
                self._peer_closes()
            case ConnectionCloseOk():
                self._end("closed by us")
            case ConnectionUpdateSecret():
                # Passwords do not expire here: whoever is in stays in.
                self._reply(ConnectionUpdateSecretOk())
            case ConnectionStartOk() | ConnectionSecureOk() | ConnectionTuneOk() | ConnectionOpen():
                self._shake_hands(method)

    def _shake_hands(
        self, method: ConnectionStartOk | ConnectionSecureOk | ConnectionTuneOk | ConnectionOpen
    ) -> None:
        handshake = self._handshake
        reply = handshake.receive(method)
        if reply is not None:
            self._reply(reply)
        agreed = handshake.agreed
        if handshake.state is Step.AWAIT_VERDICT:
            self._log_in()
        elif handshake.state is Step.AWAIT_OPEN:
            self.frame_max = self._scanner.frame_max = agreed.frame_max
            self._scanner.channel_max = agreed.channel_max
            self._heartbeat_ms = agreed.heartbeat * 1000
        elif handshake.state is Step.AWAIT_ADMISSION:
            self._admit()

    def _log_in(self) -> None:
        if self.peer.own:
            self.verdict(Verdict(FRONT_USER))
            return
        credentials = self._handshake.agreed.credentials
        assert credentials is not None
        if self.peer.front and self.services.broker.group != MAIN:
            # Users are main's, and a front comes here when main has let its client in.
            self.verdict(Verdict(credentials.user))
            return
        try:
            password = credentials.password.decode()
        except UnicodeDecodeError:
            self.verdict(Verdict(None, "the password is not UTF-8"))
            return
        login = Login(credentials.mechanism, credentials.user, password, self.peer)
        self.services.authenticate(self, login)

    def verdict(self, verdict: Verdict) -> None:
        handshake = self._handshake
        if self.state is not State.OPENING or handshake.state is not Step.AWAIT_VERDICT:
            return
        if verdict.user is not None:
            reply = handshake.accept(verdict.user)
            assert reply is not None
            self._reply(reply)
            # Only from now on: a stranger cannot make us hold content.
            self._scanner.channel_max = self._config.channels_max
            return
        mechanism = handshake.agreed.mechanism
        self.services.note(
            "warning", "login refused", connection=str(self.peer), mechanism=mechanism, reason=verdict.reason
        )
        close = handshake.refuse(login_refused(mechanism))
        if close is not None:
            self._reply(close)
        self._end("login refused")

    def _admit(self) -> None:
        """Open the virtual host, if this user may."""
        agreed = self._handshake.agreed
        self.session = self.services.broker.open_session(
            agreed.virtual_host,
            agreed.user,
            self,
            str(self.peer),
            by_front=bool(self.peer.front),
            own=self.peer.own,
            turns=agreed.capable_of(TURNS),
        )
        self._has_session = True
        reply = self._handshake.accept()
        assert reply is not None
        self._reply(reply)
        self.state = State.OPEN
        self._blocked = self.services.broker.blocked
        self.services.note(
            "info",
            "connection opened",
            connection=str(self.peer),
            user=agreed.user,
            vhost=agreed.virtual_host,
        )

    # What channels ask: the Link ---------------------------------------------------------------------

    def send(self, data: bytes) -> None:
        if not self._out and not self._giving:
            self.services.touched(self)
        self._out.append(data)
        self._out_bytes += len(data)
        if self._out_bytes >= self._config.output_bytes_max:
            self.full = True

    def capable_of(self, capability: str) -> bool:
        return self._handshake.agreed.capable_of(capability)

    def pause(self, channel: Channel) -> None:
        self._paused[channel] = None
        self.services.waiting(self)

    def confirming(self, channel: Channel) -> None:
        if channel not in self._unconfirmed:
            self._unconfirmed[channel] = None
            self.services.touched(self)

    def forget(self, channel: Channel) -> None:
        if self._channels.pop(channel.number, None) is not None:
            self.services.broker.counts.channels_closed += 1
            self.services.broker.usage.channels(self.session.user, -1)
        self._unconfirmed.pop(channel, None)

    def rest(self) -> None:
        self.full = self.starved = True
        self.services.touched(self)

    def doom(self, error: Exception) -> None:
        self._doomed = self._doomed or error
        self.full = True
        self.services.touched(self)

    # What the node and the shell say -------------------------------------------------------------------

    def durable(self) -> None:
        self._resume()
        if self._unconfirmed:
            self.services.touched(self)
        if self._unconfirmed or self._paused or self._finish_at >= 0:
            self.services.waiting(self)

    def _resume(self) -> None:
        """Let every channel go on whose wait is over, and finish when the last has."""
        for channel in [each for each in self._paused if each.due()]:
            if channel in self._paused:  # an error of the one before may have ended all
                del self._paused[channel]
                self._continue(channel)
        if self.state is State.FINISHING:
            self._finish()

    def _continue(self, channel: Channel) -> None:
        try:
            channel.proceed()
        except Exception as error:
            self._fail(self._unexpected(error), (0, 0))
            return
        while (event := channel.next_kept()) is not None:
            self._take(event)

    def store_failed(self, reason: str) -> None:
        for channel in self._channels.values():
            channel.refuse_confirms()
        self._unconfirmed.clear()
        self.shutdown(InternalError.amqp091, reason)

    def tick(self, now_ms: int) -> None:
        match self.state:
            case State.OPENING:
                if now_ms - self._connected_ms > self._config.handshake_s_max * 1000:
                    self._end("the handshake took too long")
            case State.CLOSING | State.FINISHING | State.LEAVING:
                if now_ms - self._closing_ms > self._config.close_s_max * 1000:
                    self._end("the peer did not hang up in time")
            case State.OPEN:
                if self._heartbeat_ms:
                    self._beat(now_ms)
                if now_ms >= self._timeouts_ms and self._channels:
                    self._check_timeouts(now_ms)

    def _beat(self, now_ms: int) -> None:
        if not self.wants_read():
            self._heard_ms = now_ms  # it may speak, but we do not listen
        elif now_ms - self._heard_ms > 2 * self._heartbeat_ms:
            self._end("missed heartbeats from the client", "warning")
            return
        if self._writable and not self._out and now_ms - self._sent_ms >= self._heartbeat_ms // 2:
            self.send(HEARTBEAT_FRAME)

    def _check_timeouts(self, now_ms: int) -> None:
        """Close channels whose consumers have held a message for too long; what they hold goes back."""
        step_ms = self.services.broker.timeout_ms_min // channels.TIMEOUT_STEPS
        self._timeouts_ms = now_ms + min(max(step_ms, 1000), 60_000)
        for number, channel in list(self._channels.items()):
            error = channel.check_timeout(now_ms)
            if error is not None:
                self.services.note(
                    "warning", "consumer timed out", connection=str(self.peer), channel=number, error=error
                )
                self._scanner.discard(number)
                channel.fail(error, (0, 0))

    def output(self) -> list[bytes]:
        if self._doomed is not None:
            self._perish(self._doomed)
        if self._unconfirmed:
            self._giving = True
            try:
                self._send_confirms()
            finally:
                self._giving = False
        if not self._writable and not self.closed:
            return []
        out, self._out = self._out, []
        if out:
            self.bytes_out += self._out_bytes
            self._out_bytes = 0
            self._sent_ms = self.services.now_ms
        if self.full:
            self._room_again()
        return out

    def _send_confirms(self) -> None:
        durable = self.services.journal_durable()
        for channel in list(self._unconfirmed):
            if not channel.send_confirms(durable):
                del self._unconfirmed[channel]
        if self._unconfirmed:
            self.services.waiting(self)

    def _room_again(self) -> None:
        self.full = not self._writable
        if self.full or not self.starved:
            return
        self.starved = False
        self.services.touched(self)
        for channel in self._channels.values():
            channel.touch_queues()
        self._resume()

    def wants_read(self) -> bool:
        return not (
            self._published_blocked
            or (self._blocked is not None and self._scanner.assembling_bytes > 0)
            or self.kept_bytes > self._config.kept_bytes_max
            or self._out_bytes > UNREAD_FACTOR * self._config.output_bytes_max
        )

    def writable(self, yes: bool) -> None:
        self._writable = yes
        if not yes:
            self.full = True
        else:
            self.services.touched(self)
            if self._out_bytes < self._config.output_bytes_max:
                self._room_again()

    def block(self, reason: str | None) -> None:
        self._blocked = reason
        if reason is None:
            self._published_blocked = False
            if self._told_blocked and self.state is State.OPEN:
                self._reply(ConnectionUnblocked())
            self._told_blocked = False
        elif self.state is State.OPEN and self._scanner.assembling_bytes:
            # A half-received message is not read on: the peer should know why.
            self._publish_against_alarm()

    def _publish_against_alarm(self) -> None:
        """The peer publishes while publishers must wait: this much is taken, then no more is read from it."""
        self._published_blocked = True
        if not self._told_blocked and self.capable_of("connection.blocked"):
            self._told_blocked = True
            self._reply(ConnectionBlocked(reason=self._blocked or ""))

    # The end -------------------------------------------------------------------------------------------

    def shutdown(self, code: int, text: str) -> None:
        name = NAMES.get(code, "CONNECTION_FORCED")
        if self.state in (State.OPENING, State.LEAVING):
            self._end(text)
        elif self.state in LIVE:
            told = text if text.startswith(name) else f"{name} - {text}"
            self._say_close(ConnectionClose(reply_code=code, reply_text=told))

    def receive_eof(self) -> None:
        done = self.state is State.LEAVING
        self._end("closed by the peer" if done else "the peer closed the socket")

    def _fail(self, error: TidemarkError, ids: tuple[int, int]) -> None:
        """Close the connection with this error, about the method with these ids."""
        if self.state not in LIVE:
            return
        self.services.note("warning", "connection failed", connection=str(self.peer), error=error)
        close = ConnectionClose(
            reply_code=error.amqp091, reply_text=reply_text(error), class_id=ids[0], method_id=ids[1]
        )
        if self.state is State.OPENING and self._handshake.state not in TRUSTED:
            self._reply(close)
            self._end("the handshake failed")
        else:
            self._say_close(close)

    def _perish(self, error: Exception) -> None:
        self._doomed = None
        self._fail(error if isinstance(error, TidemarkError) else self._unexpected(error), (0, 0))

    def _say_close(self, close: ConnectionClose) -> None:
        self.state = State.CLOSING
        self._closing_ms = self.services.now_ms
        self._release()
        self._reply(close)

    def _peer_closes(self) -> None:
        if self.state is not State.OPEN:
            self._leave()
            return
        self.state = State.FINISHING
        self._closing_ms = self.services.now_ms
        self._finish()

    def _finish(self) -> None:
        """Answer the peer's Close when every channel has done what was asked of it and that is on the disk."""
        if self._paused:
            return
        if self._finish_at < 0:
            for channel in self._channels.values():
                channel.release()
            self._finish_at = max((channel.journal_end() for channel in self._channels.values()), default=0)
        if self._finish_at > self.services.journal_durable():
            self.services.waiting(self)
            return
        self._send_confirms()
        self._leave()

    def _leave(self) -> None:
        self.state = State.LEAVING
        self._closing_ms = self.services.now_ms
        self._release()
        self._reply(ConnectionCloseOk())

    def _release(self) -> None:
        """Give back all that the broker holds for this connection, and drop what it has half received."""
        self._scanner.body_max = 0  # content that still comes is dropped as it comes
        for channel in self._channels.values():
            self._scanner.discard(channel.number)
            try:
                channel.release()
            except Exception as error:  # the other channels' consumers must go all the same
                self._unexpected(error)
            channel.drop_kept()
        if self._channels:
            self.services.broker.counts.channels_closed += len(self._channels)
            self.services.broker.usage.channels(self.session.user, -len(self._channels))
        self._channels.clear()
        self._paused.clear()
        self._unconfirmed.clear()
        self._finish_at = -1
        if self._has_session:
            self._has_session = False
            self.session.close()
        self.services.touched(self)

    def _end(self, why: str, level: str = "info") -> None:
        if self.closed:
            return
        self._release()
        self.state = State.CLOSED
        self.closed = True
        self.services.note(level, "connection closed", connection=str(self.peer), why=why)

    def _reply(self, method: Method) -> None:
        self.send(encode_method(0, method))

    @property
    def channels(self) -> Mapping[int, Channel]:
        """The open ones, by number."""
        return self._channels

    def statistics(self) -> ConnectionStatistics:
        agreed = self._handshake.agreed
        return ConnectionStatistics(
            name=str(self.peer),
            user=agreed.user,
            vhost=agreed.virtual_host,
            state="blocked" if self._published_blocked else self.state.name.lower(),
            peer=self.peer,
            protocol="AMQP 0-9-1",
            client_properties=agreed.client_properties,
            connected_ms=self._connected_ms,
            channel_max=agreed.channel_max,
            frame_max=self.frame_max,
            heartbeat_s=agreed.heartbeat,
            bytes_in=self.bytes_in,
            bytes_out=self.bytes_out,
            channels=tuple(self._channels[number].statistics() for number in sorted(self._channels)),
        )


def _ids(event: Event) -> tuple[int, int]:
    """Class and method of an event, for the Close that names the offender."""
    if isinstance(event, MethodFrame):
        return ids_of(event.method)
    if isinstance(event, AckRun):
        return ids_of(BasicAck)
    if isinstance(event, PublishRun | Oversized):
        return ids_of(BasicPublish)
    return 0, 0
