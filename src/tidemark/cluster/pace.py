"""How fast a member acknowledges, judged by time and not by count.

A member that takes a second for every acknowledgement gives one sample in the time in which a fast one gives a
hundred, so percentiles of samples would hide it. What counts is the share of the last seconds in which it owed an
acknowledgement for longer than its budget: that is a percentile of latency, each moment weighing the same.

Slow is only who does answer. One that has stopped, or cannot be reached, is another matter and has other limits.

Invariant: rounds are in the order of their ends.
"""

from __future__ import annotations

from collections import deque
from dataclasses import dataclass, field

WINDOW_MS = 2000
ROUNDS = 2
"""Slow is only who gave so many late answers ..."""
ROUNDS_MS = 2 * WINDOW_MS
"""... in this time."""


@dataclass(slots=True)
class Pace:
    budget_ms: int
    slow_share: float
    """Slow is whoever was over its budget for this share of the window."""
    rounds: deque[tuple[int, int]] = field(default_factory=deque)
    """(end, how long it took) of those that took longer than the budget."""

    def note(self, now: int, took_ms: int) -> None:
        """An acknowledgement came, so long after it was due. Without a budget nobody is over it."""
        if self.budget_ms and took_ms > self.budget_ms:
            self.rounds.append((now, took_ms))

    def is_slow(self, now: int, owed_ms: int) -> bool:
        """Whether it was over its budget nearly all of the time; it has owed an acknowledgement for `owed_ms` now."""
        while self.rounds and self.rounds[0][0] <= now - ROUNDS_MS:
            self.rounds.popleft()
        return len(self.rounds) >= ROUNDS and self.share(now, owed_ms) >= self.slow_share

    def share(self, now: int, owed_ms: int) -> float:
        """For which share of the window it was over its budget."""
        start = now - WINDOW_MS
        over = sum(max(0, min(took_ms, end - start)) for end, took_ms in self.rounds)
        if owed_ms > self.budget_ms:
            over += min(owed_ms, WINDOW_MS)
        return min(1.0, over / WINDOW_MS)
