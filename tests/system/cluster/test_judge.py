"""The words of `cluster.py` that judge find what is planted."""

from __future__ import annotations

import pytest
from system.cluster.cluster import Publisher, judge


class Told(Publisher):
    """A publisher that was told this, without a broker."""

    def __init__(self, confirmed: list[int], again: set[int], times: list[float] | None = None) -> None:
        self.confirmed, self.again, self.times = confirmed, again, times or []


def test_everything_confirmed_in_order_is_fine_and_so_is_one_more_on_its_way() -> None:
    judge(Told([1, 2, 3], set()), [1, 2, 3])
    judge(Told([1, 2, 3], set()), [1, 2, 3, 4])


def test_what_was_sent_twice_may_be_there_twice() -> None:
    judge(Told([1, 2, 3], {2}), [1, 2, 2, 3])


@pytest.mark.parametrize(
    ("found", "words"),
    [
        ([1, 3], "1 of 3 confirmed are lost"),
        ([1, 2, 2, 3], "sent once"),
        ([1, 2, 3, 9], "never sent"),
        ([2, 1, 3], "out of order"),
        ([], "3 of 3 confirmed are lost"),
    ],
)
def test_a_fault_is_named(found: list[int], words: str) -> None:
    with pytest.raises(AssertionError, match=words):
        judge(Told([1, 2, 3], set()), found)


def test_the_wait_after_a_fault_is_the_longest_one_from_it_on() -> None:
    times = [0.0, 5.0, 5.1, 6.4, 6.5]
    assert Told([], set(), times).gap_after(5.05) == pytest.approx(1.3)
    assert Told([], set(), times).gap_after(7.0) == float("inf"), "no confirm came"
