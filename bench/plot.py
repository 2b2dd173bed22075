"""Draws the figures of a campaign as SVG files for the docs."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from bench.cases import CASES, Kind
from bench.drawing import LIMIT, pyplot, save, tidy
from bench.page import IMAGES
from bench.report import NAMES
from bench.results import Results

_COLOURS = {
    "tidemark": "#0b7285",
    "rabbitmq": "#e8590c",
    "null": "#adb5bd",
    "null-durable": "#adb5bd",
    "core": "#adb5bd",
    "nats": "#5f3dc4",
    "redis": "#c92a2a",
}


@dataclass(frozen=True, slots=True)
class Line:
    """One line of a figure: what it is called, and its metric in each panel."""

    label: str
    case: str
    metrics: tuple[str, ...]


def _lines(results: Results, kind: Kind, metrics: tuple[str, ...]) -> list[Line]:
    return [
        Line(case.name, case.name, metrics)
        for case in CASES
        if case.kind is kind and case.name in results.runs
    ]


def _line(label: str, case: str, name: str) -> Line:
    return Line(label, case, (f"{name}_cpu_s_per_million", f"{name}_per_s"))


_INSIDE = tuple(
    _line(f"{what}, {keys} keys", f"stream-keyed-{keys.lower()}", name)
    for keys in ("1M", "10M")
    for name, what in (("keyed", "updates"), ("unkeyed", "unkeyed beside"))
)
_PEERS = (
    _line("keyed, batches of 1,000", "stream-peers", "keyed"),
    _line("appended, batches of 1,000", "stream-peers", "append"),
    _line("keyed, one by one", "stream-peers", "single"),
    _line("read", "stream-peers", "read"),
)
_COST = ("broker CPU seconds per million messages (less is better)", "messages per second (more is better)")
_WAIT = ("end-to-end latency p50, µs (less is better)", "end-to-end latency p99, µs (less is better)")


def draw(results: Results, *, of_streams: bool) -> list[Path]:
    """Write the plots of AMQP or of streams; returns their paths, none where matplotlib is not installed."""
    if pyplot() is None:
        return []
    throughput = _lines(results, Kind.THROUGHPUT, ("cpu_s_per_million", "messages_per_s"))
    latency = _lines(results, Kind.LATENCY, ("p50_us", "p99_us"))
    inside, peers = ([line for line in lines if line.case in results.runs] for lines in (_INSIDE, _PEERS))
    return [
        _figure(results, lines, titles, name)
        for streams, lines, titles, name in (
            (False, throughput, _COST, "bench-throughput.svg"),
            (False, latency, _WAIT, "bench-latency.svg"),
            (True, inside, _COST, "bench-streams.svg"),
            (True, peers, _COST, "bench-stream-peers.svg"),
        )
        if lines and streams == of_streams
    ]


def _figure(results: Results, lines: list[Line], titles: tuple[str, ...], name: str) -> Path:
    brokers = [b for b in NAMES if any(b in results.runs[line.case] for line in lines)]
    figure, axes = pyplot().subplots(
        1, len(titles), figsize=(11, 1.2 + 0.42 * len(lines)), sharey=True, layout="constrained"
    )
    for panel, (axis, title) in enumerate(zip(axes, titles, strict=True)):
        for place, broker in enumerate(brokers):
            _bars(axis, results, lines, broker, panel, place, len(brokers))
        axis.set_xscale("log")
        axis.xaxis.set_major_formatter(lambda value, _: _short(value))
        axis.xaxis.set_minor_formatter(lambda _value, _: "")
        figures = [
            median
            for line in lines
            for broker in brokers
            if (median := results.median(line.case, broker, line.metrics[panel]))
        ]
        if figures:  # bars have a visible length, and their labels room on the right
            axis.set_xlim(min(figures) / 3, max(figures) * 2.5)
        axis.set_title(f"{title}, log scale", fontsize=9, loc="left")
        tidy(axis)
    axes[0].set_yticks(range(len(lines)), [line.label for line in lines])
    axes[0].invert_yaxis()
    figure.legend(
        *axes[0].get_legend_handles_labels(),
        loc="outside lower center",
        ncols=len(brokers),
        frameon=False,
    )
    return save(figure, IMAGES / name)


def _bars(
    axis: object,
    results: Results,
    lines: list[Line],
    broker: str,
    panel: int,
    place: int,
    of: int,
) -> None:
    from matplotlib.axes import Axes

    assert isinstance(axis, Axes)
    height = 0.8 / of
    at, medians, below, above = [], [], [], []
    for row, line in enumerate(lines):
        spread = results.spread(line.case, broker, line.metrics[panel])
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
        label=NAMES[broker],
        error_kw={"elinewidth": 0.8, "ecolor": LIMIT},
    )
    axis.bar_label(drawn, [_short(value) for value in medians], padding=4, fontsize=7)


def _short(value: float) -> str:
    for unit, size in (("M", 1e6), ("k", 1e3)):
        if value >= size:
            return f"{value / size:.3g}{unit}"
    return f"{value:.3g}"
