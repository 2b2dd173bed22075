"""A channel without a connection, for tests of the broker: it publishes, gets deliveries and settles them."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from tidemark.broker import settlement
from tidemark.broker.broker import Broker
from tidemark.broker.consumer import Consumer
from tidemark.broker.core import Holder, Unacked
from tidemark.broker.publishing import Published
from tidemark.broker.queue import Queue
from tidemark.broker.session import Session
from tidemark.model.records import Message, Reason, RecordType
from tidemark.model.runs import MANDATORY, PublishRun, Taken
from tidemark.wire.amqp091.properties import Properties, decode_properties, encode_properties


@dataclass(slots=True)
class Delivery:
    tag: int
    body: bytes
    consumer: str
    redelivered: bool
    deliveries: int
    message: Message

    @property
    def headers(self) -> dict[str, Any]:
        return decode_properties(self.message.properties).headers or {}

    @property
    def properties(self) -> Properties:
        return decode_properties(self.message.properties)


class TestChannel:
    """One channel of a session. `room` is how many messages it may be given; an ack gives room back."""

    __test__ = False

    def __init__(self, session: Session, room: int = 1 << 30) -> None:
        self.session = session
        self.broker: Broker = session.broker
        self.left = room
        self.unacked = Unacked()
        self.publishing = session.publishing(self)
        self.deliveries: list[Delivery] = []
        self.gifts: list[int] = []
        self.cancellations: list[str] = []
        self._getters: dict[Queue, Holder] = {}

    # A sink -------------------------------------------------------------------------------

    def room(self) -> int:
        return self.left

    def deliver(self, consumer: Consumer, taken: Taken) -> bool:
        first = self.unacked.skip(len(taken)) if consumer.no_ack else self.unacked.add(consumer, taken)
        self.left -= len(taken)
        self.gifts.append(len(taken))
        self.deliveries += self._described(taken, first, consumer.tag)
        return True

    def cancelled(self, consumer: Consumer) -> None:
        self.cancellations.append(consumer.tag)

    def _described(self, taken: Taken, first: int, consumer: str) -> list[Delivery]:
        found = []
        for offset, (_, _, loc, _, flags, deliveries) in enumerate(taken):
            message = self.broker.arena.message(loc)
            found.append(
                Delivery(first + offset, message.body, consumer, bool(flags & 1), deliveries, message)
            )
        return found

    # What a client does ---------------------------------------------------------------------

    def publish(
        self, key: str, *bodies: bytes, exchange: str = "", mandatory: bool = False, **properties: Any
    ) -> Published:
        """Publish these in one run, as one socket read would bring them."""
        run = self.a_run(key, *bodies, exchange=exchange, mandatory=mandatory, **properties)
        return self.publishing.publish(run, self.broker.now_ms)

    def a_run(
        self, key: str, *bodies: bytes, exchange: str = "", mandatory: bool = False, **properties: Any
    ) -> PublishRun:
        raw = encode_properties(Properties(**properties))
        flags, priority, ttl_ms = self.broker.content.describe(raw)
        names = exchange.encode(), key.encode(), raw
        run = PublishRun(1, b"".join((*names, *bodies)))
        start, spans = 0, []
        for part in names:
            spans.append((start, len(part)))
            start += len(part)
        for body in bodies:
            flags_here = flags | (MANDATORY if mandatory else 0)
            run.add(spans[0], spans[1], spans[2], (start, len(body)), flags_here, priority, ttl_ms)
            start += len(body)
        return run

    def consume(self, queue: str, tag: str = "c", **options: Any) -> Consumer:
        return self.session.consume(self, queue, tag, **options)

    def get(self, queue: str, no_ack: bool = False) -> Delivery | None:
        where, taken, _ = self.session.get(queue)
        if taken is None:
            return None
        if no_ack:
            [delivery] = self._described(taken, self.unacked.skip(1), "")
            where.settle_taken(taken)
            return delivery
        holder = self._getters.setdefault(where, Holder(where))
        [delivery] = self._described(taken, self.unacked.add(holder, taken), "")
        return delivery

    def ack(self, first: int, last: int | None = None) -> int:
        last = first if last is None else last
        count = self.unacked.accept(first, last)
        self.left += count
        return count

    def nack(self, first: int, last: int | None = None, *, requeue: bool = True) -> None:
        popped = self.unacked.pop(first, first if last is None else last)
        self.left += len(popped)
        if requeue:
            settlement.requeue(popped)
        else:
            settlement.reject(popped, self.broker.now_ms)

    def turn(self, passing_ms: int = 0) -> None:
        """The end of a turn; before it so much time passes as one that waits would see."""
        if passing_ms:
            self.broker.turn(self.broker.now_ms + passing_ms)
        self.broker.turn(self.broker.now_ms)

    # What is then true ----------------------------------------------------------------------

    @property
    def bodies(self) -> list[bytes]:
        return [delivery.body for delivery in self.deliveries]

    def drain(self, queue: str) -> list[bytes]:
        found = []
        while (delivery := self.get(queue, no_ack=True)) is not None:
            found.append(delivery.body)
        return found

    def settled(self) -> list[tuple[int, Reason, list[int]]]:
        """What the journal was told about messages that ended: (queue, reason, sequences)."""
        found = []
        for event in self.broker.journal.told:
            if event[0] == RecordType.SETTLED:
                _, queue, reason, packed, ranges = event
                numbers = [int.from_bytes(packed[i : i + 8], "little") for i in range(0, len(packed), 8)]
                if ranges:
                    pairs = zip(numbers[::2], numbers[1::2], strict=True)
                    numbers = [seq for first, count in pairs for seq in range(first, first + count)]
                found.append((queue, reason, numbers))
        return found


def a_channel(broker: Broker, *, room: int = 1 << 30, user: str = "guest") -> TestChannel:
    broker.now_ms = broker.now_ms or 1_000_000
    return TestChannel(broker.open_session("/", user, None, "test"), room)
