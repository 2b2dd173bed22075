"""Which extents stay in memory, and how the others come back.

The arena holds extents; the pager keeps their bytes within `store.cache_bytes`. A journal extent is on
the disk anyway: it is dropped once its last frame is durable, the least recently read first, and among
those never read the newest first, since queues are read from their old end. A memory extent (transient
messages) is written to a spill file first, only when dropping the others was not enough; spill files are
not synced and mean nothing after a restart.

What is brought back is checked frame by frame, so bytes that rotted are an error, never a message.

Invariant: an extent that is not resident has its place in a segment, or its spill file.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable
from dataclasses import dataclass

from tidemark.errors import CorruptRecord, DiskFull, StoreError
from tidemark.model.arena import MEMORY, Arena
from tidemark.ports import Disk
from tidemark.store.frames import ENDED, FRAME, FRAME_BYTES, MORE, PROBLEMS, crc32c, scan, walk
from tidemark.store.segment import Segment

SPILL_BYTES_MIN = 4 << 20
SPILL_BYTES_MAX = 32 << 20
"""What is spilled in one go: a quarter of what is over the budget, within these. The loop waits meanwhile,
so little at a time, but more when publishers are ahead of it."""


@dataclass(slots=True)
class Place:
    """Where a journal extent lies on the disk."""

    segment: Segment
    offset: int
    used: int
    previous: int
    """The checksum that its first frame names as that of the one before."""
    last_seq: int = 0
    """The last sequence in it; 0 if it has no records."""
    ticket: int = 0
    """The write that makes its last frame durable."""
    ends: bool = False
    """It holds SETTLED or COUNTED records."""
    empty: bool = False
    """No queue points into it any more."""


class Pager:
    def __init__(self, arena: Arena, disk: Disk, cache_bytes: int) -> None:
        self.places: dict[int, Place] = {}
        self.pages_in = 0
        self.pages_out = 0
        self.queue_name: Callable[[int], str | None] = lambda _: None
        self._arena = arena
        self._disk = disk
        self._cache_bytes = cache_bytes
        self._resident: set[int] = set()
        """Journal extents that may be in memory."""
        self._spilled: dict[int, tuple[str, int, int]] = {}
        """Memory extents on disk: (file, length, checksum)."""
        self._numbered = 0
        arena.pager = self.bring_back

    # In ------------------------------------------------------------------------------------

    def add(self, number: int, place: Place, resident: bool) -> None:
        """A journal extent, and where it lies."""
        self._forget_spill(number)
        self.places[number] = place
        if resident:
            self._resident.add(number)

    def remove(self, number: int) -> None:
        """The extent is no more; the arena frees it."""
        del self.places[number]
        self._resident.discard(number)
        self._arena.free_extent(number)

    def bring_back(self, number: int, room: memoryview) -> None:
        """Put the bytes of an extent that is not in memory there. There is room for all of them, and no more.

        Raises:
            CorruptRecord: they are not what was written.
        """
        spilled = self._spilled.get(number)
        if spilled is not None:
            name, _, crc = spilled
            if self._disk.read_into(name, 0, room) != len(room) or crc32c(room) != crc:
                raise CorruptRecord(
                    path=name, offset=0, problem="the checksum of paged-out messages is wrong"
                )
            self._forget_spill(number)
        else:
            place = self.places[number]
            count = self._disk.read_into(place.segment.name, place.offset, room)
            self._check(place, room[:count])
            self._resident.add(number)
        self.pages_in += 1

    def read(self, number: int) -> bytes:
        """The bytes of a journal extent as they are on the disk, checked."""
        place = self.places[number]
        data = self._disk.read(place.segment.name, place.offset, place.used)
        self._check(place, data)
        return data

    def _check(self, place: Place, data: bytes | memoryview) -> None:
        found = scan(data, place.segment.place(place.offset), place.previous)
        if found.position != place.used or found.stop not in (MORE, ENDED):
            raise CorruptRecord(
                path=place.segment.name,
                offset=place.offset + found.position,
                problem=PROBLEMS.get(found.stop, "the segment ends early"),
                queues=self._queues(data),
            )

    def _queues(self, data: bytes | memoryview) -> tuple[str, ...]:
        """The queues of the extent's messages, as far as its frames can still be followed."""
        numbers: set[int] = set()
        at = 0
        while len(data) - at >= FRAME_BYTES:
            length = FRAME.unpack_from(data, at)[2]
            end = at + length
            if length < FRAME_BYTES or end > len(data):
                break
            with contextlib.suppress(ValueError):
                for start, _, _, _, targets in walk(data, at + FRAME_BYTES, end):
                    for index in range(targets):
                        where = start + 48 + 4 * index
                        numbers.add(int.from_bytes(data[where : where + 4], "little"))
            at = end
        return tuple(self.queue_name(number) or f"number {number}" for number in sorted(numbers - {0}))

    # Out -----------------------------------------------------------------------------------

    def drop_if_durable(self, number: int, completed: int) -> bool:
        """Forget the bytes of an extent, unless the disk still writes them."""
        if self.places[number].ticket > completed:
            return False
        self._arena.drop_extent(number)
        self._resident.discard(number)
        return True

    def trim(self, completed: int, at_most: int | None = None) -> None:
        """Bring memory down to the budget, or below it to `at_most`, as far as what is durable allows. For the latter nothing
        is spilled."""
        budget = self._cache_bytes if at_most is None else min(at_most, self._cache_bytes)
        over = self._arena.resident_bytes - budget
        if over <= 0:
            return
        candidates = []
        for number in self._resident:
            if self.places[number].ticket > completed:
                continue
            info = self._arena.extent(number)
            if info.sealed and info.resident:
                candidates.append((info.touched, -number, info.capacity))
        candidates.sort()
        for _, negative, capacity in candidates:
            if over <= 0:
                return
            self._arena.drop_extent(-negative)
            self._resident.discard(-negative)
            self.pages_out += 1
            over -= capacity
        if over > 0 and at_most is None:
            self._spill(over)

    def _spill(self, over: int) -> None:
        self.sweep()
        candidates = []
        for number in self._arena.extents():
            if number in self.places:
                continue
            info = self._arena.extent(number)
            if info.kind == MEMORY and info.sealed and info.resident:
                candidates.append((info.touched, -number, info.used, info.capacity))
        candidates.sort()
        left = min(max(SPILL_BYTES_MIN, over // 4), SPILL_BYTES_MAX)
        for _, negative, used, capacity in candidates:
            if over <= 0 or left <= 0:
                return
            number = -negative
            self._forget_spill(number)
            data = self._arena.extent_bytes(number, 0, used)
            self._numbered += 1
            name = f"spill/{self._numbered:08d}"
            try:
                self._disk.write(name, 0, data)
            except DiskFull:
                # Without room they stay in memory; the memory alarm holds publishers back.
                with contextlib.suppress(StoreError):
                    self._disk.remove(name)
                return
            self._spilled[number] = (name, used, crc32c(data))
            self._arena.drop_extent(number)
            self.pages_out += 1
            over -= capacity
            left -= used

    def sweep(self) -> None:
        """Remove the spill files of extents that are no more: the arena frees memory extents by itself."""
        if not self._spilled:
            return
        there = set(self._arena.extents())
        for number in list(self._spilled):
            if number not in there or number in self.places or self._arena.extent(number).resident:
                self._forget_spill(number)

    def _forget_spill(self, number: int) -> None:
        spilled = self._spilled.pop(number, None)
        if spilled is not None:
            self._disk.remove(spilled[0])

    @property
    def spilled(self) -> int:
        """How many extents are in spill files."""
        return len(self._spilled)
