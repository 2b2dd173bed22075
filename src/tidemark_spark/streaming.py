"""What Spark calls for a streaming read. It only translates: micro_batches.py decides.

Spark makes one reader in a process of its own for the life of a query, which plans, and another for the tasks, which
only reads. A thread of the planning one renews the leases of what the query holds and its registration, so that a
batch may take longer than a lease. When the process is killed, which is how Spark ends it, the leases end by themselves.

Invariant: what is pickled and sent to workers holds no connection and no thread.
"""

from __future__ import annotations

import os
import threading
import time
from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING, Any

from pyspark.sql.datasource import DataSourceStreamReader, InputPartition
from pyspark.sql.streaming.datasource import (
    ReadAllAvailable,
    ReadLimit,
    ReadMaxBytes,
    ReadMaxRows,
    SupportsTriggerAvailableNow,
)

from tidemark_spark.broker import BrokerFeed, forget_clients
from tidemark_spark.micro_batches import MicroBatches
from tidemark_spark.offsets import Offset
from tidemark_spark.options import ReadOptions
from tidemark_spark.source import TaskPartition, read_partition

if TYPE_CHECKING:
    from pyarrow import RecordBatch


LOOK_S = 0.25
"""How often it is looked whether a lease has to be renewed."""


class StreamReader(DataSourceStreamReader, SupportsTriggerAvailableNow):
    """A stream as a source of micro-batches."""

    def __init__(self, options: ReadOptions, columns: tuple[str, ...]) -> None:
        self._options = options
        self._columns = columns
        self._planner: MicroBatches | None = None
        self._stopped: threading.Event | None = None

    def __getstate__(self) -> dict[str, Any]:
        return {**self.__dict__, "_planner": None, "_stopped": None}

    def initialOffset(self) -> dict[str, Any]:  # noqa: N802
        return self._plans().initial().to_json()

    def getDefaultReadLimit(self) -> ReadLimit:  # noqa: N802
        options = self._options
        if options.rows_max is not None:
            return ReadMaxRows(options.rows_max)
        if options.bytes_max is not None:
            return ReadMaxBytes(options.bytes_max)
        return ReadAllAvailable()

    def latestOffset(self, start: dict[str, Any], limit: ReadLimit) -> dict[str, Any]:  # noqa: N802
        rows = size = None
        if not isinstance(limit, ReadAllAvailable):
            rows, size = self._options.rows_max, self._options.bytes_max
        if isinstance(limit, ReadMaxRows):
            rows = limit.max_rows
        if isinstance(limit, ReadMaxBytes):
            size = limit.max_bytes
        begin = Offset.from_json(start)
        end = self._plans().latest(begin, rows, size)
        return start if end == begin else end.to_json()

    def reportLatestOffset(self) -> dict[str, Any] | None:  # noqa: N802
        offset = self._plans().report()
        return None if offset is None else offset.to_json()

    def prepareForTriggerAvailableNow(self) -> None:  # noqa: N802
        self._plans().end_with_what_is_there()

    def partitions(self, start: dict[str, Any], end: dict[str, Any]) -> Sequence[InputPartition]:
        tasks = self._plans().tasks(Offset.from_json(start), Offset.from_json(end), self._columns)
        return [TaskPartition(task) for task in tasks]

    def read(self, partition: InputPartition) -> Iterator[RecordBatch]:
        return read_partition(partition)

    def commit(self, end: dict[str, Any]) -> None:
        """A hint, one batch late: what it could do, latestOffset has done with the same end as its start."""

    def stop(self) -> None:
        if self._stopped is not None:
            self._stopped.set()
            forget_clients()

    def _plans(self) -> MicroBatches:
        if self._planner is None:
            planner = self._planner = planner_of(self._options)
            stopped = self._stopped = threading.Event()

            threading.Thread(
                target=keep_leases, args=(planner, stopped), name="tidemark leases", daemon=True
            ).start()
        return self._planner


def keep_leases(planner: MicroBatches, stopped: threading.Event) -> None:
    """Renew what a query holds as often as it needs that. How often turns out when the stream is known."""
    renewed = time.monotonic()
    while not stopped.wait(min(planner.renew_every_s, LOOK_S)):
        if time.monotonic() - renewed >= planner.renew_every_s:
            renewed = time.monotonic()
            planner.renew()


def planner_of(options: ReadOptions) -> MicroBatches:
    """Who plans this read."""
    cores = os.cpu_count() or 2
    if options.queue is not None:
        from tidemark_spark.queues import QueueMicroBatches

        return QueueMicroBatches.of(options, cores=cores)
    assert options.stream is not None
    feed = BrokerFeed(options.url, options.stream, retry_s=options.retry_s, place=options.place)
    return MicroBatches(feed, options, cores=cores)
