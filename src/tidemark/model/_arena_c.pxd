from libc.stdint cimport int64_t, uint8_t, uint16_t, uint32_t, uint64_t

from tidemark.model._runs_c cimport PublishRow, PublishRun


cdef packed struct Head:
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
    uint32_t batch


cdef struct Extent:
    uint8_t *base               # NULL: not resident
    uint32_t used
    uint32_t capacity
    uint32_t live
    uint8_t kind
    uint8_t sealed
    uint8_t exists
    uint64_t live_bytes
    uint64_t touched


cdef class Arena:
    cdef public uint64_t next_seq
    cdef public uint64_t batch_seq
    cdef public uint64_t turn
    cdef public uint64_t shown_seq
    cdef public list hidden
    cdef readonly uint64_t resident_bytes
    cdef public object pager
    cdef public list emptied
    cdef Extent *table
    cdef uint32_t table_size
    cdef uint32_t table_used
    cdef list free_numbers
    cdef uint8_t **spare_blocks
    cdef int spare_count

    cdef Extent *_extent(self, uint64_t number) except NULL
    cdef uint8_t *_allocate(self, uint32_t capacity) except NULL
    cdef void _give_back(self, uint8_t *block, uint32_t capacity) noexcept
    cdef int _abandoned(self, uint32_t number) except -1
    cdef const uint8_t *at(self, uint64_t loc) except NULL
    cdef int _page_in(self, uint32_t number) except -1
    cdef inline void retain_at(self, uint64_t loc, uint32_t size) noexcept:
        cdef Extent *extent = &self.table[loc >> 32]
        extent.live += 1
        extent.live_bytes += size
    cdef int release_at(self, uint64_t loc, uint32_t size) except -1


cdef class Writer:
    cdef readonly Arena arena
    cdef readonly int kind
    cdef public uint32_t extent_bytes
    cdef public uint32_t number
    cdef public uint32_t used
    cdef public uint32_t capacity
    cdef uint8_t *base
    cdef uint8_t *reserve(self, uint64_t size) except NULL
    cdef uint64_t put_message(
        self, const uint32_t *targets, uint16_t count, int64_t now_ms, uint32_t ttl_ms,
        uint8_t priority, bint persistent,
        const uint8_t *exchange, uint8_t exchange_len, const uint8_t *key, uint8_t key_len,
        const uint8_t *properties, uint32_t properties_len, const uint8_t *body, uint32_t body_len,
        uint64_t *loc, const uint8_t *keyed=*, uint16_t keyed_len=*, uint8_t flags=*,
    ) except 0
