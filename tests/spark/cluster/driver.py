"""What the cluster test runs as its driver: `python driver.py MASTER BROKER_URL STREAM FOLDER`.

It reads the stream on the executors and writes it to STREAM.batch; mirrors it, as a query, to STREAM.stream; and writes
STREAM.speculative with a task whose first attempt hangs after it has staged rows. It prints one line of JSON.
"""

from __future__ import annotations

import json
import sys
import time
from collections.abc import Iterator
from typing import Any

from tidemark_spark.session import build_session

ROWS_OF_SLOW_TASK = 70_000
"""More than the sink puts at once, so that the attempt that hangs has staged some."""


def main(master: str, url: str, stream: str, folder: str) -> None:
    spark = build_session(
        "tidemark-cluster-test",
        master=master,
        checkpoints=folder,
        fast_start=True,
        conf={
            "spark.driver.host": "127.0.0.1",
            "spark.driver.bindAddress": "127.0.0.1",
            "spark.ui.enabled": "false",
            "spark.local.dir": f"{folder}/driver",
            "spark.executor.memory": "600m",
            "spark.executor.extraJavaOptions": "-XX:TieredStopAtLevel=1 -XX:+UseSerialGC",
            "spark.sql.shuffle.partitions": "2",
            "spark.scheduler.minRegisteredResourcesRatio": "1.0",
            "spark.scheduler.maxRegisteredResourcesWaitingTime": "30s",
            "spark.speculation": "true",
            "spark.speculation.interval": "200ms",
            "spark.speculation.multiplier": "1.1",
            "spark.speculation.quantile": "0.5",
            "spark.speculation.minTaskRuntime": "500ms",
        },
    )
    options = {"tidemark.url": url, "subscribe": stream, "includeHeaders": "true", "minPartitions": "2"}
    target = {"tidemark.url": url, "createStream": "true"}

    frame = spark.read.format("tidemark").options(**options).load()
    frame.write.format("tidemark").mode("append").options(**target, stream=f"{stream}.batch").save()

    changes = spark.readStream.format("tidemark").options(**options, maxOffsetsPerTrigger="4000").load()
    query = changes.writeStream.format("tidemark").options(**target, stream=f"{stream}.stream")
    query = query.option("checkpointLocation", f"{folder}/checkpoint").trigger(availableNow=True).start()
    query.awaitTermination()
    batches = len([progress for progress in query.recentProgress if progress["numInputRows"]])

    ids = spark.range(0, 2 * ROWS_OF_SLOW_TASK, numPartitions=2)
    rows = ids.mapInArrow(_hanging, "key STRING, value STRING")
    begun = time.monotonic()
    rows.write.format("tidemark").mode("append").options(**target, stream=f"{stream}.speculative").save()
    seconds = time.monotonic() - begun

    print(json.dumps({"batches": batches, "seconds": seconds}))
    spark.stop()


def _hanging(batches: Iterator[Any]) -> Iterator[Any]:
    """Rows that say which attempt made them; the first attempt of the second task does not end in time."""
    import time

    import pyarrow as pa
    from pyspark import TaskContext

    context = TaskContext.get()
    assert context is not None
    attempt = context.attemptNumber()
    for batch in batches:
        keys = [str(number) for number in batch.column(0).to_pylist()]
        yield pa.RecordBatch.from_pydict({"key": keys, "value": [str(attempt)] * len(keys)})
    if context.partitionId() == 1 and attempt == 0:
        time.sleep(300)


if __name__ == "__main__":
    main(*sys.argv[1:])
