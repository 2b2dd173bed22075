"""A connection to a broker whose requests are calls: for clients of streams, with the waits of a real front end.

A request does its work in the broker's process and says which sequence must be safe before the answer may leave.
The answer waits for that as the answers of `frontend/stream` do.

Invariant: no answer leaves before what it tells of is safe.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from tidemark.broker.streams.session import StreamSession
from tidemark.errors import StoreError, TidemarkError
from tidemark.frontend.services import PeerInfo
from tidemark.node import Node


@dataclass(frozen=True, slots=True)
class Call:
    number: int
    work: Callable[[StreamSession], tuple[Any, int, int]]
    """Returns the answer, and what must be safe of the journal and of the catalog first."""


@dataclass(frozen=True, slots=True)
class Reply:
    number: int
    value: Any = None
    error: TidemarkError | None = None


class Direct:
    """Fits `FrontEnd` as far as the node calls it."""

    def __init__(self, node: Node, peer: PeerInfo) -> None:
        self.peer = peer
        self.closed = False
        self._node = node
        self._session = StreamSession(node.broker.open_session("/", "guest", None, str(peer)))
        self._waiting: deque[tuple[int, int, Reply]] = deque()
        self._out: list[Any] = []

    def call(self, call: Call) -> None:
        try:
            value, journal, catalog = call.work(self._session)
        except StoreError:
            self.closed = True
            self._node.touched(self)  # type: ignore[arg-type]
            return
        except TidemarkError as error:
            # What it knows may not be safe yet either.
            self._waiting.append((self._node.journal.last_seq, 0, Reply(call.number, error=error)))
        else:
            self._waiting.append((journal, catalog, Reply(call.number, value)))
        self.durable()

    def durable(self) -> None:
        journal, catalog = self._node.journal_durable(), self._node.catalog_durable()
        while self._waiting and self._waiting[0][0] <= journal and self._waiting[0][1] <= catalog:
            self._out.append(self._waiting.popleft()[2])
            self._node.touched(self)  # type: ignore[arg-type]
        if self._waiting:
            self._node.waiting(self)  # type: ignore[arg-type]

    def output(self) -> list[Any]:
        out, self._out = self._out, []
        return out

    def receive_eof(self) -> None:
        self._waiting.clear()
        self._session.session.close()

    def store_failed(self, reason: str) -> None:  # noqa: ARG002
        self.closed = True
        self._waiting.clear()
        self._node.touched(self)  # type: ignore[arg-type]

    def shutdown(self, code: int, text: str) -> None:  # noqa: ARG002
        self.store_failed(text)

    def tick(self, now_ms: int) -> None: ...

    def wants_read(self) -> bool:
        return True

    def writable(self, yes: bool) -> None: ...

    def block(self, reason: str | None) -> None: ...
