"""How many members must have a copy before anything is confirmed or shown (`cluster.copies_min`)."""

from __future__ import annotations

import pytest
from unit.frontend.harness import PERSISTENT, Content
from unit.member.world import Group

from tidemark.wire.amqp091.methods import BasicAck, BasicGet, ConnectionBlocked

MODES = ("standby", "chain")


def a_group(mode: str, names: str, copies_min: int) -> Group:
    group = Group(names, mode=mode, copies_min=copies_min)
    group.until_ready()
    group.leader.open().declare("q", durable=True)
    return group


@pytest.mark.parametrize("mode", MODES)
def test_nothing_is_confirmed_or_shown_that_too_few_members_have(mode: str) -> None:
    """K-49: HOLDSTORE on B with M=2: what the leader alone has is withheld, from publishers and from consumers."""
    group = a_group(mode, "abc", 2)
    client, consumer = group.leader.open(confirms=True), group.leader.open()
    client.publish(1, "q", b"safe", properties=PERSISTENT)
    assert isinstance(client.read_all()[-1], BasicAck)
    for follower in group.followers:
        group.kill(follower.name)
    group.pass_ms(100, 20)
    assert group.view is not None and len(group.view.ready) == 1

    client.publish(1, "q", b"waits", properties=PERSISTENT)

    group.pass_ms(100, 20)
    assert [type(one) for one in client.read_all()] == [ConnectionBlocked]
    assert "cluster.copies_min" in (group.leader.node.alarms.reason or "")
    got = consumer.ask(1, BasicGet(queue="q"))
    assert isinstance(got, Content) and got.body == b"safe"
    consumer.send(1, BasicGet(queue="q"))
    assert consumer.read_all() == [], "it is there, and not to be seen"

    group.restart(next(name for name in "abc" if name != group.leader.name))
    for _ in range(50):
        group.pass_ms(100)
        if len(group.view.ready) == 2:
            break
    group.pass_ms(100, 3)
    assert BasicAck in [type(one) for one in client.read_all()]
    assert group.leader.node.alarms.reason is None
    [got] = consumer.read_all()
    assert isinstance(got, Content) and got.body == b"waits"


@pytest.mark.parametrize("mode", MODES)
def test_as_long_as_enough_are_ready_nobody_waits(mode: str) -> None:
    group = a_group(mode, "abc", 2)
    group.kill(group.followers[-1].name)
    group.pass_ms(100, 20)
    client = group.leader.open(confirms=True)

    client.publish(1, "q", b"x", properties=PERSISTENT)

    assert [type(one) for one in client.read_all()] == [BasicAck]


def test_by_default_the_last_member_goes_on_alone() -> None:
    group = a_group("standby", "ab", 1)
    group.kill(group.followers[0].name)
    group.pass_ms(100, 20)
    client = group.leader.open(confirms=True)

    client.publish(1, "q", b"x", properties=PERSISTENT)

    assert [type(one) for one in client.read_all()] == [BasicAck]


@pytest.mark.parametrize("names", ["ab", "abc"])
def test_who_takes_over_with_too_few_says_what_it_waits_for_and_serves_when_it_is_there(names: str) -> None:
    group = a_group("standby", names, 2)
    client = group.leader.open(confirms=True)
    client.publish(1, "q", b"safe", properties=PERSISTENT)
    client.read_all()
    away = [process.name for process in group if process is not group["b"]]
    for name in reversed(away):
        group.kill(name)
        for process in group:
            process.member.member_gone(name)
        group.pass_ms(100, 30)

    assert group.view is not None and group.view.leader == "b"
    assert not group["b"].member.serving
    assert "1 of the 2 members that must have a copy are ready" in group["b"].member.why
    group.restart(away[0])
    group.pass_ms(100, 30)
    assert group["b"].member.serving and group["b"].queue("q").ready == 1


def test_a_leader_that_waits_for_copies_can_be_shut_down() -> None:
    group = a_group("standby", "ab", 2)
    group.kill(group.followers[0].name)
    group.pass_ms(100, 20)
    client = group.leader.open(confirms=True)
    client.publish(1, "q", b"waits", properties=PERSISTENT)

    assert group.leader.member.ask("shutdown").done
    group.pass_ms(100, 100)

    assert group.leader.last_words == ["the cluster was shut down"]
