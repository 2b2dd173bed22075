"""DataFrames into streams, through Spark: batch writes, micro-batches, failures and replays (M2)."""

from __future__ import annotations

import hashlib
import json
import os
import shutil
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession
    from pyspark.sql.streaming import StreamingQuery
    from spark.conftest import SparkBroker

    from tidemark.client import Client


def save(frame: DataFrame, broker: SparkBroker, stream: str, **options: Any) -> None:
    writer = frame.write.format("tidemark").mode("append").option("tidemark.url", broker.url)
    writer.option("stream", stream).option("createStream", "true").options(**options).save()


def start(
    frame: DataFrame, broker: SparkBroker, stream: str, checkpoint: Path, **options: Any
) -> StreamingQuery:
    writer = frame.writeStream.format("tidemark").option("tidemark.url", broker.url).option("stream", stream)
    writer = (
        writer.option("createStream", "true").option("checkpointLocation", str(checkpoint)).options(**options)
    )
    return writer.trigger(availableNow=True).start()


def held(db: Client, stream: str) -> dict[str, str]:
    return {
        (row.key or b"").decode(): row.value.decode()
        for row in db.stream(stream).snapshot()
        if not row.deleted
    }


def content_hash(db: Client, stream: str, deletes: bool = True) -> str:
    """Of all rows with their headers, whatever their sequences; without `deletes`, of what is there."""
    rows = [row for row in db.stream(stream).snapshot() if deletes or not row.deleted]
    found = sorted((row.key or b"", row.value, row.deleted, sorted(row.headers.items())) for row in rows)
    return hashlib.sha256(repr(found).encode()).hexdigest()


def test_a_data_frame_is_written_with_its_deletes_and_headers(
    spark: SparkSession, broker: SparkBroker, db: Client, name: str
) -> None:
    """M2: upserts and deletes by key."""
    db.stream(name, create=True).put_many([("old", b"1"), ("gone", b"1"), ("kept", b"1")])
    frame = spark.createDataFrame(
        [("old", "2", False, {"trace": "t1"}), ("gone", None, True, None), ("new", "3", None, None)],
        "key STRING, value STRING, deleted BOOLEAN, headers MAP<STRING, STRING>",
    )

    save(frame.repartition(2), broker, name)

    assert held(db, name) == {"old": "2", "kept": "1", "new": "3"}
    row = db.stream(name).get("old")
    assert row is not None and row.headers == {"trace": "t1"}
    assert [stream.name for stream in db.streams() if stream.name.startswith(f"spark.staging.{name}")] == []


def test_when_one_task_fails_nothing_of_the_write_is_visible(
    spark: SparkSession, broker: SparkBroker, db: Client, name: str
) -> None:
    """M2: three partitions are staged, the fourth fails in all its attempts."""
    frame = spark.range(0, 4000, numPartitions=4).selectExpr(
        "CAST(id AS STRING) AS key",
        "IF(id = 3999, raise_error('this row is bad'), CAST(id AS STRING)) AS value",
    )

    with pytest.raises(Exception, match="this row is bad"):
        save(frame, broker, name)

    assert held(db, name) == {}
    assert [stream.name for stream in db.streams() if stream.name.startswith(f"spark.staging.{name}")] == []


def test_columns_that_do_not_fit_are_refused_before_any_task_runs(
    spark: SparkSession, broker: SparkBroker, name: str
) -> None:
    with pytest.raises(Exception, match=r"column 'id' is not one of a stream.*to_json\(struct"):
        save(spark.range(3).selectExpr("id", "CAST(id AS STRING) AS value"), broker, name)


def test_what_is_read_from_a_stream_and_written_to_another_is_the_same_by_hash(
    spark: SparkSession, broker: SparkBroker, db: Client, name: str
) -> None:
    """M2: keys, values, headers and deletes survive the way stream → Spark → stream."""
    source = db.stream(name, create=True, shards=3)
    source.put_many([(f"k{at}", f"value {at}", {"n": f"{at}"}) for at in range(5000)])
    source.put_many([(bytes([0, 255, at]), bytes(range(at))) for at in range(200)])
    source.put_many([(f"k{at}", None) for at in range(0, 5000, 7)])
    reader = spark.read.format("tidemark").option("tidemark.url", broker.url).option("subscribe", name)
    frame = reader.option("includeHeaders", "true").option("minPartitions", "4").load()

    save(frame, broker, f"{name}.copy")

    assert content_hash(db, f"{name}.copy") == content_hash(db, name)


def lines(folder: Path, batch: int, rows: dict[str, str]) -> None:
    """A file of the directory that a stream is read from, put there in one step."""
    folder.mkdir(exist_ok=True)
    text = "\n".join(json.dumps({"key": key, "value": value}) for key, value in rows.items())
    part = folder / f".{batch}"
    part.write_text(text)
    os.utime(part, (1_700_000_000 + batch,) * 2)  # Spark reads them by age
    part.rename(folder / f"{batch}.json")


def files(spark: SparkSession, folder: Path) -> DataFrame:
    return (
        spark.readStream.schema("key STRING, value STRING").option("maxFilesPerTrigger", 1).json(str(folder))
    )


def test_a_query_with_a_name_writes(
    spark: SparkSession, broker: SparkBroker, db: Client, name: str, checkpoint: Path, tmp_path: Path
) -> None:
    """Spark hands the name of the query to the sink as an option."""
    lines(tmp_path / "in", 0, {"a": "0"})
    writer = files(spark, tmp_path / "in").writeStream.format("tidemark").queryName(f"named {name}")
    writer = writer.option("tidemark.url", broker.url).option("stream", name).option("createStream", "true")
    query = writer.option("checkpointLocation", str(checkpoint)).trigger(availableNow=True).start()
    assert query.awaitTermination(120) and query.name == f"named {name}"

    assert held(db, name) == {"a": "0"}


def test_a_micro_batch_that_is_replayed_is_a_no_op(
    spark: SparkSession, broker: SparkBroker, db: Client, name: str, checkpoint: Path, tmp_path: Path
) -> None:
    """M2: the driver died between the sink's commit and Spark's: its checkpoint does not know of the last batch."""
    lines(tmp_path / "in", 0, {"a": "0", "b": "0"})
    lines(tmp_path / "in", 1, {"a": "1"})
    start(files(spark, tmp_path / "in"), broker, name, checkpoint).awaitTermination()
    assert held(db, name) == {"a": "1", "b": "0"}
    db.stream(name).put("a", "changed by another")
    before = db.stream(name).info().last_sequence

    for commit in (checkpoint / "commits").glob("*1*"):
        commit.unlink()
    query = start(files(spark, tmp_path / "in"), broker, name, checkpoint)
    query.awaitTermination()

    assert [progress["batchId"] for progress in query.recentProgress if progress["numInputRows"]] == [1]
    assert held(db, name) == {"a": "changed by another", "b": "0"}
    assert db.stream(name).info().last_sequence == before
    lines(tmp_path / "in", 2, {"c": "2"})
    start(files(spark, tmp_path / "in"), broker, name, checkpoint).awaitTermination()
    assert held(db, name) == {"a": "changed by another", "b": "0", "c": "2"}


def test_a_query_whose_checkpoint_was_set_back_is_fenced(
    spark: SparkSession, broker: SparkBroker, db: Client, name: str, checkpoint: Path, tmp_path: Path
) -> None:
    """M2: it must not write other rows under the numbers of batches that are there."""
    lines(tmp_path / "in", 0, {"a": "0"})
    lines(tmp_path / "in", 1, {"a": "1"})
    old = tmp_path / "old checkpoint"
    start(files(spark, tmp_path / "in"), broker, name, checkpoint).awaitTermination()
    shutil.copytree(checkpoint, old)
    lines(tmp_path / "in", 2, {"a": "2"})
    lines(tmp_path / "in", 3, {"a": "3"})
    start(files(spark, tmp_path / "in"), broker, name, checkpoint).awaitTermination()

    query = start(files(spark, tmp_path / "in"), broker, name, old)
    with pytest.raises(Exception, match="another driver runs the same query, or its checkpoint was set back"):
        query.awaitTermination()

    assert held(db, name) == {"a": "3"}


def test_a_stream_is_mirrored_into_another_with_all_changes(
    spark: SparkSession, broker: SparkBroker, db: Client, name: str, checkpoint: Path
) -> None:
    """M2: streaming source and streaming sink, several batches, churning keys; equal by hash at the end."""
    source = db.stream(name, create=True, shards=2)
    for round_ in range(3):
        source.put_many([(f"k{at}", f"{round_}-{at}") for at in range(round_ * 300, round_ * 300 + 1000)])
        source.put_many([(f"k{at}", None) for at in range(round_ * 300, round_ * 300 + 100)])
        reader = (
            spark.readStream.format("tidemark").option("tidemark.url", broker.url).option("subscribe", name)
        )
        frame = reader.option("maxOffsetsPerTrigger", "400").load()
        start(frame, broker, f"{name}.copy", checkpoint).awaitTermination()
        # A tombstone of the source ends when this query has passed it.
        assert content_hash(db, f"{name}.copy", deletes=False) == content_hash(db, name, deletes=False)
    assert db.stream(f"{name}.copy").info().live == db.stream(name).info().live == 1300
