"""Streams over AMQP 0-9-1, by ordinary clients: marks, numbered producers and transactions.

What RabbitMQ's streams do too runs on both; what only Tidemark has (keys, marks, markers, numbered producers,
transactions that are one step) asks for `tidemark_only` or for a broker of its own.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pika
import pytest
from helpers.amqp import Connect, channel_refused, get_one, put
from helpers.broker import BrokerProcess
from interop.streams.harness import Declare, contents, declare, delete_key, opened, put_keyed, reading
from pika.adapters.blocking_connection import BlockingChannel

# Marks ----------------------------------------------------------------------------------------------


def test_a_mark_goes_on_where_the_acks_ended(
    connect: Connect, channel: BlockingChannel, stream: str, tidemark_only: None
) -> None:
    """K-27, K-28: a named consumer finds its place again after it was away."""
    put(channel, stream, *[b"%d" % n for n in range(10)])
    first = connect().channel()
    inbox = reading(first, stream, offset="mark", consumer="billing", commit="each")
    inbox.wait(10)
    first.basic_ack(inbox.received[5].tag, multiple=True)
    first.close()
    put(channel, stream, b"10")
    inbox = reading(channel, stream, offset="mark", consumer="billing", commit="each")
    assert [each.body for each in inbox.wait(5)] == [b"6", b"7", b"8", b"9", b"10"]


def test_acks_out_of_order_move_the_mark_to_the_first_gap(
    connect: Connect, channel: BlockingChannel, stream: str, tidemark_only: None
) -> None:
    put(channel, stream, *[b"%d" % n for n in range(6)])
    first = connect().channel()
    inbox = reading(first, stream, offset="mark", consumer="c", commit="each")
    inbox.wait(6)
    for number in (0, 1, 3, 5):
        first.basic_ack(inbox.received[number].tag)
    first.close()
    inbox = reading(channel, stream, offset="mark", consumer="c")
    assert inbox.settle() == [b"2", b"3", b"4", b"5"]


def test_the_consumer_tag_is_the_name_of_a_mark_without_one(
    connect: Connect, channel: BlockingChannel, stream: str, tidemark_only: None
) -> None:
    put(channel, stream, b"1", b"2")
    first = connect().channel()
    inbox = reading(first, stream, offset="mark", tag="me")
    inbox.wait(2)
    first.basic_ack(0, multiple=True)
    first.close()
    put(channel, stream, b"3")
    assert reading(channel, stream, offset="mark", tag="me").settle() == [b"3"]
    assert reading(channel, stream, offset="mark", tag="you").settle() == [b"1", b"2", b"3"]


def test_a_mark_of_whole_snapshots_stays_until_the_last_of_it_is_acked(
    connect: Connect, channel: BlockingChannel, stream: str, tidemark_only: None
) -> None:
    """K-28: by default the mark is only ever at a boundary."""
    transaction = connect().channel()
    transaction.tx_select()
    put(transaction, stream, *[b"%d" % n for n in range(5)])
    transaction.tx_commit()
    first = connect().channel()
    inbox = reading(first, stream, offset="mark", consumer="c")
    inbox.wait(5)
    first.basic_ack(inbox.received[3].tag, multiple=True)
    first.close()
    second = connect().channel()
    inbox = reading(second, stream, offset="mark", consumer="c")
    assert inbox.settle() == [b"0", b"1", b"2", b"3", b"4"]
    second.basic_ack(0, multiple=True)
    second.close()
    assert reading(channel, stream, offset="mark", consumer="c").settle() == []


def test_acks_after_the_cancel_still_move_the_mark(
    connect: Connect, channel: BlockingChannel, stream: str, tidemark_only: None
) -> None:
    put(channel, stream, b"1", b"2")
    first = connect().channel()
    inbox = reading(first, stream, offset="mark", consumer="c")
    inbox.wait(2)
    first.basic_cancel(inbox.tag)
    first.basic_ack(0, multiple=True)
    first.close()
    assert reading(channel, stream, offset="mark", consumer="c").settle() == []


def test_a_stream_survives_with_all_that_was_confirmed_whatever_its_delivery_mode(
    own_channel: BlockingChannel, restart: Callable[[], BlockingChannel]
) -> None:
    """K-17, X-20: what is confirmed is on the disk, and stays in order."""
    declare(own_channel, "s", key="header:key", shards=2)
    for number in range(100):
        own_channel.basic_publish(
            "",
            "s",
            b"%d" % number,
            pika.BasicProperties(delivery_mode=1 + number % 2, headers={"key": f"k{number % 30}"}),
        )
    delete_key(own_channel, "s", "k3")
    before = reading(own_channel, "s")
    before.wait(30)

    channel = restart()
    declare(channel, "s", key="header:key", shards=2)
    after = reading(channel, "s")
    after.wait(30)
    assert after.settle() == before.bodies
    assert contents(after) == contents(before)
    assert "k3" not in contents(after)
    offsets = [each.properties.headers["x-stream-offset"] for each in before.received]
    assert [each.properties.headers["x-stream-offset"] for each in after.received] == offsets
    histories = {each.properties.headers["x-stream-history"] for each in before.received + after.received}
    assert len(histories) == 2  # every start opens a history


def test_marks_survive(own_channel: BlockingChannel, restart: Callable[[], BlockingChannel]) -> None:
    """K-27: Close-Ok of the channel says that its acks, and so its marks, are on the disk."""
    declare(own_channel, "s")
    put(own_channel, "s", *[b"%d" % n for n in range(10)])
    reader = own_channel.connection.channel()
    inbox = reading(reader, "s", offset="mark", consumer="c", commit="each")
    inbox.wait(10)
    reader.basic_ack(inbox.received[6].tag, multiple=True)
    reader.close()
    channel = restart()
    assert reading(channel, "s", offset="mark", consumer="c").settle() == [b"7", b"8", b"9"]


# Numbered producers ------------------------------------------------------------------------------------


def numbered(channel: BlockingChannel, stream: str, body: bytes, sequence: int, producer: str = "p") -> None:
    """Publish under a number of the producer; its name is the test's own, for the broker is not."""
    headers = {"x-producer": f"{producer} of {stream}", "x-producer-sequence": sequence}
    channel.basic_publish("", stream, body, pika.BasicProperties(headers=headers))


def test_a_resend_is_confirmed_and_not_stored_again(
    channel: BlockingChannel, connect: Connect, stream: str, tidemark_only: None
) -> None:
    """S-20, X-17: the producer numbers what it sends, and sends again what it is not sure of."""
    other = connect().channel()
    other.confirm_delivery()
    for number in (1, 2, 3):
        numbered(channel, stream, b"%d" % number, number)
    for number in (2, 3, 4):
        numbered(other, stream, b"%d" % number, number)
    numbered(channel, stream, b"q1", 1, producer="q")
    numbered(channel, stream, b"4", 4)
    assert reading(channel, stream).settle() == [b"1", b"2", b"3", b"4", b"q1"]


def test_numbers_in_a_transaction_are_remembered_with_it(
    channel: BlockingChannel, connect: Connect, stream: str, tidemark_only: None
) -> None:
    other = connect().channel()
    other.tx_select()
    numbered(other, stream, b"1", 1)
    other.tx_rollback()
    numbered(other, stream, b"1", 1)
    numbered(other, stream, b"1 again", 1)
    numbered(other, stream, b"2", 2)
    other.tx_commit()
    numbered(channel, stream, b"2 again", 2)
    numbered(channel, stream, b"3", 3)
    assert reading(channel, stream).settle() == [b"1", b"2", b"3"]


def test_numbers_survive(own_channel: BlockingChannel, restart: Callable[[], BlockingChannel]) -> None:
    declare(own_channel, "s")
    for number in (1, 2):
        numbered(own_channel, "s", b"%d" % number, number)
    channel = restart()
    for number in (1, 2, 3):
        numbered(channel, "s", b"%d" % number, number)
    assert reading(channel, "s").settle() == [b"1", b"2", b"3"]


@pytest.mark.parametrize(
    "headers",
    [
        {"x-producer": "p"},
        {"x-producer": "p", "x-producer-sequence": "1"},
        {"x-producer": "p", "x-producer-sequence": 0},
        {"x-producer": "p", "x-producer-sequence": True},
        {"x-producer": "", "x-producer-sequence": 1},
        {"x-producer": 7, "x-producer-sequence": 1},
    ],
    ids=str,
)
def test_a_bad_number_is_refused(
    channel: BlockingChannel, stream: str, headers: dict[str, Any], tidemark_only: None
) -> None:
    with channel_refused(406):
        channel.basic_publish("", stream, b"x", pika.BasicProperties(headers=headers))


def test_a_queue_does_not_ask_for_numbers(channel: BlockingChannel, queue: str) -> None:
    for _ in range(2):
        put(channel, queue, b"x", headers={"x-producer": "p", "x-producer-sequence": 1})
    assert [get_one(channel, queue)[2] for _ in range(2)] == [b"x", b"x"]


# Transactions of acks and puts ---------------------------------------------------------------------------


def test_a_job_is_done_and_its_result_put_in_one_step(
    channel: BlockingChannel, connect: Connect, new_stream: Declare, name: str, tidemark_only: None
) -> None:
    """M11: acknowledging a delivery and upserting a key is one transaction."""
    stream = new_stream(key="header:key")
    channel.queue_declare(f"{name}-jobs", durable=True)
    put(channel, f"{name}-jobs", b"job", delivery_mode=2)
    worker = connect().channel()
    worker.tx_select()
    method, _, _ = get_one(worker, f"{name}-jobs", auto_ack=False)
    put_keyed(worker, stream, "job", b"result")
    worker.basic_ack(method.delivery_tag)
    inbox = reading(channel, stream)
    assert inbox.settle() == []
    worker.tx_commit()
    assert [each.body for each in inbox.wait(1)] == [b"result"]
    assert channel.queue_delete(f"{name}-jobs").method.message_count == 0


def test_reading_one_stream_and_writing_another_is_one_step(
    own_channel: BlockingChannel, own_broker: BrokerProcess
) -> None:
    """Every message is carried over once, whenever the broker is killed: mark and result are in one frame."""
    declare(own_channel, "in")
    declare(own_channel, "out")
    put(own_channel, "in", *[b"%d" % n for n in range(200)])
    carried, channel = 0, own_channel
    while carried < 200:
        worker = channel.connection.channel()
        worker.tx_select()
        inbox = reading(worker, "in", offset="mark", consumer="carrier", commit="each", prefetch=10)
        for _ in range(4):
            inbox.settle(0.05)
            for delivery in inbox.received:
                put(worker, "out", delivery.body)
                worker.basic_ack(delivery.tag)
            inbox.received.clear()
            worker.tx_commit()
        inbox.settle(0.05)
        for delivery in inbox.received:  # half done when the broker dies
            put(worker, "out", delivery.body)
            worker.basic_ack(delivery.tag)
        own_broker.kill()
        channel = opened(own_broker.start())
        carried = len(reading(channel, "out", prefetch=1000).settle())
    assert reading(channel, "out", prefetch=1000).settle() == [b"%d" % n for n in range(200)]
    channel.connection.close()
