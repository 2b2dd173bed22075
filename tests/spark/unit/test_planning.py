"""Dividing a read into tasks, and what filters narrow it to."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from spark.unit.model_feed import cut

from tidemark_spark.offsets import everywhere
from tidemark_spark.planning import (
    TASK_BYTES,
    Limits,
    Narrowing,
    Slice,
    Task,
    narrow,
    plan,
    shard_of,
)


class Row(NamedTuple):
    sequence: int
    shard: int
    value: Sequence[object] = "x"


class Rows:
    """Rows that can be cut; counts how often."""

    def __init__(self, rows: Sequence[Row]) -> None:
        self.rows = rows
        self.cuts = 0

    def of(self, part: Slice) -> list[Row]:
        return [
            row
            for row in self.rows
            if part.after < row.sequence <= part.until and (part.shards is None or row.shard in part.shards)
        ]

    def __call__(self, part: Slice, **how: int | None) -> Sequence[object]:
        self.cuts += 1
        return cut(self.of(part), part, **how)

    def read(self, tasks: Sequence[Task]) -> list[Row]:
        return sorted(row for task in tasks for part in task for row in self.of(part))


def spread_over(shards: int, count: int) -> Rows:
    return Rows([Row(number + 1, number % shards) for number in range(count)])


def large(shards: int, tasks: int) -> tuple[Rows, int]:
    """Rows that are worth so many tasks, and the last sequence: few, but of many bytes and far apart."""
    value = range(TASK_BYTES // 10 - 1)
    rows = [Row((number + 1) * 10_000, number % shards, value) for number in range(10 * tasks)]
    return Rows(rows), rows[-1].sequence


def between(after: int, until: int, shards: int) -> tuple[object, object]:
    return everywhere("h", after, shards), everywhere("h", until, shards)


def test_nothing_between_two_places_is_no_task() -> None:
    assert plan(*between(7, 7, 3), Limits(), spread_over(3, 10)) == []


def test_a_small_read_is_one_task_and_the_broker_is_not_asked_how_large_it_is() -> None:
    rows = spread_over(8, 1000)
    assert plan(*between(0, 1000, 8), Limits(cores=4), rows) == [(Slice(None, 0, 1000),)]
    assert rows.cuts == 0


def test_a_large_read_is_divided_by_shards_for_the_cores_there_are() -> None:
    rows, last = large(4, tasks=8)
    tasks = plan(*between(0, last, 4), Limits(cores=2), rows)
    assert tasks == [(Slice((0, 1), 0, last),), (Slice((2, 3), 0, last),)]


def test_a_large_read_of_one_shard_is_divided_by_sequence() -> None:
    rows, last = large(1, tasks=3)
    tasks = plan(*between(0, last, 1), Limits(cores=8), rows)
    assert [task[0].until for task in tasks] == [100_000, 200_000, 300_000]


def test_min_partitions_divides_a_small_read_too() -> None:
    rows = spread_over(2, 100)
    tasks = plan(*between(0, 100, 2), Limits(least=6), rows)
    assert len(tasks) == 6
    assert {len(rows.read([task])) for task in tasks} <= {16, 17}


def test_max_partitions_packs_shards_that_are_read_from_different_places() -> None:
    rows = spread_over(4, 100)
    begin = {0: ("h", 0), 1: ("h", 10), 2: ("h", 20), 3: ("h", 30)}
    tasks = plan(begin, everywhere("h", 100, 4), Limits(least=2, most=2), rows)
    assert [len(task) for task in tasks] == [2, 2]


def test_max_records_per_partition_bounds_each_task() -> None:
    rows = spread_over(2, 100)
    tasks = plan(*between(0, 100, 2), Limits(rows=30), rows)
    assert [len(rows.read([task])) for task in tasks] == [30, 30, 30, 10]


@given(
    st.lists(st.tuples(st.integers(0, 4), st.integers(1, 3)), max_size=60),
    st.lists(st.integers(0, 120), min_size=5, max_size=5),
    st.integers(0, 120),
    st.integers(1, 5),
    st.builds(
        Limits,
        least=st.none() | st.integers(1, 12),
        most=st.none() | st.integers(1, 12),
        rows=st.none() | st.integers(1, 9),
        cores=st.integers(1, 4),
    ),
)
def test_whatever_is_divided_every_row_is_read_once(
    steps: list[tuple[int, int]], after: list[int], until: int, shards: int, limits: Limits
) -> None:
    sequence, found = 0, []
    for shard, step in steps:
        sequence += step
        found.append(Row(sequence, shard % shards))
    rows = Rows(found)
    begin = {shard: ("h", after[shard]) for shard in range(shards)}

    tasks = plan(begin, everywhere("h", until, shards), limits, rows)

    assert rows.read(tasks) == sorted(row for row in found if after[row.shard] < row.sequence <= until)
    assert limits.most is None or len(tasks) <= limits.most


# Filters -------------------------------------------------------------------------------------------


class Filter:
    def __init__(self, column: str, value: object = None) -> None:
        self.attribute = (column,)
        self.value = value


class EqualTo(Filter):
    def holds(self, value: object) -> bool:
        return value == self.value


class GreaterThan(Filter):
    def holds(self, value: object) -> bool:
        return value > self.value  # type: ignore[operator]


class GreaterThanOrEqual(Filter):
    def holds(self, value: object) -> bool:
        return value >= self.value  # type: ignore[operator]


class LessThan(Filter):
    def holds(self, value: object) -> bool:
        return value < self.value  # type: ignore[operator]


class LessThanOrEqual(Filter):
    def holds(self, value: object) -> bool:
        return value <= self.value  # type: ignore[operator]


class In(Filter):
    def holds(self, value: object) -> bool:
        return value in self.value  # type: ignore[operator]


class IsNotNull(Filter):
    def holds(self, value: object) -> bool:
        return value is not None


COMPARISONS = [EqualTo, GreaterThan, GreaterThanOrEqual, LessThan, LessThanOrEqual]
KEYS = st.sampled_from([b"", b"\0", b"a", b"a\0", b"ab", b"b"])
FILTERS = st.one_of(
    st.builds(lambda kind, value: kind("key", value), st.sampled_from(COMPARISONS), KEYS),
    st.builds(lambda kind, value: kind("sequence", value), st.sampled_from(COMPARISONS), st.integers(-2, 12)),
    st.builds(lambda value: In("key", tuple(value)), st.lists(KEYS, max_size=4)),
    st.builds(lambda value: EqualTo("shard", value), st.integers(0, 4)),
    st.builds(lambda value: In("shard", tuple(value)), st.lists(st.integers(0, 4), max_size=3)),
    st.builds(lambda value: EqualTo("deleted", value), st.booleans()),
    st.builds(lambda column: IsNotNull(column), st.sampled_from(["key", "sequence"])),
)


@settings(max_examples=1500, deadline=None)
@given(
    st.lists(FILTERS, max_size=3),
    st.lists(st.tuples(KEYS | st.none(), st.booleans()), max_size=12),
    st.integers(1, 4),
)
def test_what_is_narrowed_and_then_filtered_is_what_the_filters_ask_for(
    filters: list[Filter], given_rows: list[tuple[bytes | None, bool]], shards: int
) -> None:
    narrowing, rest = narrow(filters)
    begin, end = narrowing.applied(*between(0, 10, shards))  # type: ignore[arg-type]
    low, high = narrowing.key_from or b"", narrowing.key_to
    expected, found = [], []
    for number, (key, deleted) in enumerate(given_rows):
        row = {"key": key, "sequence": number + 1, "deleted": deleted}
        row["shard"] = shard_of(key if key is not None else b"\x00", shards)
        if number >= 10:
            continue

        def holds(one: Filter, row: dict[str, object] = row) -> bool:
            value = row[one.attribute[0]]
            return value is not None and one.holds(value)  # type: ignore[attr-defined]

        if all(holds(one) for one in filters):
            expected.append(row)
        shard = row["shard"]
        stored = key or b""  # the broker takes a row without a key for one with an empty key
        if (
            not narrowing.is_nothing
            and begin[shard][1] < row["sequence"] <= end[shard][1]  # type: ignore[index, operator]
            and low <= stored
            and (high is None or stored < high)
            and narrowing.deleted in (None, deleted)
            and all(holds(one) for one in rest)
        ):
            found.append(row)

    assert found == expected


def test_filters_that_contradict_each_other_ask_for_nothing() -> None:
    narrowing, _ = narrow([GreaterThan("sequence", 9), LessThan("sequence", 5)])
    assert narrowing.is_nothing


def test_a_filter_that_the_broker_does_not_know_is_left_to_spark() -> None:
    filters = [GreaterThan("timestamp", 5), EqualTo("value", b"x")]
    narrowing, rest = narrow(filters)
    assert narrowing == Narrowing()
    assert rest == filters


@pytest.mark.parametrize("shards", [1, 2, 3, 7, 1024])
def test_the_shard_of_a_key_is_the_one_whose_slots_hold_it(shards: int) -> None:
    from tidemark.model.keys import slot_of

    for number in range(2000):
        key = f"k{number}".encode()
        shard = shard_of(key, shards)
        assert shard * 65536 // shards <= slot_of(key) < (shard + 1) * 65536 // shards
