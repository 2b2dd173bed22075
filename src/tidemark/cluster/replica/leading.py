"""A member that leads: the fence, what is complete, who is left out and who comes in."""

from __future__ import annotations

from dataclasses import replace

from tidemark.cluster.mode import (
    Fence,
    State,
    Unfence,
)
from tidemark.cluster.reign import Reign
from tidemark.cluster.replica.views import ViewChanges


class Leading(ViewChanges):
    def _govern(self, reign: Reign) -> int | None:
        """A leader's duties: the fence, what is complete, who is left out and who comes in."""
        reign.now, reign.gone = self._now, self._succession.gone
        own = self._facts.durable
        reign.linked(set(self._readers), self._readers.reached_through_others())
        reign.require(tuple(self._proposals.undecided))
        reign.progress.advance(own)
        wake = reign.review(own)
        reign.require(tuple(self._proposals.undecided))
        self._fence(reign)
        if self._fenced:
            again = self._proposals.again_at()
            return again if again > self._now else None
        self._completed = self._completed.most(reign.progress.complete)
        if self.state is State.RECOVERING and self._begun(reign):
            self._become(State.ACTIVE, "every member that must answer has answered")
        elif self.state is State.RECOVERING and reign.progress.held:
            self._explain(
                f"{len(reign.view.ready)} of the {self._config.copies_min} members that must have a copy are ready "
                "(cluster.copies_min)"
            )
        asked = self._change_ready(reign)
        return min((at for at in (wake, asked, self._lease_until) if at is not None), default=None)

    def _begun(self, reign: Reign) -> bool:
        """Something of this epoch is complete: whoever must answer has answered."""
        takeover = self._takeover()
        return takeover is not None and reign.progress.complete.covers(takeover.first)

    def _fence(self, reign: Reign) -> None:
        """Without a lease nothing is confirmed or shown. When it is back the view is written once more before that
        ends: whoever saw the lease end and is about to take over has then derived its view from an older one."""
        why = None
        if self._heard > reign.view.epoch:
            why = "there is a newer epoch"
        elif self._view_gone and self._old is not None:
            why = f"{self._why_old(self._old)}; promote this member again"
        elif self._view_gone:
            why = "the view is gone: bring etcd back, or promote this member again"
        elif self._now >= self._lease_until:
            why = "its lease has run out"
        if why is not None and not self._fenced:
            self._fenced, self._fenced_at = True, reign.view.revision
            self._become(State.FENCED, why)
            self._out.append(Fence())
        elif why is not None:
            self._explain(why)
        elif self._fenced and reign.view.revision == self._fenced_at:
            self._propose(reign.view, "its lease is back")
        elif self._fenced:
            self._fenced = False
            state = State.ACTIVE if self._begun(reign) else State.RECOVERING
            self._become(state, "its lease is back")
            self._out.append(Unfence())

    def _change_ready(self, reign: Reign) -> int | None:
        """Propose the view as it should be. Says when to try again."""
        view = wanted = reign.view
        late = reign.late() if self._closing is None else {}
        reasons = []
        for name, why in late.items():
            wanted = wanted.without(name)
            reasons.append(f"without {name}: {why}")
        for name in reign.welcome():
            if self._closing is None and name not in late:
                wanted = wanted.with_ready(name)
                reasons.append(f"{name} holds all that is confirmed")
        if self.state is State.ACTIVE and self._closing is None and view.settled < view.epoch:
            wanted = replace(wanted, settled=view.epoch)
            reasons.append("all that are ready are in line")
        undecided = any(set(one.ready) - set(view.ready) for one in self._proposals.undecided)
        if wanted is view and not undecided:
            return None
        if wanted != view or (undecided and not self._proposals.awaited):
            self._propose(wanted, "; ".join(reasons) or "to know which view holds")
            reign.require(tuple(self._proposals.undecided))
        if wanted != view or undecided:
            return self._proposals.again_at()
        return None
