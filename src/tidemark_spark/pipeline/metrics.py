"""A run's numbers for Prometheus, as text over HTTP: `GET /metrics`.

The format is a few lines (version 0.0.4 of the text format), so nothing but the standard library is needed. Each number
is one row of `METRICS`; labels are the pipeline and the sink.

Invariant: one answer shows one picture of each sink.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Sequence
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

from tidemark_spark.pipeline.tracking import SinkStatus, State

CONTENT_TYPE = "text/plain; version=0.0.4; charset=utf-8"

METRICS: tuple[tuple[str, str, str, Callable[[SinkStatus], float | int | None]], ...] = (
    ("rows_total", "counter", "Keys read from the stream, tombstones included.", lambda one: one.rows),
    ("upserted_total", "counter", "Rows put into the sink.", lambda one: one.upserted),
    ("deleted_total", "counter", "Rows deleted from the sink.", lambda one: one.deleted),
    ("dead_letters_total", "counter", "Rows sent to the dead letters.", lambda one: one.dead_letters),
    (
        "dropped_total",
        "counter",
        "Rows that failed an expectation and were dropped.",
        lambda one: one.dropped,
    ),
    ("batches_total", "counter", "Micro-batches done.", lambda one: one.batches),
    ("restarts_total", "counter", "Times the query was started again.", lambda one: one.restarts),
    ("rows_per_second", "gauge", "Rows a second over the last half minute.", lambda one: one.rows_per_s),
    ("lag_rows", "gauge", "Unique keys behind the sink's mark.", lambda one: one.lag_rows),
    ("lag_seconds", "gauge", "How long the sink has been behind.", lambda one: one.lag_s),
    ("sequence", "gauge", "The sink holds the stream up to here.", lambda one: one.sequence),
    ("boundary", "gauge", "1 when the sink shows one state of the stream.", lambda one: int(one.boundary)),
    (
        "boundary_timestamp_seconds",
        "gauge",
        "When the sink last showed one state of the stream.",
        lambda one: None if one.boundary_at_ms is None else one.boundary_at_ms / 1000,
    ),
)


def exposition(pipeline: str, sinks: Sequence[SinkStatus]) -> str:
    """The numbers as Prometheus reads them."""
    lines = []
    for name, kind, about, read in METRICS:
        full = f"tidemark_pipeline_{name}"
        lines += [f"# HELP {full} {about}", f"# TYPE {full} {kind}"]
        for one in sinks:
            if (value := read(one)) is not None:
                lines.append(f"{full}{{{_labels(pipeline=pipeline, sink=one.sink, kind=one.kind)}}} {value}")
    full = "tidemark_pipeline_state"
    lines += [f"# HELP {full} 1 for the state that the sink is in.", f"# TYPE {full} gauge"]
    for one in sinks:
        for state in State:
            labels = _labels(pipeline=pipeline, sink=one.sink, state=state.value)
            lines.append(f"{full}{{{labels}}} {int(one.state is state)}")
    return "\n".join(lines) + "\n"


def _labels(**labels: str) -> str:
    def escaped(value: str) -> str:
        return value.replace("\\", "\\\\").replace('"', '\\"').replace("\n", "\\n")

    return ",".join(f'{name}="{escaped(value)}"' for name, value in labels.items())


class MetricsServer:
    """Answers on one address, in a thread of its own, until it is closed."""

    def __init__(self, host: str, port: int, pipeline: str, look: Callable[[], Sequence[SinkStatus]]) -> None:
        class Handler(BaseHTTPRequestHandler):
            def do_GET(self) -> None:
                if self.path.partition("?")[0] not in ("/metrics", "/"):
                    self.send_error(404, "the numbers are at /metrics")
                    return
                body = exposition(pipeline, look()).encode()
                self.send_response(200)
                self.send_header("Content-Type", CONTENT_TYPE)
                self.send_header("Content-Length", str(len(body)))
                self.end_headers()
                self.wfile.write(body)

            def log_message(self, *_: Any) -> None:
                pass

        self._server = ThreadingHTTPServer((host, port), Handler)
        self._server.daemon_threads = True
        self._thread = threading.Thread(target=self._server.serve_forever, name="metrics", daemon=True)
        self._thread.start()

    @property
    def port(self) -> int:
        return int(self._server.server_address[1])

    def close(self) -> None:
        self._server.shutdown()
        self._server.server_close()
