"""What Spark calls for format "tidemark": the data source, and the reader of batch reads.

    spark.read.format("tidemark").option("tidemark.url", "tidemark://…").option("subscribe", "orders").load()

A batch read pins the stream when it is planned, with a lease that its tasks renew while they read, and reads that pin.
Nobody tells us when Spark has done with a DataFrame, so the lease ends the pin, but for a read that could not be planned. Nothing is decided here: options.py,
planning.py and broker.py do that.

Invariant: what is pickled and sent to workers is options and plain values, never a connection.
"""

from __future__ import annotations

import contextlib
import os
import uuid
from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING, Any

from pyspark.sql.datasource import DataSource, DataSourceReader, InputPartition

from tidemark.errors import HistoryGone, LostBranch, StreamReset, TidemarkError
from tidemark_spark import schema as columns_of
from tidemark_spark.broker import BrokerFeed, Head, Pin, ReadTask, read
from tidemark_spark.errors import BrokerAway, DataLost, OptionError
from tidemark_spark.micro_batches import read_task, resolve
from tidemark_spark.offsets import Shards, everywhere, spread
from tidemark_spark.options import LATEST, ByShard, Moment, ReadOptions, read_options
from tidemark_spark.planning import Limits, Narrowing, narrow, plan

if TYPE_CHECKING:
    from pyarrow import RecordBatch
    from pyspark.sql.datasource import (
        DataSourceArrowWriter,
        DataSourceStreamArrowWriter,
        DataSourceStreamReader,
        Filter,
    )
    from pyspark.sql.types import StructType


class TidemarkDataSource(DataSource):
    """Streams of a Tidemark broker as DataFrames, and DataFrames into streams."""

    @classmethod
    def name(cls) -> str:
        return "tidemark"

    def schema(self) -> str:
        return columns_of.ddl(read_options(self.options, None).headers)

    def reader(self, schema: StructType) -> DataSourceReader:
        options = read_options(self.options, "batch")
        columns = _chosen(schema, options)
        # Spark refuses every read of a reader that takes filters, unless its own setting allows that.
        return FilteredReader(options, columns) if options.pushdown else BatchReader(options, columns)

    def streamReader(self, schema: StructType) -> DataSourceStreamReader:  # noqa: N802
        from tidemark_spark.streaming import StreamReader

        options = read_options(self.options, "stream")
        return StreamReader(options, _chosen(schema, options))

    def writer(self, schema: StructType, overwrite: bool) -> DataSourceArrowWriter:
        from tidemark_spark.writer import batch_writer

        return batch_writer(self.options, schema, overwrite)

    def streamWriter(self, schema: StructType, overwrite: bool) -> DataSourceStreamArrowWriter:  # noqa: N802
        from tidemark_spark.writer import stream_writer

        return stream_writer(self.options, schema, overwrite)


def _chosen(schema: StructType, options: ReadOptions) -> tuple[str, ...]:
    return columns_of.chosen(
        ((field.name, field.dataType.simpleString()) for field in schema.fields), options.headers
    )


class TaskPartition(InputPartition):
    """What one task reads."""

    def __init__(self, task: ReadTask) -> None:
        super().__init__(task)
        self.task = task


def read_partition(partition: InputPartition) -> Iterator[RecordBatch]:
    """The rows of a partition. Spark makes up one without a value when there are none at all."""
    return read(partition.task) if isinstance(partition, TaskPartition) else iter(())


class BatchReader(DataSourceReader):
    """One read of a stream, as it is when the read is planned or was in the past."""

    def __init__(self, options: ReadOptions, columns: tuple[str, ...]) -> None:
        self._options = options
        self._columns = columns
        self._narrowing = Narrowing()

    def partitions(self) -> Sequence[InputPartition]:
        options, narrowing = self._options, self._narrowing
        if narrowing.is_nothing:
            return []
        assert options.stream is not None
        feed = BrokerFeed(options.url, options.stream, retry_s=options.retry_s, place=options.place)
        tasks = planned(feed, options, narrowing, self._columns)
        return [TaskPartition(task) for task in tasks]

    def read(self, partition: InputPartition) -> Iterator[RecordBatch]:
        return read_partition(partition)


class FilteredReader(BatchReader):
    """The same, when the broker may get to know the query's filters."""

    def pushFilters(self, filters: list[Filter]) -> Iterator[Filter]:  # noqa: N802
        self._narrowing, rest = narrow(filters)
        return iter(rest)


def planned(
    feed: BrokerFeed, options: ReadOptions, narrowing: Narrowing, columns: tuple[str, ...]
) -> list[ReadTask]:
    """The tasks of a batch read, and the pin that they read.

    Raises:
        DataLost: a past that is asked for is not there (any more).
        OptionError: a place that the stream does not have.
    """
    name = f"spark-read.{uuid.uuid4().hex}"
    try:
        pin, begin, end = snapshot_of(feed, options, name)
        begin, end = narrowing.applied(begin, end)
        limits = Limits(
            options.partitions_min, options.partitions_max, options.partition_rows_max, os.cpu_count() or 2
        )
        narrowed = {
            "key_from": narrowing.key_from,
            "key_to": narrowing.key_to,
            "deleted": narrowing.deleted,
        }
        tasks = [
            read_task(options, feed, pin, slices, columns, **narrowed)
            for slices in plan(begin, end, limits, lambda part, **how: feed.cut(name, part, **how))
        ]
    except BrokerAway:
        raise
    except TidemarkError:
        with contextlib.suppress(TidemarkError):
            feed.release(name)  # nobody will read it
        raise
    if not tasks:
        feed.release(name)
    return tasks


def snapshot_of(feed: BrokerFeed, options: ReadOptions, name: str) -> tuple[Pin, Shards, Shards]:
    """Pin what a batch read reads, and say from where to where that is.

    Raises:
        DataLost, OptionError: as `planned`; the pin may have been made.
    """
    at: Any = options.as_of
    if isinstance(at, Moment):
        at = {"ms": at.ms}
    elif options.diff is not None:
        at = options.diff[1]
    head = feed.head()
    if isinstance(at, int) and at > head.sequence:
        option = "asOf" if options.diff is None else "diff"
        raise OptionError(
            option=option, problem=f"{at} is ahead of stream '{feed.stream}', which is at {head.sequence}"
        )
    try:
        pin = feed.pin(name, options.lease_s, at)
        if options.diff is not None:
            feed.check(head.history, options.diff[0])
            begin = everywhere(pin.history, options.diff[0], pin.shards)
        elif options.as_of is not None:
            begin = everywhere(pin.history, 0, pin.shards)
        else:
            begin = spread(_begin(feed, options, head), pin.shards)
    except HistoryGone as problem:
        raise DataLost(
            stream=feed.stream,
            problem=str(problem),
            remedy=f"Ask for sequence {problem.oldest} or later",
        ) from None
    except (StreamReset, LostBranch) as problem:
        raise DataLost(
            stream=feed.stream,
            problem=str(problem),
            remedy="Read from a later sequence, or all with earliest",
        ) from None
    begins = [sequence for _, sequence in begin.values() if sequence > 0]
    if options.fail_on_data_loss and begins and min(begins) < pin.floor - 1:
        raise DataLost(
            stream=feed.stream,
            problem=f"rows up to sequence {pin.floor - 1} have ended (retention, truncate or purge), so what lies behind "
            f"{min(begins)} is no longer complete",
            remedy=f"Read from sequence {pin.floor - 1} on, or all with earliest",
        )
    return pin, begin, _until(options, pin)


def _begin(feed: BrokerFeed, options: ReadOptions, head: Head) -> Shards:
    begin = resolve(options.start, feed, head, options.group or "", "startingOffsets")
    if options.fail_on_data_loss:
        for history, sequence in sorted(set(begin.values())):
            feed.check(history, sequence)
    return begin


def _until(options: ReadOptions, pin: Pin) -> Shards:
    """Where each shard ends: where the pin does, or before."""
    end = everywhere(pin.history, pin.sequence, pin.shards)
    if not isinstance(options.end, ByShard):
        return end
    given = {shard: sequence for shard, _, sequence in options.end.shards}
    if not set(given) <= set(end):
        raise OptionError(
            option="endingOffsets",
            problem=f"names shard {max(given)}, but stream '{options.stream}' has 0 to {pin.shards - 1}",
        )
    for shard, sequence in given.items():
        if sequence not in (LATEST, pin.sequence):
            end[shard] = (pin.history, min(sequence, pin.sequence))
    return end
