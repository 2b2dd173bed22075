"""What the loads of all peers have in common: which keys, which values, and that all of it is there."""

from __future__ import annotations

import random
import time
from collections.abc import Callable, Iterator

from bench.measure import Figures, RunFailedError

VALUE = b"x" * 100
PREPARED = 40
"""Payloads that are encoded before and sent in turn."""


def chunks(keys: int, batch: int) -> Iterator[list[int]]:
    """Every key once."""
    for start in range(0, keys, batch):
        yield list(range(start, min(start + batch, keys)))


def draw(keys: int, count: int) -> list[int]:
    """Keys, each as likely as any other."""
    return [random.randrange(keys) for _ in range(count)]


def expect(who: str, what: str, wanted: int, found: int) -> None:
    """A run counts only if the server has what it was given.

    Raises:
        RunFailedError: it has not.
    """
    if wanted != found:
        raise RunFailedError(f"{who} has {found:,} {what} where {wanted:,} were put")


def reading(once: Callable[[], int], cpu_seconds: Callable[[], float], seconds: float) -> Figures:
    """Figures of reading again and again, after a first time for the server to warm up.

    `once` reads everything and returns how many rows that were.
    """
    once()
    rows, began, cpu_before = 0, time.perf_counter(), cpu_seconds()
    while time.perf_counter() - began < seconds:
        rows += once()
    wall, cpu_s = time.perf_counter() - began, cpu_seconds() - cpu_before
    return {"read_per_s": rows / wall, "read_cpu_s_per_million": cpu_s / rows * 1e6}
