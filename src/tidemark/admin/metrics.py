"""/metrics: the broker for Prometheus, as RabbitMQ's plugin has it, on the admin port.

    /metrics                            the whole broker: sums, nothing is named
    /metrics/per-object                 every queue, exchange, connection and channel
    /metrics/detailed?family=…&vhost=…  what is asked for, with names that do not collide with those of /metrics

Who may see them is the setting `admin.metrics`: whoever logs in with the tag `monitoring` ("login"), sums for anybody
("totals"), or all of it for anybody ("open").

Invariant: a visitor without a login never learns the name of anything, unless the setting says that they may.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from functools import cache
from typing import TYPE_CHECKING

from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import BaseRoute, Route

from tidemark.admin.answers import Refused, refusal
from tidemark.errors import TidemarkError
from tidemark.runtime.server import Server

if TYPE_CHECKING:
    from tidemark.admin.prometheus.endpoint import Metrics


def routes(server: Server) -> list[BaseRoute]:
    @cache
    def metrics() -> Metrics:
        # Imported when somebody asks: it would make every start longer.
        from tidemark.admin.prometheus.endpoint import Metrics

        return Metrics(server)

    return [
        Route("/metrics", _answering(server, lambda request: metrics().totals(request))),
        Route("/metrics/per-object", _answering(server, lambda request: metrics().per_object(request))),
        Route("/metrics/detailed", _answering(server, lambda request: metrics().detailed(request))),
    ]


def _answering(
    server: Server, answer: Callable[[Request], Awaitable[Response]]
) -> Callable[[Request], Awaitable[Response]]:
    """With an answer for whatever goes wrong before the first byte."""

    async def endpoint(request: Request) -> Response:
        try:
            return await answer(request)
        except Refused as no:
            headers = {"WWW-Authenticate": 'Basic realm="Tidemark"'} if no.status == 401 else {}
            if no.retry_s:
                headers["Retry-After"] = str(no.retry_s)
            return refusal(no.status, no.error, no.reason, **headers)
        except TidemarkError as error:
            return refusal(503, "unavailable", str(error))
        except Exception as error:
            server.log.error("unexpected exception", where=request.url.path, error=error)
            return refusal(500, "internal_error", "the broker failed; its log has the details")

    return endpoint
