"""The server's own limits, with a real socket and a data directory of its own."""

from __future__ import annotations

import asyncio
import io
import resource
from pathlib import Path

import pytest

from tidemark.config import load
from tidemark.runtime.log import Log
from tidemark.runtime.server import OWN_FILES, Server, connections_for
from tidemark.wire.amqp091.frames import PROTOCOL_HEADER


def test_the_store_keeps_its_open_files_whatever_the_clients_want() -> None:
    assert connections_for(20_000) == 20_000 - OWN_FILES
    assert connections_for(256) == 128
    assert connections_for(1) == 1
    assert connections_for(resource.RLIM_INFINITY) > 1_000_000


@pytest.mark.parametrize(("files", "limit"), [(4, 2), (1 << 20, 3)])
def test_no_more_connections_are_taken_than_files_may_be_open(
    files: int, limit: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(resource, "getrlimit", lambda _: (files, files))
    said = io.StringIO()

    async def serve() -> list[bytes]:
        flags = {
            "node.data": str(tmp_path / "data"),
            "listen.amqp": "127.0.0.1:0",
            "limits.connections_max": "3",
            "store.segment_bytes": "1MiB",
            "store.extent_bytes": "64KiB",
        }
        server = Server(load(flags), Log(stream=said))
        await server.start()
        address = server.addresses["amqp"]
        answers, writers = [], []
        for _ in range(limit + 1):
            reader, writer = await asyncio.open_connection(address.host, address.port)
            writers.append(writer)
            try:
                writer.write(PROTOCOL_HEADER)
                answers.append(await reader.read(7))
            except ConnectionResetError:
                answers.append(b"")
        for writer in writers:
            writer.close()
        server.stop()
        await server.run_until_stopped()
        return answers

    *taken, refused = asyncio.run(serve())
    assert all(answer[:3] == b"\x01\0\0" for answer in taken)
    assert refused == b""
    limited = f"connections limited by open files  connections_max={limit} wanted=3 open_files={files}"
    assert (limited in said.getvalue()) == (limit < 3)
