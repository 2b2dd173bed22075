"""Views that members keep themselves, without a socket or a clock: what is asked, kept and told, and in which order."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from random import Random

from tidemark.member.facts import MemberFacts
from tidemark.member.telling import NotAnswered, Told
from tidemark.member.views import Views, read_view
from tidemark.model.peers import Name, View
from tidemark.sim.disk import SimDisk

CLUSTER = "c0" * 16
FIRST = View(CLUSTER, 1, "a", ("a", "b", "c"), "1" * 32, 1 << 32 | 1)
AWAY = NotAnswered("connection refused", there=False)


class Bench:
    """One member's views. Questions wait until they are answered by hand; whatever is due is done at once."""

    def __init__(self, me: Name = "b", view: View | None = FIRST) -> None:
        self.disk = SimDisk(Random(1))
        self.asked: list[tuple[int, Name, Told]] = []
        self.due: list[Callable[[int], None]] = []
        self.told: list[View | None] = []
        self.failed: list[View] = []
        self.notes: list[str] = []
        self.now_ms = 1000
        self.views = Views(me, "abc", lambda: MemberFacts(me, me), self, self, self.disk, 2000)
        self.views.start(self.now_ms)
        if view is not None:
            self.hear("a", view)
        self.settle()

    def hear(self, peer: Name, view: View | None) -> Told:
        return self.views.heard(peer, Told(MemberFacts(peer, peer), view), self.now_ms)

    def run(self) -> None:
        """Whatever is due happens."""
        due, self.due = self.due, []
        for action in due:
            action(self.now_ms)

    def answer(self, **views: View | None) -> None:
        """These answer what they were asked, with the views that they know; all others do not."""
        asked, self.asked = self.asked, []
        for number, name, _ in asked:
            told = Told(MemberFacts(name, name), views[name]) if name in views else AWAY
            self.views.answered(number, name, told, self.now_ms)

    def settle(self) -> None:
        """Rounds are made, and nobody answers, until there is no news."""
        while self.due:
            self.run()
            self.answer()

    # What it asks and says

    def exchange(self, number: int, name: Name, told: Told) -> None:
        self.asked.append((number, name, told))

    def after(self, delay_ms: int, action: Callable[[int], None]) -> None:
        if not delay_ms:
            self.due.append(action)

    def note(self, level: str, event: str, **_: object) -> None:
        self.notes.append(f"{level} {event}")

    def view_changed(self, view: View | None) -> None:
        assert view is None or read_view(self.disk) == view, "it is in the file before it is told"
        self.told.append(view)

    def proposal_failed(self, view: View) -> None:
        self.failed.append(view)

    def member_here(self, facts: MemberFacts) -> None: ...

    def member_gone(self, name: Name) -> None: ...

    def lease(self, until_ticks_ms: int) -> None: ...


def promoted(me: Name = "b", history: str = "2" * 32) -> View:
    return FIRST.led_by(me, history)


def test_a_promotion_asks_all_then_is_kept_then_told_and_only_then_holds() -> None:
    bench = Bench()
    bench.views.propose(promoted())
    bench.run()
    assert [name for _, name, _ in bench.asked] == ["a", "c"] and read_view(bench.disk) == FIRST

    bench.answer(a=FIRST, c=FIRST)
    made = replace(promoted(), revision=2 << 32 | 2)
    assert [told.view for _, _, told in bench.asked] == [made, made]
    assert read_view(bench.disk) == made and bench.told[-1] == FIRST

    bench.answer(a=made, c=made)
    assert bench.told[-1] == made and bench.failed == []


def test_a_promotion_fails_when_somebody_who_is_asked_knows_better() -> None:
    bench = Bench()
    newer = replace(FIRST, ready=("a", "c"), revision=1 << 32 | 2)
    bench.views.propose(promoted())
    bench.run()
    bench.answer(c=newer)
    assert bench.failed == [promoted()] and bench.told[-1] == newer == read_view(bench.disk)


def test_a_promotion_fails_when_another_one_is_heard_of_while_it_is_told() -> None:
    bench = Bench()
    other = replace(promoted("c", "3" * 32), revision=2 << 32 | 2)
    bench.views.propose(promoted())
    bench.run()
    bench.answer(a=FIRST, c=FIRST)
    bench.answer(c=other)
    assert bench.failed == [promoted()] and bench.told[-1] == other
    assert "error two members were promoted at once" in bench.notes


def test_a_leaders_change_holds_when_it_is_kept_and_whoever_was_left_out_untold_is_named() -> None:
    bench = Bench("a", view=None)
    bench.views.propose(replace(FIRST, revision=0))
    bench.run()
    bench.answer()
    bench.answer()
    first = bench.told[-1]
    assert first is not None
    bench.views.propose(first.without("b"))
    bench.run()
    bench.answer(c=first)
    assert bench.told[-1] == first.without("b")
    bench.answer(c=first.without("b"))
    assert "warning left out and not told" in bench.notes


def test_a_view_that_cannot_be_kept_is_not_told() -> None:
    bench = Bench()
    bench.views.propose(promoted())
    bench.run()
    bench.disk.fail_next()
    bench.answer(a=FIRST, c=FIRST)
    assert bench.failed == [promoted()] and bench.told[-1] == FIRST == bench.views.view
    assert "error view not kept" in bench.notes


def test_a_member_that_knows_nobody_else_goes_on_at_once() -> None:
    alone = Bench("b", view=None)
    alone.views.names.clear()
    alone.views.known.clear()
    alone.views.propose(View(CLUSTER, 1, "b", ("b",), "1" * 32))
    alone.run()
    assert alone.told[-1] is not None and alone.told[-1].revision == 1 << 32 | 1


def test_an_older_view_is_answered_with_the_newer_one() -> None:
    bench = Bench()
    assert bench.hear("c", replace(FIRST, ready=("a",), revision=1 << 32)).view == FIRST
    assert read_view(bench.disk) == FIRST


def test_a_view_of_another_cluster_is_not_taken_and_said_once() -> None:
    bench = Bench()
    other = replace(FIRST, cluster="ee" * 16, epoch=9, revision=9 << 32 | 1)
    for view in (other, replace(other, revision=9 << 32 | 2), FIRST, other):
        bench.hear("c", view)
    assert bench.views.view == FIRST
    assert bench.notes.count("error member of another cluster") == 2, "again when it knew ours in between"
