"""The delivery tags of one channel: which entry of which queue each one stands for, until it is settled.

What a consumer of a stream is given is in its window: there the entry is an ordinal of the window.
"""

from __future__ import annotations

from typing import Any

from tidemark.broker._window_py import Window
from tidemark.model._runs_py import Taken


class Holder:
    """Whoever has messages of one queue: a consumer, or a channel that used get; of a stream, with a window."""

    def __init__(self, queue: Any, window: Window | None = None) -> None:
        self.queue = queue
        """A QueueCore, or with a window a stream."""
        self.window = window
        self.unacked = 0


class Unacked:
    """The delivery tags of one channel: which entry each one stands for."""

    def __init__(self) -> None:
        self.last_tag = 0
        self.count = 0
        self.bytes = 0
        self._tags: dict[int, tuple[Holder, int, int, int]] = {}

    def skip(self, count: int) -> int:
        """Tags for deliveries that need no ack. Returns the first."""
        self.last_tag += count
        return self.last_tag - count + 1

    def add(self, holder: Holder, taken: Taken) -> int:
        """Tags for these deliveries. Returns the first; the others follow it."""
        first = self.last_tag + 1
        ordinal = -1 if holder.window is None else holder.window.add(taken)
        for position, (index, _, _, size, _, _) in enumerate(taken):
            self.last_tag += 1
            place = index if ordinal < 0 else ordinal + position
            self._tags[self.last_tag] = (holder, taken.lane, place, size)
            self.bytes += size
        holder.unacked += len(taken)
        self.count += len(taken)
        return first

    def add_boundary(self, holder: Holder, seq: int) -> int:
        """A tag for a boundary that the consumer is told of. Returns it."""
        assert holder.window is not None
        self.last_tag += 1
        self._tags[self.last_tag] = (holder, 0, holder.window.add_boundary(seq, True), 0)
        holder.unacked += 1
        self.count += 1
        return self.last_tag

    def oldest(self) -> tuple[int, Holder] | None:
        """The oldest outstanding tag and who holds its message; None if none is outstanding."""
        for tag, (holder, *_) in self._tags.items():
            return tag, holder
        return None

    def accept(self, first: int, last: int) -> int:
        """Settle the outstanding tags first..last; (0, last) is 'all up to', (0, 0) 'all'.

        Returns how many there were. The queues are touched. 0 means an unknown tag, which the
        front end answers with an error (for (0, 0) it is none).
        """
        popped = self.pop(first, last)
        for holder, lane, index in popped:
            if holder.window is None:
                holder.queue.settle(lane, index)
            else:
                holder.window.settle(index)
        return len(popped)

    def pop(self, first: int, last: int) -> list[tuple[Holder, int, int]]:
        """Take the outstanding tags first..last out, for the caller to settle or requeue.

        (holder, lane, index) of each, in tag order; the same forms as `accept`.
        """
        if first == 0:
            wanted = [tag for tag in self._tags if tag <= last or last == 0]
        else:
            wanted = [tag for tag in range(first, last + 1) if tag in self._tags]
        popped = []
        for tag in wanted:
            holder, lane, index, size = self._tags.pop(tag)
            holder.unacked -= 1
            self.count -= 1
            self.bytes -= size
            popped.append((holder, lane, index))
        return popped
