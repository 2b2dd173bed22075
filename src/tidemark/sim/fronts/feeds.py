"""Both ends of the links over which leaders tell fronts the wiring and where messages wait.

They stand where `runtime/wiring_feed.py` and `runtime/wiring_link.py` stand, and keep their rules: nothing is told before
it is on the leader's disk, an echo comes behind all that was told before it, a link in silence is given up.

Invariant: what a front is told is the image, the mark of its end, and every change since, in order.
"""

from __future__ import annotations

from collections import deque
from functools import partial
from typing import TYPE_CHECKING

from tidemark.broker.feed import WiringFeed, encoded
from tidemark.broker.wiring_copy import FreshCopy
from tidemark.sim.cluster.network import End
from tidemark.sim.store import BrokenPromise
from tidemark.wire.amqp091.content import Amqp091Content
from tidemark.wire.peer.wiring import (
    Change,
    Decoder,
    Echo,
    Greeting,
    Message,
    Ping,
    Waiting,
    Whole,
    encode,
    encode_change,
)

if TYPE_CHECKING:
    from tidemark.sim.fronts.front import Front
    from tidemark.sim.fronts.leader import Leader

FEED = "feed"
"""The kind of these links."""
BEAT_US = 250_000
IDLE_US = 500_000
SILENT_US = 2_000_000
REMIND_US = 2_000_000
PAUSE_US = (20_000, 1_000_000)
SLICE = 8
"""How much of the image is told at a time."""
SLICE_US = 100


class FeedEnd:
    """A leader's end. Fits `broker.feed.Listener`."""

    def __init__(self, leader: Leader, feed: WiringFeed, end: End) -> None:
        self._leader = leader
        self._feed = feed
        self._end = end
        self._decoder = Decoder()
        self._held: deque[tuple[int, bytes]] = deque()
        """What may not be told yet, each with where the catalog must be safe first."""
        self._pending: deque[bytes] = deque()
        self._pumping = False
        self._ended = False
        self._heard_us = self._looked_us = self._reminded_us = self._now_us
        node = leader.node
        end.send(encode(Greeting(leader.name, 0, node.broker.groups)))
        self._image = deque(feed.listen(self))
        self._say(encode(Whole()))
        feed.remind(self)
        self.pump_soon()
        leader.later(BEAT_US, self._look)

    @property
    def _now_us(self) -> int:
        return self._leader.timeline.now_us

    def received(self, items: list[bytes]) -> None:
        self._heard_us = self._now_us
        for message in self._decoder.feed(b"".join(items)):
            if isinstance(message, Echo):
                self._hold(encode(Echo(message.number)))
        self.release()

    def changed(self, change: bytes) -> None:
        self._say(encode_change(change))

    def waits(self, vhost: str, queue: str) -> None:
        self._say(encode(Waiting(vhost, queue)))

    def release(self) -> None:
        """Tell what has become safe."""
        safe = self._leader.node.catalog_durable()
        while self._held and self._held[0][0] <= safe:
            self._queue(self._held.popleft()[1])

    def close(self) -> None:
        if not self._ended:
            self._ended = True
            self._feed.leave(self)
            self._leader.feed_ends.pop(self._end, None)
            self._end.close()

    def _say(self, frame: bytes) -> None:
        if self._held or self._feed.last_seq > self._leader.node.catalog_durable():
            self._hold(frame)
        else:
            self._queue(frame)

    def _hold(self, frame: bytes) -> None:
        self._held.append((self._feed.last_seq, frame))

    def _queue(self, frame: bytes) -> None:
        self._pending.append(frame)
        self.pump_soon()

    def pump_soon(self) -> None:
        if not self._pumping and not self._ended and not self._leader.mute_feeds:
            self._pumping = True
            self._leader.later(SLICE_US, self._pump)

    def _pump(self) -> None:
        self._pumping = False
        if self._ended or self._leader.mute_feeds:
            return
        if self._image:
            specs = [self._image.popleft() for _ in range(min(SLICE, len(self._image)))]
            self._end.send(b"".join(encode_change(encoded(spec)) for spec in specs))
        else:
            self._end.send(b"".join(self._pending))
            self._pending.clear()
        if self._image or self._pending:
            self.pump_soon()

    def _look(self) -> None:
        if self._ended:
            return
        now_us = self._now_us
        if now_us - self._looked_us > BEAT_US + IDLE_US:
            self._heard_us = now_us  # it was we who slept
        self._looked_us = now_us
        if now_us - self._heard_us > SILENT_US:
            self.close()
            return
        self._end.send(encode(Ping()))
        if now_us - self._reminded_us >= REMIND_US and not (self._pending or self._held):
            self._reminded_us = now_us
            self._feed.remind(self)
        self._leader.later(BEAT_US, self._look)


class FeedLink:
    """A front's end: keeps a link to the leader of one group, and a copy of what it tells."""

    def __init__(self, front: Front, group: str) -> None:
        self.copy = FreshCopy(Amqp091Content(), self._ask, self._failed)
        self._front = front
        self._group = group
        self.end: End | None = None
        self._decoder = Decoder()
        self._was_up = False
        self._pause_us = PAUSE_US[0]
        self._heard_us = self._looked_us = front.timeline.now_us

    def dial(self) -> None:
        self.end = self._front.dialled(FEED, self._group)
        self._was_up = False
        self._decoder = Decoder()

    def up(self, end: End) -> None:
        if end is self.end:
            self._heard_us = self._looked_us = self._front.timeline.now_us
            self._front.later(BEAT_US, partial(self._look, end))

    def received(self, end: End, items: list[bytes]) -> None:
        if end is not self.end:
            return
        self._heard_us = self._front.timeline.now_us
        for message in self._decoder.feed(b"".join(items)):
            self._take(message)

    def lost(self, end: End) -> None:
        if end is not self.end:
            return
        self.end = None
        self.copy.lost()
        self._pause_us = PAUSE_US[0] if self._was_up else min(PAUSE_US[1], 2 * self._pause_us)
        self._front.later(self._pause_us, self.dial)

    def _take(self, message: Message) -> None:
        match message:
            case Greeting():
                self.copy.greeted(message.groups)
            case Change(raw):
                self.copy.changed(raw)
            case Whole():
                self._was_up = True
                self._pause_us = PAUSE_US[0]
                self.copy.whole()
            case Echo(number):
                self.copy.echoed(number)
            case Waiting(vhost, queue):
                self._front.waits(self._group, vhost, queue)

    def _ask(self, number: int) -> None:
        assert self.end is not None
        self.end.send(encode(Echo(number)))

    def _failed(self, error: Exception) -> None:
        raise BrokenPromise(f"{self._front.name} fails when its wiring is fresh: {error!r}") from error

    def _look(self, end: End) -> None:
        if end is not self.end:
            return
        now_us = self._front.timeline.now_us
        if now_us - self._looked_us > BEAT_US + IDLE_US:
            self._heard_us = now_us  # it was we who slept
        self._looked_us = now_us
        if now_us - self._heard_us > SILENT_US:
            end.close(abruptly=True)
            self.lost(end)
        else:
            end.send(encode(Ping()))
            self._front.later(BEAT_US, partial(self._look, end))
