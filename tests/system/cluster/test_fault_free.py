"""A run in which nothing fails: every message comes once, in the order of its publisher, and is never called redelivered.

TIDEMARK_FAULT_FREE_MESSAGES says how many there are in each mode; `make once` has a million.
"""

from __future__ import annotations

import asyncio
import os
import time
from collections.abc import Iterator
from dataclasses import dataclass, field

import pytest
import uvloop
from system.cluster.cluster import Cluster, drained, fresh

from tidemark.cli.perf.tally import Book
from tidemark.cli.perf.wire import Consumer, Form, Login, Peer, Publisher

COUNT = int(os.environ.get("TIDEMARK_FAULT_FREE_MESSAGES", "250000"))
SIZE = 100
WINDOW = PREFETCH = 1000
STALL_S = 30.0
"""So long nothing came: something is lost, or stands still."""
LOGIN = Login("guest", "guest", "/")

pytestmark = pytest.mark.timeout(120 + COUNT // 1000)


class Taker(Consumer):
    """Notes what comes in another order than it was published in."""

    def __init__(self, book: Book, *, alone: bool) -> None:
        """`alone`: nobody else consumes from that queue, so nothing may be left out."""
        super().__init__(LOGIN, 0, book, no_ack=False)
        self.alone = alone
        self.last: dict[int, int] = {}
        self.disorder: list[tuple[int, int, int]] = []
        """(publisher, what came, what had come before)"""

    def _seen(self, run: int, publisher: int, number: int, sent_ns: int, again: bool) -> None:
        before = self.last.get(publisher, 0)
        if not (number == before + 1 if self.alone else number > before):
            self.disorder.append((publisher, number, before))
        self.last[publisher] = number
        super()._seen(run, publisher, number, sent_ns, again)


@dataclass
class Run:
    """Publishers of every queue at every member, and consumers at different ones."""

    cluster: Cluster
    alone: str
    """Has one consumer, at a backup."""
    shared: str
    """Has one at every member."""
    book: Book = field(default_factory=Book)
    publishers: list[Publisher] = field(default_factory=list)
    takers: list[Taker] = field(default_factory=list)

    @property
    def peers(self) -> Iterator[Peer]:
        yield from self.publishers
        yield from self.takers

    async def go(self) -> None:
        names = self.cluster.names
        for queue, members in ((self.alone, self.cluster.backups[:1]), (self.shared, names)):
            for name in members:
                taker = Taker(self.book, alone=queue == self.alone)
                await self._open(taker, name)
                await taker.begin(queue, PREFETCH, {})
                self.takers.append(taker)
        places = [(queue, name) for queue in (self.alone, self.shared) for name in names]
        for index, (queue, name) in enumerate(places):
            form = Form("", queue, SIZE, persistent=True)
            publisher = Publisher(LOGIN, 0, index, form, window=WINDOW, rate=0)
            publisher.count_max = COUNT // len(places) + (index < COUNT % len(places))
            await self._open(publisher, name)
            self.publishers.append(publisher)
        for publisher in self.publishers:
            await publisher.begin()
        await self._until_all_is_there()
        for peer in self.peers:
            await peer.close()

    async def _open(self, peer: Peer, name: str) -> None:
        where = self.cluster.address(name)
        await asyncio.get_running_loop().create_connection(lambda: peer, where.host, where.port)
        await peer.open()

    async def _until_all_is_there(self) -> None:
        before, since = -1, time.monotonic()
        while any(one.outstanding or not one.finished for one in self.publishers) or self.consumed < COUNT:
            for peer in self.peers:
                assert peer.failed is None, peer.failed
            now = self.consumed + sum(one.confirmed for one in self.publishers)
            if now != before:
                before, since = now, time.monotonic()
            assert time.monotonic() < since + STALL_S, f"{self.consumed} of {COUNT} have come, and no more do"
            await asyncio.sleep(0.01)

    @property
    def consumed(self) -> int:
        return sum(one.consumed for one in self.takers)


def test_every_message_comes_once_in_order_and_is_never_called_redelivered(cluster: Cluster) -> None:
    """H-6: publishers and consumers with acknowledgements at all members, no faults: nothing twice, the flag redelivered is never set."""
    run = Run(cluster, fresh("alone"), fresh("shared"))
    cluster.declare(run.alone, run.shared)

    began = time.monotonic()
    with asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:
        runner.run(run.go())
    took = time.monotonic() - began

    print(f"{cluster.mode}: {COUNT:,} messages in {took:.1f} s, {COUNT / took:,.0f} a second")
    assert sum(one.redelivered for one in run.takers) == 0
    assert run.book.duplicates == 0
    assert [one.disorder[:5] for one in run.takers] == [[]] * len(run.takers)
    assert sum(one.foreign for one in run.takers) == 0
    for publisher in run.publishers:
        assert publisher.confirmed == publisher.published == publisher.count_max and not publisher.nacked
        assert run.book.missing(publisher.index, publisher.confirmed_numbers()) == 0
    cluster.await_equal()
    held = cluster.queues(cluster.leader)
    assert (held[run.alone], held[run.shared]) == (0, 0), "what was acknowledged is settled"
    assert drained(cluster, run.alone) == drained(cluster, run.shared) == []
