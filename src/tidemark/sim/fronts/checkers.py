"""What must be true of all groups together, when all is quiet.

* Stand-ins and outboxes are empty: everything has been moved on.
* What queues and streams hold is what clients were told.

Invariant: looking changes nothing that a later look could see.
"""

from __future__ import annotations

from collections.abc import Mapping

from tidemark.broker.streams.snapshots import Snapshot
from tidemark.sim.cluster.checkers import contents, queues
from tidemark.sim.cluster.work_streams import read
from tidemark.sim.fronts.work import Found, Work
from tidemark.sim.fronts.world import FrontsWorld


class FrontsChecker:
    def __init__(self, world: FrontsWorld) -> None:
        self.world = world

    def unready(self) -> str | None:
        """Why not all is quiet; None: it is."""
        world = self.world
        for name, process in (world.machines | world.fronts).items():
            if not process.running:
                return f"{name} does not run"
        for group, machine in world.machines.items():
            if not machine.node.store.idle:
                return f"the disk of {group} has not done all"
            for name, queue in queues(machine.node).items():
                if queue.keeps:
                    continue
                if queue.acquired:
                    return f"somebody has {queue.acquired} messages of {name} in group {group}"
                if queue.passing and queue.ready:
                    return f"{queue.ready} messages wait in {name} of group {group} to be moved on"
        return None

    def look_at_end(self, work: Mapping[str, Work]) -> None:
        found = self._found()
        for one in work.values():
            one.check(found)

    def _found(self) -> Found:
        found = Found({}, {})
        for group, machine in self.world.machines.items():
            node = machine.node
            found.queues[group] = {name: [body for _, body in rows] for name, rows in contents(node).items()}
            for name, queue in queues(node).items():
                if queue.keeps:
                    stream = queue
                    with Snapshot(stream, stream.caught_up()) as snapshot:
                        rows, _ = read(snapshot)
                    found.streams[name] = {key: value for _, key, value in rows if key and value is not None}
        return found
