"""The loops that run once a message: into queues, out to consumers, and settled.

`QueueCore` holds what a queue must know of each message: an *entry* in a *lane* (one lane a
priority). Entries of a lane are in sequence order and never move: each is ready, acquired or gone.
Acquiring marks it, requeueing unmarks it, so a message returns to its old place by itself, and an
entry is found by its index in constant time. `_next` is where the search for a ready entry begins:
nothing before it is ready.

`Publisher.publish` puts the rows of a run on their queues; `Unacked` remembers which entry each
delivery tag stands for.

Invariant of a queue: `ready` and `acquired` are the numbers of entries in those states, `ready_bytes`
and `acquired_bytes` the bytes of their bodies.
"""

from __future__ import annotations

import struct
from collections.abc import Callable
from dataclasses import dataclass, field

from tidemark.model import records, runs
from tidemark.model._arena_py import Arena, Writer
from tidemark.model._runs_py import PublishRun, Taken

READY = 0
ACQUIRED = 1
GONE = 2

FLAG_REDELIVERED = 1
FLAG_DURABLE = 2
"""The entry is in the journal, so its end must be too."""

NEVER = 1 << 62
"""An expiry that never comes."""


@dataclass(slots=True)
class Entry:
    seq: int
    loc: int
    size: int
    expires_ms: int
    flags: int
    deliveries: int = 0
    state: int = READY


@dataclass(slots=True)
class _Lane:
    entries: dict[int, Entry] = field(default_factory=dict)
    first: int = 0
    next: int = 0
    end: int = 0


class QueueCore:
    """The messages of one queue. `Queue` derives from it and adds what is decided once a declare."""

    def __init__(
        self, arena: Arena, number: int, durable: bool, priorities: int, dirty: list[QueueCore]
    ) -> None:
        self.arena = arena
        self.number = number
        self.durable = durable
        self.ttl_ms = -1
        """x-message-ttl; -1 for none. Applies to messages put from now on."""
        self.guarded = False
        """A publish must ask first (a length limit that refuses, an own rule): no fast path."""
        self.ready = 0
        self.acquired = 0
        self.ready_bytes = 0
        self.acquired_bytes = 0
        self.published = 0
        self.delivered = 0
        self.settled = 0
        self.redelivered = 0
        self.expiring = 0
        """How many entries, ready or acquired, have a time to live."""
        self.is_dirty = False
        self.deleted = False
        """Set by `clear`: what consumers still hold of this queue can be settled or requeued in vain."""
        self._dirty = dirty
        self._lanes = [_Lane() for _ in range(priorities + 1)]
        self._gone: list[int] = []

    @property
    def lanes(self) -> int:
        return len(self._lanes)

    def touch(self) -> None:
        """Something changed: the broker looks at this queue at the end of the turn."""
        if not self.is_dirty:
            self.is_dirty = True
            self._dirty.append(self)

    # In ----------------------------------------------------------------------------------

    def put(
        self,
        seq: int,
        loc: int,
        size: int,
        priority: int,
        expires_ms: int,
        flags: int,
        deliveries: int = 0,
    ) -> None:
        """Add an entry at the end. `seq` is above every other in the lane."""
        lane = self._lanes[min(priority, len(self._lanes) - 1)]
        lane.entries[lane.end] = Entry(seq, loc, size, expires_ms, flags, deliveries)
        lane.end += 1
        self.arena.retain(loc, size)
        self.ready += 1
        self.ready_bytes += size
        self.published += 1
        self.expiring += expires_ms != NEVER
        self.touch()

    # Out ---------------------------------------------------------------------------------

    def take(self, count: int, bytes_max: int, expired_ms: int = -1) -> Taken | None:
        """Acquire up to `count` ready entries of the most urgent lane, at least one, oldest first.

        Stops after the entry that reaches `bytes_max`, and before one whose time was over at `expired_ms`.
        None when nothing is ready, or only what stands behind such an entry.
        """
        for number in range(len(self._lanes) - 1, -1, -1):
            taken = self._take_lane(number, count, bytes_max, expired_ms + 1, NEVER)
            if taken is not None:
                return taken
        return None

    def take_expired(self, now_ms: int, count: int) -> Taken | None:
        """Acquire entries whose time is over from the head of the least urgent lane that has some, up to `count`.

        As RabbitMQ does, only from the head: an expired entry behind one that is not waits. At NEVER
        everything is over.
        """
        for number in range(len(self._lanes)):
            taken = self._take_lane(number, count, NEVER, 0, now_ms)
            if taken is not None:
                return taken
        return None

    def next_expiry_ms(self) -> int:
        """When the first of the lanes' heads expires; NEVER if none does."""
        soonest = NEVER
        for lane in self._lanes:
            index = self._first_ready(lane)
            if index is not None:
                soonest = min(soonest, lane.entries[index].expires_ms)
        return soonest

    def _take_lane(self, number: int, count: int, bytes_max: int, earliest: int, latest: int) -> Taken | None:
        """Entries that expire from `earliest` to `latest`, up to the first that does not."""
        lane = self._lanes[number]
        taken, size = Taken(number), 0
        while len(taken) < count and size < bytes_max:
            index = self._first_ready(lane)
            if index is None:
                break
            entry = lane.entries[index]
            if not earliest <= entry.expires_ms <= latest:
                break
            entry.state = ACQUIRED
            lane.next = index + 1
            taken.add(
                index,
                entry.seq,
                entry.loc,
                entry.size,
                entry.flags & FLAG_REDELIVERED,
                entry.deliveries,
            )
            size += entry.size
        if not len(taken):
            return None
        self.ready -= len(taken)
        self.ready_bytes -= size
        self.acquired += len(taken)
        self.acquired_bytes += size
        return taken

    @staticmethod
    def _first_ready(lane: _Lane) -> int | None:
        while lane.next < lane.end:
            entry = lane.entries.get(lane.next)
            if entry is not None and entry.state == READY:
                return lane.next
            lane.next += 1
        return None

    # Settled -----------------------------------------------------------------------------

    def settle(self, lane: int, index: int) -> None:
        """An acquired entry is gone for good."""
        if self.deleted:
            return
        entry = self._lanes[lane].entries.pop(index)
        assert entry.state == ACQUIRED
        self.acquired -= 1
        self.acquired_bytes -= entry.size
        self._end(entry)

    def settle_taken(self, taken: Taken) -> None:
        """All of these are gone for good. Encode them first: their bytes may go with them."""
        for index, *_ in taken:
            self.settle(taken.lane, index)

    def _end(self, entry: Entry) -> None:
        entry.state = GONE
        self.expiring -= entry.expires_ms != NEVER
        if entry.flags & FLAG_DURABLE:
            self._gone.append(entry.seq)
        self.arena.release(entry.loc, entry.size)
        self.settled += 1
        self.touch()

    def requeue(self, lane: int, index: int, delivered: bool) -> None:
        """An acquired entry is ready again, in its old place.

        With `delivered` it was in a consumer's hands: it is marked redelivered and counted.
        """
        if self.deleted:
            return
        where = self._lanes[lane]
        entry = where.entries[index]
        assert entry.state == ACQUIRED
        entry.state = READY
        if delivered:
            entry.flags |= FLAG_REDELIVERED
            entry.deliveries = min(entry.deliveries + 1, 0xFFFF)
        where.next = min(where.next, index)
        self.acquired -= 1
        self.acquired_bytes -= entry.size
        self.ready += 1
        self.ready_bytes += entry.size
        self.touch()

    def drain_gone(self) -> tuple[bytes, bool] | None:
        """What ended since the last call and was in the journal: packed for `encode_settled`.

        (numbers, False), or (pairs first-and-how-many, True) where these are shorter; None if nothing.
        """
        if not self._gone:
            return None
        numbers, self._gone = self._gone, []
        pairs: list[int] = []
        for seq in numbers:
            if pairs and pairs[-2] + pairs[-1] == seq:
                pairs[-1] += 1
            else:
                pairs += (seq, 1)
        if len(pairs) <= len(numbers):
            return struct.pack(f"<{len(pairs)}Q", *pairs), True
        return struct.pack(f"<{len(numbers)}Q", *numbers), False

    # By sequence: recovery and compaction --------------------------------------------------

    def _find(self, seq: int) -> tuple[_Lane, int] | None:
        for lane in self._lanes:
            for index, entry in lane.entries.items():
                if entry.seq == seq:
                    return lane, index
        return None

    def holds(self, seq: int) -> bool:
        """Whether this entry is still here, ready or acquired."""
        return self._find(seq) is not None

    def forget(self, seq: int) -> bool:
        """Recovery: a SETTLED record names this entry. False if it is not here."""
        found = self._find(seq)
        if found is None:
            return False
        lane, index = found
        entry = lane.entries.pop(index)
        assert entry.state == READY
        self.ready -= 1
        self.ready_bytes -= entry.size
        self.expiring -= entry.expires_ms != NEVER
        self.arena.release(entry.loc, entry.size)
        return True

    def restore(self, seq: int, loc: int, size: int, priority: int, expires_ms: int, deliveries: int) -> None:
        """Recovery: an entry as the journal has it. It may have been delivered before."""
        self.put(seq, loc, size, priority, expires_ms, FLAG_DURABLE | FLAG_REDELIVERED, deliveries)
        self.published -= 1

    def set_deliveries(self, seq: int, deliveries: int) -> None:
        """Recovery: a COUNTED record."""
        found = self._find(seq)
        if found is not None:
            found[0].entries[found[1]].deliveries = deliveries

    def relocate(self, seq: int, loc: int) -> bool:
        """Compaction moved the record of this entry. False if the entry is gone."""
        found = self._find(seq)
        if found is None:
            return False
        entry = found[0].entries[found[1]]
        self.arena.retain(loc, entry.size)
        self.arena.release(entry.loc, entry.size)
        entry.loc = loc
        return True

    def entry(self, lane: int, index: int) -> Entry:
        """A copy of one entry that is not gone (slow paths)."""
        e = self._lanes[lane].entries[index]
        return Entry(e.seq, e.loc, e.size, e.expires_ms, e.flags, e.deliveries, e.state)

    def clear(self) -> None:
        """The queue is deleted: every entry ends, without a record (the catalog says it all)."""
        for lane in self._lanes:
            for entry in lane.entries.values():
                self.arena.release(entry.loc, entry.size)
            lane.entries.clear()
            lane.next = lane.end
        self._gone.clear()
        self.deleted = True
        self.ready = self.acquired = self.ready_bytes = self.acquired_bytes = self.expiring = 0


class Route:
    """Where messages of one exchange and key go. Kept until the wiring changes (`alive` False)."""

    __slots__ = ("alive", "durable", "plain", "queues", "targets")

    def __init__(self, queues: tuple[QueueCore, ...], plain: bool) -> None:
        self.queues = queues
        self.targets = tuple(queue.number for queue in queues)
        self.durable = any(queue.durable for queue in queues)
        self.plain = plain
        """False: each message must be looked at (headers exchange, guarded queue, no queue at all)."""
        self.alive = True


SPECIAL = runs.IMMEDIATE | runs.HAS_USER_ID | runs.HAS_COPIES | runs.DIRECT_REPLY


class Publisher:
    """The publishing side of one channel."""

    CACHE_MAX = 4096

    def __init__(
        self,
        arena: Arena,
        memory: Writer,
        journal: Writer,
        resolve: Callable[[bytes, bytes], Route],
    ) -> None:
        self.arena = arena
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
        persistent = bool(run.number(index, runs.FLAGS) & runs.PERSISTENT) and route.durable
        writer = self._journal if persistent else self._memory
        seq, loc = writer.put_row(route.targets, now_ms, persistent, run, index)
        if persistent:
            self.last_seq = seq + len(route.targets) - 1
        ttl, size, priority = (
            run.number(index, runs.TTL),
            run.number(index, runs.BODY + 1),
            run.number(index, runs.PRIORITY),
        )
        for offset, queue in enumerate(route.queues):
            expires = expiry_ms(now_ms, ttl, queue.ttl_ms)
            flags = FLAG_DURABLE if persistent and queue.durable else 0
            queue.put(seq + offset, loc, size, priority, expires, flags)
        return seq


def expiry_ms(now_ms: int, message_ttl: int, queue_ttl: int) -> int:
    """The earlier of two times to live, as a moment; -1 stands for none."""
    if message_ttl < 0 and queue_ttl < 0:
        return NEVER
    if message_ttl < 0 or 0 <= queue_ttl < message_ttl:
        return now_ms + queue_ttl
    return now_ms + message_ttl


class Holder:
    """Whoever has acquired messages of one queue: a consumer, or a channel that used get."""

    def __init__(self, queue: QueueCore) -> None:
        self.queue = queue
        self.unacked = 0


class Unacked:
    """The delivery tags of one channel: which entry each one stands for."""

    def __init__(self) -> None:
        self.last_tag = 0
        self.count = 0
        self.bytes = 0
        self._tags: dict[int, tuple[Holder, int, int, int]] = {}

    def skip(self, count: int) -> int:
        """Tags for deliveries that need no ack. Returns the first."""
        self.last_tag += count
        return self.last_tag - count + 1

    def add(self, holder: Holder, taken: Taken) -> int:
        """Tags for these deliveries. Returns the first; the others follow it."""
        first = self.last_tag + 1
        for index, _, _, size, _, _ in taken:
            self.last_tag += 1
            self._tags[self.last_tag] = (holder, taken.lane, index, size)
            self.bytes += size
        holder.unacked += len(taken)
        self.count += len(taken)
        return first

    def accept(self, first: int, last: int) -> int:
        """Settle the outstanding tags first..last; (0, last) is 'all up to', (0, 0) 'all'.

        Returns how many there were. The queues are touched. 0 means an unknown tag, which the
        front end answers with an error (for (0, 0) it is none).
        """
        popped = self.pop(first, last)
        for holder, lane, index in popped:
            holder.queue.settle(lane, index)
        return len(popped)

    def pop(self, first: int, last: int) -> list[tuple[Holder, int, int]]:
        """Take the outstanding tags first..last out, for the caller to settle or requeue.

        (holder, lane, index) of each, in tag order; the same forms as `accept`.
        """
        if first == 0:
            wanted = [tag for tag in self._tags if tag <= last or last == 0]
        else:
            wanted = [tag for tag in range(first, last + 1) if tag in self._tags]
        popped = []
        for tag in wanted:
            holder, lane, index, size = self._tags.pop(tag)
            holder.unacked -= 1
            self.count -= 1
            self.bytes -= size
            popped.append((holder, lane, index))
        return popped


class Restorer:
    """Recovery: applies the records of the journal to the queues, in the order they were written."""

    def __init__(self, arena: Arena, queues: dict[int, QueueCore]) -> None:
        self.arena = arena
        self.messages = 0
        self.settled = 0
        self.last_seq = 0
        self._queues = queues

    def frame(self, extent: int, start: int, end: int) -> None:
        """Apply the records in these bytes of a resident extent.

        Targets that the catalog does not know are skipped: their queue was deleted.
        """
        at = start
        while at < end:
            record = self.arena.record(extent << 32 | at)
            self._apply(extent << 32 | at, record)
            at += len(record)

    def _apply(self, loc: int, record: memoryview) -> None:
        kind = records.record_type(record)
        last = records.record_seq(record)
        if kind == records.RecordType.MESSAGE:
            message = records.decode_message(record)
            last += len(message.targets) - 1
            ttl = -1 if message.ttl_ms is None else message.ttl_ms
            for offset, number in enumerate(message.targets):
                queue = self._queues.get(number)
                if queue is not None and queue.durable:
                    expires = expiry_ms(message.accepted_ms, ttl, queue.ttl_ms)
                    queue.restore(message.seq + offset, loc, len(message.body), message.priority, expires, 0)
                    self.messages += 1
        elif kind == records.RecordType.SETTLED:
            settled = records.decode_settled(record)
            queue = self._queues.get(settled.queue)
            if queue is not None:
                for first, count in settled.ranges:
                    for seq in range(first, first + count):
                        self.settled += queue.forget(seq)
        elif kind == records.RecordType.COUNTED:
            number, counts = records.decode_counted(record)
            queue = self._queues.get(number)
            if queue is not None:
                for seq, deliveries in counts:
                    queue.set_deliveries(seq, deliveries)
        self.last_seq = max(self.last_seq, last)
