"""Queues: declaring, sharing, deleting and counting."""

from __future__ import annotations

from typing import Any

import pika
import pytest
from helpers import raw as amqp
from helpers.amqp import (
    Connect,
    Inbox,
    channel_refused,
    connection_refused,
    depth,
    drain,
    eventually,
    put,
    sync,
)
from helpers.raw import RawConnection
from pika.adapters.blocking_connection import BlockingChannel
from pika.exceptions import ChannelClosedByBroker


def exists(connection: pika.BlockingConnection, queue: str) -> bool:
    probe = connection.channel()
    try:
        probe.queue_declare(queue, passive=True)
    except ChannelClosedByBroker as refusal:
        if refusal.reply_code not in (404, 405):
            raise
        return bool(refusal.reply_code == 405)
    probe.close()
    return True


# Declaring ---------------------------------------------------------------------------------


def test_declare_tells_how_many_messages_and_consumers_there_are(
    connection: pika.BlockingConnection, channel: BlockingChannel, queue: str
) -> None:
    put(channel, queue, b"1", b"2", b"3")
    eventually(lambda: depth(channel, queue) == 3)
    answer = channel.queue_declare(queue, exclusive=True).method
    assert (answer.queue, answer.message_count, answer.consumer_count) == (queue, 3, 0)

    other = connection.channel()
    Inbox(other, queue).wait(3)
    answer = channel.queue_declare(queue, passive=True).method
    assert (answer.message_count, answer.consumer_count) == (0, 1)


def test_a_server_named_queue_gets_a_name_of_its_own(channel: BlockingChannel) -> None:
    first = channel.queue_declare("", exclusive=True).method.queue
    second = channel.queue_declare("", exclusive=True).method.queue
    assert first.startswith("amq.gen-")
    assert first != second


def test_an_empty_queue_name_means_the_last_one_declared_on_the_channel(
    channel: BlockingChannel,
) -> None:
    named = channel.queue_declare("", exclusive=True).method.queue
    channel.queue_bind("", "amq.direct", f"key-of-{named}")
    channel.basic_publish("amq.direct", f"key-of-{named}", b"here")
    sync(channel)

    method, _, body = channel.basic_get("", auto_ack=True)
    assert method is not None
    assert body == b"here"
    assert channel.queue_purge("").method.message_count == 0


def test_an_empty_queue_name_before_any_declare_is_404(channel: BlockingChannel) -> None:
    with channel_refused(404):
        channel.queue_bind("", "amq.direct", "k")


def test_a_passive_declare_of_a_missing_queue_is_404(channel: BlockingChannel, name: str) -> None:
    with channel_refused(404):
        channel.queue_declare(name, passive=True)


def test_names_that_begin_with_amq_are_reserved(channel: BlockingChannel, name: str) -> None:
    with channel_refused(403):
        channel.queue_declare(f"amq.{name}")


def test_queue_names_may_be_unicode(channel: BlockingChannel, name: str) -> None:
    queue = name + "-čerpadlo-队列-🌊"
    assert channel.queue_declare(queue, exclusive=True).method.queue == queue
    put(channel, queue, b"wet")
    assert drain(channel, queue) == [b"wet"]


def test_a_queue_name_of_255_bytes_works(channel: BlockingChannel, name: str) -> None:
    queue = name.ljust(255, "q")
    channel.queue_declare(queue, exclusive=True)
    put(channel, queue, b"long")
    assert drain(channel, queue) == [b"long"]


@pytest.mark.parametrize(
    "change",
    [
        {"durable": True},
        {"auto_delete": True},
        {"arguments": {"x-message-ttl": 1000}},
        {"arguments": {"x-expires": 60000}},
        {"arguments": {"x-max-length": 10}},
        {"arguments": {"x-dead-letter-exchange": "amq.direct"}},
        {"arguments": {"x-max-priority": 5}},
    ],
    ids=lambda change: str(change),
)
def test_declaring_again_with_another_property_is_406(
    channel: BlockingChannel, name: str, change: dict[str, Any]
) -> None:
    channel.queue_declare(name, exclusive=False, auto_delete=False)
    try:
        with channel_refused(406):
            channel.connection.channel().queue_declare(name, **change)
    finally:
        channel.queue_delete(name)


def test_declaring_again_with_equal_arguments_of_another_width_succeeds(
    raw: RawConnection, name: str
) -> None:
    raw.handshake()
    kinds = [b"I" + amqp.long(5000), b"l" + amqp.longlong(5000), b"s" + amqp.short(5000)]
    for value in kinds:
        raw.declare_queue(1, name, bits=4, arguments=amqp.table({"x-message-ttl": value}))


@pytest.mark.parametrize(
    "arguments",
    [
        {"x-message-ttl": -1},
        {"x-message-ttl": "soon"},
        {"x-expires": 0},
        {"x-expires": -5},
        {"x-expires": "never"},
        {"x-max-length": -1},
        {"x-max-length": "many"},
        {"x-max-length-bytes": -1},
        {"x-overflow": "burst"},
        {"x-overflow": 1},
        {"x-max-priority": -1},
        {"x-max-priority": 256},
        {"x-max-priority": "high"},
        {"x-dead-letter-exchange": 7},
        {"x-dead-letter-routing-key": "k"},
        {"x-dead-letter-exchange": "amq.direct", "x-dead-letter-routing-key": 7},
        {"x-single-active-consumer": "yes"},
        {"x-queue-type": "no-such-type"},
        {"x-queue-type": 3},
    ],
    ids=str,
)
def test_a_bad_value_of_a_known_argument_is_406(
    channel: BlockingChannel, name: str, arguments: dict[str, Any]
) -> None:
    with channel_refused(406):
        channel.queue_declare(name, arguments=arguments)


def test_an_unknown_argument_is_ignored(channel: BlockingChannel, name: str) -> None:
    channel.queue_declare(name, exclusive=True, arguments={"x-nobody-knows": 1, "note": "mine"})
    put(channel, name, b"fine")
    assert drain(channel, name) == [b"fine"]


@pytest.mark.parametrize("mode", ["default", "lazy"])
def test_queue_mode_changes_nothing_that_a_client_sees(
    channel: BlockingChannel, name: str, mode: str
) -> None:
    channel.queue_declare(name, exclusive=True, arguments={"x-queue-mode": mode})
    put(channel, name, b"1", b"2")
    assert drain(channel, name) == [b"1", b"2"]


@pytest.mark.parametrize("kind", ["classic", "quorum"])
def test_classic_and_quorum_queues_keep_messages_in_order(
    channel: BlockingChannel, name: str, kind: str
) -> None:
    channel.queue_declare(name, durable=True, arguments={"x-queue-type": kind})
    channel.confirm_delivery()
    put(channel, name, *(b"%d" % number for number in range(20)), delivery_mode=2)
    assert drain(channel, name) == [b"%d" % number for number in range(20)]
    channel.queue_delete(name)


@pytest.mark.parametrize("flags", [{"durable": False}, {"durable": True, "exclusive": True}])
def test_a_quorum_queue_must_be_durable_and_shared(
    channel: BlockingChannel, name: str, flags: dict[str, Any]
) -> None:
    with channel_refused(406):
        channel.queue_declare(name, arguments={"x-queue-type": "quorum"}, **flags)


def test_declare_with_no_wait_is_not_answered(raw: RawConnection, name: str) -> None:
    raw.handshake()
    raw.send_method(1, amqp.QUEUE_DECLARE, amqp.short(0) + amqp.shortstr(name) + b"\x14" + amqp.EMPTY_TABLE)
    raw.publish(1, "", name, b"quick")
    raw.get(1, name)
    assert raw.expect_content(amqp.GET_OK)[2] == b"quick"


def test_every_request_with_no_wait_is_done_and_not_answered(raw: RawConnection, name: str) -> None:
    raw.handshake()
    zero, queue, exchange = amqp.short(0), amqp.shortstr(name), amqp.shortstr(f"{name}-x")
    empty, key = amqp.EMPTY_TABLE, amqp.shortstr("k")
    raw.declare_queue(1, name, bits=4)
    raw.send_method(1, (40, 10), zero + exchange + amqp.shortstr("direct") + b"\x14" + empty)
    raw.send_method(1, (50, 20), zero + queue + exchange + key + b"\x01" + empty)
    raw.publish(1, f"{name}-x", "k", b"purged")
    raw.send_method(1, (50, 30), zero + queue + b"\x01")
    raw.publish(1, f"{name}-x", "k", b"consumed")
    raw.send_method(1, (60, 20), zero + queue + amqp.shortstr("t") + b"\x0a" + empty)
    assert raw.expect_content(amqp.DELIVER)[2] == b"consumed"

    raw.send_method(1, (60, 30), amqp.shortstr("t") + b"\x01")
    raw.send_method(1, (40, 30), zero + exchange + amqp.shortstr("amq.fanout") + key + b"\x01" + empty)
    raw.send_method(1, (40, 40), zero + exchange + amqp.shortstr("amq.fanout") + key + b"\x01" + empty)
    raw.send_method(1, (40, 20), zero + exchange + b"\x02")
    raw.send_method(1, (50, 40), zero + queue + b"\x04")
    raw.send_method(1, amqp.QUEUE_DECLARE, zero + queue + b"\x01" + empty)
    assert raw.channel_closing().code == 404


# Exclusive and auto-delete -----------------------------------------------------------------


@pytest.mark.parametrize("attempt", ["declare", "passive", "consume", "get", "purge", "delete", "bind"])
def test_an_exclusive_queue_is_405_for_every_other_connection(
    connect: Connect, queue: str, attempt: str
) -> None:
    other = connect().channel()
    with channel_refused(405):
        match attempt:
            case "declare":
                other.queue_declare(queue, exclusive=True)
            case "passive":
                other.queue_declare(queue, passive=True)
            case "consume":
                other.basic_consume(queue, lambda *_: None)
            case "get":
                other.basic_get(queue)
            case "purge":
                other.queue_purge(queue)
            case "delete":
                other.queue_delete(queue)
            case "bind":
                other.queue_bind(queue, "amq.direct", "k")


def test_another_connection_may_publish_to_an_exclusive_queue(
    connect: Connect, channel: BlockingChannel, queue: str
) -> None:
    other = connect().channel()
    put(other, queue, b"from outside")
    sync(other)
    eventually(lambda: depth(channel, queue) == 1)


def test_an_exclusive_queue_goes_with_its_connection(connect: Connect, name: str) -> None:
    owner, other = connect(), connect()
    owner.channel().queue_declare(name, exclusive=True, durable=True)
    assert exists(other, name)

    owner.close()
    eventually(lambda: not exists(other, name))


def test_an_auto_delete_queue_goes_with_its_last_consumer(
    connection: pika.BlockingConnection, channel: BlockingChannel, name: str
) -> None:
    channel.queue_declare(name, auto_delete=True)
    first, second = Inbox(channel, name), Inbox(connection.channel(), name)
    channel.basic_cancel(first.tag)
    assert exists(connection, name)

    second.channel.close()
    eventually(lambda: not exists(connection, name))


def test_an_auto_delete_queue_that_never_had_a_consumer_stays(
    connection: pika.BlockingConnection, channel: BlockingChannel, name: str
) -> None:
    connection.channel().queue_declare(name, auto_delete=True)
    put(channel, name, b"kept")
    assert drain(channel, name) == [b"kept"]
    channel.queue_delete(name)


# Purge and delete ----------------------------------------------------------------------------


def test_purge_removes_what_is_ready_and_says_how_many(
    connection: pika.BlockingConnection, channel: BlockingChannel, queue: str
) -> None:
    put(channel, queue, b"held", b"1", b"2", b"3")
    method, _, _ = channel.basic_get(queue)
    assert channel.queue_purge(queue).method.message_count == 3

    channel.basic_nack(method.delivery_tag, requeue=True)
    assert drain(channel, queue) == [b"held"]


def test_purging_a_missing_queue_is_404(channel: BlockingChannel, name: str) -> None:
    with channel_refused(404):
        channel.queue_purge(name)


def test_delete_says_how_many_messages_went(channel: BlockingChannel, queue: str) -> None:
    put(channel, queue, b"1", b"2")
    assert channel.queue_delete(queue).method.message_count == 2


def test_deleting_a_missing_queue_succeeds(channel: BlockingChannel, name: str) -> None:
    assert channel.queue_delete(name).method.message_count == 0


def test_delete_if_empty_is_406_while_messages_are_ready(
    connection: pika.BlockingConnection, channel: BlockingChannel, queue: str
) -> None:
    put(channel, queue, b"1")
    eventually(lambda: depth(channel, queue) == 1)
    with channel_refused(406):
        connection.channel().queue_delete(queue, if_empty=True)
    drain(channel, queue)
    channel.queue_delete(queue, if_empty=True)
    assert not exists(connection, queue)


def test_delete_if_unused_is_406_while_a_consumer_is_there(
    connection: pika.BlockingConnection, channel: BlockingChannel, queue: str
) -> None:
    inbox = Inbox(channel, queue)
    with channel_refused(406):
        connection.channel().queue_delete(queue, if_unused=True)
    channel.basic_cancel(inbox.tag)
    channel.queue_delete(queue, if_unused=True)
    assert not exists(connection, queue)


def test_deleting_a_queue_tells_its_consumers(
    connection: pika.BlockingConnection, channel: BlockingChannel, queue: str
) -> None:
    inbox = Inbox(connection.channel(), queue)
    told: list[str] = []
    inbox.channel.add_on_cancel_callback(lambda frame: told.append(frame.method.consumer_tag))
    channel.queue_delete(queue)

    eventually(lambda: connection.process_data_events(0.02) or told)
    assert told == [inbox.tag]


def test_a_client_without_cancel_notify_is_not_told(raw: RawConnection, name: str) -> None:
    raw.handshake(channels=2)
    raw.declare_queue(1, name)
    raw.consume(1, name)
    raw.send_method(2, (50, 40), amqp.short(0) + amqp.shortstr(name) + b"\0")
    raw.expect((50, 41))
    with pytest.raises(TimeoutError):
        raw.read_frame(timeout_s=0.3)


def test_an_argument_that_nobody_knows_may_be_a_nested_table(channel: BlockingChannel, name: str) -> None:
    nested: dict[str, Any] = {}
    for _ in range(20):
        nested = {"deeper": nested}
    channel.queue_declare(name, exclusive=True, arguments={"note": nested})
    put(channel, name, b"fine")
    assert drain(channel, name) == [b"fine"]


def test_consuming_twice_with_one_tag_ends_the_connection(channel: BlockingChannel, queue: str) -> None:
    channel.basic_consume(queue, lambda *_: None, consumer_tag="same")
    channel._impl._consumers.pop("same")
    channel._consumer_infos.pop("same")
    with connection_refused(530):
        channel.basic_consume(queue, lambda *_: None, consumer_tag="same")
