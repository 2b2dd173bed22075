"""Streams through the client, against a real broker: puts, transactions, copies, and what ends."""

from __future__ import annotations

import asyncio
import threading
import time
from collections.abc import Callable
from datetime import UTC, datetime, timedelta

import pika
import pyarrow as pa
import pytest
from client.pairs import pairs
from helpers.broker import Address, BrokerProcess

import tidemark.client
from tidemark.client import Client, Conflict, Receipt, RequestTooLarge, connect_async
from tidemark.errors import TidemarkError

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
