"""One run of `tidemark perf`: queues are made, consumers and publishers go, everything that was confirmed is waited for.

Invariant: publishers begin when all consumers are there, and consumers end when all publishers have.
"""

from __future__ import annotations

import asyncio
import contextlib
import secrets
import ssl
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any

from tidemark.cli.perf.tally import Book, Latencies
from tidemark.cli.perf.wire import Consumer, Form, Login, Peer, PeerError, Publisher
from tidemark.wire.amqp091 import methods as m

PUMP_S = 0.005
"""How often publishers with a rate look whether something is due."""
OPEN_S = 15.0


@dataclass(frozen=True, slots=True, kw_only=True)
class Plan:
    host: str
    port: int
    login: Login
    tls: ssl.SSLContext | None = None
    publishers: int = 1
    consumers: int = 1
    queues: tuple[str, ...] = ()
    """Names; empty: queues of our own, which are deleted in the end."""
    queue_count: int = 1
    kind: str = "classic"
    """classic, quorum, stream, or keyed: a stream that keeps the newest message of each key."""
    durable: bool = True
    arguments: dict[str, Any] = field(default_factory=dict)
    size: int = 128
    keys: int = 0
    rate: float = 0.0
    """Messages a second of all publishers; 0 is as fast as possible."""
    window: int = 1000
    """Most messages of a publisher that are not confirmed; 0: no confirms."""
    prefetch: int = 1000
    no_ack: bool = False
    seconds: float = 10.0
    count: int = 0
    """Messages of all publishers; 0: as many as fit into `seconds`."""
    drain_s: float = 30.0
    """How long what is confirmed may take to arrive in the end."""
    keep: bool = False

    @property
    def is_stream(self) -> bool:
        return self.kind in ("stream", "keyed")


@dataclass(frozen=True, slots=True)
class Second:
    """What happened in one second."""

    at_s: float
    published: float
    confirmed: float
    consumed: float
    confirm_ms: dict[str, float | None]
    deliver_ms: dict[str, float | None]
    blocked: bool


class Run:
    def __init__(self, plan: Plan, tell: Callable[[Second], None] = lambda _: None) -> None:
        self.plan, self.tell = plan, tell
        self.id = secrets.randbits(32)
        own = [f"tidemark-perf-{self.id:08x}-{i}" for i in range(plan.queue_count)]
        self.queues: Sequence[str] = plan.queues or own
        self.publishers: list[Publisher] = []
        self.consumers: list[Consumer] = []
        self.confirm, self.deliver = Latencies(), Latencies()
        self.published_s = 0.0
        """How long publishers published."""
        self.consumed_s = 0.0
        """From the first publish to the last delivery."""
        self._began_s = 0.0
        self.stopped = asyncio.Event()
        """Set to end the run early, with a summary."""

    async def __call__(self) -> dict[str, Any]:
        """Do it all; the summary."""
        control = await self._opened(Peer(self.plan.login))
        try:
            for name in self.queues:
                await control.ask(self._declaration(name), m.QueueDeclareOk)
            try:
                await self._measure()
            finally:
                for peer in (*self.publishers, *self.consumers):
                    await peer.close()
                if not self.plan.keep and not self.plan.queues:
                    for name in self.queues:
                        with contextlib.suppress(PeerError):
                            await control.ask(m.QueueDelete(queue=name), m.QueueDeleteOk)
        finally:
            await control.close()
        return self.summary()

    def _declaration(self, name: str) -> m.QueueDeclare:
        arguments = dict(self.plan.arguments)
        if self.plan.kind != "classic":
            arguments.setdefault("x-queue-type", "stream" if self.plan.is_stream else self.plan.kind)
        if self.plan.kind == "keyed":
            arguments.setdefault("x-stream-key", "message-id")
        durable = self.plan.durable or self.plan.kind != "classic"
        return m.QueueDeclare(queue=name, durable=durable, arguments=arguments)

    async def _opened(self, peer: Any) -> Any:
        loop, plan = asyncio.get_running_loop(), self.plan
        try:
            async with asyncio.timeout(OPEN_S):
                await loop.create_connection(
                    lambda: peer,
                    plan.host,
                    plan.port,
                    ssl=plan.tls,
                    server_hostname=plan.host if plan.tls else None,
                )
                await peer.open()
        except TimeoutError:
            raise PeerError(f"no answer from {plan.host}:{plan.port} in {OPEN_S:g} s") from None
        except ssl.SSLCertVerificationError as problem:
            raise PeerError(
                f"the certificate of {plan.host} is not trusted: {problem.verify_message}; give --ca-file"
            ) from None
        except OSError as problem:
            raise PeerError(
                f"no connection to {plan.host}:{plan.port}: {problem.strerror or problem}; is the broker running?"
            ) from None
        return peer

    # The run -----------------------------------------------------------------------------------------

    async def _measure(self) -> None:
        plan = self.plan
        shared = Book()
        for i in range(plan.consumers):
            # Every consumer of a stream gets all of it; those of a queue share.
            book = Book() if plan.is_stream else shared
            consumer = await self._opened(Consumer(plan.login, self.id, book, no_ack=plan.no_ack))
            self.consumers.append(consumer)
            arguments = {"x-stream-offset": "next"} if plan.is_stream else {}
            await consumer.begin(self.queues[i % len(self.queues)], plan.prefetch, arguments)
        for i in range(plan.publishers):
            keys = tuple(f"{i}-{n}" for n in range(plan.keys))
            form = Form("", self.queues[i % len(self.queues)], plan.size, plan.durable, keys)
            share = plan.rate / plan.publishers if plan.rate else 0.0
            publisher = Publisher(plan.login, self.id, i, form, window=plan.window, rate=share)
            if plan.count:
                publisher.count_max = plan.count // plan.publishers + (i < plan.count % plan.publishers)
            self.publishers.append(await self._opened(publisher))
        self._began_s = time.monotonic()
        teller = asyncio.create_task(self._tell())
        try:
            for publisher in self.publishers:
                await publisher.begin()
            await self._publish()
            self.published_s = time.monotonic() - self._began_s
            await self._drain()
        finally:
            teller.cancel()
            self._gather()

    def _check(self) -> None:
        for peer in (*self.publishers, *self.consumers):
            if peer.failed is not None:
                raise peer.failed

    async def _publish(self) -> None:
        deadline = self._began_s + self.plan.seconds
        while not self.stopped.is_set():
            self._check()
            if self.plan.count or not self.publishers:
                over = bool(self.publishers) and all(one.finished for one in self.publishers)
            else:
                over = False
            if over or (not self.plan.count and time.monotonic() >= deadline):
                break
            with contextlib.suppress(TimeoutError):
                await asyncio.wait_for(self.stopped.wait(), PUMP_S)
            for publisher in self.publishers:
                publisher.pump()
        for publisher in self.publishers:
            publisher.active = False

    async def _drain(self) -> None:
        """Wait for all confirms, then for everything that was confirmed to arrive; as long as something comes."""
        last, changed_s = -1, time.monotonic()
        while True:
            self._check()
            waiting = sum(one.outstanding for one in self.publishers)
            arrived = sum(one.consumed for one in self.consumers)
            if not waiting and (not self.consumers or not self.publishers or self._all_here()):
                break
            if (state := arrived - waiting) != last:
                last, changed_s = state, time.monotonic()
            if time.monotonic() - changed_s > self.plan.drain_s:
                break
            await asyncio.sleep(PUMP_S)
        self.consumed_s = time.monotonic() - self._began_s

    def _all_here(self) -> bool:
        """Whether it is worth counting, and then whether nothing is missing."""
        if self.plan.kind != "keyed":
            for book in {id(one.book): one.book for one in self.consumers}.values():
                least = self._confirmed_for(book)
                if book.count < least:
                    return False
        return self.lost() == 0

    def _confirmed_for(self, book: Book) -> int:
        return sum(one.confirmed if one.window else one.published for one in self._publishers_of(book))

    def _publishers_of(self, book: Book) -> list[Publisher]:
        """Those whose messages must be in a book."""
        count = len(self.queues)
        readers = {i % count for i, one in enumerate(self.consumers) if one.book is book}
        return [one for one in self.publishers if one.index % count in readers]

    def lost(self) -> int:
        """Confirmed, and not seen by a reader that should have; of a keyed stream only the newest of each key."""
        total = 0
        for book in {id(one.book): one.book for one in self.consumers}.values():
            for one in self._publishers_of(book):
                due = (
                    one.newest_of_keys()
                    if self.plan.kind == "keyed" and self.plan.keys
                    else one.confirmed_numbers()
                )
                total += book.missing(one.index, due)
        return total

    # Telling -----------------------------------------------------------------------------------------

    async def _tell(self) -> None:
        before, at = (0, 0, 0), time.monotonic()
        while True:
            await asyncio.sleep(1.0 - (time.monotonic() - self._began_s) % 1.0)
            now = time.monotonic()
            confirm, deliver = self._gather()
            totals = (
                sum(one.published for one in self.publishers),
                sum(one.confirmed for one in self.publishers),
                sum(one.consumed for one in self.consumers),
            )
            published, confirmed, consumed = (
                (new - old) / (now - at) for new, old in zip(totals, before, strict=True)
            )
            blocked = any(one.blocked for one in self.publishers)
            self.tell(
                Second(
                    now - self._began_s,
                    published,
                    confirmed,
                    consumed,
                    confirm.summary(),
                    deliver.summary(),
                    blocked,
                )
            )
            before, at = totals, now

    def _gather(self) -> tuple[Latencies, Latencies]:
        """Move what the ends have noted to the whole; what that was."""
        confirm, deliver = Latencies(), Latencies()
        for peers, part, whole in (
            (self.publishers, confirm, self.confirm),
            (self.consumers, deliver, self.deliver),
        ):
            for peer in peers:
                part.take(peer.latencies)
                peer.latencies = Latencies()
            whole.take(part)
        return confirm, deliver

    def summary(self) -> dict[str, Any]:
        plan = self.plan
        published = sum(one.published for one in self.publishers)
        confirmed = sum(one.confirmed for one in self.publishers)
        consumed = sum(one.consumed for one in self.consumers)
        verified = bool(self.publishers and self.consumers)
        books = {id(one.book): one.book for one in self.consumers}.values()
        seconds = self.published_s or 1e-9
        return {
            "run": f"{self.id:08x}",
            "seconds": round(self.published_s, 3),
            "publishers": plan.publishers,
            "consumers": plan.consumers,
            "size": plan.size,
            "type": plan.kind,
            "window": plan.window,
            "published": published,
            "confirmed": confirmed,
            "consumed": consumed,
            "published_per_s": round(published / seconds, 1),
            "confirmed_per_s": round(confirmed / seconds, 1),
            "consumed_per_s": round(consumed / (self.consumed_s or 1e-9), 1),
            "confirm_ms": self.confirm.summary(),
            "deliver_ms": self.deliver.summary(),
            "unconfirmed": sum(one.outstanding for one in self.publishers),
            "refused": sum(len(one.nacked) for one in self.publishers),
            "redelivered": sum(one.redelivered for one in self.consumers),
            "foreign": sum(one.foreign for one in self.consumers),
            "lost": self.lost() if verified else None,
            "duplicates": sum(book.duplicates for book in books) if verified else None,
        }
