"""Cutting what a connection reads into pieces that can be passed on as they are: the reference.

A front stands between a client and brokers. It need not understand what it passes on; it must know where
frames end, whose they are, and which of them are its own business. `Cutter.feed` finds the whole frames at the
front of what was read and gives them as pieces, each a copy of their bytes:

    PASSED      frames of any channels but 0 in a row, where nobody looks closer (`whole` is False)
    HEARTBEAT   one
    a method    one method frame, by its code (class id and method id in one number); a method that carries
                content comes with all of it, however it was cut into reads

Deliveries that follow one another directly and go to the same consumer are one piece; `count` says how many.

Invariants: a byte is reported used exactly once. With `whole`, a piece holds messages from their first to their
last frame, so that the pieces of a channel may be mixed with those of another broker. After a fault nothing
comes any more.
"""

from __future__ import annotations

import struct

from tidemark.errors import RemoteProtocolError
from tidemark.wire.amqp091 import checks
from tidemark.wire.amqp091.frames import (
    BODY,
    ENVELOPE_BYTES,
    FRAME_END,
    FRAME_START,
    HEADER,
    METHOD,
)
from tidemark.wire.amqp091.frames import HEARTBEAT as HEARTBEAT_KIND

Piece = tuple[int, int, int, bytes]
"""Channel, code, count, frames."""

PASSED, HEARTBEAT = 1, 8
PUBLISH, RETURN, DELIVER, GET_OK = 60 << 16 | 40, 60 << 16 | 50, 60 << 16 | 60, 60 << 16 | 71
CHANNEL_MAX = 65535

_CARRIERS = (PUBLISH, RETURN, DELIVER, GET_OK)
_IDS = struct.Struct(">HH")
_TAG = struct.Struct(">Q")
_CONSUMER_AT = FRAME_START.size + _IDS.size
"""Where the consumer's tag stands in the frame of a delivery."""


class _Content:
    """A message whose frames do not all stand in one read, in a row."""

    __slots__ = ("announced", "buffer", "code", "missing")

    def __init__(self, code: int, start: bytes) -> None:
        self.code = code
        self.buffer = bytearray(start)
        self.announced = self.missing = -1
        """Bytes of the body that have not come; -1 before the header."""


class Cutter:
    """One per connection. The three limits may be changed at any time; `frame_max` 0 is no limit."""

    def __init__(self, frame_max: int, channel_max: int = CHANNEL_MAX, whole: bool = False) -> None:
        self.frame_max = frame_max
        self.channel_max = channel_max
        self.whole = whole
        self.fault: RemoteProtocolError | None = None
        """What was wrong with the bytes."""
        self._contents: dict[int, _Content] = {}

    @property
    def gathering_bytes(self) -> int:
        """Bytes held for messages that are not complete yet."""
        return sum(len(content.buffer) for content in self._contents.values())

    def feed(self, data: bytes | bytearray | memoryview) -> tuple[list[Piece], int]:
        """Find what is whole at the front of `data`.

        Returns:
            The pieces, and how many bytes they used. The rest is the start of a frame and must come again, with
            what follows it.
        """
        view = memoryview(data)
        pieces: list[Piece] = []
        if self.fault is not None:
            return pieces, len(view)
        position, passed = 0, -1
        try:
            while True:
                frame = self._frame(view, position)
                if frame is None:
                    break
                kind, channel, start, end = frame
                if channel and not self.whole:
                    if passed < 0:
                        passed = position
                    position = end + 1
                    continue
                if passed >= 0:
                    pieces.append((-1, PASSED, 1, bytes(view[passed:position])))
                    passed = -1
                position = self._take(view, pieces, position, kind, channel, start, end)
        except RemoteProtocolError as error:
            self.fault = error.with_traceback(None)
            self._contents.clear()
        if passed >= 0:
            pieces.append((-1, PASSED, 1, bytes(view[passed:position])))
        return pieces, len(view) if self.fault is not None else position

    def _frame(self, view: memoryview, position: int) -> tuple[int, int, int, int] | None:
        """Kind, channel, start and end of the payload, if a frame is whole at `position`."""
        start = position + FRAME_START.size
        if start > len(view):
            return None
        kind, channel, size = FRAME_START.unpack_from(view, position)
        if (
            kind not in (METHOD, HEADER, BODY, HEARTBEAT_KIND)
            or (self.frame_max and size + ENVELOPE_BYTES > self.frame_max)
            or channel > self.channel_max
        ):
            raise checks.refused_frame(kind, channel, size, self.frame_max, self.channel_max)
        end = start + size
        if end >= len(view):
            return None
        if view[end] != FRAME_END:
            raise checks.no_end_mark(channel, view[end])
        return kind, channel, start, end

    def _take(
        self,
        view: memoryview,
        pieces: list[Piece],
        position: int,
        kind: int,
        channel: int,
        start: int,
        end: int,
    ) -> int:
        """Take the frame at `position`, or the messages that begin there; return where to go on."""
        if kind == HEARTBEAT_KIND:
            if channel or start != end:
                raise checks.bad_heartbeat(channel, end - start)
            pieces.append((0, HEARTBEAT, 1, bytes(view[position : end + 1])))
        elif kind != METHOD:
            self._content(view, pieces, position, kind, channel, start, end)
        elif channel in self._contents:
            raise checks.method_in_content(channel)
        else:
            code = 0
            if end - start >= _IDS.size:
                class_id, method_id = _IDS.unpack_from(view, start)
                code = class_id << 16 | method_id
            if code in _CARRIERS and channel:
                if code == DELIVER and _is_short(view, start, end):
                    raise checks.short_delivery(channel)
                return self._messages(view, pieces, position, channel, code, end)
            pieces.append((channel, code, 1, bytes(view[position : end + 1])))
        return end + 1

    def _messages(
        self, view: memoryview, pieces: list[Piece], first: int, channel: int, code: int, end: int
    ) -> int:
        """One message, or as many deliveries as go to the same consumer, if they are here as a whole."""
        behind = self._behind(view, channel, end + 1)
        if behind is None:
            self._contents[channel] = _Content(code, bytes(view[first : end + 1]))
            return end + 1
        count, at = 1, first + _CONSUMER_AT
        consumer = view[at : at + 1 + view[at]]
        while code == DELIVER:
            frame = self._peek(view, behind)
            if frame is None or frame[:2] != (METHOD, channel):
                break
            _, _, start, end = frame
            at = start + _IDS.size
            if (
                end - start < _IDS.size
                or _IDS.unpack_from(view, start) != (60, 60)
                or _is_short(view, start, end)
                or view[at : at + len(consumer)] != consumer
            ):
                break
            further = self._behind(view, channel, end + 1)
            if further is None:
                break
            behind = further
            count += 1
        pieces.append((channel, code, count, bytes(view[first:behind])))
        return behind

    def _behind(self, view: memoryview, channel: int, position: int) -> int | None:
        """Where the content ends that begins at `position`, if it is all here; a fault in it is found later."""
        frame = self._peek(view, position)
        if frame is None or frame[:2] != (HEADER, channel):
            return None
        try:
            missing = checks.announced_size(view[frame[2] : frame[3]])
        except RemoteProtocolError:
            return None
        position = frame[3] + 1
        while missing:
            frame = self._peek(view, position)
            if frame is None or frame[:2] != (BODY, channel) or frame[3] - frame[2] > missing:
                return None
            missing -= frame[3] - frame[2]
            position = frame[3] + 1
        return position

    def _peek(self, view: memoryview, position: int) -> tuple[int, int, int, int] | None:
        """As `_frame`; None for a frame that is broken, too."""
        try:
            return self._frame(view, position)
        except RemoteProtocolError:
            return None

    def _content(
        self,
        view: memoryview,
        pieces: list[Piece],
        position: int,
        kind: int,
        channel: int,
        start: int,
        end: int,
    ) -> None:
        content = self._contents.get(channel)
        if content is None or (kind == HEADER) != (content.missing < 0):
            raise checks.unexpected_content(kind, channel)
        if kind == HEADER:
            content.missing = content.announced = checks.announced_size(view[start:end])
        elif end - start > content.missing:
            raise checks.too_much_body(channel, content.announced)
        else:
            content.missing -= end - start
        content.buffer += view[position : end + 1]
        if not content.missing:
            del self._contents[channel]
            pieces.append((channel, content.code, 1, bytes(content.buffer)))


def _is_short(view: memoryview, start: int, end: int) -> bool:
    """Whether the payload of a delivery ends before the two names that follow its tag and its flag."""
    size = end - start
    return size < 5 or size < 16 + view[start + 4]


def retag(deliveries: bytes, first: int) -> bytes:
    """The same deliveries with the tags `first`, `first` + 1, …"""
    changed = bytearray(deliveries)
    position = 0
    while position < len(changed):
        kind, _, size = FRAME_START.unpack_from(changed, position)
        if kind == METHOD:
            at = position + _CONSUMER_AT
            _TAG.pack_into(changed, at + 1 + changed[at], first)
            first += 1
        position += size + ENVELOPE_BYTES
    return bytes(changed)
