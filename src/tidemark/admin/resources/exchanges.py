"""/api/exchanges: where messages are published."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from starlette.responses import Response

from tidemark.admin import paging
from tidemark.admin.answers import body, created, done, field
from tidemark.admin.resources.figures import SPANS, ages, stats
from tidemark.admin.resources.messages import exchange_name
from tidemark.admin.resources.queues import arguments, new_name
from tidemark.admin.routing import FLAG, OBJECT, PAGING, TEXT, Entry, Query, Schema, an_object, maybe, paged
from tidemark.admin.visit import Visit
from tidemark.broker.exchanges import Exchange

KEYS: paging.Keys = {
    "name": lambda exchange: exchange.spec.name,
    "vhost": lambda exchange: exchange.spec.vhost,
    "type": lambda exchange: exchange.spec.type,
    "durable": lambda exchange: exchange.spec.durable,
    "policy": lambda exchange: exchange.applied_policy,
}


def describe(visit: Visit, exchange: Exchange, spans: Mapping[str, Any] | None = None) -> dict[str, Any]:
    spec = exchange.spec
    return {
        "name": spec.name,
        "vhost": spec.vhost,
        "type": spec.type,
        "durable": spec.durable,
        "auto_delete": spec.auto_delete,
        "internal": spec.internal,
        "arguments": spec.arguments,
        "policy": exchange.applied_policy,
        "effective_policy_definition": exchange.effective_policy_definition,
        "message_stats": stats(visit, "exchange", exchange, spans),
    }


async def every(visit: Visit) -> Response:
    found = [exchange for host in visit.vhosts() for exchange in host.exchanges.values()]
    spans = ages(visit)
    return await paging.listed(
        visit,
        found,
        lambda exchange: describe(visit, exchange, spans),
        keys=KEYS,
        order=("vhost", "name"),
    )


async def one(visit: Visit) -> Response:
    exchange = visit.vhost().exchange(exchange_name(visit.part("exchange")))
    return paging.shown(visit, describe(visit, exchange, ages(visit)))


async def put(visit: Visit) -> Response:
    given, name = await body(visit.request), new_name("an exchange", exchange_name(visit.part("exchange")))
    new = name not in visit.vhost().exchanges
    with visit.session() as session:
        seq = session.declare_exchange(
            name,
            field(given, "type", str, "direct"),
            passive=False,
            durable=field(given, "durable", bool, True),
            auto_delete=field(given, "auto_delete", bool, False),
            internal=field(given, "internal", bool, False),
            arguments=arguments(given),
        )
    await visit.safe(seq)
    return created(new)


async def delete(visit: Visit) -> Response:
    # Unlike AMQP, where deleting what is not there succeeds, a path that names nothing is 404.
    name = exchange_name(visit.part("exchange"))
    visit.vhost().exchange(name)
    with visit.session() as session:
        unused = visit.request.query_params.get("if-unused") == "true"
        seq = session.delete_exchange(name, if_unused=unused)
    await visit.safe(seq)
    return done()


EXCHANGE: Schema = an_object(
    {"message_stats": OBJECT},
    name=TEXT,
    vhost=TEXT,
    type=TEXT,
    durable=FLAG,
    auto_delete=FLAG,
    internal=FLAG,
    arguments=OBJECT,
    policy=maybe(TEXT),
    effective_policy_definition=OBJECT,
)
DECLARED: Schema = an_object(
    {"type": TEXT, "durable": FLAG, "auto_delete": FLAG, "internal": FLAG, "arguments": OBJECT}
)
UNUSED = (Query("if-unused", FLAG, "Only when nothing is bound to it."),)
ONE = "/exchanges/{vhost}/{exchange}"

routes = [
    Entry("GET", "/exchanges", every, "All exchanges", "exchanges", PAGING + SPANS, answer=paged(EXCHANGE)),
    Entry(
        "GET",
        "/exchanges/{vhost}",
        every,
        "Exchanges of a virtual host",
        "exchanges",
        PAGING + SPANS,
        answer=paged(EXCHANGE),
    ),
    Entry("GET", ONE, one, "An exchange", "exchanges", SPANS, answer=EXCHANGE),
    Entry("PUT", ONE, put, "Declare an exchange", "exchanges", body=DECLARED),
    Entry("DELETE", ONE, delete, "Delete an exchange", "exchanges", UNUSED),
]
