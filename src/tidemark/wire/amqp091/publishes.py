"""Publishes on their way to a broker. This module only picks the implementation."""

from tidemark.speed import PURE
from tidemark.wire.amqp091._publishes_py import publish_frame, with_entries

if PURE:
    from tidemark.wire.amqp091._publishes_py import encode_publishes, stretch
else:
    from tidemark.wire.amqp091._publishes_c import encode_publishes, stretch

__all__ = ["encode_publishes", "publish_frame", "stretch", "with_entries"]
