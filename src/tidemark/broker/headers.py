"""Which bindings of a headers exchange match the headers of a message.

A binding's arguments are the pattern. `x-match` says how to read it: `all` (the default) wants every header,
`any` at least one; both leave out names that begin with `x-`, which `all-with-x` and `any-with-x` look at
too. A value must be equal and of the same type; None in the pattern asks only that the header is there.

Invariant: `all` of an empty pattern matches everything, `any` of it nothing.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from tidemark.broker.arguments import type_name
from tidemark.errors import PreconditionFailed
from tidemark.model.wiring import Arguments

RULES = ("all", "any", "all-with-x", "any-with-x")


@dataclass(frozen=True, slots=True)
class HeadersPattern:
    every: bool
    wanted: tuple[tuple[str, Any], ...]

    def matches(self, headers: dict[str, Any]) -> bool:
        hits = (_hit(value, headers, name) for name, value in self.wanted)
        return all(hits) if self.every else any(hits)


def headers_pattern(arguments: Arguments) -> HeadersPattern:
    """The pattern that these binding arguments mean.

    Raises:
        PreconditionFailed: `x-match` is none of `RULES`.
    """
    rule = arguments.get("x-match", "all")
    if not isinstance(rule, str):
        raise PreconditionFailed(
            reason=f"Invalid x-match field type {type_name(rule)} (value {rule!r}); expected longstr"
        )
    if rule not in RULES:
        raise PreconditionFailed(
            reason=f"Invalid x-match field value {rule!r}; expected all, any, all-with-x, or any-with-x"
        )
    with_x = rule.endswith("-with-x")
    wanted = tuple(
        (name, value)
        for name, value in arguments.items()
        if name != "x-match" and (with_x or not name.startswith("x-"))
    )
    return HeadersPattern(every=rule.startswith("all"), wanted=wanted)


def _hit(value: Any, headers: dict[str, Any], name: str) -> bool:
    if name not in headers:
        return False
    there = headers[name]
    return value is None or (type(there) is type(value) and bool(there == value))
