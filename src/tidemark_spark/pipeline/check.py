"""Is a pipeline ready to run? Everything is looked at, nothing is moved.

`check_options` needs neither Spark nor a network: sinks read their own tables. `check` goes on to the brokers, the sinks and, with
a session, the transformations, which are compiled against empty frames of the sources' schemas.

Invariant: no row is read and none is written. (A sink that is asked for its mark may make the empty file that holds it.)
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

import tidemark.client
from tidemark.client import operations as ops
from tidemark.errors import CommandInvalid, NotFound, TidemarkError
from tidemark_spark.errors import (
    OptionError,
    PipelineError,
    PipelineFileError,
    SinkPackageMissing,
    TransformationRefused,
)
from tidemark_spark.pipeline.sinks import make_sink

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

    from tidemark.client import Client
    from tidemark_spark.pipeline.file import Pipeline, SinkTable, Source

CONNECT_S = 5.0


@dataclass(frozen=True, slots=True)
class Finding:
    what: str
    ok: bool
    says: str


def check_options(pipeline: Pipeline, tables: Sequence[SinkTable]) -> None:
    """Let every sink read its table.

    Raises:
        PipelineFileError: with all that they do not like.
    """
    mistakes = []
    for table in tables:
        try:
            make_sink(table.name, pipeline.name, table.kind, table.options)
        except OptionError as error:
            option = error.option.removeprefix(f"{table.name}.")
            mistakes.append(f"[[sink]] '{table.name}' {option}: {error.problem}")
        except SinkPackageMissing as error:
            mistakes.append(f"[[sink]] '{table.name}' kind: {error}")
    if mistakes:
        raise PipelineFileError(path=str(pipeline.path), mistakes=tuple(mistakes))


def check(
    pipeline: Pipeline, tables: Sequence[SinkTable], session: Callable[[], SparkSession]
) -> Iterator[Finding]:
    """Look at one thing after the other."""
    sources = {one.name: one for table in tables for one in pipeline.chain(table).sources}
    for source in sources.values():
        yield _source(source)
    if pipeline.dead_letters is not None:
        target = pipeline.dead_letters
        try:
            with tidemark.client.connect(target.url, timeout=CONNECT_S, name="tidemark pipeline check") as db:
                if parts := partitions_of(db, target.stream):
                    says = f"'{target.stream}' is a partitioned stream; name another, or one partition, such as {parts[0]}"
                    yield Finding("dead letters", False, says)
                else:
                    says = f"go to stream {target.stream}, made when it is needed"
                    yield Finding("dead letters", True, says)
        except (TidemarkError, ValueError) as error:
            yield Finding("dead letters", False, str(error))
    for table in tables:
        yield _sink(pipeline, table)
    try:
        spark = session()
    except Exception as error:  # of Java, of the network, …: whatever keeps Spark from starting
        yield Finding("Spark", False, str(error))
        return
    yield Finding("Spark", True, f"{spark.version}, master {spark.sparkContext.master}")
    for table in tables:
        try:
            names = ", ".join(compile_chain(pipeline, table, spark))
            yield Finding(f"transformation of {table.name}", True, f"gives {names}")
        except PipelineError as error:
            yield Finding(f"transformation of {table.name}", False, str(error))


def compile_chain(pipeline: Pipeline, table: SinkTable, spark: SparkSession) -> list[str]:
    """The columns that a sink will get.

    Raises:
        TransformationRefused: what does not compile, and why.
    """
    from tidemark_spark.pipeline.decode import connector_columns, decoded
    from tidemark_spark.pipeline.delivery import COLUMN_TYPES, check_streaming_expectations
    from tidemark_spark.pipeline.expectations import with_failures
    from tidemark_spark.pipeline.transform import apply_steps, delivered_columns, source_view, wanted_columns

    chain = pipeline.chain(table)
    session = spark.newSession()
    wanted = wanted_columns(chain)
    schema = ", ".join(f"{name} {COLUMN_TYPES[name]}" for name in connector_columns(wanted))
    views: dict[str, DataFrame] = {}
    for source in chain.sources:
        rows = decoded(session.createDataFrame([], schema), source, wanted)
        checked = with_failures(rows, source.name, chain.expectations, source=True)
        views[source.name] = source_view(checked)
    result = apply_steps(session, pipeline, chain, views, table.reads)
    mirror = table.mode == "mirror"
    kind = "transform" if table.reads in pipeline.transforms else "source"
    step = f"[[transform]] '{table.reads}'" if kind == "transform" else f"[source.{table.reads}]"
    names = delivered_columns(result.frame, mirror=mirror, step=step)
    if mirror:
        for name, frame in result.rejected.items():
            if missing := [one for one in ("_key", "_sequence") if one not in frame.columns]:
                raise TransformationRefused(
                    step=f"[[transform]] '{name}'",
                    problem=f"an expectation looks at it, so it must keep {' and '.join(missing)}",
                )
    else:
        check_streaming_expectations(chain)
    return names


def _source(source: Source) -> Finding:
    what = f"source {source.name}"
    try:
        with tidemark.client.connect(source.url, timeout=CONNECT_S, name="tidemark pipeline check") as db:
            try:
                info = db.stream(source.stream).info()
            except NotFound:
                if parts := partitions_of(db, source.stream):
                    return Finding(what, False, _partitioned(source, parts))
                raise
    except NotFound:
        return Finding(
            what,
            False,
            f"there is no stream '{source.stream}'; `tidemark stream create {source.stream}` makes it",
        )
    except (TidemarkError, ValueError) as error:
        return Finding(what, False, str(error))
    shards = "1 shard" if info.shards == 1 else f"{info.shards} shards"
    return Finding(
        what,
        True,
        f"stream {source.stream}, {info.live:,} keys in {shards}, up to sequence {info.last_sequence}",
    )


def _partitioned(source: Source, parts: Sequence[str]) -> str:
    return (
        f"'{source.stream}' is a partitioned stream, and a source is one stream: make one of each partition "
        f"({', '.join(parts)}), and join them with UNION ALL in a transform, for a sink in mode append or update"
    )


def partitions_of(db: Client, stream: str) -> list[str]:
    """The streams that a name stands for; empty: it is not that of a partitioned stream."""
    try:
        return [one.stream for one in db.call(ops.partitions(stream)).partitions]
    except (NotFound, CommandInvalid):
        return []


def _sink(pipeline: Pipeline, table: SinkTable) -> Finding:
    from tidemark_spark.pipeline.status import held_mark, runs
    from tidemark_spark.pipeline.tracking import reached

    what = f"sink {table.name}"
    try:
        mark = held_mark(pipeline, table)
    except TidemarkError as error:
        if runs(pipeline):
            return Finding(what, True, f"in use by the pipeline, which runs ({error})")
        return Finding(what, False, str(error))
    if mark is None:
        return Finding(what, True, f"{table.kind}, empty: will be filled from the beginning")
    return Finding(what, True, f"{table.kind}, holds the stream up to sequence {reached(mark)}")
