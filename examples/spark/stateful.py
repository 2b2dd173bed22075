"""A processor with state: how often each order was revised, by `transformWithState`, kept in a stream.

A keyed stream shows the newest version of a key, so this counts versions that were *seen*, not all that were made.
Run it against a broker on this machine: python examples/spark/stateful.py
"""

from __future__ import annotations

import os
import tempfile
from collections.abc import Iterator
from typing import Any

from pyspark.sql import Row, SparkSession
from pyspark.sql.streaming import StatefulProcessor, StatefulProcessorHandle
from pyspark.sql.types import LongType, StringType, StructField, StructType

import tidemark.client

URL = os.environ.get("TIDEMARK_URL", "tidemark://guest:guest@127.0.0.1:5672/")
COUNTED = StructType([StructField("key", StringType()), StructField("value", StringType())])


class Revisions(StatefulProcessor):
    """Counts the versions of each key."""

    def init(self, handle: StatefulProcessorHandle) -> None:
        self._seen = handle.getValueState("seen", StructType([StructField("count", LongType())]))

    def handleInputRows(self, key: Any, rows: Iterator[Row], timerValues: Any) -> Iterator[Row]:  # noqa: ARG002, N802, N803
        before = self._seen.get()[0] if self._seen.exists() else 0
        count = before + sum(1 for _ in rows)
        self._seen.update((count,))
        yield Row(key=key[0], value=str(count))

    def close(self) -> None:
        pass


def main(spark: SparkSession, url: str = URL) -> dict[str, int]:
    with tidemark.client.connect(url) as db, tempfile.TemporaryDirectory() as checkpoint:
        source = db.stream("example.revised", create=True)
        db.stream("example.revisions", create=True)
        for turn in range(3):
            source.put_many([(f"o-{n}", f"version {turn}") for n in range(20) if n % (turn + 1) == 0])
            query = (
                spark.readStream.format("tidemark")
                .option("tidemark.url", url)
                .option("subscribe", "example.revised")
                .load()
                .selectExpr("CAST(key AS STRING) AS key")
                .groupBy("key")
                .transformWithState(
                    statefulProcessor=Revisions(),
                    outputStructType=COUNTED,
                    outputMode="Append",
                    timeMode="None",
                )
                .writeStream.format("tidemark")
                .option("tidemark.url", url)
                .option("stream", "example.revisions")
                .option("checkpointLocation", checkpoint)
                .outputMode("append")
                .trigger(availableNow=True)
                .start()
            )
            query.awaitTermination()
        counts = {
            row.key.decode(): int(row.value)
            for row in db.stream("example.revisions").snapshot()
            if row.key is not None
        }
    print("versions seen:", counts)
    return counts


if __name__ == "__main__":
    from tidemark_spark.session import build_session

    main(build_session("stateful", fast_start=True))
