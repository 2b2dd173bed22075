"""Compiled twin of `_arena_py`: same names, same answers. Extents are plain memory.

Blocks of the usual extent size are kept in a small pool: giving a megabyte back to the system and
asking for it again costs a page fault for every four kilobytes of it.
"""

from cpython.buffer cimport PyBUF_READ, PyBUF_WRITE
from cpython.memoryview cimport PyMemoryView_FromMemory
from libc.stdlib cimport free, malloc, realloc
from libc.string cimport memcpy, memset

from tidemark.model import records
from tidemark.model._arena_py import ExtentInfo

cdef enum:
    POOL_MAX = 32
    USUAL_BYTES = 1 << 20
    MEMORY = 0
    MESSAGE = 1
    NO_TTL = 0xFFFFFFFF
    TOMBSTONE = 2
    KEYED = 4
    KEYLESS = 8


cdef class Arena:
    def __cinit__(self):
        self.next_seq = 1
        self.turn = 0
        self.shown_seq = <uint64_t>-1
        self.hidden = []
        self.resident_bytes = 0
        self.pager = None
        self.emptied = []
        self.free_numbers = []
        self.table_size = 64
        self.table_used = 1             # number 0 is nowhere
        self.table = <Extent *>malloc(self.table_size * sizeof(Extent))
        self.spare_blocks = <uint8_t **>malloc(POOL_MAX * sizeof(uint8_t *))
        self.spare_count = 0
        if self.table == NULL or self.spare_blocks == NULL:
            raise MemoryError
        memset(self.table, 0, self.table_size * sizeof(Extent))

    def __dealloc__(self):
        cdef uint32_t number
        cdef int i
        for number in range(self.table_used):
            if self.table[number].exists:
                free(self.table[number].base)
        for i in range(self.spare_count):
            free(self.spare_blocks[i])
        free(self.spare_blocks)
        free(self.table)

    # Extents ---------------------------------------------------------------------------

    cdef uint8_t *_allocate(self, uint32_t capacity) except NULL:
        cdef uint8_t *block
        if capacity == USUAL_BYTES and self.spare_count:
            self.spare_count -= 1
            return self.spare_blocks[self.spare_count]
        block = <uint8_t *>malloc(capacity if capacity else 1)
        if block == NULL:
            raise MemoryError
        return block

    cdef void _give_back(self, uint8_t *block, uint32_t capacity) noexcept:
        if capacity == USUAL_BYTES and self.spare_count < POOL_MAX:
            self.spare_blocks[self.spare_count] = block
            self.spare_count += 1
        else:
            free(block)

    cdef Extent *_extent(self, uint64_t number) except NULL:
        if number >= self.table_used or not self.table[number].exists:
            raise KeyError(number)
        return &self.table[number]

    def _new_number(self):
        cdef uint32_t number
        cdef Extent *table
        if self.free_numbers:
            return self.free_numbers.pop()
        if self.table_used == self.table_size:
            table = <Extent *>realloc(self.table, self.table_size * 2 * sizeof(Extent))
            if table == NULL:
                raise MemoryError
            memset(table + self.table_size, 0, self.table_size * sizeof(Extent))
            self.table = table
            self.table_size *= 2
        number = self.table_used
        self.table_used += 1
        return number

    def open_extent(self, int kind, uint32_t capacity):
        """A new resident extent for a writer to fill."""
        cdef uint8_t *block = self._allocate(capacity)
        cdef uint32_t number = self._new_number()
        cdef Extent *extent = &self.table[number]
        memset(extent, 0, sizeof(Extent))
        extent.base, extent.capacity, extent.kind, extent.exists = block, capacity, kind, 1
        self.resident_bytes += capacity
        return number

    def adopt_extent(self, int kind, uint32_t used):
        """An extent whose bytes are on disk already: sealed, not resident, nobody in it yet."""
        cdef uint32_t number = self._new_number()
        cdef Extent *extent = &self.table[number]
        memset(extent, 0, sizeof(Extent))
        extent.capacity = extent.used = used
        extent.kind, extent.sealed, extent.exists = kind, 1, 1
        return number

    def restore_extent(self, uint32_t number, int kind, uint32_t used):
        """`adopt_extent` under the number that it had in another process. Numbers must rise."""
        cdef uint32_t hole
        if number < self.table_used:
            raise ValueError(f"extent {number} is there already")
        free_numbers, self.free_numbers = self.free_numbers, []
        while self.table_used < number:
            hole = self._new_number()
            self.table[hole].exists = 0
            free_numbers.append(hole)
        self.adopt_extent(kind, used)
        self.free_numbers = free_numbers

    def seal_extent(self, uint32_t number, uint32_t used):
        """No more records go into it. An extent that nobody needs any more ends here."""
        cdef Extent *extent = self._extent(number)
        extent.used, extent.sealed = used, 1
        if extent.live == 0:
            self._abandoned(number)

    def drop_extent(self, uint32_t number):
        """Forget the bytes; the pager has them."""
        cdef Extent *extent = self._extent(number)
        if extent.base != NULL:
            self._give_back(extent.base, extent.capacity)
            extent.base = NULL
            self.resident_bytes -= extent.capacity

    def load_extent(self, uint32_t number, const uint8_t[::1] data not None):
        cdef Extent *extent = self._extent(number)
        assert extent.base == NULL and data.shape[0] == extent.used
        extent.base = self._allocate(extent.used)
        if extent.used:
            memcpy(extent.base, &data[0], extent.used)
        extent.capacity = extent.used
        self.resident_bytes += extent.capacity

    def free_extent(self, uint32_t number):
        """The extent is no more. Nobody may point into it."""
        cdef Extent *extent = self._extent(number)
        assert extent.live == 0
        self.drop_extent(number)
        extent.exists = 0
        self.free_numbers.append(number)

    def extent(self, uint32_t number):
        cdef Extent *e = self._extent(number)
        return ExtentInfo(
            number, e.kind, e.used, e.capacity, e.live, e.live_bytes,
            e.base != NULL, bool(e.sealed), e.touched,
        )

    def extents(self):
        """The numbers of all extents there are."""
        return [number for number in range(self.table_used) if self.table[number].exists]

    def extent_bytes(self, uint32_t number, uint32_t start, uint32_t end):
        """Bytes of a resident extent, without a copy, valid until it is dropped or freed."""
        cdef Extent *extent = self._extent(number)
        assert extent.base != NULL and start <= end <= extent.capacity
        return PyMemoryView_FromMemory(<char *>extent.base + start, end - start, PyBUF_WRITE)

    # Records ---------------------------------------------------------------------------

    cdef int _page_in(self, uint32_t number) except -1:
        cdef uint32_t used = self.table[number].used
        cdef uint8_t *block = self._allocate(used)
        room = PyMemoryView_FromMemory(<char *>block, used, PyBUF_WRITE)
        try:
            self.pager(number, room)
        except BaseException:
            self._give_back(block, used)
            raise
        finally:
            room.release()
        self.table[number].base, self.table[number].capacity = block, used
        self.resident_bytes += used
        return 0

    cdef const uint8_t *at(self, uint64_t loc) except NULL:
        """The first byte of the record at `loc`, brought back from disk if it must be."""
        cdef uint32_t number = loc >> 32
        if self.table[number].base == NULL:
            self._page_in(number)
        self.table[number].touched = self.turn
        return self.table[number].base + <uint32_t>loc

    def record(self, uint64_t loc):
        """The record at `loc`, brought back from disk if it must be. Valid until the next call."""
        cdef const uint8_t *data
        self._extent(loc >> 32)
        data = self.at(loc)
        return PyMemoryView_FromMemory(<char *>data, (<Head *>data).length, PyBUF_READ)

    def message(self, uint64_t loc):
        return records.decode_message(self.record(loc))

    def retain(self, uint64_t loc, uint32_t size):
        """A queue entry points here now."""
        self._extent(loc >> 32)
        self.retain_at(loc, size)

    def release(self, uint64_t loc, uint32_t size):
        """A queue entry that pointed here is gone."""
        self._extent(loc >> 32)
        self.release_at(loc, size)

    cdef int release_at(self, uint64_t loc, uint32_t size) except -1:
        cdef Extent *extent = &self.table[loc >> 32]
        extent.live -= 1
        extent.live_bytes -= size
        if extent.live == 0 and extent.sealed:
            self._abandoned(loc >> 32)
        return 0

    cdef int _abandoned(self, uint32_t number) except -1:
        if self.table[number].kind == MEMORY:
            self.free_extent(number)
        else:
            self.emptied.append(number)
        return 0


cdef class Writer:
    """Puts records into extents of one kind, one after the other.

    The journal derives from it and overrides `grow`.
    """

    def __init__(self, Arena arena, int kind, uint32_t extent_bytes=USUAL_BYTES):
        self.arena = arena
        self.kind = kind
        self.extent_bytes = extent_bytes
        self.number = self.used = self.capacity = 0
        self.base = NULL

    def grow(self, need):
        """Make room for a record of `need` bytes: close this extent, open the next."""
        self.close_extent()
        self.open_extent(max(need, self.extent_bytes), 0)

    def open_extent(self, uint32_t capacity, uint32_t used):
        self.number = self.arena.open_extent(self.kind, capacity)
        self.base = self.arena.table[self.number].base
        self.capacity, self.used = capacity, used

    def close_extent(self):
        cdef uint32_t number = self.number, used = self.used
        self.number = self.used = self.capacity = 0
        self.base = NULL
        if number:
            self.arena.seal_extent(number, used)

    cdef uint8_t *reserve(self, uint64_t size) except NULL:
        """Room for a record; `number` and `used - size` say where."""
        if <uint64_t>self.used + size > self.capacity:
            self.grow(size)
        self.used += size
        return self.base + self.used - size

    def append(self, const uint8_t[::1] record not None):
        """Put one encoded record; returns its place."""
        cdef uint32_t size = record.shape[0]
        assert size % 8 == 0 and size
        memcpy(self.reserve(size), &record[0], size)
        return <uint64_t>self.number << 32 | (self.used - size)

    cdef uint64_t put_message(
        self, const uint32_t *targets, uint16_t count, int64_t now_ms, uint32_t ttl_ms,
        uint8_t priority, bint persistent,
        const uint8_t *exchange, uint8_t exchange_len, const uint8_t *key, uint8_t key_len,
        const uint8_t *properties, uint32_t properties_len, const uint8_t *body, uint32_t body_len,
        uint64_t *loc, const uint8_t *keyed=NULL, uint16_t keyed_len=0, uint8_t flags=0,
    ) except 0:
        cdef uint64_t size = (
            sizeof(Head) + 4 * count + exchange_len + key_len + keyed_len + properties_len + <uint64_t>body_len
        )
        cdef uint64_t length = (size + 7) & ~<uint64_t>7
        cdef uint8_t *at = self.reserve(length)
        cdef Head *head = <Head *>at
        cdef uint64_t seq = self.arena.next_seq
        self.arena.next_seq += count
        loc[0] = <uint64_t>self.number << 32 | (self.used - <uint32_t>length)
        head.length = length
        head.type = MESSAGE
        head.flags = flags | persistent
        head.targets = count
        head.seq = seq
        head.accepted_ms = now_ms
        head.ttl_ms = ttl_ms
        head.body_len = body_len
        head.exchange_len = exchange_len
        head.key_len = key_len
        head.keyed_len = keyed_len
        head.properties_len = properties_len
        head.priority = priority
        head.spare = 0
        head.spare2 = 0
        head.batch = <uint32_t>(seq - self.arena.batch_seq) if self.arena.batch_seq else 0
        at += sizeof(Head)
        memcpy(at, targets, 4 * count)
        at += 4 * count
        memcpy(at, exchange, exchange_len)
        at += exchange_len
        memcpy(at, key, key_len)
        at += key_len
        if keyed_len:
            memcpy(at, keyed, keyed_len)
            at += keyed_len
        memcpy(at, properties, properties_len)
        at += properties_len
        memcpy(at, body, body_len)
        at += body_len
        while size < length:
            at[0] = 0
            at += 1
            size += 1
        return seq

    def put(
        self, tuple targets, int64_t now_ms, ttl_ms, int priority, bint persistent,
        bytes exchange not None, bytes key not None, bytes properties not None, bytes body not None,
        uint8_t flags=0,
    ):
        """Encode a message under the next sequence numbers. Returns (its first one, its place)."""
        cdef uint64_t loc = 0, seq
        cdef Py_ssize_t i, count = len(targets)
        cdef uint32_t *ids
        if count > 0xFFFF or len(exchange) > 255 or len(key) > 255:
            raise OverflowError("too many targets, or a name over 255 bytes")
        ids = <uint32_t *>malloc(4 * count + 1)
        if ids == NULL:
            raise MemoryError
        try:
            for i in range(count):
                ids[i] = targets[i]
            seq = self.put_message(
                ids, count, now_ms, NO_TTL if ttl_ms is None else ttl_ms, priority, persistent,
                <const uint8_t *><char *>exchange, len(exchange), <const uint8_t *><char *>key, len(key),
                <const uint8_t *><char *>properties, len(properties),
                <const uint8_t *><char *>body, len(body), &loc, NULL, 0, flags,
            )
        finally:
            free(ids)
        return seq, loc

    def put_keyed(
        self, uint32_t target, int64_t now_ms, bytes keyed, bint tombstone,
        bytes key not None, bytes properties not None, bytes body not None,
    ):
        """Encode a persistent message for one stream, under `keyed` or without a key. As `put`."""
        cdef uint64_t loc = 0, seq
        cdef uint8_t flags = (KEYLESS if keyed is None else KEYED) | (TOMBSTONE if tombstone else 0)
        cdef bytes name = b"" if keyed is None else keyed
        if len(key) > 255 or len(name) > 0xFFFF:
            raise OverflowError("a routing key over 255 bytes, or a key over 65535")
        seq = self.put_message(
            &target, 1, now_ms, NO_TTL, 0, True, NULL, 0, <const uint8_t *><char *>key, len(key),
            <const uint8_t *><char *>properties, len(properties),
            <const uint8_t *><char *>body, len(body), &loc,
            <const uint8_t *><char *>name, len(name), flags,
        )
        return seq, loc
