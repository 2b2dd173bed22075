"""A full disk: publishers wait, nothing confirmed is lost, and the journal goes on when there is room."""

from __future__ import annotations

from random import Random

import pytest

from tidemark.errors import DiskFull
from tidemark.sim.disk import SimDisk
from tidemark.sim.store import CONFIG, Process


def filled() -> tuple[Process, int]:
    """A process on a disk without room, and how many messages went in; its reserve is used up too."""
    process = Process(SimDisk(), Random(1), 1_000_000)
    process.housekeeping()
    process.disk.capacity -= process.disk.free_bytes()
    for messages in range(1000):
        try:
            process.publish((1,), bytes(1000))
        except DiskFull:
            return process, messages
        process.turn()
    raise AssertionError("the disk never filled up")


def test_the_journal_says_that_it_is_full_before_it_refuses_anything() -> None:
    process = Process(SimDisk(), Random(1), 1_000_000)
    process.housekeeping()
    process.disk.capacity -= process.disk.free_bytes()
    accepted = 0
    while not process.store.journal.full:
        process.publish((1,), bytes(1000))
        process.turn()
        process.store.journal.maintain(process, 0, 0)
        accepted += 1
        assert accepted < 1000
    # Acknowledgements still go in: there is the reserve.
    for _ in range(20):
        process.consume(1, 1)
        process.turn()
        process.publish((1,), bytes(1000))


def test_what_was_confirmed_before_the_disk_was_full_is_there_after_a_crash() -> None:
    process, messages = filled()
    assert process.store.journal.full
    assert len(process.contents()[1]) == messages
    contents = process.contents()

    disk = process.disk.crash()
    disk.capacity = 1 << 40
    assert Process(disk, Random(2), 0).contents() == contents


def test_the_journal_goes_on_by_itself_when_there_is_room_again() -> None:
    process, messages = filled()
    process.disk.capacity = 1 << 40
    process.housekeeping(slices=3)
    assert not process.store.journal.full

    process.publish((1,), b"more")
    process.turn()
    assert len(Process(process.disk.crash(), Random(2), 0).contents()[1]) == messages + 1


def test_acknowledging_makes_room_on_a_disk_that_stays_as_small_as_it_is() -> None:
    process = Process(SimDisk(), Random(1), 1_000_000)
    process.housekeeping()
    for _ in range(400):
        process.publish((1,), bytes(1000))
        process.turn()
    process.disk.capacity -= process.disk.free_bytes()
    while not process.store.journal.full:
        process.publish((1,), bytes(1000))
        process.turn()
        process.store.journal.maintain(process, 0, 0)

    process.consume(1, 350)
    process.housekeeping()
    assert not process.store.journal.full
    for _ in range(100):
        process.publish((1,), bytes(1000))
        process.turn()


def test_a_broker_can_start_on_a_full_disk_with_the_room_of_the_reserve() -> None:
    process = Process(SimDisk(), Random(1), 1_000_000)
    process.housekeeping()
    for _ in range(100):
        process.publish((1,), bytes(1000))
        process.turn()
    contents = process.contents()
    disk = process.disk.crash(power=False)
    disk.capacity -= disk.free_bytes()

    again = Process(disk, Random(2), 0)
    assert again.contents() == contents
    again.consume(1, 90)
    again.turn()


def test_a_message_without_room_takes_nothing_with_it() -> None:
    process, messages = filled()
    with pytest.raises(DiskFull):
        process.publish((1,), bytes(CONFIG.segment_bytes * 4))
    assert len(process.contents()[1]) == messages
    process.turn()


def test_the_journal_says_that_it_is_full_as_soon_as_it_takes_its_reserve() -> None:
    process = Process(SimDisk(), Random(1), 1_000_000)
    process.housekeeping()
    process.disk.capacity -= process.disk.free_bytes()
    while process.store.files.has_reserve:
        assert not process.store.journal.full
        process.publish((1,), bytes(1000))
        process.turn()
    assert process.store.journal.full


def test_a_journal_that_grows_before_it_has_a_reserve_is_not_full() -> None:
    process = Process(SimDisk(), Random(1), 1_000_000)
    for _ in range(100):
        process.publish((1,), bytes(1000))
    assert len(process.store.journal.segments) > 1
    assert not process.store.journal.full
