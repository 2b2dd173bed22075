"""What is kept about members and views, as JSON, and who is told when it changes.

Invariant: what `encode_*` writes `decode_*` reads; anything else is a `ValueError` that says what is wrong with it.
"""

from __future__ import annotations

import json
from dataclasses import dataclass, field
from typing import Any, Protocol

from tidemark.cluster.mode import MemberHere
from tidemark.model.peers import Ends, Name, Takeover, View


@dataclass(frozen=True, slots=True)
class MemberFacts:
    """What a member says about itself when it joins."""

    name: Name
    peer: str
    """Where it listens for members, HOST:PORT; likewise for the others."""
    amqp: str = ""
    admin: str = ""
    cluster: str = ""
    """UUID of the cluster that its store belongs to; empty if to none."""
    durable: Ends = field(default_factory=Ends)
    epoch: int = 0
    """In which its store was whole and in line with a leader, the last time; 0 if never."""
    amqps: str = ""
    """Where clients reach it over TLS."""
    table: tuple[Takeover, ...] = ()
    """The histories that its store holds, newest first."""
    failed: bool = False
    """Its store has failed: it cannot lead before it is started again."""

    def here(self) -> MemberHere:
        """What of it a mode wants to know."""
        return MemberHere(self.name, self.cluster, self.durable, self.epoch, self.table, self.failed)


class MembershipEvents(Protocol):
    """Who is told: the shell of a `Member`."""

    def view_changed(self, view: View | None) -> None: ...

    def proposal_failed(self, view: View) -> None: ...

    def member_here(self, facts: MemberFacts) -> None:
        """It has come, or says something new about itself. We ourselves, too."""

    def member_gone(self, name: Name) -> None: ...

    def lease(self, until_ticks_ms: int) -> None: ...


def encode_view(view: View) -> str:
    return json.dumps(
        {
            "cluster": view.cluster,
            "epoch": view.epoch,
            "leader": view.leader,
            "ready": list(view.ready),
            "history": view.history,
            "accepted": view.accepted,
            "settled": view.settled,
        }
    )


def decode_view(text: str | bytes, revision: int) -> View:
    """Raises ValueError: this is no view."""
    found = _object(text, "view")
    cluster, leader, history = (_text(found, key) for key in ("cluster", "leader", "history"))
    epoch, ready = found.get("epoch"), found.get("ready")
    if not isinstance(epoch, int) or epoch < 1:
        raise ValueError(f"a view's epoch must be a number from 1, not {epoch!r}")
    if not isinstance(ready, list) or not all(isinstance(name, str) for name in ready):
        raise ValueError("a view's ready must be a list of names")
    if leader not in ready or len(set(ready)) != len(ready):
        raise ValueError(f"a view's ready must have each name once and its leader {leader!r}, not {ready!r}")
    accepted, settled = found.get("accepted", 0), found.get("settled", 0)
    for key, value in (("accepted", accepted), ("settled", settled)):
        if type(value) is not int or not 0 <= value <= epoch:
            raise ValueError(f"a view's {key} must be one of its epochs, not {value!r}")
    return View(cluster, epoch, leader, tuple(ready), history, revision, accepted, settled)


def encode_member(facts: MemberFacts) -> str:
    return json.dumps(
        {
            "peer": facts.peer,
            "amqp": facts.amqp,
            "admin": facts.admin,
            "cluster": facts.cluster,
            "durable": [facts.durable.catalog, facts.durable.journal],
            "epoch": facts.epoch,
            "amqps": facts.amqps,
            "table": [[row.history, row.first.catalog, row.first.journal] for row in facts.table],
            "failed": facts.failed,
        }
    )


def decode_member(name: Name, text: str | bytes) -> MemberFacts:
    """Raises ValueError: this is no member."""
    found = _object(text, "member")
    durable = found.get("durable", [0, 0])
    if not isinstance(durable, list) or [type(end) for end in durable] != [int, int]:
        raise ValueError(f"a member's durable must be two sequences, not {durable!r}")
    epoch = found.get("epoch", 0)
    if type(epoch) is not int or epoch < 0:
        raise ValueError(f"a member's epoch must be a number, not {epoch!r}")
    rows, failed = found.get("table", []), found.get("failed", False)
    if not isinstance(rows, list) or not all(_is_row(row) for row in rows):
        raise ValueError(f"a member's table must have a history and two sequences in each row, not {rows!r}")
    if type(failed) is not bool:
        raise ValueError(f"a member's failed must be true or false, not {failed!r}")
    table = tuple(Takeover(history, Ends(catalog, journal)) for history, catalog, journal in rows)
    peer, amqp, admin, cluster, amqps = (
        _text(found, key) for key in ("peer", "amqp", "admin", "cluster", "amqps")
    )
    return MemberFacts(name, peer, amqp, admin, cluster, Ends(*durable), epoch, amqps, table, failed)


def _is_row(row: object) -> bool:
    return isinstance(row, list) and [type(one) for one in row] == [str, int, int]


def _object(text: str | bytes, what: str) -> dict[str, Any]:
    found = json.loads(text)
    if not isinstance(found, dict):
        raise ValueError(f"a {what} must be an object, not {found!r}")
    return found


def _text(found: dict[str, Any], key: str) -> str:
    value = found.get(key, "")
    if not isinstance(value, str):
        raise ValueError(f"{key} must be text, not {value!r}")
    return value
