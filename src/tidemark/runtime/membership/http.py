"""Asks an etcd something, several times a second and for as long as the process lives.

h11 makes requests and reads answers; what is here are the connections, which stay open and are used again. A whole HTTP client
takes a millisecond of CPU for each request, which was a third of all that an idle member took.

Invariant: a connection is used again only if the answer before was read to its end.
"""

from __future__ import annotations

import asyncio
import base64
import os
import socket
import ssl
from collections.abc import AsyncGenerator, AsyncIterator
from dataclasses import dataclass
from urllib.parse import unquote, urlsplit

import h11

IDLE_MAX = 4
"""Connections that are kept for later."""
HEAD_BYTES_MAX = 64 << 10
BODY_BYTES_MAX = 64 << 20
"""More than an etcd answers at once."""
READ_BYTES = 64 << 10


class NotConnected(Exception):
    """Nobody is there, or not in time: nothing was sent."""


class NoAnswer(Exception):
    """Something was sent, and what came back is no answer."""


@dataclass(frozen=True, slots=True)
class Answer:
    status: int
    body: bytes


class Connection:
    def __init__(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self._reader = reader
        self._writer = writer
        self._http = h11.Connection(h11.CLIENT, HEAD_BYTES_MAX)

    def close(self) -> None:
        self._writer.transport.abort()

    def is_free(self) -> bool:
        """Whether another request can be made: the last answer was read to its end and, as far as is known, nobody has hung up."""
        if self._http.our_state is h11.DONE and self._http.their_state is h11.DONE:
            self._http.start_next_cycle()
        ended = self._reader.at_eof() or self._reader.exception() is not None
        return self._http.our_state is h11.IDLE and not ended and not self._writer.transport.is_closing()

    def ask(self, request: h11.Request, body: bytes) -> None:
        parts = (self._http.send(event) for event in (request, h11.Data(body), h11.EndOfMessage()))
        self._writer.write(b"".join(part for part in parts if part))

    async def status(self) -> int:
        """The beginning of the answer.

        Raises:
            NoAnswer: what comes is none.
        """
        while not isinstance(event := await self._event(), h11.Response):
            pass
        for name, value in event.headers:
            if name == b"content-length" and int(value) > BODY_BYTES_MAX:
                raise NoAnswer("the answer is too long")
        return event.status_code

    async def pieces(self) -> AsyncIterator[bytes]:
        """The rest of it, as it comes.

        Raises:
            NoAnswer: it breaks off.
        """
        while isinstance(event := await self._event(), h11.Data):
            yield event.data

    async def _event(self) -> h11.Event:
        try:
            while (event := self._http.next_event()) is h11.NEED_DATA:
                self._http.receive_data(await self._reader.read(READ_BYTES))
        except h11.RemoteProtocolError as problem:
            raise NoAnswer(str(problem)) from None
        if isinstance(event, h11.ConnectionClosed):
            raise NoAnswer("the connection was closed")
        assert isinstance(event, h11.Event)
        return event


class Endpoint:
    """One server."""

    def __init__(self, url: str) -> None:
        """Raises ValueError: it is no address."""
        parts = urlsplit(url)
        if parts.scheme not in ("http", "https") or not parts.hostname:
            raise ValueError(f"{url} is not the address of an etcd")
        self._host = parts.hostname
        self._port = parts.port or (443 if parts.scheme == "https" else 80)
        self._prefix = parts.path.rstrip("/")
        self._tls = _context() if parts.scheme == "https" else None
        self._fields = [("Host", parts.netloc.rpartition("@")[2]), ("Content-Type", "application/json")]
        if parts.username is not None:
            word = f"{unquote(parts.username)}:{unquote(parts.password or '')}"
            self._fields.append(("Authorization", f"Basic {base64.b64encode(word.encode()).decode()}"))
        self._idle: list[Connection] = []
        self._busy: set[Connection] = set()

    def close(self) -> None:
        """Close every connection, whatever it is waiting for."""
        for connection in (*self._idle, *self._busy):
            connection.close()
        self._idle.clear()

    async def post(self, path: str, body: bytes, timeout_s: float) -> Answer:
        """Ask, and wait for all of the answer.

        Raises:
            NotConnected: nothing was sent.
            NoAnswer: something was sent, and no answer came in time.
        """
        until_s = asyncio.get_running_loop().time() + timeout_s
        connection = await self._connected(until_s)
        self._busy.add(connection)
        parts, size = list[bytes](), 0
        try:
            # The time-outs of a socket begin anew with every byte; this one does not.
            async with asyncio.timeout_at(until_s):
                connection.ask(self._request(path, body), body)
                status = await connection.status()
                async for part in connection.pieces():
                    parts.append(part)
                    size += len(part)
                    if size > BODY_BYTES_MAX:
                        raise NoAnswer("the answer is too long")
        except TimeoutError:
            raise NoAnswer(f"no answer in {timeout_s:.1f} s") from None
        except OSError as problem:
            raise NoAnswer(_words(problem)) from None
        finally:
            self._done(connection)
        return Answer(status, b"".join(parts))

    async def lines(self, path: str, body: bytes, timeout_s: float) -> AsyncGenerator[bytes, None]:
        """Ask, and give every line of an answer that does not end. The time is for its beginning.

        Raises:
            NotConnected, NoAnswer: as above; NoAnswer also when it breaks off.
        """
        until_s = asyncio.get_running_loop().time() + timeout_s
        connection = await self._connected(until_s)
        self._busy.add(connection)
        try:
            connection.ask(self._request(path, body), body)
            async with asyncio.timeout_at(until_s):
                await connection.status()
            rest = b""
            async for piece in connection.pieces():
                *whole, rest = (rest + piece).split(b"\n")
                for line in whole:
                    yield line
                if len(rest) > BODY_BYTES_MAX:
                    raise NoAnswer("a line is too long")
            if rest.strip():
                yield rest
        except TimeoutError:
            raise NoAnswer(f"no answer in {timeout_s:.1f} s") from None
        except OSError as problem:
            raise NoAnswer(_words(problem)) from None
        finally:
            self._done(connection)

    def _request(self, path: str, body: bytes) -> h11.Request:
        fields = [*self._fields, ("Content-Length", str(len(body)))]
        return h11.Request(method="POST", target=f"{self._prefix}{path}", headers=fields)

    async def _connected(self, until_s: float) -> Connection:
        while self._idle:
            connection = self._idle.pop()
            if connection.is_free():
                return connection
            connection.close()
        try:
            async with asyncio.timeout_at(until_s):
                reader, writer = await asyncio.open_connection(self._host, self._port, ssl=self._tls)
                _notice_silence(writer)
                return Connection(reader, writer)
        except TimeoutError:
            raise NotConnected("no connection in time") from None
        except OSError as problem:
            raise NotConnected(_words(problem)) from None

    def _done(self, connection: Connection) -> None:
        self._busy.discard(connection)
        if len(self._idle) < IDLE_MAX and connection.is_free():
            self._idle.append(connection)
        else:
            connection.close()


def _notice_silence(writer: asyncio.StreamWriter) -> None:
    """A watch says nothing for hours if all is well: that its connection has gone without a word shows in no other way."""
    raw = writer.get_extra_info("socket")
    raw.setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)
    for name, value in (("TCP_KEEPIDLE", 3), ("TCP_KEEPINTVL", 1), ("TCP_KEEPCNT", 3)):
        if hasattr(socket, name):
            raw.setsockopt(socket.IPPROTO_TCP, getattr(socket, name), value)


def _words(problem: OSError) -> str:
    words = os.strerror(problem.errno) if problem.errno and problem.errno > 0 else str(problem)
    return words.lower() or type(problem).__name__


def _context() -> ssl.SSLContext:
    # Reading all authorities takes longer than a lease may: it is done once, at the start, and only where it is needed.
    import httpx

    return httpx.create_ssl_context(trust_env=False)
