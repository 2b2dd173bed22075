"""Fronts are told in which stand-ins and outboxes messages wait: when they begin to, and while nobody takes them."""

from __future__ import annotations

from unit.frontend.harness import World

from tidemark.broker.feed import WiringFeed
from tidemark.broker.groups import OUTBOX
from tidemark.wire.amqp091 import methods

ELSEWHERE = {"x-group": "fast"}


class Listening:
    def __init__(self) -> None:
        self.told: list[tuple[str, str]] = []

    def changed(self, change: bytes) -> None:
        pass

    def waits(self, vhost: str, queue: str) -> None:
        self.told.append((vhost, queue))


def main(*queues: str, **arguments: object) -> World:
    world = World()
    world.broker.other_groups = {"fast": "chain"}
    client = world.open()
    for queue in queues:
        client.ask(1, methods.QueueDeclare(queue=queue, durable=True, arguments=ELSEWHERE | arguments))
    return world


def test_a_front_is_told_once_when_messages_begin_to_wait_in_a_stand_in() -> None:
    world = main("there")
    world.open().ask(1, methods.QueueDeclare(queue="here", durable=True))
    front = Listening()
    WiringFeed(world.broker).listen(front)
    client = world.open()
    for queue in ("here", "there", "there"):
        client.publish(1, queue, b"x")
    assert front.told == [("/", "there")]


def test_what_waits_already_is_told_to_who_comes_and_again_while_nobody_takes_it() -> None:
    world = main("there")
    client = world.open()
    client.publish(1, "there", b"x")
    feed, front = WiringFeed(world.broker), Listening()
    feed.listen(front)
    feed.remind(front)
    feed.remind(front)
    assert front.told == [("/", "there")] * 2

    client.send(1, methods.BasicConsume(queue="there"))
    feed.remind(front)
    assert len(front.told) == 2, "somebody has it"
    client.front_end.receive_eof()
    world.turn()
    assert len(front.told) == 3, "it is back"


def test_a_queue_that_was_emptied_behind_our_back_is_told_of_anew() -> None:
    world = main("there")
    feed, front, client = WiringFeed(world.broker), Listening(), world.open()
    feed.listen(front)
    client.publish(1, "there", b"x")
    client.ask(1, methods.QueuePurge(queue="there"))
    feed.remind(front)
    client.publish(1, "there", b"x")
    assert len(front.told) == 2


def test_a_queue_that_is_deleted_is_forgotten() -> None:
    world = main("there")
    feed, front, client = WiringFeed(world.broker), Listening(), world.open()
    feed.listen(front)
    client.publish(1, "there", b"x")
    deleted = world.open(front="f1").ask(1, methods.QueueDelete(queue="there"))
    feed.remind(front)
    assert isinstance(deleted, methods.QueueDeleteOk) and len(front.told) == 1


def test_another_group_has_no_wiring_to_give_but_tells_of_its_outbox() -> None:
    world = World()
    world.broker.group = "fast"
    feed, front, client = WiringFeed(world.broker), Listening(), world.open()
    assert feed.listen(front) == [] and world.broker.feed is None
    arguments = {"x-dead-letter-exchange": "in main", "x-message-ttl": 0}
    client.ask(1, methods.QueueDeclare(queue="dying", durable=True, arguments=arguments))
    client.publish(1, "dying", b"x")
    assert front.told == [("/", OUTBOX)]


def test_while_nobody_listens_nobody_is_called() -> None:
    world = main("there")
    feed, front = WiringFeed(world.broker), Listening()
    feed.listen(front)
    feed.leave(front)
    assert world.broker.waits is None and world.broker.feed is None


def test_one_consumer_at_a_time_takes_what_is_in_a_stand_in_as_often_as_it_must() -> None:
    world = main("there", **{"x-delivery-limit": 1, "x-queue-type": "quorum"})
    first, second = world.open(), world.open()
    for client in (first, second):
        client.ask(1, methods.BasicConsume(queue="there"))
    world.open().publish(1, "there", b"x")
    for _ in range(3):
        [delivered] = first.read_all()
        assert not (delivered.properties.headers or {}).get("x-delivery-count")
        first.send(1, methods.BasicNack(delivered.method.delivery_tag, False, True))
    assert second.read_all() == []
    first.front_end.receive_eof()
    world.turn()
    assert len(second.read_all()) == 1
