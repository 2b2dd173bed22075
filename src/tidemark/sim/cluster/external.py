"""One life of a member's views when there is no etcd: carries what members tell one another over simulated links.

It stands where `runtime/membership/external.py` stands, around the same `member.views.Views` and the same `member.survey`, and
takes what an operator asks as `runtime.MemberServer.ask` does. What is told travels as the bytes that it is told in.

Invariant: every question is answered once, by the other member or by the time.
"""

from __future__ import annotations

from collections.abc import Callable, Generator
from typing import TYPE_CHECKING, Any

from tidemark.cluster.mode import Answer, State, Survey
from tidemark.member.facts import MemberFacts
from tidemark.member.survey import survey
from tidemark.member.telling import ANSWER_S, HEAD, NotAnswered, Told, decode_told, encode_told
from tidemark.member.views import Answers, Views
from tidemark.model.peers import Name, View
from tidemark.sim.cluster.network import VIEW, End, Link

if TYPE_CHECKING:
    from tidemark.sim.cluster.machine import Machine

PATIENCE_MS = 3000
"""How long a command waits for a member that reads its store again."""
SOON_US = 10
TWICE = "two members were promoted at once"


class Question:
    """To one member, until it is answered."""

    __slots__ = ("name", "number", "over", "taken", "words")

    def __init__(self, number: int, name: Name, words: bytes) -> None:
        self.number = number
        self.name = name
        self.words = words
        self.over = False
        self.taken = False
        """The machine at the other end has taken the connection, whatever its process does."""


class Teller:
    """Fits `member.views.ViewsOutside`, `member.facts.MembershipEvents` and `network.Party`; and what `Machine` asks of an
    `etcd.Agent`."""

    def __init__(self, machine: Machine) -> None:
        self._machine = machine
        self._world = machine.world
        self._stopped = False
        self._ends: dict[End, None] = {}
        cluster = self._world.config.cluster
        self.views = Views(
            machine.name,
            self._world.machines,
            self._facts,
            self,
            self,
            machine.disk,
            cluster.lease_s * 1000,
        )
        machine.network.listen(VIEW, machine.name, self._door)
        self.views.start(machine.clock.ticks_ms())

    def stop(self) -> None:
        """The process is no more."""
        self._stopped = True
        self._machine.network.listen(VIEW, self._machine.name, None)
        for end in list(self._ends):
            end.close(abruptly=True)
        self._ends.clear()

    def leave(self) -> None:
        """A clean end: nobody needs to be told."""
        self.stop()

    def propose(self, view: View) -> None:
        self.views.propose(view)

    def _facts(self) -> MemberFacts:
        machine = self._machine
        store = machine.node.store
        status = store.files.status
        failed = machine.member.mode.state is State.FAILED
        return MemberFacts(
            machine.name,
            machine.name,
            cluster=status.cluster,
            durable=store.durable_ends,
            epoch=status.epoch,
            table=store.table,
            failed=failed,
        )

    # What the views ask ------------------------------------------------------------------------------------------

    def exchange(self, number: int, name: Name, told: Told) -> None:
        machine = self._machine
        end = machine.network.dial(VIEW, machine.name, self, name)
        end.state = Question(number, name, encode_told(told))
        self._ends[end] = None
        machine.later(int(ANSWER_S * 1e6), lambda: self._no_answer(end, f"no answer in {ANSWER_S} s"))

    def after(self, delay_ms: int, action: Callable[[int], None]) -> None:
        machine = self._machine
        machine.later(delay_ms * 1000 + SOON_US, lambda: action(machine.clock.ticks_ms()))

    def note(self, level: str, event: str, **facts: object) -> None:
        if event == TWICE:
            self._world.count("promoted at once")
            level = "warning"
        self._machine.note(level, event, **facts)

    def _answer(self, end: End, answer: Told | NotAnswered) -> None:
        question: Question = end.state
        if question.over:
            return
        question.over = True
        self._ends.pop(end, None)
        end.close()
        self.views.answered(question.number, question.name, answer, self._machine.clock.ticks_ms())

    def _no_answer(self, end: End, why: str) -> None:
        self._answer(end, NotAnswered(why, there=end.state.taken))

    # Links -------------------------------------------------------------------------------------------------------

    def _door(self, link: Link) -> None:
        """Somebody dials. The machine takes it; the process, when it runs."""
        link.ends[0].state.taken = True
        self._do(lambda: self._machine.network.accepted(link, self))

    def link_up(self, end: End) -> None:
        self._do(lambda: self._up(end))

    def link_data(self, end: End, items: list[Any]) -> None:
        self._do(lambda: self._data(end, items))

    def link_lost(self, end: End, gone: bool) -> None:
        self._do(lambda: self._lost(end, gone))

    def _do(self, action: Callable[[], None]) -> None:
        if not self._stopped:
            self._machine.post(lambda: None if self._stopped else action())

    def _up(self, end: End) -> None:
        self._ends[end] = None
        if end.dialled and end.alive:
            end.send(end.state.words)

    def _data(self, end: End, items: list[Any]) -> None:
        if not end.alive:
            return
        [words] = items
        told = decode_told(words[HEAD.size :])
        if end.dialled:
            self._answer(end, told)
            return
        answer = self.views.heard(end.far.name, told, self._machine.clock.ticks_ms())
        end.send(encode_told(answer))
        end.close()
        self._ends.pop(end, None)

    def _lost(self, end: End, gone: bool) -> None:
        self._ends.pop(end, None)
        if end.dialled:
            self._no_answer(end, "connection refused" if gone else "it closed the link")

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

    # What an operator asks ---------------------------------------------------------------------------------------

    def ask(
        self, command: str, then: Callable[[Answer], None], member: Name = "", *, accept_loss: bool = False
    ) -> None:
        def put(said: Survey | None) -> None:
            until_ms = self._machine.clock.ticks_ms() + PATIENCE_MS
            self._put(command, then, member, accept_loss, said, until_ms)

        if command == "promote":
            self._survey(survey(self._revision, self.views.others), None, put)
        else:
            put(None)

    def _survey(
        self,
        asking: Generator[set[Name], Any, Survey],
        answers: Answers | None,
        then: Callable[[Survey], None],
    ) -> None:
        try:
            asking.send(answers)
        except StopIteration as over:
            then(over.value)
            return
        now_ms = self._machine.clock.ticks_ms()
        self.views.compare(lambda found, _: self._survey(asking, found, then), now_ms)

    def _put(
        self,
        command: str,
        then: Callable[[Answer], None],
        member: Name,
        accept_loss: bool,
        said: Survey | None,
        until_ms: int,
    ) -> None:
        machine = self._machine
        if machine.member.rebuilding and machine.clock.ticks_ms() < until_ms:
            machine.later(10_000, lambda: self._put(command, then, member, accept_loss, said, until_ms))
            return
        then(machine.ask(command, member, accept_loss, said))

    def _revision(self) -> int:
        view = self._machine.member.view
        return 0 if view is None else view.revision
