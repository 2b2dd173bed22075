"""/api/consumers: who is being given messages."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any

from starlette.responses import Response

from tidemark.admin import paging
from tidemark.admin.routing import COUNT, FLAG, OBJECT, PAGING, TEXT, Entry, Schema, an_object, paged
from tidemark.admin.visit import Visit
from tidemark.broker.consumer import ConsumerStatistics
from tidemark.broker.queue import Queue
from tidemark.frontend.services import ChannelStatistics, ConnectionStatistics


@dataclass(frozen=True, slots=True)
class Found:
    consumer: ConsumerStatistics
    channel: ChannelStatistics
    connection: ConnectionStatistics


def describe(visit: Visit, found: Found) -> dict[str, Any]:
    now, connection = found.consumer, found.connection
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
        "channel_details": {
            "name": f"{connection.name} ({found.channel.number})",
            "connection_name": connection.name,
            "number": found.channel.number,
            "node": visit.server.config.node.name,
            "user": connection.user,
            "peer_host": connection.peer.host,
            "peer_port": connection.peer.port,
        },
    }


async def consumers_of(visit: Visit, vhosts: Iterable[str]) -> list[Found]:
    """All that consume in these virtual hosts."""
    names, found = set(vhosts), []
    async for part in paging.sliced(list(visit.server.node.front_ends)):
        for front_end in part:
            connection = front_end.statistics()
            if connection.vhost in names:
                for channel in connection.channels:
                    found += [Found(consumer, channel, connection) for consumer in channel.consumers]
    return found


async def of_queue(visit: Visit, queue: Queue) -> list[dict[str, Any]]:
    if not queue.consumers:
        return []
    found = await consumers_of(visit, [queue.spec.vhost])
    return [describe(visit, one) for one in found if one.consumer.queue == queue.name]


KEYS: paging.Keys = {
    "name": lambda found: found.consumer.tag,
    "consumer_tag": lambda found: found.consumer.tag,
    "queue.name": lambda found: found.consumer.queue,
    "queue.vhost": lambda found: found.consumer.vhost,
}


async def every(visit: Visit) -> Response:
    found = await consumers_of(visit, [host.name for host in visit.vhosts()])
    return await paging.listed(
        visit,
        found,
        lambda one: describe(visit, one),
        keys=KEYS,
        order=("queue.vhost", "queue.name", "consumer_tag"),
    )


CONSUMER: Schema = an_object(
    consumer_tag=TEXT,
    queue=an_object(name=TEXT, vhost=TEXT),
    ack_required=FLAG,
    exclusive=FLAG,
    prefetch_count=COUNT,
    active=FLAG,
    activity_status=TEXT,
    arguments=OBJECT,
    channel_details=OBJECT,
)

routes = [
    Entry("GET", "/consumers", every, "All consumers", "consumers", PAGING, answer=paged(CONSUMER)),
    Entry(
        "GET",
        "/consumers/{vhost}",
        every,
        "Consumers of a virtual host",
        "consumers",
        PAGING,
        answer=paged(CONSUMER),
    ),
]
