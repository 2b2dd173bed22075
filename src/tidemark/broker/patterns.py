"""Regular expressions that somebody gave us, searched for in names in time that has a bound.

There are short patterns for which a matcher tries for years, and the loop of the broker cannot wait for it. A pattern whose
search may take more than the square of the name's length is searched for by `regex`, which stops after a while. How
much memory and time it takes to prepare one grows with how often its parts are repeated by number, so that has a bound, too.
Names have 255 bytes at most, so nothing here can hold up the broker for long.

`Pattern` is what policies and permissions have: the syntax is that of Python's `re`, and a name on which the search takes
too long counts as not matching. When a pass over all names takes too long (`PASS_S`), the rest of them are given much less.
Whoever has another use takes `compiled` and `found_within`.

Invariant: a search returns within its time, whatever the pattern and the name.
"""

from __future__ import annotations

import math
import re
from collections.abc import Callable
from time import thread_time
from typing import Any

import regex

COUNTED_MAX = 10_000
"""How often a pattern may repeat a part, repeats within repeats multiplied: preparing it takes as much memory."""
SEARCH_S = 0.02
"""Longest that a search for a pattern in one name may take."""
PASS_S = 0.1
NAME_S = 50e-6
"""How long all searches of one pass over all names may take: so long, and so much more for each name."""
HURRIED_S = 0.0002
"""Longest that a search may take in a pass that took longer: enough for any name that is not made to be hard."""
KNOWN_MAX = 10_000
"""How many names a pattern that may take long remembers."""

_COUNTED = re.compile(r"\{([0-9]*),?([0-9]*)\}")
_QUANTIFIERS = re.compile(r"[*+?{]")
_REPEATED_GROUP = re.compile(r"\)[*+?{]")
_REFERENCE = re.compile(r"\\[1-9]|\(\?P=|\(\?\(")
_NO_COUNT = re.compile(r"\\.|\{(?![0-9]*,?[0-9]*\})", re.DOTALL)
"""A brace that begins no count, or anything behind a backslash."""

SearchIn = Callable[[str], object]


class BadPattern(ValueError):
    """It is no regular expression, or one that takes too much; the text says why."""


def compiled(pattern: str, counted_max: int = COUNTED_MAX, *, ignore_case: bool = False) -> Any:
    """For `found_within`, of Python's syntax. Raises BadPattern."""
    counted = math.prod(max(1, *map(_number, bounds)) for bounds in _COUNTED.findall(pattern))
    if counted > counted_max:
        raise BadPattern(f"it repeats a part more than {counted_max} times")
    try:
        re.compile(pattern)
        return regex.compile(_NO_COUNT.sub(_literal, pattern), regex.IGNORECASE if ignore_case else 0)
    except (re.error, regex.error, RecursionError, OverflowError, ValueError) as problem:
        raise BadPattern(str(problem)) from None


def _number(text: str) -> int:
    """What has more digits than any count that is allowed is too many, however many."""
    return int(text[:6]) if text else 0


def _literal(found: re.Match[str]) -> str:
    """To `re` such a brace is a brace; to `regex` it would ask for names that are nearly alike."""
    return r"\{" if found[0] == "{" else found[0]


def found_within(limit_s: float, pattern: Any, name: str) -> bool | None:
    """Whether the name has the `compiled` pattern; None: to find out takes longer."""
    for _ in range(2):
        began_s = thread_time()
        try:
            return pattern.search(name, timeout=limit_s) is not None
        except TimeoutError:
            if thread_time() - began_s > limit_s / 2:
                break
            # The clock of `regex` is that of all threads: it was others that took so long.
    return None


def is_quick(pattern: str) -> bool:
    """Whether searching takes no more than about the square of the name's length: at most one thing is repeated, and
    that is no group."""
    plain = pattern.replace("(?", "(")
    return (
        len(_QUANTIFIERS.findall(plain)) <= 1
        and not _REPEATED_GROUP.search(plain)
        and not _REFERENCE.search(pattern)
    )


class Pattern:
    """A regular expression that cannot take long."""

    def __init__(self, pattern: str) -> None:
        """Raises BadPattern when it is none, or one that takes too much memory."""
        self._bounded = compiled(pattern)
        self.slow = 0
        """How many searches were given up in this pass."""
        self._known: dict[str, bool] = {}
        """What was found out about names: a later pass over them must not come to something else."""
        self._searched = 0
        self._spent_s = 0.0
        self.search: SearchIn = re.compile(pattern).search if is_quick(pattern) else self._search_a_while
        """True of a name that has it."""

    def _search_a_while(self, name: str) -> bool:
        known = self._known.get(name)
        if known is not None:
            return known
        hurried = self._spent_s > PASS_S + NAME_S * self._searched
        self._searched += 1
        began_s = thread_time()
        found = found_within(HURRIED_S if hurried else SEARCH_S, self._bounded, name)
        self._spent_s += thread_time() - began_s
        if found is None:
            self.slow += 1
            found = False
        if len(self._known) >= KNOWN_MAX:
            self._known.clear()
        self._known[name] = found
        return found

    def rest(self) -> bool:
        """A pass has ended. True: some searches were given up in it."""
        was_slow = self.slow > 0
        self.slow = self._searched = 0
        self._spent_s = 0.0
        return was_slow
