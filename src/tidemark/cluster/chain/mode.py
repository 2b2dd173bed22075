"""Chain replication: publishers at the head, readers at the tails.

    publisher ─► head ─► … ─► tail ─► reader        what a reader sees is on every disk of the chain
                  ▲            │
                  └── acked ◄──┘                    each member adds how far those behind it are

The order is that of the view's ready members, the leader first. When one is lost the view is written without it and
its neighbours join hands. The last `cluster.chain_tails` members are all fed by the one before them. One that is not
ready copies from the last of the chain, so that the head is not burdened, and then asks the head to be let in.
"""

from __future__ import annotations

from collections.abc import Callable

from tidemark.cluster.config import ClusterConfig
from tidemark.cluster.replica import LogFacts, Replica
from tidemark.model.peers import Name, View


def tails_from(ready: int, tails: int) -> int:
    """The place of the first member that feeds nobody, in a chain of so many."""
    return max(1, ready - tails)


class Line:
    """Each reads from the one before it."""

    def __init__(self, tails: int) -> None:
        self._tails = tails

    def source(self, view: View, member: Name) -> Name:
        place = view.ready.index(member)
        return view.ready[min(place, tails_from(len(view.ready), self._tails)) - 1]

    def copy_source(self, view: View, member: Name) -> Name:
        return [name for name in view.ready if name != member][-1]


class ChainMode(Replica):
    def __init__(
        self, me: Name, config: ClusterConfig, entropy: Callable[[int], bytes], facts: LogFacts
    ) -> None:
        super().__init__(me, config, entropy, facts, Line(config.chain_tails))
