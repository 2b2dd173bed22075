"""Stores that follow one another, each over a lying disk: random work, crashes, takeovers, and a model of the log.

    python -m tidemark.sim.replica --seed 17            replay one run and print what happened
    python -m tidemark.sim.replica --seeds 1000         look for a run that breaks a promise

Three members hold the same two logs. There is no network and no clock: what the modes of a cluster decide, this
decides by dice, within the same rules. One leads and works; the others are given units by it or by one another, and
may fall behind, crash, be thrown back to a point, or emptied. What is on the disk of all that are ready is complete
and stays; anybody ready may take over, and what only others had is cut off.

The model remembers every record of the branch that leads. A member that follows must hold, at any moment, what the
records up to its own end leave: queue by queue and key by key, byte for byte; the bytes of its log must be those of
the leader's; and its table must name the same histories.

Invariant: a run is a function of its seed.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field, replace
from random import Random
from typing import Any, Literal

from tidemark.broker.core import FLAG_DURABLE, NEVER, QueueCore, Restorer
from tidemark.errors import LogGone, TidemarkError
from tidemark.model.arena import MEMORY, Arena, Writer
from tidemark.model.peers import Ends, Log, Takeover
from tidemark.model.records import HEAD_BYTES, Reason, padded
from tidemark.sim.apart import Killed, SimApart
from tidemark.sim.disk import SimDisk
from tidemark.sim.keyed import KEYS, STREAM, KeyedSide, StreamModel, rows
from tidemark.sim.seeds import command
from tidemark.sim.store import CONFIG, BrokenPromise
from tidemark.store.check import check_store
from tidemark.store.config import StoreConfig
from tidemark.store.frames import walk
from tidemark.store.rewind import reset, rewind
from tidemark.store.store import Store

NAMES = ("a", "b", "c")


@dataclass(slots=True)
class Sent:
    """One entry of one queue, in the model."""

    queue: int
    body: bytes
    ended: int = 0
    """The sequence of the record that says it is gone; 0 while it is here, -1 if that is not written yet."""


@dataclass(slots=True)
class Model:
    """Everything that was put into the two logs, on the branch that leads."""

    entries: dict[int, Sent] = field(default_factory=dict)
    records: list[tuple[int, int]] = field(default_factory=list)
    """(last sequence, last sequence of the catalog when it was written) of every record."""
    transactions: list[tuple[int, int]] = field(default_factory=list)
    changes: list[tuple[int, str, int | None]] = field(default_factory=list)
    """(catalog sequence, name, number): a queue is declared, or with None deleted; other names are only names."""
    stream: StreamModel = field(default_factory=StreamModel)

    def cut(self, to: Ends) -> None:
        """What came later is on no branch that anybody follows."""
        self.entries = {
            seq: Sent(sent.queue, sent.body, sent.ended if sent.ended <= to.journal else 0)
            for seq, sent in self.entries.items()
            if seq <= to.journal
        }
        for sent in self.entries.values():
            sent.ended = max(sent.ended, 0)
        self.records = [record for record in self.records if record[0] <= to.journal]
        self.transactions = [pair for pair in self.transactions if pair[1] <= to.journal]
        self.changes = [change for change in self.changes if change[0] <= to.catalog]
        self.stream.cut(to.journal)

    def wiring(self, upto: int) -> dict[str, int]:
        found: dict[str, int] = {}
        for seq, name, number in self.changes:
            if seq <= upto:
                if number is None:
                    found.pop(name, None)
                else:
                    found[name] = number
        return found

    def left(self, upto: Ends) -> dict[int, list[tuple[int, bytes]]]:
        """The entries of each queue that the records up to here leave."""
        queues: dict[int, list[tuple[int, bytes]]] = {
            number: [] for name, number in self.wiring(upto.catalog).items() if name.startswith("queue")
        }
        for seq, sent in sorted(self.entries.items()):
            if sent.queue in queues and seq <= upto.journal and not 0 < sent.ended <= upto.journal:
                queues[sent.queue].append((seq, sent.body))
        return queues


class Life:
    """One member while it is up: the store and what is in memory."""

    def __init__(
        self, disk: SimDisk, dice: Random, now_ms: int, config: StoreConfig, alone: bool = False
    ) -> None:
        self.arena = Arena()
        self.dirty: list[Any] = []
        self.wiring: dict[str, int] = {}
        self.queues: dict[int, QueueCore] = {}
        self.store = Store(self.arena, disk, config, dice.randbytes, SimApart(disk, dice))
        self.memory = Writer(self.arena, MEMORY, config.extent_bytes)
        self.found = self.store.open()
        for change in self.store.catalog.recover(now_ms):
            self.apply(change)
        self.keyed = KeyedSide(self.arena, self.store.journal)
        self.restorer = Restorer(self.arena, dict(self.targets()))
        self.report = self.store.journal.recover(
            self.restorer, now_ms, lambda _: None, self, open_history=alone
        )
        self.purged = 0
        self.purge()

    def apply(self, change: bytes) -> None:
        name, number = json.loads(change)[:2]
        if number is None:
            gone = self.queues.pop(self.wiring.pop(name), None)
            if gone is not None:
                gone.clear()
        else:
            self.wiring[name] = number
            if name.startswith("queue"):
                self.queues[number] = QueueCore(self.arena, number, True, 0, self.dirty)

    def purge(self) -> None:
        """Do what the state says about tombstones, as far as it is new."""
        for _, key, body in rows(self.keyed.state, self.store.journal.end_seq):
            if key == b"purges" and body is not None:
                self.keyed.purges = [(by, upto) for by, upto in json.loads(body)]
        for by, upto in self.keyed.purges[self.purged :]:
            self.keyed.stream.end_tombstones(upto, by)
        self.purged = len(self.keyed.purges)

    def release(self, upto: int) -> None:
        self.keyed.stream.release(upto)
        self.keyed.state.end_tombstones(upto, upto)
        self.keyed.state.release(upto)

    def image(self) -> list[bytes]:
        return [json.dumps([name, number]).encode() for name, number in self.wiring.items()]

    # Residents and Image
    def targets(self) -> Iterable[tuple[int, Any]]:
        return {**self.queues, **self.keyed.targets}.items()

    def _target(self, number: int) -> Any:
        return self.queues.get(number) or self.keyed.targets.get(number)

    def holds(self, queue: int, seq: int) -> bool:
        target = self._target(queue)
        return target is not None and target.holds(seq)

    def buries(self, number: int) -> bool:
        return number in self.keyed.targets

    def buried_seq(self) -> int:
        return self.keyed.buried_seq()

    def relocate(self, queue: int, seq: int, loc: int) -> bool:
        target = self._target(queue)
        return target is not None and target.relocate(seq, loc)

    def queue_name(self, queue: int) -> str | None:
        return f"q{queue}"

    # Following
    def adopt(self, log: Log, payload: memoryview, now_ms: int) -> None:
        # Its bytes may go when the caller returns.
        held = memoryview(bytes(payload))
        if log is Log.CATALOG:
            for change in self.store.adopt_changes(held, now_ms):
                self.apply(change)
            self.restorer = Restorer(self.arena, dict(self.targets()))
        else:
            self.restorer.frame(*self.store.adopt_records(held, now_ms))
            self.purge()

    def contents(self) -> dict[int, list[tuple[int, bytes]]]:
        found: dict[int, list[tuple[int, bytes]]] = {}
        for number, queue in self.queues.items():
            entries = found[number] = []
            taken_all = []
            while (taken := queue.take(1000, 1 << 40)) is not None:
                taken_all.append(taken)
                entries += [(seq, self.arena.message(loc).body) for _, seq, loc, *_ in taken]
            for taken in taken_all:
                for index, *_ in taken:
                    queue.requeue(taken.lane, index, False)
        return found


@dataclass(slots=True)
class Member:
    name: str
    disk: SimDisk
    life: Life | None = None
    follows: bool = False
    """It has found its place behind the leader, in this epoch."""
    source: str = ""
    after: Ends = field(default_factory=Ends)
    """What it was given."""
    acked: Ends | None = None
    """What it was last known to have on its disk, in this epoch."""
    promised: Ends = field(default_factory=Ends)
    """What its disk must have when it comes back."""
    whole_at: Ends = field(default_factory=Ends)
    """It was given a copy that lacks what had ended by then; the ends come later."""


class ReplicaRun:
    """One run of one seed."""

    def __init__(self, seed: int, steps: int = 150, say: Callable[[str], None] = lambda _: None) -> None:
        self.seed = seed
        self.steps = steps
        self.say = say
        self.dice = Random(seed)
        self.now_ms = 1_000_000
        self.model = Model()
        self.counts = dict.fromkeys(("takeovers", "crashes", "rewinds", "resets", "copies", "interrupted"), 0)
        self.compactions = self.checkpoints = self.rewrites = 0
        self.config = replace(
            CONFIG,
            ack_patience_ms=self.dice.choice((0, 5)),
            checkpoint_bytes=self.dice.choice((0, 4 << 10, 64 << 10)),
        )
        self.size = self.dice.choice((40, 300, 1200))
        self.members: dict[str, Member] = {}
        for name in NAMES:
            lag = self.dice.choice((0, 0, 2, 6))
            self.members[name] = Member(name, SimDisk(self.dice, lag=lag))
        self.next_queue = 1 + STREAM
        self.complete = Ends()
        self.cuts: set[int] = set()
        """Where members were cut back to by dice: a unit may have been cut in two there, and given on like that."""
        self.ready = ["a"]
        self.leader = self.members["a"]
        self.held: list[tuple[int, int, int, int]] = []
        """(queue, lane, index, sequence) of what was taken and not settled."""
        for member in self.members.values():
            self.start(member)
        self.lead(self.leader)

    # Steps ---------------------------------------------------------------------------------------

    def run(self) -> None:
        work: list[tuple[int, Callable[[], None]]] = [
            (26, self.publish),
            (8, self.publish_transient),
            (16, self.revise),
            (2, self.purge),
            (6, self.transaction),
            (18, self.consume),
            (5, self.rewire),
            (24, self.turn),
            (40, self.follow),
            (24, self.disks),
            (12, self.maintain),
            (3, self.rest),
            (6, self.change_ready),
            (3, self.crash),
            (3, self.take_over),
            (3, self.throw_back),
            (1, self.empty),
            (1, self.astray),
            (1, self.copy_slowly),
            (1, self.compare),
        ]
        actions, weights = [action for _, action in work], [weight for weight, _ in work]
        for step in range(self.steps):
            self.now_ms += self.dice.randrange(40)
            action = self.dice.choices(actions, weights)[0]
            self.say(f"{step:4} {action.__name__}")
            action()
        self.settle()

    @property
    def life(self) -> Life:
        assert self.leader.life is not None
        return self.leader.life

    def lead(self, member: Member) -> None:
        """This member leads from now on."""
        life = member.life
        assert life is not None
        ends = life.store.ends
        self.say(f"     {member.name} leads from {ends}; complete was {self.complete}")
        if not ends.covers(self.complete):
            raise BrokenPromise(f"{member.name} takes over with {ends}, but {self.complete} was complete")
        if ends.journal not in self.cuts:
            for first, last in self.model.transactions:
                if first <= ends.journal < last:
                    raise BrokenPromise(f"transaction {first}..{last} was cut in two at {ends.journal}")
        self.model.cut(ends)
        self.check(member, ends)
        self.leader, self.held = member, []
        history = self.dice.randbytes(16).hex()
        taken = life.store.take_over(history, self.now_ms)
        life.store.files.update(cluster="c" * 32, role="leader")
        if taken.first != Ends(ends.catalog + 1, ends.journal + 1):
            raise BrokenPromise(f"the history begins at {taken.first}, the logs ended at {ends}")
        self.model.records.append((taken.first.journal, taken.first.catalog))
        for other in self.members.values():
            other.follows, other.acked, other.source = False, None, ""
        member.follows = True
        self.counts["takeovers"] += 1

    # The leader's work ---------------------------------------------------------------------------

    def _record(self, last: int) -> None:
        self.model.records.append((last, self.life.store.catalog.last_seq))

    def _body(self) -> bytes:
        longest = 20_000 if self.dice.random() < 0.01 else self.size
        return self.dice.randbytes(4) * self.dice.randint(0, longest // 4)

    def publish(self) -> None:
        for _ in range(self.dice.randint(1, 10)):
            self._put()

    def _put(self) -> int:
        numbers = list(self.life.queues)
        if not numbers:
            return 0
        targets = tuple(self.dice.sample(numbers, min(len(numbers), self.dice.choice((1, 1, 2)))))
        body = self._body()
        journal = self.life.store.journal
        seq, loc = journal.put(targets, self.now_ms, None, 0, True, b"ex", b"key", b"", body)
        for index, number in enumerate(targets):
            self.life.queues[number].put(seq + index, loc, len(body), 0, NEVER, FLAG_DURABLE)
            self.model.entries[seq + index] = Sent(number, body)
        self._record(seq + len(targets) - 1)
        return seq + len(targets) - 1

    def publish_transient(self) -> None:
        """Messages that are in no log, but take sequences."""
        for number in list(self.life.queues)[:2]:
            seq, loc = self.life.memory.put(
                (number,), self.now_ms, None, 0, False, b"", b"", b"", b"transient"
            )
            self.life.queues[number].put(seq, loc, 9, 0, NEVER, 0)

    def revise(self) -> None:
        for _ in range(self.dice.randint(1, 8)):
            key = KEYS[self.dice.randrange(12)]
            body = None if self.dice.random() < 0.25 else self._body()
            seq, _ = self.life.keyed.put(key, body, self.now_ms)
            self.model.stream.versions.append((seq, key, body))
            self._record(seq)

    def purge(self) -> None:
        seq = self.life.keyed.purge(self.complete.journal, self.now_ms)
        self.life.purged = len(self.life.keyed.purges)
        self.model.stream.purges.append((seq, self.complete.journal))
        self._record(seq)

    def transaction(self) -> None:
        """Publishes and acks that stay together."""
        self._record_ends()
        journal = self.life.store.journal
        journal.ensure(8 * padded(HEAD_BYTES + 8 + 5 + self.size + 20_000))
        first = self.life.arena.next_seq
        last = max(self._put() for _ in range(self.dice.randint(2, 5)))
        if last:
            self.model.transactions.append((first, last))

    def consume(self) -> None:
        for number, queue in list(self.life.queues.items()):
            taken = queue.take(self.dice.choice((1, 5, 40)), 1 << 40)
            if taken is not None:
                self.held += [(number, taken.lane, index, seq) for index, seq, *_ in taken]
        for _ in range(self.dice.randint(0, len(self.held))):
            number, lane, index, seq = self.held.pop(0)
            if number in self.life.queues:
                self.life.queues[number].settle(lane, index)
                if seq in self.model.entries:
                    self.model.entries[seq].ended = -1

    def _record_ends(self) -> None:
        for number, queue in self.life.queues.items():
            gone = queue.drain_gone()
            if gone is not None:
                last = self.life.store.journal.settled(number, Reason.ACCEPTED, *gone, self.now_ms)
                self._record(last)
                for sent in self.model.entries.values():
                    if sent.queue == number and sent.ended == -1:
                        sent.ended = last

    def rewire(self) -> None:
        """Queues come and go, and things that are only names."""
        self._record_ends()
        name = self.dice.choice(("queue one", "queue two", "queue three", "name one", "name two"))
        number: int | None = None
        if name not in self.life.wiring or not name.startswith("queue"):
            number, self.next_queue = self.next_queue, self.next_queue + 1
        change = json.dumps([name, number, "x" * self.dice.randrange(2000)]).encode()
        seq = self.life.store.catalog.append(change, self.now_ms)
        self.life.apply(change)
        self.model.changes.append((seq, name, number))

    def turn(self) -> None:
        self._record_ends()
        self.life.store.flush(self.now_ms)
        self.life.store.checkpoint(self.life, self.now_ms)
        self.life.arena.turn += 1

    # Following -----------------------------------------------------------------------------------

    def _others(self) -> list[Member]:
        return [member for member in self.members.values() if member is not self.leader and member.life]

    def follow(self) -> None:
        others = self._others()
        if not others:
            return
        member = self.dice.choice(others)
        if not member.follows:
            self.hello(member)
        else:
            self.give(member)

    def hello(self, member: Member) -> None:
        """It asks a source for its place in the logs."""
        sources = [
            other.name
            for other in self.members.values()
            if other.life and other.follows and other.name in self.ready and other.source != member.name
        ]
        source = self.members[self.dice.choice([*sources, self.leader.name])]
        assert source.life is not None and member.life is not None
        while not member.life.store.idle:
            member.life.store.completed()
        store = member.life.store
        verdict, to = judge(source.life.store, store.table, store.durable_ends)
        self.say(f"     {member.name} with {store.durable_ends} asks {source.name}: {verdict} {to}")
        if verdict == "rewind":
            self._rewind(member, to)
        elif verdict == "reset":
            self._reset(member)
        else:
            if any(not to[log] and source.life.store.log_start(log) for log in Log):
                self.counts["copies"] += 1
            self.check(member, to)
            member.follows, member.source, member.after = True, source.name, to
            store.files.update(cluster="c" * 32, role="backup")

    def give(self, member: Member, often: int = 0) -> None:
        """It is given some units, and adopts them."""
        source = self.members[member.source]
        life = member.life
        assert life is not None
        if source.life is None or not source.follows:
            member.follows = False
            return
        for log in Log:
            for _ in range(often or self.dice.choice((1, 1, 2, 20))):
                if member.after[log] < source.life.store.log_start(log):
                    member.whole_at = member.whole_at.most(self.complete).most(source.whole_at)
                try:
                    units = source.life.store.units_after(
                        log, member.after[log], self.dice.choice((1, 3000, 1 << 20))
                    )
                except LogGone:
                    self.say(f"     {member.source} has not all of {log.name} behind {member.after[log]}")
                    member.follows = False
                    return
                if not units:
                    break
                for unit in units:
                    if unit.previous != member.after[log] or not unit.previous < unit.first <= unit.last:
                        raise BrokenPromise(
                            f"{unit.previous}, {unit.first}, {unit.last} behind {member.after[log]}"
                        )
                    life.adopt(log, unit.payload, self.now_ms)
                    member.after = _with(member.after, log, unit.last)
                if life.store.ends[log] != member.after[log]:
                    raise BrokenPromise(f"{member.name} ends at {life.store.ends}, but has {member.after}")
            if log is Log.CATALOG and member.after.catalog < source.life.store.ends.catalog:
                return
        life.store.flush(self.now_ms)
        if self.dice.random() < 0.3:
            life.store.checkpoint(life, self.now_ms)
        if self.dice.random() < 0.15:
            self.check(member, life.store.ends)

    def disks(self) -> None:
        """Disks have news; what all that are ready have is complete."""
        for member in self.members.values():
            if member.life is not None and self.dice.random() < 0.8:
                member.life.store.completed()
                if member.follows:
                    member.acked = member.promised = member.life.store.durable_ends
        self._complete()

    def _complete(self) -> None:
        acks = [self.members[name].acked for name in self.ready]
        if all(ack is not None for ack in acks):
            least = acks[0]
            for ack in acks:
                assert least is not None and ack is not None
                least = least.least(ack)
            assert least is not None
            if least.covers(self.complete):
                self.complete = least
        for member in self.members.values():
            if member.life is not None and member.follows and self.dice.random() < 0.7:
                hold = self.complete
                for other in self.members.values():
                    if other.source == member.name and other.follows and self.dice.random() < 0.8:
                        hold = hold.least(other.after)
                member.life.store.hold(hold)
                member.life.release(self.complete.journal)

    def maintain(self) -> None:
        for member in self.members.values():
            life = member.life
            if life is None or self.dice.random() < 0.3:
                continue
            if member is self.leader:
                self._record_ends()
                life.store.flush(self.now_ms)
            for _ in range(self.dice.choice((1, 4))):
                self.now_ms += 50
                life.store.journal.maintain(life, self.now_ms, self.dice.choice((1, 8000, 1 << 20)))
                life.store.flush(self.now_ms)
            if life.store.catalog.wants_rewrite or self.dice.random() < 0.2:
                before = life.store.catalog.log_start
                life.store.catalog.rewrite(life.image(), self.now_ms)
                self.rewrites += life.store.catalog.log_start > before
            life.store.checkpoint(life, self.now_ms)

    def rest(self) -> None:
        """Everybody catches up and nothing else happens: compaction comes to its end."""
        self.turn()
        for _ in range(8):
            self.now_ms += 100
            for member in self._others():
                self.give(member) if member.follows else self.hello(member)
            self.disks()
            self.maintain()

    # What happens to members ---------------------------------------------------------------------

    def change_ready(self) -> None:
        """Members that have all that is complete become ready; others are done without."""
        for member in self._others():
            if member.name in self.ready:
                if self.dice.random() < 0.2:
                    self.ready.remove(member.name)
            elif member.follows and member.acked is not None and member.acked.covers(self.complete):
                self.ready.append(member.name)

    def crash(self) -> None:
        """A member dies. If it led, another one that is ready takes over, or it comes back and leads itself."""
        member = self.dice.choice(list(self.members.values()))
        self.counts["crashes"] += 1
        if member is self.leader:
            ready = self._successors()
            member.promised = member.promised.most(self.complete)
            self._down(member)
            if not ready:
                self.start(member)
                member.follows = True
                self.lead(member)
                return
            self.ready.remove(member.name)
            self.lead(self.members[self.dice.choice(ready)])
        else:
            self._down(member)
        self.start(member)

    def _successors(self) -> list[str]:
        """Who may take over. One that is ready may hold what only leaders before this one wrote; the model does not
        know what that was, so that one is left out."""
        found = []
        for member in self._others():
            assert member.life is not None
            store = member.life.store
            same = member.follows or judge(self.life.store, store.table, store.ends)[0] == "resume"
            if member.name in self.ready and same:
                found.append(member.name)
        return found

    def _down(self, member: Member) -> None:
        if member.life is not None:
            self._count(member.life)
            if self.dice.random() < 0.3:
                # It was on its way down by itself.
                self._stop(member)
        member.life, member.follows, member.acked = None, False, None
        member.disk = member.disk.crash(power=self.dice.random() < 0.7)

    def _count(self, life: Life) -> None:
        self.compactions += life.store.journal.statistics().compactions
        self.checkpoints += life.store.journal.checkpointer.made

    def _stop(self, member: Member) -> None:
        store, life = member.life.store if member.life else None, member.life
        assert store is not None and life is not None
        if member is self.leader:
            self._record_ends()
        store.close(self.now_ms)
        while not store.idle:
            store.completed()
        store.closed(life if self.dice.random() < 0.7 else None)

    def start(self, member: Member) -> None:
        member.life = Life(member.disk, self.dice, self.now_ms, self.config)
        store = member.life.store
        self.say(
            f"     {member.name} is back with {store.ends}, {len(store.table)} histories; {member.life.report.torn}"
        )
        if not store.durable_ends.covers(member.promised):
            raise BrokenPromise(
                f"{member.name} had {member.promised} on its disk and is back with {store.ends}"
            )
        if store.ends != store.durable_ends:
            raise BrokenPromise(
                f"{member.name} began with something written: {store.ends}, {store.durable_ends}"
            )
        for finding in check_store(member.disk):
            raise BrokenPromise(f"the store check complains about {member.name}: {finding}")

    def take_over(self) -> None:
        """Somebody else leads, and the one that did does not know at first."""
        ready = self._successors()
        if not ready:
            return
        old = self.leader
        if self.dice.random() < 0.5:
            self.turn()
        self.ready.remove(old.name)
        self.lead(self.members[self.dice.choice(ready)])
        # What it holds in memory is of another branch: it reads its store again.
        assert old.life is not None
        while not old.life.store.idle:
            old.life.store.completed()
        old.promised = old.life.store.durable_ends
        self._count(old.life)
        self.start(old)

    def throw_back(self) -> None:
        """A member is cut back to a point that is not before what is complete, whether that is needed or not."""
        members = [member for member in self._others() if member.follows]
        if not members:
            return
        member = self.dice.choice(members)
        assert member.life is not None
        ends = member.life.store.ends
        points = [last for last in self.model.records if self.complete.journal <= last[0] <= ends.journal]
        journal, needs = self.dice.choice([*points, (ends.journal, ends.catalog)])
        low = min(ends.catalog, max(needs, self.complete.catalog))
        self.cuts.add(journal)
        self._rewind(member, Ends(self.dice.randint(low, ends.catalog), journal))

    def _rewind(self, member: Member, to: Ends) -> None:
        life = member.life
        assert life is not None
        while not life.store.idle:
            life.store.completed()
        had = life.store.ends
        self._count(life)
        self.counts["rewinds"] += 1
        if self.dice.random() < 0.3:
            member.disk = member.disk.crash(power=self.dice.random() < 0.5)
        member.promised = member.promised.least(to)
        try:
            self._offline(member, lambda: rewind(member.disk, self.config, to, self.dice.randbytes))
        except LogGone as gone:
            # Below what is complete nobody is cut back, unless he is astray.
            if to.covers(self.complete) and not member.life.store.files.status.alone_from:  # type: ignore[union-attr]
                raise BrokenPromise(f"{member.name} cannot be cut back to {to}: {gone}") from gone
            self._reset(member)
            return
        member.life, member.follows, member.acked = None, False, None
        self.start(member)
        life = member.life
        if life is None or not to.covers(life.store.ends):
            raise BrokenPromise(f"{member.name} was cut back to {to}, but has more")
        if not life.store.ends.covers(had.least(self._ends_at(to))):
            raise BrokenPromise(f"{member.name} was cut back to {to} and has only {life.store.ends}")
        self.check(member, life.store.ends)

    def _ends_at(self, to: Ends) -> Ends:
        """The last records of the model up to a point."""
        catalog = max((seq for seq, *_ in self.model.changes if seq <= to.catalog), default=0)
        return Ends(catalog, max((seq for seq, _ in self.model.records if seq <= to.journal), default=0))

    def _offline(self, member: Member, work: Callable[[], None]) -> None:
        """Do this to the files, or die on the way, and let the next start see to the rest."""
        if self.dice.random() < 0.5:
            work()
            return
        try:
            with member.disk.dying(self.dice.randrange(25), Killed):
                work()
        except Killed:
            self.counts["interrupted"] += 1
            member.disk = member.disk.crash(power=self.dice.random() < 0.7)
            if self.dice.random() < 0.5:
                work()
            elif not member.disk.exists("INTENT"):
                # Nothing was decided yet.
                work()

    def empty(self) -> None:
        """A member that nobody counts on loses all it has."""
        members = [member for member in self._others() if member.name not in self.ready]
        if members:
            self._reset(self.dice.choice(members))

    def copy_slowly(self) -> None:
        """A member is given everything from the beginning, little by little, while much goes on."""
        members = [member for member in self._others() if member.name not in self.ready]
        if not members:
            return
        member = self.dice.choice(members)
        for _ in range(8):
            self.publish()
            self.turn()
            self.disks()
        self._reset(member)
        for _ in range(12):
            if member.follows:
                self.give(member, 1)
            else:
                self.hello(member)
            self.consume()
            self.turn()
            self.disks()
            self.maintain()

    def _reset(self, member: Member) -> None:
        life = member.life
        assert life is not None
        while not life.store.idle:
            life.store.completed()
        self._count(life)
        self.counts["resets"] += 1
        if member.name in self.ready:
            raise BrokenPromise(f"{member.name} is ready, and is told to begin anew")
        self._offline(member, lambda: reset(member.disk))
        member.follows, member.acked, member.promised = False, None, Ends()
        self.start(member)
        life = member.life
        assert life is not None
        if life.store.ends != Ends() or life.store.table or life.found.state != "empty":
            raise BrokenPromise(f"{member.name} was emptied and has {life.store.ends}, {life.found}")

    def astray(self) -> None:
        """A member that nobody counts on is started without its cluster, and works by itself for a while."""
        members = [member for member in self._others() if member.name not in self.ready]
        if not members:
            return
        member = self.dice.choice(members)
        self._down(member)
        life = Life(member.disk, self.dice, self.now_ms, self.config, alone=True)
        for number, queue in life.queues.items():
            seq, loc = life.store.journal.put((number,), self.now_ms, None, 0, True, b"", b"", b"", b"astray")
            queue.put(seq, loc, 6, 0, NEVER, FLAG_DURABLE)
            while (taken := queue.take(3, 1 << 40)) is not None and self.dice.random() < 0.5:
                queue.settle_taken(taken)
            gone = queue.drain_gone()
            if gone is not None:
                life.store.journal.settled(number, Reason.ACCEPTED, *gone, self.now_ms)
        for _ in range(6):
            life.store.flush(self.now_ms)
            life.store.completed()
            life.store.journal.maintain(life, self.now_ms, 1 << 20)
            self.now_ms += 200
        member.promised = Ends()
        member.disk = member.disk.crash(power=self.dice.random() < 0.7)
        self.start(member)

    # The checks ----------------------------------------------------------------------------------

    def check(self, member: Member, ends: Ends) -> None:
        """The member holds what the records up to here leave."""
        life = member.life
        assert life is not None
        if not ends.covers(member.whole_at):
            return
        wanted, found = self.model.left(ends), life.contents()
        if life.wiring != self.model.wiring(ends.catalog):
            raise BrokenPromise(f"the wiring of {member.name} at {ends.catalog} is {life.wiring}")
        if member is self.leader and member.follows:
            return
        for number in wanted:
            if found[number] != wanted[number]:
                lost = sorted(set(wanted[number]) - set(found[number]))
                back = sorted(set(found[number]) - set(wanted[number]))
                raise BrokenPromise(
                    f"queue {number} of {member.name} at {ends} lost {[seq for seq, _ in lost][:9]} "
                    f"and has {[seq for seq, _ in back][:9]} that were gone or never there"
                )
        got, right = (
            rows(life.keyed.stream, ends.journal),
            self.model.stream.visible(ends.journal, ends.journal),
        )
        if got != right:
            lost_rows = [row[:2] for row in right if row not in got][:5]
            back_rows = [row[:2] for row in got if row not in right][:5]
            raise BrokenPromise(f"the stream of {member.name} at {ends} lost {lost_rows} and has {back_rows}")

    def compare(self) -> None:
        """The logs of all who follow have the same bytes, as far as they are whole, and the same histories."""
        mine = self.life.store
        for member in self._others():
            if not member.follows:
                continue
            assert member.life is not None
            store = member.life.store
            for log in Log:
                start = max(mine.log_start(log), store.log_start(log))
                end = min(mine.ends[log], store.ends[log])
                if log_bytes(mine, log, start, end) != log_bytes(store, log, start, end):
                    raise BrokenPromise(
                        f"the {log.name} of {member.name} from {start} to {end} has other bytes"
                    )
            if store.ends == mine.ends and store.table != mine.table:
                raise BrokenPromise(f"{member.name} has the histories {store.table}, not {mine.table}")

    def settle(self) -> None:
        """All faults end: everybody comes to hold the same."""
        self.turn()
        for _ in range(60):
            self.now_ms += 50
            for member in self._others():
                self.give(member, 1000) if member.follows else self.hello(member)
            self.disks()
            self.change_ready()
        for member in self._others():
            assert member.life is not None
            if member.life.store.ends != self.life.store.ends:
                raise BrokenPromise(
                    f"{member.name} ends at {member.life.store.ends}, not {self.life.store.ends}"
                )
            self.check(member, member.life.store.ends)
        self.compare()
        for member in list(self.members.values()):
            ends = member.life.store.ends if member.life else Ends()
            self._down(member)
            self.start(member)
            assert member.life is not None
            if member is not self.leader and member.life.store.ends != ends and member.promised == ends:
                raise BrokenPromise(f"{member.name} came back with {member.life.store.ends}, not {ends}")
            member.follows = False
            self.check(member, member.life.store.ends)


def _with(ends: Ends, log: Log, last: int) -> Ends:
    return replace(ends, journal=last) if log is Log.JOURNAL else replace(ends, catalog=last)


def judge(
    source: Store, table: tuple[Takeover, ...], durable: Ends
) -> tuple[Literal["resume", "rewind", "reset"], Ends]:
    """What a source says to a member that has these histories and this much: the rule of the cluster's modes."""
    known = {row.history for row in source.table}
    shared = next((row.history for row in table if row.history in known), None)
    if shared is None:
        return ("resume", Ends()) if durable == Ends() else ("reset", Ends())
    common = _end_of(table, shared, durable).least(_end_of(source.table, shared, source.ends))
    if not common.covers(durable):
        return "rewind", common
    if any(0 < durable[log] < source.log_start(log) for log in Log):
        return "reset", Ends()
    return "resume", durable


def _end_of(table: tuple[Takeover, ...], history: str, ends: Ends) -> Ends:
    for row in table:
        if row.history == history:
            return ends
        ends = ends.least(Ends(row.first.catalog - 1, row.first.journal - 1))
    raise KeyError(history)


def log_bytes(store: Store, log: Log, start: int, end: int) -> bytes:
    """The records of a log behind `start` and up to `end`, one behind the other."""
    found = bytearray()
    at = start
    while at < end:
        units = store.units_after(log, at, 1 << 16)
        if not units:
            break
        for unit in units:
            for offset, length, _, seq, targets in walk(unit.payload, 0, len(unit.payload)):
                if seq + max(targets, 1) - 1 <= end:
                    found += unit.payload[offset : offset + length]
            at = unit.last
    return bytes(found)


def run_seed(seed: int, say: Callable[[str], None] = lambda _: None) -> ReplicaRun:
    """One run.

    Raises:
        BrokenPromise: with the command that replays it.
    """
    run = ReplicaRun(seed, say=say)
    try:
        run.run()
    except (AssertionError, TidemarkError, ValueError, KeyError, IndexError) as problem:
        raise BrokenPromise(
            f"{type(problem).__name__}: {problem}\nreplay: python -m tidemark.sim.replica --seed {seed}"
        ) from problem
    return run


if __name__ == "__main__":
    raise SystemExit(command("Run stores that follow one another over disks that lose and tear.", run_seed))
