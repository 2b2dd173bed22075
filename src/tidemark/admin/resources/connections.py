"""/api/connections and /api/channels: who is connected."""

from __future__ import annotations

from typing import Any

from starlette.responses import Response

from tidemark.admin.answers import done, listed, shown
from tidemark.admin.visit import Visit
from tidemark.errors import NotFound
from tidemark.frontend.services import ChannelStatistics, ConnectionStatistics, FrontEnd


def describe(now: ConnectionStatistics) -> dict[str, Any]:
    return {
        "name": now.name,
        "user": now.user,
        "vhost": now.vhost,
        "state": now.state,
        "protocol": now.protocol,
        "ssl": now.peer.tls,
        "peer_host": now.peer.host,
        "peer_port": now.peer.port,
        "host": now.peer.local_host,
        "port": now.peer.local_port,
        "channels": len(now.channels),
        "channel_max": now.channel_max,
        "frame_max": now.frame_max,
        "timeout": now.heartbeat_s,
        "connected_at": now.connected_ms,
        "recv_oct": now.bytes_in,
        "send_oct": now.bytes_out,
        "client_properties": now.client_properties,
    }


def describe_channel(connection: ConnectionStatistics, now: ChannelStatistics) -> dict[str, Any]:
    return {
        "name": f"{connection.name} ({now.number})",
        "number": now.number,
        "user": connection.user,
        "vhost": connection.vhost,
        "state": now.state,
        "confirm": now.confirming,
        "transactional": now.transactional,
        "prefetch_count": now.prefetch,
        "global_prefetch_count": now.global_prefetch,
        "messages_unacknowledged": now.unacked,
        "messages_unconfirmed": now.unconfirmed,
        "consumer_count": len(now.consumers),
        "connection_details": {"name": connection.name, "peer_host": connection.peer.host},
    }


def _visible(visit: Visit) -> list[tuple[FrontEnd, ConnectionStatistics]]:
    found = [(front_end, front_end.statistics()) for front_end in visit.server.node.front_ends]
    return [(one, now) for one, now in found if visit.sees_all or now.user == visit.user]


def _named(visit: Visit) -> tuple[FrontEnd, ConnectionStatistics]:
    name = visit.part("connection")
    for front_end, now in _visible(visit):
        if now.name == name:
            return front_end, now
    raise NotFound(reason=f"no connection '{name}'")


async def every(visit: Visit) -> Response:
    return listed([describe(now) for _, now in _visible(visit)])


async def one(visit: Visit) -> Response:
    return shown(describe(_named(visit)[1]))


async def delete(visit: Visit) -> Response:
    front_end, now = _named(visit)
    reason = visit.request.headers.get("x-reason", "closed via management")
    visit.server.log.info("connection closed by an operator", name=now.name, by=visit.user, reason=reason)
    front_end.shutdown(320, f"CONNECTION_FORCED - {reason}")
    visit.server.node.touched(front_end)
    return done()


async def channels(visit: Visit) -> Response:
    return listed([describe_channel(now, channel) for _, now in _visible(visit) for channel in now.channels])


routes = [
    ("GET", "/connections", every),
    ("GET", "/connections/{connection}", one),
    ("DELETE", "/connections/{connection}", delete),
    ("GET", "/channels", channels),
]
