"""Runs a pipeline: one delivery a sink, each for itself, until all are over or somebody stops it.

The main thread only looks: it draws, writes the status file and listens for signals. The first SIGINT or SIGTERM lets
every sink finish its batch, the second ends at once; both are safe, because what is not applied is done again. A
watcher asks the broker how much lies behind each mark.

Invariant: a sink that fails ends alone; the others go on, and the run's result says so.
"""

from __future__ import annotations

import contextlib
import os
import signal
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from concurrent.futures import TimeoutError as FutureTimeout
from dataclasses import dataclass
from types import FrameType
from typing import TYPE_CHECKING, Protocol

import tidemark.client
from tidemark.errors import TidemarkError
from tidemark_spark.pipeline.delivery import Delivery
from tidemark_spark.pipeline.report import Reporter
from tidemark_spark.pipeline.status import locked, sequence_in, write_status
from tidemark_spark.pipeline.tracking import SinkStatus, State, Tracker

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

    from tidemark.client import Client
    from tidemark_spark.pipeline.file import Pipeline, SinkTable, Source
    from tidemark_spark.pipeline.values import Mark

LOOK_S = 0.25
WATCH_S = 1.0
ASK_S = 2.0
ABORT_S = 5.0


class View(Protocol):
    """Who shows a run."""

    def look(self, sinks: Sequence[SinkStatus]) -> None: ...


@dataclass(frozen=True, slots=True)
class Summary:
    seconds: float
    sinks: tuple[SinkStatus, ...]
    signals: int

    @property
    def failed(self) -> tuple[str, ...]:
        return tuple(one.sink for one in self.sinks if one.state is State.FAILED)


class Runner:
    def __init__(
        self,
        pipeline: Pipeline,
        tables: Sequence[SinkTable],
        *,
        once: bool = False,
        accept_change: bool = False,
        views: Sequence[View] = (),
        log: str = "Spark's log",
        report: bool = True,
    ) -> None:
        self._pipeline = pipeline
        self._reports = report
        self._trackers = [Tracker(one.name, one.kind, one.mode) for one in tables]
        self._tables = tables
        self._once, self._accept_change = once, accept_change
        self._views = views
        self._log = log
        self._signals = 0
        self._asked = threading.Event()

    def statuses(self) -> list[SinkStatus]:
        return [one.status() for one in self._trackers]

    def stop(self) -> None:
        """As the first signal does; a second call ends at once."""
        self._signals += 1
        self._asked.set()

    def run(self, start_session: Callable[[], SparkSession]) -> Summary:
        """Run until all sinks are over.

        Raises:
            PipelineRuns: another process runs this pipeline.
        """
        began, began_ms = time.monotonic(), time.time_ns() // 1_000_000
        with locked(self._pipeline), self._listening(), self._reporting(began_ms):
            self._show(began_ms)
            session = self._start(start_session, began_ms)
            # Queries that all start at once take the processor from one another, and Spark gives each only ten seconds.
            starts = threading.Semaphore(max(1, min(4, os.cpu_count() or 1)))
            deliveries = [
                Delivery(
                    self._pipeline,
                    table,
                    session,
                    tracker,
                    once=self._once,
                    accept_change=self._accept_change,
                    log=self._log,
                    starts=starts,
                )
                for table, tracker in zip(self._tables, self._trackers, strict=True)
            ]
            if self._signals:
                for tracker in self._trackers:
                    tracker.became(State.STOPPED)
            else:
                for one in deliveries:
                    one.start()
                self._attend(deliveries, began_ms)
            self._show(began_ms)
        return Summary(time.monotonic() - began, tuple(self.statuses()), self._signals)

    def _start(self, start_session: Callable[[], SparkSession], began_ms: int) -> SparkSession:
        """Start Spark in another thread: in this one it would take our signals over."""
        with ThreadPoolExecutor(1, thread_name_prefix="spark") as starter:
            starting = starter.submit(start_session)
            while self._signals < 2:
                try:
                    return starting.result(LOOK_S)
                except FutureTimeout:
                    self._show(began_ms)
            return starting.result()

    def _attend(self, deliveries: Sequence[Delivery], began_ms: int) -> None:
        watcher = Watcher(self._pipeline, self._tables, self._trackers)
        watcher.start()
        heard, abort_at = 0, 0.0
        try:
            while not all(one.join(0) for one in deliveries):
                if self._signals > heard:
                    heard = self._signals
                    for one in deliveries:
                        one.stop() if heard == 1 else one.abort()
                    abort_at = time.monotonic() + ABORT_S
                if heard > 1 and time.monotonic() > abort_at:
                    return
                self._show(began_ms)
                self._asked.wait(LOOK_S)
                self._asked.clear()
        finally:
            watcher.close()

    def _show(self, began_ms: int) -> None:
        sinks = self.statuses()
        with contextlib.suppress(OSError):
            write_status(self._pipeline, began_ms, sinks)
        for view in self._views:
            view.look(sinks)

    @contextlib.contextmanager
    def _reporting(self, began_ms: int) -> Iterator[None]:
        """Tell the brokers how it goes."""
        if not self._reports:
            yield
            return
        reporter = Reporter(self._pipeline, self._tables, began_ms, self.statuses)
        reporter.start()
        try:
            yield
        finally:
            reporter.close()

    # Signals ------------------------------------------------------------------------------------

    @contextlib.contextmanager
    def _listening(self) -> Iterator[None]:
        if threading.current_thread() is not threading.main_thread():
            yield
            return
        before = {
            number: signal.signal(number, self._on_signal) for number in (signal.SIGINT, signal.SIGTERM)
        }
        try:
            yield
        finally:
            for number, handler in before.items():
                signal.signal(number, handler)

    def _on_signal(self, _number: int, _frame: FrameType | None) -> None:
        self.stop()


class Watcher:
    """Asks the broker, again and again, how much lies behind each sink's mark."""

    def __init__(self, pipeline: Pipeline, tables: Sequence[SinkTable], trackers: Sequence[Tracker]) -> None:
        self._pipeline = pipeline
        self._sinks = [
            (pipeline.chain(table).sources, tracker) for table, tracker in zip(tables, trackers, strict=True)
        ]
        self._clients: dict[str, Client] = {}
        self._over = threading.Event()
        self._thread = threading.Thread(target=self._run, name="watcher", daemon=True)

    def start(self) -> None:
        self._thread.start()

    def close(self) -> None:
        """Look once more, so that the last numbers are true."""
        self._over.set()
        self._thread.join(2 * ASK_S)
        if not self._thread.is_alive():
            self._look()
        for client in self._clients.values():
            client.close()

    def _run(self) -> None:
        while not self._over.wait(WATCH_S):
            self._look()

    def _look(self) -> None:
        for sources, tracker in self._sinks:
            # A broker that is away is the query's business; the lag just stays unknown.
            with contextlib.suppress(TidemarkError, OSError, ValueError):
                tracker.behind(*self._behind(sources, tracker.mark))

    def _behind(self, sources: Sequence[Source], mark: Mark | None) -> tuple[int, int]:
        rows, head = 0, 0
        for source in sources:
            if source.url not in self._clients:
                name = f"pipeline {self._pipeline.name} watcher"
                self._clients[source.url] = tidemark.client.connect(source.url, timeout=ASK_S, name=name)
            stream = self._clients[source.url].stream(source.stream)
            end = stream.client.heads([source.stream])[source.stream]
            rows += stream.lag(sequence_in(mark, source.stream, end.shards)).rows
            head = max(head, end.sequence)
        return rows, head
