"""The columns that Spark sees, and how the broker's Arrow batches become them.

A user who gives a schema chooses columns, in any order; only those are asked of the broker. The stream's name, its
history and (when a task reads one shard) the shard are the same in every row: they are made here, once for the longest
batch, and cut to length for each, which copies nothing. Key, value, sequence and deleted are handed on as they came.

Invariant: a batch that leaves here has exactly the schema that Spark was told.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import TYPE_CHECKING, Any, Final

from tidemark_spark.errors import OptionError

if TYPE_CHECKING:
    import pyarrow as pa

COLUMNS: Final = {
    "key": "binary",
    "value": "binary",
    "stream": "string",
    "shard": "int",
    "sequence": "bigint",
    "history": "string",
    "timestamp": "timestamp",
    "deleted": "boolean",
    "headers": "array<struct<key:string,value:binary>>",
}
"""Name and type as Spark writes it."""
CONSTANT: Final = frozenset({"stream", "history"})
"""Not asked of the broker."""


def ddl(headers: bool) -> str:
    """The schema of a read whose user gave none."""
    return ", ".join(f"{name} {kind}" for name, kind in COLUMNS.items() if headers or name != "headers")


def chosen(fields: Iterable[tuple[str, str]], headers: bool) -> tuple[str, ...]:
    """The columns of a user's schema, as (name, type): each one that we have, of its own type.

    Raises:
        OptionError: it is not.
    """
    names = []
    for name, kind in fields:
        if name not in COLUMNS:
            raise OptionError(
                option="schema", problem=f"there is no column '{name}'; a stream has {', '.join(COLUMNS)}"
            )
        if kind != COLUMNS[name]:
            raise OptionError(
                option="schema",
                problem=f"column '{name}' is {COLUMNS[name]}, not {kind}; read it so and CAST it afterwards",
            )
        if name == "headers" and not headers:
            raise OptionError(option="includeHeaders", problem="must be true to read the column headers")
        names.append(name)
    if len(set(names)) != len(names):
        raise OptionError(option="schema", problem="a column is there twice")
    return tuple(names)


def asked(columns: Sequence[str], *, one_shard: bool = False, more: Iterable[str] = ()) -> tuple[str, ...]:
    """What to ask of the broker for these columns; `more` is needed besides, to filter by."""
    own = CONSTANT | {"shard"} if one_shard else CONSTANT
    found = [name for name in columns if name not in own]
    found += [name for name in more if name not in found]
    return tuple(found) or ("sequence",)  # something, to know how many rows there are


class Shaper:
    """Makes of the broker's batches what Spark was told to expect."""

    def __init__(self, columns: Sequence[str], *, stream: str, history: str, shard: int | None) -> None:
        import pyarrow as pa

        self._columns = tuple(columns)
        self._constants: dict[str, Any] = {"stream": stream, "history": history}
        if shard is not None:
            self._constants["shard"] = shard
        kinds = _arrow_kinds(pa)
        self._kinds = [kinds[name] for name in self._columns]
        self._schema = pa.schema([pa.field(name, kinds[name]) for name in self._columns])
        self._repeated: dict[str, pa.Array] = {}

    def shape(self, batch: pa.RecordBatch) -> pa.RecordBatch:
        """The same rows, with Spark's columns."""
        import pyarrow as pa

        count = batch.num_rows
        arrays = []
        for name, kind in zip(self._columns, self._kinds, strict=True):
            if name in self._constants:
                arrays.append(self._constant(name, kind, count))
                continue
            array = batch.column(name)
            arrays.append(array if array.type == kind else array.cast(kind))
        return pa.RecordBatch.from_arrays(arrays, schema=self._schema)

    def _constant(self, name: str, kind: Any, count: int) -> pa.Array:
        import pyarrow as pa

        found = self._repeated.get(name)
        if found is None or len(found) < count:
            found = self._repeated[name] = pa.repeat(pa.scalar(self._constants[name], kind), count)
        return found if len(found) == count else found.slice(0, count)


def _arrow_kinds(pa: Any) -> dict[str, Any]:
    header = pa.struct([pa.field("key", pa.string()), pa.field("value", pa.binary())])
    return {
        "key": pa.binary(),
        "value": pa.binary(),
        "stream": pa.string(),
        "shard": pa.int32(),
        "sequence": pa.int64(),
        "history": pa.string(),
        "timestamp": pa.timestamp("us", "UTC"),
        "deleted": pa.bool_(),
        "headers": pa.list_(pa.field("element", header)),
    }
