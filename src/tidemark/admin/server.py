"""The management API as listeners in the broker's own loop: `listen.admin`, and `listen.admins` with TLS."""

from __future__ import annotations

import asyncio
import contextlib
import importlib
import socket
import ssl
import threading
from typing import TYPE_CHECKING

from tidemark.runtime.server import Server
from tidemark.runtime.tls import server_context

if TYPE_CHECKING:
    from tidemark.admin.http import HttpServer


class AdminServer:
    def __init__(self, server: Server) -> None:
        self._server = server
        self._listeners: list[tuple[str, socket.socket, ssl.SSLContext | None]] = []
        self._running: list[tuple[HttpServer, asyncio.Task[None]]] = []

    def bind(self) -> None:
        """Take the addresses, before anything else is done. What `start` needs is imported meanwhile.

        Raises:
            ConfigError: one is in use, or the certificate cannot be used.
        """
        config = self._server.config
        for name in ("admin", "admins"):
            text = getattr(config.listen, name)
            if text:
                context = server_context(config.tls) if name == "admins" else None
                self._listeners.append((name, self._server.listener(name, text), context))
        threading.Thread(target=_import, name="tidemark import", daemon=True).start()

    async def start(self) -> None:
        from tidemark.admin.app import application
        from tidemark.admin.http import http_servers

        loop = asyncio.get_running_loop()
        servers = http_servers(application(self._server), [context for _, _, context in self._listeners])
        for (name, listener, _), http in zip(self._listeners, servers, strict=True):
            task = loop.create_task(http.serve(sockets=[listener]))
            self._running.append((http, task))
            while not http.started and not task.done():
                await asyncio.sleep(0)
            self._server.log.info("listening", on=name, address=self._server.addresses[name])

    async def stop(self) -> None:
        for http, _ in self._running:
            http.should_exit = True
        await asyncio.gather(*(task for _, task in self._running))


def _import() -> None:
    # Not before `start` does anybody hear of a problem.
    with contextlib.suppress(Exception):
        for name in ("tidemark.admin.app", "tidemark.admin.http"):
            importlib.import_module(name)
