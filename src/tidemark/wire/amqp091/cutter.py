"""Cutting what a connection reads into pieces to pass on. This module only picks the implementation."""

from tidemark.speed import PURE
from tidemark.wire.amqp091._cutter_py import DELIVER, GET_OK, HEARTBEAT, PASSED, PUBLISH, RETURN, Piece

if PURE:
    from tidemark.wire.amqp091._cutter_py import Cutter, retag
else:
    from tidemark.wire.amqp091._cutter_c import Cutter, retag

__all__ = ["DELIVER", "GET_OK", "HEARTBEAT", "PASSED", "PUBLISH", "RETURN", "Cutter", "Piece", "retag"]
