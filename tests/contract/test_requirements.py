"""Requirements of the study that one node can fulfil, each proved on the real machines.

Every test begins with the id of its requirement and what it asks for. The worlds are whole nodes over a
simulated disk, driven by bytes: holding the disk back (`slow_disk`) is HOLDSTORE, a `lag` is SLOW, `fail_next`
is FAILSTORE, `crash` is KILL and RESTART. What AMQP 0-9-1 has no word for is read as follows: the completion
of a transfer is its confirm, the completion of an accept is Tx.Commit-Ok or a Close-Ok.
"""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from random import Random
from typing import Any

import pytest
from builders import a_broker
from contract.requirements_world import (
    FileWorld,
    NullJournal,
    PluggedWorld,
    RecordingJournal,
    answers,
    bodies,
    browse,
    ids,
    replayed,
)
from unit.frontend.harness import PERSISTENT, Client, Content, publish_frames
from unit.node.world import NodeWorld

from tidemark.broker.broker import Broker
from tidemark.errors import DiskFull
from tidemark.ports import Journal
from tidemark.runtime.disk import FileDisk
from tidemark.sim.disk import SimDisk
from tidemark.wire.amqp091.methods import (
    BasicAck,
    BasicConsume,
    BasicGet,
    BasicGetEmpty,
    BasicNack,
    BasicQos,
    BasicReject,
    ChannelClose,
    ChannelCloseOk,
    ConfirmSelect,
    ConnectionBlocked,
    ConnectionClose,
    ConnectionCloseOk,
    ConnectionUnblocked,
    ExchangeDeclare,
    ExchangeDeclareOk,
    Method,
    QueueBind,
    QueueBindOk,
    QueueDeclare,
    QueueDeclareOk,
    QueueDelete,
    QueuePurge,
    TxCommit,
    TxCommitOk,
    TxSelect,
)
from tidemark.wire.amqp091.properties import Properties, encode_properties

MEMORY_HIGH = 1000
"""The mark that tests of alarms give to `watch`, in bytes."""


@pytest.fixture
def world() -> NodeWorld:
    return NodeWorld()


def a_publisher(world: NodeWorld | PluggedWorld, *queues: str, **options: Any) -> Client:
    """A client with confirms, and these queues, durable."""
    client = world.open()
    client.ask(1, ConfirmSelect())
    for queue in queues:
        client.declare(queue, durable=True, **options)
    return client


def numbered(count: int, first: int = 0) -> list[bytes]:
    return [b"%05d" % number for number in range(first, first + count)]


def put(client: Client, key: str, *contents: bytes, **options: Any) -> None:
    """Publish persistent messages, and read that they are safe."""
    client.publish(1, key, *contents, properties=PERSISTENT, **options)
    assert {type(answer) for answer in client.read_all()} == {BasicAck}
    assert client.front_end.statistics().channels[0].unconfirmed == 0


def consume(
    client: Client, queue: str, *, prefetch: int = 0, channel: int = 1, **options: Any
) -> list[Content]:
    """Subscribe; what was delivered at once."""
    if prefetch:
        client.ask(channel, BasicQos(prefetch_count=prefetch))
    client.send(channel, BasicConsume(queue=queue, **options))
    client.read()
    return client.read_all()


def fetch(client: Client, queue: str) -> Content:
    found = client.ask(1, BasicGet(queue=queue))
    assert isinstance(found, Content), found
    return found


def priority(number: int) -> bytes:
    return encode_properties(Properties(delivery_mode=2, priority=number))


# The interface between broker and store -----------------------------------------------------------------------


def play(client: Client) -> list[Any]:
    """The scripted session: every kind of event that the broker tells its store. What the client was told."""
    told: list[Any] = []

    def send(*sent: Method) -> None:
        client.send(1, *sent)
        told.extend(answers(client))

    def publish(key: str, *contents: bytes, exchange: str = "") -> None:
        client.publish(1, key, *contents, exchange=exchange, properties=PERSISTENT)
        told.extend(answers(client))

    send(ExchangeDeclare(exchange="x", type="fanout", durable=True))
    send(QueueDeclare(queue="a", durable=True))
    send(QueueDeclare(queue="b", durable=True, arguments={"x-delivery-limit": 1}))
    send(QueueDeclare(queue="fleeting"))
    send(QueueBind(queue="a", exchange="x"), QueueBind(queue="b", exchange="x"))
    publish("", b"both", exchange="x")
    publish("a", b"one", b"two")
    publish("fleeting", b"not worth a record")
    send(BasicGet(queue="a"))
    send(BasicAck(delivery_tag=1))
    send(BasicGet(queue="b"))
    send(BasicNack(delivery_tag=2, requeue=True))
    send(BasicGet(queue="a"))
    send(BasicReject(delivery_tag=3, requeue=False))
    send(BasicGet(queue="b"))
    send(TxSelect())
    publish("b", b"three")
    send(BasicAck(delivery_tag=4))
    send(TxCommit())
    send(QueuePurge(queue="a"))
    send(QueueDelete(queue="a"))
    return told


def test_the_event_log_of_a_scripted_session_is_exactly_this() -> None:
    """A-9: one explicit, small interface; the log of a recording fake for a scripted session is asserted."""
    world = PluggedWorld(RecordingJournal)
    play(world.open())

    a, b = 1, 2
    assert world.journal.events() == [
        ("enqueue", 1, (a, b), b"both"),
        ("enqueue", 3, (a,), b"one"),
        ("enqueue", 4, (a,), b"two"),
        ("dequeue", a, "ACCEPTED", [1]),
        ("count", b, [(2, 1)]),
        ("dequeue", a, "REJECTED", [3]),
        ("enqueue", 9, (b,), b"three"),
        ("dequeue", b, "ACCEPTED", [2]),
        ("dequeue", a, "PURGED", [4]),
    ]
    assert world.wiring() == [
        "exchange.put x",
        "queue.put a",
        "queue.put b",
        "binding.put a",
        "binding.put b",
        "queue.delete a",
    ]


def test_the_interface_is_as_small_as_this() -> None:
    """A-9: one explicit, small interface: four calls, and the two numbers that say what is safe."""
    calls = {name for name, value in vars(Journal).items() if callable(value) and not name.startswith("_")}
    assert calls == {"settled", "counted", "ensure", "flush"}
    assert set(Journal.__annotations__) == {"durable_seq", "last_seq"}


def over_files(path: Path) -> FileWorld:
    return FileWorld(FileDisk(path / "data"))


STORES: dict[str, Callable[[Path], Any]] = {
    "null": lambda _: PluggedWorld(NullJournal),
    "recording": lambda _: PluggedWorld(RecordingJournal),
    "simulated disk": lambda _: NodeWorld(),
    "slow simulated disk": lambda _: NodeWorld(SimDisk(Random(1), lag=3)),
    "files": over_files,
}


@pytest.mark.parametrize("store", STORES)
def test_clients_cannot_tell_one_store_from_another(store: str, tmp_path: Path) -> None:
    """A-38: the store's interface: its conformance suite passes for null, file and other implementations."""
    expected = play(PluggedWorld(RecordingJournal).open())
    world = STORES[store](tmp_path)
    client = world.open()
    told = play(client)
    for _ in range(100):  # a slow disk: what is not answered yet comes
        world.turn()
    told += answers(client)

    assert told == expected
    assert isinstance(told[-3], TxCommitOk)
    assert bodies(world.broker.vhosts["/"].queues["b"]) == [b"three"]


def test_replaying_the_event_log_gives_what_a_restart_of_the_store_gives() -> None:
    """A-38: enqueue, dequeue and wiring are all there is to the interface: they rebuild the broker."""
    fake, real = PluggedWorld(RecordingJournal), NodeWorld()
    for world in (fake, real):
        play(world.open())
    rebuilt = replayed(fake, a_broker(vhosts=(), users=()))
    recovered = real.crash().broker

    def picture(broker: Broker) -> Any:
        queues = {q.name: (q.spec, bodies(q), q.delivered) for q in broker.queues.values() if q.durable}
        return queues, sorted(broker.vhosts["/"].exchanges)

    assert picture(rebuilt) == picture(recovered)
    assert list(picture(rebuilt)[0]) == ["b"]


@pytest.mark.parametrize("store", STORES)
def test_what_is_acquired_is_nobody_elses_in_any_store(store: str, tmp_path: Path) -> None:
    """A-39: stores may ignore "acquired"; all guarantees but the crash ones stay."""
    world = STORES[store](tmp_path)
    first, second = world.open(), world.open()
    first.declare("q", durable=True)
    first.publish(1, "q", *numbered(3), properties=PERSISTENT)
    for _ in range(20):
        world.turn()
    assert [each.body for each in consume(first, "q", prefetch=2)] == numbered(2)
    assert [each.body for each in consume(second, "q")] == numbered(1, first=2)

    first.send(1, ChannelClose())
    world.turn()
    again = second.read_all()
    assert [each.body for each in again] == numbered(2)
    assert all(each.method.redelivered for each in again)


def test_taking_and_giving_back_writes_nothing_and_a_crash_gives_back_all_that_was_held(
    world: NodeWorld,
) -> None:
    """A-39: a store without "acquired": the journal is not told who holds what, and need not be."""
    recorded = PluggedWorld(RecordingJournal)
    for each in (recorded, world):
        client = each.open()
        client.declare("q", durable=True)
        client.publish(1, "q", *numbered(5), properties=PERSISTENT)
        consume(client, "q", prefetch=3)
        client.send(1, BasicNack(delivery_tag=1, requeue=True))
        client.read_all()
    assert [event[0] for event in recorded.journal.events()] == ["enqueue"] * 5
    assert recorded.queue("q").acquired == 3

    assert bodies(world.crash().queue("q")) == numbered(5)


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


# Errors -------------------------------------------------------------------------------------------------------


def test_a_command_that_cannot_be_done_fails_to_its_client_only(world: NodeWorld) -> None:
    """A-35: everything but enqueue and dequeue fails the same everywhere: to its client only, EQ kept."""
    publisher, other = a_publisher(world, "q"), world.open()
    put(publisher, "q", b"kept")
    before = world.broker.image()
    for bad in (
        QueueDeclare(queue="q", durable=False),
        QueueDeclare(queue="nowhere", passive=True),
        QueueDeclare(queue="r", durable=True, arguments={"x-max-length": -1}),
        QueueBind(queue="q", exchange="nowhere"),
        QueueDelete(queue="q", if_empty=True),
        ExchangeDeclare(exchange="x", type="nonsense", durable=True),
        BasicConsume(queue="nowhere"),
        QueuePurge(queue="nowhere"),
    ):
        client = world.open()
        client.send(1, bad)
        assert isinstance(client.read(), ChannelClose | ConnectionClose), bad
        world.lose(client)
    assert world.broker.image() == before
    assert world.crash().broker.image() == before
    put(publisher, "q", b"more")
    assert other.declare("q", durable=True).message_count == 2


@pytest.mark.parametrize("command", ["declare", "bind", "publish"])
def test_a_store_without_room_fails_the_command_to_its_client_only(
    world: NodeWorld, command: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A-35: FAILSTORE: the command fails to its client only, EQ kept."""
    publisher, unlucky = a_publisher(world, "q"), world.open()
    put(publisher, "q", b"kept")
    before = world.broker.image()

    def no_room(*_: object) -> int:
        raise DiskFull(path="catalog")

    with monkeypatch.context() as patch:
        target = world.node.journal if command == "publish" else world.node.catalog
        patch.setattr(type(target), "grow" if command == "publish" else "append", no_room)
        if command == "declare":
            answer = unlucky.ask_connection(1, QueueDeclare(queue="r", durable=True))
        elif command == "bind":
            answer = unlucky.ask_connection(1, QueueBind(queue="q", exchange="amq.fanout"))
        else:
            unlucky.publish(1, "q", bytes(5000), properties=PERSISTENT)
            [answer] = unlucky.read_all()
    assert isinstance(answer, ChannelClose | ConnectionClose)
    assert answer.reply_code == DiskFull.amqp091
    assert world.node.failed is None
    assert world.broker.image() == before
    put(publisher, "q", b"more")
    restarted = world.crash()
    assert restarted.broker.image() == before
    assert bodies(restarted.queue("q")) == [b"kept", b"more"]


def test_whichever_operation_of_the_store_fails_what_was_answered_is_true_afterwards() -> None:
    """A-35: FAILSTORE on every operation: nobody is told what is not so, and nothing is half done."""
    failures = 0
    for after in range(60):
        world = NodeWorld(SimDisk(Random(after)))
        client, bystander = a_publisher(world, "q"), world.open()
        put(client, "q", b"old")
        told: list[Any] = []
        world.disk.fail_next(after)
        for step in (
            QueueDeclare(queue="r", durable=True),
            ExchangeDeclare(exchange="x", type="fanout", durable=True),
            QueueBind(queue="r", exchange="x"),
            BasicGet(queue="q"),
            BasicAck(delivery_tag=1),
            ChannelClose(),
        ):
            client.send(1, step)
            told += client.read_all()
            if isinstance(step, QueueBind):
                client.publish(1, "", b"1", b"2", exchange="x", properties=PERSISTENT)
                client.publish(1, "q", b"3", properties=PERSISTENT)
                told += client.read_all()
        if world.node.failed is None:
            assert isinstance(told[-1], ChannelCloseOk)
            break
        failures += 1
        # The disk cannot be trusted any more, so everybody is told, and nothing is promised from here on.
        assert isinstance(bystander.read(), ConnectionClose)
        assert isinstance(told[-1], ConnectionClose)
        check_promises(told, world.crash())
    else:
        raise AssertionError("the script does not end")
    assert failures > 8


def check_promises(told: list[Any], restarted: NodeWorld) -> None:
    """What the client of the script was told is so."""
    kinds = {type(each) for each in told}
    vhost = restarted.broker.vhosts["/"]
    assert "r" in vhost.queues or QueueDeclareOk not in kinds
    assert "x" in vhost.exchanges or ExchangeDeclareOk not in kinds
    assert QueueBindOk not in kinds or vhost.bindings_to_queue("r")
    assert not vhost.bindings_to_queue("r") or "x" in vhost.exchanges
    # Tag 1 was the old message's.
    safe = max((each.delivery_tag - 1 for each in told if isinstance(each, BasicAck)), default=0)
    in_r = bodies(vhost.queues["r"]) if "r" in vhost.queues else []
    assert in_r == [b"1", b"2"][: len(in_r)]
    assert len(in_r) >= min(safe, 2)
    in_q = bodies(vhost.queues["q"])
    assert in_q in ([], [b"old"], [b"3"], [b"old", b"3"])
    assert b"3" in in_q or safe < 3
    assert b"old" in in_q or Content in kinds


# Ids ----------------------------------------------------------------------------------------------------------


def test_a_message_has_one_id_that_no_other_ever_gets(world: NodeWorld) -> None:
    """A-41: messages carry an id; the same for the same body everywhere, unique."""
    seen: dict[int, bytes] = {}
    for start in range(4):
        client = a_publisher(world, "q", "r")
        for name in ("q", "r"):
            client.ask(1, QueueBind(queue=name, exchange="amq.fanout"))
        for at in range(0, 1000, 250):
            fresh = [b"%d/%d" % (start, number) for number in range(at, at + 250)]
            client.publish(1, "", *fresh, exchange="amq.fanout", properties=PERSISTENT)
            client.read_all()
        for name in ("q", "r"):
            for held in browse(world.queue(name)):
                mine = held.body + name.encode()
                assert seen.setdefault(held.seq, mine) == mine
        # Some go, and their ids are not given again.
        consume(client, "q", prefetch=100)
        client.send(1, BasicAck(delivery_tag=0, multiple=True))
        client.read_all()
        world.turn()
        before = ids(world.queue("r"))
        world = world.crash()
        assert ids(world.queue("r")) == before
    assert len(seen) == 4 * 2 * 1000
    assert len(set(seen.values())) == len(seen)


def test_ten_million_messages_have_ten_million_ids(world: NodeWorld) -> None:
    """A-41: ids are unique over 10 M messages: each thousand gets a range of its own, above all before it."""
    client = world.open()
    client.ask(1, QueueDeclare(queue="q", arguments={"x-max-length": 10}))
    thousand = b"".join(publish_frames(1, "q", b"%d" % number) for number in range(1000))
    world.turn()
    for _ in range(10_000):
        before = world.node.arena.next_seq
        client.front_end.receive(thousand)
        world.node.turn(world.now_ms)
        assert world.node.arena.next_seq == before + 1000
        assert list(ids(world.queue("q")).values()) == list(range(before + 990, before + 1000))


def test_every_start_opens_a_history_so_that_ids_of_two_lives_differ(world: NodeWorld) -> None:
    """A-41: a cluster-wide id: the sequence belongs to a history, which every start opens above all ids before."""
    histories = []
    for life in range(3):
        put(a_publisher(world, "q"), "q", b"%d" % life)
        histories.append(world.node.journal.histories[0])
        world = world.crash()
    names, firsts = zip(*histories, strict=True)
    assert sorted(firsts) == list(firsts)
    assert len(set(firsts)) == 3
    assert all(len(name) == 16 for name in names)


def test_an_accept_ends_the_message_with_its_id_wherever_it_stands(world: NodeWorld) -> None:
    """A-42: dequeue by id, positions may differ: the same id vanishes, nothing else."""
    client = a_publisher(world, "q")
    for at in range(0, 200, 20):
        put(client, "q", *[body + bytes(1000) for body in numbered(20, first=at)])
    consume(client, "q")
    client.send(1, BasicAck(delivery_tag=190, multiple=True), ChannelClose())
    world.rest(slices=60)
    before = {held.body[:5]: held for held in browse(world.queue("q"))}
    # What was before them is not even in the journal any more, so that they stand elsewhere after the restart.
    world = world.crash()
    after = {held.body[:5]: held for held in browse(world.queue("q"))}
    assert list(after) == list(before) == numbered(10, first=190)
    assert all(after[body].seq == before[body].seq for body in after)
    assert all(after[body].index != before[body].index for body in after)

    client = world.open()
    [tag] = [each.method.delivery_tag for each in consume(client, "q") if each.body.startswith(b"00197")]
    client.send(1, BasicAck(delivery_tag=tag), ChannelClose())
    del after[b"00197"]
    left = browse(world.crash().queue("q"))
    assert {held.body[:5]: held.seq for held in left} == {body: held.seq for body, held in after.items()}


def test_the_id_travels_with_the_message_through_requeues_compaction_and_restarts(world: NodeWorld) -> None:
    """X-3: an immutable id travels with the message; a place or position is only where it is now."""
    client = a_publisher(world, "q")
    for at in range(0, 600, 50):
        put(client, "q", *[body + bytes(400) for body in numbered(50, first=at)])
    kept = {body: seq for body, seq in ids(world.queue("q")).items() if int(body[:5]) % 10 == 0}
    places = {held.seq: held.loc for held in browse(world.queue("q"))}

    consumer = world.open()
    for each in consume(consumer, "q"):
        if each.body not in kept:
            consumer.send(1, BasicAck(delivery_tag=each.method.delivery_tag))
    consumer.send(1, BasicNack(delivery_tag=0, multiple=True, requeue=True))
    world.lose(consumer)
    assert ids(world.queue("q")) == kept

    world.rest(slices=60)
    assert world.node.journal.statistics().compactions > 0
    moved = [held for held in browse(world.queue("q")) if held.loc != places[held.seq]]
    assert moved
    assert ids(world.queue("q")) == kept
    for _ in range(3):
        world = world.crash()
        assert ids(world.queue("q")) == kept


# Crashes ------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("seed", range(30))
def test_after_a_kill_every_confirmed_message_is_there_in_order(seed: int) -> None:
    """A-43: durable queue, KILL, RESTART: every conf(m) recovered."""
    dice = Random(seed)
    world = NodeWorld(SimDisk(dice, lag=3))
    expected: list[bytes] = []
    for life in range(3):
        client = world.open()
        client.send(1, ConfirmSelect(), QueueDeclare(queue="q", durable=True))
        for _ in range(50):
            world.turn()
        client.read_all()
        sent: list[bytes] = []
        safe = 0
        for burst in range(dice.randint(1, 12)):
            fresh = [b"%d/%d/%d" % (life, burst, number) for number in range(dice.randint(1, 30))]
            sent += fresh
            client.publish(1, "q", *fresh, properties=PERSISTENT)
            acks = [each for each in client.read_all() if isinstance(each, BasicAck)]
            safe = max([safe, *(each.delivery_tag for each in acks)])
        world = world.crash(power=dice.random() < 0.7)
        found = bodies(world.queue("q"))
        # All that was confirmed, and of the rest an unbroken beginning.
        assert found[: len(expected) + safe] == expected + sent[:safe]
        assert found == (expected + sent)[: len(found)]
        expected = found


@pytest.mark.parametrize("seed", range(40))
def test_a_transaction_is_one_record_of_the_log_and_never_cut(seed: int) -> None:
    """X-28: a transaction is one ordered commit record; applied atomically, never cut in two."""
    dice = Random(seed)
    world = NodeWorld(SimDisk(dice))
    publisher = a_publisher(world, "in", "out", "copy")
    put(publisher, "in", *numbered(6))
    client = world.open()
    client.ask(1, TxSelect())
    consume(client, "in", prefetch=6)
    with world.slow_disk():
        client.publish(1, "out", *[bytes(dice.randint(1, 1500)) for _ in range(4)], properties=PERSISTENT)
        client.publish(1, "copy", b"copied", properties=PERSISTENT)
        client.send(1, BasicAck(delivery_tag=3, multiple=True), BasicReject(delivery_tag=4, requeue=False))
        publisher.publish(1, "copy", b"from another", properties=PERSISTENT)
        client.send(1, TxCommit())
        assert client.read_all() == []
    if seed % 4 == 0:
        world.turn()
        assert isinstance(client.read(), TxCommitOk)
    restarted = world.crash(power=bool(seed % 3))
    left, made = len(bodies(restarted.queue("in"))), len(bodies(restarted.queue("out")))
    copied = b"copied" in bodies(restarted.queue("copy"))
    assert (left, made, copied) in ((6, 0, False), (2, 4, True))
    if seed % 4 == 0:
        assert copied


def test_both_fates_of_a_transaction_happen() -> None:
    """X-28: a crash may come before and after the commit record: the test above sees both."""
    fates = set()
    for seed in range(40):
        world = NodeWorld(SimDisk(Random(seed)))
        publisher = a_publisher(world, "q")
        publisher.ask(1, ChannelClose())
        client = world.open()
        client.ask(1, TxSelect())
        with world.slow_disk():
            client.publish(1, "q", b"1", b"2", properties=PERSISTENT)
            client.send(1, TxCommit())
        fates.add(len(bodies(world.crash(power=False).queue("q"))))
    assert fates == {0, 2}


@pytest.mark.parametrize("power", [True, False])
def test_after_a_restart_what_was_in_hands_is_marked_redelivered(world: NodeWorld, power: bool) -> None:
    """Q-87: redelivered flag right after failover."""
    put(a_publisher(world, "q"), "q", *numbered(5))
    first = consume(world.open(), "q", prefetch=3)
    assert [each.method.redelivered for each in first] == [False] * 3

    world = world.crash(power)
    again = consume(world.open(), "q", prefetch=3)
    assert [each.body for each in again] == numbered(3)
    assert [each.method.redelivered for each in again] == [True] * 3


def test_what_was_published_after_the_restart_is_not_marked(world: NodeWorld) -> None:
    """Q-87: redelivered flag right after failover: not on what comes for the first time."""
    put(a_publisher(world, "q"), "q", b"old")
    world = world.crash()
    put(a_publisher(world, "q"), "q", b"new")
    assert [(each.body, each.method.redelivered) for each in consume(world.open(), "q")] == [
        (b"old", True),
        (b"new", False),
    ]


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
