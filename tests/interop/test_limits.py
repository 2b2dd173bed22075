"""Time to live, expiry of queues, and queues with a maximum length."""

from __future__ import annotations

import time
from typing import Any

import pika
import pytest
from helpers import raw as amqp
from helpers.amqp import (
    Inbox,
    channel_refused,
    depth,
    drain,
    eventually,
    get_one,
    put,
    sync,
)
from helpers.raw import RawConnection
from pika.adapters.blocking_connection import BlockingChannel
from pika.exceptions import ChannelClosedByBroker, NackError

# Time to live ------------------------------------------------------------------------------


def test_a_queue_drops_messages_older_than_its_ttl(channel: BlockingChannel, name: str) -> None:
    channel.queue_declare(name, exclusive=True, arguments={"x-message-ttl": 150})
    put(channel, name, b"1", b"2")
    eventually(lambda: depth(channel, name) == 2)
    eventually(lambda: depth(channel, name) == 0)


def test_a_message_expires_by_its_own_expiration(channel: BlockingChannel, queue: str) -> None:
    put(channel, queue, b"short", expiration="100")
    put(channel, queue, b"stays")
    time.sleep(0.3)
    assert drain(channel, queue) == [b"stays"]


def test_the_smaller_of_queue_and_message_ttl_counts(channel: BlockingChannel, name: str) -> None:
    channel.queue_declare(name, exclusive=True, arguments={"x-message-ttl": 150})
    put(channel, name, b"long by itself", expiration="60000")
    eventually(lambda: depth(channel, name) == 0)


def test_an_expired_message_behind_a_living_one_is_not_delivered(
    channel: BlockingChannel, queue: str
) -> None:
    put(channel, queue, b"first")
    put(channel, queue, b"expires behind", expiration="50")
    put(channel, queue, b"last", expiration="60000")
    time.sleep(0.2)
    assert drain(channel, queue) == [b"first", b"last"]


def test_a_ttl_of_zero_drops_what_no_consumer_takes_at_once(
    connection: pika.BlockingConnection, channel: BlockingChannel, name: str
) -> None:
    channel.queue_declare(name, exclusive=True, arguments={"x-message-ttl": 0})
    put(channel, name, b"nobody is here")
    sync(channel)
    assert drain(channel, name) == []

    inbox = Inbox(connection.channel(), name)
    put(channel, name, b"somebody is here")
    assert [delivery.body for delivery in inbox.wait(1)] == [b"somebody is here"]


def test_a_message_held_by_a_consumer_does_not_expire(channel: BlockingChannel, name: str) -> None:
    channel.queue_declare(name, exclusive=True, arguments={"x-message-ttl": 100})
    put(channel, name, b"held")
    method, _, _ = get_one(channel, name, auto_ack=False)
    time.sleep(0.25)
    channel.basic_ack(method.delivery_tag)
    sync(channel)


def test_a_message_given_back_after_its_time_is_dropped(channel: BlockingChannel, name: str) -> None:
    channel.queue_declare(name, exclusive=True, arguments={"x-message-ttl": 100})
    put(channel, name, b"held")
    method, _, _ = get_one(channel, name, auto_ack=False)
    time.sleep(0.25)
    channel.basic_nack(method.delivery_tag, requeue=True)
    time.sleep(0.05)
    assert drain(channel, name) == []


def test_the_expiration_property_is_kept_on_delivery(channel: BlockingChannel, queue: str) -> None:
    put(channel, queue, b"x", expiration="54321")
    assert get_one(channel, queue)[1].expiration == "54321"


@pytest.mark.parametrize("expiration", ["soon", "-1", "1.5", "", " 100", "99999999999999"])
def test_an_expiration_that_is_no_number_of_milliseconds_is_406(
    channel: BlockingChannel, queue: str, expiration: str
) -> None:
    with channel_refused(406):
        put(channel, queue, b"x", expiration=expiration)
        sync(channel)


# Expiry of queues ----------------------------------------------------------------------------


def gone(connection: pika.BlockingConnection, queue: str) -> bool:
    probe = connection.channel()
    try:
        probe.queue_declare(queue, passive=True)
    except ChannelClosedByBroker:
        return True
    probe.close()
    return False


def test_an_unused_queue_expires(
    connection: pika.BlockingConnection, channel: BlockingChannel, name: str
) -> None:
    channel.queue_declare(name, arguments={"x-expires": 300})
    put(channel, name, b"goes too")
    time.sleep(0.8)
    assert gone(connection, name)


def test_a_queue_with_a_consumer_does_not_expire(
    connection: pika.BlockingConnection, channel: BlockingChannel, name: str
) -> None:
    channel.queue_declare(name, arguments={"x-expires": 200})
    inbox = Inbox(channel, name)
    inbox.settle(quiet_s=0.6)
    put(channel, name, b"alive")
    inbox.wait(1)

    channel.basic_cancel(inbox.tag)
    time.sleep(0.6)
    assert gone(connection, name)


def test_declaring_or_getting_starts_the_time_of_a_queue_again(
    connection: pika.BlockingConnection, channel: BlockingChannel, name: str
) -> None:
    channel.queue_declare(name, arguments={"x-expires": 600})
    for _ in range(4):
        time.sleep(0.25)
        channel.basic_get(name)
    for _ in range(4):
        time.sleep(0.25)
        channel.queue_declare(name, arguments={"x-expires": 600})
    assert not gone(connection, name)


# Maximum length ------------------------------------------------------------------------------


def test_a_full_queue_drops_from_the_head(channel: BlockingChannel, name: str) -> None:
    channel.queue_declare(name, exclusive=True, arguments={"x-max-length": 3})
    put(channel, name, *(b"%d" % number for number in range(8)))
    assert drain(channel, name) == [b"5", b"6", b"7"]


def test_a_length_in_bytes_counts_bodies(channel: BlockingChannel, name: str) -> None:
    channel.queue_declare(name, exclusive=True, arguments={"x-max-length-bytes": 10})
    put(channel, name, b"aaaa", b"bbbb", b"cc", b"ddd")
    assert drain(channel, name) == [b"bbbb", b"cc", b"ddd"]


def test_whichever_of_two_limits_is_reached_first_counts(channel: BlockingChannel, name: str) -> None:
    limits = {"x-max-length": 3, "x-max-length-bytes": 8}
    channel.queue_declare(name, exclusive=True, arguments=limits)
    put(channel, name, b"1", b"2", b"3", b"4")
    assert drain(channel, name) == [b"2", b"3", b"4"]
    put(channel, name, b"aaaaa", b"bbbbb")
    assert drain(channel, name) == [b"bbbbb"]


def test_a_length_of_zero_keeps_nothing_but_serves_a_waiting_consumer(
    connection: pika.BlockingConnection, channel: BlockingChannel, name: str
) -> None:
    channel.queue_declare(name, exclusive=True, arguments={"x-max-length": 0})
    put(channel, name, b"dropped")
    assert drain(channel, name) == []

    inbox = Inbox(connection.channel(), name)
    put(channel, name, b"taken")
    inbox.wait(1)


def test_messages_held_by_consumers_do_not_count_towards_the_length(
    channel: BlockingChannel, name: str
) -> None:
    channel.queue_declare(name, exclusive=True, arguments={"x-max-length": 2})
    put(channel, name, b"1", b"2")
    for _ in range(2):
        channel.basic_get(name)
    put(channel, name, b"3", b"4")
    assert drain(channel, name) == [b"3", b"4"]


def test_dropping_from_the_head_still_confirms_the_publish(channel: BlockingChannel, name: str) -> None:
    channel.queue_declare(name, exclusive=True, arguments={"x-max-length": 1})
    channel.confirm_delivery()
    put(channel, name, b"1", b"2", b"3")
    assert drain(channel, name) == [b"3"]


@pytest.mark.parametrize("overflow", ["reject-publish", "reject-publish-dlx"])
def test_a_full_queue_that_rejects_keeps_what_it_has_and_nacks_the_publisher(
    channel: BlockingChannel, name: str, overflow: str
) -> None:
    arguments = {"x-max-length": 2, "x-overflow": overflow}
    channel.queue_declare(name, exclusive=True, arguments=arguments)
    channel.confirm_delivery()
    put(channel, name, b"1", b"2")
    with pytest.raises(NackError):
        put(channel, name, b"3")

    assert drain(channel, name) == [b"1", b"2"]
    put(channel, name, b"4")
    assert drain(channel, name) == [b"4"]


def test_a_full_queue_that_rejects_drops_silently_without_confirms(
    channel: BlockingChannel, name: str
) -> None:
    arguments = {"x-max-length": 1, "x-overflow": "reject-publish"}
    channel.queue_declare(name, exclusive=True, arguments=arguments)
    put(channel, name, b"1", b"2")
    assert drain(channel, name) == [b"1"]


def test_a_publish_that_one_of_two_queues_rejects_is_nacked_and_kept_by_the_other(
    channel: BlockingChannel, name: str
) -> None:
    arguments = {"x-max-length": 1, "x-overflow": "reject-publish"}
    channel.exchange_declare(name, "fanout", auto_delete=True)
    channel.queue_declare(f"{name}-full", exclusive=True, arguments=arguments)
    channel.queue_declare(f"{name}-free", exclusive=True)
    channel.queue_bind(f"{name}-full", name)
    channel.queue_bind(f"{name}-free", name)
    channel.confirm_delivery()
    channel.basic_publish(name, "", b"1")
    with pytest.raises(NackError):
        channel.basic_publish(name, "", b"2")

    assert drain(channel, f"{name}-full") == [b"1"]
    assert drain(channel, f"{name}-free") == [b"1", b"2"]


@pytest.mark.parametrize(
    ("overflow", "dead"),
    [("drop-head", [b"1"]), ("reject-publish", []), ("reject-publish-dlx", [b"3"])],
)
def test_what_a_full_queue_refuses_or_drops_is_dead_lettered_by_its_rule(
    channel: BlockingChannel, name: str, overflow: str, dead: list[bytes]
) -> None:
    arguments: dict[str, Any] = {"x-max-length": 2, "x-overflow": overflow}
    arguments |= {"x-dead-letter-exchange": "", "x-dead-letter-routing-key": f"{name}-dead"}
    channel.queue_declare(f"{name}-dead", exclusive=True)
    channel.queue_declare(name, exclusive=True, arguments=arguments)
    put(channel, name, b"1", b"2", b"3")
    sync(channel)

    if dead:
        _, properties, body = get_one(channel, f"{name}-dead")
        assert [body] == dead
        assert properties.headers["x-death"][0]["reason"] == "maxlen"
    else:
        time.sleep(0.1)
        assert drain(channel, f"{name}-dead") == []
    assert len(drain(channel, name)) == 2


# Priorities ------------------------------------------------------------------------------------


def test_higher_priorities_come_first_and_equal_ones_in_order(channel: BlockingChannel, name: str) -> None:
    channel.queue_declare(name, exclusive=True, arguments={"x-max-priority": 10})
    for number, priority in enumerate([1, 5, None, 10, 5, 1, 0, 10]):
        put(channel, name, b"%d" % number, priority=priority)
    assert drain(channel, name) == [b"3", b"7", b"1", b"4", b"0", b"5", b"2", b"6"]


def test_a_priority_over_the_maximum_counts_as_the_maximum(channel: BlockingChannel, name: str) -> None:
    channel.queue_declare(name, exclusive=True, arguments={"x-max-priority": 3})
    put(channel, name, b"first of the top", priority=3)
    put(channel, name, b"second of the top", priority=200)
    put(channel, name, b"low", priority=2)
    _, first, body = get_one(channel, name)
    assert (body, first.priority) == (b"first of the top", 3)
    _, second, body = get_one(channel, name)
    assert (body, second.priority) == (b"second of the top", 200)


def test_a_queue_without_priorities_keeps_the_order_of_arrival(channel: BlockingChannel, queue: str) -> None:
    for number, priority in enumerate([1, 9, 5]):
        put(channel, queue, b"%d" % number, priority=priority)
    assert drain(channel, queue) == [b"0", b"1", b"2"]


def test_a_message_given_back_returns_to_its_place_among_its_priority(
    channel: BlockingChannel, name: str
) -> None:
    channel.queue_declare(name, exclusive=True, arguments={"x-max-priority": 5})
    put(channel, name, b"low-1", b"low-2", priority=1)
    put(channel, name, b"high-1", b"high-2", priority=5)
    tags = [channel.basic_get(name)[0].delivery_tag for _ in range(3)]
    for tag in tags:
        channel.basic_nack(tag, requeue=True)
    sync(channel)
    assert drain(channel, name) == [b"high-1", b"high-2", b"low-1", b"low-2"]


def test_a_full_priority_queue_drops_from_its_head_which_is_the_highest_priority(
    channel: BlockingChannel, name: str
) -> None:
    arguments = {"x-max-priority": 5, "x-max-length": 2}
    channel.queue_declare(name, exclusive=True, arguments=arguments)
    put(channel, name, b"low", priority=1)
    put(channel, name, b"high-1", b"high-2", priority=5)
    assert drain(channel, name) == [b"high-2", b"low"]


# The size of a message --------------------------------------------------------------------------


def test_a_body_over_128_mib_is_406(raw: RawConnection, name: str) -> None:
    raw.handshake()
    raw.declare_queue(1, name, bits=4)
    raw.send_method(1, amqp.PUBLISH, b"\0\0\0" + amqp.shortstr(name) + b"\0")
    size = 128 * 1024 * 1024 + 1
    raw.send_frame(amqp.HEADER, 1, amqp.short(60) + amqp.short(0) + amqp.longlong(size) + b"\0\0")
    piece = amqp.encode_frame(amqp.BODY, 1, bytes(131064))
    for _ in range(size // 131064):
        raw.send(piece)
    raw.send_frame(amqp.BODY, 1, bytes(size % 131064))

    closed = raw.channel_closing()
    assert (closed.code, closed.method) == (406, amqp.PUBLISH)
