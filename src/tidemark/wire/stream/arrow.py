"""Rows as an Arrow IPC stream, on their way out.

The columns of a `RowBatch` are laid out as Arrow's, so they leave as they lie in memory. What is written around them
are the messages' heads: flatbuffers whose shape depends on the columns alone. They are made once for an answer and
filled in for each batch: numbers of rows and nulls, offset and length of each buffer.

    stream    [ schema message ][ record batch message ] ... [ FF FF FF FF 00 00 00 00 ]
    message   [ FF FF FF FF ][ length of the head ][ head, padded to 8 ][ body: buffers, each padded to 8 ]

Only headers are made row by row, since they lie as an AMQP table in the record.
"""

from __future__ import annotations

import json
import struct
from array import array
from collections.abc import Sequence
from typing import Any, Final

from tidemark.model.rows import KEYLESS, TOMBSTONE, RowBatch
from tidemark.wire.amqp091.properties import decode_properties
from tidemark.wire.stream.flatbuffers import Structs, Table, write
from tidemark.wire.stream.frames import Buffer

CONTINUATION: Final = b"\xff\xff\xff\xff"
EOS: Final = CONTINUATION + bytes(4)
"""The end of a stream."""
V5: Final = 4

# Kinds of messages
SCHEMA, DICTIONARY_BATCH, RECORD_BATCH = 1, 2, 3
# Fields of the flatbuffers, by their numbers
MESSAGE_VERSION, MESSAGE_KIND, MESSAGE_HEADER, MESSAGE_BODY_BYTES = range(4)
SCHEMA_ENDIANNESS, SCHEMA_FIELDS = range(2)
FIELD_NAME, FIELD_NULLABLE, FIELD_KIND, FIELD_TYPE, FIELD_DICTIONARY, FIELD_CHILDREN = range(6)
BATCH_COUNT, BATCH_NODES, BATCH_BUFFERS, BATCH_COMPRESSION, BATCH_VIEW_BUFFERS = range(5)
# Types of columns
INT, FLOAT, BINARY, TEXT, BOOL = 2, 3, 4, 5, 6
DATE, TIME, TIMESTAMP, LIST, STRUCT, MAP, DURATION = 8, 9, 10, 12, 13, 17, 18
LARGE_BINARY, LARGE_TEXT, BINARY_VIEW, TEXT_VIEW = 19, 20, 23, 24

MILLISECOND: Final = 1

_PAIR: Final = struct.Struct("<qq")
_LONG: Final = struct.Struct("<q")

Nodes = list[tuple[int, int]]
"""(rows, nulls) of a column and of what is inside of it"""


class ArrowEncoder:
    """Batches of one answer. Each becomes a stream of its own: schema, batch, end."""

    encoding = "arrow"

    def __init__(self, columns: Sequence[str], shards: int) -> None:
        self._columns = columns
        self._shards = shards
        self._shard_of: list[int] | None = None
        schema = Table({SCHEMA_ENDIANNESS: ("h", 0)}, {SCHEMA_FIELDS: [_column(name) for name in columns]})
        self._schema, _ = _message(SCHEMA, schema)
        nodes = sum(4 if name == "headers" else 1 for name in columns)
        buffers = sum(BUFFERS[name] for name in columns)
        batch = Table({BATCH_COUNT: ("q", 0)}, {BATCH_NODES: Structs(nodes), BATCH_BUFFERS: Structs(buffers)})
        self._batch, places = _message(RECORD_BATCH, batch)
        self._body_at = places[0, MESSAGE_BODY_BYTES]
        self._count_at = places[1, BATCH_COUNT]
        self._nodes_at = places[1, BATCH_NODES]
        self._buffers_at = places[1, BATCH_BUFFERS]

    def empty(self) -> list[Buffer]:
        """A stream without a batch: what a reader without rows gets, so that it has the schema."""
        return [self._schema + EOS]

    def encode(self, batch: RowBatch) -> tuple[dict[str, Any], list[Buffer]]:
        """Fields of the frame's header, and its payload."""
        head = bytearray(self._batch)
        parts: list[Buffer] = [self._schema, head]
        node_at, buffer_at, at = self._nodes_at, self._buffers_at, 0
        for name in self._columns:
            nodes, buffers = self._buffers(name, batch)
            for node in nodes:
                _PAIR.pack_into(head, node_at, *node)
                node_at += _PAIR.size
            for buffer in buffers:
                data = memoryview(buffer).cast("B")
                size = len(data)
                _PAIR.pack_into(head, buffer_at, at, size)
                buffer_at += _PAIR.size
                if size:
                    parts.append(data)
                if size % 8:
                    parts.append(bytes(-size % 8))
                at += size + (-size % 8)
        _LONG.pack_into(head, self._count_at, batch.count)
        _LONG.pack_into(head, self._body_at, at)
        parts.append(EOS)
        return {"encoding": self.encoding, "count": batch.count}, parts

    def _buffers(self, name: str, batch: RowBatch) -> tuple[Nodes, list[Any]]:
        """What a message says about a column, and the column's buffers."""
        count = batch.count
        match name:
            case "key":
                return _keys(batch)
            case "value":
                assert batch.values is not None
                return [(count, 0)], [b"", *batch.values]
            case "deleted":
                return [(count, 0)], [b"", bitmap(batch.flags, count, TOMBSTONE)]
            case "sequence":
                return [(count, 0)], [b"", batch.sequences]
            case "timestamp":
                return [(count, 0)], [b"", batch.timestamps]
            case "shard":
                return [(count, 0)], [b"", self._shard_numbers(batch)]
            case _:
                return _headers(batch)

    def _shard_numbers(self, batch: RowBatch) -> Buffer:
        if self._shards == 1:
            return bytes(4 * batch.count)
        assert batch.slots is not None
        if self._shard_of is None:
            # Shard i of n has the slots from i * 65536 // n on.
            self._shard_of = [((slot + 1) * self._shards - 1) >> 16 for slot in range(1 << 16)]
        slots = array("H", bytes(batch.slots))
        return array("i", map(self._shard_of.__getitem__, slots)).tobytes()


BUFFERS: Final = {
    "key": 3,
    "value": 3,
    "deleted": 2,
    "headers": 9,
    "sequence": 2,
    "timestamp": 2,
    "shard": 2,
}
"""How many buffers a column has."""


def bitmap(flags: Buffer | None, count: int, flag: int, *, wanted: bool = True) -> bytes:
    """A bit a row: whether its flags have this one, or have it not."""
    raw = bytes(flags or b"")
    if raw == bytes(len(raw)):
        return bytes((count + 7) // 8) if wanted else b"\xff" * ((count + 7) // 8)
    digits = raw.translate(_DIGITS[flag, wanted])
    return int(digits[::-1], 2).to_bytes((count + 7) // 8, "little")


_DIGITS: Final = {
    (flag, wanted): bytes(b"01"[bool(each & flag) is wanted] for each in range(256))
    for flag in (TOMBSTONE, KEYLESS)
    for wanted in (True, False)
}


def _keys(batch: RowBatch) -> tuple[Nodes, list[Any]]:
    """Keys, null where a row has none."""
    count = batch.count
    if batch.keys is None:
        return [(count, count)], [bytes((count + 7) // 8), bytes(4 * (count + 1)), b""]
    flags = bytes(batch.flags or b"")
    nulls = flags.count(KEYLESS) + flags.count(KEYLESS | TOMBSTONE)
    validity = bitmap(flags, count, KEYLESS, wanted=False) if nulls else b""
    return [(count, nulls)], [validity, *batch.keys]


def _headers(batch: RowBatch) -> tuple[Nodes, list[Any]]:
    lists, keys, values = array("i", [0]), _Bytes(), _Bytes()
    for row in batch:
        table = decode_properties(row.properties).headers if row.properties else None
        for name, value in (table or {}).items():
            keys.add(name.encode("utf-8", "replace"))
            values.add(_header(value))
        lists.append(len(keys.offsets) - 1)
    inner = lists[-1], 0
    buffers = [b"", lists.tobytes(), b"", b"", *keys.buffers(), b"", *values.buffers()]
    return [(batch.count, 0), inner, inner, inner], buffers


def _header(value: Any) -> bytes:
    """A value of an AMQP table: bytes and text as they are, anything else as JSON."""
    if isinstance(value, bytes):
        return value
    if isinstance(value, str):
        return value.encode("utf-8", "surrogateescape")
    return json.dumps(value, default=str).encode()


class _Bytes:
    """A column of bytes that grows."""

    def __init__(self) -> None:
        self.offsets = array("i", [0])
        self._data = bytearray()

    def add(self, value: bytes) -> None:
        self._data += value
        self.offsets.append(len(self._data))

    def buffers(self) -> tuple[bytes, bytearray]:
        return self.offsets.tobytes(), self._data


# Messages ----------------------------------------------------------------------------------------------


def _message(kind: int, header: Table) -> tuple[bytes, dict[tuple[int, int], int]]:
    """A message without its body, and where in it the fields of message (0) and header (1) lie."""
    message = Table(
        {MESSAGE_VERSION: ("h", V5), MESSAGE_KIND: ("B", kind), MESSAGE_BODY_BYTES: ("q", 0)},
        {MESSAGE_HEADER: header},
    )
    written = write(message)
    tables = {id(message): 0, id(header): 1}
    places = {
        (tables[table], number): place + 8
        for (table, number), place in written.places.items()
        if table in tables
    }
    return CONTINUATION + struct.pack("<i", len(written.data)) + bytes(written.data), places


def _column(name: str) -> Table:
    kind, facts = _TYPES[name]()
    children = [_headers_field()] if name == "headers" else []
    return _field(name, kind, facts, children)


def _field(name: str, kind: int, facts: Table, children: list[Table]) -> Table:
    # All may be null, as users declare their columns; only keys ever are.
    return Table(
        {FIELD_NULLABLE: ("B", 1), FIELD_KIND: ("B", kind)},
        {FIELD_NAME: name, FIELD_TYPE: facts, FIELD_CHILDREN: children},
    )


def _headers_field() -> Table:
    inner = [_field("key", TEXT, Table(), []), _field("value", BINARY, Table(), [])]
    return _field("item", STRUCT, Table(), inner)


def _int(bits: int) -> tuple[int, Table]:
    return INT, Table({0: ("i", bits), 1: ("B", 1)})


_TYPES: Final = {
    "key": lambda: (BINARY, Table()),
    "value": lambda: (BINARY, Table()),
    "deleted": lambda: (BOOL, Table()),
    "headers": lambda: (LIST, Table()),
    "sequence": lambda: _int(64),
    "timestamp": lambda: (TIMESTAMP, Table({0: ("h", MILLISECOND)}, {1: "UTC"})),
    "shard": lambda: _int(32),
}
