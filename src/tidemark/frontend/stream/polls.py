"""Works that wait for news, at most so long: the heads of streams, and the safety of what was written.

Invariant: each is answered once, with the news or, when its time is over, with how things stand.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

from tidemark.broker.streams.stream import Stream
from tidemark.broker.streams.streams import Streams
from tidemark.frontend.stream.work import Link, Work


class Poll(Work):
    """Looks when woken; answers when it finds something, or when its time is over."""

    def __init__(self, link: Link, request: int, wait_ms: int) -> None:
        super().__init__(link, request)
        self._until_ms = link.services.now_ms + min(wait_ms, link.config.wait_s_max * 1000)

    def run(self, bytes_max: int) -> bool:  # noqa: ARG002
        self._look(self.link.services.now_ms >= self._until_ms)
        return False

    def tick(self, now_ms: int) -> None:
        if now_ms >= self._until_ms:
            self.link.wake(self)

    def _look(self, over: bool) -> None:
        raise NotImplementedError


class Heads(Poll):
    """How far streams go, as soon as one of them goes further than the peer knows."""

    def __init__(
        self,
        link: Link,
        request: int,
        streams: Mapping[str, Stream],
        after: Mapping[str, int],
        wait_ms: int,
        head: Callable[[Stream], dict[str, Any]],
    ) -> None:
        super().__init__(link, request, wait_ms)
        self._streams = streams
        self._after = after
        self._head = head
        for stream in streams.values():
            stream.watch(self)

    def stirred(self, stream: Stream) -> None:
        if stream.deleted or stream.boundary > self._after.get(stream.name, -1):
            self.link.wake(self)

    def _look(self, over: bool) -> None:
        heads = {name: self._head(stream) for name, stream in self._streams.items() if not stream.deleted}
        news = any(head["sequence"] > self._after.get(name, -1) for name, head in heads.items())
        if news or over or len(heads) < len(self._streams):
            self.link.answer(self.request, {"streams": heads})

    def close(self) -> None:
        for stream in self._streams.values():
            stream.unwatch(self)


class Safe(Poll):
    """Whether something is as safe as the peer wants it."""

    awaits_disk = True

    def __init__(
        self, link: Link, request: int, wait_ms: int, streams: Streams, ask: Callable[[], str]
    ) -> None:
        super().__init__(link, request, wait_ms)
        self._streams = streams
        self._ask = ask
        streams.awaiting[self] = None

    def durable(self) -> None:
        self.link.wake(self)

    def _look(self, over: bool) -> None:
        answer = self._ask()
        if over or answer != "not yet":
            self.link.answer(self.request, {"safe": answer})

    def close(self) -> None:
        self._streams.awaiting.pop(self, None)
