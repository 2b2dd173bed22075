"""Where a log ends after a crash, and what is damage."""

from __future__ import annotations

from dataclasses import replace
from random import Random

import pytest

from tidemark.errors import CorruptRecord
from tidemark.sim.disk import SimDisk
from tidemark.sim.store import CONFIG, Process
from tidemark.store.check import check_store
from tidemark.store.segment import HEAD_BYTES

SKIP = replace(CONFIG, on_corruption="skip")


def started(disk: SimDisk, config: object = CONFIG) -> Process:
    return Process(disk, Random(1), 1_000_000, config)


def three_frames() -> tuple[Process, list[int], list[int]]:
    """A process that has written three frames with a message each; (it, sequences, offsets of the frames)."""
    process = started(SimDisk())
    process.turn()
    seqs, offsets = [], []
    for number in range(3):
        offsets.append(process.store.journal.segments[-1].used)
        seqs.append(process.publish((1,), b"message %d" % number))
        process.turn()
    return process, seqs, offsets


def test_a_bad_frame_at_the_end_is_a_torn_tail_and_everything_before_it_is_kept() -> None:
    process, seqs, offsets = three_frames()
    name = process.store.journal.segments[-1].name
    disk = process.disk.crash(power=False)
    disk.flip(name, offsets[2] + 100)

    again = started(disk)
    assert [seq for seq, _ in again.contents()[1]] == seqs[:2]
    assert again.report.torn is not None
    assert (again.report.torn.path, again.report.torn.offset) == (name, offsets[2])
    assert again.report.damage == []


def test_a_bad_frame_that_a_later_one_knew_to_be_durable_is_damage_and_the_start_is_refused() -> None:
    process, _, offsets = three_frames()
    name = process.store.journal.segments[-1].name
    disk = process.disk.crash(power=False)
    disk.flip(name, offsets[0] + 100)

    with pytest.raises(CorruptRecord) as caught:
        started(disk)
    assert (caught.value.path, caught.value.offset) == (name, offsets[0])
    assert caught.value.queues == ("q1",)
    assert "tidemark store check" in str(caught.value)


def test_damage_can_be_skipped_is_reported_with_its_messages_and_the_rest_is_served() -> None:
    process, seqs, offsets = three_frames()
    name = process.store.journal.segments[-1].name
    disk = process.disk.crash(power=False)
    disk.flip(name, offsets[0] + 64 + 48 + 4 + 12)

    again = started(disk, SKIP)
    assert again.contents()[1] == [(seqs[1], b"message 1"), (seqs[2], b"message 2")]
    [damage] = again.report.damage
    assert (damage.path, damage.offset, damage.suspects) == (name, offsets[0], [(1, seqs[0])])
    assert damage.queues == ("q1",)

    # It stays reported, and the rest stays served, until compaction has left it behind.
    third = started(again.disk.crash(), SKIP)
    assert third.contents() == again.contents()
    assert len(third.report.damage) == 1


def test_after_a_clean_stop_even_the_last_frame_is_known_to_have_been_durable() -> None:
    process, _, offsets = three_frames()
    name = process.store.journal.segments[-1].name
    process.stop()
    disk = process.disk.crash()
    disk.flip(name, offsets[2] + 100)

    with pytest.raises(CorruptRecord):
        started(disk)


@pytest.mark.parametrize("offset", [0, 20, 70, 110, 4000])
def test_a_segment_whose_head_is_damaged_is_not_read(offset: int) -> None:
    process, _, _ = three_frames()
    disk = process.disk.crash()
    disk.flip(process.store.journal.segments[-1].name, offset)

    with pytest.raises(CorruptRecord, match=r"at byte 0"):
        started(disk)


def test_a_frame_lost_in_the_middle_of_what_was_not_synced_ends_the_log_and_later_ones_do_not_return() -> (
    None
):
    process = started(SimDisk())
    process.turn()
    kept = process.publish((1,), b"kept")
    process.turn()
    segment = process.store.journal.segments[-1]
    offset = segment.used
    for body in (b"lost", b"after"):
        process.publish((1,), body)
        process.store.flush(0)
    process.disk.work(2)
    disk = process.disk.crash(power=False)
    disk.flip(segment.name, offset + 80)

    again = started(disk)
    assert [seq for seq, _ in again.contents()[1]] == [kept]
    # New frames go where the lost ones were; the old one behind them must not be taken for a later one.
    again.publish((1,), b"lost")
    again.turn()
    assert [body for _, body in started(again.disk.crash()).contents()[1]] == [b"kept", b"lost"]


def test_the_old_life_of_a_recycled_file_is_never_read() -> None:
    process = started(SimDisk())
    for _ in range(60):
        process.publish((1,), bytes(3000))
    process.turn()
    process.consume(1, 60)
    process.housekeeping()
    assert process.disk.list("pool-")
    for _ in range(40):
        process.publish((2,), bytes(3000))
        process.turn()
        process.store.journal.maintain(process, 0, 0)

    contents = process.contents()
    again = started(process.disk.crash())
    assert again.contents() == contents
    assert list(check_store(again.disk)) == []


def test_a_kill_without_loss_of_power_makes_what_it_left_durable_before_it_is_served() -> None:
    process = started(SimDisk())
    process.publish((1,), b"written but not synced")
    process.store.flush(0)
    process.disk.dice = Random(4)
    disk = process.disk.crash(power=False)
    again = started(disk)
    served = again.contents()
    again.turn()

    assert started(again.disk.crash()).contents() == served


@pytest.mark.parametrize("seed", range(150))
def test_whatever_bit_flips_nothing_wrong_is_ever_served(seed: int) -> None:
    dice = Random(seed)
    process = started(SimDisk(dice))
    for _ in range(30):
        for _ in range(dice.randint(1, 5)):
            process.publish((dice.choice((1, 2)),), dice.randbytes(dice.randint(1, 900)))
        process.consume(1, dice.randint(0, 6))
        process.turn()
    everything = {number: dict(rows) for number, rows in process.contents().items()}
    disk = process.disk.crash(power=False)
    name = dice.choice(disk.list("seg-"))
    disk.flip(name, dice.randrange(disk.size(name)), dice.randrange(8))

    findings = list(check_store(disk))
    try:
        refused = started(disk.crash(power=False))
    except CorruptRecord:
        assert findings, "recovery refuses what the check calls good"
        again = started(disk, SKIP)
        assert again.report.damage
    else:
        assert not findings, "recovery accepts what the check calls damaged"
        again = refused
    for number, rows in again.contents().items():
        for seq, body in rows:
            assert everything[number].get(seq, body) == body
            assert seq in everything[number] or again.report.damage or again.report.torn


def test_the_head_of_a_segment_is_one_block() -> None:
    assert HEAD_BYTES == 4096
