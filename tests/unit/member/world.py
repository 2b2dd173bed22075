"""Members of one cluster in one process: real logs and brokers over simulated disks, links that are lists, one kept view.

`Group` stands where the processes, the network and etcd stand. Nothing happens by itself: `settle` carries everything
until nothing moves, `pass_ms` lets time go by. Faults are said by name: a link is silent (`mute`), a disk does not get
to its work (`stall`), a process dies (`kill`) and comes back (`restart`).

Messages and frames are encoded and decoded as between real members.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import replace
from random import Random
from typing import Any

from unit.frontend.harness import START_MS, Client

from tidemark.broker.streams.commit import Batch, Put
from tidemark.broker.streams.core import KEY, VALUE, gather
from tidemark.broker.streams.session import StreamSession
from tidemark.broker.streams.stream import Stream
from tidemark.cluster.mode import Answer, MemberHere, State, Survey, Unasked
from tidemark.config import load
from tidemark.frontend.services import FrontEnd, Login, PeerInfo, Verdict
from tidemark.member.member import Member
from tidemark.model.peers import Acked, Hello, Message, Name, Outdated, Unit, View
from tidemark.model.rows import Row, RowBatch
from tidemark.node import Node
from tidemark.sim.disk import SimDisk
from tidemark.sim.store import CONFIG
from tidemark.wire.amqp091.methods import ChannelOpen, ConfirmSelect
from tidemark.wire.peer.codec import Decoder, encode, encode_unit

LEASE_MS = 1_000_000


class StallingDisk(SimDisk):
    """Takes what it is given and, while it is `stalled`, does not get to it."""

    stalled = False

    def completed(self) -> int:
        return self._done if self.stalled else super().completed()


class Process:
    """One member and its shell. Fits `member.MemberOutside`; clients of the test harness take it for their world."""

    def __init__(self, group: Group, name: Name, disk: SimDisk) -> None:
        self.group = group
        self.name = name
        self.disk = disk
        self.alive = True
        self.last_words: list[str] = []
        self.notes: list[tuple[str, str]] = []
        self.told: list[tuple[Name, Message]] = []
        self.clients: dict[FrontEnd, Client] = {}
        self.source: Name | None = None
        self.retired_nodes: list[Node] = []
        dice = Random(f"{name} {group.lives}")
        self.member = Member(group.config(name), disk, self, dice.randbytes)
        self.member.start(group.now_ms, group.ticks_ms)

    @property
    def node(self) -> Node:
        return self.member.node

    @property
    def state(self) -> State:
        return self.member.mode.state

    # What the node asks ----------------------------------------------------------------------------------------

    def due(self) -> None:
        pass

    def replaced(self, old: FrontEnd, new: FrontEnd) -> None:
        client = self.clients[new] = self.clients.pop(old)
        client.front_end = new  # type: ignore[assignment]

    def login(self, front_end: FrontEnd, login: Login) -> None:
        self.node.verdict(front_end, Verdict(login.user))

    def note(self, level: str, event: str, **facts: object) -> None:
        assert event != "unexpected exception", facts
        self.notes.append((level, event))

    # What the member asks --------------------------------------------------------------------------------------

    def tell(self, peer: Name, message: Message) -> None:
        self.told.append((peer, message))
        ours, theirs = (self.name, peer), (peer, self.name)
        up = isinstance(message, Hello | Acked) or (
            isinstance(message, Outdated) and ours in self.group.links
        )
        link = ours if up else theirs
        self.group.carry(link, self.name, peer, b"".join([encode(message)]))

    def ship(self, peer: Name, epoch: int, unit: Unit) -> None:
        data = b"".join(bytes(part) for part in encode_unit(epoch, unit))
        self.group.carry((peer, self.name), self.name, peer, data)

    def shipped(self) -> None:
        pass

    def backlog(self, peer: Name) -> int:
        return 0

    def dial(self, peer: Name | None) -> None:
        if peer != self.source:
            if self.source is not None:
                self.group.unlink((self.name, self.source))
            self.source = peer

    def drop(self, peer: Name) -> None:
        self.group.unlink((self.name, peer))
        self.group.unlink((peer, self.name))

    def propose(self, view: View) -> None:
        self.group.later.append(lambda: self.group.decide(self, view))

    def role(self, state: State, leader: Name | None) -> None:
        pass

    def retired(self, node: Node) -> None:
        self.retired_nodes.append(node)
        for front_end in list(self.clients):
            self.clients.pop(front_end)
            node.disconnect(front_end)

    def renewed(self, node: Node) -> None:
        pass

    def wake(self, at_ticks_ms: int) -> None:
        pass

    def drain(self) -> None:
        pass

    def quit(self, reason: str, clean: bool = False) -> None:
        """A process takes its time to end: until somebody calls `kill`, things go on happening to it."""
        self.last_words.append(reason)

    def here(self) -> MemberHere:
        """What it says of its store."""
        store = self.node.store
        status = store.files.status
        return MemberHere(self.name, status.cluster, store.durable_ends, status.epoch, store.table)

    # Turns -------------------------------------------------------------------------------------------------------

    def turn(self) -> None:
        """What clients of the harness call when they have sent something."""
        self.group.settle()

    def work(self) -> None:
        self.member.turn(self.group.now_ms)
        self.flush()
        self.member.completed(self.group.now_ms)
        self.flush()

    def flush(self) -> None:
        node = self.node
        touched, node.touched_front_ends = node.touched_front_ends, {}
        for front_end in touched:
            if front_end in self.clients:
                self.clients[front_end].hear(b"".join(front_end.output()))

    # Clients -----------------------------------------------------------------------------------------------------

    def open(self, channels: int = 1, *, confirms: bool = False) -> Client:
        front_end = self.node.connect(PeerInfo("127.0.0.1", 40_000 + len(self.clients)))
        client = self.clients[front_end] = Client(self, front_end)  # type: ignore[arg-type]
        client.shake_hands()
        for number in range(1, channels + 1):
            client.ask(number, ChannelOpen())
            if confirms:
                client.ask(number, ConfirmSelect())
        return client

    def session(self) -> StreamSession:
        return StreamSession(self.node.broker.open_session("/", "guest", None, "test"))

    def queue(self, name: str) -> Any:
        return self.node.broker.vhosts["/"].queues.get(name)

    def stream(self, name: str = "s") -> Stream:
        stream: Stream = self.queue(name)
        return stream

    def put(self, stream: str = "s", **rows: str) -> int:
        """Put keys and values into a stream, in one batch. Returns the sequence of the last."""
        made = [Row(key.encode(), value.encode()) for key, value in rows.items()]
        return self.session().commit(Batch([Put(stream, RowBatch.build(made))])).safe_at

    def rows(self, stream: str = "s", seq: int | None = None) -> dict[bytes, bytes]:
        """What a snapshot shows: now, or at a sequence."""
        found = self.stream(stream)
        at = found.boundary if seq is None else seq
        shown: dict[bytes, bytes] = {}
        after = 0
        while (taken := found.take(at, after, at, 1000, 1 << 20)) is not None:
            after = found.position
            for row in gather(found, taken, KEY | VALUE):
                shown[bytes(row.key)] = bytes(row.value)
        return shown


class Group:
    def __init__(self, names: str = "abc", *, show: str = "durable", **cluster: Any) -> None:
        self.now_ms = START_MS
        self.ticks_ms = 1000
        self.lives = 0
        self.view: View | None = None
        self.links: set[tuple[Name, Name]] = set()
        self._ended: set[tuple[Name, Name]] = set()
        """Of which that is still to be heard. No other is made before."""
        """(who dialled, its source)"""
        self.muted: set[tuple[Name, Name]] = set()
        """(from, to): what is sent this way waits."""
        self.waiting: deque[tuple[tuple[Name, Name], int, Name, Name, bytes]] = deque()
        self.later: deque[Callable[[], None]] = deque()
        self._made: dict[tuple[Name, Name], int] = {}
        """How often a link was made: what was sent over an earlier one is lost."""
        self._cluster = cluster
        self._show = show
        self._names = names
        self.processes: dict[Name, Process] = {}
        for name in names:
            self.processes[name] = Process(self, name, StallingDisk())
        self.introduce()
        self.settle()

    def config(self, name: Name) -> Any:
        settings = load({"broker.scrypt_log2_n": "10", "limits.disk_free_bytes_min": "0", "node.name": name})
        cluster = replace(settings.cluster, **{"size": len(self._names), **self._cluster})
        broker = replace(settings.broker, show=self._show)
        return replace(settings, store=CONFIG, cluster=cluster, broker=broker)

    def __getitem__(self, name: Name) -> Process:
        return self.processes[name]

    def __iter__(self) -> Iterator[Process]:
        return iter([process for process in self.processes.values() if process.alive])

    @property
    def leader(self) -> Process:
        assert self.view is not None
        return self.processes[self.view.leader]

    @property
    def followers(self) -> list[Process]:
        return [process for process in self if process is not self.leader]

    # Who is there ------------------------------------------------------------------------------------------------

    def introduce(self) -> None:
        for process in self:
            process.member.view_changed(self.view)
            process.member.lease(self.ticks_ms + LEASE_MS)
        for process in self:
            for other in self:
                other.member.member_here(process.here())

    def decide(self, process: Process, view: View) -> None:
        """Compare and swap."""
        kept = 0 if self.view is None else self.view.revision
        if not process.alive:
            return
        if view.revision != kept:
            process.member.proposal_failed(view)
            return
        self.view = replace(view, revision=kept + 1)
        for each in self:
            each.member.view_changed(self.view)

    def survey(self, name: Name) -> Survey:
        """What the others tell this one that asks them."""
        others = [process for process in self.processes.values() if process.name != name]
        return Survey(
            self.view.revision if self.view is not None else 0,
            tuple(process.here() for process in others if process.alive),
            tuple(Unasked(process.name, "connection refused") for process in others if not process.alive),
        )

    def promote(self, name: Name, *, accept_loss: bool = False, named: bool = False) -> Answer:
        """An operator asks for it, after the others were asked."""
        member = self[name].member
        return member.ask("promote", name if named else "", accept_loss=accept_loss, survey=self.survey(name))

    # Links ---------------------------------------------------------------------------------------------------------

    def carry(self, link: tuple[Name, Name], sender: Name, to: Name, data: bytes) -> None:
        if link in self.links:
            self.waiting.append((link, self._made[link], sender, to, data))

    def unlink(self, link: tuple[Name, Name]) -> None:
        if link in self.links:
            self.links.discard(link)
            self._ended.add(link)
            reader, source = link
            self.later.append(lambda: self._heard_down(reader, source))

    def _heard_down(self, reader: Name, source: Name) -> None:
        self._ended.discard((reader, source))
        if self.processes[reader].alive:
            self.processes[reader].member.peer_down(source, True)
        if self.processes[source].alive:
            self.processes[source].member.peer_down(reader, False)

    def _dial_all(self) -> bool:
        moved = False
        for process in self:
            source = process.source
            link = (process.name, source or "")
            if source is None or link in self.links or link in self._ended:
                continue
            if not self.processes[source].alive:
                continue
            self.links.add(link)
            self._made[link] = self._made.get(link, 0) + 1
            self.processes[source].member.peer_up(process.name, False)
            process.member.peer_up(source, True)
            moved = True
        return moved

    def _refuse_dead(self) -> None:
        """Nothing listens where a process has died."""
        for process in self:
            if process.source is not None and not self.processes[process.source].alive:
                process.member.peer_down(process.source, True, gone=True)

    def _deliver(self) -> bool:
        moved = False
        for _ in range(len(self.waiting)):
            item = self.waiting.popleft()
            link, made, sender, to, data = item
            if link not in self.links or made != self._made[link] or not self.processes[to].alive:
                continue
            if (sender, to) in self.muted:
                self.waiting.append(item)
                continue
            moved = True
            member = self.processes[to].member
            for thing in Decoder().feed(data):
                if isinstance(thing, tuple):
                    member.given(sender, *thing)
                else:
                    member.peer_said(sender, thing)
        return moved

    # Time ----------------------------------------------------------------------------------------------------------

    def settle(self) -> None:
        """Everything is carried, written and answered until nothing moves."""
        for _ in range(2000):
            before = [self._stand(process) for process in self]
            moved = self._dial_all()
            while self.later:
                self.later.popleft()()
                moved = True
            for process in self:
                process.work()
            moved = self._deliver() or moved
            if not moved and before == [self._stand(process) for process in self]:
                return
        raise AssertionError("the group does not come to rest")

    def _stand(self, process: Process) -> tuple[Any, ...]:
        store, member = process.node.store, process.member
        busy = bool(process.node.touched_front_ends) or (member.serving and bool(process.node.broker.dirty))
        return store.ends, store.durable_ends, member._complete, process.state, id(process.node), busy

    def pass_ms(self, elapsed_ms: int = 100, steps: int = 1) -> None:
        """Time goes by, with ticks, housekeeping and leases that are renewed."""
        for _ in range(steps):
            self.now_ms += elapsed_ms
            self.ticks_ms += elapsed_ms
            for process in self:
                process.member.lease(self.ticks_ms + LEASE_MS)
                process.member.tick(self.now_ms, self.ticks_ms)
                process.node.tick(self.now_ms)
            self._refuse_dead()
            self.settle()
            for process in self:
                process.member.maintain(self.now_ms, 1 << 20)
                process.node.watch(0, 1 << 40, 1 << 40)
            self.settle()

    def until_ready(self) -> None:
        """All that live are ready or lead, and the leader serves."""
        for _ in range(200):
            states = {process.state for process in self}
            if states <= {State.READY, State.ACTIVE} and self.leader.alive and self.leader.member.serving:
                assert self.view is not None and len(self.view.ready) == len(list(self))
                return
            self.pass_ms(100)
        raise AssertionError({process.name: (process.state, process.member.why) for process in self})

    # Faults ----------------------------------------------------------------------------------------------------------

    def kill(self, name: Name, *, power: bool = False) -> None:
        process = self.processes[name]
        process.alive = False
        process.disk.stalled = False  # type: ignore[attr-defined]
        for link in [link for link in self.links if name in link]:
            self.links.discard(link)
            reader, source = link
            other = self.processes[source if reader == name else reader]
            if other.alive:
                other.member.peer_down(name, reader != name)
        crashed = process.disk.crash(power)
        crashed.__class__ = StallingDisk
        process.disk = crashed

    def end_lease(self, name: Name) -> None:
        """A member that died is missed by all, not only by those that are linked with it."""
        assert not self.processes[name].alive
        for process in self:
            process.member.member_gone(name)

    def fail_over(self, *, power: bool = False) -> Process:
        """The leader dies; another one serves."""
        old = self.leader
        self.kill(old.name, power=power)
        for _ in range(100):
            self.pass_ms(50)
            if self.leader is not old and self.leader.member.serving:
                return self.leader
        raise AssertionError([(process.name, process.state, process.member.why) for process in self])

    def restart(self, name: Name, disk: SimDisk | None = None) -> Process:
        self.lives += 1
        process = self.processes[name] = Process(self, name, disk or self.processes[name].disk)
        self.introduce()
        self.settle()
        return process

    @contextmanager
    def mute(self, sender: Name, to: Name) -> Iterator[None]:
        """What `sender` sends to `to` waits; the link stays."""
        self.muted.add((sender, to))
        yield
        self.muted.discard((sender, to))

    @contextmanager
    def stall(self, name: Name) -> Iterator[None]:
        """The disk of a member does not get to its work."""
        disk: Any = self.processes[name].disk
        disk.stalled = True
        yield
        disk.stalled = False
