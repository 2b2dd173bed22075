"""Whose rows are whose, and when all partitions are quiet."""

from __future__ import annotations

import random

import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

from tidemark.client import Receipt
from tidemark.client.rows import Writes
from tidemark.client.splitting import Keys, Quiet, receipts, split, starts
from tidemark.errors import Conflict
from tidemark.model.partitions import partition_of

COUNTS = st.integers(1, 9)


def keys(part: Writes) -> list[bytes]:
    return part._keys


@given(st.lists(st.binary(max_size=4)), COUNTS)
def test_every_row_is_with_its_key_and_a_key_keeps_its_order(found: list[bytes], count: int) -> None:
    """K-53: what holds without an order between partitions is the order within each, and so of a key."""
    parts = split([(key, b"%d" % place) for place, key in enumerate(found)], count)

    for number, part in parts.items():
        assert all(partition_of(key, count) == number for key in keys(part))
        assert part._values == sorted(part._values, key=int)
    assert sorted(key for part in parts.values() for key in keys(part)) == sorted(found)


@given(st.lists(st.none() | st.binary(max_size=3)), COUNTS, st.integers(0, 99))
def test_a_table_is_split_as_pairs_are(found: list[bytes | None], count: int, first: int) -> None:
    values = [b"%d" % place for place in range(len(found))]
    table = pa.table({"key": pa.array(found, pa.binary()), "value": pa.array(values, pa.binary())})

    by_pairs = {number: part._values for number, part in split(zip(found, values), count, first).items()}  # noqa: B905
    by_table = {number: part["value"].to_pylist() for number, part in split(table, count, first).items()}
    assert by_pairs == by_table
    for batch in table.to_batches():
        assert {at: part["value"].to_pylist() for at, part in split(batch, count, first).items()} == by_table


def test_text_and_bytes_are_the_same_key() -> None:
    [by_text] = split([("schlüssel", b"v")], 7)
    [by_bytes] = split([("schlüssel".encode(), b"v")], 7)
    [by_table] = split(pa.table({"key": ["schlüssel"], "value": [b"v"]}), 7)
    assert by_text == by_bytes == by_table == Keys(7).number("schlüssel")


def test_rows_without_a_key_go_round_from_where_they_are_told_to() -> None:
    assert {
        at: part._values for at, part in split([(None, b"a"), (None, b"b"), (None, b"c")], 2, 1).items()
    } == {
        0: [b"b"],
        1: [b"a", b"c"],
    }
    turns = Keys(3, random.Random(1))
    assert sorted(turns.number(None) for _ in range(6)) == [0, 0, 1, 1, 2, 2]


def test_a_table_without_keys_goes_round_and_one_with_impossible_keys_is_refused() -> None:
    assert {at: part.num_rows for at, part in split(pa.table({"value": [b"a"] * 5}), 2).items()} == {
        0: 3,
        1: 2,
    }
    with pytest.raises(TypeError, match="key"):
        split(pa.table({"key": [[1]], "value": [b"v"]}), 2)


def test_a_row_that_cannot_be_put_is_found_before_anything_is_sent() -> None:
    with pytest.raises(TypeError):
        split([("a", b"v"), ("b", 7)], 3)
    with pytest.raises(TypeError):
        split([(7, b"v")], 3)


def test_receipts_are_by_number_and_an_error_says_who_has_stored_his_part() -> None:
    stored = Receipt("h", 1)
    assert receipts("s", 3, {1: stored}) == [None, stored, None]

    refused = Conflict(stream="s-2", key=b"k", expected=0, current=7)
    with pytest.raises(Conflict) as raised:
        receipts("s", 4, {0: stored, 2: refused, 3: ValueError()})
    assert raised.value.__notes__ == ["partitions of 's' that stored their part: 0; that did not: 2, 3"]


def test_a_place_in_one_stream_is_no_place_to_start_in_all() -> None:
    assert starts("first", 2) == ["first", "first"]
    assert starts([3, None], 2) == [3, None]
    for place in (3, Receipt("h", 3)):
        with pytest.raises(TypeError, match="one for each of the 2 partitions"):
            starts(place, 2)
    with pytest.raises(ValueError, match="2 partitions, and 1 place"):
        starts([3], 2)


def test_it_is_quiet_when_the_last_partition_to_bring_something_has_waited_for_so_long() -> None:
    quiet = Quiet(2, 5.0)
    quiet.waits(0, 100.0)
    assert quiet.left(200.0) is None, "the other one is not yet connected"

    quiet.waits(1, 103.0)
    assert quiet.left(104.0) == pytest.approx(4.0)
    quiet.busy(0)
    assert quiet.left(200.0) is None
    quiet.waits(0, 110.0)
    assert quiet.left(115.0) == pytest.approx(0.0)
    assert Quiet(1, None).left(0) is None
