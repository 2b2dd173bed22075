"""py-amqp, the library under kombu and Celery, used directly."""

from __future__ import annotations

from collections.abc import Iterator

import amqp
import pytest
from amqp.exceptions import AccessRefused, NotFound, PreconditionFailed
from helpers.broker import Address


def connected(broker: Address, password: str = "guest", **options: object) -> amqp.Connection:
    connection = amqp.Connection(
        f"{broker.host}:{broker.port}", broker.user, password, connect_timeout=5, **options
    )
    connection.connect()
    return connection


@pytest.fixture
def connection(broker: Address) -> Iterator[amqp.Connection]:
    with connected(broker, confirm_publish=True) as opened:
        yield opened


def test_publish_with_confirms_and_consume(connection: amqp.Connection, name: str) -> None:
    channel = connection.channel()
    channel.queue_declare(name, exclusive=True)
    received: list[str] = []

    def take(message: amqp.Message) -> None:
        received.append(message.body)
        channel.basic_ack(message.delivery_tag)

    channel.basic_qos(0, 5, False)
    channel.basic_consume(name, callback=take)
    for number in range(20):
        message = amqp.Message(str(number), delivery_mode=2, application_headers={"n": number})
        channel.basic_publish_confirm(message, routing_key=name)
    while len(received) < 20:
        connection.drain_events(timeout=5)
    assert received == [str(number) for number in range(20)]


def test_get_and_headers(connection: amqp.Connection, name: str) -> None:
    channel = connection.channel()
    channel.queue_declare(name, exclusive=True)
    channel.basic_publish(
        amqp.Message("x", application_headers={"list": [1, "a"], "none": None}), routing_key=name
    )
    message = channel.basic_get(name, no_ack=True)
    assert message.headers == {"list": [1, "a"], "none": None}
    assert channel.basic_get(name) is None


def test_channel_errors_are_told_apart(connection: amqp.Connection, name: str) -> None:
    with pytest.raises(NotFound):
        connection.channel().queue_declare(name, passive=True)
    connection.channel().queue_declare(name, exclusive=True, auto_delete=False)
    with pytest.raises(PreconditionFailed):
        connection.channel().queue_declare(
            name, exclusive=True, auto_delete=False, arguments={"x-max-length": 1}
        )
    assert connection.connected


def test_transactions(connection: amqp.Connection, broker: Address, name: str) -> None:
    with connected(broker) as plain:
        channel = plain.channel()
        channel.queue_declare(name, exclusive=True)
        channel.tx_select()
        channel.basic_publish(amqp.Message("undone"), routing_key=name)
        channel.tx_rollback()
        channel.basic_publish(amqp.Message("kept"), routing_key=name)
        channel.tx_commit()
        assert channel.basic_get(name, no_ack=True).body == "kept"
        assert channel.basic_get(name, no_ack=True) is None


@pytest.mark.parametrize("method", ["PLAIN", "AMQPLAIN"])
def test_both_password_mechanisms_log_in(broker: Address, method: str) -> None:
    with connected(broker, login_method=method) as connection:
        assert connection.connected


def test_a_wrong_password_is_access_refused(broker: Address) -> None:
    with pytest.raises(AccessRefused):
        connected(broker, password="wrong")
