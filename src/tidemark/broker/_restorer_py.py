"""Recovery: the records of the journal, applied to queues and streams in the order they were written."""

from __future__ import annotations

from collections.abc import Mapping

from tidemark.broker._queue_py import expiry_ms
from tidemark.broker._target_py import Target
from tidemark.model import records
from tidemark.model._arena_py import Arena


class Restorer:
    """Recovery: applies the records of the journal to the queues, in the order they were written."""

    def __init__(self, arena: Arena, queues: Mapping[int, Target]) -> None:
        self.arena = arena
        self.messages = 0
        self.settled = 0
        self.last_seq = 0
        self._queues = queues

    def frame(self, extent: int, start: int, end: int, after_seq: int = 0) -> None:
        """Apply the records in these bytes of a resident extent.

        Targets that the catalog does not know are skipped: their queue was deleted. Records up to
        `after_seq` were applied before (a checkpoint has them): of these only the places count.
        """
        at = start
        while at < end:
            record = self.arena.record(extent << 32 | at)
            if records.record_seq(record) > after_seq:
                self._apply(extent << 32 | at, record)
            elif records.record_type(record) == records.RecordType.MESSAGE:
                self._relocate(extent << 32 | at, record)
            at += len(record)

    def _relocate(self, loc: int, record: memoryview) -> None:
        message = records.decode_message(record)
        for offset, number in enumerate(message.targets):
            queue = self._queues.get(number)
            if queue is not None:
                queue.relocate(message.seq + offset, loc)

    def _apply(self, loc: int, record: memoryview) -> None:
        kind = records.record_type(record)
        last = records.record_seq(record)
        if kind == records.RecordType.MESSAGE:
            message = records.decode_message(record)
            last += len(message.targets) - 1
            ttl = -1 if message.ttl_ms is None else message.ttl_ms
            for offset, number in enumerate(message.targets):
                queue = self._queues.get(number)
                if queue is not None and queue.durable:
                    of_queue = -1 if message.ttl_whole else queue.ttl_ms
                    expires = expiry_ms(message.accepted_ms, ttl, of_queue)
                    queue.restore(message.seq + offset, loc, len(message.body), message.priority, expires, 0)
                    self.messages += 1
        elif kind == records.RecordType.SETTLED:
            settled = records.decode_settled(record)
            queue = self._queues.get(settled.queue)
            if queue is not None:
                for first, count in settled.ranges:
                    for seq in range(first, first + count):
                        self.settled += queue.forget(seq)
        elif kind == records.RecordType.COUNTED:
            number, counts = records.decode_counted(record)
            queue = self._queues.get(number)
            if queue is not None:
                for seq, deliveries in counts:
                    queue.set_deliveries(seq, deliveries)
        self.last_seq = max(self.last_seq, last)
