"""Cutting the logs of a store back to a point, and emptying a store: what a member does whose logs others do not share.

The store must not be open. Nothing is changed before it is known and written down what has to be (`intent.py`);
so it is done whole, now or when the store is opened next, however often somebody dies on the way.

A log is cut in the segment in which the first record behind the point lies: an END frame is written over the frame
that begins there, and all later segments go. If the point lies within a frame, its records up to the point go into
a small segment of their own. Damage before the point stays what it is: the END frame claims to be durable what
the frames behind it did.

Invariant: after `rewind` the logs hold exactly the records that they held up to the point.
"""

from __future__ import annotations

import os
from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Any

from tidemark.errors import LogGone
from tidemark.model.peers import Ends, Log
from tidemark.ports import Disk
from tidemark.store import intent
from tidemark.store.config import StoreConfig
from tidemark.store.frames import END, FRAME, FRAME_BYTES, Survey, seal, walk
from tidemark.store.names import CHECKPOINT_PREFIX
from tidemark.store.recovery import Replay
from tidemark.store.segment import CATALOG_PREFIX, HEAD_BYTES, JOURNAL_PREFIX, Segment
from tidemark.store.status import Status, read_status

_PREFIXES = {Log.CATALOG: CATALOG_PREFIX, Log.JOURNAL: JOURNAL_PREFIX}


def rewind(
    disk: Disk, config: StoreConfig, to: Ends, random_bytes: Callable[[int], bytes] = os.urandom
) -> None:
    """Cut both logs back: behind the records `to` nothing is left.

    Raises:
        LogGone: some of the records up to there are not there as they were; the store must be reset. Nothing has changed.
        CorruptRecord: something that had been durable is damaged, and `store.on_corruption` is "refuse".
    """
    intent.finish(disk)
    status = read_status(disk)
    if status.state == "empty":
        return
    if to.journal < status.alone_from:
        # Without its cluster it compacted what it liked.
        raise LogGone(log=Log.JOURNAL.name, seq=to.journal, start=status.alone_from)
    cuts = {log: _plan(disk, config, status, log, to[log], random_bytes) for log in Log}
    if not any(cuts.values()):
        return
    # A checkpoint has no queue that was deleted before it was made: it is of no use when the deletion is undone.
    cut = cuts[Log.JOURNAL]
    checkpoints = 0 if cuts[Log.CATALOG] is not None else cut.place if cut is not None else intent.EVERYTHING
    intent.write(
        disk, [cut.facts for cut in cuts.values() if cut is not None], checkpoints, intent.dirty(disk)
    )
    intent.finish(disk)


def forget_checkpoints(disk: Disk) -> None:
    """Have the store read from its logs alone the next time."""
    for name in disk.list(CHECKPOINT_PREFIX):
        disk.remove(name)


def reset(disk: Disk) -> None:
    """Empty the store. It stays the same store of the same cluster, but its status is "empty", and it was never whole:
    whoever starts it next must not take it for one that has what it had."""
    intent.finish(disk)
    status = read_status(disk)
    if not status.store:
        return
    logs = [{"prefix": prefix, "above": 0, "cut": None, "rest": None} for prefix in _PREFIXES.values()]
    emptied = replace(intent.dirty(disk), state="empty", history="", alone_from=0, epoch=0)
    intent.write(disk, logs, 0, emptied)
    intent.finish(disk)


@dataclass(frozen=True, slots=True)
class _Cut:
    """What has to be done to one log, and the place where it ends then."""

    facts: dict[str, Any]
    place: int


def _plan(
    disk: Disk,
    config: StoreConfig,
    status: Status,
    log: Log,
    to: int,
    random_bytes: Callable[[int], bytes],
) -> _Cut | None:
    """How to cut this log; None if it holds nothing behind `to`."""
    end = status.end if log is Log.JOURNAL else status.catalog_end
    replay = Replay(
        disk,
        _PREFIXES[log],
        clean_end=end if status.state == "clean" else 0,
        skip=config.on_corruption == "skip",
        chunk_bytes=config.extent_bytes,
    )
    segments = replay.segments
    if not segments:
        return None
    index, found = _find(replay, log, to)
    segment, later = segments[index], segments[index + 1 :]
    facts: dict[str, Any] = {"prefix": segment.prefix, "above": segment.id, "cut": None, "rest": None}
    if found is None:
        if not later or replay.cut is not None:
            # Nothing is behind it; or the log was torn before it, and recovery removes what is behind that.
            return None
        return _Cut(facts, segment.place(segment.used))
    if segment.compacted:
        raise LogGone(log=log.name, seq=to, start=later[0].base_seq - 1 if later else segment.last_seq)
    place = segment.place(found.offset)
    claimed = place if status.state == "clean" and end > place else replay.claimed(index)
    mark = bytearray(FRAME_BYTES)
    seal(memoryview(mark), place, segment.made_ms, min(claimed, place), found.previous, END, Survey())
    facts["cut"] = [segment.name, found.offset, mark.hex()]
    _, _, _, _, first, last, *_ = FRAME.unpack_from(found.data)
    if first <= to < last:
        salt = int.from_bytes(random_bytes(8), "little")
        facts["rest"] = _write_rest(disk, segment, replay.highest_id + 1, salt, found, to)
    return _Cut(facts, place)


@dataclass(frozen=True, slots=True)
class _Frame:
    """The first frame with a record behind the point."""

    offset: int
    previous: int
    """The checksum of the one before."""
    end_seq: int
    """The last sequence before it."""
    data: memoryview


def _find(replay: Replay, log: Log, to: int) -> tuple[int, _Frame | None]:
    """The segment in which the log is to be cut, and the first frame there that goes; None: all of it stays."""
    segments = replay.segments
    index = max((i for i, segment in enumerate(segments) if segment.base_seq - 1 <= to), default=-1)
    if index < 0:
        raise LogGone(log=log.name, seq=to, start=segments[0].base_seq - 1)
    found = _first_behind(replay, index, to)
    # A segment that was prepared does not know how many records came before it.
    while index and segments[index].prepared:
        earlier = _first_behind(replay, index - 1, to)
        if earlier is None:
            break
        index, found = index - 1, earlier
    return index, found


def _first_behind(replay: Replay, index: int, to: int) -> _Frame | None:
    segment = replay.segments[index]
    end_seq = segment.base_seq - 1
    for chunk in replay.frames_of(index):
        previous = chunk.previous
        for start, end in chunk.frames:
            _, crc, _, count, _, last, *_ = FRAME.unpack_from(chunk.data, start)
            if count and last > to:
                return _Frame(chunk.offset + start, previous, end_seq, chunk.data[start:end])
            previous, end_seq = crc, max(end_seq, last)
    return None


def _write_rest(disk: Disk, cut: Segment, number: int, salt: int, found: _Frame, to: int) -> list[str] | None:
    """Write the records of a frame up to `to` as a segment of their own, under a temporary name.

    Returns that name and the one that it shall get; None if no record ends there.
    """
    frame = found.data
    rows = walk(frame, FRAME_BYTES, len(frame))
    kept = [row for row in rows if row[3] + max(row[4], 1) - 1 <= to]
    if not kept:
        return None
    rest = Segment(
        prefix=cut.prefix,
        id=number,
        low=number,
        high=number,
        size=0,
        store=cut.store,
        base_seq=found.end_seq + 1,
        prepared=cut.prepared,
        log_start=cut.log_start,
        start=cut.start,
        salt=salt,
        made_ms=cut.made_ms,
        histories=cut.histories,
    )
    part = bytearray(frame[: kept[-1][0] + kept[-1][1]])
    mark = bytearray(FRAME_BYTES)
    head = rest.encode_head()
    where = rest.place(HEAD_BYTES)
    crc, _ = seal(memoryview(part), where, cut.made_ms, 0, rest.crc, 0, Survey())
    seal(memoryview(mark), where + len(part), cut.made_ms, 0, crc, END, Survey())
    temporary = f"tmp-rest-{cut.prefix}"
    if disk.exists(temporary):
        disk.remove(temporary)
    disk.write(temporary, 0, head + part + mark)
    disk.sync(temporary)
    return [temporary, rest.name]
