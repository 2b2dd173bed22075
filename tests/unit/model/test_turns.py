"""The numbers of fronts that take what waits in a stand-in or outbox, one after the other."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tidemark.model.turns import Turn, Turns, turn_in

NUMBERS = st.integers(0, 1 << 62)


@given(st.text(min_size=1, max_size=40), NUMBERS, NUMBERS)
def test_a_front_reads_its_turn_in_the_tag_of_its_consumer(of: str, reign: int, count: int) -> None:
    turn = Turn(of, reign, count)
    assert turn_in(turn.tag) == turn


@pytest.mark.parametrize(
    "tag",
    ["", "amq.ctag-x", "amq.tidemark.turn-", "amq.tidemark.turn-ab-1", "amq.tidemark.turn-ab-1-x"],
)
def test_the_tag_of_a_leader_that_gives_no_numbers_says_nothing(tag: str) -> None:
    assert turn_in(tag) is None


@given(st.lists(st.integers(0, 3), min_size=1))
def test_every_turn_has_a_higher_number_than_all_before_it_whoever_led(reigns: list[int]) -> None:
    given_out = []
    for epoch, turns in enumerate(reigns):
        leader = Turns()
        leader.begin("cluster", epoch)
        given_out += [leader.next() for _ in range(turns)]
    numbers = [(turn.reign, turn.count) for turn in given_out]
    assert numbers == sorted(set(numbers))
