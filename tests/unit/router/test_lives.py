"""A queue of another group is deleted while a front stands still, dies, or has a message for it."""

from __future__ import annotations

from typing import Any

import pytest
from unit.frontend.harness import PERSISTENT, Client
from unit.router.test_mover import ELSEWHERE, Moving, at_main, bodies

from tidemark.broker.streams.session import StreamSession
from tidemark.frontend.amqp091 import connection
from tidemark.router.wiring import MAIN
from tidemark.wire.amqp091 import methods
from tidemark.wire.amqp091.methods import Method


@pytest.fixture
def moving() -> Moving:
    moving = Moving()
    client = moving.front.open()
    client.declare("q", durable=True, arguments=ELSEWHERE)
    client.ask(1, methods.ExchangeDeclare(exchange="e", type="fanout", durable=True))
    client.ask(1, methods.QueueBind(queue="q", exchange="e"))
    return moving


class Still:
    """A client whose front has deleted a queue in its group, and says nothing to main for now."""

    def __init__(self, moving: Moving, **options: Any) -> None:
        self._moving = moving
        known = set(moving.front.wires)
        self.client: Client = moving.front.open()
        [(self._link, self._wire)] = [
            (link, wire)
            for link, wire in moving.front.wires.items()
            if link not in known and link.group == MAIN
        ]
        self._wire.flush = lambda: None  # type: ignore[method-assign]
        self.client.send(1, methods.QueueDelete(queue="q", **options))
        assert "q" not in moving.fast.broker.vhosts["/"].queues
        assert "q" in moving.main.broker.vhosts["/"].queues
        assert self.client.read_all() == []

    def go_on(self) -> list[Any]:
        del self._wire.flush  # type: ignore[method-assign]
        self._moving.front.touched(self._link)
        self._moving.turn()
        return self.client.read_all()


def there(moving: Moving) -> list[str]:
    """Which brokers have the queue."""
    return [group for group, world in moving.front.worlds.items() if "q" in world.broker.vhosts["/"].queues]


def redeclared(moving: Moving) -> list[bytes]:
    """What is in the next queue of that name."""
    moving.declare("q")
    moving.pass_s(5)
    return bodies(moving.fast, "q")


def test_what_was_moved_while_a_front_stood_still_is_deleted_with_the_queue(moving: Moving) -> None:
    still = Still(moving)
    at_main(moving, "q", b"x")
    moving.pass_s(5)
    assert there(moving) == [MAIN, "fast"], "somebody had a message for it"

    assert still.go_on() == [methods.QueueDeleteOk(1)]
    assert there(moving) == []
    assert redeclared(moving) == []


@pytest.mark.parametrize(
    "method",
    [
        methods.QueueDeclare(queue="q", durable=True, arguments=ELSEWHERE),
        methods.QueueDeclare(queue="q", passive=True),
        methods.BasicConsume(queue="q"),
        methods.QueuePurge(queue="q"),
    ],
    ids=lambda method: type(method).__name__,
)
def test_who_uses_a_queue_that_is_being_deleted_has_it_until_it_is(moving: Moving, method: Method) -> None:
    still, other = Still(moving), moving.front.open()
    answer = other.ask(1, method)
    assert not isinstance(answer, methods.ChannelClose)
    assert there(moving) == [MAIN, "fast"]

    assert still.go_on() == [methods.QueueDeleteOk(0)]
    assert there(moving) == []


def test_a_queue_whose_front_died_in_between_is_used_on_with_its_bindings(moving: Moving) -> None:
    Still(moving).client.front_end.receive_eof()
    moving.front.open().publish(1, "", b"x", exchange="e", properties=PERSISTENT)
    moving.pass_s(5)
    assert bodies(moving.fast, "q") == [b"x"]


def test_a_queue_is_not_empty_if_something_was_moved_into_it_meanwhile(moving: Moving) -> None:
    still = Still(moving, if_empty=True)
    at_main(moving, "q", b"x")
    moving.pass_s(5)

    [close] = still.go_on()
    assert (close.reply_code, close.class_id, close.method_id) == (406, 50, 40)
    moving.pass_s(5)
    assert bodies(moving.fast, "q") == [b"x"]


def test_a_queue_is_not_empty_while_a_front_holds_messages_for_it(moving: Moving) -> None:
    still = Still(moving, if_empty=True)
    at_main(moving, "q", b"x")
    moving.turn()
    assert moving.main.ready("q") == 0, "it is held"

    [close] = still.go_on()
    assert close.reply_code == 406
    moving.pass_s(5)
    assert bodies(moving.fast, "q") == [b"x"]


def test_another_queue_of_that_name_is_left_alone(moving: Moving) -> None:
    still, other = Still(moving), moving.front.open()
    assert other.ask(1, methods.QueueDelete(queue="q")) == methods.QueueDeleteOk(0)
    other.declare("q", durable=True, arguments=ELSEWHERE)
    other.publish(1, "q", b"new", properties=PERSISTENT)

    assert still.go_on() == [methods.QueueDeleteOk(0)]
    assert there(moving) == [MAIN, "fast"]
    assert bodies(moving.fast, "q") == [b"new"]


def test_a_message_of_a_queue_that_was_deleted_gets_into_no_other_of_that_name(moving: Moving) -> None:
    moving.front.copy.slow = True
    at_main(moving, "q", b"old")
    moving.turn()
    moving.front.copy.slow = False
    asked, moving.front.copy.asked = moving.front.copy.asked, []
    [wire] = [wire for link, wire in moving.front.wires.items() if link in moving.links]
    wire.hear = lambda _: None  # type: ignore[method-assign]  # main says that the queue is gone, which is on its way
    client = moving.front.open()
    for broker in (moving.fast.broker, moving.main.broker):
        broker.delete_queue(broker.vhosts["/"].queues["q"])
    client.declare("q", durable=True, arguments=ELSEWHERE)
    for then in asked:
        then()
    moving.pass_s(5)
    assert bodies(moving.fast, "q") == []


def test_what_is_on_its_way_to_a_life_that_is_over_is_not_taken_by_the_next(moving: Moving) -> None:
    front = moving.front
    at_main(moving, "q", b"first")
    moving.turn()
    [wire] = [
        wire
        for link, wire in front.wires.items()
        if link.owner.peer.own and link.group == "fast" and not wire.cut
    ]
    wire.flush = lambda: None  # type: ignore[method-assign]
    at_main(moving, "q", b"late")
    moving.turn()
    client = front.open()
    client.ask(1, methods.QueueDelete(queue="q"))
    client.declare("q", durable=True, arguments=ELSEWHERE)
    del wire.flush  # type: ignore[method-assign]
    front.touched(wire.link)
    moving.pass_s(5)
    assert bodies(moving.fast, "q") == []
    assert moving.mover.statistics()["held"] == 0


def test_a_main_that_is_older_than_the_group_goes_on_behind_it(moving: Moving) -> None:
    queue = moving.fast.broker.vhosts["/"].queues["q"]
    moving.fast.broker.incarnate(queue, 1000)
    client = moving.front.open()
    client.publish(1, "q", b"kept", properties=PERSISTENT)
    assert client.declare("q", durable=True, arguments=ELSEWHERE).message_count == 1
    assert moving.main.broker.vhosts["/"].queues["q"].spec.life == 1001
    assert client.ask(1, methods.QueueDelete(queue="q")) == methods.QueueDeleteOk(1)


@pytest.mark.parametrize("group", [MAIN, "fast"])
def test_to_a_leader_that_does_not_know_lives_all_is_said_as_before(
    group: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    moving = Moving()
    opened = connection.server_handshake

    def older(config: Any, frame_max: int, mechanisms: Any, more: Any = ()) -> Any:
        return opened(config, frame_max, mechanisms, () if connecting == group else more)

    monkeypatch.setattr(connection, "server_handshake", older)
    dialled, connecting = moving.front._dialled, ""

    def dial(link: Any) -> None:
        nonlocal connecting
        connecting = link.group
        dialled(link)

    moving.front._dialled = dial  # type: ignore[method-assign]
    client = moving.front.open()
    client.declare("q", durable=True, arguments=ELSEWHERE)
    client.publish(1, "q", b"one", properties=PERSISTENT)
    at_main(moving, "q", b"two")
    moving.pass_s(5)
    assert bodies(moving.fast, "q") == [b"one", b"two"]
    assert client.ask(1, methods.QueueDelete(queue="q")) == methods.QueueDeleteOk(0)
    assert there(moving) == []
    client.declare("q", durable=True, arguments=ELSEWHERE)
    assert there(moving) == [MAIN, "fast"]


def test_a_delete_that_comes_late_leaves_a_stream_alone_that_was_declared_over_its_own_protocol(
    moving: Moving,
) -> None:
    """That protocol says no life, but it is none that the group knows to be over."""
    stream = {"x-queue-type": "stream"}
    other, late, publisher = (moving.front.open() for _ in range(3))
    other.declare("s", durable=True, arguments=ELSEWHERE | stream)
    known = set(moving.front.wires)
    late.publish(1, "s", b"first", properties=PERSISTENT)
    moving.turn()
    [wire] = [wire for link, wire in moving.front.wires.items() if link not in known and link.group == "fast"]
    wire.hold()
    late.send(1, methods.QueueDelete(queue="s"))
    moving.turn()
    other.ask(1, methods.QueueDelete(queue="s"))
    for world in (moving.main, moving.fast):
        session = world.broker.open_session("/", "guest", None, "test")
        StreamSession(session, by_front=True).declare("s", ELSEWHERE)
        moving.front.turn()
    publisher.ask(1, methods.ConfirmSelect())
    publisher.publish(1, "s", b"confirmed", properties=PERSISTENT)
    moving.turn()
    assert [type(one) for _, one in publisher.inbox] == [methods.BasicAck]

    wire.let_go()
    moving.pass_s(5)
    made: Any = moving.fast.broker.vhosts["/"].queues["s"]
    assert made.census()[0] == 1
    at_main(moving, "s", b"moved")
    moving.pass_s(5)
    assert made.census()[0] == 2, "main counts on behind the life that the group gave it"


def test_a_queue_whose_group_is_gone_from_main_is_deleted_through_a_front_that_still_has_it(
    moving: Moving,
) -> None:
    moving.main.broker.other_groups = {}
    assert moving.front.open().ask(1, methods.QueueDelete(queue="q")) == methods.QueueDeleteOk(0)
    assert there(moving) == []
