"""Rows that come as an Arrow IPC stream: the columns of its record batches become those of a `RowBatch`.

Plain columns of bytes and text are used where they lie. Those that are laid out otherwise (large ones, views) are
turned, and so are nulls and headers, which are few or slow anyway.

What comes in is anybody's. Every offset is checked before it is followed, lengths against what was really sent;
compressed batches and dictionaries are refused, because both can be a thousand times what was sent. So reading
a stream costs no more than its bytes.

Invariant: `decode_arrow` returns batches that pass `RowBatch.check`, or raises SyntaxFault.
"""

from __future__ import annotations

import struct
import sys
from array import array
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any, Final, Protocol

from tidemark.errors import SyntaxFault
from tidemark.model.rows import ANY, KEYLESS, TOMBSTONE, RowBatch
from tidemark.wire.amqp091.properties import PERSISTENT_MODE
from tidemark.wire.stream import arrow
from tidemark.wire.stream.arrow import (
    BINARY,
    BINARY_VIEW,
    BOOL,
    INT,
    LARGE_BINARY,
    LARGE_TEXT,
    LIST,
    MAP,
    RECORD_BATCH,
    SCHEMA,
    STRUCT,
    TEXT,
    TEXT_VIEW,
)
from tidemark.wire.stream.flatbuffers import FlatError, Found
from tidemark.wire.stream.frames import Buffer

COLUMNS_MAX: Final = 64
PROPERTIES_BYTES_MAX: Final = 60 << 10
"""The headers of a row must fit into one frame of AMQP, beside its key."""
TURNED: Final = 4
"""So many rows that must be turned one by one take as long as one with headers."""
BUFFERS_MAX: Final = 4096
OFFSET_BYTES: Final = 4
"""A column of bytes has an offset a row, at least: so there cannot be more rows than a body has room for them."""
PLAIN: Final = frozenset({BINARY, TEXT})
LARGE: Final = frozenset({LARGE_BINARY, LARGE_TEXT})
VIEWS: Final = frozenset({BINARY_VIEW, TEXT_VIEW})
BYTES: Final = PLAIN | LARGE | VIEWS
NUMBERS: Final = frozenset({INT, arrow.FLOAT, arrow.DATE, arrow.TIME, arrow.TIMESTAMP, arrow.DURATION})

TAKEN: Final[dict[str, tuple[frozenset[int], str]]] = {
    "key": (BYTES, "binary or text"),
    "value": (BYTES, "binary or text"),
    "deleted": (frozenset({BOOL}), "bool"),
    "expected": (frozenset({INT}), "int64"),
    "headers": (frozenset({LIST, MAP}), "list<struct<key: string, value: binary>>"),
    "sequence": (NUMBERS, "a number"),
    "timestamp": (NUMBERS, "a number"),
    "shard": (NUMBERS, "a number"),
}
"""Columns that may come in, and their types. The last three are those of what was read; they mean nothing here."""

_I16, _U8, _I32, _I64 = struct.Struct("<h"), struct.Struct("<B"), struct.Struct("<i"), struct.Struct("<q")
_VIEW: Final = struct.Struct("<i4sii")
# AMQP properties: flags and the length of the table; letter and length of a header in it; the delivery mode behind it
_START, _FIELD = struct.Struct(">HI"), struct.Struct(">cI")
_PERSISTENT: Final = bytes([PERSISTENT_MODE])
HAS_HEADERS, HAS_DELIVERY_MODE = 1 << 13, 1 << 12
assert sys.byteorder == "little"


class Toll(Protocol):
    """Who is asked before something is read, and may refuse."""

    def part(self) -> None:
        """A record batch"""

    def rows(self, count: int, slow: int) -> None:
        """So many rows, and so many headers and conditions"""


class Free:
    """The toll of who trusts the stream."""

    def part(self) -> None:
        pass

    def rows(self, count: int, slow: int) -> None:
        pass


def decode_arrow(payload: Buffer, toll: Toll | None = None) -> list[RowBatch]:
    """The record batches of a stream.

    Raises:
        SyntaxFault: not a stream, or not rows that can be put.
        what `toll` raises
    """
    try:
        return list(_batches(memoryview(payload).cast("B"), toll or Free()))
    except (FlatError, ValueError) as problem:
        raise SyntaxFault(reason=f"the payload is not an Arrow stream of rows: {problem}") from None


def _batches(raw: memoryview, toll: Toll) -> Iterator[RowBatch]:
    columns: list[Column] | None = None
    slow = False
    for kind, header, body in _messages(raw):
        if columns is None:
            if kind != SCHEMA:
                raise SyntaxFault(reason="the Arrow stream does not begin with a schema")
            columns = _columns(header)
            slow = any(column.name in ("headers", "expected") for column in columns)
        elif kind == RECORD_BATCH:
            toll.part()
            parts = Parts(header, body)
            toll.rows(parts.count, parts.count if slow else 0)
            yield _rows(parts, columns, toll)
        else:
            raise SyntaxFault(reason="the Arrow stream has something that is neither schema nor record batch")
    if columns is None:
        raise SyntaxFault(reason="the Arrow stream has no schema")


def _messages(raw: memoryview) -> Iterator[tuple[int, Found, memoryview]]:
    """Kind, header and body of each message."""
    at = 0
    while at < len(raw):
        if len(raw) - at < 8 or bytes(raw[at : at + 4]) != arrow.CONTINUATION:
            raise SyntaxFault(reason=f"the Arrow stream has no message at byte {at}")
        size = _I32.unpack_from(raw, at + 4)[0]
        at += 8
        if not size:
            return
        if not 0 < size <= len(raw) - at:
            raise SyntaxFault(reason=f"the Arrow stream ends in the middle of a message of {size} bytes")
        message = Found.root(raw[at : at + size])
        at += size
        length = message.scalar(arrow.MESSAGE_BODY_BYTES, _I64)
        if not 0 <= length <= len(raw) - at:
            raise SyntaxFault(reason=f"the Arrow stream ends in the middle of a body of {length} bytes")
        header = message.table(arrow.MESSAGE_HEADER)
        if header is None:
            raise SyntaxFault(reason="a message of the Arrow stream has no header")
        yield message.scalar(arrow.MESSAGE_KIND, _U8), header, raw[at : at + length]
        at += length


# The schema --------------------------------------------------------------------------------------------


@dataclass(slots=True)
class Column:
    name: str
    kind: int
    bits: int
    """Of a number"""
    children: list[Column]


def _columns(schema: Found) -> list[Column]:
    if schema.scalar(arrow.SCHEMA_ENDIANNESS, _I16):
        raise SyntaxFault(reason="the Arrow stream is big-endian; write it little-endian")
    columns = [_column(field) for field in schema.tables(arrow.SCHEMA_FIELDS, COLUMNS_MAX)]
    names = [column.name for column in columns]
    if len(set(names)) != len(names):
        raise SyntaxFault(reason="a column is there twice")
    for column in columns:
        _check_column(column)
    if "value" not in names:
        raise SyntaxFault(reason="column 'value' is missing")
    return columns


def _column(field: Found, depth: int = 0) -> Column:
    if field.has(arrow.FIELD_DICTIONARY):
        raise SyntaxFault(reason="columns with a dictionary are not taken; cast them to plain ones")
    kind = field.scalar(arrow.FIELD_KIND, _U8)
    facts = field.table(arrow.FIELD_TYPE) if kind == INT else None
    bits = 0 if facts is None else facts.scalar(0, _I32)
    children = field.tables(arrow.FIELD_CHILDREN, 2) if depth < 2 and kind in (LIST, MAP, STRUCT) else ()
    return Column(field.text(arrow.FIELD_NAME), kind, bits, [_column(child, depth + 1) for child in children])


def _check_column(column: Column) -> None:
    if column.name not in TAKEN:
        raise SyntaxFault(reason=f"there is no column '{column.name:.60}'; there are {', '.join(TAKEN)}")
    kinds, words = TAKEN[column.name]
    fits = column.kind in kinds
    if column.name == "expected":
        fits = fits and column.bits == 64
    elif column.name == "headers":
        fits = fits and _is_pairs(column)
    if not fits:
        raise SyntaxFault(reason=f"column '{column.name}' must be {words}; cast it to that")


def _is_pairs(column: Column) -> bool:
    """Whether it is a list of pairs of plain bytes or text."""
    if len(column.children) != 1 or column.children[0].kind != STRUCT:
        return False
    pair = column.children[0].children
    named = column.kind == MAP or [each.name for each in pair] == ["key", "value"]
    return named and len(pair) == 2 and all(each.kind in PLAIN for each in pair)


# Record batches ----------------------------------------------------------------------------------------


class Parts:
    """What a record batch consists of, handed out in its order: nodes and buffers, each checked."""

    def __init__(self, header: Found, body: memoryview) -> None:
        if header.has(arrow.BATCH_COMPRESSION):
            raise SyntaxFault(reason="record batches must not be compressed; write them without compression")
        self._body = body
        self._rows_max = len(body) // OFFSET_BYTES
        self.count = header.scalar(arrow.BATCH_COUNT, _I64)
        if not 0 <= self.count <= self._rows_max:
            raise SyntaxFault(reason=f"a record batch of {self.count} rows in {len(body)} bytes")
        self._nodes = iter(header.numbers(arrow.BATCH_NODES, 2, BUFFERS_MAX))
        self._buffers = iter(header.numbers(arrow.BATCH_BUFFERS, 2, BUFFERS_MAX))
        self._views = iter(header.numbers(arrow.BATCH_VIEW_BUFFERS, 1, COLUMNS_MAX))

    def node(self, count: int | None = None) -> tuple[int, int]:
        """Rows and nulls of the next column, which has `count` rows."""
        rows, nulls = self._next(self._nodes), self._next(self._nodes)
        if not 0 <= nulls <= rows <= self._rows_max or count not in (None, rows):
            raise FlatError(f"a column of {rows} rows with {nulls} nulls where {count} rows should be")
        return rows, nulls

    def buffer(self, least: int = 0) -> memoryview:
        """The next buffer, which has at least so many bytes."""
        offset, size = self._next(self._buffers), self._next(self._buffers)
        if offset < 0 or size < least or offset + size > len(self._body):
            raise FlatError(f"a buffer of {size} bytes at {offset} where {least} are needed")
        return self._body[offset : offset + size]

    def valid(self, rows: int, nulls: int) -> bytes | None:
        """A byte a row, 0 where it is null; None when none is."""
        bits = self.buffer()
        if not nulls:
            return None
        if len(bits) < (rows + 7) // 8:
            raise FlatError(f"{len(bits)} bytes of validity for {rows} rows")
        return unpacked(bits, rows)

    def offsets(self, rows: int) -> memoryview:
        """`rows + 1` offsets of 4 bytes. Of no rows there may be none."""
        raw = self.buffer(0 if not rows else 4 * (rows + 1))
        return raw[: 4 * (rows + 1)] if rows else memoryview(bytes(4))

    def views(self) -> int:
        """How many buffers of data the next column of views has."""
        count = self._next(self._views)
        if not 0 <= count <= BUFFERS_MAX:
            raise FlatError(f"a column with {count} buffers")
        return count

    @staticmethod
    def _next(numbers: Iterator[int]) -> int:
        found = next(numbers, None)
        if found is None:
            raise FlatError("a record batch has fewer columns than its schema")
        return found


def unpacked(bits: memoryview, count: int) -> bytes:
    """A byte a row, 0 or 1, from a bitmap."""
    if not count:
        return b""
    number = int.from_bytes(bits[: (count + 7) // 8], "little") & ((1 << count) - 1)
    return f"{number:0{count}b}".encode()[::-1].translate(_BITS)


_BITS: Final = bytes(each == ord("1") for each in range(256))


@dataclass(slots=True)
class Octets:
    """A column of bytes: offsets of 4 bytes, data, and where it is null."""

    offsets: Buffer
    data: Buffer
    valid: bytes | None


def _rows(parts: Parts, columns: list[Column], toll: Toll) -> RowBatch:
    count = parts.count
    found: dict[str, Any] = {}
    for column in columns:
        if column.kind in BYTES:
            found[column.name] = _octets(parts, column.kind, toll)
        elif column.kind in (LIST, MAP):
            found["properties"] = _headers(parts, toll)
        elif column.kind == BOOL:
            found["deleted"] = _flags(parts)
        elif column.name == "expected":
            found["expected"] = _expected(parts)
        else:
            parts.valid(*parts.node(count))
            parts.buffer()
    flags = found.get("deleted")
    key, value = found.get("key"), found["value"]
    if key is not None and key.valid is not None:
        keyless = key.valid.translate(_KEYLESS)
        flags = keyless if flags is None else bytes(map(int.__or__, flags, keyless))
    batch = RowBatch(
        count=count,
        keys=None if key is None else (key.offsets, key.data),
        values=_values(value, flags),
        properties=found.get("properties"),
        flags=flags,
        expected=found.get("expected"),
    )
    batch.check()
    return batch


_KEYLESS: Final = bytes([KEYLESS]) + bytes(255)
"""Valid (1) is no flag, null (0) is KEYLESS."""


def _octets(parts: Parts, kind: int, toll: Toll) -> Octets:
    rows, nulls = parts.node(parts.count)
    if nulls or kind in VIEWS:
        toll.rows(0, rows // TURNED)
    valid = parts.valid(rows, nulls)
    if kind in PLAIN:
        return Octets(parts.offsets(rows), parts.buffer(), valid)
    if kind in LARGE:
        return Octets(_narrowed(parts.buffer(8 * (rows + 1) if rows else 0), rows), parts.buffer(), valid)
    views = parts.buffer(16 * rows)
    buffers = [parts.buffer() for _ in range(parts.views())]
    return _gathered(views, buffers, rows, valid)


def _narrowed(raw: memoryview, rows: int) -> bytes:
    """Offsets of 8 bytes as such of 4."""
    if not rows:
        return bytes(4)
    try:
        return array("i", array("q", bytes(raw[: 8 * (rows + 1)]))).tobytes()
    except OverflowError:
        raise FlatError("a column of more than 2 GiB") from None


def _gathered(views: memoryview, buffers: list[memoryview], rows: int, valid: bytes | None) -> Octets:
    """A column of views as a plain one. What a view of a null says is not looked at."""
    offsets, data = array("i", [0]), bytearray()
    limit = sum(len(buffer) for buffer in buffers) + 12 * rows
    for row in range(rows):
        if valid is None or valid[row]:
            at = 16 * row
            size, _, index, start = _VIEW.unpack_from(views, at)
            if 0 <= size <= 12:
                data += views[at + 4 : at + 4 + size]
            elif size > 0 and 0 <= index < len(buffers) and 0 <= start <= len(buffers[index]) - size:
                data += buffers[index][start : start + size]
            else:
                raise FlatError(f"the view of row {row} leads astray")
            if len(data) > limit:
                raise FlatError("views that overlap; write each value once")
        offsets.append(len(data))
    return Octets(offsets.tobytes(), data, valid)


def _values(value: Octets, flags: bytes | None) -> tuple[Buffer, Buffer]:
    if value.valid is None:
        return value.offsets, value.data
    count = len(value.valid)
    deleted = bytes(count) if flags is None else flags
    if any(not there and not each & TOMBSTONE for there, each in zip(value.valid, deleted, strict=True)):
        raise SyntaxFault(
            reason="a row without a value must be deleted; write an empty value instead of null"
        )
    # What lies where a value is null means nothing: those rows become empty.
    old, data = struct.unpack(f"<{count + 1}i", value.offsets), memoryview(value.data)
    offsets, kept = array("i", [0]), bytearray()
    for row in range(count):
        if value.valid[row]:
            if not 0 <= old[row] <= old[row + 1] <= len(data):
                raise FlatError(f"the offsets of row {row} lead astray")
            kept += data[old[row] : old[row + 1]]
            if len(kept) > len(data):
                raise FlatError("values that overlap; write each once")
        offsets.append(len(kept))
    return offsets.tobytes(), kept


def _flags(parts: Parts) -> bytes:
    rows, nulls = parts.node(parts.count)
    valid = parts.valid(rows, nulls)
    bits = unpacked(parts.buffer((rows + 7) // 8), rows)
    assert TOMBSTONE == 1
    return bits if valid is None else bytes(map(int.__and__, bits, valid))


def _expected(parts: Parts) -> Buffer:
    rows, nulls = parts.node(parts.count)
    valid = parts.valid(rows, nulls)
    raw = parts.buffer(8 * rows)[: 8 * rows]
    if valid is None:
        return raw
    numbers = zip(array("q", bytes(raw)), valid, strict=True)
    return array("q", [number if there else ANY for number, there in numbers]).tobytes()


def _headers(parts: Parts, toll: Toll) -> tuple[Buffer, Buffer]:
    """AMQP properties with these headers, row by row."""
    rows, nulls = parts.node(parts.count)
    valid = parts.valid(rows, nulls)
    lists = struct.unpack(f"<{rows + 1}i", parts.offsets(rows))
    total, pair_nulls = parts.node()
    toll.rows(0, max(0, total - rows))
    parts.valid(total, pair_nulls)
    names, values = (_texts(parts, total) for _ in range(2))
    offsets, data, seen = array("i", [0]), bytearray(), 0
    for row in range(rows):
        first, end = lists[row], lists[row + 1]
        if not 0 <= first <= end <= total:
            raise FlatError(f"the headers of row {row} lead astray")
        if first < end and (valid is None or valid[row]):
            seen += end - first
            if seen > total:
                raise FlatError("headers that overlap; write each once")
            data += _properties(names[first:end], values[first:end])
        offsets.append(len(data))
    return offsets.tobytes(), data


def _texts(parts: Parts, count: int) -> list[bytes | None]:
    rows, nulls = parts.node(count)
    valid = parts.valid(rows, nulls)
    offsets, data = struct.unpack(f"<{rows + 1}i", parts.offsets(rows)), parts.buffer()
    found: list[bytes | None] = []
    size = 0
    for row in range(rows):
        if not 0 <= offsets[row] <= offsets[row + 1] <= len(data):
            raise FlatError(f"the offsets of header {row} lead astray")
        size += offsets[row + 1] - offsets[row]
        if size > len(data):
            raise FlatError("headers that overlap; write each once")
        there = valid is None or valid[row]
        found.append(bytes(data[offsets[row] : offsets[row + 1]]) if there else None)
    return found


def _properties(names: list[bytes | None], values: list[bytes | None]) -> bytes:
    entries = bytearray()
    for name, value in dict(zip(names, values, strict=True)).items():
        if name is None or len(name) > 255:
            raise SyntaxFault(reason="a header must have a name, of at most 255 bytes")
        entries.append(len(name))
        entries += name
        if value is None:
            entries += b"V"
        else:
            entries += _FIELD.pack(b"S" if _is_text(value) else b"x", len(value))
            entries += value
    if len(entries) > PROPERTIES_BYTES_MAX:
        raise SyntaxFault(reason=f"the headers of a row have at most {PROPERTIES_BYTES_MAX} bytes in all")
    return _START.pack(HAS_HEADERS | HAS_DELIVERY_MODE, len(entries)) + entries + _PERSISTENT


def _is_text(value: bytes) -> bool:
    """Whether AMQP consumers get it as text, as they expect their headers."""
    if value.isascii():
        return True
    try:
        value.decode()
    except UnicodeDecodeError:
        return False
    return True
