"""Compiled twin of `_restorer_py`: same names, same answers. Records are read where they lie."""

from libc.stdint cimport int64_t, uint8_t, uint32_t, uint64_t

from tidemark.broker._queue_c cimport DURABLE, REDELIVERED, QueueCore, expiry
from tidemark.model._arena_c cimport Arena, Head

cdef enum:
    NO_TTL = 0xFFFFFFFF
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
