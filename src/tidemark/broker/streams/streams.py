"""All about the streams of one node: their state, their history, and what happens to them as time passes.

`recovered` comes after the journal was replayed: every message is in its stream again, and every record of state
is in the state stream. First the ends are made again and all pins hold; only then may anything be let go of.

`shown` comes when more is durable, `turn` at the end of every turn, `tick` once a second. All of them cost nothing
for streams to which nothing happened.

Invariant: what is let go of in memory is needed by no pin whose record is, or will be, on the disk.
"""

from __future__ import annotations

import json
from collections.abc import Callable
from contextlib import suppress
from typing import TYPE_CHECKING, Any, Protocol

from tidemark.broker.core import NEVER
from tidemark.broker.streams.fences import Fences
from tidemark.broker.streams.leases import GRACE_MS, Leases
from tidemark.broker.streams.positions import (
    Histories,
    Judgement,
    Position,
    Safety,
    is_safe,
    judge,
)
from tidemark.broker.streams.producers import Producers, parse_key
from tidemark.broker.streams.retention import Timeline
from tidemark.broker.streams.room import Room
from tidemark.broker.streams.state import Change, State
from tidemark.errors import CorruptRecord, PreconditionFailed, StoreError
from tidemark.model.arena import EVERYTHING

if TYPE_CHECKING:
    from tidemark.broker.broker import Broker
    from tidemark.broker.streams.stream import Stream

MARKS_PATIENCE_MS = 10
"""How long moves of marks that nobody waits for are merged."""


class Waiter(Protocol):
    def durable(self) -> None:
        """More is shown than before."""


class Streams:
    def __init__(self, broker: Broker) -> None:
        self.broker = broker
        self.journal = broker.journal
        self.secret = broker.entropy(16)
        """Keys are hashed with it, so that nobody can make two that fall together."""
        self.state = State(broker.arena, broker.journal, self.secret)
        self.producers = Producers(self.state, broker.config.producers_max)
        self.fences = Fences(self.state)
        self.room = Room(broker.config.batch_bytes_max)
        """Of commits that are being read."""
        self.leases = Leases()
        self.timeline = Timeline()
        self.hidden: dict[Stream, None] = {}
        """Streams with something that is not shown yet."""
        self.untidy: dict[Stream, None] = {}
        """Streams with more to let go of than fits into one step."""
        self.kept: dict[Stream, None] = {}
        """Streams that the rules of retention have something to do with."""
        self.read: dict[Stream, None] = {}
        """Streams with open snapshots."""
        self._moved: dict[Stream, None] = {}
        """Streams with marks that are not written yet."""
        self.damage: list[CorruptRecord] = []
        """What the rules of retention could not read; the node takes it from here."""
        self.leads = False
        """Streams may be changed here: all of them are as the journal has them, and nobody else writes it."""
        self.follows = False
        """Another node writes the journal; what is shown here is what that one has called safe."""
        self.awaiting: dict[Waiter, None] = {}
        """Who waits until more is shown here."""
        self.members = 1
        """How many members the cluster has."""
        self.others: Callable[[int], int] = lambda _: 0
        """How many other members have the journal up to this sequence on their disks."""
        self.floor = 0
        """Versions that were superseded behind it stay: the leader may still pin a snapshot that sees them."""
        self.promised = 0
        """Where it leads: those who follow were told that no snapshot of before this is pinned any more."""
        self.exact_from = 0
        """Where it follows: of a state before this, versions may be missing that were superseded since."""
        self._moved_since_ms = 0
        self._patience_ms = MARKS_PATIENCE_MS

    # Histories -----------------------------------------------------------------------------------

    @property
    def histories(self) -> Histories:
        """The takeover table: (history, first sequence), newest first.

        Without a history that began behind what is shown: until a takeover is safe it may be one that never was, and
        nobody must be given a position in it.
        """
        known: Histories = self.journal.histories
        if self.follows:
            shown = self.broker.arena.shown_seq
            return [row for row in known if row[1] <= shown] or known[-1:]
        return known

    @property
    def history(self) -> bytes:
        return self.histories[0][0]

    def shown_seq(self) -> int:
        """What can have been seen."""
        return min(self.broker.arena.shown_seq, self.broker.arena.next_seq - 1)

    def judge(
        self, history: bytes, seq: int, snapshot_end: int = 0, snapshot_start: int | None = None
    ) -> Judgement:
        """Whether a position is still on our branch: "ok", "rewound" (go back to `seq`), or "reset"."""
        return self.judge_position(Position(history, seq, snapshot_end, snapshot_start))

    def judge_position(self, position: Position) -> Judgement:
        return judge(self.histories, self.shown_seq(), position)

    def safe(self, history: bytes, seq: int, replicas: int = 1, disks: int = 1) -> Safety:
        """Whether what got this receipt is on so many replicas and disks.

        Raises:
            PreconditionFailed: more than there are.
        """
        for what, asked in (("replicas", replicas), ("disks", disks)):
            if not 0 <= asked <= self.members:
                whose = (
                    "this node is alone" if self.members == 1 else f"the cluster has {self.members} members"
                )
                raise PreconditionFailed(reason=f"{asked} {what} were asked for; {whose}")
        newest = self.broker.arena.next_seq - 1
        durable = self.journal.durable_seq
        verdict = is_safe(self.histories, newest, durable, history, seq, disks)
        # What another member acknowledges is on its disk.
        others = self.others(seq)
        if verdict == "yes" and (1 + others < replicas or (seq <= durable) + others < disks):
            return "not yet"
        return verdict

    # State ---------------------------------------------------------------------------------------

    def write(self, changes: list[Change], now_ms: int) -> int:
        """Write state. Returns the sequence to wait for. Raises StoreError: nothing was written."""
        return self.state.write(changes, now_ms)

    def marks_wait(self, stream: Stream, now_ms: int) -> None:
        """A mark moved and nobody waits for its record: it is written soon."""
        if not self._moved:
            self._moved_since_ms = now_ms
        self._moved[stream] = None

    def flush(self, now_ms: int) -> None:
        """Write every mark that moved.

        Raises:
            StoreError: the journal takes nothing now; they are kept for later.
        """
        for stream in list(self._moved):
            if not stream.deleted and stream.marks.unwritten:
                stream.marks.write(list(stream.marks.unwritten), now_ms)
            del self._moved[stream]

    def forget(self, stream: Stream) -> None:
        """The stream is deleted: its state goes.

        Raises:
            StoreError: the journal takes nothing now. The next start does it.
        """
        for streams in (self.hidden, self.untidy, self.kept, self.read, self._moved):
            streams.pop(stream, None)
        changes = stream.marks.gone() + stream.pins.gone()
        if self.state.current(stream.ends.key()) is not None:
            changes.append((stream.ends.key(), None))
        if self.leads and changes:
            self.write(changes, self.broker.now_ms)

    def forget_vhost(self, vhost: str) -> None:
        """The virtual host is deleted: its producers go with it. Raises StoreError, as `forget`."""
        changes = self.producers.forget_vhost(vhost)
        if self.leads and changes:
            self.write(changes, self.broker.now_ms)

    def forget_fences(self, queue: int) -> None:
        """The queue with this number is deleted. Raises StoreError, as `forget`."""
        changes = self.fences.forget(queue)
        if self.leads and changes:
            self.write(changes, self.broker.now_ms)

    def grow(self, stream: Stream, shards: int) -> int:
        """Let the stream have more shards. Returns the sequence of the catalog to wait for.

        Raises:
            PreconditionFailed: fewer than now, or too many.
        """
        spec = stream.check_growth(shards)
        return self.broker.catalog.last_seq if spec is None else self.broker.put(spec)

    # Start -----------------------------------------------------------------------------------------

    def recovered(self, now_ms: int) -> None:
        """The journal was replayed, and what is durable is shown: go on from there."""
        newest = self.broker.arena.next_seq - 1
        streams = self._streams()
        if self.follows:
            # Whoever led before may have promised as much as it had.
            self._hear(newest)
            self.follows, self.promised = False, newest
        gone: list[Change] = []
        for name, seq, body in self.state.items():
            if "u" in body:
                body["u"] = max(body["u"], now_ms + GRACE_MS)
            if not self._restored(name.decode("utf-8", "surrogateescape"), seq, body):
                gone.append((name, None))
        # From here on all pins hold, and nothing that they see goes.
        self.leads, self.floor = True, EVERYTHING
        self.timeline.note(now_ms, newest)
        for stream in streams.values():
            stream.changed_at(stream.ends.last.by)
            stream.caught_up()
            if stream.ends.buries and not stream.policy.history_ms:
                # What was let go of before the start may be on the disk no longer, and nobody knows what it was.
                stream.ends.past = max(stream.ends.past, stream.boundary)
            stream.tidy()
            stream.attend()
        with suppress(StoreError):
            self.write(gone, now_ms)
        self.state.tidy(self.shown_seq())
        self._tell_awaiting()

    def _streams(self) -> dict[int, Stream]:
        return {number: queue for number, queue in self.broker.queues.items() if queue.keeps}  # type: ignore[misc]

    def _restored(self, name: str, seq: int, body: dict[str, Any]) -> bool:
        """Take one record of state. False: what it belongs to does not exist."""
        kind, _, rest = name.partition("/")
        if kind == "producer":
            vhost, producer = parse_key(rest)
            if vhost not in self.broker.vhosts:
                return False
            self.producers.restored(vhost, producer, body, seq)
            return True
        number, _, rest = rest.partition("/")
        stream: Any = self.broker.queues.get(int(number))
        if kind == "fence" and stream is not None:
            self.fences.restored(stream.number, rest, body, seq)
            return True
        if stream is None or not stream.keeps:
            return False
        if kind == "stream":
            stream.ends.restored(body)
        elif kind == "mark":
            stream.marks.restored(rest, body, seq)
        elif kind == "pin":
            stream.pins.followed(rest, body, seq)
        return True

    # As a follower -----------------------------------------------------------------------------------

    def follow(self, seq: int) -> None:
        """What another node wrote, and this one has applied, is safe up to `seq`: show it. Nothing is written.

        Pins and ends are told to their streams as they come; marks and producers wait for `recovered`. Who watches a
        stream is told, too: readers are served here as they are where it is written.
        """
        self.follows = True
        dirty = list(self.broker.dirty)
        self.broker.dirty.clear()
        self.broker.changed.update(dirty)
        for target in dirty:
            target.is_dirty = False
        self._hear(seq)
        for target in dirty:
            if target.keeps and not target.deleted:
                target.look(self.broker.now_ms)
        for stream in list(self.hidden):
            if stream.shown(seq):
                stream.look(self.broker.now_ms)
        for stream in list(self.untidy):
            stream.tidy()
        self.state.tidy(seq)
        self._tell_awaiting()

    def _hear(self, upto: int) -> None:
        """Let streams know what the state stream says of their pins and ends up to here."""
        for name, at, body in self.state.news(upto):
            kind, _, rest = name.decode("utf-8", "surrogateescape").partition("/")
            if kind in ("pin", "stream"):
                number, _, rest = rest.partition("/")
                stream: Any = self.broker.queues.get(int(number))
                if stream is None or not stream.keeps:
                    continue
                if kind == "pin":
                    stream.pins.followed(rest, None if body is None else json.loads(body), at)
                elif body is not None:
                    stream.ends.restored(json.loads(body))
                    stream.changed_at(stream.ends.last.by)

    def _tell_awaiting(self) -> None:
        for waiter in list(self.awaiting):
            waiter.durable()

    def promise(self, complete: int) -> int:
        """Those who follow may let go of what was superseded up to the answer: nobody pins a snapshot of before it any
        more, unless it is pinned already (`Stream.can_pin`). It is no more than is `complete`, so that it stays true
        when another member leads: numbers behind that may come again."""
        lowest = min(self.shown_seq(), complete)
        for stream in self.read:
            lowest = stream.lowest_snapshot(self.promised, lowest)
        self.promised = max(self.promised, lowest)
        return self.promised

    def let_go(self, floor: int) -> None:
        """Versions that were superseded up to here may leave, if no pin sees them."""
        if not self.leads and floor > self.floor:
            self.floor = floor
            for stream in self._streams().values():
                if stream.held:
                    self.untidy[stream] = None

    # As time passes ----------------------------------------------------------------------------------

    def shown(self, seq: int) -> bool:
        """Records up to `seq` are shown now. True: some stream has more to show than before."""
        if not self.leads:
            return False
        stirred = False
        for stream in list(self.hidden):
            stirred = stream.shown(seq) or stirred
        self.state.tidy(self.shown_seq())
        return stirred

    def turn(self, now_ms: int) -> None:
        """The end of a turn: what has waited long enough is written, and some of what is over is let go of.

        Raises:
            StoreError: the journal takes nothing now; the rest is for a later turn.
        """
        for stream in list(self.untidy):
            stream.tidy()
        if self._moved and not 0 <= now_ms - self._moved_since_ms < self._patience_ms:
            self.flush(now_ms)

    def next_wake_ms(self) -> int:
        """When `turn` must be called again though nothing happens."""
        if self.untidy:
            return self.broker.now_ms
        return self._moved_since_ms + self._patience_ms if self._moved else NEVER

    def closing(self) -> None:
        """The node is about to stop: the next turn writes whatever moved."""
        self._patience_ms = 0

    def tick(self, now_ms: int) -> None:
        """About once a second: leases end, and streams let go of what their rules say. While it follows: snapshots only.

        Raises:
            StoreError: the journal takes nothing now; the rest is for the next tick.
        """
        if not self.leads and not self.follows:
            return
        self.timeline.note(now_ms, self.shown_seq())
        idle_ms = now_ms - 1000 * self.broker.config.snapshot_idle_s
        for stream in list(self.read):
            if not stream.close_idle(idle_ms):
                self.read.pop(stream, None)
            elif self.follows:
                stream.bound_snapshots()
        if self.follows:
            return  # leases and rules are the leader's business: what follows from them comes with the journal
        self.leases.tick(now_ms)
        for stream in list(self.kept):
            try:
                goes_on = stream.tick(now_ms)
            except CorruptRecord as problem:
                # Nothing of it ends until something is put into it. Whoever reads the bad record is told.
                self.damage.append(problem)
                goes_on = False
            if not goes_on:
                self.kept.pop(stream, None)
