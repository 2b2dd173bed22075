"""Work that is done apart: on a picture of the memory as it was when it began, while the loop goes on."""

from __future__ import annotations

from collections.abc import Callable
from typing import Protocol

Buffer = bytes | bytearray | memoryview


class Scratch(Protocol):
    """What such work may do to the files of the data directory. As in `Disk`."""

    def write(self, name: str, offset: int, data: Buffer) -> None: ...

    def sync(self, name: str) -> None: ...

    def free_bytes(self) -> int: ...


class Running(Protocol):
    """A job that was begun."""

    def poll(self) -> bool | None:
        """None while it runs, then whether it went well, again and again."""

    def stop(self) -> None:
        """End it now, if it still runs."""


class Apart(Protocol):
    def run(self, job: Callable[[Scratch], None]) -> Running:
        """Begin `job`. What it changes in memory nobody sees; that it went well means that it raised nothing."""
