"""A snapshot: one frozen view of a stream, and the marker that says what was in it.

A snapshot is a number: the sequence at which it was taken. While it is open the stream holds what it sees; writers
do not notice. It reads in sequence order, any range of it, as often as one likes. Who reads all of it feeds the
rows through it and gets the marker of what was read: count, tombstones and a hash that does not depend on the
order, so that two readers of the same range, or a reader and a replica, can be compared.

The shards of a snapshot are those that the stream had when it was opened, or when it was pinned. Who spread a
scan over them gets every row once, though the stream has grown since.

Invariant: the same range of the same snapshot gives the same rows, whatever is written meanwhile and however the
stream grows, or PinExpired.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from types import TracebackType
from typing import TYPE_CHECKING, Self

from tidemark.broker.streams.core import ROW_TOMBSTONE
from tidemark.broker.streams.policy import SLOTS, shard_slots
from tidemark.errors import PinExpired, PreconditionFailed
from tidemark.model.runs import Taken

if TYPE_CHECKING:
    from tidemark.broker.streams.pins import Pin
    from tidemark.broker.streams.stream import Stream

_DIGEST_MASK = (1 << 128) - 1


@dataclass(frozen=True, slots=True)
class Marker:
    """The end of a snapshot: what it held in (`from_`, `to`]."""

    history: bytes
    from_: int
    to: int
    count: int
    """Values, without tombstones."""
    tombstones: int
    digest: int | None
    """None: nobody asked for it."""


SIFTED_MAX = 8192
"""How many rows are looked at in one step when they must be sifted: that is slower than taking all."""


class Slots:
    """Which slots somebody wants: all of some shards."""

    __slots__ = ("_wanted", "end", "low", "ranges")

    def __init__(self, ranges: Iterable[tuple[int, int]] = ((0, SLOTS),)) -> None:
        self.ranges = tuple(ranges)
        self.low = min(low for low, _ in self.ranges)
        self.end = max(end for _, end in self.ranges)
        self._wanted = bytearray(SLOTS) if len(self.ranges) > 1 else b""
        """Of each slot: whether it is wanted; only where there are gaps."""
        if isinstance(self._wanted, bytearray):
            for low, end in self.ranges:
                self._wanted[low:end] = bytes((1,)) * (end - low)

    @classmethod
    def of(cls, shards: Sequence[int] | int | None, count: int, stream: str) -> Slots:
        """Those of the given shards of `count`; None: all.

        Raises:
            PreconditionFailed: a shard that is not there.
        """
        if shards is None:
            return ALL_SLOTS
        chosen = sorted({shards} if isinstance(shards, int) else set(shards))
        if not chosen or chosen[0] < 0 or chosen[-1] >= count:
            raise PreconditionFailed(
                reason=f"stream '{stream}' has the shards 0 to {count - 1}; {chosen} are not among them"
            )
        ranges: list[tuple[int, int]] = []
        for low, end in (shard_slots(shard, count) for shard in chosen):
            if ranges and ranges[-1][1] == low:
                low = ranges.pop()[0]
            ranges.append((low, end))
        return cls(ranges)

    @property
    def wanted(self) -> bytearray | bytes | None:
        """A 1 for each slot that is among them, where there are gaps; None: all from `low` to `end` are."""
        return self._wanted if len(self.ranges) > 1 else None

    def chosen(self, taken: Taken) -> Taken:
        """The rows of these slots, of rows between the lowest and the highest."""
        if len(self.ranges) == 1:
            return taken
        rows, wanted = Taken(0), self._wanted
        for row in taken:
            if wanted[row[5]]:
                rows.add(*row)
        return rows


ALL_SLOTS = Slots()


class Snapshot:
    """One open view. Close it, or use it in a `with`."""

    def __init__(self, stream: Stream, seq: int, after: int = 0, *, pin: Pin | None = None) -> None:
        self.stream = stream
        self.history = stream.broker.streams.history
        self.seq = seq
        self.moment = stream.broker.streams.shown_seq() if seq == stream.boundary else seq
        """Up to here nothing has changed in the stream since `seq`."""
        self.after = after
        """It is about what came behind this sequence, up to `seq`."""
        self.pin = pin
        self.shards = stream.policy.shards if pin is None else pin.shards
        """Into how many it is divided, for as long as it exists."""
        self.position = after
        """How far the last `take` looked."""
        self.used_ms = 0
        self._problem: str | None = None
        self._open = True
        self._count = self._tombstones = self._digest = 0
        stream.hold(seq)
        stream.opened(self)

    @property
    def closed(self) -> bool:
        return not self._open

    def take(
        self,
        count: int,
        bytes_max: int,
        *,
        after: int | None = None,
        until: int | None = None,
        shards: Sequence[int] | int | None = None,
        slots: Slots | None = None,
    ) -> Taken | None:
        """The next rows in order, at least one: about `bytes_max` bytes of bodies, at most `count` rows.

        `after` is where to go on (`position` after the last call), at first the snapshot's own. None: there are
        no more.

        Raises:
            PinExpired: the snapshot was closed by us; the problem says why.
            PreconditionFailed: a shard that is not there.
        """
        stream = self._checked()
        slots = slots or Slots.of(shards, self.shards, stream.name)
        after = self.after if after is None else max(after, self.after)
        end = self.seq if until is None else min(until, self.seq)
        if len(slots.ranges) > 1:
            count = min(count, SIFTED_MAX)
        while True:
            taken = stream.take(self.seq, after, end, count, bytes_max, slots.low, slots.end)
            after = self.position = stream.position
            if taken is None:
                return None
            rows = slots.chosen(taken)
            if len(rows):
                return rows

    def tally(
        self, *, after: int | None = None, until: int | None = None, shards: Sequence[int] | int | None = None
    ) -> tuple[int, int, int]:
        """How many values, tombstones and bytes of bodies a range holds, without reading it."""
        stream = self._checked()
        slots = Slots.of(shards, self.shards, stream.name)
        after = self.after if after is None else max(after, self.after)
        end = self.seq if until is None else min(until, self.seq)
        found = [0, 0, 0]
        for low, high in slots.ranges:
            for at, number in enumerate(stream.tally(self.seq, after, end, low, high)):
                found[at] += number
        return found[0], found[1], found[2]

    def cut(
        self,
        after: int,
        until: int,
        slots: Slots,
        rows_max: int,
        bytes_max: int,
        open_piece: tuple[int, int],
        pieces_max: int,
        look_max: int,
    ) -> tuple[list[tuple[int, int, int]], int, int]:
        """One step of `cuts.Cutter`; see `StreamCore.cut`. `position` is how far it came.

        Raises:
            PinExpired: the snapshot was closed by us; the problem says why.
        """
        stream = self._checked()
        found = stream.cut(
            self.seq, after, until, rows_max, bytes_max, *open_piece, pieces_max, look_max,
            slots.low, slots.end, slots.wanted,
        )  # fmt: skip
        self.position = stream.position
        return found

    def _checked(self) -> Stream:
        if self._problem is not None:
            name = self.pin.name if self.pin else ""
            raise PinExpired(stream=self.stream.name, pin=name, seq=self.seq, problem=self._problem)
        if not self._open:
            raise PreconditionFailed(reason="the snapshot is closed; open another one")
        self.stream.was_read(self)
        return self.stream

    # What was read ---------------------------------------------------------------------------

    def feed(self, taken: Taken, *, digest: bool = True) -> None:
        """Add rows that were read to the marker."""
        stream = self.stream
        # Where nothing is deleted or superseded there is no tombstone to count.
        maybe = stream.tombstones or stream.held or stream.policy.is_log
        deleted = sum(1 for row in taken if row[4] & ROW_TOMBSTONE) if maybe else 0
        self._count += len(taken) - deleted
        self._tombstones += deleted
        if digest:
            self._digest = (self._digest + stream.digest(taken)) & _DIGEST_MASK

    def marker(self, after: int | None = None, *, digest: bool = True) -> Marker:
        """What was fed, as the boundary of this snapshot."""
        start = self.after if after is None else after
        known = self._digest if digest else None
        return Marker(self.history, start, self.seq, self._count, self._tombstones, known)

    def begin_again(self) -> None:
        """Forget what was fed."""
        self._count = self._tombstones = self._digest = 0

    # The end -----------------------------------------------------------------------------------

    def close(self) -> None:
        """Let go. Closing twice is no error."""
        if self._open:
            self._open = False
            self.stream.closed(self)

    def expire(self, problem: str) -> None:
        """Closed by us: the next read says why."""
        self._problem = problem
        self.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()
