"""What tests of the source share: a streaming read, a run of it, and what each of its batches held."""

from __future__ import annotations

import hashlib
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Any

from tidemark_spark.offsets import Offset

if TYPE_CHECKING:
    from conftest import SparkBroker
    from pyspark.sql import DataFrame, SparkSession
    from pyspark.sql.streaming import StreamingQuery


def batch_of(spark: SparkSession, broker: SparkBroker, stream: str, **options: Any) -> DataFrame:
    return _load(spark.read, broker, stream, options)


def stream_of(spark: SparkSession, broker: SparkBroker, stream: str, **options: Any) -> DataFrame:
    return _load(spark.readStream, broker, stream, options)


def _load(reader: Any, broker: SparkBroker, stream: str, options: dict[str, Any]) -> DataFrame:
    reader = reader.format("tidemark").option("tidemark.url", broker.url).option("subscribe", stream)
    if (schema := options.pop("schema", None)) is not None:
        reader = reader.schema(schema)
    for name, value in options.items():
        reader = reader.option(name, value)
    found: DataFrame = reader.load()
    return found


class Sink:
    """Holds what a query gave it: the newest version of each key, and a hash of what each batch held.

    `fail_in` is the batch in which it raises when it has read all of it: for Spark that batch is not complete.
    """

    def __init__(self) -> None:
        self.state: dict[bytes, bytes] = {}
        self.hashes: dict[int, set[str]] = {}
        self.sizes: dict[int, int] = {}
        self.states: list[dict[bytes, bytes]] = []
        """After each batch."""
        self.versions: dict[bytes, list[int]] = {}
        """Sequences of each key in the order in which they came."""
        self.mark = -1
        """The last batch that it has."""
        self.fail_in: int | None = None
        self.after: Callable[[int], object] = lambda _batch: None
        """Called in each batch when it was read."""

    def __call__(self, frame: DataFrame, batch: int) -> None:
        rows = sorted(
            (row.sequence, bytes(row.key), bytes(row.value), row.deleted) for row in frame.collect()
        )
        self.hashes.setdefault(batch, set()).add(hashlib.sha256(repr(rows).encode()).hexdigest())
        self.sizes[batch] = len(rows)
        self.after(batch)
        if batch == self.fail_in:
            raise RuntimeError("the sink fails here, as the test wants it")
        if batch <= self.mark:
            return  # it has it: the query was stopped before Spark knew
        self.mark = batch
        for sequence, key, value, deleted in rows:
            self.versions.setdefault(key, []).append(sequence)
            self.state.pop(key, None)
            if not deleted:
                self.state[key] = value
        self.states.append(dict(self.state))


def start(frame: DataFrame, checkpoint: Path, sink: Sink, **trigger: Any) -> StreamingQuery:
    trigger = trigger or {"availableNow": True}
    writer = frame.writeStream.foreachBatch(sink).option("checkpointLocation", str(checkpoint))
    return writer.trigger(**trigger).start()


def run(frame: DataFrame, checkpoint: Path, sink: Sink) -> None:
    """What is there now, in as many batches as it takes. Raises what the query failed with."""
    query = start(frame, checkpoint, sink)
    try:
        assert query.awaitTermination(100), "the query did not end"
    finally:
        query.stop()


def ends(checkpoint: Path) -> list[Offset]:
    """The ends of all batches that were planned, as they stand in the checkpoint."""
    files = sorted(
        (one for one in (checkpoint / "offsets").iterdir() if one.name.isdecimal()),
        key=lambda one: int(one.name),
    )
    return [Offset.from_json(one.read_text().splitlines()[-1]) for one in files]
