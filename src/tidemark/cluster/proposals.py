"""Views that a member has proposed, and what is known of their fate.

A proposal is written by compare-and-swap, so it holds only if the view that it was derived from was still there. Its
answer may be lost. Then the view may have been written or not, and until a view with a higher revision is seen, both
must be reckoned with: whoever a proposal names may be ready.

Invariant: a view of ours that may be kept, and is not the one that was seen last, is in `undecided`.
"""

from __future__ import annotations

from tidemark.cluster.mode import Propose
from tidemark.model.peers import Name, View

RETRY_MS = 200
"""A view that could not be written is proposed again."""


class Proposals:
    def __init__(self, answer_ms: int) -> None:
        """`answer_ms`: how long an answer is waited for before there is another question."""
        self.histories: set[str] = set()
        """Those that this life has proposed to write."""
        self.undecided: list[View] = []
        """Derived from the view that is known, and nobody knows whether they were written."""
        self._answer_ms = answer_ms
        self._open: tuple[View, int] | None = None
        """The one whose answer is awaited, and since when."""
        self._retry_at = 0

    def make(self, view: View, why: str, known: View | None, now: int) -> Propose | None:
        """Ask for another view than the one that is known. None: it is too soon for a question."""
        if (self._open is not None and now < self._open[1] + self._answer_ms) or now < self._retry_at:
            return None
        if known is None or view.epoch != known.epoch:
            self.histories.add(view.history)
        self._open = view, now
        self.undecided.append(view)
        return Propose(view, why)

    def failed(self, view: View, now: int) -> None:
        if self._open is not None and self._open[0] == view:
            self._open = None
            self._retry_at = now + RETRY_MS

    def seen(self, view: View) -> None:
        """This view is kept: what was derived from an older one never can be."""
        self.undecided = [one for one in self.undecided if one.revision >= view.revision]
        if self._open is not None and self._open[0].revision < view.revision:
            self._open = None

    def forget(self) -> None:
        """What they were derived from is lost, so none of them can be written any more."""
        self.undecided.clear()
        self._open = None

    def hurry(self, anew: bool = True) -> None:
        """Somebody asks for a view now: the last failure does not delay it, nor (`anew`) an answer that is awaited."""
        self._retry_at = 0
        if anew:
            self._open = None

    @property
    def awaited(self) -> bool:
        return self._open is not None

    def again_at(self) -> int:
        """When there may be another question."""
        return max(self._retry_at, self._open[1] + self._answer_ms if self._open else 0)

    def name(self, member: Name) -> bool:
        """Whether a view that may be kept calls this member ready."""
        return any(member in view.ready for view in self.undecided)
