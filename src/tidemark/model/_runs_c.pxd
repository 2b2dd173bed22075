from libc.stdint cimport int64_t, uint8_t, uint16_t, uint32_t, uint64_t


cdef struct PublishRow:
    int64_t exchange
    int64_t exchange_len
    int64_t key
    int64_t key_len
    int64_t properties
    int64_t properties_len
    int64_t body
    int64_t body_len
    int64_t flags
    int64_t priority
    int64_t ttl_ms
    int64_t spare


cdef class PublishRun:
    cdef readonly int channel
    cdef readonly object data          # a memoryview; `base` points at its first byte
    cdef const uint8_t *base
    cdef PublishRow *rows
    cdef Py_ssize_t count
    cdef Py_ssize_t capacity
    cdef PublishRow *next_row(self) except NULL


cdef struct TakenEntry:
    uint64_t index
    uint64_t seq
    uint64_t loc
    uint32_t size
    uint16_t deliveries
    uint8_t flags
    uint8_t spare


cdef class Taken:
    cdef readonly int lane
    cdef TakenEntry *entries
    cdef Py_ssize_t count
    cdef Py_ssize_t capacity
    cdef TakenEntry *next_entry(self) except NULL
