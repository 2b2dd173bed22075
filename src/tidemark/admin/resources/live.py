"""/api/live: answers of the API pushed when they change, as Server-Sent Events.

A reader names the paths that it looks at. About once a second each is asked for, exactly as this reader would ask for
it, and what differs from the last answer is sent. So a page has one connection and hears of nothing that stays as it is.

Whoever reads too slowly, or may no longer look, is let go of; the browser connects again and starts over with what is true then.

Invariant: a reader is never sent what a request of the same user would not be given at that moment.
"""

from __future__ import annotations

import asyncio
import contextlib
import hashlib
import json
from collections.abc import AsyncGenerator
from time import thread_time
from urllib.parse import unquote, urlsplit

from starlette.requests import Request
from starlette.responses import Response
from starlette.types import Receive, Scope, Send

from tidemark.admin.answers import Refused, refusal, translated
from tidemark.admin.routing import TEXT, Entry, Query
from tidemark.admin.visit import Visit, checked_token, presented
from tidemark.errors import TidemarkError

PATHS_MAX = 12
PATH_CHARACTERS_MAX = 2000
READERS_MAX = 100
ROUND_S = 1.0
REST = 50
"""How many times as long as a round took nothing is looked at: one reader costs at most a fiftieth of a core."""
ROUND_S_MAX = 3.0
HEARTBEAT_S = 15.0
SLOW_S = 10.0
"""How long one event may take to be read."""
BODY_BYTES_MAX = 2 << 20
SELF = "/live"


class Readers:
    """How many there are."""

    def __init__(self) -> None:
        self.count = 0


class _Watched:
    """One path that a reader looks at."""

    __slots__ = ("last", "path", "scope")

    def __init__(self, path: str, scope: Scope) -> None:
        self.path = path
        self.scope = scope
        self.last: tuple[int, bytes] | None = None
        """Status and digest of the answer that was sent last: the answers of all readers would be a lot of memory."""


async def live(visit: Visit) -> Response:
    if visit.request.method == "HEAD":
        raise Refused(405, "Method Not Allowed", "there is nothing but events to see here")
    asked = visit.request.query_params.getlist("path")
    if not 0 < len(asked) <= PATHS_MAX:
        raise Refused(400, "bad_request", f"'path' must be given 1 to {PATHS_MAX} times")
    if visit.request.app.state.live.count >= READERS_MAX:
        raise Refused(503, "busy", f"{READERS_MAX} readers are connected already", 5)
    return _Live(visit, [_watched(visit, path) for path in dict.fromkeys(asked)])


def _watched(visit: Visit, path: str) -> _Watched:
    """Raises Refused for what is no path below /api, or none that can be read again and again."""
    if not path.startswith("/") or len(path) > PATH_CHARACTERS_MAX or not path.isascii():
        raise Refused(400, "bad_request", "'path' must be a path below /api, quoted")
    try:
        parts = urlsplit("http://x" + path)
    except ValueError:
        raise Refused(400, "bad_request", "'path' must be a path below /api, quoted") from None
    sent = "/api" + parts.path.rstrip("/")
    scope = {
        **visit.request.scope,
        "method": "GET",
        "path": sent,
        "raw_path": sent.encode("ascii"),
        "query_string": parts.query.encode("ascii"),
        "path_params": {},
        "state": {},
    }
    found = visit.request.app.state.find(scope)
    if found is None or found[0].media != "application/json" or found[0].path == SELF:
        raise Refused(400, "bad_request", f"'{unquote(path)[:200]}' is nothing that can be watched")
    return _Watched(path, scope)


class _Live(Response):
    media_type = "text/event-stream"

    def __init__(self, visit: Visit, watched: list[_Watched]) -> None:
        super().__init__(status_code=200, headers={"x-accel-buffering": "no"})
        del self.headers["content-length"]
        self._visit = visit
        self._watched = watched
        self._shown = presented(visit.request)

    async def __call__(self, _scope: Scope, receive: Receive, send: Send) -> None:
        readers: Readers = self._visit.request.app.state.live
        readers.count += 1
        gone = asyncio.ensure_future(_disconnected(receive))
        try:
            await send({"type": "http.response.start", "status": 200, "headers": self.raw_headers})
            async with contextlib.aclosing(self._events(gone)) as events:
                async for event in events:
                    try:
                        async with asyncio.timeout(SLOW_S):
                            await send({"type": "http.response.body", "body": event, "more_body": True})
                    except TimeoutError:
                        self._visit.server.log.info("live reader too slow", peer=self._visit.peer)
                        return
            if not gone.done():
                await send({"type": "http.response.body", "body": b"", "more_body": False})
        finally:
            readers.count -= 1
            gone.cancel()

    async def _events(self, gone: asyncio.Future[None]) -> AsyncGenerator[bytes, None]:
        loop = asyncio.get_running_loop()
        yield b"retry: 2000\n\n"
        said = loop.time()
        while not gone.done() and not self._visit.server.stopping.is_set():
            if not self._may_look():
                yield b"event: end\ndata: {}\n\n"
                return
            began = thread_time()
            for one in self._watched:
                if (event := await self._look(one)) is not None:
                    yield event
                    said = loop.time()
                await asyncio.sleep(0)
            if loop.time() - said >= HEARTBEAT_S:
                yield b": still here\n\n"
                said = loop.time()
            # With what others did meanwhile: a broker that is busy is looked at less often.
            rest_s = min(max(ROUND_S, (thread_time() - began) * REST), ROUND_S_MAX)
            await asyncio.wait([gone], timeout=rest_s)

    def _may_look(self) -> bool:
        """Whether the login that this reader came with would be taken now."""
        if self._shown.by == "password":
            return self._visit.is_current()
        try:
            checked_token(self._visit, self._shown.token)
        except Refused:
            return False
        return True

    async def _look(self, one: _Watched) -> bytes | None:
        status, body = await self._asked(one)
        this = status, hashlib.blake2b(body, digest_size=16).digest()
        if one.last == this:
            return None
        one.last = this
        path = json.dumps(one.path).encode()
        return b'event: change\ndata: {"path":%b,"status":%d,"body":%b}\n\n' % (path, status, body or b"null")

    async def _asked(self, one: _Watched) -> tuple[int, bytes]:
        visit = self._visit
        scope = {**one.scope, "state": {"pushed": True}}
        answer: Response
        if not visit.is_current():
            return 401, b"null"
        try:
            entry, names = visit.request.app.state.find(scope)
            scope["path_params"] = names
            again = Visit(visit.server, Request(scope), visit.user)
            again.must_reach(entry.needs)
            answer = await entry.resource(again)
        except Refused as no:
            answer = refusal(no.status, no.error, no.reason)
        except TidemarkError as error:
            answer = translated(error)
        except Exception as error:
            visit.server.log.error("unexpected exception", where=one.path, error=error)
            answer = refusal(500, "internal_error", "the broker failed; its log has the details")
        body = bytes(answer.body)
        if len(body) > BODY_BYTES_MAX or b"\n" in body:
            words = f"the answer has over {BODY_BYTES_MAX >> 20} MiB; ask for a page of it"
            answer = refusal(413, "too_large", words)
            body = bytes(answer.body)
        return answer.status_code, body


async def _disconnected(receive: Receive) -> None:
    while (await receive())["type"] != "http.disconnect":
        pass


routes = [
    Entry(
        "GET", SELF, live, "Answers of other paths whenever they change, as Server-Sent Events", "live",
        query=(Query("path", TEXT, "A path below /api, with its query, quoted; up to 12.", many=True, required=True),),
        media="text/event-stream", anywhere=True,
    ),
]  # fmt: skip
