"""The files of one data directory, as the store sees them.

Names are relative to the directory and may contain one folder (`spill/000001`). Everything but `submit` and
`prepare` is blocking and rare. `submit` is the journal's way: it returns at once, the write and its sync happen in
submission order on a thread that never needs the interpreter, and `completed` says how far it is.
Syncs are shared: everything submitted while one sync runs goes into the next.

Errors are `DiskFull` (nothing was changed) and `DiskFailed` (the file must not be trusted beyond what was
synced before); after a `DiskFailed` of a submitted write `completed` raises it for ever.
"""

from __future__ import annotations

from typing import Protocol

Buffer = bytes | bytearray | memoryview


class Disk(Protocol):
    def list(self, prefix: str = "") -> list[str]:
        """Names of the files that start with `prefix`, sorted."""

    def size(self, name: str) -> int: ...

    def exists(self, name: str) -> bool: ...

    def read(self, name: str, offset: int, length: int) -> bytes:
        """Up to `length` bytes; fewer at the end of the file."""

    def read_into(self, name: str, offset: int, room: memoryview) -> int:
        """`read` into memory of the caller's; returns how many bytes were there."""

    def mapped(self, name: str) -> memoryview:
        """All bytes of the file, in memory that may be written to; the file stays as it is."""

    def create(self, name: str, size: int) -> None:
        """A new file of `size` bytes whose blocks are really there: later writes cannot run out of room."""

    def allocate(self, name: str, size: int) -> None:
        """`create`, at once: the room is taken, but the first writes into it take longer to sync."""

    def prepare(self, name: str, size: int) -> bool:
        """`create`, in the background: ask again until it is True. One file at a time.

        Raises:
            DiskFull: there is no room; nothing is left of the file.
        """

    def write(self, name: str, offset: int, data: Buffer) -> None:
        """Write now, without a sync. The file grows when it must."""

    def sync(self, name: str) -> None:
        """Everything written to this file so far is on the disk when this returns."""

    def rename(self, old: str, new: str) -> None:
        """Atomic, replaces `new`; on the disk when this returns (the folder is synced)."""

    def remove(self, name: str) -> None: ...

    def truncate(self, name: str, size: int) -> None: ...

    def free_bytes(self) -> int:
        """Room left in the file system for us."""

    # The journal's way ------------------------------------------------------------------

    def submit(self, ticket: int, name: str, offset: int, data: Buffer) -> None:
        """Write `data`, then sync. `data` must stay as it is until the ticket is completed. Tickets rise."""

    def completed(self) -> int:
        """The highest ticket of which it and all before are synced.

        Raises:
            DiskFailed: a submitted write or sync failed. It is never tried again.
        """
