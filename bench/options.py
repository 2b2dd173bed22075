"""The options that every campaign has, whatever it measures, and the cases that they choose."""

from __future__ import annotations

import argparse
from collections.abc import Sequence
from fnmatch import fnmatchcase
from pathlib import Path
from typing import Protocol, TypeVar

ROOT = Path(__file__).resolve().parents[1]


class Named(Protocol):
    """A case of any campaign."""

    @property
    def name(self) -> str: ...
    @property
    def title(self) -> str: ...


AnyCase = TypeVar("AnyCase", bound=Named)


def among(cases: Sequence[AnyCase], patterns: Sequence[str]) -> list[AnyCase]:
    """The cases whose names match any pattern, in their usual order; all when there is none.

    Raises:
        ValueError: a pattern matches no case.
    """
    for pattern in patterns:
        if not any(fnmatchcase(case.name, pattern) for case in cases):
            names = ", ".join(case.name for case in cases)
            raise ValueError(f"no case is called {pattern!r}; there are: {names}")
    return [case for case in cases if not patterns or any(fnmatchcase(case.name, one) for one in patterns)]


def campaign_parser(program: str, about: str | None, page: str) -> argparse.ArgumentParser:
    """A parser with what all campaigns share; `page` is the one in docs/ that a full campaign writes."""
    parser = argparse.ArgumentParser(prog=program, description=about)
    parser.add_argument("--quick", action="store_true", help="small and short: is it sane at all?")
    parser.add_argument(
        "--case", action="append", default=[], metavar="NAME", help="a case or a pattern; repeatable"
    )
    parser.add_argument("--list", action="store_true", help="name the cases and stop")
    parser.add_argument("--folder", type=Path, default=ROOT / "build", help="where brokers keep their data")
    parser.add_argument(
        "--warm-memory",
        action=argparse.BooleanOptionalAction,
        help="fill free memory with clean page cache first (default: unless --quick)",
    )
    parser.add_argument(
        "--docs",
        action=argparse.BooleanOptionalAction,
        help=f"write docs/{page} and its plots (default: after a full campaign)",
    )
    parser.add_argument("--from-json", type=Path, metavar="FILE", help="measure nothing; report on this file")
    return parser


def parsed(parser: argparse.ArgumentParser, words: list[str] | None) -> argparse.Namespace:
    """The options as they were given, with the defaults that hang on others."""
    options = parser.parse_args(words)
    if options.warm_memory is None:
        options.warm_memory = not options.quick
    return options
