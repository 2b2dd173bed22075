"""Followers are hot: what the leader's queues hold is in theirs, in the same order and under the same numbers, at once."""

from __future__ import annotations

import pytest
from contract.requirements_world import bodies, ids
from unit.frontend.harness import PERSISTENT, PLAIN, Client, Content
from unit.member.world import Group

from tidemark.wire.amqp091.methods import BasicAck, BasicConsume, BasicGet, BasicGetEmpty

MODES = ("standby", "chain")


def a_group(mode: str, **options: str) -> tuple[Group, Client]:
    group = Group("abc", mode=mode, **options)
    group.until_ready()
    client = group.leader.open(confirms=True)
    client.declare("q", durable=True)
    return group, client


def confirmed(client: Client, *contents: bytes) -> None:
    client.publish(1, "q", *contents, properties=PERSISTENT)
    assert {type(answer) for answer in client.read_all()} == {BasicAck}


def take(client: Client) -> bytes:
    """The first message of the queue, acknowledged."""
    got = client.ask(1, BasicGet(queue="q"))
    client.send(1, BasicAck(delivery_tag=got.method.delivery_tag))
    body: bytes = got.body
    return body


@pytest.mark.parametrize("mode", MODES)
def test_what_is_published_and_accepted_at_the_leader_comes_and_goes_in_the_queues_of_the_others(
    mode: str,
) -> None:
    """H-10: the queue of a backup grows in the order in which messages are added, and they have the same ids there. H-11: what
    was consumed and accepted at the leader is gone there; what was only taken is not."""
    group, client = a_group(mode)
    for number in range(1, 21):
        confirmed(client, b"%d" % number)
        for follower in group.followers:
            assert bodies(follower.queue("q")) == [b"%d" % one for one in range(1, number + 1)]
    expected = ids(group.leader.queue("q"))
    assert all(ids(follower.queue("q")) == expected for follower in group.followers)

    for number in range(1, 11):
        assert take(client) == b"%d" % number
        group.pass_ms(10)
        for follower in group.followers:
            assert bodies(follower.queue("q")) == [b"%d" % one for one in range(number + 1, 21)]
    client.ask(1, BasicGet(queue="q"))
    group.pass_ms(10)
    assert all(follower.queue("q").ready == 10 for follower in group.followers)


@pytest.mark.parametrize("mode", MODES)
def test_a_consumer_is_served_without_a_word_between_members(mode: str) -> None:
    """H-7: nothing is locked and nobody is asked: with all others silent, what is confirmed is delivered as it is without them."""
    group, client = a_group(mode)
    sent = [b"%d" % number for number in range(100)]
    confirmed(client, *sent)
    consumers = [group.leader.open() for _ in range(2)]
    told = {process.name: len(process.told) for process in group}
    ends = group.leader.node.store.ends
    group.muted |= {(one.name, other.name) for one in group for other in group}
    for consumer in consumers:
        consumer.send(1, BasicConsume(queue="q"))
    found = [each.body for consumer in consumers for each in consumer.read_all() if isinstance(each, Content)]
    assert sorted(found, key=int) == sent
    assert {process.name: len(process.told) for process in group} == told
    assert group.leader.node.store.ends == ends


@pytest.mark.parametrize("show", ["at-once", "durable"])
@pytest.mark.parametrize("mode", MODES)
def test_a_slow_backup_holds_up_the_confirm_and_a_consumer_only_if_that_is_wanted(
    mode: str, show: str
) -> None:
    """H-8: the leader enqueues first. With broker.show = "at-once" its consumers are served while a backup is slow, and only
    the confirm waits; by default (X-2: stable) nobody acts upon what may still be taken back."""
    group, client = a_group(mode, show=show)
    consumer = group.leader.open()
    consumer.send(1, BasicConsume(queue="q", no_ack=True))
    consumer.read_all()
    with group.stall(group.followers[-1].name):
        client.publish(1, "q", b"1", properties=PERSISTENT)
        assert client.read_all() == []
        assert consumer.bodies() == ([b"1"] if show == "at-once" else [])
    group.settle()
    assert [type(answer) for answer in client.read_all()] == [BasicAck]
    assert consumer.bodies() == ([] if show == "at-once" else [b"1"])


@pytest.mark.parametrize("mode", MODES)
def test_a_message_that_need_not_be_kept_is_left_out_and_changes_nothing_about_the_others(mode: str) -> None:
    """H-25: a single message of a replicated queue that is not to be replicated is a transient one: backups skip it, and ids and
    order of the others are the same everywhere, before and after a failover."""
    group, client = a_group(mode)
    for number in range(30):
        kept = number % 3 == 0
        client.publish(1, "q", b"%d" % number, properties=PERSISTENT if kept else PLAIN)
        assert [type(answer) for answer in client.read_all()] == [BasicAck]
    kept = [b"%d" % number for number in range(0, 30, 3)]
    at_leader = ids(group.leader.queue("q"))
    assert list(at_leader) == [b"%d" % number for number in range(30)]
    for follower in group.followers:
        assert ids(follower.queue("q")) == {body: at_leader[body] for body in kept}

    client = group.fail_over().open(confirms=True)
    confirmed(client, b"after")
    assert [take(client) for _ in range(len(kept) + 1)] == [*kept, b"after"]
    assert isinstance(client.ask(1, BasicGet(queue="q")), BasicGetEmpty)


@pytest.mark.parametrize("bits", [31, 32, 53, 62])
@pytest.mark.parametrize("mode", MODES)
def test_sequences_go_on_past_every_width_that_they_could_wrap_at(mode: str, bits: int) -> None:
    """H-71 (X-20: 64 bits that never wrap): a member that was away while the counter passed the limit of a narrower number
    comes back, holds the same in the same order, and leads."""
    group, client = a_group(mode)
    confirmed(client, b"before")
    away = group.followers[0].name
    group.kill(away)
    group.pass_ms(300, 3)
    arena = group.leader.node.arena
    assert arena.next_seq < (1 << bits) - 10
    arena.next_seq = (1 << bits) - 10
    sent = [b"%d" % number for number in range(40)]
    for body in sent:
        confirmed(client, body)
    assert take(client) == b"before"
    assert take(client) == b"0"
    group.restart(away)
    group.until_ready()

    expected = ids(group.leader.queue("q"))
    assert list(expected) == sent[1:]
    assert min(expected.values()) < 1 << bits < max(expected.values())
    assert ids(group[away].queue("q")) == expected
    while group.leader.name != away:
        old = group.leader.name
        group.fail_over()
        group.restart(old)
        group.until_ready()
    client = group[away].open(confirms=True)
    confirmed(client, b"after")
    assert [take(client) for _ in range(40)] == [*sent[1:], b"after"]
