"""The per-message loops of the broker. This module only picks the implementation."""

from tidemark.broker._queue_py import FLAG_DURABLE, FLAG_REDELIVERED, NEVER, Entry, expiry_ms
from tidemark.speed import PURE

if PURE:
    from tidemark.broker._publisher_py import Meter, Publisher, Route
    from tidemark.broker._queue_py import QueueCore
    from tidemark.broker._restorer_py import Restorer
    from tidemark.broker._target_py import Target
    from tidemark.broker._unacked_py import Holder, Unacked
else:
    from tidemark.broker._publisher_c import Meter, Publisher, Route
    from tidemark.broker._queue_c import QueueCore
    from tidemark.broker._restorer_c import Restorer
    from tidemark.broker._target_c import Target
    from tidemark.broker._unacked_c import Holder, Unacked

__all__ = [
    "FLAG_DURABLE",
    "FLAG_REDELIVERED",
    "NEVER",
    "Entry",
    "Holder",
    "Meter",
    "Publisher",
    "QueueCore",
    "Restorer",
    "Route",
    "Target",
    "Unacked",
    "expiry_ms",
]
