"""Compiled twin of `_unacked_py`: same names, same answers."""

from cpython.ref cimport Py_DECREF, Py_INCREF, PyObject
from libc.stdint cimport int32_t, int64_t, uint32_t, uint64_t
from libc.stdlib cimport free, malloc

from tidemark.broker._queue_c cimport QueueCore
from tidemark.broker._window_c cimport Window
from tidemark.model._runs_c cimport Taken


cdef class Holder:
    """Whoever has messages of one queue: a consumer, or a channel that used get; of a stream, with a window."""

    cdef readonly object queue          # a QueueCore where there is no window
    cdef readonly Window window
    cdef public int64_t unacked

    def __init__(self, queue not None, Window window=None):
        if window is None and not isinstance(queue, QueueCore):
            raise TypeError(f"{type(queue).__name__} is no queue")
        self.queue, self.window = queue, window
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
        cdef uint64_t first = self.last_tag + 1, ordinal
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
        if holder.window is not None:
            ordinal = holder.window.add_taken(taken)
            for i in range(taken.count):
                self._ring[(first + i) & (self._capacity - 1)].index = ordinal + i
        holder.unacked += taken.count
        self.count += taken.count
        return first

    def add_boundary(self, Holder holder not None, uint64_t seq):
        """A tag for a boundary that the consumer is told of. Returns it."""
        cdef Outstanding *slot
        cdef uint64_t ordinal = holder.window.add_boundary(seq, True)
        self._room(1)
        self.last_tag += 1
        slot = &self._ring[self.last_tag & (self._capacity - 1)]
        Py_INCREF(holder)
        slot.holder = <PyObject *>holder
        slot.index, slot.size, slot.lane = ordinal, 0, 0
        holder.unacked += 1
        self.count += 1
        return self.last_tag

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

    def oldest(self):
        """The oldest outstanding tag and who holds its message; None if none is outstanding."""
        if self.count == 0:
            return None
        self._advance()
        return self._first, <object>self._ring[self._first & (self._capacity - 1)].holder

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
            if holder.window is None:
                (<QueueCore>holder.queue).settle_at(taken.lane, taken.index)
            else:
                holder.window.settle_at(taken.index)
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
