"""A queue: the messages (`QueueCore`), the rules it goes by, and its consumers.

The core holds the messages and runs per message; this class decides, once a turn. What it must do in a
turn is in `dispatch.look`; here is what the steps are: which consumers may be given messages and in what
order (`groups`), what is dropped because it is too old (`expire`) or too much (`evict`), and how messages
that end are written down (`flush`) or go to the dead-letter exchange (`discard`).

The rules are what it was declared with, joined with the policies that apply to its name; `govern` is called when
these change. It only sets values: what follows from them (messages that are too many end, the queue expires)
happens in turns, so only where messages are dealt out, never on a member that follows.

Invariants: `groups` holds exactly the active consumers, highest priority first; a record of settled
messages is written after the records of the dead letters that replace them.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable
from contextlib import suppress
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

from tidemark.broker import deadletter, dispatch
from tidemark.broker.arguments import Overflow, check_queue_arguments, is_stream
from tidemark.broker.consumer import Consumer, ConsumerStatistics
from tidemark.broker.core import NEVER, QueueCore
from tidemark.broker.groups import OUTBOX
from tidemark.broker.policies import NOTHING, STREAM, Applied, Governed
from tidemark.errors import AccessRefused, StoreError
from tidemark.model.records import Reason
from tidemark.model.runs import Taken
from tidemark.model.wiring import QueueSpec

if TYPE_CHECKING:
    from tidemark.broker.broker import Broker

SLICE = 256
"""How many messages are expired, evicted or purged in one step."""


@dataclass(frozen=True, slots=True)
class QueueStatistics:
    vhost: str
    name: str
    number: int
    durable: bool
    exclusive: bool
    auto_delete: bool
    kind: str
    ready: int
    unacked: int
    ready_bytes: int
    unacked_bytes: int
    published: int
    delivered: int
    redelivered: int
    settled: int
    expired: int
    evicted: int
    dead_lettered: int
    damaged: int
    """Dead letters that could not be read from the disk any more."""
    locked: bool
    consumers: tuple[ConsumerStatistics, ...]


class Queue(QueueCore, Governed):
    """One queue of a virtual host."""

    def __init__(self, spec: QueueSpec, broker: Broker) -> None:
        # Of a stream that lives elsewhere this is the stand-in: an ordinary queue, for which the stream's arguments mean nothing.
        kept_elsewhere = is_stream(spec.arguments)
        arguments = {} if kept_elsewhere else spec.arguments
        policy = check_queue_arguments(spec.name, spec.vhost, arguments, spec.durable, spec.exclusive)
        super().__init__(broker.arena, spec.number, spec.in_journal, policy.priorities, broker.dirty)
        self.spec = spec
        self.name = spec.name
        self.broker = broker
        self.passing = bool(spec.group) or spec.name == OUTBOX
        """A stand-in or an outbox: what is in it is on its way to another queue, and a front brings it there."""
        self.declared = policy
        """What its own arguments ask for."""
        self.governed_as = STREAM if kept_elsewhere else policy.kind
        self.policy = policy
        self.evicts = False
        """It drops messages when it has too many."""
        self.count_header = False
        self.consumers: list[Consumer] = []
        """All subscribed, highest priority first, then the one that came first."""
        self.groups: list[deque[Consumer]] = []
        """Who may be given messages now: one ring a priority, highest first."""
        self.used = False
        """Whether it ever had a consumer (an auto-delete queue lives until its last one goes)."""
        self.locked = False
        self.unwritten: list[tuple[int, bytes, bool]] = []
        """(reason, packed, ranges) of messages that ended and are not in the journal yet."""
        self.expired = self.evicted = self.dead_lettered = self.damaged = 0
        self.delivered_no_ack = self.got = self.got_no_ack = self.get_empty = 0
        """Of `delivered`: to consumers that need not acknowledge; fetched by a get, of these without an ack."""
        self.published_before = self.looked_turn = 0
        """How many had been published at its last look, and in which turn that was."""
        self.over_ms = NEVER
        """Set while a look is cut short: its consumers have not been offered what was not over at this moment."""
        self.overdue = False
        """Messages at its heads are too old and have not ended: that is for the next turn."""
        self.dropped = 0
        """Of `settled`: those that expired, were too many, rejected or purged. The rest was acknowledged, or needed no ack."""
        self.wake_ms = NEVER
        """When `broker.wakes` will remind us next."""
        self._unused_since_ms = broker.now_ms
        self.govern(broker.vhosts[spec.vhost].rules.applied_to_new(self.governed_as, spec.name))
        if self.policy.expires_ms is not None:
            broker.wakes.add(self, broker.now_ms + self.policy.expires_ms)

    # Policies ----------------------------------------------------------------------------

    def govern(self, applied: Applied) -> None:
        """Go by these policies from now on.

        As in RabbitMQ: messages that are here keep the time to live that they came with; what is over a new limit
        goes in the next turn; a new time without use (expires) begins now; dead letters go by the new rules.
        """
        if self.name == OUTBOX or self.governed_as == STREAM:
            applied = NOTHING
        self.applied = applied
        before = self.policy
        policy = applied.joined(self.declared, self.spec.arguments)
        if self.passing:
            # Whoever uses the queue does so elsewhere. One front at a time takes what is here, in order, as often as it must.
            policy = replace(policy, expires_ms=None, delivery_limit=None, single_active_consumer=True)
        self.policy = policy
        self.ttl_ms = -1 if policy.message_ttl_ms is None else policy.message_ttl_ms
        limited = policy.length_max is not None or policy.length_bytes_max is not None
        self.evicts = limited and policy.overflow is Overflow.DROP_HEAD
        self.guarded = limited and not self.evicts
        self.count_header = not self.passing and (
            policy.delivery_limit is not None or policy.kind == "quorum"
        )
        if policy.consumer_timeout_ms:
            self.broker.note_timeout(policy.consumer_timeout_ms)
        if policy.expires_ms != before.expires_ms:
            self.renew()
        if self.evicts and self.overflows(0, 0):
            self.touch()

    # Consumers ---------------------------------------------------------------------------

    def add_consumer(self, consumer: Consumer) -> None:
        """Subscribe. Messages follow at the end of the turn.

        Raises:
            AccessRefused: somebody uses the queue exclusively, or this one wants to and is not alone,
                or the queue has a single active consumer by its own rule.
        """
        alone = consumer.exclusive and self.policy.single_active_consumer
        if alone or (self.consumers and (consumer.exclusive or self.consumers[0].exclusive)):
            raise AccessRefused(reason=f"queue '{self.name}' in vhost '{self.spec.vhost}' in exclusive use")
        self.used = True
        self.consumers.append(consumer)
        self.consumers.sort(key=lambda other: -other.priority)
        self._regroup()
        self.touch()

    def remove_consumer(self, consumer: Consumer) -> None:
        """Unsubscribe. What it holds stays acquired until its channel settles it or gives it back."""
        if consumer not in self.consumers:
            return
        self.consumers.remove(consumer)
        consumer.active = False
        self._regroup()
        self.renew()
        self.touch()

    def _regroup(self) -> None:
        chosen = self.consumers
        if self.policy.single_active_consumer:
            # The active one stays, whoever else comes; the next is the first in line.
            chosen = [one for one in self.consumers if one.active] or self.consumers[:1]
        if self.locked:
            chosen = []
        before = {id(one): place for place, one in enumerate(one for ring in self.groups for one in ring)}
        rings: dict[int, list[Consumer]] = {}
        for one in chosen:
            one.active = True
            rings.setdefault(one.priority, []).append(one)
        # Who was next in a ring stays next: a consumer that joins must not turn the ring back.
        self.groups = [
            deque(sorted(ring, key=lambda one: before.get(id(one), len(before)))) for ring in rings.values()
        ]

    def lock(self) -> None:
        """Nobody may take messages; publishes are still accepted."""
        self.locked = True
        self._regroup()

    def unlock(self) -> None:
        self.locked = False
        self._regroup()
        self.touch()

    # Taking ------------------------------------------------------------------------------

    def get(self) -> Taken | None:
        """Acquire the next message for one that asks, if there is one. The caller settles it.

        None also when the next one is on its way to the disk (`waits_for`), or when it is behind so many that are too
        old that the answer is for the next turn (`overdue`).
        """
        self.renew()
        self.refresh()
        self.broker.changed.add(self)
        if self.locked:
            return None
        over_ms = self.broker.wakes.over_ms(self.broker.now_ms)
        self.overdue = False
        taken = self.take_living(1, NEVER, min(over_ms, self.over_ms))
        if taken is not None:
            self.delivered += 1
            self.got += 1
        elif self.overdue:
            self.broker.wakes.add(self, self.broker.now_ms)
        elif not self.waits_for:
            self.get_empty += 1
        return taken

    def take_living(self, count: int, bytes_max: int, expired_ms: int) -> Taken | None:
        """`take`, stepping over messages whose time was over at `expired_ms`: these end here.

        None with `overdue` when they are more than may end in this turn.
        """
        while True:  # asked even when nothing is ready: `waits_for` must be true of now
            taken = self.take(count, bytes_max, expired_ms)
            if taken is not None or self.waits_for or not self.ready or not self.expire(expired_ms):
                return taken

    def refresh(self) -> None:
        """Do now what would be done at the end of the turn, so that counts are true."""
        if self.is_dirty:
            now_ms = self.broker.now_ms
            dispatch.look(self, self.broker.wakes.over_ms(now_ms), now_ms)

    # Limits ------------------------------------------------------------------------------

    def refuses(self, size: int, count: int = 1) -> bool:
        """Whether `count` more messages of together `size` bytes are more than this queue takes.

        Consumers that wait may make room first: a message counts only while nobody takes it.
        """
        if self.overflows(size, count) and self.groups:
            self.refresh()
        return self.overflows(size, count)

    def overflows(self, size: int, count: int = 1) -> bool:
        """The same as things stand, for use within a look: nothing is done to the queue."""
        policy = self.policy
        return (policy.length_max is not None and self.ready + count > policy.length_max) or (
            policy.length_bytes_max is not None and self.ready_bytes + size > policy.length_bytes_max
        )

    def evict(self) -> None:
        """Drop what is over the limits from the head: as in RabbitMQ, the highest priority goes first.

        As many as the turn's allowance lets it; the rest is for the next turn.
        """
        policy = self.policy
        more = True
        while more and policy.length_max is not None and self.ready > policy.length_max:
            more = self._evict(self.ready - policy.length_max, NEVER)
        while more and policy.length_bytes_max is not None and self.ready_bytes > policy.length_bytes_max:
            more = self._evict(SLICE, self.ready_bytes - policy.length_bytes_max)
        if not more:
            self.broker.wakes.add(self, self.broker.now_ms)

    def _evict(self, count: int, size: int) -> bool:
        """Drop up to `count` messages, no more than are needed to be rid of `size` bytes. False: not in this turn."""
        allowance, letters = self.broker.allowance, self.policy.dead_letter_exchange is not None
        left = allowance.left(letters)
        if left <= 0:
            return False
        before = self.ready_bytes
        bytes_max = min(size, allowance.left_bytes()) if letters else size
        taken = self.take(min(count, SLICE, left), bytes_max, hidden=True)
        assert taken is not None
        allowance.spend(len(taken), before - self.ready_bytes if letters else 0, letters)
        self.evicted += len(taken)
        self.discard(_places(taken), Reason.EVICTED)
        return True

    def expire(self, expired_ms: int) -> bool:
        """End the messages at the heads whose time was over at `expired_ms`.

        False when the turn's allowance is used up before all have: then the queue is `overdue`.
        """
        allowance, letters = self.broker.allowance, self.policy.dead_letter_exchange is not None
        self.overdue = False
        while self.next_expiry_ms() <= expired_ms:
            left = allowance.left(letters)
            if left <= 0:
                self.overdue = True
                return False
            before = self.ready_bytes
            bytes_max = allowance.left_bytes() if letters else NEVER
            taken = self.take_expired(expired_ms, min(SLICE, left), bytes_max)
            assert taken is not None
            allowance.spend(len(taken), before - self.ready_bytes if letters else 0, letters)
            self.expired += len(taken)
            self.discard(_places(taken), Reason.EXPIRED)
        return True

    def purge(self) -> int:
        """End everything that is ready. Returns how many there were."""
        self.refresh()
        count = self.ready
        self.flush(Reason.ACCEPTED)
        while (taken := self.take_expired(NEVER, SLICE)) is not None:
            self.settle_taken(taken)
            self.dropped += len(taken)
        self.flush(Reason.PURGED)
        return count

    # Ends --------------------------------------------------------------------------------

    def discard(self, places: list[tuple[int, int]], reason: Reason) -> None:
        """Acquired messages, as (lane, index), end without having been accepted."""
        self.flush(Reason.ACCEPTED)
        before = self.settled
        try:
            if self.policy.dead_letter_exchange is not None:
                deadletter.bury(self, places, reason)
                return
            for lane, index in places:
                self.settle(lane, index)
        finally:
            self.dropped += self.settled - before
        self.flush(reason)

    def flush(self, reason: Reason) -> None:
        """Write down what has ended since the last time. When the disk has no room, that is for a later turn."""
        gone = self.drain_gone()
        if gone is not None:
            self.unwritten.append((reason, *gone))
            with suppress(StoreError):
                self.write_ends(self.broker.now_ms)

    def flush_all(self) -> None:
        """Write down everything that has ended and is not written yet.

        Raises:
            StoreError: the journal takes nothing now. What is left is for a later turn.
        """
        self.flush(Reason.ACCEPTED)
        if self.unwritten:
            self.write_ends(self.broker.now_ms)

    def write_ends(self, now_ms: int) -> None:
        """Write down all that has ended.

        Raises:
            StoreError: the journal takes nothing now. What is left is kept, and tried again in the next turn.
        """
        try:
            while self.unwritten:
                self.broker.journal.settled(self.number, *self.unwritten[0], now_ms)
                del self.unwritten[0]
        except StoreError:
            self.touch()
            raise

    def delete(self) -> int:
        """The queue is gone: its consumers are told, its messages end. Returns how many were ready."""
        count = self.ready
        consumers, self.consumers, self.groups = self.consumers, [], []
        self.clear()
        self.unwritten.clear()
        self.broker.wakes.forget(self)
        for consumer in consumers:
            consumer.active = False
            consumer.sink.cancelled(consumer)
        return count

    # Unused queues (x-expires) -------------------------------------------------------------

    def renew(self) -> None:
        """The queue is in use: its time (x-expires) starts again."""
        if self.policy.expires_ms is not None:
            self._unused_since_ms = self.broker.now_ms
            self.broker.wakes.add(self, self.broker.now_ms + self.policy.expires_ms)

    def woken(self, now_ms: int) -> None:
        """A moment has come that this queue waited for: messages expire, or the queue itself."""
        expires_ms = self.policy.expires_ms
        if expires_ms is not None and not self.consumers:
            # A queue that was recovered was made before the broker knew the time.
            self._unused_since_ms = self._unused_since_ms or now_ms
            if now_ms - self._unused_since_ms >= expires_ms:
                self.broker.delete_queue(self)
                return
            self.broker.wakes.add(self, self._unused_since_ms + expires_ms)
        self.touch()

    @property
    def acked(self) -> int:
        """How many messages were acknowledged."""
        return self.settled - self.dropped - self.delivered_no_ack - self.got_no_ack

    def statistics(self) -> QueueStatistics:
        return QueueStatistics(
            vhost=self.spec.vhost,
            name=self.name,
            number=self.number,
            durable=self.spec.durable,
            exclusive=self.spec.exclusive,
            auto_delete=self.spec.auto_delete,
            kind=self.policy.kind,
            ready=self.ready,
            unacked=self.acquired,
            ready_bytes=self.ready_bytes,
            unacked_bytes=self.acquired_bytes,
            published=self.published,
            delivered=self.delivered,
            redelivered=self.redelivered,
            settled=self.settled,
            expired=self.expired,
            evicted=self.evicted,
            dead_lettered=self.dead_lettered,
            damaged=self.damaged,
            locked=self.locked,
            consumers=tuple(consumer.statistics() for consumer in self.consumers),
        )


def _places(taken: Taken) -> list[tuple[int, int]]:
    lane = taken.lane
    return [(lane, entry[0]) for entry in taken]


def grouped(popped: Iterable[tuple[object, int, int]]) -> dict[Queue, list[tuple[int, int]]]:
    """What `Unacked.pop` gave, by queue, without that of queues that are gone."""
    by_queue: dict[Queue, list[tuple[int, int]]] = {}
    for holder, lane, index in popped:
        queue: Queue = holder.queue  # type: ignore[attr-defined]
        if not queue.deleted:
            by_queue.setdefault(queue, []).append((lane, index))
    return by_queue
