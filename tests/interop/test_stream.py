"""Streams over AMQP 0-9-1: declared, published to and consumed from by ordinary clients.

What RabbitMQ's streams do too runs on both; what only Tidemark has (keys, marks, markers, numbered producers,
transactions that are one step) asks for `tidemark_only` or for a broker of its own.
"""

from __future__ import annotations

import asyncio
import contextlib
import time
from collections.abc import Callable, Iterator
from datetime import UTC, datetime, timedelta
from random import Random
from typing import Any

import aio_pika
import pika
import pytest
from helpers.amqp import (
    Connect,
    Inbox,
    channel_refused,
    connection_refused,
    eventually,
    get_one,
    put,
    sync,
)
from helpers.broker import Address, BrokerProcess
from pika.adapters.blocking_connection import BlockingChannel
from pika.exceptions import AMQPError

FIRST = {"x-stream-offset": "first"}
Declare = Callable[..., str]


def declare(channel: BlockingChannel, stream: str, **arguments: Any) -> str:
    """Declare a stream; `key="routing-key"` is x-stream-key, and so on."""
    settings = {"x-queue-type": "stream"}
    for argument, value in arguments.items():
        prefix = "x-" if argument.startswith(("max_", "queue_", "initial_")) else "x-stream-"
        settings[prefix + argument.replace("_", "-")] = value
    channel.queue_declare(stream, durable=True, arguments=settings)
    return stream


@pytest.fixture
def channel(connection: pika.BlockingConnection) -> BlockingChannel:
    """A confirming channel: after a publish the message is there to be read."""
    channel = connection.channel()
    channel.confirm_delivery()
    return channel


@pytest.fixture
def new_stream(channel: BlockingChannel, name: str, connect: Connect) -> Iterator[Declare]:
    """Declares streams of the test's name with arguments; they go with the test."""
    declared = []

    def make(suffix: str = "", **arguments: Any) -> str:
        declared.append(name + suffix)
        return declare(channel, name + suffix, **arguments)

    yield make
    cleaner = connect().channel()
    for each in declared:
        cleaner.queue_delete(each)


@pytest.fixture
def stream(new_stream: Declare) -> str:
    """A stream without keys."""
    return new_stream()


def reading(
    channel: BlockingChannel, stream: str, *, prefetch: int = 100, tag: str = "", **arguments: Any
) -> Inbox:
    """A consumer of the stream, from its first message on unless it says otherwise."""
    channel.basic_qos(prefetch_count=prefetch)
    settings = {"x-stream-offset": "first"}
    settings |= {"x-stream-" + name.replace("_", "-"): value for name, value in arguments.items()}
    options: dict[str, Any] = {"consumer_tag": tag} if tag else {}
    return Inbox(channel, stream, arguments=settings, **options)


def put_keyed(channel: BlockingChannel, stream: str, key: str, body: bytes, **headers: Any) -> None:
    """Publish under a key to a stream that is keyed by the header `key`."""
    channel.basic_publish("", stream, body, pika.BasicProperties(headers={"key": key, **headers}))


def delete_key(channel: BlockingChannel, stream: str, key: str) -> None:
    put_keyed(channel, stream, key, b"", **{"x-tombstone": True})


def contents(inbox: Inbox) -> dict[str, bytes]:
    """What a reader of a keyed stream knows after all that it received."""
    known: dict[str, bytes] = {}
    for delivery in inbox.received:
        headers = delivery.properties.headers
        if "x-stream-key" not in headers:
            continue
        if headers.get("x-tombstone"):
            known.pop(headers["x-stream-key"], None)
        else:
            known[headers["x-stream-key"]] = delivery.body
    return known


def markers(inbox: Inbox) -> list[dict[str, Any]]:
    found = [delivery.properties.headers for delivery in inbox.received]
    return [headers for headers in found if headers.get("x-stream-marker")]


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


# Ways in -------------------------------------------------------------------------------------------


def test_exchanges_and_copies_lead_to_a_stream(channel: BlockingChannel, stream: str, name: str) -> None:
    for kind, key, arguments in (
        ("direct", "d", {}),
        ("topic", "t.*", {}),
        ("fanout", "", {}),
        ("headers", "", {"x-match": "all", "colour": "red"}),
    ):
        channel.exchange_declare(f"{name}-{kind}", kind, auto_delete=True)
        channel.queue_bind(stream, f"{name}-{kind}", key, arguments)
    channel.basic_publish(f"{name}-direct", "d", b"direct")
    channel.basic_publish(f"{name}-topic", "t.1", b"topic")
    channel.basic_publish(f"{name}-fanout", "any", b"fanout")
    red, blue = (pika.BasicProperties(headers={"colour": colour}) for colour in ("red", "blue"))
    channel.basic_publish(f"{name}-headers", "", b"headers", red)
    channel.basic_publish(f"{name}-headers", "", b"not this", blue)
    copies = pika.BasicProperties(headers={"CC": [stream], "BCC": [stream]})
    channel.basic_publish(f"{name}-direct", "nowhere", b"not this")
    channel.basic_publish("", "nowhere", b"copy", copies)

    got = reading(channel, stream).wait(5)
    expected = [b"direct", b"topic", b"fanout", b"headers", b"copy"]
    assert [each.body for each in got] == expected
    assert (got[0].method.exchange, got[0].method.routing_key) == (f"{name}-direct", "d")


def test_a_dead_letter_can_go_to_a_stream(
    channel: BlockingChannel, stream: str, name: str, tidemark_only: None
) -> None:
    dying = {"x-dead-letter-exchange": "", "x-dead-letter-routing-key": stream}
    channel.queue_declare(name + "-dying", exclusive=True, arguments=dying)
    put(channel, name + "-dying", b"dead", headers={"mine": 1})
    method, _, _ = get_one(channel, name + "-dying", auto_ack=False)
    channel.basic_reject(method.delivery_tag, requeue=False)
    [delivery] = reading(channel, stream).wait(1)
    assert delivery.body == b"dead"
    assert delivery.properties.headers["x-death"][0]["reason"] == "rejected"
    assert delivery.properties.headers["mine"] == 1


def test_a_message_goes_to_queues_and_streams_alike(
    channel: BlockingChannel, new_stream: Declare, name: str
) -> None:
    streams = [new_stream(f"-{n}") for n in range(2)]
    channel.exchange_declare(name, "fanout", auto_delete=True)
    channel.queue_declare(f"{name}-q", exclusive=True)
    for target in (*streams, f"{name}-q"):
        channel.queue_bind(target, name)
    channel.basic_publish(name, "", b"to all")
    assert get_one(channel, f"{name}-q")[2] == b"to all"
    for stream in streams:
        assert [each.body for each in reading(channel, stream).wait(1)] == [b"to all"]


def test_a_time_to_live_means_nothing_in_a_stream(channel: BlockingChannel, stream: str) -> None:
    put(channel, stream, b"stays", expiration="0")
    time.sleep(0.05)
    assert [each.body for each in reading(channel, stream).wait(1)] == [b"stays"]


def test_a_transaction_publishes_to_a_stream(channel: BlockingChannel, connect: Connect, stream: str) -> None:
    other = connect().channel()
    other.tx_select()
    put(other, stream, b"1", b"2")
    inbox = reading(channel, stream)
    assert inbox.settle() == []
    other.tx_commit()
    assert [each.body for each in inbox.wait(2)] == [b"1", b"2"]
    put(other, stream, b"not this")
    other.tx_rollback()
    assert inbox.settle() == [b"1", b"2"]


# Refusals ------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "declaration",
    [
        {"durable": False},
        {"durable": True, "exclusive": True},
        {"durable": True, "auto_delete": True},
    ],
    ids=str,
)
def test_a_stream_is_durable_shared_and_stays(
    channel: BlockingChannel, name: str, declaration: dict[str, bool]
) -> None:
    with channel_refused(406):
        channel.queue_declare(name, arguments={"x-queue-type": "stream"}, **declaration)


@pytest.mark.parametrize(
    ("argument", "value"),
    [
        ("x-message-ttl", 1000),
        ("x-expires", 1000),
        ("x-dead-letter-exchange", "amq.fanout"),
        ("x-max-priority", 3),
        ("x-max-length", 3),
        ("x-single-active-consumer", True),
        ("x-overflow", "reject-publish"),
        ("x-queue-mode", "lazy"),
        ("x-delivery-limit", 3),
        ("x-max-length-bytes", -1),
        ("x-max-length-bytes", "much"),
        ("x-max-age", "7X"),
        ("x-max-age", "0s"),
        ("x-max-age", 7),
        ("x-initial-cluster-size", 0),
        ("x-queue-leader-locator", "anywhere"),
        ("x-stream-max-segment-size-bytes", "a"),
    ],
    ids=str,
)
def test_arguments_that_a_stream_cannot_have_are_refused(
    channel: BlockingChannel, name: str, argument: str, value: Any
) -> None:
    with channel_refused(406):
        channel.queue_declare(name, durable=True, arguments={"x-queue-type": "stream", argument: value})


@pytest.mark.parametrize(
    ("argument", "value"),
    [
        ("x-stream-key", "colour"),
        ("x-stream-key", "header:"),
        ("x-stream-key", 1),
        ("x-stream-shards", 0),
        ("x-stream-shards", 1025),
        ("x-stream-shards", "two"),
        ("x-stream-tombstone-lease", -1),
        ("x-stream-history", "long"),
        ("x-stream-pin-bytes-max", -1),
    ],
    ids=str,
)
def test_our_own_arguments_are_checked_too(
    channel: BlockingChannel, name: str, argument: str, value: Any, tidemark_only: None
) -> None:
    with channel_refused(406):
        channel.queue_declare(name, durable=True, arguments={"x-queue-type": "stream", argument: value})


def test_a_stream_needs_a_name(channel: BlockingChannel) -> None:
    with channel_refused(406):
        channel.queue_declare("", durable=True, arguments={"x-queue-type": "stream"})


def test_declaring_again_must_ask_for_the_same(
    connect: Connect, channel: BlockingChannel, new_stream: Declare
) -> None:
    stream = new_stream(max_age="7D", max_length_bytes=1_000_000)
    declare(channel, stream, max_age="7D", max_length_bytes=1_000_000)
    channel.queue_declare(stream, passive=True)
    for other in ({}, {"max_age": "8D", "max_length_bytes": 1_000_000}, {"max_age": "7D"}):
        with channel_refused(406):
            declare(connect().channel(), stream, **other)
    with channel_refused(406):
        connect().channel().queue_declare(stream, durable=True)


@pytest.mark.parametrize(
    ("options", "prefetch", "code"),
    [
        ({}, 0, 406),
        ({"auto_ack": True}, 0, 406),
        ({"arguments": {"x-priority": 1}}, 10, 406),
        ({"arguments": {"x-stream-offset": "5x"}}, 10, 406),
    ],
    ids=str,
)
def test_consumers_that_a_stream_cannot_have_are_refused(
    channel: BlockingChannel, stream: str, options: dict[str, Any], prefetch: int, code: int
) -> None:
    if prefetch:
        channel.basic_qos(prefetch_count=prefetch)
    with channel_refused(code):
        channel.basic_consume(stream, lambda *_: None, **options)


def test_a_prefetch_of_the_whole_channel_is_not_enough(channel: BlockingChannel, stream: str) -> None:
    channel.basic_qos(prefetch_count=10, global_qos=True)
    with channel_refused(406):
        channel.basic_consume(stream, lambda *_: None)


@pytest.mark.parametrize(
    "arguments",
    [
        {"x-stream-offset": "middle"},
        {"x-stream-offset": True},
        {"x-stream-offset": [1]},
        {"x-stream-consumer": ""},
        {"x-stream-consumer": 5},
        {"x-stream-consumer": "n" * 256},
        {"x-stream-commit": "sometimes"},
        {"x-stream-markers": "yes"},
        {"x-stream-shards": 1},
        {"x-stream-shards": []},
        {"x-stream-shards": [-1]},
        {"x-stream-shards": [0, 5]},
        {"x-stream-on-reset": "ignore"},
    ],
    ids=str,
)
def test_bad_consumer_arguments_cost_the_channel_and_no_more(
    channel: BlockingChannel, stream: str, arguments: dict[str, Any], tidemark_only: None
) -> None:
    channel.basic_qos(prefetch_count=10)
    with channel_refused(406):
        channel.basic_consume(stream, lambda *_: None, arguments=arguments)
    assert channel.connection.channel().is_open


def test_what_is_not_offered_closes_the_connection_as_in_rabbitmq(connect: Connect, stream: str) -> None:
    def consuming(channel: BlockingChannel) -> Inbox:
        put(channel, stream, b"x")
        return reading(channel, stream)

    channel = connect().channel()
    with connection_refused(540):
        channel.basic_get(stream)
    channel = connect().channel()
    channel.basic_qos(prefetch_count=10)
    with connection_refused(540):
        channel.basic_consume(stream, lambda *_: None, auto_ack=True)
    for refuse in ("basic_nack", "basic_reject"):
        channel = connect().channel()
        [delivery, *_] = consuming(channel).wait(1)
        with connection_refused(540):
            getattr(channel, refuse)(delivery.tag)
            channel.connection.process_data_events(5)


# Keys and tombstones ---------------------------------------------------------------------------------


def test_only_the_newest_message_of_a_key_is_read(
    channel: BlockingChannel, new_stream: Declare, tidemark_only: None
) -> None:
    """K-2, K-13, M1: a consumer that was away reads each key once."""
    stream = new_stream(key="header:key")
    for round_ in range(50):
        for key in ("a", "b", "c"):
            put_keyed(channel, stream, key, b"%s%d" % (key.encode(), round_))
    put_keyed(channel, stream, "b", b"b-last")
    inbox = reading(channel, stream)
    assert inbox.settle() == [b"a49", b"c49", b"b-last"]
    keys = [each.properties.headers["x-stream-key"] for each in inbox.received]
    assert keys == ["a", "c", "b"]


@pytest.mark.parametrize("rule", ["routing-key", "message-id", "header:id", "none"])
def test_the_key_comes_from_where_the_stream_says(
    channel: BlockingChannel, new_stream: Declare, name: str, rule: str, tidemark_only: None
) -> None:
    """K-2: routing key, message-id, a header, or none."""
    stream = new_stream(key=rule)
    channel.exchange_declare(name, "fanout", auto_delete=True)
    channel.queue_bind(stream, name)
    for number in range(4):
        key = f"k{number % 2}"
        properties = pika.BasicProperties(message_id=key, headers={"id": key})
        channel.basic_publish(name, key, b"%d" % number, properties)
    inbox = reading(channel, stream)
    expected = [b"0", b"1", b"2", b"3"] if rule == "none" else [b"2", b"3"]
    assert inbox.settle() == expected
    keys = [each.properties.headers.get("x-stream-key") for each in inbox.received]
    assert keys == ([None] * 4 if rule == "none" else ["k0", "k1"])


def test_a_message_without_what_the_key_is_made_of_is_never_buried(
    channel: BlockingChannel, new_stream: Declare, tidemark_only: None
) -> None:
    """K-91: it is its own key."""
    stream = new_stream(key="header:key")
    put(channel, stream, b"1", b"2")
    put_keyed(channel, stream, "k", b"3")
    inbox = reading(channel, stream)
    assert inbox.settle() == [b"1", b"2", b"3"]
    assert "x-stream-key" not in inbox.received[0].properties.headers


def test_a_key_that_is_no_text_comes_as_bytes(
    channel: BlockingChannel, new_stream: Declare, tidemark_only: None
) -> None:
    stream = new_stream(key="header:key")
    channel.basic_publish("", stream, b"x", pika.BasicProperties(headers={"key": b"\xff\x00"}))
    channel.basic_publish("", stream, b"y", pika.BasicProperties(headers={"key": 17}))
    inbox = reading(channel, stream)
    inbox.wait(2)
    assert [each.properties.headers["x-stream-key"] for each in inbox.received] == [b"\xff\x00", "17"]


def test_a_tombstone_deletes_its_key_and_is_told(
    channel: BlockingChannel, new_stream: Declare, tidemark_only: None
) -> None:
    """K-83: a delete reaches those who have the key, and who comes later knows as much."""
    stream = new_stream(key="header:key")
    put_keyed(channel, stream, "a", b"1")
    put_keyed(channel, stream, "b", b"2")
    follower = reading(channel, stream)
    follower.wait(2)
    delete_key(channel, stream, "a")
    follower.wait(3)
    assert contents(follower) == {"b": b"2"}
    tombstone = follower.received[-1]
    assert tombstone.body == b""
    assert tombstone.properties.headers["x-tombstone"] is True
    late = reading(channel, stream)
    late.settle()
    assert contents(late) == {"b": b"2"}
    assert "x-tombstone" not in late.received[0].properties.headers


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


def opened(process: BrokerProcess) -> BlockingChannel:
    address = process.address
    channel = pika.BlockingConnection(
        pika.ConnectionParameters(address.host, address.port, socket_timeout=10)
    ).channel()
    channel.confirm_delivery()
    return channel


@pytest.fixture(params=["killed", "stopped"])
def restart(request: pytest.FixtureRequest, own_broker: BrokerProcess) -> Callable[[], BlockingChannel]:
    """Ends the broker in this way, starts it again and opens a new channel."""

    def end_and_start() -> BlockingChannel:
        if request.param == "killed":
            own_broker.kill()
        else:
            own_broker.stop()
        return opened(own_broker.start())

    return end_and_start


@pytest.fixture
def own_channel(own_broker: BrokerProcess) -> Iterator[BlockingChannel]:
    channel = opened(own_broker)
    yield channel
    with contextlib.suppress(AMQPError):  # the broker it was on is gone
        channel.connection.close()


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


# Markers --------------------------------------------------------------------------------------------


def test_a_boundary_is_told_as_an_empty_message(
    channel: BlockingChannel, connect: Connect, new_stream: Declare, tidemark_only: None
) -> None:
    """K-18, X-32: from, to, how many, how many deletes, and a hash of what was between."""
    stream = new_stream(key="header:key")
    transaction = connect().channel()
    transaction.tx_select()
    for number in range(5):
        put_keyed(transaction, stream, f"k{number}", b"%d" % number)
    transaction.tx_commit()
    inbox = reading(channel, stream, markers=True)
    marker = inbox.wait(6)[-1]
    headers = marker.properties.headers
    offsets = [each.properties.headers["x-stream-offset"] for each in inbox.received[:5]]
    assert headers["x-stream-marker"] is True
    assert marker.body == b""
    assert (headers["x-stream-count"], headers["x-stream-tombstones"]) == (5, 0)
    assert headers["x-stream-from"] < offsets[0]
    assert headers["x-stream-to"] >= offsets[-1]
    assert headers["x-stream-history"] == inbox.received[0].properties.headers["x-stream-history"]
    assert len(bytes.fromhex(headers["x-stream-hash"])) == 16

    delete_key(transaction, stream, "k0")
    put_keyed(transaction, stream, "k9", b"9")
    transaction.tx_commit()
    inbox.wait(9)
    second = markers(inbox)[1]
    assert (second["x-stream-count"], second["x-stream-tombstones"]) == (1, 1)
    assert second["x-stream-from"] == headers["x-stream-to"]
    assert second["x-stream-hash"] != headers["x-stream-hash"]


def test_two_readers_of_the_same_snapshot_get_the_same_hash(
    channel: BlockingChannel, connect: Connect, stream: str, tidemark_only: None
) -> None:
    put(channel, stream, *[b"%d" % n for n in range(50)])
    found = []
    for prefetch in (3, 100):
        other = connect().channel()
        inbox = reading(other, stream, prefetch=prefetch, markers=True)
        while not markers(inbox):
            other.connection.process_data_events(0.05)
            other.basic_ack(0, multiple=True)
        found.append(markers(inbox)[0])
        assert len([each for each in inbox.received if each.body]) == found[-1]["x-stream-count"]
    assert found[0] == found[1]


def test_money_is_neither_made_nor_lost_at_any_marker(
    channel: BlockingChannel, connect: Connect, new_stream: Declare, tidemark_only: None
) -> None:
    """S-18, K-19, K-35: transfers are transactions over two keys; whoever stops at a marker sees whole ones only."""
    stream, dice = new_stream(key="header:key", shards=4), Random(7)
    accounts = {f"a{n}": 100 for n in range(8)}
    bank = connect().channel()
    bank.tx_select()
    for account, balance in accounts.items():
        put_keyed(bank, stream, account, b"%d" % balance)
    bank.tx_commit()

    readers = [reading(connect().channel(), stream, prefetch=prefetch, markers=True) for prefetch in (2, 50)]
    checked = 0
    known: list[dict[str, int]] = [{} for _ in readers]
    seen = [0 for _ in readers]

    def look(quiet_s: float = 0.0) -> None:
        nonlocal checked
        for index, inbox in enumerate(readers):
            inbox.channel.connection.process_data_events(quiet_s)
            while seen[index] < len(inbox.received):
                delivery = inbox.received[seen[index]]
                seen[index] += 1
                headers = delivery.properties.headers
                if headers.get("x-stream-marker"):
                    assert sum(known[index].values()) == 800
                    checked += 1
                else:
                    known[index][headers["x-stream-key"]] = int(delivery.body)
                inbox.channel.basic_ack(delivery.tag)

    for number in range(150):
        source, target = dice.sample(sorted(accounts), 2)
        amount = dice.randrange(1, 20)
        accounts[source] -= amount
        accounts[target] += amount
        for account in (source, target):
            put_keyed(bank, stream, account, b"%d" % accounts[account])
        if number % 10 == 9:
            bank.tx_rollback()
            accounts[source] += amount
            accounts[target] -= amount
        else:
            bank.tx_commit()
        look()

    def all_know() -> bool:
        look(0.02)
        return all(each == accounts for each in known)

    eventually(all_know)
    assert checked > 10


# Shards ---------------------------------------------------------------------------------------------


def test_shards_part_the_keys_and_a_consumer_may_take_some(
    channel: BlockingChannel, new_stream: Declare, tidemark_only: None
) -> None:
    stream = new_stream(key="header:key", shards=3)
    for number in range(60):
        put_keyed(channel, stream, f"k{number}", b"%d" % number)
    parts = []
    for shards in ([0], [1], [2]):
        inbox = reading(channel, stream, shards=shards)
        inbox.settle()
        parts.append(set(inbox.bodies))
    assert all(parts)
    assert sorted(map(int, parts[0] | parts[1] | parts[2])) == list(range(60))
    assert sum(map(len, parts)) == 60
    both = reading(channel, stream, shards=[0, 2])
    assert set(both.settle()) == parts[0] | parts[2]
    assert both.bodies == sorted(both.bodies, key=int)


def test_shards_grow_by_declaring_again_and_never_shrink(
    connect: Connect, channel: BlockingChannel, new_stream: Declare, tidemark_only: None
) -> None:
    stream = new_stream(key="header:key", shards=2)
    for number in range(40):
        put_keyed(channel, stream, f"k{number}", b"%d" % number)
    declare(channel, stream, key="header:key", shards=4)
    declare(channel, stream, key="header:key")
    got = []
    for shard in range(4):
        got += reading(channel, stream, shards=[shard]).settle()
    assert sorted(map(int, got)) == list(range(40))
    with channel_refused(406):
        declare(connect().channel(), stream, key="header:key", shards=2)


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
