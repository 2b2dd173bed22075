"""Turns the results into a table on the terminal, a JSON file, and the part of `docs/spark.md` between its markers."""

from __future__ import annotations

import dataclasses
import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from rich.console import Console
from rich.table import Table
from rich.text import Text

from bench.results import Results, Spread
from bench.spark.cases import CASES, NAMES, Bar, Case, Kind, bars
from bench.spark.setting import ROOT

RESULTS = ROOT / "bench" / "results"
PAGE = ROOT / "docs" / "spark.md"
IMAGES = ROOT / "docs" / "img"
BEGIN, END = "<!-- bench-spark:begin -->", "<!-- bench-spark:end -->"

_CPU = (
    ("cpu_s_per_million", "CPU s per million rows"),
    ("cpu_jvm_s_per_million", "… Spark's JVM"),
    ("cpu_python_s_per_million", "… Python workers"),
    ("cpu_broker_s_per_million", "… broker"),
)
_COLUMNS: dict[Kind, tuple[tuple[str, str], ...]] = {
    Kind.SCAN: (("rows_per_s", "rows/s"), *_CPU),
    Kind.MICRO_BATCH: (
        ("trigger_ms", "trigger, ms"),
        ("latestOffset_ms", "… latestOffset"),
        ("queryPlanning_ms", "… queryPlanning (partitions are planned here)"),
        ("walCommit_ms", "… walCommit"),
        ("addBatch_ms", "… addBatch"),
        ("commitOffsets_ms", "… commitOffsets"),
        ("cpu_ms_per_batch", "CPU ms a micro-batch"),
        ("cpu_jvm_ms_per_batch", "… Spark's JVM"),
        ("cpu_python_ms_per_batch", "… Python workers"),
        ("cpu_broker_ms_per_batch", "… broker, with the writer's puts"),
    ),
    Kind.POSTGRES: (
        ("rows_per_s", "rows/s"),
        ("cpu_s_per_million", "CPU s per million rows"),
        ("cpu_postgres_s_per_million", "… PostgreSQL"),
        ("cpu_driver_s_per_million", "… our Python"),
    ),
    Kind.GROWTH: (
        ("rows_per_s", "all of it: rows/s"),
        *((metric, f"all of it: {label}" if label[0] != "…" else label) for metric, label in _CPU),
        ("changed_rows_per_s", "100,000 changed rows: rows/s"),
        ("changed_cpu_s_per_million", "100,000 changed rows: CPU s per million rows"),
        ("changed_cpu_broker_s_per_million", "… broker"),
        ("trigger_ms", "a micro-batch of 100 rows, ms"),
        ("rss_bytes_per_key", "broker's memory a key, bytes"),
    ),
    Kind.PIN: (
        ("updates_per_s", "updates/s"),
        ("updates_cpu_s_per_million", "broker CPU s per million updates"),
        ("updates_p99_ms", "p99 ms a batch of 1,000"),
        ("kept_bytes", "bytes kept at the end"),
        ("kept_bytes_per_update", "bytes kept an update"),
        ("rss_grown_bytes", "memory grown by, bytes"),
        ("read_rows_per_s", "Spark meanwhile: rows/s"),
    ),
}
"""What is shown of a case: metric and heading."""


@dataclasses.dataclass(frozen=True, slots=True)
class Verdict:
    """A ratio of medians, with the lowest and the highest of the rounds one by one."""

    case: Case
    bar: Bar
    ratio: Spread
    met: bool

    @property
    def margin(self) -> float:
        """How many times better than the bar; below 1 it is missed."""
        return (
            self.bar.factor / self.ratio.median if self.bar.at_most else self.ratio.median / self.bar.factor
        )


def verdicts(results: Results) -> Iterator[Verdict]:
    """One for every bar whose figures were measured."""
    for case, bar in bars():
        ours = results.median(case.name, bar.ours, bar.metric)
        theirs = results.median(case.name, bar.against, bar.metric)
        if ours is None or not theirs:
            continue
        runs = results.runs[case.name]
        ratios = [
            mine[bar.metric] / other[bar.metric]
            for mine, other in zip(runs[bar.ours], runs[bar.against], strict=False)
            if other[bar.metric]
        ]
        ratio = ours / theirs
        yield Verdict(
            case,
            bar,
            Spread(ratio, min(ratios, default=ratio), max(ratios, default=ratio)),
            bar.met_by(ratio),
        )


@dataclasses.dataclass(frozen=True, slots=True)
class Row:
    case: Case
    label: str
    spreads: dict[str, Spread | None]


def rows(results: Results) -> Iterator[Row]:
    for case in CASES:
        measured = results.metrics(case.name)
        for metric, label in _COLUMNS[case.kind]:
            if metric in measured:
                spreads = {name: results.spread(case.name, name, metric) for name in case.contestants}
                yield Row(case, label, spreads)


def label_of(contestant: str) -> str:
    return NAMES.get(contestant, contestant)


def _figure(value: float) -> str:
    if value >= 1e7:
        return f"{value / 1e6:,.1f} M"
    if value >= 1000:
        return f"{value:,.0f}"
    return f"{value:.3g}"


def _spread(spread: Spread | None) -> str:
    if spread is None:
        return "–"
    if spread.low == spread.high:
        return _figure(spread.median)
    return f"{_figure(spread.median)} [{_figure(spread.low)}–{_figure(spread.high)}]"


def _sentence(verdict: Verdict) -> str:
    bar = verdict.bar
    word = "met" if verdict.met else "missed"
    return f"{word}: {bar.text}: {_spread(verdict.ratio)} ({_figure(verdict.margin)}× the bar)"


def print_table(results: Results, console: Console) -> None:
    for case in CASES:
        shown = [row for row in rows(results) if row.case is case]
        if not shown:
            continue
        table = Table(title=Text(f"{case.name}: {case.title}"), title_justify="left")
        table.add_column("median [lowest–highest]")
        for name in case.contestants:
            table.add_column(label_of(name), justify="right")
        for row in shown:
            table.add_row(row.label, *(Text(_spread(row.spreads[name])) for name in case.contestants))
        console.print(table)
        for verdict in verdicts(results):
            if verdict.case is case:
                console.print(Text(_sentence(verdict), style="green" if verdict.met else "red"))
    for failure in results.failures:
        console.print(Text(f"no figures: {failure}", style="red"))


def write_json(results: Results, facts: dict[str, str], settings: dict[str, Any], path: Path) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    document = {
        "machine": facts,
        "settings": settings,
        "bars": [
            {
                "case": found.case.name,
                **dataclasses.asdict(found.bar),
                "ratio": dataclasses.asdict(found.ratio),
                "met": found.met,
            }
            for found in verdicts(results)
        ],
        "runs": results.runs,
        "failures": results.failures,
    }
    path.write_text(json.dumps(document, indent=1, ensure_ascii=False) + "\n")


def read_json(path: Path) -> tuple[Results, dict[str, str], dict[str, Any]]:
    """The inverse of `write_json`, so that a page can be made again without measuring."""
    document = json.loads(path.read_text())
    return Results(document["runs"], document["failures"]), document["machine"], document["settings"]


def markdown(results: Results, facts: dict[str, str], settings: dict[str, Any], images: list[Path]) -> str:
    short = (
        " A short campaign (`--quick`): a fifth of the rows that the titles name."
        if settings["quick"]
        else ""
    )
    lines = [
        f"Measured {settings['date']} in {settings['rounds']} rounds, everybody in turn in each.{short}",
        "",
        ", ".join(f"{name} {value}" for name, value in facts.items()) + ".",
        "",
    ]
    lines += [f"![{image.stem}](img/{image.name})\n" for image in images]
    for case in CASES:
        shown = [row for row in rows(results) if row.case is case]
        if not shown:
            continue
        lines += [
            f"### {case.name}",
            "",
            f"{case.title[0].upper()}{case.title[1:]}.",
            "",
            f"| | {' | '.join(map(label_of, case.contestants))} |",
            f"|---|{'--:|' * len(case.contestants)}",
        ]
        lines += [
            f"| {row.label} | {' | '.join(_spread(row.spreads[name]) for name in case.contestants)} |"
            for row in shown
        ]
        lines.append("")
        found = [f"- {_sentence(verdict)}" for verdict in verdicts(results) if verdict.case is case]
        lines += [*found, ""] if found else []
    if results.failures:
        lines += ["No figures:", "", *(f"- {failure}" for failure in results.failures), ""]
    return "\n".join(lines).rstrip() + "\n"


def write_page(generated: str, page: Path = PAGE) -> None:
    """Replace what is between the markers of the page.

    Raises:
        ValueError: it has none.
    """
    text = page.read_text() if page.exists() else ""
    before, begin, rest = text.partition(BEGIN)
    _, end, after = rest.partition(END)
    if not begin or not end:
        raise ValueError(f"docs/{page.name} has no markers {BEGIN} and {END}: nothing was written there")
    page.write_text(f"{before}{begin}\n{generated}{end}{after}")
