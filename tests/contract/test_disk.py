"""What every disk promises: the real one with either flusher, and the simulator's."""

from __future__ import annotations

import contextlib
import os
import subprocess
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from tidemark.errors import DiskFailed, DiskFull, StoreForeign, StoreLocked
from tidemark.ports import Disk
from tidemark.runtime import _disk_py
from tidemark.runtime.disk import OPEN_MAX, FileDisk

with contextlib.suppress(ImportError):
    from tidemark.runtime import _disk_c

FLUSHERS = {"python": _disk_py.Flusher}
if "_disk_c" in globals():
    FLUSHERS["compiled"] = _disk_c.Flusher


def _files(kind: type[_disk_py.Flusher]) -> Callable[[Path], Disk]:
    return lambda path: FileDisk(path, kind)


def _simulated(_path: Path) -> Disk:
    from tidemark.sim.disk import SimDisk

    return SimDisk()


DISKS = {f"files, {name} flusher": _files(kind) for name, kind in FLUSHERS.items()}
DISKS["simulated"] = _simulated


@pytest.fixture(params=DISKS.values(), ids=DISKS.keys())
def disk(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Disk]:
    made = request.param(tmp_path / "store")
    yield made
    if isinstance(made, FileDisk):
        made.close()


@pytest.fixture(params=FLUSHERS.values(), ids=FLUSHERS.keys())
def files(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[FileDisk]:
    made = FileDisk(tmp_path / "store", request.param)
    yield made
    made.close()


def test_reading_into_a_room_fills_as_much_of_it_as_the_file_has(disk: Disk) -> None:
    disk.write("a", 0, b"hello world")
    room = bytearray(b"." * 8)
    assert disk.read_into("a", 6, memoryview(room)) == 5
    assert bytes(room) == b"world..."
    assert disk.read_into("a", 0, memoryview(room)) == 8
    assert bytes(room) == b"hello wo"


def test_a_file_that_is_mapped_shows_its_bytes_and_keeps_them_when_it_is_removed(disk: Disk) -> None:
    disk.write("a", 0, b"hello" * 2000)
    disk.sync("a")
    mapped = disk.mapped("a")
    disk.remove("a")
    assert bytes(mapped) == b"hello" * 2000


def test_what_is_written_to_mapped_bytes_does_not_reach_the_file(disk: Disk) -> None:
    disk.write("a", 0, b"hello")
    disk.sync("a")
    mapped = disk.mapped("a")
    mapped[0:1] = b"J"
    assert bytes(mapped) == b"Jello"
    assert disk.read("a", 0, 5) == b"hello"


def test_an_empty_file_can_be_mapped(disk: Disk) -> None:
    disk.write("a", 0, b"x")
    disk.truncate("a", 0)
    assert len(disk.mapped("a")) == 0


def wait_for(disk: Disk, ticket: int) -> None:
    deadline = time.monotonic() + 10
    while disk.completed() < ticket:
        assert time.monotonic() < deadline, f"ticket {ticket} did not complete"
        time.sleep(0.001)


# Files ------------------------------------------------------------------------------------


def test_a_created_file_has_its_size_and_is_full_of_zeros(disk: Disk) -> None:
    disk.create("a", 3_000_000)

    assert disk.size("a") == 3_000_000
    assert disk.read("a", 2_999_990, 100) == bytes(10)


def test_what_was_written_is_read_back_also_beyond_the_old_end(disk: Disk) -> None:
    disk.write("a", 0, b"hello")
    disk.write("a", 7, memoryview(bytearray(b"world")))

    assert disk.read("a", 0, 100) == b"hello\0\0world"
    assert disk.read("a", 50, 10) == b""


def test_files_are_listed_by_prefix_in_order_with_their_folder(disk: Disk) -> None:
    for name in ("seg-2", "spill/1", "seg-1"):
        disk.write(name, 0, b"x")

    assert disk.list() == ["seg-1", "seg-2", "spill/1"]
    assert disk.list("seg-") == ["seg-1", "seg-2"]
    assert disk.list("spill/") == ["spill/1"]


def test_a_rename_replaces_the_other_file(disk: Disk) -> None:
    disk.write("new", 0, b"new")
    disk.sync("new")
    disk.write("old", 0, b"older")

    disk.rename("new", "old")

    assert disk.read("old", 0, 10) == b"new"
    assert not disk.exists("new")


def test_a_removed_file_is_gone_and_its_name_is_free_again(disk: Disk) -> None:
    disk.write("a", 0, b"first life")
    disk.remove("a")
    assert not disk.exists("a")

    disk.create("a", 4)
    assert disk.read("a", 0, 10) == bytes(4)


def test_a_truncated_file_ends_where_it_was_cut(disk: Disk) -> None:
    disk.write("a", 0, b"hello world")
    disk.truncate("a", 5)
    assert disk.read("a", 0, 100) == b"hello"


def test_there_is_room(disk: Disk) -> None:
    assert disk.free_bytes() > 0


# Submitted writes -------------------------------------------------------------------------


def test_a_completed_ticket_is_in_the_file(disk: Disk) -> None:
    disk.create("a", 100)
    disk.submit(1, "a", 10, b"one")
    disk.submit(2, "a", 13, bytearray(b"two"))

    wait_for(disk, 2)

    assert disk.read("a", 10, 6) == b"onetwo"


def test_tickets_of_several_files_complete_in_the_order_they_were_submitted(disk: Disk) -> None:
    for name in ("a", "b"):
        disk.create(name, 1000)
    for ticket in range(1, 101):
        disk.submit(ticket, "ab"[ticket % 2], ticket * 8, ticket.to_bytes(8, "little"))

    seen = []
    while not seen or seen[-1] < 100:
        seen.append(disk.completed())

    assert seen == sorted(seen)
    for ticket in range(1, 101):
        assert disk.read("ab"[ticket % 2], ticket * 8, 8) == ticket.to_bytes(8, "little")


def test_many_touching_buffers_arrive_whole(disk: Disk) -> None:
    pieces = [bytes([n % 251]) * (1 + n % 700) for n in range(3000)]
    disk.create("a", sum(map(len, pieces)))
    offset = 0
    for ticket, piece in enumerate(pieces, 1):
        disk.submit(ticket, "a", offset, piece)
        offset += len(piece)

    wait_for(disk, len(pieces))

    assert disk.read("a", 0, offset) == b"".join(pieces)


def test_a_file_may_be_renamed_or_removed_while_writes_to_it_are_under_way(disk: Disk) -> None:
    disk.create("a", 1 << 20)
    disk.create("b", 1 << 20)
    for ticket in range(1, 50):
        disk.submit(ticket, "ab"[ticket % 2], ticket * 100, b"x" * 100)
    wait_for(disk, 1)

    disk.rename("a", "c")
    wait_for(disk, 49)
    disk.remove("b")

    assert disk.read("c", 4800, 100) == b"x" * 100
    assert disk.list() == ["c"]


# The real one -----------------------------------------------------------------------------


def test_the_bell_rings_when_a_ticket_completes(files: FileDisk) -> None:
    files.create("a", 10)
    files.submit(1, "a", 0, b"x")
    wait_for(files, 1)

    deadline = time.monotonic() + 5
    while True:
        try:
            assert os.eventfd_read(files.bell) >= 1
            break
        except BlockingIOError:
            assert time.monotonic() < deadline, "the bell was silent"


def test_a_ticket_that_does_not_rise_is_refused(files: FileDisk) -> None:
    files.create("a", 10)
    files.submit(5, "a", 0, b"x")
    with pytest.raises(ValueError, match="does not follow"):
        files.submit(5, "a", 1, b"y")


def test_a_failed_write_is_never_forgotten_and_nothing_after_it_is_written(files: FileDisk) -> None:
    files.create("good", 10)
    (files.root / "bad").symlink_to("/dev/full")
    files.submit(1, "good", 0, b"1")
    files.submit(2, "bad", 0, b"2")
    files.submit(3, "good", 1, b"3")

    for _ in range(2):
        with pytest.raises(DiskFailed, match=r"write of .*bad failed: No space left"):
            wait_for(files, 3)
    with pytest.raises(DiskFailed):
        files.submit(4, "good", 2, b"4")
    assert files.read("good", 0, 10) == b"1" + bytes(9)


def test_a_failed_sync_is_an_error_too(files: FileDisk) -> None:
    (files.root / "bad").symlink_to("/dev/null")
    files.submit(1, "bad", 0, b"1")
    with pytest.raises(DiskFailed, match="sync of"):
        wait_for(files, 1)


def test_closing_finishes_what_was_submitted(files: FileDisk, tmp_path: Path) -> None:
    other = FileDisk(tmp_path / "other", type(files._flusher))
    other.create("a", 1 << 20)
    for ticket in range(1, 200):
        other.submit(ticket, "a", ticket, bytes([ticket]))
    other.close()

    assert (tmp_path / "other" / "a").read_bytes()[1:200] == bytes(range(1, 200))


def test_a_thousand_files_do_not_stay_open_and_all_can_be_used(files: FileDisk) -> None:
    for number in range(1000):
        files.write(f"spill/{number}", 0, b"%d" % number)

    assert len(files._open) <= OPEN_MAX
    assert all(files.read(f"spill/{number}", 0, 10) == b"%d" % number for number in range(1000))
    files.sync("spill/0")


def test_a_file_that_is_let_go_while_writes_to_it_are_under_way_gets_them_all(files: FileDisk) -> None:
    files.create("a", 1000)
    for ticket in range(1, 1001):
        files.submit(ticket, "a", ticket - 1, bytes([ticket % 256]))
        files.write(f"spill/{ticket}", 0, b"x")

    wait_for(files, 1000)
    assert files.read("a", 0, 1000) == bytes(ticket % 256 for ticket in range(1, 1001))


def test_a_directory_has_one_owner_whose_process_is_named(files: FileDisk) -> None:
    with pytest.raises(StoreLocked, match=f"in use by process {os.getpid()}"):
        FileDisk(files.root)


def test_a_directory_that_cannot_be_made_is_one_sentence(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("x")
    with pytest.raises(StoreForeign, match="cannot be used as a data directory"):
        FileDisk(tmp_path / "file" / "store")


@pytest.mark.skipif(os.geteuid() != 0, reason="only root may mount a small file system")
def test_a_full_file_system_leaves_no_half_made_file(tmp_path: Path) -> None:
    mount = tmp_path / "small"
    mount.mkdir()
    if subprocess.run(["mount", "-t", "tmpfs", "-o", "size=2m", "tmpfs", mount], check=False).returncode:
        pytest.skip("mounting is not allowed here")
    try:
        disk = FileDisk(mount)
        with pytest.raises(DiskFull, match="no room"):
            disk.create("a", 4 << 20)
        assert disk.list() == []
        disk.create("b", 1 << 20)
        disk.close()
    finally:
        subprocess.run(["umount", mount], check=True)


def test_a_file_that_is_prepared_is_there_in_full_when_it_says_so(disk: Disk) -> None:
    deadline = time.monotonic() + 10
    while not disk.prepare("tmp-fill", 100_000):
        assert time.monotonic() < deadline
        time.sleep(0.001)
    assert disk.size("tmp-fill") == 100_000
    assert disk.read("tmp-fill", 99_990, 100) == bytes(10)


def test_preparing_more_than_there_is_room_for_leaves_nothing(disk: Disk) -> None:
    with pytest.raises(DiskFull):
        disk.prepare("tmp-fill", 1 << 50)
    assert disk.list() == []


def test_a_file_that_is_being_prepared_at_the_end_is_given_up(tmp_path: Path) -> None:
    disk = FileDisk(tmp_path / "store")
    disk.prepare("tmp-fill", 256 << 20)
    disk.close()
    assert not (tmp_path / "store" / "tmp-fill").exists()
