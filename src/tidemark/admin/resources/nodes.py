"""/api/nodes: this broker as a process, and the other members of its cluster as far as they are known here."""

from __future__ import annotations

import asyncio
import os
import resource
import shutil
import sys
from typing import Any

from starlette.responses import Response

from tidemark import __version__
from tidemark.admin import paging
from tidemark.admin.resources.overview import EXCHANGE_TYPES, contexts
from tidemark.admin.routing import FLAG, PAGING, TEXT, Entry, Schema, an_object, paged
from tidemark.admin.visit import Visit
from tidemark.errors import NotFound
from tidemark.runtime import machine

MECHANISMS = ("PLAIN", "AMQPLAIN", "EXTERNAL")


async def _this(visit: Visit) -> dict[str, Any]:
    node, config, server = visit.server.node, visit.server.config, visit.server
    files, _ = resource.getrlimit(resource.RLIMIT_NOFILE)
    # With many connections this takes a while.
    open_files = await asyncio.to_thread(lambda: len(os.listdir("/proc/self/fd")))  # noqa: PTH208
    return {
        "name": config.node.name,
        "type": "disc",
        "running": True,
        "being_drained": False,
        "partitions": [],
        "os_pid": str(os.getpid()),
        "python": sys.version.split()[0],
        "uptime": server.clock.now_ms() - server.started_ms,
        "processors": os.cpu_count() or 1,
        "rates_mode": "basic",
        "fd_total": files,
        "fd_used": open_files,
        "sockets_total": server.connections_max,
        "sockets_used": len(node.front_ends),
        "mem_used": machine.resident_bytes(),
        "mem_limit": server.memory_high_bytes,
        "mem_alarm": node.alarms.memory,
        "disk_free": shutil.disk_usage(config.node.data).free,
        "disk_free_limit": config.limits.disk_free_bytes_min,
        "disk_free_alarm": node.alarms.disk,
        "exchange_types": EXCHANGE_TYPES,
        "auth_mechanisms": [
            {"name": name, "description": f"SASL {name} authentication mechanism", "enabled": True}
            for name in MECHANISMS
        ],
        "applications": [{"name": "tidemark", "description": "Tidemark", "version": __version__}],
        "enabled_plugins": [],
        "config_files": [],
        "log_files": [],
        "db_dir": str(config.node.data),
        "contexts": contexts(visit),
    }


async def _all(visit: Visit) -> list[dict[str, Any]]:
    this = await _this(visit)
    found = [this]
    for member in visit.server.node.topology().members:
        if member.name == this["name"]:
            this |= {"state": member.state, "role": member.role}
        else:
            found.append(
                {
                    "name": member.name,
                    "type": "disc",
                    "running": member.state != "away",
                    "partitions": [],
                    "state": member.state,
                    "role": member.role,
                }
            )
    return found


async def every(visit: Visit) -> Response:
    return await paging.listed(visit, await _all(visit), dict)


async def one(visit: Visit) -> Response:
    for facts in await _all(visit):
        if facts["name"] == visit.part("node"):
            return paging.shown(visit, facts)
    raise NotFound(reason=f"no node '{visit.part('node')}'")


NODE: Schema = an_object(name=TEXT, type=TEXT, running=FLAG)

routes = [
    Entry("GET", "/nodes", every, "All members", "nodes", PAGING, answer=paged(NODE), needs="monitoring"),
    Entry("GET", "/nodes/{node}", one, "A member", "nodes", answer=NODE, needs="monitoring"),
]
