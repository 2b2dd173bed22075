"""Moving messages from a queue into a stream inside a batch: there they are acknowledged, here they are stored.

A `Taker` acquires messages that are ready, as a consumer does, a few at a time, and makes rows of them: the body is
the value, properties stay as they are, and the key is what the stream's rule says of such a message; a log keeps
its routing key. The commit stores the rows and settles the messages in one frame. If there is none the messages go
back to their old places, as if nothing had happened; after a crash before it they are ready again.

Invariant: a message is in `places` from when it was acquired until the batch is committed or it is ready again.
"""

from __future__ import annotations

from collections import deque
from typing import TYPE_CHECKING, Any

from tidemark.broker.groups import stands_in
from tidemark.broker.placing import raw
from tidemark.broker.streams.commit import Put, Settle, Take
from tidemark.broker.streams.core import NO_PROPERTIES
from tidemark.errors import ContentTooLarge, NotAllowed, NotFound, PreconditionFailed, StreamElsewhere
from tidemark.model import keys, records
from tidemark.model.records import HEAD_BYTES
from tidemark.model.rows import KEY_BYTES_MAX, Row, RowBatch

if TYPE_CHECKING:
    from tidemark.broker.queue import Queue
    from tidemark.broker.streams.session import StreamSession
    from tidemark.broker.streams.stream import Stream

STEP_MESSAGES = 256
STEP_BYTES = 4 << 20
STEP_COLD = 16
"""How many extents may be brought back from the disk in one step."""


class Taker:
    """What one operation of a batch takes. Close it, whatever happens."""

    def __init__(self, session: StreamSession, take: Take) -> None:
        """
        Raises:
            AccessRefused, NotFound, ResourceLocked: a queue that the user may not read.
            NotAllowed: it is a stream.
            PreconditionFailed: a limit that cannot be.
        """
        if take.limit < 1:
            raise PreconditionFailed(reason=f"take: 'limit' must be at least 1, not {take.limit}")
        queue: Any = session.session.queue(take.queue, "read")
        if queue.keeps:
            raise NotAllowed(
                reason=f"'{take.queue}' is a stream: its messages are read or copied, and stay. Take from a queue"
            )
        if stands_in(queue):
            raise StreamElsewhere(stream=take.queue, group=queue.spec.group, number=queue.spec.life)
        if queue.spec.group:
            raise NotAllowed(
                reason=f"queue '{take.queue}' lives in group '{queue.spec.group}'; take from it on a connection to that group"
            )
        self._queue: Queue = queue
        self._stream: Stream = session.stream(take.into, "write")
        self._into = take.into
        self._left = take.limit
        self._acquired: deque[tuple[int, int]] = deque()
        """(lane, index) of those that are not read yet; the last of `places`."""
        self._rows: list[Row] = []
        self.settle = Settle(queue, [])
        queue.renew()

    @property
    def count(self) -> int:
        return len(self._rows)

    def step(self, bytes_left: int) -> tuple[int, bool]:
        """Take and read some. How many bytes of the journal their rows need at most, and whether there may be more.

        Stops before a message that has no room in `bytes_left`, unless it would be the first one.

        Raises:
            NotFound: the queue was deleted meanwhile.
            ContentTooLarge: the first one alone needs more.
            CorruptRecord: one cannot be read from the disk.
        """
        if self._queue.deleted:
            raise NotFound(reason=f"queue '{self._queue.name}' was deleted while messages were taken from it")
        if not self._acquired and not self._acquire():
            return 0, False
        arena, need, cold = self._queue.arena, 0, 0
        while self._acquired and need < STEP_BYTES:
            lane, index = self._acquired[0]
            loc = self._queue.entry(lane, index).loc
            if not arena.extent(loc >> 32).resident:
                cold += 1
                if cold > STEP_COLD:
                    break
            row = self._row(arena.record(loc))
            size = _record_bytes(row)
            if need + size > bytes_left:
                if not self._rows:
                    raise ContentTooLarge(
                        reason=f"the next message of queue '{self._queue.name}' takes {size} bytes of the journal, "
                        f"{bytes_left} are left of broker.batch_bytes_max; raise that setting, or take it by itself"
                    )
                self._give_back(len(self._acquired))
                self._left = 0
                break
            self._acquired.popleft()
            self._rows.append(row)
            need += size
        return need, bool(self._acquired or self._left)

    def _acquire(self) -> bool:
        queue = self._queue
        if not self._left or queue.locked:
            return False
        queue.refresh()
        expired_ms = queue.broker.wakes.over_ms(queue.broker.now_ms)
        taken = queue.take_living(min(self._left, STEP_MESSAGES), STEP_BYTES, expired_ms)
        if taken is None:
            return False
        places = [(taken.lane, entry[0]) for entry in taken]
        self.settle.places.extend(places)
        self._acquired += places
        self._left -= len(places)
        return True

    def _row(self, record: memoryview) -> Row:
        message = records.decode_message(record)
        stream = self._stream
        key = keys.key_of(record, stream.key_kind, stream.key_name)
        if stream.policy.is_log:
            key = raw(message.key)
        if key is not None and len(key) > KEY_BYTES_MAX:
            key = None
        tombstone = key is not None and keys.says_tombstone(record)
        return Row(key, message.body, message.properties or NO_PROPERTIES, tombstone)

    @property
    def operations(self) -> tuple[Put, Settle]:
        """What the batch does instead: puts the rows, and settles the messages."""
        return Put(self._into, RowBatch.build(self._rows)), self.settle

    def _give_back(self, count: int) -> None:
        """The last ones that were acquired are ready again."""
        for lane, index in reversed(self.settle.places[len(self.settle.places) - count :]):
            self._queue.requeue(lane, index, False)
        del self.settle.places[len(self.settle.places) - count :]
        self._acquired.clear()

    def close(self) -> None:
        """What was not settled is ready again, in its old place. Closing twice is no error."""
        self._give_back(len(self.settle.places))
        self._rows.clear()


def _record_bytes(row: Row) -> int:
    return HEAD_BYTES + 16 + len(row.key or b"") + len(row.value) + len(row.properties)
