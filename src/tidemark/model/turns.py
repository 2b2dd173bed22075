"""Turns: whose messages of a stand-in or outbox are the newer ones, when two fronts have moved some on.

One front at a time takes what waits there. It may lose its link to the leader and not know it, or have bytes on their way to
a group, when the next one goes on. So each has a number, higher than that of any before it, and says it with what it
publishes: the group takes nothing of a lower one behind a higher one (`broker/streams/fences.py`).

The leader gives a front its number in the tag of its consumer, when it subscribes. Those who wait are served in the order in which
they subscribed, so the numbers are in the order of the turns. A leader counts from one in each of its reigns, and no two reigns
of a cluster have the same number.

Invariant: of two turns of one queue `of` the same cluster, the later has the higher (reign, count).
"""

from __future__ import annotations

from dataclasses import dataclass

CAPABILITY = "tidemark.turns"
"""What a leader and a front that comes for itself say in their handshake if they know of turns."""
_TAG = "amq.tidemark.turn-"


@dataclass(frozen=True, slots=True)
class Turn:
    """The number of one front at one stand-in or outbox."""

    of: str
    """Within what it can be compared: the cluster that the leader led, since it last began with what stores were left; or the store of
    a broker that stands alone."""
    reign: int
    """The epoch in which it led, or the how-manieth start it was."""
    count: int

    @property
    def tag(self) -> str:
        """The tag of the consumer."""
        return f"{_TAG}{self.of}-{self.reign}-{self.count}"


def turn_in(tag: str) -> Turn | None:
    """What the tag of a consumer says; None: it comes from a leader that gives no numbers."""
    if not tag.startswith(_TAG):
        return None
    of, *numbers = tag.removeprefix(_TAG).rsplit("-", 2)
    if len(numbers) != 2 or not all(number.isdecimal() for number in numbers):
        return None
    return Turn(of, int(numbers[0]), int(numbers[1]))


class Turns:
    """The numbers that a leader gives, in one reign."""

    def __init__(self) -> None:
        self._of, self._reign, self._count = "", 0, 0

    def begin(self, of: str, reign: int) -> None:
        """It begins to lead."""
        self._of, self._reign, self._count = of, reign, 0

    def next(self) -> Turn:
        self._count += 1
        return Turn(self._of, self._reign, self._count)


@dataclass(frozen=True, slots=True)
class Moved:
    """What a front says of a message that it moves on."""

    source: str
    """The group and the queue where it waited; the virtual host is that of the queue that it is for."""
    of: str
    number: tuple[int, int, int]
    """Of the turn, and which of the front's links to the group it comes by: what was sent on a link that is
    lost is as late as that of another front."""
