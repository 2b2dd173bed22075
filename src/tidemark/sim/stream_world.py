"""What a run of streams happens in: one process over a lying disk, the model beside it, and what all work needs.

`StreamWorld` holds a node, what clients have opened, what they were told and what the model knows. The kinds of work are
subclasses of it, one a module: writing, reading, following, and the rules by which things end; `streams.py` puts them
together.

Invariant: dice are thrown in the order in which things are done, by nobody else.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable
from dataclasses import dataclass, field, replace
from random import Random
from typing import Any

from tidemark.broker.streams.core import FLAGS, KEY, SEQUENCE, VALUE, gather
from tidemark.broker.streams.reader import Reader
from tidemark.broker.streams.session import StreamSession
from tidemark.broker.streams.snapshots import Snapshot
from tidemark.broker.streams.stream import Stream
from tidemark.config import load
from tidemark.errors import DiskFailed
from tidemark.frontend.services import FrontEnd, Login
from tidemark.model.rows import Row
from tidemark.node import Node
from tidemark.sim.apart import SimApart
from tidemark.sim.disk import SimDisk
from tidemark.sim.store import CONFIG, ROOM, BrokenPromise
from tidemark.sim.stream_model import Register, Seen, StreamModel
from tidemark.store.config import StoreConfig

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


class StreamWorld:
    """What there is in a run of one seed."""

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

    def _start(self) -> Life:
        return Life(self.disk, self.dice, self.now_ms, self.config)

    def _look_at_clock(self) -> None:
        self.clock.append((self.now_ms, self.life.arena.next_seq - 1))

    def count(self, what: str, number: int = 1) -> None:
        self.counts[what] = self.counts.get(what, 0) + number

    # Streams --------------------------------------------------------------------------------------------

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

    def _key(self) -> bytes:
        return b"key %d" % int(self.keys * self.dice.random() ** self.skew)

    def _is_bounded(self, model: StreamModel) -> bool:
        return "x-stream-pin-bytes-max" in model.arguments

    # What clients were told -----------------------------------------------------------------------------

    def _expect(self, safe_at: int) -> None:
        """A client waits until this is durable."""
        self.receipts.append(safe_at)
        self._told()

    def _told(self) -> None:
        durable = self.life.durable_seq
        self.promised = max([self.promised, *(seq for seq in self.receipts if seq <= durable)])
        self.receipts = [seq for seq in self.receipts if seq > durable]

    def _mark_moved(self, name: str, consumer: str, seq: int, low: int, high: int) -> None:
        model = self.streams[name]
        register = model.marks.setdefault(consumer, Register(None, [(0, 0, None)]))
        register.set(max(seq, register.now or 0), low, high)
        if consumer in model.leases:
            lease_ms, until_ms = model.leases[consumer]
            # The grace that a restart gives is not shortened by a move.
            model.leases[consumer] = lease_ms, max(until_ms, self.now_ms + lease_ms)
            model.lapsed.discard(consumer)

    # Turns ----------------------------------------------------------------------------------------------

    def _turn(self) -> None:
        self.life.node.turn(self.now_ms)
        self._completed()

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

    # Comparing ------------------------------------------------------------------------------------------

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


def rows_of(stream: Stream, taken: Any) -> list[Seen]:
    return [
        Seen(row.seq, row.key, None if row.tombstone else row.value)
        for row in gather(stream, taken, KEY | VALUE | SEQUENCE | FLAGS)
    ]
