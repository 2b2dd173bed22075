"""Members of a cluster, and what they agree on.

A *group* is the unit of replication: two logs (the wiring and the messages) that its members hold alike. Who is in
it and who leads is its *view*, of which there is one at a time, kept where writes are compared before they are made
(etcd). A member that is *ready* holds everything that was ever confirmed: only such a one may lead, and nothing is
confirmed before all of them have it. So whoever is chosen, nothing confirmed is lost; and a leader that was replaced
without knowing it can confirm nothing, because those that replaced it no longer answer to its epoch.

Members send one another *messages* about positions, and *units*: frames of records as their logs have them.

Invariant: `leader` is one of `ready`; `ready` has no name twice; an epoch has one leader.
"""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from enum import IntEnum
from typing import Literal

Name = str
"""What a member calls itself; unique in its cluster."""


class Log(IntEnum):
    """The two logs of a group, in the order in which they are written."""

    CATALOG = 0
    JOURNAL = 1


@dataclass(frozen=True, slots=True)
class Ends:
    """How far each log goes: the sequence of a last record."""

    catalog: int = 0
    journal: int = 0

    def __getitem__(self, log: Log) -> int:
        return self.journal if log is Log.JOURNAL else self.catalog

    def least(self, other: Ends) -> Ends:
        if other.covers(self):
            return self
        if self.covers(other):
            return other
        return Ends(min(self.catalog, other.catalog), min(self.journal, other.journal))

    def most(self, other: Ends) -> Ends:
        if self.covers(other):
            return self
        if other.covers(self):
            return other
        return Ends(max(self.catalog, other.catalog), max(self.journal, other.journal))

    def at(self, catalog: int, journal: int) -> Ends:
        """The ends with these sequences; the same ones if nothing has moved."""
        return self if self.catalog == catalog and self.journal == journal else Ends(catalog, journal)

    def covers(self, other: Ends) -> bool:
        return self.catalog >= other.catalog and self.journal >= other.journal


@dataclass(frozen=True, slots=True)
class Takeover:
    """A history begins: its id (32 hex digits), and the sequence of its first record in each log."""

    history: str
    first: Ends
    """0, or more than where the log ends, if the record has not come: a log at a time is received."""


@dataclass(frozen=True, slots=True)
class View:
    """Who is in the group and who leads it."""

    cluster: str
    """UUID of the cluster, in hex. A store belongs to one."""
    epoch: int
    """Rises by one with every new leader: the fencing number that every frame between members carries."""
    leader: Name
    ready: tuple[Name, ...]
    """Those that hold everything that was confirmed, in the order of the chain, the leader first."""
    history: str
    """What the leader of this epoch writes is this history (32 hex digits)."""
    revision: int = field(default=0, compare=False)
    """Of the place where it is kept: a change is made only to the view that it was derived from."""
    accepted: int = 0
    """The last epoch that began with a loss which an operator accepted: a member that was not whole in it or later may
    hold what was confirmed and is given up. 0: none did."""
    settled: int = 0
    """The last epoch in which all that are ready were in line with its leader, so their stores name this one or a later
    one. A store of theirs that names an older one is a copy from before, and lacks what was confirmed since."""

    def without(self, member: Name) -> View:
        assert member != self.leader
        return replace(self, ready=tuple(name for name in self.ready if name != member))

    def with_ready(self, member: Name) -> View:
        return self if member in self.ready else replace(self, ready=(*self.ready, member))

    def led_by(self, member: Name, history: str) -> View:
        """What `member`, one of the ready, proposes when the leader is gone."""
        assert member in self.ready
        rest = tuple(name for name in self.ready if name not in (member, self.leader))
        return replace(self, epoch=self.epoch + 1, leader=member, ready=(member, *rest), history=history)

    def seized_by(self, member: Name, history: str, epoch: int) -> View:
        """What `member` proposes when all that were ready are given up, and with them what only they had."""
        assert epoch > self.epoch
        return replace(
            self, epoch=epoch, leader=member, ready=(member,), history=history, accepted=epoch, settled=0
        )


@dataclass(slots=True)
class Unit:
    """One frame of a log, without its head: the records `first` to `last`, all of them or none."""

    log: Log
    previous: int
    """The sequence that the reader's log ends with when this unit is the next one."""
    first: int
    last: int
    payload: memoryview


# What members say to one another -----------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class Hello:
    """A reader asks its source for the logs behind what it holds."""

    member: Name
    epoch: int
    cluster: str
    """Empty if its store has never belonged to one."""
    durable: Ends
    table: tuple[Takeover, ...]
    """The histories that it holds, newest first."""
    whole: bool = True
    """It has been ready with this store. If not, a view that calls it ready means a store that is lost."""


@dataclass(frozen=True, slots=True)
class Offer:
    """The source answers a hello."""

    epoch: int
    verdict: Literal["resume", "rewind", "reset", "refuse"]
    to: Ends = Ends()
    """rewind: what the reader may keep; it cuts its logs back to here and says hello again. reset: up to here they were alike."""
    ends: Ends = Ends()
    """How far the source is, now."""
    reason: str = ""
    """refuse: why, and what to do."""
    revision: int = 0
    """resume, to a reader whose store is not whole: of the view by which the source leads. It does not call the reader ready."""


@dataclass(frozen=True, slots=True)
class Acked:
    """A reader has this on its disk; in a chain, also how far those behind it are."""

    epoch: int
    durable: Ends
    behind: tuple[tuple[Name, Ends], ...] = ()


@dataclass(frozen=True, slots=True)
class Completed:
    """From the leader down: all of this was or may be confirmed; it stays.

    `floor` is about versions of streams: no pin that is recorded behind `floor_at` is of a snapshot below it, so
    what was superseded before may be let go of. The member fills both in; they are none of a mode's business.
    """

    epoch: int
    upto: Ends
    floor: int = 0
    floor_at: int = 0


@dataclass(frozen=True, slots=True)
class Outdated:
    """The answer to a message of an older epoch."""

    epoch: int


@dataclass(frozen=True, slots=True)
class Closing:
    """From the leader down: the cluster is shut down in good order. Nothing comes behind `upto`; stop when you have it."""

    epoch: int
    upto: Ends


@dataclass(frozen=True, slots=True)
class Census:
    """What the logs have left on a queue or stream: how many entries, and the sum of the hashes of their sequences."""

    number: int
    count: int
    digest: int


@dataclass(frozen=True, slots=True)
class Compare:
    """From the leader down: when the logs end at `at`, the queues, or the streams, with numbers from `first` to `last` hold
    this; those that are left out hold nothing."""

    epoch: int
    at: Ends
    streams: bool
    first: int
    last: int
    censuses: tuple[Census, ...]


Message = Hello | Offer | Acked | Completed | Outdated | Closing | Compare
