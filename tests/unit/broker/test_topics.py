"""Topic patterns: which keys they match."""

from __future__ import annotations

import re

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tidemark.broker.topics import TopicTree, words_of

TABLE = [
    # pattern, keys that match, keys that do not
    ("a.b.c", ["a.b.c"], ["a.b", "a.b.c.d", "A.b.c", "", "a.b.c."]),
    ("*", ["a", "*", "#"], ["", "a.b", ".", "a."]),
    ("*.b", ["a.b", ".b"], ["b", "a.a.b", "a.b.c"]),
    ("a.*", ["a.b", "a.", "a.*"], ["a", "a.b.c"]),
    ("*.*", ["a.b", "."], ["a", "a.b.c", ".."]),
    ("#", ["", "a", "a.b.c", ".", "..."], []),
    ("a.#", ["a", "a.b", "a.b.c", "a."], ["", "b.a", "ab"]),
    ("#.z", ["z", "a.z", "a.b.z", ".z"], ["", "z.a", "az"]),
    ("a.#.z", ["a.z", "a.b.z", "a.b.c.z", "a..z"], ["a", "z", "a.b", "b.z"]),
    ("#.b.#", ["b", "a.b", "b.c", "a.a.b.c.c"], ["", "a", "ab", "a.c"]),
    ("#.#", ["", "a", "a.b"], []),
    ("#.*", ["a", "a.b"], [""]),
    ("*.#.*", ["a.b", "a.b.c", "."], ["a"]),
    ("a.#.#.b", ["a.b", "a.x.b", "a.x.y.b"], ["a", "b"]),
    ("a*", ["a*"], ["ab", "a"]),
    ("", [""], ["a", "."]),
    ("a..b", ["a..b"], ["a.b", "a.x.b"]),
]


@pytest.mark.parametrize(("pattern", "hits", "misses"), TABLE, ids=[row[0] for row in TABLE])
def test_a_pattern_matches_word_by_word(pattern: str, hits: list[str], misses: list[str]) -> None:
    tree: TopicTree[str] = TopicTree()
    tree.add(pattern, "it")
    assert [key for key in hits + misses if tree.match(key)] == hits


def matches(pattern: list[str], words: list[str]) -> bool:
    """The rule in its plainest form."""
    if not pattern:
        return not words
    if pattern[0] == "#":
        return any(matches(pattern[1:], words[skipped:]) for skipped in range(len(words) + 1))
    return bool(words) and pattern[0] in ("*", words[0]) and matches(pattern[1:], words[1:])


words = st.lists(st.sampled_from(["a", "b", "", "*", "#"]), max_size=6).map(".".join)


@given(st.lists(words, max_size=12), st.lists(words, max_size=6))
def test_the_tree_finds_exactly_the_patterns_that_match(patterns: list[str], keys: list[str]) -> None:
    tree: TopicTree[int] = TopicTree()
    for number, pattern in enumerate(patterns):
        tree.add(pattern, number)

    for key in keys:
        expected = [n for n, pattern in enumerate(patterns) if matches(words_of(pattern), words_of(key))]
        assert sorted(tree.match(key)) == expected


@given(st.lists(words, max_size=10, unique=True), st.data())
def test_what_is_removed_matches_no_more_and_leaves_nothing_behind(
    patterns: list[str], data: st.DataObject
) -> None:
    tree: TopicTree[str] = TopicTree()
    for pattern in patterns:
        tree.add(pattern, pattern)
    gone = data.draw(st.permutations(patterns))

    for number, pattern in enumerate(gone):
        tree.remove(pattern, pattern)
        left = [p for p in gone[number + 1 :] if matches(words_of(p), words_of("a.b"))]
        assert sorted(tree.match("a.b")) == sorted(left)
    assert not tree


def test_one_pattern_may_stand_for_several_values() -> None:
    tree: TopicTree[int] = TopicTree()
    tree.add("a.#", 1)
    tree.add("a.#", 2)
    tree.remove("a.#", 1)
    assert tree.match("a.b") == [2]


def test_a_pattern_made_to_be_slow_is_not() -> None:
    tree: TopicTree[int] = TopicTree()
    tree.add(".".join(["#", "a"] * 60 + ["b"]), 1)
    # A matcher that tries one way after the other needs 2^60 steps for this.
    assert tree.match(".".join(["a"] * 120)) == []


def test_removing_what_was_never_added_is_an_error() -> None:
    with pytest.raises(KeyError, match=re.escape("a")):
        TopicTree[int]().remove("a", 1)
