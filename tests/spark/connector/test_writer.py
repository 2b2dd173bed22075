"""The sink without Spark: what tasks stage and what the driver commits, against a real broker.

Here tasks and drivers are plain calls, so that each order of events can be forced: an attempt that nobody waits for, a
driver that wakes up late, an answer that is lost.
"""

from __future__ import annotations

import time
import uuid
from collections.abc import Callable, Iterator, Sequence
from typing import Any

import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from pyspark.sql.types import (
    ArrayType,
    BinaryType,
    BooleanType,
    DataType,
    IntegerType,
    LongType,
    MapType,
    StringType,
    StructType,
    TimestampType,
)
from spark.connector.lossy import LossyWire

import tidemark.client
from tidemark.client import Client
from tidemark.errors import StreamReset
from tidemark.model.partitions import partition_of
from tidemark_spark import writer
from tidemark_spark.errors import (
    BatchTooLarge,
    BrokerAway,
    ColumnsRefused,
    OptionError,
    RowsRefused,
    WriterFenced,
)
from tidemark_spark.writer import (
    BatchWriter,
    Shape,
    Staged,
    StreamWriter,
    batch_writer,
    stage,
    stage_apart,
    stream_writer,
)

TEXT, BYTES, BOOL, INT = StringType(), BinaryType(), BooleanType(), IntegerType()


def columns_of(**kinds: DataType) -> StructType:
    schema = StructType()
    for name, kind in kinds.items():
        schema.add(name, kind)
    return schema


KEY_VALUE = columns_of(key=TEXT, value=BYTES)
PAIRS = ArrayType(columns_of(key=TEXT, value=BYTES))
Rows = Sequence[tuple[str | None, bytes | None]]


def a_batch(rows: Rows) -> pa.RecordBatch:
    return pa.RecordBatch.from_arrays(
        [
            pa.array([key for key, _ in rows], pa.string()),
            pa.array([value for _, value in rows], pa.binary()),
        ],
        names=["key", "value"],
    )


def numbered(count: int, prefix: str = "k", size: int = 10) -> list[tuple[str, bytes]]:
    return [(f"{prefix}{at}", f"{at}".encode().ljust(size, b".")) for at in range(count)]


def held(db: Client, stream: str) -> dict[bytes | None, bytes]:
    return {row.key: row.value for row in db.stream(stream).snapshot() if not row.deleted}


class Query:
    """A streaming query: its tasks stage, its driver commits."""

    def __init__(self, url: str, stream: str, query: str | None = None, **options: str) -> None:
        self.id = query or str(uuid.uuid4())
        given = {"tidemark.url": url, "stream": stream, "retrytimeout": "20s", **options}
        self.writer = stream_writer(given, KEY_VALUE, False)
        self.staging = writer.staging_of(stream, "query", self.id, time.time())

    def task(self, *batches: Rows) -> Staged:
        """One attempt of one task."""
        at = self.writer
        return stage(at._options, at._shape, self.id, self.staging, map(a_batch, batches))

    def commit(self, batch: int, *messages: Staged | None) -> None:
        self.writer.commit(list(messages), batch)


@pytest.fixture
def query(db: Client, name: str, broker: Any) -> Query:
    db.stream(name, create=True)
    return Query(broker.url, name)


# All or nothing ------------------------------------------------------------------------------------


def test_rows_of_all_tasks_become_visible_in_one_step(db: Client, name: str, query: Query) -> None:
    """M2: tasks stage, commit publishes all or nothing."""
    messages = [query.task(numbered(50, f"p{part}-")) for part in range(3)]
    before = db.stream(name).info().last_sequence
    assert held(db, name) == {}

    query.commit(0, *messages)

    assert len(held(db, name)) == 150
    assert [row.key for row in db.stream(name).as_of(sequence=before)] == []
    first, *_, last = [row.sequence for row in db.stream(name).snapshot()]
    assert last - first == 149, "one batch of the journal"


def test_deletes_and_upserts_are_applied_by_key(db: Client, name: str, query: Query) -> None:
    """M2: a null value deletes; a later row of the same key replaces the earlier one."""
    query.commit(0, query.task([("a", b"1"), ("b", b"1"), ("c", b"1")]))
    query.commit(1, query.task([("a", b"2"), ("b", None), ("a", b"3")]))

    assert held(db, name) == {b"a": b"3", b"c": b"1"}
    assert db.stream(name).get("b") is None


def test_a_batch_that_was_aborted_leaves_nothing(db: Client, name: str, query: Query) -> None:
    """M2: one task failed, so the driver aborts with the messages of the others."""
    done = query.task(numbered(10))
    query.writer.abort([done, None], 0)
    assert held(db, name) == {}

    query.commit(0, query.task(numbered(10)), query.task(numbered(10, "other")))
    assert len(held(db, name)) == 20


# Once ----------------------------------------------------------------------------------------------


def test_a_batch_that_comes_again_changes_nothing(db: Client, name: str, query: Query) -> None:
    """M2: the driver died after the sink's commit and before Spark's: all tasks run again."""
    query.commit(0, query.task([("a", b"first")]))
    db.stream(name).put("a", b"changed since")

    again = Query(query.writer._options.url, name, query.id)
    again.commit(0, again.task([("a", b"first")]))
    again.commit(1, again.task([("b", b"next")]))

    assert held(db, name) == {b"a": b"changed since", b"b": b"next"}


def test_a_driver_that_was_replaced_is_stopped_and_writes_nothing(
    db: Client, name: str, query: Query
) -> None:
    """M2: a zombie writer is fenced. It planned batch 1, slept, and another driver has written batches 1 and 2."""
    query.commit(0, query.task([("a", b"0")]))
    asleep = query.task([("a", b"zombie")])
    other = Query(query.writer._options.url, name, query.id)
    other.commit(1, other.task([("a", b"1")]))
    other.commit(2, other.task([("a", b"2")]))

    with pytest.raises(WriterFenced) as caught:
        query.commit(1, asleep)

    assert (caught.value.batch, caught.value.newest) == (1, 2)
    assert held(db, name) == {b"a": b"2"}
    other.commit(3, other.task([("a", b"3")]))
    assert held(db, name) == {b"a": b"3"}


def test_what_a_speculative_or_a_forgotten_attempt_staged_is_never_seen(
    db: Client, name: str, query: Query
) -> None:
    """M2: a zombie task ends after, before or between others; only the attempt that Spark names counts."""
    slow = query.task([("a", b"slow attempt"), ("only-slow", b"x")])
    fast = query.task([("a", b"fast attempt")])
    query.commit(0, fast)
    late = query.task([("a", b"late attempt"), ("only-late", b"x")])
    query.commit(1, query.task([("b", b"1")]))

    assert slow.ranges != fast.ranges != late.ranges
    assert held(db, name) == {b"a": b"fast attempt", b"b": b"1"}


def test_two_queries_that_write_to_one_stream_do_not_disturb_each_other(
    db: Client, name: str, query: Query
) -> None:
    other = Query(query.writer._options.url, name)
    ours = query.task([("ours", b"1")])
    theirs = other.task([("theirs", b"1")])

    other.commit(0, theirs)
    query.commit(0, ours)

    assert held(db, name) == {b"ours": b"1", b"theirs": b"1"}


def test_staged_rows_end_with_the_commit_that_follows(db: Client, query: Query) -> None:
    query.task(numbered(1000, size=2000))  # of an attempt that failed
    query.commit(0, query.task(numbered(10)))
    assert db.stream(query.staging).info().live == 0

    before = writer.TRUNCATE_BYTES
    for batch in range(1, 12):
        query.commit(batch, query.task(numbered(1000, size=2000)))
    assert sum(len(row.value) for row in db.stream(query.staging).snapshot()) < before


# A broker that goes away -----------------------------------------------------------------------------


@pytest.fixture
def wire(broker: Any) -> Iterator[LossyWire]:
    wire = LossyWire(broker.address)
    yield wire
    wire.close()


def test_a_put_whose_answer_was_lost_is_staged_again_and_counts_once(
    db: Client, name: str, wire: LossyWire, monkeypatch: pytest.MonkeyPatch
) -> None:
    """M2: the task puts the chunk again; what the first put stored is referred to by nobody."""
    monkeypatch.setattr(writer, "CHUNK_ROWS", 100)
    query = Query(wire.url, name, createstream="true")
    query.task([("the staging stream", b"is there")])

    def parts() -> Iterator[pa.RecordBatch]:
        for part in range(4):
            yield a_batch(numbered(100, f"p{part}-"))
            wire.lose_next_answer()  # of the put that follows

    at = query.writer
    staged = stage(at._options, at._shape, query.id, query.staging, parts())

    assert wire.lost == 4
    assert staged.rows == 400
    assert db.stream(query.staging).info().live == 801
    query.commit(0, staged)
    assert held(db, name) == {
        key.encode(): value for part in range(4) for key, value in numbered(100, f"p{part}-")
    }
    assert sum(1 for _ in db.stream(name).snapshot()) == 400


def test_a_commit_whose_answer_was_lost_is_done_once(db: Client, name: str, wire: LossyWire) -> None:
    """M2: the driver sends the transaction again and is told that it is there."""
    db.stream(name, create=True, key="log")  # it keeps what comes twice
    query = Query(wire.url, name)
    staged = query.task(numbered(100))
    writer._links.clear()
    link = writer._link(query.writer._options)
    publish = link.client.producer

    def lose(producer: str) -> Any:
        found = publish(producer)
        if not wire.lost:
            wire.lose_next_answer()
        return found

    link.client.producer = lose  # type: ignore[method-assign]
    query.commit(0, staged)

    assert wire.lost == 1
    assert sum(1 for _ in db.stream(name).snapshot()) == 100


def test_a_task_and_a_commit_wait_for_a_broker_that_is_restarted(
    start_spark_broker: Callable[..., Any], name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(writer, "CHUNK_ROWS", 100)
    broker = start_spark_broker()
    query = Query(broker.url, name, createstream="true")
    staged = []

    def parts() -> Iterator[pa.RecordBatch]:
        yield a_batch(numbered(100, "p0-"))
        yield a_batch(numbered(100, "p1-"))
        broker.kill()
        broker.start()
        yield a_batch(numbered(100, "p2-"))

    at = query.writer
    staged.append(stage(at._options, at._shape, query.id, query.staging, parts()))
    broker.kill()
    broker.start()
    query.commit(0, *staged)
    broker.kill()
    broker.start()
    query.commit(0, *staged)

    with writer.tidemark.client.connect(broker.url) as db:
        assert len(held(db, name)) == 300
        assert sum(1 for _ in db.stream(name).snapshot()) == 300


def test_a_broker_that_stays_away_is_an_error_that_says_what_to_do(
    start_spark_broker: Callable[..., Any], name: str
) -> None:
    broker = start_spark_broker()
    query = Query(broker.url, name, createstream="true", retrytimeout="1s")
    broker.kill()
    begun = time.monotonic()

    with pytest.raises(BrokerAway, match="retryTimeout"):
        query.task(numbered(3))

    assert time.monotonic() - begun < 15


# Sizes -----------------------------------------------------------------------------------------------


def test_a_batch_that_is_too_large_says_which_options_to_change_and_writes_nothing(
    start_spark_broker: Callable[..., Any], name: str
) -> None:
    broker = start_spark_broker("--set", "broker.batch_bytes_max=256KiB")
    query = Query(broker.url, name, createstream="true")
    staged = query.task(numbered(1000, size=1000))

    with pytest.raises(BatchTooLarge, match=r"maxOffsetsPerTrigger.*broker\.batch_bytes_max") as caught:
        query.commit(0, staged)

    assert caught.value.rows == 1000
    with writer.tidemark.client.connect(broker.url) as db:
        assert held(db, name) == {}
        query.commit(0, query.task(numbered(100, size=1000)))
        assert len(held(db, name)) == 100


def test_a_write_that_need_not_be_atomic_may_be_of_any_size(
    start_spark_broker: Callable[..., Any], name: str
) -> None:
    broker = start_spark_broker("--set", "broker.batch_bytes_max=256KiB")
    job = a_job(broker.url, name, createstream="true", atomic="false")
    first = job.write(iter([a_batch(numbered(1000, "a", size=1000))]))
    second = job.write(iter([a_batch(numbered(500, "b", size=1000))]))

    job.commit([first, None, second])

    with writer.tidemark.client.connect(broker.url) as db:
        assert len(held(db, name)) == 1500
        assert [stream.name for stream in db.streams()] == [name]


def test_a_row_larger_than_the_broker_takes_is_named_by_its_key(
    start_spark_broker: Callable[..., Any], name: str
) -> None:
    broker = start_spark_broker("--set", "broker.batch_bytes_max=256KiB")
    query = Query(broker.url, name, createstream="true")
    rows = [*numbered(10), ("the large one", bytes(300_000))]

    with pytest.raises(RowsRefused, match=r"'the large one'.*batch_bytes_max"):
        query.task(rows)


@settings(deadline=None)
@given(
    st.lists(
        st.lists(st.tuples(st.text(max_size=3), st.none() | st.binary(max_size=40)), max_size=30), max_size=6
    ),
    st.integers(1, 20),
)
def test_chunks_hold_all_rows_in_order_and_are_never_too_large(batches: list[Rows], rows_max: int) -> None:
    shape = Shape("s", value=1, key=0)
    chunks = list(writer._chunks((shape.rows(a_batch(rows)) for rows in batches), rows_max))

    assert all(0 < chunk.num_rows <= rows_max for chunk in chunks)
    found = []
    for chunk in chunks:
        gone = (
            chunk.column("deleted").to_pylist()
            if "deleted" in chunk.column_names
            else [False] * chunk.num_rows
        )
        for key, value, deleted in zip(
            chunk.column("key").to_pylist(), chunk.column("value").to_pylist(), gone, strict=True
        ):
            found.append((key, None if deleted else value))
    assert found == [
        (key.encode() if key is not None else None, value) for rows in batches for key, value in rows
    ]


def test_a_batch_with_large_rows_is_split_by_bytes(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(writer, "CHUNK_BYTES", 10_000)
    chunks = list(writer._chunks([Shape("s", 1, 0).rows(a_batch(numbered(100, size=1000)))], 1000))
    assert sum(chunk.num_rows for chunk in chunks) == 100
    assert max(chunk.nbytes for chunk in chunks) <= 10_000


# Batch writes ------------------------------------------------------------------------------------------


def a_job(url: str, stream: str, **options: str) -> BatchWriter:
    return batch_writer({"tidemark.url": url, "stream": stream, **options}, KEY_VALUE, False)


def test_a_batch_write_is_published_whole_and_leaves_no_staging_stream(
    db: Client, name: str, broker: Any
) -> None:
    job = a_job(broker.url, name, createstream="true")
    messages = [job.write(iter([a_batch(numbered(20, f"p{part}-"))])) for part in range(2)]
    assert held(db, name) == {}

    job.commit(messages)

    assert len(held(db, name)) == 40
    assert not [stream for stream in db.streams() if stream.name.startswith(f"spark.staging.{name}")]


def test_a_batch_write_that_failed_leaves_nothing_at_all(db: Client, name: str, broker: Any) -> None:
    job = a_job(broker.url, name, createstream="true")
    done = job.write(iter([a_batch(numbered(20))]))

    job.abort([done, None])

    assert held(db, name) == {}
    assert not [stream for stream in db.streams() if stream.name.startswith(f"spark.staging.{name}")]


def test_a_write_with_an_idempotency_key_is_done_once(db: Client, name: str, broker: Any) -> None:
    for value in (b"first", b"second"):
        job = a_job(broker.url, name, createstream="true", idempotencykey=f"load-{name}")
        job.commit([job.write(iter([a_batch([("a", value)])]))])

    assert held(db, name) == {b"a": b"first"}


def test_an_empty_data_frame_is_written_without_a_trace(db: Client, name: str, broker: Any) -> None:
    job = a_job(broker.url, name, createstream="true")
    job.commit([job.write(iter([a_batch([])])), job.write(iter([]))])
    assert held(db, name) == {}


def test_a_key_counts_for_one_stream_and_a_write_that_was_there_is_warned_about(
    db: Client, name: str, broker: Any, caplog: pytest.LogCaptureFixture
) -> None:
    """The nightly job writes several streams under one date."""
    for stream in (f"{name}-a", f"{name}-b"):
        job = a_job(broker.url, stream, createstream="true", idempotencykey="2026-11-16")
        job.commit([job.write(iter([a_batch([("a", b"1")])]))])
        assert held(db, stream) == {b"a": b"1"}
    assert not caplog.records

    again = a_job(broker.url, f"{name}-b", idempotencykey="2026-11-16")
    again.commit([again.write(iter([a_batch([("a", b"2")])]))])

    [warning] = caplog.records
    assert f"{name}-b" in warning.message and "2026-11-16" in warning.message
    assert held(db, f"{name}-b") == {b"a": b"1"}


def test_names_of_streams_and_keys_are_not_mixed_up() -> None:
    names = {
        writer.producer_of(*both) for both in [("a", "b.c"), ("a.b", "c"), ("a.b.c", ""), ("a", "x" * 500)]
    }
    assert len(names) == 4 and max(map(len, names)) <= 255


def test_a_broker_that_remembers_few_producers_keeps_that_of_a_stopped_query(
    start_spark_broker: Callable[..., Any], name: str
) -> None:
    """A replayed last batch is a duplicate, however many jobs and worker processes have come and gone since."""
    broker = start_spark_broker("--set", "broker.producers_max=4")
    with tidemark.client.connect(broker.url, timeout=20) as db:
        db.stream(name, create=True, key="log")
        query = Query(broker.url, name)
        query.commit(0, query.task([("a", b"1")]))
        for _ in range(8):
            writer._links.clear()  # another process
            job = a_job(broker.url, f"{name}-other", createstream="true")
            job.commit([job.write(iter([a_batch([("k", b"v")])]))])

        again = Query(broker.url, name, query.id)
        again.commit(0, again.task([("a", b"1")]))

        assert sum(1 for _ in db.stream(name).snapshot()) == 1


def test_rows_that_were_staged_in_a_history_that_was_lost_are_not_committed(
    db: Client, name: str, query: Query
) -> None:
    """After a takeover other rows may have the same sequences."""
    ours = query.task([("a", b"1")])
    assert ours.histories == [db.heads([name])[name].history]
    ours.histories = ["00" * 16]

    with pytest.raises(StreamReset):
        query.commit(0, ours)

    assert held(db, name) == {}


# Partitioned streams -------------------------------------------------------------------------------------


class Partitions(Query):
    """A query that writes to a partitioned stream."""

    def task(self, *batches: Rows) -> Any:
        at = self.writer
        now = time.time()
        names = [writer.staging_of(one.stream, "query", self.id, now) for one in at._options.targets]
        return stage_apart(at._options, at._shape, self.id, names, map(a_batch, batches))


class Died(Exception):
    """The driver, as the test wants it."""


def spread(db: Client, stream: str) -> list[dict[bytes | None, bytes]]:
    return [held(db, one.name) for one in db.partitioned(stream).partitions]


def test_rows_go_to_the_partitions_of_their_keys(db: Client, name: str, broker: Any) -> None:
    db.partitioned(name, create=3)
    query = Partitions(broker.url, name)
    query.commit(0, query.task(numbered(50, "a")), query.task(numbered(50, "b")))
    query.commit(1, query.task([("a0", None), ("a1", b"new")]))

    found = spread(db, name)

    assert all(found)
    for at, rows in enumerate(found):
        assert {partition_of(key or b"", 3) for key in rows} == {at}
    expected = {key.encode(): value for prefix in "ab" for key, value in numbered(50, prefix)}
    del expected[b"a0"]
    assert {key: value for rows in found for key, value in rows.items()} == expected | {b"a1": b"new"}


@pytest.mark.parametrize("done", [0, 1, 2, 3])
def test_a_batch_that_some_partitions_have_is_completed_and_stored_once(
    db: Client, name: str, broker: Any, done: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """M2: the driver dies between two partitions; Spark runs all tasks again, in another order."""
    db.partitioned(name, create=3, key="log")  # it keeps what comes twice
    rows: Rows = [*numbered(30), (None, b"has no key"), (None, b"nor has this")]
    query = Partitions(broker.url, name)
    publish, left = writer.publish, [done]

    def dies(*arguments: Any) -> Any:
        if not left[0]:
            raise Died
        left[0] -= 1
        return publish(*arguments)

    with monkeypatch.context() as patch:
        patch.setattr(writer, "publish", dies)
        if done < 3:
            with pytest.raises(Died):
                query.commit(0, query.task(rows))
        else:
            query.commit(0, query.task(rows))

    again = Partitions(broker.url, name, query.id)
    again.commit(0, again.task(rows[::-1]))

    found = [(row.key, row.value) for one in db.partitioned(name).partitions for row in one.snapshot()]
    assert sorted(found, key=repr) == sorted(
        ((None if key is None else key.encode(), value) for key, value in rows), key=repr
    )


def test_a_replaced_driver_of_a_partitioned_stream_is_stopped(db: Client, name: str, broker: Any) -> None:
    db.partitioned(name, create=2)
    query = Partitions(broker.url, name)
    late = query.task(numbered(10, "late"))
    for batch in range(2):
        query.commit(batch, query.task(numbered(10)))

    with pytest.raises(WriterFenced):
        query.commit(0, late)

    assert not [key for rows in spread(db, name) for key in rows if (key or b"").startswith(b"late")]


def test_a_write_of_partitions_with_a_key_is_done_once_and_leaves_no_staging_streams(
    db: Client, name: str, broker: Any
) -> None:
    db.partitioned(name, create=3)
    for value in (b"first", b"second"):
        job = a_job(broker.url, name, idempotencykey="load")
        job.commit([job.write(iter([a_batch([(f"k{at}", value) for at in range(9)])]))])

    assert [value for rows in spread(db, name) for value in rows.values()] == [b"first"] * 9
    assert not [stream for stream in db.streams() if stream.name.startswith(f"spark.staging.{name}")]


def test_a_partition_that_gets_too_much_is_found_before_the_others_are_written(
    start_spark_broker: Callable[..., Any], name: str
) -> None:
    broker = start_spark_broker("--set", "broker.batch_bytes_max=256KiB")
    with tidemark.client.connect(broker.url, timeout=20) as db:
        db.partitioned(name, create=3)
        heavy = [
            (key, value) for key, value in numbered(600, size=2000) if partition_of(key.encode(), 3) == 1
        ]
        query = Partitions(broker.url, name)

        with pytest.raises(BatchTooLarge, match=f"{name}-1"):
            query.commit(0, query.task([*numbered(9, "light"), *heavy]))

        assert spread(db, name) == [{}, {}, {}]


@pytest.mark.parametrize("kind", ["query", "job"])
def test_a_partition_that_gets_too_many_rows_is_found_before_the_others_are_written(
    start_spark_broker: Callable[..., Any], name: str, kind: str
) -> None:
    """The one with the most bytes has few rows, and would be written first."""
    broker = start_spark_broker("--set", "stream.put_rows_max=50")
    with tidemark.client.connect(broker.url, timeout=20) as db:
        db.partitioned(name, create=3)
        large = [(key, bytes(5000)) for key, _ in numbered(30) if partition_of(key.encode(), 3) == 0]
        many = [(key, b"1") for key, _ in numbered(300) if partition_of(key.encode(), 3) == 1]
        assert len(large) < 50 < len(many)

        def write() -> None:
            if kind == "query":
                query = Partitions(broker.url, name)
                query.commit(0, query.task(large), query.task(many))
            else:
                job = a_job(broker.url, name)
                job.commit([job.write(iter([a_batch(rows)])) for rows in (large, many)])

        with pytest.raises(BatchTooLarge, match=rf"{name}-1.*stream\.put_rows_max"):
            write()

        assert spread(db, name) == [{}, {}, {}]


def test_what_is_rehearsed_and_fits_is_written_once(db: Client, name: str, broker: Any) -> None:
    db.partitioned(name, create=2, key="log")  # it keeps what comes twice
    query = Partitions(broker.url, name)
    large = next((key, bytes(9000)) for key, _ in numbered(30) if partition_of(key.encode(), 2) == 0)
    many = [(key, b"1") for key, _ in numbered(60) if partition_of(key.encode(), 2) == 1]

    query.commit(0, query.task([large]), query.task(many[::2]), query.task(many[1::2]))

    assert [one.live for one in db.partitioned(name).info()] == [1, len(many)]


def test_a_key_is_used_up_in_partitions_that_got_no_rows(
    db: Client, name: str, broker: Any, caplog: pytest.LogCaptureFixture
) -> None:
    """The first write has rows for one partition only; the second one, with other rows, is none at all."""
    db.partitioned(name, create=3)
    first = [(key, b"first") for key, _ in numbered(30) if partition_of(key.encode(), 3) == 0]
    for rows in (first, [(key, b"second") for key, _ in numbered(30)]):
        job = a_job(broker.url, name, idempotencykey="load")
        job.commit([job.write(iter([a_batch(rows)]))])

    assert spread(db, name) == [{key.encode(): value for key, value in first}, {}, {}]
    assert sorted(one.args[0] for one in caplog.records if one.args) == [f"{name}-{at}" for at in range(3)]


def test_a_key_is_used_up_by_a_write_without_rows(db: Client, name: str, broker: Any) -> None:
    for rows in ([], numbered(3)):
        job = a_job(broker.url, name, createstream="true", idempotencykey="load")
        job.commit([job.write(iter([a_batch(rows)]))])

    assert held(db, name) == {}


def test_the_name_of_a_partitioned_stream_is_not_taken_for_a_new_stream(
    db: Client, name: str, broker: Any
) -> None:
    db.partitioned(name, create=2)
    query = Partitions(broker.url, name, createstream="true")

    assert [one.stream for one in query.writer._options.targets] == [f"{name}-0", f"{name}-1"]
    assert name not in {stream.name for stream in db.streams()}


# Staging streams -----------------------------------------------------------------------------------------


def test_staging_streams_go_when_their_rows_are_gone() -> None:
    hours = 7 * 24 * 3000
    now, who = hours * 3600.0, "0" * 32
    query = str(uuid.uuid4())
    over = [
        f"spark.staging.orders.job-{hours - 49}-{who}",
        f"spark.staging.a.b.job-{hours - 49}-{who}",
        f"spark.staging.orders.query-{hours - 7 * 24 - 49}-{query}",
    ]
    kept = [
        f"spark.staging.orders.job-{hours - 47}-{who}",  # it may still run
        f"spark.staging.orders.query-{hours - 7 * 24}-{query}",  # of last week: a task may have begun then
        f"spark.staging.orders.job-x-{who}",
        f"spark.staging.job-{hours - 49}-{who}",
        f"my.spark.staging.orders.job-{hours - 49}-{who}",
        "spark.staging.orders",
        "orders",
    ]
    assert writer.abandoned([*over, *kept], now) == over


@pytest.mark.parametrize("target", ["orders", "a.b.job-1", "x" * 255, "é" * 127])
@pytest.mark.parametrize("kind", ["job", "query"])
def test_a_staging_stream_is_used_for_a_while_has_a_name_that_can_be_and_goes_after_that(
    target: str, kind: Any
) -> None:
    who, now = str(uuid.uuid4()), 1.8e9
    name = writer.staging_of(target, kind, who, now)
    assert len(name.encode()) <= 255
    assert writer.abandoned([name], now + 24 * 3600) == []
    assert writer.abandoned([name], now + 10 * 24 * 3600) == [name]
    assert writer.staging_of(target, kind, who, now + 8 * 24 * 3600) != name


def test_the_next_write_to_any_stream_deletes_staging_streams_that_are_over(
    db: Client, name: str, broker: Any
) -> None:
    gone = writer.staging_of("a target of long ago", "query", str(uuid.uuid4()), time.time() - 30 * 86400)
    alive = writer.staging_of(name, "query", str(uuid.uuid4()), time.time())
    for staging in (gone, alive):
        db.stream(staging, create=True, key="log")
    writer._links.clear()
    query = Query(broker.url, name, createstream="true")

    query.commit(0, query.task([("a", b"1")]))

    streams = {stream.name for stream in db.streams()}
    assert gone not in streams and alive in streams


def test_a_batch_whose_tasks_began_in_two_weeks_is_committed_whole(
    db: Client, name: str, query: Query
) -> None:
    before = query.staging
    first = query.task([("a", b"1")])
    query.staging = writer.staging_of(name, "query", query.id, time.time() + 7 * 86400)
    second = query.task([("b", b"1")])

    query.commit(0, first, second)

    assert held(db, name) == {b"a": b"1", b"b": b"1"}
    assert [db.stream(staging).info().live for staging in (before, query.staging)] == [0, 0]


# What is refused -------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("columns", "says"),
    [
        (columns_of(key=TEXT, id=INT), r"no column 'value' \(there are: key, id\).*to_json"),
        (columns_of(key=TEXT, value=TEXT, amount=INT), "column 'amount' is not one of a stream.*to_json"),
        (columns_of(key=INT, value=TEXT), "column 'key' is int, not string or binary; CAST it"),
        (
            columns_of(key=TEXT, value=columns_of(a=INT)),
            "column 'value' is struct<a:int>, not string or binary",
        ),
        (columns_of(key=TEXT, value=TEXT, deleted=INT), "column 'deleted' is int, not boolean"),
        (columns_of(value=TEXT, headers=MapType(TEXT, INT)), "column 'headers' is map<string,int>, not"),
        (columns_of(value=TEXT, headers=ArrayType(TEXT)), "column 'headers' is array<string>, not"),
    ],
)
def test_columns_that_a_stream_does_not_have_are_refused_with_a_way_out(
    columns: StructType, says: str
) -> None:
    with pytest.raises(ColumnsRefused, match=says):
        writer.shape_of(columns, "orders")


@pytest.mark.parametrize(
    "columns",
    [
        columns_of(key=TEXT, value=TEXT),
        columns_of(value=BYTES),
        columns_of(Value=BYTES, KEY=BYTES, deleted=BOOL),
        columns_of(key=BYTES, value=BYTES, headers=MapType(TEXT, TEXT)),
        columns_of(
            key=BYTES,
            value=BYTES,
            stream=TEXT,
            shard=INT,
            sequence=LongType(),
            history=TEXT,
            timestamp=TimestampType(),
            deleted=BOOL,
            headers=PAIRS,
        ),
    ],
)
def test_columns_that_a_stream_has_are_taken_in_any_order_and_case(columns: StructType) -> None:
    shape = writer.shape_of(columns, "orders")
    assert columns[shape.value].name.lower() == "value"
    assert (shape.key is None) == ("key" not in map(str.lower, columns.names))


def with_deleted(rows: list[tuple[str | None, bytes | None, bool | None]]) -> pa.RecordBatch:
    keys, values, deleted = zip(*rows, strict=True)
    return pa.RecordBatch.from_arrays(
        [pa.array(keys, pa.string()), pa.array(values, pa.binary()), pa.array(deleted, pa.bool_())],
        names=["key", "value", "deleted"],
    )


SHAPE = Shape("orders", value=1, key=0, deleted=2)


def test_a_row_without_a_value_that_is_not_deleted_is_refused_by_its_key() -> None:
    with pytest.raises(RowsRefused, match="with key 'b': its value is null and it is not deleted"):
        SHAPE.rows(with_deleted([("a", b"1", False), ("b", None, None), ("c", None, True)]))


def test_a_delete_without_a_key_is_refused() -> None:
    with pytest.raises(RowsRefused, match="with key null: a row that is deleted must have a key"):
        SHAPE.rows(with_deleted([("a", b"1", False), (None, b"", True)]))


def test_a_key_that_is_too_long_is_refused_and_shown_in_part() -> None:
    with pytest.raises(RowsRefused, match=r"with key 'x{75}…: a key has at most 65535 bytes"):
        SHAPE.rows(with_deleted([("x" * 70_000, b"1", False)]))


def test_rows_that_are_all_kept_need_no_column_of_deletes() -> None:
    found = SHAPE.rows(with_deleted([("a", b"1", False), ("b", b"", None)]))
    assert found.schema.names == ["key", "value"]
    assert found.column("value").to_pylist() == [b"1", b""]


@pytest.mark.parametrize(
    ("options", "says"),
    [
        ({"stream": "s"}, "'tidemark.url': is needed"),
        ({"tidemark.url": "tidemark://h/"}, "'stream': is needed"),
        ({"tidemark.url": "amqp://h/", "stream": "s"}, "not a URL such as tidemark://"),
        (
            {"tidemark.url": "tidemark://h/", "stream": "s", "creatstream": "true"},
            "did you mean createStream",
        ),
        ({"tidemark.url": "tidemark://h/", "stream": "s", "path": "x"}, "take no path; name the stream"),
        (
            {"tidemark.url": "tidemark://h/", "stream": "s", "atomic": "false", "idempotencykey": "x"},
            "'idempotencyKey': needs a write in one piece",
        ),
    ],
)
def test_options_that_cannot_be_are_refused_before_anything_is_written(
    options: dict[str, str], says: str
) -> None:
    with pytest.raises(OptionError, match=says):
        batch_writer(options, KEY_VALUE, False)


@pytest.mark.parametrize("option", ["queryName", "queryname", "checkpointlocation"])
def test_options_that_spark_adds_by_itself_are_accepted(broker: Any, name: str, option: str) -> None:
    Query(broker.url, name, createstream="true", **{option: "x"})


def test_overwriting_a_stream_is_refused_with_what_to_do_instead() -> None:
    with pytest.raises(OptionError, match="Use append"):
        batch_writer({"tidemark.url": "tidemark://h/", "stream": "s"}, KEY_VALUE, True)


def test_a_stream_that_is_not_there_is_created_only_when_asked(db: Client, name: str, broker: Any) -> None:
    with pytest.raises(OptionError, match=f"there is no stream '{name}'.*createStream=true"):
        Query(broker.url, name)

    Query(broker.url, name, createstream="true")

    assert db.stream(name).info().live == 0


def test_writers_travel_to_tasks(broker: Any, name: str) -> None:
    from pyspark import cloudpickle

    for made in (a_job(broker.url, name, createstream="true"), Query(broker.url, name).writer):
        copy = cloudpickle.loads(cloudpickle.dumps(made))
        assert isinstance(copy, BatchWriter | StreamWriter)
        assert copy._options == made._options
