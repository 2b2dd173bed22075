"""What is measured: every case as data, and the bars that the figures are held against.

A case says how the load generator is called; a bar says what one of its figures must be, mostly
as a multiple of another broker's figure in the same run. `docs/benchmarks.md` explains both.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from enum import Enum
from fnmatch import fnmatchcase


class Kind(Enum):
    THROUGHPUT = "throughput"
    LATENCY = "latency"
    BACKLOG = "backlog"
    QUEUES = "queues"
    CONNECTIONS = "connections"


@dataclass(frozen=True, slots=True)
class Case:
    name: str
    title: str
    kind: Kind
    load: tuple[str, ...]
    size: int = 100
    null_too: bool = False
    """Whether the null broker can do it: transient, automatic acks, default exchange."""
    window: int = 0
    """Messages per sync of the bare disk loop that runs beside this case; 0: none."""


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
        null_too=True,
    )


def _durable(window: int, label: str, size: int, acks: tuple[str, ...]) -> Case:
    return Case(
        f"durable-window-{window}-{label}",
        f"durable, confirms in a window of {window:,}, manual acks, {size:,} B",
        Kind.THROUGHPUT,
        ("--size", str(size), "--confirm", str(window), *_DURABLE, *acks),
        size,
        window=window,
    )


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
        null_too=True,
    ),
    Case(
        "latency-transient-20k",
        "20,000 messages/s, transient, 100 B",
        Kind.LATENCY,
        ("--rate", "20000"),
        null_too=True,
    ),
    Case(
        "latency-durable-5k",
        "5,000 messages/s, durable, confirms, manual acks, 100 B",
        Kind.LATENCY,
        ("--rate", "5000", "--confirm", "1000", *_DURABLE, *_SINGLE_ACKS),
    ),
    Case("queues-10k", "durable queues declared one after the other", Kind.QUEUES, ("--durable",)),
    Case("connections-1k", "idle connections, heartbeat 10 s", Kind.CONNECTIONS, ()),
)


def select(patterns: list[str]) -> list[Case]:
    """The cases whose names match any pattern, in their usual order; all when there is none.

    Raises:
        ValueError: a pattern matches no case.
    """
    for pattern in patterns:
        if not any(fnmatchcase(case.name, pattern) for case in CASES):
            names = ", ".join(case.name for case in CASES)
            raise ValueError(f"no case is called {pattern!r}; there are: {names}")
    return [
        case for case in CASES if not patterns or any(fnmatchcase(case.name, pattern) for pattern in patterns)
    ]


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
        if case.size == 16384:
            yield Bar(case.name, "cpu_s_per_million", "CPU ≤ 2 × null broker", 2, "null")
        if case.window == 1000:
            yield Bar(
                case.name,
                "share_of_disk",
                "confirmed/s ≥ 70 % of the bare disk loop",
                0.7,
                None,
                at_most=False,
            )
