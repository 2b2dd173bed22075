"""Searching names for a pattern that a visitor gave, in time that only grows with the name.

Python's own matcher tries one way after the other, and there are short patterns for which that takes years; the loop
of the broker cannot wait for it. Here a pattern becomes a small graph, and a name is read once, with the set of all
places in the graph that could have been reached so far. Sets that were seen before are remembered with what follows
them, so most characters cost one look into a dictionary. What such a graph cannot say (references back, looking ahead
or behind) is refused.

Invariant: `Search.finds` takes at most as many steps as the name has characters.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable
from re import _constants as sre  # type: ignore[attr-defined]
from re import _parser  # type: ignore[attr-defined]
from typing import Any

CHARACTERS_MAX = 256
NODES_MAX = 2000
REMEMBERED_MAX = 5000

ALWAYS, AT_START, AT_END = 0, 1, 2
"""When a step without a character may be taken."""

Test = Callable[[str], bool]
Places = frozenset[int]

CATEGORIES: dict[Any, Test] = {
    sre.CATEGORY_DIGIT: str.isdecimal,
    sre.CATEGORY_NOT_DIGIT: lambda c: not c.isdecimal(),
    sre.CATEGORY_SPACE: str.isspace,
    sre.CATEGORY_NOT_SPACE: lambda c: not c.isspace(),
    sre.CATEGORY_WORD: lambda c: c.isalnum() or c == "_",
    sre.CATEGORY_NOT_WORD: lambda c: not (c.isalnum() or c == "_"),
}
ANCHORS = {
    sre.AT_BEGINNING: AT_START,
    sre.AT_BEGINNING_STRING: AT_START,
    sre.AT_END: AT_END,
    sre.AT_END_STRING: AT_END,
}


class BadPattern(ValueError):
    """It is no regular expression, or one that is not offered; the text says why."""


class Search:
    """A regular expression, looked for anywhere in a name, whatever the case of its letters."""

    def __init__(self, pattern: str) -> None:
        """Raises BadPattern."""
        if len(pattern) > CHARACTERS_MAX:
            raise BadPattern(f"it is longer than {CHARACTERS_MAX} characters")
        try:
            tree = _parser.parse(pattern)
        except (re.error, RecursionError, OverflowError) as problem:
            raise BadPattern(str(problem)) from None
        self._free: list[list[tuple[int, int]]] = []
        """By node: steps that take no character, as (to, when)."""
        self._taking: list[tuple[Test, int] | None] = []
        """By node: the step that takes one."""
        start, self._accepted = self._node(), self._node()
        self._join(self._build(tree, start), self._accepted)
        self._first = self._reach([start], AT_START)
        self._anew = self._reach([start], ALWAYS)
        self._next: dict[Places, dict[str, Places]] = {}
        self._remembered = 0

    def finds(self, name: str) -> bool:
        places = self._first
        for character in name:
            if self._accepted in places:
                return True
            known = self._next.get(places)
            following = None if known is None else known.get(character)
            places = self._step(places, character) if following is None else following
        return self._accepted in places or self._accepted in self._reach(places, AT_END)

    def _step(self, places: Places, character: str) -> Places:
        other = character.swapcase()
        reached = []
        for place in places:
            taking = self._taking[place]
            if taking is not None and (taking[0](character) or taking[0](other)):
                reached.append(taking[1])
        following = self._reach(reached, ALWAYS) | self._anew
        if self._remembered >= REMEMBERED_MAX:
            self._next.clear()
            self._remembered = 0
        self._next.setdefault(places, {})[character] = following
        self._remembered += 1
        return following

    def _reach(self, places: Iterable[int], where: int) -> Places:
        """These and all that steps without a character lead to."""
        reached = set(places)
        waiting = list(reached)
        for place in waiting:
            for to, when in self._free[place]:
                if when in (ALWAYS, where) and to not in reached:
                    reached.add(to)
                    waiting.append(to)
        return frozenset(reached)

    # The graph -------------------------------------------------------------------------------

    def _node(self) -> int:
        if len(self._free) >= NODES_MAX:
            raise BadPattern("it is too large; repeat less often")
        self._free.append([])
        self._taking.append(None)
        return len(self._free) - 1

    def _join(self, node: int, to: int, when: int = ALWAYS) -> None:
        self._free[node].append((to, when))

    def _build(self, tree: Any, at: int) -> int:
        """Append the parts of `tree` behind node `at`; returns the node behind them."""
        for kind, value in tree:
            at = self._part(kind, value, at)
        return at

    def _part(self, kind: Any, value: Any, at: int) -> int:
        behind = self._node()
        if kind in (sre.LITERAL, sre.NOT_LITERAL, sre.ANY, sre.IN):
            self._taking[at] = (_test(kind, value), behind)
        elif kind is sre.AT and value in ANCHORS:
            self._join(at, behind, ANCHORS[value])
        elif kind is sre.SUBPATTERN:
            self._join(self._build(value[3], at), behind)
        elif kind is sre.BRANCH:
            for one in value[1]:
                first = self._node()
                self._join(at, first)
                self._join(self._build(one, first), behind)
        elif kind in (sre.MAX_REPEAT, sre.MIN_REPEAT):
            least, most, inner = value
            self._repeat(least, most, inner, at, behind)
        else:
            raise BadPattern(
                "it looks back or ahead; there are letters, . [] () | ^ $ \\d \\w \\s and * + ? {m,n}"
            )
        return behind

    def _repeat(self, least: int, most: Any, tree: Any, at: int, behind: int) -> None:
        for _ in range(least):
            first = self._node()
            self._join(at, first)
            at = self._build(tree, first)
        if most is sre.MAXREPEAT:
            round_ = self._node()
            self._join(at, round_)
            first = self._node()
            self._join(round_, first)
            self._join(self._build(tree, first), round_)
            self._join(round_, behind)
            return
        for _ in range(most - least):
            self._join(at, behind)
            first = self._node()
            self._join(at, first)
            at = self._build(tree, first)
        self._join(at, behind)


def _test(kind: Any, value: Any) -> Test:
    """Whether one character fits one part of a pattern."""
    if kind is sre.ANY:
        return lambda c: c != "\n"
    if kind is sre.LITERAL:
        wanted = chr(value)
        return lambda c: c == wanted
    if kind is sre.NOT_LITERAL:
        unwanted = chr(value)
        return lambda c: c.lower() != unwanted.lower()
    negated = bool(value) and value[0][0] is sre.NEGATE
    tests = [_member(*one) for one in value if one[0] is not sre.NEGATE]
    if negated:
        return lambda c: not any(test(c) or test(c.swapcase()) for test in tests)
    return lambda c: any(test(c) for test in tests)


def _member(kind: Any, value: Any) -> Test:
    """One entry between square brackets."""
    if kind is sre.LITERAL:
        return lambda c: len(c) == 1 and ord(c) == value
    if kind is sre.RANGE:
        low, high = value
        return lambda c: len(c) == 1 and low <= ord(c) <= high
    return CATEGORIES[value]
