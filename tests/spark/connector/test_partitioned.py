"""Partitioned streams through Spark: one DataFrame over all partitions, exactly once over stops and failures (M1, M2)."""

from __future__ import annotations

import json
from pathlib import Path
from typing import TYPE_CHECKING

import pytest
from spark.connector.reading import Sink, batch_of, run, stream_of

from tidemark.model.partitions import partition_of
from tidemark_spark import read_partitioned
from tidemark_spark.errors import OptionError

if TYPE_CHECKING:
    from pyspark.sql import SparkSession
    from spark.conftest import SparkBroker

    from tidemark.client import Client


def test_a_query_over_all_partitions_has_every_row_once_over_failures_and_restarts(
    spark: SparkSession, broker: SparkBroker, db: Client, name: str, checkpoint: Path
) -> None:
    """M1, M6: a place in each partition is in the checkpoint; a batch that failed has the same rows again."""
    orders = db.partitioned(name, create=2)
    orders.put_many([(f"k{n}", b"1") for n in range(40)])
    sink = Sink()

    def go() -> None:
        frame = read_partitioned(
            spark, url=broker.url, stream=name, streaming=True, groupId="loader", maxOffsetsPerTrigger=10
        )
        run(frame, checkpoint, sink)

    sink.fail_in = 1
    with pytest.raises(Exception, match="as the test wants it"):
        go()
    orders.put_many([(f"k{n}", b"2") for n in range(0, 40, 2)])  # what the failed batch has is buried
    orders.delete("k1")
    sink.fail_in = None
    go()
    orders.put("k40", b"3")
    go()

    expected = {f"k{n}".encode(): b"2" if n % 2 == 0 else b"1" for n in range(40)} | {b"k40": b"3"}
    del expected[b"k1"]
    assert sink.state == expected
    assert all(len(found) == 1 for found in sink.hashes.values()), "a batch was read again with other rows"
    for key, versions in sink.versions.items():
        assert versions == sorted(set(versions)), f"{key!r} came twice or went back"
    lines = (
        max((checkpoint / "offsets").glob("[0-9]*"), key=lambda one: int(one.name)).read_text().splitlines()
    )
    assert [json.loads(one)["stream"] for one in lines[-2:]] == [f"{name}-0", f"{name}-1"]
    assert [len(one.marks()) for one in orders.partitions] == [1, 1]


def test_a_snapshot_of_all_partitions_has_the_usual_columns_and_the_partition(
    spark: SparkSession, broker: SparkBroker, db: Client, name: str
) -> None:
    db.partitioned(name, create=2).put_many([(f"k{n}", b"%d" % n) for n in range(20)])
    usual = batch_of(spark, broker, f"{name}-0").columns

    everything = read_partitioned(spark, url=broker.url, stream=name)
    keys = read_partitioned(spark, url=broker.url, stream=name, schema="key BINARY", partition_column=None)

    assert everything.columns == [*usual, "partition"]
    assert {bytes(row.key): row.partition for row in everything.collect()} == {
        b"k%d" % n: partition_of(b"k%d" % n, 2) for n in range(20)
    }
    assert keys.columns == ["key"] and keys.count() == 20


def test_the_name_of_a_partitioned_stream_alone_is_refused_with_the_helper_that_reads_it(
    spark: SparkSession, broker: SparkBroker, db: Client, name: str, checkpoint: Path
) -> None:
    db.partitioned(name, create=2)

    with pytest.raises(Exception, match=r"is a partitioned stream.*read_partitioned"):
        batch_of(spark, broker, name).count()
    with pytest.raises(Exception, match=r"is a partitioned stream.*read_partitioned"):
        run(stream_of(spark, broker, name), checkpoint, Sink())
    with pytest.raises(OptionError, match=r"no partitioned stream.*option subscribe"):
        read_partitioned(spark, url=broker.url, stream=f"{name}-0")


def test_a_data_frame_and_a_query_are_written_over_the_partitions(
    spark: SparkSession, broker: SparkBroker, db: Client, name: str, checkpoint: Path
) -> None:
    """M2: where Spark's own crc32 says, and what was read from one can be written to another as it is."""
    db.partitioned(name, create=2)
    db.partitioned(f"{name}.copy", create=3)
    frame = spark.range(0, 500, numPartitions=2).selectExpr(
        "CONCAT('k', id) AS key", "CAST(id AS STRING) AS value"
    )
    target = {"tidemark.url": broker.url}

    frame.write.format("tidemark").mode("append").options(**target, stream=name).save()
    read = read_partitioned(spark, url=broker.url, stream=name, streaming=True)
    query = read.writeStream.format("tidemark").options(**target, stream=f"{name}.copy")
    running = query.option("checkpointLocation", str(checkpoint)).trigger(availableNow=True).start()
    assert running.awaitTermination(100)

    wrong = read_partitioned(spark, url=broker.url, stream=name).where("pmod(crc32(key), 2) <> partition")
    assert wrong.count() == 0
    for stream in (name, f"{name}.copy"):
        with db.partitioned(stream).snapshot() as snapshot:
            assert {row.key: row.value for row in snapshot} == {b"k%d" % n: b"%d" % n for n in range(500)}
