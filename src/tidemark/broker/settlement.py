"""What becomes of messages that a channel had and does not accept: they go back, or they are given up.

Both take what `Unacked.pop` gives. Accepting is `Unacked.accept`, compiled. Messages of a queue that was
deleted meanwhile are nobody's: nothing happens to them. A stream keeps its messages whoever reads them: what
its consumer gives back it will not be given again, unless it consumes anew.

A message that is given back counts one more delivery that failed. On a queue with a delivery limit that
count is written down, so a message that kills its consumers cannot outlive restarts, and a message over
the limit is given up instead.

Invariant: every message that was popped is ready again, a dead letter, or written down as settled.
"""

from __future__ import annotations

from collections.abc import Iterable
from contextlib import suppress
from typing import TYPE_CHECKING

from tidemark.broker.core import FLAG_DURABLE, Holder
from tidemark.broker.queue import Queue, grouped
from tidemark.errors import StoreError
from tidemark.model.records import Reason

if TYPE_CHECKING:
    from tidemark.broker.audience import StreamConsumer

Popped = Iterable[tuple[Holder, int, int]]
"""(holder, lane, index) of each, as `Unacked.pop` gives them."""


def of_queues(popped: Popped) -> list[tuple[Holder, int, int]]:
    """Those that are not of streams."""
    return [each for each in popped if each[0].window is None]


def of_streams(popped: Popped) -> dict[StreamConsumer, list[int]]:
    """Of those that are of streams: the ordinals, by consumer."""
    found: dict[StreamConsumer, list[int]] = {}
    for holder, _, ordinal in popped:
        if holder.window is not None:
            found.setdefault(holder, []).append(ordinal)  # type: ignore[arg-type]
    return found


def requeue(popped: Popped) -> None:
    """Messages return to their old places, marked as delivered before."""
    for queue, places in grouped(of_queues(popped)).items():
        if queue.policy.delivery_limit is not None:
            _requeue_counted(queue, places, queue.policy.delivery_limit)
            continue
        queue.redelivered += len(places)
        for lane, index in places:
            queue.requeue(lane, index, True)


def _requeue_counted(queue: Queue, places: list[tuple[int, int]], limit: int) -> None:
    over: list[tuple[int, int]] = []
    counts: list[tuple[int, int]] = []
    for lane, index in places:
        entry = queue.entry(lane, index)
        if entry.deliveries + 1 > limit:
            over.append((lane, index))
            continue
        if entry.flags & FLAG_DURABLE:
            counts.append((entry.seq, entry.deliveries + 1))
        queue.redelivered += 1
        queue.requeue(lane, index, True)
    if counts:
        # Without room on the disk the count is only in memory: after a restart the message has more chances.
        with suppress(StoreError):
            queue.broker.journal.counted(queue.number, counts, queue.broker.now_ms)
    if over:
        # Without room they are ready again, as they were: a connection must be able to end.
        with suppress(StoreError):
            queue.discard(over, Reason.DELIVERY_LIMIT)


def reject(popped: Popped, now_ms: int) -> None:  # noqa: ARG001 - part of the contract of settlements
    """Messages are given up: to the dead-letter exchange, or away."""
    problem: StoreError | None = None
    for queue, places in grouped(of_queues(popped)).items():
        try:
            queue.discard(places, Reason.REJECTED)
        except StoreError as error:
            problem = error  # those of this queue are ready again; the other queues' are not lost over it
    if problem is not None:
        raise problem
