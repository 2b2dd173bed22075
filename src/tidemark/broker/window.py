"""The deliveries that a consumer of a stream has outstanding. This module only picks the implementation."""

from tidemark.speed import PURE

if PURE:
    from tidemark.broker._window_py import Window
else:
    from tidemark.broker._window_c import Window

__all__ = ["Window"]
