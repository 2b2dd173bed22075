"""/api/pipelines: how pipelines that read from this broker are doing, as their runners report it.

A runner upserts its report into the stream `tidemark.pipelines` of the virtual host that it reads from. What is there was
written by a client and is not believed: fields of other types than expected are left out, and there is a bound to how many
are shown. A run that has not reported for a while and did not say that it ended is shown as lost.

Invariant: rows of data in a report are shown only to who may read that stream.
"""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator, Callable, Iterable
from typing import Any

from starlette.responses import Response

from tidemark.admin import paging
from tidemark.admin.answers import shown
from tidemark.admin.routing import (
    COUNT,
    FLAG,
    NUMBER,
    OBJECT,
    PAGING,
    TEXT,
    Entry,
    a_list,
    an_object,
    maybe,
    paged,
)
from tidemark.admin.visit import Visit
from tidemark.broker.streams.core import FLAGS, KEY, SEQUENCE, TIMESTAMP, VALUE, gather
from tidemark.broker.streams.snapshots import Snapshot
from tidemark.broker.streams.stream import Stream
from tidemark.broker.vhost import VirtualHost
from tidemark.errors import NotFound
from tidemark.runtime.server import Server

STREAM = "tidemark.pipelines"
LOST_MS = 20_000
OVER = ("done", "stopped", "failed")
REPORTS_MAX = 1000
REPORT_BYTES_MAX = 256 << 10
STEP_ROWS = 16
PARTS_MAX = 200
TEXT_MAX = 4000


async def every(visit: Visit) -> Response:
    found = [one async for one in reports(visit)]
    return await paging.listed(visit, found, lambda one: one, order=("name", "host", "vhost"))


async def one(visit: Visit) -> Response:
    """The newest report of a pipeline, wherever it runs."""
    name = visit.part("pipeline")
    found = [each async for each in reports(visit) if each["name"] == name]
    if not found:
        raise NotFound(reason=f"no pipeline '{name}' has reported to this broker")
    return shown(max(found, key=lambda each: each["at_ms"]))


async def reports(visit: Visit) -> AsyncIterator[dict[str, Any]]:
    access, user = visit.broker.access, visit.user
    async for vhost, report in told(
        visit.server, visit.vhosts(), lambda vhost: access.allows(user, vhost, "read", STREAM)
    ):
        yield {"vhost": vhost, **report}


async def told(
    server: Server, vhosts: Iterable[VirtualHost], may_read: Callable[[str], bool]
) -> AsyncIterator[tuple[str, dict[str, Any]]]:
    """The newest report of each pipeline, with its virtual host; rows of data only where they may be read."""
    left = REPORTS_MAX
    for host in vhosts:
        stream: Any = host.queues.get(STREAM)
        if not isinstance(stream, Stream):
            continue
        with_rows = may_read(host.name)
        with Snapshot(stream, stream.caught_up()) as snapshot:
            after = 0
            while left > 0 and (taken := snapshot.take(STEP_ROWS, 1 << 20, after=after)) is not None:
                after = snapshot.position
                for row in gather(stream, taken, KEY | VALUE | SEQUENCE | TIMESTAMP | FLAGS):
                    left -= 1
                    if row.tombstone or len(row.value) > REPORT_BYTES_MAX:
                        continue
                    report = understood(row.value, row.ms, server.clock.now_ms(), with_rows)
                    if report is not None:
                        yield host.name, report
                await asyncio.sleep(0)


def understood(raw: bytes, reported_ms: int, now_ms: int, may_read: bool) -> dict[str, Any] | None:
    """A report as it is shown; None: it is none."""
    try:
        told = json.loads(raw)
    except (ValueError, RecursionError):
        return None
    if not isinstance(told, dict) or not isinstance(told.get("name"), str):
        return None
    state = _text(told.get("state")) or "?"
    if state not in OVER and now_ms - reported_ms > LOST_MS:
        state = "lost"
    return {
        "name": _text(told["name"]),
        "host": _text(told.get("host")),
        "pid": _count(told.get("pid")),
        "state": state,
        "began_ms": _count(told.get("began_ms")),
        "at_ms": reported_ms,
        "file": _text(told.get("file")),
        "sources": [
            {name: _text(each.get(name)) for name in ("name", "stream", "url")}
            for each in _objects(told.get("sources"))
        ],
        "steps": [
            {
                "name": _text(each.get("name")),
                "kind": _text(each.get("kind")),
                "reads": _texts(each.get("reads")),
            }
            for each in _objects(told.get("steps"))
        ],
        "dead_letters": _text(told.get("dead_letters")) or None,
        "sinks": [_sink(each, state, may_read) for each in _objects(told.get("sinks"))],
    }


def _sink(told: dict[str, Any], run: str, may_read: bool) -> dict[str, Any]:
    state = _text(told.get("state"))
    message, row = _text(told.get("error")) or None, told.get("offending")
    offending = _row(row) if isinstance(row, dict) and may_read else None
    return {
        "name": _text(told.get("name")) or _text(told.get("sink")),
        "kind": _text(told.get("kind")),
        "mode": _text(told.get("mode")),
        "reads": _text(told.get("reads")),
        "state": "lost" if run == "lost" and state not in OVER else state,
        **{name: _count(told.get(name)) for name in COUNTED},
        **{name: _number(told.get(name)) for name in MEASURED},
        "boundary": told.get("boundary") is True,
        "boundary_ms": _count(told.get("boundary_at_ms")),
        "error": {"message": message, "row": offending} if message or offending else None,
        "note": _text(told.get("note")) or None,
    }


def _row(told: dict[str, Any]) -> dict[str, Any]:
    return {
        "on": _text(told.get("on")),
        "failed": _texts(told.get("failed")),
        "key": _text(told.get("key")),
        "sequence": _count(told.get("sequence")),
        "value": _text(told.get("value")),
        "cut": told.get("cut") is True,
        "at_ms": _count(told.get("at_ms")),
    }


COUNTED = (
    "rows", "upserted", "deleted", "dead_letters", "dropped", "batches", "restarts", "batch", "sequence", "lag_rows",
)  # fmt: skip
MEASURED = ("rows_per_s", "lag_s", "eta_s")


def _text(value: Any) -> str:
    return value[:TEXT_MAX] if isinstance(value, str) else ""


def _texts(value: Any) -> list[str]:
    return [_text(each) for each in value[:PARTS_MAX]] if isinstance(value, list) else []


def _count(value: Any) -> int | None:
    fits = isinstance(value, int) and not isinstance(value, bool) and 0 <= value < 1 << 63
    return value if fits else None


def _number(value: Any) -> float | None:
    if isinstance(value, bool) or not isinstance(value, int | float):
        return None
    return value if 0 <= value < 1e15 else None


def _objects(value: Any) -> list[dict[str, Any]]:
    if not isinstance(value, list):
        return []
    return [each for each in value[:PARTS_MAX] if isinstance(each, dict)]


ROW = an_object(on=TEXT, failed=a_list(TEXT), key=TEXT, sequence=maybe(COUNT), value=TEXT, cut=FLAG)
ERROR = an_object(message=maybe(TEXT), row={"anyOf": [ROW, {"type": "null"}]})
SINK = an_object(
    {name: maybe(COUNT) for name in COUNTED},
    name=TEXT,
    kind=TEXT,
    mode=TEXT,
    reads=TEXT,
    state=TEXT,
    rows_per_s=maybe(NUMBER),
    lag_s=maybe(NUMBER),
    eta_s=maybe(NUMBER),
    boundary=FLAG,
    boundary_ms=maybe(COUNT),
    error={"anyOf": [ERROR, {"type": "null"}]},
)
PIPELINE = an_object(
    vhost=TEXT,
    name=TEXT,
    host=TEXT,
    state=TEXT,
    began_ms=maybe(COUNT),
    at_ms=COUNT,
    sources=a_list(OBJECT),
    steps=a_list(OBJECT),
    sinks=a_list(SINK),
)

routes = [
    Entry(
        "GET", "/pipelines", every, "Pipelines that report to this broker", "pipelines", PAGING, answer=paged(PIPELINE)
    ),
    Entry("GET", "/pipelines/{pipeline}", one, "The newest report of a pipeline", "pipelines", answer=PIPELINE),
]  # fmt: skip
