"""Compiled twin of `_queue_py`: same names, same answers.

The entries of a lane lie in blocks of 64. A block whose entries are all gone is freed; its slot in the
lane's table stays until the blocks before it have gone too, so an index leads to its entry in two
steps, and a sequence in a binary search over the slots.
"""

from cpython.buffer cimport PyBUF_READ
from cpython.bytes cimport PyBytes_FromStringAndSize
from cpython.memoryview cimport PyMemoryView_FromMemory
from libc.stdlib cimport free, malloc, realloc
from libc.string cimport memmove, memset

from tidemark.broker._target_c cimport mixed
from tidemark.model._runs_c cimport TakenEntry

import struct

from tidemark.broker._queue_py import Entry

cdef enum:
    READY = 0
    ACQUIRED = 1
    GONE = 2

cdef int64_t NEVER = 1LL << 62

DUMP_MAGIC = b"TMqueue1"


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

    LAYOUT = b"queue-c-1"

    def __init__(self, Arena arena, uint32_t number, bint durable, int priorities, list dirty):
        if self._lanes != NULL:
            raise RuntimeError("a queue is made once")
        Target.__init__(self, arena, number, durable, dirty)
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

    cdef Lane *_lane(self, int number) except NULL:
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

    def take(self, Py_ssize_t count, int64_t bytes_max, int64_t expired_ms=-1, bint hidden=False):
        """Acquire up to `count` ready entries of the most urgent lane, at least one, oldest first."""
        cdef int number
        cdef uint64_t shown = <uint64_t>-1 if hidden else self.arena.shown_seq
        self.waits_for = 0
        for number in range(self._lane_count - 1, -1, -1):
            taken = self._take_lane(
                number, count, bytes_max, expired_ms + 1, NEVER, shown
            )
            if taken is not None:
                return taken
        return None

    def take_expired(self, int64_t now_ms, Py_ssize_t count, int64_t bytes_max=NEVER):
        """Acquire entries whose time is over from the head of a lane, up to `count` or about `bytes_max`."""
        cdef int number
        for number in range(self._lane_count):
            taken = self._take_lane(number, count, bytes_max, 0, now_ms, <uint64_t>-1)
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
        self, int number, Py_ssize_t count, int64_t bytes_max, int64_t earliest, int64_t latest,
        uint64_t shown_seq,
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
            if entry.flags & DURABLE and entry.seq > shown_seq:
                self._wait_for(entry.seq)
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

    cdef int _wait_for(self, uint64_t seq) except -1:
        self.waits_for = seq
        if not self.is_hidden:
            self.is_hidden = True
            self.arena.hidden.append(self)
        return 0

    def show(self):
        """More is shown than before: look again."""
        self.is_hidden = False
        self.touch()

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

    cpdef set_deliveries(self, uint64_t seq, uint16_t deliveries):
        """Recovery: a COUNTED record."""
        cdef Lane *lane
        cdef Block *block
        cdef uint64_t index
        cdef QueueEntry *entry = self._find(seq, &lane, &block, &index)
        if entry != NULL:
            entry.deliveries = deliveries

    cpdef bint relocate(self, uint64_t seq, uint64_t loc) except -1:
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

    def census(self):
        """Of the entries that are in the journal: how many, and the sum of the hashes of their sequences."""
        cdef int number
        cdef uint32_t slot, i
        cdef uint64_t count = 0, digest = 0
        cdef Block *block
        cdef QueueEntry *entry
        for number in range(self._lane_count):
            for slot in range(self._lanes[number].start, self._lanes[number].end):
                block = self._lanes[number].slots[slot].block
                if block == NULL:
                    continue
                for i in range(block.count):
                    entry = &block.entries[i]
                    if entry.state != GONE and entry.flags & DURABLE:
                        count += 1
                        digest += mixed(entry.seq)
        return count, digest

    # Checkpoints -----------------------------------------------------------------------------

    def dump(self):
        """What `load` needs to have these entries again: for each lane a head of two numbers and its blocks."""
        cdef int number
        cdef uint32_t slot
        cdef uint64_t blocks
        cdef Lane *lane
        cdef Block *block
        parts = [struct.pack("<8sIII", DUMP_MAGIC, sizeof(Block), sizeof(QueueEntry), self._lane_count)]
        for number in range(self._lane_count):
            lane = &self._lanes[number]
            blocks = 0
            head = len(parts)
            parts.append(None)
            for slot in range(lane.start, lane.end):
                block = lane.slots[slot].block
                if block != NULL:
                    blocks += 1
                    parts.append(PyMemoryView_FromMemory(<char *>block, sizeof(Block), PyBUF_READ))
            parts[head] = struct.pack("<Q", blocks)
        return parts

    def load(self, parts):
        """Become what `dump` saw, all of it ready. Of an empty list: become empty."""
        cdef const uint8_t[::1] part
        cdef const Block *block
        cdef const QueueEntry *entry
        cdef uint64_t blocks, b
        cdef uint64_t published = self.published
        cdef uint32_t i
        cdef int number
        self._empty()
        if not parts:
            return
        each = iter(parts)
        magic, block_bytes, entry_bytes, lanes = struct.unpack("<8sIII", next(each))
        if (magic, block_bytes, entry_bytes) != (DUMP_MAGIC, sizeof(Block), sizeof(QueueEntry)):
            raise ValueError("not the entries of a queue as this version writes them")
        for number in range(lanes):
            blocks, = struct.unpack("<Q", next(each))
            for b in range(blocks):
                part = next(each)
                if part.shape[0] != sizeof(Block):
                    raise ValueError("a block of entries is cut off")
                block = <const Block *>&part[0]
                if block.count > BLOCK_ENTRIES:
                    raise ValueError("a block of entries is damaged")
                for i in range(block.count):
                    entry = &block.entries[i]
                    if entry.state != GONE and entry.flags & DURABLE:
                        self.arena._extent(entry.loc >> 32)
                        self.put_entry(
                            entry.seq, entry.loc, entry.size, number, entry.expires_ms,
                            DURABLE | REDELIVERED, entry.deliveries,
                        )
        self.published = published

    def drop_missing(self, gone):
        """End every ready entry whose extent is one of `gone`, without a record. Returns how many."""
        cdef int number
        cdef uint32_t slot, i
        cdef Lane *lane
        cdef Block *block
        missing = []
        for number in range(self._lane_count):
            lane = &self._lanes[number]
            for slot in range(lane.start, lane.end):
                block = lane.slots[slot].block
                if block == NULL:
                    continue
                for i in range(block.count):
                    if block.entries[i].state != GONE and (block.entries[i].loc >> 32) in gone:
                        missing.append(block.entries[i].seq)
        for seq in missing:
            self.forget(seq)
        return len(missing)

    def clear(self):
        """The queue is deleted: every entry ends, without a record (the catalog says it all)."""
        self.deleted = True
        self._empty()

    cdef int _empty(self) except -1:
        cdef int number
        cdef uint32_t slot, i
        cdef Lane *lane
        cdef Block *block
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
        return 0


cdef int64_t expiry(int64_t now_ms, int64_t message_ttl, int64_t queue_ttl) noexcept:
    if message_ttl < 0 and queue_ttl < 0:
        return NEVER
    if message_ttl < 0 or 0 <= queue_ttl < message_ttl:
        return now_ms + queue_ttl
    return now_ms + message_ttl
