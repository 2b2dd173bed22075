"""How many messages a store holds behind a record: what goes when its journal is cut back there.

Only reads. Messages that compaction has taken out were settled long before, so nobody misses them.
"""

from __future__ import annotations

from tidemark.errors import StoreError
from tidemark.model.peers import Log
from tidemark.model.records import RecordType
from tidemark.store.frames import walk
from tidemark.store.store import Store

READ_BYTES = 1 << 20


def count_messages(store: Store, after: int) -> int:
    """Messages with a sequence behind this one, as far as they can be read; one for several queues is one."""
    found = 0
    seen = after if after >= store.log_start(Log.JOURNAL) else 0  # of what was compacted, everything is read
    while seen < store.ends.journal:
        try:
            units = store.units_after(Log.JOURNAL, seen, READ_BYTES)
        except StoreError:
            break
        if not units:
            break
        for unit in units:
            rows = walk(unit.payload, 0, len(unit.payload))
            found += sum(1 for _, _, kind, seq, _ in rows if kind == RecordType.MESSAGE and seq > after)
        seen = units[-1].last
    return found
