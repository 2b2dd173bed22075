"""Our Arrow against pyarrow's: what one writes the other reads, and spoiled streams are refused or read."""

from __future__ import annotations

import struct
from itertools import pairwise
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tidemark.errors import SyntaxFault
from tidemark.model.rows import ANY, Row, RowBatch
from tidemark.wire.amqp091.properties import Properties, decode_properties, encode_properties
from tidemark.wire.stream.arrow import ArrowEncoder
from tidemark.wire.stream.arrow_reader import decode_arrow

pa = pytest.importorskip("pyarrow")

COLUMNS = ("key", "value", "deleted", "headers", "sequence", "timestamp", "shard")
HEADERS = pa.list_(pa.struct([("key", pa.string()), ("value", pa.binary())]))

names = st.text(st.characters(codec="utf-8", exclude_characters="\0"), min_size=1, max_size=5)
tables = st.dictionaries(names, st.text(max_size=5), max_size=3)
keys = st.one_of(st.none(), st.binary(max_size=20))
rows = st.lists(
    st.one_of(
        st.tuples(keys, st.binary(max_size=40), tables, st.just(False), st.integers(-1, 1 << 40)),
        st.tuples(st.binary(max_size=20), st.just(b""), st.just({}), st.just(True), st.just(ANY)),
    ),
    max_size=40,
)


def built(found: list[Any]) -> RowBatch:
    batch = RowBatch.build(
        Row(key, value, encode_properties(Properties(headers=table)) if table else b"", deleted)
        for key, value, table, deleted, _ in found
    )
    count = batch.count
    batch.sequences = struct.pack(f"<{count}q", *range(1, count + 1))
    batch.timestamps = struct.pack(f"<{count}q", *(7 * i for i in range(count)))
    batch.slots = struct.pack(f"<{count}H", *(i * 1000 % 65536 for i in range(count)))
    return batch


@settings(deadline=None)
@given(rows, st.sets(st.sampled_from(COLUMNS), min_size=1).map(sorted), st.sampled_from([1, 3, 100]))
def test_what_leaves_is_read_by_pyarrow(found: list[Any], columns: list[str], shards: int) -> None:
    header, parts = ArrowEncoder(columns, shards).encode(built(found))
    assert header["count"] == len(found)
    table = pa.ipc.open_stream(b"".join(parts)).read_all()
    table.validate(full=True)

    expected = {
        "key": [key for key, *_ in found],
        "value": [value for _, value, *_ in found],
        "deleted": [deleted for *_, deleted, _ in found],
        "headers": [
            [{"key": name, "value": value.encode()} for name, value in table.items()]
            for _, _, table, *_ in found
        ],
        "sequence": list(range(1, len(found) + 1)),
        "timestamp": [7 * i for i in range(len(found))],
        "shard": [_shard(i * 1000 % 65536, shards) for i in range(len(found))],
    }
    assert table.schema.names == columns
    for name in columns:
        column = table[name].cast(pa.int64()) if name == "timestamp" else table[name]
        assert column.to_pylist() == expected[name]


def _shard(slot: int, shards: int) -> int:
    return next(i for i in range(shards) if slot < (i + 1) * 65536 // shards)


def arrow_of(found: list[Any], kind: Any, cuts: list[int], **options: Any) -> bytes:
    """What pyarrow writes for these rows, in batches cut at these rows."""
    batch = pa.record_batch(
        {
            "headers": pa.array(
                [
                    [{"key": k, "value": v.encode()} for k, v in table.items()] or None
                    for _, _, table, *_ in found
                ],
                HEADERS,
            ),
            "key": pa.array([key for key, *_ in found], pa.binary()).cast(kind),
            "value": pa.array(
                [None if deleted else value for _, value, _, deleted, _ in found], pa.binary()
            ).cast(kind),
            "deleted": pa.array([deleted for *_, deleted, _ in found], pa.bool_()),
            "expected": pa.array([None if e == ANY else e for *_, e in found], pa.int64()),
            "timestamp": pa.array([0] * len(found), pa.timestamp("us")),
        }
    )
    edges = [0, *sorted(min(cut, len(found)) for cut in cuts), len(found)]
    sink = pa.BufferOutputStream()
    with pa.ipc.new_stream(sink, batch.schema, options=pa.ipc.IpcWriteOptions(**options)) as writer:
        for start, end in pairwise(edges):
            writer.write_batch(batch.slice(start, end - start))
    return bytes(sink.getvalue())


kinds = st.sampled_from([pa.binary(), pa.large_binary(), pa.binary_view()])


@settings(deadline=None)
@given(rows, kinds, st.lists(st.integers(0, 40), max_size=3))
def test_what_pyarrow_writes_comes_in(found: list[Any], kind: Any, cuts: list[int]) -> None:
    read = [row for batch in decode_arrow(arrow_of(found, kind, cuts)) for row in batch]
    assert [
        (
            row.key,
            row.value,
            (decode_properties(row.properties).headers or {}) if row.properties else {},
            row.tombstone,
            row.expected,
        )
        for row in read
    ] == found


@settings(deadline=None)
@given(
    rows,
    kinds,
    st.lists(
        st.tuples(st.integers(0, 3000), st.sampled_from([0, 1, 2, 4, 8, 0x7F, 0xFF])), min_size=1, max_size=4
    ),
)
def test_a_spoiled_stream_is_refused_or_holds_together(
    found: list[Any], kind: Any, changes: list[tuple[int, int]]
) -> None:
    data = bytearray(arrow_of(found, kind, [2]))
    for at, byte in changes:
        data[at % len(data)] = byte
    try:
        batches = decode_arrow(data)
    except SyntaxFault:
        return
    for batch in batches:
        batch.check()
        assert len(list(batch)) == batch.count


def test_a_batch_that_claims_more_rows_than_it_can_hold_is_refused_before_it_is_unpacked() -> None:
    deleted = pa.record_batch({"deleted": pa.array([True] * 100), "value": pa.array([b""] * 100)})
    sink = pa.BufferOutputStream()
    with pa.ipc.new_stream(sink, deleted.schema) as writer:
        writer.write_batch(deleted)
    data = bytearray(sink.getvalue())
    huge = struct.pack("<q", 1 << 30)
    assert data.count(struct.pack("<q", 100)) >= 3  # the batch, and both columns
    with pytest.raises(SyntaxFault, match="a record batch of 1073741824 rows"):
        decode_arrow(bytes(data).replace(struct.pack("<q", 100), huge))
