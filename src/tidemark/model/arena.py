"""Where records lie. This module only picks the implementation."""

from tidemark.model._arena_py import EVERYTHING, EXTENT_BYTES, JOURNAL, MEMORY, ExtentInfo
from tidemark.speed import PURE

if PURE:
    from tidemark.model._arena_py import Arena, Writer
else:
    from tidemark.model._arena_c import Arena, Writer

__all__ = ["EVERYTHING", "EXTENT_BYTES", "JOURNAL", "MEMORY", "Arena", "ExtentInfo", "Writer"]
