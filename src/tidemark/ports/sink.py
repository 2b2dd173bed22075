"""Where a consumer's deliveries go: a channel of a front end, seen from the broker."""

from __future__ import annotations

from typing import Any, Protocol

from tidemark.model.runs import Taken


class Sink(Protocol):
    def room(self) -> int:
        """How many more messages this channel may be given now: 0 while its connection's buffer is full or its
        channel-wide prefetch is used up or flow is off; a large number otherwise."""

    def deliver(self, consumer: Any, taken: Taken) -> bool:
        """Send these to the consumer. The bytes are read from the arena before this returns. For a consumer that
        does not ack, the broker settles them right after. False: they could not be read, nothing was sent."""

    def cancelled(self, consumer: Any) -> None:
        """The broker ended this consumer (its queue is gone)."""


class StreamSink(Sink, Protocol):
    """The same for who consumes from a stream: there is more to say than messages."""

    def deliver_marker(self, consumer: Any, marker: Any) -> None:
        """Tell the consumer that a snapshot ends here. It is outstanding like a message until it is acked."""

    def deliver_reset(self, consumer: Any, seq: int) -> None:
        """Tell the consumer that it could not go on from where it was and begins again behind `seq`."""
