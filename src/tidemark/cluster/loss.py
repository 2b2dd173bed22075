"""Going on when every member that was ready is lost for good, or nobody knows who was: who may lead, and who has most.

Only a ready member has all that was confirmed. When the disks of all of them are gone nobody else ever may lead, so an
operator must say that what only they had is lost (`promote --accept-loss`). The same when the view itself is lost: then a
promotion founds the cluster again. This module takes stock before that: it looks at what the others have said of their
stores just now, and knows every reason not to do it.

    a ready member is there, with its store      nothing needs to be given up
    a ready member is there and silent           it may have its store: wait for it, or stop it
    another member is further                    that one should lead, unless the operator names this one
    some could not be asked                      they may be further: the same

Which store is the best is said by `model/lines.py`. One that was still being filled comes behind all others. One that the view
calls ready and that has not yet written down that it is whole comes first: it is filled only while no view calls it ready.

Invariant: nobody is given up who has answered with the store of a ready member, whose process is there, or whose lease is
good.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

from tidemark.cluster.mode import MemberHere, Survey, Unasked
from tidemark.model.lines import Held, best_first
from tidemark.model.peers import Ends, Log, Name, View

EPOCHS_UNHEARD = 1000
"""Without etcd a member that is lost may have led in epochs of which nobody here has heard. If it comes back its view must
be the older one, so this many at least are left out."""


@dataclass(frozen=True, slots=True)
class Stock:
    """What there is, as member `mine` sees it."""

    view: View | None
    """The last that is known; None: none is."""
    mine: MemberHere
    survey: Survey
    leased: set[Name]
    """Those whose leases are good, whether they answer or not."""
    size: int
    """How many members the cluster has, or had at first."""

    # Whether it may lead ---------------------------------------------------------------------------------------

    def objection(self, *, accept_loss: bool, named: bool) -> str | None:
        """Why this member, which is not ready, must not lead though the loss is accepted; or what that would mean if it
        is not."""
        there, silent = self._there(), self._silent()
        if not accept_loss:
            words = f"may lack what was confirmed; ready: {', '.join(self._ready)}"
            return words if there else f"{words}. {silent or self._advice()}"
        if there or silent:
            return f"need not lead: {there or silent}"
        return None if named else self._doubt(set(self._ready), "with --accept-loss")

    def objection_to_founding(self, *, accept_loss: bool, named: bool) -> str | None:
        """Why this member must not found the cluster again, whose view is lost."""
        had_all = self._holds_all(self.mine)
        if not had_all and (alive := self._there() or self._silent()):
            return f"need not lead: {alive}"
        return None if accept_loss and named else self._doubt(set(), "instead")

    def _doubt(self, given_up: set[Name], how: str) -> str | None:
        best, name = self._stores()[0], self.mine.member
        anyway = f"or name this one, if it shall lead all the same: promote {name} --accept-loss"
        if best.member != name:
            return f"is not the one that has most: {self._listed()}. Promote {best.member} {how}; {anyway}"
        if missing := self._missing(given_up):
            return f"has most of what is here, but {missing}: {self._listed()}. Start them first; {anyway}"
        return None

    def _there(self) -> str:
        """Which of the others that are ready has answered with its store, in words; none: empty."""
        for one in self._answers:
            if self._holds_all(one):
                return f"{one.member} is there with all that was confirmed; promote that one, or wait until it leads"
        return ""

    def _silent(self) -> str:
        """Which of the others that are ready is there and has not answered, in words; none: empty."""
        answered = {one.member for one in self._answers} | {self.mine.member}
        unasked = {one.member: one for one in self._unasked}
        for name in self._ready:
            if name in unasked and unasked[name].there:
                return (
                    f"{name} is ready and its process is there ({unasked[name].why}): look after that one, or wait. If its "
                    "store is lost, stop it first"
                )
            if name in self.leased and name not in answered:
                return (
                    f"{name} is ready and does not answer, but its lease is good: look after that one. If its store is lost, "
                    "stop it, and try again when its lease has ended"
                )
        return ""

    @property
    def is_incomplete(self) -> bool:
        """Whether there may be stores that nobody here has heard of, or has heard."""
        return bool(self._missing(set()))

    def _missing(self, given_up: set[Name]) -> str:
        """Who could not be asked, in words; nobody: empty."""
        unasked = [one for one in self._unasked if one.member not in given_up]
        named = ", ".join(f"{one.member} ({one.why})" for one in unasked)
        said = [f"{named} could not be asked and may have more"] if named else []
        known = {self.mine.member, *self._ready, *(one.member for one in self.survey.answers)}
        known.update(one.member for one in self.survey.unasked)
        if self.size > len(known):
            said.append(f"{self.size - len(known)} of {self.size} members are not known here")
        return ", and ".join(said)

    # In words --------------------------------------------------------------------------------------------------

    def words(self, epoch: int, complete: Ends) -> str:
        """What is done, if there is no objection; `complete`: what this member knows to have been confirmed."""
        name = self.mine.member
        others = ", ".join(one for one in self._ready if one != name)
        short = sum(max(0, complete[log] - self.mine.durable[log]) for log in Log)
        known = f", {short} records at least" if short else ""
        given_up = f"Given up: {others}" if others else "Nobody else was ready"
        if self._was_ready(self.mine):
            lost = f"{name} was filled, and the view calls it ready: nothing is missing if that was because of this store"
        elif name in self._ready:
            lost = f"what {f'only {others} and ' if others else ''}the store that {name} had before held is lost{known}"
        else:
            lost = f"what only {others} had is lost{known}"
        return f"{name} leads in epoch {epoch}. {given_up}; {lost}. All go on from what {name} has: {self._listed()}"

    def _advice(self) -> str:
        best = self._stores()[0]
        words = f"None of those answers with its store. Of the others: {self._listed()}. "
        if self._was_ready(best):
            return f"{words}Promote {best.member} with --accept-loss: it was filled, and the view calls it ready, so nothing should be missing"
        lost = ", ".join(self._ready)
        return (
            f"{words}If what {lost} had will not come back, promote {best.member} with --accept-loss: then everything that "
            f"only {lost} had is lost, though it was confirmed"
        )

    def _listed(self) -> str:
        return "; ".join(self._described(self._stores()))

    def _described(self, stores: Iterable[MemberHere]) -> Iterable[str]:
        for one in stores:
            if one.durable == Ends():
                yield f"{one.member} is empty"
            else:
                state = f"epoch {one.epoch}" if self._whole(one) else "still being filled"
                state = "ready" if self._was_ready(one) else state
                yield f"{one.member} has journal {one.durable.journal}, catalog {one.durable.catalog} ({state})"

    # The stores ------------------------------------------------------------------------------------------------

    @property
    def _ready(self) -> tuple[Name, ...]:
        return self.view.ready if self.view is not None else ()

    @property
    def _cluster(self) -> str:
        return self.view.cluster if self.view is not None else self.mine.cluster

    @property
    def _answers(self) -> tuple[MemberHere, ...]:
        return tuple(one for one in self.survey.answers if not one.failed)

    @property
    def _unasked(self) -> tuple[Unasked, ...]:
        failed = [one.member for one in self.survey.answers if one.failed]
        why = "its store has failed: see to its disk and start it again"
        return (*self.survey.unasked, *(Unasked(name, why, there=True) for name in failed))

    def _whole(self, one: MemberHere) -> bool:
        return one.cluster == self._cluster and one.epoch > 0

    def _holds_all(self, one: MemberHere) -> bool:
        settled = self.view.settled if self.view is not None else 0
        return one.member in self._ready and self._whole(one) and one.epoch >= settled

    def _was_ready(self, one: MemberHere) -> bool:
        """Whether the view calls it ready though its store does not say that it is whole, and is not empty."""
        filled = one.cluster == self._cluster and one.durable != Ends()
        return one.member in self._ready and filled and not one.epoch

    def _stores(self) -> list[MemberHere]:
        """Those of this cluster, and the empty ones, best first; of equals this member's."""
        ours = [one for one in (self.mine, *self._answers) if one.cluster in ("", self._cluster)]
        whole = [one for one in ours if self._whole(one) or self._was_ready(one)]
        filling = [one for one in ours if one not in whole]
        whole.sort(key=self._was_ready, reverse=True)
        filling.sort(key=lambda one: (one.durable.journal, one.durable.catalog), reverse=True)
        return [*best_first(whole, self._held), *filling]

    def _held(self, one: MemberHere) -> Held:
        newest = self.view.epoch + 1 if self.view is not None and self._was_ready(one) else one.epoch
        return Held(newest, one.durable, one.table)
