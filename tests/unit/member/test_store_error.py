"""What becomes of a member whose store fails, and of the others: `cluster.on_store_error`."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest
from unit.frontend.harness import PERSISTENT, Client
from unit.member.world import Group

from tidemark.cluster.mode import State
from tidemark.wire.amqp091.methods import BasicAck

MODES = ("standby", "chain")


def a_group(mode: str, choice: str, names: str = "abc") -> tuple[Group, Client]:
    group = Group(names, mode=mode, on_store_error=choice)
    group.until_ready()
    client = group.leader.open(confirms=True)
    client.declare("q", durable=True)
    publish(group, client, b"before")
    return group, client


def publish(group: Group, client: Client, body: bytes) -> int:
    """Returns how many ms the confirm took."""
    client.publish(1, "q", body, properties=PERSISTENT)
    for waited in range(200):
        if any(isinstance(answer, BasicAck) for answer in client.read_all()):
            return 10 * waited
        group.pass_ms(10)
    raise AssertionError("no confirm")


@pytest.mark.parametrize("which", [0, 1])
@pytest.mark.parametrize("mode", MODES)
def test_a_member_that_stays_up_is_out_and_says_so(mode: str, which: int) -> None:
    """H-27, H-29, H-86: n2 is alive and not promotable, publishers wait for the grace of a broken link at most."""
    group, client = a_group(mode, "leave")
    victim = group.followers[which]
    victim.disk.fail_next()
    assert publish(group, client, b"1") < 1000
    assert victim.state is State.FAILED
    assert victim.last_words == []
    assert ("error", "state of the member") in victim.notes
    assert group.view is not None
    assert victim.name not in group.view.ready
    for number in range(20):
        assert publish(group, client, b"%d" % number) == 0, "nobody waits for it any more"
    status = victim.member.status()
    assert status["state"] == "failed"
    assert "input/output error" in str(status["why"])
    assert not victim.member.readable
    answer = victim.member.ask("promote")
    assert not answer.done
    assert "failed" in answer.text


@pytest.mark.parametrize("mode", MODES)
def test_it_never_leads_and_knows_who_does(mode: str) -> None:
    """H-27: the leader dies, and the one that is whole takes over; started again, the other heals."""
    group, client = a_group(mode, "leave")
    victim = group.followers[0]
    victim.disk.fail_next()
    publish(group, client, b"after")
    after = group.fail_over()
    assert after is not victim
    assert victim.state is State.FAILED
    assert victim.member.leader == after.name
    assert after.queue("q").ready == 2
    client = after.open(confirms=True)
    publish(group, client, b"more")

    group.kill(victim.name)
    group.restart(victim.name)
    for process in list(group.processes.values()):
        if not process.alive:
            group.restart(process.name)
    group.until_ready()
    assert [process.queue("q").ready for process in group] == [3, 3, 3]


@pytest.mark.parametrize("mode", MODES)
def test_one_that_is_to_end_does_and_heals_when_it_is_started_again(mode: str) -> None:
    """H-26: n2 ends, the confirm proceeds, a restart heals."""
    group, client = a_group(mode, "quit")
    victim = group.followers[0]
    victim.disk.fail_next()
    client.publish(1, "q", b"1", properties=PERSISTENT)
    group.pass_ms(10)
    assert len(victim.last_words) == 1
    assert "input/output error" in victim.last_words[0]
    group.kill(victim.name)
    for _ in range(100):
        group.pass_ms(10)
    assert any(isinstance(answer, BasicAck) for answer in client.read_all())
    group.restart(victim.name)
    group.until_ready()
    assert [process.queue("q").ready for process in group] == [2, 2, 2]


@pytest.mark.parametrize("choice", ["quit", "leave"])
def test_a_leader_ends_whatever_it_was_told(choice: str) -> None:
    group, client = a_group("standby", choice)
    leader = group.leader
    leader.disk.fail_next()
    client.publish(1, "q", b"1", properties=PERSISTENT)
    group.pass_ms(10)
    assert len(leader.last_words) == 1
    assert not any(isinstance(answer, BasicAck) for answer in client.read_all())


def test_one_that_cannot_keep_what_it_is_sent_leaves_too() -> None:
    """Without room for it, say."""
    group, client = a_group("standby", "leave", "ab")
    [victim] = group.followers
    victim.disk.capacity = 0
    for number in range(200):
        publish(group, client, b"%d" % number + bytes(8000))
        if victim.state is State.FAILED:
            break
    assert victim.state is State.FAILED
    assert "cannot be kept" in victim.member.why or "store failed" in victim.member.why
    publish(group, client, b"on")


class Differing(Group):
    """Each member has a choice of its own; the others have the default."""

    def config(self, name: str) -> Any:
        config = super().config(name)
        if name != "b":
            return config
        return replace(config, cluster=replace(config.cluster, on_store_error="leave"))


def test_members_with_opposite_choices_each_do_as_theirs_says() -> None:
    """H-28: a choice with a default for all; not per queue, because one log holds all of them (decision 11), but per member."""
    group = Differing("abc")
    group.until_ready()
    assert group.leader.name == "a"
    client = group.leader.open(confirms=True)
    client.declare("q", durable=True)
    for victim in group.followers:
        victim.disk.fail_next()
    client.publish(1, "q", b"1", properties=PERSISTENT)
    group.pass_ms(10)
    stays, ends = group["b"], group["c"]
    assert (stays.state, stays.last_words) == (State.FAILED, [])
    assert (ends.state is State.FAILED, len(ends.last_words)) == (False, 1)
    group.kill("c")
    group.pass_ms(100, 5)
    assert [type(answer) for answer in client.read_all()] == [BasicAck]
    assert publish(group, client, b"2") == 0
