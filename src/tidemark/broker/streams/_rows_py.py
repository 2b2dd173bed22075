"""Batches of rows into a stream and out of it.

On the way in every row becomes one record under its own sequence, put into the journal and the stream's index.
On the way out the columns are built from the records of taken rows, wherever these lie by now.
"""

from __future__ import annotations

import struct

from tidemark.broker._queue_py import FLAG_DURABLE, NEVER
from tidemark.broker.streams._core_py import ROW_TOMBSTONE, StreamCore
from tidemark.model import records
from tidemark.model._arena_py import Writer
from tidemark.model._keys_py import key_of
from tidemark.model._runs_py import Taken
from tidemark.model.rows import ANY, KEYLESS, TOMBSTONE, Column, RowBatch

KEY = 1
VALUE = 2
PROPERTIES = 4
SEQUENCE = 8
TIMESTAMP = 16
FLAGS = 32
SLOT = 64

NO_PROPERTIES = b"\0\0"
"""As an AMQP content header says it."""


def rows_bytes(batch: RowBatch, routing_key: bytes) -> int:
    """The most that the records of these rows take in the journal."""
    fixed = records.HEAD_BYTES + 4 + len(routing_key) + len(NO_PROPERTIES) + 7
    columns = (batch.keys, batch.values, batch.properties)
    return batch.count * fixed + sum(memoryview(column[1]).nbytes for column in columns if column is not None)


def conflict(core: StreamCore, batch: RowBatch) -> int:
    """The first row whose `expected` is not so before the batch; -1 if there is none."""
    if batch.expected is None:
        return -1
    for index, row in enumerate(batch):
        if row.expected == ANY:
            continue
        found = None if row.key is None else core.current(row.key)
        seq, deleted = (0, True) if found is None else (found[0], found[2])
        if row.expected != seq and not (row.expected == 0 and deleted):
            return index
    return -1


def put_rows(
    core: StreamCore, writer: Writer, batch: RowBatch, now_ms: int, routing_key: bytes
) -> tuple[int, int]:
    """Put every row, each under its own sequence. Returns the first and the last of them.

    Raises:
        ValueError: the columns do not hold together, or there is no row; nothing was put.
    """
    batch.check()
    if not batch.count:
        raise ValueError("a batch without rows")
    if len(routing_key) > 255:
        raise ValueError("a routing key over 255 bytes")
    first = last = 0
    for row in batch:
        last, loc = writer.put_keyed(
            core.number,
            now_ms,
            row.key,
            row.tombstone,
            routing_key,
            row.properties or NO_PROPERTIES,
            row.value,
        )
        first = first or last
        core.put(last, loc, len(row.value), 0, NEVER, FLAG_DURABLE)
    return first, last


def gather(core: StreamCore, taken: Taken, columns: int) -> RowBatch:
    """The columns that were asked for, of rows that were taken. With KEY there are always flags.

    Raises:
        KeyError: a row has been released since it was taken.
    """
    keys, values, properties = _Bytes(), _Bytes(), _Bytes()
    sequences, timestamps, slots, flags = [], [], [], bytearray()
    for _, seq, _, _, marks, slot in taken:
        record = core.arena.record(core.place(seq))
        message = records.decode_message(record)
        key = key_of(record, core.key_kind, core.key_name)
        keys.add(key or b"")
        values.add(message.body)
        properties.add(message.properties)
        sequences.append(seq)
        timestamps.append(message.accepted_ms)
        slots.append(slot)
        flags.append((TOMBSTONE if marks & ROW_TOMBSTONE else 0) | (KEYLESS if key is None else 0))
    count = len(taken)
    return RowBatch(
        count,
        keys.column() if columns & KEY else None,
        values.column() if columns & VALUE else None,
        properties.column() if columns & PROPERTIES else None,
        bytes(flags) if columns & (FLAGS | KEY) else None,
        None,
        struct.pack(f"<{count}q", *sequences) if columns & SEQUENCE else None,
        struct.pack(f"<{count}q", *timestamps) if columns & TIMESTAMP else None,
        struct.pack(f"<{count}H", *slots) if columns & SLOT else None,
    )


def select_keys(core: StreamCore, taken: Taken, key_from: bytes, key_to: bytes | None) -> Taken:
    """The rows whose key is at or after `key_from` and before `key_to`, byte by byte; rows without a key are not."""
    chosen = Taken(0)
    for row in taken:
        key = core.key_at(core.place(row[1]))
        if key is not None and key >= key_from and (key_to is None or key < key_to):
            chosen.add(*row)
    return chosen


class _Bytes:
    """A column of bytes that grows."""

    def __init__(self) -> None:
        self._offsets = [0]
        self._parts: list[bytes] = []

    def add(self, part: bytes) -> None:
        self._offsets.append(self._offsets[-1] + len(part))
        self._parts.append(part)

    def column(self) -> Column:
        return struct.pack(f"<{len(self._offsets)}i", *self._offsets), b"".join(self._parts)
