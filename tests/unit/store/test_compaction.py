"""Compaction and the end of segments: the disk gives back what nobody needs, and only that."""

from __future__ import annotations

from dataclasses import replace
from random import Random

import pytest

from tidemark.errors import CorruptRecord
from tidemark.sim.disk import SimDisk
from tidemark.sim.store import CONFIG, Process
from tidemark.store.check import check_store
from tidemark.store.compaction import Compactor, Phase
from tidemark.store.config import StoreConfig


def started(disk: SimDisk, config: StoreConfig = CONFIG) -> Process:
    return Process(disk, Random(1), 1_000_000, config)


def with_garbage(keep_every: int = 10, messages: int = 250) -> Process:
    """Several segments in which only every so-many-th message of queue 1 is left, in queue 2."""
    process = started(SimDisk())
    for number in range(messages):
        process.publish((2 if number % keep_every == 0 else 1,), b"%04d" % number + bytes(800))
        if number % 10 == 9:
            process.turn()
    process.consume(1, messages)
    process.turn()
    return process


def test_a_segment_in_which_nothing_is_needed_goes_at_once() -> None:
    process = started(SimDisk())
    for _ in range(300):
        process.publish((1,), bytes(800))
    process.turn()
    many = len(process.store.journal.segments)
    process.consume(1, 300)

    process.turn()
    for _ in range(3):
        process.turn()
        process.store.journal.maintain(process, 0, 0)
    assert many > 4
    assert len(process.store.journal.segments) == 1
    assert len(process.disk.list("seg-")) <= 2


def test_compaction_gives_the_room_of_dead_messages_back_and_moves_the_living() -> None:
    process = with_garbage()
    before, contents = process.store.journal.statistics().bytes_on_disk, process.contents()

    process.housekeeping()
    assert process.store.journal.statistics().compactions > 0
    assert process.store.journal.statistics().bytes_on_disk < before / 2
    assert process.contents() == contents

    again = started(process.disk.crash())
    assert again.contents() == contents
    assert list(check_store(again.disk)) == []


def test_compaction_of_what_was_compacted_goes_on_when_more_dies_and_stops_when_nothing_does() -> None:
    process = with_garbage(keep_every=4)
    process.housekeeping()
    done = process.store.journal.statistics().compactions
    process.housekeeping(100_000)
    assert process.store.journal.statistics().compactions == done

    process.consume(2, 45)
    contents = process.contents()
    process.housekeeping(200_000)
    assert process.store.journal.statistics().compactions > done
    assert started(process.disk.crash()).contents() == contents


def test_a_message_of_several_queues_stays_for_those_that_need_it_and_for_no_other() -> None:
    process = started(SimDisk())
    sent = [process.publish((1, 2, 3), b"%d" % number + bytes(500)) for number in range(450)]
    process.turn()
    process.consume(1, 450)
    for number, keep_every in ((2, 15), (3, 25)):
        taken = process.queues[number].take(450, 1 << 30)
        assert taken is not None
        for position, (index, *_) in enumerate(taken):
            if position % keep_every:
                process.queues[number].settle(taken.lane, index)
    process.turn()
    process.housekeeping()
    assert process.store.journal.statistics().compactions > 0

    again = started(process.disk.crash())
    assert [seq for seq, _ in again.contents()[2]] == [seq + 1 for seq in sent[::15]]
    assert [seq for seq, _ in again.contents()[3]] == [seq + 2 for seq in sent[::25]]
    assert again.contents()[1] == []


def test_the_record_of_an_end_stays_while_an_older_segment_holds_the_message() -> None:
    process = started(SimDisk())
    for _ in range(70):
        process.publish((1,), bytes(800))
    process.turn()
    process.consume(1, 10)
    process.turn()
    process.store.journal.maintain(process, 0, 0)
    for _ in range(200):
        process.publish((2,), bytes(800))
        process.turn()
    process.consume(2, 200)
    process.housekeeping()

    again = started(process.disk.crash())
    assert len(again.contents()[1]) == 60
    assert again.contents()[2] == []


def test_delivery_counts_of_living_messages_are_kept_by_compaction() -> None:
    process = started(SimDisk())
    poison = process.publish((1,), b"poison")
    for _ in range(100):
        process.publish((2,), bytes(800))
    process.store.journal.counted(1, [(poison, 3)], 0)
    for _ in range(100):
        process.publish((2,), bytes(800))
    process.turn()
    process.consume(2, 200)
    process.housekeeping()
    assert process.store.journal.statistics().compactions > 0

    taken = started(process.disk.crash()).queues[1].take(1, 1 << 20)
    assert taken is not None
    assert taken.entry(0)[1:2] + taken.entry(0)[5:] == (poison, 3)


def test_nothing_leaves_the_disk_before_the_record_of_its_end_is_durable() -> None:
    process = with_garbage()
    held = process.contents()[2]
    process.consume(2, 1000)
    # The ends are known in memory only: no turn has recorded them yet.
    for number in range(50):
        process.store.journal.maintain(process, 1000 * number, 1 << 20)

    assert started(process.disk.crash()).contents()[2] == held


@pytest.mark.parametrize("power", [True, False])
def test_a_kill_at_any_slice_of_a_compaction_loses_nothing_and_brings_nothing_back(power: bool) -> None:
    contents = with_garbage().contents()
    phases = set()
    for slices in range(0, 200, 3):
        process = with_garbage()
        for number in range(slices):
            process.store.flush(0)
            process.store.completed()
            process.store.journal.maintain(process, 1000 * number, 3000)
        job = process.store.journal._compactor._job
        phases.add(job.phase if job else None)
        again = started(process.disk.crash(power=power))
        assert again.contents() == contents
        assert list(check_store(again.disk)) == []
        if process.store.journal.statistics().compactions:
            break
    assert process.store.journal.statistics().compactions
    assert Phase.COPY in phases


def test_publishing_goes_on_while_segments_are_rewritten() -> None:
    process = with_garbage()
    for number in range(200):
        process.publish((3,), b"new %d" % number)
        process.turn()
        process.store.journal.maintain(process, 1000 * number, 2000)
    assert process.store.journal.statistics().compactions > 0
    contents = process.contents()
    assert [body for _, body in contents[3]] == [b"new %d" % number for number in range(200)]
    assert started(process.disk.crash()).contents() == contents


def test_messages_that_end_while_they_are_being_moved_stay_gone() -> None:
    process = with_garbage()
    for number in range(60):
        process.store.flush(0)
        process.store.completed()
        process.store.journal.maintain(process, 1000 * number, 2000)
        process.consume(2, 1)
        process.turn()
    contents = process.contents()
    assert started(process.disk.crash()).contents() == contents


def test_compaction_keeps_within_its_rate() -> None:
    slow = replace(CONFIG, compact_bytes_per_s=10_000)
    process = started(with_garbage().disk.crash(), slow)
    start = 2_000_000
    process.turn(start)
    process.store.journal.maintain(process, start, 0)
    before = process.store.journal.statistics().compacted_bytes
    for millisecond in range(0, 1000, 10):
        process.turn(start)
        process.store.journal.maintain(process, start + millisecond, 1 << 20)
    read = process.store.journal.statistics().compacted_bytes - before
    assert 0 < read <= slow.segment_bytes + 10_000 + slow.extent_bytes


def test_a_segment_that_is_being_read_is_left_to_die_by_itself() -> None:
    patient = replace(CONFIG, compact_quiet_ms=10_000)
    process = started(SimDisk(), patient)
    for _ in range(300):
        process.publish((1,), bytes(800))
    process.turn()
    now = 0
    while process.consume(1, 10):
        now += 100
        process.turn(now)
        process.store.journal.maintain(process, now, 1 << 20)
    assert process.store.journal.statistics().compactions == 0


def test_rotten_bytes_are_not_moved_the_segment_is_reported_and_left() -> None:
    process = with_garbage()
    process.turn()
    process.store.journal.pager.trim(process.store.journal.completed_ticket)
    victim = process.store.journal.segments[0]
    for offset in range(5000, victim.used, 512):
        process.disk.flip(victim.name, offset)
    for number in victim.extents:
        process.store.journal.pager.drop_if_durable(number, 1 << 60)

    process.housekeeping()
    [damage] = process.store.journal.damage
    assert isinstance(damage, CorruptRecord)
    assert damage.path == victim.name
    assert damage.queues
    assert process.disk.exists(victim.name)


def test_a_compactor_without_work_does_nothing() -> None:
    process = started(SimDisk())
    process.housekeeping()
    assert process.store.journal.statistics().compactions == 0
    assert isinstance(process.store.journal._compactor, Compactor)


def test_a_sequence_that_compaction_has_named_is_not_given_again_after_a_kill() -> None:
    process = with_garbage(keep_every=30)
    # Transient messages take sequences, of which nothing is left after a kill.
    process.publish((3,), b"mark")
    for _ in range(3000):
        process.memory.put((2,), 0, None, 0, False, b"", b"", b"", b"")
    process.turn()
    process.housekeeping(5000)
    named = max(segment.compacted_upto for segment in process.store.journal.segments)
    assert named > 3000

    again = started(process.disk.crash(power=False), replace(CONFIG, compact_quiet_ms=1 << 40))
    assert again.arena.next_seq > named
    [settled] = again.consume(2, 1)
    again.turn()
    # The segment with the record of this end is freed, as soon as nobody seems to need it.
    for _ in range(300):
        again.publish((1,), bytes(800))
        again.consume(1, 1)
        again.turn()
    again.housekeeping(10_000)
    assert settled not in dict(started(again.disk.crash(power=False)).contents()[2])


@pytest.mark.parametrize("counts", [0, 40])
def test_a_small_remainder_is_not_rewritten_again_and_again(counts: int) -> None:
    process = with_garbage(keep_every=200)
    for _ in range(counts):
        [(first, _), *_] = process.contents()[2]
        process.store.journal.counted(2, [(first, 1)], 0)
    for _ in range(80):
        process.publish((3,), bytes(800))
    process.consume(3, 80)
    process.housekeeping()
    done = process.store.journal.statistics().compactions
    assert 0 < done < 5
    process.housekeeping(100_000)
    assert process.store.journal.statistics().compactions == done

    again = started(process.disk.crash())
    again.housekeeping(200_000)
    done = again.store.journal.statistics().compactions
    again.housekeeping(300_000)
    assert again.store.journal.statistics().compactions == done
    assert again.contents() == process.contents()
