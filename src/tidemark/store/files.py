"""The files of a store: new segments, the pool of used ones, the reserve, and the tickets of its writes.

A segment file that is no longer needed is kept in the pool and written again: blocks that were written
before sync in half the time of fresh ones. One file, the reserve, is never used while the disk has room;
it lets acknowledgements and compaction go on when it has not, which is what makes room again.

    META  STATUS            what the store says about itself
    seg-…  catalog-…        segments (see segment.py)
    pool-<n>                files for reuse, of the usual size
    reserve                 the last file to write to
    spill/<n>               transient messages that were paged out, of no use after a restart
    tmp-…                   work that was not finished; removed at start

The journal and the catalog log share one row of tickets, since they share the disk's thread.

Invariant: a file loses its meaning by a rename, which is durable, before it is removed, which may not be.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable
from dataclasses import replace

from tidemark.errors import DiskFull, StoreError
from tidemark.model.peers import Ends
from tidemark.ports import Disk
from tidemark.store import intent
from tidemark.store.config import StoreConfig
from tidemark.store.segment import JOURNAL_PREFIX, Segment
from tidemark.store.status import Status, read_status, write_meta, write_status

Buffer = bytes | bytearray | memoryview

RESERVE = "reserve"
_FILL = "tmp-fill"

STARTING_BYTES = 8 << 20
"""Room that a start needs: a first segment, a file of the catalog log, small change."""


class StoreFiles:
    def __init__(self, disk: Disk, config: StoreConfig, random_bytes: Callable[[int], bytes]) -> None:
        self.disk = disk
        self.config = config
        self.random_bytes = random_bytes
        self.found = Status(state="empty")
        """How the store was when it was opened."""
        self.status = self.found
        self.store = bytes(16)
        self.stable: Ends | None = None
        """In a group: how far the logs will never be cut back. Nothing behind that is compacted, freed, rewritten or
        made part of a checkpoint."""
        self.last_ticket = 0
        self._pool: list[str] = []
        self._numbered = 0
        self._filling = 0
        """The size of the file that is being made in the background; 0 if none is."""
        self._filled = 0
        """The size of the one that was made and not yet used."""
        self._has_reserve = False

    def open(self) -> Status:
        """Say on the disk that the store is in use, and clear away what the last process left unfinished.

        Raises:
            StoreForeign: the directory is not a store, or one of another format.
            DiskFull: there is no room for the first files.
        """
        self.last_ticket = self.disk.completed()
        intent.finish(self.disk)
        self.found = read_status(self.disk)
        if not self.found.store:
            store = self.random_bytes(16)
            write_meta(self.disk, store.hex())
        else:
            store = bytes.fromhex(self.found.store)
        self.store = store
        self.status = Status(
            state="dirty",
            store=store.hex(),
            generation=self.found.generation + 1,
            history=self.found.history,
            cluster=self.found.cluster,
            epoch=self.found.epoch,
            founding=self.found.founding,
            role=self.found.role,
            alone_from=self.found.alone_from,
        )
        self._has_reserve = self.disk.exists(RESERVE)
        if self.disk.free_bytes() < STARTING_BYTES:
            # The disk is full. What the reserve takes is enough to start, and to make room by acknowledging.
            self.give_up_reserve()
        write_status(self.disk, self.status)
        for name in [*self.disk.list("tmp-"), *self.disk.list("spill/")]:
            self.disk.remove(name)
        for name in self.disk.list("pool-"):
            number = name.removeprefix("pool-")
            if not number.isdigit():
                continue
            self._numbered = max(self._numbered, int(number))
            whole = self.disk.size(name) == self.config.segment_bytes
            if whole and len(self._pool) < self.config.pool_files_max:
                self._pool.append(name)
            else:
                self.disk.remove(name)
        if self._has_reserve and self.disk.size(RESERVE) != self.config.segment_bytes:
            self.give_up_reserve()
        return self.found

    def update(self, **facts: object) -> None:
        """Replace facts of STATUS on the disk."""
        self.status = replace(self.status, **facts)  # type: ignore[arg-type]
        try:
            write_status(self.disk, self.status)
        except DiskFull:
            if not self.give_up_reserve():
                raise
            write_status(self.disk, self.status)

    # Segments ------------------------------------------------------------------------------

    def make(self, segment: Segment, *, reserve: bool = False, at_once: bool = False) -> None:
        """Make the file of a new segment; its head is on the disk when this returns.

        With `reserve` the reserve is taken when there is no room. With `at_once` room is taken and no zeros are written:
        whoever waits for it is in more of a hurry than the syncs that take longer for it.

        Raises:
            DiskFull: there is no room, and nothing was changed.
        """
        temporary = f"tmp-{segment.name}"
        if segment.prefix == JOURNAL_PREFIX and segment.size == self.config.segment_bytes and self._pool:
            self.disk.rename(self._pool.pop(), temporary)
        elif segment.prefix == JOURNAL_PREFIX and segment.size == self._filled:
            self._filled = 0
            self.disk.rename(_FILL, temporary)
        else:
            try:
                if at_once:
                    self.disk.allocate(temporary, segment.size)
                else:
                    self.disk.create(temporary, segment.size)
            except DiskFull:
                if (
                    not reserve
                    or segment.size > self.config.segment_bytes
                    or not self.take_reserve(temporary)
                ):
                    raise
                segment.size = self.config.segment_bytes
        self.disk.write(temporary, 0, segment.encode_head())
        self.disk.sync(temporary)
        self.disk.rename(temporary, segment.name)

    def retire(self, name: str, size: int) -> None:
        """Nobody needs this file any more: pool it or remove it."""
        if size == self.config.segment_bytes and len(self._pool) < self.config.pool_files_max:
            pooled = self._numbered_name("pool-")
            self.disk.rename(name, pooled)
            self._pool.append(pooled)
        else:
            self.discard(name)

    def discard(self, name: str) -> None:
        """Remove a file for good."""
        dead = self._numbered_name("tmp-dead-")
        self.disk.rename(name, dead)
        self.remove_quietly(dead)

    def prefill(self, size: int) -> bool:
        """Have a file for a segment of this size, made in the background. True when there is one.

        Raises:
            DiskFull: there is no room for it; nothing is left of it.
        """
        self.look_after_filling()
        if size == self._filled or (self._pool and size == self.config.segment_bytes):
            return True
        if not self._filling:
            if self._filled:
                self._filled = 0
                self.discard(_FILL)
            self._fill(size)
        return False

    def look_after_filling(self) -> None:
        """Go on with a file that is being made, if one is."""
        if self._filling:
            self._fill(self._filling)

    def _fill(self, size: int) -> None:
        self._filling = 0
        if self.disk.prepare(_FILL, size):
            self._filled = size
        else:
            self._filling = size

    @property
    def filling(self) -> bool:
        """A file is being made in the background."""
        return self._filling > 0

    @property
    def has_reserve(self) -> bool:
        return self._has_reserve

    def fill_reserve(self) -> None:
        """Have a reserve.

        Raises:
            DiskFull: there is no room for it.
        """
        temporary = self._numbered_name("tmp-reserve-")
        self.disk.allocate(temporary, self.config.segment_bytes)
        self.disk.rename(temporary, RESERVE)
        self._has_reserve = True

    def give_up_reserve(self) -> bool:
        """Make room by removing the reserve. False if there is none."""
        if not self._has_reserve:
            return False
        self._has_reserve = False
        self.discard(RESERVE)
        return True

    def take_reserve(self, name: str) -> bool:
        """Give the reserve this name. False if there is none."""
        if not self._has_reserve:
            return False
        self._has_reserve = False
        self.disk.rename(RESERVE, name)
        return True

    def remove_quietly(self, name: str) -> None:
        """Remove a file that means nothing; it does not matter if that fails."""
        with contextlib.suppress(StoreError):
            self.disk.remove(name)

    def salt(self) -> int:
        return int.from_bytes(self.random_bytes(8), "little")

    def _numbered_name(self, prefix: str) -> str:
        self._numbered += 1
        return f"{prefix}{self._numbered:06d}"

    # Writes --------------------------------------------------------------------------------

    def submit(self, name: str, offset: int, data: Buffer) -> int:
        """Hand a write to the disk's thread; returns its ticket."""
        self.last_ticket += 1
        self.disk.submit(self.last_ticket, name, offset, data)
        return self.last_ticket
