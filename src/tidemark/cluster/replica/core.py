"""The state of a member, and what every part of it may say.

Invariant: `_reign` is there exactly when this member leads.
"""

from __future__ import annotations

from collections.abc import Callable, Collection
from typing import Protocol

from tidemark.cluster.config import ClusterConfig
from tidemark.cluster.mode import (
    Became,
    Belong,
    Effect,
    MemberHere,
    Quit,
    State,
    Tell,
)
from tidemark.cluster.proposals import Proposals
from tidemark.cluster.readers import Readers
from tidemark.cluster.reign import Reign
from tidemark.cluster.source import Source
from tidemark.cluster.states import legal
from tidemark.cluster.succession import Succession
from tidemark.cluster.topology import Topology
from tidemark.model.peers import (
    Ends,
    Hello,
    Log,
    Message,
    Name,
    Outdated,
    Takeover,
    View,
)


class LogFacts(Protocol):
    """What the machine may know of the local logs. Always as they are now."""

    @property
    def cluster(self) -> str: ...
    @property
    def epoch(self) -> int: ...
    @property
    def founding(self) -> Collection[str]:
        """The histories by which this store has tried to found a cluster, if it belongs to none."""

    @property
    def ends(self) -> Ends: ...
    @property
    def durable(self) -> Ends: ...
    @property
    def table(self) -> tuple[Takeover, ...]: ...
    def log_start(self, log: Log) -> int: ...


class Core:
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

    def _learn_store(self) -> None:
        if not self._known:
            self._known = True
            self._cluster = self._facts.cluster
            self._whole = bool(self._cluster) and self._facts.epoch > 0

    def _is_copy(self, view: View) -> bool:
        """Whether this store is an older copy, put in the place of the one that this view calls ready."""
        return self._whole and self.me in view.ready and self._facts.epoch < view.settled

    def _is_sound(self, view: View) -> bool:
        """Whether this store was whole when its member was ready last."""
        return self._whole and not self._is_copy(view)

    def _holds_all(self, view: View) -> bool:
        """Whether this view calls this member ready because of the store that it has."""
        return self.me in view.ready and self._is_sound(view)

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

    def _tell(self, peer: Name, message: Message) -> None:
        self._out.append(Tell(peer, message))

    def _compare_epochs(self, peer: Name, epoch: int) -> None:
        """A message of another epoch than ours: one of us does not know the newest view."""
        self._heard = max(self._heard, epoch)
        if self.view is not None and epoch < self.view.epoch:
            self._tell(peer, Outdated(self.view.epoch))

    def _hear_of(self, member: MemberHere) -> None:
        """There was a view of the epoch in which the store of a member was whole."""
        if self._cluster and member.cluster == self._cluster:
            self._heard = max(self._heard, member.epoch)

    @property
    def view_holds(self) -> bool:
        """Whether the view that is kept is the newest that this member has heard of."""
        return self.view is not None and not self._view_gone and self._heard <= self.view.epoch

    def _propose(self, view: View, why: str) -> None:
        """Ask for another view. Until its answer comes, or is overdue, there is no second question."""
        propose = self._proposals.make(view, why, self.view, self._now)
        if propose is not None:
            self._out.append(propose)

    def _history(self) -> str:
        return self._entropy(16).hex()

    def _takeover(self) -> Takeover | None:
        """Where the history of this epoch begins, if both of our logs have got there."""
        if self.view is not None:
            for row in self._facts.table:
                if row.history == self.view.history:
                    ends = self._facts.ends
                    return row if all(0 < row.first[log] <= ends[log] for log in Log) else None
        return None
