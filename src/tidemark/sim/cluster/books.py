"""What clients were told, and what must therefore be true.

A message has a name: who sent it, its number, and the how-manieth attempt it is. An attempt that was confirmed must be
in every queue it went to until somebody has acknowledged it; one whose acknowledgement was confirmed must never
come back. Of an attempt whose fate is not known, anything may be true.

`Register` is a value that one client writes: what a reader may find is the last value that was confirmed, or one of
those that were tried since. Finding one of them decides it.

Invariant: nothing is written here that a client was not told, or has not sent.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Generic, TypeVar

from tidemark.sim.store import BrokenPromise

Value = TypeVar("Value")


@dataclass(slots=True)
class Copy:
    """One message in one queue."""

    queue: str
    name: bytes
    body: bytes
    confirmed: bool = False
    acked: bool = False
    """Somebody has sent an acknowledgement, or will: it may be gone."""
    settled: bool = False
    """The acknowledgement was confirmed: it is gone."""


@dataclass(slots=True)
class Register(Generic[Value]):
    """What one client wrote, one value after the other."""

    possible: list[Value]

    def tried(self, value: Value) -> None:
        self.possible.append(value)

    def confirmed(self, value: Value) -> None:
        """This one was written; those before it are over."""
        at = len(self.possible) - 1 - self.possible[::-1].index(value)
        del self.possible[:at]

    def found(self, value: Value, what: str) -> None:
        """A reader was shown this. Raises BrokenPromise when that cannot be."""
        if value not in self.possible:
            shown = [str(one)[:60] for one in self.possible]
            raise BrokenPromise(f"{what} is {str(value)[:80]}; it can be one of {shown}")
        self.confirmed(value)


@dataclass(slots=True)
class Subscription:
    """What one consumer has been given since it began: each publisher's messages come in order."""

    last: dict[tuple[bytes, bytes], int] = field(default_factory=dict)


@dataclass(slots=True)
class Books:
    copies: dict[tuple[str, bytes], Copy] = field(default_factory=dict)
    confirms: int = 0
    deliveries: int = 0

    # Publishing --------------------------------------------------------------------------------------------------

    def sent(self, queues: tuple[str, ...], name: bytes, body: bytes) -> None:
        for queue in queues:
            self.copies[queue, name] = Copy(queue, name, body)

    def confirmed(self, queues: tuple[str, ...], name: bytes) -> None:
        self.confirms += 1
        for queue in queues:
            self.copies[queue, name].confirmed = True

    # Consuming ---------------------------------------------------------------------------------------------------

    def delivered(self, queue: str, body: bytes, redelivered: bool, subscription: Subscription) -> Copy:
        """A consumer was given this. Raises BrokenPromise when it cannot be."""
        self.deliveries += 1
        copy = self.look(queue, body)
        publisher, number, attempt = copy.name.split(b"/")
        if not redelivered:
            key = publisher, attempt
            if int(number) <= subscription.last.get(key, 0):
                raise BrokenPromise(
                    f"{queue} delivers {copy.name!r} behind number {subscription.last[key]} of the same attempt"
                )
            subscription.last[key] = int(number)
        return copy

    def look(self, queue: str, body: bytes) -> Copy:
        """This is in a queue. Raises BrokenPromise when it cannot be."""
        name = body.partition(b" ")[0]
        copy = self.copies.get((queue, name))
        if copy is None:
            raise BrokenPromise(f"{queue} has a message that nobody sent: {body[:60]!r}")
        if copy.body != body:
            raise BrokenPromise(f"{queue} has {name!r} with another body")
        if copy.settled:
            raise BrokenPromise(f"{queue} has {name!r} again, whose acknowledgement was confirmed")
        return copy

    def missing(self, queue: str, found: set[bytes]) -> list[bytes]:
        """What was confirmed and should be among those found, and is not."""
        return [
            copy.name
            for copy in self.copies.values()
            if copy.queue == queue and copy.confirmed and not copy.acked and copy.name not in found
        ]
