"""Numbers for a queue of each group, through fronts: what `tidemark cluster load` does where there are several groups.

Each number is confirmed before the next is sent. What was not confirmed when a connection ended is sent again over another
address, so it may be there twice; everything else is there once, in order.

Invariant: a number is counted as confirmed only if it was.
"""

from __future__ import annotations

import asyncio
import secrets
import time
from collections import Counter
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass, field
from itertools import cycle, islice, pairwise
from typing import TypeVar

from tidemark.cli import CommandError
from tidemark.cli.connection import FIRST_PASSWORD, FIRST_USER
from tidemark.cli.load import LOOK_S, Ending, Result, progress
from tidemark.cli.perf.wire import TAG, Login, Peer, PeerError
from tidemark.wire.amqp091 import methods as m
from tidemark.wire.amqp091.frames import BODY, encode_content
from tidemark.wire.amqp091.properties import Properties, encode_properties

ANSWER_S = 15.0
"""A connection on which nothing was answered for so long is given up."""
PATIENCE_S = 60.0
"""How long addresses are tried one after the other before the load is."""
PAUSE_S = 0.05
LOGIN = Login(FIRST_USER, FIRST_PASSWORD, "/")
PERSISTENT = encode_properties(Properties(delivery_mode=2))

T = TypeVar("T")


class Writer(Peer):
    """Publishes one message at a time."""

    async def publish(self, queue: str, body: bytes) -> None:
        """Returns when it is confirmed. Raises PeerError."""
        if self.failed is not None:
            raise self.failed
        confirmed: asyncio.Future[m.Method] = asyncio.get_running_loop().create_future()
        self._waiting = (m.BasicAck, confirmed)
        method = m.encode_method(1, m.BasicPublish(routing_key=queue, mandatory=True))
        self.transport.write(method + encode_content(1, PERSISTENT, body, self.frame_max))
        await confirmed

    def other(self, method: m.Method) -> None:
        if isinstance(method, m.BasicReturn | m.BasicNack):
            self._fail("a message was not taken")


class Reader(Peer):
    """Reads what a queue has, and acknowledges nothing."""

    def __init__(self, login: Login) -> None:
        super().__init__(login)
        self.bodies: list[bytes] = []

    def content(self, kind: int, payload: bytes) -> None:
        if kind == BODY:
            self.bodies.append(payload)

    async def read(self, queue: str) -> list[int]:
        declared = await self.ask(m.QueueDeclare(queue=queue, passive=True), m.QueueDeclareOk)
        await self.ask(m.BasicConsume(queue=queue, consumer_tag=TAG, no_ack=False), m.BasicConsumeOk)
        deadline_s = time.monotonic() + PATIENCE_S
        while len(self.bodies) < declared.message_count and time.monotonic() < deadline_s:
            if self.failed is not None:
                raise self.failed
            await asyncio.sleep(PAUSE_S)
        return [int(body) for body in self.bodies]


P = TypeVar("P", bound=Peer)


@dataclass(slots=True)
class GroupLoad:
    """What is written to the queue of one group."""

    group: str
    queue: str
    confirmed: int = 0
    again: set[int] = field(default_factory=set)
    """What was sent more than once."""
    longest_s: float = 0.0
    longest_now_s: float = 0.0
    """Since the last line that was told."""
    last_s: float = field(default_factory=time.monotonic)
    """When the last one was confirmed."""
    writing: bool = True
    found: list[int] | None = None
    """None: they were not read back."""

    def count(self) -> None:
        """One more is confirmed."""
        now_s = time.monotonic()
        self.confirmed += 1
        self.longest_now_s = max(self.longest_now_s, now_s - self.last_s)
        self.longest_s = max(self.longest_s, self.longest_now_s)
        self.last_s = now_s

    @property
    def still_s(self) -> float:
        """For how long nothing has been confirmed that should be."""
        return time.monotonic() - self.last_s if self.writing else 0.0

    def result(self) -> Result:
        longest_ms = round(max(self.longest_s, self.still_s) * 1000)
        if self.found is None:
            return Result(self.confirmed, None, None, longest_ms)
        first = list(dict.fromkeys(self.found))
        twice = {number for number, count in Counter(self.found).items() if count > 1}
        return Result(
            self.confirmed,
            missing=len(set(range(1, self.confirmed + 1)) - set(self.found)),
            wrong=sum(one >= other for one, other in pairwise(first)) + len(twice - self.again),
            longest_gap_ms=longest_ms,
        )


class QueueLoad:
    def __init__(
        self,
        addresses: Sequence[str],
        groups: Sequence[str],
        *,
        quiet: bool = True,
        hopeless: Callable[[], bool] = lambda: False,
    ) -> None:
        run = secrets.token_hex(4)
        self.loads = [GroupLoad(group, f"load-{run}-{group}") for group in groups]
        self.over = asyncio.Event()
        """Set to end it early; what is on its way is still answered."""
        self.ending = Ending(hopeless)
        self._addresses = list(addresses)
        self._quiet = quiet

    async def run(self, seconds: float) -> dict[str, Result]:
        """Write for so long, 0 is until `over` or the `ending` is asked for; then read everything back. Returns the outcome
        by group.

        Raises:
            CommandError: no address takes a connection, or a queue cannot be had.
        """
        if seconds:
            asyncio.get_running_loop().call_later(seconds, self.over.set)
        telling = asyncio.create_task(self._tell())
        working = asyncio.create_task(self._work())
        try:
            while not (await asyncio.wait([working], timeout=LOOK_S))[0]:
                if self.ending.count:
                    self.over.set()
                    if self.ending.gives_up(writing=any(one.writing for one in self.loads)):
                        return {one.group: one.result() for one in self.loads}
            working.result()
        except* CommandError as problems:
            raise problems.exceptions[0] from None
        finally:
            telling.cancel()
            working.cancel()
        return {one.group: one.result() for one in self.loads}

    async def _work(self) -> None:
        async with asyncio.TaskGroup() as tasks:
            for number, one in enumerate(self.loads):
                tasks.create_task(self._write(one, number))
        for one in self.loads:
            one.found = await self._with(Reader, 0, lambda peer, one=one: peer.read(one.queue))  # type: ignore[misc]
            await self._with(Peer, 0, lambda peer, one=one: _delete(peer, one.queue))  # type: ignore[misc]

    async def _write(self, one: GroupLoad, number: int) -> None:
        declare = m.QueueDeclare(queue=one.queue, durable=True, arguments={"x-group": one.group})
        await self._with(Peer, number, lambda peer: peer.ask(declare, m.QueueDeclareOk))
        one.last_s = time.monotonic()

        async def publish(peer: Writer) -> None:
            await peer.ask(m.ConfirmSelect(), m.ConfirmSelectOk)
            while not self.over.is_set():
                try:
                    async with asyncio.timeout(ANSWER_S):
                        await peer.publish(one.queue, b"%d" % (one.confirmed + 1))
                except (PeerError, TimeoutError):
                    one.again.add(one.confirmed + 1)
                    raise
                one.count()

        await self._with(Writer, number, publish)
        one.writing = False

    async def _with(self, kind: type[P], first: int, work: Callable[[P], Awaitable[T]]) -> T:
        """Do something on a connection, and again on another when it ends meanwhile."""
        deadline_s = time.monotonic() + PATIENCE_S
        for address in islice(cycle(self._addresses), first % len(self._addresses), None):
            peer, began_s = kind(LOGIN), time.monotonic()
            try:
                async with asyncio.timeout(ANSWER_S):
                    await _open(peer, address)
                done = await work(peer)
            except (PeerError, TimeoutError, OSError) as problem:
                if time.monotonic() - began_s > ANSWER_S:
                    deadline_s = time.monotonic() + PATIENCE_S  # it was of use for a while
                if time.monotonic() > deadline_s:
                    raise CommandError(f"no front is of use for {PATIENCE_S:.0f} s: {problem}") from None
                if hasattr(peer, "transport"):
                    peer.transport.abort()
                await asyncio.sleep(PAUSE_S)
            else:
                await peer.close()
                return done
        raise AssertionError

    async def _tell(self) -> None:
        began_s = time.monotonic()
        while not self._quiet:
            await asyncio.sleep(1)
            words = [
                f"{one.group}: {progress(one.confirmed, one.longest_now_s, one.still_s)}"
                for one in self.loads
            ]
            print(f"{time.monotonic() - began_s:6.0f} s  {'   '.join(words)}", flush=True)
            for one in self.loads:
                one.longest_now_s = 0.0


async def _open(peer: Peer, address: str) -> None:
    host, _, port = address.rpartition(":")
    await asyncio.get_running_loop().create_connection(lambda: peer, host, int(port))
    await peer.open()


async def _delete(peer: Peer, queue: str) -> None:
    await peer.ask(m.QueueDelete(queue=queue), m.QueueDeleteOk)
