"""Compiled twin of `_publisher_py`: same names, same answers.

The route of the last message is remembered by its names: most runs go to one place, and comparing two short
strings is cheaper than looking one up.
"""

from cpython.bytes cimport PyBytes_FromStringAndSize
from cpython.dict cimport PyDict_GetItem, PyDict_SetItem
from cpython.ref cimport PyObject
from libc.stdint cimport int64_t, uint8_t, uint16_t, uint32_t, uint64_t
from libc.stdlib cimport free, malloc
from libc.string cimport memcmp, memcpy

from tidemark.broker._queue_c cimport DURABLE, expiry
from tidemark.broker._target_c cimport Target
from tidemark.model._arena_c cimport Arena, Writer
from tidemark.model._runs_c cimport PublishRow, PublishRun

cdef enum:
    ROW_PERSISTENT = 4
    # IMMEDIATE | HAS_USER_ID | HAS_COPIES | DIRECT_REPLY | HAS_PRODUCER
    ROW_SPECIAL = 2 | 32 | 64 | 128 | 256
    NO_TTL = 0xFFFFFFFF
    TTL_WHOLE = 16


cdef class Meter:
    """Counts of what was published: through one exchange, or by everybody."""

    cdef public uint64_t messages, routed, bytes
    cdef uint64_t _sizes[9]

    def sizes(self):
        """How many messages there were of each class of `SIZES`."""
        return tuple([self._sizes[i] for i in range(9)])

    def add(self, uint64_t queues, uint64_t size):
        """One message of so many bytes that went to so many queues."""
        self.count(queues, size)

    cdef inline void count(self, uint64_t queues, uint64_t size) noexcept:
        self.messages += 1
        self.routed += queues
        self.bytes += size
        self._sizes[size_class(size)] += 1


cdef inline int size_class(uint64_t size) noexcept:
    # Most messages are small: the first tests find them. The bounds are `SIZES`.
    if size <= 100:
        return 0
    if size <= 1000:
        return 1
    if size <= 10000:
        return 2
    if size <= 100000:
        return 3
    if size <= 1000000:
        return 4
    if size <= 10000000:
        return 5
    if size <= 50000000:
        return 6
    return 7 if size <= 100000000 else 8


cdef class Route:
    """Where messages of one exchange and key go. Kept until the wiring changes (`alive` False)."""

    cdef readonly tuple queues
    cdef readonly tuple targets
    cdef readonly bint durable
    cdef readonly bint keeps
    cdef public bint plain
    cdef public bint alive
    cdef public Meter meter
    cdef uint32_t *ids
    cdef uint16_t count

    def __init__(self, tuple queues, bint plain):
        cdef Py_ssize_t i
        cdef Target queue
        if self.ids != NULL:
            raise RuntimeError("a route is made once")
        if len(queues) > 0xFFFF:
            raise OverflowError("more than 65535 queues for one message")
        self.queues = queues
        self.targets = tuple([(<Target?>queue).number for queue in queues])
        self.count = len(queues)
        self.ids = <uint32_t *>malloc(4 * self.count + 4)
        if self.ids == NULL:
            raise MemoryError
        self.durable = self.keeps = False
        for i in range(self.count):
            queue = queues[i]
            self.ids[i] = queue.number
            self.durable = self.durable or queue.durable
            self.keeps = self.keeps or queue.keeps
        self.plain = plain
        self.alive = True

    def __dealloc__(self):
        free(self.ids)


cdef class Publisher:
    """The publishing side of one channel."""

    cdef readonly Arena arena
    cdef public uint64_t last_seq
    cdef readonly Py_ssize_t position
    cdef Writer _memory
    cdef Writer _journal
    cdef object _resolve
    cdef Meter _meter
    cdef dict _routes
    cdef Route _memo
    cdef uint8_t _memo_names[510]       # exchange, then key, of the route in `_memo`
    cdef int64_t _memo_exchange_len, _memo_key_len

    CACHE_MAX = 4096

    def __init__(self, Arena arena, Writer memory, Writer journal, resolve, Meter meter=None):
        self.arena, self._memory, self._journal, self._resolve = arena, memory, journal, resolve
        self._meter = meter
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
        cdef bint persistent = (route.keeps or (row.flags & ROW_PERSISTENT) != 0) and route.durable
        cdef Writer writer = self._journal if persistent else self._memory
        cdef const uint8_t *base = run.base
        cdef uint64_t loc = 0, seq
        cdef uint32_t ttl = NO_TTL
        cdef uint8_t flags = TTL_WHOLE
        cdef int64_t life, of_queues = -1
        cdef Target queue
        cdef Py_ssize_t i
        if row.exchange_len > 255 or row.key_len > 255:
            raise OverflowError("a name over 255 bytes")
        for i in range(route.count):
            life = (<Target>(<object>route.queues[i])).ttl_ms
            if i and life != of_queues:
                flags = 0
            of_queues = life
        life = row.ttl_ms
        if flags and 0 <= of_queues and (life < 0 or of_queues < life):
            life = of_queues
            if life >= NO_TTL - 1:
                life, flags = row.ttl_ms, 0     # it does not fit: the queue will say it again
        if life >= 0:
            ttl = life if life < NO_TTL else NO_TTL - 1
        seq = writer.put_message(
            route.ids, route.count, now_ms, ttl, row.priority, persistent,
            base + row.exchange, row.exchange_len, base + row.key, row.key_len,
            base + row.properties, row.properties_len, base + row.body, row.body_len, &loc,
            NULL, 0, flags,
        )
        if persistent:
            self.last_seq = seq + route.count - 1
        for i in range(route.count):
            queue = <Target>(<object>route.queues[i])
            queue.put_entry(
                seq + i, loc, row.body_len, row.priority, expiry(now_ms, row.ttl_ms, queue.ttl_ms),
                DURABLE if persistent and queue.durable else 0, 0,
            )
        if route.meter is not None:
            route.meter.count(route.count, row.body_len)
        if self._meter is not None:
            self._meter.count(route.count, row.body_len)
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
