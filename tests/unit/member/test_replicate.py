"""How much of a queue a cluster keeps (x-replicate), seen from the members: who has what before and after a failover.

Real members over simulated disks. What the same asks of real processes is in `tests/system/cluster/test_replicate.py`.
"""

from __future__ import annotations

from typing import Any

import pytest
from unit.frontend.harness import PERSISTENT, Client
from unit.member.world import Group, Process

from tidemark.model.peers import Ends
from tidemark.wire.amqp091.methods import (
    BasicAck,
    BasicConsume,
    BasicGet,
    BasicGetEmpty,
    BasicNack,
    QueueBind,
    QueueDeclare,
    TxCommit,
    TxCommitOk,
    TxSelect,
)

WAYS = ("none", "configuration", "messages")
MODES = ("standby", "chain")


def a_group(mode: str = "standby", replicate: str = "messages", names: str = "abc") -> Group:
    group = Group(names, name="trial", mode=mode, replicate=replicate)
    group.until_ready()
    return group


def declare(client: Client, *ways: str, **arguments: Any) -> None:
    """A durable queue of each kind, named by it, bound to amq.fanout."""
    for way in ways:
        client.declare(way, durable=True, arguments={"x-replicate": way, **arguments})
        client.ask(1, QueueBind(queue=way, exchange="amq.fanout", routing_key=""))


def confirmed(client: Client, queue: str, *bodies: bytes, exchange: str = "") -> None:
    client.publish(1, queue, *bodies, exchange=exchange, properties=PERSISTENT)
    assert all(isinstance(answer, BasicAck) for answer in client.read_all())


def held(client: Client, queue: str) -> list[bytes]:
    """Everything in it, acknowledged."""
    found = []
    while not isinstance(got := client.ask(1, BasicGet(queue=queue)), BasicGetEmpty):
        found.append(got.body)
        client.send(1, BasicAck(delivery_tag=got.method.delivery_tag))
    return found


def ends(group: Group) -> dict[str, Ends]:
    return {process.name: process.node.store.ends for process in group}


def ready(process: Process) -> dict[str, int | None]:
    return {way: queue.ready if (queue := process.queue(way)) is not None else None for way in WAYS}


@pytest.mark.parametrize("mode", MODES)
def test_each_queue_is_after_a_failover_what_it_was_declared_to_be(mode: str) -> None:
    """H-21: none, the object is absent elsewhere. H-22: configuration, the queue exists, is empty, its binding works.
    H-23: messages, the contents are identical."""
    group = a_group(mode)
    client = group.leader.open(confirms=True)
    declare(client, *WAYS)
    for way in WAYS:
        confirmed(client, way, b"1", b"2")
    confirmed(client, "", b"all", exchange="amq.fanout")
    group.settle()
    assert ready(group.leader) == {"none": 3, "configuration": 3, "messages": 3}
    for follower in group.followers:
        assert ready(follower) == {"none": None, "configuration": 0, "messages": 3}

    after = group.fail_over()
    client = after.open(confirms=True)
    assert ready(after) == {"none": None, "configuration": 0, "messages": 3}
    confirmed(client, "", b"again", exchange="amq.fanout")
    assert held(client, "configuration") == [b"again"]
    assert held(client, "messages") == [b"1", b"2", b"all", b"again"]
    declare(client, "none")
    confirmed(client, "", b"new", exchange="amq.fanout")
    assert held(client, "none") == [b"new"]


@pytest.mark.parametrize("default", WAYS)
def test_the_setting_decides_where_the_queue_does_not(default: str) -> None:
    """H-24: broker default × argument, on members."""
    group = a_group(replicate=default)
    client = group.leader.open(confirms=True)
    names = {"unsaid": default} | {f"asked {way}": way for way in WAYS}
    for name, way in names.items():
        arguments = {} if name == "unsaid" else {"x-replicate": way}
        client.declare(name, durable=True, arguments=arguments)
        confirmed(client, name, b"1")
    after = group.fail_over()
    found = {
        name: (queue := after.queue(name)) is not None
        and (queue.ready if queue.durable or queue.ready else "empty")
        for name in names
    }
    expected: dict[str, Any] = {"none": False, "configuration": "empty", "messages": 1}
    assert found == {name: expected[way] for name, way in names.items()}


@pytest.mark.parametrize("way", ["none", "configuration"])
@pytest.mark.parametrize("mode", MODES)
def test_using_it_sends_nothing_to_the_others(mode: str, way: str) -> None:
    """A-2: no inter-node traffic when an unreplicated queue is used: the logs do not grow by a byte, nobody is told anything."""
    group = a_group(mode)
    client = group.leader.open(confirms=True)
    declare(client, way)
    dead = {"x-dead-letter-exchange": "", "x-dead-letter-routing-key": way}
    client.declare("dying", durable=True, arguments={"x-replicate": way, "x-max-length": 2, **dead})
    group.pass_ms(100, 5)
    before = ends(group)
    told = {process.name: len(process.told) for process in group}
    confirmed(client, way, *(b"%d" % number for number in range(50)))
    confirmed(client, "dying", b"1", b"2", b"3", b"4")
    for _ in range(3):
        got = client.ask(1, BasicGet(queue=way))
        client.send(1, BasicNack(delivery_tag=got.method.delivery_tag, requeue=True))
    got = client.ask(1, BasicGet(queue="dying"))
    client.send(1, BasicNack(delivery_tag=got.method.delivery_tag, requeue=False))
    assert len(held(client, way)) == 50 + 2 + 1
    assert held(client, "dying") == [b"4"]
    assert {process.name: len(process.told) for process in group} == told
    group.pass_ms(100, 5)
    assert ends(group) == before


def test_a_confirm_waits_for_memory_only() -> None:
    """The others may be as slow as they like: what is in memory is confirmed. What is not waits for them."""
    group = a_group()
    client = group.leader.open(2, confirms=True)
    declare(client, "configuration", "messages")
    one, other = (follower.name for follower in group.followers)
    with group.stall(one), group.stall(other):
        client.publish(1, "configuration", b"1", properties=PERSISTENT)
        assert isinstance(client.read_all()[-1], BasicAck)
        client.publish(2, "", b"2", exchange="amq.fanout", properties=PERSISTENT)
        assert client.read_all() == [], "it is on its way to a queue that keeps it, too"
    group.pass_ms()
    assert isinstance(client.read_all()[-1], BasicAck)


@pytest.mark.parametrize("power", [False, True])
@pytest.mark.parametrize("way", ["none", "configuration"])
def test_no_record_brings_back_what_the_queue_does_not_keep(way: str, power: bool) -> None:
    """A message to two queues is one record that names both. Reading it again, on the same member and on others, from the
    journal, from a checkpoint and after a compaction, fills only the queue that keeps."""
    group = a_group()
    client = group.leader.open(confirms=True)
    declare(client, "messages", way)
    bodies = [b"%d" % number + bytes(3000) for number in range(60)]
    for body in bodies:
        confirmed(client, "", body, exchange="amq.fanout")
    consumer = group.leader.open()
    consumer.send(1, BasicConsume(queue="messages", no_ack=True))
    confirmed(client, "", b"last", exchange="amq.fanout")
    group.pass_ms(100, 20)
    assert len(held(client, way)) == 61, "compaction has left what is still there in memory"
    confirmed(client, "", b"very last", exchange="amq.fanout")
    group.settle()
    for name in "abc":
        group.kill(name, power=power)
    for name in "abc":
        group.restart(name)
    group.until_ready()
    for process in group:
        queue = process.queue(way)
        assert (queue is None) == (way == "none")
        assert queue is None or queue.ready == 0
        assert process.queue("messages").ready == 0
    client = group.leader.open(confirms=True)
    declare(client, way)
    confirmed(client, "", b"new", exchange="amq.fanout")
    assert held(client, way) == held(client, "messages") == [b"new"]


@pytest.mark.parametrize("mode", MODES)
def test_a_leader_that_is_replaced_forgets_what_was_in_its_memory(mode: str) -> None:
    group = a_group(mode)
    old = group.leader
    client = old.open(confirms=True)
    declare(client, *WAYS)
    for way in WAYS:
        confirmed(client, way, b"1")
    assert old.member.ask("demote").done
    for _ in range(100):
        group.pass_ms(50)
        if group.leader is not old and group.leader.member.serving:
            break
    group.until_ready()
    assert group.leader is not old
    for process in group:
        assert ready(process) == {"none": None, "configuration": 0, "messages": 1}


def test_a_transaction_over_all_kinds_is_there_as_far_as_each_keeps() -> None:
    group = a_group()
    client = group.leader.open()
    declare(client, *WAYS)
    client.ask(1, TxSelect())
    for way in WAYS:
        client.publish(1, way, b"1", b"2", properties=PERSISTENT)
    assert ready(group.leader) == {"none": 0, "configuration": 0, "messages": 0}
    assert client.ask(1, TxCommit()) == TxCommitOk()
    assert ready(group.leader) == {"none": 2, "configuration": 2, "messages": 2}
    assert ready(group.fail_over()) == {"none": None, "configuration": 0, "messages": 2}


def test_the_name_of_a_queue_that_others_never_heard_of_is_free_there() -> None:
    group = a_group()
    client = group.leader.open(confirms=True)
    declare(client, "none")
    client = group.fail_over().open(confirms=True)
    answer = client.ask(1, QueueDeclare(queue="none", durable=True, arguments={"x-replicate": "messages"}))
    assert answer.message_count == 0
    confirmed(client, "none", b"1")
    group.until_ready()
    assert all(process.queue("none").ready == 1 for process in group)


@pytest.mark.parametrize("default", ["configuration", "messages"])
@pytest.mark.parametrize("mode", MODES)
def test_the_level_that_was_decided_stands_in_the_catalog_of_every_member(mode: str, default: str) -> None:
    """Q-35: whoever lists the queue, on a backup too, is told the level and not that nothing was asked for; another
    setting at the member that leads next does not change it."""
    group = a_group(mode, default)
    client = group.leader.open(confirms=True)
    client.declare("unsaid", durable=True)
    group.settle()
    for process in group:
        queue = process.queue("unsaid")
        assert (queue.spec.replicate, queue.spec.arguments) == (default, {})
        [listed] = [one for one in process.node.broker.image() if b'"unsaid"' in one and b"queue.put" in one]
        assert f'"replicate":"{default}"'.encode() in listed.replace(b": ", b":")
    for follower in group.followers:
        follower.node.broker.replicate = "none"
    after = group.fail_over()
    assert after.queue("unsaid").spec.replicate == default
