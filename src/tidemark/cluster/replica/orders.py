"""What operators ask of a member: to lead or not to, to go on without another, to be filled anew, to stop."""

from __future__ import annotations

from dataclasses import replace

from tidemark.cluster.loss import Stock
from tidemark.cluster.mode import (
    Answer,
    Asked,
    Dial,
    Drain,
    Follow,
    Reread,
    State,
    Survey,
)
from tidemark.cluster.replica.taking_over import TakingOver
from tidemark.cluster.succession import outnumbered
from tidemark.model.peers import (
    Closing,
    Ends,
    Name,
    View,
)


class Orders(TakingOver):
    def _asked(self, asked: Asked) -> None:
        before = len(self._out)
        match asked.command:
            case "promote":
                answer = self._promote(asked)
                if answer.done and self._refilling:
                    self._stop_refilling()
            case "demote":
                answer = self._demote(asked.member)
            case "drop":
                answer = self._drop(asked.member)
            case "refill":
                answer = self._refill()
            case "reread":
                answer = self._reread()
            case "shutdown":
                answer = self._shut_down()
        self._out.insert(before, answer)  # first: nothing is done behind a `Quit`

    def _promote(self, asked: Asked) -> Answer:
        view = self.view
        if asked.member not in ("", self.me):
            return Answer(False, f"this is {self.me}: promote {asked.member} at its own address")
        if self._reign is not None and not self._view_gone:
            if self._fenced:
                return Answer(False, f"{self.me} leads and is fenced: {self._why}")
            return Answer(True, f"{self.me} leads already")
        answers = asked.survey.answers if asked.survey is not None else ()
        if wrong := outnumbered(self._mine(), answers, view.cluster if view is not None else ""):
            return Answer(False, f"{self.me} must not lead: {wrong}")
        if view is None or not self.view_holds:
            return self._promote_as_founder(asked)
        if not self._holds_all(view) or self.state is State.CATCHUP:
            return self._promote_with_loss(view, asked)
        self._proposals.hurry(anew=False)
        self._propose(view.led_by(self.me, self._history()), "an operator asked for it")
        return Answer(True, f"{self.me} takes over from {view.leader}")

    def _promote_as_founder(self, asked: Asked) -> Answer:
        """There is no view: this member's store is to be the cluster's, again if it was one before."""
        if not self._view_read:
            return Answer(False, "the view has not been read yet; try again when etcd can be reached")
        if self._config.provider == "external" and self.view is not None and not asked.accept_loss:
            # Everybody who can be reached was asked for it just now.
            return Answer(
                False,
                f"{self.me} knows the view of epoch {self.view.epoch}, but there was epoch {self._heard}: start a member that knows "
                "that one; or, if none will come back, promote the one with the best store with --accept-loss",
            )
        answers = asked.survey.answers if asked.survey is not None else ()
        owners = sorted({*self._succession.owners(), *(one.member for one in answers if one.cluster)})
        for one in answers:
            self._hear_of(one)
        if owners and not self._cluster:
            return Answer(
                False, f"this store never belonged to the cluster; promote one of {', '.join(owners)}"
            )
        unheard = False
        led_by_newest = self._reign is not None and self._heard <= self._reign.view.epoch
        if self._cluster and not led_by_newest:
            if asked.survey is None:
                return Answer(False, f"{self.me} is {self.state}, and the others were not asked: try again")
            newest = self.view is not None and self._heard <= self.view.epoch
            stock = self._stock(self.view if newest else None, asked.survey)
            no = stock.objection_to_founding(accept_loss=asked.accept_loss, named=bool(asked.member))
            if no is not None:
                return Answer(False, f"{self.me} is {self.state} and {no}")
            unheard = stock.is_incomplete
        self._proposals.hurry()
        self._found("an operator asked for it", unheard=unheard)
        again = self._old is not None or (self.view is not None and not self._view_gone)
        return Answer(True, f"{self.me} {'leads in a new epoch' if again else 'founds the cluster'}")

    def _stock(self, view: View | None, survey: Survey) -> Stock:
        # Without etcd nobody has a lease: whoever did not answer just now is not there.
        leased = set() if self._config.provider == "external" else set(self._succession.here)
        return Stock(view, self._mine(), survey, leased, self._config.size)

    def _promote_with_loss(self, view: View, asked: Asked) -> Answer:
        """It may lack what was confirmed. That it leads all the same is for an operator to want, and in so many words."""
        who = f"{self.me} is {self.state}"
        if self._is_copy(view):
            who += f", {self._why_copy(view)},"
        elif self.me in view.ready and self._facts.durable == Ends():
            who += ", its store is empty,"
        if asked.survey is None or asked.survey.revision != view.revision:
            words = f"{who} and may lack what was confirmed; ready: {', '.join(view.ready)}"
            return Answer(False, f"{words}. Try again: the view changed while the others were asked")
        stock = self._stock(view, asked.survey)
        no = stock.objection(accept_loss=asked.accept_loss, named=bool(asked.member))
        if no is not None:
            return Answer(False, f"{who} and {no}")
        epoch = self._epoch_behind(max(view.epoch, self._heard))
        self._proposals.hurry()
        self._propose(
            view.seized_by(self.me, self._history(), epoch),
            f"an operator accepted the loss of what only {', '.join(view.ready)} had",
        )
        return Answer(True, stock.words(epoch, self._completed))

    def _demote(self, to: Name) -> Answer:
        reign = self._reign
        if reign is None:
            leader = self.view.leader if self.view is not None else "the leader"
            if to not in ("", leader):
                return Answer(False, f"{self.me} does not lead; ask {leader}")
            return Answer(True, f"{self.me} does not lead")
        if self._config.provider == "external":
            if to:
                return Answer(False, f"demote takes no other member here; promote {to} instead")
            self._step_down(reign.view)
            return Answer(True, f"{self.me} does not lead any more; promote it or another")
        heirs = [name for name in reign.view.ready if name in self._readers.reached()]
        if to and to not in heirs:
            return Answer(False, f"{to} is not ready and reachable; these are: {', '.join(heirs) or 'none'}")
        if not heirs:
            return Answer(False, "no other member is ready: nobody could lead")
        heir = to or heirs[0]
        # The heir sees that it leads by a view that it did not propose, and takes an epoch of its own.
        view = reign.view.led_by(heir, self._history())
        self._proposals.hurry()
        self._propose(replace(view, ready=(*view.ready, self.me)), "an operator asked for it")
        return Answer(True, f"{heir} takes over from {self.me}")

    def _step_down(self, view: View) -> None:
        """Lead no more, though nobody else does: whoever leads next takes an epoch of its own."""
        self._hush_all()
        self._parked.clear()
        self._reign, self._fenced = None, False
        self._proposals.histories.discard(view.history)
        self._become(State.JOINING, "it was demoted")
        self._out.append(Follow(None))
        self._source.kept, self._reported = None, Ends()

    def _drop(self, member: Name) -> Answer:
        reign = self._reign
        if reign is None:
            leader = self.view.leader if self.view is not None else "the leader"
            return Answer(False, f"{self.me} does not lead; ask {leader}")
        if member == self.me:
            return Answer(False, "a leader cannot be dropped; demote it first")
        others = {*reign.view.ready, *self._readers.reached(), *self._succession.here, *self._succession.gone}
        others.discard(self.me)
        if member not in others:
            known = ", ".join(sorted(others)) or "none"
            return Answer(False, f"{member} is no member that {self.me} knows; these are: {known}")
        reign.now = self._now
        reign.bar(member, reads=member in self._readers)
        if member not in reign.view.ready:
            return Answer(True, f"{member} is not ready: there is nothing to drop")
        reign.unwanted[member] = "an operator dropped it"
        return Answer(True, f"the cluster goes on without {member}; it comes back when it connects anew")

    def _refill(self) -> Answer:
        """Have the store of this member emptied and filled again: as soon as nobody counts on it any more."""
        view = self.view
        if view is None or view.leader == self.me or self._reign is not None:
            return Answer(False, f"{self.me} has nobody to be filled by: it is {self.state}, {self._why}")
        if self._proposals.undecided:
            if self._config.provider != "external" and self.me in view.ready:
                self._propose(view, "to know which view holds")
            words = "has asked for another view and does not know yet whether that one is kept"
            return Answer(False, f"{self.me} {words}: try again")
        self._refilling = True
        self._step_back("its store is to be emptied, when the others go on without it")
        if self._source.turn_to(None):
            self._out.append(Dial(None))  # an offer that is on its way there was for a store that is full
        self._aim()
        return Answer(True, f"{self.me} leaves, empties its store and is filled again by the others")

    def _reread(self) -> Answer:
        """Have this member read its own store anew."""
        if self._reign is not None or self.state not in (State.CATCHUP, State.READY):
            return Answer(False, f"{self.me} is {self.state}")
        self._step_back("its store is read again")
        self._cut()
        self._out.append(Reread())
        return Answer(True, f"{self.me} reads its store again")

    def _step_back(self, why: str) -> None:
        if self.state is not State.JOINING:
            self._become(State.JOINING, why)

    def _shut_down(self) -> Answer:
        if self._reign is None:
            self._quit("an operator asked for it", clean=True)
            return Answer(True, f"{self.me} leaves; the others go on")
        if self._closing is None:
            self._out.append(Drain())
            self._closing = Ends()
        return Answer(True, "the cluster stops when all ready members hold the same")

    def _close_down(self) -> int | None:
        """Stop in good order: the leader when all have everything, then those that read from it, then their readers."""
        if self._closing is None:
            return None
        if self._closing_since is None:
            ends = self._facts.ends
            if self._reign is not None:
                if not self._reign.progress.reached(self._facts.durable).covers(ends):
                    return None
                self._closing = ends
            elif not self._facts.durable.covers(self._closing):
                return None
            self._closing_since = self._now
            assert self.view is not None
            for reader in self._readers:
                self._tell(reader, Closing(self.view.epoch, self._closing))
        deadline = self._closing_since + self._config.backup_timeout_ms
        if not self._readers or self._now >= deadline:
            self._quit("the cluster was shut down", clean=True)
            return None
        return deadline
