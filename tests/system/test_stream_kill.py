"""The broker is killed at random moments in keyed traffic, with pins open, and must keep every promise.

TIDEMARK_KILL_ROUNDS says how often (10 unless told), TIDEMARK_KILL_SEED replays the dice of a run; the seed is
printed. Each actor writes in a thread of its own, with a client of its own, and remembers what it tried and what it
was told. What is then read must be one of the things that this leaves open.
"""

from __future__ import annotations

import os
import random
import threading
import time
from abc import ABC, abstractmethod
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass, field

import pika
import pytest
from helpers.broker import BrokerProcess

import tidemark.client as tidemark
from tidemark.client import Client, Marker, Receipt, Row, Stream

ROUNDS = int(os.environ.get("TIDEMARK_KILL_ROUNDS", "10"))
SEED = int(os.environ.get("TIDEMARK_KILL_SEED", str(random.SystemRandom().randrange(1 << 32))))

SMALL = {
    "store.segment_bytes": "1MiB",
    "store.extent_bytes": "64KiB",
    "store.cache_bytes": "1MiB",
    "store.compact_quiet_ms": "100",
    "store.checkpoint_bytes": "256KiB",
    "store.checkpoint_wait_ms": "100",
}
"""So that segments are compacted and paged, and checkpoints made, in a run of a few seconds."""

ACCOUNTS = [b"account %d" % number for number in range(8)]
DEPOSIT = 1000
KEYS = [b"item %d" % number for number in range(40)]
PINS = 6


class Actor(ABC):
    """Somebody who works until told to stop. What goes wrong is kept in `problem`."""

    def __init__(self, url: str, dice: random.Random) -> None:
        self.dice = dice
        self.problem: BaseException | None = None
        self.done = 0
        self._url = url
        self._stop = threading.Event()
        self._thread = threading.Thread(target=self._run, name=type(self).__name__, daemon=True)

    def start(self) -> None:
        self._thread.start()

    def finish(self) -> None:
        self._stop.set()
        self._thread.join(60)
        assert not self._thread.is_alive(), f"{type(self).__name__} does not stop"
        self.check()

    def check(self) -> None:
        if self.problem is not None:
            raise AssertionError(f"{type(self).__name__} failed, seed {SEED}") from self.problem

    def _run(self) -> None:
        try:
            with tidemark.connect(self._url, timeout=40) as db:
                self.begin(db)
                while not self._stop.is_set():
                    self.work()
                    self.done += 1
        except BaseException as problem:
            self.problem = problem

    @abstractmethod
    def begin(self, db: Client) -> None: ...

    @abstractmethod
    def work(self) -> None: ...


@dataclass
class Tried:
    """What was written under a key, in order; None is a delete."""

    values: list[bytes | None] = field(default_factory=lambda: [None])
    confirmed: int = 0
    """The index of the last that was confirmed."""


class Writer(Actor):
    """Revises keys of its own, one after the other, without numbers: some puts end in doubt."""

    def __init__(self, url: str, dice: random.Random, keys: list[bytes]) -> None:
        super().__init__(url, dice)
        self.keys = {key: Tried() for key in keys}
        self.receipts: list[Receipt] = []
        self.doubtful = 0

    def begin(self, db: Client) -> None:
        self._items = db.stream("items")

    def work(self) -> None:
        key = self.dice.choice(list(self.keys))
        tried = self.keys[key]
        value = (
            None
            if self.dice.random() < 0.15
            else b"%d " % len(tried.values) + bytes(self.dice.randrange(600))
        )
        at = len(tried.values)
        tried.values.append(value)
        try:
            receipt = self._items.delete(key) if value is None else self._items.put(key, value)
        except tidemark.Unconfirmed:
            self.doubtful += 1
            return
        tried.confirmed = at
        self.receipts.append(receipt)

    def look(self, items: Stream) -> None:
        """Every confirmed value is there, or what was written over it."""
        for key, tried in self.keys.items():
            first = tried.confirmed
            row = items.get(key)
            value = None if row is None else row.value
            possible = tried.values[first:]
            assert value in possible, f"{key!r} is {value!r}, not one of {possible[:5]}, seed {SEED}"


class Banker(Actor):
    """Moves money by numbered transactions over two streams and a queue, each stored once whatever happens."""

    def __init__(self, url: str, dice: random.Random) -> None:
        super().__init__(url, dice)
        self.transfers = 0
        self.balances = dict.fromkeys(ACCOUNTS, DEPOSIT)

    def begin(self, db: Client) -> None:
        self._producer = db.producer("bank")

    def work(self) -> None:
        giver, taker = self.dice.sample(ACCOUNTS, 2)
        amount = self.dice.randint(1, 30)
        number = self.transfers + 1
        self.balances[giver] -= amount
        self.balances[taker] += amount
        try:
            with self._producer.transaction() as tx:
                for account in (giver, taker):
                    tx.put("accounts", account, b"%d after %d" % (self.balances[account], number))
                tx.put("ledger", None, b"%d" % number)
                tx.publish("", "audit", b"%d" % number)
        except tidemark.Unconfirmed:
            self.settle()
        self.transfers = number

    def settle(self) -> None:
        """What is in doubt is sent again until it is answered."""
        while True:
            try:
                self._producer.settle()
                return
            except tidemark.Unconfirmed:
                assert not self._stop.is_set()


class Auditor(Actor):
    """Moves a mark and remembers where it is at the least."""

    def __init__(self, url: str, dice: random.Random) -> None:
        super().__init__(url, dice)
        self.confirmed = 0

    def begin(self, db: Client) -> None:
        self._ledger = db.stream("ledger")
        self._ledger.register("auditor", lease=3600)

    def work(self) -> None:
        with self._ledger.snapshot() as snapshot:
            position = snapshot.position
        self._ledger.move_mark("auditor", position)
        self.confirmed = max(self.confirmed, position.sequence)
        time.sleep(0.01)


class Follower(Actor):
    """Keeps a copy of the accounts by what it is given. At every marker the money must be all there."""

    def __init__(self, url: str, dice: random.Random) -> None:
        super().__init__(url, dice)
        self.copy: dict[bytes, int] = {}
        self.ends: list[int] = []

    def begin(self, db: Client) -> None:
        self._accounts = db.stream("accounts")

    def work(self) -> None:
        for batch in self._accounts.follow("reporter", start=self._start(), idle=0.3, commit="boundary"):
            for row in batch:
                assert row.key is not None
                self.copy[row.key] = int(row.value.split()[0])
            if batch.marker is not None:
                assert sum(self.copy.values()) == DEPOSIT * len(ACCOUNTS), f"at {batch.marker}, seed {SEED}"
                assert not self.ends or batch.marker.end >= self.ends[-1]
                self.ends.append(batch.marker.end)

    def _start(self) -> str | None:
        return None if self.ends else "first"


@dataclass
class Pinned:
    rows: list[Row]
    marker: Marker
    sequence: int


class Pins:
    """Pins of `items` and `accounts`, with what they showed when they were made."""

    def __init__(self, db: Client, dice: random.Random) -> None:
        self._db = db
        self._dice = dice
        self._known: dict[tuple[str, str], Pinned] = {}
        self.read = 0

    def add(self) -> None:
        name, pin = self._dice.choice(("items", "accounts")), f"pin {self._dice.randrange(PINS)}"
        if (name, pin) in self._known and self._dice.random() < 0.5:
            self._db.stream(name).pinned(pin).release()
            del self._known[name, pin]
        made = self._db.stream(name).pin(pin, lease=3600)
        rows = list(made.read())
        assert made.marker is not None and made.marker.verified
        self._check(name, pin, rows, made.marker)
        self._known[name, pin] = Pinned(rows, made.marker, made.sequence)

    def look(self) -> None:
        """All of them, and a range of each, are what they were."""
        for (name, pin), known in self._known.items():
            found = self._db.stream(name).pinned(pin)
            assert found.sequence == known.sequence
            rows = list(found.read())
            assert found.marker is not None
            self._check(name, pin, rows, found.marker)
            low, high = sorted(self._dice.choices(range(known.sequence + 1), k=2))
            part = list(found.read(after=low, until=high))
            assert part == [row for row in known.rows if low < row.sequence <= high]
            self.read += 1

    def _check(self, name: str, pin: str, rows: list[Row], marker: Marker) -> None:
        if name == "accounts":
            assert sum(int(row.value.split()[0]) for row in rows) == DEPOSIT * len(ACCOUNTS)
        known = self._known.get((name, pin))
        if known is not None:
            assert rows == known.rows, f"{pin} of {name} has changed, seed {SEED}"
            assert (marker.hash, marker.count) == (known.marker.hash, known.marker.count)


class Found:
    """A stream in which each key has this value."""

    def __init__(self, value: bytes | None) -> None:
        self._value = value

    def get(self, key: bytes) -> Row | None:
        return None if self._value is None else Row(key, self._value, 1, 0, False, b"")


@pytest.mark.parametrize("value", [b"1", None], ids=["older", "gone"])
def test_a_confirmed_value_that_is_gone_or_went_back_is_noticed(value: bytes | None) -> None:
    writer = Writer("", random.Random(1), [b"k"])
    writer.keys[b"k"] = Tried([None, b"1", b"2", b"3"], confirmed=2)
    for fine in (b"2", b"3"):
        writer.look(Found(fine))  # type: ignore[arg-type]
    with pytest.raises(AssertionError, match="not one of"):
        writer.look(Found(value))  # type: ignore[arg-type]


def drained(broker: BrokerProcess) -> list[int]:
    """The numbers in the queue, in order."""
    connection = pika.BlockingConnection(pika.URLParameters(broker.address.url()))
    channel = connection.channel()
    found = []
    while (message := channel.basic_get("audit", auto_ack=True))[0] is not None:
        found.append(int(message[2]))
    connection.close()
    return found


@pytest.mark.slow
@pytest.mark.timeout(120 + ROUNDS * 10)
def test_a_broker_killed_in_keyed_traffic_keeps_receipts_pins_marks_and_the_money(
    start_broker: Callable[..., BrokerProcess],
) -> None:
    """S-18, S-19, S-20, K-8, K-17, K-19, K-27, K-34, K-35, K-81, M11."""
    print(f"TIDEMARK_KILL_SEED={SEED} TIDEMARK_KILL_ROUNDS={ROUNDS}")
    dice = random.Random(SEED)
    broker = start_broker(*[word for name, value in SMALL.items() for word in ("--set", f"{name}={value}")])
    url = f"tidemark://guest:guest@127.0.0.1:{broker.address.port}/"
    db = tidemark.connect(url, timeout=40)
    for name in ("items", "accounts"):
        db.stream(name, create=True)
    db.stream("ledger", create=True, key="none")
    db.stream("accounts").put_many([(account, b"%d after 0" % DEPOSIT) for account in ACCOUNTS])
    connection = pika.BlockingConnection(pika.URLParameters(broker.address.url()))
    connection.channel().queue_declare("audit", durable=True)
    connection.close()
    writers = [Writer(url, random.Random(dice.random()), KEYS[number::2]) for number in range(2)]
    banker = Banker(url, random.Random(dice.random()))
    auditor = Auditor(url, random.Random(dice.random()))
    follower = Follower(url, random.Random(dice.random()))
    actors: list[Actor] = [*writers, banker, auditor, follower]
    pins = Pins(db, dice)
    for actor in actors:
        actor.start()

    for _ in range(ROUNDS):
        pins.add()
        time.sleep(dice.choice((dice.uniform(0, 0.1), dice.uniform(0.1, 1.0))))
        marked = auditor.confirmed
        broker.kill()
        if dice.random() < 0.2:  # again, while it recovers
            broker.launch()
            time.sleep(dice.uniform(0.02, 0.8))
            broker.kill()
        broker.start()
        look(db, writers, pins, marked, dice)
        for actor in actors:
            actor.check()
    for actor in actors:
        actor.finish()
    broker.kill()
    broker.start()
    look(db, writers, pins, auditor.confirmed, dice)

    rows = {row.key: row.value for row in db.stream("accounts").snapshot()}
    assert {key: int(value.split()[0]) for key, value in rows.items()} == banker.balances
    numbers = [int(row.value) for row in db.stream("ledger").snapshot()]
    assert numbers == list(range(1, banker.transfers + 1)), "a transfer is missing, or there twice"
    assert drained(broker) == numbers
    last = db.stream("accounts").mark("reporter")
    assert last is not None and last.sequence <= follower.ends[-1]
    db.close()
    told = Counter({type(actor).__name__: actor.done for actor in actors})
    print(dict(told), f"{sum(writer.doubtful for writer in writers)} puts in doubt, {pins.read} pins read")
    assert banker.transfers > 2 * ROUNDS
    assert sum(len(writer.receipts) for writer in writers) > 5 * ROUNDS
    assert any(writer.doubtful for writer in writers)
    assert len(follower.ends) > ROUNDS // 2
    assert pins.read > ROUNDS


def look(db: Client, writers: list[Writer], pins: Pins, marked: int, dice: random.Random) -> None:
    """What must be true after every restart, while the traffic goes on."""
    pins.look()
    for writer in writers:
        writer.look(db.stream("items"))
        for receipt in dice.sample(writer.receipts, min(3, len(writer.receipts))):
            assert db.await_safe(receipt, timeout=5) == "yes"
    with db.stream("accounts").snapshot() as snapshot:
        money = sum(int(row.value.split()[0]) for row in snapshot)
        assert snapshot.marker is not None and snapshot.marker.verified
    assert money == DEPOSIT * len(ACCOUNTS), f"{money}, seed {SEED}"
    numbers = [int(row.value) for row in db.stream("ledger").snapshot()]
    assert numbers == list(range(1, len(numbers) + 1)), f"seed {SEED}"
    mark = db.stream("ledger").mark("auditor")
    assert (0 if mark is None else mark.sequence) >= marked, f"a mark went back, seed {SEED}"
