"""A body in JSON, read in slices: one with ten thousand queues would else keep the broker from everything else.

Only the outermost object and the lists that are its values are taken apart here; what is in these lists is read whole,
item by item, as is a document that is short or something else. All else is Python's reader, and so are its errors.
"""

from __future__ import annotations

import json
import math
import re
from typing import Any

from tidemark.admin.pace import Pace

AT_ONCE_CHARS = 1 << 16
"""A document that is no longer is read in one go."""
_SPACE = re.compile(r"[ \t\n\r]*")
_OPENING = re.compile(r"[ \t\n\r]*\{")


async def read(text: str, depth_max: int) -> Any:
    """What the document says.

    Raises:
        ValueError: it is not JSON; TooDeep or NoText when that is why.
        RecursionError: it is nested much too deeply.
    """
    has_escapes = (
        "\\ud" in text or "\\uD" in text
    )  # else it has only whole characters, as what it was decoded from
    if len(text) > AT_ONCE_CHARS and (opening := _OPENING.match(text)) is not None:
        return await _Reader(text, has_escapes, depth_max).object(opening.end())
    found = read_json(text)
    _check(found, has_escapes, depth_max)
    return found


def read_json(text: str | bytes) -> Any:
    """JSON as its standard has it: nothing infinite, and no NaN, which could not be sent on. Raises ValueError, RecursionError."""
    return json.loads(text, parse_constant=_no_number, parse_float=_finite)


class TooDeep(ValueError):
    """It is nested more deeply than it may be."""


class NoText(ValueError):
    """It has text that is not Unicode."""


class _Reader:
    def __init__(self, text: str, has_escapes: bool, depth_max: int) -> None:
        self._text = text
        self._has_escapes = has_escapes
        self._depth_max = depth_max
        self._pace = Pace()

    async def object(self, at: int) -> dict[str, Any]:
        """All of it, from behind its opening brace."""
        found: dict[str, Any] = {}
        at = self._after_space(at)
        if self._char(at) == "}":
            self._must_end(at + 1)
            return found
        while True:
            if self._char(at) != '"':
                raise json.JSONDecodeError(
                    "Expecting property name enclosed in double quotes", self._text, at
                )
            name, at = self._value(at, 1)
            at = self._after_space(at)
            if self._char(at) != ":":
                raise json.JSONDecodeError("Expecting ':' delimiter", self._text, at)
            at = self._after_space(at + 1)
            if self._char(at) == "[":
                found[name], at = await self._list(at)
            else:
                found[name], at = self._value(at, 1)
            at = self._after_space(at)
            if self._char(at) == "}":
                self._must_end(at + 1)
                return found
            at = self._after_comma(at)

    async def _list(self, at: int) -> tuple[list[Any], int]:
        found: list[Any] = []
        at = self._after_space(at + 1)
        if self._char(at) == "]":
            return found, at + 1
        while True:
            item, at = self._value(at, 2)
            found.append(item)
            if self._pace.is_over():
                await self._pace.rest()
            at = self._after_space(at)
            if self._char(at) == "]":
                return found, at + 1
            at = self._after_comma(at)

    def _value(self, at: int, depth: int) -> tuple[Any, int]:
        found, end = _DECODER.raw_decode(self._text, at)
        _check(found, self._has_escapes, self._depth_max - depth)
        return found, end

    def _char(self, at: int) -> str:
        return self._text[at : at + 1]

    def _after_space(self, at: int) -> int:
        space = _SPACE.match(self._text, at)
        assert space is not None
        return space.end()

    def _after_comma(self, at: int) -> int:
        if self._char(at) != ",":
            raise json.JSONDecodeError("Expecting ',' delimiter", self._text, at)
        return self._after_space(at + 1)

    def _must_end(self, at: int) -> None:
        if self._after_space(at) != len(self._text):
            raise json.JSONDecodeError("Extra data", self._text, at)


def _check(found: Any, has_escapes: bool, depth_max: int) -> None:
    if isinstance(found, dict | list) and _is_deeper(found, depth_max):
        raise TooDeep
    if has_escapes:
        try:
            json.dumps(found, ensure_ascii=False).encode()
        except UnicodeEncodeError:
            raise NoText from None


def _is_deeper(value: dict[str, Any] | list[Any], depth: int) -> bool:
    level: list[Any] = [value]
    while level and depth >= 0:
        inner = (one.values() if isinstance(one, dict) else one for one in level)
        level = [each for many in inner for each in many if isinstance(each, dict | list)]
        depth -= 1
    return bool(level)


def _no_number(word: str) -> float:
    raise ValueError(f"{word} is not JSON")


def _finite(digits: str) -> float:
    found = float(digits)
    if math.isinf(found):
        raise ValueError(f"{digits[:20]} is larger than any number here")
    return found


_DECODER = json.JSONDecoder(parse_constant=_no_number, parse_float=_finite)
