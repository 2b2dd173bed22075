"""Micro-batches against a model of a stream: what ends where, what is held, what a restart finds (M1, M6).

`Query` stands for Spark: it keeps the offsets of batches as the texts of a checkpoint, and asks in Spark's order. The
real thing is in tests/spark/connector.
"""

from __future__ import annotations

import json
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from spark.unit.model_feed import ModelFeed, Row

from tidemark_spark.errors import DataLost, OffsetForeign, OptionError, StreamMissing
from tidemark_spark.micro_batches import MicroBatches
from tidemark_spark.offsets import Offset, begin_of
from tidemark_spark.options import read_options

COLUMNS = ("key", "value")


class Query:
    """A streaming query: its checkpoint, and a planner that is thrown away when the driver dies."""

    def __init__(self, feed: ModelFeed, **options: str) -> None:
        self.feed = feed
        self.given = {"tidemark.url": "tidemark://h/", "subscribe": feed.stream, **options}
        self.log: list[str] = []
        """The ends of batches that were planned, as Spark writes them down."""
        self.done = 0
        """How many of them are complete."""
        self.restart()

    def restart(self) -> None:
        self.options = read_options(self.given, "stream")
        self.naps: list[float] = []
        self.clock = 100.0
        self.planner = MicroBatches(self.feed, self.options, now=lambda: self.clock, sleep=self.naps.append)

    def offset(self, number: int) -> Offset:
        """The end of a batch; of number -1 where the query begins."""
        if number < 0:
            return Offset.from_json(json.dumps(self.planner.initial().to_json()))
        return Offset.from_json(self.log[number])

    def plan(self) -> bool:
        """Fix the end of the next batch. False: there is nothing new."""
        assert len(self.log) == self.done
        start = self.offset(self.done - 1)
        end = self.planner.latest(start, self.options.rows_max, self.options.bytes_max)
        if json.dumps(end.to_json()) == json.dumps(start.to_json()):
            return False
        self.log.append(json.dumps(end.to_json()))
        return True

    def rows(self, number: int) -> list[Row]:
        """What the tasks of a planned batch read."""
        tasks = self.planner.tasks(self.offset(number - 1), self.offset(number), COLUMNS)
        rows = [row for task in tasks for part in task.slices for row in self.feed.read(task.pin, part)]
        return sorted(rows)

    def batch(self) -> list[Row]:
        """A whole batch: planned, read, completed. Nothing when there is nothing new."""
        if not self.plan():
            return []
        rows = self.rows(self.done)
        self.done += 1
        return rows


def keys(rows: list[Row]) -> list[str]:
    return [row.key for row in rows]


def test_a_batch_is_one_whole_snapshot_and_the_next_one_is_what_changed_since() -> None:
    """M1"""
    feed = ModelFeed()
    feed.put("a", "1")
    feed.put("b", "1")
    query = Query(feed)

    first = query.batch()
    feed.put("a", "2")
    feed.delete("b")
    second = query.batch()

    assert keys(first) == ["a", "b"]
    assert [(row.key, row.deleted) for row in second] == [("a", False), ("b", True)]
    assert query.batch() == []


def test_a_batch_that_is_read_again_has_the_same_rows_while_its_keys_are_rewritten() -> None:
    """M1: also by another driver."""
    feed = ModelFeed()
    for number in range(20):
        feed.put(f"k{number}", "old")
    query = Query(feed)
    query.plan()
    before = query.rows(0)

    for number in range(20):
        feed.put(f"k{number}", "new")
    query.restart()

    assert query.rows(0) == before


def test_a_completed_batch_releases_its_pin_and_moves_the_mark() -> None:
    """M1"""
    feed = ModelFeed()
    last = feed.put("a", "1")
    query = Query(feed, groupId="g")

    query.batch()
    assert len(feed.held) == 1
    assert not query.plan()

    assert feed.held == {}
    assert feed.marks["g"] == ("h1", last, None)
    assert feed.registered == {"g"}


def test_pins_of_a_driver_that_was_killed_are_released_by_the_next() -> None:
    feed = ModelFeed()
    feed.put("a", "1")
    query = Query(feed, groupId="g")
    query.batch()
    feed.put("a", "2")
    query.plan()
    query.log.pop()  # the driver died before it wrote the end of this batch down
    query.restart()

    [leaked] = feed.held
    assert keys(query.batch()) == ["a"]

    assert leaked not in feed.held


def test_pins_of_others_are_left_alone() -> None:
    """Groups have dots: `spark.g.` begins the names of the pins of group `g.sink` too."""
    feed = ModelFeed()
    feed.put("a", "1")
    others = {
        "nightly",
        "spark.g2.x",
        "spark.g.left-by-hand",
        f"spark-read.{'0' * 32}",
        f"spark.g.{'0' * 16}.{'1' * 16}",
        f"spark.g.sink.{'0' * 16}.{'1' * 16}",
        f"spark.g.{'0' * 16}.{'1' * 16}.{'2' * 16}",
    }
    for name in others:
        feed.pin(name, 60)
    query = Query(feed, groupId="g")
    query.batch()
    query.plan()

    assert set(feed.held) == others


def test_a_group_that_is_called_as_batch_reads_are_has_none_of_their_pins() -> None:
    feed = ModelFeed()
    feed.put("a", "1")
    sink = Query(feed, groupId="orders.warehouse")
    sink.plan()
    reads = f"spark-read.{'0' * 32}"
    feed.pin(reads, 600)
    before = set(feed.held)
    for group in ("orders", "batch", "spark-read", "read"):
        other = Query(feed, groupId=group)
        other.batch()
        other.plan()

    assert set(feed.held) == before
    assert keys(sink.rows(0)) == ["a"]


def test_two_queries_with_one_group_leave_each_other_their_pins(caplog: pytest.LogCaptureFixture) -> None:
    """One DataFrame with a groupId and two sinks: both go on, also after restarts, and the user is told."""
    feed = ModelFeed()
    feed.put("a", "1")
    one, two = Query(feed, groupId="g"), Query(feed, groupId="g")
    one.plan()
    assert keys(two.batch()) == ["a"]
    assert "give each its own groupId" in caplog.text

    assert keys(one.rows(0)) == ["a"]
    one.restart()
    assert keys(one.rows(0)) == ["a"]
    one.done = 1
    feed.put("b", "1")
    two.plan()
    assert keys(one.batch()) == ["b"]
    two.restart()
    assert keys(two.rows(1)) == ["b"]


def test_the_slower_of_two_queries_with_one_group_is_told_when_deletes_were_let_go() -> None:
    feed = ModelFeed()
    feed.put("a", "1")
    one, two = Query(feed, groupId="g"), Query(feed, groupId="g")
    one.batch()
    two.batch()
    feed.delete("a")
    two.batch()
    two.plan()
    feed.rows.pop("a")  # all who are registered have passed it
    feed.purged = feed.marks["g"][1]
    feed.put("b", "1")

    assert "shares its groupId with no other" in failing(one)


def test_a_limited_query_goes_through_one_pin_in_several_batches_and_only_the_last_is_a_boundary() -> None:
    """M1, K-36: what changes meanwhile comes after the boundary."""
    feed = ModelFeed()
    for number in range(5):
        feed.put(f"k{number}", "old")
    query = Query(feed, maxOffsetsPerTrigger="2")

    sizes, boundaries = [], []
    for _ in range(3):
        sizes.append(len(query.batch()))
        boundaries.append(query.offset(query.done - 1).is_boundary)
        feed.put("k0", f"changed {len(sizes)}")

    assert sizes == [2, 2, 1]
    assert boundaries == [False, False, True]
    assert len({query.offset(number).pin for number in range(3)}) == 1
    assert [row.value for row in query.batch()] == ["changed 3"]


def test_a_limit_of_bytes_ends_a_batch_too_but_one_row_always_comes() -> None:
    feed = ModelFeed()
    feed.put("a", "x" * 100)
    feed.put("b", "x" * 5)
    feed.put("c", "x" * 5)
    query = Query(feed, maxBytesPerTrigger="10")

    assert [keys(query.batch()) for _ in range(3)] == [["a"], ["b", "c"], []]


def test_an_unfinished_pin_that_is_gone_is_replaced_and_nothing_is_missed() -> None:
    feed = ModelFeed()
    for number in range(4):
        feed.put(f"k{number}", "old")
    query = Query(feed, maxOffsetsPerTrigger="2")
    held = {row.key: row.value for row in query.batch()}
    feed.expire(query.offset(0).pin.name)  # type: ignore[union-attr]
    feed.put("k3", "new")
    query.restart()

    while rows := query.batch():
        held |= {row.key: row.value for row in rows}
    assert held == feed.state()


@pytest.mark.parametrize("loses", ["true", "false"])
def test_a_live_query_whose_unfinished_pin_is_gone_goes_on_in_a_new_one(loses: str) -> None:
    """A driver that slept for longer than its lease, or somebody who released the pin: no raw error, no standstill."""
    feed = ModelFeed()
    for number in range(4):
        feed.put(f"k{number}", "old")
    query = Query(feed, maxOffsetsPerTrigger="2", failOnDataLoss=loses)
    held = {row.key: row.value for row in query.batch()}
    feed.expire(query.offset(0).pin.name)  # type: ignore[union-attr]
    feed.put("k3", "new")

    for _ in range(3):
        held |= {row.key: row.value for row in query.batch()}
    assert held == feed.state()


def test_a_renewal_that_finds_a_pin_gone_lets_go_of_it() -> None:
    feed = ModelFeed()
    for number in range(4):
        feed.put(f"k{number}", "old")
    query = Query(feed, maxOffsetsPerTrigger="2", failOnDataLoss="false")
    query.plan()
    feed.held.clear()
    query.planner.renew()
    feed.put("k1", "new")

    assert keys(query.rows(0)) == ["k0"]


def test_leases_are_renewed_well_before_they_end_the_registration_too() -> None:
    feed = ModelFeed()
    query = Query(feed, pinLease="60s")
    query.plan()
    assert query.planner.renew_every_s == 15
    feed.tombstone_lease_s = 1.0
    query.restart()
    query.plan()
    assert query.planner.renew_every_s == 0.25


# Where it begins -----------------------------------------------------------------------------------


def test_latest_is_the_same_place_after_a_restart_of_the_first_batch() -> None:
    """The checkpoint has no start of the first batch: its end says where it began."""
    feed = ModelFeed()
    feed.put("old", "1")
    query = Query(feed, startingOffsets="latest")
    assert not query.plan()
    feed.put("new", "1")
    query.plan()
    assert keys(query.rows(0)) == ["new"]

    feed.put("newer", "1")
    query.restart()

    assert keys(query.rows(0)) == ["new"]


def test_a_first_batch_without_rows_keeps_the_place_where_the_query_began() -> None:
    """Spark writes the initial offset down as the end of a first, empty batch; "latest" is later when it runs again."""
    feed = ModelFeed()
    feed.put("old", "1")
    query = Query(feed, startingOffsets="latest")
    start = query.offset(-1)
    assert query.planner.latest(start) == start
    query.log.append(json.dumps(start.to_json()))
    assert query.rows(0) == []

    feed.put("new", "1")
    query.restart()
    assert query.rows(0) == []
    query.done = 1
    assert keys(query.batch()) == ["new"]
    query.restart()
    assert keys(query.rows(1)) == ["new"]


@pytest.mark.parametrize("rows_before", [0, 1])
def test_a_query_that_was_stopped_before_its_first_batch_begins_where_it_began(rows_before: int) -> None:
    """With a groupId the place is kept on the broker until the checkpoint has it."""
    feed = ModelFeed()
    for number in range(rows_before):
        feed.put(f"old {number}", "1")
    query = Query(feed, startingOffsets="latest", groupId="g")
    assert not query.plan()
    feed.put("while it was down", "1")
    query.restart()
    assert keys(query.batch()) == ["while it was down"]
    assert not query.plan()

    again = Query(feed, startingOffsets="latest", groupId="g")  # with a new checkpoint
    assert not again.plan()
    assert again.offset(-1).sequence == feed.sequence


@pytest.mark.parametrize(
    ("options", "expected"),
    [
        ({}, ["a", "b", "c"]),
        ({"startingOffsets": "earliest"}, ["a", "b", "c"]),
        ({"startingOffsets": "latest"}, []),
        ({"startingOffsets": '{"0": 3}'}, ["b", "c"]),
        ({"startingOffsets": '{"0": ["h1", 6]}'}, ["c"]),
        ({"startingOffsets": '{"orders": {"0": -2}}'}, ["a", "b", "c"]),
        ({"startingOffsets": '{"0": -1}'}, []),
        ({"startingTimestamp": "6"}, ["c"]),
        ({"startingOffsets": "group", "groupId": "g"}, ["c"]),
        ({"startingOffsets": "group", "groupId": "new"}, ["a", "b", "c"]),
    ],
)
def test_a_query_begins_where_it_is_told_to(options: dict[str, str], expected: list[str]) -> None:
    feed = ModelFeed()
    for key in "abc":
        feed.put(key, "1")
    feed.move_mark("g", "h1", 6, None)

    assert keys(Query(feed, **options).batch()) == expected


def test_a_shard_that_the_stream_does_not_have_is_no_place_to_begin() -> None:
    with pytest.raises(OptionError, match="names the shards 0, 7, but stream 'orders' has 0 to 1"):
        Query(ModelFeed(shards=2), startingOffsets='{"0": 1, "7": 1}').plan()


def test_a_place_of_fewer_shards_is_good_after_the_stream_has_grown() -> None:
    feed = ModelFeed(shards=4)
    feed.put("a", "1")
    feed.put("b", "1")

    assert keys(Query(feed, startingOffsets='{"0": 3, "1": 3}').batch()) == ["b"]


def test_a_stream_that_grows_online_is_read_once() -> None:
    """K: shards may grow while a query runs."""
    feed = ModelFeed(shards=2)
    query = Query(feed, minPartitions="3", maxOffsetsPerTrigger="3")
    held: dict[str, str] = {}
    seen = 0
    for step in range(6):
        for number in range(5):
            feed.put(f"k{step}-{number}", "1")
        feed.shards = 2 + step
        rows = query.batch()
        seen += len(rows)
        held |= {row.key: row.value for row in rows}
    while rows := query.batch():
        seen += len(rows)
        held |= {row.key: row.value for row in rows}

    assert held == feed.state()
    assert seen == len(held)


# The end -------------------------------------------------------------------------------------------


def test_available_now_ends_with_what_was_there_in_as_many_batches_as_it_takes() -> None:
    feed = ModelFeed()
    for number in range(5):
        feed.put(f"k{number}", "1")
    query = Query(feed, maxOffsetsPerTrigger="2")
    query.planner.end_with_what_is_there()

    sizes = []
    while rows := query.batch():
        sizes.append(len(rows))
        feed.put(f"later-{len(sizes)}", "1")

    assert sizes == [2, 2, 1]
    assert feed.held == {}


def test_available_now_with_nothing_there_takes_nothing_that_comes_later() -> None:
    """A join with a source that has rows goes on for a while."""
    feed = ModelFeed()
    query = Query(feed)
    query.planner.end_with_what_is_there()
    assert not query.plan()
    feed.put("later", "1")

    assert not query.plan()


def test_a_query_that_waits_for_rows_begins_when_there_are_enough_or_it_waited_long_enough() -> None:
    feed = ModelFeed()
    query = Query(feed, minOffsetsPerTrigger="3", maxTriggerDelay="60s")
    feed.put("a", "1")
    feed.put("b", "1")
    assert not query.plan()
    feed.put("c", "1")
    assert keys(query.batch()) == ["a", "b", "c"]

    feed.put("d", "1")
    assert not query.plan()
    query.clock += 61
    assert keys(query.batch()) == ["d"]


def test_an_idle_query_asks_for_the_head_and_for_nothing_else() -> None:
    feed = ModelFeed()
    feed.put("a", "1")
    query = Query(feed)
    query.batch()
    query.plan()
    feed.asked.clear()

    for _ in range(5):
        assert not query.plan()
    assert feed.asked == ["head"] * 5


def test_a_small_batch_costs_two_round_trips() -> None:
    feed = ModelFeed(shards=8)
    query = Query(feed)
    feed.put("a", "1")
    query.batch()
    feed.put("b", "1")
    feed.asked.clear()

    query.batch()
    assert feed.asked == ["head", "turn", "pin"]  # the pin is part of the turn


# What is lost --------------------------------------------------------------------------------------


def failing(query: Query, number: int | None = None) -> str:
    with pytest.raises(DataLost) as caught:
        query.plan() if number is None else query.rows(number)
    return str(caught.value)


def test_a_pin_that_is_gone_stops_the_query_with_what_to_do() -> None:
    feed = ModelFeed()
    feed.put("a", "1")
    query = Query(feed)
    query.plan()
    feed.held.clear()
    query.restart()

    sentence = failing(query, 0)
    assert (
        "is gone" in sentence and "new checkpointLocation" in sentence and "failOnDataLoss=false" in sentence
    )


def test_without_fail_on_data_loss_a_lost_batch_holds_what_is_left_and_the_rest_follows() -> None:
    feed = ModelFeed()
    for key in "abc":
        feed.put(key, "old")
    query = Query(feed, failOnDataLoss="false")
    query.plan()
    feed.held.clear()
    feed.put("b", "new")
    query.restart()

    assert keys(query.rows(0)) == ["a", "c"]
    query.done = 1
    assert [(row.key, row.value) for row in query.batch()] == [("b", "new")]


def test_a_stream_that_was_deleted_and_created_again_is_noticed() -> None:
    feed = ModelFeed()
    feed.put("a", "1")
    query = Query(feed)
    query.batch()
    feed.recreate()
    feed.put("b", "1")

    assert "deleted and created again" in failing(query)
    query.restart()
    assert "deleted and created again" in failing(query)


def test_without_fail_on_data_loss_a_stream_that_was_created_again_is_read_on() -> None:
    feed = ModelFeed()
    feed.put("a", "1")
    query = Query(feed, failOnDataLoss="false")
    query.batch()
    feed.recreate()
    feed.put("b", "1")

    assert keys(query.batch()) == ["b"]
    feed.put("c", "1")
    assert keys(query.batch()) == ["c"]


def test_a_stream_that_was_deleted_stops_the_query_or_is_waited_for() -> None:
    feed = ModelFeed()
    feed.put("a", "1")
    strict, patient = Query(feed), Query(feed, failOnDataLoss="false")
    strict.batch()
    patient.batch()
    feed.exists = False

    assert "was deleted" in failing(strict)
    assert not patient.plan()
    assert patient.naps
    feed.exists = True
    feed.recreate()
    feed.put("b", "1")
    assert keys(patient.batch()) == ["b"]


def test_a_stream_that_never_was_is_an_error_whatever_the_options() -> None:
    feed = ModelFeed()
    feed.exists = False
    with pytest.raises(StreamMissing, match="there is no stream 'orders'"):
        Query(feed, failOnDataLoss="false").plan()


def test_a_start_that_was_taken_back_stops_the_query() -> None:
    """M6: a lost branch is told, never read over."""
    feed = ModelFeed()
    feed.put("a", "1")
    feed.put("b", "1")
    query = Query(feed)
    query.batch()
    feed.history, feed.lost_from, feed.sequence = "h2", 3, 3
    feed.rows.pop("b")
    feed.held.clear()
    feed.put("c", "1")
    query.restart()

    assert "was taken back by a failure" in failing(query)


def test_without_fail_on_data_loss_a_query_goes_on_from_where_its_branch_was_lost() -> None:
    feed = ModelFeed()
    feed.put("a", "1")
    feed.put("b", "1")
    query = Query(feed, failOnDataLoss="false")
    query.batch()
    feed.history, feed.lost_from, feed.sequence = "h2", 3, 3
    feed.rows.pop("b")
    feed.held.clear()
    feed.put("c", "1")
    feed.put("d", "1")
    query.restart()

    assert keys(query.batch()) == ["c", "d"]
    query.restart()
    assert keys(query.rows(1)) == ["c", "d"]


def test_a_query_that_was_away_while_deletes_were_forgotten_is_told() -> None:
    feed = ModelFeed()
    feed.put("a", "1")
    query = Query(feed)
    query.batch()
    feed.purged = feed.put("b", "1")
    query.restart()

    assert "deletes up to sequence 6 are no longer kept" in failing(query)


@pytest.mark.parametrize("restarts", [False, True])
def test_rows_that_ended_before_the_query_had_read_them_are_told(restarts: bool) -> None:
    """Retention and truncate: K-like offsets out of range, with the numbers and what to do."""
    feed = ModelFeed()
    feed.put("a", "1")
    query = Query(feed, groupId="g")
    query.batch()
    query.plan()
    lost = feed.put("b", "1")
    feed.truncate(lost)
    feed.put("c", "1")
    if restarts:
        query.restart()

    sentence = failing(query)
    assert f"rows up to sequence {lost} have ended" in sentence and "only those up to 3" in sentence
    assert "x-max-age" in sentence
    assert feed.held == {}

    query.given["failOnDataLoss"] = "false"
    query.restart()
    assert keys(query.batch()) == ["c"]


def test_rows_that_ended_are_warned_of_once_when_loss_is_allowed(caplog: pytest.LogCaptureFixture) -> None:
    feed = ModelFeed()
    feed.put("a", "1")
    query = Query(feed, failOnDataLoss="false", maxOffsetsPerTrigger="1")
    query.batch()
    feed.truncate(feed.put("b", "1"))
    feed.put("c", "1")
    feed.put("d", "1")
    query.restart()

    assert [keys(query.batch()) for _ in range(3)] == [["c"], ["d"], []]
    assert caplog.text.count("have ended") == 1


def test_rows_that_ended_and_were_read_are_no_loss() -> None:
    feed = ModelFeed()
    feed.truncate(feed.put("before the query", "1"))
    feed.put("a", "1")
    query = Query(feed)  # earliest: it begins with what is there
    assert keys(query.batch()) == ["a"]
    feed.truncate(feed.sequence)
    feed.put("b", "1")
    assert keys(query.batch()) == ["b"]
    query.restart()
    feed.put("c", "1")
    assert keys(query.batch()) == ["c"]


def test_a_query_that_begins_at_a_moment_begins_with_what_is_left_of_it() -> None:
    feed = ModelFeed()
    for key in "abc":
        feed.put(key, "1")
    feed.truncate(6)

    assert keys(Query(feed, startingTimestamp="2").batch()) == ["c"]


def test_what_ends_while_the_query_is_within_a_snapshot_is_still_shown_by_its_pin() -> None:
    feed = ModelFeed()
    for number in range(4):
        feed.put(f"k{number}", "1")
    query = Query(feed, maxOffsetsPerTrigger="2")
    query.batch()
    feed.truncate(feed.sequence)
    feed.purged = feed.sequence
    query.restart()

    assert keys(query.batch()) == ["k2", "k3"]
    feed.put("new", "1")
    assert keys(query.batch()) == ["new"]


def test_a_running_query_is_told_when_deletes_were_forgotten() -> None:
    """A purge, or a registration that ended: the sink would keep ghosts for ever."""
    feed = ModelFeed()
    feed.put("a", "1")
    query = Query(feed)
    query.batch()
    query.plan()
    feed.purge()
    feed.put("c", "1")

    assert "deletes up to sequence 4 are no longer kept" in failing(query)
    assert feed.held == {}


def test_a_purge_of_events_that_were_all_read_is_no_loss() -> None:
    feed = ModelFeed()
    feed.has_deletes = False
    feed.put("a", "1")
    query = Query(feed)
    query.batch()
    feed.purge()
    feed.put("b", "1")

    assert keys(query.batch()) == ["b"]


@pytest.mark.parametrize("loses", ["true", "false"])
def test_an_idle_query_notices_that_the_broker_came_back_in_an_older_state(loses: str) -> None:
    feed = ModelFeed()
    feed.put("a", "1")
    feed.put("b", "1")
    query = Query(feed, failOnDataLoss=loses)
    query.batch()
    assert not query.plan()
    feed.restore(3)
    feed.put("c", "1")  # has the number that b had

    if loses == "true":
        assert "was taken back by a failure" in failing(query)
    else:
        assert keys(query.batch()) == ["c"]
        assert query.batch() == []


def test_an_idle_query_notices_that_the_stream_is_another_one() -> None:
    feed = ModelFeed()
    feed.put("a", "1")
    query = Query(feed)
    query.batch()
    assert not query.plan()
    feed.recreate()

    assert "deleted and created again" in failing(query)


def test_a_restart_of_the_broker_is_no_loss() -> None:
    """M6: failOnDataLoss never alarms falsely."""
    feed = ModelFeed()
    feed.put("a", "1")
    query = Query(feed)
    query.batch()
    feed.history = "h2"
    feed.put("b", "1")
    query.restart()

    assert keys(query.batch()) == ["b"]


def test_a_checkpoint_of_another_stream_is_refused() -> None:
    feed, other = ModelFeed(), ModelFeed("bills")
    feed.put("a", "1")
    query = Query(feed)
    query.batch()
    stranger = Query(other)

    with pytest.raises(OffsetForeign, match="of stream 'orders', not 'bills'"):
        stranger.planner.latest(query.offset(0))


# Whose it is ---------------------------------------------------------------------------------------


def test_a_query_without_a_group_makes_up_one_and_keeps_it_in_its_checkpoint() -> None:
    feed = ModelFeed()
    feed.put("a", "1")
    query = Query(feed)
    query.batch()
    made_up = query.offset(0).group
    query.restart()
    feed.put("b", "1")
    query.batch()

    assert query.offset(1).group == made_up
    assert feed.registered == {made_up}


def test_a_join_with_a_busy_source_is_not_held_up_by_an_idle_one() -> None:
    feed = ModelFeed()
    waits: list[float] = []
    head = feed.head

    def recording(after: int | None = None, wait_s: float = 0.0) -> Any:
        waits.append(wait_s)
        return head(after, wait_s)

    feed.head = recording  # type: ignore[method-assign]
    query = Query(feed)
    query.plan()
    query.clock += 0.012  # Spark polls
    query.plan()
    query.clock += 0.3  # Spark ran a batch of the other source
    query.plan()

    assert waits[-2:] == [1.0, 0.02]


# Whatever happens ------------------------------------------------------------------------------------

STEPS = st.lists(
    st.one_of(
        st.tuples(st.just("put"), st.sampled_from("abcdef")),
        st.tuples(st.just("delete"), st.sampled_from("abcdef")),
        st.tuples(st.sampled_from(["plan", "read", "finish", "kill", "grow", "broker"]), st.just("")),
    ),
    max_size=60,
)


@settings(max_examples=300, deadline=None)
@given(STEPS, st.sampled_from([None, 1, 2, 3]), st.sampled_from(["earliest", "latest"]))
def test_whatever_happens_a_batch_has_one_content_and_the_sink_is_the_stream_at_each_boundary(
    steps: list[tuple[str, str]], rows_max: int | None, begin: str
) -> None:
    """M1, K-36: kills at any moment, keys rewritten meanwhile, shards growing, brokers restarting."""
    feed = ModelFeed()
    feed.put("a", "0")
    limits = {} if rows_max is None else {"maxOffsetsPerTrigger": str(rows_max)}
    query = Query(feed, groupId="g", startingOffsets=begin, **limits)
    contents: dict[int, list[Row]] = {}
    sink: dict[str, str] = {}
    at = -1
    """The last batch that the sink has."""
    states = {feed.sequence: feed.state()}

    def read() -> None:
        nonlocal at
        rows = query.rows(query.done)
        assert contents.setdefault(query.done, rows) == rows
        if at < query.done:
            at = query.done
            for row in rows:
                sink.pop(row.key, None)
                if not row.deleted:
                    sink[row.key] = row.value
            end = query.offset(at)
            if end.is_boundary and begin == "earliest":
                assert sink == states[end.sequence]

    for number, (step, key) in enumerate(steps):
        match step:
            case "put":
                feed.put(key, str(number))
            case "delete":
                feed.delete(key)
            case "plan" if len(query.log) == query.done:
                query.plan()
            case "read" if len(query.log) > query.done:
                read()
            case "finish" if len(query.log) > query.done:
                read()
                query.done += 1
            case "kill":
                query.restart()
            case "grow":
                feed.shards += 1
            case "broker":
                feed.history += "'"
        states[feed.sequence] = feed.state()

    if len(query.log) > query.done:
        read()
        query.done += 1
    while query.plan():
        read()
        query.done += 1
    if begin == "earliest":
        assert sink == feed.state()
    else:
        newer = {row.key: row.value for row in feed.rows.values() if not row.deleted}
        first = begin_of(query.offset(-1), query.offset(0))[0][1] if query.log else feed.sequence
        assert {key: sink.get(key) for key in sink} == {
            key: value for key, value in newer.items() if feed.rows[key].sequence > first
        }
    assert feed.held == {}
