"""Compiled twin of `_scanner_py`: same names, same answers, same errors.

The fast path is `Scanner.scan` → `Scanner.publish` → `in_place`: no Python object per publish. What
is found to be wrong is handed to `checks`, `decode_method` and `decode_properties`, which say how.
"""

from cpython.buffer cimport PyBUF_SIMPLE, PyBuffer_Release, PyObject_GetBuffer
from cpython.bytearray cimport (
    PyByteArray_AS_STRING,
    PyByteArray_FromStringAndSize,
    PyByteArray_GET_SIZE,
    PyByteArray_Resize,
)
from cpython.bytes cimport PyBytes_FromStringAndSize
from libc.stdint cimport int64_t, uint8_t, uint16_t, uint32_t, uint64_t
from libc.string cimport memcmp, memcpy

from tidemark.model._runs_c cimport PublishRow, PublishRun

from tidemark.errors import RemoteProtocolError
from tidemark.wire.amqp091 import checks
from tidemark.wire.amqp091.events import AckRun, Fault, Heartbeat, MethodFrame, Oversized
from tidemark.wire.amqp091.methods import decode_method
from tidemark.wire.amqp091.properties import decode_properties

cdef enum:
    METHOD = 1
    HEADER = 2
    BODY = 3
    HEARTBEAT = 8
    FRAME_END = 0xCE
    FRAME_START = 7
    ENVELOPE = 8
    CONTENT_START = 12
    BASIC = 60
    PUBLISH = 60 << 16 | 40
    ACK = 60 << 16 | 80
    ACK_BYTES = 13
    DEPTH_MAX = 32
    TTL_DIGITS_MAX = 18
    TTL_MAX = 0xFFFFFFFF

cdef enum:
    PERSISTENT = 4
    HAS_HEADERS = 8
    HAS_EXPIRATION = 16
    HAS_USER_ID = 32
    DIRECT_REPLY = 128
    HAS_COPIES = 64
    HAS_PRODUCER = 256

# Property flags, first property highest.
cdef enum:
    CONTENT_TYPE = 1 << 15
    CONTENT_ENCODING = 1 << 14
    HEADERS = 1 << 13
    DELIVERY_MODE = 1 << 12
    PRIORITY = 1 << 11
    CORRELATION_ID = 1 << 10
    REPLY_TO = 1 << 9
    EXPIRATION = 1 << 8
    MESSAGE_ID = 1 << 7
    TIMESTAMP = 1 << 6
    TYPE = 1 << 5
    USER_ID = 1 << 4
    APP_ID = 1 << 3
    CLUSTER_ID = 1 << 2
    UNKNOWN = 1 << 1
    CONTINUED = 1

cdef extern from *:
    """
    #include <stdint.h>
    #include <string.h>
    static inline uint16_t load16(const uint8_t *p) {
        uint16_t v; memcpy(&v, p, 2); return __builtin_bswap16(v);
    }
    static inline uint32_t load32(const uint8_t *p) {
        uint32_t v; memcpy(&v, p, 4); return __builtin_bswap32(v);
    }
    static inline uint64_t load64(const uint8_t *p) {
        uint64_t v; memcpy(&v, p, 8); return __builtin_bswap64(v);
    }
    #if __BYTE_ORDER__ != __ORDER_LITTLE_ENDIAN__
    #error "written for little-endian machines; use TIDEMARK_PURE=1 on others"
    #endif
    """
    uint16_t load16(const uint8_t *p) noexcept nogil
    uint32_t load32(const uint8_t *p) noexcept nogil
    uint64_t load64(const uint8_t *p) noexcept nogil


# Properties -----------------------------------------------------------------------------------

cdef struct Facts:
    int64_t flags
    int64_t priority
    int64_t ttl_ms


cdef const uint8_t *skip_value(const uint8_t *p, const uint8_t *end, int depth) noexcept nogil:
    """Behind the value whose type letter is at `p`; NULL when it is malformed."""
    cdef uint8_t letter
    cdef Py_ssize_t size
    if p >= end:
        return NULL
    letter = p[0]
    p += 1
    if letter in (c't', c'b', c'B'):
        size = 1
    elif letter in (c's', c'U', c'u'):
        size = 2
    elif letter in (c'I', c'i', c'f'):
        size = 4
    elif letter == c'D':
        size = 5
    elif letter in (c'l', c'L', c'd', c'T'):
        size = 8
    elif letter == c'V':
        return p
    elif letter in (c'S', c'x', c'F', c'A'):
        if end - p < 4:
            return NULL
        size = load32(p)
        p += 4
        if size > end - p:
            return NULL
        if letter in (c'F', c'A'):
            if depth == DEPTH_MAX:
                return NULL
            if not check_entries(p, p + size, depth + 1, letter == c'F', NULL):
                return NULL
        return p + size
    else:
        return NULL
    return p + size if size <= end - p else NULL


cdef bint check_entries(
    const uint8_t *p, const uint8_t *end, int depth, bint named, int64_t *noted
) noexcept nogil:
    """Whether the entries of a table (`named`) or array are well formed; notes CC, BCC and x-producer."""
    cdef Py_ssize_t size
    while p < end:
        if named:
            size = p[0]
            p += 1
            if size > end - p:
                return False
            if noted != NULL:
                if (
                    size == 2 and p[0] == c'C' and p[1] == c'C'
                    or size == 3 and p[0] == c'B' and p[1] == c'C' and p[2] == c'C'
                ):
                    noted[0] |= HAS_COPIES
                elif size == 10 and memcmp(p, b"x-producer", 10) == 0:
                    noted[0] |= HAS_PRODUCER
            p += size
        p = skip_value(p, end, depth)
        if p == NULL:
            return False
    return True


cdef inline const uint8_t *skip_text(const uint8_t *p, const uint8_t *end) noexcept nogil:
    """Behind the short string at `p`; NULL when it is truncated, or when `p` is NULL already."""
    if p == NULL or p >= end or p[0] >= end - p:
        return NULL
    return p + 1 + p[0]


cdef int64_t parse_ttl(const uint8_t *text, Py_ssize_t size) noexcept nogil:
    cdef int64_t value = 0
    cdef Py_ssize_t i
    if not 0 < size <= TTL_DIGITS_MAX:
        return -2
    for i in range(size):
        if not c'0' <= text[i] <= c'9':
            return -2
        value = value * 10 + (text[i] - c'0')
    return value if value <= <int64_t>TTL_MAX else -2


cdef bint inspect(const uint8_t *p, Py_ssize_t available, Facts *facts) noexcept nogil:
    """Fill `facts` from raw properties; False when they are malformed."""
    cdef const uint8_t *end = p + available
    cdef const uint8_t *text
    cdef uint16_t flags, word
    cdef Py_ssize_t size
    facts.flags, facts.priority, facts.ttl_ms = 0, 0, -1
    if available < 2:
        return False
    flags = word = load16(p)
    p += 2
    if flags & UNKNOWN:
        return False
    while word & CONTINUED:
        if end - p < 2:
            return False
        word = load16(p)
        p += 2
        if word & ~CONTINUED:
            return False
    if flags & (CONTENT_TYPE | CONTENT_ENCODING):
        if flags & CONTENT_TYPE:
            p = skip_text(p, end)
        if flags & CONTENT_ENCODING:
            p = skip_text(p, end)
        if p == NULL:
            return False
    if flags & HEADERS:
        if end - p < 4:
            return False
        size = load32(p)
        p += 4
        if size > end - p or not check_entries(p, p + size, 1, True, &facts.flags):
            return False
        p += size
        facts.flags |= HAS_HEADERS
    if flags & DELIVERY_MODE:
        if p >= end:
            return False
        if p[0] == 2:
            facts.flags |= PERSISTENT
        p += 1
    if flags & PRIORITY:
        if p >= end:
            return False
        facts.priority = p[0]
        p += 1
    if not flags & (
        CORRELATION_ID | REPLY_TO | EXPIRATION | MESSAGE_ID | TIMESTAMP
        | TYPE | USER_ID | APP_ID | CLUSTER_ID
    ):
        return p == end
    if flags & CORRELATION_ID:
        p = skip_text(p, end)
    if flags & REPLY_TO:
        text = p
        p = skip_text(p, end)
        if p == NULL:
            return False
        if text[0] == 21 and memcmp(text + 1, b"amq.rabbitmq.reply-to", 21) == 0:
            facts.flags |= DIRECT_REPLY
    if flags & EXPIRATION:
        text = p
        p = skip_text(p, end)
        if p == NULL:
            return False
        facts.flags |= HAS_EXPIRATION
        facts.ttl_ms = parse_ttl(text + 1, text[0])
    if flags & MESSAGE_ID:
        p = skip_text(p, end)
    if flags & TIMESTAMP:
        if p == NULL or end - p < 8:
            return False
        p += 8
    if flags & TYPE:
        p = skip_text(p, end)
    if flags & USER_ID:
        p = skip_text(p, end)
        facts.flags |= HAS_USER_ID
    if flags & APP_ID:
        p = skip_text(p, end)
    if flags & CLUSTER_ID:
        p = skip_text(p, end)
    return p == end


def inspect_properties(const uint8_t[::1] raw not None):
    """Row flags, priority and ttl in ms of raw properties."""
    cdef Facts facts
    if not inspect(&raw[0] if raw.shape[0] else NULL, raw.shape[0], &facts):
        explain_properties(raw)
    return facts.flags, facts.priority, facts.ttl_ms


cdef int explain_properties(raw) except -1:
    """Raise what the reference says about malformed properties."""
    decode_properties(bytes(raw))
    raise AssertionError(f"properties {bytes(raw).hex()} are malformed only here")


# Content that is not whole in one feed -----------------------------------------------------------

cdef class Content:
    """What a channel has of a publish so far."""

    cdef Py_ssize_t exchange_bytes, key_bytes, properties_bytes
    cdef int64_t body_bytes             # as announced; -1 before the header
    cdef int64_t missing
    cdef Facts facts
    cdef bint dropping
    cdef bytearray buffer

    cdef int append(self, const uint8_t *data, Py_ssize_t size) except -1:
        cdef Py_ssize_t before = PyByteArray_GET_SIZE(self.buffer)
        PyByteArray_Resize(self.buffer, before + size)
        memcpy(PyByteArray_AS_STRING(self.buffer) + before, data, size)
        return 0

    cdef PublishRun run(self, int channel):
        cdef PublishRun run = PublishRun(channel, self.buffer)
        cdef PublishRow *row = run.next_row()
        row.exchange, row.exchange_len = 0, self.exchange_bytes
        row.key, row.key_len = self.exchange_bytes, self.key_bytes
        row.properties, row.properties_len = row.key + row.key_len, self.properties_bytes
        row.body, row.body_len = row.properties + row.properties_len, self.body_bytes
        row.flags, row.priority, row.ttl_ms = (
            self.facts.flags, self.facts.priority, self.facts.ttl_ms
        )
        row.spare = 0
        return run


cdef Content dropping_content():
    cdef Content content = Content.__new__(Content)
    content.dropping = True
    content.buffer = bytearray()
    return content


cdef class Scanner:
    """One per connection.

    `frame_max` (0 is no limit) and `channel_max` may be changed at any time, as the handshake goes
    on: with `channel_max` 0 nobody can send content, for content on channel 0 is refused.
    """

    cdef public int64_t frame_max
    cdef public int64_t body_max
    cdef public int64_t channel_max
    cdef dict contents                  # channel -> Content
    cdef Py_ssize_t held                # bytes in their buffers
    cdef bint failed

    # Within one feed: what was found, and the open run of each channel. The run that was used last
    # is at hand in `run` or `acks`; the last range of `acks` is kept in `first` and `last`.
    cdef list events
    cdef dict open
    cdef int at_hand                    # its channel; -1 is none
    cdef PublishRun run
    cdef list acks
    cdef uint64_t first, last           # first 0: no range at hand
    cdef object view
    cdef const uint8_t *base
    cdef Py_ssize_t available

    def __init__(self, frame_max, body_max, channel_max=65535):
        self.frame_max = frame_max
        self.body_max = body_max
        self.channel_max = channel_max
        self.contents = {}
        self.open = {}
        self.at_hand = -1

    @property
    def assembling_bytes(self):
        """Bytes held for content that is not complete yet."""
        return self.held

    def discard(self, int channel):
        """The channel was closed on our side: forget its content, and drop what follows of it.

        Header and body frames of the channel are dropped until its next method.
        """
        if channel in self.contents:
            self.drop(channel)

    cdef int drop(self, int channel) except -1:
        cdef Content content = self.contents[channel]
        self.held -= PyByteArray_GET_SIZE(content.buffer)
        self.contents[channel] = dropping_content()
        return 0

    def feed(self, data not None):
        """Find what is whole at the front of `data`.

        Returns:
            The events, and how many bytes they used. The rest is the start of a frame and must
            come again, with what follows it. Runs point into `data`.
        """
        cdef Py_buffer buffer
        cdef Py_ssize_t used
        cdef list events
        view = data if isinstance(data, memoryview) else memoryview(data)
        if self.failed:
            return [], len(view)
        PyObject_GetBuffer(view, &buffer, PyBUF_SIMPLE)
        self.view, self.base, self.available = view, <const uint8_t *>buffer.buf, buffer.len
        self.events = events = []
        try:
            used = self.scan()
        finally:
            PyBuffer_Release(&buffer)
            self.park()
            self.open.clear()
            self.events = self.view = None
            self.base = NULL
        return events, used

    cdef Py_ssize_t scan(self) except -1:
        cdef:
            const uint8_t *base = self.base
            Py_ssize_t available = self.available, position = 0, start, end
            uint8_t kind
            int channel = 0
            uint32_t size, ids = 0
        try:
            while available - position >= FRAME_START:
                kind = base[position]
                channel = load16(base + position + 1)
                size = load32(base + position + 3)
                ids = 0
                if not self.admits(kind, channel, size):
                    raise checks.refused_frame(
                        kind, channel, size, self.frame_max, self.channel_max
                    )
                start = position + FRAME_START
                end = start + size
                if end >= available:
                    break
                if base[end] != FRAME_END:
                    raise checks.no_end_mark(channel, base[end])
                if kind == METHOD:
                    ids = load32(base + start) if size >= 4 else 0
                    position = self.method(channel, ids, start, end)
                    continue
                position = end + 1
                if kind == HEARTBEAT:
                    if channel or size:
                        raise checks.bad_heartbeat(channel, size)
                    self.events.append(Heartbeat())
                else:
                    ids = PUBLISH if channel in self.contents else 0
                    self.content(kind, channel, start, end)
        except RemoteProtocolError as error:
            self.failed = True
            self.contents.clear()
            self.held = 0
            # Its traceback would keep the read buffer alive.
            error = error.with_traceback(None)
            self.events.append(Fault(error, channel, ids >> 16, ids & 0xFFFF))
            return available
        return position

    cdef inline bint admits(self, uint8_t kind, int channel, uint32_t size) noexcept:
        return (
            (METHOD <= kind <= BODY or kind == HEARTBEAT)
            and (self.frame_max == 0 or <int64_t>size + ENVELOPE <= self.frame_max)
            and channel <= self.channel_max
        )

    # Open runs ---------------------------------------------------------------------------------

    cdef int park(self) except -1:
        """Put away what is at hand."""
        if self.acks is not None and self.first:
            self.acks.append((self.first, self.last))
        self.first = 0
        self.at_hand = -1
        self.run = None
        self.acks = None
        return 0

    cdef int close(self, int channel) except -1:
        if self.at_hand == channel:
            self.park()
        if self.open:
            self.open.pop(channel, None)
        return 0

    cdef int take_run(self, int channel) except -1:
        """Have the open `PublishRun` of the channel at hand, a new one if there is none."""
        self.park()
        found = self.open.get(channel)
        if not isinstance(found, PublishRun):
            found = self.open[channel] = PublishRun(channel, self.view)
            self.events.append(found)
        self.run = found
        self.at_hand = channel
        return 0

    cdef int take_acks(self, int channel) except -1:
        """Have the ranges of the channel's open `AckRun` at hand, of a new one if there is none."""
        self.park()
        found = self.open.get(channel)
        if not isinstance(found, AckRun):
            found = self.open[channel] = AckRun(channel, [])
            self.events.append(found)
        self.acks = found.ranges
        self.at_hand = channel
        if self.acks and self.acks[len(self.acks) - 1][0]:
            self.first, self.last = self.acks.pop()
        return 0

    # Methods -----------------------------------------------------------------------------------

    cdef Py_ssize_t method(
        self, int channel, uint32_t ids, Py_ssize_t start, Py_ssize_t end
    ) except -1:
        """Take the method between `start` and `end`; return where to go on."""
        cdef Content content
        cdef uint64_t tag
        cdef bint multiple
        if self.contents:
            content = self.contents.get(channel)
            if content is not None:
                if not content.dropping:
                    raise checks.method_in_content(channel)
                del self.contents[channel]
        if ids == PUBLISH:
            return self.publish(channel, start, end)
        if ids == ACK and end - start == ACK_BYTES:
            tag = load64(self.base + start + 4)
            multiple = self.base[start + 12] & 1
            if tag or multiple:
                self.ack(channel, tag, multiple)
                return end + 1
            # A single ack of tag 0 is a method: as a range it would mean everything.
        method = decode_method(self.view[start:end])
        self.close(channel)
        self.events.append(MethodFrame(channel, method))
        return end + 1

    cdef int ack(self, int channel, uint64_t tag, bint multiple) except -1:
        if self.at_hand != channel or self.acks is None:
            self.take_acks(channel)
        if not multiple and self.first and tag == self.last + 1:
            self.last = tag
            return 0
        if self.first:
            self.acks.append((self.first, self.last))
            self.first = 0
        if multiple:
            self.acks.append((0, tag))
        else:
            self.first = self.last = tag
        return 0

    cdef Py_ssize_t publish(self, int channel, Py_ssize_t start, Py_ssize_t end) except -1:
        cdef:
            const uint8_t *base = self.base
            Py_ssize_t size = end - start, exchange_len, key_at, key_len, position
            PublishRow row
            PublishRow *added
            uint8_t bits
        # class 2, method 2, reserved 2, exchange 1 + n, key 1 + n, bits 1
        if size < 9:
            return self.malformed(start, end)
        exchange_len = base[start + 6]
        if size < 9 + exchange_len:
            return self.malformed(start, end)
        key_at = start + 7 + exchange_len
        key_len = base[key_at]
        if size != 9 + exchange_len + key_len:
            return self.malformed(start, end)
        if channel == 0:
            raise checks.publish_on_channel_0()
        row.exchange, row.exchange_len = start + 7, exchange_len
        row.key, row.key_len = key_at + 1, key_len
        row.flags = base[end - 1] & 3
        position = self.in_place(channel, end + 1, &row)
        if position:
            if self.at_hand != channel or self.run is None:
                self.take_run(channel)
            added = self.run.next_row()
            added[0] = row
            return position
        self.gather(channel, &row)
        return end + 1

    cdef Py_ssize_t malformed(self, Py_ssize_t start, Py_ssize_t end) except -1:
        """Raise what the reference says about a malformed publish."""
        decode_method(self.view[start:end])
        raise AssertionError(f"method {bytes(self.view[start:end]).hex()} is malformed only here")

    # Content -----------------------------------------------------------------------------------

    cdef Py_ssize_t in_place(self, int channel, Py_ssize_t position, PublishRow *row) noexcept:
        """Complete `row` if its content is here and flawless: the position behind it, else 0."""
        cdef:
            const uint8_t *p
            Py_ssize_t start, end, size
            uint64_t announced
            Facts facts
        end = self.peek(position, HEADER, channel)
        start = position + FRAME_START
        if end == 0 or end - start < CONTENT_START:
            return 0
        p = self.base + start
        announced = load64(p + 4)
        if load32(p) != BASIC << 16 or announced > <uint64_t>self.body_max:
            return 0
        if not inspect(p + CONTENT_START, end - start - CONTENT_START, &facts):
            return 0
        row.properties, row.properties_len = start + CONTENT_START, end - start - CONTENT_START
        row.body, row.body_len = end, announced
        if announced:
            size = <Py_ssize_t>announced
            position = end + 1
            end = self.peek(position, BODY, channel)
            if end == 0 or end - position - FRAME_START != size:
                return 0
            row.body = position + FRAME_START
        row.flags |= facts.flags
        row.priority, row.ttl_ms, row.spare = facts.priority, facts.ttl_ms, 0
        return end + 1

    cdef inline Py_ssize_t peek(self, Py_ssize_t position, uint8_t kind, int channel) noexcept:
        """The end of the payload, if just this frame is whole at `position`; else 0."""
        cdef const uint8_t *p = self.base + position
        cdef Py_ssize_t end
        cdef uint32_t size
        if position + FRAME_START > self.available or p[0] != kind or load16(p + 1) != channel:
            return 0
        size = load32(p + 3)
        end = position + FRAME_START + size
        if end >= self.available or self.base[end] != FRAME_END:
            return 0
        return end if self.admits(kind, channel, size) else 0

    cdef int gather(self, int channel, PublishRow *row) except -1:
        """Start to gather the content of a publish that is not whole here."""
        cdef Content content = Content.__new__(Content)
        self.close(channel)
        content.exchange_bytes, content.key_bytes = row.exchange_len, row.key_len
        content.body_bytes = -1
        content.facts.flags = row.flags
        content.buffer = PyByteArray_FromStringAndSize(
            <const char *>self.base + row.exchange, row.exchange_len
        )
        content.append(self.base + row.key, row.key_len)
        self.held += PyByteArray_GET_SIZE(content.buffer)
        self.contents[channel] = content
        return 0

    cdef int content(self, uint8_t kind, int channel, Py_ssize_t start, Py_ssize_t end) except -1:
        cdef Content content = self.contents.get(channel)
        cdef Py_ssize_t size = end - start
        if content is None:
            raise checks.unexpected_content(kind, channel)
        if content.dropping:
            return 0
        if (kind == HEADER) != (content.body_bytes < 0):
            raise checks.unexpected_content(kind, channel)
        if kind == HEADER:
            if not self.header(content, channel, start, end):
                return 0
        elif size > content.missing:
            raise checks.too_much_body(channel, content.body_bytes)
        else:
            content.append(self.base + start, size)
            content.missing -= size
            self.held += size
        if content.missing == 0:
            del self.contents[channel]
            self.held -= PyByteArray_GET_SIZE(content.buffer)
            self.events.append(content.run(channel))
        return 0

    cdef bint header(
        self, Content content, int channel, Py_ssize_t start, Py_ssize_t end
    ) except -1:
        """Take a content header; False when it announces too much."""
        cdef Facts facts
        announced = checks.announced_size(self.view[start:end])
        if announced > self.body_max:
            self.drop(channel)
            self.events.append(Oversized(channel, announced))
            return False
        start += CONTENT_START
        if not inspect(self.base + start, end - start, &facts):
            explain_properties(self.view[start:end])
        facts.flags |= content.facts.flags
        content.facts = facts
        content.properties_bytes = end - start
        content.body_bytes = content.missing = announced
        content.append(self.base + start, end - start)
        self.held += end - start
        return True
