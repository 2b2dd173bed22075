"""The simulator itself is tested by bugs that are put in on purpose: each must be found within a stated number of runs."""

from __future__ import annotations

import pytest

from tidemark.sim import planted
from tidemark.sim.cluster.planted import PLANTED
from tidemark.sim.cluster.run import run_seed
from tidemark.sim.fronts import planted as of_fronts
from tidemark.sim.store import BrokenPromise
from tidemark.speed import PURE


def test_there_are_at_least_twelve_of_them() -> None:
    assert len(PLANTED) >= 12


def test_a_name_is_one_bug_of_members_or_of_fronts() -> None:
    assert not PLANTED.keys() & of_fronts.PLANTED.keys()
    assert PLANTED | of_fronts.PLANTED == planted.PLANTED


@pytest.mark.skipif(PURE, reason="the compiled run has done it")
@pytest.mark.parametrize("name", PLANTED)
def test_a_planted_bug_is_found(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    plant = PLANTED[name]
    plant.plant(monkeypatch.setattr)
    for seed in range(plant.seeds):
        try:
            run_seed(seed, plant.mode, work=plant.work, about=plant.faults, provider=plant.provider)
        except BrokenPromise:
            return
    pytest.fail(f"{plant.about}: not found in {plant.seeds} runs")
