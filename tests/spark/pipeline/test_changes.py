"""Batches as changes of a sink, on frames made by hand: decoding, expectations, the mirror rule."""

from __future__ import annotations

import io
import json
from datetime import UTC, datetime
from decimal import Decimal
from pathlib import Path
from typing import TYPE_CHECKING, Any

import fastavro
import pyarrow as pa
import pytest
from helpers.pipelines import a_duckdb, a_file, an_order

from tidemark_spark.errors import TransformationRefused
from tidemark_spark.pipeline.changes import Delivered, _check_keys, deliver
from tidemark_spark.pipeline.check import compile_chain
from tidemark_spark.pipeline.file import Pipeline, read_file

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

pytestmark = pytest.mark.timeout(300)

NOW = datetime(2025, 1, 2, tzinfo=UTC)
URL = "tidemark://127.0.0.1:1/"
SCHEMA = "key BINARY, value BINARY, sequence BIGINT, deleted BOOLEAN, timestamp TIMESTAMP, shard INT, history STRING"
OPEN = """
[[transform]]
name = "open_orders"
sql = "SELECT _key, _sequence, upper(customer) AS who, amount FROM orders WHERE status <> 'cancelled'"
"""
DEAD = '[dead_letter]\nstream = "rejected"\n'


def a_pipeline(folder: Path, rest: str, source: str = "") -> Pipeline:
    return a_file(folder, URL, "orders", rest, source=source)


def delivered(spark: SparkSession, pipeline: Pipeline, rows: list[tuple[Any, ...]]) -> Delivered:
    """Rows are (key, value or None for a tombstone)."""
    frame = spark.newSession().createDataFrame(
        [
            (
                key.encode() if isinstance(key, str) else key,
                (value or b""),
                number,
                value is None,
                NOW,
                0,
                "00",
            )
            for number, (key, value) in enumerate(
                ((key, value.encode() if isinstance(value, str) else value) for key, value in rows), 1
            )
        ],
        SCHEMA,
    )
    [table] = pipeline.sinks
    return deliver(frame, pipeline, table, pipeline.chain(table))


def puts(found: Delivered, *columns: str) -> dict[str, Any]:
    names = columns or tuple(name for name in found.upserts.column_names if not name.startswith("_"))
    return {row["_key"]: tuple(row[name] for name in names) for row in found.upserts.to_pylist()}


def gone(found: Delivered) -> dict[str, int]:
    return {row["_key"]: row["_sequence"] for row in found.deletes.to_pylist()}


def test_a_source_is_mirrored_as_it_is_and_what_does_not_decode_is_set_aside(
    spark: SparkSession, tmp_path: Path
) -> None:
    pipeline = a_pipeline(tmp_path, DEAD + a_duckdb("w", "orders"))
    bad = [b"", b"null", b"[]", b"{", b'{"amount": "many"}', b'{"customer": "\xff"}']

    found = delivered(
        spark,
        pipeline,
        [
            ("a", an_order()),
            ("b", None),
            (b"\xff", an_order()),
            *((f"bad{n}", one) for n, one in enumerate(bad)),
        ],
    )

    assert found.upserts.column_names == ["_key", "_sequence", "customer", "amount", "status"]
    assert puts(found, "customer") == {"a": ("ann",)}
    # A key that is no text was never in the sink.
    assert gone(found) == {"b": 2} | {f"bad{n}": 4 + n for n in range(len(bad))}
    assert {one.value for one in found.rejected} == {an_order().encode(), *bad}
    assert {one.failed for one in found.rejected} == {("decodes",)}
    assert found.rows == 9


def test_what_the_transformation_leaves_out_is_deleted_and_what_failed_is_rejected(
    spark: SparkSession, tmp_path: Path
) -> None:
    expect = """
[[expect]]
name = "positive"
on = "orders"
check = "amount > 0"
[[expect]]
name = "short name"
on = "open_orders"
check = "length(who) < 5"
"""
    pipeline = a_pipeline(tmp_path, OPEN + expect + DEAD + a_duckdb("w", "open_orders"))
    long = an_order("elizabeth")

    found = delivered(
        spark,
        pipeline,
        [
            ("kept", an_order()),
            ("cancelled", an_order(status="cancelled")),
            ("negative", an_order(amount=-1)),
            ("unknown", '{"customer": "x", "status": "open"}'),
            ("long", long),
            ("deleted", None),
        ],
    )

    assert puts(found, "who") == {"kept": ("ANN",)}
    assert gone(found) == {"cancelled": 2, "negative": 3, "unknown": 4, "long": 5, "deleted": 6}
    rejected = {one.shown: (one.on, one.failed, one.value) for one in found.rejected}
    assert rejected["long"] == ("open_orders", ("short name",), long.encode())
    assert rejected["negative"][:2] == rejected["unknown"][:2] == ("orders", ("positive",))


def test_rows_of_a_stream_without_keys_have_their_sequence_for_a_key(
    spark: SparkSession, tmp_path: Path
) -> None:
    pipeline = a_pipeline(tmp_path, a_duckdb("w", "orders"))
    found = delivered(spark, pipeline, [(None, an_order("a")), (None, an_order("b"))])
    assert puts(found, "customer") == {"1": ("a",), "2": ("b",)}


def test_a_batch_without_live_rows_still_has_its_columns(spark: SparkSession, tmp_path: Path) -> None:
    pipeline = a_pipeline(tmp_path, OPEN + a_duckdb("w", "open_orders"))
    found = delivered(spark, pipeline, [("a", None)])
    assert found.upserts.column_names == ["_key", "_sequence", "who", "amount"] and gone(found) == {"a": 1}


@pytest.mark.parametrize(
    ("sql", "says"),
    [
        ("SELECT concat(_key, '!') AS _key, _sequence FROM orders", "which is no key of the batch"),
        ("SELECT _key, _sequence, explode(array(1, 2)) AS n FROM orders", "more than one row with _key 'a'"),
        ("SELECT _key, _sequence + 1 AS _sequence FROM orders", "another _sequence for _key 'a'"),
        ("SELECT customer FROM orders", "write SELECT _key, _sequence, customer FROM"),
        (
            "SELECT _key, _sequence, customer, status AS customer FROM orders",
            "column 'customer' is there twice",
        ),
        ("SELECT _key, _sequence, custmer FROM orders", "custmer"),
        ("SELECT _key, , FROM orders", "[[transform]] 'open_orders': "),
        (
            "SELECT _key, _sequence, CAST(customer AS INT) AS n FROM orders",
            "the row with key 'b' at sequence 2 makes the transformation fail",
        ),
    ],
)
def test_a_result_that_a_mirror_cannot_take_is_refused_with_the_reason(
    spark: SparkSession, tmp_path: Path, sql: str, says: str
) -> None:
    step = f'[[transform]]\nname = "open_orders"\nsql = "{sql}"\n'
    pipeline = a_pipeline(tmp_path, step + a_duckdb("w", "open_orders"))
    rows = [("a", an_order("1")), ("b", an_order("bob")), ("c", an_order("carol"))]
    with pytest.raises(TransformationRefused) as caught:
        delivered(spark, pipeline, rows)
    assert says in str(caught.value)


def test_a_python_step_beside_the_file_is_used_and_its_errors_are_named(
    spark: SparkSession, tmp_path: Path
) -> None:
    (tmp_path / "shop_steps.py").write_text(
        "from pyspark.sql import functions as F\n"
        "shout = F.udf(lambda text: text + '!')\n"
        "def loud(orders):\n    return orders.withColumn('customer', shout('customer'))\n"
        "def broken(orders):\n    raise KeyError('x')\n"
    )
    step = '[[transform]]\nname = "loud"\npython = "shop_steps:{}"\nfrom = "orders"\n'
    pipeline = a_pipeline(tmp_path, step.format("loud") + a_duckdb("w", "loud"))
    found = delivered(spark, pipeline, [("a", an_order())])
    assert puts(found, "customer") == {"a": ("ann!",)}
    assert "_timestamp" not in found.upserts.column_names

    for name, says in [("broken", "raised KeyError"), ("absent", "has no function 'absent'")]:
        pipeline = a_pipeline(tmp_path, step.format(name) + a_duckdb("w", "loud"))
        with pytest.raises(TransformationRefused, match=says):
            compile_chain(pipeline, pipeline.sinks[0], spark)


def test_avro_values_become_columns_and_other_bytes_are_rejected(spark: SparkSession, tmp_path: Path) -> None:
    schema = {
        "type": "record",
        "name": "Order",
        "fields": [
            {"name": "customer", "type": ["null", "string"]},
            {
                "name": "amount",
                "type": {"type": "bytes", "logicalType": "decimal", "precision": 10, "scale": 2},
            },
            {"name": "at", "type": {"type": "long", "logicalType": "timestamp-millis"}},
            {"name": "tags", "type": {"type": "array", "items": "string"}},
            {"name": "more", "type": {"type": "map", "values": "int"}},
        ],
    }
    (tmp_path / "order.avsc").write_text(json.dumps(schema))
    out = io.BytesIO()
    row = {"customer": None, "amount": Decimal("1.50"), "at": NOW, "tags": ["x"], "more": {"a": 1}}
    fastavro.schemaless_writer(out, fastavro.parse_schema(schema), row)
    pipeline = a_pipeline(tmp_path, DEAD + a_duckdb("w", "orders"))
    text = pipeline.path.read_text().replace(
        'schema = "customer STRING, amount DECIMAL(10,2), status STRING"',
        'value = "avro"\nschema = "order.avsc"',
    )
    pipeline.path.write_text(text)
    found = delivered(
        spark,
        read_file(pipeline.path),
        [("a", out.getvalue()), ("b", b"\x05"), ("c", out.getvalue() + b"x"), ("d", None)],
    )

    assert puts(found) == {"a": (None, Decimal("1.50"), row["at"], ["x"], [("a", 1)])}
    assert {one.shown for one in found.rejected} == {"b", "c"} and set(gone(found)) == {"b", "c", "d"}


@pytest.mark.timeout(20)
def test_a_key_that_comes_twice_in_a_large_batch_is_named_soon() -> None:
    many = 200_000
    keys = pa.table({"_key": [f"o-{n}" for n in range(many)], "_sequence": range(many)})
    twice = pa.concat_tables([keys, keys.slice(many - 1)])
    with pytest.raises(TransformationRefused, match=f"more than one row with _key 'o-{many - 1}'"):
        _check_keys(twice, keys, "w")
