"""What a run tells the broker that it reads from, as the management API shows it."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Any, cast

from helpers.amqp import eventually
from helpers.api import Api
from helpers.pipelines import Running, a_duckdb, a_file, an_order, run_once

from tidemark_spark.pipeline.report import STREAM, Reporter, state_of, without_login
from tidemark_spark.pipeline.tracking import State, Tracker

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

    from tidemark.client import Client

CHECK = """
[[expect]]
on = "orders"
name = "positive"
check = "amount > 0"
otherwise = "fail"
"""


def test_a_run_is_seen_at_the_broker_while_it_goes_on_and_when_it_has_ended(
    broker: Any, db: Client, spark: SparkSession, tmp_path: Path, name: str
) -> None:
    api = Api(broker.admin)
    db.stream(name, create=True).put_many([(b"k%d" % n, an_order().encode()) for n in range(20)])
    pipeline = a_file(tmp_path, broker.url, name, a_duckdb("w", "orders"))

    running = Running(pipeline, spark)
    found = eventually(lambda: _of(api, pipeline.name, lambda one: one["sinks"][0]["rows"] == 20), 60)
    assert found["state"] == "running"
    [sink] = found["sinks"]
    assert (sink["name"], sink["kind"], sink["reads"], sink["error"]) == ("w", "duckdb", "orders", None)
    assert eventually(lambda: _of(api, pipeline.name, lambda one: one["sinks"][0]["lag_rows"] == 0), 30)
    assert found["sources"] == [{"name": "orders", "stream": name, "url": without_login(broker.url)}]
    assert "guest" not in json.dumps(found)

    running.stop()
    assert api.get(f"/pipelines/{pipeline.name}")["state"] == "stopped"


def test_a_row_that_stops_a_sink_is_shown_to_whoever_looks_for_the_reason(
    broker: Any, db: Client, spark: SparkSession, tmp_path: Path, name: str
) -> None:
    api = Api(broker.admin)
    stream = db.stream(name, create=True)
    stream.put(b"good", an_order().encode())
    bad = stream.put(b"bad", an_order(amount=-5).encode())
    pipeline = a_file(tmp_path, broker.url, name, CHECK + a_duckdb("w", "orders"))

    run_once(pipeline, spark)

    found = api.get(f"/pipelines/{pipeline.name}")
    assert found["state"] == "failed"
    [sink] = found["sinks"]
    assert "positive" in sink["error"]["message"]
    row = sink["error"]["row"]
    assert (row["key"], row["sequence"], row["failed"]) == ("bad", bad.sequence, ["positive"])
    assert json.loads(row["value"])["amount"] == -5


def test_a_broker_that_is_away_holds_nothing_up(tmp_path: Path) -> None:
    pipeline = a_file(tmp_path, "tidemark://someone:secret@127.0.0.1:1/", "orders", a_duckdb("w", "orders"))
    tracker = Tracker("w", "duckdb", "mirror")
    reporter = Reporter(pipeline, pipeline.sinks, 0, lambda: [tracker.status()])
    reporter.start()
    reporter.close()
    assert "secret" not in json.dumps(reporter._about)


def test_a_run_is_as_well_as_its_worst_sink() -> None:
    def run(*states: State) -> list[Any]:
        trackers = [Tracker(f"s{n}", "duckdb", "mirror") for n in range(len(states))]
        for tracker, state in zip(trackers, states, strict=True):
            tracker.became(state)
        return [tracker.status() for tracker in trackers]

    assert state_of(run(State.RUNNING, State.RUNNING), last=False) == "running"
    assert state_of(run(State.RUNNING, State.RETRYING), last=False) == "retrying"
    assert state_of(run(State.RUNNING, State.FAILED), last=False) == "failed"
    assert state_of(run(State.DONE, State.DONE), last=True) == "done"
    assert state_of(run(State.DONE, State.STOPPED), last=True) == "stopped"


def _of(api: Api, name: str, fits: Callable[[dict[str, Any]], bool]) -> dict[str, Any] | None:
    answer = api("GET", f"/pipelines/{name}")
    if answer.status_code != 200:
        return None
    found = cast(dict[str, Any], answer.json())
    return found if fits(found) else None


def test_the_stream_of_reports_has_one_name_on_both_sides() -> None:
    from tidemark.admin.resources import pipelines

    assert pipelines.STREAM == STREAM
