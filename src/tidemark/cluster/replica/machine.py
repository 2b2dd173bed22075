"""One step of a member: an event in, effects out.

After an event everything is looked at (`_settle`): a rule that is checked always cannot be forgotten. Only while nothing
goes on but publishing (`_is_quiet`) and a disk is further than before, it is enough to count (`_count`), which comes to
the same: tests let a member that looks at everything run beside one that counts.

A member whose store has failed leaves the group, and all that is left to know is who leads (`_stand_aside`).
"""

from __future__ import annotations

from collections.abc import Collection

from tidemark.cluster.mode import (
    Answer,
    Asked,
    Broken,
    Complete,
    Dial,
    Durable,
    Effect,
    Event,
    Follow,
    Given,
    Keep,
    Lease,
    MemberGone,
    MemberHere,
    PeerDown,
    PeerSaid,
    PeerUp,
    ProposalFailed,
    State,
    Stored,
    Tick,
    ViewChanged,
    Wake,
)
from tidemark.cluster.pace import WINDOW_MS
from tidemark.cluster.replica.orders import Orders
from tidemark.model.peers import (
    Acked,
    Closing,
    Completed,
    Hello,
    Message,
    Name,
    Offer,
    Outdated,
    View,
)

OVERSLEPT_MS = 500
"""A tick that comes so much later than asked for means that this process stood still."""


class Replica(Orders):
    def over_budget(self) -> dict[Name, float]:
        return self._reign.over_budget() if self._reign is not None else {}

    def awaited(self) -> Collection[Name]:
        if self._reign is not None:
            return self._reign.progress.required
        return self.view.ready if self.view is not None else ()

    def step(self, event: Event) -> list[Effect]:
        """Take one event; return what this member must do about it."""
        if self._over:
            return []
        if isinstance(event, Broken) or self.state is State.FAILED:
            self._stand_aside(event)
            out, self._out = self._out, []
            return out
        self._learn_store()
        only_counts = False
        match event:
            case Tick(now_ms):
                self._tick(now_ms)
                if self._wake_at is None or self._now < self._wake_at:
                    return []
            case Stored():
                if self._nobody_waits_for_ends():
                    return []
            case Durable():
                only_counts = self._quiet
            case Given():
                self._given(event)
            case PeerSaid(peer, message):
                only_counts = self._quiet and self._is_about_progress(message)
                self._said(peer, message)
            case PeerUp(peer, dialled):
                self._peer_up(peer, dialled)
            case PeerDown(peer, dialled, gone):
                self._peer_down(peer, dialled, gone)
            case ViewChanged(view):
                self._view_changed(view)
            case ProposalFailed(proposed):
                self._proposals.failed(proposed, self._now)
            case MemberGone(member):
                self._succession.went(member)
            case MemberHere():
                self._succession.came(event)
                self._hear_of(event)
            case Lease(until_ms):
                self._lease_until = until_ms
            case Asked():
                self._asked(event)
        if only_counts and self._quiet:
            self._count(event)
        elif self._out != [Keep()]:
            self._settle()  # else nothing follows before the unit is in the log, which `Stored` tells
        out, self._out = self._out, []
        return out

    def _nobody_waits_for_ends(self) -> bool:
        """Whether nothing follows from where the logs end, other than what is on the disk: no hello is to be said or
        answered, and nothing is about to end. That is so nearly all of the time."""
        return (
            self.state in (State.ACTIVE, State.READY)
            and not self._parked
            and not self._source.hello_wanted
            and self._source.hello_at is None
            and self._closing is None
        )

    # What follows from whatever happened -------------------------------------------------------------------------

    def _settle(self) -> None:
        """Look at everything."""
        wake: list[int | None] = []
        self._answer_parked()
        if self._reign is not None:
            wake.append(self._govern(self._reign))
        else:
            wake.append(self._keep_up())
            wake.append(self._consider_leading())
        self._tell_complete()
        wake.append(self._close_down())
        self._ask_wake(min((at for at in wake if at is not None), default=None))
        self._quiet = self._is_quiet()

    def _is_quiet(self) -> bool:
        """Whether all goes its way: then it is enough to count when somebody's disk is further, until anything else
        happens or the time has come at which this member wants to be woken."""
        if self.view is None or self._proposals.undecided or not self._nobody_waits_for_ends():
            return False
        if self._reign is not None:
            return not self._fenced and self._reign.quiet
        source = self._source
        return source.session and source.copied

    def _is_about_progress(self, message: Message) -> bool:
        """Whether it only says, in our epoch, how far somebody is."""
        assert self.view is not None
        return isinstance(message, Acked | Completed) and message.epoch == self.view.epoch

    def _count(self, event: Event) -> None:
        """What `_settle` would do now, with less to look at: what is complete, and whom to tell how far we are."""
        reign = self._reign
        if reign is None:
            assert self.view is not None
            self._acknowledge(self.view)
            self._tell_complete()
            return
        reign.now, known = self._now, reign.progress.complete
        reign.count(self._facts.durable, _whose(event) or reign.watches)
        if reign.tardy:
            self._settle()
            return
        look_at = self._now + min(WINDOW_MS, self._config.backup_timeout_ms)
        if self._wake_at is None or look_at < self._wake_at:
            self._ask_wake(look_at)  # whoever owes something now may not have paid then
        if reign.progress.complete is not known:
            self._completed = self._completed.most(reign.progress.complete)
            self._tell_complete()

    def _ask_wake(self, at: int | None) -> None:
        self._wake_at = at
        if at is not None and at != self._asked_wake:
            self._asked_wake = at
            self._out.append(Wake(max(at, self._now + 1)))

    def _tick(self, now_ms: int) -> None:
        late = now_ms - self._wake_at if self._wake_at is not None else 0
        self._now = max(self._now, now_ms)
        if self._asked_wake is not None and self._now >= self._asked_wake:
            self._asked_wake = None
        if self._reign is not None and late > OVERSLEPT_MS:
            self._reign.overslept(late + OVERSLEPT_MS)  # what they said meanwhile is still to be heard

    # Messages ----------------------------------------------------------------------------------------------------

    def _said(self, peer: Name, message: Message) -> None:
        if isinstance(message, Outdated):
            self._outdated(peer, message.epoch)
            return
        if isinstance(message, Hello):
            self._parked[peer] = message
            return
        if self.view is None or message.epoch != self.view.epoch:
            self._compare_epochs(peer, message.epoch)
            return
        match message:
            case Offer():
                self._offered(peer, message)
            case Acked(_, durable, behind):
                self._reader_acked(peer, durable, dict(behind))
            case Completed(_, upto):
                if peer == self._source.name and self._source.session:
                    self._completed = self._completed.most(upto)
            case Closing(_, upto):
                if peer == self._source.name and self._source.session:
                    self._closing = upto

    def _outdated(self, peer: Name, epoch: int) -> None:
        self._heard = max(self._heard, epoch)
        if self.view is not None and epoch > self.view.epoch:
            self._lose_reader(peer)
            if peer == self._source.name:
                self._source.session = False
                self._source.hello_at = None  # the view will come, and a hello with it

    # What was promised -------------------------------------------------------------------------------------------

    def _tell_complete(self) -> None:
        if self._reign is not None and self._fenced:
            return
        if self._reign is not None or self._source.in_line:
            if not self._stable.covers(self._completed):
                self._stable = self._stable.most(self._completed.least(self._facts.durable))
            if self._reported is not self._stable and self._reported != self._stable:
                self._reported = self._stable
                self._out.append(Complete(self._stable))
        if self.view is not None:
            untold = self._readers.untold(self._completed)
            if untold:
                message = Completed(self.view.epoch, self._completed)
                for name in untold:
                    self._tell(name, message)

    # A store that failed -----------------------------------------------------------------------------------------

    def _stand_aside(self, event: Event) -> None:
        """Leave the group: nothing is read, sent or acknowledged any more. All that is left to know is who leads."""
        match event:
            case Broken(reason) if self.state is not State.FAILED:
                self._break(reason)
            case ViewChanged(View() as view) if self.view is None or view.epoch >= self.view.epoch:
                self._watch(view)
            case Asked("shutdown"):
                self._out.append(Answer(True, f"{self.me} leaves; the others go on"))
                self._quit("an operator asked for it", clean=True)
            case Asked():
                self._out.append(Answer(False, f"{self.me} is {self.state}: {self._why}"))

    def _break(self, reason: str) -> None:
        """A leader ends: then another takes over at once. Whoever follows does as it was told to."""
        if self._reign is not None or self._config.on_store_error == "quit":
            self._quit(reason)
            return
        self._hush_all()
        self._parked.clear()
        self._source.turn_to(None)
        self._out.append(Dial(None))
        self._become(
            State.FAILED,
            f"{reason}; see to its disk and start it again, with an empty data directory if the store is damaged",
        )

    def _watch(self, view: View) -> None:
        before, self.view = self.view, view
        if view.leader == self.me:
            # Chosen by somebody who did not know: another can only be when this process is gone.
            self._quit(f"it was chosen to lead in epoch {view.epoch}, but {self._why}")
        elif before is None or before.leader != view.leader:
            self._out.append(Follow(view.leader))


def _whose(event: Event) -> list[Name]:
    """Whose disks an acknowledgement is about; nobody's, if it is none."""
    if isinstance(event, PeerSaid) and isinstance(event.message, Acked):
        return [event.peer, *(name for name, _ in event.message.behind)]
    return []
