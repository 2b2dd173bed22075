"""What a pipeline leaves on the disk beside its checkpoints: a lock while it runs, and a small file with its numbers.

    <state>/lock            the process that runs the pipeline holds it
    <state>/status.json     how every sink was doing a moment ago
    <state>/<sink>/…        Spark's checkpoint, and what the sink's rows are made by

`facts` is what `tidemark pipeline status` shows: this file, the marks that sinks hold, and the lag that the broker counts.

Invariant: a status file is always whole.
"""

from __future__ import annotations

import contextlib
import fcntl
import json
import os
import time
from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING, Any

import tidemark.client
from tidemark.errors import TidemarkError
from tidemark_spark.errors import PipelineRuns
from tidemark_spark.offsets import spread
from tidemark_spark.pipeline.sinks import make_sink
from tidemark_spark.pipeline.tracking import reached

if TYPE_CHECKING:
    from tidemark_spark.pipeline.file import Pipeline, SinkTable, Source
    from tidemark_spark.pipeline.tracking import SinkStatus
    from tidemark_spark.pipeline.values import Mark

ASK_S = 10.0


@contextlib.contextmanager
def locked(pipeline: Pipeline) -> Iterator[None]:
    """Be the only process that runs this pipeline.

    Raises:
        PipelineRuns: another one does.
    """
    pipeline.state.mkdir(parents=True, exist_ok=True)
    path = pipeline.state / "lock"
    with path.open("a+", encoding="utf-8") as file:
        try:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError:
            file.seek(0)
            raise PipelineRuns(
                pipeline=pipeline.name, state=str(pipeline.state), pid=file.read().strip() or "?"
            ) from None
        file.seek(0)
        file.truncate()
        file.write(str(os.getpid()))
        file.flush()
        yield


def runs(pipeline: Pipeline) -> bool:
    """Whether a process of this machine runs it now."""
    try:
        with (pipeline.state / "lock").open("r", encoding="utf-8") as file:
            fcntl.flock(file, fcntl.LOCK_SH | fcntl.LOCK_NB)
    except FileNotFoundError:
        return False
    except OSError:
        return True
    return False


def write_status(pipeline: Pipeline, began_ms: int, sinks: Sequence[SinkStatus]) -> None:
    facts = {
        "pipeline": pipeline.name,
        "pid": os.getpid(),
        "began_ms": began_ms,
        "at_ms": time.time_ns() // 1_000_000,
        "sinks": [one.to_json() for one in sinks],
    }
    target = pipeline.state / "status.json"
    part = target.with_suffix(".part")
    part.write_text(json.dumps(facts, indent=1), "utf-8")
    part.replace(target)


def read_status(pipeline: Pipeline) -> dict[str, Any] | None:
    try:
        found: dict[str, Any] = json.loads((pipeline.state / "status.json").read_text("utf-8"))
    except (OSError, ValueError):
        return None
    return found


def held_mark(pipeline: Pipeline, table: SinkTable) -> Mark | None:
    """How far a sink says that it has got.

    Raises:
        SinkUnavailable, SinkRefused
    """
    sink = make_sink(table.name, pipeline.name, table.kind, table.options)
    try:
        return sink.open()
    finally:
        sink.close()


def sequence_in(mark: Mark | None, stream: str, shards: int) -> int:
    """The sequence of one stream up to which a sink holds everything."""
    held = {} if mark is None else mark.position.get(stream, {})
    stored = {int(shard): place for shard, place in held.items()}
    return min((at for _, at in spread(stored, shards).values()), default=0)


def behind(source: Source, mark: Mark | None) -> tuple[int, int, int]:
    """How many rows of a stream a mark does not cover, up to which sequence the stream goes, and its shards.

    Raises:
        NotConnected, TidemarkError: of the broker.
    """
    with tidemark.client.connect(source.url, timeout=ASK_S, name="tidemark pipeline") as db:
        stream = db.stream(source.stream)
        head = stream.client.heads([source.stream])[source.stream]
        lag = stream.lag(sequence_in(mark, source.stream, head.shards))
        return lag.rows, head.sequence, head.shards


def facts(pipeline: Pipeline, tables: Sequence[SinkTable]) -> list[dict[str, Any]]:
    """How each sink is doing, from everybody who knows."""
    running = runs(pipeline)
    last = {one["sink"]: one for one in (read_status(pipeline) or {}).get("sinks", [])}
    found = []
    for table in tables:
        known = last.get(table.name, {})
        state = known.get("state", "new")
        if not running and state not in ("new", "done", "stopped", "failed"):
            state = "ended without a word"
        one: dict[str, Any] = {"sink": table.name, "kind": table.kind, "mode": table.mode, "state": state}
        mark: Mark | None = None
        problem: str | None = None
        try:
            mark = held_mark(pipeline, table)
        except TidemarkError as error:
            # An embedded database lets one process in at a time; while the pipeline runs, its own word counts.
            if not running:
                problem = str(error)
        one["sequence"] = reached(mark) if mark is not None else (known.get("sequence") if running else None)
        one["boundary"] = mark.boundary if mark is not None else bool(known.get("boundary")) and running
        one["at_ms"] = mark.at_ms if mark is not None else known.get("boundary_at_ms")
        one["batch"] = mark.batch if mark is not None else known.get("batch")
        lag: int | None = 0
        try:
            for source in pipeline.chain(table).sources:
                at = mark
                if at is None and running and known.get("lag_rows") is not None:
                    lag = known["lag_rows"]
                    continue
                rows, _, _ = behind(source, at)
                lag = (lag or 0) + rows
        except TidemarkError as error:
            lag, problem = None, problem or str(error)
        one["lag_rows"] = lag
        one["rows_per_s"] = known.get("rows_per_s", 0.0) if running else 0.0
        one["dead_letters"] = known.get("dead_letters", 0)
        one["error"] = problem or known.get("error")
        found.append(one)
    return found
