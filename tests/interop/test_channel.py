"""Opening, closing and pausing channels, and what a closed channel still does."""

from __future__ import annotations

import pika
import pytest
from helpers import raw as amqp
from helpers.amqp import Inbox, channel_refused, get_one, put, sync
from helpers.raw import RawConnection, octet, short, shortstr
from pika.adapters.blocking_connection import BlockingChannel
from pika.exceptions import ChannelWrongStateError


def test_opening_a_channel_twice_is_an_error_of_the_connection(raw: RawConnection) -> None:
    raw.handshake()
    raw.send_method(1, amqp.CHANNEL_OPEN, shortstr(""))

    closed = raw.closing()
    assert closed.code == 504
    assert closed.method == amqp.CHANNEL_OPEN


def test_a_channel_error_leaves_the_connection_and_other_channels_open(
    connection: pika.BlockingConnection, channel: BlockingChannel
) -> None:
    doomed = connection.channel()
    with channel_refused(404):
        doomed.queue_declare("no-such-queue", passive=True)

    assert doomed.is_closed
    sync(channel)
    with pytest.raises(ChannelWrongStateError):
        doomed.basic_qos(prefetch_count=1)


def test_a_closed_channel_number_can_be_opened_again(raw: RawConnection) -> None:
    raw.handshake()
    for _ in range(3):
        raw.close_channel(1)
        raw.expect(amqp.CHANNEL_CLOSE_OK)
        raw.open_channel(1)


def test_a_method_on_a_closed_channel_is_504(raw: RawConnection) -> None:
    raw.handshake()
    raw.close_channel(1)
    raw.expect(amqp.CHANNEL_CLOSE_OK)
    raw.send_method(1, amqp.TX_SELECT)
    assert raw.closing().code == 504


def test_what_was_sent_before_the_server_closed_the_channel_was_seen_is_ignored(
    raw: RawConnection, name: str
) -> None:
    raw.handshake()
    raw.declare_queue(1, name, bits=4)
    bad = short(0) + shortstr("no-such-queue") + octet(1) + amqp.EMPTY_TABLE
    raw.send_method(1, amqp.QUEUE_DECLARE, bad)
    raw.publish(1, "", name, b"too late")
    raw.send_method(1, amqp.TX_SELECT)
    raw.channel_closing()
    raw.send_method(1, amqp.CHANNEL_CLOSE_OK)

    raw.open_channel(1)
    raw.get(1, name)
    raw.expect(amqp.GET_EMPTY)


def test_channel_close_is_answered_after_the_work_that_was_sent_before_it(
    raw: RawConnection, name: str
) -> None:
    raw.handshake()
    raw.declare_queue(1, name, bits=4)
    for number in range(50):
        raw.publish(1, "", name, b"%d" % number)
    raw.close_channel(1)
    raw.expect(amqp.CHANNEL_CLOSE_OK)

    raw.open_channel(1)
    raw.get(1, name)
    _, _, body = raw.expect_content(amqp.GET_OK)
    assert body == b"0"


def test_closing_a_channel_gives_back_what_was_not_acknowledged(
    connection: pika.BlockingConnection, channel: BlockingChannel, queue: str
) -> None:
    put(channel, queue, b"one", b"two")
    other = connection.channel()
    Inbox(other, queue).wait(2)
    other.close()

    first, _, body = get_one(channel, queue)
    assert (first.redelivered, body) == (True, b"one")
    second, _, body = get_one(channel, queue)
    assert (second.redelivered, body) == (True, b"two")


def test_a_client_may_ask_for_flow_that_is_on(raw: RawConnection) -> None:
    raw.handshake()
    raw.send_method(1, amqp.CHANNEL_FLOW, octet(1))
    assert raw.expect(amqp.CHANNEL_FLOW_OK).arguments.octet() == 1


def test_a_client_may_not_stop_the_flow_of_its_deliveries(raw: RawConnection) -> None:
    raw.handshake()
    raw.send_method(1, amqp.CHANNEL_FLOW, octet(0))
    closed = raw.closing()
    assert (closed.code, closed.method) == (540, amqp.CHANNEL_FLOW)


def test_two_thousand_channels_fit_on_one_connection(raw: RawConnection) -> None:
    raw.handshake(channels=0)
    raw.send(b"".join(amqp.encode_method(n, amqp.CHANNEL_OPEN, b"\0") for n in range(1, 2001)))
    opened = {raw.expect(amqp.CHANNEL_OPEN_OK).channel for _ in range(2000)}
    assert opened == set(range(1, 2001))
