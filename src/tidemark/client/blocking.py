"""The blocking client: plain calls from any number of threads over one socket.

Whoever waits for an answer reads the socket, for everybody: while one thread reads, the others sleep until it has
something for them or gives up the place. Whoever sends while another sends leaves his bytes in the queue, which the other
empties. There is no thread of our own, but for the moment in which others are asked about a member that says nothing.

A connection that breaks is replaced by the next call that needs one, over the list of addresses; of a cluster, the one
that leads is found (`cluster.py`). What does no harm when done twice is sent again; a write whose answer is lost raises
`Unconfirmed`, unless a `Producer` numbered it. Reads have a connection of their own when they may go to members that
do not lead.

Invariant: at most one thread reads the socket, and at most one writes it.
"""

from __future__ import annotations

import contextlib
import select
import socket
import ssl
import threading
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from datetime import datetime
from functools import partial
from types import TracebackType
from typing import TYPE_CHECKING, Any, Generic, NamedTuple, Self, TypeVar

from tidemark.client import operations as ops
from tidemark.client import protocol
from tidemark.client.address import Address, Endpoints, Target, parse_url
from tidemark.client.cluster import (
    DIRECT_S_MAX,
    NOT_LET_IN,
    Cluster,
    Dialling,
    Inquiry,
    ReadFrom,
    Seen,
    read_from_of,
)
from tidemark.client.errors import ClientClosed, NotConnected, TimedOut
from tidemark.client.exchange import Exchange, Pending
from tidemark.client.numbering import Numbering
from tidemark.client.operations import Call, Changes, Header, Named, Numbered, View, stream_name
from tidemark.client.partitioned import Partitioned
from tidemark.client.passes import OfDiff, OfSnapshot, OfView, Passes
from tidemark.client.reading import (
    Batch,
    Commit,
    Following,
    OnReset,
    Position,
    Progress,
    Range,
    Reading,
    Start,
    moment_of,
    place_of,
    position_of,
)
from tidemark.client.rows import ROW_COLUMNS, package
from tidemark.client.splitting import Unseen
from tidemark.client.values import (
    Bytes,
    Cut,
    Head,
    KeyRule,
    Lag,
    Mark,
    MemberInfo,
    PinInfo,
    Receipt,
    Row,
    Safety,
    StreamInfo,
)
from tidemark.client.waiting import (
    ASK_AGAIN_S,
    ASK_LEADER,
    MAKE_AFTER_S,
    SAFE_WAIT_S,
    TAIL_AGAIN_S,
    Lost,
    NoAnswerYet,
    Refusals,
    Tries,
    left_until,
    sentence_of,
)
from tidemark.errors import (
    AccessRefused,
    MemberBehind,
    NotATail,
    NotFound,
    NotHere,
    PinExpired,
    PreconditionFailed,
    StreamElsewhere,
    StreamReset,
    TidemarkError,
)
from tidemark.model.wiring import MAIN

if TYPE_CHECKING:
    import pyarrow as pa

T = TypeVar("T")
Frame = tuple[Header, memoryview]

READ_BYTES = 256 << 10
FLUSH_S = 10.0
"""A broker that does not take a few bytes for so long is given up."""


# One connection -------------------------------------------------------------------------------------


class Link(Exchange[Pending]):
    """One socket and its machine, shared by threads. It is thrown away when it breaks."""

    def __init__(
        self, sock: socket.socket, machine: protocol.Connection, address: Address, seen: Seen, *, reads: bool
    ) -> None:
        super().__init__(machine, address, seen, reads=reads, pending=Pending)
        sock.setblocking(False)
        self._socket = sock
        self._changed = threading.Condition()
        self._reading = self._sending = False
        # OpenSSL must not be entered from two threads at once; a plain socket may.
        self._entry: Any = threading.Lock() if isinstance(sock, ssl.SSLSocket) else contextlib.nullcontext()

    def open(self, deadline: float) -> None:
        """Log in.

        Raises:
            Lost, NoAnswerYet, TidemarkError: `refused` tells why.
        """
        self._flush(deadline)
        self._until(lambda: self._machine.state is not protocol.State.GREETING, deadline)
        self._check_login()

    def alive(self) -> bool:
        """Whether it still works, as far as can be known without waiting: a goodbye may have come since."""
        with contextlib.suppress(NoAnswerYet):
            self._until(lambda: False, 0.0)
        return self.broken is None

    def start(self, header: Header, payload: Sequence[Any] = (), deadline: float | None = None) -> Pending:
        """Send a request and do not wait for its answer.

        Raises:
            Lost: the connection was broken before; nothing was sent.
            RequestTooLarge: nothing was sent.
        """
        with self._changed:
            pending = self._ask(header, payload)
        self._flush(deadline)
        return pending

    def result(self, pending: Pending, deadline: float | None) -> tuple[Header, memoryview]:
        """Wait for the answer.

        Raises:
            Lost, NoAnswerYet, TidemarkError: the broker's refusal.
        """
        self._until(lambda: pending.done, deadline)
        return pending.outcome()

    def next(self, pending: Pending, deadline: float | None) -> tuple[Header, memoryview] | None:
        """Wait for the next part of an answer; None when the answer is complete.

        Raises:
            Lost, NoAnswerYet, TidemarkError: the broker's refusal.
        """
        if not pending.frames:
            self._until(lambda: bool(pending.frames) or pending.done, deadline)
        if pending.frames:
            return pending.frames.popleft()
        self.result(pending, deadline)
        return None

    def cancel(self, pending: Pending) -> None:
        """Whoever waits for this answer waits no longer: he finds it lost."""
        with self._changed:
            sends = self._forget(pending, close=True)
            pending.lost = "nobody wants it any more"
            self._changed.notify_all()
        if sends:
            # The answer to this wakes the thread that reads.
            self._flush(time.monotonic() + FLUSH_S)

    def credit(self, pending: Pending, size: int) -> None:
        with self._changed:
            if self.broken is not None:
                return
            self._machine.credit(pending.number, size)
        self._flush(time.monotonic() + FLUSH_S)

    def drop(self, pending: Pending, *, close: bool = True) -> None:
        """Nobody wants the rest of this answer; `close` tells the broker to stop."""
        with self._changed:
            if not self._forget(pending, close=close):
                return
        self._flush(time.monotonic() + FLUSH_S)

    def replaced(self, why: str) -> None:
        """Another one is to be used instead, unless this one has said something since."""
        with self._changed:
            if self.doubtful:
                self.silent = True
                self._fail(why)

    def close(self) -> None:
        with self._changed:
            if self.broken is None:
                self._machine.goodbye()
        with contextlib.suppress(NoAnswerYet):
            self._flush(time.monotonic() + 1)
        self._fail("the client was closed")

    # Bytes ----------------------------------------------------------------------------------------

    def _until(self, ready: Callable[[], bool], deadline: float | None) -> None:
        """Read the socket, or wait for the thread that does, until `ready`."""
        changed = self._changed
        while True:
            with changed:
                while not ready() and self.broken is None and self._reading:
                    if not changed.wait(left_until(deadline)):
                        raise NoAnswerYet
                if ready() or self.broken is not None:
                    return
                self._reading = True
            data: bytes | None = None
            problem = "the broker closed the connection"
            try:
                until = self._pulse.until(deadline)
                data = self._attempt(lambda: self._socket.recv(READ_BYTES), select.POLLIN, until)
            except OSError as error:
                problem, data = sentence_of(error), b""
            except NoAnswerYet:
                if deadline is not None and time.monotonic() >= deadline:
                    raise
            finally:
                # Also when a signal ended the wait: the place must not stay taken.
                with changed:
                    self._reading = False
                    if data is not None:
                        self._pulse.heard()
                        self._take(self._machine.receive(data) if data else self._machine.lost(problem))
                    changed.notify_all()
            if data is None:
                self._check_pulse()
            self._flush(time.monotonic() + FLUSH_S)

    def _check_pulse(self) -> None:
        """Nothing came for a while: see whether the broker is still there."""
        try:
            with self._changed:
                self._feel_pulse()
        except Lost as silence:
            self.silent = True
            self._fail(silence.problem)

    def _flush(self, deadline: float | None) -> None:
        """Send what the machine has ready, unless another thread is at it, who then takes it along."""
        while True:
            with self._changed:
                if self._sending or self.broken is not None:
                    return
                parts = self._machine.data_to_send()
                if not parts:
                    return
                self._sending = True
            problem = "a request could not be sent in time"
            whole = False
            try:
                for part in _joined(parts):
                    self._send(part, deadline)
                whole = True
            except OSError as error:
                problem = sentence_of(error)
            except NoAnswerYet:
                pass
            finally:
                with self._changed:
                    self._sending = False
                if not whole:
                    # Also when a signal ended it: half a frame may be out, and nothing can follow that.
                    self._fail(problem)

    def _send(self, part: Any, deadline: float | None) -> None:
        view = memoryview(part).cast("B")
        while len(view):
            at = view
            try:
                sent = self._attempt(
                    lambda: self._socket.send(at),  # noqa: B023
                    select.POLLOUT,
                    self._pulse.until(deadline),
                )
            except NoAnswerYet:
                if deadline is not None and time.monotonic() >= deadline:
                    raise
                with self._changed:
                    self._feel_stall()
                continue
            self._pulse.moved()
            view = view[sent:]

    def _attempt(self, action: Callable[[], T], direction: int, deadline: float | None) -> T:
        """Do it as soon as the socket is ready for it."""
        while True:
            try:
                with self._entry:
                    return action()
            except ssl.SSLWantReadError:
                waits = select.POLLIN
            except ssl.SSLWantWriteError:
                waits = select.POLLOUT
            except BlockingIOError:
                waits = direction
            poll = select.poll()
            try:
                poll.register(self._socket, waits)
            except ValueError:  # closed meanwhile, by another thread
                raise ConnectionAbortedError("the client was closed") from None
            left = left_until(deadline)
            if not poll.poll(None if left is None else left * 1000):
                raise NoAnswerYet

    def _fail(self, problem: str) -> None:
        with self._changed:
            self._machine.lost(problem)
            self._break(problem)
            self._changed.notify_all()

    def _hang_up(self) -> None:
        # A thread may be waiting in poll: this wakes it, closing alone would not.
        with contextlib.suppress(OSError):
            self._socket.shutdown(socket.SHUT_RDWR)
        self._socket.close()


def _joined(parts: list[Any]) -> Iterator[Any]:
    """Small pieces as one, large ones as they are."""
    small: list[Any] = []
    size = 0
    for part in parts:
        if len(part) > 64 << 10:
            if small:
                yield b"".join(small)
                small, size = [], 0
            yield part
            continue
        small.append(part)
        size += len(part)
        if size > 256 << 10:
            yield b"".join(small)
            small, size = [], 0
    if small:
        yield b"".join(small)


# The client -----------------------------------------------------------------------------------------


class Performed(NamedTuple, Generic[T]):
    answer: T
    attempts: int
    link: Link


class Route:
    """One of the connections of a client, and how to get another one when it breaks."""

    def __init__(self, target: Target, *, reads: bool) -> None:
        self.reads = reads
        """To whatever member serves readers; else to the one that leads."""
        self.endpoints = Endpoints(target.addresses)
        self.connecting = threading.Lock()
        self.current: Link | None = None
        self.left: Link | None = None
        """To a member that shows nothing new: what was opened there may still be read."""

    def leave(self, link: Link) -> None:
        """Look for another one, and leave this one to those who still read there."""
        if self.current is link:
            self.left, self.current, before = link, None, self.left
            if before is not None:
                before.close()


class Client:
    """A client of one broker or of a cluster; made by `connect`."""

    def __init__(
        self,
        target: Target,
        *,
        timeout: float = 30.0,
        tls: ssl.SSLContext | None = None,
        name: str = "tidemark-python",
        read_from: ReadFrom = "leader",
        group: str | None = None,
    ) -> None:
        self._target = target
        self._timeout = timeout
        self._tls = tls if tls is not None or not target.tls else ssl.create_default_context()
        self._name = name
        self._closing = threading.Event()
        self._cluster = Cluster(read_from_of(read_from))
        self._seen = Seen()
        self._writes = Route(target, reads=False)
        self._reads = self._writes if read_from == "leader" else Route(target, reads=True)
        self._group = target.group if group is None else group
        self._parent: Client | None = None
        self._groups: dict[str, Client] = {}
        self._grouping = threading.Lock()
        self._unseen = Unseen()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def close(self) -> None:
        """Say goodbye. Calls that wait in other threads end with `ClientClosed`."""
        self._closing.set()
        with self._grouping:
            others = list(self._groups.values())
        for other in others:
            other.close()
        for route in (self._writes, self._reads):
            for link in (route.current, route.left):
                if link is not None:
                    link.close()

    @property
    def node(self) -> str:
        """The name of the broker that this client writes to."""
        return str(self.link().welcome.get("node", ""))

    @property
    def reading_from(self) -> str:
        """The name of the broker that this client reads from."""
        return str(self.reader().welcome.get("node", ""))

    @property
    def group_name(self) -> str:
        """The group of the cluster that this client is connected to."""
        if self._group is not None:
            return self._group
        link = self._writes.current
        return MAIN if link is None else str(link.welcome.get("group") or MAIN)

    def group(self, name: str) -> Client:
        """A client of another group of the cluster, over the same addresses, which are those of fronts.

        It is made once, connects when it is first used, and is closed with this one. What `stream` and `partitioned`
        give is of the right group already; transactions and producers are of one group.
        """
        if name == self.group_name:
            return self
        if self._parent is not None:
            return self._parent.group(name)
        with self._grouping:
            if self._closing.is_set():
                raise ClientClosed
            kept = self._groups.get(name)
            if kept is None or kept._closing.is_set():
                kept = self._groups[name] = Client(
                    self._target, timeout=self._timeout, tls=self._tls, name=self._name,
                    read_from=self._cluster.read_from, group=name,
                )  # fmt: skip
                kept._parent = self
            return kept

    def members(self) -> list[MemberInfo]:
        """Who is in the cluster, and what each is for; a broker that stands alone is its only member."""
        return self.call(ops.members())

    # Streams ------------------------------------------------------------------------------------

    def stream(
        self,
        name: str,
        *,
        create: bool = False,
        key: KeyRule | None = None,
        shards: int | None = None,
        max_age: str | None = None,
        max_bytes: int | None = None,
        tombstone_lease: float | None = None,
        history: float | None = None,
        pin_bytes_max: int | None = None,
        arguments: Mapping[str, Any] | None = None,
    ) -> Stream:
        """A stream that exists; with `create`, one that is made if it does not.

        One that lives in another group of the cluster is found and made there: `Stream.client` is then that group's. It is also
        made there without `create` if only main has it: whoever created it has not come further.

        Args:
            key: where a message's key comes from: `explicit` (put with a key), `routing-key`, `message-id` or
                `header:<name>`.
            shards: into how many parts its keys are spread; it may grow later, see `Stream.grow`.
            max_age: how long rows are kept, as `7D`, `12h`, `30m` or `10s`.
            max_bytes: how much is kept.
            tombstone_lease: seconds that a delete waits for consumers that are away.
            history: seconds that older versions are kept for `as_of`.
            pin_bytes_max: what pins may keep at most; over it the oldest pin goes.
            arguments: anything else, as queue arguments.

        Raises:
            NotFound: it does not exist, and `create` was not given.
            PreconditionFailed: it exists and is another kind of thing, or has other properties.
        """
        wanted = ops.stream_arguments(
            key, shards, max_age, max_bytes, tombstone_lease, history, pin_bytes_max, arguments
        )
        if create and self.group_name != MAIN:
            # Main knows all streams, and counts them: one that it has not heard of would be nobody's.
            wanted = {"x-group": self.group_name, **wanted}
            return self.group(MAIN).stream(name, create=True, arguments=wanted)
        try:
            found = self.call(ops.declare(name, wanted) if create else ops.info(name))
        except StreamElsewhere as elsewhere:
            return self.group(elsewhere.group).stream(name)
        except NotFound:
            if not self._make_missing(name):
                raise
            return Stream(self, name)
        if not found.group or found.group == self.group_name:
            return Stream(self, name)
        there = self.group(found.group)
        there.call(ops.declare(name, {**found.facts.get("arguments", {}), **wanted}))
        return Stream(there, name)

    def streams(self) -> list[StreamInfo]:
        """All streams of the virtual host: of a client of main those in all groups, of any other those in its own."""
        found = [ops.placed(one, self.group_name) for one in self.call(ops.list_streams())]
        elsewhere = {one.group for one in found} - {self.group_name}
        there = [one for group in sorted(elsewhere) for one in self.group(group).streams()]
        described = {(one.group, one.name): one for one in there}
        return [described.get((one.group, one.name), one) for one in found]

    def delete_stream(self, name: str) -> None:
        """Delete a stream with everything in it."""
        main = self.group(MAIN)
        try:
            main.call(ops.delete_stream(name))
        except StreamElsewhere as elsewhere:
            self._delete_there(name, elsewhere.group, elsewhere.number)

    def _delete_there(self, name: str, group: str, number: int) -> None:
        """Delete a stream in its group, where it may be gone when this was begun before, and then its name in main."""
        with contextlib.suppress(NotFound):
            self.group(group).call(ops.delete_stream(name))
        # At once: what is published to a name that is still there makes the stream again.
        self.group(MAIN).call(ops.forget_stream(name, number))

    # Partitioned streams ------------------------------------------------------------------------

    def partitioned(
        self,
        name: str,
        *,
        create: int | None = None,
        groups: Sequence[str] | None = None,
        key: KeyRule | None = None,
        shards: int | None = None,
        max_age: str | None = None,
        max_bytes: int | None = None,
        tombstone_lease: float | None = None,
        history: float | None = None,
        pin_bytes_max: int | None = None,
        arguments: Mapping[str, Any] | None = None,
    ) -> Partitioned:
        """One name for several streams, over which keys are spread; with `create`, of so many, made if they are not there.

        Each is a stream like any other, in a group of its own if there are groups. No order and no transaction spans two of them;
        the versions of one key are in order, for a key is always in the same one. Their number is for ever.

        Args:
            groups: where they live, in turn; by default in all groups but main, or where there are no others, in main.
            key, shards, …: of each of the streams, as in `stream`.

        Raises:
            NotFound: it does not exist, and `create` was not given.
            PreconditionFailed: it exists and has another number of partitions, or other properties.
        """
        main = self.group(MAIN)
        if create is None:
            layout = main.call(ops.partitions(name))
            for one in layout.partitions:
                if one.group != main.group_name:
                    self.group(one.group)._unseen.expect(one.stream, name)
        else:
            wanted = ops.stream_arguments(
                key, shards, max_age, max_bytes, tombstone_lease, history, pin_bytes_max, arguments
            )
            layout = main.call(ops.partition(name, create, groups, wanted))
            for one in layout.partitions:
                if one.group != main.group_name:
                    there = {**one.arguments, **wanted, "x-group": one.group}
                    self.group(one.group).call(ops.declare(one.stream, there))
        return Partitioned(name, [Stream(self.group(one.group), one.stream) for one in layout.partitions])

    def delete_partitioned(self, name: str) -> None:
        """Delete a partitioned stream with everything in its partitions."""
        main = self.group(MAIN)
        for one in main.call(ops.partitions(name, partial=True)).partitions:
            if one.group == main.group_name:
                main.call(ops.delete_stream(one.stream))
            else:
                self._delete_there(one.stream, one.group, one.number)
        # Last, for a group may be out of reach: while the name is here all of it can be done again.
        main.call(ops.unpartition(name))

    def see(self, stream: str) -> None:
        """Look at a partition that was not seen in its group yet, so that it is made there if it is missing."""
        if stream in self._unseen:
            self.call(ops.info(stream))

    def _made(self, partitions: Mapping[str, str]) -> bool:
        """Whether one of them was missing and could be made."""
        made = [one for one, whole in partitions.items() if self._make_missing(one, whole)]
        self._unseen.saw(made)
        return bool(made)

    def _make_missing(self, stream: str, whole: str | None = None) -> bool:
        """Make a stream that main says lives here, as main has it; `whole` is the name that it is a partition of.

        False: main does not say so, or this user may not make it.
        """
        main = self.group(MAIN)
        if main is self:
            return False
        known = ops.declared(stream, self.group_name, whole)
        with contextlib.suppress(NotFound, AccessRefused, PreconditionFailed):
            main.call(known)
            time.sleep(MAKE_AFTER_S)
            self.call(ops.declare(stream, main.call(known)))
            return True
        return False

    def heads(
        self, streams: Sequence[str], *, after: Mapping[str, int] | None = None, wait: float = 0
    ) -> dict[str, Head]:
        """How far streams go; with `after` and `wait`, as soon as one goes further than that."""
        return self.call(ops.heads(streams, after, wait), self._timeout + wait)

    # Writing ------------------------------------------------------------------------------------

    def transaction(self) -> Transaction:
        """Changes of several keys, streams and queues that become visible together or not at all.

        ```python
        with db.transaction() as tx:
            tx.put("accounts", "ann", b"90")
            tx.put("accounts", "bob", b"110")
        tx.receipt
        ```
        """
        return Transaction(self.call)

    def producer(self, name: str) -> Producer:
        """A writer whose writes are stored once, however often a broken connection makes us send them.

        A name is used by one writer at a time, and keeps its number when the process starts again.
        """
        return Producer(self, name)

    def forget_producer(self, name: str) -> None:
        """Let the broker forget a producer that is done for good: it remembers only so many.

        A write of it that is sent again after this is stored again.
        """
        self.call(ops.forget_producer(name))

    def await_safe(
        self, receipt: Receipt, *, replicas: int = 1, disks: int = 1, timeout: float | None = None
    ) -> Safety:
        """Whether a write is on so many nodes, on so many disks: waits for `yes`, at most `timeout` seconds.

        `lost branch`: it was taken back by a takeover and will never be safe; write it again.
        """
        end = time.monotonic() + (self._timeout if timeout is None else timeout)
        while True:
            left = end - time.monotonic()
            wait = max(0.0, min(left, SAFE_WAIT_S))
            answer = self.call(ops.safe(receipt, replicas, disks, wait), wait + self._timeout)
            if answer != "not yet" or left <= SAFE_WAIT_S:
                return answer

    # Calls --------------------------------------------------------------------------------------

    def call(self, call: Call[T], timeout: float | None = None) -> T:
        """Do one operation, over a new connection if the old one breaks and it does no harm.

        Raises:
            NotConnected, TimedOut, Unconfirmed, TidemarkError: what the broker refuses.
        """
        return self.perform(call, timeout).answer

    def perform(self, call: Call[T], timeout: float | None = None) -> Performed[T]:
        """The same; also says over which connection it went in the end, and how often it was sent."""
        seconds = self._timeout if timeout is None else timeout
        deadline, tries = time.monotonic() + seconds, Tries(call, seconds)
        route = self._reads if call.reads else self._writes
        unseen = self._unseen.named_by(call)
        while True:
            link = self._link(route, deadline)
            pending: Pending | None = None
            try:
                pending = link.start(call.header, call.payload, deadline)
                tries.count += 1
                found = Performed(call.answer(*link.result(pending, deadline)), tries.count, link)
                pending = None
                self._unseen.saw(unseen)
                return found
            except NoAnswerYet:
                raise tries.no_answer(sent=pending is not None) from None
            except Lost as lost:
                tries.lost(lost)
            except NotATail as refusal:
                self.to_tails(link, refusal, deadline)
                route = self._reads
            except ASK_LEADER as refusal:
                if route.reads:
                    route = self._writes
                    continue
                if tries.was_done(refusal):
                    return Performed(call.answer({}, memoryview(b"")), tries.count, link)
                if not isinstance(refusal, NotFound) or not self._made(unseen):
                    raise
                unseen = {}
                tries.count -= 1  # what was refused was not done
            finally:
                if pending is not None:
                    link.drop(pending, close=False)

    def link(self, deadline: float | None = None) -> Link:
        """A connection for writes that works, as far as we know."""
        return self._link(self._writes, self.deadline() if deadline is None else deadline)

    def reader(self, deadline: float | None = None) -> Link:
        """A connection for reads that works, as far as we know: of a cluster, to where `read_from` says."""
        return self._link(self._reads, self.deadline() if deadline is None else deadline)

    def to_tails(self, link: Link, refusal: NotATail, deadline: float) -> None:
        """Whoever this link goes to shows no rows: the next `reader` is a tail, as far as that is known.

        Raises:
            NotATail: they cannot be found, or not in time.
        """
        with self._grouping:
            again = self._cluster.turn_to_tails(refusal)
            if not self._reads.reads:
                self._reads = Route(self._target, reads=True)
            self._reads.leave(link)
        if again:
            if time.monotonic() + TAIL_AGAIN_S > deadline:
                raise refusal
            if self._closing.wait(TAIL_AGAIN_S):
                raise ClientClosed

    @property
    def reads_elsewhere(self) -> bool:
        """Reads may go to members that do not lead."""
        return self._reads.reads

    def deadline(self) -> float:
        """When a call that begins now has taken too long."""
        return time.monotonic() + self.timeout

    @property
    def timeout(self) -> float:
        return self._timeout

    def _link(self, route: Route, deadline: float) -> Link:
        link = route.current
        if link is not None and not self._closing.is_set() and link.alive():
            return link
        if not route.connecting.acquire(timeout=left_until(deadline) or 0):
            raise NotConnected(addresses=route.endpoints.names, problem="another thread is still trying")
        try:
            if self._closing.is_set():
                raise ClientClosed
            link = route.current
            if link is None or link.broken is not None:
                link = route.current = self._connect(route, deadline)
                link.ask_others = partial(self._ask_others, route, link)
            if self._closing.is_set():
                link.close()
                raise ClientClosed
            return link
        finally:
            route.connecting.release()

    def _connect(self, route: Route, deadline: float) -> Link:
        began, avoid, spare = time.monotonic(), None, None
        if (lost := route.current) is not None:
            self._cluster.learn(lost.welcome)
            avoid = lost.address if lost.silent else None
        dialling = Dialling(self._cluster, route.endpoints, reads=route.reads, avoid=avoid)
        while True:
            if spare is not None and not dialling.has_better:
                return spare
            address, wait = dialling.next()
            left = deadline - time.monotonic()
            if left <= 0 or wait > left:
                if spare is not None:
                    return spare
                raise dialling.not_connected(time.monotonic() - began)
            if wait and self._closing.wait(wait):
                raise ClientClosed
            limit = min(left, dialling.patience(spare=spare is not None))
            try:
                link = self._dial(address, limit, reads=route.reads)
            except NOT_LET_IN as error:
                if not dialling.not_let_in(address, error, spare=spare is not None):
                    raise
                continue
            if spare is not None:
                spare.close()
            if dialling.greeted(address, link.welcome):
                return link
            spare = link

    def _ask_others(self, route: Route, link: Link) -> None:
        """Somebody waits for this member, which says nothing: a thread asks others about it."""
        inquiry = Inquiry(self._cluster, route.endpoints, link.address, link.welcome, reads=route.reads)
        asking = threading.Thread(
            target=self._inquire, args=(inquiry, link), name="tidemark-ask", daemon=True
        )
        # If there are too many threads to start one, the member is given up for its silence, later.
        with contextlib.suppress(RuntimeError):
            asking.start()

    def _inquire(self, inquiry: Inquiry, link: Link) -> None:
        while link.doubtful and (found := inquiry.next()) is not None:
            address, wait = found
            if wait and self._closing.wait(wait):
                return
            with contextlib.suppress(*NOT_LET_IN, TidemarkError):
                other = self._dial(address, DIRECT_S_MAX, reads=True)
                try:
                    self._ask(other, inquiry, link)
                finally:
                    other.close()

    def _ask(self, other: Link, inquiry: Inquiry, link: Link) -> None:
        """Ask one of the others, until there is no doubt any more. Raises Lost, NoAnswerYet, TidemarkError."""
        answer = other.welcome
        while link.doubtful:
            if (why := inquiry.told(answer)) is not None:
                link.replaced(why)
            elif not self._closing.wait(ASK_AGAIN_S):
                deadline = time.monotonic() + DIRECT_S_MAX
                answer, _ = other.result(other.start(ops.members().header, deadline=deadline), deadline)

    def _dial(self, address: Address, limit: float, *, reads: bool) -> Link:
        """Raises OSError, Lost, NoAnswerYet, or what the broker refuses us with."""
        sock = socket.create_connection((address.host, address.port), limit)
        try:
            return self._greet(sock, address, time.monotonic() + limit, reads=reads)
        except BaseException:
            sock.close()
            raise

    def _greet(self, sock: socket.socket, address: Address, deadline: float, *, reads: bool) -> Link:
        sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        sock.setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)
        if self._tls is not None:
            sock = self._tls.wrap_socket(sock, server_hostname=address.host)
        target = self._target
        machine = protocol.Connection(
            target.user, target.password, target.vhost, self._name, reads=reads, group=self._group
        )
        link = Link(sock, machine, address, self._seen, reads=reads)
        try:
            link.open(deadline)
        except BaseException:
            link.close()
            raise
        return link


def connect(
    url: str = "tidemark://guest:guest@127.0.0.1:5672/",
    *,
    timeout: float = 30.0,
    tls: ssl.SSLContext | None = None,
    name: str = "tidemark-python",
    read_from: ReadFrom = "leader",
    group: str | None = None,
) -> Client:
    """A client that is logged in.

    Args:
        url: `tidemark://user:password@host:port,host:port/vhost`; `tidemarks://` is TLS. Several addresses are
            tried in turn, now and whenever the connection breaks. Of a cluster one that answers is enough: it names
            the others.
        timeout: how many seconds a call may take in all, reconnecting included.
        tls: how to check the broker's certificate; by default as any https client does.
        name: what the broker's list of connections shows.
        read_from: which member of a cluster reads go to: the `leader`; a `tail` (of a chain its last member, else a
            backup); or `any`. Where there is none of that kind they go to one that there is. What was once seen is
            seen there, too.
        group: of a cluster of several groups, the one that this client is to use: through a front. By default main, which
            knows all streams; see `Client.group`.

    Raises:
        NotConnected: nobody answers.
        LoginRefused: wrong user or password.
    """
    client = Client(parse_url(url), timeout=timeout, tls=tls, name=name, read_from=read_from, group=group)
    client.link()
    return client


# Streams --------------------------------------------------------------------------------------------


class Stream:
    """One stream. Made by `Client.stream`; holds nothing, so it need not be closed."""

    def __init__(self, client: Client, name: str) -> None:
        self._client = client
        self._name = name

    @property
    def name(self) -> str:
        return self._name

    @property
    def client(self) -> Client:
        """The client of the group that it lives in: what writes to it together is a transaction of that one."""
        return self._client

    def __repr__(self) -> str:
        return f"<Stream {self._name!r}>"

    def info(self) -> StreamInfo:
        """Counts, shards, sequences, as they are now."""
        return ops.placed(self._client.call(ops.info(self._name)), self._client.group_name)

    def grow(self, shards: int) -> StreamInfo:
        """Spread the keys over more shards, while everything goes on."""
        grown = self._client.call(ops.declare(self._name, {"x-stream-shards": shards}))
        return ops.placed(grown, self._client.group_name)

    def truncate(self, upto: Position) -> int:
        """End everything up to and with a sequence, as retention does. How many rows that were.

        Pins and open snapshots go on to show them. When the connection breaks it may have ended some of them: do it
        again.
        """
        return self._client.call(ops.truncate(self._name, place_of(upto)))

    def purge(self) -> int:
        """End all that is there, tombstones too; consumers that come back are told to start over. How many rows."""
        return self._client.call(ops.purge(self._name))

    # Writing ------------------------------------------------------------------------------------

    def put(
        self,
        key: Bytes | None,
        value: Bytes,
        *,
        headers: Mapping[str, Any] | None = None,
        expected: int | None = None,
    ) -> Receipt:
        """Store a row; when this returns it is on the disk.

        Args:
            key: what it replaces; None in a stream without keys.
            expected: store it only if the key's newest sequence is this one; 0 only if the key has no value.

        Raises:
            Conflict: the key is at another sequence than expected.
            Unconfirmed: the connection broke before the answer.
        """
        return self._client.call(ops.put(self._name, ops.one_put(key, value, headers, expected)))

    def put_many(self, rows: Any) -> Receipt:
        """Store many rows, all or none.

        Args:
            rows: (key, value) or (key, value, headers), where the value None deletes the key; or an Arrow table
                or record batch with the columns `key` and `value` (and `deleted`, `headers`, `expected`).
        """
        return self._client.call(ops.put(self._name, ops.writes(rows)))

    def delete(self, key: Bytes, *, expected: int | None = None) -> Receipt:
        """Delete a key: readers see a tombstone until every registered consumer has passed it."""
        return self._client.call(ops.put(self._name, ops.one_delete(key, expected)))

    # Reading ------------------------------------------------------------------------------------

    def get(self, key: Bytes) -> Row | None:
        """The newest version of a key; None if it has none or was deleted."""
        row = self._client.call(ops.get(self._name, key))
        return None if row is None or row.deleted else row

    def snapshot(
        self,
        *,
        after: Position | None = None,
        progress: Progress | None = None,
    ) -> Snapshot:
        """What the stream holds now, frozen; with `after`, only what changed since then."""
        return self._snapshot(after=after, progress=progress)

    def as_of(
        self,
        *,
        sequence: Position | None = None,
        time: datetime | float | None = None,
        progress: Progress | None = None,
    ) -> Snapshot:
        """What the stream held then, by sequence or by time.

        Raises:
            HistoryGone: versions of that age are no longer kept.
        """
        return self._snapshot(at=moment_of(sequence, time), progress=progress)

    def pin(self, name: str, *, lease: float = 3600.0, at: int | datetime | None = None) -> Pin:
        """Keep what the stream holds now readable under a name, for `lease` seconds or until it is released.

        The same name again renews the lease and gives the snapshot that it had. `at`: as it was at a sequence or a
        time.
        """
        opened = self._client.perform(ops.snapshot(self._name, at=place_of(at), pin=name, lease=lease))
        # The pin is read by its name, from any connection: this view of it is not needed.
        Snapshot(self._client, opened.link, self._name, opened.answer).close()
        return Pin(self._client, self._name, name, opened.answer)

    def pinned(self, name: str) -> Pin:
        """A pin that exists.

        Raises:
            NotFound: it does not, or not any more.
        """
        return Pin(self._client, self._name, name, self._client.call(ops.pinned(self._name, name)))

    def lag(self, after: Position, shards: Sequence[int] | None = None) -> Lag:
        """How many rows, and bytes of values, lie behind a place now: each key once, deleted ones included."""
        return self._client.call(ops.lag(self._name, place_of(after), shards))

    def pins(self) -> list[PinInfo]:
        return self._client.call(ops.pins(self._name))

    def diff(self, a: Position, b: Position) -> Diff:
        """What changed and what was deleted after `a`, up to `b`."""
        return Diff(self._client, self._name, place_of(a), place_of(b))

    def _snapshot(
        self,
        *,
        after: Position | None = None,
        at: int | Header | None = None,
        progress: Progress | None = None,
    ) -> Snapshot:
        history, start = (None, 0) if after is None else position_of(after)
        opened = self._client.perform(ops.snapshot(self._name, after=start, history=history, at=at))
        return Snapshot(self._client, opened.link, self._name, opened.answer, progress)

    # Following ----------------------------------------------------------------------------------

    def follow(
        self,
        consumer: str | None = None,
        *,
        start: Start | None = None,
        commit: Commit | None = "boundary",
        on_reset: OnReset = "raise",
        idle: float | None = None,
        lease: float | None = None,
        shards: Sequence[int] | None = None,
        columns: Sequence[str] | None = None,
    ) -> Follower:
        """Rows as they come, snapshot by snapshot, for ever or until nothing came for `idle` seconds.

        ```python
        for batch in orders.follow("loader"):
            for row in batch: ...
            if batch.marker: ...        # all up to here is one consistent state
        ```

        Args:
            consumer: a name whose mark says where to go on; it moves when the loop asks for the next batch, so
                what the loop did not finish comes again.
            start: where to begin; by default at the consumer's mark, or with the first row.
            commit: the mark moves at each `boundary` (the consumer is consistent there), with `each` batch, or
                only by `Follower.commit` (None).
            on_reset: what to do when this consumer was away for too long and missed deletes: `raise` StreamReset,
                or `restart`: a batch with `reset` set, then everything from the first row.
            lease: seconds for which deletes wait for this consumer when it is away.
        """
        following = Following(
            self._name, consumer=consumer, start=start, commit=commit, shards=shards, columns=columns
        )
        return Follower(self._client, following, on_reset=on_reset, idle=idle, lease=lease)

    def register(self, consumer: str, *, lease: float | None = None, passing: bool = False) -> None:
        """Make a consumer known, so that deletes wait for it from now on.

        Args:
            lease: seconds for which they wait when it is away.
            passing: its name was made up for one run: when the lease has ended the mark goes, too.
        """
        self._client.call(ops.register(self._name, consumer, lease, passing))

    def unregister(self, consumer: str) -> None:
        """Forget a consumer and its mark."""
        self._client.call(ops.unregister(self._name, consumer))

    def mark(self, consumer: str) -> Mark | None:
        """How far a consumer has come."""
        return self._client.call(ops.mark(self._name, consumer))

    def marks(self) -> list[Mark]:
        """How far all consumers have come."""
        return self._client.call(ops.marks(self._name))

    def move_mark(
        self, consumer: str, position: Position, *, shard: int | None = None, of: int | None = None
    ) -> None:
        """Say that a consumer has finished with everything up to there; when this returns it is on the disk.

        Of a `shard` say `of` how many it is one, if the stream may have grown since.
        """
        history, sequence = position_of(position)
        self._client.call(ops.move_mark(self._name, consumer, sequence, history, shard, of=of))

    def reset_mark(self, consumer: str, sequence: int = 0) -> None:
        """Send a consumer back (or ahead), by default to the beginning."""
        self._client.call(ops.reset_mark(self._name, consumer, sequence))


# Passes over many rows ------------------------------------------------------------------------------


class Rows(Passes):
    """Something that can be read, in whole or in part, any number of times."""

    def __init__(self, client: Client, stream: str, expected: int, progress: Progress | None = None) -> None:
        super().__init__(stream, expected, progress)
        self._client = client
        self._link: Link | None = None
        """The only connection that can read this; None: any can."""

    def rows(
        self,
        *,
        after: int | None = None,
        until: int | None = None,
        shards: Sequence[int] | None = None,
        key_from: Bytes | None = None,
        key_to: Bytes | None = None,
        columns: Sequence[str] | None = None,
    ) -> Iterator[Row]:
        """The rows in the order of their sequence.

        Args:
            after, until: only rows with after < sequence <= until.
            shards: only these shards.
            key_from, key_to: only keys with key_from <= key < key_to.
            columns: only these; others are empty in the rows. Without key, value, deleted and sequence the marker's
                hash cannot be checked.

        Raises:
            Interrupted: the connection broke.
            MarkerMismatch: what came is not what was sent.
        """
        part = Range(
            after=after, until=until, shards=shards, key_from=key_from, key_to=key_to,
            columns=columns or ROW_COLUMNS,
        )  # fmt: skip
        reading = self._reading(part, "rows")
        for frame in self._pass(reading):
            yield from reading.rows(*frame)

    def batches(
        self,
        *,
        after: int | None = None,
        until: int | None = None,
        shards: Sequence[int] | None = None,
        key_from: Bytes | None = None,
        key_to: Bytes | None = None,
        columns: Sequence[str] | None = None,
        batch_bytes: int | None = None,
        verify: bool = True,
    ) -> Iterator[pa.RecordBatch]:
        """The same as Arrow record batches, as the broker made them."""
        part = Range(
            after=after, until=until, shards=shards, key_from=key_from, key_to=key_to,
            columns=columns, batch_bytes=batch_bytes, verify=verify,
        )  # fmt: skip
        reading = self._reading(part, "arrow")
        for frame in self._pass(reading):
            yield from reading.batches(*frame)

    def to_arrow(self, **part: Any) -> pa.Table:
        """Everything as one Arrow table; takes what `batches` takes."""
        pa = package("pyarrow", "to_arrow()")
        found = list(self.batches(**part))
        assert self._last is not None
        schema = found[0].schema if found else self._last.schema
        return pa.Table.from_batches(found, schema)

    def to_pandas(self, **part: Any) -> Any:
        """Everything as a pandas DataFrame."""
        package("pandas", "to_pandas()")
        return self.to_arrow(**part).to_pandas()

    def to_polars(self, **part: Any) -> Any:
        """Everything as a Polars DataFrame."""
        return package("polars", "to_polars()").from_arrow(self.to_arrow(**part))

    def __iter__(self) -> Iterator[Row]:
        return self.rows()

    def _pass(self, reading: Reading) -> Iterator[tuple[Header, memoryview]]:
        client = self._client
        deadline, begun, find = client.deadline(), False, client.reader
        while True:
            link = self._link or find(deadline)
            pending: Pending | None = None
            try:
                pending = link.start(reading.header)
                while (frame := link.next(pending, client.deadline())) is not None:
                    begun = True
                    yield frame
                    if more := reading.credit.used(len(frame[1])):
                        link.credit(pending, more)
                assert pending.answer is not None
                reading.finish(*pending.answer)
                return
            except Lost as lost:
                if begun or self._link is not None:
                    raise self._interrupted(lost, reading.position) from None
            except NotATail as refusal:
                if self._link is not None:
                    raise
                client.to_tails(link, refusal, deadline)
                find = client.reader
            except ASK_LEADER:
                if begun or self._link is not None or find == client.link or not client.reads_elsewhere:
                    raise
                find = client.link
            except NoAnswerYet:
                raise TimedOut(operation=f"read of {self._stream!r}", timeout_s=client.timeout) from None
            finally:
                if pending is not None:
                    link.drop(pending)


class Frozen(OfView, Rows):
    """What a snapshot and a pin have in common: they show the same for as long as they exist."""

    def __init__(
        self,
        client: Client,
        stream: str,
        view: View,
        pin: str | None,
        progress: Progress | None = None,
    ) -> None:
        super().__init__(client, stream, view.live + view.tombstones, progress)
        self._view = view
        self._pin = pin

    def cut(
        self,
        *,
        after: int = 0,
        until: int | None = None,
        shards: Sequence[int] | None = None,
        rows: int | None = None,
        bytes: int | None = None,
        parts: int | None = None,
        limit: int = 10_000,
    ) -> list[Cut]:
        """Cut it into consecutive pieces, for readers that share the work; nothing is read for that.

        Args:
            after, until, shards: which part of it, as in `rows`.
            rows, bytes: a piece has at most so many rows, and bytes of values; but always one row.
            parts: cut it into about so many pieces with the same number of rows instead.
            limit: stop after so many pieces; else the last one ends at `until`, by default the end.
        """
        call = ops.cut(
            self._view, self._stream, self._pin,
            after=after, until=until, shards=shards, rows=rows, bytes=bytes, parts=parts, limit=limit,
        )  # fmt: skip
        client, link = self._client, self._link
        if link is None:
            return client.call(call)
        pending: Pending | None = None
        try:
            pending = link.start(call.header)
            return call.answer(*link.result(pending, client.deadline()))
        except Lost as lost:
            raise self._interrupted(lost) from None
        except NoAnswerYet:
            raise TimedOut(operation=call.name, timeout_s=client.timeout) from None
        finally:
            if pending is not None:
                link.drop(pending)


class Snapshot(OfSnapshot, Frozen):
    """A frozen view of a stream, held open by this connection until it is closed, by `with`, or forgotten."""

    def __init__(
        self, client: Client, link: Link, stream: str, view: View, progress: Progress | None = None
    ) -> None:
        super().__init__(client, stream, view, None, progress)
        self._link: Link = link
        self._closed = False

    def __del__(self) -> None:
        if not self._closed:
            self._link.abandon(self._view.id)

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def close(self) -> None:
        """Let the broker forget it; what only this snapshot could see is freed."""
        if self._closed:
            return
        self._closed = True
        with contextlib.suppress(Lost, NoAnswerYet, TidemarkError):
            call = ops.close_snapshot(self._view.id)
            self._link.result(self._link.start(call.header), time.monotonic() + 5)


class Pin(Frozen):
    """A snapshot with a name and a lease; it outlives connections and restarts of the broker."""

    def __init__(self, client: Client, stream: str, name: str, view: View) -> None:
        super().__init__(client, stream, view, name)
        self.name = name

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        # Of two errors the first counts: a pin that is gone is no news to who is on his way out.
        with contextlib.suppress(*(() if kind is None else (TidemarkError,))):
            self.release()

    def read(self, **part: Any) -> Iterator[Row]:
        """The rows, or a part of them; takes what `rows` takes. The same bytes every time."""
        return self.rows(**part)

    def renew(self, lease: float = 3600.0) -> None:
        """Keep it for so many seconds from now."""
        self._client.call(ops.renew(self._stream, self.name, lease))

    def release(self) -> None:
        """It is no longer needed."""
        self._client.call(ops.release(self._stream, self.name))


class Diff(OfDiff, Rows):
    """What lies between two snapshots: rows that changed, and tombstones of those that were deleted."""

    def __init__(self, client: Client, stream: str, a: int | Header | None, b: int | Header | None) -> None:
        super().__init__(client, stream, 0)
        self._ends = a, b


# A subscription -------------------------------------------------------------------------------------


class Follower:
    """A subscription that outlives connections. Iterate over it; leaving the loop ends it."""

    def __init__(
        self,
        client: Client,
        following: Following,
        *,
        on_reset: OnReset,
        idle: float | None,
        lease: float | None,
    ) -> None:
        self._client = client
        self._following = following
        self._on_reset = on_reset
        self._idle = idle
        self._lease = lease
        self._wanted: Batch | None = None
        self._moving: tuple[Link, Pending, Batch] | None = None
        self.next_frame: Callable[[Link, Pending], Frame | None] = self._frame
        """How it waits for what comes next; who follows several streams at once has a way of his own."""

    def __iter__(self) -> Iterator[Batch]:
        client, following, anew, refusals = self._client, self._following, False, Refusals()
        if following.consumer is not None:
            client.call(ops.register(following.stream, following.consumer, self._lease))
        else:
            client.see(following.stream)
        at_leader = self._find_start()
        try:
            while True:
                link = client.link() if at_leader else client.reader()
                try:
                    pending = link.start(following.begin(anew=anew))
                except Lost:
                    continue
                try:
                    yield from self._batches(link, pending)
                    return
                except NotATail as refusal:
                    client.to_tails(link, refusal, refusals.deadline(client.timeout))
                    at_leader = False
                    if following.from_mark:
                        self._begin_at_mark()
                except (MemberBehind, NotHere):
                    if at_leader or not client.reads_elsewhere:
                        raise
                    at_leader = True
                except (Lost, PinExpired):
                    # A reader that rests for long loses its snapshot; behind its place the newest one goes on.
                    anew = at_leader = False
                except StreamReset:
                    if self._on_reset == "raise":
                        raise
                    if following.consumer is not None:
                        client.call(ops.reset_mark(following.stream, following.consumer, 0))
                    yield Batch(None, 0, "", reset=True)
                    anew = True
                finally:
                    link.drop(pending)
        finally:
            self._settle()

    def _find_start(self) -> bool:
        """Where the consumer's mark is, which only the leader knows. True: the reading must begin there, too."""
        client, following = self._client, self._following
        if not client.reads_elsewhere or not following.from_mark:
            return False
        if following.sharded:
            return True
        assert following.consumer is not None
        mark = client.call(ops.mark(following.stream, following.consumer))
        if mark is None:
            return True
        following.begin_at(mark)
        return False

    def _begin_at_mark(self) -> None:
        """The same where the leader shows no rows: begin where all shards have come to that are read."""
        client, following = self._client, self._following
        assert following.consumer is not None
        shards = client.call(ops.info(following.stream)).shards if following.sharded else 1
        mark = client.call(ops.mark(following.stream, following.consumer))
        following.begin_at_least(mark, shards)

    def commit(self, batch: Batch) -> None:
        """Move the consumer's mark to the end of a batch; when this returns it is on the disk."""
        following = self._following
        if following.consumer is None:
            raise ValueError("only a consumer with a name has a mark: follow(consumer=…)")
        self._client.call(self._call(batch))

    def _batches(self, link: Link, pending: Pending) -> Iterator[Batch]:
        following = self._following
        while True:
            frame = self.next_frame(link, pending)
            if frame is None:
                return
            batch = following.arrived(*frame, link.history)
            if batch is None:
                continue
            yield batch
            if more := following.credit.used(batch.size):
                link.credit(pending, more)
            if following.done(batch):
                self._wanted = batch
            self._move()

    def _frame(self, link: Link, pending: Pending) -> Frame | None:
        """What comes next; None: nothing for long enough."""
        deadline = None if self._idle is None else time.monotonic() + self._idle
        try:
            return link.next(pending, deadline)
        except NoAnswerYet:
            return None

    def _call(self, batch: Batch) -> Call[None]:
        return self._following.mark(batch)

    def _move(self) -> None:
        """Send the mark on its way, one at a time; a newer one waits until the one before is stored."""
        if self._moving is not None:
            link, pending, batch = self._moving
            if not pending.done:
                return
            self._moving = None
            try:
                link.result(pending, None)
            except Lost:
                self._wanted = batch if self._wanted is None else self._wanted
        if self._wanted is not None:
            batch, link = self._wanted, self._client.link()
            try:
                self._moving = link, link.start(self._call(batch).header), batch
            except Lost:
                return  # it is tried again with the next batch
            self._wanted = None

    def _settle(self) -> None:
        """Whatever mark is to be stored is stored."""
        if self._moving is not None:
            link, pending, batch = self._moving
            self._moving = None
            try:
                link.result(pending, self._client.deadline())
            except (Lost, NoAnswerYet):
                self._wanted = batch if self._wanted is None else self._wanted
        if self._wanted is not None:
            batch, self._wanted = self._wanted, None
            self._client.call(self._call(batch))


# Writing ----------------------------------------------------------------------------------------------


class Transaction(Changes):
    """Made by `Client.transaction` or `Producer.transaction`; sent when its `with` block ends without an error."""

    def __init__(self, send: Callable[[Call[Receipt]], Receipt]) -> None:
        super().__init__()
        self._send = send
        self.receipt: Receipt | None = None
        """Set when it is stored."""

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if kind is None:
            self.commit()

    def commit(self) -> Receipt | None:
        """Store all of it; None when there is nothing to store.

        Raises:
            Conflict: a key is at another sequence than expected; nothing was stored.
            Unconfirmed: the connection broke before the answer.
        """
        if len(self) and self.receipt is None:
            self.receipt = self._send(self._operations.commit())
        return self.receipt


class Producer(Numbering):
    """A writer with a name, whose writes are numbered: a resend is confirmed, not stored again.

    A write that had no answer in time stays in doubt: it is sent again, under its number, before the next one.
    """

    def __init__(self, client: Client, name: str) -> None:
        super().__init__(name, client.call(ops.producer(name)))
        self._client = client
        self._lock = threading.RLock()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if kind is None:
            self.settle()

    def put(
        self,
        stream: str | Named,
        key: Bytes | None,
        value: Bytes,
        *,
        headers: Mapping[str, Any] | None = None,
        expected: int | None = None,
        number: int | None = None,
    ) -> Receipt:
        """As `Stream.put`, once. `number` is the caller's own, rising; a number that was stored is a duplicate."""
        writes = ops.one_put(key, value, headers, expected)
        return self._write(lambda numbered: ops.put(stream_name(stream), writes, numbered), number)

    def put_many(self, stream: str | Named, rows: Any, *, number: int | None = None) -> Receipt:
        """As `Stream.put_many`, once."""
        writes = ops.writes(rows)
        return self._write(lambda numbered: ops.put(stream_name(stream), writes, numbered), number)

    def delete(
        self, stream: str | Named, key: Bytes, *, expected: int | None = None, number: int | None = None
    ) -> Receipt:
        """As `Stream.delete`, once."""
        writes = ops.one_delete(key, expected)
        return self._write(lambda numbered: ops.put(stream_name(stream), writes, numbered), number)

    def transaction(self, *, number: int | None = None) -> Transaction:
        """As `Client.transaction`, once."""
        return Transaction(lambda call: self._write(lambda numbered: ops.renumbered(call, numbered), number))

    def settle(self) -> None:
        """Send again what is in doubt, until it is answered.

        Raises:
            Unconfirmed: still no answer.
        """
        with self._lock:
            if self._doubt is not None:
                self._send(self._doubt)

    def _write(self, make: Callable[[Numbered], Call[Receipt]], number: int | None) -> Receipt:
        with self._lock:
            self.settle()
            done = self._send(self._numbered(make, number))
            return self._checked(done.answer, done.attempts, number)

    def _send(self, call: Call[Receipt]) -> Performed[Receipt]:
        with self._in_doubt(call):
            found = self._client.perform(call)
        return found  # noqa: RET504
