"""What the broker counts about clients: messages by protocol, and what was opened and closed.

Queues and exchanges count their own messages (`Queue`, `Meter`). Here is what belongs to neither. Everything is
added once a run, a batch or a connection, never once a message.

Invariant: a count never falls while the process lives; only `publishers` and `unconfirmed` are numbers of now.
"""

from __future__ import annotations

from dataclasses import dataclass, field


@dataclass(slots=True)
class ProtocolCounts:
    """The messages of the clients that speak one protocol."""

    received: int = 0
    received_confirm: int = 0
    """Of these, those on channels that want a confirm."""
    routed: int = 0
    """Places on queues and streams that they got: a message to two queues counts twice."""
    dropped: int = 0
    """No queue wanted them, and nobody wanted to know."""
    returned: int = 0
    """No queue wanted them, and they were sent back."""
    confirmed: int = 0
    unconfirmed: int = 0
    """Of those that want a confirm, how many wait for an answer on channels that are open, an ack or a nack."""
    delivered: int = 0
    """Stream protocol only: rows that were sent to readers. Queues count their own deliveries."""
    publishers: int = 0
    """Channels, or stream connections, that have published and are open."""


@dataclass(slots=True)
class Counts:
    amqp091: ProtocolCounts = field(default_factory=ProtocolCounts)
    stream: ProtocolCounts = field(default_factory=ProtocolCounts)
    connections_opened: int = 0
    connections_closed: int = 0
    channels_opened: int = 0
    channels_closed: int = 0
    queues_declared: int = 0
    """Declared, whether they were there or not."""
    queues_created: int = 0
    queues_deleted: int = 0

    def of(self, protocol: str) -> ProtocolCounts:
        """The counts of one protocol, "amqp091" or "stream"."""
        return self.stream if protocol == "stream" else self.amqp091
