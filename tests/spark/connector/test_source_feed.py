"""What planning and tasks ask of a real broker, without Spark: the feed, and reads that outlive a broker (M1, M6, M10)."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterator
from typing import TYPE_CHECKING, Any

import pyarrow as pa
import pytest

import tidemark.client
from tidemark.errors import HistoryGone, LostBranch, StreamReset
from tidemark_spark.broker import BrokerFeed, Patience, ReadTask, forget_clients, read
from tidemark_spark.errors import BrokerAway, DataLost, StreamMissing
from tidemark_spark.planning import Slice

if TYPE_CHECKING:
    from conftest import SparkBroker

    from tidemark.client import Client

PLACE = "the test's broker"
COLUMNS = ("key", "value", "stream", "shard", "sequence", "history", "timestamp", "deleted")


@pytest.fixture(autouse=True)
def _own_connections() -> Iterator[None]:
    yield
    forget_clients()


def feed_of(broker: SparkBroker, stream: str, retry_s: float = 20) -> BrokerFeed:
    return BrokerFeed(broker.url, stream, retry_s=retry_s, place=PLACE)


def task_of(broker: SparkBroker, stream: str, pin: str, *slices: Slice, **more: Any) -> ReadTask:
    facts: dict[str, Any] = {
        "columns": COLUMNS, "batch_bytes": 1 << 20, "retry_s": 20, "lease_s": 600, "renews": False,
        "fail_on_data_loss": True,
    }  # fmt: skip
    facts |= more
    return ReadTask(url=broker.url, place=PLACE, stream=stream, pin=pin, history="h", slices=slices, **facts)


def rows_of(batches: Iterator[pa.RecordBatch]) -> list[tuple[int, bytes, bytes]]:
    return [(row["sequence"], row["key"], row["value"]) for batch in batches for row in batch.to_pylist()]


def test_a_feed_says_how_far_a_stream_goes_and_waits_for_more(
    broker: SparkBroker, db: Client, name: str
) -> None:
    stream = db.stream(name, create=True, shards=3)
    last = stream.put("a", "1").sequence
    feed = feed_of(broker, name)
    assert feed.head().sequence == last and feed.head().shards == 3

    later = threading.Timer(0.2, lambda: stream.put("b", "1"))
    later.start()
    begun = time.monotonic()
    assert feed.head(last, 10).sequence > last
    assert time.monotonic() - begun < 5
    later.join()
    assert feed.lag(last) == 1


def test_a_stream_that_is_made_again_has_another_number(broker: SparkBroker, db: Client, name: str) -> None:
    db.stream(name, create=True)
    feed = feed_of(broker, name)
    before = feed.identify()
    db.delete_stream(name)
    with pytest.raises(StreamMissing):
        feed.head()
    db.stream(name, create=True)
    assert feed.identify() != before


def test_pins_are_made_found_renewed_and_released(broker: SparkBroker, db: Client, name: str) -> None:
    stream = db.stream(name, create=True, shards=2)
    old = stream.put("a", "1").sequence
    feed = feed_of(broker, name)
    made = feed.pin("spark.g.1", 60)
    stream.grow(4)
    stream.put("a", "2")

    assert made.sequence == old
    assert feed.pin("spark.g.1", 60)[2:4] == (old, 2)
    assert feed.pinned("spark.g.1", 60) == made
    assert feed.pins("spark.g.") == ["spark.g.1"]
    assert feed.pins("spark.other.") == []
    assert feed.renew("spark.g.1", 60)
    assert feed.release("spark.g.1")
    assert not feed.release("spark.g.1")
    assert feed.pinned("spark.g.1", 60) is None
    assert not feed.renew("spark.g.1", 60)
    with pytest.raises(HistoryGone):
        feed.pin("spark.g.2", 60, at=old)


def test_places_that_cannot_be_gone_on_from_are_told(broker: SparkBroker, db: Client, name: str) -> None:
    """M6: a place in a history that nobody knows, and one that is ahead of what was ever stored."""
    stream = db.stream(name, create=True)
    here = stream.put("a", "1")
    feed = feed_of(broker, name)
    feed.check(here.history, here.sequence)
    feed.check("", 0)
    with pytest.raises(StreamReset):
        feed.check("ab" * 16, here.sequence)
    with pytest.raises(LostBranch):
        feed.check(here.history, 10**15)


def test_a_moment_is_a_place_in_the_stream(broker: SparkBroker, db: Client, name: str) -> None:
    stream = db.stream(name, create=True)
    stream.put("a", "1")
    time.sleep(0.01)
    stream.put("b", "1")
    row = stream.get("b")
    assert row is not None
    feed = feed_of(broker, name)

    history, after = feed.sequence_at(row.timestamp_ms)
    assert history == feed.head().history
    assert [one.key for one in stream.snapshot().rows(after=after)] == [b"b"]
    assert feed.sequence_at(0)[1] == 0


def test_a_mark_moves_with_the_consumer(broker: SparkBroker, db: Client, name: str) -> None:
    stream = db.stream(name, create=True)
    one, two = stream.put("a", "1"), stream.put("b", "1")
    feed = feed_of(broker, name)
    assert feed.mark("g") is None
    feed.register("g")
    feed.turn(pin=None, lease_s=60, release=(), mark=("g", one.history, one.sequence, two.sequence))
    assert feed.mark("g") == (one.history, one.sequence)
    mark = stream.mark("g")
    assert mark is not None and mark.snapshot_end == two.sequence and mark.lease_until_ms is not None


def test_a_turn_moves_the_mark_lets_go_of_pins_and_makes_the_next(
    broker: SparkBroker, db: Client, name: str
) -> None:
    stream = db.stream(name, create=True)
    one = stream.put("a", "1")
    feed = feed_of(broker, name)
    feed.pin("old", 60)
    two = stream.put("a", "2")
    mark = ("g", one.history, one.sequence, None)
    turned = feed.turn(pin="new", lease_s=60, release=["old", "never"], mark=mark)

    assert turned.pin is not None and turned.pin.sequence == two.sequence
    assert turned.absent == ["never"] and not turned.mark_problem
    assert feed.pins("") == ["new"] and feed.mark("g") == mark[1:3]
    lost = feed.turn(pin=None, lease_s=60, release=(), mark=("g", "ab" * 16, two.sequence, None))
    assert "its history is unknown here" in lost.mark_problem
    db.delete_stream(name)
    with pytest.raises(StreamMissing):
        feed.turn(pin="newer", lease_s=60, release=["new"], mark=None)


def test_a_slice_is_cut_where_the_rows_are(broker: SparkBroker, db: Client, name: str) -> None:
    stream = db.stream(name, create=True)
    stream.put_many([(f"k{number}", "x" * 10) for number in range(10)])
    feed = feed_of(broker, name)
    pin = feed.pin("p", 60)
    part = Slice(None, 0, pin.sequence)
    assert [piece.rows for piece in feed.cut("p", part, rows=4)] == [4, 4, 2]
    assert [piece.rows for piece in feed.cut("p", part, bytes=35)] == [3, 3, 3, 1]
    assert [piece.rows for piece in feed.cut("p", part, rows=4, limit=1)] == [4]
    assert sum(piece.bytes for piece in feed.cut("p", part)) == 100


# Reading ---------------------------------------------------------------------------------------------


@pytest.fixture
def filled(broker: SparkBroker, db: Client, name: str) -> list[tuple[int, bytes, bytes]]:
    """A stream of 20,000 rows (more than is ever on its way) in 2 shards, and its rows; it is pinned as `p`."""
    stream = db.stream(name, create=True, shards=2)
    stream.put_many([(f"k{number}", f"{number:01000}") for number in range(20_000)])
    stream.pin("p", lease=600)
    return [(row.sequence, row.key or b"", row.value) for row in stream.pinned("p").read()]


def whole(rows: list[tuple[int, bytes, bytes]]) -> Slice:
    return Slice(None, 0, rows[-1][0])


def test_a_read_goes_on_where_it_was_when_the_broker_is_killed_and_comes_back(
    broker: SparkBroker,
    db: Client,
    name: str,
    filled: list[tuple[int, bytes, bytes]],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """M1, M10: each row once, in order, the same bytes, over three brokers; all keys are rewritten meanwhile."""
    failures: list[Exception] = []
    rest = Patience.failed
    monkeypatch.setattr(
        Patience, "failed", lambda self, problem: failures.append(problem) or rest(self, problem)
    )
    batches = read(task_of(broker, name, "p", whole(filled), batch_bytes=64 << 10))
    found = rows_of(iter([next(batches)]))
    for _ in range(2):
        broken = len(failures)
        broker.kill()
        restart = threading.Timer(0.5, broker.start)
        restart.start()
        for batch in batches:
            found += rows_of(iter([batch]))
            if len(failures) > broken:
                break
        restart.join()
        assert len(failures) > broken
        db.stream(name).put_many([(f"k{number}", "new") for number in range(20_000)])
    found += rows_of(batches)

    assert found == filled


def test_slices_of_shards_and_ranges_hold_every_row_once(
    broker: SparkBroker, name: str, filled: list[tuple[int, bytes, bytes]]
) -> None:
    middle, last = filled[len(filled) // 2][0], filled[-1][0]
    task = task_of(
        broker,
        name,
        "p",
        Slice((0,), 0, last),
        Slice((1,), 0, middle),
        Slice((1,), middle, last),
        verify=True,
    )
    assert sorted(rows_of(read(task))) == filled


def test_a_task_gets_only_the_columns_that_it_asks_for(
    broker: SparkBroker, name: str, filled: list[tuple[int, bytes, bytes]]
) -> None:
    [batch, *_] = read(task_of(broker, name, "p", whole(filled), columns=("sequence", "stream")))
    assert batch.schema.names == ["sequence", "stream"]
    assert set(batch.column("stream").to_pylist()) == {name}


def test_batches_are_about_as_large_as_was_asked_for(
    broker: SparkBroker, name: str, filled: list[tuple[int, bytes, bytes]]
) -> None:
    sizes = [batch.nbytes for batch in read(task_of(broker, name, "p", whole(filled), batch_bytes=500_000))]
    assert 0.3e6 < max(sizes) < 1e6


def test_a_task_whose_pin_is_gone_says_so(
    broker: SparkBroker, db: Client, name: str, filled: list[tuple[int, bytes, bytes]]
) -> None:
    db.stream(name).pinned("p").release()
    with pytest.raises(DataLost, match=r"'p' of this batch is gone.*new checkpointLocation"):
        list(read(task_of(broker, name, "p", whole(filled))))
    with pytest.raises(DataLost, match="Make the DataFrame anew"):
        list(read(task_of(broker, name, "p", whole(filled), renews=True)))


def test_a_task_that_may_lose_data_reads_what_is_there_instead(
    broker: SparkBroker, db: Client, name: str, filled: list[tuple[int, bytes, bytes]]
) -> None:
    stream = db.stream(name)
    stream.pinned("p").release()
    stream.put("k0", "moved behind the end of the slice")
    task = task_of(broker, name, "p", whole(filled), fail_on_data_loss=False)
    assert rows_of(read(task)) == filled[1:]
    db.delete_stream(name)
    assert rows_of(read(task)) == []


def test_a_broker_that_stays_away_is_an_error_that_says_what_to_do(
    start_spark_broker: Callable[..., SparkBroker], name: str
) -> None:
    broker = start_spark_broker()
    with tidemark.client.connect(broker.url) as db:
        db.stream(name, create=True).put("a", "1")
    feed = feed_of(broker, name, retry_s=1)
    feed.pin("p", 60)
    broker.kill()

    begun = time.monotonic()
    with pytest.raises(BrokerAway, match=f"reading stream '{name}' at {PLACE}"):
        list(read(task_of(broker, name, "p", Slice(None, 0, 9), retry_s=1)))
    with pytest.raises(BrokerAway, match="retryTimeout"):
        feed.head()
    assert time.monotonic() - begun < 15
