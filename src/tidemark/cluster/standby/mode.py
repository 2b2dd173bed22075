"""Hot standby: the leader serves clients and feeds every other member.

publisher ─► leader ─► backup          a publish is confirmed when all ready backups have it on disk
consumer ◄──   │  └──► backup          and then a consumer may see it
               └────► catching up

"""

from __future__ import annotations

from collections.abc import Callable

from tidemark.cluster.config import ClusterConfig
from tidemark.cluster.replica import LogFacts, Replica
from tidemark.model.peers import Name, View


class Star:
    """Everybody reads from the leader."""

    def source(self, view: View, member: Name) -> Name:  # noqa: ARG002
        return view.leader

    def copy_source(self, view: View, member: Name) -> Name:  # noqa: ARG002
        return view.leader


class StandbyMode(Replica):
    def __init__(
        self, me: Name, config: ClusterConfig, entropy: Callable[[int], bytes], facts: LogFacts
    ) -> None:
        super().__init__(me, config, entropy, facts, Star())
