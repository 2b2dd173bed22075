"""What every campaign does around its measuring: the command, a place to measure in, and a file for the figures."""

from __future__ import annotations

import argparse
import datetime
import shutil
import tempfile
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from rich.console import Console

from bench.build import BuildFailedError
from bench.machine import disk_of
from bench.options import ROOT, AnyCase, Named, among
from bench.results import Results, read_json

RESULTS = ROOT / "bench" / "results"

Say = Callable[[str], None]


def command(
    options: argparse.Namespace,
    cases: Sequence[AnyCase],
    *,
    show: Callable[[argparse.Namespace, Console, Results, dict[str, str], dict[str, Any]], None],
    measure: Callable[[argparse.Namespace, list[AnyCase], Console], int],
    prepare: Callable[[], object] = lambda: None,
) -> int:
    """Name the cases, show the figures of a file again, or measure, as the options say. The exit status of it."""
    console = _terminal()
    if options.list:
        width = max(len(case.name) for case in cases)
        for case in cases:
            console.print(f"{case.name:{width}} {case.title}")
        return 0
    try:
        chosen = among(cases, options.case)
        if options.from_json:
            show(options, console, *read_json(options.from_json))
            return 0
        prepare()
    except (ValueError, BuildFailedError) as wrong:
        console.print(str(wrong), markup=False)
        return 2
    return measure(options, chosen, console)


def _terminal() -> Console:
    """Where a campaign reports. A log has no width of its own, and tables want some."""
    console = Console()
    return console if console.is_terminal else Console(width=180)


def speaker(console: Console) -> Say:
    """Says each line as it is, whatever is in it."""
    return lambda text: console.print(text, markup=False, highlight=False)


@contextmanager
def workplace(options: argparse.Namespace, name: str, say: Say) -> Iterator[Path]:
    """A folder for all that a campaign writes, gone afterwards."""
    options.folder.mkdir(parents=True, exist_ok=True)
    if disk_of(options.folder).startswith("tmpfs"):
        say(f"{options.folder} is in memory (tmpfs): figures of what goes to the disk mean nothing there")
    folder = Path(tempfile.mkdtemp(prefix=f"{name}-", dir=options.folder))
    try:
        yield folder
    finally:
        shutil.rmtree(folder, ignore_errors=True)


def date_of(started: datetime.datetime) -> str:
    """As pages and files tell it."""
    return f"{started:%Y-%m-%d %H:%M %z}"


def results_path(
    started: datetime.datetime,
    options: argparse.Namespace,
    chosen: Sequence[Named],
    *,
    whole: bool,
    of: str = "",
) -> Path:
    """The file for the figures of these cases; `of` tells which campaign it was."""
    kind = "quick" if options.quick else "all" if whole else "-".join(case.name for case in chosen)[:60]
    return RESULTS / f"{started:%Y-%m-%dT%H%M%S}-{of}{kind}.json"


def sentence_of(failure: BaseException) -> str:
    """What a failed run is remembered by: one line, not too long."""
    return " ".join(str(failure).split())[:400]
