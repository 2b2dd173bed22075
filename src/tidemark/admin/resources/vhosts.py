"""/api/vhosts: virtual hosts."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import Any

from starlette.responses import Response

from tidemark.admin import paging
from tidemark.admin.answers import Refused, body, created, done, field
from tidemark.admin.resources.figures import LENGTHS, SPANS, ages, stats
from tidemark.admin.resources.users import tags
from tidemark.admin.routing import FLAG, OBJECT, PAGING, TAGS, TEXT, Entry, Schema, an_object, paged
from tidemark.admin.visit import Visit
from tidemark.broker.vhost import VirtualHost
from tidemark.model.wiring import PermissionSpec, VhostSpec

NAME_BYTES_MAX = 255
KEYS: paging.Keys = {"name": lambda vhost: vhost.name}


def describe(visit: Visit, vhost: VirtualHost, spans: Mapping[str, Any] | None = None) -> dict[str, Any]:
    spec, rates, spans = vhost.spec, visit.server.rates, spans or {}
    return {
        "name": spec.name,
        "description": spec.description,
        "tags": list(spec.tags),
        "metadata": {"description": spec.description, "tags": list(spec.tags)},
        "tracing": False,
        "cluster_state": {visit.server.config.node.name: "running"},
        **rates.lengths("vhost", vhost.name, **spans),
        "message_stats": stats(visit, "vhost", vhost.name, spans),
    }


async def every(visit: Visit) -> Response:
    await visit.server.rates.catch_up()
    spans = ages(visit)
    return await paging.listed(visit, visit.vhosts(), lambda one: describe(visit, one, spans), keys=KEYS)


async def one(visit: Visit) -> Response:
    await visit.server.rates.catch_up()
    return paging.shown(visit, describe(visit, visit.vhost(), ages(visit)))


async def put(visit: Visit) -> Response:
    given, name = await body(visit.request), visit.part("vhost")
    if not name or len(name.encode("utf-8", "surrogateescape")) > NAME_BYTES_MAX:
        raise Refused(400, "bad_request", f"the name of a virtual host has 1 to {NAME_BYTES_MAX} bytes")
    if field(given, "tracing", bool, False):
        words = (
            "tracing into amq.rabbitmq.trace is not offered; OpenTelemetry traces are (see docs/metrics.md)"
        )
        raise Refused(400, "bad_request", words)
    known = visit.broker.vhosts.get(name)
    spec = VhostSpec(name) if known is None else known.spec
    if given.get("description") is not None:
        spec = replace(spec, description=field(given, "description", str))
    if given.get("tags") is not None:
        spec = replace(spec, tags=tags(given))
    visit.broker.now_ms = visit.server.clock.now_ms()
    seq = visit.broker.put(spec)
    if known is None:
        # As RabbitMQ does: whoever makes a virtual host may use it.
        seq = visit.broker.put(PermissionSpec(visit.user, name, ".*", ".*", ".*"))
    await visit.safe(seq)
    return created(known is None)


async def delete(visit: Visit) -> Response:
    visit.broker.now_ms = visit.server.clock.now_ms()
    await visit.safe(visit.broker.delete_vhost(visit.part("vhost")))
    return done()


async def start(visit: Visit) -> Response:
    """A virtual host always runs."""
    visit.vhost()
    node = visit.part("node")
    if node != visit.server.config.node.name:
        raise Refused(400, "bad_request", f"this is not node '{node}' but {visit.server.config.node.name}")
    return done()


VHOST: Schema = an_object(
    {"message_stats": OBJECT},
    name=TEXT,
    description=TEXT,
    tags=TAGS,
    metadata=OBJECT,
    tracing=FLAG,
    cluster_state=OBJECT,
    **LENGTHS,
)
DECLARED: Schema = an_object(
    {"description": TEXT, "tags": {"anyOf": [TEXT, TAGS]}, "tracing": {"type": "boolean", "enum": [False]}}
)
ONE = "/vhosts/{vhost}"

routes = [
    Entry("GET", "/vhosts", every, "All virtual hosts", "vhosts", PAGING + SPANS, answer=paged(VHOST)),
    Entry("GET", ONE, one, "A virtual host", "vhosts", SPANS, answer=VHOST),
    Entry("PUT", ONE, put, "Make a virtual host", "vhosts", body=DECLARED, needs="administrator"),
    Entry("DELETE", ONE, delete, "Delete a virtual host", "vhosts", needs="administrator"),
    Entry(
        "POST",
        ONE + "/start/{node}",
        start,
        "Start it: it runs",
        "vhosts",
        needs="administrator",
        statuses=(204,),
    ),
]
