"""What to do about a failed query: try again, give up, or try a few times.

An error of ours says by its kind whether it is worth trying again. One that was raised in Spark's planner or in a
worker arrives as text, with the traceback in it; its last line of ours is found there.

Invariant: an error that trying again cannot cure never makes a query start more than `UNKNOWN_TRIES` times.
"""

from __future__ import annotations

import random
import re
from dataclasses import dataclass
from enum import Enum

from tidemark.client import ClientClosed, Interrupted, NotConnected, TimedOut, Unconfirmed
from tidemark.errors import TidemarkError
from tidemark_spark.errors import BrokerAway, SinkAhead, SinkBehind, SinkUnavailable

PASSING = (
    SinkUnavailable, BrokerAway, NotConnected, TimedOut, Unconfirmed, Interrupted, ClientClosed,
)  # fmt: skip
PASSING_SIGNS = ("Python worker failed to connect back", "Python worker exited unexpectedly")
"""What Spark says when a process of its own was too slow to start, or was killed."""
HEALED = (SinkBehind, SinkAhead)
"""A mirror that starts again goes on from what its sink holds."""
UNKNOWN_TRIES = 5
PAUSE_S, PAUSE_S_MAX = 1.0, 60.0

_OURS = re.compile(r"^(?:E\s+)?tidemark[\w.]*\.(\w+): (.+)$", re.MULTILINE)
_LAST = re.compile(r"^([A-Za-z_][\w.]*(?:Error|Exception|Exit|Interrupt)): (.+)$", re.MULTILINE)


class Hope(Enum):
    PASSING = "passing"
    UNKNOWN = "unknown"
    NONE = "none"


@dataclass(frozen=True, slots=True)
class Diagnosis:
    hope: Hope
    sentence: str
    name: str = ""
    """Which error of ours it is."""


def diagnose(error: BaseException) -> Diagnosis:
    """What an error means for the query that it ended."""
    if isinstance(error, PASSING):
        return Diagnosis(Hope.PASSING, str(error))
    if isinstance(error, HEALED):
        return Diagnosis(Hope.UNKNOWN, str(error))
    if isinstance(error, TidemarkError):
        return Diagnosis(Hope.NONE, str(error), type(error).__name__)
    text = str(error)
    if any(sign in text for sign in PASSING_SIGNS):
        return Diagnosis(Hope.PASSING, next(line.strip() for line in text.splitlines() if line.strip()))
    if found := _OURS.findall(text):
        name, sentence = found[-1]
        passing = {kind.__name__ for kind in PASSING}
        return Diagnosis(Hope.PASSING if name in passing else Hope.NONE, sentence.strip(), name)
    if found := _LAST.findall(text):
        name, sentence = found[-1]
        return Diagnosis(Hope.UNKNOWN, f"{name.rpartition('.')[2]}: {sentence.strip()}")
    lines = [line.strip() for line in text.splitlines() if line.strip()]
    return Diagnosis(Hope.UNKNOWN, lines[0] if lines else type(error).__name__)


class Backoff:
    """How long to wait before the next attempt: longer each time, with some dice, until something succeeds."""

    def __init__(self, dice: random.Random | None = None) -> None:
        self._dice = dice or random.Random()
        self.failures = 0

    def succeeded(self) -> None:
        self.failures = 0

    def failed(self) -> float:
        self.failures += 1
        pause = min(PAUSE_S * 2.0 ** min(self.failures - 1, 30), PAUSE_S_MAX)
        return pause * self._dice.uniform(0.75, 1.25)
