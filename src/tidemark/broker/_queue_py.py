"""What a queue must know of each of its messages, and the loops that run once a message over it.

`QueueCore` holds an *entry* for each message, in a *lane* (one lane a priority). Entries of a lane are in
sequence order and never move: each is ready, acquired or gone. Acquiring marks it, requeueing unmarks it, so
a message returns to its old place by itself, and an entry is found by its index in constant time. `next` is
where the search for a ready entry begins: nothing before it is ready.

Invariant: `ready` and `acquired` are the numbers of entries in those states, `ready_bytes` and
`acquired_bytes` the bytes of their bodies.
"""

from __future__ import annotations

import json
import struct
from collections.abc import Container, Sequence
from dataclasses import dataclass, field

from tidemark.broker._target_py import Target, census_of
from tidemark.model._arena_py import EVERYTHING, Arena
from tidemark.model._runs_py import Taken

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


class QueueCore(Target):
    """The messages of one queue. `Queue` derives from it and adds what is decided once a declare."""

    LAYOUT = b"queue-py-1"
    """What `dump` writes; another one is not to be loaded."""

    def __init__(
        self, arena: Arena, number: int, durable: bool, priorities: int, dirty: list[QueueCore]
    ) -> None:
        super().__init__(arena, number, durable, dirty)
        self.ready = 0
        self.acquired = 0
        self.ready_bytes = 0
        self.acquired_bytes = 0
        self.delivered = 0
        self.settled = 0
        self.redelivered = 0
        self.expiring = 0
        """How many entries, ready or acquired, have a time to live."""
        self.waits_for = 0
        """The sequence that must be shown before `take` can go on; 0 if it waits for none."""
        self.is_hidden = False
        self._lanes = [_Lane() for _ in range(priorities + 1)]
        self._gone: list[int] = []

    @property
    def lanes(self) -> int:
        return len(self._lanes)

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

    def take(self, count: int, bytes_max: int, expired_ms: int = -1, hidden: bool = False) -> Taken | None:
        """Acquire up to `count` ready entries of the most urgent lane, at least one, oldest first.

        Stops after the entry that reaches `bytes_max`, and before one whose time was over at `expired_ms`.
        None when nothing is ready, or only what stands behind such an entry, or nothing is shown yet:
        then `waits_for` says what must be.
        """
        self.waits_for = 0
        shown = EVERYTHING if hidden else self.arena.shown_seq
        for number in range(len(self._lanes) - 1, -1, -1):
            taken = self._take_lane(number, count, bytes_max, expired_ms + 1, NEVER, shown)
            if taken is not None:
                return taken
        return None

    def take_expired(self, now_ms: int, count: int, bytes_max: int = NEVER) -> Taken | None:
        """Acquire entries whose time is over from the head of the least urgent lane that has some, up to `count`.

        As RabbitMQ does, only from the head: an expired entry behind one that is not waits. At NEVER
        everything is over. Stops after the entry that reaches `bytes_max`.
        """
        for number in range(len(self._lanes)):
            taken = self._take_lane(number, count, bytes_max, 0, now_ms, EVERYTHING)
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

    def _take_lane(
        self, number: int, count: int, bytes_max: int, earliest: int, latest: int, shown_seq: int
    ) -> Taken | None:
        """Entries that expire from `earliest` to `latest` and are shown, up to the first that is not so."""
        lane = self._lanes[number]
        taken, size = Taken(number), 0
        while len(taken) < count and size < bytes_max:
            index = self._first_ready(lane)
            if index is None:
                break
            entry = lane.entries[index]
            if not earliest <= entry.expires_ms <= latest:
                break
            if entry.flags & FLAG_DURABLE and entry.seq > shown_seq:
                self._wait_for(entry.seq)
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

    def _wait_for(self, seq: int) -> None:
        self.waits_for = seq
        if not self.is_hidden:
            self.is_hidden = True
            self.arena.hidden.append(self)

    def show(self) -> None:
        """More is shown than before: look again."""
        self.is_hidden = False
        self.touch()

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

    def census(self) -> tuple[int, int]:
        """Of the entries that are in the journal: how many, and the sum of the hashes of their sequences."""
        entries = (entry for lane in self._lanes for entry in lane.entries.values())
        return census_of(entry.seq for entry in entries if entry.flags & FLAG_DURABLE)

    # Checkpoints -----------------------------------------------------------------------------

    def dump(self) -> list[bytes]:
        """What `load` needs to have these entries again."""
        lanes = [
            [
                (e.seq, e.loc, e.size, e.expires_ms, e.flags, e.deliveries)
                for e in lane.entries.values()
                if e.flags & FLAG_DURABLE
            ]
            for lane in self._lanes
        ]
        return [json.dumps(lanes).encode()]

    def load(self, parts: Sequence[bytes | memoryview]) -> None:
        """Become what `dump` saw, all of it ready. Of an empty list: become empty."""
        self._empty()
        lanes = json.loads(bytes(parts[0])) if parts else []
        for number, entries in enumerate(lanes):
            for seq, loc, size, expires_ms, _, deliveries in entries:
                self.restore(seq, loc, size, number, expires_ms, deliveries)

    def drop_missing(self, gone: Container[int]) -> int:
        """End every ready entry whose extent is one of `gone`, without a record. Returns how many."""
        missing = [e.seq for lane in self._lanes for e in lane.entries.values() if e.loc >> 32 in gone]
        return sum(self.forget(seq) for seq in missing)

    def clear(self) -> None:
        """The queue is deleted: every entry ends, without a record (the catalog says it all)."""
        self._empty()
        self.deleted = True

    def _empty(self) -> None:
        for lane in self._lanes:
            for entry in lane.entries.values():
                self.arena.release(entry.loc, entry.size)
            lane.entries.clear()
            lane.next = lane.end
        self._gone.clear()
        self.ready = self.acquired = self.ready_bytes = self.acquired_bytes = self.expiring = 0


def expiry_ms(now_ms: int, message_ttl: int, queue_ttl: int) -> int:
    """The earlier of two times to live, as a moment; -1 stands for none."""
    if message_ttl < 0 and queue_ttl < 0:
        return NEVER
    if message_ttl < 0 or 0 <= queue_ttl < message_ttl:
        return now_ms + queue_ttl
    return now_ms + message_ttl
