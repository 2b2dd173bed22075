"""What is complete. H-12, H-13, LM5."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from tidemark.cluster.progress import Progress
from tidemark.model.peers import Ends

_ends = st.builds(Ends, st.integers(0, 3), st.integers(0, 3))


@given(_ends, _ends)
def test_the_least_and_the_most_of_two_are_taken_log_by_log(one: Ends, other: Ends) -> None:
    least = Ends(min(one.catalog, other.catalog), min(one.journal, other.journal))
    most = Ends(max(one.catalog, other.catalog), max(one.journal, other.journal))

    assert (one.least(other), one.most(other)) == (least, most)
    assert one.at(other.catalog, other.journal) == other


def test_complete_is_what_the_slowest_disk_has() -> None:
    """H-12, H-13"""
    progress = Progress(required={"b", "c"})
    progress.acked("b", Ends(2, 8))
    progress.acked("c", Ends(3, 5))

    assert progress.advance(Ends(3, 9)) == Ends(2, 5)
    progress.acked("c", Ends(3, 9))
    assert progress.advance(Ends(3, 7)) == Ends(2, 7)


def test_a_member_that_has_said_nothing_in_this_epoch_holds_nothing() -> None:
    """LM5, H-74"""
    progress = Progress(required={"b"})
    assert progress.advance(Ends(3, 9)) == Ends()


def test_a_leader_alone_completes_what_its_own_disk_has() -> None:
    assert Progress().advance(Ends(1, 4)) == Ends(1, 4)


def test_while_there_are_too_few_copies_nothing_more_completes() -> None:
    """K-49"""
    progress = Progress()
    progress.advance(Ends(1, 4))
    progress.held = True
    assert progress.advance(Ends(1, 9)) == Ends(1, 4)
    progress.held = False
    assert progress.advance(Ends(1, 9)) == Ends(1, 9)


def test_complete_stays_when_a_member_comes_that_is_behind_it() -> None:
    progress = Progress()
    progress.advance(Ends(1, 9))
    progress.required = {"b"}
    progress.begin("b", Ends(1, 4))
    assert progress.advance(Ends(1, 12)) == Ends(1, 9)


def test_a_member_that_begins_anew_is_not_credited_with_its_old_disk() -> None:
    progress = Progress(required={"b"})
    progress.acked("b", Ends(1, 9))
    progress.begin("b", Ends())
    assert progress.advance(Ends(1, 9)) == Ends()


acks = st.tuples(st.sampled_from("bc"), st.integers(0, 9), st.integers(0, 9))


@given(st.lists(acks))
def test_acks_may_come_in_any_order_and_twice_and_complete_never_goes_back(
    given_: list[tuple[str, int, int]],
) -> None:
    progress = Progress(required={"b", "c"})
    before = Ends()
    for member, catalog, journal in given_ + given_:
        progress.acked(member, Ends(catalog, journal))
        after = progress.advance(Ends(7, 7))
        assert after.covers(before)
        before = after
    best = {name: Ends() for name in "bc"}
    for member, catalog, journal in given_:
        best[member] = best[member].most(Ends(catalog, journal))
    assert before == Ends(7, 7).least(best["b"]).least(best["c"])
