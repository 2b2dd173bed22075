"""Sealing, reading and checking frames. This module only picks the implementation."""

from tidemark.speed import PURE
from tidemark.store._frames_py import (
    BAD_CHAIN,
    BAD_CRC,
    END,
    ENDED,
    FRAME,
    FRAME_BYTES,
    MORE,
    NO_SEQ,
    OFFSET_BITS,
    PROBLEMS,
    Scan,
    Survey,
    merge,
)

if PURE:
    from tidemark.store._frames_py import crc32c, find, scan, seal, sift, survey, walk
else:
    from tidemark.store._frames_c import crc32c, find, scan, seal, sift, survey, walk

__all__ = [
    "BAD_CHAIN",
    "BAD_CRC",
    "END",
    "ENDED",
    "FRAME",
    "FRAME_BYTES",
    "MORE",
    "NO_SEQ",
    "OFFSET_BITS",
    "PROBLEMS",
    "Scan",
    "Survey",
    "crc32c",
    "find",
    "merge",
    "scan",
    "seal",
    "sift",
    "survey",
    "walk",
]
