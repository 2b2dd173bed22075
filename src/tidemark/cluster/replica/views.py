"""What a member makes of the view that is kept: a newer one, an older one, none; and how an epoch begins."""

from __future__ import annotations

from tidemark.cluster.mode import (
    Dial,
    Follow,
    Lead,
    State,
)
from tidemark.cluster.reign import Reign
from tidemark.cluster.replica.following import Following
from tidemark.model.peers import (
    Ends,
    Name,
    View,
)


class ViewChanges(Following):
    def _view_changed(self, view: View | None) -> None:
        self._view_read = True
        if view is None:
            self._view_lost()
            return
        known = self.view
        if self._has_founded(view):
            self._belong(view.cluster, view.epoch)
        if self._cluster not in ("", view.cluster):
            self._quit(
                f"this store belongs to cluster {self._cluster}, the cluster that is kept under this name is "
                f"{view.cluster}: start with the right data directory, or with an empty one"
            )
            return
        if self._is_older(view):
            self._view_brought_back(view)
            return
        if known is not None and self._view_gone and view.epoch > known.epoch:
            # Somebody was promoted where nothing was kept any more; revisions have begun anew there. If it is this member, an
            # operator has decided that what it has is the best there is.
            self._proposals.forget()
            if self.state is State.CATCHUP:
                self._become(State.JOINING, "the view is gone, and another was made")
        elif known is not None and view.revision < known.revision:
            self._explain(
                f"etcd has lost its data or was brought back from a copy, and {view.leader} leads there in epoch "
                f"{view.epoch}: start this member again if that is right"
            )
            return
        self._view_gone, self._old, self._behind_since = False, None, None
        self._proposals.seen(view)
        self.view = view
        self._heard = max(self._heard, view.epoch)
        if known is None or (view.epoch, view.history) != (known.epoch, known.history):
            self._new_epoch(view, known)
        else:
            if self._reign is not None:
                self._reign.now = self._now
                self._reign.see(view, tuple(self._proposals.undecided))
                for name in self._readers:
                    if name not in view.ready:
                        self._reign.admit(name, self._readers.of(name), self._facts.durable)
            self._aim()

    def _has_founded(self, view: View) -> bool:
        """Whether this is the view by which this store was to found a cluster, in an earlier life that ended before it
        could lead: then nothing has been confirmed by it. Who belongs to that cluster was filled by somebody who led."""
        mine = view.history in self._facts.founding and view.leader == self.me and view.ready == (self.me,)
        if not mine or self.view is not None or self._cluster or view.history in self._proposals.histories:
            return False
        return all(one.cluster != view.cluster for one in self._succession.here.values())

    def _is_older(self, view: View) -> bool:
        """Whether this view was replaced by another before, as far as this member and its store know."""
        known = self.view
        if known is None:
            return bool(self._cluster) and view.epoch < self._facts.epoch
        return view.epoch < known.epoch or (view.epoch == known.epoch and view.revision < known.revision)

    def _view_brought_back(self, view: View) -> None:
        """Who was ready of late nobody can read any more: as if there were no view."""
        self._old, self._view_gone = view, self.view is not None
        if self._reign is None:  # else it is fenced, and says why
            self._explain_old(view)

    def _explain_old(self, view: View) -> None:
        self._explain(f"{self._why_old(view)}; promote the member with the best store")

    def _why_old(self, view: View) -> str:
        seen = self.view.epoch if self.view is not None else self._facts.epoch
        return (
            f"the view that is kept, of epoch {view.epoch}, is older than the one of epoch {seen} that this member knows: it was "
            "brought back from a copy"
        )

    def _view_lost(self) -> None:
        self._old = None
        if self.view is not None:
            self._view_gone = True
            self._explain("the view is gone: bring etcd back, or promote the member with the best store")

    def _new_epoch(self, view: View, before: View | None) -> None:
        self._hush_all()
        self._source.new_epoch()
        self._succession.new_epoch(self._now)
        led, self._reign = self._reign is not None, None
        self._fenced = False
        # Its store may have been emptied since it proposed this.
        sound = self._whole or before is None or view.accepted == view.epoch
        if view.leader == self.me and view.history in self._proposals.histories and not led and sound:
            self._take_the_lead(view, before)
            return
        if self.state is not State.JOINING:
            self._become(State.JOINING, f"{view.leader} leads in epoch {view.epoch}")
        if led or before is None or before.leader != view.leader:
            self._out.append(Follow(view.leader if view.leader != self.me else None))
        if led:
            self._source.kept, self._reported = None, Ends()
        self._aim()
        if self._source.linked:
            self._source.hello_wanted = True

    def _take_the_lead(self, view: View, before: View | None) -> None:
        self._refilling = False
        accepted = self._forsaken(view)
        given_up: tuple[Name, ...] = ()
        if accepted:
            if before is not None:
                given_up = tuple(name for name in before.ready if name != self.me)
            self._disown(view, self._facts.durable)
            if self.state is State.CATCHUP:
                self._become(State.JOINING, "it need not catch up with those that are given up")
        self._become(State.RECOVERING, f"it was chosen to lead in epoch {view.epoch}")
        self._source.turn_to(None)
        self._source.kept = None
        self._belong(view.cluster, view.epoch)
        self._out.append(Dial(None))
        self._out.append(Lead(view.epoch, view.history, accepted, given_up))
        self._reign = Reign(self.me, self._config, self._topology, view, self._now)
