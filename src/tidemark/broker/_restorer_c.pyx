"""Compiled twin of `_restorer_py`: same names, same answers. Records are read where they lie."""

from libc.stdint cimport int64_t, uint8_t, uint32_t, uint64_t

from tidemark.broker._queue_c cimport DURABLE, REDELIVERED, expiry
from tidemark.broker._target_c cimport Target
from tidemark.model._arena_c cimport Arena, Head

cdef enum:
    GROUP = 32
    NO_TTL = 0xFFFFFFFF
    TTL_WHOLE = 16
    TYPE_MESSAGE = 1
    TYPE_SETTLED = 2
    TYPE_COUNTED = 3
    RANGES = 1


cdef class Restorer:
    """Recovery: applies the records of the journal to the queues, in the order they were written."""

    cdef readonly Arena arena
    cdef readonly uint64_t messages, settled, last_seq
    cdef dict _queues
    cdef uint32_t _memo_number
    cdef Target _memo

    def __init__(self, Arena arena, dict queues):
        self.arena, self._queues = arena, queues
        self._memo = None

    cdef Target _queue(self, uint32_t number):
        if self._memo is None or self._memo_number != number:
            self._memo = self._queues.get(number)
            self._memo_number = number
        return self._memo

    def frame(self, uint32_t extent, uint32_t start, uint32_t end, uint64_t after_seq=0):
        """Apply the records in these bytes of a resident extent; of those up to `after_seq` only the places."""
        cdef uint64_t places[GROUP]
        cdef int i, count
        cdef uint32_t at = start
        while at < end:
            count = 0
            while at < end and count < GROUP:
                places[count] = <uint64_t>extent << 32 | at
                at += (<const Head *>self.arena.at(places[count])).length
                count += 1
            self._foresee(places, count, after_seq)
            for i in range(count):
                self._apply(places[i], after_seq)

    cdef int _foresee(self, const uint64_t *places, int count, uint64_t after_seq) except -1:
        """Have what these records need brought into the cache, all at once: it lies anywhere."""
        cdef uint64_t memos[4 * GROUP]
        cdef const Head *head
        cdef Target queue
        cdef int step, i
        for step in range(3):
            for i in range(count):
                head = <const Head *>self.arena.at(places[i])
                if head.type == TYPE_MESSAGE and head.targets == 1 and head.seq > after_seq:
                    queue = self._queue((<const uint32_t *>(<const uint8_t *>head + sizeof(Head)))[0])
                    if queue is not None:
                        queue.foresee(<const uint8_t *>head, step, &memos[4 * i])
        return 0

    cdef int _apply(self, uint64_t loc, uint64_t after_seq) except -1:
        cdef const uint8_t *record = self.arena.at(loc)
        cdef const Head *head = <const Head *>record
        cdef uint64_t last = head.seq
        if head.seq <= after_seq:
            if head.type == TYPE_MESSAGE:
                self._relocate(loc, head)
            return 0
        if head.type == TYPE_MESSAGE:
            self._message(loc, head)
            last += head.targets - 1
        elif head.type == TYPE_SETTLED:
            self._settled(head, record)
        elif head.type == TYPE_COUNTED:
            self._counted(record)
        if last > self.last_seq:
            self.last_seq = last
        return 0

    cdef int _message(self, uint64_t loc, const Head *head) except -1:
        cdef const uint32_t *targets = <const uint32_t *>(<const uint8_t *>head + sizeof(Head))
        cdef int64_t ttl = -1 if head.ttl_ms == NO_TTL else <int64_t>head.ttl_ms
        cdef Py_ssize_t i
        cdef Target queue
        cdef uint64_t published
        for i in range(head.targets):
            queue = self._queue(targets[i])
            if queue is not None and queue.durable:
                published = queue.published
                queue.put_entry(
                    head.seq + i, loc, head.body_len, head.priority,
                    expiry(head.accepted_ms, ttl, -1 if head.flags & TTL_WHOLE else queue.ttl_ms),
                    DURABLE | REDELIVERED, 0,
                )
                queue.published = published
                self.messages += 1
        return 0

    cdef int _relocate(self, uint64_t loc, const Head *head) except -1:
        cdef const uint32_t *targets = <const uint32_t *>(<const uint8_t *>head + sizeof(Head))
        cdef Py_ssize_t i
        cdef Target queue
        for i in range(head.targets):
            queue = self._queue(targets[i])
            if queue is not None:
                queue.relocate(head.seq + i, loc)
        return 0

    cdef int _settled(self, const Head *head, const uint8_t *record) except -1:
        cdef const uint32_t *fixed = <const uint32_t *>(record + sizeof(Head))
        cdef const uint64_t *numbers = <const uint64_t *>(record + sizeof(Head) + 8)
        cdef Target queue = self._queue(fixed[0])
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
        cdef Target queue = self._queue(fixed[0])
        cdef uint32_t i
        if queue is not None:
            for i in range(fixed[1]):
                queue.set_deliveries(numbers[2 * i], min(numbers[2 * i + 1], <uint64_t>0xFFFF))
        return 0
