"""Members and fronts of a trial: where they listen, and how they are seen."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Literal

from tidemark.model.wiring import MAIN


@dataclass(frozen=True, slots=True)
class Place:
    """Where a member listens."""

    amqp: str
    admin: str
    peer: str = ""
    """Empty: it is a front."""
    group: str = MAIN


@dataclass(slots=True)
class Seen:
    """A member or a front as it is now: what the system says of its process, and what it says of itself."""

    name: str
    place: Place
    pid: int | None
    process: Literal["running", "frozen", "gone"]
    status: dict[str, Any]
    """Empty when it does not answer."""
    left_out: bool = False
    """It says that it is ready, but has not heard yet that the leader went on without it."""

    @property
    def state(self) -> str:
        """Its own word for it; of one that does not answer, why."""
        if self.left_out:
            return "left out"
        if self.process == "gone":
            return "down"
        if self.process == "frozen":
            return "frozen"
        return str(self.status.get("state", "silent"))

    @property
    def is_front(self) -> bool:
        return not self.place.peer

    def end(self, what: str = "durable") -> int | None:
        """How far its journal goes."""
        ends = self.status.get(what)
        return int(ends["journal"]) if isinstance(ends, dict) and "journal" in ends else None


def member_name(node: str, group: str) -> str:
    """The name of a member on a node; of a cluster of one group it is the node's."""
    return f"{group}-{node}" if group else node
