"""Views without an etcd: an operator or a resource manager says who leads, and members tell one another.

Each member keeps the newest view that it knows in its data directory:

    VIEW      one JSON object with a checksum, as STATUS

Once a second, and whenever there is news, it dials every other member over a short link of its own kind; each side says what
it knows about members and views, and both keep the newer view. Newer is the higher epoch, then the higher counter: the
revision of a view is both, `epoch << 32 | counter`. The leader's proposals and a promotion are written to the own file
after a round of asking, so that whoever can be reached and knows better is heard first; a promotion is told to all who
can be reached before it holds, so that a leader which runs has stepped down by then.

    propose ─► ask all ─► is it still derived from the newest? ─► VIEW ─┬─ same epoch ─► it holds ─► tell all
                                                                        └─ another ────► tell all ─► it holds, if none is newer

There is no place where writes are compared. What etcd's transaction prevents, somebody else must: a leader that nobody can
reach goes on without those it cannot reach, and whoever promotes one of those must have stopped that leader first. A member
that was left out and could not be told still believes that it is ready (`untold`).

A machine over `ports.Disk`: its shell (`runtime/membership/external.py`, `sim/cluster/external.py`) carries what is told and says
what time it is.

Invariant: a view is told to the member only when it is in the file; views are told in the order of (revision, history).
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field, replace
from typing import Protocol

from tidemark.errors import StoreError
from tidemark.member.facts import MemberFacts, MembershipEvents
from tidemark.member.telling import COUNTER_BITS, NotAnswered, Told, view_facts, view_of
from tidemark.model.peers import Name, View
from tidemark.ports import Disk
from tidemark.store.status import read_facts, write_facts

VIEW = "VIEW"
ROUND_MS = 1000
"""Between two rounds when there is no news."""
LASTING_MS = 365 * 24 * 3600 * 1000
"""Nobody takes a leader's place by the clock, so its lease is always good."""

Answers = dict[Name, MemberFacts | NotAnswered]
Then = Callable[[Answers, int], None]
"""Takes what each has answered, and the time."""


def read_view(disk: Disk) -> View | None:
    """The view that a member with this data directory knew last; None if it knew none.

    Raises:
        ValueError: the file is damaged.
    """
    if not disk.exists(VIEW):
        return None
    facts = read_facts(disk, VIEW)
    if facts is None:
        raise ValueError("its checksum is wrong")
    return view_of(facts)


class ViewsOutside(Protocol):
    """What it asks of its shell."""

    def exchange(self, number: int, name: Name, told: Told) -> None:
        """Tell one member this and hear what it tells: `answered`, with the number, says how that went. Not at once."""

    def after(self, delay_ms: int, action: Callable[[int], None]) -> None:
        """Call this then, with the time. Not at once, though the delay be 0."""

    def note(self, level: str, event: str, **facts: object) -> None:
        """For the log."""


@dataclass(slots=True)
class _Round:
    """Everybody is asked and told."""

    names: list[Name]
    then: Then
    answers: Answers = field(default_factory=dict)


class Views:
    def __init__(
        self,
        me: Name,
        names: Iterable[Name],
        facts: Callable[[], MemberFacts],
        events: MembershipEvents,
        outside: ViewsOutside,
        disk: Disk,
        away_ms: int,
    ) -> None:
        """`names` are the other members as they were configured; those that say hello are learned. `away_ms`: who was not
        heard of for so long counts as gone."""
        self.view: View | None = None
        self.names = set(names) - {me}
        self.known: dict[Name, MemberFacts] = {}
        """Members as they said themselves."""
        self._me = me
        self._facts = facts
        self._events = events
        self._outside = outside
        self._disk = disk
        self._away_ms = away_ms
        self._heard_ms: dict[Name, int] = {}
        self._told: dict[Name, int] = {}
        """Member → revision of the newest view that it is known to have."""
        self._problems: dict[Name, str] = {}
        """Those that could not be reached last time, and why."""
        self._strangers: dict[Name, str] = {}
        """Those that know a view of another cluster, and which."""
        self._rounds: dict[int, _Round] = {}
        self._number = self._timer = 0
        """Of the last round; of the timer for the next one that nobody asks for."""
        self._comparing = False
        """A round that nobody has asked for is under way."""
        self._hurried = False
        """There was news since it began."""
        self._waiting: deque[View] = deque()
        """Views that were proposed; one is looked after at a time."""
        self._open: View | None = None

    def start(self, now_ms: int) -> None:
        try:
            self.view = read_view(self._disk)
        except ValueError as problem:
            # Whoever else knows it tells it; without them only an operator can say that this store is a good one.
            self._outside.note("error", "view not understood", file=VIEW, problem=str(problem))
        self._events.member_here(self._facts())
        self._events.view_changed(self.view)
        self._events.lease(now_ms + LASTING_MS)
        self._next_round(0)

    # What others may want to know ------------------------------------------------------------------------------

    @property
    def unseen(self) -> dict[Name, str]:
        """Members that could not be reached last time, and why."""
        return {name: self._problems[name] for name in sorted(self._problems) if name in self.others()}

    @property
    def untold(self) -> list[Name]:
        """Members that may not have heard of the newest view, and so may take themselves for ready."""
        if self.view is None:
            return []
        return sorted(name for name in self.others() if self._told.get(name, 0) < self.view.revision)

    @property
    def members(self) -> dict[Name, MemberFacts]:
        """Those that can be reached, as they say themselves."""
        return {name: one for name, one in self.known.items() if name not in self._problems}

    def others(self) -> set[Name]:
        ready = self.view.ready if self.view is not None else ()
        return (self.names | set(self.known) | set(ready)) - {self._me}

    # Rounds ------------------------------------------------------------------------------------------------------

    def hurry(self) -> None:
        """There is news: ask and tell everybody now."""
        if self._comparing:
            self._hurried = True
        else:
            self._next_round(0)

    def compare(self, then: Then, now_ms: int) -> None:
        """Ask and tell everybody: who was asked, and what he says of himself, or why he does not."""
        names = sorted(self.others())
        if not names:
            then({}, now_ms)
            return
        self._number += 1
        number = self._number
        self._rounds[number] = _Round(names, then)
        for name in names:
            self._outside.exchange(number, name, self._telling())

    def answered(self, number: int, name: Name, answer: Told | NotAnswered, now_ms: int) -> None:
        """What came of an exchange."""
        asked = self._rounds[number]
        try:
            if isinstance(answer, NotAnswered):
                self._not_reached(name, str(answer))
            else:
                self._hear(name, answer, now_ms)
                if self._problems.pop(name, None):
                    self._outside.note("info", "member reached", member=name)
        finally:
            asked.answers[name] = answer.member if isinstance(answer, Told) else answer
            if len(asked.answers) == len(asked.names):
                del self._rounds[number]
                asked.then({name: asked.answers[name] for name in asked.names}, now_ms)

    def _not_reached(self, name: Name, problem: str) -> None:
        if self._problems.get(name) != problem:
            self._problems[name] = problem
            self._outside.note("warning", "member not reached", member=name, problem=problem)

    def _next_round(self, delay_ms: int) -> None:
        self._timer += 1
        timer = self._timer
        self._outside.after(delay_ms, lambda now_ms: self._begin_round(timer, now_ms))

    def _begin_round(self, timer: int, now_ms: int) -> None:
        if timer == self._timer and not self._comparing:
            self._comparing, self._hurried = True, False
            self.compare(self._end_round, now_ms)

    def _end_round(self, _: Answers, now_ms: int) -> None:
        self._comparing = False
        self._next_round(0 if self._hurried else ROUND_MS)
        self._look_for_gone(now_ms)

    def _look_for_gone(self, now_ms: int) -> None:
        for name, at_ms in list(self._heard_ms.items()):
            if now_ms - at_ms > self._away_ms:
                del self._heard_ms[name]
                if name not in self.names:
                    self.known.pop(name, None)
                self._events.member_gone(name)

    # What is known -------------------------------------------------------------------------------------------------

    def heard(self, peer: Name, told: Told, now_ms: int) -> Told:
        """A member that has proven who it is has told us this; what we tell it.

        Raises:
            ValueError: it calls itself something else.
        """
        self._hear(peer, told, now_ms)
        return self._telling()

    def _telling(self) -> Told:
        return Told(self._facts(), self.view, tuple(self.known.values()))

    def _hear(self, peer: Name, told: Told, now_ms: int) -> None:
        if told.member.name != peer:
            raise ValueError(f"'{peer}' calls itself '{told.member.name}'")
        self._told[peer] = told.view.revision if told.view is not None else 0
        self._heard_ms[peer] = now_ms
        self._came(told.member)
        for other in told.others:
            if other.name not in self.known and other.name != self._me:
                self._came(other)
        if told.view is not None:
            self._take(told.view, peer)

    def _came(self, facts: MemberFacts) -> None:
        if self.known.get(facts.name) != facts:
            self.known[facts.name] = facts
            self._events.member_here(facts)

    def _take(self, view: View, peer: Name) -> None:
        """A member knows this view: keep it if it is newer."""
        known, own = self.view, self._facts().cluster or (self.view.cluster if self.view is not None else "")
        if own not in ("", view.cluster):
            if self._strangers.get(peer) != view.cluster:
                self._strangers[peer] = view.cluster
                self._outside.note(
                    "error", "member of another cluster", member=peer, cluster=view.cluster, own=own,
                    hint="start whichever is wrong with the right data directory, or with an empty one",
                )  # fmt: skip
            return
        self._strangers.pop(peer, None)
        if known is not None and _age(view) <= _age(known):
            return
        if known is not None and view.epoch == known.epoch and view.history != known.history:
            self._outside.note(
                "error",
                "two members were promoted at once",
                epoch=view.epoch,
                leaders=f"{known.leader} {view.leader}",
                effect=f"{view.leader} leads",
            )
        if self._keep(view):
            self._events.view_changed(view)
            self.hurry()

    def _keep(self, view: View) -> bool:
        """Have the view in the file; False if that cannot be."""
        try:
            write_facts(self._disk, VIEW, view_facts(view))
        except StoreError as error:
            self._outside.note(
                "error", "view not kept", epoch=view.epoch, leader=view.leader, error=str(error)
            )
            return False
        self.view = view
        return True

    # Proposals -----------------------------------------------------------------------------------------------------

    def propose(self, view: View) -> None:
        """Keep this view if the one that it was derived from is still the newest. An event answers, later."""
        self._waiting.append(view)
        self._outside.after(0, self._next_proposal)

    def _next_proposal(self, now_ms: int) -> None:
        if self._open is None and self._waiting:
            self._open = self._waiting.popleft()
            self.compare(self._others_asked, now_ms)

    def _others_asked(self, _: Answers, now_ms: int) -> None:
        view, known = self._open, self.view
        assert view is not None
        counter = view.revision & ((1 << COUNTER_BITS) - 1)
        made = replace(view, revision=view.epoch << COUNTER_BITS | (counter + 1))
        if (known.revision if known is not None else 0) != view.revision or not self._keep(made):
            self._close()
            self._events.proposal_failed(view)
            return
        # Whoever leads in an older epoch and can be reached has stepped down before one begins.
        holds = known is not None and known.epoch == made.epoch
        self.compare(lambda answers, _: self._others_told(known, made, answers, holds=holds), now_ms)
        if holds:
            self._events.view_changed(made)

    def _others_told(self, before: View | None, made: View, answers: Answers, *, holds: bool) -> None:
        view = self._close()
        unreached = {name for name, one in answers.items() if isinstance(one, NotAnswered)}
        left_out = set(before.ready if before is not None else ()) - set(made.ready) - {self._me}
        for name in sorted(left_out & unreached):
            self._outside.note(
                "warning",
                "left out and not told",
                member=name,
                epoch=made.epoch,
                hint="it takes itself for ready: do not promote it before it has been in touch",
            )
        if not holds and self.view is made:
            self._events.view_changed(made)
        elif not holds:
            self._events.proposal_failed(view)

    def _close(self) -> View:
        """One proposal is done with: the next."""
        view, self._open = self._open, None
        assert view is not None
        self._outside.after(0, self._next_proposal)
        return view


def _age(view: View) -> tuple[int, str]:
    """Of two views the one with more is the newer."""
    return view.revision, view.history
