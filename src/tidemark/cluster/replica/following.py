"""A member that follows: whom it reads from, and what it keeps, cuts and acknowledges."""

from __future__ import annotations

from tidemark.cluster.mode import (
    Dial,
    Given,
    Keep,
    Reset,
    Rewind,
    Skip,
    State,
)
from tidemark.cluster.replica.feeding import Feeding
from tidemark.model.peers import (
    Acked,
    Ends,
    Hello,
    Log,
    Name,
    Offer,
    View,
)


class Following(Feeding):
    def _aim(self) -> None:
        """Turn to whom the view says that this member reads from."""
        view = self.view
        source: Name | None = None
        if view is not None and view.leader != self.me and self._reign is None:
            if self._refilling:
                source = view.leader
            elif self.me in view.ready:
                source = self._topology.source(view, self.me) if self._counts_on_us(view) else view.leader
            else:
                source = view.leader if self._source.copied else self._topology.copy_source(view, self.me)
        if self._source.turn_to(source):
            self._out.append(Dial(source))

    def _counts_on_us(self, view: View) -> bool:
        """Whether this view calls this member ready because of the store that it has. One that is not sound, lost, emptied
        or an older copy, is counted on only by views that its leader has made since it began to fill it: an older one may
        still be what is known here."""
        source = self._source
        refilled = source.vouched and view.revision > source.vouched_by
        return self._holds_all(view) or (self.me in view.ready and refilled)

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
                sound = self._is_sound(view)
                hello = Hello(self.me, view.epoch, self._cluster, durable, self._facts.table, sound)
            self._tell(self._source.name, hello)

    def _settle_readiness(self, view: View) -> None:
        if self._source.in_line and self._counts_on_us(view):
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
                epoch = view.epoch if self._is_sound(view) else 0
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

    def _begin_refill(self) -> None:
        """The leader has answered a hello that spoke of an empty store: it counts on this one no more, and asked for no
        view that does. The store may go. The view that is known here may be older than that."""
        self._refilling = False
        self._begin_anew(Ends(), False)
        self._aim()

    def _stop_refilling(self) -> None:
        """Keep the store after all. An offer that is on its way is for an empty one, so the link is made anew."""
        self._refilling = False
        if self._source.turn_to(None):
            self._out.append(Dial(None))
        self._aim()

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

    def _given(self, given: Given) -> None:
        """Keep what comes right behind our log, of our source in this epoch."""
        view, source = self.view, self._source
        if view is None or given.epoch != view.epoch:
            self._compare_epochs(given.peer, given.epoch)
            self._out.append(Skip())
            return
        wanted = given.peer == source.name and source.session and source.kept is not None
        self._out.append(Keep() if wanted and source.keep(given) else Skip())
