"""Logs that share a beginning: up to where two are alike, and which of several stores holds the most.

A history is what one leader wrote in one epoch, and every log that holds some of it holds its beginning, right behind
the same records. So two logs are alike up to the end of the newest history that both hold, or rather to where the
shorter of them leaves it.

The best of several stores is found like this: begin with the one that was in line in the highest epoch; as long as another
holds all of that one and more, take the other; of several that do, again the one of the highest epoch, then the longest.

    in line in epoch 5   A1..A5                     the leader of 5 had not sent it more than this
    in line in epoch 4   A1..A5 .. A80              → the best: it holds all of the first, and more
    in line in epoch 4   A1..A3 | B4                parts from the first: whatever it holds from there on was not kept

A store that was in line in an epoch is a part of that leader's log, and all that is confirmed lies in the log of the
newest leader. Length alone would choose a branch that was cut off; the epoch alone, a store that has only begun to catch
up; the epoch of the newest history alone, a leader whom nobody followed. Where two continue the same store and part from
one another behind it, the stores do not tell which way the newest leader went: the higher epoch is the better guess.

Invariant: the best store is in line in the highest epoch, or holds all that such a one holds.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import TypeVar

from tidemark.model.peers import Ends, Log, Takeover

S = TypeVar("S")


@dataclass(frozen=True, slots=True)
class Held:
    """What one store holds."""

    epoch: int
    """The last in which it was in line with a leader."""
    ends: Ends
    table: tuple[Takeover, ...] = ()
    """Its histories, newest first; empty if they are not known."""


def best_first(stores: Sequence[S], held: Callable[[S], Held]) -> list[S]:
    """In the order in which they should lead; equals stay as they are given."""
    left, found = list(stores), []
    while left:
        best = _newest(left, held)
        while further := [one for one in left if _continues(held(one), held(best))]:
            best = _newest(further, held)
        left.remove(best)
        found.append(best)
    return found


def _newest(stores: Sequence[S], held: Callable[[S], Held]) -> S:
    def rank(one: S) -> tuple[int, int, int]:
        what = held(one)
        return what.epoch, what.ends.journal, what.ends.catalog

    return max(stores, key=rank)


def _continues(more: Held, less: Held) -> bool:
    """Whether it holds all of the other and more; where the journals are the same the catalogs decide."""
    for log in (Log.JOURNAL, Log.CATALOG):
        end = less.ends[log]
        if common(less.table, end, more.table, more.ends[log], log) != end:
            return False
        if more.ends[log] > end:
            return True
    return False


def common(
    reader: tuple[Takeover, ...], reader_end: int, source: tuple[Takeover, ...], source_end: int, log: Log
) -> int | None:
    """Up to where the two logs are alike; None if they have nothing in common."""
    if reader_end == 0:
        return 0
    ours = _ends_of_histories(source, source_end, log)
    for history, end in _ends_of_histories(reader, reader_end, log).items():
        if history in ours:
            return min(end, ours[history])
    return None


def _ends_of_histories(table: tuple[Takeover, ...], end: int, log: Log) -> dict[str, int]:
    """History → its last sequence in this log, newest first. One that has no record in it is left out."""
    found: dict[str, int] = {}
    for takeover in sorted(table, key=lambda one: -one.first[log]):  # as in the table where they are equal
        first = takeover.first[log]
        if 0 < first <= end:
            found[takeover.history] = end
            end = first - 1
    return found
