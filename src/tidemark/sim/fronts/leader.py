"""The leader of a group: a machine with a node alone, which fronts connect to as they do to a member.

They come for their clients, for themselves, and for its wiring.

Invariant: a front is told nothing by a process that has died.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from tidemark.broker.feed import WiringFeed
from tidemark.frontend.services import PeerInfo
from tidemark.model.peers import Name
from tidemark.sim.cluster.machine import Machine, Shell
from tidemark.sim.cluster.network import End
from tidemark.sim.fronts.feeds import FEED, FeedEnd

if TYPE_CHECKING:
    from tidemark.sim.fronts.world import FrontsWorld

FRONT, OWN = "front", "own"
"""Links of a front: for one of its clients, and for itself."""
KINDS = (FRONT, OWN, FEED)


class Leader(Machine):
    world: FrontsWorld

    def __init__(self, world: FrontsWorld, name: Name) -> None:
        super().__init__(world, name)
        self.feed_ends: dict[End, FeedEnd] = {}
        self.mute_feeds = False
        """What fronts are to be told does not leave for now."""
        self._feed: WiringFeed | None = None

    def mute(self, yes: bool) -> None:
        self.mute_feeds = yes
        for feed_end in list(self.feed_ends.values()):
            feed_end.pump_soon()

    def start(self) -> None:
        super().start()
        if self.running:
            self._feed = WiringFeed(self.node.broker)
            for kind in KINDS:
                self.network.listen(kind, self.name, self._door)

    def die(self, *, power: bool) -> None:
        for kind in KINDS:
            self.network.listen(kind, self.name, None)
        ends, self.feed_ends = list(self.feed_ends), {}
        self._feed = None
        for end in ends:
            if power:
                end.alive = False
            else:
                end.close(abruptly=True)
        super().die(power=power)

    def drain(self) -> None:
        for kind in KINDS:
            self.network.listen(kind, self.name, None)
        for feed_end in list(self.feed_ends.values()):
            feed_end.close()
        super().drain()

    def _turn(self) -> None:
        super()._turn()
        self._release()

    def _disk_news(self) -> None:
        super()._disk_news()
        self._release()

    def _release(self) -> None:
        for feed_end in list(self.feed_ends.values()):
            feed_end.release()

    # Links -------------------------------------------------------------------------------------------------------

    def _up(self, end: End) -> None:
        if end.kind not in KINDS:
            super()._up(end)
        elif not end.alive:
            return
        elif end.kind == FEED:
            assert self._feed is not None
            self.feed_ends[end] = FeedEnd(self, self._feed, end)
        else:
            self.node.at(self.clock.now_ms())
            port = 40_000 + self.world.next_port()
            front = end.far.name
            front_end = self.node.connect(
                PeerInfo("127.0.0.1", port, self.name, 5672, front=front, own=end.kind == OWN)
            )
            self.shells[front_end] = end.state = Shell(end, front_end)

    def _data(self, end: End, items: list[Any]) -> None:
        if end.kind not in KINDS:
            super()._data(end, items)
        elif not end.alive:
            return
        elif end.kind == FEED:
            self.feed_ends[end].received(items)
        else:
            shell: Shell = end.state
            shell.rest += b"".join(items)
            self._receive(shell)

    def _lost(self, end: End, gone: bool) -> None:
        if end.kind != FEED:
            super()._lost(end, gone)
        elif end in self.feed_ends:
            self.feed_ends[end].close()
