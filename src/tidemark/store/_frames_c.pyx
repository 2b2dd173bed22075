"""Compiled twin of `_frames_py`: same names, same answers, same errors."""

from cpython.bytearray cimport PyByteArray_AS_STRING
from libc.stdint cimport int64_t, uint8_t, uint16_t, uint32_t, uint64_t
from libc.string cimport memcpy, memset

from tidemark.store._frames_py import Scan, Survey


cdef extern from "crc32c.h":
    void tidemark_crc_prepare()
    uint32_t tidemark_crc32c(uint32_t crc, const uint8_t *data, size_t size) noexcept nogil
    uint32_t tidemark_crc32c_by_table(uint32_t crc, const uint8_t *data, size_t size) noexcept nogil


cdef extern from *:
    """
    #include <string.h>
    extern void *memmem(const void *, size_t, const void *, size_t);
    """
    void *memmem(const void *, size_t, const void *, size_t) noexcept nogil


tidemark_crc_prepare()

cdef uint32_t FIRST_RESERVED_NUMBER = 0x7FFFFF00

cdef enum:
    FRAME_BYTES = 64
    HEAD_BYTES = 48
    MAGIC = 0x454D4454
    FLAG_END = 1
    RANGES = 1
    TOMBSTONE = 2
    MESSAGE = 1
    SETTLED = 2
    COUNTED = 3
    TAKEOVER = 4
    CATALOG = 5
    HISTORIES = 6
    MORE = 0
    ENDED = 1
    NO_FRAME = 2
    BAD_CRC = 3
    BAD_PLACE = 4
    BAD_CHAIN = 5
    BAD_RECORDS = 6

    ALONE_BYTES = 1 << 16               # of so many the checksum is made without the GIL


cdef packed struct FrameHead:
    uint32_t magic
    uint32_t crc
    uint32_t length
    uint32_t count
    uint64_t first_seq
    uint64_t last_seq
    uint64_t place
    int64_t sealed_ms
    uint64_t durable_place
    uint32_t previous
    uint16_t flags
    uint16_t spare


cdef packed struct RecordHead:
    uint32_t length
    uint8_t type
    uint8_t flags
    uint16_t targets
    uint64_t seq
    int64_t accepted_ms
    uint32_t ttl_ms
    uint32_t body_len
    uint8_t exchange_len
    uint8_t key_len
    uint16_t keyed_len
    uint32_t properties_len
    uint8_t priority
    uint8_t spare
    uint16_t spare2
    uint32_t spare3


cdef struct Sums:
    uint64_t records
    uint64_t messages
    uint64_t first_seq
    uint64_t last_seq
    uint64_t settled_bytes
    uint64_t counted_bytes
    uint64_t settled_low
    uint64_t settled_high
    uint64_t tombstones
    uint64_t tombstone_bytes
    uint64_t tombstone_high
    uint32_t queue_max


cdef void _nothing(Sums *sums) noexcept nogil:
    memset(sums, 0, sizeof(Sums))
    sums.first_seq = sums.settled_low = <uint64_t>0xFFFFFFFFFFFFFFFF


cdef void _merge(Sums *one, Sums *into) noexcept nogil:
    into.records += one.records
    into.messages += one.messages
    into.settled_bytes += one.settled_bytes
    into.counted_bytes += one.counted_bytes
    if one.first_seq < into.first_seq:
        into.first_seq = one.first_seq
    if one.last_seq > into.last_seq:
        into.last_seq = one.last_seq
    if one.settled_low < into.settled_low:
        into.settled_low = one.settled_low
    if one.settled_high > into.settled_high:
        into.settled_high = one.settled_high
    into.tombstones += one.tombstones
    into.tombstone_bytes += one.tombstone_bytes
    if one.tombstone_high > into.tombstone_high:
        into.tombstone_high = one.tombstone_high
    if one.queue_max > into.queue_max:
        into.queue_max = one.queue_max


cdef int _add(Sums *sums, into) except -1:
    into.records += sums.records
    into.messages += sums.messages
    into.settled_bytes += sums.settled_bytes
    into.counted_bytes += sums.counted_bytes
    into.first_seq = min(into.first_seq, sums.first_seq)
    into.last_seq = max(into.last_seq, sums.last_seq)
    into.settled_low = min(into.settled_low, sums.settled_low)
    into.settled_high = max(into.settled_high, sums.settled_high)
    into.tombstones += sums.tombstones
    into.tombstone_bytes += sums.tombstone_bytes
    into.tombstone_high = max(into.tombstone_high, sums.tombstone_high)
    into.queue_max = max(into.queue_max, sums.queue_max)
    return 0


cdef uint64_t _record(const uint8_t *at, uint64_t room, uint64_t before, uint64_t *last) noexcept nogil:
    """The length of the record at `at`, 0 if it does not hold together; `last` becomes its last sequence."""
    cdef const RecordHead *head = <const RecordHead *>at
    cdef uint64_t size
    cdef uint32_t count
    if room < HEAD_BYTES:
        return 0
    if head.length < HEAD_BYTES or head.length % 8 or head.length > room or head.seq <= before:
        return 0
    if head.type == MESSAGE:
        size = HEAD_BYTES + 4 * <uint64_t>head.targets + head.exchange_len + head.key_len
        size += <uint64_t>head.keyed_len + head.properties_len + head.body_len
        if head.targets == 0 or size > head.length:
            return 0
        last[0] = head.seq + head.targets - 1
        return head.length
    if HEAD_BYTES + <uint64_t>head.body_len > head.length:
        return 0
    if head.type == SETTLED or head.type == COUNTED:
        if head.body_len < 8:
            return 0
        memcpy(&count, at + HEAD_BYTES + 4, 4)
        size = 16 if head.type == COUNTED or head.spare & RANGES else 8
        if 8 + size * count != head.body_len:
            return 0
    elif head.type == TAKEOVER:
        if head.body_len != 16:
            return 0
    elif head.type == HISTORIES:
        if head.body_len % 24 != 8:
            return 0
    elif head.type != CATALOG:
        return 0
    last[0] = head.seq
    return head.length


cdef bint _survey(const uint8_t *data, uint64_t size, Sums *sums) noexcept nogil:
    """Add up the records that fill these bytes; False if they do not."""
    cdef uint64_t at = 0, length, seq = 0, number, extra, i
    cdef uint32_t queue, count
    cdef const RecordHead *head
    cdef bint pairs
    while at < size:
        length = _record(data + at, size - at, seq, &seq)
        if length == 0:
            return False
        head = <const RecordHead *>(data + at)
        sums.records += 1
        if head.seq < sums.first_seq:
            sums.first_seq = head.seq
        if seq > sums.last_seq:
            sums.last_seq = seq
        if head.type == MESSAGE:
            sums.messages += 1
            for i in range(head.targets):
                memcpy(&queue, data + at + HEAD_BYTES + 4 * i, 4)
                if sums.queue_max < queue < FIRST_RESERVED_NUMBER:
                    sums.queue_max = queue
            if head.flags & TOMBSTONE:
                sums.tombstones += 1
                sums.tombstone_bytes += length
                if seq > sums.tombstone_high:
                    sums.tombstone_high = seq
        elif head.type == SETTLED or head.type == COUNTED:
            if head.type == SETTLED:
                sums.settled_bytes += length
            else:
                sums.counted_bytes += length
            memcpy(&queue, data + at + HEAD_BYTES, 4)
            memcpy(&count, data + at + HEAD_BYTES + 4, 4)
            if sums.queue_max < queue < FIRST_RESERVED_NUMBER:
                sums.queue_max = queue
            pairs = head.type == COUNTED or head.spare & RANGES
            for i in range(count):
                memcpy(&number, data + at + HEAD_BYTES + 8 + (16 if pairs else 8) * i, 8)
                if number < sums.settled_low:
                    sums.settled_low = number
                if pairs and head.type == SETTLED:
                    memcpy(&extra, data + at + HEAD_BYTES + 16 + 16 * i, 8)
                    if extra > 1:
                        number += extra - 1
                if number > sums.settled_high:
                    sums.settled_high = number
        at += length
    return True


def crc32c(const uint8_t[::1] data not None, uint32_t crc=0):
    """The Castagnoli checksum of `data`, going on from `crc`."""
    cdef const uint8_t *start = &data[0] if data.shape[0] else NULL
    cdef Py_ssize_t size = data.shape[0]
    if size >= ALONE_BYTES:
        with nogil:
            crc = tidemark_crc32c(crc, start, size)
        return crc
    return tidemark_crc32c(crc, start, size)


def crc32c_by_table(const uint8_t[::1] data not None, uint32_t crc=0):
    """The same for processors without the instruction; tests compare the two."""
    return tidemark_crc32c_by_table(crc, &data[0] if data.shape[0] else NULL, data.shape[0])


def walk(const uint8_t[::1] data not None, Py_ssize_t start, Py_ssize_t end):
    """The records in these bytes: (offset, length, type, sequence, number of targets) of each."""
    cdef list rows = []
    cdef uint64_t seq = 0, length
    cdef const RecordHead *head
    if end > data.shape[0] or start < 0:
        raise ValueError("a record is cut off")
    while start < end:
        length = _record(&data[start], end - start, seq, &seq)
        if length == 0:
            raise ValueError("a record does not hold together")
        head = <const RecordHead *>&data[start]
        rows.append((start, length, head.type, head.seq, head.targets if head.type == MESSAGE else 0))
        start += length
    return rows


def survey(const uint8_t[::1] data not None, Py_ssize_t start, Py_ssize_t end, into):
    """Add up the records in these bytes."""
    cdef Sums sums
    _nothing(&sums)
    if end > data.shape[0] or start < 0:
        raise ValueError("a record is cut off")
    if start < end and not _survey(&data[start], end - start, &sums):
        raise ValueError("a record does not hold together")
    _add(&sums, into)


def seal(
    uint8_t[::1] view not None, uint64_t place, int64_t now_ms, uint64_t durable_place,
    uint32_t previous, uint16_t flags, into,
):
    """Write the head of the frame that fills `view`; its records are there already."""
    cdef Sums sums
    cdef FrameHead *head
    cdef Py_ssize_t length = view.shape[0]
    _nothing(&sums)
    if length < FRAME_BYTES or not _survey(&view[0] + FRAME_BYTES, length - FRAME_BYTES, &sums):
        raise ValueError("a record does not hold together")
    head = <FrameHead *>&view[0]
    head.magic = MAGIC
    head.length = length
    head.count = sums.records
    head.first_seq = sums.first_seq if sums.records else 0
    head.last_seq = sums.last_seq
    head.place = place
    head.sealed_ms = now_ms
    head.durable_place = durable_place
    head.previous = previous
    head.flags = flags
    head.spare = 0
    head.crc = tidemark_crc32c(0, &view[0] + 8, length - 8)
    _add(&sums, into)
    return head.crc, sums.last_seq


def sift(
    const uint8_t[::1] data not None, Py_ssize_t start, Py_ssize_t end, holds, keeps_end,
    keeps_tombstone, bytearray frame not None, list moves not None,
):
    """Copy the records in these bytes that are still needed to the end of `frame`."""
    cdef uint64_t seq = 0, length
    cdef const RecordHead *head
    cdef uint32_t queue, index, kept
    cdef Py_ssize_t offset
    cdef const uint8_t *at
    cdef bint tombstone
    cdef list unneeded
    if end > data.shape[0] or start < 0:
        raise ValueError("a record is cut off")
    # A record that does not hold together is found before anything is copied.
    cdef Py_ssize_t look = start
    while look < end:
        length = _record(&data[look], end - look, seq, &seq)
        if length == 0:
            raise ValueError("a record does not hold together")
        look += length
    while start < end:
        at = &data[start]
        head = <const RecordHead *>at
        start += head.length
        if head.type == MESSAGE:
            tombstone = head.flags & TOMBSTONE
            if holds is None and not tombstone:
                continue
            kept = 0
            unneeded = None
            offset = len(frame)
            for index in range(head.targets):
                memcpy(&queue, at + HEAD_BYTES + 4 * index, 4)
                if queue and holds is not None and holds(queue, head.seq + index):
                    moves.append((queue, head.seq + index, offset))
                    kept += 1
                elif queue and tombstone and keeps_tombstone(queue, head.seq + index):
                    kept += 1
                elif unneeded is None:
                    unneeded = [index]
                else:
                    unneeded.append(index)
            if kept == 0:
                continue
            frame += at[:head.length]
            if unneeded is not None:
                for index in unneeded:
                    memset(<uint8_t *>PyByteArray_AS_STRING(frame) + offset + HEAD_BYTES + 4 * index, 0, 4)
        elif head.type == SETTLED or head.type == COUNTED:
            record = at[:head.length]
            if keeps_end(head.type, head.seq, record):
                frame += record


def scan(const uint8_t[::1] data not None, uint64_t place, uint32_t previous, bint chained=True):
    """Read frames from the front of `data`, which lies at `place`, as far as they are good."""
    cdef Py_ssize_t position = 0, available = data.shape[0]
    cdef const uint8_t *base = &data[0] if available else NULL
    cdef const FrameHead *head
    cdef uint32_t crc = previous
    cdef uint64_t durable = 0
    cdef int stop = MORE
    cdef uint32_t need = 0
    cdef Sums sums, one
    cdef list frames = []
    _nothing(&sums)
    while True:
        if available - position < FRAME_BYTES:
            break
        head = <const FrameHead *>(base + position)
        if head.magic != MAGIC or head.length < FRAME_BYTES or head.length % 8:
            stop = NO_FRAME
            break
        if head.place != place + position:
            stop = BAD_PLACE
            break
        if head.length > available - position:
            need = head.length
            break
        if tidemark_crc32c(0, base + position + 8, head.length - 8) != head.crc:
            stop = BAD_CRC
            break
        if head.previous != crc and (chained or frames):
            stop = BAD_CHAIN
            break
        _nothing(&one)
        if not _survey(base + position + FRAME_BYTES, head.length - FRAME_BYTES, &one):
            stop = BAD_RECORDS
            break
        if (
            one.records != head.count or one.last_seq != head.last_seq or head.spare
            or (one.first_seq if one.records else 0) != head.first_seq
        ):
            stop = BAD_RECORDS
            break
        _merge(&one, &sums)
        frames.append((position, position + <Py_ssize_t>head.length))
        crc = head.crc
        if head.durable_place > durable:
            durable = head.durable_place
        position += head.length
        if head.flags & FLAG_END:
            stop = ENDED
            break
    found = Scan(frames, position, crc, stop, need, durable)
    _add(&sums, found.survey)
    return found


def find(const uint8_t[::1] data not None, Py_ssize_t start, uint64_t place):
    """Where behind `start` the next frame that is whole and belongs there begins; -1 if none does."""
    cdef Py_ssize_t size = data.shape[0], at = start
    cdef const uint8_t *base = &data[0] if size else NULL
    cdef const uint8_t *hit
    cdef const FrameHead *head
    cdef uint32_t magic = MAGIC
    while size - at >= FRAME_BYTES:
        hit = <const uint8_t *>memmem(base + at, size - at, &magic, 4)
        if hit == NULL:
            return -1
        at = hit - base
        if at % 8 == 0 and size - at >= FRAME_BYTES:
            head = <const FrameHead *>hit
            if (
                head.place == place + at
                and FRAME_BYTES <= head.length <= size - at
                and head.length % 8 == 0
                and tidemark_crc32c(0, hit + 8, head.length - 8) == head.crc
            ):
                return at
        at += 1
    return -1
