"""The view that is kept is replaced by an older one: somebody has brought etcd back from a copy. Nobody acts on it; an operator
promotes the member with the best store, and all go on from there."""

from __future__ import annotations

from dataclasses import replace

from unit.cluster.bench import CLUSTER, Bench, a_view, only

from tidemark.cluster.mode import (
    Answer,
    Asked,
    Became,
    Dial,
    Fence,
    Lead,
    Lease,
    MemberGone,
    MemberHere,
    Propose,
    Quit,
    State,
    Survey,
    Unasked,
)
from tidemark.model.peers import Ends, Takeover

H1, H3, H5 = f"{1:032x}", f"{3:032x}", f"{5:032x}"
OLD = a_view("a", "abc", epoch=3, revision=30)
"""What comes back."""


def here(name: str, epoch: int, journal: int = 5) -> MemberHere:
    return MemberHere(name, CLUSTER, Ends(2, journal), epoch, (Takeover(H1, Ends(1, 1)),))


def asked(bench: Bench, *others: MemberHere | Unasked, accept_loss: bool = False, member: str = "") -> Answer:
    survey = Survey(
        0,
        tuple(one for one in others if isinstance(one, MemberHere)),
        tuple(one for one in others if isinstance(one, Unasked)),
    )
    [found] = only(bench.step(Asked("promote", member, accept_loss, survey)), Answer)
    return found


def restarted(me: str = "b", epoch: int = 5) -> Bench:
    """A member that was whole in this epoch starts and finds the old view."""
    bench = Bench(me, size=3).holding((H1, 2, 5), epoch=epoch)
    bench.lease()
    bench.see(OLD)
    return bench


def reason(bench: Bench) -> str:
    return only(bench.log, Became)[-1].why


def test_a_member_whose_store_knows_a_newer_epoch_neither_follows_nor_leads_by_it_and_says_so() -> None:
    member = restarted()
    member.step(MemberGone("a"))
    assert only(member.log + member.after(20_000), Propose) == [] == only(member.log, Dial)
    assert (
        "the view that is kept, of epoch 3, is older than the one of epoch 5 that this member knows"
        in reason(member)
    )
    assert "promote the member with the best store" in reason(member)


def test_the_best_store_is_promoted_and_its_view_takes_the_place_of_the_old_one() -> None:
    member = restarted()
    assert asked(member, here("a", 3), here("c", 5, journal=4)).done
    [propose] = only(member.log, Propose)
    assert (propose.view.epoch, propose.view.ready, propose.view.revision) == (6, ("b",), OLD.revision)

    effects = member.see(replace(propose.view, revision=31))
    assert [one.epoch for one in only(effects, Lead)] == [6]
    member.sync()
    assert member.state is State.ACTIVE


def test_the_new_epoch_is_above_those_of_all_that_answer() -> None:
    member = restarted()
    assert asked(member, here("a", 3), here("c", 8), member="b", accept_loss=True).done
    assert [one.view.epoch for one in only(member.log, Propose)] == [9]


def test_one_that_has_less_is_refused_and_the_best_is_named() -> None:
    found = asked(restarted(epoch=4), here("a", 3), here("c", 5))
    assert not found.done and "Promote c instead" in found.text


def test_one_that_could_not_be_asked_may_know_of_epochs_that_nobody_has_heard_of() -> None:
    member = restarted()
    away = Unasked("c", "connection refused")
    assert not asked(member, here("a", 3), away).done
    assert asked(member, here("a", 3), away, member="b", accept_loss=True).done
    [propose] = only(member.log, Propose)
    assert propose.view.epoch > 1000


def test_a_leader_that_runs_is_fenced_until_it_is_promoted_again() -> None:
    leader = Bench("a").holding((H1, 2, 5)).leading("a", epoch=5)
    assert leader.state is State.ACTIVE
    assert only(leader.see(replace(OLD, revision=77)), Fence)
    assert leader.state is State.FENCED and "promote this member again" in reason(leader)

    [answer] = only(leader.step(Asked("promote")), Answer)
    assert answer.done
    [propose] = only(leader.log[-3:], Propose)
    assert (propose.view.epoch, propose.view.revision) == (6, 77)
    effects = leader.see(replace(propose.view, revision=78))
    for revision in (79, 80):
        for another in only(effects, Propose):
            effects = leader.see(replace(another.view, revision=revision))
    leader.sync()
    assert leader.state is State.ACTIVE and leader.mode.view.epoch > 6


def test_a_leader_that_is_fenced_already_says_so_too() -> None:
    leader = Bench("a").holding((H1, 2, 5)).leading("a", epoch=5)
    leader.step(Lease(leader.now + 100))
    leader.after(200)
    assert leader.state is State.FENCED and reason(leader) == "its lease has run out"

    leader.see(replace(OLD, revision=77))
    assert "promote this member again" in reason(leader)


def test_a_leader_that_another_has_replaced_since_is_not_promoted_before_that_one() -> None:
    """It was cut off, another led in epoch 6, and then the view of epoch 3 came back."""
    leader = Bench("a").holding((H1, 2, 5)).leading("a", epoch=5)
    leader.see(replace(OLD, revision=77))
    found = asked(leader, here("b", 6, journal=9))
    assert not found.done and "Promote b instead" in found.text


def test_those_that_run_follow_who_was_promoted() -> None:
    for revision in (
        29,
        99,
    ):  # an etcd that was brought back counts from where it was; somebody may have put the view by hand
        member = Bench("b").holding((H1, 2, 5)).following(a_view("a", "ab", epoch=5, revision=50))
        assert only(member.see(replace(OLD, revision=revision)), Dial) == []
        assert "brought back from a copy" in reason(member)
        assert only(member.see(a_view("c", epoch=6, revision=revision + 1)), Dial) == [Dial("c")]


def test_an_older_view_of_the_same_epoch_is_one_too() -> None:
    """It may call a member ready that was left out since."""
    leader = Bench("a").holding((H1, 2, 5)).leading("a", epoch=5)
    assert only(leader.see(replace(leader.mode.view, ready=("a", "b"), revision=40)), Fence)


def test_a_member_whose_store_is_as_old_as_the_view_does_not_lead_when_another_knows_better() -> None:
    """It was away in the epochs that are lost: its store fits the view, and the view calls it ready."""
    member = restarted(epoch=3)
    member.step(here("c", 5))
    member.step(MemberGone("a"))
    assert only(member.log + member.after(20_000), Propose) == []
    assert "of epoch 3, but there was epoch 5" in reason(member)

    found = asked(member, here("c", 5), Unasked("a", "connection refused"))
    assert not found.done and "Promote c instead" in found.text


def test_a_view_that_is_only_late_is_waited_for_without_a_word() -> None:
    member = restarted(epoch=3)
    before = len(only(member.log, Became))
    member.step(here("c", 4))
    assert len(only(member.log, Became)) == before
    assert only(member.see(a_view("c", "cb", epoch=4, history=H3)), Dial) == [Dial("c")]


def test_a_view_of_another_cluster_is_not_replaced() -> None:
    member = Bench("b").holding((H1, 2, 5)).following(a_view("a", "ab", epoch=5))
    assert only(member.see(replace(OLD, cluster="dd" * 16, revision=99)), Quit)


def test_without_etcd_a_member_that_has_heard_of_a_newer_epoch_is_not_promoted_by_its_own_view() -> None:
    """Whoever knows that view is out of reach: it may have gone on without this member."""
    member = Bench("b", provider="external", size=3).holding((H1, 2, 5), epoch=3)
    member.see(OLD)
    member.step(here("c", 5))
    found = asked(member, Unasked("a", "no answer"), Unasked("c", "no answer"))
    assert not found.done and "there was epoch 5: start a member that knows that one" in found.text
    assert asked(
        member, Unasked("a", "no answer"), Unasked("c", "no answer"), member="b", accept_loss=True
    ).done
    [propose] = only(member.log, Propose)
    assert propose.view.epoch > 1000 and propose.view.revision == OLD.revision


def test_who_is_to_be_filled_again_leads_when_nobody_else_is_left_that_has_all() -> None:
    """The leader's store was lost before it could go on without this one."""
    member = Bench("b").holding((H5, 2, 5)).following(a_view("a", "ab", epoch=5, history=H5))
    member.lease()
    assert only(member.step(Asked("refill")), Answer)[0].done
    effects = member.see(a_view("b", "b", epoch=6))
    assert [one.view.leader for one in only(effects, Propose)] == ["b"]


def test_a_member_that_nobody_knew_and_that_comes_back_does_not_fence_who_went_on_without_it() -> None:
    """Its store may have seen epochs that nobody here has heard of."""
    member = Bench("b", size=3).holding((H1, 2, 5), epoch=4)
    member.lease()
    member.see(None)
    assert asked(member, member="b", accept_loss=True).done
    [propose] = only(member.log, Propose)
    assert propose.view.epoch > 1000
    member.see(replace(propose.view, revision=5))
    member.sync()
    assert member.state is State.ACTIVE
    member.step(here("c", 7))
    assert member.state is State.ACTIVE
