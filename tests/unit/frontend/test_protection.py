"""What a connection may not do for long or fast: hold messages, open channels."""

from __future__ import annotations

from typing import Any

import pytest
from unit.frontend.harness import Client, World

from tidemark.model.wiring import PolicySpec
from tidemark.wire.amqp091 import methods
from tidemark.wire.amqp091.methods import (
    BasicAck,
    BasicConsume,
    BasicGet,
    BasicQos,
    ChannelClose,
    ChannelCloseOk,
    ChannelOpen,
    ConnectionClose,
    QueueDeclare,
)

MINUTE = 60_000


@pytest.fixture
def world() -> World:
    return World()


def consume(world: World, queue: str = "q", prefetch: int = 10, **arguments: Any) -> Client:
    client = world.open()
    table = {f"x-{key.replace('_', '-')}": value for key, value in arguments.items()}
    client.ask(1, QueueDeclare(queue=queue, arguments=table))
    client.ask(1, BasicQos(prefetch_count=prefetch))
    client.ask(1, BasicConsume(queue=queue, consumer_tag="c"))
    return client


def pass_time(world: World, elapsed_ms: int, step_ms: int = 1000) -> None:
    for _ in range(elapsed_ms // step_ms):
        world.pass_ms(step_ms)


def test_a_message_that_is_held_for_half_an_hour_costs_the_channel_and_is_back_in_its_place(
    world: World,
) -> None:
    client = consume(world, prefetch=2)
    client.publish(1, "q", b"1", b"2", b"3")
    assert client.bodies() == [b"1", b"2"]
    pass_time(world, 29 * MINUTE, 10_000)
    assert client.read_all() == []
    pass_time(world, 3 * MINUTE, 10_000)
    [close] = client.read_all()
    assert isinstance(close, ChannelClose)
    assert (close.reply_code, close.class_id, close.method_id) == (406, 0, 0)
    assert close.reply_text == (
        "PRECONDITION_FAILED - delivery acknowledgement on channel 1 timed out. Timeout value used: 1800000 ms. "
        "This timeout value can be configured, see consumers doc guide to learn more"
    )
    assert world.ready("q") == 3
    client.send(1, ChannelCloseOk())
    client.ask(1, ChannelOpen())
    got = client.ask(1, BasicGet(queue="q"))
    assert (got.body, got.method.redelivered) == (b"1", True)


def test_a_consumer_that_acknowledges_in_time_may_take_as_long_as_it_likes(world: World) -> None:
    client = consume(world, prefetch=1)
    client.publish(1, "q", *(b"%d" % n for n in range(10)))
    for tag in range(1, 10):
        pass_time(world, 25 * MINUTE, 30_000)
        client.send(1, BasicAck(delivery_tag=tag))
    assert client.bodies() == [b"%d" % n for n in range(10)]


def test_of_many_messages_the_one_that_is_left_behind_counts_from_its_own_delivery(world: World) -> None:
    client = consume(world, prefetch=0)
    client.publish(1, "q", b"left behind")
    for tag in range(2, 40):
        pass_time(world, MINUTE, 20_000)
        client.publish(1, "q", b"x")
        client.send(1, BasicAck(delivery_tag=tag))
        if any(isinstance(each, ChannelClose) for each in client.read_all()):
            break
    assert 30 <= tag <= 34


def test_a_message_that_was_fetched_counts_too(world: World) -> None:
    client = world.open()
    client.ask(1, QueueDeclare(queue="q"))
    client.publish(1, "q", b"1")
    client.ask(1, BasicGet(queue="q"))
    pass_time(world, 33 * MINUTE, 10_000)
    assert isinstance(client.read(), ChannelClose)


@pytest.mark.parametrize("how", ["ack", "nack", "ack all"])
def test_a_message_that_is_settled_in_a_transaction_counts_until_the_commit(world: World, how: str) -> None:
    client = world.open()
    client.ask(1, QueueDeclare(queue="q"))
    client.ask(1, methods.TxSelect())
    client.ask(1, BasicConsume(queue="q", consumer_tag="c"))
    world.open().publish(1, "q", b"1")
    client.read_all()
    match how:
        case "ack":
            client.send(1, BasicAck(delivery_tag=1))
        case "nack":
            client.send(1, methods.BasicNack(delivery_tag=1, requeue=False))
        case _:
            client.send(1, BasicAck(delivery_tag=0, multiple=True))

    pass_time(world, 33 * MINUTE, 10_000)
    [close] = client.read_all()
    assert isinstance(close, ChannelClose)
    assert world.ready("q") == 1


def test_a_message_that_a_commit_settled_does_not_count(world: World) -> None:
    client = consume(world)
    client.ask(1, methods.TxSelect())
    world.open().publish(1, "q", b"1")
    client.read_all()
    client.send(1, BasicAck(delivery_tag=1))
    assert isinstance(client.ask(1, methods.TxCommit()), methods.TxCommitOk)

    pass_time(world, 100 * MINUTE, MINUTE)
    assert client.read_all() == []


@pytest.mark.parametrize("how", ["argument", "policy"])
def test_a_queue_may_have_a_time_of_its_own(world: World, how: str) -> None:
    if how == "policy":
        world.broker.put_policy(PolicySpec("/", "p", "^q$", "queues", 0, {"consumer-timeout": 5000}))
    client = consume(world, **({"consumer_timeout": 5000} if how == "argument" else {}))
    client.publish(1, "q", b"1")
    client.read_all()
    pass_time(world, 5000)
    assert client.read_all() == []
    pass_time(world, 3000)
    [close] = client.read_all()
    assert "Timeout value used: 5000 ms" in close.reply_text


def test_a_policy_can_take_the_time_away(world: World) -> None:
    client = consume(world)
    client.publish(1, "q", b"1")
    client.read_all()
    world.broker.put_policy(PolicySpec("/", "p", "^q$", "queues", 0, {"consumer-timeout": 0}))
    pass_time(world, 600 * MINUTE, MINUTE)
    assert client.read_all() == []


def test_other_channels_of_the_connection_go_on(world: World) -> None:
    client = consume(world, consumer_timeout=2000)
    client.ask(2, ChannelOpen())
    client.publish(1, "q", b"1")
    client.read_all()
    pass_time(world, 5000)
    assert isinstance(client.read(), ChannelClose)
    assert isinstance(client.ask(2, QueueDeclare(queue="other")), methods.QueueDeclareOk)


def test_a_connection_that_opens_channels_too_fast_is_closed() -> None:
    world = World(channels_per_s_max=3)
    client = world.open(channels=3)
    world.pass_ms(1000)
    for number in (4, 5, 6):
        client.ask(number, ChannelOpen())
    close = client.ask_connection(7, ChannelOpen())
    assert isinstance(close, ConnectionClose)
    assert close.reply_code == 530
    assert close.reply_text.startswith(
        "NOT_ALLOWED - channels are opened too fast: this broker takes 3 a second"
    )


def test_a_user_has_so_many_channels_over_all_its_connections(world: World) -> None:
    world.broker.set_user_limit("guest", "max-channels", 2)
    first, second = world.open(), world.open()
    close = second.ask_connection(2, ChannelOpen())
    assert (close.reply_code, close.class_id, close.method_id) == (530, 20, 10)
    assert close.reply_text == (
        "NOT_ALLOWED - number of channels opened for user 'guest' has reached the maximum allowed user limit of (2)"
    )
    first.ask(2, ChannelOpen())  # the second connection has gone, with its channel
    first.ask(2, ChannelClose())
    first.ask(3, ChannelOpen())
    first.front_end.receive_eof()
    assert not world.broker.usage.channels_of_user
