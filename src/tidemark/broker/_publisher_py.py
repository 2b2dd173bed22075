"""The publishing side of one channel: finds the route of each row of a run and puts it on its queues."""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Callable

from tidemark.broker._queue_py import FLAG_DURABLE, expiry_ms
from tidemark.broker._target_py import Target
from tidemark.model import records, runs
from tidemark.model._arena_py import Arena, Writer
from tidemark.model._runs_py import PublishRun

SIZES = (100, 1_000, 10_000, 100_000, 1_000_000, 10_000_000, 50_000_000, 100_000_000)
"""The classes of body sizes that a `Meter` counts: up to and with so many bytes; one more for what is larger."""


class Meter:
    """Counts of what was published: through one exchange, or by everybody."""

    def __init__(self) -> None:
        self.messages = 0
        self.routed = 0
        """Places on queues: a message to two queues counts twice."""
        self.bytes = 0
        """Of bodies."""
        self._sizes = [0] * (len(SIZES) + 1)

    def sizes(self) -> tuple[int, ...]:
        """How many messages there were of each class of `SIZES`."""
        return tuple(self._sizes)

    def add(self, queues: int, size: int) -> None:
        """One message of so many bytes that went to so many queues."""
        self.messages += 1
        self.routed += queues
        self.bytes += size
        self._sizes[bisect_left(SIZES, size)] += 1


class Route:
    """Where messages of one exchange and key go. Kept until the wiring changes (`alive` False)."""

    __slots__ = ("alive", "durable", "keeps", "meter", "plain", "queues", "targets")

    def __init__(self, queues: tuple[Target, ...], plain: bool) -> None:
        self.queues = queues
        self.targets = tuple(queue.number for queue in queues)
        self.durable = any(queue.durable for queue in queues)
        self.keeps = any(queue.keeps for queue in queues)
        """A target keeps whatever it gets: the message goes to the journal, whatever it says itself."""
        self.plain = plain
        """False: each message must be looked at (headers exchange, guarded queue, no queue at all)."""
        self.alive = True
        self.meter: Meter | None = None
        """Of the exchange that this is a route from."""


SPECIAL = runs.IMMEDIATE | runs.HAS_USER_ID | runs.HAS_COPIES | runs.DIRECT_REPLY | runs.HAS_PRODUCER


class Publisher:
    """The publishing side of one channel."""

    CACHE_MAX = 4096

    def __init__(
        self,
        arena: Arena,
        memory: Writer,
        journal: Writer,
        resolve: Callable[[bytes, bytes], Route],
        meter: Meter | None = None,
    ) -> None:
        """`meter` counts what is put, whatever the exchange."""
        self.arena = arena
        self._meter = meter
        self.last_seq = 0
        """The sequence of the last message that went into the journal; 0 if none did."""
        self.position = 0
        self._memory = memory
        self._journal = journal
        self._resolve = resolve
        self._routes: dict[tuple[bytes, bytes], Route] = {}

    def publish(self, run: PublishRun, start: int, now_ms: int) -> int:
        """Publish rows from `start` on, as far as they are plain.

        Returns the index of the first row that was not published: the caller looks at that one
        (`route_of` says where it goes) and calls again with the next, or is done at `len(run)`.

        Raises:
            what `resolve` raises for the row at `self.position`; the rows before it are published.
        """
        for index in range(start, len(run)):
            self.position = index
            if run.number(index, runs.FLAGS) & SPECIAL or run.number(index, runs.TTL) == -2:
                return index
            route = self.route_of(run, index)
            if not route.plain:
                return index
            self.put(run, index, route, now_ms)
        self.position = len(run)
        return len(run)

    def route_of(self, run: PublishRun, index: int) -> Route:
        where = run.part(index, runs.EXCHANGE), run.part(index, runs.KEY)
        route = self._routes.get(where)
        if route is None or not route.alive:
            route = self._resolve(*where)
            if len(self._routes) >= self.CACHE_MAX:
                self._routes.clear()
            self._routes[where] = route
        return route

    def put(self, run: PublishRun, index: int, route: Route, now_ms: int) -> int:
        """Put one row on the queues of a route (at least one). Returns its first sequence."""
        wanted = route.keeps or bool(run.number(index, runs.FLAGS) & runs.PERSISTENT)
        persistent = wanted and route.durable
        writer = self._journal if persistent else self._memory
        ttl, size, priority = (
            run.number(index, runs.TTL),
            run.number(index, runs.BODY + 1),
            run.number(index, runs.PRIORITY),
        )
        life, flags = records.whole_life(ttl, (queue.ttl_ms for queue in route.queues))
        seq, loc = writer.put(
            route.targets,
            now_ms,
            None if life < 0 else min(life, records.NO_TTL - 1),
            priority,
            persistent,
            run.part(index, runs.EXCHANGE),
            run.part(index, runs.KEY),
            run.part(index, runs.PROPERTIES),
            run.part(index, runs.BODY),
            flags,
        )
        if persistent:
            self.last_seq = seq + len(route.targets) - 1
        for offset, queue in enumerate(route.queues):
            expires = expiry_ms(now_ms, ttl, queue.ttl_ms)
            flags = FLAG_DURABLE if persistent and queue.durable else 0
            queue.put(seq + offset, loc, size, priority, expires, flags)
        for meter in (route.meter, self._meter):
            if meter is not None:
                meter.add(len(route.queues), size)
        return seq
