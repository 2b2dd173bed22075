"""Searching names by a visitor's pattern: what Python's matcher finds is found, and nothing takes long."""

from __future__ import annotations

import re
import time

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from tidemark.admin.patterns import BadPattern, Search

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


@pytest.mark.parametrize(
    "pattern", ["(a+)+$", "(a|aa)+$", "(a*)*b", "a*a*a*a*a*a*b", "(.*,){20}x", "(a|a?)+$", "(?:a?){40}a{40}"]
)
def test_patterns_that_would_keep_pythons_matcher_for_years_take_no_time(pattern: str) -> None:
    began = time.thread_time()
    Search(pattern).finds("a" * 200 + ",!")
    assert time.thread_time() - began < 1


@pytest.mark.parametrize(
    ("pattern", "words"),
    [
        ("(", "unterminated"),
        ("[", "unterminated"),
        ("*", "nothing to repeat"),
        ("(?=a)", "looks back or ahead"),
        ("(a)\\1", "looks back or ahead"),
        ("((a{100}){100}){100}", "too large"),
        ("a{1,2000000000}", "too large"),
        ("a" * 300, "longer than 256"),
    ],
)
def test_what_cannot_be_searched_for_is_refused_with_a_reason(pattern: str, words: str) -> None:
    with pytest.raises(BadPattern, match=words):
        Search(pattern)
