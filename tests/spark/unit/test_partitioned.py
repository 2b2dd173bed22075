"""What the source of each partition is told, and which rows go to which partition: without Spark and without a broker."""

from __future__ import annotations

import json
import zlib
from typing import Any

import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

from tidemark_spark.errors import OptionError
from tidemark_spark.options import read_options
from tidemark_spark.partitioned import options_of
from tidemark_spark.writer import divided

NAMES = ["orders-0", "orders-1"]


def test_every_partition_is_told_what_the_user_said() -> None:
    found = options_of({"groupid": "loader", "includeHeaders": True}, NAMES, streaming=False)
    assert found == [{"groupId": "loader", "includeHeaders": "true"}] * 2


def test_partitions_share_the_time_for_which_a_query_waits_for_news() -> None:
    assert [one["pollTimeout"] for one in options_of({}, NAMES)] == ["500ms"] * 2
    assert options_of({}, ["orders-0"] * 200)[0]["pollTimeout"] == "20ms"
    assert options_of({"polltimeout": "3s"}, NAMES)[0]["pollTimeout"] == "3s"


def test_a_place_is_given_for_each_partition_by_its_name() -> None:
    given = json.dumps({"orders-1": {"0": 7}, "orders-0": {"0": ["h", 900]}})
    found = options_of({"startingOffsets": given}, NAMES)
    assert [json.loads(one["startingOffsets"]) for one in found] == [{"0": ["h", 900]}, {"0": 7}]
    for name, told in zip(NAMES, found, strict=True):
        read_options({"tidemark.url": "tidemark://h/", "subscribe": name, **told}, "stream")


@pytest.mark.parametrize("place", ["earliest", "latest", "group"])
def test_a_word_is_for_all_partitions(place: str) -> None:
    assert [one["startingOffsets"] for one in options_of({"startingOffsets": place}, NAMES)] == [place] * 2


@pytest.mark.parametrize(
    ("options", "says"),
    [
        ({"startingOffsets": '{"0": 900}'}, "must name a place in each partition.*orders-0, orders-1"),
        ({"endingOffsets": '{"orders-0": {"0": 9}}'}, "must name a place in each partition"),
        ({"startingOffsets": "{"}, "must name a place in each partition"),
        ({"asOf": "900"}, "must be a time"),
        ({"diff": "1,2"}, "one stream"),
        ({"subscribe": "other"}, "is the argument stream"),
        ({"tidemark.URL": "tidemark://h/"}, "is the argument url"),
        ({"queue": "jobs"}, "no partitioned stream"),
    ],
)
def test_what_can_only_be_about_one_stream_is_refused(options: dict[str, Any], says: str) -> None:
    with pytest.raises(OptionError, match=says):
        options_of(options, NAMES)


@given(
    st.lists(st.tuples(st.one_of(st.none(), st.binary(max_size=8)), st.binary(max_size=8)), max_size=50),
    st.integers(1, 7),
)
def test_a_row_goes_where_its_key_says_and_without_one_where_its_value_says(
    rows: list[tuple[bytes | None, bytes]], count: int
) -> None:
    """So a batch that comes again, in whatever order, has the same rows for every partition."""
    batch = pa.RecordBatch.from_arrays(
        [
            pa.array([key for key, _ in rows], pa.binary()),
            pa.array([value for _, value in rows], pa.binary()),
        ],
        names=["key", "value"],
    )

    found = {
        at: [(row["key"], row["value"]) for row in part.to_pylist()] for at, part in divided(batch, count)
    }

    for at in range(count):
        theirs = [row for row in rows if zlib.crc32(row[1] if row[0] is None else row[0]) % count == at]
        assert found.get(at, []) == theirs
