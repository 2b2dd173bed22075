"""Publishes on their way to a broker: what a front has read of a client, written for the broker that it is for.

`stretch` finds publishes in a row that go the same way, `encode_publishes` writes them in one buffer: each a method
frame, a content header frame, and its body in frames no larger than the broker takes.
"""

from __future__ import annotations

import struct

from tidemark.model._runs_py import BODY, EXCHANGE, FLAGS, IMMEDIATE, KEY, MANDATORY, PROPERTIES, PublishRun
from tidemark.wire.amqp091.frames import METHOD, encode_content, encode_frame
from tidemark.wire.amqp091.properties import CONTINUED

HAS_CONTENT_TYPE, HAS_CONTENT_ENCODING, HAS_HEADERS = 1 << 15, 1 << 14, 1 << 13

_START = struct.Struct(">HHH")
_SIZE = struct.Struct(">I")
_FLAGS = struct.Struct(">H")


def stretch(run: PublishRun, first: int, mask: int) -> int:
    """Behind the last row, from `first` on, that has the exchange and the key of `first` and none of these flags."""
    exchange, key = run.part(first, EXCHANGE), run.part(first, KEY)
    row = first + 1
    if run.number(first, FLAGS) & mask:
        return row
    while (
        row < len(run)
        and not run.number(row, FLAGS) & mask
        and (run.part(row, EXCHANGE), run.part(row, KEY)) == (exchange, key)
    ):
        row += 1
    return row


def encode_publishes(
    run: PublishRun, first: int, last: int, head: bytes, entries: bytes, frame_max: int
) -> bytes:
    """Basic.Publish for the rows from `first` to before `last`, on the channel of the run.

    `head` is the method frame of each; empty: as the row says. `entries` are encoded entries of a table, put behind
    the headers that a message has. `frame_max` 0 is no limit.
    """
    out = []
    for row in range(first, last):
        exchange, key = run.part(row, EXCHANGE), run.part(row, KEY)
        properties = run.part(row, PROPERTIES)
        out.append(head or publish_frame(run.channel, exchange, key, run.number(row, FLAGS)))
        if entries:
            properties = with_entries(properties, entries)
        out.append(encode_content(run.channel, properties, run.part(row, BODY), frame_max))
    return b"".join(out)


def publish_frame(channel: int, exchange: bytes, key: bytes, flags: int) -> bytes:
    """The method frame of a publish; `flags` are those of a row."""
    bits = flags & (MANDATORY | IMMEDIATE)
    payload = b"%b%c%b%c%b%c" % (_START.pack(60, 40, 0), len(exchange), exchange, len(key), key, bits)
    return encode_frame(METHOD, channel, payload)


def with_entries(properties: bytes, entries: bytes) -> bytes:
    """The same properties with these encoded entries behind their headers."""
    (flags,) = _FLAGS.unpack_from(properties)
    at, word = 2, flags
    while word & CONTINUED:
        (word,) = _FLAGS.unpack_from(properties, at)
        at += 2
    for flag in (HAS_CONTENT_TYPE, HAS_CONTENT_ENCODING):
        if flags & flag:
            at += 1 + properties[at]
    size, end = 0, at
    if flags & HAS_HEADERS:
        (size,) = _SIZE.unpack_from(properties, at)
        end = at + 4 + size
    return b"".join(
        (
            _FLAGS.pack(flags | HAS_HEADERS),
            properties[2:at],
            _SIZE.pack(size + len(entries)),
            properties[end - size : end],
            entries,
            properties[end:],
        )
    )
