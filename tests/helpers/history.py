"""What clients saw of a broker that was killed again and again, and what must be true of it.

Clients append events to one list in the order in which they learn of them; `check` reads the
finished list and says what the broker did wrong. It knows nothing of sockets or brokers, so
its own tests can plant every fault in a few lines.

A message is (producer, number); a producer numbers what it sends in order and never sends the
same number twice. A queue has one consumer at a time, so its deliveries are in the list in
the order in which they came. The history must end with every queue drained.

Invariant: `check` returns no violation for any history that a correct broker can cause.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Sequence
from dataclasses import dataclass
from typing import NamedTuple


class Message(NamedTuple):
    producer: str
    number: int


# What clients report, in the order in which they learn of it ---------------------------------


@dataclass(frozen=True, slots=True)
class Sent:
    """A message is about to go out; it is meant for these queues."""

    message: Message
    queues: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class Confirmed:
    message: Message


@dataclass(frozen=True, slots=True)
class Delivered:
    message: Message
    queue: str


@dataclass(frozen=True, slots=True)
class Settled:
    """The acknowledgement of this delivery is known to be complete."""

    message: Message
    queue: str


@dataclass(frozen=True, slots=True)
class Committing:
    """tx.commit is about to go out: these messages (sent before) and these acknowledgements."""

    transaction: int
    publishes: tuple[Message, ...]
    acks: tuple[tuple[Message, str], ...] = ()


@dataclass(frozen=True, slots=True)
class Committed:
    transaction: int


@dataclass(frozen=True, slots=True)
class Undone:
    """These messages were sent in a transaction that was never committed."""

    publishes: tuple[Message, ...]


@dataclass(frozen=True, slots=True)
class Killed:
    """The broker was killed; `check` does not look at it, `explain` shows it."""


Event = Sent | Confirmed | Delivered | Settled | Committing | Committed | Undone | Killed


@dataclass(frozen=True, slots=True)
class Violation:
    """One promise broken: `kind` is lost, returned, reordered, torn, undone or unknown."""

    kind: str
    text: str
    messages: tuple[Message, ...]


def explain(history: Sequence[Event], violation: Violation) -> str:
    """The violation, and every event of its messages with the kills between them."""
    lines = [f"{violation.kind}: {violation.text}"]
    wanted = set(violation.messages)
    killed = ""
    for at, event in enumerate(history):
        match event:
            case Killed():
                killed = killed or f"  {at:>8} killed"
                continue
            case Sent(message) | Confirmed(message) | Delivered(message) | Settled(message):
                concerns = message in wanted
            case Committing(_, publishes, acks):
                concerns = not wanted.isdisjoint((*publishes, *(ack[0] for ack in acks)))
            case Undone(publishes):
                concerns = not wanted.isdisjoint(publishes)
            case _:
                concerns = False
        if concerns:
            lines += [line for line in (killed, f"  {at:>8} {event}") if line]
            killed = ""
    return "\n".join([*lines, *([killed] if killed else [])])


def check(history: Sequence[Event]) -> list[Violation]:
    """Everything the broker did wrong in this history; empty when it kept its promises."""
    view = _View(history)
    return [
        *view.unknown(),
        *view.lost(),
        *view.returned(),
        *view.reordered(),
        *view.torn(),
        *view.undone(),
    ]


class _View:
    """The history, sorted by what the questions ask for."""

    def __init__(self, history: Sequence[Event]) -> None:
        self.targets: dict[Message, tuple[str, ...]] = {}
        self.confirmed: set[Message] = set()
        self.deliveries: dict[tuple[Message, str], list[int]] = defaultdict(list)
        self.settled: dict[tuple[Message, str], int] = {}
        self.commits: dict[int, tuple[int, Committing]] = {}
        self.committed: dict[int, int] = {}
        self.undone_messages: list[Message] = []
        for at, event in enumerate(history):
            match event:
                case Sent(message, queues):
                    self.targets[message] = queues
                case Confirmed(message):
                    self.confirmed.add(message)
                case Delivered(message, queue):
                    self.deliveries[message, queue].append(at)
                case Settled(message, queue):
                    self.settled.setdefault((message, queue), at)
                case Committing(transaction):
                    self.commits[transaction] = (at, event)
                case Committed(transaction):
                    self.committed[transaction] = at
                case Undone(publishes):
                    self.undone_messages += publishes
        self.sure = self.confirmed | {
            message for transaction in self.committed for message in self.commits[transaction][1].publishes
        }

    def unknown(self) -> list[Violation]:
        return [
            Violation("unknown", f"{message} came out of {queue}, where nobody sent it", (message,))
            for message, queue in self.deliveries
            if queue not in self.targets.get(message, ())
        ]

    def lost(self) -> list[Violation]:
        return [
            Violation("lost", f"{message} was confirmed and never came out of {queue}", (message,))
            for message in sorted(self.sure)
            for queue in self.targets[message]
            if (message, queue) not in self.deliveries
        ]

    def returned(self) -> list[Violation]:
        complete = dict(self.settled)
        for transaction, at in self.committed.items():
            for delivery in self.commits[transaction][1].acks:
                complete.setdefault(delivery, at)
        return [
            Violation("returned", f"{message} came out of {queue} after its ack was complete", (message,))
            for (message, queue), at in complete.items()
            if any(later > at for later in self.deliveries.get((message, queue), ()))
        ]

    def reordered(self) -> list[Violation]:
        first = sorted((seen[0], delivery) for delivery, seen in self.deliveries.items())
        newest: dict[tuple[str, str], int] = {}
        found = []
        for _, (message, queue) in first:
            line = (message.producer, queue)
            if message.number < newest.get(line, -1):
                found.append(
                    Violation(
                        "reordered",
                        f"{message} first came out of {queue} after {newest[line]}",
                        (message, Message(message.producer, newest[line])),
                    )
                )
            newest[line] = max(message.number, newest.get(line, -1))
        return found

    def torn(self) -> list[Violation]:
        """Transactions of which a part happened, whether or not the client heard of the commit."""
        found = []
        for transaction, (at, commit) in self.commits.items():
            copies = [(m, queue) for m in commit.publishes for queue in self.targets[m]]
            seen = [copy for copy in copies if copy in self.deliveries]
            happened = bool(seen) or transaction in self.committed
            if happened and len(seen) < len(copies):
                found.append(
                    Violation(
                        "torn",
                        f"transaction {transaction}: {len(seen)} of {len(copies)} messages came out",
                        commit.publishes,
                    )
                )
            for delivery in commit.acks if commit.publishes else ():
                again = any(later > at for later in self.deliveries.get(delivery, ()))
                if happened and again:
                    text = f"its messages came out and {delivery}, which it acknowledged, came back"
                elif not happened and not again and delivery[0] in self.sure:
                    text = f"its messages never came out and {delivery} did not come back"
                else:
                    continue
                messages = (*commit.publishes, delivery[0])
                found.append(Violation("torn", f"transaction {transaction}: {text}", messages))
        return found

    def undone(self) -> list[Violation]:
        return [
            Violation("undone", f"{message} came out of {queue} though it was never committed", (message,))
            for message in self.undone_messages
            for queue in self.targets[message]
            if (message, queue) in self.deliveries
        ]
