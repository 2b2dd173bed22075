"""A member whose leader an operator or a resource manager chooses: nobody takes the lead by itself."""

from __future__ import annotations

from unit.cluster.bench import Bench, a_view, only

from tidemark.cluster.mode import (
    Answer,
    Asked,
    Follow,
    Lead,
    MemberGone,
    MemberHere,
    PeerDown,
    PeerSaid,
    Propose,
    State,
)
from tidemark.model.peers import Ends, Outdated, View

ONE = f"{1:032x}"


def external(me: str = "a") -> Bench:
    bench = Bench(me, provider="external")
    bench.lease()
    return bench


def ask(bench: Bench, command: str, member: str = "") -> Answer:
    [answer] = only(bench.step(Asked(command, member)), Answer)  # type: ignore[arg-type]
    return answer


def leading(bench: Bench, view: View) -> Bench:
    """Promoted, and nobody else must answer."""
    bench.see(view)
    [propose] = only(bench.step(Asked("promote")), Propose)
    bench.see(View(view.cluster, propose.view.epoch, bench.me, (bench.me,), propose.view.history, 1000))
    bench.sync()
    assert bench.state is State.ACTIVE
    return bench


def test_a_ready_member_waits_to_be_promoted_whatever_becomes_of_the_leader() -> None:
    bench = external("b").holding((ONE, 1, 3)).following(a_view("a", "ab"))
    assert bench.state is State.READY
    bench.step(PeerDown("a", dialled=True, gone=True), MemberGone("a"))

    assert not only(bench.after(20_000), Propose)
    assert ask(bench, "promote") == Answer(True, "b takes over from a")
    [propose] = only(bench.log, Propose)
    assert (propose.view.epoch, propose.view.leader) == (2, "b")


def test_the_first_view_is_made_by_a_promotion_and_by_nothing_else() -> None:
    bench = external()
    bench.see(None)
    bench.step(MemberHere("a", "", Ends()), MemberHere("b", "", Ends()))
    assert not only(bench.after(20_000), Propose)
    assert ask(bench, "promote").done
    assert [one.view.epoch for one in only(bench.log, Propose)] == [1]


def test_a_leader_that_is_demoted_leads_no_more_and_may_be_promoted_again() -> None:
    bench = leading(external().holding((ONE, 1, 3)), a_view("a", "a"))
    seen = len(bench.log)

    assert ask(bench, "demote").done
    assert bench.state is State.JOINING
    assert only(bench.log[seen:], Follow) == [Follow(None)]
    assert not only(bench.after(20_000), Propose)
    # The view that it led by does not make it a leader again.
    bench.see(bench.mode.view)
    assert bench.state is State.JOINING
    assert ask(bench, "promote").done
    assert only(bench.log, Propose)[-1].view.epoch == bench.mode.view.epoch + 1


def test_another_cannot_be_named_when_a_leader_is_demoted() -> None:
    bench = leading(external().holding((ONE, 1, 3)), a_view("a", "a"))
    assert ask(bench, "demote", "b") == Answer(False, "demote takes no other member here; promote b instead")
    assert bench.state is State.ACTIVE


def test_a_leader_that_hears_of_a_newer_epoch_is_fenced_and_refuses_promotion_until_it_knows_more() -> None:
    bench = leading(external().holding((ONE, 1, 3)), a_view("a", "a"))
    bench.step(PeerSaid("b", Outdated(bench.mode.view.epoch + 1)))

    assert bench.state is State.FENCED
    assert ask(bench, "promote") == Answer(False, "a leads and is fenced: there is a newer epoch")
    bench.see(a_view("b", "b", epoch=bench.mode.view.epoch + 1, revision=2000))
    assert bench.state is State.JOINING


def test_one_of_two_that_were_promoted_at_once_follows_the_other() -> None:
    """The same epoch with another history: impossible with etcd."""
    bench = leading(external().holding((ONE, 1, 3)), a_view("a", "ab"))
    epoch = bench.mode.view.epoch
    bench.see(a_view("b", "b", epoch=epoch, history="bb" * 16, revision=1001))

    assert bench.state is State.JOINING
    assert only(bench.log, Follow)[-1] == Follow("b")
    assert len(only(bench.log, Lead)) == 1
