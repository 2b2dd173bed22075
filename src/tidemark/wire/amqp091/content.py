"""Looking into the properties of a message for the broker: `ports.Content` over AMQP 0-9-1.

The broker keeps properties as the bytes that came in. Where a feature must know or change one (a
headers exchange, dead lettering, direct reply-to), it asks here. What a change does not name stays
as it was, with its type.

Invariant: what the scanner let through is read here without error.
"""

from __future__ import annotations

import struct

from tidemark.wire.amqp091._scanner_py import inspect_properties
from tidemark.wire.amqp091.properties import (
    Properties,
    decode_properties,
    encode_properties,
    read_flags,
)
from tidemark.wire.amqp091.tables import Table, decode_table

CONTENT_TYPE = 1 << 15
CONTENT_ENCODING = 1 << 14
HEADERS = 1 << 13


_FLAGS = struct.Struct(">H")
_LENGTH = struct.Struct(">I")


def _headers_at(properties: bytes) -> int:
    """Where the table of headers begins, with its length; -1 if there is none."""
    flags, position = read_flags(properties)
    if not flags & HEADERS:
        return -1
    if flags & CONTENT_TYPE:
        position += 1 + properties[position]
    if flags & CONTENT_ENCODING:
        position += 1 + properties[position]
    return position


def _end(properties: bytes, position: int) -> int:
    (length,) = _LENGTH.unpack_from(properties, position)
    return position + 4 + int(length)


class Amqp091Content:
    """Fits `ports.Content`. It has no state: one serves all."""

    def headers(self, properties: bytes) -> Table:
        # A headers exchange asks this of every message: read no further than the table.
        position = _headers_at(properties)
        return {} if position < 0 else decode_table(properties, position)[0]

    def with_headers(self, properties: bytes, headers: Table, *, keep_expiration: bool = True) -> bytes:
        changed: Properties = decode_properties(properties)
        changed.headers = headers or None
        if not keep_expiration:
            changed.expiration = None
        return encode_properties(changed)

    def headers_table(self, properties: bytes) -> bytes:
        position = _headers_at(properties)
        return b"" if position < 0 else properties[position : _end(properties, position)]

    def with_headers_table(self, properties: bytes, table: bytes) -> bytes:
        position = _headers_at(properties)
        if position < 0:
            assert not table
            return properties
        before, after = properties[:position], properties[_end(properties, position) :]
        if not table:
            (flags,) = _FLAGS.unpack_from(before)
            before = _FLAGS.pack(flags & ~HEADERS) + before[2:]
        return before + table + after

    def describe(self, properties: bytes) -> tuple[int, int, int]:
        """Flags, priority and ttl in ms, as the scanner writes them into the row of a `PublishRun`."""
        return inspect_properties(properties)

    def user_id(self, properties: bytes) -> str | None:
        return decode_properties(properties).user_id

    def expiration(self, properties: bytes) -> str | None:
        return decode_properties(properties).expiration

    def reply_to(self, properties: bytes) -> str | None:
        return decode_properties(properties).reply_to

    def with_reply_to(self, properties: bytes, reply_to: str) -> bytes:
        changed = decode_properties(properties)
        changed.reply_to = reply_to
        return encode_properties(changed)
