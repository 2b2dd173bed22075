"""`tidemark store check`: reads every byte that counts and says what is wrong with it.

It only reads. Damage is what recovery would call damage; a torn tail is not, since nobody was promised it.
Beyond what recovery looks at, the check follows the records: sequences rise through the whole log, every
record of an end speaks of a sequence below its own, and the wiring is JSON. Checkpoints are read and checked, too.

Invariant: a store of which `check_store` finds nothing recovers without an error.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Generator, Iterator
from dataclasses import dataclass

from tidemark.errors import StoreForeign
from tidemark.model import records
from tidemark.ports import Disk
from tidemark.store import checkpoint
from tidemark.store.frames import FRAME_BYTES, NO_SEQ, Survey, survey, walk
from tidemark.store.recovery import Chunk, Replay
from tidemark.store.segment import CATALOG_PREFIX, JOURNAL_PREFIX
from tidemark.store.status import Status, read_status

CHUNK_BYTES = 1 << 20


@dataclass(frozen=True, slots=True)
class Finding:
    """One thing that is wrong."""

    path: str
    offset: int
    problem: str
    queues: tuple[str, ...] = ()

    def __str__(self) -> str:
        whose = f" (queues {', '.join(self.queues)})" if self.queues else ""
        return f"{self.path} at byte {self.offset}{whose}: {self.problem}"


@dataclass(slots=True)
class CheckSummary:
    """What was looked at."""

    segments: int = 0
    frames: int = 0
    records: int = 0
    bytes: int = 0
    torn: int = 0
    """Logs that end in a torn tail, which is not damage."""


def check_store(
    disk: Disk,
    queue_name: Callable[[int], str | None] | None = None,
    summary: CheckSummary | None = None,
) -> Iterator[Finding]:
    """Everything that is wrong with a store, in the order of the files. Nothing is changed.

    Without `queue_name` the names are taken from the catalog log.
    """
    summary = summary if summary is not None else CheckSummary()
    try:
        status = read_status(disk)
    except StoreForeign as problem:
        yield Finding(problem.path, 0, problem.problem)
        return
    if status.state == "empty":
        return
    names: dict[int, str] = {}
    yield from _check_log(disk, CATALOG_PREFIX, status, lambda _: None, summary, names)
    yield from _check_log(disk, JOURNAL_PREFIX, status, queue_name or names.get, summary, names)
    for name in disk.list(checkpoint.PREFIX):
        try:
            checkpoint.read(disk, name, bytes.fromhex(status.store))
        except checkpoint.Unusable as problem:
            yield Finding(
                name, 0, f"{problem}; no message is affected, the next start reads the whole journal"
            )


def _check_log(
    disk: Disk,
    prefix: str,
    status: Status,
    queue_name: Callable[[int], str | None],
    summary: CheckSummary,
    names: dict[int, str],
) -> Iterator[Finding]:
    clean = status.state == "clean"
    end = status.catalog_end if prefix == CATALOG_PREFIX else status.end
    replay = Replay(
        disk,
        prefix,
        clean_end=end if clean else 0,
        skip=True,
        chunk_bytes=CHUNK_BYTES,
        queue_name=queue_name,
    )
    last_seq = 0
    told = 0
    for chunk in replay.chunks():
        for damage in replay.damage[told:]:
            yield Finding(damage.path, damage.offset, damage.problem, damage.queues)
        told = len(replay.damage)
        if chunk.segment.store.hex() != status.store:
            yield Finding(chunk.segment.name, 0, "the segment belongs to another store")
        summary.bytes += len(chunk.data)
        summary.records += chunk.survey.records
        last_seq = yield from _check_records(chunk, last_seq, queue_name, names)
    for damage in replay.damage[told:]:
        yield Finding(damage.path, damage.offset, damage.problem, damage.queues)
    summary.segments += len(replay.segments)
    summary.frames += replay.frames
    summary.torn += replay.torn is not None


def _check_records(
    chunk: Chunk, last_seq: int, queue_name: Callable[[int], str | None], names: dict[int, str]
) -> Generator[Finding, None, int]:
    """Follow the records of some frames; returns the last sequence."""
    for start, end in chunk.frames:
        found = Survey()
        survey(chunk.data, start + FRAME_BYTES, end, found)
        if not found.records:
            continue
        # Within a frame the scan has seen that sequences rise.
        if found.first_seq <= last_seq:
            problem = f"sequence {found.first_seq} comes after {last_seq}"
            yield Finding(chunk.segment.name, chunk.offset + start, problem)
        last_seq = max(last_seq, found.last_seq)
        speaks = found.settled_low != NO_SEQ and found.settled_high >= found.first_seq
        if speaks or chunk.segment.prefix == CATALOG_PREFIX:
            yield from _check_each(chunk, start, end, queue_name, names)
    return last_seq


def _check_each(
    chunk: Chunk, start: int, end: int, queue_name: Callable[[int], str | None], names: dict[int, str]
) -> Iterator[Finding]:
    """Look at the records of one frame one by one."""
    for at, length, kind, seq, _ in walk(chunk.data, start + FRAME_BYTES, end):
        where = chunk.offset + at
        record = chunk.data[at : at + length]
        if kind == records.RecordType.CATALOG:
            try:
                _learn(json.loads(records.payload(record)), names)
            except ValueError:
                yield Finding(chunk.segment.name, where, "a change of the wiring is not JSON")
        elif kind != records.RecordType.MESSAGE:
            found = Survey()
            survey(record, 0, length, found)
            if found.settled_low != NO_SEQ and found.settled_high >= seq:
                whose = queue_name(found.queue_max)
                problem = f"the record {seq} speaks of the later message {found.settled_high}"
                yield Finding(chunk.segment.name, where, problem, (whose,) if whose else ())


def _learn(change: object, names: dict[int, str]) -> None:
    """Remember the name of a queue that a change declares."""
    if isinstance(change, dict):
        for value in (change, *change.values()):
            if isinstance(value, dict):
                number, name = value.get("number"), value.get("name")
                if isinstance(number, int) and isinstance(name, str):
                    names[number] = name
