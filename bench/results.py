"""Figures of repeated runs: medians and spreads, the file they are kept in, and how they stand against the bars."""

from __future__ import annotations

import json
import statistics
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from bench.cases import Bar, bars
from bench.measure import Figures

_GENERATOR_BOUND = 0.93
_DISK_BOUND = 0.85


@dataclass(frozen=True, slots=True)
class Spread:
    median: float
    low: float
    high: float


def spread_of(values: list[float]) -> Spread | None:
    return Spread(statistics.median(values), min(values), max(values)) if values else None


@dataclass(slots=True)
class Results:
    """Everything a campaign has measured so far, by case and broker."""

    runs: dict[str, dict[str, list[Figures]]] = field(default_factory=dict)
    failures: list[str] = field(default_factory=list)

    def add(self, case: str, broker: str, figures: Figures) -> None:
        self.runs.setdefault(case, {}).setdefault(broker, []).append(figures)

    def spread(self, case: str, broker: str, metric: str) -> Spread | None:
        runs = self.runs.get(case, {}).get(broker, [])
        return spread_of([figures[metric] for figures in runs if metric in figures])

    def median(self, case: str, broker: str, metric: str) -> float | None:
        found = self.spread(case, broker, metric)
        return found.median if found else None

    def metrics(self, case: str) -> list[str]:
        """Every metric that any broker has in this case, in the order of measuring."""
        runs = (figures for broker in self.runs.get(case, {}).values() for figures in broker)
        return list(dict.fromkeys(name for figures in runs for name in figures))


def write_json(
    path: Path,
    results: Results,
    machine: dict[str, str],
    settings: dict[str, Any],
    bars: list[dict[str, Any]],
    **more: Any,
) -> None:
    """Keep all that a page is made of. `bars` and `more` are for whoever reads the file; `read_json` needs neither."""
    path.parent.mkdir(parents=True, exist_ok=True)
    document = {
        "machine": machine,
        "settings": settings,
        **more,
        "bars": bars,
        "runs": results.runs,
        "failures": results.failures,
    }
    path.write_text(json.dumps(document, indent=1, ensure_ascii=False) + "\n")


def read_json(path: Path) -> tuple[Results, dict[str, str], dict[str, Any]]:
    """Results, machine and settings of a file, so that a page can be made again without measuring."""
    document = json.loads(path.read_text())
    return Results(document["runs"], document["failures"]), document["machine"], document["settings"]


@dataclass(frozen=True, slots=True)
class Verdict:
    bar: Bar
    value: float
    limit: float
    met: bool
    note: str

    @property
    def margin(self) -> float:
        """How many times better than the bar; below 1 it is missed. Infinite where a figure is not above 0."""
        if self.value <= 0 or self.limit <= 0:
            return float("inf") if self.met else 0.0
        return self.limit / self.value if self.bar.at_most else self.value / self.limit


def verdicts(results: Results) -> Iterator[Verdict]:
    """One verdict for every bar whose figures were measured."""
    for bar in bars():
        value = results.median(bar.case, "tidemark", bar.metric)
        other = results.median(bar.case, bar.against, bar.metric) if bar.against else 1.0
        if value is None or other is None:
            continue
        limit = bar.factor * other
        met = bar.met_by(value, limit)
        yield Verdict(bar, value, limit, met, "" if met else _what_limits(results, bar))


def _what_limits(results: Results, bar: Bar) -> str:
    """A missed rate may be the generator's or the disk's; say so rather than guess."""
    if not bar.metric.endswith(("messages_per_s", "keyed_per_s")):
        return ""
    share = results.median(bar.case, "tidemark", "share_of_disk")
    if share is not None and share >= _DISK_BOUND:
        return f"at {share:.0%} of the bare disk loop"
    phase = "_keyed" if bar.metric == "keyed_per_s" else ""
    busy = results.median(bar.case, "tidemark", f"generator_busy{phase}")
    if busy is not None and busy >= _GENERATOR_BOUND:
        return f"the generator's core is {busy:.0%} busy"
    return ""
