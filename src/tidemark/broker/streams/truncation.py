"""Ending all of a stream up to a sequence, a part at a time, so that nobody waits while millions of rows end.

Each part is a step of `Ends`, like those of retention: what is below the floor ends, pins and open snapshots go on
to show it. Who has read tombstones that end so, or (with `tell`) anything, is told to start over when he comes back.
A truncation that is cut off by a crash has ended some of it; made again it goes on there.

Invariant: only rows that were there when it began end by it: the floor is at most one above the
newest of them.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from tidemark.errors import PreconditionFailed
from tidemark.model.arena import EVERYTHING

if TYPE_CHECKING:
    from tidemark.broker.streams.stream import Stream

LOOK_MAX = 32_768
"""How many rows end in one step: some milliseconds."""
CURRENT = EVERYTHING - 1
"""A snapshot that sees only what nothing has superseded."""
ANY_NUMBER = (1 << 63) - 1


class Truncation:
    """One of them, on its way."""

    def __init__(self, stream: Stream, upto: int | None, *, tell: bool = False) -> None:
        """Up to and with a sequence; None: all that is there.

        Raises:
            PreconditionFailed: nothing has that sequence yet.
        """
        newest = stream.arena.next_seq - 1
        if upto is not None and not 0 <= upto <= newest:
            raise PreconditionFailed(
                reason=f"stream '{stream.name}' cannot be truncated up to {upto}: the newest sequence is {newest}. "
                "Take the sequence of a receipt, a mark or a marker"
            )
        self.ended = 0
        """Rows so far, tombstones too."""
        self.safe_at = stream.ends.last.by
        """What must be durable before anybody is told."""
        self._stream = stream
        # Behind its last row nothing of this stream ends: who has read that one has missed nothing.
        self._upto = min(newest if upto is None else upto, stream.last_seq)
        self._after = min(max(0, stream.ends.last.floor - 1), self._upto)
        self._tell = tell

    @property
    def position(self) -> int:
        """Up to here all has ended."""
        return self._after

    def step(self, now_ms: int, look_max: int | None = None) -> bool:
        """End some. False: that was all.

        Raises:
            StoreError: the journal takes nothing now; what was ended before stays ended.
        """
        stream = self._stream
        look_max = LOOK_MAX if look_max is None else look_max
        _, rows, _ = stream.cut(CURRENT, self._after, self._upto, ANY_NUMBER, ANY_NUMBER, 0, 0, 1, look_max)
        position = stream.position
        goes_on = position < self._upto
        self.ended += rows
        if rows or (self._tell and self.ended and not goes_on):
            oldest = stream.oldest_tombstone()
            purged = position if oldest is not None and oldest[0] <= position else 0
            if self._tell and not goes_on:
                purged = stream.arena.next_seq  # the record of this step itself: nobody has read that far
            self.safe_at = stream.ends.advance(now_ms, floor=position + 1, purged=purged)
        self._after = position
        return goes_on
