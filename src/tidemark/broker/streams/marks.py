"""Marks: how far each named consumer of a stream has come, and who must still be told of deletes.

A mark has a point for the whole stream, or one for each shard when the consumer goes through the shards on
their own. It remembers how many shards that was: when the stream has grown since, the point of a new shard is
the lowest of those of the old shards that it has slots from, so nothing is skipped. Who began to read when there
were fewer shards says so when he moves, and moves the points of shards that lie wholly in his: what lies in another
one too is read again.

A move is judged when it is made, and the record of a mark lies behind all that it speaks of. So a mark is on our
branch for as long as it exists: its history is the present one.

A *registered* consumer has a lease, renewed by every move. While it lasts, tombstones behind its mark stay.
When it ends, that is written down; the mark stays where it is, and registers again when it moves. A consumer that is not
known to come back, because its name was made up for one run, is registered as *passing*: its mark goes with the lease.

Moves that somebody waits for are written at once. The others are merged, one record a consumer, and written
some milliseconds later (`Streams.flush`).

Invariant: a mark never goes back, except by `reset`; `lowest` is the lowest point of those whose lease lasts.
"""

from __future__ import annotations

import heapq
from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, NamedTuple

from tidemark.broker.streams import state
from tidemark.broker.streams.policy import checked_name, shard_slots
from tidemark.broker.streams.positions import Position
from tidemark.errors import NotFound, PreconditionFailed

if TYPE_CHECKING:
    from tidemark.broker.streams.stream import Stream

LEASE_MS_MAX = 1 << 42
_POINT_TEXT_BYTES = 3 * 20 + 5
_BODY_TEXT_BYTES = 160


class Point(NamedTuple):
    """Read up to `seq`, in a snapshot of (`start`, `end`]. At a boundary `seq` is `end`."""

    seq: int
    end: int
    start: int


NOWHERE = Point(0, 0, 0)


class Mark:
    """One consumer of a stream. Who gets one from outside reads it only."""

    __slots__ = (
        "consumer", "expired", "history", "lease_ms", "marks", "passing", "points", "safe_at", "until_ms"
    )  # fmt: skip

    def __init__(self, marks: Marks, consumer: str) -> None:
        self.marks = marks
        self.consumer = consumer
        self.history = b""
        self.points: tuple[Point, ...] = (NOWHERE,)
        """One, or one for each of the shards that its readers count by."""
        self.lease_ms = 0
        """0: it is not registered."""
        self.until_ms = 0
        self.expired = False
        self.passing = False
        """It goes when its lease ends."""
        self.safe_at = 0
        """The sequence of its last record."""

    @property
    def seq(self) -> int:
        """Where it is, at the least."""
        return min(self.points).seq

    @property
    def snapshot_end(self) -> int:
        return min(self.points).end

    @property
    def shards(self) -> int:
        return len(self.points)

    def point(self, shard: int | None = None, shards: int = 1) -> Point:
        """Where it is in one shard of so many; None: in the whole stream."""
        if shard is None or len(self.points) == 1:
            return min(self.points)
        if len(self.points) == shards:
            return self.points[shard]
        low, end = shard_slots(shard, shards)
        count = len(self.points)
        slots = [shard_slots(old, count) for old in range(count)]
        return min(self.points[old] for old in range(count) if slots[old][0] < end and low < slots[old][1])

    def position(self, shard: int | None = None, shards: int = 1) -> Position:
        point = self.point(shard, shards)
        return Position(self.history, point.seq, point.end, point.start)

    # As a holder of a lease ------------------------------------------------------------------

    def leased(self) -> bool:
        return bool(self.lease_ms) and not self.expired and self.marks.by_name.get(self.consumer) is self

    def lease_ended(self, now_ms: int) -> None:
        if self.passing:
            self.marks.unregister(self.consumer, now_ms)
            return
        self.expired = True
        try:
            self.marks.write([self], now_ms)
        except BaseException:
            self.expired = False
            raise
        self.marks.registered -= 1

    def encoded(self) -> state.Change:
        # By hand: it is written for every move, and `json` is ten times as slow.
        points = ",".join(f"[{seq},{end},{start}]" for seq, end, start in self.points)
        lease = f',"l":{self.lease_ms},"u":{self.until_ms}' if self.lease_ms else ""
        expired = ',"x":1' if self.expired else ""
        passing = ',"f":1' if self.passing else ""
        body = f'{{"h":"{self.history.hex()}","p":[{points}]{lease}{expired}{passing}}}'
        return self.marks.key(self.consumer), body.encode()


@dataclass(frozen=True, slots=True)
class Move:
    """What a move would make of a mark, before anything changed."""

    mark: Mark
    points: tuple[Point, ...]


def mark_bytes_max(consumer: str, shards: int = 1) -> int:
    """The most that the record of a mark takes in the journal."""
    name = len(consumer.encode("utf-8", "surrogateescape"))
    return state.record_bytes(len("mark/4294967295/") + name, _BODY_TEXT_BYTES + shards * _POINT_TEXT_BYTES)


class Marks:
    """The marks of one stream."""

    def __init__(self, stream: Stream) -> None:
        self.by_name: dict[str, Mark] = {}
        self.registered = 0
        """How many have a lease that lasts."""
        self.unwritten: dict[Mark, None] = {}
        """Moved, and in no record yet."""
        self._stream = stream
        self._lowest: list[tuple[int, str]] = []
        """A heap of registered consumers. A mark moves on without being moved here; see `lowest`."""

    def key(self, consumer: str) -> bytes:
        return state.key("mark", self._stream.number, consumer)

    def lowest(self) -> int | None:
        """The lowest mark of the registered consumers; None if there is none."""
        heap = self._lowest
        while heap:
            seq, consumer = heap[0]
            mark = self.by_name.get(consumer)
            if mark is None or not mark.leased():
                heapq.heappop(heap)
            elif mark.seq > seq:
                heapq.heapreplace(heap, (mark.seq, consumer))
            else:
                return mark.seq
        return None

    def _keep(self, mark: Mark) -> None:
        """The mark has a lease from now on, or is lower than it was."""
        if len(self._lowest) > 2 * len(self.by_name) + 64:
            self._lowest = [(m.seq, m.consumer) for m in self.by_name.values() if m.leased()]
            heapq.heapify(self._lowest)
        heapq.heappush(self._lowest, (mark.seq, mark.consumer))

    # Changing ------------------------------------------------------------------------------

    def register(self, consumer: str, lease_ms: int | None, now_ms: int, passing: bool = False) -> int:
        """Keep tombstones for this consumer from now on; with `passing` its mark goes when the lease ends.

        Returns the sequence to wait for.

        Raises:
            PreconditionFailed: a name or a lease that cannot be.
        """
        lease_ms = self._stream.policy.tombstone_lease_ms if lease_ms is None else lease_ms
        if not 0 < lease_ms <= LEASE_MS_MAX:
            raise PreconditionFailed(reason=f"a lease of {lease_ms} ms is not possible")
        mark = self.by_name.get(consumer) or self._new(consumer)
        before, was_leased = (mark.lease_ms, mark.until_ms, mark.expired, mark.passing), mark.leased()
        mark.lease_ms, mark.until_ms, mark.expired, mark.passing = lease_ms, now_ms + lease_ms, False, passing
        try:
            seq = self.write([mark], now_ms)
        except BaseException:
            mark.lease_ms, mark.until_ms, mark.expired, mark.passing = before
            raise
        self.by_name[consumer] = mark
        if not was_leased:
            self._leased(mark)
        elif mark.until_ms < before[1]:
            self._stream.broker.streams.leases.add(mark)
        return seq

    def _leased(self, mark: Mark) -> None:
        """The mark has a lease from now on."""
        self.registered += 1
        self._keep(mark)
        self._stream.broker.streams.leases.add(mark)

    def unregister(self, consumer: str, now_ms: int) -> int:
        """Forget the consumer and its mark. Returns the sequence to wait for."""
        mark = self.by_name.get(consumer)
        if mark is None:
            return 0
        seq = self._stream.broker.streams.write([(self.key(consumer), None)], now_ms)
        self.registered -= mark.leased()
        del self.by_name[consumer]
        self.unwritten.pop(mark, None)
        return seq

    def planned(
        self,
        consumer: str,
        position: Position,
        shard: int | None = None,
        known: Move | None = None,
        of: int | None = None,
    ) -> Move:
        """What the move of a mark to this position gives; `known` are moves planned before it.

        `shard` is one of `of`: as many as the stream had when the reading began, by default as many as now.

        Raises:
            LostBranch, StreamReset: the position is not on our branch.
            PreconditionFailed: there is no such shard, or nobody knows which one is meant, or the name cannot be.
        """
        stream = self._stream
        shards = stream.policy.shards
        if of is not None and not 0 < of <= shards:
            raise PreconditionFailed(
                reason=f"stream '{stream.name}' never had {of} shards; it has {shards} now"
            )
        if shard is not None and not 0 <= shard < (of or shards):
            raise PreconditionFailed(
                reason=f"stream '{stream.name}' has {of or shards} shards, none is number {shard}"
            )
        stream.check_position(position)
        mark = self.by_name.get(consumer) or (known.mark if known else None) or self._new(consumer)
        points = known.points if known else mark.points
        if shard is not None and of is None and 1 < len(points) < shards:
            raise PreconditionFailed(
                reason=f"stream '{stream.name}' has grown from {len(points)} shards, by which '{consumer}' is "
                f"marked, to {shards}: say of how many ('of') shard {shard} is one"
            )
        seq, end = position.seq, max(position.seq, position.snapshot_end)
        if shard is None:
            points = tuple(_moved(point, seq, end) for point in points)
            if all(point == points[0] for point in points):
                points = points[:1]
        else:
            now = Mark(self, consumer)
            now.points = points
            of = of or shards
            # Never fewer points than there are: who counts by fewer shards must not set the others back.
            count = min(max(of, len(points)), shards)
            spread = [now.point(each, count) for each in range(count)]
            for each in _inside(shard, of, count):
                spread[each] = _moved(spread[each], seq, end)
            points = tuple(spread)
        return Move(mark, points)

    def made(self, move: Move, now_ms: int) -> Mark:
        """Move the mark in memory. Its record is the caller's business."""
        mark = move.mark
        mark.history, mark.points = self._stream.broker.streams.history, move.points
        self.by_name[mark.consumer] = mark
        if mark.lease_ms:
            mark.until_ms = max(mark.until_ms, now_ms + mark.lease_ms)
            if mark.expired:
                mark.expired = False
                self._leased(mark)
        return mark

    def move(
        self,
        consumer: str,
        position: Position,
        shard: int | None,
        wait: bool,
        now_ms: int,
        of: int | None = None,
    ) -> int:
        """Move a mark on; one that is further already stays. Returns the sequence to wait for, 0 without `wait`.

        Raises:
            LostBranch, StreamReset, PreconditionFailed: see `planned`
            StoreError: the journal takes nothing now; the mark is where it was.
        """
        move = self.planned(consumer, position, shard, of=of)
        streams, mark = self._stream.broker.streams, move.mark
        if wait:
            # Room first: from there on nothing can fail.
            streams.journal.ensure(mark_bytes_max(consumer, len(move.points)))
        self.made(move, now_ms)
        self.unwritten[mark] = None
        if not wait:
            streams.marks_wait(self._stream, now_ms)
            return 0
        return self.write([mark], now_ms)

    def reset(self, consumer: str, seq: int, now_ms: int) -> int:
        """Put a mark anywhere, back too. Returns the sequence to wait for.

        Raises:
            PreconditionFailed: behind the newest message that is shown.
        """
        stream = self._stream
        if not 0 <= seq <= stream.caught_up():
            raise PreconditionFailed(
                reason=f"stream '{stream.name}' is at sequence {stream.boundary}; {seq} is no place for a mark"
            )
        mark = self.by_name.get(consumer) or self._new(consumer)
        before = mark.history, mark.points
        mark.history, mark.points = stream.broker.streams.history, (Point(seq, seq, seq),)
        try:
            safe_at = self.write([mark], now_ms)
        except BaseException:
            mark.history, mark.points = before
            raise
        self.by_name[consumer] = mark
        if mark.leased():
            self._keep(mark)
        return safe_at

    def _new(self, consumer: str) -> Mark:
        checked_name("a consumer", consumer)
        return Mark(self, consumer)

    def get(self, consumer: str) -> Mark:
        """Raises NotFound when there is none."""
        mark = self.by_name.get(consumer)
        if mark is None:
            raise NotFound(
                reason=f"stream '{self._stream.name}' has no mark '{consumer}'; "
                "move it once, or begin at 'first' or 'next'"
            )
        return mark

    # Records -------------------------------------------------------------------------------

    def write(self, marks: list[Mark], now_ms: int) -> int:
        """Write these down. Returns the sequence of the last.

        Raises:
            StoreError: the journal takes nothing now.
        """
        seq = self._stream.broker.streams.write([mark.encoded() for mark in marks], now_ms)
        for mark in marks:
            mark.safe_at = seq
            self.unwritten.pop(mark, None)
        return seq

    def restored(self, consumer: str, body: dict[str, Any], seq: int) -> None:
        """Recovery: a mark as it was written."""
        mark = Mark(self, consumer)
        # Its record survived, so what it speaks of did, whatever became of the history it was written in.
        mark.history = self._stream.broker.streams.history
        mark.points = tuple(Point(*point) for point in body["p"])
        mark.lease_ms, mark.until_ms = body.get("l", 0), body.get("u", 0)
        mark.expired, mark.passing, mark.safe_at = bool(body.get("x")), bool(body.get("f")), seq
        self.by_name[consumer] = mark
        if mark.leased():
            self._leased(mark)

    def gone(self) -> list[state.Change]:
        """The stream is deleted: what becomes of the records."""
        changes: list[state.Change] = [(self.key(consumer), None) for consumer in self.by_name]
        self.registered = 0
        self.by_name.clear()
        self.unwritten.clear()
        self._lowest.clear()
        return changes


def _inside(shard: int, of: int, count: int) -> Sequence[int]:
    """Which of `count` shards lie wholly in this one of `of`."""
    if count == of:
        return (shard,)
    low, end = shard_slots(shard, of)
    slots = (shard_slots(each, count) for each in range(count))
    return [each for each, (first, last) in enumerate(slots) if low <= first and last <= end]


def _moved(before: Point, seq: int, end: int) -> Point:
    if seq < before.seq:
        return before
    if end <= before.end:
        return Point(seq, before.end if seq < before.end else seq, before.start)
    # Another snapshot. If the one before was read to its end, this one begins there; else what was missed of
    # it is only made good when this one is whole, and both count from where the first began.
    start = before.end if before.seq >= before.end else before.start
    return Point(seq, end, start)
