from libc.stdint cimport uint8_t, uint64_t

from tidemark.model._runs_c cimport Taken


cdef struct WindowEntry:
    uint64_t seq
    uint8_t done
    uint8_t is_boundary


cdef class Window:
    cdef public uint64_t position
    cdef public uint64_t boundary
    cdef public bint stirred
    cdef object _owner
    cdef list _due
    cdef object _target
    cdef uint64_t _first                # the ordinal of the oldest entry
    cdef uint64_t _count
    cdef WindowEntry *_ring             # the entry of ordinal n is at n & (capacity - 1)
    cdef uint64_t _capacity             # a power of two
    cdef int _room(self, uint64_t more) except -1
    cdef uint64_t add_taken(self, Taken taken) except? 0xFFFFFFFFFFFFFFFF
    cdef int settle_at(self, uint64_t ordinal) except -1
    cdef void _advance(self) noexcept
