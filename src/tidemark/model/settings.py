"""Settings: one declaration for the file key, the environment variable, the flag and the row in the docs.

A package declares its settings as a frozen dataclass whose fields are made by `setting(default, doc)`.
`of(section, kind)` lists them as `Setting` values and `Setting.read` turns text or a TOML value into a value
of the right type. Which source of values wins is decided in `tidemark.config`.

Invariant: a value that `read` accepted has the declared type; all others are a `ConfigError` of one sentence.
"""

from __future__ import annotations

import difflib
import re
import types
import typing
from collections.abc import Iterator
from dataclasses import MISSING, dataclass, field, fields
from pathlib import Path
from typing import Any, Literal

from tidemark.errors import ConfigError

_DOC = "tidemark.doc"
_SIZES = {"": 1, "b": 1, "kb": 1000, "mb": 1000**2, "gb": 1000**3, "tb": 1000**4}
_SIZES |= {"kib": 1024, "mib": 1024**2, "gib": 1024**3, "tib": 1024**4}
_SIZE = re.compile(r"([0-9_]+(?:\.[0-9]+)?)\s*([a-zA-Z]*)")


def setting(default: Any, doc: str) -> Any:
    """A field of a settings dataclass: its default and one sentence for the person who sets it."""
    return field(default=default, metadata={_DOC: doc})


@dataclass(frozen=True, slots=True)
class Setting:
    """One setting of one section."""

    section: str
    name: str
    kind: Any
    default: Any
    doc: str

    @property
    def key(self) -> str:
        """As in errors, in `--set` and in the file: `store.segment_bytes`."""
        return f"{self.section}.{self.name}"

    @property
    def variable(self) -> str:
        """The environment variable: `TIDEMARK_STORE_SEGMENT_BYTES`."""
        return f"TIDEMARK_{self.section}_{self.name}".upper()

    @property
    def flag(self) -> str:
        """The flag: `--store.segment-bytes`."""
        return f"--{self.section}.{self.name.replace('_', '-')}"

    @property
    def type_name(self) -> str:
        """The type in words, for the docs."""
        return _type_name(self.kind)

    def read(self, value: Any) -> Any:
        """`value`, which is text or a TOML value, as the declared type.

        Raises:
            ConfigError: it is not one.
        """
        try:
            return _convert(
                self.kind, value, sized=self.name.endswith(("_bytes", "_bytes_max", "_bytes_min"))
            )
        except ValueError as problem:
            raise ConfigError(key=self.key, problem=str(problem)) from None


def of(section: str, kind: type[Any]) -> Iterator[Setting]:
    """The settings that a dataclass declares, in their order."""
    hints = typing.get_type_hints(kind)
    for one in fields(kind):
        assert one.default is not MISSING, f"{section}.{one.name} has no default"
        yield Setting(section, one.name, hints[one.name], one.default, one.metadata.get(_DOC, ""))


def closest(word: str, known: list[str]) -> str:
    """` did you mean 'x'?` for an unknown word, or nothing when nothing is near."""
    found = difflib.get_close_matches(word, known, n=1, cutoff=0.6)
    return f"; did you mean '{found[0]}'?" if found else ""


def show(value: Any) -> str:
    """A value as it is written in a TOML file."""
    match value:
        case None:
            return '""'
        case bool():
            return "true" if value else "false"
        case int() | float():
            return str(value)
        case tuple() | list():
            return "[" + ", ".join(show(item) for item in value) + "]"
        case _:
            return '"' + str(value).replace("\\", "\\\\").replace('"', '\\"') + '"'


def _type_name(kind: Any) -> str:
    origin, arguments = typing.get_origin(kind), typing.get_args(kind)
    if origin is Literal:
        return " | ".join(f'"{choice}"' for choice in arguments)
    if origin in (typing.Union, types.UnionType):
        return " or ".join("empty" if a is type(None) else _type_name(a) for a in arguments)
    if origin is tuple:
        return f"list of {_type_name(arguments[0])}"
    return {int: "integer", float: "number", bool: "true | false", str: "text", Path: "path"}.get(
        kind, "text"
    )


def _convert(kind: Any, value: Any, *, sized: bool) -> Any:
    origin, arguments = typing.get_origin(kind), typing.get_args(kind)
    if origin is Literal:
        if value in arguments and isinstance(value, str):
            return value
        choices = ", ".join(repr(choice) for choice in arguments)
        raise ValueError(f"must be one of {choices}, not {value!r}")
    if origin in (typing.Union, types.UnionType):
        if value is None or value == "":
            return None
        [inner] = [a for a in arguments if a is not type(None)]
        return _convert(inner, value, sized=sized)
    if origin is tuple:
        items = (
            [part.strip() for part in value.split(",") if part.strip()] if isinstance(value, str) else value
        )
        if not isinstance(items, (list, tuple)):
            raise ValueError(f"must be a list, not {value!r}")
        return tuple(_convert(arguments[0], item, sized=sized) for item in items)
    if kind is bool:
        return _boolean(value)
    if kind is int:
        return _integer(value, sized=sized)
    if kind is float:
        return _number(value)
    if kind is Path and isinstance(value, (str, Path)):
        return Path(value)
    if kind is str and isinstance(value, str):
        return value
    raise ValueError(f"must be text, not {value!r}")


def _boolean(value: Any) -> bool:
    if isinstance(value, bool):
        return value
    if isinstance(value, str) and value.lower() in ("true", "yes", "on", "1"):
        return True
    if isinstance(value, str) and value.lower() in ("false", "no", "off", "0"):
        return False
    raise ValueError(f"must be true or false, not {value!r}")


def _integer(value: Any, *, sized: bool) -> int:
    if isinstance(value, int) and not isinstance(value, bool):
        return value
    if isinstance(value, str):
        if sized and (match := _SIZE.fullmatch(value.strip())) and match[2].lower() in _SIZES:
            return int(float(match[1].replace("_", "")) * _SIZES[match[2].lower()])
        try:
            return int(value)
        except ValueError:
            pass
    example = " such as 64MiB" if sized else ""
    raise ValueError(f"must be a whole number{example}, not {value!r}")


def _number(value: Any) -> float:
    if isinstance(value, (int, float)) and not isinstance(value, bool):
        return float(value)
    if isinstance(value, str):
        try:
            return float(value)
        except ValueError:
            pass
    raise ValueError(f"must be a number, not {value!r}")
