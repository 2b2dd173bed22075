"""/api/streams: streams with what they hold, the marks of their consumers, and the pins that keep their past.

A stream is also in /api/queues, as a queue of type `stream`; here is what only a stream has.
"""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from dataclasses import asdict
from typing import Any

from starlette.responses import Response

from tidemark.admin.answers import body, created, done, field, listed, shown
from tidemark.admin.visit import Visit
from tidemark.broker.streams.session import StreamSession
from tidemark.broker.streams.stream import Stream
from tidemark.errors import NotAStream

LOOK_S = 0.002
"""How often we look whether a change is on the disk: nobody but an operator waits here."""


def describe(visit: Visit, stream: Stream) -> dict[str, Any]:
    return {
        **asdict(stream.stream()),
        "arguments": stream.spec.arguments,
        "node": visit.server.config.node.name,
        "history": visit.broker.streams.history.hex(),
    }


def streams(visit: Visit) -> Iterator[Stream]:
    """Those of the virtual host in the path, or all that the visitor may see."""
    for host in visit.vhosts():
        for queue in host.queues.values():
            if isinstance(queue, Stream):
                yield queue


def the_stream(visit: Visit) -> Stream:
    """The stream in the path. Raises NotFound, NotAStream."""
    found = visit.vhost().queue(visit.part("stream"))
    if not isinstance(found, Stream):
        raise NotAStream(stream=visit.part("stream"))
    return found


def marks_of(stream: Stream) -> list[dict[str, Any]]:
    return [
        {
            "vhost": stream.spec.vhost,
            "stream": stream.name,
            "consumer": mark.consumer,
            "history": mark.history.hex(),
            "sequence": mark.seq,
            "snapshot_end": mark.snapshot_end,
            "behind": max(0, stream.boundary - mark.seq),
            "registered": bool(mark.lease_ms),
            "lease_until_ms": mark.until_ms if mark.lease_ms else None,
            "expired": mark.expired,
            "shards": [point.seq for point in mark.points],
        }
        for mark in stream.marks.by_name.values()
    ]


def pins_of(stream: Stream) -> list[dict[str, Any]]:
    return [
        {
            "vhost": stream.spec.vhost,
            "stream": stream.name,
            "name": pin.name,
            "history": pin.history.hex(),
            "sequence": pin.seq,
            "lease_until_ms": pin.lease_until_ms,
            "messages_kept": pin.messages_kept,
            "bytes_kept": pin.bytes_kept,
        }
        for pin in stream.pins.statistics()
    ]


async def every(visit: Visit) -> Response:
    return listed([describe(visit, stream) for stream in streams(visit)])


async def one(visit: Visit) -> Response:
    return shown(describe(visit, the_stream(visit)))


async def put(visit: Visit) -> Response:
    """Make a stream, or see that it is there; with more shards than it has it grows."""
    given, name = await body(visit.request), visit.part("stream")
    new = name not in visit.vhost().queues
    with visit.session() as session:
        safe_at = StreamSession(session).declare(name, field(given, "arguments", dict, {}))
    await visit.safe(safe_at)
    return created(new)


async def delete(visit: Visit) -> Response:
    the_stream(visit)
    with visit.session() as session:
        safe_at = StreamSession(session).delete(visit.part("stream"))
    await visit.safe(safe_at)
    return done()


async def every_mark(visit: Visit) -> Response:
    return listed([mark for stream in streams(visit) for mark in marks_of(stream)])


async def every_pin(visit: Visit) -> Response:
    return listed([pin for stream in streams(visit) for pin in pins_of(stream)])


async def marks(visit: Visit) -> Response:
    return listed(marks_of(the_stream(visit)))


async def pins(visit: Visit) -> Response:
    return listed(pins_of(the_stream(visit)))


async def reset_mark(visit: Visit) -> Response:
    """Send a consumer to another place: `{"sequence": n}`, 0 is the beginning."""
    sequence = field(await body(visit.request), "sequence", int, 0)
    the_stream(visit)
    with visit.session() as session:
        safe_at = StreamSession(session).reset_mark(visit.part("stream"), visit.part("consumer"), sequence)
    return await stored(visit, safe_at)


async def forget_mark(visit: Visit) -> Response:
    the_stream(visit)
    with visit.session() as session:
        safe_at = StreamSession(session).unregister(visit.part("stream"), visit.part("consumer"))
    return await stored(visit, safe_at)


async def release_pin(visit: Visit) -> Response:
    the_stream(visit)
    with visit.session() as session:
        safe_at = StreamSession(session).release(visit.part("stream"), visit.part("pin"))
    return await stored(visit, safe_at)


async def stored(visit: Visit, seq: int) -> Response:
    """Answer when the journal is on the disk up to there."""
    node = visit.server.node
    while node.journal_durable() < seq:
        if node.failed is not None:
            raise node.failed
        await asyncio.sleep(LOOK_S)
    return done()


routes = [
    ("GET", "/streams", every),
    ("GET", "/streams/{vhost}", every),
    ("GET", "/streams/{vhost}/{stream}", one),
    ("PUT", "/streams/{vhost}/{stream}", put),
    ("DELETE", "/streams/{vhost}/{stream}", delete),
    ("GET", "/streams/{vhost}/{stream}/marks", marks),
    ("PUT", "/streams/{vhost}/{stream}/marks/{consumer}", reset_mark),
    ("DELETE", "/streams/{vhost}/{stream}/marks/{consumer}", forget_mark),
    ("GET", "/streams/{vhost}/{stream}/pins", pins),
    ("DELETE", "/streams/{vhost}/{stream}/pins/{pin}", release_pin),
    ("GET", "/marks", every_mark),
    ("GET", "/marks/{vhost}", every_mark),
    ("GET", "/pins", every_pin),
    ("GET", "/pins/{vhost}", every_pin),
]
