"""One data directory: the catalog log and the journal over the same files and the same disk thread.

    store = Store(arena, disk, config)
    store.open()
    for change in store.catalog.recover(now_ms): ...        the wiring first
    report = store.journal.recover(restorer, now_ms)        then the messages
    ...
    store.close(now_ms); while not store.idle: store.completed(); store.closed()

At the end of a turn flush the catalog, then the journal: what needs new wiring is never durable before it.
"""

from __future__ import annotations

import os
from collections.abc import Callable

from tidemark.model.arena import Arena
from tidemark.ports import Apart, Disk, Image
from tidemark.store.catalog_log import CatalogLog
from tidemark.store.config import StoreConfig
from tidemark.store.files import StoreFiles
from tidemark.store.journal import Journal
from tidemark.store.status import Status


class Store:
    def __init__(
        self,
        arena: Arena,
        disk: Disk,
        config: StoreConfig,
        random_bytes: Callable[[int], bytes] = os.urandom,
        apart: Apart | None = None,
    ) -> None:
        self.files = StoreFiles(disk, config, random_bytes)
        self.catalog = CatalogLog(self.files)
        self.journal = Journal(
            arena, disk, config, files=self.files, wiring_first=self._flush_wiring, apart=apart
        )

    def open(self) -> Status:
        """Take the directory into use: it is dirty from now on. Returns how it was.

        Raises:
            StoreForeign: the directory is not a store, or one of another format.
            DiskFull: there is no room for the first files.
        """
        return self.files.open()

    def _flush_wiring(self, now_ms: int) -> bool:
        self.catalog.flush(now_ms)
        return not self.catalog.full

    def flush(self, now_ms: int) -> None:
        """The end of a turn: hand everything to the disk, the wiring first."""
        self.catalog.flush(now_ms)
        self.journal.flush(now_ms)

    def checkpoint(self, image: Image, now_ms: int) -> bool | None:
        """At the end of a turn in which every end was written: begin a checkpoint if it is due.

        Returns whether one went well that has come to its end; None if none has.

        Raises:
            DiskFailed: the journal has stopped for good.
        """
        return self.journal.checkpointer.step(image, now_ms)

    def completed(self) -> None:
        """Ask the disk how far it is; raises both logs' `durable_seq`."""
        self.catalog.completed()
        self.journal.completed()

    @property
    def idle(self) -> bool:
        """Everything that was submitted is durable."""
        return self.catalog.idle and self.journal.idle

    def close(self, now_ms: int) -> None:
        """A clean end: write what there is. Wait until `idle`, then call `closed`."""
        self.catalog.close(now_ms)
        self.journal.close(now_ms)

    def closed(self, image: Image | None = None) -> None:
        """Say on the disk that the store is clean. With an `image`, leave a checkpoint if the next start gains by it."""
        assert self.idle
        if image is not None:
            self.journal.checkpointer.at_the_end(image)
        self.files.update(
            state="clean",
            end=self.journal.end,
            catalog_end=self.catalog.end,
            last_seq=self.journal.durable_seq,
        )
