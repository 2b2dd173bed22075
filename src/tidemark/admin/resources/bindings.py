"""/api/bindings: which exchange leads where."""

from __future__ import annotations

import base64
import hashlib
from collections.abc import Iterable
from typing import Any
from urllib.parse import quote, quote_plus, unquote_plus

from starlette.responses import Response

from tidemark.admin import paging
from tidemark.admin.answers import Refused, body, done, field
from tidemark.admin.resources.messages import exchange_name
from tidemark.admin.resources.queues import arguments
from tidemark.admin.routing import OBJECT, PAGING, TEXT, Entry, Schema, an_object, one_of, paged
from tidemark.admin.visit import Visit
from tidemark.broker.exchanges import Binding, binding_id
from tidemark.broker.queue import Queue
from tidemark.errors import NotFound
from tidemark.model.wiring import BindingSpec

Found = Binding | Queue
"""A binding, or a queue, which stands for the one that it has by itself to the default exchange."""


def spec_of(found: Found) -> BindingSpec:
    if isinstance(found, Binding):
        return found.spec
    return BindingSpec(found.spec.vhost, "", found.name, True, found.name)


def describe(found: Found) -> dict[str, Any]:
    spec = spec_of(found)
    return {
        "source": spec.source,
        "vhost": spec.vhost,
        "destination": spec.destination,
        "destination_type": "queue" if spec.to_queue else "exchange",
        "routing_key": spec.key,
        "arguments": spec.arguments,
        "properties_key": properties_key(spec),
    }


KEYS: paging.Keys = {
    "name": lambda found: found.name if not isinstance(found, Binding) else found.spec.destination,
    "vhost": lambda found: found.spec.vhost,
    "source": lambda found: spec_of(found).source,
    "destination": lambda found: spec_of(found).destination,
    "routing_key": lambda found: spec_of(found).key,
}
ORDER = ("vhost", "source", "destination", "routing_key")


def properties_key(spec: BindingSpec) -> str:
    """What tells this binding from others between the same two: its key, and a hash of its arguments if it has any."""
    key = quoted(spec.key)
    if not spec.arguments:
        return key or "~"
    digest = hashlib.md5(binding_id(spec)[4].encode("utf-8", "surrogatepass"), usedforsecurity=False).digest()
    return f"{key}~{base64.urlsafe_b64encode(digest).decode().rstrip('=')}"


def quoted(text: str) -> str:
    return quote_plus(text, safe="", errors="surrogateescape").replace("~", "%7E")


# Lists ----------------------------------------------------------------------------------------------


async def _answer(visit: Visit, found: Iterable[Found]) -> Response:
    return await paging.listed(visit, list(found), describe, keys=KEYS, order=ORDER)


async def every(visit: Visit) -> Response:
    found: list[Found] = []
    for host in visit.vhosts():
        found += host.queues.values()
        found += host.bindings()
    return await _answer(visit, found)


async def of_queue(visit: Visit) -> Response:
    host = visit.vhost()
    queue = host.queue(visit.part("queue"))
    return await _answer(visit, [queue, *host.bindings_to_queue(queue.name)])


async def of_source(visit: Visit) -> Response:
    host, name = visit.vhost(), exchange_name(visit.part("exchange"))
    exchange = host.exchange(name)
    return await _answer(visit, exchange.bindings.values() if name else host.queues.values())


async def of_destination(visit: Visit) -> Response:
    exchange = visit.vhost().exchange(exchange_name(visit.part("exchange")))
    return await _answer(visit, exchange.incoming.values())


def _ends(visit: Visit) -> tuple[str, str, bool]:
    """Source, destination and whether that is a queue. Raises NotFound, Refused."""
    host, kind = visit.vhost(), visit.part("kind")
    if kind not in ("q", "e"):
        raise Refused(404, "Object Not Found", "a destination is q (queue) or e (exchange)")
    source, destination = exchange_name(visit.part("source")), visit.part("destination")
    host.exchange(source)
    if kind == "q":
        host.queue(destination)
    else:
        destination = exchange_name(destination)
        host.exchange(destination)
    return source, destination, kind == "q"


def _between(visit: Visit) -> list[Found]:
    source, destination, to_queue = _ends(visit)
    host = visit.vhost()
    if to_queue and not source:
        return [host.queue(destination)]
    into = (
        host.bindings_to_queue(destination)
        if to_queue
        else list(host.exchange(destination).incoming.values())
    )
    return [binding for binding in into if binding.spec.source == source]


async def between(visit: Visit) -> Response:
    return await _answer(visit, _between(visit))


# One ------------------------------------------------------------------------------------------------


def _named(visit: Visit) -> BindingSpec:
    """The binding that the last part of the path stands for, quoted once more or not.

    Raises:
        NotFound: there is none.
    """
    asked = visit.part("props")
    specs = [spec_of(found) for found in _between(visit)]
    for spec in specs:
        if properties_key(spec) == asked:
            return spec
    for spec in specs:
        if not spec.arguments and asked == (spec.key or "~"):
            return spec
        if properties_key(spec) == unquote_plus(asked):
            return spec
    raise NotFound(
        reason=f"no binding '{asked}' from '{visit.part('source')}' to '{visit.part('destination')}'"
    )


async def one(visit: Visit) -> Response:
    spec = _named(visit)
    host = visit.vhost()
    found = host.binding(spec) or host.queue(spec.destination)
    return paging.shown(visit, describe(found))


async def post(visit: Visit) -> Response:
    given = await body(visit.request)
    key, table = field(given, "routing_key", str, ""), arguments(given)
    if len(key.encode()) > 255:
        raise Refused(400, "bad_request", "the field 'routing_key' has at most 255 bytes")
    source, destination, to_queue = _ends(visit)
    with visit.session() as session:
        bind = session.bind_queue if to_queue else session.bind_exchange
        seq = bind(destination, source, key, table)
    await visit.safe(seq)
    made = BindingSpec(visit.vhost().name, source, destination, to_queue, key, table)
    place = f"{quote(destination, safe='', errors='surrogateescape')}/{quote(properties_key(made), safe='~')}"
    return Response(status_code=201, headers={"location": place})


async def delete(visit: Visit) -> Response:
    spec = _named(visit)
    with visit.session() as session:
        unbind = session.unbind_queue if spec.to_queue else session.unbind_exchange
        seq = unbind(spec.destination, spec.source, spec.key, spec.arguments)
    await visit.safe(seq)
    return done()


BINDING: Schema = an_object(
    source=TEXT,
    vhost=TEXT,
    destination=TEXT,
    destination_type=one_of("queue", "exchange"),
    routing_key=TEXT,
    arguments=OBJECT,
    properties_key=TEXT,
)
BETWEEN = "/bindings/{vhost}/e/{source}/{kind}/{destination}"
LIST = paged(BINDING)

routes = [
    Entry("GET", "/bindings", every, "All bindings", "bindings", PAGING, answer=LIST),
    Entry("GET", "/bindings/{vhost}", every, "Bindings of a virtual host", "bindings", PAGING, answer=LIST),
    Entry(
        "GET",
        "/queues/{vhost}/{queue}/bindings",
        of_queue,
        "Bindings to a queue",
        "bindings",
        PAGING,
        answer=LIST,
    ),
    Entry(
        "GET",
        "/exchanges/{vhost}/{exchange}/bindings/source",
        of_source,
        "Bindings from an exchange",
        "bindings",
        PAGING,
        answer=LIST,
    ),
    Entry(
        "GET",
        "/exchanges/{vhost}/{exchange}/bindings/destination",
        of_destination,
        "Bindings to an exchange",
        "bindings",
        PAGING,
        answer=LIST,
    ),
    Entry("GET", BETWEEN, between, "Bindings between two", "bindings", PAGING, answer=LIST),
    Entry(
        "POST",
        BETWEEN,
        post,
        "Bind",
        "bindings",
        body=an_object({"routing_key": TEXT, "arguments": OBJECT}),
        statuses=(201,),
    ),
    Entry("GET", BETWEEN + "/{props}", one, "A binding", "bindings", answer=BINDING),
    Entry("DELETE", BETWEEN + "/{props}", delete, "Unbind", "bindings"),
]
