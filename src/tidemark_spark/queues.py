"""An AMQP queue as a source of micro-batches.

A queue has no snapshot that could be read again, so its messages are first moved into a stream of the query's own,
`spark.queue.<queue>.<group>`: each move is one transaction of the broker, which acknowledges the messages there and stores
them here. From then on they are read as any other stream is: a batch that runs again has the same rows. What a completed
batch has read is truncated. A message is therefore in the queue, or in the stream, or processed, and never in two of them.
A query without a checkpoint begins at the group's mark, so it reads all that was taken and not processed.

Trigger.AvailableNow moves messages until the queue is empty. A transaction that moved fewer messages than it may was
perhaps cut by their size (broker.batch_bytes_max), so another one follows; two small ones in a row mean that what comes
now is new.

Columns are those of a stream: `stream` is the queue's name, `key` the routing key, `value` the body, `headers` the headers.

Invariant: nothing behind the end of the last completed batch is truncated.
"""

from __future__ import annotations

import logging
from functools import partial
from typing import Self

from tidemark.client.blocking import Client
from tidemark.client.errors import Unconfirmed
from tidemark.errors import NotFound, TidemarkError
from tidemark_spark.broker import BrokerFeed, Head
from tidemark_spark.errors import GroupsDiffer, StreamMissing
from tidemark_spark.micro_batches import MicroBatches
from tidemark_spark.offsets import Offset
from tidemark_spark.options import ReadOptions

log = logging.getLogger("tidemark.spark")

TAKEN_MAX = 32_768
"""What is moved in one transaction."""
TAKEN_BATCH_MAX = 1_000_000
"""What is moved for one batch, unless the user says how many rows it may have."""
SMALL_BYTES = 256 << 10
"""A transaction that moves less than this, and fewer messages than it may, has probably found the end of the queue."""
LOOK_S = 0.05
"""How often an empty queue is looked at."""


def staging_name(queue: str, group: str) -> str:
    """The stream that holds what was taken from a queue and is not processed yet."""
    return f"spark.queue.{queue}.{group}"


class QueueFeed(BrokerFeed):
    """The stream of a queue, and the way into it."""

    def __init__(self, options: ReadOptions) -> None:
        assert options.queue is not None and options.group is not None
        name = staging_name(options.queue, options.group)
        super().__init__(options.url, name, retry_s=options.retry_s, place=options.place)
        self.queue = options.queue

    def declare(self) -> None:
        """Make the stream, where the queue is: a transaction is of one group. It is there from the second time on.

        Raises:
            GroupsDiffer: it was made in another group than the one that we are connected to.
        """
        self._try(self._declare)

    def _declare(self, client: Client) -> None:
        made = client.stream(self.stream, create=True, key="log").client
        if made is not client:
            raise GroupsDiffer(
                stream=self.queue,
                group=client.group_name,
                helper=self.stream,
                helper_group=made.group_name,
            )

    def take(self, limit: int) -> int:
        """Move messages, at most so many, and say how many there were.

        Raises:
            StreamMissing: there is no such queue.
        """
        taken = 0
        while taken < limit:
            asked = min(limit - taken, TAKEN_MAX)
            moved = self._moved(asked)
            taken += moved or 0
            if moved is not None and moved < asked:
                break
        return taken

    def empty(self, limit: int) -> bool:
        """Move messages until there are no more, or so many were moved; whether there are no more.

        Raises:
            StreamMissing: there is no such queue.
        """
        taken, was_small = 0, False
        after = self.head().sequence
        while taken < limit:
            asked = min(limit - taken, TAKEN_MAX)
            moved = self._moved(asked)
            if moved == 0:
                return True
            is_small = False
            if moved is not None and moved < asked:
                is_small = self._bytes_behind(after) < SMALL_BYTES
                if is_small and was_small:
                    return True
            was_small = is_small
            taken += moved or 0
            after = self.head().sequence
        return False

    def _bytes_behind(self, after: int) -> int:
        return self._try(lambda client: self._of(client).lag(after).bytes)

    def _moved(self, limit: int) -> int | None:
        """Move messages in one transaction; None: nobody knows whether there were any."""
        return self._try(partial(self._move, limit=limit))

    def _move(self, client: Client, limit: int) -> int | None:
        try:
            with client.transaction() as tx:
                tx.take(self.queue, into=self.stream, limit=limit)
        except Unconfirmed:
            return None  # they are in the queue, or they are in the stream: the next look tells
        except NotFound:
            raise StreamMissing(stream=self.queue, url=f"{self._place}, nor a queue") from None
        return 0 if tx.receipt is None else tx.receipt.taken

    def truncate(self, upto: int) -> None:
        self._try(lambda client: self._of(client).truncate(upto))


class QueueMicroBatches(MicroBatches):
    """Micro-batches of a queue: as those of its stream, with something to do before and after."""

    _feed: QueueFeed
    _is_empty = False
    """Trigger.AvailableNow: everything that was in the queue is in the stream."""

    @classmethod
    def of(cls, options: ReadOptions, *, cores: int) -> Self:
        feed = QueueFeed(options)
        feed.declare()
        return cls(feed, options, cores=cores, shown=feed.queue)

    def _look(self, after: int, wait_s: float) -> Head:
        """How far the stream goes when the queue has been emptied into it; waits for messages."""
        if self._ends_once:
            self._is_empty = self._is_empty or self._feed.empty(TAKEN_BATCH_MAX)
            return self._feed.head(after)
        limit = self._options.rows_max or TAKEN_BATCH_MAX
        end = self._now() + wait_s
        while not self._feed.take(limit) and self._now() < end:
            self._sleep(min(LOOK_S, max(wait_s, 0.001)))
        return self._feed.head(after)

    def _aim(self, sequence: int) -> None:
        if self._is_empty:
            super()._aim(sequence)

    def _done_with(self, start: Offset) -> None:
        """What was processed need not be kept."""
        if start.sequence and not start.initial:
            try:
                self._feed.truncate(start.sequence)
            except TidemarkError as problem:  # it is tried again with the next batch
                log.warning(
                    "what was taken from queue '%s' could not be truncated: %s", self._feed.queue, problem
                )
