"""How fast things happen: the broker's counters, sampled once a second and kept for ten minutes.

Counters only rise and are kept by whoever counts (queues, exchanges, connections, `broker.counts`). A `Series` is what
such a set of counters was at some moments; a rate is the difference of two of them. The whole broker has a moment a
second, anything else one in five seconds, and only when it has changed.

Nobody walks over all queues: the broker notes which have changed (`Broker.changed`), and these are read, a slice at a
time. What they have changed by is added to running sums, of the broker and of each virtual host, so totals cost the same
however many queues there are. Connections and channels have a series only while somebody looks at them.

    queue ──changed──► read ──difference──► sums of its virtual host, sums of the broker ──each second──► series
                         └──► series of the queue

Invariant: the sums are those of all queues that there were since the start, as they were when each was read last; a
series is in the order of time.
"""

from __future__ import annotations

import asyncio
from array import array
from bisect import bisect_right
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from tidemark.frontend.services import FrontEnd
    from tidemark.node import Node

AGE_S = 600
"""How far back series go."""
TOTAL_STEP_MS = 1000
STEP_MS = 5000
WINDOW_MS = 5000
"""A rate is that of so long until now."""
LONG = AGE_S * 1000 // STEP_MS
SHORT = 4
"""Moments that are kept of a queue when `LONG_MAX` others have long series: enough for a rate."""
LONG_MAX = 1000
SLICE = 250
"""Queues that are read at once; a slice takes less than a millisecond."""
QUEUES_MAX = 1000
"""Queues that are read in a second. When more than that are busy, each has its turn in a later one."""
PAUSE_S = 0.02
WATCHED_MS = 60_000
"""How long a connection or channel is sampled after somebody looked at it."""

MESSAGES = (
    "publish",
    "deliver",
    "deliver_no_ack",
    "get",
    "get_no_ack",
    "deliver_get",
    "redeliver",
    "ack",
    "get_empty",
)
"""What queues count, by RabbitMQ's names."""
ENDS = ("expired", "evicted", "dead_lettered")
LENGTHS = ("messages_ready", "messages_unacknowledged")
SIZES = ("ready_bytes", "acquired_bytes", "consumers")
QUEUE = (*MESSAGES, *ENDS, *LENGTHS, *SIZES)
PROTOCOL = ("received", "confirm", "return_unroutable", "drop_unroutable")
CHURN = (
    "connection_created",
    "connection_closed",
    "channel_created",
    "channel_closed",
    "queue_declared",
    "queue_created",
    "queue_deleted",
)
BYTES = ("recv_oct", "send_oct")
TOTAL = (*QUEUE, *PROTOCOL, *CHURN, *BYTES)
EXCHANGE = ("publish_in", "publish_out")
CHANNEL = (
    "publish",
    "confirm",
    "return_unroutable",
    "deliver",
    "deliver_no_ack",
    "get",
    "get_no_ack",
    "get_empty",
    "ack",
)

_READY = QUEUE.index("messages_ready")
_ACQUIRED = QUEUE.index("messages_unacknowledged")
_NOTHING = (0,) * len(QUEUE)

Values = tuple[int, ...]
Place = tuple[int, int, float]
"""Of a moment in a series: the row before it, the one behind it (-1: now), and how far it is between them."""


@dataclass(frozen=True, slots=True)
class Span:
    """Samples that somebody wants: so far back, one every so often."""

    age_s: int
    step_s: int

    def moments(self, now_ms: int, first_ms: int) -> list[int]:
        """When they are to be, newest first, as far back as something is known."""
        step_ms = self.step_s * 1000
        last_ms = now_ms // step_ms * step_ms
        wanted = (last_ms - i * step_ms for i in range(self.age_s // self.step_s + 1))
        return [moment for moment in wanted if moment > first_ms - step_ms]


@dataclass(frozen=True, slots=True)
class Totals:
    """What there is now, in all queues and streams of the broker or of a virtual host."""

    queues: int
    consumers: int
    ready: int
    acquired: int
    ready_bytes: int
    acquired_bytes: int
    counts: Mapping[str, int]
    """Of messages, by name: `MESSAGES` and `ENDS`."""


class Series:
    """What some counters were at moments of the past, oldest first. At most one moment a step, the last in it."""

    __slots__ = ("_moments", "_rows", "_step_ms", "_width", "length")

    def __init__(self, width: int, step_ms: int, length: int) -> None:
        self.length = length
        self._width = width
        self._step_ms = step_ms
        self._moments = array("q")
        self._rows = array("q")

    def __len__(self) -> int:
        return len(self._moments)

    @property
    def first_ms(self) -> int:
        return self._moments[0] if self._moments else 0

    @property
    def last_ms(self) -> int:
        return self._moments[-1] if self._moments else 0

    def add(self, now_ms: int, values: Iterable[int]) -> None:
        moments, rows, width = self._moments, self._rows, self._width
        if moments and moments[-1] // self._step_ms == now_ms // self._step_ms:
            del moments[-1], rows[-width:]
        elif len(moments) > self.length + self.length // 4:
            # A quarter at a time: taking one from the front moves all the others.
            del moments[: -(self.length - 1)], rows[: -(self.length - 1) * width]
        moments.append(now_ms)
        rows.extend(values)

    def places(self, wanted: Iterable[int], now_ms: int) -> list[Place]:
        """Where in the series these moments are. The same for all counters, so it is asked once."""
        moments = self._moments
        found: list[Place] = []
        for moment in wanted:
            after = bisect_right(moments, moment)
            if after == 0:
                found.append((0, -1, 0.0))
                continue
            later = after if after < len(moments) else -1
            later_ms = now_ms if later < 0 else moments[later]
            # A long gap is a time in which nothing changed, until shortly before its end.
            begun_ms = max(moments[after - 1], later_ms - self._step_ms)
            share = (
                (moment - begun_ms) / (later_ms - begun_ms)
                if begun_ms < moment and begun_ms < later_ms
                else 0.0
            )
            found.append((after - 1, later, min(share, 1.0)))
        return found

    def at(self, place: Place, column: int, now: int) -> float:
        """What a counter was at that place, when it is `now` now."""
        row, later, share = place
        if not self._moments:
            return now
        before = self._rows[row * self._width + column]
        if not share:
            return before
        return before + ((now if later < 0 else self._rows[later * self._width + column]) - before) * share

    def rate(self, column: int, now_ms: int, now: int) -> float:
        """How much a counter rose in a second, lately."""
        if not self._moments:
            return 0.0
        since_ms = max(now_ms - WINDOW_MS, min(self._moments[0], now_ms))
        if now_ms - since_ms < 500:
            return 0.0
        [place] = self.places((since_ms,), now_ms)
        return (now - self.at(place, column, now)) * 1000 / (now_ms - since_ms)


class Rates:
    """Everything that is sampled in one broker."""

    def __init__(self, node: Node, now_ms: Callable[[], int]) -> None:
        self._node = node
        self._broker = node.broker
        self._now_ms = now_ms
        self._total = Series(len(TOTAL), TOTAL_STEP_MS, AGE_S)
        self._sums = [0] * len(QUEUE)
        self._by_vhost: dict[str, list[int]] = {}
        self._by_kind: dict[str, list[int]] = {}
        self._vhosts: dict[str, Series] = {}
        self._last: dict[Any, Values] = {}
        """What queues and streams had when they were read last; those that never had anything are not in it."""
        self._queues: dict[Any, Series] = {}
        self._long = 0
        self._exchanges: dict[Any, tuple[Values, Series]] = {}
        self._watched: dict[Any, tuple[Series, int]] = {}
        """Connections and channels that somebody looked at, and when."""
        self._bytes: dict[FrontEnd, tuple[int, int]] = {}
        self._bytes_in = self._bytes_out = 0
        self._swept_ms = 0

    # Sampling -------------------------------------------------------------------------------------

    def sample(self) -> bool:
        """Once a second. True: more queues have changed than one slice; call `go_on` soon, until it says False."""
        now_ms = self._now_ms()
        more = self._read_some()
        self._count_bytes()
        self._read_exchanges(now_ms)
        self._read_watched(now_ms)
        self._total.add(now_ms, self._total_values())
        for name, sums in self._by_vhost.items():
            self._vhosts[name].add(now_ms, sums)
        if now_ms - self._swept_ms > 60_000:
            self._swept_ms = now_ms
            self._sweep(now_ms)
        return more

    def go_on(self) -> bool:
        """The next slice of queues that have changed. True: there are more."""
        changed, now_ms = self._broker.changed, self._now_ms()
        for _ in range(min(SLICE, len(changed))):
            self._read(changed.pop(), now_ms)
        return bool(changed)

    async def catch_up(self) -> None:
        """Read every queue that has changed, so that totals are exact."""
        more = self._read_some()
        while more:
            await asyncio.sleep(0)
            more = self.go_on()

    def _read_some(self) -> bool:
        """The first slice of queues that have changed. True: there are more."""
        if self._broker.dirty and not self._node.serving:
            # Nobody deals anything out here, so nobody looks at them.
            self._broker.changed.update(self._broker.dirty)
        return self.go_on()

    def _read(self, queue: Any, now_ms: int) -> None:
        last = self._last.get(queue, _NOTHING)
        values = read_queue(queue)
        if values != last:
            vhost = queue.spec.vhost
            sums, total = self._by_vhost.get(vhost), self._sums
            if sums is None:
                sums = self._by_vhost[vhost] = [0] * len(QUEUE)
                self._vhosts[vhost] = Series(len(QUEUE), STEP_MS, LONG)
            alike = self._by_kind.setdefault(queue.policy.kind, [0] * len(QUEUE))
            for i, (new, old) in enumerate(zip(values, last, strict=True)):
                if new != old:
                    total[i] += new - old
                    sums[i] += new - old
                    alike[i] += new - old
            self._last[queue] = values
        if queue.deleted:
            if not queue.is_dirty:  # else it comes once more, and must not count again
                self._last.pop(queue, None)
            self._forget(queue)
        elif values != last or queue in self._queues:
            series = self._queues.get(queue)
            if series is None:
                series = self._queues[queue] = self._new_series()
                series.add(now_ms - STEP_MS, last)
            series.add(now_ms, values)

    def _new_series(self) -> Series:
        if self._long < LONG_MAX:
            self._long += 1
            return Series(len(QUEUE), STEP_MS, LONG)
        return Series(len(QUEUE), STEP_MS, SHORT)

    def _forget(self, queue: Any) -> None:
        series = self._queues.pop(queue, None)
        if series is not None:
            self._long -= series.length == LONG

    def _read_exchanges(self, now_ms: int) -> None:
        for vhost in self._broker.vhosts.values():
            for exchange in vhost.exchanges.values():
                meter = exchange.meter
                if not meter.messages:
                    continue
                values = (meter.messages, meter.routed)
                known = self._exchanges.get(exchange)
                if known is None:
                    series = Series(len(EXCHANGE), STEP_MS, LONG)
                    series.add(now_ms - STEP_MS, (0, 0))
                elif known[0] == values:
                    continue
                else:
                    series = known[1]
                series.add(now_ms, values)
                self._exchanges[exchange] = values, series

    def _count_bytes(self) -> None:
        known = self._bytes
        for front_end in self._node.front_ends:
            now = front_end.bytes_in, front_end.bytes_out
            before = known.get(front_end, (0, 0))
            if now != before:
                known[front_end] = now
                self._bytes_in += now[0] - before[0]
                self._bytes_out += now[1] - before[1]

    def disconnected(self, front_end: FrontEnd) -> None:
        """Its socket is gone: what it sent and got since it was looked at counts, too."""
        before = self._bytes.pop(front_end, (0, 0))
        self._bytes_in += front_end.bytes_in - before[0]
        self._bytes_out += front_end.bytes_out - before[1]
        self._watched.pop(front_end, None)

    def _read_watched(self, now_ms: int) -> None:
        over = []
        for thing, (series, looked_ms) in self._watched.items():
            if now_ms - looked_ms > WATCHED_MS:
                over.append(thing)
            else:
                series.add(now_ms, _values_of(thing))
        for thing in over:
            del self._watched[thing]

    def _sweep(self, now_ms: int) -> None:
        """Let go of what has not changed for as long as series go back, and of what is gone."""
        for queue in [q for q, s in self._queues.items() if now_ms - s.last_ms > AGE_S * 1000]:
            self._forget(queue)
        here = {exchange for vhost in self._broker.vhosts.values() for exchange in vhost.exchanges.values()}
        for exchange in [each for each in self._exchanges if each not in here]:
            del self._exchanges[exchange]
        if not self._broker.changed:  # else some of their queues may not have been read for the last time
            for name in [name for name in self._by_vhost if name not in self._broker.vhosts]:
                del self._by_vhost[name], self._vhosts[name]

    def _total_values(self) -> list[int]:
        counts = self._broker.counts
        both = counts.amqp091, counts.stream
        return [
            *self._sums,
            sum(one.received for one in both),
            sum(one.confirmed for one in both),
            sum(one.returned for one in both),
            sum(one.dropped for one in both),
            counts.connections_opened,
            counts.connections_closed,
            counts.channels_opened,
            counts.channels_closed,
            counts.queues_declared,
            counts.queues_created,
            counts.queues_deleted,
            self._bytes_in,
            self._bytes_out,
        ]

    # Asking ---------------------------------------------------------------------------------------

    def totals(self, vhost: str | None = None) -> Totals:
        """What there is now, in the broker or in one virtual host."""
        self._read_some()
        if vhost is None:
            sums, queues = self._sums, len(self._broker.queues)
        else:
            sums = self._by_vhost.get(vhost) or list(_NOTHING)
            host = self._broker.vhosts.get(vhost)
            queues = 0 if host is None else len(host.queues)
        named = dict(zip(QUEUE, sums, strict=True))
        return Totals(
            queues=queues,
            consumers=named["consumers"],
            ready=named["messages_ready"],
            acquired=named["messages_unacknowledged"],
            ready_bytes=named["ready_bytes"],
            acquired_bytes=named["acquired_bytes"],
            counts={name: named[name] for name in (*MESSAGES, *ENDS)},
        )

    def of_kind(self, kind: str) -> dict[str, int]:
        """What all queues of a kind ("classic", "quorum", "stream") have counted."""
        return dict(zip(QUEUE, self._by_kind.get(kind, _NOTHING), strict=True))

    @property
    def bytes_in(self) -> int:
        """What all connections have sent so far."""
        self._count_bytes()
        return self._bytes_in

    @property
    def bytes_out(self) -> int:
        self._count_bytes()
        return self._bytes_out

    def details(
        self, kind: str, key: Any = None, span: Span | None = None, **ages: int | None
    ) -> dict[str, Any]:
        """The message_stats of RabbitMQ's management API: of the "overview", a "vhost" (its name), a "queue" or "exchange"
        (itself, or virtual host and name), a "channel" (itself). `ages` may have msg_rates_age and msg_rates_incr instead
        of a `span`. What is not there has none.
        """
        span = span or span_of(ages, "msg_rates")
        found = self._of(kind, key)
        if found is None:
            return {}
        names, values, series = found
        columns = {name: column for column, name in enumerate(names)}
        wanted: Iterable[str] = names
        if kind == "overview":
            # What clients published, not what queues got.
            columns["publish"] = columns["received"]
            wanted = (*MESSAGES, *PROTOCOL[1:])
        elif kind in ("queue", "vhost"):
            wanted = MESSAGES
        shown = [(name, (columns[name],)) for name in wanted if values[columns[name]] or name == "publish"]
        return self._told(series, shown, values, span)

    def rate(self, kind: str, key: Any, name: str) -> float:
        """One of the rates of `details`, for sorting: cheaper than all of them, and next to nothing for an idle queue."""
        if kind == "queue":
            queue = self._find(key, "queues")
            series = self._queues.get(queue)
            if series is None or self._now_ms() - series.last_ms > 2 * WINDOW_MS:
                return 0.0
        found = self._of(kind, key)
        if found is None or found[2] is None:
            return 0.0
        names, values, _ = found
        if kind == "overview" and name == "publish":
            name = "received"
        column = names.index(name)
        return found[2].rate(column, self._now_ms(), values[column])

    def lengths(
        self, kind: str, key: Any = None, span: Span | None = None, **ages: int | None
    ) -> dict[str, Any]:
        """messages, messages_ready and messages_unacknowledged of the "overview", a "vhost" or a "queue"."""
        span = span or span_of(ages, "lengths")
        found = self._of(kind, key)
        if found is None:
            return {}
        _, values, series = found
        columns = (
            ("messages", (_READY, _ACQUIRED)),
            ("messages_ready", (_READY,)),
            ("messages_unacknowledged", (_ACQUIRED,)),
        )
        return self._told(series, columns, values, span)

    def bytes(
        self, front_end: FrontEnd | None = None, span: Span | None = None, **ages: int | None
    ) -> dict[str, Any]:
        """recv_oct and send_oct of a connection, or of all."""
        span = span or span_of(ages, "data_rates")
        if front_end is None:
            self._count_bytes()
            first, series, values = TOTAL.index("recv_oct"), self._total, tuple(self._total_values())
        else:
            first, series, values = 0, self._watch(front_end, len(BYTES)), _values_of(front_end)
        columns = [(name, (first + place,)) for place, name in enumerate(BYTES)]
        return self._told(series, columns, values, span)

    def churn(self, span: Span | None = None, **ages: int | None) -> dict[str, Any]:
        """The churn_rates of RabbitMQ's overview: what was opened, closed, declared and deleted."""
        span = span or span_of(ages, "msg_rates")
        columns = [(name, (TOTAL.index(name),)) for name in CHURN]
        return self._told(self._total, columns, tuple(self._total_values()), span)

    def _of(self, kind: str, key: Any) -> tuple[tuple[str, ...], Values, Series | None] | None:
        """Names, values of now and series of something."""
        match kind:
            case "overview":
                self._read_some()
                return TOTAL, tuple(self._total_values()), self._total
            case "vhost":
                self._read_some()
                sums = self._by_vhost.get(key)
                return QUEUE, _NOTHING if sums is None else tuple(sums), self._vhosts.get(key)
            case "queue":
                queue = self._find(key, "queues")
                return None if queue is None else (QUEUE, read_queue(queue), self._queues.get(queue))
            case "exchange":
                exchange = self._find(key, "exchanges")
                if exchange is None:
                    return None
                known = self._exchanges.get(exchange)
                meter = exchange.meter
                return EXCHANGE, (meter.messages, meter.routed), None if known is None else known[1]
            case "channel":
                return CHANNEL, _values_of(key), self._watch(key, len(CHANNEL))
        raise ValueError(f"there are no rates of a {kind}")

    def _find(self, key: Any, table: str) -> Any:
        if not isinstance(key, tuple):
            return key
        host = self._broker.vhosts.get(key[0])
        return None if host is None else getattr(host, table).get(key[1])

    def _watch(self, thing: Any, width: int) -> Series:
        """From now on there is a series of it, for a while."""
        now_ms = self._now_ms()
        known = self._watched.get(thing)
        series = Series(width, TOTAL_STEP_MS, WATCHED_MS // TOTAL_STEP_MS) if known is None else known[0]
        self._watched[thing] = series, now_ms
        if known is None:
            series.add(now_ms, _values_of(thing))
        return series

    # Numbers --------------------------------------------------------------------------------------

    def _told(
        self,
        series: Series | None,
        columns: Iterable[tuple[str, tuple[int, ...]]],
        values: Values,
        span: Span | None,
    ) -> dict[str, Any]:
        """Each name with its value, that of one counter or of several together, and its details."""
        now_ms = self._now_ms()
        moments: list[int] = []
        places: list[Place] = []
        if span is not None and series is not None and len(series):
            moments = span.moments(now_ms, series.first_ms)
            places = series.places(moments, now_ms)
        told: dict[str, Any] = {}
        for name, together in columns:
            value = sum(values[column] for column in together)
            told[name] = value
            details: dict[str, Any] = {"rate": 0.0}
            if series is not None:
                rate = sum(series.rate(column, now_ms, values[column]) for column in together)
                details["rate"] = round(rate, 3)
            if places and series is not None:
                samples = [
                    round(sum(series.at(place, column, values[column]) for column in together))
                    for place in places
                ]
                details |= _with_averages(samples, moments)
            told[f"{name}_details"] = details
        return told


def read_queue(queue: Any) -> Values:
    """What a queue or stream has counted, in the order of `QUEUE`."""
    delivered, no_ack, got, got_no_ack = (
        queue.delivered,
        queue.delivered_no_ack,
        queue.got,
        queue.got_no_ack,
    )
    return (
        queue.published,
        delivered - no_ack - got,
        no_ack,
        got - got_no_ack,
        got_no_ack,
        delivered,
        queue.redelivered,
        queue.acked,
        queue.get_empty,
        queue.expired,
        queue.evicted,
        queue.dead_lettered,
        queue.ready,
        queue.acquired,
        queue.ready_bytes,
        queue.acquired_bytes,
        len(queue.consumers),
    )


def _values_of(thing: Any) -> Values:
    """What a connection or channel has counted."""
    counts = getattr(thing, "counts", None)
    if counts is None:
        return thing.bytes_in, thing.bytes_out
    return tuple(getattr(counts, name) for name in CHANNEL)


def _with_averages(samples: list[int], moments: list[int]) -> dict[str, Any]:
    """Samples in the form of the management API, newest first, and what they are on average."""
    seconds = (moments[0] - moments[-1]) / 1000
    return {
        "samples": [
            {"sample": sample, "timestamp": moment} for sample, moment in zip(samples, moments, strict=True)
        ],
        "avg": round(sum(samples) / len(samples), 3),
        "avg_rate": round((samples[0] - samples[-1]) / seconds, 3) if seconds else 0.0,
    }


def span_of(query: Mapping[str, Any], prefix: str) -> Span | None:
    """The span that a request asks for by PREFIX_age and PREFIX_incr; None when it does not, or makes no sense."""
    try:
        age_s, step_s = int(query[f"{prefix}_age"]), int(query[f"{prefix}_incr"])
    except (KeyError, TypeError, ValueError):
        return None
    if age_s < 1 or step_s < 1:
        return None
    return Span(min(age_s, AGE_S), max(step_s, 1))
