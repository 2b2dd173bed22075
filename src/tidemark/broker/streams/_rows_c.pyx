"""Compiled twin of `_rows_py`: same names, same answers.

Rows go in by groups: the keys of a group are hashed, then their slots, then the entries that they supersede are
fetched into the cache side by side, and only then is one row after the other put. On the way out each record
is read once and its parts are copied straight into the columns.
"""

from cpython.bytes cimport PyBytes_FromStringAndSize
from libc.stdint cimport int32_t, int64_t, uint8_t, uint16_t, uint32_t, uint64_t
from libc.stdlib cimport free, malloc, realloc
from libc.string cimport memcmp, memcpy

from tidemark.broker.streams._core_c cimport HAS_KEY, TOMBSTONE, Entry, StreamCore, fetch_ahead
from tidemark.model._arena_c cimport Arena, Head, Writer
from tidemark.model._keys_c cimport SCRATCH, find_key, sip24, slot_of_bytes, slot_of_number
from tidemark.model._rows_c cimport ColumnView, View, column_view, view_of
from tidemark.model._runs_c cimport Taken, TakenEntry

from tidemark.model._rows_c import check_flags
from tidemark.model.rows import RowBatch

cdef enum:
    GROUP = 32
    AHEAD = 8                           # how many records ahead are fetched into the cache

    ROW_TOMBSTONE = 1
    ROW_KEYLESS = 2

    RECORD_TOMBSTONE = 2
    RECORD_KEYED = 4
    RECORD_KEYLESS = 8
    NO_TTL = 0xFFFFFFFF

    KEY = 1
    VALUE = 2
    PROPERTIES = 4
    SEQUENCE = 8
    TIMESTAMP = 16
    FLAGS = 32
    SLOT = 64

    BYTES_MAX = 0x7FFFFFFF              # of a column: its offsets are 32 bits


cdef class Rows:
    """The columns of a batch on its way in, checked."""

    cdef Py_ssize_t count
    cdef ColumnView keys, values, properties
    cdef View flags, expected

    def __init__(self, batch):
        self.count = batch.count
        if self.count < 0:
            raise ValueError(f"a batch of {self.count} rows")
        if batch.values is None:
            raise ValueError("a batch without values")
        if batch.keys is not None:
            self.keys = column_view("keys", batch.keys, self.count, 0xFFFF)
        self.values = column_view("values", batch.values, self.count, BYTES_MAX)
        if batch.properties is not None:
            self.properties = column_view("properties", batch.properties, self.count, BYTES_MAX)
        if batch.flags is not None:
            self.flags = view_of(batch.flags, False)
            if self.flags.size != self.count:
                raise ValueError(f"flags: not {self.count} numbers of 1 bytes")
            check_flags(batch.flags, batch.keys, batch.values, self.count)
        if batch.expected is not None:
            self.expected = view_of(batch.expected, False)
            if self.expected.size != 8 * self.count:
                raise ValueError(f"expected: not {self.count} numbers of 8 bytes")

    cdef inline uint8_t marks(self, Py_ssize_t row) noexcept:
        cdef uint8_t marks = 0 if self.flags is None else self.flags.data[row]
        return marks | ROW_KEYLESS if self.keys is None else marks


def conflict(StreamCore core not None, batch):
    """The first row whose `expected` is not so before the batch; -1 if there is none."""
    cdef Rows rows
    cdef Py_ssize_t row
    cdef int64_t expected
    cdef uint64_t hash[2]
    cdef uint64_t seq
    cdef bint deleted
    cdef Entry *entry
    if batch.expected is None:
        return -1
    rows = Rows(batch)
    for row in range(rows.count):
        memcpy(&expected, rows.expected.data + 8 * row, 8)
        if expected == -1:
            continue
        seq, deleted = 0, True
        if not rows.marks(row) & ROW_KEYLESS:
            sip24(
                core.secret, rows.keys.data + rows.keys.offsets[row],
                rows.keys.offsets[row + 1] - rows.keys.offsets[row], hash,
            )
            entry = core.current_of(hash)
            if entry != NULL:
                seq, deleted = entry.seq, (entry.flags & TOMBSTONE) != 0
        if expected != <int64_t>seq and not (expected == 0 and deleted):
            return row
    return -1


def put_rows(StreamCore core not None, Writer writer not None, batch, int64_t now_ms, bytes routing_key not None):
    """Put every row, each under its own sequence. Returns the first and the last of them."""
    cdef Rows rows = Rows(batch)
    cdef Py_ssize_t start, row, n, i
    cdef uint64_t hashes[2 * GROUP]
    cdef uint64_t ordinals[GROUP]
    cdef uint8_t marks[GROUP]
    cdef const uint8_t *name = <const uint8_t *><char *>routing_key
    cdef const uint8_t *key
    cdef const uint8_t *properties
    cdef const uint8_t *no_properties = <const uint8_t *>b"\0\0"
    cdef const int32_t *offsets
    cdef uint8_t name_len, flags
    cdef uint16_t slot, entry_flags
    cdef uint32_t key_len, properties_len, body_len, number = core.number
    cdef uint64_t seq = 0, loc = 0, first = 0
    if rows.count == 0:
        raise ValueError("a batch without rows")
    if len(routing_key) > 255:
        raise ValueError("a routing key over 255 bytes")
    name_len = len(routing_key)
    for start in range(0, rows.count, GROUP):
        n = min(<Py_ssize_t>GROUP, rows.count - start)
        for i in range(n):
            marks[i] = rows.marks(start + i)
            if not marks[i] & ROW_KEYLESS:
                offsets = &rows.keys.offsets[start + i]
                sip24(core.secret, rows.keys.data + offsets[0], offsets[1] - offsets[0], &hashes[2 * i])
                core.prefetch_slot(&hashes[2 * i])
        for i in range(n):
            if not marks[i] & ROW_KEYLESS:
                ordinals[i] = core.ordinal_of(&hashes[2 * i])
                if ordinals[i] != <uint64_t>-1:
                    core.prefetch_place(ordinals[i])
        for i in range(n):
            if not marks[i] & ROW_KEYLESS and ordinals[i] != <uint64_t>-1:
                core.prefetch_entry(ordinals[i])
        for i in range(n):
            row = start + i
            key, key_len = NULL, 0
            flags, entry_flags = RECORD_KEYLESS, 0
            if not marks[i] & ROW_KEYLESS:
                key = rows.keys.data + rows.keys.offsets[row]
                key_len = rows.keys.offsets[row + 1] - rows.keys.offsets[row]
                flags, entry_flags = RECORD_KEYED, HAS_KEY
            if marks[i] & ROW_TOMBSTONE:
                flags |= RECORD_TOMBSTONE
                entry_flags |= TOMBSTONE
            properties, properties_len = no_properties, 2
            if rows.properties is not None and rows.properties.offsets[row + 1] > rows.properties.offsets[row]:
                properties = rows.properties.data + rows.properties.offsets[row]
                properties_len = rows.properties.offsets[row + 1] - rows.properties.offsets[row]
            body_len = rows.values.offsets[row + 1] - rows.values.offsets[row]
            seq = writer.put_message(
                &number, 1, now_ms, NO_TTL, 0, True, NULL, 0, name, name_len, properties, properties_len,
                rows.values.data + rows.values.offsets[row], body_len, &loc, key, key_len, flags,
            )
            if first == 0:
                first = seq
            slot = slot_of_number(seq) if key == NULL else slot_of_bytes(key, key_len)
            core.apply(seq, loc, body_len, &hashes[2 * i], slot, entry_flags, now_ms)
    core.touch()
    return first, seq


# Out -----------------------------------------------------------------------------------------------


cdef struct Bytes:                      # a column of bytes that grows
    uint8_t *data
    size_t size
    size_t capacity
    int32_t *offsets


cdef int bytes_grow(Bytes *column, size_t size) except -1:
    """Make room for so many bytes more."""
    cdef size_t capacity
    cdef uint8_t *data
    if column.size + size > BYTES_MAX:
        raise ValueError("a column of over 2 GiB: take fewer rows at once")
    capacity = 2 * column.capacity + size + 1024
    data = <uint8_t *>realloc(column.data, capacity)
    if data == NULL:
        raise MemoryError
    column.data, column.capacity = data, capacity
    return 0


cdef inline int bytes_add(Bytes *column, Py_ssize_t row, const uint8_t *part, size_t size) except -1:
    if column.size + size > column.capacity:
        bytes_grow(column, size)
    if size:
        memcpy(column.data + column.size, part, size)
    column.size += size
    column.offsets[row + 1] = column.size
    return 0


cdef Taken with_sizes(StreamCore core, Taken taken):
    """The same rows, with the sizes of their bodies: who made them did not know."""
    cdef Taken copy = Taken(0)
    cdef TakenEntry *entry
    cdef Py_ssize_t row
    for row in range(taken.count):
        entry = copy.next_entry()
        entry[0] = taken.entries[row]
        entry.size = (<const Head *>core.arena.at(core.place_of(entry.index, entry.seq))).body_len
    return copy


def gather(StreamCore core not None, Taken taken not None, int columns):
    """The columns that were asked for, of rows that were taken. With KEY there are always flags."""
    cdef Py_ssize_t row, count = taken.count
    cdef Arena arena = core.arena
    cdef Bytes keys, properties
    cdef uint8_t *values = NULL
    cdef uint8_t *flags = NULL
    cdef int32_t *value_offsets = NULL
    cdef int64_t *sequences = NULL
    cdef int64_t *timestamps = NULL
    cdef uint16_t *slots = NULL
    cdef size_t total = 0, value_at = 0
    cdef TakenEntry *entry
    cdef const uint8_t *record
    cdef const uint8_t *base
    cdef const uint8_t *key
    cdef const uint8_t *at
    cdef const Head *head
    cdef uint64_t loc
    cdef uint8_t scratch[SCRATCH]
    cdef uint32_t key_size = 0
    out_keys = out_values = out_properties = out_flags = out_sequences = out_timestamps = out_slots = None
    keys.data = properties.data = NULL
    keys.size = keys.capacity = properties.size = properties.capacity = 0
    if columns & KEY:
        columns |= FLAGS
        key_offsets_bytes = PyBytes_FromStringAndSize(NULL, 4 * (count + 1))
        keys.offsets = <int32_t *><char *>key_offsets_bytes
        keys.offsets[0] = 0
    if columns & PROPERTIES:
        property_offsets_bytes = PyBytes_FromStringAndSize(NULL, 4 * (count + 1))
        properties.offsets = <int32_t *><char *>property_offsets_bytes
        properties.offsets[0] = 0
    if columns & VALUE:
        for row in range(count):
            total += taken.entries[row].size
        if total > BYTES_MAX:
            raise ValueError("a column of over 2 GiB: take fewer rows at once")
        value_offsets_bytes = PyBytes_FromStringAndSize(NULL, 4 * (count + 1))
        values_bytes = PyBytes_FromStringAndSize(NULL, total)
        value_offsets, values = <int32_t *><char *>value_offsets_bytes, <uint8_t *><char *>values_bytes
        value_offsets[0] = 0
        out_values = (value_offsets_bytes, values_bytes)
    if columns & FLAGS:
        out_flags = PyBytes_FromStringAndSize(NULL, count)
        flags = <uint8_t *><char *>out_flags
    if columns & SEQUENCE:
        out_sequences = PyBytes_FromStringAndSize(NULL, 8 * count)
        sequences = <int64_t *><char *>out_sequences
    if columns & TIMESTAMP:
        out_timestamps = PyBytes_FromStringAndSize(NULL, 8 * count)
        timestamps = <int64_t *><char *>out_timestamps
    if columns & SLOT:
        out_slots = PyBytes_FromStringAndSize(NULL, 2 * count)
        slots = <uint16_t *><char *>out_slots
    try:
        for row in range(min(<Py_ssize_t>AHEAD, count)):
            fetch_ahead(arena, taken, row)
        for row in range(count):
            fetch_ahead(arena, taken, row + AHEAD)
            entry = &taken.entries[row]
            if sequences != NULL:
                sequences[row] = entry.seq
            if slots != NULL:
                slots[row] = entry.deliveries
            if not columns & (KEY | VALUE | PROPERTIES | TIMESTAMP | FLAGS):
                continue
            # Good until the next one is asked for.
            loc = core.place_of(entry.index, entry.seq)
            base = arena.table[loc >> 32].base
            if base == NULL:
                record = arena.at(loc)
            else:
                arena.table[loc >> 32].touched = arena.turn
                record = base + <uint32_t>loc
            head = <const Head *>record
            at = record + sizeof(Head) + 4 * <size_t>head.targets + head.exchange_len + head.key_len
            if timestamps != NULL:
                timestamps[row] = head.accepted_ms
            if flags != NULL:
                if head.flags & (RECORD_KEYED | RECORD_KEYLESS) == RECORD_KEYED:
                    key, key_size = at, head.keyed_len
                else:
                    key = find_key(record, &core.rule, scratch, &key_size)
                flags[row] = (ROW_TOMBSTONE if entry.flags & TOMBSTONE else 0) | (
                    ROW_KEYLESS if key == NULL else 0
                )
                if columns & KEY:
                    bytes_add(&keys, row, key, key_size)
            at += head.keyed_len
            if columns & PROPERTIES:
                bytes_add(&properties, row, at, head.properties_len)
            if values != NULL:
                if head.body_len != entry.size:
                    return gather(core, with_sizes(core, taken), columns)
                memcpy(values + value_at, at + head.properties_len, entry.size)
                value_at += entry.size
                value_offsets[row + 1] = value_at
        if columns & KEY:
            out_keys = (key_offsets_bytes, PyBytes_FromStringAndSize(<char *>keys.data, keys.size))
        if columns & PROPERTIES:
            out_properties = (
                property_offsets_bytes, PyBytes_FromStringAndSize(<char *>properties.data, properties.size),
            )
    finally:
        free(keys.data)
        free(properties.data)
    return RowBatch(
        count, out_keys, out_values, out_properties, out_flags, None, out_sequences, out_timestamps, out_slots
    )


def select_keys(StreamCore core not None, Taken taken not None, bytes key_from not None, bytes key_to):
    """The rows whose key is at or after `key_from` and before `key_to`, byte by byte; rows without a key are not."""
    cdef Taken chosen = Taken(0)
    cdef Py_ssize_t row
    cdef TakenEntry *entry
    cdef TakenEntry *copy
    cdef const uint8_t *key
    cdef uint8_t scratch[SCRATCH]
    cdef uint32_t size = 0
    cdef const uint8_t *low = <const uint8_t *><char *>key_from
    cdef const uint8_t *high = NULL
    cdef size_t low_size = len(key_from), high_size = 0
    if key_to is not None:
        high, high_size = <const uint8_t *><char *>key_to, len(key_to)
    for row in range(taken.count):
        fetch_ahead(core.arena, taken, row + AHEAD)
        entry = &taken.entries[row]
        key = find_key(core.arena.at(core.place_of(entry.index, entry.seq)), &core.rule, scratch, &size)
        if key != NULL and before(key, size, low, low_size) >= 0 and (
            high == NULL or before(key, size, high, high_size) < 0
        ):
            copy = chosen.next_entry()
            copy[0] = entry[0]
    return chosen


cdef inline int before(const uint8_t *a, size_t a_size, const uint8_t *b, size_t b_size) noexcept nogil:
    """Under 0 if a stands before b, 0 if they are equal, over 0 if behind."""
    cdef int order = memcmp(a, b, min(a_size, b_size))
    if order == 0:
        return (a_size > b_size) - (a_size < b_size)
    return order
