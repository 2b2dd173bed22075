"""Messages on their way out: one buffer for a whole batch of deliveries.

Each message is a method frame, a content header frame, and its body in frames no larger than the
client allows. Properties and body are the bytes that came in. The record in the arena is drawn in
`model/records.py`, the frame in `frames.py`.

A queue with a delivery limit tells its consumers how often a message was given back: the header
`x-delivery-count` is written into the properties of those messages, which are otherwise untouched.

What a stream gives carries where it stands there: the headers `x-stream-offset` (its sequence),
`x-stream-history`, and `x-stream-key` and `x-tombstone` where they apply. A message that was read from one
stream and published to another as it was has such headers already: these are taken out first. A content header
is one frame, always; a key that does not fit into it is left out.
"""

from __future__ import annotations

import struct
from typing import Any, Protocol

from tidemark.model._arena_py import Arena
from tidemark.model._runs_py import REDELIVERED, Taken
from tidemark.wire.amqp091.tables import encode_table

BASIC = 60
DELIVER = 60
GET_OK = 71
RETURN = 50

METHOD_FRAME = 1
HEADER_FRAME = 2
BODY_FRAME = 3
FRAME_END = b"\xce"
TOMBSTONE = 4
"""Flag of an entry that was taken from a stream."""
FRAME_OVERHEAD = 8
HEADER_FIXED = 12
"""Bytes of a content header in front of the properties."""

CONTINUED = 1
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


class Keyed(Protocol):
    """A stream, as far as its deliveries need it. The rule is for the compiled twin, which asks no `key_at`."""

    key_kind: int
    key_name: bytes

    def key_at(self, loc: int) -> bytes | None: ...


def encode_stream_deliveries(
    arena: Arena,
    stream: Keyed,
    taken: Taken,
    channel: int,
    consumer_tag: bytes,
    first_tag: int,
    frame_max: int,
    history: bytes,
) -> bytes:
    """Basic.Deliver for each message of a stream in `taken`, tagged from `first_tag` on.

    `history` is the 16 bytes that name the branch of history that the sequences are of.
    """
    out: list[bytes] = []
    branch = history.hex().encode()
    for tag, (_, seq, loc, _, flags, _) in enumerate(taken, first_tag):
        message = arena.message(loc)
        properties = stream_properties(
            message.properties, seq, branch, stream.key_at(loc), bool(flags & TOMBSTONE), frame_max
        )
        method = struct.pack(">HH", BASIC, DELIVER) + _short(consumer_tag) + struct.pack(">QB", tag, 0)
        method += _short(_raw(message.exchange)) + _short(_raw(message.key))
        out += _content(channel, method, properties, message.body, frame_max)
    return b"".join(out)


def encode_marker(
    channel: int, consumer_tag: bytes, tag: int, queue: bytes, headers: dict[str, Any], frame_max: int
) -> bytes:
    """Basic.Deliver of an empty message that only says something about the stream: a boundary, a reset."""
    method = struct.pack(">HH", BASIC, DELIVER) + _short(consumer_tag) + struct.pack(">QB", tag, 0)
    method += _short(b"") + _short(queue)
    properties = struct.pack(">H", HAS_HEADERS) + encode_table(headers)
    return b"".join(_content(channel, method, properties, b"", frame_max))


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
    method = struct.pack(">HHH", BASIC, RETURN, code) + _short(_raw(text))
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


def stream_properties(
    properties: bytes, seq: int, branch: bytes, key: bytes | None, tombstone: bool, frame_max: int
) -> bytes:
    """The properties of a message of a stream, without its key when that is too long for the frame."""
    made = with_stream_fields(properties, stream_fields(seq, branch, key, tombstone))
    if key is not None and frame_max and FRAME_OVERHEAD + HEADER_FIXED + len(made) > frame_max:
        return with_stream_fields(properties, stream_fields(seq, branch, None, tombstone))
    return made


def stream_fields(seq: int, branch: bytes, key: bytes | None, tombstone: bool) -> bytes:
    """What a stream says about a message, as entries of a table."""
    fields = _short(b"x-stream-offset") + b"l" + struct.pack(">q", seq)
    fields += _text_field(b"x-stream-history", branch)
    if key is not None:
        fields += _text_field(b"x-stream-key", key)
    if tombstone:
        fields += _short(b"x-tombstone") + b"t\1"
    return fields


def with_stream_fields(properties: bytes, fields: bytes) -> bytes:
    """The same properties with these encoded entries in front of the headers, and none that say such things."""
    if len(properties) < 2:
        properties = b"\0\0"
    (flags,) = struct.unpack_from(">H", properties)
    at, word = 2, flags
    while word & CONTINUED:
        (word,) = struct.unpack_from(">H", properties, at)
        at += 2
    for flag in (HAS_CONTENT_TYPE, HAS_CONTENT_ENCODING):
        if flags & flag:
            at += 1 + properties[at]
    before, after = properties[2:at], properties[at:]
    entries = b""
    if flags & HAS_HEADERS:
        (size,) = struct.unpack_from(">I", after)
        entries, after = _without_stream_fields(after[4 : 4 + size]), after[4 + size :]
    table = struct.pack(">I", len(fields) + len(entries)) + fields + entries
    return struct.pack(">H", flags | HAS_HEADERS) + before + table + after


_VALUE_BYTES = {
    letter: size for letters, size in ((b"tbB", 1), (b"sUu", 2), (b"Iif", 4), (b"D", 5), (b"lLdT", 8), (b"V", 0))
    for letter in letters
}  # fmt: skip


def _without_stream_fields(entries: bytes) -> bytes:
    kept, at = [], 0
    while at < len(entries):
        start, name_end = at, at + 1 + entries[at]
        name, letter = entries[at + 1 : name_end], entries[name_end]
        at = name_end + 1
        if letter in b"SxFA":
            at += 4 + int(struct.unpack_from(">I", entries, at)[0])
        else:
            at += _VALUE_BYTES[letter]
        if not name.startswith(b"x-stream-") and name != b"x-tombstone":
            kept.append(entries[start:at])
    return b"".join(kept)


def _text_field(name: bytes, value: bytes) -> bytes:
    """A string when it is one, else bytes."""
    try:
        value.decode()
        letter = b"S"
    except UnicodeDecodeError:
        letter = b"x"
    return _short(name) + letter + struct.pack(">I", len(value)) + value


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
