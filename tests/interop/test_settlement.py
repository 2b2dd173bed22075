"""Acknowledging, rejecting, requeueing and recovering."""

from __future__ import annotations

import pika
import pytest
from helpers import raw as amqp
from helpers.amqp import Inbox, channel_refused, drain, get_one, put, sync
from helpers.raw import RawConnection
from pika.adapters.blocking_connection import BlockingChannel


def take(channel: BlockingChannel, queue: str, count: int) -> list[int]:
    """Get `count` messages without acknowledging; their tags."""
    return [get_one(channel, queue, auto_ack=False)[0].delivery_tag for _ in range(count)]


def left_after_closing(
    connection: pika.BlockingConnection, channel: BlockingChannel, queue: str
) -> list[bytes]:
    """Close the channel, so that what it holds goes back; all that is in the queue then."""
    channel.close()
    return drain(connection.channel(), queue)


@pytest.fixture
def five(connection: pika.BlockingConnection, queue: str) -> str:
    """A queue that holds messages 0 to 4."""
    put(connection.channel(), queue, *(b"%d" % number for number in range(5)))
    get_one(probe := connection.channel(), queue, auto_ack=False)
    probe.close()
    return queue


def test_an_acked_message_is_gone(
    connection: pika.BlockingConnection, channel: BlockingChannel, five: str
) -> None:
    tags = take(channel, five, 3)
    channel.basic_ack(tags[1])
    assert left_after_closing(connection, channel, five) == [b"0", b"2", b"3", b"4"]


def test_ack_multiple_takes_everything_up_to_the_tag(
    connection: pika.BlockingConnection, channel: BlockingChannel, five: str
) -> None:
    tags = take(channel, five, 4)
    channel.basic_ack(tags[2], multiple=True)
    assert left_after_closing(connection, channel, five) == [b"3", b"4"]


def test_ack_multiple_with_tag_zero_takes_everything_delivered(
    connection: pika.BlockingConnection, channel: BlockingChannel, five: str
) -> None:
    take(channel, five, 3)
    channel.basic_ack(0, multiple=True)
    assert left_after_closing(connection, channel, five) == [b"3", b"4"]


def test_ack_multiple_spans_several_queues(channel: BlockingChannel, name: str) -> None:
    queues = [f"{name}-{number}" for number in range(3)]
    for queue in queues:
        channel.queue_declare(queue, exclusive=True)
        put(channel, queue, b"1", b"2")
    other = channel.connection.channel()
    tags = [tag for queue in queues for tag in take(other, queue, 1)]
    other.basic_ack(tags[-1], multiple=True)
    other.close()
    assert [drain(channel, queue) for queue in queues] == [[b"2"]] * 3


@pytest.mark.parametrize("tag", [99, 0])
@pytest.mark.parametrize("how", ["ack", "nack", "reject"])
def test_an_unknown_delivery_tag_is_406(channel: BlockingChannel, queue: str, how: str, tag: int) -> None:
    with channel_refused(406):
        match how:
            case "ack":
                channel.basic_ack(tag)
            case "nack":
                channel.basic_nack(tag)
            case "reject":
                channel.basic_reject(tag)
        sync(channel)


def test_acking_twice_is_406(channel: BlockingChannel, five: str) -> None:
    [tag] = take(channel, five, 1)
    channel.basic_ack(tag)
    with channel_refused(406):
        channel.basic_ack(tag)
        sync(channel)


def test_acking_what_was_delivered_without_acks_is_406(channel: BlockingChannel, five: str) -> None:
    method, _, _ = get_one(channel, five, auto_ack=True)
    with channel_refused(406):
        channel.basic_ack(method.delivery_tag)
        sync(channel)


def test_a_tag_of_another_channel_is_406(channel: BlockingChannel, five: str) -> None:
    other = channel.connection.channel()
    [tag] = take(channel, five, 1)
    with channel_refused(406):
        other.basic_ack(tag)
        sync(other)


def test_ack_multiple_up_to_a_tag_beyond_the_last_is_406(channel: BlockingChannel, five: str) -> None:
    take(channel, five, 2)
    with channel_refused(406):
        channel.basic_ack(50, multiple=True)
        sync(channel)


@pytest.mark.parametrize("how", ["nack", "reject"])
def test_a_requeued_message_returns_to_its_place_and_is_marked_redelivered(
    channel: BlockingChannel, five: str, how: str
) -> None:
    tags = take(channel, five, 3)
    for tag in (tags[2], tags[0], tags[1]):
        if how == "nack":
            channel.basic_nack(tag, requeue=True)
        else:
            channel.basic_reject(tag, requeue=True)
    got = [get_one(channel, five) for _ in range(5)]
    assert [body for _, _, body in got] == [b"0", b"1", b"2", b"3", b"4"]
    assert [method.redelivered for method, _, _ in got[:3]] == [True] * 3
    assert [method.redelivered for method, _, _ in got[3:]] == [False] * 2


def test_nack_multiple_requeues_everything_up_to_the_tag_in_order(
    channel: BlockingChannel, five: str
) -> None:
    tags = take(channel, five, 4)
    channel.basic_nack(tags[2], multiple=True, requeue=True)
    assert drain(channel, five) == [b"0", b"1", b"2", b"4"]


def test_a_rejected_message_without_a_dead_letter_exchange_is_dropped(
    channel: BlockingChannel, five: str
) -> None:
    tags = take(channel, five, 2)
    channel.basic_reject(tags[0], requeue=False)
    channel.basic_nack(tags[1], requeue=False)
    assert drain(channel, five) == [b"2", b"3", b"4"]


def test_a_requeued_message_goes_to_another_consumer_that_waits(
    connection: pika.BlockingConnection, channel: BlockingChannel, queue: str
) -> None:
    inbox = Inbox(channel, queue)
    put(channel, queue, b"x")
    [delivery] = inbox.wait(1)
    other = Inbox(connection.channel(), queue)
    channel.basic_cancel(inbox.tag)
    channel.basic_nack(delivery.tag, requeue=True)
    [again] = other.wait(1)
    assert again.redelivered


def test_recover_with_requeue_delivers_again_in_order(channel: BlockingChannel, five: str) -> None:
    inbox = Inbox(channel, five)
    inbox.wait(5)
    channel.basic_recover(requeue=True)
    again = inbox.wait(10)[5:]
    assert [delivery.body for delivery in again] == [b"0", b"1", b"2", b"3", b"4"]
    assert all(delivery.redelivered for delivery in again)


def test_recover_without_requeue_is_not_implemented(raw: RawConnection) -> None:
    raw.handshake()
    raw.send_method(1, (60, 110), b"\0")
    closed = raw.last_words()
    assert closed is not None
    assert closed.code == 540


def test_the_old_asynchronous_recover_is_understood(raw: RawConnection, name: str) -> None:
    raw.handshake()
    raw.declare_queue(1, name, bits=4)
    raw.publish(1, "", name, b"x")
    raw.consume(1, name)
    raw.expect_content(amqp.DELIVER)
    raw.send_method(1, (60, 100), b"\x01")
    frame, _, body = raw.expect_content(amqp.DELIVER)
    arguments = frame.arguments
    arguments.shortstr()
    assert (arguments.longlong(), arguments.octet(), body) == (2, 1, b"x")


def test_a_flood_of_single_acks_out_of_order_settles_everything(
    connection: pika.BlockingConnection, channel: BlockingChannel, queue: str
) -> None:
    put(channel, queue, *[b"x"] * 1000)
    inbox = Inbox(channel, queue)
    tags = [delivery.tag for delivery in inbox.wait(1000)]
    for tag in tags[1::2] + tags[::2][::-1]:
        channel.basic_ack(tag)
    assert left_after_closing(connection, channel, queue) == []
