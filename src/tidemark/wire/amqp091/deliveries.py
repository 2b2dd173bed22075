"""Encoding deliveries. This module only picks the implementation."""

from tidemark.speed import PURE
from tidemark.wire.amqp091._deliveries_py import encode_get_ok, encode_marker, encode_return

if PURE:
    from tidemark.wire.amqp091._deliveries_py import encode_deliveries, encode_stream_deliveries
else:
    from tidemark.wire.amqp091._deliveries_c import encode_deliveries, encode_stream_deliveries

__all__ = ["encode_deliveries", "encode_get_ok", "encode_marker", "encode_return", "encode_stream_deliveries"]
