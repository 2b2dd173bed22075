"""As much of HTTP/1.1 as it takes to ask an etcd something, several times a second and for as long as the process lives.

A request is one write; an answer is its head and then so many bytes, or chunks. Connections stay open and are used again. A
full HTTP client takes a millisecond of CPU for each request, which was a third of all that an idle member took.

Invariant: a connection is used again only if the answer before was read to its end.
"""

from __future__ import annotations

import asyncio
import base64
import os
import ssl
from collections.abc import AsyncGenerator, AsyncIterator
from dataclasses import dataclass
from urllib.parse import unquote, urlsplit

IDLE_MAX = 4
"""Connections that are kept for later."""
HEAD_BYTES_MAX = 64 << 10
BODY_BYTES_MAX = 64 << 20
"""More than an etcd answers at once."""


class NotConnected(Exception):
    """Nobody is there, or not in time: nothing was sent."""


class NoAnswer(Exception):
    """Something was sent, and what came back is no answer."""


@dataclass(frozen=True, slots=True)
class Answer:
    status: int
    body: bytes


@dataclass(slots=True)
class _Head:
    status: int
    chunked: bool
    length: int | None
    """None: it goes on until the connection ends, if it is not in chunks."""
    stays: bool


class Connection:
    def __init__(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self.reader = reader
        self.writer = writer

    @property
    def usable(self) -> bool:
        """As far as is known here: the other side has not hung up."""
        ended = self.reader.at_eof() or self.reader.exception() is not None
        return not ended and not self.writer.transport.is_closing()

    def close(self) -> None:
        self.writer.transport.abort()

    async def head(self) -> _Head:
        while True:
            lines = (await self.reader.readuntil(b"\r\n\r\n")).decode("latin-1").split("\r\n")
            version, _, rest = lines[0].partition(" ")
            if not version.startswith("HTTP/1.") or not rest[:3].isdigit():
                raise NoAnswer(f"{lines[0][:60]!r} is not HTTP/1.1")
            status = int(rest[:3])
            if status >= 200:
                break
        fields = {}
        for line in lines[1:]:
            name, _, value = line.partition(":")
            fields[name.strip().lower()] = value.strip()
        length = fields.get("content-length")
        if length is not None and not length.isdigit():
            raise NoAnswer(f"a length of {length[:20]!r} is none")
        return _Head(
            status,
            fields.get("transfer-encoding", "").lower() == "chunked",
            None if length is None else int(length),
            version == "HTTP/1.1" and fields.get("connection", "").lower() != "close",
        )

    async def body(self, head: _Head) -> bytes:
        if head.chunked:
            parts, size = [], 0
            async for part in self.chunks():
                size += len(part)
                if size > BODY_BYTES_MAX:
                    raise NoAnswer("the answer is too long")
                parts.append(part)
            return b"".join(parts)
        if head.length is None:
            head.stays = False
            return await self.reader.read()
        if head.length > BODY_BYTES_MAX:
            raise NoAnswer("the answer is too long")
        return await self.reader.readexactly(head.length)

    async def chunks(self) -> AsyncIterator[bytes]:
        while True:
            line = await self.reader.readuntil(b"\r\n")
            try:
                size = int(line.partition(b";")[0], 16)
            except ValueError:
                raise NoAnswer(f"{line[:20]!r} does not begin a chunk") from None
            if not 0 <= size <= BODY_BYTES_MAX:
                raise NoAnswer("the answer is too long")
            if not size:
                while await self.reader.readuntil(b"\r\n") != b"\r\n":
                    pass  # trailers
                return
            yield await self.reader.readexactly(size)
            await self.reader.readexactly(2)


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
        self._fields = f"Host: {parts.netloc.rpartition('@')[2]}\r\nContent-Type: application/json\r\n"
        if parts.username is not None:
            word = f"{unquote(parts.username)}:{unquote(parts.password or '')}"
            self._fields += f"Authorization: Basic {base64.b64encode(word.encode()).decode()}\r\n"
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
        stays = False
        try:
            # The time-outs of a socket begin anew with every byte; this one does not.
            async with asyncio.timeout_at(until_s):
                connection.writer.write(self._request(path, body))
                head = await connection.head()
                answer = Answer(head.status, await connection.body(head))
                stays = head.stays
        except TimeoutError:
            raise NoAnswer(f"no answer in {timeout_s:.1f} s") from None
        except _BROKEN as problem:
            raise NoAnswer(_words(problem)) from None
        finally:
            self._done(connection, stays=stays)
        return answer

    async def lines(self, path: str, body: bytes, timeout_s: float) -> AsyncGenerator[bytes, None]:
        """Ask, and give every line of an answer that does not end. The time is for what comes before the first.

        Raises:
            NotConnected, NoAnswer: as above; NoAnswer also when it breaks off.
        """
        until_s = asyncio.get_running_loop().time() + timeout_s
        connection = await self._connected(until_s)
        self._busy.add(connection)
        try:
            connection.writer.write(self._request(path, body))
            head = await connection.head()
            rest = b""
            if head.chunked:
                async for chunk in connection.chunks():
                    *whole, rest = (rest + chunk).split(b"\n")
                    for line in whole:
                        yield line
                    if len(rest) > BODY_BYTES_MAX:
                        raise NoAnswer("a line is too long")
            else:
                rest = await connection.body(head)
            if rest.strip():
                yield rest
        except _BROKEN as problem:
            raise NoAnswer(_words(problem)) from None
        finally:
            self._done(connection, stays=False)

    def _request(self, path: str, body: bytes) -> bytes:
        head = f"POST {self._prefix}{path} HTTP/1.1\r\n{self._fields}Content-Length: {len(body)}\r\n\r\n"
        return head.encode("latin-1") + body

    async def _connected(self, until_s: float) -> Connection:
        while self._idle:
            connection = self._idle.pop()
            if connection.usable:
                return connection
            connection.close()
        try:
            async with asyncio.timeout_at(until_s):
                opened = asyncio.open_connection(self._host, self._port, ssl=self._tls, limit=HEAD_BYTES_MAX)
                return Connection(*await opened)
        except TimeoutError:
            raise NotConnected("no connection in time") from None
        except OSError as problem:
            raise NotConnected(_words(problem)) from None

    def _done(self, connection: Connection, *, stays: bool) -> None:
        self._busy.discard(connection)
        if stays and len(self._idle) < IDLE_MAX and connection.usable:
            self._idle.append(connection)
        else:
            connection.close()


_BROKEN = (OSError, asyncio.IncompleteReadError, asyncio.LimitOverrunError)


def _words(problem: BaseException) -> str:
    if isinstance(problem, asyncio.IncompleteReadError):
        return "the connection was closed"
    if isinstance(problem, OSError):
        words = os.strerror(problem.errno) if problem.errno and problem.errno > 0 else str(problem)
        return words.lower() or type(problem).__name__
    return "what came is no answer"


def _context() -> ssl.SSLContext:
    # Reading all authorities takes longer than a lease may: it is done once, at the start, and only where it is needed.
    import httpx

    return httpx.create_ssl_context(trust_env=False)
