"""Who reads from whom: all that tells one replicating mode from another."""

from __future__ import annotations

from typing import Protocol

from tidemark.model.peers import Name, View


class Topology(Protocol):
    def source(self, view: View, member: Name) -> Name:
        """From whom a ready member that does not lead reads."""

    def copy_source(self, view: View, member: Name) -> Name:
        """From whom one that is not ready gets most of the log. The leader admits it in the end."""
