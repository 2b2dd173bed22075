"""A replica is no consumer: it has what is in anybody's hands, nobody counts it, and it takes nothing away."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest
from contract.requirements_world import bodies, priority
from unit.frontend.harness import PERSISTENT, Client, Content
from unit.member.test_alike import compare
from unit.member.world import Group, Process, StallingDisk

from tidemark.cluster.mode import State
from tidemark.model.peers import Log, Unit
from tidemark.wire.amqp091.methods import (
    BasicAck,
    BasicCancel,
    BasicCancelOk,
    BasicConsume,
    BasicConsumeOk,
    BasicGet,
    BasicQos,
    ChannelClose,
    QueueDeclare,
    QueueDelete,
)

MODES = ("standby", "chain")
KINDS: dict[str, dict[str, Any]] = {
    "classic": {},
    "quorum": {"x-queue-type": "quorum"},
    "priority": {"x-max-priority": 5},
    "one consumer at a time": {"x-single-active-consumer": True},
}


def a_group(mode: str = "standby", names: str = "abc", **settings: Any) -> tuple[Group, Client]:
    group = Group(names, mode=mode, **settings)
    group.until_ready()
    return group, group.leader.open(confirms=True)


def publish(client: Client, queue: str, *sent: bytes, properties: bytes = PERSISTENT) -> None:
    client.publish(1, queue, *sent, properties=properties)
    assert {type(answer) for answer in client.read_all()} == {BasicAck}


def consumers(process: Process, queue: str) -> int:
    """As any client is told."""
    client = process.open()
    count: int = client.ask(1, QueueDeclare(queue=queue, passive=True)).consumer_count
    return count


# What it has ---------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("mode", MODES)
def test_what_a_consumer_holds_is_on_all_members(mode: str, kind: str) -> None:
    """Q-29: an acquired message is present on backups, whatever the type of its queue."""
    group, client = a_group(mode)
    client.declare("q", durable=True, arguments=KINDS[kind])
    publish(client, "q", b"held", b"free")
    holder = group.leader.open()
    assert holder.ask(1, BasicGet(queue="q")).body == b"held"
    publish(client, "q", b"later")

    assert bodies(group.leader.queue("q")) == [b"free", b"later"]
    for follower in group.followers:
        assert bodies(follower.queue("q")) == [b"held", b"free", b"later"]
    after = group.fail_over().open()
    got = [after.ask(1, BasicGet(queue="q")) for _ in range(3)]
    assert [one.body for one in got] == [b"held", b"free", b"later"]


@pytest.mark.parametrize("mode", MODES)
def test_a_queue_that_a_consumer_has_for_itself_is_on_all_members(mode: str) -> None:
    """Q-30: a replica needs no leave of whoever has exclusive access."""
    group, client = a_group(mode)
    client.declare("q", durable=True)
    client.ask(1, BasicConsume(queue="q", consumer_tag="mine", exclusive=True))
    rival = group.leader.open()
    refused = rival.ask(1, BasicConsume(queue="q"))
    assert isinstance(refused, ChannelClose) and refused.reply_code == 403
    client.send(1, BasicQos(prefetch_count=1))
    client.read_all()
    client.publish(1, "q", b"1", b"2", properties=PERSISTENT)
    found = client.read_all()

    assert {one.body for one in found if isinstance(one, Content)} == {b"1", b"2"}
    assert any(isinstance(one, BasicAck) for one in found)
    assert [bodies(follower.queue("q")) for follower in group.followers] == [[b"1", b"2"]] * 2
    assert group.fail_over().queue("q").ready == 2


FULL: dict[str, dict[str, Any]] = {
    "priority": {"x-max-priority": 5},
    "ring": {"x-max-length": 25},
    "quorum": {"x-queue-type": "quorum", "x-delivery-limit": 9},
    "last value": {"x-queue-type": "stream"},
}


@pytest.mark.parametrize("kind", FULL)
@pytest.mark.parametrize("mode", MODES)
def test_a_queue_with_holes_is_filled_into_a_new_member_once_and_it_is_ready(mode: str, kind: str) -> None:
    """Q-27, U-5: messages were taken out of order, and more come and go while it is filled: that ends."""
    group, client = a_group(mode, window_bytes=64 << 10)
    client.declare("q", durable=True, arguments=FULL[kind])

    def work(first: int, count: int) -> None:
        for number in range(first, first + count):
            if kind == "last value":
                group.leader.put("q", **{f"k{number % 7}": "v" * 1500 + str(number)})
                group.settle()
                continue
            publish(client, "q", b"%d" % number + bytes(1500), properties=priority(number % 6))
            if number % 3:
                client.send(1, BasicAck(client.ask(1, BasicGet(queue="q")).method.delivery_tag))

    work(0, 90)
    victim = group.followers[0].name
    group.kill(victim)
    group.pass_ms(100, 5)
    filled = group.restart(victim, StallingDisk())
    states = [filled.state]
    for number in range(100, 400, 5):
        work(number, 5)
        group.pass_ms(20)
        states.append(filled.state)
        if filled.state is State.READY:
            break
    assert states[-1] is State.READY, filled.member.why
    work(400, 5)
    published = 105 * 1500
    assert filled.member.moved_bytes < 4 * published, "nothing is sent again and again"
    compare(group)


# Who is waited for ---------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("way", ["it answers", "it is dropped", "it dies"])
@pytest.mark.parametrize("mode", MODES)
def test_a_publish_waits_for_a_backup_until_it_answers_or_is_left_out(mode: str, way: str) -> None:
    """Q-18: a backup's acknowledgement or its leaving ends the wait. Nobody can take the message away before that: it is
    given to nobody as long as a ready member lacks it."""
    group, client = a_group(mode)
    client.declare("q", durable=True)
    taker = group.leader.open()
    taker.ask(1, BasicConsume(queue="q", no_ack=True))
    slow = group.followers[-1]
    with group.stall(slow.name):
        client.publish(1, "q", b"1", properties=PERSISTENT)
        group.pass_ms(10, 5)
        assert client.read_all() == taker.read_all() == []
        if way == "it is dropped":
            assert group.leader.member.ask("drop", slow.name).done
            group.settle()
        elif way == "it dies":
            group.kill(slow.name)
            for _ in range(100):
                group.pass_ms(20)
                if group.view is not None and slow.name not in group.view.ready:
                    break
    if way == "it answers":
        group.settle()

    assert [type(each) for each in client.read_all()] == [BasicAck]
    assert [each.body for each in taker.read_all()] == [b"1"]


# What it costs -------------------------------------------------------------------------------------------------------


def test_what_was_consumed_before_a_member_was_filled_is_not_sent_to_it() -> None:
    """Q-19: with a fast consumer the bytes that are replicated to it are far below those that were published."""
    group, client = a_group(keep_bytes=0)
    client.declare("q", durable=True)
    away = group.followers[0].name
    group.kill(away)
    group.pass_ms(100, 5)
    taker = group.leader.open()
    taker.ask(1, BasicConsume(queue="q", no_ack=True))
    published = 0
    for number in range(200):
        publish(client, "q", b"%d" % number + bytes(3000))
        published += 3000
        if number % 20 == 0:
            group.pass_ms(200, 3)
    assert len(taker.read_all()) == 200
    publish(client, "q", b"left")
    taker.read_all()
    group.pass_ms(200, 20)

    filled = group.restart(away, StallingDisk())
    group.until_ready()
    assert 0 < filled.member.moved_bytes < published / 4
    compare(group)


class PatientGroup(Group):
    """Ends of messages wait a little for others, as they do by default."""

    def config(self, name: str) -> Any:
        settings = super().config(name)
        return replace(settings, store=replace(settings.store, ack_patience_ms=5))


def test_ends_of_messages_are_sent_as_ranges_many_in_a_frame() -> None:
    """Q-24: of so many consecutive dequeues there are less than 1 % of frames, and less than a byte for each."""
    group = PatientGroup("ab")
    group.until_ready()
    client = group.leader.open(confirms=True)
    client.declare("q", durable=True)
    count = 10_000
    for first in range(0, count, 1000):
        publish(client, "q", *(b"%d" % number for number in range(first, first + 1000)))
    taker = group.leader.open()
    taker.send(1, BasicConsume(queue="q"))
    for _ in range(50):
        group.settle()
    assert len(taker.read_all()) == count + 1
    shipped: list[Unit] = []
    ship = group.leader.ship

    def noting(peer: str, epoch: int, unit: Unit) -> None:
        shipped.append(unit)
        ship(peer, epoch, unit)

    group.leader.ship = noting  # type: ignore[method-assign]
    for first in range(1, count + 1, 100):
        taker.send(1, *(BasicAck(delivery_tag=tag) for tag in range(first, first + 100)))
        group.pass_ms(1)
    group.pass_ms(10, 3)

    assert group.followers[0].queue("q").ready == 0
    assert {unit.log for unit in shipped} == {Log.JOURNAL}
    assert len(shipped) < count / 100
    assert sum(len(unit.payload) for unit in shipped) < count


# Who does not count it -----------------------------------------------------------------------------------------------


@pytest.mark.parametrize("mode", MODES)
def test_a_queue_goes_with_its_last_consumer_though_members_read_it(mode: str) -> None:
    """Q-31: a replica is none of the consumers that keep an auto-delete queue."""
    group, client = a_group(mode)
    client.declare("q", durable=True, auto_delete=True)
    for tag in ("one", "two"):
        assert isinstance(client.ask(1, BasicConsume(queue="q", consumer_tag=tag)), BasicConsumeOk)
    publish_quietly(client, "q", b"1")
    assert consumers(group.leader, "q") == 2
    assert all(process.queue("q") is not None for process in group)
    assert isinstance(client.ask(1, BasicCancel(consumer_tag="one")), BasicCancelOk)
    group.pass_ms(100, 3)
    assert all(process.queue("q") is not None for process in group)

    assert isinstance(client.ask(1, BasicCancel(consumer_tag="two")), BasicCancelOk)
    group.settle()
    assert [process.queue("q") for process in group] == [None] * 3


def publish_quietly(client: Client, queue: str, *sent: bytes) -> None:
    """With consumers of its own on the channel."""
    client.publish(1, queue, *sent, properties=PERSISTENT)
    client.read_all()


@pytest.mark.parametrize("mode", MODES)
def test_consumers_are_counted_where_they_are_whoever_led_before(mode: str) -> None:
    """U-11: after a failover no consumer is there that is not connected, and those that come again are counted once."""
    group, _ = a_group(mode)
    for turn in range(4):
        old = group.leader
        client = old.open(confirms=True)
        client.declare("q", durable=True)
        assert consumers(old, "q") == 0
        for number in range(turn + 1):
            client.send(1, BasicConsume(queue="q", consumer_tag=f"{turn}/{number}"))
        publish_quietly(client, "q", b"%d" % turn)
        assert consumers(old, "q") == turn + 1
        assert [follower.queue("q").consumers for follower in group.followers] == [[], []]
        if turn % 2:
            assert old.member.ask("demote").done
            for _ in range(100):
                group.pass_ms(50)
                if group.leader is not old and group.leader.member.serving:
                    break
            assert client.front_end not in old.clients, (
                "its connection has ended, it is not left without a word"
            )
        else:
            group.fail_over()
            group.restart(old.name)
        group.until_ready()
        assert group.leader is not old
        assert [process.queue("q").ready for process in group] == [turn + 1] * 3


@pytest.mark.parametrize("mode", MODES)
def test_a_queue_that_is_deleted_while_members_read_it_is_no_error(mode: str) -> None:
    """Q-32, Q-47: nothing in the log, no link that breaks."""
    group, client = a_group(mode)
    links = dict(group._made)
    slow = group.followers[-1].name
    for turn in range(20):
        with group.mute(group.leader.name, slow), group.mute(group.followers[0].name, slow):
            for name in ("q", f"q{turn}"):
                client.send(1, QueueDeclare(queue=name, durable=True, arguments={"x-max-length": 5}))
                client.publish(1, name, *[bytes(500)] * 8, properties=PERSISTENT)
                client.send(1, QueueDelete(queue=name))
        group.settle()
    client.read_all()
    group.pass_ms(100, 10)
    compare(group)
    assert all(not process.node.broker.vhosts["/"].queues for process in group)
    assert {level for process in group for level, _ in process.notes} <= {"debug", "info"}
    assert group._made == links
