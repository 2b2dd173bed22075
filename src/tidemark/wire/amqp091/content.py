"""Looking into the properties of a message for the broker: `ports.Content` over AMQP 0-9-1.

The broker keeps properties as the bytes that came in. Where a feature must know or change one (a
headers exchange, dead lettering, direct reply-to), it asks here. What a change does not name stays
as it was, with its type.

Invariant: what the scanner let through is read here without error.
"""

from __future__ import annotations

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


class Amqp091Content:
    """Fits `ports.Content`. It has no state: one serves all."""

    def headers(self, properties: bytes) -> Table:
        # A headers exchange asks this of every message: read no further than the table.
        flags, position = read_flags(properties)
        if not flags & HEADERS:
            return {}
        if flags & CONTENT_TYPE:
            position += 1 + properties[position]
        if flags & CONTENT_ENCODING:
            position += 1 + properties[position]
        return decode_table(properties, position)[0]

    def with_headers(self, properties: bytes, headers: Table, *, keep_expiration: bool = True) -> bytes:
        changed: Properties = decode_properties(properties)
        changed.headers = headers or None
        if not keep_expiration:
            changed.expiration = None
        return encode_properties(changed)

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
