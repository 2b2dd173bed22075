"""A member that would lead: the leader is lost, or there never was one. If it may not, it says what it waits for."""

from __future__ import annotations

from tidemark.cluster.loss import EPOCHS_UNHEARD
from tidemark.cluster.mode import (
    Intend,
    MemberHere,
    State,
)
from tidemark.cluster.replica.leading import Leading
from tidemark.cluster.succession import outnumbered
from tidemark.model.peers import (
    View,
)


class TakingOver(Leading):
    def _consider_leading(self) -> int | None:
        if not self._view_read or self._closing is not None:
            return None
        if self._config.provider == "external":
            self._await_promotion()
            return None
        view = self.view
        if self._old is not None:
            self._explain_old(self._old)
        if self._view_gone or self._old is not None:
            return None
        if view is None:
            return self._consider_founding()
        if not self.view_holds:
            return self._await_view(view)
        if self._refilling and self._whole and self.me in view.ready:
            return self._put_refill_first(view)
        if not self._holds_all(view) or self.state is State.CATCHUP:
            if self.me == view.leader:
                return self._abdicate(view)
            self._await_leader(view)
            return None
        lost = self._why_lost(view)
        if lost is None:
            return self._succession.not_lost(view)
        turn_at = self._succession.turn_at(view, self._now)
        if self._now >= turn_at:
            self._propose(view.led_by(self.me, self._history()), lost)
        return max(turn_at, self._proposals.again_at(), self._now + 1)

    def _put_refill_first(self, view: View) -> int | None:
        """It is to be filled anew, and has all that was confirmed until the leader says that its store may go. When the
        leader is lost before that, others lead; if none does, this member, and keeps what it has."""
        if self._why_lost(view) is None:
            self._await_leader(view)
            return self._succession.not_lost(view)
        others = set(view.ready) - self._succession.gone - {self.me}
        turn_at = self._succession.turn_at(view, self._now)
        if others and view.leader != self.me:
            turn_at += self._config.lease_ms
        if self._now < turn_at:
            return turn_at
        self._stop_refilling()
        return self._consider_leading()

    def _await_promotion(self) -> None:
        """Nobody takes the lead by itself: say what is waited for."""
        view = self.view
        if self.state is not State.JOINING:
            return
        wrong = outnumbered(self._mine(), self._succession.others(), view.cluster if view is not None else "")
        if wrong:
            self._explain(wrong)
        elif view is None:
            self._explain("there is no leader yet: promote one member")
        elif view.leader == self.me and not self._is_copy(view):
            self._explain(f"it led in epoch {view.epoch} and does not any more: promote it or another")
        else:
            self._await_leader(view)

    def _await_view(self, view: View) -> int | None:
        """Somebody knows of a newer epoch. Its view is on its way, or it was lost and an older one brought back."""
        if self._behind_since is None:
            self._behind_since = self._now
        late_at = self._behind_since + self._config.lease_ms
        if self._now < late_at:
            return late_at
        if self.state is State.JOINING and not self._source.session:
            self._explain(
                f"the view that is kept is of epoch {view.epoch}, but there was epoch {self._heard}: if no newer one comes, it "
                "was brought back from a copy; promote the member with the best store"
            )
        return None

    def _await_leader(self, view: View) -> None:
        """Say who is waited for, as long as there is no contact and this member does not take over by itself."""
        if self.state is not State.JOINING or self._source.session:
            return
        words = f"it waits for {view.leader}, which leads in epoch {view.epoch}"
        if self._is_copy(view):
            self._explain(f"{self._why_copy(view)}; it waits for another that leads, and catches up then")
        elif self._holds_all(view):
            self._explain(f"{words}, or for a promotion")
        else:
            self._explain(
                f"{words}: it may lack what was confirmed and cannot lead; ready: {', '.join(view.ready)}"
            )

    def _abdicate(self, view: View) -> int | None:
        """The view says that this member leads, but its store is lost: name another, which takes an epoch of its own."""
        heir, why = self._succession.heir(view), "its store is lost"
        if self._is_copy(view):
            why = self._why_copy(view)
        if heir is None:
            self._explain(
                f"this member alone was ready, and {why}: bring the store back, or promote the member that has most of it "
                "with --accept-loss"
            )
            return None
        self._explain(f"{why}: {heir} is to lead")
        self._propose(view.led_by(heir, self._history()), "the store of the leader is lost")
        return self._proposals.again_at()

    def _why_copy(self, view: View) -> str:
        return (
            f"its store is an older copy: it was in line in epoch {self._facts.epoch} last, and its member in epoch "
            f"{view.settled}"
        )

    def _why_lost(self, view: View) -> str | None:
        talking = self._source.session and self._source.name == view.leader
        return self._succession.why_lost(view, self._now, talking=talking)

    def _consider_founding(self) -> int | None:
        """The very first view: when all are there, whoever has most proposes itself."""
        founds, why = self._succession.founds(self._mine())
        if not founds:
            self._explain(why)
            return None
        self._found(why)
        return self._proposals.again_at()

    def _found(self, why: str, *, unheard: bool = False) -> None:
        """`unheard`: somebody who could not be asked may know of epochs that nobody else has heard of."""
        epoch, accepted = max(self._heard, self._facts.epoch) + 1, 0
        if self._reign is not None and self._heard <= self._reign.view.epoch:
            accepted = self._reign.view.accepted  # it has all that was confirmed
        elif self._cluster:
            # What others confirmed of late nobody knows any more.
            accepted = epoch = self._epoch_behind(epoch - 1, unheard=unheard)
        cluster, history = self._cluster or self._entropy(16).hex(), self._history()
        if not self._cluster:
            self._out.append(Intend(history))  # so that it knows its own view when it dies before it leads
        self._propose(
            View(cluster, epoch, self.me, (self.me,), history, self._kept_revision(), accepted),
            why,
        )

    def _kept_revision(self) -> int:
        """Of the view that is kept now, which another is to replace; 0: none is."""
        if self._old is not None:
            return self._old.revision
        return self.view.revision if self.view is not None and not self._view_gone else 0

    def _mine(self) -> MemberHere:
        facts = self._facts
        return MemberHere(self.me, self._cluster, facts.durable, facts.epoch, facts.table)

    def _epoch_behind(self, epoch: int, *, unheard: bool = True) -> int:
        """The next epoch for a member that goes on whatever is lost."""
        if self._config.provider != "external":
            return epoch + (EPOCHS_UNHEARD if unheard and not self.view_holds else 1)
        # Another may be told to do the same at the same moment, out of reach: then one of them shall be newer.
        return epoch + EPOCHS_UNHEARD + int.from_bytes(self._entropy(2), "big")
