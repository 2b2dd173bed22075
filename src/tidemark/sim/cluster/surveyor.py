"""One life of a member's surveys when an etcd keeps the view: before it is promoted it asks the others what they hold.

It stands where `runtime.MemberServer._survey` stands, around the same `member.survey`. What a member knows of others it has
from etcd: one of which it has never heard has no address.

Invariant: a survey ends when all that were asked have answered, or the time for it is over.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from tidemark.cluster.mode import State
from tidemark.member.facts import MemberFacts
from tidemark.member.telling import NotAnswered, Told
from tidemark.member.views import Answers
from tidemark.model.peers import Name
from tidemark.sim.cluster.telling import Telling

if TYPE_CHECKING:
    from tidemark.sim.cluster.machine import Machine


@dataclass(slots=True)
class Round:
    """All are asked at the same time."""

    left: set[Name]
    then: Callable[[Answers], None]
    found: dict[Name, MemberFacts | NotAnswered] = field(default_factory=dict)


class Surveyor(Telling):
    def __init__(self, machine: Machine) -> None:
        super().__init__(machine)
        self._number = 0
        self._round: Round | None = None

    def others(self) -> set[Name]:
        machine = self._machine
        view = machine.member.view
        return {*machine.met, *(view.ready if view is not None else ())} - {machine.name}

    def others_matter(self) -> bool:
        mode = self._machine.member.mode
        return mode.state in (State.JOINING, State.CATCHUP) or not mode.view_holds

    def ask_all(self, names: set[Name], then: Callable[[Answers], None]) -> None:
        self._number += 1
        self._round = Round(set(names), then)
        if not names:
            then({})
        for name in sorted(names):
            if name in self._machine.met:
                self.exchange(self._number, name, Told(self.facts(), None))
            else:
                unknown = NotAnswered("its address is not known: see cluster.peers", there=False)
                self.answered(self._number, name, unknown)

    def answered(self, number: int, name: Name, answer: Told | NotAnswered) -> None:
        if number != self._number or self._round is None:
            return
        asked = self._round
        asked.left.discard(name)
        asked.found[name] = answer.member if isinstance(answer, Told) else answer
        if not asked.left:
            self._round = None
            asked.then(asked.found)

    def heard(self, peer: Name, told: Told) -> Told:  # noqa: ARG002
        return Told(self.facts(), None)
