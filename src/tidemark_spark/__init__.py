"""Tidemark and Spark: streams as DataFrames, DataFrames into streams, and pipelines from streams to other systems.

`spark.read.format("tidemark")` finds the connector by itself, through the module `pyspark_tidemark`, where this package is
installed. Where Spark does not look (a package that was only sent along), `register(spark)` makes it known. A program
that starts several queries at once gives each a session of its own (`own_session`). `read_partitioned` reads all partitions of a
partitioned stream; they are written like any other stream.
Start reading at options.py (what a user can say), offsets.py (where a query stands), then micro_batches.py.
Importing this package imports nothing else.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession
    from pyspark.sql.types import StructType

__all__ = ["own_session", "read_partitioned", "register"]


def register(spark: SparkSession) -> None:
    """Make format "tidemark" known to this session."""
    from tidemark_spark.source import TidemarkDataSource

    spark.dataSource.register(TidemarkDataSource)


def own_session(spark: SparkSession) -> SparkSession:
    """A session like this one, for a query that starts while others do.

    A source that Spark has found by itself is one object for all sessions of a process, with a map of variables for its
    Python workers that every streaming query changes as it starts, without a lock. Two that do so at once can leave the map
    in pieces, and then no task of any query can be sent any more ("Illegal size 5 of collection, expected 6") until the
    process ends. A source that is registered is its session's alone.
    """
    from pyspark_tidemark import DefaultSource

    session = spark.newSession()
    session.dataSource.register(DefaultSource)
    return session


def read_partitioned(
    spark: SparkSession,
    *,
    url: str,
    stream: str,
    streaming: bool = False,
    schema: str | StructType | None = None,
    partition_column: str | None = "partition",
    **options: Any,
) -> DataFrame:
    """All partitions of a partitioned stream, as one DataFrame; with `streaming` as one source of micro-batches.

    Columns are those of a stream, of which `stream` is the partition's own name, and the partition's number. Each micro-batch
    holds a part of every partition that has news, and each partition is at a place of its own; none of its rows is
    missed or comes twice, as of a single stream. No order and no common moment spans two partitions; a key is always in the same one.

    Args:
        schema: the columns to read, as `DataFrameReader.schema` takes them; by default all.
        partition_column: what the column with the partition's number is called; None: there is none.
        options: those of the source, each for every partition. Places in JSON name the partitions:
            `startingOffsets='{"orders-0": {"0": 900}, "orders-1": {"0": 120}}'`.

    Raises:
        OptionError: there is no such partitioned stream, or an option can only be about a single one.
    """
    from tidemark_spark import partitioned

    return partitioned.read_partitioned(
        spark,
        url=url,
        stream=stream,
        streaming=streaming,
        schema=schema,
        partition_column=partition_column,
        options=options,
    )
