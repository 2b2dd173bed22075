"""Paging: a backlog larger than memory works, in order, and what rotted is never served."""

from __future__ import annotations

from random import Random

import pytest

from tidemark.broker.core import NEVER
from tidemark.errors import CorruptRecord
from tidemark.sim.disk import SimDisk
from tidemark.sim.store import CONFIG, Process


def started(disk: SimDisk) -> Process:
    return Process(disk, Random(1), 1_000_000)


def put_transient(process: Process, body: bytes) -> None:
    seq, loc = process.memory.put((3,), 0, None, 0, False, b"", b"", b"", body)
    process.queues[3].put(seq, loc, len(body), 0, NEVER, 0)


def test_a_backlog_of_persistent_messages_many_times_the_memory_comes_out_in_order() -> None:
    process = started(SimDisk())
    bodies = [b"%05d" % number + bytes(700) for number in range(1500)]
    for number, body in enumerate(bodies):
        process.publish((1,), body)
        if number % 20 == 0:
            process.turn()
            process.store.journal.maintain(process, 0, 0)
            assert process.arena.resident_bytes < CONFIG.cache_bytes + 30_000
    process.turn()

    assert sum(map(len, bodies)) > 40 * CONFIG.cache_bytes
    seen = []
    while (taken := process.queues[1].take(10, 1 << 20)) is not None:
        seen += [process.arena.message(loc).body for _, _, loc, _, _, _ in taken]
        process.queues[1].settle_taken(taken)
        process.turn()
        process.store.journal.maintain(process, 0, 0)
        assert process.arena.resident_bytes < CONFIG.cache_bytes + 30_000
    assert seen == bodies


def test_transient_messages_touch_the_disk_only_when_memory_is_short() -> None:
    process = started(SimDisk())
    for number in range(10):
        put_transient(process, b"%d" % number + bytes(1000))
    process.housekeeping()
    assert process.disk.list("spill/") == []

    bodies = [b"%d" % number + bytes(1000) for number in range(10, 300)]
    for body in bodies:
        put_transient(process, body)
    process.housekeeping()
    assert process.disk.list("spill/")
    assert process.arena.resident_bytes < CONFIG.cache_bytes + 10_000
    assert [body for _, body in process.contents()[3]][10:] == bodies


def test_the_files_of_transient_messages_go_with_them() -> None:
    process = started(SimDisk())
    for _ in range(300):
        put_transient(process, bytes(1000))
    process.housekeeping()
    assert process.disk.list("spill/")

    process.consume(3, 300)
    process.housekeeping()
    assert process.disk.list("spill/") == []


def test_transient_messages_do_not_survive_a_restart_nor_do_their_files() -> None:
    process = started(SimDisk())
    for _ in range(300):
        put_transient(process, bytes(1000))
    process.housekeeping()

    again = started(process.disk.crash(power=False))
    assert again.contents()[3] == []
    assert again.disk.list("spill/") == []


@pytest.mark.parametrize("kind", ["journal", "spill"])
def test_bytes_that_rotted_on_the_disk_are_an_error_and_never_a_message(kind: str) -> None:
    process = started(SimDisk())
    for _ in range(200):
        if kind == "journal":
            process.publish((1,), bytes(1000))
            process.turn()
        else:
            put_transient(process, bytes(1000))
    process.housekeeping()
    prefix = "seg-" if kind == "journal" else "spill/"
    for name in process.disk.list(prefix):
        for offset in range(4600, process.disk.size(name), 512) if kind == "journal" else [2000]:
            process.disk.flip(name, offset)

    with pytest.raises(CorruptRecord, match=r"checksum|frame") as caught:
        process.contents()
    if kind == "journal":
        assert "q1" in caught.value.queues


def test_spilling_without_room_keeps_the_messages_in_memory() -> None:
    process = started(SimDisk())
    process.housekeeping()
    process.disk.capacity = process.disk.capacity - process.disk.free_bytes()
    for _ in range(100):
        put_transient(process, bytes(1000))
    for _ in range(5):
        process.store.journal.maintain(process, 0, 0)
    assert process.disk.list("spill/") == []
    assert len(process.contents()[3]) == 100


def test_dead_extents_leave_memory_at_once() -> None:
    process = started(SimDisk())
    for _ in range(20):
        process.publish((1,), bytes(1000))
    process.turn()
    process.consume(1, 20)
    process.turn()
    process.store.journal.maintain(process, 0, 0)
    assert process.arena.resident_bytes <= 2 * CONFIG.extent_bytes
