"""A member that follows: hello, offers, frames, acknowledgements, readiness."""

from __future__ import annotations

from dataclasses import replace

import pytest
from unit.cluster.bench import CLUSTER, Bench, a_view, only, told

from tidemark.cluster.mode import (
    Answer,
    Asked,
    Became,
    Belong,
    Complete,
    Dial,
    Follow,
    Given,
    Keep,
    Lease,
    MemberGone,
    MemberHere,
    PeerDown,
    PeerUp,
    ProposalFailed,
    Propose,
    Quit,
    Reset,
    Rewind,
    Skip,
    State,
    Stored,
)
from tidemark.model.peers import Acked, Completed, Ends, Hello, Log, Offer, Outdated

H1 = f"{1:032x}"


def a_backup(**how: object) -> Bench:
    """A ready backup of a, with 2 catalog records and 5 of the journal."""
    return Bench("b", **how).holding((H1, 2, 5)).following(a_view("a", "ab"))  # type: ignore[arg-type]


def given(
    first: int, last: int, previous: int, epoch: int = 1, log: Log = Log.JOURNAL, peer: str = "a"
) -> Given:
    return Given(peer, epoch, log, previous, first, last)


def test_a_member_dials_its_leader_and_says_what_it_holds() -> None:
    """H-38: a backup finds the leader like anybody else."""
    member = Bench("b").holding((H1, 2, 5))

    effects = member.see(a_view("a", "ab"))
    assert only(effects, Dial) == [Dial("a")] and only(effects, Follow) == [Follow("a")]

    [(peer, hello)] = told(member.step(PeerUp("a", dialled=True)), Hello)
    assert peer == "a" and (hello.epoch, hello.cluster, hello.whole) == (1, CLUSTER, True)
    assert hello.durable == Ends(2, 5) and [row.history for row in hello.table] == [H1]


def test_a_link_that_swallows_everything_leaves_the_member_joining() -> None:
    """Q-3: not the connection, but the first answer makes it catch up."""
    member = Bench("b").holding((H1, 2, 5))
    member.see(a_view("a", "ab"))
    member.step(PeerUp("a", dialled=True))
    member.after(5000)
    assert member.state is State.JOINING


def test_a_hello_without_an_answer_is_said_again() -> None:
    member = Bench("b").holding((H1, 2, 5))
    member.see(a_view("a", "ab"))
    member.step(PeerUp("a", dialled=True))
    assert len(told(member.after(1100), Hello)) == 2


def test_nothing_is_said_before_all_that_is_here_is_on_the_disk() -> None:
    """What is not synced may be of a line that was cut off, and would be taken for what the source sends next."""
    member = Bench("b").holding((H1, 2, 5))
    member.put(H1)
    member.see(a_view("a", "ab"))
    assert told(member.step(PeerUp("a", dialled=True), Stored(member.store.ends)), Hello) == []

    [(_, hello)] = told(member.sync(), Hello)
    assert hello.durable == Ends(2, 6)


def test_a_member_that_the_view_calls_ready_is_ready_when_its_source_resumes() -> None:
    """H-40..H-42, H-47, H-51: joining, catch-up, ready."""
    member = a_backup()
    assert [one.state for one in only(member.log, Became)] == [State.CATCHUP, State.READY]
    assert told(member.log, Acked) == [("a", Acked(1, Ends(2, 5)))]


def test_a_member_that_is_not_in_the_view_catches_up_until_the_view_has_it() -> None:
    """H-41, H-42"""
    member = Bench("b").holding((H1, 2, 5)).following(a_view("a", "a"))
    assert member.state is State.CATCHUP
    member.see(a_view("a", "ab", revision=11))
    assert member.state is State.READY


def test_a_ready_member_that_was_left_out_catches_up_again() -> None:
    """H-33, Q-15"""
    member = a_backup()
    member.see(a_view("a", "a", revision=11))
    assert member.state is State.CATCHUP


def test_frames_that_follow_one_another_are_kept_also_before_the_log_says_so() -> None:
    member = a_backup()
    assert only(member.step(given(6, 7, 5)), Keep) and only(member.step(given(10, 10, 7)), Keep)


def test_a_frame_that_is_here_already_is_skipped_without_a_word() -> None:
    member = a_backup()
    effects = member.step(given(4, 5, 3))
    assert only(effects, Skip) and not only(effects, Keep) and not told(effects, Hello)


def test_a_gap_is_not_kept_and_the_source_is_asked_again() -> None:
    member = a_backup()
    effects = member.step(given(8, 9, 7))
    assert only(effects, Skip)
    assert told(effects, Hello) == [("a", Hello("b", 1, CLUSTER, Ends(2, 5), member.store.table))]
    assert only(member.step(given(6, 7, 5)), Skip), "nothing is kept before the answer"


def test_a_frame_of_an_older_epoch_is_refused_and_its_sender_told() -> None:
    """Fencing: an old leader gets no acknowledgement."""
    member = Bench("b").holding((H1, 2, 5)).following(a_view("c", "cb", epoch=4))
    effects = member.step(given(6, 6, 5, epoch=3, peer="a"))
    assert only(effects, Skip) and told(effects, Outdated) == [("a", Outdated(4))]


def test_what_is_on_the_disk_is_acknowledged_once_and_now_and_then_again() -> None:
    member = a_backup()
    member.step(given(6, 6, 5))
    member.put(H1)
    assert told(member.step(Stored(member.store.ends)), Acked) == []
    assert told(member.sync(), Acked) == [("a", Acked(1, Ends(2, 6)))]
    assert len(told(member.after(1000), Acked)) == 1, "the last one may have been lost"


def test_a_follower_completes_what_the_leader_says_and_its_own_disk_has() -> None:
    member = a_backup()
    assert only(member.hear("a", Completed(1, Ends(2, 9))), Complete) == [Complete(Ends(2, 5))]
    member.put(H1)
    effects = member.sync()
    assert only(effects, Complete) == [Complete(Ends(2, 6))]


def test_completed_may_come_twice_or_late() -> None:
    member = a_backup()
    member.hear("a", Completed(1, Ends(2, 4)))
    assert only(member.hear("a", Completed(1, Ends(2, 3))), Complete) == []


def test_what_others_than_the_source_say_is_not_heard() -> None:
    member = a_backup()
    assert member.hear("c", Completed(1, Ends(2, 5))) == []
    assert only(member.step(given(6, 6, 5, peer="c")), Keep) == []


def test_a_rewind_cuts_the_logs_and_asks_again_on_the_next_link() -> None:
    """LM1, H-70"""
    member = Bench("b").holding((H1, 2, 8))
    member.see(a_view("a", "ab", epoch=2))
    member.step(PeerUp("a", dialled=True))

    effects = member.hear("a", Offer(2, "rewind", Ends(2, 6)))
    assert only(effects, Rewind) == [Rewind(Ends(2, 6))]

    member.step(PeerDown("a", dialled=True))
    [(_, hello)] = told(member.step(PeerUp("a", dialled=True)), Hello)
    assert hello.durable == Ends(2, 6)


def test_nobody_is_rewound_behind_what_was_confirmed() -> None:
    """The last line of defence: better to stop than to lose."""
    member = a_backup()
    member.hear("a", Completed(1, Ends(2, 5)))
    member.see(a_view("c", "cb", epoch=2))
    member.step(PeerUp("c", dialled=True))
    effects = member.hear("c", Offer(2, "rewind", Ends(2, 4)))
    assert only(effects, Rewind) == [] and "confirmed" in only(effects, Quit)[0].reason


def test_a_reset_empties_the_store_of_a_member_that_is_not_ready() -> None:
    member = Bench("b").holding((H1, 2, 5))
    member.see(a_view("a", "a", epoch=2))
    member.step(PeerUp("a", dialled=True))
    assert only(member.hear("a", Offer(2, "reset")), Reset)

    member.step(PeerDown("a", dialled=True))
    [(_, hello)] = told(member.step(PeerUp("a", dialled=True)), Hello)
    assert (hello.durable, hello.cluster, hello.whole) == (Ends(), CLUSTER, False)


def test_a_member_that_the_view_calls_ready_does_not_empty_its_store() -> None:
    """It could be chosen the next moment. The leader leaves it out of the view first."""
    member = Bench("b").holding((H1, 2, 5))
    member.see(a_view("a", "ab", epoch=2))
    member.step(PeerUp("a", dialled=True))
    assert only(member.hear("a", Offer(2, "reset")), Reset) == []


@pytest.mark.parametrize("ready", ["ab", "a"])
def test_a_store_is_emptied_for_a_refill_when_the_leader_counts_on_it_no_more(ready: str) -> None:
    """U-34: whatever view is known here, a newer one may be on its way that calls this member ready. So the leader is asked, by
    a hello of an empty store on a link of its own: what it has offered before was for a full one."""
    member = Bench("b").holding((H1, 2, 5)).following(a_view("a", ready))

    effects = member.step(Asked("refill"))
    assert only(effects, Answer)[0].done and only(effects, Dial) == [Dial(None), Dial("a")]
    member.hear("a", Offer(1, "resume", Ends(2, 5), Ends(2, 5)))
    [(_, hello)] = told(member.step(PeerUp("a", dialled=True)), Hello)
    assert (hello.durable, hello.table, hello.whole) == (Ends(), (), False)

    waiting = member.see(a_view("a", "a", revision=70)) + member.after(3000)
    assert only(waiting, Reset) == [] and member.store.ends == Ends(2, 5)

    assert only(member.hear("a", Offer(1, "resume", Ends(), Ends(2, 5))), Reset)
    assert member.store.ends == Ends()


def a_member_that_is_refilled(**settings: object) -> Bench:
    """It has emptied its store because the leader, by the view of revision 70, counts on it no more. It knows an older one."""
    member = Bench("b", **settings).holding((H1, 2, 5)).following(a_view("a", "ab"))  # type: ignore[arg-type]
    member.step(Asked("refill"), PeerUp("a", dialled=True))
    assert only(member.hear("a", Offer(1, "resume", Ends(), Ends(2, 5), revision=70)), Reset)
    member.step(PeerDown("a", dialled=True), PeerUp("a", dialled=True))
    member.hear("a", Offer(1, "resume", Ends(), Ends(2, 5), revision=70))
    return member


@pytest.mark.parametrize("revision", [60, 70])
def test_an_emptied_store_is_not_counted_on_by_a_view_from_before(revision: int) -> None:
    """U-34: such a view may arrive late, and calls the member ready because of what it had."""
    member = a_member_that_is_refilled()
    assert member.state is State.CATCHUP and member.store.epoch == 0

    effects = member.see(a_view("a", "ab", revision=revision))
    assert only(effects, Belong) == [] and member.state is State.CATCHUP
    assert only(member.step(PeerDown("a", dialled=True, gone=True)), Propose) == [], "it does not lead"
    assert not only(member.step(Asked("promote")), Answer)[0].done


def test_an_emptied_store_is_whole_by_a_view_that_its_leader_made_when_it_was_full() -> None:
    member = a_member_that_is_refilled()
    effects = member.see(a_view("a", "ab", revision=71))
    assert only(effects, Belong) == [Belong(CLUSTER, 1)] and member.state is State.READY


def test_a_lost_store_is_not_counted_on_by_a_view_from_before() -> None:
    member = Bench("b")
    member.see(a_view("a", "ab"))
    member.step(PeerUp("a", dialled=True))
    member.hear("a", Offer(1, "resume", Ends(), Ends(2, 5), revision=70))
    assert member.state is State.CATCHUP and member.store.epoch == 0


def test_a_leader_says_by_which_view_it_fills_a_store() -> None:
    leader = Bench("a").holding((H1, 2, 5)).leading("a")
    [(_, offer)] = told(leader.greeted_by("b", Ends(), whole=False), Offer)
    assert (offer.verdict, offer.revision) == ("resume", 20)
    [(_, offer)] = told(leader.greeted_by("c"), Offer)
    assert (offer.verdict, offer.revision) == ("resume", 0), (
        "members that do not know of revisions understand it"
    )


def test_a_member_that_waits_for_the_answer_to_a_question_of_its_own_is_not_refilled() -> None:
    """The view that it asked for may be kept, and need what it has."""
    member = Bench("b").holding((H1, 2, 5)).following(a_view("a", "ab"))
    assert only(member.step(Asked("promote")), Propose)
    [answer] = only(member.step(Asked("refill")), Answer)
    assert not answer.done and "try again" in answer.text


def test_a_member_that_never_heard_what_became_of_its_question_asks_again_before_it_is_refilled() -> None:
    """Else it would answer "try again" for ever: in a healthy cluster no newer view comes by itself."""
    member = Bench("b").holding((H1, 2, 5)).following(a_view("a", "ab"))
    [promoted] = only(member.step(Asked("promote")), Propose)
    member.step(ProposalFailed(promoted.view))
    member.after(300)
    effects = member.step(Asked("refill"))
    [propose] = only(effects, Propose)
    assert propose.view == a_view("a", "ab") and not only(effects, Answer)[0].done

    member.see(replace(propose.view, revision=90))
    assert only(member.step(Asked("refill")), Answer)[0].done


def test_a_member_that_is_promoted_keeps_its_store() -> None:
    """An offer that is on its way was for an empty one."""
    member = Bench("b").holding((H1, 2, 5)).following(a_view("a", "ab"))
    member.step(Asked("refill"), PeerUp("a", dialled=True))
    effects = member.step(Asked("promote"))
    assert only(effects, Propose) and only(effects, Dial) == [Dial(None), Dial("a")]
    assert only(member.hear("a", Offer(1, "resume", Ends(), Ends(2, 5))), Reset) == []


@pytest.mark.parametrize("doubt", ["fenced", "gone", "newer"])
def test_a_leader_that_does_not_know_which_view_is_kept_fills_nobody(doubt: str) -> None:
    leader = Bench("a").holding((H1, 2, 5)).leading("a")
    match doubt:
        case "fenced":
            leader.step(Lease(leader.now - 1))
        case "gone":
            leader.see(None)
        case "newer":
            leader.hear("c", Outdated(9))
    assert told(leader.greeted_by("b", Ends(), whole=False), Offer) == []


def test_a_leader_goes_on_without_a_member_that_is_to_be_filled_before_it_answers_it() -> None:
    leader = Bench("a").holding((H1, 2, 5)).leading("ab")
    effects = leader.greeted_by("b", Ends(), whole=False)
    assert told(effects, Offer) == []
    [propose] = only(effects, Propose)
    assert propose.view.ready == ("a",)

    assert told(leader.see(replace(propose.view, revision=90)), Offer)


def test_a_member_that_does_not_lead_yet_has_no_store_emptied() -> None:
    """What it proposed in an earlier life may still be on its way, and call that member ready."""
    leader = Bench("a").holding((H1, 2, 5))
    leader.lease()
    leader.see(a_view("a", "a"))
    assert told(leader.greeted_by("b", Ends(), whole=False), Offer) == []


def test_a_leader_that_was_demoted_has_no_store_emptied_while_its_proposal_is_on_its_way() -> None:
    leader = Bench("a", provider="external").holding((H1, 2, 5))
    leader.lease()
    leader.see(a_view("a", "a"))
    [promoted] = only(leader.step(Asked("promote")), Propose)
    leader.see(replace(promoted.view, revision=1000, settled=promoted.view.epoch))
    leader.sync()
    effects = leader.greeted_by("b") + leader.acked_by("b") + leader.after(300) + leader.acked_by("b")
    assert "b" in only(effects, Propose)[-1].view.ready

    assert only(leader.step(Asked("demote")), Answer)[0].done
    assert told(leader.greeted_by("b", Ends(), whole=False), Offer) == []


@pytest.mark.parametrize(
    ("lost", "waits_ms"), [("c", 10_000), ("a", 1900), ("ac", 0)], ids=["another", "the-leader", "both"]
)
def test_a_refill_is_given_up_when_the_leader_is_lost_and_nobody_else_takes_over(
    lost: str, waits_ms: int
) -> None:
    """Others that have what it has go first. They may all wait to be refilled, too."""
    member = Bench("b").holding((H1, 2, 5)).following(a_view("a", "abc"))
    member.lease()
    member.step(MemberHere("a", CLUSTER, Ends(2, 5)), Asked("refill"))
    effects = member.step(*[MemberGone(name) for name in lost]) + member.after(waits_ms)
    assert bool(only(effects, Propose)) is (lost == "ac")

    effects = member.after(200)
    assert bool(only(effects, Propose)) is (lost == "a")


def test_a_refused_member_stops_and_says_why() -> None:
    """H-58, H-68"""
    member = Bench("b").holding((H1, 2, 5))
    member.see(a_view("a", "a", epoch=2))
    member.step(PeerUp("a", dialled=True))
    assert only(member.hear("a", Offer(2, "refuse", reason="another cluster")), Quit) == [
        Quit("another cluster")
    ]


def test_a_store_of_another_cluster_stops_before_it_says_anything() -> None:
    """H-58, Q-79"""
    member = Bench("b").holding((H1, 2, 5), cluster="ee" * 16)
    effects = member.see(a_view("a", "ab"))
    assert only(effects, Quit) and not only(effects, Dial)


def test_an_offer_nobody_asked_for_is_ignored() -> None:
    member = a_backup()
    assert only(member.hear("a", Offer(1, "rewind", Ends(1, 1))), Rewind) == []


def test_a_new_member_is_marked_as_being_filled_and_as_whole_when_it_is_ready() -> None:
    """A store that is half full must know it: the view could call its name ready from before."""
    member = Bench("b")
    member.following(a_view("a", "a"))
    assert only(member.log, Belong) == [Belong(CLUSTER, 0)]
    assert only(member.see(a_view("a", "ab", revision=11)), Belong) == [Belong(CLUSTER, 1)]
    assert member.state is State.READY


def test_a_member_whose_store_is_lost_is_not_ready_though_the_view_says_so() -> None:
    member = Bench("b")
    member.see(a_view("a", "ab"))
    [(_, hello)] = told(member.step(PeerUp("a", dialled=True)), Hello)
    assert not hello.whole
    assert only(member.step(PeerDown("a", dialled=True, gone=True)), Propose) == []


def test_outdated_from_the_source_ends_the_session_until_the_view_comes() -> None:
    member = a_backup()
    member.hear("a", Outdated(2))
    assert only(member.step(given(6, 6, 5)), Keep) == []

    effects = member.see(a_view("a", "ab", epoch=2))
    assert [hello.epoch for _, hello in told(effects, Hello)] == [2], "the same link will do"


def test_a_link_that_breaks_leaves_a_ready_member_ready() -> None:
    """It still holds all that was confirmed, until a view says otherwise."""
    member = a_backup()
    member.step(PeerDown("a", dialled=True))
    assert member.state is State.READY


@pytest.mark.parametrize("place", ["b", "c", "d"])
def test_in_a_chain_each_reads_from_the_one_before_it(place: str) -> None:
    """K-21"""
    member = Bench(place, "chain").holding((H1, 2, 5))
    assert only(member.see(a_view("a", "abcd")), Dial) == [Dial({"b": "a", "c": "b", "d": "c"}[place])]


def test_in_a_chain_several_tails_are_fed_by_the_same_member() -> None:
    """K-22"""
    dialled = {}
    for place in "bcde":
        member = Bench(place, "chain", chain_tails=2).holding((H1, 2, 5))
        [dial] = only(member.see(a_view("a", "abcde")), Dial)
        dialled[place] = dial.peer
    assert dialled == {"b": "a", "c": "b", "d": "c", "e": "c"}


def test_in_a_chain_a_new_member_copies_from_the_tail_and_is_let_in_by_the_head() -> None:
    member = Bench("d", "chain")
    assert only(member.see(a_view("a", "abc")), Dial) == [Dial("c")]
    member.step(PeerUp("c", dialled=True))
    effects = member.hear("c", Offer(1, "resume", Ends(), Ends(1, 1)))
    assert not only(effects, Dial)
    member.step(Given("c", 1, Log.CATALOG, 0, 1, 1), Given("c", 1, Log.JOURNAL, 0, 1, 1))
    member.put(H1, Log.CATALOG, 0)
    member.put(H1, Log.JOURNAL, 0)
    assert only(member.sync(), Dial) == [Dial("a")]


def test_in_a_chain_a_new_member_goes_to_the_head_if_the_tail_cannot_be_reached() -> None:
    member = Bench("d", "chain")
    member.see(a_view("a", "abc"))
    assert only(member.step(PeerDown("c", dialled=True)), Dial) == [Dial("a")]


def test_in_a_chain_neighbours_join_hands_when_one_is_left_out() -> None:
    member = Bench("c", "chain").holding((H1, 2, 5)).following(a_view("a", "abc"), "b")
    assert only(member.see(a_view("a", "ac", revision=11)), Dial) == [Dial("a")]
    assert member.state is State.READY


def test_in_a_chain_an_acknowledgement_says_how_far_those_behind_are() -> None:
    member = Bench("b", "chain").holding((H1, 2, 5)).following(a_view("a", "abcd"))
    member.greeted_by("c", Ends(2, 4))
    effects = member.acked_by("c", Ends(2, 5), d=Ends(2, 3))
    assert told(effects, Acked)[-1] == ("a", Acked(1, Ends(2, 5), (("c", Ends(2, 5)), ("d", Ends(2, 3)))))


def test_in_a_chain_what_is_complete_is_passed_on() -> None:
    member = Bench("b", "chain").holding((H1, 2, 5)).following(a_view("a", "abc"))
    member.greeted_by("c", Ends(2, 5))
    assert told(member.hear("a", Completed(1, Ends(2, 4))), Completed) == [("c", Completed(1, Ends(2, 4)))]


def test_in_a_chain_a_member_that_lacks_this_epoch_itself_answers_nobody_yet() -> None:
    """It does not know where the older histories end on its leader's line."""
    member = Bench("b", "chain").holding((H1, 2, 5)).following(a_view("a", "abc", epoch=2))
    assert told(member.greeted_by("c", Ends(2, 7)), Offer) == []

    for log in Log:
        member.put(f"{2:032x}", log, 0)
    assert [offer.verdict for _, offer in told(member.sync(), Offer)] == ["rewind"]


def test_in_a_chain_a_reader_that_is_ahead_on_the_same_line_waits_and_is_not_cut() -> None:
    """Its acknowledgements are counted already: in one epoch a log only grows."""
    member = Bench("b", "chain").holding((H1, 2, 5)).following(a_view("a", "abc"))
    hello = Hello("c", 1, CLUSTER, Ends(2, 7), member.store.table)
    member.step(PeerUp("c", dialled=False))
    assert told(member.hear("c", hello), Offer) == []

    member.put(H1)
    member.put(H1)
    assert [offer.verdict for _, offer in told(member.sync(), Offer)] == ["resume"]
