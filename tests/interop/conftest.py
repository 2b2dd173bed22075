"""Connections and unique names for the conformance tests."""

from __future__ import annotations

import contextlib
import uuid
from collections.abc import Iterator
from typing import Any

import pika
import pytest
from helpers.amqp import Connect
from helpers.broker import Address
from helpers.raw import RawConnection
from pika.adapters.blocking_connection import BlockingChannel
from pika.exceptions import AMQPError


@pytest.fixture
def connect(broker: Address) -> Iterator[Connect]:
    """Opens pika connections; options are those of `pika.ConnectionParameters`."""
    opened: list[pika.BlockingConnection] = []

    def open_connection(
        user: str | None = None, password: str | None = None, **options: Any
    ) -> pika.BlockingConnection:
        login = pika.PlainCredentials(user or broker.user, password or broker.password)
        settings: dict[str, Any] = {
            "socket_timeout": 10,
            "blocked_connection_timeout": 30,
            **options,
        }
        connection = pika.BlockingConnection(
            pika.ConnectionParameters(broker.host, broker.port, credentials=login, **settings)
        )
        opened.append(connection)
        return connection

    yield open_connection
    for connection in opened:
        with contextlib.suppress(AMQPError):  # a test may have broken it on purpose
            connection.close()


@pytest.fixture
def connection(connect: Connect) -> pika.BlockingConnection:
    return connect()


@pytest.fixture
def channel(connection: pika.BlockingConnection) -> BlockingChannel:
    return connection.channel()


@pytest.fixture
def raw(broker: Address) -> Iterator[RawConnection]:
    """A TCP connection on which nothing has been said."""
    with RawConnection(broker) as opened:
        yield opened


@pytest.fixture
def name() -> str:
    """A name that no other test uses."""
    return f"t-{uuid.uuid4().hex[:12]}"


@pytest.fixture
def queue(channel: BlockingChannel, name: str) -> str:
    """A plain queue that goes with the test's connection."""
    channel.queue_declare(name, exclusive=True)
    return name
