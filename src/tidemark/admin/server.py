"""The management API as a listener in the broker's own loop."""

from __future__ import annotations

import asyncio
import contextlib
import socket
from collections.abc import Iterator

import uvicorn

from tidemark.admin.app import application
from tidemark.runtime.server import Server

STOP_S = 2


class _Uvicorn(uvicorn.Server):
    @contextlib.contextmanager
    def capture_signals(self) -> Iterator[None]:
        """Signals are the broker's business."""
        yield


class AdminServer:
    def __init__(self, server: Server) -> None:
        self._server = server
        self._listener: socket.socket
        self._uvicorn: _Uvicorn
        self._task: asyncio.Task[None]

    def bind(self) -> None:
        """Take the address, before anything else is done.

        Raises:
            ConfigError: it is in use.
        """
        self._listener = self._server.listener("admin", self._server.config.listen.admin)

    async def start(self) -> None:
        config = uvicorn.Config(
            application(self._server),
            lifespan="off",
            log_config=None,
            access_log=False,
            server_header=False,
            timeout_graceful_shutdown=STOP_S,
            limit_concurrency=200,
            h11_max_incomplete_event_size=64 << 10,
        )
        self._uvicorn = _Uvicorn(config)
        self._task = asyncio.get_running_loop().create_task(self._uvicorn.serve(sockets=[self._listener]))
        while not self._uvicorn.started and not self._task.done():
            await asyncio.sleep(0)
        self._server.log.info("listening", on="admin", address=self._server.addresses["admin"])

    async def stop(self) -> None:
        self._uvicorn.should_exit = True
        await self._task
