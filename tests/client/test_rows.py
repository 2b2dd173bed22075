"""Rows between Python, Arrow and the wire, and the tally that proves them."""

from __future__ import annotations

import sys
from typing import Any

import pyarrow as pa
import pytest
from client.frames import batch, marker
from hypothesis import given
from hypothesis import strategies as st

from tidemark.client.errors import MarkerMismatch
from tidemark.client.operations import marker_of, writes
from tidemark.client.rows import (
    Tally,
    Writes,
    arrow_of,
    arrow_payload,
    batch_of_arrow,
    rows_of,
)
from tidemark.client.values import milliseconds, moment
from tidemark.wire.stream.rows import decode_rows, encode_rows

KEYS = st.none() | st.binary(max_size=8)
ROWS = st.lists(st.tuples(KEYS, st.binary(max_size=20)), min_size=1, max_size=20)


@given(ROWS)
def test_what_is_put_is_what_the_broker_decodes(rows: list[tuple[bytes | None, bytes]]) -> None:
    collected = Writes()
    collected.put_all(rows)
    header, parts = encode_rows(collected.batch())

    decoded = decode_rows(header, b"".join(bytes(part) for part in parts))

    assert [(row.key, row.value) for row in decoded] == rows
    assert [(row.key, row.value) for row in rows_of(decoded)] == rows


def test_deletes_conditions_and_headers_travel_in_their_columns() -> None:
    collected = Writes()
    collected.put("k", "text", {"n": 7}, expected=0)
    collected.delete(b"gone", expected=12)
    collected.put_all([("x", None), ("y", b"", {"h": "v"})])

    found = list(collected.batch())

    assert [(row.key, row.value, row.tombstone, row.expected) for row in found] == [
        (b"k", b"text", False, 0), (b"gone", b"", True, 12), (b"x", b"", True, -1), (b"y", b"", False, -1),
    ]  # fmt: skip
    assert [row.headers for row in rows_of(collected.batch())] == [{"n": 7}, {}, {}, {"h": "v"}]


def test_columns_that_nobody_used_are_not_sent() -> None:
    plain = writes([(None, b"a"), (None, b"b")]).batch()
    assert (plain.keys, plain.properties, plain.expected) == (None, None, None)
    keyed = writes([("k", b"a")]).batch()
    assert (keyed.flags, keyed.expected) == (None, None)


@pytest.mark.parametrize(
    ("rows", "error", "words"),
    [
        ([("k" * 65536, b"")], ValueError, "at most 65535 bytes"),
        ([(None, None)], ValueError, "only a key can be deleted"),
        ([("k", 5)], TypeError, "bytes or text is needed here, not int"),
        ([("k", b"v", {}, 1)], TypeError, "not 4 things"),
        ([("k", b"v", {"h": object()})], (TypeError, ValueError), "object"),
    ],
)
def test_rows_that_cannot_be_are_refused_at_once(
    rows: list[tuple[object, ...]], error: Any, words: str
) -> None:
    with pytest.raises(error, match=words):
        writes(rows)


def test_a_negative_condition_is_refused() -> None:
    with pytest.raises(ValueError, match="expected sequence"):
        Writes().put("k", b"", expected=-1)


SOME = st.lists(
    st.tuples(st.integers(1, 1000), KEYS, st.binary(max_size=9) | st.none()).filter(
        lambda row: not (row[1] is None and row[2] is None)
    ),
    min_size=1,
    max_size=30,
)


@given(SOME, st.randoms())
def test_a_tally_does_not_mind_the_order_or_the_encoding(
    rows: list[tuple[int, bytes | None, bytes | None]], dice: object
) -> None:
    claimed = marker_of(marker(rows))
    dice.shuffle(rows)  # type: ignore[attr-defined]
    by_rows, by_arrow = Tally(), Tally()
    middle = len(rows) // 2
    for part in (rows[:middle], rows[middle:]):
        if part:
            by_rows.add(batch(part))
            for one in arrow_of(batch(part)).to_batches():
                by_arrow.add(batch_of_arrow(one))

    for tally in (by_rows, by_arrow):
        # The marker's end depends on the order in which the helper saw the rows; its hash does not.
        assert tally.verify("s", claimed).verified


@given(SOME)
def test_a_row_that_is_missing_doubled_or_changed_is_noticed(
    rows: list[tuple[int, bytes | None, bytes | None]],
) -> None:
    claimed = marker_of(marker(rows))
    sequence, key, value = rows[0]
    for wrong in ([*rows, rows[0]], rows[1:], [(sequence + 1, key, value), *rows[1:]]):
        tally = Tally()
        if wrong:
            tally.add(batch(wrong))
        with pytest.raises(MarkerMismatch):
            tally.verify("s", claimed)


def test_a_slice_of_an_arrow_table_hashes_as_its_rows() -> None:
    rows = [(n, b"k%d" % n if n % 3 else None, b"v" * n) for n in range(1, 20)]
    table = arrow_of(batch(rows)).combine_chunks().slice(4, 9)
    tally = Tally()
    for one in table.to_batches():
        tally.add(batch_of_arrow(one))
    assert tally.verify("s", marker_of(marker(rows[4:13]))).verified


def test_without_all_columns_only_the_number_of_rows_is_checked() -> None:
    rows = [(1, b"a", b"1"), (2, b"b", None)]
    tally = Tally(hashed=False)
    tally.add_count(2)
    assert not tally.verify("s", marker_of(marker(rows, hash=None))).verified
    with pytest.raises(MarkerMismatch, match="says 3 rows, but what came was 2 rows"):
        tally.verify("s", marker_of(marker(rows, count=2)))


def test_an_arrow_table_has_the_columns_of_the_rows() -> None:
    table = arrow_of(batch([(1, b"a", b"1"), (2, None, b"2"), (3, b"c", None)]))
    assert table.column("key").to_pylist() == [b"a", None, b"c"]
    assert table.column("value").to_pylist() == [b"1", b"2", b""]
    assert table.column("deleted").to_pylist() == [False, False, True]
    assert table.column("sequence").to_pylist() == [1, 2, 3]
    assert table.schema.field("timestamp").type == pa.timestamp("ms", "UTC")


def test_tables_with_text_or_large_columns_are_sent_as_bytes() -> None:
    table = pa.table({"key": pa.array(["a", "b"], pa.large_string()), "value": pa.array(["x", "y"])})
    header, [payload] = arrow_payload(table)
    sent = pa.ipc.open_stream(payload).read_all()
    assert header == {"count": 2, "encoding": "arrow"}
    assert sent.schema.field("key").type == sent.schema.field("value").type == pa.binary()
    assert sent.column("key").to_pylist() == [b"a", b"b"]


def test_a_table_without_values_is_refused() -> None:
    with pytest.raises(TypeError, match="needs a column 'value'"):
        arrow_payload(pa.table({"key": ["a"]}))
    with pytest.raises(TypeError, match="column 'value' cannot be bytes"):
        arrow_payload(pa.table({"value": [1, 2]}))


def test_times_are_milliseconds() -> None:
    assert milliseconds(moment(1_700_000_000_123)) == 1_700_000_000_123
    assert milliseconds(1.5) == 1500


def test_importing_the_client_imports_neither_pyarrow_nor_the_broker() -> None:
    import subprocess

    code = (
        "import sys, tidemark.client; "
        "bad = [m for m in sys.modules if m.startswith(('pyarrow', 'tidemark.broker', 'tidemark.store',"
        " 'tidemark.runtime', 'tidemark.frontend', 'tidemark.node', 'typer', 'starlette'))]; print(bad)"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "[]"
