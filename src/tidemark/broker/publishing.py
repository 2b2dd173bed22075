"""The publishing side of one channel: runs of publishes in, and what became of each row.

Most runs are one call of the compiled loop. It stops at a row that asks for more (a user id, copies, a
headers exchange, a queue that may refuse, nobody to receive it, a producer that numbers what it sends); that
row is done here and the loop goes on behind it. A row that must not be published ends the run: `Published.error` says why, and the rows before it
are published.

A producer that numbers its messages to a stream (headers x-producer and x-producer-sequence) may send them
again when it does not know what became of them: what the broker has already is not stored a second time. That
it has it is written down in the same frame as the message.

A front has routed already what it publishes: it names the queues (header x-tidemark-to, to the default exchange with an empty
key), and the exchange and key that consumers shall be shown (x-tidemark-exchange, x-tidemark-key). It has asked whether the
user may publish there, so that is not asked again. A queue that is not here is returned, one return each with its name as
the text: the front knows what it should be and makes it. What it moves on comes with its turn (x-tidemark-turn); a queue that has
something of a later one refuses it. From anybody else these headers are headers like others.

Invariant: every row before `failed_row` (all, without an error) is on its queues, in `returned`, in `refused`
, was known already or was not wanted by any queue; `last_seq` is the highest sequence among them that went into
the journal.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from tidemark.broker import deadletter
from tidemark.broker.arguments import Overflow
from tidemark.broker.core import Publisher, Route
from tidemark.broker.groups import OUTBOX
from tidemark.broker.listed import Lists
from tidemark.broker.placing import bad_expiration, check_user_id, queues_closely, run_of_one, text
from tidemark.broker.replyto import RAW_PREFIX
from tidemark.broker.streams.producers import scoped
from tidemark.errors import NotImplementedHere, PreconditionFailed, TidemarkError
from tidemark.model.records import HEAD_BYTES, padded
from tidemark.model.runs import (
    BODY,
    DIRECT_REPLY,
    EXCHANGE,
    FLAGS,
    HAS_COPIES,
    HAS_PRODUCER,
    HAS_USER_ID,
    IMMEDIATE,
    KEY,
    MANDATORY,
    PERSISTENT,
    PRIORITY,
    PROPERTIES,
    TTL,
    PublishRun,
)
from tidemark.model.turns import Moved
from tidemark.ports import Sink

if TYPE_CHECKING:
    from tidemark.broker.exchanges import Exchange
    from tidemark.broker.queue import Queue
    from tidemark.broker.session import Session

NO_ROUTE = (312, "NO_ROUTE")
NOT_FOUND = 404
"""The code of a return for a queue that a front has named and that is not here; the text is the queue's name."""
NAME_BYTES_MAX = 255


@dataclass(slots=True)
class Published:
    """What became of a run."""

    last_seq: int = 0
    """The journal must be durable up to here before the run may be confirmed; 0: it need not be."""
    returned: list[tuple[int, int, str]] = field(default_factory=list)
    """(row, reply code, reply text) of mandatory messages that no queue wanted."""
    refused: list[int] = field(default_factory=list)
    """Rows that a full queue refused."""
    error: TidemarkError | None = None
    failed_row: int = -1


@dataclass(slots=True)
class Planned:
    """Where one row goes, and what it will say."""

    queues: tuple[Queue, ...]
    properties: bytes | None = None
    """Changed ones; None: as they came."""
    route: Route | None = None
    """The route that has exactly these queues, if there is one."""
    producer: tuple[str, int] | None = None
    """Who sent it to a stream, and under which number of its own."""
    shown: tuple[bytes, bytes] | None = None
    """The exchange and key that it says it came by; None: those that it did come by."""
    missing: tuple[str, ...] = ()
    """Queues that were named and are not here."""
    moved: Moved | None = None
    """In which turn a front has taken it where it waited."""


class Publishing:
    def __init__(self, session: Session, sink: Sink) -> None:
        broker = session.broker
        self._session = session
        self._sink = sink
        self.broker = broker
        self._vhost = session.vhost
        self._wakes = broker.wakes
        self._counts = session.counts
        self._by_list = Route((), False)
        """Of what a front publishes to queues that it names."""
        self._lists = Lists(broker.content, session.turns)
        self._publisher = Publisher(
            broker.arena, broker.memory, broker.journal, self._resolve, broker.published
        )

    def publish(self, run: PublishRun, now_ms: int) -> Published:
        """Publish the rows of a run, as far as they may be published."""
        publisher = self._publisher
        publisher.last_seq = 0
        if now_ms < self._wakes.published_ms:
            self._wakes.published_ms = now_ms
        result = Published()
        count = len(run)
        routed = self.broker.published.routed
        try:
            row = publisher.publish(run, 0, now_ms)
            while row < count:
                self._put(run, row, self.plan(run, row), now_ms, result)
                row = publisher.publish(run, row + 1, now_ms)
        except TidemarkError as error:
            result.error, result.failed_row = error, publisher.position
        result.last_seq = publisher.last_seq
        self._counts.received += publisher.position
        self._counts.routed += self.broker.published.routed - routed
        return result

    def publish_one(
        self, exchange: str, key: str, properties: bytes, body: bytes, *, mandatory: bool = False
    ) -> Published:
        """Publish one message that did not come as a run."""
        flags, priority, ttl_ms = self.broker.content.describe(properties)
        run = run_of_one(
            exchange.encode("utf-8", "surrogateescape"),
            key.encode("utf-8", "surrogateescape"),
            properties,
            body,
            flags=flags | (MANDATORY if mandatory else 0),
            priority=priority,
            ttl_ms=ttl_ms,
        )
        return self.publish(run, self.broker.now_ms)

    def _resolve(self, exchange: bytes, key: bytes) -> Route:
        if self._session.by_front and not exchange and not key:
            return self._by_list
        route = self._session.resolve(exchange, key)
        if not exchange and key.startswith(RAW_PREFIX):
            return self.broker.replies.route(key, self._vhost.name)
        return route

    # One row ------------------------------------------------------------------------------

    def plan(self, run: PublishRun, row: int) -> Planned:
        """Where a row goes. Nothing is changed.

        Raises:
            NotImplementedHere: it is marked immediate.
            NotFound, AccessRefused: what the session says about its exchange.
            PreconditionFailed: a property that cannot be true.
        """
        flags = run.number(row, FLAGS)
        if flags & IMMEDIATE:
            raise NotImplementedHere(reason="immediate=true")
        route = self._publisher.route_of(run, row)
        properties = run.part(row, PROPERTIES)
        if flags & HAS_USER_ID and route is not self._by_list:
            check_user_id(self.broker.access, self._session.user, self.broker.content.user_id(properties))
        if run.number(row, TTL) == -2:
            raise bad_expiration(self.broker.content.expiration(properties) or "")
        if route is self._by_list:
            return self._plan_by_list(properties, flags)
        changed = None
        if flags & DIRECT_REPLY:
            name = self.broker.replies.name_for(self._sink)
            changed = properties = self.broker.content.with_reply_to(properties, name)
        if not flags & (HAS_COPIES | HAS_PRODUCER) and type(route) is Route:
            return Planned(route.queues, changed, route)  # type: ignore[arg-type]
        headers = self.broker.content.headers(properties)
        if not flags & HAS_COPIES and type(route) is Route:
            planned = Planned(route.queues, changed, route)  # type: ignore[arg-type]
        else:
            planned = self._plan_closely(run, row, route, properties, headers, changed)
        self._note_producer(planned, flags, headers)
        return planned

    def _plan_by_list(self, properties: bytes, flags: int) -> Planned:
        """Where a row goes whose queues are named in it."""
        listed, content = self._lists.read(properties), self.broker.content
        queues: list[Queue] = []
        missing: list[str] = []
        for name in listed.queues:
            queue = self._vhost.queues.get(name) if name != OUTBOX else None
            if queue is not None and listed.life and queue.spec.incarnation not in (0, listed.life):
                queue = None  # it is for one that had this name before
            if queue is None:
                queue = self.broker.replies.by_name(name, self._vhost.name)
            if queue is None:
                missing.append(name)
            else:
                queues.append(queue)
        changed = content.with_headers_table(properties, listed.table)
        if flags & DIRECT_REPLY:
            changed = content.with_reply_to(changed, self.broker.replies.name_for(self._sink))
        planned = Planned(
            tuple(queues), changed, shown=listed.shown, missing=tuple(missing), moved=listed.moved
        )
        self._note_producer(planned, flags, listed.headers)
        return planned

    def _note_producer(self, planned: Planned, flags: int, headers: dict[str, Any]) -> None:
        # What a front moves on was numbered on its first way: a dead letter is none of its producer's row.
        if flags & HAS_PRODUCER and not self._session.own and any(queue.keeps for queue in planned.queues):
            name, number = _producer(headers)
            planned.producer = scoped(self._session.user, name), number

    def _plan_closely(
        self,
        run: PublishRun,
        row: int,
        route: Route,
        properties: bytes,
        headers: dict[str, Any],
        changed: bytes | None,
    ) -> Planned:
        """Where a row goes that has copies, or whose way depends on its headers."""
        has_copies = bool(run.number(row, FLAGS) & HAS_COPIES)
        exchange, key = run.part(row, EXCHANGE), run.part(row, KEY)
        queues = queues_closely(self._vhost, exchange, key, route, headers, has_copies)
        if has_copies and "BCC" in headers:
            shown = {name: value for name, value in headers.items() if name != "BCC"}
            changed = self.broker.content.with_headers(properties, shown)
        return Planned(queues, changed)

    def _put(self, run: PublishRun, row: int, planned: Planned, now_ms: int, result: Published) -> None:
        for name in planned.missing:
            self._counts.returned += 1
            result.returned.append((row, NOT_FOUND, name))
        if not planned.queues:
            if planned.missing:
                return
            self._count_unroutable(run, row)
            if run.number(row, FLAGS) & MANDATORY:
                self._counts.returned += 1
                result.returned.append((row, *NO_ROUTE))
            else:
                self._counts.dropped += 1
            return
        if planned.moved is not None and not self._is_in_turn(planned.moved, planned.queues, now_ms):
            result.refused.append(row)
            return
        if planned.producer is not None and self._is_known(planned.producer):
            return
        size = run.number(row, BODY + 1)
        refusing = [queue for queue in planned.queues if queue.guarded and queue.refuses(size)]
        route = planned.route
        if refusing:
            result.refused.append(row)
            accepting = tuple(queue for queue in planned.queues if queue not in refusing)
            if planned.producer is not None:
                accepting = ()  # it will send it again: then all of them may have it
            route = Route(accepting, True) if accepting else None
        elif route is None:
            route = Route(planned.queues, True)
        if planned.producer is not None and route is not None:
            self.broker.journal.ensure(record_bytes_max(run, row, planned) + self.producer_bytes_max(planned))
        if planned.properties is not None:
            run, row = _changed(run, row, planned.properties, planned.shown), 0
        if route is not None:
            if route.meter is None and (exchange := self._exchange(run, row)) is not None:
                route.meter = exchange.meter
            seq = self._publisher.put(run, row, route, now_ms)
            if planned.producer is not None:
                self._note(planned.producer, seq, now_ms)
        for queue in refusing:
            if queue.policy.overflow is Overflow.REJECT_PUBLISH_DLX:
                letter = deadletter.Letter(
                    text(run.part(row, EXCHANGE)),
                    text(run.part(row, KEY)),
                    run.part(row, PROPERTIES),
                    run.part(row, BODY),
                )
                deadletter.post(queue, letter, "maxlen")

    def _exchange(self, run: PublishRun, row: int) -> Exchange | None:
        return self._vhost.exchanges.get(text(run.part(row, EXCHANGE)))

    def _count_unroutable(self, run: PublishRun, row: int) -> None:
        exchange = self._exchange(run, row)
        if exchange is not None:
            exchange.unroutable += 1
            exchange.meter.add(0, run.number(row, BODY + 1))

    def _is_in_turn(self, moved: Moved, queues: tuple[Queue, ...], now_ms: int) -> bool:
        """Whether none of the queues has anything of a later turn; then they have seen this one."""
        fences = self.broker.streams.fences
        if any(fences.keeps_out(queue.number, moved) for queue in queues):
            return False
        for queue in queues:
            written = fences.note(queue, moved, now_ms)
            self._publisher.last_seq = max(self._publisher.last_seq, written)
        return True

    def _is_known(self, producer: tuple[str, int]) -> bool:
        """Whether this message came before. It is confirmed when what came before is on the disk."""
        written = self.broker.streams.producers.duplicate(self._vhost.name, *producer)
        if written is None:
            return False
        self._publisher.last_seq = max(self._publisher.last_seq, written)
        return True

    def _note(self, producer: tuple[str, int], seq: int, now_ms: int) -> None:
        written = self.broker.streams.producers.note(self._vhost.name, *producer, seq, now_ms)
        self._publisher.last_seq = max(self._publisher.last_seq, written)

    def producer_bytes_max(self, planned: Planned) -> int:
        """The most that the journal needs to remember that this message came; 0 when it need not."""
        if planned.producer is None:
            return 0
        return self.broker.streams.producers.bytes_max(self._vhost.name, planned.producer[0])


def record_bytes_max(run: PublishRun, row: int, planned: Planned) -> int:
    """The most that the journal needs for a row; 0 when it goes to memory only."""
    if not any(
        queue.keeps or (queue.durable and run.number(row, FLAGS) & PERSISTENT) for queue in planned.queues
    ):
        return 0
    properties = run.number(row, PROPERTIES + 1) if planned.properties is None else len(planned.properties)
    if planned.shown is None:
        names = run.number(row, EXCHANGE + 1) + run.number(row, KEY + 1)
    else:
        names = sum(map(len, planned.shown))
    return padded(HEAD_BYTES + 4 * len(planned.queues) + names + properties + run.number(row, BODY + 1))


def _changed(run: PublishRun, row: int, properties: bytes, shown: tuple[bytes, bytes] | None) -> PublishRun:
    exchange, key = shown or (run.part(row, EXCHANGE), run.part(row, KEY))
    return run_of_one(
        exchange,
        key,
        properties,
        run.part(row, BODY),
        flags=run.number(row, FLAGS),
        priority=run.number(row, PRIORITY),
        ttl_ms=run.number(row, TTL),
    )


def _producer(headers: dict[str, Any]) -> tuple[str, int]:
    name, sequence = headers.get("x-producer"), headers.get("x-producer-sequence")
    if not isinstance(name, str) or not 0 < len(name.encode("utf-8", "surrogateescape")) <= NAME_BYTES_MAX:
        raise PreconditionFailed(
            reason=f"the header 'x-producer' is no string of 1 to {NAME_BYTES_MAX} bytes"
        )
    if not isinstance(sequence, int) or isinstance(sequence, bool) or not 0 < sequence < 1 << 63:
        raise PreconditionFailed(
            reason=f"the header 'x-producer-sequence' of producer '{name}' is no number from 1 on"
        )
    return name, int(sequence)
