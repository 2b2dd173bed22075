"""Columns: what is asked of the broker, and batches that are what Spark was told."""

from __future__ import annotations

import pyarrow as pa
import pytest

from tidemark_spark.errors import OptionError
from tidemark_spark.schema import COLUMNS, Shaper, asked, chosen, ddl


def batch(count: int, **columns: pa.Array) -> pa.RecordBatch:
    made = {"key": pa.array([b"k"] * count), "sequence": pa.array(range(count), pa.int64()), **columns}
    return pa.RecordBatch.from_arrays(list(made.values()), list(made))


def test_headers_are_a_column_for_who_asks_for_them() -> None:
    assert "headers" not in ddl(False)
    assert ddl(True).endswith("headers array<struct<key:string,value:binary>>")


def test_only_what_the_schema_has_is_asked_of_the_broker() -> None:
    assert asked(("value", "stream", "key", "history")) == ("value", "key")
    assert asked(("stream",)) == ("sequence",)
    assert asked(("shard", "key"), one_shard=True) == ("key",)
    assert asked(("key",), more=("deleted",)) == ("key", "deleted")


@pytest.mark.parametrize(
    ("fields", "problem"),
    [
        ([("colour", "string")], "there is no column 'colour'; a stream has key, value"),
        ([("key", "string")], "column 'key' is binary, not string; read it so and CAST it"),
        ([("headers", COLUMNS["headers"])], "includeHeaders.*must be true"),
        ([("key", "binary"), ("key", "binary")], "twice"),
    ],
)
def test_a_schema_that_is_not_ours_is_refused(fields: list[tuple[str, str]], problem: str) -> None:
    with pytest.raises(OptionError, match=problem):
        chosen(fields, headers=False)


def test_a_batch_has_the_columns_and_types_that_spark_was_told_in_their_order() -> None:
    shaper = Shaper(
        ("sequence", "stream", "timestamp", "shard", "key", "history"), stream="s", history="ab", shard=3
    )
    times = pa.array([1, 2], pa.timestamp("ms", "UTC"))

    shaped = shaper.shape(batch(2, timestamp=times))

    assert shaped.schema.names == ["sequence", "stream", "timestamp", "shard", "key", "history"]
    assert shaped.schema.field("timestamp").type == pa.timestamp("us", "UTC")
    assert shaped.column("stream").to_pylist() == ["s", "s"]
    assert shaped.column("shard").to_pylist() == [3, 3]
    assert [value.value for value in shaped.column("timestamp")] == [1000, 2000]


def test_what_came_is_handed_on_without_a_copy() -> None:
    came = batch(1000)
    shaped = Shaper(("key",), stream="s", history="h", shard=None).shape(came)
    assert shaped.column("key").buffers()[2].address == came.column("key").buffers()[2].address


def test_a_constant_column_is_made_once_and_cut_to_length() -> None:
    shaper = Shaper(("stream",), stream="orders", history="h", shard=None)
    large, small = shaper.shape(batch(1000)), shaper.shape(batch(10))
    assert small.column("stream").buffers()[2].address == large.column("stream").buffers()[2].address
    assert small.column("stream").to_pylist() == ["orders"] * 10
