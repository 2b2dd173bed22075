"""Streams over AMQP 0-9-1, by ordinary clients: what leads to them, and what is refused.

What RabbitMQ's streams do too runs on both; what only Tidemark has (keys, marks, markers, numbered producers,
transactions that are one step) asks for `tidemark_only` or for a broker of its own.
"""

from __future__ import annotations

import time
from typing import Any

import pika
import pytest
from helpers.amqp import Connect, Inbox, channel_refused, connection_refused, get_one, put
from interop.streams.harness import Declare, declare, reading
from pika.adapters.blocking_connection import BlockingChannel

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
            for _ in range(5):  # it returns when a delivery comes, too
                channel.connection.process_data_events(5)
