"""How much readers are given in a turn of the loop, and whose turn it is.

A batch of a megabyte takes a millisecond or more to make, during which nobody else is served. Ten readers with a
batch each would make publishers wait ten times as long. So the connections that have something to read stand in
line; the first get a batch and go to the end of the line.

While something is being written readers live on what writers leave: small batches, in turns in which nothing
arrived (the disk is at work then). When every turn brings something, readers get a share in proportion to what was
written, or at the least one small batch in some turns.

Invariant: a connection that stays in line is served before any other is served twice.
"""

from __future__ import annotations

from itertools import islice
from typing import Any

SERVED = 2
"""Readers that are served in a turn while nobody writes."""
FULL_BYTES = 1 << 20
SMALL_BYTES = 1 << 18
BUSY_TURNS = 16
"""For how many turns a write counts: until its sync is over, or nearly."""
WRITES_A_BATCH = 4000
"""How many messages are written for each small batch that readers get, when every turn writes something."""
PATIENCE_TURNS = 8
"""How many such turns readers wait at most."""


class Pace:
    """One for all connections of a node."""

    def __init__(self) -> None:
        self._line: dict[Any, None] = {}
        self._turn = self._seq = -1
        self._busy_until = 0
        self._served_turn = 0
        self._written = 0
        """Messages since readers were served last."""
        self._next: set[Any] = set()
        """Who is served in this turn, and was not yet."""
        self._share = FULL_BYTES

    def join(self, reader: Any) -> None:
        """It has something to read from now on."""
        self._line.setdefault(reader)

    def leave(self, reader: Any) -> None:
        """It has nothing to read, or cannot take it."""
        self._line.pop(reader, None)

    def share(self, reader: Any, turn: int, seq: int) -> int:
        """About how many bytes this reader gets now; 0: it is not its turn. `seq` counts what is written."""
        if turn != self._turn:
            count, self._share = self._begin(turn, seq)
            self._next = set()
            for each in list(islice(self._line, count)):
                self._next.add(each)
                del self._line[each]
                self._line[each] = None
        if reader not in self._next:
            return 0
        self._next.discard(reader)
        return self._share

    def _begin(self, turn: int, seq: int) -> tuple[int, int]:
        """A new turn: how many readers are served in it, and how much each gets."""
        written, self._seq, self._turn = seq - self._seq, seq, turn
        if written:
            self._busy_until = turn + BUSY_TURNS
            self._written += written
            batches = self._written // WRITES_A_BATCH
            if not batches and turn < self._served_turn + PATIENCE_TURNS:
                return 0, 0
        else:
            batches = 1
        self._served_turn, self._written = turn, 0
        if turn >= self._busy_until:
            return SERVED, FULL_BYTES
        return 1, min(FULL_BYTES, SMALL_BYTES * max(1, batches))
