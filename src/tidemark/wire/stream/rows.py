"""Rows in a payload, encoding "rows": the columns of a `RowBatch` as they lie in memory, one behind the other.

The header says what lies there: `count` rows, and `columns`, a list in the order of the payload. A column of
bytes (keys, values, properties) is `[name, bytes of its offsets, bytes of its data]`, where the offsets are
`count + 1` int32; a column of numbers is `[name, bytes]`. Every buffer is padded to a multiple of 8.

Invariant: a batch that `decode_rows` returns has offsets that hold together; it points into the payload.
"""

from __future__ import annotations

from typing import Any, Final

from tidemark.errors import SyntaxFault
from tidemark.model.rows import RowBatch
from tidemark.wire.stream.frames import Buffer

ENCODING: Final = "rows"
BINARY: Final = ("keys", "values", "properties")
WIDTHS: Final = {"flags": 1, "expected": 8, "sequences": 8, "timestamps": 8, "slots": 2}
_PADDING: Final = tuple(b"\0" * n for n in range(8))


def encode_rows(batch: RowBatch) -> tuple[dict[str, Any], list[Buffer]]:
    """The fields of the header, and the payload in parts that point into the batch."""
    columns: list[list[Any]] = []
    parts: list[Buffer] = []
    for name in BINARY:
        column = getattr(batch, name)
        if column is not None:
            offsets, data = memoryview(column[0]).cast("B"), memoryview(column[1]).cast("B")
            columns.append([name, len(offsets), len(data)])
            _add(parts, offsets)
            _add(parts, data)
    for name in WIDTHS:
        numbers = getattr(batch, name)
        if numbers is not None:
            raw = memoryview(numbers).cast("B")
            columns.append([name, len(raw)])
            _add(parts, raw)
    return {"encoding": ENCODING, "count": batch.count, "columns": columns}, parts


def _add(parts: list[Buffer], raw: memoryview) -> None:
    size = len(raw)
    if size:
        parts.append(raw)
    if size % 8:
        parts.append(_PADDING[-size % 8])


def decode_rows(header: dict[str, Any], payload: Buffer, values_needed: bool = True) -> RowBatch:
    """The batch that the payload holds. Nothing is copied. What was read may be without values, if so asked for.

    Raises:
        SyntaxFault: the header does not describe this payload, or offsets lead astray.
    """
    count, columns = header.get("count"), header.get("columns")
    if type(count) is not int or not 0 <= count < 1 << 31:
        raise SyntaxFault(reason=f"'count' must be a number of rows, not {count!r:.60}")
    if not isinstance(columns, list):
        raise SyntaxFault(reason=f"'columns' must be a list of what is in the payload, not {columns!r:.60}")
    view, at = memoryview(payload).cast("B"), 0
    found: dict[str, Any] = {}
    for column in columns:
        name, sizes = _described(column, count)
        if name in found:
            raise SyntaxFault(reason=f"column '{name}' is there twice")
        buffers = []
        for size in sizes:
            end = at + size
            buffers.append(view[at:end])
            at = end + (-size % 8)
        found[name] = tuple(buffers) if name in BINARY else buffers[0]
    if at != len(view):
        raise SyntaxFault(reason=f"the columns take {at} bytes, but the payload has {len(view)}")
    without = "values" not in found
    if without:
        if values_needed:
            raise SyntaxFault(reason="column 'values' is missing")
        found["values"] = bytes(4 * (count + 1)), b""
    batch = RowBatch(count=count, **found)
    try:
        batch.check()
    except ValueError as problem:
        raise SyntaxFault(reason=f"the rows do not hold together: {problem}") from None
    if without:
        batch.values = None
    return batch


def _described(column: Any, count: int) -> tuple[str, list[int]]:
    """Name and sizes of one column, as its header says and its kind allows."""
    if not isinstance(column, list) or not column or not isinstance(column[0], str):
        raise SyntaxFault(reason=f"a column must be a list that starts with its name, not {column!r:.60}")
    name, *sizes = column
    if any(type(size) is not int or not 0 <= size < 1 << 31 for size in sizes):
        raise SyntaxFault(
            reason=f"the sizes of column '{name:.60}' must be numbers of bytes, not {sizes!r:.60}"
        )
    if name in BINARY:
        fits = len(sizes) == 2 and sizes[0] == 4 * (count + 1)
    elif name in WIDTHS:
        fits = len(sizes) == 1 and sizes[0] == WIDTHS[name] * count
    else:
        known = ", ".join((*BINARY, *WIDTHS))
        raise SyntaxFault(reason=f"there is no column '{name:.60}'; there are {known}")
    if not fits:
        raise SyntaxFault(reason=f"sizes {sizes!r:.60} do not fit {count} rows of column '{name}'")
    return name, sizes
