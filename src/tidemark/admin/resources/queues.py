"""/api/queues: queues and their messages."""

from __future__ import annotations

from typing import Any

from starlette.responses import Response

from tidemark.admin.answers import body, created, done, field, listed, shown
from tidemark.admin.resources import consumers
from tidemark.admin.visit import Visit
from tidemark.broker.queue import Queue


def describe(visit: Visit, queue: Queue) -> dict[str, Any]:
    now = queue.statistics()
    return {
        "name": now.name,
        "vhost": now.vhost,
        "durable": now.durable,
        "auto_delete": now.auto_delete,
        "exclusive": now.exclusive,
        "arguments": queue.spec.arguments,
        "type": now.kind,
        "node": visit.server.config.node.name,
        "state": "locked" if queue.locked else "running",
        "policy": None,
        "consumers": len(now.consumers),
        "messages": now.ready + now.unacked,
        "messages_ready": now.ready,
        "messages_unacknowledged": now.unacked,
        "message_bytes": now.ready_bytes + now.unacked_bytes,
        "message_bytes_ready": now.ready_bytes,
        "message_bytes_unacknowledged": now.unacked_bytes,
        "message_stats": {
            "publish": now.published,
            "deliver_get": now.delivered,
            "redeliver": now.redelivered,
            "ack": now.settled,
        },
    }


async def every(visit: Visit) -> Response:
    return listed([describe(visit, queue) for host in visit.vhosts() for queue in host.queues.values()])


async def one(visit: Visit) -> Response:
    queue = visit.vhost().queue(visit.part("queue"))
    details = [consumers.describe(consumer) for consumer in queue.statistics().consumers]
    return shown({**describe(visit, queue), "consumer_details": details})


async def put(visit: Visit) -> Response:
    given, name = await body(visit.request), visit.part("queue")
    new = name not in visit.vhost().queues
    with visit.session() as session:
        declared = session.declare_queue(
            name,
            passive=False,
            durable=field(given, "durable", bool, True),
            exclusive=False,
            auto_delete=field(given, "auto_delete", bool, False),
            arguments=field(given, "arguments", dict, {}),
        )
    await visit.safe(declared.safe_at)
    return created(new)


async def delete(visit: Visit) -> Response:
    # Unlike AMQP, where deleting what is not there succeeds, a path that names nothing is 404.
    visit.vhost().queue(visit.part("queue"))
    asked = visit.request.query_params
    with visit.session() as session:
        deleted = session.delete_queue(
            visit.part("queue"),
            if_unused=asked.get("if-unused") == "true",
            if_empty=asked.get("if-empty") == "true",
        )
    await visit.safe(deleted.safe_at)
    return done()


async def purge(visit: Visit) -> Response:
    with visit.session() as session:
        session.purge_queue(visit.part("queue"))
    return done()


async def lock(visit: Visit) -> Response:
    """Consumers get nothing more from it; publishes are still accepted. It ends with the process."""
    with visit.session() as session:
        session.queue(visit.part("queue"), "configure").lock()
    return done()


async def unlock(visit: Visit) -> Response:
    with visit.session() as session:
        session.queue(visit.part("queue"), "configure").unlock()
    return done()


routes = [
    ("GET", "/queues", every),
    ("GET", "/queues/{vhost}", every),
    ("GET", "/queues/{vhost}/{queue}", one),
    ("PUT", "/queues/{vhost}/{queue}", put),
    ("DELETE", "/queues/{vhost}/{queue}", delete),
    ("DELETE", "/queues/{vhost}/{queue}/contents", purge),
    ("PUT", "/queues/{vhost}/{queue}/lock", lock),
    ("DELETE", "/queues/{vhost}/{queue}/lock", unlock),
]
