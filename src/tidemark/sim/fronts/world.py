"""The simulated world of fronts: leaders of several groups, two fronts before them, and clients of either.

Every group is one node on a disk of its own: what replication inside a group does is for `sim/cluster`.

Invariant: a world is a function of its seed and of what is done to it.
"""

from __future__ import annotations

from dataclasses import replace
from random import Random
from typing import Any

from tidemark.model.peers import Name
from tidemark.model.wiring import MAIN
from tidemark.ports import Apart
from tidemark.sim.cluster.alone import Alone
from tidemark.sim.cluster.machine import Machine
from tidemark.sim.cluster.world import ALONE, Say, World
from tidemark.sim.fronts.front import Front
from tidemark.sim.fronts.leader import Leader

OTHERS = ("fast", "wide")
FRONTS = ("f1", "f2")
HARM_US = 10_000_000
"""No fault lasts longer, with all that clients and fronts do about it."""


class FrontsWorld(World):
    def __init__(self, seed: int, tell: Say | None = None) -> None:
        super().__init__(seed, ALONE, 0, tell)
        count = Random(f"{seed} groups").choice((1, 2))
        self.groups = OTHERS[:count]
        """All but main."""
        self.machines = {name: Leader(self, name) for name in (MAIN, *self.groups)}
        self.fronts = {name: Front(self, name) for name in FRONTS}
        self.addresses = FRONTS
        self.ways: dict[Name, tuple[Name, ...]] = {}
        """Of clients that do not use all fronts: where they connect."""
        self.harmed_us: int | None = None
        """When something last went wrong."""

    def harmed_since(self, at_us: int) -> bool:
        """Whether something went wrong after that, or so shortly before it that it may have lasted until then."""
        return self.harmed_us is not None and self.harmed_us + HARM_US >= at_us

    def group(self, number: int) -> Name:
        """One of the groups that are not main."""
        return self.groups[number % len(self.groups)]

    def addresses_for(self, client: Name) -> tuple[Name, ...]:
        return self.ways.get(client, self.addresses)

    def new_member(self, machine: Machine, apart: Apart) -> Any:
        main = machine.name == MAIN
        cluster = replace(
            self.config.cluster,
            name="sim",
            group=machine.name,
            groups=tuple(f"{group}=chain" for group in self.groups) if main else (),
        )
        config = replace(self.config, node=replace(self.config.node, name=machine.name), cluster=cluster)
        return Alone(config, machine.disk, machine, machine.dice.randbytes, apart)
