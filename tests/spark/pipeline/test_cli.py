"""`tidemark pipeline` as a person or a service manager uses it."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pyarrow as pa
import pytest
from helpers.amqp import eventually
from helpers.broker import SOURCE
from helpers.pipelines import a_duckdb, a_file, an_order, rows_of

from tidemark.cli import main
from tidemark.client import Client
from tidemark_spark.pipeline.file import Pipeline
from tidemark_spark.pipeline.sinks import make_sink
from tidemark_spark.pipeline.status import read_status
from tidemark_spark.pipeline.values import Change, Mark

if TYPE_CHECKING:
    from pyspark.sql import SparkSession
    from spark.conftest import SparkBroker

pytestmark = pytest.mark.timeout(300)

PATIENCE_S = 200
TESTS = Path(__file__).resolve().parents[2]
QUICK = "spark.driver.extraJavaOptions=-XX:TieredStopAtLevel=1 -XX:+UseSerialGC"


def test_the_command_line_works_without_spark() -> None:
    code = "import sys, tidemark.cli.app; sys.exit(any('spark' in name for name in sys.modules))"
    subprocess.run([sys.executable, "-c", code], env=os.environ | {"PYTHONPATH": str(SOURCE)}, check=True)


def test_a_wrong_file_is_code_2_with_every_mistake_also_those_that_only_the_sink_knows(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    sink = a_duckdb("w", "orders", 'key_colum = "id"') + a_duckdb("v", "orders").replace("path", "pth")
    pipeline = a_file(tmp_path, "tidemark://127.0.0.1:1/", "orders", sink)

    assert main(["pipeline", "run", str(pipeline.path)]) == 2
    said = capsys.readouterr().err
    assert "has 2 mistakes" in said
    assert "[[sink]] 'w' key_colum: is not an option" in said and "'key_column'" in said
    assert "[[sink]] 'v' path: is missing" in said

    assert main(["pipeline", "status", str(tmp_path / "absent.toml")]) == 2
    good = a_file(tmp_path, "tidemark://127.0.0.1:1/", "orders", a_duckdb("w", "orders"))
    assert main(["pipeline", "plan", str(good.path), "--sink", "x"]) == 2
    assert main(["pipeline", "run", str(good.path), "--conf", "nonsense"]) == 2
    assert main(["pipeline", "run", str(good.path), "--metrics", "here"]) == 2


def test_plan_and_status_tell_what_is_to_do_without_starting_spark(
    broker: SparkBroker, db: Client, name: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    db.stream(name, create=True, shards=2).put_many([(f"o-{n}", an_order()) for n in range(7)])
    pipeline = a_file(tmp_path, broker.url, name, a_duckdb("w", "orders"), head="max_rows_per_batch = 4")

    assert main(["pipeline", "plan", str(pipeline.path)]) == 0
    drawn = capsys.readouterr().out
    assert (
        "from the beginning (back-fill)" in drawn and "2 shards, 7 rows to go: 2 batches of 2 tasks" in drawn
    )
    assert main(["pipeline", "status", str(pipeline.path), "--json"]) == 0
    [row] = json.loads(capsys.readouterr().out)
    assert (row["state"], row["lag_rows"], row["sequence"], row["error"]) == ("new", 7, None, None)


class Run:
    """`tidemark pipeline run` as a process of its own."""

    def __init__(self, pipeline: Pipeline, *arguments: str) -> None:
        command = [sys.executable, "-m", "tidemark", "pipeline", "run", str(pipeline.path), "--json"]
        self.process = subprocess.Popen(
            [*command, "--master", "local[2,4]", "--conf", QUICK, *arguments],
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
            env=os.environ | {"PYTHONPATH": f"{SOURCE}{os.pathsep}{TESTS}"},
        )

    def until(self, field: str, *values: Any) -> None:
        """Read what it says until that is so."""
        assert self.process.stdout is not None
        end = time.monotonic() + PATIENCE_S
        for line in self.process.stdout:
            assert time.monotonic() < end, f"{field} did not become one of {values}"
            said = json.loads(line)
            assert said["event"] == "progress", f"{field} never became one of {values}: {line}"
            if said[field] in values:
                return
        raise AssertionError(self.process.communicate())

    def end(self, number: int) -> tuple[int, str, str]:
        """Send it a signal; how it ended, and what it said."""
        self.process.send_signal(number)
        out, said = self.process.communicate(timeout=60)
        return self.process.returncode, out, said

    def __enter__(self) -> Run:
        return self

    def __exit__(self, *_: object) -> None:
        self.process.kill()
        self.process.communicate()


def test_a_run_that_was_killed_goes_on_and_sigterm_ends_it_well(
    broker: SparkBroker, db: Client, name: str, tmp_path: Path
) -> None:
    stream = db.stream(name, create=True)
    stream.put_many([(f"o-{n}", an_order()) for n in range(100)])
    slow = a_duckdb("w", "orders").replace('"duckdb"', '"helpers.pipelines:SlowSink"')
    pipeline = a_file(tmp_path, broker.url, name, slow, head="max_rows_per_batch = 10")
    with Run(pipeline) as run:
        run.until("batches", *range(2, 8))
        code, _, _ = run.end(signal.SIGKILL)
    assert code == -signal.SIGKILL
    assert 0 < len(rows_of(pipeline, "w")) < 100

    stream.put_many([(f"n-{n}", an_order()) for n in range(100)])
    stream.delete("o-1")
    pipeline = a_file(tmp_path, broker.url, name, a_duckdb("w", "orders"))
    with Run(pipeline, "--metrics", "127.0.0.1:0") as run:
        run.until("lag_rows", 0)
        code, out, said = run.end(signal.SIGTERM)
    assert code == 0, said
    summary = json.loads(out.splitlines()[-1])
    assert summary["event"] == "summary" and summary["failed"] == []
    assert summary["sinks"][0]["state"] == "stopped" and summary["sinks"][0]["boundary"]
    rows = rows_of(pipeline, "w", "SELECT count(*), count(DISTINCT key) FROM orders WHERE key <> 'o-1'")
    assert rows == [(199, 199)] and len(rows_of(pipeline, "w")) == 199
    # Spark's words are in its log, not here, and no password is in any of it.
    assert [line for line in said.splitlines() if not line.startswith("metrics at http://127.0.0.1:")] == []
    for file in ("spark.log", "status.json", "w/made-by.json"):
        assert "guest:guest" not in (pipeline.state / file).read_text(errors="replace"), file


@pytest.fixture
def shared(spark: SparkSession, monkeypatch: pytest.MonkeyPatch) -> None:
    """Commands use the session of the tests, and leave it running."""
    monkeypatch.setattr("tidemark.cli.pipeline._session", lambda *_, **__: lambda: spark)


def test_a_second_signal_ends_a_run_at_once_and_nothing_is_lost(
    shared: None,
    broker: SparkBroker,
    db: Client,
    name: str,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    db.stream(name, create=True).put_many([(f"o-{n}", an_order()) for n in range(100)])
    slow = a_duckdb("w", "orders").replace('"duckdb"', '"helpers.pipelines:SlowSink"')
    pipeline = a_file(tmp_path, broker.url, name, slow, head='max_rows_per_batch = 2\nstop = "boundary"')
    ends: list[int] = []
    monkeypatch.setattr(os, "_exit", ends.append)

    def sink(field: str) -> Any:
        return (read_status(pipeline) or {"sinks": [{}]})["sinks"][0].get(field)

    def twice() -> None:
        eventually(lambda: sink("batches"), 60)
        os.kill(os.getpid(), signal.SIGTERM)  # this one waits for the boundary
        eventually(lambda: sink("state") == "stopping", 20)
        os.kill(os.getpid(), signal.SIGTERM)

    with ThreadPoolExecutor(1) as signals:
        told = signals.submit(twice)
        main(["pipeline", "run", str(pipeline.path), "--json"])
        told.result()

    assert ends == [130] and sink("state") == "stopped" and not sink("boundary")
    assert len(rows_of(pipeline, "w")) == sink("rows") < 100


def test_check_finds_what_is_wrong_and_says_what_to_do(
    shared: None,
    broker: SparkBroker,
    db: Client,
    name: str,
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
) -> None:
    db.stream(name, create=True).put("a", an_order())
    step = '[[transform]]\nname = "t"\nsql = "SELECT _key, _sequence, customer FROM orders"\n'
    good = {"url": broker.url, "stream": name, "rest": step + a_duckdb("w", "t")}
    postgres = '[[sink]]\nname = "p"\nkind = "postgres"\nfrom = "t"\ntable = "t"\n'
    postgres += 'url = "postgresql://u:s3cret@127.0.0.1:1/db"\n'

    def check(**wrong: str) -> tuple[int, list[str], list[str]]:
        """Its code, what it found wrong, and what the rest is."""
        told = good | wrong
        pipeline = a_file(tmp_path, told["url"], told["stream"], told["rest"])
        code = main(["pipeline", "check", str(pipeline.path)])
        lines = capsys.readouterr().out.splitlines()
        bad = [line.removeprefix("PROBLEM  ") for line in lines if line.startswith("PROBLEM")]
        return code, bad, [line.removeprefix("ok       ") for line in lines if line.startswith("ok")]

    code, bad, fine = check()
    assert (code, bad) == (0, [])
    assert (
        fine[0] == f"source orders: stream {name}, 1 keys in 1 shard, up to sequence " + fine[0].split()[-1]
    )
    assert fine[1] == "sink w: duckdb, empty: will be filled from the beginning"
    assert fine[3] == "transformation of w: gives _key, _sequence, customer"
    for wrong, what, says in (
        ({"url": "tidemark://u:s3cret@127.0.0.1:1/"}, "source orders", "no broker answers"),
        ({"stream": "nobodys"}, "source orders", "`tidemark stream create nobodys` makes it"),
        (
            {"rest": step.replace("customer", "custmer") + a_duckdb("w", "t")},
            "transformation of w",
            "custmer",
        ),
        (
            {"rest": step.replace("_sequence, ", "") + a_duckdb("w", "t")},
            "transformation of w",
            "write SELECT _sequence",
        ),
        ({"rest": step + postgres}, "sink p", "cannot be used now"),
    ):
        code, [problem], _ = check(**wrong)
        assert code == 1 and problem.startswith(f"{what}: ") and says in problem
        assert "s3cret" not in problem


def test_search_asks_the_index_that_a_pipeline_keeps(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    index = '[[sink]]\nname = "texts"\nkind = "search"\nfrom = "orders"\npath = "index"\n'
    pipeline = a_file(tmp_path, "tidemark://127.0.0.1:1/", "orders", index + a_duckdb("w", "orders"))
    file = str(pipeline.path)
    assert main(["pipeline", "search", file, "texts", "tea"]) == 1
    assert "run the pipeline first" in capsys.readouterr().err

    [table, _] = pipeline.sinks
    sink = make_sink(table.name, pipeline.name, table.kind, table.options)
    sink.open()
    rows = pa.table({"_key": ["a", "b"], "_sequence": [1, 2], "note": ["green tea", "coffee"]})
    sink.prepare(rows.schema, "mirror")
    mark = Mark(pipeline.name, "texts", "mirror", "q", 0, {"orders": {"0": ("h", 2)}}, True, 2, 0)
    sink.apply(Change(mark, {}, rows, rows.slice(0, 0).select(["_key", "_sequence"])))
    sink.close()

    assert main(["pipeline", "search", file, "texts", "tea", "--json"]) == 0
    [found] = json.loads(capsys.readouterr().out)
    assert (found["key"], found["note"]) == ("a", "green tea")
    assert main(["pipeline", "search", file, "texts", "milk"]) == 0
    assert capsys.readouterr().out == "nothing found\n"
    assert main(["pipeline", "search", file, "texts", "note:("]) == 1
    assert "cannot be understood" in capsys.readouterr().err
    assert main(["pipeline", "search", file, "w", "tea"]) == 2
