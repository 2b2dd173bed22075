"""What is measured of the pipeline on Spark: every case as data, and the bars that the figures are held against.

A case has contestants that take turns, round by round, on the same machine in the same minutes: ours, and what it is
held against. A bar is a ratio of two contestants' medians, or of one figure of ours to a number.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field
from enum import Enum

from bench.options import among

TIDEMARK, PARQUET, TUPLES, TRIGGER = "tidemark", "parquet", "tuples", "trigger"
FLOOR = "floor"
FIRST, UPDATES, COPY, COPY_FIRST, ROWWISE = "first", "updates", "copy", "copy first", "rowwise"
ALONE, PINNED, READ = "alone", "pinned", "read"

NAMES = {
    TIDEMARK: "Tidemark",
    TRIGGER: "Tidemark, one micro-batch",
    PARQUET: "Parquet file",
    TUPLES: "row tuples",
    FLOOR: "empty Python source",
    FIRST: "Tidemark, first batch",
    UPDATES: "Tidemark, known keys",
    COPY: "bare COPY",
    COPY_FIRST: "bare COPY, first",
    ROWWISE: "COPY row by row",
    ALONE: "no pin",
    PINNED: "a pin is held",
    READ: "Spark reads the pin",
}
"""What contestants are called in tables; a size of a stream is its own name."""


class Kind(Enum):
    SCAN = "scan"
    MICRO_BATCH = "micro-batch"
    POSTGRES = "postgres"
    GROWTH = "growth"
    PIN = "pin"


@dataclass(frozen=True, slots=True)
class Bar:
    """The median of `ours` in `metric` must be at least, or at most, `factor` times that of `against`."""

    metric: str
    text: str
    factor: float
    against: str
    ours: str = TIDEMARK
    at_most: bool = False

    def met_by(self, ratio: float) -> bool:
        return ratio <= self.factor if self.at_most else ratio >= self.factor


@dataclass(frozen=True, slots=True)
class Case:
    name: str
    title: str
    kind: Kind
    contestants: tuple[str, ...]
    bars: tuple[Bar, ...] = ()
    value_bytes: int = 100
    rows: int = 0
    """Of the stream that is read; of one batch for PostgreSQL; keys of the stream that is pinned."""
    sizes: tuple[int, ...] = field(default=())
    """Live keys, for growth."""


@dataclass(frozen=True, slots=True)
class Scale:
    """How much is done: everything is bounded in count or time."""

    share: float
    """Of the rows that the cases name."""
    rounds: int
    warmups: int
    batches: int
    """Micro-batches of one round."""
    pump_s: float
    """One phase of writing."""

    def rows(self, count: int) -> int:
        return max(1_000, int(count * self.share))


FULL = Scale(share=1.0, rounds=7, warmups=3, batches=60, pump_s=4.0)
QUICK = Scale(share=0.2, rounds=3, warmups=2, batches=25, pump_s=1.0)


def _scan(label: str, value_bytes: int, rows: int) -> Case:
    rate = "rows_per_s"
    return Case(
        f"scan-{label}",
        f"{rows:,} rows of {value_bytes:,} B into the noop sink",
        Kind.SCAN,
        (TIDEMARK, TRIGGER, PARQUET, TUPLES),
        (
            Bar(rate, "at least 70 % of reading the same rows from Parquet", 0.7, PARQUET),
            Bar(rate, "a micro-batch: at least 70 % of Parquet", 0.7, PARQUET, ours=TRIGGER),
            Bar(rate, "at least 5 times the row tuples", 5, TUPLES),
        ),
        value_bytes=value_bytes,
        rows=rows,
    )


def _size(keys: int) -> str:
    return f"{keys // 1_000_000}M" if keys >= 1_000_000 else f"{keys // 1_000}k"


def _growth(*sizes: int) -> Case:
    names = tuple(f"{_size(keys)} keys" for keys in sizes)
    return Case(
        "growth",
        f"cost a row as the stream grows from {_size(sizes[0])} to {_size(sizes[-1])} live keys, 100 B",
        Kind.GROWTH,
        names,
        (
            Bar(
                "cpu_s_per_million",
                "the whole stream: a row costs at most 1.2 times",
                1.2,
                names[0],
                names[-1],
                True,
            ),
            Bar(
                "changed_cpu_s_per_million",
                "what changed: a row costs at most 1.2 times",
                1.2,
                names[0],
                names[-1],
                True,
            ),
        ),
        sizes=sizes,
    )


CASES: tuple[Case, ...] = (
    _scan("100b", 100, 4_000_000),
    _scan("1kb", 1024, 1_000_000),
    Case(
        "micro-batch",
        "a micro-batch of 100 rows into the noop sink, one task, a new pinned snapshot each time",
        Kind.MICRO_BATCH,
        (TIDEMARK, FLOOR),
        (Bar("trigger_ms", "at most 1.2 times the empty source", 1.2, FLOOR, at_most=True),),
        rows=100,
    ),
    Case(
        "postgres",
        "a batch of 500,000 new rows into a table of PostgreSQL that has as many",
        Kind.POSTGRES,
        (TIDEMARK, COPY, ROWWISE, FIRST, COPY_FIRST, UPDATES),
        (
            Bar("rows_per_s", "at least 50 % of a bare COPY", 0.5, COPY),
            Bar("rows_per_s", "into an empty table: at least 50 %", 0.5, COPY_FIRST, ours=FIRST),
        ),
        rows=500_000,
    ),
    _growth(1_000_000, 5_000_000, 20_000_000),
    Case(
        "pin",
        "updates of 1,000,000 keys, 100 B, while a snapshot of all of them is pinned",
        Kind.PIN,
        (ALONE, PINNED, READ),
        rows=1_000_000,
    ),
)


def select(patterns: list[str]) -> list[Case]:
    """The cases that these name; all when there is none. Raises ValueError for one that names none."""
    return among(CASES, patterns)


def bars() -> Iterator[tuple[Case, Bar]]:
    for case in CASES:
        for bar in case.bars:
            yield case, bar
