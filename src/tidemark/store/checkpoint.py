"""Checkpoints: the index as it was at one place of the journal, so that a start reads only what came after it.

    ckpt-<place, 16 hex digits>

A checkpoint is derived: the journal stays the truth, and the file may be removed at any time. It holds, for the
journal up to its place, the table of segments with their extents, and the entries of every durable queue and
stream as they lie in memory (`ports.Image`), little-endian:

     0          8         10      12    16           32      40         48       56       64       68     72
    +----------+---------+-------+-----+------------+-------+----------+--------+--------+--------+------+
    | TIDECKPT | version | order | crc | store uuid | place | next seq | tables | tables | tables | last |
    |          |         |       |     |            |       |          | offset | length | crc    | crc  |
    +----------+---------+-------+-----+------------+-------+----------+--------+--------+--------+------+
    4096     the parts of queues and streams, each from a multiple of 64 on
    tables   segments · their extents · queues and streams · lengths of parts · checksums of blocks

`crc` covers the head, the tables have their own, and the parts are checked in blocks of 1 MiB. `last crc` is that of
the frame before the place. Extents keep their numbers over the restart, so what the parts say about places stays
true.

It is written apart (`ports.Apart`): by a child process that has a picture of the memory, while the loop goes on. It
gets its name when all of the journal up to its place is durable. Taking it up at a start:

* a segment of the table that is there unchanged is not read: its extents are known. The last one is read from
  the checkpoint's place on.
* every other segment is read whole. Of records that the checkpoint has, only the new place counts: compaction
  has moved them. All later ones are applied.
* an entry whose extent is in no segment any more, and that was not moved, is of a message that ended: else
  compaction would have kept it. It is dropped.

Anything else about it that is not right makes it worthless: the whole journal is read.

Invariant: a start with a checkpoint gives the same queues and streams as one without.
"""

from __future__ import annotations

import struct
from collections.abc import Callable, Iterator, Sequence
from dataclasses import astuple, dataclass, field, fields
from typing import TYPE_CHECKING, Any

from tidemark.errors import DiskFull, StoreError
from tidemark.model.arena import JOURNAL
from tidemark.ports import Apart, Disk, Image, Pictured, Running, Scratch
from tidemark.store.frames import OFFSET_BITS, Survey, crc32c
from tidemark.store.names import CHECKPOINT_PREFIX
from tidemark.store.pager import Place
from tidemark.store.segment import Barrier, Segment

if TYPE_CHECKING:
    from tidemark.store.journal import Journal

PREFIX = CHECKPOINT_PREFIX
HEAD = struct.Struct("<8sHHI16sQQQQII")
HEAD_BYTES = 4096
assert HEAD.size == 72
MAGIC = b"TIDECKPT"
VERSION = 2
ORDER = 0x0102
_CRC_AT = 12

SEGMENT = struct.Struct(f"<QIIIIQQQ{len(fields(Survey))}Q")
EXTENT = struct.Struct("<IIIIQQ")
TARGET = struct.Struct("<II16s")
COUNTS = struct.Struct("<QQQQQ")

SEALED = 1
DAMAGED = 2

ALIGN = 64
BLOCK_BYTES = 1 << 20
SYNC_BYTES = 8 << 20
"""How much is written between syncs: one large sync would hold up the journal's."""
ROOM_LEFT = 4
"""As many segments must still find room on the disk when a checkpoint is written."""
IDLE_MS = 1000
"""A journal that nothing went into for so long is caught up with."""


class Unusable(Exception):
    """Why a checkpoint cannot be used."""


@dataclass(slots=True)
class SegmentEntry:
    """What the table says of one segment."""

    id: int
    generation: int
    crc: int
    used: int
    size: int
    sealed: bool
    damaged: bool
    idle_bytes: int
    survey: Survey
    extents: list[tuple[int, int, int, int, int, int]] = field(default_factory=list)
    """(number, used, previous checksum, ends, offset, last sequence)"""


@dataclass(slots=True)
class Checkpoint:
    """One that was read and found whole."""

    name: str
    place: int
    next_seq: int
    last_crc: int
    segments: list[SegmentEntry]
    targets: list[tuple[int, bytes, list[memoryview]]]
    """(number, layout, parts)"""


def name_of(place: int) -> str:
    return f"{PREFIX}{place:016x}"


# Writing -----------------------------------------------------------------------------------


def write(disk: Scratch, name: str, journal: Journal, image: Image, place: int) -> int:
    """Write a checkpoint of this moment under this name, synced. Returns its size.

    Raises:
        DiskFull: there is no room for it and the next segments.
    """
    targets = [(number, target.LAYOUT, target.dump()) for number, target in image.targets()]
    need = sum(memoryview(part).nbytes for _, _, parts in targets for part in parts)
    if disk.free_bytes() < need + ROOM_LEFT * journal.config.segment_bytes:
        # The journal needs the room more.
        raise DiskFull(path=name)
    disk.write(name, 0, bytes(HEAD_BYTES))
    sink = _Sink(disk, name)
    sizes: list[int] = []
    for _, _, parts in targets:
        for part in parts:
            view = memoryview(part).cast("B")
            sizes.append(len(view))
            sink.add(view)
    sink.finish()
    tables = _tables(journal, targets, sizes, sink.checksums)
    disk.write(name, sink.position, tables)
    head = bytearray(HEAD_BYTES)
    # In a cluster another member may give the numbers behind the last record again, to messages that come later.
    next_seq = journal.end_seq + 1 if journal.shared else journal.arena.next_seq
    facts = (place, next_seq, sink.position, len(tables), crc32c(tables), journal.last_crc)
    HEAD.pack_into(head, 0, MAGIC, VERSION, ORDER, 0, journal.files.store, *facts)
    struct.pack_into("<I", head, _CRC_AT, crc32c(head))
    disk.write(name, 0, head)
    disk.sync(name)
    return sink.position + len(tables)


class _Sink:
    """Gathers parts into blocks, checksums them and writes them."""

    def __init__(self, disk: Scratch, name: str) -> None:
        self.checksums: list[int] = []
        self.position = HEAD_BYTES
        self._disk = disk
        self._name = name
        self._block = bytearray()
        self._unsynced = 0

    def add(self, view: memoryview) -> None:
        at = 0
        while at < len(view):
            room = BLOCK_BYTES - len(self._block)
            piece = view[at : at + room]
            at += len(piece)
            if len(piece) == BLOCK_BYTES:
                self._write(piece)
                continue
            self._block += piece
            if len(self._block) == BLOCK_BYTES:
                self._flush()
        # A block is a multiple of the alignment, so this never goes over its end.
        self._block += bytes(-len(self._block) % ALIGN)
        if len(self._block) == BLOCK_BYTES:
            self._flush()

    def finish(self) -> None:
        if self._block:
            self._flush()

    def _flush(self) -> None:
        self._write(self._block)
        self._block = bytearray()

    def _write(self, data: bytearray | memoryview) -> None:
        self.checksums.append(crc32c(data))
        self._disk.write(self._name, self.position, data)
        self.position += len(data)
        self._unsynced += len(data)
        if self._unsynced >= SYNC_BYTES:
            self._disk.sync(self._name)
            self._unsynced = 0


def _tables(
    journal: Journal,
    targets: Sequence[tuple[int, bytes, Sequence[Any]]],
    sizes: list[int],
    checksums: list[int],
) -> bytes:
    segments, extents = bytearray(), bytearray()
    places = journal.pager.places
    count = 0
    for segment in journal.segments:
        flags = (SEALED if segment.sealed else 0) | (DAMAGED if segment.damaged else 0)
        facts = (segment.id, segment.generation, segment.crc, flags, len(segment.extents))
        segments += SEGMENT.pack(
            *facts, segment.used, segment.size, segment.idle_bytes, *astuple(segment.survey)
        )
        for number in segment.extents:
            place = places[number]
            where = place.offset, place.last_seq
            extents += EXTENT.pack(number, place.used, place.previous, place.ends, *where)
            count += 1
    rows = b"".join(TARGET.pack(number, len(parts), layout) for number, layout, parts in targets)
    counts = COUNTS.pack(len(journal.segments), count, len(targets), len(sizes), len(checksums))
    return b"".join(
        (
            counts,
            segments,
            extents,
            rows,
            struct.pack(f"<{len(sizes)}Q", *sizes),
            struct.pack(f"<{len(checksums)}I", *checksums),
        )
    )


# Reading -----------------------------------------------------------------------------------


def read(disk: Disk, name: str, store: bytes) -> Checkpoint:
    """Read and check all of it.

    Raises:
        Unusable: it is not what was written, or not ours.
    """
    data = disk.mapped(name)
    if len(data) < HEAD_BYTES:
        raise Unusable("it is shorter than its head")
    magic, version, order, crc, owner, place, next_seq, at, size, tables_crc, last_crc = HEAD.unpack_from(
        data
    )
    plain = bytearray(data[:HEAD_BYTES])
    struct.pack_into("<I", plain, _CRC_AT, 0)
    if magic != MAGIC or crc32c(plain) != crc:
        raise Unusable("the checksum of the head is wrong")
    if (version, order) != (VERSION, ORDER):
        raise Unusable(f"format version {version} is not ours ({VERSION})")
    if owner != store or name != name_of(place):
        raise Unusable("it belongs to another store or place")
    if at + size != len(data) or crc32c(data[at:]) != tables_crc:
        raise Unusable("the checksum of the tables is wrong")
    return _Reader(data, at, Checkpoint(name, place, next_seq, last_crc, [], [])).read()


class _Reader:
    def __init__(self, data: memoryview, tables: int, found: Checkpoint) -> None:
        self.data = data
        self.tables = tables
        self.at = tables
        self.found = found

    def read(self) -> Checkpoint:
        segments, extents, targets, parts, blocks = self._rows(COUNTS, 1).__next__()
        table = list(self._rows(SEGMENT, segments))
        rows = self._rows(EXTENT, extents)
        for number, generation, crc, flags, count, used, size, idle, *survey in table:
            self.found.segments.append(
                SegmentEntry(
                    number,
                    generation,
                    crc,
                    used,
                    size,
                    bool(flags & SEALED),
                    bool(flags & DAMAGED),
                    idle,
                    Survey(*survey),
                    [next(rows) for _ in range(count)],
                )
            )
        owners = list(self._rows(TARGET, targets))
        sizes = [size for (size,) in self._rows(struct.Struct("<Q"), parts)]
        checksums = [crc for (crc,) in self._rows(struct.Struct("<I"), blocks)]
        self._check(checksums)
        self._cut(owners, sizes)
        return self.found

    def _rows(self, row: struct.Struct, count: int) -> Iterator[Any]:
        start = self.at
        self.at += row.size * count
        return row.iter_unpack(self.data[start : self.at])

    def _check(self, checksums: list[int]) -> None:
        at = HEAD_BYTES
        for crc in checksums:
            end = min(at + BLOCK_BYTES, self.tables)
            if crc32c(self.data[at:end]) != crc:
                raise Unusable(f"the checksum of the block at {at} is wrong")
            at = end
        assert at == self.tables

    def _cut(self, owners: list[tuple[int, int, bytes]], sizes: list[int]) -> None:
        at = HEAD_BYTES
        lengths = iter(sizes)
        for number, count, layout in owners:
            parts = []
            for _ in range(count):
                size = next(lengths)
                parts.append(self.data[at : at + size])
                at += size + -size % ALIGN
            self.found.targets.append((number, layout, parts))


# Taking it up ------------------------------------------------------------------------------


class Adoption:
    """A checkpoint at a start: which segments need not be read, and the entries that it brings."""

    def __init__(self, checkpoint: Checkpoint, journal: Journal, image: Image) -> None:
        self.checkpoint = checkpoint
        self.last_seq = checkpoint.next_seq - 1
        """Records up to here are in the checkpoint."""
        self._journal = journal
        self._targets: dict[int, Pictured] = dict(image.targets())
        self._restored: list[int] = []
        self._missing: set[int] = set()

    def take_up(self, segments: list[Segment]) -> None:
        """Have the extents and entries of the checkpoint; tell the segments that are as they were.

        Raises:
            Unusable: it does not fit the journal; nothing has changed.
        """
        there = self._match(segments)
        try:
            self._restore_extents(there)
            self._load()
        except Exception as problem:
            self._undo()
            raise Unusable(f"it cannot be loaded ({type(problem).__name__}: {problem})") from problem
        for segment, entry in there.values():
            segment.sealed = entry.sealed
            segment.used = entry.used
            segment.damaged = entry.damaged
            segment.idle_bytes = entry.idle_bytes
            segment.survey = entry.survey
            segment.known = True
            for number, used, previous, ends, offset, last_seq in entry.extents:
                place = Place(segment, offset, used, previous, last_seq, ends=bool(ends))
                self._journal.pager.add(number, place, resident=False)
                segment.extents.append(number)

    def _match(self, segments: list[Segment]) -> dict[int, tuple[Segment, SegmentEntry]]:
        """The segments of the journal that the table knows and that have not changed."""
        place = self.checkpoint.place
        if not any(
            segment.id >= place >> OFFSET_BITS or segment.high >= place >> OFFSET_BITS for segment in segments
        ):
            raise Unusable("the journal ends before it")
        there: dict[int, tuple[Segment, SegmentEntry]] = {}
        on_disk = {(segment.id, segment.generation): segment for segment in segments}
        for entry in self.checkpoint.segments:
            segment = on_disk.get((entry.id, entry.generation))
            if segment is None:
                continue
            if segment.crc != entry.crc or segment.size < entry.used:
                raise Unusable(f"{segment.name} is not the file that it was")
            there[entry.id] = (segment, entry)
        return there

    def _restore_extents(self, there: dict[int, tuple[Segment, SegmentEntry]]) -> None:
        arena = self._journal.arena
        numbers = [
            (number, used, entry.id in there)
            for entry in self.checkpoint.segments
            for number, used, *_ in entry.extents
        ]
        for number, used, is_there in sorted(numbers):
            arena.restore_extent(number, JOURNAL, used)
            self._restored.append(number)
            if not is_there:
                self._missing.add(number)

    def _load(self) -> None:
        for number, layout, parts in self.checkpoint.targets:
            target = self._targets.get(number)
            # A queue that was deleted since is in the checkpoint and not in the catalog.
            if target is not None:
                if target.LAYOUT.ljust(16, b"\0") != layout:
                    raise ValueError(f"its layout is {layout!r}")
                target.load(parts)

    def _undo(self) -> None:
        for target in self._targets.values():
            target.load([])
        for number in self._restored:
            self._journal.arena.free_extent(number)

    def finish(self) -> int:
        """The rest of the journal was read: entries whose segments are gone end. Returns how many."""
        arena = self._journal.arena
        dropped = 0
        if any(arena.extent(number).live for number in self._missing):
            dropped = sum(target.drop_missing(self._missing) for target in self._targets.values())
        arena.emptied.clear()
        for number in self._missing:
            arena.free_extent(number)
        return dropped


# When --------------------------------------------------------------------------------------


class Done:
    """Fits `ports.Running`."""

    def __init__(self, went_well: bool) -> None:
        self._went_well = went_well

    def poll(self) -> bool | None:
        return self._went_well

    def stop(self) -> None:
        pass


class Inline:
    """Fits `ports.Apart`: does the job here and now."""

    def __init__(self, disk: Disk) -> None:
        self._disk = disk

    def run(self, job: Callable[[Scratch], None]) -> Done:
        try:
            job(self._disk)
        except StoreError:
            return Done(False)
        return Done(True)


@dataclass(slots=True)
class _Begun:
    running: Running
    place: int
    bytes: int
    barrier: Barrier
    began_ms: int


class Checkpointer:
    """Decides when a checkpoint is made, and lets it take effect."""

    def __init__(self, journal: Journal, apart: Apart) -> None:
        self.made = 0
        self.failed = 0
        self.wait_ms = journal.config.checkpoint_wait_ms
        """From the beginning of one to the next, at least; while the journal is written to, twice as long as one takes."""
        self.took_ms = 0
        """How long the last one took."""
        self._journal = journal
        self._apart = apart
        self._begun: _Begun | None = None
        self._bytes = 0
        """How much had been written to the journal when the last one that was made was begun."""
        self._begun_ms = 0

    @property
    def temporary(self) -> str:
        return f"tmp-{PREFIX}next"

    def started(self, replayed_bytes: int, now_ms: int) -> None:
        """The journal was recovered: so much of it is in no checkpoint."""
        self._bytes = -replayed_bytes
        self._begun_ms = now_ms

    def step(self, image: Image, now_ms: int) -> bool | None:
        """At the end of a turn in which every end was written: begin one if it is due, or see to the last.

        Returns whether one went well that has come to its end; None if none has.
        """
        if self._begun is not None:
            return self._look(now_ms)
        if self._is_due(now_ms):
            self._begin(image, now_ms)
        return None

    def _is_due(self, now_ms: int) -> bool:
        journal = self._journal
        new_bytes = journal.bytes_written - self._bytes
        limit = journal.config.checkpoint_bytes
        if not limit or new_bytes < limit // 16 or journal.full or journal.moving:
            return False
        passed_ms = now_ms - self._begun_ms
        if 0 <= passed_ms < self.wait_ms:
            return False
        if now_ms - journal.written_ms >= IDLE_MS:
            return True
        return new_bytes >= limit and not 0 <= passed_ms < 2 * self.took_ms

    def _begin(self, image: Image, now_ms: int) -> None:
        journal = self._journal
        place = journal.seal_for_checkpoint(now_ms)
        if place is None:
            return
        self._begun_ms = now_ms
        disk, name = journal.files.disk, self.temporary
        if disk.exists(name):
            disk.remove(name)
        barrier = Barrier(0, journal.files.last_ticket, journal.ends)

        def job(scratch: Scratch) -> None:
            write(scratch, name, journal, image, place)

        self._begun = _Begun(self._apart.run(job), place, journal.bytes_written, barrier, now_ms)

    def _look(self, now_ms: int) -> bool | None:
        """Let it take effect when it is written and the journal is durable up to its place."""
        begun = self._begun
        assert begun is not None
        went_well = begun.running.poll()
        if went_well is None or (went_well and not self._journal.passed(begun.barrier)):
            return None
        self._begun = None
        self.took_ms = max(0, now_ms - begun.began_ms)
        files = self._journal.files
        if not went_well:
            self.failed += 1
            if files.disk.exists(self.temporary):
                files.remove_quietly(self.temporary)
            return False
        self._name(begun.place, begun.bytes)
        return True

    def _name(self, place: int, contained_bytes: int) -> None:
        files = self._journal.files
        self.made += 1
        self._bytes = contained_bytes
        name = name_of(place)
        files.disk.rename(self.temporary, name)
        for older in files.disk.list(PREFIX):
            if older != name:
                files.remove_quietly(older)

    def abandon(self) -> None:
        """Nobody waits for what is being written any more."""
        if self._begun is not None:
            self._begun.running.stop()
            self._begun = None

    def at_the_end(self, image: Image) -> None:
        """A clean stop, everything is durable: let the next start be quick."""
        self.abandon()
        journal = self._journal
        limit = journal.config.checkpoint_bytes
        if not limit or journal.bytes_written - self._bytes < limit // 16 or journal.moving:
            return
        if not journal.is_stable(journal.ends):
            return
        disk = journal.files.disk
        try:
            if disk.exists(self.temporary):
                disk.remove(self.temporary)
            write(disk, self.temporary, journal, image, journal.end)
        except DiskFull:
            if disk.exists(self.temporary):
                journal.files.remove_quietly(self.temporary)
            return
        self._name(journal.end, journal.bytes_written)
