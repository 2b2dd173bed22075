"""Counting a part of a snapshot, and cutting it into pieces of about the same work, without reading it.

A `Cutter` goes through the index in small steps, so that nobody waits for it. It stops at each row that would make
a piece too large. With `parts` it goes twice: once to count, once to cut. Bytes are those of values, which the
index knows; bodies and keys are not looked at.

Invariant: the pieces are consecutive and begin behind `after`; all rows between the ends of two pieces are in the
second one. Unless there are as many as were allowed, the last one ends at `until`.
"""

from __future__ import annotations

from array import array
from collections.abc import Sequence
from typing import NamedTuple

from tidemark.broker.streams.snapshots import Slots, Snapshot
from tidemark.errors import PreconditionFailed

LOOK_MAX = 32_768
"""How many entries are looked at in one step: some tenths of a millisecond."""
STEP_PIECES_MAX = 1024
"""How many pieces are made in one step."""
PIECES = 10_000
"""Of one cut, unless more are asked for."""
PIECES_MAX = 100_000
"""Most pieces of one cut: they are kept in memory until it is answered."""
ANY_NUMBER = (1 << 63) - 1


class Piece(NamedTuple):
    """What lies behind the piece before it, up to and with this sequence."""

    until: int
    rows: int
    """Tombstones count."""
    bytes: int


class Cutter:
    """One pass, or two, over (`after`, `until`] of a snapshot."""

    def __init__(
        self,
        snapshot: Snapshot,
        *,
        after: int = 0,
        until: int | None = None,
        shards: Sequence[int] | int | None = None,
        rows: int | None = None,
        bytes: int | None = None,
        parts: int | None = None,
        limit: int = PIECES,
    ) -> None:
        """Without `rows`, `bytes` and `parts` all is one piece.

        Raises:
            PreconditionFailed: a piece of nothing, too many pieces, or a shard that is not there.
        """
        for name, number in (("rows", rows), ("bytes", bytes), ("parts", parts), ("limit", limit)):
            if number is not None and number < 1:
                raise PreconditionFailed(reason=f"cut: '{name}' must be at least 1, not {number}")
        if parts is not None and (rows is not None or bytes is not None):
            raise PreconditionFailed(
                reason="cut: either into 'parts', or by 'rows' and 'bytes' of a piece; both were given"
            )
        for name, number in (("parts", parts), ("limit", limit)):
            if number is not None and number > PIECES_MAX:
                raise PreconditionFailed(
                    reason=f"cut: '{name}' is {number}; at most {PIECES_MAX} pieces are found at once. "
                    "Ask for fewer, then go on with 'after' at the end of the last one"
                )
        self.snapshot = snapshot
        self.numbers = array("q")
        """Three of each piece. As values they would keep the garbage collector busy."""
        self._slots = Slots.of(shards, snapshot.shards, snapshot.stream.name)
        self._start = self._after = max(after, snapshot.after)
        self._end = snapshot.seq if until is None else min(until, snapshot.seq)
        self._rows_max = ANY_NUMBER if rows is None else min(rows, ANY_NUMBER)
        self._bytes_max = ANY_NUMBER if bytes is None else min(bytes, ANY_NUMBER)
        self._parts = parts
        """They are still to be counted; None: this is the pass that cuts."""
        self._limit = limit
        self._open = 0, 0

    @property
    def count(self) -> int:
        return len(self.numbers) // 3

    @property
    def pieces(self) -> list[Piece]:
        numbers = iter(self.numbers)
        return [Piece(*piece) for piece in zip(numbers, numbers, numbers, strict=True)]

    def step(self, look_max: int = LOOK_MAX) -> bool:
        """Go on a little. False: `pieces` are all.

        Raises:
            PinExpired: the snapshot was closed by us.
        """
        if self._start >= self._end:
            return False
        found, rows, size = self.snapshot.cut(
            self._after,
            self._end,
            self._slots,
            self._rows_max,
            self._bytes_max,
            self._open,
            min(self._limit - self.count, STEP_PIECES_MAX),
            look_max,
        )
        self._after, self._open = self.snapshot.position, (rows, size)
        for piece in found:
            self.numbers.extend(piece)
        if self.count == self._limit:
            return False
        if self._after < self._end:
            return True
        if self._parts is not None:
            self._rows_max = max(1, -(-rows // self._parts))
            self._parts, self._after, self._open = None, self._start, (0, 0)
            return True
        self.numbers.extend((self._end, rows, size))
        return False
