"""What one member tells another about itself, and the bytes that say it: a JSON object behind its length.

Invariant: what `encode_told` writes `decode_told` reads; anything else is a `ValueError`.
"""

from __future__ import annotations

import json
import struct
from dataclasses import dataclass, replace
from typing import Any

from tidemark.member.facts import MemberFacts, decode_member, decode_view, encode_member, encode_view
from tidemark.model.peers import View

ANSWER_S = 0.5
"""Longest that one member is waited for: so much longer takes a promotion, or going on without a member that hangs."""
COUNTER_BITS = 32
TOLD_BYTES_MAX = 1 << 18
MEMBERS_MAX = 256
HEAD = struct.Struct("<I")


class NotAnswered(Exception):
    """A member could not be asked, or did not answer."""

    def __init__(self, why: str, *, there: bool) -> None:
        """`there`: its process is."""
        super().__init__(why)
        self.there = there


@dataclass(frozen=True, slots=True)
class Told:
    """What one member tells another."""

    member: MemberFacts
    view: View | None
    others: tuple[MemberFacts, ...] = ()
    """Members that it has heard of, so that a new one needs to know only one. Not what their stores hold."""


def encode_told(told: Told) -> bytes:
    words = {
        "name": told.member.name,
        "member": json.loads(encode_member(told.member)),
        "view": None if told.view is None else view_facts(told.view),
        "others": {
            one.name: json.loads(encode_member(replace(one, table=()))) for one in told.others[:MEMBERS_MAX]
        },
    }
    body = json.dumps(words).encode()
    return HEAD.pack(len(body)) + body


def decode_told(body: bytes) -> Told:
    """Raises ValueError: this is not what a member tells."""
    try:
        found = json.loads(body)
    except RecursionError:
        raise ValueError("it is nested too deeply") from None
    if not isinstance(found, dict):
        raise ValueError("it must be an object")
    name, others = found.get("name"), found.get("others", {})
    if not isinstance(name, str) or not isinstance(others, dict) or len(others) > MEMBERS_MAX:
        raise ValueError("it must have a name and other members")
    view = found.get("view")
    return Told(
        decode_member(name, json.dumps(found.get("member"))),
        None if view is None else view_of(view),
        tuple(decode_member(other, json.dumps(facts)) for other, facts in others.items()),
    )


def view_facts(view: View) -> dict[str, Any]:
    facts: dict[str, Any] = json.loads(encode_view(view))
    return facts | {"revision": view.revision}


def view_of(facts: Any) -> View:
    view = decode_view(json.dumps(facts), 0)
    revision = facts.get("revision")
    if type(revision) is not int or revision >> COUNTER_BITS != view.epoch:
        raise ValueError(f"revision {revision!r} is not of epoch {view.epoch}")
    return replace(view, revision=revision)
