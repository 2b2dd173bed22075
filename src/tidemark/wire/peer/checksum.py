"""The checksum of a unit. This module only picks the implementation."""

from tidemark.speed import PURE

if PURE:
    from tidemark.wire.peer._checksum_py import checksum
else:
    from tidemark.wire.peer._checksum_c import checksum

__all__ = ["checksum"]
