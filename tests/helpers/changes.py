"""Batches for sinks, written as a person says them: keys with their sequence and values, keys that went."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import pyarrow as pa

from tidemark_spark.pipeline.sinks.table import digest_of
from tidemark_spark.pipeline.values import Change, Digest, Mark, Mode

PIPELINE = "shop"
COLUMNS = pa.schema(
    [("_key", pa.string()), ("_sequence", pa.int64()), ("name", pa.string()), ("amount", pa.int64())]
)


def a_change(
    puts: Mapping[str, tuple[Any, ...]] | pa.Table,
    gone: Mapping[str, int] | None = None,
    *,
    start: int = 0,
    end: int,
    batch: int = 0,
    sink: str = "s",
    query: str = "q-1",
    columns: pa.Schema = COLUMNS,
) -> Change:
    """A batch of mode mirror from `start` to `end` of stream 'orders': puts are key → (sequence, other columns…)."""
    if isinstance(puts, pa.Table):
        rows = puts
    else:
        listed = [(key, *values) for key, values in puts.items()]
        arrays = [
            pa.array(column, field.type)
            for column, field in zip(zip(*listed, strict=True), columns, strict=True)
        ]
        rows = pa.table(arrays, schema=columns) if listed else columns.empty_table()
    deletes = pa.table(
        {
            "_key": pa.array(list(gone or {}), rows.schema.field("_key").type),
            "_sequence": pa.array(list((gone or {}).values()), pa.int64()),
        }
    )
    where = {"orders": {"0": ("aa", start)}} if start else {}
    mark = a_mark(end=end, batch=batch, sink=sink, query=query, rows=rows.num_rows + deletes.num_rows)
    return Change(mark, where, rows, deletes)


def a_result(rows: pa.Table, *, mode: Mode, batch: int, sink: str = "s", query: str = "q-1") -> Change:
    """A batch of mode append or update."""
    mark = a_mark(end=0, batch=batch, sink=sink, query=query, rows=rows.num_rows, mode=mode)
    return Change(
        mark, {}, rows, pa.table({"_key": pa.array([], pa.string()), "_sequence": pa.array([], pa.int64())})
    )


def a_mark(
    *, end: int, batch: int = 0, sink: str = "s", query: str = "q-1", rows: int = 0, mode: Mode = "mirror"
) -> Mark:
    position: dict[str, dict[str, tuple[str, int]]] = (
        {"orders": {"0": ("aa", end)}} if mode == "mirror" else {}
    )
    return Mark(PIPELINE, sink, mode, query, batch, position, True, rows, 1_700_000_000_000)


def the_digest(model: Mapping[str, int]) -> Digest:
    """What a sink must say that holds these keys at these sequences."""
    return digest_of([(model.keys(), model.values())])
