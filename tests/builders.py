"""Things that tests need, with every detail optional."""

from __future__ import annotations

import json
import random
from collections.abc import Iterable
from typing import Any

from tidemark.broker.broker import Broker
from tidemark.broker.config import BrokerConfig
from tidemark.broker.queue import Queue
from tidemark.broker.session import Session
from tidemark.model.arena import Arena, Writer
from tidemark.model.records import Reason, RecordType
from tidemark.model.runs import Taken
from tidemark.model.wiring import PermissionSpec, UserSpec, VhostSpec
from tidemark.wire.amqp091.content import Amqp091Content

MEMORY, JOURNAL = 0, 1


class RecordingJournal(Writer):
    """A journal that keeps its records in memory and notes what it was told. Nothing is durable until a test
    says so (`durable_seq`)."""

    def __init__(self, arena: Arena) -> None:
        super().__init__(arena, JOURNAL)
        self.durable_seq = 0
        self.last_seq = 0
        self.told: list[tuple[Any, ...]] = []

    def _next(self) -> int:
        self.last_seq = self.arena.next_seq
        self.arena.next_seq += 1
        return self.last_seq

    def settled(self, queue: int, reason: int, packed: bytes, ranges: bool, now_ms: int) -> int:
        self.told.append((RecordType.SETTLED, queue, Reason(reason), packed, ranges))
        return self._next()

    def counted(self, queue: int, counts: list[tuple[int, int]], now_ms: int) -> int:
        self.told.append((RecordType.COUNTED, queue, counts))
        return self._next()

    def ensure(self, need: int) -> None:
        self.told.append(("ensure", need))

    def flush(self, now_ms: int) -> None:
        self.told.append(("flush", now_ms))


class RecordingCatalog:
    """A catalog log that keeps its changes in memory. Nothing is durable until a test says so."""

    def __init__(self) -> None:
        self.durable_seq = 0
        self.last_seq = 0
        self.changes: list[bytes] = []

    def append(self, change: bytes, now_ms: int) -> int:
        self.changes.append(change)
        self.last_seq += 1
        return self.last_seq

    def ops(self) -> list[str]:
        """What was logged, by name."""
        return [json.loads(change)["op"] for change in self.changes]


def a_broker(
    *,
    replaying: Iterable[bytes] = (),
    vhosts: Iterable[str] = ("/",),
    users: Iterable[str] = ("guest",),
    config: BrokerConfig | None = None,
    seed: int = 0,
) -> Broker:
    """A broker on an in-memory journal and catalog (`broker.journal`, `broker.catalog`).

    It starts with what `replaying` says, as after a restart; else with these users, who have no password and
    all rights in these virtual hosts.
    """
    arena = Arena()
    broker = Broker(
        arena=arena,
        memory=Writer(arena, MEMORY),
        journal=RecordingJournal(arena),
        catalog=RecordingCatalog(),
        content=Amqp091Content(),
        config=config or BrokerConfig(scrypt_log2_n=10),
        entropy=random.Random(seed).randbytes,
    )
    changes = list(replaying)
    for change in changes:
        broker.apply(json.loads(change))
    if changes:
        return broker
    for vhost in vhosts:
        broker.put(VhostSpec(vhost))
    for user in users:
        broker.put(UserSpec(user))
        for vhost in vhosts:
            broker.put(PermissionSpec(user, vhost, ".*", ".*", ".*"))
    return broker


def a_session(broker: Broker | None = None, *, vhost: str = "/", user: str = "guest") -> Session:
    return (broker or a_broker()).open_session(vhost, user, None, "test")


def a_queue(broker: Broker | None = None, name: str = "q", **declared: Any) -> Queue:
    """A queue, declared with these properties and arguments."""
    session = a_session(broker)
    session.declare_queue(name, **declared)
    return session.vhost.queues[name]


class RecordingSink:
    """A channel that takes `room` messages and notes what it is given."""

    def __init__(self, room: int = 1 << 30) -> None:
        self.left = room
        self.delivered: list[tuple[Any, list[tuple[int, ...]]]] = []
        self.cancellations: list[Any] = []

    def room(self) -> int:
        return self.left

    def deliver(self, consumer: Any, taken: Taken) -> bool:
        self.left -= len(taken)
        self.delivered.append((consumer, list(taken)))
        return True

    def cancelled(self, consumer: Any) -> None:
        self.cancellations.append(consumer)
