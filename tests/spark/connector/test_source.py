"""Streams as DataFrames: batch reads through Spark against a real broker (M10, M12)."""

from __future__ import annotations

import random
import time
from datetime import UTC, datetime
from typing import TYPE_CHECKING

import pytest
from pyspark.errors import PySparkException
from pyspark.sql.datasource import EqualTo, Filter, GreaterThanOrEqual
from spark.connector.reading import batch_of

from tidemark_spark.options import read_options
from tidemark_spark.planning import shard_of
from tidemark_spark.source import FilteredReader

if TYPE_CHECKING:
    from conftest import SparkBroker
    from pyspark.sql import DataFrame, SparkSession

    from tidemark.client import Client


def held(frame: DataFrame) -> dict[str, str]:
    """Live rows, by key."""
    rows = frame.where("not deleted").collect()
    assert len({row.key for row in rows}) == len(rows)
    return {row.key.decode(): row.value.decode() for row in rows}


def test_a_stream_is_a_table_with_a_row_for_each_key(
    spark: SparkSession, broker: SparkBroker, db: Client, name: str
) -> None:
    """M10: key, value and the metadata columns come as the broker has them."""
    stream = db.stream(name, create=True, shards=2)
    stream.put_many([(f"k{n}", f"v{n}") for n in range(100)])
    stream.put("k1", "newer")
    stream.delete("k2")

    rows = {row.key.decode(): row for row in batch_of(spark, broker, name).collect()}

    assert len(rows) == 100
    assert bytes(rows["k1"].value) == b"newer"
    assert rows["k2"].deleted and not rows["k1"].deleted
    assert {row.stream for row in rows.values()} == {name}
    assert {row.shard for row in rows.values()} == {0, 1}
    assert {len(row.history) for row in rows.values()} == {32}
    assert rows["k1"].sequence > rows["k3"].sequence
    assert rows["k2"].timestamp >= rows["k1"].timestamp


def test_a_stream_is_a_table_of_sql(spark: SparkSession, broker: SparkBroker, db: Client, name: str) -> None:
    """spark.read SQL: joins and aggregations over a view of a stream."""
    db.stream(name, create=True).put_many([(f"k{n}", str(n)) for n in range(10)])
    spark.sql(
        f"CREATE OR REPLACE TEMPORARY VIEW numbers USING tidemark "
        f"OPTIONS (`tidemark.url` '{broker.url}', subscribe '{name}')"
    )
    [row] = spark.sql(
        "SELECT sum(CAST(CAST(a.value AS STRING) AS INT)) AS total FROM numbers a JOIN numbers b ON a.key = b.key"
    ).collect()
    assert row.total == 45


def test_rows_are_read_once_however_they_are_divided(
    spark: SparkSession, broker: SparkBroker, db: Client, name: str
) -> None:
    """M10: partitions are shards × ranges; `verify` checks them against the broker's marker."""
    stream = db.stream(name, create=True, shards=3)
    expected = {f"k{n}": "v" * (n % 50) for n in range(3000)}
    stream.put_many(list(expected.items()))

    frame = batch_of(spark, broker, name, minPartitions=7, arrowBatchBytes="16k", verify="true")
    assert frame.rdd.getNumPartitions() >= 7
    assert held(frame) == expected
    packed = batch_of(spark, broker, name, maxPartitions=1)
    assert packed.rdd.getNumPartitions() == 1
    assert held(packed) == expected


def test_a_schema_chooses_columns_and_only_those_are_asked_of_the_broker(
    spark: SparkSession, broker: SparkBroker, db: Client, name: str
) -> None:
    """M10: projection."""
    db.stream(name, create=True).put_many([(f"k{n}", "v") for n in range(10)])

    frame = batch_of(spark, broker, name, schema="sequence BIGINT, key BINARY")
    assert frame.columns == ["sequence", "key"]
    assert {row.key.decode() for row in frame.collect()} == {f"k{n}" for n in range(10)}
    only_constants = batch_of(spark, broker, name, schema="stream STRING")
    assert [row.stream for row in only_constants.collect()] == [name] * 10
    with pytest.raises(PySparkException, match="column 'value' is binary, not string; read it so and CAST"):
        batch_of(spark, broker, name, schema="value STRING").collect()


def test_headers_come_when_they_are_asked_for(
    spark: SparkSession, broker: SparkBroker, db: Client, name: str
) -> None:
    stream = db.stream(name, create=True)
    stream.put("a", "1", headers={"trace": "abc", "hops": 3})
    stream.put("b", "1")

    rows = {
        row.key.decode(): row.headers
        for row in batch_of(spark, broker, name, includeHeaders="true").collect()
    }
    assert {(one.key, bytes(one.value)) for one in rows["a"]} == {("trace", b"abc"), ("hops", b"3")}
    assert not rows["b"]


def test_filters_reach_the_broker_when_it_may_know_them(
    spark: SparkSession, broker: SparkBroker, db: Client, name: str
) -> None:
    """M10: key ranges, sequences, shards and deletes are sifted before anything is sent."""
    stream = db.stream(name, create=True, shards=4)
    stream.put_many([(f"k{n:03}", str(n)) for n in range(200)])
    stream.delete("k007")
    middle = stream.get("k100")
    assert middle is not None
    plain = batch_of(spark, broker, name)
    frame = batch_of(spark, broker, name, filterPushdown="true", minPartitions=4)

    for condition in (
        "key = X'6B313030'",
        "key IN (X'6B313030', X'6B303037')",
        "key >= X'6B313530' AND key < X'6B313630'",
        f"sequence > {middle.sequence}",
        f"sequence = {middle.sequence}",
        "shard = 1",
        "deleted = true",
        "NOT deleted AND shard IN (0, 3) AND value > X'30'",
        "sequence < 0",
    ):
        expected = {bytes(row.key) for row in plain.where(condition).collect()}
        assert {bytes(row.key) for row in frame.where(condition).collect()} == expected, condition


def test_rows_that_a_filter_does_not_want_do_not_leave_the_broker(
    broker: SparkBroker, db: Client, name: str
) -> None:
    """M10: what the tasks get is already sifted."""
    stream = db.stream(name, create=True, shards=4)
    stream.put_many([(f"k{n:03}", str(n)) for n in range(200)])
    options = read_options({"tidemark.url": broker.url, "subscribe": name}, "batch")

    def rows(*filters: Filter) -> list[tuple[bytes, int]]:
        reader = FilteredReader(options, ("key", "shard"))
        assert list(reader.pushFilters(list(filters))) == []
        batches = [batch for part in reader.partitions() for batch in reader.read(part)]
        return [(row["key"], row["shard"]) for batch in batches for row in batch.to_pylist()]

    assert rows(EqualTo(("key",), b"k100")) == [(b"k100", shard_of(b"k100", 4))]
    assert {shard for _, shard in rows(EqualTo(("shard",), 2))} == {2}
    assert {key for key, _ in rows(GreaterThanOrEqual(("key",), b"k197"))} == {b"k197", b"k198", b"k199"}
    assert rows(EqualTo(("deleted",), True)) == []


def test_places_bound_what_is_read(spark: SparkSession, broker: SparkBroker, db: Client, name: str) -> None:
    """startingOffsets, endingOffsets, startingTimestamp as in spark-sql-kafka."""
    stream = db.stream(name, create=True)
    stream.put("a", "1")
    b = stream.put("b", "1").sequence
    row = stream.get("b")
    assert row is not None
    time.sleep(0.01)
    stream.put("c", "1")
    c = stream.get("c")
    assert c is not None

    def keys(**options: str) -> set[str]:
        return set(held(batch_of(spark, broker, name, **options)))

    assert keys(startingOffsets=f'{{"0": {b}}}') == {"c"}
    assert keys(endingOffsets=f'{{"0": {b}}}') == {"a", "b"}
    assert keys(startingOffsets="latest") == set()
    assert keys(startingTimestamp=str(c.timestamp_ms)) == {"c"}
    stream.move_mark("reader", b)
    assert keys(startingOffsets="group", groupId="reader") == {"c"}


# The past --------------------------------------------------------------------------------------------


def test_as_of_reads_the_stream_as_it_was(
    spark: SparkSession, broker: SparkBroker, db: Client, name: str
) -> None:
    """M12: by sequence and by time."""
    stream = db.stream(name, create=True, history=3600)
    stream.put("a", "old")
    old = stream.put("b", "old")
    time.sleep(0.05)
    then = datetime.now(UTC)
    time.sleep(0.05)
    stream.put("a", "new")
    stream.delete("b")

    assert held(batch_of(spark, broker, name, asOf=old.sequence)) == {"a": "old", "b": "old"}
    assert held(batch_of(spark, broker, name, asOf=then.isoformat())) == {"a": "old", "b": "old"}
    assert held(batch_of(spark, broker, name)) == {"a": "new"}


def test_a_past_that_is_not_kept_is_refused_with_what_is(
    spark: SparkSession, broker: SparkBroker, db: Client, name: str
) -> None:
    stream = db.stream(name, create=True)
    old = stream.put("a", "1")
    stream.put("a", "2")

    with pytest.raises(PySparkException, match="can no longer show how it was at sequence"):
        batch_of(spark, broker, name, asOf=old.sequence).collect()
    with pytest.raises(PySparkException, match="is ahead of stream"):
        batch_of(spark, broker, name, asOf=10**12).collect()


def test_a_difference_applied_to_the_older_snapshot_gives_the_newer_one(
    spark: SparkSession, broker: SparkBroker, db: Client, name: str
) -> None:
    """M12: diff(a, b) applied to a == b, for a random history."""
    dice = random.Random(7)
    stream = db.stream(name, create=True, history=3600, shards=2)
    states, state = {}, {}
    for _ in range(40):
        key = f"k{dice.randrange(12)}"
        if dice.random() < 0.3:
            at = stream.delete(key).sequence
            state.pop(key, None)
        else:
            state[key] = str(dice.random())
            at = stream.put(key, state[key]).sequence
        states[at] = dict(state)

    for _ in range(3):
        a, b = sorted(dice.sample(sorted(states), 2))
        result = dict(states[a])
        for row in batch_of(spark, broker, name, diff=f"{a},{b}").collect():
            result.pop(row.key.decode(), None)
            if not row.deleted:
                result[row.key.decode()] = row.value.decode()
        assert result == states[b]


# Errors ----------------------------------------------------------------------------------------------


def test_a_misspelt_option_is_told_when_the_frame_is_made(
    spark: SparkSession, broker: SparkBroker, name: str
) -> None:
    with pytest.raises(PySparkException, match="did you mean failOnDataLoss"):
        batch_of(spark, broker, name, failOnDataLost="true")


def test_a_stream_that_is_not_there_is_named_with_how_to_make_it(
    spark: SparkSession, broker: SparkBroker, name: str
) -> None:
    with pytest.raises(PySparkException, match=f"there is no stream '{name}'.*tidemark stream create {name}"):
        batch_of(spark, broker, name).collect()


def test_a_broker_that_is_away_is_tried_for_as_long_as_the_option_says(
    spark: SparkSession, name: str
) -> None:
    reader = spark.read.format("tidemark").option("tidemark.url", "tidemark://127.0.0.1:1/")
    frame = reader.option("subscribe", name).option("retryTimeout", "300ms").load()
    with pytest.raises(PySparkException, match=r"no broker answered for .* s"):
        frame.collect()
