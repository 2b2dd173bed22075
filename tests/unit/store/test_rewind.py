"""Cutting the logs back and emptying the store: exact, and whole whenever the process dies."""

from __future__ import annotations

import copy
from dataclasses import replace
from random import Random

import pytest

from tidemark.errors import CorruptRecord, LogGone
from tidemark.model.peers import Ends, Log
from tidemark.sim.disk import SimDisk
from tidemark.sim.replica import Life
from tidemark.sim.store import CONFIG, Process
from tidemark.store.check import check_store
from tidemark.store.config import StoreConfig
from tidemark.store.intent import INTENT
from tidemark.store.rewind import reset, rewind
from tidemark.store.segment import HEAD_BYTES
from tidemark.store.status import read_status
from tidemark.store.store import Store


class Died(Exception):
    """The process is no more."""


def started(disk: SimDisk | None = None, config: StoreConfig = CONFIG) -> Process:
    return Process(disk or SimDisk(), Random(1), 1_000_000, config)


def member(disk: SimDisk, config: StoreConfig = CONFIG) -> Life:
    return Life(disk, Random(2), 1_000_000, config)


def written(config: StoreConfig = CONFIG) -> Process:
    """Several segments; message n (of queue 1) has sequence n + 2; 0-9, 10-19, … were consumed in between."""
    process = started(config=config)
    process.store.catalog.append(b'["queue one", 1]', 0)
    for number in range(120):
        process.publish((1,), b"%03d" % number + bytes(700))
        if number % 5 == 4:
            process.turn(1_000_000 + 1000 * number)
    for number in range(5):
        process.store.catalog.append(b'["name", %d]' % number, 0)
        process.turn(2_000_000)
    return process


def synced(store: Store) -> None:
    while not store.idle:
        store.completed()


def bodies(life: Life) -> list[int]:
    return [int(body[:3]) for _, body in life.contents()[1]]


def snapshot(disk: SimDisk) -> SimDisk:
    return copy.deepcopy(disk)


@pytest.mark.parametrize("clean", [True, False], ids=["clean", "dirty"])
def test_behind_the_point_nothing_is_left_and_before_it_nothing_is_lost(clean: bool) -> None:
    process = written()
    if clean:
        process.stop()
    end = process.store.ends
    for journal in (*range(2, 30), 60, 77, 78, end.journal - 1, end.journal, end.journal + 9):
        disk = snapshot(process.disk) if clean else snapshot(process.disk).crash()
        to = Ends(2 + journal % 5, journal)
        rewind(disk, CONFIG, to)
        life = member(disk)
        assert life.store.ends == to.least(end)
        assert bodies(life) == list(range(min(journal, end.journal) - 1))
        assert life.wiring.get("name") == (to.catalog - 3 if to.catalog > 2 else None)
        assert list(check_store(disk)) == []
        assert life.store.log_start(Log.JOURNAL) == 0
        assert [row.first for row in life.store.table] == [Ends(1, 1)]


def test_rewinding_again_to_the_same_point_or_further_back_is_as_good_as_once() -> None:
    disk = written().disk.crash()
    for to in (Ends(5, 90), Ends(5, 90), Ends(7, 200), Ends(4, 44), Ends(3, 43)):
        rewind(disk, CONFIG, to)
    life = member(disk)
    assert (life.store.ends, bodies(life)) == (Ends(3, 43), list(range(42)))
    life.store.take_over("ab" * 16, 0)
    synced(life.store)
    rewind(disk, CONFIG, Ends(3, 43))
    again = member(disk)
    assert (again.store.ends, bodies(again)) == (Ends(3, 43), list(range(42)))
    assert [row.first for row in again.store.table] == [Ends(1, 1)]


@pytest.mark.parametrize("to", [Ends(4, 62), Ends(4, 64), Ends(7, 20)], ids=str)
@pytest.mark.parametrize("power", [True, False], ids=["power", "process"])
def test_whoever_dies_on_the_way_leaves_it_undone_or_to_be_finished(to: Ends, power: bool) -> None:
    """K-74: KILL at every step of taking back; whoever starts next finishes it before anything else."""
    whole = written().disk.crash()
    ends = member(snapshot(whole)).store.ends
    outcomes = set()
    for steps in range(200):
        disk = snapshot(whole)
        disk.dice = Random(steps)
        try:
            with disk.dying(steps, Died):
                rewind(disk, CONFIG, to, Random(1).randbytes)
        except Died:
            decided = disk.exists(INTENT)
            disk = disk.crash(power=power)
            if steps % 3 == 0:
                # It dies again, in the middle of the start that finishes it.
                with disk.dying(steps % 7, Died), pytest.raises(Died):
                    member(disk)
                disk = disk.crash(power=power)
            life = member(disk)
            expected = [to] if decided else [to, ends]
            assert life.store.ends in expected
            assert bodies(life) == list(range(life.store.ends.journal - 1))
            assert list(check_store(disk)) == []
            outcomes.add(life.store.ends)
            rewind(disk, CONFIG, to)
            assert member(disk).store.ends == to
        else:
            assert outcomes == {to, ends}
            assert steps > 8
            return
    raise AssertionError("it never came to its end")


def test_a_torn_tail_is_not_brought_back_by_a_rewind() -> None:
    for seed in range(60):
        process = started(SimDisk(Random(seed), lag=30))
        process.store.catalog.append(b'["queue one", 1]', 0)
        for number in range(40):
            process.publish((1,), b"%03d" % number + bytes(700))
            if number % 3 == 0:
                process.turn()
        durable = process.store.durable_ends
        disk = process.disk.crash()
        point = Ends(2, 25)
        rewind(disk, CONFIG, point)
        life = member(disk)
        assert point.covers(life.store.ends)
        assert life.store.ends.covers(durable.least(point))
        assert bodies(life) == list(range(life.store.ends.journal - 1))
        assert list(check_store(disk)) == []


def test_damage_before_the_point_is_still_damage() -> None:
    process = written()
    process.stop()
    disk = process.disk
    segments = disk.list("seg-")
    disk.flip(segments[0], HEAD_BYTES + 2000)
    rewind(disk, CONFIG, Ends(3, 110))
    with pytest.raises(CorruptRecord):
        member(disk)
    with pytest.raises(CorruptRecord):
        rewind(disk, CONFIG, Ends(3, 20))


def test_a_checkpoint_goes_that_has_what_was_cut_off_and_an_older_one_stays() -> None:
    config = replace(CONFIG, checkpoint_bytes=4 << 10)
    process = written(config)
    process.turn(3_000_000)
    (name,) = process.disk.list("ckpt-")
    disk = process.disk.crash(power=False)
    for to, left in ((Ends(7, 121), [name]), (Ends(7, 60), []), (Ends(6, 121), [])):
        cut = snapshot(disk)
        rewind(cut, config, to)
        assert cut.list("ckpt-") == left
        life = member(cut, config)
        assert life.store.ends == to
        assert bodies(life) == list(range(to.journal - 1))


def test_a_log_is_not_cut_within_what_was_compacted() -> None:
    process = started()
    for number in range(250):
        process.publish((2 if number % 10 == 0 else 1,), b"%03d" % number + bytes(800))
        if number % 10 == 9:
            process.turn()
    process.consume(1, 250)
    process.housekeeping()
    contents, start = process.contents(), process.store.log_start(Log.JOURNAL)
    disk = process.disk.crash()
    before = {name: disk.read(name, 0, 1 << 30) for name in disk.list()}
    with pytest.raises(LogGone):
        rewind(disk, CONFIG, Ends(9, start // 2))
    assert {name: disk.read(name, 0, 1 << 30) for name in disk.list()} == before
    assert started(disk).contents() == contents


def test_a_store_that_worked_without_its_cluster_is_not_cut_back_to_before_that() -> None:
    """It may have compacted what the cluster still has."""
    disk = SimDisk()
    life = member(disk)
    life.store.take_over("ab" * 16, 0)
    life.store.files.update(cluster="c" * 32, epoch=3, role="backup")
    synced(life.store)
    ends = life.store.ends
    started(disk)
    assert read_status(disk).role == "alone"
    with pytest.raises(LogGone):
        rewind(disk, CONFIG, ends)
    reset(disk)
    found = member(disk).found
    assert (found.state, found.cluster, found.epoch) == ("empty", "c" * 32, 0)


# Emptying --------------------------------------------------------------------------------------


@pytest.mark.parametrize("power", [True, False], ids=["power", "process"])
def test_a_store_that_is_emptied_is_empty_or_as_it_was(power: bool) -> None:
    """And then it was never whole: a member that took it for one would lead with nothing."""
    process = written(replace(CONFIG, checkpoint_bytes=4 << 10))
    process.store.files.update(cluster="c" * 32, epoch=3, role="backup")
    whole = process.disk.crash()
    ends = member(snapshot(whole)).store.ends
    store = read_status(whole).store
    outcomes = set()
    for steps in range(200):
        disk = snapshot(whole)
        disk.dice = Random(steps)
        try:
            with disk.dying(steps, Died):
                reset(disk)
        except Died:
            disk = disk.crash(power=power)
            life = member(disk)
            outcomes.add(life.store.ends)
            assert life.store.ends in (ends, Ends())
            assert (life.found.state == "empty") == (life.store.ends == Ends())
            assert life.found.epoch == (0 if life.store.ends == Ends() else 3)
        else:
            assert outcomes == {ends, Ends()}
            assert disk.list("seg-") == disk.list("catalog-") == disk.list("ckpt-") == []
            life = member(disk)
            assert (life.found.state, life.found.store) == ("empty", store)
            assert (life.found.cluster, life.found.epoch) == ("c" * 32, 0)
            assert life.store.table == () and life.contents() == {}
            return
    raise AssertionError("it never came to its end")


def test_an_empty_store_can_be_rewound_and_reset_in_vain() -> None:
    disk = SimDisk()
    rewind(disk, CONFIG, Ends(5, 5))
    reset(disk)
    assert disk.list() == []
    member(disk)
    reset(disk)
    rewind(disk, CONFIG, Ends(5, 5))
    assert member(disk).store.ends == Ends()
