"""Who brings an etcd back from an older copy of its data, and then does what docs/cluster.md asks of an operator.

    copied ─► the view changes ─► etcd is down, and comes back older ─► members say so ─► one is promoted ─► it leads

It is done only when it can be seen: somebody runs whose store is of the newest epoch, and all that run can be reached and know the
newest view; if the copy is of the same epoch, its leader is one of them. Those that run register again before one that starts in
that moment (`etcd.HEAD_START_US`). From then on nothing else goes wrong until somebody leads again (`relies`). The operator waits
until all that ran say that the view was brought back, and promotes the one that led, or any that says so: one that must not lead
refuses, and then the one that it names is asked.

Invariant: after etcd was brought back the first view that is written there is of a newer epoch than any before, and its leader
was promoted.
"""

from __future__ import annotations

import re
from random import Random
from typing import TYPE_CHECKING

from tidemark.cluster.mode import Answer, State
from tidemark.model.peers import Name, View
from tidemark.sim.cluster.etcd import Copy, Etcd
from tidemark.sim.cluster.operator import BEGIN_US, LEADS, LOOK_US, Commands
from tidemark.sim.store import BrokenPromise

if TYPE_CHECKING:
    from tidemark.sim.cluster.machine import Machine
    from tidemark.sim.cluster.world import World

KEPT_US = 6_000_000
"""So long a copy is kept after it was due, if there is no moment to bring it back."""
TRY_US = 30_000
MENDED_US = 25_000_000
"""By then somebody must lead again."""
ADVICE = re.compile(r"[Pp]romote (\w+) instead|(?<=lead: )(\w+) is there with all")
BROUGHT_BACK = "was brought back from a copy; promote "


class Caretaker(Commands):
    def __init__(self, world: World, etcd: Etcd) -> None:
        super().__init__(world)
        self.dice = Random(f"{world.seed} caretaker")
        self.over = False
        """The faults are: no copy is brought back any more."""
        self._etcd = etcd
        self._copy: Copy | None = None
        self._lost: View | None = None
        """The newest view of the time that is lost, until somebody leads again."""
        self._since_us = 0
        self._ran: dict[Name, int] = {}
        """Who ran when etcd was brought back, with the life of its process."""
        self._said: set[tuple[Name, int]] = set()
        """Who has said that the view was brought back, in which life."""
        self._promoted: set[Name] = set()
        self._advised: Name = ""
        """Whom a member that refused has named instead."""
        self._patient_until_us = 0
        self._looks = False

    def relies(self) -> bool:
        return self._lost is not None

    # The copy ------------------------------------------------------------------------------------------------------

    def copy(self, wait_us: int, away_us: int) -> None:
        """Copy etcd's data, and bring it back so much later, or when it can be seen."""
        etcd = self._etcd
        if self._copy is not None or etcd.view is None or not etcd.up:
            return
        copy = self._copy = etcd.copy()
        self.world.say("", "the data of etcd is copied, at %d with %s", copy.revision, copy.view)
        until_us = self.world.timeline.now_us + wait_us + KEPT_US
        self.world.timeline.after(wait_us, lambda: self._bring_back(copy, away_us, until_us))

    def _bring_back(self, copy: Copy, away_us: int, until_us: int) -> None:
        world = self.world
        if self.over or world.timeline.now_us >= until_us:
            self._copy = None
            return
        if not self._can_be_seen(copy):
            world.timeline.after(TRY_US, lambda: self._bring_back(copy, away_us, until_us))
            return
        world.say("", "etcd is down for %d ms and comes back with %s", away_us // 1000, copy.view)
        world.count("brought back")
        self._lost, self._since_us = self._etcd.view, world.timeline.now_us
        self._ran = {one.name: one.life for one in world.machines.values() if one.running}
        self._said.clear()
        self._promoted.clear()
        self._etcd.bring_back(copy, away_us)
        if not self._looks:
            self._looks = True
            world.timeline.after(away_us + LOOK_US, self._look_again)

    def _can_be_seen(self, copy: Copy) -> bool:
        """Whether the view is another one since, and somebody knows it who will be there."""
        view = self._etcd.view
        assert view is not None and copy.view is not None
        if view.revision == copy.view.revision or not self._etcd.up:
            return False
        if not self.world.calm() or self.world.rotten is not None:
            return False
        here = [one for one in self.world.machines.values() if self._answers(one)]
        known = [one.member.view for one in here]
        if not all(one is not None and one.revision == view.revision for one in known):
            return False
        return self._is_said_to_all(view, copy.view, here)

    def _is_said_to_all(self, view: View, copied: View, here: list[Machine]) -> bool:
        """Whether those that start later learn of it: all that a member says of itself when it registers is the epoch of its
        store, and a leader that starts asks nobody when the view is of that epoch."""
        if view.epoch == copied.epoch and view.leader not in [one.name for one in here]:
            return False
        return any(one.node.store.files.status.epoch == view.epoch for one in here)

    # What the operator does ----------------------------------------------------------------------------------------

    def _look_again(self) -> None:
        self.world.timeline.after(LOOK_US, self._look_again)
        self._look()

    def _look(self) -> None:
        self.give_up_late()
        here = [one for one in self.world.machines.values() if self._answers(one)]
        if self._lost is None:
            return
        for machine in here:
            if BROUGHT_BACK in machine.member.why and (machine.name, machine.life) not in self._said:
                self._said.add((machine.name, machine.life))
                self.world.count("refused the older view")
        self._check_writes()
        if any(self._leads_anew(machine) for machine in here):
            self.world.count("mended")
            self._lost = self._copy = None
        elif self._may_promote(here):
            self._promote(here)
        elif self.world.timeline.now_us > self._since_us + MENDED_US:
            states = [f"{one.name} is {one.member.mode.state} ({one.member.why})" for one in here]
            raise BrokenPromise(f"etcd was brought back, and nobody leads anew: {', '.join(states)}")

    def _leads_anew(self, machine: Machine) -> bool:
        assert self._lost is not None
        view = machine.member.view
        if view is None or view.epoch <= self._lost.epoch or view != self._etcd.view:
            return False
        return bool(view.leader == machine.name and machine.member.mode.state in LEADS)

    def _check_writes(self) -> None:
        """Nobody else than who was promoted may have acted on the older view."""
        assert self._copy is not None and self._lost is not None
        if not self._etcd.up:
            return
        for _, view in self._etcd.changes_from(self._copy.revision + 1, self._etcd.revision):
            if isinstance(view, View):
                if view.epoch <= self._lost.epoch or view.leader not in self._promoted:
                    raise BrokenPromise(f"the view was brought back from a copy, and is replaced by {view}")
                return

    def _may_promote(self, here: list[Machine]) -> bool:
        now_us = self.world.timeline.now_us
        if self._asked or now_us < self._patient_until_us or not self._etcd.up:
            return False
        if any(one.member.mode.state in LEADS for one in here) or not self._able(here):
            return False
        ran = [one for one in here if self._ran.get(one.name) == one.life]
        return all((one.name, one.life) in self._said for one in ran)

    def _able(self, here: list[Machine]) -> list[Machine]:
        """Who may be promoted."""
        return [one for one in here if (one.name, one.life) in self._said or one.name == self._advised]

    def _promote(self, here: list[Machine]) -> None:
        able = self._able(here)
        led = [one for one in able if one.member.mode.state is State.FENCED]
        machine = self.dice.choice(led if led and self.dice.random() < 0.5 else able)
        for one in able:
            if one.name == self._advised:
                machine = one
        self._advised = ""
        self._promoted.add(machine.name)
        self.ask(machine, "promote", self._answered)

    def _answered(self, machine: Machine, answer: Answer) -> None:  # noqa: ARG002
        self.world.count("promotions done" if answer.done else "promotions refused")
        if answer.done:
            self._patient_until_us = self.world.timeline.now_us + BEGIN_US
        elif (named := ADVICE.search(answer.text)) is not None:
            self._advised = named[1] or named[2]
