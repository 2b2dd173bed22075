"""Queues: order, limits, expiry, priorities, purge, delivery."""

from __future__ import annotations

import pytest
from builders import a_broker
from hypothesis import given, settings
from hypothesis import strategies as st
from unit.broker.channel import TestChannel, a_channel

from tidemark.broker.broker import Broker
from tidemark.broker.core import NEVER
from tidemark.errors import DiskFull
from tidemark.model.records import Reason


@pytest.fixture
def broker() -> Broker:
    return a_broker()


@pytest.fixture
def channel(broker: Broker) -> TestChannel:
    return a_channel(broker)


def declare(channel: TestChannel, name: str = "q", **arguments: object) -> None:
    settings_ = {key.replace("_", "-"): value for key, value in arguments.items()}
    channel.session.declare_queue(name, durable=True, arguments=settings_)


# Order and counts ----------------------------------------------------------------------------


def test_messages_come_out_in_the_order_they_came_in(channel: TestChannel) -> None:
    declare(channel)
    channel.publish("q", b"1", b"2", b"3")
    assert channel.drain("q") == [b"1", b"2", b"3"]


def test_a_message_given_back_returns_to_its_old_place_and_is_marked(channel: TestChannel) -> None:
    declare(channel)
    channel.publish("q", b"1", b"2", b"3")
    first = channel.get("q")
    assert first is not None and not first.redelivered
    channel.nack(first.tag)

    again = channel.get("q")
    assert again is not None
    assert (again.body, again.redelivered, again.deliveries) == (b"1", True, 1)


@settings(max_examples=150, deadline=None)
@given(
    st.lists(
        st.one_of(
            st.tuples(st.just("publish"), st.integers(1, 4)),
            st.tuples(st.just("take"), st.integers(1, 5)),
            st.tuples(st.sampled_from(["ack", "requeue", "reject"]), st.integers(0, 5)),
            st.tuples(st.just("turn"), st.just(0)),
        ),
        max_size=60,
    )
)
def test_whatever_happens_order_is_kept_and_counts_agree_with_a_model(
    steps: list[tuple[str, int]],
) -> None:
    channel = a_channel(a_broker())
    declare(channel)
    queue = channel.session.vhost.queues["q"]
    ready: list[int] = []
    held: dict[int, int] = {}
    ended: list[int] = []
    last = 0
    for step, number in steps:
        if step == "publish":
            numbers = range(last + 1, last + 1 + number)
            channel.publish("q", *(b"%d" % n for n in numbers), delivery_mode=2)
            ready += numbers
            last += number
        elif step == "take":
            for _ in range(number):
                delivery = channel.get("q")
                assert (delivery is None) == (not ready)
                if delivery is not None:
                    assert int(delivery.body) == ready[0]
                    held[delivery.tag] = ready.pop(0)
        elif step == "turn":
            channel.turn()
        elif len(held) > number:
            tag = sorted(held)[number]
            message = held.pop(tag)
            if step == "requeue":
                channel.nack(tag)
                ready = sorted([*ready, message])
                continue
            ended.append(message)
            if step == "ack":
                channel.ack(tag)
            else:
                channel.nack(tag, requeue=False)
        assert (queue.ready, queue.acquired) == (len(ready), len(held))
        assert queue.ready_bytes == sum(len(str(n)) for n in ready)
    channel.turn()
    assert [int(body) for body in channel.drain("q")] == ready
    channel.turn()
    settled = [seq for _, _, seqs in channel.settled() for seq in seqs]
    assert len(settled) == len(set(settled)) == len(ended) + len(ready)


# The journal -----------------------------------------------------------------------------------


def test_the_journal_is_told_once_a_turn_what_was_accepted_of_a_durable_queue(channel: TestChannel) -> None:
    declare(channel)
    number = channel.session.vhost.queues["q"].number
    published = channel.publish("q", b"1", b"2", b"3", delivery_mode=2)
    channel.consume("q")
    channel.turn()
    assert channel.broker.journal.told == []

    channel.ack(1)
    channel.ack(3)
    channel.turn()
    first = published.last_seq - 2
    assert channel.settled() == [(number, Reason.ACCEPTED, [first, first + 2])]
    channel.ack(2)
    channel.turn()
    assert channel.settled()[1:] == [(number, Reason.ACCEPTED, [first + 1])]


def test_transient_messages_and_queues_never_reach_the_journal(channel: TestChannel) -> None:
    declare(channel)
    channel.session.declare_queue("t")
    channel.session.declare_queue("x", durable=True, exclusive=True)
    assert channel.publish("q", b"transient").last_seq == 0
    assert channel.publish("t", b"persistent, on a transient queue", delivery_mode=2).last_seq == 0
    assert channel.publish("x", b"persistent, on an exclusive queue", delivery_mode=2).last_seq == 0
    for name in "qtx":
        assert len(channel.drain(name)) == 1
    channel.turn()
    assert channel.broker.journal.told == []


def test_purge_ends_what_is_ready_and_says_how_many(channel: TestChannel) -> None:
    declare(channel)
    channel.publish("q", b"held", b"1", b"2", delivery_mode=2)
    held = channel.get("q")
    assert held is not None
    assert channel.session.purge_queue("q").messages == 2
    assert [reason for _, reason, _ in channel.settled()] == [Reason.PURGED]

    channel.nack(held.tag)
    assert channel.drain("q") == [b"held"]


def test_an_ack_and_an_expiry_in_one_turn_are_told_with_their_own_reasons(channel: TestChannel) -> None:
    declare(channel)
    channel.publish("q", b"taken", b"late", delivery_mode=2, expiration="50")
    delivery = channel.get("q")
    assert delivery is not None
    channel.broker.now_ms += 100
    channel.ack(delivery.tag)
    channel.turn()
    assert [(reason, len(seqs)) for _, reason, seqs in channel.settled()] == [
        (Reason.ACCEPTED, 1),
        (Reason.EXPIRED, 1),
    ]


def test_what_ended_while_the_disk_was_full_is_written_when_it_has_room(
    channel: TestChannel, monkeypatch: pytest.MonkeyPatch
) -> None:
    declare(channel)
    seq = channel.publish("q", b"1", b"2", b"3", delivery_mode=2).last_seq - 2
    channel.consume("q")
    channel.turn()

    def full(*_: object) -> int:
        raise DiskFull(path="journal")

    with monkeypatch.context() as patched:
        patched.setattr(channel.broker.journal, "settled", full)
        channel.ack(1)
        channel.nack(2, requeue=False)
        with pytest.raises(DiskFull):
            channel.turn()
        channel.ack(3)
        with pytest.raises(DiskFull):
            channel.turn()
    assert channel.settled() == []
    channel.turn()
    number = channel.session.vhost.queues["q"].number
    assert channel.settled() == [
        (number, Reason.ACCEPTED, [seq]),
        (number, Reason.REJECTED, [seq + 1]),
        (number, Reason.ACCEPTED, [seq + 2]),
    ]
    assert channel.broker.dirty == []


# Priorities -----------------------------------------------------------------------------------


def test_higher_priorities_come_first_and_equal_ones_in_order(channel: TestChannel) -> None:
    declare(channel, x_max_priority=5)
    for number, priority in enumerate([1, 5, None, 200, 5, 0]):
        channel.publish("q", b"%d" % number, priority=priority)
    assert channel.drain("q") == [b"1", b"3", b"4", b"0", b"2", b"5"]


def test_a_consumer_gets_all_priorities_in_one_turn(channel: TestChannel) -> None:
    declare(channel, x_max_priority=2)
    for priority in (0, 1, 2):
        channel.publish("q", b"%d" % priority, priority=priority)
    channel.consume("q")
    channel.turn()
    assert channel.bodies == [b"2", b"1", b"0"]


# Length limits -----------------------------------------------------------------------------------


def test_a_full_queue_drops_from_the_head(channel: TestChannel) -> None:
    declare(channel, x_max_length=3)
    channel.publish("q", *(b"%d" % n for n in range(8)), delivery_mode=2)
    channel.turn()
    queue = channel.session.vhost.queues["q"]
    assert (queue.ready, queue.statistics().evicted) == (3, 5)
    assert [(reason, len(seqs)) for _, reason, seqs in channel.settled()] == [(Reason.EVICTED, 5)]
    assert channel.drain("q") == [b"5", b"6", b"7"]


def test_a_get_in_the_same_turn_as_the_publishes_already_sees_the_limit(channel: TestChannel) -> None:
    declare(channel, x_max_length=1)
    channel.publish("q", b"1", b"2")
    assert channel.session.declare_queue("q", passive=True).messages == 1
    assert channel.drain("q") == [b"2"]


def test_a_limit_in_bytes_counts_bodies(channel: TestChannel) -> None:
    declare(channel, x_max_length_bytes=10)
    channel.publish("q", b"aaaa", b"bbbb", b"cc", b"ddd")
    assert channel.drain("q") == [b"bbbb", b"cc", b"ddd"]


def test_a_full_priority_queue_drops_its_head_which_is_the_highest_priority(channel: TestChannel) -> None:
    declare(channel, x_max_priority=5, x_max_length=2)
    channel.publish("q", b"low", priority=1)
    channel.publish("q", b"high-1", b"high-2", priority=5)
    assert channel.drain("q") == [b"high-2", b"low"]


@pytest.mark.parametrize("overflow", ["drop-head", "reject-publish"])
def test_a_message_that_a_waiting_consumer_takes_does_not_count(channel: TestChannel, overflow: str) -> None:
    declare(channel, x_max_length=1, x_overflow=overflow)
    channel.consume("q")
    channel.turn()
    assert channel.publish("q", b"1", b"2", b"3").refused == []
    channel.turn()
    assert channel.bodies == [b"1", b"2", b"3"]


def test_a_length_of_zero_keeps_nothing_but_serves_a_waiting_consumer(channel: TestChannel) -> None:
    declare(channel, x_max_length=0)
    channel.publish("q", b"dropped")
    assert channel.drain("q") == []
    channel.consume("q")
    channel.publish("q", b"taken")
    channel.turn()
    assert channel.bodies == [b"taken"]


def test_what_is_given_back_to_a_full_queue_that_rejects_is_kept(channel: TestChannel) -> None:
    declare(channel, x_max_length=1, x_overflow="reject-publish")
    channel.publish("q", b"1")
    held = channel.get("q")
    assert held is not None
    channel.publish("q", b"2")
    channel.nack(held.tag)
    channel.turn()
    assert channel.drain("q") == [b"1", b"2"]


# Time to live -------------------------------------------------------------------------------------


def test_messages_older_than_the_ttl_of_their_queue_end_without_being_asked_for(channel: TestChannel) -> None:
    declare(channel, x_message_ttl=100)
    channel.publish("q", b"1", b"2", delivery_mode=2)
    channel.turn()
    assert channel.broker.next_wake_ms() == channel.broker.now_ms + 100

    channel.turn(100)
    assert channel.session.vhost.queues["q"].ready == 0
    assert [(reason, len(seqs)) for _, reason, seqs in channel.settled()] == [(Reason.EXPIRED, 2)]
    assert channel.broker.next_wake_ms() == NEVER


def test_the_smaller_of_queue_and_message_ttl_counts(channel: TestChannel) -> None:
    declare(channel, x_message_ttl=100)
    channel.publish("q", b"short", expiration="40")
    channel.publish("q", b"long", expiration="60000")
    channel.turn(50)
    assert channel.session.vhost.queues["q"].ready == 1
    channel.turn(50)
    assert channel.session.vhost.queues["q"].ready == 0


def test_an_expired_message_behind_a_living_one_is_not_delivered(channel: TestChannel) -> None:
    declare(channel)
    channel.publish("q", b"first")
    channel.publish("q", b"behind", expiration="50")
    channel.publish("q", b"last", expiration="60000")
    channel.turn(100)
    channel.consume("q")
    channel.turn()
    assert channel.bodies == [b"first", b"last"]


def test_expired_messages_between_living_ones_are_stepped_over_by_get(channel: TestChannel) -> None:
    declare(channel)
    channel.publish("q", b"1")
    channel.publish("q", b"x", expiration="50")
    channel.publish("q", b"2")
    channel.turn(100)
    assert channel.drain("q") == [b"1", b"2"]


def test_a_ttl_of_zero_reaches_a_consumer_that_waits_and_nobody_else(channel: TestChannel) -> None:
    declare(channel, x_message_ttl=0)
    channel.publish("q", b"nobody is here")
    channel.turn()
    assert channel.session.vhost.queues["q"].ready == 0

    channel.consume("q")
    channel.turn()
    channel.publish("q", b"somebody is here")
    channel.broker.turn(channel.broker.now_ms + 3)
    assert channel.bodies == [b"somebody is here"]


def test_a_message_given_back_after_its_time_ends(channel: TestChannel) -> None:
    declare(channel, x_message_ttl=100)
    channel.publish("q", b"held")
    held = channel.get("q")
    assert held is not None
    channel.turn(200)
    channel.nack(held.tag)
    channel.turn()
    queue = channel.session.vhost.queues["q"]
    assert (queue.ready, queue.acquired, queue.expired) == (0, 0, 1)


# Unused queues ---------------------------------------------------------------------------------------


def test_an_unused_queue_expires(channel: TestChannel) -> None:
    declare(channel, x_expires=300)
    channel.turn(299)
    assert "q" in channel.session.vhost.queues
    channel.turn(1)
    assert "q" not in channel.session.vhost.queues


def test_declaring_and_getting_start_the_time_of_a_queue_again(channel: TestChannel) -> None:
    declare(channel, x_expires=300)
    channel.turn(200)
    declare(channel, x_expires=300)
    channel.turn(200)
    channel.get("q")
    channel.turn(200)
    assert "q" in channel.session.vhost.queues
    channel.turn(100)
    assert "q" not in channel.session.vhost.queues


def test_a_queue_with_a_consumer_expires_only_after_it_is_gone(channel: TestChannel) -> None:
    declare(channel, x_expires=300)
    consumer = channel.consume("q")
    channel.turn(1000)
    assert "q" in channel.session.vhost.queues
    channel.session.cancel(consumer)
    channel.turn(299)
    assert "q" in channel.session.vhost.queues
    channel.turn(1)
    assert "q" not in channel.session.vhost.queues


def test_a_recovered_queue_has_its_whole_time_again(channel: TestChannel) -> None:
    declare(channel, x_expires=300)
    restarted = a_broker(replaying=channel.broker.catalog.changes)
    restarted.turn(50_000_000)
    restarted.turn(50_000_299)
    assert "q" in restarted.vhosts["/"].queues
    restarted.turn(50_000_300)
    assert "q" not in restarted.vhosts["/"].queues


# The end ---------------------------------------------------------------------------------------------


def test_a_deleted_queue_tells_its_consumers_and_forgets_what_they_hold(channel: TestChannel) -> None:
    declare(channel)
    channel.publish("q", b"1", b"2", delivery_mode=2)
    channel.consume("q", "mine", prefetch=1)
    channel.turn()
    assert channel.session.delete_queue("q").messages == 1
    assert channel.cancellations == ["mine"]

    assert channel.ack(1) == 1
    channel.turn()
    assert channel.settled() == []
    assert channel.broker.arena.resident_bytes >= 0


def test_many_short_lived_queues_with_far_expiries_leave_nothing_behind(channel: TestChannel) -> None:
    for number in range(500):
        declare(channel, f"q{number}", x_expires=1_000_000)
        channel.session.delete_queue(f"q{number}")
    assert channel.broker.next_wake_ms() == NEVER or len(channel.broker.wakes) < 200


def test_a_locked_queue_takes_messages_and_gives_none(channel: TestChannel) -> None:
    declare(channel)
    declare(channel, "other")
    channel.consume("q", "a")
    channel.consume("other", "b")
    queue = channel.session.vhost.queues["q"]
    queue.lock()
    channel.publish("q", b"1")
    channel.publish("other", b"2")
    channel.turn()
    assert channel.bodies == [b"2"]
    assert channel.get("q") is None
    queue.unlock()
    channel.turn()
    assert channel.bodies == [b"2", b"1"]


def test_statistics_tell_what_happened(channel: TestChannel) -> None:
    declare(channel)
    channel.publish("q", b"12", b"345", b"6")
    consumer = channel.consume("q", prefetch=2)
    channel.turn()
    channel.nack(1)
    channel.turn()
    channel.ack(2)
    statistics = channel.session.vhost.queues["q"].statistics()
    assert (statistics.ready, statistics.unacked, statistics.published) == (1, 1, 3)
    assert (statistics.delivered, statistics.redelivered, statistics.settled) == (3, 1, 1)
    assert statistics.consumers == (consumer.statistics(),)
    assert (consumer.statistics().unacked, consumer.statistics().active) == (1, True)


def test_a_full_queue_evicts_messages_that_nobody_may_see_yet() -> None:
    broker = a_broker()
    broker.arena.shown_seq = 0
    channel = a_channel(broker)
    channel.session.declare_queue("q", durable=True, arguments={"x-max-length": 2})
    channel.publish("q", b"1", b"2", b"3", delivery_mode=2)
    channel.turn()
    channel.publish("q", b"4", b"5", delivery_mode=2)
    channel.turn()
    assert channel.drain("q") == []

    broker.arena.shown_seq = broker.journal.arena.next_seq
    assert channel.drain("q") == [b"4", b"5"]
    assert [reason for _, reason, _ in channel.settled()][:2] == [Reason.EVICTED] * 2
