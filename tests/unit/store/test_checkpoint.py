"""A start with a checkpoint gives what a start without one gives, and reads only what came after it."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from random import Random

import pytest

from tidemark.broker.core import NEVER
from tidemark.errors import DiskFull
from tidemark.ports import Scratch
from tidemark.sim.disk import SimDisk
from tidemark.sim.keyed import rows
from tidemark.sim.store import CONFIG, Process
from tidemark.store.check import check_store
from tidemark.store.checkpoint import PREFIX, Inline
from tidemark.store.journal import Journal

CHECKPOINTS = replace(CONFIG, checkpoint_bytes=16 << 10)


def started(disk: SimDisk | None = None) -> Process:
    return Process(disk or SimDisk(), Random(1), 1_000_000, CHECKPOINTS)


def filled(messages: int = 60) -> Process:
    process = started()
    for number in range(messages):
        process.publish((1 + number % 2,), b"%04d" % number + bytes(600))
        process.keyed.put(b"%d" % (number % 7), b"%04d" % number, 0)
    process.turn(1_000_000)
    return process


def checkpointed(process: Process) -> Process:
    """A checkpoint of now."""
    checkpointer = process.store.journal.checkpointer
    made = checkpointer.made
    for turn in range(4):
        process.turn(1_010_000 + checkpointer.made * 1000 + 300 * turn)
    assert checkpointer.made == made + 1
    assert len(process.disk.list(PREFIX)) == 1
    return process


def everything(process: Process) -> object:
    stream = rows(process.keyed.stream, process.store.journal.durable_seq)
    return process.contents(), stream, process.keyed.pins


def without_checkpoint(disk: SimDisk) -> Process:
    """A start on a copy of this disk from which the checkpoints were removed."""
    copy = disk.crash(power=False).crash(power=False)
    for name in copy.list(PREFIX):
        copy.remove(name)
    return started(copy)


def restarted(process: Process) -> Process:
    """Kill the process and start again; it makes no difference that there is a checkpoint."""
    disk = process.disk.crash()
    plain = everything(without_checkpoint(copied(disk)))
    again = started(disk)
    assert everything(again) == plain
    assert list(check_store(again.disk)) == []
    return again


def copied(disk: SimDisk) -> SimDisk:
    copy = SimDisk()
    for name in disk.list():
        copy.write(name, 0, disk.read(name, 0, disk.size(name)))
        copy.sync(name)
    return copy


def test_a_start_reads_only_what_came_after_the_checkpoint() -> None:
    process = checkpointed(filled())
    process.publish((3,), b"after it")
    process.turn(2_000_000)
    again = restarted(process)
    assert again.report.checkpoint
    assert again.report.records < 5
    assert again.contents()[3] == [(process.arena.next_seq - 1, b"after it")]
    assert len(again.contents()[1]) == 30


def test_what_ended_after_the_checkpoint_does_not_come_back() -> None:
    process = checkpointed(filled())
    process.consume(1, 20)
    process.keyed.put(b"3", None, 0)
    process.turn(2_000_000)
    again = restarted(process)
    assert again.report.checkpoint
    assert len(again.contents()[1]) == 10


def test_a_checkpoint_survives_several_starts() -> None:
    process = checkpointed(filled())
    for number in range(3):
        process.publish((3,), b"start %d" % number)
        process.turn(2_000_000 + number)
        process = restarted(process)
        assert process.report.checkpoint
    assert [body for _, body in process.contents()[3]] == [b"start 0", b"start 1", b"start 2"]


def test_messages_that_compaction_has_moved_since_are_found_in_their_new_places() -> None:
    process = filled(200)
    process.consume(1, 40)
    checkpointed(process)
    process.consume(1, 40)
    process.store.journal.checkpointer.wait_ms = NEVER
    process.housekeeping(3_000_000)
    assert process.store.journal.statistics().compactions > 0
    again = restarted(process)
    assert again.report.checkpoint
    assert len(again.contents()[1]) == 20


def test_entries_whose_segments_were_freed_since_are_dropped() -> None:
    process = checkpointed(filled(300))
    process.store.journal.checkpointer.wait_ms = NEVER
    process.consume(1, 1000)
    process.consume(2, 1000)
    process.turn(2_000_000)
    for _ in range(300):
        process.publish((3,), bytes(600))
    process.turn(2_000_000)
    process.consume(3, 1000)
    process.housekeeping(3_000_000, slices=60)
    # What says that they ended has gone from the disk with them.
    assert len(process.store.journal.segments) < 4
    again = restarted(process)
    assert again.report.checkpoint
    assert again.report.dropped > 100
    assert again.contents()[1] == again.contents()[2] == []


def test_messages_that_were_never_on_the_disk_are_not_in_a_checkpoint() -> None:
    process = filled()
    seq, loc = process.memory.put((1,), 0, None, 0, False, b"", b"", b"", b"transient")
    process.queues[1].put(seq, loc, 9, 0, NEVER, 0)
    checkpointed(process)
    again = restarted(process)
    assert again.report.checkpoint
    assert b"transient" not in [body for _, body in again.contents()[1]]


def test_what_consumers_held_is_ready_again() -> None:
    process = filled()
    process.queues[1].take(10, 1 << 40)
    checkpointed(process)
    again = restarted(process)
    assert again.report.checkpoint
    assert (again.queues[1].ready, again.queues[1].acquired) == (30, 0)


def test_sequences_go_on_behind_those_of_transient_messages() -> None:
    process = filled()
    for _ in range(10):
        process.memory.put((1,), 0, None, 0, False, b"", b"", b"", b"transient")
    following = process.arena.next_seq
    checkpointed(process)
    assert started(process.disk.crash()).arena.next_seq > following


def test_after_a_clean_stop_nothing_is_read_again() -> None:
    process = filled()
    process.turn(2_000_000)
    process.store.close(2_000_000)
    while not process.store.idle:
        process.store.completed()
    process.store.closed(process)
    again = restarted(process)
    assert again.report.found.startswith("clean(")
    assert again.report.checkpoint
    assert again.report.records == 0


def test_a_small_journal_is_not_worth_a_checkpoint() -> None:
    process = started()
    process.publish((1,), b"hello")
    process.turn(2_000_000)
    process.turn(3_000_000)
    process.store.close(3_000_000)
    process.store.completed()
    process.store.closed(process)
    assert process.disk.list(PREFIX) == []


def head_flipped(disk: SimDisk, name: str) -> None:
    disk.flip(name, 33)


def part_flipped(disk: SimDisk, name: str) -> None:
    disk.flip(name, 4096 + 50)


def tables_flipped(disk: SimDisk, name: str) -> None:
    disk.flip(name, disk.size(name) - 1)


def cut_off(disk: SimDisk, name: str) -> None:
    disk.truncate(name, disk.size(name) - 8)


def empty(disk: SimDisk, name: str) -> None:
    disk.truncate(name, 0)


def misnamed(disk: SimDisk, name: str) -> None:
    disk.rename(name, f"{PREFIX}{1 << 50:016x}")


@pytest.mark.parametrize("harm", [head_flipped, part_flipped, tables_flipped, cut_off, empty, misnamed])
def test_a_checkpoint_that_is_not_whole_is_told_removed_and_not_used(
    harm: Callable[[SimDisk, str], None],
) -> None:
    process = checkpointed(filled())
    wanted = everything(process)
    disk = process.disk.crash()
    harm(disk, disk.list(PREFIX)[0])
    again = started(disk)
    assert not again.report.checkpoint
    assert len(again.report.unusable) == 1
    assert everything(again) == wanted
    assert disk.list(PREFIX) == []


def test_a_checkpoint_that_is_ahead_of_the_journal_is_not_used() -> None:
    process = filled()
    process.store.journal.checkpointer.wait_ms = NEVER
    early = copied(process.disk)
    process.store.journal.checkpointer.wait_ms = 0
    process = started(process.disk.crash())
    for number in range(60):
        process.publish((1,), b"%d" % number + bytes(600))
    checkpointed(process)
    name = process.disk.list(PREFIX)[0]
    early.write(name, 0, process.disk.read(name, 0, process.disk.size(name)))
    early.sync(name)
    again = started(early)
    assert not again.report.checkpoint
    assert "the journal ends before it" in again.report.unusable[0]
    assert len(again.contents()[1]) == 30


def test_a_checkpoint_of_another_layout_is_not_used(monkeypatch: pytest.MonkeyPatch) -> None:
    process = checkpointed(filled())
    wanted = everything(process)
    disk = process.disk.crash()
    monkeypatch.setattr("tidemark.sim.store.QueueCore", other_layout())
    again = started(disk)
    assert not again.report.checkpoint
    assert "layout" in again.report.unusable[0]
    assert everything(again) == wanted


def other_layout() -> type:
    from tidemark.broker.core import QueueCore

    return type("QueueCore", (QueueCore,), {"LAYOUT": b"queue-of-tomorrow"[:16]})


class Held:
    """Apart: a job that is done when the test says so."""

    def __init__(self, disk: SimDisk) -> None:
        self._inline = Inline(disk)
        self.state: bool | None = None

    def run(self, job: Callable[[Scratch], None]) -> Held:
        self._inline.run(job)
        return self

    def poll(self) -> bool | None:
        return self.state

    def stop(self) -> None:
        self.state = False


def test_a_checkpoint_gets_its_name_when_it_is_written_and_the_journal_is_durable() -> None:
    process = filled()
    held = Held(process.disk)
    checkpointer = process.store.journal.checkpointer
    checkpointer._apart = held
    process.turn(1_020_000)
    assert process.disk.exists(checkpointer.temporary)

    process.publish((1,), b"later")
    process.turn(1_040_000)
    assert process.disk.list(PREFIX) == []
    held.state = True
    process.turn(1_040_001)
    assert len(process.disk.list(PREFIX)) == 1
    assert checkpointer.made == 1


def test_a_checkpoint_does_not_get_its_name_before_the_journal_is_durable(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    process = filled()
    process.publish((1,), b"on its way")
    monkeypatch.setattr(process.disk, "work", lambda _: None)
    process.turn(1_020_000)
    process.turn(1_020_001)
    assert process.disk.list(PREFIX) == []
    monkeypatch.undo()
    process.turn(1_020_002)
    process.turn(1_020_003)
    assert len(process.disk.list(PREFIX)) == 1


def test_a_child_that_fails_leaves_nothing_and_another_is_tried_later() -> None:
    process = filled()
    checkpointer = process.store.journal.checkpointer
    checkpointer._apart = Held(process.disk)
    checkpointer._apart.state = False
    process.turn(1_020_000)
    process.turn(1_020_001)
    assert checkpointer.failed == 1
    assert process.disk.list("tmp-") == process.disk.list(PREFIX) == []
    checkpointer._apart = Inline(process.disk)
    process.publish((1,), bytes(20_000))
    process.turn(1_040_000)
    process.turn(1_040_001)
    assert len(process.disk.list(PREFIX)) == 1


def test_no_checkpoint_is_made_while_compaction_moves_entries(monkeypatch: pytest.MonkeyPatch) -> None:
    process = filled()
    monkeypatch.setattr(Journal, "moving", True)
    process.turn(1_020_000)
    process.turn(1_020_001)
    assert process.disk.list(PREFIX) == []


def test_a_checkpoint_leaves_room_for_the_journal() -> None:
    process = filled()
    process.disk.capacity -= process.disk.free_bytes() - 3 * CHECKPOINTS.segment_bytes
    process.turn(1_020_000)
    process.turn(1_020_001)
    assert process.store.journal.checkpointer.failed == 1
    assert process.disk.list("tmp-ckpt") == process.disk.list(PREFIX) == []


def test_the_check_of_a_store_looks_at_checkpoints() -> None:
    process = checkpointed(filled())
    assert list(check_store(process.disk)) == []
    name = process.disk.list(PREFIX)[0]
    process.disk.flip(name, 5000)
    found = list(check_store(process.disk))
    assert [finding.path for finding in found] == [name]
    assert "no message is affected" in found[0].problem


def test_only_the_newest_checkpoint_is_kept() -> None:
    process = checkpointed(filled())
    first = process.disk.list(PREFIX)
    for _ in range(60):
        process.publish((1,), bytes(600))
    checkpointed(process)
    assert process.disk.list(PREFIX) != first


def test_checkpoints_are_the_first_to_go_when_the_disk_is_full() -> None:
    process = checkpointed(filled())
    process.disk.capacity = process.disk.capacity - process.disk.free_bytes()
    for _ in range(100):
        if not process.store.journal.full:
            process.publish((1,), bytes(600))
        process.turn(2_000_000)
        process.store.journal.maintain(process, 2_000_000, 0)
    assert process.store.journal.full
    assert process.disk.list(PREFIX) == []


def test_without_the_setting_there_are_no_checkpoints() -> None:
    process = Process(SimDisk(), Random(1), 1_000_000, CONFIG)
    for _ in range(200):
        process.publish((1,), bytes(600))
        process.turn(2_000_000)
    process.store.close(2_000_000)
    process.store.completed()
    process.store.closed(process)
    assert process.disk.list(PREFIX) == []


def test_work_that_is_done_here_says_how_it_went() -> None:
    def broken(scratch: Scratch) -> None:
        raise DiskFull(path="here")

    assert Inline(SimDisk()).run(lambda scratch: scratch.write("a", 0, b"x")).poll() is True
    assert Inline(SimDisk()).run(broken).poll() is False
