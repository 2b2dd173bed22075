"""What a stored mark says about a batch: to be applied, there already, or not to be touched."""

from __future__ import annotations

from typing import Any

import pyarrow as pa
import pytest

from tidemark_spark.errors import ResultsMissing, SinkAhead, SinkBehind, SinkOfAnotherQuery
from tidemark_spark.pipeline.values import Change, Decision, Mark, Mode, Position, decide

EMPTY = pa.table({})


def at(*sequences: int) -> Position:
    return {"orders": {str(shard): ("h", sequence) for shard, sequence in enumerate(sequences)}}


def a_mark(
    position: Position | None = None, *, mode: Mode = "mirror", query: str = "q", batch: int = 0
) -> Mark:
    return Mark("p", "s", mode, query, batch, position or {}, True, 0, 0)


def a_change(start: Position, end: Position, **facts: Any) -> Change:
    return Change(a_mark(end, **facts), start, EMPTY, EMPTY)


def test_a_mark_comes_back_from_json_as_it_was() -> None:
    mark = a_mark(at(7, 9), batch=3)
    assert Mark.from_json(mark.to_json()) == mark


@pytest.mark.parametrize(
    ("stored", "start", "end", "expected"),
    [
        (None, {}, at(10), Decision.APPLY),
        (at(10), at(10), at(20), Decision.APPLY),
        (at(20), at(10), at(20), Decision.SKIP),
        (at(30), at(10), at(20), Decision.SKIP),
        (at(10, 10), at(10, 10), at(20, 10), Decision.APPLY),
        (at(10), at(10), at(20, 20), Decision.APPLY),  # the stream has grown
        (at(20), at(10), at(20, 20), Decision.SKIP),
    ],
)
def test_positions_decide_in_a_mirror(
    stored: Position | None, start: Position, end: Position, expected: Decision
) -> None:
    mark = None if stored is None else a_mark(stored)
    assert decide(mark, a_change(start, end)) is expected


def test_a_batch_without_new_positions_is_applied_to_an_empty_sink() -> None:
    assert decide(None, a_change({}, at(0))) is Decision.APPLY


@pytest.mark.parametrize("stored", [None, at(5), at(10, 5), {"others": {"0": ("h", 50)}}])
def test_a_gap_is_refused(stored: Position | None) -> None:
    mark = None if stored is None else a_mark(stored)
    with pytest.raises(SinkBehind, match="would be missing"):
        decide(mark, a_change(at(10, 10), at(20, 20)))


@pytest.mark.parametrize("stored", [at(15, 15), at(30, 10), at(20, 10), at(10, 15)])
def test_a_batch_of_which_the_sink_holds_a_part_is_refused(stored: Position) -> None:
    """M2: a zombie that wakes up would put rows again, from a snapshot that may be older than the sink's."""
    with pytest.raises(SinkAhead, match="holds a part"):
        decide(a_mark(stored), a_change(at(10, 10), at(20, 20)))


@pytest.mark.parametrize(("held", "comes", "expected"), [(3, 3, Decision.SKIP), (3, 4, Decision.APPLY)])
def test_batch_numbers_decide_for_results(held: int, comes: int, expected: Decision) -> None:
    stored = a_mark(mode="update", batch=held)
    assert decide(stored, a_change({}, {}, mode="update", batch=comes)) is expected


@pytest.mark.parametrize(
    "stored", [a_mark(mode="update", query="other"), a_mark(mode="append"), a_mark(at(1))]
)
def test_results_of_another_checkpoint_are_refused(stored: Mark | None) -> None:
    with pytest.raises(SinkOfAnotherQuery):
        decide(stored, a_change({}, {}, mode="update", batch=1))


@pytest.mark.parametrize(
    ("held", "comes", "says"), [(None, 1, "no results, and the next batch is 1"), (3, 5, "up to batch 3")]
)
def test_results_are_not_applied_over_a_gap(held: int | None, comes: int, says: str) -> None:
    """M2: a sink that was emptied, or restored from a backup, would lack the results in between for ever."""
    stored = None if held is None else a_mark(mode="append", batch=held)
    with pytest.raises(ResultsMissing, match=says):
        decide(stored, a_change({}, {}, mode="append", batch=comes))
