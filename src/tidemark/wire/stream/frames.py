"""Frames of the stream protocol: a small JSON header, then bytes.

A connection starts with `PREAMBLE` or `READER_PREAMBLE`. Everything after it, both ways, is frames; little-endian:

    0        4      5       6      8         12              16               16 + h
    +--------+------+-------+------+---------+---------------+----------------+---------+
    | length | kind | flags | zero | request | header length | header, JSON   | payload |
    +--------+------+-------+------+---------+---------------+----------------+---------+

`length` counts what follows it. Flag 1 says that this is the last frame about its request. Writers pad the
header with spaces, so that the payload starts at a multiple of 8 from the frame's beginning.

`FrameReader` takes the bytes as they come. A frame that lies whole in one read is used where it lies; one that
does not is gathered in a buffer of its own, each byte copied once.

Invariant: what a reader holds is never more than one frame, and never more of it than has arrived.
"""

from __future__ import annotations

import json
import struct
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from enum import IntEnum
from typing import Any, Final, TypeAlias

from tidemark.errors import FrameError

PREAMBLE: Final = b"TIDE\x00\x00\x01\x00"
"""Protocol and version, 1.0."""
READER_PREAMBLE: Final = b"TIDE\x00\x01\x01\x00"
"""The same, from a client that only reads: any member of a cluster that is ready may serve it."""
MAGIC: Final = PREAMBLE[:4]

HEAD: Final = struct.Struct("<IBBHII")
HEAD_BYTES: Final = HEAD.size
REST_BYTES: Final = HEAD_BYTES - 4
"""What `length` counts besides header and payload."""
LAST: Final = 1
HEADER_BYTES_MAX: Final = 1 << 20

Buffer: TypeAlias = bytes | bytearray | memoryview


class Kind(IntEnum):
    REQUEST = 1
    ANSWER = 2
    ERROR = 3
    DATA = 4
    CREDIT = 5
    PING = 6
    PONG = 7
    GOODBYE = 8


KINDS: Final = frozenset(Kind)


@dataclass(slots=True)
class Frame:
    kind: Kind
    flags: int
    request: int
    header: dict[str, Any]
    payload: memoryview
    """Into the bytes given to `feed`, or a copy: who keeps it beyond the call keeps `bytes(payload)`."""
    text: memoryview
    """The header as it came, likewise."""

    @property
    def last(self) -> bool:
        return bool(self.flags & LAST)


def encode_frame(
    kind: Kind,
    request: int,
    header: Mapping[str, Any],
    payload: Sequence[Buffer] = (),
    last: bool = False,
) -> list[Buffer]:
    """A frame as the pieces to be written one behind the other; the parts of the payload are not copied."""
    text = _ENCODER.encode(header).encode()
    text += b" " * (-len(text) % 8)
    size = sum(len(part) for part in payload)
    head = HEAD.pack(REST_BYTES + len(text) + size, kind, LAST if last else 0, 0, request, len(text))
    return [head + text, *payload]


class FrameReader:
    """The reading side of one connection, from behind the preamble on."""

    __slots__ = ("_partial", "frame_bytes_max", "used")

    def __init__(self, frame_bytes_max: int) -> None:
        self.frame_bytes_max = frame_bytes_max
        """Counts the whole frame. It may be changed between two frames."""
        self._partial = bytearray()
        """The beginning of a frame whose end has not come yet."""
        self.used = 0
        """How much of the bytes given to `feed` the frames that were taken so far need."""

    @property
    def partial_bytes(self) -> int:
        return len(self._partial)

    def feed(self, data: Buffer) -> Iterator[Frame]:
        """The frames that are whole now. Who does not take them all gives what is behind `used` again, in front.

        Raises:
            FrameError: bytes that are no frame, or one that is too large. Nothing after it can be read.
        """
        view = memoryview(data)
        at = 0
        if self._partial:
            at = self._complete(view)
            if at < 0:
                return
            whole, self._partial, self.used = memoryview(self._partial), bytearray(), at
            yield self._frame(whole, 0, len(whole))
        end = len(view)
        while end - at >= HEAD_BYTES:
            size = self._size(view, at)
            if end - at < size:
                break
            self.used = at + size
            yield self._frame(view, at, at + size)
            at += size
        if at < end:
            self._partial += view[at:end]

    def _complete(self, view: memoryview) -> int:
        """Add to the unfinished frame. Returns how much of `view` that took, or -1: all, and more is missing."""
        partial, at = self._partial, 0
        if len(partial) < HEAD_BYTES:
            at = min(HEAD_BYTES - len(partial), len(view))
            partial += view[:at]
            if len(partial) < HEAD_BYTES:
                return -1
        missing = self._size(partial, 0) - len(partial)
        partial += view[at : at + missing]
        return at + missing if len(view) - at >= missing else -1

    def _size(self, data: Buffer, at: int) -> int:
        """The bytes of the frame that starts there, its length checked before any more of it is read."""
        length, kind, flags, zero, _, header = HEAD.unpack_from(data, at)
        if length + 4 > self.frame_bytes_max:
            raise FrameError(
                reason=f"a frame of {length + 4} bytes is over the {self.frame_bytes_max} allowed here"
            )
        if kind not in KINDS or flags & ~LAST or zero:
            raise FrameError(reason=f"kind {kind}, flags {flags}, {zero} are not the beginning of a frame")
        if header > HEADER_BYTES_MAX or length < REST_BYTES + header:
            raise FrameError(
                reason=f"a header of {header} bytes does not fit into a frame of {length + 4} bytes"
            )
        return length + 4  # type: ignore[no-any-return]

    def _frame(self, view: memoryview, start: int, end: int) -> Frame:
        _, kind, flags, _, request, length = HEAD.unpack_from(view, start)
        at = start + HEAD_BYTES
        text = view[at : at + length]
        return Frame(Kind(kind), flags, request, read_header(text), view[at + length : end], text)


def read_header(text: Buffer) -> dict[str, Any]:
    """The object that a header is.

    Raises:
        FrameError: it is not the JSON of one, or is nested too deeply.
    """
    if not len(text):
        return {}
    try:
        header = _DECODER.decode(str(text, "utf-8"))
    except (ValueError, RecursionError) as problem:
        raise FrameError(reason=f"a frame's header is not JSON: {problem!s:.100}") from None
    if not isinstance(header, dict):
        raise FrameError(reason=f"a frame's header must be a JSON object, not {type(header).__name__}")
    return header


def _no_constant(name: str) -> None:
    raise ValueError(f"{name} is not JSON")


_ENCODER: Final = json.JSONEncoder(separators=(",", ":"))
_DECODER: Final = json.JSONDecoder(parse_constant=_no_constant)
