"""The time that machines are given: wall-clock milliseconds that never run backwards.

It is read once from the wall clock and goes on by the monotonic one, so that a clock that is set while the broker
runs neither expires messages early nor drops connections.
"""

from __future__ import annotations

import time


class Clock:
    def __init__(self) -> None:
        self._offset_ns = time.time_ns() - time.monotonic_ns()

    def now_ms(self) -> int:
        return (time.monotonic_ns() + self._offset_ns) // 1_000_000


def ticks_ms() -> int:
    """Milliseconds of a clock that nobody sets, and that goes on while the machine sleeps: leases are told by it."""
    return time.clock_gettime_ns(time.CLOCK_BOOTTIME) // 1_000_000
