"""A deleted key stays deleted, through compaction, freed segments and restarts; and tombstones do not stay for ever."""

from __future__ import annotations

from random import Random

import pytest

from tidemark.model import records
from tidemark.sim.disk import SimDisk
from tidemark.sim.keyed import STREAM, rows
from tidemark.sim.store import CONFIG, Process
from tidemark.store.check import check_store
from tidemark.store.frames import Survey, survey

FILLING = bytes(1500)


def started(disk: SimDisk | None = None) -> Process:
    return Process(disk or SimDisk(), Random(1), 1_000_000, CONFIG)


def shown(process: Process) -> dict[bytes, bytes | None]:
    """What the stream shows now."""
    return {key: body for _, key, body in rows(process.keyed.stream, process.store.journal.durable_seq)}


def put(process: Process, key: bytes, body: bytes | None, queue: int | None = None) -> int:
    seq, loc = process.keyed.put(key, body, 0, queue)
    if queue is not None:
        process.queues[queue].put(seq, loc, len(body or b""), 0, 1 << 62, 2)
    return seq


def fill(process: Process, count: int, queue: int = 2) -> None:
    """Messages that stay: what lies among them is not rewritten."""
    for _ in range(count):
        process.publish((queue,), FILLING)
    process.turn()


def roll(process: Process, queue: int = 3) -> None:
    """Messages for this queue until another segment is begun."""
    before = len(process.store.journal.segments)
    while len(process.store.journal.segments) == before:
        fill(process, 1, queue)


def next_segment(process: Process) -> None:
    """Go on in another segment; what it took to fill the one before is dead."""
    roll(process)
    process.consume(3, 100)
    process.turn()


def purge(process: Process) -> None:
    process.keyed.purge(process.store.journal.durable_seq, 0)
    process.turn()
    process.turn()


def restarted(process: Process) -> Process:
    again = started(process.disk.crash())
    assert list(check_store(again.disk)) == []
    return again


def old_version_in_a_full_segment() -> Process:
    """The key `a` has a version in a segment that is too full of life to be rewritten; then others follow."""
    process = started()
    put(process, b"a", b"old")
    fill(process, 15)
    next_segment(process)
    return process


def test_a_tombstone_is_kept_by_compaction_while_an_older_segment_holds_what_it_deleted() -> None:
    process = old_version_in_a_full_segment()
    put(process, b"a", None)
    next_segment(process)
    purge(process)
    assert shown(process) == {}

    process.housekeeping()
    assert process.store.journal.statistics().compactions > 0
    assert shown(restarted(process)) == {}


def test_of_a_tombstone_that_a_queue_still_holds_the_stream_stays_a_target() -> None:
    process = old_version_in_a_full_segment()
    put(process, b"a", None, queue=1)
    next_segment(process)
    purge(process)
    process.housekeeping()
    assert process.store.journal.statistics().compactions > 0

    again = restarted(process)
    assert shown(again) == {}
    assert [body for _, body in again.contents()[1]] == [b""]


def test_a_queue_that_is_done_with_a_tombstone_is_no_target_of_it_any_more() -> None:
    process = old_version_in_a_full_segment()
    put(process, b"a", None, queue=1)
    next_segment(process)
    process.consume(1, 1)
    purge(process)
    process.housekeeping()
    assert process.store.journal.statistics().compactions > 0

    again = restarted(process)
    assert shown(again) == {}
    assert again.contents()[1] == []


def test_a_segment_with_nothing_but_tombstones_is_not_freed_while_an_older_one_holds_what_they_deleted() -> (
    None
):
    process = started()
    put(process, b"a", b"old")
    fill(process, 10)
    roll(process)
    put(process, b"a", None)
    roll(process)
    process.consume(3, 1000)
    process.turn()
    purge(process)
    segments = process.store.journal.segments
    for _ in range(3):
        process.store.journal.maintain(process, 0, 0)
        process.turn()
    assert segments[1].empty == len(segments[1].extents)
    assert process.store.journal.segments == segments
    assert shown(restarted(process)) == {}


def test_an_old_version_that_a_pin_kept_in_an_older_segment_does_not_come_back() -> None:
    process = started()
    put(process, b"a", b"old")
    fill(process, 5)
    next_segment(process)
    process.keyed.pin("pin", process.store.journal.durable_seq, 0)
    put(process, b"a", None)
    roll(process, queue=1)
    # The older segment is rewritten, after the tombstone, and keeps what the pin sees.
    process.housekeeping()
    first, second = process.store.journal.segments[:2]
    assert first.compacted and not second.compacted
    assert first.compacted_upto > second.survey.tombstone_high

    purge(process)
    process.consume(1, 1000)
    process.housekeeping(100_000)
    assert process.store.journal.segments[1].compacted
    process.keyed.pin("pin", None, 0)
    process.turn()
    assert shown(process) == {}
    assert shown(restarted(process)) == {}


def test_an_old_version_that_a_pin_kept_beside_its_tombstone_does_not_come_back() -> None:
    process = started()
    put(process, b"a", b"old")
    process.turn()
    process.keyed.pin("pin", process.store.journal.durable_seq, 0)
    put(process, b"a", None)
    next_segment(process)
    purge(process)
    process.housekeeping()
    assert process.store.journal.segments[0].compacted
    process.keyed.pin("pin", None, 0)
    process.turn()
    assert shown(process) == {}
    assert shown(restarted(process)) == {}


def test_a_pinned_snapshot_shows_no_tombstone_that_was_purged_before_it_was_taken() -> None:
    process = old_version_in_a_full_segment()
    put(process, b"a", None)
    put(process, b"b", b"stays")
    process.turn()
    purge(process)
    process.keyed.pin("pin", process.store.journal.durable_seq, 0)
    process.turn()
    purge(process)

    again = restarted(process)
    pinned = rows(again.keyed.stream, again.keyed.pins["pin"])
    assert [(key, body) for _, key, body in pinned] == [(b"b", b"stays")]


def test_tombstones_leave_the_disk_when_nothing_older_is_left() -> None:
    process = started()
    for number in range(40):
        put(process, b"%d" % number, b"old")
    next_segment(process)
    for number in range(40):
        put(process, b"%d" % number, None)
    next_segment(process)
    purge(process)
    process.housekeeping()
    assert sum(segment.survey.tombstones for segment in process.store.journal.segments) == 0
    assert shown(restarted(process)) == {}


def test_many_tombstones_that_wait_for_a_segment_full_of_life_have_it_rewritten_once() -> None:
    process = old_version_in_a_full_segment()
    oldest = process.store.journal.segments[0]
    # The first version is gone for good, but the segment does not know it.
    put(process, b"a", None)
    for number in range(400):
        put(process, b"short-lived %d" % number, b"x")
        put(process, b"short-lived %d" % number, None)
    next_segment(process)
    purge(process)
    process.housekeeping(slices=60)
    process.housekeeping(100_000, slices=60)
    segments = process.store.journal.segments
    assert segments[0] is not oldest
    assert sum(segment.survey.tombstones for segment in segments) == 0
    compactions = process.store.journal.statistics().compactions
    process.housekeeping(200_000, slices=60)
    assert process.store.journal.statistics().compactions == compactions
    assert len(process.contents()[2]) == 15
    assert shown(restarted(process)) == {}


def test_a_pin_does_not_have_segments_rewritten_again_and_again() -> None:
    process = old_version_in_a_full_segment()
    process.keyed.pin("pin", process.store.journal.durable_seq, 0)
    for number in range(400):
        put(process, b"a", None)
        put(process, b"short-lived %d" % number, None)
    next_segment(process)
    purge(process)
    process.housekeeping(slices=60)
    compactions = process.store.journal.statistics().compactions
    process.housekeeping(100_000, slices=60)
    assert process.store.journal.statistics().compactions == compactions
    assert shown(restarted(process)) == {}


def test_the_tombstones_of_a_stream_that_is_gone_are_not_kept(monkeypatch: pytest.MonkeyPatch) -> None:
    process = old_version_in_a_full_segment()
    put(process, b"a", None)
    next_segment(process)
    process.publish((1,), b"stays")
    next_segment(process)
    process.keyed.stream.clear()
    monkeypatch.setattr(process, "buries", lambda number: number != STREAM)
    process.housekeeping()
    segments = process.store.journal.segments
    assert sum(segment.survey.tombstones for segment in segments if segment.compacted) == 0


def test_the_numbers_that_are_our_own_do_not_count_as_queue_numbers() -> None:
    found = Survey()
    record = records.encode_message(5, (3, 0x7FFFFF00, 0x7FFFFFFF), 0, None, 0, True, b"", b"", b"", b"")
    survey(record, 0, len(record), found)
    assert found.queue_max == 3
