"""Streams that live in other groups of a cluster are found there: by the source, the sink and all of a pipeline.

The cluster is as small as one can be: main and two more groups of one member each, behind one front.
"""

from __future__ import annotations

import json
import os
import shutil
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING

import pytest
from helpers.etcd import PROGRAM
from helpers.pipelines import a_file, an_order, run_once
from spark.connector.test_writer import Partitions, Query
from system.cluster.cluster import Cluster, fresh

import tidemark.client
from tidemark.client import Client
from tidemark.client import operations as ops
from tidemark_spark import read_partitioned
from tidemark_spark.broker import BrokerFeed
from tidemark_spark.errors import GroupsDiffer
from tidemark_spark.options import read_options
from tidemark_spark.pipeline.check import check
from tidemark_spark.pipeline.reset import reset
from tidemark_spark.pipeline.sinks.stream import MARKS
from tidemark_spark.pipeline.status import facts, held_mark
from tidemark_spark.pipeline.verify import Verdict, verify
from tidemark_spark.queues import QueueFeed, staging_name

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

pytestmark = pytest.mark.timeout(300)


@pytest.fixture(scope="module")
def url(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    if shutil.which(PROGRAM) is None:
        assert not os.environ.get("CI"), "etcd is missing: apt-get install etcd-server"
        pytest.skip("etcd is not installed: apt-get install etcd-server")
    groups = {"main": "standby", "s1": "standby", "s2": "chain"}
    cluster = Cluster(tmp_path_factory.mktemp("groups"), "standby", nodes=1, groups=groups)  # type: ignore[arg-type]
    try:
        yield cluster.start().trial.url
    finally:
        cluster.close()


@pytest.fixture
def db(url: str) -> Iterator[Client]:
    with tidemark.client.connect(url, timeout=20) as client:
        yield client


def in_group(db: Client, group: str, word: str) -> str:
    """A new stream that lives there."""
    name = fresh(word)
    db.stream(name, create=True, arguments={"x-group": group})
    return name


def test_a_feed_finds_its_stream_and_tells_tasks_where_it_is(url: str, db: Client) -> None:
    name = in_group(db, "s1", "orders")
    last = db.stream(name).put("k", b"1")
    feed = BrokerFeed(url, name, retry_s=20, place="the test's cluster")

    turned = feed.turn(pin="p", lease_s=60, release=(), mark=("loader", last.history, last.sequence, None))

    assert turned.pin is not None and turned.pin.sequence == last.sequence and not turned.mark_problem
    assert feed.url == f"{url}?group=s1"
    assert feed.mark("loader") == (last.history, last.sequence) and feed.head().sequence == last.sequence
    assert feed.pins("p") == ["p"] and feed.release("p")


def test_partitions_in_several_groups_are_written_and_read_as_one(
    spark: SparkSession, url: str, db: Client, tmp_path: Path
) -> None:
    """M2: staging streams and transactions are in the group of each partition; a checkpoint has a place in each."""
    name = fresh("parts")
    parts = db.partitioned(name, create=2).partitions
    assert [one.client.group_name for one in parts] == ["s1", "s2"]
    source = in_group(db, "s2", "source")
    db.stream(source).put_many([(f"k{n}", b"%d" % n) for n in range(40)])
    rows = spark.readStream.format("tidemark").option("tidemark.url", url).option("subscribe", source).load()
    writer = rows.writeStream.format("tidemark").option("tidemark.url", url).option("stream", name)
    query = writer.option("checkpointLocation", str(tmp_path / "c")).trigger(availableNow=True).start()
    assert query.awaitTermination(120)

    found = read_partitioned(spark, url=url, stream=name).collect()

    assert sorted(bytes(row.key) for row in found) == sorted(b"k%d" % n for n in range(40))
    assert {(row.partition, row.stream) for row in found} == {(0, f"{name}-0"), (1, f"{name}-1")}
    staged = {one.name: one.group for one in db.streams() if one.name.startswith(f"spark.staging.{name}-")}
    assert sorted(staged.values()) == ["s1", "s2"]


def test_partitions_that_only_main_has_are_made_by_who_writes_to_them(url: str, db: Client) -> None:
    """Whoever made them died before the groups had them."""
    name = fresh("parts")
    db.call(ops.partition(name, 2, None, {"x-max-age": "7D"}))
    query = Partitions(url, name)
    assert [one.group for one in query.writer._options.targets] == ["s1", "s2"]

    query.commit(0, query.task([(f"k{n}", b"%d" % n) for n in range(40)]))

    assert sum(one.live for one in db.partitioned(name).info()) == 40
    for one in db.partitioned(name).info():
        assert one.facts["arguments"]["x-max-age"] == "7D"


def test_partitions_that_only_main_has_are_made_by_who_reads_them(
    spark: SparkSession, url: str, db: Client
) -> None:
    name = fresh("parts")
    db.call(ops.partition(name, 2, None, {}))

    assert read_partitioned(spark, url=url, stream=name).collect() == []


def test_a_stream_that_only_main_has_is_made_by_the_feed_that_reads_it(url: str, db: Client) -> None:
    name = fresh("orders")
    db.call(ops.declare(name, {"x-group": "s2"}))
    feed = BrokerFeed(url, name, retry_s=20, place="the test's cluster")

    assert feed.head().sequence >= 0 and feed.url == f"{url}?group=s2"


def test_a_staging_stream_in_another_group_than_its_target_is_refused_with_both_names(
    url: str, db: Client
) -> None:
    """A policy may have sent it there; a transaction is of one group."""
    name = in_group(db, "main", "target")
    query = Query(url, name)
    db.stream(query.staging, create=True, key="log", max_age="1D", arguments={"x-group": "s2"})

    with pytest.raises(GroupsDiffer, match=f"{name}' lives in group 'main'.*in group 's2'"):
        query.task([("a", b"1")])


def test_a_queue_whose_messages_would_go_to_another_group_is_refused_with_both_names(
    url: str, db: Client
) -> None:
    queue = fresh("jobs")
    options = read_options({"tidemark.url": url, "queue": queue, "groupId": "g"}, "stream")
    db.stream(staging_name(queue, "g"), create=True, key="log", arguments={"x-group": "s1"})

    with pytest.raises(GroupsDiffer, match=f"'{queue}' lives in group 'main'.*in group 's1'"):
        QueueFeed(options).declare()


def test_a_pipeline_reads_one_group_and_delivers_into_another(
    spark: SparkSession, url: str, db: Client, tmp_path: Path
) -> None:
    """Rows and mark are of one transaction in the target's group; where the source lives does not matter."""
    source, target, dead = (
        in_group(db, "s1", "orders"),
        in_group(db, "s2", "copy"),
        in_group(db, "s2", "rejected"),
    )
    pipeline = a_file(
        tmp_path,
        url,
        source,
        f"""
[[expect]]
name = "positive amount"
on = "orders"
check = "amount >= 0"

[dead_letter]
stream = "{dead}"

[[sink]]
name = "copy"
kind = "stream"
from = "orders"
url = "{url}"
stream = "{target}"
""",
    )
    [table] = pipeline.sinks
    orders = db.stream(source)
    orders.put_many([(f"o{n}", an_order(amount=n)) for n in range(-2, 10)])
    orders.delete("o9")

    summary = run_once(pipeline, spark)

    assert not summary.failed, summary
    assert summary.sinks[0].lag_rows == 0 and summary.sinks[0].dead_letters == 2
    copied = {
        row.key: json.loads(row.value)["amount"] for row in db.stream(target).snapshot() if not row.deleted
    }
    assert copied == {b"o%d" % n: n for n in range(9)}
    assert len([row for row in db.stream(dead).snapshot() if not row.deleted]) == 2
    marks = db.stream(f"{MARKS}.s2")
    key = f"{pipeline.name}/copy/{target}"
    assert marks.client.group_name == "s2" and (row := marks.get(key)) is not None
    history = db.stream(target).client.heads([target])[target].history
    assert history == marks.client.heads([marks.name])[marks.name].history
    assert abs(row.sequence - db.stream(target).info().last_sequence) <= 1, "rows and mark are neighbours"

    assert verify(pipeline, table, lambda: spark).verdict is Verdict.EQUAL
    [status] = facts(pipeline, pipeline.sinks)
    assert status["lag_rows"] == 0 and status["error"] is None
    assert all(one.ok for one in check(pipeline, pipeline.sinks, lambda: spark))
    assert orders.marks() and reset(pipeline, table, drop=True)
    assert not orders.marks() and held_mark(pipeline, table) is None
    assert not [row for row in db.stream(target).snapshot() if not row.deleted]
