"""/api/vhosts: virtual hosts."""

from __future__ import annotations

from typing import Any

from starlette.responses import Response

from tidemark.admin.answers import body, created, done, field, listed, shown
from tidemark.admin.visit import Visit
from tidemark.broker.vhost import VirtualHost
from tidemark.model.wiring import PermissionSpec, VhostSpec


def describe(vhost: VirtualHost) -> dict[str, Any]:
    ready = sum(queue.ready for queue in vhost.queues.values())
    acquired = sum(queue.acquired for queue in vhost.queues.values())
    return {
        "name": vhost.name,
        "description": vhost.spec.description,
        "tags": list(vhost.spec.tags),
        "messages": ready + acquired,
        "messages_ready": ready,
        "messages_unacknowledged": acquired,
    }


async def every(visit: Visit) -> Response:
    return listed([describe(vhost) for vhost in visit.vhosts()])


async def one(visit: Visit) -> Response:
    return shown(describe(visit.vhost()))


async def put(visit: Visit) -> Response:
    visit.must_be_administrator()
    given, name = await body(visit.request), visit.part("vhost")
    new = name not in visit.broker.vhosts
    seq = visit.broker.put(VhostSpec(name, field(given, "description", str, "")))
    if new:
        # As RabbitMQ does: whoever makes a virtual host may use it.
        seq = visit.broker.put(PermissionSpec(visit.user, name, ".*", ".*", ".*"))
    await visit.safe(seq)
    return created(new)


async def delete(visit: Visit) -> Response:
    visit.must_be_administrator()
    await visit.safe(visit.broker.delete_vhost(visit.part("vhost")))
    return done()


routes = [
    ("GET", "/vhosts", every),
    ("GET", "/vhosts/{vhost}", one),
    ("PUT", "/vhosts/{vhost}", put),
    ("DELETE", "/vhosts/{vhost}", delete),
]
