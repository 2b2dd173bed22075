"""The table of states: walked completely. Q-1, Q-2, Q-10."""

from __future__ import annotations

import itertools

import pytest
from unit.cluster.bench import Bench, only

from tidemark.cluster.mode import Became, Quit, State
from tidemark.cluster.states import TRANSITIONS, legal

PAIRS = [(a, b) for a, b in itertools.product(State, State) if a is not b]


@pytest.mark.parametrize(("before", "after"), sorted(TRANSITIONS), ids=lambda state: state.name)
def test_every_step_of_the_table_is_made_and_told(before: State, after: State) -> None:
    """Q-2"""
    member = Bench()
    member.mode.state = before

    member.mode._become(after, "so")

    assert member.state is after
    assert member.mode._out == [Became(after, "so")]


@pytest.mark.parametrize(
    ("before", "after"), [pair for pair in PAIRS if pair not in TRANSITIONS], ids=lambda state: state.name
)
def test_every_other_step_stops_the_member_and_leaves_its_state_alone(before: State, after: State) -> None:
    """Q-2, Q-33"""
    member = Bench()
    member.mode.state = before

    member.mode._become(after, "so")

    assert member.state is before
    [quit_] = only(member.mode._out, Quit)
    assert not quit_.clean and str(before) in quit_.reason and str(after) in quit_.reason


def test_a_member_that_catches_up_never_leads() -> None:
    """H-49, Q-10"""
    assert {after for before, after in TRANSITIONS if before is State.CATCHUP} == {
        State.JOINING,
        State.READY,
        State.FAILED,
    }
    assert not legal(State.CATCHUP, State.RECOVERING)


def test_nobody_confirms_without_having_waited_for_the_others() -> None:
    """H-74, Q-14: a member becomes active only out of recovering, or of a fence that it was active behind."""
    assert {before for before, after in TRANSITIONS if after is State.ACTIVE} == {
        State.RECOVERING,
        State.FENCED,
    }


def test_every_state_can_be_reached_and_all_but_the_last_left() -> None:
    """Q-1; H-27: a member whose store has failed never leads, whatever happens: nothing follows but its end."""
    assert {after for _, after in TRANSITIONS} == set(State)
    assert {before for before, _ in TRANSITIONS} == set(State) - {State.FAILED}
    assert {before for before, after in TRANSITIONS if after is State.FAILED} == {
        State.JOINING,
        State.CATCHUP,
        State.READY,
    }
