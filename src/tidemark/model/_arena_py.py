"""The arena: where records lie, in memory or paged out, and who still needs them.

Memory is cut into *extents* of about a megabyte. A record's place, its `loc`, is the number of its
extent and its offset in it (`extent << 32 | offset`); it stays good while the extent is dropped from
memory and brought back, so queues hold places and never pointers. `loc` 0 is nowhere.

Two *writers* fill extents: one for records that only live in memory, one (the journal's) for
records that go to disk. Each extent counts the queue entries that still point into it. A memory
extent is freed when the last one is gone; a journal extent is the store's to drop, since its bytes
are on disk.

Invariant: a resident extent has its bytes in `data`; one that is not resident belongs to a pager
that can bring exactly these bytes back, or to nobody (live == 0).
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from tidemark.model import records

MEMORY = 0
JOURNAL = 1

EXTENT_BYTES = 1 << 20
EVERYTHING = (1 << 64) - 1


@dataclass(slots=True)
class ExtentInfo:
    """A picture of one extent, for the store's decisions."""

    number: int
    kind: int
    used: int
    capacity: int
    live: int
    live_bytes: int
    resident: bool
    sealed: bool
    touched: int


@dataclass(slots=True)
class _Extent:
    kind: int
    capacity: int
    data: bytearray | None
    used: int = 0
    live: int = 0
    live_bytes: int = 0
    sealed: bool = False
    touched: int = 0


class Arena:
    def __init__(self) -> None:
        self.next_seq = 1
        self.batch_seq = 0
        """Where the all-or-nothing batch began whose messages are being written; 0: they come alone."""
        self.turn = 0
        """Counts turns of the loop; an extent remembers the one it was last read in."""
        self.shown_seq = EVERYTHING
        """Consumers see messages of the journal up to this sequence: what a crash may still take back stays
        hidden. The node raises it."""
        self.hidden: list[Any] = []
        """Queues that had something to give which is not shown yet; the node wakes them when it is."""
        self.resident_bytes = 0
        self.pager: Callable[[int, memoryview], None] | None = None
        """Puts the bytes of an extent back into the given room; raises a StoreError when they are not what they were."""
        self.emptied: list[int] = []
        """Sealed journal extents whose last message has gone; the store takes them from here."""
        self._extents: dict[int, _Extent] = {}
        self._free_numbers: list[int] = []

    # Extents ---------------------------------------------------------------------------

    def open_extent(self, kind: int, capacity: int) -> int:
        """A new resident extent for a writer to fill."""
        number = self._new_number()
        self._extents[number] = _Extent(kind, capacity, bytearray(capacity))
        self.resident_bytes += capacity
        return number

    def adopt_extent(self, kind: int, used: int) -> int:
        """An extent whose bytes are on disk already: sealed, not resident, nobody in it yet."""
        number = self._new_number()
        self._extents[number] = _Extent(kind, used, None, used=used, sealed=True)
        return number

    def restore_extent(self, number: int, kind: int, used: int) -> None:
        """`adopt_extent` under the number that it had in another process. Numbers must rise.

        Raises:
            ValueError: the number is not above all that there are.
        """
        highest = len(self._extents) + len(self._free_numbers)
        if number <= highest:
            raise ValueError(f"extent {number} is there already")
        self._free_numbers.extend(range(highest + 1, number))
        self._extents[number] = _Extent(kind, used, None, used=used, sealed=True)

    def _new_number(self) -> int:
        return self._free_numbers.pop() if self._free_numbers else len(self._extents) + 1

    def seal_extent(self, number: int, used: int) -> None:
        """No more records go into it. An extent that nobody needs any more ends here."""
        extent = self._extents[number]
        extent.used, extent.sealed = used, True
        if extent.live == 0:
            self._abandoned(number)

    def drop_extent(self, number: int) -> None:
        """Forget the bytes; the pager has them."""
        extent = self._extents[number]
        if extent.data is not None:
            extent.data = None
            self.resident_bytes -= extent.capacity

    def load_extent(self, number: int, data: bytes | bytearray | memoryview) -> None:
        extent = self._extents[number]
        assert extent.data is None and len(data) == extent.used
        extent.data = bytearray(data)
        extent.capacity = len(data)
        self.resident_bytes += extent.capacity

    def free_extent(self, number: int) -> None:
        """The extent is no more. Nobody may point into it."""
        assert self._extents[number].live == 0
        self.drop_extent(number)
        del self._extents[number]
        self._free_numbers.append(number)

    def extent(self, number: int) -> ExtentInfo:
        e = self._extents[number]
        return ExtentInfo(
            number,
            e.kind,
            e.used,
            e.capacity,
            e.live,
            e.live_bytes,
            e.data is not None,
            e.sealed,
            e.touched,
        )

    def extents(self) -> list[int]:
        """The numbers of all extents there are."""
        return sorted(self._extents)

    def extent_bytes(self, number: int, start: int, end: int) -> memoryview:
        """Bytes of a resident extent, without a copy, valid until it is dropped or freed."""
        data = self._extents[number].data
        assert data is not None
        return memoryview(data)[start:end]

    # Records ---------------------------------------------------------------------------

    def record(self, loc: int) -> memoryview:
        """The record at `loc`, brought back from disk if it must be. Valid until the next call."""
        extent = self._extents[loc >> 32]
        if extent.data is None:
            assert self.pager is not None
            data = bytearray(extent.used)
            self.pager(loc >> 32, memoryview(data))
            self.load_extent(loc >> 32, data)
        extent.touched = self.turn
        assert extent.data is not None
        view = memoryview(extent.data)[loc & 0xFFFFFFFF :]
        return view[: records.record_length(view)]

    def message(self, loc: int) -> records.Message:
        return records.decode_message(self.record(loc))

    def retain(self, loc: int, size: int) -> None:
        """A queue entry points here now."""
        extent = self._extents[loc >> 32]
        extent.live += 1
        extent.live_bytes += size

    def release(self, loc: int, size: int) -> None:
        """A queue entry that pointed here is gone."""
        extent = self._extents[loc >> 32]
        extent.live -= 1
        extent.live_bytes -= size
        if extent.live == 0 and extent.sealed:
            self._abandoned(loc >> 32)

    def _abandoned(self, number: int) -> None:
        if self._extents[number].kind == MEMORY:
            self.free_extent(number)
        else:
            self.emptied.append(number)


class Writer:
    """Puts records into extents of one kind, one after the other.

    The journal derives from it and overrides `grow`, which is called when the next record does
    not fit: there it closes the frame and says where on disk the next extent will lie.
    """

    def __init__(self, arena: Arena, kind: int, extent_bytes: int = EXTENT_BYTES) -> None:
        self.arena = arena
        self.kind = kind
        self.extent_bytes = extent_bytes
        self.number = 0
        """The extent being filled; 0 before the first record and after `close_extent`."""
        self.used = 0
        self.capacity = 0

    def grow(self, need: int) -> None:
        """Make room for a record of `need` bytes: close this extent, open the next."""
        self.close_extent()
        self.open_extent(max(need, self.extent_bytes), 0)

    def open_extent(self, capacity: int, used: int) -> None:
        self.number = self.arena.open_extent(self.kind, capacity)
        self.capacity, self.used = capacity, used

    def close_extent(self) -> None:
        if self.number:
            self.arena.seal_extent(self.number, self.used)
        self.number = self.used = self.capacity = 0

    def append(self, record: bytes) -> int:
        """Put one encoded record; returns its place."""
        assert len(record) % 8 == 0
        if self.used + len(record) > self.capacity:
            self.grow(len(record))
        loc = self.number << 32 | self.used
        self.arena.extent_bytes(self.number, self.used, self.used + len(record))[:] = record
        self.used += len(record)
        return loc

    def put(
        self,
        targets: tuple[int, ...],
        now_ms: int,
        ttl_ms: int | None,
        priority: int,
        persistent: bool,
        exchange: bytes,
        key: bytes,
        properties: bytes,
        body: bytes,
        flags: int = 0,
    ) -> tuple[int, int]:
        """Encode a message under the next sequence numbers. Returns (its first one, its place)."""
        seq = self.arena.next_seq
        self.arena.next_seq += len(targets)
        record = records.encode_message(
            seq,
            targets,
            now_ms,
            ttl_ms,
            priority,
            persistent,
            exchange,
            key,
            properties,
            body,
            flags=flags,
            batch=self._batch(seq),
        )
        return seq, self.append(record)

    def _batch(self, seq: int) -> int:
        return seq - self.arena.batch_seq if self.arena.batch_seq else 0

    def put_keyed(
        self,
        target: int,
        now_ms: int,
        keyed: bytes | None,
        tombstone: bool,
        key: bytes,
        properties: bytes,
        body: bytes,
    ) -> tuple[int, int]:
        """Encode a persistent message for one stream, under `keyed` or without a key. As `put`."""
        if len(key) > 255 or len(keyed or b"") > 0xFFFF:
            raise OverflowError("a routing key over 255 bytes, or a key over 65535")
        flags = (records.KEYLESS if keyed is None else records.KEYED) | (
            records.TOMBSTONE if tombstone else 0
        )
        seq = self.arena.next_seq
        self.arena.next_seq += 1
        record = records.encode_message(
            seq,
            (target,),
            now_ms,
            None,
            0,
            True,
            b"",
            key,
            properties,
            body,
            keyed or b"",
            flags,
            self._batch(seq),
        )
        return seq, self.append(record)
