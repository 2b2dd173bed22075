"""`make bench`: the same load on Tidemark and on its peers, in alternation.

For every case and repetition each broker of the case is started fresh in its own folder, measured alone and
stopped: A B A B …, so that a machine that changes its mood changes it for all of them. A broker
that is missing is skipped with one line; a run that fails costs its figures, not the campaign.
"""

from __future__ import annotations

import argparse
import datetime
import shutil
import sys
import tempfile
from collections.abc import Callable
from contextlib import ExitStack
from pathlib import Path
from typing import Any

from rich.console import Console

from bench import plot, rabbitmq, report
from bench.build import build
from bench.campaign import Say, command, date_of, results_path, speaker, workplace
from bench.cases import CASES, Case
from bench.machine import WarmMemory, facts
from bench.measure import FULL, QUICK, Figures, RunFailedError, Scale, run_case
from bench.options import ROOT, campaign_parser, parsed
from bench.proc import ServerFailedError
from bench.rabbitmq import RabbitMQ, RabbitMQUnavailableError
from bench.results import Results
from bench.servers import NullBroker, NullDurable, Server
from bench.streams import nats, redis
from bench.streams.measure import run_stream_case
from bench.tables import in_full
from bench.tidemark_server import TidemarkServer, TidemarkUnavailableError, ensure_available

_SERVERS: dict[str, Callable[[Path], Server]] = {
    "tidemark": TidemarkServer,
    "rabbitmq": RabbitMQ,
    "null": NullBroker,
    "null-durable": NullDurable,
}
"""Who is loaded over AMQP."""
_NAMES = "tidemark,rabbitmq,null,null-durable,core,nats,redis"


_ENSURE: dict[str, Callable[[Path], object]] = {
    "tidemark": ensure_available,
    "rabbitmq": lambda _: rabbitmq.ensure_installed(),
    "nats": lambda _: nats.ensure_installed(),
    "redis": lambda _: redis.ensure_installed(),
}
_UNAVAILABLE = (
    TidemarkUnavailableError,
    RabbitMQUnavailableError,
    nats.NatsUnavailableError,
    redis.RedisUnavailableError,
)


def _arguments(words: list[str] | None) -> argparse.Namespace:
    parser = campaign_parser("python -m bench.run", __doc__, "benchmarks.md")
    parser.add_argument("--repeat", type=int, metavar="N", help="runs a case and broker (3; quick 1)")
    parser.add_argument("--brokers", default=_NAMES, metavar="A,B", help="which, in order")
    options = parsed(parser, words)
    if unknown := set(options.brokers.split(",")) - set(_NAMES.split(",")):
        parser.error(f"no broker is called {', '.join(sorted(unknown))}; there are: {_NAMES}")
    if options.repeat is None:
        options.repeat = 1 if options.quick else 3
    if not 1 <= options.repeat <= 100:
        parser.error("--repeat is from 1 to 100")
    return options


def _available(names: list[str], folder: Path, say: Say) -> list[str]:
    """The brokers that can run here; one line for each that cannot."""
    found = []
    for name in names:
        try:
            if name in _ENSURE:
                _ENSURE[name](folder / "probe")
        except _UNAVAILABLE as missing:
            say(str(missing))
        else:
            found.append(name)
    return found


def _measure_once(name: str, case: Case, folder: Path, scale: Scale) -> Figures:
    place = Path(tempfile.mkdtemp(prefix=f"{name}-", dir=folder))
    try:
        if case.kind.of_streams:
            return run_stream_case(case, name, place, scale)
        with _SERVERS[name](place) as server:
            return run_case(case, server, place, scale)
    finally:
        shutil.rmtree(place, ignore_errors=True)


def _campaign(
    chosen: list[Case],
    brokers: list[str],
    repeat: int,
    scale: Scale,
    folder: Path,
    results: Results,
    console: Console,
) -> None:
    for number, case in enumerate(chosen, 1):
        console.print(f"[bold]{number}/{len(chosen)} {case.name}[/]: {case.title}")
        for turn in range(1, repeat + 1):
            for broker in brokers:
                if broker not in case.brokers:
                    continue
                try:
                    figures = _measure_once(broker, case, folder, scale)
                except (RunFailedError, ServerFailedError) as failure:
                    results.failures.append(f"{case.name}, {broker}, run {turn}: {failure}")
                    console.print(f"  {turn} {broker:9} failed: {failure}", markup=False)
                    continue
                results.add(case.name, broker, figures)
                console.print(f"  {turn} {broker:9} {_line(figures)}", markup=False)


def _line(figures: Figures) -> str:
    return "  ".join(
        f"{name}={in_full(value)}"
        for name, value in figures.items()
        if not name.startswith(("pacing_", "generator_")) and not name.endswith(("999_us", "max_us"))
    )


def _write_docs(
    sections: list[report.Section], results: Results, machine: dict[str, str], settings: dict[str, Any]
) -> None:
    for section in sections:
        images = plot.draw(results, of_streams=section.of_streams)
        section.write(report.markdown(section, results, machine, settings, images))


def _measured(results: Results) -> list[report.Section]:
    """The parts of the page that there are figures for."""
    return [
        section for section in report.SECTIONS if any(case.name in results.runs for case in section.cases())
    ]


def _whole(section: report.Section, chosen: list[Case], brokers: list[str]) -> bool:
    """Whether all of a part was measured, with everybody who belongs to it."""
    cases = section.cases()
    return set(cases) <= set(chosen) and all(set(case.brokers) <= set(brokers) for case in cases)


def _run(options: argparse.Namespace, chosen: list[Case], console: Console) -> int:
    say, started, results = speaker(console), datetime.datetime.now().astimezone(), Results()
    machine = facts(options.folder)
    with ExitStack() as cleanup:
        folder = cleanup.enter_context(workplace(options, "bench", say))
        wanted = [name for name in options.brokers.split(",") if any(name in case.brokers for case in chosen)]
        brokers = _available(wanted, folder, say)
        if options.warm_memory and brokers:
            cleanup.enter_context(WarmMemory(folder, say))
        try:
            scale = QUICK if options.quick else FULL
            _campaign(chosen, brokers, options.repeat, scale, folder, results, console)
        except KeyboardInterrupt:
            say("interrupted; this is what was measured until now")
    if not results.runs:
        say("nothing was measured")
        return 1
    settings = {
        "date": date_of(started),
        "quick": options.quick,
        "repeat": options.repeat,
        "brokers": brokers,
        "cases": [case.name for case in chosen],
    }
    report.print_table(results, console)
    path = results_path(started, options, chosen, whole=len(chosen) == len(CASES))
    report.write_json(results, machine, settings, path)
    say(f"figures: {path.relative_to(ROOT)}")
    sections = _measured(results) if options.docs else []
    if options.docs is None and not options.quick:
        sections = [section for section in _measured(results) if _whole(section, chosen, brokers)]
    if sections:
        _write_docs(sections, results, machine, settings)
        say(f"page: {report.PAGE.relative_to(ROOT)}")
    return 1 if results.failures else 0


def _show(
    options: argparse.Namespace,
    console: Console,
    results: Results,
    machine: dict[str, str],
    settings: dict[str, Any],
) -> None:
    report.print_table(results, console)
    if options.docs:
        _write_docs(_measured(results), results, machine, settings)


def main(words: list[str] | None = None) -> int:
    return command(_arguments(words), CASES, show=_show, measure=_run, prepare=build)


if __name__ == "__main__":
    sys.exit(main())
