"""Giving room back: bytes of extents that nobody points into, and segments in which nothing is needed any more.

An extent is empty when no queue and no stream holds a message in it; its bytes then leave memory, once the disk has
them. A segment goes when all its extents are empty and no older segment may hold what its SETTLED and COUNTED records
and its tombstones speak of; and only when that is durable (`Barrier`). Segments that are dead in part are compaction's.

Invariant: a segment that is dropped holds no message, and no record of an end that a restart would miss.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from tidemark.model.arena import EVERYTHING
from tidemark.store.compaction import Compactor
from tidemark.store.segment import Segment

if TYPE_CHECKING:
    from tidemark.store.journal import Journal


class Reclaimer:
    def __init__(self, journal: Journal, compactor: Compactor) -> None:
        self.look = True
        """Something changed by which a segment may have become free."""
        self.queue_max = 0
        """The highest queue number that segments named which are gone."""
        self._journal = journal
        self._compactor = compactor
        self._undropped: list[int] = []
        """Extents that nobody reads any more, but the disk still writes."""

    def step(self) -> None:
        self._note_emptied()
        if self.look:
            self.look = self._free_segments()

    def take_stock(self) -> None:
        """After recovery: which extents nobody points into."""
        arena = self._journal.arena
        arena.emptied.clear()
        for segment in self._journal.segments:
            for number in segment.extents:
                if arena.extent(number).live == 0:
                    self._note_empty(number)

    def _note_emptied(self) -> None:
        arena, places = self._journal.arena, self._journal.pager.places
        waiting, self._undropped = self._undropped, []
        for number in waiting:
            if number in places and places[number].empty:
                self._drop_bytes(number)
        emptied = arena.emptied
        if not emptied:
            return
        numbers = set(emptied)
        emptied.clear()
        for number in numbers:
            # An entry may be older than the extent that has this number now, and entries move into the
            # extents of a compaction only in the end.
            place = places.get(number)
            if place is not None and not self._compactor.busy_with(place.segment):
                info = arena.extent(number)
                if info.sealed and info.live == 0:
                    self._note_empty(number)

    def _note_empty(self, number: int) -> None:
        place = self._journal.pager.places[number]
        if not place.empty:
            place.empty = True
            place.segment.empty += 1
            self.look = True
            self._drop_bytes(number)

    def _drop_bytes(self, number: int) -> None:
        if not self._journal.pager.drop_if_durable(number, self._journal.completed_ticket):
            self._undropped.append(number)

    def _free_segments(self) -> bool:
        """Let go of sealed segments in which no message and no record of an end is needed any more.

        Returns whether it is worth looking again soon.
        """
        kept = []
        again = False
        for segment in self._journal.segments:
            if segment.sealed and segment.empty == len(segment.extents):
                if segment.ticket > self._journal.completed_ticket or self._compactor.busy_with(segment):
                    again = True
                elif self.needed_bytes(segment) == 0:
                    again = True
                    segment.barrier = segment.barrier or self._journal.barrier()
                    if self._journal.passed(segment.barrier):
                        self.drop(segment)
                        continue
            kept.append(segment)
        self._journal.segments = kept
        return again

    def drop(self, segment: Segment) -> None:
        """Give the file of a segment back and free its extents. No queue may point into it."""
        journal = self._journal
        assert all(journal.arena.extent(number).live == 0 for number in segment.extents)
        self.queue_max = max(self.queue_max, segment.survey.queue_max)
        if segment.survey.records:
            journal.lost(segment.survey.last_seq)
        journal.files.retire(segment.name, segment.size)
        for number in segment.extents:
            journal.pager.remove(number)
        segment.extents.clear()

    def needed_bytes(self, segment: Segment, buried: int = EVERYTHING) -> int:
        """How much of its SETTLED and COUNTED records and of its tombstones is needed, because older segments may
        hold what they speak of; or its own rewritten form, if what was superseded has left the index only up to
        `buried`."""
        survey = segment.survey
        settled = counted = 0
        tombstones = survey.tombstone_bytes if buried < survey.tombstone_high else 0
        if survey.ends_bytes == 0:
            return 0
        for older in self._journal.segments:
            if older.id >= segment.id:
                break
            if not older.survey.messages:
                continue
            # While the files that it was made from are there, a compacted segment counts as one of them.
            busy = self._compactor.busy_with(older)
            if older.survey.first_seq <= survey.settled_high and older.last_seq >= survey.settled_low:
                counted = survey.counted_bytes
                if busy or older.compacted_upto < segment.last_seq:
                    settled = survey.settled_bytes
            if busy or older.buried_upto < survey.tombstone_high:
                tombstones = survey.tombstone_bytes
            if settled + counted + tombstones == survey.ends_bytes:
                break
        return settled + counted + tombstones
