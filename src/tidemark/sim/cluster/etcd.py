"""A modelled etcd, and the agent that speaks with it on behalf of one member.

`Etcd` keeps one view under a revision, changed only by compare-and-swap, and the members that are registered, each
under a lease. It can be away: then nothing is answered, and when it is back every lease begins anew, as after an
election in a real one. Requests and answers travel over the same network as everything else and can be lost either
way: a swap whose answer was lost has happened all the same.

`Agent` does what `runtime/membership/etcd.py` does in earnest: takes a lease, registers, renews three times per lease,
follows the changes from the revision that it has seen, carries proposals, and asks for the view again when an answer
stays out.

Invariant: the view is only ever replaced by one that was derived from it; a watcher hears every change, in order.
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


@dataclass(frozen=True, slots=True)
class Gone:
    member: Name


Change = View | MemberHere | Gone


class Etcd:
    def __init__(self, timeline: Timeline, network: Network, ttl_us: int) -> None:
        self.timeline = timeline
        self.network = network
        self.ttl_us = ttl_us
        self.up = True
        self.revision = 1
        self.view: View | None = None
        self.members: dict[Name, tuple[int, MemberHere]] = {}
        """Those that are registered: lease and what they said of themselves."""
        self.changes: list[tuple[int, Change]] = []
        self._leases: dict[int, int] = {}
        """When each ends."""
        self._next_lease = 1
        self._watchers: list[Agent] = []

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
        if self.up and (ETCD, agent.name) not in self.network.cuts and agent.name not in self.network.dark:
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
        if not self.up:
            self.up = True
            for lease in self._leases:
                self._prolong(lease)


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
            lambda: self._etcd.swap(view),
            lambda kept: self._told.proposal_failed(view) if kept is None else self._tell_view(kept),
            lambda: self._find_out(view),
        )

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

        def read(found: tuple[int, View | None, list[MemberHere]]) -> None:
            if found[1] is not None:
                self._tell_view(found[1])
            if found[1] != view:
                self._told.proposal_failed(view)

        self._ask(self._state, read, lambda: self._find_out(view))

    # The lease -----------------------------------------------------------------------------------------------------

    def _beat(self) -> None:
        """Three times per lease, by the member's own clock."""
        if self._stopped:
            return
        sent_ms = self._clock.ticks_ms()
        if self._lease:
            lease = self._lease
            self._ask(lambda: self._etcd.renew(lease), lambda good: self._renewed(good, lease, sent_ms))
        else:
            here = self._here()
            self._ask(lambda: self._enter(here), lambda found: self._entered(found[0], found[1], sent_ms))
        third_us = self._etcd.ttl_us // 3
        self._timeline.after(third_us, lambda: self._do(self._beat))

    def _enter(self, here: MemberHere) -> tuple[int, View | None]:
        lease = self._etcd.grant()
        self._etcd.register(lease, here)
        return lease, self._etcd.view

    def _entered(self, lease: int, view: View | None, sent_ms: int) -> None:
        """A new lease: whoever had one before learns first whether somebody took over meanwhile."""
        self._lease = lease
        if self._seen:
            self._tell_view(view)
        self._good_since(sent_ms)
        self._follow()

    def _renewed(self, good: bool, lease: int, sent_ms: int) -> None:
        if lease != self._lease:
            return
        if good:
            self._good_since(sent_ms)
            self._follow()
        else:
            self._lease = 0
            self._beat_once()

    def _beat_once(self) -> None:
        sent_ms, here = self._clock.ticks_ms(), self._here()
        self._ask(lambda: self._enter(here), lambda found: self._entered(found[0], found[1], sent_ms))

    def _good_since(self, sent_ms: int) -> None:
        """Ours ends earlier than the server's: it began when the request left, and clocks may differ."""
        self._told.lease(sent_ms + int(self._etcd.ttl_us / 1000 * (1 - self._margin)))

    # The watch -----------------------------------------------------------------------------------------------------

    def _follow(self) -> None:
        if self._seen == 0:
            self._ask(self._state, self._read)
        else:
            self._etcd.watch(self)

    def _state(self) -> tuple[int, View | None, list[MemberHere]]:
        etcd = self._etcd
        return etcd.revision, etcd.view, [here for _, here in etcd.members.values()]

    def _read(self, found: tuple[int, View | None, list[MemberHere]]) -> None:
        if self._seen:
            return
        self._seen, view, members = found
        self._tell_view(view)
        for here in members:
            self._told.member_here(here)
        self._etcd.watch(self)

    def heard(self, upto: int) -> None:
        """The changes up to this revision have come."""
        self._do(lambda: self._hear(upto))

    def _hear(self, upto: int) -> None:
        first, self._seen = self._seen + 1, max(self._seen, upto)
        for revision, change in self._etcd.changes_from(first, upto):
            assert revision <= upto
            match change:
                case View():
                    self._tell_view(change)
                case MemberHere():
                    self._told.member_here(change)
                case Gone(member):
                    self._told.member_gone(member)

    def _tell_view(self, view: View | None) -> None:
        revision = 0 if view is None else view.revision
        if revision > self._view_revision:
            self._view_revision = revision
            self._told.view_changed(view)
