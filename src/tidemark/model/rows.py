"""Rows of a stream on their way in or out, laid out as Arrow's binary columns.

A `RowBatch` is columns, not rows: what Arrow, the wire and the compiled loops read without a copy. A *column*
of bytes is two buffers: `count + 1` offsets (int32, little-endian) and the data they lead into. Others are
one number a row. `build` and iterating are for the slow paths and for tests.

Invariant: after `check` every offset leads into its data, and a tombstone has a key and no value.
"""

from __future__ import annotations

import array
import itertools
import struct
from collections.abc import Iterable, Iterator
from dataclasses import dataclass

from tidemark.model._rows_py import KEY_BYTES_MAX, KEYLESS, TOMBSTONE
from tidemark.speed import PURE

if PURE:
    from tidemark.model._rows_py import check_column, check_flags, rows_digest
else:
    from tidemark.model._rows_c import check_column, check_flags, rows_digest

Buffer = bytes | bytearray | memoryview
Column = tuple[Buffer, Buffer]
"""(offsets, data)"""

ANY = -1
"""`expected`: no condition."""

VALUE_BYTES_MAX = 0x7FFFFFFF

__all__ = [
    "ANY",
    "KEYLESS",
    "KEY_BYTES_MAX",
    "TOMBSTONE",
    "Buffer",
    "Column",
    "Row",
    "RowBatch",
    "rows_digest",
]


@dataclass(slots=True)
class Row:
    """One row, on the slow paths. `seq` and `ms` are 0 on the way in."""

    key: bytes | None
    value: bytes
    properties: bytes = b""
    tombstone: bool = False
    expected: int = ANY
    seq: int = 0
    ms: int = 0


@dataclass(slots=True)
class RowBatch:
    """`count` rows. A column that is None was not asked for, or has nothing to say."""

    count: int
    keys: Column | None = None
    """None: no row has a key."""
    values: Column | None = None
    properties: Column | None = None
    """AMQP property bytes; empty: none."""
    flags: Buffer | None = None
    """uint8 a row: TOMBSTONE, KEYLESS"""
    expected: Buffer | None = None
    """int64 a row: ANY, 0 (the key must not exist) or what its current sequence must be"""
    sequences: Buffer | None = None
    """int64 a row, on the way out"""
    timestamps: Buffer | None = None
    """int64 a row, ms, on the way out"""
    slots: Buffer | None = None
    """uint16 a row, on the way out"""

    @classmethod
    def build(cls, rows: Iterable[Row]) -> RowBatch:
        """The batch of these rows, without the columns in which they say nothing."""
        rows = list(rows)
        count = len(rows)
        flags = bytes((row.tombstone and TOMBSTONE) | (KEYLESS if row.key is None else 0) for row in rows)
        has_keys = any(row.key is not None for row in rows)
        return cls(
            count,
            _column([row.key or b"" for row in rows]) if has_keys else None,
            _column([row.value for row in rows]),
            _column([row.properties for row in rows]) if any(row.properties for row in rows) else None,
            flags if any(flags) else None,
            _int64(row.expected for row in rows) if any(row.expected != ANY for row in rows) else None,
            _int64(row.seq for row in rows) if any(row.seq for row in rows) else None,
            _int64(row.ms for row in rows) if any(row.ms for row in rows) else None,
        )

    def check(self) -> None:
        """Whether the columns of a batch on its way in hold together, whoever made them.

        Raises:
            ValueError: they do not; the sentence says which column and row.
        """
        if self.count < 0:
            raise ValueError(f"a batch of {self.count} rows")
        if self.values is None:
            raise ValueError("a batch without values")
        if self.keys is not None:
            check_column("keys", self.keys, self.count, KEY_BYTES_MAX)
        check_column("values", self.values, self.count, VALUE_BYTES_MAX)
        if self.properties is not None:
            check_column("properties", self.properties, self.count, VALUE_BYTES_MAX)
        for name, numbers, width in (("flags", self.flags, 1), ("expected", self.expected, 8)):
            if numbers is not None and memoryview(numbers).nbytes != width * self.count:
                raise ValueError(f"{name}: not {self.count} numbers of {width} bytes")
        if self.flags is not None:
            check_flags(self.flags, self.keys, self.values, self.count)

    def __len__(self) -> int:
        return self.count

    def __iter__(self) -> Iterator[Row]:
        count = self.count
        keys, values, properties = _parts(self.keys), _parts(self.values), _parts(self.properties)
        flags = bytes(count) if self.flags is None else bytes(self.flags)
        expected = _numbers(self.expected, count, ANY)
        sequences, timestamps = _numbers(self.sequences, count, 0), _numbers(self.timestamps, count, 0)
        for i in range(count):
            yield Row(
                None if keys is None or flags[i] & KEYLESS else keys[i],
                b"" if values is None else values[i],
                b"" if properties is None else properties[i],
                bool(flags[i] & TOMBSTONE),
                expected[i],
                sequences[i],
                timestamps[i],
            )


def _column(parts: list[bytes]) -> Column:
    offsets, at = [0], 0
    for part in parts:
        at += len(part)
        offsets.append(at)
    return struct.pack(f"<{len(offsets)}i", *offsets), b"".join(parts)


def _int64(numbers: Iterable[int]) -> Buffer:
    return array.array("q", numbers).tobytes()


def _parts(column: Column | None) -> list[bytes] | None:
    if column is None:
        return None
    data = memoryview(column[1])
    offsets = struct.unpack(f"<{memoryview(column[0]).nbytes // 4}i", column[0])
    return [bytes(data[a:b]) for a, b in itertools.pairwise(offsets)]


def _numbers(numbers: Buffer | None, count: int, default: int) -> tuple[int, ...]:
    return (default,) * count if numbers is None else struct.unpack(f"<{count}q", numbers)
