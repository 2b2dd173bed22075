"""Draws the figures of a campaign as SVG files for the docs."""

from __future__ import annotations

from pathlib import Path

from bench.cases import CASES, Case, Kind
from bench.report import BROKERS, IMAGES
from bench.results import Results

_COLOURS = {"tidemark": "#0b7285", "rabbitmq": "#e8590c", "null": "#adb5bd"}
_NAMES = {"tidemark": "Tidemark", "rabbitmq": "RabbitMQ", "null": "null broker"}

Panel = tuple[str, str]
_THROUGHPUT: tuple[Panel, ...] = (
    ("cpu_s_per_million", "broker CPU seconds per million messages (less is better)"),
    ("messages_per_s", "messages per second (more is better)"),
)
_LATENCY: tuple[Panel, ...] = (
    ("p50_us", "end-to-end latency p50, µs (less is better)"),
    ("p99_us", "end-to-end latency p99, µs (less is better)"),
)


def draw(results: Results) -> list[Path]:
    """Write the plots; returns their paths, none where matplotlib is not installed."""
    try:
        import matplotlib
    except ImportError:
        return []
    matplotlib.use("Agg")
    matplotlib.rcParams["svg.hashsalt"] = "tidemark"  # the same figures make the same file
    matplotlib.rcParams["font.size"] = 9
    drawn = [
        _figure(results, Kind.THROUGHPUT, _THROUGHPUT, "bench-throughput.svg"),
        _figure(results, Kind.LATENCY, _LATENCY, "bench-latency.svg"),
    ]
    return [path for path in drawn if path]


def _figure(results: Results, kind: Kind, panels: tuple[Panel, ...], name: str) -> Path | None:
    import matplotlib.pyplot as plt

    cases = [case for case in CASES if case.kind is kind and case.name in results.runs]
    if not cases:
        return None
    brokers = [b for b in BROKERS if any(b in results.runs[case.name] for case in cases)]
    figure, axes = plt.subplots(
        1, len(panels), figsize=(11, 1.2 + 0.42 * len(cases)), sharey=True, layout="constrained"
    )
    for axis, (metric, title) in zip(axes, panels, strict=True):
        for place, broker in enumerate(brokers):
            _bars(axis, results, cases, broker, metric, place, len(brokers))
        axis.set_xscale("log")
        axis.xaxis.set_major_formatter(lambda value, _: _short(value))
        axis.xaxis.set_minor_formatter(lambda _value, _: "")
        figures = [
            median
            for case in cases
            for broker in brokers
            if (median := results.median(case.name, broker, metric))
        ]
        if figures:  # bars have a visible length, and their labels room on the right
            axis.set_xlim(min(figures) / 3, max(figures) * 2.5)
        axis.set_title(f"{title}, log scale", fontsize=9, loc="left")
        axis.grid(axis="x", alpha=0.3)
        axis.set_axisbelow(True)
        axis.spines[["top", "right"]].set_visible(False)
    axes[0].set_yticks(range(len(cases)), [case.name for case in cases])
    axes[0].invert_yaxis()
    figure.legend(
        *axes[0].get_legend_handles_labels(),
        loc="outside lower center",
        ncols=len(brokers),
        frameon=False,
    )
    IMAGES.mkdir(parents=True, exist_ok=True)
    figure.savefig(IMAGES / name, metadata={"Date": None})
    plt.close(figure)
    return IMAGES / name


def _bars(
    axis: object,
    results: Results,
    cases: list[Case],
    broker: str,
    metric: str,
    place: int,
    of: int,
) -> None:
    from matplotlib.axes import Axes

    assert isinstance(axis, Axes)
    height = 0.8 / of
    at, medians, below, above = [], [], [], []
    for row, case in enumerate(cases):
        spread = results.spread(case.name, broker, metric)
        if spread is None or spread.median <= 0:
            continue
        at.append(row - 0.4 + height * (place + 0.5))
        medians.append(spread.median)
        below.append(spread.median - spread.low)
        above.append(spread.high - spread.median)
    drawn = axis.barh(
        at,
        medians,
        height,
        xerr=[below, above],
        color=_COLOURS[broker],
        label=_NAMES[broker],
        error_kw={"elinewidth": 0.8, "ecolor": "#343a40"},
    )
    axis.bar_label(drawn, [_short(value) for value in medians], padding=4, fontsize=7)


def _short(value: float) -> str:
    for unit, size in (("M", 1e6), ("k", 1e3)):
        if value >= size:
            return f"{value / size:.3g}{unit}"
    return f"{value:.3g}"
