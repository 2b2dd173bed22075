"""What one consumer of a stream has been given and has not acknowledged, in the order of the stream.

A queue must know about every message whether it is ready, acquired or gone. A stream keeps its messages
whoever reads them, so a consumer is a *window* that moves over it: deliveries enter at the front when they
are sent and leave at the back when all before them are acknowledged. Each has an ordinal, counted from 0.
Boundaries, where one snapshot ends and the next begins, are entries too: one that the consumer was told of is
outstanding like a message, one that it was not told of is passed by itself.

Invariant: everything up to `position` is acknowledged, and the delivery behind it, if there is one, is not.
`boundary` is the last boundary that is not beyond `position`.
"""

from __future__ import annotations

from collections import deque
from typing import Any, Protocol

from tidemark.model._runs_py import Taken


class Touchable(Protocol):
    def touch(self) -> None: ...


class Window:
    def __init__(self, position: int, owner: object, due: list[Any], target: Touchable) -> None:
        self.position = position
        self.boundary = position
        self.stirred = False
        """The owner is in `due`: something was acknowledged since it was looked at."""
        self._owner = owner
        self._due = due
        self._target = target
        self._first = 0
        """The ordinal of the oldest entry."""
        self._entries: deque[list[int]] = deque()
        """[sequence, whether it is acknowledged, whether it is a boundary] of each."""

    def __len__(self) -> int:
        """How many entries have not left it."""
        return len(self._entries)

    def add(self, taken: Taken) -> int:
        """These are being sent. Returns the ordinal of the first; the others follow it."""
        first = self._first + len(self._entries)
        self._entries.extend([seq, 0, 0] for _, seq, *_ in taken)
        return first

    def add_boundary(self, seq: int, told: bool) -> int:
        """A snapshot ends at `seq`, and the consumer is told so or not. Returns the ordinal."""
        last = self._entries[-1] if self._entries else None
        if not told and last is not None and last[1] and last[2]:
            # Nothing lies between this boundary and the one before: one entry stands for both.
            last[0] = seq
            return self._first + len(self._entries) - 1
        self._entries.append([seq, 0 if told else 1, 1])
        ordinal = self._first + len(self._entries) - 1
        if not told:
            self._advance()
        return ordinal

    def settle(self, ordinal: int) -> None:
        """This delivery is acknowledged. What has left already, by `clear`, is nobody's."""
        place = ordinal - self._first
        if not 0 <= place < len(self._entries):
            return
        self._entries[place][1] = 1
        self._advance()
        self.stir()

    def stir(self) -> None:
        """The owner wants to be looked at: it may have room again."""
        if not self.stirred:
            self.stirred = True
            self._due.append(self._owner)
            self._target.touch()

    def clear(self) -> None:
        """Nothing of it will be acknowledged any more."""
        self._first += len(self._entries)
        self._entries.clear()

    def after(self, ordinals: list[int]) -> tuple[int, int]:
        """Position and boundary as they will be when these ordinals are settled; nothing changes."""
        settled = set(ordinals)
        position, boundary = self.position, self.boundary
        for ordinal, (seq, done, is_boundary) in enumerate(self._entries, self._first):
            if not done and ordinal not in settled:
                break
            position = seq
            if is_boundary:
                boundary = seq
        return position, boundary

    def _advance(self) -> None:
        entries = self._entries
        while entries and entries[0][1]:
            seq, _, is_boundary = entries.popleft()
            self._first += 1
            self.position = seq
            if is_boundary:
                self.boundary = seq
