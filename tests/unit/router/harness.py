"""A front in memory: clients that talk to it in bytes, and behind it real brokers, one a group.

`Front` is the process without sockets: a router's links are joined to the front ends of the brokers in
`unit.frontend.harness`, byte by byte. The wiring is the copy that a front has, and main feeds it at once.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from unit.frontend.harness import START_MS, Client, World

from tidemark.broker.feed import WiringFeed, encoded
from tidemark.broker.wiring_copy import WiringCopy
from tidemark.frontend.amqp091.config import Amqp091Config
from tidemark.frontend.amqp091.connection import Amqp091
from tidemark.frontend.services import PeerInfo
from tidemark.router.connection import Router
from tidemark.router.link import Link
from tidemark.router.wiring import MAIN, OneGroup, Wiring
from tidemark.wire.amqp091 import methods
from tidemark.wire.amqp091.content import Amqp091Content


class Fed(WiringCopy):
    """Fits `Wiring`: the copy that a front has, fed by the broker that is main."""

    def __init__(self, main: World, groups: dict[str, str]) -> None:
        super().__init__(Amqp091Content(), groups)
        self.slow = False
        """Answers to `fresh` wait for `freshen`."""
        self.asked: list[Callable[[], None]] = []
        for spec in WiringFeed(main.broker).listen(self):
            self.take(encoded(spec))

    def changed(self, change: bytes) -> None:
        self.take(change)

    def waits(self, vhost: str, queue: str) -> None:
        """Whoever moves messages listens for itself."""

    def fresh(self, then: Callable[[], None]) -> None:
        if self.slow:
            self.asked.append(then)
        else:
            then()

    def freshen(self) -> None:
        asked, self.asked = self.asked, []
        for then in asked:
            then()


class Wire:
    """The socket between a link and the front end of a broker."""

    def __init__(self, world: World, link: Link, by: str = "") -> None:
        """`by`: the front whose words the broker takes them for; whether it comes for itself the link's owner says."""
        self.link = link
        self.cut = False
        port = 50_000 + len(world.clients)
        self.front_end = Amqp091(
            world, PeerInfo("127.0.0.1", port, "127.0.0.1", 5672, front=by, own=link.owner.peer.own)
        )
        self._world = world
        self._held = False
        self._to_broker = self._to_front = b""
        world.clients[self.front_end] = self  # type: ignore[assignment]

    def hear(self, data: bytes) -> None:
        """Bytes from the broker."""
        if self.cut:
            return
        self._to_front += data
        used = self.link.receive(memoryview(self._to_front))
        self._to_front = self._to_front[used:]

    def flush(self) -> None:
        """Bytes to the broker."""
        self._to_broker += b"".join(self.link.output())
        if not self.cut and not self._held and self._to_broker:
            used = self.front_end.receive(memoryview(self._to_broker))
            self._to_broker = self._to_broker[used:]
        if self.link.closed and not self._held:
            self.hang_up()

    def hold(self) -> None:
        """Bytes to the broker take long from now on, and so does the end of the link."""
        self._held = True

    def let_go(self) -> None:
        """They arrive."""
        self._held = False
        self.flush()

    def notice(self) -> None:
        """Whether the broker has hung up."""
        if self.front_end.closed and not self.cut:
            self.cut = True
            self.link.receive_eof()

    def hang_up(self) -> None:
        if not self.cut:
            self.cut = True
            self.front_end.receive_eof()


class Front:
    """Fits `Outside`."""

    dial_s_max = 5

    def __init__(self, *groups: str, **settings: Any) -> None:
        self.through = not groups
        self.config = Amqp091Config(**settings)
        self.now_ms = START_MS
        self.worlds = {group: World() for group in (MAIN, *groups)}
        others = dict.fromkeys(groups, "chain")
        self.main.broker.other_groups = others
        for group in groups:
            self.worlds[group].broker.group = group
        self.copy = Fed(self.main, {MAIN: "standby"} | others)
        self.wiring: Wiring = self.copy if groups else OneGroup()
        self.notes: list[tuple[str, str, dict[str, object]]] = []
        self.logins: list[tuple[str, bool]] = []
        self.clients: dict[Router, Client] = {}
        self.wires: dict[Link, Wire] = {}
        self.away: dict[str, str] = {}
        """Groups that cannot be reached, and why."""
        self.refusals: list[str] = []
        """What members have said to links that were dialled again."""
        self._dials: list[Link] = []
        self._touched: dict[Router | Link, None] = {}

    @property
    def main(self) -> World:
        return self.worlds[MAIN]

    def may_come(self, user: str, peer: PeerInfo) -> str | None:
        return "not from there" if user == "stranger" else None

    def came(self, user: str, peer: PeerInfo, good: bool) -> None:
        self.logins.append((user, good))

    def dial(self, link: Link, refusal: str) -> None:
        if refusal:
            self.refusals.append(refusal)
        self._dials.append(link)

    def touched(self, one: Router | Link) -> None:
        self._touched[one] = None

    def note(self, level: str, event: str, **facts: object) -> None:
        self.notes.append((level, event, facts))

    # What a shell does ---------------------------------------------------------------------------

    def turn(self) -> None:
        """Carry bytes until nothing moves."""
        for _ in range(1000):
            dials, self._dials = self._dials, []
            for link in dials:
                self._dialled(link)
            touched, self._touched = self._touched, {}
            for one in touched:
                if isinstance(one, Router):
                    self.clients[one].hear(b"".join(one.output()))
                elif one in self.wires:
                    self.wires[one].flush()
            for world in self.worlds.values():
                world.turn()
            for wire in list(self.wires.values()):
                wire.notice()
            if not (self._touched or self._dials):
                return
        raise AssertionError("the front does not come to rest")

    def _dialled(self, link: Link) -> None:
        if link.closed:
            return
        if link.group in self.away:
            self.now_ms += 1000
            link.lose(self.away[link.group])
            return
        if link in self.wires:
            self.wires[link].hang_up()
        self.wires[link] = Wire(self.worlds[link.group], link, "" if self.through else "front")
        link.connected()

    def connect(self) -> Client:
        router = Router(self, PeerInfo("127.0.0.1", 40_000 + len(self.clients), "127.0.0.1", 5672))
        client = self.clients[router] = Client(self, router)  # type: ignore[arg-type]
        return client

    def open(self, *, channels: int = 1, **options: Any) -> Client:
        """A client after its handshake, with channels 1 to `channels` open."""
        client = self.connect()
        client.shake_hands(**options)
        for number in range(1, channels + 1):
            client.ask(number, methods.ChannelOpen())
        return client

    def lose(self, group: str) -> None:
        """The leader of a group dies."""
        for link, wire in list(self.wires.items()):
            if link.group == group:
                wire.hang_up()
                link.receive_eof()
        self.turn()

    def pass_ms(self, elapsed_ms: int) -> None:
        self.now_ms += elapsed_ms
        for router in list(self.clients):
            router.tick(self.now_ms)
        self.turn()
