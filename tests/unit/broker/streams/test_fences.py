"""What a front moves on does not get into a queue behind what another has moved on after it."""

from __future__ import annotations

from typing import Any

import pytest
from unit.broker.channel import TestChannel
from unit.node.world import NodeWorld

from tidemark.broker.transaction import Transaction
from tidemark.errors import PreconditionFailed, StoreError
from tidemark.model.wiring import FRONT_USER

CLUSTER = "c1"


def a_world(queue: str = "q", **options: Any) -> NodeWorld:
    world = NodeWorld()
    declare(world, queue, **options)
    return world


def declare(world: NodeWorld, queue: str, **options: Any) -> None:
    session = world.broker.open_session("/", "guest", None, "test")
    session.declare_queue(queue, **({"durable": True} | options))
    world.turn()


def a_front(world: NodeWorld, **how: Any) -> TestChannel:
    how = {"by_front": True, "own": True, "turns": True} | how
    return TestChannel(world.broker.open_session("/", FRONT_USER, None, "front", **how))


def turn(count: int, *, reign: int = 1, link: int = 1, of: str = CLUSTER, source: str = "q") -> list[Any]:
    return ["main", source, of, reign, count, link]


def move(world: NodeWorld, said: Any, *bodies: bytes, to: str = "q", **how: Any) -> list[int]:
    """What a front moves on in this turn. Returns the rows that were refused."""
    headers = {"x-tidemark-to": [to]} | ({"x-tidemark-turn": said} if said else {})
    published = a_front(world, **how).publish("", *bodies, headers=headers, delivery_mode=2)
    assert published.error is None
    world.turn()
    return published.refused


def bodies(world: NodeWorld, queue: str = "q") -> list[bytes]:
    channel, found = TestChannel(world.broker.open_session("/", "guest", None, "test")), []
    while (delivery := channel.get(queue, no_ack=True)) is not None:
        found.append(delivery.body)
    return found


def fences(world: NodeWorld) -> dict[bytes, dict[str, Any]]:
    """The records."""
    return {name: body for name, _, body in world.broker.streams.state.items() if name.startswith(b"fence/")}


@pytest.mark.parametrize(
    ("later", "former"),
    [
        (turn(2), turn(1)),
        (turn(1, reign=2), turn(7, reign=1)),
        (turn(1, link=2), turn(1, link=1)),
    ],
    ids=["of another front", "of another leader", "of another link"],
)
def test_what_comes_of_a_former_turn_behind_a_later_one_is_refused(later: Any, former: Any) -> None:
    world = a_world()
    assert move(world, former, b"1") == []
    assert move(world, later, b"1", b"2") == []

    assert move(world, former, b"1", b"2") == [0, 1]
    assert move(world, later, b"3") == []
    assert bodies(world) == [b"1", b"1", b"2", b"3"]


@pytest.mark.parametrize(
    "other",
    [turn(1, source="p"), turn(1, of="c2"), None],
    ids=["of another source", "of a cluster that was made anew", "that says no turn"],
)
def test_what_cannot_be_compared_is_taken(other: Any) -> None:
    world = a_world()
    move(world, turn(2), b"1")
    assert move(world, other, b"2") == []
    assert bodies(world) == [b"1", b"2"]


def test_each_queue_has_a_fence_of_its_own() -> None:
    world = a_world()
    declare(world, "p")
    move(world, turn(2, source="amq.tidemark.outbox"), b"1")
    assert move(world, turn(1, source="amq.tidemark.outbox"), b"1", to="p") == []


@pytest.mark.parametrize("kind", ["classic", "stream"])
@pytest.mark.parametrize("power", [False, True])
def test_who_leads_next_refuses_it_too(kind: str, power: bool) -> None:
    world = a_world(arguments={"x-queue-type": kind})
    move(world, turn(2), b"1")
    world = world.crash(power)

    assert move(world, turn(1), b"1") == [0]
    assert move(world, turn(2), b"2") == []


def test_a_turn_is_written_down_once_in_the_place_of_the_one_before_and_goes_with_its_queue() -> None:
    world = a_world()
    move(world, turn(1), b"1", b"2")
    first = world.broker.arena.next_seq
    move(world, turn(1), b"3")
    assert world.broker.arena.next_seq == first + 1, "the message, and nothing else"
    move(world, turn(2), b"4")
    [fence] = fences(world).values()
    assert fence == {"of": CLUSTER, "at": [1, 2, 1]}

    world.broker.delete_queue(world.queue("q"))
    world.turn()
    assert fences(world) == {} and len(world.broker.streams.fences) == 0
    declare(world, "q")
    assert move(world, turn(1), b"1") == [], "it is another queue"


def test_the_record_of_a_queue_whose_deletion_was_not_written_to_the_end_goes_at_the_next_start() -> None:
    world = a_world()
    move(world, turn(1), b"1")
    world.broker.streams.leads = False  # the process ends before it has written that
    world.broker.delete_queue(world.queue("q"))
    world.turn()
    world = world.crash()
    assert fences(world) == {}


def test_a_queue_that_ends_with_the_process_has_a_fence_and_no_record() -> None:
    world = a_world(durable=False)
    move(world, turn(2), b"1")
    assert move(world, turn(1), b"1") == [0]
    assert fences(world) == {}


def test_a_message_is_confirmed_when_its_turn_is_on_the_disk_though_itself_is_not_written() -> None:
    world = a_world()
    front = a_front(world)
    said = {"x-tidemark-to": ["q"], "x-tidemark-turn": turn(1)}
    for _ in range(2):
        published = front.publish("", b"transient", headers=said)
        assert published.last_seq > world.node.journal_durable()


def test_without_room_for_the_record_nothing_is_taken() -> None:
    world = a_world()
    with world.no_room():
        published = a_front(world).publish(
            "", b"1", headers={"x-tidemark-to": ["q"], "x-tidemark-turn": turn(1)}
        )
        assert isinstance(published.error, StoreError)
    assert bodies(world) == [] and len(world.broker.streams.fences) == 0


@pytest.mark.parametrize(
    "how", [{"own": False}, {"turns": False}], ids=["a client's message", "a front that knows of no turns"]
)
def test_from_anybody_else_it_is_a_header_like_others(how: dict[str, Any]) -> None:
    world = a_world()
    world.broker.group = "fast"
    assert move(world, turn(9), b"1", **how) == []
    assert move(world, turn(1), b"2") == []
    channel = TestChannel(world.broker.open_session("/", "guest", None, "test"))
    assert channel.get("q").headers == {"x-tidemark-turn": turn(9)}
    assert channel.get("q").headers == {}


@pytest.mark.parametrize(
    "said", ["x", [], ["main", "q", "c"], ["main", "q", "c", "1", 2, 3], [1, 2, 3, 4, 5, 6]]
)
def test_what_is_no_turn_is_an_error(said: Any) -> None:
    published = a_front(a_world()).publish(
        "", b"1", headers={"x-tidemark-to": ["q"], "x-tidemark-turn": said}
    )
    assert isinstance(published.error, PreconditionFailed)


def test_what_is_moved_on_is_in_no_transaction() -> None:
    front = a_front(a_world())
    run = front.a_run("", b"1", headers={"x-tidemark-to": ["q"], "x-tidemark-turn": turn(1)})
    with pytest.raises(PreconditionFailed):
        Transaction(front.publishing).publish(run)
