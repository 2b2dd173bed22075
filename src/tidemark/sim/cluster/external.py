"""One life of a member's views when there is no etcd: carries what members tell one another over simulated links.

It stands where `runtime/membership/external.py` stands, around the same `member.views.Views` and the same `member.survey`.

Invariant: every question of the views is answered once, by the other member or by the time.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING

from tidemark.member.facts import MemberFacts
from tidemark.member.telling import NotAnswered, Told
from tidemark.member.views import Answers, Views
from tidemark.model.peers import Name, View
from tidemark.sim.cluster.telling import Telling

if TYPE_CHECKING:
    from tidemark.sim.cluster.machine import Machine

SOON_US = 10
TWICE = "two members were promoted at once"


class Teller(Telling):
    """Fits `member.views.ViewsOutside` and `member.facts.MembershipEvents`; and what `Machine` asks of an `etcd.Agent`."""

    def __init__(self, machine: Machine) -> None:
        super().__init__(machine)
        self._world = machine.world
        cluster = self._world.config.cluster
        self.views = Views(
            machine.name,
            self._world.machines,
            self.facts,
            self,
            self,
            machine.disk,
            cluster.lease_s * 1000,
        )
        self.views.start(machine.clock.ticks_ms())

    def leave(self) -> None:
        """A clean end: nobody needs to be told."""
        self.stop()

    def propose(self, view: View) -> None:
        self.views.propose(view)

    # What the views ask ------------------------------------------------------------------------------------------

    def after(self, delay_ms: int, action: Callable[[int], None]) -> None:
        machine = self._machine
        machine.later(delay_ms * 1000 + SOON_US, lambda: action(machine.clock.ticks_ms()))

    def note(self, level: str, event: str, **facts: object) -> None:
        if event == TWICE:
            self._world.count("promoted at once")
            level = "warning"
        self._machine.note(level, event, **facts)

    # What members tell one another -------------------------------------------------------------------------------

    def heard(self, peer: Name, told: Told) -> Told:
        return self.views.heard(peer, told, self._machine.clock.ticks_ms())

    def answered(self, number: int, name: Name, answer: Told | NotAnswered) -> None:
        self.views.answered(number, name, answer, self._machine.clock.ticks_ms())

    def others(self) -> set[Name]:
        return self.views.others()

    def others_matter(self) -> bool:
        return True

    def ask_all(self, names: set[Name], then: Callable[[Answers], None]) -> None:  # noqa: ARG002
        """The views know whom to ask."""
        self.views.compare(lambda found, _: then(found), self._machine.clock.ticks_ms())

    # What the member is told -------------------------------------------------------------------------------------

    def view_changed(self, view: View | None) -> None:
        self._machine.view_changed(view)
        if view is not None:
            self._world.knows(self._machine, view)

    def proposal_failed(self, view: View) -> None:
        self._machine.proposal_failed(view)

    def member_here(self, facts: MemberFacts) -> None:
        self._machine.member_here(facts.here())

    def member_gone(self, name: Name) -> None:
        self._machine.member_gone(name)

    def lease(self, until_ticks_ms: int) -> None:
        self._machine.lease(until_ticks_ms)
