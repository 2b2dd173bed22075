"""When the journal has come to rest, damage to its last frames is known for what it is, not taken for a torn tail."""

from __future__ import annotations

from random import Random

import pytest

from tidemark.errors import CorruptRecord
from tidemark.sim.disk import SimDisk
from tidemark.sim.store import CONFIG, Process, StoreRun
from tidemark.store.frames import FRAME_BYTES
from tidemark.store.journal import IDLE_MS, Journal
from tidemark.store.segment import HEAD_BYTES


def rested(messages: int = 20) -> Process:
    """A journal with some messages that had the time to come to rest."""
    process = Process(SimDisk(), Random(1), 1_000_000)
    for number in range(messages):
        process.publish((1,), b"%d" % number + bytes(300))
        process.turn(1_000_000)
    rest(process, 1_000_000)
    return process


def rest(process: Process, now_ms: int) -> None:
    for elapsed_ms in range(0, 4 * IDLE_MS, 20):
        process.store.journal.maintain(process, now_ms + elapsed_ms, 1 << 20)
        process.store.flush(now_ms + elapsed_ms)
        process.store.completed()


def frames(process: Process) -> int:
    return process.store.journal.statistics().frames


def test_one_rotten_bit_anywhere_in_what_is_at_rest_is_refused() -> None:
    process = rested()
    [segment] = process.store.journal.segments
    for offset in range(HEAD_BYTES, segment.used - FRAME_BYTES, 97):
        process.disk.flip(segment.name, offset)
        with pytest.raises(CorruptRecord, match=segment.name):
            Process(process.disk.crash(power=False), Random(2), 2_000_000)
        process.disk.flip(segment.name, offset)


def test_the_frame_that_says_so_may_rot_and_nothing_is_lost() -> None:
    process = rested()
    [segment] = process.store.journal.segments
    process.disk.flip(segment.name, segment.used - FRAME_BYTES + 20)
    assert Process(process.disk.crash(), Random(2), 2_000_000).contents() == process.contents()


def test_a_burst_costs_one_more_frame_and_rest_costs_none() -> None:
    process = rested()
    before, syncs = frames(process), process.disk.syncs
    rest(process, 2_000_000)
    assert (frames(process), process.disk.syncs) == (before, syncs)

    process.publish((1,), b"more")
    process.turn(3_000_000)
    process.store.journal.maintain(process, 3_000_000 + IDLE_MS - 1, 0)
    assert frames(process) == before + 1
    rest(process, 3_000_000 + IDLE_MS)
    rest(process, 4_000_000)
    assert frames(process) == before + 2


def test_what_is_still_on_its_way_to_the_disk_is_not_called_durable() -> None:
    process = rested()
    before = frames(process)
    process.publish((1,), b"on its way")
    process.store.flush(2_000_000)
    for elapsed_ms in (0, IDLE_MS, 1000):
        process.store.journal.maintain(process, 2_000_000 + elapsed_ms, 0)
    assert frames(process) == before + 1


def test_the_place_is_told_where_an_extent_or_a_segment_is_full() -> None:
    for size in range(3000, 3900, 8):
        process = Process(SimDisk(), Random(1), 1_000_000)
        rest(process, 1_000_000)
        last = process.store.journal
        while last.capacity != last.used and last.segments[-1].id == 1:
            process.publish((1,), bytes(size))
            process.turn(1_000_000)
        rest(process, 2_000_000)
        assert last._claimed_place >= last._records_place
        assert Process(process.disk.crash(), Random(2), 3_000_000).contents() == process.contents()


# After any work, and with the mark left out -----------------------------------------------------------


def rots_at_rest(seed: int) -> None:
    """A run of the simulator, then rest, then a bit of a frame that was durable rots."""
    run = StoreRun(seed, steps=40)
    run.run()
    process = run.process
    run.publish()
    run.turn()
    while not process.store.idle:
        process.store.completed()
    now_ms = run.now_ms + 1000
    for elapsed_ms in range(0, 40 * IDLE_MS, 20):
        process.store.journal.maintain(process, now_ms + elapsed_ms, 1 << 20)
        process.store.flush(now_ms + elapsed_ms)
        process.store.completed()
    journal = process.store.journal
    last = next(segment for segment in reversed(journal.segments) if segment.survey.records)
    end = journal._records_place - last.place(0)
    process.disk.flip(last.name, run.dice.randrange(HEAD_BYTES, end), run.dice.randrange(8))
    with pytest.raises(CorruptRecord):
        Process(process.disk.crash(power=False), Random(2), now_ms, CONFIG)


def rot_of_many_seeds() -> None:
    for seed in range(20):
        rots_at_rest(seed)


def test_after_any_work_a_bit_that_rots_at_rest_is_found() -> None:
    rot_of_many_seeds()


def test_without_the_mark_rot_passes_for_a_torn_tail(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(Journal, "_claim_when_idle", lambda *_: None)
    with pytest.raises(pytest.fail.Exception, match="DID NOT RAISE"):
        rot_of_many_seeds()
