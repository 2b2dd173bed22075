"""Turns the results into a table on the terminal, a JSON file, and the part of `docs/spark.md` between its markers."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from rich.console import Console

from bench.page import DOCS, Part, closing, opening
from bench.results import Results, Spread
from bench.results import write_json as write_results
from bench.spark.cases import CASES, NAMES, Bar, Case, Kind
from bench.spark.cases import bars as every_bar
from bench.tables import Grid, figure, print_failures, print_verdict, spread_text

PART = Part("bench-spark", DOCS / "spark.md")

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
    for case, bar in every_bar():
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


def grids(results: Results) -> Iterator[tuple[Case, Grid]]:
    """A table for each case that was measured."""
    for case in CASES:
        measured = results.metrics(case.name)
        rows = [
            [label, *(spread_text(results.spread(case.name, name, metric)) for name in case.contestants)]
            for metric, label in _COLUMNS[case.kind]
            if metric in measured
        ]
        if rows:
            headings = [label_of(name) for name in case.contestants]
            yield case, Grid(f"{case.name}: {case.title}", headings, rows, "median [lowest–highest]")


def label_of(contestant: str) -> str:
    return NAMES.get(contestant, contestant)


def _sentence(verdict: Verdict) -> str:
    bar = verdict.bar
    word = "met" if verdict.met else "missed"
    return f"{word}: {bar.text}: {spread_text(verdict.ratio)} ({figure(verdict.margin)}× the bar)"


def print_table(results: Results, console: Console) -> None:
    for case, grid in grids(results):
        grid.print(console)
        for verdict in verdicts(results):
            if verdict.case is case:
                print_verdict(console, verdict.met, _sentence(verdict))
    print_failures(console, results.failures)


def write_json(results: Results, facts: dict[str, str], settings: dict[str, Any], path: Path) -> None:
    bars = [
        {
            "case": found.case.name,
            **dataclasses.asdict(found.bar),
            "ratio": dataclasses.asdict(found.ratio),
            "met": found.met,
        }
        for found in verdicts(results)
    ]
    write_results(path, results, facts, settings, bars)


def markdown(results: Results, facts: dict[str, str], settings: dict[str, Any], images: list[Path]) -> str:
    short = (
        " A short campaign (`--quick`): a fifth of the rows that the titles name."
        if settings["quick"]
        else ""
    )
    measured = (
        f"Measured {settings['date']} in {settings['rounds']} rounds, everybody in turn in each.{short}"
    )
    lines = opening(measured, facts, images)
    for case, grid in grids(results):
        lines += [
            f"### {case.name}",
            "",
            f"{case.title[0].upper()}{case.title[1:]}.",
            "",
            *grid.markdown(),
            "",
        ]
        found = [f"- {_sentence(verdict)}" for verdict in verdicts(results) if verdict.case is case]
        lines += [*found, ""] if found else []
    return "\n".join([*lines, *closing(results.failures)]).rstrip() + "\n"
