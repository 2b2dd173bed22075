"""Those that read from this member in this epoch, and whoever reads from them.

A reader acknowledges what is on its own disk, and passes on what those behind it have. So the leader hears of everybody,
and a member in the middle knows whom it reaches.

Invariant: what a reader has never becomes less while it is one.
"""

from __future__ import annotations

from collections.abc import Iterator, Set
from dataclasses import dataclass, field

from tidemark.model.peers import Ends, Name


@dataclass(slots=True)
class Reader:
    has: Ends
    behind: dict[Name, Ends] = field(default_factory=dict)
    """What those have that read through it."""
    told: Ends | None = None
    """What it was last told to be complete."""


class Readers:
    def __init__(self) -> None:
        self._readers: dict[Name, Reader] = {}

    def __iter__(self) -> Iterator[Name]:
        return iter(self._readers)

    def __len__(self) -> int:
        return len(self._readers)

    def add(self, name: Name, has: Ends) -> None:
        self._readers[name] = Reader(has)

    def remove(self, name: Name) -> bool:
        """Whether it was one."""
        return self._readers.pop(name, None) is not None

    def clear(self) -> list[Name]:
        """Nobody reads any more. Who did."""
        names = list(self._readers)
        self._readers.clear()
        return names

    def acked(self, name: Name, durable: Ends, behind: dict[Name, Ends]) -> bool:
        """One has said what it has, and those behind it. False: it is no reader."""
        reader = self._readers.get(name)
        if reader is None:
            return False
        reader.has, reader.behind = reader.has.most(durable), behind
        return True

    def behind(self, name: Name) -> Set[Name]:
        """Who reads through this one."""
        reader = self._readers.get(name)
        return reader.behind.keys() if reader is not None else frozenset()

    def of(self, name: Name) -> Ends:
        """What a member has, as far as is known here."""
        direct = self._readers.get(name)
        if direct is not None:
            return direct.has
        found = Ends()
        for reader in self._readers.values():
            found = found.most(reader.behind.get(name, Ends()))
        return found

    def reached(self) -> set[Name]:
        """Whoever reads from us, directly or through others."""
        return set(self._readers) | self.reached_through_others()

    def reached_through_others(self) -> set[Name]:
        return {name for reader in self._readers.values() for name in reader.behind}

    def untold(self, complete: Ends) -> list[Name]:
        """Who is to be told that so much is complete; they count as told."""
        found = []
        for name, reader in self._readers.items():
            if reader.told is not complete and reader.told != complete:
                reader.told = complete
                found.append(name)
        return found
