"""Streams over AMQP 0-9-1, by ordinary clients: reading them.

What RabbitMQ's streams do too runs on both; what only Tidemark has (keys, marks, markers, numbered producers,
transactions that are one step) asks for `tidemark_only` or for a broker of its own.
"""

from __future__ import annotations

import asyncio
import time
from datetime import UTC, datetime, timedelta
from random import Random
from typing import Any

import aio_pika
import pytest
from helpers.amqp import Connect, Inbox, put, sync
from helpers.broker import Address
from interop.streams.harness import FIRST, declare, reading
from pika.adapters.blocking_connection import BlockingChannel

# Reading ---------------------------------------------------------------------------------------------


def test_everybody_reads_all_messages_in_order_and_they_stay(
    channel: BlockingChannel, connect: Connect, stream: str
) -> None:
    """X-16, K-15: reading takes nothing away."""
    put(channel, stream, *[b"%d" % n for n in range(20)])
    for _ in range(2):
        other = connect().channel()
        inbox = reading(other, stream)
        assert [each.body for each in inbox.wait(20)] == [b"%d" % n for n in range(20)]
        other.basic_ack(0, multiple=True)
        other.connection.close()
    assert [each.body for each in reading(channel, stream).wait(20)] == [b"%d" % n for n in range(20)]


def test_a_consumer_gets_what_comes_while_it_reads(channel: BlockingChannel, stream: str) -> None:
    put(channel, stream, b"old")
    inbox = reading(channel, stream)
    inbox.wait(1)
    put(channel, stream, b"new", b"newer")
    assert [each.body for each in inbox.wait(3)] == [b"old", b"new", b"newer"]
    assert [each.redelivered for each in inbox.received] == [False] * 3


def test_a_delivery_carries_its_properties_and_its_offset(channel: BlockingChannel, stream: str) -> None:
    put(channel, stream, b"1", content_type="text/plain", message_id="m", headers={"mine": 1})
    put(channel, stream, b"2", delivery_mode=1)
    put(channel, stream, b"", delivery_mode=2)
    first, second, third = reading(channel, stream).wait(3)

    assert (first.properties.content_type, first.properties.message_id) == ("text/plain", "m")
    assert first.properties.headers["mine"] == 1
    assert second.properties.delivery_mode == 1
    assert third.body == b""
    offsets = [each.properties.headers["x-stream-offset"] for each in (first, second, third)]
    assert offsets == sorted(set(offsets))
    assert (first.method.exchange, first.method.routing_key) == ("", stream)


def test_headers_of_any_kind_come_back_as_they_were(
    channel: BlockingChannel, stream: str, tidemark_only: None
) -> None:
    headers = {
        "list": [1, None, {"deep": [b"\x00"]}],
        "none": None,
        "time": datetime(2020, 1, 1, tzinfo=UTC),
        "no": False,
    }
    put(channel, stream, b"1", headers=headers, timestamp=5, app_id="app", type="t")
    [delivery] = reading(channel, stream).wait(1)
    got = delivery.properties.headers
    assert {name: got[name] for name in headers} == headers
    assert set(got) - set(headers) == {"x-stream-offset", "x-stream-history"}
    assert (delivery.properties.timestamp, delivery.properties.type) == (5, "t")


def test_what_a_publisher_says_in_our_headers_is_not_passed_on(channel: BlockingChannel, stream: str) -> None:
    """A message that is read from one stream and published to another as it was gets a new offset."""
    put(channel, stream, b"x", headers={"x-stream-offset": -5, "mine": "kept"})
    [delivery] = reading(channel, stream).wait(1)
    assert delivery.properties.headers["x-stream-offset"] >= 0
    assert delivery.properties.headers["mine"] == "kept"


def test_large_messages_come_in_frames(channel: BlockingChannel, stream: str) -> None:
    body = Random(1).randbytes(400_000)
    put(channel, stream, body, b"small")
    large, small = reading(channel, stream).wait(2)
    assert large.body == body
    assert small.body == b"small"


OFFSETS: list[tuple[str, Any, list[bytes]]] = [
    ("first", "first", [b"0", b"1", b"2", b"3"]),
    ("bytes", b"first", [b"0", b"1", b"2", b"3"]),
    ("last", "last", [b"3"]),
    ("next", "next", []),
    ("negative", -1, [b"0", b"1", b"2", b"3"]),
    ("far", 1 << 40, []),
    ("long ago", datetime(2020, 1, 1), [b"0", b"1", b"2", b"3"]),
    ("in time to come", datetime(2040, 1, 1), []),
    ("an hour ago", "1h", [b"0", b"1", b"2", b"3"]),
]


@pytest.mark.parametrize(("offset", "expected"), [each[1:] for each in OFFSETS], ids=[o[0] for o in OFFSETS])
def test_a_consumer_begins_where_it_says(
    channel: BlockingChannel, stream: str, offset: Any, expected: list[bytes]
) -> None:
    """K-12, K-27: first, last, next, a sequence, a time."""
    for number in range(4):
        put(channel, stream, b"%d" % number)
    inbox = reading(channel, stream, offset=offset)
    assert inbox.settle() == expected
    put(channel, stream, b"later")
    if offset != 1 << 40 and offset != datetime(2040, 1, 1):
        assert [each.body for each in inbox.wait(len(expected) + 1)] == [*expected, b"later"]


def test_a_consumer_without_an_offset_gets_what_comes_from_now_on(
    channel: BlockingChannel, stream: str
) -> None:
    put(channel, stream, b"before")
    channel.basic_qos(prefetch_count=10)
    inbox = Inbox(channel, stream)
    sync(channel)
    put(channel, stream, b"after")
    assert [each.body for each in inbox.wait(1)] == [b"after"]


def test_an_offset_that_was_delivered_is_a_place_to_begin(
    channel: BlockingChannel, connect: Connect, stream: str
) -> None:
    put(channel, stream, *[b"%d" % n for n in range(6)])
    offsets = [
        each.properties.headers["x-stream-offset"] for each in reading(connect().channel(), stream).wait(6)
    ]
    inbox = reading(channel, stream, offset=offsets[4])
    assert [each.body for each in inbox.wait(2)] == [b"4", b"5"]
    assert inbox.settle() == [b"4", b"5"]


def test_a_time_between_two_messages_is_a_place_to_begin(
    channel: BlockingChannel, stream: str, tidemark_only: None
) -> None:
    put(channel, stream, b"old")
    time.sleep(2.1)  # AMQP counts seconds
    middle = datetime.now(UTC).replace(tzinfo=None) - timedelta(seconds=1)
    put(channel, stream, b"new")
    assert [each.body for each in reading(channel, stream, offset=middle).wait(1)] == [b"new"]


def test_prefetch_is_the_credit_and_acks_give_it_back(channel: BlockingChannel, stream: str) -> None:
    put(channel, stream, *[b"%d" % n for n in range(10)])
    inbox = reading(channel, stream, prefetch=3)
    assert inbox.settle() == [b"0", b"1", b"2"]
    channel.basic_ack(inbox.received[1].tag)
    assert inbox.settle() == [b"0", b"1", b"2", b"3"]
    channel.basic_ack(inbox.received[-1].tag, multiple=True)
    assert inbox.settle() == [b"%d" % n for n in range(7)]


def test_many_readers_at_their_own_pace(connect: Connect, channel: BlockingChannel, stream: str) -> None:
    """K-9, K-23: from one message at a time to all at once."""
    bodies = [b"%d" % n for n in range(300)]
    put(channel, stream, *bodies)
    for prefetch in (1, 7, 1000):
        other = connect().channel()
        other.basic_qos(prefetch_count=prefetch)
        got = []
        for method, _, body in other.consume(stream, arguments=FIRST, inactivity_timeout=10):
            got.append(body)
            other.basic_ack(method.delivery_tag)
            if len(got) == 300:
                break
        assert got == bodies


def test_cancelling_ends_the_deliveries(channel: BlockingChannel, stream: str) -> None:
    inbox = reading(channel, stream)
    put(channel, stream, b"1")
    inbox.wait(1)
    channel.basic_cancel(inbox.tag)
    put(channel, stream, b"2")
    assert inbox.settle() == [b"1"]
    assert len(reading(channel, stream).wait(2)) == 2


def test_deleting_a_stream_tells_its_consumers(channel: BlockingChannel, connect: Connect, name: str) -> None:
    declare(channel, name)
    put(channel, name, b"x")
    told: list[Any] = []
    channel.add_on_cancel_callback(told.append)
    reading(channel, name).wait(1)
    connect().channel().queue_delete(name)
    channel.connection.process_data_events(0.1)
    deadline = time.monotonic() + 5
    while not told and time.monotonic() < deadline:
        channel.connection.process_data_events(0.1)
    assert told
    declare(channel, name)
    assert reading(channel, name).settle() == []
    channel.queue_delete(name)


# aio-pika -------------------------------------------------------------------------------------------


def test_aio_pika_publishes_and_follows_a_stream(broker: Address, name: str) -> None:
    async def story() -> None:
        async with await aio_pika.connect_robust(broker.url()) as connection:
            channel = await connection.channel()
            await channel.set_qos(prefetch_count=5)
            queue = await channel.declare_queue(name, durable=True, arguments={"x-queue-type": "stream"})
            for number in range(20):
                await channel.default_exchange.publish(aio_pika.Message(b"%d" % number), name)
            got: list[bytes] = []
            offsets: list[Any] = []
            async with queue.iterator(arguments=FIRST) as messages:
                async for message in messages:
                    got.append(message.body)
                    offsets.append(message.headers["x-stream-offset"])
                    await message.ack()
                    if len(got) == 10:
                        await channel.default_exchange.publish(aio_pika.Message(b"late"), name)
                    if len(got) == 21:
                        break
            assert got == [*[b"%d" % number for number in range(20)], b"late"]
            assert offsets == sorted(set(offsets))
            await queue.delete(if_unused=False, if_empty=False)

    asyncio.run(asyncio.wait_for(story(), 20))


def test_aio_pika_keeps_a_mark(broker: Address, name: str, tidemark_only: None) -> None:
    arguments = {"x-stream-offset": "mark", "x-stream-consumer": "app", "x-stream-commit": "each"}

    async def take(count: int, put_first: int) -> list[bytes]:
        async with await aio_pika.connect(broker.url()) as connection:
            channel = await connection.channel()
            await channel.set_qos(prefetch_count=4)
            queue = await channel.declare_queue(name, durable=True, arguments={"x-queue-type": "stream"})
            for number in range(put_first):
                await channel.default_exchange.publish(aio_pika.Message(b"%d" % number), name)
            got: list[bytes] = []
            async with queue.iterator(arguments=arguments) as messages:
                async for message in messages:
                    got.append(message.body)
                    await message.ack()
                    if len(got) == count:
                        break
            return got

    async def story() -> None:
        assert await take(7, put_first=10) == [b"%d" % n for n in range(7)]
        assert await take(3, put_first=0) == [b"7", b"8", b"9"]
        async with await aio_pika.connect(broker.url()) as connection:
            channel = await connection.channel()
            await channel.queue_delete(name)

    asyncio.run(asyncio.wait_for(story(), 20))
