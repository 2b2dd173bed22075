"""Reading a log for somebody who follows it: frame by frame, without the heads, as they lie there.

A *unit* is the records of one frame, or of several small ones (`joined`) for somebody who is far behind. Whoever follows asks for what comes behind the last sequence that he has, and
asks again behind what he was given. Frames that are in memory are given as they lie there, others are read back
from the disk and checked; of these only one extent is kept, so that slow readers cost no memory. Where a reader
stands is remembered, so that reading goes on without a search.

From `log_start` on a log is whole. Behind an earlier sequence one can only go on if one began at 0: then everything
that is kept is given, and in place of the first record that is not, a HISTORIES record says from where on the log is
whole and which histories there were. When more is lost, who had not come that far must begin again: the record of an end that he
needs may be gone with the message that it ended.

Invariant: what is given behind a sequence, from `log_start` on, is every record that the log ever had there.
"""

from __future__ import annotations

from collections import deque
from dataclasses import dataclass
from typing import TYPE_CHECKING

from tidemark.errors import CorruptRecord, LogGone
from tidemark.model import records
from tidemark.model.peers import Log, Unit
from tidemark.store.frames import FRAME, FRAME_BYTES, MORE, PROBLEMS, scan, walk
from tidemark.store.pager import Place
from tidemark.store.segment import HEAD_BYTES, Segment

if TYPE_CHECKING:
    from tidemark.store.catalog_log import CatalogLog
    from tidemark.store.journal import Journal

__all__ = ["CatalogUnits", "JournalUnits", "Unit"]

CURSORS_MAX = 32
JOINED_BYTES = 64 << 10
"""How large frames become that are joined. What one costs beside its bytes is little then."""
CHUNK_BYTES = 256 << 10
OPENING = (records.RecordType.TAKEOVER, records.RecordType.HISTORIES)
TAIL_BYTES = 256 << 10
"""How much of the catalog log is kept in memory when it is durable: members that follow closely need no disk."""


class Units:
    """What both logs have in common."""

    LOG: Log

    def __init__(self, log: Journal | CatalogLog) -> None:
        self._log = log
        self._copies: dict[int, bool] = {}
        """Where readers stand that began at 0 and have not come to where the log is whole; and whether they were told
        what is missing."""

    def after(self, seq: int, budget_bytes: int) -> list[Unit]:
        """What comes behind this sequence: about so many bytes, one unit at least if there is one.

        The payloads are good until anything else is done with the store.

        Raises:
            LogGone: not everything behind it is there any more.
            CorruptRecord: what is on the disk is not what was written.
        """
        start = self._log.log_start
        if seq >= start:
            return self._read(seq, budget_bytes)[0]
        if seq and seq not in self._copies:
            raise LogGone(log=self.LOG.name, seq=seq, start=start)
        units, ended = self._read(seq, budget_bytes)
        units, told = self._bridged(seq, start, units, ended)
        if units and units[-1].last < start:
            self._copies[units[-1].last] = told
        return units

    def _bridged(self, seq: int, start: int, units: list[Unit], ended: bool) -> tuple[list[Unit], bool]:
        """Say in place of the first record that is missing what is not there; and go on to where the log is whole."""
        told = self._copies.get(seq, False)
        bridged: list[Unit] = []
        for unit in units:
            if not told and seq < start:
                at, free = self._first_gap(seq, unit, start)
                told = free > 0
                if at:
                    bridged.append(
                        Unit(self.LOG, seq, unit.first, _last_seq(unit.payload[:at]), unit.payload[:at])
                    )
                    seq = bridged[-1].last
                    unit.first, unit.payload = records.record_seq(unit.payload, at), unit.payload[at:]
                if told:
                    bridged.append(self._histories(seq, free, start))
                    seq = free
            unit.previous = seq
            bridged.append(unit)
            seq = unit.last
        if ended and seq < start:
            bridged.append(self._histories(seq, start, start))
        return bridged, told

    def _first_gap(self, seq: int, unit: Unit, start: int) -> tuple[int, int]:
        """(where in the unit, which sequence up to `start`) the first one is that no record has; 0 if none is free."""
        if unit.first > seq + 1:
            return 0, min(unit.first - 1, start)
        after = seq
        for at, _, _, first, targets in walk(unit.payload, 0, len(unit.payload)):
            if first > after + 1 and after < start:
                return at, min(first - 1, start)
            after = first + max(targets, 1) - 1
        return 0, 0

    def _histories(self, previous: int, seq: int, start: int) -> Unit:
        table = [row for row in self._log.histories if row[1] <= start]
        record = records.encode_histories(seq, 0, start, table)
        return Unit(self.LOG, previous, seq, seq, memoryview(record))

    def lost(self, upto: int) -> None:
        """Records up to here are no longer all there: who has not come so far cannot go on."""
        self._copies = {seq: told for seq, told in self._copies.items() if seq >= upto}

    def _read(self, seq: int, budget_bytes: int) -> tuple[list[Unit], bool]:
        """The units behind this sequence, and whether these are all."""
        raise NotImplementedError

    def _unit(self, after: int, data: memoryview, at: int) -> Unit | None:
        """The unit in the frame at this offset, as far as it comes behind `after`; None if nothing does."""
        _, _, length, count, first, last, *_ = FRAME.unpack_from(data, at)
        if not count or last <= after:
            return None
        start = at + FRAME_BYTES
        if first <= after:
            start, first = next((row[0], row[3]) for row in walk(data, start, at + length) if row[3] > after)
        return Unit(self.LOG, after, first, last, data[start : at + length])


def _last_seq(payload: memoryview) -> int:
    *_, (_, _, _, seq, targets) = walk(payload, 0, len(payload))
    return seq + max(targets, 1) - 1


def joined(units: list[Unit]) -> list[Unit]:
    """The same records in fewer units: small ones that follow one another become one, which is copied.

    A frame is still whole wherever it goes. The record that opens a history stays alone in its own.
    """
    found: list[Unit] = []
    row: list[Unit] = []
    size = 0
    for unit in units:
        opens = records.record_type(unit.payload) in OPENING
        if row and (opens or size + len(unit.payload) > JOINED_BYTES):
            found.append(_one(row))
            row, size = [], 0
        if opens:
            found.append(unit)
        else:
            row.append(unit)
            size += len(unit.payload)
    if row:
        found.append(_one(row))
    return found


def _one(row: list[Unit]) -> Unit:
    if len(row) == 1:
        return row[0]
    payload = memoryview(b"".join([unit.payload for unit in row]))
    return Unit(row[0].log, row[0].previous, row[0].first, row[-1].last, payload)


# The journal -------------------------------------------------------------------------------------


@dataclass(slots=True)
class _Stand:
    """Where the next frame for a reader of the journal begins."""

    segment: Segment
    index: int
    number: int
    place: Place
    offset: int


class JournalUnits(Units):
    LOG = Log.JOURNAL
    _log: Journal

    def __init__(self, journal: Journal) -> None:
        super().__init__(journal)
        self._stands: dict[int, _Stand] = {}
        """By the sequence up to which somebody has read."""
        self._paged: tuple[Place | None, memoryview] = None, memoryview(b"")
        """The extent that was read back last."""

    def _read(self, seq: int, budget_bytes: int) -> tuple[list[Unit], bool]:
        stand = self._stand(seq)
        units: list[Unit] = []
        if stand is None:
            return units, True
        left, after, ended = budget_bytes, seq, False
        while not units or left > 0:
            at, used = stand.offset, stand.place.used
            if at < used:
                data = self._bytes(stand)
                while at < used and (not units or left > 0):
                    unit = self._unit(after, data, at)
                    at += FRAME.unpack_from(data, at)[2]
                    if unit is not None:
                        units.append(unit)
                        left -= len(unit.payload)
                        after = unit.last
                stand = _Stand(stand.segment, stand.index, stand.number, stand.place, at)
            if at < used:
                break
            following = self._following(stand)
            if following is None:
                ended = True
                break
            stand = following
        self._stands.pop(after, None)
        self._stands[after] = stand
        if len(self._stands) > CURSORS_MAX:
            del self._stands[next(iter(self._stands))]
        return units, ended

    def _stand(self, seq: int) -> _Stand | None:
        """Where to read on behind this sequence; None if there is nothing."""
        stand = self._stands.get(seq)
        if stand is not None and self._is_there(stand):
            return stand
        found = None
        for segment in reversed(self._log.segments):
            if segment.survey.records and segment.survey.last_seq <= seq:
                break
            if segment.survey.records:
                found = segment
        if found is None:
            return None
        for index, number in enumerate(found.extents):
            place = self._log.pager.places[number]
            if place.last_seq > seq:
                return _Stand(found, index, number, place, 0)
        return None

    def _is_there(self, stand: _Stand) -> bool:
        """Whether the extent is still the one that it was."""
        extents = stand.segment.extents
        return (
            self._log.pager.places.get(stand.number) is stand.place
            and stand.index < len(extents)
            and extents[stand.index] == stand.number
        )

    def _following(self, stand: _Stand) -> _Stand | None:
        """The beginning of the next extent, if there is one."""
        segment, index = stand.segment, stand.index + 1
        if index >= len(segment.extents):
            found = None
            for later in reversed(self._log.segments):
                if later.id <= segment.id:
                    break
                if later.extents:
                    found = later
            if found is None:
                return None
            segment, index = found, 0
        number = segment.extents[index]
        return _Stand(segment, index, number, self._log.pager.places[number], 0)

    def _bytes(self, stand: _Stand) -> memoryview:
        arena = self._log.arena
        if arena.extent(stand.number).resident:
            return arena.extent_bytes(stand.number, 0, stand.place.used)
        if self._paged[0] is not stand.place:
            self._paged = stand.place, memoryview(self._log.pager.read(stand.number))
        return self._paged[1]


# The catalog log -----------------------------------------------------------------------------------


@dataclass(slots=True)
class _Spot:
    """Where the next frame of the catalog log is on the disk."""

    segment: Segment
    offset: int
    previous: int


class CatalogUnits(Units):
    LOG = Log.CATALOG
    _log: CatalogLog

    def __init__(self, catalog: CatalogLog) -> None:
        super().__init__(catalog)
        self._tail: deque[Unit] = deque()
        """The last frames, those that are not durable yet among them."""
        self._tail_bytes = 0
        self._spots: dict[int, _Spot] = {}

    def add(self, frame: memoryview) -> None:
        """A frame was sealed."""
        before = self._tail[-1].last if self._tail else self._log.end_seq
        unit = self._unit(before, frame, 0)
        assert unit is not None
        self._tail.append(unit)
        self._tail_bytes += len(frame)

    def trim(self) -> None:
        """Let go of what is durable, but for the last of it."""
        tail = self._tail
        while self._tail_bytes > TAIL_BYTES and tail[0].last <= self._log.durable_seq:
            self._tail_bytes -= FRAME_BYTES + len(tail.popleft().payload)

    def clear(self) -> None:
        """The log was replaced."""
        self._tail.clear()
        self._spots.clear()
        self._tail_bytes = 0

    def _read(self, seq: int, budget_bytes: int) -> tuple[list[Unit], bool]:
        in_memory = self._tail[0].previous if self._tail else self._log.end_seq
        units = self._read_disk(seq, in_memory, budget_bytes) if seq < in_memory else []
        if units:
            return units, False
        for unit in reversed(self._tail):
            if unit.last <= seq:
                break
            units.append(unit)
        left = budget_bytes
        for count, unit in enumerate(reversed(units)):
            if count and left <= 0:
                return [self._again(one, seq) for one in units[: -count - 1 : -1]], False
            left -= len(unit.payload)
        return [self._again(one, seq) for one in reversed(units)], True

    def _again(self, unit: Unit, seq: int) -> Unit:
        """A unit of the tail for one reader; in part, if that has read some of it."""
        first, payload = unit.first, unit.payload
        if first <= seq:
            start, first = next((row[0], row[3]) for row in walk(payload, 0, len(payload)) if row[3] > seq)
            payload = payload[start:]
        return Unit(self.LOG, max(unit.previous, seq), first, unit.last, payload)

    def _read_disk(self, seq: int, upto: int, budget_bytes: int) -> list[Unit]:
        """Some of what was let go of, which ends at `upto`."""
        spot = self._spots.get(seq) or self._spot(seq, upto)
        units: list[Unit] = []
        after, want = seq, CHUNK_BYTES
        while spot is not None and after < upto and (not units or budget_bytes > 0):
            segment = spot.segment
            data = self._log.disk.read(segment.name, spot.offset, min(want, segment.used - spot.offset))
            found = scan(data, segment.place(spot.offset), spot.previous)
            for start, _ in found.frames:
                unit = self._unit(after, memoryview(data), start)
                if unit is not None and unit.last <= upto:
                    units.append(unit)
                    budget_bytes -= len(unit.payload)
                    after = unit.last
            spot = _Spot(segment, spot.offset + found.position, found.crc)
            if after >= upto:
                break
            if found.stop == MORE and found.need > len(data) - found.position:
                want = found.need
                if found.need <= segment.used - spot.offset:
                    continue
            if spot.offset >= segment.used:
                spot = self._next_spot(segment, upto)
            elif not found.frames or found.stop != MORE:
                raise CorruptRecord(
                    path=segment.name,
                    offset=spot.offset,
                    problem=PROBLEMS.get(found.stop, "the segment ends early"),
                )
        if spot is not None:
            self._spots.pop(after, None)
            self._spots[after] = spot
            if len(self._spots) > CURSORS_MAX:
                del self._spots[next(iter(self._spots))]
        return units

    def _spot(self, seq: int, upto: int) -> _Spot | None:
        """The beginning of the segment in which the record behind this sequence is, if that is not behind `upto`."""
        found = None
        for segment in reversed(self._log.segments):
            if segment.survey.records and segment.survey.last_seq <= seq:
                break
            if segment.survey.first_seq <= upto:
                found = segment
        return None if found is None else _Spot(found, HEAD_BYTES, found.crc)

    def _next_spot(self, segment: Segment, upto: int) -> _Spot | None:
        """The beginning of the next segment with records up to `upto`: later ones may not be on the disk yet."""
        for later in self._log.segments:
            if later.id > segment.id and later.survey.first_seq <= upto:
                return _Spot(later, HEAD_BYTES, later.crc)
        return None
