"""/api/overview, /api/whoami, /api/nodes: the broker as a whole."""

from __future__ import annotations

import os
import sys

from starlette.responses import Response

from tidemark import __version__
from tidemark.admin.answers import listed, shown
from tidemark.admin.visit import Visit
from tidemark.runtime import machine
from tidemark.speed import PURE


async def overview(visit: Visit) -> Response:
    node, config = visit.server.node, visit.server.config
    all_of_it = visit.broker.statistics()
    listeners = [
        {"node": config.node.name, "protocol": name, "ip_address": address.host, "port": address.port}
        for name, address in visit.server.addresses.items()
    ]
    return shown(
        {
            "product_name": "Tidemark",
            "product_version": __version__,
            "management_version": __version__,
            "cluster_name": config.amqp091.cluster_name,
            "node": config.node.name,
            "compiled": not PURE,
            "object_totals": {
                "channels": sum(len(f.statistics().channels) for f in node.front_ends),
                "connections": len(node.front_ends),
                "consumers": all_of_it.consumers,
                "exchanges": all_of_it.exchanges,
                "queues": all_of_it.queues,
            },
            "queue_totals": {
                "messages": all_of_it.ready + all_of_it.acquired,
                "messages_ready": all_of_it.ready,
                "messages_unacknowledged": all_of_it.acquired,
            },
            "message_stats": {
                "publish": all_of_it.published,
                "deliver_get": all_of_it.delivered,
                "redeliver": all_of_it.redelivered,
                "ack": all_of_it.settled,
            },
            "listeners": listeners,
        }
    )


async def whoami(visit: Visit) -> Response:
    return shown({"name": visit.user, "tags": list(visit.tags)})


async def nodes(visit: Visit) -> Response:
    visit.must_see_all()
    node, config = visit.server.node, visit.server.config
    return listed(
        [
            {
                "name": config.node.name,
                "type": "disc",
                "running": True,
                "os_pid": str(os.getpid()),
                "python": sys.version.split()[0],
                "mem_used": machine.resident_bytes(),
                "mem_limit": visit.server.memory_high_bytes,
                "mem_alarm": node.alarms.memory,
                "disk_free_limit": config.limits.disk_free_bytes_min,
                "disk_free_alarm": node.alarms.disk,
                "uptime": visit.server.clock.now_ms() - visit.server.started_ms,
            }
        ]
    )


routes = [("GET", "/overview", overview), ("GET", "/whoami", whoami), ("GET", "/nodes", nodes)]
