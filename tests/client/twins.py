"""Both clients behind one face, so that one test is about both: `Awaited` is the asyncio client for a test that does not wait.

Whatever comes out of it and can be awaited is awaited at once; what can be entered or iterated asynchronously can be so plainly.
"""

from __future__ import annotations

import asyncio
import inspect
from collections.abc import Iterator
from typing import Any


class Awaited:
    def __init__(self, loop: asyncio.AbstractEventLoop, inner: Any) -> None:
        self._loop = loop
        self._inner = inner

    def __getattr__(self, name: str) -> Any:
        found = getattr(self._inner, name)
        if not inspect.ismethod(found):
            return self._plain(found)
        return lambda *given, **named: self._plain(
            found(*map(_inner, given), **{key: _inner(one) for key, one in named.items()})
        )

    def __len__(self) -> int:
        return len(self._inner)

    def __enter__(self) -> Any:
        return self._plain(self._inner.__aenter__())

    def __exit__(self, *raised: Any) -> None:
        self._wait(self._inner.__aexit__(*raised))

    def __iter__(self) -> Iterator[Any]:
        iterating = self._inner.__aiter__()
        try:
            while True:
                try:
                    yield self._plain(iterating.__anext__())
                except StopAsyncIteration:
                    return
        finally:
            self._wait(iterating.aclose())

    def _wait(self, awaitable: Any) -> Any:
        async def waited() -> Any:
            return await awaitable

        return self._loop.run_until_complete(waited())

    def _plain(self, found: Any) -> Any:
        if inspect.isawaitable(found):
            found = self._wait(found)
        if type(found) is list:
            return [self._plain(one) for one in found]
        awaits = type(found).__name__.startswith("Async") or hasattr(found, "__aiter__")
        return Awaited(self._loop, found) if awaits else found


def opened(loop: asyncio.AbstractEventLoop, opening: Any) -> Any:
    """What is on its way, behind this face: `opened(loop, connect_async(url))`."""
    return Awaited(loop, None)._plain(opening)


def _inner(given: Any) -> Any:
    return given._inner if isinstance(given, Awaited) else given
