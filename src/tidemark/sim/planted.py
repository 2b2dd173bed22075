"""All bugs on purpose, of members and of fronts, by the names that `tidemark sim --plant` takes.

Invariant: a name is one bug.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

from tidemark.sim.cluster import planted as of_members
from tidemark.sim.fronts import planted as of_fronts

PLANTED = of_members.PLANTED | of_fronts.PLANTED
assert len(PLANTED) == len(of_members.PLANTED) + len(of_fronts.PLANTED)


@contextmanager
def planted(name: str) -> Iterator[None]:
    """The code is broken in this way, once, until the end. No name: it is as it is."""
    undo: list[tuple[Any, str, Any]] = []

    def set_(thing: Any, what: str, value: Any) -> None:
        undo.append((thing, what, vars(thing).get(what, undo)))
        setattr(thing, what, value)

    try:
        if name:
            PLANTED[name].plant(set_)
        yield
    finally:
        for thing, what, before in reversed(undo):
            if before is undo:  # it was inherited
                delattr(thing, what)
            else:
                setattr(thing, what, before)
