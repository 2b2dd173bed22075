"""All about the streams of one node: their state, their history, and what happens to them as time passes.

`recovered` comes after the journal was replayed: every message is in its stream again, and every record of state
is in the state stream. First the ends are made again and all pins hold; only then may anything be let go of.

`shown` comes when more is durable, `turn` at the end of every turn, `tick` once a second. All of them cost nothing
for streams to which nothing happened.

Invariant: what is let go of in memory is needed by no pin whose record is, or will be, on the disk.
"""

from __future__ import annotations

from contextlib import suppress
from typing import TYPE_CHECKING, Any

from tidemark.broker.core import NEVER
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

if TYPE_CHECKING:
    from tidemark.broker.broker import Broker
    from tidemark.broker.streams.stream import Stream

MARKS_PATIENCE_MS = 10
"""How long moves of marks that nobody waits for are merged."""


class Streams:
    def __init__(self, broker: Broker) -> None:
        self.broker = broker
        self.journal = broker.journal
        self.secret = broker.entropy(16)
        """Keys are hashed with it, so that nobody can make two that fall together."""
        self.state = State(broker.arena, broker.journal, self.secret)
        self.producers = Producers(self.state, broker.config.producers_max)
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
        self._moved_since_ms = 0
        self._patience_ms = MARKS_PATIENCE_MS
        self._recovered = False

    # Histories -----------------------------------------------------------------------------------

    @property
    def histories(self) -> Histories:
        """The takeover table: (history, first sequence), newest first."""
        known: Histories = self.journal.histories
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
            if not 0 <= asked <= 1:
                raise PreconditionFailed(
                    reason=f"{asked} {what} were asked for; this node is alone and answers for itself only (1)"
                )
        newest = self.broker.arena.next_seq - 1
        return is_safe(self.histories, newest, self.journal.durable_seq, history, seq, disks)

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
        if self._recovered and changes:
            self.write(changes, self.broker.now_ms)

    def forget_vhost(self, vhost: str) -> None:
        """The virtual host is deleted: its producers go with it. Raises StoreError, as `forget`."""
        changes = self.producers.forget_vhost(vhost)
        if self._recovered and changes:
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
        gone: list[Change] = []
        for name, seq, body in self.state.items():
            if "u" in body:
                body["u"] = max(body["u"], now_ms + GRACE_MS)
            if not self._restored(name.decode("utf-8", "surrogateescape"), seq, body):
                gone.append((name, None))
        # From here on all pins hold, and nothing that they see goes.
        self._recovered = True
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
        if stream is None or not stream.keeps:
            return False
        if kind == "stream":
            stream.ends.restored(body)
        elif kind == "mark":
            stream.marks.restored(rest, body, seq)
        elif kind == "pin":
            stream.pins.restored(rest, body, seq)
        return True

    # As time passes ----------------------------------------------------------------------------------

    def shown(self, seq: int) -> bool:
        """Records up to `seq` are shown now. True: some stream has more to show than before."""
        if not self._recovered:
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
        """About once a second: leases end, and streams let go of what their rules say.

        Raises:
            StoreError: the journal takes nothing now; the rest is for the next tick.
        """
        if not self._recovered:
            return
        self.timeline.note(now_ms, self.shown_seq())
        idle_ms = now_ms - 1000 * self.broker.config.snapshot_idle_s
        for stream in list(self.read):
            if not stream.close_idle(idle_ms):
                self.read.pop(stream, None)
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
