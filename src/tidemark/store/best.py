"""Which of several data directories holds the most, when all members of a cluster have crashed and nobody leads.

Every store says of which cluster it is, in which epoch it took part last and what it was then; its logs say how far they go
and which histories they hold. Which of them is the best is said by `model/lines.py`, as for members that run; of two that hold
the same, it is the one whose member led. A store that was still being filled (epoch 0) is no choice: it lacks what came before.

A store that could not be looked at may hold more than all others, so none is named before somebody says that it does not count.

Only reads. Invariant: a store that belongs to no cluster, or to another one than most, is never the best.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, field, replace

from tidemark.model.lines import Held, best_first
from tidemark.model.peers import Ends, Takeover
from tidemark.ports import Disk
from tidemark.store import intent
from tidemark.store.recovery import Replay
from tidemark.store.segment import CATALOG_PREFIX, JOURNAL_PREFIX
from tidemark.store.status import Status, read_status
from tidemark.store.tables import Histories, known_at, merged

CHUNK_BYTES = 1 << 20


@dataclass(frozen=True, slots=True, kw_only=True)
class StoreFacts:
    """What one data directory says about itself."""

    path: str
    status: Status
    ends: Ends = field(default_factory=Ends)
    """The last records that a start would find."""
    table: tuple[Takeover, ...] = ()
    """The histories that it holds, newest first."""
    damaged: int = 0
    """Places where the logs are not what was written."""
    unfinished: bool = False
    """It was being cut back or emptied."""
    problem: str = ""
    """Why it cannot be the best; or what to know about it."""
    usable: bool = True
    """It may be the best."""
    unread: bool = False
    """It could not be looked at; `problem` says why."""


@dataclass(frozen=True, slots=True)
class Ranking:
    """The stores, best first."""

    stores: tuple[StoreFacts, ...]
    best: StoreFacts | None
    verdict: str
    """What to do, in words."""


def read_store(disk: Disk, path: str) -> StoreFacts:
    """Look at a store that nobody has open.

    Raises:
        StoreForeign: it is none.
    """
    status = read_status(disk)
    unfinished = disk.exists(intent.INTENT)
    if status.state == "empty":
        return StoreFacts(path=path, status=status, unfinished=unfinished)
    catalog, wiring, bad_wiring = _read_log(disk, CATALOG_PREFIX, status.catalog_end, status)
    journal, messages, bad_records = _read_log(disk, JOURNAL_PREFIX, status.end, status)
    ends = Ends(catalog, journal)
    return StoreFacts(
        path=path,
        status=status,
        ends=ends,
        table=merged(wiring, messages, ends),
        damaged=bad_wiring + bad_records,
        unfinished=unfinished,
    )


def _read_log(disk: Disk, prefix: str, end: int, status: Status) -> tuple[int, Histories, int]:
    """The last sequence of a log, its histories, and how many places of it are damaged."""
    replay = Replay(
        disk, prefix, clean_end=end if status.state == "clean" else 0, skip=True, chunk_bytes=CHUNK_BYTES
    )
    last = max((chunk.survey.last_seq for chunk in replay.chunks() if chunk.survey.records), default=0)
    last = max([last, *(segment.compacted_upto for segment in replay.segments)])
    newest = max(replay.segments, key=lambda segment: (segment.start, segment.id), default=None)
    return last, known_at(newest.histories, last) if newest else [], len(replay.damage)


def unread(path: str, why: str) -> StoreFacts:
    """One that could not be looked at."""
    unknown = Status(state="dirty", role="")
    return StoreFacts(path=path, status=unknown, problem=why, usable=False, unread=True)


def rank(stores: Sequence[StoreFacts], *, missing_ok: bool = False) -> Ranking:
    """Order them, best first, and say which one to start from. `missing_ok`: those that could not be looked at do not count."""
    clusters = Counter(one.status.cluster for one in stores if one.status.cluster and one.usable)
    most = max(clusters.values(), default=0)
    largest = [cluster for cluster, count in clusters.items() if count == most]
    # Of two clusters that have as many stores each nobody can say which one is meant.
    cluster = largest[0] if len(largest) == 1 else ""
    judged = sorted((_judged(one, cluster) for one in stores), key=_key, reverse=True)
    usable = best_first([one for one in judged if one.usable], _held)
    best = usable[0] if usable else None
    ranked = (*usable, *(one for one in judged if not one.usable))
    missing = [one.path for one in stores if one.unread]
    if missing and not missing_ok:
        return Ranking(ranked, None, _incomplete(missing))
    verdict = _verdict(ranked, best, largest)
    if best is not None and missing:
        verdict += f"; {', '.join(missing)} could not be looked at and may hold more"
    return Ranking(ranked, best, verdict)


def _held(one: StoreFacts) -> Held:
    return Held(one.status.epoch, one.ends, one.table)


def _key(one: StoreFacts) -> tuple[object, ...]:
    """How those are ordered that hold the same, and those that are no choice."""
    status = one.status
    return status.role == "leader", status.state == "clean", status.epoch, one.ends.journal


def _judged(one: StoreFacts, cluster: str) -> StoreFacts:
    """With what is to be known about it."""
    status = one.status
    no = ""
    if not one.usable:
        return one
    if status.state == "empty":
        no = "it is empty"
    elif not status.cluster:
        no = "it never belonged to a cluster"
    elif status.cluster != cluster:
        no = "it belongs to another cluster" if cluster else "which cluster is meant is not known"
    elif not status.epoch:
        no = "it was being filled and never ready"
    elif one.unfinished:
        no = "its logs were being cut back; start it once, then it can be judged"
    if no:
        return replace(one, usable=False, problem=no)
    notes = []
    if one.damaged:
        notes.append(f"damaged in {one.damaged} places: see 'tidemark store check'")
    if status.alone_from:
        notes.append("it was started without its cluster")
    return replace(one, problem="; ".join(notes))


def _incomplete(missing: Sequence[str]) -> str:
    return (
        f"{', '.join(missing)} could not be looked at and may hold more, so none is named: bring all together, each of a broker "
        "that is stopped; or, if no more will come, give --missing-ok"
    )


def _verdict(judged: Sequence[StoreFacts], best: StoreFacts | None, clusters: Sequence[str]) -> str:
    if best is None and len(clusters) > 1:
        return f"the stores are of {len(clusters)} clusters, as many of each: give those of one cluster only"
    if best is None:
        return "none of these is a store of a member that was ever ready"
    usable = [one for one in judged if one.usable]
    newest = max(usable, key=lambda one: one.status.epoch)
    epoch = newest.status.epoch
    leaders = [one.path for one in usable if one.status.epoch == epoch and one.status.role == "leader"]
    words = f"{best.path} is the best: "
    if best.status.epoch < epoch:
        words += (
            f"{newest.path} was in line in epoch {epoch}, the last that is known here, and this one holds all of that and more: "
            f"its journal goes to {best.ends.journal}"
        )
    else:
        role = "led" if best.status.role == "leader" else "followed"
        words += f"in epoch {epoch}, the last that is known here, its member {role}, and its journal goes to {best.ends.journal}"
    if len(leaders) > 1:
        rivals = ", ".join(path for path in leaders if path != best.path)
        words += f"; but {rivals} led in the same epoch: two members were promoted at once"
    elif not leaders:
        words += "; the store of that epoch's leader is not among these, which may hold more"
    return words
