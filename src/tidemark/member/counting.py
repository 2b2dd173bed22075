"""How many messages a store holds behind a record: what goes when its journal is cut back there.

Only reads, and not for long: a member that counts does nothing else. Messages that compaction has taken out were settled
long before, so nobody misses them.
"""

from __future__ import annotations

from tidemark.errors import StoreError
from tidemark.model.peers import Log
from tidemark.model.records import RecordType
from tidemark.store.frames import walk
from tidemark.store.store import Store

READ_BYTES = 1 << 20
COUNT_BYTES_MAX = 64 << 20
"""So much of a journal is read and counted in about a tenth of a second."""


def count_messages(store: Store, after: int) -> tuple[int, bool]:
    """Messages with a sequence behind this one; one for several queues is one. And whether these are all: not if
    there are too many to read, or some cannot be read."""
    found = size = 0
    seen = after if after >= store.log_start(Log.JOURNAL) else 0  # of what was compacted, everything is read
    while seen < store.ends.journal:
        if size >= COUNT_BYTES_MAX:
            return found, False
        try:
            units = store.units_after(Log.JOURNAL, seen, READ_BYTES)
        except StoreError:
            return found, False
        if not units:
            return found, False
        for unit in units:
            size += len(unit.payload)
            rows = walk(unit.payload, 0, len(unit.payload))
            found += sum(1 for _, _, kind, seq, _ in rows if kind == RecordType.MESSAGE and seq > after)
        seen = units[-1].last
    return found, True
