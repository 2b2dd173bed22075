"""The turn: what is done once for all that happened, and when it must be done again."""

from __future__ import annotations

import pytest
from builders import a_broker
from unit.broker.channel import TestChannel, a_channel

from tidemark.broker import allowance
from tidemark.broker.allowance import EXTRA, LETTER, MESSAGES
from tidemark.broker.core import NEVER
from tidemark.broker.dispatch import CHUNK_MAX, STEPS_MAX, TAKE_BYTES_MAX
from tidemark.errors import DiskFull
from tidemark.model.records import Reason, RecordType
from tidemark.model.wiring import PolicySpec


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


# What a turn may do ------------------------------------------------------------------------------------


def numbered(first: int, last: int) -> list[bytes]:
    return [b"%d" % n for n in range(first, last)]


def turns_until_idle(channel: TestChannel, most: int = 1000) -> int:
    """How many turns it takes until nobody asks for another one."""
    for count in range(1, most):
        channel.broker.turn(channel.broker.now_ms)
        if channel.broker.next_wake_ms() > channel.broker.now_ms:
            return count
    raise AssertionError("it never ends")


def test_messages_whose_time_ends_together_end_over_several_turns(channel: TestChannel) -> None:
    channel.session.declare_queue("q", arguments={"x-message-ttl": 100})
    queue = channel.session.vhost.queues["q"]
    for _ in range(3):
        channel.publish("q", *[b"x"] * MESSAGES)
        channel.turn()

    channel.broker.turn(channel.broker.now_ms + 1000)
    assert MESSAGES <= queue.expired <= MESSAGES + EXTRA
    assert channel.broker.next_wake_ms() <= channel.broker.now_ms

    assert turns_until_idle(channel) == 2
    assert (queue.expired, queue.ready, channel.broker.dirty) == (3 * MESSAGES, 0, [])


def test_dead_letters_of_many_that_expire_together_come_in_order_over_several_turns(
    channel: TestChannel,
) -> None:
    channel.session.declare_queue("dead")
    arguments = {"x-message-ttl": 100, "x-dead-letter-exchange": "", "x-dead-letter-routing-key": "dead"}
    channel.session.declare_queue("q", arguments=arguments)
    channel.publish("q", *numbered(0, 1000))
    channel.turn()

    channel.broker.turn(channel.broker.now_ms + 1000)
    assert channel.session.vhost.queues["dead"].ready == MESSAGES // LETTER
    assert turns_until_idle(channel) > 2
    assert channel.drain("dead") == numbered(0, 1000)


def test_large_dead_letters_are_fewer_in_a_turn(
    channel: TestChannel, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(allowance, "BYTES", 100_000)
    channel.session.declare_queue("dead")
    arguments = {"x-message-ttl": 100, "x-dead-letter-exchange": "", "x-dead-letter-routing-key": "dead"}
    channel.session.declare_queue("q", arguments=arguments)
    channel.publish("q", *[b"x" * 10_000] * 100)
    channel.turn()

    channel.broker.turn(channel.broker.now_ms + 1000)
    assert 10 <= channel.session.vhost.queues["dead"].ready <= 20
    turns_until_idle(channel)
    assert channel.session.vhost.queues["dead"].ready == 100


def test_a_consumer_without_a_limit_is_given_a_long_queue_over_several_turns(channel: TestChannel) -> None:
    channel.session.declare_queue("q")
    for start in (0, MESSAGES):
        channel.publish("q", *numbered(start, start + MESSAGES))
        channel.turn()
    channel.consume("q")

    channel.turn()
    assert MESSAGES <= len(channel.deliveries) <= MESSAGES + EXTRA
    assert channel.broker.next_wake_ms() <= channel.broker.now_ms

    turns_until_idle(channel)
    assert channel.bodies == numbered(0, 2 * MESSAGES)


def test_a_turn_gives_no_more_bytes_than_it_may(
    channel: TestChannel, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(allowance, "BYTES", 1_000_000)
    channel.session.declare_queue("q")
    channel.publish("q", *[b"x" * 10_000] * 1000)
    channel.turn()
    channel.consume("q")

    channel.turn()
    assert sum(map(len, channel.bodies)) < 1_000_000 + 2 * TAKE_BYTES_MAX
    turns_until_idle(channel)
    assert len(channel.deliveries) == 1000


def test_a_turn_gives_a_ring_of_consumers_not_many_more_bytes_than_it_may(
    channel: TestChannel, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(allowance, "BYTES", 1_000_000)
    channel.session.declare_queue("q")
    channel.publish("q", *[b"x" * 20_000] * 1000)
    channel.turn()
    for number in range(20):
        channel.consume("q", str(number))

    channel.turn()
    assert sum(map(len, channel.bodies)) < 1_000_000 + STEPS_MAX * 2 * TAKE_BYTES_MAX
    assert turns_until_idle(channel) > 1
    assert len(channel.deliveries) == 1000


def test_consumers_of_one_queue_share_evenly_over_several_turns(channel: TestChannel) -> None:
    channel.session.declare_queue("q")
    for _ in range(2):
        channel.publish("q", *[b"x"] * MESSAGES)
        channel.turn()
    consumers = [channel.consume("q", tag) for tag in "abc"]

    assert turns_until_idle(channel) > 1
    shares = [consumer.delivered for consumer in consumers]
    assert sum(shares) == 2 * MESSAGES
    assert max(shares) - min(shares) <= CHUNK_MAX


def test_a_queue_with_much_to_do_does_not_keep_the_others_waiting(channel: TestChannel) -> None:
    for name in ("long", "short"):
        channel.session.declare_queue(name)
    for _ in range(3):
        channel.publish("long", *[b"x"] * MESSAGES)
        channel.turn()
    channel.consume("long", "long")
    channel.consume("short", "short")

    channel.publish("short", *[b"y"] * 500)
    channel.turn()
    assert sum(delivery.consumer == "short" for delivery in channel.deliveries) == 500


def test_what_a_consumer_has_not_been_offered_does_not_end_because_the_turn_did(channel: TestChannel) -> None:
    channel.session.declare_queue("q")
    channel.publish("q", *[b"x"] * (2 * MESSAGES))
    channel.turn()
    channel.consume("q")
    channel.publish("q", b"at once or never", expiration="0")

    channel.turn()
    assert channel.session.vhost.queues["q"].ready
    channel.turn(50)
    assert channel.bodies[-1] == b"at once or never"
    assert channel.session.vhost.queues["q"].expired == 0


def test_a_queue_that_is_too_long_drops_nothing_while_a_consumer_is_being_served(
    channel: TestChannel,
) -> None:
    channel.session.declare_queue("q")
    channel.publish("q", *[b"x"] * (2 * MESSAGES))
    channel.turn()
    channel.consume("q")
    channel.broker.put_policy(PolicySpec("/", "p", "q", "queues", 0, {"max-length": 10}))

    turns_until_idle(channel)
    assert len(channel.deliveries) == 2 * MESSAGES
    assert channel.session.vhost.queues["q"].evicted == 0


def test_a_get_behind_many_that_are_too_old_is_for_the_next_turn(channel: TestChannel) -> None:
    channel.session.declare_queue("q")
    queue = channel.session.vhost.queues["q"]
    channel.publish("q", *[b"old"] * (2 * MESSAGES), expiration="100")
    channel.publish("q", b"young")
    channel.turn()
    channel.broker.turn(channel.broker.now_ms + 1000)

    assert channel.get("q") is None
    assert queue.overdue
    assert queue.get_empty == 0

    channel.turn()
    found = channel.get("q")
    assert found is not None
    assert found.body == b"young"
    assert not queue.overdue


def test_settlements_that_are_asked_for_within_a_turn_share_its_allowance(channel: TestChannel) -> None:
    channel.session.declare_queue("q", arguments={"x-message-ttl": 100})
    queue = channel.session.vhost.queues["q"]
    channel.publish("q", *[b"x"] * (3 * MESSAGES))
    channel.turn()

    channel.broker.turn(channel.broker.now_ms + 1000)
    for _ in range(10):
        channel.broker.look(channel.broker.now_ms)
    assert queue.expired <= MESSAGES + EXTRA
