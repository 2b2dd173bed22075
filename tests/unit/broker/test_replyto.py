"""Direct reply-to."""

from __future__ import annotations

import pytest
from builders import a_broker
from unit.broker.channel import TestChannel, a_channel

from tidemark.broker.broker import Broker
from tidemark.broker.replyto import NAME
from tidemark.errors import PreconditionFailed
from tidemark.model.wiring import PermissionSpec, VhostSpec


@pytest.fixture
def broker() -> Broker:
    return a_broker()


@pytest.fixture
def client(broker: Broker) -> TestChannel:
    client = a_channel(broker)
    client.session.declare_queue("requests")
    return client


def request(client: TestChannel, server: TestChannel) -> str:
    """Sends a request and returns where its answer must go."""
    assert client.publish("requests", b"question", reply_to=NAME, correlation_id="7").error is None
    delivery = server.get("requests", no_ack=True)
    assert delivery is not None
    assert delivery.properties.correlation_id == "7"
    reply_to = delivery.properties.reply_to
    assert reply_to is not None
    return reply_to


def test_an_answer_reaches_the_channel_that_asked(broker: Broker, client: TestChannel) -> None:
    server = a_channel(broker)
    client.consume(NAME, "replies", no_ack=True)
    reply_to = request(client, server)
    assert reply_to.startswith(NAME + ".")

    assert server.publish(reply_to, b"answer", mandatory=True, delivery_mode=2).returned == []
    server.turn()
    assert [(d.consumer, d.body) for d in client.deliveries] == [("replies", b"answer")]
    assert client.broker.journal.told == []


def test_two_channels_have_two_addresses(broker: Broker, client: TestChannel) -> None:
    other = a_channel(broker)
    client.consume(NAME, no_ack=True)
    other.consume(NAME, no_ack=True)
    assert request(client, client) != request(other, client)


def test_an_answer_to_a_channel_that_is_gone_is_returned(broker: Broker, client: TestChannel) -> None:
    server = a_channel(broker)
    consumer = client.consume(NAME, no_ack=True)
    reply_to = request(client, server)
    server.publish(reply_to, b"first")
    client.session.cancel(consumer)
    assert server.publish(reply_to, b"late", mandatory=True).returned == [(0, 312, "NO_ROUTE")]
    assert not broker.replies.exists(reply_to)


def test_asking_without_consuming_is_refused(client: TestChannel) -> None:
    published = client.publish("requests", b"question", reply_to=NAME)
    assert isinstance(published.error, PreconditionFailed)
    assert str(published.error) == "fast reply consumer does not exist"
    assert client.drain("requests") == []


def test_a_reply_consumer_cannot_acknowledge(client: TestChannel) -> None:
    with pytest.raises(PreconditionFailed, match="reply consumer cannot acknowledge"):
        client.consume(NAME)


def test_a_channel_has_one_reply_consumer(client: TestChannel) -> None:
    consumer = client.consume(NAME, "a", no_ack=True)
    with pytest.raises(PreconditionFailed, match="reply consumer already set"):
        client.consume(NAME, "b", no_ack=True)
    client.session.cancel(consumer)
    client.consume(NAME, "b", no_ack=True)


def test_an_address_of_another_virtual_host_is_unknown(broker: Broker, client: TestChannel) -> None:
    broker.put(VhostSpec("/other"))
    broker.put(PermissionSpec("guest", "/other", ".*", ".*", ".*"))
    stranger = TestChannel(broker.open_session("/other", "guest", None, "stranger"))
    client.consume(NAME, no_ack=True)
    reply_to = request(client, client)
    assert stranger.publish(reply_to, b"guess", mandatory=True).returned


def test_other_reply_addresses_are_left_alone(client: TestChannel) -> None:
    client.publish("requests", b"question", reply_to="my-queue")
    delivery = client.get("requests")
    assert delivery is not None
    assert delivery.properties.reply_to == "my-queue"


def test_a_passive_declare_tells_whether_a_reply_would_arrive(client: TestChannel) -> None:
    client.consume(NAME, no_ack=True)
    reply_to = request(client, client)
    assert client.session.declare_queue(reply_to, passive=True).name == reply_to


def test_compaction_finds_the_copy_of_a_persistent_message_in_a_reply_queue(
    broker: Broker, client: TestChannel
) -> None:
    client.session.declare_queue("q", durable=True)
    reply = client.consume(NAME, "replies", no_ack=True).queue
    client.left = 0
    client.publish(reply.name, b"answer", delivery_mode=2, headers={"CC": ["q"]})
    [seq] = [seq for seq in range(1, broker.arena.next_seq) if reply.holds(seq)]
    assert broker.holds(reply.number, seq)
    loc = broker.journal.append(broker.arena.record(reply.entry(0, 0).loc))
    assert broker.relocate(reply.number, seq, loc)
    assert reply.entry(0, 0).loc == loc

    number = reply.number
    broker.replies.close(reply)
    assert not broker.holds(number, seq)
