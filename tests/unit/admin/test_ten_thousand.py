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
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import pytest
from starlette.requests import Request
from starlette.responses import Response

from tidemark.admin.resources import bindings, definitions, exchanges, messages, overview, queues, vhosts
from tidemark.admin.visit import Visit
from tidemark.config import load
from tidemark.errors import PreconditionFailed
from tidemark.model.wiring import QueueSpec
from tidemark.runtime.log import Log
from tidemark.runtime.server import Server
from tidemark.wire.amqp091.properties import Properties, encode_properties

MANY = 10_000
TURN_S = 0.03
"""Longest that a turn may take; a slice is 2 ms, and a compiled or debug build of Python may be some times slower."""


def asked(server: Server, query: str = "", sent: bytes = b"", **parts: str) -> Visit:
    scope = {
        "type": "http",
        "method": "POST" if sent else "GET",
        "path": "/",
        "path_params": parts,
        "query_string": query.encode(),
        "headers": [],
    }

    async def receive() -> dict[str, Any]:
        return {"type": "http.request", "body": sent, "more_body": False}

    request = Request(scope, receive)
    request.state.body_bytes_max = 1 << 30
    return Visit(server, request, "guest")


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


@asynccontextmanager
async def a_server(path: Path) -> AsyncIterator[Server]:
    flags = {"node.data": str(path / "data"), "listen.amqp": "127.0.0.1:0", "listen.admin": ""}
    server = Server(load(flags), Log(stream=io.StringIO()))
    await server.start()
    try:
        yield server
    finally:
        gc.unfreeze()
        gc.enable()
        server.stop()
        await server.run_until_stopped()


def without_garbage_collection() -> None:
    """Until the server has ended: a turn that it falls into would seem long."""
    gc.collect()
    gc.freeze()
    gc.disable()


def test_no_list_of_ten_thousand_queues_holds_up_the_broker(tmp_path: Path) -> None:
    async def run() -> dict[str, list[float]]:
        async with a_server(tmp_path) as server:
            broker = server.node.broker
            broker.now_ms = server.clock.now_ms()
            for number in range(MANY):
                spec = QueueSpec("/", f"queue-{number:05}", arguments={"x-max-length": number + 1})
                broker.create_queue(spec)
            await server.rates.catch_up()
            without_garbage_collection()
            found = {}
            for name, (resource, query, is_right) in CASES.items():
                answer, took = await turns(resource(asked(server, query)))
                assert is_right(answer), name
                found[name] = took
            return found

    found = asyncio.run(run())
    longest = {name: max(took) for name, took in found.items()}
    assert all(took < TURN_S for took in longest.values()), longest
    assert len(found["all of them"]) > 50
    assert sum(found["a page"]) < sum(found["all of them"]) / 4, "a page costs as much as all"


def a_document() -> dict[str, Any]:
    """Definitions of ten thousand queues, each with a binding."""
    queues = [
        {
            "name": f"queue-{number:05}",
            "vhost": "/",
            "durable": True,
            "auto_delete": False,
            "arguments": {"x-max-length": 1000, "x-message-ttl": 60_000},
        }
        for number in range(MANY)
    ]
    bindings = [
        {
            "source": "amq.topic",
            "vhost": "/",
            "destination": queue["name"],
            "destination_type": "queue",
            "routing_key": f"#.{queue['name']}",
            "arguments": {},
        }
        for queue in queues
    ]
    return {"queues": queues, "bindings": bindings}


def test_no_import_of_ten_thousand_queues_holds_up_the_broker(tmp_path: Path) -> None:
    sent = json.dumps(a_document(), indent=1).encode()

    async def run() -> tuple[Any, list[float], Any]:
        async with a_server(tmp_path) as server:
            without_garbage_collection()
            answer, took = await turns(definitions.load(asked(server, sent=sent)))
            again, _ = await turns(definitions.load(asked(server, sent=sent)))
            assert len(server.node.broker.queues) == MANY
            return answer, took, again

    answer, took, again = asyncio.run(run())
    assert answer == {"made": {"queues": MANY, "bindings": MANY}, "kept": {}, "left_out": []}
    assert again == {"made": {}, "kept": {"queues": MANY, "bindings": MANY}, "left_out": []}
    assert max(took) < TURN_S
    assert len(took) > 50


def test_a_long_import_whose_last_item_is_wrong_changes_nothing(tmp_path: Path) -> None:
    document = a_document()
    document["bindings"][-1]["destination_type"] = "heap"

    async def run() -> None:
        async with a_server(tmp_path) as server:
            with pytest.raises(PreconditionFailed, match=r"bindings\[9999\]"):
                await definitions.load(asked(server, sent=json.dumps(document).encode()))
            assert not server.node.broker.queues

    asyncio.run(run())


def test_what_others_change_during_a_long_import_is_kept_or_left_out(tmp_path: Path) -> None:
    document = a_document()
    document["vhosts"] = [{"name": "short-lived"}]
    document["queues"].append({"name": "homeless", "vhost": "short-lived", "durable": True})

    async def run() -> dict[str, Any]:
        async with a_server(tmp_path) as server:
            broker = server.node.broker
            made = asyncio.ensure_future(definitions.load(asked(server, sent=json.dumps(document).encode())))
            while "short-lived" not in broker.vhosts:
                await asyncio.sleep(0)
            broker.delete_vhost("short-lived")
            broker.create_queue(QueueSpec("/", "queue-09999"))
            found: dict[str, Any] = json.loads(bytes((await made).body))
            return found

    found = asyncio.run(run())
    assert found["made"]["queues"] == MANY - 1
    assert found["kept"]["queues"] == 1
    assert found["left_out"] == ["queues[10000]: no vhost 'short-lived'"]


@pytest.mark.parametrize("ackmode", messages.ACKMODES)
def test_no_get_of_ten_thousand_messages_holds_up_the_broker(tmp_path: Path, ackmode: str) -> None:
    async def run() -> tuple[Any, list[float], tuple[int, int]]:
        async with a_server(tmp_path) as server:
            broker = server.node.broker
            arguments = {"x-dead-letter-exchange": "", "x-dead-letter-routing-key": "dead"}
            queue, _ = broker.create_queue(QueueSpec("/", "q", arguments=arguments))
            dead, _ = broker.create_queue(QueueSpec("/", "dead"))
            publishing = broker.open_session("/", "guest", None, "test").publishing(messages.Nowhere())
            for number in range(MANY):
                publishing.publish_one("", "q", encode_properties(Properties()), b"%d" % number)
            without_garbage_collection()
            sent = json.dumps({"count": MANY, "ackmode": ackmode}).encode()
            visit = asked(server, sent=sent, vhost="%2F", queue="q")
            answer, took = await turns(messages.get(visit))
            return answer, took, (queue.ready, dead.ready)

    answer, took, ready = asyncio.run(run())
    assert [message["payload"] for message in answer] == [str(number) for number in range(MANY)]
    assert max(took) < TURN_S
    left = {"ack_requeue_false": (0, 0), "reject_requeue_false": (0, MANY)}
    assert ready == left.get(ackmode, (MANY, 0))
