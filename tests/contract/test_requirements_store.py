"""Requirements of the study that one node can fulfil, on the store: each is proved on the real machines.

Every test begins with the id of its requirement and what it asks for; `requirements_world` says how its words are read.
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
    a_publisher,
    answers,
    bodies,
    browse,
    consume,
    ids,
    numbered,
    put,
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
    BasicNack,
    BasicReject,
    ChannelClose,
    ChannelCloseOk,
    ConfirmSelect,
    ConnectionClose,
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
