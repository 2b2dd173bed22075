"""What a route points to: a queue or a stream, as far as publishing and recovery must know it.

A *target* has a number, by which records name it, and takes entries. `QueueCore` and `StreamCore` derive from
it and say what becomes of an entry.

Invariant: `is_dirty` is true exactly while the target is in the broker's list of what to look at.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

from tidemark.model._arena_py import Arena

_WORD = (1 << 64) - 1


def mixed(seq: int) -> int:
    """A hash of a sequence (the finish of SplitMix64): sums of these tell sets of sequences apart."""
    seq = (seq + 0x9E3779B97F4A7C15) & _WORD
    seq = ((seq ^ seq >> 30) * 0xBF58476D1CE4E5B9) & _WORD
    seq = ((seq ^ seq >> 27) * 0x94D049BB133111EB) & _WORD
    return seq ^ seq >> 31


def census_of(seqs: Iterable[int]) -> tuple[int, int]:
    """How many they are, and the sum of their hashes: whatever the order, the same of the same."""
    count = digest = 0
    for seq in seqs:
        count, digest = count + 1, (digest + mixed(seq)) & _WORD
    return count, digest


class Target:
    """Something that messages are put on."""

    def __init__(self, arena: Arena, number: int, durable: bool, dirty: list[Any]) -> None:
        self.arena = arena
        self.number = number
        self.durable = durable
        self.ttl_ms = -1
        """x-message-ttl; -1 for none. Applies to messages put from now on."""
        self.guarded = False
        """A publish must ask first (a length limit that refuses, an own rule): no fast path."""
        self.keeps = False
        """Every message goes to the journal, whatever its delivery mode (streams)."""
        self.published = 0
        self.is_dirty = False
        self.deleted = False
        """Set by `clear`: what consumers still hold of it can be settled or requeued in vain."""
        self._dirty = dirty

    def touch(self) -> None:
        """Something changed: the broker looks at this target at the end of the turn."""
        if not self.is_dirty:
            self.is_dirty = True
            self._dirty.append(self)

    def put(
        self,
        seq: int,
        loc: int,
        size: int,
        priority: int,
        expires_ms: int,
        flags: int,
        deliveries: int = 0,
    ) -> None:
        """Add an entry at the end. `seq` is above every other."""
        raise NotImplementedError

    def restore(self, seq: int, loc: int, size: int, priority: int, expires_ms: int, deliveries: int) -> None:
        """Recovery: an entry as the journal has it."""
        raise NotImplementedError

    def forget(self, _seq: int) -> bool:
        """Recovery: a SETTLED record names this entry. False if it is not here, as ever in a stream."""
        return False

    def set_deliveries(self, _seq: int, _deliveries: int) -> None:
        """Recovery: a COUNTED record. Streams count no deliveries."""

    def census(self) -> tuple[int, int]:
        """Of the entries that the journal has left here: how many, and the sum of the hashes of their sequences."""
        raise NotImplementedError

    def relocate(self, seq: int, loc: int) -> bool:
        """The record of this entry lies elsewhere now. False if the entry is gone."""
        raise NotImplementedError
