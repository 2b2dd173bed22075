"""How often something took how long, or was how large, in classes that double: 1, 2, 4, 8 … and all above.

A class is found by the number of bits, so counting costs a few dozen nanoseconds and no search. It is done once a turn
of the loop or once a sync of the disk, never once a message.

Invariant: `counts[i]` are the values above 2^(i-1) and up to 2^i, except the last, which has all that are larger.
"""

from __future__ import annotations

CLASSES = 24
"""Up to 2^22 units in classes, 4 s of microseconds; the last is for what is more."""


class Histogram:
    __slots__ = ("counts", "total")

    def __init__(self) -> None:
        self.counts = [0] * CLASSES
        self.total = 0

    def add(self, value: int) -> None:
        """One more, of so many units."""
        self.counts[class_of(value)] += 1
        self.total += value

    def buckets(self, unit: float) -> list[tuple[float, int]]:
        """Upper bounds, in multiples of `unit`, with how many values are not above each; the last bound is infinite."""
        return cumulated(self.counts, unit)


def class_of(value: int) -> int:
    """The class of a value of at least 0."""
    return min((value - 1).bit_length() if value > 1 else 0, CLASSES - 1)


def cumulated(counts: list[int] | tuple[int, ...], unit: float) -> list[tuple[float, int]]:
    """The same for counts by class."""
    found, so_far = [], 0
    for place, count in enumerate(counts):
        so_far += count
        found.append((float("inf") if place == len(counts) - 1 else (1 << place) * unit, so_far))
    return found
