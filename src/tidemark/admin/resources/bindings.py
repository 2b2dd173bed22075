"""/api/bindings: which exchange leads where."""

from __future__ import annotations

import json
from typing import Any
from urllib.parse import quote

from starlette.responses import Response

from tidemark.admin.answers import Refused, body, done, field, listed, plain
from tidemark.admin.visit import Visit
from tidemark.errors import NotFound
from tidemark.model.wiring import BindingSpec


def describe(spec: BindingSpec) -> dict[str, Any]:
    return {
        "source": spec.source,
        "vhost": spec.vhost,
        "destination": spec.destination,
        "destination_type": "queue" if spec.to_queue else "exchange",
        "routing_key": spec.key,
        "arguments": spec.arguments,
        "properties_key": properties_key(spec),
    }


def properties_key(spec: BindingSpec) -> str:
    """What tells this binding from others between the same two: its key, and its arguments if it has any."""
    if not spec.arguments:
        return spec.key or "~"
    return f"{spec.key}~{json.dumps(plain(spec.arguments), sort_keys=True)}"


async def every(visit: Visit) -> Response:
    found = [spec for host in visit.vhosts() for spec in visit.broker.bindings_of(host.name)]
    asked = visit.request.path_params
    if "queue" in asked:
        visit.vhost().queue(visit.part("queue"))
        found = [s for s in found if s.to_queue and s.destination == visit.part("queue")]
    if "source" in asked:
        visit.vhost().exchange(visit.part("source"))
        found = [s for s in found if s.source == visit.part("source")]
    if "destination" in asked:
        to_queue = _to_queue(visit)
        found = [s for s in found if s.to_queue == to_queue and s.destination == visit.part("destination")]
    return listed([describe(spec) for spec in found])


async def post(visit: Visit) -> Response:
    given = await body(visit.request)
    key, arguments = field(given, "routing_key", str, ""), field(given, "arguments", dict, {})
    source, destination = visit.part("source"), visit.part("destination")
    with visit.session() as session:
        bind = session.bind_queue if _to_queue(visit) else session.bind_exchange
        seq = bind(destination, source, key, arguments)
    await visit.safe(seq)
    made = BindingSpec(visit.vhost().name, source, destination, _to_queue(visit), key, arguments)
    return Response(status_code=201, headers={"location": quote(properties_key(made), safe="")})


async def delete(visit: Visit) -> Response:
    source, destination = visit.part("source"), visit.part("destination")
    for spec in visit.broker.bindings_of(visit.vhost().name):
        ends = (spec.source, spec.destination, spec.to_queue)
        if ends == (source, destination, _to_queue(visit)) and properties_key(spec) == visit.part("props"):
            with visit.session() as session:
                unbind = session.unbind_queue if spec.to_queue else session.unbind_exchange
                seq = unbind(destination, source, spec.key, spec.arguments)
            await visit.safe(seq)
            return done()
    raise NotFound(reason=f"no such binding from '{source}' to '{destination}'")


def _to_queue(visit: Visit) -> bool:
    kind = visit.part("kind")
    if kind not in ("q", "e"):
        raise Refused(404, "Object Not Found", "a destination is q (queue) or e (exchange)")
    return kind == "q"


BETWEEN = "/bindings/{vhost}/e/{source}/{kind}/{destination}"

routes = [
    ("GET", "/bindings", every),
    ("GET", "/bindings/{vhost}", every),
    ("GET", "/queues/{vhost}/{queue}/bindings", every),
    ("GET", "/exchanges/{vhost}/{source}/bindings/source", every),
    ("GET", BETWEEN, every),
    ("POST", BETWEEN, post),
    ("DELETE", BETWEEN + "/{props}", delete),
]
