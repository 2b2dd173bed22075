"""Pipelines as metrics: what their runners last reported to this broker (`admin.resources.pipelines`).

A report was written by a client and is not believed: what is no number is left out, and only so many are told.
"""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from typing import Any

from tidemark.admin.prometheus.text import Family, Labels, label
from tidemark.admin.resources.pipelines import REPORT_BYTES_MAX, REPORTS_MAX, STEP_ROWS, STREAM, understood
from tidemark.broker.streams.core import FLAGS, SEQUENCE, TIMESTAMP, VALUE, gather
from tidemark.broker.streams.snapshots import Snapshot
from tidemark.broker.streams.stream import Stream
from tidemark.runtime.server import Server

SINK = (
    ("sink_rows_total", "rows"),
    ("sink_batches_total", "batches"),
    ("sink_dead_letters_total", "dead_letters"),
    ("sink_restarts_total", "restarts"),
    ("sink_rows_per_second", "rows_per_s"),
    ("sink_lag_rows", "lag_rows"),
    ("sink_lag_seconds", "lag_s"),
)
"""What is told of a sink, and where its report has it."""

Report = tuple[Labels, dict[str, Any]]


async def reports(server: Server, wanted: Any) -> list[Report]:
    """The newest report of each pipeline in these virtual hosts."""
    found: list[Report] = []
    for host in list(server.node.broker.vhosts.values()):
        stream: Any = host.queues.get(STREAM)
        if not isinstance(stream, Stream) or not wanted(host.name):
            continue
        with Snapshot(stream, stream.caught_up()) as snapshot:
            after = 0
            while len(found) < REPORTS_MAX:
                taken = snapshot.take(STEP_ROWS, 1 << 20, after=after)
                if taken is None:
                    break
                after = snapshot.position
                for row in gather(stream, taken, VALUE | SEQUENCE | TIMESTAMP | FLAGS):
                    if row.tombstone or len(row.value) > REPORT_BYTES_MAX:
                        continue
                    report = understood(row.value, row.ms, server.clock.now_ms(), False)
                    if report is not None:
                        of = {"vhost": label(host.name), "pipeline": label(report["name"])}
                        found.append((of | {"host": label(report["host"])}, report))
                await asyncio.sleep(0)
    return found


def families(found: list[Report], prefix: str) -> Iterator[Family]:
    yield Family(f"{prefix}pipeline_info", (({**of, "state": report["state"]}, 1.0) for of, report in found))
    for name, fact in SINK:
        yield Family(f"{prefix}pipeline_{name}", _of_sinks(found, fact))


def _of_sinks(found: list[Report], fact: str) -> Iterator[tuple[Labels, float]]:
    for of, report in found:
        for sink in report["sinks"]:
            if sink[fact] is not None:
                yield {**of, "sink": label(sink["name"])}, sink[fact]
