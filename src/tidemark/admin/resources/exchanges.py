"""/api/exchanges: where messages are published."""

from __future__ import annotations

from typing import Any

from starlette.responses import Response

from tidemark.admin.answers import body, created, done, field, listed, shown
from tidemark.admin.visit import Visit
from tidemark.model.wiring import ExchangeSpec


def describe(spec: ExchangeSpec) -> dict[str, Any]:
    return {
        "name": spec.name,
        "vhost": spec.vhost,
        "type": spec.type,
        "durable": spec.durable,
        "auto_delete": spec.auto_delete,
        "internal": spec.internal,
        "arguments": spec.arguments,
    }


async def every(visit: Visit) -> Response:
    return listed([describe(x.spec) for host in visit.vhosts() for x in host.exchanges.values()])


async def one(visit: Visit) -> Response:
    return shown(describe(visit.vhost().exchange(visit.part("exchange")).spec))


async def put(visit: Visit) -> Response:
    given, name = await body(visit.request), visit.part("exchange")
    new = name not in visit.vhost().exchanges
    with visit.session() as session:
        seq = session.declare_exchange(
            name,
            field(given, "type", str, "direct"),
            passive=False,
            durable=field(given, "durable", bool, True),
            auto_delete=field(given, "auto_delete", bool, False),
            internal=field(given, "internal", bool, False),
            arguments=field(given, "arguments", dict, {}),
        )
    await visit.safe(seq)
    return created(new)


async def delete(visit: Visit) -> Response:
    # Unlike AMQP, where deleting what is not there succeeds, a path that names nothing is 404.
    visit.vhost().exchange(visit.part("exchange"))
    with visit.session() as session:
        unused = visit.request.query_params.get("if-unused") == "true"
        seq = session.delete_exchange(visit.part("exchange"), if_unused=unused)
    await visit.safe(seq)
    return done()


routes = [
    ("GET", "/exchanges", every),
    ("GET", "/exchanges/{vhost}", every),
    ("GET", "/exchanges/{vhost}/{exchange}", one),
    ("PUT", "/exchanges/{vhost}/{exchange}", put),
    ("DELETE", "/exchanges/{vhost}/{exchange}", delete),
]
