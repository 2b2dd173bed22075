"""One data directory: the catalog log and the journal over the same files and the same disk thread.

    store = Store(arena, disk, config)
    store.open()
    for change in store.catalog.recover(now_ms): ...        the wiring first
    report = store.journal.recover(restorer, now_ms)        then the messages
    ...
    store.close(now_ms); while not store.idle: store.completed(); store.closed()

In a group (see `member/`) several stores hold the same two logs. The one that leads begins with `take_over`, the
others are given its frames (`units_after`) and `adopt` them. How far a log goes is the sequence of its last record.

At the end of a turn flush the catalog, then the journal: what needs new wiring is never durable before it.
"""

from __future__ import annotations

import os
from collections.abc import Callable

from tidemark.model.arena import Arena
from tidemark.model.peers import Ends, Log, Takeover, Unit
from tidemark.ports import Apart, Disk, Image
from tidemark.store.catalog_log import CatalogLog
from tidemark.store.config import StoreConfig
from tidemark.store.files import StoreFiles
from tidemark.store.journal import Journal
from tidemark.store.status import Status
from tidemark.store.tables import merged


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
            arena,
            disk,
            config,
            files=self.files,
            wiring_first=self._flush_wiring,
            wiring_end=lambda: self.catalog.end_seq,
            wiring_durable=lambda: self.catalog.durable_seq >= self.catalog.end_seq,
            wiring_takes_over=self.catalog.take_over,
            apart=apart,
        )
        self._ends = self._durable_ends = Ends()

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

    # In a group ----------------------------------------------------------------------------------

    @property
    def ends(self) -> Ends:
        """The last records that were handed to the disk: up to here `units_after` gives what there is."""
        self._ends = self._ends.at(self.catalog.end_seq, self.journal.end_seq)
        return self._ends

    @property
    def durable_ends(self) -> Ends:
        """The last records that are on the disk."""
        self._durable_ends = self._durable_ends.at(self.catalog.durable_seq, self.journal.durable_end)
        return self._durable_ends

    @property
    def table(self) -> tuple[Takeover, ...]:
        """The histories of both logs, newest first."""
        return merged(self.catalog.histories, self.journal.histories, self.ends)

    @property
    def queue_max(self) -> int:
        """The highest queue number that the journal names or named."""
        return self.journal.queue_max

    def log_start(self, log: Log) -> int:
        """From here on `units_after` gives everything that the log ever had."""
        return self.journal.log_start if log is Log.JOURNAL else self.catalog.log_start

    def units_after(self, log: Log, seq: int, budget_bytes: int) -> list[Unit]:
        """What comes behind this sequence: about so many bytes, one unit at least if there is one.

        `seq` is 0 (everything that is kept), the last of a unit that was given before, or not below `log_start`.
        The payloads are good until anything else is done with the store.

        Raises:
            LogGone: not everything behind it is there any more.
            CorruptRecord: what is on the disk is not what was written.
        """
        units = self.journal.units if log is Log.JOURNAL else self.catalog.units
        return units.after(seq, budget_bytes)

    def adopt_changes(self, payload: memoryview, now_ms: int) -> list[bytes]:
        """Store a unit of the catalog log as one frame. Returns the changes in it. See `CatalogLog.adopt`."""
        return self.catalog.adopt(payload, now_ms)

    def adopt_records(self, payload: memoryview, now_ms: int) -> tuple[int, int, int]:
        """Store a unit of the journal as one frame. Returns extent, start and end. See `Journal.adopt`."""
        return self.journal.adopt(payload, now_ms)

    def take_over(self, history: str, now_ms: int) -> Takeover:
        """A history (32 hex digits) begins in both logs.

        Raises:
            DiskFull, DiskFailed: it could not be written.
        """
        name = bytes.fromhex(history)
        first = Ends(self.catalog.take_over(name, now_ms), self.journal.take_over(name, now_ms))
        if self.files.status.history != history:
            self.files.update(history=history)
        return Takeover(history, first)

    def hold(self, stable: Ends | None) -> None:
        """The logs will never be cut back to before this: what lies behind is neither compacted nor freed, rewritten
        or made part of a checkpoint. None: they are never cut back."""
        self.files.stable = stable
        self.journal.reclaimer.look = True

    def covers(self, journal_seq: int) -> int:
        """What may be called safe when this record of the journal is. See `Journal.covers`."""
        return self.journal.covers(journal_seq)

    # Checkpoints and the disk ----------------------------------------------------------------------

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
