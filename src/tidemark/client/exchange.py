"""The requests on one connection and their answers: all of a link but its socket and the waiting.

Both clients' `Link`s are an `Exchange` around a `protocol.Connection`. They feed it what arrives and wait for news of a
`Pending` in their own way: threads take turns at a socket, tasks are woken one by one.

Invariant: a request whose answer is awaited is in `_pending`; of a connection that is `broken` no answer is awaited.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterable, Sequence
from typing import Any, Generic, TypeVar

from tidemark.client import operations as ops
from tidemark.client import protocol
from tidemark.client.address import Address
from tidemark.client.cluster import Seen
from tidemark.client.operations import Header
from tidemark.client.waiting import FINAL, Due, Lost, Pulse
from tidemark.errors import NotHere, TidemarkError


def _nobody() -> None:
    """There are no others."""


class Pending:
    """A request whose answer is awaited."""

    __slots__ = ("answer", "error", "frames", "lost", "number")

    def __init__(self, number: int) -> None:
        self.number = number
        self.frames: deque[tuple[Header, memoryview]] = deque()
        self.answer: tuple[Header, memoryview] | None = None
        self.error: TidemarkError | None = None
        self.lost: str | None = None

    @property
    def done(self) -> bool:
        return self.answer is not None or self.error is not None or self.lost is not None

    def outcome(self) -> tuple[Header, memoryview]:
        """The answer, when it is done.

        Raises:
            Lost, TidemarkError: the broker's refusal.
        """
        if self.error is not None:
            raise self.error
        if self.answer is None:
            raise Lost(self.lost or "", sent=True)
        return self.answer

    def wake(self) -> None:
        """There is news, for one who waits for just this request."""


P = TypeVar("P", bound=Pending)


class Exchange(Generic[P]):
    """What one connection was asked and has answered. It is thrown away when it breaks."""

    def __init__(
        self,
        machine: protocol.Connection,
        address: Address,
        seen: Seen,
        *,
        reads: bool,
        pending: Callable[[int], P],
    ) -> None:
        self.address = address
        self.silent = False
        """It was given up because it said nothing."""
        self.ask_others: Callable[[], None] = _nobody
        """It says nothing: called to ask other members about it."""
        self.broken: str | None = None
        self.refused: TidemarkError | None = None
        self._machine = machine
        self._seen = seen
        self._reads = reads
        self._new_pending = pending
        self._pulse = Pulse()
        self._pending: dict[int, P] = {}

    @property
    def history(self) -> str:
        return self._machine.history

    @property
    def welcome(self) -> dict[str, Any]:
        return self._machine.welcome

    @property
    def doubtful(self) -> bool:
        """Somebody waits for it, and it says nothing."""
        return self.broken is None and self._pulse.doubtful

    def abandon(self, snapshot: int | str) -> None:
        """Nobody reads this snapshot any more."""
        self._machine.abandon(snapshot)

    # What a link does before and after it waits ---------------------------------------------------

    def _check_login(self) -> None:
        """The greeting is over: go on if we were let in.

        Raises:
            Lost, TidemarkError: `refused` tells why.
        """
        if self.broken is not None:
            told = isinstance(self.refused, (*FINAL, NotHere))
            raise self.refused if told and self.refused is not None else Lost(self.broken, sent=False)
        self._pulse.watchful = bool(self.welcome.get("epoch"))

    def _ask(self, header: Header, payload: Sequence[Any]) -> P:
        """Have the machine send a request.

        Raises:
            Lost: the connection was broken before; nothing was sent.
            RequestTooLarge: nothing was sent.
        """
        if self.broken is not None:
            raise Lost(self.broken, sent=False)
        header = ops.on_branch(header, self.history)
        if self._reads:
            header = ops.after_seen(header, self._seen)
        pending = self._new_pending(self._machine.request(header, payload))
        self._pending[pending.number] = pending
        if self._pulse.wants_refresh():
            self._machine.refresh()
        return pending

    def _forget(self, pending: P, *, close: bool) -> bool:
        """Nobody wants the rest of this answer; `close` tells the broker to stop. Whether there is something to send."""
        self._pending.pop(pending.number, None)
        if pending.answer is not None and "snapshot" in pending.answer[0]:
            self._machine.abandon(pending.answer[0]["snapshot"])
        if self.broken is not None or pending.done:
            return False
        if close:
            self._machine.drop(pending.number)
        else:
            self._machine.forget(pending.number)
        return True

    def _feel_pulse(self) -> None:
        """Nothing came for a while: ask whether the broker is still there, then ask others. Raises Lost: it is not."""
        match self._pulse.quiet():
            case Due.PING:
                self._machine.ping()
                if self._pulse.wants_refresh():
                    self._machine.refresh()
            case Due.OTHERS:
                self.ask_others()

    def _feel_stall(self) -> None:
        """It took nothing for a while of what we send: ask others about it."""
        if self._pulse.stalled() is Due.OTHERS:
            self.ask_others()

    # What happens to it ---------------------------------------------------------------------------

    def _take(self, events: Iterable[protocol.Event]) -> None:
        for event in events:
            match event:
                case protocol.Opened():
                    self._greeted()
                case protocol.Arrived(number, header, payload):
                    self._seen.note(header, self.history)
                    if (pending := self._pending.get(number)) is not None:
                        pending.frames.append((header, payload))
                        pending.wake()
                case protocol.Answered(number, header, payload):
                    self._seen.note(header, self.history)
                    if (pending := self._pending.pop(number, None)) is not None:
                        pending.answer = header, payload
                        pending.wake()
                case protocol.Refused(number, error):
                    if (pending := self._pending.pop(number, None)) is not None:
                        pending.error = error
                        pending.wake()
                case protocol.Ended(error):
                    self.refused = error
                    self._break(str(error))

    def _break(self, problem: str) -> None:
        """Everybody who waits here waits in vain."""
        if self.broken is None:
            self.broken = problem
            for pending in self._pending.values():
                pending.lost = problem
                pending.wake()
            self._pending.clear()
            self._hang_up()

    def _greeted(self) -> None:
        """We were let in."""

    def _hang_up(self) -> None:
        """Close what carries the bytes."""
        raise NotImplementedError
