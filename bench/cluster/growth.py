"""How a cluster grows: what a message costs each of its processes with more members, groups, partitions and followers.

Every step is a fresh cluster of one size, and gives CPU seconds a million messages of processes by what they do. On a
machine with few cores rates cannot grow with processes that may use all of them; a cost a message that stays flat shows that
they would on more.

- members: confirmed publishes to one durable queue at the leader. What a message costs also depends on how many are handled
  together, and that on how long confirms take: so wake-ups and writes of the leader are counted, and whom it feeds
- groups: the same through fronts, with a queue in each chain; `publishers` for each, one through each front
- partitions: the same to an exchange of type `x-partition`, each message with a key of its own
- capacity: queues or partitions as above, while each process has a small CPU of its own (`quota.py`): here rates grow, and how
  much of its CPU each uses tells who is the bound
- followers: batches are put into a stream at a fixed rate, and every follower reads all of it as it comes

Invariant: a step has figures only if the brokers hold as many messages as they confirmed, and every follower got all rows.
"""

from __future__ import annotations

import os
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

import numpy as np

from bench import proc
from bench.cluster.cases import PARTITIONS, Case, Kind, Scale, Step
from bench.cluster.publishing import load
from bench.cluster.quota import SmallCpu, small_cpus
from bench.cluster.tidemark import TidemarkCluster
from bench.cluster.wire import AmqpLink
from bench.measure import Figures, RunFailedError
from bench.streams.pump import receive, send
from bench.streams.wire import Batch, Client, FrameAnswers
from tidemark.client import ClientClosed, connect
from tidemark.client.cluster import ReadFrom, read_from_of
from tidemark.model.wiring import MAIN

_NAME = "grown"
_BATCH_ROWS = 500
_BATCH_S = 0.02
_ARRIVAL_S = 60.0
_OPEN_S = 30.0
_MEMBER_SHARE = 0.1
_FRONT_SHARE = 0.2
"""Of a core, where CPUs are small: with three chains, main and three fronts 1.8 cores in all. Fronts have more, as there are
three however many leaders they have to keep busy."""

Roles = dict[str, list[int]]
"""Processes by what they do."""


def size_of(case: Case, step: Step) -> dict[str, int]:
    """What a cluster is to be made with."""
    match case.kind:
        case Kind.GROW_NODES:
            return {"nodes": step.size}
        case Kind.GROW_GROUPS | Kind.GROW_PARTITIONS | Kind.GROW_CAPACITY:
            return {"nodes": step.nodes, "chains": step.size}
        case _:
            return {"nodes": step.nodes}


def grow(case: Case, step: Step, cluster: TidemarkCluster, scale: Scale) -> Figures:
    """The figures of one step.

    Raises:
        RunFailedError: something was not as it should be.
        NoQuotasError: processes cannot be given small CPUs here.
    """
    match case.kind:
        case Kind.GROW_NODES:
            return _nodes(case, cluster, scale)
        case Kind.GROW_GROUPS | Kind.GROW_PARTITIONS:
            return _groups(case, cluster, scale)
        case Kind.GROW_CAPACITY:
            return _capacity(case, step, cluster, scale)
        case _:
            return _consumers(step, cluster, scale)


def _seconds(scale: Scale) -> tuple[float, float]:
    return scale.grow_s, scale.grow_s / 2


def _per_million(roles: Roles, spent: dict[int, float], messages: float) -> Figures:
    return {
        f"{role}_cpu": sum(spent[pid] for pid in pids) / messages * 1e6
        for role, pids in roles.items()
        if pids
    }


# Confirmed publishes ---------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class Published:
    """What there was in the measured phase."""

    said: dict[str, Any]
    """By the load generator."""
    confirmed: float
    seconds: float
    spent: dict[int, float]
    """CPU seconds of each process."""

    def figures(self, roles: Roles) -> Figures:
        return {
            **_per_million(roles, self.spent, self.confirmed),
            "messages": self.said["confirmed"],
            "confirmed_per_s": self.said["confirmed_per_s"],
            "confirm_p50_ms": self.said["confirm_us"]["p50"] / 1e3,
            "generator_busy": self.said["generator_busy"],
        }


def _publish(
    case: Case, ports: list[int], pids: list[int], seconds: tuple[float, float], *words: str
) -> Published:
    said, confirmed = load(case, ports, pids, *seconds, *words)
    return Published(said, confirmed, said["seconds"], dict(zip(pids, said["cpu_s_by_process"], strict=True)))


def _nodes(case: Case, cluster: TidemarkCluster, scale: Scale) -> Figures:
    pids = [cluster.pid(name) for name in cluster.order()]
    followers = pids[1:]
    roles: Roles = {"leader": pids[:1], "first": followers[:1], "last": followers[-1:]}
    roles |= {"followers": followers, "all": cluster.pids()}
    before = proc.turns(pids[0])
    words = ("--producers", str(case.publishers))
    ports = [cluster.ports[cluster.leader()]]
    figures = _publish(case, ports, cluster.pids(), _seconds(scale), *words).figures(roles)
    waits, writes = (after - first for after, first in zip(proc.turns(pids[0]), before, strict=True))
    thousands = figures["messages"] / 1e3
    figures |= {"leader_wakeups": waits / thousands, "leader_writes": writes / thousands}
    figures["leader_feeds"] = len(cluster.see(cluster.leader()).status["peers"])
    if followers:
        figures["follower_cpu"] = figures.pop("followers_cpu") / len(followers)
    return figures


def _groups(case: Case, cluster: TidemarkCluster, scale: Scale) -> Figures:
    words = _prepared(case, cluster, partitioned=case.kind is Kind.GROW_PARTITIONS)
    idle = _idle(cluster, scale)
    done = _publish(case, list(cluster.fronts.values()), cluster.pids(), _seconds(scale), *words)
    figures = done.figures(_roles(cluster))
    idle_cpu = idle / figures["confirmed_per_s"] * 1e6
    return {**figures, "idle_share": idle, "busy_cpu": figures["all_cpu"] - idle_cpu}


def _capacity(case: Case, step: Step, cluster: TidemarkCluster, scale: Scale) -> Figures:
    words = _prepared(case, cluster, partitioned=step.line == PARTITIONS)
    roles = _roles(cluster)
    shares = dict.fromkeys([*roles["leaders"], *roles["followers"], *roles["main"]], _MEMBER_SHARE)
    shares |= dict.fromkeys(roles["fronts"], _FRONT_SHARE)
    seconds = scale.capacity_s, scale.capacity_s / 2
    with small_cpus(shares) as cpus:
        done = _publish(case, list(cluster.fronts.values()), cluster.pids(), seconds, *words)
        still = {pid: _still(cpu) for pid, cpu in cpus.items()}
    used = {pid: done.spent[pid] / done.seconds / share for pid, share in shares.items()}
    figures = done.figures(roles) | {
        "leaders_used": min(used[pid] for pid in roles["leaders"]),
        "leaders_still": min(still[pid] for pid in roles["leaders"]),
    }
    for role in ("fronts", "followers", "main"):
        if pids := roles[role]:
            figures[f"{role}_used"] = max(used[pid] for pid in pids)
            figures[f"{role}_still"] = max(still[pid] for pid in pids)
    busy = sum(done.spent.values()) / done.seconds + figures["generator_busy"]
    return {**figures, "machine_used": busy / len(os.sched_getaffinity(0))}


def _still(cpu: SmallCpu) -> float:
    periods, throttled = cpu.periods()
    return throttled / periods if periods else 0.0


def _roles(cluster: TidemarkCluster) -> Roles:
    orders = [[cluster.pid(name) for name in cluster.order(group)] for group in cluster.chains]
    return {
        "leaders": [order[0] for order in orders],
        "followers": [pid for order in orders for pid in order[1:]],
        "fronts": [cluster.pid(name) for name in cluster.fronts],
        "main": [cluster.pid(name) for name in cluster.order(MAIN)],
        "all": cluster.pids(),
    }


def _prepared(case: Case, cluster: TidemarkCluster, *, partitioned: bool) -> list[str]:
    """Make a queue in each group, or a partition; returns the words that tell the load generator."""
    groups = cluster.chains
    _declare(next(iter(cluster.fronts.values())), groups, partitioned=partitioned)
    words = ["--existing", "--prefix", _NAME, "--queues", str(len(groups))]
    words += ["--producers", str(case.publishers * len(groups))]
    return [*words, "--keyed"] if partitioned else words


def _idle(cluster: TidemarkCluster, scale: Scale) -> float:
    """The share of one core that all processes take while nothing happens: many of them, at a low rate, take much of it."""
    began, before = time.monotonic(), cluster.cpu_seconds()
    time.sleep(scale.grow_s / 2)
    return (cluster.cpu_seconds() - before) / (time.monotonic() - began)


def _declare(port: int, groups: list[str], *, partitioned: bool) -> None:
    """A queue in each group; or a stream in each, and the exchange whose partitions they are."""
    with AmqpLink(port, timeout_s=_OPEN_S) as link:
        if partitioned:
            link.declare_exchange(_NAME, "x-partition", {"x-partitions": len(groups)})
        for number, group in enumerate(groups):
            kind = {"x-queue-type": "stream"} if partitioned else {}
            link.declare(f"{_NAME}-{number}", {"x-group": group, **kind})
            if partitioned:
                link.bind(f"{_NAME}-{number}", _NAME, str(number))


# Followers -------------------------------------------------------------------------------------------


class Followers:
    """Clients that read a stream as it grows, each on a thread and a connection of its own."""

    def __init__(self, url: str, count: int, read_from: ReadFrom) -> None:
        self.rows = [0] * count
        self._problems: list[str] = []
        self._clients = [connect(url, read_from=read_from) for _ in range(count)]
        self.places = [client.reading_from for client in self._clients]
        self._threads = [
            threading.Thread(target=self._follow, args=(number,), daemon=True) for number in range(count)
        ]
        for thread in self._threads:
            thread.start()

    def _follow(self, number: int) -> None:
        stream = self._clients[number].stream(_NAME)
        try:
            for batch in stream.follow(start="first", columns=["value"]):
                self.rows[number] += len(batch)
        except ClientClosed:
            return
        except Exception as problem:
            self._problems.append(f"a follower ended: {problem}")

    def wait_for(self, rows: int) -> None:
        """Until everybody has so many.

        Raises:
            RunFailedError: somebody has not, or has more.
        """
        deadline = time.monotonic() + _ARRIVAL_S
        while min(self.rows) < rows and time.monotonic() < deadline and not self._problems:
            time.sleep(0.01)
        if self._problems:
            raise RunFailedError(self._problems[0])
        if {*self.rows} != {rows}:
            raise RunFailedError(f"followers got {min(self.rows):,} to {max(self.rows):,} of {rows:,} rows")

    def close(self) -> None:
        for client in self._clients:
            client.close()
        for thread in self._threads:
            thread.join(_OPEN_S)


@contextmanager
def _following(url: str, count: int, read_from: ReadFrom) -> Iterator[Followers]:
    followers = Followers(url, count, read_from)
    try:
        yield followers
    finally:
        followers.close()


class Writer:
    """Puts a batch of rows at fixed moments; one that comes too late is followed by the next at once."""

    def __init__(self, client: Client) -> None:
        self._client = client
        self._batch = Batch(_NAME, _BATCH_ROWS, keyed=False)
        self._answers = FrameAnswers()
        self._keys = np.arange(_BATCH_ROWS, dtype=np.uint64)
        self.rows = 0

    def run(self, seconds: float) -> int:
        """How many rows were put, and answered."""
        before, due = self.rows, time.monotonic()
        until = due + seconds
        while due < until:
            number = (1 << 20) + self.rows // _BATCH_ROWS
            send(self._client.connection, self._batch.aim(number, self._keys))
            while not self._answers.feed(receive(self._client.connection)):
                pass
            self.rows += _BATCH_ROWS
            due += _BATCH_S
            time.sleep(max(0.0, due - time.monotonic()))
        return self.rows - before


def _consumers(step: Step, cluster: TidemarkCluster, scale: Scale) -> Figures:
    order = cluster.order()
    pids = [cluster.pid(name) for name in order]
    seconds, warmup_s = _seconds(scale)
    with Client(cluster.ports[order[0]]) as client:
        client.call({"op": "declare", "stream": _NAME, "arguments": {"x-stream-key": "none"}})
        with _following(cluster.trial.url, step.size, read_from_of(step.line)) as followers:
            if (step.line == "leader") != (order[0] in followers.places):
                raise RunFailedError(f"followers read from {', '.join(sorted({*followers.places}))}")
            writer = Writer(client)
            followers.wait_for(writer.run(warmup_s))
            began, before = time.monotonic(), {pid: proc.cpu_seconds([pid]) for pid in pids}
            rows = writer.run(seconds)
            followers.wait_for(writer.rows)
            took_s = time.monotonic() - began
            spent = {pid: proc.cpu_seconds([pid]) - before[pid] for pid in pids}
    figures = _per_million({"leader": pids[:1], "others": pids[1:], "all": pids}, spent, rows)
    return {
        **figures,
        "leader_cpu_delivered": figures["leader_cpu"] / step.size,
        "all_cpu_delivered": figures["all_cpu"] / step.size,
        "rows_per_s": rows / took_s,
        "delivered_per_s": rows * step.size / took_s,
    }
