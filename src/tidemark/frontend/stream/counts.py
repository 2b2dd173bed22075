"""Works over the index alone: counting the pieces of a snapshot or what lies behind a sequence, and truncating.

Invariant: a step looks at a bounded part of the index; what is counted is about one moment, the snapshot's.
"""

from __future__ import annotations

from collections.abc import Callable

from tidemark.broker.streams.cuts import Cutter
from tidemark.broker.streams.snapshots import Snapshot
from tidemark.broker.streams.stream import Stream
from tidemark.broker.streams.truncation import Truncation
from tidemark.errors import NotFound
from tidemark.frontend.stream.work import Link, Work

Conclude = Callable[[int, Cutter], None]
"""Answers the request with what was found."""


class Count(Work):
    """Cuts a snapshot step by step, then answers."""

    def __init__(self, link: Link, request: int, cutter: Cutter, *, keep: bool, conclude: Conclude) -> None:
        super().__init__(link, request)
        self._cutter = cutter
        self._keep = keep
        """The snapshot is somebody else's to close."""
        self._conclude = conclude

    @property
    def snapshot(self) -> Snapshot:
        return self._cutter.snapshot

    def run(self, bytes_max: int) -> bool:  # noqa: ARG002
        stream = self.snapshot.stream
        if stream.deleted:
            raise NotFound(reason=f"stream '{stream.name}' was deleted while it was counted")
        if self._cutter.step():
            return True
        self._conclude(self.request, self._cutter)
        return False

    def close(self) -> None:
        if not self._keep:
            self.snapshot.close()


class Truncate(Work):
    """Ends all of a stream up to a sequence, a part in a turn."""

    def __init__(self, link: Link, request: int, stream: Stream, truncation: Truncation) -> None:
        super().__init__(link, request)
        self._stream = stream
        self._truncation = truncation

    def run(self, bytes_max: int) -> bool:  # noqa: ARG002
        if self._stream.deleted:
            raise NotFound(reason=f"stream '{self._stream.name}' was deleted while it was truncated")
        if self._truncation.step(self.link.services.now_ms):
            return True
        told = {"ended": self._truncation.ended}
        self.link.answer_when_durable(self.request, told, journal=self._truncation.safe_at)
        return False
