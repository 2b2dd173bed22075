"""Messages on their way out: one buffer for a whole batch of deliveries.

Each message is a method frame, a content header frame, and its body in frames no larger than the
client allows. Properties and body are the bytes that came in. The record in the arena is drawn in
`model/records.py`, the frame in `frames.py`.

A queue with a delivery limit tells its consumers how often a message was given back: the header
`x-delivery-count` is written into the properties of those messages, which are otherwise untouched.
"""

from __future__ import annotations

import struct

from tidemark.model._arena_py import Arena
from tidemark.model._runs_py import REDELIVERED, Taken

BASIC = 60
DELIVER = 60
GET_OK = 71
RETURN = 50

METHOD_FRAME = 1
HEADER_FRAME = 2
BODY_FRAME = 3
FRAME_END = b"\xce"
FRAME_OVERHEAD = 8

HAS_HEADERS = 1 << 13
HAS_CONTENT_TYPE = 1 << 15
HAS_CONTENT_ENCODING = 1 << 14


def encode_deliveries(
    arena: Arena,
    taken: Taken,
    channel: int,
    consumer_tag: bytes,
    first_tag: int,
    frame_max: int,
    count_header: bool,
) -> bytes:
    """Basic.Deliver for each message in `taken`, tagged from `first_tag` on."""
    out: list[bytes] = []
    for tag, (_, _, loc, _, flags, deliveries) in enumerate(taken, first_tag):
        message = arena.message(loc)
        properties = message.properties
        if count_header and deliveries:
            properties = with_delivery_count(properties, deliveries)
        method = struct.pack(">HH", BASIC, DELIVER) + _short(consumer_tag)
        method += struct.pack(">QB", tag, flags & REDELIVERED)
        method += _short(_raw(message.exchange)) + _short(_raw(message.key))
        out += _content(channel, method, properties, message.body, frame_max)
    return b"".join(out)


def encode_get_ok(
    arena: Arena,
    taken: Taken,
    channel: int,
    tag: int,
    remaining: int,
    frame_max: int,
    count_header: bool,
) -> bytes:
    """Basic.Get-Ok for the one message in `taken`."""
    _, _, loc, _, flags, deliveries = taken.entry(0)
    message = arena.message(loc)
    properties = message.properties
    if count_header and deliveries:
        properties = with_delivery_count(properties, deliveries)
    method = struct.pack(">HHQB", BASIC, GET_OK, tag, flags & REDELIVERED)
    method += _short(_raw(message.exchange)) + _short(_raw(message.key)) + struct.pack(">I", remaining)
    return b"".join(_content(channel, method, properties, message.body, frame_max))


def encode_return(
    channel: int,
    code: int,
    text: str,
    exchange: bytes,
    key: bytes,
    properties: bytes,
    body: bytes,
    frame_max: int,
) -> bytes:
    """Basic.Return for a message that could not be routed."""
    method = struct.pack(">HHH", BASIC, RETURN, code) + _short(text.encode())
    method += _short(exchange) + _short(key)
    return b"".join(_content(channel, method, properties, body, frame_max))


def with_delivery_count(properties: bytes, deliveries: int) -> bytes:
    """The same properties with the header `x-delivery-count`."""
    field = _short(b"x-delivery-count") + b"l" + struct.pack(">q", deliveries)
    (flags,) = struct.unpack_from(">H", properties)
    at = 2
    for flag in (HAS_CONTENT_TYPE, HAS_CONTENT_ENCODING):
        if flags & flag:
            at += 1 + properties[at]
    before, after = properties[2:at], properties[at:]
    if flags & HAS_HEADERS:
        (size,) = struct.unpack_from(">I", after)
        table = struct.pack(">I", size + len(field)) + field + after[4:]
    else:
        table = struct.pack(">I", len(field)) + field + after
    return struct.pack(">H", flags | HAS_HEADERS) + before + table


def _content(channel: int, method: bytes, properties: bytes, body: bytes, frame_max: int) -> list[bytes]:
    piece = frame_max - FRAME_OVERHEAD if frame_max else len(body) or 1
    header = struct.pack(">HHQ", BASIC, 0, len(body)) + properties
    frames = [_frame(METHOD_FRAME, channel, method), _frame(HEADER_FRAME, channel, header)]
    frames += [_frame(BODY_FRAME, channel, body[at : at + piece]) for at in range(0, len(body), piece)]
    return frames


def _frame(kind: int, channel: int, payload: bytes) -> bytes:
    return struct.pack(">BHI", kind, channel, len(payload)) + payload + FRAME_END


def _short(value: bytes) -> bytes:
    return bytes((len(value),)) + value


def _raw(name: str) -> bytes:
    return name.encode("utf-8", "surrogateescape")
