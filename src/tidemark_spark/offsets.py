"""Where a query stands in a stream, as Spark keeps it: an offset.

    {"stream": "orders", "id": 7, "group": "nightly", "query": "1f0c…", "shards": {"0": ["<history>", 900], …},
     "pin": {"name": "spark.nightly.1f0c….77ab…", "sequence": 900}}

An offset says up to where each shard has been read, of which pinned snapshot that is a part, and whose work it is
(`group`: the consumer whose mark moves; `query`: made up when the query begins, it tells its pins from those of another
query with the same group). `id` is the stream's number, which another stream of the same name does not have.
While the sequences are below the pin's, the next batch goes on in the same pin; at the pin's sequence the query
has seen one whole snapshot: a boundary.

Spark does not keep the offset at which a query begins (`initial`), and asks for it again after a restart, when "latest"
is another place. So the end of a batch says where it really begins, if that is not the end of the batch before (`origin`).
When there is nothing to read yet, Spark runs a first batch that ends where the query begins: it is empty.

Spark compares offsets as texts.

Invariant: the same offset is always the same text; and what a batch holds is told by its two offsets alone.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from tidemark_spark.errors import OffsetForeign

Shards = dict[int, tuple[str, int]]
"""Shard → (history, sequence): everything up to that sequence is behind us."""


@dataclass(frozen=True, slots=True)
class PinRef:
    """A pinned snapshot of the stream: its name, and the sequence at which it shows the stream."""

    name: str
    sequence: int


@dataclass(frozen=True, slots=True)
class Offset:
    stream: str
    id: int
    group: str
    shards: Shards
    pin: PinRef | None = None
    initial: bool = False
    origin: Shards | None = None
    query: str = ""

    @property
    def sequence(self) -> int:
        """Everything up to here is behind us, in all shards."""
        return min((sequence for _, sequence in self.shards.values()), default=0)

    @property
    def history(self) -> str:
        """The history of that sequence."""
        return min(self.shards.values(), key=lambda place: place[1], default=("", 0))[0]

    @property
    def is_boundary(self) -> bool:
        """Whether it is the end of a whole snapshot."""
        return self.pin is None or all(at == self.pin.sequence for _, at in self.shards.values())

    @property
    def unfinished(self) -> PinRef | None:
        """The pin of which a part is still to be read; None when there is none."""
        return None if self.is_boundary else self.pin

    def to_json(self) -> dict[str, Any]:
        """As Spark keeps it: always in the same order."""
        found: dict[str, Any] = {"stream": self.stream, "id": self.id, "group": self.group}
        if self.query:
            found["query"] = self.query
        if self.pin is not None:
            found["pin"] = {"name": self.pin.name, "sequence": self.pin.sequence}
        found["shards"] = _shards_to_json(self.shards)
        if self.initial:
            found["initial"] = True
        if self.origin is not None:
            found["origin"] = _shards_to_json(self.origin)
        return found

    @classmethod
    def from_json(cls, given: Mapping[str, Any] | str) -> Offset:
        """Raises OffsetForeign when it is none of ours."""
        try:
            facts = json.loads(given) if isinstance(given, str) else given
            pin = facts.get("pin")
            return cls(
                stream=_text(facts["stream"]),
                id=int(facts["id"]),
                group=_text(facts["group"]),
                shards=_shards_from_json(facts["shards"]),
                pin=None if pin is None else PinRef(_text(pin["name"]), int(pin["sequence"])),
                initial=bool(facts.get("initial")),
                origin=None if facts.get("origin") is None else _shards_from_json(facts["origin"]),
                query=_text(facts.get("query", "")),
            )
        except (KeyError, TypeError, ValueError, AttributeError):
            raise OffsetForeign(problem=f"{str(given)[:200]} is no offset of a stream") from None


def begin_of(start: Offset, end: Offset) -> Shards:
    """Where each shard of `end` is to be read from, in the batch between the two.

    Raises:
        OffsetForeign: they are not of one stream, or the start is not known.
    """
    if start.stream != end.stream:
        raise OffsetForeign(problem=f"it is of stream '{start.stream}', not '{end.stream}'")
    if end.origin is not None:
        return spread(end.origin, len(end.shards))
    if start.initial and not end.initial:
        raise OffsetForeign(problem="the first batch does not say where it begins")
    return spread(start.shards, len(end.shards))


def spread(shards: Shards, count: int) -> Shards:
    """The same place for another number of shards: when a stream has grown, each shard is where the hindmost was."""
    if set(shards) == set(range(count)):
        return shards
    hindmost = min(shards.values(), key=lambda place: place[1], default=("", 0))
    return dict.fromkeys(range(count), hindmost)


def everywhere(history: str, sequence: int, count: int) -> Shards:
    """One place in all shards."""
    return dict.fromkeys(range(count), (history, sequence))


def _shards_to_json(shards: Shards) -> dict[str, list[Any]]:
    return {str(shard): [history, sequence] for shard, (history, sequence) in sorted(shards.items())}


def _shards_from_json(given: Mapping[str, Any]) -> Shards:
    return {int(shard): (_text(history), int(sequence)) for shard, (history, sequence) in given.items()}


def _text(value: Any) -> str:
    if not isinstance(value, str):
        raise TypeError
    return value
