"""Which versions of streams nobody can pin any more: what a leader promises and a follower waits for.

A version that was superseded may go when no snapshot can be pinned that sees it. Only the leader knows; it says so in
`Completed`: no pin below `floor` is made any more, and every pin that was made before stands in the journal before
`floor_at`. A follower lets go when its journal is complete up to there.

Invariant: a follower that has said "let go of this" knows every pin that could still see it.
"""

from __future__ import annotations

Floor = tuple[int, int]
"""(floor, floor_at)"""


class Floors:
    def __init__(self) -> None:
        self.known: Floor = 0, 0
        """The newest that was promised, here or by the source."""
        self._awaited: Floor | None = None
        """The one that is waited for: only then the newest one counts, else it would run away from us."""

    def hear(self, floor: Floor) -> None:
        """The source promises this."""
        if floor[0] > self.known[0]:
            self.known = floor
            self._awaited = self._awaited or floor

    def reached(self, complete: int) -> int | None:
        """What may be let go of, now that the journal is complete up to there."""
        if self._awaited is None or complete < self._awaited[1]:
            return None
        floor = self._awaited[0]
        self._awaited = self.known if self.known[0] > floor else None
        return floor

    def forget(self) -> None:
        self.known, self._awaited = (0, 0), None
