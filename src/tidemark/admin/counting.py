"""What takes a while to count: how many keys lie behind a mark, what a pin keeps, and at which pace a consumer moves.

A count goes through the index of the stream in small steps, with turns of the loop between them. Its result is kept, and
counted again only when something moved, and not before a time has passed that is so much longer than the count took. So a page
that is open all day costs little, and two who ask for the same are told the same.

The pace of a consumer is that of its mark in sequences; every mark is looked at every few seconds, which costs no more than
that. What is left in sequences at that pace is the time that is left.

Invariant: no step takes longer than the look at `LOOK_MAX` entries.
"""

from __future__ import annotations

import asyncio
import time
from collections import deque
from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from tidemark.broker.streams.cuts import Cutter
from tidemark.broker.streams.snapshots import Snapshot
from tidemark.broker.streams.stream import Stream
from tidemark.errors import TidemarkError

if TYPE_CHECKING:
    from tidemark.broker.streams.marks import Mark
    from tidemark.broker.streams.pins import Pin
    from tidemark.runtime.server import Server

LOOK_MAX = 32_768
COST_SHARE = 20
"""A count that took a second is not made again for so many seconds."""
KNOWN_MAX = 10_000
AT_ONCE = 2
PACE_S = 5.0
PACE_WINDOW_S = 60.0
PACES_MAX = 10_000

Counted = tuple[int, int]
"""Rows and bytes."""
Name = tuple[str, int, str]
"""What is counted, the number of the stream, the name of the mark or pin."""


@dataclass(slots=True)
class _Known:
    stamp: object
    at: float
    cost_s: float
    value: Counted


class Counts:
    """Results of counts, for all who ask."""

    def __init__(self) -> None:
        self._known: dict[Name, _Known] = {}
        self._running: dict[Name, asyncio.Task[Counted | None]] = {}
        self._turns = asyncio.Semaphore(AT_ONCE)

    async def behind(self, stream: Stream, mark: Mark, until: float) -> Counted | None:
        """How many keys, and bytes of values, the consumer has not read yet. None: not counted before `until`."""
        points, boundary = mark.points, stream.caught_up()
        if len(points) == 1 and (known := stream.behind(points[0].seq)) is not None:
            return known

        async def count() -> Counted:
            with Snapshot(stream, boundary) as snapshot:
                if len(points) == 1:
                    return await _counted(Cutter(snapshot, after=points[0].seq))
                rows = size = 0
                for shard in range(snapshot.shards):
                    start = mark.point(shard, snapshot.shards).seq
                    found = await _counted(Cutter(snapshot, after=start, shards=shard))
                    rows, size = rows + found[0], size + found[1]
                return rows, size

        return await self._asked(("mark", stream.number, mark.consumer), (boundary, points), count, until)

    async def kept(self, stream: Stream, pin: Pin, until: float) -> Counted | None:
        """How much the pin sees that is superseded: what would go without it. None: not counted before `until`."""
        boundary = stream.caught_up()
        if not stream.held:
            return 0, 0

        async def count() -> Counted:
            with Snapshot(stream, pin.seq, pin=pin) as then:
                seen = await _counted(Cutter(then))
            with Snapshot(stream, boundary) as now:
                current = await _counted(Cutter(now, until=pin.seq))
            return max(0, seen[0] - current[0]), max(0, seen[1] - current[1])

        return await self._asked(("pin", stream.number, pin.name), (boundary, pin.seq), count, until)

    async def _asked(
        self, name: Name, stamp: object, count: Callable[[], Awaitable[Counted]], until: float
    ) -> Counted | None:
        known, now = self._known.get(name), time.monotonic()
        if known is not None and (known.stamp == stamp or now - known.at < COST_SHARE * known.cost_s):
            return known.value
        task = self._running.get(name)
        if task is None:
            task = self._running[name] = asyncio.ensure_future(self._made(name, stamp, count))
        done, _ = await asyncio.wait([task], timeout=max(0.0, until - now))
        if done:
            return task.result()
        return known.value if known is not None else None

    async def _made(
        self, name: Name, stamp: object, count: Callable[[], Awaitable[Counted]]
    ) -> Counted | None:
        try:
            async with self._turns:
                began = time.monotonic()
                value = await count()
                now = time.monotonic()
        except TidemarkError:  # the stream or the pin went meanwhile
            self._known.pop(name, None)
            return None
        finally:
            del self._running[name]
        self._known.pop(name, None)
        while len(self._known) >= KNOWN_MAX:
            del self._known[next(iter(self._known))]
        self._known[name] = _Known(stamp, now, now - began, value)
        return value


async def _counted(cutter: Cutter) -> Counted:
    while cutter.step(LOOK_MAX):
        await asyncio.sleep(0)
    pieces = cutter.pieces
    return (pieces[-1].rows, pieces[-1].bytes) if pieces else (0, 0)


class Paces:
    """How fast marks move."""

    def __init__(self, server: Server) -> None:
        self._server = server
        self._seen: dict[tuple[int, str], deque[tuple[float, int]]] = {}
        self._look()

    def _look(self) -> None:
        if self._server.stopping.is_set():
            return
        asyncio.get_running_loop().call_later(PACE_S, self._look)
        now, left = time.monotonic(), PACES_MAX
        alive: dict[tuple[int, str], deque[tuple[float, int]]] = {}
        for host in self._server.node.broker.vhosts.values():
            for queue in host.queues.values():
                if isinstance(queue, Stream) and left > 0:
                    for mark in queue.marks.by_name.values():
                        name = (queue.number, mark.consumer)
                        alive[name] = self._noted(self._seen.get(name), now, mark.seq)
                        left -= 1
        self._seen = alive

    def _noted(
        self, samples: deque[tuple[float, int]] | None, now: float, seq: int
    ) -> deque[tuple[float, int]]:
        if samples is None or seq < samples[-1][1]:  # it was sent back: what was is no measure
            samples = deque()
        samples.append((now, seq))
        while len(samples) > 2 and samples[0][0] < now - PACE_WINDOW_S:
            samples.popleft()
        return samples

    def of(self, stream: Stream, mark: Mark) -> float | None:
        """Sequences a second; None: it was not seen for long enough."""
        samples = self._seen.get((stream.number, mark.consumer))
        if not samples:
            return None
        (at, seq), now = samples[0], time.monotonic()
        if now - at < 1.0 or mark.seq < seq:
            return None
        return (mark.seq - seq) / (now - at)


def left(stream: Stream, mark: Mark, keys: int | None, pace: float | None) -> dict[str, Any]:
    """What an operator wants to know of a consumer that is behind: at which pace it reads keys, and how long it still takes."""
    distance = max(0, stream.boundary - mark.seq)
    if keys == 0 or distance == 0:
        return {"eta_s": 0.0, "rate": None}
    if not pace:
        return {"eta_s": None, "rate": None if pace is None else 0.0}
    eta_s = distance / pace
    return {"eta_s": round(eta_s, 3), "rate": None if keys is None else round(keys / eta_s, 3)}
