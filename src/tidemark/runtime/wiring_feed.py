"""A leader's side of the links over which fronts are told the wiring, by main, and by any group where messages wait for them.

    broker ─changes─► WiringFeed ─► FeedLink (one a front) ─ image, then changes, then whatever follows ─►
                                        ◄─ Echo(n) ─         answered behind all changes made before it came

The image is a list of values that do not change, taken in one moment; it is written in slices, as fast as the front reads
and the loop has time, and changes that are made meanwhile wait behind it. A front that does not read is cut off, for it can always
begin anew: after `STALLED_S` in which its socket took nothing, or when more than `PENDING_BYTES_MAX` wait for it.

An echo promises that its asker has missed nothing. Only a member that leads and can prove it may say so; one that
cannot at the moment holds its answer back, and one that does not lead any more closes the link.

Nothing is said before it is complete, that is, before whoever leads next is sure to have it: a front that routed by a delete
that the next leader never heard of would keep a message from a queue that is still there. A change waits for its own place
in the catalog, and all that is said behind it waits, too; while nothing is on its way to other members nothing waits.

A front that passes everything on to main wants none of this but the greeting, and pings: who leads, and that it does not hang (`NoWiring`).

Where messages wait is said when they begin to, behind the image, and again every `REMIND_S` while nobody takes them.

Invariant: what a front is sent is the image, the mark of its end, and every change since, in the order in which they were made;
what came with the mark or behind it is complete.
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Callable, Iterator
from typing import cast

from tidemark.broker.broker import Broker
from tidemark.broker.feed import Listener, WiringFeed, encoded
from tidemark.errors import PeerFault
from tidemark.model.peers import Name
from tidemark.model.wiring import Spec
from tidemark.runtime.log import Log
from tidemark.runtime.peers import BEAT_S, IDLE_S, SILENT_S, no_delay
from tidemark.wire.peer.wiring import (
    Decoder,
    Echo,
    Elsewhere,
    Greeting,
    Message,
    Ping,
    Waiting,
    Whole,
    encode,
    encode_change,
)

SLICE_BYTES = 64 << 10
"""How much is encoded and written before the loop does something else: about two milliseconds."""
BUFFER_BYTES = 1 << 20
"""More than this is not given to a socket that has not taken it."""
PENDING_BYTES_MAX = 16 << 20
STALLED_S = 5.0
HELD_MAX = 1024
"""Echoes that wait. A front has one on its way at a time."""
REMIND_S = 2.0
PING = encode(Ping())


class NoWiring:
    """In place of a `WiringFeed`, for a front that wants to know only who leads, and that it does not hang."""

    last_seq = 0

    def listen(self, _: Listener) -> list[Spec]:
        return []

    def remind(self, _: Listener) -> None:
        """Nothing waits for it."""

    def leave(self, _: Listener) -> None:
        """It was nowhere."""


NO_WIRING = NoWiring()


class Feeds:
    """All fronts that this member tells its wiring."""

    def __init__(self, log: Log, leads: Callable[[], bool], complete: Callable[[], int]) -> None:
        """`leads`: whether this member leads and can prove it, now; `complete`: up to where its catalog is safe."""
        self.log = log
        self.leads = leads
        self.complete = complete
        self.links: set[FeedLink] = set()
        self._feed: WiringFeed | None = None
        self._broker: Broker | None = None

    def link(self, front: Name, greeting: Greeting, broker: Broker, *, wiring: bool = True) -> FeedLink:
        """Who takes the socket of a front. This member leads, with this broker. Without `wiring` it is told no more than that."""
        if not wiring:
            return FeedLink(self, NO_WIRING, front, greeting)
        if self._feed is None or self._broker is not broker:
            self.cut("another node leads here now")
            self._feed, self._broker = WiringFeed(broker), broker
        return FeedLink(self, self._feed, front, greeting)

    def proven(self) -> None:
        """This member can prove again that it leads: give the answers that waited for it."""
        for link in list(self.links):
            link.release(proven=True)

    def completed(self) -> None:
        """More of the catalog may be complete: say what waited for it."""
        for link in list(self.links):
            if link.holds:
                link.release()

    def cut(self, why: str) -> None:
        """It does not lead any more, or ends."""
        for link in list(self.links):
            link.end(why)
        self._feed = self._broker = None


class FeedLink(asyncio.Protocol):
    """The link of one front. Fits `broker.feed.Listener`."""

    def __init__(self, feeds: Feeds, feed: WiringFeed | NoWiring, front: Name, greeting: Greeting) -> None:
        self.front = front
        self.transport: asyncio.Transport
        self._feeds = feeds
        self._feed = feed
        self._greeting = greeting
        self._decoder = Decoder()
        self._image: Iterator[Spec] | None = None
        self._pending: deque[bytes] = deque()
        self._pending_bytes = 0
        self._held: deque[tuple[int, bytes, bool]] = deque()
        """What may not be said yet: up to where the catalog must be complete first, the frame, and whether it is an echo."""
        self._echoes = 0
        self._untold: set[tuple[str, str]] = set()
        """Queues whose names cannot be told; that has been logged."""
        self._scheduled = False
        self._ended = False
        self._loop = asyncio.get_running_loop()
        self._heard_s = self._sent_s = self._looked_s = self._reminded_s = self._loop.time()
        self._full_since_s: float | None = None
        self._timer: asyncio.TimerHandle | None = None

    # The socket ------------------------------------------------------------------------------------------------

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self.transport = cast(asyncio.Transport, transport)
        self.transport.set_write_buffer_limits(BUFFER_BYTES)
        no_delay(transport)
        self._feeds.links.add(self)
        self._feeds.log.info("front listens", front=self.front, epoch=self._greeting.epoch)
        self._image = iter(self._feed.listen(self))
        self._say(encode(Whole()))
        self._feed.remind(self)
        self._write(encode(self._greeting))
        self._schedule()
        self._timer = self._loop.call_later(BEAT_S, self._look)

    def data_received(self, data: bytes) -> None:
        self._heard_s = self._loop.time()
        try:
            for message in self._decoder.feed(data):
                self._take(message)
        except PeerFault as fault:
            self._cut_off(fault.reason)

    def pause_writing(self) -> None:
        self._full_since_s = self._loop.time()

    def resume_writing(self) -> None:
        self._full_since_s = None
        self._schedule()

    def connection_lost(self, exc: Exception | None) -> None:
        if not self._ended:
            self._forget()
            why = "it closed the link" if exc is None else str(exc).lower() or type(exc).__name__
            self._feeds.log.info("front gone", front=self.front, why=why)

    # What it is told ---------------------------------------------------------------------------------------------

    def changed(self, change: bytes) -> None:
        self._say(encode_change(change))

    def waits(self, vhost: str, queue: str) -> None:
        try:
            frame = encode(Waiting(vhost, queue))
        except ValueError as error:
            # The front and the broker's turn need all the others.
            if (vhost, queue) not in self._untold:
                self._untold.add((vhost, queue))
                self._feeds.log.error(
                    "unexpected exception", where="wiring feed", vhost=vhost, queue=queue, error=error
                )
            return
        self._say(frame)

    @property
    def holds(self) -> bool:
        return bool(self._held)

    def release(self, *, proven: bool = False) -> None:
        """Say what may be said now. `proven`: this member can prove that it leads, and need not be asked."""
        # Asking may tell us that we do not lead, and then nothing is held any more.
        proven = proven or (self._echoes > 0 and self._feeds.leads())
        complete, held = self._feeds.complete(), self._held
        while held and held[0][0] <= complete and (proven or not held[0][2]):
            _, frame, is_echo = held.popleft()
            self._pending_bytes -= len(frame)
            self._echoes -= is_echo
            self._queue(frame)

    def end(self, why: str) -> None:
        """Close it at once: what is on its way may not be true any more."""
        if not self._ended:
            self._forget()
            self._feeds.log.info("front gone", front=self.front, why=why)
            self.transport.abort()

    def _take(self, message: Message) -> None:
        if self._ended or isinstance(message, Ping):
            return
        if not isinstance(message, Echo):
            raise PeerFault(reason=f"a front does not say {type(message).__name__}")
        if self._echoes >= HELD_MAX:
            raise PeerFault(reason=f"more than {HELD_MAX} echoes wait")
        self._hold(encode(Echo(message.number)), is_echo=True)
        self.release()

    def _say(self, frame: bytes) -> None:
        """Say it behind all that waits, and when all that has been done so far is complete."""
        if self._held or self._feed.last_seq > self._feeds.complete():
            self._hold(frame)
        else:
            self._queue(frame)

    def _hold(self, frame: bytes, *, is_echo: bool = False) -> None:
        if not self._ended:
            self._held.append((self._feed.last_seq, frame, is_echo))
            self._echoes += is_echo
            self._count(frame)

    def _queue(self, frame: bytes) -> None:
        if self._ended:
            return
        self._pending.append(frame)
        self._count(frame)
        self._schedule()

    def _count(self, frame: bytes) -> None:
        self._pending_bytes += len(frame)
        if self._pending_bytes > PENDING_BYTES_MAX:
            self._cut_off(f"it does not read: more than {PENDING_BYTES_MAX} bytes wait for it")

    def _schedule(self) -> None:
        if not self._scheduled and self._full_since_s is None and not self._ended:
            self._scheduled = True
            self._loop.call_soon(self._pump)

    def _pump(self) -> None:
        """Write the next slice; the rest in the next turns of the loop."""
        self._scheduled = False
        if self._ended or self._full_since_s is not None:
            return
        pieces: list[bytes] = []
        size = 0
        while size < SLICE_BYTES:
            piece = self._next()
            if piece is None:
                break
            pieces.append(piece)
            size += len(piece)
        if pieces:
            self._write(b"".join(pieces))
        if self._image is not None or self._pending:
            self._schedule()

    def _next(self) -> bytes | None:
        if self._image is not None:
            spec = next(self._image, None)
            if spec is not None:
                return encode_change(encoded(spec))
            self._image = None
        if not self._pending:
            return None
        frame = self._pending.popleft()
        self._pending_bytes -= len(frame)
        return frame

    def _write(self, data: bytes) -> None:
        self._sent_s = self._loop.time()
        self.transport.write(data)

    # How it is ---------------------------------------------------------------------------------------------------

    def _look(self) -> None:
        now_s = self._loop.time()
        if now_s - self._looked_s > BEAT_S + IDLE_S:
            # It was we who slept: what it said and read meanwhile has not been seen yet.
            self._heard_s = now_s
            if self._full_since_s is not None:
                self._full_since_s = now_s
        self._looked_s = now_s
        if now_s - self._heard_s > SILENT_S:
            self._cut_off(f"nothing was heard for {SILENT_S} s")
        elif self._full_since_s is not None and now_s - self._full_since_s > STALLED_S:
            self._cut_off(f"it has read nothing for {STALLED_S} s")
        else:
            self._timer = self._loop.call_later(BEAT_S, self._look)
            if now_s - self._sent_s >= IDLE_S and self._full_since_s is None:
                self._write(PING)
            if now_s - self._reminded_s >= REMIND_S and not (self._pending or self._held):
                self._reminded_s = now_s
                self._feed.remind(self)

    def _cut_off(self, why: str) -> None:
        if not self._ended:
            self._forget()
            self._feeds.log.warning("front cut off", front=self.front, why=why)
            self.transport.abort()

    def _forget(self) -> None:
        self._ended = True
        self._feed.leave(self)
        self._feeds.links.discard(self)
        self._image = None
        self._pending.clear()
        self._held.clear()
        self._echoes = 0
        if self._timer is not None:
            self._timer.cancel()


class TurnedAway(asyncio.Protocol):
    """Tells a front that came to a member that does not lead where to go."""

    def __init__(self, elsewhere: Elsewhere) -> None:
        self._elsewhere = elsewhere

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        socket = cast(asyncio.Transport, transport)
        socket.write(encode(self._elsewhere))
        socket.close()
