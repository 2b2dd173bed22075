"""Rows as JSON: whatever the values are, `json.loads` gives them back."""

from __future__ import annotations

import base64
import json
from datetime import UTC, date, datetime
from decimal import Decimal

import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tidemark_spark.pipeline.sinks.rendering import json_rows, keys_of, texts

texts_of_people = st.text(st.characters(exclude_categories=["Cs"]))


@settings(deadline=None)
@given(st.lists(st.tuples(texts_of_people, st.integers(-(2**63), 2**63 - 1), st.booleans() | st.none())))
def test_any_text_number_and_truth_comes_back_from_json(rows: list[tuple[str, int, bool | None]]) -> None:
    table = pa.table(
        {
            'a "name"': pa.array([row[0] for row in rows], pa.string()),
            "n": pa.array([row[1] for row in rows], pa.int64()),
            "b": pa.array([row[2] for row in rows], pa.bool_()),
        }
    )

    found = [json.loads(row) for row in json_rows(table)]
    assert found == [{'a "name"': text, "n": number, "b": truth} for text, number, truth in rows]

    without = [json.loads(row) for row in json_rows(table, nulls=False)]
    assert without == [{name: value for name, value in row.items() if value is not None} for row in found]


@settings(deadline=None)
@given(st.lists(st.floats(width=64) | st.none()))
def test_floats_come_back_exactly_and_what_json_lacks_is_null(values: list[float | None]) -> None:
    found = [json.loads(row)["f"] for row in json_rows(pa.table({"f": pa.array(values, pa.float64())}))]
    assert found == [None if v is None or v != v or v in (float("inf"), float("-inf")) else v for v in values]


@settings(deadline=None)
@given(st.lists(st.lists(texts_of_people | st.none()) | st.none()))
def test_lists_come_back_with_their_nulls(values: list[list[str | None] | None]) -> None:
    table = pa.table({"l": pa.array(values, pa.list_(pa.string()))})
    assert [json.loads(row)["l"] for row in json_rows(table)] == values


def test_every_kind_of_column_has_its_text() -> None:
    moment = datetime(2024, 2, 29, 12, 30, 1, 500, UTC)
    table = pa.table(
        {
            "decimal": pa.array([Decimal("12345678901234567.80")], pa.decimal128(20, 2)),
            "zoned": pa.array([moment], pa.timestamp("us", "Europe/Berlin")),
            "naive": pa.array([moment.replace(tzinfo=None)], pa.timestamp("us")),
            "day": pa.array([date(2024, 2, 29)]),
            "bytes": pa.array([b"\x00\xff"]),
            "struct": pa.array([{"d": Decimal("1.10"), "at": moment, "b": b"x", "n": None}]),
            "map": pa.array([[("k", 1), ("l", None)]], pa.map_(pa.string(), pa.int32())),
            "small": pa.array([-128], pa.int8()),
            "float": pa.array([1.5], pa.float32()),
        }
    )

    [row] = json_rows(table)

    assert b'"decimal":12345678901234567.80,' in row
    assert json.loads(row) == {
        "decimal": 12345678901234567.80,
        "zoned": "2024-02-29T12:30:01.000500Z",
        "naive": "2024-02-29T12:30:01.000500",
        "day": "2024-02-29",
        "bytes": base64.b64encode(b"\x00\xff").decode(),
        "struct": {"d": 1.1, "at": "2024-02-29T12:30:01.000500Z", "b": "eA==", "n": None},
        "map": {"k": 1, "l": None},
        "small": -128,
        "float": 1.5,
    }
    assert texts(table["bytes"]) == [b"\x00\xff"]
    assert texts(table["day"]) == [b"2024-02-29"]
    assert texts(table["decimal"]) == [b"12345678901234567.80"]


def test_a_table_in_many_chunks_gives_its_rows_in_order() -> None:
    table = pa.concat_tables([pa.table({"n": pa.array(range(at, at + 7))}) for at in range(0, 7_000, 7)])
    assert [json.loads(row)["n"] for row in json_rows(table)] == list(range(7_000))
    assert texts(table["n"])[-1] == b"6999"


@pytest.mark.parametrize(
    "pair", [(("a", "b|c"), ("a|b", "c")), (('a","b', "c"), ("a", 'b","c')), ((None, ""), ("", None))]
)
def test_keys_of_several_columns_never_coincide(pair: tuple[tuple[str, str], tuple[str, str]]) -> None:
    table = pa.table({"x": pa.array([row[0] for row in pair]), "y": pa.array([row[1] for row in pair])})
    first, second = keys_of(table, ["x", "y"])
    assert first != second
