"""What both clients need to wait: how long, and the two ways in which a wait ends without an answer.

`Lost` and `NoAnswerYet` never leave the package: a caller sees `Unconfirmed`, `TimedOut` or `Interrupted`, which
say what he can do.
"""

from __future__ import annotations

import time

from tidemark.client.errors import ServerError
from tidemark.errors import AccessRefused, LoginRefused, NotAllowed, NotFound

CONNECT_S_MAX = 5.0
SAFE_WAIT_S = 20.0
"""What we ask the broker to wait at most; it is asked again."""
FINAL = (LoginRefused, NotAllowed, AccessRefused, NotFound, ServerError)
"""Refusals of a hello that another try would not change."""


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
