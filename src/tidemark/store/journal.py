"""The journal: every persistent message and its end, in one log for all queues of the node.

It is the `Writer` of the arena's journal extents: the broker's loops put records straight into memory that
is laid out as on the disk. An extent is a stretch of a segment file and begins with a frame. `flush`, at the
end of a turn, seals the frame (its head has been kept free) and hands the bytes as they lie there to the
disk's thread; `completed` says how far the disk is. Nothing is copied and nothing waits.

        extent in memory   [head|records][head|records][head|records....          ]
                                 |             |        ^ being filled
        segment file   [4 KiB head][frame][frame][frame...

A sequence is durable when the frame that holds it and all frames before it are synced. Messages leave the
disk only when the record of their end is durable (see `Barrier`), in segments that nobody needs any more
(`reclaiming.py`) and by compaction.

In a group the journal is one of several that are alike (`adopt`, `take_over`). Nothing that the others may not
have yet is compacted or freed then (`StoreFiles.stable`), so that the journal can be cut back to there (`rewind.py`); and
what counts is the last record (`end_seq`), since numbers behind it that transient messages took mean nothing to others.

Invariant: `durable_seq` never covers a record whose frame is not synced, and the disk always holds every
record up to it that is still needed.
"""

from __future__ import annotations

import os
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import cast

from tidemark.errors import CorruptRecord, DiskFailed, DiskFull, UnitRefused
from tidemark.model import records
from tidemark.model.arena import JOURNAL, Arena, Writer
from tidemark.model.peers import Ends
from tidemark.ports import Apart, Disk, Image, Recovered, Residents
from tidemark.store import checkpoint
from tidemark.store.checkpoint import Adoption, Checkpointer, Inline
from tidemark.store.compaction import Compactor
from tidemark.store.config import StoreConfig
from tidemark.store.files import StoreFiles
from tidemark.store.frames import END, FRAME_BYTES, Survey, seal
from tidemark.store.pager import Pager, Place
from tidemark.store.reclaiming import Reclaimer
from tidemark.store.recovery import Damage, Replay, Torn
from tidemark.store.segment import HEAD_BYTES, JOURNAL_PREFIX, Barrier, Segment, with_history
from tidemark.store.tables import first_whole, known_at, read_table
from tidemark.store.units import JournalUnits

SMALLEST_RECORD = records.HEAD_BYTES
FIRST_BYTES = 4 << 20
"""The first segment of a start is small, so that starting is quick."""
RECOVERY_CACHE_BYTES = 16 << 20
"""Messages that a start reads stay in memory up to this: fresh memory takes longer than reading them again later."""
HELD = 1 << 62
"""The ticket of a frame that is not handed to the disk yet."""
IDLE_MS = 50
"""When nothing was written for so long, a frame without records says how far the log is durable."""


@dataclass(slots=True, kw_only=True)
class RecoveryReport:
    """What the journal was like at start."""

    found: str
    """empty, clean(UUID) or dirty"""
    generation: int
    history: str
    """The history that this start opened."""
    segments: int
    frames: int
    records: int
    bytes: int
    last_seq: int
    queue_max: int
    """The highest queue number that the journal names: new queues must get higher ones."""
    torn: Torn | None
    damage: list[Damage] = field(default_factory=list)
    checkpoint: str = ""
    """The checkpoint that was used. Frames, records and bytes count what was read beside it."""
    dropped: int = 0
    """Entries of the checkpoint whose messages had ended and left the disk since."""
    unusable: list[str] = field(default_factory=list)
    """Checkpoints that were there and could not be used, and why."""


@dataclass(slots=True, kw_only=True)
class JournalStatistics:
    durable_seq: int
    last_seq: int
    segments: int
    bytes_on_disk: int
    bytes_written: int
    frames: int
    records: int
    waiting: int
    """Frames that are on their way to the disk."""
    compactions: int
    compacted_bytes: int
    checkpoints: int
    pages_in: int
    pages_out: int
    spilled: int
    resident_bytes: int
    full: bool


class Journal(Writer):
    """One log. See `ports.Journal` for what the broker uses of it."""

    def __init__(
        self,
        arena: Arena,
        disk: Disk,
        config: StoreConfig,
        *,
        files: StoreFiles | None = None,
        random_bytes: Callable[[int], bytes] = os.urandom,
        wiring_first: Callable[[int], bool] = lambda _: True,
        wiring_end: Callable[[], int] = lambda: 0,
        wiring_durable: Callable[[], bool] = lambda: True,
        wiring_takes_over: Callable[[bytes, int], object] = lambda *_: None,
        apart: Apart | None = None,
    ) -> None:
        """`files` is shared with the catalog log (`Store` does that); alone, the journal makes its own.

        Checkpoints are written `apart`, or here and now without it. `wiring_first(now_ms)` hands the wiring that is
        not on its way yet to the disk; False: it has no room. `wiring_end` is the sequence of its last change, `wiring_durable` says whether that is on the disk;
        `wiring_takes_over(history, now_ms)` opens a history there, too.
        """
        super().__init__(arena, JOURNAL, config.extent_bytes)
        self.config = config
        self.files = files or StoreFiles(disk, config, random_bytes)
        self.pager = Pager(arena, disk, config.cache_bytes)
        self.durable_seq = 0
        self.end_seq = 0
        """The last sequence of the last record in a frame that is sealed."""
        self.durable_end = 0
        """The last sequence of the last record that is on the disk."""
        self.log_start = 0
        """Records up to here may be missing: compacted, freed, or never copied to this member."""
        self.units = JournalUnits(self)
        self.full = False
        """There is no room on the disk: publishers must wait. `maintain` clears it."""
        self.failed: DiskFailed | None = None
        """The disk failed: the journal has stopped for good."""
        self.damage: list[CorruptRecord] = []
        """What compaction found to be damaged since the start. It leaves those segments alone."""
        self.segments: list[Segment] = []
        """All, oldest first; the last one is written to."""
        self.histories: list[tuple[bytes, int]] = []
        """(history, first sequence), newest first."""
        self.completed_ticket = 0
        self.next_id = 1
        self._disk = disk
        self._owns_files = files is None
        self._wiring_first = wiring_first
        self._wiring_end = wiring_end
        self._wiring_durable = wiring_durable
        self._wiring_takes_over = wiring_takes_over
        self._grouped = False
        self._covered: deque[tuple[int, int]] = deque()
        """In a group: (last sequence of a frame's records, of what was put before it was sealed), where they differ."""
        self._covers = 0
        self._sealed_seq = 0
        self._told_seq = 0
        """What `last_seq` said last while a frame was being filled: the end of that frame covers it."""
        self._durable_place = 0
        self._claimed_place = 0
        """The durable place that the last frame tells. What lies behind it would pass for a torn tail if it rots."""
        self._records_place = 0
        """Where the last frame with records ends."""
        self._written_ms = 0
        self._previous = 0
        self._frame_start = 0
        self._place: Place | None = None
        self._waiting: deque[tuple[int, int, int, int]] = deque()
        """(ticket, last sequence, that of the last record, place of its end) of frames that are not durable yet."""
        self._held: deque[tuple[Segment, Place | None, int, memoryview | bytes, int, int]] = deque()
        """In a group: (segment, place, offset, bytes, last sequence, that of the last record) of frames that wait for
        the wiring before them to be on the disk."""
        self._next: Segment | None = None
        self._now_ms = 0
        self._flushes = 0
        self.hurry = False
        """Somebody waits for a record that could otherwise wait for company: the next `flush` writes it."""
        self._filled_bytes: int | None = None
        """While it is filled from another log: how much of it stays in memory."""
        self._patient_bytes = 0
        self._patient_since_ms = 0
        self._frames = 0
        self._records = 0
        self._bytes = 0
        self._compactor = Compactor(self)
        self.reclaimer = Reclaimer(self, self._compactor)
        self.checkpointer = Checkpointer(self, apart or Inline(disk))

    # Writing ---------------------------------------------------------------------------------

    @property
    def last_seq(self) -> int:
        """The highest sequence that was put into the journal; one to wait for."""
        if not self._filled():
            return self._sealed_seq
        self._told_seq = self.arena.next_seq - 1
        return self._told_seq

    def _filled(self) -> bool:
        return self.used - self._frame_start > FRAME_BYTES

    def grow(self, need: int) -> None:
        """The next record does not fit: seal the frame and go on in a new extent."""
        if self.failed is not None:
            raise self.failed
        # A frame that is full goes to the disk before the turn ends: the queues of its messages go first.
        if self._filled() and not self._wiring_first(self._now_ms):
            self.full = True
            raise DiskFull(path=self.segments[-1].name)
        # The record that needs room may have its sequence already: the frame ends with its own last one, or
        # with what somebody was told to wait for, behind which there may be sequences of transient messages.
        self._seal(self._told_seq)
        try:
            self._close_extent()
            self._open_extent(need + FRAME_BYTES)
        except DiskFailed as problem:
            self.failed = problem
            raise

    def ensure(self, need: int) -> None:
        """The next `need` bytes of records go into one frame: all of them survive, or none."""
        if self.used + need > self.capacity:
            self.grow(need)

    def settled(self, queue: int, reason: int, packed: bytes, ranges: bool, now_ms: int) -> int:
        """Messages of one queue are gone. Returns the record's sequence."""
        seq = self.arena.next_seq
        self.arena.next_seq += 1
        self._append_patiently(records.encode_settled(seq, now_ms, queue, reason, packed, ranges), now_ms)
        return seq

    def counted(self, queue: int, counts: list[tuple[int, int]], now_ms: int) -> int:
        """Delivery counts to remember. Returns the record's sequence."""
        seq = self.arena.next_seq
        self.arena.next_seq += 1
        self._append_patiently(records.encode_counted(seq, now_ms, queue, counts), now_ms)
        return seq

    def _append_patiently(self, record: bytes, now_ms: int) -> None:
        """A record that nobody waits for, unless somebody says so (`hurry`): it may wait for company."""
        self.append(record)
        if not self._patient_bytes:
            self._patient_since_ms = now_ms
        self._patient_bytes += len(record)

    def flush(self, now_ms: int, *, told: bool = True) -> None:
        """The end of a turn: close the frame and hand it to the disk.

        A frame in which there is only what nobody waits for stays open for a while. Not `told`: memory may know of ends of
        which no record says yet, so nothing that waits for the records of ends (`barrier`) may go by this flush.

        Raises:
            DiskFailed: the journal has stopped for good.
        """
        self._now_ms = now_ms
        filled = self.used - self._frame_start - FRAME_BYTES
        if filled > 0:
            if self.failed is not None:
                raise self.failed
            if (
                filled == self._patient_bytes
                and not self.hurry
                and 0 <= now_ms - self._patient_since_ms < self.config.ack_patience_ms
            ):
                return
            self._records_place = self._close_frame(self.arena.next_seq - 1)
        self.hurry = False
        self._flushes += told

    def _seal(self, upto: int) -> None:
        """Close the frame that is being filled, if anything is in it, and submit it.

        `upto` is the sequence that is durable with it, if that is more than its own last one.
        """
        if self._filled():
            self._records_place = self._close_frame(upto)

    def _close_frame(self, upto: int) -> int:
        """Close the frame that is being filled and submit it. Returns the place where it ends."""
        end = self.used
        place = self._place
        assert place is not None
        segment = place.segment
        view = self.arena.extent_bytes(self.number, self._frame_start, end)
        offset = place.offset + self._frame_start
        survey = segment.survey
        before, ends = survey.records, survey.ends_bytes
        self._previous, last_seq = seal(
            view, segment.place(offset), self._now_ms, self._durable_place, self._previous, 0, survey
        )
        self._claimed_place = self._durable_place
        self._records += survey.records - before
        place.ends = place.ends or survey.ends_bytes > ends
        self._sealed_seq = max(self._sealed_seq, last_seq, upto)
        self.end_seq = max(self.end_seq, last_seq)
        place.last_seq = max(place.last_seq, last_seq)
        if self._grouped and self._sealed_seq > self.end_seq:
            self._covered.append((self.end_seq, self._sealed_seq))
        end_place = self._submit(segment, place, offset, view)
        place.used = end
        self._frame_start = end
        self._patient_bytes = 0
        if self.capacity - end >= FRAME_BYTES + SMALLEST_RECORD:
            self.used = end + FRAME_BYTES
        else:
            self.capacity = end
        return end_place

    def _submit(self, segment: Segment, place: Place | None, offset: int, data: memoryview | bytes) -> int:
        """Hand a frame to the disk. Returns the place where it ends.

        In a group it is held back while wiring is on its way. A crash may keep a frame and lose one that was written
        before it, if neither was synced. By itself a node would miss the messages of a queue that never was; here the
        queue comes back from another member, and the messages would not.
        """
        segment.used = offset + len(data)
        self._written_ms = self._now_ms
        self._frames += 1
        self._bytes += len(data)
        facts = segment, place, offset, data, self._sealed_seq, self.end_seq
        if self._grouped and (self._held or not self._wiring_durable()):
            self._held.append(facts)
            segment.ticket = HELD
            if place is not None:
                place.ticket = HELD
        else:
            self._hand_over(*facts)
        return segment.place(segment.used)

    def _hand_over(
        self,
        segment: Segment,
        place: Place | None,
        offset: int,
        data: memoryview | bytes,
        last_seq: int,
        end_seq: int,
    ) -> None:
        try:
            ticket = self.files.submit(segment.name, offset, data)
        except DiskFailed as problem:
            self.failed = problem
            raise
        segment.ticket = ticket
        if place is not None:
            place.ticket = ticket
        self._waiting.append((ticket, last_seq, end_seq, segment.place(offset + len(data))))

    # Extents and segments ------------------------------------------------------------------------

    def _close_extent(self) -> None:
        if not self.number:
            return
        number, self.used = self.number, self._frame_start
        nothing = self.used == 0
        self.close_extent()
        self._frame_start, self._place = 0, None
        if nothing:
            self.pager.places[number].segment.extents.remove(number)
            self.pager.remove(number)

    def _open_extent(self, need: int) -> None:
        segment = self._roll(need) if self._is_behind(need) else self.segments[-1]
        room = segment.size - segment.used - FRAME_BYTES
        self.open_extent(min(max(need, self.extent_bytes), room), FRAME_BYTES)
        self._frame_start = 0
        self._place = Place(segment, segment.used, 0, self._previous)
        segment.extents.append(self.number)
        self.pager.add(self.number, self._place, resident=True)

    def _is_behind(self, need: int) -> bool:
        """Whether the next extent is not for the segment that we are in."""
        segment = self.segments[-1]
        # Syncs are shorter in a segment with zeros. Who is filled waits for none, and uses all the room.
        has_better = segment.reserved and self._next is not None and self._filled_bytes is None
        return segment.sealed or has_better or need > segment.size - segment.used - FRAME_BYTES

    def _roll(self, need: int) -> Segment:
        """Go on in a new segment.

        Raises:
            DiskFull: there is no room for one, not even the reserve; the journal is as it was.
        """
        following = self._next
        least = (HEAD_BYTES + need + FRAME_BYTES + 4095) & ~4095
        if following is not None and following.size < least:
            self._next = None
            self.files.retire(following.name, following.size)
            following = None
        if following is None:
            # Nothing was prepared, so the file is made while everybody waits: twice the last one's size is
            # in proportion to what came in meanwhile. Zeros are worth the wait, as every sync is shorter for them,
            # but not to somebody who is filled and waits for no sync.
            usual = min(self.config.segment_bytes, 2 * self.segments[-1].size)
            following = self._new_segment(max(usual, least))
            following.reserved = self._filled_bytes is not None
            reserved = self.files.has_reserve
            try:
                self.files.make(following, reserve=True, at_once=following.reserved)
            except DiskFull:
                self.full = True
                raise
            # The reserve was taken: publishers must wait now, not when `maintain` finds out.
            self.full = self.full or (reserved and not self.files.has_reserve)
        self._next = None
        self._go_on_in(following)
        return following

    def _go_on_in(self, segment: Segment) -> None:
        if not self.segments[-1].sealed:
            self._end_segment()
        self.segments.append(segment)
        self._previous = segment.crc

    def _new_segment(self, size: int) -> Segment:
        segment = Segment(
            prefix=JOURNAL_PREFIX,
            id=self.next_id,
            low=self.next_id,
            high=self.next_id,
            size=size,
            store=self.files.store,
            # Not the arena's next: the record that wants a new segment may have its sequence already.
            base_seq=self.end_seq + 1,
            log_start=self.log_start,
            start=self.files.status.generation,
            salt=self.files.salt(),
            made_ms=self._now_ms,
            histories=self.histories,
        )
        self.next_id += 1
        return segment

    def _end_segment(self) -> None:
        segment = self.segments[-1]
        end = bytearray(FRAME_BYTES)
        place = segment.place(segment.used)
        seal(memoryview(end), place, self._now_ms, self._durable_place, self._previous, END, Survey())
        self._claimed_place = self._durable_place
        self._submit(segment, None, segment.used, bytes(end))
        segment.sealed = True
        self.reclaimer.look = True

    # How far the disk is -------------------------------------------------------------------------

    def completed(self) -> int:
        """Ask the disk how far it is; returns `durable_seq`.

        Raises:
            DiskFailed: a write or sync failed. The journal has stopped for good.
        """
        if self.failed is not None:
            raise self.failed
        try:
            done = self._disk.completed()
        except DiskFailed as problem:
            self.failed = problem
            raise
        self.completed_ticket = done
        waiting = self._waiting
        while waiting and waiting[0][0] <= done:
            _, seq, self.durable_end, self._durable_place = waiting.popleft()
            self.durable_seq = max(self.durable_seq, seq)
        if self._held and self._wiring_durable():
            held, self._held = self._held, deque()
            for facts in held:
                self._hand_over(*facts)
        if self._filled_bytes is not None:
            self.pager.trim(done, self._filled_bytes)
        return self.durable_seq

    def barrier(self) -> Barrier:
        return Barrier(self._flushes)

    def passed(self, barrier: Barrier) -> bool:
        if barrier.ticket is None:
            if self._flushes <= barrier.flushes or self._held:
                return False
            barrier.ticket = self.files.last_ticket
            barrier.ends = self.ends
        return self.completed_ticket >= barrier.ticket and self.is_stable(barrier.ends)

    # In a group ----------------------------------------------------------------------------------

    @property
    def ends(self) -> Ends:
        """The last record of both logs that was handed to the disk."""
        return Ends(self._wiring_end(), self.end_seq)

    def is_stable(self, ends: Ends) -> bool:
        """Whether the logs will never be cut back to before this."""
        stable = self.files.stable
        return stable is None or stable.covers(ends)

    @property
    def recorded_seq(self) -> int:
        """Up to where compaction may say of ends that they are recorded. In a group, numbers behind the last record
        that is sealed may come again, with another meaning."""
        return self.end_seq if self.shared else self.last_seq

    @property
    def shared(self) -> bool:
        """Other members may have this log, or have had it."""
        return self._grouped or bool(self.files.status.cluster)

    @property
    def queue_max(self) -> int:
        """The highest queue number that the journal names or named."""
        there = max((segment.survey.queue_max for segment in self.segments), default=0)
        return max(self.reclaimer.queue_max, there)

    def covers(self, seq: int) -> int:
        """What may be called safe when the record with this sequence is: transient messages that were accepted
        before its frame was sealed have later numbers, and somebody may wait for these."""
        covered = self._covered
        while covered and covered[0][0] <= seq:
            self._covers = covered.popleft()[1]
        return max(seq, self._covers)

    def fill(self, being_filled: bool) -> None:
        """Whether much is to be adopted. As at a start, little of it stays in memory then, for fresh memory takes longer
        than reading again; and no segment is prepared, which would be to write it twice."""
        if not being_filled:
            self._filled_bytes = None
        elif self._filled_bytes is None:
            self._filled_bytes = max(RECOVERY_CACHE_BYTES, self.arena.resident_bytes)

    def adopt(self, payload: memoryview, now_ms: int) -> tuple[int, int, int]:
        """Store the records of one frame that another member sealed, as a frame, and hand it to the disk.

        Returns where they lie: extent, start and end.

        Raises:
            UnitRefused: they are not well-formed or do not come behind the last record. Nothing has changed.
            DiskFull: there is no room for them; they are not stored.
            DiskFailed: the journal has stopped for good.
        """
        if self.failed is not None:
            raise self.failed
        self._now_ms = now_ms
        self._seal(self._told_seq)
        # It is checked whole when it is sealed.
        first = _first_seq(payload)
        if first <= self.end_seq:
            raise UnitRefused(log="JOURNAL", problem=f"it begins at {first}, the log ends at {self.end_seq}")
        table = read_table("JOURNAL", payload, self.histories, self.log_start)
        if table is not None and table != (self.histories, self.log_start):
            self._open_chapter(*table)
        self.ensure(len(payload))
        number, start = self.number, self.used
        self.append(cast("bytes", payload))
        try:
            self._records_place = self._close_frame(0)
        except ValueError as problem:
            self.used = start
            raise UnitRefused(log="JOURNAL", problem=str(problem)) from problem
        self.arena.next_seq = max(self.arena.next_seq, self.end_seq + 1)
        return number, start, self._frame_start

    def take_over(self, history: bytes, now_ms: int) -> int:
        """Open a history here and now. Returns where it begins. Doing it again changes nothing.

        Raises:
            DiskFull: there is no room; nothing has changed.
            DiskFailed: the journal has stopped for good.
        """
        if self.histories and self.histories[0][0] == history:
            return self.histories[0][1]
        if self.failed is not None:
            raise self.failed
        self._now_ms = now_ms
        self._seal(self._told_seq)
        seq = self.arena.next_seq
        self._open_chapter(with_history(self.histories, history, seq), self.log_start)
        self.arena.next_seq += 1
        self.append(records.encode_takeover(seq, now_ms, history))
        self._records_place = self._close_frame(seq)
        return seq

    def _open_chapter(self, histories: list[tuple[bytes, int]], log_start: int) -> None:
        """Go on in a new segment that has this table in its head: segments that a checkpoint knows are not read."""
        self._close_extent()
        following, self._next = self._next, None
        if following is not None:
            self.files.retire(following.name, following.size)
        before = self.histories, self.log_start
        self.histories, self.log_start = histories, log_start
        try:
            segment = self._new_segment(min(self.config.segment_bytes // 2, FIRST_BYTES))
            self.files.make(segment, reserve=True)
            self._go_on_in(segment)
        except DiskFull:
            self.histories, self.log_start = before
            raise
        except DiskFailed as problem:
            self.failed = problem
            raise

    def lost(self, upto: int) -> None:
        """Records up to here are no longer all there."""
        self.log_start = max(self.log_start, upto)
        self.units.lost(upto)

    # Checkpoints ---------------------------------------------------------------------------------

    def seal_for_checkpoint(self, now_ms: int) -> int | None:
        """Close the frame, whoever may be patient. Returns the place up to which memory has what is in the journal;
        None if that cannot be said now."""
        if self.failed is not None or self.full or self.moving or not self._wiring_first(now_ms):
            return None
        self.hurry = True
        self.flush(now_ms)
        return None if self._held else self.end

    @property
    def moving(self) -> bool:
        """Compaction is telling entries their new places: some point into segments that are no longer ours."""
        return self._compactor.moving

    @property
    def last_crc(self) -> int:
        """The checksum of the last frame."""
        return self._previous

    @property
    def bytes_written(self) -> int:
        """What went into the journal since the start."""
        return self._bytes

    @property
    def written_ms(self) -> int:
        return self._written_ms

    def _adopt(self, replay: Replay, image: Image, unusable: list[str]) -> Adoption | None:
        """Take up the newest checkpoint that can be used."""
        for name in reversed(self._disk.list(checkpoint.PREFIX)):
            try:
                found = checkpoint.read(self._disk, name, self.files.store)
                adoption = Adoption(found, self, image)
                adoption.take_up(replay.segments)
            except checkpoint.Unusable as problem:
                unusable.append(f"{name}: {problem}")
                self.files.remove_quietly(name)
                continue
            replay.resume(found.place, found.last_crc)
            for other in self._disk.list(checkpoint.PREFIX):
                if other != name:
                    self.files.remove_quietly(other)
            return adoption
        return None

    # Start and stop ------------------------------------------------------------------------------

    def recover(
        self,
        into: Recovered,
        now_ms: int,
        queue_name: Callable[[int], str | None] = lambda _: None,
        image: Image | None = None,
        *,
        open_history: bool = True,
    ) -> RecoveryReport:
        """Give every record to `into`, in the order they were written; then open a new history.

        A member of a group does not `open_history`: nothing is written into the log, and nothing is compacted or
        freed until `StoreFiles.stable` says how far.

        With an `image` a checkpoint is used if there is one, and only what came after it is read.

        Raises:
            CorruptRecord: something that had been durable is damaged, and `store.on_corruption` is "refuse".
            StoreForeign: the directory is not a store, or one of another format.
            DiskFull: there is no room for the first segment.
        """
        if self._owns_files:
            self.files.open()
        self._now_ms = now_ms
        self.pager.queue_name = queue_name
        replay = Replay(
            self._disk,
            JOURNAL_PREFIX,
            clean_end=self.files.found.end if self.files.found.state == "clean" else 0,
            skip=self.config.on_corruption == "skip",
            chunk_bytes=self.config.extent_bytes,
            queue_name=queue_name,
        )
        size = count = dropped = after_seq = 0
        unusable: list[str] = []
        adoption = self._adopt(replay, image, unusable) if image is not None else None
        if adoption is not None:
            after_seq = adoption.last_seq
            self.arena.next_seq = max(self.arena.next_seq, after_seq + 1)
        for chunk in replay.chunks():
            number = self.arena.adopt_extent(JOURNAL, len(chunk.data))
            ends = chunk.survey.ends_bytes > 0
            where = chunk.offset, len(chunk.data), chunk.previous, chunk.survey.last_seq
            place = Place(chunk.segment, *where, ends=ends)
            self.pager.add(number, place, resident=True)
            chunk.segment.extents.append(number)
            self.arena.load_extent(number, chunk.data)
            for start, end in chunk.frames:
                if end - start > FRAME_BYTES:
                    into.frame(number, start + FRAME_BYTES, end, after_seq)
            size += len(chunk.data)
            count += chunk.survey.records
            self.pager.trim(0, RECOVERY_CACHE_BYTES)
        if adoption is not None:
            dropped = adoption.finish()
        replay.finish(self.files, now_ms)
        self.checkpointer.started(size, now_ms)
        self.segments = replay.segments
        self.next_id = replay.highest_id + 1
        # Transient messages take sequences too, which a crash forgets. None that compaction has named may come
        # again: `compacted_upto` would speak of ends that were recorded later. What it names was on the disk, and the
        # last of it may be among what compaction left out.
        last_seq = max((max(one.last_seq, one.compacted_upto) for one in self.segments), default=0)
        self.arena.next_seq = max(self.arena.next_seq, last_seq + 1)
        if not self.files.found.cluster:
            # In a cluster a history begins right behind the last record, so that all members agree on where.
            self.arena.next_seq = max(self.arena.next_seq, self.files.found.last_seq + 1)
        self._sealed_seq = self.durable_seq = self.end_seq = self.durable_end = last_seq
        self.log_start = first_whole(self.segments)
        self.reclaimer.take_stock()
        newest = max(self.segments, key=lambda segment: (segment.start, segment.id), default=None)
        self.histories = newest.histories if newest else []
        if not open_history:
            self._grouped, self.files.stable = True, Ends()
        if self.shared:
            self.histories = known_at(self.histories, last_seq)
        if open_history:
            self._open_history(now_ms)
        else:
            self._first_segment()
        return RecoveryReport(
            found=str(self.files.found),
            generation=self.files.status.generation,
            history=self.histories[0][0].hex() if self.histories else "",
            segments=len(self.segments) - 1,
            frames=replay.frames,
            records=count,
            bytes=size,
            last_seq=last_seq,
            queue_max=max((segment.survey.queue_max for segment in self.segments), default=0),
            torn=replay.torn,
            damage=replay.damage,
            checkpoint=adoption.checkpoint.name if adoption is not None else "",
            dropped=dropped,
            unusable=unusable,
        )

    def _first_segment(self) -> None:
        segment = self._new_segment(min(self.config.segment_bytes // 2, FIRST_BYTES))
        self.files.make(segment, reserve=True)
        self.segments.append(segment)
        self._previous = segment.crc
        self._durable_place = segment.place(0)

    def _open_history(self, now_ms: int) -> None:
        """A new history begins with every start, in a segment of its own that names it in its head."""
        history = self.files.random_bytes(16)
        self._wiring_takes_over(history, now_ms)
        self.histories = with_history(self.histories, history, self.arena.next_seq)
        status = self.files.status
        alone_from = (status.alone_from or self.arena.next_seq) if status.cluster else 0
        self.files.update(history=history.hex(), role="alone", alone_from=alone_from)
        self._first_segment()
        seq = self.arena.next_seq
        self.arena.next_seq += 1
        self.append(records.encode_takeover(seq, now_ms, history))
        self.flush(now_ms)

    def close(self, now_ms: int) -> None:
        """A clean end: write what there is and put an END frame behind it. `Store.close` says so on the disk.

        The caller waits until `idle`, then writes the status.
        """
        self.hurry = True
        self.flush(now_ms)
        self._close_extent()
        if not self.segments[-1].sealed:
            self._end_segment()

    @property
    def idle(self) -> bool:
        """Everything that was submitted is durable."""
        return not self._waiting and not self._held

    @property
    def end(self) -> int:
        """The place where the journal ends."""
        return self.segments[-1].place(self.segments[-1].used)

    # Housekeeping --------------------------------------------------------------------------------

    def maintain(self, residents: Residents, now_ms: int, budget_bytes: int) -> None:
        """A slice of the work that is never urgent; call it often, between turns, after `completed`.

        Frees segments that nobody needs, goes on with compaction for about `budget_bytes`, pages out what
        is over the memory budget, prepares the next segment file and, when the journal has come to rest,
        says on the disk how far it is durable.

        Raises:
            DiskFailed: the journal has stopped for good.
        """
        if self.failed is not None:
            return
        self._now_ms = now_ms
        self.pager.queue_name = residents.queue_name
        try:
            self.reclaimer.step()
            self._prepare()
            self._claim_when_idle(now_ms)
            self._compactor.step(residents, now_ms, budget_bytes)
            self.pager.sweep()
            self.pager.trim(self.completed_ticket)
        except DiskFailed as problem:
            self.failed = problem
            raise

    def _claim_when_idle(self, now_ms: int) -> None:
        """After a burst of writes, once: tell the durable place, in a frame without records.

        Every frame tells how far the log was durable when it was sealed, which is short of itself and of what
        was on its way then. Without another frame, damage to these would look like a torn tail.
        """
        if self._waiting or self._held or self._filled() or self._claimed_place >= self._records_place:
            return
        if 0 <= now_ms - self._written_ms < IDLE_MS:
            return
        if self.used - self._frame_start < FRAME_BYTES:
            # The extent is full. If the segment is, too, the END frame tells the place, once the next is there.
            # In a group a segment that is not the first has records, so that the log's end is always known.
            need = FRAME_BYTES + SMALLEST_RECORD
            if self._is_behind(need) and (self._next is None or self._grouped):
                return
            self._close_extent()
            self._open_extent(need)
        if self._claimed_place < self._records_place:
            self._close_frame(0)

    def _prepare(self) -> None:
        """Have the next segment ready before it is needed, and the reserve in place."""
        active = self.segments[-1]
        try:
            self.files.look_after_filling()
            if not self.files.has_reserve:
                self.files.fill_reserve()
            # A journal that little goes into stays small: a segment is twice as large as the one before.
            size = min(self.config.segment_bytes, max(2 * active.size, FIRST_BYTES))
            soon = active.reserved or active.used > active.size // 4
            wanted = self._next is None and soon and self._filled_bytes is None
            if wanted and self.files.prefill(size):
                segment = self._new_segment(size)
                segment.prepared = True
                self.files.make(segment)
                self._next = segment
            if self.files.has_reserve and not self.files.filling:
                self.full = False
        except DiskFull:
            self.full = True
            # A checkpoint can be made again when there is room.
            for name in self._disk.list(checkpoint.PREFIX):
                self.files.discard(name)

    def bytes_after(self, seq: int) -> int:
        """About how much was written behind this sequence."""
        total = 0
        for segment in reversed(self.segments):
            if segment.base_seq <= seq:
                records = segment.last_seq - segment.base_seq + 1
                if records > 0 and seq < segment.last_seq:
                    total += segment.used * (segment.last_seq - seq) // records
                break
            total += segment.used
        return total

    def statistics(self) -> JournalStatistics:
        return JournalStatistics(
            durable_seq=self.durable_seq,
            last_seq=self.last_seq,
            segments=len(self.segments),
            bytes_on_disk=sum(segment.size for segment in self.segments),
            bytes_written=self._bytes,
            frames=self._frames,
            records=self._records,
            waiting=len(self._waiting) + len(self._held),
            compactions=self._compactor.finished,
            compacted_bytes=self._compactor.bytes_in,
            checkpoints=self.checkpointer.made,
            pages_in=self.pager.pages_in,
            pages_out=self.pager.pages_out,
            spilled=self.pager.spilled,
            resident_bytes=self.arena.resident_bytes,
            full=self.full,
        )


def _first_seq(payload: memoryview) -> int:
    if len(payload) < SMALLEST_RECORD or len(payload) % 8:
        raise UnitRefused(log="JOURNAL", problem=f"{len(payload)} bytes are no records")
    return records.record_seq(payload)
