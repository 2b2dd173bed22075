"""What a leader knows of the others while its epoch lasts: who counts, who is late, who may come in.

*Required* are those without which nothing is complete: the ready members of the view, those that are *guarded*
because they are about to become ready, and all that a view names which was proposed and whose fate is not known yet.
A member is late when it has had no link, or has owed an acknowledgement, for too long, and the one that feeds it has
not; the leader then asks for a view without it, and it stays required until that view is there. One that answers, but
slowly nearly all of the time while others do not, is left out as well, unless the leader would be alone then.

A reader that keeps up is guarded: from then on nothing completes without it. When it holds all that is complete
nothing can be missing any more, and the leader asks for a view in which it is ready. One that was left out waits
longer from time to time before it is guarded again, so that a member with a bad link does not hold publishers up
again and again.

Invariant: whoever may be ready in the view that is kept, is required here.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field
from functools import partial

from tidemark.cluster.config import ClusterConfig
from tidemark.cluster.pace import WINDOW_MS, Pace
from tidemark.cluster.progress import Progress
from tidemark.cluster.topology import Topology
from tidemark.model.peers import Ends, Name, View

AWAY_MS_MAX = 30_000
"""Longest that a member which was left out again and again waits before it is let in."""
NEAR_MS = 100
"""One that has what the leader had so long ago keeps up."""
GOOD_MS = 60_000
"""After so long without being left out it is like any other."""
SLOW_MS, SLOW_MS_MAX = 10_000, 300_000
"""How long one that was left out because it was slow waits; twice as long every time that it was so soon again."""


@dataclass(slots=True)
class Watch:
    """What the leader holds a ready member to."""

    source: Name
    since: int
    """When it lost its link, or when `mark` was set."""
    met: bool = False
    """It has answered in this epoch, with this source."""
    linked: bool = False
    expected: bool = False
    """It was ready under the leader before: it is given more time than one that only has to find another source."""
    mark: Ends = field(default_factory=Ends)
    """The leader's own disk at `since`: what the member must have in time."""
    owes: bool = False
    """It did not have that yet then."""


@dataclass(slots=True)
class Candidate:
    """A reader that is not ready."""

    mark: Ends
    since: int
    took_ms: int | None = None
    """How long it took to get to the mark before this one."""
    guarded_at: int | None = None


@dataclass(slots=True)
class Record:
    """How often a member was left out."""

    times: int = 0
    at: int = 0
    slow_times: int = 0
    """How often of late because it was slow; 0: the last time it was for something else."""


@dataclass(slots=True)
class Reign:
    me: Name
    config: ClusterConfig
    topology: Topology
    view: View
    now: int
    progress: Progress = field(default_factory=Progress)
    watches: dict[Name, Watch] = field(default_factory=dict)
    candidates: dict[Name, Candidate] = field(default_factory=dict)
    records: dict[Name, Record] = field(default_factory=dict)
    gone: set[Name] = field(default_factory=set)
    """Members whose lease has ended."""
    unwanted: dict[Name, str] = field(default_factory=dict)
    """To be left out whether they are late or not, and why."""
    barred: dict[Name, int] = field(default_factory=dict)
    """An operator dropped them: they come in again when they connect anew. A link made before this time is no sign of that:
    whoever was fed by another turns to the leader now."""
    paces: dict[Name, Pace] = field(default_factory=dict)
    slow: set[Name] = field(default_factory=set)
    """Those that are to be left out because they are slow."""
    _required_by: View | None = None
    """The view whose ready members, and nobody else, are required already."""
    _overdue: bool = False
    """Somebody was late when everybody was looked at."""

    def __post_init__(self) -> None:
        self.see(self.view, ())
        for watch in self.watches.values():
            watch.expected = True

    def see(self, view: View, undecided: tuple[View, ...]) -> None:
        """The view of this epoch is that now; of those proposed nobody knows yet."""
        for name in self.view.ready:
            if name not in view.ready:
                record = self.records.setdefault(name, Record())
                soon = self.now - record.at < GOOD_MS
                record.times = record.times + 1 if soon else 1
                record.slow_times = (record.slow_times if soon else 0) + 1 if name in self.slow else 0
                record.at = self.now
                self.progress.forget(name)
                self.candidates.pop(name, None)
        self.view = view
        others = [name for name in view.ready if name != self.me]
        self.slow &= set(others)
        new = partial(Pace, self.config.ack_budget_ms, self.config.ack_budget_share)
        self.paces = {name: self.paces.get(name) or new() for name in others}
        for name in [name for name in self.watches if name not in others]:
            del self.watches[name]
        for name in others:
            self.candidates.pop(name, None)
            source = self.topology.source(view, name)
            watch = self.watches.get(name)
            if watch is None or watch.source != source:
                self.watches[name] = Watch(source, self.now)
        self.unwanted = {name: why for name, why in self.unwanted.items() if name in others}
        self.require(undecided)

    def require(self, undecided: tuple[View, ...]) -> None:
        plain = not undecided and not self.candidates
        if plain and self._required_by is self.view:
            return
        self._required_by = self.view if plain else None
        names = set(self.view.ready)
        for view in undecided:
            names.update(view.ready)
        names.update(name for name, one in self.candidates.items() if one.guarded_at is not None)
        names.discard(self.me)
        self.progress.required = names
        self.progress.held = len(self.view.ready) < self.config.copies_min

    def greet(self, reader: Name, durable: Ends, own: Ends) -> None:
        """It reads from the leader itself now, and holds this."""
        if reader in self.view.ready:
            self.progress.acked(reader, durable)
        else:
            self.candidates.pop(reader, None)
            self.admit(reader, durable, own)

    def admit(self, reader: Name, durable: Ends, own: Ends) -> None:
        """It may become ready, if it is not on its way to already."""
        if reader not in self.candidates:
            self.progress.begin(reader, durable)
            self.candidates[reader] = Candidate(own, self.now)

    def left(self, reader: Name) -> None:
        """Its link with the leader is gone. One that a proposal names stays required until that is decided."""
        self.candidates.pop(reader, None)
        turns_until = self.barred.pop(reader, 0)
        if self.now < turns_until:
            self.barred[reader] = 0

    def bar(self, member: Name, *, reads: bool) -> None:
        """Keep it out until it connects anew. `reads`: from the leader itself."""
        self.barred[member] = 0 if reads else self.now + self.config.backup_timeout_ms

    def linked(self, direct: set[Name], behind: set[Name]) -> None:
        """These are reached at present, by the leader itself and through others."""
        before = {name for name, watch in self.watches.items() if watch.linked}
        for name, watch in self.watches.items():
            reached = name in direct or name in behind
            # One that the leader has just let in still has to find the member that feeds it from now on.
            watch.met = watch.met or name in (direct if watch.source == self.me else behind)
            if reached and not watch.linked:
                watch.mark, watch.since = Ends(), self.now
            elif not reached and (watch.linked or (watch.source != self.me and watch.source not in before)):
                watch.since = self.now  # its time begins when the one that feeds it is there
            watch.linked = reached

    def overslept(self, ms: int) -> None:
        """This process did not run for a while. The others are not to blame for it."""
        for watch in self.watches.values():
            watch.since += ms
        for candidate in self.candidates.values():
            candidate.since += ms

    def review(self, own: Ends) -> int | None:
        """Look at everybody, the leader's disk being there; say when to look again."""
        wake: list[int] = []
        self._overdue = False
        for name, watch in self.watches.items():
            paid = self._has_paid(name, watch, own)
            if not paid and watch.linked and watch.since + WINDOW_MS > self.now:
                wake.append(watch.since + WINDOW_MS)
            deadline = self._deadline(name, watch)
            if deadline is not None and deadline > self.now:
                wake.append(deadline)
            elif deadline is not None:
                self._overdue = True
        for name, candidate in self.candidates.items():
            at = self._consider(name, candidate, own)
            if at is not None:
                wake.append(at)
        return min(wake, default=None)

    def _has_paid(self, name: Name, watch: Watch, own: Ends) -> bool:
        """Whether it has what it was held to; then it is held to what the leader has now."""
        has = self.progress.has(name)
        if not watch.linked or not has.covers(watch.mark):
            return False
        if watch.owes:
            self.paces[name].note(self.now, self.now - watch.since)
        watch.mark, watch.since, watch.owes = own, self.now, not has.covers(own)
        return True

    def count(self, own: Ends, names: Iterable[Name]) -> None:
        """The disks of these are further, or the leader's own, and the reign is quiet: see what is complete, and who has
        paid. Afterwards it is as quiet as before, unless somebody was `tardy`."""
        self.progress.advance(own)
        for name in names:
            watch = self.watches.get(name)
            if watch is not None:
                self._has_paid(name, watch, own)

    @property
    def quiet(self) -> bool:
        """Nobody comes, goes or is late: until something happens, or so much time has passed as `review` said, it is
        enough to count. One that is far behind says itself when it has come nearer."""
        return not (
            any(one.guarded_at is not None for one in self.candidates.values())
            or self.unwanted
            or self.slow
            or not self.gone.isdisjoint(self.watches)
            or self._overdue
            or self.progress.held
            or self.tardy
            or not all(watch.linked for watch in self.watches.values())
        )

    @property
    def tardy(self) -> bool:
        """Somebody was over its budget of late."""
        return any(pace.rounds for pace in self.paces.values())

    def late(self) -> dict[Name, str]:
        """Those to be left out, and why, when everybody has been looked at (`review`)."""
        if not (self.unwanted or self.slow or self._overdue or self.tardy):
            return {}
        found = dict(self.unwanted)
        for name, watch in self.watches.items():
            deadline = self._deadline(name, watch)
            if deadline is None or self.now < deadline:
                continue
            feeder = self.watches.get(watch.source)
            if name in found or watch.source in found or (feeder is not None and not feeder.linked):
                continue  # whoever feeds it is to blame
            if watch.linked and feeder is not None and not self.progress.has(watch.source).covers(watch.mark):
                continue  # it cannot have what that one lacks
            found[name] = "it does not answer" if watch.linked else "there is no link to it"
        self._look_for_slow(found)
        for name in self.slow:
            found.setdefault(
                name, f"it takes more than {self.config.ack_budget_ms} ms to acknowledge anything"
            )
        return found

    def _look_for_slow(self, late: dict[Name, str]) -> None:
        """One member that is slow while others are not; if several are, the fault is not theirs."""
        if not self.config.ack_budget_ms or self.slow:
            return
        slow = {
            name
            for name, watch in self.watches.items()
            if watch.linked and self.paces[name].is_slow(self.now, self._owed_ms(watch))
        }
        if not slow:
            return
        first = [name for name in slow if self.watches[name].source not in slow]
        left = set(self.watches) - set(late) - set(first)
        if len(first) == 1 and left and len(left) + 1 >= self.config.copies_min:
            self.slow.update(first)

    def over_budget(self) -> dict[Name, float]:
        """For which share of the last seconds each of the ready was over its budget; nothing if there is none."""
        if not self.config.ack_budget_ms:
            return {}
        return {
            name: self.paces[name].share(self.now, self._owed_ms(watch))
            for name, watch in self.watches.items()
        }

    def _owed_ms(self, watch: Watch) -> int:
        return self.now - watch.since if watch.owes else 0

    def welcome(self) -> list[Name]:
        """Those that hold all that is complete and without which nothing completes any more."""
        return [
            name
            for name, one in self.candidates.items()
            if one.guarded_at is not None and self.progress.has(name).covers(self.progress.complete)
        ]

    def _deadline(self, name: Name, watch: Watch) -> int | None:
        if watch.linked and self.progress.has(name).covers(watch.mark):
            return None
        if name in self.gone or (watch.met and not watch.linked):
            return watch.since + self.config.link_grace_ms
        if not watch.linked and not watch.expected:
            return watch.since + min(self.config.backup_timeout_ms, 5 * self.config.link_grace_ms)
        return watch.since + self.config.backup_timeout_ms

    def _consider(self, name: Name, candidate: Candidate, own: Ends) -> int | None:
        """Guard it if it keeps up, and give it up if it does not after all."""
        reach = self.config.backup_timeout_ms // 5
        has = self.progress.has(name)
        if candidate.guarded_at is not None:
            if has.covers(self.progress.complete) or self.now < candidate.guarded_at + reach:
                return candidate.guarded_at + reach if not has.covers(self.progress.complete) else None
            candidate.guarded_at = candidate.took_ms = None
            candidate.mark, candidate.since = own, self.now
            return None
        if name in self.barred or not has.covers(candidate.mark):
            return None
        record = self.records.get(name, Record())
        wait = min(AWAY_MS_MAX, self.config.link_grace_ms << min(record.times, 16)) if record.times > 1 else 0
        if record.slow_times:
            # It was too slow before: it must be well within the budget now.
            wait = min(SLOW_MS_MAX, SLOW_MS << min(record.slow_times - 1, 16))
            reach = min(reach, self.config.ack_budget_ms // 2)
        if self.now < record.at + wait and not self.progress.held:
            return record.at + wait
        took = self.now - candidate.since
        # Publishers wait for the rest from now on: it comes nearer first, as long as it gains on them.
        gains = candidate.took_ms is None or 4 * took < 3 * candidate.took_ms
        near = took <= (reach if not gains else min(reach, NEAR_MS))
        if near or has.covers(own):
            candidate.guarded_at = self.now
        else:
            candidate.mark, candidate.since, candidate.took_ms = own, self.now, took
        return None
