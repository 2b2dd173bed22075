"""The management API as a listener in the broker's own loop."""

from __future__ import annotations

import asyncio
import contextlib
import importlib
import socket
import threading
from typing import TYPE_CHECKING

from tidemark.runtime.server import Server

if TYPE_CHECKING:
    from tidemark.admin.http import HttpServer


class AdminServer:
    def __init__(self, server: Server) -> None:
        self._server = server
        self._listener: socket.socket
        self._http: HttpServer
        self._task: asyncio.Task[None]

    def bind(self) -> None:
        """Take the address, before anything else is done. What `start` needs is imported meanwhile.

        Raises:
            ConfigError: it is in use.
        """
        self._listener = self._server.listener("admin", self._server.config.listen.admin)
        threading.Thread(target=_import, name="tidemark import", daemon=True).start()

    async def start(self) -> None:
        from tidemark.admin.http import http_server

        self._http = http_server(self._server)
        self._task = asyncio.get_running_loop().create_task(self._http.serve(sockets=[self._listener]))
        while not self._http.started and not self._task.done():
            await asyncio.sleep(0)
        self._server.log.info("listening", on="admin", address=self._server.addresses["admin"])

    async def stop(self) -> None:
        self._http.should_exit = True
        await self._task


def _import() -> None:
    # Not before `start` does anybody hear of a problem.
    with contextlib.suppress(Exception):
        importlib.import_module("tidemark.admin.http")
