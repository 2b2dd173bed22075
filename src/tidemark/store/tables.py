"""Histories of a log, and from where on the log is whole: what members compare to find where they part.

Every log has a table of its histories (`Segment.histories`). The two logs of a store take over together, catalog first, so
their tables name the same histories, except the newest when a crash came between, and those of starts before the
catalog had a table.

Invariant: a history that is in a table has its first record in the log, or had it before compaction.
"""

from __future__ import annotations

from collections.abc import Sequence

from tidemark.errors import UnitRefused
from tidemark.model import records
from tidemark.model.peers import Ends, Takeover
from tidemark.store.frames import walk
from tidemark.store.segment import Segment, with_history

Histories = list[tuple[bytes, int]]
"""(history, first sequence), newest first."""


def known_at(histories: Histories, end: int) -> Histories:
    """The part of a table that is true of a log that ends with this record: a head may name a history whose first
    record was lost."""
    return [row for row in histories if row[1] <= end]


def first_whole(segments: Sequence[Segment]) -> int:
    """From which sequence on a log that has these segments lacks nothing."""
    start = end = last_id = 0
    compacted = False
    for segment in segments:
        before = segment.base_seq - 1
        if segment.prepared and segment.survey.records:
            before = max(before, segment.survey.first_seq - 1)
        if compacted or (segment.low > last_id + 1 and before > end):
            start = max(start, before)
        start = max(start, segment.log_start)
        end = max(end, before, segment.survey.last_seq)
        compacted, last_id = segment.compacted, segment.high
    return max(start, end) if compacted else start


def read_table(
    log: str, payload: memoryview, histories: Histories, log_start: int
) -> tuple[Histories, int] | None:
    """What a unit makes of the table and of where the log is whole, if it is one that speaks of these.

    Raises:
        UnitRefused: it is one, but not well-formed.
    """
    kind = records.record_type(payload)
    if kind not in (records.RecordType.TAKEOVER, records.RecordType.HISTORIES):
        return None
    try:
        rows = walk(payload, 0, len(payload))
    except ValueError as problem:
        raise UnitRefused(log=log, problem=str(problem)) from problem
    if len(rows) > 1:
        raise UnitRefused(log=log, problem="the first record of a history is not alone in its frame")
    if kind == records.RecordType.TAKEOVER:
        start, told = log_start, [(records.payload(payload), rows[0][3])]
    else:
        start, told = records.decode_histories(payload)
    known = {history for history, _ in histories}
    for history, first in reversed(told):
        if history not in known:
            histories = with_history(histories, history, first)
    return histories, max(log_start, start)


def merged(catalog: Histories, journal: Histories, ends: Ends) -> tuple[Takeover, ...]:
    """One table of both logs, newest first.

    A history that only one of them has began in the other where the next one did, or will: it wrote nothing there.
    """
    rows: list[Takeover] = []
    in_catalog, in_journal = dict(catalog), dict(journal)
    next_catalog, next_journal = ends.catalog + 1, ends.journal + 1
    catalog, journal = catalog[:], journal[:]
    while catalog or journal:
        if catalog and (not journal or catalog[0][0] not in in_journal):
            history, _ = catalog.pop(0)
        else:
            if catalog and journal[0][0] != catalog[0][0] and journal[0][0] in in_catalog:
                # The tables have dropped different rows of their older half; go on where they agree.
                catalog.pop(0)
                continue
            history, _ = journal.pop(0)
            if catalog and catalog[0][0] == history:
                catalog.pop(0)
        next_catalog = min(next_catalog, in_catalog.get(history, next_catalog))
        next_journal = min(next_journal, in_journal.get(history, next_journal))
        rows.append(Takeover(history.hex(), Ends(next_catalog, next_journal)))
    return tuple(rows)
