"""The loops over the rows of a `RowBatch`: do its columns hold together, and what do its rows hash to?"""

from __future__ import annotations

import struct
from typing import TYPE_CHECKING

from tidemark.model._keys_py import DIGEST_MASK, row_digest

if TYPE_CHECKING:
    from tidemark.model.rows import Buffer, Column, RowBatch

TOMBSTONE = 1
KEYLESS = 2

KEY_BYTES_MAX = 0xFFFF


def check_column(name: str, column: Column, count: int, each_max: int) -> None:
    """Whether the offsets of a column hold together and lead into its data.

    Raises:
        ValueError: they do not, or a row has over `each_max` bytes.
    """
    offsets, data = memoryview(column[0]).cast("B"), memoryview(column[1]).cast("B")
    if len(offsets) != 4 * (count + 1):
        raise ValueError(f"{name}: {len(offsets)} bytes of offsets are not {count + 1} of 4 bytes")
    numbers = struct.unpack(f"<{count + 1}i", offsets)
    if numbers[0] < 0 or numbers[-1] > len(data):
        raise ValueError(f"{name}: the offsets lead outside of {len(data)} bytes of data")
    for row in range(count):
        if numbers[row] > numbers[row + 1]:
            raise ValueError(f"{name}: the offsets of row {row} go back")
        if numbers[row + 1] - numbers[row] > each_max:
            raise ValueError(f"{name}: row {row} has more than {each_max} bytes")


def check_flags(flags: Buffer | None, keys: Column | None, values: Column, count: int) -> None:
    """Whether the flags are known ones, and tombstones have a key and an empty value.

    Raises:
        ValueError: they are not so.
    """
    marks = bytes(count) if flags is None else bytes(flags)
    offsets = struct.unpack(f"<{count + 1}i", values[0])
    for row in range(count):
        if marks[row] & ~(TOMBSTONE | KEYLESS):
            raise ValueError(f"flags: row {row} has {marks[row]:#x}, known are 1 and 2")
        if marks[row] & TOMBSTONE:
            if keys is None or marks[row] & KEYLESS:
                raise ValueError(f"flags: row {row} is a tombstone without a key")
            if offsets[row] != offsets[row + 1]:
                raise ValueError(f"flags: row {row} is a tombstone with a value")


def rows_digest(batch: RowBatch) -> int:
    """The sum of the digests of all rows, mod 2**128. The batch has values and sequences.

    Raises:
        ValueError: one of them is missing.
    """
    if batch.values is None or batch.sequences is None:
        raise ValueError("a digest needs values and sequences")
    total = 0
    for row in batch:
        total += row_digest(row.seq, row.tombstone, row.key, row.value)
    return total & DIGEST_MASK
