"""Asking a server over HTTP: what is an answer, when it is certain that nothing was sent, and which connections are used again."""

from __future__ import annotations

import asyncio
import contextlib
import ssl
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

import pytest
from unit.runtime.test_external import in_loop
from unit.runtime.test_telling import a_tls

from tidemark.runtime.membership import http
from tidemark.runtime.membership.http import Answer, Endpoint, NoAnswer, NotConnected

SOON_S = 2.0
SHORT = b"HTTP/1.1 200 OK\r\nContent-Length: 2\r\n\r\nok"


class Server:
    """Answers each request with the next of these bytes; None: it says nothing. An answer that is empty ends the connection."""

    def __init__(self, *answers: bytes | None) -> None:
        self.answers = list(answers)
        self.requests: list[bytes] = []
        self.connections = 0
        self.url = ""
        self._open: list[asyncio.StreamWriter] = []

    async def serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self.connections += 1
        self._open.append(writer)
        with contextlib.suppress(asyncio.IncompleteReadError):
            while True:
                head = await reader.readuntil(b"\r\n\r\n")
                length = int(head.partition(b"Content-Length: ")[2].partition(b"\r\n")[0])
                self.requests.append(head + await reader.readexactly(length))
                answer = self.answers.pop(0)
                if answer == b"":
                    writer.close()
                    return
                if answer is not None:
                    writer.write(answer)

    def hang_up(self) -> None:
        for writer in self._open:
            writer.close()


@asynccontextmanager
async def serving(*answers: bytes | None, tls: ssl.SSLContext | None = None) -> AsyncIterator[Server]:
    served = Server(*answers)
    listener = await asyncio.start_server(served.serve, "127.0.0.1", 0, ssl=tls)
    port = listener.sockets[0].getsockname()[1]
    served.url = f"{'https' if tls else 'http'}://127.0.0.1:{port}"
    try:
        yield served
    finally:
        served.hang_up()
        listener.close()


@in_loop
async def test_one_connection_serves_one_request_after_the_other() -> None:
    chunked = b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n3\r\nabc\r\n2;x=y\r\nde\r\n0\r\nTrailer: x\r\n\r\n"
    refusal = b"HTTP/1.1 404 Not Found\r\ncontent-length: 4\r\n\r\nnone"
    async with serving(SHORT, chunked, refusal) as server:
        endpoint = Endpoint(server.url)
        answers = [await endpoint.post("/v3/x", b"{}", SOON_S) for _ in range(3)]
        endpoint.close()

    assert answers == [Answer(200, b"ok"), Answer(200, b"abcde"), Answer(404, b"none")]
    assert server.connections == 1
    assert server.requests[0].startswith(b"POST /v3/x HTTP/1.1\r\nHost: 127.0.0.1:")
    assert server.requests[0].endswith(b"\r\nContent-Length: 2\r\n\r\n{}")


@in_loop
async def test_requests_that_are_asked_at_once_do_not_wait_for_one_another() -> None:
    async with serving(None, SHORT) as server:
        endpoint = Endpoint(server.url)
        never = asyncio.ensure_future(endpoint.post("/", b"", 30))
        while not server.requests:
            await asyncio.sleep(0.001)
        assert (await endpoint.post("/", b"", SOON_S)).body == b"ok"
        never.cancel()
        endpoint.close()


@pytest.mark.parametrize(
    "answer",
    [
        b"HTTP/1.1 200 OK\r\nContent-Length: 2\r\nConnection: close\r\n\r\nok",
        b"HTTP/1.0 200 OK\r\nContent-Length: 2\r\n\r\nok",
    ],
)
@in_loop
async def test_a_connection_that_does_not_stay_is_not_used_again(answer: bytes) -> None:
    async with serving(answer, SHORT) as server:
        endpoint = Endpoint(server.url)
        assert [(await endpoint.post("/", b"", SOON_S)).body for _ in range(2)] == [b"ok", b"ok"]
        endpoint.close()
    assert server.connections == 2


@in_loop
async def test_a_connection_that_was_closed_meanwhile_is_not_used_again() -> None:
    async with serving(SHORT, SHORT) as server:
        endpoint = Endpoint(server.url)
        await endpoint.post("/", b"", SOON_S)
        server.hang_up()
        await asyncio.sleep(0.05)
        assert (await endpoint.post("/", b"", SOON_S)).body == b"ok"
        endpoint.close()
    assert server.connections == 2


@in_loop
async def test_an_answer_that_was_not_waited_for_is_not_taken_for_the_next() -> None:
    async with serving(None, SHORT) as server:
        endpoint = Endpoint(server.url)
        with pytest.raises(NoAnswer, match=r"no answer in 0\.1 s"):
            await endpoint.post("/", b"first", 0.1)
        assert (await endpoint.post("/", b"second", SOON_S)).body == b"ok"
        endpoint.close()
    assert server.connections == 2


@in_loop
async def test_where_nothing_listens_nothing_was_sent() -> None:
    async with serving() as server:
        pass
    with pytest.raises(NotConnected, match="refused"):
        await Endpoint(server.url).post("/", b"", SOON_S)


@pytest.mark.parametrize(
    "answer",
    [
        b"",
        b"SSH-2.0-OpenSSH\r\n\r\n",
        b"HTTP/1.1 200 OK\r\nContent-Length: -1\r\n\r\n",
        b"HTTP/1.1 200 OK\r\nContent-Length: 999999999999\r\n\r\n",
        b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\nxyz\r\n",
        b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n-5\r\n",
        b"HTTP/1.1 200 OK\r\nX: " + b"x" * (200 << 10),
    ],
)
@in_loop
async def test_what_is_no_answer_is_none(answer: bytes) -> None:
    async with serving(answer, SHORT) as server:
        endpoint = Endpoint(server.url)
        with pytest.raises(NoAnswer):
            await endpoint.post("/", b"", SOON_S)
        assert (await endpoint.post("/", b"", SOON_S)).body == b"ok"
        endpoint.close()


@in_loop
async def test_lines_are_given_as_they_come_wherever_chunks_begin() -> None:
    async with serving(None) as server:
        endpoint = Endpoint(server.url)
        lines = endpoint.lines("/watch", b"{}", SOON_S)
        first = asyncio.ensure_future(anext(lines))
        while not server.requests:
            await asyncio.sleep(0.001)
        writer = server._open[0]
        writer.write(b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n3\r\none\r\n")
        await asyncio.sleep(0.02)
        assert not first.done()
        writer.write(b"5\r\n\ntwo\n\r\n")
        assert [await first, await anext(lines)] == [b"one", b"two"]
        writer.close()
        with pytest.raises(NoAnswer, match="closed"):
            await anext(lines)
        endpoint.close()


@in_loop
async def test_a_name_and_password_in_the_address_are_sent() -> None:
    async with serving(SHORT) as server:
        endpoint = Endpoint(server.url.replace("//", "//ann:a%40b@"))
        await endpoint.post("/", b"", SOON_S)
        endpoint.close()
    assert b"\r\nAuthorization: Basic YW5uOmFAYg==\r\n" in server.requests[0]
    assert b"Host: 127.0.0.1:" in server.requests[0]


@in_loop
async def test_over_tls_an_answer_is_an_answer_and_a_stranger_gets_no_question(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    tls = a_tls(tmp_path)
    tls.listening.verify_mode = ssl.CERT_NONE
    async with serving(SHORT, tls=tls.listening) as server:
        with pytest.raises(NotConnected):
            await Endpoint(server.url).post("/", b"", SOON_S)  # of no authority that is known
        assert not server.requests

        monkeypatch.setattr(http, "_context", lambda: tls.dialling)
        endpoint = Endpoint(server.url)
        assert (await endpoint.post("/", b"", SOON_S)).body == b"ok"
        endpoint.close()


@pytest.mark.parametrize("url", ["ftp://host:1", "http://", "http://host:port"])
def test_what_is_no_address_is_refused(url: str) -> None:
    with pytest.raises(ValueError, match=r"not the address|[Pp]ort"):
        Endpoint(url)
