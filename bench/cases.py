"""What is measured: every case as data, and the bars that the figures are held against.

A case says how the load generator is called; a bar says what one of its figures must be, mostly
as a multiple of another broker's figure in the same run. `docs/benchmarks.md` explains both.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from enum import Enum

from bench.options import among


class Kind(Enum):
    THROUGHPUT = "throughput"
    LATENCY = "latency"
    BACKLOG = "backlog"
    QUEUES = "queues"
    CONNECTIONS = "connections"
    ADMIN = "admin"
    STREAM_KEYED = "stream keyed"
    STREAM_OPEN = "stream open"
    STREAM_SCAN = "stream scan"
    STREAM_RESTART = "stream restart"
    STREAM_MEMORY = "stream memory"
    STREAM_PEERS = "stream peers"

    @property
    def of_streams(self) -> bool:
        return self.value.startswith("stream ")


AMQP = ("tidemark", "rabbitmq")
AMQP_AND_NULL = (*AMQP, "null")
AMQP_AND_NULL_DURABLE = (*AMQP, "null-durable")
INSIDE = ("tidemark", "core")
"""The broker, and the loops at its heart called in one process without network or disk."""
PEERS = ("tidemark", "nats", "redis")


@dataclass(frozen=True, slots=True)
class Case:
    name: str
    title: str
    kind: Kind
    load: tuple[str, ...] = ()
    """Arguments of the load generator for AMQP."""
    size: int = 100
    brokers: tuple[str, ...] = AMQP
    """Who can do it. The null broker knows transient messages, automatic acks and the default exchange only; with
    a disk, confirms and manual acks too."""
    window: int = 0
    """Messages per sync of the bare disk loop that runs beside this case; 0: none."""
    keys: int = 0
    """Distinct keys of the stream, uniformly chosen."""


_DURABLE = ("--durable", "--persistent", "--ack", "manual", "--prefetch", "1000")
_BATCHED_ACKS = ("--ack-every", "100")
_SINGLE_ACKS = ("--ack-every", "1")


def _transient(label: str, size: int) -> Case:
    return Case(
        f"transient-{label}",
        f"transient, automatic acks, {size:,} B",
        Kind.THROUGHPUT,
        ("--size", str(size)),
        size,
        brokers=AMQP_AND_NULL,
    )


def _durable(window: int, label: str, size: int, acks: tuple[str, ...]) -> Case:
    return Case(
        f"durable-window-{window}-{label}",
        f"durable, confirms in a window of {window:,}, manual acks, {size:,} B",
        Kind.THROUGHPUT,
        ("--size", str(size), "--confirm", str(window), *_DURABLE, *acks),
        size,
        brokers=AMQP_AND_NULL_DURABLE,
        window=window,
    )


BATCH = 1000
"""Rows in one put, which is durable as a whole before it is answered."""


def _keyed(label: str, keys: int) -> Case:
    return Case(
        f"stream-keyed-{label}",
        f"updates of {keys:,} keys, uniform, 100 B values, durable, {BATCH:,} rows a batch",
        Kind.STREAM_KEYED,
        brokers=INSIDE,
        window=BATCH,
        keys=keys,
    )


def _of_stream(name: str, title: str, kind: Kind, brokers: tuple[str, ...]) -> Case:
    return Case(name, f"{title}, 10,000,000 keys", kind, brokers=brokers, keys=10_000_000)


CASES: tuple[Case, ...] = (
    _transient("16b", 16),
    _transient("100b", 100),
    _transient("1kb", 1024),
    _transient("16kb", 16384),
    _durable(1, "100b", 100, _SINGLE_ACKS),
    _durable(100, "100b", 100, _BATCHED_ACKS),
    _durable(1000, "100b", 100, _BATCHED_ACKS),
    _durable(1000, "1kb", 1024, _BATCHED_ACKS),
    Case(
        "ten-by-ten",
        "10 producers, 10 consumers, 10 durable queues, windows of 100, 100 B",
        Kind.THROUGHPUT,
        (
            *("--producers", "10", "--consumers", "10", "--queues", "10"),
            *("--confirm", "100", *_DURABLE, *_BATCHED_ACKS),
        ),
        brokers=AMQP_AND_NULL_DURABLE,
    ),
    Case(
        "fan-out-10",
        "fan-out of one producer to 10 queues, transient, 100 B (deliveries)",
        Kind.THROUGHPUT,
        ("--fanout", "10"),
    ),
    Case(
        "backlog-transient",
        "backlog of transient messages, 100 B: build up, then drain",
        Kind.BACKLOG,
        (),
    ),
    Case(
        "backlog-durable",
        "backlog of persistent messages, 100 B, window of 1,000: build up, then drain",
        Kind.BACKLOG,
        ("--durable", "--persistent"),
    ),
    Case(
        "latency-transient-5k",
        "5,000 messages/s, transient, 100 B",
        Kind.LATENCY,
        ("--rate", "5000"),
        brokers=AMQP_AND_NULL,
    ),
    Case(
        "latency-transient-20k",
        "20,000 messages/s, transient, 100 B",
        Kind.LATENCY,
        ("--rate", "20000"),
        brokers=AMQP_AND_NULL,
    ),
    Case(
        "latency-durable-5k",
        "5,000 messages/s, durable, confirms, manual acks, 100 B",
        Kind.LATENCY,
        ("--rate", "5000", "--confirm", "1000", *_DURABLE, *_SINGLE_ACKS),
        brokers=AMQP_AND_NULL_DURABLE,
    ),
    Case("queues-10k", "durable queues declared one after the other", Kind.QUEUES, ("--durable",)),
    Case("connections-1k", "idle connections, heartbeat 10 s", Kind.CONNECTIONS, ()),
    Case(
        "admin-overhead",
        "1,000 queues, of which 10 are loaded, with the page open and /metrics every 5 s, against nobody looking",
        Kind.ADMIN,
        ("--producers", "10", "--consumers", "10", "--queues", "10"),
        brokers=("tidemark",),
    ),
    _keyed("1m", 1_000_000),
    _keyed("10m", 10_000_000),
    _of_stream("stream-open-10m", "opening a snapshot", Kind.STREAM_OPEN, INSIDE),
    _of_stream(
        "stream-scan-10m", "snapshot read to its end as Arrow, 100 B values", Kind.STREAM_SCAN, INSIDE
    ),
    _of_stream(
        "stream-restart-10m",
        "from the start of the process to the first answer, after kill -9 in the middle of updates",
        Kind.STREAM_RESTART,
        ("tidemark",),
    ),
    _of_stream("stream-memory-10m", "memory a key, 100 B values", Kind.STREAM_MEMORY, INSIDE),
    Case(
        "stream-peers",
        f"every put on the disk before its answer, 100 B values, {BATCH:,} rows a batch",
        Kind.STREAM_PEERS,
        brokers=PEERS,
        keys=100_000,
    ),
)


def select(patterns: list[str]) -> list[Case]:
    """The cases that these name; all when there is none. Raises ValueError for one that names none."""
    return among(CASES, patterns)


@dataclass(frozen=True, slots=True)
class Bar:
    """Tidemark's `metric` must be at most, or at least, `factor` times `against`'s.

    `against` None makes `factor` an absolute figure. `strict` makes "at most" into "below".
    """

    case: str
    metric: str
    text: str
    factor: float
    against: str | None = "rabbitmq"
    at_most: bool = True
    strict: bool = False

    def met_by(self, value: float, limit: float) -> bool:
        if self.strict and value == limit:
            return False
        return value <= limit if self.at_most else value >= limit


def bars() -> Iterator[Bar]:
    """The bars of the project, case by case."""
    for case in CASES:
        prefixes = ("build_", "drain_") if case.kind is Kind.BACKLOG else ("",)
        if case.kind in (Kind.THROUGHPUT, Kind.BACKLOG) and case.size <= 1024:
            for prefix in prefixes:
                yield Bar(case.name, f"{prefix}cpu_s_per_million", "CPU ≤ 1/20 RabbitMQ", 1 / 20)
                yield Bar(
                    case.name,
                    f"{prefix}messages_per_s",
                    "messages/s ≥ 10 × RabbitMQ",
                    10,
                    at_most=False,
                )
        if case.kind is Kind.LATENCY:
            for metric in ("p50_us", "p99_us"):
                text = f"{metric[:3]} latency below RabbitMQ's"
                yield Bar(case.name, metric, text, 1, strict=True)
        if case.kind is Kind.ADMIN:
            yield Bar(case.name, "throughput_cost", "being watched costs below 3 %", 0.03, None, strict=True)
        if case.size == 16384:
            yield Bar(case.name, "cpu_s_per_million", "CPU ≤ 2 × null broker", 2, "null")
        if case.kind.of_streams:
            yield from _stream_bars(case)
        elif case.window == 1000:
            yield Bar(
                case.name,
                "share_of_disk",
                "confirmed/s ≥ 70 % of the bare disk loop",
                0.7,
                None,
                at_most=False,
            )


def _stream_bars(case: Case) -> Iterator[Bar]:
    def least(metric: str, text: str, factor: float) -> Bar:
        return Bar(case.name, metric, text, factor, None, at_most=False)

    def below(metric: str, text: str, factor: float) -> Bar:
        return Bar(case.name, metric, text, factor, None, strict=True)

    match case.kind:
        case Kind.STREAM_KEYED:
            yield least("keyed_per_s", "at least 500,000 updates/s", 500_000)
            yield least("share_of_unkeyed", "at least 50 % of the unkeyed rate", 0.5)
        case Kind.STREAM_OPEN:
            yield below("open_p99_us", "below 1 ms", 1000)
        case Kind.STREAM_SCAN:
            yield least("rows_per_s", "at least 5,000,000 rows/s", 5e6)
            yield least("rows_per_cpu_s", "at least 5,000,000 rows a CPU second", 5e6)
            yield Bar(case.name, "writer_slowdown", "a writer slowed down by at most 40 %", 0.4, None)
        case Kind.STREAM_RESTART:
            yield below("serving_s", "below 2 s", 2.0)
        case Kind.STREAM_MEMORY:
            yield below("rss_bytes_per_key", "below 100 B a key", 100)
