"""One row of delivery tags made of those of several groups."""

from __future__ import annotations

from random import Random

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tidemark.errors import PreconditionFailed
from tidemark.router.tags import Tags


def settled(tags: Tags, first: int, last: int) -> list[tuple[str, int, int]]:
    planned = tags.plan(first, last)
    tags.settle(first, last)
    return planned


def test_tags_of_one_group_stay_as_they_are() -> None:
    tags = Tags()
    assert tags.add("a", 1, 3, True) == 1
    assert tags.add("a", 4, 1, True) == 4
    assert settled(tags, 2, 3) == [("a", 2, 3)]
    assert settled(tags, 0, 4) == [("a", 0, 4)]
    assert len(tags) == 0


def test_tags_of_two_groups_become_one_row() -> None:
    tags = Tags()
    assert [tags.add("a", 1, 2, True), tags.add("b", 1, 2, True), tags.add("a", 3, 1, True)] == [1, 3, 5]
    assert settled(tags, 2, 3) == [("a", 2, 2), ("b", 1, 1)]
    assert settled(tags, 0, 4) == [("a", 0, 1), ("b", 0, 2)]
    assert settled(tags, 0, 0) == [("a", 0, 3)]
    assert settled(tags, 0, 0) == []


def test_what_is_not_to_be_settled_uses_numbers_only() -> None:
    tags = Tags()
    tags.add("a", 1, 5, False)
    assert tags.add("b", 1, 1, True) == 6
    assert len(tags) == 1
    with pytest.raises(PreconditionFailed, match="unknown delivery tag 3"):
        tags.plan(3, 3)


@pytest.mark.parametrize(("first", "last"), [(1, 1), (0, 1), (5, 5), (0, 9), (2, 4)])
def test_a_tag_that_is_not_outstanding_is_refused(first: int, last: int) -> None:
    tags = Tags()
    tags.add("a", 1, 4, True)
    settled(tags, 1, 1)
    settled(tags, 3, 3)
    with pytest.raises(PreconditionFailed):
        tags.plan(first, last)


def test_all_up_to_a_tag_is_not_said_to_a_group_that_has_nothing_left_there() -> None:
    tags = Tags()
    tags.add("b", 1, 1, True)
    tags.add("a", 1, 4, True)
    settled(tags, 2, 3)
    assert settled(tags, 0, 3) == [("b", 0, 1)]
    assert settled(tags, 0, 5) == [("a", 0, 4)]


@settings(max_examples=300)
@given(st.integers(0, 2**32).map(Random))
def test_every_message_is_settled_at_its_group_exactly_as_the_client_said(dice: Random) -> None:
    tags = Tags()
    given_out: dict[str, int] = {}
    outstanding: dict[int, tuple[str, int]] = {}
    for _ in range(60):
        if dice.random() < 0.5:
            group, count, kept = dice.choice("abc"), dice.randrange(1, 4), dice.random() < 0.8
            first = given_out.get(group, 0) + 1
            given_out[group] = first + count - 1
            new = tags.add(group, first, count, kept)
            if kept:
                outstanding |= {new + i: (group, first + i) for i in range(count)}
            continue
        if dice.random() < 0.1:
            group = dice.choice("abc")
            tags.forget(group)
            outstanding = {tag: one for tag, one in outstanding.items() if one[0] != group}
            assert len(tags) == len(outstanding)
            continue
        last = dice.randrange(1, tags.last + 2)
        first = dice.choice([0, last, max(1, last - 2)])
        named = [tag for tag in outstanding if (first or 1) <= tag <= last]
        good = bool(named) if not first else len(named) == last - first + 1
        if not good or last > tags.last:
            with pytest.raises(PreconditionFailed):
                tags.plan(first, last)
            continue
        meant: set[tuple[str, int]] = set()
        for group, low, high in settled(tags, first, last):
            theirs = [up for name, up in outstanding.values() if name == group and (low or 1) <= up <= high]
            assert theirs, "a group is asked to settle what it has not given out"
            meant |= {(group, up) for up in theirs}
        assert meant == {outstanding.pop(tag) for tag in named}
        assert len(tags) == len(outstanding)
