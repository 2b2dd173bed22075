"""Streams: keyed updates with deletes, a bank, snapshots, pins and marks.

A writer puts and deletes keys of one stream, alone, so that for every key it is known what a reader may find. A
bank spreads its accounts over two streams and moves money in transactions; in any pair of snapshots of one moment it
adds up. Readers look at snapshots and pin some: what is pinned stays the same, byte for byte, whoever leads.

Invariant: what a reader is shown is safe: it is there for ever after, on whatever member.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from random import Random
from typing import Any

from tidemark.broker.streams.commit import Batch, Committed, Put
from tidemark.broker.streams.core import FLAGS, KEY, SEQUENCE, VALUE, gather
from tidemark.broker.streams.session import StreamSession
from tidemark.broker.streams.snapshots import Snapshot
from tidemark.errors import Conflict, NotFound, PinExpired, PreconditionFailed, TidemarkError
from tidemark.model.rows import Row, RowBatch
from tidemark.sim.cluster.books import Register
from tidemark.sim.cluster.clients import StreamClient
from tidemark.sim.cluster.world import World
from tidemark.sim.store import BrokenPromise

STREAM = "keyed"
BANK = ("bank a", "bank b")
ACCOUNTS = tuple((stream, b"account %d" % number) for stream in BANK for number in range(3))
DEPOSIT = 100
LEASE_MS = 1_000_000_000
ARGUMENTS = {"x-stream-key": "none", "x-stream-tombstone-lease": LEASE_MS}

Seen = tuple[int, bytes | None, bytes | None]
"""Sequence, key, value; a deleted key has the value None."""


def read(snapshot: Snapshot) -> tuple[list[Seen], int | None]:
    """All rows of a snapshot and the hash of its marker."""
    rows: list[Seen] = []
    after = None
    while (taken := snapshot.take(1000, 1 << 30, after=after)) is not None:
        rows += [
            (row.seq, row.key, None if row.tombstone else row.value)
            for row in gather(snapshot.stream, taken, KEY | VALUE | SEQUENCE | FLAGS)
        ]
        snapshot.feed(taken)
        after = snapshot.position
    return rows, snapshot.marker().digest


def brief(value: bytes | None) -> str:
    """What tells a value from others, without what fills it up."""
    return "nothing" if value is None else value.partition(b" ")[0].decode() or "an empty value"


class Writer(StreamClient):
    """The only one who writes to the keyed stream. One batch at a time; an answer that was lost leaves it open."""

    def __init__(self, world: World) -> None:
        super().__init__(world, "writer")
        self.declared = False
        self.keys: dict[bytes, Register[bytes | None]] = {}
        self.receipts: dict[bytes, int] = {}
        """The sequence that was given to the newest value of a key, if that was confirmed."""
        self.busy = False
        self._number = 0
        self._repeat: tuple[int, list[Row]] | None = None
        """A numbered batch whose answer was lost: it is sent again before anything else."""
        self.connect()

    def ready(self) -> None:
        if not self.declared:
            self.call(
                lambda session: (None, 0, session.declare(STREAM, ARGUMENTS)), self._declared, self._failed
            )
        elif self._repeat is not None:
            self._send(*self._repeat)

    def _declared(self, _: Any) -> None:
        self.declared = True

    def put(self, rows: list[Row], numbered: bool) -> None:
        if not self.open or not self.declared or self.busy:
            return
        for row in rows:
            assert row.key is not None
            self.keys.setdefault(row.key, Register([None])).tried(None if row.tombstone else bytes(row.value))
            self.receipts.pop(row.key, None)
        self._number += numbered
        self._send(self._number if numbered else 0, rows)

    def _send(self, number: int, rows: list[Row]) -> None:
        self.busy = True
        producer = ("writer", number) if number else (None, None)
        batch = Batch([Put(STREAM, RowBatch.build(rows))], *producer)

        def work(session: StreamSession) -> tuple[Committed, int, int]:
            committed = session.commit(batch)
            return committed, committed.safe_at, 0

        self.call(
            work, lambda done: self._stored(rows, done), lambda error: self._failed(error, number, rows)
        )

    def _stored(self, rows: list[Row], committed: Committed) -> None:
        self.busy = False
        self._repeat = None
        seq = committed.first_seq
        for row in rows:
            assert row.key is not None
            register = self.keys[row.key]
            register.confirmed(None if row.tombstone else bytes(row.value))
            self.receipts[row.key] = seq
            seq += 1
        if seq - 1 != committed.last_seq:
            raise BrokenPromise(f"{len(rows)} rows are told to have {committed}")
        self.world.count("rows", len(rows))

    def _failed(self, error: TidemarkError | None, number: int = 0, rows: list[Row] | None = None) -> None:
        self.busy = False
        if error is not None:
            raise BrokenPromise(f"the writer is refused: {error}") from error
        if number and rows:
            self._repeat = number, rows
            # `ready` sends it again; until then nothing else is sent.
            self.busy = True

    def seen(self, rows: list[Seen], whole: bool) -> None:
        """A reader was shown these; with `whole`, nothing else."""
        found = {key: value for _, key, value in rows}
        for seq, key, value in rows:
            if key is None or key not in self.keys:
                raise BrokenPromise(f"{STREAM} has the key {key!r} that nobody wrote")
            receipt = self.receipts.get(key)
            if receipt is not None and seq != receipt and self.keys[key].possible[-1] == value:
                raise BrokenPromise(f"{key!r} is at {seq}, but its receipt says {receipt}")
        if whole:
            for key, register in self.keys.items():
                register.found(found.get(key), f"the value of {key!r}")


@dataclass(slots=True)
class Pinned:
    seq: int
    rows: list[Seen]
    digest: int | None


class Reader(StreamClient):
    """Looks at the streams, pins, and moves a mark."""

    def __init__(self, world: World, writer: Writer) -> None:
        super().__init__(world, "reader")
        self.pins: dict[str, Pinned] = {}
        self.mark: Register[int] = Register([0])
        self._writer = writer
        self._number = 0
        self._boundary = 0
        self.connect()

    def look(self) -> None:
        """A snapshot of now. What it shows must be possible, and the boundary never goes back."""

        def work(session: StreamSession) -> tuple[Any, int, int]:
            with session.snapshot(STREAM) as snapshot:
                return (snapshot.seq, *read(snapshot)), 0, 0

        if self._writer.declared:
            # What the writer is told between the look and its answer does not count against it.
            possible = {key: list(register.possible) for key, register in self._writer.keys.items()}
            self.call(work, lambda found: self._looked(possible, *found), self._failed)

    def _looked(
        self, before: dict[bytes, list[bytes | None]], seq: int, rows: list[Seen], _digest: int | None
    ) -> None:
        if seq < self._boundary:
            raise BrokenPromise(f"{STREAM} was shown at {self._boundary} and is now shown at {seq}")
        self._boundary = seq
        found = {key: value for _, key, value in rows}
        for key, possible in before.items():
            newer = self._writer.keys[key].possible
            if found.get(key) not in possible and found.get(key) not in newer:
                values = " or ".join(brief(value) for value in possible)
                raise BrokenPromise(f"a snapshot shows {brief(found.get(key))} for {key!r}, not {values}")
        self.world.count("snapshots")

    def pin(self) -> None:
        self._number += 1
        name = f"pin {self._number}"

        def work(session: StreamSession) -> tuple[Pinned, int, int]:
            snapshot, safe_at = session.pin(STREAM, name, LEASE_MS)
            with snapshot:
                return Pinned(snapshot.seq, *read(snapshot)), safe_at, 0

        if self._writer.declared:
            self.call(work, lambda pinned: self.pins.__setitem__(name, pinned), self._failed)

    def look_at_pin(self, dice: Random) -> None:
        if self.pins:
            name = dice.choice(list(self.pins))
            self.call(
                lambda session: (read_pin(session, name), 0, 0),
                lambda found: self.check_pin(name, found),
                self._failed,
            )

    def check_pin(self, name: str, found: Pinned | None) -> None:
        known = self.pins[name]
        if found is None:
            raise BrokenPromise(f"{name} of {STREAM}, at {known.seq}, is gone")
        if found != known:
            lost = [row[:2] for row in known.rows if row not in found.rows]
            more = [row[:2] for row in found.rows if row not in known.rows]
            raise BrokenPromise(
                f"{name} at {known.seq} is now at {found.seq}, lacks {lost[:4]}, has {more[:4]}"
            )
        self.world.count("pins read")

    def move(self) -> None:
        """Its mark goes where the stream is."""
        seq = self._boundary
        if not self.open or not self._writer.declared or seq <= self.mark.possible[-1]:
            return
        self.mark.tried(seq)
        self.call(
            lambda session: (None, session.move(STREAM, "reader", None, seq), 0),
            lambda _: self.mark.confirmed(seq),
            self._failed,
        )

    def _failed(self, error: TidemarkError | None) -> None:
        if isinstance(error, NotFound) and self._writer.declared:
            raise BrokenPromise(f"the stream was declared: {error}") from error
        if error is not None and not isinstance(error, NotFound):
            raise BrokenPromise(f"the reader is refused: {error}") from error


def read_pin(session: StreamSession, name: str) -> Pinned | None:
    try:
        with session.pinned(STREAM, name) as snapshot:
            return Pinned(snapshot.seq, *read(snapshot))
    except (PinExpired, NotFound):
        return None


class Banker(StreamClient):
    """Moves money from account to account, and counts it."""

    def __init__(self, world: World, name: str) -> None:
        super().__init__(world, name)
        self.opened = False
        self.busy = False
        self.connect()

    def ready(self) -> None:
        if not self.opened:
            self.busy = True
            self.call(self._open_accounts, self._done, self._failed)

    @staticmethod
    def _open_accounts(session: StreamSession) -> tuple[None, int, int]:
        catalog = max(session.declare(stream, ARGUMENTS) for stream in BANK)
        rows: dict[str, list[Row]] = {stream: [] for stream in BANK}
        for stream, account in ACCOUNTS:
            rows[stream].append(Row(account, b"%d" % DEPOSIT, expected=0))
        try:
            done = session.commit(Batch([Put(stream, RowBatch.build(some)) for stream, some in rows.items()]))
        except Conflict:
            return None, session.broker.journal.last_seq, catalog
        return None, done.safe_at, catalog

    def transfer(self, giver: tuple[str, bytes], taker: tuple[str, bytes], amount: int) -> None:
        def work(session: StreamSession) -> tuple[None, int, int]:
            puts = []
            for (stream, account), change in ((giver, -amount), (taker, amount)):
                found = session.get(stream, account)
                if found is None:
                    raise BrokenPromise(f"{account!r} is not there")
                row = Row(account, b"%d" % (int(found.value) + change), expected=found.seq)
                puts.append(Put(stream, RowBatch.build([row])))
            return None, session.commit(Batch(puts)).safe_at, 0

        if self.opened and not self.busy:
            self.busy = True
            self.call(work, self._done, self._failed)

    def count(self) -> None:
        if self.opened:
            self.call(lambda session: (money(session), 0, 0), check_money, self._failed)

    def _done(self, _: Any) -> None:
        self.busy = False
        self.opened = True
        self.world.count("transfers")

    def _failed(self, error: TidemarkError | None) -> None:
        self.busy = False
        if error is not None and not isinstance(error, Conflict | PreconditionFailed):
            raise BrokenPromise(f"{self.name} is refused: {error}") from error


def money(session: StreamSession) -> list[int]:
    """What is on every account, in a pair of snapshots of one moment."""
    found = []
    for stream in BANK:
        with session.snapshot(stream) as snapshot:
            found += [int(value) for _, _, value in read(snapshot)[0] if value is not None]
    return found


def check_money(found: list[int]) -> None:
    if len(found) != len(ACCOUNTS) or sum(found) != DEPOSIT * len(ACCOUNTS):
        raise BrokenPromise(f"the accounts have {found}, which is {sum(found)}")


@dataclass
class Keyed:
    """One writer, one reader with pins and a mark."""

    world: World
    size: int
    queues: tuple[str, ...] = field(default=())

    def __post_init__(self) -> None:
        self.writer = Writer(self.world)
        self.reader = Reader(self.world, self.writer)
        self.actions = {
            "put": (8, self.put),
            "look": (4, lambda _: self.reader.look()),
            "pin": (1, lambda _: self.reader.pin()),
            "read a pin": (1, self.reader.look_at_pin),
            "move a mark": (1, lambda _: self.reader.move()),
        }

    def put(self, dice: Random) -> None:
        rows = {}
        for _ in range(dice.choice((1, 2, 5))):
            key = b"key %d" % dice.randrange(8)
            deletes = dice.random() < 0.25
            value = b"" if deletes else b"%d " % dice.randrange(1 << 30) + bytes(dice.randrange(self.size))
            rows[key] = Row(key, value, tombstone=deletes)
        self.writer.put(list(rows.values()), dice.random() < 0.4)

    def waiting(self) -> str | None:
        if self.writer.busy or self.writer._calls:
            return "the writer waits for an answer"
        return "the reader waits for an answer" if self.reader._calls else None

    def leave(self) -> None:
        self.writer.leave()
        self.reader.leave()

    def check_member(self, name: str, session: StreamSession, serving: bool) -> None:
        """What any member shows, now that all is quiet. Pins and marks are known to who serves."""
        if not self.writer.declared:
            return
        with session.snapshot(STREAM) as snapshot:
            self.writer.seen(read(snapshot)[0], whole=True)
        if serving:
            for pin in self.reader.pins:
                self.reader.check_pin(pin, read_pin(session, pin))
            mark = session.mark(STREAM, "reader")
            self.reader.mark.found(0 if mark is None else mark.seq, f"the mark at {name}")


@dataclass
class Bank:
    world: World
    size: int
    queues: tuple[str, ...] = field(default=())

    def __post_init__(self) -> None:
        self.bankers = [Banker(self.world, "banker0"), Banker(self.world, "banker1")]
        self.actions = {"transfer": (8, self.transfer), "count money": (3, self.count)}

    def transfer(self, dice: Random) -> None:
        giver, taker = dice.sample(ACCOUNTS, 2)
        dice.choice(self.bankers).transfer(giver, taker, dice.randint(1, 50))

    def count(self, dice: Random) -> None:
        dice.choice(self.bankers).count()

    def waiting(self) -> str | None:
        for banker in self.bankers:
            if banker._calls or not banker.opened:
                return f"{banker.name} waits for an answer"
        return None

    def leave(self) -> None:
        for banker in self.bankers:
            banker.leave()

    def check_member(self, name: str, session: StreamSession, serving: bool) -> None:  # noqa: ARG002
        check_money(money(session))
