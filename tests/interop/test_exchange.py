"""Exchanges: declaring, deleting, binding, and where each type sends a message."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pika
import pytest
from helpers.amqp import channel_refused, connection_refused, drain, eventually, put, sync
from pika.adapters.blocking_connection import BlockingChannel
from pika.exceptions import ChannelClosedByBroker

TYPES = ["direct", "fanout", "topic", "headers"]


@pytest.fixture
def exchange(connection: pika.BlockingConnection, name: str) -> Iterator[str]:
    """A name for an exchange, deleted after the test if it exists then."""
    yield f"{name}-x"
    if connection.is_open:
        connection.channel().exchange_delete(f"{name}-x")


def exists(connection: pika.BlockingConnection, exchange: str) -> bool:
    probe = connection.channel()
    try:
        probe.exchange_declare(exchange, passive=True)
    except ChannelClosedByBroker:
        return False
    probe.close()
    return True


# Declaring ---------------------------------------------------------------------------------


@pytest.mark.parametrize("kind", TYPES)
def test_an_exchange_of_every_type_can_be_declared_twice_alike(
    channel: BlockingChannel, exchange: str, kind: str
) -> None:
    for _ in range(2):
        channel.exchange_declare(exchange, kind, durable=True)


def test_an_unknown_type_is_refused_and_ends_the_connection(channel: BlockingChannel, exchange: str) -> None:
    with connection_refused(503):
        channel.exchange_declare(exchange, "no-such-type")


@pytest.mark.parametrize(
    "change",
    [
        {"exchange_type": "fanout"},
        {"durable": True},
        {"auto_delete": True},
        {"internal": True},
        {"arguments": {"alternate-exchange": "amq.fanout"}},
    ],
    ids=lambda change: next(iter(change)),
)
def test_declaring_again_with_another_property_is_406(
    channel: BlockingChannel, exchange: str, change: dict[str, Any]
) -> None:
    channel.exchange_declare(exchange, "direct")
    with channel_refused(406):
        channel.exchange_declare(exchange, **{"exchange_type": "direct", **change})


def test_a_passive_declare_of_a_missing_exchange_is_404(channel: BlockingChannel, exchange: str) -> None:
    with channel_refused(404):
        channel.exchange_declare(exchange, passive=True)


def test_a_passive_declare_looks_at_the_name_only(channel: BlockingChannel, exchange: str) -> None:
    channel.exchange_declare(exchange, "topic", durable=True)
    channel.exchange_declare(exchange, "direct", passive=True)


@pytest.mark.parametrize("name_", ["amq.direct", "amq.fanout", "amq.topic", "amq.headers"])
def test_the_standard_exchanges_exist_and_are_durable(channel: BlockingChannel, name_: str) -> None:
    channel.exchange_declare(name_, name_.removeprefix("amq."), durable=True)


def test_amq_match_is_a_headers_exchange(channel: BlockingChannel) -> None:
    channel.exchange_declare("amq.match", "headers", durable=True)


@pytest.mark.parametrize("name_", ["amq.mine", "amq."])
def test_names_that_begin_with_amq_are_reserved(channel: BlockingChannel, name_: str) -> None:
    with channel_refused(403):
        channel.exchange_declare(name_, "direct")


def test_a_standard_exchange_cannot_be_deleted(channel: BlockingChannel) -> None:
    with channel_refused(403):
        channel.exchange_delete("amq.direct")


def test_exchange_names_may_be_unicode(channel: BlockingChannel, exchange: str, queue: str) -> None:
    name = exchange + "-žluťoučký-交換機-🌊"
    channel.exchange_declare(name, "direct", auto_delete=True)
    channel.queue_bind(queue, name, "klíč-鍵")
    channel.basic_publish(name, "klíč-鍵", b"found")
    assert drain(channel, queue) == [b"found"]


# Deleting ----------------------------------------------------------------------------------


def test_deleting_a_missing_exchange_succeeds(channel: BlockingChannel, exchange: str) -> None:
    channel.exchange_delete(exchange)


def test_delete_if_unused_is_406_while_a_binding_exists(
    connection: pika.BlockingConnection, channel: BlockingChannel, exchange: str, queue: str
) -> None:
    channel.exchange_declare(exchange, "direct")
    channel.queue_bind(queue, exchange, "k")
    with channel_refused(406):
        connection.channel().exchange_delete(exchange, if_unused=True)

    channel.queue_unbind(queue, exchange, "k")
    channel.exchange_delete(exchange, if_unused=True)
    assert not exists(connection, exchange)


def test_publishing_to_a_deleted_exchange_is_404(channel: BlockingChannel, exchange: str) -> None:
    channel.exchange_declare(exchange, "direct")
    channel.exchange_delete(exchange)
    with channel_refused(404):
        channel.basic_publish(exchange, "k", b"lost")
        sync(channel)


def test_an_auto_delete_exchange_goes_with_its_last_binding(
    connection: pika.BlockingConnection, channel: BlockingChannel, exchange: str, queue: str
) -> None:
    channel.exchange_declare(exchange, "direct", auto_delete=True)
    assert exists(connection, exchange)
    channel.queue_bind(queue, exchange, "one")
    channel.queue_bind(queue, exchange, "two")
    channel.queue_unbind(queue, exchange, "one")
    assert exists(connection, exchange)

    channel.queue_unbind(queue, exchange, "two")
    assert not exists(connection, exchange)


def test_an_auto_delete_exchange_goes_when_its_last_queue_is_deleted(
    connection: pika.BlockingConnection, channel: BlockingChannel, exchange: str, queue: str
) -> None:
    channel.exchange_declare(exchange, "fanout", auto_delete=True)
    channel.queue_bind(queue, exchange)
    channel.queue_delete(queue)
    assert not exists(connection, exchange)


# Internal ----------------------------------------------------------------------------------


def test_a_client_may_not_publish_to_an_internal_exchange(channel: BlockingChannel, exchange: str) -> None:
    channel.exchange_declare(exchange, "fanout", internal=True)
    with channel_refused(403):
        channel.basic_publish(exchange, "k", b"no")
        sync(channel)


def test_an_internal_exchange_passes_on_what_another_exchange_sends(
    channel: BlockingChannel, exchange: str, queue: str
) -> None:
    channel.exchange_declare(exchange, "fanout", internal=True)
    channel.exchange_declare(exchange + "-outer", "fanout", auto_delete=True)
    channel.exchange_bind(exchange, exchange + "-outer")
    channel.queue_bind(queue, exchange)
    channel.basic_publish(exchange + "-outer", "k", b"through")
    assert drain(channel, queue) == [b"through"]


# The default exchange ----------------------------------------------------------------------


def test_the_default_exchange_sends_to_the_queue_of_that_name(channel: BlockingChannel, queue: str) -> None:
    put(channel, queue, b"direct")
    assert drain(channel, queue) == [b"direct"]


def test_the_default_exchange_cannot_be_bound(channel: BlockingChannel, queue: str) -> None:
    with channel_refused(403):
        channel.queue_bind(queue, "", "other")


def test_the_default_exchange_cannot_be_unbound(channel: BlockingChannel, queue: str) -> None:
    with channel_refused(403):
        channel.queue_unbind(queue, "", queue)


def test_the_default_exchange_cannot_be_declared(channel: BlockingChannel) -> None:
    with channel_refused(403):
        channel.exchange_declare("", "direct", durable=True)


def test_the_default_exchange_cannot_be_deleted(channel: BlockingChannel) -> None:
    with channel_refused(403):
        channel.exchange_delete("")


# Routing -----------------------------------------------------------------------------------


def test_a_direct_exchange_sends_where_the_key_is_equal(
    channel: BlockingChannel, exchange: str, name: str
) -> None:
    channel.exchange_declare(exchange, "direct")
    for key in ("red", "blue"):
        channel.queue_declare(f"{name}-{key}", exclusive=True)
        channel.queue_bind(f"{name}-{key}", exchange, key)
    for key in ("red", "blue", "green", "Red"):
        channel.basic_publish(exchange, key, key.encode())

    assert drain(channel, f"{name}-red") == [b"red"]
    assert drain(channel, f"{name}-blue") == [b"blue"]


def test_a_fanout_exchange_sends_to_every_bound_queue_whatever_the_key(
    channel: BlockingChannel, exchange: str, name: str
) -> None:
    channel.exchange_declare(exchange, "fanout")
    queues = [f"{name}-{number}" for number in range(5)]
    for queue in queues:
        channel.queue_declare(queue, exclusive=True)
        channel.queue_bind(queue, exchange, f"key-of-{queue}")
    channel.basic_publish(exchange, "any", b"all")
    assert [drain(channel, queue) for queue in queues] == [[b"all"]] * 5


def test_a_queue_bound_twice_gets_a_message_once(channel: BlockingChannel, exchange: str, queue: str) -> None:
    channel.exchange_declare(exchange, "topic")
    for pattern in ("a.*", "*.b", "#", "a.b"):
        channel.queue_bind(queue, exchange, pattern)
    channel.basic_publish(exchange, "a.b", b"once")
    assert drain(channel, queue) == [b"once"]


def test_binding_to_a_missing_exchange_is_404(channel: BlockingChannel, queue: str) -> None:
    with channel_refused(404):
        channel.queue_bind(queue, "no-such-exchange", "k")


def test_binding_a_missing_queue_is_404(channel: BlockingChannel) -> None:
    with channel_refused(404):
        channel.queue_bind("no-such-queue", "amq.direct", "k")


def test_binding_the_same_twice_and_unbinding_what_is_not_bound_succeed(
    channel: BlockingChannel, exchange: str, queue: str
) -> None:
    channel.exchange_declare(exchange, "direct")
    channel.queue_bind(queue, exchange, "k")
    channel.queue_bind(queue, exchange, "k")
    channel.queue_unbind(queue, exchange, "k")
    channel.queue_unbind(queue, exchange, "k")
    channel.basic_publish(exchange, "k", b"unbound")
    assert drain(channel, queue) == []


def test_a_binding_with_other_arguments_is_another_binding(
    channel: BlockingChannel, exchange: str, queue: str
) -> None:
    channel.exchange_declare(exchange, "direct")
    channel.queue_bind(queue, exchange, "k", {"note": 1})
    channel.queue_bind(queue, exchange, "k", {"note": 2})
    channel.queue_unbind(queue, exchange, "k", {"note": 1})
    channel.basic_publish(exchange, "k", b"still bound")
    assert drain(channel, queue) == [b"still bound"]


# Exchange to exchange ------------------------------------------------------------------------


def test_an_exchange_bound_to_another_gets_what_matches(
    channel: BlockingChannel, exchange: str, queue: str
) -> None:
    channel.exchange_declare(exchange, "topic")
    channel.exchange_declare(exchange + "-next", "fanout", auto_delete=True)
    channel.exchange_bind(exchange + "-next", exchange, "news.#")
    channel.queue_bind(queue, exchange + "-next")
    channel.basic_publish(exchange, "news.today", b"yes")
    channel.basic_publish(exchange, "weather.today", b"no")
    channel.exchange_unbind(exchange + "-next", exchange, "news.#")
    channel.basic_publish(exchange, "news.today", b"no longer")
    assert drain(channel, queue) == [b"yes"]


def test_a_cycle_of_exchanges_delivers_once(channel: BlockingChannel, exchange: str, queue: str) -> None:
    ring = [f"{exchange}-{number}" for number in range(3)]
    for member in ring:
        channel.exchange_declare(member, "fanout")
    for here, there in zip(ring, ring[1:] + ring[:1], strict=True):
        channel.exchange_bind(there, here)
    for member in ring:
        channel.queue_bind(queue, member)
    channel.basic_publish(ring[0], "", b"round")
    taken = drain(channel, queue)
    for member in ring:
        channel.exchange_delete(member)
    assert taken == [b"round"]


def test_binding_missing_exchanges_to_one_another_is_404(channel: BlockingChannel, exchange: str) -> None:
    with channel_refused(404):
        channel.exchange_bind(exchange + "-a", exchange + "-b", "k")


# Alternate exchange --------------------------------------------------------------------------


def test_what_an_exchange_cannot_route_goes_to_its_alternate(
    channel: BlockingChannel, exchange: str, name: str
) -> None:
    channel.exchange_declare(exchange + "-else", "fanout", auto_delete=True)
    channel.exchange_declare(exchange, "direct", arguments={"alternate-exchange": exchange + "-else"})
    for queue, bound_to, key in ((name, exchange, "known"), (name + "-else", exchange + "-else", "")):
        channel.queue_declare(queue, exclusive=True)
        channel.queue_bind(queue, bound_to, key)
    channel.basic_publish(exchange, "known", b"routed")
    channel.basic_publish(exchange, "unknown", b"stray", mandatory=True)

    assert drain(channel, name) == [b"routed"]
    assert drain(channel, name + "-else") == [b"stray"]


def test_alternates_are_followed_in_a_chain_and_a_cycle_of_them_ends(
    channel: BlockingChannel, exchange: str, queue: str
) -> None:
    ring = [f"{exchange}-{number}" for number in range(3)]
    for here, there in zip(ring, ring[1:] + ring[:1], strict=True):
        channel.exchange_declare(here, "direct", arguments={"alternate-exchange": there})
    channel.queue_bind(queue, ring[2], "k")
    channel.basic_publish(ring[0], "k", b"at the third")
    channel.basic_publish(ring[0], "nowhere", b"dropped")
    taken = drain(channel, queue)
    for member in ring:
        channel.exchange_delete(member)
    assert taken == [b"at the third"]


def test_an_alternate_that_does_not_exist_drops_the_message_without_an_error(
    channel: BlockingChannel, exchange: str
) -> None:
    channel.exchange_declare(exchange, "direct", arguments={"alternate-exchange": "no-such"})
    channel.basic_publish(exchange, "k", b"lost")
    sync(channel)


def test_deleting_a_queue_removes_its_bindings(
    connection: pika.BlockingConnection, channel: BlockingChannel, exchange: str, queue: str
) -> None:
    channel.exchange_declare(exchange, "direct")
    channel.queue_bind(queue, exchange, "k")
    channel.queue_delete(queue)
    channel.exchange_delete(exchange, if_unused=True)
    eventually(lambda: not exists(connection, exchange))
