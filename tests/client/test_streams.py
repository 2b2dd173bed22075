"""Streams through the client, against a real broker."""

from __future__ import annotations

import asyncio
import sys
import threading
import time
from collections.abc import Callable
from datetime import UTC, datetime, timedelta
from itertools import chain

import duckdb
import pika
import pyarrow as pa
import pytest
from helpers.broker import Address, BrokerProcess

import tidemark.client
from tidemark.client import (
    Client,
    Conflict,
    LostBranch,
    PackageMissing,
    Receipt,
    RequestTooLarge,
    StreamReset,
    Unconfirmed,
    connect_async,
)
from tidemark.errors import AccessRefused, HistoryGone, LoginRefused, NotFound, TidemarkError

Rows = list[tuple[bytes | None, bytes]]


def pairs(rows: object) -> Rows:
    return [(row.key, row.value) for row in rows]  # type: ignore[attr-defined]


# Streams and logins -----------------------------------------------------------------------------------


def test_a_stream_is_made_described_listed_grown_and_deleted(db: Client, name: str) -> None:
    stream = db.stream(name, create=True, key="explicit", shards=2)
    stream.put("k", b"v")

    info = stream.info()
    assert (info.name, info.shards, info.live) == (name, 2, 1)
    assert name in [one.name for one in db.streams()]
    assert stream.grow(8).shards == 8
    assert db.stream(name).info().shards == 8

    db.delete_stream(name)
    with pytest.raises(NotFound):
        db.stream(name)


def test_a_wrong_password_and_an_unknown_vhost_are_refused_at_once(broker: Address) -> None:
    with pytest.raises(LoginRefused):
        tidemark.client.connect(f"tidemark://guest:wrong@{broker.host}:{broker.port}/", timeout=10)
    with pytest.raises(TidemarkError):
        tidemark.client.connect(f"tidemark://guest:guest@{broker.host}:{broker.port}/nowhere", timeout=10)


def test_declaring_with_nonsense_is_refused_in_words(db: Client, name: str) -> None:
    with pytest.raises(TidemarkError, match="x-stream-key"):
        db.stream(name, create=True, key="colour")


# Writing ------------------------------------------------------------------------------------------------


def test_a_newer_value_buries_the_older_and_a_delete_the_key(db: Client, name: str) -> None:
    stream = db.stream(name, create=True)
    first = stream.put("a", b"1")
    stream.put("b", b"1")
    second = stream.put("a", b"2")
    assert second.sequence > first.sequence and second.history == first.history

    row = stream.get("a")
    assert row is not None and (row.value, row.sequence) == (b"2", second.sequence)
    assert abs(row.time - datetime.now(UTC)) < timedelta(minutes=1)
    stream.delete("a")

    assert stream.get("a") is None and stream.get("never") is None
    with stream.snapshot() as snapshot:
        assert [(row.key, row.value, row.deleted) for row in snapshot] == [
            (b"b", b"1", False), (b"a", b"", True),
        ]  # fmt: skip


def test_a_stream_without_keys_keeps_everything_in_order(db: Client, name: str) -> None:
    stream = db.stream(name, create=True, key="none")
    for n in range(5):
        stream.put(None, b"%d" % n)
    assert pairs(stream.snapshot()) == [(None, b"%d" % n) for n in range(5)]


def test_headers_come_back(db: Client, name: str) -> None:
    stream = db.stream(name, create=True)
    stream.put("k", b"v", headers={"trace": "abc", "n": 5})
    row = stream.get("k")
    assert row is not None and row.headers == {"trace": "abc", "n": 5}
    [row] = stream.snapshot()
    assert row.headers == {"trace": "abc", "n": 5}


def test_a_condition_that_does_not_hold_is_a_conflict_and_stores_nothing(db: Client, name: str) -> None:
    stream = db.stream(name, create=True)
    first = stream.put("k", b"1", expected=0)
    with pytest.raises(Conflict) as conflict:
        stream.put("k", b"other", expected=0)
    assert (conflict.value.key, conflict.value.expected, conflict.value.current) == (b"k", 0, first.sequence)

    second = stream.put("k", b"2", expected=first.sequence)
    tx = db.transaction()
    tx.put(stream, "other", b"x")
    tx.put(stream, "k", b"x", expected=first.sequence)
    with pytest.raises(Conflict):
        tx.commit()
    assert pairs(stream.snapshot()) == [(b"k", b"2")]
    stream.delete("k", expected=second.sequence)
    stream.put("k", b"again", expected=0)


@pytest.mark.parametrize("form", ["pairs", "table", "batch"])
def test_many_rows_are_put_at_once(db: Client, name: str, form: str) -> None:
    stream = db.stream(name, create=True)
    keys, values = [f"k{n}" for n in range(1000)], [b"v%d" % n for n in range(1000)]
    rows = {
        "pairs": lambda: zip(keys, values, strict=True),
        "table": lambda: pa.table({"key": keys, "value": values}),
        "batch": lambda: pa.record_batch({"key": pa.array(keys), "value": pa.array(values)}),
    }[form]()

    receipt = stream.put_many(rows)

    assert receipt.sequence - receipt.first == 999
    assert pairs(stream.snapshot()) == [
        (key.encode(), value) for key, value in zip(keys, values, strict=True)
    ]


def test_what_was_read_from_one_stream_can_be_put_into_another(db: Client, name: str) -> None:
    one, other = db.stream(name, create=True), db.stream(f"{name}-copy", create=True)
    one.put_many([("a", b"1"), ("b", b"2"), ("c", b"3")])
    one.delete("b")

    other.put_many(one.snapshot().to_arrow())

    assert [(row.key, row.value, row.deleted) for row in other.snapshot()] == [
        (b"a", b"1", False), (b"c", b"3", False), (b"b", b"", True),
    ]  # fmt: skip


def test_a_transaction_over_streams_and_a_queue_is_all_or_nothing(
    db: Client, name: str, broker: Address
) -> None:
    a, b = db.stream(f"{name}-a", create=True), db.stream(f"{name}-b", create=True)
    with pika.BlockingConnection(pika.ConnectionParameters(broker.host, broker.port)) as amqp:
        channel = amqp.channel()
        channel.queue_declare(name)
        with db.transaction() as tx:
            tx.put(a, "k", b"1")
            tx.put(b, "k", b"2")
            tx.publish("", name, b"told", headers={"by": "tx"})
            tx.mark(a, "worker", 0)
        assert tx.receipt is not None

        _, properties, body = channel.basic_get(name, auto_ack=True)
        assert (body, properties.headers) == (b"told", {"by": "tx"})
        assert pairs(a.snapshot()) == [(b"k", b"1")] and pairs(b.snapshot()) == [(b"k", b"2")]

        tx = db.transaction()
        tx.put(a, "k", b"never")
        tx.publish("no-such-exchange", "x", b"")
        with pytest.raises(TidemarkError):
            tx.commit()
        assert pairs(a.snapshot()) == [(b"k", b"1")]
        channel.queue_delete(name)


def test_a_batch_over_the_brokers_limit_is_refused_before_it_is_sent(db: Client, name: str) -> None:
    stream = db.stream(name, create=True)
    with pytest.raises(RequestTooLarge, match="put it in parts"):
        stream.put_many([("a", bytes(40 << 20)), ("b", bytes(40 << 20))])
    assert pairs(stream.snapshot()) == []


def test_receipts_are_safe_here_and_foreign_ones_are_not_known(db: Client, name: str) -> None:
    receipt = db.stream(name, create=True).put("k", b"v")
    assert db.await_safe(receipt) == "yes"
    assert db.await_safe(Receipt(receipt.history, receipt.sequence + 100_000), timeout=0) == "not yet"
    with pytest.raises(TidemarkError, match="not known here"):
        db.await_safe(Receipt("00" * 16, 5), timeout=0)
    with pytest.raises(TidemarkError):
        db.await_safe(receipt, replicas=3)


def test_a_producers_resend_is_a_duplicate_and_numbers_go_on_after_a_restart(db: Client, name: str) -> None:
    stream = db.stream(name, create=True, key="none")
    with db.producer(f"{name}-p") as producer:
        first = producer.put(stream, None, b"1")
        assert (producer.last, first.duplicate) == (1, False)
        again = producer.put(stream, None, b"1", number=1)
        assert again.duplicate
        with producer.transaction() as tx:
            tx.put(stream, None, b"2")
    with db.producer(f"{name}-p") as producer:
        assert producer.last == 2
        producer.put_many(stream, [(None, b"3")])
    assert [row.value for row in stream.snapshot()] == [b"1", b"2", b"3"]


# Reading --------------------------------------------------------------------------------------------------


def test_a_snapshot_is_frozen_repeatable_and_verified(db: Client, name: str) -> None:
    stream = db.stream(name, create=True)
    stream.put_many((f"k{n:04}", b"old") for n in range(3000))
    seen: list[tuple[int, int]] = []

    with stream.snapshot(progress=lambda done, all_: seen.append((done, all_))) as snapshot:
        before = snapshot.sequence
        stream.put_many((f"k{n:04}", b"new") for n in range(0, 3000, 2))
        stream.delete("k0001")
        rows = pairs(snapshot.rows())
        first = snapshot.marker
        assert len(rows) == 3000 and {value for _, value in rows} == {b"old"}
        assert pairs(snapshot.rows()) == rows
        assert first is not None and first.verified and (first.count, first.tombstones) == (3000, 0)
        assert (first.start, first.end) == (0, before)
        assert snapshot.marker == first
    assert seen[-1] == (3000, 3000)
    with stream.snapshot() as snapshot:
        list(snapshot)
        assert snapshot.marker is not None
        assert (snapshot.marker.count, snapshot.marker.tombstones) == (2999, 1)


def test_a_snapshot_as_arrow_has_the_same_rows_and_marker(db: Client, name: str) -> None:
    stream = db.stream(name, create=True, shards=4)
    stream.put_many((f"k{n}", b"v%d" % n, {"n": n}) for n in range(500))
    stream.delete("k7")
    with stream.snapshot() as snapshot:
        rows = list(snapshot.rows())
        marker = snapshot.marker
        table = snapshot.to_arrow()
        assert snapshot.marker == marker
        projected = snapshot.to_arrow(columns=["sequence", "shard", "headers"])
        assert snapshot.marker is not None and not snapshot.marker.verified

    assert table.column_names == ["key", "value", "deleted", "sequence", "timestamp"]
    assert table.column("key").to_pylist() == [row.key for row in rows]
    assert table.column("value").to_pylist() == [row.value for row in rows]
    assert table.column("deleted").to_pylist() == [row.deleted for row in rows]
    assert projected.column("sequence").to_pylist() == [row.sequence for row in rows]
    assert set(projected.column("shard").to_pylist()) == {0, 1, 2, 3}
    assert projected.column("headers").to_pylist()[0] == [{"key": "n", "value": b"0"}]


def test_an_empty_snapshot_as_arrow_has_its_columns(db: Client, name: str) -> None:
    table = db.stream(name, create=True).snapshot().to_arrow()
    assert table.num_rows == 0 and "key" in table.column_names


def test_parts_of_a_snapshot_by_sequence_key_shard_and_column(db: Client, name: str) -> None:
    stream = db.stream(name, create=True, shards=4)
    stream.put_many((f"k{n:03}", b"v") for n in range(100))
    with stream.snapshot() as snapshot:
        rows = list(snapshot.rows())
        middle = rows[49].sequence
        assert list(snapshot.rows(until=middle)) + list(snapshot.rows(after=middle)) == rows
        assert pairs(snapshot.rows(key_from="k010", key_to="k020")) == [
            (b"k%03d" % n, b"v") for n in range(10, 20)
        ]
        assert snapshot.marker is not None and snapshot.marker.verified and snapshot.marker.count == 10
        by_shard = [list(snapshot.rows(shards=[shard])) for shard in range(4)]
        assert all(by_shard) and sorted(chain(*by_shard), key=lambda row: row.sequence) == rows
        keys = list(snapshot.rows(columns=["key"]))
        assert [row.key for row in keys] == [row.key for row in rows]
        assert all(row.value == b"" and row.sequence == 0 for row in keys)


def test_only_what_changed_since_can_be_read(db: Client, name: str) -> None:
    stream = db.stream(name, create=True)
    stream.put_many([("a", b"1"), ("b", b"1")])
    with stream.snapshot() as snapshot:
        position = snapshot.position
    stream.put("b", b"2")
    stream.delete("a")
    with stream.snapshot(after=position) as changes:
        assert [(row.key, row.deleted) for row in changes] == [(b"b", False), (b"a", True)]


def test_a_difference_names_what_changed_and_what_was_deleted(db: Client, name: str) -> None:
    stream = db.stream(name, create=True)
    stream.put_many([("same", b"1"), ("changed", b"1"), ("gone", b"1")])
    a = stream.put("last", b"1")
    stream.put("changed", b"2")
    stream.put("changed", b"3")
    stream.put("new", b"1")
    b = stream.delete("gone")

    difference = stream.diff(a, b)

    assert [(row.key, row.value, row.deleted) for row in difference] == [
        (b"changed", b"3", False), (b"new", b"1", False), (b"gone", b"", True),
    ]  # fmt: skip
    assert difference.summary == (2, 1)


def test_the_past_can_be_read_as_long_as_it_is_kept(db: Client, name: str) -> None:
    stream = db.stream(name, create=True, history=3600)
    first = stream.put("k", b"1")
    stream.put("k", b"2")
    time.sleep(0.05)
    between = datetime.now(UTC)
    time.sleep(0.05)
    stream.put("k", b"3")

    assert pairs(stream.as_of(sequence=first)) == [(b"k", b"1")]
    assert pairs(stream.as_of(time=between)) == [(b"k", b"2")]
    assert pairs(stream.as_of(time=time.time() + 5)) == [(b"k", b"3")]
    with pytest.raises(TypeError, match="either a sequence or a time"):
        stream.as_of()


def test_a_past_that_is_not_kept_is_an_error(db: Client, name: str) -> None:
    stream = db.stream(name, create=True)
    first = stream.put("k", b"1")
    stream.put("k", b"2")
    stream.put("k", b"3")

    def gone() -> bool:
        try:
            list(stream.as_of(sequence=first))
        except HistoryGone:
            return True
        return False

    from helpers.amqp import eventually

    eventually(gone)


def test_a_pin_stays_the_same_while_its_keys_are_rewritten(db: Client, name: str) -> None:
    stream = db.stream(name, create=True)
    stream.put_many((f"k{n}", b"old") for n in range(100))
    pin = stream.pin("nightly", lease=60)
    before, marker = list(pin.read()), pin.marker
    stream.put_many((f"k{n}", b"new") for n in range(100))
    stream.delete("k3")

    assert list(pin.read()) == before and pin.marker == marker
    assert (
        list(stream.pinned("nightly").read(after=before[9].sequence, until=before[19].sequence))
        == before[10:20]
    )
    [info] = stream.pins()
    assert (info.name, info.sequence) == ("nightly", pin.sequence) and info.bytes_kept > 0
    assert info.lease_until_ms > time.time() * 1000 + 30_000
    assert stream.pin("nightly", lease=120).sequence == pin.sequence, "the same name is the same snapshot"
    pin.renew(lease=600)

    pin.release()
    assert stream.pins() == []
    with pytest.raises(TidemarkError):
        list(pin.read())
    with pytest.raises(NotFound):
        stream.pinned("nightly")


# Following ------------------------------------------------------------------------------------------------


def test_following_gives_rows_and_boundaries_and_keeps_the_mark(db: Client, name: str) -> None:
    stream = db.stream(name, create=True)
    stream.put_many([("a", b"1"), ("b", b"1")])

    batches = list(stream.follow("loader", idle=0.3))
    assert [pairs(batch) for batch in batches if len(batch)] == [[(b"a", b"1"), (b"b", b"1")]]
    assert batches[-1].marker is not None and batches[-1].marker.verified
    mark = stream.mark("loader")
    assert mark is not None and mark.sequence == batches[-1].position and mark.history == batches[-1].history

    stream.put("b", b"2")
    stream.put("b", b"3")
    assert [pairs(batch) for batch in stream.follow("loader", idle=0.3) if len(batch)] == [[(b"b", b"3")]]
    assert [one.consumer for one in stream.marks()] == ["loader"]


def test_a_follower_hears_of_what_is_put_while_it_waits(db: Client, name: str, url: str) -> None:
    stream = db.stream(name, create=True)
    seen: list[bytes] = []

    def follow() -> None:
        with tidemark.client.connect(url) as other:
            for batch in other.stream(name).follow(start="next", idle=10):
                seen.extend(row.value for row in batch)
                if b"end" in seen:
                    return

    thread = threading.Thread(target=follow)
    thread.start()
    time.sleep(0.3)
    for n in range(5):
        stream.put(f"k{n}", b"%d" % n)
    stream.put("end", b"end")
    thread.join(10)
    assert not thread.is_alive()
    assert seen == [b"0", b"1", b"2", b"3", b"4", b"end"]


def test_marks_are_moved_and_reset_by_hand(db: Client, name: str) -> None:
    stream = db.stream(name, create=True)
    receipts = [stream.put(f"k{n}", b"v") for n in range(4)]
    stream.register("c", lease=60)
    stream.move_mark("c", receipts[2])
    mark = stream.mark("c")
    assert mark is not None and mark.sequence == receipts[2].sequence
    assert mark.lease_until_ms is not None and mark.lease_until_ms > time.time() * 1000
    assert [row.key for batch in stream.follow("c", commit=None, idle=0.3) for row in batch] == [b"k3"]

    stream.reset_mark("c")
    assert len([row for batch in stream.follow("c", commit=None, idle=0.3) for row in batch]) == 4
    stream.unregister("c")
    assert stream.mark("c") is None


def test_a_follower_starts_where_it_is_told(db: Client, name: str) -> None:
    stream = db.stream(name, create=True, key="none")
    receipts = [stream.put(None, b"%d" % n) for n in range(4)]

    def read(start: object) -> list[bytes]:
        return [row.value for batch in stream.follow(start=start, idle=0.3) for row in batch]  # type: ignore[arg-type]

    assert read(None) == read("first") == [b"0", b"1", b"2", b"3"]
    assert read("last") == [b"3"]
    assert read("next") == []
    assert read(receipts[1]) == read(receipts[1].sequence) == [b"2", b"3"]
    assert read(datetime(2000, 1, 1, tzinfo=UTC)) == [b"0", b"1", b"2", b"3"]
    [rows, boundary] = stream.follow(columns=["sequence"], idle=0.3)
    assert [row.sequence for row in rows] == [one.sequence for one in receipts]
    assert boundary.marker is not None and not boundary.marker.verified


def test_a_consumer_that_missed_deletes_starts_over(
    start_broker: Callable[..., BrokerProcess],
) -> None:
    broker = start_broker()
    with tidemark.client.connect(f"tidemark://127.0.0.1:{broker.address.port}/") as db:
        stream = db.stream("s", create=True, tombstone_lease=0.2)
        stream.put_many([("a", b"1"), ("b", b"1")])
        assert [len(batch) for batch in stream.follow("c", lease=0.2, idle=0.3) if len(batch)] == [2]
        stream.delete("a")
        deadline = time.monotonic() + 20
        while True:
            time.sleep(0.3)
            stream.put("b", b"2")  # something must go on for the stream to be looked at
            try:
                list(stream.follow("c", commit=None, idle=0.1))
            except tidemark.client.StreamReset:
                break
            assert time.monotonic() < deadline

        batches = list(stream.follow("c", idle=0.3, on_reset="restart"))
        assert batches[0].reset
        assert [row.key for batch in batches for row in batch] == [b"b"]


def test_heads_answer_as_soon_as_there_is_more(db: Client, name: str) -> None:
    stream = db.stream(name, create=True)
    head = db.heads([name])[name]
    found: list[int] = []
    waiting = threading.Thread(
        target=lambda: found.append(db.heads([name], after={name: head.sequence}, wait=10)[name].sequence)
    )
    began = time.monotonic()
    waiting.start()
    time.sleep(0.2)
    receipt = stream.put("k", b"v")
    waiting.join(10)
    assert found == [receipt.sequence] and time.monotonic() - began < 5


# Permissions, restarts, AMQP --------------------------------------------------------------------------------


def test_permissions_are_those_of_amqp(own_broker: BrokerProcess) -> None:
    import httpx

    admin = f"http://{own_broker.admin.host}:{own_broker.admin.port}/api"
    login = ("guest", "guest")
    httpx.put(f"{admin}/users/ann", json={"password": "secret", "tags": ""}, auth=login).raise_for_status()
    allowed = {"configure": "", "write": "", "read": "^s$"}
    httpx.put(f"{admin}/permissions/%2F/ann", json=allowed, auth=login).raise_for_status()
    port = own_broker.address.port
    with (
        tidemark.client.connect(f"tidemark://127.0.0.1:{port}/") as db,
        tidemark.client.connect(f"tidemark://ann:secret@127.0.0.1:{port}/") as ann,
    ):
        db.stream("s", create=True).put("k", b"v")
        stream = ann.stream("s")
        assert pairs(stream.snapshot()) == [(b"k", b"v")]
        with pytest.raises(AccessRefused):
            stream.put("k", b"mine")
        with pytest.raises(AccessRefused):
            ann.stream("other", create=True)


def test_everything_is_there_after_kill_9(own_broker: BrokerProcess) -> None:
    with tidemark.client.connect(f"tidemark://127.0.0.1:{own_broker.address.port}/", timeout=30) as db:
        stream = db.stream("s", create=True)
        stream.put_many((f"k{n}", b"old") for n in range(500))
        pin = stream.pin("held", lease=600)
        before, marker = list(pin.read()), pin.marker
        receipt = stream.put_many((f"k{n}", b"new") for n in range(500))
        list(stream.follow("loader", idle=0.3))
        producer = db.producer("p")
        producer.put(stream, "k0", b"newest")

        own_broker.kill()
        own_broker.start()

        assert list(pin.read()) == before
        assert pin.marker is not None and marker is not None and pin.marker.hash == marker.hash
        assert db.await_safe(receipt) == "yes"
        assert {row.value for row in stream.snapshot()} == {b"new", b"newest"}
        mark = stream.mark("loader")
        assert mark is not None and mark.sequence == receipt.sequence
        assert [pairs(batch) for batch in stream.follow("loader", idle=0.3) if len(batch)] == [
            [(b"k0", b"newest")]
        ]
        assert producer.put(stream, "k0", b"newest", number=1).duplicate
        producer.put(stream, "k1", b"after")


def test_a_connection_that_died_while_nobody_used_it_is_replaced_before_a_write(
    own_broker: BrokerProcess,
) -> None:
    with tidemark.client.connect(f"tidemark://127.0.0.1:{own_broker.address.port}/") as db:
        stream = db.stream("s", create=True)
        stream.put("k", b"1")
        own_broker.restart()
        stream.put("k", b"2")
        own_broker.kill()
        own_broker.start()
        stream.put("k", b"3")
        assert pairs(stream.snapshot()) == [(b"k", b"3")]


@pytest.mark.slow
def test_a_subscription_and_a_producer_outlive_the_broker(own_broker: BrokerProcess) -> None:
    url = f"tidemark://127.0.0.1:{own_broker.address.port}/"
    stop = threading.Event()
    numbers: list[int] = []

    def produce() -> None:
        with tidemark.client.connect(url, timeout=30) as db, db.producer("source") as producer:
            while not stop.is_set() or len(numbers) < 50:
                number = len(numbers)
                producer.put("s", None, b"%d" % number)
                numbers.append(number)

    with tidemark.client.connect(url, timeout=30) as db:
        db.stream("s", create=True, key="none")
        thread = threading.Thread(target=produce)
        thread.start()
        seen: list[int] = []
        kills = 0
        for batch in db.stream("s").follow(idle=8):
            seen.extend(int(row.value) for row in batch)
            if len(seen) > 20 * (kills + 1) and kills < 3:
                own_broker.kill()
                own_broker.start()
                kills += 1
            if kills == 3 and not stop.is_set():
                stop.set()
                thread.join(30)
            if stop.is_set() and len(seen) >= len(numbers):
                break
    assert seen == numbers, "each once, in order, whatever happened in between"


def test_a_write_that_the_broker_never_answers_is_unconfirmed(own_broker: BrokerProcess) -> None:
    with tidemark.client.connect(f"tidemark://127.0.0.1:{own_broker.address.port}/", timeout=0.5) as db:
        stream = db.stream("s", create=True)
        own_broker.pause()
        try:
            with pytest.raises(Unconfirmed, match="may or may not be stored"):
                stream.put("k", b"v")
        finally:
            own_broker.resume()
        assert stream.put("other", b"v").sequence > 0


def test_what_amqp_publishes_the_client_reads_and_the_other_way_round(
    db: Client, name: str, broker: Address
) -> None:
    stream = db.stream(name, create=True, key="routing-key")
    with pika.BlockingConnection(pika.ConnectionParameters(broker.host, broker.port)) as amqp:
        channel = amqp.channel()
        channel.confirm_delivery()
        channel.exchange_declare(name, "topic")
        channel.queue_bind(name, name, "#")
        for body in (b"1", b"2"):
            channel.basic_publish(name, "order.7", body, pika.BasicProperties(headers={"h": 1}))
        channel.basic_publish(name, "order.8", b"3")
        row = stream.get("order.7")
        assert row is not None and (row.value, row.headers) == (b"2", {"h": 1})
        assert pairs(stream.snapshot()) == [(b"order.7", b"2"), (b"order.8", b"3")]

        stream.put("order.9", b"4")
        channel.basic_qos(prefetch_count=10)
        got: dict[object, bytes] = {}
        consuming = channel.consume(name, arguments={"x-stream-offset": "first"}, inactivity_timeout=2)
        for method, properties, body in consuming:
            if method is None:
                break
            assert properties is not None and properties.headers is not None and body is not None
            got[properties.headers.get("x-stream-key")] = body
            channel.basic_ack(method.delivery_tag)
            if len(got) == 3:
                break
        channel.cancel()
        assert sorted(got.values()) == [b"2", b"3", b"4"]


# The asyncio client -------------------------------------------------------------------------------------------


def test_the_asyncio_client_does_the_same(url: str, name: str) -> None:
    async def story() -> None:
        async with connect_async(url, timeout=20) as db:
            stream = await db.stream(name, create=True, history=600)
            await asyncio.gather(*(stream.put(f"k{n}", b"v") for n in range(100)))
            receipt = await stream.put_many([("a", b"1"), ("k1", None)])
            assert await db.await_safe(receipt) == "yes"
            async with db.transaction() as tx:
                tx.put(stream, "t", b"1")
            with pytest.raises(Conflict):
                await stream.put("t", b"2", expected=0)
            async with stream.snapshot() as snapshot:
                rows = [row async for row in snapshot]
                table = await snapshot.to_arrow()
                assert snapshot.marker is not None and snapshot.marker.verified
            assert len(rows) == table.num_rows == 102
            async with stream.pin("p", lease=60) as pin:
                await stream.put("later", b"v")
                assert [row async for row in pin.read()] == rows
            assert await stream.pins() == []
            newest = (await db.heads([name]))[name].sequence
            difference = stream.diff(receipt, newest)
            assert {row.key async for row in difference} == {b"t", b"later"}
            async with stream.follow("c", idle=0.3) as batches:
                found = [row.key async for batch in batches for row in batch]
            assert len(found) == 103
            mark = await stream.mark("c")
            assert mark is not None and mark.sequence >= newest
            async with db.producer(f"{name}-p") as producer:
                assert not (await producer.put(stream, "x", b"1")).duplicate
            row = await stream.get("a")
            assert row is not None and row.value == b"1"

    asyncio.run(story())


def test_followers_of_different_shards_share_a_mark_and_skip_nothing(db: Client, name: str) -> None:
    stream = db.stream(name, create=True, shards=2)
    stream.put_many([(f"k{number}", b"v") for number in range(40)])
    first = [row.key for batch in stream.follow("c", shards=[0], idle=1) for row in batch]
    mark = stream.mark("c")
    assert mark is not None and mark.shards[0] > mark.shards[1]
    second = [row.key for batch in stream.follow("c", shards=[1], idle=1) for row in batch]
    assert first and second and len({*first, *second}) == 40
    assert [row for batch in stream.follow("c", shards=[0], idle=0.5) for row in batch] == []


# Pieces, and how far behind -----------------------------------------------------------------------------


def test_a_pin_and_a_snapshot_are_cut_into_pieces_that_together_are_all_of_it(db: Client, name: str) -> None:
    stream = db.stream(name, create=True, shards=4)
    stream.put_many([(f"k{n}", b"v" * (n % 10)) for n in range(1000)])
    stream.delete("k7")
    with stream.pin("p") as pin:
        stream.put_many([(f"k{n}", b"rewritten") for n in range(500)])
        whole = list(pin.read())

        pieces = pin.cut(rows=64)
        assert [piece.rows for piece in pieces] == [64] * 15 + [40]
        found, after = [], 0
        for piece in pieces:
            part = list(pin.read(after=after, until=piece.until))
            assert (piece.rows, piece.bytes) == (len(part), sum(len(row.value) for row in part))
            found += part
            after = piece.until
        assert found == whole and after == pin.sequence
        assert [piece.rows for piece in pin.cut(parts=4)] == [250] * 4
        assert pin.cut(bytes=1000, limit=2) == pin.cut(bytes=1000)[:2]
        assert sum(pin.cut(shards=[shard])[0].rows for shard in range(pin.shards)) == 1000
        assert pin.cut(after=pin.sequence) == []
        assert stream.pinned("p").cut(rows=64) == pieces and stream.pinned("p").history == pin.history
    with stream.snapshot() as snapshot:
        assert snapshot.cut() == [(snapshot.sequence, 1000, snapshot.cut()[0].bytes)]
        assert len(snapshot.cut(rows=1)) == 1000


def test_a_cut_that_cannot_be_is_refused_in_words(db: Client, name: str) -> None:
    stream = db.stream(name, create=True)
    stream.put("k", b"v")
    with stream.pin("p") as pin:
        with pytest.raises(TidemarkError, match="at most 100000 pieces"):
            pin.cut(rows=1, limit=10**9)
        with pytest.raises(TidemarkError, match="both were given"):
            pin.cut(rows=1, parts=2)
    with pytest.raises(TidemarkError, match="pin"):
        pin.cut(rows=1)


def test_the_lag_of_a_place_is_what_changed_since_each_key_once(db: Client, name: str) -> None:
    stream = db.stream(name, create=True, shards=2)
    stream.put_many([(f"k{n}", b"12345") for n in range(100)])
    middle = stream.put("k0", b"1")
    assert stream.lag(0) == (100, 99 * 5 + 1)
    assert stream.lag(middle) == (0, 0)

    for value in (b"a", b"ab", b"abc"):
        stream.put("k1", value)
    stream.delete("k2")

    assert stream.lag(middle) == (2, 3)
    assert stream.lag(0) == (100, 97 * 5 + 1 + 3)
    assert sum(stream.lag(middle, shards=[shard]).rows for shard in range(2)) == 2
    with pytest.raises(TidemarkError, match="shards of this stream"):
        stream.lag(0, shards=[7])


def test_pieces_and_lag_are_told_to_asyncio_too(url: str, db: Client, name: str) -> None:
    db.stream(name, create=True).put_many([(f"k{n}", b"v") for n in range(10)])

    async def story() -> None:
        async with connect_async(url, timeout=20) as client:
            stream = await client.stream(name)
            assert await stream.lag(0) == (10, 10)
            async with stream.snapshot() as snapshot:
                assert [piece.rows for piece in await snapshot.cut(rows=4)] == [4, 4, 2]
            async with stream.pin("p") as pin:
                assert [piece.rows for piece in await pin.cut(parts=2)] == [5, 5]

    asyncio.run(story())


# Staged rows ----------------------------------------------------------------------------------------------


def test_staged_rows_become_visible_at_once_and_those_that_nobody_names_never(db: Client, name: str) -> None:
    staging = db.stream(f"{name}-staging", create=True, key="log", max_age="1D")
    target = db.stream(name, create=True)
    target.put("c", b"old")
    one = staging.put_many([("a", b"1", {"trace": "t"}), ("b", b"2")])
    staging.put_many([("a", b"a zombie's")])
    two = staging.put_many(pa.table({"key": ["c", "d"], "value": [None, b"4"], "deleted": [True, False]}))
    assert [row.key for row in staging.snapshot()] == [b"a", b"b", b"a", b"c", b"d"]

    with db.producer(f"{name}-spark") as producer:
        for expected in (False, True):
            with producer.transaction(number=1) as tx:
                for receipt in (one, two):
                    tx.copy(staging, receipt.first, receipt.sequence, into=target)
                tx.publish("", name, b"an ordinary message")
            assert tx.receipt is not None and tx.receipt.duplicate is expected

    rows = list(target.snapshot())
    assert [(row.key, row.value, row.deleted) for row in rows] == [
        (b"a", b"1", False), (b"b", b"2", False), (b"c", b"", True), (b"d", b"4", False),
        (None, b"an ordinary message", False),
    ]  # fmt: skip
    assert rows[0].headers == {"trace": "t"}


def test_a_copy_that_cannot_be_done_whole_is_not_done_at_all(db: Client, name: str) -> None:
    staging = db.stream(f"{name}-staging", create=True, key="log")
    target = db.stream(name, create=True)
    one = staging.put_many([("a", b"1"), ("b", b"2")])
    elsewhere = target.put("x", b"y")
    two = staging.put("c", b"3")

    tx = db.transaction()
    tx.put(target, "with it", b"v")
    tx.copy(staging, one.first, two.sequence, into=target)
    with pytest.raises(TidemarkError, match="1 of the first 4 are not there"):
        tx.commit()
    with pytest.raises(ValueError, match="no range of rows"):
        tx.copy(staging, 0, 5, into=target)
    assert target.lag(elsewhere) == (0, 0)


def test_puts_of_a_connection_keep_their_order_around_a_long_copy(url: str, name: str) -> None:
    async def story() -> None:
        async with connect_async(url, timeout=30) as client:
            staging = await client.stream(f"{name}-staging", create=True, key="log")
            target = await client.stream(name, create=True)
            receipts = [
                await staging.put_many(
                    [(f"k{n}", b"staged" * 50) for n in range(part * 5000, part * 5000 + 5000)]
                )
                for part in range(10)
            ]
            tx = client.transaction()
            for receipt in receipts:
                tx.copy(staging, receipt.first, receipt.sequence, into=target)
            before = asyncio.create_task(target.put("k0", b"before"))
            copying = asyncio.create_task(tx.commit())
            after = asyncio.create_task(target.put("k1", b"after"))
            done = [await task for task in (before, copying, after)]
            assert done[0].sequence < done[1].first < done[1].sequence < done[2].sequence
            assert (await target.get("k0")).value == b"staged" * 50
            assert (await target.get("k1")).value == b"after"
            assert (await target.info()).live == 50_000

    asyncio.run(story())


def test_a_copy_is_all_there_or_not_at_all_after_the_broker_was_killed(
    start_broker: Callable[..., BrokerProcess], name: str
) -> None:
    broker = start_broker()
    url = f"tidemark://guest:guest@{broker.address.host}:{broker.address.port}/"
    with tidemark.client.connect(url, timeout=30) as db:
        staging = db.stream("staging", create=True, key="log")
        target = db.stream(name, create=True)
        receipts = [staging.put_many([(f"{part}-{n}", b"v" * 100) for n in range(2000)]) for part in range(5)]

        def kill(after_s: float) -> None:
            time.sleep(after_s)
            broker.kill()
            broker.start()

        for number in range(1, 5):
            tx = db.producer("spark").transaction(number=number)
            for receipt in receipts:
                tx.copy(staging, receipt.first, receipt.sequence, into=target)
            killer = threading.Thread(target=kill, args=(0.005 * number,))
            killer.start()
            done = tx.commit()
            killer.join()
            assert done is not None
            with target.snapshot() as snapshot:
                sequences = [row.sequence for row in snapshot]
            assert sequences == list(range(done.first, done.first + 10_000)), "once, and whole"


# Truncation ---------------------------------------------------------------------------------------------


def test_a_stream_is_truncated_and_purged_and_pins_still_show_it(db: Client, name: str, url: str) -> None:
    stream = db.stream(name, create=True, key="log")
    first = stream.put_many([(f"k{n}", b"v") for n in range(100)])
    stream.put_many([(f"k{n}", b"w") for n in range(100)])
    with stream.pin("p") as pin:
        assert stream.truncate(first) == 100
        assert {row.value for row in stream.snapshot()} == {b"w"}
        assert stream.purge() == 100 and stream.purge() == 0
        assert list(stream.snapshot()) == []
        assert len(list(pin.read())) == 200
    with pytest.raises(TidemarkError, match="the newest sequence is"):
        stream.truncate(1 << 60)

    async def story() -> None:
        async with connect_async(url, timeout=20) as client:
            same = await client.stream(name)
            receipt = await same.put("k", b"v")
            assert await same.truncate(receipt) == 1
            assert await same.purge() == 0

    asyncio.run(story())


def test_what_ended_unread_is_told_by_heads_pins_snapshots_and_info(db: Client, name: str, url: str) -> None:
    stream = db.stream(name, create=True)
    first = stream.put_many([("a", b"1"), ("b", b"1")])
    early = stream.pin("early")
    stream.delete("b")
    receipt = stream.put("c", b"1")
    assert (early.floor, early.purged) == (0, 0)
    assert stream.truncate(first) == 1
    expected = first.sequence + 1, 0
    late = stream.pin("late")
    assert (late.floor, late.purged) == expected
    assert stream.truncate(receipt) == 2

    ended = receipt.sequence + 1, receipt.sequence
    head = db.heads([name])[name]
    assert (head.floor, head.purged) == ended
    with stream.snapshot() as snapshot:
        assert (snapshot.floor, snapshot.purged) == ended
    assert (stream.info().floor, stream.info().purged) == ended
    assert {one.name: (one.floor, one.purged) for one in stream.pins()} == {"early": (0, 0), "late": expected}

    async def story() -> None:
        async with connect_async(url, timeout=20) as client:
            same = await client.stream(name)
            pin = await same.pin("late")
            assert (pin.floor, pin.purged) == expected
            head = (await client.heads([name]))[name]
            assert (head.floor, head.purged) == ended

    asyncio.run(story())


# Messages of queues ---------------------------------------------------------------------------------------


def test_messages_of_a_queue_are_moved_into_a_stream_once(db: Client, broker: Address, name: str) -> None:
    connection = pika.BlockingConnection(pika.URLParameters(broker.url()))
    channel = connection.channel()
    channel.confirm_delivery()
    channel.queue_declare(name, durable=True)
    for n in range(20):
        properties = pika.BasicProperties(headers={"n": n}, delivery_mode=2)
        channel.basic_publish("", name, b"%d" % n, properties)
    stream = db.stream(f"{name}-rows", create=True, key="log")

    for number, expected in ((1, 15), (1, 0), (2, 5), (3, 0)):
        with db.producer(f"{name}-spark").transaction(number=number) as tx:
            tx.take(name, into=stream, limit=15)
        assert tx.receipt is not None and tx.receipt.taken == expected
    assert channel.queue_declare(name, passive=True).method.message_count == 0
    rows = list(stream.snapshot())
    assert [(row.key, row.value, row.headers) for row in rows] == [
        (name.encode(), b"%d" % n, {"n": n}) for n in range(20)
    ]
    with pytest.raises(TidemarkError, match="is a stream"), db.transaction() as tx:
        tx.take(stream.name, into=stream, limit=1)
    with pytest.raises(ValueError, match="at least 1"):
        tx.take(name, into=stream, limit=0)
    with pytest.raises(TidemarkError, match="put_slow_rows_max"), db.transaction() as tx:
        tx.take(name, into=stream, limit=10**9)
    channel.queue_delete(name)
    connection.close()


def test_many_messages_are_published_in_one_operation(db: Client, broker: Address, name: str) -> None:
    connection = pika.BlockingConnection(pika.URLParameters(broker.url()))
    channel = connection.channel()
    channel.queue_declare(name, durable=True)
    with db.transaction() as tx:
        tx.publish_many("", [(name, b"%d" % n, {"n": n} if n % 2 else None) for n in range(3000)])
        assert len(tx) == 1
    found = [channel.basic_get(name, auto_ack=True) for _ in range(3000)]
    assert [body for _, _, body in found] == [b"%d" % n for n in range(3000)]
    assert all(properties.delivery_mode == 2 for _, properties, _ in found)
    assert [properties.headers for _, properties, _ in found[:2]] == [None, {"n": 1}]

    for messages, why in (
        ([(name, b"x"), ("nowhere", b"y")], "no queue gets"),
        ([(name, b"")] * 33_000, "put_slow"),
    ):
        tx = db.transaction()
        tx.publish_many("", messages)
        with pytest.raises(TidemarkError, match=why):
            tx.commit()
    for wrong, error in ((("k" * 300, b""), ValueError), (("k", b"", {}, 1), TypeError)):
        with pytest.raises(error):
            tx.publish_many("", [wrong])
    assert channel.queue_declare(name, passive=True).method.message_count == 0
    channel.queue_delete(name)
    connection.close()


# Places and their histories -------------------------------------------------------------------------------


def test_a_place_of_another_history_is_refused_wherever_it_is_given(db: Client, name: str) -> None:
    stream = db.stream(name, create=True, history=3600)
    old, new = stream.put("k", b"1"), stream.put("k", b"2")
    foreign = old._replace(history="00" * 16)
    for ask in (
        lambda: stream.as_of(sequence=foreign),
        lambda: list(stream.diff(foreign, new)),
        lambda: list(stream.diff(old, foreign)),
        lambda: stream.truncate(foreign),
        lambda: stream.lag(foreign),
        lambda: stream.pin("p", at=foreign),
    ):
        with pytest.raises((StreamReset, LostBranch)):
            ask()
    tx = db.transaction()
    tx.copy(stream, old.first, old.sequence, into=stream, history=foreign.history)
    with pytest.raises((StreamReset, LostBranch)):
        tx.commit()

    assert [row.value for row in stream.as_of(sequence=old)] == [b"1"]
    assert [row.value for row in stream.diff(old, new)] == [b"2"]
    assert [row.value for row in stream.pin("then", at=old).read()] == [b"1"]
    assert [row.value for row in stream.pin("now", at=datetime.now(UTC)).read()] == [b"2"]
    assert {pin.name: pin.shards for pin in stream.pins()} == {"then": 1, "now": 1}


def test_a_mark_in_one_shard_says_of_how_many(db: Client, name: str) -> None:
    stream = db.stream(name, create=True, shards=2)
    receipt = stream.put("k", b"v")
    with pytest.raises(ValueError, match=r"of=snapshot\.shards"):
        stream.move_mark("c", receipt, shard=1)
    with pytest.raises(ValueError, match="say of how many"):
        db.transaction().mark(stream, "c", receipt.sequence, shard=1)
    stream.move_mark("c", receipt, shard=1, of=2)
    with db.transaction() as tx:
        tx.mark(stream, "d", receipt.sequence, shard=0, of=2)
    assert [mark.shards for mark in stream.marks()] == [(0, receipt.sequence), (receipt.sequence, 0)]


def test_a_stream_that_was_made_again_has_another_number(db: Client, name: str) -> None:
    db.stream(name, create=True)
    before = db.heads([name])[name].number
    db.delete_stream(name)
    db.stream(name, create=True)
    assert db.heads([name])[name].number > before > 0


def test_who_does_not_want_the_hash_still_gets_the_count_checked(db: Client, name: str) -> None:
    stream = db.stream(name, create=True)
    stream.put_many([(f"k{n}", b"v") for n in range(10)])
    with stream.snapshot() as snapshot:
        assert sum(batch.num_rows for batch in snapshot.batches(verify=False)) == 10
        assert snapshot.marker is not None and snapshot.marker.hash is None and snapshot.marker.count == 10


def test_pandas_polars_and_duckdb_read_a_snapshot(db: Client, name: str) -> None:
    stream = db.stream(name, create=True)
    stream.put_many([(f"k{n:03}", str(n).encode()) for n in range(100)])
    stream.put_many([(f"k{n:03}", b"7") for n in range(50)])
    total = 50 * 7 + sum(range(50, 100))

    with stream.snapshot() as snapshot:
        pandas, polars, found = snapshot.to_pandas(), snapshot.to_polars(), snapshot.to_arrow()

    assert sum(int(value) for value in pandas["value"]) == total
    assert sum(int(value) for value in polars["value"].to_list()) == total
    sums = duckdb.sql(
        "select sum(cast(cast(value as varchar) as int)), count(distinct key) from found"
    ).fetchall()
    assert found.num_rows == 100
    assert sums == [(total, 100)]


def test_a_missing_package_is_named(db: Client, name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    stream = db.stream(name, create=True)
    for package, method in (("pandas", "to_pandas"), ("polars", "to_polars")):
        monkeypatch.setitem(sys.modules, package, None)
        with pytest.raises(PackageMissing, match=f"pip install {package}"):
            getattr(stream.snapshot(), method)()


def test_an_unknown_vhost_and_a_wrong_age_say_what_to_do(db: Client, broker: Address, name: str) -> None:
    with pytest.raises(TidemarkError, match="tidemark ctl vhosts add nowhere"):
        tidemark.client.connect(f"tidemark://guest:guest@{broker.host}:{broker.port}/nowhere", timeout=10)
    with pytest.raises(TidemarkError, match="'7D', '12h'"):
        db.stream(name, create=True, max_age="soon")
