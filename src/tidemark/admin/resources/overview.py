"""/api/overview, /api/whoami and other small facts: the broker as a whole."""

from __future__ import annotations

import platform
from typing import Any

from starlette.responses import Response

from tidemark import __version__
from tidemark.admin import paging
from tidemark.admin.answers import Refused, body, done, field, shown
from tidemark.admin.resources.figures import LENGTHS, SPANS, ages, stats, together
from tidemark.admin.routing import (
    COUNT,
    FLAG,
    OBJECT,
    PAGING,
    TAGS,
    TEXT,
    Entry,
    Schema,
    a_list,
    an_object,
    paged,
)
from tidemark.admin.visit import Call, Visit
from tidemark.broker.definitions import RABBITMQ_VERSION
from tidemark.model.wiring import GlobalParameterSpec
from tidemark.speed import PURE

EXCHANGE_TYPES = [
    {"name": name, "description": f"AMQP {name} exchange, as per the AMQP specification", "enabled": True}
    for name in ("direct", "fanout", "headers", "topic")
] + [{"name": "x-partition", "description": "One of several, by a hash of the key", "enabled": True}]
PROTOCOLS = {"amqp": "amqp", "amqps": "amqp/ssl", "admin": "http", "admins": "https", "peer": "clustering"}
"""What RabbitMQ calls what listens, by the setting of ours."""
RETENTION = {"global": [600], "basic": [600], "detailed": [600]}
FLAGS = {
    "classic_queue_type_delivery_support": "Queues of all types are delivered from in the same way",
    "direct_exchange_routing_v2": "Direct exchanges look keys up",
    "drop_unroutable_metric": "Messages that no queue wanted are counted",
    "empty_basic_get_metric": "Gets that found nothing are counted",
    "implicit_default_bindings": "Bindings to the default exchange need not be kept",
    "quorum_queue": "Queues of the type quorum can be declared",
    "stream_queue": "Queues of the type stream can be declared",
    "user_limits": "Users can be limited",
    "virtual_host_metadata": "Virtual hosts have a description and tags",
}


def listeners(call: Call) -> list[dict[str, Any]]:
    return [
        {
            "node": call.server.config.node.name,
            "protocol": PROTOCOLS.get(name, name),
            "ip_address": address.host,
            "port": address.port,
            "socket_opts": {"backlog": call.server.config.listen.backlog},
        }
        for name, address in call.server.addresses.items()
    ]


def contexts(call: Call) -> list[dict[str, Any]]:
    return [
        {
            "node": call.server.config.node.name,
            "description": "Tidemark management",
            "path": "/",
            "ip": address.host,
            "port": str(address.port),
            "ssl_opts": [],
        }
        for name, address in call.server.addresses.items()
        if name.startswith("admin")
    ]


def cluster_name(call: Call) -> str:
    spec = call.broker.global_parameters.get("cluster_name")
    if spec is not None and isinstance(spec.value, str):
        return spec.value
    return call.server.config.amqp091.cluster_name


async def overview(visit: Visit) -> Response:
    await visit.server.rates.catch_up()
    node, config = visit.server.node, visit.server.config
    return paging.shown(
        visit,
        {
            "product_name": "Tidemark",
            "product_version": __version__,
            "management_version": RABBITMQ_VERSION,
            "rabbitmq_version": RABBITMQ_VERSION,
            "erlang_version": "",
            "erlang_full_version": f"none: Python {platform.python_version()}",
            "compiled": not PURE,
            "cluster_name": cluster_name(visit),
            "node": config.node.name,
            "rates_mode": "basic",
            "sample_retention_policies": RETENTION,
            "exchange_types": EXCHANGE_TYPES,
            "disable_stats": False,
            "enable_queue_totals": False,
            "statistics_db_event_queue": 0,
            "alarms": node.alarms.reason,
            **_numbers(visit),
            "churn_rates": visit.server.rates.churn(**ages(visit)),
            "listeners": listeners(visit),
            "contexts": contexts(visit),
        },
    )


def _numbers(visit: Visit) -> dict[str, Any]:
    """Of everything, or of the virtual hosts that the visitor may see."""
    rates, broker, spans = visit.server.rates, visit.broker, ages(visit)
    hosts = visit.vhosts()
    counts = broker.counts
    objects = {
        "connections": len(visit.server.node.front_ends),
        "channels": counts.channels_opened - counts.channels_closed,
        "exchanges": sum(len(host.exchanges) for host in hosts),
        "queues": sum(len(host.queues) for host in hosts),
        "consumers": sum(rates.totals(host.name).consumers for host in hosts),
    }
    if visit.sees_all:
        return {
            "object_totals": objects,
            "queue_totals": rates.lengths("overview", **spans),
            "message_stats": stats(visit, "overview", None, spans),
        }
    mine = [
        front_end for front_end in visit.server.node.front_ends if front_end.statistics().user == visit.user
    ]
    objects["connections"] = len(mine)
    objects["channels"] = sum(len(front_end.statistics().channels) for front_end in mine)
    return {
        "object_totals": objects,
        "queue_totals": together([rates.lengths("vhost", host.name) for host in hosts]),
        "message_stats": together([stats(visit, "vhost", host.name) for host in hosts]),
    }


async def whoami(visit: Visit) -> Response:
    return shown({"name": visit.user, "tags": list(visit.tags)})


async def auth(_call: Call) -> Response:
    """How to log in: with a password."""
    return shown({"oauth_enabled": False, "enable_uaa": False, "uaa_client_id": "", "uaa_location": ""})


async def name_of_cluster(visit: Visit) -> Response:
    return shown({"name": cluster_name(visit)})


async def rename_cluster(visit: Visit) -> Response:
    name = field(await body(visit.request), "name", str)
    if not 0 < len(name.encode()) <= 255:
        raise Refused(400, "bad_request", "the field 'name' has 1 to 255 bytes")
    visit.broker.now_ms = visit.server.clock.now_ms()
    await visit.safe(visit.broker.put(GlobalParameterSpec("cluster_name", name)))
    return done()


async def extensions(visit: Visit) -> Response:
    """Scripts that plugins add to RabbitMQ's page. There are no plugins."""
    return await paging.listed(visit, [], dict)


async def feature_flags(visit: Visit) -> Response:
    return await paging.listed(visit, list(FLAGS), _flag)


def _flag(name: str) -> dict[str, Any]:
    return {
        "name": name,
        "desc": FLAGS[name],
        "doc_url": "",
        "state": "enabled",
        "stability": "stable",
        "provided_by": "tidemark",
    }


async def enable_flag(visit: Visit) -> Response:
    """Flags that there are, are on."""
    name = visit.part("name")
    if name not in FLAGS:
        raise Refused(400, "bad_request", f"there is no feature flag '{name}'")
    return done()


async def deprecated(visit: Visit) -> Response:
    return await paging.listed(visit, [], dict)


async def rebalance(_visit: Visit) -> Response:
    words = "nothing can be rebalanced: all queues are where the cluster's leader is, see /api/members"
    raise Refused(400, "bad_request", words)


LISTENER: Schema = an_object(node=TEXT, protocol=TEXT, ip_address=TEXT, port=COUNT)
OVERVIEW: Schema = an_object(
    product_name=TEXT,
    product_version=TEXT,
    management_version=TEXT,
    rabbitmq_version=TEXT,
    erlang_version=TEXT,
    erlang_full_version=TEXT,
    cluster_name=TEXT,
    node=TEXT,
    rates_mode=TEXT,
    sample_retention_policies=OBJECT,
    exchange_types=a_list(an_object(name=TEXT, description=TEXT, enabled=FLAG)),
    object_totals=an_object(
        connections=COUNT, channels=COUNT, exchanges=COUNT, queues=COUNT, consumers=COUNT
    ),
    queue_totals=an_object(LENGTHS),
    message_stats=OBJECT,
    churn_rates=OBJECT,
    listeners=a_list(LISTENER),
    contexts=a_list(OBJECT),
)
FLAG_FACTS: Schema = an_object(name=TEXT, desc=TEXT, state=TEXT, stability=TEXT, provided_by=TEXT)
NAME: Schema = an_object(name=TEXT)

routes = [
    Entry("GET", "/overview", overview, "The broker as a whole", "overview", SPANS, answer=OVERVIEW),
    Entry("GET", "/whoami", whoami, "Who asks", "overview", answer=an_object(name=TEXT, tags=TAGS)),
    Entry("GET", "/auth", auth, "How to log in", "overview", answer=OBJECT, needs="nothing"),
    Entry("GET", "/cluster-name", name_of_cluster, "The name of the cluster", "overview", answer=NAME),
    Entry(
        "PUT",
        "/cluster-name",
        rename_cluster,
        "Name the cluster",
        "overview",
        body=NAME,
        needs="administrator",
        statuses=(204,),
    ),
    Entry(
        "GET",
        "/extensions",
        extensions,
        "Plugins of the page: none",
        "overview",
        PAGING,
        answer=paged(OBJECT),
    ),
    Entry(
        "GET", "/feature-flags", feature_flags, "Feature flags", "overview", PAGING, answer=paged(FLAG_FACTS)
    ),
    Entry(
        "PUT",
        "/feature-flags/{name}/enable",
        enable_flag,
        "Enable a feature flag: it is enabled",
        "overview",
        needs="administrator",
        statuses=(204,),
    ),
    Entry(
        "GET",
        "/deprecated-features",
        deprecated,
        "Deprecated features: none",
        "overview",
        PAGING,
        answer=paged(OBJECT),
    ),
    Entry(
        "GET",
        "/deprecated-features/used",
        deprecated,
        "Deprecated features in use: none",
        "overview",
        PAGING,
        answer=paged(OBJECT),
    ),
    Entry(
        "POST",
        "/rebalance/queues",
        rebalance,
        "Spread queues over members: refused",
        "overview",
        needs="administrator",
        statuses=(204,),
    ),
]
