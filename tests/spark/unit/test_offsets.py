"""Offsets: one text for one place, and nothing that is not ours."""

from __future__ import annotations

import json

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tidemark_spark.errors import OffsetForeign
from tidemark_spark.offsets import Offset, PinRef, begin_of, everywhere, spread

SHARDS = st.dictionaries(
    st.integers(0, 12), st.tuples(st.text(max_size=3), st.integers(0, 99)), min_size=1, max_size=4
)
OFFSETS = st.builds(
    Offset,
    st.text(max_size=5),
    st.integers(0, 9),
    st.text(max_size=5),
    SHARDS,
    st.none() | st.builds(PinRef, st.text(max_size=5), st.integers(0, 99)),
    st.booleans(),
    st.none() | SHARDS,
)


@given(OFFSETS)
def test_an_offset_is_what_spark_gives_back(offset: Offset) -> None:
    assert Offset.from_json(json.loads(json.dumps(offset.to_json()))) == offset
    assert Offset.from_json(json.dumps(offset.to_json())) == offset


def test_the_same_place_is_the_same_text_whatever_the_order_of_its_shards() -> None:
    one = Offset("s", 1, "g", {10: ("h", 1), 2: ("h", 1)})
    other = Offset("s", 1, "g", {2: ("h", 1), 10: ("h", 1)})
    assert json.dumps(one.to_json()) == json.dumps(other.to_json())
    assert list(one.to_json()["shards"]) == ["2", "10"]


def test_a_boundary_is_the_end_of_a_whole_pin() -> None:
    pin = PinRef("p", 9)
    assert Offset("s", 1, "g", everywhere("h", 9, 2), pin).is_boundary
    assert not Offset("s", 1, "g", {0: ("h", 9), 1: ("h", 5)}, pin).is_boundary
    assert Offset("s", 1, "g", {0: ("h", 9), 1: ("h", 5)}, pin).unfinished == pin


def test_a_batch_begins_where_its_end_says_or_where_the_one_before_ended() -> None:
    start = Offset("s", 1, "g", everywhere("h", 3, 1))
    end = Offset("s", 1, "g", everywhere("h", 9, 1), PinRef("p", 9))
    assert begin_of(start, end) == everywhere("h", 3, 1)
    moved = Offset("s", 1, "g", everywhere("h", 9, 1), PinRef("p", 9), origin=everywhere("h", 1, 1))
    assert begin_of(start, moved) == everywhere("h", 1, 1)


def test_shards_of_a_stream_that_grew_begin_where_the_hindmost_was() -> None:
    assert spread({0: ("h", 3), 1: ("h", 5)}, 3) == everywhere("h", 3, 3)
    assert spread({0: ("h", 3), 1: ("h", 5)}, 2) == {0: ("h", 3), 1: ("h", 5)}


@pytest.mark.parametrize(
    "given", ["{}", "[]", "7", '{"stream": 1}', "no json", '{"stream":"s","id":1,"group":"g","shards":3}']
)
def test_what_is_no_offset_is_refused(given: str) -> None:
    with pytest.raises(OffsetForeign, match="checkpointLocation of its own"):
        Offset.from_json(given)
