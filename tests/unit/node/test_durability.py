"""The whole node over a disk that is full, slow or killed: what clients were told stays true."""

from __future__ import annotations

import pytest
from unit.frontend.harness import PERSISTENT, Client
from unit.node.world import NodeWorld

from tidemark.model.wiring import PolicySpec
from tidemark.store.catalog_log import CatalogLog
from tidemark.wire.amqp091.methods import (
    BasicAck,
    BasicConsume,
    BasicNack,
    ConfirmSelect,
    ExchangeDeclare,
    QueueBind,
    QueueDeclare,
    QueueDeclareOk,
    QueueDelete,
    QueuePurge,
    QueuePurgeOk,
)


@pytest.fixture
def world() -> NodeWorld:
    return NodeWorld()


def with_dead_letters(client: Client) -> None:
    """An exchange `dlx` with a queue `dead` behind it."""
    client.ask(1, ExchangeDeclare(exchange="dlx", type="fanout", durable=True))
    client.declare("dead", durable=True)
    client.ask(1, QueueBind(queue="dead", exchange="dlx"))


def test_a_connection_that_breaks_while_the_disk_is_full_leaves_no_consumer(world: NodeWorld) -> None:
    client, other = world.open(channels=2), world.open()
    with_dead_letters(client)
    client.declare("jobs", durable=True)
    client.declare(
        "limited", durable=True, arguments={"x-delivery-limit": 0, "x-dead-letter-exchange": "dlx"}
    )
    client.publish(1, "limited", b"poison", properties=PERSISTENT)
    client.send(1, BasicConsume(queue="limited"))
    client.send(2, BasicConsume(queue="jobs", no_ack=True))

    with world.no_room():
        world.lose(client)
    assert world.queue("jobs").consumers == []
    assert world.queue("limited").acquired == 0

    other.ask(1, ConfirmSelect())
    other.publish(1, "jobs", b"job", properties=PERSISTENT)
    assert isinstance(other.read(), BasicAck)
    assert world.queue("jobs").ready == 1


def test_a_nack_over_two_queues_that_finds_no_room_for_a_dead_letter_holds_nothing_back(
    world: NodeWorld,
) -> None:
    client = world.open()
    with_dead_letters(client)
    client.declare("risky", durable=True, arguments={"x-dead-letter-exchange": "dlx"})
    client.declare("plain", durable=True)
    for queue in ("risky", "plain"):
        client.publish(1, queue, b"x", properties=PERSISTENT)
        client.send(1, BasicConsume(queue=queue))

    with world.no_room():
        client.send(1, BasicNack(delivery_tag=0, multiple=True, requeue=False))
    world.lose(client)
    world.turn()

    assert (world.queue("risky").ready, world.queue("risky").acquired) == (1, 0)
    assert (world.queue("plain").ready, world.queue("plain").acquired) == (0, 0)


def test_a_full_disk_heals_when_consumers_accept_what_is_there(world: NodeWorld) -> None:
    client = world.open()
    client.declare("q", durable=True)
    world.rest(5)
    for _ in range(10):
        client.publish(1, "q", *[bytes(900)] * 20, properties=PERSISTENT)
    world.disk.capacity -= world.disk.free_bytes()
    publishing = world.broker.open_session("/", "guest", None, "x").publishing(None)
    for size in (900, 0):
        while publishing.publish_one("", "q", PERSISTENT, bytes(size)).error is None:
            world.turn()
    assert world.node.journal.full
    assert not world.node.store.files.has_reserve

    queue = world.queue("q")
    while (taken := queue.take(5, 1 << 30)) is not None:
        queue.settle_taken(taken)
        world.turn()
    assert queue.unwritten
    world.rest(slices=100)

    assert not world.node.alarms.disk
    assert world.node.store.files.has_reserve
    assert queue.unwritten == []
    assert world.crash(power=False).queue("q").ready == 0


def test_a_purge_is_answered_when_it_is_on_the_disk_and_not_before(world: NodeWorld) -> None:
    client = world.open()
    client.declare("q", durable=True)
    client.publish(1, "q", b"1", b"2", properties=PERSISTENT)

    with world.slow_disk():
        client.send(1, QueuePurge(queue="q"))
        assert client.read_all() == []
    world.turn()
    assert client.read() == QueuePurgeOk(message_count=2)
    assert world.crash().queue("q").ready == 0


def test_a_declaration_that_a_rewrite_of_the_catalog_made_durable_is_answered_at_once(
    world: NodeWorld, monkeypatch: pytest.MonkeyPatch
) -> None:
    client = world.open()
    for _ in range(3):  # an image takes sequences that the log has used up
        client.declare("old", durable=True)
        client.ask(1, QueueDelete(queue="old"))
    with world.slow_disk():
        client.send(1, QueueDeclare(queue="q", durable=True))
        assert client.read_all() == []
        monkeypatch.setattr(CatalogLog, "wants_rewrite", True)
        world.node.maintain(world.now_ms, 1 << 20)
        world.carry()
        assert isinstance(client.read(), QueueDeclareOk)
    assert "q" in world.crash().broker.vhosts["/"].queues


def test_a_front_end_that_fails_when_told_of_the_disk_does_not_keep_others_from_their_confirms(
    world: NodeWorld,
) -> None:
    broken, client = world.open(), world.open()
    client.declare("q", durable=True)
    for each in (broken, client):
        each.ask(1, ConfirmSelect())
    with world.slow_disk():
        broken.publish(1, "q", b"1", properties=PERSISTENT)
        client.publish(1, "q", b"2", properties=PERSISTENT)
    broken.front_end.durable = lambda: 1 / 0  # type: ignore[method-assign, assignment, return-value]

    world.turn()
    assert isinstance(client.read(), BasicAck)
    assert ("error", "unexpected exception") in world.notes


def test_a_full_disk_in_one_turn_keeps_no_queue_from_its_consumers(world: NodeWorld) -> None:
    client = world.open()
    with_dead_letters(client)
    client.declare("q", durable=True, arguments={"x-message-ttl": 1000, "x-dead-letter-exchange": "dlx"})
    client.publish(1, "q", b"old", properties=PERSISTENT)

    with world.no_room():
        world.now_ms += 1001
        world.node.turn(world.now_ms)
        assert world.node.alarms.disk
    client.publish(1, "q", b"new", properties=PERSISTENT)
    client.send(1, BasicConsume(queue="q"))
    _, delivered = client.read_all()
    assert delivered.body == b"new"
    assert world.queue("dead").ready == 1


def test_what_has_room_goes_to_the_disk_in_a_turn_in_which_something_else_has_none(world: NodeWorld) -> None:
    client = world.open()
    with_dead_letters(client)
    client.declare("q", durable=True, arguments={"x-message-ttl": 1000, "x-dead-letter-exchange": "dlx"})
    client.publish(1, "q", b"old", properties=PERSISTENT)

    with world.no_room():
        world.now_ms += 1001
        client.declare("more", durable=True)
        assert world.queue("q").ready == 1
        assert "more" in world.crash(power=False).broker.vhosts["/"].queues


def put_ttl(world: NodeWorld, ttl_ms: int, pattern: str = ".*") -> None:
    world.broker.put_policy(PolicySpec("/", "p", pattern, "queues", 0, {"message-ttl": ttl_ms}))
    world.turn()


def test_a_message_lives_as_long_after_a_crash_as_it_would_have_without_one(world: NodeWorld) -> None:
    """What a policy says of the time to live holds for messages that come after it, read again or not."""
    client = world.open()
    for name in ("a", "b"):
        client.declare(name, durable=True)
    client.publish(1, "a", b"before", properties=PERSISTENT)
    world.turn()
    world.now_ms += 60_000
    put_ttl(world, 5_000)
    client.publish(1, "b", b"under it", properties=PERSISTENT)
    world.turn()

    world = world.crash()
    assert (world.queue("a").ready, world.queue("b").ready) == (1, 1)
    world.broker.delete_policy("/", "p")
    world.turn()
    world.now_ms += 10_000
    world = world.crash()
    assert (world.queue("a").ready, world.queue("b").ready) == (1, 0)


def test_queues_with_other_times_to_live_are_asked_again_after_a_crash(world: NodeWorld) -> None:
    client = world.open()
    for name, ttl_ms in (("short", 1_000), ("long", 600_000)):
        client.declare(name, durable=True, arguments={"x-message-ttl": ttl_ms})
        client.ask(1, QueueBind(queue=name, exchange="amq.fanout"))
    client.publish(1, "", b"x", exchange="amq.fanout", properties=PERSISTENT)
    world.turn()
    world.now_ms += 5_000
    world = world.crash()
    assert (world.queue("short").ready, world.queue("long").ready) == (0, 1)
