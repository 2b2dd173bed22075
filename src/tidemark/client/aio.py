"""The asyncio client: the same calls as the blocking one, awaited.

`AsyncClient` and what it gives have the methods, arguments and errors of `tidemark.client.blocking`, where they are
described; here is only what waiting in an event loop changes. Any number of tasks may use one client: their
requests share the connection, and puts are stored in the order in which they were sent.

What is opened (`connect_async`, `snapshot`, `as_of`, `pin`, `producer`) can be awaited or used with `async with`.

Invariant: nothing here blocks the loop, and no task waits for an answer of a connection that has broken.
"""

from __future__ import annotations

import asyncio
import contextlib
import socket
import ssl
import time
from collections.abc import AsyncGenerator, AsyncIterator, Awaitable, Callable, Mapping, Sequence
from datetime import datetime
from functools import partial
from types import TracebackType
from typing import TYPE_CHECKING, Any, Generic, NamedTuple, Self, TypeVar

from tidemark.client import exchange, protocol
from tidemark.client import operations as ops
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
from tidemark.client.exchange import Exchange
from tidemark.client.numbering import Numbering
from tidemark.client.opening import Opening
from tidemark.client.operations import Call, Changes, Header, Named, Numbered, View, stream_name
from tidemark.client.partitioned_aio import AsyncPartitioned
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


# One connection -------------------------------------------------------------------------------------


class Pending(exchange.Pending):
    """A request whose answer a task awaits."""

    __slots__ = ("changed",)

    def __init__(self, number: int) -> None:
        super().__init__(number)
        self.changed: asyncio.Future[None] | None = None
        """Somebody waits for news of this."""

    def wake(self) -> None:
        if self.changed is not None and not self.changed.done():
            self.changed.set_result(None)


class Link(Exchange[Pending], asyncio.Protocol):
    """One connection and its machine. It is thrown away when it breaks."""

    def __init__(self, machine: protocol.Connection, address: Address, seen: Seen, *, reads: bool) -> None:
        super().__init__(machine, address, seen, reads=reads, pending=Pending)
        self._transport: asyncio.Transport | None = None
        self._writable = asyncio.Event()
        self._writable.set()
        self._greeting: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        """Until it is over, well or not."""

    # What asyncio calls ---------------------------------------------------------------------------

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        assert isinstance(transport, asyncio.Transport)
        self._transport = transport
        sock = transport.get_extra_info("socket")
        if sock is not None:
            sock.setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)
        self._flush()

    def data_received(self, data: bytes) -> None:
        self._pulse.heard()
        self._take(self._machine.receive(data))
        self._flush()

    def connection_lost(self, exc: Exception | None) -> None:
        problem = sentence_of(exc) if isinstance(exc, OSError) else "the broker closed the connection"
        self._take(self._machine.lost(problem))
        self._break(problem)

    def pause_writing(self) -> None:
        self._writable.clear()

    def resume_writing(self) -> None:
        self._pulse.moved()
        self._writable.set()

    # What the client calls ------------------------------------------------------------------------

    async def open(self, deadline: float) -> None:
        """Wait for the login."""
        try:
            async with asyncio.timeout(left_until(deadline)):
                await self._greeting
        except TimeoutError:
            raise NoAnswerYet from None
        self._check_login()

    def start(self, header: Header, payload: Sequence[Any] = ()) -> Pending:
        """Send a request and do not wait for its answer."""
        pending = self._ask(header, payload)
        self._flush()
        return pending

    async def result(self, pending: Pending, deadline: float | None) -> tuple[Header, memoryview]:
        """Wait for the answer, and before that until there is room for what we send."""
        while not pending.done:
            await self._news(pending, deadline)
        return pending.outcome()

    async def next(self, pending: Pending, deadline: float | None) -> tuple[Header, memoryview] | None:
        """Wait for the next part of an answer; None when the answer is complete."""
        while not pending.frames and not pending.done:
            await self._news(pending, deadline)
        if pending.frames:
            return pending.frames.popleft()
        await self.result(pending, deadline)
        return None

    async def room(self, deadline: float | None) -> None:
        """Wait until what was sent before has left."""
        while not self._writable.is_set():
            try:
                async with asyncio.timeout(left_until(self._pulse.until(deadline))):
                    await self._writable.wait()
            except TimeoutError:
                if deadline is not None and time.monotonic() >= deadline:
                    raise NoAnswerYet from None
                self._feel_stall()

    def credit(self, pending: Pending, size: int) -> None:
        if self.broken is None:
            self._machine.credit(pending.number, size)
            self._flush()

    def drop(self, pending: Pending, *, close: bool = True) -> None:
        """Nobody wants the rest of this answer; `close` tells the broker to stop."""
        if self._forget(pending, close=close):
            self._flush()

    def replaced(self, why: str) -> None:
        """Another one is to be used instead, unless this one has said something since."""
        if self.doubtful:
            self.silent = True
            self._take(self._machine.lost(why))
            self._break(why)

    def close(self) -> None:
        if self.broken is None:
            self._machine.goodbye()
            self._flush()
            self._machine.lost("the client was closed")
            self._break("the client was closed")

    # Inside ---------------------------------------------------------------------------------------

    async def _news(self, pending: Pending, deadline: float | None) -> None:
        pending.changed = asyncio.get_running_loop().create_future()
        try:
            async with asyncio.timeout(left_until(self._pulse.until(deadline))):
                await pending.changed
        except TimeoutError:
            if deadline is not None and time.monotonic() >= deadline:
                raise NoAnswerYet from None
            self._check_pulse()
        finally:
            pending.changed = None

    def _check_pulse(self) -> None:
        """Nothing came for a while: see whether the broker is still there."""
        try:
            self._feel_pulse()
            self._flush()
        except Lost as silence:
            self.silent = True
            self._take(self._machine.lost(silence.problem))
            self._break(silence.problem)

    def _flush(self) -> None:
        parts = self._machine.data_to_send()
        if parts and self._transport is not None and not self._transport.is_closing():
            self._transport.writelines(parts)

    def _greeted(self) -> None:
        self._greeting.set_result(None)

    def _hang_up(self) -> None:
        self._writable.set()
        if not self._greeting.done():
            self._greeting.set_result(None)
        if self._transport is not None:
            self._transport.close()


class Performed(NamedTuple, Generic[T]):
    answer: T
    attempts: int
    link: Link


# The client -----------------------------------------------------------------------------------------


class Route:
    """One of the connections of a client, and how to get another one when it breaks."""

    def __init__(self, target: Target, *, reads: bool) -> None:
        self.reads = reads
        """To whatever member serves readers; else to the one that leads."""
        self.endpoints = Endpoints(target.addresses)
        self.connecting = asyncio.Lock()
        self.current: Link | None = None
        self.left: Link | None = None
        """To a member that shows nothing new: what was opened there may still be read."""

    def leave(self, link: Link) -> None:
        """Look for another one, and leave this one to those who still read there."""
        if self.current is link:
            self.left, self.current, before = link, None, self.left
            if before is not None:
                before.close()


class AsyncClient:
    """A client of one broker or of a cluster; made by `connect_async`. See `blocking.Client`."""

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
        self.timeout = timeout
        self._target = target
        self._tls = tls if tls is not None or not target.tls else ssl.create_default_context()
        self._name = name
        self._closed = False
        self._asking: set[asyncio.Task[None]] = set()
        """About members that say nothing."""
        self._cluster = Cluster(read_from_of(read_from))
        self._seen = Seen()
        self._writes = Route(target, reads=False)
        self._reads = self._writes if read_from == "leader" else Route(target, reads=True)
        self._group = target.group if group is None else group
        self._parent: AsyncClient | None = None
        self._groups: dict[str, AsyncClient] = {}
        self._unseen = Unseen()

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        await self.close()

    async def close(self) -> None:
        """Say goodbye."""
        self._closed = True
        for asking in list(self._asking):
            asking.cancel()
        for other in list(self._groups.values()):
            await other.close()
        for route in (self._writes, self._reads):
            for link in (route.current, route.left):
                if link is not None:
                    link.close()
        await asyncio.sleep(0)  # the transports close in the next turn of the loop

    @property
    def group_name(self) -> str:
        """The group of the cluster that this client is connected to."""
        if self._group is not None:
            return self._group
        link = self._writes.current
        return MAIN if link is None else str(link.welcome.get("group") or MAIN)

    def group(self, name: str) -> AsyncClient:
        """A client of another group of the cluster, over the same addresses. See `blocking.Client.group`."""
        if name == self.group_name:
            return self
        if self._parent is not None:
            return self._parent.group(name)
        if self._closed:
            raise ClientClosed
        kept = self._groups.get(name)
        if kept is None or kept._closed:
            kept = self._groups[name] = AsyncClient(
                self._target, timeout=self.timeout, tls=self._tls, name=self._name,
                read_from=self._cluster.read_from, group=name,
            )  # fmt: skip
            kept._parent = self
        return kept

    async def members(self) -> list[MemberInfo]:
        """Who is in the cluster, and what each is for."""
        return await self.call(ops.members())

    # Streams ------------------------------------------------------------------------------------

    async def stream(
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
    ) -> AsyncStream:
        """A stream that exists; with `create`, one that is made if it does not. See `blocking.Client.stream`."""
        wanted = ops.stream_arguments(
            key, shards, max_age, max_bytes, tombstone_lease, history, pin_bytes_max, arguments
        )
        if create and self.group_name != MAIN:
            # Main knows all streams, and counts them: one that it has not heard of would be nobody's.
            wanted = {"x-group": self.group_name, **wanted}
            return await self.group(MAIN).stream(name, create=True, arguments=wanted)
        try:
            found = await self.call(ops.declare(name, wanted) if create else ops.info(name))
        except StreamElsewhere as elsewhere:
            return await self.group(elsewhere.group).stream(name)
        except NotFound:
            if not await self._make_missing(name):
                raise
            return AsyncStream(self, name)
        if not found.group or found.group == self.group_name:
            return AsyncStream(self, name)
        there = self.group(found.group)
        await there.call(ops.declare(name, {**found.facts.get("arguments", {}), **wanted}))
        return AsyncStream(there, name)

    async def streams(self) -> list[StreamInfo]:
        """All streams of the virtual host: of a client of main those in all groups, of any other those in its own."""
        found = [ops.placed(one, self.group_name) for one in await self.call(ops.list_streams())]
        elsewhere = {one.group for one in found} - {self.group_name}
        there = [one for group in sorted(elsewhere) for one in await self.group(group).streams()]
        described = {(one.group, one.name): one for one in there}
        return [described.get((one.group, one.name), one) for one in found]

    async def delete_stream(self, name: str) -> None:
        """Delete a stream with everything in it."""
        main = self.group(MAIN)
        try:
            await main.call(ops.delete_stream(name))
        except StreamElsewhere as elsewhere:
            await self._delete_there(name, elsewhere.group, elsewhere.number)

    async def _delete_there(self, name: str, group: str, number: int) -> None:
        """Delete a stream in its group, where it may be gone when this was begun before, and then its name in main."""
        with contextlib.suppress(NotFound):
            await self.group(group).call(ops.delete_stream(name))
        # At once: what is published to a name that is still there makes the stream again.
        await self.group(MAIN).call(ops.forget_stream(name, number))

    # Partitioned streams ------------------------------------------------------------------------

    async def partitioned(
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
    ) -> AsyncPartitioned:
        """One name for several streams, over which keys are spread. See `blocking.Client.partitioned`."""
        main = self.group(MAIN)
        if create is None:
            layout = await main.call(ops.partitions(name))
            for one in layout.partitions:
                if one.group != main.group_name:
                    self.group(one.group)._unseen.expect(one.stream, name)
        else:
            wanted = ops.stream_arguments(
                key, shards, max_age, max_bytes, tombstone_lease, history, pin_bytes_max, arguments
            )
            layout = await main.call(ops.partition(name, create, groups, wanted))
            for one in layout.partitions:
                if one.group != main.group_name:
                    there = {**one.arguments, **wanted, "x-group": one.group}
                    await self.group(one.group).call(ops.declare(one.stream, there))
        return AsyncPartitioned(
            name, [AsyncStream(self.group(one.group), one.stream) for one in layout.partitions]
        )

    async def delete_partitioned(self, name: str) -> None:
        """Delete a partitioned stream with everything in its partitions."""
        main = self.group(MAIN)
        for one in (await main.call(ops.partitions(name, partial=True))).partitions:
            if one.group == main.group_name:
                await main.call(ops.delete_stream(one.stream))
            else:
                await self._delete_there(one.stream, one.group, one.number)
        # Last, for a group may be out of reach: while the name is here all of it can be done again.
        await main.call(ops.unpartition(name))

    async def see(self, stream: str) -> None:
        """Look at a partition that was not seen in its group yet, so that it is made there if it is missing."""
        if stream in self._unseen:
            await self.call(ops.info(stream))

    async def _made(self, partitions: Mapping[str, str]) -> bool:
        """Whether one of them was missing and could be made."""
        made = [one for one, whole in partitions.items() if await self._make_missing(one, whole)]
        self._unseen.saw(made)
        return bool(made)

    async def _make_missing(self, stream: str, whole: str | None = None) -> bool:
        """Make a stream that main says lives here, as main has it. See `blocking.Client._make_missing`."""
        main = self.group(MAIN)
        if main is self:
            return False
        known = ops.declared(stream, self.group_name, whole)
        with contextlib.suppress(NotFound, AccessRefused, PreconditionFailed):
            await main.call(known)
            await asyncio.sleep(MAKE_AFTER_S)
            await self.call(ops.declare(stream, await main.call(known)))
            return True
        return False

    async def heads(
        self, streams: Sequence[str], *, after: Mapping[str, int] | None = None, wait: float = 0
    ) -> dict[str, Head]:
        """How far streams go; with `after` and `wait`, as soon as one goes further than that."""
        return await self.call(ops.heads(streams, after, wait), self.timeout + wait)

    # Writing ------------------------------------------------------------------------------------

    def transaction(self) -> AsyncTransaction:
        """Changes that become visible together or not at all: `async with db.transaction() as tx: tx.put(…)`."""
        return AsyncTransaction(self.call)

    def producer(self, name: str) -> Opening[AsyncProducer]:
        """A writer whose writes are stored once, however often a broken connection makes us send them."""
        return Opening(self._producer(name))

    async def _producer(self, name: str) -> AsyncProducer:
        return AsyncProducer(self, name, await self.call(ops.producer(name)))

    async def forget_producer(self, name: str) -> None:
        """Let the broker forget a producer that is done for good. See `blocking.Client.forget_producer`."""
        await self.call(ops.forget_producer(name))

    async def await_safe(
        self, receipt: Receipt, *, replicas: int = 1, disks: int = 1, timeout: float | None = None
    ) -> Safety:
        """Whether a write is on so many nodes, on so many disks: waits for `yes`, at most `timeout` seconds."""
        end = time.monotonic() + (self.timeout if timeout is None else timeout)
        while True:
            left = end - time.monotonic()
            wait = max(0.0, min(left, SAFE_WAIT_S))
            answer = await self.call(ops.safe(receipt, replicas, disks, wait), wait + self.timeout)
            if answer != "not yet" or left <= SAFE_WAIT_S:
                return answer

    # Calls --------------------------------------------------------------------------------------

    async def call(self, call: Call[T], timeout: float | None = None) -> T:
        """Do one operation, over a new connection if the old one breaks and it does no harm."""
        return (await self.perform(call, timeout)).answer

    async def perform(self, call: Call[T], timeout: float | None = None) -> Performed[T]:
        """The same; also says over which connection it went in the end, and how often it was sent."""
        seconds = self.timeout if timeout is None else timeout
        deadline, tries = time.monotonic() + seconds, Tries(call, seconds)
        route = self._reads if call.reads else self._writes
        unseen = self._unseen.named_by(call)
        while True:
            link = await self._link(route, deadline)
            pending: Pending | None = None
            try:
                await link.room(deadline)
                pending = link.start(call.header, call.payload)
                tries.count += 1
                found = Performed(call.answer(*await link.result(pending, deadline)), tries.count, link)
                pending = None
                self._unseen.saw(unseen)
                return found
            except NoAnswerYet:
                raise tries.no_answer(sent=pending is not None) from None
            except Lost as lost:
                tries.lost(lost)
            except NotATail as refusal:
                await self.to_tails(link, refusal, deadline)
                route = self._reads
            except ASK_LEADER as refusal:
                if route.reads:
                    route = self._writes
                    continue
                if tries.was_done(refusal):
                    return Performed(call.answer({}, memoryview(b"")), tries.count, link)
                if not isinstance(refusal, NotFound) or not await self._made(unseen):
                    raise
                unseen = {}
                tries.count -= 1  # what was refused was not done
            finally:
                if pending is not None:
                    link.drop(pending, close=False)

    async def link(self, deadline: float | None = None) -> Link:
        """A connection for writes that works, as far as we know."""
        return await self._link(self._writes, self.deadline() if deadline is None else deadline)

    async def reader(self, deadline: float | None = None) -> Link:
        """A connection for reads that works, as far as we know."""
        return await self._link(self._reads, self.deadline() if deadline is None else deadline)

    async def to_tails(self, link: Link, refusal: NotATail, deadline: float) -> None:
        """Whoever this link goes to shows no rows: the next `reader` is a tail, as far as that is known.

        Raises:
            NotATail: they cannot be found, or not in time.
        """
        again = self._cluster.turn_to_tails(refusal)
        if not self._reads.reads:
            self._reads = Route(self._target, reads=True)
        self._reads.leave(link)
        if again:
            if time.monotonic() + TAIL_AGAIN_S > deadline:
                raise refusal
            await asyncio.sleep(TAIL_AGAIN_S)

    @property
    def reads_elsewhere(self) -> bool:
        """Reads may go to members that do not lead."""
        return self._reads.reads

    def deadline(self) -> float:
        """When a call that begins now has taken too long."""
        return time.monotonic() + self.timeout

    async def _link(self, route: Route, deadline: float) -> Link:
        link = route.current
        if link is not None and link.broken is None:
            return link
        try:
            async with asyncio.timeout(left_until(deadline)):
                await route.connecting.acquire()
        except TimeoutError:
            raise NotConnected(
                addresses=route.endpoints.names, problem="another task is still trying"
            ) from None
        try:
            if self._closed:
                raise ClientClosed
            link = route.current
            if link is None or link.broken is not None:
                link = route.current = await self._connect(route, deadline)
                link.ask_others = partial(self._ask_others, route, link)
            if self._closed:
                link.close()
                raise ClientClosed
            return link
        finally:
            route.connecting.release()

    async def _connect(self, route: Route, deadline: float) -> Link:
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
            if wait:
                await asyncio.sleep(wait)
            if self._closed:
                raise ClientClosed
            limit = min(left, dialling.patience(spare=spare is not None))
            try:
                link = await self._greet(address, time.monotonic() + limit, reads=route.reads)
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
        """Somebody waits for this member, which says nothing: a task asks others about it."""
        inquiry = Inquiry(self._cluster, route.endpoints, link.address, link.welcome, reads=route.reads)
        asking = asyncio.get_running_loop().create_task(self._inquire(inquiry, link))
        self._asking.add(asking)
        asking.add_done_callback(self._asking.discard)

    async def _inquire(self, inquiry: Inquiry, link: Link) -> None:
        while link.doubtful and (found := inquiry.next()) is not None:
            address, wait = found
            await asyncio.sleep(wait)
            with contextlib.suppress(*NOT_LET_IN, TidemarkError):
                other = await self._greet(address, time.monotonic() + DIRECT_S_MAX, reads=True)
                try:
                    await self._ask(other, inquiry, link)
                finally:
                    other.close()

    async def _ask(self, other: Link, inquiry: Inquiry, link: Link) -> None:
        """Ask one of the others, until there is no doubt any more. Raises Lost, NoAnswerYet, TidemarkError."""
        answer = other.welcome
        while link.doubtful:
            if (why := inquiry.told(answer)) is not None:
                link.replaced(why)
            else:
                await asyncio.sleep(ASK_AGAIN_S)
                deadline = time.monotonic() + DIRECT_S_MAX
                answer, _ = await other.result(other.start(ops.members().header), deadline)

    async def _greet(self, address: Address, deadline: float, *, reads: bool) -> Link:
        target, link = self._target, None
        try:
            async with asyncio.timeout(left_until(deadline)):
                machine = protocol.Connection(
                    target.user, target.password, target.vhost, self._name, reads=reads, group=self._group
                )
                _, link = await asyncio.get_running_loop().create_connection(
                    lambda: Link(machine, address, self._seen, reads=reads),
                    address.host,
                    address.port,
                    ssl=self._tls,
                )
            await link.open(deadline)
        except TimeoutError:
            raise NoAnswerYet("it does not answer") from None
        except BaseException:
            if link is not None:
                link.close()
            raise
        return link


def connect_async(
    url: str = "tidemark://guest:guest@127.0.0.1:5672/",
    *,
    timeout: float = 30.0,
    tls: ssl.SSLContext | None = None,
    name: str = "tidemark-python",
    read_from: ReadFrom = "leader",
    group: str | None = None,
) -> Opening[AsyncClient]:
    """A client that is logged in: `async with connect_async(url) as db`. See `blocking.connect`."""

    async def opened() -> AsyncClient:
        client = AsyncClient(
            parse_url(url), timeout=timeout, tls=tls, name=name, read_from=read_from, group=group
        )
        await client.link()
        return client

    return Opening(opened())


# Streams --------------------------------------------------------------------------------------------


class AsyncStream:
    """One stream. Made by `AsyncClient.stream`; see `blocking.Stream`."""

    def __init__(self, client: AsyncClient, name: str) -> None:
        self._client = client
        self._name = name

    @property
    def name(self) -> str:
        return self._name

    @property
    def client(self) -> AsyncClient:
        """The client of the group that it lives in: what writes to it together is a transaction of that one."""
        return self._client

    def __repr__(self) -> str:
        return f"<AsyncStream {self._name!r}>"

    async def info(self) -> StreamInfo:
        """Counts, shards, sequences, as they are now."""
        return ops.placed(await self._client.call(ops.info(self._name)), self._client.group_name)

    async def grow(self, shards: int) -> StreamInfo:
        """Spread the keys over more shards, while everything goes on."""
        grown = await self._client.call(ops.declare(self._name, {"x-stream-shards": shards}))
        return ops.placed(grown, self._client.group_name)

    async def truncate(self, upto: Position) -> int:
        """End everything up to and with a sequence, as retention does. How many rows that were.

        See `blocking.Stream.truncate`.
        """
        return await self._client.call(ops.truncate(self._name, place_of(upto)))

    async def purge(self) -> int:
        """End all that is there, tombstones too; consumers that come back are told to start over. How many rows."""
        return await self._client.call(ops.purge(self._name))

    # Writing ------------------------------------------------------------------------------------

    async def put(
        self,
        key: Bytes | None,
        value: Bytes,
        *,
        headers: Mapping[str, Any] | None = None,
        expected: int | None = None,
    ) -> Receipt:
        """Store a row; when this returns it is on the disk."""
        return await self._client.call(ops.put(self._name, ops.one_put(key, value, headers, expected)))

    async def put_many(self, rows: Any) -> Receipt:
        """Store many rows, all or none: pairs, or an Arrow table."""
        return await self._client.call(ops.put(self._name, ops.writes(rows)))

    async def delete(self, key: Bytes, *, expected: int | None = None) -> Receipt:
        """Delete a key."""
        return await self._client.call(ops.put(self._name, ops.one_delete(key, expected)))

    # Reading ------------------------------------------------------------------------------------

    async def get(self, key: Bytes) -> Row | None:
        """The newest version of a key; None if it has none or was deleted."""
        row = await self._client.call(ops.get(self._name, key))
        return None if row is None or row.deleted else row

    def snapshot(
        self, *, after: Position | None = None, progress: Progress | None = None
    ) -> Opening[AsyncSnapshot]:
        """What the stream holds now, frozen; with `after`, only what changed since then."""
        return Opening(self._snapshot(after, None, progress))

    def as_of(
        self,
        *,
        sequence: Position | None = None,
        time: datetime | float | None = None,
        progress: Progress | None = None,
    ) -> Opening[AsyncSnapshot]:
        """What the stream held then, by sequence or by time."""
        return Opening(self._snapshot(None, moment_of(sequence, time), progress))

    async def _snapshot(
        self, after: Position | None, at: int | Header | None, progress: Progress | None
    ) -> AsyncSnapshot:
        history, start = (None, 0) if after is None else position_of(after)
        opened = await self._client.perform(ops.snapshot(self._name, after=start, history=history, at=at))
        return AsyncSnapshot(self._client, opened.link, self._name, opened.answer, progress)

    def pin(self, name: str, *, lease: float = 3600.0, at: int | datetime | None = None) -> Opening[AsyncPin]:
        """Keep what the stream holds now readable under a name."""
        return Opening(self._pin(name, lease, at))

    async def _pin(self, name: str, lease: float, at: int | datetime | None) -> AsyncPin:
        opened = await self._client.perform(ops.snapshot(self._name, at=place_of(at), pin=name, lease=lease))
        await AsyncSnapshot(self._client, opened.link, self._name, opened.answer).close()
        return AsyncPin(self._client, self._name, name, opened.answer)

    async def pinned(self, name: str) -> AsyncPin:
        """A pin that exists."""
        return AsyncPin(self._client, self._name, name, await self._client.call(ops.pinned(self._name, name)))

    async def lag(self, after: Position, shards: Sequence[int] | None = None) -> Lag:
        """How many rows, and bytes of values, lie behind a place now: each key once, deleted ones included."""
        return await self._client.call(ops.lag(self._name, place_of(after), shards))

    async def pins(self) -> list[PinInfo]:
        return await self._client.call(ops.pins(self._name))

    def diff(self, a: Position, b: Position) -> AsyncDiff:
        """What changed and what was deleted after `a`, up to `b`."""
        return AsyncDiff(self._client, self._name, place_of(a), place_of(b))

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
    ) -> AsyncFollower:
        """Rows as they come: `async with s.follow("loader") as batches: async for batch in batches: …`"""
        following = Following(
            self._name, consumer=consumer, start=start, commit=commit, shards=shards, columns=columns
        )
        return AsyncFollower(self._client, following, on_reset=on_reset, idle=idle, lease=lease)

    async def register(self, consumer: str, *, lease: float | None = None, passing: bool = False) -> None:
        """Make a consumer known, so that deletes wait for it from now on. See `blocking.Stream.register`."""
        await self._client.call(ops.register(self._name, consumer, lease, passing))

    async def unregister(self, consumer: str) -> None:
        """Forget a consumer and its mark."""
        await self._client.call(ops.unregister(self._name, consumer))

    async def mark(self, consumer: str) -> Mark | None:
        """How far a consumer has come."""
        return await self._client.call(ops.mark(self._name, consumer))

    async def marks(self) -> list[Mark]:
        """How far all consumers have come."""
        return await self._client.call(ops.marks(self._name))

    async def move_mark(
        self, consumer: str, position: Position, *, shard: int | None = None, of: int | None = None
    ) -> None:
        """Say that a consumer has finished with everything up to there; in one `shard`, say `of` how many."""
        history, sequence = position_of(position)
        await self._client.call(ops.move_mark(self._name, consumer, sequence, history, shard, of=of))

    async def reset_mark(self, consumer: str, sequence: int = 0) -> None:
        """Send a consumer back (or ahead), by default to the beginning."""
        await self._client.call(ops.reset_mark(self._name, consumer, sequence))


# Passes over many rows ------------------------------------------------------------------------------


class AsyncRows(Passes):
    """Something that can be read, in whole or in part, any number of times. See `blocking.Rows`."""

    def __init__(
        self, client: AsyncClient, stream: str, expected: int, progress: Progress | None = None
    ) -> None:
        super().__init__(stream, expected, progress)
        self._client = client
        self._link: Link | None = None
        """The only connection that can read this; None: any can."""

    async def rows(
        self,
        *,
        after: int | None = None,
        until: int | None = None,
        shards: Sequence[int] | None = None,
        key_from: Bytes | None = None,
        key_to: Bytes | None = None,
        columns: Sequence[str] | None = None,
    ) -> AsyncIterator[Row]:
        """The rows in the order of their sequence."""
        part = Range(
            after=after, until=until, shards=shards, key_from=key_from, key_to=key_to,
            columns=columns or ROW_COLUMNS,
        )  # fmt: skip
        reading = self._reading(part, "rows")
        async for frame in self._pass(reading):
            for row in reading.rows(*frame):
                yield row

    async def batches(
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
    ) -> AsyncIterator[pa.RecordBatch]:
        """The same as Arrow record batches, as the broker made them."""
        part = Range(
            after=after, until=until, shards=shards, key_from=key_from, key_to=key_to,
            columns=columns, batch_bytes=batch_bytes, verify=verify,
        )  # fmt: skip
        reading = self._reading(part, "arrow")
        async for frame in self._pass(reading):
            for batch in reading.batches(*frame):
                yield batch

    async def to_arrow(self, **part: Any) -> pa.Table:
        """Everything as one Arrow table; takes what `batches` takes."""
        pa = package("pyarrow", "to_arrow()")
        found = [batch async for batch in self.batches(**part)]
        assert self._last is not None
        return pa.Table.from_batches(found, found[0].schema if found else self._last.schema)

    async def to_pandas(self, **part: Any) -> Any:
        """Everything as a pandas DataFrame."""
        package("pandas", "to_pandas()")
        return (await self.to_arrow(**part)).to_pandas()

    async def to_polars(self, **part: Any) -> Any:
        """Everything as a Polars DataFrame."""
        return package("polars", "to_polars()").from_arrow(await self.to_arrow(**part))

    def __aiter__(self) -> AsyncIterator[Row]:
        return self.rows()

    async def _pass(self, reading: Reading) -> AsyncIterator[tuple[Header, memoryview]]:
        client = self._client
        deadline, begun, find = client.deadline(), False, client.reader
        while True:
            link = self._link or await find(deadline)
            pending: Pending | None = None
            try:
                pending = link.start(reading.header)
                while (frame := await link.next(pending, client.deadline())) is not None:
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
                await client.to_tails(link, refusal, deadline)
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


class AsyncFrozen(OfView, AsyncRows):
    """What a snapshot and a pin have in common: they show the same for as long as they exist."""

    def __init__(
        self,
        client: AsyncClient,
        stream: str,
        view: View,
        pin: str | None,
        progress: Progress | None = None,
    ) -> None:
        super().__init__(client, stream, view.live + view.tombstones, progress)
        self._view = view
        self._pin = pin

    async def cut(
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
        """Cut it into consecutive pieces, for readers that share the work. See `blocking.Frozen.cut`."""
        call = ops.cut(
            self._view, self._stream, self._pin,
            after=after, until=until, shards=shards, rows=rows, bytes=bytes, parts=parts, limit=limit,
        )  # fmt: skip
        client, link = self._client, self._link
        if link is None:
            return await client.call(call)
        pending: Pending | None = None
        try:
            pending = link.start(call.header)
            return call.answer(*await link.result(pending, client.deadline()))
        except Lost as lost:
            raise self._interrupted(lost) from None
        except NoAnswerYet:
            raise TimedOut(operation=call.name, timeout_s=client.timeout) from None
        finally:
            if pending is not None:
                link.drop(pending)


class AsyncSnapshot(OfSnapshot, AsyncFrozen):
    """A frozen view of a stream, held open by this connection."""

    def __init__(
        self, client: AsyncClient, link: Link, stream: str, view: View, progress: Progress | None = None
    ) -> None:
        super().__init__(client, stream, view, None, progress)
        self._link: Link = link
        self._closed = False

    def __del__(self) -> None:
        if not self._closed:
            self._link.abandon(self._view.id)

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        await self.close()

    async def close(self) -> None:
        """Let the broker forget it; what only this snapshot could see is freed."""
        if self._closed:
            return
        self._closed = True
        with contextlib.suppress(Lost, NoAnswerYet, TidemarkError):
            call = ops.close_snapshot(self._view.id)
            await self._link.result(self._link.start(call.header), time.monotonic() + 5)


class AsyncPin(AsyncFrozen):
    """A snapshot with a name and a lease; it outlives connections and restarts of the broker."""

    def __init__(self, client: AsyncClient, stream: str, name: str, view: View) -> None:
        super().__init__(client, stream, view, name)
        self.name = name

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        with contextlib.suppress(*(() if kind is None else (TidemarkError,))):
            await self.release()

    def read(self, **part: Any) -> AsyncIterator[Row]:
        """The rows, or a part of them; takes what `rows` takes. The same bytes every time."""
        return self.rows(**part)

    async def renew(self, lease: float = 3600.0) -> None:
        """Keep it for so many seconds from now."""
        await self._client.call(ops.renew(self._stream, self.name, lease))

    async def release(self) -> None:
        """It is no longer needed."""
        await self._client.call(ops.release(self._stream, self.name))


class AsyncDiff(OfDiff, AsyncRows):
    """What lies between two snapshots: rows that changed, and tombstones of those that were deleted."""

    def __init__(
        self, client: AsyncClient, stream: str, a: int | Header | None, b: int | Header | None
    ) -> None:
        super().__init__(client, stream, 0)
        self._ends = a, b


# A subscription -------------------------------------------------------------------------------------


class AsyncFollower:
    """A subscription that outlives connections.

    Use it with `async with`: its end stores the last mark. Without it that is left to the loop, some time later.
    """

    def __init__(
        self,
        client: AsyncClient,
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
        self.next_frame: Callable[[Link, Pending], Awaitable[Frame | None]] = self._frame
        """How it waits for what comes next; who follows several streams at once has a way of his own."""
        self._iterating: AsyncGenerator[Batch, None] | None = None

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if self._iterating is not None:
            await self._iterating.aclose()

    def __aiter__(self) -> AsyncIterator[Batch]:
        self._iterating = self._run()
        return self._iterating

    async def commit(self, batch: Batch) -> None:
        """Move the consumer's mark to the end of a batch; when this returns it is on the disk."""
        if self._following.consumer is None:
            raise ValueError("only a consumer with a name has a mark: follow(consumer=…)")
        await self._client.call(self._call(batch))

    async def _run(self) -> AsyncGenerator[Batch, None]:
        client, following, anew, refusals = self._client, self._following, False, Refusals()
        if following.consumer is not None:
            await client.call(ops.register(following.stream, following.consumer, self._lease))
        else:
            await client.see(following.stream)
        at_leader = await self._find_start()
        try:
            while True:
                link = await (client.link() if at_leader else client.reader())
                try:
                    pending = link.start(following.begin(anew=anew))
                except Lost:
                    continue
                try:
                    async for batch in self._batches(link, pending):
                        yield batch
                    return
                except NotATail as refusal:
                    await client.to_tails(link, refusal, refusals.deadline(client.timeout))
                    at_leader = False
                    if following.from_mark:
                        await self._begin_at_mark()
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
                        await client.call(ops.reset_mark(following.stream, following.consumer, 0))
                    yield Batch(None, 0, "", reset=True)
                    anew = True
                finally:
                    link.drop(pending)
        finally:
            await self._settle()

    async def _find_start(self) -> bool:
        """Where the consumer's mark is, which only the leader knows. True: the reading must begin there, too."""
        client, following = self._client, self._following
        if not client.reads_elsewhere or not following.from_mark:
            return False
        if following.sharded:
            return True
        assert following.consumer is not None
        mark = await client.call(ops.mark(following.stream, following.consumer))
        if mark is None:
            return True
        following.begin_at(mark)
        return False

    async def _begin_at_mark(self) -> None:
        """The same where the leader shows no rows: begin where all shards have come to that are read."""
        client, following = self._client, self._following
        assert following.consumer is not None
        shards = (await client.call(ops.info(following.stream))).shards if following.sharded else 1
        mark = await client.call(ops.mark(following.stream, following.consumer))
        following.begin_at_least(mark, shards)

    async def _batches(self, link: Link, pending: Pending) -> AsyncIterator[Batch]:
        following = self._following
        while True:
            frame = await self.next_frame(link, pending)
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
            await self._move()

    async def _frame(self, link: Link, pending: Pending) -> Frame | None:
        """What comes next; None: nothing for long enough."""
        deadline = None if self._idle is None else time.monotonic() + self._idle
        try:
            return await link.next(pending, deadline)
        except NoAnswerYet:
            return None

    def _call(self, batch: Batch) -> Call[None]:
        return self._following.mark(batch)

    async def _move(self) -> None:
        """Send the mark on its way, one at a time; a newer one waits until the one before is stored."""
        if self._moving is not None:
            link, pending, batch = self._moving
            if not pending.done:
                return
            self._moving = None
            try:
                await link.result(pending, None)
            except Lost:
                self._wanted = batch if self._wanted is None else self._wanted
        if self._wanted is not None:
            batch, link = self._wanted, await self._client.link()
            try:
                self._moving = link, link.start(self._call(batch).header), batch
            except Lost:
                return  # it is tried again with the next batch
            self._wanted = None

    async def _settle(self) -> None:
        """Whatever mark is to be stored is stored."""
        if self._moving is not None:
            link, pending, batch = self._moving
            self._moving = None
            try:
                await link.result(pending, self._client.deadline())
            except (Lost, NoAnswerYet):
                self._wanted = batch if self._wanted is None else self._wanted
        if self._wanted is not None:
            batch, self._wanted = self._wanted, None
            await self._client.call(self._call(batch))


# Writing ----------------------------------------------------------------------------------------------


class AsyncTransaction(Changes):
    """Made by `AsyncClient.transaction`; sent when its `async with` block ends without an error."""

    def __init__(self, send: Callable[[Call[Receipt]], Awaitable[Receipt]]) -> None:
        super().__init__()
        self._send = send
        self.receipt: Receipt | None = None
        """Set when it is stored."""

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if kind is None:
            await self.commit()

    async def commit(self) -> Receipt | None:
        """Store all of it; None when there is nothing to store."""
        if len(self) and self.receipt is None:
            self.receipt = await self._send(self._operations.commit())
        return self.receipt


class AsyncProducer(Numbering):
    """A writer with a name, whose writes are numbered: a resend is confirmed, not stored again.

    Its writes go one after the other, whatever tasks they come from. See `blocking.Producer`.
    """

    def __init__(self, client: AsyncClient, name: str, last: int) -> None:
        super().__init__(name, last)
        self._client = client
        self._lock = asyncio.Lock()

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if kind is None:
            await self.settle()

    async def put(
        self,
        stream: str | Named,
        key: Bytes | None,
        value: Bytes,
        *,
        headers: Mapping[str, Any] | None = None,
        expected: int | None = None,
        number: int | None = None,
    ) -> Receipt:
        """As `AsyncStream.put`, once."""
        writes = ops.one_put(key, value, headers, expected)
        return await self._write(lambda numbered: ops.put(stream_name(stream), writes, numbered), number)

    async def put_many(self, stream: str | Named, rows: Any, *, number: int | None = None) -> Receipt:
        """As `AsyncStream.put_many`, once."""
        writes = ops.writes(rows)
        return await self._write(lambda numbered: ops.put(stream_name(stream), writes, numbered), number)

    async def delete(
        self, stream: str | Named, key: Bytes, *, expected: int | None = None, number: int | None = None
    ) -> Receipt:
        """As `AsyncStream.delete`, once."""
        writes = ops.one_delete(key, expected)
        return await self._write(lambda numbered: ops.put(stream_name(stream), writes, numbered), number)

    def transaction(self, *, number: int | None = None) -> AsyncTransaction:
        """As `AsyncClient.transaction`, once."""
        return AsyncTransaction(
            lambda call: self._write(lambda numbered: ops.renumbered(call, numbered), number)
        )

    async def settle(self) -> None:
        """Send again what is in doubt, until it is answered."""
        async with self._lock:
            await self._settle()

    async def _settle(self) -> None:
        if self._doubt is not None:
            await self._send(self._doubt)

    async def _write(self, make: Callable[[Numbered], Call[Receipt]], number: int | None) -> Receipt:
        async with self._lock:
            await self._settle()
            done = await self._send(self._numbered(make, number))
            return self._checked(done.answer, done.attempts, number)

    async def _send(self, call: Call[Receipt]) -> Performed[Receipt]:
        with self._in_doubt(call):
            found = await self._client.perform(call)
        return found  # noqa: RET504
