"""One broker, assembled: arena, journal, catalog, wiring and front ends, without a socket, a file or a clock.

The shell gives it a disk, the time and events, and asks it what to do. One turn of the shell's loop is: bytes
into front ends, then `turn`, which lets the broker dispatch and hands both logs to the disk, then the output
of the front ends in `touched_front_ends`. When the disk has news, `completed` tells the front ends that wait.

The catalog is flushed before the journal and the disk keeps that order, so no message is on the disk before
the queue it belongs to.

A node stands alone (`start`), or it is a member of a group (`follow`, see `member/`): then it takes what its
source stored (`adopt`), frame by frame, and has it in its queues at once, so that it can `take_over` and `serve`
without reading anything again. What is safe is then not what is on this disk, but what the group says (`complete`).

Invariant: after `failed` is set nothing is confirmed any more; every connection is told and closed.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Protocol

from tidemark.broker import catalog
from tidemark.broker.broker import Broker
from tidemark.broker.core import NEVER, Restorer
from tidemark.config import Config
from tidemark.errors import DiskFull, StoreError
from tidemark.frontend.amqp091.config import Amqp091Config
from tidemark.frontend.opening import Opening
from tidemark.frontend.services import ALONE, FrontEnd, Login, PeerInfo, Topology, Verdict
from tidemark.frontend.stream.config import StreamConfig
from tidemark.frontend.stream.pace import Pace
from tidemark.model.arena import EVERYTHING, MEMORY, Arena, Writer
from tidemark.model.peers import Ends, Log, Takeover
from tidemark.ports import Apart, Disk
from tidemark.store.journal import RecoveryReport
from tidemark.store.store import Store
from tidemark.wire.amqp091.content import Amqp091Content

CALM = 0.95
"""A memory alarm ends when use has fallen to this share of the mark; without a gap it would flutter."""


class Outside(Protocol):
    """What the node tells its shell."""

    def due(self) -> None:
        """Something happened outside a read: call `turn` soon."""

    def replaced(self, old: FrontEnd, new: FrontEnd) -> None:
        """`new` takes the place of `old` at its socket."""

    def login(self, front_end: FrontEnd, login: Login) -> None:
        """Check this login and call `Node.verdict`, in a later turn."""

    def note(self, level: str, event: str, **facts: object) -> None:
        """A line for the log."""


@dataclass(frozen=True, slots=True)
class Alarms:
    """Why publishers must wait; empty when they need not."""

    memory: bool = False
    disk: bool = False
    behind: tuple[str, ...] = ()
    """Members of the cluster that do not keep up."""
    missing: int = 0
    """So many members more must be ready before anything is confirmed."""

    @property
    def reason(self) -> str | None:
        low = [word for word, on in (("memory", self.memory), ("disk", self.disk)) if on]
        words = [f"low on {' and '.join(low)}"] if low else []
        if self.behind:
            words.append(f"{' and '.join(self.behind)} cannot keep up")
        if self.missing:
            words.append(
                f"{self.missing} of the members that must have a copy are missing (cluster.copies_min)"
            )
        return ", ".join(words) or None


class Node:
    """Fits `frontend.services.Services`."""

    def __init__(
        self,
        config: Config,
        disk: Disk,
        outside: Outside,
        entropy: Callable[[int], bytes],
        apart: Apart | None = None,
    ) -> None:
        self.settings = config
        self.now_ms = 0
        self.failed: StoreError | None = None
        self.alarms = Alarms()
        self.pace = Pace()
        self.serving = False
        """Clients are served: it stands alone or leads, and all that it began with is safe."""
        self.paused = False
        """It led and cannot prove that it still does: nothing is dealt out."""
        self.safe: Ends | None = None
        """In a group: up to here every ready member has both logs. None: it stands alone, its own disk decides."""
        self.topology: Callable[[], Topology] = lambda: ALONE
        """Who else there is; the shell of a member knows."""
        self._restorer: Restorer | None = None
        self.front_ends: dict[FrontEnd, PeerInfo] = {}
        self.touched_front_ends: dict[FrontEnd, None] = {}
        self._waiting: dict[FrontEnd, None] = {}
        self._maintained_seq = 0
        self._outside = outside
        self._disk = disk
        self.arena = Arena()
        self.store = Store(self.arena, disk, config.store, entropy, apart)
        self.catalog = self.store.catalog
        self.journal = self.store.journal
        self.broker = Broker(
            arena=self.arena,
            memory=Writer(self.arena, MEMORY),
            journal=self.journal,
            catalog=self.catalog,
            content=Amqp091Content(),
            config=config.broker,
            entropy=entropy,
        )
        if config.cluster.name:
            self.broker.mode = config.cluster.mode
            self.broker.replicate = config.cluster.replicate
            self.broker.group = config.cluster.group
            self.broker.other_groups = config.cluster.mode_of

    # Start, turns and end ------------------------------------------------------------------

    def start(self, now_ms: int) -> RecoveryReport:
        """Read the catalog, then the journal. Returns the journal's report.

        Raises:
            StoreError: what is on the disk cannot be served.
        """
        report = self._read(now_ms, open_history=True)
        status = self.store.files.status
        self.broker.turns.begin(status.store, status.generation)
        self.serve(now_ms)
        return report

    def _read(self, now_ms: int, *, open_history: bool) -> RecoveryReport:
        self.at(now_ms)
        self.store.open()
        for change in self.catalog.recover(now_ms):
            self.broker.apply(catalog.decode(change))
        restorer = Restorer(self.arena, self.broker.journaled)
        return self.journal.recover(
            restorer, now_ms, self.broker.queue_name, self.broker, open_history=open_history
        )

    def serve(self, now_ms: int) -> None:
        """All that was read or adopted is safe: go on from there, with clients."""
        self.at(now_ms)
        self.serving = True
        self.broker.next_number = max(self.broker.next_number, self.store.queue_max + 1)
        self.broker.create_defaults()
        self._show()
        self.broker.streams.recovered(now_ms)
        for queue in self.broker.queues.values():
            queue.renew()  # it may have been in use elsewhere until now
            queue.touch()
        self.turn(now_ms)

    # As a member of a group -----------------------------------------------------------------

    def follow(self, now_ms: int) -> RecoveryReport:
        """Read the store and write nothing; `adopt` goes on from there. Raises StoreError as `start`."""
        self.safe = Ends()
        self.catalog.follower = self.name
        self.arena.shown_seq = 0
        report = self._read(now_ms, open_history=False)
        self.broker.streams.exact_from = self.store.ends.journal
        return report

    def adopt(self, log: Log, payload: memoryview) -> None:
        """Store one frame that another member wrote, as it is, and have it in memory, too. `flush` hands it to the disk.

        Raises:
            StoreError: it cannot be kept. The node must not go on.
        """
        if log is Log.CATALOG:
            for change in self.store.adopt_changes(payload, self.now_ms):
                self.broker.apply(catalog.decode(change))
            self._restorer = None
        else:
            if self._restorer is None:
                self._restorer = Restorer(self.arena, self.broker.journaled)
            self._restorer.frame(*self.store.adopt_records(payload, self.now_ms))

    def take_over(self, history: str, now_ms: int, line: int = 0) -> Takeover:
        """Lead: a new history begins in both logs. Clients are served when all up to here is safe (`serve`).

        The store has been told the epoch. `line` is the epoch that last began with what stores were left, not with what was
        confirmed: earlier ones may have gone further than those that follow it.
        """
        self.at(now_ms)
        self._restorer = None
        self.catalog.follower = ""
        status = self.store.files.status
        self.broker.turns.begin(f"{status.cluster}.{line}", status.epoch)
        return self.store.take_over(history, now_ms)

    def settled(self) -> Ends | None:
        """Hand both logs to the disk, whoever may be patient. Up to where they say what memory holds now; None: that
        cannot be said at this moment."""
        if (
            self.failed is not None
            or self.broker.dirty
            or self.journal.seal_for_checkpoint(self.now_ms) is None
        ):
            return None
        ends = self.store.ends
        return ends if ends.catalog == self.catalog.last_seq else None

    def complete(self, upto: Ends) -> None:
        """Every ready member has the logs up to here: tell those who wait for it, and show it."""
        self.safe = upto
        if not self.serving:
            self.arena.shown_seq = upto.journal
            self.broker.streams.follow(upto.journal)
        elif not self.paused:
            self._show()
            self._tell_waiting()

    # Turns ----------------------------------------------------------------------------------

    def turn(self, now_ms: int) -> None:
        """The end of a turn of the loop: dispatch, then hand both logs to the disk."""
        self.at(now_ms)
        if self.failed is not None:
            return
        if not self.serving or self.paused:
            self._flush_adopted(now_ms)
            return
        self.arena.turn += 1
        full, told = False, True
        try:
            try:
                told = self._dispatch(now_ms)
            except DiskFull:
                # Ends that found no room are tried again. The rest goes on: segments become free only by a flush.
                full = True
            self._flush(now_ms, told=told)
            if not full:
                self._checkpoint(now_ms)
        except StoreError as error:
            self.fail(error)
        else:
            self._check_room(full)

    def _flush_adopted(self, now_ms: int) -> None:
        """The turn of a member that deals nothing out."""
        self.arena.turn += 1
        self.journal.hurry = True
        try:
            self._flush(now_ms)
        except StoreError as error:
            self.fail(error)

    def _flush(self, now_ms: int, *, told: bool = False) -> None:
        """`told`: the ends that memory knows of have just been written down. A leader that is fenced does not do that. What
        found no room counts as told, for room comes only of letting go: a leader that is then replaced may have let go of
        what its consumer had acknowledged and others still have."""
        self.catalog.flush(now_ms)
        if not self.catalog.full:
            # Else the messages wait too: none is on the disk before the queue it belongs to.
            self.journal.flush(now_ms, told=told or not self.serving or not self.broker.dirty)

    def _checkpoint(self, now_ms: int) -> None:
        if not self.broker.dirty or not self.serving:
            # Every end is written: what is in memory is what the journal says.
            went_well = self.store.checkpoint(self.broker, now_ms)
            if went_well is not None:
                level, event = ("info", "checkpoint made") if went_well else ("warning", "checkpoint failed")
                self._outside.note(level, event, ms=self.journal.checkpointer.took_ms)

    def _check_room(self, full: bool = False) -> None:
        """Let publishers wait as soon as the store has only its reserve left. `watch` lets them go on."""
        if (full or self._store_full()) and not self.alarms.disk:
            self._raise_alarms(replace(self.alarms, disk=True))

    def _store_full(self) -> bool:
        return self.journal.full or self.catalog.full

    def _dispatch(self, now_ms: int) -> bool:
        """Whether every end that memory knows of was written down."""
        try:
            self.broker.turn(now_ms)
        except StoreError:
            raise
        except Exception as error:
            # A mistake of ours about one queue must not keep everybody else's messages from the disk.
            self._outside.note("error", "unexpected exception", where="turn", error=error)
            return False
        return True

    def completed(self, now_ms: int) -> None:
        """The disk has news."""
        self.at(now_ms)
        if self.failed is not None:
            return
        before = self.catalog.durable_seq, self.journal.durable_seq
        try:
            self.store.completed()
        except StoreError as error:
            self.fail(error)
            return
        if self.safe is None and (self.catalog.durable_seq, self.journal.durable_seq) != before:
            self._show()
            self._tell_waiting()

    def _tell_waiting(self) -> None:
        waiting, self._waiting = self._waiting, {}
        for front_end in waiting:
            try:
                front_end.durable()
            except Exception as error:
                # It must not keep the others from their confirms.
                self._outside.note("error", "unexpected exception", where="durable", error=error)
                front_end.shutdown(541, "the broker failed; its log has the details")

    def _show(self) -> None:
        """Let consumers see what is safe."""
        arena = self.arena
        arena.shown_seq = EVERYTHING if self.settings.broker.show == "at-once" else self.journal_durable()
        stirred = self.broker.streams.shown(arena.shown_seq)
        hidden, arena.hidden = arena.hidden, []
        for queue in hidden:
            queue.show()
        if hidden or stirred:
            self._outside.due()

    def maintain(self, now_ms: int, budget_bytes: int) -> bool:
        """A slice of the store's housekeeping. True while there is more to do."""
        self.at(now_ms)
        if self.failed is not None:
            return False
        try:
            self.journal.maintain(self.broker, now_ms, budget_bytes)
            self._flush(now_ms)
            if self.catalog.wants_rewrite and self.catalog.has_room_for(self.broker.image_length()):
                self.catalog.rewrite(self.broker.image(), now_ms)
                if self.safe is None:
                    self._tell_waiting()  # the image holds what was on its way
            self._checkpoint(now_ms)
        except StoreError as error:
            self.fail(error)
            return False
        self._check_room()
        moved, self._maintained_seq = self.arena.next_seq != self._maintained_seq, self.arena.next_seq
        return moved or not self.store.idle

    def tick(self, now_ms: int) -> None:
        """About once a second: heartbeats and time-outs."""
        self.at(now_ms)
        for front_end in list(self.front_ends):
            front_end.tick(now_ms)
        if self.failed is None and self.serving and not self.paused:
            try:
                self.broker.streams.tick(now_ms)
            except DiskFull:
                self._check_room(full=True)
            except StoreError as error:
                self.fail(error)
            for problem in self.broker.streams.damage:
                self._outside.note("error", "stream damaged", error=str(problem))
            self.broker.streams.damage.clear()
        for vhost, policy in self.broker.slow_patterns():
            self._outside.note("warning", "policy pattern too slow", vhost=vhost, policy=policy)

    def next_wake_ms(self) -> int:
        return self.broker.next_wake_ms() if self.serving and not self.paused else NEVER

    def close(self, now_ms: int) -> None:
        """Front ends have gone: write the rest. Call `completed` until `closed` says True."""
        if self.serving:
            self.broker.streams.closing()
        self.turn(now_ms)
        if self.failed is None:
            try:
                self.store.close(now_ms)
            except StoreError as error:
                self.fail(error)

    def closed(self) -> bool:
        """Everything is on the disk, and it says so; or the store has failed and never will."""
        if self.failed is not None:
            return True
        if not self.store.idle:
            return False
        try:
            self.store.closed(None if self.broker.dirty and self.serving else self.broker)
        except StoreError as error:
            self.fail(error)
        return True

    def at(self, now_ms: int) -> None:
        """What time it is, for whatever happens next."""
        self.now_ms = self.broker.now_ms = now_ms

    def fail(self, error: StoreError) -> None:
        """The journal has stopped for good. What waits for it will never be safe, and everyone is told."""
        self.failed = error
        self._outside.note("error", "store failed", error=str(error))
        for front_end in list(self.front_ends):
            front_end.store_failed(str(error))
        self._waiting.clear()
        self._outside.due()

    # Connections -----------------------------------------------------------------------------

    def connect(self, peer: PeerInfo) -> FrontEnd:
        """A client has connected: the machine that will speak with it."""
        front_end = Opening(self, peer)
        self.front_ends[front_end] = peer
        if self.alarms.reason:
            front_end.block(self.alarms.reason)
        return front_end

    def become(self, old: FrontEnd, new: FrontEnd) -> None:
        """A connection has said what it speaks."""
        self.front_ends[new] = self.front_ends.pop(old)
        self.touched_front_ends.pop(old, None)
        self._outside.replaced(old, new)

    def disconnect(self, front_end: FrontEnd) -> None:
        """Its socket is gone."""
        if self.front_ends.pop(front_end, None) is None:
            return
        front_end.receive_eof()
        self.touched_front_ends.pop(front_end, None)
        self._waiting.pop(front_end, None)
        self._outside.due()

    def verdict(self, front_end: FrontEnd, verdict: Verdict) -> None:
        """The answer to a login, unless the peer has gone meanwhile."""
        if front_end in self.front_ends:
            front_end.verdict(verdict)
            self.touched(front_end)

    # Alarms --------------------------------------------------------------------------------

    def watch(self, memory_bytes: int, memory_high_bytes: int, disk_free_bytes: int) -> None:
        """How much is used, as the shell has measured it: raise or end the alarms."""
        mark = memory_high_bytes * (CALM if self.alarms.memory else 1)
        low = self._store_full() or disk_free_bytes < self.settings.limits.disk_free_bytes_min
        self._raise_alarms(replace(self.alarms, memory=memory_bytes > mark, disk=low))

    def throttle(self, behind: tuple[str, ...], missing: int = 0) -> None:
        """Let publishers wait while these members do not keep up, or so many are missing; not if it is nobody."""
        self._raise_alarms(replace(self.alarms, behind=behind, missing=missing))

    def _raise_alarms(self, alarms: Alarms) -> None:
        if alarms == self.alarms:
            return
        self.alarms = alarms
        self.broker.blocked = alarms.reason
        if alarms.reason:
            self._outside.note("warning", "publishers blocked", reason=alarms.reason)
        else:
            self._outside.note("info", "publishers unblocked")
        for front_end in list(self.front_ends):
            front_end.block(alarms.reason)
        self._outside.due()

    # Services: what front ends ask ---------------------------------------------------------

    @property
    def name(self) -> str:
        return self.settings.node.name

    @property
    def config(self) -> Amqp091Config:
        return self.settings.amqp091

    @property
    def stream_config(self) -> StreamConfig:
        return self.settings.stream

    @property
    def tails_only(self) -> bool:
        return self.settings.cluster.reads == "tails"

    def journal_durable(self) -> int:
        return self.journal.durable_seq if self.safe is None else self.store.covers(self.safe.journal)

    def catalog_durable(self) -> int:
        return self.catalog.durable_seq if self.safe is None else self.safe.catalog

    def journal_settlements(self) -> int:
        self.broker.look(self.now_ms)
        self.broker.streams.flush(self.now_ms)
        return self.journal.last_seq

    def authenticate(self, front_end: FrontEnd, login: Login) -> None:
        self._outside.login(front_end, login)

    def touched(self, front_end: FrontEnd) -> None:
        self.touched_front_ends[front_end] = None
        self._outside.due()

    def waiting(self, front_end: FrontEnd) -> None:
        self._waiting[front_end] = None
        self.journal.hurry = True

    def note(self, level: str, event: str, **facts: object) -> None:
        self._outside.note(level, event, **facts)
