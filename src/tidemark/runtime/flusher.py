"""The thread that writes and syncs. This module only picks the implementation."""

from tidemark.speed import PURE

if PURE:
    from tidemark.runtime._disk_py import Flusher
else:
    from tidemark.runtime._disk_c import Flusher

__all__ = ["Flusher"]
