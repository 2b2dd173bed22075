"""Publishers and consumers of queues, and transactions over several of them.

Publishers use confirms and send again what was not confirmed. Consumers acknowledge one by one or many at once, give
some back, and close their channel now and then: when that is answered, their acknowledgements are safe. A mover takes
messages from one queue and publishes to two others, all in one transaction.

Invariant: every attempt to publish has a name of its own, so no message is taken for another.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from random import Random
from typing import Any

from tidemark.sim.cluster.books import Books, Copy, Subscription
from tidemark.sim.cluster.clients import AmqpClient
from tidemark.sim.cluster.world import World
from tidemark.sim.store import BrokenPromise
from tidemark.wire.amqp091 import methods
from tidemark.wire.amqp091.methods import Method


class Publisher(AmqpClient):
    """Sends to one exchange with one key; what is sent goes to `queues`."""

    def __init__(
        self, world: World, books: Books, name: str, exchange: str, key: str, queues: tuple[str, ...]
    ) -> None:
        super().__init__(world, name)
        self.books = books
        self.queues = queues
        self.unconfirmed: dict[int, int] = {}
        """How much each message carries beside its name."""
        self._exchange = exchange
        self._key = key
        self._number = 0
        self._tag = 0
        self._tags: dict[int, tuple[int, bytes]] = {}
        self.connect()

    def set_up(self) -> list[Method]:
        return [*wiring(self._exchange, self.queues), methods.ConfirmSelect()]

    def owed(self) -> bool:
        return not self.open or bool(self._tags)

    def lost(self) -> None:
        self._tags.clear()

    def ready(self) -> None:
        self._tag = 0
        self._tags.clear()
        if self.unconfirmed:
            self._transmit(list(self.unconfirmed))

    def send(self, sizes: list[int]) -> None:
        """New messages with so much in each."""
        numbers = list(range(self._number + 1, self._number + 1 + len(sizes)))
        self._number = numbers[-1]
        self.unconfirmed.update(zip(numbers, sizes, strict=True))
        if self.open:
            self._transmit(numbers)

    def _transmit(self, numbers: list[int]) -> None:
        messages = []
        for number in numbers:
            name = b"%s/%d/%d" % (self.name.encode(), number, self.attempt)
            body = name + b" " + bytes((number * 7 & 255,)) * self.unconfirmed[number]
            self.books.sent(self.queues_of(number), name, body)
            self._tag += 1
            self._tags[self._tag] = number, name
            messages.append((self._exchange, self.key_of(number), body))
        self.publish(messages)

    def key_of(self, number: int) -> str:  # noqa: ARG002
        """The routing key of a message."""
        return self._key

    def queues_of(self, number: int) -> tuple[str, ...]:  # noqa: ARG002
        """Where it goes."""
        return self.queues

    def on(self, method: Any) -> None:
        if isinstance(method, methods.BasicAck):
            tags = (
                [tag for tag in self._tags if tag <= method.delivery_tag]
                if method.multiple
                else [method.delivery_tag]
            )
            for tag in tags:
                number, name = self._tags.pop(tag)
                self.unconfirmed.pop(number, None)
                self.books.confirmed(self.queues_of(number), name)
        elif isinstance(method, methods.BasicNack):
            self.abandon()


class Consumer(AmqpClient):
    def __init__(self, world: World, books: Books, name: str, queue: str, prefetch: int) -> None:
        super().__init__(world, name)
        self.books = books
        self.queue = queue
        self._prefetch = prefetch
        self._subscription = Subscription()
        self._held: list[tuple[int, Copy]] = []
        self._acked: list[Copy] = []
        """What was acknowledged on this channel."""
        self._closing = False
        self._planned = False
        self.connect()

    def set_up(self) -> list[Method]:
        return [
            methods.QueueDeclare(queue=self.queue, durable=True),
            methods.BasicQos(prefetch_count=self._prefetch),
            methods.BasicConsume(queue=self.queue, consumer_tag=self.name),
        ]

    def owed(self) -> bool:
        return not self.open or self._closing

    def connected(self) -> None:
        self._subscription = Subscription()
        self._held, self._acked = [], []
        self._closing = False
        super().connected()

    def on_content(self, method: Any, body: bytes) -> None:
        copy = self.books.delivered(self.queue, body, method.redelivered, self._subscription)
        self._held.append((method.delivery_tag, copy))
        if not self._planned:
            self._planned = True
            self.world.timeline.after(self.dice.choice((200, 20_000, 60_000)), self._settle)

    def _settle(self) -> None:
        """Acknowledge some of what it has, or give it back."""
        self._planned = False
        if not self.open or self._closing or not self._held:
            return
        what = self.dice.random()
        if what < 0.1:
            # The last of what it has: the others are still there for those who get them.
            tag, _ = self._held.pop()
            self.say(methods.BasicReject(delivery_tag=tag, requeue=True))
        elif what < 0.6:
            count = self.dice.randint(1, len(self._held))
            self.say(methods.BasicAck(delivery_tag=self._held[count - 1][0], multiple=True))
            self._ended(self._held[:count])
            del self._held[:count]
        else:
            chosen = self._held.pop(self.dice.randrange(len(self._held)))
            self.say(methods.BasicAck(delivery_tag=chosen[0]))
            self._ended([chosen])
        if self._acked and self.dice.random() < 0.06:
            self._closing = True
            self.say(methods.ChannelClose(reply_code=200, reply_text="", class_id=0, method_id=0))
        elif self._held:
            self._planned = True
            self.world.timeline.after(self.dice.choice((200, 20_000, 60_000)), self._settle)

    def _ended(self, held: list[tuple[int, Copy]]) -> None:
        for _, copy in held:
            copy.acked = True
            self._acked.append(copy)

    def on(self, method: Any) -> None:
        if isinstance(method, methods.ChannelCloseOk) and self._closing:
            for copy in self._acked:
                copy.settled = True
            self.world.count("acks confirmed", len(self._acked))
            self.abandon()


@dataclass(slots=True)
class Transaction:
    taken: list[Copy]
    put: list[Copy]
    committed: bool = False


class Mover(AmqpClient):
    """Takes messages from one queue and publishes to others, in transactions."""

    def __init__(self, world: World, books: Books, name: str, source: str, targets: tuple[str, ...]) -> None:
        super().__init__(world, name)
        self.books = books
        self.transactions: list[Transaction] = []
        self._source = source
        self._targets = targets
        self._number = 0
        self._held: list[tuple[int, Copy]] = []
        self._pending: Transaction | None = None
        self._subscription = Subscription()
        self.connect()

    def set_up(self) -> list[Method]:
        return [
            *(methods.QueueDeclare(queue=queue, durable=True) for queue in (self._source, *self._targets)),
            methods.TxSelect(),
            methods.BasicQos(prefetch_count=6),
            methods.BasicConsume(queue=self._source, consumer_tag=self.name),
        ]

    def owed(self) -> bool:
        return not self.open or self._pending is not None

    def connected(self) -> None:
        self._subscription = Subscription()
        self._held, self._pending = [], None
        super().connected()

    def on_content(self, method: Any, body: bytes) -> None:
        copy = self.books.delivered(self._source, body, method.redelivered, self._subscription)
        self._held.append((method.delivery_tag, copy))
        if self._pending is None and len(self._held) >= self.dice.randint(1, 4):
            self.commit()

    def ready(self) -> None:
        self.commit()

    def commit(self) -> None:
        if self._pending is not None or not self._held or not self.open:
            return
        held, self._held = self._held, []
        put: list[Copy] = []
        messages = []
        for queue in self._targets:
            self._number += 1
            name = b"%s/%d/%d" % (self.name.encode(), self._number, self.attempt)
            body = name + b" " + bytes(self.dice.choice((5, 50, 2000)))
            self.books.sent((queue,), name, body)
            put.append(self.books.copies[queue, name])
            messages.append(("", queue, body))
        for _, copy in held:
            copy.acked = True
        self._pending = Transaction([copy for _, copy in held], put)
        self.transactions.append(self._pending)
        self.say(*(methods.BasicAck(delivery_tag=tag) for tag, _ in held))
        self.publish(messages)
        self.say(methods.TxCommit())

    def on(self, method: Any) -> None:
        if isinstance(method, methods.TxCommitOk) and self._pending is not None:
            done, self._pending = self._pending, None
            done.committed = True
            for copy in done.taken:
                copy.settled = True
            for copy in done.put:
                copy.confirmed = True
            self.world.count("transactions")
            self.commit()


def wiring(exchange: str, queues: tuple[str, ...]) -> list[Method]:
    """The queues, and the fan-out in front of them if there is one."""
    wanted: list[Method] = [methods.QueueDeclare(queue=queue, durable=True) for queue in queues]
    if exchange:
        wanted.append(methods.ExchangeDeclare(exchange=exchange, type="fanout", durable=True))
        wanted += [methods.QueueBind(queue=queue, exchange=exchange, routing_key="") for queue in queues]
    return wanted


@dataclass
class Queues:
    """Two queues and a fan-out over both."""

    world: World
    size: int
    books: Books = field(default_factory=Books)

    def __post_init__(self) -> None:
        world, books = self.world, self.books
        self.publishers = [
            Publisher(world, books, "p0", "", "q0", ("q0",)),
            Publisher(world, books, "p1", "fan", "", ("q0", "q1")),
        ]
        self.consumers = [Consumer(world, books, "c0", "q0", 20), Consumer(world, books, "c1", "q1", 3)]
        if world.dice.random() < 0.3:
            self.consumers.append(Consumer(world, books, "c2", "q0", 5))
        self.actions = {"publish": (10, self.publish)}
        self.queues = ("q0", "q1")

    def publish(self, dice: Random) -> None:
        sizes = [dice.randrange(self.size) for _ in range(dice.choice((1, 1, 3, 8)))]
        dice.choice(self.publishers).send(sizes)

    def waiting(self) -> str | None:
        """What it still waits for when nothing goes wrong any more; None: nothing."""
        for publisher in self.publishers:
            if publisher.unconfirmed:
                return f"{publisher.name} has {len(publisher.unconfirmed)} unconfirmed messages"
        return None

    def leave(self) -> None:
        for client in (*self.publishers, *self.consumers):
            client.leave()

    def check(self, contents: dict[str, list[bytes]]) -> None:
        check_queues(self.books, self.queues, contents)


def check_queues(
    books: Books, queues: tuple[str, ...], contents: dict[str, list[bytes]]
) -> dict[str, set[bytes]]:
    """What is left in these queues is what must be. Returns the names of it."""
    names: dict[str, set[bytes]] = {}
    for queue in queues:
        found = names[queue] = set()
        for body in contents.get(queue, ()):
            copy = books.look(queue, body)
            if copy.name in found:
                raise BrokenPromise(f"{queue} has {copy.name!r} twice")
            found.add(copy.name)
        missing = books.missing(queue, found)
        if missing:
            raise BrokenPromise(
                f"{queue} has lost {missing[:5]}, {len(missing)} in all, which were confirmed"
            )
    return names


@dataclass
class Transactions:
    world: World
    size: int
    books: Books = field(default_factory=Books)

    def __post_init__(self) -> None:
        world, books = self.world, self.books
        self.feeder = Publisher(world, books, "feeder", "", "from", ("from",))
        self.mover = Mover(world, books, "mover", "from", ("to0", "to1"))
        self.actions = {"feed": (6, self.feed)}
        self.queues = ("from", "to0", "to1")

    def feed(self, dice: Random) -> None:
        self.feeder.send([dice.randrange(self.size) for _ in range(dice.choice((1, 3)))])

    def waiting(self) -> str | None:
        if self.feeder.unconfirmed:
            return f"feeder has {len(self.feeder.unconfirmed)} unconfirmed messages"
        return "mover waits for a commit" if self.mover.owed() else None

    def leave(self) -> None:
        self.feeder.leave()
        self.mover.leave()

    def check(self, contents: dict[str, list[bytes]]) -> None:
        names = check_queues(self.books, self.queues, contents)
        moved: set[bytes] = set()
        unknown = []
        for transaction in self.mover.transactions:
            there = [copy.name in names[copy.queue] for copy in transaction.put]
            if any(there) != all(there):
                raise BrokenPromise(f"a transaction was cut in two: of {transaction.put} there is {there}")
            if all(there):
                again = [copy.name for copy in transaction.taken if copy.name in names["from"]]
                if again:
                    raise BrokenPromise(f"{again} were moved and are still there")
                moved.update(copy.name for copy in transaction.taken)
            else:
                unknown.append(transaction)
        for transaction in unknown:
            for copy in transaction.taken:
                if copy.confirmed and copy.name not in names["from"] and copy.name not in moved:
                    raise BrokenPromise(
                        f"{copy.name!r} was taken by a transaction that is not there, and is lost"
                    )
