"""What the sinks that keep rows in tables have in common: options, names of columns, digests, the search for a bad row.

A stream's key is the column `_key` in a pipeline and `key_column` (default "key") in a table; the version that a row
was made from is `_sequence` in both. So a table can always say which versions it holds.

Invariant: `arrange` gives rows whose keys are there (no nulls) and differ from one another, or refuses them.
"""

from __future__ import annotations

import difflib
import hashlib
from typing import TYPE_CHECKING, Any

import pyarrow as pa
import pyarrow.compute as pc

from tidemark_spark.errors import OptionError, RowRefused, SinkRefused
from tidemark_spark.pipeline.values import KEY, SEQUENCE, Digest

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Mapping

    from tidemark_spark.pipeline.values import Mode

OF_THE_PIPELINE = ("name", "kind", "from", "mode")
"""What a [[sink]] table has for the pipeline itself; sinks let it pass."""


# Options -----------------------------------------------------------------------------------------------------------


class SinkOptions:
    """The [[sink]] table of one sink, read name by name; `done` refuses what nobody asked for."""

    def __init__(self, sink: str, options: Mapping[str, Any]) -> None:
        self._sink = sink
        self._options = options
        self._known = list(OF_THE_PIPELINE)

    def get(self, name: str, default: Any = None) -> Any:
        self._known.append(name)
        return self._options.get(name, default)

    def text(self, name: str, default: str | None = None) -> str:
        """A text that must be there, unless there is a default for it."""
        value = self.get(name, default)
        if value is None:
            raise self.wrong(name, "is missing")
        if not isinstance(value, str) or not value:
            raise self.wrong(name, f"must be a text, not {value!r}")
        return value

    def number(self, name: str, default: int, least: int = 0) -> int:
        value = self.get(name, default)
        if isinstance(value, bool) or not isinstance(value, int) or value < least:
            raise self.wrong(name, f"must be a whole number of at least {least}, not {value!r}")
        return value

    def names(self, name: str) -> tuple[str, ...]:
        """A list of column names; one name alone may be written as a text."""
        value = self.get(name, [])
        listed = [value] if isinstance(value, str) else value
        if not isinstance(listed, list) or not all(isinstance(item, str) and item for item in listed):
            raise self.wrong(name, f"must be a list of column names, not {value!r}")
        return tuple(listed)

    def table(self, name: str) -> Mapping[str, Any]:
        value = self.get(name, {})
        if not isinstance(value, dict):
            raise self.wrong(name, f"must be a table of settings, not {value!r}")
        return value

    def wrong(self, name: str, problem: str) -> OptionError:
        return OptionError(option=f"{self._sink}.{name}", problem=problem)

    def done(self) -> None:
        for name in self._options:
            if name not in self._known:
                near = difflib.get_close_matches(name, self._known, n=1)
                hint = f"; did you mean '{near[0]}'?" if near else f"; there are {', '.join(self._known)}"
                raise self.wrong(name, f"is not an option of this kind of sink{hint}")


# Rows --------------------------------------------------------------------------------------------------------------


class TableShape:
    """Which columns make a row unique in the table, in one mode."""

    def __init__(self, sink: str, mode: Mode, key_column: str, key: tuple[str, ...]) -> None:
        self.sink = sink
        self.mode = mode
        self.key_column = key_column
        if mode == "mirror":
            self.key: tuple[str, ...] = (key_column,)
        elif mode == "update":
            if not key:
                raise OptionError(
                    option=f"{sink}.key",
                    problem="mode update needs the columns that make a row unique, as a list",
                )
            self.key = key
        else:
            self.key = ()

    def schema(self, schema: pa.Schema) -> pa.Schema:
        """The schema of the table for rows of this schema.

        Raises:
            OptionError: the names of columns do not go together with the options.
        """
        names = [self._name(name) for name in schema.names]
        lower = [name.lower() for name in names]
        for name in names:
            if lower.count(name.lower()) > 1:
                if self.mode == "mirror" and name.lower() == self.key_column.lower():
                    problem = (
                        f"the rows have a column '{name}' of their own; give the stream's key another name"
                    )
                    raise OptionError(option=f"{self.sink}.key_column", problem=problem)
                raise SinkRefused(
                    sink=self.sink,
                    problem=f"two columns are called '{name}'; rename one in the transformation",
                )
        for name in (*self.key, *((SEQUENCE,) if self.mode == "mirror" else ())):
            if name not in names:
                listed = ", ".join(schema.names)
                raise OptionError(
                    option=f"{self.sink}.key", problem=f"there is no column '{name}'; the rows have {listed}"
                )
        return pa.schema([field.with_name(name) for field, name in zip(schema, names, strict=True)])

    def arrange(self, rows: pa.Table) -> pa.Table:
        """The rows with the table's names.

        Raises:
            RowRefused: a row has no key.
            SinkRefused: two rows have the same key.
        """
        named = rows.rename_columns([self._name(name) for name in rows.column_names])
        if named.num_rows == 0 or not self.key:
            return named
        if self.mode == "mirror":
            keys = named[self.key_column]
            if keys.null_count:
                first = pc.index(pc.is_null(keys), True).as_py()
                raise self.refused(named, first, "its key is NULL")
            if pc.count_distinct(keys).as_py() == named.num_rows:
                return named
        counted = named.select(list(self.key)).group_by(list(self.key)).aggregate([([], "count_all")])
        if counted.num_rows < named.num_rows:
            twice = counted.filter(pc.greater(counted["count_all"], 1)).slice(0, 1).to_pylist()[0]
            twice.pop("count_all")
            shown = ", ".join(f"{name} = {key_text(value)}" for name, value in twice.items())
            raise SinkRefused(
                sink=self.sink,
                problem=f"one batch has several rows with {shown}; {' and '.join(self.key)} must make a row unique",
            )
        return named

    def refused(self, rows: pa.Table, index: int, problem: str) -> RowRefused:
        """The error about one row of `arrange`d rows."""
        row = rows.slice(index, 1).to_pylist()[0]
        key = " ".join(key_text(row[name]) for name in self.key) if self.key else f"row {index} of the batch"
        return RowRefused(sink=self.sink, key=key, sequence=row.get(SEQUENCE), problem=problem.rstrip("."))

    def _name(self, column: str) -> str:
        return self.key_column if self.mode == "mirror" and column == KEY else column


def key_text(value: Any) -> str:
    """A key as a person reads it: bytes as text where they are text."""
    if isinstance(value, bytes):
        try:
            return value.decode()
        except UnicodeDecodeError:
            return "0x" + value.hex()
    return str(value)


def find_refused(rows: pa.Table, fits: Callable[[pa.Table], bool]) -> int | None:
    """The index of a row that does not fit; None if, tried again, all fit.

    `fits` tries a part and takes it back. Halving finds a row that does not fit by itself, with about as much work as
    one more batch. When there is none (two rows do not go together), it is the last row of the shortest beginning
    that does not fit.
    """
    if fits(rows):
        return None
    first, count = 0, int(rows.num_rows)
    while count > 1:
        half = count // 2
        if fits(rows.slice(first, half)):
            first, count = first + half, count - half
        else:
            count = half
    if not fits(rows.slice(first, 1)):
        return first
    good, bad = 1, int(rows.num_rows)
    while bad - good > 1:
        middle = (good + bad) // 2
        if fits(rows.slice(0, middle)):
            good = middle
        else:
            bad = middle
    return bad - 1


# Digests -----------------------------------------------------------------------------------------------------------

_MODULUS = 1 << 128


def digest_of(parts: Iterable[tuple[Any, Any]]) -> Digest:
    """The digest of rows that come as (keys, sequences): Arrow arrays, or anything that can be gone through."""
    rows, total = 0, 0
    sha256, from_bytes = hashlib.sha256, int.from_bytes
    for keys, sequences in parts:
        for key, sequence in zip(_plain(keys), _plain(sequences), strict=True):
            head = sequence.to_bytes(8, "little")
            body = key.encode() if isinstance(key, str) else key
            total += from_bytes(sha256(head + body).digest()[:16], "little")
            rows += 1
    return Digest(rows=rows, hash=f"{total % _MODULUS:032x}")


def _plain(values: Any) -> Any:
    return values.to_pylist() if isinstance(values, pa.Array | pa.ChunkedArray) else values
