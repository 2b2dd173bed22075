"""Compiled twin of `_target_py`: same names, same answers. `put_entry` is `put` for compiled callers."""


cdef class Target:
    """Something that messages are put on."""

    def __init__(self, Arena arena not None, uint32_t number, bint durable, list dirty not None):
        self.arena, self.number, self.durable, self._dirty = arena, number, durable, dirty
        self.ttl_ms = -1

    cpdef touch(self):
        """Something changed: the broker looks at this target at the end of the turn."""
        if not self.is_dirty:
            self.is_dirty = True
            self._dirty.append(self)

    cdef int put_entry(
        self, uint64_t seq, uint64_t loc, uint32_t size, int64_t priority, int64_t expires_ms,
        uint8_t flags, uint16_t deliveries,
    ) except -1:
        self.put(seq, loc, size, priority, expires_ms, flags, deliveries)
        return 0

    def put(self, seq, loc, size, priority, expires_ms, flags, deliveries=0):
        """Add an entry at the end. `seq` is above every other."""
        raise NotImplementedError

    cdef void foresee(self, const uint8_t *record, int step, uint64_t *memo) noexcept:
        """This record will be put soon: have what that needs brought into the cache, in steps from 0 to 2.

        `memo` is four numbers that are kept between the steps of one record.
        """

    cpdef bint forget(self, uint64_t seq) except -1:
        """Recovery: a SETTLED record names this entry. False if it is not here, as ever in a stream."""
        return False

    cpdef set_deliveries(self, uint64_t seq, uint16_t deliveries):
        """Recovery: a COUNTED record. Streams count no deliveries."""

    def census(self):
        """Of the entries that the journal has left here: how many, and the sum of the hashes of their sequences."""
        raise NotImplementedError

    cpdef bint relocate(self, uint64_t seq, uint64_t loc) except -1:
        """The record of this entry lies elsewhere now. False if the entry is gone."""
        raise NotImplementedError
