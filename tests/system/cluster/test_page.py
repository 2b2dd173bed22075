"""What docs/cluster.md tells people to type is what there is to type. What it does is in `test_command.py`, command by command."""

from __future__ import annotations

import re
import shlex
from pathlib import Path
from typing import Any

import pytest
from typer.main import get_command

from tidemark.cli.app import app

ROOT = Path(__file__).resolve().parents[3]
PAGE = (ROOT / "docs/cluster.md").read_text()
BLOCKS = [
    [
        shlex.split(line.removeprefix("$ "), comments=True)[1:]
        for line in block.replace("\\\n", " ").splitlines()
        if line.startswith("$ tidemark ")
    ]
    for block in re.findall(r"```console\n(.*?)```", PAGE, re.DOTALL)
]
IN_TEXT = [shlex.split(words)[1:] for words in re.findall(r"`(tidemark [^`]*)`", PAGE.replace("\n", " "))]


def understood(words: list[str]) -> None:
    """The parser takes it, down to its last option; nothing is done."""
    command: Any = get_command(app)
    context = command.make_context("tidemark", list(words))
    while hasattr(command, "resolve_command"):
        name, command, rest = command.resolve_command(context, [*context._protected_args, *context.args])
        context = command.make_context(name, list(rest), parent=context)


@pytest.mark.parametrize("words", [words for block in BLOCKS for words in block], ids=" ".join)
def test_every_command_of_the_page_is_understood(words: list[str]) -> None:
    """H-91: topology, groups, fronts, managers, recovery: there are such commands, with such options."""
    understood(words)


def test_a_command_that_there_is_not_is_noticed() -> None:
    assert len(IN_TEXT) > 3
    for words in (["cluster", "explode"], ["cluster", "up", "--knots", "3"], ["ctl", "member", "crown"]):
        with pytest.raises(Exception, match=r"[Nn]o such"):
            understood(words)


def test_every_command_in_a_sentence_of_the_page_is_there() -> None:
    """H-91: of these only the names of commands are looked at: some are said without their arguments."""
    for words in IN_TEXT:
        command: Any = get_command(app)
        for word in words:
            inner = getattr(command, "commands", {})
            if word in inner:
                command = inner[word]
            else:
                assert not inner or word.startswith("-") or words[words.index(word) - 1].startswith("-"), (
                    words
                )


@pytest.mark.parametrize("name", sorted(set(re.findall(r"\]\(([\w./-]+\.md)", PAGE))))
def test_every_page_that_it_links_to_is_there(name: str) -> None:
    assert (ROOT / "docs" / name).exists()


@pytest.mark.parametrize("name", sorted(set(re.findall(r"`(test_\w+\.py)`", PAGE))))
def test_every_test_that_it_names_is_there(name: str) -> None:
    assert (ROOT / "tests/system/cluster" / name).exists()
