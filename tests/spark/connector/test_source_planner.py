"""Whole queries against a real broker, without Spark: the planner in Spark's order, and its tasks read (M1, M6).

What a broker says of rows that ended, deletes that were forgotten and pins that are gone cannot be left to a model.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from typing import TYPE_CHECKING, Any

import pika
import pytest

import tidemark.client
from tidemark_spark import queues
from tidemark_spark.broker import forget_clients, read
from tidemark_spark.errors import DataLost, OptionError
from tidemark_spark.options import read_options
from tidemark_spark.planning import Narrowing
from tidemark_spark.queues import staging_name
from tidemark_spark.source import planned
from tidemark_spark.streaming import planner_of

if TYPE_CHECKING:
    from conftest import SparkBroker

    from tidemark.client import Client
    from tidemark_spark.micro_batches import MicroBatches
    from tidemark_spark.offsets import Offset

Row = tuple[bytes | None, bytes | None]


@pytest.fixture(autouse=True)
def _own_connections() -> Iterator[None]:
    yield
    forget_clients()


class Query:
    """A streaming query: its checkpoint is one offset, the end of the last complete batch."""

    def __init__(self, url: str, **options: str) -> None:
        self._options = {"tidemark.url": url, "groupId": "g", "pollTimeout": "50ms", **options}
        self.end: Offset | None = None
        self.restart()

    def restart(self, **options: str) -> None:
        self._options |= options
        self.planner: MicroBatches = planner_of(read_options(self._options, "stream"))

    def batch(self, rows: int | None = None) -> list[Row]:
        start = self.planner.initial() if self.end is None else self.end
        end = self.planner.latest(start, rows)
        found = [
            (row["key"], row["value"])
            for task in self.planner.tasks(start, end, ("key", "value"))
            for part in read(task)
            for row in part.to_pylist()
        ]
        self.end = end
        return found


def test_events_that_retention_or_truncate_ended_unread_stop_a_live_and_a_restarted_query(
    broker: SparkBroker, db: Client, name: str
) -> None:
    events = db.stream(name, create=True, key="none")
    events.put(None, "first")
    query = Query(broker.url, subscribe=name)
    assert query.batch() == [(None, b"first")]
    assert query.batch() == []
    events.truncate(max(events.put(None, f"lost {number}").sequence for number in range(5)))
    events.put(None, "last")

    with pytest.raises(DataLost, match=r"rows up to sequence \d+ have ended"):
        query.batch()
    query.restart()
    with pytest.raises(DataLost, match=r"rows up to sequence \d+ have ended"):
        query.batch()
    assert events.pins() == []
    query.restart(failOnDataLoss="false")
    assert query.batch() == [(None, b"last")]


def test_a_new_query_begins_with_what_is_left_and_what_it_has_read_may_end(
    broker: SparkBroker, db: Client, name: str
) -> None:
    events = db.stream(name, create=True, key="log")
    events.truncate(events.put(None, "before").sequence)
    events.put(None, "there")
    query = Query(broker.url, subscribe=name)
    assert query.batch() == [(None, b"there")]
    events.purge()
    assert query.batch() == []
    events.put(None, "new")
    assert query.batch() == [(None, b"new")]
    assert Query(broker.url, subscribe=name, groupId="h", startingTimestamp="0").batch() == [(None, b"new")]


def test_a_purge_while_a_query_runs_is_told(broker: SparkBroker, db: Client, name: str) -> None:
    stream = db.stream(name, create=True)
    stream.put("a", "1")
    query = Query(broker.url, subscribe=name)
    query.batch()
    query.batch()
    stream.purge()
    stream.put("c", "1")

    with pytest.raises(DataLost, match="are no longer kept"):
        query.batch()


def test_a_registration_is_renewed_before_a_short_tombstone_lease_ends(
    broker: SparkBroker, db: Client, name: str
) -> None:
    """And when it was not, the missing delete is told."""
    stream = db.stream(name, create=True, tombstone_lease=1)
    stream.put_many([("a", "1"), ("b", "1")])
    query = Query(broker.url, subscribe=name)
    query.batch()
    assert query.planner.renew_every_s == 0.25
    mark = stream.mark("g")
    time.sleep(0.3)
    query.planner.renew()
    renewed = stream.mark("g")
    assert mark is not None and renewed is not None
    assert (renewed.lease_until_ms or 0) > (mark.lease_until_ms or 0)

    stream.delete("a")
    stream.put("c", "1")
    end = time.monotonic() + 20
    while stream.info().tombstones:
        assert time.monotonic() < end
        time.sleep(0.1)
    stream.put("d", "1")  # confirmed, so the record of the purge before it is shown, too
    with pytest.raises(DataLost, match="are no longer kept"):
        query.batch()


@pytest.mark.parametrize("loses", ["true", "false"])
def test_a_pin_that_is_gone_in_the_middle_of_a_snapshot_is_replaced(
    broker: SparkBroker, db: Client, name: str, loses: str
) -> None:
    """A broker does not know a pin that was released: that is not a stream that was deleted."""
    stream = db.stream(name, create=True)
    stream.put_many([(f"k{number}", "1") for number in range(10)])
    query = Query(broker.url, subscribe=name, failOnDataLoss=loses)
    found = query.batch(rows=3)
    assert query.end is not None and query.end.pin is not None
    stream.pinned(query.end.pin.name).release()

    while rows := query.batch(rows=3):
        found += rows
    assert sorted(key for key, _ in found) == sorted(f"k{number}".encode() for number in range(10))
    query.batch()
    assert stream.pins() == []


def test_queries_of_other_groups_and_of_the_same_keep_their_pins(
    broker: SparkBroker, db: Client, name: str
) -> None:
    stream = db.stream(name, create=True)
    stream.put("a", "1")
    pins = set()
    for group in ("orders.warehouse", "orders.warehouse", "orders"):
        query = Query(broker.url, subscribe=name, groupId=group)
        assert query.batch() == [(b"a", b"1")]
        assert query.end is not None and query.end.pin is not None
        pins.add(query.end.pin.name)
        assert {pin.name for pin in stream.pins()} == pins


@pytest.mark.parametrize("rows_before", [0, 2])
def test_latest_is_kept_with_the_group_until_a_batch_is_complete(
    broker: SparkBroker, db: Client, name: str, rows_before: int
) -> None:
    stream = db.stream(name, create=True)
    for number in range(rows_before):
        stream.put(f"old {number}", "1")
    assert Query(broker.url, subscribe=name, startingOffsets="latest").batch() == []
    stream.put("while it was down", "1")
    query = Query(broker.url, subscribe=name, startingOffsets="latest")
    assert query.batch() == [(b"while it was down", b"1")]
    assert query.batch() == []

    assert [mark.consumer for mark in stream.marks()] == ["g"]
    assert Query(broker.url, subscribe=name, startingOffsets="latest").batch() == []


# Batch reads -----------------------------------------------------------------------------------------


def plan_of(broker: SparkBroker, stream: str, **options: str) -> list[Any]:
    from tidemark_spark.broker import BrokerFeed

    read_of = read_options({"tidemark.url": broker.url, "subscribe": stream, **options}, "batch")
    feed = BrokerFeed(broker.url, stream, retry_s=20, place="the test's broker")
    return planned(feed, read_of, Narrowing(), ("key", "value"))


def test_a_batch_read_that_cannot_be_planned_leaves_no_pin(
    broker: SparkBroker, db: Client, name: str
) -> None:
    stream = db.stream(name, create=True)
    stream.put("a", "1")
    with pytest.raises(OptionError, match="names shard 7"):
        plan_of(broker, name, endingOffsets='{"7": 1}')
    with pytest.raises(DataLost, match="was taken back"):
        plan_of(broker, name, startingOffsets='{"0": 1000000000000}')
    assert stream.pins() == []


def test_a_batch_read_is_told_of_rows_that_have_ended(broker: SparkBroker, db: Client, name: str) -> None:
    stream = db.stream(name, create=True)
    first = stream.put("a", "1").sequence
    time.sleep(0.01)
    second = stream.put("b", "1").sequence
    row = stream.get("b")
    assert row is not None
    stream.put("c", "1")
    stream.truncate(second)
    with pytest.raises(DataLost, match=f"Read from sequence {second} on"):
        plan_of(broker, name, startingOffsets=f'{{"0": {first}}}')
    assert stream.pins() == []
    for options in (
        {},
        {"startingOffsets": f'{{"0": {second}}}'},
        {"startingTimestamp": str(row.timestamp_ms)},
        {"startingOffsets": f'{{"0": {first}}}', "failOnDataLoss": "false"},
    ):
        [task] = plan_of(broker, name, **options)
        assert [row["key"] for part in read(task) for row in part.to_pylist()] == [b"c"]


def test_a_plan_that_runs_again_after_its_lease_says_so_and_one_that_runs_late_renews_it(
    broker: SparkBroker, db: Client, name: str
) -> None:
    stream = db.stream(name, create=True)
    stream.put("a", "1")
    [task] = plan_of(broker, name)
    assert task.pin.startswith("spark-read.") and task.lease_s == 3600
    stream.pinned(task.pin).renew(lease=60)
    before = stream.pins()[0].lease_until_ms
    assert len(list(read(task))) == 1
    assert stream.pins()[0].lease_until_ms == before  # it was planned just now

    from dataclasses import replace

    assert len(list(read(replace(task, planned_at=time.time() - 2000)))) == 1
    assert stream.pins()[0].lease_until_ms > before + 3_000_000
    stream.pinned(task.pin).release()
    with pytest.raises(DataLost, match=r"for 3600 s \(pinLease\).*run again later.*with load\(\)"):
        list(read(task))


# Queues ----------------------------------------------------------------------------------------------


@pytest.fixture
def publish(broker: SparkBroker, db: Client, name: str) -> Iterator[Callable[..., None]]:
    """Publishes bodies to the queue that is called as the test's stream would be."""
    connection = pika.BlockingConnection(pika.URLParameters(broker.address.url()))
    channel = connection.channel()
    channel.queue_declare(name, durable=True)

    def put(*bodies: bytes) -> None:
        for body in bodies:
            channel.basic_publish("", name, body, pika.BasicProperties(delivery_mode=2))
        channel.queue_declare(name, passive=True)  # all are there when this is answered

    yield put
    connection.close()


def test_messages_that_were_taken_by_a_driver_that_died_are_read_by_the_next(
    broker: SparkBroker, db: Client, name: str, publish: Callable[..., None]
) -> None:
    """Also when it had written nothing down; and a lost checkpoint does not bring back what was processed."""
    publish(*[b"m%d" % number for number in range(5)])
    assert len(Query(broker.url, queue=name).batch()) == 5
    publish(b"m5")
    query = Query(broker.url, queue=name)
    assert [value for _, value in query.batch()] == [b"m%d" % number for number in range(6)]
    assert query.batch() == []

    publish(b"m6")
    assert [value for _, value in Query(broker.url, queue=name).batch()] == [b"m6"]


def test_available_now_empties_a_queue_whose_messages_do_not_fit_into_one_transaction(
    start_spark_broker: Callable[..., SparkBroker], name: str
) -> None:
    broker = start_spark_broker("--set", "broker.batch_bytes_max=4194304")
    connection = pika.BlockingConnection(pika.URLParameters(broker.address.url()))
    channel = connection.channel()
    channel.queue_declare(name, durable=True)
    for _ in range(60):
        channel.basic_publish("", name, b"x" * 200_000, pika.BasicProperties(delivery_mode=2))
    channel.queue_declare(name, passive=True)
    query = Query(broker.url, queue=name)
    query.planner.end_with_what_is_there()
    found = 0
    while rows := query.batch(rows=25):
        found += len(rows)
        channel.basic_publish("", name, b"later", pika.BasicProperties(delivery_mode=2))
    channel.queue_declare(name, passive=True)

    assert found == 60
    with tidemark.client.connect(broker.url) as db:
        assert db.stream(staging_name(name, "g")).info().live == 0
    assert channel.queue_declare(name, passive=True).method.message_count == 3
    connection.close()


def test_available_now_empties_a_queue_that_is_more_than_is_moved_at_once(
    broker: SparkBroker, name: str, publish: Callable[..., None], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(queues, "TAKEN_BATCH_MAX", 20)
    publish(*[b"m%d" % number for number in range(50)])
    query = Query(broker.url, queue=name)
    query.planner.end_with_what_is_there()

    assert [len(query.batch()) for _ in range(4)] == [20, 20, 10, 0]
    publish(b"later")
    assert query.batch() == []
