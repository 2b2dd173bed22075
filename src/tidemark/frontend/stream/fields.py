"""Reading the header of a request: every field by its kind, with an error that names it.

A header comes from anybody, so nothing in it is believed before it was looked at. An absent field and `null` are
the same.

Invariant: what these methods return has the type that they say, and a number lies within 0 and 2^63 - 1.
"""

from __future__ import annotations

import base64
import binascii
import json
from typing import Any, TypeVar, overload

from tidemark.errors import SyntaxFault

BIGGEST = (1 << 63) - 1
DEPTH_MAX = 16
"""How deeply tables may be nested."""
NEEDED: Any = object()
"""The default of a field that must be there."""

_T = TypeVar("_T")


class Fields:
    __slots__ = ("_values", "_where")

    def __init__(self, values: dict[str, Any], where: str) -> None:
        self._values = values
        self._where = where
        """The operation, for the sentence of an error."""

    def __contains__(self, name: str) -> bool:
        return self._values.get(name) is not None

    def raw(self, name: str) -> Any:
        return self._values.get(name)

    @overload
    def text(self, name: str) -> str: ...
    @overload
    def text(self, name: str, default: _T) -> str | _T: ...
    def text(self, name: str, default: Any = NEEDED) -> Any:
        """A string of at most 255 bytes: a name."""
        value = self._of(name, str, "text", default)
        if isinstance(value, str) and len(value.encode("utf-8", "surrogatepass")) > 255:
            raise self._wrong(name, "text of at most 255 bytes", value)
        return value

    def long(self, name: str) -> str:
        """A string of any length, as a pattern is."""
        value: str = self._of(name, str, "text")
        return value

    @overload
    def number(self, name: str, *, least: int = 0) -> int: ...
    @overload
    def number(self, name: str, default: _T, *, least: int = 0) -> int | _T: ...
    def number(self, name: str, default: Any = NEEDED, *, least: int = 0) -> Any:
        value = self._of(name, int, "a number", default)
        if type(value) is int and value != default and not least <= value <= BIGGEST:
            raise self._wrong(name, f"a number from {least} to {BIGGEST}", value)
        return value

    def flag(self, name: str, default: bool) -> bool:
        value: bool = self._of(name, bool, "true or false", default)
        return value

    @overload
    def inner(self, name: str) -> Fields: ...
    @overload
    def inner(self, name: str, default: None) -> Fields | None: ...
    def inner(self, name: str, default: Any = NEEDED) -> Fields | None:
        value = self._of(name, dict, "an object", default)
        return None if value is None else Fields(value, f"{self._where}.{name}")

    def inners(self, name: str) -> list[Fields]:
        values = self._of(name, list, "a list of objects")
        if not all(isinstance(value, dict) for value in values):
            raise self._wrong(name, "a list of objects", values)
        return [Fields(value, f"{self._where}.{name}[{i}]") for i, value in enumerate(values)]

    def texts(self, name: str) -> list[str] | None:
        values: list[str] | None = self._of(name, list, "a list of text", None)
        if values is not None and not all(isinstance(value, str) for value in values):
            raise self._wrong(name, "a list of text", values)
        return values

    def numbers(self, name: str) -> list[int] | None:
        values: list[int] | None = self._of(name, list, "a list of numbers", None)
        if values is not None and not all(type(value) is int and 0 <= value <= BIGGEST for value in values):
            raise self._wrong(name, "a list of numbers", values)
        return values

    def ranges(self, name: str) -> list[tuple[int, int]]:
        """Pairs of numbers: the first and the last of each range."""
        values = self._of(name, list, "a list of pairs [first, last]")
        for value in values:
            if not (
                isinstance(value, list)
                and len(value) == 2
                and all(type(number) is int and 0 <= number <= BIGGEST for number in value)
            ):
                raise self._wrong(name, "a list of pairs [first, last]", value)
        return [(first, last) for first, last in values]

    def octets(self, name: str) -> bytes | None:
        """Bytes, written as base64."""
        value = self._of(name, str, "base64", None)
        if value is None:
            return None
        try:
            return base64.b64decode(value, validate=True)
        except (binascii.Error, ValueError):
            raise self._wrong(name, "base64", value) from None

    def history(self, name: str = "history") -> bytes:
        """The 16 bytes of a history, written as 32 hex digits."""
        value = self._of(name, str, "32 hex digits")
        try:
            history = bytes.fromhex(value)
        except ValueError:
            history = b""
        if len(history) != 16:
            raise self._wrong(name, "the 32 hex digits of a history", value)
        return history

    def table(self, name: str) -> dict[str, Any]:
        """An object of the peer's own making, as arguments and headers are; empty when it is absent."""
        value: dict[str, Any] = self._of(name, dict, "an object", {})
        if _is_deeper(value, DEPTH_MAX):
            raise SyntaxFault(reason=f"{self._where}: field '{name}' is nested more than {DEPTH_MAX} deep")
        return value

    def values(self) -> dict[str, Any]:
        return self._values

    def _of(self, name: str, kind: type[Any], words: str, default: Any = NEEDED) -> Any:
        value = self._values.get(name)
        if value is None:
            if default is not NEEDED:
                return default
            raise SyntaxFault(reason=f"{self._where}: field '{name}' is missing; it must be {words}")
        if not isinstance(value, kind) or (kind is int and isinstance(value, bool)):
            raise self._wrong(name, words, value)
        return value

    def _wrong(self, name: str, words: str, value: Any) -> SyntaxFault:
        return SyntaxFault(reason=f"{self._where}: field '{name}' must be {words}, not {value!r:.60}")

    def wrong(self, name: str, words: str) -> SyntaxFault:
        """The error for a value that has the right kind and still cannot be."""
        return self._wrong(name, words, self._values.get(name))


def _is_deeper(value: Any, depth: int) -> bool:
    if not isinstance(value, dict | list):
        return False
    inner = value.values() if isinstance(value, dict) else value
    return depth == 0 or any(_is_deeper(each, depth - 1) for each in inner)


def check_text(header: dict[str, Any], text: memoryview) -> None:
    """That all text in a header is Unicode: an escape can write half of a surrogate pair, which nothing can store.

    Raises:
        SyntaxFault: some is not.
    """
    if b"\\u" in bytes(text):
        try:
            json.dumps(header, ensure_ascii=False).encode()
        except (UnicodeEncodeError, RecursionError):
            raise SyntaxFault(
                reason="the header has text that is not Unicode: half of a surrogate pair; write names as UTF-8"
            ) from None
