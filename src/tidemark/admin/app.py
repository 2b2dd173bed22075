"""The HTTP application: routes of all resources, behind a login.

Names in a path may contain anything, quoted; so routes match the path as it was sent, and resources unquote its
parts. A resource is a function `(Visit) -> Response`; it runs in the loop's thread like everything that touches
the broker. What an endpoint needs is in its `Entry`, and is looked at here, before the resource is called.

Invariant: no resource that needs a login runs without one, and no changing request that named a user stays out of the audit log,
unless its login was not even looked at because there were too many wrong ones.
"""

from __future__ import annotations

import importlib
import importlib.util
import json
from collections.abc import Sequence
from types import ModuleType
from typing import Any

from starlette.applications import Starlette
from starlette.datastructures import MutableHeaders
from starlette.requests import ClientDisconnect, Request
from starlette.responses import Response
from starlette.routing import BaseRoute, Match, Route
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from tidemark.admin import openapi
from tidemark.admin.answers import Refused, body, refusal, translated
from tidemark.admin.audit import Audit
from tidemark.admin.browsing import Views
from tidemark.admin.counting import Counts, Paces
from tidemark.admin.logins import Tokens
from tidemark.admin.resources import (
    bindings,
    cluster,
    connections,
    consumers,
    definitions,
    exchanges,
    health,
    limits,
    live,
    login,
    messages,
    nodes,
    overview,
    parameters,
    permissions,
    pipelines,
    policies,
    queues,
    streams,
    users,
    vhosts,
)
from tidemark.admin.routing import OBJECT, Entry, entries_of
from tidemark.admin.standing import standing
from tidemark.admin.takeovers import Takeovers
from tidemark.admin.visit import GUARD, Call, authenticated
from tidemark.errors import TidemarkError
from tidemark.runtime.server import Server

MODULES: tuple[ModuleType, ...] = (
    overview, nodes, health, login, live, vhosts, users, permissions, limits, policies, parameters, queues, streams,
    exchanges, bindings, messages, connections, consumers, definitions, cluster, pipelines,
)  # fmt: skip

POLICY = (
    "default-src 'self'; script-src 'self'; style-src 'self'; img-src 'self' data:; connect-src 'self'; "
    "object-src 'none'; base-uri 'none'; form-action 'self'; frame-ancestors 'none'"
)
HEADERS = {
    "content-security-policy": POLICY,
    "x-content-type-options": "nosniff",
    "x-frame-options": "DENY",
    "referrer-policy": "no-referrer",
    "cross-origin-opener-policy": "same-origin",
    "cross-origin-resource-policy": "same-origin",
    "permissions-policy": "camera=(), geolocation=(), microphone=()",
}
"""On every answer. A page of ours may be shown by nobody else and runs nothing that did not come from here."""
SECURE_S = 180 * 24 * 3600


def all_entries(modules: Sequence[ModuleType] = MODULES) -> list[Entry]:
    """Everything that the API has."""
    found = [entry for module in modules for entry in entries_of(module.routes, _word(module))]
    found.append(
        Entry("GET", "/openapi.json", _document, "This document", "api", answer=OBJECT, needs="nothing")
    )
    seen: set[tuple[str, str]] = set()
    for entry in found:
        assert (entry.method, entry.full_path) not in seen, f"{entry.method} {entry.full_path} twice"
        seen.add((entry.method, entry.full_path))
    return found


def _word(module: ModuleType) -> str:
    return module.__name__.rpartition(".")[2]


async def _document(call: Call) -> Response:
    return Response(call.request.app.state.document, media_type="application/json")


def application(server: Server) -> ASGIApp:
    entries = all_entries()
    by_path: dict[str, dict[str, Entry]] = {}
    for entry in entries:
        by_path.setdefault(entry.full_path, {})[entry.method] = entry
    # Fixed words before variable ones: /users/bulk-delete is not a user.
    ordered = sorted(by_path.items(), key=lambda item: (item[0].count("{"), item[0]))
    routes = [Route(path, _Endpoint(server, methods), methods=list(methods)) for path, methods in ordered]
    app = Starlette(
        routes=[*routes, *_others(server)], exception_handlers={404: _missing, 405: _wrong_method}
    )
    config = server.config.admin
    app.state.document = json.dumps(openapi.document(entries), separators=(",", ":")).encode()
    app.state.tokens = Tokens(config.login_s * 1000)
    app.state.audit = Audit(server.config.node.data, config, server.log)
    app.state.live = live.Readers()
    app.state.find = Finder(routes)
    app.state.takeovers = Takeovers(server)
    app.state.views = Views()
    app.state.counts = Counts()
    app.state.paces = Paces(server)
    return _Outermost(app)


def _others(server: Server) -> list[BaseRoute]:
    """What is beside the API: metrics, which look at who asks themselves, and the page, which anybody may have."""
    found: list[BaseRoute] = []
    for name, arguments in (("metrics", (server,)), ("pages", ())):
        if importlib.util.find_spec(f"tidemark.admin.{name}") is not None:
            found += importlib.import_module(f"tidemark.admin.{name}").routes(*arguments)
    return found


class Finder:
    """Which entry a path leads to, for whoever asks from inside."""

    def __init__(self, routes: Sequence[Route]) -> None:
        self._routes = routes

    def __call__(self, scope: Scope) -> tuple[Entry, dict[str, Any]] | None:
        """The entry of GET for the path in this scope, and the names in it."""
        for route in self._routes:
            match, found = route.matches(scope)
            if match is Match.FULL:
                entry = _entries(route).get("GET")
                return None if entry is None else (entry, found["path_params"])
        return None


def _entries(route: Route) -> dict[str, Entry]:
    endpoint: Any = route.endpoint
    assert isinstance(endpoint, _Endpoint)
    return endpoint.entries


class _Endpoint:
    """One path: who may ask, the change in the audit log, and an answer for whatever goes wrong."""

    def __init__(self, server: Server, entries: dict[str, Entry]) -> None:
        self._server = server
        self.entries = entries

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        request = Request(scope, receive, send)
        entry = self.entries["GET" if request.method == "HEAD" else request.method]
        answer = await self._answered(request, entry)
        if getattr(request.state, "visitor", ""):
            answer.headers.update(standing(self._server).headers())
        if entry.changes:
            self._audit(request, answer)
        await answer(scope, receive, send)

    async def _answered(self, request: Request, entry: Entry) -> Response:
        server = self._server
        request.state.body_bytes_max = entry.body_bytes_max
        try:
            if entry.needs == "nothing" or entry.asks_itself:
                return await entry.resource(Call(server, request))
            visit = await authenticated(server, request, entry.needs)
            if entry.changes and not entry.anywhere:
                visit.must_lead()
                if entry.body is not None:
                    # It may be long in coming; the resource is given what was read here, and has no need to wait.
                    await body(request)
                    visit.must_lead()
                    if not visit.is_current():
                        raise Refused(401, "not_authorised", "Login failed")
            return await entry.resource(visit)
        except Refused as no:
            return refusal(no.status, no.error, no.reason, **_headers(no, request))
        except TidemarkError as error:
            return translated(error)
        except ClientDisconnect:
            return Response(status_code=499)
        except Exception as error:
            server.log.error("unexpected exception", where=request.url.path, error=error)
            return refusal(500, "internal_error", "the broker failed; its log has the details")

    def _audit(self, request: Request, answer: Response) -> None:
        user = getattr(request.state, "user", "")
        if not user or answer.status_code == 429:
            # Nobody, or somebody whose password was not looked at: they could push out of the file what others did.
            return
        client = request.client
        query = request.url.query
        audit: Audit = request.app.state.audit
        audit.note(
            now_ms=self._server.clock.now_ms(),
            user=user,
            peer=f"{client.host}:{client.port}" if client else "",
            method=request.method,
            path=request.scope["path"] + (f"?{query}" if query else ""),
            status=answer.status_code,
            asked=getattr(request.state, "asked", None),
            by=getattr(request.state, "by", "nobody"),
        )


def _headers(no: Refused, request: Request) -> dict[str, str]:
    headers = {}
    # A page asks for the password itself: the browser's own question would come on top of it.
    of_a_page = GUARD in request.headers or request.headers.get("sec-fetch-dest") == "empty"
    if no.status == 401 and not of_a_page:
        headers["WWW-Authenticate"] = 'Basic realm="Tidemark"'
    if no.retry_s is not None:
        headers["Retry-After"] = str(no.retry_s)
    return headers


async def _missing(_request: Request, _error: Exception) -> Response:
    return refusal(404, "Object Not Found", "Not Found")


async def _wrong_method(_request: Request, error: Exception) -> Response:
    allowed = getattr(error, "headers", None) or {}
    return refusal(405, "Method Not Allowed", "this resource does not have that method", **allowed)


class _Outermost:
    """Gives the inner application the path as it was sent, and every answer the headers that protect."""

    def __init__(self, inner: ASGIApp) -> None:
        self._inner = inner

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            return
        sent = scope["raw_path"].partition(b"?")[0].decode("ascii", "replace")
        scope = {**scope, "path": sent.rstrip("/") or "/"}
        of_the_api = scope["path"].startswith("/api")

        async def guarded(message: Message) -> None:
            if message["type"] == "http.response.start":
                headers = MutableHeaders(scope=message)
                for name, value in HEADERS.items():
                    headers.setdefault(name, value)
                if of_the_api:
                    headers.setdefault("cache-control", "no-store")
                if scope["scheme"] == "https":
                    headers.setdefault("strict-transport-security", f"max-age={SECURE_S}")
            await send(message)

        await self._inner(scope, receive, guarded)
