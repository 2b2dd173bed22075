"""Transactions: all or nothing."""

from __future__ import annotations

from typing import Any

import pytest
from builders import a_broker
from unit.broker.channel import TestChannel, a_channel

from tidemark.broker.transaction import Transaction
from tidemark.errors import NotFound, PreconditionFailed
from tidemark.model.records import Reason, RecordType
from tidemark.model.runs import PublishRun


@pytest.fixture
def channel() -> TestChannel:
    channel = a_channel(a_broker())
    for name in ("q", "other", "dead"):
        channel.session.declare_queue(name, durable=True)
    arguments = {"x-max-length": 2, "x-overflow": "reject-publish"}
    channel.session.declare_queue("small", durable=True, arguments=arguments)
    rules = {"x-dead-letter-exchange": "", "x-dead-letter-routing-key": "dead"}
    channel.session.declare_queue("risky", durable=True, arguments=rules)
    return channel


def hold(channel: TestChannel, queue: str, *bodies: bytes) -> list[int]:
    """Publishes these and takes them; returns their tags."""
    channel.publish(queue, *bodies, delivery_mode=2)
    tags = []
    for _ in bodies:
        delivery = channel.get(queue)
        assert delivery is not None
        tags.append(delivery.tag)
    return tags


def settle(transaction: Transaction, channel: TestChannel, tags: list[int], outcome: str) -> None:
    transaction.settle(channel.unacked.pop(tags[0], tags[-1]), outcome)


def kinds(channel: TestChannel) -> list[Any]:
    return [event[0] for event in channel.broker.journal.told]


def test_nothing_is_published_before_the_commit(channel: TestChannel) -> None:
    transaction = Transaction(channel.publishing)
    transaction.publish(channel.a_run("q", b"1", b"2", delivery_mode=2))
    transaction.publish(channel.a_run("other", b"3"))
    assert channel.drain("q") == channel.drain("other") == []

    published = transaction.commit(channel.broker.now_ms)
    assert published.error is None
    assert published.last_seq > 0
    assert channel.drain("q") == [b"1", b"2"]
    assert channel.drain("other") == [b"3"]


def test_a_run_is_copied_because_its_buffer_is_used_again(channel: TestChannel) -> None:
    buffer = bytearray(channel.a_run("q", b"original").data)
    run = channel.a_run("q", b"original")
    shared = PublishRun(1, buffer)
    shared.add(*((run.number(0, column), run.number(0, column + 1)) for column in (0, 2, 4, 6)))  # type: ignore[misc, arg-type]
    transaction = Transaction(channel.publishing)
    transaction.publish(shared)
    buffer[:] = bytes(len(buffer))
    transaction.commit(channel.broker.now_ms)
    assert channel.drain("q") == [b"original"]


def test_everything_is_in_one_frame_after_what_was_settled_before(channel: TestChannel) -> None:
    before = hold(channel, "q", b"earlier")
    tags = hold(channel, "q", b"1", b"2")
    number = channel.session.vhost.queues["q"].number
    channel.ack(before[0])
    transaction = Transaction(channel.publishing)
    transaction.publish(channel.a_run("other", b"new", delivery_mode=2))
    settle(transaction, channel, tags, "accept")
    used = channel.broker.journal.used

    published = transaction.commit(channel.broker.now_ms)
    assert kinds(channel) == [RecordType.SETTLED, "ensure", RecordType.SETTLED]
    (_, need) = channel.broker.journal.told[1]
    # The recording journal does not write its own records: an ack of two takes one of at most 72 bytes.
    assert 0 < channel.broker.journal.used - used + 72 <= need
    assert [(queue, reason, len(seqs)) for queue, reason, seqs in channel.settled()] == [
        (number, Reason.ACCEPTED, 1),
        (number, Reason.ACCEPTED, 2),
    ]
    assert published.last_seq == channel.broker.journal.last_seq


def test_a_commit_of_acks_alone_waits_for_them(channel: TestChannel) -> None:
    tags = hold(channel, "q", b"1")
    transaction = Transaction(channel.publishing)
    settle(transaction, channel, tags, "accept")
    assert transaction.commit(channel.broker.now_ms).last_seq == channel.broker.journal.last_seq > 0


def test_a_commit_that_touches_nothing_durable_waits_for_nothing(channel: TestChannel) -> None:
    channel.session.declare_queue("t")
    tags = hold(channel, "t", b"1")
    transaction = Transaction(channel.publishing)
    transaction.publish(channel.a_run("q", b"transient"))
    settle(transaction, channel, tags, "accept")
    assert transaction.commit(channel.broker.now_ms).last_seq == 0
    assert kinds(channel) == []


def test_an_empty_commit_waits_for_nothing(channel: TestChannel) -> None:
    published = Transaction(channel.publishing).commit(channel.broker.now_ms)
    assert (published.last_seq, published.error) == (0, None)
    assert kinds(channel) == []


def test_a_rolled_back_transaction_leaves_nothing(channel: TestChannel) -> None:
    transaction = Transaction(channel.publishing)
    transaction.publish(channel.a_run("q", b"1"))
    transaction.rollback()
    assert transaction.commit(channel.broker.now_ms).last_seq == 0
    assert channel.drain("q") == []


def test_a_rejection_in_a_transaction_is_dead_lettered_in_its_frame(channel: TestChannel) -> None:
    tags = hold(channel, "risky", b"bad")
    transaction = Transaction(channel.publishing)
    settle(transaction, channel, tags, "reject")
    used = channel.broker.journal.used
    assert channel.drain("dead") == []
    transaction.commit(channel.broker.now_ms)
    (_, whole), (_, part) = [event for event in channel.broker.journal.told if event[0] == "ensure"]
    assert whole >= part >= channel.broker.journal.used - used
    assert [reason for _, reason, _ in channel.settled()] == [Reason.REJECTED]
    assert channel.drain("dead") == [b"bad"]


def test_a_requeue_in_a_transaction_happens_at_the_commit(channel: TestChannel) -> None:
    tags = hold(channel, "q", b"1", b"2")
    transaction = Transaction(channel.publishing)
    settle(transaction, channel, tags, "requeue")
    assert channel.session.vhost.queues["q"].ready == 0
    transaction.commit(channel.broker.now_ms)
    assert channel.drain("q") == [b"1", b"2"]


def test_mandatory_messages_come_back_with_the_commit(channel: TestChannel) -> None:
    transaction = Transaction(channel.publishing)
    transaction.publish(channel.a_run("q", b"1"))
    transaction.publish(channel.a_run("nobody", b"2", mandatory=True))
    published = transaction.commit(channel.broker.now_ms)
    assert published.returned == [(1, 312, "NO_ROUTE")]
    [(run, row, code, text)] = transaction.returned
    assert (run.part(row, 6), code, text) == (b"2", 312, "NO_ROUTE")


# Refusals -------------------------------------------------------------------------------------------


def test_a_publish_that_cannot_be_is_refused_when_it_comes(channel: TestChannel) -> None:
    transaction = Transaction(channel.publishing)
    with pytest.raises(NotFound, match="no exchange 'missing'"):
        transaction.publish(channel.a_run("k", b"x", exchange="missing"))


def test_when_a_queue_would_refuse_nothing_is_done_and_acks_are_taken_back(channel: TestChannel) -> None:
    tags = hold(channel, "q", b"held")
    transaction = Transaction(channel.publishing)
    transaction.publish(channel.a_run("other", b"1", delivery_mode=2))
    transaction.publish(channel.a_run("small", b"2", b"3", b"4", delivery_mode=2))
    settle(transaction, channel, tags, "accept")

    published = transaction.commit(channel.broker.now_ms)
    assert isinstance(published.error, PreconditionFailed)
    assert "queue 'small' in vhost '/' is full" in str(published.error)
    assert channel.drain("other") == channel.drain("small") == []
    assert channel.drain("q") == [b"held"]


def test_an_exchange_deleted_before_the_commit_undoes_all_of_it(channel: TestChannel) -> None:
    channel.session.declare_exchange(
        "x", "fanout", passive=False, durable=False, auto_delete=False, internal=False, arguments={}
    )
    transaction = Transaction(channel.publishing)
    transaction.publish(channel.a_run("q", b"1"))
    transaction.publish(channel.a_run("k", b"2", exchange="x"))
    channel.session.delete_exchange("x", if_unused=False)
    assert isinstance(transaction.commit(channel.broker.now_ms).error, NotFound)
    assert channel.drain("q") == []


# One frame ------------------------------------------------------------------------------------------


def test_a_dead_letter_to_very_many_queues_fits_into_the_frame_that_was_asked_for(
    channel: TestChannel,
) -> None:
    for number in range(2000):
        channel.session.declare_queue(f"d{number}", durable=True)
        channel.session.bind_queue(f"d{number}", "amq.fanout", "")
    channel.session.declare_queue("spread", durable=True, arguments={"x-dead-letter-exchange": "amq.fanout"})
    [tag] = hold(channel, "spread", b"bad")
    transaction = Transaction(channel.publishing)
    settle(transaction, channel, [tag], "reject")
    used = channel.broker.journal.used
    transaction.commit(channel.broker.now_ms)
    asked = [event[1] for event in channel.broker.journal.told if event[0] == "ensure"]
    assert asked[0] >= channel.broker.journal.used - used > 2000 * 4


def test_a_dead_letter_that_full_queues_pass_on_fits_into_the_frame_that_was_asked_for(
    channel: TestChannel,
) -> None:
    body = bytes(20_000)
    session = channel.session
    for number in range(4):
        session.declare_exchange(f"x{number}", "fanout", durable=True)
        session.declare_queue(f"kept{number}", durable=True)
        session.bind_queue(f"kept{number}", f"x{number}", "")
    for number in range(3):
        arguments = {
            "x-max-length": 0,
            "x-overflow": "reject-publish-dlx",
            "x-dead-letter-exchange": f"x{number + 1}",
        }
        session.declare_queue(f"full{number}", durable=True, arguments=arguments)
        session.bind_queue(f"full{number}", f"x{number}", "")
    session.declare_queue("first", durable=True, arguments={"x-dead-letter-exchange": "x0"})
    [tag] = hold(channel, "first", body)
    transaction = Transaction(channel.publishing)
    settle(transaction, channel, [tag], "reject")
    used = channel.broker.journal.used
    transaction.commit(channel.broker.now_ms)
    asked = [event[1] for event in channel.broker.journal.told if event[0] == "ensure"]
    assert asked[0] >= channel.broker.journal.used - used > 4 * len(body)
    assert [channel.drain(f"kept{number}") for number in range(4)] == [[body]] * 4
