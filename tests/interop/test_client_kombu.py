"""kombu: producers, consumers, pools and the queue class, over py-amqp."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import kombu
import pytest
from helpers.amqp import eventually
from helpers.broker import Address
from kombu.pools import connections, producers


@pytest.fixture
def connection(broker: Address) -> Iterator[kombu.Connection]:
    with kombu.Connection(broker.url(), connect_timeout=5) as opened:
        yield opened


def test_a_producer_and_a_consumer_exchange_python_objects(connection: kombu.Connection, name: str) -> None:
    exchange = kombu.Exchange(name, "direct", durable=False, auto_delete=True)
    queue = kombu.Queue(name, exchange, routing_key="k", exclusive=True)
    received: list[Any] = []

    def take(body: Any, message: kombu.Message) -> None:
        received.append(body)
        message.ack()

    with kombu.Consumer(connection, queues=[queue], callbacks=[take], prefetch_count=5):
        producer = connection.Producer(serializer="json")
        for number in range(25):
            producer.publish({"n": number}, exchange=exchange, routing_key="k", declare=[queue], retry=True)
        while len(received) < 25:
            connection.drain_events(timeout=5)
    assert received == [{"n": number} for number in range(25)]


def test_compressed_messages_and_priorities(connection: kombu.Connection, name: str) -> None:
    queue = kombu.Queue(name, exclusive=True, max_priority=10, channel=connection.channel())
    queue.declare()
    producer = connection.Producer()
    for priority in (1, 9, 5):
        producer.publish(
            {"p": priority}, routing_key=name, priority=priority, compression="zlib",
            serializer="json",
        )  # fmt: skip
    eventually(lambda: queue.queue_declare(passive=True).message_count == 3)
    got = []
    while (message := queue.get()) is not None:
        got.append(message.payload["p"])
        message.ack()
    assert got == [9, 5, 1]


def test_pools_hand_out_connections_and_producers(broker: Address, name: str) -> None:
    connection = kombu.Connection(broker.url())
    queue = kombu.Queue(name, durable=False, auto_delete=False)
    for number in range(10):
        with producers[connection].acquire(block=True, timeout=5) as producer:
            producer.publish(number, routing_key=name, declare=[queue], serializer="json")
    with connections[connection].acquire(block=True, timeout=5) as pooled:
        bound = queue(pooled.channel())
        got = [bound.get(no_ack=True).payload for _ in range(10)]
        bound.delete()
    kombu.pools.reset()
    assert got == list(range(10))


def test_simple_queue_waits_and_times_out(connection: kombu.Connection, name: str) -> None:
    with connection.SimpleQueue(name, queue_opts={"durable": False, "auto_delete": True}) as simple:
        simple.put("hello")
        message = simple.get(block=True, timeout=5)
        assert message.payload == "hello"
        message.ack()
        with pytest.raises(simple.Empty):
            simple.get(block=True, timeout=0.2)


def test_confirmed_publishing(broker: Address, name: str) -> None:
    options = {"confirm_publish": True}
    with kombu.Connection(broker.url(), transport_options=options) as connection:
        queue = kombu.Queue(name, exclusive=True, channel=connection.channel())
        queue.declare()
        producer = connection.Producer()
        for number in range(10):
            producer.publish(str(number), routing_key=name, delivery_mode=2)
        assert queue.purge() == 10


def test_a_mandatory_message_comes_back(connection: kombu.Connection, name: str) -> None:
    returned: list[Any] = []
    producer = connection.Producer(on_return=lambda *details: returned.append(details[0]))
    producer.publish("x", routing_key=name, mandatory=True)
    try:
        while not returned:
            connection.drain_events(timeout=2)
    except TimeoutError:
        pass
    assert "NO_ROUTE" in str(returned[0])


def test_heartbeats_keep_a_connection(broker: Address) -> None:
    with kombu.Connection(broker.url(), heartbeat=2) as connection:
        connection.connect()
        for _ in range(12):
            connection.heartbeat_check(rate=4)
            try:
                connection.drain_events(timeout=0.25)
            except TimeoutError:
                continue
        assert connection.connected
