"""Long work in the broker's own loop is done in slices, and the loop has a turn between two of them."""

from __future__ import annotations

import asyncio
from time import perf_counter

SLICE_S = 0.002


class Pace:
    """Says when a slice is over; the loop has had its turn when `rest` returns, and the next one begins."""

    def __init__(self) -> None:
        self._until = perf_counter() + SLICE_S

    def is_over(self) -> bool:
        return perf_counter() >= self._until

    async def rest(self) -> None:
        await asyncio.sleep(0)
        self._until = perf_counter() + SLICE_S
