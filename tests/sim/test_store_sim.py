"""The real store over a disk that loses, tears and fills up. A failing seed prints the command that replays it."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from tidemark.sim.disk import SimDisk
from tidemark.sim.store import BrokenPromise, StoreRun, run_seed
from tidemark.speed import PURE
from tidemark.store import checkpoint, recovery
from tidemark.store._frames_py import MAGIC
from tidemark.store.checkpoint import Adoption, Checkpointer
from tidemark.store.compaction import Compactor
from tidemark.store.frames import FRAME, FRAME_BYTES, Scan, crc32c, scan
from tidemark.store.journal import Journal
from tidemark.store.segment import Segment

GROUPS, SEEDS_PER_GROUP = (20, 50) if not PURE else (2, 5)


@pytest.mark.parametrize("group", range(GROUPS))
def test_whatever_the_disk_does_every_promise_is_kept(group: int) -> None:
    for seed in range(group * SEEDS_PER_GROUP, (group + 1) * SEEDS_PER_GROUP):
        run_seed(seed)


def test_the_runs_do_what_they_are_for() -> None:
    compactions = pages = crashes = torn = checkpoints = dropped = unusable = 0
    for seed in range(40):
        said: list[str] = []
        run = run_seed(seed, said.append)
        crashes += run.crashes
        torn += sum("Torn" in line for line in said)
        checkpoints += sum("checkpoint ckpt-" in line for line in said)
        dropped += sum("checkpoint ckpt-" in line and ", 0 dropped" not in line for line in said)
        unusable += sum("is wrong" in line for line in said)
        compactions += run.process.store.journal.statistics().compactions
        pages += run.process.store.journal.statistics().pages_in
    assert crashes > 100
    assert torn > 10
    assert compactions + pages > 50
    assert checkpoints > 50
    assert dropped > 10
    assert unusable > 1


def test_the_same_seed_replays_the_same_run() -> None:
    stories: list[list[str]] = [[], []]
    for story in stories:
        StoreRun(11, say=story.append).run()
    assert stories[0] == stories[1]


# Bugs on purpose: the simulator must find them ------------------------------------------------


def confirms_before_the_sync(patch: pytest.MonkeyPatch) -> None:
    honest = Journal.completed

    def completed(self: Journal) -> int:
        honest(self)
        self.durable_seq = self.last_seq
        return self.durable_seq

    patch.setattr(Journal, "completed", completed)


def does_not_sync(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(SimDisk, "_sync", lambda *_: None)


def does_not_look_at_checksums(patch: pytest.MonkeyPatch) -> None:
    def trusting(data: bytes, place: int, previous: int, chained: bool = True) -> Scan:
        return scan(with_good_checksums(data, place, previous), place, previous, chained)

    patch.setattr(recovery, "scan", trusting)


def with_good_checksums(data: bytes, place: int, previous: int) -> bytes:
    """Whatever the frames hold, their checksums and their chain fit."""
    fixed = bytearray(data)
    at = 0
    while len(fixed) - at >= FRAME_BYTES:
        magic, _, length, _, _, _, where, *_ = FRAME.unpack_from(fixed, at)
        if magic != MAGIC or where != place + at or not FRAME_BYTES <= length <= len(fixed) - at:
            break
        fixed[at + 56 : at + 60] = previous.to_bytes(4, "little")
        previous = crc32c(fixed[at + 8 : at + length])
        fixed[at + 4 : at + 8] = previous.to_bytes(4, "little")
        at += length
    return bytes(fixed)


def drops_segments_before_the_ends_are_durable(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(Journal, "passed", lambda *_: True)


def forgets_ends_that_are_needed(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(Compactor, "_is_needed", lambda *_: False)


def cuts_transactions_in_two(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(Journal, "ensure", lambda *_: None)


def serves_what_a_compaction_left_behind(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(Segment, "hides", lambda *_: False)


def lets_tombstones_go_too_early(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(Compactor, "_may_be_undone", lambda *_: False)


def names_a_checkpoint_before_the_journal_is_durable(patch: pytest.MonkeyPatch) -> None:
    def look(self: Checkpointer, now_ms: int) -> None:
        patch.setattr(self._journal, "passed", lambda _: True)
        honest(self, now_ms)
        patch.delattr(self._journal, "passed")

    honest = Checkpointer._look
    patch.setattr(Checkpointer, "_look", look)


def keeps_entries_of_segments_that_are_gone(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(Adoption, "finish", lambda _: 0)


def applies_again_what_the_checkpoint_has(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(Adoption, "last_seq", property(lambda _: 0, lambda *_: None), raising=False)


def does_not_check_checkpoints(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(checkpoint._Reader, "_check", lambda *_: None)


BUGS = [
    lets_tombstones_go_too_early,
    names_a_checkpoint_before_the_journal_is_durable,
    keeps_entries_of_segments_that_are_gone,
    applies_again_what_the_checkpoint_has,
    does_not_check_checkpoints,
    confirms_before_the_sync,
    does_not_sync,
    does_not_look_at_checksums,
    drops_segments_before_the_ends_are_durable,
    forgets_ends_that_are_needed,
    cuts_transactions_in_two,
    serves_what_a_compaction_left_behind,
]


@pytest.mark.skipif(PURE, reason="the runs are the same, only slower")
@pytest.mark.parametrize("bug", BUGS, ids=lambda bug: bug.__name__)
def test_a_bug_that_is_planted_is_found(
    bug: Callable[[pytest.MonkeyPatch], None], monkeypatch: pytest.MonkeyPatch
) -> None:
    bug(monkeypatch)
    with pytest.raises(BrokenPromise, match=r"python -m tidemark\.sim\.store --seed"):
        run_seeds(300)


def run_seeds(count: int) -> None:
    for seed in range(count):
        run_seed(seed)
