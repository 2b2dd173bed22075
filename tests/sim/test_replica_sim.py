"""Stores that follow one another over disks that lose and tear. A failing seed prints the command that replays it."""

from __future__ import annotations

from collections.abc import Callable
from types import SimpleNamespace

import pytest

from tidemark.model.peers import Unit
from tidemark.sim.replica import ReplicaRun, run_seed
from tidemark.sim.store import BrokenPromise
from tidemark.speed import PURE
from tidemark.store import catalog_log, files, journal
from tidemark.store.catalog_log import CatalogLog
from tidemark.store.journal import Journal
from tidemark.store.units import Units

GROUPS, SEEDS_PER_GROUP = (10, 35) if not PURE else (2, 5)


@pytest.mark.parametrize("group", range(GROUPS))
def test_whatever_happens_to_its_members_a_group_keeps_what_is_complete(group: int) -> None:
    for seed in range(group * SEEDS_PER_GROUP, (group + 1) * SEEDS_PER_GROUP):
        run_seed(seed)


def test_the_runs_do_what_they_are_for() -> None:
    runs = [run_seed(seed) for seed in range(30)]
    for what, least in (
        ("takeovers", 40),
        ("rewinds", 50),
        ("resets", 15),
        ("copies", 15),
        ("interrupted", 15),
    ):
        assert sum(run.counts[what] for run in runs) > least, what
    assert sum(run.compactions for run in runs) > 50
    assert sum(run.checkpoints for run in runs) > 50
    assert sum(run.rewrites for run in runs) > 50


def test_the_same_seed_replays_the_same_run() -> None:
    stories: list[list[str]] = [[], []]
    for story in stories:
        ReplicaRun(11, say=story.append).run()
    assert stories[0] == stories[1]


# Bugs on purpose: the simulator must find them ------------------------------------------------


def compacts_what_others_may_not_have(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(Journal, "is_stable", lambda *_: True)


def rewrites_wiring_that_others_may_not_have(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(CatalogLog, "_may_rewrite", lambda _: True)


def forgets_a_rewind_that_was_interrupted(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(files, "intent", SimpleNamespace(finish=lambda _: False))


def does_not_say_what_a_copy_lacks(patch: pytest.MonkeyPatch) -> None:
    def bridged(self: Units, seq: int, start: int, units: list[Unit], ended: bool) -> tuple[list[Unit], bool]:
        more = [self._histories(units[-1].last if units else seq, start, 0)] if ended else []
        return [unit for unit in [*units, *more] if unit.previous < unit.first], True

    patch.setattr(Units, "_bridged", bridged)


def names_histories_that_were_cut_off(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(journal, "known_at", lambda histories, _: histories)
    patch.setattr(catalog_log, "known_at", lambda histories, _: histories)


def counts_numbers_of_transient_messages(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(Journal, "shared", False)


def says_that_a_log_is_whole_after_a_restart(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(journal, "first_whole", lambda _: 0)


def calls_durable_what_is_only_sealed(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(Journal, "durable_end", property(lambda self: self.end_seq, lambda *_: None), raising=False)


BUGS = [
    compacts_what_others_may_not_have,
    rewrites_wiring_that_others_may_not_have,
    forgets_a_rewind_that_was_interrupted,
    does_not_say_what_a_copy_lacks,
    names_histories_that_were_cut_off,
    counts_numbers_of_transient_messages,
    says_that_a_log_is_whole_after_a_restart,
    calls_durable_what_is_only_sealed,
]


@pytest.mark.skipif(PURE, reason="the runs are the same, only slower")
@pytest.mark.parametrize("bug", BUGS, ids=lambda bug: bug.__name__)
def test_a_bug_that_is_planted_is_found(
    bug: Callable[[pytest.MonkeyPatch], None], monkeypatch: pytest.MonkeyPatch
) -> None:
    bug(monkeypatch)
    with pytest.raises(BrokenPromise, match=r"python -m tidemark\.sim\.replica --seed"):
        run_seeds(300)


def run_seeds(count: int) -> None:
    for seed in range(count):
        run_seed(seed)
