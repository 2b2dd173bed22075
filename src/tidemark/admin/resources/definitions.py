"""/api/definitions: everything that was declared, in and out, in RabbitMQ's format."""

from __future__ import annotations

from starlette.responses import Response

from tidemark.admin.answers import body, shown
from tidemark.admin.visit import Visit
from tidemark.broker import definitions


async def export(visit: Visit) -> Response:
    visit.must_be_administrator()
    return shown(definitions.export(visit.broker))


async def load(visit: Visit) -> Response:
    visit.must_be_administrator()
    given = await body(visit.request)
    visit.broker.now_ms = visit.server.clock.now_ms()
    made = definitions.import_definitions(visit.broker, given)
    await visit.safe(made.safe_at)
    return shown({"made": made.made, "kept": made.kept})


routes = [("GET", "/definitions", export), ("POST", "/definitions", load)]
