"""What is promised about a write in a group of members: who has it, who may show it, and who may die then."""

from __future__ import annotations

from itertools import combinations, pairwise, permutations
from random import Random
from typing import Any

import pytest
from unit.frontend.harness import PERSISTENT
from unit.member.test_chain import a_chain, lead
from unit.member.world import Group, Process, StallingDisk

from tidemark.broker.streams.commit import Batch, Committed, Put
from tidemark.cluster.mode import State
from tidemark.errors import PreconditionFailed
from tidemark.model.rows import Row, RowBatch


def in_order(group: Group) -> list[Process]:
    """The ready members: in a chain the head, those in the middle, the tail."""
    assert group.view is not None
    return [group[name] for name in group.view.ready]


def feeder(group: Group, reader: Process) -> str:
    [source] = [source for one, source in group.links if one == reader.name]
    return source


def durable(process: Process) -> int:
    return process.node.store.durable_ends.journal


def written(process: Process, **rows: str) -> Committed:
    made = [Row(key.encode(), value.encode()) for key, value in rows.items()]
    return process.session().commit(Batch([Put("s", RowBatch.build(made))]))


def is_safe(process: Process, receipt: Committed, members: int) -> str:
    streams = process.node.broker.streams
    return streams.safe(receipt.history, receipt.last_seq, replicas=members, disks=members)


# Who may die -------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("power", [False, True], ids=["process", "power"])
@pytest.mark.parametrize("dead", list(combinations("abc", 2)), ids="".join)
@pytest.mark.parametrize("mode", ["standby", "chain"])
def test_any_two_of_three_die_at_once_and_all_that_was_safe_is_at_the_third(
    mode: str, dead: tuple[str, str], power: bool
) -> None:
    """K-39: N=3, KILL any 2, all pairs: every N-safe write is readable, and the third goes on. It lacks what was written last;
    nobody was told that that is safe."""
    group = Group("abc", mode=mode)
    group.until_ready()
    leader = group.leader
    leader.session().declare("s")
    client = leader.open(confirms=True)
    client.declare("q", durable=True)
    [third] = [process for process in group if process.name not in dead]
    receipts = {}
    for number in range(20):
        if number == 15:
            group.muted = {(name, third.name) for name in dead}
        client.publish(1, "q", b"%d" % number, properties=PERSISTENT)
        receipts[f"k{number}".encode()] = written(leader, **{f"k{number}": "v"})
        group.settle()
    confirmed = max(answer.delivery_tag for answer in client.read_all())
    safe = {key for key, receipt in receipts.items() if is_safe(leader, receipt, 3) == "yes"}
    assert confirmed == len(safe) == 15

    for name in dead:
        group.kill(name, power=power)
    for name in dead:
        group.end_lease(name)
    assert lead(group) is third

    assert third.queue("q").ready >= confirmed
    group.pass_ms(100, 10)
    assert safe <= set(third.rows())
    third.put(after="v")
    group.settle()
    assert b"after" in third.rows()


def test_a_group_of_three_begins_with_three_and_says_when_it_has_fewer() -> None:
    """K-41: N=3 needs three nodes: two do not found it and say what they wait for; later `ready` tells the number of disks
    that a confirm stands for."""
    group = Group("ab", size=3)
    group.pass_ms(100, 50)
    assert group.view is None
    assert {process.state for process in group} == {State.JOINING}
    assert {process.member.why for process in group} == {"2 of 3 members are here"}

    group.processes["c"] = Process(group, "c", StallingDisk())
    group.introduce()
    group.until_ready()
    assert [len(process.member.status()["ready"]) for process in group] == [3, 3, 3]  # type: ignore[arg-type]
    group.kill(group.followers[0].name)
    group.pass_ms(100, 5)
    assert [len(process.member.status()["ready"]) for process in group] == [2, 2]  # type: ignore[arg-type]


@pytest.mark.parametrize("order", list(permutations(range(3))), ids=str)
def test_what_was_read_at_one_tail_is_at_the_other_in_whatever_order_the_rest_dies(
    order: tuple[int, ...],
) -> None:
    """K-48: fan-out, KILL A, B and C1 in all orders, each while C2 lacks what was written last: nothing that was consumed at
    one tail is missing for others afterwards."""
    group = a_chain("abcd", tails=2)
    names = [process.name for process in in_order(group)]
    near, last = group[names[2]], group[names[3]]
    consumed: dict[bytes, bytes] = {}

    def consume() -> None:
        if near.alive and near.member.readable:
            consumed.update(near.rows())

    group.leader.put(first="0")
    group.settle()
    for number, place in enumerate(order):
        if group.leader is not last:
            with group.mute(feeder(group, last), last.name):
                group.leader.put(**{f"k{number}": "on its way"})
                group.settle()
                consume()
                group.kill(names[place])
                group.end_lease(names[place])
        else:
            group.leader.put(**{f"k{number}": "on its way"})
            group.settle()
            consume()
            group.kill(names[place])
            group.end_lease(names[place])
        lead(group)
        group.pass_ms(100, 10)
        group.leader.put(**{f"l{number}": "settled"})
        group.settle()
        consume()

    assert list(group) == [last]
    assert b"first" in consumed
    assert consumed.items() <= last.rows().items()


# Who may show it ---------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("tails", [1, 2])
@pytest.mark.parametrize("seed", range(4))
def test_whatever_is_slow_nobody_shows_what_is_not_on_all_disks_before_and_behind_it(
    seed: int, tails: int
) -> None:
    """K-44: A to B to C: what is on C is on A and B, and what is visible on C is on every disk. A reader at A or B,
    where it is not refused (`cluster.reads`), sees no more than one at a tail may."""
    dice = Random(seed)
    group = a_chain("abcd", tails)
    members = in_order(group)
    links = [(feeder(group, one), one.name) for one in members[1:]]
    links += [(reader, source) for source, reader in links]
    shown_at_once = 0
    for number in range(80):
        for process in members:
            process.disk.stalled = dice.random() < 0.3  # type: ignore[attr-defined]
        group.muted = {link for link in links if dice.random() < 0.2}
        group.leader.put(**{f"k{dice.randrange(5)}": f"{number}"})
        group.settle()
        for one in members[1:]:
            assert group[feeder(group, one)].node.store.ends.covers(one.node.store.ends)
        on_all_disks = min(durable(process) for process in members)
        for process in members:
            assert process.stream().boundary <= on_all_disks
            shown_at_once += process.stream().boundary == group.leader.node.store.ends.journal

    for process in members:
        process.disk.stalled = False  # type: ignore[attr-defined]
    group.muted = set()
    group.settle()
    assert shown_at_once, "now and then nothing was in the way"
    assert len({process.stream().boundary for process in members}) == 1
    assert all(process.rows() == group.leader.rows() for process in members)


@pytest.mark.parametrize("place", range(3), ids=["head", "middle", "tail"])
def test_a_write_that_waits_for_one_disk_holds_back_all_that_come_behind_it(place: int) -> None:
    """K-49: HOLDSTORE on one member: the tail withholds the message; M is the number of ready members. K-50: so it does
    with all later ones, and shows them in their order."""
    group = a_chain("abc")
    members = in_order(group)
    head, tail, slow = members[0], members[-1], members[place]
    disk: Any = slow.disk
    shown = []
    with group.stall(slow.name):
        for number in range(5):
            head.put(**{f"k{number}": f"{number}"})
            group.settle()
        assert [process.rows() for process in members] == [{}, {}, {}]
        while disk._queue:
            disk.work(1)
            group.settle()
            shown.append(sorted(tail.rows()))
    group.settle()
    shown.append(sorted(tail.rows()))

    every = [b"k%d" % number for number in range(5)]
    assert all(keys == every[: len(keys)] for keys in shown)
    assert [len(before) <= len(after) for before, after in pairwise(shown)].count(False) == 0
    assert len({len(keys) for keys in shown}) >= 3, "they came one after the other"
    assert shown[-1] == every


# Who knows that all have it ----------------------------------------------------------------------------------------


def test_a_producer_that_asks_until_the_tail_has_its_sequence_may_lose_all_other_members() -> None:
    """K-46: a write returns its sequence. K-47: wait(S) at a tail is over only after the tail has S, and then K-39 holds.
    X-11: a level is a number of members, each with its disk; `all` is what every confirm waits for."""
    group = a_chain("abc")
    head, middle, tail = in_order(group)
    before = head.node.store.ends.journal
    with group.mute(middle.name, tail.name):
        receipt = written(head, k="v")
        assert receipt.first_seq == receipt.last_seq == before + 1
        assert is_safe(head, receipt, 1) == "not yet"
        group.settle()
        assert [is_safe(head, receipt, members) for members in (1, 2, 3)] == ["yes", "yes", "not yet"]
        assert [is_safe(one, receipt, 3) for one in (head, middle, tail)] == ["not yet"] * 3
        assert tail.node.store.ends.journal < receipt.last_seq
        assert head.rows() == {}
    group.settle()
    assert [is_safe(one, receipt, 3) for one in (head, middle, tail)] == ["yes"] * 3
    with pytest.raises(PreconditionFailed, match="the cluster has 3 members"):
        is_safe(head, receipt, 4)

    for one in (head, middle):
        group.kill(one.name, power=True)
    for one in (head, middle):
        group.end_lease(one.name)
    assert lead(group) is tail
    assert tail.rows() == {b"k": b"v"}
    assert is_safe(tail, receipt, 1) == "yes"
