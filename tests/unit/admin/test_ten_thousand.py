"""Ten thousand queues: every list is answered, in turns that leave the broker time for everybody else.

The broker runs in the test's own loop, so that what each turn of the loop costs can be measured: as time of this
thread, which does not depend on what else the machine does.
"""

from __future__ import annotations

import asyncio
import gc
import io
import json
import time
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import Any

from starlette.requests import Request
from starlette.responses import Response

from tidemark.admin.resources import bindings, definitions, exchanges, overview, queues, vhosts
from tidemark.admin.visit import Visit
from tidemark.config import load
from tidemark.model.wiring import QueueSpec
from tidemark.runtime.log import Log
from tidemark.runtime.server import Server

MANY = 10_000
TURN_S = 0.03
"""Longest that a turn may take; a slice is 2 ms, and a compiled or debug build of Python may be some times slower."""


def asked(server: Server, query: str) -> Visit:
    scope = {
        "type": "http",
        "method": "GET",
        "path": "/",
        "path_params": {},
        "query_string": query.encode(),
        "headers": [],
    }
    return Visit(server, Request(scope), "guest")


async def turns(answer: Awaitable[Response]) -> tuple[Any, list[float]]:
    """The answer, and how long this thread worked in each turn of the loop until it was there."""
    made = asyncio.ensure_future(answer)
    found = []
    while not made.done():
        began = time.thread_time()
        await asyncio.sleep(0)
        found.append(time.thread_time() - began)
    return json.loads(bytes((await made).body)), found


CASES: dict[str, tuple[Callable[[Visit], Awaitable[Response]], str, Callable[[Any], bool]]] = {
    "a page": (
        queues.every,
        "page=73&page_size=100",
        lambda page: page["items"][0]["name"] == "queue-07200" and page["total_count"] == MANY,
    ),
    "a page by name": (
        queues.every,
        "page=1&name=99%24&use_regex=true",
        lambda page: page["filtered_count"] == 100 and page["items"][-1]["name"] == "queue-09999",
    ),
    "a page by rate": (
        queues.every,
        "page=2&page_size=50&sort=message_stats.publish_details.rate&sort_reverse=true",
        lambda page: page["item_count"] == 50,
    ),
    "a page by what is not at hand": (
        queues.every,
        "page=1&page_size=50&sort=arguments.x-max-length&sort_reverse=true",
        lambda page: page["items"][0]["arguments"]["x-max-length"] == MANY,
    ),
    "all of them": (queues.every, "", lambda found: len(found) == MANY),
    "two columns of all": (
        queues.every,
        "columns=name,messages",
        lambda found: found[-1] == {"name": "queue-09999", "messages": 0},
    ),
    "all bindings": (bindings.every, "", lambda found: len(found) == MANY),
    "definitions": (definitions.export, "", lambda found: len(found["queues"]) == MANY),
    "exchanges": (exchanges.every, "page=1", lambda page: page["total_count"] == 6),
    "the overview": (overview.overview, "", lambda found: found["object_totals"]["queues"] == MANY),
    "virtual hosts": (vhosts.every, "", lambda found: len(found) == 1),
}


def test_no_list_of_ten_thousand_queues_holds_up_the_broker(tmp_path: Path) -> None:
    async def run() -> dict[str, list[float]]:
        flags = {"node.data": str(tmp_path / "data"), "listen.amqp": "127.0.0.1:0", "listen.admin": ""}
        server = Server(load(flags), Log(stream=io.StringIO()))
        await server.start()
        broker = server.node.broker
        broker.now_ms = server.clock.now_ms()
        for number in range(MANY):
            spec = QueueSpec("/", f"queue-{number:05}", arguments={"x-max-length": number + 1})
            broker.create_queue(spec)
        await server.rates.catch_up()
        gc.collect()
        gc.freeze()
        gc.disable()
        found = {}
        try:
            for name, (resource, query, is_right) in CASES.items():
                answer, took = await turns(resource(asked(server, query)))
                assert is_right(answer), name
                found[name] = took
        finally:
            gc.unfreeze()
            gc.enable()
            server.stop()
            await server.run_until_stopped()
        return found

    found = asyncio.run(run())
    longest = {name: max(took) for name, took in found.items()}
    assert all(took < TURN_S for took in longest.values()), longest
    assert len(found["all of them"]) > 50
    assert sum(found["a page"]) < sum(found["all of them"]) / 4, "a page costs as much as all"
