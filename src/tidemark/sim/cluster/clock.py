"""Virtual time: nothing happens but what was planned, and the clock goes from one such moment to the next.

`Timeline` is the time that really passes, in microseconds. What is planned for the same moment happens in the order
in which it was planned. `MemberClock` is what one machine believes: a wall clock that is wrong by some amount and
can be set, and ticks that only go forward but a little too fast or too slow.

Invariant: time never goes back, and the same plans give the same order.
"""

from __future__ import annotations

from collections.abc import Callable
from heapq import heappop, heappush

START_MS = 1_700_000_000_000
"""The wall-clock time at which every run begins."""

Action = Callable[[], None]


class Timeline:
    def __init__(self) -> None:
        self.now_us = 0
        self.events = 0
        """How many have happened."""
        self._planned: list[tuple[int, int, Action]] = []
        self._order = 0

    def after(self, delay_us: int, action: Action) -> None:
        """Do this when so much time has passed."""
        self._order += 1
        heappush(self._planned, (self.now_us + delay_us, self._order, action))

    def step(self) -> bool:
        """Go to the next moment for which something is planned and do it. False: nothing is."""
        if not self._planned:
            return False
        at_us, _, action = heappop(self._planned)
        self.now_us = at_us
        self.events += 1
        action()
        return True

    def run_until(self, end_us: int) -> None:
        """Let everything happen that is planned until then."""
        planned = self._planned
        while planned and planned[0][0] <= end_us:
            at_us, _, action = heappop(planned)
            self.now_us = at_us
            self.events += 1
            action()
        self.now_us = max(self.now_us, end_us)


class MemberClock:
    """The two clocks of one machine."""

    def __init__(self, timeline: Timeline, skew_ms: int = 0, drift_ppm: int = 0) -> None:
        self._timeline = timeline
        self._skew_ms = skew_ms
        self._drift_ppm = drift_ppm
        self._before_us = 0
        """How long the machine had been running, by its own ticks, when its drift last changed."""
        self._since_us = timeline.now_us

    def now_ms(self) -> int:
        """Of the wall clock."""
        return START_MS + self._skew_ms + self._timeline.now_us // 1000

    def ticks_ms(self) -> int:
        return self._ticks_us() // 1000

    def _ticks_us(self) -> int:
        passed_us = self._timeline.now_us - self._since_us
        return self._before_us + passed_us + passed_us * self._drift_ppm // 1_000_000

    def until_us(self, ticks_ms: int) -> int:
        """How long it really takes until the ticks say that; 0 if they do already."""
        left_us = ticks_ms * 1000 - self._ticks_us()
        return max(0, left_us - left_us * self._drift_ppm // (1_000_000 + self._drift_ppm) + 1)

    def jump(self, by_ms: int) -> None:
        """Somebody sets the wall clock. The ticks go on."""
        self._skew_ms += by_ms

    def drift(self, ppm: int) -> None:
        """The ticks go this much too fast from now on; too slow if it is negative."""
        self._before_us, self._since_us = self._ticks_us(), self._timeline.now_us
        self._drift_ppm = ppm
