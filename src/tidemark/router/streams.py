"""One client of a front that speaks the stream protocol: main lets it in, and its bytes go to the leader of one group.

    client ──► StreamRouter ──► StreamLink to main           asked who the client is
                          └───► StreamLink to another group  that the client's hello has named; main's is closed then

    OPENING ──hello──► ASKING main ──lets it in──────────────────────────────────────────► OPEN ──either side ends──► CLOSED
                          └──lets it in, another group──► GOING there ──its leader is told──► OPEN

Users and permissions are main's, and only main sees the password. The leader of another group takes the front's word for who the
client is and what main lets it do, in a hello of the front's own (mechanism FRONT); nothing that the client says gets there
before that. From then on bytes are passed on unread, both ways. When main's mind about the user changes the connection is
cut: who connects again is asked again.

Back-pressure: a side that does not read stops the other side's reading.

Invariant: the client's own hello goes to main and to nobody else, and bytes of a client go to one leader only.
"""

from __future__ import annotations

from collections.abc import Sequence
from enum import Enum, auto
from typing import Any

from tidemark.broker.wiring_copy import Admission
from tidemark.errors import (
    AccessRefused,
    CommandInvalid,
    ConnectionForced,
    LoginRefused,
    NotFound,
    NotHere,
    TidemarkError,
)
from tidemark.frontend.services import PeerInfo
from tidemark.frontend.stream.connection import HELLO_BYTES_MAX, VOUCHED, told
from tidemark.frontend.stream.fields import Fields, check_text
from tidemark.router.connection import Outside
from tidemark.router.wiring import MAIN
from tidemark.wire.stream.frames import PREAMBLE, READER_PREAMBLE, Frame, FrameReader, Kind, encode_frame

WAITING_BYTES_MAX = 1 << 20
"""How much may wait to be sent to one side before the other side is read no further."""
ANSWER_BYTES_MAX = 4 << 20
"""The largest answer to a hello: it names all members."""


class State(Enum):
    OPENING = auto()
    ASKING = auto()
    GOING = auto()
    OPEN = auto()
    CLOSED = auto()


class StreamRouter:
    def __init__(self, outside: Outside, peer: PeerInfo) -> None:
        self.outside = outside
        self.peer = peer
        self.closed = False
        """Send `output()`, then close the socket."""
        self.state = State.OPENING
        self.link: StreamLink | None = None
        self.bytes_in = self.bytes_out = 0
        self.user = ""
        self._preamble = b""
        self._reader = FrameReader(HELLO_BYTES_MAX)
        self._hello: dict[str, Any] = {}
        self._request = 0
        self._group = MAIN
        self._vhost = "/"
        self._admission: Admission | None = None
        """What main let the user do when the leader of another group was told."""
        self._held: list[bytes] = []
        """What the client said before there was anybody to hear it."""
        self._answer = FrameReader(ANSWER_BYTES_MAX)
        self._out: list[bytes] = []
        self._out_bytes = 0
        self._writable = True
        self._began_ms = outside.now_ms

    @property
    def now_ms(self) -> int:
        return self.outside.now_ms

    # What the client says ----------------------------------------------------------------------------

    def receive(self, data: memoryview) -> int:
        self.bytes_in += len(data)
        if self.state is State.OPEN:
            assert self.link is not None
            self.link.send(bytes(data))
        elif self.state is State.OPENING:
            try:
                self._open(data)
            except TidemarkError as error:
                self._leave(error)
        elif self.state is not State.CLOSED:
            self._hold(bytes(data))
        return len(data)

    def _hold(self, data: bytes) -> None:
        """Something of a client that nobody has let in yet."""
        self._held.append(data)
        if sum(map(len, self._held)) > HELLO_BYTES_MAX:
            self._leave(CommandInvalid(reason="wait for the answer to 'hello' before you send so much"))

    def _open(self, data: memoryview) -> None:
        if len(self._preamble) < len(PREAMBLE):
            missing = len(PREAMBLE) - len(self._preamble)
            self._preamble += data[:missing]
            data = data[missing:]
            if len(self._preamble) < len(PREAMBLE):
                return
            if self._preamble not in (PREAMBLE, READER_PREAMBLE):
                self._say(PREAMBLE)
                self._end("another version of the stream protocol")
                return
        for frame in self._reader.feed(data):
            if frame.kind is Kind.GOODBYE:
                self._leave(None)
                return
            self._log_in(frame)
            rest = bytes(data[self._reader.used :])
            if rest and not self.closed:
                self._hold(rest)
            return

    def _log_in(self, frame: Frame) -> None:
        check_text(frame.header, frame.text)
        hello = Fields(frame.header, "hello")
        op = hello.text("op")
        if frame.kind is not Kind.REQUEST or op != "hello" or not frame.request:
            raise CommandInvalid(reason=f"'{op}' is not expected before the answer to 'hello'")
        self.user, self._vhost = hello.text("user", ""), hello.text("vhost", "/")
        self._group = hello.text("group", "") or MAIN
        self._hello, self._request = dict(frame.header), frame.request
        if hello.text("mechanism", "PLAIN") != "PLAIN":
            raise CommandInvalid(
                reason="a front takes the mechanism PLAIN only; connect to a member of 'main'"
            )
        refusal = self.outside.may_come(self.user, self.peer)
        if refusal is not None:
            self.outside.note("warning", "login refused", connection=str(self.peer), reason=refusal)
            raise LoginRefused(reason="the login was refused; the front's log has the details")
        self.state = State.ASKING
        words = [self._preamble, *encoded(Kind.REQUEST, frame.request, self._hello)]
        self._go_to(MAIN, words)

    def _go_to(self, group: str, words: Sequence[bytes]) -> None:
        self.link = StreamLink(self, group, words)
        self._answer = FrameReader(ANSWER_BYTES_MAX)
        self.outside.dial(self.link, "")

    # What the leader says --------------------------------------------------------------------------------

    def link_heard(self, link: StreamLink, data: memoryview) -> None:
        if link is not self.link:
            return  # it has done its work
        if self.state is State.OPEN:
            self._say(bytes(data))
            return
        try:
            self._take_answer(link, data)
        except TidemarkError as error:
            self.link_lost(link, f"it sent what makes no sense: {error}")

    def _take_answer(self, link: StreamLink, data: memoryview) -> None:
        """The answer to a hello, main's or that of the group's leader."""
        for frame in self._answer.feed(data):
            if frame.kind is Kind.PING:
                continue
            words = encoded(frame.kind, frame.request, frame.header, frame.last)
            if frame.header.get("error") == NotHere.code:
                link.drop()
                self.link_lost(link, str(frame.header.get("message", "")))
                return
            if frame.kind is not Kind.ANSWER:
                if frame.header.get("error") == LoginRefused.code:
                    self.outside.came(self.user, self.peer, False)
                self._say(*words)
                self._end("not let in")
                return
            if self.state is State.ASKING:
                self.outside.came(self.user, self.peer, True)
                if self._group != MAIN:
                    self._let_in(link)
                    return
            self._opened(link, [*words, bytes(data[self._answer.used :])])
            return

    def _opened(self, link: StreamLink, words: list[bytes]) -> None:
        self.state = State.OPEN
        link.opened = True
        self._say(*(part for part in words if part))
        held, self._held = self._held, []
        for part in held:
            link.send(part)
        self._hello = {}
        self.outside.note(
            "info", "connection opened", connection=str(self.peer), protocol="stream", user=self.user,
            vhost=self._vhost, group=self._group,
        )  # fmt: skip

    def _let_in(self, link: StreamLink) -> None:
        """Main has nothing against the client, who wants to go to another group."""
        self.state = State.GOING
        self.link = None
        link.finish()
        # What main lets the user do is in the copy, if that is as new as main's answer.
        self.outside.wiring.fresh(self._vouch)

    def _vouch(self) -> None:
        if self.closed:
            return
        try:
            wiring = self.outside.wiring
            if self._group not in wiring.groups:
                there = ", ".join(f"'{group}'" for group in wiring.groups)
                raise NotFound(reason=f"no group '{self._group}' in this cluster; there is {there}")
            self._admission = admission = wiring.admission(self._vhost, self.user)
            if admission is None:
                raise AccessRefused(reason=f"access to vhost '{self._vhost}' refused for user '{self.user}'")
        except TidemarkError as error:
            self._leave(error)
            return
        allowed = admission.patterns
        hello = {
            "op": "hello",
            "mechanism": VOUCHED,
            "user": self.user,
            "vhost": self._vhost,
            "client": self._hello.get("client"),
            "permissions": {
                "configure": allowed.configure,
                "write": allowed.write,
                "read": allowed.read,
            },
        }
        self._go_to(self._group, [PREAMBLE, *encoded(Kind.REQUEST, self._request, hello)])

    def link_lost(self, link: StreamLink, why: str) -> None:
        if link is not self.link or self.closed:
            return
        if self.state is State.OPEN:
            # It has said goodbye, or was cut off, maybe in the middle of a frame: there is no place for words of ours.
            self._end(f"the leader of group '{link.group}': {why}")
        elif self.now_ms - link.began_ms < self.outside.dial_s_max * 1000 and link.tries:
            self._answer = FrameReader(ANSWER_BYTES_MAX)
            link.again()
            # A member that does not lead may have said who does.
            self.outside.dial(link, why)
        else:
            self._leave(
                ConnectionForced(
                    reason=f"the leader of group '{link.group}' cannot be reached: {why}; try again"
                )
            )

    # What the shell says -----------------------------------------------------------------------------------

    def receive_eof(self) -> None:
        self._end("the peer closed the socket")

    def tick(self, now_ms: int) -> None:
        if self.state is State.OPEN:
            if self._admission is not None and self._admission != self._admission_now():
                self._end("main lets the user do something else now")
        elif self.state is State.OPENING:
            if now_ms - self._began_ms > self.outside.config.handshake_s_max * 1000:
                self._end("the handshake took too long")
        elif self.state is State.GOING and self.link is None and self._is_late(now_ms):
            self._leave(ConnectionForced(reason="this front has not heard of main's wiring; connect again"))
        elif self.state is not State.CLOSED and self._is_late(now_ms, self.outside.config.handshake_s_max):
            self._leave(ConnectionForced(reason="the leader did not answer in time; connect again"))

    def _is_late(self, now_ms: int, more_s: int = 0) -> bool:
        return now_ms - self._began_ms > (self.outside.dial_s_max + more_s) * 1000

    def _admission_now(self) -> Admission | None:
        return self.outside.wiring.admission(self._vhost, self.user)

    def output(self) -> list[bytes]:
        if not self._writable and not self.closed:
            return []
        out, self._out = self._out, []
        self.bytes_out += self._out_bytes
        self._out_bytes = 0
        return out

    def wants_read(self) -> bool:
        if self.state is State.OPEN:
            assert self.link is not None
            return self.link.has_room
        return self.state is State.OPENING

    def writable(self, yes: bool) -> None:
        self._writable = yes
        self.outside.touched(self)

    @property
    def has_room(self) -> bool:
        return self._writable and self._out_bytes < WAITING_BYTES_MAX

    def shutdown(self, _code: int, text: str) -> None:
        """End the connection from our side; with words, unless that could be in the middle of the leader's."""
        if self.state is State.OPEN:
            self._end(text)
        elif not self.closed:
            self._leave(ConnectionForced(reason=text))

    @property
    def links(self) -> dict[str, StreamLink]:
        """The one that it uses now, by its group."""
        return {} if self.link is None else {self.link.group: self.link}

    def statistics(self) -> dict[str, Any]:
        return {
            "peer": str(self.peer),
            "protocol": "TIDE 1.0",
            "user": self.user,
            "vhost": self._vhost,
            "state": self.state.name.lower(),
            "bytes_in": self.bytes_in,
            "bytes_out": self.bytes_out,
            "links": {group: "open" if link.opened else "opening" for group, link in self.links.items()},
        }

    # The end -------------------------------------------------------------------------------------------

    def _leave(self, error: TidemarkError | None) -> None:
        self._say(*encoded(Kind.GOODBYE, 0, {} if error is None else told(error)))
        self._end("closed by the peer" if error is None else str(error))

    def _end(self, why: str) -> None:
        if self.closed:
            return
        self.closed = True
        self.state = State.CLOSED
        self._held = []
        self._hello = {}
        if self.link is not None:
            self.link.drop()
        self.outside.touched(self)
        self.outside.note("info", "connection closed", connection=str(self.peer), why=why)

    def _say(self, *parts: bytes) -> None:
        self._out += parts
        self._out_bytes += sum(map(len, parts))
        self.outside.touched(self)


class StreamLink:
    """A connection to the leader of a group, for one client. Fits what `FrontServer` dials."""

    def __init__(self, owner: StreamRouter, group: str, words: Sequence[bytes]) -> None:
        """`words`: what the leader is told first, whichever member that is."""
        self.owner = owner
        self.group = group
        self.closed = False
        self.opened = False
        """The leader has let the client in."""
        self.tries = 0
        """How many members it has had a socket to."""
        self.began_ms = owner.now_ms
        self._words = list(words)
        self._out: list[bytes] = []
        self._out_bytes = 0
        self._writable = True

    def connected(self) -> None:
        self.tries += 1
        self._out, self._out_bytes = [], 0
        self._writable = True
        self.send(*self._words)

    def again(self) -> None:
        """It is dialled once more."""
        self.closed = False

    def receive(self, data: memoryview) -> int:
        if not self.closed:
            self.owner.link_heard(self, data)
        return len(data)

    def receive_eof(self) -> None:
        if not self.closed:
            self.lose("it closed the connection")

    def lose(self, why: str) -> None:
        """The leader is of no use any more."""
        self.drop()
        self.owner.link_lost(self, why)

    def finish(self) -> None:
        """Say goodbye and hang up."""
        if not self.closed:
            self.send(*encoded(Kind.GOODBYE, 0, {}))
            self.drop()

    def drop(self) -> None:
        if not self.closed:
            self.closed = True
            self.owner.outside.touched(self)

    def send(self, *parts: bytes) -> None:
        self._out += parts
        self._out_bytes += sum(map(len, parts))
        self.owner.outside.touched(self)

    @property
    def has_room(self) -> bool:
        return self._writable and self._out_bytes < WAITING_BYTES_MAX

    def output(self) -> list[bytes]:
        if not self._writable and not self.closed:
            return []
        out, self._out = self._out, []
        self._out_bytes = 0
        return out

    def writable(self, yes: bool) -> None:
        self._writable = yes
        self.owner.outside.touched(self)

    def wants_read(self) -> bool:
        return self.owner.state is not State.OPEN or self.owner.has_room


def encoded(kind: Kind, request: int, header: dict[str, Any], last: bool = False) -> list[bytes]:
    return [bytes(part) for part in encode_frame(kind, request, header, last=last)]
