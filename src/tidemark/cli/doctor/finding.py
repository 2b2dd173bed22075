"""A finding: what was looked at, how it is, and what to do about it.

Invariant: a finding that is not ok says what to do.
"""

from __future__ import annotations

from dataclasses import dataclass
from enum import IntEnum


class Level(IntEnum):
    """Also the exit code."""

    ok = 0
    warn = 1
    fail = 2


@dataclass(frozen=True, slots=True)
class Finding:
    check: str
    """Never changes, so that scripts can look for it."""
    level: Level
    text: str
    advice: str = ""

    def __post_init__(self) -> None:
        assert self.level is Level.ok or self.advice


def ok(check: str, text: str) -> Finding:
    return Finding(check, Level.ok, text)


def warn(check: str, text: str, advice: str) -> Finding:
    return Finding(check, Level.warn, text, advice)


def fail(check: str, text: str, advice: str) -> Finding:
    return Finding(check, Level.fail, text, advice)


def size(count: float) -> str:
    """Bytes for people."""
    for unit in ("B", "KiB", "MiB", "GiB"):
        if count < 1024 or unit == "GiB":
            return f"{count:.0f} {unit}" if unit == "B" or count >= 100 else f"{count:.1f} {unit}"
        count /= 1024
    raise AssertionError
