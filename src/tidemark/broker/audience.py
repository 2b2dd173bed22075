"""The consumers of a stream: cursors that go over it, each at its own pace.

A `StreamConsumer` has a `Reader`, which gives it snapshot after snapshot, and a `Window` of what it was given
and has not acknowledged. It gets more while its prefetch and its channel have room. A consumer with a name has
a durable mark, which follows its window: from boundary to boundary, or with every acknowledgement.

An `Audience` is all of them. It is looked at when the stream has more to show or one of them has
acknowledged something; only those are served that can have become able to go on.

Invariant: a consumer never holds more than `prefetch` deliveries, and its mark is never ahead of what it has
acknowledged.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, Any

from tidemark.broker.arguments import StreamReading
from tidemark.broker.consumer import ConsumerStatistics
from tidemark.broker.core import Holder
from tidemark.broker.streams.marks import mark_bytes_max
from tidemark.broker.window import Window
from tidemark.errors import PinExpired, TidemarkError
from tidemark.model.runs import Taken

if TYPE_CHECKING:
    from tidemark.broker.streams.reader import Reader
    from tidemark.broker.streams.snapshots import Marker
    from tidemark.broker.streams.stream import Stream
    from tidemark.ports import StreamSink

TAKE_BYTES_MAX = 256 * 1024
"""About how much a consumer is given at once; between two such gifts it is asked for room again."""

MoveMark = Callable[[int, int, bool], int]
"""Moves the mark to a sequence in a snapshot with this end; True: write it down now, and say which sequence of
the journal that is."""


class StreamConsumer(Holder):
    """One subscription of a channel to a stream."""

    queue: Stream
    window: Window
    no_ack = False
    count_header = False

    def __init__(
        self,
        stream: Stream,
        sink: StreamSink,
        tag: str,
        reading: StreamReading,
        reader: Reader,
        move_mark: MoveMark,
        *,
        prefetch: int,
        exclusive: bool = False,
        arguments: Mapping[str, Any] | None = None,
        was_reset: bool = False,
    ) -> None:
        super().__init__(stream, Window(reader.after, self, stream.audience.due, stream))
        self.sink = sink
        self.tag = tag
        self.reading = reading
        self.prefetch = prefetch
        self.exclusive = exclusive
        self.arguments = dict(arguments or {})
        self.delivered = 0
        self.marked = reader.after
        """Where its mark is, as far as it was moved by us."""
        self.ended = False
        self._ends: deque[int] = deque()
        """The ends of the snapshots that it has something of which it has not acknowledged."""
        self._reader = reader
        self._move_mark = move_mark
        self._tell_reset = was_reset

    def room(self) -> int:
        """How many more deliveries it may be given now."""
        return min(self.sink.room(), self.prefetch - self.unacked)

    def stir(self) -> None:
        """There may be room for it again."""
        self.window.stir()

    def serve(self) -> None:
        """Give it what it has room for, then let its mark follow."""
        while not self.ended and (room := self.room()) > 0:
            if self._tell_reset:
                self._tell_reset = False
                self.sink.deliver_reset(self, self._reader.after)
                continue
            try:
                found = self._reader.next(room, TAKE_BYTES_MAX)
            except PinExpired:
                # It took too long over a snapshot. The next one makes good what it missed of this one: the
                # messages that were superseded meanwhile.
                if self.queue.deleted:
                    break
                continue
            if found is None:
                break
            if isinstance(found, Taken):
                self._give(found)
            else:
                self._pass(found)
        self._follow()

    def _give(self, taken: Taken) -> None:
        follows = self.reading.each and self.reading.consumer is not None
        if follows and (not self._ends or self._ends[-1] != self._reader.snapshot_end):
            self._ends.append(self._reader.snapshot_end)
        self.delivered += len(taken)
        self.queue.delivered += len(taken)
        self.sink.deliver(self, taken)
        if not self.reading.markers and (marker := self._reader.ended()) is not None:
            # Whoever acknowledges the last of a snapshot has reached its end: in one step, with his mark.
            self._pass(marker)

    def _pass(self, marker: Marker) -> None:
        if self.reading.markers:
            self.sink.deliver_marker(self, marker)
        else:
            self.window.add_boundary(marker.to, False)

    # The mark ----------------------------------------------------------------------------

    def _follow(self) -> None:
        reached = self.window.position if self.reading.each else self.window.boundary
        if self.reading.consumer is not None and reached > self.marked and not self.queue.deleted:
            self.marked = reached
            self._move_mark(reached, self._snapshot_end(reached), False)

    def _snapshot_end(self, seq: int) -> int:
        """The end of the snapshot in which `seq` was given."""
        ends = self._ends
        while ends and ends[0] < seq:
            ends.popleft()
        return ends[0] if ends else seq

    def would_reach(self, ordinals: list[int]) -> int | None:
        """Where its mark must go when these are acknowledged; None: it stays."""
        if self.reading.consumer is None or self.queue.deleted:
            return None
        position, boundary = self.window.after(ordinals)
        reached = position if self.reading.each else boundary
        return reached if reached > self.marked else None

    def move_to(self, seq: int) -> int:
        """Write down that its mark is here now. Returns the sequence of the journal that says so."""
        self.marked = seq
        return self._move_mark(seq, self._snapshot_end(seq), True)

    def mark_bytes_max(self) -> int:
        """The most that `move_to` takes in the journal."""
        assert self.reading.consumer is not None
        moves = len(self.reading.shards or (None,))
        return moves * mark_bytes_max(self.reading.consumer, self.queue.policy.shards)

    # The end -----------------------------------------------------------------------------

    def end(self) -> None:
        """It is given nothing any more. What it holds it may still acknowledge."""
        if not self.ended:
            self.ended = True
            self._reader.close()

    def statistics(self) -> ConsumerStatistics:
        return ConsumerStatistics(
            tag=self.tag,
            queue=self.queue.name,
            vhost=self.queue.spec.vhost,
            no_ack=False,
            exclusive=self.exclusive,
            priority=0,
            prefetch=self.prefetch,
            unacked=self.unacked,
            delivered=self.delivered,
            active=True,
            arguments=self.arguments,
        )


class Audience:
    """All consumers of one stream."""

    def __init__(self, stream: Stream) -> None:
        self.consumers: list[StreamConsumer] = []
        self.due: list[StreamConsumer] = []
        """Who has acknowledged something, or has room again, since the last look."""
        self._stream = stream
        self._seen = 0

    def add(self, consumer: StreamConsumer) -> None:
        """Subscribe. Messages follow at the end of the turn."""
        self.consumers.append(consumer)
        consumer.stir()

    def remove(self, consumer: StreamConsumer) -> None:
        """Unsubscribe."""
        if consumer in self.consumers:
            self.consumers.remove(consumer)
        consumer.end()

    def look(self, now_ms: int) -> None:  # noqa: ARG002 - as all looks
        """Serve those who may be able to go on."""
        due = self.due[:]
        del self.due[:]
        for consumer in due:
            consumer.window.stirred = False
        if self._stream.boundary > self._seen:
            self._seen = self._stream.boundary
            due = list(dict.fromkeys((*due, *self.consumers)))
        for consumer in due:
            try:
                consumer.serve()
            except TidemarkError:
                # What it must read is damaged or gone. The others can go on, and it is told.
                self._dismiss(consumer)

    def end(self) -> None:
        """The stream is gone: all are told."""
        for consumer in self.consumers[:]:
            self._dismiss(consumer)

    def _dismiss(self, consumer: StreamConsumer) -> None:
        self.remove(consumer)
        consumer.sink.cancelled(consumer)
