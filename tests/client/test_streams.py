"""Streams through the client, against a real broker: the streams themselves, logins, restarts and other clients."""

from __future__ import annotations

import asyncio
import threading

import pika
import pytest
from client.pairs import pairs
from helpers.broker import Address, BrokerProcess

import tidemark.client
from tidemark.client import Client, Conflict, Unconfirmed, connect_async
from tidemark.errors import AccessRefused, LoginRefused, NotFound, TidemarkError

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
    with tidemark.client.connect(f"tidemark://127.0.0.1:{own_broker.address.port}/", timeout=2) as db:
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
