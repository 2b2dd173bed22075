"""Copying rows from one stream into another inside a batch: what was staged, piece by piece, becomes visible at once.

Who has more to write than fits into one request, or writes from many places, puts the rows into a staging stream (a
log: there rows keep their keys and bury nothing) and keeps the receipts. A batch then names the sequences of those
that count. The broker reads them by itself, a slice at a time so that nobody waits for the disk, and commits them
like rows that came with the request. Rows that no batch names are never seen in the target.

A range is that of one or more puts: every sequence in it must be a row of the staging stream that is there. If one
is not, because it was ended, superseded, or never a row of it, nothing is copied. What a batch takes from queues
(`takes`) is read here, too, after that.

Invariant: nothing changes before `batch` is committed, and what it holds is exactly the rows of all ranges, in order.
"""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING

from tidemark.broker.streams.commit import Batch, Copy, Operation, Put, Take
from tidemark.broker.streams.core import FLAGS, KEY, PROPERTIES, VALUE, gather, rows_bytes
from tidemark.broker.streams.positions import Position
from tidemark.broker.streams.room import SLICE_BYTES
from tidemark.broker.streams.snapshots import Snapshot
from tidemark.broker.streams.takes import Taker
from tidemark.errors import ContentTooLarge, PreconditionFailed

if TYPE_CHECKING:
    from tidemark.broker.streams.session import StreamSession

RANGES_MAX = 16_384
"""Most ranges of one batch, neighbours counted as one."""
TAKEN_ROOM = 1 << 20
"""What takes leave of broker.batch_bytes_max for all else: that messages are settled, marks, and the producer."""
SLICE_ROWS = 32_768
STEP_TAKES = 256
"""How many short ranges are read in one step."""


class Copier:
    """Reads what a batch copies and takes, step by step. Close it, whatever happens."""

    def __init__(self, session: StreamSession, batch: Batch, rows_max: int, taken_max: int) -> None:
        """
        Raises:
            AccessRefused, NotFound, NotAStream: a stream or queue that the user may not read.
            LostBranch, StreamReset: ranges of another history.
            PreconditionFailed, NotAllowed: ranges, limits or queues that cannot be.
            ContentTooLarge: more than `rows_max` rows (stream.put_rows_max), or `taken_max` messages
                (stream.put_slow_rows_max), or too many ranges.
        """
        self._session = session
        self._batch = batch
        self._bytes_max = session.broker.config.batch_bytes_max
        self._bytes = 0
        self._room = min(TAKEN_ROOM, self._bytes_max // 4)
        self._snapshots: dict[str, Snapshot] = {}
        self._work: list[tuple[int, str, int, int]] = []
        """(operation, staging stream, behind which sequence, up to which), the last one first."""
        self._read: dict[int, list[Put]] = {}
        self._takers: dict[int, Taker] = {}
        self._to_take: list[Taker] = []
        """Those that may find more, the last one first."""
        rows, ranges = 0, []
        for index, operation in enumerate(batch.operations):
            if isinstance(operation, Copy):
                self._read[index] = []
                self._check_history(operation)
                for first, last in _joined(operation):
                    rows += last - first + 1
                    ranges.append((index, operation.stream, first - 1, last))
        if rows > rows_max:
            raise ContentTooLarge(
                reason=f"the batch copies {rows} rows; at most {rows_max} are committed at once "
                "(stream.put_rows_max). Commit fewer at a time (in Spark: a lower maxOffsetsPerTrigger), "
                "or raise that setting"
            )
        if len(ranges) > RANGES_MAX:
            raise ContentTooLarge(
                reason=f"the batch copies {len(ranges)} ranges; at most {RANGES_MAX} are possible. "
                "Stage more rows with each put"
            )
        takes = {at: each for at, each in enumerate(batch.operations) if isinstance(each, Take)}
        wanted = sum(take.limit for take in takes.values())
        if wanted > taken_max:
            raise ContentTooLarge(
                reason=f"the batch takes up to {wanted} messages; at most {taken_max} are taken at once "
                "(stream.put_slow_rows_max). Take fewer, and more often"
            )
        self._work = ranges[::-1]
        try:
            self._open(ranges)
            for index, take in takes.items():
                self._takers[index] = Taker(session, take)
            self._to_take = list(self._takers.values())[::-1]
        except BaseException:
            self.close()
            raise

    def _check_history(self, copy: Copy) -> None:
        """Raises LostBranch, StreamReset: the ranges are of rows that were taken back."""
        if copy.history is not None and copy.ranges:
            last = max(last for _, last in copy.ranges)
            self._session.stream(copy.stream, "read").check_position(Position(copy.history, last))

    def _open(self, ranges: list[tuple[int, str, int, int]]) -> None:
        for _, name, after, last in ranges:
            if name not in self._snapshots:
                stream = self._session.stream(name, "read")
                self._snapshots[name] = Snapshot(stream, stream.caught_up())
            snapshot = self._snapshots[name]
            if last > snapshot.seq:
                raise PreconditionFailed(
                    reason=f"rows {after + 1} to {last} of stream '{name}' cannot be copied: it is at sequence "
                    f"{snapshot.seq}. Copy what a receipt of that stream says"
                )

    def step(self) -> bool:
        """Read a slice. False: all is there.

        Raises:
            PreconditionFailed: a row is not there.
            ContentTooLarge: more than broker.batch_bytes_max.
            PinExpired: the staging stream was deleted, or lets go of too much.
            NotFound: a queue was deleted.
            CorruptRecord: something cannot be read from the disk.
        """
        if not self._work:
            return self._take()
        rows = size = 0
        for _ in range(STEP_TAKES):
            if not self._work or rows >= SLICE_ROWS or size >= SLICE_BYTES:
                break
            index, name, after, last = self._work.pop()
            snapshot = self._snapshots[name]
            taken = snapshot.take(SLICE_ROWS - rows, SLICE_BYTES - size, after=after, until=last)
            count = 0 if taken is None else len(taken)
            position = snapshot.position
            if taken is None or count != position - after:
                raise PreconditionFailed(
                    reason=f"rows {after + 1} to {last} of stream '{name}' cannot be copied: {position - after - count} "
                    f"of the first {position - after} are not there (ended by retention or truncation, superseded, or "
                    "never rows of it). Nothing was copied; stage them again, in a stream with the key 'log'"
                )
            put = Put(self._target(index), gather(snapshot.stream, taken, KEY | VALUE | PROPERTIES | FLAGS))
            need = rows_bytes(put.rows, b"")
            self._bytes += need
            if self._bytes > self._bytes_max:
                raise ContentTooLarge(
                    reason=f"the rows that the batch copies take more than broker.batch_bytes_max ({self._bytes_max} "
                    "bytes) in the journal. Commit fewer at a time (in Spark: a lower maxOffsetsPerTrigger), or "
                    "raise that setting"
                )
            self._read[index].append(put)
            rows, size = rows + count, size + need
            if position < last:
                self._work.append((index, name, position, last))
        return bool(self._work or self._to_take)

    def _take(self) -> bool:
        if self._to_take:
            need, goes_on = self._to_take[-1].step(self._bytes_max - self._bytes - self._room)
            self._bytes += need
            if not goes_on:
                self._to_take.pop()
        return bool(self._to_take)

    @property
    def bytes(self) -> int:
        """About what it holds: what was read so far, as it will be in the journal."""
        return self._bytes

    @property
    def taken(self) -> list[int]:
        """How many messages each take got, in their order."""
        return [taker.count for taker in self._takers.values()]

    def _target(self, index: int) -> str:
        operation = self._batch.operations[index]
        assert isinstance(operation, Copy)
        return operation.into

    @property
    def batch(self) -> Batch:
        """The batch with the rows in place of the copies. Only when `step` has said False."""
        assert not self._work and not self._to_take
        operations: list[Operation] = []
        for index, operation in enumerate(self._batch.operations):
            if index in self._takers:
                operations += self._takers[index].operations
            else:
                operations += self._read.get(index, [operation])
        return replace(self._batch, operations=operations)

    def close(self) -> None:
        """Let go of what was staged. Closing twice is no error."""
        for snapshot in self._snapshots.values():
            snapshot.close()
        self._snapshots.clear()
        self._read.clear()
        for taker in self._takers.values():
            taker.close()


def _joined(copy: Copy) -> list[tuple[int, int]]:
    """The ranges, where one that begins right behind the one before belongs to it.

    Raises:
        PreconditionFailed: one that is empty or begins at 0.
    """
    joined: list[tuple[int, int]] = []
    for first, last in copy.ranges:
        if not 0 < first <= last:
            raise PreconditionFailed(
                reason=f"{first} to {last} is no range of stream '{copy.stream}'; first is at least 1, and not after last"
            )
        if joined and joined[-1][1] + 1 == first:
            first = joined.pop()[0]
        joined.append((first, last))
    return joined
