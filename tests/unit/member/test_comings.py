"""Members that come and go: who waits for whom, who goes on, and what everybody has in the end."""

from __future__ import annotations

from typing import Any

import pytest
from unit.frontend.harness import PERSISTENT, Client
from unit.member.test_alike import compare
from unit.member.test_pressure import begin, move
from unit.member.world import Group, Process, StallingDisk

from tidemark.broker.streams.commit import Batch, Put
from tidemark.cluster.mode import State
from tidemark.model.peers import View
from tidemark.model.rows import Row, RowBatch
from tidemark.wire.amqp091.methods import BasicAck

MODES = ("standby", "chain")


def a_group(mode: str = "standby", names: str = "abc", **settings: Any) -> tuple[Group, Client]:
    group = Group(names, mode=mode, **settings)
    group.until_ready()
    client = group.leader.open(confirms=True)
    client.declare("q", durable=True)
    return group, client


def publish(client: Client, *bodies: bytes, queue: str = "q") -> None:
    client.publish(1, queue, *bodies, properties=PERSISTENT)
    assert {type(answer) for answer in client.read_all()} == {BasicAck}


def views_of(group: Group) -> list[View]:
    """Every view that is kept from now on."""
    kept: list[View] = []
    decide = group.decide

    def noting(process: Process, view: View) -> None:
        decide(process, view)
        assert group.view is not None
        if not kept or kept[-1].revision != group.view.revision:
            kept.append(group.view)

    group.decide = noting  # type: ignore[method-assign]
    return kept


@pytest.mark.parametrize("mode", MODES)
def test_the_last_one_standing_is_the_one_that_goes_on_and_the_others_say_that_they_wait_for_it(
    mode: str,
) -> None:
    """Q-82: who stood last is known, and no more so when another has joined. U-8: without it queues stay defined, members say
    whom they wait for, and all is usable when it returns. U-7: nobody who may lack something leads, by itself or asked."""
    group, client = a_group(mode)
    views = views_of(group)
    publish(client, b"all")
    first = group.leader.name
    second = group.fail_over().name
    publish(group[second].open(confirms=True), b"two")
    last = group.fail_over().name
    publish(group[last].open(confirms=True), b"alone")
    epoch = group.leader.member.status()["epoch"]
    group.kill(last)

    group.restart(first)
    group.restart(second)
    group.pass_ms(100, 100)
    for name, held in ((first, 1), (second, 2)):
        member = group[name].member
        assert not member.serving
        assert group[name].state is State.JOINING
        assert member.why.startswith(f"it waits for {last}, which leads in epoch {epoch}")
        assert group[name].queue("q").ready == held
        answer = member.ask("promote")
        assert not answer.done
        assert f"ready: {last}." in answer.text

    group.restart(last)
    group.until_ready()
    assert group.leader.name == last
    assert [process.queue("q").ready for process in group] == [3, 3, 3]
    ready = [set(view.ready) for view in views]
    assert ready.index({last}) < ready.index({first, second, last})
    compare(group)


@pytest.mark.parametrize("mode", MODES)
def test_a_member_joins_though_only_one_of_those_that_founded_the_cluster_is_there(mode: str) -> None:
    """Q-83: the size counts when the cluster is founded; later members come and go below it."""
    group, client = a_group(mode)
    for follower in group.followers:
        group.kill(follower.name)
    for _ in range(100):
        group.pass_ms(100)
        if group.view is not None and len(group.view.ready) == 1:
            break
    publish(client, b"alone")
    joins = next(name for name in "abc" if not group[name].alive)
    group.restart(joins, StallingDisk())
    group.until_ready()
    publish(client, b"together")
    assert [process.queue("q").ready for process in group] == [2, 2]
    assert group.fail_over().name == joins
    publish(group.leader.open(confirms=True), b"on")


def test_a_leader_that_dies_while_it_fills_a_member_stops_nobody() -> None:
    """U-4: KILL the leader during catch-up, 100 rounds."""
    group, client = a_group(window_bytes=64 << 10)
    publish(client, *(b"%d" % number + bytes(3000) for number in range(40)))
    halves = 0
    for number in range(100):
        old, victim = group.leader.name, group.followers[number % 2].name
        group.kill(victim)
        for _ in range(100):
            group.pass_ms(50)
            if group.view is not None and victim not in group.view.ready:
                break
        filled, end = begin(group, victim), group.leader.node.store.ends.journal
        for _ in range(50):
            move(group)
            if filled.state is State.CATCHUP and (number % 3 == 0 or filled.node.store.ends.journal > 0):
                break
        halves += 0 < filled.node.store.ends.journal < end
        assert filled.state is State.CATCHUP
        group.fail_over()
        group.restart(old)
        group.until_ready()
        publish(group.leader.open(confirms=True), b"round %d" % number)
        assert {process.queue("q").ready for process in group} == {41 + number}
    assert halves > 50
    compare(group)


def cut(group: Group, reader: str, source: str) -> None:
    """The link between them breaks, with all that is on its way, and both learn of it."""
    group.unlink((reader, source))
    while group.later:
        group.later.popleft()()


@pytest.mark.parametrize("mode", MODES)
def test_after_a_link_was_away_for_a_moment_every_queue_is_in_sync_by_itself(mode: str) -> None:
    """U-6: what was under way is lost with the link; how far a member is behind is shown, one that is behind for long is
    left out, and in the end all queues are alike without anybody's help."""
    group, client = a_group(mode)
    queues = [f"q{number}" for number in range(5)]
    for queue in queues:
        client.declare(queue, durable=True)
    for blip in range(12):
        [(reader, source), *_] = sorted(
            link for link in group.links if link[0] == group.followers[blip % 2].name
        )
        with group.mute(source, reader), group.mute(reader, source):
            for queue in queues:
                client.publish(1, queue, b"%d" % blip + bytes(500), properties=PERSISTENT)
            told: Any = group[source].member.status()["peers"]
            assert {one["name"]: one["lag"] for one in told}[reader] > 0
            cut(group, reader, source)
            group.settle()
            if blip % 3 == 0:
                group.pass_ms(100, 10)
                assert group.view is not None and reader not in group.view.ready
                assert group[reader].state is not State.READY
        group.settle()
        group.until_ready()
        assert {type(answer) for answer in client.read_all()} == {BasicAck}
        for process in group:
            assert [process.queue(queue).ready for queue in queues] == [blip + 1] * 5
        told = group[source].member.status()["peers"]
        assert [one["lag"] for one in told] == [0] * len(told)
    compare(group)


@pytest.mark.parametrize("mode", MODES)
def test_a_hand_over_leaves_nobody_out_and_loses_nothing(mode: str) -> None:
    """U-9: in no view that is kept on the way does a member lack that was ready before."""
    group, client = a_group(mode)
    for turn in range(6):
        publish(client, b"%d" % turn)
        old, views = group.leader, views_of(group)
        assert old.member.ask("demote").done
        for _ in range(100):
            group.pass_ms(20)
            if group.leader is not old and group.leader.member.serving:
                break
        group.until_ready()
        assert group.leader is not old
        assert [set(view.ready) for view in views] == [set("abc")] * len(views)
        assert len(views) >= 2
        assert [process.queue("q").ready for process in group] == [turn + 1] * 3
        client = group.leader.open(confirms=True)


@pytest.mark.parametrize("mode", MODES)
def test_a_batch_that_is_sent_again_is_a_duplicate_at_every_leader_however_often(mode: str) -> None:
    """U-23: each member leads once, and no second, third or later copy slips through. U-24: the producer's numbers are
    replicated, and stored: they are there after a crash of all."""
    group, _ = a_group(mode)
    group.leader.session().declare("s", {"x-stream-key": "none"})
    group.settle()

    def sent(number: int) -> bool:
        """Whether it was stored now."""
        rows = RowBatch.build([Row(None, b"%d" % number)])
        batch = Batch([Put("s", rows)], producer="p", sequence=number)
        committed = group.leader.session().commit(batch)
        group.settle()
        return not committed.duplicate

    number = 0
    for turn in range(4):
        for _ in range(3):
            number += 1
            assert sent(number)
            assert not any(sent(number) for _ in range(3))
        if turn < 3:
            old = group.leader.name
            group.fail_over()
        else:
            for name in "abc":
                group.kill(name, power=True)
            for name in "abc":
                group.restart(name)
        assert not any(sent(again) for again in range(1, number + 1) for _ in range(2))
        if turn < 3:
            group.restart(old)
        group.until_ready()
    assert [process.stream().live for process in group] == [12, 12, 12]
    assert group.leader.session().producer_last("p") == number == 12
