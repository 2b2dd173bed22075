"""A disk that says nothing any more: whoever asked for a change is told so, and what to do."""

from __future__ import annotations

import asyncio
import io
import json
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import Any

import pytest
from starlette.requests import Request
from starlette.responses import Response

from tidemark.admin import visit as visits
from tidemark.admin.answers import Refused
from tidemark.admin.resources import definitions, messages, queues, vhosts
from tidemark.admin.visit import Visit
from tidemark.config import load
from tidemark.runtime.log import Log
from tidemark.runtime.server import Server

CASES: dict[str, tuple[Callable[[Visit], Awaitable[Response]], dict[str, str], dict[str, Any]]] = {
    "a queue": (queues.put, {"vhost": "%2F", "queue": "new"}, {"durable": True}),
    "a virtual host": (vhosts.put, {"vhost": "new"}, {}),
    "definitions": (definitions.load, {}, {"vhosts": [{"name": "imported"}]}),
    "a message": (
        messages.publish,
        {"vhost": "%2F", "exchange": "amq.default"},
        {
            "routing_key": "q",
            "payload": "x",
            "payload_encoding": "string",
            "properties": {"delivery_mode": 2},
        },
    ),
}


def a_visit(server: Server, parts: dict[str, str], sent: dict[str, Any]) -> Visit:
    scope = {
        "type": "http",
        "method": "PUT",
        "path": "/",
        "path_params": parts,
        "query_string": b"",
        "headers": [],
    }

    async def receive() -> dict[str, Any]:
        return {"type": "http.request", "body": json.dumps(sent).encode(), "more_body": False}

    return Visit(server, Request(scope, receive), "guest")


@pytest.mark.parametrize("case", CASES)
def test_a_change_that_the_disk_does_not_store_is_answered_with_what_to_do(
    case: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(visits, "WAIT_S_MAX", 0.2)
    resource, parts, sent = CASES[case]

    async def run() -> Refused:
        flags = {"node.data": str(tmp_path / "data"), "listen.amqp": "127.0.0.1:0", "listen.admin": ""}
        server = Server(load(flags), Log(stream=io.StringIO()))
        await server.start()
        try:
            await queues.put(a_visit(server, {"vhost": "%2F", "queue": "q"}, {"durable": True}))
            # The disk may do what it likes from now on: nobody hears of it.
            asyncio.get_running_loop().remove_reader(server._disk.bell)
            with pytest.raises(Refused) as refused:
                await asyncio.wait_for(resource(a_visit(server, parts, sent)), 10)
            return refused.value
        finally:
            server.stop()
            await server.run_until_stopped()

    refused = asyncio.run(run())
    assert (refused.status, refused.error) == (503, "not_stored")
    assert "the disk has not stored it within 0.2 s" in refused.reason
    assert "tidemark doctor" in refused.reason
