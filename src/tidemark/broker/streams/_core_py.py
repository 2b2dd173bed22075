"""What a stream must know of each of its messages: the newest version of every key, and older ones while needed.

An *entry* stands for a message from the sequence it came with (`seq`) to the one that superseded it (`sup`,
EVERYTHING while it is current). Snapshot S sees it iff `seq <= S < sup`, so a snapshot is one number and
opening one changes nothing. A put under a key ends the current entry of that key; retention and the purge of
tombstones end entries likewise. What has ended waits in `_ended`, in the order of its end, until `release` may
remove it; what a held snapshot sees waits with that snapshot.

The place of a superseded entry is never read again, so superseding costs no look at the old message.

Invariant: `entries == live + tombstones + held`, and each entry holds one `retain` of its place in the arena.
"""

from __future__ import annotations

import json
from bisect import bisect_left, insort
from collections import deque
from collections.abc import Container, Iterator, Sequence
from dataclasses import dataclass
from typing import Any

from tidemark.broker._target_py import Target, census_of
from tidemark.model import records
from tidemark.model._arena_py import EVERYTHING, Arena
from tidemark.model._keys_py import (
    DIGEST_MASK,
    LOG,
    key_of,
    row_digest,
    says_tombstone,
    slot_of,
    slot_of_seq,
)
from tidemark.model._runs_py import Taken

ROW_TOMBSTONE = 4
"""Flag of a taken row: it deletes its key."""

EXAMINE_MAX = 65536
"""How many entries of a snapshot that is gone are looked at in one call, so that nothing waits long."""
COLD_MAX = 16
"""How many extents that are not in memory the rows of one `take` may lie in: each is read whole."""


@dataclass(slots=True, eq=False)
class Entry:
    ordinal: int
    seq: int
    loc: int
    size: int
    slot: int
    tombstone: bool
    """It deletes its key, and goes when all have seen that."""
    key: bytes | None
    ms: int
    sup: int = EVERYTHING
    deletes: bool = False
    """A tombstone of a log: a row like any other, which says of its key that it is to be deleted elsewhere."""


class StreamCore(Target):
    """The messages of one stream. `Stream` derives from it and adds what is decided once a declare."""

    LAYOUT = b"stream-py-2"
    """What `dump` writes; another one is not to be loaded."""

    def __init__(
        self, arena: Arena, number: int, key_kind: int, key_name: bytes, secret: bytes, dirty: list[Any]
    ) -> None:
        super().__init__(arena, number, True, dirty)
        if len(secret) != 16:
            raise ValueError("a secret of 16 bytes")
        self.keeps = True
        self.key_kind = key_kind
        self.key_name = key_name
        self.complete_from = 0
        """The lowest sequence at which a snapshot can still be opened exactly."""
        self.position = 0
        """How far the last `take` looked: go on after it."""
        self._secret = secret
        self._reset()

    def _reset(self) -> None:
        self.live = self.live_bytes = 0
        """Current values, what is not shown yet included; tombstones are not values."""
        self.tombstones = 0
        self.held = self.held_bytes = 0
        """What is superseded and still in the index."""
        self.last_seq = 0
        self._next_ordinal = 0
        self._entries: dict[int, Entry] = {}
        self._by_seq: dict[int, Entry] = {}
        self._keys: dict[bytes, Entry] = {}
        self._ended: deque[Entry] = deque()
        self._holds: dict[int, int] = {}
        self._hold_order: list[int] = []
        self._kept: dict[int, list[Entry]] = {}
        self._loose: deque[Entry] = deque()
        self._loose_floor = EVERYTHING
        self._buried = 0
        self._top_sup = 0
        self._ragged_upto = 0

    @property
    def entries(self) -> int:
        return len(self._entries)

    @property
    def loose(self) -> int:
        """Entries of snapshots that are gone which the next `release` looks at."""
        return len(self._loose)

    @property
    def first_seq(self) -> int:
        """The lowest sequence in the index; 0 if it is empty."""
        return next((entry.seq for entry in self._entries.values()), 0)

    @property
    def memory_bytes(self) -> int:
        """Roughly what the index takes in memory."""
        return 500 * len(self._entries)

    @property
    def buried_seq(self) -> int:
        """No entry with `sup` up to this one is in the index any more."""
        if not self.held:
            return self.arena.next_seq - 1
        return min(self._buried, self._loose_floor, *self._hold_order[:1])

    # In ----------------------------------------------------------------------------------------

    def put(
        self,
        seq: int,
        loc: int,
        size: int,
        _priority: int,
        _expires_ms: int,
        _flags: int,
        _deliveries: int = 0,
    ) -> None:
        """A message of this stream lies at `loc`: it supersedes the current one of its key."""
        if seq <= self.last_seq:
            return
        record = self.arena.record(loc)
        key = key_of(record, self.key_kind, self.key_name)
        tombstone = key is not None and says_tombstone(record)
        if tombstone and not record[5] & records.TOMBSTONE:
            start = (loc & 0xFFFFFFFF) + 5
            self.arena.extent_bytes(loc >> 32, start, start + 1)[0] |= records.TOMBSTONE
        ms = int.from_bytes(record[16:24], "little", signed=True)
        slot = slot_of_seq(seq) if key is None else slot_of(key)
        entry = Entry(self._next_ordinal, seq, loc, size, slot, tombstone, key, ms)
        if self.key_kind == LOG:
            key = entry.key = None
            entry.tombstone, entry.deletes = False, tombstone
        self._next_ordinal += 1
        if key is not None:
            before = self._keys.get(key)
            if before is not None and before.sup == EVERYTHING:
                self._end(before, seq)
            self._keys[key] = entry
        self._add(entry)
        self.last_seq = seq
        self.published += 1
        self.touch()

    def _add(self, entry: Entry) -> None:
        self._entries[entry.ordinal] = entry
        self._by_seq[entry.seq] = entry
        if entry.loc:
            self.arena.retain(entry.loc, entry.size)
        self._count(entry, 1)

    def _count(self, entry: Entry, sign: int) -> None:
        if entry.sup != EVERYTHING:
            self.held += sign
            self.held_bytes += sign * entry.size
        elif entry.tombstone:
            self.tombstones += sign
        else:
            self.live += sign
            self.live_bytes += sign * entry.size

    def restore(self, seq: int, loc: int, size: int, priority: int, expires_ms: int, deliveries: int) -> None:
        """Recovery: a message as the journal has it. One that is known already changes nothing."""
        published = self.published
        self.put(seq, loc, size, priority, expires_ms, 0, deliveries)
        self.published = published

    # Ends --------------------------------------------------------------------------------------

    def _end(self, entry: Entry, sup: int) -> None:
        """A current entry is superseded."""
        self._count(entry, -1)
        entry.sup = sup
        self._count(entry, 1)
        self._ended.append(entry)
        if sup < self._top_sup or sup <= self._buried:
            self._ragged(sup)
        self._top_sup = max(self._top_sup, sup)

    def _ragged(self, sup: int) -> None:
        """Something ended earlier than what stands before it: it goes late, and is no longer buried."""
        self._ragged_upto = self._top_sup
        self._buried = min(self._buried, sup - 1)

    def _end_as_of(self, entry: Entry, by_seq: int) -> bool:
        """End an entry at `by_seq`, unless it ended before. True if it was current."""
        if entry.sup == EVERYTHING:
            self._end(entry, by_seq)
            return True
        if by_seq < entry.sup:
            entry.sup = by_seq
            self._ragged(by_seq)
        return False

    def end_below(self, floor_seq: int, by_seq: int) -> int:
        """Retention: what is older than `floor_seq` ends, as if superseded by `by_seq`. Returns how many did."""
        ended = 0
        for entry in list(self._entries.values()):
            if entry.seq >= floor_seq:
                break
            ended += self._end_as_of(entry, by_seq)
        return ended

    def end_tombstones(self, upto_seq: int, by_seq: int) -> int:
        """Tombstones up to `upto_seq` end, as if superseded by `by_seq`. Returns how many did."""
        ended = 0
        for entry in list(self._entries.values()):
            if entry.seq > upto_seq:
                break
            if entry.tombstone:
                ended += self._end_as_of(entry, by_seq)
        return ended

    def oldest_tombstone(self) -> tuple[int, int] | None:
        """(seq, loc) of the oldest current tombstone."""
        for entry in self._entries.values():
            if entry.tombstone and entry.sup == EVERYTHING:
                return entry.seq, entry.loc
        return None

    def release(self, upto_seq: int, count_max: int = 1 << 62) -> int:
        """Remove what was superseded up to `upto_seq` and no held snapshot sees. Returns how many.

        Looks at `count_max` entries at most; with fewer looked at it went through to its end.
        """
        before, looked = len(self._entries), self._examine(min(count_max, EXAMINE_MAX))
        while looked < count_max and self._ended and self._ended[0].sup <= upto_seq:
            self._let_go(self._ended.popleft())
            looked += 1
        if not self._ended:
            self._ragged_upto = 0
        if looked < count_max and upto_seq >= self._ragged_upto:
            # What ends later is not buried by this, however far ahead `upto_seq` was.
            self._buried = max(self._buried, min(upto_seq, self.arena.next_seq - 1))
        return before - len(self._entries)

    def _examine(self, count_max: int) -> int:
        looked = 0
        while looked < count_max and self._loose:
            self._let_go(self._loose.popleft())
            looked += 1
        if not self._loose:
            self._loose_floor = EVERYTHING
        return looked

    def _let_go(self, entry: Entry) -> None:
        """An ended entry goes, or to the newest of the held snapshots that see it."""
        if entry.ordinal not in self._entries:
            return
        at = bisect_left(self._hold_order, entry.sup) - 1
        if at >= 0 and self._hold_order[at] >= entry.seq:
            self._kept[self._hold_order[at]].append(entry)
        else:
            self.complete_from = max(self.complete_from, entry.sup)
            self._remove(entry)

    def _remove(self, entry: Entry) -> None:
        self._count(entry, -1)
        del self._entries[entry.ordinal], self._by_seq[entry.seq]
        if entry.key is not None and self._keys.get(entry.key) is entry:
            del self._keys[entry.key]
        if entry.loc:
            self.arena.release(entry.loc, entry.size)

    # Snapshots -----------------------------------------------------------------------------------

    def hold(self, seq: int) -> None:
        """A snapshot at `seq` is open: what it sees stays until as many `unhold`."""
        if seq not in self._holds:
            insort(self._hold_order, seq)
            self._holds[seq] = 0
            self._kept[seq] = []
        self._holds[seq] += 1

    def unhold(self, seq: int) -> None:
        """Raises: KeyError: nobody holds it."""
        self._holds[seq] -= 1
        if self._holds[seq]:
            return
        del self._holds[seq]
        self._hold_order.remove(seq)
        kept = self._kept.pop(seq)
        if kept:
            self._loose.extend(kept)
            self._loose_floor = min(self._loose_floor, seq)
            self._examine(EXAMINE_MAX)

    def take(
        self,
        snapshot: int,
        after: int,
        until: int,
        count: int,
        bytes_max: int,
        slot_low: int = 0,
        slot_end: int = 65536,
    ) -> Taken | None:
        """Rows that `snapshot` sees with `after < seq <= until`, in order, at least one.

        Stops after `count` rows or the row that reaches `bytes_max`, or when the rows lie in more than COLD_MAX
        extents that reading them would bring back. `position` says how far it looked. None when there is
        nothing (more).
        """
        taken, size = Taken(0), 0
        cold, last_extent = 0, 0
        end = min(until, snapshot)
        self.position = max(after, end)
        if count < 1:
            self.position = after
            return None
        for entry in self._visible(snapshot, after, end, slot_low, slot_end):
            extent = entry.loc >> 32
            if extent and extent != last_extent:
                last_extent = extent
                cold += not self.arena.extent(extent).resident
                if cold > COLD_MAX and len(taken):
                    self.position = entry.seq - 1
                    break
            flags = ROW_TOMBSTONE if entry.tombstone or entry.deletes else 0
            taken.add(entry.ordinal, entry.seq, entry.loc, entry.size, flags, entry.slot)
            size += entry.size
            if len(taken) == count or size >= bytes_max:
                self.position = entry.seq
                break
        return taken if len(taken) else None

    def tally(
        self, snapshot: int, after: int, until: int, slot_low: int = 0, slot_end: int = 65536
    ) -> tuple[int, int, int]:
        """How many values and tombstones `take` would give, and the bytes of their bodies."""
        values = tombstones = size = 0
        for entry in self._visible(snapshot, after, min(until, snapshot), slot_low, slot_end):
            deletes = entry.tombstone or entry.deletes
            values += not deletes
            tombstones += deletes
            size += entry.size
        return values, tombstones, size

    def cut(
        self,
        snapshot: int,
        after: int,
        until: int,
        rows_max: int,
        bytes_max: int,
        rows: int,
        size: int,
        pieces_max: int,
        look_max: int,
        slot_low: int = 0,
        slot_end: int = 65536,
        wanted: bytes | bytearray | None = None,
    ) -> tuple[list[tuple[int, int, int]], int, int]:
        """Count what `take` would give, and cut it where a piece would have too many rows or bytes.

        `rows` and `size` are what the piece has that is open; both are given back as they are at the end, behind
        the pieces that are complete: (sequence of its last row, rows, bytes). Looks at `look_max` entries, and
        finds `pieces_max` pieces, at most; `position` says how far it came. `wanted` has a 1 for every slot that
        counts.
        """
        pieces: list[tuple[int, int, int]] = []
        end = min(until, snapshot)
        last, looked = after, 0
        self.position = max(after, end)
        for entry in self._entries.values():
            if entry.seq <= after:
                continue
            if entry.seq > end:
                break
            if looked == look_max:
                self.position = last
                break
            looked += 1
            is_wanted = slot_low <= entry.slot < slot_end and (wanted is None or wanted[entry.slot])
            if snapshot < entry.sup and is_wanted:
                if rows and (rows >= rows_max or size + entry.size > bytes_max):
                    pieces.append((last, rows, size))
                    rows = size = 0
                    if len(pieces) >= pieces_max:
                        self.position = last
                        break
                rows += 1
                size += entry.size
            last = entry.seq
        return pieces, rows, size

    def _visible(self, snapshot: int, after: int, end: int, slot_low: int, slot_end: int) -> Iterator[Entry]:
        for entry in self._entries.values():
            if entry.seq > end:
                return
            if entry.seq > after and snapshot < entry.sup and slot_low <= entry.slot < slot_end:
                yield entry

    def kept(self, snapshot: int) -> tuple[int, int]:
        """Number and bytes of superseded entries that a snapshot sees: what it costs to keep."""
        seen = [e.size for e in self._visible(snapshot, 0, snapshot, 0, 65536) if e.sup != EVERYTHING]
        return len(seen), sum(seen)

    def digest(self, taken: Taken) -> int:
        """What these rows add to the hash of a snapshot."""
        total = 0
        for _, seq, _, _, flags, _ in taken:
            record = self.arena.record(self.place(seq))
            body = records.decode_message(record).body
            key = key_of(record, self.key_kind, self.key_name)
            total += row_digest(seq, bool(flags & ROW_TOMBSTONE), key, body)
        return total & DIGEST_MASK

    # One by one ------------------------------------------------------------------------------------

    def current(self, key: bytes) -> tuple[int, int, bool] | None:
        """(seq, loc, is a tombstone) of the newest version of a key, shown or not."""
        entry = self._keys.get(key)
        if entry is None or entry.sup != EVERYTHING:
            return None
        return entry.seq, entry.loc, entry.tombstone

    def find(self, key: bytes, snapshot: int) -> tuple[int, int, bool] | None:
        """(seq, loc, is a tombstone) of the version of a key that a snapshot sees."""
        for entry in self._visible(snapshot, 0, snapshot, 0, 65536):
            if entry.key == key:
                return entry.seq, entry.loc, entry.tombstone
        return None

    def key_at(self, loc: int) -> bytes | None:
        """The key of the record at `loc` in this stream."""
        return key_of(self.arena.record(loc), self.key_kind, self.key_name)

    def seq_at(self, ms: int) -> int:
        """The last sequence here that was accepted at or before `ms`; 0 if none was."""
        return max((entry.seq for entry in self._entries.values() if entry.ms <= ms), default=0)

    def place(self, seq: int) -> int:
        """Where the record of this entry lies now.

        Raises:
            KeyError: it is gone.
        """
        return self._by_seq[seq].loc

    def above(self, seq: int) -> tuple[int, int] | None:
        """Where the record of the first entry above `seq` lies, and its sequence. None: there is none with its bytes."""
        later = [entry for entry in self._entries.values() if entry.seq > seq]
        first = min(later, key=lambda entry: entry.seq, default=None)
        return None if first is None or not first.loc else (first.loc, first.seq)

    def holds(self, seq: int) -> bool:
        """Whether this entry is still here, current or superseded."""
        return seq in self._by_seq

    def relocate(self, seq: int, loc: int) -> bool:
        """The record of this entry lies elsewhere now. False if the entry is gone."""
        entry = self._by_seq.get(seq)
        if entry is None:
            return False
        self.arena.retain(loc, entry.size)
        if entry.loc:
            self.arena.release(entry.loc, entry.size)
        entry.loc = loc
        return True

    def clear(self) -> None:
        """The stream is deleted: every entry ends, without a record (the catalog says it all)."""
        self._empty()
        self.deleted = True

    def _empty(self) -> None:
        for entry in self._entries.values():
            if entry.loc:
                self.arena.release(entry.loc, entry.size)
        holds = dict(self._holds)
        self._reset()
        for seq, count in holds.items():
            for _ in range(count):
                self.hold(seq)

    def census(self) -> tuple[int, int]:
        """Of the values that nothing has superseded: how many, and the sum of the hashes of their sequences. How long what
        is superseded or deleted is still remembered is every member's own business."""
        entries = self._entries.values()
        return census_of(entry.seq for entry in entries if entry.sup == EVERYTHING and not entry.tombstone)

    # Checkpoints -------------------------------------------------------------------------------------

    def dump(self) -> list[bytes]:
        """What `load` needs to have these entries again. Who holds which snapshot is not part of it."""
        entries = [
            (e.ordinal, e.seq, e.loc, e.size, e.slot, e.tombstone, _hex(e.key), e.ms, e.sup, e.deletes)
            for e in self._entries.values()
        ]
        head = (self.last_seq, self._next_ordinal, self.complete_from)
        return [json.dumps((head, entries)).encode()]

    def load(self, parts: Sequence[bytes | memoryview]) -> None:
        """Become what `dump` saw. Of an empty list: become empty."""
        self._empty()
        self.complete_from = 0
        if not parts:
            return
        head, entries = json.loads(bytes(parts[0]))
        self.last_seq, self._next_ordinal, self.complete_from = head
        for ordinal, seq, loc, size, slot, tombstone, key, ms, sup, deletes in entries:
            name = None if key is None else bytes.fromhex(key)
            entry = Entry(ordinal, seq, loc, size, slot, tombstone, name, ms, sup, deletes)
            self._add(entry)
            if name is not None and sup == EVERYTHING:
                self._keys[name] = entry
        self._ended.extend(
            sorted((e for e in self._entries.values() if e.sup != EVERYTHING), key=lambda e: e.sup)
        )
        if self._ended:
            self._top_sup = self._ended[-1].sup

    def drop_missing(self, gone: Container[int]) -> int:
        """Remove every entry whose extent is one of `gone`. Returns how many."""
        missing = [entry for entry in self._entries.values() if entry.loc >> 32 in gone]
        for entry in missing:
            if entry.sup != EVERYTHING:
                self.complete_from = max(self.complete_from, entry.sup)
            self._remove(entry)
        return len(missing)


def _hex(key: bytes | None) -> str | None:
    return None if key is None else key.hex()
