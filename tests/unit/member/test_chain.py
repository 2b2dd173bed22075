"""Chains and fan-outs of members: who feeds whom, and what readers at a tail may rely on when those before it die."""

from __future__ import annotations

import pytest
from unit.member.world import Group, Process

from tidemark.cluster.mode import State


def a_chain(names: str, tails: int = 1) -> Group:
    group = Group(names, mode="chain", chain_tails=tails)
    group.until_ready()
    group.leader.session().declare("s")
    group.settle()
    return group


def sources(group: Group) -> dict[str, str]:
    """Member → whom it reads from, by its place in the chain: the leader is 0."""
    assert group.view is not None
    place = {name: f"{number}" for number, name in enumerate(group.view.ready)}
    return {place[reader]: place[source] for reader, source in sorted(group.links)}


@pytest.mark.parametrize("names", ["abc", "abcde"])
def test_in_a_chain_each_member_is_fed_by_the_one_before_it_and_all_hold_the_same(names: str) -> None:
    """K-21: chained replication, A → B → C; the head sends every record once, whatever the length."""
    group = a_chain(names)
    assert sources(group) == {str(place): str(place - 1) for place in range(1, len(names))}
    group.leader.put(k="v", l="w")
    group.settle()
    assert all(process.rows() == {b"k": b"v", b"l": b"w"} for process in group)
    fed = [one for one, source in group.links if source == group.leader.name]
    assert len(fed) == 1


@pytest.mark.parametrize("tails", [2, 3])
def test_one_member_feeds_several_tails(tails: int) -> None:
    """K-22, K-45: fan-out replication, B feeds C1..C3; each has everything, and a tail that dies takes none with it."""
    names = "abcde"[: 2 + tails]
    group = a_chain(names, tails)
    middle = len(names) - tails - 1
    found = sources(group)
    assert [found[str(place)] for place in range(middle + 1, len(names))] == [str(middle)] * tails
    group.leader.put(k="v")
    group.settle()
    assert all(process.rows() == {b"k": b"v"} for process in group)

    assert group.view is not None
    group.kill(group.view.ready[-1])
    group.leader.put(k="w")
    for _ in range(100):
        group.pass_ms(50)
        if all(process.rows() == {b"k": b"w"} for process in group):
            break
    assert all(process.rows() == {b"k": b"w"} for process in group)


def lead(group: Group) -> Process:
    for _ in range(400):
        group.pass_ms(50)
        if group.leader.alive and group.leader.member.serving:
            return group.leader
    raise AssertionError([(process.name, process.state, process.member.why) for process in group])


@pytest.mark.parametrize("ahead", [0, 1])
def test_what_a_reader_at_a_tail_was_shown_is_there_whichever_tail_leads_next(ahead: int) -> None:
    """K-87: fan-out, C1 ahead of C2, KILL A and B. Whoever is promoted, consumers of the tails never saw what is then
    rolled back: a tail shows what all ready members have, so the one that is ahead has shown no more than the other."""
    group = a_chain("abcd", tails=2)
    assert group.view is not None
    head, middle, *tails = group.view.ready
    far, near = group[tails[ahead]], group[tails[1 - ahead]]
    group[head].put(k="complete")
    group.settle()
    with group.mute(middle, near.name):
        group[head].put(k="on its way")
        group.settle()
        ends = far.node.store.ends.journal, near.node.store.ends.journal
        assert ends[0] > ends[1]
        shown = {tail.name: (tail.stream().boundary, tail.rows()) for tail in (far, near)}
        assert {rows[b"k"] for _, rows in shown.values()} == {b"complete"}
        group.kill(head)
        group.kill(middle)
        group.end_lease(head)
        group.end_lease(middle)
    leader = lead(group)
    assert leader.name in tails
    for name, (boundary, _) in shown.items():
        assert group[name].stream().boundary >= boundary
        assert leader.stream().boundary >= boundary
    assert leader.rows()[b"k"] == (b"on its way" if leader is far else b"complete")
    group.leader.put(k="after")
    for _ in range(100):
        group.pass_ms(50)
        if all(process.state in (State.READY, State.ACTIVE) for process in group):
            break
    group.settle()
    assert {process.rows()[b"k"] for process in group} == {b"after"}
