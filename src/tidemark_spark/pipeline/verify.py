"""Does a sink hold exactly what the stream says? Counted and hashed on both sides.

The stream is read as it was at the sink's mark, goes through the same transformation, and what comes out is hashed by key
and sequence; the sink reads its own rows back and does the same. For that the stream must still show that moment: either
nothing has changed since, or the stream keeps its past (`history`). And the mark must be a boundary: inside a
snapshot there is no moment that the sink could be compared with.

Invariant: EQUAL is said only when both digests were taken at the same mark.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from enum import StrEnum
from typing import TYPE_CHECKING

import tidemark.client
from tidemark_spark.pipeline.changes import deliver
from tidemark_spark.pipeline.decode import connector_columns
from tidemark_spark.pipeline.delivery import COLUMN_TYPES
from tidemark_spark.pipeline.sinks import make_sink
from tidemark_spark.pipeline.sinks.table import digest_of
from tidemark_spark.pipeline.status import sequence_in
from tidemark_spark.pipeline.transform import wanted_columns
from tidemark_spark.pipeline.values import KEY, SEQUENCE, Digest

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

    from tidemark_spark.pipeline.file import Pipeline, SinkTable

ATTEMPTS = 3


class Verdict(StrEnum):
    EQUAL = "equal"
    DIFFERENT = "different"
    UNKNOWN = "cannot compare"


@dataclass(frozen=True, slots=True)
class Verification:
    sink: str
    verdict: Verdict
    sequence: int | None
    stream: Digest | None
    held: Digest | None
    says: str


def verify(pipeline: Pipeline, table: SinkTable, session: Callable[[], SparkSession]) -> Verification:
    """Compare one sink with its stream. Nothing is changed.

    Raises:
        SinkUnavailable, SinkRefused, NotConnected, TransformationRefused
    """

    def unknown(says: str, sequence: int | None = None) -> Verification:
        return Verification(table.name, Verdict.UNKNOWN, sequence, None, None, says)

    if table.mode != "mirror":
        return unknown(f"mode {table.mode} delivers results, which have no counterpart in the stream")
    [source] = pipeline.chain(table).sources
    sink = make_sink(table.name, pipeline.name, table.kind, table.options)
    try:
        for _ in range(ATTEMPTS):
            mark = sink.open()
            if mark is None:
                return unknown("the sink holds nothing of this pipeline yet; run it first")
            if not mark.boundary:
                return unknown(
                    "the sink's mark lies inside a snapshot; let the pipeline go on to the next boundary, then ask again"
                )
            held = sink.digest()
            if (again := sink.open()) is not None and again.position == mark.position:
                break
        else:
            return unknown("the sink changes while it is read; stop the pipeline, or ask when it is idle")
    finally:
        sink.close()
    with tidemark.client.connect(source.url, timeout=30.0, name="tidemark pipeline verify") as db:
        stream = db.stream(source.stream)
        at = sequence_in(mark, source.stream, stream.info().shards)
        digest: Digest | None = None
        if not (moved := stream.lag(at).rows):
            digest = _digest(pipeline, table, session(), None)
            moved = stream.lag(at).rows
    if moved:
        # Somebody writes: the moment of the mark is in the past, which the stream may or may not keep.
        try:
            digest = _digest(pipeline, table, session(), at)
        except Exception as error:
            if "DataLost" not in str(error) and "HistoryGone" not in str(error):
                raise
            return unknown(
                f"{moved:,} keys of stream {source.stream} have changed since the sink's mark (sequence {at}), and the "
                f"stream keeps no past to read that moment from; run the pipeline until it is up to date and compare "
                f"while nobody writes, or create the stream with a history",
                at,
            )
    assert digest is not None
    same = digest == held
    says = (
        f"{held.rows:,} rows, hash {held.hash}, at sequence {at}"
        if same
        else f"the stream comes to {digest.rows:,} rows ({digest.hash}), the sink holds {held.rows:,} ({held.hash}), at sequence "
        f"{at}; `tidemark pipeline reset FILE --sink {table.name} --drop` fills it anew"
    )
    return Verification(table.name, Verdict.EQUAL if same else Verdict.DIFFERENT, at, digest, held, says)


def _digest(pipeline: Pipeline, table: SinkTable, spark: SparkSession, at: int | None) -> Digest:
    """What a sink should hold by the stream as it is, or as it was at a sequence."""
    chain = pipeline.chain(table)
    [source] = chain.sources
    columns = connector_columns(wanted_columns(chain))
    reader = (
        spark.newSession()
        .read.format("tidemark")
        .schema(", ".join(f"{name} {COLUMN_TYPES[name]}" for name in columns))
    )
    options = {"tidemark.url": source.url, "subscribe": source.stream}
    if at is not None:
        options["asOf"] = str(at)
    if "headers" in columns:
        options["includeHeaders"] = "true"
    rows = reader.options(**options).load()
    found = deliver(rows, pipeline, table, chain, keys_only=True).upserts.select([KEY, SEQUENCE])
    return digest_of((part.column(0), part.column(1)) for part in found.to_batches())


def worst(found: list[Verification]) -> int:
    """The exit code: 1 when a sink differs or cannot be compared."""
    return 1 if any(one.verdict is not Verdict.EQUAL for one in found) else 0
