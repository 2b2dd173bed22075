"""What clients do through fronts, and at main's own port: kinds of work that are mixed by the seed.

* `spread`: publishers through fronts to queues of several groups at once; consumers of all of them on one channel.
* `moved`: publishers at main's own port, to queues that live elsewhere.
* `piled`: one publisher at main's own port, to a queue that lives elsewhere and that nobody takes from.
* `tight`: letters for a queue that refuses what it has no room for.
* `letters`: a consumer that rejects what it does not want; the letters cross groups.
* `keyed`: versions of keys in partitioned streams, through one front or through main's own port.
* `churn`: queues of other groups that come and go, with what is in them.
* `rivals`: clients of different fronts declare, fill and delete the same queues of another group at the same time.
* `fresh`: one client binds through one front, another publishes through another as soon as the first was told.

Invariant: every attempt to publish has a name of its own, so no message is taken for another.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from itertools import pairwise
from random import Random
from typing import Any

from tidemark.model.wiring import MAIN
from tidemark.sim.cluster.books import Books, Copy, Register, Subscription
from tidemark.sim.cluster.clients import PERSISTENT, AmqpClient
from tidemark.sim.cluster.work_queues import Consumer, Publisher
from tidemark.sim.cluster.work_wiring import NAMES, Wirer
from tidemark.sim.fronts.books import ChurnBooks, LetterBooks, MovedBooks
from tidemark.sim.fronts.world import FRONTS, FrontsWorld
from tidemark.sim.store import BrokenPromise
from tidemark.wire.amqp091 import methods
from tidemark.wire.amqp091.frames import encode_content
from tidemark.wire.amqp091.methods import Method, encode_method

TIGHT_MAX = 8
"""How often `tight` publishes: it takes a second until what was refused is tried again."""


@dataclass(slots=True)
class Found:
    """What the leaders hold when all is quiet."""

    queues: dict[str, dict[str, list[bytes]]]
    """By group and queue: bodies."""
    streams: dict[str, dict[bytes, bytes]]
    """By stream: the newest value of each key."""

    def at(self, queue: str) -> list[bytes]:
        return [body for queues in self.queues.values() for body in queues.get(queue, ())]


def queue(name: str, group: str = MAIN, **arguments: Any) -> Method:
    arguments = {word.replace("_", "-"): value for word, value in arguments.items()}
    if group != MAIN:
        arguments["x-group"] = group
    return methods.QueueDeclare(queue=name, durable=True, arguments=arguments)


def exchange(name: str, kind: str, **arguments: Any) -> Method:
    arguments = {word.replace("_", "-"): value for word, value in arguments.items()}
    return methods.ExchangeDeclare(exchange=name, type=kind, durable=True, arguments=arguments)


def bound(queue: str, exchange: str, key: str = "") -> Method:
    return methods.QueueBind(queue=queue, exchange=exchange, routing_key=key)


class Sender(Publisher):
    """A publisher that makes everything that it needs each time it comes."""

    def __init__(
        self,
        world: FrontsWorld,
        books: Books,
        name: str,
        exchange: str,
        key: str,
        queues: tuple[str, ...],
        wiring: list[Method],
    ) -> None:
        self._wiring = wiring
        super().__init__(world, books, name, exchange, key, queues)

    def set_up(self) -> list[Method]:
        return [*self._wiring, methods.ConfirmSelect()]


class Mixer(Sender):
    """Each of its messages goes another way than the one before."""

    def __init__(
        self,
        world: FrontsWorld,
        books: Books,
        name: str,
        exchange: str,
        ways: dict[str, tuple[str, ...]],
        wiring: list[Method],
    ) -> None:
        """`ways`: the queues that each routing key leads to."""
        self._ways = ways
        super().__init__(world, books, name, exchange, "", (), wiring)

    def key_of(self, number: int) -> str:
        return list(self._ways)[number * 5 % 7 % len(self._ways)]

    def queues_of(self, number: int) -> tuple[str, ...]:
        return self._ways[self.key_of(number)]


class Taker(Consumer):
    """Consumes from several queues on one channel."""

    def __init__(
        self,
        world: FrontsWorld,
        books: Books,
        name: str,
        queues: tuple[str, ...],
        prefetch: int,
        wiring: list[Method],
    ) -> None:
        self._queues = queues
        self._wiring = wiring
        self._subscriptions = {queue: Subscription() for queue in queues}
        super().__init__(world, books, name, queues[0], prefetch)

    def set_up(self) -> list[Method]:
        return [
            *self._wiring,
            methods.BasicQos(prefetch_count=self._prefetch),
            *(methods.BasicConsume(queue=queue, consumer_tag=queue) for queue in self._queues),
        ]

    def connected(self) -> None:
        self._subscriptions = {queue: Subscription() for queue in self._queues}
        super().connected()

    def ready(self) -> None:
        # What came before the last queue was consumed from was not settled.
        self._settle()

    def on_content(self, method: Any, body: bytes) -> None:
        self.queue = method.consumer_tag
        self._subscription = self._subscriptions[self.queue]
        super().on_content(method, body)


class Work:
    """Publishers, consumers, and the books about them."""

    def __init__(self, world: FrontsWorld, size: int) -> None:
        self.world = world
        self.size = size
        self.books: Books = MovedBooks(world=world)
        self.publishers: list[Publisher] = []
        self.others: list[AmqpClient] = []
        self.queues: tuple[str, ...] = ()
        self.actions: dict[str, tuple[int, Callable[[Random], None]]] = {"publish": (10, self.publish)}
        self.begin()

    def begin(self) -> None:
        """Make the clients."""

    def publish(self, dice: Random) -> None:
        sizes = [dice.randrange(self.size) for _ in range(dice.choice((1, 1, 3, 8)))]
        dice.choice(self.publishers).send(sizes)

    def waiting(self) -> str | None:
        for publisher in self.publishers:
            if publisher.unconfirmed:
                return f"{publisher.name} has {len(publisher.unconfirmed)} unconfirmed messages"
        return None

    def leave(self) -> None:
        for client in (*self.publishers, *self.others):
            client.leave()

    def check(self, found: Found) -> None:
        for name in self.queues:
            names: set[bytes] = set()
            for body in found.at(name):
                copy = self.books.look(name, body)
                if isinstance(self.books, MovedBooks):
                    self.books.left(copy)
                if copy.name in names:
                    self.twice(copy)
                names.add(copy.name)
            missing = self.books.missing(name, names)
            if missing:
                raise BrokenPromise(
                    f"{name} has lost {missing[:5]}, {len(missing)} in all, which were confirmed"
                )
        if isinstance(self.books, MovedBooks):
            self.books.close()

    def twice(self, copy: Copy) -> None:
        if not isinstance(self.books, MovedBooks):
            raise BrokenPromise(f"{copy.queue} has {copy.name!r} twice")
        self.books.excuse(copy.queue, copy.name)


class Spread(Work):
    def begin(self) -> None:
        world = self.world
        self.books = books = Books()
        self.queues = ("here", "there", "yonder")
        near, far = world.group(0), world.group(1)
        ways = {"here": ("here",), "there": ("there",), "two": ("here", "there"), "all": self.queues}
        wiring = [
            queue("here"),
            queue("there", near),
            queue("yonder", far),
            exchange("fan", "fanout"),
            *(bound(name, "fan") for name in self.queues),
            exchange("mix", "direct"),
            *(bound(name, "mix", key) for key, names in ways.items() for name in names),
        ]
        self.publishers = [
            Sender(world, books, "fanner", "fan", "", self.queues, wiring),
            Sender(world, books, "single", "", "there", ("there",), wiring),
            Mixer(world, books, "mixer", "mix", ways, wiring),
        ]
        self.others = [
            Taker(world, books, "taker", self.queues, 20, wiring),
            Taker(world, books, "other", ("there",), 3, wiring),
        ]


class Moved(Work):
    def begin(self) -> None:
        world = self.world
        self.books = books = MovedBooks(world=world, unordered={"late"})
        self.queues = ("kept", "gone", "alone", "late")
        wiring = [
            queue("kept"),
            queue("gone", world.group(0)),
            queue("alone", world.group(1)),
            queue("late", world.group(0)),
            exchange("both", "fanout"),
            bound("kept", "both"),
            bound("gone", "both"),
            exchange("drift", "fanout"),
            bound("late", "drift"),
        ]
        world.ways |= {"porter": (MAIN,), "usher": (MAIN,)}
        self.publishers = [
            Sender(world, books, "porter", "", "alone", ("alone",), wiring),
            Sender(world, books, "usher", "both", "", ("kept", "gone"), wiring),
            # It asks main only, so the group may not have the queue when it publishes.
            Sender(world, books, "drifter", "drift", "", ("late",), [bound("late", "drift")]),
        ]
        self.others = [
            Taker(world, books, "mtaker", ("kept", "gone", "alone"), 20, wiring[:3]),
        ]


class Piled(Work):
    """What is in the queue in the end tells in which order all of it came there, what came twice too."""

    def begin(self) -> None:
        self.queues = ("pile",)
        self.world.ways["piler"] = (MAIN,)
        wiring = [queue("pile", self.world.group(0))]
        self.publishers = [Sender(self.world, self.books, "piler", "", "pile", self.queues, wiring)]

    def check(self, found: Found) -> None:
        super().check(found)
        last = {_name(body): place for place, body in enumerate(found.at("pile"))}
        rows: dict[bytes, list[tuple[int, int]]] = {}
        for name, place in last.items():
            _, number, attempt = name.split(b"/")
            rows.setdefault(attempt, []).append((int(number), place))
        for row in rows.values():
            for (first, place), (second, behind) in pairwise(sorted(row)):
                if place > behind:
                    raise BrokenPromise(f"number {first} comes last behind the last of number {second}")
        self.world.count("piled", len(last))


class Tight(Work):
    """Queues that refuse what they have no room for: what is moved on waits, and keeps its order."""

    def begin(self) -> None:
        world = self.world
        self.books = books = MovedBooks(world=world, repeated={"tight", "loose"})
        self.queues = ("dying fast", "tight", "loose")
        limits: dict[str, Any] = {"x_max_length": 4, "x_overflow": "reject-publish"}
        wiring = [
            queue("dying fast", world.group(1), x_dead_letter_exchange="narrow", x_message_ttl=1),
            queue("tight", world.group(0), **limits),
            queue("loose"),
            exchange("narrow", "fanout"),
            bound("tight", "narrow"),
            bound("loose", "narrow"),
        ]
        self.publishers = [
            Sender(world, books, "hasty", "", "dying fast", ("tight", "loose"), wiring),
        ]
        self.others = [Taker(world, books, "ttaker", ("tight", "loose"), 3, wiring)]
        self._sent = 0

    def publish(self, dice: Random) -> None:
        if self._sent < TIGHT_MAX:
            self._sent += 1
            super().publish(dice)


class Rejecter(Taker):
    """Takes the oldest of what it has, or rejects it; what was rejected is a letter for other queues."""

    def __init__(
        self,
        world: FrontsWorld,
        books: LetterBooks,
        name: str,
        queue: str,
        letters: tuple[str, ...],
        wiring: list[Method],
    ) -> None:
        self._letters = letters
        self._letter_books = books
        self._rejected: list[Copy] = []
        self._count = 0
        super().__init__(world, books, name, (queue,), 10, wiring)

    def connected(self) -> None:
        self._rejected = []
        self._count = 0
        super().connected()

    def _settle(self) -> None:
        self._planned = False
        if not self.open or self._closing or not self._held:
            return
        count = self.dice.randint(1, len(self._held))
        taken, self._held = self._held[:count], self._held[count:]
        self._ended(taken)
        if self.dice.random() < 0.6:
            for _, copy in taken:
                self._count += 1
                self._letter_books.rejected(self._letters, copy, self.attempt, self._count)
                self._rejected.append(copy)
            self.say(methods.BasicNack(delivery_tag=taken[-1][0], multiple=True, requeue=False))
        else:
            self.say(methods.BasicAck(delivery_tag=taken[-1][0], multiple=True))
        if self.dice.random() < 0.1:
            self._closing = True
            self.say(methods.ChannelClose(reply_code=200, reply_text="", class_id=0, method_id=0))
        elif self._held:
            self._planned = True
            self.world.timeline.after(self.dice.choice((200, 20_000, 60_000)), self._settle)

    def on(self, method: Any) -> None:
        if isinstance(method, methods.ChannelCloseOk) and self._closing:
            for copy in self._rejected:
                for name in self._letters:
                    self.books.copies[name, copy.name].confirmed = True
            self.world.count("letters", len(self._rejected))
        super().on(method)


class Letters(Work):
    def begin(self) -> None:
        world = self.world
        self.books = books = LetterBooks(world=world)
        near, far = world.group(0), world.group(1)
        wiring = [
            queue("dying", near, x_dead_letter_exchange="dead"),
            queue("dying here", x_dead_letter_exchange="", x_dead_letter_routing_key="grave"),
            queue("crypt"),
            queue("tomb", far),
            queue("grave", near),
            exchange("dead", "fanout"),
            bound("crypt", "dead"),
            bound("tomb", "dead"),
        ]
        self.queues = ("dying", "dying here", "crypt", "tomb", "grave")
        self.publishers = [
            Sender(world, books, "killer", "", "dying", ("dying",), wiring),
            Sender(world, books, "local", "", "dying here", ("dying here",), wiring),
        ]
        self.others = [
            Rejecter(world, books, "reject0", "dying", ("crypt", "tomb"), wiring),
            Rejecter(world, books, "reject1", "dying here", ("grave",), wiring),
            Taker(world, books, "undertaker", ("crypt", "tomb", "grave"), 20, wiring),
        ]


class KeySender(Sender):
    def key_of(self, number: int) -> str:
        return f"key{number * 7 % 5}"


class Keyed(Work):
    """Each of two partitioned streams has one writer, which uses one way."""

    def begin(self) -> None:
        world = self.world
        self.books = books = Books()
        wiring: list[Method] = []
        for name in ("direct", "moved"):
            wiring.append(exchange(name, "x-partition", x_partitions=2, x_partition_key="routing-key"))
            for number in range(2):
                stream = f"{name}-{number}"
                wiring += [
                    queue(stream, world.group(number), x_queue_type="stream", x_stream_key="routing-key"),
                    bound(stream, name, str(number)),
                ]
        world.ways |= {"kdirect": FRONTS[:1], "kmoved": (MAIN,)}
        self.publishers = [
            KeySender(world, books, f"k{name}", name, "", (name,), wiring) for name in ("direct", "moved")
        ]

    def check(self, found: Found) -> None:
        for publisher in self.publishers:
            (name,) = publisher.queues
            streams = [f"{name}-{number}" for number in range(2)]
            rows = {key: value for stream in streams for key, value in found.streams[stream].items()}
            for key, (possible, must) in self._possible(publisher, name).items():
                if rows.get(key) not in possible and (must or key in rows):
                    value, *names = (_name(body) for body in (rows.get(key, b""), *possible))
                    raise BrokenPromise(f"{key!r} of {name} is {value!r}; it can be one of {names}")
            self.world.count("keys", len(rows))

    def _possible(self, publisher: Publisher, name: str) -> dict[bytes, tuple[list[bytes], bool]]:
        """By key: the bodies that may be its newest, and whether there must be one."""
        found: dict[bytes, tuple[list[bytes], bool]] = {}
        for copy in self.books.copies.values():
            if copy.queue == name:
                key = publisher.key_of(int(copy.name.split(b"/")[1])).encode()
                bodies, must = found.get(key, ([], False))
                found[key] = [*(() if copy.confirmed else bodies), copy.body], must or copy.confirmed
        return found


def _name(body: bytes) -> bytes:
    return body.partition(b" ")[0]


class FarWirer(Wirer):
    def __init__(self, world: FrontsWorld, books: ChurnBooks) -> None:
        self._group = world.group(0)
        self._churn_books = books
        self._within: set[tuple[str, bytes]] = set()
        """What was in the queue for sure when its deletion was asked for."""
        self._kept: list[Copy] = []
        """What is in the queue if its deletion is refused."""
        super().__init__(world, books)

    def declaration(self, name: str) -> Method:
        return queue(name, self._group)

    def ask(self, kind: str, name: str, size: int) -> None:
        if not self.open or self._request is not None:
            return
        self._within = self._churn_books.within(name)
        if kind == "tidy":
            copies = [self.books.copies[name, message] for message in self._messages[name]]
            self._kept = [copy for copy in copies if copy.confirmed and not copy.acked]
        super().ask(kind, name, size)

    def refused(self, close: methods.ChannelClose) -> None:
        if self._request is not None and self._request[0] == "tidy":
            for copy in self._kept:
                copy.acked = False
        super().refused(close)

    def on(self, method: Any) -> None:
        if self._request is not None and isinstance(method, methods.QueueDeleteOk):
            kind, name = self._request
            if kind == "tidy" and self._kept:
                raise BrokenPromise(
                    f"{name} was to be deleted if it is empty, and had {self._kept[0].name!r}"
                )
            self._churn_books.buried |= self._within
        super().on(method)


class Noise(Mixer):
    """Publishes to queues that may not be there; nobody is promised anything about its messages."""

    def _transmit(self, numbers: list[int]) -> None:
        super()._transmit(numbers)
        for _, name in self._tags.values():
            for copy in (self.books.copies.get((queue, name)) for queue in (*NAMES, *RIVALS)):
                if copy is not None:
                    copy.acked = True


class Churn(Work):
    """What main's own port takes for such queues is moved on, or not, while they go."""

    def begin(self) -> None:
        # One front: of what a client gave up at one it cannot know whether it comes behind what it asks of another.
        self.world.ways["wirer"] = FRONTS[:1]
        self.books = books = ChurnBooks(world=self.world)
        self.wirer = FarWirer(self.world, books)
        self.world.ways["noise"] = (MAIN,)
        self.publishers = [Noise(self.world, self.books, "noise", "", {name: (name,) for name in NAMES}, [])]
        self.others = [self.wirer]
        self.queues = NAMES
        self.actions = {"rewire": (8, self.rewire), "publish": (3, self.publish)}

    def rewire(self, dice: Random) -> None:
        kind = dice.choice(("declare", "declare", "delete", "tidy", "bind", "fill", "fill", "look"))
        self.wirer.ask(kind, dice.choice(NAMES), dice.randrange(self.size))

    def waiting(self) -> str | None:
        return "wirer waits for an answer" if self.wirer.owed() else None

    def check(self, found: Found) -> None:
        group = self.world.group(0)
        for name, register in self.wirer.there.items():
            sure = len(register.possible) == 1
            for where in (MAIN, group):
                there = name in found.queues[where]
                if sure and there != register.possible[0]:
                    raise BrokenPromise(
                        f"whether {name} is in group {where} is {there}; it must be {register.possible[0]}"
                    )
        super().check(found)


RIVALS = ("r0", "r1")
"""Queues that several clients make and delete."""


class Rival(AmqpClient):
    """One request at a time, about queues that others make and delete, too."""

    def __init__(self, world: FrontsWorld, books: ChurnBooks, name: str) -> None:
        super().__init__(world, name)
        self.books = books
        self._group = world.group(0)
        self._request: tuple[str, str] | None = None
        self._within: set[tuple[str, bytes]] = set()
        self._buried: set[tuple[str, bytes]] = set()
        """What was known to be deleted when the request was made."""
        self._sent = b""
        self._number = 0
        self.connect()

    def set_up(self) -> list[Method]:
        return [methods.ConfirmSelect()]

    def owed(self) -> bool:
        return not self.open or self._request is not None

    def lost(self) -> None:
        self._request = None

    def ask(self, kind: str, name: str, size: int) -> None:
        if not self.open or self._request is not None:
            return
        self._request = kind, name
        self._within, self._buried = self.books.within(name), set(self.books.buried)
        match kind:
            case "declare":
                self.say(queue(name, self._group))
            case "delete":
                self.say(methods.QueueDelete(queue=name))
            case "get":
                self.say(methods.BasicGet(queue=name, no_ack=True))
            case "fill":
                self._number += 1
                self._sent = b"%s/%d/%d" % (self.name.encode(), self._number, self.attempt)
                body = self._sent + b" " + bytes(size)
                self.books.sent((name,), self._sent, body)
                self.books.copies[name, self._sent].acked = True  # somebody may delete the queue
                self.publish([("", name, body)])

    def on_content(self, method: Any, body: bytes) -> None:  # noqa: ARG002
        assert self._request is not None
        (_, name), self._request = self._request, None
        message = body.partition(b" ")[0]
        if (name, message) in self._buried:
            raise BrokenPromise(f"{name} gives {message!r}, which was in it when it was deleted")

    def on(self, method: Any) -> None:
        if self._request is None:
            return
        (_, name), self._request = self._request, None
        if isinstance(method, methods.QueueDeleteOk):
            self.books.buried |= self._within
        elif isinstance(method, methods.BasicAck):
            self.books.confirmed((name,), self._sent)
        self.world.count("rivalry")


class Rivals(Work):
    def begin(self) -> None:
        world = self.world
        self.books = books = ChurnBooks(world=world)
        world.ways["noise"] = (MAIN,)
        self.rivals = []
        for number, front in enumerate((*FRONTS, FRONTS[1])):
            world.ways[f"rival{number}"] = (front,)
            self.rivals.append(Rival(world, books, f"rival{number}"))
        self.publishers = [Noise(world, books, "noise", "", {name: (name,) for name in RIVALS}, [])]
        self.others = list(self.rivals)
        self.queues = RIVALS
        self.actions = {"vie": (8, self.vie), "publish": (2, self.publish)}

    def vie(self, dice: Random) -> None:
        kind = dice.choice(("declare", "declare", "delete", "delete", "fill", "fill", "get"))
        dice.choice(self.rivals).ask(kind, dice.choice(RIVALS), dice.randrange(self.size))

    def waiting(self) -> str | None:
        return "a rival waits for an answer" if any(rival.owed() for rival in self.rivals) else None

    def check(self, found: Found) -> None:
        for name in RIVALS:
            if name in found.queues[self.world.group(0)] and name not in found.queues[MAIN]:
                raise BrokenPromise(f"{name} is in its group, and main has no such queue")
        super().check(found)


class Binder(AmqpClient):
    """Binds and unbinds, one request at a time."""

    def __init__(self, world: FrontsWorld, wiring: list[Method]) -> None:
        super().__init__(world, "binder")
        self._wiring = wiring
        self.bound: dict[tuple[str, str], Register[bool]] = {}
        self.changes: dict[tuple[str, str], int] = {}
        """How often somebody has tried to change a binding."""
        self.told: Callable[[str], None] = lambda _: None
        """Called with the key when a change was confirmed."""
        self._request: tuple[str, str, bool] | None = None
        self.connect()

    def set_up(self) -> list[Method]:
        return self._wiring

    def owed(self) -> bool:
        return not self.open or self._request is not None

    def lost(self) -> None:
        self._request = None

    def ask(self, queue: str, key: str, yes: bool) -> None:
        if not self.open or self._request is not None:
            return
        self._request = queue, key, yes
        self.bound.setdefault((queue, key), Register([False])).tried(yes)
        self.changes[queue, key] = self.changes.get((queue, key), 0) + 1
        if yes:
            self.say(bound(queue, "news", key))
        else:
            self.say(methods.QueueUnbind(queue=queue, exchange="news", routing_key=key))

    def on(self, method: Any) -> None:
        if self._request is None or not isinstance(method, methods.QueueBindOk | methods.QueueUnbindOk):
            return
        (queue, key, yes), self._request = self._request, None
        self.bound[queue, key].confirmed(yes)
        self.world.count("rebound")
        self.told(key)


@dataclass(slots=True)
class Question:
    name: bytes
    body: bytes
    before: dict[str, tuple[int, list[bool]]]
    """By queue: how often its binding had been changed when it was sent, and what it may have been."""
    key: str
    returned: bool = False


class Asker(AmqpClient):
    """Publishes with `mandatory` and knows what must become of it."""

    def __init__(
        self, world: FrontsWorld, books: Books, binder: Binder, queues: tuple[str, ...], wiring: list[Method]
    ) -> None:
        super().__init__(world, "asker")
        self.books = books
        self._binder = binder
        self._queues = queues
        self._wiring = wiring
        self._number = self._tag = 0
        self._asked: dict[int, Question] = {}
        self.connect()

    def set_up(self) -> list[Method]:
        return [*self._wiring, methods.ConfirmSelect()]

    def owed(self) -> bool:
        return not self.open or bool(self._asked)

    def ready(self) -> None:
        self._tag = 0
        self._asked.clear()

    def lost(self) -> None:
        self._asked.clear()

    def ask(self, key: str) -> None:
        if not self.open or self.end is None:
            return
        binder = self._binder
        self._number += 1
        self._tag += 1
        name = b"%s/%d/%d" % (self.name.encode(), self._number, self.attempt)
        body = name + b" " + key.encode()
        self.books.sent(self._queues, name, body)
        before = {
            queue: (
                binder.changes.get((queue, key), 0),
                list(binder.bound.get((queue, key), Register([False])).possible),
            )
            for queue in self._queues
        }
        self._asked[self._tag] = Question(name, body, before, key)
        self.end.send(
            encode_method(1, methods.BasicPublish(exchange="news", routing_key=key, mandatory=True))
            + encode_content(1, PERSISTENT, body, 131072)
        )

    def on_content(self, method: Any, body: bytes) -> None:
        assert isinstance(method, methods.BasicReturn)
        for question in self._asked.values():
            if question.body == body:
                if question.returned:
                    raise BrokenPromise(f"{question.name!r} is returned twice")
                if method.routing_key != question.key:
                    raise BrokenPromise(f"{question.name!r} is returned as {method.routing_key!r}")
                question.returned = True
                return
        raise BrokenPromise(f"{body!r} is returned, and nobody waits for its confirm")

    def on(self, method: Any) -> None:
        if isinstance(method, methods.BasicNack):
            self.abandon()
        elif isinstance(method, methods.BasicAck):
            tags = [tag for tag in self._asked if tag <= method.delivery_tag] if method.multiple else []
            for tag in tags or [method.delivery_tag]:
                self._answered(self._asked.pop(tag))

    def _answered(self, question: Question) -> None:
        must, may = [], []
        for queue, (changes, possible) in question.before.items():
            if self._binder.changes.get((queue, question.key), 0) != changes or len(possible) > 1:
                may.append(queue)
            elif possible == [True]:
                must.append(queue)
            else:
                del self.books.copies[queue, question.name]
        self.world.count("returned" if question.returned else "routed")
        if question.returned and must:
            raise BrokenPromise(f"{question.name!r} is returned, but {must} are bound with {question.key!r}")
        if not question.returned and not (must or may):
            raise BrokenPromise(
                f"{question.name!r} is not returned, but nothing is bound with {question.key!r}"
            )
        self.books.confirmed(tuple(must), question.name)


class Fresh(Work):
    def begin(self) -> None:
        world = self.world
        self.books = books = Books()
        self.queues = ("news here", "news there")
        wiring = [exchange("news", "direct"), queue("news here"), queue("news there", world.group(0))]
        world.ways |= {"binder": FRONTS[:1]}
        self.binder = Binder(world, wiring)
        self.asker = Asker(world, books, self.binder, self.queues, wiring)
        self.binder.told = self.told
        self.others = [self.binder, self.asker]
        self.actions = {"bind": (8, self.bind), "ask": (3, self.ask)}

    def told(self, key: str) -> None:
        self.asker.ask(key)

    def bind(self, dice: Random) -> None:
        self.binder.ask(dice.choice(self.queues), f"key{dice.randrange(6)}", dice.random() < 0.6)

    def ask(self, dice: Random) -> None:
        for _ in range(dice.choice((1, 3))):
            self.asker.ask(f"key{dice.randrange(6)}")

    def waiting(self) -> str | None:
        return "somebody waits for an answer" if self.binder.owed() or self.asker.owed() else None


WORK: dict[str, Callable[[FrontsWorld, int], Work]] = {
    "spread": Spread,
    "moved": Moved,
    "piled": Piled,
    "tight": Tight,
    "letters": Letters,
    "keyed": Keyed,
    "churn": Churn,
    "rivals": Rivals,
    "fresh": Fresh,
}


def choose(world: FrontsWorld, only: Sequence[str] = ()) -> dict[str, Work]:
    """One, two or three kinds of work, or `only` these, with the size of their messages."""
    dice = Random(f"{world.seed} work")
    names = sorted(dice.sample(sorted(WORK), dice.choice((1, 2, 2, 3))))
    size = dice.choice((20, 200, 200, 3000))
    return {name: WORK[name](world, size) for name in sorted(only) or names}
