"""Runs: what crosses a layer is a batch of messages, described by rows, never one message at a time.

`PublishRun` goes from the wire to the broker: consecutive publishes of one channel, found in one
socket read. Its rows point into `data`, so nothing is copied until a message gets its place in the
arena. `data` is the connection's read buffer and is reused after the call: who keeps a run keeps
`detached()`.

`Taken` goes from a queue to the front end: messages acquired for one consumer, as places in the
arena, to be encoded into one buffer.

A row of a `PublishRun` is twelve signed 64-bit numbers:

     0 exchange start   1 exchange length
     2 key start        3 key length
     4 properties start 5 properties length   (from the property flags on, as they came)
     6 body start       7 body length
     8 flags            9 priority            (0 when the property is absent)
    10 ttl in ms       (the expiration property: -1 absent, -2 not a number, or over 2^32 - 1)
    11 spare
"""

from __future__ import annotations

import array
from collections.abc import Iterator

ROW = 12
EXCHANGE, KEY, PROPERTIES, BODY, FLAGS, PRIORITY, TTL = 0, 2, 4, 6, 8, 9, 10
_STARTS = (EXCHANGE, KEY, PROPERTIES, BODY)

MANDATORY = 1
IMMEDIATE = 2
PERSISTENT = 4
HAS_HEADERS = 8
HAS_EXPIRATION = 16
HAS_USER_ID = 32
HAS_COPIES = 64
"""The headers contain the field name CC or BCC somewhere: look closer before routing."""
DIRECT_REPLY = 128
"""Replies are to come to the publishing channel itself: reply-to is exactly `amq.rabbitmq.reply-to`."""
HAS_PRODUCER = 256
"""The headers contain the field name x-producer somewhere: a stream may know this message already."""

REDELIVERED = 1
"""Flag of a taken entry: it was delivered before."""


class PublishRun:
    """Consecutive publishes of one channel."""

    __slots__ = ("channel", "data", "rows")

    def __init__(self, channel: int, data: bytes | bytearray | memoryview) -> None:
        self.channel = channel
        self.data = memoryview(data)
        self.rows = array.array("q")

    def add(
        self,
        exchange: tuple[int, int],
        key: tuple[int, int],
        properties: tuple[int, int],
        body: tuple[int, int],
        flags: int = 0,
        priority: int = 0,
        ttl_ms: int = -1,
    ) -> None:
        """Describe one more publish by (start, length) pairs into `data`."""
        self.rows.extend((*exchange, *key, *properties, *body, flags, priority, ttl_ms, 0))

    def __len__(self) -> int:
        return len(self.rows) // ROW

    def number(self, index: int, column: int) -> int:
        """One number of one row, e.g. `number(0, FLAGS)`."""
        return self.rows[index * ROW + column]

    def part(self, index: int, column: int) -> bytes:
        """A copy of the bytes that a row points to: `part(0, EXCHANGE)`, KEY, PROPERTIES or BODY."""
        start = self.rows[index * ROW + column]
        return bytes(self.data[start : start + self.rows[index * ROW + column + 1]])

    def detached(self) -> PublishRun:
        """The same run over a private copy of the bytes it points to, for keeping beyond the call."""
        # Part by part: what lies between belongs to other channels and may be a thousand times as much.
        parts, rows, at = [], array.array("q", self.rows), 0
        for i in range(len(rows)):
            if i % ROW in _STARTS:
                parts.append(self.data[rows[i] : rows[i] + rows[i + 1]])
                rows[i] = at
                at += rows[i + 1]
        copy = PublishRun(self.channel, b"".join(parts))
        copy.rows = rows
        return copy


class Taken:
    """Messages acquired for one consumer, oldest first."""

    __slots__ = ("_entries", "lane")

    def __init__(self, lane: int = 0) -> None:
        self.lane = lane
        self._entries: list[tuple[int, int, int, int, int, int]] = []

    def add(self, index: int, seq: int, loc: int, size: int, flags: int, deliveries: int) -> None:
        """One more: its index in the lane, sequence, place in the arena, body bytes, flags, count."""
        self._entries.append((index, seq, loc, size, flags, deliveries))

    def __len__(self) -> int:
        return len(self._entries)

    def __iter__(self) -> Iterator[tuple[int, int, int, int, int, int]]:
        """(index, seq, loc, size, flags, deliveries) of each."""
        return iter(self._entries)

    def entry(self, position: int) -> tuple[int, int, int, int, int, int]:
        return self._entries[position]
