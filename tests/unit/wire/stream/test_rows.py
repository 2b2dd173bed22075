"""Rows in a payload: what was built is read, and a payload that lies about itself is refused."""

from __future__ import annotations

import struct
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tidemark.errors import SyntaxFault
from tidemark.model.rows import ANY, Row, RowBatch
from tidemark.wire.stream.rows import decode_rows, encode_rows

keys = st.one_of(st.none(), st.binary(max_size=20))
rows = st.lists(
    st.one_of(
        st.builds(
            Row, keys, st.binary(max_size=40), st.binary(max_size=5), st.just(False), st.integers(-1, 9)
        ),
        st.builds(Row, st.binary(max_size=20), st.just(b""), st.just(b""), st.just(True), st.just(ANY)),
    ),
    max_size=12,
)


def payload_of(parts: list[Any]) -> bytes:
    return b"".join(parts)


@given(rows)
def test_rows_are_read_as_they_were_built(given_rows: list[Row]) -> None:
    header, parts = encode_rows(RowBatch.build(given_rows))
    assert len(payload_of(parts)) % 8 == 0
    assert list(decode_rows(header, payload_of(parts))) == given_rows


def test_what_comes_out_of_a_stream_has_its_numbers() -> None:
    batch = RowBatch.build([Row(b"k", b"v")])
    batch.sequences, batch.timestamps = struct.pack("<q", 7), struct.pack("<q", 1234)
    header, parts = encode_rows(batch)
    assert [column[0] for column in header["columns"]] == ["keys", "values", "sequences", "timestamps"]
    assert list(decode_rows(header, payload_of(parts))) == [Row(b"k", b"v", seq=7, ms=1234)]


def test_what_was_read_may_be_without_values() -> None:
    batch = RowBatch.build([Row(b"k", b"")])
    batch.values = None
    header, parts = encode_rows(batch)

    assert decode_rows(header, payload_of(parts), values_needed=False).values is None
    with pytest.raises(SyntaxFault, match="column 'values' is missing"):
        decode_rows(header, payload_of(parts))


def a_payload(**changes: Any) -> tuple[dict[str, Any], bytes]:
    header, parts = encode_rows(RowBatch.build([Row(b"key", b"value"), Row(b"other", b"")]))
    return header | changes, payload_of(parts)


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        ({"count": None}, "'count' must be a number of rows"),
        ({"count": -1}, "'count' must be a number of rows"),
        ({"count": True}, "'count' must be a number of rows"),
        ({"count": 1 << 40}, "'count' must be a number of rows"),
        ({"count": 3}, "do not fit 3 rows"),
        ({"columns": None}, "'columns' must be a list"),
        ({"columns": []}, "the columns take 0 bytes"),
        ({"columns": ["keys"]}, "a column must be a list"),
        ({"columns": [[]]}, "a column must be a list"),
        ({"columns": [["keys", 12, 8], ["keys", 12, 8]]}, "twice"),
        ({"columns": [["keys", 12, 1 << 30], ["values", 12, 5]]}, "the columns take"),
        ({"columns": [["keys", 12, -8], ["values", 12, 5]]}, "must be numbers of bytes"),
        ({"columns": [["keys", 12], ["values", 12, 5]]}, "do not fit 2 rows"),
        ({"columns": [["smell", 12, 8], ["values", 12, 5]]}, "there is no column 'smell'"),
        ({"columns": [["keys", 12, 8], ["properties", 12, 5]]}, "column 'values' is missing"),
    ],
)
def test_a_header_that_does_not_describe_the_payload_is_refused(changes: dict[str, Any], words: str) -> None:
    with pytest.raises(SyntaxFault, match=words):
        decode_rows(*a_payload(**changes))


@pytest.mark.parametrize("offsets", [(0, 9, 5), (-1, 0, 5), (0, 5, 6), (0, 1 << 30, 5), (5, 4, 3)])
def test_offsets_that_lead_astray_are_refused(offsets: tuple[int, int, int]) -> None:
    header = {"count": 2, "columns": [["values", 12, 5]]}
    payload = struct.pack("<3i", *offsets) + bytes(4) + b"value" + bytes(3)
    with pytest.raises(SyntaxFault, match="do not hold together: values"):
        decode_rows(header, payload)


@given(st.binary(max_size=200), st.integers(0, 5), st.data())
def test_no_payload_can_do_more_than_be_refused(payload: bytes, count: int, data: st.DataObject) -> None:
    sizes = st.integers(0, 40)
    column = st.one_of(
        st.tuples(st.sampled_from(["keys", "values", "properties"]), st.just(4 * (count + 1)), sizes),
        st.tuples(st.sampled_from(["flags", "expected", "sequences"]), sizes),
    ).map(list)
    header = {"count": count, "columns": data.draw(st.lists(column, max_size=4))}
    try:
        batch = decode_rows(header, payload)
    except SyntaxFault:
        return
    assert len(list(batch)) == count
