"""Every member that was ready is lost for good, and an operator goes on with one of the others."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest
from unit.cluster.bench import CLUSTER, Bench, a_view, only, told

from tidemark.cluster.mode import (
    Answer,
    Asked,
    Complete,
    Lead,
    MemberGone,
    MemberHere,
    PeerUp,
    Propose,
    Quit,
    Reset,
    Rewind,
    State,
    Survey,
    Unasked,
)
from tidemark.model.peers import Completed, Ends, Hello, Log, Offer, Takeover, View

H1, H5 = f"{1:032x}", "5" * 32
VIEW = a_view("a", "a", epoch=4, history=H1)
ALL_OF_H1 = (Takeover(H1, Ends(1, 1)),)


def here(
    name: str,
    journal: int,
    epoch: int = 4,
    cluster: str = CLUSTER,
    table: tuple[Takeover, ...] = ALL_OF_H1,
    **more: bool,
) -> MemberHere:
    return MemberHere(name, cluster, Ends(2 if journal else 0, journal), epoch, table, **more)


def away(name: str, why: str = "connection refused") -> Unasked:
    return Unasked(name, why)


def silent(name: str) -> Unasked:
    return Unasked(name, "no answer in 0.5 s", there=True)


def ask(
    bench: Bench,
    *others: MemberHere | Unasked,
    accept_loss: bool = True,
    member: str = "",
    revision: int | None = None,
) -> Answer:
    """An operator asks, after the others were: that is what they said."""
    if revision is None:
        revision = bench.mode.view.revision if bench.mode.view is not None else 0
    survey = Survey(
        revision,
        tuple(one for one in others if isinstance(one, MemberHere)),
        tuple(one for one in others if isinstance(one, Unasked)),
    )
    [found] = only(bench.step(Asked("promote", member, accept_loss, survey)), Answer)
    return found


def left_behind(journal: int = 5, epoch: int = 4, view: View = VIEW, **settings: Any) -> Bench:
    """b holds so much, a led alone and is not there."""
    bench = Bench("b", **{"size": 3, **settings}).holding((H1, 2, journal), epoch=epoch)
    bench.lease()
    bench.see(view)
    return bench


def test_without_the_flag_it_is_refused_and_said_who_has_what_and_what_would_be_lost() -> None:
    found = ask(left_behind(), here("c", 9), accept_loss=False)
    assert not found.done
    assert "ready: a. None of those answers" in found.text
    assert "c has journal 9, catalog 2 (epoch 4); b has journal 5, catalog 2 (epoch 4)" in found.text
    assert "promote c with --accept-loss: then everything that only a had is lost" in found.text


def test_while_a_ready_member_is_there_nothing_is_advised() -> None:
    found = ask(left_behind(), here("a", 9), accept_loss=False)
    assert found == Answer(False, "b is joining and may lack what was confirmed; ready: a")


def test_the_one_that_has_most_leads_alone_in_a_new_epoch_that_knows_of_the_loss() -> None:
    member = left_behind()
    found = ask(member, here("c", 3))
    assert found.done and "Given up: a; what only a had is lost" in found.text
    [propose] = only(member.log, Propose)
    view = propose.view
    assert (view.epoch, view.leader, view.ready, view.accepted, view.revision) == (5, "b", ("b",), 5, 40)

    effects = member.see(replace(view, revision=41))
    assert only(effects, Lead) == [Lead(5, view.history, accepted=True, given_up=("a",))]
    member.sync()
    assert member.state is State.ACTIVE


def test_a_ready_member_that_answers_with_its_store_is_not_given_up() -> None:
    member = left_behind()
    found = ask(member, here("a", 9), member="b")
    assert not found.done and "a is there with all that was confirmed" in found.text
    assert only(member.log, Propose) == []


def test_a_ready_member_that_has_a_lease_and_does_not_answer_is_not_given_up() -> None:
    member = left_behind()
    member.step(here("a", 0, epoch=0, cluster=""))  # what it said when it joined, long ago
    found = ask(member, member="b")
    assert not found.done and "its lease is good" in found.text
    member.step(MemberGone("a"))
    assert ask(member, member="b").done


def test_a_ready_member_that_is_back_without_its_store_is_given_up() -> None:
    member, empty = left_behind(), here("a", 0, epoch=0, cluster="")
    member.step(empty)
    assert ask(member, empty, here("c", 3)).done


@pytest.mark.parametrize("journal", [5, 9])
def test_a_ready_member_that_died_before_it_wrote_that_it_was_whole_has_most(journal: int) -> None:
    """A store is filled only while no view calls it ready."""
    view = a_view("a", "ac", epoch=4, history=H1)
    found = ask(left_behind(5, view=view), here("c", journal, epoch=0), away("a"))
    assert not found.done
    assert f"c has journal {journal}, catalog 2 (ready); b has journal 5" in found.text
    assert "Promote c with --accept-loss" in found.text

    itself = left_behind(5, epoch=0, view=a_view("a", "ab", epoch=4, history=H1))
    found = ask(itself, here("c", 5), away("a"))
    assert (
        found.done
        and "Given up: a; b was filled, and the view calls it ready: nothing is missing if" in found.text
    )


@pytest.mark.parametrize(
    ("other", "why"),
    [(silent("a"), "no answer in 0.5 s"), (here("a", 9, failed=True), "its store has failed")],
    ids=["silent", "failed"],
)
def test_a_ready_member_whose_process_is_there_is_not_given_up(other: MemberHere | Unasked, why: str) -> None:
    """It reads its store, stands still, or its disk has gone bad: what it holds may be all there."""
    member = left_behind()
    found = ask(member, other, here("c", 3), member="b")
    assert not found.done and f"a is ready and its process is there ({why}" in found.text
    assert "stop it first" in found.text and only(member.log, Propose) == []
    assert "accept-loss" not in ask(member, other, accept_loss=False).text
    assert ask(member, away("a"), here("c", 3)).done


def test_a_member_whose_store_has_failed_is_not_chosen() -> None:
    member = left_behind()
    found = ask(member, here("c", 9, failed=True), away("a"))
    assert not found.done and "but c (its store has failed" in found.text
    assert ask(member, here("c", 9, failed=True), member="b").done


@pytest.mark.parametrize(
    "further",
    [here("c", 6), here("c", 4, epoch=5, table=(Takeover(H5, Ends(2, 4)), *ALL_OF_H1))],
    ids=["a longer journal", "a newer branch"],
)
def test_when_another_is_further_it_must_be_named(further: MemberHere) -> None:
    member = left_behind()
    found = ask(member, further)
    assert (
        not found.done and "Promote c with --accept-loss" in found.text and "promote b --accept" in found.text
    )
    assert ask(member, further, member="b").done


@pytest.mark.parametrize(
    "worse",
    [
        here("c", 9, epoch=3, table=(Takeover("3" * 32, Ends(2, 4)), *ALL_OF_H1)),
        here("c", 9, epoch=0),
        here("c", 9, cluster="dd" * 16),
        here("c", 5),
    ],
    ids=["an older branch", "half filled", "another cluster", "the same"],
)
def test_an_older_branch_a_half_filled_store_and_another_cluster_are_not_further(worse: MemberHere) -> None:
    assert ask(left_behind(), worse, here("d", 1)).done


def test_a_member_that_has_only_begun_to_catch_up_with_a_newer_leader_is_not_further() -> None:
    """It is in line in the newest epoch, and the other in an older one holds all that it holds, and more."""
    behind = Bench("b", size=3).holding((H1, 2, 5), epoch=4)
    behind.following(a_view("a", "a", epoch=5, history=H5))
    assert behind.store.epoch == 5

    found = ask(behind, here("c", 80), away("a"))
    assert not found.done
    assert "c has journal 80, catalog 2 (epoch 4); b has journal 5, catalog 2 (epoch 5)" in found.text
    ahead = left_behind(80, view=a_view("a", "a", epoch=5, history=H5))
    assert ask(ahead, here("b", 5, epoch=5), here("c", 3), away("a")).done


@pytest.mark.parametrize("size", [1, 3])
def test_who_could_not_be_asked_is_named_and_must_not_have_been_needed(size: int) -> None:
    member = left_behind(size=size)
    found = ask(member, away("a"), away("c"))
    assert not found.done
    assert (
        "has most of what is here, but c (connection refused) could not be asked and may have more"
        in found.text
    )
    assert ask(member, away("a"), silent("c"), member="b").done


def test_members_that_are_not_even_known_are_missed_if_the_size_tells_of_them() -> None:
    found = ask(left_behind(), away("a"))
    assert not found.done and "but 1 of 3 members are not known here" in found.text


def test_what_was_said_under_another_view_does_not_count() -> None:
    """Somebody may have become ready meanwhile."""
    member = left_behind()
    found = ask(member, here("c", 3), member="b", revision=39)
    assert not found.done and "the view changed while the others were asked" in found.text
    [found] = only(member.step(Asked("promote", "b", True)), Answer)
    assert not found.done, "nobody was asked"
    assert only(member.log, Propose) == []


def test_a_member_whose_own_store_is_lost_does_not_speak_of_itself_as_another() -> None:
    alone = left_behind(5, epoch=0, view=a_view("b", "b", epoch=4, history="4" * 32))
    alone.store.wipe()
    found = ask(alone, here("c", 0, 0, ""), here("d", 0, 0, ""))
    assert found.done
    assert "Nobody else was ready; what the store that b had before held is lost. All go on" in found.text


def test_it_is_promoted_at_its_own_address_only() -> None:
    found = ask(left_behind(), here("c", 9), member="c")
    assert found == Answer(False, "this is b: promote c at its own address")


def test_a_ready_member_needs_no_loss() -> None:
    member = Bench("b").holding((H1, 2, 5)).following(a_view("a", "ab"))
    assert ask(member).text == "b takes over from a"
    assert only(member.log, Propose)[0].view.accepted == 0


def test_without_etcd_the_epoch_is_beyond_any_that_a_lost_member_may_have_led_in_alone() -> None:
    member = left_behind(provider="external")
    member.step(here("a", 9))  # as others remember it: nobody has a lease
    assert ask(member, here("c", 3)).done
    assert only(member.log, Propose)[0].view.epoch >= 1004


def test_without_etcd_two_that_are_told_to_go_on_at_once_take_different_epochs() -> None:
    epochs = set()
    for name in "bc":
        member = Bench(name, provider="external").holding((H1, 2, 5), epoch=4)
        member.see(VIEW)
        assert ask(member, member=name).done
        epochs.add(only(member.log, Propose)[0].view.epoch)
    assert len(epochs) == 2


def test_a_member_that_was_catching_up_leads_and_completes_nothing_by_what_the_lost_leader_said() -> None:
    member = left_behind().following(VIEW)
    member.hear("a", Completed(4, Ends(2, 50)))
    assert member.state is State.CATCHUP
    assert "45 records at least" in ask(member, member="b").text
    member.see(replace(only(member.log, Propose)[-1].view, revision=41))
    member.sync()
    assert member.state is State.ACTIVE
    member.see(replace(only(member.log, Propose)[-1].view, revision=42))

    member.greeted_by("c")
    member.acked_by("c")
    member.see(replace(only(member.log, Propose)[-1].view, revision=43))
    before = member.store.durable
    assert member.mode.view.ready == ("b", "c")
    assert only(member.write(3), Complete) == []
    assert only(member.acked_by("c", before), Complete) == []
    assert only(member.acked_by("c"), Complete) == [Complete(member.store.durable)]


def came_back(offer: Offer, **more: int) -> tuple[Bench, list[Any]]:
    """a led alone in epoch 4, has 9 of it, and sees that b leads in epoch 5."""
    member = Bench("a").holding((H1, 2, 9), epoch=4)
    for log, start in ((Log.CATALOG, "catalog"), (Log.JOURNAL, "journal")):
        member.store.logs[log].start = more.get(start, 0)
    member.see(View(CLUSTER, 5, "b", ("b",), H5, 50, accepted=5))
    effects = member.step(PeerUp("b", dialled=True))
    assert [type(message) for _, message in told(effects, Hello)] == [Hello]
    return member, member.hear("b", offer)


def test_a_lost_member_that_comes_back_is_cut_back_and_knows_that_it_was_confirmed() -> None:
    _, effects = came_back(Offer(5, "rewind", Ends(2, 5), Ends(3, 6)))
    assert only(effects, Rewind) == [Rewind(Ends(2, 5), accepted=True)]


@pytest.mark.parametrize("compacted", [{"journal": 1}, {"catalog": 3}])
def test_it_begins_anew_if_it_let_go_of_something_that_the_others_may_still_have(
    compacted: dict[str, int],
) -> None:
    """A message that it was done with by a record that is cut off would be missing in the middle of its journal."""
    member, effects = came_back(Offer(5, "rewind", Ends(2, 5), Ends(3, 6)), **compacted)
    assert only(effects, Reset) == [Reset(Ends(2, 5), accepted=True)] and only(effects, Rewind) == []
    effects = member.step(PeerUp("b", dialled=True))
    assert [message.whole for _, message in told(effects, Hello)] == [False]


def test_a_lost_leader_that_only_stood_still_steps_down_and_is_cut_back_behind_what_it_confirmed() -> None:
    leader = Bench("a").holding((H1, 2, 5), epoch=1).leading("a", epoch=4)
    leader.write(5)
    assert only(leader.log, Complete)[-1].upto == leader.store.durable
    leader.see(View(CLUSTER, 5, "b", ("b",), H5, 50, accepted=5))
    leader.step(PeerUp("b", dialled=True))

    effects = leader.hear("b", Offer(5, "rewind", Ends(2, 5), Ends(3, 6)))
    assert only(effects, Quit) == [] and only(effects, Rewind) == [Rewind(Ends(2, 5), accepted=True)]


def test_once_it_is_in_line_again_what_is_confirmed_is_never_cut_off() -> None:
    member, _ = came_back(Offer(5, "rewind", Ends(2, 5), Ends(3, 6)))
    member.step(PeerUp("b", dialled=True))
    member.hear("b", Offer(5, "resume", member.store.durable, Ends(3, 6)))
    assert member.store.epoch == 5
    member.hear("b", Completed(5, Ends(2, 5)))
    member.see(View(CLUSTER, 6, "c", ("c",), "6" * 32, 60, accepted=5))
    member.step(PeerUp("c", dialled=True))
    assert only(member.hear("c", Offer(6, "rewind", Ends(2, 4), Ends(3, 6))), Quit)


def test_whoever_leads_later_is_told_of_the_loss_too() -> None:
    view = View(CLUSTER, 5, "b", ("b", "c"), H5, 50, accepted=5)
    assert view.led_by("c", H1).accepted == 5 and view.with_ready("a").accepted == 5


def test_of_two_losses_that_were_accepted_in_one_epoch_the_other_is_known_by_its_history() -> None:
    """Without etcd: a went on alone in epoch 1004, and so did b, whose view is the one that holds."""
    member = Bench("a", provider="external").holding((H1, 2, 9), ("a" * 32, 1, 3), epoch=1004)
    member.store.logs[Log.JOURNAL].start = 3
    member.see(View(CLUSTER, 1004, "b", ("b",), "b" * 32, 1004 << 32 | 1, accepted=1004))
    member.step(PeerUp("b", dialled=True))
    effects = member.hear("b", Offer(1004, "rewind", Ends(2, 5), Ends(3, 6)))
    assert only(effects, Reset) == [Reset(Ends(2, 5), accepted=True)]


def test_what_a_member_held_that_was_still_being_filled_is_not_counted_as_given_up() -> None:
    """Long after a loss was accepted: nobody ever took its store for whole. It may have let go of messages all the same."""
    for start, expected in ((0, Rewind(Ends(2, 5))), (3, Reset(Ends(2, 5)))):
        member = Bench("d").holding((H1, 2, 9), epoch=0)
        member.store.logs[Log.JOURNAL].start = start
        member.see(View(CLUSTER, 9, "b", ("b",), "9" * 32, 90, accepted=2))
        member.step(PeerUp("b", dialled=True))
        effects = member.hear("b", Offer(9, "rewind", Ends(2, 5), Ends(3, 6)))
        assert [*only(effects, Rewind), *only(effects, Reset)] == [expected]


def test_who_dies_before_it_leads_tells_of_the_loss_when_it_does() -> None:
    """The view was written, and the process ended before it was seen."""
    for epoch, tells in ((4, True), (5, False)):
        chosen = Bench("b").holding((H1, 2, 5), (H5, 1, 1), epoch=epoch)
        chosen.lease()
        chosen.see(View(CLUSTER, 5, "b", ("b",), H5, 50, accepted=5))
        [propose] = only(chosen.log, Propose)
        effects = chosen.see(replace(propose.view, revision=51))
        assert [lead.accepted for lead in only(effects, Lead)] == [tells]


# The view itself is lost -------------------------------------------------------------------------------------------


def viewless(journal: int = 5, epoch: int = 4, **settings: Any) -> Bench:
    """b holds so much, and etcd has lost its data."""
    bench = Bench("b", **{"size": 3, **settings}).holding((H1, 2, journal), epoch=epoch)
    bench.lease()
    bench.see(None)
    return bench


def test_the_best_store_founds_the_cluster_again_and_all_others_may_hold_what_is_given_up() -> None:
    """They may have let go of messages because of records that are cut off now."""
    member = viewless()
    assert ask(member, here("c", 3), here("a", 5), accept_loss=False).done
    [propose] = only(member.log, Propose)
    assert (propose.view.epoch, propose.view.accepted, propose.view.cluster) == (5, 5, CLUSTER)
    [lead] = only(member.see(replace(propose.view, revision=1)), Lead)
    assert lead.accepted and lead.given_up == ()


def test_the_very_first_view_knows_of_no_loss() -> None:
    member = Bench("b", size=3)
    member.lease()
    member.see(None)
    assert ask(member, away("a"), accept_loss=False).done
    assert only(member.log, Propose)[0].view.accepted == 0


@pytest.mark.parametrize(
    ("others", "why"),
    [
        ((here("c", 9), here("a", 3)), "is not the one that has most: c has journal 9"),
        ((here("a", 3), away("c")), "c (connection refused) could not be asked"),
        ((here("a", 3),), "1 of 3 members are not known here"),
    ],
    ids=["another has more", "one is away", "one is not known"],
)
def test_a_store_that_may_not_be_the_best_founds_nothing_unless_it_is_named(
    others: tuple[MemberHere | Unasked, ...], why: str
) -> None:
    member = viewless()
    for accept_loss, name in ((False, ""), (True, ""), (False, "b")):
        found = ask(member, *others, accept_loss=accept_loss, member=name)
        assert not found.done and why in found.text
    assert only(member.log, Propose) == []
    assert ask(member, *others, member="b").done


def test_nobody_founds_the_cluster_again_without_asking_the_others() -> None:
    member = viewless()
    [found] = only(member.step(Asked("promote")), Answer)
    assert not found.done and "the others were not asked" in found.text


def test_a_store_that_never_was_the_clusters_founds_none_where_another_was() -> None:
    member = Bench("b", size=3)
    member.lease()
    member.see(None)
    found = ask(member, here("c", 3), member="b")
    assert found == Answer(False, "this store never belonged to the cluster; promote one of c")


def test_where_the_view_is_lost_a_ready_member_that_is_there_leads_rather_than_one_that_was_not() -> None:
    member = left_behind()
    member.see(None)
    found = ask(member, silent("a"), here("c", 3), member="b")
    assert not found.done and "need not lead: a is ready and its process is there" in found.text


def test_a_leader_that_founds_the_cluster_again_gives_nothing_up() -> None:
    leader = Bench("a").holding((H1, 2, 5), epoch=1).leading("a", epoch=4)
    leader.see(None)
    [propose] = only(leader.step(Asked("promote")), Propose)
    assert (propose.view.epoch, propose.view.accepted) == (5, 0)
