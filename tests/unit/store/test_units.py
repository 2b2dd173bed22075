"""Reading the logs for members that follow, and adopting what they are given."""

from __future__ import annotations

from dataclasses import replace
from random import Random

import pytest

from tidemark.errors import CorruptRecord, LogGone, UnitRefused
from tidemark.model import records
from tidemark.model.arena import MEMORY, Writer
from tidemark.model.peers import Ends, Log, Takeover, Unit
from tidemark.sim.disk import SimDisk
from tidemark.sim.replica import Life
from tidemark.sim.store import CONFIG, Process
from tidemark.store.check import check_store
from tidemark.store.config import StoreConfig
from tidemark.store.frames import FRAME_BYTES, walk
from tidemark.store.rewind import rewind
from tidemark.store.segment import HEAD_BYTES
from tidemark.store.store import Store
from tidemark.store.tables import first_whole, merged
from tidemark.store.units import JOINED_BYTES, joined

A_QUEUE = b'["queue one", 1]'


def started(disk: SimDisk | None = None, config: StoreConfig = CONFIG) -> Process:
    return Process(disk or SimDisk(), Random(1), 1_000_000, config)


def follower(disk: SimDisk | None = None, config: StoreConfig = CONFIG) -> Life:
    return Life(disk or SimDisk(), Random(2), 1_000_000, config)


def working(messages: int = 60, size: int = 500) -> Process:
    """One that has written several segments, a few messages a frame."""
    process = started()
    process.store.catalog.append(A_QUEUE, 0)
    for number in range(messages):
        process.publish((1,), b"%04d" % number + bytes(size))
        if number % 4 == 3:
            process.turn()
    process.turn()
    return process


def units(store: Store, log: Log, after: int = 0, budget: int = 1 << 20) -> list[Unit]:
    found: list[Unit] = []
    while True:
        some = store.units_after(log, after, budget)
        if not some:
            return found
        found += [replace(unit, payload=memoryview(bytes(unit.payload))) for unit in some]
        after = found[-1].last


def sequences(found: list[Unit]) -> list[int]:
    return [row[3] for unit in found for row in walk(unit.payload, 0, len(unit.payload))]


def catch_up(life: Life, source: Store) -> None:
    for log in Log:
        for unit in units(source, log, life.store.ends[log]):
            assert unit.previous == life.store.ends[log]
            life.adopt(log, unit.payload, 0)
    life.store.flush(0)
    synced(life.store)


def synced(store: Store) -> None:
    while not store.idle:
        store.completed()


# Ends ------------------------------------------------------------------------------------------


def test_a_log_ends_with_its_last_record_and_not_with_numbers_of_transient_messages() -> None:
    process = started()
    memory = Writer(process.arena, MEMORY)
    seq = process.publish((1,), b"persistent")
    memory.put((1,), 0, None, 0, False, b"", b"", b"", b"transient")
    told = process.store.journal.last_seq
    assert process.store.ends.journal == 1

    process.turn()
    assert told == seq + 1
    assert process.store.ends == process.store.durable_ends == Ends(1, seq)
    assert process.store.journal.durable_seq == told


def test_what_is_sealed_can_be_sent_before_it_is_durable() -> None:
    process = started(SimDisk(Random(1), lag=50))
    while not process.store.idle:
        process.store.completed()
    before = process.store.durable_ends
    process.publish((1, 2), b"for two queues")
    process.store.catalog.append(b"{}", 0)
    process.store.flush(0)
    assert process.store.durable_ends == before
    assert process.store.ends == Ends(before.catalog + 1, before.journal + 2)
    for log in Log:
        (unit,) = process.store.units_after(log, before[log], 1)
        assert (unit.previous, unit.last) == (before[log], process.store.ends[log])


def test_who_waits_for_a_transient_message_is_covered_by_the_record_before_it() -> None:
    life = follower()
    life.store.take_over("ab" * 16, 0)
    journal = life.store.journal
    memory = Writer(life.arena, MEMORY)
    ends, told = [], []
    for _ in range(3):
        journal.put((1,), 0, None, 0, True, b"", b"", b"", b"persistent")
        memory.put((1,), 0, None, 0, False, b"", b"", b"", b"transient")
        told.append(journal.last_seq)
        life.store.flush(0)
        ends.append(life.store.ends.journal)
    assert [seq - end for seq, end in zip(told, ends, strict=True)] == [1, 1, 1]
    assert life.store.covers(ends[0] - 1) < told[0]
    assert life.store.covers(ends[0]) == told[0]
    assert life.store.covers(ends[1]) == told[1]
    assert life.store.covers(ends[2] + 5) == ends[2] + 5


# Units -------------------------------------------------------------------------------------------


@pytest.mark.parametrize("budget", [1, 3000, 1 << 20])
def test_units_are_the_frames_of_the_log_one_behind_the_other(budget: int) -> None:
    process = working()
    found = units(process.store, Log.JOURNAL, budget=budget)
    assert [unit.previous for unit in found] == [0, *(unit.last for unit in found[:-1])]
    assert sequences(found) == list(range(1, process.store.ends.journal + 1))
    assert found[-1].last == process.store.ends.journal
    assert len(found) >= 1 + 60 // 4
    assert process.store.units_after(Log.JOURNAL, process.store.ends.journal, 1) == []


def test_a_reader_may_begin_within_a_frame() -> None:
    process = working()
    process.store.catalog.append(b"[1]", 0)
    process.store.catalog.append(b"[2]", 0)
    process.turn()
    for log in Log:
        for seq in range(process.store.ends[log]):
            assert sequences(units(process.store, log, seq))[0] == seq + 1


def test_what_was_paged_out_is_read_back_and_memory_stays_within_its_budget() -> None:
    process = working(messages=400)
    process.store.journal.pager.trim(process.store.journal.completed_ticket, 0)
    resident = process.arena.resident_bytes
    assert sequences(units(process.store, Log.JOURNAL, budget=1)) == list(range(1, 402))
    assert process.arena.resident_bytes == resident < CONFIG.cache_bytes


def test_bytes_that_rotted_are_never_given() -> None:
    process = working(messages=200)
    process.store.journal.pager.trim(process.store.journal.completed_ticket, 0)
    process.disk.flip(process.store.journal.segments[0].name, HEAD_BYTES + 2 * FRAME_BYTES + 100)
    with pytest.raises(CorruptRecord):
        units(process.store, Log.JOURNAL)


def test_reading_on_at_the_tail_looks_only_at_what_is_new(monkeypatch: pytest.MonkeyPatch) -> None:
    process = working()
    at = units(process.store, Log.JOURNAL)[-1].last
    process.store.units_after(Log.JOURNAL, at, 1)
    looked: list[int] = []
    honest = process.store.journal.units._unit
    monkeypatch.setattr(
        process.store.journal.units, "_unit", lambda *args: looked.append(args[2]) or honest(*args)
    )
    process.publish((1,), b"new")
    process.turn()
    for _ in range(3):  # several readers at the same place
        (unit,) = process.store.units_after(Log.JOURNAL, at, 1 << 20)
        assert unit.previous == at
    assert len(looked) == 3


def test_the_catalog_is_read_from_memory_and_from_the_disk_alike(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("tidemark.store.units.TAIL_BYTES", 0)
    process = started(SimDisk(Random(1), lag=3))
    for number in range(60):
        process.store.catalog.append(b"[%d]" % number + b" " * 900, 0)
        process.turn()
        for budget in (1, 1 << 20):
            found = units(process.store, Log.CATALOG, budget=budget)
            assert sequences(found) == list(range(1, number + 3))
    assert len(process.store.catalog.segments) > 2


# Joining -----------------------------------------------------------------------------------------


def test_small_frames_are_joined_and_say_the_same() -> None:
    process = working(messages=400)
    found = units(process.store, Log.JOURNAL)
    fewer = joined(found)
    assert sequences(fewer) == sequences(found)
    assert b"".join(unit.payload for unit in fewer) == b"".join(unit.payload for unit in found)
    assert len(fewer) < len(found) / 20
    end = 0
    for unit in fewer:
        assert unit.previous == end < unit.first
        assert len(unit.payload) <= JOINED_BYTES
        end = unit.last
    assert end == process.store.ends.journal


def test_a_frame_that_is_large_is_neither_copied_nor_cut() -> None:
    process = started()
    for _ in range(3):
        process.publish((1,), bytes(JOINED_BYTES - 4000))
        process.turn()
    *_, last = found = units(process.store, Log.JOURNAL)
    assert joined(found)[-3:] == found[-3:]
    assert joined(found)[-1].payload is last.payload


def test_the_record_that_opens_a_history_stays_alone() -> None:
    life = follower()
    catch_up(life, working().store)
    life.store.take_over("ab" * 16, 0)
    life.store.flush(0)
    later = Life(SimDisk(), Random(3), 1_000_000, CONFIG)
    for log in Log:
        for unit in joined(units(life.store, log)) if log is Log.JOURNAL else units(life.store, log):
            later.adopt(log, unit.payload, 0)
    assert later.store.table == life.store.table
    assert later.store.ends == life.store.ends


def test_what_is_adopted_joined_can_be_cut_back_to_within_a_frame_and_read_on_from_there() -> None:
    disk = SimDisk()
    process, life = working(), follower(disk)
    for log in Log:
        for unit in joined(units(process.store, log)) if log is Log.JOURNAL else units(process.store, log):
            life.adopt(log, unit.payload, 0)
    life.store.flush(0)
    synced(life.store)
    at = units(process.store, Log.JOURNAL)[7].last
    assert at not in [unit.last for unit in units(life.store, Log.JOURNAL)]
    rewind(disk, CONFIG, Ends(life.store.ends.catalog, at))
    again = follower(disk)
    assert again.store.ends.journal == at
    catch_up(again, process.store)
    assert sequences(units(again.store, Log.JOURNAL)) == sequences(units(process.store, Log.JOURNAL))


# Being filled ------------------------------------------------------------------------------------


def filled(monkeypatch: pytest.MonkeyPatch, being_filled: bool) -> tuple[Life, list[str]]:
    """One that has adopted much more than it may keep while it is filled; and how it came by its files."""
    monkeypatch.setattr("tidemark.store.journal.RECOVERY_CACHE_BYTES", 16 << 10)
    config = replace(CONFIG, cache_bytes=1 << 20)
    source, life = working(messages=400), follower(config=config)
    made: list[str] = []
    disk = life.store.files.disk
    for way in ("create", "allocate", "prepare"):
        honest = getattr(disk, way)
        monkeypatch.setattr(
            disk, way, lambda *file, way=way, honest=honest: made.append(way) or honest(*file)
        )
    life.store.journal.fill(being_filled)
    for unit in units(source.store, Log.JOURNAL):
        life.adopt(Log.JOURNAL, unit.payload, 0)
        life.store.journal.completed()
        life.store.journal._prepare()
    synced(life.store)
    assert sequences(units(life.store, Log.JOURNAL)) == sequences(units(source.store, Log.JOURNAL))
    return life, made


def test_a_journal_that_is_filled_keeps_little_in_memory_and_writes_no_zeros(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    life, made = filled(monkeypatch, being_filled=True)
    assert life.arena.resident_bytes < (16 << 10) + 2 * CONFIG.extent_bytes
    assert "prepare" not in made
    # What `allocate` does is to create a file here, too. The first one is that of the history.
    assert made.count("allocate") > 2
    assert made.count("create") == made.count("allocate") + 1


def test_a_journal_that_follows_keeps_what_it_may_and_prepares_files(monkeypatch: pytest.MonkeyPatch) -> None:
    life, made = filled(monkeypatch, being_filled=False)
    assert life.arena.resident_bytes > 128 << 10
    assert "prepare" in made


def test_a_journal_that_was_filled_goes_on_in_a_segment_with_zeros(monkeypatch: pytest.MonkeyPatch) -> None:
    life, _ = filled(monkeypatch, being_filled=True)
    journal = life.store.journal
    assert journal.segments[-1].reserved
    journal.fill(False)
    while journal._next is None:
        journal._prepare()
    before, left = len(journal.segments), journal.segments[-1]
    assert left.size - left.used > 2 * CONFIG.extent_bytes, "it could go on where it is"
    source = working(messages=460)
    for unit in units(source.store, Log.JOURNAL):
        if unit.last > life.store.ends.journal:
            life.adopt(Log.JOURNAL, unit.payload, 0)
    synced(life.store)
    assert len(journal.segments) == before + 1 and left.sealed
    assert not journal.segments[-1].reserved
    assert sequences(units(life.store, Log.JOURNAL)) == sequences(units(source.store, Log.JOURNAL))


def test_nobody_else_goes_on_in_a_segment_without_zeros() -> None:
    segments = working(messages=400).store.journal.segments
    assert len(segments) > 3 and not any(segment.reserved for segment in segments)


def test_what_was_in_memory_before_a_journal_was_filled_stays(monkeypatch: pytest.MonkeyPatch) -> None:
    life, _ = filled(monkeypatch, being_filled=False)
    before = life.arena.resident_bytes
    life.store.journal.fill(True)
    life.store.journal.completed()
    assert life.arena.resident_bytes == before


# Adopting ----------------------------------------------------------------------------------------


def test_a_follower_holds_what_its_source_does_and_so_does_one_that_follows_it() -> None:
    process = working()
    process.consume(1, 20)
    process.turn()
    first, second = follower(), follower()
    catch_up(first, process.store)
    catch_up(second, first.store)
    for life in (first, second):
        assert life.contents()[1] == process.contents()[1]
        assert life.wiring == {"queue one": 1}
        assert life.store.ends == life.store.durable_ends == process.store.ends
        assert life.store.table == process.store.table
        assert life.store.queue_max == process.store.queue_max == 1
        mine, theirs = units(life.store, Log.JOURNAL), units(process.store, Log.JOURNAL)
        assert [bytes(unit.payload) for unit in mine] == [bytes(unit.payload) for unit in theirs]


def test_a_member_that_starts_writes_nothing_and_finds_what_it_adopted() -> None:
    process = working()
    disk = SimDisk()
    catch_up(follower(disk), process.store)
    for _ in range(3):
        disk = disk.crash()
        again = follower(disk)
        assert again.store.ends == process.store.ends
        assert again.store.table == process.store.table
        assert again.contents()[1] == process.contents()[1]
        assert list(check_store(disk)) == []


def test_a_unit_that_cannot_be_the_next_is_refused_and_leaves_nothing_behind() -> None:
    process = working(8)
    life = follower()
    catch_up(life, process.store)
    ends = life.store.ends
    old = units(process.store, Log.JOURNAL)[-1].payload
    message = records.encode_message(ends.journal + 1, (1,), 0, None, 0, True, b"", b"", b"", b"body")
    takeover = records.encode_takeover(ends.journal + 2, 0, bytes(16))
    for bad in (
        bytes(old),
        b"",
        message[:-8],
        message + message,
        takeover + message,
        takeover[:-8],
        b"\xff" * 64,
    ):
        with pytest.raises(UnitRefused):
            life.store.adopt_records(memoryview(bad), 0)
        assert life.store.ends == ends
    change = records.encode_catalog(ends.catalog, 0, b"{}")
    for bad in (change, b"", change[:-8], b"\xff" * 64):
        with pytest.raises(UnitRefused):
            life.store.adopt_changes(memoryview(bad), 0)
        assert life.store.ends == ends
    process.publish((1,), b"good")
    process.turn()
    catch_up(life, process.store)
    assert life.contents()[1] == process.contents()[1]


def test_a_unit_larger_than_a_segment_is_adopted() -> None:
    process = started()
    process.store.catalog.append(A_QUEUE, 0)
    process.publish((1,), bytes(3 * CONFIG.segment_bytes))
    process.turn()
    life = follower()
    catch_up(life, process.store)
    assert life.contents()[1] == process.contents()[1]


# Histories -----------------------------------------------------------------------------------------


def test_who_takes_over_begins_a_history_in_both_logs_once() -> None:
    disk = SimDisk()
    life = follower(disk)
    taken = life.store.take_over("ab" * 16, 0)
    assert taken == Takeover("ab" * 16, Ends(1, 1))
    assert life.store.take_over("ab" * 16, 0) == taken
    assert life.store.ends == Ends(1, 1)
    again = life.store.take_over("cd" * 16, 0)
    synced(life.store)
    assert follower(disk.crash()).store.table == (again, taken)


def test_a_takeover_that_reached_one_log_only_is_one_of_both() -> None:
    """Its records in the other log would be behind the last one there."""
    old, new = b"o" * 16, b"n" * 16
    table = merged([(new, 7), (old, 1)], [(old, 1)], Ends(9, 20))
    assert table == (Takeover(new.hex(), Ends(7, 21)), Takeover(old.hex(), Ends(1, 1)))
    table = merged([(old, 3)], [(new, 9), (old, 5), (b"0" * 16, 1)], Ends(4, 9))
    assert [row.first for row in table] == [Ends(5, 9), Ends(3, 5), Ends(3, 1)]


def test_a_start_without_the_cluster_is_a_takeover_in_both_logs() -> None:
    process = started()
    process.stop()
    again = started(process.disk)
    assert [row.first for row in again.store.table] == [Ends(2, 2), Ends(1, 1)]


# What is missing -------------------------------------------------------------------------------------


def with_garbage() -> Process:
    process = started()
    process.store.catalog.append(b'["queue two", 2]', 0)
    for number in range(250):
        process.publish((2 if number % 10 == 0 else 1,), b"%04d" % number + bytes(800))
        if number % 10 == 9:
            process.turn()
    process.consume(1, 250)
    process.turn()
    return process


def test_behind_what_was_compacted_a_log_is_whole_and_before_it_one_must_begin_at_the_beginning() -> None:
    process = with_garbage()
    assert process.store.log_start(Log.JOURNAL) == 0
    process.housekeeping()
    start = process.store.log_start(Log.JOURNAL)
    assert 0 < start < process.store.ends.journal

    found = sequences(units(process.store, Log.JOURNAL, start))
    assert found == list(range(start + 1, process.store.ends.journal + 1))
    for seq in (1, start // 2, start - 1):
        with pytest.raises(LogGone):
            process.store.units_after(Log.JOURNAL, seq, 1)
    assert started(process.disk.crash()).store.log_start(Log.JOURNAL) == start


def test_a_copy_of_a_compacted_log_has_all_that_is_left_and_knows_what_it_lacks() -> None:
    process = with_garbage()
    process.housekeeping()
    first, second = follower(), follower()
    catch_up(first, process.store)
    catch_up(second, first.store)
    for life in (first, second):
        assert life.contents()[2] == process.contents()[2]
        assert life.store.ends == process.store.ends
        assert life.store.table == process.store.table
        assert life.store.log_start(Log.JOURNAL) == process.store.log_start(Log.JOURNAL)


def test_a_copy_whose_source_has_nothing_left_still_ends_where_the_source_does() -> None:
    process = started()
    for _ in range(300):
        process.publish((1,), bytes(800))
    process.turn()
    process.consume(1, 300)
    for _ in range(5):
        process.turn()
        process.store.journal.maintain(process, 0, 0)
    life = follower()
    catch_up(life, process.store)
    assert life.store.ends == process.store.ends
    assert life.store.table == process.store.table
    assert life.store.log_start(Log.JOURNAL) == process.store.log_start(Log.JOURNAL) > 1


def test_a_copy_is_told_of_a_takeover_that_was_compacted_between_records_that_were_not() -> None:
    """The first record and the one where the log begins to be whole are there: neither has a place for it."""
    source = follower()
    source.store.take_over("aa" * 16, 0)
    source.store.catalog.append(A_QUEUE, 0)
    source.apply(A_QUEUE)
    journal, queue = source.store.journal, source.queues[1]

    def publish(count: int) -> None:
        for _ in range(count):
            seq, loc = journal.put((1,), 0, None, 0, True, b"", b"", b"", bytes(200))
            queue.put(seq, loc, 200, 0, 1 << 62, 1)
        source.store.flush(0)
        source.store.completed()

    publish(10)
    taken = source.store.take_over("bb" * 16, 0)
    publish(5)
    source.store.take_over("cc" * 16, 0)
    publish(1)
    source.store.hold(None)
    middle = next(segment for segment in journal.segments if segment.survey.first_seq == taken.first.journal)
    job = journal._compactor._job = journal._compactor._begin([middle], 0)
    now_ms = 0
    while journal._compactor._job is job:
        now_ms += 1
        journal.maintain(source, now_ms, 1 << 20)
        source.store.flush(0)
        source.store.completed()
    found = units(source.store, Log.JOURNAL)
    kinds = [records.record_type(unit.payload) for unit in found]
    assert sequences(found) == list(range(1, source.store.ends.journal + 1))
    assert kinds.count(records.RecordType.HISTORIES) == 1

    life = follower()
    catch_up(life, source.store)
    assert life.store.table == source.store.table
    assert life.store.log_start(Log.JOURNAL) == source.store.log_start(Log.JOURNAL) == taken.first.journal + 5


def test_a_copy_that_compaction_overtakes_must_begin_again() -> None:
    process = with_garbage()
    process.housekeeping()
    (first, *_) = process.store.units_after(Log.JOURNAL, 0, 1)
    given = process.store.units_after(Log.JOURNAL, 0, 1)[-1].last
    assert process.store.units_after(Log.JOURNAL, given, 1)
    process.consume(2, 20)
    process.housekeeping(100_000)
    with pytest.raises(LogGone):
        process.store.units_after(Log.JOURNAL, given, 1)
    assert first.previous == 0


def test_segments_that_were_made_and_never_used_do_not_count_as_missing() -> None:
    process = working(messages=150)
    process.housekeeping(slices=3)
    for _ in range(3):
        process = started(process.disk.crash())
        assert first_whole(process.store.journal.segments) == process.store.log_start(Log.JOURNAL) == 0


def test_the_image_of_the_wiring_ends_where_the_log_does() -> None:
    process = started()
    for number in range(30):
        process.store.catalog.append(b'["name", %d]' % number, 0)
    process.turn()
    ends = process.store.ends
    process.store.catalog.rewrite([b'["name", 29]'], 0)
    assert process.store.ends == process.store.durable_ends == ends
    assert process.store.log_start(Log.CATALOG) == ends.catalog
    life = follower()
    catch_up(life, process.store)
    assert life.wiring == {"name": 29}
    assert life.store.table == process.store.table
    again = follower(process.disk.crash())
    assert again.store.ends.catalog == ends.catalog and again.store.table == process.store.table


def test_an_image_with_more_changes_than_the_log_had_is_not_taken() -> None:
    process = started()
    process.store.catalog.rewrite([b"[1]", b"[2]"], 0)
    assert process.store.log_start(Log.CATALOG) == 0
    assert not process.store.catalog.wants_rewrite


# Holding -----------------------------------------------------------------------------------------------


def test_nothing_that_others_may_not_have_is_compacted_freed_or_rewritten() -> None:
    process = with_garbage()
    ends = process.store.ends
    process.store.hold(Ends(ends.catalog, ends.journal - 1))
    process.housekeeping()
    process.store.catalog.rewrite([], 0)
    assert process.store.log_start(Log.JOURNAL) == 0
    assert process.store.log_start(Log.CATALOG) == ends.catalog

    process.store.hold(ends)
    process.housekeeping(100_000)
    assert process.store.log_start(Log.JOURNAL) > 0


def test_a_checkpoint_gets_its_name_when_others_have_what_is_in_it() -> None:
    config = replace(CONFIG, checkpoint_bytes=4 << 10)
    process = started(config=config)
    process.store.hold(Ends())
    for number in range(10):
        process.publish((1,), bytes(800))
        process.turn(1_000_000 + 1000 * number)
    assert process.store.journal.checkpointer.made == 0
    process.store.close(2_000_000)
    process.store.completed()
    process.store.closed(process)
    assert process.disk.list("ckpt-") == []

    process = started(process.disk, config)
    process.store.hold(process.store.ends)
    for number in range(10):
        process.publish((1,), bytes(800))
        process.turn(3_000_000 + 1000 * number)
        process.store.hold(process.store.durable_ends)
    assert process.store.journal.checkpointer.made > 0


# The wiring first ----------------------------------------------------------------------------------------


def test_a_member_never_has_messages_on_its_disk_without_the_wiring_before_them() -> None:
    """Else it would take up the queue from another member, and not the messages."""
    process = working(4)
    for seed in range(200):
        dice = Random(seed)
        life = follower(SimDisk(dice, lag=5))
        for log in Log:
            for unit in units(process.store, log):
                life.adopt(log, unit.payload, 0)
        assert life.store.ends == process.store.ends
        for _ in range(dice.randrange(6)):
            life.store.completed()
        again = follower(life.store.files.disk.crash())
        if again.store.ends.journal:
            assert again.store.ends.catalog == process.store.ends.catalog
