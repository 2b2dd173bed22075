"""Rows that streams are filled with: keys of 8 bytes, values that do not compress and begin with their key."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

if TYPE_CHECKING:
    import pyarrow as pa

    from tidemark.client import Stream

KEY_BYTES = 8
_PUT_BYTES = 16 << 20
_ALPHABET = np.frombuffer(b"ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789+/", np.uint8)


class Rows:
    """Makes tables of `key` and `value`."""

    def __init__(self, value_bytes: int, seed: int = 1) -> None:
        self._value_bytes = value_bytes
        self._random = np.random.default_rng(seed)
        # Values are cut out of one text at random places: as unlike as fresh dice, and made much faster.
        self._text = _ALPHABET[self._random.integers(0, 64, (8 << 20) + value_bytes, dtype=np.uint8)]
        self.rows_per_put = max(1_000, min(100_000, _PUT_BYTES // (value_bytes + KEY_BYTES)))

    def table(self, keys: NDArray[np.uint64]) -> pa.Table:
        """A row for each key, with a value of its own."""
        import pyarrow as pa

        count, width = len(keys), self._value_bytes
        places = self._random.integers(0, 8 << 20, count)
        windows = np.lib.stride_tricks.sliding_window_view(self._text, width)
        values = windows[places]
        raw = np.ascontiguousarray(keys.astype(">u8")).view(np.uint8).reshape(count, KEY_BYTES)
        values[:, :KEY_BYTES] = raw
        return pa.table({"key": _binary(raw), "value": _binary(values)})

    def tables(self, first: int, end: int) -> Iterator[pa.Table]:
        """Every key from first to end once, as tables that fit into one put."""
        for start in range(first, end, self.rows_per_put):
            yield self.table(np.arange(start, min(start + self.rows_per_put, end), dtype=np.uint64))

    def fill(self, stream: Stream, first: int, end: int) -> None:
        for table in self.tables(first, end):
            stream.put_many(table)

    def update(self, stream: Stream, keys: int, count: int) -> int:
        """So many different keys out of all get a new value, evenly spread; returns the sequence before that."""
        before = stream.info().last_sequence
        chosen = np.linspace(0, keys - 1, min(count, keys)).astype(np.uint64)
        for start in range(0, len(chosen), self.rows_per_put):
            stream.put_many(self.table(chosen[start : start + self.rows_per_put]))
        return before


def _binary(cells: NDArray[np.uint8]) -> Any:
    """A column of bytes, all of one width."""
    import pyarrow as pa

    count, width = cells.shape
    offsets = (np.arange(count + 1, dtype=np.int64) * width).astype(np.int32)
    buffers = [None, pa.py_buffer(offsets), pa.py_buffer(np.ascontiguousarray(cells))]
    return pa.Array.from_buffers(pa.binary(), count, buffers)
