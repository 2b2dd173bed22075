"""A front as a process of the simulated world: real routers, links and a mover, where `runtime/front_server.py` has sockets.

A turn follows whatever happened: it sends what routers and links have ready. A link is dialled until the leader of
its group takes it, or for too long. A front keeps nothing: killed and started again, it begins with nothing.

Invariant: a link of a router has at most one end of the network.
"""

from __future__ import annotations

from random import Random
from typing import TYPE_CHECKING, Any

from tidemark.frontend.amqp091.config import Amqp091Config
from tidemark.frontend.services import PeerInfo
from tidemark.model.peers import Name
from tidemark.router.channel import State
from tidemark.router.connection import Router
from tidemark.router.link import Link
from tidemark.router.mover import Mover
from tidemark.router.wiring import MAIN, Wiring
from tidemark.sim.cluster.clock import MemberClock
from tidemark.sim.cluster.network import CLIENT, End
from tidemark.sim.cluster.network import Link as Connection
from tidemark.sim.cluster.process import Process
from tidemark.sim.fronts.feeds import FEED, FeedLink
from tidemark.sim.fronts.leader import FRONT, OWN
from tidemark.sim.store import BrokenPromise
from tidemark.wire.amqp091.methods import Method, ids_of

if TYPE_CHECKING:
    from tidemark.sim.fronts.world import FrontsWorld

TICK_US = 1_000_000
RETRY_US = 100_000
GOODBYE_US = 200_000


class Pipe:
    """Joins an end of the network to a router or a link."""

    __slots__ = ("end", "machine", "rest")

    def __init__(self, end: End, machine: Any) -> None:
        self.end = end
        self.machine = machine
        self.rest = b""
        """What came and was not read yet."""


class Dial:
    """A link that looks for its leader."""

    __slots__ = ("deadline_us", "end", "link")

    def __init__(self, link: Link, deadline_us: int) -> None:
        self.link = link
        self.deadline_us = deadline_us
        self.end: End | None = None


class Front(Process):
    """Fits `router.connection.Outside` and `network.Party`."""

    through = False
    dial_s_max = 5

    def __init__(self, world: FrontsWorld, name: Name) -> None:
        super().__init__(world.timeline)
        self.world = world
        self.name = name
        self.network = world.network
        self.dice = Random(f"{world.seed} {name}")
        self.clock = MemberClock(self.timeline, self.dice.choice((0, 40, -1500)))
        self.config = Amqp091Config()
        self.now_ms = self.clock.now_ms()
        self._alive = False
        self._begin()

    def _begin(self) -> None:
        """All that a process has when it starts."""
        self.feeds = {group: FeedLink(self, group) for group in self.world.machines}
        self.wiring: Wiring = self.feeds[MAIN].copy
        self.mover = Mover(self, self.name)
        self._routers: dict[Router, None] = {}
        self._pipes: dict[Router | Link, Pipe] = {}
        self._dials: dict[Link, Dial] = {}
        self._touched: dict[Router | Link, None] = {}
        self._turn_due = False

    # The process -------------------------------------------------------------------------------------------------

    @property
    def running(self) -> bool:
        return self._alive

    def start(self) -> None:
        assert not self._alive
        self.end_life()
        self._alive = True
        self.network.dark.discard(self.name)
        self._at()
        self._begin()
        self.world.say(self.name, "starts")
        self.network.listen(CLIENT, self.name, self._door)
        for feed in self.feeds.values():
            self.later(self.dice.randrange(1000), feed.dial)
        self.later(self.dice.randrange(TICK_US), self._tick)

    def die(self, *, power: bool) -> None:
        if not self._alive:
            return
        self._alive = False
        self.end_life()
        self.network.listen(CLIENT, self.name, None)
        ends = [pipe.end for pipe in self._pipes.values()]
        ends += [dial.end for dial in self._dials.values() if dial.end is not None]
        ends += [feed.end for feed in self.feeds.values() if feed.end is not None]
        if power:
            for end in ends:
                end.alive = False
            self.network.lose_power(self.name)
        else:
            abruptly = self.dice.random() < 0.5
            for end in ends:
                end.close(abruptly=abruptly)
        self._begin()

    def stop(self) -> None:
        """Ask the process to end in good order."""
        self.post(self._say_goodbye)

    def _say_goodbye(self) -> None:
        self.network.listen(CLIENT, self.name, None)
        self._at()
        for router in list(self._routers):
            router.shutdown(320, "the front is shutting down")
        self.mover.stop()
        self._due()
        self.later(GOODBYE_US, lambda: self.die(power=False))

    def asked(self, kind: type[Method]) -> bool:
        """Whether a client waits for the answer to such a method."""
        return any(
            channel.asked == ids_of(kind) and channel.state is State.WAITING
            for router in self._routers
            for channel in router._channels._open.values()
        )

    def waits(self, group: str, vhost: str, queue: str) -> None:
        self._at()
        self.mover.told(group, vhost, queue)

    # A turn --------------------------------------------------------------------------------------------------------

    def _at(self) -> None:
        self.now_ms = self.clock.now_ms()

    def _due(self) -> None:
        if not self._turn_due:
            self._turn_due = True
            self.later(20, self._turn)

    def _turn(self) -> None:
        self._turn_due = False
        touched, self._touched = self._touched, {}
        for one in touched:
            pipe = self._pipes.get(one)
            if pipe is not None:
                self._flush(pipe)
            elif isinstance(one, Link) and one.closed:
                self._give_up(one)
        for pipe in list(self._pipes.values()):
            if pipe.rest:
                self._receive(pipe)

    def _flush(self, pipe: Pipe) -> None:
        output = pipe.machine.output()
        if output:
            pipe.end.send(b"".join(output))
        if pipe.machine.closed:
            pipe.end.close()
            self._gone(pipe)

    def _receive(self, pipe: Pipe) -> None:
        if pipe.machine.wants_read() and pipe.rest:
            self._at()
            used = pipe.machine.receive(memoryview(pipe.rest))
            pipe.rest = pipe.rest[used:]
            self._due()

    def _tick(self) -> None:
        self.later(TICK_US, self._tick)
        self._at()
        for router in list(self._routers):
            router.tick(self.now_ms)
        self.mover.tick(self.now_ms)

    # The network -----------------------------------------------------------------------------------------------------

    def _door(self, connection: Connection) -> None:
        self.post(lambda: self.network.accepted(connection, self))

    def link_up(self, end: End) -> None:
        self.post(lambda: self._up(end))

    def link_data(self, end: End, items: list[Any]) -> None:
        self.post(lambda: self._data(end, items))

    def link_lost(self, end: End, gone: bool) -> None:
        self.post(lambda: self._lost(end, gone))

    def dialled(self, kind: str, group: str) -> End:
        return self.network.dial(kind, self.name, self, group)

    def _up(self, end: End) -> None:
        if not end.alive:
            return
        self._at()
        if end.kind == FEED:
            self.feeds[end.far.name].up(end)
        elif end.kind == CLIENT:
            peer = PeerInfo("127.0.0.1", 40_000 + self.world.next_port(), self.name, 5672)
            router = Router(self, peer)
            self._routers[router] = None
            self._pipes[router] = end.state = Pipe(end, router)
        else:
            dial: Dial = end.state
            if dial.end is not end or self._dials.get(dial.link) is not dial:
                end.close()
                return
            del self._dials[dial.link]
            if dial.link.closed:
                end.close()
                return
            self._pipes[dial.link] = end.state = Pipe(end, dial.link)
            dial.link.connected()

    def _data(self, end: End, items: list[Any]) -> None:
        if not end.alive:
            return
        self._at()
        if end.kind == FEED:
            self.feeds[end.far.name].received(end, items)
            return
        pipe: Pipe = end.state
        pipe.rest += b"".join(items)
        self._receive(pipe)

    def _lost(self, end: End, gone: bool) -> None:
        self._at()
        if end.kind == FEED:
            self.feeds[end.far.name].lost(end)
        elif isinstance(end.state, Dial):
            if end.state.end is end and self._dials.get(end.state.link) is end.state:
                self._dial_again(end.state, "it is not there" if gone else "no answer")
        elif end.state is not None:
            self._gone(end.state)

    def _gone(self, pipe: Pipe) -> None:
        if self._pipes.get(pipe.machine) is not pipe:
            return
        del self._pipes[pipe.machine]
        if isinstance(pipe.machine, Router):
            self._routers.pop(pipe.machine, None)
        pipe.machine.receive_eof()
        self._due()

    # What routers and links ask -----------------------------------------------------------------------------------

    def dial(self, link: Any, refusal: str) -> None:  # noqa: ARG002
        before = self._pipes.pop(link, None)
        if before is not None:
            before.end.close(abruptly=True)
        dial = self._dials[link] = Dial(link, self.timeline.now_us + self.dial_s_max * 1_000_000)
        if link.tries:
            self.later(RETRY_US, lambda: self._dial(dial))
        else:
            self._dial(dial)

    def _dial(self, dial: Dial) -> None:
        if self._dials.get(dial.link) is not dial:
            return
        kind = OWN if dial.link.owner.peer.own else FRONT
        dial.end = self.dialled(kind, dial.link.group)
        dial.end.state = dial

    def _dial_again(self, dial: Dial, problem: str) -> None:
        if self.timeline.now_us < dial.deadline_us:
            self.later(RETRY_US, lambda: self._dial(dial))
        else:
            del self._dials[dial.link]
            dial.link.lose(problem)

    def _give_up(self, link: Link) -> None:
        """Nobody wants it any more."""
        dial = self._dials.pop(link, None)
        if dial is not None and dial.end is not None:
            dial.end.close()

    def may_come(self, user: str, peer: PeerInfo) -> str | None:  # noqa: ARG002
        return None

    def came(self, user: str, peer: PeerInfo, good: bool) -> None:
        """Nobody counts logins here."""

    def touched(self, one: Any) -> None:
        self._touched[one] = None
        self._due()

    def note(self, level: str, event: str, **facts: object) -> None:
        self.world.say(self.name, "%s %s", event, facts)
        self.world.count(event)
        if level == "error":
            cause = facts.get("error")
            raise BrokenPromise(f"{self.name}: {event}: {facts}") from (
                cause if isinstance(cause, Exception) else None
            )
