"""A stream: the messages (`StreamCore`), the rules it was declared with, its consumers, marks, pins and snapshots.

Beside queues in the tables of the broker and its virtual hosts; `keeps` tells it apart. What a queue does once a
turn a stream does here: `look`.

A stream has a *boundary*: the newest of its own records that is shown. Snapshots are taken there. What is shown
ends with a frame of the journal, so a boundary never lies inside a batch, and those of several streams stand for
the same moment. It stands still when other queues are busy. The last sequence at the end of each turn is
remembered; when it is shown it is the boundary. Only when a frame ended within the turn it must be looked up.

Invariant: `boundary <= shown_seq`; no version that a snapshot at the boundary or an open one sees is released.
"""

from __future__ import annotations

from collections import deque
from contextlib import suppress
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any, Protocol

from tidemark.broker.audience import Audience, StreamConsumer
from tidemark.broker.core import NEVER
from tidemark.broker.policies import STREAM, Applied, Governed
from tidemark.broker.queue import QueueStatistics
from tidemark.broker.streams.core import StreamCore
from tidemark.broker.streams.ends import Ends
from tidemark.broker.streams.marks import Marks
from tidemark.broker.streams.pins import Pin, Pins
from tidemark.broker.streams.policy import StreamPolicy, check_stream_arguments, shard_slots
from tidemark.broker.streams.positions import Position
from tidemark.broker.streams.retention import Keeper
from tidemark.errors import LostBranch, NotImplementedHere, PreconditionFailed, StoreError, StreamReset
from tidemark.model.records import batch_first
from tidemark.model.wiring import QueueSpec

if TYPE_CHECKING:
    from tidemark.broker.broker import Broker
    from tidemark.broker.streams.snapshots import Snapshot

SHOW_AT_ONCE = 4096
RELEASE_AT_ONCE = 65_536
"""How many superseded entries are let go of in one step; the rest follows in the next turns."""


class Watcher(Protocol):
    def stirred(self, stream: Stream) -> None:
        """More of the stream is shown than before, or it is gone (`deleted`)."""


@dataclass(frozen=True, slots=True)
class StreamStatistics:
    vhost: str
    name: str
    number: int
    key: str
    shards: int
    live: int
    """Messages that are there: each key once, and those without a key."""
    live_bytes: int
    tombstones: int
    held: int
    """Superseded messages that snapshots, pins or the history keep."""
    held_bytes: int
    first_seq: int
    last_seq: int
    boundary: int
    """Snapshots are taken here."""
    floor: int
    """What is below has ended by retention, truncate or purge; the one right below it has, read or not."""
    purged: int
    """Deletes up to here are no longer told."""
    oldest_snapshot: int
    """The lowest sequence at which a snapshot can be opened, unless one is pinned there."""
    memory_bytes: int
    published: int
    pins: int
    snapshots: int
    marks: int
    registered: int
    consumers: int


class Stream(StreamCore, Governed):
    """One stream of a virtual host."""

    policy: StreamPolicy
    governed_as = STREAM

    def __init__(self, spec: QueueSpec, broker: Broker) -> None:
        policy = check_stream_arguments(
            spec.name, spec.vhost, spec.arguments, spec.durable, spec.exclusive, spec.auto_delete
        )
        streams = broker.streams
        super().__init__(
            broker.arena, spec.number, policy.key_kind, policy.key_name, streams.secret, broker.dirty
        )
        self.spec = spec
        self.name = spec.name
        self.broker = broker
        self.declared = policy
        """What its own arguments ask for; `policy` is that, with the policies that apply to its name."""
        self.policy = policy
        self.boundary = 0
        self.last_shown = 0
        """The newest message that was put and is shown."""
        self.marks = Marks(self)
        self.pins = Pins(self)
        self.ends = Ends(self)
        self.audience = Audience(self)
        self.locked = False
        """Consumers are given nothing; publishes are still accepted."""
        self.delivered = 0
        self._keeper = Keeper(self)
        self._newest = 0
        """The highest sequence at which something changed here."""
        self._pending: deque[tuple[int, int]] = deque()
        """Ends of turns that are not shown yet, each with the last message until then."""
        self._told = 0
        self._watchers: dict[Watcher, None] = {}
        self._snapshots: dict[Snapshot, None] = {}
        """Open ones, the least recently read first."""
        self.govern(broker.vhosts[spec.vhost].rules.applied_to_new(STREAM, spec.name))

    def govern(self, applied: Applied) -> None:
        """Go by these policies from now on. What they end, ends in the next ticks, where the stream is led."""
        self.applied = applied
        self.policy = applied.joined(self.declared, self.spec.arguments)
        self._keeper = Keeper(self)
        if self.policy.consumer_timeout_ms:
            self.broker.note_timeout(self.policy.consumer_timeout_ms)
        if self.broker.streams.leads:
            self.attend()

    # Turns -------------------------------------------------------------------------------------

    def look(self, now_ms: int) -> None:
        """The end of a turn in which something happened here, or more of it is shown."""
        self.caught_up()
        self.attend()
        if self.boundary > self._told:
            self._told = self.boundary
            for watcher in list(self._watchers):
                watcher.stirred(self)
        if not self.locked:
            self.audience.look(now_ms)

    def caught_up(self) -> int:
        """The boundary as of now. No batch is half done when this is called, so the last record can be one."""
        self._newest = max(self._newest, self.last_seq)
        if self._newest > self.boundary and (not self._pending or self._newest > self._pending[-1][0]):
            self._pending.append((self._newest, self.last_seq))
            self.broker.streams.hidden[self] = None
        if self._pending:
            self.shown(self.arena.shown_seq)
        return self.boundary

    def shown(self, seq: int) -> bool:
        """Records up to `seq` are shown. True: the boundary moves by it."""
        pending, before = self._pending, self.boundary
        while pending and pending[0][0] <= seq:
            self.boundary, self.last_shown = pending.popleft()
        if pending:
            self._show_part(seq)
        else:
            self.broker.streams.hidden.pop(self, None)
        if self.boundary > before:
            self.touch()
            self.tidy()
        return self.boundary > before

    def _show_part(self, seq: int) -> None:
        """A frame ended within a turn: of what was put in that turn, show what is in it."""
        while (taken := self.take(seq, self.boundary, seq, SHOW_AT_ONCE, NEVER)) is not None:
            self.boundary = self.last_shown = taken.entry(len(taken) - 1)[1]

    def changed_at(self, seq: int) -> None:
        """Something ended here by the record `seq`, which is in the state stream."""
        self._newest = max(self._newest, seq)
        self.caught_up()
        self.touch()

    def tidy(self) -> None:
        """Let go of superseded versions that nobody can see any more."""
        if not self.held:
            return
        ends, streams = self.ends, self.broker.streams
        upto = min(self.boundary, streams.floor)
        if self.policy.history_ms:
            upto = min(upto, ends.past)
        elif not ends.buries:
            if not streams.leads:
                return
            try:
                ends.begin_to_bury(self.broker.now_ms)
            except StoreError:
                return
        gone = self.release(upto, RELEASE_AT_ONCE)
        if self.held and (self.loose or gone):
            streams.untidy[self] = None
        else:
            streams.untidy.pop(self, None)

    def attend(self) -> None:
        """Have the rules of retention asked in the next ticks."""
        self.broker.streams.kept[self] = None

    def tick(self, now_ms: int) -> bool:
        """Apply the rules of retention. False: not before something changes. Raises StoreError."""
        return self._keeper.tick(now_ms)

    # Watching ------------------------------------------------------------------------------------

    def watch(self, watcher: Watcher) -> None:
        """Tell it when more is shown, at the end of that turn."""
        self._watchers[watcher] = None

    def unwatch(self, watcher: Watcher) -> None:
        self._watchers.pop(watcher, None)

    # Positions -----------------------------------------------------------------------------------

    @property
    def oldest_snapshot(self) -> int:
        """The lowest sequence at which a snapshot can be opened exactly."""
        streams = self.broker.streams
        if streams.follows and self.ends.buries and not self.policy.history_ms:
            return max(self.complete_from, self.ends.past, min(streams.exact_from, self.boundary))
        return max(self.complete_from, self.ends.past)

    def whole_at(self, seq: int) -> int:
        """`seq`, or the place before the batch whose rows here it stands between: no snapshot shows half of them."""
        found = self.above(seq)
        if found is None:
            return seq
        return min(seq, batch_first(self.arena.record(found[0])) - 1)

    def can_show(self, seq: int) -> bool:
        """Whether a snapshot at `seq` is exact: nothing that it would see was let go of."""
        if seq >= self.oldest_snapshot:
            return True
        return any(pin.seq == seq for pin in self.pins.by_name.values()) or any(
            snapshot.seq == seq for snapshot in self._snapshots
        )

    def can_pin(self, seq: int) -> bool:
        """Whether whoever follows still has all that a snapshot at `seq` sees."""
        promised = self.broker.streams.promised
        if seq >= min(promised, self.boundary) or any(pin.seq == seq for pin in self.pins.by_name.values()):
            return True
        if self.policy.history_ms:
            return seq >= self.ends.past
        if not self.ends.buries:
            return True  # nobody has let go of anything
        return any(one.seq == seq and one.moment >= promised for one in self._snapshots)

    def check_position(self, position: Position) -> int:
        """Where to go on from this position.

        Raises:
            LostBranch: it was cut off; the error says how far it is true.
            StreamReset: of an unknown history.
        """
        verdict = self.broker.streams.judge_position(position)
        if verdict.verdict == "rewound":
            raise LostBranch(stream=self.name, seq=position.seq, rewind_to=verdict.seq)
        if verdict.verdict == "reset":
            raise StreamReset(stream=self.name, seq=position.seq, purged=0)
        return verdict.seq

    def check_deletes(self, after: int) -> None:
        """Raises StreamReset when deletes behind `after` were forgotten, so that who has it would keep ghosts."""
        purged = self.ends.last.purged
        if 0 < after < purged:
            raise StreamReset(stream=self.name, seq=after, purged=purged)

    def behind(self, after: int) -> tuple[int, int] | None:
        """Rows and bytes of values that are shown behind `after`, when that is known at once; else None."""
        if after >= self.boundary:
            return 0, 0
        if after < self.first_seq and not self.held and self.boundary >= self.last_seq:
            return self.live + self.tombstones, self.live_bytes
        return None

    def shard_slots(self, shard: int) -> tuple[int, int]:
        """The slots of one shard, as (first, end)."""
        return shard_slots(shard, self.policy.shards)

    def every_snapshot(self) -> list[Snapshot]:
        """Those that are open, the least recently read first."""
        return list(self._snapshots)

    # Snapshots, told by themselves -------------------------------------------------------------------

    def opened(self, snapshot: Snapshot) -> None:
        snapshot.used_ms = self.broker.now_ms
        self._snapshots[snapshot] = None
        self.broker.streams.read[self] = None

    def was_read(self, snapshot: Snapshot) -> None:
        snapshot.used_ms = self.broker.now_ms
        del self._snapshots[snapshot]
        self._snapshots[snapshot] = None

    def closed(self, snapshot: Snapshot) -> None:
        del self._snapshots[snapshot]
        self.unhold(snapshot.seq)
        if not self.deleted:
            self.tidy()

    def lowest_snapshot(self, least: int, otherwise: int) -> int:
        """The moment of the oldest open snapshot that is not of before `least`, if that is lower."""
        return min((otherwise, *(one.moment for one in self._snapshots if one.moment >= least)))

    def close_idle(self, before_ms: int) -> bool:
        """Close snapshots that nobody has read from since then. False when none is open."""
        while self._snapshots:
            snapshot = next(iter(self._snapshots))
            if snapshot.used_ms > before_ms:
                return True
            snapshot.expire("nobody has read from it for too long")
        return False

    def expire_snapshots(self, pin: Pin, why: str) -> None:
        """The pin was dropped: who reads it is told."""
        for snapshot in [one for one in self._snapshots if one.pin is pin]:
            snapshot.expire(why)

    def drop_oldest_view(self, now_ms: int) -> bool:
        """Superseded messages take more than they may: the oldest pin or snapshot goes. False if there is none.

        Raises:
            StoreError: the journal takes nothing now.
        """
        why = (
            f"pins and snapshots kept more than the {self.policy.pin_bytes_max} bytes that the stream allows"
        )
        oldest = self.oldest_view()
        if oldest is None:
            return False
        if isinstance(oldest, Pin):
            self.pins.drop(oldest, why, now_ms)
        else:
            oldest.expire(why)
        return True

    def bound_snapshots(self) -> None:
        """Where another node leads: close the oldest snapshots while each alone keeps more than pins may. Pins stay."""
        bytes_max = self.policy.pin_bytes_max
        while bytes_max is not None and self.held_bytes > bytes_max:
            oldest = min(self._snapshots, key=lambda one: one.seq, default=None)
            if oldest is None or self.kept(oldest.seq)[1] <= bytes_max:
                break
            oldest.expire(f"pins and snapshots kept more than the {bytes_max} bytes that the stream allows")

    def oldest_view(self) -> Pin | Snapshot | None:
        """The pin or snapshot of the longest ago."""
        pin = self.pins.oldest()
        snapshot = min(self._snapshots, key=lambda one: one.seq, default=None)
        if pin is None or snapshot is None:
            return pin or snapshot
        return pin if pin.seq <= snapshot.seq else snapshot

    # As a queue ------------------------------------------------------------------------------------

    @property
    def consumers(self) -> list[StreamConsumer]:
        return self.audience.consumers

    @property
    def ready(self) -> int:
        return self.live

    @property
    def ready_bytes(self) -> int:
        return self.live_bytes

    acquired = acquired_bytes = redelivered = settled = 0
    delivered_no_ack = got = got_no_ack = get_empty = acked = expired = evicted = dead_lettered = 0
    count_header = False
    waits_for = 0
    overdue = False

    def refresh(self) -> None:
        """Counts are always true."""

    def renew(self) -> None:
        """Streams do not expire."""

    def refuses(self, _size: int, _count: int = 1) -> bool:
        """A stream takes everything; its limits end what is old."""
        return False

    def get(self) -> Any:
        """Raises NotImplementedHere: a stream is browsed, not emptied."""
        raise NotImplementedHere(
            reason=f"basic.get not supported by stream queues queue '{self.name}' in vhost '{self.spec.vhost}'"
        )

    def lock(self) -> None:
        """Consumers are given nothing more; publishes are still accepted."""
        self.locked = True

    def unlock(self) -> None:
        self.locked = False
        self.touch()

    def purge(self) -> int:
        """End all that is here, tombstones too. Whoever has read something of it is told to start over.

        Returns how many messages there were.

        Raises:
            StoreError: the journal takes nothing now; nothing ended.
        """
        count = self.live
        if self.live + self.tombstones:
            by = self.arena.next_seq  # the record of the purge itself
            self.ends.advance(self.broker.now_ms, floor=self.last_seq + 1, purged=by)
        return count

    def respecified(self, spec: QueueSpec) -> None:
        """The catalog has a newer description: the number of shards has grown, or it has got an incarnation."""
        self.spec = replace(self.spec, incarnation=spec.incarnation)
        policy = check_stream_arguments(spec.name, spec.vhost, spec.arguments)
        if policy.shards > self.policy.shards:
            self.spec, self.declared = spec, replace(self.declared, shards=policy.shards)
            self.policy = replace(self.policy, shards=policy.shards)

    def check_growth(self, shards: int) -> QueueSpec | None:
        """The description with so many shards; None when there are as many already.

        Raises:
            PreconditionFailed: fewer than now, or too many.
        """
        current = self.policy.shards
        arguments = {**self.spec.arguments, "x-stream-shards": shards}
        asked = check_stream_arguments(self.name, self.spec.vhost, arguments).shards
        if asked < current:
            raise PreconditionFailed(
                reason=f"inequivalent arg 'x-stream-shards' for queue '{self.name}' in vhost '{self.spec.vhost}': "
                f"received {asked} but current is {current}; a stream can only get more shards"
            )
        return replace(self.spec, arguments=arguments) if asked > current else None

    def delete(self) -> int:
        """The stream is gone: consumers, watchers and readers are told. Returns how many messages there were."""
        count = self.live
        for snapshot in list(self._snapshots):
            snapshot.expire("the stream was deleted")
        with suppress(StoreError):  # what is left is deleted at the next start
            self.broker.streams.forget(self)
        self.clear()
        self.audience.end()
        watchers, self._watchers = list(self._watchers), {}
        for watcher in watchers:
            watcher.stirred(self)
        return count

    # Statistics --------------------------------------------------------------------------------------

    @property
    def snapshots_open(self) -> int:
        return len(self._snapshots)

    def statistics(self) -> QueueStatistics:
        return QueueStatistics(
            vhost=self.spec.vhost,
            name=self.name,
            number=self.number,
            durable=True,
            exclusive=False,
            auto_delete=False,
            kind=self.policy.kind,
            ready=self.live,
            unacked=0,
            ready_bytes=self.live_bytes,
            unacked_bytes=0,
            published=self.published,
            delivered=self.delivered,
            redelivered=0,
            settled=0,
            expired=0,
            evicted=0,
            dead_lettered=0,
            damaged=0,
            locked=self.locked,
            consumers=tuple(consumer.statistics() for consumer in self.consumers),
        )

    def stream(self) -> StreamStatistics:
        ends = self.ends.last
        return StreamStatistics(
            vhost=self.spec.vhost,
            name=self.name,
            number=self.number,
            key=self.policy.key_rule,
            shards=self.policy.shards,
            live=self.live,
            live_bytes=self.live_bytes,
            tombstones=self.tombstones,
            held=self.held,
            held_bytes=self.held_bytes,
            first_seq=self.first_seq,
            last_seq=self.last_seq,
            boundary=self.boundary,
            floor=ends.floor,
            purged=ends.purged,
            oldest_snapshot=self.oldest_snapshot,
            memory_bytes=self.memory_bytes,
            published=self.published,
            pins=len(self.pins.by_name),
            snapshots=len(self._snapshots),
            marks=len(self.marks.by_name),
            registered=self.marks.registered,
            consumers=len(self.consumers),
        )
