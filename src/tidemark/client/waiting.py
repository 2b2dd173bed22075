"""What both clients need to wait: how long, the two ways in which a wait ends without an answer, and what follows then.

`Lost` and `NoAnswerYet` never leave the package: a caller sees `Unconfirmed`, `TimedOut` or `Interrupted`, which
say what he can do.
"""

from __future__ import annotations

import time
from dataclasses import dataclass
from enum import Enum, auto
from typing import Any

from tidemark.client.errors import ServerError, TimedOut, Unconfirmed
from tidemark.client.operations import Call
from tidemark.errors import (
    AccessRefused,
    LoginRefused,
    MemberBehind,
    NotAllowed,
    NotFound,
    NotHere,
    PinExpired,
    TidemarkError,
)

CONNECT_S_MAX = 5.0
"""How long one address is tried."""
PING_S = 1.0
"""Of a cluster: a broker that says nothing for so long while somebody waits for it is asked for a sign of life."""
ASK_S = 0.25
"""If none comes for so long, others are asked whether another one is to be used instead."""
ASK_AGAIN_S = 0.1
"""How often they are asked."""
SILENT_S_MAX = 3.0
"""If no sign of life comes for so long and nobody knows better, it is given up, and another member is tried."""
REFRESH_S = 10.0
"""How old the list of members may be when something is sent."""
SAFE_WAIT_S = 20.0
"""What we ask the broker to wait at most; it is asked again."""
MAKE_AFTER_S = 0.5
"""A stream that is being deleted is gone from its group before it is gone from main. One that main still names after so long lives."""
FINAL = (LoginRefused, NotAllowed, AccessRefused, NotFound, ServerError)
"""Refusals of a hello that another try would not change."""

ASK_LEADER = (MemberBehind, NotHere, NotFound, PinExpired)
"""What a member that only reads may answer because it does not have everything yet: the one that leads knows."""

TAIL_AGAIN_S = 0.1
"""Where only tails show rows: how long to wait before somebody is asked again who was found to be none, or does not have it yet."""

RUN_S = 2 * CONNECT_S_MAX
"""Refusals that are further apart have nothing to do with one another."""


class Lost(Exception):
    """The connection broke before the answer; `sent` says whether the broker may have the request."""

    def __init__(self, problem: str, *, sent: bool) -> None:
        super().__init__(problem)
        self.problem = problem
        self.sent = sent


class NoAnswerYet(Exception):
    """The deadline passed."""


def left_until(deadline: float | None) -> float | None:
    """Seconds until then; None is for ever."""
    return None if deadline is None else max(0.0, deadline - time.monotonic())


def sentence_of(error: OSError) -> str:
    return error.strerror or str(error) or type(error).__name__


@dataclass(slots=True)
class Tries:
    """One call, sent over as many connections as it takes."""

    call: Call[Any]
    timeout_s: float
    count: int = 0
    """How often it was sent."""

    def no_answer(self, *, sent: bool) -> TimedOut | Unconfirmed:
        """How a call ends whose time is over; `sent`: the broker may have it."""
        if self.call.repeatable or not sent:
            return TimedOut(operation=self.call.name, timeout_s=self.timeout_s)
        return Unconfirmed(operation=self.call.name, problem=f"no answer in {self.timeout_s:g} s")

    def lost(self, lost: Lost) -> None:
        """Its connection broke. Raises Unconfirmed: it must not be sent again."""
        if lost.sent and not self.call.repeatable:
            raise Unconfirmed(operation=self.call.name, problem=lost.problem) from None

    def was_done(self, refusal: TidemarkError) -> bool:
        """Whether this is refused because a try before has taken away what was to be taken away."""
        return isinstance(refusal, (NotFound, PinExpired)) and self.call.takes_away and self.count > 1


class Refusals:
    """Since when somebody has been refused the same thing again and again."""

    def __init__(self) -> None:
        self._first_s = self._last_s = -RUN_S

    def deadline(self, timeout_s: float) -> float:
        """Refused once more: until when it is still worth trying."""
        now = time.monotonic()
        if now - self._last_s > RUN_S:
            self._first_s = now
        self._last_s = now
        return self._first_s + timeout_s


class Due(Enum):
    """What is due of a broker that says nothing."""

    PING = auto()
    """Ask it for a sign of life."""
    OTHERS = auto()
    """Ask others about it."""


class Pulse:
    """When a broker was last asked for a sign of life, and for the list of members.

    While it says nothing and somebody waits: after `PING_S` it is asked itself, `ASK_S` later others are asked about it, and
    `SILENT_S_MAX` after the ping it is lost.
    """

    def __init__(self) -> None:
        self.watchful = False
        """There are others that can be asked instead."""
        self._pinged_s: float | None = None
        self._asked = self._stalled = False
        self._refreshed_s = time.monotonic()

    def heard(self) -> None:
        self._pinged_s = None
        self._asked = self._stalled = False

    def until(self, deadline: float | None) -> float | None:
        """When a wait must look at the time again."""
        if not self.watchful:
            return deadline
        soon = time.monotonic() + PING_S
        if self._pinged_s is not None and not self._asked:
            soon = self._pinged_s + ASK_S
        return soon if deadline is None else min(deadline, soon)

    def quiet(self) -> Due | None:
        """Nothing came for a while: what is due now. Raises Lost: no sign of life came."""
        now = time.monotonic()
        if self._pinged_s is None:
            self._pinged_s = now
            return Due.PING
        if now - self._pinged_s >= SILENT_S_MAX:
            raise Lost(f"the broker has said nothing for {PING_S + SILENT_S_MAX:g} s", sent=True)
        return self._others() if now - self._pinged_s >= ASK_S else None

    def stalled(self) -> Due | None:
        """It took nothing of what we send for a while, so no ping gets to it: what is due now."""
        self._stalled = True
        if self._pinged_s is None:
            self._pinged_s = time.monotonic()
        return self._others()

    def _others(self) -> Due | None:
        if self._asked:
            return None
        self._asked = True
        return Due.OTHERS

    def moved(self) -> None:
        """It took something: a sign of life, if it had taken nothing for a while."""
        if self._stalled:
            self.heard()

    @property
    def doubtful(self) -> bool:
        """A sign of life is missing. Not for long: where nobody waits any more, nobody would hear it."""
        pinged_s = self._pinged_s
        return pinged_s is not None and (self._stalled or time.monotonic() - pinged_s < SILENT_S_MAX)

    def wants_refresh(self) -> bool:
        """The list of members is old. It counts as asked for."""
        now = time.monotonic()
        if not self.watchful or now - self._refreshed_s < REFRESH_S:
            return False
        self._refreshed_s = now
        return True
