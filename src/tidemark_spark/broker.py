"""The broker as the connector needs it: one stream, its pins and marks, and rows as Arrow batches.

`Feed` is what planning asks for; `BrokerFeed` asks a broker over one connection of this process, which is kept for the
next micro-batch. A stream that lives in another group of a cluster is asked for there from the first refusal on, and
tasks are given that address (`url`). `read` is what tasks do: one slice of a pinned snapshot after the other. Whatever the connection
does meanwhile, a read goes on behind the last row that it handed on, for the pin shows the same rows again, at every
member of a cluster and after any of them has failed.

Invariant: `read` hands on every row of its slices once, or raises.
"""

from __future__ import annotations

import contextlib
import logging
import math
import os
import random
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, NamedTuple, Protocol, TypeVar

from tidemark.client import Client
from tidemark.client import operations as ops
from tidemark.client.address import parse_url, with_group
from tidemark.client.blocking import Link, Stream
from tidemark.client.cluster import ReadFrom
from tidemark.client.errors import ClientClosed, NotConnected, TimedOut
from tidemark.client.exchange import Pending
from tidemark.client.operations import Call, Header
from tidemark.client.reading import Range, Reading
from tidemark.client.values import Cut, Receipt
from tidemark.client.waiting import ASK_LEADER, Lost, NoAnswerYet
from tidemark.errors import NotATail, NotFound, PinExpired, StreamElsewhere, TidemarkError
from tidemark_spark.errors import BrokerAway, ConnectorError, DataLost, StreamMissing, StreamPartitioned
from tidemark_spark.planning import Slice, Task
from tidemark_spark.schema import Shaper, asked

if TYPE_CHECKING:
    import pyarrow as pa

T = TypeVar("T")

log = logging.getLogger("tidemark.spark")

FRAME_S_MAX = 30.0
"""A broker that sends nothing of a read for so long is asked again."""
WAIT_FIRST_S = 0.1
WAIT_S_MAX = 5.0
AWAY = (NotConnected, TimedOut, ClientClosed)
PIN_GONE = (NotFound, PinExpired)
"""What a broker says of a pin whose lease ended, or that somebody released."""
TOMBSTONE_LEASE_S = 7 * 86400.0
"""A stream's tombstone lease when it was declared without one."""


class Head(NamedTuple):
    """How far a stream goes, and what of it has ended."""

    history: str
    sequence: int
    shards: int
    floor: int = 0
    """Rows with a lower sequence were ended by retention, truncate or purge; the one right below it was."""
    purged: int = 0
    """Deletes up to here are no longer told."""
    number: int = 0
    """Another stream of the same name has another one."""


class Pin(NamedTuple):
    """A pinned snapshot."""

    name: str
    history: str
    sequence: int
    shards: int
    floor: int = 0
    """As in `Head`, of the moment that it shows."""
    purged: int = 0


class Identity(NamedTuple):
    """What a stream is, as far as it does not change by itself."""

    number: int
    tombstone_lease_s: float = TOMBSTONE_LEASE_S
    """How long a consumer that is away may be away."""
    has_deletes: bool = True
    """Not so in a log, where every row stays as it is until it ends."""


Move = tuple[str, str, int, int | None]
"""A mark that moves: consumer, history, sequence, and the end of the snapshot that it is in."""


class Turned(NamedTuple):
    """What became of a turn."""

    pin: Pin | None
    absent: list[str]
    """Pins that were to be released and were not there."""
    mark_problem: str


class Feed(Protocol):
    """One stream, as planning sees it. Every call may raise BrokerAway, and StreamMissing when there is no stream."""

    stream: str

    @property
    def url(self) -> str:
        """Where it was found: with the group of the cluster that it lives in."""
        ...

    def identify(self) -> Identity:
        """Which stream it is: another one of the same name has another number."""
        ...

    def head(self, after: int | None = None, wait_s: float = 0.0) -> Head:
        """How far it goes; waits so long for something behind `after`."""
        ...

    def check(self, history: str, sequence: int) -> None:
        """Whether one can go on from there.

        Raises:
            LostBranch: it was taken back by a failure.
            StreamReset: deletes after it are no longer known.
        """
        ...

    def sequence_at(self, ms: int) -> tuple[str, int]:
        """The place behind which everything was accepted at that time or later."""
        ...

    def lag(self, after: int) -> int:
        """How many rows lie behind a place now."""
        ...

    def pin(self, name: str, lease_s: float, at: int | Header | None = None) -> Pin:
        """Pin the stream as it is now, or was then. A name that there is stays what it is, and is renewed.

        Raises:
            HistoryGone: versions of that age are no longer kept.
        """
        ...

    def pinned(self, name: str, lease_s: float) -> Pin | None:
        """Renew a pin; None when there is none of this name (any more)."""
        ...

    def renew(self, name: str, lease_s: float) -> bool:
        """Let the lease of a pin begin again; False when there is none of this name (any more)."""
        ...

    def release(self, name: str) -> bool:
        """Let go of a pin; False when there was none of this name."""
        ...

    def turn(self, *, pin: str | None, lease_s: float, release: Sequence[str], mark: Move | None) -> Turned:
        """Move a mark, let go of pins and make a new one, all in one round trip; what is None is not done."""
        ...

    def pins(self, prefix: str) -> list[str]:
        """The names of pins that begin so."""
        ...

    def cut(
        self,
        pin: str,
        part: Slice,
        *,
        rows: int | None = None,
        bytes: int | None = None,
        parts: int | None = None,
        limit: int | None = None,
    ) -> Sequence[Cut]:
        """Consecutive pieces of a slice of a pin.

        Raises:
            PIN_GONE: there is no such pin (any more).
        """
        ...

    def register(self, group: str) -> None:
        """Deletes are kept for this consumer from now on."""
        ...

    def mark(self, group: str) -> tuple[str, int] | None:
        """How far a consumer has come."""
        ...

    def forget(self, group: str) -> None:
        """Forget a consumer and its mark; it is no error when there is none."""
        ...


# Connections ---------------------------------------------------------------------------------------

_clients: dict[tuple[int, str, float, ReadFrom], Client] = {}
_opening = threading.Lock()


def client_of(url: str, retry_s: float, read_from: ReadFrom = "leader") -> Client:
    """The connection of this process to a broker; opened with the first call. A call takes `retry_s` at most."""
    timeout = min(FRAME_S_MAX, max(retry_s, 1.0))
    key = (
        os.getpid(),
        url,
        timeout,
        read_from,
    )  # what a parent process had is not ours: two would read one socket
    with _opening:
        if key not in _clients:
            target = parse_url(url)
            _clients[key] = Client(target, timeout=timeout, name="tidemark-spark", read_from=read_from)
        return _clients[key]


def forget_clients() -> None:
    """Close the connections of this process."""
    with _opening:
        mine = [key for key in _clients if key[0] == os.getpid()]
        for key in mine:
            _clients.pop(key).close()


class Patience:
    """How long to go on trying, and how long to rest in between: longer each time, with dice."""

    def __init__(self, work: str, seconds: float) -> None:
        self._work = work
        self._seconds = seconds
        self._since = time.monotonic()
        self._wait = WAIT_FIRST_S

    def succeeded(self) -> None:
        self._since, self._wait = time.monotonic(), WAIT_FIRST_S

    def failed(self, problem: Exception) -> None:
        """Rest, then it may be tried again.

        Raises:
            BrokerAway: it has failed for long enough.
        """
        now = time.monotonic()
        left = self._seconds - (now - self._since)
        if left <= 0:
            raise BrokerAway(work=self._work, waited_s=now - self._since, problem=str(problem)) from problem
        time.sleep(min(left, self._wait * random.uniform(0.5, 1.0)))
        self._wait = min(self._wait * 2, WAIT_S_MAX)


# The feed ------------------------------------------------------------------------------------------


class BrokerFeed:
    """A stream of a real broker."""

    def __init__(self, url: str, stream: str, *, retry_s: float, place: str) -> None:
        self.stream = stream
        self._url = url
        self._retry_s = retry_s
        self._place = place

    @property
    def url(self) -> str:
        return self._url

    def identify(self) -> Identity:
        facts = self._call(ops.info(self.stream)).facts
        lease_ms = facts["arguments"].get("x-stream-tombstone-lease")
        return Identity(
            facts["number"],
            TOMBSTONE_LEASE_S if lease_ms is None else lease_ms / 1000,
            has_deletes=facts["key"] != "log",
        )

    def head(self, after: int | None = None, wait_s: float = 0.0) -> Head:
        known = None if after is None else {self.stream: after}
        # One that is deleted while we wait is missing in the answer: then we ask again and are told so.
        found = self._try(
            lambda client: client.heads([self.stream], after=known, wait=wait_s).get(self.stream)
        )
        if found is None:
            return self.head()
        return Head(found.history, found.sequence, found.shards, found.floor, found.purged, found.number)

    def check(self, history: str, sequence: int) -> None:
        if sequence > 0:
            self._try(lambda client: self._of(client).snapshot(after=Receipt(history, sequence)).close())

    def sequence_at(self, ms: int) -> tuple[str, int]:
        return self._try(lambda client: _begins(client, self.stream, ms))

    def lag(self, after: int) -> int:
        return self._try(lambda client: self._of(client).lag(after).rows)

    def pin(self, name: str, lease_s: float, at: int | Header | None = None) -> Pin:
        call = ops.snapshot(self.stream, pin=name, lease=lease_s, at=at)

        def make(client: Client) -> Pin:
            made = client.perform(call)
            view = made.answer
            made.link.abandon(view.id)  # pins are read by their names
            return _pin(name, view)

        return self._try(make)

    def pinned(self, name: str, lease_s: float) -> Pin | None:
        if not self.renew(name, lease_s):
            return None
        try:
            view = self._call(ops.pinned(self.stream, name), absent=PIN_GONE)
        except PIN_GONE:
            return None
        return _pin(name, view)

    def renew(self, name: str, lease_s: float) -> bool:
        try:
            self._call(ops.renew(self.stream, name, lease_s), absent=PIN_GONE)
        except PIN_GONE:
            return False
        return True

    def release(self, name: str) -> bool:
        try:
            self._call(ops.release(self.stream, name), absent=PIN_GONE)
        except NotFound:
            return False
        except PinExpired:
            pass  # it was there, and is gone: that is what we wanted
        return True

    def turn(self, *, pin: str | None, lease_s: float, release: Sequence[str], mark: Move | None) -> Turned:
        calls: list[Call[Any]] = [ops.release(self.stream, name) for name in release]
        if mark is not None:
            group, history, sequence, end = mark
            calls.append(ops.move_mark(self.stream, group, sequence, history, snapshot_end=end))
        if pin is not None:
            calls.append(ops.snapshot(self.stream, pin=pin, lease=lease_s))
        answers = self._try(lambda client: _together(client, calls))
        made: Pin | None = None
        if pin is not None:
            view = answers.pop()
            if isinstance(view, TidemarkError):
                raise self._missing() if isinstance(view, NotFound) else view
            made = _pin(pin, view)
        problem = answers.pop() if mark is not None else None
        absent = [name for name, answer in zip(release, answers, strict=True) if isinstance(answer, NotFound)]
        return Turned(made, absent, "" if problem is None else str(problem))

    def pins(self, prefix: str) -> list[str]:
        return [pin.name for pin in self._call(ops.pins(self.stream)) if pin.name.startswith(prefix)]

    def cut(
        self,
        pin: str,
        part: Slice,
        *,
        rows: int | None = None,
        bytes: int | None = None,
        parts: int | None = None,
        limit: int | None = None,
    ) -> Sequence[Cut]:
        view = ops.View(
            id=0, history="", sequence=0, after=0, live=0, tombstones=0, complete_from=0, shards=1
        )
        call = ops.cut(
            view, self.stream, pin, after=part.after, until=part.until, shards=part.shards,
            rows=rows, bytes=bytes, parts=parts, limit=limit or 10_000,
        )  # fmt: skip
        return self._call(call, absent=PIN_GONE)

    def register(self, group: str) -> None:
        self._call(ops.register(self.stream, group, None))

    def mark(self, group: str) -> tuple[str, int] | None:
        for mark in self._call(ops.marks(self.stream, group)):
            if mark.consumer == group:
                return mark.history, mark.sequence
        return None

    def forget(self, group: str) -> None:
        self._call(ops.unregister(self.stream, group))

    def _of(self, client: Client) -> Stream:
        return Stream(client, self.stream)

    def _call(self, call: Call[T], absent: tuple[type[Exception], ...] = ()) -> T:
        return self._try(lambda client: client.call(call), absent)

    def _try(self, work: Callable[[Client], T], absent: tuple[type[Exception], ...] = ()) -> T:
        """Do it, again and again while nobody answers.

        Raises:
            BrokerAway: nobody answered for as long as we try.
            StreamMissing: there is no such stream; but what is `absent` is for the caller.
            StreamPartitioned: it is the name of several.
        """
        patience = Patience(f"stream '{self.stream}' at {self._place}", self._retry_s)
        while True:
            try:
                return work(client_of(self._url, self._retry_s))
            except AWAY as problem:
                patience.failed(problem)
            except StreamElsewhere as elsewhere:
                if (home := with_group(self._url, elsewhere.group)) == self._url:
                    raise
                self._see_there()
                self._url = home  # for good: one of this name in another group is another stream
            except absent as problem:
                if isinstance(problem, NotFound) and not self._exists():
                    raise self._missing() from None
                raise
            except NotFound:
                raise self._missing() from None

    def _see_there(self) -> None:
        """Look at it in its group, so that it is made there if only main has it. What is wrong with it is told when it is used."""
        with contextlib.suppress(TidemarkError):
            client_of(self._url, self._retry_s).stream(self.stream)

    def _missing(self) -> ConnectorError:
        """Why there is no such stream: it may be the name of several."""
        try:
            layout = client_of(self._url, self._retry_s).call(ops.partitions(self.stream))
        except TidemarkError:
            return StreamMissing(stream=self.stream, url=self._place)
        return StreamPartitioned(
            stream=self.stream, partitions=tuple(one.stream for one in layout.partitions)
        )

    def _exists(self) -> bool:
        try:
            self._call(ops.info(self.stream))
        except StreamMissing:
            return False
        return True


def _pin(name: str, view: ops.View) -> Pin:
    return Pin(name, view.history, view.sequence, view.shards, view.floor, view.purged)


def _together(client: Client, calls: Sequence[Call[Any]]) -> list[Any]:
    """The answers to calls that are sent together; to one that was refused, the error."""
    link, deadline = client.link(), client.deadline()
    waiting: list[Pending] = []
    answers: list[Any] = []
    try:
        waiting += [link.start(call.header, call.payload, deadline) for call in calls]
        for call, pending in zip(calls, waiting, strict=True):
            try:
                answer = call.answer(*link.result(pending, deadline))
            except StreamElsewhere:
                raise
            except TidemarkError as problem:
                answer = problem
            if isinstance(answer, ops.View):
                link.abandon(answer.id)  # pins are read by their names
            answers.append(answer)
    except Lost as lost:
        raise NotConnected(addresses=(), problem=lost.problem) from None
    except NoAnswerYet:
        raise TimedOut(operation="the turn of a micro-batch", timeout_s=client.timeout) from None
    finally:
        for pending in waiting[len(answers) :]:
            link.drop(pending, close=False)
    return answers


def _begins(client: Client, stream: str, ms: int) -> tuple[str, int]:
    """Where somebody who follows a stream from a moment on begins: the first thing that he is told."""
    link = client.link()
    pending: Pending | None = None
    try:
        header: Header = {
            "op": "follow",
            "stream": stream,
            "from": {"ms": ms},
            "credit": 0,
            "columns": ["sequence"],
        }
        pending = link.start(header)
        frame = link.next(pending, client.deadline())
        assert frame is not None
        return frame[0]["history"], frame[0]["after"]
    except Lost as lost:
        raise NotConnected(addresses=(), problem=lost.problem) from None
    except NoAnswerYet:
        raise TimedOut(operation=f"follow of {stream!r}", timeout_s=client.timeout) from None
    finally:
        if pending is not None:
            link.drop(pending)


# Reading, in tasks ----------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True, kw_only=True)
class ReadTask:
    """What one task reads, and how. Plain data."""

    url: str
    place: str
    stream: str
    pin: str
    history: str
    slices: Task
    columns: tuple[str, ...]
    batch_bytes: int
    retry_s: float
    lease_s: float
    renews: bool
    """Nobody else renews the pin's lease."""
    planned_at: float = 0.0
    """When the pin was made, by the clock on the wall."""
    fail_on_data_loss: bool
    shown: str | None = None
    """What stands in the column stream; None: the stream's name."""
    verify: bool = False
    key_from: bytes | None = None
    key_to: bytes | None = None
    deleted: bool | None = None
    read_from: ReadFrom = "leader"


def read(task: ReadTask) -> Iterator[pa.RecordBatch]:
    """The rows of a task, as Spark's batches.

    Raises:
        BrokerAway: nobody answered for as long as we try.
        DataLost: the pinned snapshot is gone.
    """
    for part in task.slices:
        yield from _SliceReader(task, part)


class _SliceReader:
    """One slice, over as many connections as it takes."""

    def __init__(self, task: ReadTask, part: Slice) -> None:
        self._task = task
        self._part = part
        one_shard = part.shards[0] if part.shards is not None and len(part.shards) == 1 else None
        more: tuple[str, ...] = ("key", "value", "deleted", "sequence") if task.verify else ()
        more += () if task.deleted is None else ("deleted",)
        self._asked = asked(task.columns, one_shard=one_shard is not None, more=more)
        self._shaper = Shaper(
            task.columns, stream=task.shown or task.stream, history=task.history, shard=one_shard
        )
        self._position = part.after
        self._renewed = time.monotonic() - max(0.0, time.time() - task.planned_at)
        self._patience = Patience(f"reading stream '{task.stream}' at {task.place}", task.retry_s)
        self._read_from = task.read_from

    def __iter__(self) -> Iterator[pa.RecordBatch]:
        while True:
            try:
                yield from self._pass()
                return
            except (Lost, NoAnswerYet, *AWAY) as problem:
                self._patience.failed(problem)
            except NotATail as refusal:
                self._read_from = "tail"
                self._patience.failed(refusal)
            except ASK_LEADER as problem:
                if self._read_from != "leader":
                    self._read_from = "leader"  # it knows what there is; another member may not have it yet
                elif not isinstance(problem, PIN_GONE):
                    raise
                elif not self._replaced(str(problem)):
                    return

    def _pass(self) -> Iterator[pa.RecordBatch]:
        """What one connection gives, from where we are to the end of the slice."""
        task, part = self._task, self._part
        client = client_of(task.url, task.retry_s, self._read_from)
        link = client.link() if self._read_from == "leader" else client.reader()
        wanted = Range(
            after=self._position, until=part.until, shards=part.shards, key_from=task.key_from,
            key_to=task.key_to, columns=self._asked, batch_bytes=task.batch_bytes,
        )  # fmt: skip
        header: Header = {"op": "read", "stream": task.stream, "pin": task.pin, **wanted.fields()}
        reading = Reading(task.stream, header, "arrow", hashed=task.verify)
        pending = link.start(reading.header)
        try:
            while (frame := link.next(pending, time.monotonic() + FRAME_S_MAX)) is not None:
                batches = reading.batches(*frame)
                self._position = reading.position
                self._patience.succeeded()
                for batch in batches:
                    if (shaped := self._shaped(batch)).num_rows:
                        yield shaped
                self._grant(link, pending, reading, len(frame[1]))
                self._renew(client)
            assert pending.answer is not None
            reading.finish(*pending.answer)
        except NotATail as refusal:
            if self._read_from != "leader":
                client.to_tails(link, refusal, math.inf)
            raise
        finally:
            link.drop(pending)

    def _shaped(self, batch: pa.RecordBatch) -> pa.RecordBatch:
        if self._task.deleted is not None:
            import pyarrow.compute as pc

            deleted = batch.column("deleted")
            batch = batch.filter(deleted if self._task.deleted else pc.invert(deleted))
        return self._shaper.shape(batch)

    def _grant(self, link: Link, pending: Pending, reading: Reading, size: int) -> None:
        if more := reading.credit.used(size):
            link.credit(pending, more)

    def _renew(self, client: Client) -> None:
        task = self._task
        if task.renews and time.monotonic() - self._renewed > task.lease_s / 3:
            self._renewed = time.monotonic()
            with contextlib.suppress(NotFound, PinExpired, *AWAY):  # if it is gone, the read says so
                client.call(ops.renew(task.stream, task.pin, task.lease_s))

    def _replaced(self, problem: str) -> bool:
        """The pin or the stream is gone. True: there is another to go on with; False: there is nothing to read.

        Raises:
            DataLost
        """
        task = self._task
        if task.fail_on_data_loss:
            lease_s = task.lease_s if task.renews else None
            raise pin_lost(task.stream, task.pin, problem, batch_lease_s=lease_s)
        feed = BrokerFeed(task.url, task.stream, retry_s=task.retry_s, place=task.place)
        try:
            feed.pin(task.pin, task.lease_s)
        except StreamMissing as missing:
            log.warning("failOnDataLoss=false: %s; nothing more of it is read", missing)
            return False
        log.warning("failOnDataLoss=false: %s; what is there now is read instead", problem)
        return True


def pin_lost(stream: str, pin: str, problem: str, *, batch_lease_s: float | None = None) -> DataLost:
    """The error that says so, and what to do; with a lease: of a batch read."""
    if batch_lease_s is not None:
        remedy = (
            f"A batch read keeps its snapshot for {batch_lease_s:.0f} s (pinLease) from when it is planned until its tasks "
            f"run; they began later, or the same DataFrame was run again later. Make the DataFrame anew with load(), "
            f"which pins the stream again, or set a longer pinLease"
        )
    else:
        remedy = (
            "This batch cannot be read again as it was. Start the query with a new checkpointLocation; for the next "
            "time a longer pinLease, or a higher x-stream-pin-bytes-max of the stream, keeps snapshots for longer"
        )
    return DataLost(
        stream=stream, problem=f"the pinned snapshot '{pin}' of this batch is gone ({problem})", remedy=remedy
    )
