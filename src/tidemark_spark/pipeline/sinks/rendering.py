"""Rows of Arrow as text, for the sinks that have no columns of their own: JSON documents, values of hashes, keys.

Text is made column by column inside Arrow and joined there; Python only touches nested values and texts that JSON
must escape. That is about five times as fast as a dictionary and `json.dumps` a row.

What JSON has no type for: a timestamp is ISO 8601 (with Z if the column has a time zone), a date too, binary is base64,
a decimal is a number with all its digits, NaN and infinities are null.

Invariant: `json.loads` of a document gives the row's values, nulls included, under the columns' names.
"""

from __future__ import annotations

import base64
import json
import math
from datetime import UTC, date, datetime
from decimal import Decimal
from typing import TYPE_CHECKING, Any

import pyarrow as pa
import pyarrow.compute as pc

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Sequence

PART_ROWS = 16_384
"""Rows that are rendered at once: what they take in memory stays small, and far from Arrow's 2 GiB a column."""

_ESCAPED = r'["\\\x00-\x1f\x7f]'


def json_rows(table: pa.Table, *, nulls: bool = True) -> Iterator[bytes]:
    """Each row as a JSON object; without `nulls`, a column that is NULL is left out."""
    heads = [f"{json.dumps(name, ensure_ascii=False)}:" for name in table.column_names]
    for part in table.to_batches(max_chunksize=PART_ROWS):
        pieces: list[Any] = []
        for head, column in zip(heads, part.columns, strict=True):
            text = pc.binary_join_element_wise(pa.scalar(head), _json_text(column), pa.scalar(","), "")
            pieces.append(pc.fill_null(text, f"{head}null," if nulls else ""))
        if not pieces:
            yield from (b"{}" for _ in range(part.num_rows))
            continue
        # No value ends with a comma of its own: texts are in quotes.
        joined = pc.ascii_rtrim(pc.binary_join_element_wise(*pieces, ""), ",")
        yield from (b"{%b}" % row for row in joined.cast(pa.binary()).to_pylist())


def texts(column: pa.ChunkedArray | pa.Array) -> list[bytes | None]:
    """Each value as plain text: texts and binary as they are, nested values as JSON, the rest as in JSON."""
    kind = column.type
    if pa.types.is_null(kind):
        return [None] * len(column)
    if _is_text(kind) or _is_binary(kind):
        return list(column.cast(pa.large_binary()).to_pylist())
    if isinstance(column, pa.ChunkedArray):
        return [text for chunk in column.chunks for text in texts(chunk)]
    if pa.types.is_temporal(kind):
        return list(_moment_text(column).cast(pa.binary()).to_pylist())
    return list(_json_text(column).cast(pa.binary()).to_pylist())


def keys_of(table: pa.Table, columns: Sequence[str]) -> list[bytes]:
    """What names each row: the text of its one key column, or a JSON list of several, so that no two can be mixed up."""
    if len(columns) == 1:
        return [b"[null]" if text is None else text for text in texts(table[columns[0]])]
    parts = [[dumps(value, table[name].type) for value in table[name].to_pylist()] for name in columns]
    return [f"[{','.join(row)}]".encode() for row in zip(*parts, strict=True)]


def bytes_of(column: pa.ChunkedArray | pa.Array) -> list[bytes]:
    """The values of a text or binary column that has no nulls."""
    return list(column.cast(pa.large_binary()).to_pylist())


# One column ----------------------------------------------------------------------------------------


def _json_text(column: pa.Array) -> pa.Array:
    """The column as JSON, value by value; null stays null."""
    kind = column.type
    if pa.types.is_null(kind):
        return pa.nulls(len(column), pa.string())
    if pa.types.is_boolean(kind) or pa.types.is_integer(kind):
        return column.cast(pa.string())
    if pa.types.is_floating(kind):
        wide = column.cast(pa.float64()) if pa.types.is_float16(kind) else column
        return pc.if_else(pc.is_finite(wide), wide, pa.scalar(None, wide.type)).cast(pa.string())
    if pa.types.is_decimal(kind):
        return column.cast(pa.string())
    if pa.types.is_date(kind) or pa.types.is_timestamp(kind):
        return _quoted(_moment_text(column))
    if _is_text(kind):
        return _quoted(_escaped(column.cast(pa.string())))
    dumped = [None if value is None else dumps(value, kind) for value in column.to_pylist()]
    return pa.array(dumped, pa.string())


def _moment_text(column: pa.Array) -> pa.Array:
    kind = column.type
    if pa.types.is_timestamp(kind):
        if kind.tz is None:
            return pc.strftime(column, "%Y-%m-%dT%H:%M:%S")
        return pc.strftime(column.cast(pa.timestamp(kind.unit, "UTC")), "%Y-%m-%dT%H:%M:%SZ")
    return column.cast(pa.string())


def _quoted(column: pa.Array) -> pa.Array:
    return pc.binary_join_element_wise(pa.scalar('"'), column, pa.scalar('"'), "")


def _escaped(column: pa.Array) -> pa.Array:
    special = pc.match_substring_regex(column, _ESCAPED)
    if not pc.any(special).as_py():
        return column
    fixed = [json.dumps(text, ensure_ascii=False)[1:-1] for text in column.filter(special).to_pylist()]
    return pc.replace_with_mask(column, pc.fill_null(special, False), pa.array(fixed, pa.string()))


def _is_text(kind: pa.DataType) -> bool:
    return bool(pa.types.is_string(kind) or pa.types.is_large_string(kind))


def _is_binary(kind: pa.DataType) -> bool:
    types = pa.types
    return bool(types.is_binary(kind) or types.is_large_binary(kind) or types.is_fixed_size_binary(kind))


# One value -----------------------------------------------------------------------------------------


def dumps(value: Any, kind: pa.DataType) -> str:
    """One Python value of this Arrow type as JSON. (`json` itself would not keep the digits of a decimal.)"""
    if value is None or isinstance(value, bool | int):
        return json.dumps(value)
    if isinstance(value, str):
        return json.dumps(value, ensure_ascii=False)
    if isinstance(value, float):
        return repr(value) if math.isfinite(value) else "null"
    if isinstance(value, Decimal):
        return str(value)
    if isinstance(value, bytes):
        return f'"{base64.b64encode(value).decode()}"'
    if isinstance(value, datetime):
        moment = value if value.tzinfo is None else value.astimezone(UTC).replace(tzinfo=None)
        return f'"{moment.isoformat()}{"" if value.tzinfo is None else "Z"}"'
    if isinstance(value, date):
        return f'"{value.isoformat()}"'
    if pa.types.is_struct(kind):
        return _object((name, dumps(inner, kind.field(name).type)) for name, inner in value.items())
    if pa.types.is_map(kind):
        return _object(
            (name if isinstance(name, str) else dumps(name, kind.key_type), dumps(inner, kind.item_type))
            for name, inner in value
        )
    if isinstance(value, list):
        return f"[{','.join(dumps(inner, kind.value_type) for inner in value)}]"
    return json.dumps(str(value), ensure_ascii=False)


def _object(pairs: Iterable[tuple[str, str]]) -> str:
    return "{" + ",".join(f"{json.dumps(name, ensure_ascii=False)}:{text}" for name, text in pairs) + "}"
