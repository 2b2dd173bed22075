"""The end of a turn: every queue that changed is looked at, once for all that happened to it.

`look` does one queue: what is too old goes, consumers are served, what is too much goes, and what has
ended is written down. Consumers come first where the length is limited: as in RabbitMQ a message counts
only while nobody takes it. A message whose time to live is 0 is still given to a consumer that waits for
it: before consumers are served only those end whose time was over before this turn began.

A look does no more than the turn's allowance (`allowance`) lets it. One that is cut short goes on in the next turn
as if no time had passed: what a consumer was about to be offered does not end before that for being too old or too
much.

A stream has a look of its own: nothing is dealt out there, every consumer reads all of it (`audience`).

`share` deals messages out: highest priority first, then round and round among equals, one message each
while there are few, in larger chunks when there are many. A consumer without room is passed over; whoever
gives it room (an ack, a drained socket) touches the queue.

Invariant: a look that changes nothing touches nothing, so `turn` ends; automatic dead-letter cycles are
cut by their own rule.
"""

from __future__ import annotations

import heapq
from collections import deque
from typing import TYPE_CHECKING

from tidemark.broker.core import NEVER
from tidemark.errors import DiskFull

if TYPE_CHECKING:
    from tidemark.broker.broker import Broker
    from tidemark.broker.consumer import Consumer
    from tidemark.broker.core import Target
    from tidemark.broker.queue import Queue
    from tidemark.broker.streams.stream import Stream

TAKE_BYTES_MAX = 256 * 1024
"""About how much a consumer is given at once; between two such gifts it is asked for room again."""
CHUNK_MAX = 64
STEPS_MAX = 16
"""After so many gifts the turn's allowance is looked at again."""
EXACT_SHARE = 16
"""With fewer messages than this a consumer, they are dealt out one by one."""


def turn(broker: Broker, now_ms: int) -> None:
    """Look at every queue that changed, until none has."""
    wakes = broker.wakes
    expired_ms = wakes.over_ms(now_ms)
    wakes.published_ms = NEVER
    broker.now_ms = now_ms
    if wakes.soonest_ms <= now_ms:
        wakes.ring(now_ms)
    dirty, done = broker.dirty, 0
    later: dict[Target, None] = {}
    problem: DiskFull | None = None
    try:
        for queue in dirty:  # looking at one may add others behind it
            done += 1
            if queue in later:
                continue
            try:
                if queue.keeps:
                    look_at_stream(queue, now_ms)
                else:
                    look(queue, expired_ms, now_ms)
            except DiskFull as error:
                # The others go on: their ends may fit, and are what makes room again.
                problem = error
                later[queue] = None
            except BaseException:
                later[queue] = None
                raise
    finally:
        broker.changed.update(dirty)
        del dirty[:done]
        for queue in later:
            # What was not done is for the next turn. A look that ends early leaves the mark behind.
            if queue not in dirty:
                queue.is_dirty = False
                queue.touch()
    if problem is not None:
        raise problem


def next_wake_ms(broker: Broker) -> int:
    """When `turn` must be called again though nothing happened; NEVER if it need not."""
    return broker.wakes.next_ms()


def look(queue: Queue, expired_ms: int, now_ms: int) -> None:
    """Do what the changes of this queue ask for."""
    allowance = queue.broker.allowance
    allowance.begin(queue.published - queue.published_before, queue.looked_turn)
    queue.published_before, queue.looked_turn = queue.published, allowance.turn
    expired_ms = min(expired_ms, queue.over_ms)
    queue.overdue = False
    done = not queue.expiring or queue.expire(expired_ms)
    if done and queue.ready and queue.groups:
        done = share(queue, expired_ms)
    # From here on a touch means another look: a queue may be its own dead-letter target.
    queue.is_dirty = False
    if done:
        queue.over_ms = NEVER
        if queue.evicts:
            queue.evict()
        if queue.expiring:
            queue.expire(now_ms)
            queue.broker.wakes.add(queue, queue.next_expiry_ms())
    else:
        queue.over_ms = expired_ms
        queue.broker.wakes.add(queue, now_ms)
    gone = queue.drain_gone()
    if gone is not None:
        queue.unwritten.append((0, *gone))
    if queue.unwritten:
        queue.write_ends(now_ms)
    if queue.passing and queue.ready and queue.broker.waits is not None:
        queue.broker.waits(queue)


def look_at_stream(stream: Stream, now_ms: int) -> None:
    """Do what the changes of this stream ask for."""
    # Consumers that acknowledge in this look are for the next one.
    stream.is_dirty = False
    stream.look(now_ms)


def share(queue: Queue, expired_ms: int) -> bool:
    """Give consumers what they have room for. False when the rest of that is for the next turn."""
    for ring in queue.groups:
        if len(ring) == 1:
            done = _serve_one(queue, ring[0], expired_ms)
        else:
            done = _serve_ring(queue, ring, expired_ms)
        if not done or not queue.ready:
            return done
    return True


def _serve_one(queue: Queue, consumer: Consumer, expired_ms: int) -> bool:
    allowance = queue.broker.allowance
    while queue.ready and (room := consumer.room()) > 0:
        if (left := allowance.left()) <= 0:
            return False
        before = queue.ready_bytes
        taken = queue.take_living(min(room, left), TAKE_BYTES_MAX, expired_ms)
        if taken is None:
            return not queue.overdue
        allowance.spend(len(taken), before - queue.ready_bytes)
        consumer.give(taken)
    return True


def _serve_ring(queue: Queue, ring: deque[Consumer], expired_ms: int) -> bool:
    allowance = queue.broker.allowance
    members = len(ring)
    passed_over = steps = in_round = chunk = 0
    ready, ready_bytes, left, left_bytes = queue.ready, queue.ready_bytes, 0, 0
    while queue.ready and passed_over < members:
        if steps == 0:
            # Asked now and then, and only when what was left the last time is used up.
            if ready - queue.ready >= left or ready_bytes - queue.ready_bytes >= left_bytes:
                allowance.spend(ready - queue.ready, ready_bytes - queue.ready_bytes)
                ready, ready_bytes = queue.ready, queue.ready_bytes
                left, left_bytes = allowance.left(), allowance.left_bytes()
                if left <= 0:
                    return False
            if in_round == 0:
                # The same for everybody in this round of the ring, so that shares are even.
                now = queue.ready
                chunk = 1 if now < EXACT_SHARE * members else min(CHUNK_MAX, now // (2 * members))
                in_round = members
            steps = min(in_round, STEPS_MAX)
            in_round -= steps
        steps -= 1
        consumer = ring[0]
        ring.rotate(-1)
        room = consumer.room()
        if room <= 0:
            passed_over += 1
            continue
        passed_over = 0
        taken = queue.take_living(min(room, chunk), TAKE_BYTES_MAX, expired_ms)
        if taken is None:
            break
        consumer.give(taken)
    allowance.spend(ready - queue.ready, ready_bytes - queue.ready_bytes)
    return not queue.overdue


class Wakes:
    """Which queue wants to be looked at when, though nothing happens to it.

    A queue may stand in the heap more than once; only the entry that equals its `wake_ms` counts. The others,
    and those of deleted queues, are swept out before they are the larger part.
    """

    def __init__(self) -> None:
        self.soonest_ms = NEVER
        self.published_ms = NEVER
        """When the first publish since the last turn was."""
        self._heap: list[tuple[int, int, Queue]] = []
        self._pushed = 0
        self._stale = 0

    def __len__(self) -> int:
        return len(self._heap)

    def next_ms(self) -> int:
        """The first moment that somebody waits for; NEVER if nobody does."""
        return self.soonest_ms

    def over_ms(self, now_ms: int) -> int:
        """Before consumers are served, messages end whose time was over at this moment: before anything that
        they have not been offered yet was published."""
        return min(now_ms, self.published_ms) - 1

    def add(self, queue: Queue, at_ms: int) -> None:
        """Wake this queue at `at_ms` at the latest."""
        if at_ms < queue.wake_ms:
            if queue.wake_ms != NEVER:
                self._stale += 1
            queue.wake_ms = at_ms
            self._pushed += 1
            heapq.heappush(self._heap, (at_ms, self._pushed, queue))
            self._sweep()

    def forget(self, queue: Queue) -> None:
        """The queue is deleted."""
        if queue.wake_ms != NEVER:
            queue.wake_ms = NEVER
            self._stale += 1
            self._sweep()

    def _sweep(self) -> None:
        if self._stale > 64 and 2 * self._stale > len(self._heap):
            self._heap = [entry for entry in self._heap if entry[0] == entry[2].wake_ms]
            heapq.heapify(self._heap)
            self._stale = 0
        self.soonest_ms = self._heap[0][0] if self._heap else NEVER

    def ring(self, now_ms: int) -> None:
        """Wake all whose moment has come."""
        due: list[Queue] = []
        while self._heap and self._heap[0][0] <= now_ms:
            at_ms, _, queue = heapq.heappop(self._heap)
            if at_ms == queue.wake_ms:
                queue.wake_ms = NEVER
                due.append(queue)
            else:
                self._stale -= 1
        self.soonest_ms = self._heap[0][0] if self._heap else NEVER
        for queue in due:
            if not queue.deleted:
                queue.woken(now_ms)
