"""Searching names by a visitor's pattern: what Python's matcher finds is found, and nothing takes long."""

from __future__ import annotations

import contextlib
import re
import time

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from tidemark.admin.patterns import Search
from tidemark.broker.patterns import BadPattern

PIECES = st.sampled_from(
    ["a", "b", "Q", "-", ".", "\\.", "\\d", "\\w", "\\S", "[a-c]", "[^ab]", "(a|bc)", "(?:ab)", "^", "$", "é"]
)
REPEATS = st.sampled_from(["", "", "*", "+", "?", "{2}", "{1,3}", "*?", "{0,2}"])


@st.composite
def patterns(draw: st.DrawFn) -> str:
    pieces = draw(st.lists(st.tuples(PIECES, REPEATS), max_size=6))
    return "".join(piece + ("" if piece in "^$" else repeat) for piece, repeat in pieces)


@given(patterns(), st.text(alphabet="abcABCq-.1é_ ", max_size=12))
@example("", "")
@example("^$", "")
@example("(a|bc)+$", "xBCa")
@example("[^ab]", "A")
def test_it_finds_what_pythons_matcher_finds_whatever_the_case(pattern: str, name: str) -> None:
    assert Search(pattern).finds(name) == bool(re.search(pattern, name, re.IGNORECASE))


HOSTILE = [
    "(a+)+$",
    "(a|aa)+$",
    "(a*)*b",
    "a*a*a*a*a*a*b",
    "(.*,){20}x",
    "(a|a?)+$",
    "(?:a?){30}a{30}",
    "(?:.{0,30}a){30}!",
]


@pytest.mark.parametrize("pattern", HOSTILE)
def test_patterns_that_would_keep_a_matcher_for_years_are_given_up_at_once(pattern: str) -> None:
    began = time.thread_time()
    for name in ("a" * 254 + "!", "aab." * 63, "a," * 100 + "!"):
        with contextlib.suppress(BadPattern):
            Search(pattern).finds(name)
    assert time.thread_time() - began < 0.5


def test_whoever_gives_a_pattern_that_takes_too_long_is_told_so() -> None:
    with pytest.raises(BadPattern, match="too long"):
        Search("(?:.?.?.?a)*(?:.?.?a)*(?:.?a.?)*[^a.b]$").finds("aab.ba.a" * 31)


@pytest.mark.parametrize(
    ("pattern", "words"),
    [
        ("(", "missing \\)"),
        ("[", "unterminated"),
        ("*", "nothing to repeat"),
        ("((a{100}){100}){100}", "more than 1000 times"),
        ("a{1,2000000000}", "more than 1000 times"),
        ("a{" + "9" * 200 + "}", "more than 1000 times"),
        ("a" * 300, "longer than 256"),
    ],
)
def test_what_cannot_be_searched_for_is_refused_with_a_reason(pattern: str, words: str) -> None:
    with pytest.raises(BadPattern, match=words):
        Search(pattern)
