"""Pipelines in tests: a file from a few words, a run in this process, and sinks that misbehave on purpose."""

from __future__ import annotations

import json
import threading
import time
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

import duckdb

from tidemark_spark.errors import SinkRefused, SinkUnavailable
from tidemark_spark.pipeline.file import Pipeline, read_file
from tidemark_spark.pipeline.runner import Runner, Summary
from tidemark_spark.pipeline.sinks.duckdb import DuckDBSink

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

    from tidemark_spark.pipeline.values import Applied, Change, Mark

SCHEMA = "customer STRING, amount DECIMAL(10,2), status STRING"


def an_order(customer: str = "ann", amount: float = 10, status: str = "open") -> str:
    return json.dumps({"customer": customer, "amount": amount, "status": status})


def a_file(folder: Path, url: str, stream: str, rest: str, head: str = "", source: str = "") -> Pipeline:
    """A pipeline over one stream of orders; `rest` has its transforms and sinks."""
    folder.mkdir(parents=True, exist_ok=True)
    path = folder / "pipeline.toml"
    path.write_text(
        f"""
[pipeline]
name = "shop-{stream}"
trigger = "100 ms"
{head}

[source.orders]
url = "{url}"
stream = "{stream}"
schema = "{SCHEMA}"
{source}

{rest}
"""
    )
    return read_file(path)


def a_duckdb(name: str, reads: str, more: str = "") -> str:
    return f"""
[[sink]]
name = "{name}"
kind = "duckdb"
from = "{reads}"
path = "{name}.duckdb"
table = "orders"
{more}
"""


def run_once(pipeline: Pipeline, spark: SparkSession, *names: str, **options: Any) -> Summary:
    """Deliver what is there."""
    tables = [one for one in pipeline.sinks if not names or one.name in names]
    return Runner(pipeline, tables, once=True, **options).run(lambda: spark)


class Running:
    """A run that goes on in a thread until it is stopped."""

    def __init__(self, pipeline: Pipeline, spark: SparkSession) -> None:
        self.runner = Runner(pipeline, pipeline.sinks)
        self.summary: Summary | None = None
        self._thread = threading.Thread(target=self._run, args=(spark,), daemon=True)
        self._thread.start()

    def _run(self, spark: SparkSession) -> None:
        self.summary = self.runner.run(lambda: spark)

    def stop(self, timeout_s: float = 60) -> Summary:
        self.runner.stop()
        self._thread.join(timeout_s)
        assert self.summary is not None, "it did not stop"
        return self.summary


def rows_of(pipeline: Pipeline, sink: str, query: str = "SELECT * FROM orders") -> list[tuple[Any, ...]]:
    with duckdb.connect(str(pipeline.folder / f"{sink}.duckdb"), read_only=True) as db:
        return db.sql(query).fetchall()


# Sinks that misbehave ---------------------------------------------------------------------------------


class RefusingSink(DuckDBSink):
    """Takes nothing."""

    def apply(self, change: Change) -> Applied:
        raise SinkRefused(sink=self.name, problem="this sink takes nothing")


class ShakySink(DuckDBSink):
    """Applies every batch, and then says that it could not: as a connection that breaks after the commit."""

    def __init__(self, name: str, pipeline: str, options: Mapping[str, Any]) -> None:
        self._folder = Path(str(options["path"])).parent
        super().__init__(name, pipeline, options)

    def apply(self, change: Change) -> Applied:
        done = super().apply(change)
        told = self._folder / f"told-{change.mark.batch}"
        if not told.exists():
            told.touch()
            raise SinkUnavailable(sink=self.name, problem="the connection broke")
        return done


class AwaySink(DuckDBSink):
    """Never there."""

    def open(self) -> Mark | None:
        raise SinkUnavailable(sink=self.name, problem="nobody is there")


class SlowSink(DuckDBSink):
    """Takes its time."""

    def apply(self, change: Change) -> Applied:
        time.sleep(0.3)
        return super().apply(change)
