"""What a run of `tidemark perf` notes: how long things took, and which messages were seen.

Invariant: a message that was confirmed and not seen is lost, and is counted once.
"""

from __future__ import annotations

from collections.abc import Iterable

FINE_BITS = 6
"""Latencies are kept to 1 part in 64."""
FINE = 1 << FINE_BITS
SLOTS = FINE * 40


class Latencies:
    """Counts of latencies in µs, in slots that widen with the value."""

    __slots__ = ("count", "largest", "slots")

    def __init__(self) -> None:
        self.slots = [0] * SLOTS
        self.count = 0
        self.largest = 0

    def add(self, us: int, times: int = 1) -> None:
        if us < 0:
            us = 0  # clocks of two machines
        shift = us.bit_length() - FINE_BITS - 1
        self.slots[us if shift <= 0 else (shift << FINE_BITS) + (us >> shift)] += times
        self.count += times
        if us > self.largest:
            self.largest = us

    def take(self, other: Latencies) -> None:
        """Add all that `other` has."""
        for slot, times in enumerate(other.slots):
            if times:
                self.slots[slot] += times
        self.count += other.count
        self.largest = max(self.largest, other.largest)

    def at(self, share: float) -> float | None:
        """The latency in ms that this share of all stayed within; None without any."""
        if not self.count:
            return None
        left = share * self.count
        for slot, times in enumerate(self.slots):
            left -= times
            if times and left <= 0:
                return min(_upper(slot), self.largest) / 1000
        return self.largest / 1000

    def summary(self) -> dict[str, float | None]:
        named = {"p50": 0.5, "p95": 0.95, "p99": 0.99, "p99.9": 0.999}
        found = {name: self.at(share) for name, share in named.items()}
        return {**found, "max": self.largest / 1000 if self.count else None}


def _upper(slot: int) -> int:
    """The largest value that falls into a slot."""
    shift = max(0, (slot >> FINE_BITS) - 1)
    if shift == 0:
        return slot
    return ((slot - (shift << FINE_BITS) + 1) << shift) - 1


class Book:
    """Which messages of which publisher one reader has seen. Messages of a publisher are numbered from 1."""

    def __init__(self) -> None:
        self.seen: dict[int, bytearray] = {}
        self.count = 0
        self.duplicates = 0

    def note(self, publisher: int, number: int) -> bool:
        """Whether it is the first time."""
        row = self.seen.get(publisher)
        if row is None:
            row = self.seen[publisher] = bytearray(1024)
        if number >= len(row):
            row.extend(bytes(max(number + 1 - len(row), len(row))))
        if row[number]:
            self.duplicates += 1
            return False
        row[number] = 1
        self.count += 1
        return True

    def missing(self, publisher: int, numbers: Iterable[int]) -> int:
        """How many of these have not been seen."""
        row = self.seen.get(publisher, b"")
        size = len(row)
        return sum(1 for number in numbers if number >= size or not row[number])
