"""Queues that come and go, with what is in them.

One client declares, fills, binds and deletes a few queues, one request at a time. When a delete was answered nothing
that was in the queue may ever be seen again, though another queue has its name; when a declare was, the queue is
there on every member that may lead.

Invariant: one request is on its way at a time; while its fate is not known, both are possible.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from random import Random
from typing import Any

from tidemark.sim.cluster.books import Books, Register
from tidemark.sim.cluster.clients import AmqpClient
from tidemark.sim.cluster.work_queues import check_queues
from tidemark.sim.cluster.world import World
from tidemark.sim.store import BrokenPromise
from tidemark.wire.amqp091 import methods
from tidemark.wire.amqp091.methods import Method

NAMES = ("w0", "w1", "w2")
EXCHANGE = "wires"


class Wirer(AmqpClient):
    def __init__(self, world: World, books: Books) -> None:
        super().__init__(world, "wirer")
        self.books = books
        self.there = {name: Register([False]) for name in NAMES}
        self.bound = {name: Register([False]) for name in NAMES}
        self._request: tuple[str, str] | None = None
        self._messages: dict[str, list[bytes]] = {name: [] for name in NAMES}
        self._number = 0
        self.connect()

    def set_up(self) -> list[Method]:
        return [
            methods.ExchangeDeclare(exchange=EXCHANGE, type="direct", durable=True),
            methods.ConfirmSelect(),
        ]

    def owed(self) -> bool:
        return not self.open or self._request is not None

    def lost(self) -> None:
        self._request = None

    def ask(self, kind: str, name: str, size: int) -> None:
        """One request, if none is on its way."""
        if not self.open or self._request is not None:
            return
        certain = self.there[name].possible == [True]
        match kind:
            case "declare":
                self.there[name].tried(True)
                self.say(self.declaration(name))
            case "delete" | "tidy":
                self.there[name].tried(False)
                self.bound[name].tried(False)
                for message in self._messages[name]:
                    self.books.copies[name, message].acked = True
                self.say(methods.QueueDelete(queue=name, if_empty=kind == "tidy"))
            case "bind" if certain:
                self.bound[name].tried(True)
                self.say(methods.QueueBind(queue=name, exchange=EXCHANGE, routing_key=name))
            case "fill" if certain:
                self._number += 1
                message = b"%s/%d/%d" % (self.name.encode(), self._number, self.attempt)
                body = message + b" " + bytes(size)
                self.books.sent((name,), message, body)
                self._messages[name].append(message)
                self.publish([("", name, body)])
            case "look" if len(self.there[name].possible) == 1:
                self.say(methods.QueueDeclare(queue=name, passive=True))
            case _:
                return
        self._request = kind, name

    def declaration(self, name: str) -> Method:
        return methods.QueueDeclare(queue=name, durable=True)

    def refused(self, close: methods.ChannelClose) -> None:
        if self._request is not None and self._request[0] in ("bind", "fill", "look"):
            kind, name = self._request
            if self.there[name].possible == [True]:
                raise BrokenPromise(f"{name} was declared, but {kind} finds: {close.reply_text}")
        super().refused(close)

    def on(self, method: Any) -> None:
        if self._request is None:
            return
        kind, name = self._request
        self._request = None
        match method:
            case methods.QueueDeclareOk() if kind == "look":
                self.there[name].found(True, f"whether {name} is there")
            case methods.QueueDeclareOk():
                self.there[name].confirmed(True)
            case methods.QueueDeleteOk():
                self.there[name].confirmed(False)
                self.bound[name].confirmed(False)
                for message in self._messages[name]:
                    self.books.copies[name, message].settled = True
                self._messages[name].clear()
            case methods.QueueBindOk():
                self.bound[name].confirmed(True)
            case methods.BasicAck():
                self.books.confirmed((name,), self._messages[name][-1])
        self.world.count("wiring")


@dataclass
class Wiring:
    world: World
    size: int
    books: Books = field(default_factory=Books)

    def __post_init__(self) -> None:
        self.wirer = Wirer(self.world, self.books)
        self.actions = {"rewire": (8, self.rewire)}
        self.queues = NAMES

    def rewire(self, dice: Random) -> None:
        kind = dice.choice(("declare", "declare", "delete", "bind", "fill", "fill", "look"))
        self.wirer.ask(kind, dice.choice(NAMES), dice.randrange(self.size))

    def waiting(self) -> str | None:
        return "wirer waits for an answer" if self.wirer.owed() else None

    def leave(self) -> None:
        self.wirer.leave()

    def check(self, contents: dict[str, list[bytes]]) -> None:
        for name, register in self.wirer.there.items():
            register.found(name in contents, f"whether {name} is there")
        check_queues(self.books, NAMES, contents)

    def check_bindings(self, bound: set[str]) -> None:
        for name, register in self.wirer.bound.items():
            register.found(name in bound, f"whether {name} is bound")
