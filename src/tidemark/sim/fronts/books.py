"""What clients were told of messages that fronts move on: they may come twice, but only if something went wrong.

Invariant: a second delivery that the broker does not call one is a fault's doing.
"""

from __future__ import annotations

from dataclasses import dataclass, field

from tidemark.sim.cluster.books import Books, Copy, Subscription
from tidemark.sim.fronts.world import FrontsWorld
from tidemark.sim.store import BrokenPromise


@dataclass(frozen=True, slots=True)
class Doubt:
    problem: str
    row: tuple[bytes, bytes]
    behind: int
    """The number in the row that it came behind."""


@dataclass(slots=True)
class MovedBooks(Books):
    world: FrontsWorld = field(kw_only=True)
    seen: set[tuple[str, bytes]] = field(default_factory=set)
    """What anybody was given, by queue and name."""
    sent_us: dict[bytes, int] = field(default_factory=dict)
    unordered: set[str] = field(default_factory=set)
    """Queues that messages reach by more than one way."""
    repeated: set[str] = field(default_factory=set)
    """Queues that refuse messages: what comes behind one that is refused comes again."""
    doubts: dict[tuple[str, bytes], Doubt] = field(default_factory=dict)
    """What came too late. If it comes once more it was there twice, and who had it first has lost it on its way; if what had
    gone past it comes once more it was refused at first. Else the order is broken."""

    def sent(self, queues: tuple[str, ...], name: bytes, body: bytes) -> None:
        self.sent_us[name] = self.world.timeline.now_us
        super(MovedBooks, self).sent(queues, name, body)

    def delivered(self, queue: str, body: bytes, redelivered: bool, subscription: Subscription) -> Copy:
        self.deliveries += 1
        copy = self.look(queue, body)
        again = (queue, copy.name) in self.seen
        self.seen.add((queue, copy.name))
        if again or redelivered:
            self._came_again(queue, copy)
        if redelivered:
            return copy
        if again:
            self.excuse(queue, copy.name)
            return copy
        row = None if queue in self.unordered else self.row_of(copy)
        if row is not None:
            key, number = row
            last = subscription.last.get(key, 0)
            if number > last:
                subscription.last[key] = number
            else:
                problem = f"{queue} delivers {copy.name!r} behind number {last} of the same row"
                if not self._may_be_twice(queue, copy.name):
                    raise BrokenPromise(problem)
                self.doubts[queue, copy.name] = Doubt(problem, key, last)
        return copy

    def _came_again(self, queue: str, copy: Copy) -> None:
        """What comes late is in order after all if it comes once more, or if all that had gone past it does."""
        self.doubts.pop((queue, copy.name), None)
        row = self.row_of(copy)
        if row is not None:
            key, number = row
            for late, doubt in list(self.doubts.items()):
                if late[0] == queue and doubt.row == key and number >= doubt.behind:
                    del self.doubts[late]

    def look(self, queue: str, body: bytes) -> Copy:
        name = body.partition(b" ")[0]
        copy = self.copies.get((queue, name))
        if copy is not None and copy.settled and copy.body == body:
            self.excuse(queue, name)
            return copy
        return super(MovedBooks, self).look(queue, body)

    def left(self, copy: Copy) -> None:
        """It is in its queue when all is quiet."""
        self.doubts.pop((copy.queue, copy.name), None)

    def close(self) -> None:
        """All is quiet. Raises BrokenPromise: an order was broken."""
        for doubt in self.doubts.values():
            raise BrokenPromise(doubt.problem)

    def row_of(self, copy: Copy) -> tuple[tuple[bytes, bytes], int] | None:
        """Where it stands in which row of messages that come in order, when they come first. None: in none."""
        publisher, number, attempt = copy.name.split(b"/")
        return (publisher, attempt), int(number)

    def excuse(self, queue: str, name: bytes) -> None:
        """It was there twice. Raises BrokenPromise when it must not."""
        if not self._may_be_twice(queue, name):
            raise BrokenPromise(f"{queue} has {name!r} twice, and nothing went wrong")
        self.world.count("twice")

    def _may_be_twice(self, queue: str, name: bytes) -> bool:
        return queue in self.repeated or self.world.harmed_since(self.sent_us[name])


@dataclass(slots=True)
class ChurnBooks(MovedBooks):
    """Queues are deleted. What was in one for sure when somebody asked for that is never seen again when he is told that it is."""

    buried: set[tuple[str, bytes]] = field(default_factory=set)

    def within(self, queue: str) -> set[tuple[str, bytes]]:
        """All that was confirmed for a queue, of whichever life."""
        return {key for key, copy in self.copies.items() if copy.queue == queue and copy.confirmed}

    def look(self, queue: str, body: bytes) -> Copy:
        name = body.partition(b" ")[0]
        if (queue, name) in self.buried:
            raise BrokenPromise(f"{queue} has {name!r} again, which was in it when it was deleted")
        return super(ChurnBooks, self).look(queue, body)


@dataclass(slots=True)
class LetterBooks(MovedBooks):
    """Dead letters come in the order in which they were rejected."""

    rejects: dict[bytes, list[tuple[int, int]]] = field(default_factory=dict)
    """Of each name: on which connection, and as the how-manieth there."""

    def rejected(self, queues: tuple[str, ...], copy: Copy, connection: int, number: int) -> None:
        """A consumer has said that it does not want it: it may go to these queues."""
        self.rejects.setdefault(copy.name, []).append((connection, number))
        for queue in queues:
            self.copies.setdefault((queue, copy.name), Copy(queue, copy.name, copy.body))

    def row_of(self, copy: Copy) -> tuple[tuple[bytes, bytes], int] | None:
        rejects = self.rejects.get(copy.name)
        if rejects is None:
            return super(LetterBooks, self).row_of(copy)
        if len(rejects) > 1:
            return None  # which of them was heard is not known
        connection, number = rejects[0]
        return (b"letters", b"%d" % connection), number
