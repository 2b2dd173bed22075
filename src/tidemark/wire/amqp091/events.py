"""What the scanner finds in the bytes of a connection, besides runs of publishes.

The events of one feed keep the order of each channel. Those of different channels may overtake
one another: channels are independent.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TypeAlias

from tidemark.errors import RemoteProtocolError
from tidemark.model.runs import PublishRun
from tidemark.wire.amqp091.methods import Method


@dataclass(slots=True)
class AckRun:
    """Consecutive Basic.Ack of one channel.

    A range (first, last) with first >= 1 is the tags from first to last, each acknowledged by
    itself; (0, last) is all that is outstanding up to last; (0, 0) is all that is outstanding.
    """

    channel: int
    ranges: list[tuple[int, int]]


@dataclass(slots=True)
class MethodFrame:
    """Any method but a publish with its content, or an ack that is part of an `AckRun`."""

    channel: int
    method: Method


@dataclass(slots=True)
class Heartbeat:
    """The peer is alive."""


@dataclass(slots=True)
class Oversized:
    """A publish announced more than `body_max`; its content is dropped as it comes."""

    channel: int
    size: int


@dataclass(slots=True)
class Fault:
    """The peer broke the protocol: the last event of its connection.

    `class_id` and `method_id` are those of the method at fault, 0 when it was none.
    """

    error: RemoteProtocolError
    channel: int
    class_id: int
    method_id: int


Event: TypeAlias = PublishRun | AckRun | MethodFrame | Heartbeat | Oversized | Fault
