"""A front that comes for itself: it needs no password and may do everything, and nobody else can say that he is one."""

from __future__ import annotations

from typing import Any

import pytest
from unit.frontend.harness import Client, World

from tidemark.broker.groups import OUTBOX
from tidemark.frontend.amqp091.connection import Amqp091
from tidemark.frontend.services import PeerInfo
from tidemark.model.turns import CAPABILITY, Turn, turn_in
from tidemark.model.wiring import FRONT_USER, UserSpec
from tidemark.wire.amqp091 import methods
from tidemark.wire.amqp091.frames import PROTOCOL_HEADER


def connected(world: World, **facts: Any) -> Client:
    front_end = Amqp091(world, PeerInfo("front", len(world.clients), **facts))
    client = world.clients[front_end] = Client(world, front_end)
    client.write(PROTOCOL_HEADER)
    client.read()
    return client


def log_in(client: Client, user: str = FRONT_USER, password: str = "", **capabilities: bool) -> Any:
    return client.ask(
        0,
        methods.ConnectionStartOk(
            client_properties={"capabilities": {"authentication_failure_close": True} | capabilities},
            mechanism="PLAIN",
            response=f"\0{user}\0{password}".encode(),
            locale="en_US",
        ),
    )


def opened(world: World, **capabilities: bool) -> Client:
    client = connected(world, front="f1", own=True)
    assert isinstance(log_in(client, **capabilities), methods.ConnectionTune)
    client.send(0, methods.ConnectionTuneOk(channel_max=10, frame_max=131072, heartbeat=0))
    assert isinstance(client.ask(0, methods.ConnectionOpen(virtual_host="/")), methods.ConnectionOpenOk)
    assert isinstance(client.ask(1, methods.ChannelOpen()), methods.ChannelOpenOk)
    return client


def test_a_front_may_do_everything_and_is_not_counted() -> None:
    world = World()
    world.broker.put_vhost_limits("/", {"max-connections": 0, "max-queues": 0})
    front = opened(world)
    declared = front.ask(1, methods.QueueDeclare(queue="q", durable=True))
    assert isinstance(declared, methods.QueueDeclareOk)
    assert isinstance(front.ask(1, methods.BasicConsume(queue="q")), methods.BasicConsumeOk)
    assert [session.user for session in world.broker.sessions] == [FRONT_USER]
    assert world.broker.usage.connections_of_vhost["/"] == 0


@pytest.mark.parametrize("facts", [{}, {"front": "f1"}], ids=["a client", "a client of a front"])
def test_nobody_else_comes_in_under_its_name(facts: dict[str, Any]) -> None:
    world = World()
    close = log_in(connected(world, **facts))
    assert isinstance(close, methods.ConnectionClose) and close.reply_code == 403
    assert not world.broker.sessions


def test_a_user_of_that_name_has_the_permissions_that_it_was_given_and_no_more() -> None:
    world = World()
    world.broker.put(UserSpec(FRONT_USER))
    assert not world.broker.access.may_enter(FRONT_USER, "/")


@pytest.mark.parametrize(
    "method",
    [
        methods.QueueBind(queue=OUTBOX, exchange="amq.topic", routing_key="#"),
        methods.QueueDelete(queue=OUTBOX),
        methods.BasicGet(queue=OUTBOX),
        methods.BasicConsume(queue=OUTBOX),
        methods.QueuePurge(queue=OUTBOX),
    ],
)
def test_only_the_broker_puts_something_into_its_outbox_and_only_fronts_take_it_out(
    method: methods.Method,
) -> None:
    """What is in there is routed without asking who sent it."""
    world = World()
    close = world.open().ask(1, method)
    assert isinstance(close, methods.ChannelClose) and close.reply_code == 403


def test_a_front_that_knows_of_turns_hears_its_own_when_it_subscribes() -> None:
    world = World()
    world.broker.turns.begin("c1", 7)
    front = opened(world, **{CAPABILITY: True})
    front.ask(1, methods.QueueDeclare(queue="q", durable=True))
    heard = [turn_in(front.ask(1, methods.BasicConsume(queue="q")).consumer_tag) for _ in range(2)]
    assert heard == [Turn("c1", 7, 1), Turn("c1", 7, 2)]


@pytest.mark.parametrize("who", ["a front that knows of none", "a client"])
def test_nobody_else_has_a_turn(who: str) -> None:
    world = World()
    client = world.open() if who == "a client" else opened(world)
    client.ask(1, methods.QueueDeclare(queue="q", durable=True))
    assert client.ask(1, methods.BasicConsume(queue="q")).consumer_tag.startswith("amq.ctag-")


@pytest.mark.parametrize(
    ("facts", "offered"), [({}, False), ({"front": "f1"}, False), ({"front": "f1", "own": True}, True)]
)
def test_turns_are_offered_to_fronts_that_come_for_themselves(facts: dict[str, Any], offered: bool) -> None:
    world = World()
    front_end = Amqp091(world, PeerInfo("front", 1, **facts))
    client = world.clients[front_end] = Client(world, front_end)
    client.write(PROTOCOL_HEADER)
    assert (CAPABILITY in client.read().server_properties["capabilities"]) is offered
