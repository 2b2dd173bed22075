"""The machine behind the replicating modes: one member of one group.

A member follows or leads, as the view says. A follower reads from its *source* (`source.py`) and is itself the source of
others (`readers.py`):

    ViewChanged ─► Dial(source) ─► PeerUp ─► Hello ─► Offer ─► units, Completed
                                                        │  └─► rewind, reset: cut the logs back, and again from Dial
                                                        └────► Acked, as often as something is on the disk

The leader counts what the others have (`reign.py`) and says what is complete. When it is lost, or there never was one,
`succession.py` says whose turn it is. Who reads from whom is the topology's to say. This module puts these together:
it turns events into their changes, and the changes into effects.

Three rules carry the safety; none of them looks at a clock:

1. Nothing is complete that is not on the disk of every member which may be ready in the view that is kept.
2. A member leads only by a view that it has proposed itself in this life, and proposes one only if the view before
   calls it ready and its store has really been so (`whole`): a leader that restarts has forgotten what the others
   have, so it needs a new epoch like anybody else. The one exception is an operator who gives up what is lost (`loss.py`).
3. What is said in an epoch counts in that epoch only, and after one `resume` in it a log only grows along its leader's.

Hellos that cannot be answered yet, because this member does not know the epoch or is itself not that far, are parked
and looked at again after every event.

After an event everything is looked at (`_settle`): a rule that is checked always cannot be forgotten. Only while nothing
goes on but publishing (`_is_quiet`) and a disk is further than before, it is enough to count (`_count`), which comes to
the same: tests let a member that looks at everything run beside one that counts.

Invariant: `_reign` is there exactly when this member leads.
"""

from __future__ import annotations

from collections.abc import Callable, Collection
from dataclasses import replace
from typing import Protocol

from tidemark.cluster import divergence
from tidemark.cluster.config import ClusterConfig
from tidemark.cluster.loss import EPOCHS_UNHEARD, Stock
from tidemark.cluster.mode import (
    Answer,
    Asked,
    Became,
    Belong,
    Broken,
    Complete,
    Dial,
    Drain,
    Durable,
    Effect,
    Event,
    Fence,
    Follow,
    Given,
    Hush,
    Keep,
    Lead,
    Lease,
    MemberGone,
    MemberHere,
    PeerDown,
    PeerSaid,
    PeerUp,
    ProposalFailed,
    Quit,
    Reread,
    Reset,
    Rewind,
    Send,
    Skip,
    State,
    Stored,
    Survey,
    Tell,
    Tick,
    Unfence,
    ViewChanged,
    Wake,
)
from tidemark.cluster.pace import WINDOW_MS
from tidemark.cluster.proposals import Proposals
from tidemark.cluster.readers import Readers
from tidemark.cluster.reign import Reign
from tidemark.cluster.source import Source
from tidemark.cluster.states import legal
from tidemark.cluster.succession import Succession
from tidemark.cluster.topology import Topology
from tidemark.model.peers import (
    Acked,
    Closing,
    Completed,
    Ends,
    Hello,
    Log,
    Message,
    Name,
    Offer,
    Outdated,
    Takeover,
    View,
)

OVERSLEPT_MS = 500
"""A tick that comes so much later than asked for means that this process stood still."""


class LogFacts(Protocol):
    """What the machine may know of the local logs. Always as they are now."""

    @property
    def cluster(self) -> str: ...
    @property
    def epoch(self) -> int: ...
    @property
    def ends(self) -> Ends: ...
    @property
    def durable(self) -> Ends: ...
    @property
    def table(self) -> tuple[Takeover, ...]: ...
    def log_start(self, log: Log) -> int: ...


class Replica:
    def __init__(
        self,
        me: Name,
        config: ClusterConfig,
        entropy: Callable[[int], bytes],
        facts: LogFacts,
        topology: Topology,
    ) -> None:
        self.me = me
        self.state = State.JOINING
        self.view: View | None = None
        self._config = config
        self._entropy = entropy
        self._facts = facts
        self._topology = topology
        self._out: list[Effect] = []
        self._why = ""
        self._now = 0
        self._wake_at: int | None = None
        self._asked_wake: int | None = None
        # The store, as far as it matters who may lead.
        self._known = False
        self._cluster = ""
        self._whole = False
        self._refilling = False
        """An operator wants the store emptied and filled again."""
        # Members and views.
        self._view_read = False
        self._view_gone = False
        """There was one, and it is kept nowhere any more; or an older one is in its place."""
        self._old: View | None = None
        """The view that is kept is older than what this member knows: it is not to be acted on, only to be replaced."""
        self._succession = Succession(me, config)
        self._heard = 0
        """The newest epoch that anybody has spoken of."""
        self._behind_since: int | None = None
        """Since when a newer epoch is known of than that of the view."""
        self._proposals = Proposals(config.lease_ms)
        # Following, and feeding others.
        self._source = Source()
        self._readers = Readers()
        self._parked: dict[Name, Hello] = {}
        """Hellos that cannot be answered yet."""
        # Leading.
        self._reign: Reign | None = None
        self._lease_until = 0
        self._fenced = False
        self._fenced_at = 0
        """The revision of the view that it led by when it was fenced."""
        # What was said to clients.
        self._completed = Ends()
        self._stable = Ends()
        """What of it is on the disk here: never cut back."""
        self._reported = Ends()
        # Shutting down.
        self._closing: Ends | None = None
        self._closing_since: int | None = None
        self._over = False
        self._quiet = False
        """Nothing is going on but counting. Said by the last look at everything."""

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

    # What follows from whatever happened -----------------------------------------------------------------------

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
        return source.session and source.in_line and source.copied

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

    def _learn_store(self) -> None:
        if not self._known:
            self._known = True
            self._cluster = self._facts.cluster
            self._whole = bool(self._cluster) and self._facts.epoch > 0

    # The state, and what the store says of itself --------------------------------------------------------------

    def _become(self, state: State, why: str) -> None:
        if state is self.state:
            self._explain(why)
            return
        if not legal(self.state, state):
            self._quit(f"this member was {self.state} and would become {state}: {why}")
            return
        self.state, self._why = state, why
        self._out.append(Became(state, why))

    def _explain(self, why: str) -> None:
        """The state is the same, the reason is another."""
        if why != self._why:
            self._why = why
            self._out.append(Became(self.state, why))

    def _quit(self, reason: str, clean: bool = False) -> None:
        self._over = True
        self._out.append(Quit(reason, clean))

    def _belong(self, cluster: str, epoch: int) -> None:
        self._cluster, self._whole = cluster, epoch > 0
        self._out.append(Belong(cluster, epoch))

    # Views -----------------------------------------------------------------------------------------------------

    def _hear_of(self, member: MemberHere) -> None:
        """There was a view of the epoch in which the store of a member was whole."""
        if self._cluster and member.cluster == self._cluster:
            self._heard = max(self._heard, member.epoch)

    def _view_changed(self, view: View | None) -> None:
        self._view_read = True
        if view is None:
            self._view_lost()
            return
        known = self.view
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
            self._explain(f"{self._why_old(view)}; promote the member with the best store")

    def _why_old(self, view: View) -> str:
        seen = self.view.epoch if self.view is not None else self._facts.epoch
        return (
            f"the view that is kept, of epoch {view.epoch}, is older than the one of epoch {seen} that this member knows: it was "
            "brought back from a copy"
        )

    @property
    def view_holds(self) -> bool:
        """Whether the view that is kept is the newest that this member has heard of."""
        return self.view is not None and not self._view_gone and self._heard <= self.view.epoch

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

    def _propose(self, view: View, why: str) -> None:
        """Ask for another view. Until its answer comes, or is overdue, there is no second question."""
        propose = self._proposals.make(view, why, self.view, self._now)
        if propose is not None:
            self._out.append(propose)

    def _history(self) -> str:
        return self._entropy(16).hex()

    # Following -------------------------------------------------------------------------------------------------

    def _aim(self) -> None:
        """Turn to whom the view says that this member reads from."""
        view = self.view
        source: Name | None = None
        if view is not None and view.leader != self.me and self._reign is None:
            if self._refilling:
                source = view.leader
            elif self.me in view.ready:
                known = self._whole or self._source.vouched
                source = self._topology.source(view, self.me) if known else view.leader
            else:
                source = view.leader if self._source.copied else self._topology.copy_source(view, self.me)
        if self._source.turn_to(source):
            self._out.append(Dial(source))

    def _peer_up(self, peer: Name, dialled: bool) -> None:
        if self.view is not None and peer == self.view.leader:
            self._succession.refused = False
        if not dialled:
            self._lose_reader(peer)
        elif peer == self._source.name:
            self._source.link_made()

    def _peer_down(self, peer: Name, dialled: bool, gone: bool) -> None:
        if not dialled:
            self._lose_reader(peer)
            return
        if gone and self.view is not None and peer == self.view.leader:
            self._succession.refused = True
        if peer != self._source.name:
            return
        self._source.link_lost()
        if self.state is State.CATCHUP:
            self._become(State.JOINING, f"the link to {peer} is broken")
        if self.view is not None and self.me not in self.view.ready and peer != self.view.leader:
            self._source.copied = True  # the leader will do instead
            self._aim()

    def _keep_up(self) -> int | None:
        """A follower's duties: hello, readiness, acknowledgements. Says when it wants to be called again."""
        view = self.view
        if view is None:
            return None
        if not self._refilling:
            self._settle_readiness(view)
        source = self._source
        if source.name is None:
            return None
        self._say_hello(view)
        if not source.session:
            return source.hello_again_at()
        if source.is_copied(self._facts.durable):
            self._aim()
            if not source.session:
                return None
        self._acknowledge(view)
        return source.acknowledge_again_at()

    def _acknowledge(self, view: View) -> None:
        """Tell the source what is on the disk here, and of those behind."""
        source = self._source
        assert source.name is not None
        behind: tuple[tuple[Name, Ends], ...] = ()
        if self._readers:
            names = self._readers.reached() - {self.me, source.name}
            behind = tuple((name, self._readers.of(name)) for name in sorted(names))
        acked = Acked(view.epoch, self._facts.durable, behind)
        if source.acknowledge(acked, self._now):
            self._tell(source.name, acked)

    def _say_hello(self, view: View) -> None:
        durable = self._facts.durable
        if self._source.say_hello(self._now, durable, self._facts.ends):
            assert self._source.name is not None
            if self._refilling:
                hello = Hello(self.me, view.epoch, self._cluster, Ends(), (), whole=False)
            else:
                hello = Hello(self.me, view.epoch, self._cluster, durable, self._facts.table, self._whole)
            self._tell(self._source.name, hello)

    def _settle_readiness(self, view: View) -> None:
        if self._source.in_line and self.me in view.ready and (self._whole or self._source.vouched):
            if not self._whole:
                self._belong(view.cluster, view.epoch)
            if self.state in (State.JOINING, State.CATCHUP):
                self._enter_catchup()
                self._become(State.READY, f"it holds all that {view.leader} has confirmed")
            self._aim()
        elif self.state is State.READY:
            after = State.CATCHUP if self._source.session else State.JOINING
            self._become(after, f"{view.leader} went on without it")
        elif self._source.session:
            self._enter_catchup()

    def _enter_catchup(self) -> None:
        if self.state is State.JOINING:
            self._become(State.CATCHUP, f"{self._source.name} has answered")

    def _offered(self, peer: Name, offer: Offer) -> None:
        view = self.view
        if view is None or peer != self._source.name or self._source.hello_at is None:
            return
        self._source.hello_at = None
        if self._refilling and offer.verdict != "refuse":
            self._begin_refill()
            return
        forsaken = self._forsaken(view)
        accepted = forsaken and self._whole  # what was still being filled is no loss to anybody
        if offer.verdict != "refuse":
            self._disown(view, offer.to)
        match offer.verdict:
            case "resume":
                self._source.resume(offer, self._facts.ends, leads=peer == view.leader)
                epoch = view.epoch if self._whole else 0
                if (self._cluster, self._facts.epoch) != (view.cluster, epoch):
                    self._belong(view.cluster, epoch)
                self._enter_catchup()
            case "rewind" if forsaken and self._compacted(offer.to):
                self._begin_anew(offer.to, accepted)
            case "rewind":
                self._rewind(peer, offer.to, accepted)
            case "reset":
                if self._whole and self.me in view.ready:
                    self._source.hello_at = self._now  # the view without us is still on its way
                    return
                self._begin_anew(offer.to, accepted)
            case "refuse":
                self._quit(offer.reason)

    def _compacted(self, to: Ends) -> bool:
        """Whether the logs as they were up to here can be had no more. Messages of the journal are let go of because of
        records that come later, and here those may be the ones that are cut off."""
        return self._facts.log_start(Log.JOURNAL) > 0 or self._facts.log_start(Log.CATALOG) > to.catalog

    def _begin_anew(self, alike: Ends, accepted: bool) -> None:
        self._cut()
        self._whole = False
        self._stable = Ends()
        self._out.append(Reset(alike, accepted))

    def _forsaken(self, view: View) -> bool:
        """Whether the store has not been in line since a loss was accepted: it may hold what is given up."""
        epoch = self._facts.epoch
        if epoch == view.accepted == view.epoch:
            # Without etcd two losses may be accepted at once, and in the same epoch.
            return all(row.history != view.history for row in self._facts.table)
        return epoch < view.accepted

    def _disown(self, view: View, alike: Ends) -> None:
        """What was called complete behind here is so no more, if its loss was accepted."""
        if self._forsaken(view):
            self._completed, self._stable = self._completed.least(alike), self._stable.least(alike)

    def _rewind(self, peer: Name, to: Ends, accepted: bool) -> None:
        if not to.covers(self._stable):
            self._quit(
                f"{peer} asks to cut the logs back to {to}, but all up to {self._stable} was confirmed"
            )
            return
        self._cut()
        self._out.append(Rewind(to, accepted))

    def _cut(self) -> None:
        """The logs are cut and the links closed; the member opens the one to the source again."""
        self._source.cut()
        self._reported = Ends()
        self._hush_all()
        if self.state is State.CATCHUP:
            self._become(State.JOINING, "its logs are cut back")

    def _given(self, given: Given) -> None:
        """Keep what comes right behind our log, of our source in this epoch."""
        view, source = self.view, self._source
        if view is None or given.epoch != view.epoch:
            self._compare_epochs(given.peer, given.epoch)
            self._out.append(Skip())
            return
        wanted = given.peer == source.name and source.session and source.kept is not None
        self._out.append(Keep() if wanted and source.keep(given) else Skip())

    # Messages --------------------------------------------------------------------------------------------------

    def _tell(self, peer: Name, message: Message) -> None:
        self._out.append(Tell(peer, message))

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

    def _compare_epochs(self, peer: Name, epoch: int) -> None:
        """A message of another epoch than ours: one of us does not know the newest view."""
        self._heard = max(self._heard, epoch)
        if self.view is not None and epoch < self.view.epoch:
            self._tell(peer, Outdated(self.view.epoch))

    def _outdated(self, peer: Name, epoch: int) -> None:
        self._heard = max(self._heard, epoch)
        if self.view is not None and epoch > self.view.epoch:
            self._lose_reader(peer)
            if peer == self._source.name:
                self._source.session = False
                self._source.hello_at = None  # the view will come, and a hello with it

    # Feeding others --------------------------------------------------------------------------------------------

    def _lose_reader(self, peer: Name) -> None:
        self._parked.pop(peer, None)
        if self._readers.remove(peer):
            self._out.append(Hush(peer))
        if self._reign is not None:
            self._reign.left(peer)

    def _hush_all(self) -> None:
        self._out += [Hush(name) for name in self._readers.clear()]

    def _reader_acked(self, peer: Name, durable: Ends, behind: dict[Name, Ends]) -> None:
        behind.pop(self.me, None)
        if self._readers.behind(peer) != behind.keys():
            self._quiet = False  # somebody has come or gone there
        if not self._readers.acked(peer, durable, behind) or self._reign is None:
            return
        progress, ready = self._reign.progress, self._reign.view.ready
        progress.acked(peer, durable)
        if peer in self._reign.candidates:
            self._quiet = False  # it may be near enough now
        for name, ends in behind.items():
            if name in ready:
                progress.acked(name, ends)

    def _answer_parked(self) -> None:
        for peer in list(self._parked):
            hello = self._parked[peer]
            if self._welcome(peer, hello):
                self._parked.pop(peer, None)

    def _welcome(self, peer: Name, hello: Hello) -> bool:
        """Answer a hello, if it can be answered now."""
        view = self.view
        if view is None or hello.epoch > view.epoch:
            self._heard = max(self._heard, hello.epoch)
            return False
        if hello.epoch < view.epoch:
            self._tell(peer, Outdated(view.epoch))
            return True
        ends = self._facts.ends
        if self._takeover() is None:
            return False  # our own log has not reached this epoch: we do not know where the older ones end
        same_line = any(row.history == view.history for row in hello.table)
        if self._reign is None and same_line and not ends.covers(hello.durable):
            return False  # it is ahead of us
        offer = divergence.answer(
            hello,
            cluster=view.cluster,
            epoch=view.epoch,
            table=self._facts.table,
            ends=ends,
            log_start=self._facts.log_start,
        )
        if (not hello.whole or offer.verdict == "reset") and not self._may_be_filled(view, peer):
            return False
        self._tell(peer, offer)
        if offer.verdict == "resume":
            self._readers.add(peer, hello.durable)
            self._out.append(Send(peer, offer.to))
            if self._reign is not None:
                self._reign.greet(peer, hello.durable, self._facts.durable)
        return True

    def _may_be_filled(self, view: View, peer: Name) -> bool:
        """A member that lost its store, or is to empty it, is filled only when no view can call it ready any more. A
        leader knows that when it leads: not before, for what it proposed in an earlier life may still be on its way,
        and not afterwards."""
        if self._reign is not None and peer in view.ready:
            self._reign.unwanted[peer] = "its store is lost"
        knows = self._reign is not None or view.leader != self.me
        return knows and peer not in view.ready and not self._proposals.name(peer)

    # Leading ---------------------------------------------------------------------------------------------------

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
            self._become(State.ACTIVE, "all that must answer have")
        elif self.state is State.RECOVERING and reign.progress.held:
            self._explain(
                f"{len(reign.view.ready)} of the {self._config.copies_min} members that must have a copy are ready "
                "(cluster.copies_min)"
            )
        asked = self._change_ready(reign)
        return min((at for at in (wake, asked, self._lease_until) if at is not None), default=None)

    def _takeover(self) -> Takeover | None:
        """Where the history of this epoch begins, if both of our logs have got there."""
        if self.view is not None:
            for row in self._facts.table:
                if row.history == self.view.history:
                    ends = self._facts.ends
                    return row if all(0 < row.first[log] <= ends[log] for log in Log) else None
        return None

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
        undecided = any(set(one.ready) - set(view.ready) for one in self._proposals.undecided)
        if wanted is view and not undecided:
            return None
        if wanted != view or (undecided and not self._proposals.awaited):
            self._propose(wanted, "; ".join(reasons) or "to know which view holds")
            reign.require(tuple(self._proposals.undecided))
        if wanted != view or undecided:
            return self._proposals.again_at()
        return None

    # Taking over -----------------------------------------------------------------------------------------------

    def _consider_leading(self) -> int | None:
        if not self._view_read or self._closing is not None:
            return None
        if self._config.provider == "external":
            self._await_promotion()
            return None
        view = self.view
        if self._view_gone or self._old is not None:
            return None
        if view is None:
            return self._consider_founding()
        if not self.view_holds:
            return self._await_view(view)
        if self._refilling and self._whole and set(view.ready) - self._succession.gone == {self.me}:
            self._refilling = False  # nobody else is left who has what it has
        if self.me not in view.ready or not self._whole or self.state is State.CATCHUP or self._refilling:
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

    def _await_promotion(self) -> None:
        """Nobody takes the lead by itself: say what is waited for."""
        view = self.view
        if self.state is not State.JOINING:
            return
        if view is None:
            self._explain("there is no leader yet: promote one member")
        elif view.leader == self.me:
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
        if self.me in view.ready and self._whole:
            self._explain(f"{words}, or for a promotion")
        else:
            self._explain(
                f"{words}: it may lack what was confirmed and cannot lead; ready: {', '.join(view.ready)}"
            )

    def _abdicate(self, view: View) -> int | None:
        """The view says that this member leads, but its store is lost: name another, which takes an epoch of its own."""
        heir = self._succession.heir(view)
        if heir is None:
            self._explain(
                "this member alone was ready, and its store is lost: bring the store back, or promote another that has "
                "most of it, with --accept-loss"
            )
            return None
        self._explain(f"its store is lost: {heir} is to lead")
        self._propose(view.led_by(heir, self._history()), "the store of the leader is lost")
        return self._proposals.again_at()

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
        cluster = self._cluster or self._entropy(16).hex()
        self._propose(
            View(cluster, epoch, self.me, (self.me,), self._history(), self._kept_revision(), accepted),
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

    # What was promised -----------------------------------------------------------------------------------------

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

    # A store that failed ---------------------------------------------------------------------------------------

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

    # Operators -------------------------------------------------------------------------------------------------

    def _asked(self, asked: Asked) -> None:
        before = len(self._out)
        match asked.command:
            case "promote":
                answer = self._promote(asked)
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
        if view is None or not self.view_holds:
            return self._promote_as_founder(asked)
        if self.me not in view.ready or not self._whole or self.state is State.CATCHUP:
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
        if asked.survey is None or asked.survey.revision != view.revision:
            words = (
                f"{self.me} is {self.state} and may lack what was confirmed; ready: {', '.join(view.ready)}"
            )
            return Answer(False, f"{words}. Try again: the view changed while the others were asked")
        stock = self._stock(view, asked.survey)
        no = stock.objection(accept_loss=asked.accept_loss, named=bool(asked.member))
        if no is not None:
            return Answer(False, f"{self.me} is {self.state} and {no}")
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
        reign.barred.add(member)
        if member not in reign.view.ready:
            return Answer(True, f"{member} is not ready: there is nothing to drop")
        reign.unwanted[member] = "an operator dropped it"
        return Answer(True, f"the cluster goes on without {member}; it comes back when it connects anew")

    def _refill(self) -> Answer:
        """Have the store of this member emptied and filled again: as soon as nobody counts on it any more."""
        view = self.view
        if view is None or view.leader == self.me or self._reign is not None:
            return Answer(False, f"{self.me} has nobody to be filled by: it is {self.state}, {self._why}")
        self._refilling = True
        self._step_back("its store is to be emptied, when the others go on without it")
        if self._source.turn_to(None):
            self._out.append(Dial(None))  # an offer that is on its way there was for a store that is full
        self._aim()
        return Answer(True, f"{self.me} leaves, empties its store and is filled again by the others")

    def _begin_refill(self) -> None:
        """The leader has answered a hello that spoke of an empty store, so it counts on this one no more, in no view
        that is kept or on its way: the store may go. The view that is known here may be older than that."""
        self._refilling = False
        self._begin_anew(Ends(), False)
        self._aim()

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


def _whose(event: Event) -> list[Name]:
    """Whose disks an acknowledgement is about; nobody's, if it is none."""
    if isinstance(event, PeerSaid) and isinstance(event.message, Acked):
        return [event.peer, *(name for name, _ in event.message.behind)]
    return []
