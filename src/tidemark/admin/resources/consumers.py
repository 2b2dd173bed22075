"""/api/consumers: who is being given messages."""

from __future__ import annotations

from typing import Any

from starlette.responses import Response

from tidemark.admin.answers import listed
from tidemark.admin.visit import Visit
from tidemark.broker.consumer import ConsumerStatistics


def describe(now: ConsumerStatistics) -> dict[str, Any]:
    return {
        "consumer_tag": now.tag,
        "queue": {"name": now.queue, "vhost": now.vhost},
        "ack_required": not now.no_ack,
        "exclusive": now.exclusive,
        "prefetch_count": now.prefetch,
        "active": now.active,
        "activity_status": "up" if now.active else "waiting",
        "messages_unacknowledged": now.unacked,
        "arguments": now.arguments,
    }


async def every(visit: Visit) -> Response:
    queues = [queue for host in visit.vhosts() for queue in host.queues.values()]
    return listed([describe(consumer) for queue in queues for consumer in queue.statistics().consumers])


routes = [("GET", "/consumers", every), ("GET", "/consumers/{vhost}", every)]
