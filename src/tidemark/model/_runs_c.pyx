"""Compiled twin of `_runs_py`: same names, same answers; rows and entries are C structs."""

from cpython.buffer cimport PyBUF_SIMPLE, PyBuffer_Release, PyObject_GetBuffer
from cpython.bytes cimport PyBytes_FromStringAndSize
from libc.stdlib cimport free, malloc, realloc
from libc.string cimport memcpy


cdef class PublishRun:
    """Consecutive publishes of one channel."""

    def __cinit__(self, int channel, data):
        cdef Py_buffer view
        self.channel = channel
        self.data = data if isinstance(data, memoryview) else memoryview(data)
        self.rows = NULL
        self.count = self.capacity = 0
        # The memoryview pins the bytes. A buffer held beside it would stand in the way of the
        # garbage collector, which releases memoryviews when it breaks a cycle.
        PyObject_GetBuffer(self.data, &view, PyBUF_SIMPLE)
        self.base = <const uint8_t *>view.buf
        PyBuffer_Release(&view)

    def __dealloc__(self):
        free(self.rows)

    cdef PublishRow *next_row(self) except NULL:
        cdef Py_ssize_t capacity
        cdef PublishRow *rows
        if self.count == self.capacity:
            capacity = self.capacity * 2 if self.capacity else 16
            rows = <PublishRow *>realloc(self.rows, capacity * sizeof(PublishRow))
            if rows == NULL:
                raise MemoryError
            self.rows, self.capacity = rows, capacity
        self.count += 1
        return &self.rows[self.count - 1]

    def add(self, exchange, key, properties, body, flags=0, priority=0, ttl_ms=-1):
        """Describe one more publish by (start, length) pairs into `data`."""
        cdef PublishRow *row = self.next_row()
        row.exchange, row.exchange_len = exchange[0], exchange[1]
        row.key, row.key_len = key[0], key[1]
        row.properties, row.properties_len = properties[0], properties[1]
        row.body, row.body_len = body[0], body[1]
        row.flags, row.priority, row.ttl_ms, row.spare = flags, priority, ttl_ms, 0

    def __len__(self):
        return self.count

    def number(self, Py_ssize_t index, Py_ssize_t column):
        """One number of one row, e.g. `number(0, FLAGS)`."""
        if not 0 <= index < self.count or not 0 <= column < 12:
            raise IndexError(index)
        return (<int64_t *>&self.rows[index])[column]

    def part(self, Py_ssize_t index, Py_ssize_t column):
        """A copy of the bytes that a row points to: `part(0, EXCHANGE)`, KEY, PROPERTIES or BODY."""
        cdef int64_t *row
        if not 0 <= index < self.count or not 0 <= column < 8:
            raise IndexError(index)
        row = <int64_t *>&self.rows[index]
        return PyBytes_FromStringAndSize(<const char *>self.base + row[column], row[column + 1])

    def detached(self):
        """The same run over a private copy of the bytes it points to, for keeping beyond the call."""
        cdef PublishRun copy
        cdef int64_t *row
        cdef int64_t at = 0
        cdef Py_ssize_t i, column
        # Part by part: what lies between belongs to other channels and may be a thousand times as much.
        for i in range(self.count):
            row = <int64_t *>&self.rows[i]
            for column in range(0, 8, 2):
                at += row[column + 1]
        data = PyBytes_FromStringAndSize(NULL, at)
        copy = PublishRun(self.channel, data)
        at = 0
        if self.count:
            copy.rows = <PublishRow *>malloc(self.count * sizeof(PublishRow))
            if copy.rows == NULL:
                raise MemoryError
            memcpy(copy.rows, self.rows, self.count * sizeof(PublishRow))
            copy.count = copy.capacity = self.count
            for i in range(self.count):
                row = <int64_t *>&copy.rows[i]
                for column in range(0, 8, 2):
                    memcpy(<char *>copy.base + at, self.base + row[column], row[column + 1])
                    row[column] = at
                    at += row[column + 1]
        return copy


cdef class Taken:
    """Messages acquired for one consumer, oldest first."""

    def __cinit__(self, int lane=0):
        self.lane = lane
        self.entries = NULL
        self.count = self.capacity = 0

    def __dealloc__(self):
        free(self.entries)

    cdef TakenEntry *next_entry(self) except NULL:
        cdef Py_ssize_t capacity
        cdef TakenEntry *entries
        if self.count == self.capacity:
            capacity = self.capacity * 2 if self.capacity else 16
            entries = <TakenEntry *>realloc(self.entries, capacity * sizeof(TakenEntry))
            if entries == NULL:
                raise MemoryError
            self.entries, self.capacity = entries, capacity
        self.count += 1
        return &self.entries[self.count - 1]

    def add(self, index, seq, loc, size, flags, deliveries):
        """One more: its index in the lane, sequence, place in the arena, body bytes, flags, count."""
        cdef TakenEntry *entry = self.next_entry()
        entry.index, entry.seq, entry.loc = index, seq, loc
        entry.size, entry.flags, entry.deliveries, entry.spare = size, flags, deliveries, 0

    def __len__(self):
        return self.count

    def entry(self, Py_ssize_t position):
        cdef TakenEntry *entry
        if not 0 <= position < self.count:
            raise IndexError(position)
        entry = &self.entries[position]
        return (entry.index, entry.seq, entry.loc, entry.size, entry.flags, entry.deliveries)

    def __iter__(self):
        """(index, seq, loc, size, flags, deliveries) of each."""
        cdef Py_ssize_t position
        for position in range(self.count):
            yield self.entry(position)
