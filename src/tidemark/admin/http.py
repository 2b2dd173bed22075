"""The management API behind uvicorn."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator

import uvicorn
from uvicorn.protocols.http.auto import AutoHTTPProtocol

from tidemark.admin.app import application
from tidemark.runtime.server import Server

STOP_S = 2


class HttpServer(uvicorn.Server):
    @contextlib.contextmanager
    def capture_signals(self) -> Iterator[None]:
        """Signals are the broker's business."""
        yield


def http_server(server: Server) -> HttpServer:
    config = uvicorn.Config(
        application(server),
        http=AutoHTTPProtocol,
        ws="none",
        lifespan="off",
        log_config=None,
        access_log=False,
        server_header=False,
        timeout_graceful_shutdown=STOP_S,
        limit_concurrency=200,
        h11_max_incomplete_event_size=64 << 10,
    )
    return HttpServer(config)
