"""A streaming query over one stream: where the next micro-batch ends, what it holds, and what is let go of.

Each micro-batch is a part of a pinned snapshot, mostly all of it. The pin is made when the end of the batch is fixed,
so a batch that is read again, by a second attempt of a task or by another driver after a crash, has the same rows.
Spark asks for the next end (`latest`) with the end of the last batch that is complete. Nothing before that is read any
more: the pins of this query are released, but for one of which a part is still to come, and the group's mark moves.
That also finds the pins that a killed driver left: a pin is named `spark.<group>.<query>.<its own>`, and the query's part
is in every offset. Pins of another query, whatever its group, are left alone.

    earlier batches │ start ──────── end ─ ─ ─ ─ ─ pin           one pin, several batches when they are limited
    released, marked│ (start, end] is the next batch

Each new pin says what the stream has ended up to that moment: rows (retention, truncate), and deletes that are no longer
told. What the query had not read of that is lost, and it is told so before the batch is planned.

Invariant: between the moment Spark is given an end and the moment it asks with that end as the start, the pin of that
end is held.
"""

from __future__ import annotations

import contextlib
import logging
import re
import threading
import time
import uuid
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from tidemark.errors import LostBranch, StreamReset, TidemarkError
from tidemark_spark.broker import PIN_GONE, Feed, Head, Identity, Move, Pin, ReadTask, pin_lost
from tidemark_spark.errors import DataLost, OffsetForeign, OptionError, StreamMissing
from tidemark_spark.offsets import Offset, PinRef, Shards, begin_of, everywhere, spread
from tidemark_spark.options import EARLIEST, LATEST, ByShard, Moment, Place, ReadOptions
from tidemark_spark.planning import Limits, Slice, Task, plan

log = logging.getLogger("tidemark.spark")

HURRY_S = 0.06
"""When Spark comes back later than this though we had no news, it had a batch of another source to run …"""
HURRIED_WAIT_S = 0.02
"""… and must not wait for us for long."""
RENEWALS = 4
"""How often a lease is renewed before it would end."""
NAME = "[0-9a-f]{16}"


def made_up_name() -> str:
    """A name that nobody else has, of the form `NAME`."""
    return uuid.uuid4().hex[:16]


class MicroBatches:
    """What a streaming query does next. One for each source of a query, used by one thread."""

    def __init__(
        self,
        feed: Feed,
        options: ReadOptions,
        *,
        cores: int = 2,
        shown: str | None = None,
        now: Callable[[], float] = time.monotonic,
        sleep: Callable[[float], None] = time.sleep,
    ) -> None:
        self._feed = feed
        self._options = options
        self._shown = shown
        """What stands in the column stream, when that is not the stream's name."""
        self._now = now
        self._sleep = sleep
        self._limits = Limits(
            options.partitions_min, options.partitions_max, options.partition_rows_max, cores
        )
        self._group = options.group or f"spark-{uuid.uuid4()}"
        self._query = made_up_name()
        self._initial: Offset | None = None
        self._held: dict[str, Pin] = {}
        """Pins that we made or found, and have not released."""
        self._settled: Offset | None = None
        """The last start that Spark came with …"""
        self._begin: Shards = {}
        """… where its next batch really begins …"""
        self._due = False
        """… and whether its past is still to be let go of: these pins, and the mark."""
        self._past: list[str] = []
        self._head: Head | None = None
        self._identity = Identity(0)
        self._seen: tuple[str, int] | None = None
        """History and number of the stream when it was last seen that we can go on."""
        self._start_forgotten = False
        """Whether the mark `_kept_start` was done away with."""
        self._told: tuple[int, int] | None = None
        """Which floor and purged have been looked at."""
        self._ends_once = False
        """Trigger.AvailableNow: the query ends with what is there now …"""
        self._target: int | None = None
        """… which is what the last pin shows."""
        self._answered = 0.0
        """When we said that there is nothing new; 0: we had news."""
        self._batch_since = now()
        self._keeping = threading.Lock()

    # The beginning ------------------------------------------------------------------------------------

    def initial(self) -> Offset:
        """Where a query without a checkpoint begins."""
        if self._initial is None:
            number, head = self._feed.identify().number, self._feed.head()
            shards = self._chosen(head)
            self._initial = Offset(
                self._feed.stream, number, self._group, shards, initial=True, query=self._query
            )
        return self._initial

    def _chosen(self, head: Head) -> Shards:
        """The place that startingOffsets names. When that depends on the time, it is kept until a batch is complete."""
        place = self._options.start
        if self._kept_start is None:
            return resolve(place, self._feed, head, self._group, "startingOffsets")
        if (mark := self._feed.mark(self._kept_start)) is not None:
            return everywhere(*mark, head.shards)
        shards = resolve(place, self._feed, head, self._group, "startingOffsets")
        history, sequence = shards[0]
        self._feed.turn(pin=None, lease_s=0, release=(), mark=(self._kept_start, history, sequence, None))
        return shards

    @property
    def _kept_start(self) -> str | None:
        """The mark at which a query begins that was stopped before its first batch was complete; None: it needs none."""
        options = self._options
        depends = options.start == "latest" or isinstance(options.start, Moment)
        return f"{options.group}.(start)" if depends and options.group is not None else None

    def end_with_what_is_there(self) -> None:
        """Trigger.AvailableNow: whatever comes later is for the next run."""
        self._ends_once, self._target = True, None

    # The next batch -----------------------------------------------------------------------------------

    def latest(self, start: Offset, rows: int | None = None, size: int | None = None) -> Offset:
        """The end of the next batch, at most so many rows and bytes; `start` itself: there is nothing new.

        Raises:
            DataLost: the query cannot go on from its start, and failOnDataLoss is true.
            BrokerAway, StreamMissing, OffsetForeign
        """
        if start.stream != self._feed.stream:
            raise OffsetForeign(problem=f"it is of stream '{start.stream}', not '{self._feed.stream}'")
        try:
            self._settle(start)
            pin = self._unfinished(start)
            pin = self._turn(start, fresh=pin is None and self._has_news(start)) or pin
            if pin is None:
                self._answered = self._now()
                return start
            try:
                return self._end(start, pin, rows, size)
            except PIN_GONE as problem:
                self._forget(pin.name)
                self._tell_of_unfinished(pin.name, str(problem))
            pin = self._turn(start, fresh=True)
            assert pin is not None
            try:
                return self._end(start, pin, rows, size)
            except PIN_GONE as problem:
                raise pin_lost(self._feed.stream, pin.name, str(problem)) from None
        except StreamMissing as missing:
            if start.initial:
                raise
            self._lost(
                f"it was deleted ({missing})", "Create it again and start the query with a new checkpoint"
            )
            self._settled = None
            self._sleep(max(self._options.poll_s, 0.1))
            return start

    def report(self) -> Offset | None:
        """How far the stream goes, as far as we know: Spark shows it beside the end of the batch."""
        if self._head is None:
            return None
        head = self._head
        shards = everywhere(head.history, head.sequence, head.shards)
        return Offset(self._feed.stream, self._identity.number, self._group, shards, query=self._query)

    @property
    def _at(self) -> int:
        """Everything up to here is behind us."""
        return min(sequence for _, sequence in self._begin.values())

    def _has_news(self, start: Offset) -> bool:
        """Whether the stream has something for another batch."""
        options = self._options
        at = self._at
        if self._target is not None and at >= self._target:
            return False
        wait = 0.0 if self._ends_once else options.poll_s
        if self._answered and self._now() - self._answered > HURRY_S:
            wait = min(wait, HURRIED_WAIT_S)
        if self._due:
            wait = 0.0  # let go of what is behind us first, then wait
        self._head = self._look(at, wait)
        if (self._head.history, self._head.number) != self._seen:
            # The broker was started again, perhaps in an older state, or it is another stream.
            self._check(start)
            at = self._at
        if self._ends_once and self._target is None:
            self._aim(self._head.sequence)
        if self._head.sequence <= at:
            return False
        if options.rows_min is not None and not self._ends_once:
            waited = self._now() - self._batch_since
            if waited < options.delay_s_max and self._feed.lag(at) < options.rows_min:
                self._sleep(min(options.poll_s, 0.2, options.delay_s_max - waited))
                return False
        return True

    def _look(self, after: int, wait_s: float) -> Head:
        """How far the stream goes; waits for something behind `after`."""
        return self._feed.head(after, wait_s)

    def _unfinished(self, start: Offset) -> Pin | None:
        """The pin of which a part is still to be read."""
        if start.unfinished is None:
            return None
        found = self._find(start.unfinished)
        if found is None:
            self._tell_of_unfinished(start.unfinished.name, "its lease ended, or it was released")
        return found

    def _tell_of_unfinished(self, pin: str, problem: str) -> None:
        # What it showed and is not read yet is still there, or there is something newer in its place, or the new pin
        # says that it has ended: nothing is lost but the state of that moment.
        log.warning(
            "stream '%s': pin '%s' is gone in the middle of its snapshot (%s); the query goes on in a new one",
            self._feed.stream,
            pin,
            problem,
        )

    def _end(self, start: Offset, pin: Pin, rows: int | None, size: int | None) -> Offset:
        begin = spread(self._begin, pin.shards)
        until = pin.sequence
        if rows is not None or size is not None:
            first = min(sequence for _, sequence in begin.values())
            pieces = self._feed.cut(pin.name, Slice(None, first, until), rows=rows, bytes=size, limit=1)
            until = pieces[0].until if pieces else until
        shards = {shard: (pin.history, max(until, sequence)) for shard, (_, sequence) in begin.items()}
        self._answered = 0.0
        self._batch_since = self._now()
        differs = start.initial or self._begin != start.shards
        return Offset(
            self._feed.stream,
            self._identity.number,
            self._group,
            shards,
            PinRef(pin.name, pin.sequence),
            origin=self._begin if differs else None,
            query=self._query,
        )

    # What is behind us --------------------------------------------------------------------------------

    def _settle(self, start: Offset) -> None:
        """All up to `start` is done with: see that we can go on from there, and find out what to let go of."""
        if start == self._settled:
            return
        feed = self._feed
        leaked: list[str] = []
        if self._settled is None:
            if self._options.group is None:
                self._group = start.group
            self._query = start.query or self._query
            self._check(start)
            feed.register(self._group)
            leaked = self._leaked()
        else:
            self._begin = start.shards
        if not (start.initial or self._start_forgotten):
            self._start_forgotten = True  # from now on the checkpoint knows where the query is
            if self._kept_start is not None:
                feed.forget(self._kept_start)
        needed = None if start.unfinished is None else start.unfinished.name
        with self._keeping:
            self._past = [name for name in (*self._held, *leaked) if name != needed]
        self._due = True
        self._settled = start

    def _leaked(self) -> list[str]:
        """Pins of this query that a driver before us left."""
        found: list[str] = []
        others: list[str] = []
        form = re.compile(rf"spark\.{re.escape(self._group)}\.({NAME})\.{NAME}")
        for name in self._feed.pins(f"spark.{self._group}."):
            if (ours := form.fullmatch(name)) and name not in self._held:
                (found if ours[1] == self._query else others).append(name)
        if others:
            log.warning(
                "stream '%s': another query with groupId '%s' has pins (%s). If it still runs, give each its own groupId: "
                "they move one mark, and deletes are kept only for the one that is ahead",
                self._feed.stream,
                self._group,
                ", ".join(others),
            )
        return found

    def _turn(self, start: Offset, fresh: bool) -> Pin | None:
        """Let go of what is behind us, and pin what is new (`fresh`): one round trip, one write to the broker's disk."""
        if not self._due and not fresh:
            return None
        past, mark = (self._past, self._mark_of(start)) if self._due else ([], None)
        name = f"spark.{self._group}.{self._query}.{made_up_name()}" if fresh else None
        turned = self._feed.turn(pin=name, lease_s=self._options.lease_s, release=past, mark=mark)
        if turned.mark_problem:
            log.warning("the mark of '%s' stays where it is: %s", self._group, turned.mark_problem)
        pin = turned.pin
        if pin is not None:
            self._keep(pin)
            if self._ends_once:
                self._aim(pin.sequence)
        try:
            if self._due:
                self._let_go(start, past, turned.absent)
            if pin is not None:
                if self._seen is None or pin.history != self._seen[0]:
                    self._check(start)
                self._check_kept(start, pin.floor, pin.purged)
        except DataLost:
            if pin is not None:
                self._forget(pin.name)
                with contextlib.suppress(TidemarkError):
                    self._feed.release(pin.name)
            raise
        return pin

    def _aim(self, sequence: int) -> None:
        """Trigger.AvailableNow: the query ends there."""
        self._target = sequence

    def _mark_of(self, start: Offset) -> Move | None:
        if not start.sequence:
            return None
        end = None if start.unfinished is None else start.unfinished.sequence
        return self._group, start.history, start.sequence, end

    def _let_go(self, start: Offset, past: Sequence[str], absent: Sequence[str]) -> None:
        """Pins are released; `absent` ones were not there."""
        self._due = False
        with self._keeping:
            vanished = [name for name in absent if name in self._held]
            for name in past:
                self._held.pop(name, None)
        if vanished:
            # Pins do not vanish by themselves, but they do when somebody deletes the stream.
            self._check(start)
            self._feed.register(self._group)
        self._done_with(start)

    def _done_with(self, start: Offset) -> None:
        """Everything up to there has been processed. For those who keep something for that long."""

    def _check(self, start: Offset) -> None:
        """Whether we can go on from there. Sets where that is.

        Raises:
            DataLost: we cannot, and failOnDataLoss is true.
        """
        feed = self._feed
        self._begin = start.shards
        self._identity, head = feed.identify(), feed.head()
        if self._identity.number != start.id:
            self._lost(
                "it was deleted and created again since this query read it",
                "Start the query with a new checkpoint, and empty its sinks if they mirror the stream",
            )
        for history, sequence in sorted(set(start.shards.values())):
            try:
                feed.check(history, sequence)
            except LostBranch as problem:
                self._lost(
                    str(problem),
                    f"The rows behind {problem.rewind_to} that the query has processed were never stored safely: start "
                    f'it with a new checkpoint and startingOffsets={{"0": {problem.rewind_to}}}',
                )
                back = min(problem.rewind_to, self._at)
                self._begin = everywhere(head.history, back, len(start.shards))
            except StreamReset as problem:
                if problem.purged:
                    continue  # the next new pin says so; an unfinished one still shows what has ended since
                self._lost(
                    str(problem),
                    "Start the query with a new checkpoint, which reads the stream from its beginning, and empty its "
                    "sinks if they mirror the stream",
                )
        self._seen = head.history, self._identity.number

    def _check_kept(self, start: Offset, floor: int, purged: int) -> None:
        """Whether a new pin shows all that is behind us: rows below `floor` have ended, deletes up to `purged` too.

        Who begins at the beginning, or at a moment, has missed nothing: he gets what is there.

        Raises:
            DataLost: it is not, and failOnDataLoss is true.
        """
        begins = [sequence for _, sequence in self._begin.values() if sequence > 0]
        if not begins or (start.initial and isinstance(self._options.start, Moment)):
            return
        at, stream = min(begins), self._feed.stream
        if (floor, purged) == self._told:
            return
        if at < floor - 1:
            self._lost(
                f"rows up to sequence {floor - 1} have ended (retention, truncate or purge), of which this query has read "
                f"only those up to {at}",
                "Start the query with a new checkpoint, which goes on with what is there; for the next time a longer "
                "x-max-age or a higher x-max-length-bytes of the stream keeps rows for longer",
            )
        elif at < purged and self._identity.has_deletes:
            self._lost(
                str(StreamReset(stream=stream, seq=at, purged=purged)),
                "Start the query with a new checkpoint, which reads the stream from its beginning, and empty its sinks if "
                "they mirror the stream. Deletes are kept for a query that is away for less than the stream's tombstone "
                "lease, and that shares its groupId with no other",
            )
        self._told = floor, purged

    def _lost(self, problem: str, remedy: str) -> None:
        if self._options.fail_on_data_loss:
            raise DataLost(stream=self._feed.stream, problem=problem, remedy=remedy)
        log.warning("failOnDataLoss=false: stream '%s': %s; the query goes on", self._feed.stream, problem)

    # A batch ------------------------------------------------------------------------------------------

    def tasks(self, start: Offset, end: Offset, columns: tuple[str, ...]) -> list[ReadTask]:
        """The tasks that read the batch between two offsets: always the same rows.

        Raises:
            DataLost: its pin is gone, and failOnDataLoss is true.
            BrokerAway, StreamMissing, OffsetForeign
        """
        if start == end or end.initial:
            return []  # the first batch of a query that has nothing to read yet ends where the query begins
        options = self._options
        begin = begin_of(start, end)
        if end.pin is None:
            raise OffsetForeign(problem="a batch has no pin")
        pin = self._find(end.pin) or self._replaced(end.pin)
        try:
            tasks = self._divided(pin, begin, end)
        except PIN_GONE:
            self._forget(pin.name)
            pin = self._replaced(end.pin)
            tasks = self._divided(pin, begin, end)
        return [read_task(options, self._feed, pin, slices, columns, shown=self._shown) for slices in tasks]

    def _divided(self, pin: Pin, begin: Shards, end: Offset) -> list[Task]:
        return plan(
            spread(begin, pin.shards),
            spread(end.shards, pin.shards),
            self._limits,
            lambda part, **how: self._feed.cut(pin.name, part, **how),
        )

    def _replaced(self, gone: PinRef) -> Pin:
        """A pin of the same name, for a batch whose own is gone.

        Raises:
            DataLost: failOnDataLoss is true.
        """
        if self._options.fail_on_data_loss:
            raise pin_lost(self._feed.stream, gone.name, "its lease ended, or it was released")
        log.warning("failOnDataLoss=false: pin '%s' is gone; the batch holds what is left of it", gone.name)
        pin = self._feed.pin(gone.name, self._options.lease_s)
        self._keep(pin)
        return pin

    def _find(self, pin: PinRef) -> Pin | None:
        """A pin that we hold, or that a driver before us made."""
        found = self._held.get(pin.name) or self._feed.pinned(pin.name, self._options.lease_s)
        if found is not None:
            self._keep(found)
        return found

    def _keep(self, pin: Pin) -> None:
        with self._keeping:
            self._held[pin.name] = pin

    def _forget(self, pin: str) -> None:
        with self._keeping:
            self._held.pop(pin, None)

    # Leases -------------------------------------------------------------------------------------------

    @property
    def renew_every_s(self) -> float:
        """How often to call `renew`."""
        return min(self._options.lease_s, self._identity.tombstone_lease_s) / RENEWALS

    def renew(self) -> None:
        """Renew the lease of what is held. Called by another thread, every so often; never raises."""
        with self._keeping:
            names = list(self._held)
        try:
            for name in names:
                if not self._feed.renew(name, self._options.lease_s):
                    self._forget(name)  # whoever needs it looks for it, and says so
            if self._settled is not None:
                self._feed.register(self._group)
        except TidemarkError as problem:
            log.warning("leases of '%s' could not be renewed: %s", self._group, problem)


def read_task(
    options: ReadOptions, feed: Feed, pin: Pin, slices: Task, columns: tuple[str, ...], **narrowed: Any
) -> ReadTask:
    """What a task needs to know to read its part of a pin."""
    return ReadTask(
        url=feed.url,
        place=options.place,
        stream=feed.stream,
        pin=pin.name,
        history=pin.history,
        slices=slices,
        columns=columns,
        batch_bytes=options.batch_bytes,
        retry_s=options.retry_s,
        lease_s=options.lease_s,
        renews=options.mode == "batch",
        planned_at=time.time(),
        fail_on_data_loss=options.fail_on_data_loss,
        verify=options.verify,
        read_from=options.read_from,
        **narrowed,
    )


def resolve(place: Place, feed: Feed, head: Head, group: str, option: str) -> Shards:
    """The place in the stream that an option names.

    Raises:
        OptionError: shards that the stream does not have.
    """
    match place:
        case "earliest":
            return everywhere(head.history, 0, head.shards)
        case "latest":
            return everywhere(head.history, head.sequence, head.shards)
        case "group":
            return everywhere(*(feed.mark(group) or (head.history, 0)), head.shards)
        case Moment(ms):
            return everywhere(*feed.sequence_at(ms), head.shards)
        case ByShard(shards):
            given = {shard: _ends(history, sequence, head) for shard, history, sequence in shards}
            if set(given) != set(range(len(given))) or len(given) > head.shards:
                raise OptionError(
                    option=option,
                    problem=f"names the shards {', '.join(map(str, given))}, but stream '{feed.stream}' has 0 to "
                    f"{head.shards - 1}; name all of them",
                )
            return spread(given, head.shards)
    raise AssertionError(place)


def _ends(history: str | None, sequence: int, head: Head) -> tuple[str, int]:
    ends: Mapping[int, int] = {LATEST: head.sequence, EARLIEST: 0}
    return history or head.history, ends.get(sequence, sequence)
