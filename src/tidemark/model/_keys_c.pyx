"""Compiled twin of `_keys_py`: same names, same answers. Records are read where they lie, without the GIL."""

from cpython.bytes cimport PyBytes_FromStringAndSize
from libc.stdint cimport int8_t, int16_t, int32_t, int64_t
from libc.stdio cimport snprintf
from libc.string cimport memcmp, memcpy

from tidemark.model._arena_c cimport Head

cdef extern from "../store/crc32c.h" nogil:
    void crc_prepare "tidemark_crc_prepare"() noexcept
    uint32_t crc32c "tidemark_crc32c"(uint32_t crc, const uint8_t *data, size_t size) noexcept

cdef enum:
    ROUTING_KEY = 1
    MESSAGE_ID = 2
    HEADER = 3

    TOMBSTONE = 2
    KEYED = 4
    KEYLESS = 8

crc_prepare()


cdef uint16_t slot_of_bytes(const uint8_t *data, size_t size) noexcept nogil:
    return crc32c(0, data, size) >> 16


cdef uint16_t slot_of_number(uint64_t seq) noexcept nogil:
    cdef uint8_t data[8]
    cdef int i
    for i in range(8):
        data[i] = seq >> (8 * i)
    return crc32c(0, data, 8) >> 16


# Properties: from a stranger, so no step without a look at the end ---------------------------


cdef inline uint64_t big(const uint8_t *at, int size) noexcept nogil:
    cdef uint64_t value = 0
    cdef int i
    for i in range(size):
        value = value << 8 | at[i]
    return value


cdef const uint8_t *values(const uint8_t *at, const uint8_t *end, uint32_t *flags) noexcept nogil:
    """The first value, and the first word of flags; NULL if that does not hold together."""
    cdef uint32_t word = 1
    flags[0] = 0
    if end - at >= 2:
        flags[0] = big(at, 2)
    while word & 1:
        if end - at < 2:
            return NULL
        word = big(at, 2)
        at += 2
    return at


cdef inline const uint8_t *behind_text(const uint8_t *at, const uint8_t *end) noexcept nogil:
    """Behind the short string at `at`; NULL if it is cut off."""
    if at == NULL or at >= end or end - at - 1 < at[0]:
        return NULL
    return at + 1 + at[0]


cdef inline const uint8_t *behind_table(const uint8_t *at, const uint8_t *end) noexcept nogil:
    if at == NULL or end - at < 4 or <uint64_t>(end - at - 4) < big(at, 4):
        return NULL
    return at + 4 + big(at, 4)


cdef const uint8_t *message_id(const uint8_t *at, const uint8_t *end, uint32_t *size) noexcept nogil:
    cdef uint32_t flags
    cdef int bit
    at = values(at, end, &flags)
    if at == NULL or not flags & 1 << 7:
        return NULL
    for bit in range(15, 7, -1):
        if not flags & 1 << bit:
            continue
        if bit == 12 or bit == 11:      # delivery-mode, priority
            at = at + 1 if at < end else NULL
        elif bit == 13:                 # headers
            at = behind_table(at, end)
        else:
            at = behind_text(at, end)
        if at == NULL:
            return NULL
    if behind_text(at, end) == NULL:
        return NULL
    size[0] = at[0]
    return at + 1


cdef int fixed_size(uint8_t letter) noexcept nogil:
    if letter == b"t" or letter == b"b" or letter == b"B":
        return 1
    if letter == b"s" or letter == b"U" or letter == b"u":
        return 2
    if letter == b"I" or letter == b"i" or letter == b"f":
        return 4
    if letter == b"D":
        return 5
    if letter == b"l" or letter == b"L" or letter == b"T" or letter == b"d":
        return 8
    if letter == b"V":
        return 0
    return -1


cdef const uint8_t *header(
    const uint8_t *at, const uint8_t *end, const uint8_t *name, size_t name_len,
    uint8_t *letter, uint32_t *size,
) noexcept nogil:
    """Where the value of a header begins; NULL if there is none or the table does not hold together."""
    cdef uint32_t flags
    cdef const uint8_t *next
    cdef int fixed
    cdef bint found
    at = values(at, end, &flags)
    if at == NULL or not flags & 1 << 13:
        return NULL
    if flags & 1 << 15:
        at = behind_text(at, end)
    if flags & 1 << 14:
        at = behind_text(at, end)
    next = behind_table(at, end)
    if next == NULL:
        return NULL
    at, end = at + 4, next
    while at < end:
        next = behind_text(at, end)
        if next == NULL or next >= end:
            return NULL
        found = at[0] == name_len and memcmp(at + 1, name, name_len) == 0
        letter[0] = next[0]
        at = next + 1
        if letter[0] == b"S" or letter[0] == b"x" or letter[0] == b"F" or letter[0] == b"A":
            next = behind_table(at, end)
            if next == NULL:
                return NULL
            at += 4
            size[0] = next - at
        else:
            fixed = fixed_size(letter[0])
            if fixed < 0 or end - at < fixed:
                return NULL
            size[0] = fixed
        if found:
            return at
        at += size[0]
    return NULL


cdef const uint8_t *as_text(
    const uint8_t *value, uint8_t letter, uint8_t *scratch, uint32_t *size
) noexcept nogil:
    cdef uint64_t raw
    cdef int64_t number
    if letter == b"S" or letter == b"x":
        return value
    if letter == b"t":
        if value[0]:
            memcpy(scratch, b"true", 4)
            size[0] = 4
        else:
            memcpy(scratch, b"false", 5)
            size[0] = 5
        return scratch
    if letter == b"f" or letter == b"d" or fixed_size(letter) not in (1, 2, 4, 8):
        return NULL
    raw = big(value, size[0])
    if letter == b"b":
        number = <int8_t>raw
    elif letter == b"s" or letter == b"U":
        number = <int16_t>raw
    elif letter == b"I":
        number = <int32_t>raw
    elif letter == b"T":
        size[0] = snprintf(<char *>scratch, SCRATCH, "%llu", <unsigned long long>raw)
        return scratch
    else:
        number = <int64_t>raw
    size[0] = snprintf(<char *>scratch, SCRATCH, "%lld", <long long>number)
    return scratch


# Records -------------------------------------------------------------------------------------


cdef inline const uint8_t *properties_of(const uint8_t *record) noexcept nogil:
    cdef const Head *head = <const Head *>record
    return (
        record + sizeof(Head) + 4 * <size_t>head.targets + head.exchange_len + head.key_len + head.keyed_len
    )


cdef const uint8_t *find_key(
    const uint8_t *record, const Rule *rule, uint8_t *scratch, uint32_t *size
) noexcept nogil:
    cdef const Head *head = <const Head *>record
    cdef const uint8_t *key = record + sizeof(Head) + 4 * <size_t>head.targets + head.exchange_len
    cdef const uint8_t *properties
    cdef uint8_t letter = 0
    size[0] = 0
    if head.flags & KEYLESS:
        return NULL
    if head.flags & KEYED:
        size[0] = head.keyed_len
        return key + head.key_len
    if rule.kind == ROUTING_KEY:
        size[0] = head.key_len
        return key
    properties = properties_of(record)
    if rule.kind == MESSAGE_ID:
        key = message_id(properties, properties + head.properties_len, size)
    elif rule.kind == HEADER:
        key = header(
            properties, properties + head.properties_len, rule.name, rule.name_len, &letter, size
        )
        if key != NULL:
            key = as_text(key, letter, scratch, size)
    else:
        return NULL
    if key == NULL:
        size[0] = 0
    return key


cdef bint is_tombstone(const uint8_t *record) noexcept nogil:
    cdef const Head *head = <const Head *>record
    cdef const uint8_t *properties
    cdef const uint8_t *value
    cdef uint8_t letter = 0
    cdef uint32_t size = 0
    if head.body_len:
        return False
    if head.flags & TOMBSTONE:
        return True
    properties = properties_of(record)
    value = header(properties, properties + head.properties_len, b"x-tombstone", 11, &letter, &size)
    return value != NULL and letter == b"t" and value[0] != 0


# For Python ----------------------------------------------------------------------------------


cdef int whole_record(const uint8_t[::1] record) except -1:
    cdef const Head *head
    if record.shape[0] < <Py_ssize_t>sizeof(Head):
        raise ValueError("a record is cut off")
    head = <const Head *>&record[0]
    if record.shape[0] < <Py_ssize_t>(
        sizeof(Head) + 4 * <size_t>head.targets + head.exchange_len + head.key_len + head.keyed_len
        + <size_t>head.properties_len + head.body_len
    ):
        raise ValueError("a record is cut off")
    return 0


def key_of(const uint8_t[::1] record not None, int kind, bytes name not None):
    """The key of a MESSAGE record under a stream's rule; None: it has none."""
    cdef Rule rule
    cdef uint8_t scratch[SCRATCH]
    cdef uint32_t size = 0
    cdef const uint8_t *key
    whole_record(record)
    rule.kind, rule.name, rule.name_len = kind, <const uint8_t *><char *>name, len(name)
    key = find_key(&record[0], &rule, scratch, &size)
    return None if key == NULL else PyBytes_FromStringAndSize(<const char *>key, size)


def says_tombstone(const uint8_t[::1] record not None):
    """An empty body and TOMBSTONE, or the header `x-tombstone` true."""
    whole_record(record)
    return is_tombstone(&record[0])


def sip128(bytes secret not None, const uint8_t[::1] data not None):
    """SipHash-2-4 with 128 bits of result; `secret` has 16 bytes."""
    cdef uint64_t out[2]
    if len(secret) != 16:
        raise ValueError("a secret of 16 bytes")
    sip24(<const uint64_t *><char *>secret, &data[0] if data.shape[0] else NULL, data.shape[0], out)
    return PyBytes_FromStringAndSize(<const char *>out, 16)


def slot_of(const uint8_t[::1] key not None):
    """Where a key stands among 65,536 slots."""
    return slot_of_bytes(&key[0] if key.shape[0] else NULL, key.shape[0])


def slot_of_seq(uint64_t seq):
    """The slot of a message without a key."""
    return slot_of_number(seq)


def row_digest(uint64_t seq, bint tombstone, const uint8_t[::1] key, const uint8_t[::1] body not None):
    """What a row adds to the hash of a snapshot: SipHash-1-3 of 128 bits over all that it says."""
    cdef Digest digest
    cdef const uint8_t *name = NULL
    cdef uint8_t nothing = 0
    cdef size_t size = 0
    if key is not None:
        size = key.shape[0]
        name = &key[0] if size else &nothing
    digest_start(&digest)
    digest_row(&digest, seq, tombstone, name, size, &body[0] if body.shape[0] else NULL, body.shape[0])
    digest_end(&digest)
    return <object>digest.sum[1] << 64 | digest.sum[0]
