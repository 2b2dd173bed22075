"""Giving messages back and giving them up."""

from __future__ import annotations

import pytest
from builders import a_broker
from unit.broker.channel import TestChannel, a_channel

from tidemark.errors import DiskFull
from tidemark.model.records import Reason, RecordType


@pytest.fixture
def channel() -> TestChannel:
    channel = a_channel(a_broker())
    channel.session.declare_queue("q", durable=True)
    channel.session.declare_queue(
        "limited", durable=True, arguments={"x-queue-type": "quorum", "x-delivery-limit": 2}
    )
    return channel


def test_a_rejected_message_without_a_dead_letter_exchange_is_gone(channel: TestChannel) -> None:
    number = channel.session.vhost.queues["q"].number
    seq = channel.publish("q", b"bad", delivery_mode=2).last_seq
    delivery = channel.get("q")
    assert delivery is not None
    channel.nack(delivery.tag, requeue=False)
    assert channel.settled() == [(number, Reason.REJECTED, [seq])]
    assert channel.drain("q") == []


def test_what_was_accepted_before_a_rejection_keeps_its_own_reason(channel: TestChannel) -> None:
    channel.publish("q", b"good", b"bad", delivery_mode=2)
    good, bad = channel.get("q"), channel.get("q")
    assert good is not None and bad is not None
    channel.ack(good.tag)
    channel.nack(bad.tag, requeue=False)
    assert [reason for _, reason, _ in channel.settled()] == [Reason.ACCEPTED, Reason.REJECTED]


def test_messages_given_back_together_are_in_order_again(channel: TestChannel) -> None:
    channel.publish("q", *(b"%d" % number for number in range(6)))
    for _ in range(4):
        channel.get("q")
    channel.ack(2)
    channel.nack(0, 4)
    assert channel.drain("q") == [b"0", b"2", b"3", b"4", b"5"]


def test_a_message_over_its_delivery_limit_is_given_up(channel: TestChannel) -> None:
    channel.publish("limited", b"poison", delivery_mode=2)
    seen = []
    for _ in range(3):
        delivery = channel.get("limited")
        assert delivery is not None
        seen.append((delivery.redelivered, delivery.deliveries))
        channel.nack(delivery.tag)
    assert seen == [(False, 0), (True, 1), (True, 2)]
    assert channel.get("limited") is None
    assert [reason for _, reason, _ in channel.settled()] == [Reason.DELIVERY_LIMIT]


def test_delivery_counts_of_persistent_messages_are_written_down(channel: TestChannel) -> None:
    number = channel.session.vhost.queues["limited"].number
    seq = channel.publish("limited", b"kept", delivery_mode=2).last_seq
    channel.publish("limited", b"transient")
    for _ in range(2):
        channel.get("limited")
    channel.nack(0, 0)
    counts = [event for event in channel.broker.journal.told if event[0] == RecordType.COUNTED]
    assert counts == [(RecordType.COUNTED, number, [(seq, 1)])]


def test_a_queue_without_a_limit_writes_no_counts(channel: TestChannel) -> None:
    channel.publish("q", b"kept", delivery_mode=2)
    delivery = channel.get("q")
    assert delivery is not None
    channel.nack(delivery.tag)
    channel.turn()
    assert channel.broker.journal.told == []


def test_only_queues_that_count_show_the_count(channel: TestChannel) -> None:
    queues = channel.session.vhost.queues
    assert (queues["q"].count_header, queues["limited"].count_header) == (False, True)


@pytest.mark.parametrize("requeue", [True, False])
def test_settling_a_message_of_a_deleted_queue_does_nothing(channel: TestChannel, requeue: bool) -> None:
    channel.publish("q", b"1", delivery_mode=2)
    delivery = channel.get("q")
    assert delivery is not None
    channel.session.delete_queue("q")
    channel.nack(delivery.tag, requeue=requeue)
    channel.turn()
    assert channel.settled() == []


# A full disk ------------------------------------------------------------------------------------------


@pytest.fixture
def full(channel: TestChannel, monkeypatch: pytest.MonkeyPatch) -> TestChannel:
    """The channel, with queues that dead-letter, on a journal without room for a dead letter."""
    for name, limit in (("risky", 20), ("hopeless", 0)):
        arguments = {"x-dead-letter-exchange": "amq.fanout", "x-delivery-limit": limit}
        channel.session.declare_queue(name, durable=True, arguments=arguments)

    def refuse(need: int) -> None:
        raise DiskFull(path="seg")

    monkeypatch.setattr(channel.broker.journal, "ensure", refuse)
    return channel


def test_a_rejection_without_room_in_one_queue_is_done_in_the_others(full: TestChannel) -> None:
    queues = full.session.vhost.queues
    for name in ("risky", "q"):
        full.publish(name, b"bad", delivery_mode=2)
        full.get(name)
    with pytest.raises(DiskFull):
        full.nack(0, 0, requeue=False)
    assert (queues["risky"].ready, queues["risky"].acquired) == (1, 0)
    assert (queues["q"].ready, queues["q"].acquired) == (0, 0)


def test_a_message_over_its_delivery_limit_is_ready_again_while_there_is_no_room(full: TestChannel) -> None:
    full.publish("hopeless", b"poison", delivery_mode=2)
    delivery = full.get("hopeless")
    assert delivery is not None
    full.nack(delivery.tag)
    assert full.session.vhost.queues["hopeless"].ready == 1
