"""Streams on a whole node against a model of plain lists: any work in any order, small enough to read.

The work is that of `tidemark.sim.streams`; here hypothesis chooses the order, so what breaks a promise is shrunk to
the few steps that do it. The simulator's seeds (tests/sim) go further.
"""

from __future__ import annotations

from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from tidemark.sim.streams import WORK, StreamRun

ORDINARY = sorted(WORK.keys() - {"squeeze", "break_disk", "rest", "grow", "make_anew"})
AROUND_A_CRASH = ["put", "transaction", "transfer", "pin", "release", "follow", "purge", "turn", "crash"]


@settings(max_examples=60, deadline=None, suppress_health_check=[HealthCheck.too_slow])
@given(st.lists(st.sampled_from(ORDINARY), max_size=40), st.integers(0, 1 << 16))
def test_any_order_of_work_gives_the_answers_of_plain_lists(work: list[str], seed: int) -> None:
    """S-18, S-19, K-19, K-29, K-35: the bank adds up, copies are true, pins do not change."""
    run = StreamRun(seed)
    for name in work:
        run.step(name)
    run.crash()
    run.finish()


@settings(max_examples=60, deadline=None, suppress_health_check=[HealthCheck.too_slow])
@given(st.lists(st.sampled_from(AROUND_A_CRASH), max_size=40), st.integers(0, 1 << 16))
def test_whatever_was_told_to_be_safe_survives_crashes_in_the_midst_of_writing(
    work: list[str], seed: int
) -> None:
    """K-17, K-34: nothing is lost, torn or brought back."""
    run = StreamRun(seed)
    for name in work:
        run.step(name)
    run.crash()


@settings(max_examples=40, deadline=None, suppress_health_check=[HealthCheck.too_slow])
@given(
    st.lists(st.sampled_from(["put", "pin", "rest", "time_passes", "crash"]), max_size=20),
    st.integers(0, 1 << 16),
)
def test_pins_read_the_same_through_compactions_and_restarts(work: list[str], seed: int) -> None:
    """K-89: byte for byte, with the same hash."""
    run = StreamRun(seed)
    for name in work:
        run.step(name)
        run.look_at_pins()
