"""Sources that ours is held against: one that gives ready rows, and ours with a tuple for each row.

Spark's workers import this module, so it names nothing that is heavy.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING, Any

from pyspark.sql.datasource import DataSource, DataSourceReader, DataSourceStreamReader, InputPartition

from pyspark_tidemark import DefaultSource
from tidemark_spark.schema import ddl

if TYPE_CHECKING:
    from pyspark.sql.types import StructType


class EmptySource(DataSource):
    """The floor of a micro-batch: always the same few rows, ready in the worker, in one task; no network, no thought."""

    @classmethod
    def name(cls) -> str:
        return "bench_empty"

    def schema(self) -> str:
        return ddl(headers=False)

    def streamReader(self, schema: StructType) -> DataSourceStreamReader:  # noqa: N802, ARG002
        return _EmptyReader(int(self.options["rows"]))


class _EmptyReader(DataSourceStreamReader):
    def __init__(self, rows: int) -> None:
        self._rows = rows

    def initialOffset(self) -> dict[str, int]:  # noqa: N802
        return {"at": 0}

    def latestOffset(self, start: dict[str, int], limit: Any) -> dict[str, int]:  # noqa: N802, ARG002
        return {"at": start["at"] + self._rows}

    def partitions(self, start: dict[str, int], end: dict[str, int]) -> list[InputPartition]:
        return [InputPartition(start["at"])] if start != end else []

    def read(self, partition: InputPartition) -> Iterator[Any]:  # noqa: ARG002
        import pyarrow as pa

        count = self._rows
        yield pa.record_batch(
            {
                "key": pa.array([b"k" * 8] * count, pa.binary()),
                "value": pa.array([b"v" * 100] * count, pa.binary()),
                "stream": pa.array(["rows"] * count, pa.string()),
                "shard": pa.array([0] * count, pa.int32()),
                "sequence": pa.array(range(count), pa.int64()),
                "history": pa.array(["0" * 32] * count, pa.string()),
                "timestamp": pa.array([0] * count, pa.timestamp("us", "UTC")),
                "deleted": pa.array([False] * count, pa.bool_()),
            }
        )


class TupleSource(DefaultSource):
    """Ours, but what the broker's batches hold is handed to Spark row by row, as most Python sources do it."""

    @classmethod
    def name(cls) -> str:
        return "bench_tuples"

    def reader(self, schema: StructType) -> DataSourceReader:
        return _TupleReader(super().reader(schema))


class _TupleReader(DataSourceReader):
    def __init__(self, inner: DataSourceReader) -> None:
        self._inner = inner

    def partitions(self) -> Any:
        return self._inner.partitions()

    def read(self, partition: InputPartition) -> Iterator[tuple[Any, ...]]:
        batches: Iterator[Any] = self._inner.read(partition)
        for batch in batches:
            columns = [column.to_pylist() for column in batch.columns]
            yield from zip(*columns, strict=True)
