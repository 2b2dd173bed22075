"""The per-message loops of the broker. This module only picks the implementation."""

from tidemark.broker._core_py import FLAG_DURABLE, FLAG_REDELIVERED, NEVER, Entry, expiry_ms
from tidemark.speed import PURE

if PURE:
    from tidemark.broker._core_py import Holder, Publisher, QueueCore, Restorer, Route, Unacked
else:
    from tidemark.broker._core_c import Holder, Publisher, QueueCore, Restorer, Route, Unacked

__all__ = [
    "FLAG_DURABLE",
    "FLAG_REDELIVERED",
    "NEVER",
    "Entry",
    "Holder",
    "Publisher",
    "QueueCore",
    "Restorer",
    "Route",
    "Unacked",
    "expiry_ms",
]
