"""Pipelines as metrics: what their runners last reported to this broker (`admin.resources.pipelines`).

A report was written by a client and is not believed: what is no number is left out, and only so many are told.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from tidemark.admin.prometheus.text import Family, Labels, label
from tidemark.admin.resources.pipelines import told
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
    vhosts = [host for host in server.node.broker.vhosts.values() if wanted(host.name)]
    return [
        ({"vhost": label(vhost), "pipeline": label(report["name"]), "host": label(report["host"])}, report)
        async for vhost, report in told(server, vhosts, lambda _: False)
    ]


def families(found: list[Report], prefix: str) -> Iterator[Family]:
    yield Family(f"{prefix}pipeline_info", (({**of, "state": report["state"]}, 1.0) for of, report in found))
    for name, fact in SINK:
        yield Family(f"{prefix}pipeline_{name}", _of_sinks(found, fact))


def _of_sinks(found: list[Report], fact: str) -> Iterator[tuple[Labels, float]]:
    for of, report in found:
        for sink in report["sinks"]:
            if sink[fact] is not None:
                yield {**of, "sink": label(sink["name"])}, sink[fact]
