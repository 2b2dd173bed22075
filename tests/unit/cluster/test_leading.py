"""A member that leads, or would like to: taking over, the fence, what is complete, who is left out and who comes in."""

from __future__ import annotations

from dataclasses import replace

import pytest
from unit.cluster.bench import CLUSTER, Bench, a_view, only, told
from unit.cluster.toys import ToyStore

from tidemark.cluster.mode import (
    Answer,
    Asked,
    Became,
    Belong,
    Complete,
    Dial,
    Drain,
    Fence,
    Follow,
    Hush,
    Intend,
    Lead,
    Lease,
    MemberGone,
    MemberHere,
    PeerDown,
    ProposalFailed,
    Propose,
    Quit,
    Send,
    State,
    Stored,
    Survey,
    Tick,
    Unasked,
    Unfence,
)
from tidemark.model.peers import Acked, Closing, Completed, Ends, Hello, Offer, Outdated, View

H1 = f"{1:032x}"


def a_leader(ready: str = "abc", mode: str = "standby", **settings: object) -> Bench:
    """a leads in epoch 2 and has taken over from z, whose log it has."""
    return Bench("a", mode, **settings).holding((H1, 2, 5)).leading(ready)  # type: ignore[arg-type]


def an_active(ready: str = "abc", mode: str = "standby", **settings: object) -> Bench:
    leader = a_leader(ready, mode, **settings)
    for name in ready[1:]:
        leader.greeted_by(name)
        leader.acked_by(name)
    assert leader.state is State.ACTIVE
    return leader


def proposed(bench: Bench, effects: list) -> list[str]:  # type: ignore[type-arg]
    return ["".join(one.view.ready) for one in only(effects, Propose)]


# Founding --------------------------------------------------------------------------------------------------------


def test_the_first_view_waits_until_all_members_are_here() -> None:
    """Q-76, H-46, K-41"""
    member = Bench("b", size=3)
    assert only(member.see(None), Propose) == []
    assert only(member.step(MemberHere("c", "", Ends())), Propose) == []
    assert only(member.step(MemberHere("a", "", Ends())), Propose) == [], "the smallest name does it"


def test_whoever_has_most_founds_the_cluster_and_leads_it() -> None:
    member = Bench("b", size=2).holding((H1, 1, 3), cluster="", epoch=0)
    member.lease()
    member.see(None)
    [propose] = only(member.step(MemberHere("a", "", Ends(1, 2))), Propose)
    view = propose.view
    assert (view.epoch, view.leader, view.ready, view.revision) == (1, "b", ("b",), 0)

    effects = member.see(replace(view, revision=1))
    assert only(effects, Lead) == [Lead(1, view.history)] and only(effects, Belong) == [
        Belong(view.cluster, 1)
    ]
    member.sync()
    assert member.state is State.ACTIVE


def a_founder_that_died(store: ToyStore | None = None) -> tuple[Bench, View]:
    """It had asked for the first view and died before the answer came; it is here again, with this store or its own."""
    before = Bench("a", size=1)
    before.lease()
    [propose] = only(before.see(None), Propose)
    member = Bench("a", size=1, store=store or before.store)
    member._dice = 100
    member.lease()
    return member, replace(propose.view, revision=1)


def test_a_founder_says_on_its_disk_what_it_is_about_to_found() -> None:
    effects = Bench("a", size=1).see(None)
    [intend], [propose] = only(effects, Intend), only(effects, Propose)
    assert intend.history == propose.view.history
    assert effects.index(intend) < effects.index(propose)


def test_a_founder_that_died_before_it_led_leads_when_it_is_back() -> None:
    """H-46: nothing was confirmed by that view, and no other store belongs to the cluster. Seed 120074."""
    member, view = a_founder_that_died()
    effects = member.see(view)
    assert only(effects, Belong) == [Belong(view.cluster, 1)]
    [propose] = only(effects, Propose)
    assert (propose.view.epoch, propose.view.ready, propose.view.cluster) == (2, ("a",), view.cluster)


def test_a_founder_whose_view_was_not_written_founds_another_cluster_and_knows_both() -> None:
    """The first question may still be on its way. Two clusters never have one name: a store of another is refused."""
    member, view = a_founder_that_died()
    [propose] = only(member.see(None), Propose)
    assert propose.view.cluster != view.cluster
    assert member.store.founding == [view.history, propose.view.history]

    again = Bench("a", size=1, store=member.store)
    assert only(again.see(view), Belong) == [Belong(view.cluster, 1)]


def test_a_founder_over_whose_view_somebody_else_has_led_does_not_lead_by_it() -> None:
    """Its view is there again, from a copy of etcd: whoever belongs to that cluster was filled by another."""
    member, view = a_founder_that_died()
    member.step(MemberHere("b", view.cluster, Ends(2, 9), epoch=2))
    assert (
        only(
            member.see(view),
            Belong,
        )
        == []
        and only(member.log, Propose) == []
    )


def test_a_running_founder_does_not_take_a_view_that_was_brought_back_for_its_own() -> None:
    member, view = a_founder_that_died()
    member.see(replace(a_view("b", "b", epoch=2), cluster=view.cluster))
    assert only(member.see(view), Belong) == []


def test_a_founder_whose_store_is_lost_does_not_take_it_for_new() -> None:
    """H-66: it may have led, and confirmed."""
    member, view = a_founder_that_died(ToyStore())
    assert only(member.see(view), Propose) == []
    assert "its store is lost" in only(member.log, Became)[-1].why


def test_a_store_that_was_to_found_a_cluster_joins_another_that_is_there() -> None:
    member, _ = a_founder_that_died()
    effects = member.see(a_view("b", "b"))
    assert only(effects, Dial) == [Dial("b")] and not only(effects, Quit)


def test_a_lost_etcd_does_not_found_a_cluster_over_stores_that_belong_to_one() -> None:
    """H-64, Q-75, X-6: everybody says what to do, nobody guesses."""
    member = Bench("b", size=2)
    member.see(None)
    effects = member.step(MemberHere("a", CLUSTER, Ends(5, 9), epoch=4))
    assert only(effects, Propose) == []
    [became] = only(effects, Became)
    assert became.state is State.JOINING and "promote a" in became.why


def test_an_operator_can_found_it_again_on_the_member_with_the_store() -> None:
    """H-66, X-6: a store that was left in use seeds a cluster only by a command."""
    member = Bench("b", size=2).holding((H1, 2, 5), epoch=4)
    member.see(None)
    survey = Survey(0, (MemberHere("a", "", Ends()),))
    effects = member.step(Asked("promote", survey=survey))
    [propose] = only(effects, Propose)
    assert (propose.view.cluster, propose.view.epoch, propose.view.ready) == (CLUSTER, 5, ("b",))
    assert only(effects, Answer)[0].done


def test_an_empty_member_is_not_promoted_over_those_that_have_stores() -> None:
    member = Bench("b", size=2)
    member.see(None)
    member.step(MemberHere("a", CLUSTER, Ends(5, 9), epoch=4))
    effects = member.step(Asked("promote"))
    assert only(effects, Propose) == [] and not only(effects, Answer)[0].done


# Taking over -----------------------------------------------------------------------------------------------------


def test_the_first_of_the_ready_takes_over_at_once_when_the_leaders_lease_ends() -> None:
    """H-5, X-10: succession is in the order of the view."""
    member = Bench("b").holding((H1, 2, 5)).following(a_view("a", "abc"))
    [propose] = only(member.step(MemberGone("a")), Propose)
    assert (propose.view.epoch, propose.view.leader, propose.view.ready) == (2, "b", ("b", "c"))


def test_the_next_ones_wait_a_little_longer() -> None:
    member = Bench("c").holding((H1, 2, 5)).following(a_view("a", "abc"))
    assert only(member.step(MemberGone("a")), Propose) == []
    assert only(member.after(140), Propose) == []
    assert len(only(member.after(20), Propose)) == 1


def test_one_that_is_gone_too_is_not_waited_for() -> None:
    member = Bench("c").holding((H1, 2, 5)).following(a_view("a", "abc"))
    member.step(MemberGone("b"))
    assert len(only(member.step(MemberGone("a")), Propose)) == 1


def test_a_leader_whose_address_refuses_is_dead_without_waiting_for_its_lease() -> None:
    member = Bench("b").holding((H1, 2, 5)).following(a_view("a", "abc"))
    assert only(member.step(PeerDown("a", dialled=True)), Propose) == []
    assert len(only(member.step(PeerDown("a", dialled=True, gone=True)), Propose)) == 1


def test_a_leader_that_comes_back_in_time_stays() -> None:
    member = Bench("c").holding((H1, 2, 5)).following(a_view("a", "abc"))
    member.step(MemberGone("a"))
    member.step(MemberHere("a", CLUSTER, Ends()))
    assert only(member.after(1000), Propose) == []


def test_a_leader_that_was_never_seen_is_replaced_after_a_lease() -> None:
    """H-57: after all were stopped, any of those that were ready will do."""
    member = Bench("b").holding((H1, 2, 5))
    member.see(a_view("a", "ab"))
    assert only(member.after(1900), Propose) == []
    assert len(only(member.after(200), Propose)) == 1


def test_a_member_that_catches_up_never_proposes_itself() -> None:
    """H-48, H-49, H-52, U-7"""
    member = Bench("b").holding((H1, 2, 5)).following(a_view("a", "ac"))
    assert only(member.step(MemberGone("a")), Propose) == []
    assert only(member.after(10_000), Propose) == []


def test_losing_the_race_means_to_follow_the_winner() -> None:
    """H-30"""
    member = Bench("b").holding((H1, 2, 5)).following(a_view("a", "abc"))
    [propose] = only(member.step(MemberGone("a")), Propose)
    member.step(ProposalFailed(propose.view))
    effects = member.see(a_view("c", "cb", epoch=2))
    assert only(effects, Follow) == [Follow("c")] and only(effects, Dial) == [Dial("c")]
    assert member.state is State.JOINING and not only(effects, Lead)


def test_a_proposal_that_could_not_be_written_is_made_again_on_the_same_view() -> None:
    member = Bench("b").holding((H1, 2, 5)).following(a_view("a", "abc"))
    [first] = only(member.step(MemberGone("a")), Propose)
    member.step(ProposalFailed(first.view))
    [second] = only(member.after(250), Propose)
    assert second.view.revision == first.view.revision and second.view.history != first.view.history


def test_a_leader_that_restarts_takes_a_new_epoch_before_it_leads_again() -> None:
    """Its memory of what the others have is gone."""
    member = Bench("a").holding((H1, 2, 5))
    member.lease()
    effects = member.see(a_view("a", "ab"))
    assert only(effects, Lead) == []
    [propose] = only(effects, Propose)
    assert (propose.view.epoch, propose.view.leader, propose.view.ready) == (2, "a", ("a", "b"))
    assert only(member.see(replace(propose.view, revision=20)), Lead) == [Lead(2, propose.view.history)]


def test_a_view_that_an_earlier_life_proposed_is_not_led() -> None:
    """It may have led by it, and confirmed something, before it died."""
    member = Bench("a").holding((H1, 2, 5))
    effects = member.see(a_view("a", "ab", epoch=2))
    assert only(effects, Lead) == []
    assert [one.view.epoch for one in only(effects, Propose)] == [3]


def test_a_leader_whose_store_is_lost_makes_way() -> None:
    member = Bench("a")
    effects = member.see(a_view("a", "abc"))
    [propose] = only(effects, Propose)
    assert propose.view.leader == "b" and "a" not in propose.view.ready and not only(effects, Lead)


def test_with_an_external_provider_nobody_takes_over_by_itself() -> None:
    """H-14, H-83, X-9: the same machine and views, whoever provides the membership."""
    member = Bench("b", provider="external").holding((H1, 2, 5)).following(a_view("a", "abc"))
    assert only(member.step(MemberGone("a")), Propose) == []
    assert only(member.after(20_000), Propose) == []
    assert len(only(member.step(Asked("promote")), Propose)) == 1


# What is complete ------------------------------------------------------------------------------------------------


def test_a_new_leader_confirms_nothing_before_all_that_were_ready_have_answered() -> None:
    """LM5, H-32, H-74, Q-13, Q-14, Q-17, X-8: nothing of the old epoch is left open when the new one begins.

    H-43: recovering, then active.
    """
    leader = a_leader("abc")
    assert leader.state is State.RECOVERING
    leader.greeted_by("b")
    assert only(leader.acked_by("b"), Complete) == []

    leader.greeted_by("c")
    assert only(leader.acked_by("c"), Complete) == [] and leader.state is State.ACTIVE
    assert only(leader.log, Complete) == [Complete(leader.store.durable)]


def test_a_leader_alone_becomes_active_though_nothing_was_ever_published() -> None:
    """Q-16"""
    assert a_leader("a").state is State.ACTIVE


def test_a_publish_is_complete_when_every_ready_backup_has_it() -> None:
    """H-12, H-13"""
    leader = an_active("abc")
    assert only(leader.write(), Complete) == []
    assert only(leader.acked_by("b"), Complete) == []
    assert only(leader.acked_by("c"), Complete) == [Complete(leader.store.durable)]


def test_a_publish_is_not_complete_before_it_is_on_the_leaders_own_disk() -> None:
    leader = an_active("ab")
    sequence = leader.put(leader.mode.view.history)
    assert only(leader.acked_by("b", Ends(3, sequence)), Complete) == []
    assert only(leader.sync(), Complete) == [Complete(Ends(3, sequence))]


def test_acks_of_an_older_epoch_count_for_nothing() -> None:
    leader = a_leader("ab")
    leader.greeted_by("b", Ends(2, 5))
    effects = leader.hear("b", Acked(1, Ends(9, 99)))
    assert told(effects, Outdated) == [("b", Outdated(2))] and not only(effects, Complete)


def test_acks_without_a_hello_in_this_epoch_count_for_nothing() -> None:
    leader = a_leader("ab")
    assert only(leader.acked_by("b"), Complete) == [] and leader.state is State.RECOVERING


def test_the_others_are_told_what_is_complete() -> None:
    leader = an_active("ab")
    leader.write()
    assert told(leader.acked_by("b"), Completed) == [("b", Completed(2, leader.store.durable))]


def test_in_a_chain_the_head_counts_those_that_it_has_no_link_with() -> None:
    leader = a_leader("abc", "chain")
    leader.greeted_by("b")
    leader.acked_by("b", c=leader.store.durable)
    assert leader.state is State.ACTIVE
    leader.write()
    assert only(leader.acked_by("b", c=Ends(3, 6)), Complete) == []
    assert only(leader.acked_by("b", c=leader.store.durable), Complete) != []


def test_in_a_chain_a_member_that_is_not_ready_counts_only_by_its_own_word() -> None:
    """What others say of it may be of a store that is gone."""
    leader = an_active("ab", "chain")
    leader.greeted_by("d", Ends(), cluster="", whole=False)
    effects = leader.acked_by("b", d=leader.store.durable)
    assert only(effects, Propose) == []


# The fence -------------------------------------------------------------------------------------------------------


def test_a_leader_whose_lease_runs_out_confirms_and_shows_nothing() -> None:
    """H-15, H-45"""
    leader = an_active("ab")
    leader.step(Lease(leader.now + 1000))
    assert only(leader.after(990), Fence) == []
    assert only(leader.after(20), Fence) and leader.state is State.FENCED

    effects = leader.write() + leader.acked_by("b")
    assert only(effects, Complete) == []


def test_a_lease_that_comes_back_lifts_the_fence_and_confirms_what_waited() -> None:
    leader = an_active("ab")
    leader.step(Lease(leader.now + 100))
    leader.after(110)
    leader.write()
    leader.acked_by("b")

    effects = leader.lease()
    [propose] = only(effects, Propose)
    assert propose.view == leader.mode.view and not only(effects, Unfence)

    effects = leader.see(replace(propose.view, revision=21))
    assert only(effects, Unfence) and leader.state is State.ACTIVE
    assert only(effects, Complete) == [Complete(leader.store.durable)]
    assert effects.index(only(effects, Unfence)[0]) < effects.index(only(effects, Complete)[0])


def test_a_leader_without_a_lease_is_fenced_from_its_first_moment() -> None:
    leader = Bench("a").holding((H1, 2, 5))
    leader.step(Lease(leader.now + 10))
    [propose] = only(leader.see(a_view("a", "a")), Propose)
    leader.after(50)
    effects = leader.see(replace(propose.view, revision=20))
    assert only(effects, Lead) and only(effects, Fence) and leader.state is State.FENCED


def test_a_leader_that_hears_of_a_newer_epoch_is_fenced() -> None:
    leader = an_active("ab")
    assert only(leader.hear("b", Outdated(3)), Fence)


def test_a_leader_that_is_replaced_follows_and_forgets_its_readers() -> None:
    """H-15"""
    leader = an_active("abc")
    effects = leader.see(a_view("b", "bc", epoch=3))
    assert only(effects, Follow) == [Follow("b")] and only(effects, Dial) == [Dial("b")]
    assert {one.peer for one in only(effects, Hush)} == {"b", "c"} and leader.state is State.JOINING


def test_a_leader_without_a_view_is_fenced_until_it_is_back() -> None:
    leader = an_active("ab")
    assert only(leader.see(None), Fence)
    assert only(leader.see(replace(leader.mode.view, revision=99)), Unfence)


# Who is left out -------------------------------------------------------------------------------------------------


def test_a_ready_member_whose_link_breaks_is_left_out_after_the_grace() -> None:
    leader = an_active("abc", link_grace_ms=200)
    leader.step(PeerDown("c", dialled=False))
    assert only(leader.after(190), Propose) == []
    assert proposed(leader, leader.after(20)) == ["ab"]


def test_a_member_that_comes_back_within_the_grace_stays() -> None:
    leader = an_active("abc", link_grace_ms=200)
    leader.step(PeerDown("c", dialled=False))
    leader.after(100)
    leader.greeted_by("c")
    assert only(leader.after(1000), Propose) == []


def test_nothing_completes_without_a_member_before_the_view_is_without_it() -> None:
    """To do without a member the leader must first write a view without it."""
    leader = an_active("abc")
    leader.step(PeerDown("c", dialled=False))
    leader.write()
    leader.acked_by("b")
    [propose] = only(leader.after(300), Propose)
    assert len(only(leader.log, Complete)) == 1

    effects = leader.see(replace(propose.view, revision=21))
    assert only(effects, Complete) == [Complete(leader.store.durable)]


def test_a_member_that_does_not_acknowledge_in_time_is_left_out() -> None:
    """H-33, Q-15, X-23"""
    leader = an_active("abc", backup_timeout_ms=1000)
    leader.write()
    leader.acked_by("b")
    assert only(leader.after(990), Propose) == []
    assert proposed(leader, leader.after(30)) == ["ab"]


def slow_acks(leader: Bench, ms: int, slow: str, *fast: str, delay_ms: int = 600) -> list[str]:
    """For so long the slow one takes `delay_ms` for each acknowledgement, the others none. What is proposed meanwhile."""
    found = []
    for _ in range(ms // delay_ms):
        owed = leader.store.ends
        for _ in range(delay_ms // 50):
            leader.write()
            for name in fast:
                leader.acked_by(name)
            found += proposed(leader, leader.after(50))
        effects = leader.hear(slow, Acked(leader.mode.view.epoch, owed))
        found += proposed(leader, effects)
    return found


def test_a_member_that_is_slow_while_others_are_not_is_left_out() -> None:
    """M9, K-5, K-54, X-23"""
    leader = an_active("abc", ack_budget_ms=500)
    assert "ab" in slow_acks(leader, 3000, "c", "b")


def test_one_that_is_slow_within_its_budget_stays() -> None:
    leader = an_active("abc", ack_budget_ms=1000)
    assert slow_acks(leader, 6000, "c", "b") == []


def test_one_that_has_stopped_is_not_called_slow() -> None:
    """It has the time that any member has which does not answer."""
    leader = an_active("abc", ack_budget_ms=500, backup_timeout_ms=5000)
    leader.write()
    leader.acked_by("b")
    assert proposed(leader, leader.after(4900)) == []
    assert proposed(leader, leader.after(200)) == ["ab"]


def test_the_last_member_beside_the_leader_stays_however_slow() -> None:
    leader = an_active("ab", ack_budget_ms=500)
    assert slow_acks(leader, 6000, "b") == []


def test_when_all_are_slow_none_of_them_is_to_blame() -> None:
    leader = an_active("abc", ack_budget_ms=500)
    for _ in range(6):
        leader.write()
        leader.after(600)
        assert not proposed(leader, leader.acked_by("b")) and not proposed(leader, leader.acked_by("c"))
    assert "".join(leader.mode.view.ready) == "abc"


def test_one_that_was_slow_comes_back_when_it_is_well_within_its_budget() -> None:
    """M9: with hysteresis"""
    leader = an_active("abc", ack_budget_ms=500)
    slow_acks(leader, 3000, "c", "b")
    view = next(one.view for one in only(leader.log, Propose) if "c" not in one.view.ready)
    leader.see(replace(view, revision=21))
    assert slow_acks(leader, 12_000, "c", "b", delay_ms=400) == []
    assert "abc" in slow_acks(leader, 6000, "c", "b", delay_ms=200)


def test_a_member_that_owes_nothing_is_never_late() -> None:
    leader = an_active("abc", backup_timeout_ms=1000)
    assert only(leader.after(20_000), Propose) == []


def test_a_member_whose_lease_has_ended_gets_the_short_grace() -> None:
    leader = an_active("abc", backup_timeout_ms=5000)
    leader.step(MemberGone("c"))
    leader.write()
    leader.acked_by("b")
    assert proposed(leader, leader.after(300)) == ["ab"]


def test_expected_backups_that_never_come_are_left_out_after_the_time_out() -> None:
    """Q-15, H-33"""
    leader = a_leader("abc", backup_timeout_ms=1000)
    leader.greeted_by("b")
    leader.acked_by("b")
    assert only(leader.after(980), Propose) == []
    [propose] = only(leader.after(40), Propose)
    assert "".join(propose.view.ready) == "ab"
    leader.see(replace(propose.view, revision=21))
    assert leader.state is State.ACTIVE


def test_several_late_members_are_left_out_in_one_view() -> None:
    leader = an_active("abcd")
    leader.step(PeerDown("c", dialled=False), PeerDown("d", dialled=False))
    assert proposed(leader, leader.after(300)) == ["ab"]


def test_in_a_chain_the_one_that_is_fed_by_a_dead_member_is_not_to_blame() -> None:
    leader = a_leader("abc", "chain")
    leader.greeted_by("b")
    leader.acked_by("b", c=leader.store.durable)
    leader.step(PeerDown("b", dialled=False))
    [propose] = only(leader.after(300), Propose)
    assert "".join(propose.view.ready) == "ac"
    leader.see(replace(propose.view, revision=21))
    assert only(leader.after(300), Propose) == [], "c has time to find its new source"
    assert proposed(leader, leader.after(800)) == ["a"], "but not as much as after a takeover"


def test_in_a_chain_the_one_that_is_fed_by_a_slow_member_is_not_to_blame() -> None:
    leader = a_leader("abc", "chain", backup_timeout_ms=1000)
    leader.greeted_by("b")
    leader.acked_by("b", c=leader.store.durable)
    leader.write()
    assert proposed(leader, leader.after(1100)) == ["ac"]


def test_a_leader_that_stood_still_does_not_blame_the_others() -> None:
    leader = an_active("abc", backup_timeout_ms=1000)
    leader.write()
    leader.now += 8000
    assert only(leader.step(Tick(leader.now)), Propose) == []
    assert only(leader.acked_by("b") + leader.acked_by("c"), Complete) == [Complete(leader.store.durable)]


# Who comes in ----------------------------------------------------------------------------------------------------


def test_a_member_that_holds_everything_is_guarded_and_then_made_ready() -> None:
    """Q-26"""
    leader = an_active("ab")
    leader.greeted_by("c")
    assert proposed(leader, leader.log)[-1:] == ["abc"]


def test_nothing_completes_without_a_member_from_the_moment_that_it_is_guarded() -> None:
    """Q-17: the view that makes it ready may be there before the leader hears of it."""
    leader = an_active("ab")
    leader.greeted_by("c")
    leader.write()
    assert only(leader.acked_by("b"), Complete) == []
    assert only(leader.acked_by("c"), Complete) == [Complete(leader.store.durable)]


def test_a_guarded_member_that_leaves_stays_required_while_a_view_with_it_may_be_there() -> None:
    """An answer that is lost on its way does not mean that the view was not written."""
    leader = an_active("ab")
    leader.greeted_by("c")
    [propose] = [one for one in only(leader.log, Propose) if "c" in one.view.ready]
    leader.step(ProposalFailed(propose.view), PeerDown("c", dialled=False))
    leader.write()
    assert only(leader.acked_by("b"), Complete) == []

    [again] = only(leader.after(250), Propose)
    assert "".join(again.view.ready) == "ab", "a view of the same members settles it"
    effects = leader.see(replace(again.view, revision=30))
    assert only(effects, Complete) == [Complete(leader.store.durable)]


def test_a_member_that_is_far_behind_does_not_hold_publishers_up() -> None:
    leader = an_active("ab")
    leader.greeted_by("c", Ends(), cluster="", whole=False, table=())
    leader.write()
    assert only(leader.acked_by("b"), Complete) == [Complete(leader.store.durable)]


def is_waited_for(*rounds_ms: int) -> bool:
    """A member comes to where the leader was at the beginning of each of these rounds, while clients publish. Whether they
    wait for it then."""
    leader = an_active("ab")
    leader.write(50)
    leader.greeted_by("c", Ends(2, 4))
    for round_ms in rounds_ms:
        mark = leader.store.durable
        leader.write(10)
        leader.acked_by("b")
        leader.after(round_ms)
        leader.acked_by("c", mark)
    leader.write()
    return not only(leader.acked_by("b"), Complete)


def test_a_member_that_gains_on_publishers_comes_near_before_they_wait_for_it() -> None:
    """They wait for what it lacks when it is guarded."""
    assert not is_waited_for(800)
    assert not is_waited_for(800, 400)
    assert not is_waited_for(800, 400, 200)
    assert is_waited_for(800, 400, 200, 100)


def test_a_member_that_gains_no_more_is_near_enough() -> None:
    """Its link or its disk takes that long for anything."""
    assert not is_waited_for(800)
    assert is_waited_for(800, 700)


def test_a_member_that_gains_no_more_and_is_far_behind_is_not_waited_for() -> None:
    assert not is_waited_for(1500, 1500, 1500)


def test_a_reader_gets_what_comes_behind_its_log() -> None:
    """H-31"""
    leader = an_active("ab")
    effects = leader.greeted_by("c", Ends(2, 4))
    assert only(effects, Send) == [Send("c", Ends(2, 4))]
    assert [offer.verdict for _, offer in told(effects, Offer)] == ["resume"]


def test_a_hello_of_an_older_epoch_is_told_so_and_one_of_a_newer_epoch_waits() -> None:
    leader = an_active("ab")
    old = Hello("c", 1, CLUSTER, Ends(2, 5), ())
    assert told(leader.hear("c", old), Outdated) == [("c", Outdated(2))]

    member = Bench("b").holding((H1, 2, 5)).following(a_view("a", "ab"))
    assert told(member.hear("c", Hello("c", 2, CLUSTER, Ends(), ())), Offer) == []


def test_a_ready_member_that_lost_its_store_is_left_out_before_it_is_filled() -> None:
    """Half filled it could be chosen, as the view still has its name."""
    leader = an_active("abc")
    leader.step(PeerDown("c", dialled=False))
    effects = leader.greeted_by("c", Ends(), cluster="", whole=False, table=())
    assert told(effects, Offer) == [] and proposed(leader, effects) == ["ab"]

    effects = leader.see(replace(leader.mode.view, ready=("a", "b"), revision=21))
    assert [offer.verdict for _, offer in told(effects, Offer)] == ["resume"]


def test_a_member_that_was_left_out_while_its_link_lives_comes_in_again() -> None:
    leader = an_active("abc", backup_timeout_ms=1000)
    leader.write()
    leader.acked_by("b")
    [propose] = only(leader.after(1020), Propose)
    leader.see(replace(propose.view, revision=21))
    assert proposed(leader, leader.acked_by("c") + leader.after(1000))[-1:] == ["abc"]


def test_a_member_that_is_left_out_again_and_again_waits_longer_each_time() -> None:
    leader = an_active("ab", link_grace_ms=200)
    waits = []
    for turn in range(5):
        leader.step(PeerDown("b", dialled=False))
        leader.after(300)
        leader.see(replace(leader.mode.view, ready=("a",), revision=30 + 2 * turn))
        leader.greeted_by("b")
        since = leader.now
        while "b" not in [one.view for one in only(leader.log, Propose)][-1].ready:
            leader.after(50)
        waits.append(leader.now - since)
        leader.see(replace(leader.mode.view, ready=("a", "b"), revision=31 + 2 * turn))
    assert waits == sorted(waits) and waits[0] == 0 and waits[-1] > 2000


# Operators -------------------------------------------------------------------------------------------------------


def answer(bench: Bench, command: str, member: str = "") -> Answer:
    [found] = only(bench.step(Asked(command, member)), Answer)  # type: ignore[arg-type]
    return found


def test_a_ready_member_can_be_promoted_while_the_leader_lives() -> None:
    """H-15, H-48: the old one can confirm nothing from the moment that the view is written."""
    member = Bench("b").holding((H1, 2, 5)).following(a_view("a", "abc"))
    assert answer(member, "promote").done
    assert [one.view.leader for one in only(member.log, Propose)] == ["b"]


@pytest.mark.parametrize("ready", ["a", "ac"])
def test_a_member_that_is_not_ready_refuses_and_names_those_that_are(ready: str) -> None:
    """H-49, H-52, Q-8, Q-10, U-7"""
    member = Bench("b").holding((H1, 2, 5)).following(a_view("a", ready))
    found = answer(member, "promote")
    assert not found.done and "catch-up" in found.text and ", ".join(ready) in found.text
    assert only(member.log, Propose) == []


def test_promoting_a_leader_is_done_already() -> None:
    """Q-10"""
    leader = an_active("ab")
    assert answer(leader, "promote") == Answer(True, "a leads already")


def test_a_demoted_leader_names_a_ready_member_and_stays_ready_itself() -> None:
    """U-9"""
    leader = an_active("abc")
    assert answer(leader, "demote", "c").done
    view = only(leader.log, Propose)[-1].view
    assert (view.leader, view.epoch, set(view.ready)) == ("c", 3, {"a", "b", "c"})


def test_whoever_is_named_by_a_demoted_leader_takes_an_epoch_of_its_own() -> None:
    member = Bench("c").holding((H1, 2, 5)).following(a_view("a", "abc"))
    effects = member.see(a_view("c", "cba", epoch=2))
    assert only(effects, Lead) == [] and [one.view.epoch for one in only(effects, Propose)] == [3]


def test_a_leader_with_nobody_to_follow_it_is_not_demoted_and_a_backup_needs_not_be() -> None:
    assert not answer(an_active("a"), "demote").done
    assert answer(Bench("b").holding((H1, 2, 5)).following(a_view("a", "ab")), "demote").done


def test_who_does_not_lead_cannot_hand_over_and_says_who_can() -> None:
    backup = Bench("b").holding((H1, 2, 5)).following(a_view("a", "abc"))
    assert answer(backup, "demote", "c") == Answer(False, "b does not lead; ask a")
    assert not answer(Bench("b"), "demote", "c").done
    assert answer(backup, "demote", "a") == Answer(True, "b does not lead"), "so it is already"


def test_only_a_member_that_is_known_is_dropped() -> None:
    leader = an_active("abc")
    leader.step(MemberHere("d", CLUSTER, Ends()), MemberHere("e", CLUSTER, Ends()), MemberGone("e"))
    proposals = proposed(leader, leader.log)

    assert answer(leader, "drop", "n9") == Answer(
        False, "n9 is no member that a knows; these are: b, c, d, e, z"
    )
    assert answer(leader, "drop", "d").done and answer(leader, "drop", "e").done
    assert proposed(leader, leader.log) == proposals


def test_a_dropped_member_stays_out_until_it_connects_anew() -> None:
    leader = an_active("abc")
    assert answer(leader, "drop", "c").done
    assert proposed(leader, leader.log)[-1:] == ["ab"]
    leader.see(replace(leader.mode.view, ready=("a", "b"), revision=21))
    assert only(leader.acked_by("c") + leader.after(1000), Propose) == []

    leader.step(PeerDown("c", dialled=False))
    assert proposed(leader, leader.greeted_by("c")) == ["abc"]


def test_a_dropped_member_that_another_fed_turns_to_the_leader_and_stays_out() -> None:
    """That it makes a link with the leader then is no sign that somebody has looked after it."""
    leader = a_leader("abc", "chain")
    leader.greeted_by("b")
    leader.acked_by("b", c=leader.store.durable)
    assert leader.state is State.ACTIVE
    assert answer(leader, "drop", "c").done
    leader.see(replace(leader.mode.view, ready=("a", "b"), revision=21))
    turned = leader.greeted_by("c")
    assert only(turned + leader.acked_by("c") + leader.after(1000), Propose) == []

    leader.step(PeerDown("c", dialled=False))
    assert proposed(leader, leader.greeted_by("c")) == ["abc"]


def test_a_dropped_member_that_died_before_it_turned_to_the_leader_comes_back() -> None:
    leader = a_leader("abc", "chain")
    leader.greeted_by("b")
    leader.acked_by("b", c=leader.store.durable)
    assert answer(leader, "drop", "c").done
    leader.see(replace(leader.mode.view, ready=("a", "b"), revision=21))
    leader.after(leader.mode._config.backup_timeout_ms)

    assert proposed(leader, leader.greeted_by("c")) == ["abc"]


def test_only_a_leader_drops_and_never_itself() -> None:
    assert not answer(Bench("b").holding((H1, 2, 5)).following(a_view("a", "ab")), "drop", "a").done
    assert not answer(an_active("ab"), "drop", "a").done


def test_nothing_follows_from_where_the_log_ends_before_a_disk_has_it() -> None:
    leader = an_active()
    leader.put(leader.mode.view.history)
    ends = leader.store.ends

    assert leader.step(Stored(ends)) == []
    leader.sync()
    leader.acked_by("b", ends)
    assert only(leader.acked_by("c", ends), Complete) == [Complete(ends)]


def test_a_cluster_is_shut_down_when_all_ready_members_hold_the_same() -> None:
    """H-54, H-55, H-56"""
    leader = an_active("ab")
    leader.write()
    effects = leader.step(Asked("shutdown"))
    assert only(effects, Drain) and not told(effects, Closing)

    effects = leader.acked_by("b")
    assert told(effects, Closing) == [("b", Closing(2, leader.store.ends))] and only(effects, Complete)
    assert only(leader.step(PeerDown("b", dialled=False)), Quit) == [
        Quit("the cluster was shut down", clean=True)
    ]


def test_a_backup_stops_when_it_has_all_that_the_leader_had() -> None:
    """H-55"""
    member = Bench("b").holding((H1, 2, 5)).following(a_view("a", "ab"))
    assert only(member.hear("a", Closing(1, Ends(2, 6))), Quit) == []
    member.put(H1)
    assert [one.clean for one in only(member.sync(), Quit)] == [True]


def test_a_closing_leader_leaves_nobody_out() -> None:
    """So that after the start any of them may lead. H-57"""
    leader = an_active("abc")
    leader.step(Asked("shutdown"))
    leader.step(PeerDown("b", dialled=False))
    assert only(leader.after(1000), Propose) == []


def test_a_view_of_another_cluster_or_an_older_epoch_is_not_followed() -> None:
    member = Bench("b").holding((H1, 2, 5), epoch=4)
    effects = member.see(a_view("a", "ab", epoch=2))
    assert only(effects, Dial) == [] and "promote" in only(effects, Became)[0].why
    foreign = View("dd" * 16, 5, "a", ("a", "b"), H1, 50)
    assert only(member.see(foreign), Quit)


# An etcd that has lost its data ------------------------------------------------------------------------------------


def test_who_is_promoted_where_the_view_is_lost_leads_though_revisions_begin_anew() -> None:
    """H-66, H-84: the member runs, and has seen higher revisions than the new view has. Those who could not be asked may
    know of epochs that nobody else has heard of: theirs must be the older ones."""
    member = Bench("b").holding((H1, 2, 5)).following(a_view("a", "ac", epoch=2, revision=99))
    member.lease()
    member.see(None)
    survey = Survey(99, unasked=(Unasked("a", "connection refused"), Unasked("c", "connection refused")))
    [propose] = only(member.step(Asked("promote", "b", True, survey)), Propose)
    effects = member.see(replace(propose.view, revision=1))
    assert only(effects, Lead) == [Lead(1002, propose.view.history, accepted=True, given_up=("a", "c"))]
    member.sync()
    assert member.state is State.ACTIVE


def test_others_follow_who_was_promoted_where_the_view_is_lost() -> None:
    member = Bench("b").holding((H1, 2, 5)).following(a_view("a", "ab", epoch=2, revision=99))
    member.see(None)
    assert only(member.see(a_view("c", epoch=3, revision=1)), Dial) == [Dial("c")]


def test_a_leader_that_is_promoted_again_after_the_view_was_lost_leads_again() -> None:
    """A view that was asked for before, and would have had another member ready, counts no more."""
    leader = an_active("a")
    assert proposed(leader, leader.greeted_by("b")) == ["ab"]
    assert only(leader.see(None), Fence)
    leader.step(PeerDown("b", dialled=False))
    [propose] = only(leader.step(Asked("promote")), Propose)
    effects = leader.see(replace(propose.view, revision=1))
    for revision in (2, 3):
        for another in only(effects, Propose):
            effects = leader.see(replace(another.view, revision=revision))
    leader.sync()
    assert leader.state is State.ACTIVE
    assert leader.mode.view.ready == ("a",)
    assert only(leader.write(), Complete) == [Complete(leader.store.durable)]


def test_a_view_with_an_older_revision_is_not_followed_while_one_is_kept() -> None:
    """An etcd that was brought back from a copy is not one that has lost its data: somebody has to look."""
    member = Bench("b").holding((H1, 2, 5)).following(a_view("a", "ab", epoch=2, revision=99))
    effects = member.see(a_view("c", "bc", epoch=3, revision=50))
    assert only(effects, Dial) == []
    [became] = only(effects, Became)
    assert "c leads there in epoch 3: start this member again if that is right" in became.why
    member.see(None)
    assert only(member.see(a_view("c", "bc", epoch=2, revision=50)), Dial) == []
