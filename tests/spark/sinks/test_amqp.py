"""What is special about an exchange: routing keys by template, tombstones, all messages of a batch or none."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from typing import TYPE_CHECKING, Any

import pyarrow as pa
import pytest
from helpers.changes import COLUMNS, PIPELINE, a_change, a_result, the_digest

from tidemark.client import Client
from tidemark_spark.errors import OptionError, RowRefused, SinkRefused
from tidemark_spark.pipeline.sinks.amqp import AMQPSink
from tidemark_spark.pipeline.sinks.stream import MARKS

if TYPE_CHECKING:
    from spark.conftest import SparkBroker

pika = pytest.importorskip("pika")

Make = Callable[..., AMQPSink]
FIRST = a_change({"a": (5, "Ann", 1), "b": (6, "Bob", 2)}, end=6)
SECOND = a_change({"a": (8, "Anna", 3)}, {"b": 7}, start=6, end=8, batch=1)


@pytest.fixture
def channel(broker: SparkBroker, name: str, db: Client) -> Iterator[Any]:
    """A channel, a topic exchange of the test's name, and a queue behind it that gets everything."""
    with pika.BlockingConnection(pika.URLParameters(broker.address.url())) as connection:
        channel = connection.channel()
        channel.exchange_declare(name, "topic", durable=True)
        channel.queue_declare(name, durable=True)
        channel.queue_bind(name, name, "#")
        yield channel


@pytest.fixture
def make(broker: SparkBroker, name: str) -> Iterator[Make]:
    made: list[AMQPSink] = []

    def make(schema: pa.Schema = COLUMNS, mode: Any = "mirror", **options: Any) -> AMQPSink:
        sink = AMQPSink("s", PIPELINE, {"url": broker.url, "exchange": name, "timeout_s": 20, **options})
        made.append(sink)
        sink.open()
        sink.prepare(schema, mode)
        return sink

    yield make
    for sink in made:
        sink.close()


def messages(channel: Any, queue: str) -> list[tuple[str, bytes, dict[str, Any]]]:
    """All that is in a queue: routing key, body, headers."""
    found = []
    while (got := channel.basic_get(queue, auto_ack=True))[0] is not None:
        found.append((got[0].routing_key, got[2], got[1].headers or {}))
    return found


def test_a_row_is_a_message_and_a_deleted_key_a_tombstone(make: Make, channel: Any, name: str) -> None:
    sink = make()
    assert sink.apply(FIRST).upserted == 2
    assert sink.apply(SECOND).deleted == 1
    assert sink.apply(SECOND).skipped

    found = messages(channel, name)
    assert [(key, json.loads(body or b"null"), headers) for key, body, headers in found] == [
        (
            "a",
            {"key": "a", "_sequence": 5, "name": "Ann", "amount": 1},
            {"tidemark-key": "a", "tidemark-sequence": 5},
        ),
        (
            "b",
            {"key": "b", "_sequence": 6, "name": "Bob", "amount": 2},
            {"tidemark-key": "b", "tidemark-sequence": 6},
        ),
        (
            "a",
            {"key": "a", "_sequence": 8, "name": "Anna", "amount": 3},
            {"tidemark-key": "a", "tidemark-sequence": 8},
        ),
        ("b", None, {"tidemark-key": "b", "tidemark-sequence": 7, "x-tombstone": True}),
    ]


def test_a_keyed_stream_behind_the_exchange_is_a_copy(
    make: Make, channel: Any, db: Client, name: str
) -> None:
    arguments = {"x-queue-type": "stream", "x-stream-key": "routing-key"}
    channel.queue_declare(f"{name}-copy", durable=True, arguments=arguments)
    channel.queue_bind(f"{name}-copy", name, "#")
    sink = make()
    sink.apply(FIRST)
    sink.apply(SECOND)
    with db.stream(f"{name}-copy").snapshot() as snapshot:
        rows = {
            row.key.decode(): row.headers["tidemark-sequence"]
            for row in snapshot
            if row.key and not row.deleted
        }
    assert the_digest(rows) == the_digest({"a": 8})


def test_columns_make_the_routing_key_and_one_may_be_the_body(make: Make, channel: Any, name: str) -> None:
    sink = make(routing_key="orders.{name}.{amount}", body_column="name", deletes="ignore")
    sink.apply(FIRST)
    sink.apply(SECOND)
    assert [(key, body) for key, body, _ in messages(channel, name)] == [
        ("orders.Ann.1", b"Ann"),
        ("orders.Bob.2", b"Bob"),
        ("orders.Anna.3", b"Anna"),
    ]


def test_results_are_messages_of_every_batch_once(make: Make, channel: Any, name: str) -> None:
    rows = pa.table({"country": ["de", None], "n": [1, 2]})
    for mode in ("append", "update"):
        sink = make(rows.schema, mode, routing_key=f"{mode}.{{country}}")
        sink.apply(a_result(rows, mode=mode, batch=0))
        assert sink.apply(a_result(rows, mode=mode, batch=0)).skipped
        found = messages(channel, name)
        assert [(key, json.loads(body)["n"], headers) for key, body, headers in found] == [
            (f"{mode}.de", 1, {}),
            (f"{mode}.", 2, {}),
        ]
        sink.reset(drop=False)


def test_a_message_that_no_queue_wants_refuses_the_whole_batch(make: Make, channel: Any, name: str) -> None:
    sink = make()
    channel.queue_unbind(name, name, "#")
    channel.queue_bind(name, name, "a")
    with pytest.raises(SinkRefused, match="no queue gets messages of exchange"):
        sink.apply(FIRST)
    assert messages(channel, name) == []
    assert sink.open() is None

    channel.queue_bind(name, name, "#")
    sink.apply(FIRST)
    assert len(messages(channel, name)) == 2


def test_a_full_queue_refuses_the_whole_batch(make: Make, channel: Any, name: str) -> None:
    arguments = {"x-max-length": 3, "x-overflow": "reject-publish"}
    channel.queue_declare(f"{name}-full", durable=True, arguments=arguments)
    channel.queue_bind(f"{name}-full", name, "#")
    sink = make()
    sink.apply(FIRST)
    with pytest.raises(SinkRefused, match="is full"):
        sink.apply(SECOND)
    assert len(messages(channel, f"{name}-full")) == 2
    assert sink.open() == FIRST.mark


def test_an_exchange_that_is_not_there_is_named(make: Make, db: Client) -> None:
    sink = make(exchange="nowhere")
    with pytest.raises(SinkRefused, match="nowhere"):
        sink.apply(FIRST)


def test_a_zombie_publishes_nothing(make: Make, channel: Any, name: str, db: Client) -> None:
    rival, zombie = make(), make()
    commit, rested = zombie._broker.commit, False

    def late(change: Any, fill: Any) -> bool:
        def wake(transaction: Any) -> None:
            nonlocal rested
            if not rested:
                rested = True
                rival.apply(FIRST)
            fill(transaction)

        return commit(change, wake)

    zombie._broker.commit = late  # type: ignore[method-assign]
    assert zombie.apply(FIRST).skipped
    assert rested
    assert len(messages(channel, name)) == 2
    assert db.stream(MARKS).get(f"{PIPELINE}/s/{name}") is not None


def test_ten_thousand_messages_are_one_transaction(make: Make, channel: Any, name: str) -> None:
    sink = make()
    sink.apply(a_change({f"k{n}": (n + 1, "x", n) for n in range(10_000)}, end=10_000))
    assert channel.queue_declare(name, passive=True).method.message_count == 10_000


def test_a_batch_of_more_messages_than_a_transaction_takes_says_what_to_change(
    make: Make, channel: Any
) -> None:
    sink = make()
    with pytest.raises(SinkRefused, match=r"40,000 rows does not fit.*put_slow_rows_max.*max_rows_per_batch"):
        sink.apply(a_change({f"k{n}": (n + 1, "x", n) for n in range(40_000)}, end=40_000))


def test_a_routing_key_that_amqp_cannot_carry_names_its_row(make: Make, channel: Any) -> None:
    with pytest.raises(RowRefused, match=r"at sequence 5: its routing key has 300 bytes"):
        make().apply(a_change({"k" * 300: (5, "x", 1)}, end=5))
    schema = COLUMNS.set(0, pa.field("_key", pa.binary()))
    with pytest.raises(RowRefused, match=r"0xff.*not text"):
        make(schema).apply(a_change(pa.table([[b"\xff"], [5], ["x"], [1]], schema=schema), end=5))


def test_what_messages_cannot_do_is_refused(make: Make, channel: Any) -> None:
    sink = make()
    with pytest.raises(SinkRefused, match="not kept here"):
        sink.digest()
    with pytest.raises(SinkRefused, match="cannot be taken back"):
        sink.reset(drop=True)


def test_bad_options_are_refused_before_anything_starts(make: Make, channel: Any) -> None:
    for options, word in [
        ({}, "exchange"),
        ({"exchange": "x", "routing_key": "{"}, "orders.{column}"),
        ({"exchange": "x", "routing_key": "{}"}, "orders.{column}"),
        ({"exchange": "x", "deletes": "maybe"}, "ignore"),
        ({"exchange": "x", "exchnge": "y"}, "did you mean 'exchange'"),
    ]:
        with pytest.raises(OptionError, match=word):
            AMQPSink("s", PIPELINE, options)
    with pytest.raises(OptionError, match=r"only {_key} is known"):
        make(routing_key="{name}")
    with pytest.raises(OptionError, match="no column 'nam'"):
        make(routing_key="{nam}", deletes="ignore")
    with pytest.raises(OptionError, match="CAST"):
        make(body_column="amount")
