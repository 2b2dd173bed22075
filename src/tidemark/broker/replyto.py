"""Direct reply-to: answers without a queue that anybody declared.

A channel that consumes from the pseudo-queue `amq.rabbitmq.reply-to` gets a private queue under that name and
a token that nobody can guess. Its requests go out with reply-to rewritten to that name; whoever answers
publishes to the default exchange with it as the key. The private queue is in no virtual host's list, holds
nothing on disk and ends with its one consumer.

Invariant: a channel has at most one of them, and a route to it is alive exactly as long as it is.
"""

from __future__ import annotations

import base64
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from tidemark.broker.consumer import Consumer
from tidemark.broker.core import Route
from tidemark.broker.queue import Queue
from tidemark.errors import PreconditionFailed
from tidemark.model.wiring import QueueSpec
from tidemark.ports import Sink

if TYPE_CHECKING:
    from tidemark.broker.broker import Broker

NAME = "amq.rabbitmq.reply-to"
PREFIX = NAME + "."
RAW_PREFIX = PREFIX.encode()

LAST_NUMBER = (1 << 32) - 1
"""Private queues are numbered downwards from here; declared ones never come this far."""


class ReplyQueue(Queue):
    """The private queue of one channel."""

    def __init__(self, spec: QueueSpec, broker: Broker, sink: Sink) -> None:
        super().__init__(spec, broker)
        self.sink = sink
        self.route = Route((self,), True)

    def remove_consumer(self, consumer: Consumer) -> None:
        super().remove_consumer(consumer)
        self.broker.replies.close(self)


class Replies:
    """All private queues of a broker."""

    def __init__(self, broker: Broker) -> None:
        self._broker = broker
        self._by_name: dict[str, ReplyQueue] = {}
        self._by_sink: dict[int, ReplyQueue] = {}
        self.by_number: dict[int, ReplyQueue] = {}
        self._next_number = LAST_NUMBER

    def open(
        self,
        vhost: str,
        sink: Sink,
        tag: str,
        *,
        no_ack: bool,
        arguments: Mapping[str, Any] | None = None,
    ) -> Consumer:
        """Start to consume from the pseudo-queue.

        Raises:
            PreconditionFailed: with acknowledgements, or twice on one channel.
        """
        if not no_ack:
            raise PreconditionFailed(reason="reply consumer cannot acknowledge")
        if id(sink) in self._by_sink:
            raise PreconditionFailed(reason="reply consumer already set")
        token = base64.urlsafe_b64encode(self._broker.entropy(18)).decode()
        spec = QueueSpec(vhost, PREFIX + token, exclusive=True, number=self._next_number)
        queue = ReplyQueue(spec, self._broker, sink)
        consumer = Consumer(queue, sink, tag, no_ack=True, arguments=arguments)
        queue.add_consumer(consumer)
        self._next_number -= 1
        self._by_name[queue.name] = queue
        self._by_sink[id(sink)] = queue
        self.by_number[queue.number] = queue
        return consumer

    def close(self, queue: ReplyQueue) -> None:
        if self._by_name.pop(queue.name, None) is None:
            return
        del self._by_sink[id(queue.sink)]
        del self.by_number[queue.number]
        queue.route.alive = False
        self._broker.changed.add(queue)
        queue.delete()

    def exists(self, name: str) -> bool:
        """Whether a reply to this name would reach somebody."""
        return name in self._by_name

    def by_name(self, name: str, vhost: str) -> ReplyQueue | None:
        """The private queue of this name, while it is there."""
        queue = self._by_name.get(name)
        return queue if queue is not None and queue.spec.vhost == vhost else None

    def name_for(self, sink: Sink) -> str:
        """What replies to this channel must be addressed to.

        Raises:
            PreconditionFailed: it does not consume from the pseudo-queue.
        """
        queue = self._by_sink.get(id(sink))
        if queue is None:
            raise PreconditionFailed(reason="fast reply consumer does not exist")
        return queue.name

    def route(self, key: bytes, vhost: str) -> Route:
        """The way of a reply; one without queues, and not to be kept, if its receiver is gone."""
        queue = self.by_name(key.decode("utf-8", "surrogateescape"), vhost)
        if queue is not None:
            return queue.route
        nowhere = Route((), False)
        nowhere.alive = False
        return nowhere
