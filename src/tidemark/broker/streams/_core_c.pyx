"""Compiled twin of `_core_py`: same names, same answers.

*Entries* (32 bytes) lie by their ordinal, a number that counts the puts of this stream, in chunks of 1024.
Chunks lie in pages of 1024, pages in a table, so an ordinal leads to its entry in three steps and stays good
for ever. A chunk of which less than five eighths are alive is packed: its live entries in a row, and a bitmap that
says which they are. A chunk that is all gone is freed, and a page of such chunks. Sequences rise with ordinals, so
a sequence is found by binary search over pages, chunks and entries; the first sequence of a chunk or page stays
known when it is gone.

*Keys* are 128 bits of a keyed hash (nobody without the secret can make two keys meet) in open addressing:
small tables, chosen by the leading bits of the hash, each of which grows by a quarter or splits on its own, so
no put waits for a large table. A slot holds the ordinal of the newest entry of its key; one whose entry is
gone is dead and dropped when its table grows.

Retention and purge end entries without a look at their keys, so their slots die later. Superseding never
reads the old record either.

In memory: 24 bytes a slot, tables 64 to 80 % full; 32 bytes an entry, chunks 62 to 100 % full. Measured with 8
byte keys that are updated at random: 74 bytes a key, 89 with what lies unused between blocks (`heap.h`).
"""

import struct

from cpython.buffer cimport PyBUF_READ, PyBUF_SIMPLE, PyBUF_WRITABLE, PyBuffer_Release, PyObject_GetBuffer
from cpython.memoryview cimport PyMemoryView_FromMemory
from libc.stdlib cimport calloc, free, malloc, realloc
from libc.string cimport memcmp, memcpy, memmove, memset

from tidemark.broker._target_c cimport mixed
from tidemark.model._arena_c cimport Arena, Head
from tidemark.model._keys_c cimport (
    SCRATCH, Digest, Rule, digest_end, digest_row, digest_start, find_key, is_tombstone, sip24, slot_of_bytes, slot_of_number,
)
from tidemark.model._runs_c cimport Taken, TakenEntry

cdef extern from *:
    """
    /* Without asking for an instruction that not every processor has. */
    static inline int tidemark_popcount(unsigned long long x) {
        x -= (x >> 1) & 0x5555555555555555ull;
        x = (x & 0x3333333333333333ull) + ((x >> 2) & 0x3333333333333333ull);
        x = (x + (x >> 4)) & 0x0f0f0f0f0f0f0f0full;
        return (int)((x * 0x0101010101010101ull) >> 56);
    }
    """
    int popcount "tidemark_popcount"(unsigned long long) noexcept nogil
    int trailing "__builtin_ctzll"(unsigned long long) noexcept nogil

cdef extern from "heap.h":
    void *heap_get "tidemark_heap_get"(size_t size) noexcept
    void give "tidemark_heap_give"(void *block) noexcept

cdef enum:
    CHUNK_SHIFT = 10
    CHUNK_ENTRIES = 1024
    CHUNK_MASK = 1023
    PAGE_SHIFT = 10
    PAGE_CHUNKS = 1024
    PAGE_MASK = 1023

    SLOTS_FIRST = 16
    SLOTS_MAX = 4096                    # a table over this splits
    LINK_ITEMS = 510
    GROUP = 32                          # how many are prefetched together
    COLD_MAX = 16                       # how many extents that are not in memory one `take` may name

    RECORD_TOMBSTONE = 2

cdef uint64_t EVERYTHING = <uint64_t>-1
cdef int64_t NEVER_MS = 0x7FFFFFFFFFFFFFFF     # later than any moment: of chunks that stand for nothing yet
cdef uint64_t NOWHERE = <uint64_t>-1    # the ordinal in an empty slot

EXAMINE_MAX = 65536

DUMP = struct.Struct("<8sIIII16s10QIIII")
DUMP_MAGIC = b"TMstrm01"
DUMP_CHUNK = struct.Struct("<QQqHHI")
DUMP_TABLE = struct.Struct("<III")


# Memory ------------------------------------------------------------------------------------------


cdef void *get(size_t size) except NULL:
    cdef void *block = heap_get(size)
    if block == NULL:
        raise MemoryError
    return block


cdef void *get_double(void *block, size_t size) except NULL:
    """Twice the room, with what is there."""
    cdef void *larger = get(2 * size)
    memcpy(larger, block, size)
    give(block)
    return larger


# Lists of ordinals -----------------------------------------------------------------------------


cdef int fifo_push(Fifo *fifo, uint64_t item) except -1:
    cdef Link *link
    if fifo.tail == NULL or fifo.tail_at == LINK_ITEMS:
        link = <Link *>malloc(sizeof(Link))
        if link == NULL:
            raise MemoryError
        link.next, link.before = NULL, fifo.tail
        if fifo.tail == NULL:
            fifo.head, fifo.head_at = link, 0
        else:
            fifo.tail.next = link
        fifo.tail, fifo.tail_at = link, 0
    fifo.tail.items[fifo.tail_at] = item
    fifo.tail_at += 1
    fifo.count += 1
    return 0


cdef uint64_t fifo_pop(Fifo *fifo) noexcept:
    """The first item; there must be one."""
    cdef uint64_t item = fifo.head.items[fifo.head_at]
    cdef Link *link = fifo.head
    fifo.head_at += 1
    fifo.count -= 1
    if fifo.count == 0 or fifo.head_at == LINK_ITEMS:
        fifo.head = link.next
        if fifo.head == NULL:
            fifo.tail = NULL
        else:
            fifo.head.before = NULL
        fifo.head_at = 0
        free(link)
    return item


cdef void fifo_free(Fifo *fifo) noexcept:
    cdef Link *link = fifo.head
    cdef Link *next
    while link != NULL:
        next = link.next
        free(link)
        link = next
    memset(fifo, 0, sizeof(Fifo))


cdef inline uint32_t fifo_end(const Fifo *fifo, const Link *link) noexcept nogil:
    """Behind the last item in a link."""
    return fifo.tail_at if link == fifo.tail else LINK_ITEMS


cdef object fifo_bytes(const Fifo *fifo):
    """All items, as a copy."""
    cdef Link *link = fifo.head
    cdef uint32_t start = fifo.head_at
    parts = []
    while link != NULL:
        parts.append(
            PyMemoryView_FromMemory(
                <char *>&link.items[start], 8 * (fifo_end(fifo, link) - start), PyBUF_READ
            )
        )
        link, start = link.next, 0
    return b"".join(parts)


# Chunks ------------------------------------------------------------------------------------------


cdef inline Packed *map_of(const Chunk *chunk) noexcept nogil:
    return <Packed *>(<uint8_t *>chunk.entries - sizeof(Packed))


cdef inline Entry *in_chunk(const Chunk *chunk, uint32_t at) noexcept nogil:
    """The entry at this place of the 1024, gone or not; NULL if it is not here any more."""
    cdef Packed *map
    cdef uint64_t word, bit
    if chunk.packed:
        map = map_of(chunk)
        word, bit = map.bits[at >> 6], <uint64_t>1 << (at & 63)
        if not word & bit:
            return NULL
        return chunk.entries + map.rank[at >> 6] + popcount(word & (bit - 1))
    if at >= chunk.used:
        return NULL
    return chunk.entries + at


cdef size_t chunk_bytes(const Chunk *chunk) noexcept nogil:
    """What a chunk takes that is not the last one any more."""
    return chunk.used * sizeof(Entry) + (sizeof(Packed) if chunk.packed else 0)


cdef inline void *chunk_block(const Chunk *chunk) noexcept nogil:
    return <void *>map_of(chunk) if chunk.packed else <void *>chunk.entries


cdef int pack(Chunk *chunk) except -1:
    """Live entries in a row, behind a map of which they are."""
    cdef uint8_t *block = <uint8_t *>get(sizeof(Packed) + chunk.live * sizeof(Entry))
    cdef Packed *map = <Packed *>block
    cdef Packed *old = map_of(chunk)
    cdef Entry *out
    cdef uint32_t i, at = 0, word = 0, n = 0
    cdef uint64_t bits = 0
    out = <Entry *>(block + sizeof(Packed))
    memset(map, 0, sizeof(Packed))
    if chunk.packed:
        bits = old.bits[0]
    for i in range(chunk.used):
        if chunk.packed:
            while bits == 0:
                word += 1
                bits = old.bits[word]
            at = (word << 6) + trailing(bits)
            bits &= bits - 1
        else:
            at = i
        if not chunk.entries[i].flags & GONE:
            out[n] = chunk.entries[i]
            n += 1
            map.bits[at >> 6] |= <uint64_t>1 << (at & 63)
    n = 0
    for i in range(16):
        map.rank[i] = n
        n += popcount(map.bits[i])
    if not chunk.borrowed:
        give(chunk_block(chunk))
    chunk.entries, chunk.used, chunk.packed, chunk.borrowed = out, chunk.live, 1, 0
    return 0


# Tables of keys ----------------------------------------------------------------------------------


cdef inline uint32_t home(const uint64_t *hash, uint32_t capacity) noexcept nogil:
    return <uint32_t>(((hash[1] >> 32) * capacity) >> 32)


cdef inline Slot *table_find(const Table *table, const uint64_t *hash) noexcept nogil:
    """The slot of this hash, or the empty one where it belongs."""
    cdef uint32_t at = home(hash, table.capacity)
    cdef Slot *slot
    while True:
        slot = &table.slots[at]
        if slot.ordinal == NOWHERE or (slot.hash[0] == hash[0] and slot.hash[1] == hash[1]):
            return slot
        at += 1
        if at == table.capacity:
            at = 0


cdef uint32_t capacity_for(uint32_t count) noexcept nogil:
    """Room for this many and a quarter more before it is 80 % full."""
    cdef uint32_t capacity = <uint32_t>(<uint64_t>count * 25 // 16) + 2
    return SLOTS_FIRST if capacity < SLOTS_FIRST else capacity


cdef int table_make(Table *table, uint32_t capacity, int depth) except -1:
    cdef uint32_t i
    table.slots = <Slot *>get(capacity * sizeof(Slot))
    for i in range(capacity):
        table.slots[i].ordinal = NOWHERE
    table.capacity, table.used, table.depth, table.borrowed = capacity, 0, depth, 0
    return 0


cdef inline void table_add(Table *table, const Slot *slot) noexcept nogil:
    table_find(table, slot.hash)[0] = slot[0]
    table.used += 1


cdef class StreamCore(Target):
    """The messages of one stream. `Stream` derives from it and adds what is decided once a declare."""

    LAYOUT = b"stream-c-1"

    def __init__(
        self, Arena arena not None, uint32_t number, int key_kind, bytes key_name not None,
        bytes secret not None, list dirty not None,
    ):
        if self.key_name is not None:
            raise RuntimeError("a stream is made once")
        if len(secret) != 16:
            raise ValueError("a secret of 16 bytes")
        Target.__init__(self, arena, number, True, dirty)
        self.keeps = True
        self.key_kind, self.key_name = key_kind, key_name
        self.rule.kind = key_kind
        self.rule.name, self.rule.name_len = <const uint8_t *><char *>key_name, len(key_name)
        memcpy(self.secret, <char *>secret, 16)
        self._loose_floor = EVERYTHING

    def __dealloc__(self):
        self._free_all()
        free(self._holds)

    cdef void _free_all(self) noexcept:
        """Give all memory back; who holds which snapshot stays known."""
        cdef uint32_t i, j
        cdef Chunk *chunk
        for i in range(self._page_count):
            if self._pages[i].chunks == NULL:
                continue
            for j in range(self._chunks_in(i)):
                chunk = &self._pages[i].chunks[j]
                if chunk.entries != NULL and not chunk.borrowed:
                    give(chunk_block(chunk))
            give(self._pages[i].chunks)
        free(self._pages)
        for i in range(self._table_count):
            if not self._tables[i].borrowed:
                give(self._tables[i].slots)
        free(self._tables)
        free(self._directory)
        fifo_free(&self._ended)
        fifo_free(&self._tombstones)
        for i in range(self._hold_count):
            fifo_free(&self._holds[i].kept)
        for i in range(self._loose_count):
            fifo_free(&self._loose[i])
        free(self._loose)
        self._pages, self._tables, self._directory, self._loose = NULL, NULL, NULL, NULL
        self._page_count = self._page_capacity = self._tail_chunks = self._tail_chunks_capacity = 0
        self._tail_capacity = 0
        self._table_count = self._table_capacity = self._loose_count = self._loose_capacity = 0
        self._depth = 0

    @property
    def loose(self):
        """Entries of snapshots that are gone which the next `release` looks at."""
        cdef uint32_t i
        cdef uint64_t count = 0
        for i in range(self._loose_count):
            count += self._loose[i].count
        return count

    @property
    def first_seq(self):
        """The lowest sequence in the index; 0 if it is empty."""
        cdef Cursor cursor
        cdef Entry *entry
        if not self._seek(0, &cursor):
            return 0
        entry = self._next(&cursor)
        return 0 if entry == NULL else entry.seq

    @property
    def memory_bytes(self):
        """What the index takes in memory."""
        cdef uint64_t waiting = self._ended.count + self._tombstones.count
        cdef uint32_t i
        for i in range(self._hold_count):
            waiting += self._holds[i].kept.count
        return (
            self._bytes + 8 * (waiting + self.loose) + self._page_capacity * sizeof(Page)
            + self._table_capacity * sizeof(Table) + (4 << self._depth)
        )

    @property
    def buried_seq(self):
        """No entry with `sup` up to this one is in the index any more."""
        cdef uint64_t lowest
        if not self.held:
            return self.arena.next_seq - 1
        lowest = min(self._buried, self._loose_floor)
        return min(lowest, self._holds[0].seq) if self._hold_count else lowest

    # Entries by ordinal -------------------------------------------------------------------------

    cdef inline uint32_t _chunks_in(self, uint32_t page) noexcept nogil:
        return self._tail_chunks if page == self._page_count - 1 else PAGE_CHUNKS

    cdef inline Chunk *_chunk_of(self, uint64_t number) noexcept nogil:
        """A chunk by its number, all gone or not; NULL if its page is."""
        cdef uint64_t page = (number >> PAGE_SHIFT) - self._first_page
        if page >= self._page_count or self._pages[page].chunks == NULL:
            return NULL
        if page == self._page_count - 1 and (number & PAGE_MASK) >= self._tail_chunks:
            return NULL
        return &self._pages[page].chunks[number & PAGE_MASK]

    cdef Entry *entry_at(self, uint64_t ordinal) noexcept nogil:
        """The entry with this ordinal; NULL if it is gone. Good until something is removed or put."""
        cdef Chunk *chunk = self._chunk_of(ordinal >> CHUNK_SHIFT)
        cdef Entry *entry
        if chunk == NULL or chunk.entries == NULL:
            return NULL
        entry = in_chunk(chunk, ordinal & CHUNK_MASK)
        return NULL if entry == NULL or entry.flags & GONE else entry

    cdef void prefetch_place(self, uint64_t ordinal) noexcept nogil:
        """First step towards an entry: what says where it lies."""
        cdef Chunk *chunk = self._chunk_of(ordinal >> CHUNK_SHIFT)
        cdef Packed *map
        if chunk == NULL or chunk.entries == NULL:
            return
        if chunk.packed:
            map = map_of(chunk)
            prefetch(&map.bits[(ordinal & CHUNK_MASK) >> 6])
            prefetch(map.rank)
        else:
            prefetch(&chunk.entries[ordinal & CHUNK_MASK])

    cdef void prefetch_entry(self, uint64_t ordinal) noexcept nogil:
        """Second step: the entry of a packed chunk."""
        cdef Chunk *chunk = self._chunk_of(ordinal >> CHUNK_SHIFT)
        if chunk != NULL and chunk.entries != NULL and chunk.packed:
            prefetch(in_chunk(chunk, ordinal & CHUNK_MASK))

    cdef int _add_chunk(self, uint64_t seq, int64_t ms) except -1:
        """A new chunk at the end. The ordinal that comes next is its first."""
        cdef uint64_t number = self._next_ordinal >> CHUNK_SHIFT
        cdef Page *pages
        cdef Page *page
        cdef Chunk *chunk
        cdef uint32_t capacity
        if self._page_count == 0 or (number >> PAGE_SHIFT) - self._first_page >= self._page_count:
            if self._page_count == self._page_capacity:
                capacity = self._page_capacity * 2 if self._page_capacity else 1
                pages = <Page *>realloc(self._pages, capacity * sizeof(Page))
                if pages == NULL:
                    raise MemoryError
                self._pages, self._page_capacity = pages, capacity
            if self._page_count == 0:
                self._first_page = number >> PAGE_SHIFT
            elif self._pages[self._page_count - 1].live == 0:
                self._free_page(&self._pages[self._page_count - 1])
            page = &self._pages[self._page_count]
            page.chunks = <Chunk *>get(4 * sizeof(Chunk))
            page.first_seq, page.first_ms, page.live = seq, ms, 0
            self._bytes += 4 * sizeof(Chunk)
            self._page_count += 1
            self._tail_chunks, self._tail_chunks_capacity = 0, 4
        page = &self._pages[self._page_count - 1]
        if self._tail_chunks == self._tail_chunks_capacity:
            page.chunks = <Chunk *>get_double(page.chunks, self._tail_chunks_capacity * sizeof(Chunk))
            self._bytes += self._tail_chunks_capacity * sizeof(Chunk)
            self._tail_chunks_capacity *= 2
        chunk = &page.chunks[self._tail_chunks]
        memset(chunk, 0, sizeof(Chunk))
        capacity = 16
        while capacity < self.entries and capacity < CHUNK_ENTRIES:
            capacity *= 2
        chunk.entries = <Entry *>get(capacity * sizeof(Entry))
        chunk.first_seq, chunk.first_ms = seq, ms
        self._tail_capacity = capacity
        self._bytes += capacity * sizeof(Entry)
        page.live += 1
        self._tail_chunks += 1
        return 0

    cdef Entry *_append(self, uint64_t seq, int64_t ms) except NULL:
        """A new entry at the end, to be filled in."""
        cdef Chunk *chunk
        if self._next_ordinal & CHUNK_MASK == 0:
            self._add_chunk(seq, ms)
        chunk = &self._pages[self._page_count - 1].chunks[self._tail_chunks - 1]
        if chunk.used == self._tail_capacity:
            chunk.entries = <Entry *>get_double(chunk.entries, self._tail_capacity * sizeof(Entry))
            self._bytes += self._tail_capacity * sizeof(Entry)
            self._tail_capacity *= 2
        chunk.used += 1
        chunk.live += 1
        self._next_ordinal += 1
        return &chunk.entries[chunk.used - 1]

    cdef void _free_chunk(self, uint64_t number, Chunk *chunk) noexcept:
        cdef Page *page = &self._pages[(number >> PAGE_SHIFT) - self._first_page]
        cdef uint32_t leading = 0
        self._bytes -= chunk_bytes(chunk)
        if not chunk.borrowed:
            give(chunk_block(chunk))
        chunk.entries, chunk.packed, chunk.borrowed = NULL, 0, 0
        page.live -= 1
        if page.live or page == &self._pages[self._page_count - 1]:
            return
        self._free_page(page)
        while leading < self._page_count - 1 and self._pages[leading].chunks == NULL:
            leading += 1
        if leading > self._page_count // 2:
            self._page_count -= leading
            self._first_page += leading
            memmove(self._pages, self._pages + leading, self._page_count * sizeof(Page))

    cdef void _free_page(self, Page *page) noexcept:
        """All chunks of a page that is not the last one are gone."""
        if page.chunks != NULL:
            give(page.chunks)
            self._bytes -= PAGE_CHUNKS * sizeof(Chunk)
            page.chunks = NULL

    cdef int _settle_chunk(self, uint64_t number, Chunk *chunk) except -1:
        """Free a chunk that is all gone, pack one of which less than five eighths are alive. Not the last one."""
        if chunk.live == 0:
            self._free_chunk(number, chunk)
        elif 8 * chunk.live < 5 * chunk.used and chunk.used > 16:
            self._bytes -= chunk_bytes(chunk)
            pack(chunk)
            self._bytes += chunk_bytes(chunk)
        return 0

    # Keys -----------------------------------------------------------------------------------------

    cdef inline Slot *_slot_of(self, const uint64_t *hash) noexcept nogil:
        if self._table_count == 0:
            return NULL
        return table_find(
            &self._tables[self._directory[hash[0] >> (64 - self._depth) if self._depth else 0]], hash
        )

    cdef void prefetch_slot(self, const uint64_t *hash) noexcept nogil:
        cdef Table *table
        cdef Slot *slot
        if self._table_count:
            table = &self._tables[self._directory[hash[0] >> (64 - self._depth) if self._depth else 0]]
            slot = &table.slots[home(hash, table.capacity)]
            prefetch(slot)
            prefetch(<uint8_t *>slot + 64)

    cdef uint64_t ordinal_of(self, const uint64_t *hash) noexcept nogil:
        """The ordinal in the slot of a key; NOWHERE if it has none."""
        cdef Slot *slot = self._slot_of(hash)
        return NOWHERE if slot == NULL else slot.ordinal

    cdef Entry *current_of(self, const uint64_t *hash) noexcept nogil:
        """The current entry of a key; NULL if it has none."""
        cdef uint64_t ordinal = self.ordinal_of(hash)
        cdef Entry *entry = NULL
        if ordinal != NOWHERE:
            entry = self.entry_at(ordinal)
        return NULL if entry == NULL or entry.sup != EVERYTHING else entry

    cdef int _set_key(self, const uint64_t *hash, uint64_t ordinal) except -1:
        """This ordinal is the newest of a key that has no slot yet."""
        cdef uint32_t number
        cdef Table *table
        cdef Slot new
        if self._table_count == 0:
            self._tables = <Table *>malloc(sizeof(Table))
            self._directory = <uint32_t *>calloc(1, sizeof(uint32_t))
            if self._tables == NULL or self._directory == NULL:
                raise MemoryError
            table_make(self._tables, SLOTS_FIRST, 0)
            self._bytes += SLOTS_FIRST * sizeof(Slot)
            self._table_count = self._table_capacity = 1
        while True:
            number = self._directory[hash[0] >> (64 - self._depth) if self._depth else 0]
            table = &self._tables[number]
            if (table.used + 1) * <uint64_t>5 <= table.capacity * <uint64_t>4:
                break
            self._make_room(number)
        new.hash[0], new.hash[1], new.ordinal = hash[0], hash[1], ordinal
        table_add(table, &new)
        self._slots_used += 1
        return 0

    cdef int _make_room(self, uint32_t number) except -1:
        """A table is full: drop its dead slots, if there are many; then it grows, or splits in two."""
        cdef Table old = self._tables[number]
        cdef Table *tables
        cdef Table halves[2]
        cdef uint32_t *directory
        cdef uint32_t i, ahead, kept = 0, size, step, start
        cdef uint64_t dropped = 0
        cdef bint sweep = self._slots_dead * 4 > self._slots_used
        cdef bint split
        cdef Slot *slot
        if sweep:
            for i in range(old.capacity):
                ahead = i + 16
                if ahead < old.capacity and old.slots[ahead].ordinal != NOWHERE:
                    self.prefetch_place(old.slots[ahead].ordinal)
                slot = &old.slots[i]
                if slot.ordinal != NOWHERE and self.entry_at(slot.ordinal) == NULL:
                    slot.ordinal = NOWHERE
                    dropped += 1
            self._slots_dead -= min(dropped, self._slots_dead)
            self._slots_used -= dropped
        kept = old.used - <uint32_t>dropped
        split = capacity_for(kept) > SLOTS_MAX and old.depth < 40
        if split and self._table_count == self._table_capacity:
            size = self._table_capacity * 2
            tables = <Table *>realloc(self._tables, size * sizeof(Table))
            if tables == NULL:
                raise MemoryError
            self._tables, self._table_capacity = tables, size
        if split and old.depth == self._depth:
            directory = <uint32_t *>malloc(sizeof(uint32_t) << (self._depth + 1))
            if directory == NULL:
                raise MemoryError
            for i in range(<uint32_t>1 << self._depth):
                directory[2 * i] = directory[2 * i + 1] = self._directory[i]
            free(self._directory)
            self._directory = directory
            self._depth += 1
        if not split:
            table_make(&halves[0], capacity_for(kept), old.depth)
            for i in range(old.capacity):
                if old.slots[i].ordinal != NOWHERE:
                    table_add(&halves[0], &old.slots[i])
        else:
            size = 0
            for i in range(old.capacity):
                if old.slots[i].ordinal != NOWHERE:
                    size += <uint32_t>(old.slots[i].hash[0] >> (63 - old.depth)) & 1
            table_make(&halves[0], capacity_for(kept - size), old.depth + 1)
            table_make(&halves[1], capacity_for(size), old.depth + 1)
            for i in range(old.capacity):
                if old.slots[i].ordinal != NOWHERE:
                    table_add(
                        &halves[(old.slots[i].hash[0] >> (63 - old.depth)) & 1], &old.slots[i]
                    )
            # The entries of the directory that led to the old table are a run; its second half leads to the new.
            i = 0
            while old.slots[i].ordinal == NOWHERE:
                i += 1
            start = 0
            if old.depth:
                start = <uint32_t>(old.slots[i].hash[0] >> (64 - old.depth)) << (self._depth - old.depth)
            step = <uint32_t>1 << (self._depth - old.depth - 1)
            for i in range(step):
                self._directory[start + step + i] = self._table_count
            self._tables[self._table_count] = halves[1]
            self._table_count += 1
            self._bytes += halves[1].capacity * sizeof(Slot)
        self._bytes += halves[0].capacity * sizeof(Slot)
        self._tables[number] = halves[0]
        self._bytes -= old.capacity * sizeof(Slot)
        if not old.borrowed:
            give(old.slots)
        return 0

    # In ---------------------------------------------------------------------------------------------

    cdef void _count(self, const Entry *entry, int sign) noexcept nogil:
        if entry.sup != EVERYTHING:
            self.held += sign
            self.held_bytes += sign * <int64_t>entry.size
        elif entry.flags & TOMBSTONE:
            self.tombstones += sign
        else:
            self.live += sign
            self.live_bytes += sign * <int64_t>entry.size

    cdef int apply(
        self, uint64_t seq, uint64_t loc, uint32_t size, const uint64_t *hash, uint16_t slot,
        uint16_t flags, int64_t ms,
    ) except -1:
        """A new entry; it supersedes the current one of its key. `seq` is above every other."""
        cdef Slot *known
        cdef Entry *before
        cdef Entry *entry
        cdef uint64_t ordinal = self._next_ordinal
        if self.key_kind == LOG:
            flags = DELETES if flags & TOMBSTONE else 0
        if flags & HAS_KEY:
            known = self._slot_of(hash)
            if known == NULL or known.ordinal == NOWHERE:
                self._set_key(hash, ordinal)
                flags |= FRESH
            else:
                before = self.entry_at(known.ordinal)
                if before == NULL:
                    if self._slots_dead:
                        self._slots_dead -= 1
                    flags |= FRESH
                elif before.sup != EVERYTHING:
                    # The slot goes over to the new one: it will not die with the old.
                    before.flags &= ~FORCED
                    flags |= FRESH
                else:
                    self._end(before, known.ordinal, seq)
                known.ordinal = ordinal
        if flags & TOMBSTONE:
            fifo_push(&self._tombstones, ordinal)
            self._tombstone_entries += 1
        entry = self._append(seq, ms)
        entry.seq, entry.loc, entry.sup = seq, loc, EVERYTHING
        entry.size, entry.slot, entry.flags = size, slot, flags
        self.arena.retain_at(loc, size)
        self.entries += 1
        self._count(entry, 1)
        if self._next_ordinal & CHUNK_MASK == 0:
            ordinal >>= CHUNK_SHIFT
            self._settle_chunk(ordinal, self._chunk_of(ordinal))
        self.last_seq = seq
        self.published += 1
        return 0

    cdef int put_entry(
        self, uint64_t seq, uint64_t loc, uint32_t size, int64_t priority, int64_t expires_ms,
        uint8_t flags, uint16_t deliveries,
    ) except -1:
        cdef const uint8_t *record
        cdef const uint8_t *key
        cdef uint8_t scratch[SCRATCH]
        cdef uint32_t key_size = 0
        cdef uint64_t hash[2]
        cdef uint16_t marks = 0, slot
        if seq <= self.last_seq:
            return 0
        record = self.arena.at(loc)
        key = find_key(record, &self.rule, scratch, &key_size)
        if key == NULL:
            slot = slot_of_number(seq)
        else:
            marks = HAS_KEY
            sip24(self.secret, key, key_size, hash)
            slot = slot_of_bytes(key, key_size)
            if (<const Head *>record).body_len == 0 and is_tombstone(record):
                marks |= TOMBSTONE
                if not (<const Head *>record).flags & RECORD_TOMBSTONE:
                    (<Head *>record).flags |= RECORD_TOMBSTONE
        self.apply(seq, loc, size, hash, slot, marks, (<const Head *>record).accepted_ms)
        if not self.is_dirty:
            self.touch()
        return 0

    cdef void foresee(self, const uint8_t *record, int step, uint64_t *memo) noexcept:
        cdef const uint8_t *key
        cdef uint8_t scratch[SCRATCH]
        cdef uint32_t size = 0
        if step == 0:
            key = find_key(record, &self.rule, scratch, &size)
            memo[3] = key != NULL
            if key != NULL:
                sip24(self.secret, key, size, memo)
                self.prefetch_slot(memo)
        elif step == 1:
            memo[2] = self.ordinal_of(memo) if memo[3] else NOWHERE
            if memo[2] != NOWHERE:
                self.prefetch_place(memo[2])
        elif memo[2] != NOWHERE:
            self.prefetch_entry(memo[2])

    def put(self, seq, loc, size, priority, expires_ms, flags, deliveries=0):
        """A message of this stream lies at `loc`: it supersedes the current one of its key."""
        self.arena._extent(<uint64_t>loc >> 32)
        self.put_entry(seq, loc, size, priority, expires_ms, flags, deliveries)

    def restore(self, seq, loc, size, priority, expires_ms, deliveries):
        """Recovery: a message as the journal has it. One that is known already changes nothing."""
        cdef uint64_t published = self.published
        self.put(seq, loc, size, priority, expires_ms, 0, deliveries)
        self.published = published

    # Ends ---------------------------------------------------------------------------------------------

    cdef int _end(self, Entry *entry, uint64_t ordinal, uint64_t sup) except -1:
        """A current entry is superseded."""
        fifo_push(&self._ended, ordinal)
        self._count(entry, -1)
        entry.sup = sup
        self._count(entry, 1)
        if sup < self._top_sup or sup <= self._buried:
            self._ragged(sup)
        self._top_sup = max(self._top_sup, sup)
        return 0

    cdef void _ragged(self, uint64_t sup) noexcept nogil:
        """Something ended earlier than what stands before it: it goes late, and is no longer buried."""
        self._ragged_upto = self._top_sup
        if sup - 1 < self._buried:
            self._buried = sup - 1

    cdef bint _end_as_of(self, Entry *entry, uint64_t ordinal, uint64_t by_seq) except -1:
        """End an entry at `by_seq`, unless it ended before. True if it was current."""
        if entry.sup == EVERYTHING:
            if entry.flags & HAS_KEY:
                entry.flags |= FORCED
            self._end(entry, ordinal, by_seq)
            return True
        if by_seq < entry.sup:
            entry.sup = by_seq
            self._ragged(by_seq)
        return False

    def end_below(self, uint64_t floor_seq, uint64_t by_seq):
        """Retention: what is older than `floor_seq` ends, as if superseded by `by_seq`. Returns how many did."""
        cdef Cursor cursor
        cdef Entry *entry
        cdef uint64_t ended = 0
        self._forced_upto = max(self._forced_upto, by_seq)
        if not self._seek(0, &cursor):
            return 0
        while True:
            entry = self._next(&cursor)
            if entry == NULL or entry.seq >= floor_seq:
                return ended
            if entry.sup > by_seq:
                ended += self._end_as_of(entry, self._ordinal_at(&cursor), by_seq)

    def end_tombstones(self, uint64_t upto_seq, uint64_t by_seq):
        """Tombstones up to `upto_seq` end, as if superseded by `by_seq`. Returns how many did."""
        cdef Entry *entry
        cdef uint64_t ended = 0
        self._forced_upto = max(self._forced_upto, by_seq)
        while self._tombstones.count:
            entry = self.entry_at(self._tombstones.head.items[self._tombstones.head_at])
            if entry != NULL:
                if entry.seq > upto_seq:
                    break
                ended += self._end_as_of(
                    entry, self._tombstones.head.items[self._tombstones.head_at], by_seq
                )
            fifo_pop(&self._tombstones)
        return ended

    def oldest_tombstone(self):
        """(seq, loc) of the oldest current tombstone."""
        cdef Link *link = self._tombstones.head
        cdef uint32_t at = self._tombstones.head_at
        cdef Entry *entry
        while link != NULL:
            while at < fifo_end(&self._tombstones, link):
                entry = self.entry_at(link.items[at])
                if entry != NULL and entry.sup == EVERYTHING:
                    return entry.seq, entry.loc
                at += 1
            link, at = link.next, 0
        return None

    def release(self, uint64_t upto_seq, uint64_t count_max=<uint64_t>1 << 62):
        """Remove what was superseded up to `upto_seq` and no held snapshot sees. Returns how many."""
        cdef uint64_t before = self.entries, looked, ordinal
        cdef uint32_t at, end
        cdef Link *link
        cdef Entry *entry
        looked = self._examine(min(count_max, <uint64_t>65536))
        while looked < count_max and self._ended.count:
            link, at = self._ended.head, self._ended.head_at
            ordinal = link.items[at]
            if at & (GROUP - 1) == 0 or looked == 0:
                # Make the entries of the next ones known to the cache: they lie anywhere.
                end = min(fifo_end(&self._ended, link), (at & ~<uint32_t>(GROUP - 1)) + GROUP)
                for at in range(at, end):
                    self.prefetch_place(link.items[at])
                for at in range(self._ended.head_at, end):
                    self.prefetch_entry(link.items[at])
            entry = self.entry_at(ordinal)
            if entry != NULL and entry.sup > upto_seq:
                break
            fifo_pop(&self._ended)
            self._let_go(ordinal)
            looked += 1
        if self._ended.count == 0:
            self._ragged_upto = 0
        if looked < count_max and upto_seq >= self._ragged_upto:
            # What ends later is not buried by this, however far ahead `upto_seq` was.
            self._buried = max(self._buried, min(upto_seq, self.arena.next_seq - 1))
        return before - self.entries

    cdef uint64_t _examine(self, uint64_t count_max) except? 0xFFFFFFFFFFFFFFFF:
        cdef uint64_t looked = 0, ordinal
        while looked < count_max and self._loose_count:
            if self._loose[0].count == 0:
                self._loose_count -= 1
                memmove(self._loose, self._loose + 1, self._loose_count * sizeof(Fifo))
                continue
            ordinal = fifo_pop(&self._loose[0])
            self._let_go(ordinal)
            looked += 1
        while self._loose_count and self._loose[0].count == 0:
            self._loose_count -= 1
            memmove(self._loose, self._loose + 1, self._loose_count * sizeof(Fifo))
        if self._loose_count == 0:
            self._loose_floor = EVERYTHING
        return looked

    cdef int _let_go(self, uint64_t ordinal) except -1:
        """An ended entry goes, or to the newest of the held snapshots that see it."""
        cdef Entry *entry = self.entry_at(ordinal)
        cdef uint32_t at
        if entry == NULL:
            return 0
        if self._hold_count:
            at = self._hold_after(entry.sup)
            if at and self._holds[at - 1].seq >= entry.seq:
                fifo_push(&self._holds[at - 1].kept, ordinal)
                return 0
        if entry.sup > self.complete_from:
            self.complete_from = entry.sup
        self._remove(entry, ordinal)
        return 0

    cdef int _remove(self, Entry *entry, uint64_t ordinal) except -1:
        cdef uint64_t number = ordinal >> CHUNK_SHIFT
        cdef Chunk *chunk = self._chunk_of(number)
        cdef uint64_t loc = entry.loc
        cdef uint32_t size = entry.size
        self._count(entry, -1)
        if entry.flags & FORCED:
            self._slots_dead += 1
        if entry.flags & TOMBSTONE:
            self._tombstone_entries -= 1
        entry.flags |= GONE
        chunk.live -= 1
        self.entries -= 1
        if number != self._next_ordinal >> CHUNK_SHIFT:
            self._settle_chunk(number, chunk)
        if self._tombstones.count > 2 * self._tombstone_entries + 1024:
            self._clean_tombstones()
        if loc:
            self.arena.release_at(loc, size)
        return 0

    cdef int _clean_tombstones(self) except -1:
        """Forget the ordinals of tombstones that are gone."""
        cdef Fifo kept
        cdef uint64_t ordinal
        memset(&kept, 0, sizeof(Fifo))
        while self._tombstones.count:
            ordinal = fifo_pop(&self._tombstones)
            if self.entry_at(ordinal) != NULL:
                fifo_push(&kept, ordinal)
        self._tombstones = kept
        return 0

    # Snapshots ----------------------------------------------------------------------------------------

    cdef uint32_t _hold_after(self, uint64_t seq) noexcept nogil:
        """How many held snapshots are below `seq`."""
        cdef uint32_t low = 0, high = self._hold_count, middle
        while low < high:
            middle = (low + high) // 2
            if self._holds[middle].seq < seq:
                low = middle + 1
            else:
                high = middle
        return low

    def hold(self, uint64_t seq):
        """A snapshot at `seq` is open: what it sees stays until as many `unhold`."""
        cdef uint32_t at = self._hold_after(seq), capacity
        cdef Hold *holds
        if at == self._hold_count or self._holds[at].seq != seq:
            if self._hold_count == self._hold_capacity:
                capacity = self._hold_capacity * 2 if self._hold_capacity else 4
                holds = <Hold *>realloc(self._holds, capacity * sizeof(Hold))
                if holds == NULL:
                    raise MemoryError
                self._holds, self._hold_capacity = holds, capacity
            memmove(
                self._holds + at + 1, self._holds + at, (self._hold_count - at) * sizeof(Hold)
            )
            memset(&self._holds[at], 0, sizeof(Hold))
            self._holds[at].seq = seq
            self._hold_count += 1
        self._holds[at].count += 1

    def unhold(self, uint64_t seq):
        """Raises: KeyError: nobody holds it."""
        cdef uint32_t at = self._hold_after(seq), capacity
        cdef Fifo *loose
        cdef Fifo kept
        if at == self._hold_count or self._holds[at].seq != seq:
            raise KeyError(seq)
        if self._holds[at].count > 1:
            self._holds[at].count -= 1
            return
        if self._loose_count == self._loose_capacity:
            capacity = self._loose_capacity * 2 if self._loose_capacity else 4
            loose = <Fifo *>realloc(self._loose, capacity * sizeof(Fifo))
            if loose == NULL:
                raise MemoryError
            self._loose, self._loose_capacity = loose, capacity
        kept = self._holds[at].kept
        self._hold_count -= 1
        memmove(self._holds + at, self._holds + at + 1, (self._hold_count - at) * sizeof(Hold))
        if kept.count:
            self._loose[self._loose_count] = kept
            self._loose_count += 1
            self._loose_floor = min(self._loose_floor, seq)
            self._examine(65536)

    cdef bint _seek(self, uint64_t after, Cursor *cursor) noexcept nogil:
        """Stand before the first entry above `after`. False if there is no entry at all."""
        cdef uint32_t low, high, middle
        cdef Page *page
        cdef Chunk *chunk
        if self._page_count == 0:
            return False
        low, high = 0, self._page_count - 1
        while low < high:                   # the last page that begins at or below `after`, or the first
            middle = (low + high + 1) // 2
            if self._pages[middle].first_seq <= after:
                low = middle
            else:
                high = middle - 1
        cursor.page, cursor.chunk, cursor.index = low, 0, 0
        page = &self._pages[low]
        if page.chunks != NULL:
            low, high = 0, self._chunks_in(cursor.page) - 1
            while low < high:
                middle = (low + high + 1) // 2
                if page.chunks[middle].first_seq <= after:
                    low = middle
                else:
                    high = middle - 1
            cursor.chunk = low
            chunk = &page.chunks[low]
            if chunk.entries != NULL:
                low, high = 0, chunk.used
                while low < high:
                    middle = (low + high) // 2
                    if chunk.entries[middle].seq <= after:
                        low = middle + 1
                    else:
                        high = middle
                cursor.index = low
        # `_next` steps first
        cursor.index -= 1
        return True

    cdef Entry *_next(self, Cursor *cursor) noexcept nogil:
        """Step to the next entry that is not gone; NULL at the end."""
        cdef Page *page
        cdef Chunk *chunk
        cdef uint32_t i
        cursor.index += 1
        while cursor.page < self._page_count:
            page = &self._pages[cursor.page]
            if page.chunks != NULL:
                while cursor.chunk < self._chunks_in(cursor.page):
                    chunk = &page.chunks[cursor.chunk]
                    if chunk.entries != NULL:
                        for i in range(cursor.index, chunk.used):
                            if not chunk.entries[i].flags & GONE:
                                cursor.index = i
                                return &chunk.entries[i]
                    cursor.chunk += 1
                    cursor.index = 0
            cursor.page += 1
            cursor.chunk = cursor.index = 0
        return NULL

    cdef uint64_t _ordinal_at(self, const Cursor *cursor) noexcept nogil:
        """The ordinal of the entry on which a cursor stands."""
        cdef Chunk *chunk = &self._pages[cursor.page].chunks[cursor.chunk]
        cdef uint32_t at = cursor.index, word = 15
        cdef Packed *map
        cdef uint64_t bits
        if chunk.packed:
            map = map_of(chunk)
            while map.rank[word] > at:
                word -= 1
            bits = map.bits[word]
            for at in range(map.rank[word], at):
                bits &= bits - 1
            at = (word << 6) + trailing(bits)
        return (
            ((self._first_page + cursor.page) << PAGE_SHIFT | cursor.chunk) << CHUNK_SHIFT
        ) | at

    def take(
        self, uint64_t snapshot, uint64_t after, uint64_t until, int64_t count, int64_t bytes_max,
        uint32_t slot_low=0, uint32_t slot_end=65536,
    ):
        """Rows that `snapshot` sees with `after < seq <= until`, in order, at least one."""
        cdef uint64_t end = min(until, snapshot), base
        cdef Cursor cursor
        cdef Entry *entry
        cdef Chunk *chunk
        cdef Packed *map = NULL
        cdef Taken taken = None
        cdef TakenEntry *row
        cdef int64_t size = 0, n = 0
        cdef uint32_t i, at, word, extent, last_extent = 0, cold = 0
        cdef uint64_t bits
        self.position = max(after, end)
        if count < 1:
            self.position = after
            return None
        if after >= end or not self._seek(after, &cursor):
            return None
        entry = self._next(&cursor)
        while entry != NULL and entry.seq <= end:
            # One chunk: `at` is the place of its entry `i` among the 1024.
            chunk = &self._pages[cursor.page].chunks[cursor.chunk]
            base = self._ordinal_at(&cursor)
            at = base & CHUNK_MASK
            base -= at
            word, bits = at >> 6, 0
            if chunk.packed:
                map = map_of(chunk)
                bits = map.bits[word] & ~(((<uint64_t>1 << (at & 63)) - 1))
            for i in range(cursor.index, chunk.used):
                if chunk.packed:
                    while bits == 0:
                        word += 1
                        bits = map.bits[word]
                    at = (word << 6) + trailing(bits)
                    bits &= bits - 1
                else:
                    at = i
                entry = &chunk.entries[i]
                if entry.seq > end:
                    return taken
                if entry.flags & GONE or entry.sup <= snapshot or not slot_low <= entry.slot < slot_end:
                    continue
                if taken is None:
                    taken = Taken.__new__(Taken)
                extent = entry.loc >> 32
                if extent and extent != last_extent:
                    last_extent = extent
                    if self.arena.table[extent].base == NULL:
                        cold += 1
                        if cold > COLD_MAX and n:
                            self.position = entry.seq - 1
                            return taken
                row = taken.next_entry()
                row.index, row.seq, row.loc, row.size = base + at, entry.seq, entry.loc, entry.size
                row.flags = TOMBSTONE if entry.flags & (TOMBSTONE | DELETES) else 0
                row.deliveries, row.spare = entry.slot, 0
                size += entry.size
                n += 1
                if n == count or size >= bytes_max:
                    self.position = entry.seq
                    return taken
            cursor.index = chunk.used
            entry = self._next(&cursor)
        return taken

    def tally(
        self, uint64_t snapshot, uint64_t after, uint64_t until, uint32_t slot_low=0, uint32_t slot_end=65536,
    ):
        """How many values and tombstones `take` would give, and the bytes of their bodies."""
        cdef uint64_t end = min(until, snapshot), values = 0, tombstones = 0, size = 0
        cdef Cursor cursor
        cdef Entry *entry
        if self._seek(after, &cursor):
            while True:
                entry = self._next(&cursor)
                if entry == NULL or entry.seq > end:
                    break
                if entry.sup > snapshot and slot_low <= entry.slot < slot_end:
                    if entry.flags & (TOMBSTONE | DELETES):
                        tombstones += 1
                    else:
                        values += 1
                    size += entry.size
        return values, tombstones, size

    def cut(
        self, uint64_t snapshot, uint64_t after, uint64_t until, uint64_t rows_max, uint64_t bytes_max,
        uint64_t rows, uint64_t size, Py_ssize_t pieces_max, int64_t look_max,
        uint32_t slot_low=0, uint32_t slot_end=65536, const uint8_t[::1] wanted=None,
    ):
        """Count what `take` would give, and cut it where a piece would have too many rows or bytes."""
        cdef uint64_t end = min(until, snapshot), last = after
        cdef int64_t looked = 0
        cdef bint all_slots = wanted is None
        cdef Cursor cursor
        cdef Entry *entry
        cdef list pieces = []
        if not all_slots and wanted.shape[0] < 65536:
            raise ValueError("a byte for each of 65536 slots")
        self.position = max(after, end)
        if after >= end or not self._seek(after, &cursor):
            return pieces, rows, size
        while True:
            entry = self._next(&cursor)
            if entry == NULL or entry.seq > end:
                break
            if looked == look_max:
                self.position = last
                break
            looked += 1
            if entry.sup > snapshot and slot_low <= entry.slot < slot_end and (
                all_slots or wanted[entry.slot]
            ):
                if rows and (rows >= rows_max or size + entry.size > bytes_max):
                    pieces.append((last, rows, size))
                    rows = size = 0
                    if len(pieces) >= pieces_max:
                        self.position = last
                        break
                rows += 1
                size += entry.size
            last = entry.seq
        return pieces, rows, size

    def kept(self, uint64_t snapshot):
        """Number and bytes of superseded entries that a snapshot sees: what it costs to keep."""
        cdef uint64_t number = 0, size = 0
        cdef Cursor cursor
        cdef Entry *entry
        if self.held and self._seek(0, &cursor):
            while True:
                entry = self._next(&cursor)
                if entry == NULL or entry.seq > snapshot:
                    break
                if entry.sup > snapshot and entry.sup != EVERYTHING:
                    number += 1
                    size += entry.size
        return number, size

    def digest(self, Taken taken not None):
        """What these rows add to the hash of a snapshot."""
        cdef Py_ssize_t i
        cdef TakenEntry *row
        cdef const uint8_t *record
        cdef const uint8_t *key
        cdef const Head *head
        cdef uint8_t scratch[SCRATCH]
        cdef uint32_t size = 0
        cdef Digest digest
        digest_start(&digest)
        for i in range(taken.count):
            fetch_ahead(self.arena, taken, i + 8)
            row = &taken.entries[i]
            record = self.arena.at(self.place_of(row.index, row.seq))
            head = <const Head *>record
            key = find_key(record, &self.rule, scratch, &size)
            digest_row(
                &digest, row.seq, row.flags & TOMBSTONE, key, size,
                record + sizeof(Head) + 4 * <size_t>head.targets + head.exchange_len + head.key_len
                + head.keyed_len + head.properties_len, head.body_len,
            )
        digest_end(&digest)
        return <object>digest.sum[1] << 64 | digest.sum[0]

    # One by one -----------------------------------------------------------------------------------------

    def current(self, bytes key not None):
        """(seq, loc, is a tombstone) of the newest version of a key, shown or not."""
        cdef uint64_t hash[2]
        cdef Entry *entry
        sip24(self.secret, <const uint8_t *><char *>key, len(key), hash)
        entry = self.current_of(hash)
        return None if entry == NULL else (entry.seq, entry.loc, bool(entry.flags & TOMBSTONE))

    def find(self, bytes key not None, uint64_t snapshot):
        """(seq, loc, is a tombstone) of the version of a key that a snapshot sees."""
        cdef uint64_t hash[2]
        cdef uint64_t ordinal
        cdef Entry *entry = NULL
        cdef Entry *older
        cdef Link *link
        cdef uint32_t at, first
        sip24(self.secret, <const uint8_t *><char *>key, len(key), hash)
        ordinal = self.ordinal_of(hash)
        if ordinal != NOWHERE:
            entry = self.entry_at(ordinal)
        if entry == NULL:
            # What was ended by force without a newer version is only to be found by looking everywhere.
            return self._find_slowly(key, snapshot) if snapshot < self._forced_upto else None
        if entry.seq <= snapshot:
            return None if entry.sup <= snapshot else (entry.seq, entry.loc, bool(entry.flags & TOMBSTONE))
        # Newer versions are mostly a few and new: what they superseded stands at the end of what has ended.
        link = self._ended.tail
        while link != NULL and not entry.flags & FRESH:
            first = self._ended.head_at if link == self._ended.head else 0
            for at in range(fifo_end(&self._ended, link), first, -1):
                older = self.entry_at(link.items[at - 1])
                if older == NULL or older.sup != entry.seq:
                    continue
                entry = older
                if entry.seq <= snapshot:
                    return entry.seq, entry.loc, bool(entry.flags & TOMBSTONE)
                if entry.flags & FRESH:
                    break
            link = link.before
        if entry.flags & FRESH and snapshot >= self._forced_upto:
            return None
        return self._find_slowly(key, snapshot)

    cdef object _find_slowly(self, bytes key, uint64_t snapshot):
        """As `find`, by looking at everything that the snapshot sees in the slot of the key."""
        cdef uint16_t slot = slot_of_bytes(<const uint8_t *><char *>key, len(key))
        cdef Cursor cursor
        cdef Entry *entry
        cdef const uint8_t *found
        cdef uint8_t scratch[SCRATCH]
        cdef uint32_t size = 0
        if not self._seek(0, &cursor):
            return None
        while True:
            entry = self._next(&cursor)
            if entry == NULL or entry.seq > snapshot:
                return None
            if entry.sup <= snapshot or entry.slot != slot or not entry.flags & HAS_KEY or entry.loc == 0:
                continue
            found = find_key(self.arena.at(entry.loc), &self.rule, scratch, &size)
            if found != NULL and size == <uint32_t>len(key) and memcmp(found, <char *>key, size) == 0:
                return entry.seq, entry.loc, bool(entry.flags & TOMBSTONE)

    def key_at(self, uint64_t loc):
        """The key of the record at `loc` in this stream."""
        cdef uint8_t scratch[SCRATCH]
        cdef uint32_t size = 0
        cdef const uint8_t *key
        self.arena._extent(loc >> 32)
        key = find_key(self.arena.at(loc), &self.rule, scratch, &size)
        return None if key == NULL else (<const char *>key)[:size]

    def seq_at(self, int64_t ms):
        """The last sequence here that was accepted at or before `ms`; 0 if none was."""
        cdef int64_t page, chunk, i, low, high, middle
        cdef Chunk *where
        cdef Entry *entry
        cdef uint16_t alive[CHUNK_ENTRIES]
        low, high = 0, <int64_t>self._page_count - 1
        while low < high:
            middle = (low + high + 1) // 2
            if self._pages[middle].first_ms <= ms:
                low = middle
            else:
                high = middle - 1
        for page in range(low, -1, -1):
            if page >= self._page_count or self._pages[page].chunks == NULL:
                continue
            low, high = 0, <int64_t>self._chunks_in(page) - 1
            while low < high:
                middle = (low + high + 1) // 2
                if self._pages[page].chunks[middle].first_ms <= ms:
                    low = middle
                else:
                    high = middle - 1
            for chunk in range(low, -1, -1):
                where = &self._pages[page].chunks[chunk]
                if where.entries == NULL:
                    continue
                # Of those alive, the first that came later.
                high = 0
                for i in range(where.used):
                    if not where.entries[i].flags & GONE and where.entries[i].loc:
                        alive[high] = i
                        high += 1
                low = 0
                while low < high:
                    middle = (low + high) // 2
                    entry = &where.entries[alive[middle]]
                    if (<const Head *>self.arena.at(entry.loc)).accepted_ms <= ms:
                        low = middle + 1
                    else:
                        high = middle
                if low:
                    return where.entries[alive[low - 1]].seq
        return 0

    cdef Entry *_find(self, uint64_t seq) noexcept nogil:
        cdef Cursor cursor
        cdef Entry *entry
        if seq == 0 or not self._seek(seq - 1, &cursor):
            return NULL
        entry = self._next(&cursor)
        return NULL if entry == NULL or entry.seq != seq else entry

    cdef uint64_t place_of(self, uint64_t ordinal, uint64_t seq) except 0:
        """Where the record of a taken row lies by now."""
        cdef Entry *entry = self.entry_at(ordinal)
        if entry == NULL or entry.seq != seq:
            entry = self._find(seq)
        if entry == NULL or entry.loc == 0:
            raise KeyError(seq)
        return entry.loc

    def place(self, uint64_t seq):
        """Where the record of this entry lies now. Raises: KeyError: it is gone."""
        cdef Entry *entry = self._find(seq)
        if entry == NULL:
            raise KeyError(seq)
        return entry.loc

    def above(self, uint64_t seq):
        """Where the record of the first entry above `seq` lies, and its sequence. None: there is none with its bytes."""
        cdef Cursor cursor
        cdef Entry *entry = NULL
        if self._seek(seq, &cursor):
            entry = self._next(&cursor)
        return None if entry == NULL or entry.loc == 0 else (entry.loc, entry.seq)

    def holds(self, uint64_t seq):
        """Whether this entry is still here, current or superseded."""
        return self._find(seq) != NULL

    cpdef bint relocate(self, uint64_t seq, uint64_t loc) except -1:
        """The record of this entry lies elsewhere now. False if the entry is gone."""
        cdef Entry *entry = self._find(seq)
        cdef uint64_t before
        if entry == NULL:
            return False
        self.arena._extent(loc >> 32)
        before, entry.loc = entry.loc, loc
        self.arena.retain_at(loc, entry.size)
        if before:
            self.arena.release_at(before, entry.size)
        return True

    def clear(self):
        """The stream is deleted: every entry ends, without a record (the catalog says it all)."""
        self.deleted = True
        self._empty()

    cdef int _empty(self) except -1:
        cdef Cursor cursor
        cdef Entry *entry
        if self._seek(0, &cursor):
            while True:
                entry = self._next(&cursor)
                if entry == NULL:
                    break
                if entry.loc:
                    self.arena.release_at(entry.loc, entry.size)
        self._free_all()
        self.live = self.live_bytes = self.tombstones = self.held = self.held_bytes = self.entries = 0
        self.last_seq = self._next_ordinal = self._first_page = 0
        self._slots_used = self._slots_dead = self._tombstone_entries = 0
        self._buried = self._top_sup = self._ragged_upto = self._forced_upto = 0
        self._loose_floor = EVERYTHING
        self._bytes = 0
        self._adopted = None
        return 0

    def census(self):
        """Of the values that nothing has superseded: how many, and the sum of the hashes of their sequences. How long what
        is superseded or deleted is still remembered is every member's own business."""
        cdef uint64_t count = 0, digest = 0
        cdef Cursor cursor
        cdef Entry *entry
        if self._seek(0, &cursor):
            while True:
                entry = self._next(&cursor)
                if entry == NULL:
                    break
                if entry.sup == EVERYTHING and not entry.flags & TOMBSTONE:
                    count += 1
                    digest += mixed(entry.seq)
        return count, digest

    # Checkpoints ------------------------------------------------------------------------------------------

    def dump(self):
        """What `load` needs to have these entries again, as they lie in memory.

        Head · chunks · tables · directory · ordinals that ended · of tombstones · entries of each chunk ·
        slots of each table.
        """
        cdef uint32_t i, j
        cdef uint64_t number
        cdef Chunk *chunk
        cdef Table *table
        chunks, tables, blocks, slots, ended = [], [], [], [], []
        for i in range(self._page_count):
            if self._pages[i].chunks == NULL:
                continue
            for j in range(self._chunks_in(i)):
                chunk = &self._pages[i].chunks[j]
                if chunk.entries == NULL or chunk.live == 0:
                    continue
                number = (self._first_page + i) << PAGE_SHIFT | j
                chunks.append(
                    DUMP_CHUNK.pack(
                        number, chunk.first_seq, chunk.first_ms, chunk.used, chunk.live, chunk.packed
                    )
                )
                blocks.append(
                    PyMemoryView_FromMemory(<char *>chunk_block(chunk), chunk_bytes(chunk), PyBUF_READ)
                )
        for i in range(self._table_count):
            table = &self._tables[i]
            tables.append(DUMP_TABLE.pack(table.capacity, table.used, table.depth))
            slots.append(
                PyMemoryView_FromMemory(<char *>table.slots, table.capacity * sizeof(Slot), PyBUF_READ)
            )
        for i in range(self._hold_count):
            ended.append(fifo_bytes(&self._holds[i].kept))
        for i in range(self._loose_count):
            ended.append(fifo_bytes(&self._loose[i]))
        ended.append(fifo_bytes(&self._ended))
        head = DUMP.pack(
            DUMP_MAGIC, sizeof(Entry), sizeof(Packed), sizeof(Slot), self._depth,
            (<char *>self.secret)[:16],
            self.last_seq, self._next_ordinal, self.complete_from, self.live, self.live_bytes,
            self.tombstones, self.held, self.held_bytes, self._slots_dead, self._forced_upto,
            len(chunks), len(tables), 0, 0,
        )
        directory = b""
        if self._table_count:
            directory = PyMemoryView_FromMemory(<char *>self._directory, 4 << self._depth, PyBUF_READ)
        return [
            head, b"".join(chunks), b"".join(tables), directory, b"".join(ended),
            fifo_bytes(&self._tombstones), *blocks, *slots,
        ]

    def load(self, parts):
        """Become what `dump` saw. Of an empty list: become empty. Parts that can be written to are used in place.

        Raises:
            ValueError: these are not such parts; the stream is empty then.
        """
        self._empty()
        self.complete_from = 0
        if not parts:
            return
        try:
            self._load(parts)
        except BaseException:
            # Nothing was retained yet.
            self.entries = 0
            self._free_all()
            self._empty()
            raise

    cdef int _load(self, parts) except -1:
        cdef uint64_t number, ordinal, seq
        cdef uint32_t i, j, used
        cdef Chunk *chunk
        cdef Page *page
        cdef Table *table
        cdef Entry *entry
        cdef const uint64_t[::1] ordinals
        cdef bint borrowed
        (
            magic, entry_bytes, packed_bytes, slot_bytes, depth, secret,
            last_seq, next_ordinal, complete_from, live, live_bytes, tombstones, held, held_bytes,
            slots_dead, forced_upto, chunk_count, table_count, _, _,
        ) = DUMP.unpack(parts[0])
        if (magic, entry_bytes, packed_bytes, slot_bytes) != (
            DUMP_MAGIC, sizeof(Entry), sizeof(Packed), sizeof(Slot)
        ):
            raise ValueError("not the entries of a stream as this version writes them")
        if len(parts) != 6 + chunk_count + table_count:
            raise ValueError("parts of a stream are missing")
        memcpy(self.secret, <char *>(<bytes>secret), 16)
        self._adopted = list(parts)
        each = iter(parts[6:])
        for number, first_seq, first_ms, used, live_here, packed in DUMP_CHUNK.iter_unpack(bytes(parts[1])):
            page = self._page_for(number, first_seq, first_ms)
            if page == NULL:
                raise ValueError("the chunks of a stream are not in order")
            chunk = &page.chunks[number & PAGE_MASK]
            if used > CHUNK_ENTRIES or live_here > used or live_here == 0:
                raise ValueError("a chunk of a stream is damaged")
            chunk.first_seq, chunk.first_ms, chunk.used, chunk.live = first_seq, first_ms, used, live_here
            chunk.packed = packed
            chunk.entries = <Entry *>(
                adopt(next(each), chunk_bytes(chunk), &borrowed) + (sizeof(Packed) if packed else 0)
            )
            chunk.borrowed = borrowed
            self._bytes += chunk_bytes(chunk)
            page.live += 1
        if table_count:
            self._tables = <Table *>calloc(table_count, sizeof(Table))
            self._directory = <uint32_t *>malloc(<size_t>4 << <int>depth)
            if self._tables == NULL or self._directory == NULL:
                raise MemoryError
            self._table_capacity = table_count
            self._depth = depth
            copy_part(parts[3], self._directory, <size_t>4 << <int>depth)
            for i in range(<uint32_t>1 << self._depth):
                if self._directory[i] >= <uint32_t>table_count:
                    raise ValueError("the directory of a stream is damaged")
        for capacity, used, table_depth in DUMP_TABLE.iter_unpack(bytes(parts[2])):
            table = &self._tables[self._table_count]
            if used >= capacity:
                raise ValueError("a table of a stream is damaged")
            table.slots = <Slot *>adopt(next(each), capacity * sizeof(Slot), &borrowed)
            table.capacity, table.used, table.depth, table.borrowed = capacity, used, table_depth, borrowed
            self._table_count += 1
            self._slots_used += used
            self._bytes += capacity * sizeof(Slot)
        # From here on nothing can be wrong but a place.
        retain_all(self)
        self.last_seq, self.complete_from = last_seq, complete_from
        self._go_on_after(next_ordinal)
        self._slots_dead, self._forced_upto = slots_dead, forced_upto
        ordinals = numbers_of(parts[4])
        for i in range(ordinals.shape[0]):
            entry = self.entry_at(ordinals[i])
            if entry != NULL:
                fifo_push(&self._ended, ordinals[i])
                if entry.sup < self._top_sup:
                    self._ragged(entry.sup)
                else:
                    self._top_sup = entry.sup
        ordinals = numbers_of(parts[5])
        for i in range(ordinals.shape[0]):
            fifo_push(&self._tombstones, ordinals[i])
        return 0

    cdef int _go_on_after(self, uint64_t next_ordinal) except -1:
        """What comes next begins a new page: dead slots may lead to any ordinal up to `next_ordinal`."""
        cdef uint64_t wanted = (next_ordinal + (<uint64_t>1 << 20) - 1) >> 20
        if self._page_count:
            self._complete_page(self.last_seq + 1, NEVER_MS)
        while self._page_count and self._page_count < wanted - self._first_page:
            # An empty page is not later than what will follow it: a search by time goes over it.
            self._add_page(self.last_seq + 1, self._pages[self._page_count - 1].first_ms)
        if self._page_count:
            self._complete_page(self.last_seq + 1, NEVER_MS)
        self._next_ordinal = wanted << 20
        return 0

    cdef int _add_page(self, uint64_t first_seq, int64_t first_ms) except -1:
        """One more page, without chunks."""
        cdef Page *pages
        cdef Page *page
        if self._page_count:
            self._complete_page(first_seq, first_ms)
        if self._page_count == self._page_capacity:
            pages = <Page *>realloc(self._pages, (self._page_capacity * 2 + 1) * sizeof(Page))
            if pages == NULL:
                raise MemoryError
            self._pages = pages
            self._page_capacity = self._page_capacity * 2 + 1
        page = &self._pages[self._page_count]
        page.chunks, page.first_seq, page.first_ms, page.live = NULL, first_seq, first_ms, 0
        self._page_count += 1
        self._tail_chunks = self._tail_chunks_capacity = 0
        return 0

    cdef void _complete_page(self, uint64_t first_seq, int64_t first_ms) noexcept:
        """The rest of the last page is chunks that are gone."""
        cdef Page *page = &self._pages[self._page_count - 1]
        cdef uint32_t i
        if page.chunks != NULL:
            for i in range(self._tail_chunks, PAGE_CHUNKS):
                page.chunks[i].first_seq, page.chunks[i].first_ms = first_seq, first_ms
        self._tail_chunks = self._tail_chunks_capacity = PAGE_CHUNKS

    cdef Page *_page_for(self, uint64_t number, uint64_t first_seq, int64_t first_ms) except? NULL:
        """The page of a chunk that is loaded, after all before it; NULL if it is not after them."""
        cdef uint64_t wanted = number >> PAGE_SHIFT
        cdef Page *page
        cdef uint32_t i
        if self._page_count == 0:
            self._first_page = wanted
        if wanted < self._first_page:
            return NULL
        while self._page_count <= wanted - self._first_page:
            self._add_page(first_seq, first_ms)
        page = &self._pages[wanted - self._first_page]
        if page != &self._pages[self._page_count - 1]:
            return NULL
        if page.chunks == NULL:
            page.chunks = <Chunk *>get(PAGE_CHUNKS * sizeof(Chunk))
            memset(page.chunks, 0, PAGE_CHUNKS * sizeof(Chunk))
            self._tail_chunks_capacity = PAGE_CHUNKS
            self._bytes += PAGE_CHUNKS * sizeof(Chunk)
        if (number & PAGE_MASK) < self._tail_chunks:
            return NULL
        for i in range(self._tail_chunks, number & PAGE_MASK):
            page.chunks[i].first_seq, page.chunks[i].first_ms = first_seq, first_ms
        self._tail_chunks = (number & PAGE_MASK) + 1
        return page

    def drop_missing(self, gone):
        """Remove every entry whose extent is one of `gone`. Returns how many."""
        cdef Cursor cursor
        cdef Entry *entry
        cdef uint64_t ordinal
        cdef uint32_t last = 0
        cdef bint missing = False
        cdef Fifo found
        memset(&found, 0, sizeof(Fifo))
        if not self._seek(0, &cursor):
            return 0
        while True:
            entry = self._next(&cursor)
            if entry == NULL:
                break
            if entry.loc >> 32 != last:
                last = entry.loc >> 32
                missing = last in gone
            if missing and last:
                fifo_push(&found, self._ordinal_at(&cursor))
        count = found.count
        if count:
            self._forced_upto = max(self._forced_upto, self.last_seq)
        while found.count:
            ordinal = fifo_pop(&found)
            entry = self.entry_at(ordinal)
            if entry.sup != EVERYTHING:
                self.complete_from = max(self.complete_from, entry.sup)
            elif entry.flags & HAS_KEY:
                entry.flags |= FORCED
            self._remove(entry, ordinal)
        return count


cdef int copy_part(object part, void *to, size_t size) except -1:
    cdef Py_buffer view
    PyObject_GetBuffer(part, &view, PyBUF_SIMPLE)
    try:
        if <size_t>view.len != size:
            raise ValueError("a part of a stream has the wrong length")
        memcpy(to, view.buf, size)
    finally:
        PyBuffer_Release(&view)
    return 0


cdef const uint64_t[::1] numbers_of(object part):
    if memoryview(part).nbytes % 8:
        raise ValueError("a part of a stream has the wrong length")
    return memoryview(bytes(part)).cast("Q")


cdef struct Share:                      # what the entries of a stream hold of an extent
    uint64_t bytes
    uint32_t count


cdef int retain_all(StreamCore core) except -1:
    """Count every entry, and hold its record. Either all are held, or one of them cannot be and none is."""
    cdef Arena arena = core.arena
    cdef Share *shares = <Share *>calloc(arena.table_used, sizeof(Share))
    cdef uint32_t page, at, index, extent
    cdef Chunk *chunk
    cdef Entry *entry
    cdef bint wrong = False
    if shares == NULL:
        raise MemoryError
    with nogil:
        for page in range(core._page_count):
            if core._pages[page].chunks == NULL:
                continue
            for at in range(core._chunks_in(page)):
                chunk = &core._pages[page].chunks[at]
                if chunk.entries == NULL:
                    continue
                for index in range(chunk.used):
                    entry = &chunk.entries[index]
                    if entry.flags & GONE:
                        continue
                    if entry.loc:
                        if entry.loc >> 32 >= arena.table_used:
                            wrong = True
                            break
                        extent = entry.loc >> 32
                        wrong |= not arena.table[extent].exists
                        shares[extent].count += 1
                        shares[extent].bytes += entry.size
                    core.entries += 1
                    core._count(entry, 1)
                    if entry.flags & TOMBSTONE:
                        core._tombstone_entries += 1
        if not wrong:
            for extent in range(arena.table_used):
                arena.table[extent].live += shares[extent].count
                arena.table[extent].live_bytes += shares[extent].bytes
    free(shares)
    if wrong:
        raise ValueError("an entry of a stream lies in an extent that does not exist")
    return 0


cdef uint8_t *adopt(object part, size_t size, bint *borrowed) except NULL:
    """The bytes of a part: where they are if they may be written to, else a copy."""
    cdef Py_buffer view
    cdef uint8_t *block
    borrowed[0] = False
    if not memoryview(part).readonly:
        PyObject_GetBuffer(part, &view, PyBUF_WRITABLE)
        block = <uint8_t *>view.buf
        borrowed[0] = <size_t>view.len == size and <size_t>block % 8 == 0
        PyBuffer_Release(&view)
        if borrowed[0]:
            return block
    block = <uint8_t *>get(size)
    try:
        copy_part(part, block, size)
    except BaseException:
        give(block)
        raise
    return block
