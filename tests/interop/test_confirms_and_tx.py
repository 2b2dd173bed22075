"""Publisher confirms and transactions."""

from __future__ import annotations

import pika
import pytest
from helpers import raw as amqp
from helpers.amqp import Connect, Inbox, channel_refused, drain, get_one, put, sync
from helpers.raw import RawConnection
from pika.adapters.blocking_connection import BlockingChannel


def confirmed_by(raw: RawConnection, last: int) -> list[int]:
    """Read acks until every tag up to `last` is confirmed; the tags in order of confirming."""
    order: list[int] = []
    waiting = set(range(1, last + 1))
    while waiting:
        arguments = raw.expect(amqp.ACK).arguments
        tag, multiple = arguments.longlong(), arguments.octet()
        now = {each for each in waiting if each <= tag} if multiple else {tag}
        assert now <= waiting, f"tag {tag} was confirmed twice"
        waiting -= now
        order += sorted(now)
    return order


def confirm_select(raw: RawConnection, channel: int = 1) -> None:
    raw.send_method(channel, amqp.CONFIRM_SELECT, b"\0")
    raw.expect(amqp.CONFIRM_SELECT_OK)


# Confirms -------------------------------------------------------------------------------------


@pytest.mark.parametrize("persistent", [False, True])
@pytest.mark.parametrize("durable", [False, True])
def test_every_publish_is_confirmed_exactly_once(
    raw: RawConnection, name: str, durable: bool, persistent: bool
) -> None:
    raw.handshake()
    raw.declare_queue(1, name, bits=4 | durable << 1)
    confirm_select(raw)
    properties = b"\x10\x00" + (b"\x02" if persistent else b"\x01")
    raw.send(b"".join(amqp.encode_publish(1, "", name, b"x", properties) for _ in range(500)))
    assert sorted(confirmed_by(raw, 500)) == list(range(1, 501))
    with pytest.raises(TimeoutError):
        raw.read_frame(timeout_s=0.1)


def test_tags_count_from_the_select_on(raw: RawConnection, name: str) -> None:
    raw.handshake()
    raw.declare_queue(1, name, bits=4)
    raw.publish(1, "", name, b"before")
    confirm_select(raw)
    raw.publish(1, "", name, b"after")
    assert confirmed_by(raw, 1) == [1]


def test_a_message_without_a_queue_is_confirmed_too(raw: RawConnection, name: str) -> None:
    raw.handshake()
    confirm_select(raw)
    raw.publish(1, "", name, b"stray")
    assert confirmed_by(raw, 1) == [1]


def test_select_may_be_repeated(raw: RawConnection, name: str) -> None:
    raw.handshake()
    confirm_select(raw)
    raw.publish(1, "", name, b"x")
    confirmed_by(raw, 1)
    confirm_select(raw)
    raw.publish(1, "", name, b"x")
    assert raw.expect(amqp.ACK).arguments.longlong() == 2


def test_channels_count_their_confirms_apart(raw: RawConnection, name: str) -> None:
    raw.handshake(channels=2)
    for channel in (1, 2):
        confirm_select(raw, channel)
        raw.publish(channel, "", name, b"x")
        frame = raw.expect(amqp.ACK)
        assert (frame.channel, frame.arguments.longlong()) == (channel, 1)


def test_a_message_taken_by_a_consumer_without_acks_is_confirmed(
    connect: Connect, channel: BlockingChannel, name: str
) -> None:
    channel.queue_declare(name, durable=True, exclusive=True)
    Inbox(channel, name, auto_ack=True)
    publisher = connect().channel()
    publisher.confirm_delivery()
    put(publisher, name, b"x", delivery_mode=2)


def test_select_without_waiting_is_not_answered(raw: RawConnection, name: str) -> None:
    raw.handshake()
    raw.send_method(1, amqp.CONFIRM_SELECT, b"\1")
    raw.publish(1, "", name, b"x")
    assert confirmed_by(raw, 1) == [1]


def test_confirms_on_a_transactional_channel_are_406(raw: RawConnection) -> None:
    raw.handshake()
    raw.send_method(1, amqp.TX_SELECT)
    raw.expect(amqp.TX_SELECT_OK)
    raw.send_method(1, amqp.CONFIRM_SELECT, b"\0")
    assert raw.channel_closing().code == 406


def test_transactions_on_a_confirming_channel_are_406(raw: RawConnection) -> None:
    raw.handshake()
    confirm_select(raw)
    raw.send_method(1, amqp.TX_SELECT)
    assert raw.channel_closing().code == 406


# Transactions -----------------------------------------------------------------------------------


@pytest.fixture
def tx(connection: pika.BlockingConnection) -> BlockingChannel:
    channel = connection.channel()
    channel.tx_select()
    return channel


def test_nothing_is_visible_before_the_commit_and_everything_after(
    channel: BlockingChannel, tx: BlockingChannel, queue: str
) -> None:
    put(tx, queue, b"1", b"2", b"3")
    sync(tx)
    assert drain(channel, queue) == []
    tx.tx_commit()
    assert drain(channel, queue) == [b"1", b"2", b"3"]


def test_a_rollback_forgets_what_was_published(
    channel: BlockingChannel, tx: BlockingChannel, queue: str
) -> None:
    put(tx, queue, b"forgotten")
    tx.tx_rollback()
    put(tx, queue, b"kept")
    tx.tx_commit()
    assert drain(channel, queue) == [b"kept"]


def test_a_commit_covers_several_queues(channel: BlockingChannel, tx: BlockingChannel, name: str) -> None:
    queues = [f"{name}-{number}" for number in range(3)]
    for queue in queues:
        channel.queue_declare(queue, exclusive=True)
        put(tx, queue, b"1", b"2")
    tx.tx_commit()
    assert [drain(channel, queue) for queue in queues] == [[b"1", b"2"]] * 3


def test_an_ack_counts_only_from_the_commit_on(
    connection: pika.BlockingConnection, channel: BlockingChannel, queue: str
) -> None:
    put(channel, queue, b"1", b"2")
    for commit in (False, True):
        tx = connection.channel()
        tx.tx_select()
        method, _, body = get_one(tx, queue, auto_ack=False)
        assert body == b"1"
        tx.basic_ack(method.delivery_tag)
        if commit:
            tx.tx_commit()
        tx.close()
    assert drain(channel, queue) == [b"2"]


def test_a_rolled_back_ack_leaves_the_message_held_and_it_can_be_acked_again(
    channel: BlockingChannel, tx: BlockingChannel, queue: str
) -> None:
    put(channel, queue, b"1")
    method, _, _ = get_one(tx, queue, auto_ack=False)
    tx.basic_ack(method.delivery_tag)
    tx.tx_rollback()
    assert drain(channel, queue) == []

    tx.basic_ack(method.delivery_tag)
    tx.tx_commit()
    tx.close()
    assert drain(channel, queue) == []


def test_a_reject_in_a_transaction_counts_only_from_the_commit_on(
    channel: BlockingChannel, tx: BlockingChannel, queue: str
) -> None:
    put(channel, queue, b"1")
    method, _, _ = get_one(tx, queue, auto_ack=False)
    tx.basic_nack(method.delivery_tag, requeue=True)
    sync(tx)
    assert drain(channel, queue) == []
    tx.tx_commit()
    assert drain(channel, queue) == [b"1"]


def test_publishes_and_acks_commit_together(channel: BlockingChannel, tx: BlockingChannel, name: str) -> None:
    for queue in (f"{name}-in", f"{name}-out"):
        channel.queue_declare(queue, exclusive=True)
    put(channel, f"{name}-in", b"work")
    method, _, body = get_one(tx, f"{name}-in", auto_ack=False)
    put(tx, f"{name}-out", b"done: " + body)
    tx.basic_ack(method.delivery_tag)
    tx.tx_commit()
    tx.close()
    assert drain(channel, f"{name}-in") == []
    assert drain(channel, f"{name}-out") == [b"done: work"]


def test_closing_the_channel_without_a_commit_forgets_the_transaction(
    channel: BlockingChannel, tx: BlockingChannel, queue: str
) -> None:
    put(tx, queue, b"forgotten")
    tx.close()
    assert drain(channel, queue) == []


def test_a_mandatory_message_is_returned_when_the_transaction_commits(raw: RawConnection, name: str) -> None:
    raw.handshake()
    raw.send_method(1, amqp.TX_SELECT)
    raw.expect(amqp.TX_SELECT_OK)
    raw.publish(1, "", name, b"stray", bits=1)
    raw.send_method(1, amqp.TX_COMMIT)
    seen = {raw.read_frame().method for _ in range(4)}
    assert {amqp.RETURN, amqp.TX_COMMIT_OK} <= seen


@pytest.mark.parametrize("method", [amqp.TX_COMMIT, amqp.TX_ROLLBACK])
def test_commit_and_rollback_without_a_transaction_are_406(
    raw: RawConnection, method: tuple[int, int]
) -> None:
    raw.handshake()
    raw.send_method(1, method)
    closed = raw.channel_closing()
    assert (closed.code, closed.method) == (406, method)


def test_an_unknown_tag_in_a_transaction_is_406(tx: BlockingChannel) -> None:
    with channel_refused(406):
        tx.basic_ack(99)
        tx.tx_commit()


def test_many_commits_in_a_row_keep_the_order(
    channel: BlockingChannel, tx: BlockingChannel, queue: str
) -> None:
    for number in range(50):
        put(tx, queue, b"%d" % number, delivery_mode=2)
        tx.tx_commit()
    assert drain(channel, queue) == [b"%d" % number for number in range(50)]
