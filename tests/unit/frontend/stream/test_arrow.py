"""Rows as Arrow: out of the broker with all their types, and in from whatever a user has."""

from __future__ import annotations

import base64
import subprocess
import sys
from dataclasses import replace
from typing import Any

import pytest
from unit.frontend.stream.client import Refused, StreamClient, connected
from unit.node.world import NodeWorld

from tidemark.errors import SyntaxFault
from tidemark.model.rows import Row
from tidemark.wire.amqp091.properties import Properties, encode_properties
from tidemark.wire.stream.arrow_reader import decode_arrow
from tidemark.wire.stream.frames import Kind

pa = pytest.importorskip("pyarrow")

HEADERS = pa.list_(pa.struct([("key", pa.string()), ("value", pa.binary())]))


@pytest.fixture
def client() -> StreamClient:
    client = connected(NodeWorld())
    client.ask("declare", stream="s")
    return client


def stream_of(*batches: Any, **options: Any) -> bytes:
    sink = pa.BufferOutputStream()
    with pa.ipc.new_stream(sink, batches[0].schema, options=pa.ipc.IpcWriteOptions(**options)) as writer:
        for batch in batches:
            writer.write_batch(batch)
    return bytes(sink.getvalue())


def table(client: StreamClient, stream: str = "s", **fields: Any) -> Any:
    """All rows of the stream."""
    number = client.send("read", snapshot=client.snapshot(stream), encoding="arrow", **fields)
    *batches, end = client.about(number)
    assert end.kind is Kind.ANSWER, end.header
    tables = [pa.ipc.open_stream(frame.payload).read_all() for frame in batches]
    assert [len(table) for table in tables] == [frame.header["count"] for frame in batches]
    return pa.concat_tables(tables) if tables else pa.ipc.open_stream(end.payload).read_all()


def put(client: StreamClient, **columns: Any) -> dict[str, Any]:
    return client.ask("put", stream_of(pa.record_batch(columns)), stream="s", encoding="arrow")


# Out -----------------------------------------------------------------------------------------------------


def test_a_snapshot_leaves_as_record_batches(client: StreamClient) -> None:
    answer = client.put("s", [Row(b"a", b"1"), Row(None, b"2"), Row(b"c", b"", tombstone=True)])
    found = table(client)

    assert found.schema == pa.schema(
        [
            ("key", pa.binary()),
            ("value", pa.binary()),
            ("deleted", pa.bool_()),
            ("sequence", pa.int64()),
            ("timestamp", pa.timestamp("ms", tz="UTC")),
        ]
    )
    assert found["key"].to_pylist() == [b"a", None, b"c"]
    assert found["value"].to_pylist() == [b"1", b"2", b""]
    assert found["deleted"].to_pylist() == [False, False, True]
    assert found["sequence"].to_pylist() == list(range(answer["first"], answer["last"] + 1))
    assert found["timestamp"].cast(pa.int64()).to_pylist() == [client.world.now_ms] * 3
    found.validate(full=True)


def test_only_the_columns_that_were_asked_for_leave_in_their_order(client: StreamClient) -> None:
    client.put("s", [Row(b"a", b"1")])
    assert table(client, columns=["sequence", "key"]).schema.names == ["sequence", "key"]
    assert table(client, columns=["value"]).to_pylist() == [{"value": b"1"}]


def test_headers_come_when_they_are_asked_for(client: StreamClient) -> None:
    properties = encode_properties(Properties(headers={"a": "text", "b": b"bytes", "n": 7, "l": [1, "x"]}))
    client.put("s", [Row(b"k", b"v", properties), Row(b"l", b"v")])
    found = table(client, columns=["headers"])["headers"].to_pylist()
    assert {entry["key"]: entry["value"] for entry in found[0]} == {
        "a": b"text",
        "b": b"bytes",
        "n": b"7",
        "l": b'[1, "x"]',
    }
    assert found[1] == []


@pytest.mark.parametrize("shards", [1, 3, 7, 1024])
def test_the_shard_of_a_row_is_the_one_that_it_is_read_from(client: StreamClient, shards: int) -> None:
    client.ask("declare", stream="t", arguments={"x-stream-shards": shards})
    client.put("t", [Row(b"%d" % i, b"v") for i in range(100)])
    found = set(table(client, "t", columns=["shard"])["shard"].to_pylist())
    for shard in found:
        part = table(client, "t", columns=["key", "shard"], shards=[shard])
        assert set(part["shard"].to_pylist()) == {shard}


def test_an_empty_read_still_has_the_schema(client: StreamClient) -> None:
    found = table(client, columns=["key", "shard"])
    assert (len(found), found.schema.names) == (0, ["key", "shard"])


def test_batches_are_about_as_large_as_asked_and_a_key_range_is_pushed_down(client: StreamClient) -> None:
    client.put("s", [Row(b"%03d" % i, b"x" * 100) for i in range(100)])
    number = client.send("read", snapshot=client.snapshot("s"), encoding="arrow", batch_bytes=1000)
    *batches, end = client.about(number)
    assert 9 <= len(batches) <= 11
    assert end.header["marker"]["count"] == 100

    keys = {"key_from": base64.b64encode(b"090").decode()}
    assert table(client, **keys)["key"].to_pylist() == [b"%03d" % i for i in range(90, 100)]


def test_a_follower_can_have_arrow_too(client: StreamClient) -> None:
    number = client.send("follow", stream="s", encoding="arrow", columns=["value"])
    [start] = client.about(number)
    assert pa.ipc.open_stream(start.payload).schema.names == ["value"]
    client.put("s", [Row(b"k", b"v")])
    data, marker = client.about(number)
    assert pa.ipc.open_stream(data.payload).read_all().to_pylist() == [{"value": b"v"}]
    assert marker.header["marker"]["count"] == 1


def test_the_broker_needs_no_pyarrow(client: StreamClient) -> None:
    program = (
        "import sys; sys.modules['pyarrow'] = None; sys.modules['numpy'] = None\n"
        "import tidemark.node, tidemark.wire.stream.arrow_reader"
    )
    subprocess.run([sys.executable, "-c", program], check=True)


# In --------------------------------------------------------------------------------------------------------

KINDS = [
    pa.binary(),
    pa.string(),
    pa.large_binary(),
    pa.large_string(),
    pa.binary_view(),
    pa.string_view(),
]


@pytest.mark.parametrize("kind", KINDS, ids=str)
def test_columns_of_any_kind_of_bytes_come_in(client: StreamClient, kind: Any) -> None:
    long = "a key that is longer than a view holds"
    answer = put(
        client,
        key=pa.array(["a", None, long], kind),
        value=pa.array(["1", "", "x" * 50], kind),
    )
    assert answer["last"] == answer["first"] + 2
    rows = client.rows("s")
    assert [(row.key, row.value) for row in rows] == [(b"a", b"1"), (None, b""), (long.encode(), b"x" * 50)]


@pytest.mark.parametrize("kind", KINDS, ids=str)
def test_deleted_rows_are_tombstones_with_or_without_a_null(client: StreamClient, kind: Any) -> None:
    put(client, key=pa.array(["a", "b", "c"], kind), value=pa.array(["1", "2", "3"], kind))
    put(
        client,
        key=pa.array(["a", "b", "c"], kind),
        value=pa.array([None, "", "4"], kind),
        deleted=pa.array([True, True, None]),
    )
    rows = client.rows("s")
    assert [(row.key, row.tombstone) for row in rows] == [(b"a", True), (b"b", True), (b"c", False)]


def test_conditions_and_headers_come_in(client: StreamClient) -> None:
    first = put(client, key=pa.array([b"a"]), value=pa.array([b"1"]))
    put(
        client,
        key=pa.array([b"a", b"b"]),
        value=pa.array([b"2", b"3"]),
        expected=pa.array([first["last"], None], pa.int64()),
        headers=pa.array([[{"key": "colour", "value": b"red"}], None], HEADERS),
    )
    rows = client.rows("s", columns=["key", "value", "headers"])
    assert [row.value for row in rows] == [b"2", b"3"]
    assert encode_properties(Properties(headers={"colour": "red"}, delivery_mode=2)) == rows[0].properties
    with pytest.raises(Refused, match=r"stream\.conflict"):
        put(client, key=pa.array([b"b"]), value=pa.array([b"4"]), expected=pa.array([0], pa.int64()))


def test_what_was_read_can_be_put_again(client: StreamClient) -> None:
    client.put("s", [Row(b"a", b"1"), Row(b"b", b"2"), Row(b"b", b"", tombstone=True)])
    client.ask("declare", stream="t")
    columns = ["key", "value", "deleted", "sequence", "timestamp", "shard", "headers"]
    number = client.send("read", snapshot=client.snapshot("s"), encoding="arrow", columns=columns)
    data, _ = client.about(number)
    client.ask("put", bytes(data.payload), stream="t", encoding="arrow")
    assert [(row.key, row.value, row.tombstone) for row in client.rows("t")] == [
        (b"a", b"1", False),
        (b"b", b"", True),
    ]


def test_batches_of_one_stream_are_put_all_or_nothing(client: StreamClient) -> None:
    batches = [pa.record_batch({"key": pa.array([b"%d" % i]), "value": pa.array([b"v"])}) for i in range(3)]
    answer = client.ask("put", stream_of(*batches), stream="s", encoding="arrow")
    assert answer["last"] == answer["first"] + 2
    assert len(client.rows("s")) == 3


def test_a_put_has_only_so_many_record_batches_and_headers() -> None:
    world = NodeWorld()
    config = world.node.settings
    world.node.settings = replace(
        config, stream=replace(config.stream, put_rows_max=20, put_slow_rows_max=5, put_parts_max=4)
    )
    client = connected(world)
    client.ask("declare", stream="s")
    one = pa.record_batch({"value": pa.array([b"v"])})
    client.ask("put", stream_of(*[one] * 4), stream="s", encoding="arrow")
    with pytest.raises(Refused, match="put_parts_max"):
        client.ask("put", stream_of(*[one] * 5), stream="s", encoding="arrow")
    with pytest.raises(Refused, match="put_rows_max"):
        put(client, value=[b"v"] * 21)
    put(client, value=[b"v"] * 2, headers=pa.array([[("a", b"1")] * 2] * 2, HEADERS))
    with pytest.raises(Refused, match="put_slow_rows_max"):
        put(client, value=[b"v"], headers=pa.array([[("a", b"1")] * 6], HEADERS))
    assert len(client.rows("s")) == 6


@pytest.mark.parametrize(
    ("pairs", "headers"),
    [
        (
            [("a", b"x"), ("b", "é".encode()), ("c", b"\xff"), ("d", None)],
            {"a": "x", "b": "é", "c": b"\xff", "d": None},
        ),
        ([("a", b"1"), ("b", b"2"), ("a", b"3")], {"a": "3", "b": "2"}),
    ],
)
def test_headers_become_those_of_an_amqp_message(pairs: Any, headers: dict[str, Any]) -> None:
    data = stream_of(pa.record_batch({"value": [b"v"], "headers": pa.array([pairs], HEADERS)}))
    [batch] = decode_arrow(data)
    [row] = batch
    assert row.properties == encode_properties(Properties(headers=headers, delivery_mode=2))


def test_a_slice_of_a_table_comes_in_as_it_is(client: StreamClient) -> None:
    batch = pa.record_batch({"key": pa.array([b"%d" % i for i in range(10)]), "value": pa.array([b"v"] * 10)})
    client.ask("put", stream_of(batch.slice(4, 3)), stream="s", encoding="arrow")
    assert [row.key for row in client.rows("s")] == [b"4", b"5", b"6"]


def test_plain_columns_are_not_copied() -> None:
    data = stream_of(pa.record_batch({"value": pa.array([b"some value", b"another"])}))
    [batch] = decode_arrow(memoryview(data))
    assert batch.values is not None
    start = pa.py_buffer(data).address
    for part in batch.values:
        assert start <= pa.py_buffer(part).address < start + len(data)


@pytest.mark.parametrize(
    ("data", "words"),
    [
        (b"", "no schema"),
        (b"not arrow at all", "no message at byte 0"),
        (stream_of(pa.record_batch({"key": pa.array([b"a"])})), "column 'value' is missing"),
        (stream_of(pa.record_batch({"smell": pa.array([b"a"])})), "there is no column 'smell'"),
        (
            stream_of(pa.record_batch({"value": pa.array([7])})),
            "column 'value' must be binary or text",
        ),
        (
            stream_of(pa.record_batch([pa.array([b"a"]), pa.array([b"b"])], ["value", "value"])),
            "a column is there twice",
        ),
        (stream_of(pa.record_batch({"value": pa.array([None], pa.binary())})), "a row without a value"),
        (
            stream_of(pa.record_batch({"value": pa.array([b"x"]), "deleted": pa.array([True])})),
            "tombstone without a key",
        ),
        (
            stream_of(pa.record_batch({"value": pa.array([b"x"], pa.dictionary(pa.int32(), pa.binary()))})),
            "dictionary",
        ),
        (
            stream_of(pa.record_batch({"value": pa.array([b"x" * 10_000])}), compression="zstd"),
            "must not be compressed",
        ),
        (
            stream_of(pa.record_batch({"value": pa.array([b"x"]), "headers": pa.array([[b"x"]])})),
            "column 'headers' must be",
        ),
    ],
    ids=lambda value: value if isinstance(value, str) else "",
)
def test_what_cannot_be_put_is_refused(data: bytes, words: str) -> None:
    with pytest.raises(SyntaxFault, match=words):
        decode_arrow(data)


def test_a_stream_cut_anywhere_is_refused_or_shorter(client: StreamClient) -> None:
    batch = pa.record_batch({"key": pa.array([b"a", b"b"]), "value": pa.array([b"1", b"2"])})
    data = stream_of(batch, batch)
    for end in range(len(data)):
        try:
            found = decode_arrow(data[:end])
        except SyntaxFault:
            continue
        assert len(found) in (0, 1, 2)
