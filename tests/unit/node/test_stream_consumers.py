"""Consumers of streams on a whole node: credit, marks, markers, resets and snapshots that took too long."""

from __future__ import annotations

from random import Random
from typing import Any

import pytest
from unit.frontend.harness import Client, Content
from unit.node.world import NodeWorld

from tidemark.broker.streams.stream import Stream
from tidemark.wire.amqp091.methods import (
    BasicAck,
    BasicCancel,
    BasicConsume,
    BasicConsumeOk,
    BasicNack,
    BasicQos,
    BasicRecover,
    BasicRecoverAsync,
    BasicReject,
    ChannelClose,
    ChannelCloseOk,
    Method,
    QueueDelete,
    QueuePurge,
    TxCommit,
    TxRollback,
    TxSelect,
)
from tidemark.wire.amqp091.properties import Properties, encode_properties

STREAM = {"x-queue-type": "stream"}
KEYED = {**STREAM, "x-stream-key": "header:key"}


@pytest.fixture
def world() -> NodeWorld:
    return NodeWorld()


@pytest.fixture
def writer(world: NodeWorld) -> Client:
    client = world.open()
    client.declare("s", durable=True, arguments=KEYED)
    return client


def put(client: Client, key: str, body: bytes) -> None:
    headers: dict[str, Any] = {"key": key} if body else {"key": key, "x-tombstone": True}
    client.publish(1, "s", body, properties=encode_properties(Properties(headers=headers)))


def stream_of(world: NodeWorld) -> Stream:
    found = world.queue("s")
    assert isinstance(found, Stream)
    return found


def consume(world: NodeWorld, *, prefetch: int = 100, **arguments: Any) -> Client:
    """A client that reads the stream from its first message on, unless it says otherwise."""
    client = world.open()
    client.ask(1, BasicQos(prefetch_count=prefetch))
    settings = {"x-stream-offset": "first"}
    settings |= {"x-stream-" + name.replace("_", "-"): value for name, value in arguments.items()}
    client.send(1, BasicConsume(queue="s", consumer_tag="t", arguments=settings))
    return client


def started(client: Client) -> Client:
    assert client.read() == BasicConsumeOk(consumer_tag="t")
    return client


def headers(delivery: Content) -> dict[str, Any]:
    return delivery.properties.headers or {}


def ack(client: Client, tag: int, *, multiple: bool = True) -> None:
    client.send(1, BasicAck(delivery_tag=tag, multiple=multiple))


def test_markers_use_credit_and_are_acked_like_messages(world: NodeWorld, writer: Client) -> None:
    for number in range(3):
        put(writer, f"k{number}", b"%d" % number)
    client = started(consume(world, prefetch=2, markers=True))
    assert client.bodies() == [b"0", b"1"]
    ack(client, 2)
    third, marker = client.read_all()
    assert third.body == b"2"
    assert headers(marker)["x-stream-marker"] is True
    put(writer, "k4", b"4")
    assert client.read_all() == []
    ack(client, 4)
    fourth, marker = client.read_all()
    assert (fourth.body, headers(marker)["x-stream-count"]) == (b"4", 1)


def test_the_mark_is_at_a_boundary_that_was_told_only_when_that_is_acked(
    world: NodeWorld, writer: Client
) -> None:
    """K-19, K-28: who asks for markers says with the ack of one that he has dealt with all before it."""
    put(writer, "a", b"1")
    client = started(consume(world, offset="mark", consumer="c", markers=True))
    _, marker = client.read_all()
    mark = stream_of(world).marks.by_name["c"]
    ack(client, 1)
    assert mark.seq == 0
    ack(client, 2)
    assert mark.seq == headers(marker)["x-stream-to"]


def test_nothing_is_lost_of_a_snapshot_that_took_too_long(world: NodeWorld, writer: Client) -> None:
    """K-29, K-89: its reader is slow; the broker lets the snapshot go. What was superseded meanwhile comes in the next one."""
    for number in range(10):
        put(writer, f"k{number}", b"old")
    client = started(consume(world, prefetch=3))
    known: dict[str, bytes] = {}

    def take() -> int:
        last = 0
        for delivery in client.read_all():
            known[headers(delivery)["x-stream-key"]] = delivery.body
            last = delivery.method.delivery_tag
        return last

    tag = take()
    for number in range(0, 10, 2):
        put(writer, f"k{number}", b"new")
    put(writer, "k1", b"")
    for _ in range(5):
        world.now_ms += 1000 * world.broker.config.snapshot_idle_s
        world.node.tick(world.now_ms)
        world.turn()
    assert not stream_of(world).held
    while tag:
        ack(client, tag)
        tag = take()
    assert known == {f"k{n}": b"" if n == 1 else b"old" if n % 2 else b"new" for n in range(10)}


@pytest.mark.parametrize("how", ["fail", "restart"])
def test_who_missed_deletes_must_begin_again(world: NodeWorld, writer: Client, how: str) -> None:
    """K-88: an explicit reset, never a silent gap."""
    for number in range(5):
        put(writer, f"k{number}", b"%d" % number)
    first = started(consume(world, offset="mark", consumer="c", commit="each"))
    first.read_all()
    ack(first, 3)
    world.lose(first)
    writer.ask(1, QueuePurge(queue="s"))
    put(writer, "new", b"new")
    client = consume(world, offset="mark", consumer="c", on_reset=how)
    if how == "fail":
        close = client.read()
        assert close.reply_code == 406
        assert "x-stream-offset 'first'" in close.reply_text
        return
    started(client)
    reset, row = client.read_all()
    assert headers(reset)["x-stream-reset"] is True
    assert reset.body == b""
    assert row.body == b"new"
    ack(client, row.method.delivery_tag)
    world.lose(client)
    assert started(consume(world, offset="mark", consumer="c")).bodies() == []


def test_marks_that_follow_every_ack_survive_a_crash_in_the_middle_of_a_snapshot(
    world: NodeWorld, writer: Client
) -> None:
    for number in range(6):
        put(writer, f"k{number}", b"%d" % number)
    client = started(consume(world, offset="mark", consumer="c", commit="each"))
    client.read_all()
    ack(client, 4)
    client.ask(1, ChannelClose())
    after = world.crash()
    assert started(consume(after, offset="mark", consumer="c")).bodies() == [b"4", b"5"]


def test_close_ok_waits_for_the_mark(world: NodeWorld, writer: Client) -> None:
    put(writer, "a", b"1")
    client = started(consume(world, offset="mark", consumer="c"))
    client.read_all()
    with world.slow_disk():
        ack(client, 1)
        client.send(1, ChannelClose())
        assert client.read_all() == []
    world.turn()
    assert client.read_all() == [ChannelCloseOk()]
    assert started(consume(world.crash(), offset="mark", consumer="c")).bodies() == []


def test_acks_after_the_stream_is_gone_are_taken_in_vain(world: NodeWorld, writer: Client) -> None:
    put(writer, "a", b"1")
    client = started(consume(world, offset="mark", consumer="c"))
    client.read_all()
    writer.ask(1, QueueDelete(queue="s"))
    assert client.read_all() == [BasicCancel(consumer_tag="t", no_wait=True)]
    ack(client, 1)
    assert client.read_all() == []
    assert world.notes.count(("error", "unexpected exception")) == 0


def test_a_consumer_that_does_not_read_its_socket_is_given_no_more(world: NodeWorld, writer: Client) -> None:
    body = bytes(100_000)
    for number in range(60):
        put(writer, f"k{number}", body)
    client = world.open()
    client.ask(1, BasicQos(prefetch_count=1000))
    client.front_end.writable(False)
    arguments = {"x-stream-offset": "first"}
    client.send(1, BasicConsume(queue="s", consumer_tag="t", arguments=arguments))
    assert stream_of(world).consumers[0].unacked == 0
    client.front_end.writable(True)
    world.turn()
    assert len(started(client).read_all()) == 60


def test_recovering_is_refused_as_there_is_nothing_to_give_back(world: NodeWorld, writer: Client) -> None:
    put(writer, "a", b"1")
    client = started(consume(world))
    client.read_all()
    close = client.ask_connection(1, BasicRecover(requeue=True))
    assert close.reply_code == 540
    assert stream_of(world).consumers == []


@pytest.mark.parametrize(
    "give_back",
    [
        BasicNack(delivery_tag=3, multiple=True, requeue=True),
        BasicReject(delivery_tag=2, requeue=False),
        BasicRecoverAsync(requeue=True),
    ],
    ids=lambda method: type(method).__name__,
)
def test_what_is_given_back_after_the_cancel_stays_behind_the_mark(
    world: NodeWorld, writer: Client, give_back: Method
) -> None:
    """As clients do that stop with messages which they have not looked at."""
    for number in range(3):
        put(writer, f"k{number}", b"%d" % number)
    client = started(consume(world, offset="mark", consumer="c", commit="each"))
    client.read_all()
    ack(client, 1)
    client.send(1, BasicCancel(consumer_tag="t", no_wait=True), give_back)
    assert client.read_all() == []
    assert started(consume(world, offset="mark", consumer="c")).bodies() == [b"1", b"2"]


def test_a_channel_that_ends_leaves_no_consumer_and_no_snapshot(world: NodeWorld, writer: Client) -> None:
    for number in range(10):
        put(writer, f"k{number}", b"x")
    client = started(consume(world, prefetch=2))
    stream = stream_of(world)
    assert stream.stream().snapshots == 1
    assert stream.statistics().consumers[0].unacked == 2
    client.send(1, ChannelClose())
    assert stream.consumers == []
    assert stream.stream().snapshots == 0


def test_an_ack_in_a_transaction_that_is_rolled_back_moves_no_mark(world: NodeWorld, writer: Client) -> None:
    put(writer, "a", b"1")
    client = world.open()
    client.ask(1, TxSelect())
    client.ask(1, BasicQos(prefetch_count=5))
    settings = {"x-stream-offset": "mark", "x-stream-consumer": "c"}
    client.send(1, BasicConsume(queue="s", consumer_tag="t", arguments=settings))
    started(client).read_all()
    ack(client, 1)
    client.ask(1, TxRollback())
    assert stream_of(world).marks.by_name["c"].seq == 0
    client.send(1, BasicAck(delivery_tag=1), TxCommit())
    assert stream_of(world).marks.by_name["c"].seq == stream_of(world).boundary


def test_a_thousand_consumers_of_one_stream_each_get_everything(world: NodeWorld, writer: Client) -> None:
    """K-25"""
    client = world.open()
    client.ask(1, BasicQos(prefetch_count=10))
    arguments = {"x-stream-offset": "first"}
    for number in range(1000):
        client.send(1, BasicConsume(queue="s", consumer_tag=f"t{number}", arguments=arguments, no_wait=True))
    put(writer, "a", b"1")
    put(writer, "b", b"2")
    got = client.read_all()
    assert len(got) == 2000
    assert {each.method.consumer_tag for each in got} == {f"t{number}" for number in range(1000)}


@pytest.mark.parametrize("commit", ["boundary", "each"])
def test_a_consumer_that_is_lost_a_hundred_times_skips_nothing(
    world: NodeWorld, writer: Client, commit: str
) -> None:
    """K-29: keys are rewritten and deleted meanwhile; in the end it knows what the stream holds."""
    dice, truth, known, written = Random(5), dict[str, bytes](), dict[str, bytes](), 0

    def write() -> None:
        nonlocal written
        written += 1
        key = f"k{dice.randrange(40)}"
        truth[key] = b"" if dice.random() < 0.2 else b"%d" % written
        put(writer, key, truth[key])

    for _ in range(60):
        write()
    for _ in range(100):
        client = started(
            consume(world, offset="mark", consumer="c", commit=commit, prefetch=dice.randrange(1, 30))
        )
        held: list[Content] = []
        for _ in range(dice.randrange(4)):
            held += client.read_all()
            if not held:
                break
            done = dice.randrange(len(held))
            for delivery in held[: done + 1]:
                known[headers(delivery)["x-stream-key"]] = delivery.body
            ack(client, held[done].method.delivery_tag)
            del held[: done + 1]
            if dice.random() < 0.3:
                write()
        world.lose(client)
        if dice.random() < 0.02:
            world = world.crash()
            writer = world.open()
    client = started(consume(world, offset="mark", consumer="c", commit=commit))
    for delivery in client.read_all():
        known[headers(delivery)["x-stream-key"]] = delivery.body
    assert known == truth
