"""The lying disk lies as real disks do, and no more."""

from __future__ import annotations

from random import Random

import pytest

from tidemark.errors import DiskFailed, DiskFull
from tidemark.sim.disk import SECTOR, SimDisk


def test_what_was_synced_survives_every_crash() -> None:
    for seed in range(50):
        disk = SimDisk(Random(seed))
        disk.write("a", 0, b"kept" * 1000)
        disk.sync("a")
        disk.write("a", 4000, b"unsynced" * 100)
        assert disk.crash().read("a", 0, 4000) == b"kept" * 1000


def test_what_was_not_synced_is_kept_lost_or_torn() -> None:
    outcomes = set()
    for seed in range(200):
        disk = SimDisk(Random(seed))
        disk.create("a", 8 * SECTOR)
        disk.write("a", 0, b"x" * 8 * SECTOR)
        data = disk.crash().read("a", 0, 8 * SECTOR)
        outcomes.add("kept" if data == b"x" * 8 * SECTOR else "lost" if not data.strip(b"\0") else "torn")
    assert outcomes == {"kept", "lost", "torn"}


def test_a_sector_that_shares_synced_bytes_is_never_garbage() -> None:
    for seed in range(200):
        disk = SimDisk(Random(seed))
        disk.create("a", 2 * SECTOR)
        disk.write("a", 0, b"s" * 100)
        disk.sync("a")
        disk.write("a", 100, b"n" * 100)
        data = disk.crash().read("a", 0, 200)
        assert data[:100] == b"s" * 100
        assert data[100:] in (b"n" * 100, bytes(100))


def test_a_killed_process_leaves_what_it_wrote_but_the_power_may_still_take_it() -> None:
    disk = SimDisk(Random(1))
    disk.create("a", 100)
    disk.write("a", 0, b"written")
    after = disk.crash(power=False)
    assert after.read("a", 0, 7) == b"written"
    assert any(SimDisk.crash(after).read("a", 0, 7) == bytes(7) for _ in range(50))


def test_a_rename_is_durable_a_remove_may_come_undone_and_a_name_comes_with_the_sync() -> None:
    back = new = 0
    for seed in range(60):
        disk = SimDisk(Random(seed))
        for name in ("old", "gone"):
            disk.create(name, 10)
        disk.rename("old", "new")
        disk.remove("gone")
        disk.write("fresh", 0, b"x")
        names = disk.crash().list()
        assert "new" in names
        assert "old" not in names
        back += "gone" in names
        new += "fresh" in names
    assert 0 < back < 60
    assert 0 < new < 60


def test_submitted_writes_complete_in_order_and_late_when_it_is_told_to_be_slow() -> None:
    disk = SimDisk(Random(3), lag=5)
    disk.create("a", 1000)
    for ticket in range(1, 11):
        disk.submit(ticket, "a", ticket * 10, b"x" * 10)
    seen = [disk.completed() for _ in range(100)]
    assert seen == sorted(seen)
    assert seen[0] < 10
    assert seen[-1] == 10
    with pytest.raises(ValueError, match="does not follow"):
        disk.submit(10, "a", 0, b"x")


def test_a_failure_of_a_submitted_write_is_never_forgotten() -> None:
    disk = SimDisk()
    disk.create("a", 100)
    disk.submit(1, "a", 0, b"x")
    disk.fail_next()
    for _ in range(3):
        with pytest.raises(DiskFailed):
            disk.completed()
    with pytest.raises(DiskFailed):
        disk.submit(2, "a", 0, b"x")


def test_a_full_disk_refuses_and_changes_nothing() -> None:
    disk = SimDisk(capacity=1000)
    disk.create("a", 900)
    with pytest.raises(DiskFull):
        disk.create("b", 200)
    with pytest.raises(DiskFull):
        disk.write("a", 800, bytes(300))
    assert (disk.list(), disk.size("a"), disk.free_bytes()) == (["a"], 900, 100)
    disk.write("a", 800, bytes(100))
