"""What a connection has in hand: requests that take more than one turn.

A `Work` is run when its connection has room to send, one slice at a time. It goes on while `run` says so; else
it rests until something happens that it waits for: credit, news of a stream, the disk, the passing of time.

Invariant: a work is closed exactly once, by its connection, and then holds nothing of the broker.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, Protocol

from tidemark.errors import TidemarkError
from tidemark.frontend.services import PeerInfo, Services
from tidemark.frontend.stream.config import StreamConfig
from tidemark.wire.stream.frames import Buffer


class Link(Protocol):
    """The connection, as its requests and works see it."""

    services: Services
    config: StreamConfig
    peer: PeerInfo

    def members(self) -> dict[str, Any]:
        """The cluster, as this peer is told of it."""

    def answer(self, request: int, header: Mapping[str, Any], payload: Sequence[Buffer] = ()) -> None:
        """The last word about a request."""

    def refuse(self, request: int, error: TidemarkError) -> None:
        """The same, for a request that failed."""

    def data(self, request: int, header: Mapping[str, Any], payload: Sequence[Buffer]) -> None:
        """Part of an answer."""

    def answer_when_durable(
        self, request: int, header: Mapping[str, Any], *, journal: int = 0, catalog: int = 0
    ) -> None:
        """The last word, as soon as both logs are on the disk up to there. A work that says it is over.

        The peer is told these sequences, too: who asks another member for what was done here says them there (`seen`).
        """

    @property
    def blocked(self) -> str | None:
        """Why publishers must wait; None: they need not."""

    def cancel(self, request: int) -> None:
        """The peer wants no more of a request that is work. Raises CommandInvalid when it is none."""

    def works(self) -> list[Work]:
        """Every request that is work now."""

    def begin(self, work: Work) -> None:
        """A request becomes work: it is run as soon as there is room."""

    def wake(self, work: Work) -> None:
        """Something that the work waited for has happened."""


class Work:
    """The base: a work that waits for nothing."""

    awaits_disk = False
    """Whether it wants to be told when more is on the disk; then the disk hurries."""
    writes = False
    """Whether it is a write that is not stored yet: those after it wait, and so does the peer's GOODBYE."""

    def __init__(self, link: Link, request: int) -> None:
        self.link = link
        self.request = request

    @property
    def held_bytes(self) -> int:
        """What it has read and keeps; counts like puts that wait (stream.kept_bytes_max)."""
        return 0

    def run(self, bytes_max: int) -> bool:
        """Do a slice of about so much output. True: there is more to do as soon as there is room."""
        raise NotImplementedError

    def grant(self, credit: int) -> None:
        """The peer takes so many bytes more."""

    def durable(self) -> None:
        """More is on the disk than before."""

    def tick(self, now_ms: int) -> None:
        """About once a second."""

    def close(self) -> None:
        """It is over, or nobody wants it any more: give everything back."""
