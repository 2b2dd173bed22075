"""`make bench-cluster`: three nodes on this machine, in turn with three of RabbitMQ, three of NATS JetStream and a floor.

In every round each contestant starts a fresh cluster, alone on the machine, and runs all publishing cases on it; failover
and catch-up have a fresh cluster each, and so has every step of the cases that grow (Tidemark only). Every other round goes
the other way round. A run that fails costs its figures, not the campaign.
"""

from __future__ import annotations

import argparse
import dataclasses
import datetime
import shutil
import sys
import tempfile
import time
from collections.abc import Callable
from contextlib import ExitStack
from functools import partial
from pathlib import Path
from typing import Any

from rich.console import Console

from bench import rabbitmq
from bench.build import build
from bench.campaign import Say, command, date_of, results_path, sentence_of, speaker, workplace
from bench.cluster import plot, report
from bench.cluster.cases import (
    ALONE,
    CASES,
    CHAIN,
    FULL,
    NATS,
    OURS,
    QUICK,
    RABBITMQ,
    STANDBY,
    WITH_FLOOR,
    Case,
    Kind,
    Scale,
    Step,
)
from bench.cluster.catchup import catch_up
from bench.cluster.contestants import Cluster
from bench.cluster.failover import failover
from bench.cluster.floor import FloorCluster
from bench.cluster.growth import grow, size_of
from bench.cluster.nats import NatsCluster
from bench.cluster.publishing import idle, load_amqp, publish
from bench.cluster.quota import NoQuotasError, controller
from bench.cluster.rabbitmq import RabbitCluster
from bench.cluster.tidemark import Chain, Standby, TidemarkCluster, etcd_version
from bench.machine import WarmMemory, facts
from bench.measure import Figures, RunFailedError
from bench.options import ROOT, campaign_parser, parsed
from bench.proc import ServerFailedError
from bench.results import Results
from bench.streams import nats
from bench.tables import figure
from bench.tidemark_server import TidemarkServer
from tidemark.cli import CommandError

_CLUSTERS: dict[str, Callable[[Path], Cluster]] = {
    each.name: each for each in (Standby, Chain, RabbitCluster, NatsCluster, FloorCluster)
}
_SIZED: dict[str, type[TidemarkCluster]] = {STANDBY: Standby, CHAIN: Chain}
_FAILURES = (RunFailedError, ServerFailedError, CommandError, OSError)
"""What costs a run its figures; anything else is a fault of this program."""
_TOGETHER = (Kind.IDLE, Kind.PUBLISH, Kind.COST)
"""These run one after the other on the same cluster."""


def _arguments(words: list[str] | None) -> argparse.Namespace:
    parser = campaign_parser("python -m bench.cluster", __doc__, "benchmarks.md")
    parser.add_argument("--rounds", type=int, metavar="N", help="rounds (3; quick 1)")
    parser.add_argument("--kills", type=int, metavar="N", help="kills a round and contestant (34; quick 5)")
    parser.add_argument("--contestants", default=",".join(WITH_FLOOR), metavar="A,B", help="which, in order")
    options = parsed(parser, words)
    if unknown := set(options.contestants.split(",")) - set(WITH_FLOOR):
        parser.error(f"nobody is called {', '.join(sorted(unknown))}; there are: {', '.join(WITH_FLOOR)}")
    for name in ("rounds", "kills"):
        value = getattr(options, name)
        if value is not None and not 1 <= value <= 1000:
            parser.error(f"--{name} is from 1 to 1000")
    return options


def _scale(options: argparse.Namespace) -> Scale:
    scale = QUICK if options.quick else FULL
    return dataclasses.replace(
        scale, rounds=options.rounds or scale.rounds, kills=options.kills or scale.kills
    )


def _available(names: list[str], say: Say) -> list[str]:
    """Who can run here; one line for each that cannot."""
    found = []
    for name in names:
        try:
            if name == RABBITMQ:
                rabbitmq.ensure_installed()
            elif name == NATS:
                nats.ensure_installed()
            elif name in OURS and not etcd_version():
                say(f"{name} is skipped: there is no program 'etcd' (Debian: apt-get install etcd-server)")
                continue
        except (rabbitmq.RabbitMQUnavailableError, nats.NatsUnavailableError) as missing:
            say(str(missing))
        else:
            found.append(name)
    return found


def _possible(chosen: list[Case], say: Say) -> list[Case]:
    """Those that can be measured here; one line if some cannot."""
    capped = [case for case in chosen if case.kind is Kind.GROW_CAPACITY]
    try:
        if capped:
            controller()
    except NoQuotasError as reason:
        say(f"{', '.join(case.name for case in capped)} is skipped: {reason}")
        return [case for case in chosen if case not in capped]
    return chosen


def measure(case: Case, cluster: Cluster, scale: Scale, folder: Path, say: Say) -> list[Figures]:
    """The figures of one case on a cluster that runs.

    Raises:
        RunFailedError: something was not as it should be; figures of such a run mean nothing.
        ServerFailedError: a node did not start, or ended.
    """
    match case.kind:
        case Kind.IDLE:
            return [idle(cluster, scale)]
        case Kind.PUBLISH:
            return [publish(case, cluster, scale)]
        case Kind.COST:
            leader = cluster.leader()
            return [_cost(case, cluster.ports[leader], [cluster.pid(leader)], scale)]
        case Kind.KILL | Kind.FREEZE:
            return failover(case, cluster, scale, say)
        case Kind.CATCH_UP:
            assert isinstance(cluster, TidemarkCluster)
            return [catch_up(case, cluster, scale, folder)]
        case _:
            raise RunFailedError(f"{case.name} runs on clusters of its own")


def _cost(case: Case, port: int, pids: list[int], scale: Scale) -> Figures:
    figures = load_amqp(case, port, pids, scale)
    return figures | {"cpu_s_per_gb": figures["cpu_s_per_million"] * 1e3 / case.size}


def _groups(chosen: list[Case], contestant: str) -> list[list[Case]]:
    """The cases of a contestant, those together that share a cluster."""
    own = [case for case in chosen if contestant in case.contestants and not case.steps]
    together = [case for case in own if case.kind in _TOGETHER]
    return [group for group in (together, *([case] for case in own if case.kind not in _TOGETHER)) if group]


def campaign(
    chosen: list[Case], contestants: list[str], scale: Scale, folder: Path, results: Results, say: Say
) -> None:
    """Measure everything and put it into `results`."""
    for number in range(1, scale.rounds + 1):
        order = contestants if number % 2 else list(reversed(contestants))
        if any(case.kind is Kind.COST for case in chosen):
            _alone([case for case in chosen if case.kind is Kind.COST], scale, folder, results, say)
        for contestant in order:
            for group in _groups(chosen, contestant):
                say(f"round {number}, {contestant}: {', '.join(case.name for case in group)}")
                _on_cluster(group, contestant, scale, folder, results, say)
            for case in chosen:
                for step in _steps(case, contestant, scale):
                    say(f"round {number}, {contestant}: {case.name}, {step.name}")
                    _step(case, step, scale, folder, results, say)


def _steps(case: Case, contestant: str, scale: Scale) -> list[Step]:
    """What of a case that grows is this contestant's, of each line as many sizes as wanted."""
    lines = dict.fromkeys(step.line for step in case.steps if step.contestant == contestant)
    return [
        step
        for line in lines
        for step in [each for each in case.steps if each.line == line][: scale.sizes_max]
    ]


def _step(case: Case, step: Step, scale: Scale, folder: Path, results: Results, say: Say) -> None:
    place = Path(tempfile.mkdtemp(prefix=f"{step.name}-", dir=folder))
    try:
        with _SIZED[step.contestant](place / "nodes", **size_of(case, step)) as cluster:
            _one(case, step.name, results, say, lambda: [grow(case, step, cluster, scale)])
    except _FAILURES as failure:
        _failed(f"{case.name}, {step.name}", failure, results, say)
    finally:
        shutil.rmtree(place, ignore_errors=True)


def _on_cluster(
    group: list[Case], contestant: str, scale: Scale, folder: Path, results: Results, say: Say
) -> None:
    place = Path(tempfile.mkdtemp(prefix=f"{contestant}-", dir=folder))
    began = time.monotonic()
    try:
        with _CLUSTERS[contestant](place / "nodes") as cluster:
            say(f"  up after {time.monotonic() - began:.0f} s")
            for case in group:
                _one(
                    case,
                    contestant,
                    results,
                    say,
                    partial(measure, case, cluster, scale, place, say),
                )
    except _FAILURES as failure:
        _failed(f"{group[0].name}, {contestant}", failure, results, say)
    finally:
        shutil.rmtree(place, ignore_errors=True)


def _alone(cases: list[Case], scale: Scale, folder: Path, results: Results, say: Say) -> None:
    place = Path(tempfile.mkdtemp(prefix="alone-", dir=folder))
    try:
        with TidemarkServer(place) as server:
            for case in cases:
                _one(
                    case,
                    ALONE,
                    results,
                    say,
                    partial(_alone_once, case, server, scale),
                )
    except _FAILURES as failure:
        _failed(f"{cases[0].name}, {ALONE}", failure, results, say)
    finally:
        shutil.rmtree(place, ignore_errors=True)


def _alone_once(case: Case, server: TidemarkServer, scale: Scale) -> list[Figures]:
    return [_cost(case, server.port, [server.pid], scale)]


def _one(case: Case, contestant: str, results: Results, say: Say, run: Callable[[], list[Figures]]) -> None:
    try:
        found = run()
    except (RunFailedError, NoQuotasError, OSError) as failure:
        _failed(f"{case.name}, {contestant}", failure, results, say)
        return
    for figures in found:
        results.add(case.name, contestant, figures)
    words = "  ".join(f"{name}={figure(value)}" for name, value in found[-1].items())
    say(f"  {case.name}: {words}")


def _failed(what: str, failure: BaseException, results: Results, say: Say) -> None:
    sentence = sentence_of(failure)
    results.failures.append(f"{what}: {sentence}")
    say(f"  {what} failed: {sentence}")


def _run(options: argparse.Namespace, chosen: list[Case], console: Console) -> int:
    say, started = speaker(console), datetime.datetime.now().astimezone()
    results, scale = Results(), _scale(options)
    machine = facts(options.folder) | {"etcd": etcd_version()}
    machine.pop("redis")
    with ExitStack() as cleanup:
        folder = cleanup.enter_context(workplace(options, "bench-cluster", say))
        contestants = _available(options.contestants.split(","), say)
        chosen = _possible(chosen, say)
        if options.warm_memory and contestants:
            cleanup.enter_context(WarmMemory(folder, say))
        fault: BaseException | None = None
        stopped_early = False
        try:
            campaign(chosen, contestants, scale, folder, results, say)
        except BaseException as stopped:
            say(f"stopped ({type(stopped).__name__}); this is what was measured until now")
            stopped_early = True
            fault = None if isinstance(stopped, KeyboardInterrupt) else stopped
    if fault is not None and not results.runs:
        raise fault
    if not results.runs:
        say("nothing was measured")
        return 1
    settings = {
        "date": date_of(started),
        "quick": options.quick,
        "stopped": stopped_early,
        **dataclasses.asdict(scale),
        "contestants": contestants,
        "cases": [case.name for case in chosen],
    }
    report.print_tables(results, console)
    whole = len(chosen) == len(CASES) and contestants == list(WITH_FLOOR)
    path = results_path(started, options, chosen, whole=whole, of="cluster-")
    report.write_json(results, machine, settings, path)
    say(f"figures: {path.relative_to(ROOT)}")
    if fault is not None:
        raise fault
    if options.docs if options.docs is not None else whole and not options.quick and not results.failures:
        _write_docs(results, machine, settings)
    return 1 if results.failures else 0


def _write_docs(results: Results, machine: dict[str, str], settings: dict[str, Any]) -> None:
    report.PART.write(report.markdown(results, machine, settings, plot.draw(results)))


def _show(
    options: argparse.Namespace,
    console: Console,
    results: Results,
    machine: dict[str, str],
    settings: dict[str, Any],
) -> None:
    report.print_tables(results, console)
    if options.docs:
        _write_docs(results, machine, settings)


def main(words: list[str] | None = None) -> int:
    return command(_arguments(words), CASES, show=_show, measure=_run, prepare=build)


if __name__ == "__main__":
    sys.exit(main())
