"""The simulator itself is tested by bugs that are put in on purpose: each must be found within a stated number of runs.

They are looked for by the command that anybody would use, `tidemark sim --plant NAME`.
"""

from __future__ import annotations

import re

import pytest

from tidemark.cli import main
from tidemark.sim import planted
from tidemark.sim.cluster.planted import PLANTED, Hunt
from tidemark.sim.cluster.world import CHAIN, STANDBY
from tidemark.sim.fronts import planted as of_fronts
from tidemark.speed import PURE

HUNTS = {
    f"{name}-{hunt.shape.mode}-{hunt.shape.provider}": (name, hunt)
    for name, plant in planted.PLANTED.items()
    for hunt in plant.hunts
}


@pytest.mark.parametrize("mode", [STANDBY, CHAIN])
def test_there_are_at_least_twelve_of_them_in_each_mode(mode: str) -> None:
    assert sum(plant.hunt(mode) is not None for plant in PLANTED.values()) >= 12


def test_what_is_looked_for_in_standby_is_looked_for_in_a_chain_too() -> None:
    for plant in PLANTED.values():
        for provider in {hunt.shape.provider for hunt in plant.hunts}:
            modes = [hunt.shape.mode for hunt in plant.hunts if hunt.shape.provider == provider]
            assert modes in ([STANDBY, CHAIN], [CHAIN])


def test_a_name_is_one_bug_of_members_or_of_fronts() -> None:
    assert not PLANTED.keys() & of_fronts.PLANTED.keys()
    assert PLANTED | of_fronts.PLANTED == planted.PLANTED


def test_a_bug_is_looked_for_once_with_each_mode_and_provider() -> None:
    assert len(HUNTS) == sum(len(plant.hunts) for plant in planted.PLANTED.values())


@pytest.mark.skipif(PURE, reason="the compiled run has done it")
@pytest.mark.parametrize(("name", "hunt"), HUNTS.values(), ids=HUNTS)
def test_a_planted_bug_is_found_by_a_promise_that_it_breaks(
    name: str, hunt: Hunt, capsys: pytest.CaptureFixture[str]
) -> None:
    plant = planted.PLANTED[name]
    where = [] if hunt is plant.hunts[0] else ["--mode", hunt.shape.mode, "--provider", hunt.shape.provider]

    assert main(["sim", "--plant", name, *where, "--first", "--jobs", "1"]) == 1

    problem = capsys.readouterr().out.partition("\nreplay: ")[0]
    assert any(re.search(pattern, problem) for pattern in plant.found_by), problem
