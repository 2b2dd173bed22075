"""How fast a member acknowledges: a percentile of latency over time, against a budget that is set."""

from __future__ import annotations

import pytest
from unit.cluster.test_leading import an_active, slow_acks

from tidemark.cluster.config import ClusterConfig
from tidemark.cluster.pace import WINDOW_MS, Pace

BUDGET_MS = 300
SHARE = ClusterConfig().ack_budget_share


def judged(*took_ms: int, slow_share: float = SHARE) -> tuple[bool, float]:
    """Rounds of so many ms each, one right behind the other: slow or not, and the share of the window over the budget."""
    pace, now = Pace(BUDGET_MS, slow_share), 0
    for took in took_ms:
        now += took
        pace.note(now, took)
    return pace.is_slow(now, 0), pace.share(now, 0)


def test_without_a_budget_nothing_is_kept() -> None:
    pace = Pace(0, SHARE)
    for now in range(1000):
        pace.note(now, 1)
    assert not pace.rounds


@pytest.mark.parametrize(
    ("took_ms", "slow", "share"),
    [
        pytest.param([10] * 400, False, 0.0, id="fast"),
        pytest.param([BUDGET_MS] * 10, False, 0.0, id="within its budget"),
        pytest.param([400] * 10, True, 1.0, id="always over it"),
        pytest.param([400, 400, 400, 400, *[10] * 10, 400], True, 0.95, id="in nearly all of the time"),
        pytest.param([1000, *[10] * 50, 500], False, 0.75, id="not in enough of it"),
        pytest.param([400] * 10 + [10] * 250, False, 0.0, id="a while ago"),
        pytest.param([2500], False, 1.0, id="once is not enough"),
    ],
)
def test_health_is_the_share_of_time_over_the_budget(took_ms: list[int], slow: bool, share: float) -> None:
    """K-55: availability is a percentile of latency, each moment weighing the same: over the budget for nine tenths of the
    window is slow, as many fast answers as there may be between. Which share that is can be set."""
    assert judged(*took_ms) == (slow, pytest.approx(share))
    if len(took_ms) > 1:
        assert judged(*took_ms, slow_share=0.7)[0] == (share >= 0.7)


def test_what_is_owed_now_counts_before_it_has_come() -> None:
    pace = Pace(BUDGET_MS, SHARE)
    pace.note(400, 400)
    pace.note(800, 400)
    assert pace.share(2000, 0) == pytest.approx(0.4)
    assert pace.share(2000, 1000) == pytest.approx(0.9)
    assert not Pace(BUDGET_MS, SHARE).is_slow(WINDOW_MS, WINDOW_MS), "one that has stopped is not called slow"


@pytest.mark.parametrize("budget_ms", [0, 200, 1000])
def test_the_leader_tells_how_much_of_the_time_each_member_is_over_the_budget(budget_ms: int) -> None:
    """K-55: health is judged by what is configured, and exported. K-54: SLOW: whoever is over it is replaced."""
    leader = an_active("abc", ack_budget_ms=budget_ms)
    assert leader.mode.over_budget() == ({} if not budget_ms else {"b": 0.0, "c": 0.0})
    left_out = "ab" in slow_acks(leader, 3000, "c", "b", delay_ms=600)

    found = leader.mode.over_budget()
    assert left_out == (budget_ms == 200)
    if budget_ms == 200:
        assert found["c"] >= SHARE and found["b"] == 0
    else:
        assert all(share < SHARE for share in found.values())


def test_a_slow_member_without_which_there_are_too_few_copies_stays() -> None:
    """Without it nothing at all would be confirmed."""
    leader = an_active("abc", ack_budget_ms=200, copies_min=3, size=3)
    assert "ab" not in slow_acks(leader, 3000, "c", "b", delay_ms=600)
