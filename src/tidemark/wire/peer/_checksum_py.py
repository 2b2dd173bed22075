"""The checksum of a unit."""

from __future__ import annotations

import zlib


def checksum(data: bytes | bytearray | memoryview) -> int:
    """CRC-32 as zlib, Ethernet and PNG have it."""
    return zlib.crc32(data)
