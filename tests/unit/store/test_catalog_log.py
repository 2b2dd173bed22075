"""The log of the wiring."""

from __future__ import annotations

from random import Random

import pytest

from tidemark.errors import CorruptRecord, DiskFailed
from tidemark.sim.disk import SimDisk
from tidemark.sim.store import CONFIG, Process


def started(disk: SimDisk) -> Process:
    return Process(disk, Random(1), 1_000_000)


def change(number: int, size: int = 20) -> bytes:
    return b'{"n": %d, "pad": "%s"}' % (number, b"x" * size)


def test_durable_changes_come_back_in_order() -> None:
    process = started(SimDisk())
    for number in range(50):
        seq = process.store.catalog.append(change(number, 900), 0)
        process.turn()
        assert process.store.catalog.durable_seq == seq

    assert started(process.disk.crash()).changes == [change(number, 900) for number in range(50)]


def test_a_change_is_not_durable_before_it_is_flushed_and_synced() -> None:
    process = started(SimDisk())
    seq = process.store.catalog.append(change(1), 0)
    process.store.completed()
    assert process.store.catalog.durable_seq < seq
    process.store.catalog.flush(0)
    assert process.store.catalog.durable_seq < seq
    process.store.completed()
    assert process.store.catalog.durable_seq == seq


def test_a_change_larger_than_a_file_of_the_log_fits() -> None:
    process = started(SimDisk())
    process.store.catalog.append(change(1, 100_000), 0)
    process.store.catalog.append(change(2), 0)
    process.turn()
    assert started(process.disk.crash()).changes == [change(1, 100_000), change(2)]


def test_a_rewrite_replaces_the_log_and_what_comes_after_it_is_kept() -> None:
    process = started(SimDisk())
    for number in range(100):
        process.store.catalog.append(change(number, 900), 0)
        process.turn()
    files = len(process.disk.list("catalog-"))
    waiting = process.store.catalog.append(change(100), 0)

    process.store.catalog.rewrite([b'"image"'], 0)
    assert process.store.catalog.durable_seq >= waiting
    process.store.catalog.append(change(101), 0)
    process.turn()
    assert len(process.disk.list("catalog-")) < files
    assert started(process.disk.crash()).changes == [b'"image"', change(101)]


def test_a_rewrite_is_wanted_when_the_log_is_large_and_not_right_after_one() -> None:
    process = started(SimDisk())
    for number in range(300):
        process.store.catalog.append(change(number, 900), 0)
        process.turn()
    assert process.store.catalog.wants_rewrite
    process.store.catalog.rewrite([change(number, 900) for number in range(300)], 0)
    process.turn()
    assert not process.store.catalog.wants_rewrite


def test_starts_do_not_pile_up_files() -> None:
    disk = SimDisk()
    for number in range(30):
        process = started(disk)
        process.store.catalog.append(change(number), 0)
        process.turn()
        if process.store.catalog.wants_rewrite:
            process.store.catalog.rewrite([*process.changes, change(number)], 0)
            process.turn()
        assert len(process.disk.list("catalog-")) <= 10
        disk = process.disk.crash()
    assert started(disk).changes == [change(number) for number in range(30)]


@pytest.mark.parametrize("after", range(12))
def test_a_rewrite_that_fails_half_way_leaves_the_old_wiring_or_the_new(after: int) -> None:
    process = started(SimDisk())
    process.store.catalog.append(change(1), 0)
    process.turn()
    process.disk.fail_next(after)
    try:
        process.store.catalog.rewrite([b'"image"'], 0)
        process.store.completed()
    except DiskFailed:
        with pytest.raises(DiskFailed):
            process.store.catalog.append(change(2), 0)

    disk = process.disk.crash()
    disk._fail_in = None
    assert started(disk).changes in ([change(1)], [b'"image"'])


def test_a_full_disk_holds_a_change_back_until_there_is_room() -> None:
    process = started(SimDisk())
    process.turn()
    process.disk.capacity -= process.disk.free_bytes()
    process.store.catalog.append(change(1, 30_000), 0)
    process.turn()
    assert process.store.catalog.full

    process.disk.capacity = 1 << 40
    process.turn()
    assert not process.store.catalog.full
    assert started(process.disk.crash()).changes == [change(1, 30_000)]


def test_damaged_wiring_is_refused() -> None:
    process = started(SimDisk())
    for number in range(3):
        process.store.catalog.append(change(number), 0)
        process.turn()
    disk = process.disk.crash()
    disk.flip("catalog-0000000000000001-0000.log", 4096 + 100)
    with pytest.raises(CorruptRecord, match="catalog-"):
        started(disk)


def test_a_rewrite_without_room_leaves_the_log_and_the_disk_as_they_were() -> None:
    process = started(SimDisk())
    process.store.catalog.append(change(1), 0)
    process.turn()
    image = [change(number, 900) for number in range(20)]
    for room in (0, 1000, 30_000):
        process.disk.capacity = process.disk.capacity - process.disk.free_bytes() + room
        process.store.catalog.rewrite(image, 0)
        assert not process.store.catalog.full
        assert process.disk.list("tmp-catalog-") == []
        assert process.disk.free_bytes() == room

    process.store.catalog.append(change(2), 0)
    process.turn()
    process.disk.capacity = 1 << 40
    assert started(process.disk.crash()).changes == [change(1), change(2)]


def test_a_rewrite_that_fits_ends_the_want_of_room() -> None:
    process = started(SimDisk())
    process.disk.capacity -= process.disk.free_bytes()
    for number in range(30):
        process.store.catalog.append(change(number, 900), 0)
    process.turn()
    assert process.store.catalog.full

    process.disk.capacity = 1 << 40
    process.store.catalog.rewrite([b'"image"'], 0)
    assert not process.store.catalog.full


def test_the_end_of_a_file_does_not_make_the_change_durable_that_had_no_room_in_it() -> None:
    process = started(SimDisk())
    catalog, disk = process.store.catalog, process.disk
    process.turn()
    seq = catalog.append(change(1, CONFIG.catalog_bytes), 0)
    catalog.flush(0)
    disk.work(1)
    disk.completed = lambda: disk._done  # type: ignore[method-assign]
    assert catalog.completed() < seq

    disk.work(1)
    assert catalog.completed() == seq
