"""A member that feeds others: it answers their hellos, and hears how far they are.

Hellos that cannot be answered yet, because this member does not know the epoch or is itself not that far, are parked
and looked at again after every event.
"""

from __future__ import annotations

from dataclasses import replace

from tidemark.cluster import divergence
from tidemark.cluster.mode import (
    Hush,
    Send,
)
from tidemark.cluster.replica.core import Core
from tidemark.model.peers import (
    Ends,
    Hello,
    Name,
    Outdated,
    View,
)


class Feeding(Core):
    def _lose_reader(self, peer: Name) -> None:
        self._parked.pop(peer, None)
        if self._readers.remove(peer):
            self._out.append(Hush(peer))
        if self._reign is not None:
            self._reign.now = self._now
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
        if self._reign is None and hello.cluster not in ("", view.cluster):
            return False  # perhaps it is our store that is the wrong one: only who leads knows
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
        if not hello.whole and offer.verdict == "resume" and self._reign is not None:
            offer = replace(offer, revision=view.revision)
        self._tell(peer, offer)
        if offer.verdict == "resume":
            self._readers.add(peer, hello.durable)
            self._out.append(Send(peer, offer.to))
            if self._reign is not None:
                self._reign.greet(peer, hello.durable, self._facts.durable)
        return True

    def _may_be_filled(self, view: View, peer: Name) -> bool:
        """A member that lost its store, or is to empty it, is filled only when no view can call it ready any more. A
        leader knows that while it leads: not before, for what it proposed in an earlier life may still be on its way,
        and not when the view by which it leads may not be the one that is kept."""
        if self._reign is not None and peer in view.ready:
            self._reign.unwanted[peer] = "its store is lost"
        knows = self.view_holds and not self._fenced if self._reign is not None else view.leader != self.me
        return knows and peer not in view.ready and not self._proposals.name(peer)
