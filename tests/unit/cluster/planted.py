"""Modes that are broken on purpose, one rule each: the model world must find every one of them."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Any

import pytest

from tidemark.cluster import divergence
from tidemark.cluster.mode import State
from tidemark.cluster.progress import Progress
from tidemark.cluster.proposals import Proposals
from tidemark.cluster.reign import Reign
from tidemark.cluster.replica import Replica
from tidemark.model.peers import Ends, Hello, Name, Offer, View

Plant = Callable[[pytest.MonkeyPatch], None]


def completes_without_the_others(patch: pytest.MonkeyPatch) -> None:
    """Rule 1: H-12, H-13."""
    patch.setattr(Progress, "advance", lambda self, durable: _advance(self, durable, set()))


def completes_without_one_ready_member(patch: pytest.MonkeyPatch) -> None:
    """Rule 1, a little less of it: the slowest is not waited for."""

    def advance(self: Progress, durable: Ends) -> Ends:
        slowest = min(self.required, key=lambda name: self.has(name).journal, default=None)
        return _advance(self, durable, set(self.required) - {slowest})

    patch.setattr(Progress, "advance", advance)


def _advance(progress: Progress, durable: Ends, required: set[Name | None]) -> Ends:
    for member in required:
        assert member is not None
        durable = durable.least(progress.has(member))
    progress.complete = progress.complete.most(durable)
    return progress.complete


def does_not_guard(patch: pytest.MonkeyPatch) -> None:
    """A member that is about to become ready is not required until the leader hears of the view. Q-17"""

    def require(self: Reign, undecided: tuple[View, ...]) -> None:
        self.progress.required = set(self.view.ready) - {self.me}

    patch.setattr(Reign, "require", require)


def forgets_a_proposal_without_an_answer(patch: pytest.MonkeyPatch) -> None:
    """A view that could not be written, as far as one knows, is taken for not written."""
    failed = Proposals.failed

    def forget(self: Proposals, proposed: View, now: int) -> None:
        failed(self, proposed, now)
        self.undecided = [one for one in self.undecided if one != proposed]

    patch.setattr(Proposals, "failed", forget)


def goes_on_before_the_view_is_written(patch: pytest.MonkeyPatch) -> None:
    """Who is late is no longer required from the moment that a view without it is proposed."""
    require = Reign.require

    def hasty(self: Reign, undecided: tuple[View, ...]) -> None:
        require(self, undecided)
        self.progress.required = set(self.progress.required) - set(self.late())

    patch.setattr(Reign, "require", hasty)


def does_not_wait_after_a_takeover(patch: pytest.MonkeyPatch) -> None:
    """LM5, H-74: a new leader believes that the others have all that it has."""

    def lead(self: Replica, view: View, before: View | None) -> None:
        take(self, view, before)
        assert self._reign is not None
        for name in view.ready:
            self._reign.progress.acked(name, Ends(1 << 40, 1 << 40))

    take = Replica._take_the_lead
    patch.setattr(Replica, "_take_the_lead", lead)


def leads_while_catching_up(patch: pytest.MonkeyPatch) -> None:
    """H-48, H-49: who is not ready proposes itself when the leader is gone."""
    consider = Replica._consider_leading

    def reckless(self: Replica) -> int | None:
        view = self.view
        outside = view is not None and self.me not in view.ready and self.state is not State.CATCHUP
        if view is not None and outside and self._cluster and self._why_lost(view):
            mine = replace(
                view, epoch=view.epoch + 1, leader=self.me, ready=(self.me,), history=self._history()
            )
            self._propose(mine, "")
        return consider(self)

    patch.setattr(Replica, "_consider_leading", reckless)


def leads_on_in_the_epoch_of_its_last_life(patch: pytest.MonkeyPatch) -> None:
    """Rule 2: a leader that restarts leads again by the same view."""

    class Everything(set[str]):
        def __contains__(self, history: object) -> bool:
            return True

    begin = Replica.__init__

    def init(self: Replica, *how: Any) -> None:
        begin(self, *how)
        self._proposals.histories = Everything()

    patch.setattr(Replica, "__init__", init)


def counts_acks_of_an_older_epoch(patch: pytest.MonkeyPatch) -> None:
    """Rule 3: who leads again remembers what the others had in the epoch that it led before."""
    take = Replica._take_the_lead
    changed = Replica._new_epoch

    def new_epoch(self: Any, view: View, before: View | None) -> None:
        if self._reign is not None:
            self.remembered = dict(self._reign.progress._has)
        changed(self, view, before)

    def lead(self: Any, view: View, before: View | None) -> None:
        take(self, view, before)
        for name, ends in getattr(self, "remembered", {}).items():
            self._reign.progress.acked(name, ends)

    patch.setattr(Replica, "_new_epoch", new_epoch)
    patch.setattr(Replica, "_take_the_lead", lead)


def never_rewinds(patch: pytest.MonkeyPatch) -> None:
    """LM1, H-70: who is ahead of a new leader just goes on."""
    answer = divergence.answer

    def resume(hello: Hello, **how: Any) -> Offer:
        offer = answer(hello, **how)
        return replace(offer, verdict="resume", to=hello.durable) if offer.verdict == "rewind" else offer

    patch.setattr(divergence, "answer", resume)


def says_hello_with_what_is_not_on_the_disk(patch: pytest.MonkeyPatch) -> None:
    """What was kept and not synced is on no line that the source could know of."""

    def say_hello(self: Any, view: View) -> None:
        source = self._source
        if source.hello_wanted and source.linked:
            source.hello_wanted, source.hello_at, source.kept = False, self._now, None
            hello = Hello(
                self.me, view.epoch, self._cluster, self._facts.durable, self._facts.table, self._whole
            )
            self._tell(source.name, hello)

    patch.setattr(Replica, "_say_hello", say_hello)


def acknowledges_what_is_not_on_the_disk(patch: pytest.MonkeyPatch) -> None:
    keep_up = Replica._keep_up

    class Eager:
        def __init__(self, facts: Any) -> None:
            self._facts = facts

        def __getattr__(self, name: str) -> Any:
            return getattr(self._facts, "ends" if name == "durable" else name)

    def eager(self: Any) -> int | None:
        facts = self._facts
        try:
            if self._source.session:
                self._facts = Eager(facts)
            return keep_up(self)
        finally:
            self._facts = facts

    patch.setattr(Replica, "_keep_up", eager)


def fills_a_lost_store_while_the_view_calls_it_ready(patch: pytest.MonkeyPatch) -> None:
    """Half full it may be chosen."""
    belong = Replica._belong
    patch.setattr(Replica, "_may_be_filled", lambda *_: True)
    patch.setattr(Replica, "_belong", lambda self, cluster, epoch: belong(self, cluster, epoch or 1))


def cuts_a_reader_that_is_ahead_on_the_same_line(patch: pytest.MonkeyPatch) -> None:
    """A chain's middle restarts without its last frames, and has the next one throw them away, which were counted."""
    welcome = Replica._welcome

    def hasty(self: Any, peer: Name, hello: Hello) -> bool:
        reign, self._reign = self._reign, self._reign or _Nobody()
        try:
            return welcome(self, peer, hello)
        finally:
            self._reign = reign

    patch.setattr(Replica, "_welcome", hasty)


class _Nobody:
    """Stands for a reign in a member that does not lead."""

    unwanted: dict[str, str] = {}  # noqa: RUF012

    def greet(self, *_: object) -> None:
        pass


def never_fences(patch: pytest.MonkeyPatch) -> None:
    """H-45: a leader whose lease has ended goes on."""
    patch.setattr(Replica, "_fence", lambda *_: None)


def keeps_frames_behind_a_gap(patch: pytest.MonkeyPatch) -> None:
    given = Replica._given

    def careless(self: Any, one: Any) -> None:
        source = self._source
        if source.session and source.kept is not None and one.previous > source.kept[one.log]:
            one = replace(one, previous=source.kept[one.log])
        given(self, one)

    patch.setattr(Replica, "_given", careless)


PLANTED: dict[Plant, tuple[str, int]] = {
    completes_without_the_others: ("standby", 0),
    completes_without_one_ready_member: ("standby", 0),
    does_not_guard: ("standby", 0),
    forgets_a_proposal_without_an_answer: ("standby", 110),
    goes_on_before_the_view_is_written: ("standby", 0),
    does_not_wait_after_a_takeover: ("standby", 0),
    leads_while_catching_up: ("standby", 0),
    leads_on_in_the_epoch_of_its_last_life: ("standby", 0),
    counts_acks_of_an_older_epoch: ("standby", 160),
    never_rewinds: ("standby", 0),
    says_hello_with_what_is_not_on_the_disk: ("standby", 390),
    acknowledges_what_is_not_on_the_disk: ("standby", 0),
    fills_a_lost_store_while_the_view_calls_it_ready: ("standby", 0),
    cuts_a_reader_that_is_ahead_on_the_same_line: ("chain", 340),
    never_fences: ("standby", 0),
    keeps_frames_behind_a_gap: ("standby", 0),
}
"""Each with the mode in which it is looked for, and from which seed on: the rare ones are found near it."""
