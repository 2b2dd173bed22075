"""What a checkpoint holds of the broker: the entries of every durable queue and stream, as raw bytes."""

from __future__ import annotations

from collections.abc import Container, Iterable, Sequence
from typing import Protocol

Buffer = bytes | bytearray | memoryview


class Pictured(Protocol):
    """A queue or a stream."""

    LAYOUT: bytes
    """Up to 16 bytes that change whenever what `dump` gives does."""

    def dump(self) -> Sequence[Buffer]:
        """What `load` needs to have these entries again. No entry may have an end that is not in the journal yet."""

    def load(self, parts: Sequence[memoryview]) -> None:
        """Become what `dump` saw; of an empty list, become empty. The parts may be kept and written to."""

    def drop_missing(self, gone: Container[int]) -> int:
        """End every entry whose record is in one of these extents, without a record. Returns how many."""


class Image(Protocol):
    def targets(self) -> Iterable[tuple[int, Pictured]]:
        """Every durable queue and stream by its number."""
