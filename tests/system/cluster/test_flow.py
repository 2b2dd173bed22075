"""A real member that is slow and stays: publishers are held up for it, at all members, and the leader's memory stays flat."""

from __future__ import annotations

import asyncio
import os
import re
import shutil
import threading
import time
import urllib.request
from collections.abc import Callable, Coroutine, Iterator
from pathlib import Path
from typing import Any

import pytest
import uvloop
from helpers.etcd import PROGRAM
from system.cluster.cluster import Cluster, fresh, wait_until
from system.cluster.conftest import LOG_LINES, MODES
from system.cluster.test_fault_free import LOGIN, Taker

from tidemark.cli.perf.tally import Book
from tidemark.cli.perf.wire import Form, Peer, Publisher
from tidemark.runtime.connection import FULL_MAX
from tidemark.runtime.server import READ_BYTES
from tidemark.wire.amqp091 import methods as m

MiB = 1 << 20
SIZE = 16 << 10
WINDOW, LAG = 1 * MiB, 16 * MiB
FRAME = 1 * MiB
"""What the last frame may have beyond the window."""
DELAY_MS = 150
"""One way: no more than a window, or two, in 0.3 s gets to the slow one."""
SLOW_S = 1.0
PUBLISHERS = 4
ONCE = 4 * PUBLISHERS * FULL_MAX * READ_BYTES
"""What may be read in the turns until it is seen that publishers must wait, and until those have stopped who do not."""
GROWTH = LAG + ONCE
PATIENCE_S = 20.0

pytestmark = pytest.mark.timeout(120)


@pytest.fixture(params=MODES)
def cluster(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Cluster]:
    if shutil.which(PROGRAM) is None:
        assert not os.environ.get("CI"), "etcd is missing: apt-get install etcd-server"
        pytest.skip("etcd is not installed: apt-get install etcd-server")
    settings = {
        "cluster.window_bytes": str(WINDOW),
        "cluster.lag_bytes": str(LAG),
        # The slow one is not left out, nor does anybody else lead: proxies that carry so much may be late with leases.
        "cluster.ack_budget_ms": "0",
        "cluster.backup_timeout_ms": "30000",
        "cluster.lease_s": "15",
        "log.level": "info",
    }
    made = Cluster(tmp_path, request.param, proxies=True, settings=settings)
    failed = request.session.testsfailed
    try:
        yield made.start()
    finally:
        made.close()
    if request.session.testsfailed > failed:
        for name in made.names:
            print(f"--- {name}", *made.log(name).splitlines()[-LOG_LINES:], sep="\n")


class Rude(Publisher):
    """Publishes as fast as its socket takes it, also when it is asked to wait."""

    def __init__(self, index: int, queue: str) -> None:
        form = Form("", queue, SIZE, persistent=True)
        super().__init__(LOGIN, 0, index, form, window=1 << 20, rate=0)
        self.told: list[str] = []
        """Why it is to wait; empty: it may go on."""

    def _method(self, method: m.Method) -> None:
        match method:
            case m.ConnectionBlocked(reason=reason):
                self.told.append(reason)
            case m.ConnectionUnblocked():
                self.told.append("")
            case _:
                super()._method(method)


class Load:
    """Publishers at some members and a consumer at one, in a loop of their own."""

    def __init__(self, cluster: Cluster, queue: str, publishing: tuple[str, ...], taking: str) -> None:
        self.book = Book()
        self.taker = Taker(self.book, alone=True)
        self.publishers = [Rude(index, queue) for index in range(len(publishing))]
        self._loop = uvloop.new_event_loop()
        self._thread = threading.Thread(target=self._loop.run_forever, daemon=True)
        self._thread.start()
        self._call(self._begin(cluster, queue, publishing, taking))

    async def _begin(self, cluster: Cluster, queue: str, publishing: tuple[str, ...], taking: str) -> None:
        await self._open(self.taker, cluster, taking)
        await self.taker.begin(queue, 200, {})
        for publisher, name in zip(self.publishers, publishing, strict=True):
            await self._open(publisher, cluster, name)
            await publisher.begin()

    @staticmethod
    async def _open(peer: Peer, cluster: Cluster, name: str) -> None:
        where = cluster.address(name)
        await asyncio.get_running_loop().create_connection(lambda: peer, where.host, where.port)
        await peer.open()

    def _call(self, what: Coroutine[Any, Any, None]) -> None:
        asyncio.run_coroutine_threadsafe(what, self._loop).result(PATIENCE_S)

    def wait_for(self, member: str) -> bool:
        """Whether all publishers have been told to wait for this one."""
        return all(one.told and member in one.told[-1] for one in self.publishers)

    @property
    def notices(self) -> list[int]:
        """How often each publisher has been told anything."""
        return [len(one.told) for one in self.publishers]

    def went_on(self, notices: list[int]) -> bool:
        """Whether all have been told since that they may go on."""
        return all("" in one.told[count:] for one, count in zip(self.publishers, notices, strict=True))

    @property
    def confirmed(self) -> int:
        return sum(one.confirmed for one in self.publishers)

    def finish(self) -> None:
        """Publish no more, and take everything that was."""

        async def stop() -> None:
            for one in self.publishers:
                one.active = False

        async def close() -> None:
            for peer in (*self.publishers, self.taker):
                await peer.close()

        self._call(stop())
        wait_until(
            "all is confirmed", lambda: not any(one.outstanding for one in self.publishers), PATIENCE_S
        )
        wait_until("all has come", lambda: self.taker.consumed >= self.confirmed, PATIENCE_S)
        self._call(close())
        self._loop.call_soon_threadsafe(self._loop.stop)
        self._thread.join(5)


class Leader:
    """What is seen of the leader, several times a second."""

    def __init__(self, cluster: Cluster) -> None:
        self.name = cluster.leader
        self.resident: list[int] = []
        self.unacked: list[int] = []
        """Of the peer to which most is on its way."""
        self.lag: list[int] = []
        """Records that the one that is furthest behind lacks."""
        self._cluster = cluster

    def look(self) -> None:
        [seen] = self._cluster.trial.look([self.name])
        peers = seen.status.get("peers", [])
        self.unacked.append(max((one["unacked_bytes"] for one in peers), default=0))
        self.lag.append(max((one["lag"] for one in peers), default=0))
        pages = int(Path(f"/proc/{seen.pid}/statm").read_text().split()[1])
        self.resident.append(pages * os.sysconf("SC_PAGE_SIZE"))

    def until(self, what: str, true: Callable[[], bool]) -> float:
        """Look until something is so; how long that took."""

        def looking() -> bool:
            self.look()
            return true()

        return wait_until(what, looking, PATIENCE_S)

    def metric(self, name: str) -> dict[str, float]:
        """Member → value."""
        request = urllib.request.Request(
            f"http://{self._cluster.trial.members[self.name].admin}/metrics",
            headers={"Authorization": "Basic Z3Vlc3Q6Z3Vlc3Q="},
        )
        with urllib.request.urlopen(request, timeout=10) as answer:
            text = answer.read().decode()
        return {
            found[1]: float(found[2])
            for found in re.finditer(rf'^{name}{{[^}}]*member="([^"]+)"[^}}]*}} (\S+)$', text, re.MULTILINE)
        }


def test_a_slow_member_holds_publishers_up_everywhere_and_costs_the_leader_no_memory(
    cluster: Cluster,
) -> None:
    """A-64, A-65, P-59: SLOW(leader, n2): its outstanding counter and its lag stay below their limits, and the leader's memory
    stays flat, whatever publishers want to send that do not wait when they are told. A-66: publishers at the leader and at a
    backup are held up alike, and the consumer is served; all go on when n2 is fast again. U-12: what they wait for is
    forgotten when it dies."""
    queue = fresh("flow")
    cluster.declare(queue)
    leader, slow = Leader(cluster), cluster.second
    [other] = {*cluster.names} - {leader.name, slow}
    load = Load(cluster, queue, (leader.name, other) * (PUBLISHERS // 2), other)
    leader.until("it is warm", lambda: load.taker.consumed > 2000)

    leader.look()
    resident, taken = leader.resident[-1], load.taker.consumed
    cluster.trial.slow(leader.name, slow, DELAY_MS)
    leader.until("all are held up", lambda: load.wait_for(slow))
    began, before = time.monotonic(), load.confirmed
    leader.until("a while is over", lambda: time.monotonic() > began + SLOW_S)
    rate = (load.confirmed - before) * SIZE / SLOW_S
    served = load.taker.consumed - taken
    metric = leader.metric("tidemark_cluster_member_unacked_bytes")

    told = load.notices
    cluster.heal()
    took = leader.until("all go on", lambda: load.went_on(told))
    enough = load.confirmed + 500
    leader.until("they are fast again", lambda: load.confirmed > enough)
    cluster.trial.slow(leader.name, slow, DELAY_MS)
    leader.until("all are held up again", lambda: load.wait_for(slow))
    told = load.notices
    cluster.kill(slow)
    forgotten = leader.until("nobody waits for one that is dead", lambda: load.went_on(told))
    enough = load.confirmed + 500
    leader.until("they are fast again", lambda: load.confirmed > enough)
    told = load.notices
    load.finish()

    grown = max(leader.resident) - resident
    print(
        f"{cluster.mode}: {rate / MiB:.1f} MiB/s with a slow member; on its way at most {max(leader.unacked) / MiB:.2f} MiB, lag "
        f"at most {max(leader.lag) * SIZE / MiB:.1f} MiB, leader grown by {grown / MiB:.1f} MiB; they go on {took:.2f} s after it "
        f"is fast again, {forgotten:.2f} s after it died"
    )
    assert max(leader.unacked) < WINDOW + FRAME
    assert set(metric) <= {slow, other} and slow in metric and max(metric.values()) < WINDOW + FRAME
    assert max(leader.lag) * SIZE < LAG + ONCE
    assert grown < GROWTH
    assert served > 0, "the consumer was held up, too"
    assert not any(
        slow in why for one, count in zip(load.publishers, told, strict=True) for why in one.told[count:]
    )
    assert load.taker.consumed == load.confirmed and not load.taker.disorder
    assert load.book.duplicates == load.taker.redelivered == 0
