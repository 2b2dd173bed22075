"""Draws the figures of a campaign as one SVG file: each bar as a ratio, and where the CPU of a million rows goes."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

from bench.drawing import LIMIT, pyplot, save, tidy
from bench.page import IMAGES
from bench.results import Results
from bench.spark.cases import CASES, TUPLES, Kind
from bench.spark.report import Verdict, label_of, verdicts

_MET, _MISSED = "#0b7285", "#c92a2a"
_PARTS = (
    ("cpu_jvm_s_per_million", "Spark's JVM", "#e8590c"),
    ("cpu_python_s_per_million", "Python workers", "#fcc419"),
    ("cpu_broker_s_per_million", "broker", "#0b7285"),
    ("cpu_driver_s_per_million", "driver's Python", "#adb5bd"),
)


def draw(results: Results, folder: Path = IMAGES) -> list[Path]:
    """Write the plots; returns their paths, none where matplotlib is not installed."""
    plt = pyplot()
    if plt is None:
        return []
    judged, stacks = list(verdicts(results)), _stacks(results)
    panels: list[tuple[Callable[[Any], None], int]] = []
    if judged:
        panels.append((lambda axis: _draw_bars(axis, judged), len(judged)))
    if stacks:
        panels.append((lambda axis: _draw_stacks(axis, stacks), len(stacks)))
    if not panels:
        return []
    tallest = max(lines for _, lines in panels)
    figure, axes = plt.subplots(
        1, len(panels), figsize=(11, 1.3 + 0.45 * tallest), layout="constrained", squeeze=False
    )
    for axis, (paint, _) in zip(axes[0], panels, strict=True):
        paint(axis)
        axis.invert_yaxis()
        tidy(axis)
    return [save(figure, folder / "bench-spark.svg")]


def _draw_bars(axis: Any, judged: list[Verdict]) -> None:
    """How many times better than asked, with the spread of the rounds."""
    for row, found in enumerate(judged):
        factor = found.bar.factor
        edges = [found.ratio.low, found.ratio.high]
        low, high = sorted(factor / edge if found.bar.at_most else edge / factor for edge in edges if edge)
        axis.barh(row, found.margin, 0.6, color=_MET if found.met else _MISSED)
        axis.plot([low, high], [row, row], color=LIMIT, linewidth=0.8)
        axis.text(max(high, found.margin) + 0.03, row, f"{found.ratio.median:.2f}×", va="center", fontsize=7)
    axis.axvline(1, color=LIMIT, linewidth=1)
    labels = [_label(found) for found in judged]
    axis.set_yticks(range(len(judged)), labels, fontsize=7)
    axis.set_title(
        "times better than its bar (line at 1); the figure is the ratio itself", fontsize=9, loc="left"
    )


def _label(found: Verdict) -> str:
    what = ", what changed" if found.bar.metric.startswith("changed_") else ""
    return f"{found.case.name}{what}, {label_of(found.bar.ours)}\nbeside {label_of(found.bar.against)}"


def _stacks(results: Results) -> list[tuple[str, list[float]]]:
    return [
        (
            f"{case.name}, {label_of(name)}",
            [results.median(case.name, name, metric) or 0.0 for metric, _, _ in _PARTS],
        )
        for case in CASES
        if case.kind in (Kind.SCAN, Kind.GROWTH)
        for name in case.contestants
        if name != TUPLES  # ten times as long as all others
        and results.median(case.name, name, "cpu_s_per_million") is not None
    ]


def _draw_stacks(axis: Any, stacks: list[tuple[str, list[float]]]) -> None:
    left = [0.0] * len(stacks)
    for part, (_, label, colour) in enumerate(_PARTS):
        widths = [values[part] for _, values in stacks]
        axis.barh(range(len(stacks)), widths, 0.6, left=left, color=colour, label=label)
        left = [at + width for at, width in zip(left, widths, strict=True)]
    for row, total in enumerate(left):
        axis.text(total, row, f" {total:.2g}", va="center", fontsize=7)
    axis.set_yticks(range(len(stacks)), [label for label, _ in stacks], fontsize=7)
    axis.set_title("CPU seconds per million rows (less is better)", fontsize=9, loc="left")
    axis.legend(fontsize=7, frameon=False, loc="upper center", bbox_to_anchor=(0.5, -0.06), ncols=len(_PARTS))
