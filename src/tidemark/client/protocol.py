"""One connection to a broker, without the socket.

The owner of the socket gives `receive` the bytes that came and sends what `data_to_send` returns. What was asked
with `request` comes back as events under the number that `request` returned:

    request ──► Arrived* ──► Answered          each number ends with exactly one of
                        └──► Refused           Answered, Refused or the connection's Ended

    GREETING ──hello answered──► OPEN ──goodbye, end of bytes, broken frame──► CLOSED

Nothing else is asked before the hello is answered. Nothing is retried here; who retries is the client above,
which knows what may be sent twice.

Invariant: after `Ended` no other event comes, and every open request is named in it.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from enum import Enum, auto
from typing import Any

from tidemark import __version__
from tidemark.client import errors
from tidemark.errors import FrameError, RemoteProtocolError, TidemarkError
from tidemark.wire.stream.frames import (
    PREAMBLE,
    READER_PREAMBLE,
    Buffer,
    Frame,
    FrameReader,
    Kind,
    encode_frame,
)

FRAME_BYTES_MAX = 64 << 20
"""The most that is sent at once, unless the broker takes less."""
ANSWER_BYTES_MAX = 1 << 30
"""The most that a broker is believed to send: one row may be larger than what this client may send."""


class State(Enum):
    GREETING = auto()
    OPEN = auto()
    CLOSED = auto()


# What the broker said ---------------------------------------------------------------------------


@dataclass(slots=True)
class Opened:
    """We are logged in."""

    welcome: dict[str, Any]


@dataclass(slots=True)
class Arrived:
    """A part of an answer, or what a subscription brought."""

    request: int
    header: dict[str, Any]
    payload: memoryview


@dataclass(slots=True)
class Answered:
    request: int
    header: dict[str, Any]
    payload: memoryview


@dataclass(slots=True)
class Refused:
    request: int
    error: TidemarkError


@dataclass(slots=True)
class Ended:
    """The connection is over; these requests will have no answer."""

    error: TidemarkError
    unanswered: list[int]


Event = Opened | Arrived | Answered | Refused | Ended


class Connection:
    """The client's side of one connection; thrown away when it has ended."""

    def __init__(
        self,
        user: str,
        password: str,
        vhost: str,
        name: str = "tidemark-python",
        *,
        reads: bool = False,
        group: str | None = None,
    ) -> None:
        """`reads`: any member of a cluster may serve it that can; `group`: of which group of the cluster."""
        self.state = State.GREETING
        self.welcome: dict[str, Any] = {}
        """What the hello was answered; of the cluster, what was heard last (`refresh`)."""
        self.history = ""
        """In which the broker writes, as far as we have heard."""
        self.frame_bytes_max = FRAME_BYTES_MAX
        self._frames = FrameReader(ANSWER_BYTES_MAX)
        self._numbers = 0
        self._open: set[int] = set()
        self._dropped: set[int] = set()
        self._abandoned: deque[int | str] = deque()
        """Snapshots that nobody reads any more."""
        self._refreshing: set[int] = set()
        self._out: list[Buffer] = [READER_PREAMBLE if reads else PREAMBLE]
        self._hello = self.request(
            {
                "op": "hello",
                "mechanism": "PLAIN",
                "user": user,
                "password": password,
                "vhost": vhost,
                "client": {"name": name, "version": __version__},
                **({} if group is None else {"group": group}),
            }
        )

    # To the broker ------------------------------------------------------------------------------

    def request(self, header: Mapping[str, Any], payload: Sequence[Buffer] = ()) -> int:
        """Ask for something; the number under which the answer comes.

        Raises:
            RequestTooLarge: it is larger than the broker takes in one piece.
        """
        assert self.state is State.OPEN or not self._numbers, (
            "only a hello is sent before the hello is answered"
        )
        self._close_abandoned()
        number = self._number()
        parts = encode_frame(Kind.REQUEST, number, header, payload)
        size = sum(len(part) for part in parts)
        if size > self.frame_bytes_max:
            raise errors.RequestTooLarge(
                operation=str(header["op"]), size=size, size_max=self.frame_bytes_max
            )
        self._open.add(number)
        self._out += parts
        return number

    def credit(self, request: int, size: int) -> None:
        """Let a read or subscription send so many bytes more."""
        if request in self._open:
            self._out += encode_frame(Kind.CREDIT, request, {"bytes": size})

    def drop(self, request: int) -> None:
        """Nobody wants the rest of this answer: tell the broker, and ignore what is on its way."""
        if request in self._open:
            self._open.discard(request)
            self._dropped.add(request)
            closing = self._number()
            self._dropped.add(closing)
            self._out += encode_frame(Kind.REQUEST, closing, {"op": "close", "request": request})

    def forget(self, request: int) -> None:
        """Nobody waits for this answer any more; the broker still does what was asked."""
        if request in self._open:
            self._open.discard(request)
            self._dropped.add(request)

    def abandon(self, snapshot: int | str) -> None:
        """Nobody reads this snapshot any more: the broker is told with what is sent next. Any thread may say so."""
        self._abandoned.append(snapshot)

    def _close_abandoned(self) -> None:
        while self._abandoned and self.state is State.OPEN:
            closing = self._number()
            self._dropped.add(closing)
            header = {"op": "close", "snapshot": self._abandoned.popleft()}
            self._out += encode_frame(Kind.REQUEST, closing, header)

    def ping(self) -> None:
        """Ask for a sign of life."""
        if self.state is State.OPEN:
            self._out += encode_frame(Kind.PING, 0, {})

    def refresh(self) -> None:
        """Ask who is in the cluster now; `welcome` has it when the answer comes."""
        if self.state is State.OPEN and not self._refreshing:
            number = self._number()
            self._refreshing.add(number)
            self._out += encode_frame(Kind.REQUEST, number, {"op": "members"})

    def goodbye(self) -> None:
        self._out += encode_frame(Kind.GOODBYE, 0, {})

    def data_to_send(self) -> list[Buffer]:
        """What has to be written now, in this order; it is handed out once."""
        self._close_abandoned()
        out, self._out = self._out, []
        return out

    # From the broker ----------------------------------------------------------------------------

    def receive(self, data: Buffer) -> list[Event]:
        """What these bytes mean."""
        events: list[Event] = []
        try:
            for frame in self._frames.feed(data):
                events.extend(self._step(frame))
                if self.state is State.CLOSED:
                    break
        except FrameError as problem:
            events.append(self._ended(problem))
        return events

    def lost(self, problem: str) -> list[Event]:
        """The socket ended or failed."""
        if self.state is State.CLOSED:
            return []
        return [self._ended(RemoteProtocolError(reason=problem))]

    def _step(self, frame: Frame) -> Iterator[Event]:
        number = frame.request
        match frame.kind:
            case Kind.PING:
                self._out += encode_frame(Kind.PONG, number, {})
            case Kind.PONG:
                pass
            case Kind.GOODBYE:
                yield self._ended(_farewell(frame.header))
            case Kind.ERROR if number == 0 or number == self._hello:
                yield self._ended(errors.from_header(frame.header))
            case Kind.ANSWER if number == self._hello and self.state is State.GREETING:
                self._open.discard(number)
                self.state, self.welcome = State.OPEN, frame.header
                self.history = str(frame.header.get("history", ""))
                self.frame_bytes_max = min(FRAME_BYTES_MAX, frame.header.get("frame_max", FRAME_BYTES_MAX))
                yield Opened(frame.header)
            case Kind.ANSWER | Kind.ERROR if number in self._refreshing:
                self._refreshing.discard(number)
                if frame.kind is Kind.ANSWER:
                    self.welcome = {**self.welcome, **frame.header}
                    self.history = str(frame.header.get("history", self.history))
            case Kind.ANSWER | Kind.ERROR | Kind.DATA if number in self._dropped:
                if frame.last:
                    self._dropped.discard(number)
                    if "snapshot" in frame.header:
                        self.abandon(frame.header["snapshot"])
            case Kind.DATA if number in self._open:
                if "position" in frame.header:
                    self.history = str(frame.header.get("history", self.history))
                yield Arrived(number, frame.header, frame.payload)
            case Kind.ANSWER if number in self._open and not frame.last:
                pass  # the broker has taken a subscription; its rows follow
            case Kind.ANSWER if number in self._open:
                self._open.discard(number)
                yield Answered(number, frame.header, frame.payload)
            case Kind.ERROR if number in self._open:
                self._open.discard(number)
                yield Refused(number, errors.from_header(frame.header))
            case _:
                reason = f"the broker sent {frame.kind.name} for request {number}, which is not open"
                yield self._ended(RemoteProtocolError(reason=reason))

    def _ended(self, error: TidemarkError) -> Ended:
        self.state = State.CLOSED
        unanswered = sorted(self._open - {self._hello})
        self._open.clear()
        return Ended(error, unanswered)

    def _number(self) -> int:
        self._numbers = self._numbers % 0xFFFFFFFF + 1
        taken = (self._open, self._dropped, self._refreshing)
        while any(self._numbers in numbers for numbers in taken):
            self._numbers = self._numbers % 0xFFFFFFFF + 1
        return self._numbers


def _farewell(header: Mapping[str, Any]) -> TidemarkError:
    if "error" in header:
        return errors.from_header(header)
    return RemoteProtocolError(reason=header.get("message", "the broker said goodbye"))
