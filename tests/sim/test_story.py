"""A story reads like the log of the product."""

from __future__ import annotations

import re

import pytest

from tidemark.cluster.mode import Answer
from tidemark.model.peers import Ends, View
from tidemark.sim.cluster.run import run_seed
from tidemark.sim.cluster.story import Story
from tidemark.sim.cluster.words import worded

PYTHON = re.compile(r"[{}]|\(\'|\[\'|\b[A-Z][A-Za-z]+\(|=None|=True|=False")
"""What a `repr` looks like."""


@pytest.mark.parametrize(
    ("mode", "provider", "about"),
    [
        ("standby", "etcd", ()),
        ("chain", "etcd", ("cut", "isolate", "etcd_brought_back")),
        ("standby", "external", ()),
        ("fronts", "etcd", ()),
    ],
)
def test_a_story_has_no_python_in_it(mode: str, provider: str, about: tuple[str, ...]) -> None:
    story = Story()
    run_seed(2, mode, steps=60, provider=provider, about=about, tell=story.tell)

    assert [line for line in story.lines if PYTHON.search(line)] == []
    assert all(line == line.rstrip() for line in story.lines)


def test_a_change_of_state_is_told_once_with_its_reason() -> None:
    story = Story()
    run_seed(2, tell=story.tell)

    state = '  state of the member  state=catch-up why="a has answered"'
    assert sum(line.endswith(f" c     {state}") for line in story.lines) == 1
    assert not any("led by" in line for line in story.lines)


def test_a_story_says_who_leads_when_all_is_well() -> None:
    story = Story()
    run_seed(2, steps=20, tell=story.tell)

    [quiet] = [line for line in story.lines if re.search("all is well:", line)]
    assert sorted(re.findall(r"\b[abc] is (\w+)", quiet)) == ["active", "ready", "ready"]


@pytest.mark.parametrize(
    ("fact", "words"),
    [
        (View("c1", 2, "a", ("a", "b", "c"), "h1", 7), "view 7: epoch 2, a leads, ready a b c"),
        (View("c1", 2, "a", ("a",), "h1", (2 << 32) + 3), "view 3: epoch 2, a leads, ready a"),
        (
            View("c1", 3, "b", ("b",), "h1", 9, accepted=3),
            "view 9: epoch 3, b leads, ready b, a loss accepted in epoch 3",
        ),
        (Ends(7, 12), "catalog 7, journal 12"),
        (Answer(True, "a takes over from b"), "a takes over from b"),
        (Answer(False, "a is fenced"), "no: a is fenced"),
        ({"state": "ready", "why": "it is", "ms": 3}, ' state=ready why="it is" ms=3'),
        ([("a", "b"), ("b", "a")], "a to b, b to a"),
        (["b", "etcd"], "b, etcd"),
        (40, 40),
    ],
)
def test_facts_have_words(fact: object, words: object) -> None:
    assert worded(fact) == words
