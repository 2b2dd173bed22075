"""Turns results into a table on the terminal, a JSON file, Markdown and plots.

The Markdown goes between two markers of `docs/benchmarks.md`; the prose around them is written by
hand and left alone.
"""

from __future__ import annotations

import dataclasses
import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from rich.console import Console
from rich.table import Table
from rich.text import Text

from bench.cases import CASES, Case, Kind
from bench.results import Results, Spread, Verdict, verdicts

_ROOT = Path(__file__).parent.parent
RESULTS = Path(__file__).parent / "results"
PAGE = _ROOT / "docs" / "benchmarks.md"
IMAGES = _ROOT / "docs" / "img"
BEGIN, END = "<!-- bench:begin -->", "<!-- bench:end -->"

BROKERS = ("tidemark", "rabbitmq", "null")

# What a table shows of a case: metric, heading, unit, and whether less is better.
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
}


@dataclasses.dataclass(frozen=True, slots=True)
class Row:
    """One figure of one case, over all brokers that were measured."""

    case: Case
    label: str
    spreads: dict[str, Spread | None]
    advantage: float | None
    """How many times better than RabbitMQ."""
    verdict: Verdict | None


def rows(results: Results) -> Iterator[Row]:
    judged = {(v.bar.case, v.bar.metric): v for v in verdicts(results)}
    for case in CASES:
        measured = results.metrics(case.name)
        for metric, label, less_is_better in _COLUMNS[case.kind]:
            if metric not in measured:
                continue
            spreads = {broker: results.spread(case.name, broker, metric) for broker in BROKERS}
            ours, theirs = spreads["tidemark"], spreads["rabbitmq"]
            advantage = None
            if ours and theirs and ours.median > 0 and theirs.median > 0:
                advantage = theirs.median / ours.median
                if not less_is_better:
                    advantage = 1 / advantage
            yield Row(case, label, spreads, advantage, judged.get((case.name, metric)))


def _figure(value: float) -> str:
    if value >= 1000:
        return f"{value:,.0f}"
    return f"{value:.3g}"


def _spread(spread: Spread | None) -> str:
    if spread is None:
        return "–"
    if spread.low == spread.high:
        return _figure(spread.median)
    return f"{_figure(spread.median)} [{_figure(spread.low)}–{_figure(spread.high)}]"


def _advantage(row: Row) -> str:
    return "–" if row.advantage is None else f"{_figure(row.advantage)}×"


def _verdict(verdict: Verdict | None) -> str:
    if verdict is None:
        return ""
    word = "met" if verdict.met else "missed"
    note = f"; {verdict.note}" if verdict.note else ""
    return f"{word}: {verdict.bar.text} ({_figure(verdict.margin)}× the bar{note})"


def print_table(results: Results, console: Console) -> None:
    table = Table(title=Text("median [lowest–highest]"))
    for heading in ("case", "figure", *BROKERS, "× RabbitMQ", "bar"):
        table.add_column(heading, justify="left" if heading in ("case", "figure", "bar") else "right")
    last = ""
    for row in rows(results):
        if row.case.name != last and last:
            table.add_section()
        colour = "" if row.verdict is None else "green" if row.verdict.met else "red"
        table.add_row(
            row.case.name if row.case.name != last else "",
            row.label,
            *(Text(_spread(row.spreads[broker])) for broker in BROKERS),
            _advantage(row),
            Text(_verdict(row.verdict), style=colour),
        )
        last = row.case.name
    console.print(table)
    judged = list(verdicts(results))
    if judged:
        met = sum(v.met for v in judged)
        console.print(f"bars: {met} met, {len(judged) - met} missed")
    for failure in results.failures:
        console.print(Text(f"no figures: {failure}", style="red"))


def write_json(results: Results, facts: dict[str, str], settings: dict[str, Any], path: Path) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
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
    document = {
        "machine": facts,
        "settings": settings,
        "summary": summary,
        "bars": [
            {
                **dataclasses.asdict(v.bar),
                "value": v.value,
                "limit": v.limit,
                "met": v.met,
                "note": v.note,
            }
            for v in verdicts(results)
        ],
        "runs": results.runs,
        "failures": results.failures,
    }
    path.write_text(json.dumps(document, indent=1, ensure_ascii=False) + "\n")


def read_json(path: Path) -> tuple[Results, dict[str, str], dict[str, Any]]:
    """The inverse of `write_json`, so that a page can be made again without measuring."""
    document = json.loads(path.read_text())
    return (
        Results(document["runs"], document["failures"]),
        document["machine"],
        document["settings"],
    )


def markdown(results: Results, facts: dict[str, str], settings: dict[str, Any], images: list[Path]) -> str:
    lines = [
        f"Measured {settings['date']} with {settings['repeat']} runs a case and broker, in turn.",
        "",
        ", ".join(f"{name} {value}" for name, value in facts.items()) + ".",
        "",
    ]
    lines += [f"![{image.stem}](img/{image.name})\n" for image in images]
    last = ""
    for row in rows(results):
        if row.case.name != last:
            lines += [
                "",
                f"### {row.case.name}",
                "",
                f"{row.case.title[0].upper()}{row.case.title[1:]}.",
                "",
                "| | Tidemark | RabbitMQ | null broker | × RabbitMQ | bar |",
                "|---|--:|--:|--:|--:|---|",
            ]
        cells = [_spread(row.spreads[broker]) for broker in BROKERS]
        lines.append(f"| {row.label} | {' | '.join(cells)} | {_advantage(row)} | {_verdict(row.verdict)} |")
        last = row.case.name
    if results.failures:
        lines += ["", "No figures:", ""]
        lines += [f"- {failure}" for failure in results.failures]
    return "\n".join(lines) + "\n"


def write_page(generated: str) -> None:
    """Replace what is between the markers of the page."""
    page = PAGE.read_text()
    before, begin, rest = page.partition(BEGIN)
    _, end, after = rest.partition(END)
    if not begin or not end:
        raise ValueError(f"{PAGE.name} has lost its markers {BEGIN} and {END}")
    PAGE.write_text(f"{before}{BEGIN}\n{generated}{END}{after}")
