"""A disk that takes time: what was submitted is written and synced some while later, and then the bell rings.

Invariant: `completed` tells only what the disk has done by then; asking makes nothing happen.
"""

from __future__ import annotations

from collections.abc import Callable
from random import Random

from tidemark.sim.cluster.clock import Timeline
from tidemark.sim.disk import Buffer, SimDisk

ROOM = 1 << 40


class TimedDisk(SimDisk):
    def __init__(self, timeline: Timeline, dice: Random) -> None:
        super().__init__(dice, capacity=ROOM)
        self.slowness = 1
        """How many times as long everything takes."""
        self.stalled = False
        """Nothing gets done for now."""
        self.ring: Callable[[], None] = lambda: None
        self._timeline = timeline
        self._busy = False
        self._gone = False

    def submit(self, ticket: int, name: str, offset: int, data: Buffer) -> None:
        super().submit(ticket, name, offset, data)
        self._begin()

    def _begin(self) -> None:
        if not self._busy and self._queue and not self.stalled:
            self._busy = True
            took_us = 80 + int(self.dice.random() * 400)
            if self.dice.random() < 0.05:
                took_us *= 20
            self._timeline.after(took_us * self.slowness, self._finish)

    def _finish(self) -> None:
        """One sync is over; it was for all that had been submitted before."""
        self._busy = False
        if self._gone or self.stalled:
            return
        self.work(len(self._queue))
        self.ring()
        self._begin()

    def completed(self) -> int:
        if self._error is not None:
            raise self._error
        return self._done

    def stall(self, yes: bool) -> None:
        self.stalled = yes
        if not yes:
            self._begin()

    def after_crash(self, power: bool) -> TimedDisk:
        """The disk as the next process finds it."""
        self._gone = True
        found = self.crash(power)
        after = TimedDisk(self._timeline, self.dice)
        after.honest = self.honest
        after._files, after._undead = found._files, found._undead
        return after
