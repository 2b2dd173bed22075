"""A small world in which the modes run: members with toy logs, a hostile network, a model of etcd, virtual time.

Nothing here is Tidemark's but the modes and the values that they exchange. A log is a list of frames of records
`(sequence, history, value)`; a crash forgets the frames that were not synced. Links lose messages one way and break
later, processes stand still and go on, clocks run at their own pace, proposals are written without an answer. All
comes from one dice, so a seed is a complete report.

What is checked, at every step that could break it:

- an epoch has one leader;
- what is complete is a prefix of every later leader's log, and of the disk of every member that the kept view calls
  ready: whoever is chosen, nothing is lost;
- followers hold and show the same records as were completed, and are cut back only behind them;
- a leader that others replace because its lease has ended has fenced itself before;
- states change as the table allows;
- after all faults are healed everybody is ready within `HEALED_MS`, and publishing completes.

With `losses` all ready members may go at once, some for good, and an operator goes on with one of the others. What that one does
not hold is complete no more from the moment that its view is written; all else must hold as ever.
"""

from __future__ import annotations

import heapq
from bisect import bisect_right
from collections.abc import Callable
from dataclasses import dataclass, field, replace
from random import Random
from typing import Any

from unit.cluster.toys import Broken, Frame, Record, ToyStore

from tidemark.cluster.chain.mode import ChainMode
from tidemark.cluster.config import ClusterConfig
from tidemark.cluster.mode import (
    Answer,
    Asked,
    Became,
    Belong,
    Complete,
    Dial,
    Drain,
    Durable,
    Effect,
    Event,
    Fence,
    Follow,
    Given,
    Hush,
    Intend,
    Keep,
    Lead,
    Lease,
    MemberGone,
    MemberHere,
    PeerDown,
    PeerSaid,
    PeerUp,
    ProposalFailed,
    Propose,
    Quit,
    Reread,
    Reset,
    Rewind,
    Send,
    Skip,
    State,
    Stored,
    Survey,
    Tell,
    Tick,
    Unasked,
    Unfence,
    ViewChanged,
    Wake,
)
from tidemark.cluster.replica import Replica
from tidemark.cluster.standby.mode import StandbyMode
from tidemark.cluster.states import legal
from tidemark.model.peers import (
    Acked,
    Closing,
    Completed,
    Ends,
    Hello,
    Log,
    Message,
    Name,
    Offer,
    Outdated,
    View,
)

HEALED_MS = 120_000
MODES: dict[str, type[Replica]] = {"standby": StandbyMode, "chain": ChainMode}


@dataclass(slots=True)
class Link:
    """From the one that dialled to its source, and back."""

    dialler: Name
    source: Name
    lives: dict[Name, int]
    up: bool = True
    last: dict[Name, int] = field(default_factory=dict)
    """When the last message to each end arrives: messages stay in order."""


@dataclass
class Machine:
    name: Name
    store: ToyStore
    rate: float
    offset: int
    life: int = 0
    up: bool = False
    frozen: bool = False
    wiped: bool = False
    """Its disk was lost and is not full again: the member must know that it may not lead, whatever a view says."""
    mode: Any = None
    leads: bool = False
    fenced: bool = False
    drained: bool = False
    quit: str | None = None
    target: Name | None = None
    dialling: bool = False
    inbox: list[Event] = field(default_factory=list)
    senders: dict[Name, dict[Log, int]] = field(default_factory=dict)
    lease_until: int = 0
    syncing: bool = False
    value: int = 0
    ticked: int = -1
    woken: int = -1


class World:
    def __init__(
        self,
        seed: int,
        mode: str | type[Replica] = "standby",
        members: int = 3,
        rude: bool | None = None,
        wipes: bool = True,
        losses: bool = False,
        **settings: Any,
    ) -> None:
        self.dice = Random(seed)
        self.kind = MODES[mode] if isinstance(mode, str) else mode
        self.config = ClusterConfig(
            name="c",
            size=members,
            lease_s=2,
            backup_timeout_ms=settings.pop("backup_timeout_ms", 1500),
            **settings,
        )
        self.rude = self.dice.random() < 0.3 if rude is None else rude
        self.wipes = wipes
        self.losses = losses
        self.now = 0
        self.story: list[str] = []
        self._todo: list[tuple[int, int, Callable[[], None]]] = []
        self._count = 0
        # etcd
        self.view: View | None = None
        self.revision = 0
        self.complete_at: dict[int, dict[Log, int]] = {}
        """How much was complete when each view was written."""
        self.proposed: list[View] = []
        """Nobody knows yet whether they are written."""
        self.etcd_down = False
        self.leases: dict[Name, int] = {}
        self.watchers: dict[Name, int] = {}
        self.away: set[Name] = set()
        """Members that cannot reach etcd."""
        # network
        self.cuts: set[tuple[Name, Name]] = set()
        self.links: list[Link] = []
        # what must hold
        self.leaders: dict[int, tuple[Name, int]] = {}
        self.committed: dict[Log, list[Record]] = {log: [] for log in Log}
        self.committed_in: dict[int, dict[Log, int]] = {}
        """Epoch → how many of them its leader has completed."""
        self.given_up: dict[int, dict[Log, list[Record]]] = {}
        """Epoch that began with an accepted loss → what was complete until then."""
        self.machines = {
            name: Machine(name, ToyStore(), 1 + self.dice.uniform(-0.03, 0.03), self.dice.randrange(10**6))
            for name in "abcdefg"[:members]
        }
        for machine in self.machines.values():
            self.after(self.dice.randrange(300), lambda m=machine: self.start(m))  # type: ignore[misc]
        self.after(50, self._expire_leases)
        self.after(300, self._work)

    # Time -----------------------------------------------------------------------------------------------------

    def after(self, ms: float, act: Callable[[], None]) -> None:
        self._count += 1
        heapq.heappush(self._todo, (self.now + max(0, int(ms)), self._count, act))

    def run(self, until: int, stop: Callable[[], bool] | None = None) -> bool:
        """Go on until then, or until `stop` says so; whether it did."""
        checked, steps = self.now, 0
        while self._todo and self._todo[0][0] <= until:
            before = self.now
            self.now, _, act = heapq.heappop(self._todo)
            steps = steps + 1 if self.now == before else 0
            if steps > 5000:
                raise Broken("time stands still")
            act()
            if stop is not None and self.now >= checked + 200:
                checked = self.now
                if stop():
                    return True
        self.now = until
        return False

    def tell(self, text: str) -> None:
        self.story.append(f"{self.now:>7} {text}")

    def _ticks(self, machine: Machine) -> int:
        return machine.offset + int(self.now * machine.rate)

    # Processes ------------------------------------------------------------------------------------------------

    def start(self, machine: Machine) -> None:
        if machine.up:
            return
        machine.life += 1
        machine.up, machine.frozen, machine.leads, machine.fenced, machine.syncing = (
            True,
            False,
            False,
            False,
            False,
        )
        machine.inbox, machine.senders, machine.target, machine.dialling = [], {}, None, False
        machine.ticked = machine.woken = -1
        machine.quit, machine.drained = None, False
        machine.store.forget_unsynced()
        self.tell(f"{machine.name} starts with {machine.store.durable}")
        machine.mode = self.kind(machine.name, self.config, self.dice.randbytes, machine.store)  # type: ignore[call-arg]
        self.give(machine, Stored(machine.store.ends))
        self.give(machine, Durable(machine.store.durable))
        self._keepalive(machine, machine.life)

    def crash(self, machine: Machine, wipe: bool = False) -> None:
        if machine.up:
            self.tell(f"{machine.name} crashes")
            machine.up = machine.frozen = machine.leads = False
            machine.store.forget_unsynced()
            for link in [one for one in self.links if machine.name in (one.dialler, one.source)]:
                self._break(link, machine.name)
        if wipe:
            self.tell(f"the disk of {machine.name} is empty")
            machine.store.wipe()
            machine.wiped = True

    def freeze(self, machine: Machine, ms: int) -> None:
        if machine.up and not machine.frozen:
            self.tell(f"{machine.name} stands still for {ms}")
            machine.frozen = True
            life = machine.life
            self.after(ms, lambda: self.thaw(machine, life))

    def thaw(self, machine: Machine, life: int) -> None:
        if machine.life == life and machine.frozen:
            self.tell(f"{machine.name} goes on")
            machine.frozen = False
            waiting, machine.inbox = machine.inbox, []
            for event in waiting:
                self.give(machine, event)

    def give(self, machine: Machine, event: Event) -> None:
        if not machine.up:
            return
        if machine.frozen:
            machine.inbox.append(event)
            return
        ticks = self._ticks(machine)
        if ticks != machine.ticked:
            machine.ticked = ticks
            self._perform(machine, Tick(ticks))
        if machine.up and not isinstance(event, Tick):
            self._perform(machine, event)

    def _perform(self, machine: Machine, event: Event) -> None:
        before = machine.mode.state
        for effect in machine.mode.step(event):
            if not machine.up:
                return
            if isinstance(effect, Became):
                if effect.state is not before and not legal(before, effect.state):
                    raise Broken(f"{machine.name} went from {before} to {effect.state}")
                before = effect.state
            self._effect(machine, effect)

    def _effect(self, machine: Machine, effect: Effect) -> None:
        store = machine.store
        match effect:
            case Wake(at_ms):
                at = int((at_ms - machine.offset) / machine.rate) + 1
                if not self.now < machine.woken <= at:
                    machine.woken = at
                    life = machine.life
                    self.after(at - self.now, lambda: self._wake(machine, life))
            case Tell(peer, message):
                self._send_message(machine, peer, message)
            case Send(peer, after):
                machine.senders[peer] = {log: after[log] for log in Log}
                self._pump(machine)
            case Hush(peer):
                machine.senders.pop(peer, None)
            case Drain():
                machine.drained = True
            case Answer(done, text):
                self.tell(f"{machine.name} answers {done}: {text}")
            case Keep() | Skip():
                pass  # what was given is kept where it arrives
            case Complete(upto):
                self._check_complete(machine, upto)
                self._check_show(machine, upto.journal)
            case Dial(peer):
                self._dial(machine, peer)
            case Belong(cluster, epoch):
                store.cluster, store.epoch = cluster, epoch
                if epoch:
                    machine.wiped = False
                    self.check_ready()
            case Intend(history):
                store.founding.append(history)
            case Lead(epoch, history):
                self._lead(machine, epoch, history)
            case Follow(leader):
                self.tell(f"{machine.name} follows {leader}")
                if machine.leads:
                    machine.leads = machine.fenced = False
                    self._read_anew(machine)
            case Fence():
                machine.fenced = True
            case Unfence():
                machine.fenced = False
            case Rewind(to):
                self.tell(f"{machine.name} rewinds to {to}")
                store.forget_unsynced()
                store.cut(to)
                self._close_links(machine)
                self._read_anew(machine)
                self.check_ready()
            case Reread():
                self.tell(f"{machine.name} reads its store again")
                self._close_links(machine)
                self._read_anew(machine)
            case Reset():
                self.tell(f"{machine.name} starts over")
                if self.view is not None and machine.name in self.view.ready and store.epoch:
                    raise Broken(f"{machine.name} empties its store and is ready in {self.view}")
                store.reset()
                self._close_links(machine)
                self._read_anew(machine)
            case Propose(view, why):
                self._propose(machine, view, why)
            case Became(state, why):
                self.tell(f"{machine.name} is {state}: {why}")
                if state is State.READY:
                    self._check_counted_on(machine)
            case Quit(reason, clean):
                self.tell(f"{machine.name} quits: {reason}")
                if not clean:
                    raise Broken(f"{machine.name} quits: {reason}")
                self.crash(machine)
                machine.quit = reason

    def _wake(self, machine: Machine, life: int) -> None:
        if machine.life == life and machine.up:
            machine.woken = -1
            self.give(machine, Tick(0))

    # Logs -----------------------------------------------------------------------------------------------------

    def _read_anew(self, machine: Machine) -> None:
        machine.store.forget_unsynced()
        machine.senders.clear()
        life = machine.life

        def report() -> None:
            if machine.life == life:
                self.give(machine, Stored(machine.store.ends))
                self.give(machine, Durable(machine.store.durable))

        self.after(0, report)

    def _stored(self, machine: Machine) -> None:
        """Something was appended: it can be sent, and goes to the disk."""
        self.give(machine, Stored(machine.store.ends))
        self._pump(machine)
        if not machine.syncing and machine.up:
            machine.syncing = True
            counts = {log: len(machine.store.logs[log].frames) for log in Log}
            life, ends = machine.life, machine.store.ends
            ms = self.dice.choice((1, 2, 5, 30)) if self.dice.random() < 0.95 else 400
            self.after(ms, lambda: self._synced(machine, life, counts, ends))

    def _synced(self, machine: Machine, life: int, counts: dict[Log, int], ends: Ends) -> None:
        if machine.life != life or not machine.up:
            return
        machine.syncing = False
        store = machine.store
        for log in Log:
            frames = store.logs[log].frames
            if 0 < counts[log] <= len(frames) and frames[counts[log] - 1].last == ends[log]:
                store.logs[log].sync(counts[log])  # else the log was cut meanwhile
        self.give(machine, Durable(store.durable))
        if machine.up and store.durable != store.ends:
            self._stored(machine)

    def _pump(self, machine: Machine) -> None:
        view = machine.mode.view
        for peer, after in list(machine.senders.items()):
            link = self._link(peer, machine.name)
            if link is None:
                continue
            for log, toy in machine.store.logs.items():
                if 0 < after[log] < toy.start:
                    self._break(link, None)
                    break
                behind = bisect_right(toy.frames, after[log], key=lambda frame: frame.last)
                for frame in toy.frames[behind:]:
                    given = Given(machine.name, view.epoch, log, after[log], frame.first, frame.last)
                    after[log] = frame.last
                    self._carry(link, machine.name, peer, given, frame)

    def _lead(self, machine: Machine, epoch: int, history: str) -> None:
        self.tell(f"{machine.name} leads in {epoch} with {machine.store.ends}")
        if epoch in self.leaders:
            raise Broken(f"{machine.name} leads in epoch {epoch}, and so does {self.leaders[epoch]}")
        self.leaders[epoch] = machine.name, machine.life
        machine.leads, machine.fenced = True, False
        before = [counts for one, counts in self.committed_in.items() if one < epoch]
        for log in Log:
            # Its view may have come so late that there is another leader already, with more.
            count = max((counts[log] for counts in before), default=0)
            if not machine.store.logs[log].holds(self.committed[log][:count], durable=False):
                raise Broken(f"{machine.name} leads without all of {log.name} that is complete")
            sequence = machine.store.ends[log] + 1
            machine.store.append(log, Frame(sequence, sequence, ((sequence, history, 0),)))
        life = machine.life
        self.after(0, lambda: self._stored(machine) if machine.life == life and machine.up else None)

    def publish(self, machine: Machine, log: Log) -> None:
        """The leader writes a frame of one to three records. Some sequences go to messages that are not kept."""
        history = machine.mode.view.history
        first = machine.store.ends[log] + 1 + (self.dice.randrange(3) if log is Log.JOURNAL else 0)
        records = []
        for sequence in range(first, first + self.dice.randint(1, 3)):
            machine.value += 1
            records.append((sequence, history, machine.value))
        machine.store.append(log, Frame(first, records[-1][0], tuple(records)))
        self._stored(machine)

    def _work(self) -> None:
        self.after(self.dice.choice((5, 50, 200, 300)), self._work)
        for machine in self.machines.values():
            idle = machine.frozen or machine.fenced or machine.drained
            if machine.up and machine.leads and not idle:
                self.publish(machine, Log.JOURNAL if self.dice.random() < 0.85 else Log.CATALOG)

    # What must hold -------------------------------------------------------------------------------------------

    def check_ready(self) -> None:
        """Whoever the kept view calls ready, and itself too, has on its disk all that is complete."""
        if self.view is None:
            return
        for name in self.view.ready:
            machine = self.machines[name]
            if not machine.wiped:
                for log in Log:
                    if not machine.store.logs[log].holds(self.committed[log], durable=True):
                        raise Broken(
                            f"{name} is ready in {self.view} without all of {log.name} that is complete"
                        )

    def _check_counted_on(self, machine: Machine) -> None:
        """Whoever calls itself ready has all that was complete when the view that it knows was written, whatever has been
        written since."""
        view, known = machine.mode.view, self._known(machine)
        for log in Log:
            done = known[log][: self.complete_at[view.revision][log]]
            if not machine.store.logs[log].holds(done, durable=True):
                raise Broken(f"{machine.name} calls itself ready by {view} without all of {log.name}")

    def _known(self, machine: Machine) -> dict[Log, list[Record]]:
        """What is complete, as far as a member can know that has seen this view: it may not have heard of a loss."""
        seen = machine.mode.view.epoch if machine.mode.view is not None else 0
        return next((lists for epoch, lists in self.given_up.items() if epoch > seen), self.committed)

    def _lose(self, view: View) -> None:
        """An operator has accepted that all is lost which this member does not hold. What it holds is complete, if it ever was:
        also if it had been given up since, by a loss of which this member has not heard."""
        self.given_up[view.epoch], kept = self.committed, {}
        for log, done in self.committed.items():
            toy = self.machines[view.leader].store.logs[log]
            held = toy.records[: toy.durable_records]
            kept[log] = max((_alike(lists[log], held) for lists in self.given_up.values()), key=len)
            for counts in self.committed_in.values():
                counts[log] = min(counts[log], len(kept[log]))
            for machine in self.machines.values():
                machine.store.logs[log].alike = min(machine.store.logs[log].alike, len(kept[log]))
            self.tell(f"{len(done) - len(kept[log])} records of {log.name} are given up")
        self.committed = kept

    def _check_complete(self, machine: Machine, upto: Ends) -> None:
        if machine.leads and machine.fenced:
            raise Broken(f"{machine.name} confirms behind a fence")
        known = self._known(machine)
        for log in Log:
            toy, done = machine.store.logs[log], known[log]
            if upto[log] > toy.durable:
                raise Broken(f"{machine.name} completes {upto} beyond its disk")
            count = bisect_right(toy.records, upto[log], key=lambda record: record[0])
            alike = min(toy.alike, count)
            if toy.records[alike : min(count, len(done))] != done[alike:count]:
                raise Broken(f"{machine.name} completes other records of {log.name} than were completed")
            if count > len(done):
                if not machine.leads:
                    raise Broken(f"{machine.name} completes what its leader did not")
                if known is not self.committed:
                    raise Broken(f"{machine.name} confirms something and was given up")
                done.extend(toy.records[len(done) : count])
                self.check_ready()
            if machine.leads and known is self.committed:
                counts = self.committed_in.setdefault(machine.mode.view.epoch, dict.fromkeys(Log, 0))
                counts[log] = max(counts[log], count)
        if self.dice.random() < 0.05:
            self._compact(machine, upto)

    def _compact(self, machine: Machine, upto: Ends) -> None:
        """What is complete, and no reader waits for, can only be had as a whole from now on."""
        readers = machine.mode._readers
        for name in readers:
            upto = upto.least(readers.of(name))
        for log in Log:
            machine.store.logs[log].start = max(machine.store.logs[log].start, upto[log])

    def _check_show(self, machine: Machine, journal: int) -> None:
        if machine.leads and machine.fenced:
            raise Broken(f"{machine.name} shows something behind a fence")
        if not machine.leads:
            done = self._known(machine)[Log.JOURNAL]
            if journal > (done[-1][0] if done else 0):
                raise Broken(f"{machine.name} shows what is not complete")

    # Links ----------------------------------------------------------------------------------------------------

    def _open_path(self, a: Name, b: Name) -> bool:
        return (a, b) not in self.cuts

    def _link(self, dialler: Name, source: Name) -> Link | None:
        for link in self.links:
            if link.up and link.dialler == dialler and link.source == source:
                return link
        return None

    def _dial(self, machine: Machine, peer: Name | None) -> None:
        for link in [one for one in self.links if one.dialler == machine.name and one.source != peer]:
            self._break(link, None)
        machine.target = peer
        if peer is not None and self._link(machine.name, peer) is None:
            self._try_dial(machine, peer, machine.life)

    def _try_dial(self, machine: Machine, peer: Name, life: int) -> None:
        if machine.dialling or machine.life != life:
            return
        machine.dialling = True

        def attempt() -> None:
            if machine.life != life or not machine.up:
                return
            machine.dialling = False
            target = machine.target
            if target is None or self._link(machine.name, target) is not None:
                return
            other = self.machines[target]
            open_both = self._open_path(machine.name, target) and self._open_path(target, machine.name)
            if not open_both or other.frozen or machine.frozen:
                self.after(200, lambda: self._try_dial(machine, target, life))
                if self.dice.random() < 0.3:
                    self.give(machine, PeerDown(target, True, False))
            elif not other.up:
                self.give(machine, PeerDown(target, True, True))
                self.after(self.dice.choice((20, 100, 300)), lambda: self._try_dial(machine, target, life))
            else:
                link = Link(machine.name, target, {machine.name: life, target: other.life})
                self.links.append(link)
                self.give(other, PeerUp(machine.name, False))
                self.give(machine, PeerUp(target, True))

        self.after(self.dice.randrange(1, 10), attempt)

    def _break(self, link: Link, crashed: Name | None) -> None:
        """Both ends learn of it, each in its time, unless the process is gone."""
        if not link.up:
            return
        link.up = False
        self.links.remove(link)
        for name, peer, dialled in ((link.dialler, link.source, True), (link.source, link.dialler, False)):
            machine = self.machines[name]
            if name == crashed or not machine.up or machine.life != link.lives[name]:
                continue
            machine_life = machine.life
            if not dialled:
                machine.senders.pop(peer, None)

            def lost(
                m: Machine = machine, p: Name = peer, d: bool = dialled, life: int = machine_life
            ) -> None:
                if m.life != life:
                    return
                if (self._link(m.name, p) if d else self._link(p, m.name)) is None:
                    self.give(m, PeerDown(p, d, False))
                if d and m.target == p:
                    self._try_dial(m, p, life)

            self.after(self.dice.choice((1, 5, 20)), lost)

    def _close_links(self, machine: Machine) -> None:
        for link in [one for one in self.links if machine.name in (one.dialler, one.source)]:
            self._break(link, None)

    def _send_message(self, machine: Machine, peer: Name, message: Message) -> None:
        forth, back = self._link(machine.name, peer), self._link(peer, machine.name)
        match message:
            case Hello() | Acked():
                link = forth
            case Offer() | Completed() | Closing():
                link = back
            case Outdated():
                link = forth or back
        if link is not None:
            self._carry(link, machine.name, peer, PeerSaid(machine.name, message))

    def _carry(self, link: Link, sender: Name, to: Name, event: Event, frame: Frame | None = None) -> None:
        # A frame is one of hundreds that a member copies when it starts over: it would never get to the end.
        rude = self.rude and self.dice.random() < (1.0 if frame is None else 0.002)
        if not self._open_path(sender, to) or (rude and self.dice.random() < 0.003):
            self.after(self.dice.choice((50, 300, 900)), lambda: self._break(link, None))
            return
        delay = self.dice.choice((0, 1, 1, 2, 2, 5, 20))
        if not rude:
            delay = max(delay, link.last.get(to, 0) - self.now)
            link.last[to] = self.now + delay
        copies = 2 if rude and self.dice.random() < 0.05 else 1
        for _ in range(copies):
            self.after(delay, lambda: self._arrive(link, to, event, frame))
            delay += self.dice.randrange(30)

    def _arrive(self, link: Link, to: Name, event: Event, frame: Frame | None) -> None:
        machine = self.machines[to]
        if not link.up or machine.life != link.lives[to]:
            return
        if machine.frozen and frame is not None:
            # Frames wait in the socket; what is in flight when a process stops may as well be lost with its link.
            self.after(5, lambda: self._arrive(link, to, event, frame))
            return
        if frame is None or not isinstance(event, Given):
            self.give(machine, event)
            return
        ticks = self._ticks(machine)
        if ticks != machine.ticked:
            self.give(machine, Tick(0))
        if not machine.up:
            return
        kept = False
        for effect in machine.mode.step(event):
            if isinstance(effect, Keep):
                kept = True
                machine.store.append(event.log, frame)
            else:
                self._effect(machine, effect)
        if kept:
            self._stored(machine)

    # etcd -----------------------------------------------------------------------------------------------------

    def _reaches_etcd(self, machine: Machine) -> bool:
        return machine.up and not machine.frozen and not self.etcd_down and machine.name not in self.away

    def _keepalive(self, machine: Machine, life: int) -> None:
        """Renew the lease; its end is counted from before the question, on the member's own clock."""
        if machine.life != life or not machine.up:
            return
        self.after(500, lambda: self._keepalive(machine, life))
        if not self._reaches_etcd(machine):
            return
        asked = self._ticks(machine)
        until = asked + int(self.config.lease_ms * (1 - self.config.lease_margin))
        fresh = machine.name not in self.leases
        self.leases[machine.name] = self.now + self.config.lease_ms
        if fresh or self.watchers.get(machine.name) != life:
            self.watchers[machine.name] = life
            self._announce(machine)
            for other in self.machines.values():
                if other.name in self.leases:
                    self._watch(machine, self._here(other))
            self._watch(machine, ViewChanged(self.view))
        self._watch(machine, Lease(until))

    def _here(self, machine: Machine) -> MemberHere:
        store = machine.store
        return MemberHere(machine.name, store.cluster, store.durable, store.epoch, store.table)

    def _announce(self, machine: Machine) -> None:
        for other in self.machines.values():
            if other is not machine:
                self._watch(other, self._here(machine))

    def _expire_leases(self) -> None:
        self.after(50, self._expire_leases)
        if self.etcd_down:
            return
        for name in [name for name, until in self.leases.items() if until <= self.now]:
            del self.leases[name]
            self.tell(f"the lease of {name} ends")
            for machine in self.machines.values():
                self._watch(machine, MemberGone(name))

    def _watch(self, machine: Machine, event: Event) -> None:
        """News from etcd, in order for each member, later if it cannot be reached."""
        life = machine.life
        if not machine.up or self.watchers.get(machine.name) != life:
            return
        at = max(self.now + self.dice.choice((1, 1, 1, 3, 3, 20, 20, 300)), getattr(machine, "_news_at", 0))
        machine._news_at = at  # type: ignore[attr-defined]

        def arrive() -> None:
            if machine.life != life or not machine.up:
                return
            if machine.name in self.away or self.etcd_down:
                self.watchers.pop(machine.name, None)  # it reads everything again when it is back
                return
            self.give(machine, event)

        self.after(at - self.now, arrive)

    def _propose(self, machine: Machine, view: View, why: str) -> None:
        self.tell(f"{machine.name} proposes {view.epoch} {view.ready} of {view.revision}: {why}")
        life = machine.life
        self.proposed.append(view)

        def fail() -> None:
            if machine.life == life:
                self.give(machine, ProposalFailed(view))

        def write() -> None:
            written = False
            if not self.etcd_down and (machine.name not in self.away or self.dice.random() < 0.1):
                written = view.revision == self.revision
                if written:
                    self._write(view, why)
            elif self.dice.random() < 0.2:
                self.after(self.dice.randrange(3000), write)  # it was in flight all the time
                return
            self.proposed.remove(view)
            unheard = machine.name in self.away or self.etcd_down or self.dice.random() < 0.1
            if machine.life == life and (not written or unheard):
                self.after(self.dice.choice((1, 50)), fail)

        self.after(self.dice.choice((1, 2, 5, 40)), write)

    def _write(self, view: View, why: str) -> None:
        old = self.view
        if old is not None and view.epoch != old.epoch:
            self._check_fenced(old, view, why)
        if view.accepted == view.epoch and view.epoch not in self.given_up:
            self._lose(view)
        self.revision += 1
        self.view = replace(view, revision=self.revision)
        self.complete_at[self.revision] = {log: len(self.committed[log]) for log in Log}
        self.tell(f"view {self.revision}: epoch {view.epoch} {view.ready}")
        for machine in self.machines.values():
            self._watch(machine, ViewChanged(self.view))
        self.check_ready()

    def _check_fenced(self, old: View, new: View, why: str) -> None:
        leader = self.machines[old.leader]
        if not why.startswith("the lease") or new.leader == old.leader or leader.frozen or not leader.up:
            return
        if leader.leads and not leader.fenced and leader.mode.view.epoch == old.epoch:
            raise Broken(f"{new.leader} takes over while {old.leader} is not fenced")

    # Faults ---------------------------------------------------------------------------------------------------

    def trouble(self, ms: int) -> None:
        """Let things go wrong for so long."""
        end = self.now + ms

        def next_fault() -> None:
            if self.now < end:
                self._fault()
                self.after(self.dice.choice((30, 200, 600, 1500)), next_fault)

        self.after(self.dice.randrange(1500), next_fault)
        self.run(end)

    def _fault(self) -> None:
        dice = self.dice
        machine = dice.choice(list(self.machines.values()))
        ms = dice.choice((50, 300, 1000, 3000, 6000))
        if self.losses and dice.random() < 0.2:
            self._lose_the_ready()
            return
        match dice.randrange(16):
            case 0 | 1 | 2:
                self._crash_for(machine, ms)
            case 3:
                leader = self.view.leader if self.view else machine.name
                self._crash_for(self.machines[leader], ms)
            case 4 | 5:
                self.freeze(machine, ms)
            case 6:
                leader = self.view.leader if self.view else machine.name
                self.freeze(self.machines[leader], ms)
            case 7 | 8:
                self._cut(machine.name, dice.choice([n for n in self.machines if n != machine.name]), ms)
            case 9:
                for other in self.machines:
                    if other != machine.name:
                        self._cut(machine.name, other, ms)
                        self._cut(other, machine.name, ms)
                self._lose_etcd(machine.name, ms)
            case 10:
                self._lose_etcd(machine.name, ms)
            case 11:
                if dice.random() < 0.3:
                    for one in self.machines.values():
                        self._crash_for(one, dice.choice((100, 1000, 4000)))
                elif dice.random() < 0.3:
                    self.tell("etcd is away")
                    self.etcd_down = True
                    self.after(ms, self._etcd_back)
                elif self.links:
                    self._break(dice.choice(self.links), None)
            case 12:
                self._wipe(machine, ms)
            case 14 | 15:
                self._hand_over(ms)
            case 13:
                if machine.up and not machine.frozen:
                    command = dice.choice(("promote", "demote", "drop", "refill", "reread"))
                    member = dice.choice(list(self.machines)) if command == "drop" else ""
                    self.tell(f"{machine.name} is asked to {command} {member}")
                    self.give(machine, Asked(command, member))  # type: ignore[arg-type]

    def _hand_over(self, ms: int) -> None:
        """The leader is demoted, and promoted again a little later."""
        for machine in [one for one in self.machines.values() if one.leads and not one.frozen][:1]:
            self.tell(f"{machine.name} is asked to hand over")
            self.give(machine, Asked("demote"))
            self.after(min(ms, 1000) + 100, lambda m=machine: self.give(m, Asked("promote")))  # type: ignore[misc]

    def _lose_the_ready(self) -> None:
        """All ready members go, for good or not; a while later an operator promotes one of the others all the same."""
        view, dice = self.view, self.dice
        if view is None:
            return
        others = [one for one in self.machines.values() if one.name not in view.ready]
        if not others:
            self._crash_for(self.machines[view.ready[-1]], 4000)
            self.after(dice.choice((600, 1500)), self._lose_the_ready)
            return
        for machine in (self.machines[name] for name in view.ready):
            if dice.random() < 0.3:
                self.freeze(machine, 7000)
            else:
                self.crash(machine, wipe=dice.random() < 0.5)
                self.after(dice.choice((1000, 5000, 9000)), lambda m=machine: self.start(m))  # type: ignore[misc]
        for machine in others:
            self.start(machine)
        self.after(2600 + dice.randrange(1500), self._accept_loss)

    def _accept_loss(self) -> None:
        """An operator asks one that is there, mostly the best. It refuses if there is no need."""
        there = [one for one in self.machines.values() if one.up and not one.frozen]
        if not there:
            return
        best = max(there, key=lambda one: (one.store.epoch, one.store.durable.journal))
        machine = best if self.dice.random() < 0.8 else self.dice.choice(there)
        answers, unasked = [], []
        for one in self.machines.values():
            if one is machine:
                continue
            reached = self._open_path(machine.name, one.name) and self._open_path(one.name, machine.name)
            if one in there and reached:
                answers.append(self._here(one))
            else:
                unasked.append(Unasked(one.name, "no answer"))  # one that is frozen is so with its machine
        self.tell(f"{machine.name} is asked to lead whatever is lost")
        view = machine.mode.view
        survey = Survey(view.revision if view is not None else 0, tuple(answers), tuple(unasked))
        self.give(machine, Asked("promote", machine.name, accept_loss=True, survey=survey))

    def _accept_loss_again(self) -> None:
        if not self.is_well():
            self._accept_loss()
            self.after(4000, self._accept_loss_again)

    def _wipe(self, machine: Machine, ms: int) -> None:
        """Take its disk away, if another ready member has all."""
        if not self.wipes or self.view is None:
            return
        possible = [self.view, *self.proposed]  # a proposal may still be on its way
        spare = all(set(view.ready) - {machine.name} for view in possible)
        if spare and not any(other.wiped for other in self.machines.values()):
            self.crash(machine, wipe=True)
            self.after(ms, lambda: self.start(machine))

    def _crash_for(self, machine: Machine, ms: int) -> None:
        if machine.up:
            self.crash(machine)
            self.after(ms, lambda: self.start(machine))

    def _cut(self, a: Name, b: Name, ms: int) -> None:
        self.tell(f"{a} to {b} is cut")
        self.cuts.add((a, b))
        for link in list(self.links):
            if {link.dialler, link.source} == {a, b}:
                self.after(self.dice.choice((100, 500, 1500)), lambda one=link: self._break(one, None))  # type: ignore[misc]
        self.after(ms, lambda: self.cuts.discard((a, b)))

    def _lose_etcd(self, name: Name, ms: int) -> None:
        self.tell(f"{name} does not reach etcd")
        self.away.add(name)
        self.after(ms, lambda: self.away.discard(name))

    def _etcd_back(self) -> None:
        self.etcd_down = False
        for name in self.leases:  # etcd gives leases their time again after an election
            self.leases[name] = self.now + self.config.lease_ms

    def heal(self) -> None:
        """Everything is well again, and stays so; everybody gets ready and publishing completes."""
        self.tell("all is well again")
        self.cuts.clear()
        self.away.clear()
        self.etcd_down = False
        self.run(self.now + 6_500)
        for machine in self.machines.values():
            self.start(machine)
        self.cuts.clear()
        self.away.clear()
        for link in list(self.links):
            self._break(link, None)  # whom an operator dropped comes back when it connects anew
        if self.losses:
            self.after(4000, self._accept_loss_again)
        if not self.run(self.now + HEALED_MS, self.is_well):
            raise Broken(f"not well after {HEALED_MS} ms: {self.states()}, {self.view}")
        done = len(self.committed[Log.JOURNAL])
        if not self.run(self.now + 10_000, lambda: len(self.committed[Log.JOURNAL]) > done + 3):
            raise Broken(f"nothing completes: {self.states()}, {self.view}")

    def states(self) -> dict[Name, str]:
        return {
            name: str(machine.mode.state) if machine.up else "down" for name, machine in self.machines.items()
        }

    def is_well(self) -> bool:
        states = sorted(self.states().values())
        return states == sorted([State.ACTIVE] + [State.READY] * (len(self.machines) - 1))


def _alike(done: list[Record], held: list[Record]) -> list[Record]:
    """How both begin."""
    parted = (at for at, (one, other) in enumerate(zip(done, held, strict=False)) if one != other)
    return done[: next(parted, min(len(done), len(held)))]


def run(
    seed: int, mode: str | type[Replica] = "standby", members: int = 3, ms: int = 8_000, **how: Any
) -> World:
    """One seed's world: a start, a time of trouble, and a time to heal. Raises `Broken` with the story."""
    world = World(seed, mode, members, **how)
    try:
        world.run(1500)
        world.trouble(ms)
        world.heal()
    except Broken as error:
        error.add_note("\n".join(world.story[-200:]))
        raise
    return world
