"""What tests of streams over AMQP do again and again: declaring, publishing under keys, reading."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pika
from helpers.amqp import Inbox
from helpers.broker import BrokerProcess
from pika.adapters.blocking_connection import BlockingChannel

FIRST = {"x-stream-offset": "first"}
Declare = Callable[..., str]


def declare(channel: BlockingChannel, stream: str, **arguments: Any) -> str:
    """Declare a stream; `key="routing-key"` is x-stream-key, and so on."""
    settings = {"x-queue-type": "stream"}
    for argument, value in arguments.items():
        prefix = "x-" if argument.startswith(("max_", "queue_", "initial_")) else "x-stream-"
        settings[prefix + argument.replace("_", "-")] = value
    channel.queue_declare(stream, durable=True, arguments=settings)
    return stream


def opened(process: BrokerProcess) -> BlockingChannel:
    address = process.address
    channel = pika.BlockingConnection(
        pika.ConnectionParameters(address.host, address.port, socket_timeout=10)
    ).channel()
    channel.confirm_delivery()
    return channel


def reading(
    channel: BlockingChannel, stream: str, *, prefetch: int = 100, tag: str = "", **arguments: Any
) -> Inbox:
    """A consumer of the stream, from its first message on unless it says otherwise."""
    channel.basic_qos(prefetch_count=prefetch)
    settings = {"x-stream-offset": "first"}
    settings |= {"x-stream-" + name.replace("_", "-"): value for name, value in arguments.items()}
    options: dict[str, Any] = {"consumer_tag": tag} if tag else {}
    return Inbox(channel, stream, arguments=settings, **options)


def put_keyed(channel: BlockingChannel, stream: str, key: str, body: bytes, **headers: Any) -> None:
    """Publish under a key to a stream that is keyed by the header `key`."""
    channel.basic_publish("", stream, body, pika.BasicProperties(headers={"key": key, **headers}))


def delete_key(channel: BlockingChannel, stream: str, key: str) -> None:
    put_keyed(channel, stream, key, b"", **{"x-tombstone": True})


def contents(inbox: Inbox) -> dict[str, bytes]:
    """What a reader of a keyed stream knows after all that it received."""
    known: dict[str, bytes] = {}
    for delivery in inbox.received:
        headers = delivery.properties.headers
        if "x-stream-key" not in headers:
            continue
        if headers.get("x-tombstone"):
            known.pop(headers["x-stream-key"], None)
        else:
            known[headers["x-stream-key"]] = delivery.body
    return known


def markers(inbox: Inbox) -> list[dict[str, Any]]:
    found = [delivery.properties.headers for delivery in inbox.received]
    return [headers for headers in found if headers.get("x-stream-marker")]
