"""The two logs together: no message is on the disk before the wiring that it needs."""

from __future__ import annotations

from random import Random

import pytest

from tidemark.errors import DiskFull
from tidemark.sim.disk import SimDisk
from tidemark.sim.store import CONFIG, Process


def started(disk: SimDisk) -> Process:
    return Process(disk, Random(1), 1_000_000)


def a_turn_of_more_than_an_extent() -> tuple[Process, int]:
    """A change of the wiring and more messages than fit into one frame, and how many writes that are."""
    process = started(SimDisk())
    process.turn()
    process.store.catalog.append(b'"queue"', 0)
    for _ in range(3 * CONFIG.extent_bytes // 1000):
        process.publish((1,), bytes(1000))
    process.store.flush(0)
    return process, len(process.disk._queue)


def test_wherever_the_power_fails_no_message_is_there_without_the_change_before_it() -> None:
    _, writes = a_turn_of_more_than_an_extent()
    assert writes > 3
    for done in range(writes):
        process, _ = a_turn_of_more_than_an_extent()
        process.disk.work(done)
        process.disk._queue.clear()
        again = started(process.disk.crash())
        assert again.changes or not again.contents()[1]
        assert len(again.contents()[1]) == 0 or done > 1


def test_messages_wait_with_the_wiring_that_has_no_room() -> None:
    process = started(SimDisk())
    process.turn()
    journal, catalog = process.store.journal, process.store.catalog
    process.disk.capacity -= process.disk.free_bytes()
    catalog.append(b'"%s"' % (b"x" * CONFIG.catalog_bytes), 0)
    first = process.publish((1,), bytes(CONFIG.extent_bytes // 2))
    with pytest.raises(DiskFull):
        process.publish((1,), bytes(CONFIG.extent_bytes // 2))
    process.store.completed()
    assert catalog.full and journal.full
    assert journal.durable_seq < first

    process.disk.capacity = 1 << 40
    process.turn()
    assert journal.durable_seq >= first
    assert len(started(process.disk.crash()).changes) == 1
