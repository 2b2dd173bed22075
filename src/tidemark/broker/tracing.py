"""Traces of single messages: from the client that publishes, through a queue, to the client that gets them.

A message that carries a W3C trace context (the header `traceparent`, sampled) is told to a `Tracer` when it is published and
each time it is delivered. The message itself is not changed: what the consumer gets is the context of the publisher, and its
own spans stand beside ours in the same trace. Which delivery belongs to which publish is remembered by the sequence, in memory
only and not for ever.

A channel is looked at or it is not: `Traces.picks` decides when it begins to publish. One that is not has the usual
`Publishing`, so where nobody asked for traces nothing here is called.

Invariant: what is published, and in which order, is the same with traces as without.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Protocol

from tidemark.broker.placing import text
from tidemark.broker.publishing import Published, Publishing
from tidemark.model.runs import BODY, EXCHANGE, FLAGS, KEY, PRIORITY, PROPERTIES, TTL, PublishRun, Taken
from tidemark.ports import Sink

if TYPE_CHECKING:
    from tidemark.broker.session import Session

HEADER = "traceparent"
STATE = "tracestate"
RAW_HEADER = HEADER.encode()
REMEMBERED_MAX = 10_000
REMEMBERED_MS = 300_000
"""How many messages are known by their sequence, and for how long."""


@dataclass(frozen=True, slots=True)
class Facts:
    """What a span says about its message."""

    exchange: str
    key: str
    size: int
    connection: str
    vhost: str
    queue: str = ""
    tag: str = ""
    redelivered: bool = False


class Trace(Protocol):
    """A message that is being published."""

    def end(self, failed: str = "") -> None:
        """It is on its queues, or was not published for this reason."""


class Tracer(Protocol):
    """Where spans go."""

    def publish(self, parent: str, state: str, facts: Facts) -> Trace | None:
        """A message comes in, with this context ("": none). None: it is not to be traced."""

    def deliver(self, trace: Trace, facts: Facts) -> None:
        """The same message went out."""


class Traces:
    """Which channels are looked at, and which messages are known."""

    def __init__(self, tracer: Tracer, picks: Callable[[], bool], roots: bool) -> None:
        """`picks` says whether a channel that begins to publish is looked at; `roots`: whether messages that carry no
        context are traced."""
        self.tracer = tracer
        self.picks = picks
        self.roots = roots
        self.known: dict[int, tuple[Trace, Facts, int]] = {}
        """By sequence: the trace, what it is about, and when it was published."""

    def remember(self, first: int, end: int, trace: Trace, facts: Facts, now_ms: int) -> None:
        """The message has the sequences from `first` up to before `end`."""
        known = self.known
        while known and (len(known) >= REMEMBERED_MAX or _oldest_ms(known) < now_ms - REMEMBERED_MS):
            del known[next(iter(known))]
        for seq in range(first, end):
            known[seq] = trace, facts, now_ms


def _oldest_ms(known: dict[int, tuple[Trace, Facts, int]]) -> int:
    return next(iter(known.values()))[2]


class TracedPublishing(Publishing):
    """The publishing side of a channel that is looked at."""

    def __init__(self, session: Session, sink: Sink, traces: Traces) -> None:
        super().__init__(session, sink)
        self._traces = traces
        self._connection = session.name

    def publish(self, run: PublishRun, now_ms: int) -> Published:
        """Publish the rows of a run: those that are traced one by one, the others as they stand together."""
        whole = Published()
        begun = 0
        for row in range(len(run)):
            trace = self._begin(run, row)
            if trace is None:
                continue
            if begun < row and not self._append(whole, run, begun, row, now_ms):
                trace[0].end("not published")
                return whole
            begun = row + 1
            if not self._publish_traced(whole, run, row, trace, now_ms):
                return whole
        if begun == 0:
            return super().publish(run, now_ms)
        if begun < len(run):
            self._append(whole, run, begun, len(run), now_ms)
        return whole

    def _begin(self, run: PublishRun, row: int) -> tuple[Trace, Facts] | None:
        properties = run.part(row, PROPERTIES)
        parent = state = ""
        if RAW_HEADER in properties:
            headers = self.broker.content.headers(properties)
            parent, state = _word(headers.get(HEADER)), _word(headers.get(STATE))
        if not parent and not self._traces.roots:
            return None
        facts = Facts(
            exchange=text(run.part(row, EXCHANGE)),
            key=text(run.part(row, KEY)),
            size=run.number(row, BODY + 1),
            connection=self._connection,
            vhost=self._vhost.name,
        )
        trace = self._traces.tracer.publish(parent, state, facts)
        return None if trace is None else (trace, facts)

    def _publish_traced(
        self, whole: Published, run: PublishRun, row: int, traced: tuple[Trace, Facts], now_ms: int
    ) -> bool:
        trace, facts = traced
        arena = self.broker.arena
        first = arena.next_seq
        went_well = self._append(whole, run, row, row + 1, now_ms)
        self._traces.remember(first, arena.next_seq, trace, facts, now_ms)
        if not went_well:
            trace.end(str(whole.error))
        elif whole.refused and whole.refused[-1] == row:
            trace.end("refused: a queue is full")
        elif arena.next_seq == first:
            trace.end("no queue wants it")
        else:
            trace.end()
        return went_well

    def _append(self, whole: Published, run: PublishRun, start: int, end: int, now_ms: int) -> bool:
        """Publish some rows. False: one of them could not be, and the rest must not."""
        part = PublishRun(run.channel, run.data)
        for row in range(start, end):
            part.add(
                _place(run, row, EXCHANGE),
                _place(run, row, KEY),
                _place(run, row, PROPERTIES),
                _place(run, row, BODY),
                run.number(row, FLAGS),
                run.number(row, PRIORITY),
                run.number(row, TTL),
            )
        result = super().publish(part, now_ms)
        whole.last_seq = max(whole.last_seq, result.last_seq)
        whole.returned += [(start + row, code, words) for row, code, words in result.returned]
        whole.refused += [start + row for row in result.refused]
        if result.error is None:
            return True
        whole.error, whole.failed_row = result.error, start + result.failed_row
        return False


class TracedSink:
    """Stands in front of a channel and tells the tracer of messages that are known. Fits `ports.StreamSink`."""

    def __init__(self, inner: Any, traces: Traces, connection: str) -> None:
        self._inner = inner
        self._traces = traces
        self._connection = connection
        self.room = inner.room
        self.cancelled = inner.cancelled

    def __getattr__(self, name: str) -> Any:
        return getattr(self._inner, name)

    def deliver(self, consumer: Any, taken: Taken) -> bool:
        sent = bool(self._inner.deliver(consumer, taken))
        known = self._traces.known
        if sent and known:
            for _, seq, _, _, flags, _ in taken:
                if seq in known:
                    self._tell(seq, consumer, bool(flags & 1))
        return sent

    def _tell(self, seq: int, consumer: Any, redelivered: bool) -> None:
        trace, published, _ = self._traces.known[seq]
        facts = Facts(
            exchange=published.exchange,
            key=published.key,
            size=published.size,
            connection=self._connection,
            vhost=published.vhost,
            queue=consumer.queue.name,
            tag=consumer.tag,
            redelivered=redelivered,
        )
        self._traces.tracer.deliver(trace, facts)


def _place(run: PublishRun, row: int, column: int) -> tuple[int, int]:
    return run.number(row, column), run.number(row, column + 1)


def _word(value: Any) -> str:
    """A header as text; "" when it is none."""
    if isinstance(value, bytes):
        value = value.decode("ascii", "replace")
    return value if isinstance(value, str) else ""
