"""A micro-batch of a stream as a change of a sink: the mirror rule.

A batch shows each key that changed at most once, in its newest version. The transformation is applied to the live rows;
what comes out is put into the sink, and every key of the batch that does not come out is deleted there: because it
is a tombstone, because the transformation filtered it out, or because the row was rejected. So what the sink
holds depends on the stream's state alone, not on how it got there.

All of that is read with one Spark action. When a sink takes a source as it is, each row says by itself what becomes of
it. Otherwise the frame is the union of the batch's keys, the result, and the rows that steps rejected, told apart by
`PART`; the decoded batch is kept by Spark meanwhile, so that the broker is read once.

Invariant: every key of the batch is in exactly one of upserts and deletes, with the sequence that it has in the stream.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

import pyarrow as pa
import pyarrow.compute as pc
from pyspark.errors import (
    ArithmeticException,
    ArrayIndexOutOfBoundsException,
    DateTimeException,
    NumberFormatException,
    PySparkException,
    PythonException,
    SparkRuntimeException,
)
from pyspark.sql import functions as F  # noqa: N812

from tidemark_spark.errors import PipelineError, TransformationRefused
from tidemark_spark.pipeline.decode import BAD, DELETED, RAW_KEY, RAW_VALUE, decoded, one_line
from tidemark_spark.pipeline.expectations import FAILED, Rejected, with_failures
from tidemark_spark.pipeline.file import Chain, Pipeline, SinkTable, Source
from tidemark_spark.pipeline.transform import (
    apply_steps,
    delivered_columns,
    source_view,
    wanted_columns,
)
from tidemark_spark.pipeline.values import KEY, SEQUENCE

if TYPE_CHECKING:
    from pyspark.sql import DataFrame

PART = "__part"
KEYS, RESULT, FIRST_STEP = 0, 1, 2
ROW_ERRORS = (
    ArithmeticException,
    ArrayIndexOutOfBoundsException,
    DateTimeException,
    NumberFormatException,
    PythonException,
    SparkRuntimeException,
)
"""What Spark raises when a row, rather than the machine, makes a step fail."""


@dataclass(frozen=True, slots=True)
class Delivered:
    """What a batch comes to."""

    rows: int
    """Keys in the batch, tombstones included."""
    upserts: pa.Table
    deletes: pa.Table
    rejected: tuple[Rejected, ...]


def deliver(
    rows: DataFrame, pipeline: Pipeline, sink: SinkTable, chain: Chain, *, keys_only: bool = False
) -> Delivered:
    """Read a micro-batch of the connector as a change of a sink in mode mirror; with `keys_only`, its keys and sequences.

    Raises:
        TransformationRefused: a step does not compile, or gives what a mirror cannot take; or a row made it fail.
    """
    [source] = chain.sources
    wanted = wanted_columns(chain)
    checked = with_failures(decoded(rows, source, wanted), source.name, chain.expectations, source=True)
    if not chain.transforms:
        return _as_it_is(checked, sink, source.name, keys_only)
    if not any(one.on != source.name for one in chain.expectations):
        # Only rows that are rejected here need their bytes again.
        dead = F.col(FAILED).isNotNull()
        for name in (RAW_KEY, RAW_VALUE):
            checked = checked.withColumn(name, F.when(dead, F.col(name)))
    batch = checked.persist()
    try:
        return _through_steps(batch, pipeline, sink, chain, keys_only)
    except ROW_ERRORS as error:
        # What fails in the connector is no row's fault.
        if "tidemark_spark" not in str(error) and (culprit := _culprit(batch, pipeline, sink, chain)):
            raise culprit from error
        raise
    finally:
        batch.unpersist()


def rejected_rows(rows: DataFrame, source: Source, chain: Chain) -> list[Rejected]:
    """The rows of a micro-batch of one source that its expectations reject."""
    checked = with_failures(
        decoded(rows, source, wanted_columns(chain)), source.name, chain.expectations, source=True
    )
    bad = checked.where(F.col(FAILED).isNotNull()).select(KEY, SEQUENCE, FAILED, RAW_KEY, RAW_VALUE)
    return list(_rejected(bad.toArrow(), source.name))


def _as_it_is(checked: DataFrame, sink: SinkTable, source: str, keys_only: bool) -> Delivered:
    names = delivered_columns(checked, mirror=True, step=f"[source.{source}]")
    names = [KEY, SEQUENCE] if keys_only else names
    dead = F.col(FAILED).isNotNull()
    table = checked.select(
        *(F.col(f"`{name}`") for name in names),
        DELETED,
        FAILED,
        F.when(dead, F.col(RAW_KEY)).alias(RAW_KEY),
        F.when(dead, F.col(RAW_VALUE)).alias(RAW_VALUE),
    ).toArrow()
    live = pc.and_(pc.invert(table[DELETED]), pc.is_null(table[FAILED]))
    kept = table.filter(live).select(names)
    gone = _with_key(table.filter(pc.invert(live)).select([KEY, SEQUENCE]))
    _check_keys(kept, _with_key(table.select([KEY, SEQUENCE])), sink.name)
    return Delivered(table.num_rows, kept, gone, tuple(_rejected(table, source)))


def _through_steps(
    batch: DataFrame, pipeline: Pipeline, sink: SinkTable, chain: Chain, keys_only: bool
) -> Delivered:
    [source] = chain.sources
    result = apply_steps(batch.sparkSession, pipeline, chain, {source.name: source_view(batch)}, sink.reads)
    step = f"[[transform]] '{sink.reads}'" if sink.reads != source.name else f"[source.{source.name}]"
    names = delivered_columns(result.frame, mirror=True, step=step)
    names = [KEY, SEQUENCE] if keys_only else names
    dead = F.col(FAILED).isNotNull()
    union = batch.select(
        F.lit(KEYS).alias(PART),
        KEY,
        SEQUENCE,
        DELETED,
        FAILED,
        F.when(dead, F.col(RAW_KEY)).alias(RAW_KEY),
        F.when(dead, F.col(RAW_VALUE)).alias(RAW_VALUE),
    ).unionByName(
        result.frame.select(F.lit(RESULT).alias(PART), *(F.col(f"`{name}`") for name in names)),
        allowMissingColumns=True,
    )
    steps = list(result.rejected)
    for number, name in enumerate(steps, FIRST_STEP):
        frame = result.rejected[name]
        if missing := [one for one in (KEY, SEQUENCE) if one not in frame.columns]:
            raise TransformationRefused(
                step=f"[[transform]] '{name}'",
                problem=f"an expectation looks at it, so it must keep {' and '.join(missing)}",
            )
        part = frame.select(F.lit(number).alias(PART), KEY, SEQUENCE, FAILED)
        union = union.unionByName(part, allowMissingColumns=True)
    table = union.toArrow()
    part = table[PART]
    seen = table.filter(pc.equal(part, KEYS))
    keys = _with_key(seen.select([KEY, SEQUENCE]))
    kept = table.filter(pc.equal(part, RESULT)).select(names)
    _check_keys(kept, keys, sink.name)
    gone = keys.filter(pc.invert(pc.is_in(keys[KEY], value_set=_flat(kept[KEY]))))
    rejected = list(_rejected(seen, source.name))
    for number, name in enumerate(steps, FIRST_STEP):
        found = table.filter(pc.equal(part, number)).select([KEY, SEQUENCE, FAILED])
        if found.num_rows:
            rejected += _rejected(_with_raw(found, batch), name)
    return Delivered(seen.num_rows, kept, gone, tuple(rejected))


def _check_keys(kept: pa.Table, keys: pa.Table, sink: str) -> None:
    """A mirror needs each key at most once, and only keys of the batch, in their version."""

    def refused(row: int, problem: str) -> TransformationRefused:
        key = shown_key(kept[KEY][row].as_py())
        return TransformationRefused(
            step=f"[[sink]] '{sink}'", problem=f"the result {problem.format(key=key)}"
        )

    if not kept.num_rows:
        return
    if kept[KEY].null_count:
        raise refused(pc.index(pc.is_null(kept[KEY]), True).as_py(), f"has a row without {KEY}")
    if kept[KEY].type != keys[KEY].type or kept[SEQUENCE].type != keys[SEQUENCE].type:
        raise refused(0, f"has another type for {KEY} or {SEQUENCE} than the view; deliver them as they are")
    place = pc.index_in(kept[KEY], value_set=_flat(keys[KEY]))
    if place.null_count:
        raise refused(
            pc.index(pc.is_null(place), True).as_py(),
            f"has a row with {KEY} '{{key}}', which is no key of the batch: a mirror cannot follow rows whose key is made "
            f'anew. Deliver {KEY} as it is, or use mode = "append" or "update"',
        )
    if pc.count_distinct(place).as_py() != kept.num_rows:
        first: dict[int, int] = {}
        raise refused(
            next(row for row, key in enumerate(place.to_pylist()) if first.setdefault(key, row) != row),
            f"has more than one row with {KEY} '{{key}}': a mirror takes at most one a key. Aggregate them (collect_list, "
            f'first), or use mode = "append" or "update"',
        )
    same = pc.equal(pc.take(_flat(keys[SEQUENCE]), place), kept[SEQUENCE])
    if not pc.all(same, min_count=0).as_py():
        raise refused(
            pc.index(same, False).as_py(),
            f"has another {SEQUENCE} for {KEY} '{{key}}' than the view; deliver it as it is",
        )


def _with_key(table: pa.Table) -> pa.Table:
    """Without rows whose key does not decode: no sink can hold them."""
    return table.filter(pc.is_valid(table[KEY])) if table[KEY].null_count else table


def _flat(column: pa.ChunkedArray) -> pa.Array:
    found = column.combine_chunks()
    return found if isinstance(found, pa.Array) else pa.concat_arrays(found.chunks)


def _rejected(table: pa.Table, on: str) -> Iterator[Rejected]:
    """The rows with FAILED, and their raw bytes."""
    for row in table.filter(pc.is_valid(table[FAILED])).to_pylist():
        key: bytes | None = row[RAW_KEY]
        yield Rejected(
            on=on,
            failed=tuple(row[FAILED]),
            key=key,
            shown=shown_key(key if key is not None else row[KEY]),
            sequence=row[SEQUENCE],
            value=row[RAW_VALUE] or b"",
        )


def _with_raw(found: pa.Table, batch: DataFrame) -> pa.Table:
    """Rows that a step rejected, with the bytes that they were in the stream."""
    wanted = batch.sparkSession.createDataFrame(found.select([KEY]))
    raw = batch.join(F.broadcast(wanted), KEY).select(KEY, RAW_KEY, RAW_VALUE).toArrow()
    place = pc.index_in(found[KEY], value_set=_flat(raw[KEY]))
    for name in (RAW_KEY, RAW_VALUE):
        found = found.append_column(name, pc.take(_flat(raw[name]), place))
    return found


def shown_key(key: bytes | str | None) -> str:
    """A key for people."""
    if not isinstance(key, bytes):
        return str(key)
    try:
        return key.decode()
    except UnicodeDecodeError:
        return "0x" + key.hex()


# Which row it was -----------------------------------------------------------------------------------


def _culprit(batch: DataFrame, pipeline: Pipeline, sink: SinkTable, chain: Chain) -> PipelineError | None:
    """A step failed while it ran: the first row that makes it fail, found by halves; None when no single row does."""
    [source] = chain.sources

    def fails(last: int) -> PySparkException | None:
        view = source_view(batch.where(F.col(SEQUENCE) <= last))
        try:
            result = apply_steps(batch.sparkSession, pipeline, chain, {source.name: view}, sink.reads)
            # As a whole, since a count would not compute the columns.
            result.frame.write.format("noop").mode("overwrite").save()
        except PySparkException as error:
            return error
        return None

    try:
        keys = batch.select(SEQUENCE, KEY).where(~F.col(BAD) & ~F.col(DELETED)).orderBy(SEQUENCE).toArrow()
    except PySparkException:
        return None
    sequences: Sequence[int] = keys[SEQUENCE].to_pylist()
    if not sequences or (error := fails(sequences[-1])) is None:
        return None
    low, high = 0, len(sequences) - 1
    while low < high:
        middle = (low + high) // 2
        if (earlier := fails(sequences[middle])) is not None:
            high, error = middle, earlier
        else:
            low = middle + 1
    return TransformationRefused(
        step=f"[[sink]] '{sink.name}'",
        problem=f"the row with key '{shown_key(keys[KEY][low].as_py())}' at sequence {sequences[low]} makes the "
        f"transformation fail: {one_line(error)}. Correct the row, make the SQL tolerant (try_cast, try_divide, …), or add an "
        f"expectation on '{source.name}' that keeps such rows out",
    )
