"""Consuming: prefetch, order, priorities, exclusivity, cancelling and getting."""

from __future__ import annotations

import time
from typing import Any

import pika
import pytest
from helpers import raw as amqp
from helpers.amqp import (
    Connect,
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

# Deliveries -----------------------------------------------------------------------------------


def test_a_delivery_names_consumer_tag_exchange_and_key(channel: BlockingChannel, queue: str) -> None:
    channel.queue_bind(queue, "amq.topic", f"{queue}.#")
    inbox = Inbox(channel, queue, consumer_tag="reader")
    channel.basic_publish("amq.topic", f"{queue}.a", b"x")

    [delivery] = inbox.wait(1)
    method = delivery.method
    assert (method.consumer_tag, method.delivery_tag) == ("reader", 1)
    assert (method.exchange, method.routing_key) == ("amq.topic", f"{queue}.a")
    assert not method.redelivered


def test_delivery_tags_count_over_all_consumers_and_gets_of_a_channel(
    channel: BlockingChannel, name: str
) -> None:
    for number in (1, 2):
        channel.queue_declare(f"{name}-{number}", exclusive=True)
        put(channel, f"{name}-{number}", b"x")
    tags = [Inbox(channel, f"{name}-{number}").wait(1)[0].tag for number in (1, 2)]
    put(channel, f"{name}-1", b"y")
    sync(channel)
    assert tags == [1, 2]


def test_messages_arrive_in_the_order_of_publishing(channel: BlockingChannel, queue: str) -> None:
    bodies = [b"%d" % number for number in range(2000)]
    put(channel, queue, *bodies)
    inbox = Inbox(channel, queue, auto_ack=True)
    inbox.wait(2000)
    assert inbox.bodies == bodies


def test_two_consumers_share_a_queue_about_evenly(
    connection: pika.BlockingConnection, channel: BlockingChannel, queue: str
) -> None:
    inboxes = [Inbox(connection.channel(), queue) for _ in range(2)]
    put(channel, queue, *(b"%d" % number for number in range(100)))
    eventually(lambda: len(inboxes[0].settle(0.05)) + len(inboxes[1].settle(0.05)) == 100)
    assert min(len(inbox.received) for inbox in inboxes) >= 40
    assert sorted(inboxes[0].bodies + inboxes[1].bodies, key=int) == [b"%d" % n for n in range(100)]


def test_a_server_made_consumer_tag_is_unique(raw: RawConnection, name: str) -> None:
    raw.handshake()
    raw.declare_queue(1, name, bits=4)
    tags = set()
    for _ in range(3):
        raw.send_method(1, amqp.CONSUME, amqp.short(0) + amqp.shortstr(name) + b"\0\0" + amqp.EMPTY_TABLE)
        tags.add(raw.expect(amqp.CONSUME_OK).arguments.shortstr())
    assert len(tags) == 3
    assert all(tag.startswith("amq.ctag-") for tag in tags)


def test_consume_ok_comes_before_the_first_delivery(raw: RawConnection, name: str) -> None:
    raw.handshake()
    raw.declare_queue(1, name, bits=4)
    for _ in range(10):
        raw.publish(1, "", name, b"waiting")
    raw.consume(1, name, "t", bits=2)
    for _ in range(10):
        raw.expect_content(amqp.DELIVER)


def test_consuming_from_a_missing_queue_is_404(channel: BlockingChannel, name: str) -> None:
    with channel_refused(404):
        Inbox(channel, name)


def test_no_local_is_accepted_and_changes_nothing(raw: RawConnection, name: str) -> None:
    raw.handshake()
    raw.declare_queue(1, name, bits=4)
    raw.consume(1, name, "t", bits=1 | 2)
    raw.publish(1, "", name, b"mine")
    assert raw.expect_content(amqp.DELIVER)[2] == b"mine"


def test_the_ha_failover_argument_is_accepted(channel: BlockingChannel, queue: str) -> None:
    inbox = Inbox(channel, queue, arguments={"x-cancel-on-ha-failover": True})
    put(channel, queue, b"x")
    inbox.wait(1)


# Prefetch --------------------------------------------------------------------------------------


def test_prefetch_bounds_what_a_consumer_holds(channel: BlockingChannel, queue: str) -> None:
    put(channel, queue, *(b"%d" % number for number in range(10)))
    channel.basic_qos(prefetch_count=3)
    inbox = Inbox(channel, queue)
    assert inbox.settle() == [b"0", b"1", b"2"]

    channel.basic_ack(inbox.received[0].tag)
    assert inbox.settle() == [b"0", b"1", b"2", b"3"]
    channel.basic_ack(inbox.received[-1].tag, multiple=True)
    assert len(inbox.settle()) == 7


def test_prefetch_counts_for_each_consumer_alone(channel: BlockingChannel, name: str) -> None:
    channel.basic_qos(prefetch_count=2)
    inboxes = []
    for number in range(2):
        channel.queue_declare(f"{name}-{number}", exclusive=True)
        put(channel, f"{name}-{number}", *[b"x"] * 5)
        inboxes.append(Inbox(channel, f"{name}-{number}"))
    inboxes[0].settle()
    assert [len(inbox.received) for inbox in inboxes] == [2, 2]


def test_a_global_prefetch_bounds_the_whole_channel(channel: BlockingChannel, name: str) -> None:
    channel.basic_qos(prefetch_count=3, global_qos=True)
    inboxes = []
    for number in range(2):
        channel.queue_declare(f"{name}-{number}", exclusive=True)
        put(channel, f"{name}-{number}", *[b"x"] * 5)
        inboxes.append(Inbox(channel, f"{name}-{number}"))
    inboxes[0].settle()
    assert sum(len(inbox.received) for inbox in inboxes) == 3


def test_the_smaller_of_global_and_consumer_prefetch_holds(channel: BlockingChannel, queue: str) -> None:
    put(channel, queue, *[b"x"] * 10)
    channel.basic_qos(prefetch_count=4)
    channel.basic_qos(prefetch_count=2, global_qos=True)
    assert len(Inbox(channel, queue).settle()) == 2


def test_a_new_prefetch_applies_to_new_consumers_only(channel: BlockingChannel, name: str) -> None:
    inboxes = []
    for prefetch in (1, 4):
        channel.basic_qos(prefetch_count=prefetch)
        channel.queue_declare(f"{name}-{prefetch}", exclusive=True)
        put(channel, f"{name}-{prefetch}", *[b"x"] * 6)
        inboxes.append(Inbox(channel, f"{name}-{prefetch}"))
    inboxes[0].settle()
    assert [len(inbox.received) for inbox in inboxes] == [1, 4]


def test_prefetch_zero_means_no_bound(channel: BlockingChannel, queue: str) -> None:
    channel.basic_qos(prefetch_count=1)
    channel.basic_qos(prefetch_count=0)
    put(channel, queue, *[b"x"] * 500)
    assert len(Inbox(channel, queue).wait(500)) == 500


def test_prefetch_does_not_bound_a_consumer_without_acks(channel: BlockingChannel, queue: str) -> None:
    channel.basic_qos(prefetch_count=1)
    put(channel, queue, *[b"x"] * 20)
    assert len(Inbox(channel, queue, auto_ack=True).wait(20)) == 20


def test_get_takes_no_notice_of_prefetch(channel: BlockingChannel, queue: str) -> None:
    channel.basic_qos(prefetch_count=1)
    put(channel, queue, b"1", b"2", b"3")
    assert [channel.basic_get(queue)[2] for _ in range(3)] == [b"1", b"2", b"3"]


def test_a_prefetch_size_is_not_implemented(raw: RawConnection) -> None:
    raw.handshake()
    raw.send_method(1, amqp.QOS, amqp.long(1000) + amqp.short(0) + b"\0")
    closed = raw.closing()
    assert (closed.code, closed.method) == (540, amqp.QOS)


# Priorities and exclusivity ----------------------------------------------------------------------


def test_the_consumer_with_the_higher_priority_is_served_while_it_has_room(
    connection: pika.BlockingConnection, channel: BlockingChannel, queue: str
) -> None:
    low, high = connection.channel(), connection.channel()
    for each in (low, high):
        each.basic_qos(prefetch_count=2)
    low_inbox = Inbox(low, queue, arguments={"x-priority": -1})
    high_inbox = Inbox(high, queue, arguments={"x-priority": 10})
    for number in range(4):
        put(channel, queue, b"%d" % number)
        (high_inbox if number < 2 else low_inbox).settle(0.1)
    assert (high_inbox.bodies, low_inbox.bodies) == ([b"0", b"1"], [b"2", b"3"])


def test_a_consumer_priority_that_is_no_number_is_406(channel: BlockingChannel, queue: str) -> None:
    with channel_refused(406):
        Inbox(channel, queue, arguments={"x-priority": "high"})


def test_an_exclusive_consumer_keeps_others_out_with_403(
    connection: pika.BlockingConnection, channel: BlockingChannel, queue: str
) -> None:
    inbox = Inbox(channel, queue, exclusive=True)
    with channel_refused(403):
        Inbox(connection.channel(), queue)
    channel.basic_cancel(inbox.tag)
    Inbox(connection.channel(), queue)


def test_exclusive_consume_is_403_while_another_consumer_is_there(
    connection: pika.BlockingConnection, channel: BlockingChannel, queue: str
) -> None:
    Inbox(channel, queue)
    with channel_refused(403):
        Inbox(connection.channel(), queue, exclusive=True)


# Single active consumer ----------------------------------------------------------------------------


def test_only_one_of_several_consumers_is_active_and_the_next_takes_over(
    connection: pika.BlockingConnection, channel: BlockingChannel, name: str
) -> None:
    channel.queue_declare(name, exclusive=True, arguments={"x-single-active-consumer": True})
    channels = [connection.channel() for _ in range(3)]
    inboxes = [Inbox(each, name) for each in channels]
    put(channel, name, b"1", b"2")
    inboxes[0].settle()
    assert [len(inbox.received) for inbox in inboxes] == [2, 0, 0]

    channels[0].basic_ack(2, multiple=True)
    channels[0].basic_cancel(inboxes[0].tag)
    put(channel, name, b"3")
    inboxes[1].wait(1)
    assert [len(inbox.received) for inbox in inboxes] == [2, 1, 0]


def test_the_next_active_consumer_gets_what_the_lost_one_held(
    connection: pika.BlockingConnection, channel: BlockingChannel, name: str
) -> None:
    channel.queue_declare(name, exclusive=True, arguments={"x-single-active-consumer": True})
    first, second = connection.channel(), connection.channel()
    inbox, heir = Inbox(first, name), Inbox(second, name)
    put(channel, name, b"1", b"2")
    inbox.wait(2)
    first.close()
    heir.wait(2)
    assert heir.bodies == [b"1", b"2"]
    assert all(delivery.redelivered for delivery in heir.received)


def test_an_exclusive_consumer_of_a_single_active_queue_is_refused(
    channel: BlockingChannel, name: str
) -> None:
    channel.queue_declare(name, exclusive=True, arguments={"x-single-active-consumer": True})
    with channel_refused(403):
        Inbox(channel, name, exclusive=True)


# Cancel ----------------------------------------------------------------------------------------


def test_after_cancel_ok_nothing_more_is_delivered_and_held_messages_can_be_acked(
    raw: RawConnection, name: str
) -> None:
    raw.handshake()
    raw.declare_queue(1, name, bits=4)
    raw.qos(1, 1)
    raw.publish(1, "", name, b"held")
    raw.publish(1, "", name, b"left")
    raw.consume(1, name, "reader")
    raw.expect_content(amqp.DELIVER)
    raw.send_method(1, amqp.CANCEL, amqp.shortstr("reader") + b"\0")
    assert raw.expect(amqp.CANCEL_OK).arguments.shortstr() == "reader"

    raw.ack(1, 1)
    raw.get(1, name)
    assert raw.expect_content(amqp.GET_OK)[2] == b"left"
    raw.get(1, name)
    raw.expect(amqp.GET_EMPTY)


def test_cancelling_an_unknown_consumer_succeeds(raw: RawConnection) -> None:
    raw.handshake()
    raw.send_method(1, amqp.CANCEL, amqp.shortstr("nobody") + b"\0")
    assert raw.expect(amqp.CANCEL_OK).arguments.shortstr() == "nobody"


def test_the_server_cancels_a_consumer_whose_queue_went(raw: RawConnection, name: str) -> None:
    raw.handshake(capabilities=("consumer_cancel_notify",), channels=2)
    raw.declare_queue(2, name)
    raw.consume(1, name, "reader")
    raw.send_method(2, (50, 40), amqp.short(0) + amqp.shortstr(name) + b"\0")
    frames = [raw.read_frame(), raw.read_frame()]

    [cancel] = [frame for frame in frames if frame.method == amqp.CANCEL]
    assert cancel.channel == 1
    assert cancel.arguments.shortstr() == "reader"


# Get -------------------------------------------------------------------------------------------


def test_get_on_an_empty_queue_is_get_empty(channel: BlockingChannel, queue: str) -> None:
    assert channel.basic_get(queue) == (None, None, None)


def test_get_tells_how_many_are_left(channel: BlockingChannel, queue: str) -> None:
    put(channel, queue, b"1", b"2", b"3")
    eventually(lambda: depth(channel, queue) == 3)
    assert [channel.basic_get(queue)[0].message_count for _ in range(3)] == [2, 1, 0]


def test_getting_from_a_missing_queue_is_404(channel: BlockingChannel, name: str) -> None:
    with channel_refused(404):
        channel.basic_get(name)


def test_an_exclusive_consumer_does_not_keep_get_out(
    connection: pika.BlockingConnection, channel: BlockingChannel, queue: str
) -> None:
    channel.basic_qos(prefetch_count=1)
    inbox = Inbox(channel, queue, exclusive=True)
    put(channel, queue, b"consumed", b"got")
    inbox.wait(1)
    assert get_one(connection.channel(), queue)[2] == b"got"


def test_a_got_message_that_is_not_acked_comes_back_when_the_channel_closes(
    connection: pika.BlockingConnection, channel: BlockingChannel, queue: str
) -> None:
    put(channel, queue, b"x")
    other = connection.channel()
    get_one(other, queue, auto_ack=False)
    other.close()
    method, _, _ = get_one(channel, queue)
    assert method.redelivered


# A consumer that does not read -------------------------------------------------------------------


def test_a_consumer_that_stops_reading_does_not_stop_the_others(
    connect: Connect, raw: RawConnection, name: str
) -> None:
    raw.handshake()
    raw.declare_queue(1, name, bits=8)
    raw.consume(1, name, "deaf", bits=2)
    channel = connect().channel()
    for _ in range(200):
        put(channel, name, bytes(100_000))
    other: Any = connect().channel()
    other.queue_declare(f"{name}-o", exclusive=True)
    begin = time.monotonic()
    put(other, f"{name}-o", b"x")
    get_one(other, f"{name}-o")
    assert time.monotonic() - begin < 5


def test_pika_consume_generator_cancels_cleanly(channel: BlockingChannel, queue: str) -> None:
    put(channel, queue, b"1", b"2", b"3")
    taken = []
    for method, _, body in channel.consume(queue, inactivity_timeout=5):
        taken.append(body)
        channel.basic_ack(method.delivery_tag)
        if len(taken) == 2:
            break
    channel.cancel()
    assert taken == [b"1", b"2"]
    assert drain(channel, queue) == [b"3"]


@pytest.mark.parametrize("count", [1, 300])
def test_many_consumers_on_one_channel_each_get_their_share(
    channel: BlockingChannel, queue: str, count: int
) -> None:
    inboxes = [Inbox(channel, queue, auto_ack=True) for _ in range(count)]
    put(channel, queue, *(b"%d" % number for number in range(count * 2)))
    sync(channel)
    deadline = time.monotonic() + 10
    while sum(len(i.received) for i in inboxes) < count * 2 and time.monotonic() < deadline:
        channel.connection.process_data_events(0.05)
    assert [len(inbox.received) for inbox in inboxes] == [2] * count
