"""The turn: what is done once for all that happened, and when it must be done again."""

from __future__ import annotations

import pytest
from builders import a_broker
from unit.broker.channel import TestChannel, a_channel

from tidemark.broker.core import NEVER
from tidemark.errors import DiskFull
from tidemark.model.records import Reason, RecordType


@pytest.fixture
def channel() -> TestChannel:
    return a_channel(a_broker())


def test_a_turn_looks_at_every_changed_queue_once(channel: TestChannel) -> None:
    for name in "abc":
        channel.session.declare_queue(name)
        channel.consume(name, name)
    channel.turn()
    assert channel.broker.dirty == []
    for name in "abc":
        channel.publish(name, b"1", b"2")
    assert len(channel.broker.dirty) == 3
    channel.turn()
    assert channel.broker.dirty == []
    assert channel.gifts == [2, 2, 2]


def test_a_queue_that_does_not_change_is_not_looked_at(channel: TestChannel) -> None:
    channel.session.declare_queue("q")
    channel.publish("q", b"1")
    channel.turn()
    calls: list[int] = []
    channel.room = lambda: calls.append(1) or 10  # type: ignore[method-assign, func-returns-value]
    channel.turn(1000)
    assert calls == []


def test_a_sink_that_fails_leaves_the_other_queues_to_the_next_turn(channel: TestChannel) -> None:
    for name in "ab":
        channel.session.declare_queue(name)
    broken = a_channel(channel.broker)
    broken.deliver = lambda *_: 1 / 0  # type: ignore[assignment, return-value]
    broken.consume("a")
    channel.consume("b")
    channel.turn()
    channel.publish("a", b"1")
    channel.publish("b", b"2")
    with pytest.raises(ZeroDivisionError):
        channel.turn()
    channel.turn()
    assert channel.bodies == [b"2"]


def test_a_cycle_of_evictions_ends_within_the_turn(channel: TestChannel) -> None:
    for name, other in ("ab", "ba"):
        arguments = {"x-max-length": 0, "x-dead-letter-exchange": "", "x-dead-letter-routing-key": other}
        channel.session.declare_queue(name, arguments=arguments)
    channel.publish("a", b"dizzy")
    channel.turn()
    assert channel.broker.dirty == []
    queues = channel.session.vhost.queues
    assert [queues[name].statistics().evicted for name in "ab"] == [1, 1]
    assert [queues[name].ready for name in "ab"] == [0, 0]


def test_the_next_wake_is_the_first_expiry_of_any_queue(channel: TestChannel) -> None:
    now = channel.broker.now_ms
    channel.session.declare_queue("slow", arguments={"x-message-ttl": 500})
    channel.session.declare_queue("fast", arguments={"x-message-ttl": 100})
    assert channel.broker.next_wake_ms() == NEVER
    channel.publish("slow", b"1")
    channel.publish("fast", b"2")
    channel.turn()
    assert channel.broker.next_wake_ms() == now + 100
    channel.turn(100)
    assert channel.broker.next_wake_ms() == now + 500
    channel.turn(400)
    assert channel.broker.next_wake_ms() == NEVER
    assert [channel.session.vhost.queues[name].ready for name in ("slow", "fast")] == [0, 0]


def test_an_expiry_that_nobody_waits_for_any_more_wakes_once_and_finds_nothing(channel: TestChannel) -> None:
    channel.session.declare_queue("q", arguments={"x-message-ttl": 100})
    channel.publish("q", b"1")
    channel.turn()
    channel.drain("q")
    channel.turn(100)
    assert channel.broker.next_wake_ms() == NEVER
    assert channel.session.vhost.queues["q"].statistics().expired == 0


def test_the_journal_of_a_scripted_session_is_exactly_this(channel: TestChannel) -> None:
    """A persistent and a transient queue live through the same; only one of them leaves a trace."""
    arguments = {"x-max-length": 5, "x-message-ttl": 500, "x-delivery-limit": 1}
    for name, durable in (("lost", False), ("kept", True)):
        channel.session.declare_queue(name, durable=durable, arguments=arguments)
        published = channel.publish(name, *(b"%d" % n for n in range(6)), delivery_mode=2)
        channel.turn()
        consumer = channel.consume(name, name, prefetch=3)
        channel.turn()
        tags = [delivery.tag for delivery in channel.deliveries if delivery.consumer == name]
        channel.session.cancel(consumer)
        channel.ack(tags[0])
        channel.nack(tags[1], requeue=False)
        channel.nack(tags[2])
        channel.turn()
        channel.turn(600)
        late = channel.publish(name, b"purged", delivery_mode=2)
        channel.session.purge_queue(name)
        channel.turn()
    first, number = published.last_seq - 5, channel.session.vhost.queues["kept"].number
    assert [d.body for d in channel.deliveries if d.consumer == "kept"] == [b"1", b"2", b"3"]
    assert [event[:3] for event in channel.broker.journal.told] == [
        (RecordType.SETTLED, number, Reason.EVICTED),
        (RecordType.SETTLED, number, Reason.ACCEPTED),
        (RecordType.SETTLED, number, Reason.REJECTED),
        (RecordType.COUNTED, number, [(first + 3, 1)]),
        (RecordType.SETTLED, number, Reason.EXPIRED),
        (RecordType.SETTLED, number, Reason.PURGED),
    ]
    assert [seqs for _, _, seqs in channel.settled()] == [
        [first],
        [first + 1],
        [first + 2],
        [first + 3, first + 4, first + 5],
        [late.last_seq],
    ]


def test_a_queue_whose_turn_was_cut_short_is_looked_at_in_the_next(
    channel: TestChannel, monkeypatch: pytest.MonkeyPatch
) -> None:
    channel.session.declare_queue("dead", durable=True)
    arguments = {"x-message-ttl": 100, "x-dead-letter-exchange": "", "x-dead-letter-routing-key": "dead"}
    channel.session.declare_queue("q", durable=True, arguments=arguments)
    channel.publish("q", b"old", delivery_mode=2)
    channel.turn()

    def full(need: int) -> None:
        raise DiskFull(path="seg")

    with monkeypatch.context() as patch:
        patch.setattr(channel.broker.journal, "ensure", full)
        with pytest.raises(DiskFull):
            channel.broker.turn(channel.broker.now_ms + 200)
    channel.publish("q", b"new", delivery_mode=2)
    channel.consume("q")
    channel.turn()
    assert channel.bodies == [b"new"]
    assert channel.drain("dead") == [b"old"]
