"""Compiled twin of `_cutter_py`: same names, same answers, same errors."""

from cpython.buffer cimport PyBUF_SIMPLE, PyBuffer_Release, PyObject_GetBuffer
from cpython.bytes cimport PyBytes_AS_STRING, PyBytes_FromStringAndSize
from libc.stdint cimport uint8_t, uint32_t, uint64_t
from libc.string cimport memcmp

from tidemark.errors import RemoteProtocolError
from tidemark.wire.amqp091 import checks

cdef enum:
    METHOD = 1
    HEADER = 2
    BODY = 3
    HEARTBEAT = 8
    PASSED = 1
    FRAME_END = 0xCE
    FRAME_START = 7
    ENVELOPE = 8
    CONTENT_START = 12
    IDS = 4
    PUBLISH = 60 << 16 | 40
    RETURN = 60 << 16 | 50
    DELIVER = 60 << 16 | 60
    GET_OK = 60 << 16 | 71

# What looking for a frame gives.
cdef enum:
    WHOLE = 0
    UNFINISHED = 1
    REFUSED = 2
    NO_END = 3


cdef struct Frame:
    uint8_t kind
    int channel
    Py_ssize_t start
    Py_ssize_t end
    uint32_t size


cdef inline uint32_t long_at(const uint8_t* data) noexcept:
    return <uint32_t>data[0] << 24 | <uint32_t>data[1] << 16 | <uint32_t>data[2] << 8 | data[3]


cdef inline bint is_short(const uint8_t* data, Frame* frame) noexcept:
    cdef Py_ssize_t size = frame.end - frame.start
    return size < 5 or size < 16 + data[frame.start + 4]


cdef inline bytes piece_of(const uint8_t* data, Py_ssize_t start, Py_ssize_t end):
    return PyBytes_FromStringAndSize(<const char*>data + start, end - start)


cdef class _Content:
    cdef:
        uint32_t code
        bytearray buffer
        object announced
        object missing

    def __cinit__(self, uint32_t code, bytes start):
        self.code = code
        self.buffer = bytearray(start)
        self.announced = self.missing = -1


cdef class Cutter:
    cdef:
        public Py_ssize_t frame_max
        public int channel_max
        public bint whole
        readonly object fault
        dict _contents

    def __init__(self, Py_ssize_t frame_max, int channel_max=65535, bint whole=False):
        self.frame_max = frame_max
        self.channel_max = channel_max
        self.whole = whole
        self.fault = None
        self._contents = {}

    @property
    def gathering_bytes(self):
        cdef _Content content
        cdef Py_ssize_t total = 0
        for content in self._contents.values():
            total += len(content.buffer)
        return total

    def feed(self, data):
        cdef Py_buffer view
        PyObject_GetBuffer(data, &view, PyBUF_SIMPLE)
        try:
            return self.cut(<const uint8_t*>view.buf, view.len)
        finally:
            PyBuffer_Release(&view)

    cdef tuple cut(self, const uint8_t* data, Py_ssize_t size):
        cdef:
            list pieces = []
            Py_ssize_t position = 0, passed = -1
            Frame frame
            int found
        if self.fault is not None:
            return pieces, size
        try:
            while True:
                found = self.look(data, size, position, &frame)
                if found == UNFINISHED:
                    break
                if found == REFUSED:
                    raise checks.refused_frame(
                        frame.kind, frame.channel, frame.size, self.frame_max, self.channel_max
                    )
                if found == NO_END:
                    raise checks.no_end_mark(frame.channel, data[frame.end])
                if frame.channel and not self.whole:
                    if passed < 0:
                        passed = position
                    position = frame.end + 1
                    continue
                if passed >= 0:
                    pieces.append((-1, PASSED, 1, piece_of(data, passed, position)))
                    passed = -1
                position = self.take(data, size, pieces, position, &frame)
        except RemoteProtocolError as error:
            self.fault = error.with_traceback(None)
            self._contents.clear()
        if passed >= 0:
            pieces.append((-1, PASSED, 1, piece_of(data, passed, position)))
        return pieces, position if self.fault is None else size

    cdef int look(self, const uint8_t* data, Py_ssize_t size, Py_ssize_t position, Frame* frame) noexcept:
        cdef Py_ssize_t start = position + FRAME_START
        if start > size:
            return UNFINISHED
        frame.kind = data[position]
        frame.channel = <int>data[position + 1] << 8 | data[position + 2]
        frame.size = long_at(data + position + 3)
        frame.start = start
        frame.end = start + <Py_ssize_t>frame.size
        if (
            (frame.kind != METHOD and frame.kind != HEADER and frame.kind != BODY and frame.kind != HEARTBEAT)
            or (self.frame_max and <Py_ssize_t>frame.size + ENVELOPE > self.frame_max)
            or frame.channel > self.channel_max
        ):
            return REFUSED
        if frame.end >= size:
            return UNFINISHED
        return WHOLE if data[frame.end] == FRAME_END else NO_END

    cdef Py_ssize_t take(
        self, const uint8_t* data, Py_ssize_t size, list pieces, Py_ssize_t position, Frame* frame
    ) except -1:
        cdef uint32_t code = 0
        if frame.kind == HEARTBEAT:
            if frame.channel or frame.start != frame.end:
                raise checks.bad_heartbeat(frame.channel, frame.end - frame.start)
            pieces.append((0, HEARTBEAT, 1, piece_of(data, position, frame.end + 1)))
        elif frame.kind != METHOD:
            self.content(data, pieces, position, frame)
        elif self._contents and frame.channel in self._contents:
            raise checks.method_in_content(frame.channel)
        else:
            if frame.end - frame.start >= IDS:
                code = long_at(data + frame.start)
            if frame.channel and (code == DELIVER or code == PUBLISH or code == RETURN or code == GET_OK):
                if code == DELIVER and is_short(data, frame):
                    raise checks.short_delivery(frame.channel)
                return self.messages(data, size, pieces, position, frame.channel, code, frame.end)
            pieces.append((frame.channel, code, 1, piece_of(data, position, frame.end + 1)))
        return frame.end + 1

    cdef Py_ssize_t messages(
        self,
        const uint8_t* data,
        Py_ssize_t size,
        list pieces,
        Py_ssize_t first,
        int channel,
        uint32_t code,
        Py_ssize_t end,
    ) except -1:
        cdef:
            Frame frame
            Py_ssize_t behind = self.behind(data, size, channel, end + 1)
            Py_ssize_t further, count = 1
            const uint8_t* consumer = data + first + FRAME_START + IDS
        if behind < 0:
            self._contents[channel] = _Content(code, piece_of(data, first, end + 1))
            return end + 1
        while code == DELIVER:
            if self.look(data, size, behind, &frame) != WHOLE or frame.kind != METHOD or frame.channel != channel:
                break
            if (
                frame.end - frame.start < IDS
                or long_at(data + frame.start) != DELIVER
                or is_short(data, &frame)
                # A delivery that is not short has as much as its own length says, and no more is known to be there.
                or data[frame.start + IDS] != consumer[0]
                or memcmp(consumer + 1, data + frame.start + IDS + 1, consumer[0])
            ):
                break
            further = self.behind(data, size, channel, frame.end + 1)
            if further < 0:
                break
            behind = further
            count += 1
        pieces.append((channel, code, count, piece_of(data, first, behind)))
        return behind

    cdef Py_ssize_t behind(
        self, const uint8_t* data, Py_ssize_t size, int channel, Py_ssize_t position
    ) noexcept:
        """Where the content ends that begins at `position`, if it is all here, else -1."""
        cdef:
            Frame frame
            uint64_t missing
        if self.look(data, size, position, &frame) != WHOLE or frame.kind != HEADER or frame.channel != channel:
            return -1
        if frame.end - frame.start < CONTENT_START or long_at(data + frame.start) != 60 << 16:
            return -1
        missing = <uint64_t>long_at(data + frame.start + 4) << 32 | long_at(data + frame.start + 8)
        position = frame.end + 1
        while missing:
            if self.look(data, size, position, &frame) != WHOLE or frame.kind != BODY or frame.channel != channel:
                return -1
            if <uint64_t>(frame.end - frame.start) > missing:
                return -1
            missing -= <uint64_t>(frame.end - frame.start)
            position = frame.end + 1
        return position

    cdef int content(self, const uint8_t* data, list pieces, Py_ssize_t position, Frame* frame) except -1:
        cdef:
            _Content content = self._contents.get(frame.channel)
            Py_ssize_t size = frame.end - frame.start
        if content is None or (frame.kind == HEADER) != (content.missing < 0):
            raise checks.unexpected_content(frame.kind, frame.channel)
        if frame.kind == HEADER:
            content.missing = content.announced = checks.announced_size(piece_of(data, frame.start, frame.end))
        elif size > content.missing:
            raise checks.too_much_body(frame.channel, content.announced)
        else:
            content.missing -= size
        content.buffer += piece_of(data, position, frame.end + 1)
        if not content.missing:
            del self._contents[frame.channel]
            pieces.append((frame.channel, content.code, 1, bytes(content.buffer)))
        return 0


def retag(bytes deliveries not None, uint64_t first):
    cdef:
        Py_ssize_t position = 0, size = len(deliveries), at
        bytes changed = PyBytes_FromStringAndSize(PyBytes_AS_STRING(deliveries), size)
        uint8_t* data = <uint8_t*>PyBytes_AS_STRING(changed)
        int i
    while position < size:
        if data[position] == METHOD:
            at = position + FRAME_START + IDS
            at += 1 + data[at]
            for i in range(8):
                data[at + i] = <uint8_t>(first >> (56 - 8 * i))
            first += 1
        position += <Py_ssize_t>long_at(data + position + 3) + ENVELOPE
    return changed
