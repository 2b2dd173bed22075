"""Views without an etcd: an operator or a resource manager says who leads, and members tell one another.

Each member keeps the newest view that it knows in its data directory:

    VIEW      one JSON object with a checksum, as STATUS

Once a second, and whenever there is news, it dials every other member over a short link of its own kind; each side says what
it knows about members and views, and both keep the newer view. Newer is the higher epoch, then the higher counter: the
revision of a view is both, `epoch << 32 | counter`. The leader's proposals and a promotion are written to the own file
after a round of asking, so that whoever can be reached and knows better is heard first; a promotion is told to all who
can be reached before it holds, so that a leader which runs has stepped down by then.

There is no place where writes are compared. What etcd's transaction prevents, somebody else must: a leader that nobody can
reach goes on without those it cannot reach, and whoever promotes one of those must have stopped that leader first. A member
that was left out and could not be told still believes that it is ready (`untold`).

Invariant: a view is told to the member only when it is in the file; views are told in the order of (revision, history).
"""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Callable, Coroutine, Iterable
from dataclasses import replace
from typing import Any

from tidemark.errors import StoreError
from tidemark.model.peers import Name, View
from tidemark.ports import Disk
from tidemark.runtime.clock import ticks_ms
from tidemark.runtime.log import Log
from tidemark.runtime.membership.facts import MemberFacts, MembershipEvents
from tidemark.runtime.membership.telling import (
    COUNTER_BITS,
    Listening,
    NotAnswered,
    Told,
    exchange,
    view_facts,
    view_of,
)
from tidemark.runtime.peers import Peers
from tidemark.store.status import read_facts, write_facts
from tidemark.wire.peer.handshake import LinkKind

VIEW = "VIEW"
ROUND_S = 1.0
"""Between two rounds when there is no news."""
LASTING_MS = 365 * 24 * 3600 * 1000
"""Nobody takes a leader's place by the clock, so its lease is always good."""


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


class ExternalMembership:
    def __init__(
        self,
        peers: Peers,
        names: Iterable[Name],
        facts: Callable[[], MemberFacts],
        events: MembershipEvents,
        log: Log,
        disk: Disk,
        away_s: float,
    ) -> None:
        """`names` are the other members as they were configured; those that say hello are learned. `away_s`: who was not
        heard of for so long counts as gone."""
        self.view: View | None = None
        self._peers = peers
        self._names = set(names) - {peers.me}
        self._facts = facts
        self._events = events
        self._log = log
        self._disk = disk
        self._away_ms = int(away_s * 1000)
        self._members: dict[Name, MemberFacts] = {}
        """As they said themselves."""
        self._heard_ms: dict[Name, int] = {}
        self._told: dict[Name, int] = {}
        """Member → revision of the newest view that it is known to have."""
        self._problems: dict[Name, str] = {}
        """Those that could not be reached last time, and why."""
        self._hurry = asyncio.Event()
        self._proposing = asyncio.Lock()
        self._tasks: set[asyncio.Task[None]] = set()
        peers.compared = self.compared

    def start(self) -> None:
        try:
            self.view = read_view(self._disk)
        except ValueError as problem:
            # Whoever else knows it tells it; without them only an operator can say that this store is a good one.
            self._log.error("view not understood", file=VIEW, problem=str(problem))
        self._events.member_here(self._facts())
        self._events.view_changed(self.view)
        self._events.lease(ticks_ms() + LASTING_MS)
        self._spawn(self._run())

    def propose(self, view: View) -> None:
        """Keep this view if the one that it was derived from is still the newest. An event answers, later."""
        self._spawn(self._propose(view))

    def hurry(self) -> None:
        """There is news: ask and tell everybody now."""
        self._hurry.set()

    async def close(self) -> None:
        tasks = list(self._tasks)
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)

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
        return {name: one for name, one in self._members.items() if name not in self._problems}

    async def compare(self) -> dict[Name, MemberFacts | NotAnswered]:
        """Ask and tell everybody: who was asked, and what he says of himself, or why he does not."""
        names = sorted(self.others())
        answers = await asyncio.gather(*(self._exchange(name) for name in names))
        return dict(zip(names, answers, strict=True))

    def others(self) -> set[Name]:
        ready = self.view.ready if self.view is not None else ()
        return (self._names | set(self._members) | set(ready)) - {self._peers.me}

    # Rounds ------------------------------------------------------------------------------------------------------

    def _spawn(self, work: Coroutine[Any, Any, None]) -> None:
        task = asyncio.get_running_loop().create_task(work)
        self._tasks.add(task)
        task.add_done_callback(self._finished)

    def _finished(self, task: asyncio.Task[None]) -> None:
        self._tasks.discard(task)
        if not task.cancelled() and task.exception() is not None:
            self._log.error("membership failed", error=task.exception())

    async def _run(self) -> None:
        while True:
            self._hurry.clear()
            try:
                await self.compare()
                self._look_for_gone()
            except Exception as error:
                self._log.error("unexpected exception", where="views", error=error)
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(ROUND_S):
                    await self._hurry.wait()

    def _look_for_gone(self) -> None:
        now_ms = ticks_ms()
        for name, at_ms in list(self._heard_ms.items()):
            if now_ms - at_ms > self._away_ms:
                del self._heard_ms[name]
                if name not in self._names:
                    self._members.pop(name, None)
                self._events.member_gone(name)

    async def _exchange(self, name: Name) -> MemberFacts | NotAnswered:
        """Tell one member and hear it."""
        try:
            told = await exchange(self._peers, name, LinkKind.VIEW, self._telling())
        except NotAnswered as error:
            problem = str(error)
            if self._problems.get(name) != problem:
                self._problems[name] = problem
                self._log.warning("member not reached", member=name, problem=problem)
            return error
        self._hear(name, told)
        if self._problems.pop(name, None):
            self._log.info("member reached", member=name)
        return told.member

    def compared(self, peer: Name) -> asyncio.BaseProtocol:
        """A member that has proven who it is wants to tell us what it knows."""
        return Listening(peer, self._heard, self._log)

    def _heard(self, peer: Name, told: Told) -> Told:
        """It has told us this; what we tell it."""
        self._hear(peer, told)
        return self._telling()

    # What is known -------------------------------------------------------------------------------------------------

    def _telling(self) -> Told:
        return Told(self._facts(), self.view, tuple(self._members.values()))

    def _hear(self, peer: Name, told: Told) -> None:
        if told.member.name != peer:
            raise ValueError(f"'{peer}' calls itself '{told.member.name}'")
        self._told[peer] = told.view.revision if told.view is not None else 0
        self._heard_ms[peer] = ticks_ms()
        self._came(told.member)
        for other in told.others:
            if other.name not in self._members and other.name != self._peers.me:
                self._came(other)
        if told.view is not None:
            self._take(told.view, peer)

    def _came(self, facts: MemberFacts) -> None:
        if self._members.get(facts.name) != facts:
            self._members[facts.name] = facts
            self._events.member_here(facts)

    def _take(self, view: View, peer: Name) -> None:
        """A member knows this view: keep it if it is newer."""
        known, own = self.view, self._facts().cluster or (self.view.cluster if self.view is not None else "")
        if own not in ("", view.cluster):
            self._log.error(
                "member of another cluster", member=peer, cluster=view.cluster, own=own,
                hint="start one of them with an empty data directory",
            )  # fmt: skip
            return
        if known is not None and (view.revision, view.history) <= (known.revision, known.history):
            return
        if known is not None and view.epoch == known.epoch and view.history != known.history:
            self._log.error(
                "two members were promoted at once",
                epoch=view.epoch,
                leaders=f"{known.leader} {view.leader}",
                effect=f"{view.leader} leads",
            )
        if self._keep(view):
            self._events.view_changed(view)
            self._hurry.set()

    def _keep(self, view: View) -> bool:
        """Have the view in the file; False if that cannot be."""
        try:
            write_facts(self._disk, VIEW, view_facts(view))
        except StoreError as error:
            self._log.error("view not kept", epoch=view.epoch, leader=view.leader, error=str(error))
            return False
        self.view = view
        return True

    # Proposals -----------------------------------------------------------------------------------------------------

    async def _propose(self, view: View) -> None:
        async with self._proposing:
            await self.compare()
            known = self.view
            if (known.revision if known is not None else 0) != view.revision:
                self._events.proposal_failed(view)
                return
            counter = view.revision & ((1 << COUNTER_BITS) - 1)
            made = replace(view, revision=view.epoch << COUNTER_BITS | (counter + 1))
            if not self._keep(made):
                self._events.proposal_failed(view)
                return
            if known is not None and known.epoch == made.epoch:
                self._events.view_changed(made)
                await self._tell(known, made)
                return
            # Whoever leads and can be reached has stepped down when this returns.
            await self._tell(known, made)
            if self.view is made:
                self._events.view_changed(made)
            else:
                self._events.proposal_failed(view)

    async def _tell(self, before: View | None, view: View) -> None:
        answers = await self.compare()
        unreached = {name for name, one in answers.items() if isinstance(one, NotAnswered)}
        left_out = set(before.ready if before is not None else ()) - set(view.ready) - {self._peers.me}
        for name in sorted(left_out & unreached):
            self._log.warning(
                "left out and not told",
                member=name,
                epoch=view.epoch,
                hint="it takes itself for ready: do not promote it before it has been in touch",
            )
