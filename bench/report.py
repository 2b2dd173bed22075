"""Turns results into a table on the terminal, a JSON file, and the parts of `docs/benchmarks.md` on AMQP and streams."""

from __future__ import annotations

import dataclasses
import itertools
import math
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from rich.console import Console
from rich.table import Table
from rich.text import Text

from bench.cases import CASES, Case, Kind
from bench.page import DOCS, Part, closing, opening
from bench.results import Results, Spread, Verdict, verdicts
from bench.results import write_json as write_results
from bench.tables import in_full, markdown_table, print_failures, spread_text

PAGE = DOCS / "benchmarks.md"


@dataclasses.dataclass(frozen=True, slots=True)
class Section(Part):
    """A campaign replaces those parts of the page that it has figures for."""

    of_streams: bool

    def cases(self) -> list[Case]:
        return [case for case in CASES if case.kind.of_streams == self.of_streams]


SECTIONS = (Section("bench", PAGE, of_streams=False), Section("bench-streams", PAGE, of_streams=True))


NAMES = {
    "tidemark": "Tidemark",
    "rabbitmq": "RabbitMQ",
    "null": "null broker",
    "null-durable": "null broker with a disk",
    "core": "inner loops alone",
    "nats": "NATS JetStream",
    "redis": "Redis",
}
PEERS = ("rabbitmq", "nats", "redis")

PHASE = "recovery_"
# What a table shows of a case: metric, heading, and whether less is better.
Column = tuple[str, str, bool]
_COLUMNS: dict[Kind, tuple[Column, ...]] = {
    Kind.THROUGHPUT: (
        ("cpu_s_per_million", "CPU s per million", True),
        ("messages_per_s", "messages/s", False),
        ("share_of_disk", "share of the bare disk loop", False),
    ),
    Kind.LATENCY: (
        ("p50_us", "p50 µs", True),
        ("p99_us", "p99 µs", True),
        ("p999_us", "p99.9 µs", True),
        ("confirm_p50_us", "confirm p50 µs", True),
        ("confirm_p99_us", "confirm p99 µs", True),
        ("cpu_s_per_million", "CPU s per million", True),
    ),
    Kind.BACKLOG: (
        ("build_cpu_s_per_million", "build-up: CPU s per million", True),
        ("build_messages_per_s", "build-up: messages/s", False),
        ("drain_cpu_s_per_million", "drain: CPU s per million", True),
        ("drain_messages_per_s", "drain: messages/s", False),
        ("memory_bytes_per_message", "memory: MB per million queued", True),
    ),
    Kind.QUEUES: (
        ("declares_per_s", "declares/s", False),
        ("cpu_us_per_queue", "CPU µs per queue", True),
        ("memory_bytes_per_queue", "memory: bytes per queue", True),
    ),
    Kind.CONNECTIONS: (
        ("connects_per_s", "connects/s", False),
        ("memory_bytes_per_connection", "memory: bytes per connection", True),
        ("idle_cpu_us_per_connection_s", "CPU µs per idle connection and second", True),
    ),
    Kind.ADMIN: (
        ("throughput_cost", "cost in messages/s", True),
        ("cpu_cost", "cost in CPU a message", True),
        ("messages_per_s", "watched: messages/s", False),
        ("alone_messages_per_s", "not watched: messages/s", False),
        ("cpu_s_per_million", "watched: CPU s per million", True),
        ("alone_cpu_s_per_million", "not watched: CPU s per million", True),
    ),
    Kind.STREAM_KEYED: (
        ("keyed_per_s", "updates/s", False),
        ("keyed_cpu_s_per_million", "updates: CPU s per million", True),
        ("keyed_p99_ms", "updates: p99 ms a batch", True),
        ("unkeyed_per_s", "unkeyed appends/s", False),
        ("unkeyed_cpu_s_per_million", "unkeyed: CPU s per million", True),
        ("share_of_unkeyed", "updates as a share of unkeyed appends", False),
        ("disk_rows_per_s", "bare disk loop: rows/s", False),
        ("share_of_disk", "updates as a share of the bare disk loop", False),
    ),
    Kind.STREAM_OPEN: (
        ("open_p50_us", "p50 µs", True),
        ("open_p99_us", "p99 µs", True),
        ("open_max_us", "longest µs", True),
        ("open_close_cpu_us", "CPU µs to open and close", True),
    ),
    Kind.STREAM_SCAN: (
        ("rows_per_s", "rows/s", False),
        ("rows_per_cpu_s", "rows a CPU second", False),
        ("bytes_per_s", "Arrow bytes/s", False),
        ("unhashed_rows_per_s", "without the marker's hash: rows/s", False),
        ("unhashed_rows_per_cpu_s", "without the marker's hash: rows a CPU second", False),
        ("aged_rows_per_s", "after many updates: rows/s", False),
        ("aged_rows_per_cpu_s", "after many updates: rows a CPU second", False),
        ("writer_alone_per_s", "a writer alone: updates/s", False),
        ("writer_beside_scan_per_s", "the writer beside a scan: updates/s", False),
        ("writer_slowdown", "the writer's slow-down", True),
        ("beside_writer_rows_per_s", "the scan beside the writer: rows/s", False),
    ),
    Kind.STREAM_RESTART: (
        ("serving_s", "start of the process to the first row, s", True),
        ("ready_s", "start of the process to listening, s", True),
        ("outside_recovery_ms", "of it not recovery, ms", True),
        ("rss_after_restart", "resident bytes afterwards", True),
        (f"{PHASE}ms", "recovery, ms", True),
    ),
    Kind.STREAM_MEMORY: (
        ("rss_bytes_per_key", "resident bytes a key", True),
        ("index_bytes_per_key", "bytes a key by the index's own count", True),
        ("updated_bytes_per_key", "the same after updates", True),
        ("rss_bytes", "resident bytes in all", True),
    ),
    Kind.STREAM_PEERS: (
        ("keyed_per_s", "keyed, in batches: rows/s", False),
        ("keyed_cpu_s_per_million", "keyed, in batches: CPU s per million", True),
        ("append_per_s", "appended, in batches: rows/s", False),
        ("append_cpu_s_per_million", "appended, in batches: CPU s per million", True),
        ("single_per_s", "keyed, one by one: rows/s", False),
        ("single_cpu_s_per_million", "keyed, one by one: CPU s per million", True),
        ("single_p99_ms", "keyed, one by one: p99 ms", True),
        ("read_per_s", "read: rows/s", False),
        ("read_cpu_s_per_million", "read: CPU s per million", True),
    ),
}


def _columns(case: Case, measured: list[str]) -> Iterator[Column]:
    """What is shown of a case: the usual figures, then the phases of a recovery as the broker names them."""
    usual = _COLUMNS[case.kind]
    yield from usual
    named = {metric for metric, _, _ in usual}
    for metric in measured:
        if metric.startswith(PHASE) and metric not in named:
            yield (
                metric,
                f"recovery: {metric.removeprefix(PHASE).removesuffix('_ms').replace('_', ' ')}, ms",
                True,
            )


@dataclasses.dataclass(frozen=True, slots=True)
class Row:
    """One figure of one case, over all brokers that were measured."""

    case: Case
    label: str
    spreads: dict[str, Spread | None]
    advantage: float | None
    """How many times better than the best of the peers."""
    verdict: Verdict | None


def rows(results: Results) -> Iterator[Row]:
    judged = {(v.bar.case, v.bar.metric): v for v in verdicts(results)}
    for case in CASES:
        measured = results.metrics(case.name)
        for metric, label, less_is_better in _columns(case, measured):
            if metric not in measured:
                continue
            spreads = {broker: results.spread(case.name, broker, metric) for broker in case.brokers}
            advantage = _advantage_of(spreads, less_is_better)
            yield Row(case, label, spreads, advantage, judged.get((case.name, metric)))


def _advantage_of(spreads: dict[str, Spread | None], less_is_better: bool) -> float | None:
    ours = spreads["tidemark"]
    peers = [spread.median for peer in PEERS if (spread := spreads.get(peer)) and spread.median > 0]
    if ours is None or ours.median <= 0 or not peers:
        return None
    return min(peers) / ours.median if less_is_better else ours.median / max(peers)


def _headings(case: Case) -> list[str]:
    """Of the columns of a case's table on the page."""
    peers = [NAMES[broker] for broker in case.brokers if broker in PEERS]
    versus = [f"× {peers[0]}" if len(peers) == 1 else "× the better peer"] if peers else []
    return [*(NAMES[broker] for broker in case.brokers), *versus, "bar"]


def _advantage(row: Row) -> str:
    return "–" if row.advantage is None else f"{in_full(row.advantage)}×"


def _verdict(verdict: Verdict | None) -> str:
    if verdict is None:
        return ""
    word = "met" if verdict.met else "missed"
    note = f"; {verdict.note}" if verdict.note else ""
    margin = "" if math.isinf(verdict.margin) else f" ({in_full(verdict.margin)}× the bar{note})"
    return f"{word}: {verdict.bar.text}{margin}"


def print_table(results: Results, console: Console) -> None:
    table = Table(title=Text("median [lowest–highest]"))
    brokers = [broker for broker in NAMES if any(broker in found for found in results.runs.values())]
    for heading in ("case", "figure", *(NAMES[broker] for broker in brokers), "× peer", "bar"):
        table.add_column(heading, justify="left" if heading in ("case", "figure", "bar") else "right")
    last = ""
    for row in rows(results):
        if row.case.name != last and last:
            table.add_section()
        colour = "" if row.verdict is None else "green" if row.verdict.met else "red"
        table.add_row(
            row.case.name if row.case.name != last else "",
            row.label,
            *(Text(spread_text(row.spreads.get(broker), in_full)) for broker in brokers),
            _advantage(row),
            Text(_verdict(row.verdict), style=colour),
        )
        last = row.case.name
    console.print(table)
    judged = list(verdicts(results))
    if judged:
        met = sum(v.met for v in judged)
        console.print(f"bars: {met} met, {len(judged) - met} missed")
    print_failures(console, results.failures)


def write_json(results: Results, facts: dict[str, str], settings: dict[str, Any], path: Path) -> None:
    summary = {
        case: {
            broker: {
                metric: dataclasses.asdict(spread)
                for metric in results.metrics(case)
                if (spread := results.spread(case, broker, metric))
            }
            for broker in brokers
        }
        for case, brokers in results.runs.items()
    }
    bars = [
        {
            **dataclasses.asdict(v.bar),
            "value": v.value,
            "limit": v.limit,
            "met": v.met,
            "note": v.note,
        }
        for v in verdicts(results)
    ]
    write_results(path, results, facts, settings, bars, summary=summary)


def markdown(
    section: Section, results: Results, facts: dict[str, str], settings: dict[str, Any], images: list[Path]
) -> str:
    short = ""
    if settings.get("quick"):
        short = " A short campaign (`--quick`)"
        short += ": 100,000 keys, whatever the cases are called." if section.of_streams else "."
    measured = (
        f"Measured {settings['date']} with {settings['repeat']} runs a case and broker, in turn.{short}"
    )
    lines = opening(measured, facts, images)
    for case, of_case in itertools.groupby(rows(results), key=lambda row: row.case):
        if case.kind.of_streams == section.of_streams:
            lines += ["", f"### {case.name}", "", f"{case.title[0].upper()}{case.title[1:]}.", ""]
            lines += markdown_table(_headings(case), map(_cells, of_case), words_last=True)
    named = {case.name for case in section.cases()}
    failures = [failure for failure in results.failures if failure.partition(",")[0] in named]
    if failures:
        lines += ["", *closing(failures)]
    return "\n".join(lines) + "\n"


def _cells(row: Row) -> list[str]:
    versus = [_advantage(row)] if any(broker in PEERS for broker in row.case.brokers) else []
    spreads = [spread_text(row.spreads[broker], in_full) for broker in row.case.brokers]
    return [row.label, *spreads, *versus, _verdict(row.verdict)]
