"""What a client finds when another member has taken over."""

from __future__ import annotations

from contextlib import ExitStack
from typing import Any

import pytest
from unit.broker.channel import TestChannel
from unit.frontend.harness import PERSISTENT
from unit.member.world import Group

from tidemark.broker.publishing import Published
from tidemark.broker.streams.commit import Batch, Put
from tidemark.model.rows import Row, RowBatch
from tidemark.model.wiring import FRONT_USER
from tidemark.wire.amqp091.methods import (
    BasicAck,
    BasicCancel,
    BasicConsume,
    BasicGet,
    BasicGetOk,
    BasicNack,
    QueueDelete,
)


@pytest.fixture
def group() -> Group:
    group = Group("abc")
    group.until_ready()
    return group


def test_a_queue_that_was_in_use_is_not_deleted_as_unused(group: Group) -> None:
    """The time of x-expires begins when its last consumer goes, which no log tells; so it begins again."""
    client = group.leader.open(confirms=True)
    client.declare("q", durable=True, arguments={"x-expires": 5000})
    client.send(1, BasicConsume(queue="q", consumer_tag="t"))
    group.pass_ms(1000, 8)
    client.send(1, BasicCancel(consumer_tag="t"))
    client.publish(1, "q", b"one", properties=PERSISTENT)
    assert isinstance(client.read_all()[-1], BasicAck)

    after = group.fail_over()

    assert after.queue("q") is not None
    assert after.queue("q").ready == 1
    group.pass_ms(1000, 6)
    assert after.queue("q") is None
    assert all(process.queue("q") is None for process in group)


@pytest.mark.parametrize("show", ["durable", "at-once"])
def test_messages_are_dealt_out_before_and_after(show: str) -> None:
    group = Group("ab", show=show)
    group.until_ready()
    client = group.leader.open(confirms=True)
    client.declare("q", durable=True)
    client.publish(1, "q", b"one", b"two", properties=PERSISTENT)
    client.read_all()
    assert isinstance(client.ask(1, BasicGet(queue="q")).method, BasicGetOk)

    client = group.fail_over().open(confirms=True)
    client.publish(1, "q", b"three", properties=PERSISTENT)
    client.read_all()

    assert [client.ask(1, BasicGet(queue="q")).body for _ in range(3)] == [b"one", b"two", b"three"]


def test_what_was_acknowledged_stays_away(group: Group) -> None:
    client = group.leader.open(confirms=True)
    client.declare("q", durable=True)
    client.publish(1, "q", b"one", b"two", properties=PERSISTENT)
    client.read_all()
    client.send(1, BasicAck(delivery_tag=client.ask(1, BasicGet(queue="q")).method.delivery_tag))
    group.settle()
    client = group.fail_over().open()
    assert client.ask(1, BasicGet(queue="q")).body == b"two"


def test_deliveries_are_counted_on(group: Group) -> None:
    client = group.leader.open(confirms=True)
    client.declare("q", durable=True, arguments={"x-queue-type": "quorum", "x-delivery-limit": 2})
    client.publish(1, "q", b"one", properties=PERSISTENT)
    client.read_all()
    for _ in range(2):
        tag = client.ask(1, BasicGet(queue="q")).method.delivery_tag
        client.send(1, BasicNack(delivery_tag=tag, requeue=True))
    group.settle()
    after = group.fail_over()
    client = after.open()
    got = client.ask(1, BasicGet(queue="q"))
    assert got.properties.headers["x-delivery-count"] == 2
    client.send(1, BasicNack(delivery_tag=got.method.delivery_tag, requeue=True))
    assert after.queue("q").ready == 0


def test_queue_numbers_are_not_given_again(group: Group) -> None:
    seen: set[int] = set()
    for turn in range(3):
        client = group.leader.open(confirms=True)
        for name in ("a", "b"):
            client.declare(name, durable=True)
            client.publish(1, name, b"x", properties=PERSISTENT)
            client.read_all()
            number = group.leader.queue(name).number
            assert number not in seen
            seen.add(number)
            client.ask(1, QueueDelete(queue=name))
        if turn < 2:
            group.fail_over()


def test_transient_and_exclusive_queues_live_on_the_leader_only(group: Group) -> None:
    """X-13: what belongs to one connection or one process is at home with the leader and never replicated."""
    client = group.leader.open()
    client.declare("mine", exclusive=True, durable=True)
    client.declare("passing")
    assert all(follower.queue("mine") is follower.queue("passing") is None for follower in group.followers)
    after = group.fail_over()
    assert after.queue("mine") is after.queue("passing") is None


def test_a_batch_is_not_stored_twice_and_marks_stay(group: Group) -> None:
    def batch(value: bytes) -> Batch:
        return Batch([Put("s", RowBatch.build([Row(b"k", value)]))], producer="p", sequence=7)

    session = group.leader.session()
    session.declare("s")
    group.settle()
    session.commit(batch(b"1"))
    group.settle()
    at = group.leader.stream().boundary
    session.move("s", "c", None, at)
    group.settle()

    after = group.fail_over()
    session = after.session()
    assert session.producer_last("p") == 7
    session.commit(batch(b"2"))
    group.settle()

    assert after.rows() == {b"k": b"1"}
    mark = session.mark("s", "c")
    assert mark is not None
    assert mark.seq == at


def test_a_receipt_is_not_taken_for_that_of_a_later_write_with_its_number(group: Group) -> None:
    """M4, X-11: two leaders in turn die with a write that nobody else has, and each time its number is given again."""
    group.leader.session().declare("s")
    group.settle()
    lost: list[Any] = []
    for number in range(2):
        leader, others = group.leader, group.followers
        batch = Batch([Put("s", RowBatch.build([Row(b"key", b"lost %d" % number)]))])
        with ExitStack() as stack:
            for other in others:
                stack.enter_context(group.mute(leader.name, other.name))
            lost.append(leader.session().commit(batch))
            leader.turn()
            group.kill(leader.name)
        group.fail_over()

    kept = group.leader.session().commit(Batch([Put("s", RowBatch.build([Row(b"key", b"kept")]))]))
    group.settle()

    streams = group.leader.node.broker.streams
    assert kept.last_seq >= lost[1].last_seq, "else no number was given twice"
    assert [streams.safe(one.history, one.last_seq) for one in lost] == ["lost branch"] * 2
    assert streams.safe(kept.history, kept.last_seq) == "yes"


def test_a_leader_whose_lease_has_run_out_confirms_nothing_until_it_is_back(group: Group) -> None:
    leader = group.leader
    client = leader.open(confirms=True)
    client.declare("q", durable=True)
    leader.member.lease(group.ticks_ms - 1)
    leader.member.tick(group.now_ms, group.ticks_ms)
    client.publish(1, "q", b"x", properties=PERSISTENT)
    assert client.read_all() == []
    leader.member.lease(group.ticks_ms + 100_000)
    group.settle()
    assert [type(each) for each in client.read_all()] == [BasicAck]


def test_a_fenced_leader_lets_go_of_nothing_for_an_ack_that_it_has_not_written_down(group: Group) -> None:
    """Its members would differ: the others have the message, and no record says to anybody that it is gone."""
    leader = group.leader
    client = leader.open()
    client.declare("q", durable=True)
    client.publish(1, "q", b"x", properties=PERSISTENT)
    group.settle()
    tag = client.ask(1, BasicGet(queue="q")).method.delivery_tag
    journal = leader.node.journal

    leader.node.paused = True  # between two turns, when the ack is in memory only
    client.send(1, BasicAck(delivery_tag=tag))
    barrier = journal.barrier()
    for _ in range(3):
        leader.work()
        leader.member.maintain(group.now_ms, 1 << 20)
        assert not journal.passed(barrier)

    leader.node.paused = False
    leader.work()
    group.settle()
    leader.member.maintain(group.now_ms, 1 << 20)
    assert journal.passed(barrier)


def test_a_turn_that_a_mistake_of_ours_has_cut_short_lets_go_of_nothing(
    group: Group, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The end of the message may be among what was not written down."""
    leader = group.leader
    client = leader.open()
    client.declare("q", durable=True)
    client.publish(1, "q", b"x", properties=PERSISTENT)
    group.settle()
    tag = client.ask(1, BasicGet(queue="q")).method.delivery_tag
    journal, notes = leader.node.journal, []

    with monkeypatch.context() as broken:
        broken.setattr(leader.node._outside, "note", lambda *_, **facts: notes.append(facts))
        broken.setattr(journal, "settled", lambda *_: 1 / 0)
        barrier = journal.barrier()
        client.send(1, BasicAck(delivery_tag=tag))
        for _ in range(3):
            leader.work()
            leader.member.maintain(group.now_ms, 1 << 20)
    assert notes and not journal.passed(barrier)

    leader.work()
    group.settle()
    leader.member.maintain(group.now_ms, 1 << 20)
    assert journal.passed(barrier)


def test_the_turns_that_the_next_leader_gives_are_higher(group: Group) -> None:
    given = []
    for _ in range(3):
        leader = group.leader
        given += [leader.node.broker.turns.next() for _ in range(2)]
        group.fail_over()
        group.restart(leader.name)
        group.until_ready()
    numbers = [(turn.reign, turn.count) for turn in given]
    assert numbers == sorted(set(numbers))
    assert {turn.of for turn in given} == {f"{group.leader.member.view.cluster}.0"}


def test_the_next_leader_refuses_what_comes_of_a_former_turn(group: Group) -> None:
    group.leader.open().declare("q", durable=True)
    assert _move(group, 2, b"newer").refused == []
    group.settle()

    group.fail_over()
    assert _move(group, 1, b"older").refused == [0]
    assert _move(group, 2, b"newest").refused == []


def _move(group: Group, turn: int, body: bytes) -> Published:
    """A front moves this on to q."""
    session = group.leader.node.broker.open_session(
        "/", FRONT_USER, None, "front", by_front=True, own=True, turns=True
    )
    headers = {"x-tidemark-to": ["q"], "x-tidemark-turn": ["main", "q", "c", 1, turn, 1]}
    return TestChannel(session).publish("", body, headers=headers, delivery_mode=2)
