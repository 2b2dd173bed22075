"""The command of a simulator: one seed again, with its story, or many in search of one that breaks a promise."""

from __future__ import annotations

import argparse
import sys
from collections.abc import Callable, Sequence


def command(
    about: str,
    run_seed: Callable[[int, Callable[[str], None]], object],
    words: Sequence[str] | None = None,
) -> int:
    """Run what the command line says; `run_seed` raises `BrokenPromise`. The exit status of it."""
    parser = argparse.ArgumentParser(description=about)
    parser.add_argument("--seed", type=int, help="replay this run and say what happens")
    parser.add_argument("--seeds", type=int, default=1000, help="how many runs")
    parser.add_argument("--first", type=int, default=0, help="the first seed")
    parser.add_argument("--all", action="store_true", help="go on after a failure")
    given = parser.parse_args(words)
    if given.seed is not None:
        run_seed(given.seed, print)
        return 0
    failed = 0
    for seed in range(given.first, given.first + given.seeds):
        try:
            run_seed(seed, lambda _: None)
        except AssertionError as broken:
            print(broken, file=sys.stderr)
            failed += 1
            if not given.all:
                return 1
    if not failed:
        print(f"{given.seeds} runs kept every promise")
    return 1 if failed else 0
