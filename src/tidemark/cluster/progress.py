"""Who has what, and what is complete because of it.

The leader counts, in one epoch, how far each member's disk is. Complete is what its own disk and those of all that
are *required* hold; a required member that has not said anything yet holds nothing. While there are fewer copies than
there must be (`held`) nothing more completes. Members come and go while the
epoch lasts, so a new one may be behind what is complete: then nothing more completes until it is not.

Invariant: `complete` never goes back.
"""

from __future__ import annotations

from collections.abc import Set
from dataclasses import dataclass, field

from tidemark.model.peers import Ends, Name

NOTHING = Ends()


@dataclass(slots=True)
class Progress:
    """Of one epoch, as its leader sees it."""

    required: Set[Name] = frozenset()
    """Beside the leader."""
    held: bool = False
    """Too few members are ready."""
    complete: Ends = field(default_factory=Ends)
    _has: dict[Name, Ends] = field(default_factory=dict)

    def has(self, member: Name) -> Ends:
        return self._has.get(member, NOTHING)

    def acked(self, member: Name, durable: Ends) -> None:
        """Acks may come twice or in another order; the disk of a member only ever gets further in an epoch."""
        self._has[member] = self.has(member).most(durable)

    def begin(self, member: Name, durable: Ends) -> None:
        """It starts anew with this: what it acknowledged before may have been on a disk that is gone."""
        self._has[member] = durable

    def forget(self, member: Name) -> None:
        self._has.pop(member, None)

    def reached(self, durable: Ends) -> Ends:
        """What all that are required have, when the leader's own disk is that far."""
        for member in self.required:
            durable = durable.least(self.has(member))
        return durable

    def advance(self, durable: Ends) -> Ends:
        """What is complete when the leader's own disk is that far."""
        if not self.held:
            self.complete = self.complete.most(self.reached(durable))
        return self.complete
