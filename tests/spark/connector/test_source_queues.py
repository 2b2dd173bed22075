"""AMQP queues as streaming sources: in the queue, in the batch, or processed; never in two of them."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pika
import pytest
from pyspark.errors import StreamingQueryException
from spark.connector.reading import Sink, run

from tidemark_spark.queues import staging_name

if TYPE_CHECKING:
    from conftest import SparkBroker
    from pyspark.sql import DataFrame, SparkSession

    from tidemark.client import Client


@pytest.fixture
def channel(broker: SparkBroker, db: Client) -> Iterator[Any]:
    connection = pika.BlockingConnection(pika.URLParameters(broker.address.url()))
    yield connection.channel()
    connection.close()


def frame_of(spark: SparkSession, broker: SparkBroker, queue: str, **options: Any) -> DataFrame:
    reader = spark.readStream.format("tidemark").option("tidemark.url", broker.url).option("queue", queue)
    return reader.option("groupId", "loader").options(**options).load()


def ready(channel: Any, queue: str) -> int:
    return int(channel.queue_declare(queue, passive=True).method.message_count)


def test_messages_leave_the_queue_when_they_are_read_and_come_again_until_they_are_processed(
    spark: SparkSession, broker: SparkBroker, db: Client, channel: Any, name: str, checkpoint: Path
) -> None:
    """A batch of a queue that runs again has the same messages; processed ones are gone from everywhere."""
    channel.queue_declare(name, durable=True)
    for number in range(30):
        channel.basic_publish("", name, f"m{number}".encode())
    sink = Sink()
    sink.fail_in = 0
    frame = frame_of(spark, broker, name)
    with pytest.raises(StreamingQueryException, match="as the test wants it"):
        run(frame, checkpoint, sink)
    assert ready(channel, name) == 0
    channel.basic_publish("", name, b"late")
    sink.fail_in = None
    run(frame, checkpoint, sink)

    assert len(sink.hashes[0]) == 1 and sink.sizes == {0: 30, 1: 1}
    assert ready(channel, name) == 0
    staging = db.stream(staging_name(name, "loader")).info()
    assert staging.live == 0


def test_a_row_of_a_queue_has_its_name_routing_key_body_and_headers(
    spark: SparkSession, broker: SparkBroker, channel: Any, name: str, checkpoint: Path
) -> None:
    channel.queue_declare(name, durable=True)
    channel.basic_publish("", name, b"body", pika.BasicProperties(headers={"trace": "abc"}, delivery_mode=2))
    rows: list[Any] = []
    query = (
        frame_of(spark, broker, name, includeHeaders="true")
        .writeStream.foreachBatch(lambda frame, _: rows.extend(frame.collect()))
        .option("checkpointLocation", str(checkpoint))
        .trigger(availableNow=True)
        .start()
    )
    query.awaitTermination(60)

    [row] = rows
    assert (row.stream, bytes(row.key), bytes(row.value)) == (name, name.encode(), b"body")
    assert ("trace", b"abc") in {(one.key, bytes(one.value)) for one in row.headers}


def test_a_queue_that_is_not_there_is_named(
    spark: SparkSession, broker: SparkBroker, name: str, checkpoint: Path
) -> None:
    with pytest.raises(StreamingQueryException, match=f"there is no stream '{name}'.*nor a queue"):
        run(frame_of(spark, broker, name), checkpoint, Sink())
