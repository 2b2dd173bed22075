"""What a client knows of a cluster: whom it dials, where it reads, and what it has seen."""

from __future__ import annotations

import random
from typing import Any

import pytest

from tidemark.client.address import Address, Endpoints
from tidemark.client.cluster import (
    DIRECT_S_MAX,
    NEXT_S_MAX,
    Cluster,
    Dialling,
    Inquiry,
    ReadFrom,
    Seen,
    read_from_of,
)
from tidemark.client.waiting import CONNECT_S_MAX
from tidemark.errors import NotATail

A, B, C, D = (Address(f"10.0.0.{number}", 5672) for number in range(1, 5))
H1, H2 = "11" * 16, "22" * 16


def welcome(
    node: str, leader: str = "a", epoch: int = 1, *, mode: str = "chain", ready: str = "abc"
) -> dict[str, Any]:
    """What member `node` says; those in `ready` are, in this order."""
    roles = (
        ["head", *["middle"] * (len(ready) - 2), "tail"] if mode == "chain" else ["leader", *["backup"] * 9]
    )
    return {
        "node": node,
        "mode": mode,
        "epoch": epoch,
        "leader": leader,
        "members": [
            {
                "name": name,
                "state": "active" if name == leader else "ready",
                "role": role,
                "address": f"10.0.0.{ord(name) - ord('a') + 1}:5672",
            }
            for name, role in zip(ready, roles, strict=False)
        ],
    }


def dialling(
    given: list[Address],
    *,
    read_from: ReadFrom = "leader",
    told: dict[str, Any] | None = None,
    avoid: Address | None = None,
) -> Dialling:
    cluster = Cluster(read_from, random.Random(1))
    if told is not None:
        cluster.learn(told)
    return Dialling(cluster, Endpoints(given), reads=read_from != "leader", avoid=avoid)


# Whom it dials -------------------------------------------------------------------------------------


def test_who_is_passed_on_by_another_member_tries_the_leader_itself() -> None:
    """K-57: given any address, it ends at the right node."""
    search = dialling([B])
    assert search.next() == (B, 0.0)

    assert not search.greeted(B, welcome("a"))
    assert search.next() == (A, 0.0)
    assert search.greeted(A, welcome("a"))


def test_a_leader_that_cannot_be_reached_directly_is_reached_by_the_one_that_passes_us_on() -> None:
    search = dialling([B])
    search.next()
    assert not search.greeted(B, welcome("a")) and search.has_better
    search.next()
    search.failed(A, "refused")

    assert not search.has_better


def test_the_leader_that_is_known_is_tried_first_and_the_others_after_it() -> None:
    search = dialling([B], told=welcome("a"))
    assert [search.next()[0] for _ in range(3)] == [A, B, C]


def test_a_broker_that_fell_silent_is_tried_last() -> None:
    search = dialling([A, B, C], told=welcome("a"), avoid=A)
    assert [search.next()[0] for _ in range(3)] == [B, C, A]


def test_a_broker_that_stands_alone_is_used_whatever_address_it_names() -> None:
    search = dialling([B])
    search.next()
    alone = {
        "node": "x",
        "epoch": 0,
        "leader": "x",
        "members": [{"name": "x", "state": "alone", "role": "leader"}],
    }
    assert search.greeted(B, alone)
    assert not search.has_better


def test_an_older_epoch_changes_nothing() -> None:
    """K-58: what a node says that has not heard of the last shift is not believed."""
    cluster = Cluster()
    cluster.learn(welcome("b", "b", epoch=2, ready="bc"))
    cluster.learn(welcome("a", "a", epoch=1))
    assert cluster.leader() == [B] and cluster.epoch == 2


def test_the_error_says_what_came_of_every_address() -> None:
    search = dialling([A, B])
    for problem in ("Connection refused", "no member of the cluster leads now; try again"):
        search.failed(search.next()[0], problem)

    error = search.not_connected(30.0)

    assert "10.0.0.1:5672: Connection refused" in str(error)
    assert "10.0.0.2:5672: no member of the cluster leads now" in str(error)
    assert "within 30 s" in str(error)


# Whom it asks about a member that says nothing ------------------------------------------------------


def asking(
    given: list[Address], told: dict[str, Any], *, at: Address = A, read_from: ReadFrom = "leader"
) -> Inquiry:
    cluster = Cluster(read_from, random.Random(1))
    return Inquiry(cluster, Endpoints(given), at, told, reads=read_from != "leader")


def test_all_others_are_asked_in_turn_and_the_silent_member_is_not() -> None:
    inquiry = asking([A, D], welcome("a"))
    asked = [inquiry.next() for _ in range(4)]

    addresses = [one[0] for one in asked if one is not None]
    assert set(addresses[:2]) == {B, C} and addresses[2:] == [D, addresses[0]]
    assert [one[1] > 0 for one in asked if one is not None] == [False, True, True, True]


def test_whoever_passes_us_on_is_not_asked_about_itself_nor_the_member_behind_it() -> None:
    inquiry = asking([B], welcome("a"), at=B)
    assert {one[0] for one in (inquiry.next(), inquiry.next()) if one is not None} == {C}


def test_nobody_is_asked_where_there_is_nobody_else() -> None:
    assert asking([A], welcome("a", ready="a")).next() is None


@pytest.mark.parametrize(
    ("told", "why"),
    [
        (welcome("b", "a", epoch=2), None),
        (welcome("b", "b", epoch=1), None),
        ({**welcome("b", epoch=3), "leader": None}, None),
        (welcome("c", "b", epoch=3, ready="bc"), "the broker says nothing, and b leads now"),
    ],
)
def test_a_leader_is_left_only_for_one_of_a_newer_epoch(told: dict[str, Any], why: str | None) -> None:
    assert asking([A], welcome("a", epoch=2)).told(told) == why


@pytest.mark.parametrize(
    ("told", "left"),
    [(welcome("a"), False), (welcome("a", ready="ab"), True), (welcome("a", ready="ab", epoch=0), False)],
)
def test_a_member_that_is_read_from_is_left_when_it_is_not_ready(told: dict[str, Any], left: bool) -> None:
    assert bool(asking([A], welcome("c"), at=C, read_from="tail").told(told)) is left


# Where it reads ------------------------------------------------------------------------------------


def test_reads_go_to_the_tail_of_a_chain() -> None:
    """K-43, K-57: consumers that ask for it read from the tail."""
    search = dialling([A], read_from="tail", told=welcome("a"))
    assert search.next()[0] == C
    assert search.greeted(C, welcome("c"))


def test_reads_go_to_a_backup_of_a_leader() -> None:
    search = dialling([A], read_from="tail", told=welcome("a", mode="standby"))
    assert search.next()[0] in (B, C)


def test_reads_go_to_any_member_when_any_will_do() -> None:
    seen = {Cluster("any", random.Random(seed)).read_from for seed in range(2)}
    firsts = set()
    for seed in range(20):
        cluster = Cluster("any", random.Random(seed))
        cluster.learn(welcome("a"))
        firsts.add(cluster.readers()[0])
    assert seen == {"any"} and firsts == {A, B, C}


def test_a_tail_that_is_not_ready_after_all_leaves_the_reader_where_it_was_passed_on_to() -> None:
    search = dialling([A], read_from="tail", told=welcome("a"))
    search.next()

    assert search.greeted(C, welcome("a"))  # it was passed on to the leader, and there is no other tail
    assert not search.has_better


def test_a_reader_that_is_passed_on_tries_another_backup() -> None:
    search = dialling([A], read_from="tail", told=welcome("a", mode="standby"))
    first = search.next()[0]

    assert not search.greeted(first, welcome("a", mode="standby"))
    assert search.next()[0] in {B, C} - {first}


def test_without_a_tail_reads_go_to_whoever_lets_us_in() -> None:
    search = dialling([A, B], read_from="tail", told=welcome("a", ready="a"))
    assert search.next()[0] == A
    assert search.greeted(A, welcome("a", ready="a"))


NOT_A_TAIL = NotATail(stream="s", member="a", tails="c at 10.0.0.3:5672", epoch=1)


@pytest.mark.parametrize("read_from", ["leader", "any", "tail"])
def test_whoever_is_told_that_only_tails_show_rows_reads_there_from_then_on(read_from: ReadFrom) -> None:
    """K-43, K-57"""
    cluster = Cluster(read_from)
    cluster.learn(welcome("a"))

    assert cluster.turn_to_tails(NOT_A_TAIL) is (read_from == "tail")
    assert cluster.readers() == [C]


def test_one_that_says_nothing_is_tried_for_less_long_while_there_are_others() -> None:
    search = dialling([A, B])
    found = []
    for _ in range(3):
        address, _ = search.next()
        found.append((address, search.patience(spare=False)))
        search.failed(address, "it does not answer")

    assert found == [(A, NEXT_S_MAX), (B, CONNECT_S_MAX), (A, CONNECT_S_MAX)]
    assert search.patience(spare=True) == DIRECT_S_MAX


def test_a_tail_that_is_none_any_more_names_the_next_one() -> None:
    cluster = Cluster("tail")
    cluster.learn(welcome("a"))
    cluster.turn_to_tails(NOT_A_TAIL)
    search = Dialling(cluster, Endpoints([A]), reads=True)
    assert search.next()[0] == C

    assert not search.greeted(C, welcome("c", ready="abcd"))
    assert search.next()[0] == D


def test_behind_a_front_nobody_says_where_tails_are_and_the_refusal_stands() -> None:
    hidden = welcome("a")
    hidden["members"] = [{**one, "address": ""} for one in hidden["members"]]
    cluster = Cluster()
    cluster.learn(hidden)
    with pytest.raises(NotATail, match=r"c at 10\.0\.0\.3:5672"):
        cluster.turn_to_tails(NOT_A_TAIL)


def test_there_are_three_places_to_read_from() -> None:
    with pytest.raises(ValueError, match="'leader', 'tail', 'any'"):
        read_from_of("head")


# What it has seen ----------------------------------------------------------------------------------


def test_what_was_seen_never_goes_back() -> None:
    seen = Seen()
    assert seen.header() is None

    seen.note({"history": H1, "first": 3, "last": 9}, H1)
    seen.note({"history": H1, "to": 5, "snapshot": 1}, H1)
    seen.note({"streams": {"s": {"history": H1, "sequence": 12}, "t": {"history": H1, "sequence": 2}}}, H1)
    seen.note({"marker": {"history": H2, "to": 20}}, H1)

    assert seen.header() == {"journal": {H1: 12, H2: 20}, "catalog": 0}


def test_what_was_stored_counts_as_seen_in_both_logs() -> None:
    seen = Seen()
    seen.note({"journal": 40}, H1)
    seen.note({"name": "s", "catalog": 7}, H1)
    assert seen.header() == {"journal": {H1: 40}, "catalog": 7}


def test_only_the_newest_histories_are_remembered() -> None:
    seen = Seen()
    for number in range(10):
        seen.note({"history": f"{number:032x}", "last": number + 1}, "")
    found = seen.header()
    assert found is not None and list(found["journal"].values()) == [7, 8, 9, 10]
