"""Found by Spark: modules named pyspark_… are looked at for a `DefaultSource`, which makes format "tidemark" known."""

from tidemark_spark.source import TidemarkDataSource as DefaultSource

__all__ = ["DefaultSource"]
