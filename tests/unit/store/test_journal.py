"""The journal: what is durable, what comes back, and what a start says."""

from __future__ import annotations

from random import Random

import pytest

from tidemark.errors import DiskFailed, StoreForeign
from tidemark.sim.disk import SimDisk
from tidemark.sim.store import CONFIG, Process
from tidemark.store.frames import crc32c
from tidemark.store.status import read_status


def started(disk: SimDisk) -> Process:
    return Process(disk, Random(1), 1_000_000)


def test_a_message_is_durable_when_its_frame_is_synced_and_not_before() -> None:
    disk = SimDisk()
    process = started(disk)
    seq = process.publish((1,), b"hello")
    process.store.journal.completed()
    assert process.store.journal.durable_seq < seq

    process.store.flush(0)
    assert process.store.journal.durable_seq < seq
    process.store.completed()
    assert process.store.journal.durable_seq >= seq


def test_what_is_durable_survives_the_power() -> None:
    process = started(SimDisk())
    seq = process.publish((1, 3), b"hello")
    process.turn()

    again = started(process.disk.crash())
    assert again.contents() == {1: [(seq, b"hello")], 2: [], 3: [(seq + 1, b"hello")]}


def test_a_settled_message_does_not_come_back() -> None:
    process = started(SimDisk())
    process.publish((1,), b"one")
    two = process.publish((1,), b"two")
    process.consume(1, 1)
    process.turn()

    assert started(process.disk.crash()).contents()[1] == [(two, b"two")]


def test_a_message_that_was_delivered_but_not_settled_is_ready_again_and_marked() -> None:
    process = started(SimDisk())
    process.publish((1,), b"one")
    process.turn()
    process.queues[1].take(1, 1 << 20)

    again = started(process.disk.crash())
    taken = again.queues[1].take(1, 1 << 20)
    assert taken is not None
    assert taken.entry(0)[4] == 1


def test_a_message_larger_than_a_segment_gets_one_of_its_own() -> None:
    process = started(SimDisk())
    body = bytes(CONFIG.segment_bytes * 3)
    process.publish((1,), b"before")
    process.publish((1,), body)
    process.publish((1,), b"behind")
    process.turn()

    assert [b for _, b in started(process.disk.crash()).contents()[1]] == [b"before", body, b"behind"]


def test_records_that_must_stay_together_go_into_one_frame() -> None:
    process = started(SimDisk())
    journal = process.store.journal
    process.publish((1,), bytes(3000))
    frames = journal.statistics().frames

    journal.ensure(3 * 2000)
    for _ in range(3):
        process.publish((2,), bytes(1500))
    process.store.flush(0)
    assert journal.statistics().frames == frames + 2


def test_the_last_sequence_is_reached_even_when_transient_messages_share_the_numbers() -> None:
    process = started(SimDisk())
    process.publish((1,), b"persistent")
    process.memory.put((2,), 0, None, 0, False, b"", b"", b"", b"transient")
    waits_for = process.store.journal.last_seq
    process.turn()
    assert process.store.journal.durable_seq >= waits_for


def test_a_frame_that_is_closed_for_want_of_room_does_not_cover_the_record_that_wanted_it() -> None:
    process = started(SimDisk())
    journal = process.store.journal
    process.publish((1,), bytes(3000))
    large = process.publish((1,), bytes(3000))
    journal.completed()
    assert journal.durable_seq < large


def test_every_start_opens_a_new_history_above_all_that_was_kept() -> None:
    """K-64: each start adds a new id at the current high sequence."""
    process = started(SimDisk())
    first = process.report.history
    seq = process.publish((1,), b"x")
    process.turn()

    again = Process(process.disk.crash(), Random(2), 2_000_000)
    assert again.report.history != first
    assert again.report.last_seq == seq
    [(newest, since), (oldest, _)] = again.store.journal.histories
    assert (newest.hex(), oldest.hex()) == (again.report.history, first)
    assert since == seq + 1
    assert again.arena.next_seq > since


def test_a_clean_stop_is_found_clean_and_a_kill_is_found_dirty() -> None:
    disk = SimDisk()
    assert read_status(disk).state == "empty"
    process = started(disk)
    assert (process.report.found, read_status(disk).state) == ("empty", "dirty")
    process.stop()
    status = read_status(disk)
    assert status.state == "clean"

    process = started(disk.crash())
    assert process.report.found == f"clean({status.store})"
    assert process.report.generation == 2
    assert started(process.disk.crash()).report.found == "dirty"


def test_a_directory_of_someone_else_is_refused_and_left_alone() -> None:
    disk = SimDisk()
    disk.write("thesis.doc", 0, b"years of work")
    with pytest.raises(StoreForeign, match="no META"):
        started(disk)
    assert disk.list() == ["thesis.doc"]


def test_a_store_of_another_format_is_refused() -> None:
    disk = SimDisk()
    facts = b'{"format": 99, "store": "00"}'
    disk.write("META", 0, b"%s\n%08x\n" % (facts, crc32c(facts)))
    with pytest.raises(StoreForeign, match="its format is 99"):
        started(disk)


def test_a_failed_sync_stops_the_journal_for_good() -> None:
    process = started(SimDisk())
    process.turn()
    before = process.store.journal.durable_seq
    process.publish((1,), b"x")
    process.store.flush(0)
    process.disk.fail_next(after=1)

    for _ in range(2):
        with pytest.raises(DiskFailed):
            process.store.journal.completed()
    assert process.store.journal.durable_seq == before
    with pytest.raises(DiskFailed):
        process.publish((1,), bytes(CONFIG.extent_bytes))
    process.store.journal.maintain(process, 0, 1 << 20)


def test_what_was_confirmed_before_a_failed_sync_is_still_there() -> None:
    process = started(SimDisk())
    seq = process.publish((1,), b"confirmed")
    process.turn()
    process.publish((1,), b"never confirmed")
    process.store.flush(0)
    process.disk.fail_next(after=1)
    with pytest.raises(DiskFailed):
        process.store.journal.completed()

    assert started(process.disk.crash()).contents()[1][:1] == [(seq, b"confirmed")]


def test_the_report_names_the_highest_queue_number_so_that_none_is_given_twice() -> None:
    process = started(SimDisk())
    process.store.journal.put((2, 77, 1 << 31), 0, None, 0, True, b"", b"", b"", b"x")
    process.turn()
    assert started(process.disk.crash()).report.queue_max == 77


def test_delivery_counts_survive() -> None:
    process = started(SimDisk())
    seq = process.publish((1,), b"poison")
    process.store.journal.counted(1, [(seq, 4)], 0)
    process.turn()

    taken = started(process.disk.crash()).queues[1].take(1, 1 << 20)
    assert taken is not None
    assert taken.entry(0)[5] == 4
