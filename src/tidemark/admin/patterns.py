"""Searching names for a pattern that a visitor gave, in time that has a bound.

There are short patterns for which a matcher tries for years, and the loop of the broker cannot wait for it. So the search in
one name is given up after `SEARCH_S`, and the pattern with it: whoever gave it is told so. How long a pattern takes
to prepare grows with how often its parts are repeated by number, so that has a bound, too.

Invariant: `Search.finds` returns or raises within `SEARCH_S`, whatever the pattern and the name.
"""

from __future__ import annotations

import math

import regex

CHARACTERS_MAX = 256
COUNTED_MAX = 1000
"""How often a pattern may repeat a part, repeats within repeats multiplied."""
SEARCH_S = 0.002

_COUNTED = regex.compile(r"\{([0-9]*),?([0-9]*)\}")


class BadPattern(ValueError):
    """It is no regular expression, or one that takes too long; the text says why."""


class Search:
    """A regular expression of Python's syntax, looked for anywhere in a name, whatever the case of its letters."""

    def __init__(self, pattern: str) -> None:
        """Raises BadPattern."""
        if len(pattern) > CHARACTERS_MAX:
            raise BadPattern(f"it is longer than {CHARACTERS_MAX} characters")
        counts = [max(1, *map(_number, bounds)) for bounds in _COUNTED.findall(pattern)]
        if math.prod(counts) > COUNTED_MAX:
            raise BadPattern(f"it repeats a part more than {COUNTED_MAX} times")
        try:
            self._search = regex.compile(pattern, regex.IGNORECASE).search
        except (regex.error, RecursionError, OverflowError, ValueError) as problem:
            raise BadPattern(str(problem)) from None

    def finds(self, name: str) -> bool:
        """Raises BadPattern when it takes too long."""
        try:
            return self._search(name, timeout=SEARCH_S) is not None
        except TimeoutError:
            raise BadPattern("it takes too long to search for; write repeats more simply") from None


def _number(text: str) -> int:
    """What has more digits than any count that is allowed is too many, however many."""
    return int(text[:5]) if text else 0
