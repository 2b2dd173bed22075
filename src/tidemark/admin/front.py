"""The admin port of a front: whether it is well, what it does, and who is connected.

    /health     200 if main tells the front its wiring, else 503 with the reason
    /metrics    its numbers for Prometheus; nothing is named but groups
    /api/front  its groups and its connections, for whoever asks from this machine

A front has no users of its own to ask for a password, so there is no login: names are for its own machine only. It listens only
where `listen.admin` is set; the default of brokers would be taken by the broker beside it.

Invariant: however often it is asked for its health, at most one question to main is on its way.
"""

from __future__ import annotations

import asyncio
import os
import socket
import ssl
from collections import Counter
from collections.abc import AsyncIterator
from itertools import islice
from typing import TYPE_CHECKING, Any

from starlette.applications import Starlette
from starlette.requests import Request
from starlette.responses import JSONResponse, Response, StreamingResponse
from starlette.routing import Route

from tidemark import __version__
from tidemark.admin.answers import refusal
from tidemark.admin.prometheus.text import Family, encoder, told
from tidemark.config import Config
from tidemark.frontend.services import PeerInfo
from tidemark.router.connection import Router
from tidemark.router.streams import StreamRouter
from tidemark.runtime.authenticator import is_loopback
from tidemark.runtime.front_server import FrontServer, Socket, Speaker
from tidemark.runtime.listening import bound
from tidemark.runtime.log import Log
from tidemark.runtime.tls import server_context

if TYPE_CHECKING:
    from tidemark.admin.http import HttpServer

WELL_S = 0.8
"""How long main may take to answer a front that is called well."""
CLIENTS_MAX = 1000
"""Connections that are listed one by one."""


class WatchedFront(FrontServer):
    """A front that remembers who is connected."""

    def __init__(self, config: Config, log: Log) -> None:
        super().__init__(config, log)
        self.clients: dict[Speaker, None] = {}
        self.opened = 0
        self._received = self._sent = 0
        """Of clients that have gone."""

    def accepted(self, one: Socket, peer: PeerInfo) -> Router:
        router = super().accepted(one, peer)
        self.clients[router] = None
        self.opened += 1
        return router

    def speaks_streams(self, one: Socket, router: Router) -> StreamRouter:
        found = super().speaks_streams(one, router)
        del self.clients[router]
        self.clients[found] = None
        return found

    def disconnected(self, one: Socket) -> None:
        super().disconnected(one)
        router = one.machine
        if isinstance(router, Router | StreamRouter) and router in self.clients:
            del self.clients[router]
            self._received += router.bytes_in
            self._sent += router.bytes_out

    @property
    def received_bytes(self) -> int:
        return self._received + sum(router.bytes_in for router in self.clients)

    @property
    def sent_bytes(self) -> int:
        return self._sent + sum(router.bytes_out for router in self.clients)


class FrontAdmin:
    def __init__(self, front: WatchedFront) -> None:
        self._front = front
        self._fresh: asyncio.Future[None] | None = None
        """Main's answer, while it is waited for."""
        self._listeners: list[tuple[str, socket.socket, ssl.SSLContext | None]] = []
        self._running: list[tuple[HttpServer, asyncio.Task[None]]] = []

    # Listening -----------------------------------------------------------------------------

    def bind(self) -> None:
        """Take the addresses.

        Raises:
            ConfigError: one is in use, or the certificate cannot be used.
        """
        config = self._front.config_of_all
        for name in ("admin", "admins"):
            text = getattr(config.listen, name)
            if text and config.origins[f"listen.{name}"] != "default":
                context = server_context(config.tls) if name == "admins" else None
                listener, self._front.addresses[name] = bound(name, text, config.listen.backlog)
                self._listeners.append((name, listener, context))

    async def start(self) -> None:
        if not self._listeners:
            return
        from tidemark.admin.http import http_servers

        loop = asyncio.get_running_loop()
        servers = http_servers(self.application(), [context for _, _, context in self._listeners])
        for (name, listener, _), http in zip(self._listeners, servers, strict=True):
            task = loop.create_task(http.serve(sockets=[listener]))
            self._running.append((http, task))
            while not http.started and not task.done():
                await asyncio.sleep(0)
            self._front.log.info("listening", on=name, address=self._front.addresses[name])

    async def stop(self) -> None:
        for http, _ in self._running:
            http.should_exit = True
        await asyncio.gather(*(task for _, task in self._running))

    # Answers -------------------------------------------------------------------------------

    def application(self) -> Starlette:
        return Starlette(
            routes=[
                Route("/health", self._health),
                Route("/metrics", self._metrics),
                Route("/api/front", self._described),
            ]
        )

    async def problem(self) -> str:
        """Why the front is of no use to clients now; empty: it is."""
        if self._front.stopping.is_set():
            return "the front is stopping"
        if self._fresh is None or self._fresh.done():
            self._fresh = asyncio.get_running_loop().create_future()
            self._front.wiring.fresh(self._answered)
        await asyncio.wait([self._fresh], timeout=WELL_S)
        return "" if self._fresh.done() else "no leader of the group 'main' tells the front its wiring"

    def _answered(self) -> None:
        assert self._fresh is not None
        if not self._fresh.done():
            self._fresh.set_result(None)

    async def _health(self, _: Request) -> Response:
        problem = await self.problem()
        if problem:
            return JSONResponse({"status": "failed", "reason": problem}, 503)
        return JSONResponse({"status": "ok"})

    async def _described(self, request: Request) -> Response:
        client = request.client
        if client is None or not is_loopback(client.host):
            return refusal(403, "forbidden", "connections are told on the front's own machine only")
        front = self._front
        problem = await self.problem()
        facts: dict[str, Any] = {
            "name": front.config_of_all.node.name,
            "state": "waiting" if problem else "serving",
            "why": problem,
            "version": __version__,
            "pid": os.getpid(),
            "groups": {group: [str(one) for one in members] for group, members in front.members.items()},
            "connections": len(front.clients),
            "clients": [router.statistics() for router in islice(front.clients, CLIENTS_MAX)],
        }
        return JSONResponse(facts)

    async def _metrics(self, request: Request) -> Response:
        problem = await self.problem()
        encode, kind = encoder(request.headers.get("accept", ""))
        text = told(self._families(not problem), encode, "openmetrics" in kind)
        return StreamingResponse(text, media_type=None, headers={"content-type": kind})

    async def _families(self, well: bool) -> AsyncIterator[Family]:
        front = self._front
        links = Counter(group for router in front.clients for group in router.links)
        yield Family("tidemark_front_connections", [({}, len(front.clients))])
        yield Family("tidemark_front_links", [({"group": group}, links[group]) for group in front.members])
        yield Family("tidemark_front_wiring_up", [({}, well)])
        yield Family("tidemark_front_connections_opened_total", [({}, front.opened)])
        yield Family("tidemark_front_received_bytes_total", [({}, front.received_bytes)])
        yield Family("tidemark_front_sent_bytes_total", [({}, front.sent_bytes)])
