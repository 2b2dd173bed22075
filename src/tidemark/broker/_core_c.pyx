"""Compiled twin of `_core_py`: same names, same answers.

The entries of a lane lie in blocks of 64. A block whose entries are all gone is freed; its slot in the
lane's table stays until the blocks before it have gone too, so an index leads to its entry in two
steps, and a sequence in a binary search over the slots.
"""

from cpython.bytes cimport PyBytes_FromStringAndSize
from cpython.dict cimport PyDict_GetItem, PyDict_SetItem
from cpython.ref cimport Py_DECREF, Py_INCREF, PyObject
from libc.stdint cimport int32_t, int64_t, uint8_t, uint16_t, uint32_t, uint64_t
from libc.stdlib cimport free, malloc, realloc
from libc.string cimport memcmp, memcpy, memmove, memset

from tidemark.broker._core_py import Entry
from tidemark.model._arena_c cimport Arena, Head, Writer
from tidemark.model._runs_c cimport PublishRow, PublishRun, Taken, TakenEntry

cdef enum:
    READY = 0
    ACQUIRED = 1
    GONE = 2

    REDELIVERED = 1
    DURABLE = 2

    BLOCK_SHIFT = 6
    BLOCK_ENTRIES = 64
    BLOCK_MASK = 63

    ROW_PERSISTENT = 4
    ROW_SPECIAL = 2 | 32 | 64 | 128     # IMMEDIATE | HAS_USER_ID | HAS_COPIES | DIRECT_REPLY
    NO_TTL = 0xFFFFFFFF

    TYPE_MESSAGE = 1
    TYPE_SETTLED = 2
    TYPE_COUNTED = 3
    RANGES = 1

cdef int64_t NEVER = 1LL << 62


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


cdef inline Block *block_of(Lane *lane, uint64_t index) noexcept:
    cdef uint64_t number = index >> BLOCK_SHIFT
    if number < lane.first_block or number - lane.first_block >= lane.end - lane.start:
        return NULL
    return lane.slots[lane.start + (number - lane.first_block)].block


cdef int lane_add_block(Lane *lane, uint64_t first_seq) except -1:
    cdef Block *block
    cdef Slot *slots
    cdef uint32_t capacity
    if lane.end == lane.capacity:
        if lane.start > lane.capacity // 2:
            memmove(lane.slots, lane.slots + lane.start, (lane.end - lane.start) * sizeof(Slot))
            lane.end -= lane.start
            lane.start = 0
        else:
            capacity = lane.capacity * 2 if lane.capacity else 4
            slots = <Slot *>realloc(lane.slots, capacity * sizeof(Slot))
            if slots == NULL:
                raise MemoryError
            lane.slots, lane.capacity = slots, capacity
    block = <Block *>malloc(sizeof(Block))
    if block == NULL:
        raise MemoryError
    block.count = block.ready = block.gone = block.spare = 0
    if lane.start == lane.end:
        lane.first_block = lane.finish >> BLOCK_SHIFT
    lane.slots[lane.end].block = block
    lane.slots[lane.end].first_seq = first_seq
    lane.end += 1
    return 0


cdef inline QueueEntry *lane_append(Lane *lane, uint64_t seq) except NULL:
    cdef Block *block
    if lane.finish & BLOCK_MASK == 0:
        lane_add_block(lane, seq)
    block = lane.slots[lane.end - 1].block
    block.ready += 1
    block.count += 1
    lane.finish += 1
    return &block.entries[block.count - 1]


cdef inline void lane_entry_gone(Lane *lane, Block *block, uint64_t index) noexcept:
    """An entry of this block is gone; free the block with its last one."""
    cdef uint64_t number = index >> BLOCK_SHIFT
    cdef uint32_t slot
    block.gone += 1
    if block.gone < block.count:
        return
    slot = lane.start + <uint32_t>(number - lane.first_block)
    if block.count < BLOCK_ENTRIES:
        # The last block, not yet full: the next entry begins a new one.
        lane.finish = (number + 1) << BLOCK_SHIFT
    free(block)
    lane.slots[slot].block = NULL
    while lane.start < lane.end and lane.slots[lane.start].block == NULL:
        lane.start += 1
        lane.first_block += 1
    if lane.start == lane.end:
        lane.start = lane.end = 0
        lane.next = lane.finish


cdef inline QueueEntry *lane_first_ready(Lane *lane) noexcept:
    """The entry at `next` once that is a ready one; NULL if there is none."""
    cdef Block *block
    cdef uint32_t at
    if lane.next < lane.first_block << BLOCK_SHIFT:
        lane.next = lane.first_block << BLOCK_SHIFT
    while lane.next < lane.finish:
        block = block_of(lane, lane.next)
        if block != NULL and block.ready:
            at = lane.next & BLOCK_MASK
            while at < block.count:
                if block.entries[at].state == READY:
                    lane.next = (lane.next & ~<uint64_t>BLOCK_MASK) | at
                    return &block.entries[at]
                at += 1
        lane.next = (lane.next | BLOCK_MASK) + 1
    if lane.next > lane.finish:
        lane.next = lane.finish
    return NULL


cdef QueueEntry *lane_find(Lane *lane, uint64_t seq, Block **where, uint64_t *index) noexcept:
    """The entry with this sequence, if it is not gone."""
    cdef int64_t low = lane.start, high = <int64_t>lane.end - 1, middle
    cdef Block *block
    cdef uint32_t a, b, m
    while low < high:
        middle = (low + high + 1) // 2
        if lane.slots[middle].first_seq <= seq:
            low = middle
        else:
            high = middle - 1
    if low > high:
        return NULL
    block = lane.slots[low].block
    if block == NULL:
        return NULL
    a, b = 0, block.count
    while a < b:
        m = (a + b) // 2
        if block.entries[m].seq < seq:
            a = m + 1
        else:
            b = m
    if a == block.count or block.entries[a].seq != seq or block.entries[a].state == GONE:
        return NULL
    where[0] = block
    index[0] = ((lane.first_block + <uint64_t>(low - lane.start)) << BLOCK_SHIFT) + a
    return &block.entries[a]


cdef class QueueCore:
    """The messages of one queue. `Queue` derives from it and adds what is decided once a declare."""

    cdef readonly Arena arena
    cdef readonly uint32_t number
    cdef public bint durable
    cdef public int64_t ttl_ms
    cdef public bint guarded
    cdef public uint64_t ready, acquired, ready_bytes, acquired_bytes
    cdef public uint64_t published, delivered, settled, redelivered
    cdef readonly uint64_t expiring
    cdef public bint is_dirty
    cdef public bint deleted
    cdef list _dirty
    cdef Lane *_lanes
    cdef int _lane_count
    cdef uint64_t *_gone
    cdef Py_ssize_t _gone_count, _gone_capacity

    def __init__(self, Arena arena, uint32_t number, bint durable, int priorities, list dirty):
        if self._lanes != NULL:
            raise RuntimeError("a queue is made once")
        self.arena, self.number, self.durable, self._dirty = arena, number, durable, dirty
        self.ttl_ms = -1
        self._lane_count = priorities + 1
        self._lanes = <Lane *>malloc(self._lane_count * sizeof(Lane))
        if self._lanes == NULL:
            raise MemoryError
        memset(self._lanes, 0, self._lane_count * sizeof(Lane))

    def __dealloc__(self):
        cdef int i
        cdef uint32_t slot
        if self._lanes != NULL:
            for i in range(self._lane_count):
                for slot in range(self._lanes[i].start, self._lanes[i].end):
                    free(self._lanes[i].slots[slot].block)
                free(self._lanes[i].slots)
            free(self._lanes)
        free(self._gone)

    @property
    def lanes(self):
        return self._lane_count

    cpdef touch(self):
        """Something changed: the broker looks at this queue at the end of the turn."""
        if not self.is_dirty:
            self.is_dirty = True
            self._dirty.append(self)

    cdef inline Lane *_lane(self, int number) except NULL:
        if not 0 <= number < self._lane_count:
            raise IndexError(number)
        return &self._lanes[number]

    # In ----------------------------------------------------------------------------------

    cdef int put_entry(
        self, uint64_t seq, uint64_t loc, uint32_t size, int64_t priority, int64_t expires_ms,
        uint8_t flags, uint16_t deliveries,
    ) except -1:
        cdef Lane *lane = &self._lanes[
            priority if priority < self._lane_count else self._lane_count - 1
        ]
        cdef QueueEntry *entry = lane_append(lane, seq)
        entry.seq, entry.loc, entry.size, entry.expires_ms = seq, loc, size, expires_ms
        entry.flags, entry.deliveries, entry.state = flags, deliveries, READY
        self.arena.retain_at(loc, size)
        self.ready += 1
        self.ready_bytes += size
        self.published += 1
        if expires_ms != NEVER:
            self.expiring += 1
        if not self.is_dirty:
            self.touch()
        return 0

    def put(self, seq, loc, size, uint8_t priority, expires_ms, flags, deliveries=0):
        """Add an entry at the end. `seq` is above every other in the lane."""
        self.arena._extent(<uint64_t>loc >> 32)
        self.put_entry(seq, loc, size, priority, expires_ms, flags, deliveries)

    # Out ---------------------------------------------------------------------------------

    def take(self, Py_ssize_t count, int64_t bytes_max, int64_t expired_ms=-1):
        """Acquire up to `count` ready entries of the most urgent lane, at least one, oldest first."""
        cdef int number
        for number in range(self._lane_count - 1, -1, -1):
            taken = self._take_lane(number, count, bytes_max, expired_ms + 1, NEVER)
            if taken is not None:
                return taken
        return None

    def take_expired(self, int64_t now_ms, Py_ssize_t count):
        """Acquire entries whose time is over from the head of a lane, up to `count`."""
        cdef int number
        for number in range(self._lane_count):
            taken = self._take_lane(number, count, NEVER, 0, now_ms)
            if taken is not None:
                return taken
        return None

    def next_expiry_ms(self):
        """When the first of the lanes' heads expires; NEVER if none does."""
        cdef int number
        cdef int64_t soonest = NEVER
        cdef QueueEntry *entry
        for number in range(self._lane_count):
            entry = lane_first_ready(&self._lanes[number])
            if entry != NULL and entry.expires_ms < soonest:
                soonest = entry.expires_ms
        return soonest

    cdef Taken _take_lane(
        self, int number, Py_ssize_t count, int64_t bytes_max, int64_t earliest, int64_t latest
    ):
        cdef Lane *lane = &self._lanes[number]
        cdef QueueEntry *entry
        cdef TakenEntry *out
        cdef Taken taken = None
        cdef int64_t size = 0
        cdef Py_ssize_t n = 0
        while n < count and size < bytes_max:
            entry = lane_first_ready(lane)
            if entry == NULL or not earliest <= entry.expires_ms <= latest:
                break
            if taken is None:
                taken = Taken(number)
            out = taken.next_entry()
            out.index, out.seq, out.loc, out.size = lane.next, entry.seq, entry.loc, entry.size
            out.flags, out.deliveries, out.spare = entry.flags & REDELIVERED, entry.deliveries, 0
            entry.state = ACQUIRED
            block_of(lane, lane.next).ready -= 1
            lane.next += 1
            size += entry.size
            n += 1
        self.ready -= n
        self.ready_bytes -= size
        self.acquired += n
        self.acquired_bytes += size
        return taken

    # Settled -----------------------------------------------------------------------------

    cdef QueueEntry *_acquired(self, Lane *lane, uint64_t index, Block **where) except NULL:
        cdef Block *block = block_of(lane, index)
        cdef QueueEntry *entry
        if block == NULL or (index & BLOCK_MASK) >= block.count:
            raise KeyError(index)
        entry = &block.entries[index & BLOCK_MASK]
        if entry.state == GONE:
            raise KeyError(index)
        assert entry.state == ACQUIRED
        where[0] = block
        return entry

    cdef int _remember_gone(self, uint64_t seq) except -1:
        cdef uint64_t *grown
        cdef Py_ssize_t capacity
        if self._gone_count == self._gone_capacity:
            capacity = self._gone_capacity * 2 if self._gone_capacity else 64
            grown = <uint64_t *>realloc(self._gone, capacity * sizeof(uint64_t))
            if grown == NULL:
                raise MemoryError
            self._gone, self._gone_capacity = grown, capacity
        self._gone[self._gone_count] = seq
        self._gone_count += 1
        return 0

    cdef int settle_at(self, int lane_number, uint64_t index) except -1:
        cdef Lane *lane
        cdef Block *block
        cdef QueueEntry *entry
        cdef uint64_t loc
        cdef uint32_t size
        if self.deleted:
            return 0
        lane = self._lane(lane_number)
        entry = self._acquired(lane, index, &block)
        if entry.flags & DURABLE:
            self._remember_gone(entry.seq)
        loc, size = entry.loc, entry.size
        if entry.expires_ms != NEVER:
            self.expiring -= 1
        entry.state = GONE
        lane_entry_gone(lane, block, index)
        self.acquired -= 1
        self.acquired_bytes -= size
        self.settled += 1
        self.arena.release_at(loc, size)
        if not self.is_dirty:
            self.touch()
        return 0

    def settle(self, int lane, uint64_t index):
        """An acquired entry is gone for good."""
        self.settle_at(lane, index)

    def settle_taken(self, Taken taken):
        """All of these are gone for good. Encode them first: their bytes may go with them."""
        cdef Py_ssize_t i
        for i in range(taken.count):
            self.settle_at(taken.lane, taken.entries[i].index)

    def requeue(self, int lane, uint64_t index, bint delivered):
        """An acquired entry is ready again, in its old place."""
        cdef Lane *where
        cdef Block *block
        cdef QueueEntry *entry
        if self.deleted:
            return
        where = self._lane(lane)
        entry = self._acquired(where, index, &block)
        entry.state = READY
        block.ready += 1
        if delivered:
            entry.flags |= REDELIVERED
            if entry.deliveries < 0xFFFF:
                entry.deliveries += 1
        if index < where.next:
            where.next = index
        self.acquired -= 1
        self.acquired_bytes -= entry.size
        self.ready += 1
        self.ready_bytes += entry.size
        self.touch()

    def drain_gone(self):
        """What ended since the last call and was in the journal: packed for `encode_settled`."""
        cdef Py_ssize_t i, pairs = 0, n = self._gone_count
        cdef uint64_t *gone = self._gone
        cdef uint64_t *out
        if n == 0:
            return None
        self._gone_count = 0
        pairs = 1
        for i in range(1, n):
            if gone[i] != gone[i - 1] + 1:
                pairs += 1
        if 2 * pairs > n:
            return PyBytes_FromStringAndSize(<char *>gone, n * 8), False
        packed = PyBytes_FromStringAndSize(NULL, pairs * 16)
        out = <uint64_t *><char *>packed
        out[0], out[1] = gone[0], 1
        for i in range(1, n):
            if gone[i] == gone[i - 1] + 1:
                out[1] += 1
            else:
                out += 2
                out[0], out[1] = gone[i], 1
        return packed, True

    # By sequence: recovery and compaction --------------------------------------------------

    cdef QueueEntry *_find(self, uint64_t seq, Lane **lane, Block **block, uint64_t *index) noexcept:
        cdef int number
        cdef QueueEntry *entry
        for number in range(self._lane_count):
            entry = lane_find(&self._lanes[number], seq, block, index)
            if entry != NULL:
                lane[0] = &self._lanes[number]
                return entry
        return NULL

    def holds(self, uint64_t seq):
        """Whether this entry is still here, ready or acquired."""
        cdef Lane *lane
        cdef Block *block
        cdef uint64_t index
        return self._find(seq, &lane, &block, &index) != NULL

    cpdef bint forget(self, uint64_t seq) except -1:
        """Recovery: a SETTLED record names this entry. False if it is not here."""
        cdef Lane *lane
        cdef Block *block
        cdef uint64_t index, loc
        cdef uint32_t size
        cdef QueueEntry *entry = self._find(seq, &lane, &block, &index)
        if entry == NULL:
            return False
        assert entry.state == READY
        loc, size = entry.loc, entry.size
        if entry.expires_ms != NEVER:
            self.expiring -= 1
        entry.state = GONE
        block.ready -= 1
        lane_entry_gone(lane, block, index)
        self.ready -= 1
        self.ready_bytes -= size
        self.arena.release_at(loc, size)
        return True

    def restore(self, seq, loc, size, priority, expires_ms, deliveries):
        """Recovery: an entry as the journal has it. It may have been delivered before."""
        self.put(seq, loc, size, priority, expires_ms, DURABLE | REDELIVERED, deliveries)
        self.published -= 1

    def set_deliveries(self, uint64_t seq, uint16_t deliveries):
        """Recovery: a COUNTED record."""
        cdef Lane *lane
        cdef Block *block
        cdef uint64_t index
        cdef QueueEntry *entry = self._find(seq, &lane, &block, &index)
        if entry != NULL:
            entry.deliveries = deliveries

    def relocate(self, uint64_t seq, uint64_t loc):
        """Compaction moved the record of this entry. False if the entry is gone."""
        cdef Lane *lane
        cdef Block *block
        cdef uint64_t index, before
        cdef QueueEntry *entry = self._find(seq, &lane, &block, &index)
        if entry == NULL:
            return False
        self.arena._extent(loc >> 32)
        before, entry.loc = entry.loc, loc
        self.arena.retain_at(loc, entry.size)
        self.arena.release_at(before, entry.size)
        return True

    def entry(self, int lane, uint64_t index):
        """A copy of one entry that is not gone (slow paths)."""
        cdef Block *block = block_of(self._lane(lane), index)
        cdef QueueEntry *e
        if block == NULL or (index & BLOCK_MASK) >= block.count:
            raise KeyError(index)
        e = &block.entries[index & BLOCK_MASK]
        if e.state == GONE:
            raise KeyError(index)
        return Entry(e.seq, e.loc, e.size, e.expires_ms, e.flags, e.deliveries, e.state)

    def clear(self):
        """The queue is deleted: every entry ends, without a record (the catalog says it all)."""
        cdef int number
        cdef uint32_t slot, i
        cdef Lane *lane
        cdef Block *block
        self.deleted = True
        for number in range(self._lane_count):
            lane = &self._lanes[number]
            for slot in range(lane.start, lane.end):
                block = lane.slots[slot].block
                if block == NULL:
                    continue
                lane.slots[slot].block = NULL
                for i in range(block.count):
                    if block.entries[i].state != GONE:
                        self.arena.release_at(block.entries[i].loc, block.entries[i].size)
                free(block)
            lane.start = lane.end = 0
            lane.finish = (lane.finish + BLOCK_MASK) & ~<uint64_t>BLOCK_MASK
            lane.next = lane.finish
        self._gone_count = 0
        self.ready = self.acquired = self.ready_bytes = self.acquired_bytes = self.expiring = 0


cdef class Route:
    """Where messages of one exchange and key go. Kept until the wiring changes (`alive` False)."""

    cdef readonly tuple queues
    cdef readonly tuple targets
    cdef readonly bint durable
    cdef public bint plain
    cdef public bint alive
    cdef uint32_t *ids
    cdef uint16_t count

    def __init__(self, tuple queues, bint plain):
        cdef Py_ssize_t i
        cdef QueueCore queue
        if self.ids != NULL:
            raise RuntimeError("a route is made once")
        if len(queues) > 0xFFFF:
            raise OverflowError("more than 65535 queues for one message")
        self.queues = queues
        self.targets = tuple([(<QueueCore?>queue).number for queue in queues])
        self.count = len(queues)
        self.ids = <uint32_t *>malloc(4 * self.count + 4)
        if self.ids == NULL:
            raise MemoryError
        self.durable = False
        for i in range(self.count):
            queue = queues[i]
            self.ids[i] = queue.number
            self.durable = self.durable or queue.durable
        self.plain = plain
        self.alive = True

    def __dealloc__(self):
        free(self.ids)


cdef inline int64_t expiry(int64_t now_ms, int64_t message_ttl, int64_t queue_ttl) noexcept:
    if message_ttl < 0 and queue_ttl < 0:
        return NEVER
    if message_ttl < 0 or 0 <= queue_ttl < message_ttl:
        return now_ms + queue_ttl
    return now_ms + message_ttl


cdef class Publisher:
    """The publishing side of one channel."""

    cdef readonly Arena arena
    cdef public uint64_t last_seq
    cdef readonly Py_ssize_t position
    cdef Writer _memory
    cdef Writer _journal
    cdef object _resolve
    cdef dict _routes
    cdef Route _memo
    cdef uint8_t _memo_names[510]       # exchange, then key, of the route in `_memo`
    cdef int64_t _memo_exchange_len, _memo_key_len

    CACHE_MAX = 4096

    def __init__(self, Arena arena, Writer memory, Writer journal, resolve):
        self.arena, self._memory, self._journal, self._resolve = arena, memory, journal, resolve
        self._routes = {}
        self.last_seq = 0
        self.position = 0
        self._memo = None

    cdef Route _route(self, PublishRun run, PublishRow *row):
        cdef Route route = self._memo
        cdef const uint8_t *base = run.base
        cdef PyObject *known
        if (
            route is not None and route.alive
            and row.exchange_len == self._memo_exchange_len and row.key_len == self._memo_key_len
            and memcmp(base + row.exchange, self._memo_names, row.exchange_len) == 0
            and memcmp(base + row.key, self._memo_names + row.exchange_len, row.key_len) == 0
        ):
            return route
        exchange = PyBytes_FromStringAndSize(<char *>base + row.exchange, row.exchange_len)
        key = PyBytes_FromStringAndSize(<char *>base + row.key, row.key_len)
        where = (exchange, key)
        known = PyDict_GetItem(self._routes, where)
        if known != NULL and (<Route>known).alive:
            route = <Route>known
        else:
            route = self._resolve(exchange, key)
            if len(self._routes) >= 4096:
                self._routes.clear()
            PyDict_SetItem(self._routes, where, route)
        if row.exchange_len <= 255 and row.key_len <= 255:
            self._memo = route
            self._memo_exchange_len, self._memo_key_len = row.exchange_len, row.key_len
            memcpy(self._memo_names, base + row.exchange, row.exchange_len)
            memcpy(self._memo_names + row.exchange_len, base + row.key, row.key_len)
        return route

    cdef uint64_t _put(self, PublishRun run, PublishRow *row, Route route, int64_t now_ms) except 0:
        cdef bint persistent = (row.flags & ROW_PERSISTENT) != 0 and route.durable
        cdef Writer writer = self._journal if persistent else self._memory
        cdef const uint8_t *base = run.base
        cdef uint64_t loc = 0, seq
        cdef uint32_t ttl = NO_TTL
        cdef QueueCore queue
        cdef Py_ssize_t i
        if row.exchange_len > 255 or row.key_len > 255:
            raise OverflowError("a name over 255 bytes")
        if row.ttl_ms >= 0:
            ttl = row.ttl_ms if row.ttl_ms < NO_TTL else NO_TTL - 1
        seq = writer.put_message(
            route.ids, route.count, now_ms, ttl, row.priority, persistent,
            base + row.exchange, row.exchange_len, base + row.key, row.key_len,
            base + row.properties, row.properties_len, base + row.body, row.body_len, &loc,
        )
        if persistent:
            self.last_seq = seq + route.count - 1
        for i in range(route.count):
            queue = <QueueCore>(<object>route.queues[i])
            queue.put_entry(
                seq + i, loc, row.body_len, row.priority, expiry(now_ms, row.ttl_ms, queue.ttl_ms),
                DURABLE if persistent and queue.durable else 0, 0,
            )
        return seq

    def publish(self, PublishRun run, Py_ssize_t start, int64_t now_ms):
        """Publish rows from `start` on, as far as they are plain."""
        cdef Py_ssize_t index
        cdef PublishRow *row
        cdef Route route
        for index in range(start, run.count):
            self.position = index
            row = &run.rows[index]
            if row.flags & ROW_SPECIAL or row.ttl_ms == -2:
                return index
            route = self._route(run, row)
            if not route.plain:
                return index
            self._put(run, row, route, now_ms)
        self.position = run.count
        return run.count

    def route_of(self, PublishRun run, Py_ssize_t index):
        if not 0 <= index < run.count:
            raise IndexError(index)
        return self._route(run, &run.rows[index])

    def put(self, PublishRun run, Py_ssize_t index, Route route not None, int64_t now_ms):
        """Put one row on the queues of a route (at least one). Returns its first sequence."""
        if not 0 <= index < run.count:
            raise IndexError(index)
        assert route.count
        return self._put(run, &run.rows[index], route, now_ms)


cdef class Holder:
    """Whoever has acquired messages of one queue: a consumer, or a channel that used get."""

    cdef readonly QueueCore queue
    cdef public int64_t unacked

    def __init__(self, QueueCore queue not None):
        self.queue = queue
        self.unacked = 0


cdef struct Outstanding:
    PyObject *holder                    # NULL: not outstanding (any more)
    uint64_t index
    uint32_t size
    int32_t lane


cdef class Unacked:
    """The delivery tags of one channel: which entry each one stands for.

    A ring of the tags from the oldest outstanding one to the newest.
    """

    cdef readonly uint64_t last_tag
    cdef readonly uint64_t count
    cdef readonly uint64_t bytes
    cdef uint64_t _first                # every tag before it is settled
    cdef Outstanding *_ring
    cdef uint64_t _capacity             # a power of two

    def __cinit__(self):
        self._first = 1

    def __dealloc__(self):
        cdef uint64_t tag
        if self._ring != NULL:
            for tag in range(self._first, self.last_tag + 1):
                if self._ring[tag & (self._capacity - 1)].holder != NULL:
                    Py_DECREF(<object>self._ring[tag & (self._capacity - 1)].holder)
            free(self._ring)

    cdef int _room(self, uint64_t more) except -1:
        cdef uint64_t used = self.last_tag + 1 - self._first, capacity, tag
        cdef Outstanding *ring
        if used + more <= self._capacity:
            return 0
        capacity = self._capacity if self._capacity else 16
        while capacity < used + more:
            capacity *= 2
        ring = <Outstanding *>malloc(capacity * sizeof(Outstanding))
        if ring == NULL:
            raise MemoryError
        for tag in range(self._first, self.last_tag + 1):
            ring[tag & (capacity - 1)] = self._ring[tag & (self._capacity - 1)]
        free(self._ring)
        self._ring, self._capacity = ring, capacity
        return 0

    def skip(self, uint64_t count):
        """Tags for deliveries that need no ack. Returns the first."""
        cdef uint64_t first = self.last_tag + 1, tag
        if self.count == 0:
            self.last_tag += count
            self._first = self.last_tag + 1
        else:
            self._room(count)
            for tag in range(first, first + count):
                self._ring[tag & (self._capacity - 1)].holder = NULL
            self.last_tag += count
        return first

    def add(self, Holder holder not None, Taken taken not None):
        """Tags for these deliveries. Returns the first; the others follow it."""
        cdef uint64_t first = self.last_tag + 1
        cdef Py_ssize_t i
        cdef Outstanding *slot
        self._room(taken.count)
        for i in range(taken.count):
            self.last_tag += 1
            slot = &self._ring[self.last_tag & (self._capacity - 1)]
            Py_INCREF(holder)
            slot.holder = <PyObject *>holder
            slot.index, slot.size, slot.lane = taken.entries[i].index, taken.entries[i].size, taken.lane
            self.bytes += slot.size
        holder.unacked += taken.count
        self.count += taken.count
        return first

    cdef inline Outstanding *_slot(self, uint64_t tag) noexcept:
        """The ring's place for an outstanding tag; NULL if it is not one."""
        cdef Outstanding *slot
        if tag < self._first or tag > self.last_tag:
            return NULL
        slot = &self._ring[tag & (self._capacity - 1)]
        return slot if slot.holder != NULL else NULL

    cdef inline void _advance(self) noexcept:
        while (
            self._first <= self.last_tag
            and self._ring[self._first & (self._capacity - 1)].holder == NULL
        ):
            self._first += 1

    cdef (uint64_t, uint64_t) _bounds(self, uint64_t first, uint64_t last) noexcept:
        if first == 0:
            if last == 0:
                last = self.last_tag
            first = self._first
        if first < self._first:
            first = self._first
        if last > self.last_tag:
            last = self.last_tag
        return first, last

    def accept(self, uint64_t first, uint64_t last):
        """Settle the outstanding tags first..last; (0, last) is 'all up to', (0, 0) 'all'."""
        cdef uint64_t tag
        cdef Outstanding *slot
        cdef Outstanding taken
        cdef Holder holder
        cdef Py_ssize_t n = 0
        first, last = self._bounds(first, last)
        for tag in range(first, last + 1):
            slot = self._slot(tag)
            if slot == NULL:
                continue
            taken = slot[0]
            slot.holder = NULL
            holder = <Holder>taken.holder
            Py_DECREF(holder)
            holder.unacked -= 1
            self.count -= 1
            self.bytes -= taken.size
            n += 1
            holder.queue.settle_at(taken.lane, taken.index)
        self._advance()
        return n

    def pop(self, uint64_t first, uint64_t last):
        """Take the outstanding tags first..last out, for the caller to settle or requeue."""
        cdef uint64_t tag
        cdef Outstanding *slot
        cdef Holder holder
        cdef list popped = []
        first, last = self._bounds(first, last)
        for tag in range(first, last + 1):
            slot = self._slot(tag)
            if slot == NULL:
                continue
            holder = <Holder>slot.holder
            slot.holder = NULL
            Py_DECREF(holder)
            holder.unacked -= 1
            self.count -= 1
            self.bytes -= slot.size
            popped.append((holder, slot.lane, slot.index))
        self._advance()
        return popped


cdef class Restorer:
    """Recovery: applies the records of the journal to the queues, in the order they were written."""

    cdef readonly Arena arena
    cdef readonly uint64_t messages, settled, last_seq
    cdef dict _queues
    cdef uint32_t _memo_number
    cdef QueueCore _memo

    def __init__(self, Arena arena, dict queues):
        self.arena, self._queues = arena, queues
        self._memo = None

    cdef QueueCore _queue(self, uint32_t number):
        if self._memo is None or self._memo_number != number:
            self._memo = self._queues.get(number)
            self._memo_number = number
        return self._memo

    def frame(self, uint32_t extent, uint32_t start, uint32_t end):
        """Apply the records in these bytes of a resident extent."""
        cdef uint64_t loc
        cdef uint32_t at = start
        cdef const uint8_t *record
        cdef uint64_t last
        cdef const Head *head
        while at < end:
            loc = <uint64_t>extent << 32 | at
            record = self.arena.at(loc)
            head = <const Head *>record
            last = head.seq
            if head.type == TYPE_MESSAGE:
                self._message(loc, head)
                last += head.targets - 1
            elif head.type == TYPE_SETTLED:
                self._settled(head, record)
            elif head.type == TYPE_COUNTED:
                self._counted(record)
            if last > self.last_seq:
                self.last_seq = last
            at += head.length

    cdef int _message(self, uint64_t loc, const Head *head) except -1:
        cdef const uint32_t *targets = <const uint32_t *>(<const uint8_t *>head + sizeof(Head))
        cdef int64_t ttl = -1 if head.ttl_ms == NO_TTL else <int64_t>head.ttl_ms
        cdef Py_ssize_t i
        cdef QueueCore queue
        for i in range(head.targets):
            queue = self._queue(targets[i])
            if queue is not None and queue.durable:
                queue.put_entry(
                    head.seq + i, loc, head.body_len, head.priority,
                    expiry(head.accepted_ms, ttl, queue.ttl_ms), DURABLE | REDELIVERED, 0,
                )
                queue.published -= 1
                self.messages += 1
        return 0

    cdef int _settled(self, const Head *head, const uint8_t *record) except -1:
        cdef const uint32_t *fixed = <const uint32_t *>(record + sizeof(Head))
        cdef const uint64_t *numbers = <const uint64_t *>(record + sizeof(Head) + 8)
        cdef QueueCore queue = self._queue(fixed[0])
        cdef uint32_t i, count = fixed[1]
        cdef uint64_t seq
        if queue is None:
            return 0
        for i in range(count):
            if head.spare & RANGES:
                for seq in range(numbers[2 * i], numbers[2 * i] + numbers[2 * i + 1]):
                    self.settled += queue.forget(seq)
            else:
                self.settled += queue.forget(numbers[i])
        return 0

    cdef int _counted(self, const uint8_t *record) except -1:
        cdef const uint32_t *fixed = <const uint32_t *>(record + sizeof(Head))
        cdef const uint64_t *numbers = <const uint64_t *>(record + sizeof(Head) + 8)
        cdef QueueCore queue = self._queue(fixed[0])
        cdef uint32_t i
        if queue is not None:
            for i in range(fixed[1]):
                queue.set_deliveries(numbers[2 * i], min(numbers[2 * i + 1], <uint64_t>0xFFFF))
        return 0
