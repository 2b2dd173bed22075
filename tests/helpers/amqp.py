"""Small conveniences over pika for tests: an inbox, expected refusals, waiting for a condition."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

import pika
import pytest
from pika.adapters.blocking_connection import BlockingChannel
from pika.exceptions import ChannelClosedByBroker, ConnectionClosedByBroker
from pika.spec import Basic, BasicProperties

Connect = Callable[..., pika.BlockingConnection]

PATIENCE_S = 30.0
QUIET_S = 0.15


def eventually(condition: Callable[[], Any], timeout_s: float = PATIENCE_S) -> Any:
    """Ask until the answer is true; the answer."""
    deadline = time.monotonic() + timeout_s
    while True:
        if answer := condition():
            return answer
        assert time.monotonic() < deadline, f"it did not become true in {timeout_s} s"
        time.sleep(0.02)


@dataclass(frozen=True, slots=True)
class Delivery:
    method: Basic.Deliver
    properties: BasicProperties
    body: bytes

    @property
    def tag(self) -> int:
        return int(self.method.delivery_tag)

    @property
    def redelivered(self) -> bool:
        return bool(self.method.redelivered)


class Inbox:
    """A consumer and what it has received so far, in order."""

    def __init__(self, channel: BlockingChannel, queue: str, **options: Any) -> None:
        self.channel = channel
        self.received: list[Delivery] = []
        self.tag = channel.basic_consume(queue, self._take, **options)

    def _take(
        self,
        _channel: BlockingChannel,
        method: Basic.Deliver,
        properties: BasicProperties,
        body: bytes,
    ) -> None:
        self.received.append(Delivery(method, properties, body))

    @property
    def bodies(self) -> list[bytes]:
        return [delivery.body for delivery in self.received]

    def wait(self, count: int, timeout_s: float = PATIENCE_S) -> list[Delivery]:
        """Wait until `count` messages in all have come; all that has come."""
        deadline = time.monotonic() + timeout_s
        while len(self.received) < count:
            assert time.monotonic() < deadline, f"{len(self.received)} of {count} messages came"
            self.channel.connection.process_data_events(0.05)
        return self.received

    def settle(self, quiet_s: float = QUIET_S) -> list[bytes]:
        """Listen until nothing has come for a while; all bodies so far."""
        deadline = time.monotonic() + quiet_s
        while time.monotonic() < deadline:
            before = len(self.received)
            self.channel.connection.process_data_events(0.02)
            if len(self.received) != before:
                deadline = time.monotonic() + quiet_s
        return self.bodies


def sync(channel: BlockingChannel) -> None:
    """One round trip: the server has handled what this channel sent before."""
    channel.exchange_declare("amq.direct", passive=True)


def depth(channel: BlockingChannel, queue: str) -> int:
    """How many messages are ready in the queue."""
    return int(channel.queue_declare(queue, passive=True).method.message_count)


def put(channel: BlockingChannel, queue: str, *bodies: bytes, **properties: Any) -> None:
    """Publish through the default exchange, one message for each body."""
    for body in bodies:
        channel.basic_publish("", queue, body, BasicProperties(**properties))


def drain(channel: BlockingChannel, queue: str) -> list[bytes]:
    """Take everything that is ready; the bodies in order."""
    return [body for _, _, body in drain_messages(channel, queue)]


def drain_messages(channel: BlockingChannel, queue: str) -> list[tuple[Basic.GetOk, BasicProperties, bytes]]:
    taken: list[tuple[Basic.GetOk, BasicProperties, bytes]] = []
    while True:
        method, properties, body = channel.basic_get(queue, auto_ack=True)
        if method is None:
            return taken
        taken.append((method, properties, body))


def get_one(
    channel: BlockingChannel, queue: str, timeout_s: float = PATIENCE_S, *, auto_ack: bool = True
) -> tuple[Basic.GetOk, BasicProperties, bytes]:
    """The next message of the queue, waited for."""

    def attempt() -> Any:
        found = channel.basic_get(queue, auto_ack=auto_ack)
        return None if found[0] is None else found

    found: tuple[Basic.GetOk, BasicProperties, bytes] = eventually(attempt, timeout_s)
    return found


@contextmanager
def channel_refused(code: int) -> Iterator[None]:
    """What happens inside makes the server close the channel with this code."""
    with pytest.raises(ChannelClosedByBroker) as caught:
        yield
    assert caught.value.reply_code == code, caught.value


@contextmanager
def connection_refused(code: int) -> Iterator[None]:
    """What happens inside makes the server close the connection with this code."""
    with pytest.raises(ConnectionClosedByBroker) as caught:
        yield
    assert caught.value.reply_code == code, caught.value
