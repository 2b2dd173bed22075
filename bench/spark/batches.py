"""Small micro-batches: what a trigger costs when there is hardly anything to read.

A writer replaces the same hundred keys all the time, so that there is always something new and a micro-batch has each
of them once: a hundred rows, a new pinned snapshot each time. The empty source runs beside the same writer, in turn.
The time of a micro-batch is that of its trigger, as Spark tells it.
"""

from __future__ import annotations

import shutil
import statistics
import threading
import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from bench.measure import Figures, RunFailedError
from bench.results import Results
from bench.spark import cases
from bench.spark.cases import Case
from bench.spark.processes import in_turn, measured
from bench.spark.rows import Rows
from bench.spark.setting import Broker, Setting

if TYPE_CHECKING:
    from pyspark.sql import DataFrame
    from pyspark.sql.streaming.query import StreamingQuery

ROWS = 100
_PAUSE_S = 0.02
_SKIPPED = 8
"""Micro-batches of a query that are not counted: the first ones start everything."""
_PATIENCE_S = 120
PARTS = ("latestOffset", "queryPlanning", "walCommit", "addBatch", "commitOffsets")


class Writer:
    """Replaces the same few keys again and again while its context is open."""

    def __init__(self, broker: Broker, stream: str) -> None:
        self._stream = broker.client.stream(stream)
        self._rows = Rows(100)
        self._ending = threading.Event()
        self._thread = threading.Thread(target=self._run)
        self._failure: Exception | None = None

    def _run(self) -> None:
        tables = [self._rows.table(np.arange(ROWS, dtype=np.uint64)) for _ in range(20)]
        turn = 0
        try:
            while not self._ending.is_set():
                self._stream.put_many(tables[turn % len(tables)])
                turn += 1
                time.sleep(_PAUSE_S)
        except Exception as failure:
            self._failure = failure

    def __enter__(self) -> Writer:
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._ending.set()
        self._thread.join()
        if self._failure is not None:
            raise RunFailedError(f"the writer failed: {self._failure}") from self._failure


def micro_batch(case: Case, setting: Setting, results: Results) -> None:
    """The figures of all rounds."""
    with setting.place("micro") as folder, setting.broker() as broker:
        name = "few"
        broker.client.stream(name, create=True)
        floor = setting.spark.readStream.format("bench_empty").option("rows", str(case.rows)).load()
        frames = {cases.TIDEMARK: setting.following(broker, name), cases.FLOOR: floor}
        with Writer(broker, name):
            for _, contestant in in_turn(case.contestants, 1):
                _run(frames[contestant], setting, broker, folder / "checkpoint")
            for _, contestant in in_turn(case.contestants, setting.scale.rounds):
                figures = _run(frames[contestant], setting, broker, folder / "checkpoint")
                results.add(case.name, contestant, figures)


def trickle(setting: Setting, broker: Broker, stream: str, checkpoint: Path) -> Figures:
    """Small micro-batches at the end of a stream that may be large."""
    with Writer(broker, stream):
        frame = setting.following(broker, stream, startingOffsets="latest")
        return _run(frame, setting, broker, checkpoint)


def _run(frame: DataFrame, setting: Setting, broker: Broker, checkpoint: Path) -> Figures:
    """One query for some micro-batches."""
    query = (
        frame.writeStream.format("noop")
        .option("checkpointLocation", str(checkpoint))
        .trigger(processingTime="0 seconds")
        .start()
    )
    try:
        _wait_for(query, min(_SKIPPED, setting.scale.batches))
        with measured(broker.clocks) as found:
            first = _wait_for(query, 0)
            last = _wait_for(query, first + setting.scale.batches)
        progress = [one for one in query.recentProgress if first <= one["batchId"] < last]
    finally:
        query.stop()
        shutil.rmtree(checkpoint, ignore_errors=True)
    return figures_of(progress) | {
        "cpu_ms_per_batch": sum(found[name] for name in found if name.startswith("cpu_"))
        / (last - first)
        * 1e3,
        **{
            f"{name[:-2]}_ms_per_batch": found[name] / (last - first) * 1e3
            for name in found
            if name.startswith("cpu_")
        },
    }


def figures_of(progress: Sequence[Mapping[str, Any]]) -> Figures:
    """Medians of what Spark says of each micro-batch.

    Raises:
        RunFailedError: one had another number of rows.
    """
    rows = {one["numInputRows"] for one in progress}
    if rows != {ROWS}:
        raise RunFailedError(f"micro-batches had {sorted(rows)} rows, not {ROWS}")
    times = [one["durationMs"] for one in progress]
    found = {f"{part}_ms": statistics.median(each.get(part, 0) for each in times) for part in PARTS}
    return {"trigger_ms": statistics.median(each["triggerExecution"] for each in times), **found}


def _wait_for(query: StreamingQuery, batches: int) -> int:
    """Wait until so many micro-batches are done; returns how many are."""
    deadline = time.monotonic() + _PATIENCE_S
    while True:
        if (failure := query.exception()) is not None:
            raise RunFailedError(f"the query failed: {failure}")
        done = query.lastProgress
        number = int(done["batchId"]) + 1 if done and done["numInputRows"] else 0
        if number >= batches:
            return number
        if time.monotonic() > deadline:
            raise RunFailedError(f"only {number} micro-batches in {_PATIENCE_S} s")
        time.sleep(0.05)
