"""The store under a lying disk: random work, crashes at random moments, and a model that knows what must be left.

    python -m tidemark.sim.store --seed 17            replay one run and print what happened
    python -m tidemark.sim.store --seeds 1000         look for a run that breaks a promise

The real store (journal, catalog log, compaction, paging) and the real queues run over `SimDisk`. The model
remembers every record that was put into the journal. After a crash the journal has kept everything up to some
sequence L, and the check is exact: the queues must hold what the records up to L leave, in order, byte for
byte; the stream (`sim/keyed.py`) must show it at L and at every pinned snapshot; L is not below what was called
durable; no transaction is cut in two by L. The catalog likewise.

Invariant: a run is a function of its seed.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field, replace
from random import Random
from typing import Any

from tidemark.broker.core import FLAG_DURABLE, NEVER, QueueCore, Restorer
from tidemark.errors import DiskFailed, DiskFull, TidemarkError
from tidemark.model.arena import MEMORY, Arena, Writer
from tidemark.model.records import HEAD_BYTES, Reason, padded
from tidemark.ports import Apart
from tidemark.sim.apart import SimApart
from tidemark.sim.disk import SimDisk
from tidemark.sim.keyed import KEYS, KeyedSide, StreamModel, rows
from tidemark.sim.seeds import command
from tidemark.store.check import check_store
from tidemark.store.checkpoint import PREFIX
from tidemark.store.config import StoreConfig
from tidemark.store.store import Store

CONFIG = StoreConfig(
    segment_bytes=64 << 10,
    extent_bytes=4 << 10,
    cache_bytes=24 << 10,
    catalog_bytes=16 << 10,
    pool_files_max=2,
    compact_bytes_per_s=64 << 20,
    compact_quiet_ms=100,
    checkpoint_bytes=0,
    checkpoint_wait_ms=100,
    ack_patience_ms=0,
)
QUEUES = (1, 2, 3)
ROOM = 1 << 40
"""What the disk has when it is not full."""


class BrokenPromise(AssertionError):
    """What the store did is not what it promised."""


@dataclass(slots=True)
class Sent:
    """One entry of one queue, in the model."""

    queue: int
    body: bytes
    ended: int = 0
    """The sequence of the record that says it is gone; 0 while it is here."""


@dataclass(slots=True)
class Model:
    """Everything that was put into the two logs, in this history."""

    entries: dict[int, Sent] = field(default_factory=dict)
    records: list[int] = field(default_factory=list)
    """The last sequence of every record."""
    transactions: list[tuple[int, int]] = field(default_factory=list)
    """(first, last) sequence of each"""
    changes: list[bytes] = field(default_factory=list)
    change_seqs: list[int] = field(default_factory=list)
    """The catalog sequence of each change."""
    stream: StreamModel = field(default_factory=StreamModel)

    def left(self, upto: int) -> dict[int, dict[int, bytes]]:
        """The entries of each queue that the records up to this sequence leave."""
        queues: dict[int, dict[int, bytes]] = {number: {} for number in QUEUES}
        for seq, sent in self.entries.items():
            if seq <= upto and not 0 < sent.ended <= upto:
                queues[sent.queue][seq] = sent.body
        return queues


class Process:
    """One life of the broker's inside: the store, the arena and the queues."""

    def __init__(
        self,
        disk: SimDisk,
        dice: Random,
        now_ms: int,
        config: StoreConfig = CONFIG,
        apart: Apart | None = None,
    ) -> None:
        self.disk = disk
        self.arena = Arena()
        self.dirty: list[QueueCore] = []
        self.queues = {number: QueueCore(self.arena, number, True, 0, self.dirty) for number in QUEUES}
        self.store = Store(self.arena, disk, config, dice.randbytes, apart)
        self.memory = Writer(self.arena, MEMORY, config.extent_bytes)
        self.store.open()
        self.changes = list(self.store.catalog.recover(now_ms))
        self.keyed = KeyedSide(self.arena, self.store.journal)
        self._targets: dict[int, Any] = {**self.queues, **self.keyed.targets}
        restorer = Restorer(self.arena, self._targets)
        self.report = self.store.journal.recover(restorer, now_ms, self.queue_name, self)
        self.keyed.recovered()

    # Residents
    def holds(self, queue: int, seq: int) -> bool:
        return queue in self._targets and self._targets[queue].holds(seq)

    def buries(self, number: int) -> bool:
        return number in self.keyed.targets

    def buried_seq(self) -> int:
        return self.keyed.buried_seq()

    def relocate(self, queue: int, seq: int, loc: int) -> bool:
        return queue in self._targets and self._targets[queue].relocate(seq, loc)

    def queue_name(self, queue: int) -> str | None:
        return f"q{queue}" if queue in self.queues else None

    # Image
    def targets(self) -> Iterable[tuple[int, Any]]:
        return self._targets.items()

    # Work, for tests
    def publish(self, targets: tuple[int, ...], body: bytes, now_ms: int = 0) -> int:
        """A persistent message; returns its first sequence."""
        seq, loc = self.store.journal.put(targets, now_ms, None, 0, True, b"ex", b"key", b"props", body)
        for index, number in enumerate(targets):
            self.queues[number].put(seq + index, loc, len(body), 0, NEVER, FLAG_DURABLE)
        return seq

    def consume(self, number: int, count: int) -> list[int]:
        """Take and settle messages; returns their sequences. Their ends are recorded by the next turn."""
        queue = self.queues[number]
        settled: list[int] = []
        while len(settled) < count and (taken := queue.take(count - len(settled), 1 << 40)) is not None:
            settled += [seq for _, seq, *_ in taken]
            queue.settle_taken(taken)
        return settled

    def turn(self, now_ms: int = 0) -> None:
        """Record the ends, flush both logs, and let the disk do its work."""
        for number, queue in self.queues.items():
            gone = queue.drain_gone()
            if gone is not None:
                self.store.journal.settled(number, Reason.ACCEPTED, *gone, now_ms)
        self.store.flush(now_ms)
        self.store.checkpoint(self, now_ms)
        self.arena.turn += 1
        self.store.completed()
        self.keyed.release()

    def housekeeping(self, now_ms: int = 0, slices: int = 20, budget_bytes: int = 1 << 20) -> None:
        """Turns with nothing in them and maintenance between, as an idle broker has."""
        for number in range(slices):
            self.turn(now_ms + 1000 * number)
            self.store.journal.maintain(self, now_ms + 1000 * number, budget_bytes)

    def stop(self, now_ms: int = 0) -> None:
        """A clean stop."""
        self.turn(now_ms)
        self.store.close(now_ms)
        while not self.store.idle:
            self.store.completed()
        self.store.closed()

    def contents(self) -> dict[int, list[tuple[int, bytes]]]:
        """(sequence, body) of every entry of every queue, in order. Nothing is changed by it."""
        found: dict[int, list[tuple[int, bytes]]] = {}
        for number, queue in self.queues.items():
            rows = found[number] = []
            taken_all = []
            while (taken := queue.take(1000, 1 << 40)) is not None:
                taken_all.append(taken)
                for _, seq, loc, _, _, _ in taken:
                    rows.append((seq, self.arena.message(loc).body))
            for taken in taken_all:
                for index, *_ in taken:
                    queue.requeue(taken.lane, index, False)
        return found


class StoreRun:
    """One run of one seed."""

    def __init__(self, seed: int, steps: int = 120, say: Callable[[str], None] = lambda _: None) -> None:
        self.seed = seed
        self.steps = steps
        self.dice = Random(seed)
        self.say = say
        self.now_ms = 1_000_000
        self.model = Model()
        self.crashes = 0
        self.durable_seq = 0
        self.durable_change = 0
        lag = self.dice.choice((0, 0, 1, 3, 10))
        self.disk = SimDisk(self.dice, capacity=ROOM, lag=lag)
        self.about_streams = self.dice.random() < 0.4
        self.size = self.dice.choice((400, 2000, 4000) if self.about_streams else (40, 200, 900))
        self.keys = self.dice.choice((5, 20, len(KEYS)))
        self.skew = self.dice.choice((1, 3, 6))
        self.config = replace(
            CONFIG,
            ack_patience_ms=self.dice.choice((0, 5, 30)),
            checkpoint_bytes=self.dice.choice((0, 4 << 10, 32 << 10, 256 << 10)),
        )
        self.process = self._process()
        self.acquired: dict[int, list[tuple[int, int, int]]] = {number: [] for number in QUEUES}
        """(lane, index, sequence) of what was taken from each queue and not settled yet"""

    def _process(self) -> Process:
        apart = SimApart(self.disk, self.dice)
        return Process(self.disk, self.dice, self.now_ms, self.config, apart)

    def run(self) -> None:
        """Raises BrokenPromise, with the command that replays it, or whatever broke."""
        work: list[tuple[int, int, Callable[[], None]]] = [
            (30, 6, self.publish),
            (8, 2, self.publish_transient),
            (6, 4, self.transaction),
            (22, 6, self.consume),
            (16, 30, self.revise),
            (2, 5, self.pin),
            (2, 5, self.unpin),
            (2, 7, self.purge),
            (2, 3, self.look),
            (6, 2, self.requeue),
            (20, 20, self.turn),
            (14, 8, self.maintain),
            (1, 10, self.rest),
            (3, 1, self.change_wiring),
            (1, 1, self.rewrite_catalog),
            (1, 1, self.restart_cleanly),
            (3, 2, self.crash),
            (1, 0, self.squeeze),
            (1, 0, self.break_disk),
            (1, 1, self.drain),
        ]
        """How often each is done: in runs that are about queues, and in those about streams."""
        weights = [
            about_streams if self.about_streams else about_queues for about_queues, about_streams, _ in work
        ]
        actions = [action for *_, action in work]
        for step in range(self.steps):
            self.now_ms += self.dice.randrange(50)
            action = self.dice.choices(actions, weights)[0]
            self.say(f"{step:4} {action.__name__}")
            try:
                action()
            except DiskFull:
                self.say("     the disk is full")
                self.recount()
        self.crash()

    # Work --------------------------------------------------------------------------------

    def publish(self) -> None:
        for _ in range(self.dice.randint(1, 12)):
            self._put(self._targets(), self._body())

    def _targets(self) -> tuple[int, ...]:
        return tuple(self.dice.sample(QUEUES, self.dice.choice((1, 1, 1, 2, 3))))

    def _body(self) -> bytes:
        longest = (
            30_000 if self.dice.random() < 0.02 else 100_000 if self.dice.random() < 0.003 else self.size
        )
        return self.dice.randbytes(4) * self.dice.randint(0, longest // 4)

    def _put(self, targets: tuple[int, ...], body: bytes) -> int:
        journal = self.process.store.journal
        seq, loc = journal.put(targets, self.now_ms, None, 0, True, b"ex", b"key", b"props", body)
        for index, number in enumerate(targets):
            self.process.queues[number].put(seq + index, loc, len(body), 0, NEVER, FLAG_DURABLE)
            self.model.entries[seq + index] = Sent(number, body)
        self.model.records.append(seq + len(targets) - 1)
        return seq + len(targets) - 1

    def publish_transient(self) -> None:
        """Messages that are never in the journal; they share the sequence and the memory."""
        for _ in range(self.dice.randint(1, 10)):
            body = self._body()
            number = self.dice.choice(QUEUES)
            queue = self.process.queues[number]
            seq, loc = self.process.memory.put((number,), self.now_ms, None, 0, False, b"", b"", b"", body)
            queue.put(seq, loc, len(body), 0, NEVER, 0)

    def consume(self) -> None:
        number = self.dice.choice(QUEUES)
        queue = self.process.queues[number]
        taken = queue.take(self.dice.choice((1, 5, 40)), 1 << 40)
        if taken is not None:
            self.acquired[number] += [(taken.lane, index, seq) for index, seq, *_ in taken]
        held = self.acquired[number]
        for _ in range(self.dice.randint(0, len(held))):
            lane, index, seq = held.pop(self.dice.randrange(len(held)) if self.dice.random() < 0.3 else 0)
            queue.settle(lane, index)
            if seq in self.model.entries:
                self.model.entries[seq].ended = -1
        if self.dice.random() < 0.5:
            self._record_ends()

    def _record_ends(self) -> int:
        """What the broker does at the end of a turn: the ends of messages go into the journal."""
        last = 0
        for number, queue in self.process.queues.items():
            gone = queue.drain_gone()
            if gone is not None:
                last = self.process.store.journal.settled(number, Reason.ACCEPTED, *gone, self.now_ms)
                self.model.records.append(last)
                for sent in self.model.entries.values():
                    if sent.queue == number and sent.ended == -1:
                        sent.ended = last
        return last

    def requeue(self) -> None:
        number = self.dice.choice(QUEUES)
        counts = []
        for lane, index, seq in self.acquired[number]:
            self.process.queues[number].requeue(lane, index, True)
            if seq in self.model.entries:
                counts.append((seq, 1))
        self.acquired[number] = []
        if counts:
            self.model.records.append(self.process.store.journal.counted(number, counts, self.now_ms))

    def transaction(self) -> None:
        """Publishes and acks that must survive together."""
        self._record_ends()
        journal = self.process.store.journal
        bodies = [(self._targets(), self._body()) for _ in range(self.dice.randint(1, 8))]
        number = self.dice.choice(QUEUES)
        held = self.acquired[number][: self.dice.randint(0, 5)]
        keyed = [(self._key(), self._value()) for _ in range(self.dice.choice((0, 0, 1, 5)))]
        size = sum(padded(HEAD_BYTES + 4 * len(t) + 10 + len(b)) for t, b in bodies)
        size += sum(padded(HEAD_BYTES + 4 + len(k) + len(v or b"")) for k, v in keyed)
        journal.ensure(size + padded(HEAD_BYTES + 8 + 16 * (len(held) + 1)))
        first = self.process.arena.next_seq
        last = first
        for targets, body in bodies:
            last = self._put(targets, body)
        for key, value in keyed:
            last = self._revise(key, value)
        del self.acquired[number][: len(held)]
        for lane, index, seq in held:
            self.process.queues[number].settle(lane, index)
            if seq in self.model.entries:
                self.model.entries[seq].ended = -1
        last = max(last, self._record_ends())
        self.model.transactions.append((first, last))

    # Keyed work ---------------------------------------------------------------------------

    def _key(self) -> bytes:
        """Some keys are revised often, some hardly ever: these fill old segments with life."""
        return KEYS[int(self.keys * self.dice.random() ** self.skew)]

    def _value(self) -> bytes | None:
        return None if self.dice.random() < 0.25 else self._body()

    def revise(self) -> None:
        """Keys get new values, or are deleted; some of these messages go to a queue, too."""
        for _ in range(self.dice.randint(1, 10)):
            queue = self.dice.choice(QUEUES) if self.dice.random() < 0.15 else None
            self._revise(self._key(), self._value(), queue)

    def _revise(self, key: bytes, value: bytes | None, queue: int | None = None) -> int:
        seq, loc = self.process.keyed.put(key, value, self.now_ms, queue)
        if queue is not None:
            body = value or b""
            self.process.queues[queue].put(seq, loc, len(body), 0, NEVER, FLAG_DURABLE)
            self.model.entries[seq] = Sent(queue, body)
            seq += 1
        self.model.stream.versions.append((seq, key, value))
        self.model.records.append(seq)
        return seq

    def pin(self) -> None:
        """A snapshot of what is durable stays as it is."""
        name, at = f"pin/{self.dice.randrange(4)}", self.process.store.journal.durable_seq
        if name not in self.process.keyed.pins:
            seq = self.process.keyed.pin(name, at, self.now_ms)
            self.model.stream.pins.append((seq, name, at))
            self.model.records.append(seq)

    def unpin(self) -> None:
        if self.process.keyed.pins:
            name = self.dice.choice(sorted(self.process.keyed.pins))
            seq = self.process.keyed.pin(name, None, self.now_ms)
            self.model.stream.pins.append((seq, name, None))
            self.model.records.append(seq)

    def purge(self) -> None:
        """Tombstones have been seen by everybody who must."""
        upto = self.process.store.journal.durable_seq
        seq = self.process.keyed.purge(upto, self.now_ms)
        self.model.stream.purges.append((seq, upto))
        self.model.records.append(seq)

    def look(self) -> None:
        """The stream shows now what it should."""
        self._check_stream(self.process.store.journal.durable_seq, self.process.arena.next_seq)

    # Turns and upkeep ---------------------------------------------------------------------

    def turn(self) -> None:
        self._record_ends()
        self.process.store.flush(self.now_ms)
        self.checkpoint()
        self.process.arena.turn += 1
        self.completed()

    def checkpoint(self) -> None:
        """What the node does at the end of a turn, and sometimes the last thing that it does."""
        checkpointer = self.process.store.journal.checkpointer
        made = checkpointer.made
        self.process.store.checkpoint(self.process, self.now_ms)
        if checkpointer.made > made and self.disk.capacity == ROOM and self.dice.random() < 0.2:
            self.crash()

    def completed(self) -> None:
        self.process.store.completed()
        self.process.keyed.release()
        self.durable_seq = self.process.store.journal.durable_seq
        self.durable_change = self.process.store.catalog.durable_seq

    def maintain(self) -> None:
        if self.dice.random() < 0.7:
            self.completed()
        for _ in range(self.dice.choice((1, 1, 5))):
            self.now_ms += 10
            self.process.store.journal.maintain(
                self.process, self.now_ms, self.dice.choice((1, 8000, 1 << 20))
            )
        if not any(sent.ended == -1 for sent in self.model.entries.values()):
            self.checkpoint()

    def rest(self) -> None:
        """Nothing happens for a while: compaction comes to its end."""
        for _ in range(self.dice.randint(4, 12)):
            self.now_ms += 60
            self.turn()
            self.process.store.journal.maintain(self.process, self.now_ms, 1 << 20)

    def drain(self) -> None:
        """Everything is consumed: segments die."""
        for number, queue in self.process.queues.items():
            while (taken := queue.take(1000, 1 << 40)) is not None:
                self.acquired[number] += [(taken.lane, index, seq) for index, seq, *_ in taken]
            for lane, index, seq in self.acquired[number]:
                queue.settle(lane, index)
                if seq in self.model.entries:
                    self.model.entries[seq].ended = -1
            self.acquired[number] = []
        for _ in range(4):
            self.turn()
            self.maintain()

    def change_wiring(self) -> None:
        change = json.dumps({"n": len(self.model.changes), "pad": "x" * self.dice.randrange(3000)}).encode()
        seq = self.process.store.catalog.append(change, self.now_ms)
        self.model.changes.append(change)
        self.model.change_seqs.append(seq)

    def rewrite_catalog(self) -> None:
        self.process.store.catalog.rewrite(list(self.model.changes), self.now_ms)

    def squeeze(self) -> None:
        """The disk has little room for a while."""
        used = self.disk.capacity - self.disk.free_bytes()
        self.disk.capacity = used + self.dice.choice((0, 0, 50_000, 100_000))
        actions = [self.publish, self.turn, self.maintain, self.consume, self.revise, self.purge]
        for _ in range(self.dice.randint(1, 30)):
            try:
                self.dice.choice(actions)()
            except DiskFull:
                self.recount()
        self.disk.capacity = ROOM
        for _ in range(6):
            self.process.store.journal.maintain(self.process, self.now_ms, 1)
        if self.process.store.journal.full:
            raise BrokenPromise("there is room again, but the journal still says that the disk is full")

    def break_disk(self) -> None:
        """An operation of the disk fails. The journal stops for good, and the next process goes on."""
        self.disk.fail_next(self.dice.randrange(40))
        actions = [
            self.publish,
            self.turn,
            self.maintain,
            self.consume,
            self.revise,
            self.pin,
            self.unpin,
            self.change_wiring,
            self.rewrite_catalog,
        ]
        try:
            for _ in range(60):
                self.dice.choice(actions)()
        except DiskFailed:
            self.recount()
            self.say("     the disk failed")
        self._restart(self.disk.crash(power=self.dice.random() < 0.7))

    def recount(self) -> None:
        """The disk refused a record half-way through an action: drop what the model has not seen happen."""
        for sent in self.model.entries.values():
            if sent.ended == -1:
                # Its end happened in memory, and its record did not get in. A broker stops publishers
                # before it comes to this; the model must not demand either outcome.
                sent.ended = -2

    # Restarts ------------------------------------------------------------------------------

    def restart_cleanly(self) -> None:
        self._record_ends()
        store = self.process.store
        store.close(self.now_ms)
        while not store.idle:
            store.completed()
        store.closed(self.process if self.dice.random() < 0.7 else None)
        self.durable_seq, self.durable_change = store.journal.durable_seq, store.catalog.durable_seq
        self._restart(self.disk.crash(power=self.dice.random() < 0.5))
        if not self.process.report.found.startswith("clean("):
            raise BrokenPromise(f"the store was closed, but found {self.process.report.found}")

    def crash(self) -> None:
        self.crashes += 1
        power = self.dice.random() < 0.7
        if self.dice.random() < 0.3:
            self.process.store.flush(self.now_ms)
        self._restart(self.disk.crash(power=power))
        if self.dice.random() < 0.3:
            # The machine dies again before anything happened.
            self._restart(self.disk.crash(power=self.dice.random() < 0.7))

    def _restart(self, disk: SimDisk) -> None:
        self.disk = disk
        for name in disk.list(PREFIX):
            if self.dice.random() < 0.1:
                # A checkpoint that rots costs time, and nothing else.
                disk.flip(name, self.dice.randrange(disk.size(name)), self.dice.randrange(8))
        self.process = self._process()
        self.acquired = {number: [] for number in QUEUES}
        self._check()
        for finding in check_store(disk):
            raise BrokenPromise(f"the store check complains after recovery: {finding}")

    # The check -----------------------------------------------------------------------------

    def _check(self) -> None:
        upto = self.process.report.last_seq
        report = self.process.report
        self.say(f"     recovered up to {upto}, durable was {self.durable_seq}; {report.torn}")
        self.say(f"     checkpoint {report.checkpoint}, {report.dropped} dropped; {report.unusable}")
        promised = max((seq for seq in self.model.records if seq <= self.durable_seq), default=0)
        if upto < promised:
            raise BrokenPromise(f"recovered up to {upto}, but {promised} had been called durable")
        for first, last in self.model.transactions:
            if first <= upto < last:
                raise BrokenPromise(f"transaction {first}..{last} was cut in two at {upto}")
        if self.process.arena.next_seq <= upto:
            raise BrokenPromise(f"sequence {self.process.arena.next_seq} would be given again")
        expected = self.model.left(upto)
        unsure = {seq for seq, sent in self.model.entries.items() if sent.ended == -2}
        for number, found in self.process.contents().items():
            wanted = [(seq, body) for seq, body in sorted(expected[number].items()) if seq not in unsure]
            got = [row for row in found if row[0] not in unsure]
            if got != wanted:
                raise BrokenPromise(_difference(number, got, wanted))
        self._check_stream(upto, upto)
        self.model.stream.cut(upto)
        self._check_catalog()
        self.model.entries = {
            seq: Sent(number, body) for number, rows in self.process.contents().items() for seq, body in rows
        }
        self.model.records.clear()
        self.model.transactions.clear()
        self.durable_seq = self.process.store.journal.durable_seq

    def _check_stream(self, at: int, upto: int) -> None:
        """What the stream shows at this sequence and at its pins, if the journal ends at `upto`."""
        model, keyed = self.model.stream, self.process.keyed
        if keyed.pins != model.pinned(upto):
            raise BrokenPromise(f"the pins are {keyed.pins}, not {model.pinned(upto)}")
        for snapshot in {at, *keyed.pins.values()}:
            got, wanted = rows(keyed.stream, snapshot), model.visible(snapshot, upto)
            if got != wanted:
                lost, back = (
                    [row[:2] for row in wanted if row not in got],
                    [row[:2] for row in got if row not in wanted],
                )
                raise BrokenPromise(f"snapshot {snapshot} of the stream lost {lost[:5]} and has {back[:5]}")

    def _check_catalog(self) -> None:
        changes = self.process.changes
        if changes != self.model.changes[: len(changes)]:
            raise BrokenPromise("the catalog has changes that were never made, or lost one in the middle")
        promised = sum(seq <= self.durable_change for seq in self.model.change_seqs)
        if len(changes) < promised:
            raise BrokenPromise(f"{promised} changes of the wiring were durable, {len(changes)} came back")
        self.model.changes = changes
        self.model.change_seqs = [0] * len(changes)
        self.durable_change = 0


def _difference(number: int, got: list[tuple[int, bytes]], wanted: list[tuple[int, bytes]]) -> str:
    lost = sorted({seq for seq, _ in wanted} - {seq for seq, _ in got})
    back = sorted({seq for seq, _ in got} - {seq for seq, _ in wanted})
    if lost or back:
        return f"queue {number} lost {lost[:10]} and has {back[:10]} that were gone or never there"
    return f"queue {number} has other bodies or another order than it should"


def run_seed(seed: int, say: Callable[[str], None] = lambda _: None) -> StoreRun:
    """One run.

    Raises:
        BrokenPromise: with the command that replays it.
    """
    run = StoreRun(seed, say=say)
    try:
        run.run()
    except (AssertionError, TidemarkError, ValueError, KeyError, IndexError) as problem:
        raise BrokenPromise(
            f"{type(problem).__name__}: {problem}\nreplay: python -m tidemark.sim.store --seed {seed}"
        ) from problem
    return run


if __name__ == "__main__":
    raise SystemExit(command("Run the store over a disk that loses, tears and fills up.", run_seed))
