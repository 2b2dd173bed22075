"""Compiled twin of `_publishes_py`: its two hot functions, same answers. One pass to size the buffer, one to fill it."""

from cpython.bytes cimport PyBytes_AS_STRING, PyBytes_FromStringAndSize
from libc.stdint cimport int64_t, uint8_t, uint16_t, uint32_t, uint64_t
from libc.string cimport memcmp, memcpy

from tidemark.model._runs_c cimport PublishRow, PublishRun

cdef extern from "<endian.h>" nogil:
    uint16_t htobe16(uint16_t)
    uint32_t htobe32(uint32_t)
    uint64_t htobe64(uint64_t)

cdef enum:
    FRAME_END = 0xCE
    FRAME_OVERHEAD = 8
    HEADER_FIXED = 12
    PUBLISH_FIXED = 9                   # ids, reserved, two lengths, bits
    CONTINUED = 1
    HAS_CONTENT_TYPE = 1 << 15
    HAS_CONTENT_ENCODING = 1 << 14
    HAS_HEADERS = 1 << 13
    FLAG_BITS = 3                       # MANDATORY and IMMEDIATE


cdef inline uint8_t *put8(uint8_t *at, uint8_t value) noexcept nogil:
    at[0] = value
    return at + 1


cdef inline uint8_t *put16(uint8_t *at, uint16_t value) noexcept nogil:
    value = htobe16(value)
    memcpy(at, &value, 2)
    return at + 2


cdef inline uint8_t *put32(uint8_t *at, uint32_t value) noexcept nogil:
    value = htobe32(value)
    memcpy(at, &value, 4)
    return at + 4


cdef inline uint8_t *put64(uint8_t *at, uint64_t value) noexcept nogil:
    value = htobe64(value)
    memcpy(at, &value, 8)
    return at + 8


cdef inline uint8_t *copy(uint8_t *at, const uint8_t *data, size_t size) noexcept nogil:
    memcpy(at, data, size)
    return at + size


cdef inline uint8_t *start(uint8_t *at, uint8_t kind, uint16_t channel, uint32_t size) noexcept nogil:
    at = put8(at, kind)
    at = put16(at, channel)
    return put32(at, size)


cdef inline uint16_t short_at(const uint8_t *data) noexcept nogil:
    return <uint16_t>(<uint16_t>data[0] << 8 | data[1])


cdef inline uint32_t long_at(const uint8_t *data) noexcept nogil:
    return <uint32_t>data[0] << 24 | <uint32_t>data[1] << 16 | <uint32_t>data[2] << 8 | data[3]


cdef uint8_t *put_with_entries(
    uint8_t *out, const uint8_t *properties, int64_t size, const uint8_t *entries, uint32_t entries_len
) noexcept nogil:
    """Properties that the scanner has found good, with these entries behind their headers."""
    cdef:
        uint16_t flags = short_at(properties), word = flags
        int64_t at = 2, end
        uint32_t table = 0
    while word & CONTINUED:
        word = short_at(properties + at)
        at += 2
    if flags & HAS_CONTENT_TYPE:
        at += 1 + properties[at]
    if flags & HAS_CONTENT_ENCODING:
        at += 1 + properties[at]
    end = at
    if flags & HAS_HEADERS:
        table = long_at(properties + at)
        end = at + 4 + table
    out = put16(out, flags | HAS_HEADERS)
    out = copy(out, properties + 2, at - 2)
    out = put32(out, table + entries_len)
    out = copy(out, properties + end - table, table)
    out = copy(out, entries, entries_len)
    return copy(out, properties + end, size - end)


cdef inline int64_t added(const uint8_t *properties, uint32_t entries_len) noexcept nogil:
    """By how much the entries make them longer: their table has a size if there was none."""
    if not entries_len:
        return 0
    return entries_len if short_at(properties) & HAS_HEADERS else entries_len + 4


def stretch(PublishRun run not None, Py_ssize_t first, int64_t mask):
    cdef:
        Py_ssize_t row = first + 1
        PublishRow *one
        PublishRow *other
    if first < 0 or first >= run.count:
        raise IndexError(first)
    one = run.rows + first
    if one.flags & mask:
        return row
    while row < run.count:
        other = run.rows + row
        if (
            other.flags & mask
            or other.exchange_len != one.exchange_len
            or other.key_len != one.key_len
            or memcmp(run.base + other.exchange, run.base + one.exchange, one.exchange_len)
            or memcmp(run.base + other.key, run.base + one.key, one.key_len)
        ):
            break
        row += 1
    return row


def encode_publishes(
    PublishRun run not None, Py_ssize_t first, Py_ssize_t last, bytes head not None, bytes entries not None,
    uint64_t frame_max,
):
    cdef:
        uint64_t piece = frame_max - FRAME_OVERHEAD if frame_max else <uint64_t>0x7FFFFFFF
        uint64_t total = 0, done, size
        uint32_t head_len = len(head), entries_len = len(entries)
        const uint8_t *head_bytes = <const uint8_t *>PyBytes_AS_STRING(head)
        const uint8_t *entry_bytes = <const uint8_t *>PyBytes_AS_STRING(entries)
        const uint8_t *base = run.base
        uint16_t channel = run.channel
        Py_ssize_t i
        PublishRow *row
        uint8_t *out
        bytes buffer
    if first < 0 or last > run.count:
        raise IndexError(last)
    for i in range(first, last):
        row = run.rows + i
        total += head_len if head_len else FRAME_OVERHEAD + PUBLISH_FIXED + row.exchange_len + row.key_len
        total += FRAME_OVERHEAD + HEADER_FIXED + row.properties_len
        total += added(base + row.properties, entries_len)
        total += row.body_len + (row.body_len + piece - 1) // piece * FRAME_OVERHEAD
    buffer = PyBytes_FromStringAndSize(NULL, total)
    out = <uint8_t *>PyBytes_AS_STRING(buffer)
    for i in range(first, last):
        row = run.rows + i
        if head_len:
            out = copy(out, head_bytes, head_len)
        else:
            out = start(out, 1, channel, PUBLISH_FIXED + row.exchange_len + row.key_len)
            out = put16(out, 60)
            out = put16(out, 40)
            out = put16(out, 0)
            out = put8(out, row.exchange_len)
            out = copy(out, base + row.exchange, row.exchange_len)
            out = put8(out, row.key_len)
            out = copy(out, base + row.key, row.key_len)
            out = put8(out, row.flags & FLAG_BITS)
            out = put8(out, FRAME_END)
        size = row.properties_len + added(base + row.properties, entries_len)
        out = start(out, 2, channel, HEADER_FIXED + size)
        out = put16(out, 60)
        out = put16(out, 0)
        out = put64(out, row.body_len)
        if entries_len:
            out = put_with_entries(out, base + row.properties, row.properties_len, entry_bytes, entries_len)
        else:
            out = copy(out, base + row.properties, row.properties_len)
        out = put8(out, FRAME_END)
        done = 0
        while done < <uint64_t>row.body_len:
            size = row.body_len - done
            if size > piece:
                size = piece
            out = start(out, 3, channel, size)
            out = copy(out, base + row.body + done, size)
            out = put8(out, FRAME_END)
            done += size
    return buffer
