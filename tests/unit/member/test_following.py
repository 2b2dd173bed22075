"""A member that follows: it keeps what its source has, without gaps, and does nothing on its own."""

from __future__ import annotations

from typing import Any

import pytest
from unit.frontend.harness import PERSISTENT
from unit.member.world import Group, Process

from tidemark.cluster.mode import State
from tidemark.errors import NotLeading
from tidemark.model.peers import Log, Unit
from tidemark.model.wiring import UserSpec
from tidemark.wire.amqp091.methods import BasicAck, BasicGet, TxCommit, TxCommitOk, TxSelect


@pytest.fixture(params=["standby", "chain"])
def group(request: pytest.FixtureRequest) -> Group:
    group = Group("abc", mode=request.param)
    group.until_ready()
    return group


def pair(**settings: Any) -> tuple[Group, Process, Process]:
    group = Group("ab", **settings)
    group.until_ready()
    return group, group.leader, group.followers[0]


def test_what_is_confirmed_is_with_every_ready_member(group: Group) -> None:
    client = group.leader.open(confirms=True)
    client.declare("q", durable=True)
    for follower in group.followers:
        with group.stall(follower.name):
            client.publish(1, "q", b"one", properties=PERSISTENT)
            assert client.read_all() == []
        group.settle()
        assert [type(each) for each in client.read_all()] == [BasicAck]
    assert [process.queue("q").ready for process in group] == [2, 2, 2]


def test_nothing_of_its_own_gets_into_the_wiring_of_a_member_that_follows(group: Group) -> None:
    follower = group.followers[0]
    end = follower.node.store.ends.catalog
    with pytest.raises(NotLeading):
        follower.node.broker.put(UserSpec("mallory", "", ()))
    follower.node.turn(group.now_ms)
    assert follower.node.store.ends.catalog == end
    assert "mallory" not in follower.node.broker.access.users

    group.fail_over()
    group.leader.node.broker.put(UserSpec("alice", "", ()))


def test_a_transaction_is_committed_when_all_have_it() -> None:
    group, leader, follower = pair()
    client = leader.open()
    client.declare("q", durable=True)
    client.ask(1, TxSelect())
    client.publish(1, "q", b"1", b"2", properties=PERSISTENT)
    with group.stall(follower.name):
        client.send(1, TxCommit())
        assert client.read_all() == []
    group.settle()
    assert client.read_all() == [TxCommitOk()]
    assert group.fail_over().queue("q").ready == 2


def test_a_member_that_cannot_keep_one_frame_keeps_none_that_comes_behind_it() -> None:
    """Else its log would have a hole, and what it acknowledges would be confirmed with it."""
    _, leader, follower = pair()
    client = leader.open(confirms=True)
    client.declare("q", durable=True)
    client.declare("r", durable=True)
    follower.disk.capacity -= follower.disk.free_bytes()
    client.publish(1, "q", b"x" * 30_000, properties=PERSISTENT)
    assert follower.last_words  # but the process takes its time to end

    client.publish(1, "r", *[b"small"] * 20, properties=PERSISTENT)

    assert follower.queue("r").ready == 0
    assert client.read_all() == []


def test_a_frame_that_does_not_come_right_behind_the_log_is_not_kept() -> None:
    group, leader, follower = pair()
    end = follower.node.store.ends.journal
    follower.member.mode._source.kept = None  # type: ignore[attr-defined]  # a mode that has lost count
    follower.member._perform = lambda _: setattr(follower.member, "_kept", True)  # type: ignore[method-assign]

    unit = Unit(Log.JOURNAL, end + 5, end + 6, end + 6, memoryview(bytes(64)))
    follower.member.given(leader.name, group.view.epoch, unit)  # type: ignore[union-attr]

    assert follower.node.store.ends.journal == end
    assert "comes behind" in follower.last_words[0]


def test_a_member_whose_status_cannot_be_written_does_not_go_on_as_if_it_were() -> None:
    group = Group("abc")
    group.until_ready()
    heir = group[group.view.ready[1]]  # type: ignore[union-attr]
    heir.disk.capacity -= heir.disk.free_bytes()
    heir.node.store.files.give_up_reserve = lambda: False  # type: ignore[method-assign]
    group.kill(group.leader.name)
    group.pass_ms(100, 5)

    assert heir.last_words
    assert not heir.member.serving
    ends = heir.node.store.ends
    group.pass_ms(100, 5)
    assert heir.node.store.ends == ends


def test_nothing_expires_or_is_dead_lettered_by_the_clock_of_a_follower() -> None:
    group, leader, follower = pair()
    client = leader.open(confirms=True)
    client.declare("dead", durable=True)
    dead_letters = {"x-dead-letter-exchange": "", "x-dead-letter-routing-key": "dead"}
    client.declare("q", durable=True, arguments={"x-message-ttl": 1000, **dead_letters})
    client.publish(1, "q", b"one", b"two", properties=PERSISTENT)
    with group.mute(leader.name, follower.name):
        group.now_ms += 5000
        follower.work()
        follower.member.maintain(group.now_ms, 1 << 20)
        follower.node.tick(group.now_ms)
        assert (follower.queue("q").ready, follower.queue("dead").ready) == (2, 0)
        assert follower.node.next_wake_ms() > group.now_ms + 1_000_000_000
    after = group.fail_over()
    assert (after.queue("q").ready, after.queue("dead").ready) == (0, 2)


def test_a_message_larger_than_the_window_and_an_extent_is_passed_on() -> None:
    group, leader, _ = pair(window_bytes=64 << 10)
    client = leader.open(confirms=True)
    client.declare("q", durable=True)
    client.publish(1, "q", b"x" * 300_000, b"y" * 100_000, b"z", properties=PERSISTENT)
    assert client.read_all()
    reader = group.fail_over().open()
    assert [len(reader.ask(1, BasicGet(queue="q")).body) for _ in range(3)] == [300_000, 100_000, 1]


def test_a_new_queue_does_not_cost_a_look_at_all_the_others() -> None:
    _, leader, follower = pair()
    client = leader.open(confirms=True)
    for number in range(3):
        client.declare(f"q{number}", durable=True)
        client.publish(1, f"q{number}", b"x", properties=PERSISTENT)
        client.read_all()
    copied = []
    follower.node.broker.targets = lambda: copied.append(1) or ()  # type: ignore[method-assign, func-returns-value]

    client.declare("last", durable=True)
    client.publish(1, "last", b"x", properties=PERSISTENT)

    assert follower.queue("last").ready == 1
    assert not copied


def test_a_log_that_cannot_be_read_for_one_member_does_not_stop_the_leader() -> None:
    group = Group("abc")
    group.until_ready()
    leader, away = group.leader, group.followers[0]
    client = leader.open(confirms=True)
    client.declare("q", durable=True)
    group.kill(away.name)
    for _ in range(60):
        client.publish(1, "q", b"x" * 3000, properties=PERSISTENT)
    group.pass_ms(300, 10)
    for segment in leader.disk.list("seg-"):
        leader.disk.flip(segment, 20_000)
    client.read_all()

    away = group.restart(away.name)
    group.pass_ms(100, 3)
    client.publish(1, "q", b"more", properties=PERSISTENT)

    assert ("error", "log cannot be read") in leader.notes
    assert away.state is not State.READY
    assert [type(each) for each in client.read_all()] == [BasicAck]


def test_a_follower_that_cannot_read_the_state_of_streams_says_so_and_ends() -> None:
    group, leader, follower = pair()
    session = leader.session()
    session.declare("s")
    group.settle()
    for number in range(60):
        session.pin("s", f"p{number}", 3_600_000)[0].close()
        leader.put(**{f"k{number}": "x" * 2000})
        group.settle()
    group.pass_ms(100, 5)
    group.kill(follower.name)
    group.pass_ms(300, 5)
    with group.mute(leader.name, follower.name):
        follower = group.restart(follower.name)
        for _ in range(20):
            follower.work()
            follower.member.maintain(group.now_ms, 1 << 20)
        for segment in follower.disk.list("seg-"):
            for at in range(4500, follower.disk.size(segment), 1000):
                follower.disk.flip(segment, at)
    group.settle()
    group.pass_ms(100, 3)

    assert "cannot be shown" in follower.last_words[0]


def test_whoever_asks_a_member_to_stop_is_answered() -> None:
    group, _, follower = pair()
    answer = follower.member.ask("shutdown")
    assert answer.done, answer
    assert len(follower.last_words) == 1
    group.settle()
    assert len(follower.last_words) == 1
