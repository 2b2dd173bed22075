"""Transactions over queues and streams on a node that is killed at every step: all of it, or nothing."""

from __future__ import annotations

from random import Random

import pytest
from unit.frontend.harness import PERSISTENT, Client
from unit.node.world import NodeWorld

from tidemark.broker.streams.stream import Stream
from tidemark.wire.amqp091.methods import (
    BasicAck,
    BasicConsume,
    BasicGet,
    BasicQos,
    ConfirmSelect,
    TxCommit,
    TxCommitOk,
    TxSelect,
)
from tidemark.wire.amqp091.properties import Properties, encode_properties

STREAM = {"x-queue-type": "stream"}
KEYED = {**STREAM, "x-stream-key": "header:key"}


class Killed(BaseException):
    """The process ends here."""


def keyed(key: str, **headers: object) -> bytes:
    return encode_properties(Properties(headers={"key": key, **headers}))


def stream_of(world: NodeWorld, name: str) -> Stream:
    found = world.queue(name)
    assert isinstance(found, Stream)
    return found


def rows(world: NodeWorld, name: str) -> dict[bytes, bytes]:
    """Key and body of all that a snapshot of the stream sees now."""
    stream = stream_of(world, name)
    seen: dict[bytes, bytes] = {}
    taken = stream.take(stream.caught_up(), 0, stream.boundary, 1000, 1 << 20)
    for _, _, loc, _, _, _ in taken or ():
        seen[stream.key_at(loc) or b"%d" % len(seen)] = world.broker.arena.message(loc).body
    return seen


def is_committed(client: Client) -> bool:
    return any(isinstance(each, TxCommitOk) for each in client.read_all())


@pytest.mark.parametrize("power", [False, True], ids=["process", "power"])
def test_an_ack_and_an_upsert_are_one_step_wherever_the_node_dies(power: bool) -> None:
    """M11, K-34: at every write and sync of the disk."""
    committed = undone = step = 0
    killed: bool = True
    while killed:
        world = NodeWorld()
        client = world.open()
        client.declare("jobs", durable=True)
        client.declare("results", durable=True, arguments=KEYED)
        client.publish(1, "results", b"old", properties=keyed("a"))
        client.publish(1, "jobs", b"job", properties=PERSISTENT)
        client.ask(1, TxSelect())
        client.ask(1, BasicGet(queue="jobs"))
        killed = False
        try:
            with world.disk.dying(step, Killed):  # type: ignore[arg-type]
                client.publish(1, "results", b"new", properties=keyed("a"))
                client.publish(1, "results", bytes(3000), properties=keyed("b"))
                client.send(1, BasicAck(delivery_tag=1))
                client.send(1, TxCommit())
        except Killed:
            killed = True
        told = is_committed(client)
        after = world.crash(power)
        done = rows(after, "results")
        assert done in ({b"a": b"old"}, {b"a": b"new", b"b": bytes(3000)})
        is_done = b"b" in done
        assert after.queue("jobs").ready == (0 if is_done else 1)
        assert is_done or not told
        committed += is_done
        undone += not is_done
        step += 1
    assert committed
    assert undone


@pytest.mark.parametrize("seed", range(20))
def test_a_transaction_is_one_frame_wherever_it_begins_in_an_extent(seed: int) -> None:
    """K-34: many queues, streams, marks and numbered messages, with the end of an extent anywhere among them."""
    dice = Random(seed)
    world = NodeWorld()
    client = world.open(channels=2)
    client.declare("jobs", durable=True)
    client.declare("in", durable=True, arguments=STREAM)
    client.declare("out", durable=True, arguments=KEYED)
    client.publish(2, "in", *[b"%d" % n for n in range(5)])
    client.publish(2, "jobs", *[b"%d" % n for n in range(5)], properties=PERSISTENT)
    for _ in range(dice.randrange(60)):
        client.publish(2, "jobs", bytes(dice.randrange(2000)), properties=PERSISTENT)
    client.ask(1, TxSelect())
    client.ask(1, BasicQos(prefetch_count=5))
    reading = {"x-stream-offset": "mark", "x-stream-consumer": "c", "x-stream-commit": "each"}
    client.send(1, BasicConsume(queue="in", arguments=reading), BasicConsume(queue="jobs"))
    assert len(client.read_all()) == 12

    step, whole = dice.randrange(4), 0
    try:
        with world.disk.dying(step, Killed):  # type: ignore[arg-type]
            for number in range(dice.randrange(1, 20)):
                numbers = {"x-producer": "p", "x-producer-sequence": number + 1}
                body = bytes(dice.randrange(1500))
                client.publish(1, "out", body, properties=keyed(f"k{number}", **numbers))
                whole += 1
            client.send(1, BasicAck(delivery_tag=0, multiple=True))
            client.send(1, TxCommit())
    except Killed:
        pass
    told = is_committed(client)
    after = world.crash(dice.random() < 0.5)
    done = len(rows(after, "out"))
    mark = stream_of(after, "in").marks.by_name["c"].seq
    ready = after.queue("jobs").ready
    assert done in (0, whole)
    assert (mark > 0) == (done > 0)
    assert after.broker.streams.producers.last("/", "guest/p") == done
    assert ready == world.queue("jobs").published - (5 if done else 0)
    assert done or not told


def test_a_commit_that_a_full_queue_refuses_leaves_stream_and_mark_as_they_were() -> None:
    world = NodeWorld()
    client = world.open()
    client.declare("full", durable=True, arguments={"x-max-length": 0, "x-overflow": "reject-publish"})
    client.declare("s", durable=True, arguments=STREAM)
    client.publish(1, "s", b"1")
    client.ask(1, TxSelect())
    client.ask(1, BasicQos(prefetch_count=5))
    reading = {"x-stream-offset": "mark", "x-stream-consumer": "c"}
    client.send(1, BasicConsume(queue="s", arguments=reading))
    assert len(client.read_all()) == 2
    client.publish(1, "s", b"2")
    client.publish(1, "full", b"3", properties=PERSISTENT)
    client.send(1, BasicAck(delivery_tag=1), TxCommit())
    [close] = client.read_all()
    assert close.reply_code == 406
    assert stream_of(world, "s").live == 1
    assert stream_of(world, "s").marks.by_name["c"].seq == 0


def test_a_publish_to_a_stream_is_confirmed_when_it_is_on_the_disk_whatever_its_delivery_mode() -> None:
    """K-78: consumers see it then, too."""
    world = NodeWorld()
    client, reader = world.open(), world.open()
    client.declare("s", durable=True, arguments=STREAM)
    client.ask(1, ConfirmSelect())
    reader.ask(1, BasicQos(prefetch_count=5))
    reader.send(1, BasicConsume(queue="s", arguments={"x-stream-offset": "first"}))
    reader.read_all()
    with world.slow_disk():
        client.publish(1, "s", b"transient")
        assert client.read_all() == []
        assert reader.read_all() == []
    world.turn()
    assert isinstance(client.read(), BasicAck)
    assert [each.body for each in reader.read_all()] == [b"transient"]
    assert rows(world.crash(), "s") == {b"0": b"transient"}


def test_the_confirm_of_a_resend_waits_for_the_first_one() -> None:
    """S-20, X-17: a duplicate of what is not on the disk yet is not safe yet either."""
    world = NodeWorld()
    client, again = world.open(), world.open()
    client.declare("s", durable=True, arguments=STREAM)
    numbered = encode_properties(Properties(headers={"x-producer": "p", "x-producer-sequence": 1}))
    for each in (client, again):
        each.ask(1, ConfirmSelect())
    with world.slow_disk():
        client.publish(1, "s", b"1", properties=numbered)
        again.publish(1, "s", b"1", properties=numbered)
        assert client.read_all() == again.read_all() == []
    world.turn()
    assert isinstance(client.read(), BasicAck)
    assert isinstance(again.read(), BasicAck)
    assert len(rows(world.crash(), "s")) == 1
