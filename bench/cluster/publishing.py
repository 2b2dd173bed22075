"""Confirmed publishes, for a while: rate, latency of confirms, and the CPU of all server processes; and none.

AMQP brokers are loaded by the C load generator (`bench/load.c`), on one durable queue that nobody consumes from. NATS is
loaded by the loop below, whose every message has an answer of its own. Both connect to the node that leads, and keep
exactly `window` messages a publisher unconfirmed; latency is from handing a message to the socket to its confirm.

Invariant: a run has figures only if the server holds as many messages as it confirmed.
"""

from __future__ import annotations

import selectors
import time
from dataclasses import dataclass
from typing import Any

from bench import proc
from bench.build import BIN
from bench.cluster.cases import Case, Scale
from bench.cluster.contestants import Cluster
from bench.cluster.nats import NatsCluster
from bench.cluster.wire import LinkEnded, NatsLink
from bench.measure import Figures, RunFailedError
from bench.measure import _call as call
from bench.streams.pump import percentile

_STREAM = "published"
_ANSWER_S = 60.0


def publish(case: Case, cluster: Cluster, scale: Scale) -> Figures:
    """The figures of one run.

    Raises:
        RunFailedError: something was not as it should be.
    """
    if isinstance(cluster, NatsCluster):
        return _on_nats(case, cluster, scale)
    leader = cluster.leader()
    return load_amqp(case, cluster.ports[leader], cluster.pids(), scale, vhost=cluster.vhost)


def idle(cluster: Cluster, scale: Scale) -> Figures:
    """What it costs to have the cluster: CPU of all its processes while nobody asks for anything."""
    time.sleep(scale.warmup_s)
    began, before = time.perf_counter(), cluster.cpu_seconds()
    time.sleep(2 * scale.seconds)
    return {"idle_cpu": (cluster.cpu_seconds() - before) / (time.perf_counter() - began)}


def load_amqp(case: Case, port: int, pids: list[int], scale: Scale, vhost: str = "/") -> Figures:
    words = ("--vhost", vhost, "--producers", str(case.publishers))
    said, confirmed = load(case, [port], pids, scale.seconds, scale.warmup_s, *words)
    return _figures(
        confirmed,
        said["seconds"],
        said["broker_cpu_s"],
        said["generator_busy"],
        said["confirm_us"]["p50"] / 1e3,
        said["confirm_us"]["p99"] / 1e3,
    )


def load(
    case: Case, ports: list[int], pids: list[int], seconds: float, warmup_s: float, *words: str
) -> tuple[dict[str, Any], float]:
    """What the load generator says of confirmed publishes, and how many there were in the measured phase."""
    said = call(
        [
            *(str(BIN / "load"), "--port", ",".join(map(str, ports)), "--pids", ",".join(map(str, pids))),
            *("--publish-only", "--durable", "--persistent"),
            *("--size", str(case.size), "--confirm", str(case.window)),
            *("--seconds", str(seconds), "--warmup", str(warmup_s), *words),
        ]
    )
    confirmed = said["confirmed_per_s"] * said["seconds"]
    if not confirmed or not said["confirm_us"]:
        raise RunFailedError("nothing was confirmed in the measured phase")
    return said, confirmed


def _figures(
    confirmed: float, seconds: float, cpu_s: float, busy: float, p50_ms: float, p99_ms: float
) -> Figures:
    return {
        "confirmed_per_cpu_s": confirmed / cpu_s if cpu_s else 0.0,
        "cpu_s_per_million": cpu_s / confirmed * 1e6,
        "confirmed_per_s": confirmed / seconds,
        "confirm_p50_ms": p50_ms,
        "confirm_p99_ms": p99_ms,
        "generator_busy": busy,
    }


# NATS ------------------------------------------------------------------------------------------------


def _on_nats(case: Case, cluster: NatsCluster, scale: Scale) -> Figures:
    cluster.make_stream(_STREAM)
    try:
        port = cluster.ports[cluster.leader()]
        links = [NatsLink(port, _STREAM, case.size, timeout_s=5) for _ in range(case.publishers)]
        try:
            done = pump(links, case.window, cluster.pids(), scale)
        finally:
            for link in links:
                link.close()
        held = int(cluster.info(_STREAM)["state"]["messages"])
        if held != done.total:
            raise RunFailedError(f"NATS holds {held:,} messages where {done.total:,} were confirmed")
    finally:
        cluster.remove_stream(_STREAM)
    latencies = sorted(done.latencies)
    if not latencies:
        raise RunFailedError("nothing was confirmed in the measured phase")
    return _figures(
        done.confirmed,
        done.seconds,
        done.cpu_s,
        done.own_cpu_s / done.seconds,
        percentile(latencies, 0.5) * 1e3,
        percentile(latencies, 0.99) * 1e3,
    )


@dataclass(slots=True)
class Pumped:
    """What happened in the measured phase, and how many were confirmed in all."""

    latencies: list[float]
    confirmed: int
    seconds: float
    cpu_s: float
    own_cpu_s: float
    total: int


def pump(links: list[NatsLink], window: int, pids: list[int], scale: Scale) -> Pumped:
    """Keep `window` messages a link on their way for as long as the scale says, then wait for the rest."""
    sent_at: dict[int, float] = {}
    latencies: list[float] = []
    number = total = before = 0
    start = time.perf_counter()
    measured_from, cpu_before, own_before = 0.0, 0.0, 0.0
    result: Pumped | None = None
    with selectors.DefaultSelector() as selector:

        def send(link: NatsLink, count: int) -> None:
            nonlocal number
            numbers = range(number, number + count)
            number += count
            sent_at.update(dict.fromkeys(numbers, time.perf_counter()))
            link.publish(numbers)

        for link in links:
            selector.register(link.socket, selectors.EVENT_READ, link)
            send(link, window)
        while sent_at:
            ready = selector.select(_ANSWER_S)
            if not ready:
                raise RunFailedError(f"NATS was silent for {_ANSWER_S:.0f} s")
            now = time.perf_counter()
            if not measured_from and now - start >= scale.warmup_s:
                measured_from, before, own_before = now, total, time.process_time()
                cpu_before = proc.cpu_seconds(pids)
            if result is None and measured_from and now - measured_from >= scale.seconds:
                cpu_s, own_s = proc.cpu_seconds(pids) - cpu_before, time.process_time() - own_before
                result = Pumped(latencies, total - before, now - measured_from, cpu_s, own_s, 0)
            for key, _ in ready:
                link = key.data
                try:
                    confirmed = link.confirmed()
                except LinkEnded as ended:
                    raise RunFailedError(f"NATS: {ended}") from ended
                if link.refused:
                    raise RunFailedError("NATS refused a message")
                now = time.perf_counter()
                waited = [now - sent_at.pop(each) for each in confirmed]
                total += len(waited)
                if measured_from and result is None:
                    latencies += waited
                if result is None and waited:
                    send(link, len(waited))
    if result is None:
        raise RunFailedError("everything was confirmed before the measured phase was over")
    result.total = total
    return result
