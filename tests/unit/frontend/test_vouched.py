"""A client of a front at a group other than main: users are main's, so the front's word is taken, and nobody else's."""

from __future__ import annotations

from typing import Any

import pytest
from unit.frontend.harness import Client, World
from unit.frontend.test_own import connected, log_in

from tidemark.broker.groups import OUTBOX
from tidemark.wire.amqp091 import methods


def a_world(group: str = "fast") -> World:
    world = World()
    world.broker.group = group
    return world


def opened(client: Client, vhost: str) -> Any:
    client.send(0, methods.ConnectionTuneOk(channel_max=10, frame_max=131072, heartbeat=0))
    return client.ask(0, methods.ConnectionOpen(virtual_host=vhost))


def test_a_user_and_a_virtual_host_that_only_main_knows_come_in() -> None:
    world = a_world()
    client = connected(world, front="f1")
    assert isinstance(log_in(client, "alice", "whatever main has checked"), methods.ConnectionTune)
    assert isinstance(opened(client, "shop"), methods.ConnectionOpenOk)
    assert [(session.user, session.vhost.name) for session in world.broker.sessions] == [("alice", "shop")]
    assert isinstance(client.ask(1, methods.ChannelOpen()), methods.ChannelOpenOk)
    for method in (
        methods.QueueDeclare(queue="q", durable=True),
        methods.BasicConsume(queue="q"),
        methods.QueuePurge(queue="q"),
        methods.QueueDelete(queue="q"),
    ):
        assert not isinstance(client.ask(1, method), methods.ChannelClose), method
    assert any(b"shop" in change for change in world.broker.image()), "it is in the catalog"


@pytest.mark.parametrize(
    ("group", "facts"),
    [("fast", {}), ("main", {}), ("main", {"front": "f1"})],
    ids=["at the group, without a front", "at main, without a front", "at main, through a front"],
)
def test_everywhere_else_a_password_is_asked_for(group: str, facts: dict[str, Any]) -> None:
    close = log_in(connected(a_world(group), **facts), "guest", "wrong")
    assert isinstance(close, methods.ConnectionClose) and close.reply_code == 403


def test_at_main_a_front_makes_no_virtual_host() -> None:
    world = a_world("main")
    client = connected(world, front="f1")
    assert isinstance(log_in(client, "guest", "guest"), methods.ConnectionTune)
    assert isinstance(opened(client, "shop"), methods.ConnectionClose)
    assert list(world.broker.vhosts) == ["/"]


def test_the_outbox_is_not_a_clients_whoever_vouches_for_him() -> None:
    world = a_world()
    client = connected(world, front="f1")
    log_in(client, "alice")
    opened(client, "/")
    client.ask(1, methods.ChannelOpen())
    close = client.ask(1, methods.QueueDelete(queue=OUTBOX))
    assert isinstance(close, methods.ChannelClose) and close.reply_code == 403
