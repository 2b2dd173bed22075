"""What the client gives and takes: rows, receipts, markers, marks, pins.

Plain values without a connection; they can be kept, compared, pickled and sent elsewhere.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Any, Literal, NamedTuple, TypeAlias

Bytes: TypeAlias = bytes | bytearray | memoryview | str
"""A key, value or body. Text is sent as UTF-8; what comes back is always bytes."""

Safety: TypeAlias = Literal["yes", "not yet", "lost branch"]
KeyRule: TypeAlias = str
"""`explicit` (or `none`), `routing-key`, `message-id` or `header:<name>`."""


class Row(NamedTuple):
    """One version of one key, or one message of a stream without keys."""

    key: bytes | None
    value: bytes
    sequence: int
    timestamp_ms: int
    """When the broker accepted it; milliseconds since 1970."""
    deleted: bool
    """A tombstone: the key was deleted here, `value` is empty."""
    properties: bytes
    """AMQP properties as they were published; `headers` reads the headers in them."""

    @property
    def headers(self) -> dict[str, Any]:
        if len(self.properties) <= 2:
            return {}
        from tidemark.wire.amqp091.properties import decode_properties

        return decode_properties(self.properties).headers or {}

    @property
    def time(self) -> datetime:
        return moment(self.timestamp_ms)


class Receipt(NamedTuple):
    """Where a write is: never a bare number, for after a takeover a number can mean another message."""

    history: str
    sequence: int
    """The last one that the write took."""
    duplicate: bool = False
    """This producer's number was stored before; nothing was stored now."""
    first: int = 0
    """The first one that the write took."""
    taken: int = 0
    """How many messages of queues it took (`tx.take`)."""


@dataclass(frozen=True, slots=True)
class Marker:
    """The end of a snapshot: who holds exactly this much, with this hash, has exactly what the broker has."""

    history: str
    start: int
    """The snapshot holds what came after this sequence …"""
    end: int
    """… up to this one."""
    count: int
    """Rows with a value …"""
    tombstones: int
    """… and deleted ones."""
    hash: str | None
    """The sum of the 128-bit hashes of the rows, as 32 hexadecimal digits; the order of the rows does not matter."""
    verified: bool = False
    """The client counted and hashed what came and found the same."""


class Mark(NamedTuple):
    """How far a named consumer has come."""

    consumer: str
    history: str
    sequence: int
    """It has finished with everything up to here, in all shards."""
    snapshot_end: int | None = None
    """The end of the snapshot that it was reading; the same as `sequence` at a boundary."""
    lease_until_ms: int | None = None
    """Until when deletes wait for it; None: they do not."""
    expired: bool = False
    """It was away for longer than that."""
    shards: tuple[int, ...] = ()
    """Its sequence in each shard, when it goes through them one by one."""


class PinInfo(NamedTuple):
    """A snapshot that is kept readable under a name."""

    name: str
    sequence: int
    lease_until_ms: int
    bytes_kept: int
    """What only this and other pins keep from being freed."""
    shards: int = 1
    """Into how many it is divided, also when the stream has grown since."""
    floor: int = 0
    """As in `Head`, of the moment that it shows."""
    purged: int = 0


class Head(NamedTuple):
    """How far a stream goes."""

    history: str
    sequence: int
    shards: int
    live: int
    number: int = 0
    """Of the stream, for good: one that was deleted and made again has another."""
    floor: int = 0
    """Rows with a lower sequence were ended by retention, truncate or purge; the one right below it was. Who has read
    less than `floor - 1` has missed some."""
    purged: int = 0
    """Deletes up to here are no longer told: who has read something, but less than this, may keep deleted keys."""


class MemberInfo(NamedTuple):
    """One member of a cluster."""

    name: str
    state: str
    """`active`, `ready`, `catch-up` …; `away`: it is not there; `alone`: there is no cluster."""
    role: str
    """`leader` or `backup`; in a chain `head`, `middle` or `tail`; `joining` while it is not ready."""
    address: str
    """Where clients reach it; empty if that is not known."""
    leads: bool
    """Writes go there."""


class Cut(NamedTuple):
    """A piece of a snapshot: what lies behind the piece before it, up to `until`."""

    until: int
    """The last sequence that belongs to it."""
    rows: int
    """Deleted ones included, exactly."""
    bytes: int
    """Of their values, exactly; keys are not counted."""


class Lag(NamedTuple):
    """What lies behind a place in a stream."""

    rows: int
    """Keys that changed since then, deleted ones included, each once."""
    bytes: int
    """Of their values."""


class DiffSummary(NamedTuple):
    changed: int
    deleted: int


@dataclass(frozen=True, slots=True)
class StreamInfo:
    """A stream as the broker describes it. `facts` has all of it, these are the most used."""

    name: str
    key: str
    shards: int
    live: int
    """Keys with a value, or messages of a stream without keys."""
    tombstones: int
    last_sequence: int
    facts: Mapping[str, Any]
    floor: int = 0
    """As in `Head`."""
    purged: int = 0
    group: str = ""
    """The group of the cluster that it lives in; of one that has no groups, `main`."""


class Partition(NamedTuple):
    """One of the streams of a partitioned stream."""

    stream: str
    group: str
    arguments: Mapping[str, Any] = {}
    """What it was declared with."""
    number: int = 0
    """By which main tells it from a later stream of that name; 0 if it was not said."""


@dataclass(frozen=True, slots=True)
class Layout:
    """Where the partitions of a partitioned stream are, in their order."""

    name: str
    key: str
    """What decides of a message that is published to it: `routing-key`, or `header:<name>`."""
    partitions: tuple[Partition, ...]


def octets(value: Bytes) -> bytes:
    """Bytes as they are, text as UTF-8.

    Raises:
        TypeError: neither.
    """
    if isinstance(value, bytes):
        return value
    if isinstance(value, str):
        return value.encode()
    if isinstance(value, (bytearray, memoryview)):
        return bytes(value)
    raise TypeError(f"bytes or text is needed here, not {type(value).__name__}")


def milliseconds(time: datetime | float) -> int:
    """A moment as the broker counts: a datetime (without a zone: local time) or seconds since 1970."""
    seconds = time.timestamp() if isinstance(time, datetime) else time
    return round(seconds * 1000)


def moment(ms: int) -> datetime:
    return datetime.fromtimestamp(ms / 1000, UTC)
