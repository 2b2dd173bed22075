"""What the figures of cases that grow say: which of them are shown, and how steep they are.

A slope is by least squares over the sizes of one line: what a metric, mostly CPU seconds a million messages, gains with one
more of what grows. Each round has its own, from the runs of that round; of a line that misses a run there are as many as its
sizes have in common.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import asdict, dataclass
from statistics import linear_regression
from typing import Any

from bench.cluster.cases import CASES, Case, Kind
from bench.results import Results, Spread, spread_of


@dataclass(frozen=True, slots=True)
class Slope:
    """Of one metric, between two sizes."""

    metric: str
    label: str
    least: int = 0
    most: float = math.inf


@dataclass(frozen=True, slots=True)
class Growth:
    """How a case that grows is told."""

    title: str
    rows: tuple[tuple[str, str], ...]
    slopes: tuple[Slope, ...]
    drawn: str
    """The metric of its plot."""
    ratio: str = ""
    """What to call how many times as much of that metric there is as with the smallest size, where this is told and drawn."""
    shares: tuple[tuple[str, str], ...] = ()
    """More rows, in percent."""


_RATE = ("confirmed_per_s", "confirmed a second")
_IDLE = ("idle_share", "idle: CPU s a second of all processes")
_LATENCY = ("confirm_p50_ms", "confirm p50, ms")
_OF_GROUPS = (
    ("leaders_cpu", "leaders"),
    ("followers_cpu", "followers"),
    ("fronts_cpu", "fronts"),
    ("main_cpu", "the group main"),
    ("all_cpu", "all processes, etcd too"),
    ("busy_cpu", "all, less what they take when idle"),
)


def _of_groups(title: str, unit: str) -> Growth:
    slopes = tuple(Slope(metric, f"{label}: a further {unit}") for metric, label in _OF_GROUPS)
    return Growth(title, (*_OF_GROUPS, _IDLE, _RATE, _LATENCY), slopes, "busy_cpu")


GROWTH: dict[Kind, Growth] = {
    Kind.GROW_NODES: Growth(
        "Growing by members: CPU s a million confirmed",
        (
            ("leader_cpu", "the leader"),
            ("first_cpu", "its first follower"),
            ("last_cpu", "the last one"),
            ("follower_cpu", "a follower, on average"),
            ("all_cpu", "all processes, etcd too"),
            ("leader_feeds", "members that the leader feeds"),
            ("leader_writes", "the leader: writes a thousand messages"),
            ("leader_wakeups", "the leader: wake-ups a thousand messages"),
            _RATE,
            _LATENCY,
        ),
        (
            Slope("leader_cpu", "the leader: the first follower", 1, 2),
            Slope("leader_cpu", "the leader: a further follower", 2),
            Slope("last_cpu", "the last follower: a further one", 2),
            Slope("leader_writes", "the leader, writes a thousand messages: a further follower", 2),
            Slope("all_cpu", "all processes: the first follower", 1, 2),
            Slope("all_cpu", "all processes: a further follower", 2),
        ),
        "leader_cpu",
    ),
    Kind.GROW_GROUPS: _of_groups("Growing by groups, a queue in each: CPU s a million confirmed", "group"),
    Kind.GROW_PARTITIONS: _of_groups(
        "Growing by partitions of a stream: CPU s a million confirmed", "partition"
    ),
    Kind.GROW_CAPACITY: Growth(
        "Growing by groups with a small CPU for each process",
        (
            _RATE,
            _LATENCY,
            ("leaders_cpu", "leaders: CPU s a million"),
            ("followers_cpu", "followers: CPU s a million"),
            ("fronts_cpu", "fronts: CPU s a million"),
        ),
        (
            Slope("confirmed_per_s", "confirmed a second: a further group"),
            Slope("leaders_cpu", "leaders, CPU s a million: a further group"),
            Slope("fronts_cpu", "fronts, CPU s a million: a further group"),
        ),
        "confirmed_per_s",
        ratio="times that of one group",
        shares=(
            ("leaders_used", "of its CPU, the leader that uses least"),
            ("leaders_still", "periods in which a leader stands still, at least"),
            ("fronts_used", "of its CPU, the front that uses most"),
            ("fronts_still", "periods in which a front stands still, at most"),
            ("followers_used", "of its CPU, the follower that uses most"),
            ("main_used", "of its CPU, the member of main that uses most"),
            ("machine_used", "of the machine, all of it, etcd and the load too"),
        ),
    ),
    Kind.GROW_CONSUMERS: Growth(
        "Growing by followers of a stream: CPU s a million rows",
        (
            ("leader_cpu", "the leader, a million put"),
            ("others_cpu", "the other members, a million put"),
            ("leader_cpu_delivered", "the leader, a million delivered"),
            ("all_cpu_delivered", "all members, a million delivered"),
            ("rows_per_s", "put a second"),
            ("delivered_per_s", "delivered a second"),
        ),
        (
            Slope("leader_cpu", "the leader, a million put: a further follower"),
            Slope("others_cpu", "the other members, a million put: a further follower"),
        ),
        "leader_cpu",
    ),
}


def grown(results: Results) -> list[Case]:
    """The cases that grow and were measured."""
    return [case for case in CASES if case.steps and case.name in results.runs]


def lines(case: Case) -> list[str]:
    return list(dict.fromkeys(step.line for step in case.steps))


def points(results: Results, case: Case, line: str, metric: str) -> dict[int, list[float]]:
    """The values of a metric, run by run, for each size that has any."""
    found = {
        step.size: [run[metric] for run in results.runs[case.name].get(step.name, []) if metric in run]
        for step in case.steps
        if step.line == line
    }
    return {size: values for size, values in found.items() if values}


def times(results: Results, case: Case, line: str, metric: str) -> dict[int, list[float]]:
    """How many times that of the smallest size each one has, round by round; nothing where that was not measured."""
    measured = points(results, case, line, metric)
    base = measured.get(min(step.size for step in case.steps if step.line == line), [])
    ratios = {
        size: [value / one for value, one in zip(values, base, strict=False)]
        for size, values in measured.items()
    }
    return {size: found for size, found in ratios.items() if found}


def steepness(results: Results, case: Case, line: str, slope: Slope) -> Spread | None:
    """None where fewer than two sizes were measured."""
    measured = points(results, case, line, slope.metric)
    sizes = [size for size in measured if slope.least <= size <= slope.most]
    if len(sizes) < 2:
        return None
    rounds = zip(*(measured[size] for size in sizes), strict=False)
    return spread_of([linear_regression(sizes, values).slope for values in rounds])


def told(results: Results) -> Iterator[tuple[Case, str, Slope, Spread]]:
    """Every slope that there is: its case, its line, and how steep it is."""
    for case in grown(results):
        for slope in GROWTH[case.kind].slopes:
            for line in lines(case):
                if (found := steepness(results, case, line, slope)) is not None:
                    yield case, line, slope, found


def as_json(results: Results) -> list[dict[str, Any]]:
    return [
        {
            "case": case.name,
            "line": line,
            "metric": slope.metric,
            "text": slope.label,
            "slope": asdict(found),
        }
        for case, line, slope, found in told(results)
    ]


def ratios_as_json(results: Results) -> list[dict[str, Any]]:
    return [
        {"case": case.name, "line": line, "metric": growth.drawn, "size": size, "ratio": asdict(found)}
        for case in grown(results)
        if (growth := GROWTH[case.kind]).ratio
        for line in lines(case)
        for size, values in times(results, case, line, growth.drawn).items()
        if (found := spread_of(values)) is not None
    ]
