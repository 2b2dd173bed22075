"""Links between machines and between clients and machines: delay, cuts of both ways or one, breaks, repetition.

A link is a TCP connection. Each way is in order and loses nothing for as long as the link is whole; while a way is cut
what is sent over it waits, and is given up by both ends, each in its own time, when it has waited too long. A link that
breaks loses what was on its way. Nothing answers at a machine without power; at one whose process is dead, every
attempt is refused.

Over links between members a thing may come twice (`repeats`): what a new link brings again after a break is
no different from that.

Invariant: an end hears nothing of its link after it has been told that it is lost, or has closed it.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable
from random import Random
from typing import Any, Protocol

from tidemark.sim.cluster.clock import Timeline

DIAL_PATIENCE_US = 1_000_000
PEER, CLIENT, VIEW = "peer", "client", "view"
UP, END = object(), object()
"""What the network itself sends over a link: it is there; it ends."""


class Party(Protocol):
    """Who has ends of links."""

    def link_up(self, end: End) -> None: ...

    def link_data(self, end: End, items: list[Any]) -> None:
        """What arrived together, in order."""

    def link_lost(self, end: End, gone: bool) -> None:
        """The link is no more, or never was. `gone`: it was refused, the process at the other end is dead."""


class Nobody:
    """Has the far end of a link that was not accepted yet."""

    def link_up(self, end: End) -> None: ...

    def link_data(self, end: End, items: list[Any]) -> None: ...

    def link_lost(self, end: End, gone: bool) -> None: ...


NOBODY = Nobody()


class End:
    """One end of a link."""

    __slots__ = ("alive", "dialled", "far", "kind", "link", "name", "party", "state", "up", "way")

    def __init__(self, link: Link, name: str, party: Party, dialled: bool) -> None:
        self.link = link
        self.kind = link.kind
        self.name = name
        self.party = party
        self.dialled = dialled
        self.alive = True
        """Its owner has neither closed it nor heard that it is lost."""
        self.up = False
        """Its owner has heard that it is there."""
        self.far: End
        self.way: Way
        """From here to the other end."""
        self.state: Any = None
        """For its owner."""

    def send(self, item: Any, size: int = 0) -> None:
        if self.alive:
            self.way.put(item, size)

    def close(self, *, abruptly: bool = False) -> None:
        """Say nothing more. What was sent before still arrives, unless it is done `abruptly`."""
        if self.alive:
            self.alive = False
            if abruptly:
                self.way.drop()
            if self.far.alive:
                self.way.put(END, 0)
            else:
                self.link.network.links.pop(self.link, None)

    def lose(self, gone: bool = False) -> None:
        if self.alive:
            self.alive = False
            if not self.far.alive:
                self.link.network.links.pop(self.link, None)
            self.party.link_lost(self, gone)


class Way:
    """One direction of a link."""

    __slots__ = ("_planned", "_queue", "bytes", "link", "source", "target")

    def __init__(self, link: Link, source: End, target: End) -> None:
        self.link = link
        self.source = source
        self.target = target
        self.bytes = 0
        """Sent and not yet arrived."""
        self._queue: deque[tuple[int, Any, int]] = deque()
        self._planned = False

    def put(self, item: Any, size: int) -> None:
        network = self.link.network
        arrives = network.arrival_us(self.link.kind, self.source.name, self.target.name)
        self._queue.append((arrives, item, size))
        self.bytes += size
        if (
            network.repeats
            and self.link.kind == PEER
            and item is not UP
            and item is not END
            and network.repeated()
        ):
            self._queue.append((arrives, item, 0))
        self.plan()

    def plan(self) -> None:
        if self._planned or not self._queue or self.link.broken:
            return
        network = self.link.network
        if (self.source.name, self.target.name) in network.cuts:
            return
        self._planned = True
        network.timeline.after(max(0, self._queue[0][0] - network.timeline.now_us), self._deliver)

    def _deliver(self) -> None:
        self._planned = False
        link = self.link
        if link.broken or (self.source.name, self.target.name) in link.network.cuts:
            return
        now_us = link.network.timeline.now_us
        queue, target = self._queue, self.target
        items: list[Any] = []
        while queue and queue[0][0] <= now_us and target.alive:
            _, item, size = queue.popleft()
            self.bytes -= size
            if item is END:
                if items:
                    target.party.link_data(target, items)
                target.lose()
                return
            if item is UP:
                target.up = True
                target.party.link_up(target)
            else:
                items.append(item)
        if not target.alive:
            queue.clear()
        elif items:
            target.party.link_data(target, items)
        self.plan()

    def drop(self) -> None:
        self._queue.clear()
        self.bytes = 0


class Link:
    """One connection."""

    __slots__ = ("broken", "ends", "kind", "network", "ways")

    def __init__(self, network: Network, kind: str, near: tuple[str, Party], far: tuple[str, Party]) -> None:
        self.network = network
        self.kind = kind
        self.broken = False
        a, b = End(self, *near, dialled=True), End(self, *far, dialled=False)
        a.far, b.far = b, a
        a.way, b.way = Way(self, a, b), Way(self, b, a)
        self.ends = a, b
        self.ways = a.way, b.way

    def between(self, a: str, b: str) -> bool:
        return {end.name for end in self.ends} == {a, b}

    def tear(self, patience_us: int = 0) -> None:
        """It breaks: what is on its way is lost. Each end hears of it in its own time."""
        if self.broken:
            return
        self.broken = True
        self.network.links.pop(self, None)
        for way in self.ways:
            way.drop()
        for end in self.ends:
            wait_us = self.network.dice.randrange(200, 5000 + patience_us)
            self.network.timeline.after(wait_us, end.lose)


class Network:
    def __init__(self, timeline: Timeline, dice: Random) -> None:
        self.timeline = timeline
        self.dice = dice
        self.links: dict[Link, None] = {}
        self.cuts: set[tuple[str, str]] = set()
        """(from, to): nothing passes this way."""
        self.slow: dict[tuple[str, str], int] = {}
        """(from, to): how many times as long it takes."""
        self.dark: set[str] = set()
        """Machines without power: they do not even refuse."""
        self.repeats = 0.0
        """How likely it is that something between members comes twice."""
        self._arrivals: dict[tuple[str, str, str], int] = {}
        self._doors: dict[tuple[str, str], Callable[[Link], None]] = {}

    def delay_us(self, source: str, target: str) -> int:
        delay_us = 60 + int(self.dice.random() * 300)
        return delay_us * self.slow.get((source, target), 1)

    def arrival_us(self, kind: str, source: str, target: str) -> int:
        """When what leaves now is there. Nothing overtakes what left before between the same two, on whatever link of
        the same kind: what a client sent and gave up does not come behind what it sent instead."""
        way = kind, source, target
        arrives = self.timeline.now_us + self.delay_us(source, target)
        arrives = self._arrivals[way] = max(arrives, self._arrivals.get(way, 0))
        return arrives

    def repeated(self) -> bool:
        return self.dice.random() < self.repeats

    # Making links ----------------------------------------------------------------------------------------------

    def listen(self, kind: str, name: str, accept: Callable[[Link], None] | None) -> None:
        """Links of this kind to `name` go to `accept`, which calls `accepted`; None: they are refused."""
        if accept is None:
            self._doors.pop((kind, name), None)
        else:
            self._doors[kind, name] = accept

    def dial(self, kind: str, name: str, party: Party, far: str) -> End:
        """Try to reach `far`. The party hears `link_up` or `link_lost`."""
        link = Link(self, kind, (name, party), (far, NOBODY))
        near = link.ends[0]
        self.timeline.after(
            self.arrival_us(kind, name, far) - self.timeline.now_us, lambda: self._knock(link)
        )
        self.timeline.after(DIAL_PATIENCE_US, lambda: self._give_up(link))
        return near

    def _knock(self, link: Link) -> None:
        near, far = link.ends
        if far.name in self.dark or self.is_cut(near.name, far.name):
            return
        door = self._doors.get((link.kind, far.name))
        if door is not None:
            door(link)
        else:
            self.timeline.after(self.delay_us(far.name, near.name), lambda: near.lose(gone=True))

    def accepted(self, link: Link, party: Party) -> None:
        """The far end takes the link and may send at once."""
        near, far = link.ends
        if not near.alive or link.broken or self.is_cut(near.name, far.name):
            return
        far.party = party
        far.up = True
        self.links[link] = None
        far.way.put(UP, 0)
        party.link_up(far)

    def refused(self, link: Link) -> None:
        """The far end lets it be known that it wants no such link; its process lives."""
        near, far = link.ends
        self.timeline.after(self.delay_us(far.name, near.name), near.lose)

    def _give_up(self, link: Link) -> None:
        near, far = link.ends
        if not near.up and near.alive:
            near.alive = False
            if far.up:
                near.way.put(END, 0)
            near.party.link_lost(near, False)

    # Faults ------------------------------------------------------------------------------------------------------

    def is_cut(self, a: str, b: str) -> bool:
        """No link can be made between them."""
        return (a, b) in self.cuts or (b, a) in self.cuts

    def cut(self, source: str, target: str) -> None:
        """Nothing passes from `source` to `target`. Links between them are given up if it lasts."""
        self.cuts.add((source, target))
        for link in [link for link in self.links if link.between(source, target)]:
            self.timeline.after(self.dice.randrange(100_000, 3_000_000), lambda link=link: self._lasted(link))  # type: ignore[misc]

    def _lasted(self, link: Link) -> None:
        a, b = link.ends
        if link in self.links and self.is_cut(a.name, b.name):
            link.tear(1_000_000)

    def heal(self, source: str, target: str) -> None:
        self.cuts.discard((source, target))
        for link in list(self.links):
            if link.between(source, target):
                for way in link.ways:
                    way.plan()

    def heal_all(self) -> None:
        for source, target in sorted(self.cuts):
            self.heal(source, target)
        self.slow.clear()
        self.repeats = 0.0

    def lose_power(self, name: str) -> None:
        """Whoever has a link with this machine hears nothing more; he finds out in his own time."""
        self.dark.add(name)
        for link in list(self.links):
            if any(end.name == name for end in link.ends):
                link.tear(1_500_000)
