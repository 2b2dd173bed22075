"""A queue that the cluster keeps without its messages, beside one that is kept whole (x-replicate).

One publisher sends to the queue that keeps, another to both through a fan-out, so that records in the journal name a queue that
does not keep them. What was confirmed is never lost from the first, as ever. The other may lose everything when another member
leads; but it exists then with its binding, what was acknowledged never comes back, and no member that follows has anything in it.

Invariant: nothing is expected of a message in the queue `LOOSE` but that it is not there where it cannot be.
"""

from __future__ import annotations

from dataclasses import dataclass

from tidemark.broker.streams.session import StreamSession
from tidemark.sim.cluster.work_queues import Consumer, Publisher, Queues, check_queues, wiring
from tidemark.sim.store import BrokenPromise
from tidemark.wire.amqp091 import methods
from tidemark.wire.amqp091.methods import Method

KEPT, LOOSE = "kept", "loose"
DECLARED = methods.QueueDeclare(queue=LOOSE, durable=True, arguments={"x-replicate": "configuration"})


def loosened(wanted: list[Method]) -> list[Method]:
    """The same, with the queue that keeps nothing declared as such."""
    return [
        DECLARED if isinstance(one, methods.QueueDeclare) and one.queue == LOOSE else one for one in wanted
    ]


class LoosePublisher(Publisher):
    def set_up(self) -> list[Method]:
        return [*loosened(wiring("both", self.queues)), methods.ConfirmSelect()]


class LooseConsumer(Consumer):
    def set_up(self) -> list[Method]:
        return loosened(super().set_up())


@dataclass
class Loose(Queues):
    def __post_init__(self) -> None:
        world, books = self.world, self.books
        self.publishers = [
            Publisher(world, books, "p0", "", KEPT, (KEPT,)),
            LoosePublisher(world, books, "p1", "both", "", (KEPT, LOOSE)),
        ]
        self.consumers = [
            Consumer(world, books, "c0", KEPT, 20),
            LooseConsumer(world, books, "c1", LOOSE, 3),
        ]
        self.actions = {"publish": (10, self.publish)}
        self.queues = (KEPT, LOOSE)

    def check(self, contents: dict[str, list[bytes]]) -> None:
        check_queues(self.books, (KEPT,), contents)

    def check_member(self, name: str, session: StreamSession, serving: bool) -> None:
        vhost = session.broker.vhosts["/"]
        queue = vhost.queues.get(LOOSE)
        if queue is None:
            return
        if not vhost.bindings_to_queue(LOOSE):
            raise BrokenPromise(f"{LOOSE} has lost its binding at {name}")
        if queue.ready and not serving:
            raise BrokenPromise(f"{LOOSE} has {queue.ready} messages at {name}, which does not lead")
        self.world.count("loose queues looked at")
