"""Beyond one process: source, sink and a pipeline on a Spark standalone cluster with two workers."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING

import pytest
from helpers.broker import SOURCE
from helpers.pipelines import a_duckdb, a_file, an_order, rows_of
from spark.cluster.standalone import StandaloneCluster

if TYPE_CHECKING:
    from spark.conftest import SparkBroker

    from tidemark.client import Client

QUICK = (
    "spark.driver.memory=1g",
    "spark.executor.memory=600m",
    "spark.ui.enabled=false",
    "spark.driver.extraJavaOptions=-XX:TieredStopAtLevel=1 -XX:+UseSerialGC",
    "spark.executor.extraJavaOptions=-XX:TieredStopAtLevel=1 -XX:+UseSerialGC",
)
STEPS = """
from pyspark.sql import functions as F

shout = F.udf(lambda text: text.upper())


def loud(orders):
    return orders.withColumn("customer", shout("customer"))
"""

DRIVER = Path(__file__).with_name("driver.py")
ROWS = 10_000
HANGS_S = 300.0


@pytest.fixture(scope="module")
def cluster(tmp_path_factory: pytest.TempPathFactory) -> Iterator[StandaloneCluster]:
    found = StandaloneCluster(tmp_path_factory.mktemp("cluster"))
    try:
        yield found.start()
    finally:
        found.stop()


def content(db: Client, stream: str) -> dict[bytes | None, bytes]:
    """What it holds. Deletes are not compared: a tombstone ends when everybody has passed it."""
    return {row.key: row.value for row in db.stream(stream).snapshot() if not row.deleted}


@pytest.mark.slow
@pytest.mark.timeout(600)
def test_a_stream_is_read_and_written_by_executors_of_a_cluster(
    cluster: StandaloneCluster, broker: SparkBroker, db: Client, name: str, tmp_path: Path
) -> None:
    """M2: batch and micro-batches arrive whole and once, and of two attempts of a task only one is seen."""
    source = db.stream(name, create=True, shards=4)
    source.put_many([(f"k{at}", f"value {at}", {"n": str(at)}) for at in range(ROWS)])
    source.put_many([(f"k{at}", None) for at in range(0, ROWS, 10)])
    command = [sys.executable, DRIVER, cluster.url, broker.url, name, tmp_path]

    done = subprocess.run(command, env=os.environ, capture_output=True, text=True, timeout=500, check=False)

    assert done.returncode == 0, done.stderr[-5000:]
    found = json.loads(done.stdout.splitlines()[-1])
    assert found["batches"] == 3
    assert content(db, f"{name}.batch") == content(db, name)
    assert content(db, f"{name}.stream") == content(db, name)
    rows = content(db, f"{name}.speculative")
    assert len(rows) == 140_000
    assert {rows[b"0"], rows[b"69999"]} == {b"0"}, "the first task needed one attempt"
    assert {rows[b"%d" % at] for at in range(70_000, 140_000)} == {b"1"}, (
        "the second attempt won, whole, on the other worker"
    )
    assert found["seconds"] < HANGS_S, "nobody waited for the attempt that hangs"


@pytest.mark.slow
@pytest.mark.timeout(600)
def test_a_pipeline_runs_on_a_cluster_as_it_does_here(
    cluster: StandaloneCluster, broker: SparkBroker, db: Client, name: str, tmp_path: Path
) -> None:
    db.stream(name, create=True, shards=2).put_many([(f"o-{n}", an_order(amount=n)) for n in range(1000)])
    step = '[[transform]]\nname = "loud"\npython = "loud_steps:loud"\nfrom = "orders"\n'
    pipeline = a_file(tmp_path / "files", broker.url, name, step + a_duckdb("w", "loud"))
    (pipeline.folder / "loud_steps.py").write_text(STEPS)
    command = [sys.executable, "-m", "tidemark", "pipeline", "run", str(pipeline.path), "--once", "--json"]
    command += ["--master", cluster.url, "--conf", "spark.driver.host=127.0.0.1"]
    for setting in QUICK:
        command += ["--conf", setting]

    done = subprocess.run(
        command,
        env=os.environ | {"PYTHONPATH": str(SOURCE)},
        capture_output=True,
        text=True,
        timeout=500,
        check=False,
    )

    assert done.returncode == 0, done.stdout[-2000:] + done.stderr[-3000:]
    assert json.loads(done.stdout.splitlines()[-1])["sinks"][0]["upserted"] == 1000
    assert rows_of(pipeline, "w", "SELECT count(*), min(customer) FROM orders") == [(1000, "ANN")]
