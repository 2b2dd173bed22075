"""What the tests of the requirements need besides `NodeWorld`: journals of other kinds, a look into queues, and what
clients do again and again.

The worlds are whole nodes over a simulated disk, driven by bytes: holding the disk back (`slow_disk`) is HOLDSTORE, a
`lag` is SLOW, `fail_next` is FAILSTORE, `crash` is KILL and RESTART. What AMQP 0-9-1 has no word for is read as follows:
the completion of a transfer is its confirm, the completion of an accept is Tx.Commit-Ok or a Close-Ok.

`PluggedWorld` is a broker with its front ends over any `ports.Journal`. `RecordingJournal` writes the records
that the real journal would write, and `events` reads them back: the whole of what the broker tells its store.
`NullJournal` keeps messages only as long as queues need them and forgets every end at once. `FileWorld` is a
whole node over files. `answers` says what a client was told, in a form that is the same whatever the store is.

Invariant: no world does anything that a process with sockets does not do.
"""

from __future__ import annotations

import json
import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from unit.frontend.harness import PERSISTENT, Client, Content, World
from unit.node.world import NodeWorld

from tidemark.broker.broker import Broker
from tidemark.broker.core import Restorer
from tidemark.broker.queue import Queue
from tidemark.model import records
from tidemark.model.arena import JOURNAL, Arena, Writer
from tidemark.model.records import RecordType
from tidemark.runtime.disk import FileDisk
from tidemark.wire.amqp091.methods import BasicAck, BasicConsume, BasicGet, BasicQos, ConfirmSelect
from tidemark.wire.amqp091.properties import Properties, encode_properties


class NullJournal(Writer):
    """Whatever it is told is safe as soon as it is told, and nothing is kept of it."""

    def __init__(self, arena: Arena) -> None:
        super().__init__(arena, JOURNAL)
        self.durable_seq = 0

    @property
    def last_seq(self) -> int:
        return self.arena.next_seq - 1

    def settled(self, queue: int, reason: int, packed: bytes, ranges: bool, now_ms: int) -> int:
        return self._next()

    def counted(self, queue: int, counts: list[tuple[int, int]], now_ms: int) -> int:
        return self._next()

    def _next(self) -> int:
        seq = self.arena.next_seq
        self.arena.next_seq += 1
        return seq

    def ensure(self, need: int) -> None:
        pass

    def flush(self, now_ms: int) -> None:
        pass


class RecordingJournal(NullJournal):
    """Keeps every record, in memory."""

    def settled(self, queue: int, reason: int, packed: bytes, ranges: bool, now_ms: int) -> int:
        seq = self._next()
        self.append(records.encode_settled(seq, now_ms, queue, reason, packed, ranges))
        return seq

    def counted(self, queue: int, counts: list[tuple[int, int]], now_ms: int) -> int:
        seq = self._next()
        self.append(records.encode_counted(seq, now_ms, queue, counts))
        return seq

    def records(self) -> list[bytes]:
        """All of them, in the order they were written; one extent holds what a test writes."""
        found, at = [], 0
        while at < self.used:
            record = bytes(self.arena.record(self.number << 32 | at))
            found.append(record)
            at += len(record)
        return found

    def events(self) -> list[tuple[Any, ...]]:
        """What the records say: (enqueue, sequence, queue numbers, body), (dequeue, queue, reason, sequences),
        (count, queue, pairs)."""
        return [_event(record) for record in self.records()]


def _event(record: bytes) -> tuple[Any, ...]:
    match records.record_type(record):
        case RecordType.MESSAGE:
            message = records.decode_message(record)
            return "enqueue", message.seq, message.targets, message.body
        case RecordType.SETTLED:
            settled = records.decode_settled(record)
            sequences = [seq for first, count in settled.ranges for seq in range(first, first + count)]
            return "dequeue", settled.queue, settled.reason.name, sequences
        case _:
            return "count", *records.decode_counted(record)


class PluggedWorld(World):
    """A broker with front ends over a journal of this kind."""

    journal: Any

    def __init__(self, kind: Callable[[Arena], NullJournal], **options: Any) -> None:
        super().__init__(**options)
        # Nothing has been published yet, so nobody knows the journal that was there.
        self.journal = self.broker.journal = kind(self.arena)

    def queue(self, name: str) -> Queue:
        return self.broker.vhosts["/"].queues[name]

    def wiring(self) -> list[str]:
        """What the catalog log was told after the defaults, as `operation name`."""
        found = []
        for change in map(json.loads, self.catalog.changes[3:]):
            found.append(f"{change['op']} {change.get('name') or change['destination']}")
        return found


class FileWorld(NodeWorld):
    """A whole node over a directory: turns end when the disk's thread has done its work."""

    def __init__(self, disk: FileDisk) -> None:
        super().__init__(disk)  # type: ignore[arg-type]

    def turn(self) -> None:
        super().turn()
        while not self.node.store.idle:
            time.sleep(0.0005)
            self.node.completed(self.now_ms)
            super().turn()


def replayed(world: PluggedWorld, empty: Broker) -> Broker:
    """`empty` after everything that was told to the recording journal and catalog of this world."""
    for change in world.catalog.changes:
        empty.apply(json.loads(change))
    writer = Writer(empty.arena, JOURNAL)
    for record in world.journal.records():
        writer.append(record)
    Restorer(empty.arena, dict(empty.queues)).frame(writer.number, 0, writer.used)
    return empty


def answers(client: Client) -> list[Any]:
    """What has come, without what is only this broker's: deliveries as their content, the rest as it is."""
    found: list[Any] = []
    for each in client.read_all():
        if isinstance(each, Content):
            method = each.method
            found.append((type(method).__name__, method.delivery_tag, method.redelivered, each.body))
        else:
            found.append(each)
    return found


@dataclass(frozen=True, slots=True)
class Held:
    """One message of a queue, as an administrator sees it."""

    seq: int
    body: bytes
    index: int
    loc: int
    redelivered: bool


def browse(queue: Queue) -> list[Held]:
    """What is ready in a queue, in the order it would be delivered; nothing is changed."""
    found: list[Held] = []
    places: list[tuple[int, int]] = []
    while (taken := queue.take(1 << 20, 1 << 60, hidden=True)) is not None:
        for index, seq, loc, _, flags, _ in taken:
            found.append(Held(seq, queue.broker.arena.message(loc).body, index, loc, bool(flags & 1)))
            places.append((taken.lane, index))
    for lane, index in places:
        queue.requeue(lane, index, False)
    return found


def bodies(queue: Queue) -> list[bytes]:
    return [held.body for held in browse(queue)]


def ids(queue: Queue) -> dict[bytes, int]:
    """The id of each message, by its body."""
    return {held.body: held.seq for held in browse(queue)}


# What clients do -----------------------------------------------------------------------------------------------


def a_publisher(world: NodeWorld | PluggedWorld, *queues: str, **options: Any) -> Client:
    """A client with confirms, and these queues, durable."""
    client = world.open()
    client.ask(1, ConfirmSelect())
    for queue in queues:
        client.declare(queue, durable=True, **options)
    return client


def numbered(count: int, first: int = 0) -> list[bytes]:
    return [b"%05d" % number for number in range(first, first + count)]


def put(client: Client, key: str, *contents: bytes, **options: Any) -> None:
    """Publish persistent messages, and read that they are safe."""
    client.publish(1, key, *contents, properties=PERSISTENT, **options)
    assert {type(answer) for answer in client.read_all()} == {BasicAck}
    assert client.front_end.statistics().channels[0].unconfirmed == 0


def consume(
    client: Client, queue: str, *, prefetch: int = 0, channel: int = 1, **options: Any
) -> list[Content]:
    """Subscribe; what was delivered at once."""
    if prefetch:
        client.ask(channel, BasicQos(prefetch_count=prefetch))
    client.send(channel, BasicConsume(queue=queue, **options))
    client.read()
    return client.read_all()


def fetch(client: Client, queue: str) -> Content:
    found = client.ask(1, BasicGet(queue=queue))
    assert isinstance(found, Content), found
    return found


def priority(number: int) -> bytes:
    return encode_properties(Properties(delivery_mode=2, priority=number))
