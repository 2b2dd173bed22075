from libc.stdint cimport int64_t, uint8_t, uint16_t, uint32_t, uint64_t

from tidemark.model._arena_c cimport Arena


cdef inline uint64_t mixed(uint64_t seq) noexcept nogil:
    """A hash of a sequence (the finish of SplitMix64): sums of these tell sets of sequences apart."""
    seq += 0x9E3779B97F4A7C15ULL
    seq = (seq ^ (seq >> 30)) * 0xBF58476D1CE4E5B9ULL
    seq = (seq ^ (seq >> 27)) * 0x94D049BB133111EBULL
    return seq ^ (seq >> 31)


cdef class Target:
    cdef readonly Arena arena
    cdef readonly uint32_t number
    cdef public bint durable
    cdef public bint guarded
    cdef public bint keeps
    cdef public bint is_dirty
    cdef public bint deleted
    cdef public int64_t ttl_ms
    cdef public uint64_t published
    cdef list _dirty

    cpdef touch(self)
    cdef int put_entry(
        self, uint64_t seq, uint64_t loc, uint32_t size, int64_t priority, int64_t expires_ms,
        uint8_t flags, uint16_t deliveries,
    ) except -1
    cdef void foresee(self, const uint8_t *record, int step, uint64_t *memo) noexcept
    cpdef bint forget(self, uint64_t seq) except -1
    cpdef set_deliveries(self, uint64_t seq, uint16_t deliveries)
    cpdef bint relocate(self, uint64_t seq, uint64_t loc) except -1
