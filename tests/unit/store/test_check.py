"""`check_store` finds what is wrong, says where, and complains about nothing else."""

from __future__ import annotations

import json
import struct
from random import Random

from tidemark.model import records
from tidemark.sim.disk import SimDisk
from tidemark.sim.store import Process
from tidemark.store.check import CheckSummary, check_store


def filled() -> Process:
    process = Process(SimDisk(), Random(1), 1_000_000)
    change = {"op": "declare-queue", "queue": {"name": "orders", "number": 1}}
    process.store.catalog.append(json.dumps(change).encode(), 0)
    for _ in range(150):
        process.publish((1,), bytes(900))
        process.turn()
    process.consume(1, 20)
    process.turn()
    return process


def test_an_empty_directory_and_a_good_store_have_nothing_wrong() -> None:
    assert list(check_store(SimDisk())) == []
    summary = CheckSummary()
    assert list(check_store(filled().disk, None, summary)) == []
    assert summary.records > 150
    assert summary.bytes > 150_000


def test_a_store_that_is_in_use_or_was_killed_has_nothing_wrong() -> None:
    process = filled()
    process.publish((1,), b"on its way")
    process.store.flush(0)
    assert list(check_store(process.disk.crash())) == []


def test_damage_is_found_with_the_segment_the_offset_and_the_name_of_the_queue() -> None:
    process = filled()
    first = process.store.journal.segments[0]
    process.disk.flip(first.name, 8000)

    [finding] = list(check_store(process.disk))
    assert finding.path == first.name
    assert finding.offset <= 8000 < finding.offset + 1100
    assert finding.queues == ("orders",)
    assert "orders" in str(finding)


def test_every_place_of_damage_is_found_not_only_the_first() -> None:
    process = filled()
    first, second = process.store.journal.segments[:2]
    for segment in (first, second):
        for offset in (8000, 20_000):
            process.disk.flip(segment.name, offset)
    assert [finding.path for finding in check_store(process.disk)] == [first.name] * 2 + [second.name] * 2


def test_a_damaged_catalog_is_found() -> None:
    process = filled()
    process.store.catalog.append(b"{}", 0)
    process.turn()
    process.store.catalog.append(b"{}", 0)
    process.turn()
    process.disk.flip("catalog-0000000000000001-0000.log", 4096 + 70)
    assert [finding.path for finding in check_store(process.disk)] == ["catalog-0000000000000001-0000.log"]


def test_wiring_that_is_not_json_is_found() -> None:
    process = filled()
    process.store.catalog.append(b"{not json", 0)
    process.turn()
    [finding] = list(check_store(process.disk))
    assert "not JSON" in finding.problem


def test_an_end_before_its_message_and_sequences_that_fall_are_found() -> None:
    process = filled()
    journal = process.store.journal
    journal.settled(1, 0, struct.pack("<Q", process.arena.next_seq + 50), False, 0)
    process.turn()
    journal.append(records.encode_takeover(1, 0, bytes(16)))
    process.turn()
    assert [finding.problem.split()[0] for finding in check_store(process.disk)] == ["the", "sequence"]


def test_the_check_changes_nothing() -> None:
    process = filled()
    process.disk.flip(process.store.journal.segments[0].name, 8000)
    before = {name: process.disk.read(name, 0, 1 << 30) for name in process.disk.list()}
    list(check_store(process.disk))
    assert {name: process.disk.read(name, 0, 1 << 30) for name in process.disk.list()} == before
