"""Streams of a whole broker on a lying disk: random work, crashes at random moments, and a model of plain lists.

    python -m tidemark.sim.streams --seed 17            replay one run and print what happened
    python -m tidemark.sim.streams --seeds 1000         look for a run that breaks a promise

The real node (broker, streams, store, compaction, checkpoints, paging) runs over `SimDisk`. Batches over several
streams and a queue, conditional puts, producers that send again, snapshots, pins, marks, followers that keep a
copy, retention, time that passes, and in half of the runs truncations and rows that are staged and then copied:
whatever is done is done to the model (`sim/stream_model.py`) too. After a crash the journal has kept everything up to
some sequence L; the model is cut there, and then every answer must be the model's. What must hold beside that:

* L is not below what was called durable, and lies inside no batch;
* a pin that was durable is there and shows what it showed, byte for byte, with the same hash;
* the accounts of the bank, spread over two streams, add up in every pair of snapshots;
* nothing ends but by the rules of its stream; a follower is told of every delete, or to start over;
* what is copied is all of the rows that were named, or nothing when one of them is not there.

Invariant: a run is a function of its seed.
"""

from __future__ import annotations

import argparse
import sys
from collections import deque
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field, replace
from random import Random
from typing import Any

from tidemark.broker.streams.commit import Batch, Committed, Copy, Move, Operation, Publish, Put
from tidemark.broker.streams.core import FLAGS, KEY, SEQUENCE, VALUE, gather
from tidemark.broker.streams.leases import GRACE_MS
from tidemark.broker.streams.policy import SLOTS, shard_slots
from tidemark.broker.streams.positions import FromMark, Position
from tidemark.broker.streams.reader import Reader
from tidemark.broker.streams.session import StreamSession
from tidemark.broker.streams.snapshots import Marker, Snapshot
from tidemark.broker.streams.stream import Stream
from tidemark.config import load
from tidemark.errors import (
    Conflict,
    DiskFailed,
    DiskFull,
    HistoryGone,
    NotFound,
    PinExpired,
    PreconditionFailed,
    StreamReset,
    TidemarkError,
)
from tidemark.frontend.services import FrontEnd, Login
from tidemark.model.rows import ANY, Row, RowBatch
from tidemark.node import Node
from tidemark.sim.apart import SimApart
from tidemark.sim.disk import SimDisk
from tidemark.sim.store import CONFIG, ROOM, BrokenPromise
from tidemark.sim.stream_model import FOREVER, Register, Seen, Step, StreamModel, Version, digest
from tidemark.store.check import check_store
from tidemark.store.checkpoint import PREFIX
from tidemark.store.config import StoreConfig
from tidemark.wire.amqp091.properties import Properties, encode_properties

SETTINGS = load(
    {"broker.scrypt_log2_n": "10", "limits.disk_free_bytes_min": "0", "broker.snapshot_idle_s": "30"}
)
IDLE_MS = 1000 * SETTINGS.broker.snapshot_idle_s
QUEUE = "queue"
BANK = ("bank a", "bank b")
ACCOUNTS = tuple((stream, b"account %d" % number) for stream in BANK for number in range(4))
DEPOSIT = 1000
RULES_MS = 3000
"""After so long the rules of a stream are asked in any case."""
PRODUCERS = ("first", "second")
BY_HEADER = "by header"
STAGING = "staging"

KINDS: dict[str, tuple[dict[str, object], ...]] = {
    "plain": ({"x-stream-tombstone-lease": 2000}, {"x-stream-tombstone-lease": 20_000}),
    "past": (
        {"x-stream-history": 1000, "x-stream-tombstone-lease": 3000},
        {"x-stream-history": 10_000, "x-stream-tombstone-lease": 1000},
    ),
    "aged": ({"x-max-age": "3s"}, {"x-max-age": "20s", "x-stream-history": 5000}),
    "small": (
        {"x-max-length-bytes": 8000},
        {"x-max-length-bytes": 30_000, "x-stream-tombstone-lease": 2000},
    ),
    "bounded": ({"x-stream-pin-bytes-max": 4000}, {"x-stream-pin-bytes-max": 30_000}),
    "sharded": ({"x-stream-shards": 3, "x-stream-tombstone-lease": 5000},),
}
"""Streams beside those that every run has, with the arguments that they may have."""


WORK = {
    "put": 22,
    "transaction": 10,
    "transfer": 8,
    "send_again": 4,
    "consume": 3,
    "open_snapshot": 4,
    "close_snapshot": 2,
    "read_snapshot": 5,
    "pin": 5,
    "release": 3,
    "look_at_pins": 4,
    "look_back": 5,
    "look_up": 3,
    "follow": 14,
    "register": 4,
    "forget_consumer": 2,
    "purge": 2,
    "grow": 1,
    "make_anew": 1,
    "turn": 16,
    "time_passes": 9,
    "maintain": 10,
    "rest": 3,
    "look_at_all": 3,
    "crash": 4,
    "restart_cleanly": 1,
    "squeeze": 1,
    "break_disk": 1,
}
"""The methods of a run, and how often each is called."""
STAGED_WORK = WORK | {"truncate": 4, "stage": 6, "copy_staged": 8}
"""The same of runs that stage rows: those with odd seeds."""


class Life:
    """One process: the node, and what stands around it. Fits `node.Outside`."""

    def __init__(self, disk: SimDisk, dice: Random, now_ms: int, store: StoreConfig) -> None:
        self.may_fail = False
        self.node = Node(replace(SETTINGS, store=store), disk, self, dice.randbytes, SimApart(disk, dice))
        self.report = self.node.start(now_ms)
        self.broker = self.node.broker
        self.arena = self.node.arena
        self.session = StreamSession(self.broker.open_session("/", "guest", None, "sim"))

    def due(self) -> None:
        pass

    def replaced(self, old: FrontEnd, new: FrontEnd) -> None:
        pass

    def login(self, front_end: FrontEnd, login: Login) -> None:
        pass

    def note(self, level: str, event: str, **facts: object) -> None:
        if level == "error" and not self.may_fail:
            cause = facts.get("error")
            raise BrokenPromise(f"{event}: {facts}") from (cause if isinstance(cause, Exception) else None)

    def stream(self, name: str) -> Stream:
        found: Any = self.broker.vhosts["/"].queues[name]
        stream: Stream = found
        return stream

    @property
    def durable_seq(self) -> int:
        return self.node.journal_durable()


@dataclass(slots=True)
class Sent:
    """A message of the queue."""

    seq: int
    body: bytes
    taken: Register[bool] = field(default_factory=lambda: Register(False, [(0, 0, False)]))
    """Whether it was consumed."""


@dataclass(slots=True)
class Numbered:
    """A batch of a producer, to be sent again."""

    number: int
    parts: list[Part]


@dataclass(slots=True)
class Part:
    """One operation of a batch: rows to a stream, a message to the queue, to a stream by header, or a mark."""

    kind: str
    name: str
    rows: list[Row] = field(default_factory=list)
    seq: int = 0


@dataclass(slots=True, eq=False)
class Opened:
    """A snapshot that a client has open, and what it must show."""

    snapshot: Snapshot
    rows: list[Seen]
    shards: int
    used_ms: int


@dataclass(slots=True)
class Follower:
    """A consumer that keeps a copy of a stream by what it is given."""

    name: str
    consumer: str
    seq: int = 0
    """Up to where it has read, in `history`."""
    history: bytes = b""
    snapshot_end: int = 0
    copy: dict[bytes | int, Seen] = field(default_factory=dict)
    reader: Reader | None = None
    begun_at: int = 0
    """Where what is in `given` began."""
    given: list[Seen] = field(default_factory=list)
    """Since the last marker."""


class StreamRun:
    """One run of one seed."""

    def __init__(self, seed: int, steps: int = 90, say: Callable[[str], None] = lambda _: None) -> None:
        self.seed = seed
        self.steps = steps
        self.dice = dice = Random(seed)
        self.say = say
        self.now_ms = 1_000_000_000
        self.disk = SimDisk(dice, capacity=ROOM, lag=dice.choice((0, 0, 1, 3, 10)))
        self.config = replace(
            CONFIG,
            ack_patience_ms=dice.choice((0, 5)),
            checkpoint_bytes=dice.choice((0, 4 << 10, 4 << 10, 32 << 10, 256 << 10)),
            cache_bytes=dice.choice((12 << 10, 24 << 10, 1 << 20)),
        )
        self.busy = dice.random() < 0.3
        """Much is written: segments fill and are compacted."""
        self.size = dice.choice((1500, 3000) if self.busy else (20, 200, 1500))
        self.keys = dice.choice((3, 10, 40))
        self.skew = dice.choice((1, 3))
        self.work = STAGED_WORK if seed % 2 else WORK
        self.staged: deque[tuple[int, int]] = deque(maxlen=6)
        """(first, last) sequence of puts to the staging stream."""
        self.counts: dict[str, int] = {}
        """How often what happened, for the test of the runs themselves."""
        self.streams: dict[str, StreamModel] = {}
        self.queue: dict[int, Sent] = {}
        self.producers: dict[str, Register[int]] = {name: Register(0, [(0, 0, 0)]) for name in PRODUCERS}
        self.batches: dict[str, deque[Numbered]] = {name: deque(maxlen=4) for name in PRODUCERS}
        self.written: list[tuple[int, int]] = []
        """(first, last) sequence of every batch."""
        self.receipts: list[int] = []
        """What clients wait for, ascending."""
        self.promised = 0
        """What a client was told is safe."""
        self.clock: list[tuple[int, int]] = []
        """(moment, last sequence that had been given then)"""
        self.opened: list[Opened] = []
        self.followers: list[Follower] = []
        self.life = self._start()
        self._declare()

    # The run ---------------------------------------------------------------------------------

    def run(self) -> None:
        """Raises BrokenPromise or whatever broke."""
        for _ in range(self.steps):
            self.step(self.dice.choices(list(self.work), list(self.work.values()))[0])
        self.crash()
        self.finish()

    def step(self, name: str) -> None:
        """One of the kinds of work, a moment after the one before."""
        self.now_ms += self.dice.choice((0, 1, 20, 200))
        self.say(f"{name} at {self.life.arena.next_seq}")
        self._do(getattr(self, name))

    def _do(self, action: Callable[[], None]) -> None:
        self.life.node.at(self.now_ms)
        self._look_at_clock()
        try:
            action()
        except DiskFull:
            self.say("     the disk is full")
            self.count("full")
        self._look_at_clock()

    def _look_at_clock(self) -> None:
        self.clock.append((self.now_ms, self.life.arena.next_seq - 1))

    def count(self, what: str, number: int = 1) -> None:
        self.counts[what] = self.counts.get(what, 0) + number

    # Streams -----------------------------------------------------------------------------------

    def _declare(self) -> None:
        names = [*BANK, BY_HEADER, *self.dice.sample(sorted(KINDS), self.dice.choice((1, 2, 3)))]
        for name in names:
            self._declare_stream(name)
        if self.work is STAGED_WORK:
            self._declare_stream(STAGING)
        session = self.life.session.session
        session.declare_queue(QUEUE, durable=True)
        session.declare_exchange("both", "fanout", durable=True)
        session.bind_queue(QUEUE, "both", "")
        session.bind_queue(BY_HEADER, "both", "")
        rows: dict[str, list[Row]] = {name: [] for name in BANK}
        for name, account in ACCOUNTS:
            rows[name].append(Row(account, self._balance(DEPOSIT)))
        self._commit([Part("put", name, some) for name, some in rows.items()])
        self._settle()
        for name in names:
            if self.dice.random() < (0.3 if name in BANK else 0.9):
                self.followers.append(Follower(name, f"follower of {name}"))

    def _declare_stream(self, name: str) -> None:
        arguments = dict(self.dice.choice(KINDS.get(name, ({},))))
        arguments["x-stream-key"] = {BY_HEADER: "header:k", STAGING: "log"}.get(name, "none")
        if name in BANK:
            arguments["x-stream-tombstone-lease"] = 10_000
        self.life.session.declare(name, arguments)
        shards = arguments.get("x-stream-shards", 1)
        assert isinstance(shards, int)
        self.streams[name] = StreamModel(name, arguments, shards)

    def _name(self) -> str:
        return self.dice.choice(sorted(self.streams))

    def _other_name(self) -> str:
        """A stream that is not about the bank."""
        return self.dice.choice([name for name in sorted(self.streams) if name not in BANK])

    # Writing -----------------------------------------------------------------------------------

    def _balance(self, amount: int) -> bytes:
        return b"%d " % amount + bytes(self.dice.randrange(self.size))

    def _value(self) -> bytes:
        longest = 12_000 if self.dice.random() < 0.02 else self.size
        return self.dice.randbytes(3) * (self.dice.randrange(longest) // 3)

    def _key(self) -> bytes:
        return b"key %d" % int(self.keys * self.dice.random() ** self.skew)

    def _row(self, conditions: bool, model: StreamModel) -> Row:
        dice = self.dice
        key = None if dice.random() < 0.1 else self._key()
        deletes = key is not None and dice.random() < 0.2
        expected = ANY
        if conditions and dice.random() < 0.6:
            found = model.current(key) if key is not None else None
            right = found.seq if found is not None else 0
            expected = dice.choice((right, right, right, 0, right + 1, max(0, right - 1)))
        return Row(key, b"" if deletes else self._value(), tombstone=deletes, expected=expected)

    def _rows(self, name: str) -> list[Row]:
        conditions = self.dice.random() < 0.2
        return [self._row(conditions, self.streams[name]) for _ in range(self._many())]

    def _many(self) -> int:
        return self.dice.choice((3, 8, 20) if self.busy else (1, 1, 3, 8))

    def put(self) -> None:
        name = self._other_name()
        self._commit_some([Part("put", name, self._rows(name))])

    def transaction(self) -> None:
        """Rows to several streams, messages to the queue, marks: together or not at all."""
        parts: list[Part] = []
        for _ in range(self.dice.randint(1, 4)):
            kind = self.dice.choice(("put", "put", "queue", "both", "mark"))
            if kind == "put":
                name = self._other_name()
                parts.append(Part("put", name, self._rows(name)))
            elif kind == "mark":
                name = self._name()
                seq = self.dice.randint(0, self.life.stream(name).caught_up())
                parts.append(Part("mark", name, seq=seq))
            else:
                model = self.streams[BY_HEADER]
                row = self._row(False, model)
                parts.append(Part(kind, BY_HEADER, [row]))
        self._commit_some(parts)

    def transfer(self) -> None:
        """Money goes from one account to another, perhaps in another stream, once or several times."""
        for _ in range(self.dice.choice((1, 1, 3))):
            giver, taker = self.dice.sample(ACCOUNTS, 2)
            self._transfer(giver, taker, self.dice.randint(1, 50))
            if self.dice.random() < 0.3:
                self.maintain()
        if self.dice.random() < 0.5:
            self._completed()
            self.look_at_all()

    def _transfer(self, giver: tuple[str, bytes], taker: tuple[str, bytes], amount: int) -> None:
        parts = []
        for (name, account), change in ((giver, -amount), (taker, amount)):
            found = self.streams[name].current(account)
            before = int(found.value.split()[0]) if found is not None and found.value is not None else 0
            row = Row(account, self._balance(before + change))
            if before + change == 0:
                row = Row(account, b"", tombstone=True)
            parts.append(Part("put", name, [row]))
        self._commit_some(parts)

    def _commit_some(self, parts: list[Part]) -> None:
        if self.dice.random() < 0.3:
            producer = self.dice.choice(PRODUCERS)
            number = self.producers[producer].now + self.dice.choice((1, 1, 5))
            self._commit(parts, producer, number)
        else:
            self._commit(parts)

    def send_again(self) -> None:
        """A producer is not sure whether a batch arrived."""
        producer = self.dice.choice(PRODUCERS)
        if self.batches[producer]:
            batch = self.dice.choice(self.batches[producer])
            # Where a mark was to go may have been taken back by a crash.
            parts = [part for part in batch.parts if part.kind != "mark"]
            for part in parts:
                part.rows = [replace(row, expected=ANY) for row in part.rows]
            known = self.producers[producer].now >= batch.number
            if not parts or (not known and any(part.name in BANK for part in parts)):
                return  # nothing is left of it, or the balances have changed since
            self.count("sent again", known)
            self._commit(parts, producer, batch.number)

    def _operation(self, part: Part) -> Operation:
        match part.kind:
            case "put":
                return Put(part.name, RowBatch.build(part.rows))
            case "mark":
                return Move(part.name, "moved by a batch", part.seq)
        [row] = part.rows
        headers: dict[str, Any] = {} if row.key is None else {"k": row.key.decode()}
        if row.tombstone:
            headers["x-tombstone"] = True
        properties = encode_properties(Properties(headers=headers))
        if part.kind == "queue":
            return Publish("", QUEUE, properties, row.value)
        return Publish("both", "", properties, row.value)

    def _commit(
        self,
        parts: list[Part],
        producer: str | None = None,
        number: int | None = None,
        operations: list[Operation] | None = None,
    ) -> None:
        """Commit what the parts say; `operations` do the same in another way."""
        if any(part.kind == "both" for part in parts):
            # A batch that publishes to a stream cannot expect anything of its keys.
            for part in parts:
                if part.name == BY_HEADER:
                    part.rows = [replace(row, expected=ANY) for row in part.rows]
        life, low = self.life, self.life.arena.next_seq
        duplicate = producer is not None and number is not None and number <= self.producers[producer].now
        conflict = not duplicate and any(
            self._conflicts(name, parts) for name in {part.name for part in parts if part.kind == "put"}
        )
        if operations is None:
            operations = [self._operation(part) for part in parts]
        try:
            committed = life.session.commit(Batch(operations, producer, number))
        except (Conflict, DiskFull) as error:
            if life.arena.next_seq != low:
                raise BrokenPromise(f"a batch was refused ({error}), but something was written") from error
            if isinstance(error, DiskFull):
                raise
            if not conflict:
                raise BrokenPromise(f"a conflict where there is none: {error}") from error
            self.count("conflicts")
            return
        if conflict:
            raise BrokenPromise("a batch was stored though a key was not where it was expected")
        if committed.duplicate != duplicate:
            raise BrokenPromise(f"number {number} of {producer}: duplicate is {committed.duplicate}")
        self._expect(committed.safe_at)
        if duplicate:
            if life.arena.next_seq != low:
                raise BrokenPromise(f"batch {number} of {producer} was stored twice")
            return
        self._note(parts, committed, low)
        if producer is not None and number is not None:
            self.producers[producer].set(number, low, committed.safe_at)
            self.batches[producer].append(Numbered(number, parts))

    def _conflicts(self, name: str, parts: list[Part]) -> bool:
        puts = [part.rows for part in parts if part.kind == "put" and part.name == name]
        return any(row.expected != ANY for rows in puts for row in rows) and (
            self.streams[name].conflict([row for rows in puts for row in rows]) is not None
        )

    def _note(self, parts: list[Part], committed: Committed, low: int) -> None:
        """The batch happened: so it does in the model."""
        seq, first, last = low, 0, 0
        for part in parts:
            model = self.streams.get(part.name)
            assert model is not None
            for row in part.rows:
                value = None if row.tombstone and part.kind != "queue" else row.value
                if part.kind == "put":
                    first, last = first or seq, seq
                if part.kind == "both":
                    # One record, two sequences. Which of them is the stream's is not for us to say.
                    in_stream = self._place_in(BY_HEADER, seq)
                    in_queue = seq + 1 if in_stream == seq else seq
                    self.queue[in_queue] = Sent(in_queue, row.value)
                    if row.key is None:
                        value = row.value
                    model.versions.append(Version(in_stream, row.key, value, self.now_ms))
                    seq += 1
                elif part.kind == "queue":
                    self.queue[seq] = Sent(seq, row.value)
                else:
                    model.versions.append(Version(seq, row.key, value, self.now_ms))
                seq += 1
        if (committed.first_seq, committed.last_seq) != (first, last):
            raise BrokenPromise(f"rows {first} to {last} have a receipt for {committed}")
        for part in parts:
            if part.kind == "mark":
                self._mark_moved(part.name, "moved by a batch", part.seq, low, committed.safe_at)
        self.written.append((low, committed.safe_at))

    def _place_in(self, name: str, seq: int) -> int:
        return seq if self.life.stream(name).holds(seq) else seq + 1

    def _expect(self, safe_at: int) -> None:
        """A client waits until this is durable."""
        self.receipts.append(safe_at)
        self._told()

    def _told(self) -> None:
        durable = self.life.durable_seq
        self.promised = max([self.promised, *(seq for seq in self.receipts if seq <= durable)])
        self.receipts = [seq for seq in self.receipts if seq > durable]

    def consume(self) -> None:
        """Some messages of the queue are taken and acknowledged."""
        queue: Any = self.life.broker.vhosts["/"].queues[QUEUE]
        taken = queue.take(self.dice.choice((1, 3, 20)), 1 << 40)
        if taken is None:
            return
        for _, seq, loc, *_ in taken:
            sent = self.queue.get(seq)
            if sent is None or sent.taken.now:
                raise BrokenPromise(f"the queue gives {seq}, which nobody sent or which was consumed")
            if self.life.arena.message(loc).body != sent.body:
                raise BrokenPromise(f"message {seq} of the queue has another body")
            sent.taken.set(True, self.life.arena.next_seq, FOREVER)
        queue.settle_taken(taken)
        self._turn()
        for _, seq, *_ in taken:
            self.queue[seq].taken.written_by(self.life.node.journal.last_seq)

    # Staged rows -------------------------------------------------------------------------------------

    def stage(self) -> None:
        """Rows for later. Nobody but their own copy needs them."""
        low = self.life.arena.next_seq
        self._commit(
            [Part("put", STAGING, [self._row(False, self.streams[STAGING]) for _ in range(self._many())])]
        )
        self.staged.append((low, self.streams[STAGING].versions[-1].seq))

    def copy_staged(self) -> None:
        """Some of what was staged goes into a stream, with a row of its own and perhaps a number."""
        if not self.staged:
            return
        dice, session, staging = self.dice, self.life.session, self.streams[STAGING]
        ranges = [self._a_range() for _ in range(dice.choice((1, 1, 2, 3)))]
        shown = {row.seq: row for row in staging.visible(self.life.stream(STAGING).caught_up())}
        wanted = [seq for first, last in ranges for seq in range(first, last + 1)]
        rows = [shown[seq] for seq in wanted if seq in shown]
        into = self._other_name()
        parts = [
            Part("put", into, [Row(key, value or b"", tombstone=value is None) for _, key, value in rows])
        ]
        parts.append(Part("put", into, [self._row(False, self.streams[into])]))
        operations: list[Operation] = [Copy(STAGING, ranges, into), self._operation(parts[1])]
        producer = dice.choice(PRODUCERS) if dice.random() < 0.5 else None
        number = None if producer is None else self.producers[producer].now + 1
        copier = None
        try:
            copier = session.copier(Batch(operations, producer, number))
            goes_on = True
            while goes_on:
                goes_on = copier.step()
                if dice.random() < 0.3:
                    self._meanwhile()
            operations = list(copier.batch.operations)
            if len(rows) < len(wanted):
                raise BrokenPromise(
                    f"{ranges} were copied though only {len(rows)} of {len(wanted)} rows are there"
                )
            self._commit(parts, producer, number, operations)
            self.count("copies")
        except PreconditionFailed as error:
            if len(rows) == len(wanted):
                raise BrokenPromise(f"{ranges} are all there, but are not copied: {error}") from error
            self.count("copies refused")
        except PinExpired as error:
            if "deleted" not in error.problem:
                raise
        finally:
            if copier is not None:
                copier.close()

    def _a_range(self) -> tuple[int, int]:
        """One that was staged, or a part of it, or somewhat more."""
        first, last = self.dice.choice(self.staged)
        return self.dice.choice(
            (
                (first, last),
                (first, last),
                (first, last),
                (last, last),
                (first, last + 1),
                (max(1, first - 1), last),
            )
        )

    def _meanwhile(self) -> None:
        """What may happen between two slices of a copy."""
        match self.dice.randrange(3):
            case 0:
                self._turn()
            case 1:
                self.life.node.maintain(self.now_ms, 1 << 20)
            case 2:
                self._truncate(STAGING)

    def truncate(self) -> None:
        self._truncate(self._other_name())

    def _truncate(self, name: str) -> None:
        """Everything up to some sequence ends, in one step or several; sometimes not all of them are made."""
        dice, arena, model = self.dice, self.life.arena, self.streams[name]
        newest = arena.next_seq - 1
        upto = dice.choice((dice.randint(0, newest), dice.randint(max(0, newest - 20), newest), newest + 5))
        try:
            work = self.life.session.truncation(name, upto)
        except PreconditionFailed as error:
            if upto <= newest:
                raise BrokenPromise(f"{name} is not truncated up to {upto} of {newest}: {error}") from error
            return
        if upto > newest:
            raise BrokenPromise(f"{name} was truncated up to {upto}, but the newest sequence is {newest}")
        look, goes_on = dice.choice((2, 10, 1 << 20)), True
        while goes_on and dice.random() < 0.9:
            by, ended, after = arena.next_seq, work.ended, work.position
            goes_on = work.step(self.now_ms, look)
            rows = [row for row in model.visible(FOREVER) if row.seq <= work.position]
            if work.ended - ended != len(rows):
                raise BrokenPromise(
                    f"{work.ended - ended} rows of {name} ended, not {len(rows)} up to {work.position}"
                )
            if (arena.next_seq > by) != bool(rows):
                raise BrokenPromise(
                    f"{len(rows)} rows of {name} behind {after} ended in {arena.next_seq - by} records"
                )
            if rows:
                deletes = not model.is_log and any(row.value is None for row in rows)
                model.steps.append(Step(by, work.position + 1, max(model.purged, deletes and work.position)))
                self.count("truncated", len(rows))
        if work.ended:
            self._expect(work.safe_at)

    # Snapshots and pins --------------------------------------------------------------------------

    def _read(self, snapshot: Snapshot, after: int | None = None, **how: Any) -> list[Seen]:
        """All rows of a range, in bites."""
        found: list[Seen] = []
        count = self.dice.choice((1, 4, 1000))
        while (
            taken := snapshot.take(count, self.dice.choice((1, 3000, 1 << 30)), after=after, **how)
        ) is not None:
            found += rows_of(snapshot.stream, taken)
            snapshot.feed(taken)
            after = snapshot.position
        return found

    def _check_rows(self, what: str, got: list[Seen], wanted: list[Seen]) -> None:
        if got == wanted:
            return
        lost = [row[:2] for row in wanted if row not in got]
        more = [row[:2] for row in got if row not in wanted]
        raise BrokenPromise(f"{what} lacks {lost[:5]} and has {more[:5]}")

    def _check_boundary(self, name: str, seq: int) -> None:
        """No batch is cut in two by a snapshot of this stream."""
        model = self.streams[name]
        for first, last in self.written:
            if first <= seq < last:
                inside = [row.seq for row in model.versions if first <= row.seq <= last]
                if inside and inside[0] <= seq < inside[-1]:
                    raise BrokenPromise(
                        f"the snapshot of {name} at {seq} is inside the batch {first} to {last}"
                    )

    def open_snapshot(self) -> None:
        if len(self.opened) < 6:
            name = self._name()
            snapshot = self.life.session.snapshot(name)
            self._check_boundary(name, snapshot.seq)
            model = self.streams[name]
            self.opened.append(Opened(snapshot, model.visible(snapshot.seq), model.shards, self.now_ms))
            self.count("snapshots")

    def close_snapshot(self) -> None:
        if self.opened:
            self.opened.pop(self.dice.randrange(len(self.opened))).snapshot.close()

    def read_snapshot(self) -> None:
        """A range of an open snapshot, perhaps of some shards, is what it was when it was opened."""
        if not self.opened:
            return
        opened = self.dice.choice(self.opened)
        snapshot = opened.snapshot
        model = self.streams[snapshot.stream.name]
        after = self.dice.randint(0, snapshot.seq)
        until = self.dice.randint(after, snapshot.seq)
        shard = self.dice.randrange(opened.shards) if self.dice.random() < 0.5 else None
        if self.dice.random() < 0.4:
            after, until, shard = 0, snapshot.seq, None
        low, end = (0, SLOTS) if shard is None else shard_slots(shard, opened.shards)
        wanted = model.visible(snapshot.seq, after, until, (low, end))
        idle = opened.used_ms <= self.now_ms - IDLE_MS
        try:
            snapshot.begin_again()
            got = self._read(snapshot, after, until=until, shards=shard)
        except PinExpired as error:
            self.opened.remove(opened)
            self.count("expired")
            if not (idle or self._is_bounded(model) or "deleted" in error.problem):
                raise BrokenPromise(f"a snapshot of {model.name} expired: {error.problem}") from error
            return
        opened.used_ms = self.now_ms
        self._check_rows(f"({after}, {until}] of the snapshot of {model.name} at {snapshot.seq}", got, wanted)
        if shard is None and (after, until) == (0, snapshot.seq) and got != opened.rows:
            raise BrokenPromise(f"the snapshot of {model.name} at {snapshot.seq} has changed")
        marker = snapshot.marker()
        values = sum(row.value is not None for row in got)
        if (marker.count, marker.tombstones, marker.digest) != (values, len(got) - values, digest(got)):
            raise BrokenPromise(f"a marker of {model.name} at {snapshot.seq} does not say what was read")
        tally = snapshot.tally(after=after, until=until, shards=shard)
        if tally != (values, len(got) - values, sum(len(row.value or b"") for row in got)):
            raise BrokenPromise(f"a tally of {model.name} at {snapshot.seq} is {tally}")

    def _is_bounded(self, model: StreamModel) -> bool:
        return "x-stream-pin-bytes-max" in model.arguments

    def pin(self) -> None:
        name, pin = self._name(), f"pin {self.dice.randrange(2)}"
        model, life = self.streams[name], self.life
        register = model.pins.get(pin)
        known = register.now if register is not None else None
        lease_ms = self.dice.choice((2000, 30_000, 1_000_000))
        snapshot, safe_at = life.session.pin(name, pin, lease_ms)
        snapshot.close()
        if known is not None and snapshot.seq != known:
            raise BrokenPromise(f"{pin} of {name} was at {known} and is now at {snapshot.seq}")
        if register is None:
            register = model.pins[pin] = Register(None, [(0, 0, None)])
        register.set(snapshot.seq, safe_at)
        model.until_ms[pin] = self.now_ms + lease_ms
        self._expect(safe_at)
        self.count("pins")

    def release(self) -> None:
        name = self._name()
        model = self.streams[name]
        pins = [pin for pin, register in model.pins.items() if register.now is not None]
        if pins:
            pin = self.dice.choice(pins)
            safe_at = self.life.session.release(name, pin)
            model.pins[pin].set(None, safe_at)
            self._expect(safe_at)

    def look_at_pins(self) -> None:
        for model in self.streams.values():
            self._check_pins(model)

    def _check_pins(self, model: StreamModel) -> None:
        for pin, register in model.pins.items():
            try:
                with self.life.session.pinned(model.name, pin) as snapshot:
                    got = self._read(snapshot)
                    marker = snapshot.marker()
            except (NotFound, PinExpired) as error:
                if register.now is not None:
                    raise BrokenPromise(f"{pin} of {model.name} is gone: {error}") from error
                continue
            if snapshot.seq != register.now:
                raise BrokenPromise(f"{pin} of {model.name} is at {snapshot.seq}, not {register.now}")
            wanted = model.visible(snapshot.seq)
            self._check_rows(f"{pin} of {model.name} at {snapshot.seq}", got, wanted)
            if marker.digest != digest(wanted):
                raise BrokenPromise(f"{pin} of {model.name} has another hash")
            self.count("pins read")

    def look_back(self) -> None:
        """A snapshot of the past, or the difference of two points."""
        name = self._name()
        model, stream = self.streams[name], self.life.stream(name)
        boundary = stream.caught_up()
        at = self.dice.randint(max(0, boundary - 60), boundary)
        after = self.dice.choice((0, self.dice.randint(0, at)))
        when: int | str = at
        if self.dice.random() < 0.3:
            ms = self.now_ms - self.dice.choice((0, 200, 1000, 5000))
            when, after = f"time:{ms}", 0
            at = max((row.seq for row in model.versions if row.ms <= ms and row.seq <= boundary), default=0)
        else:
            at = self._whole_at(name, at)
            after = min(after, at)
        kept_ms = model.arguments.get("x-stream-history", 0)
        assert isinstance(kept_ms, int)
        before = max((seq for ms, seq in self.clock if ms <= self.now_ms - kept_ms), default=0)
        must = at >= model.last_seq or (kept_ms > 0 and at >= before)
        try:
            snapshot = self.life.session.diff(name, after, when)
        except HistoryGone as error:
            if must:
                raise BrokenPromise(f"{name} cannot show {when} of {boundary}: {error}") from error
            return
        except StreamReset as error:
            if not 0 < after < model.purged:
                raise BrokenPromise(f"the difference of {after} and {at} of {name}: {error}") from error
            return
        with snapshot:
            if isinstance(when, str):
                if snapshot.seq < at or any(at < row.seq <= snapshot.seq for row in model.versions):
                    raise BrokenPromise(f"{name} at {when} is {snapshot.seq}, not {at}")
                at = snapshot.seq
            got = self._read(snapshot)
        self._check_rows(f"{name} at {when} behind {after}", got, model.visible(at, after))
        self.count("looked back", at < model.last_seq)

    def _whole_at(self, name: str, at: int) -> int:
        """Where a snapshot at this sequence really is: before the batch, if the stream has rows of it behind `at`."""
        for first, last in self.written:
            if first <= at < last:
                later = [row.seq for row in self.streams[name].versions if at < row.seq <= last]
                if any(self.life.stream(name).holds(seq) for seq in later):
                    return first - 1
        return at

    def look_up(self) -> None:
        """Single keys."""
        name = self._name()
        model = self.streams[name]
        seen = (
            {}
            if model.is_log
            else {row.key: row for row in model.visible(self.life.stream(name).caught_up())}
        )
        for _ in range(3):
            key = self._key()
            row, wanted = self.life.session.get(name, key), seen.get(key)
            got = None if row is None else Seen(row.seq, row.key, row.value)
            if got != (wanted if wanted is not None and wanted.value is not None else None):
                raise BrokenPromise(f"{key!r} of {name} is {got}, not {wanted}")

    # Followers and marks -----------------------------------------------------------------------------

    def follow(self) -> None:
        """A consumer goes on reading, and moves its mark."""
        if not self.followers:
            return
        follower = self.dice.choice(self.followers)
        model, session = self.streams[follower.name], self.life.session
        try:
            if follower.reader is None:
                self._resume(follower, model)
            for _ in range(self.dice.choice((1, 3, 30))):
                if not self._step(follower, model):
                    break
        except StreamReset as error:
            if not 0 < follower.seq < model.purged and not 0 < error.seq < model.purged:
                raise BrokenPromise(f"{follower.name} at {follower.seq}: {error}") from error
            self._start_over(follower, model)
        except PinExpired as error:
            if not (self._is_bounded(model) or "nobody" in error.problem):
                raise BrokenPromise(f"a reader of {follower.name}: {error.problem}") from error
            assert follower.reader is not None
            follower.given, follower.begun_at = [], follower.reader.after
            self.count("expired")
            return
        if self.dice.random() < 0.5 and follower.seq:
            wait, low = self.dice.random() < 0.5, self.life.arena.next_seq
            safe_at = session.move(
                follower.name,
                follower.consumer,
                follower.history,
                follower.seq,
                snapshot_end=follower.snapshot_end,
                wait=wait,
            )
            self._mark_moved(
                follower.name, follower.consumer, follower.seq, low, safe_at if wait else FOREVER
            )
            if wait:
                self._expect(safe_at)
        if follower.reader is not None and self.dice.random() < 0.1:
            follower.reader.close()
            follower.reader = None

    def _resume(self, follower: Follower, model: StreamModel) -> None:
        session = self.life.session
        mark = session.mark(follower.name, follower.consumer)
        self._check_mark(model, follower.consumer)
        offset: Any = Position(follower.history, follower.seq, follower.snapshot_end)
        if mark is not None and mark.seq <= follower.seq and self.dice.random() < 0.5:
            offset, follower.seq = FromMark(follower.consumer), mark.seq
            if not follower.seq:
                follower.copy.clear()  # who begins at the start begins with nothing
            self.count("resumed")
        elif not follower.seq:
            offset = "first"
        follower.reader = session.reader(follower.name, offset, markers=True)
        if follower.reader.after != follower.seq:
            raise BrokenPromise(
                f"{follower.consumer} was at {follower.seq}, goes on at {follower.reader.after}"
            )
        follower.given, follower.begun_at = [], follower.reader.after

    def _step(self, follower: Follower, model: StreamModel) -> bool:
        reader = follower.reader
        assert reader is not None
        found = reader.next(self.dice.choice((1, 5, 100)), self.dice.choice((1, 5000, 1 << 30)))
        if found is None:
            if reader.after < self.life.stream(model.name).boundary:
                raise BrokenPromise(f"{follower.consumer} gets nothing though it is at {reader.after}")
            return False
        if isinstance(found, Marker):
            self._check_marker(follower, model, found)
        else:
            for row in rows_of(reader.stream, found):
                follower.given.append(row)
                key = row.seq if row.key is None else row.key
                if row.value is None:
                    follower.copy.pop(key, None)
                else:
                    follower.copy[key] = row
        follower.history, follower.seq = reader.history, reader.after
        follower.snapshot_end = reader.snapshot_end
        return True

    def _check_marker(self, follower: Follower, model: StreamModel, marker: Marker) -> None:
        self._check_boundary(model.name, marker.to)
        given, follower.given = follower.given, []
        begun_at, follower.begun_at = follower.begun_at, marker.to
        if marker.from_ != begun_at:
            raise BrokenPromise(f"a marker from {marker.from_} where {follower.consumer} was at {begun_at}")
        self._check_rows(
            f"what {follower.consumer} was given of ({marker.from_}, {marker.to}]",
            given,
            model.visible(marker.to, marker.from_),
        )
        values = sum(row.value is not None for row in given)
        if (marker.count, marker.tombstones, marker.digest) != (values, len(given) - values, digest(given)):
            raise BrokenPromise(f"the marker at {marker.to} of {model.name} does not say what was given")
        floor, _ = model.ended(marker.to)
        copied = sorted(row for row in follower.copy.values() if row.seq >= floor)
        wanted = [row for row in model.visible(marker.to) if row.value is not None]
        self._check_rows(f"the copy of {model.name} at {marker.to}", copied, wanted)
        self.count("markers")

    def _start_over(self, follower: Follower, model: StreamModel) -> None:
        self.count("resets")
        if follower.reader is not None:
            follower.reader.close()
        follower.reader, follower.seq, follower.snapshot_end = None, 0, 0
        follower.copy.clear()
        register = model.marks.get(follower.consumer)
        if register is not None and register.now is not None:
            safe_at = self.life.session.reset_mark(follower.name, follower.consumer, 0)
            register.set(0, safe_at)
            self._expect(safe_at)

    def _mark_moved(self, name: str, consumer: str, seq: int, low: int, high: int) -> None:
        model = self.streams[name]
        register = model.marks.setdefault(consumer, Register(None, [(0, 0, None)]))
        register.set(max(seq, register.now or 0), low, high)
        if consumer in model.leases:
            lease_ms, until_ms = model.leases[consumer]
            # The grace that a restart gives is not shortened by a move.
            model.leases[consumer] = lease_ms, max(until_ms, self.now_ms + lease_ms)
            model.lapsed.discard(consumer)

    def _check_mark(self, model: StreamModel, consumer: str) -> None:
        mark = self.life.session.mark(model.name, consumer)
        register = model.marks.get(consumer)
        got, wanted = None if mark is None else mark.seq, None if register is None else register.now
        if got != wanted:
            raise BrokenPromise(f"the mark of {consumer} is {got}, not {wanted}")

    def register(self) -> None:
        """A consumer wants to be told of deletes."""
        if self.followers:
            follower = self.dice.choice(self.followers)
            model = self.streams[follower.name]
            lease_ms = self.dice.choice((1000, 100_000))
            safe_at = self.life.session.register(follower.name, follower.consumer, lease_ms)
            register = model.marks.setdefault(follower.consumer, Register(None, [(0, 0, None)]))
            register.set(register.now or 0, safe_at)
            model.leases[follower.consumer] = lease_ms, self.now_ms + lease_ms
            model.lapsed.discard(follower.consumer)
            self._expect(safe_at)

    def forget_consumer(self) -> None:
        if self.followers:
            follower = self.dice.choice(self.followers)
            model = self.streams[follower.name]
            register = model.marks.get(follower.consumer)
            if register is not None and register.now is not None:
                safe_at = self.life.session.unregister(follower.name, follower.consumer)
                register.set(None, safe_at)
                model.leases.pop(follower.consumer, None)
                model.lapsed.discard(follower.consumer)
                self._expect(safe_at)

    # Rules of streams ----------------------------------------------------------------------------------

    def purge(self) -> None:
        """Everything in a stream ends."""
        name = self._other_name()
        model, stream = self.streams[name], self.life.stream(name)
        by, live = self.life.arena.next_seq, model.visible(FOREVER)
        count = stream.purge()
        if count != sum(row.value is not None or model.is_log for row in live):
            raise BrokenPromise(f"{count} messages of {name} were purged")
        if live:
            model.steps.append(Step(by, by, by))
            self._expect(by)
            self.count("purges")

    def grow(self) -> None:
        if "sharded" in self.streams:
            model = self.streams["sharded"]
            model.shards += self.dice.randint(0, 3)
            self.life.session.declare("sharded", {"x-stream-shards": model.shards})
            self._settle()

    def make_anew(self) -> None:
        """A stream is deleted, and another one of the same name made: nothing of the old one is in it."""
        name = self._other_name()
        if name == BY_HEADER:
            return
        for follower in self.followers:
            if follower.name == name:
                if follower.reader is not None:
                    follower.reader.close()
                follower.reader, follower.seq = None, 0
                follower.copy.clear()
        self.opened = [opened for opened in self.opened if opened.snapshot.stream.name != name]
        self.life.session.delete(name)
        self._declare_stream(name)
        self._settle()
        self.count("made anew")

    def time_passes(self) -> None:
        """Leases end, and streams let go of what their rules say."""
        life = self.life
        passed_ms = self.dice.choice((100, 1000, 1000, 3000, 12_000, GRACE_MS + 1000))
        self.now_ms += passed_ms
        life.node.turn(self.now_ms)
        self._completed()
        self._look_at_clock()
        low = life.arena.next_seq
        before = {name: life.stream(name).live_bytes for name in self.streams}
        shown = {name: life.stream(name).boundary for name in self.streams}
        life.node.tick(self.now_ms)
        for model in self.streams.values():
            self._ended_leases(model, low)
            self._ended_by_rule(model, before[model.name])
            if passed_ms >= RULES_MS and not life.node.alarms.disk:
                self._check_rules_done(model, shown[model.name])

    def _ended_leases(self, model: StreamModel, low: int) -> None:
        high = self.life.arena.next_seq - 1
        pins = {pin.name for pin in self.life.session.pins(model.name)}
        for pin, register in model.pins.items():
            over = model.until_ms.get(pin, 0) <= self.now_ms
            if register.now is not None and pin not in pins:
                if not over and not self._is_bounded(model):
                    raise BrokenPromise(f"{pin} of {model.name} was dropped before its lease ended")
                register.set(None, low, high)
                self.count("leases ended")
            elif register.now is not None and over and not self.life.node.alarms.disk:
                raise BrokenPromise(f"the lease of {pin} of {model.name} is over, but it is there")
        model.lapsed |= {each for each, (_, until_ms) in model.leases.items() if until_ms <= self.now_ms}
        stream = self.life.stream(model.name)
        bound = model.arguments.get("x-stream-pin-bytes-max")
        if self.life.node.alarms.disk or not isinstance(bound, int) or not stream.pins.by_name:
            return
        if stream.held_bytes > bound:
            raise BrokenPromise(f"pins of {model.name} keep {stream.held_bytes} bytes")

    def _ended_by_rule(self, model: StreamModel, live_bytes: int) -> None:
        """What a tick has ended, it was allowed to end."""
        stream = self.life.stream(model.name)
        steps = [Step(step.by, step.floor, step.purged) for step in stream.ends.steps]
        new = [step for step in steps if not model.steps or step.by > model.steps[-1].by]
        for step in new:
            before = model.visible(step.by - 1)
            values = [row for row in before if row.seq < step.floor and row.value is not None]
            self._check_floor(model, step, values, live_bytes)
            deletes = [row for row in before if row.seq <= step.purged and row.value is None]
            for row in deletes:
                self._check_purged(model, step, row)
            if not values and not deletes:
                self.count("idle steps")
            model.steps.append(step)
            self.count("ended", len(values))
            self.count("tombstones purged", len(deletes))

    def _check_floor(self, model: StreamModel, step: Step, values: list[Seen], live_bytes: int) -> None:
        if not values:
            return
        aged, length = model.arguments.get("x-max-age"), model.arguments.get("x-max-length-bytes")
        if isinstance(aged, str):
            ms = {row.seq: row.ms for row in model.versions}
            young = [row.seq for row in values if ms[row.seq] + 1000 * int(aged[:-1]) > self.now_ms]
            if young:
                raise BrokenPromise(f"{young} of {model.name} ended before their time")
        elif isinstance(length, int):
            less = sum(len(row.value or b"") for row in values[:-1])
            if live_bytes - less <= length:
                raise BrokenPromise(f"{model.name} ended more than it had to: {step}")
        else:
            raise BrokenPromise(f"{model.name} ended messages: {step}")

    def _check_purged(self, model: StreamModel, step: Step, row: Seen) -> None:
        lease_ms = model.arguments.get("x-stream-tombstone-lease", 7 * 86_400_000)
        assert isinstance(lease_ms, int)
        ms = next(version.ms for version in model.versions if version.seq == row.seq)
        if ms + lease_ms <= self.now_ms or row.seq < step.floor:
            return
        leased = model.leases.keys() - model.lapsed
        waiting = [consumer for consumer in leased if (model.marks[consumer].now or 0) < row.seq]
        if waiting or not leased:
            raise BrokenPromise(
                f"the delete {row.seq} of {model.name} was purged; {waiting} have not seen it"
            )

    def _check_rules_done(self, model: StreamModel, shown: int) -> None:
        """What must have ended by now has ended."""
        aged, length = model.arguments.get("x-max-age"), model.arguments.get("x-max-length-bytes")
        left = model.visible(FOREVER)
        if isinstance(aged, str):
            ms = {row.seq: row.ms for row in model.versions}
            age_ms = 1000 * int(aged[:-1])
            late = [
                row.seq
                for row in left
                if row.seq <= shown and ms[row.seq] + age_ms * 1.05 + 1000 < self.now_ms
            ]
            if late:
                raise BrokenPromise(f"{late} of {model.name} should have ended by their age")
        if isinstance(length, int) and model.last_seq <= shown:
            kept = sum(len(row.value or b"") for row in left)
            if kept > length:
                raise BrokenPromise(f"{model.name} keeps {kept} bytes")

    # Turns and upkeep ----------------------------------------------------------------------------------

    def turn(self) -> None:
        made = self.life.node.journal.checkpointer.made
        self.life.node.turn(self.now_ms)
        self._may_end_after_checkpoint(made)
        self._completed()

    def _turn(self) -> None:
        self.life.node.turn(self.now_ms)
        self._completed()

    def _may_end_after_checkpoint(self, made: int) -> None:
        """A checkpoint got its name, and sometimes that is the last thing that happens."""
        checkpointer = self.life.node.journal.checkpointer
        if checkpointer.made > made and self.disk.capacity == ROOM and self.dice.random() < 0.5:
            self.crash()

    def _completed(self) -> None:
        self.life.node.completed(self.now_ms)
        if self.life.node.failed is not None:
            raise DiskFailed(path="", operation="", problem="as it was told to")
        self._told()
        for model in self.streams.values():
            stream = self.life.stream(model.name)
            for consumer, register in model.marks.items():
                mark = stream.marks.by_name.get(consumer)
                if mark is not None and mark not in stream.marks.unwritten:
                    register.written_by(mark.safe_at)

    def _settle(self) -> None:
        """Until everything is durable and shown."""
        for _ in range(200):
            self._turn()
            if self.life.node.store.idle and not self.life.broker.dirty:
                return
            self.now_ms += 1
        raise BrokenPromise("the node does not come to rest")

    def maintain(self) -> None:
        for _ in range(self.dice.choice((1, 1, 5))):
            self.now_ms += 10
            made = self.life.node.journal.checkpointer.made
            self.life.node.maintain(self.now_ms, self.dice.choice((1, 8000, 1 << 20)))
            self._may_end_after_checkpoint(made)
            if self.dice.random() < 0.3:
                self._completed()

    def rest(self) -> None:
        """Nothing happens for a while: compaction comes to its end."""
        for _ in range(self.dice.randint(5, 25)):
            self.now_ms += 60
            self._turn()
            self.life.node.maintain(self.now_ms, 1 << 20)
            self.life.node.watch(0, 1 << 40, 1 << 40)

    def squeeze(self) -> None:
        """The disk has little room for a while."""
        used = self.disk.capacity - self.disk.free_bytes()
        self.disk.capacity = used + self.dice.choice((0, 0, 50_000, 100_000))
        actions = [
            self.put,
            self.transaction,
            self.transfer,
            self.pin,
            self.release,
            self.purge,
            self.turn,
            self.maintain,
            self.follow,
            self.time_passes,
        ]
        size, self.size = self.size, 9000
        for _ in range(self.dice.randint(1, 25)):
            self._do(self.dice.choice(actions))
        self.size = size
        self.disk.capacity = ROOM
        for _ in range(12):
            self.now_ms += 200
            self.life.node.turn(self.now_ms)
            self.life.node.maintain(self.now_ms, 1)
            self._completed()
        self.life.node.watch(0, 1 << 40, 1 << 40)
        if self.life.node.alarms.disk:
            raise BrokenPromise("there is room again, but publishers are still blocked")

    def break_disk(self) -> None:
        """An operation of the disk fails. The node stops for good, and the next process goes on."""
        self.life.may_fail = True
        self.disk.fail_next(self.dice.randrange(30))
        actions = [self.put, self.transaction, self.pin, self.release, self.turn, self.maintain]
        try:
            for _ in range(50):
                self._do(self.dice.choice(actions))
                if self.life.node.failed is not None:
                    break
        except DiskFailed:
            self.say("     the disk failed")
        self._restart(self.disk.crash(power=self.dice.random() < 0.7))

    # Restarts ---------------------------------------------------------------------------------------------

    def _start(self) -> Life:
        return Life(self.disk, self.dice, self.now_ms, self.config)

    def restart_cleanly(self) -> None:
        node = self.life.node
        node.close(self.now_ms)
        for _ in range(1000):
            self._completed()
            if node.closed():
                break
        self._restart(self.disk.crash(power=self.dice.random() < 0.5))
        if not self.life.report.found.startswith("clean("):
            raise BrokenPromise(f"the node was closed, but found {self.life.report.found}")

    def crash(self) -> None:
        self.count("crashes")
        if self.dice.random() < 0.3:
            self.life.node.turn(self.now_ms)
        self._restart(self.disk.crash(power=self.dice.random() < 0.7))
        if self.dice.random() < 0.3:
            # The machine dies again before anything happened.
            self._restart(self.disk.crash(power=self.dice.random() < 0.7))

    def _restart(self, disk: SimDisk) -> None:
        self.disk = disk
        for name in disk.list(PREFIX):
            if self.dice.random() < 0.1:
                # A checkpoint that rots costs time, and nothing else.
                disk.flip(name, self.dice.randrange(disk.size(name)), self.dice.randrange(8))
        self.now_ms += self.dice.choice((10, 1000, 10_000))
        self.opened.clear()
        for follower in self.followers:
            follower.reader = None
        self._count_compactions()
        self.life = self._start()
        self._check_recovered()
        if self.dice.random() < 0.2:
            for finding in check_store(disk):
                raise BrokenPromise(f"the store check complains after recovery: {finding}")

    def _check_recovered(self) -> None:
        report = self.life.report
        upto = report.last_seq
        self.say(f"     recovered up to {upto}, promised was {self.promised}; {report.torn}")
        self.say(f"     checkpoint {report.checkpoint}, {report.dropped} dropped; {report.unusable}")
        self.count("checkpoints", bool(report.checkpoint))
        self.count("torn", report.torn is not None)
        if upto < self.promised:
            raise BrokenPromise(f"recovered up to {upto}, but {self.promised} had been called safe")
        for first, last in self.written:
            if first <= upto < last:
                raise BrokenPromise(f"the batch {first} to {last} was cut in two at {upto}")
        if self.life.arena.next_seq <= upto:
            raise BrokenPromise(f"sequence {self.life.arena.next_seq} would be given again")
        self.receipts.clear()
        self.written = [(first, last) for first, last in self.written if last <= upto]
        for name, producer in self.producers.items():
            last = self.life.session.producer_last(name)
            if [last] != producer.possible(upto):
                raise BrokenPromise(f"{name} was at {producer.possible(upto)}, not {last}")
            producer.found(last)
        for model in self.streams.values():
            model.cut(upto)
            self._recover_state(model, upto)
        self._recover_queue(upto)
        self.look_at_all()
        self.look_at_pins()

    def _recover_state(self, model: StreamModel, upto: int) -> None:
        stream = self.life.stream(model.name)
        pins = {pin.name: pin for pin in self.life.session.pins(model.name)}
        for name, register in model.pins.items():
            at = pins[name].seq if name in pins else None
            if at not in register.possible(upto):
                raise BrokenPromise(
                    f"{name} of {model.name} is at {at}; it can be {register.possible(upto)} after {upto}"
                )
            register.found(at)
            if name in pins:
                model.until_ms[name] = pins[name].lease_until_ms
        if pins.keys() - model.pins.keys():
            raise BrokenPromise(f"pins of {model.name} that nobody made: {pins.keys()}")
        model.leases.clear()
        model.lapsed.clear()
        for consumer, mark_register in model.marks.items():
            mark = stream.marks.by_name.get(consumer)
            seq = None if mark is None else mark.seq
            if seq not in mark_register.possible(upto):
                raise BrokenPromise(
                    f"the mark of {consumer} is {seq}; it can be {mark_register.possible(upto)} after {upto}"
                )
            mark_register.found(seq)
            if mark is not None and mark.lease_ms:
                model.leases[consumer] = mark.lease_ms, mark.until_ms
                if mark.expired:
                    model.lapsed.add(consumer)
        if stream.marks.by_name.keys() - model.marks.keys():
            raise BrokenPromise(f"marks of {model.name} that nobody made")

    def _recover_queue(self, upto: int) -> None:
        queue: Any = self.life.broker.vhosts["/"].queues[QUEUE]
        self.queue = {seq: sent for seq, sent in self.queue.items() if seq <= upto}
        found: dict[int, bytes] = {}
        taken_all = []
        while (taken := queue.take(1000, 1 << 40)) is not None:
            taken_all.append(taken)
            found |= {seq: self.life.arena.message(loc).body for _, seq, loc, *_ in taken}
        for taken in taken_all:
            for index, *_ in taken:
                queue.requeue(taken.lane, index, False)
        for seq, sent in self.queue.items():
            if (seq not in found) not in sent.taken.possible(upto):
                raise BrokenPromise(
                    f"message {seq} of the queue is {'there again' if seq in found else 'lost'}"
                )
            sent.taken.found(seq not in found)
        if list(found) != sorted(found) or any(
            seq not in self.queue or self.queue[seq].body != body for seq, body in found.items()
        ):
            raise BrokenPromise("the queue has another order, other bodies, or messages that nobody sent")
        self.queue = {seq: sent for seq, sent in self.queue.items() if not sent.taken.now}

    def _count_compactions(self) -> None:
        self.count("compactions", self.life.node.journal.statistics().compactions)

    # What must be true ----------------------------------------------------------------------------------------

    def look_at_all(self) -> None:
        """What every stream shows now, the counts, and the bank."""
        money: list[int] = []
        for model in self.streams.values():
            stream = self.life.stream(model.name)
            with self.life.session.snapshot(model.name) as snapshot:
                self._check_boundary(model.name, snapshot.seq)
                got = self._read(snapshot)
            self._check_rows(f"{model.name} at {snapshot.seq}", got, model.visible(snapshot.seq))
            if snapshot.seq < model.last_seq <= self.life.arena.shown_seq:
                raise BrokenPromise(f"{model.name} is shown at {snapshot.seq}, and all is durable")
            newest = model.visible(FOREVER)
            values = sum(row.value is not None or model.is_log for row in newest)
            if (stream.live, stream.tombstones) != (values, len(newest) - values):
                raise BrokenPromise(
                    f"{model.name} counts {stream.live} and {stream.tombstones}, not {values} and "
                    f"{len(newest) - values}"
                )
            if stream.live_bytes != sum(len(row.value or b"") for row in newest):
                raise BrokenPromise(f"{model.name} counts {stream.live_bytes} bytes")
            if model.name in BANK:
                money += [int(row.value.split()[0]) for row in got if row.value is not None]
        if money and sum(money) != DEPOSIT * len(ACCOUNTS):
            raise BrokenPromise(f"the accounts add up to {sum(money)}")

    def finish(self) -> None:
        """Everybody goes: nothing of the past is kept then, and the room on the disk comes back."""
        for model in self.streams.values():
            for pin, register in model.pins.items():
                if register.now is not None:
                    self.life.session.release(model.name, pin)
        self._settle()
        for _ in range(4):
            self.now_ms += 1_000_000
            self.life.node.turn(self.now_ms)
            self.life.node.tick(self.now_ms)
            self._settle()
        for model in self.streams.values():
            stream = self.life.stream(model.name)
            if stream.held:
                raise BrokenPromise(f"{model.name} keeps {stream.held} superseded messages for nobody")
            if "x-stream-tombstone-lease" in model.arguments and stream.tombstones:
                raise BrokenPromise(f"{model.name} keeps {stream.tombstones} tombstones after their lease")
        state = self.life.broker.streams.state
        if state.held or state.tombstones > 1:  # the newest record may be one
            raise BrokenPromise(f"the state keeps {state.held} old records and {state.tombstones} tombstones")
        for _ in range(60):
            self.now_ms += 2000
            self._turn()
            self.life.node.maintain(self.now_ms, 1 << 20)
        self._count_compactions()
        live = sum(
            self.life.stream(name).live_bytes + 150 * self.life.stream(name).live for name in self.streams
        )
        live += sum(len(sent.body) + 150 for sent in self.queue.values())
        used = sum(segment.used for segment in self.life.node.journal.segments)
        if used > 4 * live + 4 * self.config.segment_bytes:
            raise BrokenPromise(f"{used} bytes on the disk for {live} that are live")


def rows_of(stream: Stream, taken: Any) -> list[Seen]:
    return [
        Seen(row.seq, row.key, None if row.tombstone else row.value)
        for row in gather(stream, taken, KEY | VALUE | SEQUENCE | FLAGS)
    ]


def run_seed(seed: int, say: Callable[[str], None] = lambda _: None) -> StreamRun:
    """One run.

    Raises:
        BrokenPromise: with the command that replays it.
    """
    try:
        run = StreamRun(seed, say=say)
        run.run()
    except (AssertionError, TidemarkError, ValueError, KeyError, IndexError, TypeError) as problem:
        raise BrokenPromise(
            f"{type(problem).__name__}: {problem}\nreplay: python -m tidemark.sim.streams --seed {seed}"
        ) from problem
    return run


def main(arguments: Iterable[str] | None = None) -> int:
    parser = argparse.ArgumentParser(description="Run streams over a disk that loses, tears and fills up.")
    parser.add_argument("--seed", type=int, help="replay this run and say what happens")
    parser.add_argument("--seeds", type=int, default=1000, help="how many runs")
    parser.add_argument("--first", type=int, default=0, help="the first seed")
    parser.add_argument("--all", action="store_true", help="go on after a failure")
    given = parser.parse_args(None if arguments is None else list(arguments))
    if given.seed is not None:
        run_seed(given.seed, print)
        return 0
    failed = 0
    for seed in range(given.first, given.first + given.seeds):
        try:
            run_seed(seed)
        except BrokenPromise as problem:
            print(problem, file=sys.stderr)
            failed += 1
            if not given.all:
                return 1
    if not failed:
        print(f"{given.seeds} runs kept every promise")
    return 1 if failed else 0


if __name__ == "__main__":
    raise SystemExit(main())
