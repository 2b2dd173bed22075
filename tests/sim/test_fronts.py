"""Fronts over several groups on virtual time, with everything going wrong that can. A failing seed prints the command that
replays it.

TIDEMARK_SIM_SEEDS says how many runs the clusters make; of these there are a quarter. One in five is long, the others are short.
"""

from __future__ import annotations

import os
import subprocess
import sys

import pytest

from tidemark.cli.sim import sim
from tidemark.sim.cluster.run import FRONTS, STEPS
from tidemark.sim.cluster.shrink import plan_of, shrink
from tidemark.sim.cluster.story import Story
from tidemark.sim.fronts.planted import PLANTED
from tidemark.sim.fronts.run import run_seed
from tidemark.sim.fronts.work import WORK
from tidemark.speed import PURE

SEEDS = max(8, (int(os.environ.get("TIDEMARK_SIM_SEEDS", "0")) or (20 if PURE else 1000)) // 4)
PER_GROUP = 20
SHORT = 60
"""Steps of a short run."""


@pytest.mark.parametrize("group", range((SEEDS + PER_GROUP - 1) // PER_GROUP))
def test_whatever_fails_every_promise_of_fronts_is_kept(group: int) -> None:
    for seed in range(group * PER_GROUP, min(SEEDS, (group + 1) * PER_GROUP)):
        run_seed(seed, steps=SHORT if seed % 5 else STEPS)


def test_the_runs_do_what_they_are_for() -> None:
    counts: dict[str, int] = {}
    for seed in range(5):
        for work in WORK:
            for what, number in run_seed(seed, work=(work,)).world.counts.items():
                counts[what] = counts.get(what, 0) + number
    for what, least in {
        "acks confirmed": 500,
        "keys": 20,
        "leader lost": 10,
        "letters": 100,
        "messages moved": 10,
        "messages not moved": 10,
        "queue made again": 2,
        "rebound": 50,
        "returned": 20,
        "routed": 50,
        "twice": 5,
        "wiring": 50,
    }.items():
        assert counts.get(what, 0) > least, what


def test_the_same_seed_replays_the_same_run_whatever_the_order_of_hashes() -> None:
    program = (
        "import zlib; from tidemark.sim.fronts.run import run_seed; crc = 0\n"
        "def tell(*line):\n    global crc; crc = zlib.crc32(repr(line).encode(), crc)\n"
        "run = run_seed(8, tell=tell); print(crc, run.world.timeline.events)"
    )
    found = {
        subprocess.run(
            [sys.executable, "-c", program],
            env={**os.environ, "PYTHONHASHSEED": str(order)},
            capture_output=True,
            text=True,
            check=True,
        ).stdout
        for order in (1, 2)
    }
    assert len(found) == 1


def test_the_command_line_makes_such_runs(capsys: pytest.CaptureFixture[str]) -> None:
    assert sim(seeds="0:3", mode=FRONTS, steps=20, jobs=1) == 0
    assert "3 runs in mode fronts: every promise was kept" in capsys.readouterr().out


def test_a_story_tells_what_fronts_did() -> None:
    story = Story()
    run_seed(1, tell=story.tell)
    text = "\n".join(story.lines)
    assert "f1      starts" in text
    assert "connection opened" in text


@pytest.mark.skipif(PURE, reason="the compiled run has done it")
def test_a_run_that_fails_is_made_shorter(monkeypatch: pytest.MonkeyPatch) -> None:
    plant = PLANTED["stale-wiring"]
    plant.plant(monkeypatch.setattr)
    shape = plant.hunts[0].shape
    plan, problem = shrink(0, FRONTS, runs_max=30, work=shape.work, about=shape.about)
    assert len(plan) < len(plan_of(0, FRONTS, 3, work=shape.work, about=shape.about)) // 2
    assert "replay: tidemark sim --mode fronts --seed 0" in str(problem)
