"""Reading a log back: its segments in order, frame by frame, and the judgement where one is bad.

The frames of a log that were not synced when the machine died may be on the disk, half there, or not, each
for itself. So the log ends at its first bad frame, unless something proves that this place had been
durable: a good frame behind it that was sealed when the place was known to be durable, a segment behind it
that compaction wrote, or the end that a clean stop wrote down. Then the bad frame is damage to something
that was promised. It is never served; by `store.on_corruption` the start is refused, or the damage is
reported and reading goes on behind it.

Compaction syncs a whole segment before it gets its name, so there every bad frame is damage.

Segments that a checkpoint knows (`Segment.known`) are not read, but for the one in which it was made, which is
read from there on.

`Replay` only reads. `finish` then makes what it decided true on the disk: behind the cut nothing is left,
at the cut is an END frame, and all of it is synced. Invariant: a second replay after `finish` gives the
same frames, and so does one after a crash in the middle of it.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass, field

from tidemark.errors import CorruptRecord
from tidemark.model import records
from tidemark.ports import Disk
from tidemark.store.files import StoreFiles
from tidemark.store.frames import (
    BAD_CHAIN,
    BAD_CRC,
    END,
    ENDED,
    FRAME,
    FRAME_BYTES,
    MORE,
    OFFSET_BITS,
    PROBLEMS,
    Scan,
    Survey,
    find,
    merge,
    scan,
    seal,
)
from tidemark.store.segment import HEAD_BYTES, Segment, decode_head, parse_name

SUSPECTS_MAX = 1000


@dataclass(slots=True)
class Chunk:
    """Good frames that lie one behind the other."""

    segment: Segment
    offset: int
    data: memoryview
    frames: list[tuple[int, int]]
    previous: int
    """The checksum that the first frame names as that of the one before."""
    survey: Survey


@dataclass(slots=True)
class Damage:
    """Bytes that are not what was written."""

    path: str
    offset: int
    length: int
    problem: str
    suspects: list[tuple[int, int]] = field(default_factory=list)
    """(queue number, sequence) of messages that seem to have been there; not to be trusted."""
    queues: tuple[str, ...] = ()

    def __str__(self) -> str:
        return str(self.error())

    def error(self) -> CorruptRecord:
        return CorruptRecord(path=self.path, offset=self.offset, problem=self.problem, queues=self.queues)


@dataclass(slots=True)
class Torn:
    """A tail that was being written when the machine died. Nobody was promised what was in it."""

    path: str
    offset: int
    segments: int
    """Later segments that were only in the tail."""


class Replay:
    """One reading of a log, from its first frame to where it ends."""

    def __init__(
        self,
        disk: Disk,
        prefix: str,
        *,
        clean_end: int,
        skip: bool,
        chunk_bytes: int,
        queue_name: Callable[[int], str | None] = lambda _: None,
    ) -> None:
        self.segments: list[Segment] = []
        """Those that count, oldest first."""
        self.hidden: list[Segment] = []
        """Those that a compacted one stands for."""
        self.beyond: list[Segment] = []
        """Those behind the cut."""
        self.damage: list[Damage] = []
        self.torn: Torn | None = None
        self.cut: tuple[Segment, int, int] | None = None
        """(segment, offset, checksum before it) where the log ends without an END frame."""
        self.highest_id = 0
        self.frames = 0
        self.last_crc = 0
        """That of the frame before the end of the segment that a checkpoint knows in part."""
        self._disk = disk
        self._prefix = prefix
        self._clean_end = clean_end
        self._skip = skip
        self._chunk_bytes = chunk_bytes
        self._queue_name = queue_name
        self._durable_place = 0
        self._load()

    def _load(self) -> None:
        found = []
        for name in self._disk.list(f"{self._prefix}-"):
            named = parse_name(name)
            if named is None:
                continue
            self.highest_id = max(self.highest_id, named[1])
            try:
                segment = decode_head(name, self._disk.read(name, 0, HEAD_BYTES))
            except ValueError as problem:
                self._report(Damage(name, 0, self._disk.size(name), str(problem)))
                continue
            self.highest_id = max(self.highest_id, segment.high)
            segment.size = self._disk.size(name)
            found.append(segment)
        found.sort(key=lambda segment: (segment.id, segment.generation))
        for segment in found:
            if any(other.hides(segment) for other in found):
                self.hidden.append(segment)
            else:
                self.segments.append(segment)

    def resume(self, place: int, last_crc: int) -> None:
        """The log is known to be durable up to this place; the last frame there has this checksum."""
        self._durable_place = place
        self.last_crc = last_crc

    def _report(self, damage: Damage) -> None:
        self.damage.append(damage)
        if not self._skip:
            raise damage.error()

    # Frames ----------------------------------------------------------------------------------

    def chunks(self) -> Iterator[Chunk]:
        """The good frames, in the order they were written.

        Raises:
            CorruptRecord: something that had been durable is bad, and damage is not to be skipped.
        """
        for index, segment in enumerate(self.segments):
            if segment.known and segment.sealed:
                continue
            yield from self._segment(index, segment)
            if self.cut is not None:
                self.beyond = self.segments[index + 1 :]
                self.segments = self.segments[: index + 1]
                return

    def frames_of(self, index: int) -> Iterator[Chunk]:
        """The good frames of one segment only; `cut` is set if the log ends in it."""
        return self._segment(index, self.segments[index])

    def claimed(self, index: int) -> int:
        """The furthest place that a good frame of this segment knew to be durable, or one of those behind it."""
        claims = [self._claim(self.segments[index], HEAD_BYTES)]
        claims += [self._claim(later, HEAD_BYTES) for later in self.segments[index + 1 :]]
        return max(claims)

    def _segment(self, index: int, segment: Segment) -> Iterator[Chunk]:
        size = segment.size
        position, previous, chained, want = HEAD_BYTES, segment.crc, True, self._chunk_bytes
        if segment.known and segment.used > HEAD_BYTES:
            position, previous = segment.used, self.last_crc
        while True:
            data = self._disk.read(segment.name, position, min(want, size - position))
            found = scan(data, segment.place(position), previous, chained)
            if found.frames:
                yield self._chunk(segment, position, data, found)
                position += found.position
                previous, chained, want = found.crc, True, self._chunk_bytes
                segment.used = position
                if found.stop == ENDED:
                    segment.sealed = True
                    return
                if found.stop == MORE:
                    continue
            if found.stop == MORE and len(data) < found.need <= size - position:
                want = found.need
                continue
            if not self._was_durable(index, segment, position):
                self._cut(index, segment, position, previous, found)
                return
            resumed = self._damaged(segment, position, size, PROBLEMS[found.stop])
            if resumed is None:
                segment.sealed, segment.used = True, size
                return
            position, chained, want = resumed, False, self._chunk_bytes

    def _chunk(self, segment: Segment, offset: int, data: bytes, found: Scan) -> Chunk:
        self.frames += len(found.frames)
        previous: int = FRAME.unpack_from(data)[9]
        merge(found.survey, segment.survey)
        self._durable_place = max(self._durable_place, found.durable_place)
        return Chunk(
            segment, offset, memoryview(data)[: found.position], found.frames, previous, found.survey
        )

    # The judgement ---------------------------------------------------------------------------

    def _was_durable(self, index: int, segment: Segment, offset: int) -> bool:
        """Whether something proves that the frame which is bad here had been synced."""
        place = segment.place(offset)
        if segment.compacted or self._clean_end > place:
            return True
        for later in self.segments[index + 1 :]:
            if later.compacted:
                return True
        claims = [self._claim(segment, offset + 8)]
        claims += [self._claim(later, HEAD_BYTES) for later in self.segments[index + 1 :]]
        return max(claims) > place

    def _claim(self, segment: Segment, offset: int) -> int:
        """The furthest place that a good frame from here on knew to be durable."""
        furthest = 0
        data = self._disk.read(segment.name, offset, segment.size)
        at = find(data, 0, segment.place(offset))
        while at >= 0:
            fields = FRAME.unpack_from(data, at)
            furthest = max(furthest, fields[8])
            at = find(data, at + fields[2], segment.place(offset))
        return furthest

    def _cut(self, index: int, segment: Segment, offset: int, previous: int, found: Scan) -> None:
        self.cut = (segment, offset, previous)
        segment.used = offset
        later = self.segments[index + 1 :]
        begun = found.stop in (BAD_CRC, BAD_CHAIN) or (found.stop == MORE and found.need)
        if begun or any(self._disk.read(s.name, HEAD_BYTES, 4) == b"TDME" for s in later):
            self.torn = Torn(segment.name, offset, len(later))

    def _damaged(self, segment: Segment, offset: int, size: int, problem: str) -> int | None:
        """Report the damage; returns where to go on in this segment, None if nowhere."""
        rest = self._disk.read(segment.name, offset, size - offset)
        resumed = find(rest, 8, segment.place(offset))
        length = resumed if resumed > 0 else len(rest)
        suspects = list(_suspects(memoryview(rest)[:length]))
        numbers = sorted({queue for queue, _ in suspects})
        names = tuple(self._queue_name(number) or f"number {number}" for number in numbers)
        self._report(Damage(segment.name, offset, length, problem, suspects, names))
        return offset + resumed if resumed > 0 else None

    # Making it true ----------------------------------------------------------------------------

    def finish(self, files: StoreFiles, now_ms: int) -> None:
        """Let the disk say what this replay found: nothing behind the cut, an END frame at it, all synced."""
        for segment in reversed(self.beyond):
            files.discard(segment.name)
        for segment in self.hidden:
            files.discard(segment.name)
        # What is served from now on must be on the disk first: a process that was killed leaves frames that
        # are written but not synced.
        for segment in self.segments:
            if not segment.compacted and segment.id >= self._durable_place >> OFFSET_BITS:
                self._disk.sync(segment.name)
        if self.cut is not None:
            segment, offset, previous = self.cut
            if offset + FRAME_BYTES <= segment.size:
                end = bytearray(FRAME_BYTES)
                view = memoryview(end)
                seal(view, segment.place(offset), now_ms, segment.place(offset), previous, END, Survey())
                self._disk.write(segment.name, offset, end)
                segment.used = offset + FRAME_BYTES
            self._disk.sync(segment.name)
            segment.sealed = True


def _suspects(data: memoryview) -> Iterator[tuple[int, int]]:
    """What the records in damaged bytes seem to be, as far as they can be followed."""
    at = FRAME_BYTES
    given = 0
    while len(data) - at >= records.HEAD_BYTES and given < SUSPECTS_MAX:
        length, kind, _, targets, seq, *_ = records.HEAD.unpack_from(data, at)
        if length < records.HEAD_BYTES or length % 8 or length > len(data) - at:
            return
        if kind == records.RecordType.MESSAGE and records.HEAD_BYTES + 4 * targets <= length:
            for offset in range(targets):
                start = at + records.HEAD_BYTES + 4 * offset
                yield int.from_bytes(data[start : start + 4], "little"), seq + offset
                given += 1
        at += length
