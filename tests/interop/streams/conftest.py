"""Streams that go with their test, and brokers that are restarted."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator
from typing import Any

import pika
import pytest
from helpers.amqp import Connect
from helpers.broker import BrokerProcess
from interop.streams.harness import Declare, declare, opened
from pika.adapters.blocking_connection import BlockingChannel
from pika.exceptions import AMQPError


@pytest.fixture
def channel(connection: pika.BlockingConnection) -> BlockingChannel:
    """A confirming channel: after a publish the message is there to be read."""
    channel = connection.channel()
    channel.confirm_delivery()
    return channel


@pytest.fixture
def new_stream(channel: BlockingChannel, name: str, connect: Connect) -> Iterator[Declare]:
    """Declares streams of the test's name with arguments; they go with the test."""
    declared = []

    def make(suffix: str = "", **arguments: Any) -> str:
        declared.append(name + suffix)
        return declare(channel, name + suffix, **arguments)

    yield make
    cleaner = connect().channel()
    for each in declared:
        cleaner.queue_delete(each)


@pytest.fixture
def stream(new_stream: Declare) -> str:
    """A stream without keys."""
    return new_stream()


@pytest.fixture(params=["killed", "stopped"])
def restart(request: pytest.FixtureRequest, own_broker: BrokerProcess) -> Callable[[], BlockingChannel]:
    """Ends the broker in this way, starts it again and opens a new channel."""

    def end_and_start() -> BlockingChannel:
        if request.param == "killed":
            own_broker.kill()
        else:
            own_broker.stop()
        return opened(own_broker.start())

    return end_and_start


@pytest.fixture
def own_channel(own_broker: BrokerProcess) -> Iterator[BlockingChannel]:
    channel = opened(own_broker)
    yield channel
    with contextlib.suppress(AMQPError):  # the broker it was on is gone
        channel.connection.close()
