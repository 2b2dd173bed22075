"""Whole pipelines: a real broker, real Spark, DuckDB files; delivered once, whatever happens in between."""

from __future__ import annotations

import json
import shutil
from decimal import Decimal
from pathlib import Path
from typing import TYPE_CHECKING

import duckdb
import pytest
from helpers.amqp import eventually
from helpers.pipelines import Running, a_duckdb, a_file, an_order, rows_of, run_once

from tidemark.client import Client
from tidemark_spark.errors import PipelineRuns
from tidemark_spark.pipeline.check import check
from tidemark_spark.pipeline.reset import reset
from tidemark_spark.pipeline.status import facts, held_mark, read_status
from tidemark_spark.pipeline.tracking import State
from tidemark_spark.pipeline.verify import Verdict, verify, worst

if TYPE_CHECKING:
    from conftest import SparkBroker
    from pyspark.sql import SparkSession

# The first query of a session takes long when the machine is busy.
pytestmark = pytest.mark.timeout(300)

OPEN = """
[[transform]]
name = "open_orders"
sql = "SELECT _key, _sequence, customer, amount FROM orders WHERE status <> 'cancelled'"

[[expect]]
name = "positive amount"
on = "orders"
check = "amount >= 0"

[dead_letter]
stream = "{stream}.rejected"
"""


def test_a_partitioned_stream_is_found_by_the_check_with_what_to_do_instead(
    broker: SparkBroker, db: Client, name: str, tmp_path: Path
) -> None:
    db.partitioned(name, create=2)
    db.partitioned(f"{name}.rejected", create=2)
    pipeline = a_file(tmp_path, broker.url, name, OPEN.format(stream=name) + a_duckdb("w", "open_orders"))

    def no_spark() -> SparkSession:
        raise RuntimeError("it is not needed here")

    source, dead_letters, *_ = check(pipeline, pipeline.sinks, no_spark)

    assert (
        not source.ok
        and f"a source is one stream: make one of each partition ({name}-0, {name}-1)" in source.says
    )
    assert not dead_letters.ok and f"such as {name}.rejected-0" in dead_letters.says


def test_a_mirror_follows_revisions_filters_deletes_and_rejects_and_is_proven_equal(
    spark: SparkSession, broker: SparkBroker, db: Client, name: str, tmp_path: Path
) -> None:
    pipeline = a_file(
        tmp_path, broker.url, name, OPEN.format(stream=name) + a_duckdb("w", "open_orders", 'key_column = "id"'),
        head="max_rows_per_batch = 3",
    )  # fmt: skip
    orders = db.stream(name, create=True, shards=2)
    orders.put_many([(f"o-{n}", an_order(amount=n)) for n in range(5)])
    orders.put("cancelled", an_order(status="cancelled"))
    orders.put("negative", an_order(amount=-1))

    summary = run_once(pipeline, spark)

    [status] = summary.sinks
    assert status.state is State.DONE and status.batches >= 3 and status.boundary and status.lag_rows == 0
    assert rows_of(pipeline, "w", "SELECT id, amount FROM orders ORDER BY id") == [
        (f"o-{n}", Decimal(n)) for n in range(5)
    ]

    orders.put("o-0", an_order("bob", amount=7))
    orders.put("o-1", an_order(status="cancelled"))
    orders.delete("o-2")
    orders.put("o-3", "nonsense")
    orders.put("cancelled", an_order("eve", amount=9))
    [status] = run_once(pipeline, spark).sinks

    assert rows_of(pipeline, "w", "SELECT id, customer, amount FROM orders ORDER BY id") == [
        ("cancelled", "eve", Decimal(9)), ("o-0", "bob", Decimal(7)), ("o-4", "ann", Decimal(4)),
    ]  # fmt: skip
    assert status.dead_letters == 1
    letters = {
        row.key: (row.value, row.headers["failed"]) for row in db.stream(f"{name}.rejected").snapshot()
    }
    assert letters == {
        b"orders/negative": (an_order(amount=-1).encode(), "positive amount"),
        b"orders/o-3": (b"nonsense", "decodes"),
    }
    proof = verify(pipeline, pipeline.sinks[0], lambda: spark)
    assert proof.verdict is Verdict.EQUAL and proof.held is not None and proof.held.rows == 3

    for pin in orders.pins():  # what a read has pinned keeps the past until its lease ends
        orders.pinned(pin.name).release()
    orders.put("o-4", an_order(amount=5))
    late = verify(pipeline, pipeline.sinks[0], lambda: spark)
    assert late.verdict is Verdict.UNKNOWN and "1 keys of stream" in late.says


def test_batches_whose_answer_was_lost_are_not_applied_and_not_dead_lettered_twice(
    spark: SparkSession, broker: SparkBroker, db: Client, name: str, tmp_path: Path
) -> None:
    sink = a_duckdb("w", "open_orders").replace('"duckdb"', '"helpers.pipelines:ShakySink"')
    pipeline = a_file(tmp_path, broker.url, name, OPEN.format(stream=name) + sink)
    orders = db.stream(name, create=True)
    orders.put_many([("a", an_order()), ("bad", "nonsense")])

    [status] = run_once(pipeline, spark).sinks

    assert status.state is State.DONE and status.restarts == 1 and status.skipped_batches == 1
    assert rows_of(pipeline, "w", "SELECT key FROM orders") == [("a",)]
    [letter] = db.stream(f"{name}.rejected").snapshot()
    assert db.stream(f"{name}.rejected").info().last_sequence == letter.sequence  # there never was another


def test_a_broken_sink_ends_alone_and_a_sink_that_is_added_is_filled_from_the_beginning(
    spark: SparkSession, broker: SparkBroker, db: Client, name: str, tmp_path: Path
) -> None:
    broken = a_duckdb("broken", "orders").replace('"duckdb"', '"helpers.pipelines:RefusingSink"')
    pipeline = a_file(tmp_path, broker.url, name, broken + a_duckdb("good", "orders"))
    orders = db.stream(name, create=True)
    orders.put_many([(f"o-{n}", an_order(amount=n)) for n in range(10)])

    summary = run_once(pipeline, spark)

    assert summary.failed == ("broken",)
    states = {one.sink: (one.state, one.error) for one in summary.sinks}
    assert states == {
        "broken": (State.FAILED, "sink 'broken': this sink takes nothing"),
        "good": (State.DONE, None),
    }
    assert len(rows_of(pipeline, "good")) == 10

    orders.delete("o-1")
    pipeline = a_file(tmp_path, broker.url, name, a_duckdb("good", "orders") + a_duckdb("late", "orders"))
    run_once(pipeline, spark)
    assert len(rows_of(pipeline, "good")) == len(rows_of(pipeline, "late")) == 9
    shown = {
        one["sink"]: (one["state"], one["lag_rows"], one["boundary"])
        for one in facts(pipeline, pipeline.sinks)
    }
    assert shown == {"good": ("done", 0, True), "late": ("done", 0, True)}


def test_without_its_checkpoint_a_mirror_goes_on_from_the_sinks_mark_and_without_its_rows_from_the_beginning(
    spark: SparkSession, broker: SparkBroker, db: Client, name: str, tmp_path: Path
) -> None:
    pipeline = a_file(tmp_path, broker.url, name, a_duckdb("w", "orders"))
    orders = db.stream(name, create=True)
    orders.put_many([(f"o-{n}", an_order(amount=n)) for n in range(10)])
    run_once(pipeline, spark)

    shutil.rmtree(pipeline.state / "w")
    orders.put("o-1", an_order(amount=100))
    orders.delete("o-2")
    [status] = run_once(pipeline, spark).sinks
    assert status.rows == 2 and status.batch == 0
    assert len(rows_of(pipeline, "w")) == 9

    (tmp_path / "w.duckdb").unlink()
    [status] = run_once(pipeline, spark).sinks
    assert status.state is State.DONE and status.restarts == 0
    assert len(rows_of(pipeline, "w")) == 9

    reset(pipeline, pipeline.sinks[0], drop=True)
    assert held_mark(pipeline, pipeline.sinks[0]) is None
    assert not [one for one in orders.marks() if one.consumer.startswith(pipeline.name)]
    run_once(pipeline, spark)
    assert len(rows_of(pipeline, "w")) == 9


def test_a_changed_transformation_is_not_mixed_with_the_old_one_unless_told_to(
    spark: SparkSession, broker: SparkBroker, db: Client, name: str, tmp_path: Path
) -> None:
    rest = OPEN.format(stream=name) + a_duckdb("w", "open_orders")
    pipeline = a_file(tmp_path, broker.url, name, rest)
    db.stream(name, create=True).put("a", an_order())
    run_once(pipeline, spark)

    changed = a_file(tmp_path, broker.url, name, rest.replace("<> 'cancelled'", "= 'open'"))
    [status] = run_once(changed, spark).sinks
    assert status.state is State.FAILED and "has changed since it was filled" in (status.error or "")
    assert run_once(changed, spark, accept_change=True).failed == ()
    assert run_once(changed, spark).failed == ()


def test_results_of_an_aggregation_are_kept_up_to_date_by_their_key(
    spark: SparkSession, broker: SparkBroker, db: Client, name: str, tmp_path: Path
) -> None:
    rest = f"""
[[transform]]
name = "totals"
sql = "SELECT customer, sum(amount) AS total, count(*) AS n FROM orders GROUP BY customer"

[dead_letter]
stream = "{name}.rejected"
""" + a_duckdb("w", "totals", 'mode = "update"\nkey = ["customer"]')
    pipeline = a_file(tmp_path, broker.url, name, rest)
    orders = db.stream(name, create=True)
    orders.put_many(
        [("a", an_order("ann", 1)), ("b", an_order("bob", 2)), ("c", an_order("ann", 3)), ("x", "nonsense")]
    )

    [status] = run_once(pipeline, spark).sinks

    assert status.state is State.DONE and status.dead_letters == 1, status.error
    totals = "SELECT customer, total, n FROM orders ORDER BY customer"
    assert rows_of(pipeline, "w", totals) == [("ann", Decimal(4), 2), ("bob", Decimal(2), 1)]
    orders.put("d", an_order("bob", 5))
    run_once(pipeline, spark)
    assert rows_of(pipeline, "w", totals) == [("ann", Decimal(4), 2), ("bob", Decimal(7), 2)]
    [letter] = db.stream(f"{name}.rejected").snapshot()
    assert letter.key == b"orders/x"

    shutil.rmtree(pipeline.state / "w")
    [status] = run_once(pipeline, spark).sinks
    assert status.state is State.FAILED and "another checkpoint" in (status.error or "")
    assert rows_of(pipeline, "w", totals) == [("ann", Decimal(4), 2), ("bob", Decimal(7), 2)]


def test_results_of_a_join_are_appended_once_and_a_sink_that_was_set_back_is_told(
    spark: SparkSession, broker: SparkBroker, db: Client, name: str, tmp_path: Path
) -> None:
    rest = f"""
[source.people]
url = "{broker.url}"
stream = "{name}-people"
schema = "town STRING"

[[transform]]
name = "placed"
sql = "SELECT o._key AS id, o.amount, p.town FROM orders o JOIN people p ON o.customer = p._key"
""" + a_duckdb("w", "placed", 'mode = "append"')
    pipeline = a_file(tmp_path, broker.url, name, rest)
    orders, people = db.stream(name, create=True), db.stream(f"{name}-people", create=True)
    orders.put_many([("1", an_order("ann", 1)), ("2", an_order("bob", 2))])
    people.put("ann", '{"town": "Ulm"}')
    everything = "SELECT id, amount, town FROM orders ORDER BY id"

    [status] = run_once(pipeline, spark).sinks
    assert status.state is State.DONE, status.error
    assert rows_of(pipeline, "w", everything) == [("1", Decimal(1), "Ulm")]
    shutil.copy(tmp_path / "w.duckdb", tmp_path / "backup")

    people.put("bob", '{"town": "Jena"}')  # joins with what the query keeps from before
    run_once(pipeline, spark)
    assert run_once(pipeline, spark).failed == ()
    both = [("1", Decimal(1), "Ulm"), ("2", Decimal(2), "Jena")]
    assert rows_of(pipeline, "w", everything) == both
    [shown] = facts(pipeline, pipeline.sinks)
    assert (shown["state"], shown["lag_rows"]) == ("done", 0)
    assert verify(pipeline, pipeline.sinks[0], lambda: spark).verdict is Verdict.UNKNOWN

    shutil.copy(tmp_path / "backup", tmp_path / "w.duckdb")
    orders.put("3", an_order("ann", 3))
    [status] = run_once(pipeline, spark).sinks
    assert status.state is State.FAILED and "those in between would be missing" in (status.error or "")
    assert rows_of(pipeline, "w", everything) == both[:1]

    reset(pipeline, pipeline.sinks[0], drop=True)
    assert not [one for one in orders.marks() if one.consumer.startswith(pipeline.name)]
    run_once(pipeline, spark)
    assert rows_of(pipeline, "w", everything) == [*both, ("3", Decimal(3), "Ulm")]


def test_a_run_stops_after_its_batch_or_at_a_boundary_and_a_sink_that_was_changed_is_different(
    spark: SparkSession, broker: SparkBroker, db: Client, name: str, tmp_path: Path
) -> None:
    slow = a_duckdb("w", "orders").replace('"duckdb"', '"helpers.pipelines:SlowSink"')
    db.stream(name, create=True).put_many([(f"o-{n}", an_order(amount=n)) for n in range(8)])

    pipeline = a_file(tmp_path, broker.url, name, slow, head="max_rows_per_batch = 2")
    running = Running(pipeline, spark)
    eventually(lambda: running.runner.statuses()[0].batches > 0, 60)
    [status] = running.stop().sinks
    assert status.state is State.STOPPED and not status.boundary and status.rows < 8
    inside = verify(pipeline, pipeline.sinks[0], lambda: spark)
    assert inside.verdict is Verdict.UNKNOWN and "inside a snapshot" in inside.says

    pipeline = a_file(tmp_path, broker.url, name, slow, head='max_rows_per_batch = 2\nstop = "boundary"')
    running = Running(pipeline, spark)
    eventually(lambda: running.runner.statuses()[0].state is State.RUNNING, 60)
    [status] = running.stop().sinks  # asked before its first batch, when the sink is still inside
    assert status.state is State.STOPPED and status.boundary and status.lag_rows == 0
    assert len(rows_of(pipeline, "w")) == 8

    with duckdb.connect(str(tmp_path / "w.duckdb")) as file:
        file.sql("DELETE FROM orders WHERE key = 'o-3'")
    proof = verify(pipeline, pipeline.sinks[0], lambda: spark)
    assert proof.verdict is Verdict.DIFFERENT and worst([proof]) == 1
    assert "comes to 8 rows" in proof.says and "the sink holds 7" in proof.says and "--drop" in proof.says


def test_a_mirror_whose_pin_is_gone_begins_anew_at_its_mark_and_one_whose_stream_is_another_does_not(
    spark: SparkSession, broker: SparkBroker, db: Client, name: str, tmp_path: Path
) -> None:
    good = a_duckdb("w", "orders")
    orders = db.stream(name, create=True)
    orders.put_many([("a", an_order()), ("b", an_order())])
    run_once(a_file(tmp_path, broker.url, name, good), spark)
    orders.put("c", an_order())
    orders.delete("a")
    # A batch is planned and not applied; then so much time goes by that its pin ends.
    broken = a_file(tmp_path, broker.url, name, good.replace('"duckdb"', '"helpers.pipelines:RefusingSink"'))
    assert run_once(broken, spark).failed == ("w",)
    pins = [one.name for one in orders.pins()]
    assert pins
    for pin in pins:
        orders.pinned(pin).release()

    pipeline = a_file(tmp_path, broker.url, name, good)
    [status] = run_once(pipeline, spark).sinks

    assert status.state is State.DONE and status.restarts == 1 and status.rows == 2, status.error
    assert [key for key, *_ in sorted(rows_of(pipeline, "w"))] == ["b", "c"]

    db.delete_stream(name)
    db.stream(name, create=True).put("z", an_order())
    shutil.rmtree(pipeline.state / "w")  # which would tell that it is another stream; the mark does, too
    [status] = run_once(pipeline, spark).sinks
    assert status.state is State.FAILED and "--drop` fills the sink anew" in (status.error or "")
    assert [key for key, *_ in sorted(rows_of(pipeline, "w"))] == ["b", "c"]


def test_a_run_goes_on_over_a_broker_that_restarts_and_stops_where_it_is_asked_to(
    spark: SparkSession, broker: SparkBroker, db: Client, name: str, tmp_path: Path
) -> None:
    pipeline = a_file(tmp_path, broker.url, name, a_duckdb("w", "orders"))
    orders = db.stream(name, create=True)
    orders.put("a", an_order())
    running = Running(pipeline, spark)
    eventually(lambda: running.runner.statuses()[0].rows == 1, 60)
    with pytest.raises(PipelineRuns, match="runs already"):
        run_once(pipeline, spark)

    broker.kill()
    broker.restart()
    orders.put("b", an_order())
    eventually(lambda: running.runner.statuses()[0].rows == 2, 90)
    summary = running.stop()

    [status] = summary.sinks
    assert status.state is State.STOPPED and status.boundary and status.error is None
    written = read_status(pipeline)
    assert written is not None and written["sinks"][0]["state"] == "stopped"
    assert [key for key, *_ in sorted(rows_of(pipeline, "w"))] == ["a", "b"]
    assert json.dumps(written)
