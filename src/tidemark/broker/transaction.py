"""A transaction of a channel: publishes and settlements that happen together or not at all.

Publishes are checked when they come and kept; settlements are kept by the front end until the commit. A
commit first finds out where everything goes and whether any queue would refuse. Only then does it change
something, and all its records go into one frame of the journal: recovery finds all of them or none. Streams
take part like queues: what is published to them is seen together, and the mark of a consumer that acknowledges
what it read there moves in the same frame.

Invariant: an error of `commit` means that nothing was published and nothing was settled.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Literal

from tidemark.broker import settlement
from tidemark.broker.core import Holder
from tidemark.broker.deadletter import letter_bytes_max, letters_max, prepare, settled_bytes
from tidemark.broker.publishing import Published, Publishing, record_bytes_max
from tidemark.broker.queue import Queue, grouped
from tidemark.errors import PreconditionFailed, TidemarkError
from tidemark.model.records import HEAD_BYTES, Reason
from tidemark.model.runs import BODY, EXCHANGE, FLAGS, KEY, PRIORITY, PROPERTIES, TTL, PublishRun

if TYPE_CHECKING:
    from tidemark.broker.audience import StreamConsumer

Outcome = Literal["accept", "requeue", "reject"]

COUNTED_BYTES = HEAD_BYTES + 8 + 16


class Transaction:
    def __init__(self, publishing: Publishing) -> None:
        self.returned: list[tuple[PublishRun, int, int, str]] = []
        """After `commit`: (run, row, reply code, reply text) of mandatory messages that no queue wanted."""
        self._publishing = publishing
        self._parts: list[bytes] = []
        self._rows: list[tuple[int, ...]] = []
        """Of each publish: the lengths of its four parts, then flags, priority, time to live."""
        self._settled: list[tuple[list[tuple[Holder, int, int]], str]] = []

    def publish(self, run: PublishRun) -> None:
        """Keep these for the commit.

        Raises:
            what `Publishing.plan` raises for the first row that must not be published.
        """
        for row in range(len(run)):
            if self._publishing.plan(run, row).moved is not None:
                raise PreconditionFailed(reason="what a front moves on is in no transaction")
            self._parts += (run.part(row, column) for column in (EXCHANGE, KEY, PROPERTIES, BODY))
            lengths = (run.number(row, column + 1) for column in (EXCHANGE, KEY, PROPERTIES, BODY))
            self._rows.append((*lengths, *(run.number(row, column) for column in (FLAGS, PRIORITY, TTL))))

    def settle(self, popped: list[tuple[Holder, int, int]], outcome: Outcome | str) -> None:
        """What `Unacked.pop` gave has this outcome when the commit succeeds. Called right before it."""
        assert outcome in ("accept", "requeue", "reject")
        self._settled.append((popped, outcome))

    def rollback(self) -> None:
        """Forget everything."""
        self._parts.clear()
        self._rows.clear()
        self._settled.clear()

    def commit(self, now_ms: int) -> Published:
        """Do all of it. With an error in the answer nothing was done; what was to be settled is requeued."""
        run = self._whole_run()
        journal = self._publishing.broker.journal
        touched = {
            queue: None for popped, _ in self._settled for queue in grouped(settlement.of_queues(popped))
        }
        read = self._read()
        try:
            need = self._plan_publishes(run) + self._settlement_bytes_max() + marks_bytes_max(read)
            for queue in touched:
                # What an earlier turn found no room for goes first: it must not push ours into another frame.
                queue.flush_all()
            if need:
                journal.ensure(need)
        except TidemarkError as error:
            for popped, _ in self._settled:
                settlement.requeue(popped)
            self.rollback()
            return Published(error=error, failed_row=0)
        arena = self._publishing.broker.arena
        arena.batch_seq = arena.next_seq
        try:
            published = self._publishing.publish(run, now_ms)
        finally:
            arena.batch_seq = 0
        assert published.error is None and not published.refused
        for popped, outcome in self._settled:
            self._settle(popped, outcome, now_ms)
        for queue in touched:
            queue.flush(Reason.ACCEPTED)
        for consumer, ordinals in read.items():
            _acknowledge(consumer, ordinals)
        if need:
            published.last_seq = max(published.last_seq, journal.last_seq)
        self.returned = [(run, *returned) for returned in published.returned]
        self.rollback()
        return published

    def _whole_run(self) -> PublishRun:
        run = PublishRun(0, b"".join(self._parts))
        start = 0
        for exchange, key, properties, body, flags, priority, ttl_ms in self._rows:
            spans = []
            for length in (exchange, key, properties, body):
                spans.append((start, length))
                start += length
            run.add(spans[0], spans[1], spans[2], spans[3], flags, priority, ttl_ms)
        return run

    def _plan_publishes(self, run: PublishRun) -> int:
        """How many bytes of the journal the publishes need at most.

        Raises:
            PreconditionFailed: a queue would refuse one of them.
        """
        need = 0
        coming: dict[Queue, tuple[int, int]] = {}
        for row in range(len(run)):
            planned = self._publishing.plan(run, row)
            need += record_bytes_max(run, row, planned) + self._publishing.producer_bytes_max(planned)
            size = run.number(row, BODY + 1)
            for queue in planned.queues:
                if queue.guarded:
                    count, size_before = coming.get(queue, (0, 0))
                    coming[queue] = count + 1, size_before + size
                    if queue.refuses(size_before + size, count + 1):
                        raise PreconditionFailed(
                            reason=f"queue '{queue.name}' in vhost '{queue.spec.vhost}' is full: "
                            "nothing of the transaction was committed"
                        )
        return need

    def _read(self) -> dict[StreamConsumer, list[int]]:
        """What is acknowledged of streams, by consumer."""
        read: dict[StreamConsumer, list[int]] = {}
        for popped, outcome in self._settled:
            if outcome == "accept":  # what is given back of a stream is only not acknowledged
                for consumer, ordinals in settlement.of_streams(popped).items():
                    read.setdefault(consumer, []).extend(ordinals)
        return read

    def _settlement_bytes_max(self) -> int:
        arena = self._publishing.broker.arena
        need = 0
        for popped, outcome in self._settled:
            for queue, places in grouped(settlement.of_queues(popped)).items():
                if queue.durable:
                    need += settled_bytes(len(places)) + len(places) * COUNTED_BYTES
                if outcome == "accept" or queue.policy.dead_letter_exchange is None:
                    continue
                prepare(queue)
                # Dead letters settle in steps, each with a record of its own.
                letters = letters_max(queue)
                for lane, index in places:
                    entry = queue.entry(lane, index)
                    need += letter_bytes_max(queue, len(arena.record(entry.loc)), entry.size, letters)
                    need += settled_bytes(1)
        return need

    @staticmethod
    def _settle(popped: list[tuple[Holder, int, int]], outcome: str, now_ms: int) -> None:
        if outcome == "requeue":
            settlement.requeue(popped)
        elif outcome == "reject":
            settlement.reject(popped, now_ms)
        else:
            for queue, places in grouped(settlement.of_queues(popped)).items():
                for lane, index in places:
                    queue.settle(lane, index)


def marks_bytes_max(read: dict[StreamConsumer, list[int]]) -> int:
    """The most that the journal needs for the marks that these acknowledgements move."""
    return sum(
        consumer.mark_bytes_max()
        for consumer, ordinals in read.items()
        if consumer.would_reach(ordinals) is not None
    )


def _acknowledge(consumer: StreamConsumer, ordinals: list[int]) -> None:
    reached = consumer.would_reach(ordinals)
    for ordinal in ordinals:
        consumer.window.settle(ordinal)
    if reached is not None:
        consumer.move_to(reached)
