"""Runs one case once on one running broker and returns its figures.

The load generator reads the broker's CPU itself, at both ends of the measured phase, from the
process ids it is given. A run in which it found anything wrong has no figures.
"""

from __future__ import annotations

import json
import subprocess
import time
from dataclasses import dataclass
from pathlib import Path
from statistics import median
from typing import Any

from bench import admin
from bench.build import BIN
from bench.cases import Case, Kind
from bench.servers import Server
from bench.tidemark_server import TidemarkServer

Figures = dict[str, float]
_TIMEOUT_S = 1200


@dataclass(frozen=True, slots=True)
class Scale:
    """How much is done: everything is bounded in count or time."""

    seconds: float
    warmup_s: float
    backlog: int
    queues: int
    connections: int
    idle_s: float
    disk_s: float
    keys_max: int
    stream_s: float
    """One measured phase of a stream case."""
    settle_s: float
    """For collectors of garbage to come round before memory is read."""
    watch_turns: int = 5
    """Loads with somebody looking, and as many without."""


FULL = Scale(5, 1.5, 1_000_000, 10_000, 1_000, 10, 2, 1 << 30, 4, 2)
QUICK = Scale(2, 0.7, 100_000, 1_000, 200, 4, 0.7, 100_000, 0.7, 0.5, 2)


class RunFailedError(RuntimeError):
    """A run gave no valid figures."""


def _call(arguments: list[str]) -> dict[str, Any]:
    try:
        done = subprocess.run(arguments, capture_output=True, text=True, timeout=_TIMEOUT_S)
    except subprocess.TimeoutExpired as late:
        raise RunFailedError(f"{Path(arguments[0]).name} did not end in {_TIMEOUT_S} s") from late
    try:
        said: dict[str, Any] = json.loads(done.stdout)
    except ValueError:
        said = {"errors": [done.stderr.strip()]}
    if done.returncode or said.get("errors"):
        raise RunFailedError("; ".join(said["errors"]) or f"exit code {done.returncode}")
    return said


def _load(server: Server, *arguments: str) -> dict[str, Any]:
    pids = ",".join(map(str, server.pids()))
    return _call([str(BIN / "load"), "--port", str(server.port), "--pids", pids, *arguments])


def disk_loop(folder: Path, batch_bytes: int, scale: Scale) -> Figures:
    """Commits per second of a bare pwrite + fdatasync loop, in the folder's file system."""
    said = _call(
        [
            *(str(BIN / "rawdisk"), "--file", str(folder / "rawdisk.bin")),
            *("--bytes", str(batch_bytes), "--seconds", str(scale.disk_s)),
        ]
    )
    return {"disk_syncs_per_s": said["syncs_per_s"], "disk_sync_p50_us": said["sync_us"]["p50"]}


def run_case(case: Case, server: Server, folder: Path, scale: Scale) -> Figures:
    """The figures of one run.

    Raises:
        RunFailedError: the load generator found an error; figures of such a run mean nothing.
    """
    match case.kind:
        case Kind.THROUGHPUT:
            return _throughput(case, server, folder, scale)
        case Kind.LATENCY:
            return _latency(case, server, scale)
        case Kind.BACKLOG:
            return _backlog(case, server, scale)
        case Kind.QUEUES:
            return _queues(case, server, scale)
        case Kind.CONNECTIONS:
            return _connections(server, scale)
        case Kind.ADMIN:
            return _watched(case, server, scale)
        case _:
            raise RunFailedError(f"{case.name} is not about AMQP")


def _for_seconds(scale: Scale) -> tuple[str, ...]:
    return ("--seconds", str(scale.seconds), "--warmup", str(scale.warmup_s))


def _cpu_per_million(said: dict[str, Any], messages: float) -> float:
    if not messages:
        raise RunFailedError("no message came through in the measured phase")
    return float(said["broker_cpu_s"]) / messages * 1e6


def _percentiles(said: dict[str, Any], key: str, prefix: str) -> Figures:
    histogram = said[key]
    if not histogram:
        return {}
    return {f"{prefix}{name}_us": histogram[name] for name in ("p50", "p99", "p999", "max")}


def _throughput(case: Case, server: Server, folder: Path, scale: Scale) -> Figures:
    batch_bytes = case.window * case.size
    before = disk_loop(folder, batch_bytes, scale) if case.window else {}
    said = _load(server, *case.load, *_for_seconds(scale))
    figures = {
        "messages_per_s": said["out_per_s"],
        "cpu_s_per_million": _cpu_per_million(said, said["measured_out"]),
        "generator_busy": said["generator_busy"],
        **_percentiles(said, "confirm_us", "confirm_"),
    }
    if case.window:
        # A disk changes its mood within seconds: what it can do is asked on both sides of the run.
        after = disk_loop(folder, batch_bytes, scale)
        disk = {name: (before[name] + after[name]) / 2 for name in before}
        ceiling = disk["disk_syncs_per_s"] * case.window
        figures |= {**disk, "share_of_disk": said["confirmed_per_s"] / ceiling}
    return figures


def _latency(case: Case, server: Server, scale: Scale) -> Figures:
    said = _load(server, *case.load, *_for_seconds(scale))
    return {
        "messages_per_s": said["out_per_s"],
        "cpu_s_per_million": _cpu_per_million(said, said["measured_out"]),
        "generator_busy": said["generator_busy"],
        **_percentiles(said, "end_to_end_us", ""),
        **_percentiles(said, "confirm_us", "confirm_"),
        **_percentiles(said, "pacing_late_us", "pacing_late_"),
    }


def _backlog(case: Case, server: Server, scale: Scale) -> Figures:
    count = ("--count", str(scale.backlog))
    confirms = ("--confirm", "1000")
    before = server.rss_bytes()
    built = _load(server, "--publish-only", *count, *confirms, *case.load)
    time.sleep(scale.settle_s)
    grown = max(0, server.rss_bytes() - before)
    drained = _load(
        server,
        *("--consume-only", *count, *case.load),
        *("--ack", "manual", "--prefetch", "1000", "--ack-every", "100"),
    )
    return {
        "build_messages_per_s": built["in_per_s"],
        "build_cpu_s_per_million": _cpu_per_million(built, built["measured_in"]),
        "memory_bytes_per_message": grown / scale.backlog,
        "drain_messages_per_s": drained["out_per_s"],
        "drain_cpu_s_per_million": _cpu_per_million(drained, drained["measured_out"]),
    }


def _queues(case: Case, server: Server, scale: Scale) -> Figures:
    said = _load(server, "--declare-queues", str(scale.queues), *case.load)
    return {
        "declares_per_s": said["declares_per_s"],
        "cpu_us_per_queue": said["broker_cpu_s"] / scale.queues * 1e6,
        "memory_bytes_per_queue": max(0, said["rss_after"] - said["rss_before"]) / scale.queues,
    }


def _watched(case: Case, server: Server, scale: Scale) -> Figures:
    assert isinstance(server, TidemarkServer)
    _load(server, "--declare-queues", str(scale.connections), "--declare-window", "50", "--prefix", "idle")
    alone: list[dict[str, Any]] = []
    watched: list[dict[str, Any]] = []
    for turn in range(2 * scale.watch_turns):
        # Who is first changes, too: a broker is a little faster in its first seconds.
        if turn % 4 in (0, 3):
            alone.append(_load(server, *case.load, *_for_seconds(scale)))
        else:
            with admin.watching(server.admin_port) as watcher:
                watched.append(_load(server, *case.load, *_for_seconds(scale)))
            if watcher.problems or not watcher.scrapes:
                raise RunFailedError("; ".join(watcher.problems) or "nobody scraped")
    rates = [[float(said["out_per_s"]) for said in each] for each in (alone, watched)]
    spent = [[_cpu_per_million(said, said["measured_out"]) for said in each] for each in (alone, watched)]
    return {
        "messages_per_s": median(rates[1]),
        "alone_messages_per_s": median(rates[0]),
        "throughput_cost": admin.cost(*rates),
        "cpu_s_per_million": median(spent[1]),
        "alone_cpu_s_per_million": median(spent[0]),
        "cpu_cost": median(spent[1]) / median(spent[0]) - 1,
    }


def _connections(server: Server, scale: Scale) -> Figures:
    said = _load(
        server,
        *("--idle-connections", str(scale.connections), "--heartbeat", "10"),
        *("--seconds", str(scale.idle_s)),
    )
    grown = max(0, said["rss_after"] - said["rss_before"])
    return {
        "connects_per_s": said["connects_per_s"],
        "memory_bytes_per_connection": grown / scale.connections,
        "idle_cpu_us_per_connection_s": (said["broker_cpu_s"] / scale.connections / said["seconds"] * 1e6),
    }
