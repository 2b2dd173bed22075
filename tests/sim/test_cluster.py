"""Whole clusters on virtual time, with everything going wrong that can. A failing seed prints the command that replays it.

TIDEMARK_SIM_SEEDS says how many runs of each mode are made. One in five is long, the others are short: more beginnings
for the same time.
"""

from __future__ import annotations

import os
import subprocess
import sys

import pytest

from tidemark.sim.cluster.run import STEPS, Run, run_seed
from tidemark.sim.cluster.shrink import plan_of, shrink
from tidemark.sim.cluster.story import Story
from tidemark.sim.store import BrokenPromise
from tidemark.speed import PURE

SEEDS = int(os.environ.get("TIDEMARK_SIM_SEEDS", "0")) or (20 if PURE else 1000)
PER_GROUP = 20
SHORT = 40
"""Steps of a short run."""
GROUPS = range((SEEDS + PER_GROUP - 1) // PER_GROUP)


@pytest.mark.parametrize("group", GROUPS)
@pytest.mark.parametrize("mode", ["standby", "chain"])
def test_whatever_fails_every_promise_of_a_cluster_is_kept(mode: str, group: int) -> None:
    for seed in range(group * PER_GROUP, min(SEEDS, (group + 1) * PER_GROUP)):
        run_seed(seed, mode, steps=SHORT if seed % 5 else STEPS)


@pytest.mark.parametrize("mode", ["standby", "chain"])
def test_whatever_fails_every_promise_is_kept_when_an_operator_says_who_leads(mode: str) -> None:
    """Without etcd, and with an operator who does what the docs ask and tries what must be refused."""
    counts: dict[str, int] = {}
    for seed in range(max(4, min(SEEDS, 50))):
        run = run_seed(seed, mode, steps=SHORT if seed % 5 else STEPS, provider="external")
        for what, number in run.world.counts.items():
            counts[what] = counts.get(what, 0) + number
    assert counts["promotions done"] > counts["promotions refused"] > 0
    if SEEDS >= 50:
        assert counts["fenced by the operator"] >= 8
        assert counts["promoted at once"] >= 1
        assert counts["promoted without knowing the view"] >= 1


@pytest.mark.parametrize("group", range(max(1, len(GROUPS) // 8)))
def test_whatever_fails_every_promise_of_a_node_alone_is_kept(group: int) -> None:
    for seed in range(group * PER_GROUP, (group + 1) * PER_GROUP):
        run_seed(seed, "alone")


@pytest.mark.parametrize("nodes", [2, 5])
def test_clusters_of_other_sizes_keep_their_promises(nodes: int) -> None:
    for seed in range(8):
        run_seed(seed, "chain" if seed % 2 else "standby", nodes)


ASKED = max(4, min(SEEDS // 10, 40))
"""Runs of what is in a run only when it is asked for."""


@pytest.mark.parametrize("mode", ["standby", "chain"])
def test_a_log_in_which_a_bit_has_flipped_is_never_served_and_its_member_is_filled_again(mode: str) -> None:
    """U-34: bytes that differ from those of the others are found by their checksums, said, and replaced."""
    found = 0
    for seed in range(ASKED):
        found += run_seed(seed, mode, about=("rot", "kill", "lose_power")).world.counts.get("rot found", 0)
    assert found > ASKED / 2, "else nothing much has rotted"


@pytest.mark.parametrize("mode", ["standby", "chain"])
def test_an_etcd_that_is_brought_back_from_an_older_copy_costs_nothing_but_a_promotion(mode: str) -> None:
    """Nobody acts on its view, and an operator who does what the docs ask loses nothing that was confirmed."""
    counts: dict[str, int] = {}
    for seed in range(ASKED):
        run = run_seed(seed, mode, about=("etcd_brought_back", "kill", "isolate"))
        for what, number in run.world.counts.items():
            counts[what] = counts.get(what, 0) + number
    assert counts["brought back"] >= ASKED // 2, (
        "else the view did not change between the copy and its return"
    )
    assert counts["mended"] == counts["brought back"] <= counts["promotions done"]
    assert counts["refused the older view"] >= 2 * counts["brought back"]
    if ASKED >= 40:
        assert counts["promotions refused"] >= 1


@pytest.mark.parametrize("provider", ["etcd", "external"])
@pytest.mark.parametrize("mode", ["standby", "chain"])
def test_a_store_that_is_emptied_on_demand_counts_for_nothing_until_it_is_full(
    mode: str, provider: str
) -> None:
    """U-34: whatever view is on its way meanwhile, and whoever is lost."""
    counts: dict[str, int] = {}
    for seed in range(ASKED):
        run = run_seed(seed, mode, about=("refill", "isolate", "kill", "slow"), provider=provider)
        for what, number in run.world.counts.items():
            counts[what] = counts.get(what, 0) + number
    assert counts["refills begun"] > ASKED
    assert counts["refilled"] > ASKED


@pytest.mark.parametrize("mode", ["standby", "chain"])
def test_readers_at_any_member_see_only_what_is_complete_and_never_go_back(mode: str) -> None:
    counts: dict[str, int] = {}
    for seed in range(ASKED):
        for what, number in run_seed(seed, mode, work=("far",)).world.counts.items():
            counts[what] = counts.get(what, 0) + number
    assert counts["reads at the leader"] > 3 * ASKED
    assert counts["reads at a follower"] > 3 * ASKED


@pytest.mark.parametrize("mode", ["standby", "chain"])
def test_a_queue_that_is_kept_without_its_messages_harms_no_other(mode: str) -> None:
    """H-22, A-2: beside it, and with messages that go to both, nothing that was confirmed is lost from one that keeps."""
    counts: dict[str, int] = {}
    for seed in range(ASKED):
        for what, number in run_seed(seed, mode, work=("loose",)).world.counts.items():
            counts[what] = counts.get(what, 0) + number
    assert counts["loose queues looked at"] >= 3 * ASKED
    assert counts["acks confirmed"] > ASKED


def test_the_runs_do_what_they_are_for() -> None:
    counts: dict[str, int] = {}
    epochs = 0
    for seed in range(40):
        run = run_seed(seed, "standby")
        epochs += len(run.world.leaders)
        for what, number in run.world.counts.items():
            counts[what] = counts.get(what, 0) + number
    assert epochs > 80
    for state in ("joining", "catch-up", "ready", "recovering", "active", "fenced"):
        assert counts[state] > 5, state
    for work, least in {
        "rows": 500,
        "transfers": 300,
        "transactions": 500,
        "wiring": 200,
        "pins read": 50,
    }.items():
        assert counts[work] > least, work
    assert counts["acks confirmed"] > 500


@pytest.mark.parametrize(
    ("mode", "provider"),
    [("alone", "etcd"), ("standby", "etcd"), ("chain", "etcd"), ("standby", "external")],
)
def test_the_same_seed_replays_the_same_run_whatever_the_order_of_hashes(mode: str, provider: str) -> None:
    program = (
        "import sys, zlib; from tidemark.sim.cluster.run import run_seed; crc = 0\n"
        "def tell(*line):\n    global crc; crc = zlib.crc32(repr(line).encode(), crc)\n"
        f"run = run_seed(5, {mode!r}, tell=tell, provider={provider!r}); print(crc, run.world.timeline.events)"
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


def test_a_story_tells_who_led_and_what_failed() -> None:
    story = Story()
    run = run_seed(0, "standby", tell=story.tell)
    text = "\n".join(story.lines)
    assert "is active" in text
    assert all(name in text for name in run.world.leaders.values())


def test_a_plan_can_be_carried_out_in_part() -> None:
    plan = plan_of(3, "standby", 3)
    run = Run(3, "standby", plan=plan[::2])
    run.run()
    assert run.plan == plan[::2]


def test_a_run_that_fails_is_made_shorter(monkeypatch: pytest.MonkeyPatch) -> None:
    from tidemark.sim.cluster.planted import PLANTED

    PLANTED["early-confirm"].plant(monkeypatch.setattr)
    seed = next(seed for seed in range(20) if _breaks(seed))
    plan, problem = shrink(seed, "standby", runs_max=40)
    assert len(plan) < 30
    assert "replay: tidemark sim" in str(problem)


def _breaks(seed: int) -> bool:
    try:
        run_seed(seed, "standby")
    except BrokenPromise:
        return True
    return False
