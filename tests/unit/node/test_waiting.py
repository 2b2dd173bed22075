"""The whole node, one step of its loop at a time: nobody waits for ever, and nothing is promised too early."""

from __future__ import annotations

from contextlib import suppress

import pytest
from unit.frontend.harness import PERSISTENT, Client, Content, publish_frames
from unit.node.world import NodeWorld

from tidemark.errors import DiskFull
from tidemark.wire.amqp091.methods import (
    BasicAck,
    BasicCancel,
    BasicConsume,
    BasicGet,
    BasicGetEmpty,
    ConfirmSelect,
    QueueDeclare,
    QueuePurge,
    TxCommit,
    TxCommitOk,
    TxSelect,
    encode_method,
)


@pytest.fixture
def world() -> NodeWorld:
    return NodeWorld()


def give(client: Client, data: bytes) -> None:
    """Bytes from the client, without a turn."""
    assert client.front_end.receive(memoryview(data)) == len(data)


def acks(tags: range) -> bytes:
    return b"".join(encode_method(1, BasicAck(delivery_tag=tag)) for tag in tags)


def heard(client: Client, kind: type) -> bool:
    return any(isinstance(each, kind) for each in client.read_all())


def step(world: NodeWorld) -> None:
    world.node.turn(world.now_ms)
    world.node.completed(world.now_ms)
    world.carry()


def leave_little_room(world: NodeWorld, room: int = 1200) -> None:
    """The disk is full, and in the last segment there are less than `room` bytes."""
    journal = world.node.journal
    world.disk.capacity -= world.disk.free_bytes()
    with suppress(DiskFull):
        while True:
            journal.ensure(room)
            journal.counted(1, [(1, 1)] * 30, world.now_ms)
            journal.flush(world.now_ms)
    step(world)


def test_housekeeping_before_the_turn_ends_writes_no_message_before_its_queue(world: NodeWorld) -> None:
    client = world.open()
    client.ask(1, ConfirmSelect())
    declare = encode_method(1, QueueDeclare(queue="q", durable=True, no_wait=True))
    give(client, declare + publish_frames(1, "q", b"m", properties=PERSISTENT))
    with world.slow_disk():
        world.node.maintain(world.now_ms, 1 << 20)
        world.node.turn(world.now_ms)
        while not heard(client, BasicAck):
            world.disk.work(1)
            world.node.completed(world.now_ms)
            world.carry()
    world.disk._queue.clear()  # the rest never reaches the platter
    assert world.crash().queue("q").ready == 1


@pytest.mark.parametrize("how", ["purged", "expired"])
def test_a_get_that_waits_for_a_message_which_ends_is_answered(world: NodeWorld, how: str) -> None:
    client, other = world.open(), world.open()
    client.declare("q", durable=True, arguments={"x-message-ttl": 50} if how == "expired" else {})
    with world.slow_disk():
        client.publish(1, "q", b"m", properties=PERSISTENT)
        client.send(1, BasicGet(queue="q"))
        assert not client.inbox
        if how == "purged":
            other.send(1, QueuePurge(queue="q"))
        world.now_ms += 100
        world.node.turn(world.now_ms)
    world.turn()
    assert heard(client, BasicGetEmpty)


def test_a_transaction_is_whole_though_older_acks_of_its_queue_found_no_room(world: NodeWorld) -> None:
    client, other = world.open(), world.open()
    client.declare("q", durable=True)
    client.declare("out", durable=True)
    client.publish(1, "q", *(b"old" for _ in range(400)), properties=PERSISTENT)
    client.send(1, BasicConsume(queue="q", consumer_tag="c"))
    client.send(1, BasicCancel(consumer_tag="c"))
    client.publish(1, "q", b"in", properties=PERSISTENT)
    other.ask(1, TxSelect())
    fetched = other.ask(1, BasicGet(queue="q"))
    other.publish(1, "out", b"out", properties=PERSISTENT)
    other.send(1, BasicAck(delivery_tag=fetched.method.delivery_tag))

    leave_little_room(world)
    give(client, acks(range(1, 400, 2)))
    step(world)
    assert world.queue("q").unwritten
    give(other, encode_method(1, TxCommit()))
    step(world)
    committed = heard(other, TxCommitOk)

    after = world.crash()
    reader = after.open()
    reader.send(1, BasicConsume(queue="q"))
    inside = b"in" in [each.body for each in reader.read_all() if isinstance(each, Content)]
    assert (inside, after.queue("out").ready) == ((False, 1) if committed else (True, 0))


def test_one_queue_that_finds_no_room_does_not_hold_up_the_others(world: NodeWorld) -> None:
    client, other = world.open(), world.open()
    client.declare("q", durable=True)
    client.publish(1, "q", *(b"m" for _ in range(300)), properties=PERSISTENT)
    client.send(1, BasicConsume(queue="q"))
    other.declare("t")
    other.send(1, BasicConsume(queue="t", no_ack=True))
    with world.no_room():
        give(client, acks(range(1, 300, 2)))
        for _ in range(20):
            step(world)
        assert len(world.broker.dirty) == 1
        give(other, publish_frames(1, "t", b"t"))
        step(world)
        assert heard(other, Content)


def test_a_full_catalog_heals_without_any_client_saying_something(world: NodeWorld) -> None:
    client = world.open()
    world.disk.capacity -= world.disk.free_bytes()
    number = 0
    while not world.node.catalog.full:
        number += 1
        client.send(1, QueueDeclare(queue=f"q{number}", durable=True, no_wait=True))
    world.disk.capacity = 1 << 40
    for _ in range(3):
        world.now_ms += 100
        world.node.maintain(world.now_ms, 1 << 20)
        world.node.completed(world.now_ms)
        world.node.watch(0, 1 << 40, 1 << 40)
    assert not world.node.alarms.disk


def test_a_commit_is_answered_though_a_publish_behind_it_found_no_room(world: NodeWorld) -> None:
    client, other = world.open(), world.open()
    client.declare("q", durable=True)
    client.declare("t")
    client.ask(1, TxSelect())
    leave_little_room(world)
    # The transient message takes a sequence behind that of the last record.
    publishes = publish_frames(1, "q", b"m", properties=PERSISTENT) + publish_frames(1, "t", b"m")
    give(client, publishes + encode_method(1, TxCommit()))
    give(other, publish_frames(1, "q", b"z" * 4000, properties=PERSISTENT))
    step(world)
    assert heard(client, TxCommitOk)
