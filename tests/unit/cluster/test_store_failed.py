"""A member whose store has failed and that stays up: it is out of the group, and only knows who leads."""

from __future__ import annotations

import pytest
from unit.cluster.bench import Bench, a_view, only, told
from unit.cluster.test_following import H1, a_backup, given

from tidemark.cluster.mode import (
    Answer,
    Asked,
    Became,
    Broken,
    Dial,
    Follow,
    Hush,
    Keep,
    MemberGone,
    PeerDown,
    PeerUp,
    Propose,
    Quit,
    Send,
    State,
    Tell,
)
from tidemark.model.peers import Completed, Ends, Offer

BROKEN = Broken("the disk is gone")


def failed(mode: str = "standby") -> Bench:
    member = a_backup(mode=mode, on_store_error="leave")
    member.step(BROKEN)
    assert member.state is State.FAILED
    return member


@pytest.mark.parametrize("mode", ["standby", "chain"])
def test_it_leaves_its_source_and_its_readers_and_says_why(mode: str) -> None:
    """H-27, H-86: the process stays, and says what failed and how to go on."""
    member = Bench("b", mode, on_store_error="leave").holding((H1, 2, 5)).following(a_view("a", "abc"))
    member.greeted_by("c", Ends(2, 5))
    effects = member.step(BROKEN)
    assert only(effects, Dial) == [Dial(None)]
    assert only(effects, Hush) == [Hush("c")]
    [became] = only(effects, Became)
    assert became.state is State.FAILED
    assert became.why.startswith("the disk is gone; see to its disk and start it again")
    assert not only(effects, Quit)


def test_by_default_it_ends() -> None:
    """H-26: to be started again."""
    member = a_backup()
    assert only(member.step(BROKEN), Quit) == [Quit("the disk is gone", False)]


@pytest.mark.parametrize("choice", ["quit", "leave"])
def test_a_leader_always_ends(choice: str) -> None:
    """While its process lives nobody would take over."""
    leader = Bench(on_store_error=choice).holding((H1, 2, 5)).leading("ab")
    assert only(leader.step(BROKEN), Quit) == [Quit("the disk is gone", False)]


def test_it_keeps_acknowledges_and_offers_nothing() -> None:
    member = failed()
    effects = member.step(PeerUp("a", dialled=True), given(6, 6, 5), BROKEN)
    effects += member.hear("a", Offer(1, "resume", Ends(2, 5), Ends(2, 9)))
    effects += member.hear("a", Completed(1, Ends(2, 9)))
    effects += member.greeted_by("c", Ends(2, 5))
    effects += member.after(5000)
    effects += member.lease()
    assert [one for one in effects if isinstance(one, Keep | Tell | Send | Dial | Became)] == []


def test_it_never_offers_itself_and_cannot_be_promoted() -> None:
    """H-27: not promotable as complete, though the last view that it knows calls it ready."""
    member = failed()
    effects = member.lease() + member.step(MemberGone("a"), PeerDown("a", dialled=True, gone=True))
    effects += member.after(10_000)
    assert only(effects, Propose) == []
    [answer] = only(member.step(Asked("promote")), Answer)
    assert not answer.done
    assert "b is failed: the disk is gone" in answer.text
    assert member.state is State.FAILED


def test_it_knows_who_leads() -> None:
    """For its clients."""
    member = failed()
    assert only(member.see(a_view("c", "ac", epoch=2)), Follow) == [Follow("c")]
    assert member.see(a_view("c", "c", epoch=2, revision=21)) == []
    assert member.see(a_view("a", "ab")) == [], "an older one"
    assert member.see(None) == []


def test_one_that_is_chosen_to_lead_by_somebody_who_did_not_know_ends() -> None:
    member = failed()
    [quit_] = only(member.see(a_view("b", "ab", epoch=2)), Quit)
    assert not quit_.clean
    assert "chosen to lead in epoch 2" in quit_.reason


def test_it_can_be_told_to_end() -> None:
    member = failed()
    effects = member.step(Asked("shutdown"))
    assert [one.done for one in only(effects, Answer)] == [True]
    assert only(effects, Quit) == [Quit("an operator asked for it", True)]
    assert told(effects, Offer) == []
