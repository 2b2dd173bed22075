"""Requirements of the study that one node can fulfil, on queues and their publishers: each is proved on the real machines.

Every test begins with the id of its requirement and what it asks for; `requirements_world` says how its words are read.
"""

from __future__ import annotations

from random import Random
from typing import Any

import pytest
from contract.requirements_world import a_publisher, bodies, consume, fetch, ids, numbered, priority, put
from unit.frontend.harness import PERSISTENT, Content
from unit.node.world import NodeWorld

from tidemark.sim.disk import SimDisk
from tidemark.wire.amqp091.methods import (
    BasicAck,
    BasicConsume,
    BasicNack,
    ChannelClose,
    ChannelCloseOk,
    ConnectionBlocked,
    ConnectionUnblocked,
    Method,
    QueueBind,
    QueueDeclare,
    QueueDelete,
    TxCommit,
    TxCommitOk,
    TxSelect,
)
from tidemark.wire.amqp091.properties import Properties, encode_properties

MEMORY_HIGH = 1000
"""The mark that tests of alarms give to `watch`, in bytes."""


# Kinds of queues ----------------------------------------------------------------------------------------------

RING, REJECT = {"x-max-length": 3}, {"x-max-length": 3, "x-overflow": "reject-publish"}
PRIORITY = {"x-max-priority": 9}


@pytest.mark.parametrize(
    ("arguments", "priorities", "refused", "left"),
    [
        pytest.param({}, "00000", [], "01234", id="plain"),
        pytest.param(RING, "00000", [], "234", id="ring"),
        pytest.param({"x-max-length-bytes": 3}, "00000", [], "234", id="ring of bytes"),
        pytest.param(REJECT, "00000", [4, 5], "012", id="reject"),
        pytest.param(PRIORITY, "07291", [], "31240", id="priority"),
        pytest.param(PRIORITY | RING, "00000", [], "234", id="priority and ring, all alike"),
        # From the head, as RabbitMQ does: the most urgent goes first.
        pytest.param(PRIORITY | RING, "99100", [], "234", id="priority and ring"),
        pytest.param(PRIORITY | REJECT, "07291", [4, 5], "120", id="priority and reject"),
    ],
)
def test_a_queue_of_each_kind_keeps_what_it_should_and_a_restart_keeps_exactly_that(
    world: NodeWorld, arguments: dict[str, Any], priorities: str, refused: list[int], left: str
) -> None:
    """Q-50: ring, reject-policy, priority, priority+ring queues replicate exactly: same after recovery."""
    client = a_publisher(world)
    client.declare("q", durable=True, arguments=arguments)
    nacked = []
    for number, urgency in enumerate(priorities):
        client.publish(1, "q", b"%d" % number, properties=priority(int(urgency)))
        [answer] = client.read_all()
        assert answer.delivery_tag == number + 1
        if isinstance(answer, BasicNack):
            nacked.append(answer.delivery_tag)
    assert nacked == refused
    expected = [character.encode() for character in left]
    for _ in range(3):
        assert bodies(world.queue("q")) == expected
        world = world.crash()
    assert [each.body for each in consume(world.open(), "q")] == expected


@pytest.mark.parametrize("kind", ["ring", "reject", "priority and ring"])
@pytest.mark.parametrize("seed", range(5))
def test_limits_hold_through_a_random_life(kind: str, seed: int) -> None:
    """Q-50: ring, reject-policy, priority+ring under publishes, accepts, releases and crashes at any moment."""
    dice = Random(seed)
    world = NodeWorld(SimDisk(dice))
    arguments = {"ring": RING, "reject": REJECT, "priority and ring": PRIORITY | RING}[kind]
    for _ in range(6):
        client = a_publisher(world)
        client.declare("q", durable=True, arguments=arguments)
        for number in range(dice.randint(3, 15)):
            client.publish(1, "q", b"%d" % number, properties=priority(dice.randint(0, 9)))
            assert isinstance(client.read(), BasicAck if kind != "reject" else BasicAck | BasicNack)
            assert world.queue("q").ready <= 3
        tag = fetch(client, "q").method.delivery_tag
        client.send(1, dice.choice((BasicAck(delivery_tag=tag), BasicNack(delivery_tag=tag, requeue=True))))
        assert client.ask(1, ChannelClose()) == ChannelCloseOk()
        before = ids(world.queue("q"))
        world = world.crash()
        assert ids(world.queue("q")) == before


@pytest.mark.parametrize("seed", range(10))
def test_messages_that_expire_while_they_are_on_their_way_to_the_disk_make_no_trouble(seed: int) -> None:
    """Q-51: TTL expiry racing replication causes no error: a storm of 1 ms TTLs over a slow disk."""
    dice = Random(seed)
    world = NodeWorld(SimDisk(dice, lag=4))
    client, consumer = world.open(), world.open()
    for _ in range(10):
        client.send(1, QueueDeclare(queue="dead", durable=True))
        world.turn()
    client.send(
        1,
        QueueDeclare(
            queue="q",
            durable=True,
            arguments={"x-dead-letter-exchange": "", "x-dead-letter-routing-key": "dead"},
        ),
    )
    for _ in range(50):
        world.turn()
    consumer.send(1, BasicConsume(queue="q", no_ack=True))
    sent: list[bytes] = []
    for burst in range(40):
        fresh = [b"%d/%d" % (burst, number) for number in range(dice.randint(1, 20))]
        sent += fresh
        brief = encode_properties(Properties(delivery_mode=2, expiration=str(dice.randint(0, 2))))
        client.publish(1, "q", *fresh, properties=brief)
        world.now_ms += dice.randint(0, 2)
        world.turn()
    world.now_ms += 10
    for _ in range(100):
        world.turn()
    delivered = [each.body for each in consumer.read_all() if isinstance(each, Content)]
    expired = bodies(world.queue("dead"))
    # Each was delivered or has expired: one of the two, and once.
    assert sorted(delivered + expired) == sorted(sent)
    assert expired
    assert not [note for note in world.notes if note[0] == "error"]

    restarted = world.crash()
    assert not [note for note in restarted.notes if note[0] == "error"]
    # An accept without an answer may be lost by a crash, but its time is over all the same.
    restarted.now_ms += 1000
    restarted.turn()
    assert bodies(restarted.queue("q")) == []
    assert set(expired) <= set(bodies(restarted.queue("dead")))


# Publishers that must wait ------------------------------------------------------------------------------------


def test_between_the_marks_a_blocked_publisher_stays_blocked_also_one_that_comes_then(
    world: NodeWorld,
) -> None:
    """Q-88: producer flow limits, incl. the state between the thresholds at join."""
    early = a_publisher(world, "q")
    world.node.watch(MEMORY_HIGH - 20, MEMORY_HIGH, 1 << 40)
    put(early, "q", b"below the mark")

    world.node.watch(MEMORY_HIGH + 1, MEMORY_HIGH, 1 << 40)
    early.publish(1, "q", b"over it", properties=PERSISTENT)
    assert [type(each) for each in early.read_all()] == [ConnectionBlocked, BasicAck]
    assert not early.front_end.wants_read()

    world.node.watch(MEMORY_HIGH - 20, MEMORY_HIGH, 1 << 40)  # the same use as before, which blocked nobody
    assert not early.front_end.wants_read()
    late = a_publisher(world)
    late.publish(1, "q", b"late", properties=PERSISTENT)
    assert isinstance(late.read(), ConnectionBlocked)
    assert not late.front_end.wants_read()
    # Who only consumes is not blocked.
    consumer = world.open()
    assert [each.body for each in consume(consumer, "q", no_ack=True)] == [
        b"below the mark",
        b"over it",
        b"late",
    ]
    assert consumer.front_end.wants_read()

    world.node.watch(MEMORY_HIGH // 2, MEMORY_HIGH, 1 << 40)
    world.turn()
    for each in (early, late):
        assert ConnectionUnblocked() in each.read_all()
        assert each.front_end.wants_read()
    put(early, "q", b"again")


def test_deleting_the_full_queue_lets_its_publishers_go_on(world: NodeWorld) -> None:
    """Q-88: deleting a blocked queue unblocks producers."""
    client = a_publisher(world, "roomy")
    client.declare("full", durable=True, arguments=REJECT)
    for queue in ("roomy", "full"):
        client.ask(1, QueueBind(queue=queue, exchange="amq.fanout"))

    def publish() -> Method:
        client.publish(1, "", b"x", exchange="amq.fanout", properties=PERSISTENT)
        [answer] = client.read_all()
        return answer  # type: ignore[no-any-return]

    assert [type(publish()) for _ in range(5)] == [BasicAck] * 3 + [BasicNack] * 2
    client.ask(1, QueueDelete(queue="full"))
    assert isinstance(publish(), BasicAck)


def test_a_full_queue_is_full_after_a_restart_and_has_room_when_one_is_taken(world: NodeWorld) -> None:
    """Q-88: the state of a limited queue is part of what is recovered: stop and resume at the same count."""
    client = a_publisher(world)
    client.declare("full", durable=True, arguments=REJECT)
    put(client, "full", *numbered(3))
    world = world.crash()
    client = a_publisher(world)
    client.publish(1, "full", b"too much", properties=PERSISTENT)
    assert isinstance(client.read(), BasicNack)
    consumer = world.open()
    fetch(consumer, "full")
    client.publish(1, "full", b"fits", properties=PERSISTENT)
    assert isinstance(client.read(), BasicAck)
    client.publish(1, "full", b"too much again", properties=PERSISTENT)
    assert isinstance(client.read(), BasicNack)


def test_many_commits_that_wait_for_the_disk_do_not_stop_the_broker(world: NodeWorld) -> None:
    """Q-69: many blocked commits do not exhaust worker threads: the broker answers."""
    a_publisher(world, "q")
    committers = [world.open(channels=2) for _ in range(200)]
    for client in committers:
        client.ask(1, TxSelect())
    with world.slow_disk():
        for client in committers:
            client.publish(1, "q", b"x", properties=PERSISTENT)
            client.send(1, TxCommit())
        newcomer = world.open(channels=2)
        newcomer.declare("quick")
        consume(newcomer, "quick", channel=2, no_ack=True)
        newcomer.publish(1, "quick", *numbered(100))
        assert newcomer.bodies() == numbered(100)
        assert all(client.read_all() == [] for client in committers)
        # A commit keeps its own channel waiting, not the others of its connection.
        assert committers[0].declare("also quick", channel=2).queue == "also quick"
        assert world.queue("q").statistics().ready == 200
    world.turn()
    assert all(client.read_all() == [TxCommitOk()] for client in committers)
    assert len(bodies(world.crash().queue("q"))) == 200
