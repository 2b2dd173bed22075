"""What is special about another stream: rows and mark in one transaction, the mark expected where it was read."""

from __future__ import annotations

import json
import threading
from collections.abc import Callable, Iterator
from typing import TYPE_CHECKING, Any

import pyarrow as pa
import pytest
from helpers.changes import COLUMNS, PIPELINE, a_change, a_result, the_digest

from tidemark.client import Client
from tidemark_spark.errors import OptionError, RowRefused, SinkRefused, SinkUnavailable
from tidemark_spark.pipeline.sinks.stream import DROPPING, MARKS, StreamSink

if TYPE_CHECKING:
    from spark.conftest import SparkBroker

Make = Callable[..., StreamSink]


@pytest.fixture
def make(broker: SparkBroker, name: str) -> Iterator[Make]:
    made: list[StreamSink] = []

    def make(
        schema: pa.Schema = COLUMNS, mode: Any = "mirror", kind: type[StreamSink] = StreamSink, **options: Any
    ) -> StreamSink:
        sink = kind("s", PIPELINE, {"url": broker.url, "stream": name, "timeout_s": 20, **options})
        made.append(sink)
        sink.open()
        sink.prepare(schema, mode)
        return sink

    yield make
    for sink in made:
        sink.close()


FIRST = a_change({"a": (5, "Ann", 1), "b": (6, "Bob", 2)}, end=6)
SECOND = a_change({"a": (8, "Anna", 3)}, {"b": 7}, start=6, end=8, batch=1)


def held(db: Client, name: str) -> dict[str, Any]:
    with db.stream(name).snapshot() as snapshot:
        return {row.key.decode(): row.value for row in snapshot if row.key is not None and not row.deleted}


def test_rows_are_json_under_their_keys_and_deletes_are_tombstones(make: Make, db: Client, name: str) -> None:
    sink = make()
    sink.apply(FIRST)
    sink.apply(SECOND)
    assert {key: json.loads(value) for key, value in held(db, name).items()} == {
        "a": {"_sequence": 8, "name": "Anna", "amount": 3}
    }
    with db.stream(name).snapshot() as snapshot:
        assert [row.key for row in snapshot if row.deleted] == [b"b"]


def test_rows_and_mark_have_sequences_of_one_transaction(make: Make, db: Client, name: str) -> None:
    make().apply(FIRST)
    mark = db.stream(MARKS).get(f"{PIPELINE}/s/{name}")
    with db.stream(name).snapshot() as snapshot:
        sequences = [row.sequence for row in snapshot]
    assert mark is not None
    assert mark.sequence == max(sequences) + 1


def test_a_partitioned_stream_is_refused_because_no_transaction_spans_it(
    broker: SparkBroker, db: Client, name: str
) -> None:
    db.partitioned(name, create=2)
    sink = StreamSink("s", PIPELINE, {"url": broker.url, "stream": name, "timeout_s": 20})

    with pytest.raises(
        SinkRefused, match="is a partitioned stream, and no transaction spans its 2 partitions"
    ):
        sink.open()

    sink.close()


def test_one_column_may_be_the_value_and_the_sequence_goes_into_a_header(
    make: Make, db: Client, name: str
) -> None:
    sink = make(value_column="name")
    sink.apply(FIRST)
    row = db.stream(name).get("a")
    assert row is not None
    assert row.value == b"Ann"
    assert row.headers == {"tidemark-sequence": "5"}
    assert sink.digest() == the_digest({"a": 5, "b": 6})
    with pytest.raises(RowRefused, match="key 'b' at sequence 8: its column 'name' is NULL"):
        sink.apply(a_change({"a": (7, "x", 1), "b": (8, None, 2)}, start=6, end=8, batch=1))


class Overtaken(StreamSink):
    """A sink that sleeps between looking at the mark and its transaction, while another is at work."""

    meanwhile: Callable[[], object]

    def apply(self, change: Any) -> Any:
        commit = self._broker.commit

        def late(change: Any, fill: Any) -> bool:
            def wake(transaction: Any) -> None:
                self.meanwhile()
                self.meanwhile = lambda: None
                fill(transaction)

            return commit(change, wake)

        self._broker.commit = late  # type: ignore[method-assign]
        return super().apply(change)


def test_a_zombie_that_wakes_up_in_the_middle_changes_nothing(make: Make, db: Client, name: str) -> None:
    rival, zombie = make(), make(kind=Overtaken)
    assert isinstance(zombie, Overtaken)
    zombie.meanwhile = lambda: (rival.apply(FIRST), rival.apply(SECOND))

    assert zombie.apply(a_change({"a": (5, "zombie", 1), "b": (6, "zombie", 1)}, end=6)).skipped

    assert json.loads(held(db, name)["a"])["name"] == "Anna"
    assert rival.digest() == the_digest({"a": 8})


def test_a_broker_that_is_killed_in_a_batch_has_all_of_it_once(
    start_spark_broker: Callable[..., SparkBroker], name: str
) -> None:
    broker, rows = start_spark_broker(), 20_000
    sink = StreamSink("s", PIPELINE, {"url": broker.url, "stream": name, "timeout_s": 30})
    sink.open()
    sink.prepare(COLUMNS, "mirror")
    hit = 0
    for batch in range(2):
        first = batch * rows + 1
        change = a_change(
            {f"k{n}": (first + n, "x" * 100, n) for n in range(rows)},
            start=batch * rows,
            end=(batch + 1) * rows,
            batch=batch,
        )
        done = threading.Event()

        def kill(done: threading.Event = done) -> None:
            nonlocal hit
            hit += not done.is_set()
            broker.kill()
            broker.restart()

        timer = threading.Timer(0.02 + 0.07 * batch, kill)
        timer.start()
        sink.apply(change)  # it mends itself: the mark tells what became of the transaction
        done.set()
        timer.join()
        assert sink.apply(change).skipped
        assert sink.digest() == the_digest({f"k{n}": first + n for n in range(rows)})
    sink.close()
    assert hit, "no kill hit a batch"


def test_a_broker_that_is_away_is_unavailable(
    start_spark_broker: Callable[..., SparkBroker], name: str
) -> None:
    broker = start_spark_broker()
    sink = StreamSink("s", PIPELINE, {"url": broker.url, "stream": name, "timeout_s": 1})
    sink.open()
    sink.prepare(COLUMNS, "mirror")
    broker.kill()
    with pytest.raises(SinkUnavailable, match="no broker answers"):
        sink.apply(FIRST)
    sink.close()


def test_a_batch_that_is_too_large_is_refused_with_what_to_change(
    start_spark_broker: Callable[..., SparkBroker], name: str
) -> None:
    broker = start_spark_broker(
        "--set", "broker.batch_bytes_max=1048576", "--set", "stream.frame_bytes_max=2097152"
    )
    sink = StreamSink("s", PIPELINE, {"url": broker.url, "stream": name})
    sink.open()
    sink.prepare(COLUMNS, "mirror")
    for size, setting in ((1200, "batch_bytes_max"), (3000, "bytes")):
        big = a_change({f"k{n}": (n + 1, "x" * size, n) for n in range(1000)}, end=1000)
        with pytest.raises(SinkRefused, match=f"1,000 rows does not fit.*{setting}.*max_rows_per_batch"):
            sink.apply(big)
    assert sink.open() is None
    assert sink.digest() == the_digest({})
    sink.close()


def test_results_are_rows_without_keys_or_under_their_key_columns(make: Make, db: Client, name: str) -> None:
    rows = pa.table({"country": ["de", "fr"], "n": [1, 2]})
    added = make(rows.schema, "append", stream=f"{name}-added")
    added.apply(a_result(rows, mode="append", batch=0))
    assert added.apply(a_result(rows, mode="append", batch=0)).skipped
    added.apply(a_result(rows, mode="append", batch=1))
    with db.stream(f"{name}-added").snapshot() as snapshot:
        assert [(row.key, json.loads(row.value)["n"]) for row in snapshot] == [(None, 1), (None, 2)] * 2
    added.reset(drop=True)
    with db.stream(f"{name}-added").snapshot() as snapshot:
        assert [row for row in snapshot if not row.deleted] == []

    replaced = make(rows.schema, "update", stream=f"{name}-replaced", key=["country"])
    replaced.apply(a_result(rows, mode="update", batch=0))
    replaced.apply(a_result(rows.set_column(1, "n", pa.array([7, 8])), mode="update", batch=1))
    assert {key: json.loads(value)["n"] for key, value in held(db, f"{name}-replaced").items()} == {
        "de": 7,
        "fr": 8,
    }


def test_a_drop_that_was_interrupted_is_finished_by_the_next_open(make: Make, db: Client, name: str) -> None:
    sink = make()
    sink.apply(FIRST)
    db.stream(MARKS).put(f"{PIPELINE}/s/{name}", DROPPING)

    assert sink.open() is None
    assert held(db, name) == {}


def test_a_row_of_somebody_else_is_named(make: Make, db: Client, name: str) -> None:
    sink = make()
    sink.apply(FIRST)
    db.stream(name).put("strange", b"not json")
    with pytest.raises(SinkRefused, match=r"'strange'.*was not put by this sink"):
        sink.digest()


def test_wrong_options_passwords_and_targets_are_told_apart(
    make: Make, broker: SparkBroker, name: str
) -> None:
    for options, word in [
        ({}, "stream.*missing"),
        ({"stream": MARKS}, "holds the marks"),
        ({"stream": "x", "straem": "y"}, "did you mean 'stream'"),
    ]:
        with pytest.raises(OptionError, match=word):
            StreamSink("s", PIPELINE, options)
    with pytest.raises(OptionError, match="no column 'nam'"):
        make(value_column="nam")
    with pytest.raises(OptionError, match="CAST"):
        make(value_column="amount")
    with pytest.raises(SinkRefused, match="password"):
        StreamSink(
            "s", PIPELINE, {"url": broker.url.replace("guest:guest", "guest:no"), "stream": name}
        ).open()
    with pytest.raises(OptionError, match="url"):
        StreamSink("s", PIPELINE, {"url": "nonsense://x", "stream": name}).open()
