"""The log of the wiring: one CATALOG record for every change of exchanges, queues, bindings, users, policies.

It is written like the journal, in frames of segments called `catalog-…`, with sequences of its own, and
recovered first. When it has grown to more than twice what the wiring takes now, `rewrite` replaces it by an
image: a segment that stands for all before it, whole on the disk before it gets its name. The records of the image
take the last sequences before it, so that a log goes equally far on all members of a group, rewritten or not.

Invariant: what `recover` gives, applied in order, is the wiring as of the last durable change.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterator

from tidemark.errors import DiskFailed, DiskFull, NotLeading, UnitRefused
from tidemark.model import records
from tidemark.store.files import StoreFiles
from tidemark.store.frames import END, FRAME_BYTES, Survey, seal, walk
from tidemark.store.recovery import Damage, Replay, Torn
from tidemark.store.segment import CATALOG_PREFIX, HEAD_BYTES, Segment, with_history
from tidemark.store.tables import first_whole, known_at, read_table
from tidemark.store.units import CatalogUnits

REWRITE_BYTES_MIN = 256 << 10
"""A log smaller than this is left as it is,"""
REWRITE_FILES_MIN = 8
"""unless it has more files than this: every start begins a new one."""
IMAGE_FRAME_BYTES = 256 << 10
"""An image is cut into frames of about this size."""


class CatalogLog:
    def __init__(self, files: StoreFiles) -> None:
        self.durable_seq = 0
        self.last_seq = 0
        self.end_seq = 0
        """The last change that was handed to the disk."""
        self.log_start = 0
        """Records up to here may be missing: an image stands for them, or they were never copied to this member."""
        self.histories: list[tuple[bytes, int]] = []
        """(history, first sequence), newest first."""
        self.units = CatalogUnits(self)
        self.full = False
        """There is no room: a change could not be logged. It is tried again with the next flush."""
        self.failed: DiskFailed | None = None
        self.follower = ""
        """The name of the member, while another one writes this log: then nobody may append here."""
        self.torn: Torn | None = None
        self.damage: list[Damage] = []
        self.segments: list[Segment] = []
        self.disk = files.disk
        self._files = files
        self._refused_at = -1
        """An image had no room in the sequences when the log ended here."""
        self._next_id = 1
        self._previous = 0
        self._durable_place = 0
        self._frame = bytearray(FRAME_BYTES)
        self._waiting: deque[tuple[int, int, int]] = deque()
        self._written = 0
        """Bytes of frames since the last image, the image included."""
        self._image_bytes = 0
        self._replaced: list[Segment] = []
        """Segments that an image stands for; they go when nothing is on its way to them any more."""

    # Start -----------------------------------------------------------------------------------

    def recover(self, now_ms: int = 0) -> Iterator[bytes]:
        """Every change, oldest first. The log can be written to when the iterator is exhausted.

        Raises:
            CorruptRecord: something that had been durable is damaged, and `store.on_corruption` is "refuse".
        """
        found = self._files.found
        replay = Replay(
            self.disk,
            CATALOG_PREFIX,
            clean_end=found.catalog_end if found.state == "clean" else 0,
            skip=self._files.config.on_corruption == "skip",
            chunk_bytes=self._files.config.catalog_bytes,
        )
        for chunk in replay.chunks():
            self._written += len(chunk.data)
            if chunk.segment.compacted:
                self._image_bytes += len(chunk.data)
            for start, end in chunk.frames:
                for at, length, kind, seq, _ in walk(chunk.data, start + FRAME_BYTES, end):
                    self.last_seq = seq
                    if kind == records.RecordType.CATALOG:
                        yield records.payload(chunk.data[at : at + length])
        replay.finish(self._files, now_ms)
        self.torn, self.damage = replay.torn, replay.damage
        self.segments = replay.segments
        self._next_id = replay.highest_id + 1
        self.last_seq = max((segment.last_seq for segment in self.segments), default=0)
        self.durable_seq = self.end_seq = self.last_seq
        self.log_start = first_whole(self.segments)
        newest = max(self.segments, key=lambda segment: (segment.start, segment.id), default=None)
        self.histories = known_at(newest.histories, self.last_seq) if newest else []
        if newest is not None:
            self._durable_place = newest.place(newest.used)

    def _new_segment(self, size: int, now_ms: int) -> Segment:
        segment = Segment(
            prefix=CATALOG_PREFIX,
            id=self._next_id,
            low=self._next_id,
            high=self._next_id,
            size=size,
            store=self._files.store,
            base_seq=self.end_seq + 1,
            log_start=self.log_start,
            start=self._files.status.generation,
            salt=self._files.salt(),
            made_ms=now_ms,
            histories=self.histories,
        )
        self._next_id += 1
        return segment

    # Writing ---------------------------------------------------------------------------------

    def append(self, change: bytes, now_ms: int) -> int:
        """Log one change (JSON). Returns its sequence; it is safe when `durable_seq` has reached it.

        Raises:
            NotLeading: another member writes this log.
        """
        if self.failed is not None:
            raise self.failed
        if self.follower:
            raise NotLeading(member=self.follower)
        self.last_seq += 1
        self._frame += records.encode_catalog(self.last_seq, now_ms, change)
        return self.last_seq

    def flush(self, now_ms: int) -> None:
        """The end of a turn: hand what was appended to the disk, as one frame.

        Raises:
            DiskFailed: the log has stopped for good.
        """
        if len(self._frame) <= FRAME_BYTES:
            return
        if self.failed is not None:
            raise self.failed
        try:
            self._write_frame(now_ms)
            self.full = False
        except DiskFull:
            self.full = True
        except DiskFailed as problem:
            self.failed = problem
            raise

    def _write_frame(self, now_ms: int) -> None:
        segment = self.segments[-1] if self.segments else None
        need = len(self._frame)
        if segment is None or segment.sealed or need > segment.size - segment.used - FRAME_BYTES:
            segment = self._roll(need, now_ms)
        frame, self._frame = self._frame, bytearray(FRAME_BYTES)
        view = memoryview(frame)
        place = segment.place(segment.used)
        self._previous, _ = seal(view, place, now_ms, self._durable_place, self._previous, 0, segment.survey)
        self.units.add(view)
        self.end_seq = self.last_seq
        self._submit(segment, view, self.last_seq)

    def _submit(self, segment: Segment, data: memoryview, last_seq: int) -> None:
        segment.ticket = self._files.submit(segment.name, segment.used, data)
        segment.used += len(data)
        self._written += len(data)
        self._waiting.append((segment.ticket, last_seq, segment.place(segment.used)))

    def _roll(self, need: int, now_ms: int) -> Segment:
        size = max(self._files.config.catalog_bytes, (HEAD_BYTES + need + FRAME_BYTES + 4095) & ~4095)
        segment = self._new_segment(size, now_ms)
        self._files.make(segment)
        if self.segments and not self.segments[-1].sealed:
            self._end_segment(now_ms)
        self.segments.append(segment)
        self._previous = segment.crc
        return segment

    def _end_segment(self, now_ms: int) -> None:
        segment = self.segments[-1]
        view = memoryview(bytearray(FRAME_BYTES))
        seal(view, segment.place(segment.used), now_ms, self._durable_place, self._previous, END, Survey())
        # The changes that wanted a new segment have their sequences already; they are not durable with this.
        self._submit(segment, view, self._waiting[-1][1] if self._waiting else self.durable_seq)
        segment.sealed = True

    # In a group ------------------------------------------------------------------------------

    def adopt(self, payload: memoryview, now_ms: int) -> list[bytes]:
        """Store the records of one frame that another member sealed, as a frame, and hand it to the disk.

        Returns the changes in it.

        Raises:
            UnitRefused: they are not well-formed or do not come behind the last record. Nothing has changed.
            DiskFull: there is no room for them; they are not stored.
            DiskFailed: the log has stopped for good.
        """
        if self.failed is not None:
            raise self.failed
        try:
            rows = walk(payload, 0, len(payload))
        except ValueError as problem:
            raise UnitRefused(log="CATALOG", problem=str(problem)) from problem
        if not rows or rows[0][3] <= self.last_seq:
            first = rows[0][3] if rows else 0
            raise UnitRefused(log="CATALOG", problem=f"it begins at {first}, the log ends at {self.last_seq}")
        changes = [
            records.payload(payload[at : at + length])
            for at, length, kind, _, _ in rows
            if kind == records.RecordType.CATALOG
        ]
        table = read_table("CATALOG", payload, self.histories, self.log_start)
        self._write_now(bytes(payload), rows[-1][3], table, now_ms)
        return changes

    def take_over(self, history: bytes, now_ms: int) -> int:
        """Open a history here and now. Returns where it begins. Doing it again changes nothing.

        Raises:
            DiskFull: there is no room; nothing has changed.
            DiskFailed: the log has stopped for good.
        """
        if self.histories and self.histories[0][0] == history:
            return self.histories[0][1]
        self.flush(now_ms)
        if self.full:
            raise DiskFull(path=self.segments[-1].name if self.segments else CATALOG_PREFIX)
        seq = self.last_seq + 1
        table = with_history(self.histories, history, seq), self.log_start
        self._write_now(records.encode_takeover(seq, now_ms, history), seq, table, now_ms)
        return seq

    def _write_now(
        self, data: bytes, last_seq: int, table: tuple[list[tuple[bytes, int]], int] | None, now_ms: int
    ) -> None:
        """Write one frame. With a `table` it goes into a new segment that has this in its head."""
        assert len(self._frame) == FRAME_BYTES
        before = self.last_seq, self.histories, self.log_start
        try:
            if table is not None and table != (self.histories, self.log_start):
                self.histories, self.log_start = table
                self._roll(len(data), now_ms)
            self._frame += data
            self.last_seq = last_seq
            self._write_frame(now_ms)
        except DiskFull:
            self.last_seq, self.histories, self.log_start = before
            self._frame = bytearray(FRAME_BYTES)
            raise
        except DiskFailed as problem:
            self.failed = problem
            raise

    # How far the disk is -----------------------------------------------------------------------

    def completed(self) -> int:
        """Ask the disk how far it is; returns `durable_seq`.

        Raises:
            DiskFailed: a write or sync failed. The log has stopped for good.
        """
        if self.failed is not None:
            raise self.failed
        try:
            done = self.disk.completed()
            while self._waiting and self._waiting[0][0] <= done:
                _, seq, self._durable_place = self._waiting.popleft()
                self.durable_seq = max(self.durable_seq, seq)
            self.units.trim()
            while self._replaced and self._replaced[0].ticket <= done:
                self._files.discard(self._replaced[0].name)
                del self._replaced[0]
        except DiskFailed as problem:
            self.failed = problem
            raise
        return self.durable_seq

    # The image -------------------------------------------------------------------------------

    @property
    def wants_rewrite(self) -> bool:
        """The log is large, and more than twice what the last image took; or starts have left many files."""
        large = self._written > max(REWRITE_BYTES_MIN, 2 * self._image_bytes)
        wanted = (large or len(self.segments) > REWRITE_FILES_MIN) and not self._replaced
        return wanted and self._may_rewrite() and self.last_seq != self._refused_at

    def _may_rewrite(self) -> bool:
        """In a group: everybody must have all of the log."""
        stable = self._files.stable
        return stable is None or stable.catalog >= self.last_seq

    def has_room_for(self, changes: int) -> bool:
        """Whether an image of so many changes can replace the log. Else it is not wanted until the log has grown."""
        # A sequence stays free: members to whom the log is copied are told the histories in its place.
        if changes <= self.last_seq - 1:
            return True
        self._refused_at = self.last_seq
        return False

    def rewrite(self, image: list[bytes], now_ms: int) -> None:
        """Replace the log by `image`, the whole wiring as changes, as of the last append.

        Without room nothing changes; nor if there are more changes in it than the log ever had.
        """
        if self.failed is not None:
            raise self.failed
        if not self._may_rewrite() or not self.has_room_for(len(image)):
            return
        try:
            self._rewrite(image, now_ms)
        except DiskFull:
            # The log as it is goes on; what it needs itself is another question (`flush`).
            for name in self.disk.list(f"tmp-{CATALOG_PREFIX}-"):
                self._files.remove_quietly(name)
        except DiskFailed as problem:
            self.failed = problem
            raise

    def _rewrite(self, image: list[bytes], now_ms: int) -> None:
        output = self._new_segment(0, now_ms)
        output.low, output.base_seq, output.compacted = self.segments[0].low, self.segments[0].base_seq, True
        output.generation = max(segment.generation for segment in self.segments) + 1
        following = self._new_segment(self._files.config.catalog_bytes, now_ms)
        following.base_seq, following.log_start = self.last_seq + 1, self.last_seq
        temporary = f"tmp-{output.name}"
        first = self.last_seq - len(image) + 1
        data = bytearray(output.encode_head())
        previous = output.crc
        frame = bytearray(FRAME_BYTES)
        for number, change in enumerate(image):
            frame += records.encode_catalog(first + number, now_ms, change)
            if len(frame) >= IMAGE_FRAME_BYTES or number == len(image) - 1:
                where = output.place(len(data))
                previous, _ = seal(memoryview(frame), where, now_ms, 0, previous, 0, output.survey)
                data += frame
                frame = bytearray(FRAME_BYTES)
        end = bytearray(FRAME_BYTES)
        seal(memoryview(end), output.place(len(data)), now_ms, 0, previous, END, Survey())
        data += end
        self.disk.write(temporary, 0, data)
        self.disk.sync(temporary)
        # The next segment exists before the image takes over, so that running out of room changes nothing.
        self._files.make(following)
        self.disk.rename(temporary, output.name)
        output.size = output.used = len(data)
        output.sealed = True
        self._replaced += self.segments
        self.segments = [output, following]
        self._previous = following.crc
        self._durable_place = following.place(0)
        self.durable_seq = self.end_seq = self.log_start = self.last_seq
        self.units.clear()
        self.units.lost(self.last_seq)
        # The image holds what is on its way or not even flushed, too.
        self._frame = bytearray(FRAME_BYTES)
        self._waiting.clear()
        self._image_bytes = len(data)
        self._written = len(data)
        self.full = False

    # Stop ------------------------------------------------------------------------------------

    def close(self, now_ms: int) -> None:
        """A clean end: write what there is and put an END frame behind it."""
        self.flush(now_ms)
        if self.segments and not self.segments[-1].sealed:
            self._end_segment(now_ms)

    @property
    def idle(self) -> bool:
        """Everything that was submitted is durable."""
        return not self._waiting

    @property
    def end(self) -> int:
        """The place where the log ends."""
        return self.segments[-1].place(self.segments[-1].used) if self.segments else 0
