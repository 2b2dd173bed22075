"""Which partition of a partitioned stream a key belongs to. Broker, fronts and clients all ask here."""

from __future__ import annotations

import zlib


def partition_of(key: bytes, count: int) -> int:
    """CRC-32 (that of zip and gzip, which every language and SQL has), modulo the number of partitions."""
    return zlib.crc32(key) % count
