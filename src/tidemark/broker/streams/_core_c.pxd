cimport cython
from libc.stdint cimport int64_t, uint8_t, uint16_t, uint32_t, uint64_t

from tidemark.broker._target_c cimport Target
from tidemark.model._arena_c cimport Arena
from tidemark.model._keys_c cimport Rule
from tidemark.model._runs_c cimport Taken

cdef enum:
    # Flags of an entry
    GONE = 1
    HAS_KEY = 2
    TOMBSTONE = 4                       # as in a taken row
    FRESH = 8                           # nothing was current under its key when it came
    FORCED = 16                         # ended by retention or purge: its key slot may still lead here
    DELETES = 32                        # in a log: its key is to be deleted elsewhere; here a row like any other

    LOG = 4                             # as in `_keys_py`


cdef struct Entry:
    uint64_t seq
    uint64_t loc                        # 0: its bytes are nowhere any more
    uint64_t sup
    uint32_t size
    uint16_t slot
    uint16_t flags


cdef struct Packed:                     # stands before the entries of a chunk that was packed
    uint64_t bits[16]                   # which of the 1024 are here
    uint16_t rank[16]                   # how many are in the words before


cdef struct Chunk:                      # 1024 consecutive entries
    Entry *entries                      # NULL: all of them are gone
    uint64_t first_seq
    int64_t first_ms
    uint16_t used
    uint16_t live
    uint8_t packed
    uint8_t borrowed                    # the memory belongs to a checkpoint


cdef struct Page:                       # 1024 consecutive chunks
    Chunk *chunks                       # NULL: all of them are gone
    uint64_t first_seq
    int64_t first_ms
    uint32_t live                       # chunks with entries


cdef struct Slot:
    uint64_t hash[2]
    uint64_t ordinal


cdef struct Table:
    Slot *slots
    uint32_t capacity
    uint32_t used
    uint8_t depth                       # how many leading bits of the hash its keys have in common
    uint8_t borrowed


cdef struct Link:
    Link *next
    Link *before
    uint64_t items[510]


cdef struct Fifo:
    Link *head
    Link *tail
    uint32_t head_at
    uint32_t tail_at
    uint64_t count


cdef struct Hold:
    uint64_t seq
    uint64_t count
    Fifo kept


cdef struct Cursor:                     # an entry, found by its sequence
    uint32_t page
    uint32_t chunk
    uint32_t index


cdef extern from *:
    void prefetch "__builtin_prefetch"(const void *) noexcept nogil


cdef inline void fetch_ahead(Arena arena, Taken taken, Py_ssize_t at) noexcept:
    """Have the record of a row that comes soon brought into the cache. Its place may be out of date: no harm."""
    cdef uint64_t loc
    cdef const uint8_t *base
    if at < taken.count:
        loc = taken.entries[at].loc
        if loc >> 32 < arena.table_used:
            base = arena.table[loc >> 32].base
            if base != NULL:
                base += <uint32_t>loc
                prefetch(base)
                prefetch(base + 64)
                prefetch(base + 128)


cdef class StreamCore(Target):
    cdef readonly int key_kind
    cdef readonly bytes key_name
    cdef readonly uint64_t live, live_bytes, tombstones, held, held_bytes, entries
    cdef readonly uint64_t last_seq
    cdef public uint64_t complete_from
    cdef public uint64_t position
    cdef Rule rule
    cdef uint64_t secret[2]
    # entries by ordinal
    cdef Page *_pages
    cdef uint64_t _first_page, _next_ordinal
    cdef uint32_t _page_count, _page_capacity
    cdef uint32_t _tail_chunks          # chunks of the last page: how many, and room for how many
    cdef uint32_t _tail_chunks_capacity
    cdef uint32_t _tail_capacity        # room in the last chunk
    # keys
    cdef uint32_t *_directory
    cdef Table *_tables
    cdef uint32_t _table_count, _table_capacity
    cdef int _depth
    cdef uint64_t _slots_used, _slots_dead
    # what has ended
    cdef Fifo _ended
    cdef Fifo _tombstones
    cdef uint64_t _tombstone_entries
    cdef Hold *_holds
    cdef uint32_t _hold_count, _hold_capacity
    cdef Fifo *_loose
    cdef uint32_t _loose_count, _loose_capacity
    cdef uint64_t _loose_floor, _buried, _top_sup, _ragged_upto, _forced_upto
    cdef uint64_t _bytes
    cdef list _adopted

    @cython.final
    cdef Entry *entry_at(self, uint64_t ordinal) noexcept nogil
    @cython.final
    cdef void prefetch_place(self, uint64_t ordinal) noexcept nogil
    @cython.final
    cdef void prefetch_entry(self, uint64_t ordinal) noexcept nogil
    @cython.final
    cdef void prefetch_slot(self, const uint64_t *hash) noexcept nogil
    @cython.final
    cdef uint64_t ordinal_of(self, const uint64_t *hash) noexcept nogil
    @cython.final
    cdef Entry *current_of(self, const uint64_t *hash) noexcept nogil
    @cython.final
    cdef uint64_t place_of(self, uint64_t ordinal, uint64_t seq) except 0
    @cython.final
    cdef int apply(
        self, uint64_t seq, uint64_t loc, uint32_t size, const uint64_t *hash, uint16_t slot,
        uint16_t flags, int64_t ms,
    ) except -1

    @cython.final
    cdef Chunk *_chunk_of(self, uint64_t number) noexcept nogil
    @cython.final
    cdef Entry *_append(self, uint64_t seq, int64_t ms) except NULL
    @cython.final
    cdef int _add_chunk(self, uint64_t seq, int64_t ms) except -1
    @cython.final
    cdef int _settle_chunk(self, uint64_t number, Chunk *chunk) except -1
    @cython.final
    cdef void _free_chunk(self, uint64_t number, Chunk *chunk) noexcept
    @cython.final
    cdef int _set_key(self, const uint64_t *hash, uint64_t ordinal) except -1
    @cython.final
    cdef int _make_room(self, uint32_t number) except -1
    @cython.final
    cdef Slot *_slot_of(self, const uint64_t *hash) noexcept nogil
    @cython.final
    cdef void _count(self, const Entry *entry, int sign) noexcept nogil
    @cython.final
    cdef int _end(self, Entry *entry, uint64_t ordinal, uint64_t sup) except -1
    @cython.final
    cdef void _ragged(self, uint64_t sup) noexcept nogil
    @cython.final
    cdef bint _end_as_of(self, Entry *entry, uint64_t ordinal, uint64_t by_seq) except -1
    @cython.final
    cdef uint64_t _examine(self, uint64_t count_max) except? 0xFFFFFFFFFFFFFFFF
    @cython.final
    cdef int _let_go(self, uint64_t ordinal) except -1
    @cython.final
    cdef int _remove(self, Entry *entry, uint64_t ordinal) except -1
    @cython.final
    cdef uint32_t _hold_after(self, uint64_t seq) noexcept nogil
    @cython.final
    cdef bint _seek(self, uint64_t after, Cursor *cursor) noexcept nogil
    @cython.final
    cdef Entry *_next(self, Cursor *cursor) noexcept nogil
    @cython.final
    cdef uint64_t _ordinal_at(self, const Cursor *cursor) noexcept nogil
    @cython.final
    cdef Entry *_find(self, uint64_t seq) noexcept nogil
    @cython.final
    cdef object _find_slowly(self, bytes key, uint64_t snapshot)
    @cython.final
    cdef int _empty(self) except -1
    @cython.final
    cdef void _free_all(self) noexcept
    @cython.final
    cdef uint32_t _chunks_in(self, uint32_t page) noexcept nogil
    @cython.final
    cdef int _load(self, parts) except -1
    @cython.final
    cdef int _clean_tombstones(self) except -1
    @cython.final
    cdef void _free_page(self, Page *page) noexcept
    @cython.final
    cdef int _go_on_after(self, uint64_t next_ordinal) except -1
    @cython.final
    cdef int _add_page(self, uint64_t first_seq, int64_t first_ms) except -1
    @cython.final
    cdef void _complete_page(self, uint64_t first_seq, int64_t first_ms) noexcept
    @cython.final
    cdef Page *_page_for(self, uint64_t number, uint64_t first_seq, int64_t first_ms) except? NULL
