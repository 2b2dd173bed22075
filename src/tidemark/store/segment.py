"""Segment files: the pieces of a log, their names and the head of 4 KiB that each begins with.

    seg-<id, 16 hex digits>-<generation, 4>.log        a piece of the journal
    catalog-<id>-<generation>.log                      a piece of the catalog log

The head, little-endian, zeros after the table:

     0          8         10        12       16            32      40      44        48     56
    +----------+---------+---------+--------+-------------+-------+-------+---------+------+------+
    | TIDEMARK | version | 4096    | flags  | store uuid  | id    | gener-| size /  | low  | high |
    |          |         |         |        |             |       | ation | 4096    |      |      |
    +----------+---------+---------+--------+-------------+-------+-------+---------+------+------+
    64         72               80          88     96        104          108     112           120         128
    +----------+----------------+-----------+------+---------+------------+-------+-------------+-----------+---------+
    | base seq | compacted upto | start no. | salt | made ms | histories  | crc   | buried upto | log start | table   |
    +----------+----------------+-----------+------+---------+------------+-------+-------------+-----------+---------+

`low`..`high` are the ids that a compacted segment stands for: it hides those of a lower generation. `base seq` is
the sequence behind that of the last record before the segment. `log start` is how far the log had lost records, by
compaction or because it was copied, when the segment was made: behind it nothing is missing. The table says
which history (16 bytes) began at which sequence (8), newest first. The salt makes the checksum
of every head another one; it seeds the chain of frames, so that bytes of a recycled file's earlier life
are never taken for this one's.

Invariant: a file gets its name only when its head is on the disk.
"""

from __future__ import annotations

import re
import struct
from dataclasses import dataclass, field

from tidemark.model.peers import Ends
from tidemark.store.frames import OFFSET_BITS, Survey, crc32c

HEAD = struct.Struct("<8sHHI16sQIIQQQQQQqIIQQ")
HEAD_BYTES = 4096
assert HEAD.size == 128
MAGIC = b"TIDEMARK"
VERSION = 1
HISTORY = struct.Struct("<16sQ")
HISTORIES_MAX = 128
_NEWEST_KEPT = HISTORIES_MAX // 2
_CRC_AT = 108

COMPACTED = 1
PREPARED = 2

_NAME = re.compile(r"(seg|catalog)-([0-9a-f]{16})-([0-9]{4,})\.log")

JOURNAL_PREFIX = "seg"
CATALOG_PREFIX = "catalog"


def with_history(table: list[tuple[bytes, int]], history: bytes, first: int) -> list[tuple[bytes, int]]:
    """The table of histories, newest first, when one more begins at the sequence `first`.

    Of a table that is full the history goes, of those in the older half, in which the least was written: a hundred
    starts that came to nothing must not push out the one whose messages are there. The one after it then counts
    from where it began; so up to where any other history is true stays the same.
    """
    table = [(history, first), *table]
    while len(table) > HISTORIES_MAX:
        least = min(range(_NEWEST_KEPT, len(table)), key=lambda at: (table[at - 1][1] - table[at][1], -at))
        after, since = table[least - 1]
        table[least - 1] = after, min(since, table[least][1])
        del table[least]
    return table


@dataclass(slots=True)
class Barrier:
    """Passed when everything that had happened when it was put up is on the disk.

    The end of a message takes effect in memory at once and is recorded at the end of the turn; the
    catalog's changes likewise. So the bytes of a message that memory no longer needs may go when the
    next flush is over and all that was submitted by then is durable.
    """

    flushes: int
    ticket: int | None = None
    ends: Ends = field(default_factory=Ends)
    """How far both logs went then: in a group, the other members must have that, too (`StoreFiles.stable`)."""


@dataclass(slots=True, kw_only=True)
class Segment:
    """One file of a log, as far as the store must know it."""

    prefix: str
    id: int
    generation: int = 0
    low: int
    high: int
    size: int
    store: bytes
    base_seq: int
    compacted_upto: int = 0
    """Messages whose end was recorded at or before this sequence are not in this segment any more."""
    buried_upto: int = 0
    """Messages of streams that were superseded at or before this sequence are not in this segment any more."""
    log_start: int = 0
    """Records up to here may be missing from the log."""
    start: int = 0
    """The how-many-th start of the store made it."""
    salt: int
    made_ms: int
    histories: list[tuple[bytes, int]] = field(default_factory=list)
    compacted: bool = False
    prepared: bool = False
    """It was made before it was needed: more records than `base_seq` says may have come before it."""
    crc: int = 0
    """The checksum of its head."""

    used: int = HEAD_BYTES
    reserved: bool = False
    """It has room, and no zeros were written there: a sync of what is new takes up to twice as long."""
    sealed: bool = False
    """Its END frame is written."""
    ticket: int = 0
    """The last write to it that was handed to the disk."""
    extents: list[int] = field(default_factory=list)
    """Where its frames are in the arena, in order."""
    empty: int = 0
    """How many of these no queue points into any more."""
    barrier: Barrier | None = None
    """Put up when nothing in it was needed any more."""
    seen_ms: int = 0
    seen_live: int = -1
    """How many entries pointed into it when compaction looked; it waits until that stays about the same."""
    damaged: bool = False
    """Reading it back failed once: compaction leaves it alone."""
    known: bool = False
    """A checkpoint says what is in it up to `used`."""
    idle_bytes: int = 0
    """Tombstones that compaction kept in it only because older segments may hold what they deleted."""
    survey: Survey = field(default_factory=Survey)

    @property
    def name(self) -> str:
        return f"{self.prefix}-{self.id:016x}-{self.generation:04d}.log"

    @property
    def last_seq(self) -> int:
        return max(self.survey.last_seq, self.base_seq - 1)

    def place(self, offset: int) -> int:
        """An offset in this file as a number that rises along the whole log."""
        return self.id << OFFSET_BITS | offset

    def hides(self, other: Segment) -> bool:
        return (
            self.low <= other.id <= self.high
            and self.low <= other.low
            and other.high <= self.high
            and other.generation < self.generation
        )

    def encode_head(self) -> bytes:
        """The head block; sets `crc`."""
        head = bytearray(HEAD_BYTES)
        histories = self.histories[:HISTORIES_MAX]
        HEAD.pack_into(
            head,
            0,
            MAGIC,
            VERSION,
            HEAD_BYTES,
            (COMPACTED if self.compacted else 0) | (PREPARED if self.prepared else 0),
            self.store,
            self.id,
            self.generation,
            self.size // 4096,
            self.low,
            self.high,
            self.base_seq,
            self.compacted_upto,
            self.start,
            self.salt,
            self.made_ms,
            len(histories),
            0,
            self.buried_upto,
            self.log_start,
        )
        for index, history in enumerate(histories):
            HISTORY.pack_into(head, HEAD.size + index * HISTORY.size, *history)
        self.crc = crc32c(head)
        struct.pack_into("<I", head, _CRC_AT, self.crc)
        return bytes(head)


def parse_name(name: str) -> tuple[str, int, int] | None:
    """(prefix, id, generation) of a segment's name; None if it is not one."""
    found = _NAME.fullmatch(name)
    return (found[1], int(found[2], 16), int(found[3])) if found else None


def decode_head(name: str, data: bytes) -> Segment:
    """Read a head block.

    Raises:
        ValueError: it is not the head of the file of this name.
    """
    named = parse_name(name)
    if named is None:
        raise ValueError("not the name of a segment")
    if len(data) < HEAD_BYTES:
        raise ValueError("the file is shorter than its head")
    (magic, version, length, flags, store, number, generation, blocks, low, high, base, upto, *rest) = (
        HEAD.unpack_from(data)
    )
    start, salt, made_ms, count, crc, buried, log_start = rest
    if magic != MAGIC:
        raise ValueError("it does not begin with the mark of a segment")
    plain = bytearray(data[:HEAD_BYTES])
    struct.pack_into("<I", plain, _CRC_AT, 0)
    if crc32c(plain) != crc:
        raise ValueError("the checksum of the head is wrong")
    if version != VERSION or length != HEAD_BYTES:
        raise ValueError(f"format version {version} is not ours ({VERSION})")
    if (number, generation) != named[1:] or count > HISTORIES_MAX or not low <= number <= high:
        raise ValueError("the head belongs to another file")
    histories = [HISTORY.unpack_from(data, HEAD.size + i * HISTORY.size) for i in range(count)]
    return Segment(
        prefix=named[0],
        id=number,
        generation=generation,
        low=low,
        high=high,
        size=blocks * 4096,
        store=store,
        base_seq=base,
        compacted_upto=upto,
        buried_upto=buried,
        log_start=log_start,
        start=start,
        salt=salt,
        made_ms=made_ms,
        histories=histories,
        compacted=bool(flags & COMPACTED),
        prepared=bool(flags & PREPARED),
        crc=crc,
    )
