"""Rows between Python, Arrow and the wire, and the proof that all of them came.

On the way out `Writes` collects puts and deletes as columns; on the way in `rows_of` makes Python rows of columns
and `arrow_of` an Arrow table, and `Tally` counts and hashes them, to be held against the broker's marker.
pyarrow is imported when it is first needed: who only puts and follows does not need it.

Invariant: a tally that has seen the rows of a snapshot, in any order, equals its marker.
"""

from __future__ import annotations

import sys
from array import array
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace
from functools import partial
from importlib import import_module
from itertools import accumulate, pairwise, repeat
from typing import TYPE_CHECKING, Any

from tidemark.client.errors import MarkerMismatch, PackageMissing
from tidemark.client.values import Bytes, Marker, Row, octets
from tidemark.model.rows import ANY, KEY_BYTES_MAX, KEYLESS, TOMBSTONE, RowBatch, rows_digest

if TYPE_CHECKING:
    import pyarrow as pa

HASH_MASK = (1 << 128) - 1
ROUTING_KEY_BYTES_MAX = 255

COLUMNS = ("key", "value", "deleted", "headers", "sequence", "timestamp", "shard")
"""What can be asked for, by the names that Arrow tables have."""
ROW_COLUMNS = ("key", "value", "deleted", "headers", "sequence", "timestamp")
"""What a Python row is made of."""
HASHED = frozenset({"key", "value", "deleted", "sequence"})
"""Without one of these a marker's hash cannot be checked."""


def package(name: str, what: str) -> Any:
    """A package that is only needed for this.

    Raises:
        PackageMissing: it is not installed.
    """
    try:
        return import_module(name)
    except ModuleNotFoundError:
        raise PackageMissing(what=what, package=name) from None


# Out ----------------------------------------------------------------------------------------------


class Writes:
    """Puts and deletes of one stream, in order."""

    def __init__(self) -> None:
        self._keys: list[bytes] = []
        self._values: list[bytes] = []
        self._properties: list[bytes] = []
        self._flags = bytearray()
        self._expected = array("q")
        self._conditional = False

    def __len__(self) -> int:
        return len(self._values)

    def put(
        self,
        key: Bytes | None,
        value: Bytes,
        headers: Mapping[str, Any] | None = None,
        expected: int | None = None,
    ) -> None:
        self._add(key, octets(value), headers, expected, 0)

    def delete(
        self, key: Bytes, headers: Mapping[str, Any] | None = None, expected: int | None = None
    ) -> None:
        self._add(key, b"", headers, expected, TOMBSTONE)

    def put_all(self, rows: Iterable[Sequence[Any]]) -> None:
        """Rows as (key, value) or (key, value, headers); the value None deletes the key."""
        rows = list(rows)
        if not self._put_plain(rows):
            for row in rows:
                key, value, *more = row
                if len(more) > 1:
                    raise TypeError(f"a row is (key, value) or (key, value, headers), not {len(row)} things")
                if value is None:
                    self.delete(key, *more)
                else:
                    self.put(key, value, *more)

    def publish_all(self, messages: Iterable[Sequence[Any]]) -> None:
        """Messages as (routing key, body) or (routing key, body, headers), to be persistent."""
        for message in messages:
            key, body, *more = message
            if len(more) > 1:
                raise TypeError(
                    f"a message is (routing key, body) or (routing key, body, headers), not {len(message)} things"
                )
            name = octets(key)
            if len(name) > ROUTING_KEY_BYTES_MAX:
                raise ValueError(f"a routing key has at most {ROUTING_KEY_BYTES_MAX} bytes, not {len(name)}")
            self._keys.append(name)
            self._values.append(octets(body))
            self._properties.append(properties_of(more[0] if more else None, persistent=True))
            self._flags.append(0)
            self._expected.append(ANY)

    def _put_plain(self, rows: list[Sequence[Any]]) -> bool:
        """The fast way for what most have: nothing but pairs of bytes. False: not that."""
        if not rows or set(map(len, rows)) != {2}:
            return False
        keys, values = zip(*rows, strict=True)
        if set(map(type, keys)) != {bytes} or set(map(type, values)) != {bytes}:
            return False
        if max(map(len, keys)) > KEY_BYTES_MAX:
            return False
        self._keys += keys
        self._values += values
        self._properties += repeat(b"", len(rows))
        self._flags += bytes(len(rows))
        self._expected.extend(array("q", (ANY,)) * len(rows))
        return True

    def _add(
        self,
        key: Bytes | None,
        value: bytes,
        headers: Mapping[str, Any] | None,
        expected: int | None,
        flags: int,
    ) -> None:
        name = b"" if key is None else octets(key)
        if len(name) > KEY_BYTES_MAX:
            raise ValueError(f"a key has at most {KEY_BYTES_MAX} bytes, not {len(name)}")
        if flags & TOMBSTONE and key is None:
            raise ValueError("only a key can be deleted")
        if expected is not None and expected < 0:
            raise ValueError(
                "the expected sequence is 0 (there must be no value) or what a receipt or row said"
            )
        properties = properties_of(headers)
        self._keys.append(name)
        self._values.append(value)
        self._properties.append(properties)
        self._flags.append(flags | (KEYLESS if key is None else 0))
        self._expected.append(ANY if expected is None else expected)
        self._conditional |= expected is not None

    def batch(self) -> RowBatch:
        """All of them as columns; a column that nobody used is left out."""
        flags = self._flags
        keyed = _with(flags, KEYLESS) < len(flags)
        return RowBatch(
            count=len(self._values),
            keys=_column(self._keys) if keyed else None,
            values=_column(self._values),
            properties=_column(self._properties) if any(self._properties) else None,
            flags=bytes(flags) if any(flags) else None,
            expected=_little(self._expected) if self._conditional else None,
        )


def _with(flags: bytes | bytearray, flag: int) -> int:
    """How many rows have a flag; there are only two, so their values can be counted."""
    return flags.count(flag) + flags.count(TOMBSTONE | KEYLESS)


def properties_of(headers: Mapping[str, Any] | None, *, persistent: bool = False) -> bytes:
    """AMQP properties with nothing but these headers, and `persistent`; no bytes when there are no headers."""
    if not headers:
        return b""
    from tidemark.wire.amqp091.properties import PERSISTENT_MODE, Properties, encode_properties

    mode = PERSISTENT_MODE if persistent else None
    return encode_properties(Properties(headers=dict(headers), delivery_mode=mode))


def _column(parts: list[bytes]) -> tuple[bytes, bytes]:
    data = b"".join(parts)
    if len(data) > 0x7FFFFFFF:
        raise ValueError("a batch holds at most 2 GiB; make it smaller")
    return _little(array("i", accumulate(map(len, parts), initial=0))), data


def _little(numbers: array[int]) -> bytes:
    if sys.byteorder == "big":
        numbers = array(numbers.typecode, numbers)
        numbers.byteswap()
    return numbers.tobytes()


def is_arrow(rows: object) -> bool:
    """An Arrow table or record batch, without importing pyarrow to find out that it is none."""
    if type(rows).__module__.partition(".")[0] != "pyarrow":
        return False
    import pyarrow as pa

    return isinstance(rows, (pa.Table, pa.RecordBatch))


def arrow_payload(rows: pa.Table | pa.RecordBatch) -> tuple[dict[str, Any], list[memoryview]]:
    """A table as the broker takes it: header fields and an IPC stream.

    Columns are key, value, deleted, headers and expected; those that only a read has (sequence, timestamp,
    shard) are ignored, so what was read from one stream can be put into another as it is.

    Raises:
        TypeError: there is no column `value`, or one cannot be bytes.
    """
    import pyarrow as pa

    table = pa.Table.from_batches([rows]) if isinstance(rows, pa.RecordBatch) else rows
    if "value" not in table.column_names:
        raise TypeError("a table to be put needs a column 'value', and 'key' in a keyed stream")
    for name in ("key", "value"):
        at = table.schema.get_field_index(name)
        if at >= 0 and table.schema.field(at).type != pa.binary():
            try:
                table = table.set_column(at, name, table.column(at).cast(pa.binary()))
            except (pa.ArrowInvalid, pa.ArrowNotImplementedError) as problem:
                raise TypeError(f"column {name!r} cannot be bytes: {problem}") from None
    sink = pa.BufferOutputStream()
    with pa.ipc.new_stream(sink, table.schema) as writer:
        writer.write_table(table.combine_chunks())
    return {"count": table.num_rows, "encoding": "arrow"}, [memoryview(sink.getvalue())]


# In -----------------------------------------------------------------------------------------------


def rows_of(batch: RowBatch) -> list[Row]:
    """The rows of a batch as Python values; a column that did not come is empty, zero or false."""
    count = batch.count
    keys: Iterable[bytes | None] = repeat(None) if batch.keys is None else _parts(batch.keys)
    values: Iterable[bytes] = repeat(b"") if batch.values is None else _parts(batch.values)
    properties: Iterable[bytes] = repeat(b"") if batch.properties is None else _parts(batch.properties)
    deleted: Iterable[bool] = repeat(False)
    if batch.flags is not None:
        flags = bytes(batch.flags)
        if _with(flags, TOMBSTONE):
            deleted = [bool(flag & TOMBSTONE) for flag in flags]
        if batch.keys is not None and _with(flags, KEYLESS):
            keys = [None if flag & KEYLESS else key for key, flag in zip(keys, flags, strict=False)]
    sequences, timestamps = _numbers(batch.sequences, count), _numbers(batch.timestamps, count)
    columns = zip(keys, values, sequences, timestamps, deleted, properties, strict=False)
    # What Row(*…) does, without a call of Python for each row.
    return list(map(partial(tuple.__new__, Row), columns))


def _parts(column: tuple[Any, Any]) -> list[bytes]:
    offsets, data = array("i"), bytes(column[1])
    offsets.frombytes(column[0])
    if sys.byteorder == "big":
        offsets.byteswap()
    return [data[start:end] for start, end in pairwise(offsets)]


def _numbers(column: Any, count: int) -> Iterable[int]:
    if column is None:
        return repeat(0, count)
    numbers = array("q")
    numbers.frombytes(column)
    if sys.byteorder == "big":
        numbers.byteswap()
    return numbers


def arrow_of(batch: RowBatch) -> pa.Table:
    """The same columns as an Arrow table; keys and values are not copied."""
    import pyarrow as pa

    count = batch.count
    columns: dict[str, pa.Array] = {}
    flags = None if batch.flags is None else bytes(batch.flags)
    if batch.keys is not None:
        missing = None
        if flags is not None and _with(flags, KEYLESS):
            missing = pa.array([not flag & KEYLESS for flag in flags]).buffers()[1]
        columns["key"] = _binary(batch.keys, count, missing)
    else:
        columns["key"] = pa.nulls(count, pa.binary())
    columns["value"] = (
        pa.nulls(count, pa.binary()) if batch.values is None else _binary(batch.values, count, None)
    )
    columns["deleted"] = pa.array([bool(flag & TOMBSTONE) for flag in flags or bytes(count)], pa.bool_())
    if batch.sequences is not None:
        columns["sequence"] = pa.Array.from_buffers(pa.int64(), count, [None, pa.py_buffer(batch.sequences)])
    if batch.timestamps is not None:
        kind = pa.timestamp("ms", "UTC")
        columns["timestamp"] = pa.Array.from_buffers(kind, count, [None, pa.py_buffer(batch.timestamps)])
    return pa.table(columns)


def _binary(column: tuple[Any, Any], count: int, validity: Any) -> pa.Array:
    import pyarrow as pa

    return pa.Array.from_buffers(
        pa.binary(), count, [validity, pa.py_buffer(column[0]), pa.py_buffer(column[1])]
    )


def batch_of_arrow(rows: pa.RecordBatch) -> RowBatch:
    """The columns of a record batch that a hash needs, as the broker laid them out."""
    import pyarrow as pa
    import pyarrow.compute as pc

    count = rows.num_rows
    key, deleted = rows.column("key"), rows.column("deleted")
    flags = pc.cast(deleted, pa.uint8())
    if key.null_count:
        flags = pc.add(
            flags, pc.multiply(pc.cast(pc.is_null(key), pa.uint8()), pa.scalar(KEYLESS, pa.uint8()))
        )
    return RowBatch(
        count=count,
        keys=None if key.null_count == count and count else _buffers(key),
        values=_buffers(rows.column("value")),
        flags=_plain(flags, 1),
        sequences=_plain(rows.column("sequence"), 8),
    )


def _buffers(column: pa.Array) -> tuple[Any, Any]:
    import pyarrow as pa

    if column.offset:  # a slice: its offsets start elsewhere
        column = pa.concat_arrays([column, pa.array([], column.type)])
    _, offsets, data = column.buffers()
    if offsets is None or not len(column):
        return bytes(4), b""
    return memoryview(offsets)[: 4 * (len(column) + 1)], memoryview(data) if data is not None else b""


def _plain(column: pa.Array, width: int) -> Any:
    start = column.offset * width
    return memoryview(column.buffers()[1])[start : start + len(column) * width] if len(column) else b""


# The proof ----------------------------------------------------------------------------------------


class Tally:
    """Counts and hashes rows as they come."""

    def __init__(self, hashed: bool = True) -> None:
        self.rows = 0
        self._tombstones = 0
        self._sum = 0
        self._hashed = hashed

    def add(self, batch: RowBatch) -> None:
        self.rows += batch.count
        if self._hashed:
            if batch.flags is not None:
                self._tombstones += _with(bytes(batch.flags), TOMBSTONE)
            self._sum = (self._sum + rows_digest(batch)) & HASH_MASK

    def add_count(self, count: int) -> None:
        """Rows that cannot be hashed because not all of their columns were asked for."""
        self.rows += count
        self._hashed = False

    def verify(self, stream: str, marker: Marker) -> Marker:
        """The marker, known to be true of what came.

        Raises:
            MarkerMismatch: it is not.
        """
        if not self._hashed or marker.hash is None:
            if self.rows != marker.count + marker.tombstones:
                expected = f"{marker.count + marker.tombstones} rows"
                raise MarkerMismatch(stream=stream, expected=expected, found=f"{self.rows} rows")
            return marker
        values, found = self.rows - self._tombstones, f"{self._sum:032x}"
        if (values, self._tombstones, found) != (marker.count, marker.tombstones, marker.hash):
            raise MarkerMismatch(
                stream=stream,
                expected=f"{marker.count} values and {marker.tombstones} deletes with hash {marker.hash}",
                found=f"{values} values and {self._tombstones} deletes with hash {found}",
            )
        return replace(marker, verified=True)
