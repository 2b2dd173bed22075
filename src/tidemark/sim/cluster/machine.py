"""One machine of the simulated cluster: a process with a member in it, a disk, two clocks, and its ends of links.

It stands where `runtime/` stands: it carries bytes between links and front ends, lets a turn follow whatever happened,
rings when the disk is done, keeps a link to the member's source, speaks with etcd through an agent, and starts the
process again when it ended. It decides nothing about messages.

A process can be killed (the machine goes on, links are refused), lose its power (unsynced writes are kept, lost or
torn, and nobody is told), or stand still for a while: then whatever happens to it waits, and its clocks go on.

Invariant: nothing that was planned in one life of the process happens in another.
"""

from __future__ import annotations

from collections.abc import Callable
from random import Random
from typing import TYPE_CHECKING, Any

from tidemark.cluster.mode import Answer, MemberHere, State, Survey
from tidemark.errors import CorruptRecord, StoreError
from tidemark.frontend.services import FrontEnd, Login, PeerInfo, Verdict
from tidemark.model.peers import Acked, Completed, Hello, Message, Name, Outdated, View
from tidemark.sim.apart import SimApart
from tidemark.sim.cluster.clock import MemberClock
from tidemark.sim.cluster.direct import Direct
from tidemark.sim.cluster.disk import TimedDisk
from tidemark.sim.cluster.etcd import Agent
from tidemark.sim.cluster.external import Teller
from tidemark.sim.cluster.network import CLIENT, PEER, End, Link
from tidemark.sim.cluster.process import Process
from tidemark.sim.cluster.surveyor import Surveyor
from tidemark.sim.cluster.telling import Telling
from tidemark.sim.store import BrokenPromise

if TYPE_CHECKING:
    from tidemark.node import Node
    from tidemark.sim.cluster.world import World

DIRECT = "direct"
READS = "reads"
"""Like `DIRECT`, from a client that only reads: any member takes it that knows what is complete."""
KINDS = (PEER, CLIENT, DIRECT, READS)
TICK_US = 1_000_000
MODE_TICK_US = 250_000
MAINTAIN_US = 20_000
MAINTAIN_IDLE_US = 100_000
MAINTAIN_BYTES = 1 << 18
FRESH_MS = 1
BACK_OFF_US = (20_000, 1_000_000)
OPERATOR_US = 2_000_000
"""How long a member that has failed and stays up waits for somebody to start it again."""
NEVER_MS = 1 << 60


class Shell:
    """One client's connection, seen from the process."""

    __slots__ = ("calls", "end", "front_end", "rest", "waits")

    def __init__(self, end: End, front_end: Any) -> None:
        self.end = end
        self.front_end = front_end
        self.rest = b""
        """Bytes that were not used yet."""
        self.calls: list[Any] = []
        """Calls that were not looked at yet."""
        self.waits = False
        """There is more to read when the front end wants to."""


class Machine(Process):
    """Fits `member.MemberOutside`, `network.Party` and `etcd.Told`."""

    def __init__(self, world: World, name: Name) -> None:
        super().__init__(world.timeline)
        self.world = world
        self.name = name
        self.network = world.network
        self.dice = Random(f"{world.seed} {name}")
        self.clock = MemberClock(
            self.timeline, self.dice.choice((0, 0, -1500, 40, 3000)), self.dice.randint(-20_000, 20_000)
        )
        self.disk = TimedDisk(self.timeline, self.dice)
        self.member: Any = None
        """None: no process runs."""
        self.powered = True
        self.stopping = False
        self.may_fail = False
        """Its disk was told to fail: the store may complain."""
        self.rotten = False
        """A bit of its log was flipped, and its process has not read the log since."""
        self.agent: Agent | Teller | None = None
        self.telling: Telling | None = None
        """What it tells others besides its logs, and where an operator asks: the agent itself, or beside it."""
        self.met: set[Name] = set()
        """Members of which this life of the process has heard from etcd."""
        self.source: Name | None = None
        self.dialled: End | None = None
        self.readers: dict[Name, End] = {}
        """Links that others have dialled to read from us."""
        self.shells: dict[Any, Shell] = {}
        self._turn_due = False
        self._touched: list[Shell] = []
        self._back_off_us = BACK_OFF_US[0]
        self._heard: dict[Name, End] = {}
        self._wake_ticks = NEVER_MS
        self._wake_ms = NEVER_MS
        self._quit: tuple[str, bool] | None = None
        self._ticked_ms = 0
        self._leased_until_ms: int | None = None
        self._shut = False
        """Clients that are connected are not listened to and hear nothing."""

    @property
    def running(self) -> bool:
        return self.member is not None

    @property
    def node(self) -> Node:
        node: Node = self.member.node
        return node

    # The process -------------------------------------------------------------------------------------------------

    def start(self) -> None:
        """The process begins. One that cannot read its store ends at once and is started again later."""
        assert self.member is None
        self.life += 1
        self.powered = True
        self.network.dark.discard(self.name)
        self.stopping = False
        self._quit = None
        self.disk.ring = self.in_this_life(self._disk_news)
        apart = SimApart(self.disk, self.dice)
        self.member = self.world.new_member(self, apart)
        try:
            report = self.member.start(self.clock.now_ms(), self.clock.ticks_ms())
        except StoreError as error:
            rotten = self.rotten and isinstance(error, CorruptRecord)
            if not self.may_fail and not rotten:
                raise BrokenPromise(f"{self.name} cannot start: {error}") from error
            if rotten:
                # What an operator does then: it begins again with an empty directory.
                self.world.count("rot found")
                self.rotten = False
                self.disk.wipe()
                self.world.forgets(self)
            self._over(f"cannot start: {error}")
            return
        if self.rotten:
            self.rotten = False  # in what the log does not need any more, or something is wrong
            self.world.healed(self)
        self.world.say(self.name, "starts, %s, up to %d", report.found, report.last_seq)
        for kind in KINDS:
            self.network.listen(kind, self.name, self._door)
        if self.world.etcd is not None:
            self.agent = Agent(
                self.world.etcd, self.name, self.clock, self, self._here, self.post, self.world.lease_margin
            )
            self.telling = Surveyor(self)
        elif self.world.operator is not None:
            self.agent = self.telling = Teller(self)
        self.later(self.dice.randrange(TICK_US), self._tick)
        self.later(self.dice.randrange(MODE_TICK_US), self._mode_tick)
        self.later(self.dice.randrange(MAINTAIN_IDLE_US), self._maintain)
        self.due()

    def _here(self) -> MemberHere:
        store = self.node.store
        status = store.files.status
        return MemberHere(self.name, status.cluster, store.durable_ends, status.epoch)

    def die(self, *, power: bool) -> None:
        """The process ends here and now; with `power` the whole machine does."""
        if self.member is None:
            return
        self.world.before_death(self)
        self.member = None
        self.end_life()
        self._turn_due = False
        self._touched.clear()
        self._wake_ticks = self._wake_ms = NEVER_MS
        self._leased_until_ms = None
        self._shut = False
        self._quit = None
        if self.agent is not None:
            self.agent.stop()
            self.agent = None
        if self.telling is not None:
            self.telling.stop()
            self.telling = None
        self.met.clear()
        for kind in KINDS:
            self.network.listen(kind, self.name, None)
        ends = [shell.end for shell in self.shells.values()]
        ends += self.readers.values()
        if self.dialled is not None:
            ends.append(self.dialled)
        self.shells.clear()
        self.readers.clear()
        self._heard.clear()
        self.dialled = self.source = None
        if power:
            self.powered = False
            for end in ends:
                end.alive = False
            self.network.lose_power(self.name)
        else:
            abruptly = self.dice.random() < 0.5
            for end in ends:
                end.close(abruptly=abruptly)
        self.disk = self.disk.after_crash(power)

    def _over(self, last_word: str) -> None:
        """The process has ended by itself; somebody starts it again."""
        self.world.say(self.name, "ends: %s", last_word)
        self.die(power=False)
        life = self.life
        self.timeline.after(500_000, lambda: self._start_again(life))

    def _start_again(self, life: int) -> None:
        if self.life == life and self.member is None and self.powered:
            self.start()

    def stop(self) -> None:
        """Ask the process to end in good order."""
        if self.member is None or self.stopping:
            return
        self.stopping = True
        self.post(self._say_goodbye)

    def _say_goodbye(self) -> None:
        """Clients first, then peers and etcd, so that they know at once; then the store is closed."""
        self.drain()
        self._turn()
        for shell in list(self.shells.values()):
            shell.end.close()
            self.node.disconnect(shell.front_end)
        self.shells.clear()
        for end in (*self.readers.values(), self.dialled):
            if end is not None:
                end.close()
        self.readers.clear()
        self.dialled = self.source = None
        self.network.listen(PEER, self.name, None)
        if self.agent is not None:
            self.agent.leave()
        if self.telling is not None:
            self.telling.stop()
        self.member.close(self.clock.now_ms())
        self._end_well()

    def drain(self) -> None:
        for kind in (CLIENT, DIRECT, READS):
            self.network.listen(kind, self.name, None)
        for shell in list(self.shells.values()):
            shell.front_end.shutdown(320, "the broker is shutting down")
        self.due()

    def _end_well(self) -> None:
        self.member.completed(self.clock.now_ms())
        if not self.member.closed():
            self.later(1000, self._end_well)
            return
        self.world.say(self.name, "has stopped")
        self.die(power=False)

    def _run(self, action: Callable[[], None]) -> None:
        action()
        if self._quit is not None and self.member is not None:
            last_word, clean = self._quit
            self._quit = None
            if clean:
                self.world.say(self.name, "stops: %s", last_word)
                self.stop()
            else:
                self._over(last_word)

    # A turn ------------------------------------------------------------------------------------------------------

    def due(self) -> None:
        if not self._turn_due and self.member is not None:
            self._turn_due = True
            self.later(30, self._turn)

    def _fresh(self) -> None:
        """Let the member know what time it is, unless it has just heard."""
        ticks_ms = self.clock.ticks_ms()
        if ticks_ms - self._ticked_ms >= FRESH_MS:
            self._ticked_ms = ticks_ms
            self.member.tick(self.clock.now_ms(), ticks_ms)

    def _turn(self) -> None:
        self._turn_due = False
        self._fresh()
        self.member.turn(self.clock.now_ms())
        self._flush()
        if self.member.node.failed is not None:
            if self.world.mode == "alone":  # else the member says what becomes of it
                self._quit = f"the store failed: {self.member.node.failed}", False
            return
        at_ms = self.node.next_wake_ms()
        if at_ms < self._wake_ms and at_ms < NEVER_MS:
            self._wake_ms = at_ms
            self.later(max(0, at_ms - self.clock.now_ms()) * 1000 + 100, self._woken)

    def _woken(self) -> None:
        self._wake_ms = NEVER_MS
        self.due()

    def _flush(self) -> None:
        node = self.node
        touched = node.touched_front_ends
        if not touched:
            return
        node.touched_front_ends = {}
        for front_end in touched:
            shell = self.shells.get(front_end)
            if shell is not None:
                self._flush_shell(shell)

    def _flush_shell(self, shell: Shell) -> None:
        if self._shut:
            return
        output = shell.front_end.output()
        if output:
            if isinstance(shell.front_end, Direct):
                shell.end.send(output)
            else:
                shell.end.send(b"".join(output))
        if shell.front_end.closed:
            self._close_shell(shell)
        elif shell.rest and not shell.front_end.wants_read():
            shell.waits = True
        elif shell.waits:
            shell.waits = False
            self._receive(shell)

    def _close_shell(self, shell: Shell) -> None:
        shell.end.close()
        self.shells.pop(shell.front_end, None)
        self.node.disconnect(shell.front_end)

    def _disk_news(self) -> None:
        self._fresh()
        self.member.completed(self.clock.now_ms())
        self._flush()
        if self.member.node.failed is not None:
            self.due()

    def _tick(self) -> None:
        self.later(TICK_US, self._tick)
        self.node.tick(self.clock.now_ms())
        self.node.watch(0, 1 << 40, self.disk.free_bytes())
        self._flush()

    def _mode_tick(self) -> None:
        self.later(MODE_TICK_US, self._mode_tick)
        self._fresh()

    def wake(self, at_ticks_ms: int) -> None:
        if at_ticks_ms < self._wake_ticks:
            self._wake_ticks = at_ticks_ms
            self.later(self.clock.until_us(at_ticks_ms), self._wakened)

    def _wakened(self) -> None:
        self._wake_ticks = NEVER_MS
        self._ticked_ms = self.clock.ticks_ms()
        self.member.tick(self.clock.now_ms(), self._ticked_ms)

    def _maintain(self) -> None:
        busy = self.member.maintain(self.clock.now_ms(), MAINTAIN_BYTES)
        self.later(MAINTAIN_US if busy else MAINTAIN_IDLE_US, self._maintain)

    # Links -------------------------------------------------------------------------------------------------------

    def _door(self, link: Link) -> None:
        self.post(self._accept_later(link))

    def _accept_later(self, link: Link) -> Callable[[], None]:
        def accept() -> None:
            if link.kind == READS:
                # One of a cluster that has just been founded has no virtual host yet.
                taken = self.readable and bool(self.node.broker.vhosts)
            else:
                taken = link.kind == PEER or (self.member.serving and not self.node.paused)
            if not taken:
                self.network.refused(link)
            else:
                self.network.accepted(link, self)

        return accept

    @property
    def readable(self) -> bool:
        """Whether clients that only read are taken: as `runtime.MemberServer` has it."""
        leased = self._leased_until_ms is None or self.clock.ticks_ms() < self._leased_until_ms
        return bool(getattr(self.member, "readable", True)) and not self.node.paused and leased

    def link_up(self, end: End) -> None:
        self.post(lambda: self._up(end))

    def link_data(self, end: End, items: list[Any]) -> None:
        self.post(lambda: self._data(end, items))

    def link_lost(self, end: End, gone: bool) -> None:
        self.post(lambda: self._lost(end, gone))

    def _up(self, end: End) -> None:
        if not end.alive:
            return
        self._fresh()
        peer = end.far.name
        if end.kind == PEER:
            end.state = self.world.decoder()
            if end.dialled:
                self._back_off_us = BACK_OFF_US[0]
                self.member.peer_up(peer, True)
            else:
                older = self.readers.pop(peer, None)
                if older is not None:
                    older.close()
                    self.member.peer_down(peer, False)
                self.readers[peer] = end
                self.member.peer_up(peer, False)
            return
        self.node.at(self.clock.now_ms())
        info = PeerInfo("127.0.0.1", 40_000 + self.world.next_port(), self.name, 5672)
        front_end: Any
        if end.kind == CLIENT:
            front_end = self.node.connect(info)
        else:
            front_end = Direct(self.node, info)
            self.node.front_ends[front_end] = info
        self.shells[front_end] = end.state = Shell(end, front_end)

    def _data(self, end: End, items: list[Any]) -> None:
        if not end.alive:
            return
        if end.kind == PEER:
            self._fresh()
            self._peer_data(end, items)
            return
        shell: Shell = end.state
        if end.kind == CLIENT:
            shell.rest += b"".join(items)
        else:
            shell.calls += items
        self._receive(shell)

    def _receive(self, shell: Shell) -> None:
        """Let the front end have what came, if it may be listened to now."""
        if self._shut or not shell.front_end.wants_read():
            return
        self.node.at(self.clock.now_ms())
        calls, shell.calls = shell.calls, []
        for call in calls:
            shell.front_end.call(call)
        if shell.rest:
            used = shell.front_end.receive(memoryview(shell.rest))
            shell.rest = shell.rest[used:]
        self.due()

    def _peer_data(self, end: End, items: list[Any]) -> None:
        peer = end.far.name
        self._heard[peer] = end
        member = self.member
        for item in items:
            for thing in end.state.feed(item):
                if isinstance(thing, tuple):
                    member.given(peer, *thing)
                else:
                    member.peer_said(peer, thing)
                if not end.alive or self.member is not member:
                    return

    def _lost(self, end: End, gone: bool) -> None:
        self._fresh()
        peer = end.far.name
        if end.kind != PEER:
            shell: Shell | None = end.state
            if shell is not None and self.shells.pop(shell.front_end, None) is not None:
                self.node.disconnect(shell.front_end)
            return
        if end.dialled:
            if end is self.dialled:
                self.dialled = None
                self.member.peer_down(peer, True, gone)
                self._dial_later(peer)
        elif self.readers.get(peer) is end:
            del self.readers[peer]
            self.member.peer_down(peer, False)

    # What the member asks ------------------------------------------------------------------------------------------

    def replaced(self, old: FrontEnd, new: FrontEnd) -> None:
        shell = self.shells[new] = self.shells.pop(old)
        shell.front_end = new

    def login(self, front_end: FrontEnd, login: Login) -> None:
        node = self.node

        def answer() -> None:
            node.at(self.clock.now_ms())
            node.verdict(front_end, Verdict(login.user))

        self.later(50, answer)

    def note(self, level: str, event: str, **facts: object) -> None:
        self.world.say(self.name, "%s %s", event, facts)
        if event == "store emptied":
            self.world.emptied(self)
        if level == "error" and not self.may_fail:
            cause = facts.get("error")
            raise BrokenPromise(f"{self.name}: {event}: {facts}") from (
                cause if isinstance(cause, Exception) else None
            )

    def tell(self, peer: Name, message: Message) -> None:
        if isinstance(message, Completed) and self.member.leader == self.name:
            self.world.told_complete = max(self.world.told_complete, message.upto.journal)
        if isinstance(message, Hello | Acked):
            end = self.dialled if self.dialled is not None and self.dialled.far.name == peer else None
        elif isinstance(message, Outdated):
            end = self._heard.get(peer)
        else:
            end = self.readers.get(peer)
        if end is not None and end.up:
            data = self.world.encode(message)
            end.send(data, len(data))

    def ship(self, peer: Name, epoch: int, unit: Any) -> None:
        end = self.readers.get(peer)
        if end is not None:
            data = self.world.encode_unit(epoch, unit)
            self.world.shipped += len(data)
            end.send(data, len(data))

    def shipped(self) -> None:
        """Every frame is encoded anew here."""

    def backlog(self, peer: Name) -> int:
        end = self.readers.get(peer)
        return 0 if end is None else max(0, end.way.bytes - (64 << 10))

    def dial(self, peer: Name | None) -> None:
        if peer == self.source:
            return
        self.source = peer
        if self.dialled is not None:
            self.dialled.close()
            self.dialled = None
        self._back_off_us = BACK_OFF_US[0]
        if peer is not None:
            self.later(10, lambda: self._dial(peer))

    def _dial(self, peer: Name) -> None:
        if self.source == peer and self.dialled is None:
            self.dialled = self.network.dial(PEER, self.name, self, peer)

    def _dial_later(self, peer: Name) -> None:
        if self.source == peer:
            wait_us = self._back_off_us
            self._back_off_us = min(BACK_OFF_US[1], 2 * wait_us)
            self.later(wait_us, lambda: self._dial(peer))

    def drop(self, peer: Name) -> None:
        """Heard of later, as with a real socket."""
        for end in (self.readers.get(peer), self.dialled):
            if end is not None and end.far.name == peer:
                end.close()
                self.later(20, lambda end=end: self._lost(end, False))  # type: ignore[misc]

    def propose(self, view: View) -> None:
        assert self.agent is not None
        self.world.say(self.name, "proposes %s", view)
        self.agent.propose(view)

    def role(self, state: State, leader: Name | None) -> None:
        if state is State.FAILED and self.world.states.get(self.name) is not state:
            self.later(OPERATOR_US, lambda: self._over("an operator starts it again"))
        self.world.became(self, state, leader)
        if state is State.FENCED and isinstance(self.agent, Teller):
            self.agent.views.hurry()  # somebody speaks of a newer view: ask for it
        if self._shut != self.node.paused:
            self._shut = self.node.paused
            if not self._shut:
                for shell in list(self.shells.values()):
                    self._receive(shell)
                    self._flush_shell(shell)

    def retired(self, node: Node) -> None:
        for shell in list(self.shells.values()):
            # What a client was about to be told while it was not let know may not be true any more.
            self._flush_shell(shell)
            shell.end.close(abruptly=self._shut)
            node.disconnect(shell.front_end)
        self.shells.clear()
        self._shut = False

    def renewed(self, node: Node) -> None:
        """Nobody but the member keeps the old one."""

    def quit(self, reason: str, clean: bool = False) -> None:
        if not clean and not self.may_fail:
            raise BrokenPromise(f"{self.name} cannot go on: {reason}")
        self._quit = reason, clean

    def ask(self, command: str, member: Name, accept_loss: bool, survey: Survey | None) -> Answer:
        """An operator wants something."""
        self._fresh()
        answer: Answer = self.member.ask(command, member, accept_loss=accept_loss, survey=survey)
        return answer

    # What etcd tells -----------------------------------------------------------------------------------------------

    def view_changed(self, view: View | None) -> None:
        self._fresh()
        self.member.view_changed(view)
        self.world.leads(self)

    def proposal_failed(self, view: View) -> None:
        self._fresh()
        self.world.say(self.name, "proposal failed: %s", view)
        self.member.proposal_failed(view)

    def member_gone(self, name: Name) -> None:
        self._fresh()
        self.member.member_gone(name)

    def member_here(self, here: MemberHere) -> None:
        self._fresh()
        self.met.add(here.member)
        self.member.member_here(here)

    def lease(self, until_ticks_ms: int) -> None:
        self._leased_until_ms = until_ticks_ms
        self._fresh()
        self.member.lease(until_ticks_ms)
