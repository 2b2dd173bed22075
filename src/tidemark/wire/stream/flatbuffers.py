"""As much of flatbuffers as Arrow's messages need: tables, vectors, text; written forwards, read with suspicion.

A table is a place in the buffer that starts with a (signed) step back to its *vtable*, which says at which distance
from the table each field lies; 0 is absent. Tables, vectors and texts are referred to by the distance from the
field to them, always forwards.

Reading believes nothing: a step outside of the buffer is a `FlatError`, and no field leads to more work than its
caller asks for.
"""

from __future__ import annotations

import struct
from collections.abc import Sequence
from dataclasses import dataclass, field

Buffer = bytes | bytearray | memoryview

_U16 = struct.Struct("<H")
_U32 = struct.Struct("<I")
_I32 = struct.Struct("<i")


class FlatError(ValueError):
    """Bytes that are no flatbuffer."""


# Writing -----------------------------------------------------------------------------------------------


@dataclass(slots=True)
class Table:
    """What is to be written: scalars as (format of struct, value), and what is referred to."""

    scalars: dict[int, tuple[str, int]] = field(default_factory=dict)
    refers: dict[int, Table | str | list[Table] | Structs] = field(default_factory=dict)


@dataclass(slots=True)
class Structs:
    """A vector of structs of 16 bytes each, all zero: to be filled in later."""

    count: int


@dataclass(slots=True)
class Written:
    """A buffer, and where the fields of its tables and its vectors of structs lie in it."""

    data: bytearray = field(default_factory=bytearray)
    places: dict[tuple[int, int], int] = field(default_factory=dict)
    """By (identity of the table, number of the field)"""


def write(root: Table) -> Written:
    """The buffer with this table as its root, padded to 8 bytes."""
    out = Written(bytearray(4))
    _refer(out, 0, root)
    _align(out.data, 8)
    return out


def _refer(out: Written, at: int, what: Table | str | list[Table] | Structs) -> None:
    """Put it at the end, and its distance at `at`."""
    place = _put(out, what)
    _U32.pack_into(out.data, at, place - at)


def _put(out: Written, what: Table | str | list[Table] | Structs) -> int:
    data = out.data
    if isinstance(what, Table):
        return _put_table(out, what)
    if isinstance(what, str):
        raw = what.encode()
        _align(data, 4)
        place = len(data)
        data += _U32.pack(len(raw)) + raw + b"\0"
        return place
    if isinstance(what, Structs):
        _align(data, 8)
        data += bytes(4)  # so that the structs, behind their number, lie at a multiple of 8
        place = len(data)
        data += _U32.pack(what.count) + bytes(16 * what.count)
        return place
    _align(data, 4)
    place = len(data)
    data += _U32.pack(len(what)) + bytes(4 * len(what))
    for index, each in enumerate(what):
        _refer(out, place + 4 + 4 * index, each)
    return place


def _put_table(out: Written, table: Table) -> int:
    data = out.data
    kinds = {number: kind for number, (kind, _) in table.scalars.items()} | dict.fromkeys(table.refers, "I")
    distances, size = {}, 4
    for number, kind in sorted(kinds.items(), key=lambda pair: -struct.calcsize(pair[1])):
        width = struct.calcsize(kind)
        size += -size % width
        distances[number] = size
        size += width
    count = max(kinds, default=-1) + 1
    _align(data, 2)
    vtable = len(data)
    steps = [distances.get(number, 0) for number in range(count)]
    data += struct.pack(f"<HH{count}H", 4 + 2 * count, size, *steps)
    _align(data, 8)
    place = len(data)
    data += _I32.pack(place - vtable) + bytes(size - 4)
    for number, (kind, value) in table.scalars.items():
        struct.pack_into(f"<{kind}", data, place + distances[number], value)
        out.places[id(table), number] = place + distances[number]
    for number, what in table.refers.items():
        _refer(out, place + distances[number], what)
        if isinstance(what, Structs):
            at = place + distances[number]
            out.places[id(table), number] = at + _U32.unpack_from(data, at)[0] + 4
    return place


def _align(data: bytearray, width: int) -> None:
    data += bytes(-len(data) % width)


# Reading -----------------------------------------------------------------------------------------------


class Found:
    """A table in a buffer of somebody else."""

    __slots__ = ("_at", "_raw", "_vtable", "_vtable_bytes")

    def __init__(self, raw: memoryview, at: int) -> None:
        self._raw = raw
        self._at = at
        self._vtable = at - _number(raw, at, _I32)
        self._vtable_bytes = _number(raw, self._vtable, _U16)

    @classmethod
    def root(cls, raw: memoryview) -> Found:
        return cls(raw, _number(raw, 0, _U32))

    def _place(self, number: int) -> int:
        """Where a field lies; 0: it is absent."""
        slot = 4 + 2 * number
        if slot + 2 > self._vtable_bytes:
            return 0
        distance = _number(self._raw, self._vtable + slot, _U16)
        return self._at + distance if distance else 0

    def has(self, number: int) -> bool:
        return bool(self._place(number))

    def scalar(self, number: int, kind: struct.Struct, default: int = 0) -> int:
        place = self._place(number)
        return _number(self._raw, place, kind) if place else default

    def table(self, number: int) -> Found | None:
        place = self._place(number)
        return Found(self._raw, place + _number(self._raw, place, _U32)) if place else None

    def text(self, number: int) -> str:
        place = self._place(number)
        if not place:
            return ""
        start = place + _number(self._raw, place, _U32)
        size = _number(self._raw, start, _U32)
        return str(_part(self._raw, start + 4, size), "utf-8", "replace")

    def tables(self, number: int, count_max: int) -> Sequence[Found]:
        start, count = self._vector(number)
        if count > count_max:
            raise FlatError(f"a list of {count}; at most {count_max} are taken")
        places = (start + 4 * index for index in range(count))
        return [Found(self._raw, place + _number(self._raw, place, _U32)) for place in places]

    def numbers(self, number: int, each: int, count_max: int) -> tuple[int, ...]:
        """A vector of 64-bit numbers, or of structs of `each` of them."""
        start, count = self._vector(number)
        if count > count_max:
            raise FlatError(f"a list of {count}; at most {count_max} are taken")
        return struct.unpack(f"<{count * each}q", _part(self._raw, start, 8 * count * each))

    def _vector(self, number: int) -> tuple[int, int]:
        place = self._place(number)
        if not place:
            return 0, 0
        start = place + _number(self._raw, place, _U32)
        return start + 4, _number(self._raw, start, _U32)


def _number(raw: memoryview, at: int, kind: struct.Struct) -> int:
    if at < 0 or at + kind.size > len(raw):
        raise FlatError(f"a step to byte {at} of {len(raw)}")
    return int(kind.unpack_from(raw, at)[0])


def _part(raw: memoryview, start: int, size: int) -> memoryview:
    if start < 0 or start + size > len(raw):
        raise FlatError(f"{size} bytes at {start} of {len(raw)}")
    return raw[start : start + size]
