"""When leases end: of pins, and of consumers that keep tombstones alive.

A holder stands in a heap under the moment at which its lease ended when it was put there. Renewing a lease
changes nothing here; when that moment comes the holder is put back under the later one. So a lease costs
something only when it would end. Holders that let go, and what stands there of a holder twice, are swept out
whenever the heap has doubled since the last time.

Invariant: every holder that has a lease is in the heap, at its end or before; the heap is at most about twice as
long as there were holders with a lease.
"""

from __future__ import annotations

import heapq
from typing import Protocol

GRACE_MS = 60_000
"""After a start a lease from before lasts at least so long: nobody could renew it meanwhile."""


_SWEEP_MIN = 1024
"""A heap that is shorter is left alone."""


class Holder(Protocol):
    until_ms: int

    def leased(self) -> bool:
        """Whether it still has a lease at all."""

    def lease_ended(self, now_ms: int) -> None:
        """The lease is over. Raises StoreError when that cannot be written down now."""


class Leases:
    def __init__(self) -> None:
        self._heap: list[tuple[int, int, Holder]] = []
        self._pushed = 0
        self._sweep_at = _SWEEP_MIN

    def add(self, holder: Holder) -> None:
        """A new lease, or one that ends sooner than before."""
        self._pushed += 1
        heapq.heappush(self._heap, (holder.until_ms, self._pushed, holder))
        if len(self._heap) > self._sweep_at:
            self._sweep()

    def _sweep(self) -> None:
        """Every holder that has a lease, once."""
        alive = {id(holder): (holder.until_ms, n, holder) for _, n, holder in self._heap if holder.leased()}
        self._heap = list(alive.values())
        heapq.heapify(self._heap)
        self._sweep_at = 2 * len(self._heap) + _SWEEP_MIN

    def __len__(self) -> int:
        return len(self._heap)

    def tick(self, now_ms: int) -> None:
        """End the leases that are over.

        Raises:
            StoreError: the end of one cannot be written down; it is tried again next time.
        """
        while self._heap and self._heap[0][0] <= now_ms:
            first = heapq.heappop(self._heap)
            until_ms, _, holder = first
            if holder.leased() and holder.until_ms <= now_ms:
                try:
                    holder.lease_ended(now_ms)
                except BaseException:
                    heapq.heappush(self._heap, first)
                    raise
            if holder.leased() and holder.until_ms > until_ms:
                self.add(holder)
