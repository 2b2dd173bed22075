"""Compiled twin of `_deliveries_py`: the hot function of it, same answers. One pass to size the buffer, one to fill it."""

from cpython.bytes cimport PyBytes_AS_STRING, PyBytes_FromStringAndSize
from libc.stdint cimport uint8_t, uint16_t, uint32_t, uint64_t
from libc.string cimport memcpy

from tidemark.model._arena_c cimport Arena, Head
from tidemark.model._runs_c cimport Taken, TakenEntry

from tidemark.wire.amqp091._deliveries_py import with_delivery_count

cdef extern from "<endian.h>" nogil:
    uint16_t htobe16(uint16_t)
    uint32_t htobe32(uint32_t)
    uint64_t htobe64(uint64_t)

cdef enum:
    FRAME_END = 0xCE
    FRAME_OVERHEAD = 8
    REDELIVERED = 1


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


cdef inline uint64_t body_frames(uint64_t body_len, uint64_t piece) noexcept nogil:
    return (body_len + piece - 1) // piece


cdef inline uint8_t *put_content(
    uint8_t *at, uint16_t channel, const uint8_t *properties, uint32_t properties_len,
    const uint8_t *body, uint64_t body_len, uint64_t piece,
) noexcept nogil:
    cdef uint64_t done = 0, size
    at = put8(at, 2)
    at = put16(at, channel)
    at = put32(at, 12 + properties_len)
    at = put16(at, 60)
    at = put16(at, 0)
    at = put64(at, body_len)
    at = copy(at, properties, properties_len)
    at = put8(at, FRAME_END)
    while done < body_len:
        size = body_len - done
        if size > piece:
            size = piece
        at = put8(at, 3)
        at = put16(at, channel)
        at = put32(at, size)
        at = copy(at, body + done, size)
        at = put8(at, FRAME_END)
        done += size
    return at


def encode_deliveries(
    Arena arena not None, Taken taken not None, uint16_t channel, bytes consumer_tag not None,
    uint64_t first_tag, uint64_t frame_max, bint count_header,
):
    """Basic.Deliver for each message in `taken`, tagged from `first_tag` on."""
    cdef Py_ssize_t i
    cdef TakenEntry *entry
    cdef const Head *head
    cdef const uint8_t *names
    cdef const uint8_t *properties
    cdef uint8_t tag_len = len(consumer_tag)
    cdef uint64_t piece = frame_max - FRAME_OVERHEAD if frame_max else <uint64_t>0x7FFFFFFF
    cdef uint64_t total = 0, fixed, properties_len
    cdef const uint8_t *tag_bytes = <const uint8_t *>PyBytes_AS_STRING(consumer_tag)
    cdef uint8_t *out
    cdef bytes buffer
    cdef dict counted = None
    # Method frame without names: frame 8, ids 4, tag, delivery tag 8, bit 1, two lengths.
    # Header frame: frame 8, fixed 12.
    fixed = 8 + 4 + 1 + tag_len + 8 + 1 + 2 + 8 + 12
    # A page-in during the second pass would move nothing that the first one sized: sizes are of
    # immutable records, and `at` is asked again for the pointer.
    for i in range(taken.count):
        entry = &taken.entries[i]
        head = <const Head *>arena.at(entry.loc)
        properties_len = head.properties_len
        if count_header and entry.deliveries:
            counted = {} if counted is None else counted
            properties = (
                <const uint8_t *>head + sizeof(Head) + 4 * head.targets
                + head.exchange_len + head.key_len + head.keyed_len
            )
            counted[i] = with_delivery_count(
                PyBytes_FromStringAndSize(<const char *>properties, head.properties_len), entry.deliveries
            )
            properties_len = len(counted[i])
        total += (
            fixed + head.exchange_len + head.key_len + properties_len + head.body_len
            + body_frames(head.body_len, piece) * FRAME_OVERHEAD
        )
    buffer = PyBytes_FromStringAndSize(NULL, total)
    out = <uint8_t *>PyBytes_AS_STRING(buffer)
    for i in range(taken.count):
        entry = &taken.entries[i]
        head = <const Head *>arena.at(entry.loc)
        names = <const uint8_t *>head + sizeof(Head) + 4 * head.targets
        out = put8(out, 1)
        out = put16(out, channel)
        out = put32(out, 4 + 1 + tag_len + 8 + 1 + 2 + head.exchange_len + head.key_len)
        out = put16(out, 60)
        out = put16(out, 60)
        out = put8(out, tag_len)
        out = copy(out, tag_bytes, tag_len)
        out = put64(out, first_tag + i)
        out = put8(out, entry.flags & REDELIVERED)
        out = put8(out, head.exchange_len)
        out = copy(out, names, head.exchange_len)
        out = put8(out, head.key_len)
        out = copy(out, names + head.exchange_len, head.key_len)
        out = put8(out, FRAME_END)
        properties = names + head.exchange_len + head.key_len + head.keyed_len
        properties_len = head.properties_len
        if counted is not None and i in counted:
            out = put_content(
                out, channel, <const uint8_t *>PyBytes_AS_STRING(counted[i]), len(counted[i]),
                properties + properties_len, head.body_len, piece,
            )
        else:
            out = put_content(
                out, channel, properties, properties_len, properties + properties_len, head.body_len, piece
            )
    assert out - <uint8_t *>PyBytes_AS_STRING(buffer) == <Py_ssize_t>total
    return buffer
