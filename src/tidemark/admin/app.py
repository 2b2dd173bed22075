"""The HTTP application: routes of all resources, behind a login.

Names in a path may contain anything, quoted; so routes match the path as it was sent, and resources unquote its
parts. A resource is a function `(Visit) -> Response`; it runs in the loop's thread like everything that touches
the broker.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable

from starlette.applications import Starlette
from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import Route
from starlette.types import ASGIApp, Receive, Scope, Send

from tidemark.admin.answers import Refused, refusal, translated
from tidemark.admin.resources import (
    bindings,
    cluster,
    connections,
    consumers,
    definitions,
    exchanges,
    health,
    overview,
    permissions,
    queues,
    streams,
    users,
    vhosts,
)
from tidemark.admin.visit import Visit, authenticated
from tidemark.errors import TidemarkError
from tidemark.runtime.server import Server

Resource = Callable[[Visit], Awaitable[Response]]
Entry = tuple[str, str, Resource]
"""Method, path below /api, function."""

CHANGING = ("PUT", "POST", "DELETE")

MODULES = (
    overview, health, vhosts, users, permissions, queues, streams, exchanges, bindings, connections, consumers,
    definitions,
)  # fmt: skip


def application(server: Server) -> ASGIApp:
    by_path: dict[str, dict[str, Resource]] = {}
    for module in MODULES:
        for method, path, resource in module.routes:
            by_path.setdefault(f"/api{path}", {})[method] = resource
    # Fixed words before variable ones: /users/bulk-delete is not a user.
    ordered = sorted(by_path.items(), key=lambda item: (item[0].count("{"), item[0]))
    routes = [Route(path, _endpoint(server, methods), methods=list(methods)) for path, methods in ordered]
    routes.append(Route(f"/api{cluster.PATH}", _answering(server, cluster.seen)))
    command = f"/api{cluster.PATH}/{{command}}"
    routes.append(Route(command, _answering(server, cluster.commanded), methods=["POST"]))
    return _Quoted(Starlette(routes=routes, exception_handlers={404: _missing, 405: _wrong_method}))


def _endpoint(server: Server, methods: dict[str, Resource]) -> Callable[[Request], Awaitable[Response]]:
    async def answer(server: Server, request: Request) -> Response:
        visit = await authenticated(server, request)
        if request.method in CHANGING:
            cluster.must_lead(server)
        resource = methods["GET" if request.method == "HEAD" else request.method]
        return await resource(visit)

    return _answering(server, answer)


def _answering(
    server: Server, answer: Callable[[Server, Request], Awaitable[Response]]
) -> Callable[[Request], Awaitable[Response]]:
    """With an answer for whatever goes wrong."""

    async def endpoint(request: Request) -> Response:
        try:
            return await answer(server, request)
        except Refused as no:
            extra = {"WWW-Authenticate": 'Basic realm="Tidemark"'} if no.status == 401 else {}
            return refusal(no.status, no.error, no.reason, **extra)
        except TidemarkError as error:
            return translated(error)
        except Exception as error:
            server.log.error("unexpected exception", where=request.url.path, error=error)
            return refusal(500, "internal_error", "the broker failed; its log has the details")

    return endpoint


async def _missing(_request: Request, _error: Exception) -> Response:
    return refusal(404, "Object Not Found", "Not Found")


async def _wrong_method(_request: Request, _error: Exception) -> Response:
    return refusal(405, "Method Not Allowed", "this resource does not have that method")


class _Quoted:
    """Gives the inner application the path as it was sent."""

    def __init__(self, inner: ASGIApp) -> None:
        self._inner = inner

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] == "http":
            sent = scope["raw_path"].partition(b"?")[0].decode("ascii", "replace")
            scope = {**scope, "path": sent.rstrip("/") or "/"}
        await self._inner(scope, receive, send)
