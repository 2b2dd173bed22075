from libc.stdint cimport int64_t, uint8_t, uint16_t, uint32_t, uint64_t

from tidemark.broker._target_c cimport Target
from tidemark.model._arena_c cimport Arena
from tidemark.model._runs_c cimport Taken

cdef enum:
    BLOCK_SHIFT = 6
    BLOCK_ENTRIES = 64
    BLOCK_MASK = 63

    REDELIVERED = 1
    DURABLE = 2


cdef struct QueueEntry:
    uint64_t seq
    uint64_t loc
    int64_t expires_ms
    uint32_t size
    uint16_t deliveries
    uint8_t state
    uint8_t flags


cdef struct Block:
    uint32_t count
    uint32_t ready
    uint32_t gone
    uint32_t spare
    QueueEntry entries[BLOCK_ENTRIES]


cdef struct Slot:
    Block *block                        # NULL: all of its entries are gone
    uint64_t first_seq


cdef struct Lane:
    Slot *slots
    uint32_t capacity
    uint32_t start                      # slots before it are not in use any more
    uint32_t end
    uint64_t first_block                # the number of the block in slots[start]
    uint64_t next                       # nothing before this index is ready
    uint64_t finish                     # the index that the next entry gets


cdef class QueueCore(Target):
    cdef public uint64_t ready, acquired, ready_bytes, acquired_bytes
    cdef public uint64_t delivered, settled, redelivered
    cdef readonly uint64_t expiring
    cdef readonly uint64_t waits_for
    cdef readonly bint is_hidden
    cdef Lane *_lanes
    cdef int _lane_count
    cdef uint64_t *_gone
    cdef Py_ssize_t _gone_count, _gone_capacity

    cdef Lane *_lane(self, int number) except NULL
    cdef Taken _take_lane(
        self, int number, Py_ssize_t count, int64_t bytes_max, int64_t earliest, int64_t latest,
        uint64_t shown_seq,
    )
    cdef int _wait_for(self, uint64_t seq) except -1
    cdef QueueEntry *_acquired(self, Lane *lane, uint64_t index, Block **where) except NULL
    cdef int _remember_gone(self, uint64_t seq) except -1
    cdef int settle_at(self, int lane_number, uint64_t index) except -1
    cdef QueueEntry *_find(self, uint64_t seq, Lane **lane, Block **block, uint64_t *index) noexcept
    cdef int _empty(self) except -1


cdef int64_t expiry(int64_t now_ms, int64_t message_ttl, int64_t queue_ttl) noexcept
