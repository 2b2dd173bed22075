"""Finding frames and runs in what a connection reads. This module only picks the implementation."""

from tidemark.speed import PURE
from tidemark.wire.amqp091.events import (
    AckRun,
    Event,
    Fault,
    Heartbeat,
    MethodFrame,
    Oversized,
)

if PURE:
    from tidemark.wire.amqp091._scanner_py import Scanner
else:
    from tidemark.wire.amqp091._scanner_c import Scanner

__all__ = [
    "AckRun",
    "Event",
    "Fault",
    "Heartbeat",
    "MethodFrame",
    "Oversized",
    "Scanner",
]
