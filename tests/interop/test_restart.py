"""What is still there after the broker was stopped or killed and started again."""

from __future__ import annotations

import contextlib
import signal
import time
from collections.abc import Callable, Iterator
from typing import Any

import pika
import pytest
from helpers import raw as amqp
from helpers.amqp import Inbox, drain, drain_messages, get_one, put
from helpers.broker import BrokerProcess
from helpers.raw import RawConnection
from pika.adapters.blocking_connection import BlockingChannel
from pika.exceptions import AMQPError, ChannelClosedByBroker

Restart = Callable[[], BlockingChannel]


def opened(process: BrokerProcess) -> BlockingChannel:
    address = process.address
    return pika.BlockingConnection(
        pika.ConnectionParameters(address.host, address.port, socket_timeout=10)
    ).channel()


@pytest.fixture
def channel(own_broker: BrokerProcess) -> Iterator[BlockingChannel]:
    """A confirming channel on the broker before its restart."""
    channel = opened(own_broker)
    channel.confirm_delivery()
    yield channel
    with contextlib.suppress(AMQPError):  # the broker it was on is gone
        channel.connection.close()


@pytest.fixture(params=["killed", "stopped"])
def restart(request: pytest.FixtureRequest, own_broker: BrokerProcess) -> Restart:
    """Ends the broker in this way, starts it again and opens a new channel."""

    def end_and_start() -> BlockingChannel:
        if request.param == "killed":
            own_broker.kill()
        else:
            own_broker.stop()
        return opened(own_broker.start())

    return end_and_start


def exists(channel: BlockingChannel, *, queue: str = "", exchange: str = "") -> bool:
    probe = channel.connection.channel()
    try:
        if queue:
            probe.queue_declare(queue, passive=True)
        else:
            probe.exchange_declare(exchange, passive=True)
    except ChannelClosedByBroker:
        return False
    return True


def test_durable_queues_exchanges_and_bindings_survive_and_others_do_not(
    channel: BlockingChannel, restart: Restart
) -> None:
    arguments = {"x-max-length": 10, "x-dead-letter-exchange": "amq.fanout"}
    channel.queue_declare("kept", durable=True, arguments=arguments)
    channel.queue_declare("gone", durable=False)
    channel.queue_declare("mine", durable=True, exclusive=True)
    channel.exchange_declare("kept", "topic", durable=True)
    channel.exchange_declare("gone", "topic", durable=False)
    channel.exchange_declare("inner", "headers", durable=True, internal=True)
    channel.exchange_bind("inner", "kept", "deep.#")
    channel.queue_bind("kept", "inner", "", {"x-match": "any", "colour": "red"})
    channel.queue_bind("kept", "kept", "a.*")

    channel = restart()
    assert [exists(channel, queue=name) for name in ("kept", "gone", "mine")] == [True, False, False]
    assert [exists(channel, exchange=name) for name in ("kept", "gone")] == [True, False]
    channel.queue_declare("kept", durable=True, arguments=arguments)
    channel.exchange_declare("inner", "headers", durable=True, internal=True)
    channel.basic_publish("kept", "a.b", b"by topic")
    red = pika.BasicProperties(headers={"colour": "red"})
    channel.basic_publish("kept", "deep.down", b"by header", red)
    channel.basic_publish("kept", "deep.down", b"by nothing")
    assert drain(channel, "kept") == [b"by topic", b"by header"]


def test_deleted_things_stay_deleted(channel: BlockingChannel, restart: Restart) -> None:
    channel.queue_declare("q", durable=True)
    channel.exchange_declare("x", "direct", durable=True)
    channel.queue_bind("q", "amq.direct", "k")
    channel.queue_unbind("q", "amq.direct", "k")
    put(channel, "q", b"purged", delivery_mode=2)
    channel.queue_purge("q")
    channel.exchange_delete("x")
    channel.queue_declare("gone", durable=True)
    channel.queue_delete("gone")

    channel = restart()
    channel.basic_publish("amq.direct", "k", b"unbound")
    assert drain(channel, "q") == []
    assert not exists(channel, queue="gone")
    assert not exists(channel, exchange="x")


def test_a_queue_declared_again_after_deletion_does_not_get_the_old_messages(
    channel: BlockingChannel, restart: Restart
) -> None:
    channel.queue_declare("q", durable=True)
    put(channel, "q", b"old", delivery_mode=2)
    channel.queue_delete("q")
    channel.queue_declare("q", durable=True)
    put(channel, "q", b"new", delivery_mode=2)
    assert drain(restart(), "q") == [b"new"]


def test_confirmed_persistent_messages_survive_in_order_with_their_properties(
    channel: BlockingChannel, restart: Restart
) -> None:
    channel.queue_declare("q", durable=True)
    for number in range(200):
        put(channel, "q", b"%d" % number, delivery_mode=2, headers={"n": [number, None]})
    put(channel, "q", b"", delivery_mode=2, message_id="empty")
    put(channel, "q", bytes(300_000), delivery_mode=2)

    got = drain_messages(restart(), "q")
    assert [body for _, _, body in got[:200]] == [b"%d" % number for number in range(200)]
    assert [properties.headers["n"][0] for _, properties, _ in got[:200]] == list(range(200))
    assert (got[200][1].message_id, got[200][2]) == ("empty", b"")
    assert got[201][2] == bytes(300_000)
    assert len(got) == 202


def test_transient_messages_do_not_survive(channel: BlockingChannel, restart: Restart) -> None:
    channel.queue_declare("q", durable=True)
    put(channel, "q", b"transient", delivery_mode=1)
    put(channel, "q", b"persistent", delivery_mode=2)
    put(channel, "q", b"unmarked")
    assert drain(restart(), "q") == [b"persistent"]


def test_held_messages_come_back_as_redelivered_and_acked_ones_do_not(
    channel: BlockingChannel, restart: Restart
) -> None:
    channel.queue_declare("q", durable=True)
    put(channel, "q", *(b"%d" % number for number in range(6)), delivery_mode=2)
    consumer = channel.connection.channel()
    tags = [get_one(consumer, "q", auto_ack=False)[0].delivery_tag for _ in range(3)]
    consumer.basic_ack(tags[1])
    consumer.close()

    got = drain_messages(restart(), "q")
    assert [body for _, _, body in got] == [b"0", b"2", b"3", b"4", b"5"]
    assert [method.redelivered for method, _, _ in got[:2]] == [True, True]


def test_acks_in_a_committed_transaction_stay(channel: BlockingChannel, restart: Restart) -> None:
    channel.queue_declare("q", durable=True)
    put(channel, "q", b"1", b"2", delivery_mode=2)
    tx = channel.connection.channel()
    tx.tx_select()
    method, _, _ = get_one(tx, "q", auto_ack=False)
    put(tx, "q", b"3", delivery_mode=2)
    tx.basic_ack(method.delivery_tag)
    tx.tx_commit()
    assert drain(restart(), "q") == [b"2", b"3"]


def test_a_fanned_out_message_survives_in_every_queue(channel: BlockingChannel, restart: Restart) -> None:
    for queue in "abc":
        channel.queue_declare(queue, durable=True)
        channel.queue_bind(queue, "amq.fanout")
    channel.basic_publish("amq.fanout", "", b"all", pika.BasicProperties(delivery_mode=2))
    drain(channel, "b")
    closing = channel.connection.channel()
    closing.close()

    channel = restart()
    assert [drain(channel, queue) for queue in "ac"] == [[b"all"], [b"all"]]


def test_priorities_and_time_to_live_are_known_after_the_restart(
    channel: BlockingChannel, restart: Restart
) -> None:
    channel.queue_declare("q", durable=True, arguments={"x-max-priority": 5})
    put(channel, "q", b"low", delivery_mode=2, priority=1)
    put(channel, "q", b"soon gone", delivery_mode=2, priority=3, expiration="300")
    put(channel, "q", b"high", delivery_mode=2, priority=5)
    channel = restart()
    time.sleep(0.4)
    assert drain(channel, "q") == [b"high", b"low"]


def test_the_delivery_count_survives(channel: BlockingChannel, restart: Restart) -> None:
    arguments = {"x-queue-type": "quorum", "x-delivery-limit": 2}
    channel.queue_declare("q", durable=True, arguments=arguments)
    put(channel, "q", b"poison", delivery_mode=2)
    for _ in range(2):
        taker = channel.connection.channel()
        method, _, _ = get_one(taker, "q", auto_ack=False)
        taker.basic_nack(method.delivery_tag, requeue=True)
        taker.close()

    channel = restart()
    method, properties, _ = get_one(channel, "q", auto_ack=False)
    assert properties.headers["x-delivery-count"] >= 2
    channel.basic_nack(method.delivery_tag, requeue=True)
    channel.queue_declare("q", passive=True)
    assert drain(channel, "q") == []


def test_dead_letters_survive_with_their_history(channel: BlockingChannel, restart: Restart) -> None:
    arguments: dict[str, Any] = {"x-dead-letter-exchange": "", "x-dead-letter-routing-key": "dead"}
    channel.queue_declare("dead", durable=True)
    channel.queue_declare("q", durable=True, arguments=arguments)
    put(channel, "q", b"bad", delivery_mode=2)
    taker = channel.connection.channel()
    method, _, _ = get_one(taker, "q", auto_ack=False)
    taker.basic_reject(method.delivery_tag, requeue=False)
    taker.close()

    channel = restart()
    _, properties, body = get_one(channel, "dead")
    assert body == b"bad"
    assert properties.headers["x-death"][0]["reason"] == "rejected"
    assert drain(channel, "q") == []


def test_a_large_backlog_survives_and_drains_in_order(channel: BlockingChannel, restart: Restart) -> None:
    channel.queue_declare("q", durable=True)
    publisher = channel.connection.channel()
    for number in range(20_000):
        publisher.basic_publish("", "q", b"%d" % number, pika.BasicProperties(delivery_mode=2))
    put(channel, "q", b"last", delivery_mode=2)
    publisher.close()

    channel = restart()
    inbox = Inbox(channel, "q", auto_ack=True)
    inbox.wait(20_001, timeout_s=30)

    assert [body for body in inbox.bodies if body != b"last"] == [b"%d" % n for n in range(20_000)]


def test_clients_are_told_that_the_broker_stops(own_broker: BrokerProcess) -> None:
    with RawConnection(own_broker.address) as raw:
        raw.handshake()
        own_broker._signal(signal.SIGTERM)
        closed = raw.last_words(timeout_s=10)
    assert closed is not None
    assert closed.code == 320
    own_broker._reap(20)


def test_a_paused_broker_goes_on_where_it_was(own_broker: BrokerProcess) -> None:
    channel = opened(own_broker)
    channel.queue_declare("q", durable=True)
    own_broker.pause()
    put(channel, "q", b"while it slept", delivery_mode=2)
    own_broker.resume()
    assert get_one(channel, "q")[2] == b"while it slept"
    channel.connection.close()


def test_publishers_are_blocked_while_the_disk_is_short_and_others_work(
    start_broker: Callable[..., BrokerProcess],
) -> None:
    process = start_broker("--set", "limits.disk_free_bytes_min=1000000000000000")
    with RawConnection(process.address) as publisher, RawConnection(process.address) as other:
        publisher.handshake(capabilities=("connection.blocked",))
        publisher.declare_queue(1, "q", bits=2)
        publisher.publish(1, "", "q", b"x", b"\x10\x00\x02")
        frame = publisher.expect(amqp.BLOCKED)
        assert frame.channel == 0
        assert frame.arguments.shortstr()

        other.handshake()
        other.declare_queue(1, "other", bits=2)
        other.get(1, "other")
        other.expect(amqp.GET_EMPTY)
