"""What is measured on three nodes, and on fewer and more: every case as data, and the bars that figures are held against."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from enum import Enum

from bench.options import among

STANDBY, CHAIN, RABBITMQ, NATS, ALONE = "tidemark-standby", "tidemark-chain", "rabbitmq", "nats", "alone"
FLOOR = "floor"
QUEUES, PARTITIONS = "queues", "partitions"
OURS = (STANDBY, CHAIN)
ALL = (*OURS, RABBITMQ, NATS)
WITH_FLOOR = (*ALL, FLOOR)
NAMES = {
    STANDBY: "Tidemark standby",
    CHAIN: "Tidemark chain",
    RABBITMQ: "RabbitMQ quorum queue",
    NATS: "NATS JetStream R3",
    ALONE: "Tidemark alone",
    FLOOR: "null cluster",
}


class Kind(Enum):
    IDLE = "idle"
    PUBLISH = "publish"
    COST = "cost"
    KILL = "kill"
    FREEZE = "freeze"
    CATCH_UP = "catch up"
    GROW_NODES = "grow by nodes"
    GROW_GROUPS = "grow by groups"
    GROW_PARTITIONS = "grow by partitions"
    GROW_CAPACITY = "grow in capacity"
    GROW_CONSUMERS = "grow by consumers"


class Statistic(Enum):
    """Which of the runs' values a bar is about."""

    MEDIAN = "p50"
    P99 = "p99"
    MAX = "max"


@dataclass(frozen=True, slots=True)
class Bar:
    """What one figure of a contestant must be: `factor` itself, or so many times that of another one."""

    metric: str
    ours: str
    factor: float
    text: str
    against: str = ""
    at_most: bool = False
    statistic: Statistic = Statistic.MEDIAN

    def met_by(self, value: float) -> bool:
        return value <= self.factor if self.at_most else value >= self.factor


@dataclass(frozen=True, slots=True)
class Step:
    """One size of a cluster that grows along a line. Its name stands for the contestant among the figures."""

    line: str
    size: int
    contestant: str
    """The kind of cluster that it needs."""
    nodes: int = 3
    """Members of each group, where it is not them that grow."""

    @property
    def name(self) -> str:
        return f"{self.line}-{self.size}"


@dataclass(frozen=True, slots=True)
class Case:
    name: str
    title: str
    kind: Kind
    contestants: tuple[str, ...] = ALL
    size: int = 100
    window: int = 0
    publishers: int = 1
    bars: tuple[Bar, ...] = ()
    steps: tuple[Step, ...] = ()
    """Of a case that grows: each on a fresh cluster."""


@dataclass(frozen=True, slots=True)
class Scale:
    """How much is done: everything is bounded in count or time."""

    rounds: int
    seconds: float
    warmup_s: float
    kills: int
    """A round, of each contestant's leader."""
    freezes: int
    messages: int
    """That a member which returns with nothing has to catch up with."""
    grow_s: float
    """As `seconds`, of one step of a case that grows; half of it is the warm-up."""
    capacity_s: float
    """The same where CPUs are small: a tenth of a core is counted in ticks of 10 ms."""
    sizes_max: int
    """How many sizes a line grows through, from the smallest on."""


FULL = Scale(
    rounds=3,
    seconds=5,
    warmup_s=1.5,
    kills=34,
    freezes=10,
    messages=1_000_000,
    grow_s=3,
    capacity_s=8,
    sizes_max=9,
)
QUICK = Scale(
    rounds=1,
    seconds=2,
    warmup_s=0.7,
    kills=5,
    freezes=2,
    messages=1_000_000,
    grow_s=1,
    capacity_s=3,
    sizes_max=2,
)


def _publish_bars() -> tuple[Bar, ...]:
    metric = "confirmed_per_cpu_s"
    wanted = ((RABBITMQ, 3.0, "3 × RabbitMQ"), (NATS, 2.0, "2 × JetStream"))
    return tuple(
        Bar(metric, ours, factor, f"{NAMES[ours]}: confirmed a CPU second at least {words}", against)
        for ours in OURS
        for against, factor, words in wanted
    )


def _publish(size: int, label: str, window: int, publishers: int) -> Case:
    who = "one publisher" if publishers == 1 else f"{publishers} publishers"
    return Case(
        f"publish-{label}-w{window}-x{publishers}",
        f"confirmed publishes, {size:,} B, {who}, {window:,} unconfirmed each",
        Kind.PUBLISH,
        # What is in one read there is one group; larger windows would need as much care as a broker takes.
        WITH_FLOOR if window == 1 else ALL,
        size=size,
        window=window,
        publishers=publishers,
        bars=_publish_bars(),
    )


def _failover_bars() -> tuple[Bar, ...]:
    found = []
    for ours in OURS:
        for statistic, limit in ((Statistic.MEDIAN, 1.0), (Statistic.P99, 2.0)):
            words = f"{NAMES[ours]}: kill to next confirm, {statistic.value}, below {limit:.0f} s"
            found.append(Bar("next_confirm_s", ours, limit, words, at_most=True, statistic=statistic))
        found.append(_none_lost(ours))
    return tuple(found)


def _none_lost(ours: str) -> Bar:
    words = f"{NAMES[ours]}: no confirmed message lost"
    return Bar("lost", ours, 0, words, at_most=True, statistic=Statistic.MAX)


def _freeze_bars() -> tuple[Bar, ...]:
    words = "freeze to next confirm below 3 s, at most"
    limits = tuple(
        Bar("next_confirm_s", ours, 3, f"{NAMES[ours]}: {words}", at_most=True, statistic=Statistic.MAX)
        for ours in OURS
    )
    return (*limits, *map(_none_lost, OURS))


def _catch_up_bars() -> tuple[Bar, ...]:
    return tuple(
        bar
        for ours in OURS
        for bar in (
            Bar("share_of_bulk", ours, 0.5, f"{NAMES[ours]}: at least 50 % of a bulk copy"),
            Bar(
                "foreground_loss",
                ours,
                0.2,
                f"{NAMES[ours]}: publishers lose less than 20 % meanwhile",
                at_most=True,
            ),
        )
    )


def _line(name: str, contestant: str, *sizes: int) -> tuple[Step, ...]:
    return tuple(Step(name, size, contestant) for size in sizes)


def _growing() -> Iterator[Case]:
    yield Case(
        "grow-nodes",
        "1, 2, 3 and 5 members: confirmed publishes, 100 B, 4 publishers, 1,000 unconfirmed each",
        Kind.GROW_NODES,
        OURS,
        window=1000,
        publishers=4,
        steps=(*_line("standby", STANDBY, 1, 2, 3, 5), *_line("chain", CHAIN, 1, 2, 3, 5)),
    )
    for kind, name, what in (
        (Kind.GROW_GROUPS, "grow-groups", "a durable queue in each"),
        (Kind.GROW_PARTITIONS, "grow-partitions", "a partition of one stream in each"),
    ):
        yield Case(
            name,
            f"1, 2 and 3 chains of three members behind three fronts, {what}: confirmed publishes, 100 B",
            kind,
            (CHAIN,),
            window=1000,
            publishers=3,
            steps=_line("chains", CHAIN, 1, 2, 3),
        )
    yield Case(
        "grow-capacity",
        "1, 2 and 3 chains as above, each process with a small CPU of its own: confirmed publishes, 100 B",
        Kind.GROW_CAPACITY,
        (CHAIN,),
        # What is on its way must not keep a leader with a tenth of a core busy for as long as its lease.
        window=300,
        publishers=3,
        steps=(*_line(QUEUES, CHAIN, 1, 2, 3), *_line(PARTITIONS, CHAIN, 1, 2, 3)),
    )
    yield Case(
        "grow-consumers",
        "1, 4 and 16 followers of a stream on three members, reading from the leader and from the others",
        Kind.GROW_CONSUMERS,
        (STANDBY,),
        steps=(*_line("leader", STANDBY, 1, 4, 16), *_line("tail", STANDBY, 1, 4, 16)),
    )


CASES: tuple[Case, ...] = (
    Case("idle", "CPU of all server processes while nothing happens", Kind.IDLE),
    *(
        _publish(size, label, window, publishers)
        for size, label in ((100, "100b"), (1024, "1kb"))
        for window in (1, 100, 1000)
        for publishers in (1, 4)
    ),
    *(
        Case(
            f"cost-{label}",
            f"what replication costs the leader: its own CPU, {size:,} B, 1,000 unconfirmed",
            Kind.COST,
            (ALONE, *OURS),
            size=size,
            window=1000,
        )
        for size, label in ((100, "100b"), (16384, "16kb"))
    ),
    Case(
        "failover-kill",
        "SIGKILL of the leader under load, until the next confirm",
        Kind.KILL,
        bars=_failover_bars(),
    ),
    Case(
        "failover-freeze",
        "SIGSTOP of the leader under load, until the next confirm",
        Kind.FREEZE,
        bars=_freeze_bars(),
    ),
    Case(
        "catch-up",
        "a member returns with an empty store: 1,000,000 messages of 100 B",
        Kind.CATCH_UP,
        OURS,
        window=100,
        bars=_catch_up_bars(),
    ),
    *_growing(),
)


def select(patterns: list[str]) -> list[Case]:
    """The cases that these name; all when there is none. Raises ValueError for one that names none."""
    return among(CASES, patterns)


def bars() -> Iterator[tuple[Case, Bar]]:
    for case in CASES:
        for bar in case.bars:
            yield case, bar
