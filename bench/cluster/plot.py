"""Draws the figures of a campaign as SVG files: confirmed publishes a CPU second, failover times one by one, and growth."""

from __future__ import annotations

from pathlib import Path
from statistics import median
from typing import Any

from bench.cluster.cases import (
    ALL,
    CASES,
    CHAIN,
    FLOOR,
    NAMES,
    NATS,
    RABBITMQ,
    STANDBY,
    WITH_FLOOR,
    Case,
    Kind,
)
from bench.cluster.report import values
from bench.cluster.slopes import GROWTH, grown, lines, points, times
from bench.drawing import LIMIT, pyplot, save, tidy
from bench.page import IMAGES
from bench.results import Results

_COLOURS = {STANDBY: "#0b7285", CHAIN: "#66d9e8", RABBITMQ: "#e8590c", NATS: "#5f3dc4", FLOOR: "#adb5bd"}
_LIMITS = {Kind.KILL: ((1, "p50 bar"), (2, "p99 bar")), Kind.FREEZE: ((3, "bar"),)}


def draw(results: Results, folder: Path = IMAGES) -> list[Path]:
    """Write the plots; returns their paths, none where matplotlib is not installed."""
    plt = pyplot()
    if plt is None:
        return []
    paths = []
    published = [case.name for case in CASES if case.kind is Kind.PUBLISH and case.name in results.runs]
    failed = [case for case in CASES if case.kind in _LIMITS and case.name in results.runs]
    for name, wanted in (("bench-cluster-cpu", published), ("bench-cluster-failover", failed)):
        if not wanted:
            continue
        if name == "bench-cluster-cpu":
            figure, axis = plt.subplots(figsize=(9, 2 + 0.55 * len(published)), layout="constrained")
            _draw_cpu(axis, results, published)
            figure.legend(fontsize=7, frameon=False, loc="outside lower center", ncols=len(WITH_FLOOR))
        else:
            figure, axes = plt.subplots(1, len(failed), figsize=(11, 3), layout="constrained", squeeze=False)
            for axis, case in zip(axes[0], failed, strict=True):
                _draw_failover(axis, results, case.name, case.kind)
        paths.append(save(figure, folder / f"{name}.svg"))
    if growing := grown(results):
        figure, axes = plt.subplots(
            1, len(growing), figsize=(3.5 * len(growing), 3), layout="constrained", squeeze=False
        )
        for axis, case in zip(axes[0], growing, strict=True):
            _draw_growth(axis, results, case)
        paths.append(save(figure, folder / "bench-cluster-growth.svg"))
    return paths


def _draw_cpu(axis: Any, results: Results, cases: list[str]) -> None:
    """Grouped bars on a logarithmic axis, each with the spread of its rounds."""
    who = [name for name in WITH_FLOOR if any(name in results.runs[case] for case in cases)]
    height = 0.8 / len(who)
    named: set[str] = set()
    for place, name in enumerate(who):
        for row, case in enumerate(cases):
            found = results.spread(case, name, "confirmed_per_cpu_s")
            if found is None:
                continue
            at = row + (place - (len(who) - 1) / 2) * height
            label = NAMES[name] if name not in named else None
            named.add(name)
            axis.barh(at, found.median, height, color=_COLOURS[name], label=label)
            axis.plot([found.low, found.high], [at, at], color=LIMIT, linewidth=0.8)
    axis.set_xscale("log")
    axis.set_yticks(range(len(cases)), [case.removeprefix("publish-") for case in cases])
    axis.set_title(
        "confirmed publishes a CPU second of all server processes (more is better)", fontsize=9, loc="left"
    )
    axis.invert_yaxis()
    tidy(axis)


def _draw_failover(axis: Any, results: Results, case: str, kind: Kind) -> None:
    names = [name for name in ALL if values(results, case, name, "next_confirm_s")]
    for row, name in enumerate(names):
        took = values(results, case, name, "next_confirm_s")
        axis.scatter(took, [row] * len(took), s=14, alpha=0.6, color=_COLOURS[name])
    for limit, label in _LIMITS[kind]:
        axis.axvline(limit, color=LIMIT, linewidth=0.8, linestyle="--")
        axis.text(limit, 1, label, fontsize=7, ha="center", va="bottom", transform=axis.get_xaxis_transform())
    axis.set_yticks(range(len(names)), [NAMES[name] for name in names], fontsize=8)
    axis.set_xscale("log")
    ticks = [0.1, 0.2, 0.5, 1, 2, 5, 10, 20, 50, 100]
    axis.set_xlim(ticks[0], ticks[-1])
    axis.set_xticks(ticks, [f"{tick:g}" for tick in ticks])
    axis.minorticks_off()
    axis.set_title(
        "seconds from " + ("SIGKILL" if kind is Kind.KILL else "SIGSTOP") + " to the next confirm",
        fontsize=9,
        loc="left",
        pad=12,
    )
    axis.invert_yaxis()
    tidy(axis)


def _draw_growth(axis: Any, results: Results, case: Case) -> None:
    """A line through the medians of each line's sizes, from zero: flat is what is hoped for, of a ratio the diagonal."""
    growth = GROWTH[case.kind]
    label = dict(growth.rows)[growth.drawn]
    values, title = (
        (times, f"{label}, {growth.ratio}") if growth.ratio else (points, f"CPU s a million: {label}")
    )
    for line, colour in zip(lines(case), _COLOURS.values(), strict=False):
        found = values(results, case, line, growth.drawn)
        axis.plot(list(found), [median(each) for each in found.values()], "o-", color=colour, label=line)
        for size, each in found.items():
            axis.plot([size, size], [min(each), max(each)], color=LIMIT, linewidth=0.8)
    if growth.ratio:
        most = max(step.size for step in case.steps)
        axis.plot([1, most], [1, most], color=LIMIT, linewidth=0.8, linestyle="--")
    axis.set_ylim(bottom=0)
    axis.set_xlabel(case.name)
    axis.set_title(title, fontsize=8, loc="left")
    axis.legend(fontsize=7, frameon=False)
    tidy(axis)
