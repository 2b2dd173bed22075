"""`make bench-spark`: the pipeline's speed, beside what Spark and PostgreSQL do by themselves in the same run.

One Spark session for all cases, one broker at a time. In every round each contestant of a case runs once, so that a machine
that changes its mood changes it for all of them; what is judged are ratios of medians. A case that fails costs its
figures, not the campaign.
"""

from __future__ import annotations

import argparse
import dataclasses
import datetime
import sys
import time
from contextlib import ExitStack
from pathlib import Path
from typing import TYPE_CHECKING, Any

from pyspark.errors import PySparkException
from rich.console import Console

from bench.campaign import Say, command, date_of, results_path, sentence_of, speaker, workplace
from bench.machine import WarmMemory, facts
from bench.measure import RunFailedError
from bench.options import ROOT, campaign_parser, parsed
from bench.proc import ServerFailedError
from bench.results import Results
from bench.spark import plot, report
from bench.spark.cases import CASES, FULL, QUICK, Case, Kind, Scale
from bench.spark.postgres import PostgresUnavailableError, postgres
from tidemark.errors import TidemarkError

if TYPE_CHECKING:
    from bench.spark.setting import Setting

_FAILURES = (RunFailedError, ServerFailedError, PostgresUnavailableError, PySparkException, TidemarkError)
"""What costs a case its figures; anything else is a fault of this program."""


def _arguments(words: list[str] | None) -> argparse.Namespace:
    parser = campaign_parser("python -m bench.spark", __doc__, "spark.md")
    parser.add_argument("--rounds", type=int, metavar="N", help="rounds a case (7; quick 3)")
    parser.add_argument("--share", type=float, metavar="X", help="of the rows that cases name (1; quick 0.2)")
    parser.add_argument("--markdown", type=Path, metavar="FILE", help="write the report there, too")
    options = parsed(parser, words)
    if options.rounds is not None and not 1 <= options.rounds <= 100:
        parser.error("--rounds is from 1 to 100")
    if options.share is not None and not 0 < options.share <= 10:
        parser.error("--share is above 0 and at most 10")
    return options


def _scale(options: argparse.Namespace) -> Scale:
    scale = QUICK if options.quick else FULL
    return dataclasses.replace(
        scale, rounds=options.rounds or scale.rounds, share=options.share or scale.share
    )


def run_case(case: Case, setting: Setting | None, results: Results, scale: Scale) -> None:
    """Measure one case.

    Raises:
        RunFailedError: something was not as it should be; figures of such a run mean nothing.
        ServerFailedError: a server did not start, or ended.
        PostgresUnavailableError: it is not installed.
    """
    from bench.spark.batches import micro_batch
    from bench.spark.pinning import pin
    from bench.spark.scanning import growth, scan

    if case.kind is Kind.POSTGRES:
        postgres(case, scale, results)
        return
    assert setting is not None
    match case.kind:
        case Kind.SCAN:
            scan(case, setting, results)
        case Kind.MICRO_BATCH:
            micro_batch(case, setting, results)
        case Kind.GROWTH:
            growth(case, setting, results)
        case Kind.PIN:
            pin(case, setting, results)


def _campaign(chosen: list[Case], folder: Path, scale: Scale, results: Results, say: Say) -> None:
    from bench.spark.setting import session, setting

    with ExitStack() as stack:
        place = None
        if any(case.kind is not Kind.POSTGRES for case in chosen):
            place = setting(stack.enter_context(session(folder)), folder, scale, say)
        for number, case in enumerate(chosen, 1):
            say(f"{number}/{len(chosen)} {case.name}: {case.title}")
            began = time.monotonic()
            try:
                run_case(case, place, results, scale)
                say(f"  {time.monotonic() - began:.0f} s")
            except _FAILURES as failure:
                results.runs.pop(case.name, None)
                sentence = sentence_of(failure)
                results.failures.append(f"{case.name}: {sentence}")
                say(f"  failed: {sentence}")


def _versions() -> dict[str, str]:
    import pyarrow
    import pyspark

    return {"pyspark": pyspark.__version__, "pyarrow": pyarrow.__version__}


def _run(options: argparse.Namespace, chosen: list[Case], console: Console) -> int:
    say, started = speaker(console), datetime.datetime.now().astimezone()
    results, scale = Results(), _scale(options)
    machine = {
        name: value
        for name, value in (facts(options.folder) | _versions()).items()
        if name not in ("gcc", "rabbitmq", "nats-server", "redis")
    }
    with ExitStack() as cleanup:
        folder = cleanup.enter_context(workplace(options, "bench-spark", say))
        if options.warm_memory:
            cleanup.enter_context(WarmMemory(folder, say))
        try:
            _campaign(chosen, folder, scale, results, say)
        except KeyboardInterrupt:
            say("interrupted; this is what was measured until now")
    if not results.runs:
        say("nothing was measured")
        return 1
    settings = {
        "date": date_of(started),
        "quick": options.quick,
        "rounds": scale.rounds,
        "share": scale.share,
        "cases": [case.name for case in chosen],
    }
    report.print_table(results, console)
    whole = len(chosen) == len(CASES)
    path = results_path(started, options, chosen, whole=whole, of="spark-")
    report.write_json(results, machine, settings, path)
    say(f"figures: {path.relative_to(ROOT)}")
    docs = options.docs if options.docs is not None else whole and not options.quick and not results.failures
    _publish(results, machine, settings, options, docs=docs)
    return 1 if results.failures else 0


def _show(
    options: argparse.Namespace,
    console: Console,
    results: Results,
    machine: dict[str, str],
    settings: dict[str, Any],
) -> None:
    report.print_table(results, console)
    _publish(results, machine, settings, options, docs=bool(options.docs))


def _publish(
    results: Results,
    machine: dict[str, str],
    settings: dict[str, Any],
    options: argparse.Namespace,
    *,
    docs: bool,
) -> None:
    if not docs and options.markdown is None:
        return
    images = plot.draw(results) if docs else []
    text = report.markdown(results, machine, settings, images)
    if options.markdown is not None:
        options.markdown.write_text(text)
    if docs:
        report.PART.write(text)


def main(words: list[str] | None = None) -> int:
    return command(_arguments(words), CASES, show=_show, measure=_run)


if __name__ == "__main__":
    sys.exit(main())
