"""Tidemark and Spark: streams as DataFrames, DataFrames into streams, and pipelines from streams to other systems.

`spark.read.format("tidemark")` finds the connector by itself, through the module `pyspark_tidemark`, where this package is
installed. Where Spark does not look (a package that was only sent along), `register(spark)` makes it known.
Start reading at options.py (what a user can say), offsets.py (where a query stands), then micro_batches.py.
Importing this package imports nothing else.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

__all__ = ["register"]


def register(spark: SparkSession) -> None:
    """Make format "tidemark" known to this session."""
    from tidemark_spark.source import TidemarkDataSource

    spark.dataSource.register(TidemarkDataSource)
