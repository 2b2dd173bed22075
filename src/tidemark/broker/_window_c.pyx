"""Compiled twin of `_window_py`: same names, same answers."""

from libc.stdint cimport uint64_t
from libc.stdlib cimport free, malloc

from tidemark.model._runs_c cimport Taken


cdef class Window:
    def __init__(self, uint64_t position, owner, list due not None, target):
        self.position = self.boundary = position
        self.stirred = False
        self._owner, self._due, self._target = owner, due, target

    def __dealloc__(self):
        free(self._ring)

    def __len__(self):
        """How many entries have not left it."""
        return self._count

    cdef int _room(self, uint64_t more) except -1:
        cdef uint64_t capacity = self._capacity if self._capacity else 16, ordinal
        cdef WindowEntry *ring
        if self._count + more <= self._capacity:
            return 0
        while capacity < self._count + more:
            capacity *= 2
        ring = <WindowEntry *>malloc(capacity * sizeof(WindowEntry))
        if ring == NULL:
            raise MemoryError
        for ordinal in range(self._first, self._first + self._count):
            ring[ordinal & (capacity - 1)] = self._ring[ordinal & (self._capacity - 1)]
        free(self._ring)
        self._ring, self._capacity = ring, capacity
        return 0

    cdef uint64_t add_taken(self, Taken taken) except? 0xFFFFFFFFFFFFFFFF:
        cdef uint64_t first = self._first + self._count
        cdef WindowEntry *entry
        cdef Py_ssize_t i
        self._room(taken.count)
        for i in range(taken.count):
            entry = &self._ring[(first + i) & (self._capacity - 1)]
            entry.seq, entry.done, entry.is_boundary = taken.entries[i].seq, 0, 0
        self._count += taken.count
        return first

    def add(self, Taken taken not None):
        """These are being sent. Returns the ordinal of the first; the others follow it."""
        return self.add_taken(taken)

    def add_boundary(self, uint64_t seq, bint told):
        """A snapshot ends at `seq`, and the consumer is told so or not. Returns the ordinal."""
        cdef uint64_t ordinal = self._first + self._count
        cdef WindowEntry *entry
        if not told and self._count:
            entry = &self._ring[(ordinal - 1) & (self._capacity - 1)]
            if entry.is_boundary and entry.done:
                # Nothing lies between this boundary and the one before: one entry stands for both.
                entry.seq = seq
                return ordinal - 1
        self._room(1)
        entry = &self._ring[ordinal & (self._capacity - 1)]
        entry.seq, entry.done, entry.is_boundary = seq, not told, 1
        self._count += 1
        if not told:
            self._advance()
        return ordinal

    cdef int settle_at(self, uint64_t ordinal) except -1:
        if not self._first <= ordinal < self._first + self._count:
            return 0
        self._ring[ordinal & (self._capacity - 1)].done = 1
        self._advance()
        if not self.stirred:
            self.stir()
        return 0

    def settle(self, uint64_t ordinal):
        """This delivery is acknowledged. What has left already, by `clear`, is nobody's."""
        self.settle_at(ordinal)

    def stir(self):
        """The owner wants to be looked at: it may have room again."""
        if not self.stirred:
            self.stirred = True
            self._due.append(self._owner)
            self._target.touch()

    def clear(self):
        """Nothing of it will be acknowledged any more."""
        self._first += self._count
        self._count = 0

    def after(self, list ordinals not None):
        """Position and boundary as they will be when these ordinals are settled; nothing changes."""
        cdef set settled = set(ordinals)
        cdef uint64_t position = self.position, boundary = self.boundary, ordinal
        cdef WindowEntry *entry
        for ordinal in range(self._first, self._first + self._count):
            entry = &self._ring[ordinal & (self._capacity - 1)]
            if not entry.done and ordinal not in settled:
                break
            position = entry.seq
            if entry.is_boundary:
                boundary = entry.seq
        return position, boundary

    cdef void _advance(self) noexcept:
        cdef WindowEntry *entry
        while self._count:
            entry = &self._ring[self._first & (self._capacity - 1)]
            if not entry.done:
                return
            self.position = entry.seq
            if entry.is_boundary:
                self.boundary = entry.seq
            self._first += 1
            self._count -= 1
