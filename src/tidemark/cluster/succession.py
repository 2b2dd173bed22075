"""Who leads next: who is there, whether the leader is lost, whose turn it is then, and who founds the cluster.

Leases and addresses only say when to look. Whoever is mistaken here proposes a view in vain or waits for too long:
which view holds is decided by compare-and-swap, and who may propose one by the view before.

The ready members have their turns in the order of the view, some time after one another, so that mostly only one of them
proposes. A cluster is founded by the one with most in its store, when all are there and none of their stores has ever
belonged to one.

Invariant: nobody is here and gone.
"""

from __future__ import annotations

from collections.abc import Iterable

from tidemark.cluster.config import ClusterConfig
from tidemark.cluster.mode import MemberHere
from tidemark.model.lines import Held, best_first
from tidemark.model.peers import Name, View


class Succession:
    def __init__(self, me: Name, config: ClusterConfig) -> None:
        self.here: dict[Name, MemberHere] = {}
        self.gone: set[Name] = set()
        """Their leases have ended."""
        self.refused = False
        """Nothing listens at the leader's address."""
        self._me = me
        self._config = config
        self._missing_since = 0
        self._turn_at: int | None = None

    def came(self, member: MemberHere) -> None:
        self.gone.discard(member.member)
        self.here[member.member] = member

    def went(self, member: Name) -> None:
        self.gone.add(member)
        self.here.pop(member, None)

    def new_epoch(self, now: int) -> None:
        self._turn_at = None
        self.refused = False
        self._missing_since = now

    # The leader is lost ----------------------------------------------------------------------------------------

    def why_lost(self, view: View, now: int, *, talking: bool) -> str | None:
        """Why the leader of this view leads no more, as far as can be seen; `talking`: it sends us its log."""
        leader = view.leader
        if leader == self._me:
            return "it restarted, and leads again in an epoch of its own"
        if leader in self.gone:
            return f"the lease of {leader} has ended"
        if self.refused:
            return f"nothing listens at the address of {leader}"
        missing = leader not in self.here and not talking
        if missing and now >= self._missing_since + self._config.lease_ms:
            return f"{leader} is not there"
        return None

    def not_lost(self, view: View) -> int | None:
        """The leader leads on. When to look again, if nobody has seen it yet."""
        self._turn_at = None
        if view.leader not in self.here and view.leader not in self.gone:
            return self._missing_since + self._config.lease_ms
        return None

    def turn_at(self, view: View, now: int) -> int:
        """The leader is lost: when it is this member's turn."""
        if self._turn_at is None:
            before = view.ready[: view.ready.index(self._me)]
            rank = sum(1 for name in before if name != view.leader and name not in self.gone)
            self._turn_at = now + rank * self._config.takeover_stagger_ms
        return self._turn_at

    def heir(self, view: View) -> Name | None:
        """Who is to lead instead of this member; None: nobody else is ready."""

        def doubt(name: Name) -> int:
            one = self.here.get(name)
            if one is None:
                return 1
            return 0 if one.epoch >= view.settled else 2  # its store may be lost as well

        return min((name for name in view.ready if name != self._me), key=doubt, default=None)

    # There is no view yet --------------------------------------------------------------------------------------

    def others(self) -> list[MemberHere]:
        """Those that are here, of the others."""
        return [one for name, one in sorted(self.here.items()) if name != self._me]

    def owners(self) -> list[Name]:
        """Whose store belongs to a cluster, of the others."""
        return sorted(name for name, one in self.here.items() if one.cluster)

    def founds(self, mine: MemberHere) -> tuple[bool, str]:
        """Whether this member proposes the very first view, and why, or what it waits for."""
        if wrong := outnumbered(mine, self.others()):
            return False, f"there is no view, and {wrong}"
        here = {**self.here, self._me: mine}
        owned = sorted(name for name, one in here.items() if one.cluster)
        if owned:
            best = best_first([here[name] for name in sorted(here)], _held)[0]
            return False, (
                f"there is no view, but the stores of {', '.join(owned)} belong to a cluster: bring etcd back, or "
                f"promote {best.member}, which has the best store of those that are here"
            )
        if len(here) < self._config.size:
            return False, f"{len(here)} of {self._config.size} members are here"
        first = max(sorted(here), key=lambda name: _size(here[name]))
        if first != self._me:
            return False, f"{first} founds the cluster"
        return True, "all members are here"


def outnumbered(mine: MemberHere, others: Iterable[MemberHere], kept: str = "") -> str:
    """Why the store of this member may be the wrong one, in words: as many members or more belong to another cluster. Empty:
    they do not. `kept`: the cluster of the view that it knows, to which it belongs if its store is empty."""
    clusters: dict[str, list[Name]] = {}
    for one in others:
        if one.cluster:
            clusters.setdefault(one.cluster, []).append(one.member)
    own = mine.cluster or kept
    ours = clusters.pop(own, []) if own else []
    weight = len(ours) + 1 if mine.cluster else len(ours)
    if not own and len(clusters) > 1:
        own, ours = clusters.popitem()
        words = f"{', '.join(ours)} {_belong(ours)} to cluster {own}"
    else:
        words = f"it belongs to cluster {own}"
    cluster, names = max(clusters.items(), key=lambda item: len(item[1]), default=("", []))
    if not own or not names or len(names) < weight:
        return ""
    return (
        f"{words}, and {', '.join(names)} {_belong(names)} to {cluster}: start whichever is wrong with the right data "
        "directory, or with an empty one"
    )


def _belong(names: list[Name]) -> str:
    return "belong" if len(names) > 1 else "belongs"


def _held(one: MemberHere) -> Held:
    return Held(one.epoch, one.durable, one.table)


def _size(one: MemberHere) -> tuple[int, int]:
    return one.durable.journal, one.durable.catalog
