"""Searching names for a pattern that a visitor gave: when it takes too long, the visitor is told so.

Invariant: `Search.finds` returns or raises within twice `SEARCH_S`, whatever the pattern and the name.
"""

from __future__ import annotations

from tidemark.broker import patterns
from tidemark.broker.patterns import BadPattern

CHARACTERS_MAX = 256
COUNTED_MAX = 1000
"""How often a pattern may repeat a part, repeats within repeats multiplied."""
SEARCH_S = 0.002


class Search:
    """A regular expression of Python's syntax, looked for anywhere in a name, whatever the case of its letters."""

    def __init__(self, pattern: str) -> None:
        """Raises BadPattern."""
        if len(pattern) > CHARACTERS_MAX:
            raise BadPattern(f"it is longer than {CHARACTERS_MAX} characters")
        self._pattern = patterns.compiled(pattern, COUNTED_MAX, ignore_case=True)

    def finds(self, name: str) -> bool:
        """Raises BadPattern when it takes too long."""
        found = patterns.found_within(SEARCH_S, self._pattern, name)
        if found is None:
            raise BadPattern("it takes too long to search for; write repeats more simply")
        return found
