"""Members compare what their queues and streams hold while everything goes on, say where they differ, and mend what they can."""

from __future__ import annotations

from typing import Any

import pytest
from unit.frontend.harness import PERSISTENT, Client
from unit.member.world import Group, Process

from tidemark.cluster.mode import State
from tidemark.member.comparing import NUMBER_MAX, QUEUES_MAX, Comparing, Round
from tidemark.model.peers import Census, Compare, Ends
from tidemark.wire.amqp091.methods import BasicAck, BasicGet

MODES = ("standby", "chain")
EVERY_S = 1
DIFFER = ("error", "members differ")


def a_group(mode: str = "standby", names: str = "abc") -> tuple[Group, Client]:
    group = Group(names, mode=mode, compare_s=EVERY_S)
    group.until_ready()
    client = group.leader.open(confirms=True)
    client.declare("q", durable=True)
    group.leader.session().declare("s")
    publish(client, *"abcdef")
    group.leader.put(k="1", l="2")
    group.settle()
    return group, client


def publish(client: Client, *bodies: str) -> None:
    client.publish(1, "q", *(body.encode() for body in bodies), properties=PERSISTENT)
    client.read_all()


def rounds(group: Group, number: int = 1) -> None:
    group.pass_ms(100, number * EVERY_S * 10 + 1)


def lose_one(process: Process, queue: str = "q") -> None:
    """Its memory forgets a message that its log has."""
    found = process.queue(queue)
    assert found.forget(found.entry(0, 0).seq)


def compared(group: Group) -> dict[str, int]:
    return {process.name: process.member.comparing.compared for process in group.followers}


@pytest.mark.parametrize("mode", MODES)
def test_members_that_hold_the_same_find_nothing_and_every_one_has_looked(mode: str) -> None:
    """U-34: contents are compared online, queue by queue, on every member."""
    group, client = a_group(mode)
    got = client.ask(1, BasicGet(queue="q"))
    client.send(1, BasicAck(delivery_tag=got.method.delivery_tag))
    client.ask(1, BasicGet(queue="q"))  # in somebody's hands
    group.leader.put(k="3")  # supersedes
    rounds(group)

    before = compared(group)
    rounds(group)

    assert all(number > 0 for number in before.values())
    assert all(number > before[name] for name, number in compared(group).items())
    assert not any(DIFFER in process.notes for process in group)


@pytest.mark.parametrize("mode", MODES)
@pytest.mark.parametrize("last", [False, True])
def test_a_member_whose_memory_differs_says_so_and_reads_its_store_again(mode: str, last: bool) -> None:
    """U-34: alarm and repair."""
    group, client = a_group(mode)
    victim = group.followers[-1 if last else 0]
    lose_one(victim)
    old = victim.node

    rounds(group)
    assert DIFFER not in victim.notes, "once may have been in passing"
    rounds(group, 3)

    assert victim.notes.count(DIFFER) == 1
    assert victim.node is not old
    group.until_ready()
    publish(client, "g")
    rounds(group, 2)
    assert victim.state is State.READY and victim.member.status()["differing"] == []
    assert (
        victim.queue("q").census() == group.leader.queue("q").census() == (7, victim.queue("q").census()[1])
    )
    assert victim.notes.count(DIFFER) == 1


def test_a_checkpoint_of_a_memory_that_differs_is_not_believed() -> None:
    group, _ = a_group()
    victim = group.followers[0]
    lose_one(victim)
    victim.node.store.journal.checkpointer._begin(victim.node.broker, group.now_ms)
    for _ in range(5):
        group.settle()
        victim.member.maintain(group.now_ms, 1 << 20)
    assert victim.disk.list("ckpt-")

    rounds(group, 4)

    group.until_ready()
    assert victim.queue("q").ready == 6 and victim.member.status()["differing"] == []


def test_in_a_chain_whoever_reads_from_the_one_that_reads_again_stays_ready() -> None:
    group, _ = a_group("chain")
    middle, tail = group.followers
    lose_one(middle)

    views = []
    for _ in range(30):
        rounds(group)
        assert group.view is not None
        views.append(group.view.ready)

    assert DIFFER in middle.notes and all(tail.name in ready for ready in views)
    group.until_ready()


@pytest.mark.parametrize("mode", MODES)
@pytest.mark.parametrize("what", ["stream", "queue"])
def test_what_has_just_been_purged_is_no_difference(mode: str, what: str) -> None:
    """Followers end what a record of a stream ends when it is complete, and no sooner."""
    group, _ = a_group(mode)
    for _ in range(3):
        rounds(group)
        group.leader.put(m="1")
        group.leader.member._compare_due = list(group.leader.member._rounds)
        if what == "stream":
            group.leader.stream().purge()
        else:
            group.leader.queue("q").purge()
        group.settle()

    rounds(group, 3)

    assert not any(process.member.comparing.differing for process in group)
    assert all(number > 0 for number in compared(group).values())


def test_what_reading_again_does_not_mend_is_said_once_and_shown_until_it_is_gone() -> None:
    """It is the leader that has forgotten something: nobody's reading helps, nobody reads for ever, and not all at once."""
    group, _ = a_group()
    lose_one(group.leader)
    nodes = [process.node for process in group.followers]

    rounds(group, 2)
    first = [process.node is not node for process, node in zip(group.followers, nodes, strict=True)]
    rounds(group, 3)
    group.until_ready()
    nodes = [process.node for process in group.followers]
    rounds(group, 5)

    assert first.count(True) <= 1, "they take turns"
    for process, node in zip(group.followers, nodes, strict=True):
        assert process.node is node, "it has read its store once more"
        assert process.notes.count(DIFFER) == 1
        assert process.member.status()["differing"] == ["'q' in vhost '/'"]

    group.leader.session().session.delete_queue("q")
    rounds(group, 2)
    assert all(process.member.status()["differing"] == [] for process in group.followers)


def test_a_queue_that_only_a_follower_has_something_on_differs_too() -> None:
    group, _ = a_group("standby", "ab")
    [follower] = group.followers
    del group.leader.node.broker.journaled[group.leader.queue("q").number]

    rounds(group, 3)

    assert DIFFER in follower.notes


def test_one_that_is_behind_compares_when_it_gets_there() -> None:
    group, client = a_group()
    slow = group.followers[0]
    ways = {(group.leader.name, slow.name)}
    before = slow.member.comparing.compared
    group.muted |= ways
    client.publish(1, "q", b"late", properties=PERSISTENT)
    rounds(group)
    assert slow.member.comparing.compared == before

    group.muted -= ways
    group.settle()

    assert slow.member.comparing.compared > before and DIFFER not in slow.notes


def test_while_nobody_wants_it_nothing_is_compared() -> None:
    group = Group("ab", compare_s=0)
    group.until_ready()
    group.pass_ms(5000)
    assert compared(group) == dict.fromkeys(compared(group), 0)


@pytest.mark.parametrize("which", [0, 1])
@pytest.mark.parametrize("mode", MODES)
def test_a_member_is_emptied_and_filled_again_when_an_operator_wants_it(mode: str, which: int) -> None:
    """U-34: repair, when reading its own store again does not help. Nobody may count on it then."""
    group, client = a_group(mode)
    victim = group.followers[which]

    answer = victim.member.ask("refill")

    assert answer.done and "filled again" in answer.text
    assert group.view is not None and victim.name in group.view.ready
    assert victim.queue("q").ready == 6, "others count on it still"
    group.pass_ms(100, 50)
    group.until_ready()
    assert ("warning", "store emptied") in victim.notes
    publish(client, "g")
    rounds(group, 2)
    assert victim.queue("q").census() == group.leader.queue("q").census()
    assert victim.rows() == {b"k": b"1", b"l": b"2"}
    assert not any(DIFFER in process.notes for process in group)


@pytest.mark.parametrize("topology", MODES)
def test_a_member_whose_store_was_emptied_does_not_take_the_lead_that_it_asked_for_before(
    topology: str,
) -> None:
    group, _ = a_group(topology)
    heir = group.followers[0]
    group.promote(heir.name)  # the view is on its way
    mode: Any = heir.member.mode
    mode._begin_anew(Ends(), False)
    for effect in mode._out:
        heir.member._perform(effect)
    mode._out.clear()

    group.pass_ms(100, 100)

    assert [process.queue("q").ready for process in group] == [6, 6, 6]


def test_a_leader_is_not_emptied() -> None:
    group, _ = a_group()
    answer = group.leader.member.ask("refill")
    assert not answer.done and "nobody to be filled by" in answer.text
    assert group.leader.queue("q").ready == 6


# The machine -------------------------------------------------------------------------------------------------------


class Held:
    def __init__(self, number: int, count: int = 1, keeps: bool = False) -> None:
        self.number = number
        self.count = count
        self.keeps = keeps

    def census(self) -> tuple[int, int]:
        return self.count, self.number


def targets(*held: Held) -> list[tuple[int, Any]]:
    return [(one.number, one) for one in held]


def test_a_round_has_every_number_once_and_no_part_is_large() -> None:
    comparing, now = Round(60, streams=False), 0
    many = targets(*(Held(number) for number in range(1, 2 * QUEUES_MAX + 10)))
    streams = targets(Held(5000, keeps=True))
    parts = []
    while not parts or parts[-1].last != NUMBER_MAX:
        while not comparing.is_due(now):
            now += 100
        parts.append(comparing.next_part(1, Ends(), [*streams, *many], now))

    assert [len(part.censuses) for part in parts] == [QUEUES_MAX, QUEUES_MAX, 9]
    assert [one.number for part in parts for one in part.censuses] == [number for number, _ in many]
    assert [part.first for part in parts] == [0, *(part.last + 1 for part in parts[:-1])]
    assert now < 60_000 + 5000 and not comparing.is_due(now + 59_000) and comparing.is_due(now + 60_000)


def test_a_long_queue_is_counted_by_itself() -> None:
    part = Round(60, streams=False).next_part(1, Ends(), targets(Held(1, 5_000_000), Held(2)), 0)
    assert [one.number for one in part.censuses] == [1]


def a_compare(at: Ends, census: Census, *, streams: bool = False) -> Compare:
    return Compare(1, at, streams, 0, NUMBER_MAX, (census,))


def test_a_place_that_was_passed_is_not_compared() -> None:
    comparing = Comparing()
    comparing.hear(a_compare(Ends(1, 5), Census(1, 9, 9)))
    comparing.hear(a_compare(Ends(1, 7), Census(1, 1, 1)))
    held, none = targets(Held(1)), Ends()

    assert comparing.look(Ends(1, 4), none, held) == [] and comparing.waits
    assert comparing.look(Ends(2, 5), none, held) == [] and comparing.compared == 0
    assert comparing.look(Ends(1, 7), none, held) == [] and comparing.compared == 1
    assert not comparing.waits and not comparing.differing


def test_streams_are_compared_when_all_is_complete() -> None:
    comparing, at = Comparing(), Ends(1, 5)
    comparing.hear(a_compare(at, Census(1, 1, 1), streams=True))
    held = targets(Held(1, keeps=True))

    assert comparing.look(at, Ends(1, 4), held) == [] and comparing.waits
    assert comparing.look(at, at, held) == [] and comparing.compared == 1


def test_a_difference_counts_when_it_is_there_again() -> None:
    comparing, held = Comparing(), targets(Held(1))
    found = []
    for journal in (5, 6, 7):
        comparing.hear(a_compare(Ends(1, journal), Census(1, 9, 9)))
        found.append(len(comparing.look(Ends(1, journal), Ends(), held)))
    assert found == [0, 1, 0] and comparing.known() == [1] and comparing.worst() == 3

    comparing.hear(a_compare(Ends(1, 8), Census(1, 1, 1)))
    comparing.look(Ends(1, 8), Ends(), held)
    assert comparing.known() == [] and comparing.worst() == 0
