"""Streaming reads through Spark against a real broker: replays, pins, limits, losses (M1, M6, K-36 to K-38)."""

from __future__ import annotations

import threading
import time
from pathlib import Path
from typing import TYPE_CHECKING

import pytest
from pyspark.errors import StreamingQueryException
from spark.connector.reading import Sink, ends, run, start, stream_of

from tidemark_spark.offsets import Offset

if TYPE_CHECKING:
    from conftest import SparkBroker
    from pyspark.sql import SparkSession

    from tidemark.client import Client, Stream


def state_of(stream: Stream) -> dict[bytes, bytes]:
    return {row.key: row.value for row in stream.snapshot().rows() if row.key is not None and not row.deleted}


def rewrite(stream: Stream, keys: int, text: str) -> None:
    stream.put_many([(f"k{number}", text) for number in range(keys)])


def until(true: object, seconds: float = 30) -> None:
    """Wait until a function says so."""
    end = time.monotonic() + seconds
    while not true():  # type: ignore[operator]
        assert time.monotonic() < end, "it did not happen in time"
        time.sleep(0.02)


def test_a_batch_that_runs_again_after_a_crash_has_the_same_rows_while_all_keys_are_rewritten(
    spark: SparkSession, broker: SparkBroker, db: Client, name: str, checkpoint: Path
) -> None:
    """M1: every batch id has one content hash; the pin goes when the batch is complete, and the mark moves."""
    stream = db.stream(name, create=True, shards=2)
    rewrite(stream, 500, "first")
    frame = stream_of(spark, broker, name, groupId="loader", minPartitions=3)
    sink = Sink()
    sink.fail_in = 0
    with pytest.raises(StreamingQueryException, match="as the test wants it"):
        run(frame, checkpoint, sink)
    [held] = stream.pins()

    for attempt in range(2):
        rewrite(stream, 400, f"again {attempt}")
        stream.delete("k450")
        with pytest.raises(StreamingQueryException, match="as the test wants it"):
            run(frame, checkpoint, sink)
    assert stream.pins() == [
        held._replace(lease_until_ms=stream.pins()[0].lease_until_ms, bytes_kept=stream.pins()[0].bytes_kept)
    ]
    sink.fail_in = None
    run(frame, checkpoint, sink)

    assert len(sink.hashes[0]) == 1 and sink.sizes[0] == 500
    assert sink.state == state_of(stream)
    assert stream.pins() == []
    mark = stream.mark("loader")
    assert mark is not None and mark.sequence == stream.info().last_sequence


def test_a_limited_query_goes_through_one_pin_in_several_batches_and_ends_with_what_was_there(
    spark: SparkSession, broker: SparkBroker, db: Client, name: str, checkpoint: Path
) -> None:
    """M1: maxOffsetsPerTrigger, Trigger.AvailableNow: sub-batches of one snapshot, the last one is the boundary."""
    stream = db.stream(name, create=True)
    rewrite(stream, 10, "old")
    before = state_of(stream)
    sink = Sink()
    sink.after = lambda batch: rewrite(stream, 3, f"during {batch}")
    frame = stream_of(spark, broker, name, maxOffsetsPerTrigger=4)

    run(frame, checkpoint, sink)

    assert sink.sizes == {0: 4, 1: 4, 2: 2}
    assert sink.state == before
    offsets = ends(checkpoint)
    assert len({offset.pin for offset in offsets}) == 1
    assert [offset.is_boundary for offset in offsets] == [False, False, True]
    assert stream.pins() == []

    sink.after = lambda _batch: None
    run(frame, checkpoint, sink)
    assert sink.state == state_of(stream) != before


def test_pins_that_a_killed_driver_left_are_released_when_the_query_starts_again(
    spark: SparkSession, broker: SparkBroker, db: Client, name: str, checkpoint: Path
) -> None:
    """Those of this query: another query with the same group keeps its own."""
    stream = db.stream(name, create=True)
    rewrite(stream, 5, "1")
    frame = stream_of(spark, broker, name, groupId="loader")
    run(frame, checkpoint, Sink())
    others = {"nightly", f"spark.loader.{'0' * 16}.{'1' * 16}", f"spark.loader.sink.{'0' * 16}.{'1' * 16}"}
    for pin in (*others, f"spark.loader.{ends(checkpoint)[-1].query}.{'1' * 16}"):
        stream.pin(pin, lease=3600)

    run(frame, checkpoint, Sink())

    assert {pin.name for pin in stream.pins()} == others


def test_a_batch_whose_pin_is_gone_fails_with_what_to_do_or_goes_on_when_told_so(
    spark: SparkSession, broker: SparkBroker, db: Client, name: str, checkpoint: Path
) -> None:
    """M1: never other rows under the same batch id without being told; failOnDataLoss both ways."""
    stream = db.stream(name, create=True)
    rewrite(stream, 20, "old")
    sink = Sink()
    sink.fail_in = 0
    frame = stream_of(spark, broker, name, groupId="loader")
    with pytest.raises(StreamingQueryException, match="as the test wants it"):
        run(frame, checkpoint, sink)
    [pin] = stream.pins()
    stream.pinned(pin.name).release()
    rewrite(stream, 5, "new")
    sink.fail_in = None

    with pytest.raises(StreamingQueryException) as caught:
        run(frame, checkpoint, sink)
    sentence = str(caught.value)
    assert f"the pinned snapshot '{pin.name}' of this batch is gone" in sentence
    assert "Start the query with a new checkpointLocation" in sentence
    assert sink.states == []

    run(stream_of(spark, broker, name, groupId="loader", failOnDataLoss="false"), checkpoint, sink)
    assert sink.state == state_of(stream)


def test_a_stream_that_was_deleted_and_created_again_stops_the_query_unless_it_is_told_to_go_on(
    spark: SparkSession, broker: SparkBroker, db: Client, name: str, checkpoint: Path
) -> None:
    """M6"""
    db.stream(name, create=True).put("a", "1")
    sink = Sink()
    frame = stream_of(spark, broker, name)
    run(frame, checkpoint, sink)
    db.delete_stream(name)

    with pytest.raises(StreamingQueryException, match="it was deleted"):
        run(frame, checkpoint, sink)
    db.stream(name, create=True).put("b", "2")
    with pytest.raises(StreamingQueryException, match="deleted and created again since this query read it"):
        run(frame, checkpoint, sink)
    run(stream_of(spark, broker, name, failOnDataLoss="false"), checkpoint, sink)

    assert sink.state == {b"a": b"1", b"b": b"2"}


def test_a_query_goes_on_through_a_crash_of_the_broker(
    spark: SparkSession, broker: SparkBroker, db: Client, name: str, checkpoint: Path
) -> None:
    """M6: a restarted broker is no loss: nothing is missed, nothing alarms falsely, offsets never go back."""
    stream = db.stream(name, create=True)
    sink = Sink()
    query = start(stream_of(spark, broker, name), checkpoint, sink, processingTime="0 seconds")
    try:
        for step in range(2):
            rewrite(stream, 50, f"before {step}")
            until(lambda: sink.state == state_of(stream))
            broker.kill()
            broker.start()
            rewrite(stream, 60, f"after {step}")
            until(lambda: sink.state == state_of(stream))
        assert query.isActive
    finally:
        query.stop()

    sequences = [offset.sequence for offset in ends(checkpoint)]
    assert sequences == sorted(sequences)


def test_a_stream_grows_while_it_is_read_and_every_key_comes_once(
    spark: SparkSession, broker: SparkBroker, db: Client, name: str, checkpoint: Path
) -> None:
    """Shards grow online: K-11 keys move with their slots, nothing is skipped or doubled."""
    stream = db.stream(name, create=True, shards=2)
    rewrite(stream, 60, "1")
    sink = Sink()
    sink.after = lambda batch: stream.grow(3 + batch)
    frame = stream_of(spark, broker, name, maxOffsetsPerTrigger=25, minPartitions=2)
    run(frame, checkpoint, sink)
    stream.put_many([(f"n{number}", "2") for number in range(40)])
    run(frame, checkpoint, sink)

    assert sink.state == state_of(stream)
    assert sum(sink.sizes.values()) == 100
    assert len(ends(checkpoint)[-1].shards) > len(ends(checkpoint)[0].shards)


def test_a_query_begins_with_latest_and_misses_nothing_from_then_on(
    spark: SparkSession, broker: SparkBroker, db: Client, name: str, checkpoint: Path
) -> None:
    """startingOffsets=latest: the place is kept, though the first batch fails and runs again when "latest" is later."""
    stream = db.stream(name, create=True)
    stream.put("old", "1")
    sink = Sink()
    frame = stream_of(spark, broker, name, startingOffsets="latest", groupId="loader")
    query = start(frame, checkpoint, sink, processingTime="0 seconds")
    until(
        lambda: stream.mark("loader") is not None
    )  # now it knows where it begins; it may run an empty batch for that

    def fail(batch: int) -> None:
        if sink.sizes[batch]:
            raise RuntimeError("the sink fails here, as the test wants it")

    sink.after = fail
    stream.put("new", "1")
    with pytest.raises(StreamingQueryException, match="as the test wants it"):
        query.awaitTermination(60)
    stream.put("newer", "1")
    sink.after = lambda _batch: None
    run(frame, checkpoint, sink)

    assert sink.state == {b"new": b"1", b"newer": b"1"}
    assert all(len(hashes) == 1 for hashes in sink.hashes.values())
    assert sum(sink.sizes.values()) == 2


def test_progress_shows_how_far_the_query_and_the_stream_are(
    spark: SparkSession, broker: SparkBroker, db: Client, name: str, checkpoint: Path
) -> None:
    stream = db.stream(name, create=True)
    rewrite(stream, 4, "1")
    sink = Sink()
    query = start(stream_of(spark, broker, name, maxOffsetsPerTrigger=3), checkpoint, sink)
    query.awaitTermination(60)

    first = query.recentProgress[0].sources[0]
    end, latest = Offset.from_json(first.endOffset), Offset.from_json(first.latestOffset)
    assert first.numInputRows == 3
    assert end.sequence < latest.sequence == stream.info().last_sequence


# Consistency: the table of docs/streams.md, seen through Spark ---------------------------------------


class Bank:
    """Transfers between two accounts, each one transaction: the sum is always 100. `step` counts them in a third key."""

    def __init__(self, db: Client, stream: Stream) -> None:
        self._db = db
        self._stream = stream
        self._stopped = threading.Event()
        self._thread = threading.Thread(target=self._work)
        self.steps = 0
        self._transfer()

    def __enter__(self) -> Bank:
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._stopped.set()
        self._thread.join()

    def _work(self) -> None:
        while not self._stopped.wait(0.003):
            self._transfer()

    def _transfer(self) -> None:
        self.steps += 1
        amount = self.steps * 7 % 100
        with self._db.transaction() as tx:
            tx.put(self._stream, "step", str(self.steps))
            tx.put(self._stream, "ann", str(amount))
            tx.put(self._stream, "bob", str(100 - amount))
        assert tx.receipt is not None
        assert self._db.await_safe(tx.receipt, replicas=1, disks=1) == "yes"


def test_whole_snapshots_show_states_in_which_every_effect_has_its_cause(
    spark: SparkSession, broker: SparkBroker, db: Client, name: str, checkpoint: Path
) -> None:
    """K-36, global causal: transactions, waited for; a micro-batch without limits is a whole snapshot."""
    stream = db.stream(name, create=True, shards=2)
    sink = Sink()
    with Bank(db, stream):
        query = start(stream_of(spark, broker, name), checkpoint, sink, processingTime="0 seconds")
        try:
            until(lambda: len(sink.states) >= 8)
        finally:
            query.stop()

    for state in sink.states:
        assert int(state[b"ann"]) + int(state[b"bob"]) == 100
        assert int(state[b"ann"]) == int(state[b"step"]) * 7 % 100


def test_single_messages_never_take_a_key_back_and_all_ends_the_same(
    spark: SparkSession, broker: SparkBroker, db: Client, name: str, checkpoint: Path
) -> None:
    """K-37, single-key causal, and K-38, eventual: batches of one row; on one node both wait for the same disk."""
    stream = db.stream(name, create=True, shards=2)
    sink = Sink()
    frame = stream_of(spark, broker, name, maxOffsetsPerTrigger=1)
    with Bank(db, stream):
        query = start(frame, checkpoint, sink, processingTime="0 seconds")
        try:
            until(lambda: len(sink.states) >= 12)
        finally:
            query.stop()
    run(frame, checkpoint, sink)

    for versions in sink.versions.values():
        assert versions == sorted(versions) and len(set(versions)) == len(versions)
    assert sink.state == state_of(stream)
