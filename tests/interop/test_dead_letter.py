"""Dead-lettering: where a message goes, and the history it carries."""

from __future__ import annotations

import time
from datetime import datetime
from typing import Any

import pika
import pytest
from helpers.amqp import Inbox, depth, drain, eventually, get_one, put, sync
from pika.adapters.blocking_connection import BlockingChannel


@pytest.fixture
def dead(channel: BlockingChannel, name: str) -> str:
    """A queue for dead letters, reached through the default exchange."""
    channel.queue_declare(f"{name}-dead", exclusive=True)
    return f"{name}-dead"


def declare(channel: BlockingChannel, queue: str, dead: str, **arguments: Any) -> str:
    settings = {"x-dead-letter-exchange": "", "x-dead-letter-routing-key": dead}
    settings |= {name.replace("_", "-"): value for name, value in arguments.items()}
    channel.queue_declare(queue, exclusive=True, arguments=settings)
    return queue


def reject_one(channel: BlockingChannel, queue: str) -> None:
    method, _, _ = get_one(channel, queue, auto_ack=False)
    channel.basic_reject(method.delivery_tag, requeue=False)


@pytest.mark.parametrize("how", ["reject", "nack"])
def test_a_rejected_message_goes_to_the_dead_letter_exchange_with_its_history(
    channel: BlockingChannel, name: str, dead: str, how: str
) -> None:
    declare(channel, name, dead)
    put(channel, name, b"bad", message_id="m1", headers={"mine": 1})
    method, _, _ = get_one(channel, name, auto_ack=False)
    if how == "reject":
        channel.basic_reject(method.delivery_tag, requeue=False)
    else:
        channel.basic_nack(method.delivery_tag, requeue=False)

    _, properties, body = get_one(channel, dead)
    assert (body, properties.message_id, properties.headers["mine"]) == (b"bad", "m1", 1)
    [death] = properties.headers["x-death"]
    assert isinstance(death.pop("time"), datetime)
    assert death == {
        "count": 1,
        "reason": "rejected",
        "queue": name,
        "exchange": "",
        "routing-keys": [name],
    }
    assert properties.headers["x-first-death-queue"] == name
    assert properties.headers["x-first-death-reason"] == "rejected"
    assert properties.headers["x-first-death-exchange"] == ""


def test_an_expired_message_is_dead_lettered_without_its_expiration(
    channel: BlockingChannel, name: str, dead: str
) -> None:
    declare(channel, name, dead)
    put(channel, name, b"old", expiration="50")

    _, properties, body = get_one(channel, dead)
    assert body == b"old"
    assert properties.expiration is None
    [death] = properties.headers["x-death"]
    assert (death["reason"], death["original-expiration"]) == ("expired", "50")


def test_a_message_that_the_ttl_of_its_queue_ended_has_no_original_expiration(
    channel: BlockingChannel, name: str, dead: str
) -> None:
    declare(channel, name, dead, x_message_ttl=50)
    put(channel, name, b"old")
    [death] = get_one(channel, dead)[1].headers["x-death"]
    assert death["reason"] == "expired"
    assert "original-expiration" not in death


def test_without_a_dead_letter_key_the_message_keeps_its_own(channel: BlockingChannel, name: str) -> None:
    channel.exchange_declare(f"{name}-x", "direct", auto_delete=True)
    channel.queue_declare(f"{name}-dead", exclusive=True)
    channel.queue_bind(f"{name}-dead", f"{name}-x", name)
    channel.queue_declare(name, exclusive=True, arguments={"x-dead-letter-exchange": f"{name}-x"})
    put(channel, name, b"same key")
    reject_one(channel, name)

    method, _, _ = get_one(channel, f"{name}-dead")
    assert (method.exchange, method.routing_key) == (f"{name}-x", name)


def test_a_dead_letter_exchange_that_does_not_exist_drops_the_message(
    channel: BlockingChannel, name: str
) -> None:
    channel.queue_declare(name, exclusive=True, arguments={"x-dead-letter-exchange": f"{name}-missing"})
    put(channel, name, b"gone")
    reject_one(channel, name)
    sync(channel)
    assert drain(channel, name) == []


def test_dying_again_in_the_same_queue_for_the_same_reason_counts_up(
    channel: BlockingChannel, name: str, dead: str
) -> None:
    declare(channel, name, dead)
    put(channel, name, b"bad")
    for count in range(1, 4):
        reject_one(channel, name)
        _, properties, body = get_one(channel, dead)
        [death] = properties.headers["x-death"]
        assert death["count"] == count
        channel.basic_publish("", name, body, properties)


def test_the_newest_death_comes_first_in_the_history(channel: BlockingChannel, name: str, dead: str) -> None:
    declare(channel, f"{name}-b", dead)
    declare(channel, name, f"{name}-b")
    put(channel, name, b"bad")
    reject_one(channel, name)
    reject_one(channel, f"{name}-b")

    headers = get_one(channel, dead)[1].headers
    assert [death["queue"] for death in headers["x-death"]] == [f"{name}-b", name]
    assert headers["x-first-death-queue"] == name


def test_two_reasons_in_one_queue_are_two_entries(channel: BlockingChannel, name: str, dead: str) -> None:
    declare(channel, name, dead)
    put(channel, name, b"bad")
    reject_one(channel, name)
    _, properties, body = get_one(channel, dead)
    properties.expiration = "20"
    channel.basic_publish("", name, body, properties)

    deaths = get_one(channel, dead)[1].headers["x-death"]
    assert [(death["reason"], death["count"]) for death in deaths] == [
        ("expired", 1),
        ("rejected", 1),
    ]


def test_a_cycle_of_expiries_without_a_rejection_ends_by_dropping_the_message(
    channel: BlockingChannel, name: str
) -> None:
    declare(channel, f"{name}-a", f"{name}-b", x_message_ttl=30)
    declare(channel, f"{name}-b", f"{name}-a", x_message_ttl=30)
    put(channel, f"{name}-a", b"dizzy")
    time.sleep(0.4)
    assert depth(channel, f"{name}-a") == depth(channel, f"{name}-b") == 0
    inboxes = [Inbox(channel, f"{name}-{end}") for end in "ab"]
    inboxes[0].settle()
    assert inboxes[0].bodies == inboxes[1].bodies == []


def test_a_cycle_with_a_rejection_in_it_goes_on(channel: BlockingChannel, name: str) -> None:
    declare(channel, name, f"{name}-wait")
    declare(channel, f"{name}-wait", name, x_message_ttl=30)
    put(channel, name, b"retry me")
    for round_ in range(3):
        method, properties, _ = get_one(channel, name, auto_ack=False)
        counts = {d["queue"]: d["count"] for d in (properties.headers or {}).get("x-death", [])}
        assert counts.get(name, 0) == round_
        channel.basic_reject(method.delivery_tag, requeue=False)


def test_a_queue_may_be_its_own_dead_letter_target_for_rejections(
    channel: BlockingChannel, name: str
) -> None:
    declare(channel, name, name)
    put(channel, name, b"again")
    reject_one(channel, name)
    assert get_one(channel, name)[1].headers["x-death"][0]["count"] == 1


def test_cc_keys_are_in_the_history_and_not_used_again_with_a_dead_letter_key(
    channel: BlockingChannel, name: str, dead: str
) -> None:
    declare(channel, name, dead)
    channel.queue_declare(f"{name}-cc", exclusive=True)
    put(channel, name, b"copied", headers={"CC": [f"{name}-cc"]})
    assert len(drain(channel, f"{name}-cc")) == 1
    reject_one(channel, name)

    headers = get_one(channel, dead)[1].headers
    assert headers["x-death"][0]["routing-keys"] == [name, f"{name}-cc"]
    assert "CC" not in headers
    assert drain(channel, f"{name}-cc") == []


def test_an_acknowledged_or_requeued_message_is_not_dead_lettered(
    channel: BlockingChannel, name: str, dead: str
) -> None:
    declare(channel, name, dead)
    put(channel, name, b"fine")
    method, _, _ = get_one(channel, name, auto_ack=False)
    channel.basic_reject(method.delivery_tag, requeue=True)
    method, _, _ = get_one(channel, name, auto_ack=False)
    channel.basic_ack(method.delivery_tag)
    sync(channel)
    assert drain(channel, dead) == []


def test_purging_and_deleting_do_not_dead_letter(channel: BlockingChannel, name: str, dead: str) -> None:
    declare(channel, name, dead)
    put(channel, name, b"1")
    channel.queue_purge(name)
    put(channel, name, b"2")
    channel.queue_delete(name)
    time.sleep(0.1)
    assert drain(channel, dead) == []


def test_rejecting_many_at_once_dead_letters_them_in_order(
    channel: BlockingChannel, name: str, dead: str
) -> None:
    declare(channel, name, dead)
    put(channel, name, *(b"%d" % number for number in range(20)))
    for _ in range(20):
        method, _, _ = get_one(channel, name, auto_ack=False)
    channel.basic_nack(method.delivery_tag, multiple=True, requeue=False)
    eventually(lambda: depth(channel, dead) == 20)
    assert drain(channel, dead) == [b"%d" % number for number in range(20)]


def test_dead_letters_of_a_persistent_message_stay_persistent(
    channel: BlockingChannel, name: str, dead: str
) -> None:
    declare(channel, name, dead)
    put(channel, name, b"keep", delivery_mode=2)
    reject_one(channel, name)
    assert get_one(channel, dead)[1].delivery_mode == 2


# Delivery limit --------------------------------------------------------------------------------


@pytest.fixture
def quorum(channel: BlockingChannel, name: str, dead: str) -> Any:
    """A queue that gives up on a message after two deliveries that failed."""
    channel.queue_declare(
        f"{name}-q",
        durable=True,
        arguments={
            "x-queue-type": "quorum",
            "x-delivery-limit": 2,
            "x-dead-letter-exchange": "",
            "x-dead-letter-routing-key": dead,
        },
    )
    yield f"{name}-q"
    if channel.connection.is_open:
        channel.connection.channel().queue_delete(f"{name}-q")


def test_a_message_that_fails_too_often_is_dead_lettered_as_delivery_limit(
    channel: BlockingChannel, quorum: str, dead: str
) -> None:
    put(channel, quorum, b"poison", delivery_mode=2)
    seen = []
    for _ in range(3):
        method, properties, _ = get_one(channel, quorum, auto_ack=False)
        seen.append((method.redelivered, (properties.headers or {}).get("x-delivery-count", 0)))
        channel.basic_nack(method.delivery_tag, requeue=True)

    assert seen == [(False, 0), (True, 1), (True, 2)]
    _, properties, body = get_one(channel, dead)
    assert body == b"poison"
    assert properties.headers["x-death"][0]["reason"] == "delivery_limit"
    assert drain(channel, quorum) == []


def test_a_lost_consumer_counts_towards_the_delivery_limit(
    connection: pika.BlockingConnection, channel: BlockingChannel, quorum: str, dead: str
) -> None:
    put(channel, quorum, b"poison", delivery_mode=2)
    for _ in range(3):
        other = connection.channel()
        Inbox(other, quorum).wait(1)
        other.close()
    assert get_one(channel, dead)[2] == b"poison"
