"""Whether those who follow hold what the leader does, queue by queue, while everything goes on.

The logs of members are the same, record by record; that is seen to as they are shipped. What a member makes of them in
memory it makes by itself, and a mistake there would come to light when it leads, which is too late. So now and then
the leader says what its queues and streams hold at a place of the logs, some of them at a time, and whoever follows
looks at its own when its logs end at that very place.

    leader: memory is what the logs say, up to `at` ──Compare(at, censuses)──► follower: at `at`? the same?
                                                                               └─► its own readers are told, too

`Compare` goes down the same links as the frames, so it is there before anything behind `at` is. One that cannot be
answered is let go of: the next round has all of it again. What records end in a stream, followers end when it is
complete: streams are compared in moments in which all is.

A difference counts when it is seen a second time: what happens only now and then in passing is nothing to act upon.

Invariant: nothing is compared unless both logs end at the place of which the censuses are.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable
from typing import Protocol

from tidemark.model.peers import Census, Compare, Ends

QUEUES_MAX = 1000
ENTRIES_MAX = 1_000_000
"""What is counted at once, so that no turn takes long; one queue may have more."""
PART_MS = 1000
"""From one part of a round to the next."""
NUMBER_MAX = (1 << 32) - 1
WAITING_MAX = 16
TIMES = 2
"""A difference that was seen so often in a row is one."""


class Counted(Protocol):
    """A queue or a stream."""

    keeps: bool
    """It is a stream."""

    def census(self) -> tuple[int, int]: ...


Targets = Iterable[tuple[int, Counted]]
"""By their numbers."""


class Round:
    """At the leader: all queues or all streams, one part after the other, again and again."""

    def __init__(self, every_s: int, streams: bool) -> None:
        self.streams = streams
        self._every_ms = every_s * 1000
        self._due_ms: int | None = None
        self._next = 0
        """Those from this number on are still to come."""

    def is_due(self, now_ms: int) -> bool:
        """Whether it is time for the next part. The first comes a while after the member has begun to lead."""
        if not self._every_ms:
            return False
        if self._due_ms is None:
            self._due_ms = now_ms + self._every_ms
        return now_ms >= self._due_ms

    def next_part(self, epoch: int, at: Ends, targets: Targets, now_ms: int) -> Compare:
        """What the next ones hold, now that the logs end at `at`."""
        first, last = self._next, NUMBER_MAX
        found: list[Census] = []
        entries = 0
        ahead = (one for one in targets if one[0] >= first and one[1].keeps == self.streams)
        for number, target in sorted(ahead, key=lambda one: one[0]):
            if len(found) == QUEUES_MAX or entries >= ENTRIES_MAX:
                last = number - 1
                break
            count, digest = target.census()
            entries += count
            found.append(Census(number, count, digest))
        over = last == NUMBER_MAX
        self._next = 0 if over else last + 1
        self._due_ms = now_ms + (self._every_ms if over else min(PART_MS, self._every_ms))
        return Compare(epoch, at, self.streams, first, last, tuple(found))

    def forget(self) -> None:
        self._due_ms, self._next = None, 0


class Comparing:
    """At those who follow."""

    def __init__(self) -> None:
        self._waiting: deque[Compare] = deque(maxlen=WAITING_MAX)
        self.compared = 0
        """How many queues and streams were looked at since the start."""
        self.differing: dict[int, int] = {}
        """By the number of a queue: how often in a row it was not what the leader's is."""

    def hear(self, compare: Compare) -> None:
        self._waiting.append(compare)

    @property
    def waits(self) -> bool:
        return bool(self._waiting)

    def look(self, ends: Ends, complete: Ends, targets: Targets) -> list[tuple[Census, Census]]:
        """The logs end here now, and so much is complete. What has come to differ for good: (there, here)."""
        news: list[tuple[Census, Census]] = []
        while self._waiting and ends.covers(self._waiting[0].at):
            compare = self._waiting[0]
            if ends == compare.at and compare.streams and not complete.covers(ends):
                break  # it is, in a moment
            self._waiting.popleft()
            if ends == compare.at:
                news += self._compare(compare, dict(targets))
        return news

    def _compare(self, compare: Compare, targets: dict[int, Counted]) -> list[tuple[Census, Census]]:
        told = {one.number: one for one in compare.censuses}
        here = {number for number, one in targets.items() if one.keeps == compare.streams}
        both = {number for number in {*told, *here} if compare.first <= number <= compare.last}
        news = []
        for number in sorted(both):
            theirs = told.get(number) or Census(number, 0, 0)
            target = targets.get(number)
            ours = Census(number, *(target.census() if target is not None else (0, 0)))
            if ours == theirs:
                self.differing.pop(number, None)
                continue
            times = self.differing[number] = self.differing.get(number, 0) + 1
            if times == TIMES:
                news.append((theirs, ours))
        for number in [number for number in self.differing if number not in targets and number not in told]:
            del self.differing[number]  # it was deleted
        self.compared += len(both)
        return news

    def known(self) -> list[int]:
        """Those that differ for good."""
        return [number for number, times in self.differing.items() if times >= TIMES]

    def worst(self) -> int:
        """How often in a row one of them was seen to."""
        return max(self.differing.values(), default=0)

    def forget(self) -> None:
        """The logs were cut or the links closed: what waits is void."""
        self._waiting.clear()

    def new_epoch(self) -> None:
        self.forget()
        self.differing.clear()
