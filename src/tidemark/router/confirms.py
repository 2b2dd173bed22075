"""Which publishes of a channel wait to be confirmed, where one publish may have gone to several groups.

The client numbers its publishes 1, 2, 3, …; so does every group, with what it was given. A publish is confirmed
to the client when every group that it went to has confirmed its part, and refused when one has refused. Answers go
to the client in the order of its numbers, each covering all before it that have had none, as those of a broker do;
an answer of a group is read in the same way.

A group may give back a part, without a word about whose it is: it is given to another group instead, and the oldest
publish that waits for the first waits for that, too, and so do all behind it. If it is refused, so are all that it may
have been of.

Invariant: every number gets exactly one answer, and the numbers answered are always 1 … `answered`.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Sequence
from dataclasses import dataclass, field

from tidemark.wire.amqp091.methods import BasicAck, BasicNack

Answer = BasicAck | BasicNack


@dataclass(slots=True, eq=False)
class _Entry:
    """The client's numbers up to `last` that went the same way."""

    last: int
    groups: tuple[str, ...]
    """Where they went."""
    alike: bool
    """Each of them went there as one publish, and there only: they are answered one by one."""
    left: int = 1
    """How many parts have no answer."""
    accepted: bool = True
    answers: list[tuple[int, bool]] = field(default_factory=list)
    """What was answered so far: numbers up to the first of each pair, with this outcome."""


@dataclass(slots=True)
class _Part:
    """What a group was given for an entry: its numbers up to `last`."""

    first: int
    last: int
    entry: _Entry
    accepted: bool = True
    instead_of: str = ""
    """The group that was given it before."""
    up_to: int = 0
    """The client's newest number then."""


class Confirms:
    """The unconfirmed publishes of one channel."""

    __slots__ = ("_entries", "_parts", "_refused", "_sent", "_settled", "answered", "published")

    def __init__(self) -> None:
        self.published = 0
        self.answered = 0
        self._entries: deque[_Entry] = deque()
        self._parts: dict[str, deque[_Part]] = {}
        self._sent: dict[str, int] = {}
        self._refused: dict[str, int] = {}
        """By group: the client's numbers up to this one that went there and have no answer yet are refused."""
        self._settled = 0
        """No entry that ends here or before may grow."""

    def __len__(self) -> int:
        """How many publishes have no answer yet."""
        return self.published - self.answered

    def add(self, parts: Sequence[tuple[str, int]], count: int = 1) -> None:
        """So many more publishes, each of which went to each of these groups as so many publishes."""
        if len(parts) == 1 and parts[0][1] == 1:
            self._add_alike(parts[0][0], count)
            return
        for _ in range(count):
            self._add_one(parts)

    def _add_one(self, parts: Sequence[tuple[str, int]]) -> None:
        self.published += 1
        entry = _Entry(self.published, tuple(group for group, _ in parts), alike=False, left=0)
        self._entries.append(entry)
        for group, count in parts:
            self._add_part(group, count, entry)

    def _add_alike(self, group: str, count: int) -> None:
        may_grow = self.published > self._settled
        self.published += count
        entries, parts = self._entries, self._parts.get(group)
        if may_grow and entries and entries[-1].alike and parts and parts[-1].entry is entries[-1]:
            entries[-1].last = self.published
            parts[-1].last += count
            self._sent[group] += count
            return
        entry = _Entry(self.published, (group,), alike=True, left=0)
        entries.append(entry)
        self._add_part(group, count, entry)

    def _add_part(self, group: str, count: int, entry: _Entry) -> None:
        sent = self._sent.get(group, 0)
        self._sent[group] = sent + count
        self._parts.setdefault(group, deque()).append(_Part(sent + 1, sent + count, entry))
        entry.left += 1

    def also(self, group: str, instead: str) -> None:
        """Something that `group` had been given and does not take was given to `instead`.

        Which of the publishes that wait for `group` it was is not known, so all of them wait for it.
        """
        sent = self._sent[instead] = self._sent.get(instead, 0) + 1
        waiting = self._parts.get(group)
        entry = waiting[0].entry if waiting else _Entry(0, (), alike=False, left=0)
        entry.alike = False  # it is answered when all of it is
        entry.left += 1
        self._settled = self.published
        part = _Part(sent, sent, entry, instead_of=group, up_to=self.published)
        self._parts.setdefault(instead, deque()).append(part)

    def take(self, group: str, tag: int, accepted: bool) -> list[Answer]:
        """A group has answered all up to `tag`. Returns what the client can be told now."""
        parts = self._parts.get(group)
        while parts and parts[0].first <= tag:
            part = parts[0]
            part.accepted &= accepted
            entry = part.entry
            if part.last > tag:
                if entry.alike:
                    # Each number of the entry is one of the group's: so many of them are answered.
                    entry.answers.append((entry.last - (part.last - tag), accepted))
                    part.first = tag + 1
                    part.accepted = True
                break
            parts.popleft()
            entry.left -= 1
            entry.accepted &= part.accepted
            if part.instead_of and not part.accepted:
                before = self._refused.get(part.instead_of, 0)
                self._refused[part.instead_of] = max(before, part.up_to)
            if entry.alike:
                entry.answers.append((entry.last, accepted))
            elif not entry.left:
                entry.answers.append((entry.last, entry.accepted))
        return self._answers()

    def _answers(self) -> list[Answer]:
        found: list[tuple[int, bool]] = []
        entries = self._entries
        while entries:
            entry = entries[0]
            if not entry.alike and entry.left:
                break
            refused = bool(self._refused) and self._is_refused(entry)
            for last, told in entry.answers:
                accepted = told and not refused
                if found and accepted and found[-1][1]:
                    found[-1] = last, True
                else:
                    found.append((last, accepted))
            entry.answers.clear()
            if entry.left:
                break
            entries.popleft()
        return [self._answer(last, accepted) for last, accepted in found if last > self.answered]

    def _is_refused(self, entry: _Entry) -> bool:
        return any(entry.last <= self._refused.get(group, 0) for group in entry.groups)

    def _answer(self, last: int, accepted: bool) -> Answer:
        several = last - self.answered > 1
        self.answered = last
        return (
            BasicAck(delivery_tag=last, multiple=several)
            if accepted
            else BasicNack(delivery_tag=last, multiple=several, requeue=False)
        )
