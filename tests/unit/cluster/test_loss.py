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
)
from tidemark.model.peers import Completed, Ends, Hello, Log, Offer, View

H1, H5 = f"{1:032x}", "5" * 32
VIEW = a_view("a", "a", epoch=4, history=H1)


def here(name: str, journal: int, epoch: int = 4, cluster: str = CLUSTER) -> MemberHere:
    return MemberHere(name, cluster, Ends(2, journal), epoch)


def ask(bench: Bench, *answers: MemberHere, accept_loss: bool = True, member: str = "") -> Answer:
    [found] = only(bench.step(Asked("promote", member, accept_loss, answers)), Answer)
    return found


def left_behind(journal: int = 5, epoch: int = 4, **settings: Any) -> Bench:
    """b holds so much, a led alone and is not there."""
    bench = Bench("b", size=3, **settings).holding((H1, 2, journal), epoch=epoch)
    bench.lease()
    bench.see(VIEW)
    return bench


def test_without_the_flag_it_is_refused_and_said_who_has_what_and_what_would_be_lost() -> None:
    found = ask(left_behind(), here("c", 9), accept_loss=False)
    assert not found.done
    assert "ready: a. None of those is there" in found.text
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
    assert only(effects, Lead) == [Lead(5, view.history, given_up=("a",))]
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


@pytest.mark.parametrize(
    "empty", [here("a", 0, epoch=0, cluster=""), here("a", 7, epoch=0)], ids=["empty", "half filled"]
)
def test_a_ready_member_that_is_back_without_its_store_is_given_up(empty: MemberHere) -> None:
    member = left_behind()
    member.step(empty)
    assert ask(member, empty, here("c", 3)).done


@pytest.mark.parametrize(
    "further", [here("c", 6), here("c", 2, epoch=5)], ids=["a longer journal", "a newer epoch"]
)
def test_when_another_is_further_it_must_be_named(further: MemberHere) -> None:
    member = left_behind()
    found = ask(member, further)
    assert (
        not found.done and "Promote c with --accept-loss" in found.text and "promote b --accept" in found.text
    )
    assert ask(member, further, member="b").done


@pytest.mark.parametrize(
    "worse", [here("c", 9, epoch=3), here("c", 9, epoch=0), here("c", 9, cluster="dd" * 16), here("c", 5)]
)
def test_an_older_epoch_a_half_filled_store_and_another_cluster_are_not_further(worse: MemberHere) -> None:
    assert ask(left_behind(), worse, here("d", 1)).done


def test_when_some_could_not_be_asked_it_must_be_named() -> None:
    member = left_behind()
    found = ask(member)
    assert not found.done and "1 of 3 members could not be asked" in found.text
    assert ask(member, member="b").done


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
    assert only(member.log, Propose)[0].view.epoch == 1004


def test_a_member_that_was_catching_up_leads_and_completes_nothing_by_what_the_lost_leader_said() -> None:
    member = left_behind().following(VIEW)
    member.hear("a", Completed(4, Ends(2, 50)))
    assert member.state is State.CATCHUP
    assert "45 records at least" in ask(member, member="b").text
    member.see(replace(only(member.log, Propose)[-1].view, revision=41))
    member.sync()
    assert member.state is State.ACTIVE

    member.greeted_by("c")
    member.acked_by("c")
    member.see(replace(only(member.log, Propose)[-1].view, revision=42))
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
