"""Compiled twin of `_deliveries_py`: its two hot functions, same answers. One pass to size the buffer, one to fill it."""

from cpython.bytes cimport PyBytes_AS_STRING, PyBytes_FromStringAndSize
from libc.stdint cimport uint8_t, uint16_t, uint32_t, uint64_t
from libc.stdlib cimport free, malloc
from libc.string cimport memcmp, memcpy

from tidemark.model._arena_c cimport Arena, Head
from tidemark.model._keys_c cimport SCRATCH, Rule, find_key
from tidemark.model._runs_c cimport Taken, TakenEntry

from tidemark.wire.amqp091._deliveries_py import stream_properties, with_delivery_count

cdef extern from "<endian.h>" nogil:
    uint16_t htobe16(uint16_t)
    uint32_t htobe32(uint32_t)
    uint64_t htobe64(uint64_t)
    uint16_t be16toh(uint16_t)
    uint32_t be32toh(uint32_t)

cdef enum:
    FRAME_END = 0xCE
    FRAME_OVERHEAD = 8
    HEADER_FIXED = 12
    REDELIVERED = 1
    ROW_TOMBSTONE = 4                   # flag of a taken row
    CONTINUED = 1
    HAS_CONTENT_TYPE = 1 << 15
    HAS_CONTENT_ENCODING = 1 << 14
    HAS_HEADERS = 1 << 13
    OFFSET_FIELD = 25
    HISTORY_FIELD = 54
    KEY_FIELD = 18                      # without the key
    TOMBSTONE_FIELD = 14


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


cdef inline uint8_t *put_body(
    uint8_t *at, uint16_t channel, const uint8_t *body, uint64_t body_len, uint64_t piece
) noexcept nogil:
    cdef uint64_t done = 0, size
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


cdef inline uint8_t *put_content(
    uint8_t *at, uint16_t channel, const uint8_t *properties, uint32_t properties_len,
    const uint8_t *body, uint64_t body_len, uint64_t piece,
) noexcept nogil:
    at = put8(at, 2)
    at = put16(at, channel)
    at = put32(at, 12 + properties_len)
    at = put16(at, 60)
    at = put16(at, 0)
    at = put64(at, body_len)
    at = copy(at, properties, properties_len)
    at = put8(at, FRAME_END)
    return put_body(at, channel, body, body_len, piece)


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


# Streams --------------------------------------------------------------------------------------

cdef struct Shape:
    uint32_t before                     # bytes of the properties in front of the table of headers
    uint32_t entries                    # bytes of its entries
    uint32_t fields                     # bytes of our own
    uint8_t has_headers
    uint8_t slow                        # what goes out is made in Python
    uint8_t keyed                       # the key goes out


cdef inline uint16_t load16(const uint8_t *at) noexcept nogil:
    cdef uint16_t value
    memcpy(&value, at, 2)
    return be16toh(value)


cdef inline uint32_t load32(const uint8_t *at) noexcept nogil:
    cdef uint32_t value
    memcpy(&value, at, 4)
    return be32toh(value)


cdef bint plain_entries(const uint8_t *at, const uint8_t *end) noexcept nogil:
    """Whether no name among these entries is one of ours; False when they do not hold together, too."""
    cdef Py_ssize_t size
    cdef uint8_t letter
    while at < end:
        size = at[0]
        if end - at < 2 + size:
            return False
        if size >= 9 and memcmp(at + 1, b"x-stream-", 9) == 0:
            return False
        if size == 11 and memcmp(at + 1, b"x-tombstone", 11) == 0:
            return False
        letter = at[1 + size]
        at += 2 + size
        if letter in (c't', c'b', c'B'):
            size = 1
        elif letter in (c's', c'U', c'u'):
            size = 2
        elif letter in (c'I', c'i', c'f'):
            size = 4
        elif letter == c'D':
            size = 5
        elif letter in (c'l', c'L', c'd', c'T'):
            size = 8
        elif letter == c'V':
            size = 0
        elif letter in (c'S', c'x', c'F', c'A'):
            if end - at < 4:
                return False
            size = <Py_ssize_t>load32(at) + 4
        else:
            return False
        if size > end - at:
            return False
        at += size
    return True


cdef void find_headers(const uint8_t *properties, uint32_t length, Shape *shape) noexcept nogil:
    cdef uint32_t at = 2
    cdef uint16_t flags
    shape.before, shape.entries, shape.has_headers, shape.slow = 2, 0, 0, 1
    if length < 2:
        return
    flags = load16(properties)
    if flags & CONTINUED:
        return
    if flags & HAS_CONTENT_TYPE:
        if at >= length:
            return
        at += 1 + properties[at]
    if flags & HAS_CONTENT_ENCODING:
        if at >= length:
            return
        at += 1 + properties[at]
    if at > length:
        return
    shape.before = at
    if flags & HAS_HEADERS:
        if length - at < 4:
            return
        shape.has_headers = 1
        shape.entries = load32(properties + at)
        at += 4
        if shape.entries > length - at or not plain_entries(properties + at, properties + at + shape.entries):
            return
    shape.slow = 0


cdef bint is_text(const uint8_t *key, Py_ssize_t size):
    """Whether it is valid UTF-8."""
    cdef Py_ssize_t i
    cdef uint8_t high = 0
    for i in range(size):
        high |= key[i]
    if high < 0x80:
        return True
    try:
        key[:size].decode()
        return True
    except UnicodeDecodeError:
        return False


def encode_stream_deliveries(
    Arena arena not None, stream, Taken taken not None, uint16_t channel, bytes consumer_tag not None,
    uint64_t first_tag, uint64_t frame_max, bytes history not None,
):
    """Basic.Deliver for each message of a stream in `taken`, tagged from `first_tag` on."""
    cdef Py_ssize_t i
    cdef TakenEntry *entry
    cdef const Head *head
    cdef const uint8_t *names
    cdef const uint8_t *properties
    cdef uint8_t tag_len = len(consumer_tag)
    cdef uint64_t piece = frame_max - FRAME_OVERHEAD if frame_max else <uint64_t>0x7FFFFFFF
    cdef uint64_t total = 0, fixed, properties_len, size
    cdef const uint8_t *tag_bytes = <const uint8_t *>PyBytes_AS_STRING(consumer_tag)
    cdef uint8_t *out
    cdef bytes buffer, made, branch = history.hex().encode(), key_name = stream.key_name
    cdef Rule rule
    cdef uint8_t scratch[SCRATCH]
    cdef const uint8_t *key
    cdef uint32_t key_len = 0
    cdef dict slow = {}
    cdef Shape *shapes
    cdef Shape *shape
    rule.kind = stream.key_kind
    rule.name, rule.name_len = <const uint8_t *>PyBytes_AS_STRING(key_name), len(key_name)
    if len(branch) != 32:
        raise ValueError("a history has 16 bytes")
    shapes = <Shape *>malloc((taken.count or 1) * sizeof(Shape))
    if shapes == NULL:
        raise MemoryError
    try:
        fixed = 8 + 4 + 1 + tag_len + 8 + 1 + 2 + 8 + 12
        for i in range(taken.count):
            entry, shape = &taken.entries[i], &shapes[i]
            head = <const Head *>arena.at(entry.loc)
            key = find_key(<const uint8_t *>head, &rule, scratch, &key_len)
            properties = (
                <const uint8_t *>head + sizeof(Head) + 4 * head.targets
                + head.exchange_len + head.key_len + head.keyed_len
            )
            find_headers(properties, head.properties_len, shape)
            if shape.slow:
                made = stream_properties(
                    PyBytes_FromStringAndSize(<const char *>properties, head.properties_len),
                    entry.seq, branch, None if key == NULL else key[:key_len],
                    (entry.flags & ROW_TOMBSTONE) != 0, frame_max,
                )
                slow[i] = made
                properties_len = len(made)
            else:
                shape.fields = OFFSET_FIELD + HISTORY_FIELD
                if entry.flags & ROW_TOMBSTONE:
                    shape.fields += TOMBSTONE_FIELD
                properties_len = head.properties_len + shape.fields + (0 if shape.has_headers else 4)
                shape.keyed = key != NULL and (
                    not frame_max
                    or FRAME_OVERHEAD + HEADER_FIXED + properties_len + KEY_FIELD + key_len <= frame_max
                )
                if shape.keyed:
                    shape.fields += KEY_FIELD + key_len
                    properties_len += KEY_FIELD + key_len
            total += (
                fixed + head.exchange_len + head.key_len + properties_len + head.body_len
                + body_frames(head.body_len, piece) * FRAME_OVERHEAD
            )
        buffer = PyBytes_FromStringAndSize(NULL, total)
        out = <uint8_t *>PyBytes_AS_STRING(buffer)
        for i in range(taken.count):
            entry, shape = &taken.entries[i], &shapes[i]
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
            out = put8(out, 0)
            out = put8(out, head.exchange_len)
            out = copy(out, names, head.exchange_len)
            out = put8(out, head.key_len)
            out = copy(out, names + head.exchange_len, head.key_len)
            out = put8(out, FRAME_END)
            properties = names + head.exchange_len + head.key_len + head.keyed_len
            if shape.slow:
                made = slow[i]
                out = put_content(
                    out, channel, <const uint8_t *>PyBytes_AS_STRING(made), len(made),
                    properties + head.properties_len, head.body_len, piece,
                )
                continue
            key = find_key(<const uint8_t *>head, &rule, scratch, &key_len)
            properties_len = head.properties_len + shape.fields + (0 if shape.has_headers else 4)
            out = put8(out, 2)
            out = put16(out, channel)
            out = put32(out, 12 + properties_len)
            out = put16(out, 60)
            out = put16(out, 0)
            out = put64(out, head.body_len)
            out = put16(out, load16(properties) | HAS_HEADERS)
            out = copy(out, properties + 2, shape.before - 2)
            out = put32(out, shape.fields + shape.entries)
            out = copy(out, <const uint8_t *>b"\x0fx-stream-offsetl", 17)
            out = put64(out, entry.seq)
            out = copy(out, <const uint8_t *>b"\x10x-stream-historyS\x00\x00\x00\x20", 22)
            out = copy(out, <const uint8_t *>PyBytes_AS_STRING(branch), 32)
            if shape.keyed:
                out = copy(out, <const uint8_t *>b"\x0cx-stream-key", 13)
                out = put8(out, c'S' if is_text(key, key_len) else c'x')
                out = put32(out, key_len)
                out = copy(out, key, key_len)
            if entry.flags & ROW_TOMBSTONE:
                out = copy(out, <const uint8_t *>b"\x0bx-tombstonet\x01", 14)
            size = shape.before + (4 if shape.has_headers else 0)
            out = copy(out, properties + size, head.properties_len - size)
            out = put8(out, FRAME_END)
            out = put_body(out, channel, properties + head.properties_len, head.body_len, piece)
        assert out - <uint8_t *>PyBytes_AS_STRING(buffer) == <Py_ssize_t>total
        return buffer
    finally:
        free(shapes)
