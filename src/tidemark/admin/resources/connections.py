"""/api/connections and /api/channels: who is connected.

A visitor who does not see everything sees the connections of their own user. To close those of others takes an administrator.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, NamedTuple

from starlette.responses import Response

from tidemark.admin import paging
from tidemark.admin.answers import done
from tidemark.admin.resources import consumers
from tidemark.admin.resources.figures import RATE, SPANS, ages, stats
from tidemark.admin.routing import COUNT, FLAG, OBJECT, PAGING, TEXT, Entry, Schema, an_object, maybe, paged
from tidemark.admin.visit import Visit
from tidemark.errors import NotFound
from tidemark.frontend.services import ChannelStatistics, ConnectionStatistics, FrontEnd

REASON_BYTES_MAX = 200
STATES = {"open": "running", "leaving": "closing"}
"""Where RabbitMQ has another word for it."""


class Found(NamedTuple):
    """A connection, or one channel of it."""

    front_end: FrontEnd
    now: ConnectionStatistics
    channel: ChannelStatistics | None = None


def describe(visit: Visit, found: Found, spans: Mapping[str, Any] | None = None) -> dict[str, Any]:
    now = found.now
    facts = {
        "name": now.name,
        "node": visit.server.config.node.name,
        "type": "network",
        "user": now.user,
        "user_who_performed_action": now.user,
        "vhost": now.vhost,
        "state": STATES.get(now.state, now.state),
        "protocol": now.protocol,
        "ssl": now.peer.tls,
        "peer_cert_subject": now.peer.certificate_name,
        "peer_host": now.peer.host,
        "peer_port": now.peer.port,
        "host": now.peer.local_host,
        "port": now.peer.local_port,
        "channels": len(now.channels),
        "channel_max": now.channel_max,
        "frame_max": now.frame_max,
        "timeout": now.heartbeat_s,
        "connected_at": now.connected_ms,
        "client_properties": now.client_properties,
        **visit.server.rates.bytes(found.front_end, **(spans or {})),
    }
    name = now.client_properties.get("connection_name")
    if isinstance(name, str):
        facts["user_provided_name"] = name
    return facts


def describe_channel(visit: Visit, found: Found, spans: Mapping[str, Any] | None = None) -> dict[str, Any]:
    connection, now = found.now, found.channel
    assert now is not None
    living = getattr(found.front_end, "channels", {}).get(now.number)
    counted = {} if living is None else stats(visit, "channel", living, spans)
    return {
        "name": f"{connection.name} ({now.number})",
        "number": now.number,
        "node": visit.server.config.node.name,
        "user": connection.user,
        "user_who_performed_action": connection.user,
        "vhost": connection.vhost,
        "state": STATES.get(now.state, now.state),
        "confirm": now.confirming,
        "transactional": now.transactional,
        "prefetch_count": now.prefetch,
        "global_prefetch_count": now.global_prefetch,
        "messages_unacknowledged": now.unacked,
        "messages_unconfirmed": now.unconfirmed,
        "consumer_count": len(now.consumers),
        "connection_details": {
            "name": connection.name,
            "peer_host": connection.peer.host,
            "peer_port": connection.peer.port,
        },
        "message_stats": counted,
    }


# Lists ----------------------------------------------------------------------------------------------


async def _visible(visit: Visit) -> list[Found]:
    """The connections that the visitor may see; of the virtual host or the user in the path, if one is there."""
    found: list[Found] = []
    asked = visit.request.path_params
    vhost = visit.vhost().name if "vhost" in asked else None
    user = visit.part("user") if "user" in asked else None
    async for part in paging.sliced(list(visit.server.node.front_ends)):
        for front_end in part:
            now = front_end.statistics()
            mine = visit.sees_all or now.user == visit.user
            if mine and vhost in (None, now.vhost) and user in (None, now.user):
                found.append(Found(front_end, now))
    return found


CONNECTION_KEYS: paging.Keys = {
    "name": lambda found: found.now.name,
    "user": lambda found: found.now.user,
    "vhost": lambda found: found.now.vhost,
    "state": lambda found: STATES.get(found.now.state, found.now.state),
    "protocol": lambda found: found.now.protocol,
    "channels": lambda found: len(found.now.channels),
    "connected_at": lambda found: found.now.connected_ms,
    "recv_oct": lambda found: found.now.bytes_in,
    "send_oct": lambda found: found.now.bytes_out,
}
CHANNEL_KEYS: paging.Keys = {
    "name": lambda found: f"{found.now.name} ({found.channel.number})",
    "number": lambda found: found.channel.number,
    "user": lambda found: found.now.user,
    "vhost": lambda found: found.now.vhost,
    "prefetch_count": lambda found: found.channel.prefetch,
    "messages_unacknowledged": lambda found: found.channel.unacked,
    "messages_unconfirmed": lambda found: found.channel.unconfirmed,
    "consumer_count": lambda found: len(found.channel.consumers),
}


async def every(visit: Visit) -> Response:
    found, spans = await _visible(visit), ages(visit)
    return await paging.listed(visit, found, lambda one: describe(visit, one, spans), keys=CONNECTION_KEYS)


async def every_channel(visit: Visit) -> Response:
    found = [one._replace(channel=channel) for one in await _visible(visit) for channel in one.now.channels]
    return await _channels(visit, found)


async def _channels(visit: Visit, found: list[Found]) -> Response:
    spans = ages(visit)
    return await paging.listed(
        visit,
        found,
        lambda one: describe_channel(visit, one, spans),
        keys=CHANNEL_KEYS,
        order=("vhost", "name"),
    )


# One ------------------------------------------------------------------------------------------------


def _named(visit: Visit, name: str) -> Found:
    for front_end in visit.server.node.front_ends:
        if str(front_end.peer) == name:
            now = front_end.statistics()
            if visit.sees_all or now.user == visit.user:
                return Found(front_end, now)
    raise NotFound(reason=f"no connection '{name}'")


async def one(visit: Visit) -> Response:
    return paging.shown(visit, describe(visit, _named(visit, visit.part("connection")), ages(visit)))


async def channels(visit: Visit) -> Response:
    found = _named(visit, visit.part("connection"))
    return await _channels(visit, [found._replace(channel=channel) for channel in found.now.channels])


async def one_channel(visit: Visit) -> Response:
    name = visit.part("channel")
    connection, _, rest = name.rpartition(" (")
    found = _named(visit, connection) if connection else None
    for channel in found.now.channels if found is not None else ():
        if f"{channel.number})" == rest:
            assert found is not None
            this = found._replace(channel=channel)
            details = [
                consumers.describe(visit, consumers.Found(consumer, channel, found.now))
                for consumer in channel.consumers
            ]
            facts = describe_channel(visit, this, ages(visit))
            return paging.shown(visit, {**facts, "consumer_details": details})
    raise NotFound(reason=f"no channel '{name}'")


async def delete(visit: Visit) -> Response:
    _close(visit, _named(visit, visit.part("connection")))
    return done()


async def delete_of_user(visit: Visit) -> Response:
    """Close all connections of a user."""
    for found in await _visible(visit):
        _close(visit, found)
    return done()


def _close(visit: Visit, found: Found) -> None:
    """Raises Refused: it is another user's, and the visitor is no administrator."""
    if found.now.user != visit.user:
        visit.must_be_administrator()
    given = "".join(c for c in visit.request.headers.get("x-reason", "") if c.isprintable())
    reason = given.encode()[:REASON_BYTES_MAX].decode(errors="ignore") or "Closed via management plugin"
    visit.server.log.info(
        "connection closed by an operator", name=found.now.name, by=visit.user, reason=reason
    )
    found.front_end.shutdown(320, f"CONNECTION_FORCED - {reason}")
    visit.server.node.touched(found.front_end)


CONNECTION: Schema = an_object(
    {"user_provided_name": TEXT},
    name=TEXT,
    node=TEXT,
    type=TEXT,
    user=TEXT,
    vhost=TEXT,
    state=TEXT,
    protocol=TEXT,
    ssl=FLAG,
    peer_cert_subject=maybe(TEXT),
    peer_host=TEXT,
    peer_port=COUNT,
    host=TEXT,
    port=COUNT,
    channels=COUNT,
    channel_max=COUNT,
    frame_max=COUNT,
    timeout=COUNT,
    connected_at=COUNT,
    client_properties=OBJECT,
    recv_oct=COUNT,
    recv_oct_details=RATE,
    send_oct=COUNT,
    send_oct_details=RATE,
)
CHANNEL: Schema = an_object(
    {"message_stats": OBJECT},
    name=TEXT,
    number=COUNT,
    node=TEXT,
    user=TEXT,
    vhost=TEXT,
    state=TEXT,
    confirm=FLAG,
    transactional=FLAG,
    prefetch_count=COUNT,
    global_prefetch_count=COUNT,
    messages_unacknowledged=COUNT,
    messages_unconfirmed=COUNT,
    consumer_count=COUNT,
    connection_details=OBJECT,
)
QUERY = PAGING + SPANS
OF_USER = "/connections/username/{user}"
ONE = "/connections/{connection}"


def _list(path: str, resource: Any, words: str, item: Schema) -> Entry:
    return Entry("GET", path, resource, words, "connections", QUERY, answer=paged(item))


routes = [
    _list("/connections", every, "All connections", CONNECTION),
    _list("/vhosts/{vhost}/connections", every, "Connections to a virtual host", CONNECTION),
    _list(OF_USER, every, "Connections of a user", CONNECTION),
    Entry("DELETE", OF_USER, delete_of_user, "Close all connections of a user", "connections", anywhere=True),
    Entry("GET", ONE, one, "A connection", "connections", SPANS, answer=CONNECTION),
    Entry(
        "DELETE",
        ONE,
        delete,
        "Close a connection; the header X-Reason says why",
        "connections",
        anywhere=True,
    ),
    _list(ONE + "/channels", channels, "Channels of a connection", CHANNEL),
    _list("/channels", every_channel, "All channels", CHANNEL),
    _list("/vhosts/{vhost}/channels", every_channel, "Channels in a virtual host", CHANNEL),
    Entry("GET", "/channels/{channel}", one_channel, "A channel", "connections", SPANS, answer=CHANNEL),
]
