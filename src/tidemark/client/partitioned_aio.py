"""A partitioned stream in the asyncio client: the same as in `tidemark.client.partitioned`, awaited.

A subscription has a task for each partition while it lasts; the loop gets their batches one at a time.

Invariant: a partition's task asks for its next batch, which moves the mark, only when the loop has finished with the last one.
"""

from __future__ import annotations

import asyncio
import contextlib
import time
from collections import deque
from collections.abc import AsyncGenerator, AsyncIterator, Awaitable, Mapping, Sequence
from types import TracebackType
from typing import TYPE_CHECKING, Any, Generic, Self, TypeVar

from tidemark.client.opening import Opening
from tidemark.client.reading import Batch, Commit, OnReset, Position, Progress, Start
from tidemark.client.rows import package
from tidemark.client.splitting import Keys, Quiet, Together, receipts, starts
from tidemark.client.values import Bytes, Lag, Mark, Marker, Receipt, Row, StreamInfo
from tidemark.errors import TidemarkError

if TYPE_CHECKING:
    import pyarrow as pa

    from tidemark.client import aio

F = TypeVar("F", bound="aio.AsyncFrozen")

STOP_S_MAX = 5.0
"""How long the end of a subscription waits for tasks that have a mark to move, before it cancels them, too."""


class AsyncPartitioned:
    """One name for several streams. Made by `AsyncClient.partitioned`; see `partitioned.Partitioned`."""

    def __init__(self, name: str, partitions: Sequence[aio.AsyncStream]) -> None:
        self._name = name
        self._partitions = list(partitions)
        self._keys = Keys(len(self._partitions))

    @property
    def name(self) -> str:
        return self._name

    @property
    def partitions(self) -> list[aio.AsyncStream]:
        """The streams, in order: what can be done with one of them alone is done there."""
        return list(self._partitions)

    def __len__(self) -> int:
        """How many partitions it has."""
        return len(self._partitions)

    def __repr__(self) -> str:
        return f"<AsyncPartitioned {self._name!r} in {len(self)}>"

    def of(self, key: Bytes | None) -> aio.AsyncStream:
        """The partition of a key; without a key the next in turn."""
        return self._partitions[self._keys.number(key)]

    async def info(self) -> list[StreamInfo]:
        """Counts, sequences and group of each partition, as they are now."""
        return [await one.info() for one in self._partitions]

    # Writing ------------------------------------------------------------------------------------

    async def put(
        self,
        key: Bytes | None,
        value: Bytes,
        *,
        headers: Mapping[str, Any] | None = None,
        expected: int | None = None,
    ) -> Receipt:
        """As `AsyncStream.put`, in the partition of the key."""
        return await self.of(key).put(key, value, headers=headers, expected=expected)

    async def put_many(self, rows: Any) -> list[Receipt | None]:
        """As `AsyncStream.put_many`, split by key: all or none within each partition, and only there."""
        parts = self._keys.split(rows)
        return await self._written(
            {number: self._partitions[number].put_many(part) for number, part in parts.items()}
        )

    async def delete(self, key: Bytes, *, expected: int | None = None) -> Receipt:
        """As `AsyncStream.delete`, in the partition of the key."""
        return await self.of(key).delete(key, expected=expected)

    def producer(self, name: str) -> Opening[AsyncPartitionedProducer]:
        """A producer for each partition, named after both, so that numbers are counted by partition."""
        return Opening(self._producer(name))

    async def _producer(self, name: str) -> AsyncPartitionedProducer:
        found = [await one.client.producer(f"{name}/{one.name}") for one in self._partitions]
        return AsyncPartitionedProducer(self, name, found)

    async def _written(self, writes: Mapping[int, Awaitable[Receipt]]) -> list[Receipt | None]:
        found = await asyncio.gather(*writes.values(), return_exceptions=True)
        return receipts(self._name, len(self), dict(zip(writes, found, strict=True)))

    # Reading ------------------------------------------------------------------------------------

    async def get(self, key: Bytes) -> Row | None:
        """The newest version of a key; None if it has none or was deleted."""
        return await self.of(key).get(key)

    def snapshot(
        self, *, after: Sequence[Position | None] | None = None, progress: Progress | None = None
    ) -> Opening[AsyncPartitionedSnapshot]:
        """A snapshot of each partition: each is one moment, and these moments may differ."""
        return Opening(self._snapshot([None] * len(self) if after is None else list(after), progress))

    async def _snapshot(
        self, begins: Sequence[Position | None], progress: Progress | None
    ) -> AsyncPartitionedSnapshot:
        together = None if progress is None else Together(progress, len(self))
        async with contextlib.AsyncExitStack() as opened:
            found = []
            for number, (one, begin) in enumerate(zip(self._partitions, begins, strict=True)):
                opening = one.snapshot(
                    after=begin, progress=None if together is None else together.of(number)
                )
                found.append(await opened.enter_async_context(opening))
            opened.pop_all()
        if together is not None:
            together.totals = [len(one) for one in found]
        return AsyncPartitionedSnapshot(found)

    def pin(self, name: str, *, lease: float = 3600.0) -> Opening[AsyncPartitionedPin]:
        """Keep what each partition holds now readable under a name; the same name again renews what is there."""
        return Opening(self._pin(name, lease))

    async def _pin(self, name: str, lease: float) -> AsyncPartitionedPin:
        return AsyncPartitionedPin(name, [await one.pin(name, lease=lease) for one in self._partitions])

    async def pinned(self, name: str) -> AsyncPartitionedPin:
        """Pins of that name that exist. Raises NotFound: in one of the partitions there is none."""
        return AsyncPartitionedPin(name, [await one.pinned(name) for one in self._partitions])

    async def lag(self, after: Sequence[Position | None]) -> list[Lag]:
        """What lies behind a place in each partition, as `marks` gives them; None: behind the beginning."""
        places = [0 if place is None else place for place in after]
        return [await one.lag(place) for one, place in zip(self._partitions, places, strict=True)]

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
    ) -> AsyncPartitionedFollower:
        """Rows of all partitions as they come, each with the number of its partition. See `partitioned.Partitioned.follow`."""
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
        return AsyncPartitionedFollower(followers, idle)

    async def marks(self, consumer: str) -> list[Mark | None]:
        """How far a consumer has come in each partition; None: it has not begun there."""
        return [await one.mark(consumer) for one in self._partitions]


# Passes over many rows --------------------------------------------------------------------------------


class AsyncParts(Generic[F]):
    """The same kind of view of every partition; what is read is read partition by partition."""

    def __init__(self, parts: Sequence[F]) -> None:
        self.parts = list(parts)
        """Of each partition, in order."""

    @property
    def markers(self) -> list[Marker | None]:
        """Of each partition, the marker of the last pass that was read to its end, verified; None before."""
        return [one.marker for one in self.parts]

    async def rows(
        self,
        *,
        key_from: Bytes | None = None,
        key_to: Bytes | None = None,
        columns: Sequence[str] | None = None,
    ) -> AsyncIterator[Row]:
        """All rows, those of each partition in the order of their sequence."""
        for one in self.parts:
            async for row in one.rows(key_from=key_from, key_to=key_to, columns=columns):
                yield row

    async def batches(self, **part: Any) -> AsyncIterator[pa.RecordBatch]:
        """The same as Arrow record batches."""
        for one in self.parts:
            async for batch in one.batches(**part):
                yield batch

    async def to_arrow(self, **part: Any) -> pa.Table:
        """Everything as one Arrow table; takes what `batches` takes."""
        pa = package("pyarrow", "to_arrow()")
        return pa.concat_tables([await one.to_arrow(**part) for one in self.parts])

    async def to_pandas(self, **part: Any) -> Any:
        """Everything as a pandas DataFrame."""
        package("pandas", "to_pandas()")
        return (await self.to_arrow(**part)).to_pandas()

    async def to_polars(self, **part: Any) -> Any:
        """Everything as a Polars DataFrame."""
        return package("polars", "to_polars()").from_arrow(await self.to_arrow(**part))

    def __aiter__(self) -> AsyncIterator[Row]:
        return self.rows()


class AsyncPartitionedSnapshot(AsyncParts["aio.AsyncSnapshot"]):
    """A snapshot of every partition, each of its own moment; held open until it is closed."""

    @property
    def positions(self) -> list[Receipt]:
        """The end of each, to go on from: `snapshot(after=…)`, `follow(start=…)`."""
        return [one.position for one in self.parts]

    def __len__(self) -> int:
        """How many rows it has, deleted ones included, as the brokers counted when it was opened."""
        return sum(map(len, self.parts))

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        await self.close()

    async def close(self) -> None:
        """Let the brokers forget it."""
        for one in self.parts:
            await one.close()


class AsyncPartitionedPin(AsyncParts["aio.AsyncPin"]):
    """A pin of the same name in every partition."""

    def __init__(self, name: str, parts: Sequence[aio.AsyncPin]) -> None:
        super().__init__(parts)
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
        for one in self.parts:
            await one.renew(lease)

    async def release(self) -> None:
        """It is no longer needed. Of a partition that cannot be reached the error is raised when the others are released."""
        async with contextlib.AsyncExitStack() as leaving:
            for one in self.parts:
                leaving.push_async_callback(one.release)


# Writing under numbers --------------------------------------------------------------------------------


class AsyncPartitionedProducer:
    """A producer for each partition. See `partitioned.PartitionedProducer`."""

    def __init__(self, stream: AsyncPartitioned, name: str, producers: Sequence[aio.AsyncProducer]) -> None:
        self._stream = stream
        self.name = name
        self.producers = list(producers)
        """Of each partition, in order; `last` of each says how far it came there."""

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if kind is None:
            await self.settle()

    async def put(
        self,
        key: Bytes | None,
        value: Bytes,
        *,
        headers: Mapping[str, Any] | None = None,
        expected: int | None = None,
        number: int | None = None,
    ) -> Receipt:
        """As `AsyncPartitioned.put`, once."""
        at = self._number(key, number)
        stream = self._stream.partitions[at]
        return await self.producers[at].put(
            stream, key, value, headers=headers, expected=expected, number=number
        )

    async def put_many(self, rows: Any, *, number: int | None = None) -> list[Receipt | None]:
        """As `AsyncPartitioned.put_many`, once: with a `number` of his own a caller may do it again after an error."""
        parts, streams = self._stream._keys.split(rows, number), self._stream.partitions
        return await self._stream._written(
            {at: self.producers[at].put_many(streams[at], part, number=number) for at, part in parts.items()}
        )

    async def delete(self, key: Bytes, *, expected: int | None = None, number: int | None = None) -> Receipt:
        """As `AsyncPartitioned.delete`, once."""
        at = self._number(key, number)
        stream = self._stream.partitions[at]
        return await self.producers[at].delete(stream, key, expected=expected, number=number)

    async def settle(self) -> None:
        """Send again what is in doubt in any partition, until it is answered. Raises Unconfirmed: still no answer."""
        async with contextlib.AsyncExitStack() as settling:
            for one in self.producers:
                settling.push_async_callback(one.settle)

    def _number(self, key: Bytes | None, number: int | None) -> int:
        if key is None and number is not None:
            return number % len(self.producers)
        return self._stream._keys.number(key)


# A subscription ---------------------------------------------------------------------------------------


class AsyncPartitionedFollower:
    """A subscription to all partitions. Use it with `async with`: its end stores the last marks."""

    def __init__(self, followers: Sequence[aio.AsyncFollower], idle: float | None) -> None:
        self._followers = list(followers)
        self._idle = idle
        self._iterating: AsyncGenerator[tuple[int, Batch], None] | None = None

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if self._iterating is not None:
            await self._iterating.aclose()

    def __aiter__(self) -> AsyncIterator[tuple[int, Batch]]:
        self._iterating = self._run()
        return self._iterating

    async def commit(self, partition: int, batch: Batch) -> None:
        """Move the consumer's mark in a partition to the end of a batch; when this returns it is on the disk."""
        await self._followers[partition].commit(batch)

    async def _run(self) -> AsyncGenerator[tuple[int, Batch], None]:
        handover = Handover(self._followers, self._idle)
        try:
            while (found := await handover.next()) is not None:
                number, batch, finished = found
                yield number, batch
                finished.set_result(None)
        except GeneratorExit:
            pass  # the loop was left; what follows may raise, as it may at the end of a loop over one stream
        except BaseException:
            await handover.stop()
            raise
        await handover.stop()
        if handover.error is not None:
            raise handover.error


class Handover:
    """Batches of several tasks for one loop."""

    def __init__(self, followers: Sequence[aio.AsyncFollower], idle: float | None) -> None:
        self.error: BaseException | None = None
        self._changed = asyncio.Event()
        self._ready: deque[tuple[int, Batch, asyncio.Future[None]]] = deque()
        self._last: dict[int, asyncio.Future[None]] = {}
        """The batch of a partition whose task has not asked for another one yet: done when the loop has finished with it."""
        self._stopped = False
        self._quiet = Quiet(len(followers), idle)
        self._running = len(followers)
        self._tasks = [asyncio.create_task(self._feed(number, one)) for number, one in enumerate(followers)]

    async def next(self) -> tuple[int, Batch, asyncio.Future[None]] | None:
        """What came next, and what to say when the loop has finished with it; None: nothing more, or not for long enough.

        Raises:
            TidemarkError: what ended one of the partitions.
        """
        while True:
            if self.error is not None:
                raise self.error
            if self._ready:
                return self._ready.popleft()
            left = self._quiet.left(time.monotonic())
            if (left is not None and left <= 0) or not self._running:
                return None
            self._changed.clear()
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(left):
                    await self._changed.wait()

    async def stop(self) -> None:
        """No batch more. Returns when all marks are stored that were to be."""
        self._stopped = True
        # A task may not know yet that its batch is finished: cancelled now, it would not move the mark.
        moving = {self._tasks[number] for number, finished in self._last.items() if finished.done()}
        for one in self._tasks:
            if one not in moving:
                one.cancel()
        try:
            if moving:
                await asyncio.wait(moving, timeout=STOP_S_MAX)
        finally:
            for one in moving:
                one.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)

    async def _feed(self, number: int, follower: aio.AsyncFollower) -> None:
        follower.next_frame = lambda link, pending: self._frame(number, link, pending)
        try:
            async with follower as batches:
                async for batch in batches:
                    if self._stopped:
                        break
                    finished = asyncio.get_running_loop().create_future()
                    self._last[number] = finished
                    self._ready.append((number, batch, finished))
                    self._changed.set()
                    await finished
        except Exception as error:  # the loop raises it
            self.error = self.error or error
        finally:
            self._running -= 1
            self._changed.set()

    async def _frame(self, number: int, link: aio.Link, pending: aio.Pending) -> aio.Frame | None:
        """What comes next in a partition; None: nobody wants it any more."""
        if self._stopped:
            return None
        self._last.pop(number, None)
        self._quiet.waits(number, time.monotonic())
        self._changed.set()
        try:
            return await link.next(pending, None)
        finally:
            self._quiet.busy(number)
