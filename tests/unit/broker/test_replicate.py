"""How much of a queue a cluster keeps: what is asked for, who decides, and what then is in the two logs."""

from __future__ import annotations

import json
from typing import Any

import pytest
from builders import RecordingSink, a_broker, a_queue, a_session
from unit.broker.channel import a_channel

from tidemark.broker import catalog
from tidemark.broker.broker import Broker
from tidemark.broker.definitions import export, import_definitions
from tidemark.broker.queue import Queue
from tidemark.broker.transaction import Transaction
from tidemark.errors import PreconditionFailed
from tidemark.model.records import Reason, RecordType
from tidemark.model.wiring import FIRST_TRANSIENT_NUMBER, PolicySpec, QueueSpec, Replicate

DEFAULTS: tuple[Replicate, ...] = ("none", "configuration", "messages")
ARGUMENTS: tuple[str | None, ...] = (None, "none", "configuration", "messages")


def a_member(default: Replicate = "messages") -> Broker:
    """A broker that leads a cluster with this setting."""
    broker = a_broker()
    broker.mode, broker.replicate = "standby", default
    return broker


def declared(broker: Broker, replicate: str | None, name: str = "q", **arguments: Any) -> Queue:
    if replicate is not None:
        arguments["x-replicate"] = replicate
    return a_queue(broker, name, durable=True, arguments=arguments)


def governed(broker: Broker, replicate: str, pattern: str = ".*") -> None:
    broker.put_policy(PolicySpec("/", "p", pattern, "all", 0, {"replicate": replicate}))


def written(broker: Broker) -> list[Any]:
    """What the journal was told, and the sequences that records in it have."""
    return [each for each in broker.journal.told if each[0] in (RecordType.SETTLED, RecordType.COUNTED)]


# Who decides ------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("argument", ARGUMENTS)
@pytest.mark.parametrize("default", DEFAULTS)
def test_the_argument_is_stronger_than_the_setting(default: Replicate, argument: str | None) -> None:
    """H-24, Q-34: configurable default for the replicate argument, which overrides it; 3 × 4."""
    broker = a_member(default)
    queue = declared(broker, argument)
    expected = argument or default
    assert queue.spec.replicate == expected
    assert ("queue.put" in broker.catalog.ops()) == (expected != "none")
    assert queue.durable == (expected == "messages") == (queue.number in broker.journaled)
    assert (queue.number >= FIRST_TRANSIENT_NUMBER) == (expected == "none")
    assert queue.spec.durable, "to clients it is what they declared"


@pytest.mark.parametrize("argument", ARGUMENTS)
@pytest.mark.parametrize("default", DEFAULTS)
def test_a_broker_that_stands_alone_keeps_every_durable_queue(
    default: Replicate, argument: str | None
) -> None:
    broker = a_broker()
    broker.replicate = default
    queue = declared(broker, argument)
    assert queue.spec.replicate == "messages"
    assert queue.durable
    assert queue.spec.arguments == ({} if argument is None else {"x-replicate": argument})


def test_a_policy_stands_between_the_two() -> None:
    broker = a_member("none")
    governed(broker, "configuration", "^some")
    assert declared(broker, None, "some").spec.replicate == "configuration"
    assert declared(broker, "messages", "some more").spec.replicate == "messages"
    assert declared(broker, None, "other").spec.replicate == "none"


def test_all_is_another_word_for_messages() -> None:
    """X-14"""
    broker = a_member("none")
    governed(broker, "all", "^p")
    assert declared(broker, "all").spec.replicate == declared(broker, None, "p").spec.replicate == "messages"


def test_a_policy_changes_nothing_about_a_queue_that_is_there() -> None:
    """Its messages cannot be moved from one place to the other while they are in use."""
    broker = a_member()
    queue = declared(broker, None)
    governed(broker, "none")
    assert queue.spec.replicate == "messages"
    assert queue.durable
    broker.delete_queue(queue)
    assert declared(broker, None).spec.replicate == "none"


def test_the_setting_of_who_reads_the_catalog_changes_nothing() -> None:
    broker = a_member()
    declared(broker, "configuration")
    follower = a_broker(replaying=broker.image())
    follower.mode, follower.replicate = "standby", "messages"
    assert follower.vhosts["/"].queues["q"].spec.replicate == "configuration"
    assert not follower.vhosts["/"].queues["q"].durable
    assert follower.image() == broker.image()


# What cannot be ---------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("options", "words"),
    [
        (
            {"arguments": {"x-replicate": "some"}},
            "'some' is none of 'none', 'configuration', 'messages', 'all'",
        ),
        ({"arguments": {"x-replicate": 3}}, "{unacceptable_type,signedint}"),
        (
            {"arguments": {"x-replicate": "configuration", "x-queue-type": "stream"}},
            "a queue of type 'stream' is on all members with its messages; only a classic one can be 'configuration'",
        ),
        (
            {"arguments": {"x-replicate": "none", "x-queue-type": "quorum"}},
            "a queue of type 'quorum' is on all members with its messages; only a classic one can be 'none'",
        ),
        (
            {"durable": False, "arguments": {"x-replicate": "messages"}},
            "only a durable one can be 'messages'",
        ),
        ({"exclusive": True, "arguments": {"x-replicate": "configuration"}}, "only a durable one can be"),
    ],
)
@pytest.mark.parametrize("mode", ["alone", "chain"])
def test_what_does_not_fit_is_refused(mode: str, options: dict[str, Any], words: str) -> None:
    """Q-34: an invalid value is refused, and nothing is declared."""
    broker = a_broker()
    broker.mode = mode
    before = list(broker.catalog.changes)
    with pytest.raises(PreconditionFailed) as refused:
        a_session(broker).declare_queue("q", **{"durable": True, **options})
    assert str(refused.value).startswith("invalid arg 'x-replicate' for queue 'q' in vhost '/': ")
    assert words in str(refused.value)
    assert broker.catalog.changes == before
    assert not broker.queues


@pytest.mark.parametrize("kind", ["stream", "quorum"])
@pytest.mark.parametrize("default", DEFAULTS)
def test_streams_and_quorum_queues_are_on_all_members_whatever_the_setting_and_policies_say(
    kind: str, default: Replicate
) -> None:
    broker = a_member(default)
    governed(broker, "none")
    queue = a_queue(broker, durable=True, arguments={"x-queue-type": kind})
    asked = a_queue(
        broker, "asked", durable=True, arguments={"x-queue-type": kind, "x-replicate": "messages"}
    )
    assert queue.spec.replicate == asked.spec.replicate == "messages"
    assert queue.durable
    assert asked.durable


def test_queues_that_are_not_durable_stay_as_they_are() -> None:
    broker = a_member("none")
    assert not a_queue(broker, "transient", arguments={"x-replicate": "none"}).spec.in_catalog
    assert not a_queue(broker, "mine", exclusive=True, durable=True).spec.in_catalog
    assert "queue.put" not in broker.catalog.ops()


def test_declaring_again_must_ask_for_the_same() -> None:
    broker = a_member()
    session = a_session(broker)
    session.declare_queue("q", durable=True, arguments={"x-replicate": "configuration"})
    session.declare_queue("q", durable=True, arguments={"x-replicate": "configuration"})
    for other in ({}, {"x-replicate": "messages"}, {"x-replicate": ["configuration"]}):
        with pytest.raises(
            PreconditionFailed, match="inequivalent arg 'x-replicate' for queue 'q' in vhost '/'"
        ):
            session.declare_queue("q", durable=True, arguments=other)
    session.declare_queue("all", durable=True, arguments={"x-replicate": "all"})
    session.declare_queue("all", durable=True, arguments={"x-replicate": "messages"})


def test_a_stream_that_is_there_cannot_be_asked_for_less_either() -> None:
    session = a_session(a_member())
    stream = {"x-queue-type": "stream"}
    session.declare_queue("s", durable=True, arguments=stream)
    session.declare_queue("s", durable=True, arguments=stream | {"x-replicate": "all"})
    with pytest.raises(PreconditionFailed, match="a queue of type 'stream' is on all members"):
        session.declare_queue("s", durable=True, arguments=stream | {"x-replicate": "none"})


def test_a_catalog_of_before_is_read_as_it_was_meant() -> None:
    """The argument meant nothing then: whatever it said, the queue kept its messages."""
    change = catalog.put(QueueSpec("/", "old", True, arguments={"x-replicate": 7}, number=3))
    del change["replicate"]
    queue = a_broker(replaying=[*a_broker().image(), json.dumps(change).encode()]).vhosts["/"].queues["old"]
    assert queue.spec.replicate == "messages"
    assert queue.durable


# What is in the logs --------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("replicate", ["none", "configuration"])
def test_whatever_happens_to_its_messages_the_logs_are_not_told(replicate: str) -> None:
    """A-2: what is not replicated writes nothing that could be sent: no message, no end, no count, no mark."""
    broker = a_member()
    arguments: dict[str, Any] = {"x-message-ttl": 50, "x-max-length": 6, "x-delivery-limit": 1}
    queue = declared(broker, replicate, **arguments)
    channel = a_channel(broker)
    before = list(broker.catalog.changes)
    for body in (b"acked", b"rejected", b"given up", b"returned"):
        assert channel.publish("q", body, delivery_mode=2).last_seq == 0, "its confirm waits for nothing"
    for delivery, settle in zip(
        [channel.get("q") for _ in range(4)],
        (
            lambda tag: channel.ack(tag),
            lambda tag: channel.nack(tag, requeue=False),
            lambda tag: channel.nack(tag),
            lambda tag: channel.nack(tag),
        ),
        strict=True,
    ):
        assert delivery is not None
        settle(delivery.tag)
    again = channel.get("q")
    assert again is not None
    assert again.body == b"given up"
    assert again.redelivered
    channel.nack(again.tag)
    channel.publish("q", *(b"%d" % number for number in range(9)), delivery_mode=2)
    channel.turn()
    assert queue.ready == 6
    assert queue.evicted
    channel.turn(passing_ms=60)
    assert queue.expired
    channel.publish("q", b"purged", delivery_mode=2)
    assert queue.purge() == 1
    channel.turn()
    assert broker.journal.used == 0
    assert written(broker) == []
    assert broker.catalog.changes == before


@pytest.mark.parametrize("replicate", ["none", "configuration"])
def test_a_message_that_goes_to_a_queue_that_keeps_and_one_that_does_not_is_written_for_the_first(
    replicate: str,
) -> None:
    broker = a_member()
    keeps, does_not = declared(broker, None, "keeps"), declared(broker, replicate, "does not")
    session, channel = a_session(broker), a_channel(broker)
    for name in ("keeps", "does not"):
        session.bind_queue(name, "amq.fanout", "")
    published = channel.publish("", b"both", exchange="amq.fanout", delivery_mode=2)
    assert published.last_seq > 0, "its confirm waits for the journal"
    for name in ("keeps", "does not"):
        delivery = channel.get(name)
        assert delivery is not None
        channel.ack(delivery.tag)
    channel.turn()
    [(number, reason, _)] = channel.settled()
    assert (number, reason) == (keeps.number, Reason.ACCEPTED)
    assert does_not.ready == 0


def test_dead_letters_are_where_their_queue_keeps_them() -> None:
    broker = a_member()
    dead = {"x-dead-letter-exchange": "", "x-dead-letter-routing-key": "dead"}
    declared(broker, "configuration", "from memory", **dead)
    declared(broker, None, "dead")
    lost = {"x-dead-letter-exchange": "", "x-dead-letter-routing-key": "lost"}
    kept = declared(broker, None, "from disk", **lost)
    declared(broker, "configuration", "lost")
    channel = a_channel(broker)
    channel.publish("from memory", b"one", delivery_mode=2)
    channel.publish("from disk", b"two", delivery_mode=2)
    used = broker.journal.used
    for name in ("from memory", "from disk"):
        delivery = channel.get(name)
        assert delivery is not None
        channel.nack(delivery.tag, requeue=False)
    channel.turn()
    assert channel.drain("dead") == [b"one"]
    assert channel.drain("lost") == [b"two"]
    assert broker.journal.used > used, "the letter to a queue that keeps is written"
    assert (kept.number, Reason.REJECTED) in [(number, reason) for number, reason, _ in channel.settled()]


def test_a_transaction_over_both_kinds_is_done_whole() -> None:
    broker = a_member()
    declared(broker, None, "keeps")
    declared(broker, "configuration", "does not")
    channel = a_channel(broker)
    transaction = Transaction(channel.publishing)
    for name in ("keeps", "does not"):
        transaction.publish(channel.a_run(name, name.encode(), delivery_mode=2))
    assert channel.publish("does not", b"before").error is None
    committed = transaction.commit(broker.now_ms)
    assert committed.error is None
    assert committed.last_seq > 0
    assert channel.drain("keeps") == [b"keeps"]
    assert channel.drain("does not") == [b"before", b"does not"]


def test_a_transaction_of_what_is_in_memory_only_waits_for_nothing() -> None:
    broker = a_member()
    declared(broker, "configuration")
    channel = a_channel(broker)
    transaction = Transaction(channel.publishing)
    transaction.publish(channel.a_run("q", b"one", delivery_mode=2))
    assert transaction.commit(broker.now_ms).last_seq == 0
    delivery = channel.get("q")
    assert delivery is not None
    transaction.settle(channel.unacked.pop(delivery.tag, delivery.tag), "accept")
    assert transaction.commit(broker.now_ms).last_seq == 0
    channel.turn()
    assert broker.journal.used == 0
    assert written(broker) == []


def test_bindings_are_in_the_catalog_if_the_queue_is() -> None:
    """H-21, H-22: with `configuration` queue and bindings are replicated, with `none` neither is."""
    broker = a_member()
    session = a_session(broker)
    for replicate in DEFAULTS:
        declared(broker, replicate, replicate)
        session.bind_queue(replicate, "amq.fanout", "")
    follower = a_broker(replaying=broker.image()).vhosts["/"]
    assert set(follower.queues) == {"configuration", "messages"}
    assert {binding.spec.destination for binding in follower.bindings()} == {"configuration", "messages"}
    logged = [json.loads(change) for change in broker.catalog.changes]
    assert [c["destination"] for c in logged if c["op"] == "binding.put"] == ["configuration", "messages"]
    for replicate in DEFAULTS:
        session.unbind_queue(replicate, "amq.fanout", "")
        session.delete_queue(replicate)
    ends = [json.loads(change)["op"] for change in broker.catalog.changes].count
    assert ends("binding.delete") == ends("queue.delete") == 2


def test_a_queue_that_is_in_no_catalog_takes_no_number_of_those_that_are() -> None:
    broker = a_member()
    before = broker.next_number
    declared(broker, "none")
    assert broker.next_number == before
    assert declared(broker, "configuration", "c").number == before
    assert broker.next_number == before + 1


def test_consumers_are_served_as_by_any_queue() -> None:
    broker = a_member()
    queue = declared(broker, "configuration")
    sink = RecordingSink()
    a_session(broker).consume(sink, "q", "c")
    a_channel(broker).publish("q", b"one", b"two", delivery_mode=2)
    broker.arena.shown_seq = 0  # nothing is complete yet: that is no matter of theirs
    broker.turn(broker.now_ms)
    assert [len(taken) for _, taken in sink.delivered] == [2]
    assert queue.acquired == 2


# Definitions --------------------------------------------------------------------------------------------------------


def test_definitions_carry_what_was_asked_for_and_the_importer_decides() -> None:
    broker = a_member("configuration")
    declared(broker, "none", "asks")
    declared(broker, None, "does not ask")
    document = export(broker)
    assert all("replicate" not in queue for queue in document["queues"])
    other = a_member("messages")
    import_definitions(other, document)
    found = other.vhosts["/"].queues
    assert (found["asks"].spec.replicate, found["does not ask"].spec.replicate) == ("none", "messages")
    alone = a_broker()
    import_definitions(alone, document)
    assert {queue.spec.replicate for queue in alone.queues.values()} == {"messages"}


def test_definitions_with_what_cannot_be_change_nothing() -> None:
    broker = a_member()
    queues = [
        {"name": "good", "vhost": "/", "durable": True, "auto_delete": False, "arguments": {}},
        {
            "name": "bad",
            "vhost": "/",
            "durable": True,
            "auto_delete": False,
            "arguments": {"x-queue-type": "stream", "x-replicate": "none"},
        },
    ]
    with pytest.raises(PreconditionFailed, match="a queue of type 'stream' is on all members"):
        import_definitions(broker, {"queues": queues})
    assert not broker.queues


@pytest.mark.parametrize(
    ("word", "meant"), [("no", "none"), ("wiring", "configuration"), ("yes", "messages"), ("all", "messages")]
)
def test_each_word_that_others_use_stands_for_one_of_ours(word: str, meant: Replicate) -> None:
    """X-14: none, configuration and messages; the others are aliases, in arguments and in policies."""
    broker = a_member("configuration" if meant == "none" else "none")
    governed(broker, word, "^p")
    assert declared(broker, word).spec.replicate == meant
    assert declared(broker, None, "p").spec.replicate == meant
    session = a_session(broker)
    session.declare_queue("q", durable=True, arguments={"x-replicate": meant})
