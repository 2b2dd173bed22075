"""A message has one id, its sequence in a history, which is the same on every member and is never given to another."""

from __future__ import annotations

from contextlib import ExitStack

import pytest
from contract.requirements_world import Held, browse, priority
from unit.frontend.harness import PERSISTENT, Client
from unit.member.test_alike import compare
from unit.member.world import Group, Process, StallingDisk

from tidemark.wire.amqp091.methods import BasicAck, BasicGet, BasicNack

MODES = ("standby", "chain")


def a_group(mode: str = "standby", **arguments: object) -> tuple[Group, Client]:
    group = Group("abc", mode=mode)
    group.until_ready()
    client = group.leader.open(confirms=True)
    client.declare("q", durable=True, arguments=arguments)
    return group, client


def publish(client: Client, *bodies: bytes, properties: bytes = PERSISTENT) -> None:
    client.publish(1, "q", *bodies, properties=properties)
    assert {type(answer) for answer in client.read_all()} == {BasicAck}


def messages(process: Process) -> dict[bytes, Held]:
    return {held.body: held for held in browse(process.queue("q"))}


def ids(process: Process) -> dict[bytes, tuple[str, int]]:
    """Body → (history, sequence), as this member has them."""
    table = process.node.store.table
    found = {}
    for held in browse(process.queue("q")):
        begun = [row for row in table if row.first.journal <= held.seq]
        found[held.body] = max(begun, key=lambda row: row.first.journal).history, held.seq
    return found


@pytest.mark.parametrize("mode", MODES)
def test_a_message_has_the_same_id_on_all_members_wherever_it_stands_in_the_queue(mode: str) -> None:
    """Q-20: the id is given before the message is put into a queue, and does not change with what is before it there."""
    group, client = a_group(mode, **{"x-max-priority": 5})
    for number in range(40):
        publish(client, b"%d" % number, properties=priority(number % 5))
    for number in range(15):
        tag = client.ask(1, BasicGet(queue="q")).method.delivery_tag
        client.send(1, BasicAck(tag) if number % 3 else BasicNack(delivery_tag=tag, requeue=True))
    for _ in range(5):
        client.ask(1, BasicGet(queue="q"))
    group.settle()

    here, *there = (ids(process) for process in (group.leader, *group.followers))
    assert (len(here), len(there[0])) == (25, 30)
    for other in there:
        assert {body: other[body] for body in here} == here
        assert all(list(other).index(body) == place + 5 for place, body in enumerate(here))


@pytest.mark.parametrize("mode", MODES)
def test_whoever_takes_over_goes_on_behind_the_last_id_and_gives_none_twice(mode: str) -> None:
    """Q-21, H-70: not even those that the old leader gave to messages which nobody else has ever had."""
    group, client = a_group(mode)
    seen: dict[tuple[str, int], bytes] = {}
    last = 0
    for turn in range(4):
        publish(client, *(b"%d/%d" % (turn, number) for number in range(10)))
        old = group.leader
        with ExitStack() as silent:
            for follower in group.followers:
                silent.enter_context(group.mute(old.name, follower.name))
            client.publish(1, "q", *(b"%d/lost %d" % (turn, n) for n in range(10)), properties=PERSISTENT)
            assert client.read_all() == []
            for body, one in ids(old).items():
                assert seen.setdefault(one, body) == body
            ends = {follower.name: follower.node.store.ends.journal for follower in group.followers}
            new = group.fail_over()
        begun = max(row.first.journal for row in new.node.store.table)
        assert begun == ends[new.name] + 1, "max + 1"
        assert begun > last
        client = new.open(confirms=True)
        publish(client, b"%d/after" % turn)
        last = messages(new)[b"%d/after" % turn].seq
        group.restart(old.name)
        group.until_ready()
    for process in group:
        for body, one in ids(process).items():
            assert seen.setdefault(one, body) == body
    assert sorted(ids(group.leader)) == sorted(body for body in seen.values() if b"lost" not in body)


@pytest.mark.parametrize("power", [False, True])
def test_what_was_read_from_a_store_has_its_ids_on_a_member_that_is_filled_from_it(power: bool) -> None:
    """Q-22: all are restarted, one with an empty store."""
    group, client = a_group()
    publish(client, *(b"%d" % number + bytes(2000) for number in range(40)))
    for _ in range(10):
        client.send(1, BasicAck(client.ask(1, BasicGet(queue="q")).method.delivery_tag))
    group.settle()
    before, leader = ids(group.leader), group.leader.name
    for name in "abc":
        group.kill(name, power=power)
    group.restart(leader)
    [empty, other] = [name for name in "abc" if name != leader]
    group.restart(other)
    group.restart(empty, StallingDisk())
    group.until_ready()
    assert [ids(process) for process in group] == [before] * 3
    compare(group)


def test_what_only_a_backup_has_is_gone_when_it_follows_a_leader_that_lacks_it() -> None:
    """Q-23, H-31, H-70, LM1: extra messages vanish, and of what both have nothing is sent again."""
    group, client = a_group()
    publish(client, *(b"%d" % number + bytes(3000) for number in range(50)))
    old = group.leader.name
    ahead, behind = group.followers
    with group.mute(old, behind.name):
        client.publish(1, "q", b"extra 1", b"extra 2", properties=PERSISTENT)
        assert client.read_all() == []
        assert {b"extra 1", b"extra 2"} <= set(messages(ahead))
        group.kill(old)
        assert behind.member.ask("promote").done
        group.pass_ms(10)
    group.until_ready()

    assert group.leader is behind
    assert ("info", "logs cut back") in ahead.notes
    assert ids(ahead) == ids(behind)
    assert len(ids(ahead)) == 50
    assert ahead.member.moved_bytes < 1000
