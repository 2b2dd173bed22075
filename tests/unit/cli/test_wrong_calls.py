"""A call that is wrong is one sentence in our words, whatever the parser behind it would say."""

from __future__ import annotations

import pytest

from tidemark.cli import main


@pytest.mark.parametrize(
    ("words", "sentence"),
    [
        ("cluster up --nodes abc", "--nodes: 'abc' is not a whole number"),
        ("cluster up --nodes 2.5", "--nodes: '2.5' is not a whole number"),
        ("cluster up --nodes 0", "--nodes: '0' is less than 1"),
        ("cluster up --mode foo", "--mode: 'foo' is not one of 'standby', 'chain'"),
        ("perf -c abc", "--count: 'abc' is not a whole number"),
        ("stream --timeout soon list", "--timeout: 'soon' is not a number"),
        ("ctl member status --timeout 0", "--timeout: '0' is less than 0.1"),
        ("cluster slow n1 n2 much", "MS: 'much' is not a whole number"),
    ],
)
def test_a_wrong_value_is_told_in_our_words(
    words: str, sentence: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(words.split()) == 2
    assert capsys.readouterr().err == f"tidemark: {sentence}\n"


def test_what_is_missing_or_unknown_is_told_by_the_parser(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["store", "best"]) == 2
    assert main(["cluster", "up", "--nodse", "3"]) == 2
    missing, unknown = capsys.readouterr().err.splitlines()
    assert "directories" in missing.lower() and "--nodse" in unknown
