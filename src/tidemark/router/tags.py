"""Delivery tags of one channel whose messages come from several groups.

Every group numbers what it delivers on its channel 1, 2, 3, …; the client must see one such row of numbers. So
the client's tags are given out here, in the order in which messages are passed on, and a settlement in the
client's tags is said to each group in its own.

A stretch of deliveries of one group in a row is one `_Span`: the group's tag is the client's plus an offset. While
a channel gets messages of one group only, the offset is 0 and nothing need be changed on the way.

Invariant: a tag is in exactly one span, and not among those settled there, exactly until it is settled; spans are
in the order of their tags.
"""

from __future__ import annotations

from bisect import bisect_right
from dataclasses import dataclass, field

from tidemark.errors import PreconditionFailed

Settlement = tuple[str, int, int]
"""A group, and a range of its tags as in an `AckRun`: (first, last) each by itself, (0, last) all up to last."""


@dataclass(slots=True)
class _Span:
    first: int
    last: int
    group: str
    offset: int
    """What the group's tag is more than the client's."""
    settled: set[int] = field(default_factory=set)
    """The client's tags within that are settled already."""

    def highest(self, up_to: int) -> int:
        """The highest tag up to this one that is outstanding; 0 if there is none."""
        tag = min(up_to, self.last)
        while tag >= self.first and tag in self.settled:
            tag -= 1
        return tag if tag >= self.first else 0

    def trim(self) -> bool:
        """Forget settled tags at both ends. Returns whether anything is left."""
        settled = self.settled
        while self.first in settled:
            settled.discard(self.first)
            self.first += 1
        while self.last in settled and self.last >= self.first:
            settled.discard(self.last)
            self.last -= 1
        return self.first <= self.last


class Tags:
    """The outstanding deliveries of one channel."""

    __slots__ = ("_spans", "last")

    def __init__(self) -> None:
        self.last = 0
        """The newest tag that the client was given."""
        self._spans: list[_Span] = []

    def add(self, group: str, first: int, count: int, kept: bool) -> int:
        """A group has delivered `count` messages, tagged from `first` on. Returns the client's tag of the first one.

        `kept` says whether they will be settled; if not, only their numbers are used up.
        """
        new = self.last + 1
        self.last += count
        if not kept:
            return new
        spans, offset = self._spans, first - new
        if spans and spans[-1].last == new - 1 and (spans[-1].group, spans[-1].offset) == (group, offset):
            spans[-1].last = self.last
        else:
            spans.append(_Span(new, self.last, group, offset))
        return new

    def plan(self, first: int, last: int) -> list[Settlement]:
        """What to say to which group about a range of the client's tags. Nothing is settled by asking.

        Raises:
            PreconditionFailed: a tag is not outstanding.
        """
        if last > self.last:
            raise _unknown(last)
        return self._plan_all(last) if not first else self._plan_each(first, last)

    def _plan_all(self, last: int) -> list[Settlement]:
        highest: dict[str, int] = {}
        for span in self._spans:
            if last and span.first > last:
                break
            tag = span.highest(last or self.last)
            if tag:
                highest[span.group] = tag + span.offset
        if last and not highest:
            raise _unknown(last)
        return [(group, 0, tag) for group, tag in highest.items()]

    def _plan_each(self, first: int, last: int) -> list[Settlement]:
        found: list[Settlement] = []
        tag = first
        while tag <= last:
            span = self._span_of(tag)
            if span is None:
                raise _unknown(tag)
            end = min(last, span.last)
            if not span.settled.isdisjoint(range(tag, end + 1)):
                raise _unknown(next(each for each in range(tag, end + 1) if each in span.settled))
            found.append((span.group, tag + span.offset, end + span.offset))
            tag = end + 1
        return found

    def settle(self, first: int, last: int) -> None:
        """A range that was planned is settled."""
        spans = self._spans
        if not first:
            end = last or self.last
            while spans and spans[0].last <= end:
                del spans[0]
            if spans and spans[0].first <= end:
                spans[0].settled -= set(range(spans[0].first, end + 1))
                spans[0].first = end + 1
                if not spans[0].trim():
                    del spans[0]
            return
        tag = first
        while tag <= last:
            span = self._span_of(tag)
            assert span is not None
            end = min(last, span.last)
            if tag == span.first:
                span.first = end + 1
            else:
                span.settled.update(range(tag, end + 1))
            if not span.trim():
                spans.remove(span)
            tag = end + 1

    def forget(self, group: str) -> None:
        """All that was outstanding of a group has gone back to its queues."""
        self._spans = [span for span in self._spans if span.group != group]

    def clear(self) -> None:
        """All that was outstanding has gone back to its queues."""
        self._spans.clear()

    def _span_of(self, tag: int) -> _Span | None:
        at = bisect_right(self._spans, tag, key=lambda span: span.first) - 1
        if at < 0 or tag > self._spans[at].last:
            return None
        return self._spans[at]

    def __len__(self) -> int:
        """How many are outstanding."""
        return sum(span.last - span.first + 1 - len(span.settled) for span in self._spans)


def _unknown(tag: int) -> PreconditionFailed:
    return PreconditionFailed(reason=f"unknown delivery tag {tag}")
