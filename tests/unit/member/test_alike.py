"""Members that hold the same logs hold the same queues and streams, whatever happened on the way there."""

from __future__ import annotations

from contextlib import suppress
from random import Random
from typing import Any

import pytest
from unit.frontend.harness import PERSISTENT, Client
from unit.member.world import Group, Process

from tidemark.broker.streams.commit import Batch, Put
from tidemark.errors import HistoryGone, NotFound, PinExpired
from tidemark.model.rows import Row, RowBatch
from tidemark.wire.amqp091.methods import BasicAck, BasicGet, BasicNack, QueueDeclare, QueueDelete, QueuePurge

QUEUES = ("q0", "q1")
STREAMS = {
    "keyed": {},
    "past": {"x-stream-history": 3600},
    "short": {"x-max-length-bytes": 2000},
}


def picture(process: Process) -> dict[str, Any]:
    """All that a client could tell one member from another by, at this moment."""
    broker = process.node.broker
    found: dict[str, Any] = {"catalog": broker.image(), "next": broker.next_number}
    for number, queue in broker.queues.items():
        if not queue.durable:
            continue
        if queue.keeps:
            found[queue.name] = stream_picture(queue)
        else:
            messages = []
            for lane in range(queue.lanes):
                messages += [
                    # Deliveries are written down where there is a limit to them.
                    (entry.seq, entry.size, entry.deliveries * (queue.name == "q1"), entry.expires_ms)
                    for entry in entries(queue, lane)
                ]
            found[queue.name] = number, sorted(messages)
    state = broker.streams.state
    found["state"] = {
        bytes(name): seq for name, (seq, _) in state._bodies.items() if not name.startswith(b"mark")
    }
    return found


def entries(queue: Any, lane: int) -> list[Any]:
    found, index = [], 0
    missing = 0
    while missing < 5000:
        try:
            found.append(queue.entry(lane, index))
            missing = 0
        except (KeyError, IndexError, AssertionError):
            missing += 1
        index += 1
    return found


def stream_picture(stream: Any) -> dict[str, Any]:
    stream.caught_up()
    pins = {
        pin.name: (pin.seq, pin.lease_ms, pin.shards, view(stream, pin.seq))
        for pin in stream.pins.by_name.values()
    }
    return {
        "boundary": stream.boundary,
        "shown": view(stream, stream.boundary),
        "pins": pins,
        "ends": (stream.ends.last, stream.ends.buries),
        "tombstones": stream.tombstones,
        "live": (stream.live, stream.live_bytes),
    }


def view(stream: Any, seq: int) -> tuple[int, int]:
    """Count and hash of what a snapshot shows."""
    count = digest = after = 0
    while (taken := stream.take(seq, after, seq, 1000, 1 << 20)) is not None:
        after = stream.position
        count += len(taken)
        digest += stream.digest(taken)
    return count, digest & (1 << 128) - 1


class Traffic:
    """Random work at whoever leads."""

    def __init__(self, group: Group, dice: Random) -> None:
        self.group = group
        self.dice = dice
        self.client: Client | None = None
        self.at: Process | None = None
        self.numbers = dict.fromkeys("xyz", 0)
        """The last batch of each producer that was confirmed."""
        self.made = 0

    def begin(self) -> None:
        self.at = self.group.leader
        self.client = self.at.open(confirms=True)
        for name in QUEUES:
            arguments = {"x-queue-type": "quorum", "x-delivery-limit": 5} if name == "q1" else {}
            self.client.send(1, QueueDeclare(queue=name, durable=True, arguments=arguments))
        for name, arguments in STREAMS.items():
            self.at.session().declare(name, arguments)
        self.group.settle()
        self.client.read_all()

    def step(self) -> None:
        if self.at is not self.group.leader or self.at.node.front_ends.get(self.client.front_end) is None:  # type: ignore[union-attr]
            self.begin()
        assert self.client is not None and self.at is not None
        work = self.dice.choice(
            (self.publish, self.publish, self.consume, self.put, self.put, self.put, self.pin, self.release, self.declare,
             self.purge, self.commit)
        )  # fmt: skip
        with suppress(NotFound, PinExpired, HistoryGone):
            work()
        if self.dice.random() < 0.6:
            self.group.settle()

    def publish(self) -> None:
        queue = self.dice.choice(QUEUES)
        bodies = [self.dice.randbytes(self.dice.randrange(2000)) for _ in range(self.dice.randint(1, 5))]
        self.client.publish(1, queue, *bodies, properties=PERSISTENT)  # type: ignore[union-attr]

    def consume(self) -> None:
        client = self.client
        assert client is not None
        client.read_all()
        client.send(1, BasicGet(queue=self.dice.choice(QUEUES)))
        for answer in client.read_all():
            tag = getattr(getattr(answer, "method", None), "delivery_tag", None)
            if tag is not None and self.dice.random() < 0.5:
                client.send(1, BasicAck(delivery_tag=tag))
            elif tag is not None:
                client.send(1, BasicNack(delivery_tag=tag, requeue=True))

    def put(self) -> None:
        rows = []
        for _ in range(self.dice.randint(1, 4)):
            key = b"k%d" % self.dice.randrange(12)
            gone = self.dice.random() < 0.2
            rows.append(Row(key, b"" if gone else self.dice.randbytes(50), tombstone=gone))
        stream = self.dice.choice(list(STREAMS))
        self.at.session().commit(Batch([Put(stream, RowBatch.build(rows))]))  # type: ignore[union-attr]

    def commit(self) -> None:
        """A numbered batch, as often as it takes."""
        assert self.at is not None
        producer = self.dice.choice("xyz")
        self.numbers[producer] += 1
        rows = RowBatch.build([Row(b"p" + producer.encode(), b"%d" % self.numbers[producer])])
        batch = Batch([Put("keyed", rows)], producer=producer, sequence=self.numbers[producer])
        self.at.session().commit(batch)
        self.group.settle()

    def pin(self) -> None:
        assert self.at is not None
        self.made += 1
        at = self.at.stream("keyed").boundary if self.dice.random() < 0.3 else None
        snapshot, _ = self.at.session().pin("keyed", f"p{self.made % 4}", 3_600_000, at=at)
        if self.dice.random() < 0.7:
            snapshot.close()

    def release(self) -> None:
        self.at.session().release("keyed", f"p{self.dice.randrange(4)}")  # type: ignore[union-attr]

    def declare(self) -> None:
        name = f"t{self.dice.randrange(3)}"
        assert self.client is not None
        if self.at.queue(name) is None:  # type: ignore[union-attr]
            self.client.send(1, QueueDeclare(queue=name, durable=True))
        else:
            self.client.send(1, QueueDelete(queue=name))

    def purge(self) -> None:
        if self.dice.random() < 0.2:
            self.client.send(1, QueuePurge(queue="q0"))  # type: ignore[union-attr]


def compare(group: Group) -> None:
    group.until_ready()
    group.settle()
    ends = {process.name: process.node.store.ends for process in group}
    assert len(set(ends.values())) == 1, ends
    first, *others = [picture(process) for process in group]
    for other in others:
        assert other == first


@pytest.mark.parametrize("mode", ["standby", "chain"])
@pytest.mark.parametrize("seed", range(3))
def test_members_are_alike_after_random_work_and_faults(mode: str, seed: int) -> None:
    """U-34, Q-20: replicas do not drift. Sequences, digests and counts of every queue and stream are those of the leader."""
    dice = Random(seed)
    group = Group("abc", mode=mode)
    group.until_ready()
    traffic = Traffic(group, dice)
    for _ in range(12):
        for _ in range(dice.randrange(25)):
            traffic.step()
        fate = dice.randrange(8)
        victim = dice.choice(group.followers).name
        if fate == 0:
            old = group.leader.name
            group.fail_over()
            group.restart(old)
        elif fate == 1:
            group.kill(victim, power=True)
            for _ in range(dice.randrange(20)):
                traffic.step()
            group.pass_ms(300, 3)
            group.restart(victim)
        elif fate == 2:
            with group.stall(victim):
                for _ in range(dice.randrange(10)):
                    traffic.step()
                group.pass_ms(50, 3)
        elif fate == 3:
            with group.mute(group.leader.name, victim):
                for _ in range(dice.randrange(10)):
                    traffic.step()
                group.pass_ms(50, 3)
        else:
            group.pass_ms(100, dice.randrange(1, 12))
        if dice.random() < 0.5:
            compare(group)
            for producer, number in traffic.numbers.items():
                assert group.leader.session().producer_last(producer) >= number
    compare(group)
