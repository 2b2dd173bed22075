"""One connection that speaks the stream protocol: from behind the preamble to the last byte, without a socket.

`receive` cuts what arrives into frames and gives each request to `Requests`. An answer that promises something
is kept until the disk has it. What takes longer than a turn is a `Work`; works are run by `output`, in turn, a
batch each, while there is room to send.

    OPENING ──hello──► LOGIN ──verdict, virtual host──► OPEN ──GOODBYE──► FINISHING ──all is on disk──► CLOSED
       └──────────────────┴──────────an error, or an operator────────────────┴──GOODBYE with why─────────►┘

A request that fails is answered by an ERROR and hurts nobody else. Bytes that are no frames, a frame that makes
no sense and an exception that nobody expected end the connection with a GOODBYE that says why.

Back-pressure: works rest while `output_bytes_max` wait to be sent or the socket is full. Requests are taken one by
one while there is room for their answers, and only so many in a turn: the bytes of the others wait, and the socket
is not read meanwhile. While publishers must wait, or a commit before them is still being read from the disk, puts are
kept in their order, refused when that takes too long, and nothing more is taken when they and what that commit has read
hold `kept_bytes_max`.

Invariant: once `closed` is True the connection holds nothing of the broker: no session, snapshot or reader.
"""

from __future__ import annotations

import base64
from collections import deque
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, fields
from enum import Enum, auto
from typing import Any

from tidemark import __version__
from tidemark.errors import (
    CommandInvalid,
    ConnectionForced,
    DiskFull,
    InternalError,
    LoginRefused,
    NotAllowed,
    PublishersBlocked,
    TidemarkError,
)
from tidemark.frontend.services import ConnectionStatistics, Login, PeerInfo, Services, Verdict
from tidemark.frontend.stream import following
from tidemark.frontend.stream.fields import Fields, check_text
from tidemark.frontend.stream.requests import WRITES, Requests
from tidemark.frontend.stream.work import Work
from tidemark.model.wiring import MAIN, PermissionSpec
from tidemark.wire.stream.frames import Buffer, Frame, FrameReader, Kind, encode_frame, read_header

HELLO_BYTES_MAX = 64 << 10
"""Largest frame of a peer that has not logged in."""
FRONT_HELLO_BYTES_MAX = 4 << 20
MECHANISMS = ("PLAIN", "EXTERNAL")
VOUCHED = "FRONT"
"""The mechanism of a front that comes to another group than main when main has let its client in."""
UNREAD_FACTOR = 4
"""How many times `output_bytes_max` may wait for a peer that does not read before we take no more from it."""
FRAMES_A_TURN = 256
"""How many frames of one connection are taken before others have their turn."""
WORK_BYTES = 16 << 10
"""A work that is run counts as so many bytes of its connection's share, even when it has nothing to send."""
CLIENT_FACTS_MAX = 32
"""How many facts a client may tell about itself."""
CLIENT_FACT_CHARACTERS = 255


class State(Enum):
    OPENING = auto()
    LOGIN = auto()
    OPEN = auto()
    FINISHING = auto()
    CLOSED = auto()


@dataclass(slots=True)
class Kept:
    """A put that waits until publishers may go on, as the bytes that came: read, a header takes many times more."""

    request: int
    header: bytes
    payload: bytes
    until_ms: int
    reason: TidemarkError
    behind_work: bool = False
    """It only waits for a write that takes several turns."""

    @property
    def size(self) -> int:
        return len(self.header) + len(self.payload)


class StreamConnection:
    """A `FrontEnd`, and the `Link` of its requests."""

    def __init__(self, services: Services, peer: PeerInfo) -> None:
        self.services = services
        self.config = services.stream_config
        self.peer = peer
        self.closed = False
        self.state = State.OPENING
        # What a front tells of its client may be longer than what the client has told it: patterns are of any length.
        hello_bytes = FRONT_HELLO_BYTES_MAX if peer.front else HELLO_BYTES_MAX
        self._reader = FrameReader(min(hello_bytes, self.config.frame_bytes_max))
        self._unread = b""
        """What arrived and was not taken yet, from a frame's beginning on."""
        self._requests: Requests | None = None
        self._hello = 0
        """The request that asked for the login."""
        self._user = self._vhost = ""
        self._client: dict[str, Any] = {}
        self._open: dict[int, Work | None] = {}
        """Requests without an answer; None: it waits for the disk, or is kept."""
        self._ready: dict[Work, None] = {}
        self._journal_waits: deque[tuple[int, int, Mapping[str, Any]]] = deque()
        self._catalog_waits: deque[tuple[int, int, Mapping[str, Any]]] = deque()
        """(sequence to wait for, request, answer), in the order of the requests."""
        self._writing: Work | None = None
        """A write that takes several turns. Those after it are kept."""
        self._kept: deque[Kept] = deque()
        self._kept_bytes = 0
        self._blocked: str | None = None
        self._out: list[Any] = []
        self._out_bytes = 0
        self._writable = True
        self.bytes_in = self.bytes_out = 0
        self._connected_ms = self._heard_ms = self._sent_ms = self._closing_ms = services.now_ms

    # What comes in ---------------------------------------------------------------------------------

    def receive(self, data: memoryview) -> int:
        self._heard_ms = self.services.now_ms
        self.bytes_in += len(data)
        if self._unread:
            self._unread += data
        else:
            self._take_frames(data)
        return len(data)

    def _take_frames(self, data: memoryview) -> None:
        """Take frames while there is room; what is left waits for the next turn."""
        taken = 0
        try:
            for frame in self._reader.feed(data):
                self._take(frame)
                taken += 1
                if self.closed:
                    return
                if taken >= FRAMES_A_TURN or not self._has_room():
                    self._unread = bytes(data[self._reader.used :])
                    break
        except TidemarkError as error:
            self._fail(error)
        except Exception as error:
            self._fail(self._unexpected(error))
        if self._unread:
            self.services.touched(self)

    def _take_unread(self) -> None:
        unread, self._unread = self._unread, b""
        self._take_frames(memoryview(unread))

    def _has_room(self) -> bool:
        """Whether another frame may be taken: not while too much waits to be sent, or to be put."""
        held = self._kept_bytes + (self._reader.partial_bytes if self._blocked is not None else 0)
        if self._writing is not None:
            held += self._writing.held_bytes
        return (
            held <= self.config.kept_bytes_max
            and self._out_bytes <= UNREAD_FACTOR * self.config.output_bytes_max
        )

    def _take(self, frame: Frame) -> None:
        match frame.kind:
            case Kind.PING:
                self._send(Kind.PONG, frame.request, frame.header, [bytes(frame.payload)])
            case Kind.PONG:
                pass
            case Kind.GOODBYE:
                self._peer_leaves()
            case _ if self.state is State.FINISHING:
                pass  # nothing counts after the peer's GOODBYE
            case Kind.REQUEST:
                self._take_request(frame)
            case Kind.CREDIT if self.state is State.OPEN:
                self._take_credit(frame)
            case _:
                raise CommandInvalid(reason=f"a frame of kind {frame.kind.name} is not expected now")

    def _take_request(self, frame: Frame) -> None:
        if self.state is not State.OPEN:
            self._shake_hands(frame)
            return
        number = frame.request
        if not number or number in self._open:
            raise CommandInvalid(
                reason=f"request number {number} is {'in use' if number else 'not a number'}"
            )
        if len(self._open) >= self.config.requests_max:
            limit = self.config.requests_max
            error = NotAllowed(
                reason=f"{limit} requests of this connection are open; wait for one to be answered"
            )
            self._send_error(number, error)
            return
        self._open[number] = None
        op = frame.header.get("op")
        waits = self._blocked is not None or self._kept or self._writing is not None
        if waits and isinstance(op, str) and op in WRITES:
            why = self._blocked or "writes before this one wait"
            self._keep(
                frame,
                PublishersBlocked(
                    reason=f"publishers must wait ({why}); nothing was stored, send it again later"
                ),
            )
        else:
            self._perform(frame)

    def _perform(self, frame: Frame) -> None:
        """Do what a request asks; its error is its answer."""
        assert self._requests is not None
        try:
            check_text(frame.header, frame.text)
            self._requests.perform(frame.request, frame.header, frame.payload)
        except DiskFull as error:
            self._keep(frame, error)
        except TidemarkError as error:
            self.refuse(frame.request, error)

    def _take_credit(self, frame: Frame) -> None:
        more = Fields(frame.header, "credit").number("bytes")
        work = self._open.get(frame.request)
        if work is not None:  # else it has just been answered
            work.grant(more)

    # Login -----------------------------------------------------------------------------------------

    def _shake_hands(self, frame: Frame) -> None:
        check_text(frame.header, frame.text)
        hello = Fields(frame.header, "hello")
        op = hello.text("op")
        if self.state is not State.OPENING or op != "hello" or not frame.request:
            raise CommandInvalid(reason=f"'{op}' is not expected before the answer to 'hello'")
        mechanism = hello.text("mechanism", "PLAIN")
        if mechanism == VOUCHED and self.peer.front and self.services.broker.group != MAIN:
            self._admit_vouched(frame.request, hello)
            return
        if mechanism not in MECHANISMS:
            raise hello.wrong("mechanism", " or ".join(MECHANISMS))
        password = hello.raw("password") or ""
        if not isinstance(password, str):
            raise CommandInvalid(reason="hello: field 'password' must be text")
        group = hello.text("group", "")
        if group and group != self.services.broker.group and not self.peer.front:
            # A front asks main about its client before it goes to the group that the client wants.
            raise NotAllowed(
                reason=f"this is a broker of group '{self.services.broker.group}', not of '{group}'; connect to a front"
            )
        self._begin_login(frame.request, hello)
        self.services.authenticate(self, Login(mechanism, hello.text("user", ""), password, self.peer))

    def _begin_login(self, request: int, hello: Fields) -> None:
        self._client = _client_facts(hello.raw("client"))
        self._vhost = hello.text("vhost", "/")
        self._hello = request
        self.state = State.LOGIN

    def _admit_vouched(self, request: int, hello: Fields) -> None:
        """Main has let the client in, says a front that has proven who it is; what follows are the client's own words."""
        self._begin_login(request, hello)
        user, allowed = hello.text("user"), hello.inner("permissions")
        self._admit(
            user,
            PermissionSpec(
                user, self._vhost, allowed.long("configure"), allowed.long("write"), allowed.long("read")
            ),
        )

    def verdict(self, verdict: Verdict) -> None:
        if self.state is not State.LOGIN:
            return
        if verdict.user is None:
            self.services.note("warning", "login refused", connection=str(self.peer), reason=verdict.reason)
            self._leave(LoginRefused(reason="the login was refused; the broker's log has the details"))
            return
        self._admit(verdict.user)

    def _admit(self, user: str, patterns: PermissionSpec | None = None) -> None:
        """Open the virtual host, if this user may."""
        try:
            session = self.services.broker.open_session(
                self._vhost, user, self, str(self.peer), "stream", patterns=patterns
            )
            self._requests = Requests(self, session)
        except TidemarkError as error:
            self._fail(error)
            return
        self._user = user
        self._reader.frame_bytes_max = self.config.frame_bytes_max
        self._blocked = self.services.broker.blocked
        self.state = State.OPEN
        cluster = self.members()
        self._send(
            Kind.ANSWER,
            self._hello,
            {
                "node": self.services.name,
                "group": self.services.broker.group,
                "version": __version__,
                "cluster": [one["address"] for one in cluster["members"] if one["address"]],
                **cluster,
                "history": self.services.broker.streams.history.hex(),
                "frame_max": self.config.frame_bytes_max,
                "heartbeat_s": self.config.heartbeat_s,
            },
            last=True,
        )
        self.services.note(
            "info",
            "connection opened",
            connection=str(self.peer),
            protocol="stream",
            user=user,
            vhost=self._vhost,
        )

    # What requests ask: the Link -------------------------------------------------------------------

    def answer(self, request: int, header: Mapping[str, Any], payload: Sequence[Buffer] = ()) -> None:
        self._forget(request)
        self._send(Kind.ANSWER, request, header, payload, last=True)

    def refuse(self, request: int, error: TidemarkError) -> None:
        self._forget(request)
        self._send_error(request, error)

    def data(self, request: int, header: Mapping[str, Any], payload: Sequence[Buffer]) -> None:
        self._send(Kind.DATA, request, header, payload)

    def answer_when_durable(
        self, request: int, header: Mapping[str, Any], *, journal: int = 0, catalog: int = 0
    ) -> None:
        if self._open.get(request) is not None:
            self._over(request)
            self._open[request] = None
        if journal or catalog:
            logs = {"journal": journal, "catalog": catalog}
            header = {**header, **{log: seq for log, seq in logs.items() if seq}}
        if journal and journal > self.services.journal_durable():
            self._journal_waits.append((journal, request, header))
        elif catalog and catalog > self.services.catalog_durable():
            self._catalog_waits.append((catalog, request, header))
        else:
            self.answer(request, header)
            return
        self.services.waiting(self)

    def begin(self, work: Work) -> None:
        self._open[work.request] = work
        if work.writes:
            self._writing = work
        self.wake(work)
        if work.awaits_disk:
            self.services.waiting(self)

    def wake(self, work: Work) -> None:
        if work not in self._ready:
            self._ready[work] = None
            self.services.touched(self)

    def cancel(self, request: int) -> None:
        """The peer wants no more of a request that is work.

        Raises:
            CommandInvalid: there is no such work.
        """
        if self._open.get(request) is None:
            raise CommandInvalid(reason=f"request {request} is not open, or cannot be closed")
        self.answer(request, {"closed": True})

    def members(self) -> dict[str, Any]:
        told = following.told(self.services.topology(), self.services, self.peer.tls, _address(self.peer))
        if self.peer.front:
            # Its way is through a front: members may be out of its reach, and those of other groups do not know it.
            told["members"] = [{**one, "address": ""} for one in told["members"]]
        return told

    def works(self) -> list[Work]:
        return [work for work in self._open.values() if work is not None]

    @property
    def blocked(self) -> str | None:
        return self._blocked

    def _forget(self, request: int) -> None:
        self._over(request)
        self._open.pop(request, None)

    def _over(self, request: int) -> None:
        """If the request is work, then not any more."""
        work = self._open.get(request)
        if work is None:
            return
        self._ready.pop(work, None)
        if self._writing is work:
            self._writing = None
            self.services.touched(self)  # those after it may go on
        work.close()

    # Puts that wait ----------------------------------------------------------------------------------

    def _keep(self, frame: Frame, reason: TidemarkError) -> None:
        """Publishers must wait: so does this put, and every one after it."""
        until_ms = self.services.now_ms + self.config.blocked_s_max * 1000
        kept = Kept(frame.request, bytes(frame.text), bytes(frame.payload), until_ms, reason)
        kept.behind_work = self._writing is not None or bool(self._kept and self._kept[-1].behind_work)
        self._kept_bytes += kept.size
        self._kept.append(kept)

    def _try_kept(self) -> None:
        """Puts that waited, in their order, until one must wait again."""
        kept, self._kept = self._kept, deque()
        self._kept_bytes = 0
        while kept and not self._kept and self._writing is None:
            one = kept.popleft()
            text = memoryview(one.header)
            self._perform(
                Frame(Kind.REQUEST, 0, one.request, read_header(text), memoryview(one.payload), text)
            )
            if self._kept:
                self._kept[0].until_ms = one.until_ms
        for one in kept:
            one.behind_work = one.behind_work or self._writing is not None
            self._kept_bytes += one.size
            self._kept.append(one)
        self.services.touched(self)
        if self.state is State.FINISHING:
            self._finish()

    # What the node and the shell say -----------------------------------------------------------------

    def durable(self) -> None:
        self._send_durable(self._journal_waits, self.services.journal_durable())
        self._send_durable(self._catalog_waits, self.services.catalog_durable())
        waiting = bool(self._journal_waits or self._catalog_waits)
        for work in self.works():
            if work.awaits_disk:
                work.durable()
                waiting = True
        if self.state is State.FINISHING:
            self._finish()
        if waiting:
            self.services.waiting(self)

    def _send_durable(self, waits: deque[tuple[int, int, Mapping[str, Any]]], durable: int) -> None:
        while waits and waits[0][0] <= durable:
            _, request, header = waits.popleft()
            self.answer(request, header)

    def store_failed(self, reason: str) -> None:
        self.shutdown(InternalError.amqp091, reason)

    def tick(self, now_ms: int) -> None:
        config = self.config
        match self.state:
            case State.OPENING | State.LOGIN:
                if now_ms - self._connected_ms > config.handshake_s_max * 1000:
                    self._end("the login took too long")
            case State.FINISHING:
                if now_ms - self._closing_ms > config.close_s_max * 1000:
                    self._give_up()
            case State.OPEN:
                self._tick_open(now_ms)

    def _tick_open(self, now_ms: int) -> None:
        config = self.config
        if not self.wants_read():
            self._heard_ms = now_ms  # it may speak, but we do not listen
        elif config.silent_s_max and now_ms - self._heard_ms > config.silent_s_max * 1000:
            self._leave(ConnectionForced(reason=f"nothing was heard for {config.silent_s_max} s"))
            return
        for work in self.works():
            work.tick(now_ms)
        while self._kept and now_ms >= self._kept[0].until_ms:
            late = self._kept.popleft()
            self._kept_bytes -= late.size
            self.refuse(late.request, late.reason)
        if self._kept and self._blocked is None and self._writing is None:
            self.block(None)
            if self.closed:
                return
        if config.heartbeat_s and self._writable and now_ms - self._sent_ms >= config.heartbeat_s * 1000:
            self._send(Kind.PING, 0, {})

    def output(self) -> list[Any]:
        if self._kept and self._kept[0].behind_work and self._writing is None and self._blocked is None:
            self.block(None)
        if self._unread and self._writable and self._has_room():
            self._take_unread()
        if self._ready and self._writable:
            self._read_on()
        if not self._writable and not self.closed:
            return []
        out, self._out = self._out, []
        if out:
            self.bytes_out += self._out_bytes
            self._out_bytes = 0
            self._sent_ms = self.services.now_ms
        if self._unread and self._has_room():
            self.services.touched(self)
        return out

    def _read_on(self) -> None:
        """Let works go on, when it is our turn."""
        pace = self.services.pace
        pace.join(self)
        arena = self.services.arena
        share = pace.share(self, arena.turn, arena.next_seq)
        if share:
            self._run_works(share)
        if self._ready:
            self.services.touched(self)
        else:
            pace.leave(self)

    def _run_works(self, share: int) -> None:
        """A slice for each work that can go on, as far as there is room; who had one goes to the end."""
        enough = min(share, self.config.output_bytes_max)
        for count, work in enumerate(list(self._ready)):
            if self._out_bytes >= enough or count * WORK_BYTES >= enough:
                break
            if work not in self._ready:
                continue  # an earlier one has ended it
            del self._ready[work]
            try:
                again = work.run(enough)
            except TidemarkError as error:
                self.refuse(work.request, error)
            except Exception as error:
                self._fail(self._unexpected(error))
                return
            else:
                if again and self._open.get(work.request) is work:
                    self._ready[work] = None
        if self.state is State.FINISHING:
            self._finish()

    def wants_read(self) -> bool:
        return not self._unread and self._has_room()

    def writable(self, yes: bool) -> None:
        self._writable = yes
        if yes:
            self.services.touched(self)
        else:
            self.services.pace.leave(self)

    def block(self, reason: str | None) -> None:
        self._blocked = reason
        if reason is None and self._writing is not None:
            self.wake(self._writing)
        elif reason is None and self._kept:
            try:
                self._try_kept()
            except Exception as error:
                self._fail(self._unexpected(error))

    # The end -------------------------------------------------------------------------------------------

    def shutdown(self, code: int, text: str) -> None:
        if self.state is State.OPENING:
            self._end(text)
        elif self.state is not State.CLOSED:
            kind = InternalError if code == InternalError.amqp091 else ConnectionForced
            self._leave(kind(reason=text))

    def receive_eof(self) -> None:
        self._end("the peer closed the socket")

    def _unexpected(self, error: Exception) -> InternalError:
        self.services.note("error", "unexpected exception", connection=str(self.peer), error=error)
        return InternalError(reason="the broker failed; its log has the details")

    def _fail(self, error: TidemarkError) -> None:
        if not self.closed:
            self.services.note("warning", "connection failed", connection=str(self.peer), error=error)
            self._leave(error)

    def _peer_leaves(self) -> None:
        if self.state is not State.OPEN:
            self._leave(None)
            return
        self.state = State.FINISHING
        self._closing_ms = self.services.now_ms
        for work in self.works():
            if not work.writes:
                self._forget(work.request)
        self._finish()

    def _give_up(self) -> None:
        """The peer wants to go, but some of what it put cannot be stored now: tell it which."""
        while self._kept:
            late = self._kept.popleft()
            self.refuse(late.request, late.reason)
        self._leave(
            ConnectionForced(reason="what was on its way to the disk took too long; it may be stored")
        )

    def _finish(self) -> None:
        """Answer the peer's GOODBYE when everything that it put is on the disk."""
        if not self._open:
            self._leave(None)

    def _leave(self, error: TidemarkError | None) -> None:
        """Our last words."""
        self._send(Kind.GOODBYE, 0, {} if error is None else told(error))
        self._end("closed by the peer" if error is None else str(error))

    def _end(self, why: str) -> None:
        if self.closed:
            return
        self.closed = True
        self.state = State.CLOSED
        self.services.pace.leave(self)
        works = self.works()
        self._open.clear()
        self._ready.clear()
        self._writing = None
        self._kept.clear()
        self._kept_bytes = 0
        self._unread = b""
        self._journal_waits.clear()
        self._catalog_waits.clear()
        for work in works:
            try:
                work.close()
            except Exception as error:  # what the others hold must go all the same
                self._unexpected(error)
        if self._requests is not None:
            self._requests.close()
            self._requests = None
        self.services.touched(self)
        self.services.note("info", "connection closed", connection=str(self.peer), why=why)

    # What goes out -------------------------------------------------------------------------------------

    def _send(
        self,
        kind: Kind,
        request: int,
        header: Mapping[str, Any],
        payload: Sequence[Buffer] = (),
        last: bool = False,
    ) -> None:
        if not self._out:
            self.services.touched(self)
        parts = encode_frame(kind, request, header, payload, last)
        self._out += parts
        self._out_bytes += sum(len(part) for part in parts)

    def _send_error(self, request: int, error: TidemarkError) -> None:
        self._send(Kind.ERROR, request, told(error), last=True)

    def statistics(self) -> ConnectionStatistics:
        return ConnectionStatistics(
            name=str(self.peer),
            user=self._user,
            vhost=self._vhost,
            state="blocked" if self._kept else self.state.name.lower(),
            peer=self.peer,
            protocol="TIDE 1.0",
            client_properties=self._client,
            connected_ms=self._connected_ms,
            channel_max=0,
            frame_max=self.config.frame_bytes_max,
            heartbeat_s=self.config.heartbeat_s,
            bytes_in=self.bytes_in,
            bytes_out=self.bytes_out,
            channels=(),
        )


def _client_facts(client: Any) -> dict[str, Any]:
    """What a client says about itself, as far as it is short and plain."""
    if not isinstance(client, dict):
        return {}
    return {
        name[:CLIENT_FACT_CHARACTERS]: value[:CLIENT_FACT_CHARACTERS] if isinstance(value, str) else value
        for name, value in list(client.items())[:CLIENT_FACTS_MAX]
        if isinstance(value, str | int | float | bool)
        and not (isinstance(value, int) and value.bit_length() > 64)
    }


def told(error: TidemarkError) -> dict[str, Any]:
    """An error as a peer gets it: its code, its sentence, its facts."""
    facts = {field.name: _fact(getattr(error, field.name)) for field in fields(error)}
    return {**facts, "error": error.code, "message": str(error)}


def _fact(value: Any) -> Any:
    if isinstance(value, bytes):
        return base64.b64encode(value).decode()
    return value if isinstance(value, str | int | float | bool | None) else str(value)


def _address(peer: PeerInfo) -> str:
    host = f"[{peer.local_host}]" if ":" in peer.local_host else peer.local_host
    return f"{host}:{peer.local_port}"
