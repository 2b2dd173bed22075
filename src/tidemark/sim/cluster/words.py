"""What is told of a run, in the words of the log: a fact is a word, a view is short, and nothing looks like Python."""

from __future__ import annotations

import json

from tidemark.cluster.mode import Answer
from tidemark.member.telling import COUNTER_BITS
from tidemark.model.peers import Ends, View


def worded(fact: object) -> object:
    """What stands for a fact in a sentence; numbers and text stay what they are."""
    match fact:
        case View():
            number = fact.revision & ((1 << COUNTER_BITS) - 1)
            accepted = f", a loss accepted in epoch {fact.accepted}" if fact.accepted else ""
            return f"view {number}: epoch {fact.epoch}, {fact.leader} leads, ready {' '.join(fact.ready)}{accepted}"
        case Ends(catalog, journal):
            return f"catalog {catalog}, journal {journal}"
        case Answer(done, text):
            return text if done else f"no: {text}"
        case dict():
            # As in the log: two spaces before the facts of an event.
            return "".join(f" {name}={_word(value)}" for name, value in fact.items())
        case (str(source), str(target)) if isinstance(fact, tuple):
            return f"{source} to {target}"
        case list() | tuple():
            return ", ".join(str(worded(one)) for one in fact)
    return fact


def _word(fact: object) -> str:
    text = str(worded(fact)).strip()
    if text and all(c.isprintable() and c not in ' "=' for c in text):
        return text
    return json.dumps(text, ensure_ascii=not text.isprintable())
