"""`tidemark pipeline`: keep warehouses, databases, caches and indexes equal to streams, with Spark.

Each command reads the file, and then calls one function of `tidemark_spark.pipeline`, which is imported when the command
runs: without Spark, everything else of `tidemark` works. Spark's own words go to `spark.log` in the state folder.

Invariant: 0 says that it is done, 1 that a sink failed (or differs), 2 that the file or the call is wrong.
"""

from __future__ import annotations

import contextlib
import json
import os
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from tidemark.cli import CommandError
from tidemark.cli.output import show
from tidemark.errors import TidemarkError

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

    from tidemark_spark.pipeline.file import Pipeline, SinkTable

app = typer.Typer(
    help="Deliver streams to warehouses, databases, caches and search indexes, exactly once, with Spark.",
    no_args_is_help=True,
)

File = Annotated[
    Path, typer.Argument(metavar="FILE", help="The pipeline's file (TOML); see docs/pipelines.md.")
]
Sinks = Annotated[
    list[str] | None,
    typer.Option("--sink", metavar="NAME", help="Only this sink; may be given several times."),
]
Json = Annotated[bool, typer.Option("--json", help="Print everything as JSON.")]
Master = Annotated[
    str | None,
    typer.Option(
        help="Where Spark runs: local[*], spark://host:7077, yarn, k8s://…  [default: local, all cores]"
    ),
]
Conf = Annotated[
    list[str] | None,
    typer.Option("--conf", metavar="KEY=VALUE", help="A setting of Spark; may be given several times."),
]
Packages = Annotated[
    list[str] | None,
    typer.Option(metavar="COORDINATES", help="Maven packages that Spark shall load, with commas."),
]

DRIVER = {"spark.driver.memory": "2g", "spark.driver.maxResultSize": "0"}
"""A batch passes through the driver; how large it may be is said in the file."""


@app.command()
def run(
    file: File,
    once: Annotated[
        bool,
        typer.Option("--once", help="Deliver what is there now, then end; else go on until it is stopped."),
    ] = False,
    sinks: Sinks = None,
    master: Master = None,
    conf: Conf = None,
    packages: Packages = None,
    metrics: Annotated[
        str | None,
        typer.Option(
            metavar="HOST:PORT", help="Answer Prometheus at http://HOST:PORT/metrics; port 0 is any."
        ),
    ] = None,
    accept_change: Annotated[
        bool,
        typer.Option(
            "--accept-change", help="Go on although the transformation changed since a sink was filled."
        ),
    ] = False,
    as_json: Annotated[bool, typer.Option("--json", help="Progress as JSON, one object a line.")] = False,
) -> int:
    """Run a pipeline until it is stopped, or with --once until everything is delivered.

    SIGINT (Ctrl-C) or SIGTERM lets every sink finish its batch; a second one ends at once. Both lose nothing.
    A sink that fails ends alone; the others go on. Exit code: 0 done, 1 a sink failed, 2 the file is wrong.
    """
    from rich.console import Console

    pipeline, tables = _read(file, sinks)
    address = _address(metrics)
    with _quiet(pipeline) as log:
        from tidemark_spark.pipeline.metrics import MetricsServer
        from tidemark_spark.pipeline.progress import JsonView, LiveView, PlainView, print_summary
        from tidemark_spark.pipeline.runner import Runner

        console = Console()
        runner: Runner | None = None
        view: JsonView | LiveView | PlainView
        if as_json:
            view = JsonView()
        elif console.is_terminal:
            view = LiveView(pipeline.name, console)
        else:
            view = PlainView(sys.stderr)
        runner = Runner(pipeline, tables, once=once, accept_change=accept_change, views=[view], log=str(log))
        server = None
        session = _session(pipeline, master, conf, packages)
        try:
            if address is not None:
                try:
                    server = MetricsServer(*address, pipeline.name, runner.statuses)
                except OSError as error:
                    raise CommandError(f"--metrics {metrics}: {error.strerror or error}", 2) from None
                if address[1] == 0:
                    print(f"metrics at http://{address[0]}:{server.port}/metrics", file=sys.stderr)
            summary = runner.run(session)
        finally:
            view.close()
            if server is not None:
                server.close()
        if isinstance(view, JsonView):
            view.summary(pipeline.name, summary)
        else:
            print_summary(pipeline.name, summary, console)
        if summary.signals > 1:
            # Spark may be in the middle of something that nobody wants any more; its processes end with this one.
            sys.stdout.flush()
            sys.stderr.flush()
            os._exit(130)
        _stop_spark()
        return 1 if summary.failed else 0


@app.command()
def check(
    file: File,
    sinks: Sinks = None,
    master: Master = None,
    conf: Conf = None,
    packages: Packages = None,
    as_json: Json = False,
) -> int:
    """Look whether everything is ready: file, brokers, streams, transformations, sinks. Moves no data."""
    pipeline, tables = _read(file, sinks)
    from tidemark_spark.pipeline import check as checks

    found = []
    with _quiet(pipeline):
        for one in checks.check(pipeline, tables, _session(pipeline, master, conf, packages, fast=True)):
            found.append(one)
            if not as_json:
                print(f"{'ok     ' if one.ok else 'PROBLEM'}  {one.what}: {one.says}", flush=True)
        _stop_spark()
    if as_json:
        print(json.dumps([{"what": one.what, "ok": one.ok, "says": one.says} for one in found], indent=2))
    return 0 if all(one.ok for one in found) else 1


@app.command()
def plan(file: File, sinks: Sinks = None, as_json: Json = False) -> int:
    """Show what a run would do: who reads what, how many rows are to go, in how many batches."""
    pipeline, tables = _read(file, sinks)
    from rich.console import Console

    from tidemark_spark.pipeline import plan as plans

    found = plans.plan(pipeline, tables)
    if as_json:
        print(json.dumps([one.to_json() for one in found], indent=2, ensure_ascii=False))
    else:
        console = Console()
        if not console.is_terminal:
            console = Console(width=160)
        console.print(plans.tree(pipeline, found))
    return 1 if any(one.problem or any(source.problem for source in one.sources) for one in found) else 0


@app.command()
def status(file: File, sinks: Sinks = None, as_json: Json = False) -> None:
    """Show how each sink is doing: its state, the mark that it holds, how far it is behind."""
    pipeline, tables = _read(file, sinks)
    from tidemark_spark.pipeline import status as states

    rows = states.facts(pipeline, tables)
    columns = (
        "sink",
        "kind",
        "state",
        "sequence",
        "boundary",
        "lag_rows",
        "rows_per_s",
        "dead_letters",
        "error",
    )
    if not as_json:
        for row in rows:
            row["rows_per_s"] = round(row["rows_per_s"])
    show(rows, columns, as_json=as_json)


@app.command()
def reset(
    file: File,
    sinks: Sinks = None,
    drop: Annotated[bool, typer.Option("--drop", help="Remove the sink's rows, too.")] = False,
    yes: Annotated[bool, typer.Option("--yes", "-y", help="Do not ask.")] = False,
) -> None:
    """Let a sink begin anew: forget its mark and its checkpoint, with --drop also its rows."""
    if not sinks:
        raise CommandError("say which sink: --sink NAME", 2)
    pipeline, tables = _read(file, sinks)
    from tidemark_spark.pipeline.reset import reset as begin_anew

    for table in tables:
        rows = "its rows are removed and" if drop else "its rows stay;"
        if not yes and not typer.confirm(
            f"sink {table.name}: {rows} the next run reads the whole stream. Go on?"
        ):
            raise typer.Abort
        for sentence in begin_anew(pipeline, table, drop=drop):
            print(f"{table.name}: {sentence}")


@app.command()
def verify(
    file: File,
    sinks: Sinks = None,
    master: Master = None,
    conf: Conf = None,
    packages: Packages = None,
    as_json: Json = False,
) -> int:
    """Prove that sinks hold exactly what the stream says at their marks, by count and hash.

    Compare while nobody writes, or with a stream that keeps its history. Exit code: 0 when all are equal.
    """
    pipeline, tables = _read(file, sinks)
    from tidemark_spark.pipeline import verify as proof

    found = []
    with _quiet(pipeline):
        session = _session(pipeline, master, conf, packages, fast=True)
        for table in tables:
            one = proof.verify(pipeline, table, session)
            found.append(one)
            if not as_json:
                print(f"{one.sink}: {one.verdict}: {one.says}", flush=True)
        _stop_spark()
    if as_json:
        facts = [
            {
                "sink": one.sink,
                "verdict": one.verdict.value,
                "sequence": one.sequence,
                "rows": None if one.held is None else one.held.rows,
                "hash": None if one.held is None else one.held.hash,
                "says": one.says,
            }
            for one in found
        ]
        print(json.dumps(facts, indent=2))
    return proof.worst(found)


@app.command()
def search(
    file: File,
    sink: Annotated[str, typer.Argument(metavar="SINK", help="A sink of the kind search or opensearch.")],
    query: Annotated[str, typer.Argument(metavar="QUERY", help="What to look for.")],
    limit: Annotated[int, typer.Option(help="How many at most.")] = 10,
    as_json: Json = False,
) -> None:
    """Ask a full-text index that a pipeline keeps; also while it runs."""
    pipeline, [table] = _read(file, [sink])
    from tidemark_spark.pipeline.sinks import make_sink

    index = make_sink(table.name, pipeline.name, table.kind, table.options)
    ask = getattr(index, "search", None)
    if ask is None:
        raise CommandError(f"sink {sink} is of kind {table.kind}, which is no index", 2)
    found = ask(query, limit)
    rows = [dict(row) for row in found]
    if as_json:
        print(json.dumps(rows, indent=2, ensure_ascii=False, default=str))
    elif not rows:
        print("nothing found")
    else:
        show(rows, [name for name in rows[0] if name != "_sequence"], as_json=False)


# What the commands share --------------------------------------------------------------------------


def _read(file: Path, names: list[str] | None) -> tuple[Pipeline, tuple[SinkTable, ...]]:
    """The pipeline and the chosen sinks; what is wrong with the file is said in full."""
    try:
        from tidemark_spark.errors import PipelineFileError
        from tidemark_spark.pipeline.check import check_options
        from tidemark_spark.pipeline.file import chosen, read_file
    except ImportError as error:
        raise CommandError(
            f"pipelines need the package '{error.name}', which is not installed; `pip install tidemark[spark]` brings it"
        ) from None
    try:
        pipeline = read_file(file)
        tables = chosen(pipeline, names or [])
        check_options(pipeline, tables)
    except PipelineFileError as error:
        raise CommandError(str(error), 2) from None
    except ValueError as error:
        raise CommandError(f"--sink: {error}", 2) from None
    return pipeline, tables


def _session(
    pipeline: Pipeline,
    master: str | None,
    conf: list[str] | None,
    packages: list[str] | None,
    *,
    fast: bool = False,
) -> Callable[[], SparkSession]:
    """How a session is started; `_stop_spark` stops it."""
    settings = dict(DRIVER)
    for text in conf or []:
        name, equals, value = text.partition("=")
        if not equals or not name:
            raise CommandError(f"--conf {text}: write KEY=VALUE, such as spark.executor.memory=2g", 2)
        settings[name] = value
    listed = [one for text in packages or [] for one in text.split(",") if one]

    def start() -> SparkSession:
        from tidemark_spark.session import build_session

        try:
            session = build_session(
                f"tidemark pipeline {pipeline.name}",
                master=master,
                conf=settings,
                packages=listed,
                checkpoints=pipeline.checkpoints,
                fast_start=fast,
            )
        except TidemarkError:
            raise
        except Exception as error:
            why = next(
                (line.strip() for line in str(error).splitlines() if line.strip()), type(error).__name__
            )
            raise CommandError(
                f"Spark did not start: {why} (its own words are in {pipeline.state}/spark.log)"
            ) from error
        _started.append(session)
        return session

    return start


_started: list[SparkSession] = []


def _stop_spark() -> None:
    while _started:
        # A signal to all processes of a group ends Java first; then there is nothing left to stop.
        with contextlib.suppress(Exception):
            _started.pop().stop()


@contextlib.contextmanager
def _quiet(pipeline: Pipeline) -> Iterator[Path]:
    from tidemark_spark.pipeline.quiet import quiet

    log = pipeline.state / "spark.log"
    with quiet(log):
        yield log


def _address(text: str | None) -> tuple[str, int] | None:
    if text is None:
        return None
    host, colon, port = text.rpartition(":")
    if not colon or not port.isdecimal() or int(port) > 65535:
        raise CommandError(f"--metrics {text}: write HOST:PORT, such as 127.0.0.1:9100", 2)
    return host.strip("[]") or "127.0.0.1", int(port)
