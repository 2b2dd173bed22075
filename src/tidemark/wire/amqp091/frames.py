"""The frame: the one envelope of AMQP 0-9-1, and what is fixed about it.

    0      1         3        7                 7+size
    +------+---------+--------+-----------------+------+
    | type | channel |  size  |     payload     | 0xCE |
    +------+---------+--------+-----------------+------+

A content header's payload, which follows a publish, a delivery or a return:

    0       2        4           12
    +-------+--------+-----------+--------------------------------+
    | class | weight | body size | property flags, property list  |
    +-------+--------+-----------+--------------------------------+

Finding frames in a byte stream is `scanner.py`; this module writes them.
"""

from __future__ import annotations

import struct

METHOD, HEADER, BODY, HEARTBEAT = 1, 2, 3, 8
FRAME_END = 0xCE
ENVELOPE_BYTES = 8
"""What a frame is longer than its payload."""
FRAME_MAX_FLOOR = 4096
"""No peer may ask for smaller frames than this."""
BASIC = 60
"""The class whose methods carry content."""

PROTOCOL_HEADER = b"AMQP\x00\x00\x09\x01"
HEARTBEAT_FRAME = b"\x08\x00\x00\x00\x00\x00\x00\xce"

FRAME_START = struct.Struct(">BHI")
CONTENT_START = struct.Struct(">HHQ")


def encode_frame(kind: int, channel: int, payload: bytes) -> bytes:
    """One frame around `payload`."""
    return b"%b%b\xce" % (FRAME_START.pack(kind, channel, len(payload)), payload)


def encode_content(channel: int, properties: bytes, body: bytes | memoryview, frame_max: int) -> bytes:
    """The header frame and the body frames that follow a method with content.

    `properties` are raw, from the property flags on. `frame_max` 0 means no limit.
    """
    start = CONTENT_START.pack(BASIC, 0, len(body))
    parts = [encode_frame(HEADER, channel, start + properties)]
    step = frame_max - ENVELOPE_BYTES if frame_max else max(1, len(body))
    for position in range(0, len(body), step):
        parts.append(encode_frame(BODY, channel, bytes(body[position : position + step])))
    return b"".join(parts)
