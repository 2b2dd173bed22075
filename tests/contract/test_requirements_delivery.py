"""Requirements of the study that one node can fulfil, on delivery and what follows it: each is proved on the real machines.

Every test begins with the id of its requirement and what it asks for; `requirements_world` says how its words are read.
"""

from __future__ import annotations

from collections.abc import Callable
from random import Random
from typing import Any

import pytest
from contract.requirements_world import (
    PluggedWorld,
    RecordingJournal,
    a_publisher,
    bodies,
    browse,
    consume,
    fetch,
    numbered,
    put,
)
from unit.frontend.harness import PERSISTENT, Client
from unit.node.world import NodeWorld

from tidemark.sim.disk import SimDisk
from tidemark.wire.amqp091.methods import (
    BasicAck,
    BasicGet,
    BasicGetEmpty,
    BasicNack,
    BasicReject,
    ChannelClose,
    ChannelCloseOk,
    ConnectionClose,
    ConnectionCloseOk,
    Method,
    QueueDeclare,
    TxCommit,
    TxCommitOk,
    TxSelect,
)

# Locked queues ------------------------------------------------------------------------------------------------


def test_a_locked_queue_does_not_hold_up_the_other_queue_of_its_connection(world: NodeWorld) -> None:
    """A-27: a locked queue is skipped, not blocking, in output processing."""
    publisher, consumer = a_publisher(world, "locked", "free"), world.open()
    world.queue("locked").lock()
    for queue in ("locked", "free"):
        consume(consumer, queue, consumer_tag=queue)
    for number in numbered(200):
        publisher.publish(1, "locked", number, properties=PERSISTENT)
        publisher.publish(1, "free", number, properties=PERSISTENT)
        # At full rate: each is here before the next is sent.
        assert [each.body for each in consumer.read_all()] == [number]
    assert world.queue("locked").ready == 200

    world.queue("locked").unlock()
    world.turn()
    came = consumer.read_all()
    assert [each.body for each in came] == numbered(200)
    assert {each.method.consumer_tag for each in came} == {"locked"}


def test_a_locked_queue_accepts_publishes_and_gives_nothing_until_it_is_unlocked(world: NodeWorld) -> None:
    """A-40: adm lock q: consumers idle, publishes accepted; unlock: flow resumes."""
    publisher, consumer, getter = a_publisher(world, "q"), world.open(), world.open()
    consume(consumer, "q", prefetch=4)
    put(publisher, "q", *numbered(2))
    assert [each.body for each in consumer.read_all()] == numbered(2)

    world.queue("q").lock()
    put(publisher, "q", *numbered(8, first=2))
    consumer.send(1, BasicAck(delivery_tag=1))
    late = world.open()
    assert consume(late, "q") == []
    assert consumer.read_all() == []
    assert getter.ask(1, BasicGet(queue="q")) == BasicGetEmpty()
    assert world.queue("q").statistics().locked

    world.lose(late)
    world.queue("q").unlock()
    world.turn()
    # It holds one of the first two, and its credit is four.
    assert [each.body for each in consumer.read_all()] == numbered(3, first=2)
    assert fetch(getter, "q").body == b"00005"


def test_what_a_consumer_holds_of_a_locked_queue_can_be_settled(world: NodeWorld) -> None:
    """A-40: a lock stops acquisition, not accept: what is settled under it stays settled."""
    publisher, consumer = a_publisher(world, "q"), world.open()
    put(publisher, "q", *numbered(3))
    consume(consumer, "q", prefetch=2)
    world.queue("q").lock()
    consumer.send(1, BasicAck(delivery_tag=1), BasicNack(delivery_tag=2, requeue=True))
    assert consumer.read_all() == []
    assert bodies(world.crash().queue("q")) == numbered(2, first=1)


# Consumers that do not read -----------------------------------------------------------------------------------


def stop_reading(world: NodeWorld, client: Client) -> None:
    """The client takes nothing from its socket any more, and the system no more from us."""
    del world.clients[client.front_end]


def read_on(world: NodeWorld, client: Client) -> None:
    world.clients[client.front_end] = client
    world.node.touched(client.front_end)
    world.turn()


def test_a_consumer_that_stops_reading_holds_no_more_than_its_credit(world: NodeWorld) -> None:
    """A-32: client stops reading its socket: acquired count on that connection stays <= credit."""
    publisher, deaf = a_publisher(world, "q"), world.open()
    consume(deaf, "q", prefetch=10)
    stop_reading(world, deaf)
    put(publisher, "q", *numbered(500))
    assert world.queue("q").acquired == 10
    assert world.queue("q").ready == 490

    read_on(world, deaf)
    assert [each.body for each in deaf.read_all()] == numbered(10)


@pytest.mark.parametrize("told", [True, False], ids=["the system says so", "nothing is sent"])
def test_without_a_credit_it_holds_no_more_than_its_buffer(world: NodeWorld, told: bool) -> None:
    """A-32: no acquisition beyond what the consumer can take: without a prefetch the output buffer is the limit."""
    publisher, deaf, other = a_publisher(world, "q"), world.open(), world.open()
    consume(deaf, "q")
    stop_reading(world, deaf)
    if told:
        deaf.front_end.writable(False)
    size = 20_000
    for number in numbered(200):
        put(publisher, "q", number + bytes(size))
    one_gift = 256 * 1024
    limit = 0 if told else world.node.config.output_bytes_max + one_gift
    assert world.queue("q").acquired_bytes <= limit
    assert world.queue("q").ready > 100

    # What it has not been given is there for others.
    assert len(consume(other, "q", prefetch=1)) == 1
    if told:
        deaf.front_end.writable(True)
    other.send(1, BasicNack(delivery_tag=1, requeue=True))
    world.lose(other)
    read_on(world, deaf)
    assert sorted(each.body[:5] for each in deaf.read_all()) == numbered(200)


# Accepting ----------------------------------------------------------------------------------------------------


def accept_and_close(client: Client) -> None:
    client.send(1, BasicAck(delivery_tag=0, multiple=True), ChannelClose())


def accept_and_leave(client: Client) -> None:
    client.send(1, BasicAck(delivery_tag=0, multiple=True))
    client.send(0, ConnectionClose(reply_code=200))


def accept_in_a_transaction(client: Client) -> None:
    client.send(1, BasicAck(delivery_tag=0, multiple=True), TxCommit())


WAYS_TO_ACCEPT: dict[str, tuple[Callable[[Client], None], type[Method]]] = {
    "channel closed": (accept_and_close, ChannelCloseOk),
    "connection closed": (accept_and_leave, ConnectionCloseOk),
    "committed": (accept_in_a_transaction, TxCommitOk),
}


def a_holder(world: NodeWorld, way: str, count: int = 3) -> Client:
    """A consumer that holds all the messages of the queue q."""
    put(a_publisher(world, "q"), "q", *numbered(count))
    client = world.open()
    if way == "committed":
        client.ask(1, TxSelect())
    for _ in range(20):
        world.turn()
    assert len(consume(client, "q")) == count
    return client


@pytest.mark.parametrize("way", WAYS_TO_ACCEPT)
def test_an_accept_is_complete_when_the_store_has_it_and_not_before(world: NodeWorld, way: str) -> None:
    """A-34: the store too must complete accept asynchronously; HOLDSTORE on dequeue: aconf withheld."""
    accept, answer = WAYS_TO_ACCEPT[way]
    client = a_holder(world, way)
    with world.slow_disk():
        accept(client)
        for _ in range(5):
            world.turn()
        assert client.read_all() == []
        assert world.queue("q").acquired == 0  # here it is done; only the store has not said so
    world.turn()
    assert isinstance(client.read(), answer)


def test_an_early_accept_is_complete_before_the_store_has_it_and_may_come_back() -> None:
    """X-12: accepts complete when they are stored; the option accept=early tells the client at once (LM4)."""
    outcomes = set()
    for seed in range(20):
        world = NodeWorld(SimDisk(Random(seed)), flags={"amqp091.accept": "early"})
        client = a_holder(world, "channel closed")
        world.disk.lag = 4
        with world.slow_disk():
            accept_and_close(client)
            world.turn()
            assert any(isinstance(each, ChannelCloseOk) for each in client.read_all())
        world.disk.work(seed % 3)
        outcomes.add(len(browse(world.crash().queue("q"))))
    assert outcomes == {0, 3}


@pytest.mark.parametrize("way", WAYS_TO_ACCEPT)
def test_a_kill_before_the_completion_may_redeliver_and_after_it_never_does(way: str) -> None:
    """A-33: SLOW: aconf late; KILL before aconf may redeliver, after aconf never."""
    accept, answer = WAYS_TO_ACCEPT[way]
    redelivered = never = 0
    for seed in range(60):
        world = NodeWorld(SimDisk(Random(seed)))
        client = a_holder(world, way)
        world.disk.lag = 4
        with world.slow_disk():
            accept(client)
        for _ in range(seed % 3):
            if world.disk.dice.random() < 0.4:
                world.disk.work(1)  # the disk has it, and the node has not heard so
            else:
                world.node.completed(world.now_ms)
                world.carry()
        complete = any(isinstance(each, answer) for each in client.read_all())
        left = browse(world.crash(power=bool(seed % 3)).queue("q"))
        if complete:
            assert left == []
            never += 1
        elif left:
            # An accept of many is one record: all of them come again, and say so.
            assert [held.body for held in left] == numbered(3)
            assert all(held.redelivered for held in left)
            redelivered += 1
    assert redelivered > 5
    assert never > 5


@pytest.mark.parametrize("way", WAYS_TO_ACCEPT)
def test_no_accept_is_complete_early(world: NodeWorld, way: str) -> None:
    """X-12: accept completes asynchronously everywhere: what was told to be accepted is gone after any crash."""
    accept, answer = WAYS_TO_ACCEPT[way]
    client = a_holder(world, way)
    with world.slow_disk():
        accept(client)
        assert bodies(world.crash().queue("q")) in ([], numbered(3))  # not told yet: either may be
        # Another client's work does not complete it either.
        world.open().send(1, QueueDeclare(queue="other"))
        assert client.read_all() == []
    world.turn()
    assert isinstance(client.read(), answer)
    for _ in range(5):
        world = world.crash()
        assert bodies(world.queue("q")) == []


# What becomes of a message ------------------------------------------------------------------------------------


def with_an_alternate(client: Client, **arguments: Any) -> None:
    """A queue q whose dead letters go to the queue dead."""
    client.declare("dead", durable=True)
    alternate = {"x-dead-letter-exchange": "", "x-dead-letter-routing-key": "dead"}
    client.declare("q", durable=True, arguments=alternate | arguments)


@pytest.mark.parametrize(
    ("outcome", "ready", "dead"),
    [
        pytest.param(BasicAck(delivery_tag=1), [b"2"], [], id="accept"),
        pytest.param(BasicNack(delivery_tag=1, requeue=True), [b"1", b"2"], [], id="release"),
        pytest.param(BasicReject(delivery_tag=1, requeue=False), [b"2"], [b"1"], id="reject"),
    ],
)
def test_a_message_is_accepted_released_or_goes_to_the_alternate_once(
    world: NodeWorld, outcome: Method, ready: list[bytes], dead: list[bytes]
) -> None:
    """X-1: accept, release, reject (alternate exchange); not lost by release nor by reject with an alternate."""
    client = world.open()
    with_an_alternate(client)
    client.publish(1, "q", b"1", b"2", properties=PERSISTENT)
    fetch(client, "q")
    client.send(1, outcome, ChannelClose())
    assert isinstance(client.read(), ChannelCloseOk)
    for _ in range(3):
        assert (bodies(world.queue("q")), bodies(world.queue("dead"))) == (ready, dead)
        world = world.crash()


def test_a_rejected_message_without_an_alternate_is_discarded(world: NodeWorld) -> None:
    """X-1: reject: alternate exchange, else discard."""
    client = a_publisher(world, "q")
    put(client, "q", b"1", b"2")
    fetch(client, "q")
    client.send(1, BasicReject(delivery_tag=1, requeue=False), ChannelClose())
    assert bodies(world.crash().queue("q")) == [b"2"]


def test_a_modified_message_is_released_and_counted_even_over_restarts(world: NodeWorld) -> None:
    """X-1: modify: release and delivery count."""
    client = world.open()
    with_an_alternate(client, **{"x-delivery-limit": 3})
    client.publish(1, "q", b"poison", properties=PERSISTENT)
    counts = []
    for _ in range(4):
        client = world.open()
        counts.append((fetch(client, "q").properties.headers or {}).get("x-delivery-count"))
        client.send(1, BasicNack(delivery_tag=1, requeue=True), ChannelClose())
        world = world.crash()
    assert counts == [None, 1, 2, 3]
    assert (bodies(world.queue("q")), bodies(world.queue("dead"))) == ([], [b"poison"])


def test_evictions_and_expiries_are_dequeues_with_a_reason() -> None:
    """X-26: evictions and expiries are dequeue events with a reason, issued only by the owner."""
    world = PluggedWorld(RecordingJournal)
    client = world.open()
    client.declare("ring", durable=True, arguments={"x-max-length": 2})
    client.declare("brief", durable=True, arguments={"x-message-ttl": 1000})
    client.publish(1, "ring", *numbered(4), properties=PERSISTENT)
    client.publish(1, "brief", b"old", properties=PERSISTENT)
    world.pass_ms(1001)
    assert world.journal.events()[4:] == [
        ("dequeue", 1, "EVICTED", [1, 2]),
        ("enqueue", 6, (2,), b"old"),
        ("dequeue", 2, "EXPIRED", [6]),
    ]


def test_a_restart_decides_no_eviction_or_expiry_anew(world: NodeWorld) -> None:
    """X-26: a replica or a restart follows the dequeue events and does not evict or expire by itself."""
    client = a_publisher(world)
    client.declare("ring", durable=True, arguments={"x-max-length": 3})
    client.declare("brief", durable=True, arguments={"x-message-ttl": 1000})
    # The ring drops 0 and 1; then 2 is taken and accepted, so that one more fits.
    put(client, "ring", *numbered(5))
    fetch(client, "ring")
    client.send(1, BasicAck(delivery_tag=1))
    put(client, "ring", b"last")
    put(client, "brief", b"old")
    world.now_ms += 1001
    world.turn()
    world.turn()
    assert bodies(world.queue("brief")) == []

    after = NodeWorld(world.disk.crash(), world.now_ms - 5000)  # the clock went back
    assert bodies(after.queue("ring")) == [b"00003", b"00004", b"last"]
    assert bodies(after.queue("brief")) == []
