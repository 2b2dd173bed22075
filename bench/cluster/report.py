"""Turns the results into tables on the terminal, a JSON file, and the part of `docs/benchmarks.md` between its markers."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from rich.console import Console

from bench.cluster.cases import (
    ALL,
    ALONE,
    CASES,
    FLOOR,
    NAMES,
    NATS,
    OURS,
    RABBITMQ,
    WITH_FLOOR,
    Bar,
    Case,
    Kind,
    Statistic,
)
from bench.cluster.cases import bars as every_bar
from bench.cluster.slopes import GROWTH, as_json, grown, lines, ratios_as_json, steepness, times
from bench.page import DOCS, Part, closing, opening
from bench.results import Results, Spread, spread_of
from bench.results import write_json as write_results
from bench.streams.pump import percentile
from bench.tables import Grid, Words, figure, print_failures, print_verdict, spread_text

PART = Part("bench-cluster", DOCS / "benchmarks.md")


# Judging ---------------------------------------------------------------------------------------------


@dataclasses.dataclass(frozen=True, slots=True)
class Verdict:
    """A figure, or a ratio of medians with the lowest and the highest that any two runs give."""

    case: Case
    bar: Bar
    value: Spread
    met: bool

    @property
    def margin(self) -> float:
        """How many times better than the bar; below 1 it is missed."""
        value, factor = self.value.median, self.bar.factor
        if value <= 0 or not factor:
            return 1.0 if self.met else 0.0
        return factor / value if self.bar.at_most else value / factor


def values(results: Results, case: str, contestant: str, metric: str) -> list[float]:
    runs = results.runs.get(case, {}).get(contestant, [])
    return [figures[metric] for figures in runs if metric in figures]


def statistic(found: list[float], which: Statistic) -> float:
    match which:
        case Statistic.MAX:
            return max(found)
        case Statistic.P99:
            return percentile(sorted(found), 0.99)
        case Statistic.MEDIAN:
            return (
                percentile(sorted(found), 0.5)
                if len(found) % 2
                else sum(sorted(found)[len(found) // 2 - 1 :][:2]) / 2
            )


def verdicts(results: Results) -> Iterator[Verdict]:
    """One for every bar whose figures were measured."""
    for case, bar in every_bar():
        ours = values(results, case.name, bar.ours, bar.metric)
        if not ours:
            continue
        if not bar.against:
            value = statistic(ours, bar.statistic)
            yield Verdict(case, bar, Spread(value, min(ours), max(ours)), bar.met_by(value))
            continue
        theirs = values(results, case.name, bar.against, bar.metric)
        if not theirs or not statistic(theirs, Statistic.MEDIAN):
            continue
        ratio = statistic(ours, Statistic.MEDIAN) / statistic(theirs, Statistic.MEDIAN)
        # Rounds may be missing on either side: the widest that any two runs give.
        low, high = min(ours) / max(theirs), max(ours) / min(theirs) if min(theirs) else ratio
        yield Verdict(case, bar, Spread(ratio, low, high), bar.met_by(ratio))


# Tables ----------------------------------------------------------------------------------------------


def percent(value: float) -> str:
    return f"{value:.0%}"


def _fine_percent(value: float) -> str:
    return f"{value:.1%}"


_PUBLISH = (
    ("confirmed_per_cpu_s", "Confirmed publishes a CPU second of all server processes"),
    ("cpu_s_per_million", "CPU seconds of all server processes a million confirmed"),
    ("confirmed_per_s", "Confirmed publishes a second"),
    ("confirm_p50_ms", "Confirm latency, p50, ms"),
    ("confirm_p99_ms", "Confirm latency, p99, ms"),
)
_COST = (
    ("cpu_s_per_million", "the leader's CPU s a million confirmed"),
    ("cpu_s_per_gb", "the leader's CPU s a GB of bodies"),
    ("confirmed_per_s", "confirmed a second"),
)
_CATCH_UP: tuple[tuple[str, str, Words], ...] = (
    ("messages", "messages to catch up with", figure),
    ("journal_bytes", "bytes in the journal", figure),
    ("catch_up_s", "first record to ready, s", figure),
    ("messages_per_s", "messages/s", figure),
    ("bytes_per_s", "bytes/s", figure),
    ("bulk_bytes_per_s", "bulk copy of as many bytes: bytes/s", figure),
    ("share_of_bulk", "share of the bulk copy", percent),
    ("start_to_ready_s", "start of the process to ready, s", figure),
    ("foreground_before_per_s", "publishers before, two members: confirmed/s", figure),
    ("foreground_during_per_s", "publishers meanwhile: confirmed/s", figure),
    ("foreground_whole_per_s", "publishers afterwards, three members: confirmed/s", figure),
    ("foreground_loss", "loss against two members", percent),
    ("foreground_loss_of_whole", "loss against three members", percent),
    ("loaded_catch_up_s", "first record to ready meanwhile, s", figure),
)


def grids(results: Results) -> Iterator[Grid]:
    yield from _idle_grid(results)
    yield from _publish_grids(results)
    yield from _cost_grid(results)
    yield from _failover_grids(results)
    yield from _catch_up_grid(results)
    yield from _growth_grids(results)


def _of(kind: Kind, results: Results) -> list[Case]:
    return [case for case in CASES if case.kind is kind and case.name in results.runs]


def _names(contestants: tuple[str, ...]) -> list[str]:
    return [NAMES[name] for name in contestants]


def _idle_grid(results: Results) -> Iterator[Grid]:
    for case in _of(Kind.IDLE, results):
        cells = [spread_text(results.spread(case.name, name, "idle_cpu"), _fine_percent) for name in ALL]
        yield Grid(
            "Idle: share of one core that all server processes take",
            _names(ALL),
            [["idle", *cells]],
        )


def _publish_grids(results: Results) -> Iterator[Grid]:
    cases = _of(Kind.PUBLISH, results)
    floor = any(FLOOR in results.runs[case.name] for case in cases)
    who = WITH_FLOOR if floor else ALL
    for metric, title in _PUBLISH if cases else ():
        grid = Grid(title, _names(who))
        ratios = metric == "confirmed_per_cpu_s"
        if ratios:
            grid.headings += [
                f"{ours.removeprefix('tidemark-')} × {NAMES[peer].split()[0]}"
                for ours in OURS
                for peer in (RABBITMQ, NATS)
            ]
        for case in cases:
            cells = [spread_text(results.spread(case.name, name, metric)) for name in who]
            if ratios:
                cells += [
                    _ratio(results, case.name, metric, ours, peer)
                    for ours in OURS
                    for peer in (RABBITMQ, NATS)
                ]
            grid.rows.append([case.name.removeprefix("publish-"), *cells])
        yield grid


def _ratio(results: Results, case: str, metric: str, ours: str, peer: str) -> str:
    mine, other = results.median(case, ours, metric), results.median(case, peer, metric)
    return f"{figure(mine / other)}×" if mine and other else "–"


def _cost_grid(results: Results) -> Iterator[Grid]:
    cases = _of(Kind.COST, results)
    if not cases:
        return
    who = (ALONE, *OURS)
    grid = Grid("What replication costs the leader", _names(who))
    for case in cases:
        for metric, label in _COST:
            cells = [spread_text(results.spread(case.name, name, metric)) for name in who]
            grid.rows.append([f"{case.name.removeprefix('cost-')}: {label}", *cells])
    yield grid


def _failover_grids(results: Results) -> Iterator[Grid]:
    for kind, what in ((Kind.KILL, "SIGKILL"), (Kind.FREEZE, "SIGSTOP")):
        for case in _of(kind, results):
            grid = Grid(
                f"{what} of the leader to the next confirm, s",
                ["times", "p50", "p99", "longest", "confirmed", "of them lost"],
            )
            for name in case.contestants:
                took = values(results, case.name, name, "next_confirm_s")
                if took:
                    cells = [figure(statistic(took, each)) for each in Statistic]
                    confirmed = sum(values(results, case.name, name, "confirmed"))
                    lost = sum(values(results, case.name, name, "lost"))
                    grid.rows.append(
                        [NAMES[name], str(len(took)), *cells, f"{confirmed:,.0f}", f"{lost:,.0f}"]
                    )
            yield grid


def _catch_up_grid(results: Results) -> Iterator[Grid]:
    for case in _of(Kind.CATCH_UP, results):
        grid = Grid("A member returns with an empty store", _names(case.contestants))
        measured = results.metrics(case.name)
        for metric, label, text in _CATCH_UP:
            if metric in measured:
                cells = [
                    spread_text(results.spread(case.name, name, metric), text) for name in case.contestants
                ]
                grid.rows.append([label, *cells])
        yield grid


def _steep(value: float) -> str:
    if abs(value) >= 1000:
        return f"{value:+,.0f}"
    return f"{value:+.3g}" if value else "0"


def _times(value: float) -> str:
    return f"{value:.2f}×"


def _growth_grids(results: Results) -> Iterator[Grid]:
    for case in grown(results):
        growth = GROWTH[case.kind]
        steps = [step for step in case.steps if step.name in results.runs[case.name]]
        grid = Grid(growth.title, [f"{step.line} {step.size}" for step in steps])
        for metric, label in growth.rows:
            cells = [spread_text(results.spread(case.name, step.name, metric)) for step in steps]
            grid.rows.append([label, *cells])
            if growth.ratio and metric == growth.drawn:
                ratios = {line: times(results, case, line, metric) for line in lines(case)}
                found = [ratios[step.line].get(step.size, []) for step in steps]
                grid.rows.append([growth.ratio, *(spread_text(spread_of(each), _times) for each in found)])
        for metric, label in growth.shares:
            cells = [spread_text(results.spread(case.name, step.name, metric), percent) for step in steps]
            grid.rows.append([label, *cells])
        yield grid
        slopes = Grid(f"{growth.title}: slopes", lines(case))
        for slope in growth.slopes:
            steep = [steepness(results, case, line, slope) for line in lines(case)]
            if any(steep):
                slopes.rows.append([slope.label, *(spread_text(each, _steep) for each in steep)])
        if slopes.rows:
            yield slopes


def sentence(verdict: Verdict) -> str:
    word = "met" if verdict.met else "missed"
    if verdict.bar.against:
        shown = f"{figure(verdict.value.median)}× [{figure(verdict.value.low)}–{figure(verdict.value.high)}]"
    else:
        shown = figure(verdict.value.median)
    judged = verdict.bar.factor and verdict.value.median > 0
    margin = f" ({figure(verdict.margin)}× the bar)" if judged else ""
    return f"{word}: {verdict.case.name}: {verdict.bar.text}: {shown}{margin}"


def print_tables(results: Results, console: Console) -> None:
    for grid in grids(results):
        grid.print(console)
    judged = list(verdicts(results))
    for verdict in judged:
        print_verdict(console, verdict.met, sentence(verdict))
    met = sum(verdict.met for verdict in judged)
    console.print(f"bars: {met} met, {len(judged) - met} missed")
    print_failures(console, results.failures)


# Files -----------------------------------------------------------------------------------------------


def write_json(results: Results, facts: dict[str, str], settings: dict[str, Any], path: Path) -> None:
    bars = [
        {
            "case": found.case.name,
            **dataclasses.asdict(found.bar),
            "statistic": found.bar.statistic.value,
            "value": dataclasses.asdict(found.value),
            "met": found.met,
        }
        for found in verdicts(results)
    ]
    more = {"slopes": as_json(results), "ratios": ratios_as_json(results)}
    write_results(path, results, facts, settings, bars, **{name: told for name, told in more.items() if told})


def markdown(results: Results, facts: dict[str, str], settings: dict[str, Any], images: list[Path]) -> str:
    short = " A short campaign (`--quick`): preliminary." if settings["quick"] else ""
    rounds = f"in {settings['rounds']} rounds, everybody in turn in each"
    if settings.get("stopped"):
        rounds = f"and stopped before all {settings['rounds']} rounds were done: not everybody ran as often"
    measured = f"Measured {settings['date']} {rounds}.{short} Medians with the [lowest–highest] run."
    lines = opening(measured, facts, images)
    for grid in grids(results):
        lines += [f"**{grid.title}**", "", *grid.markdown(), ""]
    judged = list(verdicts(results))
    if judged:
        met = sum(verdict.met for verdict in judged)
        lines += [f"**Bars: {met} met, {len(judged) - met} missed**", ""]
        lines += [f"- {sentence(verdict)}" for verdict in sorted(judged, key=lambda one: one.met)]
        lines.append("")
    return "\n".join([*lines, *closing(results.failures)]).rstrip() + "\n"
