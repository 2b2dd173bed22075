"""A partitioned stream in the blocking client: one name for several streams, over which keys are spread.

Everything here is made of the ordinary streams that it holds. What is asked of several partitions is asked side by side where
somebody waits for the disk, one after the other elsewhere. A subscription has a thread for each partition while it lasts:

    thread of partition 0 ──► one batch ─┐
    thread of partition 1 ──► one batch ─┼──► Handover ──► the caller's loop, one batch at a time
    thread of partition 2 ──► one batch ─┘        └─ the thread goes on when the loop asks for the next

Invariant: a partition's thread asks for its next batch, which moves the mark, only when the loop has finished with the last one.
"""

from __future__ import annotations

import contextlib
import threading
import time
from collections import deque
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from types import TracebackType
from typing import TYPE_CHECKING, Any, Generic, Self, TypeVar

from tidemark.client.reading import Batch, Commit, OnReset, Position, Progress, Start
from tidemark.client.rows import package
from tidemark.client.splitting import Keys, Quiet, Together, receipts, starts
from tidemark.client.values import Bytes, Lag, Mark, Marker, Receipt, Row, StreamInfo
from tidemark.client.waiting import Lost, NoAnswerYet
from tidemark.errors import TidemarkError

if TYPE_CHECKING:
    import pyarrow as pa

    from tidemark.client import blocking
    from tidemark.client.exchange import Pending

F = TypeVar("F", bound="blocking.Frozen")
T = TypeVar("T")

THREADS_MAX = 32
"""Of one call that asks several partitions."""
STOP_S_MAX = 5.0
"""A thread that waits for a broker that is silent looks so often whether anybody still wants something."""


class Partitioned:
    """One name for several streams. Made by `Client.partitioned`; holds nothing, so it need not be closed."""

    def __init__(self, name: str, partitions: Sequence[blocking.Stream]) -> None:
        self._name = name
        self._partitions = list(partitions)
        self._keys = Keys(len(self._partitions))

    @property
    def name(self) -> str:
        return self._name

    @property
    def partitions(self) -> list[blocking.Stream]:
        """The streams, in order: what can be done with one of them alone is done there."""
        return list(self._partitions)

    def __len__(self) -> int:
        """How many partitions it has."""
        return len(self._partitions)

    def __repr__(self) -> str:
        return f"<Partitioned {self._name!r} in {len(self)}>"

    def of(self, key: Bytes | None) -> blocking.Stream:
        """The partition of a key; without a key the next in turn."""
        return self._partitions[self._keys.number(key)]

    def info(self) -> list[StreamInfo]:
        """Counts, sequences and group of each partition, as they are now."""
        return [one.info() for one in self._partitions]

    # Writing ------------------------------------------------------------------------------------

    def put(
        self,
        key: Bytes | None,
        value: Bytes,
        *,
        headers: Mapping[str, Any] | None = None,
        expected: int | None = None,
    ) -> Receipt:
        """As `Stream.put`, in the partition of the key."""
        return self.of(key).put(key, value, headers=headers, expected=expected)

    def put_many(self, rows: Any) -> list[Receipt | None]:
        """As `Stream.put_many`, split by key and stored side by side: all or none within each partition, and only there.

        Returns:
            The receipt of each partition, by its number; None where it got nothing.

        Raises:
            TidemarkError: of the first partition that did not store its part, when all have answered. The others have
                stored theirs; a note of the error says which.
        """
        parts = self._keys.split(rows)

        def write(at: int) -> Receipt:
            return self._partitions[at].put_many(parts[at])

        return self._written({at: partial(write, at) for at in parts})

    def delete(self, key: Bytes, *, expected: int | None = None) -> Receipt:
        """As `Stream.delete`, in the partition of the key."""
        return self.of(key).delete(key, expected=expected)

    def producer(self, name: str) -> PartitionedProducer:
        """A producer for each partition, named after both, so that numbers are counted by partition."""
        return PartitionedProducer(
            self, name, [one.client.producer(f"{name}/{one.name}") for one in self._partitions]
        )

    def _written(self, writes: Mapping[int, Callable[[], Receipt]]) -> list[Receipt | None]:
        return receipts(self._name, len(self), _side_by_side(writes))

    # Reading ------------------------------------------------------------------------------------

    def get(self, key: Bytes) -> Row | None:
        """The newest version of a key; None if it has none or was deleted."""
        return self.of(key).get(key)

    def snapshot(
        self, *, after: Sequence[Position | None] | None = None, progress: Progress | None = None
    ) -> PartitionedSnapshot:
        """A snapshot of each partition: each is one moment, and these moments may differ.

        Args:
            after: a place in each partition (`positions` of an earlier one): only what changed since.
        """
        begins = [None] * len(self) if after is None else list(after)
        together = None if progress is None else Together(progress, len(self))
        with contextlib.ExitStack() as opened:
            found = []
            for number, (one, begin) in enumerate(zip(self._partitions, begins, strict=True)):
                snapshot = one.snapshot(
                    after=begin, progress=None if together is None else together.of(number)
                )
                found.append(opened.enter_context(snapshot))
            opened.pop_all()
        if together is not None:
            together.totals = [len(one) for one in found]
        return PartitionedSnapshot(found)

    def pin(self, name: str, *, lease: float = 3600.0) -> PartitionedPin:
        """Keep what each partition holds now readable under a name; the same name again renews what is there."""
        return PartitionedPin(name, [one.pin(name, lease=lease) for one in self._partitions])

    def pinned(self, name: str) -> PartitionedPin:
        """Pins of that name that exist. Raises NotFound: in one of the partitions there is none."""
        return PartitionedPin(name, [one.pinned(name) for one in self._partitions])

    def lag(self, after: Sequence[Position | None]) -> list[Lag]:
        """What lies behind a place in each partition, as `marks` gives them; None: behind the beginning."""
        places = [0 if place is None else place for place in after]
        return [one.lag(place) for one, place in zip(self._partitions, places, strict=True)]

    # Following ----------------------------------------------------------------------------------

    def follow(
        self,
        consumer: str | None = None,
        *,
        start: Start | Sequence[Start | None] | None = None,
        commit: Commit | None = "boundary",
        on_reset: OnReset = "raise",
        idle: float | None = None,
        lease: float | None = None,
        shards: Sequence[int] | None = None,
        columns: Sequence[str] | None = None,
    ) -> PartitionedFollower:
        """Rows of all partitions as they come, each with the number of its partition.

        ```python
        for partition, batch in orders.follow("loader"):
            for row in batch: ...
        ```

        Takes what `Stream.follow` takes; every partition has a mark of its own, which moves when the loop asks for the
        next batch. A boundary is one of its partition. `start` is a word, a time, or a list of places, one for each
        partition; `idle` ends it when nothing came in any of them.
        """
        followers = [
            one.follow(
                consumer,
                start=begin,
                commit=commit,
                on_reset=on_reset,
                lease=lease,
                shards=shards,
                columns=columns,
            )
            for one, begin in zip(self._partitions, starts(start, len(self)), strict=True)
        ]
        return PartitionedFollower(followers, idle)

    def marks(self, consumer: str) -> list[Mark | None]:
        """How far a consumer has come in each partition; None: it has not begun there."""
        return [one.mark(consumer) for one in self._partitions]


def _side_by_side(calls: Mapping[int, Callable[[], T]]) -> dict[int, T | BaseException]:
    """What came of each, also if that is an error."""
    if len(calls) == 1:
        [(number, call)] = calls.items()
        return {number: call()}
    if not calls:
        return {}
    with ThreadPoolExecutor(min(len(calls), THREADS_MAX), "tidemark-partition") as pool:
        running = {number: pool.submit(call) for number, call in calls.items()}
    return {number: one.exception() or one.result() for number, one in running.items()}


# Passes over many rows --------------------------------------------------------------------------------


class Parts(Generic[F]):
    """The same kind of view of every partition; what is read is read partition by partition."""

    def __init__(self, parts: Sequence[F]) -> None:
        self.parts = list(parts)
        """Of each partition, in order."""

    @property
    def markers(self) -> list[Marker | None]:
        """Of each partition, the marker of the last pass that was read to its end, verified; None before."""
        return [one.marker for one in self.parts]

    def rows(
        self,
        *,
        key_from: Bytes | None = None,
        key_to: Bytes | None = None,
        columns: Sequence[str] | None = None,
    ) -> Iterator[Row]:
        """All rows, those of each partition in the order of their sequence. See `Rows.rows`."""
        for one in self.parts:
            yield from one.rows(key_from=key_from, key_to=key_to, columns=columns)

    def batches(self, **part: Any) -> Iterator[pa.RecordBatch]:
        """The same as Arrow record batches; takes what `Rows.batches` takes, for each partition."""
        for one in self.parts:
            yield from one.batches(**part)

    def to_arrow(self, **part: Any) -> pa.Table:
        """Everything as one Arrow table; takes what `batches` takes."""
        pa = package("pyarrow", "to_arrow()")
        return pa.concat_tables([one.to_arrow(**part) for one in self.parts])

    def to_pandas(self, **part: Any) -> Any:
        """Everything as a pandas DataFrame."""
        package("pandas", "to_pandas()")
        return self.to_arrow(**part).to_pandas()

    def to_polars(self, **part: Any) -> Any:
        """Everything as a Polars DataFrame."""
        return package("polars", "to_polars()").from_arrow(self.to_arrow(**part))

    @property
    def schema(self) -> pa.Schema | None:
        """The columns of a pass as Arrow that had no rows; with rows, their batches have it."""
        return self.parts[-1].schema

    def __iter__(self) -> Iterator[Row]:
        return self.rows()


class PartitionedSnapshot(Parts["blocking.Snapshot"]):
    """A snapshot of every partition, each of its own moment; held open until it is closed."""

    @property
    def positions(self) -> list[Receipt]:
        """The end of each, to go on from: `snapshot(after=…)`, `follow(start=…)`."""
        return [one.position for one in self.parts]

    def __len__(self) -> int:
        """How many rows it has, deleted ones included, as the brokers counted when it was opened."""
        return sum(map(len, self.parts))

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def close(self) -> None:
        """Let the brokers forget it."""
        for one in self.parts:
            one.close()


class PartitionedPin(Parts["blocking.Pin"]):
    """A pin of the same name in every partition."""

    def __init__(self, name: str, parts: Sequence[blocking.Pin]) -> None:
        super().__init__(parts)
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
        for one in self.parts:
            one.renew(lease)

    def release(self) -> None:
        """It is no longer needed. Of a partition that cannot be reached the error is raised when the others are released."""
        with contextlib.ExitStack() as leaving:
            for one in self.parts:
                leaving.callback(one.release)


# Writing under numbers --------------------------------------------------------------------------------


class PartitionedProducer:
    """A producer for each partition; see `Producer`. Numbers are counted by partition."""

    def __init__(self, stream: Partitioned, name: str, producers: Sequence[blocking.Producer]) -> None:
        self._stream = stream
        self.name = name
        self.producers = list(producers)
        """Of each partition, in order; `last` of each says how far it came there."""

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if kind is None:
            self.settle()

    def put(
        self,
        key: Bytes | None,
        value: Bytes,
        *,
        headers: Mapping[str, Any] | None = None,
        expected: int | None = None,
        number: int | None = None,
    ) -> Receipt:
        """As `Partitioned.put`, once. `number` is the caller's own, rising; without a key it also chooses the partition."""
        at = self._number(key, number)
        stream = self._stream.partitions[at]
        return self.producers[at].put(stream, key, value, headers=headers, expected=expected, number=number)

    def put_many(self, rows: Any, *, number: int | None = None) -> list[Receipt | None]:
        """As `Partitioned.put_many`, once: with a `number` of his own a caller may do it again after an error."""
        parts, streams = self._stream._keys.split(rows, number), self._stream.partitions

        def write(at: int) -> Receipt:
            return self.producers[at].put_many(streams[at], parts[at], number=number)

        return self._stream._written({at: partial(write, at) for at in parts})

    def delete(self, key: Bytes, *, expected: int | None = None, number: int | None = None) -> Receipt:
        """As `Partitioned.delete`, once."""
        at = self._number(key, number)
        return self.producers[at].delete(self._stream.partitions[at], key, expected=expected, number=number)

    def settle(self) -> None:
        """Send again what is in doubt in any partition, until it is answered. Raises Unconfirmed: still no answer."""
        with contextlib.ExitStack() as settling:
            for one in self.producers:
                settling.callback(one.settle)

    def _number(self, key: Bytes | None, number: int | None) -> int:
        if key is None and number is not None:
            return number % len(self.producers)
        return self._stream._keys.number(key)


# A subscription ---------------------------------------------------------------------------------------


class PartitionedFollower:
    """A subscription to all partitions. Iterate over it; leaving the loop ends it, in all of them."""

    def __init__(self, followers: Sequence[blocking.Follower], idle: float | None) -> None:
        self._followers = list(followers)
        self._idle = idle

    def commit(self, partition: int, batch: Batch) -> None:
        """Move the consumer's mark in a partition to the end of a batch; when this returns it is on the disk."""
        self._followers[partition].commit(batch)

    def __iter__(self) -> Iterator[tuple[int, Batch]]:
        handover = Handover(self._followers, self._idle)
        try:
            handover.start()
            while (found := handover.next()) is not None:
                yield found
                handover.go_on(found[0])
        except GeneratorExit:
            pass  # the loop was left; what follows may raise, as it may at the end of a loop over one stream
        except BaseException:
            handover.stop()
            raise
        handover.stop()
        if handover.error is not None:
            raise handover.error


class Handover:
    """Batches of several threads for one loop."""

    def __init__(self, followers: Sequence[blocking.Follower], idle: float | None) -> None:
        self.error: BaseException | None = None
        self._changed = threading.Condition()
        self._ready: deque[tuple[int, Batch]] = deque()
        self._held: set[int] = set()
        """Whose batch waits for the loop, or is with it."""
        self._running = len(followers)
        self._quiet = Quiet(len(followers), idle)
        self._awaited: dict[int, tuple[blocking.Link, Pending]] = {}
        """What threads wait for just now."""
        self._stopped = False
        self._threads = [
            threading.Thread(
                target=self._run, args=(number, one), name=f"tidemark-follow-{number}", daemon=True
            )
            for number, one in enumerate(followers)
        ]

    # What the loop calls --------------------------------------------------------------------------

    def start(self) -> None:
        for one in self._threads:
            one.start()

    def next(self) -> tuple[int, Batch] | None:
        """What came next; None: nothing more comes, or nothing came for long enough.

        Raises:
            TidemarkError: what ended one of the partitions.
        """
        with self._changed:
            while True:
                if self.error is not None:
                    raise self.error
                if self._ready:
                    return self._ready.popleft()
                left = self._quiet.left(time.monotonic())
                if not self._running or (left is not None and left <= 0):
                    return None
                self._changed.wait(left)

    def go_on(self, number: int) -> None:
        """The loop has finished with the batch of this partition."""
        with self._changed:
            self._held.discard(number)
            self._changed.notify_all()

    def stop(self) -> None:
        """No batch more. Returns when all marks are stored that were to be."""
        with self._changed:
            self._stopped = True
            awaited = list(self._awaited.values())
            self._changed.notify_all()
        for link, pending in awaited:
            link.cancel(pending)
        for one in self._threads:
            if one.ident is not None:  # it was started
                one.join()

    # What threads do ------------------------------------------------------------------------------

    def _run(self, number: int, follower: blocking.Follower) -> None:
        follower.next_frame = lambda link, pending: self._frame(number, link, pending)
        try:
            with contextlib.closing(iter(follower)) as batches:  # type: ignore[type-var]
                for batch in batches:
                    if not self._hand_over(number, batch):
                        break
        except BaseException as error:  # the loop raises it
            with self._changed:
                self.error = self.error or error
        finally:
            with self._changed:
                self._running -= 1
                self._changed.notify_all()

    def _hand_over(self, number: int, batch: Batch) -> bool:
        """Whether the loop wants more, when it has finished with this."""
        with self._changed:
            self._held.add(number)
            self._ready.append((number, batch))
            self._changed.notify_all()
            while number in self._held and not self._stopped:
                self._changed.wait()
            return number not in self._held

    def _frame(self, number: int, link: blocking.Link, pending: Pending) -> blocking.Frame | None:
        """What comes next in a partition; None: nobody wants it any more."""
        with self._changed:
            if self._stopped:
                return None
            self._awaited[number] = link, pending
            self._quiet.waits(number, time.monotonic())
            self._changed.notify_all()
        try:
            while not self._stopped:
                with contextlib.suppress(NoAnswerYet):
                    return link.next(pending, time.monotonic() + STOP_S_MAX)
            return None
        except Lost:
            if self._stopped:
                return None
            raise
        finally:
            with self._changed:
                del self._awaited[number]
                self._quiet.busy(number)
