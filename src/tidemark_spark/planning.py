"""How a read is divided into tasks, and what of the query's filters the broker can take over.

What is to be read is, for each shard, a range of sequences. Shards with the same range are read together, and a
small read is one task, for a task costs more than ten thousand rows. A large one is divided: first by shards,
in neighbouring groups, then by ranges of sequences (the broker says where to cut so that the pieces are equal).

Invariant: the slices of all tasks together hold each (shard, sequence) of the read exactly once.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from typing import Any, NamedTuple, Protocol

from tidemark.model.keys import slot_of
from tidemark_spark.offsets import Shards

TASK_ROWS_SMALL = 20_000
"""So many sequences are not worth a second task, nor a look at how many rows there are among them."""
TASK_ROWS = 100_000
TASK_BYTES = 32 << 20
"""What one task should have at least before there are more of them, unless the user says how many."""
SLOTS = 65_536


class Slice(NamedTuple):
    """Rows with after < sequence <= until, of some shards (None: all)."""

    shards: tuple[int, ...] | None
    after: int
    until: int


Task = tuple[Slice, ...]
"""What one task reads, one slice behind the other."""


class Piece(Protocol):
    """What lies behind the piece before it, up to `until`."""

    @property
    def until(self) -> int: ...
    @property
    def rows(self) -> int: ...
    @property
    def bytes(self) -> int: ...


class Cutter(Protocol):
    """Somebody who can say where to cut: the broker."""

    def __call__(
        self,
        part: Slice,
        *,
        rows: int | None = None,
        bytes: int | None = None,
        parts: int | None = None,
        limit: int | None = None,
    ) -> Sequence[Piece]:
        """Consecutive pieces of a slice."""
        ...


@dataclass(frozen=True, slots=True)
class Limits:
    """What the user said about tasks; None: nothing. `cores` is how many tasks there should be by default."""

    least: int | None = None
    most: int | None = None
    rows: int | None = None
    cores: int = 2


def plan(begin: Shards, end: Shards, limits: Limits, cut: Cutter) -> list[Task]:
    """The tasks that read from `begin` to `end`; none when there is nothing between them."""
    slices = _slices(begin, end)
    if not slices:
        return []
    if limits.rows is not None:
        slices = [piece for one in slices for piece in _pieces(one, cut(one, rows=limits.rows))]
        wanted = max(len(slices), limits.least or 1)
        if limits.most is not None:
            wanted = min(wanted, limits.most)
    else:
        wanted = _wanted(slices, limits, cut)
    if wanted > len(slices):
        slices = _divided(slices, wanted, len(end), cut)
    return _packed(slices, wanted)


def _slices(begin: Shards, end: Shards) -> list[Slice]:
    """Shards that are to be read over the same range, together."""
    ranges: dict[tuple[int, int], list[int]] = {}
    for shard in sorted(end):
        after, until = begin[shard][1], end[shard][1]
        if after < until:
            ranges.setdefault((after, until), []).append(shard)
    return [
        Slice(None if len(shards) == len(end) else tuple(shards), after, until)
        for (after, until), shards in ranges.items()
    ]


def _wanted(slices: Sequence[Slice], limits: Limits, cut: Cutter) -> int:
    """How many tasks."""
    wanted = 1
    if max(one.until - one.after for one in slices) > TASK_ROWS_SMALL and (limits.most or 2) > 1:
        pieces = [piece for one in slices for piece in cut(one)]
        rows, size = sum(piece.rows for piece in pieces), sum(piece.bytes for piece in pieces)
        wanted = min(max(math.ceil(rows / TASK_ROWS), math.ceil(size / TASK_BYTES), 1), limits.cores)
    wanted = max(wanted, limits.least or 1)
    return wanted if limits.most is None else min(wanted, limits.most)


def _divided(slices: Sequence[Slice], wanted: int, shards: int, cut: Cutter) -> list[Slice]:
    """The same as at least so many slices, where there are so many rows."""
    found: list[Slice] = []
    for at, one in enumerate(slices):
        share = wanted * (at + 1) // len(slices) - wanted * at // len(slices)
        members = tuple(range(shards)) if one.shards is None else one.shards
        if len(members) == 1:
            found += _pieces(one, cut(one, parts=max(share, 1)))
            continue
        groups = _groups(members, min(max(share, 1), len(members)))
        for number, group in enumerate(groups):
            parts = share * (number + 1) // len(groups) - share * number // len(groups)
            part = one._replace(shards=group if len(group) < shards else None)
            found += _pieces(part, cut(part, parts=parts)) if parts > 1 else [part]
    return found


def _groups(members: Sequence[int], count: int) -> list[tuple[int, ...]]:
    """Neighbours together, in so many groups of about the same size."""
    return [
        tuple(members[len(members) * at // count : len(members) * (at + 1) // count]) for at in range(count)
    ]


def _pieces(one: Slice, pieces: Iterable[Piece]) -> list[Slice]:
    """A slice as it was cut; whatever the pieces leave over at its end is in the last one."""
    ends = [piece.until for piece in pieces if one.after < piece.until < one.until]
    return [
        one._replace(after=after, until=until)
        for after, until in zip([one.after, *ends], [*ends, one.until], strict=True)
    ]


def _packed(slices: Sequence[Slice], most: int) -> list[Task]:
    """Neighbouring slices together, in at most so many tasks."""
    if len(slices) <= most:
        return [(one,) for one in slices]
    return [tuple(slices[len(slices) * at // most : len(slices) * (at + 1) // most]) for at in range(most)]


# Filters -------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class Narrowing:
    """What of a read is wanted, as far as filters said so."""

    after: int = 0
    until: int | None = None
    key_from: bytes | None = None
    key_to: bytes | None = None
    keys: frozenset[bytes] | None = None
    """Only these can be wanted: it tells which shards. The range above holds them all."""
    shards: frozenset[int] | None = None
    deleted: bool | None = None

    @property
    def is_nothing(self) -> bool:
        """Whether no row can be wanted."""
        return (
            (self.until is not None and self.until <= self.after)
            or (self.key_from is not None and self.key_to is not None and self.key_from >= self.key_to)
            or (self.keys is not None and not self.keys)
            or (self.shards is not None and not self.shards)
        )

    def applied(self, begin: Shards, end: Shards) -> tuple[Shards, Shards]:
        """Both ends of a read, moved together: a shard that is not wanted begins where it ends."""
        count, wanted = len(end), self._shards_of(len(end))
        until = {shard: (history, self._at_most(at)) for shard, (history, at) in end.items()}
        after = {}
        for shard in range(count):
            history, at = begin[shard]
            after[shard] = (history, max(at, self.after)) if shard in wanted else until[shard]
        return after, until

    def _at_most(self, sequence: int) -> int:
        return sequence if self.until is None else min(sequence, self.until)

    def _shards_of(self, count: int) -> frozenset[int]:
        """The shards, of so many, that can hold a row that is wanted."""
        if self.is_nothing:
            return frozenset()
        found = frozenset(range(count)) if self.shards is None else self.shards & frozenset(range(count))
        if self.keys is not None:
            found &= {shard_of(key, count) for key in self.keys}
        return found


def shard_of(key: bytes, count: int) -> int:
    """The shard of a key when there are so many."""
    # Shard i begins at slot i·65536/count, rounded down; this is the last i that does not begin behind the key's slot.
    return ((slot_of(key) + 1) * count - 1) // SLOTS


def narrow(filters: Iterable[Any]) -> tuple[Narrowing, list[Any]]:
    """What Spark's filters say, all of them together, and those that Spark must still apply itself."""
    found, rest = Narrowing(), []
    for one in filters:
        taken, exactly = _narrowed(found, one)
        found = taken
        if not exactly:
            rest.append(one)
    return found, rest


def _narrowed(found: Narrowing, one: Any) -> tuple[Narrowing, bool]:
    """With one more filter, and whether the broker then gives no row that the filter would not."""
    kind, column = type(one).__name__, ".".join(getattr(one, "attribute", ()))
    value = getattr(one, "value", None)
    if value is None:
        return found, kind == "IsNotNull" and column in (
            "sequence",
            "shard",
            "deleted",
        )  # they never are null
    match column, kind:
        case ("sequence", "EqualTo"):
            return _between(found, value - 1, value), True
        case ("sequence", "GreaterThan"):
            return _between(found, value, None), True
        case ("sequence", "GreaterThanOrEqual"):
            return _between(found, value - 1, None), True
        case ("sequence", "LessThan"):
            return _between(found, 0, value - 1), True
        case ("sequence", "LessThanOrEqual"):
            return _between(found, 0, value), True
        case ("shard", "EqualTo"):
            return _of_shards(found, {value}), True
        case ("shard", "In"):
            return _of_shards(found, {shard for shard in value if shard is not None}), True
        case ("deleted", "EqualTo"):
            clash = found.deleted is not None and found.deleted != value
            return (_of_shards(found, set()) if clash else replace(found, deleted=bool(value))), True
        case ("key", "EqualTo"):
            return _of_keys(found, {bytes(value)}), bool(value)
        case ("key", "In"):
            return _of_keys(found, {bytes(key) for key in value if key is not None}), False
        # A row without a key counts as one with an empty key in a range that begins there: Spark looks again.
        case ("key", "GreaterThanOrEqual"):
            return _keys_between(found, bytes(value), None), bool(value)
        case ("key", "GreaterThan"):
            return _keys_between(found, bytes(value) + b"\0", None), True
        case ("key", "LessThan"):
            return _keys_between(found, None, bytes(value)), False
        case ("key", "LessThanOrEqual"):
            return _keys_between(found, None, bytes(value) + b"\0"), False
    return found, False


def _between(found: Narrowing, after: int, until: int | None) -> Narrowing:
    known = found.until
    if until is not None:
        known = max(0, until) if known is None else min(known, max(0, until))
    return replace(found, after=max(found.after, after), until=known)


def _of_shards(found: Narrowing, shards: set[int]) -> Narrowing:
    return replace(found, shards=frozenset(shards) if found.shards is None else found.shards & shards)


def _of_keys(found: Narrowing, keys: set[bytes]) -> Narrowing:
    wanted = frozenset(keys) if found.keys is None else found.keys & keys
    narrowed = replace(found, keys=wanted)
    return _keys_between(narrowed, min(wanted), max(wanted) + b"\0") if wanted else narrowed


def _keys_between(found: Narrowing, low: bytes | None, high: bytes | None) -> Narrowing:
    lows = [key for key in (low, found.key_from) if key is not None]
    highs = [key for key in (high, found.key_to) if key is not None]
    return replace(found, key_from=max(lows) if lows else None, key_to=min(highs) if highs else None)
