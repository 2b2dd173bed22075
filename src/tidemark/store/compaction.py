"""Compaction: rewriting segments that are mostly dead, in slices, while everything goes on.

    copy      records that are still needed go, in order, into a temporary file; synced every few megabytes
    settle    wait until the ends of the records that were left out are durable
    name      the file becomes `seg-<lowest id>-<generation + 1>`, which hides the old ones from a restart
    move      queue entries are told the new places, some thousand at a time
    drop      the old files are nobody's any more

A MESSAGE is needed while one of its targets holds it; targets that are gone become queue 0, which nobody
has. The record of an end (SETTLED) is needed while an older segment, not compacted since, may hold what it
speaks of; COUNTED while its queue holds one of its messages. A tombstone that its stream holds no more is
needed, with its target named, while its own or an older segment may hold a version of its key: until each
was compacted at a time when everything that the tombstone superseded had left the index (`buried_upto`;
a pin may keep an old version long after). A kill at any point leaves a temporary file, or old segments that
are hidden: recovery removes both.

Tombstones that wait for older segments are waste. When they take as much room as compaction would allow the
older segments to waste, these are rewritten, however full of life they are, and the tombstones can go.

Invariant: at every moment a restart would find each message that a queue or stream holds, and none whose end
is durable.
"""

from __future__ import annotations

from array import array
from dataclasses import dataclass, field
from enum import Enum
from typing import TYPE_CHECKING

from tidemark.errors import CorruptRecord, DiskFull
from tidemark.model import records
from tidemark.model.arena import EVERYTHING, JOURNAL
from tidemark.ports import Residents
from tidemark.store.frames import END, FRAME, FRAME_BYTES, NO_SEQ, Survey, seal, sift, survey
from tidemark.store.pager import Place
from tidemark.store.segment import HEAD_BYTES, JOURNAL_PREFIX, Barrier, Segment

if TYPE_CHECKING:
    from tidemark.store.journal import Journal

SYNC_BYTES = 8 << 20
"""How much is written between syncs: one large sync would hold up the journal's."""
MOVES_PER_SLICE = 2048
LOOK_AT_EXTENTS = 256
"""How many extents one slice looks at when it searches for garbage."""
INPUTS_MAX = 8
RETRY_MS = 1000
"""How long to wait after the disk was full."""
LOOK_AGAIN_MS = 1000
"""How often to look for tombstones that wait for older segments."""

SMALL = 16
"""A segment that needs less than this fraction of the usual size is merged with its like."""

MESSAGE_OVERHEAD = 96
"""About what a message takes beside its body."""


class Phase(Enum):
    COPY = "copy"
    SETTLE = "settle"
    MOVE = "move"


@dataclass(slots=True)
class Job:
    inputs: list[Segment]
    output: Segment
    temporary: str
    barrier: Barrier | None = None
    phase: Phase = Phase.COPY
    todo: list[int] = field(default_factory=list)
    """Extents that are still to be copied, last first."""
    frame: bytearray = field(default_factory=lambda: bytearray(FRAME_BYTES))
    frame_moves: list[tuple[int, int, int]] = field(default_factory=list)
    previous: int = 0
    idle: int = 0
    """Tombstones that were kept although no stream holds them."""
    unsynced: int = 0
    pieces: list[tuple[int, int, int, int]] = field(default_factory=list)
    """(offset, length, previous checksum, last sequence) of what will be extents."""
    moves: array[int] = field(default_factory=lambda: array("Q"))
    """queue, sequence, piece << 32 | offset; three numbers for every entry that moves"""
    moved: int = 0
    numbers: list[int] = field(default_factory=list)


class Compactor:
    def __init__(self, journal: Journal) -> None:
        self.finished = 0
        self.bytes_in = 0
        self._journal = journal
        self._job: Job | None = None
        self._cursor = 0
        self._last_ms = 0
        self._allowance = 0
        self._retry_ms = 0
        self._use_reserve = False
        self._buried = 0
        """What was superseded up to here had left the index when segments were looked at last."""
        self._looked_ms = 0

    def busy_with(self, segment: Segment) -> bool:
        return self._job is not None and (
            segment is self._job.output or any(segment is other for other in self._job.inputs)
        )

    @property
    def moving(self) -> bool:
        return self._job is not None and self._job.phase is Phase.MOVE

    def step(self, residents: Residents, now_ms: int, budget_bytes: int) -> None:
        """Go on for about `budget_bytes` of input, within the limit per second."""
        rate = self._journal.config.compact_bytes_per_s
        gained = max(0, now_ms - self._last_ms) * rate // 1000
        self._last_ms = now_ms
        # A segment's worth may be saved up, so that a late call does not slow it down.
        self._allowance = min(self._allowance + gained, self._journal.config.segment_bytes)
        budget = min(budget_bytes, self._allowance)
        if now_ms < self._retry_ms:
            return
        if self._job is None:
            self._job = self._choose(residents, now_ms)
        job = self._job
        if job is None:
            return
        try:
            if job.phase is Phase.COPY:
                self._allowance -= self._copy(job, residents, now_ms, budget)
            if job.phase is Phase.SETTLE:
                self._settle(job)
            elif job.phase is Phase.MOVE:
                self._move(job, residents)
        except DiskFull:
            self._give_up(job)
            self._use_reserve = True
            self._retry_ms = now_ms + RETRY_MS
        except CorruptRecord as problem:
            self._give_up(job)
            # The segment stays as it is: its good messages are served, and whoever reads a bad one is told.
            for segment in job.inputs:
                segment.damaged = segment.damaged or segment.name == problem.path
            self._journal.damage.append(problem)

    # Choosing ----------------------------------------------------------------------------------

    def _choose(self, residents: Residents, now_ms: int) -> Job | None:
        """Look at some segments for garbage, going round; neighbours are taken together."""
        journal = self._journal
        segments = journal.segments
        self._buried = min(residents.buried_seq(), journal.recorded_seq)
        blocking = self._blocks_tombstones(now_ms)
        if blocking is not None:
            return self._begin([blocking], now_ms)
        looked = 0
        for _ in range(len(segments)):
            if looked > LOOK_AT_EXTENTS:
                break
            index = self._cursor % len(segments)
            self._cursor = index + 1
            inputs: list[Segment] = []
            total = 0
            for segment in segments[index : index + INPUTS_MAX]:
                looked += len(segment.extents) + 1
                needed = self._worthwhile(segment, now_ms)
                if needed is None or total + needed > journal.config.segment_bytes // 2:
                    break
                inputs.append(segment)
                total += needed
            if len(inputs) > 1 or (inputs and self._is_garbage(inputs[0], total)):
                return self._begin(inputs, now_ms)
        return None

    def _blocks_tombstones(self, now_ms: int) -> Segment | None:
        """A segment to rewrite because too many tombstones that nobody holds wait for it and its like."""
        journal = self._journal
        if journal.full or 0 <= now_ms - self._looked_ms < LOOK_AGAIN_MS:
            return None
        self._looked_ms = now_ms
        waste = highest = blocking = 0
        lowest = EVERYTHING
        blockers: list[Segment] = []
        for segment in journal.segments:
            high = segment.survey.tombstone_high
            empty = segment.empty == len(segment.extents)
            idle = segment.survey.tombstone_bytes if empty else segment.idle_bytes
            if segment.sealed and idle and lowest < high <= self._buried:
                # What was seen so far is older.
                waste += idle
                highest = max(highest, high)
                blocking = len(blockers)
            if segment.survey.messages:
                lowest = min(lowest, segment.buried_upto)
                blockers.append(segment)
        blockers = [segment for segment in blockers[:blocking] if segment.buried_upto < highest]
        cost = sum(segment.used for segment in blockers)
        if not blockers or waste * 100 < cost * journal.config.compact_garbage_percent:
            return None
        if not all(self._can_be_rewritten(segment) for segment in blockers):
            return None
        return blockers[0]

    def _can_be_rewritten(self, segment: Segment) -> bool:
        return segment.sealed and not segment.damaged and segment.ticket <= self._journal.completed_ticket

    def _worthwhile(self, segment: Segment, now_ms: int) -> int | None:
        """About how many bytes a rewrite would keep; None if the segment is better left alone."""
        journal = self._journal
        if not self._can_be_rewritten(segment):
            return None
        live = live_bytes = 0
        for number in segment.extents:
            info = journal.arena.extent(number)
            live += info.live
            live_bytes += info.live_bytes
        needed = self._estimate(segment, live, live_bytes)
        if not (needed < journal.config.segment_bytes // SMALL or self._is_garbage(segment, needed)):
            return None
        return needed if self._is_quiet(segment, live, now_ms) or journal.full else None

    def _is_quiet(self, segment: Segment, live: int, now_ms: int) -> bool:
        """Whether about as many entries are in it as some time ago: one that is being read goes by itself."""
        if segment.seen_live < 0 or live < segment.seen_live * 9 // 10:
            segment.seen_live, segment.seen_ms = live, now_ms
        return now_ms - segment.seen_ms >= self._journal.config.compact_quiet_ms

    def _estimate(self, segment: Segment, live: int, live_bytes: int) -> int:
        found = segment.survey
        plain = found.messages - found.tombstones
        average = (segment.used - HEAD_BYTES - found.ends_bytes) // max(plain, 1)
        # Which of the entries are tombstones is not known here; they are the smaller ones.
        estimate = min(live, plain) * average
        if live > plain:
            estimate += (live - plain) * found.tombstone_bytes // max(found.tombstones, 1)
        if not segment.compacted:
            # Bodies of uneven size. A compacted segment is not judged by this: a wrong guess would have it
            # rewritten for ever.
            estimate = min(estimate, live_bytes + live * MESSAGE_OVERHEAD)
        needed = self._journal.reclaimer.needed_bytes(segment, self._buried if live else EVERYTHING)
        if segment.compacted and live:
            # Delivery counts go along with their messages.
            needed = max(needed, found.counted_bytes)
        return min(estimate, segment.used) + needed

    def _is_garbage(self, segment: Segment, needed: int) -> bool:
        size = segment.size
        if segment.compacted:
            # What a rewrite would write again, whatever it leaves out, is no garbage.
            size -= HEAD_BYTES + FRAME_BYTES * (len(segment.extents) + 1)
        return (size - needed) * 100 >= size * self._journal.config.compact_garbage_percent

    def _begin(self, inputs: list[Segment], now_ms: int) -> Job:
        journal = self._journal
        output = Segment(
            prefix=JOURNAL_PREFIX,
            id=inputs[0].id,
            generation=max(segment.generation for segment in inputs) + 1,
            low=inputs[0].low,
            high=inputs[-1].high,
            size=0,
            store=journal.files.store,
            base_seq=inputs[0].base_seq,
            compacted_upto=journal.recorded_seq,
            buried_upto=self._buried,
            start=inputs[-1].start,
            salt=journal.files.salt(),
            made_ms=now_ms,
            histories=inputs[-1].histories,
            compacted=True,
        )
        job = Job(inputs, output, f"tmp-{output.name}")
        job.todo = [number for segment in inputs for number in segment.extents][::-1]
        return job

    # Copying -------------------------------------------------------------------------------------

    def _copy(self, job: Job, residents: Residents, now_ms: int, budget: int) -> int:
        used = 0
        while job.todo and used < budget:
            number = job.todo.pop()
            used += self._copy_extent(job, number, residents, now_ms)
        if not job.todo:
            self._write_frame(job, now_ms)
            if job.pieces:
                end = bytearray(FRAME_BYTES)
                where = job.output.place(job.output.used)
                seal(memoryview(end), where, now_ms, 0, job.previous, END, Survey())
                self._write(job, bytes(end))
                self._journal.files.disk.truncate(job.temporary, job.output.used)
                self._journal.files.disk.sync(job.temporary)
            job.barrier = self._journal.barrier()
            job.phase = Phase.SETTLE
        self.bytes_in += used
        return used

    def _copy_extent(self, job: Job, number: int, residents: Residents, now_ms: int) -> int:
        journal = self._journal
        info = journal.arena.extent(number)
        if not info.live and not journal.pager.places[number].ends:
            return FRAME_BYTES
        data = (
            journal.arena.extent_bytes(number, 0, info.used) if info.resident else journal.pager.read(number)
        )
        holds = residents.holds if info.live else None

        def keeps_end(kind: int, seq: int, record: bytes) -> bool:
            if kind == records.RecordType.SETTLED:
                return self._is_needed(job, record, seq)
            queue, counts = records.decode_counted(record)
            return any(residents.holds(queue, message) for message, _ in counts)

        def keeps_tombstone(target: int, seq: int) -> bool:
            needed = residents.buries(target) and self._may_be_undone(job, seq)
            job.idle += needed
            return needed

        at = 0
        while at < info.used:
            end = at + FRAME.unpack_from(data, at)[2]
            sift(data, at + FRAME_BYTES, end, holds, keeps_end, keeps_tombstone, job.frame, job.frame_moves)
            if len(job.frame) >= journal.extent_bytes:
                self._write_frame(job, now_ms)
            at = end
        return info.used

    def _is_needed(self, job: Job, record: bytes, seq: int) -> bool:
        """Whether an older segment may still hold what this SETTLED record speaks of."""
        found = Survey()
        survey(record, 0, len(record), found)
        if found.settled_low == NO_SEQ:
            return False
        for older in self._journal.segments:
            if older.id >= job.output.id:
                return False
            if (
                older.compacted_upto < seq
                and older.survey.first_seq <= found.settled_high
                and older.last_seq >= found.settled_low
            ):
                return True
        return False

    def _may_be_undone(self, job: Job, seq: int) -> bool:
        """Whether this or an older segment may hold what the tombstone with this sequence superseded."""
        if job.output.buried_upto < seq:
            return True
        for older in self._journal.segments:
            if older.id >= job.output.id:
                return False
            if older.survey.messages and older.buried_upto < seq:
                return True
        return False

    def _write_frame(self, job: Job, now_ms: int) -> None:
        if len(job.frame) <= FRAME_BYTES:
            return
        if not job.pieces:
            self._start_file(job)
        output = job.output
        before = job.previous
        view = memoryview(job.frame)
        job.previous, last_seq = seal(view, output.place(output.used), now_ms, 0, before, 0, output.survey)
        view.release()
        piece = len(job.pieces)
        job.pieces.append((output.used, len(job.frame), before, last_seq))
        for queue, seq, offset in job.frame_moves:
            job.moves.extend((queue, seq, piece << 32 | offset))
        self._write(job, bytes(job.frame))
        job.frame = bytearray(FRAME_BYTES)
        job.frame_moves = []

    def _start_file(self, job: Job) -> None:
        disk = self._journal.files.disk
        if disk.exists(job.temporary):
            disk.remove(job.temporary)
        if self._use_reserve:
            self._use_reserve = False
            self._journal.files.take_reserve(job.temporary)
        disk.write(job.temporary, 0, job.output.encode_head())
        job.previous = job.output.crc
        job.output.used = HEAD_BYTES

    def _write(self, job: Job, data: bytes) -> None:
        disk = self._journal.files.disk
        disk.write(job.temporary, job.output.used, data)
        job.output.used += len(data)
        job.unsynced += len(data)
        if job.unsynced >= SYNC_BYTES:
            disk.sync(job.temporary)
            job.unsynced = 0

    # Taking over -----------------------------------------------------------------------------------

    def _settle(self, job: Job) -> None:
        """When the ends of what was left out are durable, the new file takes the place of the old ones."""
        journal = self._journal
        assert job.barrier is not None
        if not journal.passed(job.barrier):
            return
        at = next(i for i, segment in enumerate(journal.segments) if segment is job.inputs[0])
        assert all(a is b for a, b in zip(journal.segments[at:], job.inputs, strict=False))
        if not job.pieces:
            journal.segments[at : at + len(job.inputs)] = []
            self._drop_inputs(job)
            return
        output = job.output
        journal.files.disk.rename(job.temporary, output.name)
        output.size, output.sealed = output.used, True
        output.idle_bytes = job.idle * output.survey.tombstone_bytes // max(output.survey.tombstones, 1)
        journal.segments[at : at + len(job.inputs)] = [output]
        journal.lost(max(segment.survey.last_seq for segment in job.inputs))
        for offset, length, previous, last_seq in job.pieces:
            number = journal.arena.adopt_extent(JOURNAL, length)
            place = Place(output, offset, length, previous, last_seq, ends=True)
            journal.pager.add(number, place, resident=False)
            output.extents.append(number)
        job.phase = Phase.MOVE

    def _move(self, job: Job, residents: Residents) -> None:
        """Tell some queue entries where their messages lie now."""
        moves, numbers = job.moves, job.output.extents
        end = min(job.moved + 3 * MOVES_PER_SLICE, len(moves))
        for at in range(job.moved, end, 3):
            piece = moves[at + 2]
            residents.relocate(moves[at], moves[at + 1], numbers[piece >> 32] << 32 | piece & 0xFFFFFFFF)
        job.moved = end
        if end == len(moves):
            for number in numbers:
                if self._journal.arena.extent(number).live == 0:
                    self._journal.arena.emptied.append(number)
            self._drop_inputs(job)

    def _drop_inputs(self, job: Job) -> None:
        for segment in job.inputs:
            self._journal.reclaimer.drop(segment)
        self.finished += 1
        self._journal.reclaimer.look = True
        self._job = None

    def _give_up(self, job: Job) -> None:
        """Forget a rewrite that has not taken over yet; nothing has changed but a temporary file."""
        self._job = None
        if self._journal.files.disk.exists(job.temporary):
            self._journal.files.remove_quietly(job.temporary)
