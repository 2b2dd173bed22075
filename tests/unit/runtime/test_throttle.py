"""Who must wait: after wrong passwords, and when connections come too fast."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from tidemark.runtime.throttle import ENTRIES_MAX, FORGOTTEN_MS, KNOWN_MS, USER_MAX, Rate, Rates, Throttle

NOW = 1_000_000


def fail(throttle: Throttle, times: int, host: str = "h", user: str = "u", now_ms: int = NOW) -> None:
    for _ in range(times):
        throttle.failed(host, user, now_ms)


def test_some_failures_are_free_and_then_each_doubles_the_wait_up_to_a_bound() -> None:
    throttle = Throttle(failures_max=3, wait_s_max=5)
    fail(throttle, 2)
    assert throttle.wait_s("h", "u", NOW) == 0
    waits = []
    for _ in range(5):
        fail(throttle, 1)
        waits.append(throttle.wait_s("h", "u", NOW))
    assert waits == [1, 2, 4, 5, 5]
    assert throttle.wait_s("h", "u", NOW + 4000) == 1
    assert throttle.wait_s("h", "u", NOW + 5000) == 0


def test_a_client_with_a_wrong_password_does_not_hold_up_its_neighbours() -> None:
    throttle = Throttle(failures_max=3)
    fail(throttle, 20)
    assert throttle.wait_s("h", "u", NOW) > 0
    assert throttle.wait_s("h", "other", NOW) == 0
    assert throttle.wait_s("other", "u", NOW) == 0


def test_an_address_that_tries_one_user_after_another_waits_for_all_of_them() -> None:
    throttle = Throttle(failures_max=3)
    for number in range(30):
        fail(throttle, 1, user=f"user {number}")
    assert throttle.wait_s("h", "anybody", NOW) > 0
    assert throttle.wait_s("other", "anybody", NOW) == 0


def test_a_user_that_is_tried_from_everywhere_can_still_log_in_from_where_it_did_before() -> None:
    throttle = Throttle(failures_max=3)
    throttle.passed("home", "u", NOW)
    for number in range(30):
        fail(throttle, 1, host=f"host {number}")
    assert throttle.wait_s("elsewhere", "u", NOW) > 0
    assert throttle.wait_s("home", "u", NOW) == 0
    for number in range(30):
        fail(throttle, 1, host=f"host {number}", now_ms=NOW + KNOWN_MS)
    assert throttle.wait_s("home", "u", NOW + KNOWN_MS) > 0


def test_one_address_that_never_stops_trying_one_user_holds_up_nobody_else() -> None:
    throttle, now_ms = Throttle(failures_max=3, wait_s_max=5), NOW
    for _ in range(200):
        now_ms += int(1000 * throttle.wait_s("h", "u", now_ms))
        throttle.failed("h", "u", now_ms)
    assert throttle.wait_s("h", "u", now_ms) == 5
    assert throttle.wait_s("elsewhere", "u", now_ms) == 0
    assert throttle.wait_s("h", "other", now_ms) == 0


def test_a_login_that_went_well_forgives_its_own_failures_but_not_those_of_the_address() -> None:
    throttle = Throttle(failures_max=2)
    fail(throttle, 1)
    throttle.passed("h", "u", NOW)
    fail(throttle, 1)
    assert throttle.wait_s("h", "u", NOW) == 0
    for number in range(20):
        fail(throttle, 1, user=f"user {number}")
    throttle.passed("h", "u", NOW)
    assert throttle.wait_s("h", "u", NOW) > 0


def test_quiet_minutes_make_all_forgotten() -> None:
    throttle = Throttle(failures_max=2)
    fail(throttle, 2)
    later = NOW + FORGOTTEN_MS + 1
    fail(throttle, 1, now_ms=later)
    assert throttle.wait_s("h", "u", later) == 0


def test_guesses_that_are_being_looked_at_count_as_failures() -> None:
    throttle = Throttle(failures_max=3)
    fail(throttle, 1)
    assert throttle.wait_s("h", "u", NOW, guesses=1) == 0
    assert throttle.wait_s("h", "u", NOW, guesses=2) == 1


def test_a_clock_that_is_set_back_locks_nobody_out() -> None:
    throttle = Throttle(failures_max=1)
    fail(throttle, 10)
    assert throttle.wait_s("h", "u", NOW - 1) == 0


def test_without_a_number_nobody_waits() -> None:
    throttle = Throttle(failures_max=0)
    fail(throttle, 1000)
    throttle.passed("h", "u", NOW)
    assert throttle.wait_s("h", "u", NOW, guesses=1000) == 0
    assert len(throttle) == 0


def test_what_is_remembered_is_bounded() -> None:
    throttle, rates = Throttle(), Rates(0, 1)
    for number in range(ENTRIES_MAX + 10):
        fail(throttle, 1, host=str(number))
        rates.refusal(str(number), NOW)
    assert len(throttle) == len(rates) == ENTRIES_MAX


@given(st.integers(1, 50), st.lists(st.integers(0, 400), max_size=200))
def test_a_rate_lets_through_no_more_than_so_many_a_second_and_one_second_at_once(
    per_s: int, steps: list[int]
) -> None:
    rate, now, taken = Rate(per_s), NOW, 0
    for step in steps:
        now += step
        taken += rate.take(now)
        assert taken <= per_s + (now - NOW) * per_s / 1000 + 1e-6


def test_a_very_long_name_is_not_remembered_whole() -> None:
    throttle = Throttle(failures_max=3)
    fail(throttle, 3, user="u" * 100_000)
    assert throttle.wait_s("h", "u" * 100_000, NOW) > 0
    assert max(len(user) for _, _, user in throttle._failures) == USER_MAX


def test_connections_are_bounded_of_each_address_and_in_all() -> None:
    rates = Rates(5, 2)
    assert [rates.refusal("a", NOW) for _ in range(2)] == [None, None]
    assert "2 connections a second from one address" in str(rates.refusal("a", NOW))
    assert [rates.refusal(host, NOW) for host in "bbc"] == [None, None, None]
    assert "takes 5 connections a second" in str(rates.refusal("d", NOW))
    assert rates.refusal("a", NOW + 1000) is None


def test_connections_are_not_counted_unless_there_is_a_limit() -> None:
    rates = Rates(0, 0)
    assert all(rates.refusal("a", NOW) is None for _ in range(1000))
    assert len(rates) == 0
