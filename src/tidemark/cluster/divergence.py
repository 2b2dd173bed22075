"""Where two logs part, found from their tables of takeovers alone.

Two logs are alike up to the end of the newest history that both hold, or rather to where the shorter of them leaves it
(`model/lines.py`):

    source   A1 A2 A3 | C4 C5 C6          newest in common: A; the source leaves it at 3, the reader at 5
    reader   A1 A2 A3 A4 A5               → rewind to 3: A4 and A5 were never confirmed

The end of a history is the sequence before the next takeover's first record, so a takeover must take the sequence
right behind the last record of its log. Each log is looked at on its own.

Invariant: what a reader is told to keep is in the source's log, record by record.
"""

from __future__ import annotations

from collections.abc import Callable

from tidemark.model.lines import common
from tidemark.model.peers import Ends, Hello, Log, Offer, Takeover


def answer(
    hello: Hello,
    *,
    cluster: str,
    epoch: int,
    table: tuple[Takeover, ...],
    ends: Ends,
    log_start: Callable[[Log], int],
) -> Offer:
    """What a source with these logs offers the reader that said this."""
    if hello.cluster not in ("", cluster):
        reason = (
            f"the store of {hello.member} belongs to cluster {hello.cluster}, not to {cluster}: "
            "start it with the right data directory, or with an empty one"
        )
        return Offer(epoch, "refuse", reason=reason)
    alike = [common(hello.table, hello.durable[log], table, ends[log], log) for log in Log]
    catalog, journal = alike
    lost = catalog is None or journal is None
    keep = Ends(catalog or 0, journal or 0)
    if not lost and hello.durable == keep and all(_reachable(keep[log], log_start(log)) for log in Log):
        return Offer(epoch, "resume", keep, ends)
    if not hello.cluster:
        # What it has and we have not was confirmed to somebody when it stood alone.
        reason = (
            f"the store of {hello.member} is from a broker that stood alone and holds what the cluster does not: "
            "move its messages over and start it with an empty data directory"
        )
        return Offer(epoch, "refuse", reason=reason)
    if not lost and all(_reachable(keep[log], log_start(log)) for log in Log):
        return Offer(epoch, "rewind", keep, ends)
    return Offer(epoch, "reset", keep, ends)


def _reachable(after: int, start: int) -> bool:
    """Whether all behind `after` can be sent one by one. From 0 on everything that is kept is sent."""
    return after == 0 or after >= start
