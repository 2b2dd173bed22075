"""Work that is done apart, in the simulator: it takes as long as the dice say, and may be killed at any point.

The job runs at once, on the memory as it is: that is the picture a forked child has.
"""

from __future__ import annotations

from collections.abc import Callable
from random import Random

from tidemark.errors import StoreError
from tidemark.ports import Scratch
from tidemark.sim.disk import SimDisk


class Killed(Exception):
    """The child is no more."""


class SimRunning:
    def __init__(self, went_well: bool, polls: int) -> None:
        self._went_well = went_well
        self._polls = polls

    def poll(self) -> bool | None:
        if self._polls > 0:
            self._polls -= 1
            return None
        return self._went_well

    def stop(self) -> None:
        self._polls = 0


class SimApart:
    def __init__(self, disk: SimDisk, dice: Random) -> None:
        self._disk = disk
        self._dice = dice

    def run(self, job: Callable[[Scratch], None]) -> SimRunning:
        polls = self._dice.choice((0, 1, 5))
        left = self._dice.randrange(12) if self._dice.random() < 0.2 else None
        try:
            with self._disk.dying(left, Killed):
                job(self._disk)
        except (Killed, StoreError):
            return SimRunning(False, polls)
        return SimRunning(True, polls)
