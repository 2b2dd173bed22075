"""Who is in the cluster and who leads: `etcd.py` keeps it in an etcd, outside the members; with `external.py` they keep it
themselves, and somebody else says who leads."""

from __future__ import annotations

from typing import Protocol

from tidemark.model.peers import View


class Membership(Protocol):
    """Where members and views are kept."""

    def start(self) -> None: ...

    def propose(self, view: View) -> None:
        """Write this view if the one that it was derived from is still there. An event answers, later."""

    async def close(self) -> None: ...
