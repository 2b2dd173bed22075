"""Policies at a member that follows: it knows them and does nothing by them, until it leads."""

from __future__ import annotations

from typing import Any

from unit.frontend.harness import PERSISTENT
from unit.frontend.stream.test_following import MemberWorld
from unit.node.world import NodeWorld

from tidemark.broker.queue import Queue
from tidemark.model.wiring import OperatorPolicySpec, PolicySpec
from tidemark.wire.amqp091.methods import QueueDeclare


def policy(name: str = "p", kind: type[PolicySpec] = PolicySpec, **definition: int) -> PolicySpec:
    return kind(
        "/", name, "^q", "queues", 0, {key.replace("_", "-"): value for key, value in definition.items()}
    )


def queue_of(world: NodeWorld, name: str = "q") -> Queue:
    return world.broker.vhosts["/"].queues[name]


def test_a_follower_goes_by_the_policies_of_the_leader_and_ends_nothing_itself() -> None:
    a, b = MemberWorld("a"), MemberWorld("b")
    a.lead("aa" * 16)
    client = a.open()
    client.send(1, QueueDeclare(queue="q", durable=True))
    a.settle()
    client.publish(1, "q", *(b"%d" % n for n in range(10)), properties=PERSISTENT)
    a.settle()
    b.adopt_from(a)
    a.broker.put_policy(policy(max_length=3, message_ttl=10, expires=500))
    a.broker.put_policy(policy("o", OperatorPolicySpec, max_length=4))
    a.node.catalog.flush(a.now_ms)  # it has not had a turn since: nothing has ended
    a.node.completed(a.now_ms)
    b.adopt_from(a)
    b.complete(a.ends)
    followed = queue_of(b)
    assert (followed.applied_policy, followed.applied_operator_policy) == ("p", "o")
    assert (followed.policy.length_max, followed.ttl_ms, followed.policy.expires_ms) == (3, 10, 500)
    before = b.node.store.ends
    b.pass_s(60)
    assert queue_of(b) is followed and followed.ready == 10
    assert b.node.store.ends == before
    assert b.node.next_wake_ms() > b.now_ms

    a.settle()
    b.adopt_from(a)
    b.complete(a.ends)
    assert queue_of(a).ready == queue_of(b).ready == 3

    b.lead("bb" * 16)
    assert queue_of(b).ready == 3
    b.now_ms += 600
    b.settle()
    assert "q" not in b.broker.vhosts["/"].queues


def test_who_leads_next_does_what_the_one_before_had_no_time_for() -> None:
    a, b = MemberWorld("a"), MemberWorld("b")
    a.lead("aa" * 16)
    client = a.open()
    client.send(1, QueueDeclare(queue="q", durable=True))
    a.settle()
    client.publish(1, "q", *(b"%d" % n for n in range(10)), properties=PERSISTENT)
    a.settle()
    a.broker.put_policy(policy(max_length=3))
    a.node.catalog.flush(a.now_ms)
    a.node.completed(a.now_ms)
    b.adopt_from(a)
    b.complete(a.ends)
    assert queue_of(b).ready == 10
    b.lead("bb" * 16)
    assert (queue_of(b).ready, queue_of(b).evicted) == (3, 7)


def test_a_policy_and_its_effects_are_there_after_a_crash() -> None:
    world = NodeWorld()
    client = world.open()
    client.send(1, QueueDeclare(queue="q", durable=True))
    client.publish(1, "q", *(b"%d" % n for n in range(10)), properties=PERSISTENT)
    world.turn()
    world.broker.put_policy(policy(max_length=3))
    world.turn()
    world.rest()
    again = world.crash()
    assert (queue_of(again).ready, queue_of(again).applied_policy) == (3, "p")
    again.broker.delete_policy("/", "p")
    again.turn()
    once_more = again.crash()
    assert queue_of(once_more).applied_policy is None


def test_a_stream_ends_its_oldest_messages_when_a_policy_becomes_stricter_and_no_more_when_it_goes() -> None:
    world = NodeWorld()
    client = world.open()
    client.send(1, QueueDeclare(queue="q", durable=True, arguments={"x-queue-type": "stream"}))
    client.publish(1, "q", *[bytes(100)] * 10)
    world.rest()
    stream: Any = queue_of(world)
    assert stream.live == 10
    world.broker.put_policy(policy(max_length_bytes=350))
    world.now_ms += 1000
    world.node.tick(world.now_ms)
    world.turn()
    assert stream.live == 3
    world.broker.delete_policy("/", "p")
    client.publish(1, "q", *[bytes(100)] * 10)
    world.rest()
    world.node.tick(world.now_ms)
    assert stream.live == 13
    again: Any = queue_of(world.crash())
    assert again.live == 13


def test_a_stream_ends_what_is_older_than_a_new_policy_allows() -> None:
    world = NodeWorld()
    client = world.open()
    client.send(
        1, QueueDeclare(queue="q", durable=True, arguments={"x-queue-type": "stream", "x-max-age": "2h"})
    )
    client.publish(1, "q", b"old")
    world.rest()
    for _ in range(3):
        world.now_ms += 10_000
        world.node.tick(world.now_ms)
        world.turn()
    client.publish(1, "q", b"new")
    world.rest()
    world.broker.put_policy(PolicySpec("/", "p", "^q", "streams", 0, {"max-age": "15s"}))
    for _ in range(3):
        world.now_ms += 1000
        world.node.tick(world.now_ms)
        world.turn()
    stream: Any = queue_of(world)
    assert stream.live == 1
