"""Whole streams into Spark's noop sink, beside the same rows in a Parquet file; and what a row costs as streams grow."""

from __future__ import annotations

import json
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING

from bench.measure import Figures, RunFailedError
from bench.results import Results
from bench.spark import cases
from bench.spark.batches import trickle
from bench.spark.cases import Case
from bench.spark.processes import Clock, in_turn, measured
from bench.spark.rows import Rows
from bench.spark.setting import Broker, Setting

if TYPE_CHECKING:
    from pyspark.sql import DataFrame

STREAM = "rows"
_TUPLES = 200_000
"""Rows that are read as tuples, which takes long: the first ones of the stream."""
CHANGED = 100_000
"""Rows that change in a stream of each size."""


def scan(case: Case, setting: Setting, results: Results) -> None:
    """The figures of all rounds.

    Raises:
        RunFailedError: the file does not hold the rows of the stream, or a read did not give them.
    """
    rows = setting.scale.rows(case.rows)
    few = min(rows, _TUPLES)
    with setting.place("scan") as folder, setting.broker() as broker:
        stream, maker = broker.client.stream(STREAM, create=True), Rows(case.value_bytes)
        maker.fill(stream, 0, few)
        end = json.dumps({"0": stream.info().last_sequence})
        maker.fill(stream, few, rows)
        file = folder / "parquet"
        setting.stream(broker, STREAM).write.parquet(str(file))
        frames = {
            cases.TIDEMARK: setting.stream(broker, STREAM),
            cases.PARQUET: setting.spark.read.parquet(str(file)),
        }
        _check_same(frames, rows)
        frames[cases.TUPLES] = setting.stream(broker, STREAM, "bench_tuples", endingOffsets=end)
        _check_same(
            {
                cases.TIDEMARK: setting.stream(broker, STREAM, endingOffsets=end),
                cases.TUPLES: frames[cases.TUPLES],
            },
            few,
        )
        run: dict[str, Callable[[], Figures]] = {
            name: reading(frame, few if name == cases.TUPLES else rows, broker.clocks)
            for name, frame in frames.items()
        }
        run[cases.TRIGGER] = lambda: _one_trigger(setting, broker, folder / "checkpoint", rows)
        for name in case.contestants:
            for _ in range(setting.scale.warmups):
                run[name]()
        for _, name in in_turn(case.contestants, setting.scale.rounds):
            results.add(case.name, name, run[name]())


def reading(frame: DataFrame, rows: int, clocks: dict[str, Clock]) -> Callable[[], Figures]:
    def once() -> Figures:
        with measured(clocks) as found:
            frame.write.format("noop").mode("overwrite").save()
        return {"rows_per_s": rows / found["seconds"], **found.per_million(rows)}

    return once


def _check_same(frames: dict[str, DataFrame], rows: int) -> None:
    """Everybody reads the same rows: as many, with the same keys, values and places."""
    sums = ("count(*)", "sum(crc32(key))", "sum(crc32(value))", "sum(sequence)", "count(history)")
    found = {name: tuple(frame.selectExpr(*sums).head() or ()) for name, frame in frames.items()}
    if len(set(found.values())) != 1 or found[cases.TIDEMARK][0] != rows:
        raise RunFailedError(f"{rows:,} rows were put, and read differently: {found}")


def _one_trigger(setting: Setting, broker: Broker, checkpoint: Path, rows: int) -> Figures:
    """The whole stream as the first micro-batch of a query. Its time is that of the trigger, as Spark tells it."""
    query = (
        setting.following(broker, STREAM)
        .writeStream.format("noop")
        .option("checkpointLocation", str(checkpoint))
        .trigger(availableNow=True)
        .start()
    )
    query.awaitTermination()
    batches = [progress for progress in query.recentProgress if progress["numInputRows"]]
    shutil.rmtree(checkpoint)
    if [batch["numInputRows"] for batch in batches] != [rows]:
        raise RunFailedError(f"one micro-batch of {rows:,} rows was expected, not {batches}")
    seconds = batches[0]["durationMs"]["triggerExecution"] / 1e3
    return {"rows_per_s": rows / seconds}


# Growth --------------------------------------------------------------------------------------------


def growth(case: Case, setting: Setting, results: Results) -> None:
    """Streams of several sizes in one broker, read in turn: whole, what changed of them, and in small micro-batches."""
    sizes = dict(zip(case.contestants, map(setting.scale.rows, case.sizes), strict=True))
    changed = min(CHANGED, min(sizes.values()))
    rows = Rows(case.value_bytes)
    with setting.place("growth") as folder, setting.broker() as broker:
        memory: dict[str, float] = {}
        for name, keys in sizes.items():
            before = broker.server.rss_bytes()
            rows.fill(broker.client.stream(name, create=True), 0, keys)
            memory[name] = (broker.server.rss_bytes() - before) / keys
            setting.say(f"  {keys:,} keys are there")
        rounds = max(1, setting.scale.rounds // 2)
        for number, name in in_turn(case.contestants, rounds + 1):
            broker.release_pins(name)
            whole = reading(setting.stream(broker, name), sizes[name], broker.clocks)()
            after = rows.update(broker.client.stream(name), sizes[name], changed)
            news = setting.stream(broker, name, startingOffsets=json.dumps({"0": after}))
            part = reading(news, changed, broker.clocks)()
            small = trickle(setting, broker, name, folder / "checkpoint")
            if number:  # the first round warms up
                figures = {**whole, "rss_bytes_per_key": memory[name], "trigger_ms": small["trigger_ms"]}
                results.add(case.name, name, figures | {f"changed_{key}": part[key] for key in part})
