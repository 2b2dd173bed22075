"""What must be true of all members together.

* An epoch has one leader (`World.became`).
* Every member that the view calls ready has on its disk all that any leader ever called complete: whichever of them
  leads next, nothing confirmed is lost.
* Up to there the logs of those members are the same, record by record. A record that was complete is never replaced by
  another with the same sequence.
* When all is quiet, every member is ready, their logs end at the same place, and their queues, wiring and streams hold
  the same, with the same hashes; what they hold is what clients were told.

Invariant: looking changes nothing that a later look could see.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any
from zlib import crc32

from tidemark.broker.streams.session import StreamSession
from tidemark.broker.streams.snapshots import Snapshot
from tidemark.cluster.mode import State
from tidemark.errors import LogGone
from tidemark.model.peers import Ends, Log, Name
from tidemark.model.records import HEAD_BYTES, RecordType
from tidemark.node import Node
from tidemark.sim.cluster.machine import Machine
from tidemark.sim.cluster.work_streams import read
from tidemark.sim.cluster.world import ALONE, World
from tidemark.sim.store import BrokenPromise
from tidemark.store.frames import walk
from tidemark.store.units import JournalUnits

LOOK_US = 120_000
STREAMS_EVERY = 8
"""So many looks at the logs for one at the streams."""


@dataclass(slots=True)
class Reading:
    """What was read of the logs of one node."""

    node: Node
    after: dict[Log, int] = field(default_factory=lambda: dict.fromkeys(Log, 0))
    hashes: dict[Log, dict[int, int]] = field(default_factory=lambda: {log: {} for log in Log})
    """Of each record, by its sequence."""
    checked: dict[Log, int] = field(default_factory=lambda: dict.fromkeys(Log, 0))
    """Up to here they were compared with what is complete."""
    thin: dict[Log, int] = field(default_factory=lambda: dict.fromkeys(Log, 0))
    """Up to here some records had gone before they could be read."""
    journal: JournalUnits = field(init=False)

    def __post_init__(self) -> None:
        # A reader of its own: where the members' own readers stand is none of our business.
        self.journal = JournalUnits(self.node.journal)

    def go_on(self) -> None:
        for log in Log:
            while self._some(log):
                pass

    def _some(self, log: Log) -> bool:
        store = self.node.store
        after, start = self.after[log], store.log_start(log)
        if after < start:
            self.thin[log] = start
        if after >= store.ends[log]:
            return False
        try:
            if log is Log.JOURNAL:
                units = self.journal.after(after, 1 << 20)
            else:
                units = store.units_after(log, after, 1 << 20)
        except LogGone:
            self.after[log] = start
            return True
        hashes = self.hashes[log]
        for unit in units:
            for start, length, kind, seq, _ in walk(unit.payload, 0, len(unit.payload)):
                if kind != RecordType.HISTORIES:
                    hashes[seq] = record_hash(unit.payload[start : start + length], kind)
            self.after[log] = unit.last
        return bool(units)


def record_hash(record: memoryview, kind: int) -> int:
    """Of everything but the targets of a message, of which compaction takes out those that are gone."""
    if kind != RecordType.MESSAGE:
        return crc32(record)
    targets = int.from_bytes(record[6:8], "little")
    return crc32(record[HEAD_BYTES + 4 * targets :], crc32(record[:HEAD_BYTES]))


class Checker:
    def __init__(self, world: World) -> None:
        self.world = world
        self.complete = Ends()
        """As far as any leader has ever called something complete."""
        self._canon: dict[Log, dict[int, int]] = {log: {} for log in Log}
        """Of each record that was ever complete, its hash."""
        self._thin: dict[Log, int] = dict.fromkeys(Log, 0)
        """Up to here some are not known."""
        self._readings: dict[Name, Reading] = {}
        self._looks = 0
        if world.mode != ALONE:
            world.timeline.after(LOOK_US, self._look_again)

    # While the run goes on ------------------------------------------------------------------------------------

    def _look_again(self) -> None:
        self.world.timeline.after(LOOK_US, self._look_again)
        self.look()

    def look(self) -> None:
        """Compare the members as they are now."""
        machines = [machine for machine in self.world.machines.values() if machine.running]
        for machine in machines:
            if machine.member.serving and not machine.node.paused:
                self._take_for_complete(machine)
        view = self.world.view
        if view is None:
            return
        # One whose log has rotted is in the view until the leader knows that it lost its store; it cannot lead.
        ready = [one for one in machines if one.name in view.ready and one.name != self.world.rotten]
        for machine in ready:
            self._compare(machine)
        self._looks += 1
        if self._looks % STREAMS_EVERY == 0:
            self._compare_streams(ready)

    def _reading(self, machine: Machine) -> Reading:
        reading = self._readings.get(machine.name)
        if reading is None or reading.node is not machine.node:
            reading = self._readings[machine.name] = Reading(machine.node)
        reading.go_on()
        return reading

    def _take_for_complete(self, machine: Machine) -> None:
        safe = machine.node.safe
        if safe is None or self.complete.covers(safe):
            return
        reading = self._reading(machine)
        for log in Log:
            canon = self._canon[log]
            if reading.thin[log] > self.complete[log]:
                self._thin[log] = reading.thin[log]
            for seq, found in reading.hashes[log].items():
                if self.complete[log] < seq <= safe[log]:
                    canon[seq] = found
        self.complete = self.complete.most(safe)

    def _compare(self, machine: Machine) -> None:
        durable = machine.node.store.durable_ends
        if not durable.covers(self.complete):
            raise BrokenPromise(
                f"{machine.name} is ready by the view and has {durable} on its disk, but {self.complete} is complete"
            )
        reading = self._reading(machine)
        for log in Log:
            canon, hashes, end = self._canon[log], reading.hashes[log], self.complete[log]
            thin = max(reading.thin[log], self._thin[log])
            # A catalog that was written anew has other records in the place of old ones.
            low = max(reading.checked[log], thin if log is Log.CATALOG else 0)
            for seq in sorted(seq for seq in {*hashes, *canon} if low < seq <= end):
                if seq in canon and seq in hashes:
                    problem = "another record" if canon[seq] != hashes[seq] else ""
                else:
                    problem = "" if seq <= thin else "a record too many" if seq in hashes else "no record"
                if problem:
                    raise BrokenPromise(f"{machine.name} has {problem} at {seq} of the {log.name.lower()}")
            reading.checked[log] = end

    def _compare_streams(self, ready: list[Machine]) -> None:
        """Members that show a stream at the same sequence show the same."""
        seen: dict[tuple[str, int], tuple[Name, Any]] = {}
        for machine in ready:
            if machine.frozen:
                continue
            for stream, (seq, *marker) in markers(machine.node).items():
                name, known = seen.setdefault((stream, seq), (machine.name, marker))
                if known != marker:
                    raise BrokenPromise(
                        f"{stream} at {seq} has hash and rows {marker} at {machine.name}, {known} at {name}"
                    )

    # When all is quiet ------------------------------------------------------------------------------------------

    def unready(self) -> str | None:
        """Why the members are not all well; None: they are."""
        machines = list(self.world.machines.values())
        for machine in machines:
            if not machine.running:
                return f"{machine.name} does not run"
        if self.world.mode == ALONE:
            return None if machines[0].node.store.idle else "the disk has not done all"
        states = [machine.member.mode.state for machine in machines]
        if sorted(states) != [State.ACTIVE] + [State.READY] * (len(machines) - 1):
            return ", ".join(f"{one.name} is {one.member.mode.state} ({one.member.why})" for one in machines)
        if self.world.serving is None:
            return "nobody serves"
        if self.world.caretaker is not None and self.world.caretaker.relies():
            return "etcd was brought back from a copy, and nobody leads anew"
        ends = {machine.name: machine.node.store.durable_ends for machine in machines}
        if len(set(ends.values())) > 1:
            return f"the logs end at {ends}"
        leader = self.world.serving.node
        if leader.journal.last_seq > leader.store.ends.journal:
            return "an acknowledgement waits for others to be written with"
        safe = leader.safe
        if safe != ends[machines[0].name]:
            return f"{safe} is complete, the logs end at {ends}"
        # Who said so last may have said it over a link that was broken already.
        late = [machine.name for machine in machines if machine.node.safe != safe]
        return f"{', '.join(late)} did not hear that {safe} is complete" if late else None

    def look_at_end(self, work: dict[str, Any]) -> None:
        if self.world.mode != ALONE:
            self.look()
        first: tuple[Name, Any] | None = None
        for machine in self.world.machines.values():
            node = machine.node
            found = contents(node)
            session = StreamSession(node.broker.open_session("/", "guest", None, "checker"))
            for workload in work.values():
                if hasattr(workload, "check"):
                    workload.check({name: [body for _, body in rows] for name, rows in found.items()})
                if hasattr(workload, "check_bindings"):
                    workload.check_bindings(bindings(node, "wires"))
                if hasattr(workload, "check_member"):
                    workload.check_member(machine.name, session, machine.member.serving)
            state = found, wires(node), markers(node)
            if first is None:
                first = machine.name, state
            elif state != first[1]:
                self._tell_apart(first[0], first[1], machine.name, state)

    def _tell_apart(self, name: Name, one: Any, other_name: Name, other: Any) -> None:
        for what, mine, theirs in zip(("queue", "binding", "stream"), one, other, strict=True):
            for key in sorted({*mine, *theirs}, key=str):
                if mine.get(key) != theirs.get(key):
                    raise BrokenPromise(
                        f"{what} {key} differs: {name} has {_beside(mine.get(key), theirs.get(key))}, "
                        f"{other_name} has {_beside(theirs.get(key), mine.get(key))}"
                    )


def _beside(one: Any, other: Any) -> str:
    """What one has and the other has not, in few words; of messages their sequences and names."""
    if not isinstance(one, list) or not isinstance(other, list):
        return str(one)
    more = [(seq, body.partition(b" ")[0]) for seq, body in one if (seq, body) not in other]
    return f"{more[:4]} ({len(more)} of {len(one)}) alone" if more else f"{len(one)}, none alone"


def contents(node: Node) -> dict[str, list[tuple[int, bytes]]]:
    """(sequence, body) of every message in every queue that keeps its messages, in order."""
    found: dict[str, list[tuple[int, bytes]]] = {}
    for name, queue in queues(node).items():
        if queue.keeps or not queue.durable:  # what is in memory only is at the leader only
            continue
        rows = found[name] = []
        takes = []
        while (taken := queue.take(1000, 1 << 40)) is not None:
            takes.append(taken)
            rows += [(seq, node.arena.message(loc).body) for _, seq, loc, *_ in taken]
        for taken in takes:
            for index, *_ in taken:
                queue.requeue(taken.lane, index, False)
    return found


def wires(node: Node) -> dict[tuple[str, str, str], bool]:
    """All bindings: from, to, key."""
    return {
        (one.spec.source, one.spec.destination, one.spec.key): one.spec.to_queue
        for one in node.broker.vhosts["/"].bindings()
    }


def queues(node: Node) -> dict[str, Any]:
    """By name. A member of a cluster that has just been founded has no virtual host yet."""
    vhost = node.broker.vhosts.get("/")
    return {} if vhost is None else vhost.queues


def bindings(node: Node, exchange: str) -> set[str]:
    """The queues that are bound to an exchange."""
    return {destination for source, destination, _ in wires(node) if source == exchange}


def markers(node: Node) -> dict[str, tuple[int, int | None, int]]:
    """Of each stream: the sequence at which it is shown, the hash of what it shows, and how many rows."""
    found: dict[str, tuple[int, int | None, int]] = {}
    for name, queue in queues(node).items():
        if queue.keeps:
            stream: Any = queue
            with Snapshot(stream, stream.caught_up()) as snapshot:
                rows, digest = read(snapshot)
                found[name] = snapshot.seq, digest, len(rows)
    return found
