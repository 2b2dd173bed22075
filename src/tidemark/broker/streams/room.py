"""What commits that copy rows or take messages may hold in memory, all connections of a node together.

Such a commit is a short request that has the broker read much. It reads slice by slice, and asks before each whether
there is room; when there is none it waits until another one is over.

Invariant: all hold at most `bytes_max`, a slice for rows that are larger than one, and what the first of them holds.
"""

from __future__ import annotations

from typing import Protocol

SLICE_BYTES = 4 << 20
"""About what is read in one step."""


class Reads(Protocol):
    """A commit that is being read, as its `Room` sees it."""

    def go_on(self) -> None:
        """There may be room now."""


class Room:
    """What all commits that are being read hold in memory together: about `bytes_max`, and in addition the first.

    Who came first may always read on, so they cannot wait for each other; the others only while there is room.
    """

    def __init__(self, bytes_max: int) -> None:
        self._bytes_max = bytes_max
        self._held: dict[Reads, int] = {}
        """Of each, in the order in which they came."""
        self._waiting: dict[Reads, None] = {}
        self.bytes = 0

    def join(self, reads: Reads) -> None:
        self._held[reads] = 0

    def may_read(self, reads: Reads) -> bool:
        """Whether it may read another slice now; if not, it is told when to ask again."""
        if reads is next(iter(self._held)) or self.bytes + SLICE_BYTES <= self._bytes_max:
            return True
        self._waiting[reads] = None
        return False

    def holds(self, reads: Reads, size: int) -> None:
        self.bytes += size - self._held[reads]
        self._held[reads] = size

    def leave(self, reads: Reads) -> None:
        """It is over, or nobody wants it any more. Leaving twice is no error."""
        self.bytes -= self._held.pop(reads, 0)
        self._waiting.pop(reads, None)
        first = next(iter(self._held), None)
        room = self._bytes_max - self.bytes
        for each in list(self._waiting):
            if each is not first and room < SLICE_BYTES:
                continue
            room -= SLICE_BYTES
            del self._waiting[each]
            each.go_on()
