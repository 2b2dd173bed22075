"""Waiting until messages, or their ends, are safe: what an answer says about them has then happened for good."""

from __future__ import annotations

import asyncio

from tidemark.admin import visit as visits
from tidemark.admin.answers import Refused
from tidemark.admin.visit import Visit, not_stored

LOOK_S = 0.001
"""How often we look: nobody but an operator waits here."""


async def stored(visit: Visit, seq: int, what: str = "it was done") -> None:
    """Wait until the journal is safe up to there.

    Raises:
        StoreError: the disk failed before.
        Refused: this took too long, or another member leads by now: nobody knows what became of it.
    """
    node, server = visit.server.node, visit.server
    if seq <= node.journal_durable():
        return
    deadline = asyncio.get_running_loop().time() + visits.WAIT_S_MAX
    while node.journal_durable() < seq:
        if node.failed is not None:
            raise node.failed
        if not node.serving:
            raise Refused(503, "not_stored", "it is not known whether this was stored: ask again, or look")
        if asyncio.get_running_loop().time() > deadline:
            raise not_stored(visit, node.journal.durable_seq >= seq, what)
        node.journal.hurry = True
        server.due()
        await asyncio.sleep(LOOK_S)


async def settled(visit: Visit) -> None:
    """Wait until all that has been settled so far is safe. Raises as `stored`."""
    visit.server.node.at(visit.server.clock.now_ms())
    await stored(visit, visit.server.node.journal_settlements())
