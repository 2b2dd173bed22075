"""A consumer: who asked for the messages of a queue, on which channel, and how many it may hold.

Invariant: a consumer that acknowledges never holds more than `prefetch` messages (0 is no limit).
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from tidemark.broker.arguments import check_consumer_arguments
from tidemark.broker.core import Holder
from tidemark.model.runs import Taken
from tidemark.ports import Sink

if TYPE_CHECKING:
    from tidemark.broker.queue import Queue


@dataclass(frozen=True, slots=True)
class ConsumerStatistics:
    tag: str
    queue: str
    vhost: str
    no_ack: bool
    exclusive: bool
    priority: int
    prefetch: int
    unacked: int
    delivered: int
    active: bool
    arguments: Mapping[str, Any]


class Consumer(Holder):
    """One subscription of a channel to a queue."""

    queue: Queue

    def __init__(
        self,
        queue: Queue,
        sink: Sink,
        tag: str,
        *,
        no_ack: bool = False,
        exclusive: bool = False,
        arguments: Mapping[str, Any] | None = None,
        prefetch: int = 0,
    ) -> None:
        super().__init__(queue)
        self.sink = sink
        self.tag = tag
        self.no_ack = no_ack
        self.exclusive = exclusive
        self.arguments = dict(arguments or {})
        self.priority = check_consumer_arguments(queue.name, queue.spec.vhost, self.arguments)
        self.prefetch = prefetch
        self.active = False
        """Whether messages may come: it is subscribed, and not waiting behind a single active consumer."""
        self.delivered = 0

    @property
    def count_header(self) -> bool:
        """Whether redeliveries carry x-delivery-count."""
        return self.queue.count_header

    def room(self) -> int:
        """How many more messages it may be given now."""
        room = self.sink.room()
        if self.prefetch and not self.no_ack:
            return min(room, self.prefetch - self.unacked)
        return room

    def stir(self) -> None:
        """There may be room for it again."""
        self.queue.touch()

    def give(self, taken: Taken) -> None:
        """Hand over messages acquired for this consumer."""
        count = len(taken)
        self.delivered += count
        self.queue.delivered += count
        sent = self.sink.deliver(self, taken)
        if self.no_ack and sent:
            self.queue.delivered_no_ack += count
            self.queue.settle_taken(taken)
        elif self.no_ack:
            for index, *_ in taken:
                self.queue.requeue(taken.lane, index, False)

    def statistics(self) -> ConsumerStatistics:
        return ConsumerStatistics(
            tag=self.tag,
            queue=self.queue.name,
            vhost=self.queue.spec.vhost,
            no_ack=self.no_ack,
            exclusive=self.exclusive,
            priority=self.priority,
            prefetch=self.prefetch,
            unacked=self.unacked,
            delivered=self.delivered,
            active=self.active,
            arguments=self.arguments,
        )
