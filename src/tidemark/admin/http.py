"""An application behind uvicorn, with time limits for what comes in.

uvicorn waits for ever for a request that has begun. Here every connection is looked at each second: one that has not brought a
whole request within the time allowed is closed. A body may take longer, as long as it keeps coming at some speed; and so may an
answer, as long as some of it is taken now and then. So nobody can use up the connections, or the memory that answers wait
in, by being slow.

Invariant: a connection on which nothing moves is closed after a bounded time, unless its answer is still being made.
"""

from __future__ import annotations

import asyncio
import contextlib
import ssl
from collections.abc import Iterator
from typing import Any

import uvicorn
from uvicorn.protocols.http.h11_impl import H11Protocol

STOP_S = 2
LOOK_S = 1.0
REQUEST_S = 15.0
"""How long a request may take to arrive."""
BODY_BYTES_S = 16 << 10
"""A body that comes at least this fast may take longer."""
UNREAD_S = 15.0
"""How long nothing of an answer may be taken."""
CONNECTIONS_MAX = 400
HEAD_BYTES_MAX = 64 << 10


class HttpServer(uvicorn.Server):
    @contextlib.contextmanager
    def capture_signals(self) -> Iterator[None]:
        """Signals are the broker's business."""
        yield


class TimedProtocol(H11Protocol):
    """Closes a connection that takes too long to ask."""

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]
        super().connection_made(transport)
        self._since = self.loop.time()
        self._received = 0
        self._unsent = 0
        self._taken_at = self._since
        """When something of the answer was taken last, or nothing of it waited."""
        self._look_timer = self.loop.call_later(LOOK_S, self._look)

    def data_received(self, data: bytes) -> None:
        if self._is_answering():
            # Of the next request; its time begins when this one is answered.
            self._received = 0
        self._received += len(data)
        super().data_received(data)

    def on_response_complete(self) -> None:
        self._since, self._received = self.loop.time(), 0
        super().on_response_complete()

    def connection_lost(self, exc: Exception | None) -> None:
        self._look_timer.cancel()
        super().connection_lost(exc)

    def _is_answering(self) -> bool:
        """It has a whole request and works on the answer."""
        cycle = self.cycle
        return cycle is not None and not cycle.response_complete and not cycle.more_body

    def _look(self) -> None:
        self._look_timer = self.loop.call_later(LOOK_S, self._look)
        now = self.loop.time()
        unsent = self.transport.get_write_buffer_size()
        if not unsent or unsent != self._unsent:
            self._unsent, self._taken_at = unsent, now
        if self._is_answering() or unsent:
            self._since = now
            if now - self._taken_at > UNREAD_S:
                # It has nobody who reads it.
                self.transport.abort()
            return
        allowed = REQUEST_S + self._received / BODY_BYTES_S
        if now - self._since > allowed:
            self.transport.abort()


class _Config(uvicorn.Config):
    """With a context for TLS that was made elsewhere."""

    context: ssl.SSLContext | None = None

    def load(self) -> None:
        super().load()
        self.ssl = self.context


def http_servers(app: Any, contexts: list[ssl.SSLContext | None]) -> list[HttpServer]:
    """One for each listener, all with the same application."""
    made = []
    for context in contexts:
        config = _Config(
            app,
            http=TimedProtocol,
            ws="none",
            lifespan="off",
            log_config=None,
            access_log=False,
            server_header=False,
            timeout_graceful_shutdown=STOP_S,
            limit_concurrency=CONNECTIONS_MAX,
            h11_max_incomplete_event_size=HEAD_BYTES_MAX,
        )
        config.context = context
        made.append(HttpServer(config))
    return made
