"""Going on when every member that was ready is lost for good: who is given up, and who has most of what is left.

Only a ready member has all that was confirmed. When the disks of all of them are gone nobody else ever may lead, so an
operator must say that what only they had is lost (`promote --accept-loss`). This module takes stock before that: it looks
at what the others have said of their stores just now, and knows every reason not to do it.

    a ready member is there, with its store      nothing needs to be given up
    another member is further                    that one should lead, unless the operator names this one
    some could not be asked                      they may be further: the same

Stores are compared as `store/best.py` does: the epoch in which each was last in line with a leader, then how far it goes.
One that was still being filled comes behind all others.

Invariant: nobody is given up who has answered with the store of a ready member, or whose lease is good.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

from tidemark.cluster.mode import MemberHere
from tidemark.model.peers import Ends, Log, Name, View

EPOCHS_UNHEARD = 1000
"""Without etcd a member that is lost may have led in epochs of which nobody here has heard. If it comes back its view must
be the older one, so this many are left out."""


@dataclass(frozen=True, slots=True)
class Stock:
    """What there is, as member `mine` sees it, that is not ready in this view."""

    view: View
    mine: MemberHere
    answers: tuple[MemberHere, ...]
    leased: set[Name]
    """Those whose leases are good, whether they answer or not."""
    size: int
    """How many members the cluster has, or had at first."""

    def objection(self, *, accept_loss: bool, named: bool) -> str | None:
        """Why this member must not lead though the loss is accepted, or what that would mean if it is not."""
        alive = self._alive()
        if not accept_loss:
            words = f"may lack what was confirmed; ready: {', '.join(self.view.ready)}"
            return words if alive else f"{words}. {self._advice()}"
        if alive:
            return f"need not lead: {alive}"
        if named:
            return None
        best, name = self._stores()[0], self.mine.member
        if best.member != name:
            return (
                f"is not the one that has most: {self._listed()}. Promote {best.member} with --accept-loss; or name this one, "
                f"if it shall lead all the same: promote {name} --accept-loss"
            )
        if missing := self._missing():
            return (
                f"has most of what is here, but {missing} of {self.size} members could not be asked and may have more: "
                f"{self._listed()}. Start them first; or name this one, if it shall lead all the same: promote {name} "
                "--accept-loss"
            )
        return None

    def words(self, epoch: int, complete: Ends) -> str:
        """What is done, if there is no objection; `complete`: what this member knows to have been confirmed."""
        lost = ", ".join(self.view.ready)
        short = sum(max(0, complete[log] - self.mine.durable[log]) for log in Log)
        known = f", {short} records at least" if short else ""
        return (
            f"{self.mine.member} leads in epoch {epoch}. Given up: {lost}; what only {lost} had is lost{known}. All go on from "
            f"what {self.mine.member} has: {self._listed()}"
        )

    def _alive(self) -> str:
        """Who is there of the ready, in words; nobody: empty."""
        said = {one.member: one for one in self.answers}
        for name in self.view.ready:
            if name == self.mine.member:
                continue
            if name in said:
                if self._whole(said[name]):
                    return f"{name} is there with all that was confirmed; promote that one, or wait until it leads"
            elif name in self.leased:
                return (
                    f"{name} is ready and does not answer, but its lease is good: look after that one. If its store is lost, "
                    "stop it first"
                )
        return ""

    def _advice(self) -> str:
        best, lost = self._stores()[0], ", ".join(self.view.ready)
        return (
            f"None of those is there with its store. Of the others: {self._listed()}. If {lost} will not come back, "
            f"promote {best.member} with --accept-loss: then everything that only {lost} had is lost, though it was confirmed"
        )

    def _whole(self, one: MemberHere) -> bool:
        return one.cluster == self.view.cluster and one.epoch > 0

    def _stores(self) -> list[MemberHere]:
        """Those of this cluster, and the empty ones, best first; of equals this member's."""
        ours = [one for one in (self.mine, *self.answers) if one.cluster in ("", self.view.cluster)]
        return sorted(
            ours,
            key=lambda one: (
                self._whole(one),
                one.epoch,
                one.durable.journal,
                one.durable.catalog,
                one.member == self.mine.member,
            ),
            reverse=True,
        )

    def _missing(self) -> int:
        known = {one.member for one in self._stores()} | set(self.view.ready)
        return max(0, self.size - len(known))

    def _listed(self) -> str:
        return "; ".join(self._described(self._stores()))

    def _described(self, stores: Iterable[MemberHere]) -> Iterable[str]:
        for one in stores:
            if one.durable == Ends():
                yield f"{one.member} is empty"
            else:
                state = f"epoch {one.epoch}" if self._whole(one) else "still being filled"
                yield f"{one.member} has journal {one.durable.journal}, catalog {one.durable.catalog} ({state})"
