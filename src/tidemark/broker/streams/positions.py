"""Where somebody stands in a stream: a history and a sequence in it, and whether that is still true here.

A sequence alone is not enough: after a crash the numbers behind the last durable record are given again. So
every start opens a new history, and the takeover table says at which sequence each began. A history holds
all that the ones before it held up to its own first sequence; a position behind that point of an older history
was cut off.

    history A   1 ─────────── 900 ┄┄┄ 1000          (901 … 1000 were never durable)
    history B                  901 ───────── …       (A, 950) is rewound to 900, (A, 900) is good

Who read a de-duplicated snapshot in part, or whole but with an end that was cut off, has not seen the older
versions of keys that were superseded in it. So he is sent back to where that snapshot began.

Invariant: a position that is called good means the same messages here as where it was taken. A history that
the table does not know (it has room for 128) is never good; nor is a receipt of it ever called lost,
since what it is for may be stored.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

from tidemark.errors import PreconditionFailed

Histories = list[tuple[bytes, int]]
"""(history, first sequence), newest first."""

Verdict = Literal["ok", "rewound", "reset"]
Safety = Literal["yes", "not yet", "lost branch"]


@dataclass(frozen=True, slots=True)
class Position:
    """What a consumer has: everything up to `seq`, read in a snapshot of (`snapshot_start`, `snapshot_end`]."""

    history: bytes
    seq: int
    snapshot_end: int = 0
    """0: `seq` itself, a boundary."""
    snapshot_start: int | None = None


@dataclass(frozen=True, slots=True)
class FromMark:
    """Begin where the mark of this consumer is."""

    consumer: str


@dataclass(frozen=True, slots=True)
class AtTime:
    """Begin with what was accepted at this moment or later."""

    ms: int


@dataclass(frozen=True, slots=True)
class Judgement:
    verdict: Verdict
    seq: int
    """Where to go on from."""


def judge(histories: Histories, newest: int, position: Position) -> Judgement:
    """Whether a position is on our branch; `newest` is the last sequence that can have been seen here."""
    if position.seq <= 0:
        return Judgement("ok", 0)
    last = last_of(histories, newest, position.history)
    if last is None:
        return Judgement("reset", 0)
    end = max(position.seq, position.snapshot_end)
    if end <= last:
        return Judgement("ok", position.seq)
    start = position.snapshot_start
    return Judgement("rewound", min(last, position.seq, last if start is None else start))


def last_of(histories: Histories, newest: int, history: bytes) -> int | None:
    """The last sequence that this history and ours have in common; None if it is not known."""
    last = newest
    for known, first in histories:
        if known == history:
            return last
        last = min(last, first - 1)
    return None


def is_safe(histories: Histories, newest: int, durable: int, history: bytes, seq: int, disks: int) -> Safety:
    """Whether we have the message of a receipt: at all (`disks` = 0), or on the disk.

    Raises:
        PreconditionFailed: nobody knows; the receipt is of a history that is not in the table.
    """
    last = last_of(histories, newest, history)
    if last is None:
        raise PreconditionFailed(
            reason=f"the history {history.hex()} of this receipt is not known here, or no longer; read the stream "
            "to see whether what it is for is there before you write it again"
        )
    if seq > newest and history == histories[0][0]:
        return "not yet"
    if seq > last:
        return "lost branch"
    return "yes" if not disks or seq <= durable else "not yet"
