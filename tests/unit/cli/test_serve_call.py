"""`tidemark serve` is understood without the command line's parser as that one understands it."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from tidemark.cli import _parse, serve
from tidemark.cli.serve import understood
from tidemark.errors import ConfigError

PLAIN = [
    [],
    ["--data", "d", "--amqp", "127.0.0.1:0", "--admin=127.0.0.1:0"],
    ["--name=n", "--peer", "h:1", "--amqps", "h:2"],
    ["--set", "store.cache_bytes=1GiB", "--set=log.level=debug", "--data="],
    ["--store.segment-bytes", "8MiB", "--store.cache_bytes=1GiB", "--print-config"],
    ["--config", "a.toml", "--data", "first", "--data", "last"],
    ["--data", "d", "--node.data", "later", "--set", "node.data=last"],
]


@pytest.fixture
def served(monkeypatch: pytest.MonkeyPatch) -> list[Any]:
    calls: list[Any] = []

    def serve_instead(file: Path | None, flags: dict[str, str], *, print_only: bool = False) -> int:
        calls.append((file, flags, print_only))
        return 0

    monkeypatch.setattr(serve, "serve", serve_instead)
    monkeypatch.delenv("TIDEMARK_CONFIG", raising=False)
    return calls


@pytest.mark.parametrize("words", PLAIN, ids=" ".join)
@pytest.mark.parametrize("file", ["", "b.toml"])
def test_a_plain_call_is_understood_as_the_parser_does(
    served: list[Any], monkeypatch: pytest.MonkeyPatch, words: list[str], file: str
) -> None:
    if file:
        monkeypatch.setenv("TIDEMARK_CONFIG", file)
    call = understood(words)
    assert call is not None
    assert _parse(["serve", *words]) == 0
    assert served == [(call.file, call.flags, call.print_only)]


@pytest.mark.parametrize(
    "words",
    [
        ["--help"],
        ["word"],
        ["-h"],
        ["--data"],
        ["--data", "--amqp"],
        ["--nonsense", "x"],
        ["--print-config=1"],
    ],
    ids=" ".join,
)
def test_anything_else_is_left_to_the_parser(words: list[str]) -> None:
    assert understood(words) is None


def test_a_wrong_setting_is_told_at_once() -> None:
    with pytest.raises(ConfigError, match=r"--store\.cache-byte: unknown flag; did you mean"):
        understood(["--store.cache-byte", "1"])
