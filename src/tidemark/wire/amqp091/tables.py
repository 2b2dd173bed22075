"""Field tables and arrays: the typed values in arguments, headers and peer properties.

A table is a 4-byte length and entries of name (short string), type letter, value; an array is a
4-byte length and entries of letter and value. The letters are those RabbitMQ and its clients
write (its errata to the specification), and of the specification's own those that mean one thing
only:

    t bool      b int8     s, U int16   I int32    l, L int64   f float    T timestamp (uint64)
    V none      B uint8    u uint16     i uint32                d double   D decimal
    S string    x bytes    A array      F table

Plain Python values stand for what peers send most: bool t, int I or l by size, float d, str S,
bytes x, list A, dict F, None V. A value that came with another letter is a subclass that
remembers it, so it can be used like the plain one and goes out as it came in.

Invariant: `decode_table(encode_table(t)) == t` with equal types, for every t that decodes.
Nesting is at most `DEPTH_MAX` deep: a table from a stranger cannot exhaust the stack.
"""

from __future__ import annotations

import struct
from collections.abc import Callable, Mapping
from typing import Any, TypeAlias

from tidemark.errors import SyntaxFault
from tidemark.model.values import (
    Decimal,
    Float32,
    Int8,
    Int16,
    Int64,
    RawString,
    Timestamp,
    UInt8,
    UInt16,
    UInt32,
)

DEPTH_MAX = 32
"""How deep tables and arrays may be nested; the outermost table is 1."""


Table: TypeAlias = dict[str, Any]
Buffer: TypeAlias = bytes | memoryview

_LENGTH = struct.Struct(">I")
_DECIMAL = struct.Struct(">BI")


# Reading --------------------------------------------------------------------------------------


def decode_table(data: Buffer, position: int = 0) -> tuple[Table, int]:
    """The table whose length field is at `position`, and the position behind it.

    Raises:
        SyntaxFault: truncated, an unknown type letter, or nested too deep.
    """
    start, end = _extent(data, position, len(data))
    return _entries(data, start, end, 1), end


def decode_entries(data: Buffer) -> Table:
    """All of `data` as the entries of a table without its length, as AMQPLAIN sends it."""
    return _entries(data, 0, len(data), 1)


def _extent(data: Buffer, position: int, end: int) -> tuple[int, int]:
    """Start and end of something behind a 4-byte length."""
    if end - position < 4:
        raise _truncated(position)
    start = position + 4
    (size,) = _LENGTH.unpack_from(data, position)
    if size > end - start:
        raise _truncated(position)
    return start, start + size


def _entries(data: Buffer, position: int, end: int, depth: int) -> Table:
    table: Table = {}
    while position < end:
        start = position + 1
        position = start + data[position]
        if position > end:
            raise _truncated(start - 1)
        name = str(data[start:position], "utf-8", "surrogateescape")
        table[name], position = _value(data, position, end, depth)
    return table


def _value(data: Buffer, position: int, end: int, depth: int) -> tuple[Any, int]:
    if position >= end:
        raise _truncated(position)
    letter = data[position]
    position += 1
    fixed = _FIXED.get(letter)
    if fixed is not None:
        layout, make = fixed
        if end - position < layout.size:
            raise _truncated(position)
        return make(*layout.unpack_from(data, position)), position + layout.size
    if letter == ord("V"):
        return None, position
    if letter not in b"SxFA":
        raise SyntaxFault(reason=f"field type {bytes([letter])!r} at byte {position - 1} is unknown")
    start, stop = _extent(data, position, end)
    if letter == ord("S"):
        return _string(bytes(data[start:stop])), stop
    if letter == ord("x"):
        return bytes(data[start:stop]), stop
    if depth == DEPTH_MAX:
        raise SyntaxFault(reason=f"a table is nested more than {DEPTH_MAX} deep")
    if letter == ord("F"):
        return _entries(data, start, stop, depth + 1), stop
    values: list[Any] = []
    while start < stop:
        value, start = _value(data, start, stop, depth + 1)
        values.append(value)
    return values, stop


def _string(raw: bytes) -> str | RawString:
    try:
        return raw.decode()
    except UnicodeDecodeError:
        return RawString(raw)


def _truncated(position: int) -> SyntaxFault:
    return SyntaxFault(reason=f"a table ends in the middle of a field, at byte {position}")


def _int32_fits(value: int) -> bool:
    return -(1 << 31) <= value < 1 << 31


def _make_int64(value: int) -> int:
    return Int64(value) if _int32_fits(value) else value


_FIXED: dict[int, tuple[struct.Struct, Callable[..., Any]]] = {
    ord("t"): (struct.Struct(">?"), bool),
    ord("b"): (struct.Struct(">b"), Int8),
    ord("B"): (struct.Struct(">B"), UInt8),
    ord("s"): (struct.Struct(">h"), Int16),
    ord("U"): (struct.Struct(">h"), Int16),
    ord("u"): (struct.Struct(">H"), UInt16),
    ord("I"): (struct.Struct(">i"), int),
    ord("i"): (struct.Struct(">I"), UInt32),
    ord("l"): (struct.Struct(">q"), _make_int64),
    ord("L"): (struct.Struct(">q"), _make_int64),
    ord("f"): (struct.Struct(">f"), Float32),
    ord("d"): (struct.Struct(">d"), float),
    ord("T"): (struct.Struct(">Q"), Timestamp),
    ord("D"): (_DECIMAL, Decimal),
}


# Writing --------------------------------------------------------------------------------------


def encode_table(table: Mapping[str, Any]) -> bytes:
    """The table with its length.

    Raises:
        ValueError: a name over 255 bytes, a number that no type letter can hold, or a value of
            a type that has no letter.
    """
    return _with_length(_encode_entries(table))


def _encode_entries(table: Mapping[str, Any]) -> bytes:
    parts: list[bytes] = []
    for name, value in table.items():
        raw = name.encode("utf-8", "surrogateescape")
        if len(raw) > 255:
            raise ValueError(f"the field name {name[:40]!r}… is over 255 bytes")
        parts += (bytes([len(raw)]), raw, _encode_value(value))
    return b"".join(parts)


def _with_length(raw: bytes) -> bytes:
    return _LENGTH.pack(len(raw)) + raw


def _encode_value(value: Any) -> bytes:
    encode = _ENCODERS.get(type(value))
    if encode is None:
        raise ValueError(f"a field table cannot hold a {type(value).__name__}")
    try:
        return encode(value)
    except struct.error:
        raise ValueError(f"the number {value} has no field type that holds it") from None


def _packer(layout: str, letter: bytes) -> Callable[[Any], bytes]:
    pack = struct.Struct(">c" + layout).pack
    return lambda value: pack(letter, value)


_INT32, _INT64 = _packer("i", b"I"), _packer("q", b"l")

_ENCODERS: dict[type, Callable[[Any], bytes]] = {
    bool: _packer("?", b"t"),
    int: lambda value: _INT32(value) if _int32_fits(value) else _INT64(value),
    float: _packer("d", b"d"),
    str: lambda value: b"S" + _with_length(value.encode("utf-8", "surrogateescape")),
    bytes: lambda value: b"x" + _with_length(value),
    type(None): lambda _: b"V",
    dict: lambda value: b"F" + _with_length(_encode_entries(value)),
    list: lambda value: b"A" + _with_length(b"".join(map(_encode_value, value))),
    tuple: lambda value: b"A" + _with_length(b"".join(map(_encode_value, value))),
    Int8: _packer("b", b"b"),
    UInt8: _packer("B", b"B"),
    Int16: _packer("h", b"s"),
    UInt16: _packer("H", b"u"),
    UInt32: _packer("I", b"i"),
    Int64: _INT64,
    Timestamp: _packer("Q", b"T"),
    Float32: _packer("f", b"f"),
    RawString: lambda value: b"S" + _with_length(value),
    Decimal: lambda value: b"D" + _DECIMAL.pack(value.scale, value.unscaled),
}
