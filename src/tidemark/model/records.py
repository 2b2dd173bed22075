"""The record: what a message is from the moment it has a sequence number until it is gone.

A record is encoded once. The same bytes lie in memory, on the disk and (in a cluster) on every
replica, and compaction moves them unchanged. Little-endian, padded to 8 bytes.

     0         4      5       6         8               16              24        28
    +---------+------+-------+---------+---------------+---------------+---------+----------+
    | length  | type | flags | targets |   sequence    | accepted, ms  | ttl, ms | body len |
    +---------+------+-------+---------+---------------+---------------+---------+----------+
    32      33    34        36          40         41                  48
    +-------+-----+---------+-----------+----------+-------------------+
    | exch. | key | keyed   | props len | priority | spare, 3 | batch  |
    | len   | len | key len |           |          |          |        |
    +-------+-----+---------+-----------+----------+----------+--------+
    48  queue ids (4 bytes a target) · exchange · routing key · keyed key · properties · body · padding

A MESSAGE that goes to n queues has n target ids and takes n consecutive sequence numbers, the
first of which it carries: entry i of queue `targets[i]` is number `sequence + i`. Compaction writes 0 for
a target whose entry is gone; it changes nothing else. A message of an all-or-nothing batch says in `batch` how many
sequence numbers the batch took before it.

TTL_WHOLE: `ttl` is all that limits the life of the message, what its queues had to say when it came included. Without
it (queues of a message had different ones) what they say now counts, too.

The key under which a stream keeps a message follows from the stream's rule (`model/keys.py`), unless the
record says it itself: KEYED, it is the keyed key; KEYLESS, there is none. TOMBSTONE: the message deletes its key.

A SETTLED record says that messages of one queue are gone for good. `flags` is the reason, `targets`
is unused, the head is followed by the queue id (u32), the count (u32) and the sequence numbers:
`count` of them (u64), or with RANGES set in `spare`, `count` pairs (first, how many).

A COUNTED record keeps delivery counts of a queue with a delivery limit: queue id (u32), count
(u32), then pairs (sequence, deliveries).

A TAKEOVER record opens a history: 16 bytes of UUID; its sequence is where that history begins. It is alone in its
frame.

A HISTORIES record stands in a log that was copied to another member when its source no longer had all of it: from
which sequence on the log is whole (u64), then for every history before that, newest first, its UUID and the sequence
where it began (u64). It is alone in its frame, too, and has the sequence of a record that is not there any more.

A CATALOG record is one change of the wiring, as JSON.
"""

from __future__ import annotations

import struct
from collections.abc import Iterable
from dataclasses import dataclass
from enum import IntEnum

HEAD = struct.Struct("<IBBHQqIIBBHIBBHI")
HEAD_BYTES = 48
assert HEAD.size == HEAD_BYTES

NO_TTL = 0xFFFFFFFF

_HISTORY = struct.Struct("<16sQ")


class RecordType(IntEnum):
    MESSAGE = 1
    SETTLED = 2
    COUNTED = 3
    TAKEOVER = 4
    CATALOG = 5
    HISTORIES = 6


class Reason(IntEnum):
    """Why a message is gone."""

    ACCEPTED = 0
    REJECTED = 1
    EXPIRED = 2
    EVICTED = 3
    PURGED = 4
    DELIVERY_LIMIT = 5


# Flags of a MESSAGE
PERSISTENT = 1
TOMBSTONE = 2
KEYED = 4
KEYLESS = 8
TTL_WHOLE = 16
# `spare` byte of a SETTLED record
RANGES = 1


@dataclass(slots=True)
class Message:
    """A record of type MESSAGE, read. The slow paths use it; the fast ones read the bytes."""

    seq: int
    targets: tuple[int, ...]
    accepted_ms: int
    ttl_ms: int | None
    priority: int
    persistent: bool
    exchange: str
    key: str
    properties: bytes
    body: bytes
    keyed: bytes | None = None
    """The key that the record carries for streams (KEYED)."""
    tombstone: bool = False
    ttl_whole: bool = False
    """TTL_WHOLE"""


@dataclass(slots=True)
class Settled:
    """Messages of one queue that are gone for good."""

    seq: int
    queue: int
    reason: Reason
    ranges: list[tuple[int, int]]
    """(first, how many)"""


def whole_life(message_ttl: int, queue_ttls: Iterable[int]) -> tuple[int, int]:
    """What a record says of a message's time to live, -1 for none, and the flag to go with it.

    TTL_WHOLE when it can say what all its queues say, too: they agree, and the time fits.
    """
    of_queues = set(queue_ttls)
    if len(of_queues) > 1:
        return message_ttl, 0
    [of_queue] = of_queues
    if of_queue < 0 or 0 <= message_ttl <= of_queue:
        return message_ttl, TTL_WHOLE
    return (of_queue, TTL_WHOLE) if of_queue < NO_TTL - 1 else (message_ttl, 0)


def padded(length: int) -> int:
    return (length + 7) & ~7


def encode_message(
    seq: int,
    targets: tuple[int, ...],
    now_ms: int,
    ttl_ms: int | None,
    priority: int,
    persistent: bool,
    exchange: bytes,
    key: bytes,
    properties: bytes,
    body: bytes,
    keyed: bytes = b"",
    flags: int = 0,
    batch: int = 0,
) -> bytes:
    """`flags` beside PERSISTENT: TOMBSTONE, KEYED (with `keyed`), KEYLESS."""
    parts = (exchange, key, keyed, properties, body)
    length = padded(HEAD_BYTES + 4 * len(targets) + sum(map(len, parts)))
    head = HEAD.pack(
        length,
        RecordType.MESSAGE,
        flags | (PERSISTENT if persistent else 0),
        len(targets),
        seq,
        now_ms,
        NO_TTL if ttl_ms is None else ttl_ms,
        len(body),
        len(exchange),
        len(key),
        len(keyed),
        len(properties),
        priority,
        0,
        0,
        batch,
    )
    ids = struct.pack(f"<{len(targets)}I", *targets)
    return b"".join((head, ids, *parts)).ljust(length, b"\0")


def _plain_head(kind: RecordType, flags: int, spare: int, seq: int, now_ms: int, size: int) -> bytes:
    length = padded(HEAD_BYTES + size)
    return HEAD.pack(length, kind, flags, 0, seq, now_ms, NO_TTL, size, 0, 0, 0, 0, 0, spare, 0, 0)


def encode_settled(seq: int, now_ms: int, queue: int, reason: int, packed: bytes, ranges: bool) -> bytes:
    """`packed` is what `QueueCore.drain_gone` gave: u64 numbers, or pairs of them with `ranges`."""
    count = len(packed) // (16 if ranges else 8)
    payload = struct.pack("<II", queue, count) + packed
    head = _plain_head(RecordType.SETTLED, reason, RANGES if ranges else 0, seq, now_ms, len(payload))
    return head + payload


def encode_counted(seq: int, now_ms: int, queue: int, counts: list[tuple[int, int]]) -> bytes:
    payload = struct.pack("<II", queue, len(counts))
    payload += b"".join(struct.pack("<QQ", *pair) for pair in counts)
    return _plain_head(RecordType.COUNTED, 0, 0, seq, now_ms, len(payload)) + payload


def encode_takeover(seq: int, now_ms: int, history: bytes) -> bytes:
    assert len(history) == 16
    return _plain_head(RecordType.TAKEOVER, 0, 0, seq, now_ms, 16) + history


def encode_histories(seq: int, now_ms: int, start: int, table: list[tuple[bytes, int]]) -> bytes:
    """`table` is (history, first sequence), newest first; `start`: from there on the log is whole."""
    body = struct.pack("<Q", start) + b"".join(_HISTORY.pack(*row) for row in table)
    return _plain_head(RecordType.HISTORIES, 0, 0, seq, now_ms, len(body)) + body


def decode_histories(data: memoryview | bytes) -> tuple[int, list[tuple[bytes, int]]]:
    """(from where on the log is whole, [(history, first sequence)])"""
    rest = payload(data)
    return int.from_bytes(rest[:8], "little"), list(_HISTORY.iter_unpack(rest[8:]))


def encode_catalog(seq: int, now_ms: int, change: bytes) -> bytes:
    head = _plain_head(RecordType.CATALOG, 0, 0, seq, now_ms, len(change))
    return (head + change).ljust(padded(HEAD_BYTES + len(change)), b"\0")


def record_length(data: memoryview | bytes, at: int = 0) -> int:
    return int.from_bytes(data[at : at + 4], "little")


def batch_first(data: memoryview | bytes, at: int = 0) -> int:
    """The first sequence number of the batch that a MESSAGE belongs to: its own, when it came alone."""
    seq = int.from_bytes(data[at + 8 : at + 16], "little")
    return seq - int.from_bytes(data[at + 44 : at + 48], "little")


def record_type(data: memoryview | bytes, at: int = 0) -> int:
    return data[at + 4]


def record_seq(data: memoryview | bytes, at: int = 0) -> int:
    return int.from_bytes(data[at + 8 : at + 16], "little")


def payload(data: memoryview | bytes) -> bytes:
    """What follows the head in a record that is not a MESSAGE."""
    size = int.from_bytes(data[28:32], "little")
    return bytes(data[HEAD_BYTES : HEAD_BYTES + size])


def decode_message(data: memoryview | bytes) -> Message:
    (
        _,
        kind,
        flags,
        count,
        seq,
        accepted,
        ttl,
        body_len,
        exchange_len,
        key_len,
        keyed_len,
        props_len,
        priority,
        _,
        _,
        _,
    ) = HEAD.unpack_from(data)
    assert kind == RecordType.MESSAGE
    at = HEAD_BYTES
    targets = struct.unpack_from(f"<{count}I", data, at)
    at += 4 * count
    exchange = bytes(data[at : at + exchange_len]).decode("utf-8", "surrogateescape")
    at += exchange_len
    key = bytes(data[at : at + key_len]).decode("utf-8", "surrogateescape")
    at += key_len
    keyed = bytes(data[at : at + keyed_len])
    at += keyed_len
    properties = bytes(data[at : at + props_len])
    at += props_len
    body = bytes(data[at : at + body_len])
    return Message(
        seq,
        targets,
        accepted,
        None if ttl == NO_TTL else ttl,
        priority,
        bool(flags & PERSISTENT),
        exchange,
        key,
        properties,
        body,
        keyed if flags & KEYED else None,
        bool(flags & TOMBSTONE),
        bool(flags & TTL_WHOLE),
    )


def decode_settled(data: memoryview | bytes) -> Settled:
    spare = data[41]
    rest = payload(data)
    queue, count = struct.unpack_from("<II", rest)
    if spare & RANGES:
        numbers = struct.unpack_from(f"<{2 * count}Q", rest, 8)
        ranges = list(zip(numbers[::2], numbers[1::2], strict=True))
    else:
        ranges = [(number, 1) for number in struct.unpack_from(f"<{count}Q", rest, 8)]
    return Settled(record_seq(data), queue, Reason(data[5]), ranges)


def decode_counted(data: memoryview | bytes) -> tuple[int, list[tuple[int, int]]]:
    """(queue id, [(sequence, deliveries)])"""
    rest = payload(data)
    queue, count = struct.unpack_from("<II", rest)
    numbers = struct.unpack_from(f"<{2 * count}Q", rest, 8)
    return queue, list(zip(numbers[::2], numbers[1::2], strict=True))
