"""A modelled etcd, and the agent that speaks with it on behalf of one member.

`Etcd` keeps one view under a revision, changed only by compare-and-swap, and the members that are registered, each
under a lease. It can be away: then nothing is answered, and when it is back every lease begins anew, as after an
election in a real one. Requests and answers travel over the same network as everything else and can be lost either
way: a swap whose answer was lost has happened all the same. Its data can be copied, and the copy brought back later: then
it counts from where the copy was made, has never heard of later leases, and all its connections are broken.

`Agent` does what `runtime/membership/etcd.py` does in earnest: takes a lease, registers, renews three times per lease,
follows the changes from the revision that it has seen, carries proposals, and asks for the view again when an answer
stays out. When its watch breaks, or etcd counts from lower than it has seen, it begins anew and reads everything.

Invariant: the view is only ever replaced by one that was derived from it, or by a copy; a watcher hears every change, in
order, until its watch is broken.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Any, Protocol

from tidemark.cluster.mode import MemberHere
from tidemark.model.peers import Name, View
from tidemark.sim.cluster.clock import MemberClock, Timeline
from tidemark.sim.cluster.network import Network

ETCD = "etcd"
ANSWER_US = 1_000_000
"""An answer that has not come by then is taken for lost."""
PAUSE_US = 200_000
"""Between two attempts to reach an etcd that is down."""
HEAD_START_US = PAUSE_US + 10_000
"""When a copy was brought back, those that ran register again so much earlier than one that starts in that moment: it would
be alone with a view that looks good."""


@dataclass(frozen=True, slots=True)
class Gone:
    member: Name


Change = View | MemberHere | Gone


@dataclass(frozen=True, slots=True)
class Copy:
    """All that an etcd keeps, as it was at one moment."""

    revision: int
    view: View | None
    members: tuple[tuple[Name, tuple[int, MemberHere]], ...]
    changes: tuple[tuple[int, Change], ...]
    leases: tuple[int, ...]


@dataclass(frozen=True, slots=True)
class Found:
    """What an agent reads, all at one revision."""

    revision: int
    view: View | None
    members: tuple[MemberHere, ...]


class Etcd:
    def __init__(self, timeline: Timeline, network: Network, ttl_us: int) -> None:
        self.timeline = timeline
        self.network = network
        self.ttl_us = ttl_us
        self.up = True
        self.revision = 1
        self.view: View | None = None
        self._outlived: View | None = None
        """The newest view of the time that is lost, since an older one was brought back."""
        self.members: dict[Name, tuple[int, MemberHere]] = {}
        """Those that are registered: lease and what they said of themselves."""
        self.changes: list[tuple[int, Change]] = []
        self._leases: dict[int, int] = {}
        """When each ends."""
        self._next_lease = 1
        self._watchers: list[Agent] = []
        self._open_us = 0
        """When those that start are let in."""
        self._replaced = False
        """It is down because its data is being replaced."""

    @property
    def newest(self) -> View | None:
        """The view that holds: an older one that was brought back does not, before another epoch begins on top of it."""
        if self._outlived is None or (self.view is not None and self.view.epoch > self._outlived.epoch):
            return self.view
        return self._outlived

    @property
    def was_replaced(self) -> bool:
        """A copy was brought back once."""
        return self._outlived is not None

    def is_open(self, agent: Agent) -> bool:
        """Whether it may register now."""
        return agent.knows_something or (not self._replaced and self.timeline.now_us >= self._open_us)

    # Requests: what the server does with them -------------------------------------------------------------------

    def grant(self) -> int:
        lease, self._next_lease = self._next_lease, self._next_lease + 1
        self._prolong(lease)
        return lease

    def renew(self, lease: int) -> bool:
        """False: there is no such lease any more."""
        if lease not in self._leases:
            return False
        self._prolong(lease)
        return True

    def register(self, lease: int, here: MemberHere) -> bool:
        if lease not in self._leases:
            return False
        self.members[here.member] = lease, here
        self._changed(here)
        return True

    def revoke(self, lease: int) -> None:
        self._leases.pop(lease, None)
        for name in [name for name, (held, _) in self.members.items() if held == lease]:
            del self.members[name]
            self._changed(Gone(name))

    def swap(self, view: View) -> View | None:
        """Put this view in the place of the one it was derived from. Returns it as it is kept; None: refused."""
        current = 0 if self.view is None else self.view.revision
        if view.revision != current:
            return None
        self.view = replace(view, revision=self.revision + 1)
        self._changed(self.view)
        return self.view

    def _prolong(self, lease: int) -> None:
        ends_us = self._leases[lease] = self.timeline.now_us + self.ttl_us
        self.timeline.after(self.ttl_us, lambda: self._look_at(lease, ends_us))

    def _look_at(self, lease: int, ends_us: int) -> None:
        if self.up and self._leases.get(lease) == ends_us:
            self.revoke(lease)

    def _changed(self, change: Change) -> None:
        self.revision += 1
        self.changes.append((self.revision, change))
        for agent in self._watchers:
            self.tell(agent)

    def changes_from(self, first: int, last: int) -> list[tuple[int, Change]]:
        """Those of these revisions."""
        start = max(0, first - 2)  # the first change makes revision 2
        return self.changes[start : max(start, last - 1)]

    def tell(self, agent: Agent) -> None:
        """Let the agent hear what it has not heard yet, if it can be reached."""
        delay_us = self.network.delay_us(ETCD, agent.name) * self.network.dice.choice((1, 1, 1, 10, 60, 600))
        self.timeline.after(delay_us, lambda: self._push(agent))

    def _push(self, agent: Agent) -> None:
        if agent not in self._watchers or agent.name in self.network.dark:
            return
        if self.up and (ETCD, agent.name) not in self.network.cuts:
            agent.heard(self.revision)

    def watch(self, agent: Agent) -> None:
        if agent not in self._watchers:
            self._watchers.append(agent)
        self.tell(agent)

    def forget(self, agent: Agent) -> None:
        if agent in self._watchers:
            self._watchers.remove(agent)

    # Faults -------------------------------------------------------------------------------------------------------

    def away(self) -> None:
        self.up = False

    def back(self) -> None:
        if not self.up and not self._replaced:
            self.up = True
            for lease in self._leases:
                self._prolong(lease)

    def copy(self) -> Copy:
        """Its data as it is now."""
        return Copy(
            self.revision, self.view, tuple(self.members.items()), tuple(self.changes), tuple(self._leases)
        )

    def bring_back(self, copy: Copy, after_us: int) -> None:
        """It goes down now, and comes up with the data of this copy so much later."""
        self.up, self._replaced = False, True
        self.timeline.after(after_us, lambda: self._up_with(copy))

    def _up_with(self, copy: Copy) -> None:
        self._outlived = self.newest
        self.revision, self.view = copy.revision, copy.view
        self.members, self.changes = dict(copy.members), list(copy.changes)
        self._leases = dict.fromkeys(copy.leases, 0)
        self._replaced = False
        self._open_us = self.timeline.now_us + HEAD_START_US
        self.back()
        watchers, self._watchers = self._watchers, []
        for agent in watchers:
            # It has tried in vain every now and then since the connection broke.
            self.timeline.after(self.network.dice.randrange(PAUSE_US), agent.broken)


class Told(Protocol):
    """What an agent tells its member."""

    def view_changed(self, view: View | None) -> None: ...

    def proposal_failed(self, view: View) -> None: ...

    def member_gone(self, name: Name) -> None: ...

    def member_here(self, here: MemberHere) -> None: ...

    def lease(self, until_ticks_ms: int) -> None: ...


class Agent:
    """One life of a member's connection with etcd."""

    def __init__(
        self,
        etcd: Etcd,
        name: Name,
        clock: MemberClock,
        told: Told,
        here: Callable[[], MemberHere],
        post: Callable[[Callable[[], None]], None],
        margin: float,
    ) -> None:
        self.name = name
        self._etcd = etcd
        self._network = etcd.network
        self._timeline = etcd.timeline
        self._clock = clock
        self._told = told
        self._here = here
        self._post = post
        """Has something done in the member's process, now or when it runs again."""
        self._margin = margin
        self._lease = 0
        self._seen = 0
        """Up to which revision it has been told everything; 0: it has read nothing yet."""
        self._view_revision = -1
        self._members: dict[Name, MemberHere] = {}
        """Those that are registered, as it was told."""
        self._broken = False
        """Its watch is broken: it must read everything again before it goes on."""
        self._stopped = False
        self._beat()

    def stop(self) -> None:
        """The process is no more."""
        self._stopped = True
        self._etcd.forget(self)

    def leave(self) -> None:
        """A clean end: the lease goes at once."""
        lease = self._lease
        self._ask(lambda: self._etcd.revoke(lease), lambda _: None)
        self.stop()

    def propose(self, view: View) -> None:
        """The member hears `view_changed` or `proposal_failed`, later."""
        self._ask(
            lambda: (self._etcd.swap(view), self._found()),
            lambda answer: self._proposed(view, *answer),
            lambda: self._find_out(view),
        )

    def _proposed(self, view: View, kept: View | None, found: Found) -> None:
        if kept is not None:
            self._saw(kept, found.revision)
        else:
            self._saw_if_older(found)
            self._told.proposal_failed(view)

    # Requests ------------------------------------------------------------------------------------------------------

    def _ask(
        self,
        work: Callable[[], Any],
        answer: Callable[[Any], None],
        lost: Callable[[], None] = lambda: None,
    ) -> None:
        """Have the server do something; one of the two is called in the member's process."""
        network, timeline = self._network, self._timeline
        over = False

        def arrive() -> None:
            if not self._etcd.up or (self.name, ETCD) in network.cuts:
                return
            result = work()
            if (ETCD, self.name) not in network.cuts:
                timeline.after(network.delay_us(ETCD, self.name), lambda: end(lambda: answer(result)))

        def end(then: Callable[[], None]) -> None:
            nonlocal over
            if not over:
                over = True
                self._do(then)

        timeline.after(network.delay_us(self.name, ETCD), arrive)
        timeline.after(ANSWER_US, lambda: end(lost))

    def _do(self, action: Callable[[], None]) -> None:
        if not self._stopped:
            self._post(lambda: None if self._stopped else action())

    def _find_out(self, view: View) -> None:
        """The answer to a proposal was lost: perhaps it came through."""

        def read(found: Found) -> None:
            if found.view is not None:
                self._saw(found.view, found.revision)
            if found.view != view:
                self._told.proposal_failed(view)

        self._ask(self._found, read, lambda: self._find_out(view))

    # The lease -----------------------------------------------------------------------------------------------------

    def _beat(self) -> None:
        """Three times per lease, by the member's own clock."""
        if self._stopped:
            return
        if self._lease and not self._broken:
            sent_ms, lease, known = self._clock.ticks_ms(), self._lease, self._known
            self._ask(
                lambda: (self._etcd.renew(lease), self._found()),
                lambda answer: self._renewed(answer[0], lease, sent_ms, known, answer[1]),
            )
        else:
            self._join()
        third_us = self._etcd.ttl_us // 3
        self._timeline.after(third_us, lambda: self._do(self._beat))

    def _join(self) -> None:
        """Have a lease, the one from before if it is still good, and register under it."""
        if not self._etcd.is_open(self):
            self._timeline.after(PAUSE_US, lambda: self._do(self._join))
            return
        sent_ms, here, lease, known = self._clock.ticks_ms(), self._here(), self._lease, self._known
        self._ask(
            lambda: self._enter(here, lease),
            lambda answer: self._entered(answer[0], sent_ms, known, answer[1]),
        )

    def _enter(self, here: MemberHere, lease: int) -> tuple[int, Found]:
        if not lease or not self._etcd.renew(lease):
            lease = self._etcd.grant()
        self._etcd.register(lease, here)
        return lease, self._found()

    def _entered(self, lease: int, sent_ms: int, known: int, found: Found) -> None:
        """A new lease: whoever had one before learns first whether somebody took over meanwhile."""
        self._lease = lease
        if self._broken or found.revision < known:
            self._read_anew(found, known)
        elif self._seen:
            self._saw(found.view, found.revision)
        self._good_since(sent_ms)
        self._follow()

    def _renewed(self, good: bool, lease: int, sent_ms: int, known: int, found: Found) -> None:
        """`known`: the highest revision of which it had heard when it asked."""
        if lease != self._lease:
            return
        if found.revision < known:
            self._broken = True  # etcd has lost what was seen there: look at all of it
            self._join()
            return
        self._saw_if_older(found)
        if good:
            self._good_since(sent_ms)
            self._follow()
        else:
            self._lease = 0
            self._join()

    def _good_since(self, sent_ms: int) -> None:
        """Ours ends earlier than the server's: it began when the request left, and clocks may differ."""
        self._told.lease(sent_ms + int(self._etcd.ttl_us / 1000 * (1 - self._margin)))

    # The watch -----------------------------------------------------------------------------------------------------

    def _follow(self) -> None:
        if self._seen == 0:
            self._ask(self._found, self._read)
        elif not self._broken:
            self._etcd.watch(self)

    @property
    def knows_something(self) -> bool:
        return self._seen > 0

    @property
    def _known(self) -> int:
        return max(self._seen, self._view_revision)

    def _found(self) -> Found:
        etcd = self._etcd
        return Found(etcd.revision, etcd.view, tuple(here for _, here in etcd.members.values()))

    def _read(self, found: Found) -> None:
        if self._seen:
            return
        self._seen = found.revision
        if not self._etcd.was_replaced:
            self._saw(found.view, found.revision)
        for here in found.members:
            self._came(here)
        # In earnest members always come first; here only where it matters, for the sake of the runs that were there before.
        self._saw(found.view, found.revision)
        self._etcd.watch(self)

    def broken(self) -> None:
        """The watch has ended before its time: etcd is another process now."""
        self._do(self._begin_anew)

    def _begin_anew(self) -> None:
        self._broken = True
        self._join()

    def _read_anew(self, found: Found, known: int) -> None:
        """All that there is now, whatever was seen before."""
        if found.revision < known:
            self._view_revision = -1
        self._seen, self._broken = found.revision, False
        here = {one.member: one for one in found.members}
        for name in [name for name in self._members if name not in here]:
            self._went(name)
        for one in here.values():
            if self._members.get(one.member) != one:
                self._came(one)
        self._saw(found.view, found.revision)

    def heard(self, upto: int) -> None:
        """The changes up to this revision have come."""
        self._do(lambda: self._hear(upto))

    def _hear(self, upto: int) -> None:
        first, self._seen = self._seen + 1, max(self._seen, upto)
        for revision, change in self._etcd.changes_from(first, upto):
            assert revision <= upto
            match change:
                case View():
                    self._saw(change, change.revision)
                case MemberHere():
                    self._came(change)
                case Gone(member):
                    self._went(member)

    def _came(self, here: MemberHere) -> None:
        self._members[here.member] = here
        self._told.member_here(here)

    def _went(self, name: Name) -> None:
        self._members.pop(name, None)
        self._told.member_gone(name)

    def _saw(self, view: View | None, revision: int) -> None:
        """The view as it was at `revision`. A read that is newer than the view that was told, and finds an older one, is of
        an etcd that was brought back."""
        made = 0 if view is None else view.revision
        if made > self._view_revision or made < self._view_revision <= revision:
            self._view_revision = made
            self._told.view_changed(view)

    def _saw_if_older(self, found: Found) -> None:
        """What came along with another answer. A newer view than the one that was told is left to the watch."""
        if found.view is not None and found.view.revision < self._view_revision:
            self._saw(found.view, found.revision)
