"""Carries what members tell one another when there is no etcd, and the time. What it means is decided by `member/views.py`."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Coroutine, Iterable
from typing import Any

from tidemark.member.facts import MemberFacts, MembershipEvents
from tidemark.member.telling import NotAnswered, Told
from tidemark.member.views import Answers, Views
from tidemark.model.peers import Name, View
from tidemark.ports import Disk
from tidemark.runtime.clock import ticks_ms
from tidemark.runtime.log import Log
from tidemark.runtime.membership.telling import Listening, exchange
from tidemark.runtime.peers import Peers
from tidemark.wire.peer.handshake import LinkKind


class ExternalMembership:
    """Fits `runtime.membership.Membership` and `member.views.ViewsOutside`."""

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
        """`names` are the other members as they were configured."""
        self.views = Views(peers.me, names, facts, events, self, disk, int(away_s * 1000))
        self._peers = peers
        self._log = log
        self._tasks: set[asyncio.Task[None]] = set()
        peers.compared = self.compared

    def start(self) -> None:
        self.views.start(ticks_ms())

    def propose(self, view: View) -> None:
        self.views.propose(view)

    def hurry(self) -> None:
        self.views.hurry()

    async def compare(self) -> Answers:
        """Ask and tell everybody: who was asked, and what he says of himself, or why he does not."""
        over: asyncio.Future[Answers] = asyncio.get_running_loop().create_future()
        self.views.compare(lambda answers, _: None if over.done() else over.set_result(answers), ticks_ms())
        return await over

    async def close(self) -> None:
        tasks = list(self._tasks)
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)

    def compared(self, peer: Name) -> asyncio.BaseProtocol:
        """A member that has proven who it is wants to tell us what it knows."""
        return Listening(peer, lambda name, told: self.views.heard(name, told, ticks_ms()), self._log)

    # What the views ask ------------------------------------------------------------------------------------------

    def exchange(self, number: int, name: Name, told: Told) -> None:
        self._spawn(self._exchange(number, name, told))

    def after(self, delay_ms: int, action: Callable[[int], None]) -> None:
        self._spawn(self._after(delay_ms, action))

    def note(self, level: str, event: str, **facts: object) -> None:
        self._log.write(level, event, **facts)

    async def _exchange(self, number: int, name: Name, told: Told) -> None:
        answer: Told | NotAnswered
        try:
            answer = await exchange(self._peers, name, LinkKind.VIEW, told)
        except NotAnswered as problem:
            answer = problem
        except Exception as error:
            # A round that never ends would be the last one.
            self._log.error("unexpected exception", where="views", error=error)
            answer = NotAnswered("it could not be asked", there=True)
        self.views.answered(number, name, answer, ticks_ms())

    async def _after(self, delay_ms: int, action: Callable[[int], None]) -> None:
        await asyncio.sleep(delay_ms / 1000)
        action(ticks_ms())

    def _spawn(self, work: Coroutine[Any, Any, None]) -> None:
        task = asyncio.get_running_loop().create_task(work)
        self._tasks.add(task)
        task.add_done_callback(self._finished)

    def _finished(self, task: asyncio.Task[None]) -> None:
        self._tasks.discard(task)
        if not task.cancelled() and task.exception() is not None:
            self._log.error("membership failed", error=task.exception())
