"""Tidemark and Spark: streams as DataFrames, DataFrames into streams, and pipelines from streams to other systems.

`spark.read.format("tidemark")` finds the connector by itself, through the module `pyspark_tidemark`, where this package is
installed. Where Spark does not look (a package that was only sent along), `register(spark)` makes it known. A program
that starts several queries at once gives each a session of its own (`own_session`).
Start reading at options.py (what a user can say), offsets.py (where a query stands), then micro_batches.py.
Importing this package imports nothing else.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

__all__ = ["own_session", "register"]


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
