"""Frames: the unit of write, sync, check and transaction in every log of the store.

A frame is a head of 64 bytes and the records that follow it (see `model/records.py`), little-endian:

     0        4        8        12       16          24          32          40
    +--------+--------+--------+--------+-----------+-----------+-----------+-----------+
    | magic  | crc32c | length | count  | first seq | last seq  | place     | sealed ms |
    +--------+--------+--------+--------+-----------+-----------+-----------+-----------+
    48          56         60      62      64
    +-----------+----------+-------+-------+---------------------------------+
    | durable   | previous | flags | spare | records ...                     |
    | place     | crc      |       |       |                                 |
    +-----------+----------+-------+-------+---------------------------------+

`crc32c` covers everything after itself. `place` is where the frame lies (`segment id << 36 | offset`), so
bytes that strayed or were left by an earlier life of the file do not pass. `previous crc` is that of the
frame before, or of the segment's head for the first one: frames form a chain that a lost write breaks.
`durable place` is how far the log was known to be on the disk when the frame was sealed: it tells a torn
tail, which nobody was promised, from damage to what was promised. A frame with the flag END and without
records is the last of its segment.

Sequences rise from record to record. A MESSAGE for n queues takes n of them; every other record takes one.

The compiled twin `_frames_c` has the same functions. Invariant: `scan` calls a frame good only if all that
is said above holds for it and every record lies within it.
"""

from __future__ import annotations

import struct
from collections.abc import Callable
from dataclasses import dataclass, field

from tidemark.model.records import HEAD, HEAD_BYTES, RANGES, TOMBSTONE, RecordType
from tidemark.model.wiring import FIRST_RESERVED_NUMBER

Buffer = bytes | bytearray | memoryview

FRAME = struct.Struct("<IIIIQQQqQIHH")
FRAME_BYTES = 64
assert FRAME.size == FRAME_BYTES
MAGIC = 0x454D4454  # "TDME"
_MAGIC = MAGIC.to_bytes(4, "little")

END = 1
"""Flag: the last frame of its segment."""

OFFSET_BITS = 36

# Why a scan stopped
MORE = 0
"""The data ends here, or in the middle of a frame."""
ENDED = 1
"""After the END frame."""
NO_FRAME = 2
BAD_CRC = 3
BAD_PLACE = 4
BAD_CHAIN = 5
BAD_RECORDS = 6

PROBLEMS = {
    MORE: "the file ends in the middle of a frame",
    NO_FRAME: "no frame where one should begin",
    BAD_CRC: "the checksum of the frame is wrong",
    BAD_PLACE: "the frame belongs to another place",
    BAD_CHAIN: "the frame does not follow the one before",
    BAD_RECORDS: "the records do not fill the frame as they should",
}

NO_SEQ = (1 << 64) - 1


@dataclass(slots=True)
class Survey:
    """What the records of some frames amount to."""

    records: int = 0
    messages: int = 0
    first_seq: int = NO_SEQ
    last_seq: int = 0
    settled_bytes: int = 0
    """Size of the SETTLED records."""
    counted_bytes: int = 0
    """Size of the COUNTED records."""
    settled_low: int = NO_SEQ
    """The lowest and highest sequence that SETTLED and COUNTED records speak of."""
    settled_high: int = 0
    tombstones: int = 0
    """Messages that say that a key is deleted, and their size."""
    tombstone_bytes: int = 0
    tombstone_high: int = 0
    """The highest sequence of one."""
    queue_max: int = 0
    """The highest number of a durable queue that is named; reserved numbers do not count."""

    @property
    def ends_bytes(self) -> int:
        """What may be needed although nobody points to it."""
        return self.settled_bytes + self.counted_bytes + self.tombstone_bytes


@dataclass(slots=True)
class Scan:
    """The good frames at the front of some bytes."""

    frames: list[tuple[int, int]] = field(default_factory=list)
    """(start, end) of each, the head included."""
    position: int = 0
    """Where the scan stopped."""
    crc: int = 0
    """That of the last good frame: what the next one must name."""
    stop: int = MORE
    need: int = 0
    """With MORE: how long the frame at `position` says it is; 0 if even its head is not all there."""
    durable_place: int = 0
    """The furthest place that a good frame knew to be durable."""
    survey: Survey = field(default_factory=Survey)


def _table() -> list[int]:
    table = []
    for byte in range(256):
        crc = byte
        for _ in range(8):
            crc = crc >> 1 ^ (0x82F63B78 if crc & 1 else 0)
        table.append(crc)
    return table


_TABLE = _table()


def crc32c(data: Buffer, crc: int = 0) -> int:
    """The Castagnoli checksum of `data`, going on from `crc`."""
    crc ^= 0xFFFFFFFF
    for byte in bytes(data):
        crc = _TABLE[(crc ^ byte) & 0xFF] ^ crc >> 8
    return crc ^ 0xFFFFFFFF


def walk(data: Buffer, start: int, end: int) -> list[tuple[int, int, int, int, int]]:
    """The records in these bytes: (offset, length, type, sequence, number of targets) of each.

    Raises:
        ValueError: they do not fill the bytes exactly, or one does not hold together.
    """
    rows = []
    before = 0
    view = memoryview(data)
    while start < end:
        if end - start < HEAD_BYTES:
            raise ValueError("a record is cut off")
        length, kind, _, targets, seq, _, _, body, exchange, key, keyed, props, _, spare, _, _ = (
            HEAD.unpack_from(view, start)
        )
        if length < HEAD_BYTES or length % 8 or length > end - start or seq <= before:
            raise ValueError("a record is longer than its frame or out of order")
        if kind == RecordType.MESSAGE:
            fits = targets > 0 and HEAD_BYTES + 4 * targets + exchange + key + keyed + props + body <= length
            before = seq + targets - 1
        else:
            fits = HEAD_BYTES + body <= length
            if fits and kind in (RecordType.SETTLED, RecordType.COUNTED):
                if body < 8:
                    fits = False
                else:
                    (count,) = struct.unpack_from("<I", view, start + HEAD_BYTES + 4)
                    width = 16 if kind == RecordType.COUNTED or spare & RANGES else 8
                    fits = 8 + width * count == body
            elif kind == RecordType.TAKEOVER:
                fits = fits and body == 16
            elif kind == RecordType.HISTORIES:
                fits = fits and body % 24 == 8
            elif kind != RecordType.CATALOG:
                fits = False
            targets = 0
            before = seq
        if not fits:
            raise ValueError("a record does not hold together")
        rows.append((start, length, kind, seq, targets))
        start += length
    return rows


def survey(data: Buffer, start: int, end: int, into: Survey) -> None:
    """Add up the records in these bytes.

    Raises:
        ValueError: as `walk`.
    """
    view = memoryview(data)
    for at, length, kind, seq, targets in walk(data, start, end):
        into.records += 1
        into.first_seq = min(into.first_seq, seq)
        into.last_seq = max(into.last_seq, seq + max(targets, 1) - 1)
        if kind == RecordType.MESSAGE:
            into.messages += 1
            numbers = struct.unpack_from(f"<{targets}I", view, at + HEAD_BYTES)
            durable = (number for number in numbers if number < FIRST_RESERVED_NUMBER)
            into.queue_max = max(into.queue_max, *durable, 0)
            if view[at + 5] & TOMBSTONE:
                into.tombstones += 1
                into.tombstone_bytes += length
                into.tombstone_high = max(into.tombstone_high, seq + targets - 1)
        elif kind in (RecordType.SETTLED, RecordType.COUNTED):
            if kind == RecordType.SETTLED:
                into.settled_bytes += length
            else:
                into.counted_bytes += length
            queue, count = struct.unpack_from("<II", view, at + HEAD_BYTES)
            if queue < FIRST_RESERVED_NUMBER:
                into.queue_max = max(into.queue_max, queue)
            pairs = kind == RecordType.COUNTED or view[at + 41] & RANGES
            numbers = struct.unpack_from(f"<{count * (2 if pairs else 1)}Q", view, at + HEAD_BYTES + 8)
            for index in range(0, len(numbers), 2 if pairs else 1):
                last = numbers[index]
                if kind == RecordType.SETTLED and pairs:
                    last += max(numbers[index + 1], 1) - 1
                into.settled_low = min(into.settled_low, numbers[index])
                into.settled_high = max(into.settled_high, last)


def seal(
    view: memoryview, place: int, now_ms: int, durable_place: int, previous: int, flags: int, into: Survey
) -> tuple[int, int]:
    """Write the head of the frame that fills `view`; its records are there already.

    The survey of its records is added to `into`. Returns (its checksum, its last sequence).

    Raises:
        ValueError: the records do not hold together; nothing was written.
    """
    found = Survey()
    survey(view, FRAME_BYTES, len(view), found)
    first = found.first_seq if found.records else 0
    head = [MAGIC, 0, len(view), found.records, first, found.last_seq, place, now_ms]
    view[:FRAME_BYTES] = FRAME.pack(*head, durable_place, previous, flags, 0)
    crc = crc32c(view[8:])
    view[4:8] = crc.to_bytes(4, "little")
    merge(found, into)
    return crc, found.last_seq


def merge(one: Survey, into: Survey) -> None:
    """Add one survey to another."""
    into.records += one.records
    into.messages += one.messages
    into.first_seq = min(into.first_seq, one.first_seq)
    into.last_seq = max(into.last_seq, one.last_seq)
    into.settled_bytes += one.settled_bytes
    into.counted_bytes += one.counted_bytes
    into.settled_low = min(into.settled_low, one.settled_low)
    into.settled_high = max(into.settled_high, one.settled_high)
    into.tombstones += one.tombstones
    into.tombstone_bytes += one.tombstone_bytes
    into.tombstone_high = max(into.tombstone_high, one.tombstone_high)
    into.queue_max = max(into.queue_max, one.queue_max)


def sift(
    data: Buffer,
    start: int,
    end: int,
    holds: Callable[[int, int], bool] | None,
    keeps_end: Callable[[int, int, bytes], bool],
    keeps_tombstone: Callable[[int, int], bool],
    frame: bytearray,
    moves: list[tuple[int, int, int]],
) -> None:
    """Copy the records in these bytes that are still needed to the end of `frame`.

    A MESSAGE is needed if one of its targets `holds(target, sequence)` it (None: none holds any); `moves` gets
    (target, sequence, offset in `frame`) of those that do. A tombstone is needed, too, by a target for which
    `keeps_tombstone(target, sequence)` says so. Targets that need it neither way are set to 0. Of other
    records SETTLED and COUNTED are needed if `keeps_end(type, sequence, record)` says so.

    Raises:
        ValueError: as `walk`.
    """
    view = memoryview(data)
    for at, length, kind, seq, targets in walk(data, start, end):
        record = bytes(view[at : at + length])
        offset = len(frame)
        if kind == RecordType.MESSAGE:
            tombstone = record[5] & TOMBSTONE
            if holds is None and not tombstone:
                continue
            unneeded = []
            for index, queue in enumerate(struct.unpack_from(f"<{targets}I", record, HEAD_BYTES)):
                if queue and holds is not None and holds(queue, seq + index):
                    moves.append((queue, seq + index, offset))
                elif not (queue and tombstone and keeps_tombstone(queue, seq + index)):
                    unneeded.append(offset + HEAD_BYTES + 4 * index)
            if len(unneeded) == targets:
                continue
            frame += record
            for where in unneeded:
                frame[where : where + 4] = bytes(4)
        elif kind in (RecordType.SETTLED, RecordType.COUNTED) and keeps_end(kind, seq, record):
            frame += record


def scan(data: Buffer, place: int, previous: int, chained: bool = True) -> Scan:
    """Read frames from the front of `data`, which lies at `place`, as far as they are good.

    `previous` is the checksum that the first frame must name as that of the one before; without
    `chained` it need not, which is how reading resumes behind damage.
    """
    view = memoryview(data)
    found = Scan(crc=previous)
    position, available = 0, len(view)
    while True:
        found.position = position
        if available - position < FRAME_BYTES:
            found.stop = MORE
            return found
        magic, crc, length, count, first, last, where, _, durable, before, flags, spare = FRAME.unpack_from(
            view, position
        )
        if magic != MAGIC or length < FRAME_BYTES or length % 8:
            found.stop = NO_FRAME
            return found
        if where != place + position:
            found.stop = BAD_PLACE
            return found
        if length > available - position:
            found.stop, found.need = MORE, length
            return found
        if crc32c(view[position + 8 : position + length]) != crc:
            found.stop = BAD_CRC
            return found
        if before != found.crc and (chained or found.frames):
            found.stop = BAD_CHAIN
            return found
        one = Survey()
        try:
            survey(view, position + FRAME_BYTES, position + length, one)
        except ValueError:
            found.stop = BAD_RECORDS
            return found
        named = one.first_seq if one.records else 0
        if (one.records, named, one.last_seq) != (count, first, last) or spare:
            found.stop = BAD_RECORDS
            return found
        merge(one, found.survey)
        found.frames.append((position, position + length))
        found.crc = crc
        found.durable_place = max(found.durable_place, durable)
        position += length
        if flags & END:
            found.position, found.stop = position, ENDED
            return found


def find(data: Buffer, start: int, place: int) -> int:
    """Where behind `start` the next frame that is whole and belongs there begins; -1 if none does.

    Frames that reach beyond `data` are not found.
    """
    view = memoryview(data)
    raw = bytes(view)
    at = raw.find(_MAGIC, start)
    while at >= 0:
        if at % 8 == 0 and len(view) - at >= FRAME_BYTES:
            _, crc, length, _, _, _, where, *_ = FRAME.unpack_from(view, at)
            if (
                where == place + at
                and FRAME_BYTES <= length <= len(view) - at
                and length % 8 == 0
                and crc32c(view[at + 8 : at + length]) == crc
            ):
                return at
        at = raw.find(_MAGIC, at + 1)
    return -1
