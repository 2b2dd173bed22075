"""Whether the member that is asked leads, and who does if not: in the headers of every answer to somebody who is logged in.

A change is made where it is confirmed, so whoever asks another member must learn where that is before they are refused.
The page shows it with the first answer that it gets; programs and balancers need not ask for it.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING
from urllib.parse import quote

from tidemark.runtime.server import Server

if TYPE_CHECKING:
    from tidemark.runtime.member_server import MemberServer


@dataclass(frozen=True, slots=True)
class Standing:
    name: str
    state: str
    """As the cluster calls it: `active`, `ready`, `joining` …; `alone`: there is no cluster."""
    leads: bool
    """Whether changes can be made here."""
    leader: str | None
    """None: nobody is known to lead."""
    leader_admin: str
    """Where its page and its API are, HOST:PORT; empty if that is not known."""

    def headers(self) -> dict[str, str]:
        # Names are words, but of any alphabet.
        found = {"X-Tidemark-Member": quote(self.name), "X-Tidemark-State": self.state}
        if self.leader is not None:
            found["X-Tidemark-Leader"] = quote(self.leader)
        if self.leader_admin:
            found["X-Tidemark-Leader-Admin"] = self.leader_admin
        return found

    def refusal(self) -> str:
        """Why a change is not made here, and where it is."""
        if self.leader is None:
            return f"this is {self.name}, which is {self.state}: no member leads now; try again"
        where = f" at {self.leader_admin}" if self.leader_admin else ""
        return f"this is {self.name}, which is {self.state}: {self.leader} leads; ask it{where}"


def standing(server: Server) -> Standing:
    name = server.config.node.name
    if server.member is None:
        return Standing(name, "alone", True, name, "")
    member = server.member
    # One that was told to lead and may not yet is nobody to be sent to.
    leader = name if member.serving else member.leader if member.leader != name else None
    facts = as_member(server).facts_of(leader) if leader is not None else None
    admin = facts.admin if facts is not None else ""
    return Standing(name, member.mode.state, member.serving, leader, admin)


def as_member(server: Server) -> MemberServer:
    # It is imported only where it is used.
    from tidemark.runtime.member_server import MemberServer

    assert isinstance(server, MemberServer)
    return server
