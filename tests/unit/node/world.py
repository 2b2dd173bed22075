"""A whole node over a simulated disk, with clients that talk to it in bytes.

`NodeWorld` stands where the process stands: it gives the node the time, carries bytes, and lets the disk
work. `crash` gives the world that the next process finds.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from random import Random

from unit.frontend.harness import START_MS, Client

from tidemark.broker.queue import Queue
from tidemark.config import load
from tidemark.errors import DiskFull
from tidemark.frontend.services import FrontEnd, Login, PeerInfo, Verdict
from tidemark.node import Node
from tidemark.sim.disk import SimDisk
from tidemark.sim.store import CONFIG
from tidemark.wire.amqp091.methods import ChannelOpen


class NodeWorld:
    """Fits `node.Outside`."""

    def __init__(
        self, disk: SimDisk | None = None, now_ms: int = START_MS, flags: dict[str, str] | None = None
    ) -> None:
        self.disk = disk or SimDisk()
        self.now_ms = now_ms
        self.notes: list[tuple[str, str]] = []
        self.clients: dict[FrontEnd, Client] = {}
        usual = {"broker.scrypt_log2_n": "10", "limits.disk_free_bytes_min": "0"}
        settings = load(usual | (flags or {}))
        self.node = Node(replace(settings, store=CONFIG), self.disk, self, Random(now_ms).randbytes)
        self.node.start(now_ms)
        self.broker = self.node.broker
        self.turn()

    # Outside ----------------------------------------------------------------------------------------------------

    def due(self) -> None:
        pass

    def replaced(self, old: FrontEnd, new: FrontEnd) -> None:
        client = self.clients[new] = self.clients.pop(old)
        client.front_end = new  # type: ignore[assignment]

    def login(self, front_end: FrontEnd, login: Login) -> None:
        self.node.verdict(front_end, Verdict(login.user))

    def note(self, level: str, event: str, **facts: object) -> None:
        self.notes.append((level, event))

    # What a process does ------------------------------------------------------------------------------------------

    def turn(self) -> None:
        """Turns, and what the disk does for them, until nothing moves; what finds no room on it may wait."""
        for _ in range(100):
            self.node.turn(self.now_ms)
            self.carry()
            self.node.completed(self.now_ms)
            if not self.node.touched_front_ends and (not self.broker.dirty or self.node.alarms.disk):
                return
        raise AssertionError("the world does not come to rest")

    def carry(self) -> None:
        """The output of the front ends goes to their clients."""
        touched, self.node.touched_front_ends = self.node.touched_front_ends, {}
        for front_end in touched:
            if front_end in self.clients:
                self.clients[front_end].hear(b"".join(front_end.output()))

    def rest(self, slices: int = 20, elapsed_ms: int = 100) -> None:
        """Time passes: turns with housekeeping and watching between them."""
        for _ in range(slices):
            self.now_ms += elapsed_ms
            self.node.turn(self.now_ms)
            self.node.completed(self.now_ms)
            self.node.maintain(self.now_ms, 1 << 20)
            self.node.watch(0, 1 << 40, 1 << 40)
        self.turn()

    def open(self, channels: int = 1) -> Client:
        front_end = self.node.connect(PeerInfo("127.0.0.1", 40_000 + len(self.clients)))
        client = self.clients[front_end] = Client(self, front_end)  # type: ignore[arg-type]
        client.shake_hands()
        for number in range(1, channels + 1):
            client.ask(number, ChannelOpen())
        return client

    def lose(self, client: Client) -> None:
        """Its socket breaks."""
        del self.clients[client.front_end]
        self.node.disconnect(client.front_end)

    def crash(self, power: bool = True) -> NodeWorld:
        """What the next process finds; somebody has made room on the disk meanwhile."""
        disk = self.disk.crash(power)
        disk.capacity = 1 << 40
        return NodeWorld(disk, self.now_ms + 1000)

    def queue(self, name: str) -> Queue:
        return self.broker.vhosts["/"].queues[name]

    # A disk without room ------------------------------------------------------------------------------------------

    @contextmanager
    def no_room(self) -> Iterator[None]:
        """The disk is full, and so is the last segment. Afterwards there is room again, and time to notice."""
        self.disk.capacity -= self.disk.free_bytes()
        try:
            while True:
                self.node.journal.counted(1, [(1, 1)], self.now_ms)
        except DiskFull:
            pass
        yield
        self.disk.capacity = 1 << 40
        self.rest()

    @contextmanager
    def slow_disk(self) -> Iterator[None]:
        """The disk takes what it is given and does not get to it."""
        self.disk.completed = lambda: self.disk._done  # type: ignore[method-assign]
        yield
        del self.disk.completed
