"""Dead letters of a group other than main: what finds its queue stays, everything else waits in the outbox and is never dropped."""

from __future__ import annotations

from typing import Any

import pytest
from builders import a_broker, a_queue
from unit.broker.channel import TestChannel, a_channel

from tidemark.broker.broker import Broker
from tidemark.broker.groups import OUTBOX
from tidemark.broker.streams.commit import Batch, Take
from tidemark.broker.streams.session import StreamSession
from tidemark.broker.transaction import Transaction
from tidemark.errors import AccessRefused, DiskFull
from tidemark.model.wiring import (
    FIRST_TRANSIENT_NUMBER,
    FRONT_USER,
    OperatorPolicySpec,
    PermissionSpec,
    PolicySpec,
)


def a_group(replicate: Any = "messages") -> Broker:
    broker = a_broker()
    broker.mode, broker.group, broker.replicate = "chain", "fast", replicate
    return broker


def dying(broker: Broker, exchange: str = "dead", key: str | None = None, **more: Any) -> TestChannel:
    """A channel, and the queue q whose messages die at once."""
    arguments: dict[str, Any] = {"x-dead-letter-exchange": exchange, "x-message-ttl": 0, **more}
    if key is not None:
        arguments["x-dead-letter-routing-key"] = key
    a_queue(broker, "q", durable=True, arguments=arguments)
    return a_channel(broker)


def a_front(broker: Broker) -> TestChannel:
    """A channel of a front that comes for itself."""
    return TestChannel(broker.open_session("/", FRONT_USER, None, "front", by_front=True, own=True))


def waiting(channel: TestChannel) -> list[tuple[bytes, dict[str, Any]]]:
    found, front = [], a_front(channel.broker)
    while (delivery := front.get(OUTBOX, no_ack=True)) is not None:
        found.append((delivery.body, delivery.headers))
    return found


def test_a_letter_for_an_exchange_of_main_waits_in_the_outbox_and_says_where_it_wants_to_go() -> None:
    channel = dying(a_group())
    assert OUTBOX not in channel.session.vhost.queues, "it is made when it is needed"
    channel.publish("q", b"letter", delivery_mode=2, headers={"h": 1}, expiration="50")
    channel.turn(1)
    [(body, headers)] = waiting(channel)
    assert body == b"letter" and headers["h"] == 1
    assert (headers["x-tidemark-exchange"], headers["x-tidemark-key"]) == ("dead", "q")
    [death] = headers["x-death"]
    assert (death["queue"], death["reason"], death["exchange"]) == ("q", "expired", "")
    assert death["original-expiration"] == "50"
    queue = channel.session.vhost.queues[OUTBOX]
    assert queue.durable and queue.number < FIRST_TRANSIENT_NUMBER and queue.spec.in_catalog


def test_the_key_is_that_of_the_queue_or_of_the_message_and_further_keys_stay_in_cc() -> None:
    channel = dying(a_group(), key="of the queue")
    channel.publish("q", b"1", headers={"CC": ["other"]})
    channel.turn(1)
    [(_, headers)] = waiting(channel)
    assert headers["x-tidemark-key"] == "of the queue" and "CC" not in headers
    channel = dying(a_group())
    channel.publish("q", b"1", headers={"CC": ["other"]})
    channel.turn(1)
    [(_, headers)] = waiting(channel)
    assert headers["x-tidemark-key"] == "q" and headers["CC"] == ["other"]


def test_a_letter_for_a_queue_of_this_group_goes_there() -> None:
    broker = a_group()
    channel = dying(broker, exchange="", key="graves")
    a_queue(broker, "graves", durable=True)
    channel.publish("q", b"letter", delivery_mode=2)
    channel.turn(1)
    delivery = channel.get("graves", no_ack=True)
    assert (
        delivery is not None and delivery.body == b"letter" and "x-tidemark-exchange" not in delivery.headers
    )
    assert OUTBOX not in channel.session.vhost.queues


def test_a_letter_for_a_queue_of_another_group_goes_by_way_of_main() -> None:
    channel = dying(a_group(), exchange="", key="graves")
    channel.publish("q", b"letter")
    channel.turn(1)
    [(_, headers)] = waiting(channel)
    assert (headers["x-tidemark-exchange"], headers["x-tidemark-key"]) == ("", "graves")


def test_exchanges_that_happen_to_be_here_are_not_asked() -> None:
    broker = a_group()
    channel = dying(broker, exchange="amq.fanout")
    a_queue(broker, "bound")
    channel.session.bind_queue("bound", "amq.fanout", "")
    channel.publish("q", b"letter")
    channel.turn(1)
    assert channel.drain("bound") == [] and len(waiting(channel)) == 1


@pytest.mark.parametrize("where", ["key", "CC", "BCC"])
def test_no_publish_finds_the_outbox(where: str) -> None:
    """What is in there is routed by main without asking whether its sender may."""
    channel = dying(a_group())
    channel.publish("q", b"letter", delivery_mode=2)
    channel.turn(1)
    assert len(waiting(channel)) == 1
    if where == "key":
        assert channel.publish(OUTBOX, b"forged", mandatory=True).returned == [(0, 312, "NO_ROUTE")]
    else:
        channel.publish("nowhere", b"forged", headers={where: [OUTBOX]})
    transaction = Transaction(channel.publishing)
    transaction.publish(channel.a_run(OUTBOX, b"forged"))
    transaction.commit(channel.broker.now_ms)
    channel.turn(1)
    assert waiting(channel) == []


@pytest.mark.parametrize(
    "options",
    [{}, {"by_front": True}, {"patterns": PermissionSpec("guest", "/", ".*", ".*", ".*")}],
    ids=["here", "by a front", "by a front with patterns"],
)
def test_nobody_takes_letters_out_of_the_outbox_but_a_front_that_comes_for_itself(
    options: dict[str, Any],
) -> None:
    broker = a_group()
    channel = dying(broker)
    channel.publish("q", b"letter", delivery_mode=2)
    channel.turn(1)
    session = broker.open_session("/", "guest", None, "test", **options)
    streams = StreamSession(session)
    streams.declare("loot")
    for take in (
        session.get,
        session.purge_queue,
        session.delete_queue,
        lambda name: session.consume(channel, name, "tag"),  # type: ignore[arg-type]
        lambda name: streams.copier(Batch([Take(name, "loot", 10)])),
    ):
        with pytest.raises(AccessRefused, match="the broker's own"):
            take(OUTBOX)
    assert session.declare_queue(OUTBOX, passive=True).messages == 1, "how much waits may be asked"
    front = a_front(broker)
    front.consume(OUTBOX)
    front.turn(1)
    assert [delivery.body for delivery in front.deliveries] == [b"letter"]


def test_a_letter_does_not_come_into_the_outbox_by_its_key() -> None:
    """It would say itself, in its headers, where it goes from there."""
    broker = a_group()
    channel = dying(broker, exchange="", key=OUTBOX)
    dying_elsewhere = {"x-dead-letter-exchange": "dead", "x-message-ttl": 0}
    a_queue(broker, "first", durable=True, arguments=dying_elsewhere)
    channel.publish("first", b"letter")
    channel.turn(1)
    assert len(waiting(channel)) == 1
    channel.publish("q", b"forged", headers={"x-tidemark-exchange": "dead", "x-tidemark-key": "x"})
    channel.turn(1)
    assert waiting(channel) == []


def test_in_main_there_is_no_outbox() -> None:
    channel = dying(a_broker())
    channel.publish("q", b"letter")
    channel.turn(1)
    assert list(channel.session.vhost.queues) == ["q"]


def test_rejected_letters_and_those_of_full_queues_too() -> None:
    broker = a_group()
    a_queue(broker, "q", durable=True, arguments={"x-dead-letter-exchange": "dead"})
    full = {"x-dead-letter-exchange": "dead", "x-max-length": 0, "x-overflow": "reject-publish-dlx"}
    a_queue(broker, "full", durable=True, arguments=full)
    channel = a_channel(broker)
    channel.publish("q", b"rejected", delivery_mode=2)
    delivery = channel.get("q")
    assert delivery is not None
    channel.nack(delivery.tag, requeue=False)
    channel.publish("full", b"too many", delivery_mode=2)
    channel.turn()
    assert [(body, headers["x-death"][0]["reason"]) for body, headers in waiting(channel)] == [
        (b"rejected", "rejected"),
        (b"too many", "maxlen"),
    ]


def no_room(*_: object) -> int:
    raise DiskFull(path="here")


def test_a_transaction_that_rejects_has_its_outbox_before_it_begins(monkeypatch: pytest.MonkeyPatch) -> None:
    broker = a_group()
    a_queue(broker, "q", durable=True, arguments={"x-dead-letter-exchange": "dead"})
    channel = a_channel(broker)
    channel.publish("q", b"letter", delivery_mode=2)
    delivery = channel.get("q")
    assert delivery is not None
    transaction = Transaction(channel.publishing)
    transaction.publish(channel.a_run("q", b"new", delivery_mode=2))
    transaction.settle(channel.unacked.pop(delivery.tag, delivery.tag), "reject")
    monkeypatch.setattr(broker.catalog, "append", no_room)
    failed = transaction.commit(broker.now_ms)
    assert isinstance(failed.error, DiskFull)
    assert channel.session.vhost.queues["q"].ready == 1, "nothing was published, and the letter is back"
    monkeypatch.undo()
    delivery = channel.get("q")
    assert delivery is not None
    transaction.settle(channel.unacked.pop(delivery.tag, delivery.tag), "reject")
    assert transaction.commit(broker.now_ms).error is None
    assert [body for body, _ in waiting(channel)] == [b"letter"]


def test_without_room_for_the_outbox_the_letter_stays_where_it_is(monkeypatch: pytest.MonkeyPatch) -> None:
    broker = a_group()
    channel = dying(broker)
    channel.publish("q", b"letter", delivery_mode=2)
    monkeypatch.setattr(broker.catalog, "append", no_room)
    with pytest.raises(DiskFull):
        channel.turn(1)
    monkeypatch.undo()
    channel.turn(1)
    assert [body for body, _ in waiting(channel)] == [b"letter"]


@pytest.mark.parametrize("replicate", ["none", "configuration", "messages"])
def test_the_outbox_is_kept_whole_whatever_the_members_keep_of_other_queues(replicate: str) -> None:
    channel = dying(a_group(replicate), **{"x-replicate": "messages"})
    channel.publish("q", b"letter", delivery_mode=2)
    channel.turn(1)
    assert channel.session.vhost.queues[OUTBOX].spec.in_journal


def test_no_policy_applies_to_the_outbox() -> None:
    broker = a_group()
    definition = {"max-length": 0, "message-ttl": 0, "expires": 1}
    broker.put_policy(PolicySpec("/", "p", ".*", "queues", 0, definition))
    broker.put_policy(OperatorPolicySpec("/", "o", ".*", "queues", 0, definition))
    broker.delete_policy("/", "p")
    channel = dying(broker)
    channel.publish("q", b"letter", delivery_mode=2)
    channel.turn(1)
    broker.put_policy(PolicySpec("/", "p", ".*", "queues", 0, definition))
    channel.turn(1000)
    assert [body for body, _ in waiting(channel)] == [b"letter"]


def test_it_comes_back_from_the_catalog_and_is_used_again() -> None:
    broker = a_group()
    channel = dying(broker)
    channel.publish("q", b"letter", delivery_mode=2)
    channel.turn(1)
    again = a_broker(replaying=broker.image())
    again.mode, again.group = "chain", "fast"
    channel = a_channel(again)
    number = again.vhosts["/"].queues[OUTBOX].number
    channel.publish("q", b"letter", delivery_mode=2)
    channel.turn(1)
    assert again.vhosts["/"].queues[OUTBOX].number == number
    assert [body for body, _ in waiting(channel)] == [b"letter"]
