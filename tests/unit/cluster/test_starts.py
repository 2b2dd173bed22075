"""How members start: what they tell one another first, who leads then, and what those say that have to wait."""

from __future__ import annotations

from copy import deepcopy
from dataclasses import replace
from itertools import permutations

import pytest
from unit.cluster.bench import CLUSTER, Bench, a_view, only, told
from unit.cluster.world import World

from tidemark.cluster.mode import (
    Answer,
    Asked,
    Became,
    Belong,
    Dial,
    MemberGone,
    MemberHere,
    PeerUp,
    Propose,
    Quit,
    State,
    Survey,
    Unasked,
)
from tidemark.model.peers import Ends, Hello, Log, Offer

H1 = f"{1:032x}"
H2 = f"{2:032x}"
OTHER = "ee" * 16

STORES = {
    "empty": lambda bench: bench,
    "alone": lambda bench: bench.holding((H1, 1, 3), cluster="", epoch=0),
    "ours": lambda bench: bench.holding((H1, 2, 5), epoch=4),
    "another cluster's": lambda bench: bench.holding((H1, 2, 5), cluster=OTHER, epoch=4),
    "half filled": lambda bench: bench.holding((H1, 2, 5), epoch=0),
}
SAID = {
    "empty": MemberHere("a", "", Ends()),
    "alone, with less": MemberHere("a", "", Ends(1, 2)),
    "alone, with more": MemberHere("a", "", Ends(1, 9)),
    "ours": MemberHere("a", CLUSTER, Ends(2, 5), 3),
    "ours, newer": MemberHere("a", CLUSTER, Ends(2, 5), 5),
}


def a_member(store: str, **settings: object) -> Bench:
    bench: Bench = STORES[store](Bench("b", size=2, **settings))  # type: ignore[no-untyped-call, arg-type]
    bench.lease()
    return bench


def reason(bench: Bench) -> str:
    return only(bench.log, Became)[-1].why


@pytest.mark.parametrize(
    ("store", "said", "outcome"),
    [
        ("empty", "empty", "a founds the cluster"),
        ("empty", "alone, with less", "a founds the cluster"),
        ("alone", "empty", "founds"),
        ("alone", "alone, with less", "founds"),
        ("alone", "alone, with more", "a founds the cluster"),
        ("empty", "ours", "promote a"),
        ("alone", "ours", "promote a"),
        ("ours", "empty", "promote b"),
        ("ours", "alone, with more", "promote b"),
        ("ours", "ours", "promote b"),
        ("ours", "ours, newer", "promote a"),
        ("half filled", "ours", "promote a"),
    ],
)
def test_without_a_view_what_the_stores_say_decides_who_founds_the_cluster(
    store: str, said: str, outcome: str
) -> None:
    """Q-77, Q-80: stores that never belonged to a cluster found one; of those that did nobody is chosen without a view."""
    member = a_member(store)
    member.see(None)
    assert only(member.log, Propose) == []
    assert reason(member).startswith("1 of 2 members are here" if store in ("empty", "alone") else "there is")

    member.step(SAID[said])

    if outcome == "founds":
        assert [one.view.ready for one in only(member.log, Propose)] == [("b",)]
    else:
        assert only(member.after(10_000), Propose) == []
        assert outcome in reason(member)
        assert member.state is State.JOINING


@pytest.mark.parametrize(
    ("store", "ready", "says", "answered"),
    [
        ("empty", "a", ("", Ends(), False), "resume"),
        ("alone", "a", ("", Ends(1, 3), False), "refuse"),
        ("ours", "ab", (CLUSTER, Ends(2, 5), True), "resume"),
        ("ours", "a", (CLUSTER, Ends(2, 5), True), "resume"),
        ("half filled", "a", (CLUSTER, Ends(2, 5), False), "resume"),
        ("another cluster's", "a", None, ""),
    ],
)
def test_with_a_view_a_member_says_what_its_store_is_and_is_taken_or_refused(
    store: str, ready: str, says: tuple[str, Ends, bool] | None, answered: str
) -> None:
    """Q-77: none, empty, clean or dirty, this cluster's or another's: each start has one outcome."""
    leader = Bench("a").holding((H2 if store == "alone" else H1, 2, 6), epoch=4).leading("a", epoch=5)
    view = leader.mode.view
    member = a_member(store)
    effects = member.see(a_view("a", ready, view.epoch, view.history))
    if says is None:
        assert OTHER in only(effects, Quit)[0].reason and not only(effects, Dial)
        return

    assert only(effects, Dial) == [Dial("a")]
    [(_, hello)] = told(member.step(PeerUp("a", dialled=True)), Hello)
    assert (hello.cluster, hello.durable, hello.whole) == says
    leader.step(PeerUp("b", dialled=False))
    [(_, offer)] = told(leader.hear("b", hello), Offer)
    assert offer.verdict == answered
    effects = member.hear("a", offer)
    if answered == "refuse":
        assert "empty data directory" in only(effects, Quit)[0].reason
    else:
        assert member.state in (State.CATCHUP, State.READY)


@pytest.mark.parametrize("provider", ["etcd", "external"])
def test_a_member_that_has_to_wait_says_for_whom_and_in_which_epoch(provider: str) -> None:
    """U-16, U-8: after a crash of all, each that may lack something names the one that does not."""
    member = Bench("b", provider=provider).holding((H1, 2, 5), epoch=3)
    member.lease()
    member.see(a_view("c", "ca", epoch=7))
    member.after(10_000)
    assert member.state is State.JOINING and only(member.log, Propose) == []
    assert reason(member) == (
        "it waits for c, which leads in epoch 7: it may lack what was confirmed and cannot lead; ready: c, a"
    )


def test_a_ready_member_that_only_an_operator_can_promote_says_so() -> None:
    """U-16: one safe command to proceed."""
    member = Bench("b", provider="external").holding((H1, 2, 5), epoch=3)
    member.lease()
    member.see(a_view("a", "ab", epoch=3))
    assert reason(member) == "it waits for a, which leads in epoch 3, or for a promotion"
    assert [one.view.leader for one in only(member.step(Asked("promote")), Propose)] == ["b"]


def stopped(world: World) -> None:
    """All that are up are shut down."""
    leader = next(machine for machine in world.machines.values() if machine.leads)
    world.give(leader, Asked("shutdown"))
    assert world.run(world.now + 20_000, lambda: not any(one.up for one in world.machines.values()))


def started(world: World, name: str, **others: State) -> None:
    """Start one, and wait until one leads and all others that were started are ready."""
    world.start(world.machines[name])
    up = sum(machine.up for machine in world.machines.values())
    wanted = sorted([State.ACTIVE, *[State.READY] * (up - 1), *["down"] * (len(world.machines) - up)])
    assert world.run(world.now + 60_000, lambda: sorted(world.states().values()) == wanted), world.states()


@pytest.mark.parametrize("order", [*permutations("abc")], ids="".join)
@pytest.mark.parametrize("mode", ["standby", "chain"])
def test_after_a_clean_stop_members_may_be_started_one_by_one_in_any_order(
    mode: str, order: tuple[str, ...]
) -> None:
    """Q-84, U-16: each that is started serves, with those that are there."""
    world = World(5, mode, rude=False)
    assert world.run(20_000, world.is_well)
    stopped(world)
    for name in order:
        started(world, name)
        done = len(world.committed[Log.JOURNAL])
        assert world.run(world.now + 10_000, lambda n=done: len(world.committed[Log.JOURNAL]) > n)  # type: ignore[misc]


@pytest.mark.parametrize("first", [True, False])
@pytest.mark.parametrize("mode", ["standby", "chain"])
def test_one_that_had_crashed_before_the_others_were_stopped_waits_for_them_and_is_brought_up_to_date(
    mode: str, first: bool
) -> None:
    """Q-80: what was stopped in good order is used, the others get what they lack, whoever is started first."""
    world = World(8, mode, rude=False)
    assert world.run(20_000, world.is_well)
    crashed = next(machine for machine in world.machines.values() if not machine.leads)
    world.crash(crashed)
    done = len(world.committed[Log.JOURNAL])
    assert world.run(world.now + 20_000, lambda: len(world.committed[Log.JOURNAL]) > done + 20)
    stopped(world)
    assert world.view is not None and crashed.name not in world.view.ready
    if first:
        world.start(crashed)
        world.run(world.now + 20_000)
        assert crashed.mode.state is State.JOINING
        assert crashed.mode._why.startswith(f"it waits for {world.view.leader}, which leads in epoch 1")
    for machine in world.machines.values():
        world.start(machine)
    assert world.run(world.now + 30_000, world.is_well)
    assert crashed.store.logs[Log.JOURNAL].holds(world.committed[Log.JOURNAL], durable=True)


# A store of another cluster ---------------------------------------------------------------------------------------------


def theirs(name: str, cluster: str = OTHER) -> MemberHere:
    return MemberHere(name, cluster, Ends(2, 9) if cluster else Ends(), int(bool(cluster)))


WRONG = f"it belongs to cluster {CLUSTER}, and "


@pytest.mark.parametrize(
    ("others", "says"),
    [
        (
            [theirs("a"), theirs("c")],
            f"{WRONG}a, c belong to {OTHER}: start whichever is wrong with the right",
        ),
        ([theirs("a"), theirs("c", "")], f"{WRONG}a belongs to {OTHER}: "),
        ([theirs("a"), theirs("c", CLUSTER)], ""),
        ([theirs("a", ""), theirs("c", "")], ""),
    ],
    ids=["two", "one and one that is empty", "one and one of ours", "none"],
)
def test_where_as_many_or_more_belong_to_another_cluster_nobody_leads_by_an_order(
    others: list[MemberHere], says: str
) -> None:
    """Q-79: as with 'store best', of two clusters that have as many stores nobody can say which one is meant."""
    member = Bench("b", provider="external", size=3).holding((H1, 2, 5))
    member.lease()
    member.see(a_view("a", "abc"))
    member.step(*others)
    assert (reason(member).startswith(says)) if says else ("cluster" not in reason(member))

    for accept_loss in (False, True):
        survey = Survey(member.mode.view.revision, tuple(others))
        [answer] = only(member.step(Asked("promote", "b", accept_loss, survey)), Answer)
        assert answer.done is not bool(says)
        if says:
            assert answer.text.startswith(f"b must not lead: {says}")


@pytest.mark.parametrize(
    ("knows", "others", "says"),
    [
        (
            "",
            [theirs("a"), theirs("c", CLUSTER)],
            f"c belongs to cluster {CLUSTER}, and a belongs to {OTHER}: start",
        ),
        (CLUSTER, [theirs("a"), theirs("c", CLUSTER)], f"{WRONG}a belongs to {OTHER}: start"),
        (CLUSTER, [theirs("a"), theirs("c")], f"{WRONG}a, c belong to {OTHER}: start"),
        (CLUSTER, [theirs("a", CLUSTER), theirs("c", CLUSTER)], ""),
        ("", [theirs("a"), theirs("c")], ""),
    ],
)
def test_one_that_is_empty_says_that_there_are_two_clusters_or_that_it_has_followed_another(
    knows: str, others: list[MemberHere], says: str
) -> None:
    member = Bench("b", provider="external", size=3)
    member.see(a_view("a", "ac") if knows else None)
    member.step(*others)
    assert reason(member).startswith(says) if says else "cluster" not in reason(member)
    survey = Survey(member.mode.view.revision if knows else 0, tuple(others))
    [answer] = only(member.step(Asked("promote", "b", True, survey)), Answer)
    assert answer.text.startswith(
        f"b must not lead: {says}" if says else ("b is joining" if knows else "this store")
    )


def test_where_the_view_is_lost_and_stores_are_of_two_clusters_none_is_named() -> None:
    member = a_member("ours")
    member.see(None)
    member.step(theirs("a"))
    assert reason(member).startswith(f"there is no view, and {WRONG}a belongs to {OTHER}: start whichever")


@pytest.mark.parametrize("leads", [True, False])
def test_only_one_that_leads_turns_a_store_of_another_cluster_away(leads: bool) -> None:
    """One that does not may have the wrong store itself: those with the right ones must not be told to empty them."""
    source = Bench("a", provider="external").holding((H1, 2, 6), epoch=5)
    source.see(a_view("a", "ab", epoch=5, history=H1))
    if leads:
        source = Bench("a").holding((H1, 2, 6), epoch=4).leading("a", epoch=5)
    source.step(PeerUp("b", dialled=False))
    told_b = told(source.hear("b", Hello("b", 5, OTHER, Ends(2, 9), (), True)), Offer)
    assert [offer.verdict for _, offer in told_b] == (["refuse"] if leads else [])


# An older copy of a store -----------------------------------------------------------------------------------------------

SETTLED = replace(a_view("a", "abc", epoch=5), settled=5)
"""All three were in line in epoch 5."""


def copied(epoch: int = 4, **settings: object) -> Bench:
    """Member b starts with a store that was in line in this epoch last."""
    member = Bench("b", **settings).holding((H1, 2, 5), epoch=epoch)  # type: ignore[arg-type]
    member.lease()
    return member


def test_a_leader_says_once_in_the_view_that_all_who_are_ready_are_in_line() -> None:
    leader = Bench("a").holding((H1, 2, 5))
    leader.lease()
    leader.see(a_view("z", "zab"))
    [taken] = only(leader.step(MemberGone("z")), Propose)
    assert taken.view.settled == 0
    leader.see(replace(taken.view, revision=20))
    leader.sync()
    assert len(only(leader.log, Propose)) == 1, "b has not answered"

    [said] = only(leader.greeted_by("b"), Propose)
    assert (said.view, said.view.settled) == (replace(taken.view, settled=2), 2)
    leader.see(replace(said.view, revision=21))
    assert only(leader.write(3) + leader.acked_by("b") + leader.after(5000), Propose) == []


def test_what_was_settled_stays_so_for_whoever_is_next_and_begins_anew_with_an_accepted_loss() -> None:
    assert SETTLED.led_by("b", H2).settled == SETTLED.without("b").settled == 5
    assert SETTLED.seized_by("b", H2, 9).settled == 0


@pytest.mark.parametrize("epoch", [4, 5])
def test_a_store_that_was_in_line_before_all_were_does_not_lead_though_the_view_calls_its_member_ready(
    epoch: int,
) -> None:
    """H-58: an older copy has been put in the place of the store."""
    member = copied(epoch)
    member.see(SETTLED)
    proposed = only(member.step(MemberGone("a"), MemberGone("c")) + member.after(10_000), Propose)

    if epoch == 5:
        assert proposed[0].view.leader == "b"
        return
    assert proposed == []
    assert reason(member) == (
        "its store is an older copy: it was in line in epoch 4 last, and its member in epoch 5; it waits for another that "
        "leads, and catches up then"
    )


def test_a_store_that_missed_an_epoch_in_which_nothing_was_confirmed_leads() -> None:
    """It died while another took over: nobody has confirmed anything without it."""
    member = copied(4)
    member.see(replace(SETTLED, settled=4))
    member.step(MemberGone("a"))
    assert [one.view.leader for one in only(member.after(2000), Propose)] == ["b"]


@pytest.mark.parametrize(
    ("others", "heir"),
    [
        ({"a": 5, "c": 5}, "a"),
        ({"c": 5}, "c"),
        ({"a": 4}, "c"),
        ({"a": 4, "c": 5}, "c"),
        ({"a": 0, "c": 4}, "a"),
        ({}, "a"),
    ],
)
def test_a_leader_that_comes_back_with_an_older_copy_names_one_that_has_its_store(
    others: dict[str, int], heir: str
) -> None:
    member = copied()
    for name, epoch in others.items():
        member.step(MemberHere(name, CLUSTER if epoch else "", Ends(2, 9), epoch))

    [named] = only(member.see(replace(SETTLED, leader="b", ready=("b", "a", "c"))), Propose)

    assert (named.view.leader, named.view.epoch) == (heir, 6)
    assert "b" not in named.view.ready, "it is not counted on any more"
    assert reason(member).endswith(f": {heir} is to lead")


def test_where_it_alone_was_ready_an_operator_is_asked() -> None:
    member = copied()
    member.see(replace(SETTLED, leader="b", ready=("b",)))
    assert only(member.after(10_000), Propose) == []
    assert reason(member).startswith("this member alone was ready, and its store is an older copy")
    assert "bring the store back, or promote the member that has most of it with --accept-loss" in reason(
        member
    )
    asked = Asked("promote", "", True, Survey(50, (MemberHere("a", CLUSTER, Ends(2, 4), 3),)))
    [answer] = only(member.step(asked), Answer)
    assert answer.done
    assert only(member.log, Propose)[-1].view.settled == 0


@pytest.mark.parametrize("provider", ["etcd", "external"])
def test_an_older_copy_is_not_promoted_while_one_is_there_that_has_all(provider: str) -> None:
    member = copied(provider=provider, size=3)
    member.see(replace(SETTLED, leader="b", ready=("b", "a", "c")) if provider == "external" else SETTLED)
    if provider == "external":
        assert "its store is an older copy" in reason(member)

    for accept_loss in (False, True):
        survey = Survey(50, (MemberHere("c", CLUSTER, Ends(2, 9), 5),), (Unasked("a", "refused"),))
        [answer] = only(member.step(Asked("promote", "b", accept_loss, survey)), Answer)
        assert not answer.done and answer.text.startswith("b is joining, its store is an older copy: ")
        assert ("c is there with all that was confirmed" in answer.text) is accept_loss
    worse = Survey(50, (MemberHere("c", CLUSTER, Ends(2, 4), 3),), (Unasked("a", "refused"),))
    [answer] = only(member.step(Asked("promote", survey=worse)), Answer)
    assert "promote b with --accept-loss" in answer.text


def test_one_with_an_empty_store_that_the_view_calls_ready_says_so_when_it_is_promoted() -> None:
    member = Bench("b", provider="external", size=3)
    member.see(SETTLED)
    survey = Survey(50, (MemberHere("c", CLUSTER, Ends(2, 9), 5),))
    [answer] = only(member.step(Asked("promote", survey=survey)), Answer)
    assert answer == Answer(
        False, "b is joining, its store is empty, and may lack what was confirmed; ready: a, b, c"
    )


def test_an_older_copy_catches_up_like_a_member_that_was_away() -> None:
    leader = Bench("a").holding((H1, 2, 9), epoch=4).leading("ab", epoch=5)
    view = leader.mode.view
    member = copied()
    member.see(view)
    [(_, hello)] = told(member.step(PeerUp("a", dialled=True)), Hello)
    assert not hello.whole

    leader.step(PeerUp("b", dialled=False))
    effects = leader.hear("b", hello)
    assert told(effects, Offer) == [], "not while the view calls it ready"
    [without] = only(effects, Propose)
    assert without.view.ready == ("a",)
    [(_, offer)] = told(leader.see(replace(without.view, revision=51)), Offer)
    assert offer.verdict == "resume"
    member.see(replace(without.view, revision=51))
    effects = member.hear("a", offer)
    assert (member.state, only(effects, Belong)) == (State.CATCHUP, [Belong(CLUSTER, 5)])


@pytest.mark.parametrize("first", [True, False], ids=["started first", "started last"])
@pytest.mark.parametrize("victim", "abc")
@pytest.mark.parametrize("mode", ["standby", "chain"])
def test_with_an_older_copy_among_them_all_are_brought_up_to_date(
    mode: str, victim: str, first: bool
) -> None:
    """H-58, Q-79: of two clean shutdowns the stores of the newer one count."""
    world = World(6, mode, rude=False)
    assert world.run(20_000, world.is_well)
    stopped(world)
    copy = deepcopy(world.machines[victim].store)
    for machine in world.machines.values():
        world.start(machine)
    assert world.run(world.now + 30_000, world.is_well)
    done = len(world.committed[Log.JOURNAL])
    assert world.run(world.now + 20_000, lambda: len(world.committed[Log.JOURNAL]) > done + 20)
    stopped(world)

    swapped, *others = sorted(world.machines.values(), key=lambda one: one.name != victim)
    swapped.store, swapped.wiped = copy, True
    for machine in [swapped, *others] if first else [*others, swapped]:
        world.start(machine)
        world.run(world.now + 5000)
    assert world.run(world.now + 30_000, world.is_well)
    assert swapped.store.logs[Log.JOURNAL].holds(world.committed[Log.JOURNAL], durable=True)
