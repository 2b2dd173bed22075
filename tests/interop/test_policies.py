"""Policies as clients see them: on a real broker, and (with TIDEMARK_TEST_ADDRESS=rabbitmq) on the one they are from."""

from __future__ import annotations

import os
import time
from collections.abc import Callable, Iterator
from typing import Any

import pika
import pytest
from helpers.amqp import depth, drain, drain_messages, eventually, put
from helpers.broker import Address, BrokerProcess
from helpers.operator import Operator, Refused, TidemarkOperator, an_operator
from pika.adapters.blocking_connection import BlockingChannel
from pika.exceptions import NackError, UnroutableError

RABBITMQ = os.environ.get("TIDEMARK_TEST_ADDRESS") == "rabbitmq"
pytestmark = pytest.mark.skipif(
    bool(os.environ.get("TIDEMARK_TEST_ADDRESS")) and not RABBITMQ, reason="nobody may administer that broker"
)


@pytest.fixture(scope="module")
def operator(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Operator]:
    with an_operator(tmp_path_factory.mktemp("operator"), of_rabbitmq=RABBITMQ) as found:
        yield found


@pytest.fixture(scope="module")
def broker(operator: Operator) -> Address:
    """The connections of these tests go to the broker that is administered."""
    return operator.address


@pytest.fixture
def policy(operator: Operator, name: str) -> Iterator[Callable[..., None]]:
    """Sets a policy, and only that, for objects whose names begin with `name`. None clears it."""
    there: set[bool] = set()

    def set_policy(definition: dict[str, Any] | None, *, of_operator: bool = False, **more: Any) -> None:
        if definition is None:
            operator.clear_policy(name, operator=of_operator)
            there.discard(of_operator)
        else:
            operator.set_policy(name, f"^{name}", definition, operator=of_operator, **more)
            there.add(of_operator)

    yield set_policy
    for of_operator in list(there):
        operator.clear_policy(name, operator=of_operator)


def test_a_shorter_length_drops_the_oldest_messages_that_are_there(
    channel: BlockingChannel, queue: str, policy: Callable[..., None]
) -> None:
    put(channel, queue, *(b"%d" % n for n in range(10)))
    policy({"max-length": 4})
    eventually(lambda: depth(channel, queue) == 4)
    put(channel, queue, b"10")
    assert drain(channel, queue) == [b"7", b"8", b"9", b"10"]
    policy(None)
    put(channel, queue, *(b"%d" % n for n in range(10)))
    assert depth(channel, queue) == 10


def test_messages_that_are_there_keep_the_time_to_live_that_they_came_with(
    channel: BlockingChannel, queue: str, policy: Callable[..., None]
) -> None:
    put(channel, queue, b"before")
    policy({"message-ttl": 100})
    time.sleep(0.5)
    assert drain(channel, queue) == [b"before"]
    put(channel, queue, b"under it")
    eventually(lambda: depth(channel, queue) == 0)
    policy({"message-ttl": 600_000})
    put(channel, queue, b"later")
    time.sleep(0.5)
    assert drain(channel, queue) == [b"later"]


def test_publishes_are_refused_while_the_policy_says_so(
    channel: BlockingChannel, queue: str, policy: Callable[..., None]
) -> None:
    channel.confirm_delivery()
    channel.basic_publish("", queue, b"1")
    policy({"max-length": 1, "overflow": "reject-publish"}, apply_to="queues")

    def refused() -> bool:
        try:
            channel.basic_publish("", queue, b"2")
        except NackError:
            return True
        return False

    eventually(refused)
    policy(None)
    eventually(lambda: not refused())


def test_dead_letters_go_where_the_policy_says(
    channel: BlockingChannel, queue: str, name: str, policy: Callable[..., None]
) -> None:
    dead = f"dead-{name}"
    channel.queue_declare(dead, exclusive=True)
    policy({"dead-letter-exchange": "", "dead-letter-routing-key": dead, "max-length": 1})
    put(channel, queue, b"1", b"2")
    eventually(lambda: depth(channel, dead) == 1)
    [(_, properties, body)] = drain_messages(channel, dead)
    assert body == b"1"
    assert properties.headers["x-death"][0]["reason"] == "maxlen"


def test_an_unused_queue_expires_by_a_policy_counted_from_its_coming(
    connection: pika.BlockingConnection, name: str, policy: Callable[..., None]
) -> None:
    channel = connection.channel()
    channel.queue_declare(name)
    time.sleep(1.5)
    policy({"expires": 1600}, apply_to="queues")

    def gone() -> bool:
        probe = connection.channel()
        try:
            probe.queue_declare(name, passive=True)
        except pika.exceptions.ChannelClosedByBroker:
            return True
        probe.close()
        return False

    time.sleep(0.3)
    assert not gone()  # that was a use: its time begins again
    time.sleep(2.2)
    assert gone()


def test_an_alternate_exchange_of_a_policy_takes_what_nobody_wants(
    channel: BlockingChannel, name: str, policy: Callable[..., None]
) -> None:
    source, other, queue = f"{name}-source", f"other-{name}", f"other-{name}"
    channel.exchange_declare(source, "direct", auto_delete=True)
    channel.exchange_declare(other, "fanout")
    channel.queue_declare(queue, exclusive=True)
    channel.queue_bind(queue, other)
    channel.confirm_delivery()
    with pytest.raises(UnroutableError):
        channel.basic_publish(source, "k", b"1", mandatory=True)
    policy({"alternate-exchange": other}, apply_to="exchanges")
    channel.basic_publish(source, "k", b"2", mandatory=True)
    policy(None)
    with pytest.raises(UnroutableError):
        channel.basic_publish(source, "k", b"3", mandatory=True)
    assert drain(channel, queue) == [b"2"]
    channel.exchange_delete(other)
    channel.exchange_delete(source)


def test_of_an_argument_and_a_policy_the_smaller_limit_holds(
    channel: BlockingChannel, name: str, policy: Callable[..., None]
) -> None:
    small, large = f"{name}-small", f"{name}-large"
    channel.queue_declare(small, exclusive=True, arguments={"x-max-length": 2})
    channel.queue_declare(large, exclusive=True, arguments={"x-max-length": 9})
    policy({"max-length": 5})
    for queue, length in ((small, 2), (large, 5)):
        put(channel, queue, *[b"x"] * 12)
        eventually(lambda queue=queue, length=length: depth(channel, queue) == length)


def test_an_argument_that_is_no_limit_is_stronger_than_a_policy(
    channel: BlockingChannel, name: str, policy: Callable[..., None]
) -> None:
    mine, theirs = f"mine-{name}", f"theirs-{name}"
    for dead in (mine, theirs):
        channel.queue_declare(dead, exclusive=True)
    arguments = {"x-dead-letter-exchange": "", "x-dead-letter-routing-key": mine}
    channel.queue_declare(name, exclusive=True, arguments=arguments)
    policy({"dead-letter-exchange": "", "dead-letter-routing-key": theirs, "max-length": 0})
    put(channel, name, b"1")
    eventually(lambda: depth(channel, mine) == 1)
    assert depth(channel, theirs) == 0


def test_an_operator_policy_makes_a_limit_smaller_and_not_larger(
    channel: BlockingChannel, queue: str, policy: Callable[..., None]
) -> None:
    policy({"max-length": 5})
    policy({"max-length": 3}, of_operator=True)
    put(channel, queue, *[b"x"] * 9)
    eventually(lambda: depth(channel, queue) == 3)
    policy({"max-length": 8}, of_operator=True)
    put(channel, queue, *[b"x"] * 9)
    eventually(lambda: depth(channel, queue) == 5)


def test_the_higher_priority_wins_alone(
    channel: BlockingChannel, queue: str, name: str, operator: Operator, policy: Callable[..., None]
) -> None:
    policy({"max-length": 2}, priority=5)
    operator.set_policy(f"{name}-other", f"^{name}", {"max-length": 4}, priority=6)
    put(channel, queue, *[b"x"] * 9)
    eventually(lambda: depth(channel, queue) == 4)
    operator.clear_policy(f"{name}-other")
    eventually(lambda: depth(channel, queue) == 2)


def test_a_delivery_limit_is_for_quorum_queues_and_keeps_its_policy_from_others(
    channel: BlockingChannel, name: str, policy: Callable[..., None]
) -> None:
    classic, quorum = f"{name}-classic", f"{name}-quorum"
    channel.queue_declare(classic, exclusive=True)
    channel.queue_declare(quorum, durable=True, arguments={"x-queue-type": "quorum"})
    policy({"delivery-limit": 1, "max-length": 2})
    put(channel, classic, *[b"x"] * 5)
    put(channel, quorum, *[b"x"] * 5)
    time.sleep(0.5)
    assert depth(channel, classic) == 5
    eventually(lambda: depth(channel, quorum) == 2)
    channel.queue_delete(quorum)


@pytest.mark.parametrize(
    ("definition", "words"),
    [
        ({"message-ttl": "x"}, '<<"x">> is not a valid message TTL'),
        ({"max-length": -1}, "-1 is not a valid maximum length"),
        ({"expires": 0}, "0 is not a valid queue expiry"),
        ({"overflow": "drop-tail"}, '<<"drop-tail">> is not a valid overflow value'),
        ({"alternate-exchange": 7}, "7 is not a valid alternate exchange name"),
        ({"max-age": "7 days"}, '<<"7 days">> is not a valid max age'),
        ({"queue-mode": "fast"}, '<<"fast">> is not a valid queue-mode value'),
        ({"ha-mode": "some"}, '<<"some">> is not a valid ha-mode value'),
        ({"colour": "red"}, '[{<<"colour">>,<<"red">>}] are not recognised policy settings'),
    ],
)
def test_a_definition_that_cannot_be_is_refused_in_the_same_words(
    operator: Operator, definition: dict[str, Any], words: str
) -> None:
    with pytest.raises(Refused) as refused:
        operator.set_policy("bad", "^nothing$", definition)
    assert str(refused.value).strip() == f"Validation failed\n\n{words}"


def test_an_operator_policy_takes_limits_only(operator: Operator) -> None:
    with pytest.raises(Refused) as refused:
        operator.set_policy("bad", "^nothing$", {"queue-mode": "lazy"}, operator=True)
    assert "are not recognised policy settings" in str(refused.value)


def test_a_bad_pattern_is_refused(operator: Operator) -> None:
    with pytest.raises(Refused, match="pattern should be regular expression but is invalid"):
        operator.set_policy("bad", "(", {"max-length": 1})


@pytest.mark.usefixtures("tidemark_only")
@pytest.mark.parametrize("ending", ["stop", "kill"])
def test_a_policy_and_what_it_did_are_there_after_a_restart(own_broker: BrokerProcess, ending: str) -> None:
    operator = TidemarkOperator(own_broker.address, own_broker.admin)

    def channel() -> BlockingChannel:
        return pika.BlockingConnection(pika.URLParameters(own_broker.address.url())).channel()

    first = channel()
    first.queue_declare("q", durable=True)
    first.confirm_delivery()
    kept = pika.BasicProperties(delivery_mode=2)
    for number in range(20):
        first.basic_publish("", "q", b"%d" % number, kept)
    operator.set_policy("p", "^q", {"max-length": 7}, apply_to="queues", priority=3)
    operator.set_policy("o", "^q", {"max-length": 6}, operator=True)
    operator.set_vhost_limits("/", {"max-queues": 2})
    assert depth(first, "q") == 6
    time.sleep(0.2)
    own_broker.stop() if ending == "stop" else own_broker.kill()
    own_broker.start()
    again = channel()
    assert depth(again, "q") == 6
    operator = TidemarkOperator(own_broker.address, own_broker.admin)
    [policy] = operator.ask("GET", "policies")
    assert (policy["name"], policy["apply-to"], policy["priority"]) == ("p", "queues", 3)
    queue = operator.ask("GET", "queues", "/", "q")
    assert (queue["policy"], queue["operator_policy"]) == ("p", "o")
    assert queue["effective_policy_definition"] == {"max-length": 6}
    put(again, "q", b"new")
    assert drain(again, "q") == [b"15", b"16", b"17", b"18", b"19", b"new"]
    again.queue_declare("r")
    with pytest.raises(pika.exceptions.ChannelClosedByBroker, match="queue limit in vhost '/'"):
        again.queue_declare("s")
