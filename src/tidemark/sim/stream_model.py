"""What streams must answer, as plain lists: the model that `sim/streams.py` holds against the real ones.

A stream is the list of all versions that were ever committed, and of the steps that ended some of them (retention,
purged tombstones). What a snapshot shows follows from the two: the newest version of each key up to its sequence,
but for what a step up to there has ended. Nothing is ever removed from the lists, except by a crash: then they are
cut at the last sequence that the journal kept.

What is written without an exact place in the journal (the end of a lease, a mark that nobody waits for) is a
`Register`: the values it was given, each with the first and last sequence that its record can have. After a crash
it may be any of those that the cut leaves open.

Invariant: the model never asks the broker anything.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Generic, NamedTuple, TypeVar

from tidemark.model.keys import row_digest, slot_of, slot_of_seq
from tidemark.model.rows import ANY, Row

SLOTS = 65_536
FOREVER = 1 << 62
DIGEST_MASK = (1 << 128) - 1

T = TypeVar("T")


class Version(NamedTuple):
    seq: int
    key: bytes | None
    value: bytes | None
    """None: the key is deleted."""
    ms: int


class Step(NamedTuple):
    """What the stream ended at sequence `by`: all below `floor`, and tombstones up to `purged`."""

    by: int
    floor: int
    purged: int


class Seen(NamedTuple):
    """A row as a reader sees it."""

    seq: int
    key: bytes | None
    value: bytes | None


@dataclass(slots=True)
class Register(Generic[T]):
    """One value that is remembered by the broker."""

    now: T
    given: list[tuple[int, int, T]] = field(default_factory=list)
    """(lowest, highest possible sequence of its record, value), oldest first"""

    def set(self, value: T, low: int, high: int | None = None) -> None:
        self.now = value
        self.given.append((low, low if high is None else high, value))

    def written_by(self, high: int) -> None:
        """All that was given is in a record up to this sequence."""
        self.given = [(low, min(known, high), value) for low, known, value in self.given]

    def possible(self, upto: int) -> list[T]:
        """What it can be when the journal ends there."""
        found: list[T] = []
        for low, high, value in self.given:
            if high <= upto:
                found = [value]
            elif low <= upto:
                found.append(value)
        return found

    def found(self, value: T) -> None:
        """A restart has settled what it is."""
        self.now, self.given = value, [(0, 0, value)]


@dataclass(slots=True)
class StreamModel:
    name: str
    arguments: dict[str, object]
    shards: int = 1
    versions: list[Version] = field(default_factory=list)
    steps: list[Step] = field(default_factory=list)
    pins: dict[str, Register[int | None]] = field(default_factory=dict)
    until_ms: dict[str, int] = field(default_factory=dict)
    """When the leases of pins end."""
    marks: dict[str, Register[int | None]] = field(default_factory=dict)
    leases: dict[str, tuple[int, int]] = field(default_factory=dict)
    """(lease, until) of consumers that have registered"""
    lapsed: set[str] = field(default_factory=set)
    """Those of them whose lease has ended."""

    @property
    def is_log(self) -> bool:
        """Nothing is buried, and a delete is a row like any other."""
        return self.arguments.get("x-stream-key") == "log"

    @property
    def last_seq(self) -> int:
        return max(self.versions[-1].seq if self.versions else 0, self.steps[-1].by if self.steps else 0)

    @property
    def purged(self) -> int:
        return self.steps[-1].purged if self.steps else 0

    def ended(self, at: int) -> tuple[int, int]:
        """(floor, purged) as a snapshot at this sequence knows them."""
        floor = purged = 0
        for step in self.steps:
            if step.by <= at:
                floor, purged = max(floor, step.floor), max(purged, step.purged)
        return floor, purged

    def visible(
        self, at: int, after: int = 0, until: int | None = None, slots: tuple[int, int] = (0, SLOTS)
    ) -> list[Seen]:
        """What a snapshot at this sequence shows of (after, until], in order."""
        newest: dict[bytes | int, Version] = {}
        for version in self.versions:
            if version.seq > at:
                break
            newest[version.seq if version.key is None or self.is_log else version.key] = version
        floor, purged = self.ended(at)
        end = at if until is None else min(at, until)
        low, high = slots
        return sorted(
            Seen(seq, key, value)
            for seq, key, value, _ in newest.values()
            if after < seq <= end
            and seq >= floor
            and (value is not None or seq > purged or self.is_log)
            and low <= (slot_of_seq(seq) if key is None else slot_of(key)) < high
        )

    def current(self, key: bytes) -> Seen | None:
        """The newest version of a key, durable or not; None if it has none."""
        if self.is_log:
            return None
        floor, purged = self.ended(FOREVER)
        for seq, known, value, _ in reversed(self.versions):
            if known == key:
                ended = seq < floor or (value is None and seq <= purged)
                return None if ended else Seen(seq, known, value)
        return None

    def conflict(self, rows: list[Row]) -> int | None:
        """Which row of a batch finds its key elsewhere than it expects; None: none does."""
        touched: dict[bytes, bool] = {}
        for index, row in enumerate(rows):
            if row.key is None:
                if row.expected not in (ANY, 0):
                    return index
                continue
            if row.expected != ANY:
                if row.key in touched:
                    fits = row.expected == 0 and not touched[row.key]
                else:
                    found = self.current(row.key)
                    is_there = found is not None and found.value is not None
                    fits = (
                        not is_there if row.expected == 0 else found is not None and found.seq == row.expected
                    )
                if not fits:
                    return index
            touched[row.key] = not row.tombstone
        return None

    def cut(self, upto: int) -> None:
        """What came later did not survive."""
        self.versions = [version for version in self.versions if version.seq <= upto]
        self.steps = [step for step in self.steps if step.by <= upto]


def digest(rows: list[Seen]) -> int:
    """The hash that a marker over these rows must have."""
    return sum(row_digest(seq, value is None, key, value or b"") for seq, key, value in rows) & DIGEST_MASK
