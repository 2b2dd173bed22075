"""One life of a member's end of what members tell one another besides their logs, and of what an operator asks of it.

A question travels over a simulated link of its own, as the bytes that it is told in, and so does the answer. Who keeps the
views says what is told: the members themselves (`external.py`), or an etcd (`surveyor.py`).

Invariant: every question is answered once, by the other member or by the time.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Generator
from typing import TYPE_CHECKING, Any

from tidemark.cluster.mode import Answer, State, Survey
from tidemark.member.facts import MemberFacts
from tidemark.member.survey import survey
from tidemark.member.telling import ANSWER_S, HEAD, NotAnswered, Told, decode_told, encode_told
from tidemark.member.views import Answers
from tidemark.model.peers import Name
from tidemark.sim.cluster.network import VIEW, End, Link

if TYPE_CHECKING:
    from tidemark.sim.cluster.machine import Machine

PATIENCE_MS = 3000
"""How long a command waits for a member that reads its store again."""


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


class Telling(ABC):
    """Fits `network.Party`; takes what an operator asks as `runtime.MemberServer.ask` does."""

    def __init__(self, machine: Machine) -> None:
        self._machine = machine
        self._stopped = False
        self._ends: dict[End, None] = {}
        machine.network.listen(VIEW, machine.name, self._door)

    def stop(self) -> None:
        """The process is no more, or about to end."""
        self._stopped = True
        self._machine.network.listen(VIEW, self._machine.name, None)
        for end in list(self._ends):
            end.close(abruptly=True)
        self._ends.clear()

    # To be filled in by who keeps the views ----------------------------------------------------------------------

    @abstractmethod
    def heard(self, peer: Name, told: Told) -> Told:
        """A member tells us this: what we tell it."""

    @abstractmethod
    def answered(self, number: int, name: Name, answer: Told | NotAnswered) -> None: ...

    @abstractmethod
    def others(self) -> set[Name]:
        """Every other member that is known of."""

    @abstractmethod
    def others_matter(self) -> bool:
        """Whether it must be known what the others hold before this member is promoted."""

    @abstractmethod
    def ask_all(self, names: set[Name], then: Callable[[Answers], None]) -> None: ...

    # Questions and answers ---------------------------------------------------------------------------------------

    def facts(self) -> MemberFacts:
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

    def exchange(self, number: int, name: Name, told: Told) -> None:
        machine = self._machine
        end = machine.network.dial(VIEW, machine.name, self, name)
        end.state = Question(number, name, encode_told(told))
        self._ends[end] = None
        machine.later(int(ANSWER_S * 1e6), lambda: self._no_answer(end, f"no answer in {ANSWER_S} s"))

    def _answer(self, end: End, answer: Told | NotAnswered) -> None:
        question: Question = end.state
        if question.over:
            return
        question.over = True
        self._ends.pop(end, None)
        end.close()
        self.answered(question.number, question.name, answer)

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
        answer = self.heard(end.far.name, told)
        end.send(encode_told(answer))
        end.close()
        self._ends.pop(end, None)

    def _lost(self, end: End, gone: bool) -> None:
        self._ends.pop(end, None)
        if end.dialled:
            self._no_answer(end, "connection refused" if gone else "it closed the link")

    # What an operator asks ---------------------------------------------------------------------------------------

    def ask(
        self, command: str, then: Callable[[Answer], None], member: Name = "", *, accept_loss: bool = False
    ) -> None:
        def put(said: Survey | None) -> None:
            until_ms = self._machine.clock.ticks_ms() + PATIENCE_MS
            self._put(command, then, member, accept_loss, said, until_ms)

        if command == "promote" and self.others_matter():
            self._survey(survey(self._revision, self.others), None, put)
        else:
            put(None)

    def _survey(
        self,
        asking: Generator[set[Name], Any, Survey],
        answers: Answers | None,
        then: Callable[[Survey], None],
    ) -> None:
        try:
            names = asking.send(answers)
        except StopIteration as over:
            then(over.value)
            return
        self.ask_all(names, lambda found: self._survey(asking, found, then))

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
