"""Limits that protect a broker, as clients meet them; those that RabbitMQ has are checked against it, too."""

from __future__ import annotations

import os
import time
from collections.abc import Callable, Iterator

import pika
import pytest
from helpers.amqp import Connect, connection_refused, depth, eventually, put
from helpers.broker import Address, BrokerProcess
from helpers.operator import Operator, TidemarkOperator, an_operator
from pika.adapters.blocking_connection import BlockingChannel
from pika.exceptions import AMQPConnectionError, AMQPError

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
    return operator.address


def refusal(open_it: Callable[[], object]) -> str:
    """What the broker says when it will not have it, as pika tells it: (code) and text."""
    with pytest.raises(AMQPError) as refused:
        open_it()
    return str(refused.value).removeprefix("ConnectionClosedByBroker: ").replace('"', "'")


def test_a_virtual_host_takes_so_many_connections(operator: Operator, connect: Connect, name: str) -> None:
    operator.add_vhost(name)
    operator.set_vhost_limits(name, {"max-connections": 1})
    first = connect(virtual_host=name)
    assert refusal(lambda: connect(virtual_host=name)) == (
        f"(530) 'NOT_ALLOWED - access to vhost '{name}' refused for user 'guest': connection limit (1) is reached'"
    )
    first.close()
    eventually(lambda: connect(virtual_host=name).is_open)


def test_a_virtual_host_takes_so_many_queues(operator: Operator, connect: Connect, name: str) -> None:
    operator.add_vhost(name)
    operator.set_vhost_limits(name, {"max-queues": 1})
    channel = connect(virtual_host=name).channel()
    channel.queue_declare("a")
    channel.queue_declare("a")
    assert refusal(lambda: channel.queue_declare("b")) == (
        f"(406, 'PRECONDITION_FAILED - cannot declare queue 'b': queue limit in vhost '{name}' (1) is reached')"
    )


def test_a_user_takes_so_many_connections_and_channels(
    operator: Operator, connect: Connect, name: str
) -> None:
    operator.add_user(name, "secret")
    operator.set_user_limits(name, {"max-connections": 1, "max-channels": 2})
    connection = connect(name, "secret")
    assert refusal(lambda: connect(name, "secret")) == (
        f"(530) 'NOT_ALLOWED - connection refused for user '{name}': user connection limit (1) is reached'"
    )
    connection.channel()
    connection.channel()
    assert refusal(connection.channel) == (
        f"(530, 'NOT_ALLOWED - number of channels opened for user '{name}' has reached the maximum allowed user "
        "limit of (2)')"
    )


@pytest.mark.usefixtures("tidemark_only")
def test_a_message_that_is_held_too_long_costs_the_channel_and_comes_back(
    operator: Operator, connection: pika.BlockingConnection, channel: BlockingChannel, name: str
) -> None:
    channel.queue_declare(name)
    put(channel, name, b"1", b"2")
    operator.set_policy(name, f"^{name}$", {"consumer-timeout": 1500})
    holder = connection.channel()
    assert holder.basic_get(name)[2] == b"1"
    began = time.monotonic()
    while holder.is_open:
        connection.process_data_events(0.2)
        assert time.monotonic() - began < 10
    assert time.monotonic() - began > 1.4
    assert depth(channel, name) == 2
    method, _, body = channel.basic_get(name, auto_ack=True)
    assert (body, method.redelivered) == (b"1", True)
    operator.clear_policy(name)
    channel.queue_delete(name)


@pytest.mark.usefixtures("tidemark_only")
def test_wrong_passwords_make_the_next_try_wait_and_others_not(
    start_broker: Callable[..., BrokerProcess],
) -> None:
    broker = start_broker("--limits.login-failures-max", "3", "--limits.login-wait-s-max", "2")
    TidemarkOperator(broker.address, broker.admin).add_user("ada", "secret")

    def log_in(user: str, password: str) -> None:
        login = pika.PlainCredentials(user, password)
        host, port = broker.address.host, broker.address.port
        pika.BlockingConnection(pika.ConnectionParameters(host, port, credentials=login)).close()

    for _ in range(3):
        with pytest.raises(AMQPConnectionError):
            log_in("ada", "wrong")
    with pytest.raises(AMQPConnectionError):
        log_in("ada", "secret")
    log_in("guest", "guest")
    time.sleep(1.1)
    log_in("ada", "secret")
    assert "too many failed logins of user 'ada'" in broker.log_path.read_text()


@pytest.mark.usefixtures("tidemark_only")
def test_connections_from_one_address_come_no_faster_than_they_may(
    start_broker: Callable[..., BrokerProcess],
) -> None:
    broker = start_broker("--limits.address-connections-per-s-max", "5")
    url = pika.URLParameters(broker.address.url())
    opened = refused = 0
    for _ in range(30):
        try:
            pika.BlockingConnection(url).close()
            opened += 1
        except AMQPConnectionError:
            refused += 1
    assert refused > 5
    assert opened >= 5
    time.sleep(1)
    pika.BlockingConnection(url).close()


@pytest.mark.usefixtures("tidemark_only")
def test_a_connection_opens_channels_no_faster_than_it_may(
    start_broker: Callable[..., BrokerProcess],
) -> None:
    broker = start_broker("--amqp091.channels-per-s-max", "10")
    connection = pika.BlockingConnection(pika.URLParameters(broker.address.url()))
    with connection_refused(530):
        for _ in range(50):
            connection.channel()
