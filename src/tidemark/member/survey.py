"""What the other members say of their stores at this moment, asked before one of them is promoted: what they said when they
joined may be long out of date.

A generator: it yields whom to ask and is sent what they have said; its value is the `Survey`. They are asked again if the view
changes meanwhile or somebody new is heard of, but not for ever.
"""

from __future__ import annotations

from collections.abc import Callable, Generator, Mapping
from dataclasses import replace

from tidemark.cluster.mode import Survey, Unasked
from tidemark.member.facts import MemberFacts
from tidemark.member.telling import NotAnswered
from tidemark.model.peers import Name

SURVEYS_MAX = 3
"""How often the others are asked."""

Answers = Mapping[Name, MemberFacts | NotAnswered]


def survey(
    revision: Callable[[], int], others: Callable[[], set[Name]]
) -> Generator[set[Name], Answers, Survey]:
    """`revision`: of the view that is known now, 0 if none is; `others`: every other member that is known of now."""
    found: Answers = {}
    asked = Survey(0)
    for _ in range(SURVEYS_MAX):
        before = revision()
        found = yield others()
        asked = Survey(
            before,
            tuple(one.here() for one in found.values() if isinstance(one, MemberFacts)),
            tuple(
                Unasked(name, str(one), one.there)
                for name, one in found.items()
                if isinstance(one, NotAnswered)
            ),
        )
        if revision() == before and others() <= set(found):
            break
    unheard = sorted(others() - set(found))
    return replace(
        asked, unasked=(*asked.unasked, *(Unasked(name, "it was heard of just now") for name in unheard))
    )
