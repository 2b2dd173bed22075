"""Consumers: who gets what, and who may subscribe."""

from __future__ import annotations

import pytest
from builders import a_broker
from unit.broker.channel import TestChannel, a_channel

from tidemark.broker.broker import Broker
from tidemark.errors import AccessRefused, PreconditionFailed


@pytest.fixture
def broker() -> Broker:
    return a_broker()


@pytest.fixture
def channel(broker: Broker) -> TestChannel:
    channel = a_channel(broker)
    channel.session.declare_queue("q")
    return channel


def numbered(count: int) -> list[bytes]:
    return [b"%d" % number for number in range(count)]


# Subscribing ---------------------------------------------------------------------------------


def test_an_exclusive_consumer_is_refused_where_another_is(channel: TestChannel) -> None:
    channel.consume("q", "first")
    with pytest.raises(AccessRefused, match="queue 'q' in vhost '/' in exclusive use"):
        channel.consume("q", "second", exclusive=True)


def test_nobody_joins_an_exclusive_consumer_until_it_is_gone(channel: TestChannel) -> None:
    alone = channel.consume("q", "first", exclusive=True)
    with pytest.raises(AccessRefused, match="in exclusive use"):
        channel.consume("q", "second")
    channel.session.cancel(alone)
    channel.consume("q", "second")


@pytest.mark.parametrize("priority", ["high", 1.5, None, True])
def test_a_priority_that_is_no_number_is_refused(channel: TestChannel, priority: object) -> None:
    with pytest.raises(PreconditionFailed, match="invalid arg 'x-priority' for queue 'q' in vhost '/'"):
        channel.consume("q", arguments={"x-priority": priority})
    assert not channel.session.vhost.queues["q"].consumers


def test_a_cancelled_consumer_gets_no_more_and_what_it_holds_stays_held(channel: TestChannel) -> None:
    consumer = channel.consume("q")
    channel.publish("q", b"1")
    channel.turn()
    channel.session.cancel(consumer)
    channel.publish("q", b"2")
    channel.turn()
    assert channel.bodies == [b"1"]
    queue = channel.session.vhost.queues["q"]
    assert (queue.ready, queue.acquired) == (1, 1)
    assert channel.ack(1) == 1


# Room ------------------------------------------------------------------------------------------


def test_a_consumer_never_holds_more_than_its_prefetch(channel: TestChannel) -> None:
    channel.consume("q", prefetch=3)
    channel.publish("q", *numbered(10))
    channel.turn()
    assert channel.bodies == numbered(3)
    channel.ack(2)
    channel.turn()
    assert channel.bodies == numbered(4)
    channel.ack(1, 4)
    channel.turn()
    assert channel.bodies == numbered(7)


def test_a_consumer_that_does_not_acknowledge_has_no_prefetch(channel: TestChannel) -> None:
    channel.consume("q", prefetch=3, no_ack=True)
    channel.publish("q", *numbered(10))
    channel.turn()
    assert channel.bodies == numbered(10)
    queue = channel.session.vhost.queues["q"]
    assert (queue.ready, queue.acquired, queue.settled) == (0, 0, 10)


def test_no_more_is_acquired_than_the_channel_has_room_for(broker: Broker, channel: TestChannel) -> None:
    slow = a_channel(broker, room=2)
    slow.consume("q")
    channel.publish("q", *numbered(5))
    channel.turn()
    queue = channel.session.vhost.queues["q"]
    assert (len(slow.deliveries), queue.acquired, queue.ready) == (2, 2, 3)

    slow.left = 10
    queue.touch()
    channel.turn()
    assert slow.bodies == numbered(5)


def test_large_messages_come_in_small_gifts_with_a_question_for_room_between(channel: TestChannel) -> None:
    channel.consume("q")
    channel.publish("q", *[bytes(100_000)] * 10)
    channel.turn()
    assert channel.gifts == [3, 3, 3, 1]


# Sharing ------------------------------------------------------------------------------------------


def test_equal_consumers_take_turns_across_batches_and_turns(channel: TestChannel) -> None:
    for tag in "abc":
        channel.consume("q", tag)
    channel.publish("q", *numbered(4))
    channel.turn()
    for number in range(4, 7):
        channel.publish("q", b"%d" % number)
        channel.turn()
    assert [(d.consumer, int(d.body)) for d in channel.deliveries] == list(
        zip("abcabca", range(7), strict=True)
    )


def test_a_consumer_that_joins_does_not_turn_the_ring_back(channel: TestChannel) -> None:
    for tag in "ab":
        channel.consume("q", tag)
    channel.publish("q", b"0")
    channel.turn()
    channel.consume("q", "c")
    channel.publish("q", *numbered(3))
    channel.turn()
    assert [d.consumer for d in channel.deliveries] == ["a", "b", "a", "c"]


def test_many_messages_are_shared_evenly_in_chunks(channel: TestChannel) -> None:
    for tag in "ab":
        channel.consume("q", tag)
    channel.publish("q", *numbered(1000))
    channel.turn()
    counts = [sum(d.consumer == tag for d in channel.deliveries) for tag in "ab"]
    assert sum(counts) == 1000
    assert counts == [500, 500]
    assert max(channel.gifts) <= 64
    assert len(channel.gifts) < 100
    assert sorted(channel.bodies, key=int) == numbered(1000)


def test_a_full_consumer_is_passed_over(channel: TestChannel) -> None:
    channel.consume("q", "small", prefetch=1)
    channel.consume("q", "large")
    channel.publish("q", *numbered(5))
    channel.turn()
    assert [d.consumer for d in channel.deliveries] == ["small", "large", "large", "large", "large"]


def test_a_higher_priority_gets_everything_it_has_room_for(channel: TestChannel) -> None:
    channel.consume("q", "low")
    channel.consume("q", "high", arguments={"x-priority": 10}, prefetch=2)
    channel.publish("q", *numbered(4))
    channel.turn()
    assert [d.consumer for d in channel.deliveries] == ["high", "high", "low", "low"]


# Single active consumer -----------------------------------------------------------------------------


@pytest.fixture
def single(channel: TestChannel) -> TestChannel:
    channel.session.declare_queue("s", arguments={"x-single-active-consumer": True})
    return channel


def test_only_the_first_consumer_is_active_whoever_else_comes(single: TestChannel) -> None:
    first = single.consume("s", "first", prefetch=1)
    second = single.consume("s", "second", arguments={"x-priority": 5})
    single.publish("s", *numbered(3))
    single.turn()
    assert [d.consumer for d in single.deliveries] == ["first"]
    assert (first.active, second.active) == (True, False)


def test_an_exclusive_consumer_has_no_place_on_such_a_queue(single: TestChannel) -> None:
    with pytest.raises(AccessRefused, match="in exclusive use"):
        single.consume("s", exclusive=True)


def test_when_the_active_consumer_goes_the_next_in_line_takes_over(single: TestChannel) -> None:
    first = single.consume("s", "first", prefetch=1)
    second = single.consume("s", "second")
    single.publish("s", *numbered(3))
    single.turn()
    single.session.cancel(first)
    single.turn()
    assert [d.consumer for d in single.deliveries] == ["first", "second", "second"]
    assert second.active
