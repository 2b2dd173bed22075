"""The endpoints of /metrics: who may read which, and what each tells. `admin.metrics` has the routes."""

from __future__ import annotations

import time
from collections.abc import AsyncIterator, Callable, Iterable

from starlette.requests import Request
from starlette.responses import Response, StreamingResponse

from tidemark.admin.answers import Refused
from tidemark.admin.prometheus import families, pipelines
from tidemark.admin.prometheus.families import GROUPS
from tidemark.admin.prometheus.text import Family, encoder, told
from tidemark.admin.visit import authenticated
from tidemark.runtime.server import Server

PER_OBJECT = tuple(
    name
    for name in GROUPS
    if name
    not in ("queue_consumer_count", "node_metrics", "vhost_status", "exchange_bindings", "exchange_names")
)


class Metrics:
    """The three endpoints of one broker."""

    def __init__(self, server: Server) -> None:
        self._server = server
        self._requests = 0
        self._seconds = 0.0

    async def totals(self, request: Request) -> Response:
        await self._admit(request, names=False)
        return self._answer(request, self._totals())

    async def per_object(self, request: Request) -> Response:
        await self._admit(request, names=True)
        return self._answer(request, self._objects(PER_OBJECT, "rabbitmq_", lambda _: True, "per-object"))

    async def detailed(self, request: Request) -> Response:
        await self._admit(request, names=True)
        asked = request.query_params.getlist("family")
        for name in asked:
            if name not in GROUPS:
                raise Refused(
                    400, "bad_request", f"there is no family '{name}'; there are {', '.join(GROUPS)}"
                )
        vhosts = set(request.query_params.getlist("vhost"))
        return self._answer(
            request,
            self._objects(
                tuple(dict.fromkeys(asked)),
                "rabbitmq_detailed_",
                lambda name: not vhosts or name in vhosts,
                "detailed",
            ),
        )

    async def _admit(self, request: Request, *, names: bool) -> None:
        """Raises Refused when the visitor may not see this."""
        access = self._server.config.admin.metrics
        if access == "open" or (access == "totals" and not names):
            return
        await authenticated(self._server, request, "monitoring")

    async def _totals(self) -> AsyncIterator[Family]:
        async for family in families.totals(self._server, "aggregated"):
            yield family
        async for family in families.streams(self._server):
            yield family
        yield families.one("tidemark_scrape_requests_total", self._requests)
        yield families.one("tidemark_scrape_seconds_total", self._seconds)

    async def _objects(
        self, groups: tuple[str, ...], prefix: str, wanted: Callable[[str], bool], endpoint: str
    ) -> AsyncIterator[Family]:
        for family in families.identity(self._server, endpoint):
            yield family
        seen: set[str] = set()
        for name in groups:
            if name == "pipeline_metrics":
                found = await pipelines.reports(self._server, wanted)
                group: Iterable[Family] = pipelines.families(found, prefix.replace("rabbitmq", "tidemark"))
            else:
                group = families.group(self._server, name, prefix, wanted)
            for family in group:
                if family.name not in seen:
                    seen.add(family.name)
                    yield family

    def _answer(self, request: Request, found: AsyncIterator[Family]) -> Response:
        encode, content_type = encoder(request.headers.get("accept", ""))
        text = told(found, encode, content_type.startswith("application/openmetrics"))
        return StreamingResponse(self._timed(text), headers={"content-type": content_type})

    async def _timed(self, text: AsyncIterator[bytes]) -> AsyncIterator[bytes]:
        """The same, counting what it costs: the time until each piece is there, not that until it is sent."""
        self._requests += 1
        while True:
            began = time.thread_time()
            piece = await anext(text, None)
            self._seconds += time.thread_time() - began
            if piece is None:
                return
            yield piece
