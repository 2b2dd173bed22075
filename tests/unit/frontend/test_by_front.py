"""What a front publishes on behalf of a client: to the queues that it names, and shown as the client published it."""

from __future__ import annotations

from typing import Any

import pytest
from unit.frontend.harness import Client, World

from tidemark.frontend.amqp091.connection import Amqp091
from tidemark.frontend.services import PeerInfo
from tidemark.model.values import RawString
from tidemark.model.wiring import PermissionSpec
from tidemark.wire.amqp091 import methods
from tidemark.wire.amqp091.properties import Properties, encode_properties


def by_front(world: World, channels: int = 1) -> Client:
    """A connection over the link of a front."""
    port = 50_000 + len(world.clients)
    front_end = Amqp091(world, PeerInfo("10.0.0.9", port, "10.0.0.1", 5672, front="f1"))
    client = world.clients[front_end] = Client(world, front_end)
    client.shake_hands()
    for number in range(1, channels + 1):
        client.ask(number, methods.ChannelOpen())
    return client


def a_world(*queues: str) -> World:
    world = World()
    client = world.open()
    for queue in queues:
        client.ask(1, methods.QueueDeclare(queue=queue, durable=True))
    return world


def listed(to: Any, exchange: Any = "orders", key: Any = "new.7", **properties: Any) -> bytes:
    headers = properties.pop("headers", {}) | {
        "x-tidemark-to": to,
        "x-tidemark-exchange": exchange,
        "x-tidemark-key": key,
    }
    return encode_properties(Properties(headers=headers, **properties))


def got(world: World, queue: str) -> Any:
    return world.open().ask(1, methods.BasicGet(queue=queue, no_ack=True))


def test_a_message_is_on_the_queues_that_were_named_and_shown_as_it_was_published() -> None:
    world = a_world("a", "b", "c")
    front = by_front(world)
    front.ask(1, methods.ConfirmSelect())
    before = world.arena.next_seq
    front.publish(
        1, "", b"body", properties=listed(["a", "c"], headers={"h": 1, "BCC": ["b"]}, delivery_mode=2)
    )
    [ack] = front.read_all()
    assert isinstance(ack, methods.BasicAck)
    assert [world.ready(queue) for queue in "abc"] == [1, 0, 1]
    first = [entry.loc for entry in (world.broker.vhosts["/"].queues[q].entry(0, 0) for q in "ac")]
    assert first[0] == first[1] and world.arena.next_seq == before + 2, "one record for both"
    content = got(world, "a")
    assert (content.method.exchange, content.method.routing_key) == ("orders", "new.7")
    assert content.properties.headers == {"h": 1} and content.properties.delivery_mode == 2


def test_without_other_headers_none_are_left_and_without_names_it_is_shown_as_it_came() -> None:
    world = a_world("a")
    front = by_front(world)
    front.publish(1, "", b"x", properties=encode_properties(Properties(headers={"x-tidemark-to": ["a"]})))
    content = got(world, "a")
    assert (content.method.exchange, content.method.routing_key) == ("", "")
    assert content.properties.headers is None


def test_queues_that_are_not_here_are_returned_one_by_one_and_the_others_have_it() -> None:
    world = a_world("a")
    front = by_front(world)
    front.ask(1, methods.ConfirmSelect())
    long = "q" * 255
    front.publish(
        1, "", b"body", properties=listed(["x", "a", long, "x", RawString(b"\xff")], delivery_mode=2)
    )
    *returned, ack = front.read_all()
    assert isinstance(ack, methods.BasicAck) and world.ready("a") == 1
    assert [one.method.reply_code for one in returned] == [404] * 3
    assert [one.method.reply_text for one in returned] == ["x", long, "\udcff"]
    assert returned[0].body == b"body" and returned[0].properties.headers["x-tidemark-key"] == "new.7"


def test_the_same_list_again_is_asked_for_again() -> None:
    world = a_world("a", "b")
    front, owner = by_front(world), world.open()
    for present in (True, False, True):
        front.publish(1, "", b"x", properties=listed(["a", "b"], message_id=str(present)))
        assert [one.method.reply_text for one in front.read_all()] == ([] if present else ["b"])
        if present:
            owner.ask(1, methods.QueueDelete(queue="b"))
        else:
            owner.ask(1, methods.QueueDeclare(queue="b"))
    assert world.ready("a") == 3


def test_all_rows_of_a_read_are_published_in_order() -> None:
    world = a_world("a", "b")
    front = by_front(world)
    for n in range(3):
        front.publish(1, "a", b"plain %d" % n)
        front.publish(1, "", b"listed %d" % n, properties=listed(["a", "b"]))
    found = [got(world, "a").body for _ in range(6)]
    assert found == [b"plain 0", b"listed 0", b"plain 1", b"listed 1", b"plain 2", b"listed 2"]
    assert world.ready("b") == 3


def test_in_a_transaction_too() -> None:
    world = a_world("a", "b")
    front = by_front(world)
    front.ask(1, methods.TxSelect())
    front.publish(1, "", b"1", properties=listed(["a", "b", "gone"], delivery_mode=2))
    assert world.ready("a") == 0
    front.send(1, methods.TxCommit())
    returned, ok = front.read_all()
    assert returned.method.reply_text == "gone" and isinstance(ok, methods.TxCommitOk)
    assert [world.ready(queue) for queue in "ab"] == [1, 1]
    assert got(world, "b").method.exchange == "orders"


def test_the_front_has_asked_whether_the_user_may() -> None:
    """Who may publish to an exchange of main need not be allowed to publish to the default one."""
    world = a_world("a")
    front = by_front(world)
    world.broker.put(PermissionSpec("guest", "/", ".*", "^orders$", ".*"))
    front.publish(1, "", b"x", properties=listed(["a"], user_id="somebody else"))
    assert front.read_all() == [] and world.ready("a") == 1
    front.publish(1, "a", b"x")
    [error] = front.read_all()
    assert error.reply_code == 403, "but only what it has routed"


def test_a_full_queue_refuses_and_the_others_have_it() -> None:
    world = a_world("a")
    world.open().ask(
        1,
        methods.QueueDeclare(
            queue="full", durable=True, arguments={"x-max-length": 0, "x-overflow": "reject-publish"}
        ),
    )
    front = by_front(world)
    front.ask(1, methods.ConfirmSelect())
    front.publish(1, "", b"x", properties=listed(["a", "full"]))
    [nack] = front.read_all()
    assert isinstance(nack, methods.BasicNack) and world.ready("a") == 1


def test_a_reply_finds_the_private_queue_of_a_channel() -> None:
    world = a_world()
    asker = world.open()
    asker.send(1, methods.BasicConsume(queue="amq.rabbitmq.reply-to", no_ack=True))
    asker.read_all()
    asker.ask(1, methods.QueueDeclare(queue="work"))
    properties = encode_properties(Properties(reply_to="amq.rabbitmq.reply-to"))
    asker.publish(1, "work", b"question", properties=properties)
    reply_to = got(world, "work").properties.reply_to
    front = by_front(world)
    front.publish(1, "", b"answer", properties=listed([reply_to], exchange="", key=reply_to))
    assert asker.bodies() == [b"answer"]


@pytest.mark.parametrize(
    ("properties", "words"),
    [
        (listed("a"), "x-tidemark-to' is no list"),
        (listed([1]), "x-tidemark-to' has no name of 255 bytes at most: 1"),
        (listed(["q" * 256]), "no name of 255 bytes"),
        (listed(["a"], exchange=7), "x-tidemark-exchange' has no name"),
        (listed(["a"], key="k" * 256), "x-tidemark-key"),
        (listed(["a"], expiration="soon"), "invalid expiration"),
    ],
)
def test_what_cannot_be_closes_the_channel(properties: bytes, words: str) -> None:
    world = a_world("a")
    front = by_front(world)
    front.publish(1, "", b"x", properties=properties)
    [error] = front.read_all()
    assert error.reply_code == 406 and words in error.reply_text and world.ready("a") == 0


def test_a_list_of_nobody_is_a_message_that_no_queue_wants() -> None:
    world = a_world()
    front = by_front(world)
    front.publish(1, "", b"x", properties=listed([]), mandatory=True)
    [returned] = front.read_all()
    assert (returned.method.reply_code, returned.method.reply_text) == (312, "NO_ROUTE")
    front.publish(1, "", b"x", mandatory=True)
    [returned] = front.read_all()
    assert returned.method.reply_code == 312


def test_from_a_client_the_headers_mean_nothing() -> None:
    world = a_world("a")
    client = world.open()
    client.publish(1, "", b"x", properties=listed(["a"]), mandatory=True)
    [returned] = client.read_all()
    assert returned.method.reply_code == 312 and world.ready("a") == 0
    client.publish(1, "a", b"x", properties=listed(["b"]))
    content = got(world, "a")
    assert content.properties.headers["x-tidemark-to"] == ["b"] and content.method.routing_key == "a"


def test_from_a_front_they_mean_nothing_beside_the_default_exchange_and_an_empty_key() -> None:
    world = a_world("a", "b")
    front = by_front(world)
    front.publish(1, "a", b"x", properties=listed(["b"]))
    front.publish(1, "", b"x", exchange="amq.direct", properties=listed(["b"]))
    assert [world.ready(queue) for queue in "ab"] == [1, 0]
